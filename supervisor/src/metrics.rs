//! Prometheus metrics of one supervisor. This module alone knows the metrics library.

mod process;

use std::collections::HashMap;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};
use sless_protocol::event::Status;

use crate::config::Config;
use crate::process::Exit;
use crate::report::Reporter;

/// From one millisecond (quick handlers) in steps of about two and a half; what the timeout needs is added.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

#[derive(Debug)]
pub(crate) struct Metrics {
    ours: Registry,
    invocations: IntCounterVec,
    duration: Histogram,
    queue: Histogram,
    init: Histogram,
    in_flight: IntGauge,
    queue_depth: IntGauge,
    workers: IntGaugeVec,
    exits: IntCounterVec,
    orphans: Counter,
    memory: Gauge,
    cpu: Counter,
    /// CPU time of workers that have ended.
    past_cpu: std::cell::Cell<Duration>,
    log_bytes: CounterVec,
    log_dropped: Counter,
    report_events: CounterVec,
    spool_bytes: Gauge,
    about: GaugeVec,
    started: f64,
}

/// The names here are constants and unique, so registering cannot fail; a test makes all of them.
fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    made: prometheus::Result<C>,
) -> prometheus::Result<C> {
    let collector = made?;
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// Upper bounds in seconds, reaching past `limit`.
fn buckets(limit: Duration) -> Vec<f64> {
    let limit = limit.as_secs_f64();
    let mut bounds: Vec<f64> = BUCKETS.iter().copied().filter(|b| *b < limit).collect();
    bounds.extend([limit, limit * 1.25, limit * 2.5]);
    bounds
}

impl Metrics {
    pub(crate) fn new(config: &Config) -> prometheus::Result<Self> {
        let labels = HashMap::from([
            ("function_namespace".to_owned(), config.namespace.clone()),
            ("function".to_owned(), config.function.clone()),
        ]);
        let ours = Registry::new_custom(None, Some(labels))?;
        let histogram = |name: &str, help: &str, limit| {
            registered(&ours, Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets(limit))))
        };
        let counters = |name: &str, help: &str, label: &str| {
            registered(&ours, IntCounterVec::new(Opts::new(name, help), &[label]))
        };
        let floats = |name: &str, help: &str, label: &str| {
            registered(&ours, CounterVec::new(Opts::new(name, help), &[label]))
        };
        let gauge = |name: &str, help: &str| registered(&ours, IntGauge::new(name, help));
        let float_gauge = |name: &str, help: &str| registered(&ours, Gauge::new(name, help));
        let invocations = registered(
            &ours,
            IntCounterVec::new(
                Opts::new(
                    "sless_invocations_total",
                    "Invocations that have ended, by status and by what asked for them.",
                ),
                &["status", "trigger"],
            ),
        )?;
        let about = GaugeVec::new(
            Opts::new("sless_build_info", "Version of this supervisor."),
            &["version", "runtime"],
        )?;
        about.with_label_values(&[env!("CARGO_PKG_VERSION"), &config.runtime.name]).set(1.0);
        let metrics = Self {
            invocations,
            duration: histogram(
                "sless_invocation_duration_seconds",
                "Time from a worker's taking a call to its end.",
                config.timeout,
            )?,
            queue: histogram(
                "sless_queue_duration_seconds",
                "Time that a call waited for a worker.",
                config.timeout,
            )?,
            init: histogram(
                "sless_worker_init_duration_seconds",
                "Time from starting a worker until it was ready.",
                config.init_timeout,
            )?,
            in_flight: gauge("sless_invocations_in_flight", "Calls that workers are running.")?,
            queue_depth: gauge("sless_queue_depth", "Calls that wait for a worker.")?,
            workers: registered(
                &ours,
                IntGaugeVec::new(Opts::new("sless_workers", "Workers, by state."), &["state"]),
            )?,
            exits: counters("sless_worker_exits_total", "Workers that have ended, by reason.", "reason")?,
            orphans: registered(
                &ours,
                Counter::new(
                    "sless_orphans_reaped_total",
                    "Processes that had lost their parent and were buried, workers aside.",
                ),
            )?,
            memory: float_gauge(
                "sless_worker_memory_bytes",
                "Resident memory of all workers with their descendants.",
            )?,
            cpu: registered(
                &ours,
                Counter::new(
                    "sless_worker_cpu_seconds_total",
                    "CPU time of all workers with their descendants.",
                ),
            )?,
            past_cpu: std::cell::Cell::default(),
            log_bytes: floats(
                "sless_log_bytes_total",
                "Bytes that handlers have written, by stream.",
                "stream",
            )?,
            log_dropped: registered(
                &ours,
                Counter::new(
                    "sless_log_dropped_bytes_total",
                    "Bytes of logs that were over a limit and not kept.",
                ),
            )?,
            report_events: floats(
                "sless_report_events_total",
                "Report events, by what became of them.",
                "outcome",
            )?,
            spool_bytes: float_gauge(
                "sless_report_spool_bytes",
                "Bytes of report events that wait for delivery.",
            )?,
            about,
            started: process::start_time(),
            ours,
        };
        for status in Status::ALL.iter().filter(|s| **s != Status::Lost) {
            metrics.invocations.with_label_values(&[status.as_str(), "http"]);
        }
        Ok(metrics)
    }

    /// An invocation with a record has ended.
    pub(crate) fn ended(&self, status: Status, trigger: &str, duration: Duration, queue: Duration) {
        self.invocations.with_label_values(&[status.as_str(), trigger]).inc();
        self.duration.observe(duration.as_secs_f64());
        self.queue.observe(queue.as_secs_f64());
    }

    /// A request was refused before it became an invocation.
    pub(crate) fn rejected(&self, trigger: &str) {
        self.invocations.with_label_values(&[Status::Rejected.as_str(), trigger]).inc();
    }

    pub(crate) fn worker_ready(&self, took: Duration) {
        self.init.observe(took.as_secs_f64());
    }

    pub(crate) fn worker_exited(&self, reason: &str, exit: &Exit) {
        self.exits.with_label_values(&[reason]).inc();
        self.past_cpu.set(self.past_cpu.get() + exit.cpu);
    }

    pub(crate) fn observe_calls(&self, running: usize, waiting: usize) {
        self.in_flight.set(count(running));
        self.queue_depth.set(count(waiting));
    }

    pub(crate) fn observe_workers(&self, starting: usize, ready: usize, stopping: usize) {
        for (state, n) in [("starting", starting), ("ready", ready), ("stopping", stopping)] {
            self.workers.with_label_values(&[state]).set(count(n));
        }
    }

    /// `cpu`: of the workers that live.
    pub(crate) fn observe_usage(&self, memory_bytes: u64, cpu: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge; 2^53 bytes are enough")]
        self.memory.set(memory_bytes as f64);
        raise(&self.cpu, (self.past_cpu.get() + cpu).as_secs_f64());
    }

    pub(crate) fn observe_orphans(&self, reaped: u64) {
        raise(&self.orphans, float(reaped));
    }

    pub(crate) fn observe_reports(&self, reporter: &Reporter) {
        let counts = reporter.counts();
        for (stream, bytes) in [("stdout", counts.stdout_bytes), ("stderr", counts.stderr_bytes)] {
            raise(&self.log_bytes.with_label_values(&[stream]), float(bytes));
        }
        raise(&self.log_dropped, float(counts.log_dropped_bytes));
        let outcomes = [
            ("delivered", counts.events.delivered),
            ("retried", counts.events.retried),
            ("refused", counts.events.refused),
            ("lost", counts.events.lost),
        ];
        for (outcome, n) in outcomes {
            raise(&self.report_events.with_label_values(&[outcome]), float(n));
        }
        self.spool_bytes.set(float(counts.spool_bytes));
    }

    /// The text exposition format, version 0.0.4.
    pub(crate) fn render(&self) -> String {
        let process = Registry::new();
        drop(process.register(Box::new(self.about.clone())));
        process::gather(&process, self.started);
        let mut text = String::with_capacity(8192);
        for registry in [&self.ours, &process] {
            // Writing text into memory fails for no reason of ours; what is there is still served.
            drop(TextEncoder::new().encode_utf8(&registry.gather(), &mut text));
        }
        text
    }
}

/// Moves a counter up to a total that is kept elsewhere; it never goes down.
fn raise(counter: &Counter, total: f64) {
    counter.inc_by((total - counter.get()).max(0.0));
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floating point numbers")]
fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_reach_past_the_timeout_and_rise() {
        for secs in [0.0005, 0.05, 1.0, 30.0, 900.0, 86_400.0] {
            let bounds = buckets(Duration::from_secs_f64(secs));
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
            assert!(*bounds.last().unwrap() > secs);
        }
    }
}
