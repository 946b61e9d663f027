//! What the backend's callers see: statuses, endpoints, builds. Written by the functions' tasks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use sless_backend::{
    BackendError, BoxStream, BuildStatus, CodeStore, Endpoint, FunctionRef, FunctionStatus, Generation,
    Secret,
};
use sless_core::Phase;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;

use crate::aside::{Asides, Running};
use crate::builds::InUse;
use crate::cgroup::Cgroups;
use crate::function::{Function, Want, Wish};
use crate::layout::Layout;
use crate::tokens::ReportTokens;
use crate::{ByFunction, LocalConfig};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: LocalConfig,
    pub(crate) layout: Layout,
    pub(crate) code: Arc<dyn CodeStore>,
    pub(crate) proxy_token: Secret,
    pub(crate) report_tokens: ReportTokens,
    pub(crate) running: Running,
    pub(crate) asides: Asides,
    pub(crate) code_in_use: InUse,
    /// `None`: nothing is limited here.
    pub(crate) cgroups: Option<Arc<Cgroups>>,
    functions: Mutex<Functions>,
    /// Apart from the rest: read for each call.
    endpoints: RwLock<HashMap<FunctionRef, Arc<[Endpoint]>>>,
    /// `None` once the host ends.
    changes: Mutex<Option<broadcast::Sender<FunctionStatus>>>,
}

#[derive(Debug, Default)]
struct Functions {
    entries: ByFunction<Entry>,
    lives: u64,
    stopped: bool,
}

#[derive(Debug)]
struct Entry {
    wishes: watch::Sender<Wish>,
    /// `None` between two lives.
    status: Option<FunctionStatus>,
    build: Option<BuildStatus>,
    task: JoinHandle<()>,
}

/// What a function's task tells of it.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) generation: Generation,
    pub(crate) phase: Phase,
    pub(crate) message: Option<String>,
    pub(crate) active_revision: Option<String>,
}

/// Whether a build's status replaces one that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Always,
    IfNone,
}

impl Shared {
    pub(crate) fn new(
        config: LocalConfig,
        layout: Layout,
        code: Arc<dyn CodeStore>,
        proxy_token: Secret,
        cgroups: Option<Cgroups>,
    ) -> Self {
        Self {
            cgroups: cgroups.map(Arc::new),
            config,
            layout,
            code,
            proxy_token,
            report_tokens: ReportTokens::default(),
            running: Running::default(),
            asides: Asides::default(),
            code_in_use: InUse::default(),
            functions: Mutex::default(),
            endpoints: RwLock::default(),
            changes: Mutex::new(Some(broadcast::channel(1024).0)),
        }
    }

    fn functions(&self) -> MutexGuard<'_, Functions> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a wish on to the function's task, which is started if there is none.
    pub(crate) fn wish(shared: &Arc<Self>, function: &FunctionRef, want: Want) -> Result<(), BackendError> {
        let mut functions = shared.functions();
        if functions.stopped {
            let action = format!("change {function} while the host ends");
            return Err(BackendError::Unavailable { action, source: "the host is shutting down".into() });
        }
        functions.lives += 1;
        let fresh = functions.lives;
        if let Some(entry) = functions.entries.get_mut(function) {
            entry.wishes.send_if_modified(|wish| {
                let life = match (&wish.want, &want) {
                    (Want::Run(_, last), Want::Run(_, next)) if next < last => return false,
                    (Want::Delete, Want::Delete) => return false,
                    (Want::Delete, Want::Run(..)) => fresh,
                    _ => wish.life,
                };
                *wish = Wish { life, want: want.clone() };
                true
            });
            if let (Want::Run(_, generation), Some(status)) = (&want, &mut entry.status) {
                // So that who asks next sees that the wish is not fulfilled yet.
                if status.generation < *generation && !matches!(status.phase, Phase::Terminating) {
                    status.phase = Phase::Pending;
                    status.message = None;
                    status.generation = *generation;
                    shared.send(status.clone());
                }
            }
            return Ok(());
        }
        let Want::Run(spec, generation) = &want else {
            // Not running, but files of an earlier host may be there.
            return shared.layout.remove_function(function).map_err(|e| BackendError::Unavailable {
                action: format!("remove the files of {function}"),
                source: e.into(),
            });
        };
        let status = FunctionStatus {
            function: function.clone(),
            generation: *generation,
            phase: Phase::Pending,
            message: None,
            active_revision: spec.serving.as_ref().map(|revision| revision.name.clone()),
            gone: false,
        };
        shared.send(status.clone());
        let (wishes, wish) = watch::channel(Wish { life: fresh, want });
        let task = tokio::spawn(Function::new(shared.clone(), function.clone()).run(wish));
        functions.entries.insert(function.clone(), Entry { wishes, status: Some(status), build: None, task });
        Ok(())
    }

    /// Removes a function whose deletion is done, unless it is wanted again; whether it was removed.
    pub(crate) fn forget(&self, function: &FunctionRef, life: u64) -> bool {
        let mut functions = self.functions();
        let over = functions.entries.get(function).is_none_or(|entry| {
            let wish = entry.wishes.borrow();
            wish.life == life && !matches!(wish.want, Want::Run(..))
        });
        if over {
            functions.entries.remove(function);
        }
        over
    }

    pub(crate) fn status(&self, function: &FunctionRef) -> Option<FunctionStatus> {
        self.functions().entries.get(function)?.status.clone()
    }

