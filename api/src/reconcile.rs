//! Tells the backend what should be, and keeps what it says that is.
//!
//! The wish is in the database before anybody hears of it. One task then brings it to the backend, again and again until it is
//! taken: after a crash all functions are wished for anew.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sless_backend::{
    BoxStream, FunctionRef, FunctionRow, FunctionSpec, FunctionStatus, Generation, Moment, Revision,
    RevisionRow, Secret,
};
use sless_core::{Namespace, SecretName};
use tokio::sync::Notify;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::detached::PATIENCE;
use crate::problem::{Code, Problem, chain};
use crate::store::{Contents, StoreError, Upkeep};

/// What did not work is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);
/// Between looks at what is old enough to go.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);

/// The secret of a namespace that its builds are given.
const PACKAGE_INDEX: &str = "package-index";
/// After a call's limit: time for its kill and for its record to be delivered.
const RECORDS_COME_WITHIN: Duration = Duration::from_secs(60);

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Functions whose wish the backend has yet to hear.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    waiting: Mutex<BTreeSet<FunctionRef>>,
    some: Notify,
    /// Why the last try did not work, in words for whoever looks at the function.
    troubles: Mutex<HashMap<FunctionRef, String>>,
}

impl Changes {
    /// To be called after each write that the backend must hear of.
    pub(crate) fn push(&self, function: FunctionRef) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(function);
        self.some.notify_one();
    }

    /// Why the backend has not heard of the newest change yet, if something is in the way.
    pub(crate) fn trouble(&self, function: &FunctionRef) -> Option<String> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).get(function).cloned()
    }

    /// Whether that is news.
    fn note(&self, function: &FunctionRef, trouble: Option<String>) -> bool {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        match trouble {
            Some(trouble) => {
                troubles.insert(function.clone(), trouble.clone()).is_none_or(|old| old != trouble)
            }
            None => troubles.remove(function).is_some(),
        }
    }

    fn take(&self) -> BTreeSet<FunctionRef> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs until `stop`.
pub(crate) async fn run(app: Arc<App>, upkeep: Arc<dyn Upkeep>, stop: CancellationToken) {
    let (app, upkeep) = (&*app, &*upkeep);
    let mut statuses = app.backend.watch_functions();
    let mut active: HashMap<FunctionRef, String> = HashMap::new();
    let mut again = BTreeSet::new();
    let mut tick = tokio::time::interval(AGAIN);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = app.changes.some.notified() => {
                for function in app.changes.take() {
                    bring(app, upkeep, function, &mut again).await;
                }
            }
            status = statuses.next() => match status {
                Some(status) => {
                    let function = status.function.clone();
                    if let Err(error) = keep(app, upkeep, status, &mut active).await {
                        tracing::warn!(function = %function, error = %chain(&*error), "failed to note the state of a function, trying again");
                        again.insert(function);
                    }
                }
                // The backend has stopped, and with it all there is to do.
                None => return,
            },
            _ = tick.tick(), if !again.is_empty() => {
                for function in std::mem::take(&mut again) {
                    active.remove(&function);
                    bring(app, upkeep, function.clone(), &mut again).await;
                    if let Some(status) = app.backend.status(&function)
                        && let Err(error) = keep(app, upkeep, status, &mut active).await
                    {
                        tracing::warn!(function = %function, error = %chain(&*error), "failed to note the state of a function, trying again");
                        again.insert(function);
                    }
                }
            }
        }
    }
}

async fn bring(app: &App, upkeep: &dyn Upkeep, function: FunctionRef, again: &mut BTreeSet<FunctionRef>) {
    let wished = wish(app, upkeep, &function).await;
    let trouble = wished.as_ref().err().map(|error| match error.downcast_ref::<Problem>() {
        Some(problem) => problem.detail.clone(),
        // The rest is for the log.
        None => "the change could not be handed on yet; it is tried again".to_owned(),
    });
    let news = app.changes.note(&function, trouble);
    match wished {
        Ok(true) => {}
        Ok(false) => {
            again.insert(function);
        }
        Err(error) => {
            // Tried every second: one line for each reason.
            if news {
                tracing::warn!(function = %function, error = %chain(&*error), "failed to bring a function to the backend, trying again");
            }
            again.insert(function);
        }
    }
}

