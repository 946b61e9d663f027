//! What a worker is given, and what it cannot reach; and what a supervisor costs and leaves behind.
#![allow(
    clippy::zombie_processes,
    clippy::unwrap_used,
    clippy::panic,
    reason = "the reaper waits for all children; without the test harness this does not look like a test"
)]

mod process_support;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use process_support::{
    cage, children, exists, is_root, launch, parent_of, read_now, running, shell, spawn_in, unique_sleep,
    within,
};
use sless_supervisor::process::{
    Cage, CageMode, Caught, Ending, Reaper, SharedPage, memory::Cgroup, pipe_pair, socket_pair,
};

cases![
    a_worker_has_its_descriptors_and_no_other,
    a_worker_begins_with_nothing_of_the_supervisors,
    what_is_hidden_stays_hidden_and_the_rest_works,
    without_landlock_root_gives_workers_another_uid,
    a_worker_can_neither_signal_nor_read_its_keeper_and_supervisor,
    an_outside_signal_is_heard,
    nothing_outlives_a_killed_supervisor,
    a_thousand_workers_leak_nothing,
    memory_and_time_of_a_family_are_counted,
    a_shared_page_is_seen_by_both_and_cannot_be_cut,
    a_keeper_is_small,
    helper_that_waits_to_be_killed,
];

async fn a_worker_has_its_descriptors_and_no_other(reaper: Rc<Reaper>) {
    let _others: Vec<OwnedFd> = (0..20).map(|_| fs::File::open("/dev/null").unwrap().into()).collect();
    let (ours, theirs) = socket_pair().unwrap();
    let (_reader, writer) = pipe_pair().unwrap();
    // The shell itself opens the folder, as the lowest number that is free: 5.
    let script = "cd /proc/self/fd; echo *; echo to-four >&4; echo to-three >&3; read x <&0 || echo no-input";
    let (launch, stdout, _stderr) = launch(&["sh", "-c", script], vec![theirs, writer]);
    let family = reaper.spawn(&cage(), launch).unwrap();
    assert_eq!(family.exited().await.ending, Ending::Exited { code: 0 });
    assert_eq!(read_now(&stdout), "0 1 2 3 4 5\nno-input\n");
    assert_eq!(read_now(&ours), "to-three\n");
    assert_eq!(read_now(&_reader), "to-four\n");
}

async fn a_worker_begins_with_nothing_of_the_supervisors(reaper: Rc<Reaper>) {
    // Where the worker itself may not, the keeper writes the score, some time after the program has begun.
    let script = "until [ \"$(cat /proc/$$/oom_score_adj)\" = 1000 ] || [ $((i+=1)) -gt 500 ]; do sleep 0.01; done; \
        tr '\\0' ';' </proc/$$/environ; cat /proc/$$/oom_score_adj; pwd; \
        grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs|SigBlk|SigIgn)' /proc/self/status; cut -d' ' -f5,6 /proc/$$/stat; echo $$";
    let worker = shell(&reaper, script);
    let result = worker.result().await;
    let mut lines = result.lines();
    assert_eq!(lines.next(), Some("PATH=/usr/local/bin:/usr/bin:/bin;1000"), "{result}");
    assert_eq!(lines.next(), Some("/"));
    let pid = result.lines().last().unwrap();
    assert!(result.contains(&format!("{pid} {pid}\n")), "leads its own session and group: {result}");
    assert!(result.contains("NoNewPrivs:\t1"), "{result}");
    for none in ["SigBlk", "SigIgn", "CapPrm", "CapEff"] {
        assert!(result.contains(&format!("{none}:\t0000000000000000\n")), "{result}");
    }
    assert!(!is_root() || result.contains("CapBnd:\t0000000000000000\n"), "{result}");
}

async fn what_is_hidden_stays_hidden_and_the_rest_works(reaper: Rc<Reaper>) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (secret, beside) = (dir.path().join("secret"), dir.path().join("beside"));
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("token"), "hidden words").unwrap();
    fs::write(&beside, "open words").unwrap();
    let (cage, warning) =
        Cage::build(&[secret.clone(), dir.path().join("spool")], CageMode::Require).unwrap();
    assert_eq!(warning, None);
    // What comes later, beside the hidden folder or where one was announced, is hidden too.
    fs::create_dir(dir.path().join("spool")).unwrap();
    fs::write(dir.path().join("spool/record"), "hidden words").unwrap();
    let script = format!(
        "cd {0}; cat secret/token; cat spool/record; cat /proc/self/root{0}/secret/token; ls secret; echo x >secret/new; \
         mv secret moved; cat beside; d=$(mktemp -d); mkdir $d/sub; echo renamed >$d/x; mv $d/x $d/sub/x; cat $d/sub/x; rm -r $d",
        dir.path().display()
    );
    let worker = spawn_in(&reaper, &cage, &["sh", "-c", &script]);
    let result = worker.result().await;
    assert!(!result.contains("hidden words") && !result.contains("token\n"), "{result}");
    assert!(result.contains("open words") && result.contains("renamed\n"), "{result}");
    assert!(!secret.join("new").exists() && secret.exists());
}

