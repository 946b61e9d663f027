//! The API's own figures.

use std::time::Duration;

use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// Which part of the API a request was for; a label, so few and fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Proxy,
    Api,
}

/// Counters that the hot path touches are looked up once, here.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// By part and class of status (`1xx` to `5xx`).
    requests: [[IntCounter; 5]; 2],
    durations: [Histogram; 2],
    taken: IntCounter,
    refused: IntCounter,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let requests = IntCounterVec::new(
            Opts::new("sless_api_requests_total", "Requests answered"),
            &["part", "code"],
        )?;
        let buckets = vec![
            0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
            300.0, 3600.0,
        ];
        let durations = HistogramVec::new(
            HistogramOpts::new(
                "sless_api_request_duration_seconds",
                "From a request's head to the head of its answer",
            )
            .buckets(buckets),
            &["part"],
        )?;
        let events = IntCounterVec::new(
            Opts::new("sless_api_ingest_events_total", "Lines of records by what became of them"),
            &["outcome"],
        )?;
        let build = IntGaugeVec::new(
            Opts::new("sless_build_info", "Always 1; the labels say which build this is"),
            &["component", "version"],
        )?;
        build.with_label_values(&["api", env!("CARGO_PKG_VERSION")]).set(1);
        let boxes: [Box<dyn prometheus::core::Collector>; 4] = [
            Box::new(requests.clone()),
            Box::new(durations.clone()),
            Box::new(events.clone()),
            Box::new(build),
        ];
        for collector in boxes {
            registry.register(collector)?;
        }
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let classes = |part| {
            ["1xx", "2xx", "3xx", "4xx", "5xx"].map(|class| requests.with_label_values(&[part, class]))
        };
        Ok(Self {
            requests: [classes("proxy"), classes("api")],
            durations: [durations.with_label_values(&["proxy"]), durations.with_label_values(&["api"])],
            taken: events.with_label_values(&["stored"]),
            refused: events.with_label_values(&["refused"]),
            registry,
        })
    }

    pub(crate) fn request(&self, part: Part, status: http::StatusCode, took: Duration) {
        let part = part as usize;
        let class = usize::from(status.as_u16() / 100).wrapping_sub(1);
        if let Some(counter) = self.requests.get(part).and_then(|classes| classes.get(class)) {
            counter.inc();
        }
        if let Some(histogram) = self.durations.get(part) {
            histogram.observe(took.as_secs_f64());
        }
    }

    pub(crate) fn events(&self, taken: u64, refused: u64) {
        self.taken.inc_by(taken);
        self.refused.inc_by(refused);
    }

    pub(crate) fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
