//! Families of processes: how they end, and that nothing is left of them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "without the test harness this does not look like a test"
)]

mod process_support;

use std::rc::Rc;
use std::time::{Duration, Instant};

use process_support::{
    cage, children, exists, launch, running, shell, signal, spawn_in, state_of, unique_sleep, within,
};
use sless_supervisor::process::{Ending, Reaper};

cases![
    a_family_that_scatters_and_ignores_sigterm_is_gone_after_a_kill,
    sigterm_reaches_every_session,
    a_kill_leaves_another_workers_orphans_alone,
    leftovers_live_on_after_their_worker_until_they_are_killed,
    zombies_are_buried_and_do_not_hide_how_the_worker_ended,
    what_a_killed_keeper_leaves_is_killed_too,
    a_keeper_that_stands_still_does_not_save_its_family,
    sigterm_does_not_end_a_keeper,
    a_program_that_cannot_run_says_so,
    a_fork_bomb_is_killed_whole,
];

async fn a_family_that_scatters_and_ignores_sigterm_is_gone_after_a_kill(reaper: Rc<Reaper>) {
    let n = unique_sleep();
    let worker = shell(
        &reaper,
        &format!(
            "trap '' TERM; sleep {n} & setsid sleep {n} & (setsid sh -c \"trap '' TERM; sleep {n}; true\" &) ; sleep {n}; true"
        ),
    );
    within(5, "four sleep", async || running(&["sleep", &n]).len() == 4).await;
    assert!(worker.family.leftovers().len() >= 5);
    worker.family.terminate();
    // Of those that still heed SIGTERM only the child in the session of its own began with the shell's trap: all ignore it.
    assert_eq!(running(&["sleep", &n]).len(), 4);
    worker.family.kill();
    worker.family.gone().await;
    assert_eq!(running(&["sleep", &n]), [0i32; 0]);
    assert_eq!(worker.family.exited().await.ending, Ending::Signaled { signal: 9 });
    assert_eq!(children(), []);
}

async fn sigterm_reaches_every_session(reaper: Rc<Reaper>) {
    let n = unique_sleep();
    let worker = shell(&reaper, &format!("sleep {n} & setsid sleep {n} & (setsid sleep {n} &); sleep {n}"));
    within(5, "four sleep", async || running(&["sleep", &n]).len() == 4).await;
    worker.family.terminate();
    worker.family.gone().await;
    assert_eq!(running(&["sleep", &n]), [0i32; 0]);
    assert_eq!(worker.family.exited().await.ending, Ending::Signaled { signal: 15 });
}

async fn a_kill_leaves_another_workers_orphans_alone(reaper: Rc<Reaper>) {
    let (one, two) = (unique_sleep(), unique_sleep() + "1");
    let script = |n: &str| format!("(setsid sleep {n} &); exec sleep {n}");
    let (first, second) = (shell(&reaper, &script(&one)), shell(&reaper, &script(&two)));
    within(5, "both run", async || {
        running(&["sleep", &one]).len() == 2 && running(&["sleep", &two]).len() == 2
    })
    .await;
    first.family.kill();
    first.family.gone().await;
    assert_eq!(running(&["sleep", &one]), [0i32; 0]);
    assert_eq!(running(&["sleep", &two]).len(), 2);
    assert_eq!(second.family.leftovers().len(), 1);
    assert!(second.family.exit().is_none());
}

async fn leftovers_live_on_after_their_worker_until_they_are_killed(reaper: Rc<Reaper>) {
    let n = unique_sleep();
    let worker = shell(&reaper, &format!("setsid sleep {n} & exit 7"));
    assert_eq!(worker.family.exited().await.ending, Ending::Exited { code: 7 });
    within(5, "one sleeps", async || running(&["sleep", &n]).len() == 1).await;
    assert_eq!(worker.family.leftovers(), running(&["sleep", &n]));
    drop(worker);
    within(5, "dropped, it is killed", async || running(&["sleep", &n]).is_empty() && children().is_empty())
        .await;
    assert_eq!(reaper.orphans_reaped(), 1);
}

