//! The encoded bytes of every message between Replicators are fixed in `tests/golden/messages.hex`.
//! The releases before and after read them, and unknown parts of a newer release do no harm.
//!
//! `UPDATE_EXPECT=1` rewrites the file: only with a new version of the protocol.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::encoded::DecodeError;
use ostraca_ddata::key::Group;
use ostraca_ddata::replicator::epoch::{
    Ballot, BallotRefusal, Epoch, EpochId, EpochMessage, EpochSettings, MembershipChange,
};
use ostraca_ddata::replicator::wire::{
    AckScope, At, Body, ContextBytes, Entry, EntryContent, KeyContext, Nack, Query, QueryAnswer,
    ReplicatorMessage, WireGuard,
};
use ostraca_ddata::types::edit::Author;
use ostraca_ddata::types::{Causal, ORSet, Term};

use crate::bare::{Bare, insert, peer};
use crate::cluster::{WRITE_MAJORITY, secs};
use crate::input::{other, pushed};

// ── one of everything ──

fn author(n: usize) -> Author {
    Author::new(peer(n), HybridTimestamp::from_raw(7 << 16))
}

fn term() -> Term {
    Term { number: 3, owner: peer(1) }
}

fn guard(term: Option<Term>) -> Option<WireGuard> {
    Some(WireGuard { group: Group::new("home-"), term })
}

/// A set of two replicas, its last change and its context.
fn set() -> (Causal<ORSet<String>>, Vec<u8>, ContextBytes) {
    let mut set = Causal::new();
    set.edit(author(0), |set: &mut ostraca_ddata::types::edit::Edit<'_, ORSet<String>>| {
        set.insert("tea")
    })
    .unwrap();
    let (_, delta) = set.edit(author(1), |set| set.insert("milk")).unwrap();
    let context = ContextBytes::new(set.context());
    (set, delta.encode(), context)
}

fn entries() -> Vec<Entry> {
    let (set, delta, context) = set();
    let entry = |index, guard, content| {
        let (key, shape) = ("home-1".into(), "or-set".into());
        Entry { index, key, shape, guard, content }
    };
    vec![
        entry(0, None, EntryContent::Delta(delta.into())),
        entry(1, guard(None), EntryContent::Full(set.encode().into())),
        entry(200, guard(Some(term())), EntryContent::Probe(context)),
    ]
}

fn held() -> KeyContext {
    KeyContext { key: "home-1".into(), context: set().2 }
}

fn first() -> Epoch {
    let settings = EpochSettings { digest_seed: 9, ..EpochSettings::default() };
    let id = EpochId { generation: 1, number: 1 };
    Epoch::founding(id, (0..3).map(peer).collect(), settings).unwrap()
}

fn second() -> Arc<Epoch> {
    let change = MembershipChange {
        join: vec![peer(3)],
        leave: vec![peer(0)],
        ..MembershipChange::default()
    };
    Arc::new(first().next(&change).unwrap())
}

fn data() -> Vec<(&'static str, Body)> {
    let write =
        |push, whole, entries: Vec<Entry>| Body::Write { push, whole, entries: entries.into() };
    let group = Group::new("home-");
    let nacks = vec![
        (0, Nack::Lack(set().2)),
        (1, Nack::Fenced(term())),
        (2, Nack::FencedYetHeld(term())),
        (3, Nack::StoreFailed),
        (4, Nack::WrongType),
        (5, Nack::Undecodable),
        (6, Nack::Guarded(group.clone())),
    ];
    let refused = Body::Ack { push: 7, scope: AckScope::Only(vec![0, 200]), counts: false, nacks };
    let (context, entry) = (Some(set().2), Some(entries().remove(0).into()));
    let promised =
        |differing, entries| Body::Promised { request: 5, counts: true, differing, entries };
    vec![
        ("write", write(7, true, entries())),
        ("write-nothing", write(0, false, vec![])),
        ("ack", Body::Ack { push: 7, scope: AckScope::All, counts: true, nacks: vec![] }),
        ("ack-refused", refused),
        ("read", Body::Read { request: 5, held: held() }),
        ("read-answer", Body::ReadAnswer { request: 5, counts: true, context, entry }),
        ("read-same", Body::ReadAnswer { request: 5, counts: false, context: None, entry: None }),
        ("fence", Body::Fence { request: 5, group, term: term(), held: vec![held()] }),
        ("promised", promised(vec![held()], entries())),
        ("not-promised", Body::NotPromised { request: 5, current: term() }),
        ("used", Body::Used(vec![("home-1".into(), 70_000)])),
        ("known", Body::Known(vec![("home-1".into(), 3)])),
        (
            "part",
            Body::Part { transfer: 9, total: 70_000, offset: 8_192, bytes: vec![7; 9].into() },
        ),
    ]
}

