//! A host on a data folder of its own, and the command line that speaks with it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(crate) const SLESS: &str = env!("CARGO_BIN_EXE_sless");

pub(crate) struct Host {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) port: u16,
    child: Option<Child>,
    /// On PostgreSQL and S3 and not in its folder.
    on_servers: bool,
}

/// What a command gave.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Host {
    pub(crate) fn start() -> Self {
        Self::start_on(false)
    }

    /// A database and a bucket of its own on the servers that the variables `SLESS_TEST_…` name; `None` without them.
    #[allow(dead_code, reason = "one file of tests uses it")]
    pub(crate) fn start_on_servers() -> Option<Self> {
        for name in ["SLESS_TEST_DATABASE_URL", "SLESS_TEST_S3"] {
            if std::env::var_os(name).is_none() {
                eprintln!("not run: {name} is not set; scripts/test sets it");
                return None;
            }
        }
        Some(Self::start_on(true))
    }

    fn start_on(on_servers: bool) -> Self {
        // Not below `/tmp`, where handlers may write.
        let folder = tempfile::Builder::new().prefix("sless-cli-").tempdir_in("/var/tmp").unwrap();
        open_to_all(folder.path());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut host = Self { folder, port, child: None, on_servers };
        host.start_again();
        host
    }

    pub(crate) fn start_again(&mut self) {
        let log = File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let mut command = self.command(&["up"]);
        if self.on_servers {
            let server = |name| std::env::var(name).unwrap();
            let s3 = server("SLESS_TEST_S3");
            let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/sless-on-servers");
            let environment: Vec<_> =
                command.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
            command = Command::new(wrapper);
            command
                .arg("up")
                .env("HOST_BINARY", SLESS)
                .env("POSTGRES_URL", server("SLESS_TEST_DATABASE_URL"));
            command.env("S3_ENDPOINT", s3.split(' ').next().unwrap());
            command.env("S3_ACCESS_KEY_ID", "test").env("S3_SECRET_ACCESS_KEY", "test-secret");
            for (name, value) in environment {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
        }
        command.env("API_LISTEN", format!("127.0.0.1:{}", self.port)).env("OF_THE_HOST", self.sentinel());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        self.until(|| {
            self.http("GET", "/ready", "").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        });
    }

    /// The command line as somebody on this machine has it: only the data folder is set.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let own = Path::new(SLESS).parent().unwrap().join("sless-supervisor");
        assert!(own.is_file(), "{} is missing; make it with: cargo build -p sless-supervisor", own.display());
        let runtimes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtimes");
        let mut command = Command::new(SLESS);
        command.args(arguments).env("DATA_DIR", self.data()).env("RUNTIMES_DIR", runtimes);
        // Nor may a login of whoever runs the tests count.
        command.env("XDG_CONFIG_HOME", self.folder.path().join("config"));
        for name in ["SLESS_URL", "SLESS_TOKEN", "API_TOKEN"] {
            command.env_remove(name);
        }
        command
    }

    /// A variable of the host's environment that nobody else on this machine has.
    pub(crate) fn sentinel(&self) -> String {
        format!("sentinel-{}-{}", std::process::id(), self.port)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn cli(&self, arguments: &[&str]) -> Done {
        done(self.command(arguments).stdin(Stdio::null()).output().unwrap())
    }

    /// A command that must go well; what it printed.
    pub(crate) fn good(&self, arguments: &[&str]) -> String {
        let done = self.cli(arguments);
        assert_eq!(done.code, 0, "sless {arguments:?}: {done:?}\n{}", self.log());
        done.out
    }

    /// A folder with these files, to deploy.
    pub(crate) fn folder(&self, name: &str, files: &[(&str, &str)]) -> String {
        let folder = self.folder.path().join("functions").join(name);
        for (file, text) in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder.to_str().unwrap().to_owned()
    }

    /// The whole answer, or `None` if nobody answers.
    pub(crate) fn http(&self, method: &str, path: &str, body: &str) -> Option<String> {
        http(self.port, method, path, body)
    }

    pub(crate) fn until(&self, mut check: impl FnMut() -> bool) {
        let began = Instant::now();
        while !check() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "not so within a minute; the host's log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Sends the signal and waits for the end; nothing that the host had started may be left soon after.
    pub(crate) fn stop(&mut self, signal: Signal) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let family = family(child.id());
        kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
        let status = child.wait().unwrap();
        self.until(|| family.iter().all(|(pid, began)| began_at(*pid) != Some(*began)));
        status
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn done(output: Output) -> Done {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The whole answer, or `None` if nobody answers.
pub(crate) fn http(port: u16, method: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// When the process began, in the kernel's ticks; `None` if there is none, or only its zombie.
pub(crate) fn began_at(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<_> = stat.rsplit(") ").next()?.split(' ').collect();
    if matches!(fields[0], "Z" | "X") { None } else { fields[19].parse().ok() }
}

/// All that descends from `pid`, each with the time at which it began.
pub(crate) fn family(pid: u32) -> Vec<(u32, u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|list| list.split(' ').filter_map(|c| c.parse().ok()).collect::<Vec<_>>())
        .collect();
    let own = children.iter().filter_map(|child| Some((*child, began_at(*child)?)));
    own.chain(children.iter().flat_map(|child| family(*child))).collect()
}
