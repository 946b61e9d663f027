use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use sless_protocol::event::{Event, News};

use super::*;

fn writer(masks: Masks, limit: usize) -> Writer {
    let config = super::super::ReportConfig {
        namespace: "testing".into(),
        function: "hello".into(),
        revision: "r1".into(),
        pod: "p".into(),
        endpoint: None,
        token_file: None,
        ca_file: None,
        spool_dir: None,
        spool_limit: 0,
        log_limit: 0,
        result_limit: limit,
        input_limit: limit,
        masks,
    };
    Writer::new(&config)
}

fn started<'a>(headers: &'a HeaderMap, body: &'a [u8]) -> StartedInfo<'a> {
    StartedInfo {
        invocation_id: "id \"1\"",
        attempt: 2,
        trigger: "http",
        method: "POST",
        path: "/a%20b",
        raw_query: "x=1",
        headers,
        body,
    }
}

fn finished(body: &[u8]) -> FinishedInfo<'_> {
    FinishedInfo {
        status: Status::Error,
        http_status: Some(500),
        duration: Duration::from_micros(1930),
        queue: Duration::ZERO,
        init: None,
        cpu: Some(Duration::from_micros(1100)),
        max_rss_bytes: Some(1 << 20),
        result: Some(ResultInfo { content_type: "text/plain", size: body.len() as u64, body }),
        error: Some(ErrorInfo { kind: "E", message: "m s3cr3t-value", traceback: None }),
    }
}

fn line_of_started(w: &mut Writer, headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    w.started(&mut out, &started(headers, body), 0);
    out
}

fn line_of_finished(w: &mut Writer, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    w.finished(&mut out, ("id \"1\"", 2, 7), &finished(body), (10, 5), 0);
    out
}

fn parsed(line: &[u8]) -> Event {
    assert_eq!(line.last(), Some(&b'\n'));
    serde_json::from_slice(line).unwrap()
}

#[test]
fn events_are_what_the_api_reads() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("content-type", "text/plain"),
        ("authorization", "Bearer s"),
        ("cookie", "c"),
        ("x-api-key", "k"),
        ("proxy-authorization", "p"),
        ("x-sless-trigger", "cron"),
        ("x-two", "b"),
    ] {
        headers.append(name, HeaderValue::from_static(value));
    }
    headers.append("x-two", HeaderValue::from_bytes(b"caf\xe9").unwrap());
    let mut w = writer(Masks::new(["s3cr3t-value"]).unwrap(), 100);
    let event = parsed(&line_of_started(&mut w, &headers, b"hi \xc3\xbc\0"));
    assert_eq!((event.v, &*event.invocation_id, event.attempt, event.seq), (1, "id \"1\"", 2, 0));
    let News::Started(s) = event.news else { panic!("{event:?}") };
    assert_eq!(
        (&*s.time, &*s.namespace, &*s.pod, &*s.path),
        ("1970-01-01T00:00:00.000Z", "testing", "p", "/a%20b")
    );
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        s.request.headers,
        [pair("content-type", "text/plain"), pair("x-two", "b"), pair("x-two", "café")]
    );
    assert_eq!(
        (s.request.size, s.request.body.text.as_deref(), s.request.body.truncated),
        (6, Some("hi ü\0"), false)
    );

    let event = parsed(&line_of_finished(&mut w, b"\xff\xfe"));
    let News::Finished(f) = event.news else { panic!("{event:?}") };
    assert_eq!(
        (event.seq, f.status, f.http_status, f.duration_ms, f.cpu_ms),
        (7, Status::Error, Some(500), 1.93, Some(1.1))
    );
    assert_eq!(f.result.unwrap().body.base64.as_deref(), Some("//4="));
    assert_eq!((f.error.unwrap().message.as_str(), f.log_bytes, f.log_dropped_bytes), ("m ***", 10, 5));
}

#[test]
fn bodies_are_cut_between_characters_and_say_so() {
    let none = Masks::none();
    assert_eq!(kept("aü".as_bytes(), 2, &none), (Kept::Text("a".into()), true));
    assert_eq!(kept("aü".as_bytes(), 3, &none), (Kept::Text("aü".into()), false));
    assert_eq!(
        kept(b"a\xc3", 10, &none),
        (Kept::Base64("YcM=".into()), false),
        "an end that is none is no text"
    );
    assert_eq!(kept(b"abc", 0, &none), (Kept::Text("".into()), true));
}

