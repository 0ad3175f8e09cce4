//! Tests of the messages that open a lane: stable bytes, tolerant of added fields, safe to decode.

use std::sync::Arc;

use futures::AsyncWriteExt;
use libp2p::PeerId;
use libp2p::identity::Keypair;
use ostraca::ddata::encoded::from_msgpack;
use ostraca::ddata::id::ReplicaId;
use ostraca::net::TrafficClass;
use ostraca::net::admission::{AdmissionState, ProverRole};
use ostraca::net::config::Secret;
use ostraca::net::handshake::{
    self, HandshakeError, LaneParameters, decode_answer, decode_client_answer, encode,
};
use ostraca::net::wire::{
    ADDRESSES_MAX, ClientAnswer, ClientHello, ClientWelcome, Greeting, HandshakeAnswer, Hello,
    IncarnationNonce, LaneRefusal, NodeInfo, Nonce, OPENING_BYTES_MAX, PROTOCOL_VERSION, Proof,
    Welcome,
};
use proptest::prelude::*;
use serde::Serialize;
use tokio_util::compat::TokioAsyncReadCompatExt;

use crate::nodes::live;
use crate::waits::{SOON, soon};

fn facts() -> NodeInfo {
    NodeInfo {
        version: 1,
        cluster: "shop".to_owned(),
        cluster_id: Some(7),
        incarnation: ReplicaId::new(0x0102_0304_0506_0708),
        incarnation_nonce: Some(IncarnationNonce([0xdd; 16])),
        boot: Some("b007".to_owned()),
        lock: Some((2049, 131)),
        addresses: vec!["/ip4/10.0.0.1/tcp/7001".to_owned()],
        message_bytes_max: 4_194_304,
        frame_bytes_max: Some(65_536),
    }
}

fn young() -> NodeInfo {
    NodeInfo {
        incarnation_nonce: None,
        cluster_id: None,
        boot: None,
        lock: None,
        addresses: Vec::new(),
        frame_bytes_max: None,
        ..facts()
    }
}

fn hello() -> Hello {
    Hello {
        facts: facts(),
        nonce: Nonce([0xaa; 32]),
        proof: Some(Proof([0xbb; 32])),
        to: Some(ReplicaId::new(9)),
        class: TrafficClass::Bulk,
        generation: 3,
        first_unacknowledged: 1_000,
    }
}

fn welcome() -> HandshakeAnswer {
    let proof = Some(Proof([0xcc; 32]));
    HandshakeAnswer::Welcome(Welcome { facts: facts(), proof, accepted: 999 })
}

fn refusals() -> Vec<(&'static str, LaneRefusal)> {
    let current = ReplicaId::new(5);
    vec![
        ("refused-version", LaneRefusal::Version { theirs: 2 }),
        ("refused-cluster-name", LaneRefusal::ClusterName { theirs: "shop".to_owned() }),
        ("refused-secret", LaneRefusal::Secret),
        ("refused-not-allowed", LaneRefusal::NotAllowed),
        ("refused-wrong-incarnation", LaneRefusal::WrongIncarnation { current }),
        ("refused-quarantined", LaneRefusal::Quarantined),
        ("refused-superseded", LaneRefusal::Superseded),
        ("refused-gap", LaneRefusal::Gap { accepted: 4, first: 9 }),
        ("refused-limit", LaneRefusal::Limit { what: "lanes".to_owned() }),
        ("refused-stopping", LaneRefusal::Stopping),
        ("refused-unserved", LaneRefusal::Unserved),
        ("refused-twin", LaneRefusal::Twin),
        ("refused-claimed", LaneRefusal::Claimed),
        ("refused-false-incarnation", LaneRefusal::FalseIncarnation),
    ]
}

fn client_hello() -> ClientHello {
    let (nonce, proof) = (Nonce([0xaa; 32]), Some(Proof([0xbb; 32])));
    ClientHello { version: 1, cluster: "shop".to_owned(), nonce, proof }
}