/// A revision as the backend is to run it today.
pub(crate) async fn revision(
    app: &App,
    row: &FunctionRow,
    revision: RevisionRow,
) -> Result<Revision, Problem> {
    // What a revision does not fix is always that of today.
    let settings = row.settings.clone().with_revised_of(&revision.settings);
    let secrets = match &app.upkeep {
        Some(upkeep) => variables(&**upkeep, &row.function.namespace, &settings.secrets).await?,
        // On a cluster they go from the secrets to the pods, and never through here.
        None => BTreeMap::new(),
    };
    Ok(Revision { name: revision.name, runtime: row.runtime.clone(), settings, code: revision.code, secrets })
}

/// The variables that these secrets make; of two with the same key the later one counts. What is not there any more (of a revision
/// that is not the wanted one) makes none.
///
/// # Errors
/// If one can't be decrypted, and what the store says.
async fn variables(
    upkeep: &dyn Upkeep,
    namespace: &Namespace,
    names: &[SecretName],
) -> Result<BTreeMap<String, Secret>, Problem> {
    let mut variables = BTreeMap::new();
    for name in names {
        match upkeep.contents(namespace, name).await? {
            None => {}
            Some(Contents::Values(values)) => variables.extend(values),
            Some(Contents::Unreadable) => {
                let says = format!(
                    "the secret {:?} can't be decrypted with this host's key: set the secret anew, or put the key back that it was set with",
                    name.as_str()
                );
                return Err(Problem::new(Code::Internal, says));
            }
        }
    }
    Ok(variables)
}

/// What installers of this namespace's functions are given; nothing if there is no such secret.
async fn index(upkeep: &dyn Upkeep, namespace: &Namespace) -> Result<BTreeMap<String, Secret>, Problem> {
    let Ok(name) = PACKAGE_INDEX.parse() else { return Ok(BTreeMap::new()) };
    variables(upkeep, namespace, &[name]).await
}

/// Whether that was all; `false` while a deletion goes on.
async fn wish(app: &App, upkeep: &dyn Upkeep, function: &FunctionRef) -> Result<bool, AnyError> {
    let Some(row) = upkeep.function(function).await? else { return Ok(true) };
    if row.deleting {
        app.backend.delete_function(function).await?;
        return match app.backend.status(function) {
            None => forget(app, upkeep, function).await.map(|()| true),
            Some(_) => Ok(false),
        };
    }
    let Some(wanted) = &row.wanted else { return Ok(true) };
    let Some(wanted) = upkeep.revision(&row, wanted).await? else { return Ok(true) };
    let serving = match &row.active {
        Some(active) => upkeep.revision(&row, active).await?,
        None => None,
    };
    let serving = match serving {
        Some(serving) => Some(revision(app, &row, serving).await?),
        None => None,
    };
    let wanted = revision(app, &row, wanted).await?;
    let kept = upkeep.revisions(&row).await?.into_iter().map(|r| r.code.content_sha256).collect();
    let index = index(upkeep, &function.namespace).await?;
    let spec = FunctionSpec { function: function.clone(), wanted, serving, kept, index };
    app.backend.apply_function(spec, Generation(row.generation)).await?;
    Ok(true)
}

/// Notes what the backend tells.
async fn keep(
    app: &App,
    upkeep: &dyn Upkeep,
    status: FunctionStatus,
    active: &mut HashMap<FunctionRef, String>,
) -> Result<(), AnyError> {
    if status.gone {
        active.remove(&status.function);
        return forget(app, upkeep, &status.function).await;
    }
    let Some(revision) = status.active_revision else { return Ok(()) };
    if active.get(&status.function) != Some(&revision) {
        upkeep.set_active(&status.function, &revision).await?;
        active.insert(status.function.clone(), revision);
        tidy(app, upkeep, &status.function).await?;
    }
    Ok(())
}