fn comparisons() -> Vec<(&'static str, Body)> {
    let epoch = second().id();
    let compare = |at, query| Body::Compare { session: 4, at, query };
    let compared = |answer: QueryAnswer| {
        let answer = answer.into();
        Body::Compared { session: 4, at: At::Live, answer, promises: vec![] }
    };
    let promises = vec![(Group::new("home-"), term())];
    let synced = Body::Compared {
        session: 4,
        at: At::Synced(epoch),
        answer: QueryAnswer::Same.into(),
        promises,
    };
    let keys = QueryAnswer::Keys { held: vec![held()], upto: 0xffff };
    vec![
        ("compare-root", compare(At::Live, Query::Root { sum: u64::MAX, seed: 9 })),
        ("compare-leaves", compare(At::Sealed(epoch), Query::Leaves(vec![0, 200]))),
        ("compare-keys", compare(At::Synced(epoch), Query::Keys(vec![(0, 255), (300, 300)]))),
        ("compare-want", compare(At::Live, Query::Want(vec![held()]))),
        ("compared-same", synced),
        ("compared-tops", compared(QueryAnswer::Tops(vec![0, 1, u64::MAX]))),
        ("compared-leaves", compared(QueryAnswer::Leaves(vec![(200, vec![0, 1])]))),
        ("compared-keys", compared(keys)),
        ("compared-entries", compared(QueryAnswer::Entries { done: 1, entries: entries() })),
        ("compared-gone", compared(QueryAnswer::Gone)),
    ]
}

fn steps() -> Vec<(&'static str, EpochMessage)> {
    use EpochMessage as M;
    let (epoch, proposal) = (first().id(), second());
    let ballot = Ballot { number: 2, node: peer(1) };
    let remaining = vec![(peer(0), secs(4))];
    let accepted = Some((ballot, second()));
    let base = Arc::new(first());
    let refused = |why| M::Refused { epoch, ballot, why };
    vec![
        ("withhold", M::Withhold { epoch, ballot, removed: vec![peer(0)] }),
        ("withheld", M::Withheld { epoch, ballot, remaining: remaining.clone() }),
        ("seal", M::Seal { epoch, ballot, proposal: proposal.clone() }),
        ("sealed", M::Sealed { epoch, ballot, accepted: None }),
        ("sealed-accepted", M::Sealed { epoch, ballot, accepted }),
        ("refused-promised", refused(BallotRefusal::Promised(ballot))),
        ("refused-leased", refused(BallotRefusal::Leased(remaining))),
        (
            "sync",
            M::Sync { base, ballot, proposal: proposal.clone(), sealed: vec![peer(1), peer(2)] },
        ),
        ("synced", M::Synced { epoch }),
        ("ping", M::Ping { epoch, ballot }),
        ("pong", M::Pong { epoch, ballot }),
        ("accept", M::Accept { epoch, ballot, proposal: proposal.clone() }),
        ("accepted", M::Accepted { epoch, ballot }),
        ("install", M::Install { epoch: proposal }),
        ("install-of-a-cluster", M::Install { epoch: of_a_cluster() }),
        ("ask", M::Ask { installed: Some(epoch) }),
        ("ask-joining", M::Ask { installed: None }),
    ]
}

/// A configuration with the id of a cluster.
fn of_a_cluster() -> Arc<Epoch> {
    let settings = EpochSettings { cluster: 0x0123_4567_89ab_cdef, ..EpochSettings::default() };
    Arc::new(Epoch::founding(first().id(), vec![peer(0), peer(1)], settings).unwrap())
}

fn messages() -> Vec<(String, ReplicatorMessage)> {
    let steps =
        steps().into_iter().map(|(name, step)| (format!("epoch-{name}"), Body::Epoch(step)));
    let others = data().into_iter().chain(comparisons());
    let all = others.map(|(name, body)| (name.to_owned(), body)).chain(steps);
    let joining = |name: &str| name.ends_with("joining");
    all.map(|(name, body)| {
        let epoch = (!joining(&name)).then(|| first().id());
        (name, ReplicatorMessage { epoch, body })
    })
    .collect()
}

// ── golden bytes ──

fn line(name: &str, bytes: &[u8]) -> String {
    let mut line = format!("{name} ");
    bytes.iter().for_each(|byte| write!(line, "{byte:02x}").unwrap());
    line + "\n"
}

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/messages.hex");