async fn without_landlock_root_gives_workers_another_uid(reaper: Rc<Reaper>) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("token"), "hidden words").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let hidden = [dir.path().to_owned()];
    if !is_root() {
        let error = Cage::build_without_landlock(&hidden, CageMode::Require).unwrap_err().to_string();
        assert!(error.contains("Landlock") && error.contains("root"), "{error}");
        let (_, warning) = Cage::build_without_landlock(&hidden, CageMode::Warn).unwrap();
        assert!(warning.is_some());
        let worker = shell(&reaper, "sleep 1000");
        process_support::signal(worker.keeper().await, 9);
        return worker.family.gone().await;
    }
    let (cage, warning) = Cage::build_without_landlock(&hidden, CageMode::Require).unwrap();
    assert_eq!(warning, None);
    let script = format!("id; cat {}/token; cat /proc/self/oom_score_adj", dir.path().display());
    let worker = spawn_in(&reaper, &cage, &["sh", "-c", &script]);
    let result = worker.result().await;
    assert!(result.contains("uid=65532 gid=65532") && result.contains("1000\n"), "{result}");
    assert!(result.contains("ermission denied") && !result.contains("hidden words"), "{result}");
    // Still the keeper's child: the change of uid has not undone the tie.
    let n = unique_sleep();
    let worker = spawn_in(&reaper, &cage, &["sleep", &n]);
    within(5, "it runs", async || running(&["sleep", &n]).len() == 1).await;
    process_support::signal(worker.keeper().await, 9);
    worker.family.gone().await;
    assert_eq!(running(&["sleep", &n]), [0i32; 0]);
    // Files that all may read cannot be hidden that way.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Cage::build_without_landlock(&hidden, CageMode::Require).is_err());
}

async fn a_worker_can_neither_signal_nor_read_its_keeper_and_supervisor(reaper: Rc<Reaper>) {
    let signals = reaper.signals();
    let me = std::process::id();
    let script = format!(
        "for p in $PPID {me}; do kill -9 $p && echo killed $p; kill -TERM $p && echo termed $p; \
         for f in environ maps mem auxv; do head -c1 /proc/$p/$f >/dev/null && echo read $p/$f; done; \
         readlink /proc/$p/fd/0 && echo read $p/fd; done; (setsid kill -INT {me} && echo int); echo end"
    );
    let worker = shell(&reaper, &script);
    let result = worker.result().await;
    let heard: Vec<&str> = result
        .lines()
        .filter(|line| ["killed", "termed", "read", "int"].iter().any(|word| line.starts_with(word)))
        .collect();
    assert!(heard.is_empty() && result.contains("end\n"), "{result}");
    let waited = tokio::time::timeout(Duration::from_millis(50), signals.next()).await;
    assert!(waited.is_err(), "{waited:?}");
    // Without a cage that scopes signals the sender's pid decides: this child is ours, if no worker.
    let mut child = std::process::Command::new("sh")
        .args(["-c", &format!("kill -TERM {me}; exec sleep 1000")])
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    assert!(
        reaper.is_descendant(pid)
            && !reaper.is_descendant(0)
            && !reaper.is_descendant(parent_of(i32::try_from(me).unwrap()))
    );
    let waited = tokio::time::timeout(Duration::from_millis(200), signals.next()).await;
    assert!(waited.is_err(), "{waited:?}");
    child.kill().unwrap();
}

/// The runner sends it as soon as this process is ready for it.
async fn an_outside_signal_is_heard(reaper: Rc<Reaper>) {
    let Caught { signal, .. } = reaper.signals().next().await;
    assert_eq!(signal, 15);
}

async fn nothing_outlives_a_killed_supervisor(_reaper: Rc<Reaper>) {
    let n = unique_sleep();
    let mut helper = process_support::start_helper("helper_that_waits_to_be_killed", &n);
    within(10, "its families run", async || running(&["sleep", &n]).len() == 6).await;
    helper.kill().unwrap();
    let begun = Instant::now();
    within(5, "all are gone", async || running(&["sleep", &n]).is_empty() && children().is_empty()).await;
    println!("measured: nothing left {:?} after the supervisor was killed", begun.elapsed());
}

