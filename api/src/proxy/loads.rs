//! How many calls each supervisor has from here, so that the next one goes where the fewest are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sless_backend::Endpoint;

/// Those that have at least one.
#[derive(Debug, Default)]
pub(super) struct Loads(Mutex<HashMap<Endpoint, usize>>);

/// One call, for as long as this lives.
#[derive(Debug)]
pub(super) struct Load {
    loads: Arc<Loads>,
    endpoint: Endpoint,
}

impl Loads {
    fn all(&self) -> MutexGuard<'_, HashMap<Endpoint, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of the one with the fewest calls among those that are not in `but`, the first of equals; the call is counted there.
    /// One that is alone is not counted: there is nothing to choose.
    pub(super) fn least(
        self: &Arc<Self>,
        endpoints: &[Endpoint],
        but: &[Endpoint],
    ) -> Option<(usize, Option<Load>)> {
        if let [only] = endpoints {
            return (!but.contains(only)).then_some((0, None));
        }
        let mut all = self.all();
        let left = endpoints.iter().enumerate().filter(|(_, endpoint)| !but.contains(endpoint));
        let (place, endpoint) = left.min_by_key(|(_, endpoint)| all.get(endpoint).copied().unwrap_or(0))?;
        *all.entry(endpoint.clone()).or_default() += 1;
        Some((place, Some(Load { loads: self.clone(), endpoint: endpoint.clone() })))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let mut all = self.loads.all();
        if let Some(count) = all.get_mut(&self.endpoint) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.endpoint);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(count: u16) -> Vec<Endpoint> {
        let at = |n| ([127, 0, 0, 1], n).into();
        (0..count).map(|n| Endpoint::Tcp { addr: at(8000 + n), admin: at(9000 + n) }).collect()
    }

    #[test]
    fn the_next_call_goes_where_the_fewest_are() {
        let (loads, three) = (Arc::new(Loads::default()), endpoints(3));
        let mut calls: Vec<_> = (0..6).map(|_| loads.least(&three, &[]).unwrap()).collect();
        assert_eq!(calls.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        calls.remove(1);
        assert_eq!(loads.least(&three, &[]).unwrap().0, 1);
        assert_eq!(loads.least(&three, &three[..2]).unwrap().0, 2);
        assert!(loads.least(&three, &three).is_none() && loads.least(&[], &[]).is_none());
        drop(calls);
        assert!(loads.all().is_empty(), "nothing is left of calls that are over");
    }

    #[test]
    fn one_that_is_alone_gets_them_all_unless_it_has_refused() {
        let (loads, one) = (Arc::new(Loads::default()), endpoints(1));
        assert!(matches!(loads.least(&one, &[]), Some((0, None))));
        assert!(loads.least(&one, &one).is_none());
    }
}