#[test]
fn bytes_of_every_message_are_stable() {
    let golden: String = messages().iter().map(|(name, m)| line(name, &m.encode())).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(KEPT, &golden).unwrap();
    }
    let kept = std::fs::read_to_string(KEPT).unwrap();
    assert!(
        golden == kept,
        "other nodes read the old bytes: a change needs a new protocol version"
    );
}

#[test]
fn golden_bytes_decode_to_their_messages() {
    let kept = std::fs::read_to_string(KEPT).unwrap();
    let bytes = |hex: &str| -> Vec<u8> {
        let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digits).collect()
    };
    let lines: Vec<_> = kept.lines().map(|line| line.split_once(' ').unwrap()).collect();
    assert_eq!(lines.len(), messages().len());
    for ((name, hex), (expected, message)) in lines.into_iter().zip(messages()) {
        assert_eq!((name, ReplicatorMessage::decode(&bytes(hex))), (&*expected, Ok(message)));
    }
}

/// Collects the kinds in a message. A new kind does not compile here: give it golden bytes.
fn kinds(message: &ReplicatorMessage, found: &mut BTreeSet<String>) {
    let mut of = |kind: &str, value: &dyn std::fmt::Debug| {
        let text = format!("{value:?}");
        let name = text.split([' ', '(', '{']).next().unwrap().to_owned();
        found.insert(format!("{kind}::{name}"));
    };
    of("Body", &message.body);
    let (mut entries, mut nacks) = (Vec::new(), Vec::new());
    match &message.body {
        Body::Write { entries: all, .. } => entries.extend(all.to_vec()),
        Body::Ack { scope, nacks: all, .. } => {
            of("AckScope", scope);
            nacks.extend(all.clone());
        }
        Body::ReadAnswer { entry, .. } => entries.extend(entry.clone().map(|entry| *entry)),
        Body::Promised { entries: all, .. } => entries.extend(all.clone()),
        Body::Compare { at, query, .. } => {
            of("At", at);
            of("Query", query);
        }
        Body::Compared { at, answer, .. } => {
            of("At", at);
            of("QueryAnswer", &**answer);
        }
        Body::Epoch(step) => {
            of("EpochMessage", step);
            if let EpochMessage::Refused { why, .. } = step {
                of("BallotRefusal", why);
            }
        }
        Body::Read { .. }
        | Body::Fence { .. }
        | Body::NotPromised { .. }
        | Body::Used(_)
        | Body::Known(_)
        | Body::Part { .. } => {}
    }
    entries.iter().for_each(|entry| of("EntryContent", &entry.content));
    nacks.iter().for_each(|(_, nack)| of("Nack", nack));
}