fn client_welcome() -> ClientAnswer {
    let proof = Some(Proof([0xcc; 32]));
    ClientAnswer::Welcome(ClientWelcome { version: 1, cluster: "shop".to_owned(), proof })
}

fn golden() -> String {
    let mut lines = vec![
        line("greeting", &Greeting { version: 1, nonce: Nonce([0x11; 32]) }),
        line("hello", &hello()),
        line("hello-young", &Hello { facts: young(), proof: None, to: None, ..hello() }),
        line("welcome", &welcome()),
    ];
    lines.extend(
        refusals().into_iter().map(|(name, why)| line(name, &HandshakeAnswer::Refused(why))),
    );
    lines.push(line("client-hello", &client_hello()));
    lines.push(line("client-welcome", &client_welcome()));
    lines.concat()
}

fn line(name: &str, message: &impl Serialize) -> String {
    let hex: String = bytes(message).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name} {hex}\n")
}

fn bytes(message: &impl Serialize) -> Vec<u8> {
    encode(message).expect("it encodes")
}

/// The encoded message without its length.
fn body(message: &impl Serialize) -> Vec<u8> {
    bytes(message).split_off(4)
}

#[test]
fn bytes_of_every_opening_are_stable() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/openings.hex");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, golden()).expect("written");
    }
    let kept = std::fs::read_to_string(path).expect("tests/golden/openings.hex");
    assert_eq!(PROTOCOL_VERSION, 1, "a new version has golden bytes of its own");
    assert_eq!(golden(), kept, "other nodes speak the old bytes: a change needs a new version");
}

#[test]
fn every_opening_round_trips() {
    assert_eq!(from_msgpack::<Hello>(&body(&hello())).expect("a hello"), hello());
    assert_eq!(decode_answer(&body(&welcome())).expect("a welcome"), welcome());
    for (name, refusal) in refusals() {
        let answer = HandshakeAnswer::Refused(refusal);
        assert_eq!(decode_answer(&body(&answer)).expect(name), answer);
    }
    assert_eq!(from_msgpack::<ClientHello>(&body(&client_hello())).expect("one"), client_hello());
    assert_eq!(decode_client_answer(&body(&client_welcome())).expect("one"), client_welcome());
    for (name, refusal) in refusals() {
        let answer = ClientAnswer::Refused(refusal);
        assert_eq!(decode_client_answer(&body(&answer)).expect(name), answer);
    }
}

/// Adds a field to the map at the end of `bytes`, whose header is at `at`.
fn with_one_more(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    assert_eq!(bytes[at] & 0xf0, 0x80, "a small map");
    bytes[at] += 1;
    bytes.extend_from_slice(b"\xa5later\x93\x01\xc0\x81\xa1x\xc4\x02\x00\x01");
    bytes
}

#[test]
fn a_field_of_a_later_release_is_skipped() {
    let greeting = Greeting { version: 1, nonce: Nonce([0x11; 32]) };
    let later = with_one_more(body(&greeting), 0);
    assert_eq!(from_msgpack::<Greeting>(&later).expect("a greeting"), greeting);
    let later = with_one_more(body(&hello()), 0);
    assert_eq!(from_msgpack::<Hello>(&later).expect("a hello"), hello());
    let later = with_one_more(body(&facts()), 0);
    assert_eq!(from_msgpack::<NodeInfo>(&later).expect("facts"), facts());
    let later = with_one_more(body(&welcome()), 3); // inside {"w": {..}}
    assert_eq!(decode_answer(&later).expect("a welcome"), welcome());
    let later = with_one_more(body(&client_hello()), 0);
    assert_eq!(from_msgpack::<ClientHello>(&later).expect("a hello"), client_hello());
    let later = with_one_more(body(&client_welcome()), 3);
    assert_eq!(decode_client_answer(&later).expect("a welcome"), client_welcome());
}