/// Removes what is left of a function that is gone, if it was to go.
async fn forget(app: &App, upkeep: &dyn Upkeep, function: &FunctionRef) -> Result<(), AnyError> {
    let Some(row) = upkeep.function(function).await? else { return Ok(()) };
    if !row.deleting {
        return Ok(());
    }
    let _nobody_uploads = app.code_in_use.write().await;
    for digest in app.code.list(function).await? {
        app.code.delete(function, &digest).await?;
    }
    upkeep.remove_function(function).await?;
    app.table.reload(upkeep).await?;
    Ok(())
}

/// Removes revisions beyond those that are to be kept, and code that no revision needs.
async fn tidy(app: &App, upkeep: &dyn Upkeep, function: &FunctionRef) -> Result<(), AnyError> {
    let Some(row) = upkeep.function(function).await? else { return Ok(()) };
    let _nobody_uploads = app.code_in_use.write().await;
    upkeep.forget_revisions(&row, row.settings.revision_history).await?;
    let needed: BTreeSet<_> = upkeep.revisions(&row).await?.into_iter().map(|r| r.code.sha256).collect();
    for digest in app.code.list(function).await? {
        if !needed.contains(&digest) {
            app.code.delete(function, &digest).await?;
        }
    }
    Ok(())
}

/// Notes as lost what can't run any more: nothing runs longer than its function's limit, and then its record comes soon. One that
/// comes later all the same, from a machine that was away, takes its place.
async fn lose(app: &App) -> Result<(), StoreError> {
    for function in app.records.unfinished().await? {
        let limits = match app.definitions.function(&function).await? {
            None => Vec::new(),
            Some(row) => {
                let revisions = app.definitions.revisions(&row).await?.into_iter().map(|r| r.settings);
                revisions.chain([row.settings]).map(|s| s.timeout_sec.duration()).collect()
            }
        };
        let ago = |time: Duration| {
            let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
            Moment(Moment::now().0.saturating_sub(micros))
        };
        let running = ago(limits.into_iter().max().unwrap_or_default().saturating_add(RECORDS_COME_WITHIN));
        let queued = ago(PATIENCE.saturating_add(RECORDS_COME_WITHIN));
        let why = r#"{"type":"Lost","message":"it went away before its end was known","traceback":null}"#;
        let lost = app.records.lose(&function, running, queued, why).await?;
        if lost > 0 {
            tracing::warn!(function = %function, lost, "calls were lost");
        }
    }
    Ok(())
}

/// Removes records that are old enough, and idle connections of the proxy, until `stop`.
pub(crate) async fn clean(app: Arc<App>, stop: CancellationToken) {
    let mut tick = tokio::time::interval(EXPIRE_EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        app.proxy.sweep();
        if let Err(error) = lose(&app).await {
            tracing::warn!(error = %chain(&error), "failed to look for calls that are lost, trying again later");
        }
        let age = i64::try_from(app.config.retention.as_micros()).unwrap_or(i64::MAX);
        let before = Moment(Moment::now().0.saturating_sub(age));
        if let Err(error) = app.records.expire_build_logs(before).await {
            tracing::warn!(error = %chain(&error), "failed to remove old logs of builds, trying again later");
        }
        loop {
            match app.records.expire(before, app.config.retention_count).await {
                Ok(0) => break,
                // Others get their turn with the database in between.
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "failed to remove old records, trying again later");
                    break;
                }
            }
            if stop.is_cancelled() {
                return;
            }
        }
    }
}

/// Reads the routes anew whenever others may have changed them, until `stop`; at first if they have not been `read` yet.
pub(crate) async fn follow(
    app: Arc<App>,
    mut changes: BoxStream<()>,
    mut read: bool,
    stop: CancellationToken,
) {
    loop {
        if std::mem::replace(&mut read, true) {
            tokio::select! {
                () = stop.cancelled() => return,
                change = changes.next() => if change.is_none() { return },
            }
        }
        while let Err(error) = app.table.reload(&*app.definitions).await {
            tracing::warn!(error = %chain(&error), "failed to read the routes, trying again");
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }
}
