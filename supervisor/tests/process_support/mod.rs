//! Runs a test in a process of its own: a [`Reaper`] buries every child of its process and takes over its signals.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::ffi::OsString;
use std::fs;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sless_supervisor::process::{Cage, CageMode, Family, Launch, Reaper, pipe_pair};

const CASE: &str = "PROCESS_TEST_CASE";
/// What becomes of the keepers in a case. The reaper would make up for one that crashes; a test must not pass for that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keepers {
    EndByThemselves,
    AreLost,
    /// On a busy machine the family may be too large to be killed within the reaper's patience.
    MayBeOvertaken,
}

/// Cases in which a keeper does not end by itself.
const KILLS_KEEPERS: [&str; 3] = [
    "what_a_killed_keeper_leaves_is_killed_too",
    "a_keeper_that_stands_still_does_not_save_its_family",
    "without_landlock_root_gives_workers_another_uid",
];
const CROWDS: [&str; 1] = ["a_fork_bomb_is_killed_whole"];
const ARGUMENT: &str = "PROCESS_TEST_ARGUMENT";
const NOBODY: u32 = 65_534;

type Body = fn(Rc<Reaper>) -> Pin<Box<dyn Future<Output = ()>>>;

/// A test: its name, and what it does.
pub type Case = (&'static str, Body);

/// The `main` of a test binary: lists its cases, each an `async fn` that takes the reaper.
#[macro_export]
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        fn main() {
            process_support::run(&[$((stringify!($case), |reaper| Box::pin($case(reaper)))),*]);
        }
    };
}

/// Runs each case as this user and, if that is root, as nobody too. An argument selects those whose names hold it.
pub fn run(cases: &[Case]) {
    if let Some(name) = std::env::var_os(CASE) {
        let (_, body) = cases.iter().find(|(case, _)| name == *case).unwrap();
        let keepers = if KILLS_KEEPERS.iter().any(|case| name == *case) {
            Keepers::AreLost
        } else if CROWDS.iter().any(|case| name == *case) {
            Keepers::MayBeOvertaken
        } else {
            Keepers::EndByThemselves
        };
        return inside(*body, keepers);
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut failed = 0;
    let wanted = |name: &str| name.contains(&filter) && !name.starts_with("helper");
    for (name, _) in cases.iter().filter(|(name, _)| wanted(name)) {
        for user in users() {
            let begun = Instant::now();
            let passed = as_user(&program, name, user);
            failed += usize::from(!passed);
            let (word, who) = (if passed { "ok" } else { "FAILED" }, user.map_or("this user", |_| "nobody"));
            println!("test {name} as {who} ... {word} ({:.2?})", begun.elapsed());
        }
    }
    assert_eq!(failed, 0, "tests failed");
}

fn users() -> Vec<Option<u32>> {
    if is_root() { vec![None, Some(NOBODY)] } else { vec![None] }
}

pub fn is_root() -> bool {
    fs::metadata("/proc/thread-self").unwrap().uid() == 0
}

fn as_user(program: &Path, name: &str, user: Option<u32>) -> bool {
    let mut command = Command::new(program);
    command.env(CASE, name).env("TMPDIR", "/tmp").current_dir("/");
    if let Some(id) = user {
        command.uid(id).gid(id);
    }
    let mut child = command.spawn().unwrap();
    if name.starts_with("an_outside_signal") {
        let pid = child.id();
        while !blocks_sigterm(pid) && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        signal(i32::try_from(pid).unwrap(), 15);
    }
    child.wait().unwrap().success()
}

fn blocks_sigterm(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap_or("0");
    u64::from_str_radix(mask, 16).unwrap() & (1 << 14) != 0
}

/// Sends a signal to a process, by way of a shell.
pub fn signal(pid: i32, signal: i32) {
    Command::new("sh").args(["-c", &format!("kill -{signal} {pid}")]).status().unwrap();
}

/// Starts another process like this one, which runs the case `name`; killing it is the caller's.
pub fn start_helper(name: &str, argument: &str) -> Child {
    Command::new(std::env::current_exe().unwrap()).env(CASE, name).env(ARGUMENT, argument).spawn().unwrap()
}

pub fn helper_argument() -> String {
    std::env::var(ARGUMENT).unwrap()
}

fn inside(body: Body, keepers: Keepers) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let set = tokio::task::LocalSet::new();
    set.block_on(&runtime, async {
        let reaper = Reaper::start().unwrap();
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, body(Rc::clone(&reaper))).await.expect("the test did not end");
        let lost = reaper.lost_keepers();
        assert!(
            keepers == Keepers::MayBeOvertaken || (lost > 0) == (keepers == Keepers::AreLost),
            "keepers lost: {lost}"
        );
    });
}

