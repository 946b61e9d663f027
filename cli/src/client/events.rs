//! Server-sent events, as far as sless sends them: the `data` of each event.

/// Takes the bytes of a stream as they come, gives each event's data once it is whole.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// A line that has not ended.
    rest: Vec<u8>,
    /// The data lines of an event that has not ended.
    data: Option<String>,
}

impl Events {
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            self.rest.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.rest);
                let line = String::from_utf8_lossy(&line);
                self.line(line.trim_end_matches(['\n', '\r']), &mut whole);
            }
        }
        whole
    }

    fn line(&mut self, line: &str, whole: &mut Vec<String>) {
        if line.is_empty() {
            whole.extend(self.data.take());
        } else if let Some(value) = line.strip_prefix("data:") {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut self.data {
                None => self.data = Some(value.to_owned()),
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
            }
        }
        // A comment (":", which keeps the connection open), or a field that we have no use for.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_whole_however_they_are_cut() {
        let stream = ": hello\n\nid: 1\ndata: {\"a\": \"ä\"}\n\ndata:x\r\ndata: y\r\n\r\n: ping\n\nevent: end\n\ndata: cut";
        for size in 1..stream.len() {
            let mut events = Events::default();
            let got: Vec<_> = stream.as_bytes().chunks(size).flat_map(|piece| events.feed(piece)).collect();
            assert_eq!(got, ["{\"a\": \"ä\"}", "x\ny"], "in pieces of {size}");
        }
    }
}