#[test]
fn optional_fields_may_be_absent() {
    let least = body(&young());
    for absent in [b"\xa1i", b"\xa1j", b"\xa1b", b"\xa1l", b"\xa1a", b"\xa1x"] {
        assert!(!least.windows(2).any(|pair| pair == absent), "{absent:?}");
    }
    assert_eq!(from_msgpack::<NodeInfo>(&least).expect("facts"), young());
    let least = Hello { proof: None, to: None, ..hello() };
    assert_eq!(from_msgpack::<Hello>(&body(&least)).expect("a hello"), least);
}

/// `Facts` without `frame_bytes_max`, as a node of an earlier release decodes them.
#[derive(Debug, PartialEq, serde::Deserialize)]
struct FactsBefore {
    #[serde(rename = "v")]
    version: u16,
    #[serde(rename = "c")]
    cluster: String,
    #[serde(rename = "r")]
    incarnation: ReplicaId,
    #[serde(rename = "m")]
    message_bytes_max: u32,
}

/// With bytes that the previous release wrote, and with a decoder that knows fewer fields.
#[test]
fn known_failure_28_opening_survives_an_added_field() {
    let kept = include_str!("../golden/openings-before-frame-bytes.hex");
    let before = |name: &str| {
        let line = kept.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        let hex = line.trim().as_bytes();
        let byte =
            |at: usize| u8::from_str_radix(std::str::from_utf8(&hex[at..at + 2]).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
        bytes.expect("hex").split_off(4)
    };
    let facts_before = NodeInfo { incarnation_nonce: None, frame_bytes_max: None, ..facts() };
    let heard = from_msgpack::<Hello>(&before("hello ")).expect("an older node's hello");
    assert_eq!(heard, Hello { facts: facts_before.clone(), ..hello() });
    let HandshakeAnswer::Welcome(heard) = decode_answer(&before("welcome ")).expect("a welcome")
    else {
        panic!("it was welcome");
    };
    assert_eq!(heard.facts, facts_before);
    let heard = from_msgpack::<FactsBefore>(&body(&facts())).expect("an older node hears us");
    let NodeInfo { version, cluster, incarnation, message_bytes_max, .. } = facts();
    assert_eq!(heard, FactsBefore { version, cluster, incarnation, message_bytes_max });
}

#[test]
fn a_refusal_for_a_reason_of_a_later_release_is_still_a_refusal() {
    for later in [&b"\x81\xa1r\xa5later"[..], b"\x81\xa1r\x81\xa1z\x81\xa1w\xc3"] {
        assert_eq!(
            decode_answer(later).expect("a refusal"),
            HandshakeAnswer::Refused(LaneRefusal::Unknown)
        );
        let to_client = decode_client_answer(later).expect("a refusal");
        assert_eq!(to_client, ClientAnswer::Refused(LaneRefusal::Unknown));
    }
    for neither in [&b""[..], b"\xc0", b"\x81\xa1x\xc0", b"\x81\xa1w\xc0"] {
        assert!(decode_answer(neither).is_err(), "{neither:?}");
        assert!(decode_client_answer(neither).is_err(), "{neither:?}");
    }
}

#[test]
fn announced_length_or_depth_is_not_trusted() {
    let endless = b"\x81\xa1a\xdd\xff\xff\xff\xff".to_vec(); // 4 billion addresses
    assert!(from_msgpack::<NodeInfo>(&endless).is_err());
    let mut deep = b"\x81\xa5later".to_vec();
    deep.resize(OPENING_BYTES_MAX, 0x91); // arrays in arrays, in a field that would be skipped
    assert!(from_msgpack::<Hello>(&deep).is_err());
    assert!(from_msgpack::<Greeting>(&deep).is_err());
    assert!(decode_answer(&deep).is_err());
}

#[test]
fn of_too_many_addresses_the_first_are_kept() {
    let addresses = (0..100).map(|n| format!("/ip4/10.0.0.{n}/tcp/1")).collect::<Vec<_>>();
    let many = NodeInfo { addresses: addresses.clone(), ..facts() };
    let kept = from_msgpack::<NodeInfo>(&body(&many)).expect("facts");
    assert_eq!(kept.addresses, addresses[..ADDRESSES_MAX]);
}

proptest! {
    #[test]
    fn no_bytes_of_a_stranger_make_a_decoder_panic(bytes in any_bytes()) {
        let _ = from_msgpack::<Greeting>(&bytes);
        let _ = from_msgpack::<Hello>(&bytes);
        let _ = from_msgpack::<ClientHello>(&bytes);
        let _ = decode_answer(&bytes);
        let _ = decode_client_answer(&bytes);
    }

    #[test]
    fn no_damage_to_a_real_opening_makes_a_decoder_panic(
        at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>(),
    ) {
        for mut bytes in [body(&hello()), body(&welcome())] {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(cut.index(bytes.len()) + 1);
            let _ = from_msgpack::<Hello>(&bytes);
            let _ = decode_answer(&bytes);
        }
    }

    /// For any bytes of an opener or a client, the acceptor must end in time with an error.
    #[test]
    fn no_bytes_of_a_stranger_open_a_lane(bytes in any_bytes()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let (mut near, mut far) = (near.compat(), far.compat());
            far.write_all(&bytes).await.expect("room");
            far.close().await.expect("closed");
            let us = standing(Some(1));
            let from = PeerId::random();
            let accepted = handshake::accept(&mut near, &us, from, TrafficClass::User, SOON).await;
            assert!(accepted.is_err(), "{accepted:?}");
            let (near, far) = tokio::io::duplex(64 * 1024);
            let (mut near, mut far) = (near.compat(), far.compat());
            far.write_all(&bytes).await.expect("room");
            far.close().await.expect("closed");
            let let_in = handshake::answer(&mut near, &us, from, SOON, || Ok(())).await;
            assert!(let_in.is_err(), "{let_in:?}");
        });
    }
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    // Half of them start with a matching length, so that the decoder is reached.
    let bytes = prop::collection::vec(any::<u8>(), 0..256);
    (bytes, any::<bool>()).prop_map(|(bytes, framed)| match framed {
        true => [&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat(),
        false => bytes,
    })
}

