//! Tests of invalid frames, and of the bytes of every valid one.

use futures::io::{AsyncReadExt, AsyncWriteExt};
use ostraca::net::frame::{
    self, FRAME_BYTES, Field, Frame, FrameParseResult, FrameViolation, Header, NAME_BYTES_MAX, kind,
};
use proptest::prelude::*;

use super::*;

fn framed(kind: u8, contents: &[u8]) -> Vec<u8> {
    [&frame::begin(kind, contents.len())[..], contents].concat()
}

fn first(total: u32, piece: &[u8]) -> Vec<u8> {
    framed(kind::FIRST, &[&total.to_be_bytes()[..], &[0], piece].concat())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Result of a reader for these bytes and then the end of the stream, and the accepted messages.
async fn feed(bytes: &[u8], limits: &NetLimits) -> (LaneEnd, Arc<Inbox>, InboundLane) {
    let (inbound, inbox) = (InboundLane::new(), Inbox::new());
    let turn = inbound.take_over(1 << 32 | 1, 1).await.expect("the first");
    let (mut there, here) = pipe(Nature::default());
    let reader = read(here, turn, limits, Arc::clone(&inbox) as _);
    let _ = there.write_all(bytes).await; // fails once the reader has ended
    there.close().await.expect("a pipe closes");
    (ended(reader).await, inbox, inbound)
}

fn violation(ended: LaneEnd) -> FrameViolation {
    match ended {
        LaneEnd::Violation(violation) => violation,
        other => panic!("a violation, not {other:?}"),
    }
}

// ── Golden bytes ──

/// These bytes are the wire format: a change requires a higher `PROTOCOL_VERSION`.
#[tokio::test]
async fn every_kind_of_frame_has_these_bytes() {
    let limits = NetLimits { frame_bytes_max: 8_192, ..NetLimits::default() };
    let lane = lane(&limits);
    lane.send(&[], b"hi").expect("there is room");
    lane.send(&["order", "order"], b"").expect("there is room");
    lane.send(&["order"], b"x").expect("there is room");
    lane.send(&["k"], &[b'z'; 20_000]).expect("there is room");
    let (there, mut here) = pipe(Nature { capacity: 1 << 20, ..Nature::default() });
    let writer = tokio::spawn(writer::run(there, lane.clone(), 0));
    let mut got = vec![0; 8 + 19 + 9 + 20_000 + 3 * 5 + 4 + 8];
    here.read_exact(&mut got).await.expect("all of it comes");
    let (short, long) = got.split_at(36);
    assert_eq!(hex(&short[..8]), "0000000401006869");
    assert_eq!(hex(&short[8..27]), "0000000f0102fffe000000056f726465720000");
    assert_eq!(hex(&short[27..]), "000000050101000078");
    let room = 8_192 - 5 - 4 - 8;
    assert_eq!(hex(&long[..17]), "00001ffc0200004e2001fffe000100016b");
    let second = &long[17 + room..];
    assert_eq!(hex(&second[..5]), "00001ffc03");
    let third = &second[5 + 8_192 - 5..];
    assert_eq!(hex(&third[..5]), format!("{:08x}04", 20_000 - room - (8_192 - 5) + 1));
    assert!(third[5..].iter().all(|&byte| byte == b'z'));

    assert_eq!(hex(&frame::ack(0x0102)), "00000009050000000000000102");
    here.write_all(&frame::ack(4)).await.expect("it is read");
    lane.finish();
    let mut end = Vec::new();
    here.read_to_end(&mut end).await.expect("the writer closes");
    assert_eq!(hex(&end), "0000000106");
    assert!(matches!(ended(writer).await, LaneEnd::Finished));
    let mut literal = Vec::new();
    frame::put_field(&mut literal, Field::Literal("ab"));
    assert_eq!(hex(&literal), "ffff00026162");
}

// ── Invalid frames ──

#[tokio::test]
async fn known_failure_23_the_length_prefix_of_a_frame_is_not_trusted() {
    let limits = NetLimits::default();
    for claimed in [0_u32, 65_533, 1 << 20, u32::MAX] {
        // Nothing follows the length, and the stream stays open: the announced length alone is
        // refused.
        let (inbound, inbox) = (InboundLane::new(), Inbox::new());
        let turn = inbound.take_over(1, 1).await.expect("the first");
        let (mut there, here) = pipe(Nature::default());
        let reader = read(here, turn, &limits, inbox);
        there.write_all(&claimed.to_be_bytes()).await.expect("there is room");
        let max = 65_532;
        let expected = FrameViolation::FrameLength { claimed: claimed as usize, max };
        assert_eq!(violation(ended(reader).await), expected);
    }
    let claims = first(u32::MAX, b"a");
    let (end, _, _) = feed(&claims, &limits).await;
    let expected =
        FrameViolation::MessageLength { claimed: u32::MAX as usize, max: limits.message_bytes_max };
    assert_eq!(violation(end), expected);
}

#[tokio::test]
async fn endless_continuation_is_refused_at_its_length() {
    let limits = NetLimits { message_bytes_max: 100_000, ..NetLimits::default() };
    let mut bytes = first(100_000, &[1; 10]);
    for _ in 0..100 {
        bytes.extend(framed(kind::CONTINUE, &[1; 10_000]));
    }
    let (end, inbox, _) = feed(&bytes, &limits).await;
    assert_eq!(violation(end), FrameViolation::Pieces("one is empty, or they are too many"));
    assert_eq!(inbox.len(), 0);

    let mut bytes = first(100_000, &[1; 10]);
    bytes.extend(framed(kind::CONTINUE, &[]).repeat(1_000));
    let (end, _, _) = feed(&bytes, &limits).await;
    assert_eq!(violation(end), FrameViolation::Pieces("one is empty, or they are too many"));
}

#[tokio::test]
async fn invalid_piece_sequences_are_refused() {
    let limits = NetLimits::default();
    let (start, message) = (first(10, &[1; 4]), framed(kind::MESSAGE, &[0]));
    let cases = [
        (framed(kind::CONTINUE, &[1]), "the first is missing"),
        (framed(kind::LAST, &[1]), "the first is missing"),
        ([start.clone(), message].concat(), "another message among them"),
        ([start.clone(), start.clone()].concat(), "another message among them"),
        ([start.clone(), framed(kind::LAST, &[1; 5])].concat(), "they end early"),
        (
            [start.clone(), framed(kind::LAST, &[1; 7])].concat(),
            "one is empty, or they are too many",
        ),
        ([start, frame::END.to_vec()].concat(), "the end among them"),
    ];
    for (bytes, why) in cases {
        let (end, inbox, _) = feed(&bytes, &limits).await;
        assert_eq!(violation(end), FrameViolation::Pieces(why));
        assert_eq!(inbox.len(), 0);
    }
}

#[tokio::test]
async fn invalid_frame_costs_only_the_substream() {
    let limits = NetLimits::default();
    let long_name = [&[1, 0xff, 0xff, 0x04, 0x01][..], &[b'x'; NAME_BYTES_MAX + 1]].concat();
    let cases = [
        (framed(0, &[]), FrameViolation::Kind(0)),
        (framed(7, b"later"), FrameViolation::Kind(7)),
        (framed(kind::MESSAGE, &[]), FrameViolation::Header("it is missing")),
        (framed(kind::MESSAGE, &[5, 0, 0]), FrameViolation::Header("it has too many names")),
        (framed(kind::MESSAGE, &[1, 0]), FrameViolation::Header("it ends early")),
        (framed(kind::MESSAGE, &[1, 0, 0]), FrameViolation::Header("an unknown number")),
        (
            framed(kind::MESSAGE, &[1, 0xff, 0xff, 0, 9, b'a']),
            FrameViolation::Header("it ends early"),
        ),
        (
            framed(kind::MESSAGE, &[1, 0xff, 0xff, 0, 1, 0xff]),
            FrameViolation::Header("a name is not UTF-8"),
        ),
        (framed(kind::MESSAGE, &long_name), FrameViolation::Header("a name is too long")),
        (framed(kind::FIRST, &[0, 0, 0]), FrameViolation::Contents(kind::FIRST)),
        (framed(kind::END, &[1]), FrameViolation::Contents(kind::END)),
        (framed(kind::ACK, &[1]), FrameViolation::Contents(kind::ACK)),
        (frame::ack(1).to_vec(), FrameViolation::Direction(kind::ACK)),
    ];
    let before = framed(kind::MESSAGE, b"\0before");
    for (bytes, expected) in cases {
        let (end, inbox, inbound) = feed(&[before.clone(), bytes].concat(), &limits).await;
        assert_eq!(violation(end), expected);
        assert_eq!(inbox.bodies(), [b"before"]);
        let next = inbound.take_over(1 << 32 | 2, 2).await.expect("the lane goes on");
        assert_eq!(next.accepted(), 1);
    }
}

#[tokio::test]
async fn kinds_of_later_releases_are_counted_and_skipped() {
    let bytes = [
        framed(0x80, b"news"),
        framed(kind::MESSAGE, b"\0one"),
        first(3, b"t"),
        framed(0xff, &[9; 60_000]),
        framed(kind::LAST, b"wo"),
        frame::END.to_vec(),
    ];
    let (end, inbox, inbound) = feed(&bytes.concat(), &NetLimits::default()).await;
    assert!(matches!(end, LaneEnd::Finished), "{end:?}");
    assert_eq!(inbox.bodies(), [b"one", b"two"]);
    assert_eq!(inbound.stats().skipped, 2);
}

#[tokio::test]
async fn cut_within_a_frame_keeps_whole_messages() {
    let parts = [
        framed(kind::MESSAGE, b"\x01\xff\xfe\0\0\0\x03abcone"),
        [first(3, b"t"), framed(kind::LAST, b"wo")].concat(),
        framed(kind::MESSAGE, b"\x01\0\0three"),
    ];
    let ends: Vec<usize> = (1..=3).map(|n| parts[..n].concat().len()).collect();
    let all = parts.concat();
    for len in 0..=all.len() {
        let (end, inbox, inbound) = feed(&all[..len], &NetLimits::default()).await;
        assert!(matches!(end, LaneEnd::Broken(_)), "{end:?}");
        let whole = ends.iter().filter(|&&end| end <= len).count();
        assert_eq!(inbox.len(), whole, "of the first {len} bytes");
        assert_eq!(inbound.stats().accepted, whole as u64);
    }
}

#[tokio::test]
async fn invalid_acks_and_wrong_directions_are_refused() {
    let cases = [
        (
            [frame::ack(1), frame::ack(0)].concat(),
            FrameViolation::AckBackwards { before: 1, accepted: 0 },
        ),
        (frame::ack(3).to_vec(), FrameViolation::AckBeyond { sent: 2, accepted: 3 }),
        (frame::END.to_vec(), FrameViolation::Direction(kind::END)),
        (framed(kind::MESSAGE, &[0]), FrameViolation::Direction(kind::MESSAGE)),
        (first(1, &[]), FrameViolation::Direction(kind::FIRST)),
        (framed(kind::CONTINUE, &[1]), FrameViolation::Direction(kind::CONTINUE)),
        (framed(kind::LAST, &[1]), FrameViolation::Direction(kind::LAST)),
        (framed(9, &[]), FrameViolation::Kind(9)),
        (
            vec![0xff; 4],
            FrameViolation::FrameLength { claimed: u32::MAX as usize, max: FRAME_BYTES - 4 },
        ),
    ];
    for (bytes, expected) in cases {
        let lane = lane(&NetLimits::default());
        lane.send(&[], b"one").expect("there is room");
        lane.send(&[], b"two").expect("there is room");
        let (there, mut here) = pipe(Nature::default());
        let writer = tokio::spawn(writer::run(there, lane.clone(), 0));
        let mut got = [0; 18];
        here.read_exact(&mut got).await.expect("both come");
        let skipped = framed(0x99, &[3; 5_000]);
        here.write_all(&[skipped, bytes].concat()).await.expect("there is room");
        assert_eq!(violation(ended(writer).await), expected);
    }
}

// ── Arbitrary bytes ──

fn anything() -> impl Strategy<Value = Vec<u8>> {
    let frame = (
        prop_oneof![Just(1_u8), Just(2), Just(3), Just(4), Just(5), Just(6), any::<u8>()],
        prop::collection::vec(prop_oneof![3 => 0..3_u8, 1 => any::<u8>()], 0..40),
    );
    let frames = prop::collection::vec(frame.prop_map(|(kind, rest)| framed(kind, &rest)), 0..12);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..400),
        frames.prop_map(|frames| frames.concat()),
    ]
}

