//! Which output pair a call writes to, so that each line finds its call: the pairs of one worker.
//!
//! A pair belongs to one call at a time. It goes to another only when the call's end has been handled and no leftover
//! of it holds the pair open; one that a leftover holds is spoilt for good.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use sless_protocol::handshake::Boundary;

use super::outlet::{InitLog, Owner, Pair, SharedRecord, Tap};
use crate::report::LooseOutput;

/// Pairs of a worker: enough for the calls in its socket, one to change to, and some that leftovers may keep.
const COUNT: usize = super::slot::DEPTH + 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    Taken,
    /// A leftover of an earlier call holds it open.
    Spoilt,
}

/// What `end` has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stock {
    Enough,
    /// No pair is left that only the worker itself holds: a fresh worker has fresh ones.
    UsedUp,
}

#[derive(Debug)]
pub(super) struct Pairs {
    pairs: Vec<Pair>,
    uses: RefCell<Vec<Use>>,
    current: Cell<u16>,
    /// Known once the worker is ready.
    boundary: Cell<Boundary>,
    mark: String,
    leftovers: RefCell<HashSet<i32>>,
    loose: Rc<RefCell<LooseOutput>>,
    /// With several slots what comes by pipes belongs to no call.
    shared: bool,
}

impl Pairs {
    /// Gives the write ends too, pair by pair. What comes before the worker is ready goes into `init`.
    pub(super) fn new(
        slots: usize,
        init: &InitLog,
        loose: LooseOutput,
    ) -> io::Result<(Self, Vec<[OwnedFd; 2]>)> {
        let loose = Rc::new(RefCell::new(loose));
        let shared = slots > 1;
        let (mut pairs, mut ends) = (Vec::new(), Vec::new());
        for n in 0..if shared { 1 } else { COUNT } {
            let owner = if n == 0 { Owner::Init(init.clone()) } else { Owner::Nobody(loose.clone()) };
            let (pair, write_ends) = Pair::new(&owner, &loose)?;
            pairs.push(pair);
            ends.push(write_ends);
        }
        let made = Self {
            uses: RefCell::new(vec![Use::Free; pairs.len()]),
            pairs,
            current: Cell::new(0),
            boundary: Cell::new(Boundary::Marks),
            mark: uuid::Uuid::new_v4().simple().to_string(),
            leftovers: RefCell::default(),
            loose,
            shared,
        };
        Ok((made, ends))
    }

