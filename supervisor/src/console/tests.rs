use std::sync::mpsc;

use super::*;

/// A reader that can be stuck.
struct Gate(mpsc::Receiver<()>, Arc<Mutex<Vec<u8>>>);

impl Write for Gate {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.recv();
        self.1.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stuck_reader_delays_nobody_and_what_it_misses_is_counted() {
    let (open, gate) = mpsc::channel();
    let read = Arc::new(Mutex::new(Vec::new()));
    let console = Console::new(Gate(gate, read.clone()), Format::Json).unwrap();
    let line = [&[b'x'; 999][..], b"\n"].concat();
    for _ in 0..5_000 {
        console.print(&line);
    }
    let dropped = console.dropped();
    assert!(dropped >= 5_000 - 2 * 1_050, "{dropped}");
    drop(open);
    console.flush(Duration::from_secs(10));
    let text = String::from_utf8(read.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().filter(|l| l.starts_with('x')).count() as u64, 5_000 - dropped);
    // Said once or in two parts: it depends on when the thread first looked.
    let said = text.lines().filter_map(|line| {
        let (before, _) = line.split_once(" lines were dropped")?;
        before.rsplit('"').next()?.parse::<u64>().ok()
    });
    assert_eq!(said.sum::<u64>(), dropped);
}

#[test]
fn lines_and_messages_are_json_with_the_fields_of_their_origin() {
    let (open, gate) = mpsc::channel();
    drop(open);
    let read = Arc::new(Mutex::new(Vec::new()));
    let console = Console::new(Gate(gate, read.clone()), Format::Json).unwrap();
    let origin = Origin { namespace: "default", function: "hello", invocation_id: "0193" };
    let (mut out, mut stamp) = (Vec::new(), Stamp::default());
    let line = Line { time_ms: 0, stream: LogStream::Stderr, init: false, text: b"a \"b\"\xff" };
    console.format_line(&mut out, &mut stamp, &origin, &line);
    console.print(&out);
    tracing::subscriber::with_default(Messages::new(console.clone()), || {
        tracing::info!(worker.pid = 7, state = "up", "worker is ready");
        tracing::debug!("not said");
    });
    console.flush(Duration::from_secs(10));
    let text = String::from_utf8(read.lock().unwrap().clone()).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(
        lines[0],
        serde_json::json!({"time": "1970-01-01T00:00:00.000Z", "level": "info", "stream": "stderr", "namespace": "default",
            "function": "hello", "invocation_id": "0193", "message": "a \"b\"\u{fffd}"})
    );
    assert_eq!(
        (lines[1]["message"].as_str(), lines[1]["worker.pid"].as_i64(), lines.len()),
        (Some("worker is ready"), Some(7), 2)
    );
}
