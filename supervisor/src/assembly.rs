//! Puts the parts together, in the order in which they need each other.

use std::io::Write;
use std::rc::Rc;

use crate::config::{self, Config, Error, LogFormat};
use crate::console::{Console, Format, Messages};
use crate::mask::Masks;
use crate::metrics::Metrics;
use crate::pool::{Parts, Pool};
use crate::process::memory::{self, Cgroup};
use crate::process::{Cage, CageMode, Reaper};
use crate::report::{ReportConfig, Reporter};

/// The parts that the commands use.
#[derive(Debug)]
pub(crate) struct Assembly {
    pub(crate) pool: Rc<Pool>,
    pub(crate) reporter: Rc<Reporter>,
    pub(crate) console: Console,
    pub(crate) reaper: Rc<Reaper>,
}

impl Assembly {
    /// `out`: where log lines go.
    ///
    /// # Errors
    /// What could not be set up, with the setting that it belongs to.
    pub(crate) fn new(config: &Rc<Config>, out: impl Write + Send + 'static) -> Result<Self, Error> {
        let broken = |setting: &str, problem: String| Error { setting: setting.to_owned(), problem };
        // Before anything else, so that nothing is started outside of it.
        let outside =
            config.cgroup.as_deref().and_then(|group| memory::enter(group).err().map(|e| (group, e)));
        // As early: other threads would make forking later a different matter.
        let reaper = Reaper::start()
            .map_err(|e| broken("process", format!("cannot become the parent of workers: {e}")))?;
        let format = match config.log_format {
            LogFormat::Json => Format::Json,
            LogFormat::Text => Format::Text,
        };
        let console = Console::new(out, format)
            .map_err(|e| broken("console", format!("cannot start its thread: {e}")))?;
        // Refused only if there is one already, as in a test.
        drop(tracing::subscriber::set_global_default(Messages::new(console.clone())));
        let masks = Masks::new(config.secret_values())
            .map_err(|e| broken("SLESS_SECRET_NAMES", format!("the values cannot be masked: {e}")))?;
        let mode = match config.cage {
            config::Cage::Require => CageMode::Require,
            config::Cage::Warn => CageMode::Warn,
        };
        if let Some(spool) = &config.spool_dir {
            // It must be there to be hidden.
            std::fs::create_dir_all(spool)
                .map_err(|e| broken("SLESS_SPOOL_DIR", format!("{}: {e}", spool.display())))?;
        }
        let (cage, warning) =
            Cage::build(&config.hidden(), mode).map_err(|e| broken("SLESS_CAGE", chain(&e)))?;
        if let Some((group, error)) = outside {
            tracing::warn!("memory is not limited: cannot enter {}: {error}", group.display());
        }
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        let metrics = Metrics::new(config).map_err(|e| broken("metrics", e.to_string()))?;
        let reporter = Reporter::start(report_config(config, masks.clone()), console.clone());
        let pool = Pool::new(Parts {
            config: config.clone(),
            reporter: reporter.clone(),
            metrics: Rc::new(metrics),
            reaper: reaper.clone(),
            cage,
            cgroup: Cgroup::detect(),
            longest_secret: masks.longest(),
        });
        if let Some(cgroup) = Cgroup::detect() {
            let (pool, reporter) = (Rc::downgrade(&pool), reporter.clone());
            tokio::task::spawn_local(async move {
                memory::watch(&cgroup, || {
                    if let Some(pool) = pool.upgrade() {
                        // The kernel may be quicker, and take us too.
                        reporter.memory_is_short(true);
                        pool.kill_largest();
                    }
                })
                .await;
            });
        }
        Ok(Self { pool, reporter, console, reaper })
    }
}

fn report_config(config: &Config, masks: Masks) -> ReportConfig {
    ReportConfig {
        namespace: config.namespace.clone(),
        function: config.function.clone(),
        revision: config.revision.clone(),
        pod: config.pod.clone(),
        endpoint: config.report_to.clone(),
        token_file: config.report_token_file.clone(),
        ca_file: config.ca_file.clone(),
        spool_dir: config.spool_dir.clone(),
        spool_limit: config.spool_limit_bytes,
        log_limit: usize::try_from(config.log_limit_bytes).unwrap_or(usize::MAX),
        result_limit: config.result_limit_bytes,
        input_limit: config.input_limit_bytes,
        masks,
    }
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