fn standing(secret: Option<u8>) -> AdmissionState {
    let (peer, mut facts) = (Keypair::generate_ed25519().public().to_peer_id(), facts());
    live(&mut facts, &peer, 1);
    AdmissionState {
        peer,
        facts,
        secret: secret.map(|byte| Secret::new([byte; 32]).expect("long enough").into()),
        allowed: Arc::default(),
        quarantined: Arc::default(),
        stopping: false,
    }
}

const WANTED: fn(PeerId) -> LaneParameters = |peer| LaneParameters {
    peer,
    to: None,
    class: TrafficClass::Data,
    generation: 1,
    first_unacknowledged: 1,
};

#[tokio::test]
async fn opening_reads_no_byte_beyond_its_end() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (mut near, mut far) = (near.compat(), far.compat());
    let (us, them) = (standing(Some(1)), standing(Some(1)));
    let opening = async {
        let opened = handshake::open(&mut near, &us, WANTED(them.peer), SOON).await;
        near.write_all(b"frames").await.expect("room");
        opened
    };
    let accepting = async {
        let asked = handshake::accept(&mut far, &them, us.peer, TrafficClass::Data, SOON).await;
        let asked = asked.expect("a friend");
        assert_eq!(asked.node.peer, us.peer);
        asked.welcome(&mut far, &them, 41, SOON).await.expect("sent");
        let mut next = [0; 6];
        futures::AsyncReadExt::read_exact(&mut far, &mut next).await.expect("what follows");
        next
    };
    let (opened, next) = soon(async { tokio::join!(opening, accepting) }).await;
    let opened = opened.expect("welcome");
    assert_eq!((opened.accepted, &next), (41, b"frames"));
    assert_eq!(opened.facts, them.facts);
}

