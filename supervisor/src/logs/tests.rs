use super::*;
use proptest::prelude::*;

const NONE: Masks = Masks::none();

/// What a log of these writes holds: lines as they came live, and the rest.
fn log(
    limit: usize,
    masks: &Masks,
    writes: &[(LogStream, &[u8])],
) -> (Vec<(LogStream, Vec<u8>)>, usize, Totals) {
    let (mut lines, mut log) = (Vec::new(), CallLog::new(limit));
    for (stream, bytes) in writes {
        log.feed(masks, *stream, bytes, 1, &mut |l| lines.push((l.stream, l.text.to_vec())));
    }
    let live = lines.len();
    let totals = log.finish(&mut |l| lines.push((l.stream, l.text.to_vec())));
    (lines, live, totals)
}

fn texts(bytes: &[u8]) -> Vec<String> {
    let (lines, _, _) = log(1 << 20, &NONE, &[(LogStream::Stdout, bytes)]);
    lines.into_iter().map(|(_, text)| String::from_utf8_lossy(&text).into_owned()).collect()
}

#[test]
fn lines_end_at_newlines_and_at_the_end() {
    assert_eq!(texts(b"a\nb\r\n\n\rc\nend"), ["a", "b", "", "\rc", "end"]);
    assert_eq!(texts(b""), [""; 0]);
    assert_eq!(texts(b"caf\xe9 \0 end\n"), ["caf\u{fffd} \0 end"]);
}

#[test]
fn long_lines_are_cut_between_characters() {
    let parts = texts("ü".repeat(20_000).as_bytes());
    assert_eq!(parts.iter().map(String::len).collect::<Vec<_>>(), [16_384, 16_384, 7_232]);
    let parts = texts(format!("x{}\n", "🌍".repeat(5_000)).as_bytes());
    assert_eq!(parts.iter().map(String::len).collect::<Vec<_>>(), [16_381, 3_620]);
    assert_eq!(texts(&[&[b'x'; MAX_LINE][..], b"\r\nnext"].concat()).len(), 2, "an end of a line is no part");
    assert_eq!(texts(&[b'\x80'; MAX_LINE + 1]).len(), 2);
}

#[test]
fn a_log_within_its_limit_is_whole_and_one_over_it_keeps_both_ends() {
    let line = [b'.'; 99];
    let text = |n: usize| [&line[..], b"\n"].concat().repeat(n);
    let (lines, live, totals) = log(40_000, &NONE, &[(LogStream::Stdout, &text(400))]);
    assert_eq!((lines.len(), live, totals.kept, totals.dropped), (400, 300, 40_000, 0));
    let (lines, live, totals) =
        log(40_000, &NONE, &[(LogStream::Stdout, &text(2_000)), (LogStream::Stderr, b"the end\n")]);
    assert_eq!((live, totals.kept + totals.dropped), (300, 200_008));
    assert_eq!(
        lines[300].1,
        format!("[sless: {} bytes of output are left out here]", totals.dropped).into_bytes()
    );
    assert_eq!(lines.len(), 300 + 1 + 99 + 1);
    assert_eq!(lines[400], (LogStream::Stderr, b"the end".to_vec()));
    assert_eq!((totals.stdout, totals.stderr), (200_000, 8));
}

#[test]
fn a_limit_of_zero_keeps_nothing_and_counts_all() {
    let (lines, _, totals) = log(0, &NONE, &[(LogStream::Stdout, b"one\ntwo\n")]);
    assert_eq!((lines.len(), totals.kept, totals.dropped), (0, 0, 8));
}

#[test]
fn a_value_across_a_cut_is_masked() {
    let masks = Masks::new(["s3cr3t-value"]).unwrap();
    let long = ["x".repeat(16_380).as_bytes(), b"s3cr3t-value\n"].concat();
    let (lines, _, _) =
        log(1 << 20, &masks, &[(LogStream::Stdout, &long[..16_384]), (LogStream::Stdout, &long[16_384..])]);
    assert_eq!(lines.concat_texts(), ["x".repeat(16_380).as_bytes(), b"***"].concat());
    let (lines, _, _) = log(
        1 << 20,
        &masks,
        &[(LogStream::Stdout, b"a s3cr3t"), (LogStream::Stderr, b"s3cr"), (LogStream::Stdout, b"-value b\n")],
    );
    assert_eq!(lines, [(LogStream::Stdout, b"a *** b".to_vec()), (LogStream::Stderr, b"s3cr".to_vec())]);
}

