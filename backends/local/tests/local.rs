//! The backend with real supervisors and handlers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test")]

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Cursor, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sless_backend::suite::{self, Harness};
use sless_backend::{
    Backend, CodeError, CodeRef, CodeStore, Endpoint, FunctionRef, FunctionSpec, FunctionStatus, Generation,
    Revision,
};
use sless_backend_local::{Layout, LocalBackend, LocalConfig};
use sless_builder::{HostEnvironment, Limits, inspect};
use sless_core::{Digest, FunctionSettings, Phase, Runtime};

/// Uploaded zips in memory, handed out as files.
#[derive(Debug, Default)]
struct Zips(Mutex<HashMap<Digest, Vec<u8>>>);

#[async_trait]
impl CodeStore for Zips {
    async fn put_if_absent(&self, _: &FunctionRef, sha256: &Digest, from: &Path) -> Result<(), CodeError> {
        self.0.lock().unwrap().insert(*sha256, fs::read(from).unwrap());
        Ok(())
    }

    async fn get(&self, _: &FunctionRef, sha256: &Digest) -> Result<File, CodeError> {
        let bytes = self.0.lock().unwrap().get(sha256).cloned().ok_or(CodeError::NotFound(*sha256))?;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        Ok(file)
    }

    async fn delete(&self, _: &FunctionRef, sha256: &Digest) -> Result<(), CodeError> {
        self.0.lock().unwrap().remove(sha256);
        Ok(())
    }

    async fn list(&self, _: &FunctionRef) -> Result<Vec<Digest>, CodeError> {
        Ok(self.0.lock().unwrap().keys().copied().collect())
    }
}

struct Local {
    backend: LocalBackend,
    zips: Arc<Zips>,
}

impl Local {
    fn on(data: &Path) -> Self {
        let zips = Arc::new(Zips::default());
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let config = LocalConfig {
            supervisor: supervisor(),
            runtimes_dir: root.join("runtimes").canonicalize().unwrap(),
            // Nobody takes records here: they wait in the spool.
            reports_socket: data.join("private/run/reports.sock"),
            path: std::env::var_os("PATH").unwrap(),
            cage: None,
            host_environment: HostEnvironment::pick(std::env::vars_os()),
        };
        let layout = Layout::prepare(data, &std::env::temp_dir()).unwrap();
        Self { backend: LocalBackend::new(config, layout, zips.clone()).unwrap(), zips }
    }

    fn revision(&self, handler: &str) -> Revision {
        let code = self.upload(&[("handler.py", handler)]);
        let name = code.sha256.to_string()[..12].to_owned();
        Revision {
            name,
            runtime: self.runtime(),
            settings: FunctionSettings::default(),
            code,
            secrets: std::collections::BTreeMap::new(),
        }
    }

    fn upload(&self, files: &[(&str, &str)]) -> CodeRef {
        use sha2::Digest as _;
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, text) in files {
            zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        let bytes = zip.finish().unwrap().into_inner();
        let sha256 = Digest::new(sha2::Sha256::digest(&bytes).into());
        let contents = inspect(Cursor::new(&bytes), &[], &Limits::default()).unwrap();
        self.zips.0.lock().unwrap().insert(sha256, bytes);
        CodeRef { sha256, content_sha256: contents.content_sha256 }
    }

    async fn apply(&self, f: &FunctionRef, wanted: &Revision, serving: Option<&Revision>, generation: u64) {
        let (wanted, serving) = (wanted.clone(), serving.cloned());
        let spec = FunctionSpec {
            function: f.clone(),
            wanted,
            serving,
            kept: Vec::new(),
            index: Default::default(),
        };
        self.backend.apply_function(spec, Generation(generation)).await.unwrap();
    }

    async fn settled(&self, f: &FunctionRef, generation: u64) -> FunctionStatus {
        until(|| {
            let status = self.backend.status(f)?;
            let done = matches!(status.phase, Phase::Ready | Phase::Failed);
            (done && status.generation >= Generation(generation)).then_some(status)
        })
        .await
    }

