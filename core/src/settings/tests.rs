use serde_json::json;

use super::*;

fn read(value: Value) -> Result<FunctionSettings, FieldError> {
    FunctionSettings::from_object(value.as_object().unwrap())
}

#[test]
fn every_setting_has_a_row_and_every_default_is_within_its_range() {
    let defaults = read(json!({})).unwrap().to_object();
    let mut names: Vec<String> = defaults.keys().cloned().collect();
    names.extend(defaults["retry"].as_object().unwrap().keys().map(|k| format!("retry.{k}")));
    let mut rows: Vec<_> = SETTINGS.iter().map(|s| s.name.to_owned()).collect();
    names.sort();
    rows.sort();
    assert_eq!(names, rows);
    assert_eq!(
        (defaults["timeout_sec"].to_string(), defaults["memory_mb"].to_string()),
        ("30".into(), "256".into())
    );
}

#[test]
fn what_is_written_is_read_again() {
    let settings = read(json!({
        "entrypoint": "src/app.main", "timeout_sec": 0.5, "workers": 2.0, "env": {"A": "b"}, "secrets": ["db"],
        "retry": {"max_attempts": 5, "on": ["error"]}, "labels": {"a/b": "c"}, "cpu_milli": null
    }))
    .unwrap();
    assert_eq!((settings.timeout_sec.get(), settings.workers, settings.cpu_milli), (0.5, 2, 250));
    assert_eq!((settings.retry.max_attempts, settings.retry.max_backoff_sec.get()), (5, 60.0));
    assert_eq!(FunctionSettings::from_object(&settings.to_object()).unwrap(), settings);
    assert_eq!(
        serde_json::from_value::<FunctionSettings>(Value::Object(settings.to_object())).unwrap(),
        settings
    );
}

#[test]
fn each_refusal_names_its_field() {
    for (body, field) in [
        (json!({"timeout_sec": 0}), "timeout_sec"),
        (json!({"timeout_sec": "5"}), "timeout_sec"),
        (json!({"timeout_sec": 3601}), "timeout_sec"),
        (json!({"workers": true}), "workers"),
        (json!({"workers": 1.5}), "workers"),
        (json!({"workers": -1}), "workers"),
        (json!({"entrypoint": "handler"}), "entrypoint"),
        (json!({"entrypoint": 5}), "entrypoint"),
        (json!({"env": {"A=B": "c"}}), "env"),
        (json!({"env": {"": "c"}}), "env"),
        (json!({"env": {"SLESS_FUNCTION": "c"}}), "env"),
        (json!({"env": {"A": "a\0b"}}), "env"),
        (json!({"env": {"A": 1}}), "env.A"),
        (json!({"env": {"A": "x".repeat(300 << 10)}}), "env"),
        (json!({"secrets": "db"}), "secrets"),
        (json!({"secrets": ["DB"]}), "secrets"),
        (json!({"labels": {"a": "b c"}}), "labels"),
        (json!({"retry": []}), "retry"),
        (json!({"retry": {"tries": 1}}), "retry.tries"),
        (json!({"retry": {"on": ["success"]}}), "retry.on"),
        (json!({"min_replicas": 2}), "min_replicas"),
    ] {
        assert_eq!(read(body.clone()).unwrap_err().field, field, "{body}");
    }
}

#[test]
fn only_what_the_handler_could_notice_makes_a_revision() {
    let base = read(json!({"env": {"A": "1"}})).unwrap();
    for same in
        [json!({"labels": {"a": "b"}}), json!({"max_replicas": 4}), json!({"retry": {"max_attempts": 1}})]
    {
        let mut body = base.to_object();
        body.extend(same.as_object().unwrap().clone());
        assert_eq!(FunctionSettings::from_object(&body).unwrap().revised(), base.revised(), "{same}");
    }
    let other = read(json!({"env": {"A": "2"}, "labels": {"x": "y"}})).unwrap();
    assert_ne!(other.revised(), base.revised());
    let back = other.with_revised_of(&base);
    assert_eq!(back.revised(), base.revised());
    assert_eq!(back.labels.len(), 1);
}

#[test]
fn the_page_for_callers_has_every_setting_with_its_default_and_range() {
    let page = include_str!("../../../docs/api.md");
    for setting in SETTINGS.iter().filter(|s| s.name != "retry") {
        let row = page.lines().find(|l| l.starts_with(&format!("| `{}` |", setting.name))).unwrap();
        assert!(row.ends_with(&format!("| {} |", setting.doc)), "{row}");
        let (default, range) = match setting.kind {
            Kind::Integer { min, max } => (setting.default.to_owned(), format!("{min}–{max}")),
            Kind::Seconds { min, max } => (setting.default.to_owned(), format!("{min}–{max}")),
            _ => continue,
        };
        assert!(row.contains(&format!("| {default} | {range} |")), "{row}");
    }
}
