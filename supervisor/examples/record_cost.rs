//! What a record costs: `cargo run --release -p sless-supervisor --example record_cost [FOLDER]`.
//!
//! CPU time of `started` and `finished` of a plain call with their two writes to the spool in FOLDER (delivery not
//! among it), and of the output of a call that prints 1 GiB.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use sless_protocol::event::Status;
use sless_supervisor::console::{Console, Format};
use sless_supervisor::mask::Masks;
use sless_supervisor::report::{FinishedInfo, ReportConfig, Reporter, ResultInfo, StartedInfo};

/// CPU time of this process so far.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder =
        std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("record_cost"), PathBuf::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        for (name, masks) in
            [("no values", Masks::none()), ("two values", Masks::new(["s3cr3t-value", "another-one"])?)]
        {
            measure(name, masks, folder.clone())?;
        }
        Ok(())
    })
}

fn measure(name: &str, masks: Masks, folder: PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    let config = ReportConfig {
        namespace: "default".into(),
        function: "hello".into(),
        revision: "r1".into(),
        pod: "hello-5d9c7b".into(),
        // Nobody is asked: this task never yields to the delivery.
        endpoint: Some("http://127.0.0.1:9/".parse()?),
        token_file: None,
        ca_file: None,
        spool_dir: Some(folder),
        spool_limit: 1 << 30,
        log_limit: 1 << 20,
        result_limit: 64 << 10,
        input_limit: 64 << 10,
        masks,
    };
    let reporter = Reporter::start(config, Console::new(std::io::sink(), Format::Json)?);
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("user-agent", HeaderValue::from_static("curl/8.0"));
    let (calls, result) = (200_000u32, br#"{"message":"Hello, Ada!"}"#);
    let mut id = *b"01930000-0000-7000-8000-000000000000";
    let begun = cpu();
    for n in 0..calls {
        id[28..].copy_from_slice(format!("{n:08}").as_bytes());
        let record = reporter.open(&StartedInfo {
            invocation_id: std::str::from_utf8(&id)?,
            attempt: 1,
            trigger: "http",
            method: "POST",
            path: "/",
            raw_query: "",
            headers: &headers,
            body: br#"{"name":"Ada"}"#,
        });
        record.finish(&info(result));
    }
    println!("{name}: started + finished {:.2} us", (cpu() - begun).as_secs_f64() * 1e6 / f64::from(calls));

    for (what, line) in [("lines of 100 bytes", 100), ("one endless line", 1 << 16)] {
        let mut chunk = vec![b'x'; 1 << 16];
        for at in (line - 1..chunk.len()).step_by(line) {
            chunk[at] = if line < chunk.len() { b'\n' } else { b'x' };
        }
        let mut record = reporter.open(&StartedInfo {
            invocation_id: "0193",
            attempt: 1,
            trigger: "http",
            method: "POST",
            path: "/",
            raw_query: "",
            headers: &headers,
            body: b"",
        });
        let begun = cpu();
        for _ in 0..(1 << 30) / chunk.len() {
            record.stdout(&chunk);
        }
        record.finish(&info(result));
        println!(
            "{name}: 1 GiB of {what}: {:.0} MB/s",
            f64::from(1 << 30) / 1e6 / (cpu() - begun).as_secs_f64()
        );
    }
    Ok(())
}

fn info(body: &[u8]) -> FinishedInfo<'_> {
    FinishedInfo {
        status: Status::Success,
        http_status: Some(200),
        duration: Duration::from_micros(1930),
        queue: Duration::from_micros(20),
        init: None,
        cpu: Some(Duration::from_micros(1100)),
        max_rss_bytes: Some(13_107_200),
        result: Some(ResultInfo { content_type: "application/json", size: body.len() as u64, body }),
        error: None,
    }
}
