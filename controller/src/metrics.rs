//! Figures of the controller itself, for Prometheus.

use prometheus::{IntCounterVec, Opts, Registry, TextEncoder};

/// See the module. Labels are bounded: no names of functions.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: IntCounterVec,
    builds: IntCounterVec,
}

impl Metrics {
    /// # Errors
    /// Never for these names.
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let reconciles = counter(
            "sless_controller_reconciles_total",
            "Objects that were looked at, by kind and outcome",
            &["kind", "outcome"],
        )?;
        let builds = counter("sless_controller_builds_total", "Builds that ended, by outcome", &["outcome"])?;
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        Ok(Self { registry, reconciles, builds })
    }

    pub(crate) fn reconcile(&self, kind: &str, outcome: &str) {
        self.reconciles.with_label_values(&[kind, outcome]).inc();
    }

    pub(crate) fn build(&self, outcome: &str) {
        self.builds.with_label_values(&[outcome]).inc();
    }

    pub(crate) fn text(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}
