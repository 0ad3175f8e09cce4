//! What Replicators say to each other, as bytes: fixed, and understood by the releases before and
//! after as far as they can.

use std::sync::Arc;
use std::time::Duration;

use ostraca::ddata::causal::CausalContext;
use ostraca::ddata::id::ReplicaId;
use ostraca::ddata::key::{Group, KeyName};
use ostraca::ddata::replicator::epoch::{
    Ballot, Epoch, EpochId, EpochMessage, EpochSettings, Refusal,
};
use ostraca::ddata::replicator::wire::{
    Answer, At, Body, Bytes, Content, ContextBytes, Entry, Held, Message, Nack, Query, Scope,
    WireGuard,
};
use ostraca::ddata::types::Term;
use ostraca::net::{Class, Inbound};

use crate::cluster::{Plan, eventually};
use crate::network::node_id;

const EPOCH: EpochId = EpochId { generation: 1, number: 7 };
const TERM: Term = Term { number: 3, owner: ReplicaId::new(5) };

fn context() -> ContextBytes {
    ContextBytes::new(&CausalContext::new())
}

fn held() -> Held {
    Held { key: KeyName::new("k"), context: context() }
}

fn entry(content: Content) -> Entry {
    let guard = Some(WireGuard { group: Group::new("g-"), term: Some(TERM) });
    Entry { index: 2, key: KeyName::new("k"), shape: Arc::from("flag"), guard, content }
}

fn some_bytes() -> Bytes {
    Bytes::from(&[1, 2, 3][..])
}

fn epoch() -> Arc<Epoch> {
    let members = vec![ReplicaId::new(1), ReplicaId::new(2), ReplicaId::new(300)];
    Arc::new(Epoch::founding(EPOCH, members, EpochSettings::default()).expect("a valid one"))
}

fn entries() -> Vec<Entry> {
    vec![
        entry(Content::Delta(some_bytes())),
        Entry { guard: None, ..entry(Content::Full(some_bytes())) },
        entry(Content::Probe(context())),
    ]
}

/// Every kind of message about writes and reads.
fn bodies() -> Vec<(&'static str, Body)> {
    let nacks = vec![
        (0, Nack::Lack(context())),
        (1, Nack::Fenced(TERM)),
        (2, Nack::FencedYetHeld(TERM)),
        (3, Nack::StoreFailed),
        (4, Nack::WrongType),
        (5, Nack::Undecodable),
        (6, Nack::Guarded(Group::new("g-"))),
    ];
    let (request, group, entries) = (9, Group::new("g-"), entries());
    vec![
        ("write", Body::Write { push: 8, whole: true, entries: entries.clone().into() }),
        ("ack", Body::Ack { push: 8, scope: Scope::All, counts: true, nacks: vec![] }),
        ("nacks", Body::Ack { push: 8, scope: Scope::Only(vec![1, 2]), counts: false, nacks }),
        ("read", Body::Read { request, held: held() }),
        ("read-same", Body::ReadAnswer { request, counts: true, context: None, entry: None }),
        (
            "read-answer",
            Body::ReadAnswer {
                request,
                counts: true,
                context: Some(context()),
                entry: Some(entries[0].clone()),
            },
        ),
        ("fence", Body::Fence { request, group, term: TERM, held: vec![held()] }),
        (
            "promised",
            Body::Promised {
                request,
                counts: true,
                differing: vec![held()],
                entries: vec![entries[1].clone()],
            },
        ),
        ("not-promised", Body::NotPromised { request, current: TERM }),
        ("used", Body::Used(vec![(KeyName::new("k"), 1_000)])),
        ("known", Body::Known(vec![(KeyName::new("k"), 1_000)])),
        ("part", Body::Part { transfer: 1, total: 70_000, offset: 65_536, bytes: some_bytes() }),
    ]
}

/// Every kind of message about differences between replicas.
fn comparisons() -> Vec<(&'static str, Body)> {
    let (session, promises) = (300, vec![(Group::new("g-"), TERM)]);
    let compare = |at, query| Body::Compare { session, at, query };
    let compared = |answer| Body::Compared { session, at: At::Live, answer, promises: vec![] };
    vec![
        ("compare-root", compare(At::Live, Query::Root { sum: u64::MAX, seed: 1 })),
        ("compare-leaves", compare(At::Sealed(EPOCH), Query::Leaves(vec![0, 255]))),
        ("compare-keys", compare(At::Synced(EPOCH), Query::Keys(vec![(0, 65_535)]))),
        ("compare-want", compare(At::Live, Query::Want(vec![held()]))),
        ("compared-same", compared(Answer::Same)),
        ("compared-tops", compared(Answer::Tops(vec![1, u64::MAX]))),
        ("compared-leaves", compared(Answer::Leaves(vec![(7, vec![1, 2])]))),
        ("compared-keys", compared(Answer::Keys { held: vec![held()], upto: 65_535 })),
        ("compared-entries", compared(Answer::Entries { done: 1, entries: entries() })),
        ("compared-gone", Body::Compared { session, at: At::Live, answer: Answer::Gone, promises }),
    ]
}