    /// The host ends.
    pub(crate) fn is_stopped(&self) -> bool {
        self.functions().stopped
    }

    pub(crate) fn build(&self, function: &FunctionRef) -> Option<BuildStatus> {
        self.functions().entries.get(function)?.build.clone()
    }

    pub(crate) fn tell_build(&self, function: &FunctionRef, status: Option<BuildStatus>, told: Told) {
        if let Some(entry) = self.functions().entries.get_mut(function)
            && (told == Told::Always || entry.build.is_none())
        {
            entry.build = status;
        }
    }

    /// Publishes what is true now: the status first, so that who is answered by an endpoint finds it told.
    pub(crate) fn tell(&self, function: &FunctionRef, news: News, endpoint: Option<Endpoint>) {
        let status = FunctionStatus {
            function: function.clone(),
            generation: news.generation,
            phase: news.phase,
            message: news.message,
            active_revision: news.active_revision,
            gone: false,
        };
        let mut functions = self.functions();
        if let Some(entry) = functions.entries.get_mut(function) {
            // A wish that this news does not know yet has been noted already: it must not look fulfilled.
            let overtaken = entry.status.as_ref().is_some_and(|known| known.generation > status.generation);
            if !overtaken && entry.status.as_ref() != Some(&status) {
                entry.status = Some(status.clone());
                self.send(status);
            }
        }
        let mut all = self.endpoints.write().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(function).map(|list| list.as_ref());
        match endpoint {
            Some(endpoint) if known == Some(std::slice::from_ref(&endpoint)) => {}
            Some(endpoint) => {
                all.insert(function.clone(), Arc::new([endpoint]));
            }
            None => {
                all.remove(function);
            }
        }
    }

    pub(crate) fn tell_terminating(&self, function: &FunctionRef) {
        let mut functions = self.functions();
        if let Some(status) = functions.entries.get_mut(function).and_then(|entry| entry.status.as_mut()) {
            status.phase = Phase::Terminating;
            status.message = None;
            self.send(status.clone());
        }
    }

    pub(crate) fn tell_gone(&self, function: &FunctionRef) {
        let mut functions = self.functions();
        let Some(entry) = functions.entries.get_mut(function) else { return };
        entry.build = None;
        let generation = entry.status.take().map(|status| status.generation).unwrap_or_default();
        self.send(FunctionStatus {
            function: function.clone(),
            generation,
            phase: Phase::Terminating,
            message: None,
            active_revision: None,
            gone: true,
        });
    }

    fn send(&self, status: FunctionStatus) {
        if let Some(changes) = &*self.changes.lock().unwrap_or_else(PoisonError::into_inner) {
            // Nobody watching is no fault.
            let _ = changes.send(status);
        }
    }

    pub(crate) fn endpoints_of(&self, function: &FunctionRef) -> Arc<[Endpoint]> {
        self.endpoints
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(function)
            .cloned()
            .unwrap_or_default()
    }

    /// Gives out no endpoints of `function` any more; the list that was given out.
    pub(crate) fn take_endpoints(&self, function: &FunctionRef) -> Arc<[Endpoint]> {
        self.endpoints.write().unwrap_or_else(PoisonError::into_inner).remove(function).unwrap_or_default()
    }

    pub(crate) fn watch(self: &Arc<Self>) -> BoxStream<FunctionStatus> {
        // Subscribed under the lock: a change is either in the present state or comes after it.
        let functions = self.functions();
        let Some(changes) = self
            .changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(broadcast::Sender::subscribe)
        else {
            return Box::pin(tokio_stream::empty());
        };
        let present = present(&functions);
        drop(functions);
        let shared = Arc::downgrade(self);
        // Who was too slow gets the present state again, in place of what was missed.
        let changes = BroadcastStream::new(changes).map(move |change| match change {
            Ok(status) => vec![status],
            Err(BroadcastStreamRecvError::Lagged(_)) => {
                shared.upgrade().map(|shared| present_of(&shared)).unwrap_or_default()
            }
        });
        let first = tokio_stream::once(present);
        Box::pin(Flat { inner: Box::pin(first.chain(changes)), ready: Vec::new().into_iter() })
    }

    /// Ends all functions' supervisors and the watchers' streams.
    pub(crate) async fn stop(&self) {
        let entries = {
            let mut functions = self.functions();
            functions.stopped = true;
            std::mem::take(&mut functions.entries)
        };
        for entry in entries.values() {
            entry.wishes.send_modify(|wish| wish.want = Want::Stop);
        }
        for entry in entries.into_values() {
            // A task that panicked has ended too.
            let _ = entry.task.await;
        }
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove().await;
        }
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn present(functions: &Functions) -> Vec<FunctionStatus> {
    functions.entries.values().filter_map(|entry| entry.status.clone()).collect()
}

fn present_of(shared: &Shared) -> Vec<FunctionStatus> {
    present(&shared.functions())
}

/// A stream of lists as a stream of their items.
struct Flat {
    inner: BoxStream<Vec<FunctionStatus>>,
    ready: std::vec::IntoIter<FunctionStatus>,
}

impl tokio_stream::Stream for Flat {
    type Item = FunctionStatus;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<FunctionStatus>> {
        use std::task::Poll;
        loop {
            if let Some(status) = self.ready.next() {
                return Poll::Ready(Some(status));
            }
            match self.inner.as_mut().poll_next(cx) {
                Poll::Ready(Some(list)) => self.ready = list.into_iter(),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
