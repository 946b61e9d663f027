use super::*;
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from)
}

fn usage() -> impl Strategy<Value = Usage> {
    (any::<u32>(), any::<u32>(), any::<bool>(), any::<bool>())
        .prop_map(|(cpu_us, max_rss_kib, spawned, retire)| Usage { cpu_us, max_rss_kib, spawned, retire })
}

fn from_worker() -> impl Strategy<Value = FromWorker> {
    prop_oneof![
        bytes().prop_map(|head| FromWorker::Ready { head }),
        bytes().prop_map(|head| FromWorker::InitFailed { head }),
        (any::<u32>(), usage(), any::<u16>(), bytes(), bytes()).prop_map(
            |(call, usage, status, head, body)| FromWorker::Result { call, usage, status, head, body }
        ),
        (any::<u32>(), any::<u16>(), bytes()).prop_map(|(call, status, head)| FromWorker::Stream {
            call,
            status,
            head
        }),
        (any::<u32>(), bytes()).prop_map(|(call, data)| FromWorker::Chunk { call, data }),
        (any::<u32>(), usage()).prop_map(|(call, usage)| FromWorker::End { call, usage }),
        (any::<u32>(), usage(), bytes()).prop_map(|(call, usage, head)| FromWorker::Error {
            call,
            usage,
            head
        }),
        (any::<u32>(), usage()).prop_map(|(call, usage)| FromWorker::Skipped { call, usage }),
        (any::<u32>(), any::<bool>(), bytes()).prop_map(|(call, out, data)| FromWorker::Log {
            call,
            stream: if out { LogStream::Stdout } else { LogStream::Stderr },
            data
        }),
        any::<u32>().prop_map(|call| FromWorker::Wait { call }),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_however_it_is_cut(frames in proptest::collection::vec(from_worker(), 1..8), step in 1usize..40) {
        let mut wire = BytesMut::new();
        for frame in &frames {
            frame.encode(&mut wire);
        }
        let (mut decoder, mut buf, mut got) = (Decoder::new(1 << 20), BytesMut::new(), Vec::new());
        for piece in wire.chunks(step) {
            buf.extend_from_slice(piece);
            while let Some(frame) = decoder.decode(&mut buf).unwrap() {
                got.push(frame);
            }
        }
        prop_assert_eq!(got, frames);
        prop_assert!(buf.is_empty());
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut buf = BytesMut::from(&bytes[..]);
        let mut decoder = Decoder::new(64);
        while let Ok(Some(_)) = decoder.decode(&mut buf) {}
        let mut buf = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = ToWorker::decode(&mut buf) {}
    }

    #[test]
    fn invoke_survives_the_wire(call: u32, waiting: bool, pair: u16, head in bytes(), body in bytes()) {
        let frame = ToWorker::Invoke { call, event: EventKind::Form, waiting, pair, head, body };
        let mut wire = BytesMut::new();
        frame.encode(&mut wire);
        prop_assert_eq!(ToWorker::decode(&mut wire).unwrap(), Some(frame));
    }
}

#[test]
fn an_oversized_frame_is_announced_at_its_header_and_never_buffered() {
    let (mut decoder, mut buf) = (Decoder::new(10), BytesMut::new());
    let big = FromWorker::Chunk { call: 3, data: Bytes::from(vec![7; 100]) };
    let mut wire = BytesMut::new();
    big.encode(&mut wire);
    FromWorker::Wait { call: 4 }.encode(&mut wire);
    buf.extend_from_slice(&wire[..HEADER_LEN]);
    assert_eq!(
        decoder.decode(&mut buf),
        Ok(Some(FromWorker::Oversized { kind: kind::CHUNK, call: 3, length: 100 }))
    );
    for piece in wire[HEADER_LEN..].chunks(7) {
        buf.extend_from_slice(piece);
        if let Some(frame) = decoder.decode(&mut buf).unwrap() {
            assert_eq!(frame, FromWorker::Wait { call: 4 });
            return;
        }
        assert!(buf.len() <= HEADER_LEN, "the payload is not kept");
    }
    panic!("the next frame was lost");
}

#[test]
fn kinds_above_127_are_skipped_and_others_are_fatal() {
    let mut buf = BytesMut::new();
    put_header(&mut buf, 200, 0, 3);
    buf.put_slice(b"abc");
    FromWorker::Wait { call: 1 }.encode(&mut buf);
    assert_eq!(Decoder::new(10).decode(&mut buf), Ok(Some(FromWorker::Wait { call: 1 })));
    put_header(&mut buf, 100, 0, 0);
    assert_eq!(Decoder::new(10).decode(&mut buf), Err(FrameError::UnknownKind { kind: 100 }));
}

#[test]
fn garbage_that_looks_like_a_long_unknown_frame_ends_the_connection() {
    let mut buf = BytesMut::new();
    put_header(&mut buf, 200, 0, 11);
    assert!(matches!(Decoder::new(10).decode(&mut buf), Err(FrameError::Malformed { .. })));
}