pub fn cage() -> Cage {
    Cage::build(&[], CageMode::Require).unwrap().0
}

/// A worker with the read ends of its stdout and stderr.
pub struct Worker {
    pub family: Family,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

pub fn launch(program: &[&str], fds: Vec<OwnedFd>) -> (Launch, OwnedFd, OwnedFd) {
    let (stdout, out) = pipe_pair().unwrap();
    let (stderr, err) = pipe_pair().unwrap();
    let launch = Launch {
        program: program.iter().map(OsString::from).collect(),
        dir: PathBuf::from("/"),
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        stdout: out,
        stderr: err,
        fds,
    };
    (launch, stdout, stderr)
}

pub fn spawn_in(reaper: &Rc<Reaper>, cage: &Cage, program: &[&str]) -> Worker {
    let (launch, stdout, stderr) = launch(program, Vec::new());
    Worker { family: reaper.spawn(cage, launch).unwrap(), stdout, stderr }
}

pub fn shell(reaper: &Rc<Reaper>, script: &str) -> Worker {
    spawn_in(reaper, &cage(), &["sh", "-c", script])
}

impl Worker {
    /// The keeper's pid, once the worker has been started.
    pub async fn keeper(&self) -> i32 {
        within(5, "the worker is started", async || self.family.worker_pid().is_some()).await;
        parent_of(self.family.worker_pid().unwrap())
    }

    /// What has been written to stdout so far.
    pub fn output(&self) -> String {
        read_now(&self.stdout)
    }

    /// All that the worker printed, once it has ended.
    pub async fn result(&self) -> String {
        within(20, "the worker ends", async || self.family.exit().is_some()).await;
        format!("{}{}", read_now(&self.stdout), read_now(&self.stderr))
    }
}

pub fn read_now(fd: &OwnedFd) -> String {
    use std::io::Read;
    let mut file = fs::File::from(fd.try_clone().unwrap());
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(size @ 1..) = file.read(&mut buffer) {
        all.extend_from_slice(&buffer[..size]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Waits until `what` is so, which is asked again and again.
pub async fn within(seconds: u64, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(seconds);
    while !is_so().await {
        assert!(Instant::now() < limit, "not so within {seconds} s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Pids and states of the processes whose command line holds all of `words`, in order, as arguments. Zombies have none.
pub fn running(words: &[&str]) -> Vec<i32> {
    let wanted: Vec<u8> = words.iter().flat_map(|word| word.bytes().chain([0])).collect();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == wanted)).collect()
}

/// A number that no other test gives to `sleep`, to find its processes by.
pub fn unique_sleep() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("3{:03}.{:07}", COUNT.fetch_add(1, Ordering::Relaxed), std::process::id())
}

/// Children of this process: pids and states.
pub fn children() -> Vec<(i32, String)> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let me = std::process::id().to_string();
    let stats = pids.filter_map(|pid| Some((pid, stat(pid)?)));
    stats.filter(|(_, stat)| stat[1] == me).map(|(pid, stat)| (pid, stat[0].clone())).collect()
}

pub fn parent_of(pid: i32) -> i32 {
    stat(pid).unwrap()[1].parse().unwrap()
}

pub fn state_of(pid: i32) -> String {
    stat(pid).map_or_else(String::new, |stat| stat[0].clone())
}

/// The fields of `/proc/PID/stat` after the name.
fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

pub fn exists(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