async fn zombies_are_buried_and_do_not_hide_how_the_worker_ended(reaper: Rc<Reaper>) {
    let worker = shell(
        &reaper,
        "for i in $(seq 50); do (true &) ; (sh -c 'exit 9' &); done; sleep 0.3; kill -SEGV $$",
    );
    let exit = worker.family.exited().await;
    assert_eq!(exit.ending, Ending::Signaled { signal: 11 });
    assert!(exit.max_rss_kib > 300 && exit.max_rss_kib < 100_000, "{exit:?}");
    worker.family.gone().await;
    assert_eq!(reaper.orphans_reaped(), 100);
    assert_eq!(children(), []);
}

async fn what_a_killed_keeper_leaves_is_killed_too(reaper: Rc<Reaper>) {
    let n = unique_sleep();
    let other = shell(&reaper, "exec sleep 1000");
    let worker =
        shell(&reaper, &format!("trap '' TERM; (setsid sleep {n} &); setsid sleep {n} & sleep {n}; true"));
    within(5, "three sleep", async || running(&["sleep", &n]).len() == 3).await;
    let keeper = worker.keeper().await;
    signal(keeper, 9);
    worker.family.gone().await;
    assert_eq!(running(&["sleep", &n]), [0i32; 0]);
    assert_eq!(worker.family.exited().await.ending, Ending::Signaled { signal: 9 });
    assert!(other.family.exit().is_none(), "another worker was killed with it");
    assert_eq!(children().len(), 1);
}

async fn a_keeper_that_stands_still_does_not_save_its_family(reaper: Rc<Reaper>) {
    let n = unique_sleep();
    let worker = shell(&reaper, &format!("(setsid sleep {n} &); sleep {n}; true"));
    within(5, "two sleep", async || running(&["sleep", &n]).len() == 2).await;
    let keeper = worker.keeper().await;
    signal(keeper, 19);
    within(5, "it stands still", async || state_of(keeper) == "T").await;
    worker.family.kill();
    worker.family.gone().await;
    assert_eq!(running(&["sleep", &n]), [0i32; 0]);
}

async fn sigterm_does_not_end_a_keeper(reaper: Rc<Reaper>) {
    let worker = shell(&reaper, "exec sleep 1000");
    let keeper = worker.keeper().await;
    for number in [1, 2, 3, 10, 12, 13, 14, 15] {
        signal(keeper, number);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(exists(keeper) && worker.family.exit().is_none());
}

async fn a_program_that_cannot_run_says_so(reaper: Rc<Reaper>) {
    let (missing, ..) = launch(&["no-such-program"], Vec::new());
    let error = reaper.spawn(&cage(), missing).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(error.to_string().contains("no-such-program"), "{error}");

    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let worker = spawn_in(&reaper, &cage(), &[script.to_str().unwrap()]);
    let Ending::NotStarted(why) = worker.family.exited().await.ending else { panic!("it started") };
    assert!(why.contains(script.to_str().unwrap()) && why.contains("No such file"), "{why}");
    worker.family.gone().await;

    let (mut nowhere, ..) = launch(&["true"], Vec::new());
    nowhere.dir = "/no/such/folder".into();
    let family = reaper.spawn(&cage(), nowhere).unwrap();
    let Ending::NotStarted(why) = family.exited().await.ending else { panic!("it started") };
    assert!(why.contains("folder"), "{why}");
    family.gone().await;
    assert_eq!(children(), []);
}

/// Each process starts two more in sessions of their own, down to a depth, and all of them start others that lose their parent
/// at once: the tree changes all the time while it is killed.
const BOMB: &str = "if [ $2 -gt 0 ]; then setsid sh $0 $1 $(($2-1)) & setsid sh $0 $1 $(($2-1)) & fi
while :; do (sleep 0.1 &); sleep 0.1; done
";

async fn a_fork_bomb_is_killed_whole(reaper: Rc<Reaper>) {
    let n = unique_sleep();
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("bomb");
    std::fs::write(&script, BOMB).unwrap();
    let worker = spawn_in(&reaper, &cage(), &["sh", script.to_str().unwrap(), &n, "6"]);
    // 127 shells and what they start; who looks at so many that change all the time never sees all of them.
    within(40, "a crowd", async || worker.family.leftovers().len() >= 100).await;
    let begun = Instant::now();
    worker.family.kill();
    worker.family.gone().await;
    println!("measured: a crowd of more than 100 gone in {:?}", begun.elapsed());
    assert_eq!(children(), []);
    let left = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&format!("\0{n}\0")))
    });
    assert_eq!(left.count(), 0);
}