#[test]
fn a_line_is_read_by_its_beginning_and_changed_in_place() {
    let mut w = writer(Masks::none(), 1 << 20);
    let body = br#"evil ,"text":"x","truncated":false ,"log_bytes":9,"log_dropped_bytes":9} ,"seq":9"#;
    let line = line_of_finished(&mut w, body);
    let head = Head::of(&line).unwrap();
    assert_eq!((head.id, head.attempt, head.seq, head.kind), (&br#"id \"1\""#[..], 2, 7, Kind::Finished));

    let News::Finished(f) = parsed(&with_dropped(&line, 4).unwrap()).news else { panic!() };
    assert_eq!((f.log_bytes, f.log_dropped_bytes), (6, 9));
    assert_eq!(parsed(&with_seq(&line, 70_000).unwrap()).seq, 70_000);
    let News::Finished(f) = parsed(&without_text(&line).unwrap()).news else { panic!() };
    let result = f.result.unwrap();
    assert_eq!(
        (result.size, result.body.text.as_deref(), result.body.truncated),
        (body.len() as u64, Some(""), true)
    );
    let binary = line_of_finished(&mut w, b"\xff");
    let News::Finished(f) = parsed(&without_text(&binary).unwrap()).news else { panic!() };
    assert!(f.result.unwrap().body.truncated);
    assert!(without_text(&without_text(&line).unwrap()).is_none(), "there is nothing left to take");
    assert!(Head::of(b"{}").is_none() && Head::of(b"").is_none());
}

#[test]
fn the_bytes_of_log_lines_are_counted_with_their_newlines() {
    let mut out = Vec::new();
    begin_log(&mut out, "id", 1, 1);
    for text in [&b"ab\"\n"[..], b"", b"\xff"] {
        let line = Line { time_ms: 0, stream: crate::logs::LogStream::Stderr, init: true, text };
        log_line(&mut out, &mut Stamp::default(), &line);
    }
    end_log(&mut out);
    let News::Log { lines } = parsed(&out).news else { panic!() };
    assert_eq!((lines.len(), lines[0].text.as_str(), lines[0].phase.as_deref()), (3, "ab\"\n", Some("init")));
    assert_eq!(logged_bytes(&out), 5 + 1 + 4);
}

proptest! {
    #[test]
    fn no_bytes_make_the_readers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..300) {
        let mut w = writer(Masks::none(), 1 << 20);
        let mut line = line_of_finished(&mut w, b"body");
        let at = at.min(line.len());
        line.splice(at.., bytes);
        let _ = (Head::of(&line), with_dropped(&line, 1), without_text(&line), with_seq(&line, 1), logged_bytes(&line));
    }

    #[test]
    fn any_text_survives(id in any::<String>(), body in any::<Vec<u8>>()) {
        let mut w = writer(Masks::none(), 1 << 20);
        let mut out = Vec::new();
        w.finished(&mut out, (&id, 1, 1), &finished(&body), (0, 0), 0);
        let event = parsed(&out);
        prop_assert_eq!(event.invocation_id, id);
        prop_assert!(Head::of(&out).is_some());
        let News::Finished(f) = event.news else { panic!() };
        let kept = f.result.unwrap().body;
        let back = kept.text.map(String::into_bytes).or_else(|| base64::prelude::BASE64_STANDARD.decode(kept.base64?).ok());
        prop_assert_eq!(back, Some(body));
    }
}

#[test]
fn a_request_in_which_something_was_masked_is_not_whole() {
    let masks = || Masks::new(["s3cr3t-value"]).unwrap();
    let request = |masks: Masks, header: &'static str, path: &str, raw_query: &str, body: &[u8]| {
        let headers =
            HeaderMap::from_iter([(http::HeaderName::from_static("x"), HeaderValue::from_static(header))]);
        let mut out = Vec::new();
        let info = StartedInfo { path, raw_query, ..started(&headers, body) };
        writer(masks, 100).started(&mut out, &info, 0);
        let text = String::from_utf8(out).unwrap();
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        (text.contains("s3cr3t-value"), line["request"]["truncated"].as_bool().unwrap())
    };
    assert_eq!(request(masks(), "y", "/p", "q=1", b"body"), (false, false));
    assert_eq!(request(masks(), "s3cr3t-value", "/p", "q=1", b"body"), (false, true));
    assert_eq!(request(masks(), "y", "/s3cr3t-value", "q=1", b"body"), (false, true));
    assert_eq!(request(masks(), "y", "/p", "q=s3cr3t-value", b"body"), (false, true));
    assert_eq!(request(masks(), "y", "/p", "q=1", b"it is s3cr3t-value"), (false, true));
    assert!(request(masks(), "y", "/p", "q=1", b"\xff s3cr3t-value").1);
    assert_eq!(request(Masks::none(), "s3cr3t-value", "/p", "q=1", b"body"), (true, false));
}
