//! `/v1/namespaces/{ns}/functions/{name}/build[/logs]`.

use std::time::Duration;

use axum::extract::{Path, RawQuery, State};
use http::HeaderMap;
use serde_json::json;
use sless_backend::{BuildStatus, FunctionRef, Moment};
use sless_core::Phase;

use super::logs::{Form, Line, Live, Next, Until, follows};
use super::{Answer, Entered, Shared, Two, input, render};
use crate::app::App;
use crate::problem::Problem;

/// Between looks at the log of a build that runs: a file here, or a question to a cluster.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const ASK_EVERY: Duration = Duration::from_secs(1);

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
    let mut marks = Marks::new(&build.name, form, &headers);
    let ended = has_ended(&build);
    if follow && !ended {
        let (response, live) = Live::start(app, form);
        tokio::spawn(run(live, function, build.name, marks));
        return Ok(response);
    }
    let lines = marks.put(kept(&app, &function, &build.name, 0).await?);
    if marks.had > 0 && lines.is_empty() && ended {
        return Ok(Form::nothing_more());
    }
    Ok(form.whole(&lines))
}

fn has_ended(build: &BuildStatus) -> bool {
    matches!(build.phase, Phase::Ready | Phase::Failed)
}

/// The lines of a build so far, without the first `from` of them.
async fn kept(
    app: &App,
    function: &FunctionRef,
    build: &str,
    from: usize,
) -> Result<impl Iterator<Item = Line> + use<>, Problem> {
    let kept = async || {
        let lines = app.records.build_log(function, build).await?;
        Ok::<_, Problem>(lines.map(|lines| lines.into_iter().skip(from).collect::<Vec<_>>()))
    };
    // Whoever builds hands in the log of a build that is over, and then lets go of it.
    let lines = match app.backend.build_log(function, build, from).await {
        Ok(Some(lines)) => lines,
        Ok(None) => kept().await?.unwrap_or_default(),
        Err(error) => match kept().await? {
            Some(lines) => lines,
            None => return Err(error.into()),
        },
    };
    Ok(lines.into_iter().map(|line| Line {
        mark: None,
        invocation_id: None,
        time: line.time,
        stream: line.stream,
        text: line.text,
        phase: None,
    }))
}

/// Where readers of events go on when they come back: which build it is, and the number of the line.
struct Marks {
    build: String,
    next: usize,
    /// So many lines of this build the reader has had.
    had: usize,
}

impl Marks {
    fn new(build: &str, form: Form, headers: &HeaderMap) -> Self {
        let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.rsplit_once('-'));
        let had = last.filter(|(of, _)| form == Form::Events && *of == build);
        let had = had.and_then(|(_, line)| line.parse::<usize>().ok()).map_or(0, |n| n.saturating_add(1));
        Self { build: build.to_owned(), next: 0, had }
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
async fn run(mut live: Live, function: FunctionRef, name: String, mut marks: Marks) {
    if !live.begin().await {
        return;
    }
    let until = loop {
        // Its state first: all lines are written before the end is told. Another build's lines are not this one's.
        let build = live.app.backend.build(&function).filter(|build| build.name == name);
        let ended = build.as_ref().is_none_or(has_ended);
        let lines = match kept(&live.app, &function, &name, marks.next).await {
            Ok(lines) => marks.put(lines),
            // The next look may find it; at the end a reader must see that lines are missing.
            Err(problem) if ended => return live.fail(&problem).await,
            Err(_) => Vec::new(),
        };
        if !live.lines(lines).await || ended {
            break Until::End;
        }
        let pause = if live.app.upkeep.is_some() { LOOK_EVERY } else { ASK_EVERY };
        if let Next::End(until) = live.wait(pause, false).await {
            break until;
        }
    };
    live.end(until).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_of_a_build_goes_on_behind_any_line_that_it_has_had() {
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
            let mut marks = Marks::new("b-1", form, &HeaderMap::from_iter(headers));
            [marks.put([line("a"), line("b")]), marks.put([line("c")])].concat()
        };
        let all = read(None, Form::Events);
        for n in 0..all.len() {
            let rest = read(all[n].mark.as_deref(), Form::Events);
            assert_eq!(rest, all[n + 1..]);
        }
        assert_eq!(read(Some("b-2-1"), Form::Events), all, "of another build");
        assert_eq!(read(all[1].mark.as_deref(), Form::Text), all, "only events have places");
    }
}
