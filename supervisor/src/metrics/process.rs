//! `process_*`: the standard metrics of the supervisor's own process, from `/proc/self` (proc(5)).

use prometheus::{Gauge, Registry};

/// Clock ticks a second in `/proc`: 100 on every Linux that there is (USER_HZ).
const TICKS: f64 = 100.0;
const PAGE: f64 = 4096.0;

/// When this process began, in Unix seconds.
pub(super) fn start_time() -> f64 {
    let ticks = stat_field(22).unwrap_or(0.0);
    let boot = std::fs::read_to_string("/proc/stat").ok().and_then(|text| {
        text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok())
    });
    boot.unwrap_or(0.0) + ticks / TICKS
}

/// Field of `/proc/self/stat`, counted from 1 as in proc(5).
fn stat_field(n: usize) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is a name in parentheses and may hold anything.
    let rest = text.get(text.rfind(')')? + 2..)?;
    rest.split(' ').nth(n.checked_sub(3)?)?.parse().ok()
}

/// Registers this process' figures as they are now.
pub(super) fn gather(registry: &Registry, started: f64) {
    let memory = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = |n| memory.split(' ').nth(n).and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0);
    #[expect(clippy::cast_precision_loss, reason = "a count of descriptors")]
    let open = std::fs::read_dir("/proc/self/fd").map_or(0.0, |entries| entries.count() as f64);
    let cpu = (stat_field(14).unwrap_or(0.0) + stat_field(15).unwrap_or(0.0)) / TICKS;
    let figures = [
        ("process_resident_memory_bytes", "Resident memory of the supervisor.", pages(1) * PAGE),
        ("process_virtual_memory_bytes", "Virtual memory of the supervisor.", pages(0) * PAGE),
        ("process_open_fds", "Open file descriptors of the supervisor.", open),
        ("process_cpu_seconds_total", "CPU time of the supervisor.", cpu),
        ("process_threads", "Threads of the supervisor.", stat_field(20).unwrap_or(0.0)),
        ("process_start_time_seconds", "When the supervisor began, in Unix seconds.", started),
    ];
    for (name, help, value) in figures {
        if let Ok(gauge) = Gauge::new(name, help) {
            gauge.set(value);
            drop(registry.register(Box::new(gauge)));
        }
    }
}