    fn endpoint(&self, f: &FunctionRef) -> PathBuf {
        match &*self.backend.endpoints(f) {
            [Endpoint::Unix { path, .. }] => path.clone(),
            other => panic!("one socket was expected, not {other:?}"),
        }
    }

    fn call(&self, socket: &Path) -> String {
        let mut stream = UnixStream::connect(socket).unwrap();
        let token = self.backend.proxy_token(&function("f"));
        write!(
            stream,
            "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-sless-proxy-token: {}\r\n\r\n",
            token.reveal()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[async_trait]
impl Harness for Local {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn runtime(&self) -> Runtime {
        "python3.11".parse().unwrap()
    }

    async fn code(&self, _: &FunctionRef, mark: &str) -> CodeRef {
        self.upload(&[("handler.py", &format!("def handle(event, context):\n    return {mark:?}\n"))])
    }
}

/// The program lies beside the folder of this test's own.
fn supervisor() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("sless-supervisor");
    assert!(path.is_file(), "{} is missing; make it with: cargo build -p sless-supervisor", path.display());
    path
}

/// Not below `/tmp`, where handlers may write.
fn data() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("sless-local-").tempdir_in("/var/tmp").unwrap()
}

fn function(name: &str) -> FunctionRef {
    FunctionRef { namespace: "ns".parse().unwrap(), name: name.parse().unwrap() }
}

async fn until<T>(mut check: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "did not come true");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Supervisors on the data folder `data`.
fn supervisors(data: &Path) -> Vec<i32> {
    let wanted = format!("SLESS_SPOOL_DIR={}", data.canonicalize().unwrap().display());
    let ours = |pid: i32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let named = fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with(b"sless-super"));
        named && environ.split(|b| *b == 0).any(|v| v.starts_with(wanted.as_bytes()))
    };
    let parent = |pid: i32| {
        fs::read_to_string(format!("/proc/{pid}/stat"))
            .ok()?
            .rsplit(") ")
            .next()?
            .split(' ')
            .nth(1)?
            .parse::<u32>()
            .ok()
    };
    let pids =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    // A supervisor's own helpers carry its environment too; only its parent is us.
    pids.filter(|pid| parent(*pid) == Some(std::process::id()) && ours(*pid)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_backend_does_what_every_backend_must() {
    let data = data();
    let local = Local::on(data.path());
    suite::run(&local).await;
    assert_eq!(supervisors(data.path()), Vec::<i32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_dies_is_started_again() {
    let (data, f) = (data(), function("f"));
    let local = Local::on(data.path());
    local.apply(&f, &local.revision("def handle(e, c):\n    return 'here'\n"), None, 1).await;
    assert_eq!(local.settled(&f, 1).await.phase, Phase::Ready);
    let before = local.endpoint(&f);
    let [pid] = supervisors(data.path())[..] else { panic!("one supervisor runs") };
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    until(|| local.backend.endpoints(&f).is_empty().then_some(())).await;
    assert_eq!(
        until(|| local.backend.status(&f).filter(|s| s.phase == Phase::Failed))
            .await
            .active_revision
            .map(|r| r.len()),
        Some(12)
    );
    until(|| (!local.backend.endpoints(&f).is_empty()).then_some(())).await;
    assert_ne!(local.endpoint(&f), before);
    assert!(local.call(&local.endpoint(&f)).ends_with("here"));
    local.backend.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_calls_the_old_one_is_waited_for() {
    let (data, f) = (data(), function("f"));
    let local = Local::on(data.path());
    local.apply(&f, &local.revision("def handle(e, c):\n    return 'old'\n"), None, 1).await;
    local.settled(&f, 1).await;
    let (held, old) = (local.backend.endpoints(&f), local.endpoint(&f));
    local.apply(&f, &local.revision("def handle(e, c):\n    return 'new'\n"), None, 2).await;
    assert_eq!(local.settled(&f, 2).await.phase, Phase::Ready);
    assert!(local.call(&local.endpoint(&f)).ends_with("new"));
    assert!(local.call(&old).ends_with("old"), "it answers as long as somebody holds its endpoints");
    drop(held);
    until(|| (!old.exists()).then_some(())).await;
    assert_eq!(supervisors(data.path()).len(), 1);
    local.backend.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_host_starts_what_answered_without_a_build() {
    let (data, f) = (data(), function("f"));
    let local = Local::on(data.path());
    let (good, bad) = (
        local.revision("def handle(e, c):\n    return 'kept'\n"),
        local.revision("import nothing_like_this\n"),
    );
    local.apply(&f, &good, None, 1).await;
    local.settled(&f, 1).await;
    let built = local.backend.build(&f).unwrap();
    local.backend.shutdown().await;
    assert_eq!(supervisors(data.path()), Vec::<i32>::new(), "nothing is left behind");

    // Its code store is empty, so nothing can be built.
    let again = Local::on(data.path());
    again.apply(&f, &good, Some(&good), 5).await;
    let status = again.settled(&f, 5).await;
    assert_eq!((status.phase, status.active_revision.as_ref()), (Phase::Ready, Some(&good.name)));
    assert_eq!(again.backend.build(&f), Some(built));
    assert!(again.call(&again.endpoint(&f)).ends_with("kept"));
    again.backend.shutdown().await;

    let third = Local::on(data.path());
    third.apply(&f, &bad, Some(&good), 6).await;
    let failed = third.settled(&f, 6).await;
    assert_eq!((failed.phase, failed.active_revision.as_ref()), (Phase::Failed, Some(&good.name)));
    until(|| (!third.backend.endpoints(&f).is_empty()).then_some(())).await;
    assert!(third.call(&third.endpoint(&f)).ends_with("kept"));
    third.backend.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_load_or_build_says_why() {
    let (data, f) = (data(), function("f"));
    let local = Local::on(data.path());
    local.apply(&f, &local.revision("import nothing_like_this\n"), None, 1).await;
    let failed = local.settled(&f, 1).await;
    assert!(failed.message.unwrap().contains("nothing_like_this"));
    assert_eq!((failed.phase, failed.active_revision), (Phase::Failed, None));
    let missing =
        local.upload(&[("handler.py", "x = 1"), ("requirements.txt", "--no-index\nnothing==99.99.99\n")]);
    let revision = Revision { name: "b".into(), code: missing, ..local.revision("x = 1") };
    local.apply(&f, &revision, None, 2).await;
    let failed = local.settled(&f, 2).await;
    assert!(failed.message.as_ref().unwrap().contains("nothing==99.99.99"), "{failed:?}");
    let build = local.backend.build(&f).unwrap();
    assert_eq!((build.phase, build.message), (Phase::Failed, failed.message));
    let log = async |from| local.backend.build_log(&f, &build.name, from).await.unwrap().unwrap();
    let all = log(0).await;
    assert!(all.iter().any(|line| line.text.contains("99.99.99")), "{all:?}");
    assert_eq!(log(1).await, all[1..]);
    assert_eq!(local.backend.build_log(&f, "nothing", 0).await.unwrap(), None);
    local.backend.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn going_back_to_what_is_kept_needs_no_build() {
    let (data, f) = (data(), function("f"));
    let local = Local::on(data.path());
    let made = |n: u32| local.revision(&format!("def handle(e, c):\n    return 'number {n}'\n"));
    let first = made(0);
    let apply = async |wanted: Revision, generation: u64| {
        let settings = FunctionSettings { revision_history: 2, ..wanted.settings.clone() };
        let (wanted, kept) = (Revision { settings, ..wanted }, vec![first.code.content_sha256]);
        let spec =
            FunctionSpec { function: f.clone(), wanted, serving: None, kept, index: Default::default() };
        local.backend.apply_function(spec, Generation(generation)).await.unwrap();
        assert_eq!(local.settled(&f, generation).await.phase, Phase::Ready);
    };
    for n in 0..4 {
        apply(made(n), u64::from(n) + 1).await;
    }
    let build = local.backend.build(&f);
    apply(first.clone(), 5).await;
    assert_eq!(local.backend.build(&f), build, "nothing was built");
    assert!(local.call(&local.endpoint(&f)).ends_with("number 0"));
    local.backend.shutdown().await;
}