fn on_a_runtime<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn arbitrary_bytes_end_a_reader_without_panic(bytes in anything()) {
        on_a_runtime(async {
            let limits = NetLimits {
                message_bytes_max: 100,
                ..NetLimits::default()
            };
            let (_, inbox, inbound) = feed(&bytes, &limits).await;
            assert!(inbox.bodies().iter().all(|body| body.len() <= 100));
            let next = inbound.take_over(1 << 32 | 2, 1).await.expect("the lane goes on");
            assert_eq!(next.accepted(), inbox.len() as u64);
        });
    }

    #[test]
    fn arbitrary_bytes_end_a_writer_without_panic(bytes in anything()) {
        on_a_runtime(async {
            let lane = lane(&NetLimits::default());
            lane.send(&["a"], b"one").expect("there is room");
            let (there, mut here) = pipe(Nature::default());
            let writer = tokio::spawn(writer::run(there, lane.clone(), 0));
            tokio::task::yield_now().await;
            let _ = here.write_all(&bytes).await;
            drop(here);
            let end = ended(writer).await;
            assert!(matches!(end, LaneEnd::Broken(_) | LaneEnd::Violation(_)), "{end:?}");
            let stats = lane.stats();
            assert_eq!(stats.unacknowledged + stats.acknowledged, 1);
        });
    }

    #[test]
    fn frame_decodes_alike_from_any_prefix_that_holds_it(bytes in anything()) {
        let whole = frame::cut(&bytes, FRAME_BYTES);
        for len in 0..bytes.len() {
            match frame::cut(&bytes[..len], FRAME_BYTES) {
                Ok(FrameParseResult::Short) => {}
                other => prop_assert_eq!(other, whole),
            }
        }
        if let Ok(FrameParseResult::Frame(Frame::Message { header, body }, len)) = whole {
            prop_assert_eq!(4 + 1 + header.as_bytes().len() + body.len(), len);
        }
    }

    #[test]
    fn encoded_header_decodes_to_the_same_fields(
        names in prop::collection::vec((0..3_u8, 0..1_024_u16, ".{0,20}"), 0..=4),
        body in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let fields: Vec<Field<'_>> = names.iter().map(|(form, number, name)| match form {
            0 => Field::Number(*number),
            1 => Field::Define(*number, name),
            _ => Field::Literal(name),
        }).collect();
        let mut bytes = vec![fields.len() as u8];
        for field in &fields {
            frame::put_field(&mut bytes, *field);
        }
        bytes.extend(&body);
        let (header, rest) = Header::split(&bytes).expect("it was just made");
        prop_assert_eq!(header.fields().collect::<Vec<_>>(), fields);
        prop_assert_eq!(rest, &body[..]);
    }
}
