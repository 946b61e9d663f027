//! Where a reader of events left off: the `id` of the last one that it has had, as it sends it in `Last-Event-ID` when it comes back.

use http::HeaderMap;

use super::form::Line;
use crate::store::LogRow;

/// Of one invocation: a line of one of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OfInvocation {
    pub(crate) attempt: u32,
    pub(crate) seq: u32,
    line: usize,
}

/// Of a function: a line of a row, among all that are kept, or the end of a row (so that nothing of it is left).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OfFunction {
    row: i64,
    line: Option<usize>,
}

/// The numbers of a `Last-Event-ID`; one that is none of ours counts as none.
fn numbers(headers: &HeaderMap) -> Option<Vec<u64>> {
    let text = headers.get("last-event-id")?.to_str().ok()?;
    text.split('-').map(|part| part.parse().ok()).collect()
}

impl OfInvocation {
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let [attempt, seq, line] = numbers(headers)?[..] else { return None };
        Some(Self {
            attempt: attempt.try_into().ok()?,
            seq: seq.try_into().ok()?,
            line: line.try_into().ok()?,
        })
    }

    /// The rows are asked for from the one on in which it stands.
    pub(crate) fn before(self) -> Option<u32> {
        self.seq.checked_sub(1)
    }

    /// The lines of rows, those up to `last` left out.
    pub(crate) fn lines(rows: &[LogRow], attempt: u32, last: Option<Self>) -> Vec<Line> {
        let last = last.filter(|last| last.attempt == attempt);
        let lines = rows.iter().flat_map(|row| {
            let lines = super::parsed(&row.lines).into_iter().enumerate();
            lines.map(|(line, what)| (Self { attempt, seq: row.seq, line }, what))
        });
        let fresh = lines
            .filter(|(place, _)| last.is_none_or(|last| (last.seq, last.line) < (place.seq, place.line)));
        fresh.map(|(place, line)| Line { mark: Some(place.mark()), ..line }).collect()
    }

    fn mark(self) -> String {
        format!("{}-{}-{}", self.attempt, self.seq, self.line)
    }
}

impl OfFunction {
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        match numbers(headers)?[..] {
            [row] => Some(Self { row: row.try_into().ok()?, line: None }),
            [row, line] => Some(Self { row: row.try_into().ok()?, line: Some(line.try_into().ok()?) }),
            _ => None,
        }
    }

    /// The end of the row `row`.
    pub(crate) fn end(row: i64) -> Self {
        Self { row, line: None }
    }

    /// The rows beyond this are asked for.
    pub(crate) fn row(self) -> i64 {
        if self.line.is_some() { self.row - 1 } else { self.row }
    }

    /// The lines of a row, those up to `last` left out.
    pub(crate) fn lines(row: &LogRow, last: Self) -> Vec<Line> {
        let had = if last.row == row.place { last.line } else { None };
        let lines = super::parsed(&row.lines).into_iter().enumerate();
        let fresh = lines.filter(|(line, _)| had.is_none_or(|had| *line > had));
        fresh
            .map(|(line, what)| Line {
                mark: Some(Self { row: row.place, line: Some(line) }.mark()),
                invocation_id: Some(row.id),
                ..what
            })
            .collect()
    }

    pub(crate) fn mark(self) -> String {
        match self.line {
            Some(line) => format!("{}-{line}", self.row),
            None => self.row.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn row(place: i64, seq: u32, texts: &[&str]) -> LogRow {
        let line = |text: &&str| format!(r#"{{"time":"t","stream":"stdout","text":"{text}"}}"#);
        let lines = format!("[{}]", texts.iter().map(line).collect::<Vec<_>>().join(","));
        LogRow { place, id: Uuid::nil(), seq, lines }
    }

    fn back(mark: &str) -> HeaderMap {
        HeaderMap::from_iter([(http::HeaderName::from_static("last-event-id"), mark.parse().unwrap())])
    }

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn a_reader_of_an_invocation_goes_on_behind_any_line_that_it_has_had() {
        let rows = [row(7, 1, &["a", "b"]), row(9, 3, &["c"])];
        let all = OfInvocation::lines(&rows, 2, None);
        assert_eq!(texts(&all), ["a", "b", "c"]);
        for (n, line) in all.iter().enumerate() {
            let last = OfInvocation::of(&back(line.mark.as_deref().unwrap())).unwrap();
            assert!(last.before().is_none_or(|before| before < last.seq));
            assert_eq!(texts(&OfInvocation::lines(&rows, 2, Some(last))), ["a", "b", "c"][n + 1..]);
            assert_eq!(OfInvocation::lines(&rows, 3, Some(last)).len(), 3, "another attempt is another log");
        }
    }

    #[test]
    fn a_reader_of_a_function_goes_on_behind_any_line_that_it_has_had() {
        let rows = [row(7, 1, &["a", "b"]), row(9, 1, &["c"])];
        let from = |last: OfFunction| {
            let beyond = rows.iter().filter(move |row| row.place > last.row());
            beyond.flat_map(move |row| OfFunction::lines(row, last)).collect::<Vec<_>>()
        };
        let all = from(OfFunction::end(0));
        assert_eq!(texts(&all), ["a", "b", "c"]);
        for (n, line) in all.iter().enumerate() {
            let last = OfFunction::of(&back(line.mark.as_deref().unwrap())).unwrap();
            assert_eq!(texts(&from(last)), ["a", "b", "c"][n + 1..]);
        }
        assert_eq!(texts(&from(OfFunction::of(&back(&OfFunction::end(7).mark())).unwrap())), ["c"]);
    }

    #[test]
    fn what_is_no_place_of_ours_counts_as_none() {
        for odd in ["", "x", "1-2-3-4", "-1", "1-x-2", "99999999999999999999"] {
            assert_eq!((OfInvocation::of(&back(odd)), OfFunction::of(&back(odd))), (None, None), "{odd}");
        }
        assert_eq!(OfInvocation::of(&HeaderMap::new()), None);
    }
}