    /// The secret part of this worker's marks.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    pub(super) fn taps(&self) -> impl Iterator<Item = &Rc<Tap>> {
        self.pairs.iter().flat_map(|pair| &pair.taps)
    }

    pub(super) fn drain(&self) {
        self.pairs.iter().for_each(Pair::drain);
    }

    /// The worker is ready: what the import printed is in the pipe by now, and must not end up in the first call's own part.
    pub(super) fn ready(&self, boundary: Boundary) {
        self.boundary.set(boundary);
        self.drain();
        if let Some(pair) = self.pairs.first() {
            pair.set_owner(&Owner::Nobody(self.loose.clone()));
        }
    }

    /// The pair for the next call: the one in use where that is exact, else a free one. `waiting`: behind another call.
    pub(super) fn choose(&self, waiting: bool) -> Option<u16> {
        if self.shared {
            return Some(0);
        }
        let free = self.is_free(self.current.get());
        let keep = match self.boundary.get() {
            // A waiting call's output must not meet the running one's.
            Boundary::Pairs => !waiting && free,
            // The mark divides them.
            Boundary::Marks => waiting || free,
        };
        if keep { Some(self.current.get()) } else { self.any_free() }
    }

    fn is_free(&self, pair: u16) -> bool {
        self.uses.borrow().get(usize::from(pair)) == Some(&Use::Free)
    }

    fn any_free(&self) -> Option<u16> {
        self.uses.borrow().iter().position(|u| *u == Use::Free).and_then(|n| u16::try_from(n).ok())
    }

    /// What comes out of `pair` is the call's from now on, or from its mark on where that divides.
    pub(super) fn give(&self, pair: u16, call: u32, record: &SharedRecord, waiting: bool) {
        let (n, owner) = (usize::from(pair), Owner::Call(record.clone()));
        let Some(outlet) = self.pairs.get(n).filter(|_| !self.shared) else { return };
        if waiting && self.boundary.get() == Boundary::Marks {
            let mark = self.mark_of(call);
            outlet.taps.iter().for_each(|t| t.expect(mark.clone(), owner.clone()));
        } else {
            // What the worker has printed since the last call is nobody's. A line of this very moment may be the next call's
            // as well: nobody could tell.
            outlet.drain_if_told();
            outlet.set_owner(&owner);
            self.set(pair, Use::Taken);
        }
        self.current.set(pair);
    }

    fn set(&self, pair: u16, state: Use) {
        if let Some(slot) = self.uses.borrow_mut().get_mut(usize::from(pair)) {
            *slot = state;
        }
    }

    fn mark_of(&self, call: u32) -> Vec<u8> {
        format!("\0sless:{}:{call}\0", self.mark).into_bytes()
    }

    /// A call that waited has been taken back.
    pub(super) fn forget(&self, pair: u16, call: u32) {
        if let Some(outlet) = self.pairs.get(usize::from(pair)) {
            let mark = self.mark_of(call);
            outlet.taps.iter().for_each(|t| t.forget(&mark));
        }
    }

    /// The worker has skipped a call that had this pair.
    pub(super) fn skipped(&self, pair: u16) {
        let taken = self.uses.borrow().get(usize::from(pair)) == Some(&Use::Taken);
        // By marks the pair is the running call's too.
        if taken && self.boundary.get() == Boundary::Pairs {
            self.set(pair, Use::Free);
        }
    }

    /// Takes a call's output up to now into its record, and frees its pair if no leftover holds it. `descendants` is asked
    /// only of a call that has started a process.
    pub(super) fn end(
        &self,
        pair: u16,
        record: &SharedRecord,
        spawned: bool,
        descendants: impl FnOnce() -> Vec<i32>,
    ) -> Stock {
        let Some(outlet) = self.pairs.get(usize::from(pair)).filter(|_| !self.shared) else {
            return Stock::Enough;
        };
        outlet.drain();
        outlet.release(record);
        let spoilt = spawned && self.are_new(descendants());
        self.set(pair, if spoilt { Use::Spoilt } else { Use::Free });
        if spoilt && self.any_free().is_none() { Stock::UsedUp } else { Stock::Enough }
    }

    fn are_new(&self, descendants: Vec<i32>) -> bool {
        let now: HashSet<i32> = descendants.into_iter().collect();
        let new = !now.is_subset(&self.leftovers.borrow());
        *self.leftovers.borrow_mut() = now;
        new
    }

    /// For a worker that waits for it: a pair that no leftover holds, which the calls in its socket go on with.
    pub(super) fn change(&self) -> u16 {
        self.taps().for_each(|t| t.forget_all());
        let current = self.current.get();
        // With none left the worker is retired; until then lines may be a leftover's.
        let pair = if self.is_free(current) { current } else { self.any_free().unwrap_or(current) };
        self.current.set(pair);
        pair
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::{Console, Format};
    use crate::mask::Masks;
    use crate::report::{ReportConfig, Reporter};

    fn pairs(boundary: Boundary) -> Pairs {
        let config = ReportConfig {
            namespace: "n".into(),
            function: "f".into(),
            revision: String::new(),
            pod: String::new(),
            endpoint: None,
            token_file: None,
            ca_file: None,
            spool_dir: None,
            spool_limit: 1 << 20,
            log_limit: 1 << 20,
            result_limit: 0,
            input_limit: 0,
            masks: Masks::none(),
        };
        let reporter = Reporter::start(config, Console::new(std::io::sink(), Format::Json).unwrap());
        let init = Rc::new(RefCell::new(Some(reporter.init_log())));
        let (pairs, _ends) = Pairs::new(1, &init, reporter.loose()).unwrap();
        pairs.ready(boundary);
        pairs
    }

    fn record() -> SharedRecord {
        Rc::new(RefCell::new(None))
    }

    async fn local(test: impl FnOnce()) {
        tokio::task::LocalSet::new().run_until(async { test() }).await;
    }

    #[tokio::test]
    async fn a_waiting_call_has_a_pair_of_its_own_unless_marks_divide() {
        local(|| {
            for (boundary, same) in [(Boundary::Pairs, false), (Boundary::Marks, true)] {
                let pairs = pairs(boundary);
                let first = pairs.choose(false).unwrap();
                pairs.give(first, 1, &record(), false);
                let second = pairs.choose(true).unwrap();
                assert_eq!(first == second, same, "{boundary:?}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_pair_that_a_leftover_holds_is_not_used_again() {
        local(|| {
            let pairs = pairs(Boundary::Pairs);
            let mut used = HashSet::new();
            for call in 1.. {
                let pair = pairs.choose(false).unwrap();
                assert!(used.insert(pair), "pair {pair} was held by a leftover");
                let record = record();
                pairs.give(pair, call, &record, false);
                let leftovers: Vec<i32> = (0..i32::try_from(call).unwrap()).collect();
                if pairs.end(pair, &record, true, || leftovers) == Stock::UsedUp {
                    break;
                }
            }
            assert_eq!(used.len(), COUNT);
        })
        .await;
    }

    #[tokio::test]
    async fn children_that_were_there_before_spoil_nothing() {
        local(|| {
            let pairs = pairs(Boundary::Pairs);
            let record = record();
            for call in 1..50 {
                let pair = pairs.choose(false).unwrap();
                pairs.give(pair, call, &record, false);
                assert_eq!(pairs.end(pair, &record, true, || vec![7]), Stock::Enough);
            }
        })
        .await;
    }
}
