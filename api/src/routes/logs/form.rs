//! The three forms of a log: lines, a JSON list, events. Each can be written line by line, as lines come.

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::HeaderMap;
use http::StatusCode;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::routes::input;

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Where a reader that comes back goes on; `None` where it could not.
    #[serde(skip)]
    pub(crate) mark: Option<String>,
    /// In a function's log.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub(crate) invocation_id: Option<Uuid>,
    pub(crate) time: String,
    pub(crate) stream: String,
    pub(crate) text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<String>,
}

/// How a log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
    Events,
}

impl Form {
    /// The first of the three that the caller names; a line a line for one who does not care.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let kinds = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let kinds = kinds.flat_map(|value| value.split(','));
        let mut kinds = kinds.map(|part| part.split(';').next().unwrap_or_default().trim());
        let named = kinds.find_map(|kind| match kind {
            "text/plain" => Some(Self::Text),
            "application/json" => Some(Self::Json),
            "text/event-stream" => Some(Self::Events),
            _ => None,
        });
        named.unwrap_or(Self::Text)
    }

    /// Where the caller left off, in the form that has such places.
    pub(super) fn comes_back<P>(self, place: Option<P>) -> Option<P> {
        place.filter(|_| self == Self::Events)
    }

    pub(crate) fn begin(self) -> &'static str {
        if self == Self::Json { r#"{"items":["# } else { "" }
    }

    pub(crate) fn line(self, line: &Line, first: bool) -> String {
        match self {
            Self::Text => format!("{}\n", line.text),
            Self::Json => format!("{}{}", if first { "" } else { "," }, json(line)),
            Self::Events => match &line.mark {
                Some(mark) => format!("id: {mark}\ndata: {}\n\n", json(line)),
                None => format!("data: {}\n\n", json(line)),
            },
        }
    }

    pub(crate) fn end(self) -> &'static str {
        if self == Self::Json { r#"],"next":null}"# } else { "" }
    }

    /// What keeps a silent connection open, where the form has room for it.
    pub(crate) fn sign_of_life(self) -> Option<Bytes> {
        (self == Self::Events).then(|| Bytes::from_static(b": nothing new\n\n"))
    }

    pub(crate) fn response(self, body: Body) -> Response {
        let mut response = Response::new(body);
        let kind = match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Json => "application/json",
            Self::Events => "text/event-stream",
        };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if self == Self::Events {
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        }
        response
    }

    /// What tells a reader of events that has had everything not to come back (HTML's `EventSource`).
    pub(crate) fn nothing_more() -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    }

    /// A log that is there as a whole.
    pub(crate) fn whole(self, lines: &[Line]) -> Response {
        let mut text = self.begin().to_owned();
        for (n, line) in lines.iter().enumerate() {
            text.push_str(&self.line(line, n == 0));
        }
        text.push_str(self.end());
        self.response(Body::from(text))
    }
}

fn json(line: &Line) -> String {
    // Texts and a number always have a JSON form.
    serde_json::to_string(line).unwrap_or_default()
}

/// Whether the caller wants what is still to come.
pub(crate) fn follows(params: &input::Params) -> Result<bool, crate::problem::Problem> {
    match params.get("follow") {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(crate::problem::Problem::invalid("follow", "follow: must be true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        let (time, stream) = ("2026-01-01T00:00:00Z".to_owned(), "stdout".to_owned());
        Line { mark: None, invocation_id: None, time, stream, text: text.to_owned(), phase: None }
    }

    #[test]
    fn the_form_is_the_first_that_the_caller_names() {
        for (accept, form) in [
            ("", Form::Text),
            ("*/*", Form::Text),
            ("application/json", Form::Json),
            ("text/html, text/event-stream;q=0.5, text/plain", Form::Events),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
            assert_eq!(Form::of(&headers), form, "{accept}");
        }
    }

    #[test]
    fn each_form_written_line_by_line_is_whole() {
        let lines = [line("a\nb"), line("\"c\"")];
        let written = |form: Form| {
            let texts: String = lines.iter().enumerate().map(|(n, l)| form.line(l, n == 0)).collect();
            format!("{}{texts}{}", form.begin(), form.end())
        };
        assert_eq!(written(Form::Text), "a\nb\n\"c\"\n");
        let list: serde_json::Value = serde_json::from_str(&written(Form::Json)).unwrap();
        assert_eq!((&list["items"][0]["text"], &list["next"]), (&"a\nb".into(), &serde_json::Value::Null));
        let events = written(Form::Events);
        let datas: Vec<Line> = events
            .split_terminator("\n\n")
            .map(|e| serde_json::from_str(&e["data: ".len()..]).unwrap())
            .collect();
        assert_eq!(datas, lines);
        let marked = Line { mark: Some("1-2-3".to_owned()), ..line("x") };
        assert!(Form::Events.line(&marked, true).starts_with("id: 1-2-3\ndata: {\"time\""));
        assert_eq!(Form::Text.line(&marked, true), "x\n");
    }
}