/// Every kind of message about configurations.
fn epochs() -> Vec<(&'static str, Body)> {
    let (epoch_id, ballot) = (EPOCH, Ballot { number: 4, node: ReplicaId::new(2) });
    let remaining = vec![(ReplicaId::new(300), Duration::from_millis(1_500))];
    let removed = vec![ReplicaId::new(300)];
    let why = |why| EpochMessage::Refused { epoch: epoch_id, ballot, why };
    let sealed = |accepted| EpochMessage::Sealed { epoch: epoch_id, ballot, accepted };
    let all = vec![
        ("withhold", EpochMessage::Withhold { epoch: epoch_id, ballot, removed: removed.clone() }),
        (
            "withheld",
            EpochMessage::Withheld { epoch: epoch_id, ballot, remaining: remaining.clone() },
        ),
        ("seal", EpochMessage::Seal { epoch: epoch_id, ballot, proposal: epoch() }),
        ("sealed", sealed(None)),
        ("sealed-accepted", sealed(Some((ballot, epoch())))),
        ("refused-promised", why(Refusal::Promised(ballot))),
        ("refused-leased", why(Refusal::Leased(remaining))),
        ("sync", EpochMessage::Sync { base: epoch(), ballot, proposal: epoch(), sealed: removed }),
        ("synced", EpochMessage::Synced { epoch: epoch_id }),
        ("ping", EpochMessage::Ping { epoch: epoch_id, ballot }),
        ("pong", EpochMessage::Pong { epoch: epoch_id, ballot }),
        ("accept", EpochMessage::Accept { epoch: epoch_id, ballot, proposal: epoch() }),
        ("accepted", EpochMessage::Accepted { epoch: epoch_id, ballot }),
        ("install", EpochMessage::Install { epoch: epoch() }),
        ("ask", EpochMessage::Ask { installed: Some(epoch_id) }),
        ("ask-first", EpochMessage::Ask { installed: None }),
    ];
    all.into_iter().map(|(name, message)| (name, Body::Epoch(message))).collect()
}

fn messages() -> Vec<(&'static str, Message)> {
    let all = bodies().into_iter().chain(comparisons()).chain(epochs());
    let with = |(name, body)| (name, Message { epoch: Some(EPOCH), body });
    let young = Message { epoch: None, body: Body::Used(vec![]) };
    all.map(with).chain([("outside", young)]).collect()
}

#[test]
fn the_bytes_of_every_message_stay_what_they_are() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let line = |(name, message): (&str, Message)| format!("{name} {}\n", hex(&message.encode()));
    let golden: String = messages().into_iter().map(line).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/messages.hex");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, &golden).expect("written");
    }
    let kept = std::fs::read_to_string(path).expect("tests/golden/messages.hex");
    assert_eq!(golden, kept, "other nodes speak the old bytes: a change needs a new version");
}

#[test]
fn every_message_decodes_to_what_was_said() {
    for (name, message) in messages() {
        assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message), "{name}");
    }
}

/// The named form of a later release, in which every map of ours may have a field more.
#[test]
fn known_failure_28_a_message_with_a_field_of_a_later_release_is_the_same_message() {
    const LATER: &[u8] = b"\xa5later\x93\x01\xc0\x81\xa1y\xc4\x02\x00\x01";
    for (name, message) in messages() {
        let mut bytes = message.encode();
        assert_eq!(bytes[0] & 0xf0, 0x80, "{name}: a small map");
        bytes[0] += 1;
        bytes.extend_from_slice(LATER); // after the last of its fields
        assert_eq!(Message::decode(&bytes).as_ref(), Ok(&message), "{name}");
    }
    // Within a kind, too: {"m": {"q": {"n": .., "t": ..}}} ends in the kind's own map.
    let body = Body::NotPromised { request: 9, current: TERM };
    let message = Message { epoch: None, body };
    let mut bytes = message.encode();
    let inner = bytes.windows(3).position(|at| at == b"\xa1q\x82").expect("the kind's map") + 2;
    bytes[inner] += 1;
    bytes.extend_from_slice(LATER);
    // The map of the term, {"n", "p"} in "t", ends before the field that was added.
    assert_eq!(Message::decode(&bytes), Ok(message));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_of_message_of_a_later_release_is_counted_skipped_and_what_follows_is_heard() {
    let cluster = Plan { nodes: 1, ..Plan::default() }.start().await;
    let receiver = cluster.nodes[0].receiver.clone();
    let hear = |body: &[u8]| {
        let from = node_id(1);
        receiver.receive(Inbound { from, class: Class::Data, fields: &[], body })
    };
    let inputs = cluster.at(0).load().turns.inputs;
    let later = b"\x81\xa1m\x81\xa5later\x81\xa1n\x01"; // {"m": {"later": {"n": 1}}}
    let known = Message { epoch: None, body: Body::Used(vec![]) }.encode();
    for body in [&later[..], &known, later, &known] {
        assert_eq!(hear(body), Ok(()), "the lane goes on");
    }
    let load = cluster.at(0).load();
    assert_eq!((load.undecodable, load.received), (2, 2));
    eventually("they are heard", async || cluster.at(0).load().turns.inputs >= inputs + 2).await;
    cluster.stop().await;
}