/// The variants of an enum in the source of the package.
fn declared(file: &str, name: &str) -> BTreeSet<String> {
    let path = format!("{}/src/replicator/{file}", env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(path).unwrap();
    let (_, rest) = source.split_once(&format!("pub enum {name} {{\n")).unwrap();
    let (body, _) = rest.split_once("\n}").unwrap();
    let is_variant = |line: &&str| {
        line.strip_prefix("    ").is_some_and(|line| line.starts_with(|c: char| c.is_uppercase()))
    };
    let variant = |line: &str| {
        let end = line.trim_start().split(|c: char| !c.is_alphanumeric()).next();
        format!("{name}::{}", end.unwrap())
    };
    body.lines().filter(is_variant).map(variant).collect()
}

#[test]
fn every_kind_of_message_has_golden_bytes() {
    let (mut found, mut due) = (BTreeSet::new(), BTreeSet::new());
    messages().iter().for_each(|(_, message)| kinds(message, &mut found));
    for name in ["Body", "EntryContent", "Nack", "AckScope", "At", "Query", "QueryAnswer"] {
        due.extend(declared("wire.rs", name));
    }
    for name in ["EpochMessage", "BallotRefusal"] {
        due.extend(declared("epoch/message.rs", name));
    }
    assert!(due.len() > 40, "{due:?}");
    assert_eq!(found, due);
}

// ── other releases ──

/// Offsets in a message of structs and tagged enums, each with its number of fields, and of strings
/// of one letter that are not field names.
#[derive(Default)]
struct Places {
    maps: Vec<(usize, usize)>,
    letters: Vec<usize>,
}

impl Places {
    fn of(bytes: &[u8]) -> Self {
        let mut places = Self::default();
        assert_eq!(places.walk(bytes, 0, false), bytes.len());
        places
    }

    /// Walks the value that begins at `at`; returns where it ends.
    fn walk(&mut self, bytes: &[u8], at: usize, named: bool) -> usize {
        let number = |width: usize| {
            let digits = &bytes[at + 1..=at + width];
            digits.iter().fold(0, |number, digit| number << 8 | usize::from(*digit))
        };
        match bytes[at] {
            0x80..=0x8f => {
                let fields = usize::from(bytes[at] & 0x0f);
                self.maps.push((at, fields));
                (0..2 * fields).fold(at + 1, |at, n| self.walk(bytes, at, n % 2 == 0))
            }
            0x90..=0x9f => {
                let count = usize::from(bytes[at] & 0x0f);
                (0..count).fold(at + 1, |at, _| self.walk(bytes, at, false))
            }
            0xa0..=0xbf => {
                if bytes[at] == 0xa1 && !named {
                    self.letters.push(at + 1);
                }
                at + 1 + usize::from(bytes[at] & 0x1f)
            }
            0xc4 => at + 2 + number(1),
            0xc5 => at + 3 + number(2),
            0xcc => at + 2,
            0xcd => at + 3,
            0xce => at + 5,
            0xcf => at + 9,
            0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 => at + 1,
            marker => panic!("no message has a {marker:02x}"),
        }
    }
}

/// The message with an unknown field added to the struct that begins at `at`.
fn widened(bytes: &[u8], at: usize) -> Vec<u8> {
    const UNKNOWN: [u8; 5] = [0xa3, b'n', b'e', b'w', 0xc0];
    [&bytes[..at], &[bytes[at] + 1], &UNKNOWN, &bytes[at + 1..]].concat()
}

#[test]
fn unknown_field_is_skipped_at_every_place() {
    let (mut structs, mut single) = (0, 0);
    for (name, message) in messages() {
        let bytes = message.encode();
        for (at, fields) in Places::of(&bytes).maps {
            if bytes[at + 2..].starts_with(b"secs") {
                continue; // std's `Duration` always has two fields
            }
            match ReplicatorMessage::decode(&widened(&bytes, at)) {
                Ok(newer) => assert_eq!(newer, message, "{name} at {at}"),
                // A tag and its variant look like a struct of one field.
                Err(why) => assert_eq!(fields, 1, "{name} at {at}: {why}"),
            }
            structs += usize::from(fields > 1);
            single +=
                usize::from(fields == 1 && ReplicatorMessage::decode(&widened(&bytes, at)).is_ok());
        }
    }
    assert!(structs > 100 && single >= 5, "{structs} structs, {single} of one field");
}

/// An unknown variant of a newer release is one error, which the receiver counts (`ostraca`'s
/// `node::receiver`), and never another message.
#[test]
fn unknown_variant_is_an_error_at_every_place() {
    let mut tried = 0;
    for (name, message) in messages() {
        let bytes = message.encode();
        let places = Places::of(&bytes);
        let tagged = places.maps.iter().filter(|(_, fields)| *fields == 1).map(|(at, _)| at + 2);
        for at in tagged.chain(places.letters) {
            let mut newer = bytes.clone();
            newer[at] = b'Z';
            let decoded = ReplicatorMessage::decode(&newer);
            if name.starts_with("epoch-ask") && decoded.is_ok() {
                continue; // an optional field, not a variant
            }
            assert!(matches!(decoded, Err(DecodeError::Message(_))), "{name} at {at}: {decoded:?}");
            tried += 1;
        }
    }
    assert!(tried > 60, "{tried}");
}

/// A value in a newer layout does not decode. The rest of its message is taken, and its sender is
/// told which entry was not.
#[test]
fn value_in_newer_layout_is_counted_and_rest_taken() {
    let mut bare = Bare::of(3);
    let mut entries = Vec::new();
    for key in ["a", "b"] {
        entries.extend(pushed(&mut other(1), insert(key, "tea", WRITE_MAJORITY)));
    }
    entries[1].index = 1;
    let EntryContent::Delta(bytes) = &entries[0].content else { panic!("{entries:?}") };
    let mut newer = bytes.as_slice().to_vec();
    assert_eq!(newer[0], ostraca_ddata::encoded::VERSION);
    newer[0] += 1;
    entries[0].content = EntryContent::Delta(newer.into());
    bare.hear(1, Body::Write { push: 3, whole: true, entries: entries.into() });
    let sent = bare.sent();
    let [(_, Body::Ack { nacks, .. })] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(nacks, &[(0, Nack::Undecodable)]);
    assert_eq!(bare.replicator.stats().undecodable, 1);
    assert!(bare.holds("b", "tea") && bare.replicator.peek(&"a".into()).is_none());
}