#[tokio::test]
async fn an_oversized_opening_is_cut_at_its_length() {
    for len in [OPENING_BYTES_MAX as u32 + 1, u32::MAX] {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (mut near, mut far) = (near.compat(), far.compat());
        far.write_all(&len.to_be_bytes()).await.expect("room");
        let us = standing(None);
        let accepted = handshake::accept(&mut near, &us, us.peer, TrafficClass::User, SOON).await;
        let said = len as usize;
        assert!(
            matches!(accepted, Err(HandshakeError::TooLong { len }) if len == said),
            "{accepted:?}"
        );
    }
    let long = NodeInfo { cluster: "x".repeat(OPENING_BYTES_MAX), ..facts() };
    assert!(matches!(encode(&long), Err(HandshakeError::TooLong { .. })));
}

#[tokio::test]
async fn dripped_opening_ends_at_its_timeout() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (mut near, mut far) = (near.compat(), far.compat());
    let us = standing(None);
    let within = std::time::Duration::from_millis(300);
    let accepting = handshake::accept(&mut near, &us, us.peer, TrafficClass::User, within);
    let dripping = async {
        let mut pace = tokio::time::interval(within / 10);
        for byte in [0, 0, 1, 0].into_iter().chain(std::iter::repeat(0)) {
            pace.tick().await;
            far.write_all(&[byte]).await.expect("room");
        }
    };
    let accepted = soon(async {
        tokio::select! {
            accepted = accepting => accepted,
            () = dripping => unreachable!("it never ends"),
        }
    })
    .await;
    assert!(matches!(accepted, Err(HandshakeError::TimedOut { .. })), "{accepted:?}");
}

#[tokio::test]
async fn silent_node_times_out_in_both_roles() {
    let within = std::time::Duration::from_millis(50);
    let (near, _far) = tokio::io::duplex(64 * 1024);
    let us = standing(None);
    let opened = handshake::open(&mut near.compat(), &us, WANTED(us.peer), within).await;
    assert!(matches!(opened, Err(HandshakeError::TimedOut { .. })), "{opened:?}");
    let (near, _far) = tokio::io::duplex(64 * 1024);
    let accepted =
        handshake::accept(&mut near.compat(), &us, us.peer, TrafficClass::User, within).await;
    assert!(matches!(accepted, Err(HandshakeError::TimedOut { .. })), "{accepted:?}");
}

#[tokio::test]
async fn a_lane_of_another_class_than_negotiated_is_a_violation() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (mut near, mut far) = (near.compat(), far.compat());
    let (us, them) = (standing(None), standing(None));
    let opening = handshake::open(&mut near, &us, WANTED(them.peer), SOON);
    let accepting = async move {
        handshake::accept(&mut far, &them, us.peer, TrafficClass::Control, SOON).await
    };
    let (opened, accepted) = soon(async { tokio::join!(opening, accepting) }).await;
    let (said, negotiated) = (TrafficClass::Data, TrafficClass::Control);
    assert!(
        matches!(accepted, Err(HandshakeError::OtherClass { said: s, negotiated: n })
            if (s, n) == (said, negotiated)),
        "{accepted:?}"
    );
    assert!(matches!(opened, Err(HandshakeError::Io(_))), "{opened:?}");
}

#[test]
fn proof_of_one_role_fails_for_the_other() {
    let us = standing(Some(1));
    let nonce = Nonce([0; 32]);
    let opening = ostraca::net::admission::LaneProofContext {
        opener: us.peer,
        acceptor: us.peer,
        opener_nonce: &nonce,
        acceptor_nonce: &nonce,
        class: TrafficClass::User,
        generation: 1,
    };
    assert_ne!(us.prove(ProverRole::Opener, &opening), us.prove(ProverRole::Acceptor, &opening));
}