async fn helper_that_waits_to_be_killed(reaper: Rc<Reaper>) {
    let n = process_support::helper_argument();
    let script = format!("trap '' TERM HUP; (setsid sleep {n} &); setsid sleep {n} & sleep {n}; true");
    let _workers = [shell(&reaper, &script), shell(&reaper, &script)];
    std::future::pending::<()>().await;
}

async fn a_thousand_workers_leak_nothing(reaper: Rc<Reaper>) {
    let cage = cage();
    let open = || fs::read_dir("/proc/thread-self/fd").map_or(0, Iterator::count);
    let (before, orphans) = (open(), reaper.orphans_reaped());
    let mut spawning = Duration::ZERO;
    let begun = Instant::now();
    for i in 0..1000 {
        let (launch, ..) = launch(&[if i % 2 == 0 { "true" } else { "sleep" }, "1000"], Vec::new());
        let started = Instant::now();
        let family = reaper.spawn(&cage, launch).unwrap();
        spawning += started.elapsed();
        if i % 2 == 0 {
            assert_eq!(family.exited().await.ending, Ending::Exited { code: 0 });
        } else {
            family.kill();
        }
        family.gone().await;
    }
    println!(
        "measured: spawn() {:?}, with exec, end and burial {:?}",
        spawning / 1000,
        begun.elapsed() / 1000
    );
    assert_eq!(open(), before);
    assert_eq!(children(), []);
    assert_eq!(reaper.orphans_reaped(), orphans);
}

async fn memory_and_time_of_a_family_are_counted(reaper: Rc<Reaper>) {
    let worker = shell(
        &reaper,
        "head -c 30000000 /dev/zero | (tail -c 30000000 >/dev/null; sleep 1000) & while :; do :; done",
    );
    // Most of it by the shell itself, whose own time is asked for below; `head` and `tail` end soon.
    within(20, "time is used", async || worker.family.cpu_time() > Duration::from_millis(500)).await;
    assert!(worker.family.memory_bytes() > 1_000_000 && worker.family.memory_bytes() < 1_000_000_000);
    worker.family.kill();
    worker.family.gone().await;
    assert_eq!(worker.family.memory_bytes(), 0);
    assert!(worker.family.exited().await.cpu > Duration::from_millis(50));
    if let Some(cgroup) = Cgroup::detect() {
        assert!(cgroup.used() > 100_000, "{cgroup:?}");
        assert!(!cgroup.is_near_limit(), "{cgroup:?}");
    }
}

async fn a_shared_page_is_seen_by_both_and_cannot_be_cut(reaper: Rc<Reaper>) {
    let page = SharedPage::new(256).unwrap();
    page.write_u8(3, b'A');
    page.write_u32(128, u32::from_ne_bytes(*b"four"));
    let file = page.file().try_clone_to_owned().unwrap();
    let script = "head -c 4 /proc/self/fd/3 | tail -c 1; tail -c 128 /proc/self/fd/3 | head -c 4; \
        printf xyz | dd of=/proc/self/fd/3 conv=notrunc bs=1 seek=8 2>&1; truncate -s 0 /proc/self/fd/3 || echo uncut";
    let (launch, stdout, stderr) = launch(&["sh", "-c", script], vec![file]);
    let family = reaper.spawn(&cage(), launch).unwrap();
    family.exited().await;
    let result = read_now(&stdout) + &read_now(&stderr);
    assert!(result.starts_with("Afour") && result.contains("uncut"), "{result}");
    assert_eq!(
        (page.read_u8(8), page.read_u8(10), page.read_u32(128)),
        (b'x', b'z', u32::from_ne_bytes(*b"four"))
    );
}

async fn a_keeper_is_small(reaper: Rc<Reaper>) {
    // What the supervisor holds must not be the keeper's too: 20 MB that are written to after the fork.
    let mut ballast = vec![1_u8; 20_000_000];
    let worker = shell(&reaper, "exec sleep 1000");
    ballast.fill(2);
    let keeper = worker.keeper().await;
    assert!(exists(keeper));
    assert_eq!(fs::read_to_string(format!("/proc/{keeper}/comm")).unwrap(), "sless-keeper\n");
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    within(5, "the keeper has given back what it got", async || resident() < 1000).await;
    if is_root() {
        let rollup = fs::read_to_string(format!("/proc/{keeper}/smaps_rollup")).unwrap();
        let pss = rollup.lines().find(|line| line.starts_with("Pss:")).unwrap();
        println!("measured: a keeper has {} KiB of its own; {pss}", resident());
    }
    assert_eq!(ballast[7], 2);
    assert!(Path::new("/proc/self").exists());
}
