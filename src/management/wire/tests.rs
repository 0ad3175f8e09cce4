//! Encoding of requests and answers: golden bytes, compatibility with other releases, invalid
//! bytes.

use super::*;

fn packed(value: &impl Serialize) -> Packed {
    Packed::new(value).expect("it has a form")
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn requests() -> Vec<AdminRequest> {
    let level = ConsistencyLevel::Majority { within_ms: 3_000 };
    let value = packed(&"on");
    vec![
        AdminRequest::Members,
        AdminRequest::Shards { entity_type: text("cart"), within_ms: 5 },
        AdminRequest::Get { key: text("k"), level: ConsistencyLevel::Local },
        AdminRequest::Explain {
            entity_type: text("cart"),
            about: ExplainSubject::Entity(text("e")),
            within_ms: 5,
        },
        AdminRequest::Set { key: text("k"), value, level },
        AdminRequest::Watch { key: text("k") },
        AdminRequest::Keys { prefix: text("a"), after: None, limit: 7 },
        AdminRequest::Delete { key: text("k"), level: ConsistencyLevel::Local },
        AdminRequest::Leave { node: None },
        AdminRequest::Down { node: text("n") },
        AdminRequest::PrepareForShutdown,
        AdminRequest::Drain { undo: false, within_ms: 5 },
        AdminRequest::StopShards { entity_type: text("t"), shards: vec![7], within_ms: 5 },
        AdminRequest::Rebalance { entity_type: text("t") },
        AdminRequest::Health { within_ms: 5 },
    ]
}

fn answers() -> Vec<AdminResponse> {
    let all = vec![packed(&1), packed(&())];
    let entry = (packed(&true), ValueContent::Count(text("-7")));
    let held = |shape: &str, content: ValueContent| {
        AdminResponse::Value(Some(Data { shape: text(shape), content: Verbatim::of(&content) }))
    };
    let refusal = RequestRefusal { why: RefusalReason::WrongType, text: text("no") };
    let region = RegionInfo { node: text("n"), address: text("/a"), shards: vec![(3, 9)] };
    let health = Health {
        node: text("n"),
        cluster: Some(text("c")),
        status: Some(text("Up")),
        ready: Some(false),
        reason: Some(text("why")),
    };
    let shards = Shards { entity_type: text("t"), regions: vec![region], ..Shards::default() };
    vec![
        AdminResponse::Members(members()),
        AdminResponse::Shards(shards),
        AdminResponse::Value(None),
        AdminResponse::Explained(ExplainAnswer { text: text("why"), detail: packed(&()) }),
        held("flag", ValueContent::Flag(true)),
        held("or-set", ValueContent::Elements(all.clone())),
        held("lww-register", ValueContent::Register(None)),
        held("mv-register", ValueContent::Siblings(all)),
        held("pn-counter-map", ValueContent::Map(vec![entry])),
        held("user/x", ValueContent::User { bytes: 5 }),
        AdminResponse::Done,
        AdminResponse::Keys(vec![text("k")]),
        AdminResponse::Refused(refusal),
        AdminResponse::Ordered(MemberName { node: text("n"), address: text("/a") }),
        AdminResponse::Drained(DrainReport {
            node: text("n"),
            draining: true,
            shards: vec![(text("t"), 2)],
        }),
        AdminResponse::ShardsStopped(3),
        AdminResponse::Health(health),
    ]
}

fn members() -> Members {
    let member = MemberInfo {
        node: text("n"),
        peer: text("p"),
        address: text("/a"),
        status: text("Up"),
        roles: vec![text("r")],
        unreachable_by: vec![text("m")],
        entity_types: vec![text("t")],
        draining: true,
        app_version: text("1"),
        up_number: Some(4),
    };
    let configuration = Configuration { generation: 1, number: 2, members: 3, voters: 3 };
    Members {
        me: text("n"),
        cluster: Some(text("c")),
        leader: None,
        converged: true,
        preparing_for_shutdown: false,
        configuration: Some(configuration),
        members: vec![member],
        waits_for: None,
    }
}

/// Shows letters and some punctuation as text and all other bytes in hexadecimal.
fn readable(bytes: &[u8]) -> String {
    let shown = |byte: &u8| match byte {
        b'a'..=b'z' | b'_' | b'/' | b'-' => char::from(*byte).to_string(),
        _ => format!("<{byte:02x}>"),
    };
    bytes.iter().map(shown).collect::<String>().replace("><", " ")
}

#[test]
fn requests_and_answers_have_golden_bytes() {
    let mut found = Vec::new();
    for request in requests() {
        let bytes = encode(&request);
        assert_eq!(decode::<AdminRequest>(&bytes).expect("it is one"), request);
        found.push(readable(&bytes));
    }
    for answer in answers() {
        let bytes = encode(&answer);
        assert_eq!(decode::<AdminResponse>(&bytes).expect("it is one"), answer);
        found.push(readable(&bytes));
    }
    let golden: Vec<&str> = include_str!("golden.txt").lines().collect();
    assert_eq!(found, golden, "\n{}", found.join("\n"));
}

#[test]
fn unknown_fields_are_skipped_and_missing_ones_default() {
    let later = b"\x81\xa5watch\x82\xa3key\xa1k\xa5since\x01";
    assert_eq!(decode::<AdminRequest>(later).ok(), Some(AdminRequest::Watch { key: text("k") }));
    let unknown = b"\x81\xa5evict\x81\xa4node\xa1n";
    assert!(decode::<AdminRequest>(unknown).is_err(), "the node refuses it, and goes on");
    let reason = b"\x81\xa7refused\x82\xa3why\xa4moon\xa4text\xa2no";
    let expected =
        AdminResponse::Refused(RequestRefusal { why: RefusalReason::Other, text: text("no") });
    assert_eq!(decode::<AdminResponse>(reason).ok(), Some(expected));
    let earlier = b"\x81\xa7members\x81\xa2me\xa1n";
    let expected = AdminResponse::Members(Members { me: text("n"), ..Members::default() });
    assert_eq!(decode::<AdminResponse>(earlier).ok(), Some(expected));
}

#[test]
fn deepest_map_round_trips() {
    let mut content = ValueContent::Count(text("1"));
    for _ in 0..16 {
        content = ValueContent::Map(vec![(packed(&()), content)]);
    }
    let answer =
        AdminResponse::Value(Some(Data { shape: text("deep"), content: Verbatim::of(&content) }));
    assert_eq!(decode::<AdminResponse>(&encode(&answer)).ok(), Some(answer));
}

/// A stream that yields these bytes and then fails.
struct Gone(&'static [u8], std::io::ErrorKind);

impl tokio::io::AsyncRead for Gone {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let said = std::mem::take(&mut self.0);
        into.put_slice(said);
        std::task::Poll::Ready(if said.is_empty() { Err(self.1.into()) } else { Ok(()) })
    }
}

#[tokio::test]
async fn reset_between_frames_is_end_of_stream() {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    for kind in [ConnectionReset, ConnectionAborted] {
        let read = read_frame(&mut Gone(b"", kind), 3).await;
        assert!(matches!(read, Ok(None)), "{read:?}");
        let read = read_frame(&mut Gone(b"\0\0", kind), 3).await;
        assert!(matches!(&read, Err(FrameError::Io(error)) if error.kind() == kind), "{read:?}");
    }
    assert!(read_frame(&mut Gone(b"", BrokenPipe), 3).await.is_err());
}

async fn read(bytes: &[u8], limit: usize) -> Result<Option<Vec<u8>>, FrameError> {
    let mut from = bytes;
    read_frame(&mut from, limit).await
}

#[tokio::test]
async fn partial_and_long_frames_are_errors() {
    let mut written = Vec::new();
    write_frame(&mut written, b"abc").await.expect("memory");
    write_frame(&mut written, b"").await.expect("memory");
    assert_eq!(written, b"\0\0\0\x03abc\0\0\0\0");
    let mut from = &written[..];
    assert_eq!(read_frame(&mut from, 3).await.expect("a frame"), Some(b"abc".to_vec()));
    assert_eq!(read_frame(&mut from, 3).await.expect("a frame"), Some(Vec::new()));
    assert_eq!(read_frame(&mut from, 3).await.expect("the end"), None);
    for cut in [1, 3, 4, 6] {
        assert!(matches!(read(&written[..cut], 3).await, Err(FrameError::Short)), "{cut}");
    }
    let error = read(&written, 2).await.expect_err("too long");
    assert!(matches!(error, FrameError::TooLong { len: 3, limit: 2 }), "{error}");
    let huge = read(b"GET / HTTP/1.1\r\n", ANSWER_BYTES_MAX).await;
    assert!(matches!(huge, Err(FrameError::TooLong { .. })), "{huge:?}");
}