trait ConcatTexts {
    fn concat_texts(&self) -> Vec<u8>;
}

impl ConcatTexts for Vec<(LogStream, Vec<u8>)> {
    fn concat_texts(&self) -> Vec<u8> {
        self.iter().flat_map(|(_, text)| text.clone()).collect()
    }
}

#[test]
fn the_output_of_the_import_comes_first_and_is_marked() {
    let mut init = InitLog::new(1 << 20);
    init.feed(&NONE, LogStream::Stdout, b"loading\nno newline", 1);
    let mut lines = Vec::new();
    let mut log = init.into_call(&mut |l| lines.push((l.text.to_vec(), l.init)));
    log.feed(&NONE, LogStream::Stdout, b"called\n", 2, &mut |l| lines.push((l.text.to_vec(), l.init)));
    let totals = log.finish(&mut |_| panic!("all was live"));
    assert_eq!(
        lines,
        [(b"loading".to_vec(), true), (b"no newline".to_vec(), true), (b"called".to_vec(), false)]
    );
    assert_eq!(totals.kept, 25);
}

proptest! {
    #[test]
    fn lines_do_not_depend_on_how_a_stream_is_cut(
        pieces in proptest::collection::vec((prop_oneof![Just("\n"), Just("\r\n"), Just("x"), Just("üü"), Just("\r"), Just("🌍")], 1usize..9_000), 1..8),
        cuts in proptest::collection::vec(1usize..20_000, 1..20),
    ) {
        let text: String = pieces.iter().map(|(s, n)| if s.contains('\n') { s.repeat(n % 3) } else { s.repeat(*n) }).collect();
        let whole = log(1 << 30, &NONE, &[(LogStream::Stdout, text.as_bytes())]);
        let (mut writes, mut rest, mut cuts) = (Vec::new(), text.as_bytes(), cuts.iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            writes.push((LogStream::Stdout, now));
            rest = later;
        }
        let cut = log(1 << 30, &NONE, &writes);
        prop_assert!(whole.0.iter().all(|(_, t)| t.len() <= MAX_LINE && std::str::from_utf8(t).is_ok()));
        prop_assert_eq!(&whole.0, &cut.0);
        // Nothing but the ends of lines is missing.
        let kept = String::from_utf8(whole.0.concat_texts()).unwrap();
        prop_assert_eq!(kept.replace('\r', ""), text.replace(['\n', '\r'], ""));
    }

    #[test]
    fn what_is_kept_and_what_is_dropped_is_what_was_written(
        limit in 0usize..3_000,
        writes in proptest::collection::vec((any::<bool>(), "[a-z\n\r]{0,300}"), 0..60),
    ) {
        let writes: Vec<_> = writes.iter().map(|(out, text)| (if *out { LogStream::Stdout } else { LogStream::Stderr }, text.as_bytes())).collect();
        let (lines, live, totals) = log(limit, &NONE, &writes);
        let written: usize = writes.iter().map(|(_, b)| b.len()).sum();
        prop_assert_eq!(totals.kept + totals.dropped, written as u64);
        prop_assert_eq!(totals.stdout + totals.stderr, written as u64);
        prop_assert!(totals.kept <= limit as u64);
        prop_assert!(totals.dropped == 0 || written > limit, "a log within its limit is whole");
        let whole = log(1 << 30, &NONE, &writes).0;
        prop_assert_eq!(&lines[..live], &whole[..live], "the beginning");
        let tail = lines.len() - live - usize::from(totals.dropped > 0 && limit > 0);
        prop_assert_eq!(&lines[lines.len() - tail..], &whole[whole.len() - tail..], "the end");
    }
}
