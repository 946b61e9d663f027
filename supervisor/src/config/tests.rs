use super::*;

fn runtime_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("runtime.json"), r#"{"name":"x","command":["x","{dir}/w"]}"#).unwrap();
    dir
}

fn read(args: &[&str], env: &[(&str, &str)]) -> Result<(Command, Config), Error> {
    let dir = runtime_dir();
    let base = [("SLESS_RUNTIME_DIR", dir.path().to_str().unwrap()), ("SLESS_FUNCTION_DIR", "/")];
    let env = base.iter().chain(env).map(|(k, v)| (OsString::from(k), OsString::from(v)));
    match Config::from_args(args.iter().map(OsString::from), env.collect::<Vec<_>>())? {
        Invocation::Run(command, config) => Ok((command, *config)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults_are_those_of_the_contract() {
    let (command, c) = read(&["serve"], &[]).unwrap();
    assert_eq!(command, Command::Serve);
    assert_eq!((c.namespace.as_str(), c.function.as_str(), c.revision.as_str()), ("default", "function", ""));
    assert_eq!(
        (c.timeout, c.init_timeout, c.kill_grace),
        (Duration::from_secs(30), Duration::from_secs(30), Duration::from_secs(1))
    );
    assert_eq!((c.workers.get(), c.min_workers, c.concurrency.get(), c.queue), (1, 1, 1, 100));
    assert_eq!((c.max_request_bytes, c.max_response_bytes), (32 << 20, 32 << 20));
    assert_eq!((c.log_limit_bytes, c.result_limit_bytes, c.input_limit_bytes), (1 << 20, 65_536, 65_536));
    assert_eq!(
        (c.spool_limit_bytes, c.flush, c.log_format, c.cage),
        (64 << 20, Duration::ZERO, LogFormat::Json, Cage::Warn)
    );
}

#[test]
fn a_flag_wins_over_the_variable_and_is_named_in_errors() {
    let (_, c) = read(&["serve", "--timeout-sec", "0.5"], &[("SLESS_TIMEOUT_SEC", "20")]).unwrap();
    assert_eq!(c.timeout, Duration::from_millis(500));
    assert_eq!(read(&["serve", "--timeout-sec=soon"], &[]).unwrap_err().setting, "--timeout-sec");
}

#[test]
fn bad_values_are_refused_by_name() {
    for (name, value) in [
        ("SLESS_TIMEOUT_SEC", "soon"),
        ("SLESS_TIMEOUT_SEC", "0"),
        ("SLESS_TIMEOUT_SEC", "-1"),
        ("SLESS_TIMEOUT_SEC", "nan"),
        ("SLESS_TIMEOUT_SEC", "1e300"),
        ("SLESS_WORKERS", "0"),
        ("SLESS_WORKERS", "1.5"),
        ("SLESS_LISTEN", "nowhere"),
        ("SLESS_LISTEN", "unix:"),
        ("SLESS_RUNTIME_DIR", "/nonexistent"),
        ("SLESS_FUNCTION_DIR", "/nonexistent"),
        ("SLESS_ENTRYPOINT", "handler"),
        ("SLESS_ENTRYPOINT", "../x.handle"),
        ("SLESS_ENTRYPOINT", "a//b.handle"),
        ("SLESS_REPORT_URL", "not a url"),
        ("SLESS_REPORT_URL", "ftp://x"),
        ("SLESS_LOG_FORMAT", "xml"),
        ("SLESS_CAGE", "maybe"),
        ("SLESS_MAX_REQUEST_BYTES", "99999999999"),
    ] {
        let error = read(&["serve"], &[(name, value)]).unwrap_err();
        assert_eq!(error.setting, name, "{value}: {error}");
        assert_eq!(error.to_string().lines().count(), 1);
    }
}

#[test]
fn the_handler_gets_its_own_variables_and_three_of_ours() {
    let (_, c) =
        read(&["serve"], &[("GREETING", "hi"), ("SLESS_SECRET_NAMES", "A, B"), ("SLESS_UNKNOWN", "x")])
            .unwrap();
    let names: Vec<_> = c.worker_env().into_iter().map(|(k, _)| k.into_string().unwrap()).collect();
    assert_eq!(names, ["GREETING", "SLESS_NAMESPACE", "SLESS_FUNCTION", "SLESS_REVISION"]);
    assert_eq!(c.secret_names, ["A", "B"]);
}

#[test]
fn min_workers_is_never_above_workers() {
    assert_eq!(
        read(&["serve"], &[("SLESS_MIN_WORKERS", "5"), ("SLESS_WORKERS", "2")]).unwrap().1.min_workers,
        2
    );
}

#[test]
fn commands_are_checked() {
    assert_eq!(read(&["run", "--event", "-"], &[]).unwrap().0, Command::Run { event: "-".into() });
    for args in
        [&[][..], &["run"], &["serve", "--event", "x"], &["serve", "--nothing", "x"], &["serve", "--workers"]]
    {
        assert!(read(args, &[]).is_err(), "{args:?}");
    }
}
