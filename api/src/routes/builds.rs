//! `/v1/namespaces/{ns}/functions/{name}/build[/logs]`.

use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, SystemTime};

use axum::extract::{Path, RawQuery, State};
use http::HeaderMap;
use serde_json::json;
use sless_backend::{BuildStatus, FunctionRef};
use sless_core::Phase;
use tokio::fs::File;
use tokio::io::AsyncReadExt;

use super::logs::{Form, Line, Live, Next, Until, follows};
use super::{Answer, Entered, Shared, Two, input, render};
use crate::app::App;
use crate::problem::Problem;
use sless_backend::Moment;

/// Between looks at the log of a build that runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

async fn last(app: &App, function: &FunctionRef) -> Result<BuildStatus, Problem> {
    app.function(function).await?;
    app.backend.build(function).ok_or_else(|| {
        Problem::not_found(format!(
            "build of function {:?} yet: it begins with the first upload",
            function.name.as_str()
        ))
    })
}

pub(super) async fn read(State(app): Shared, entered: Entered, Path((_, name)): Two) -> Answer {
    let function = entered.function(&name)?;
    let build = last(&app, &function).await?;
    render::shown(&json!({
        "phase": build.phase,
        "started_at": Moment::from(build.started_at),
        "finished_at": build.finished_at.map(Moment::from),
        "message": build.message,
    }))
}

pub(super) async fn logs(
    State(app): Shared,
    entered: Entered,
    Path((_, name)): Two,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let function = entered.function(&name)?;
    let follow = follows(&input::Params::parse(query.as_deref()))?;
    let build = last(&app, &function).await?;
    let form = Form::of(&headers);
    let mut marks = Marks::new(build.started_at, form, &headers);
    let ended = matches!(build.phase, Phase::Ready | Phase::Failed);
    if follow && !ended {
        let (response, live) = Live::start(app, form);
        tokio::spawn(run(live, function, build.started_at, build.log, marks));
        return Ok(response);
    }
    let Some(path) = build.log else { return Ok(form.whole(&[])) };
    let read = tokio::task::spawn_blocking(move || sless_builder::read_log(&path)).await;
    let lines = match read {
        Ok(Ok(lines)) => lines,
        Ok(Err(error)) => return Err(Problem::internal("read the log of a build", &error)),
        Err(error) => return Err(Problem::internal("read the log of a build", &error)),
    };
    let line = |l: sless_builder::LogLine| Line {
        mark: None,
        invocation_id: None,
        time: l.time,
        stream: l.stream,
        text: l.text,
        phase: None,
    };
    let lines = marks.put(lines.into_iter().map(line));
    if marks.had > 0 && lines.is_empty() && ended {
        return Ok(Form::nothing_more());
    }
    Ok(form.whole(&lines))
}

/// Where readers of events go on when they come back: which build it is, and the number of the line.
struct Marks {
    build: i64,
    next: u64,
    /// So many lines of this build the reader has had.
    had: u64,
}

impl Marks {
    fn new(began: SystemTime, form: Form, headers: &HeaderMap) -> Self {
        let build = Moment::from(began).0;
        let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.split_once('-'));
        let had = last.filter(|(of, _)| form == Form::Events && *of == build.to_string());
        Self {
            build,
            next: 0,
            had: had.and_then(|(_, line)| line.parse::<u64>().ok()).map_or(0, |n| n.saturating_add(1)),
        }
    }

    /// Marks the lines that come next, and leaves out what the reader has had.
    fn put(&mut self, lines: impl IntoIterator<Item = Line>) -> Vec<Line> {
        let mut fresh = Vec::new();
        for line in lines {
            if self.next >= self.had {
                fresh.push(Line { mark: Some(format!("{}-{}", self.build, self.next)), ..line });
            }
            self.next += 1;
        }
        fresh
    }
}

/// All of a build's log, until the build ends.
async fn run(
    mut live: Live,
    function: FunctionRef,
    began: SystemTime,
    log: Option<PathBuf>,
    mut marks: Marks,
) {
    if !live.begin().await {
        return;
    }
    let mut tail = Tail::default();
    let until = loop {
        // Its state first: all lines are written before the end is told. Another build's lines are not this one's.
        let build = live.app.backend.build(&function).filter(|build| build.started_at == began);
        let ended = build.is_none_or(|build| matches!(build.phase, Phase::Ready | Phase::Failed));
        let lines = match &log {
            Some(path) => tail.read(path).await,
            None => Vec::new(),
        };
        if !live.lines(marks.put(lines)).await || ended {
            break Until::End;
        }
        if let Next::End(until) = live.wait(LOOK_EVERY, false).await {
            break until;
        }
    };
    live.end(until).await;
}

/// A file of JSON lines that grows.
#[derive(Debug, Default)]
struct Tail {
    file: Option<File>,
    /// The beginning of a line whose end is not written yet.
    rest: Vec<u8>,
}

impl Tail {
    /// The lines that have come since the last time; none while the file is not there or can't be read.
    async fn read(&mut self, path: &FilePath) -> Vec<Line> {
        if self.file.is_none() {
            self.file = File::open(path).await.ok();
        }
        let Some(file) = &mut self.file else { return Vec::new() };
        if let Err(error) = file.read_to_end(&mut self.rest).await {
            tracing::warn!(error = %error, path = %path.display(), "failed to read the log of a build");
        }
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_reader_of_a_build_goes_on_behind_any_line_that_it_has_had() {
        let began = SystemTime::now();
        let line = |text: &str| Line {
            mark: None,
            invocation_id: None,
            time: "t".to_owned(),
            stream: "stdout".to_owned(),
            text: text.to_owned(),
            phase: None,
        };
        let read = |mark: Option<&str>, form| {
            let headers = mark.map(|m| (http::HeaderName::from_static("last-event-id"), m.parse().unwrap()));
            let mut marks = Marks::new(began, form, &HeaderMap::from_iter(headers));
            [marks.put([line("a"), line("b")]), marks.put([line("c")])].concat()
        };
        let all = read(None, Form::Events);
        for n in 0..all.len() {
            let rest = read(all[n].mark.as_deref(), Form::Events);
            assert_eq!(rest, all[n + 1..]);
        }
        assert_eq!(read(Some("1-1"), Form::Events), all, "of another build");
        assert_eq!(read(all[1].mark.as_deref(), Form::Text), all, "only events have places");
    }

    #[tokio::test]
    async fn lines_come_once_and_when_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut tail = Tail::default();
        assert!(tail.read(&path).await.is_empty());
        let mut file = std::fs::File::create(&path).unwrap();
        let line = |text: &str| format!(r#"{{"time":"t","stream":"stdout","text":"{text}"}}"#);
        let texts = |lines: Vec<Line>| lines.into_iter().map(|l| l.text).collect::<Vec<_>>();
        write!(file, "{}\n{}", line("a"), &line("b")[..9]).unwrap();
        assert_eq!(texts(tail.read(&path).await), ["a"]);
        writeln!(file, "{}\nnonsense\n{}", &line("b")[9..], line("c")).unwrap();
        assert_eq!(texts(tail.read(&path).await), ["b", "c"]);
        assert!(tail.read(&path).await.is_empty());
    }
}
