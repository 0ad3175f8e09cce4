//! Random messages in random order: P60 and the general case of [`super::input`].

use proptest::prelude::*;

use ostraca_ddata::causal::{CausalContext, DotRange, DotSet};
use ostraca_ddata::key::{Group, KeyName, Pattern};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::replicator::port::ReplicatorInput;
use ostraca_ddata::replicator::request::{ReplicatorRequest, RequestError, WriteConsistency as To};
use ostraca_ddata::replicator::wire::{
    AckScope, At, Body, ContextBytes, Entry, EntryContent, KeyContext, Nack, Query, QueryAnswer,
    ReplicatorMessage, WireGuard,
};
use ostraca_ddata::types::{ORSet, Term};

use crate::bare::{Bare, Words, change, epoch_id, insert, peer};
use crate::cluster::{READ_MAJORITY, WRITE_MAJORITY, millis, secs};
use crate::input::{false_context, junk, other, pushed, set};

/// Valid entries of two members, so that generated messages are often nearly valid.
fn pool() -> Vec<Entry> {
    let mut all = Vec::new();
    for n in [1, 2] {
        let mut member = other(n);
        for key in ["a", "b"] {
            all.extend(pushed(&mut member, insert(key, "tea", To::Local)));
            let remove = change::<Words, _>(key, To::Local, |set| set.remove("tea"));
            all.extend(pushed(&mut member, remove));
            all.extend(pushed(&mut member, insert(key, "coffee", To::Local)));
        }
        all.extend(pushed(&mut member, set("r", "text")));
        all.extend(pushed(&mut member, change::<ORSet<u32>, _>("a", To::Local, |s| s.insert(&7))));
    }
    all
}

fn contexts() -> impl Strategy<Value = ContextBytes> {
    let run = (0_usize..5, 1_u64..5, 0_u64..5);
    let real = prop::collection::vec(run, 0..4).prop_map(|runs| {
        let mut context = CausalContext::new();
        for (n, first, more) in runs {
            let mut dots = DotSet::new();
            dots.insert_run(DotRange { replica: peer(n), first, last: first + more });
            context.extend(&dots);
        }
        ContextBytes::new(&context)
    });
    prop_oneof![9 => real, 1 => Just(false_context())]
}

fn keys() -> impl Strategy<Value = KeyName> {
    prop::sample::select(vec!["a", "b", "r", "g-1", "none"]).prop_map(KeyName::new)
}

fn helds() -> impl Strategy<Value = KeyContext> {
    (keys(), contexts()).prop_map(|(key, context)| KeyContext { key, context })
}

fn terms() -> impl Strategy<Value = Term> {
    (0_u64..4, 0_usize..3).prop_map(|(number, n)| Term { number, owner: peer(n) })
}

fn entries() -> impl Strategy<Value = Entry> {
    let guard = prop::option::weighted(0.1, prop::option::of(terms()));
    let kind = 0_u8..6;
    (prop::sample::select(pool()), 0_u32..4, guard, kind, contexts(), keys()).prop_map(
        |(mut entry, index, guard, kind, context, key)| {
            entry.index = index;
            entry.guard = guard.map(|term| WireGuard { group: Group::new("g-"), term });
            match kind {
                0 => entry.content = EntryContent::Probe(context),
                1 => entry.key = key,
                2 => entry.content = EntryContent::Full(junk()),
                _ => {}
            }
            entry
        },
    )
}

fn queries() -> impl Strategy<Value = Query> {
    prop_oneof![
        any::<(u64, u64)>().prop_map(|(sum, seed)| Query::Root { sum, seed }),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Query::Leaves),
        prop::collection::vec(any::<(u16, u16)>(), 0..300).prop_map(Query::Keys),
        prop::collection::vec(helds(), 0..8).prop_map(Query::Want),
    ]
}

fn answers() -> impl Strategy<Value = QueryAnswer> {
    let sums = || prop::collection::vec(any::<u64>(), 250..258);
    prop_oneof![
        Just(QueryAnswer::Same),
        Just(QueryAnswer::Gone),
        sums().prop_map(QueryAnswer::Tops),
        prop::collection::vec((any::<u8>(), sums()), 0..4).prop_map(QueryAnswer::Leaves),
        (prop::collection::vec(helds(), 0..8), any::<u16>())
            .prop_map(|(held, upto)| QueryAnswer::Keys { held, upto }),
        (0_u32..9, prop::collection::vec(entries(), 0..4))
            .prop_map(|(done, entries)| QueryAnswer::Entries { done, entries }),
    ]
}

fn ats() -> impl Strategy<Value = At> {
    let epoch = |number| EpochId { generation: 1, number };
    prop_oneof![
        4 => Just(At::Live),
        1 => (0_u64..3).prop_map(move |n| At::Sealed(epoch(n))),
        1 => (0_u64..3).prop_map(move |n| At::Synced(epoch(n))),
    ]
}

fn nack_kinds() -> impl Strategy<Value = Nack> {
    prop_oneof![
        contexts().prop_map(Nack::Lack),
        terms().prop_map(Nack::Fenced),
        Just(Nack::StoreFailed),
        Just(Nack::WrongType),
        Just(Nack::Undecodable),
        Just(Nack::Guarded(Group::new("g-"))),
    ]
}

fn bodies() -> impl Strategy<Value = Body> {
    let numbers = || 0_u64..12;
    let groups = || prop::sample::select(vec!["g-", "", "a"]).prop_map(Group::new);
    let some = |max| prop::collection::vec(entries(), 0..max);
    let scopes = prop_oneof![
        Just(AckScope::All),
        prop::collection::vec(0_u32..6, 0..4).prop_map(AckScope::Only)
    ];
    let promises = prop::collection::vec((groups(), terms()), 0..3);
    prop_oneof![
        (numbers(), any::<bool>(), some(5)).prop_map(|(push, whole, entries)| Body::Write {
            push,
            whole,
            entries: entries.into()
        }),
        (numbers(), scopes, any::<bool>(), prop::collection::vec((0_u32..6, nack_kinds()), 0..4))
            .prop_map(|(push, scope, counts, nacks)| Body::Ack { push, scope, counts, nacks }),
        (numbers(), helds()).prop_map(|(request, held)| Body::Read { request, held }),
        (numbers(), any::<bool>(), prop::option::of(contexts()), prop::option::of(entries()))
            .prop_map(|(request, counts, context, entry)| Body::ReadAnswer {
                request,
                counts,
                context,
                entry: entry.map(Box::new)
            }),
        (numbers(), groups(), terms(), prop::collection::vec(helds(), 0..4))
            .prop_map(|(request, group, term, held)| Body::Fence { request, group, term, held }),
        (numbers(), any::<bool>(), prop::collection::vec(helds(), 0..4), some(4)).prop_map(
            |(request, counts, differing, entries)| Body::Promised {
                request,
                counts,
                differing,
                entries
            }
        ),
        (numbers(), terms()).prop_map(|(request, current)| Body::NotPromised { request, current }),
        (numbers(), ats(), queries()).prop_map(|(session, at, query)| Body::Compare {
            session,
            at,
            query
        }),
        (numbers(), ats(), answers(), promises).prop_map(|(session, at, answer, promises)| {
            Body::Compared { session, at, answer: answer.into(), promises }
        }),
        prop::collection::vec((keys(), any::<u64>()), 0..5).prop_map(Body::Used),
        prop::collection::vec((keys(), any::<u64>()), 0..5).prop_map(Body::Known),
        (numbers(), 0_u32..2_000, 0_u32..2_000, prop::collection::vec(any::<u8>(), 0..50))
            .prop_map(|(transfer, total, offset, bytes)| Body::Part {
                transfer,
                total,
                offset,
                bytes: bytes.into()
            }),
    ]
}

/// One step of a run: a message, a request, or the passing of time.
#[derive(Clone, Debug)]
enum Step {
    Hear(usize, u64, Body),
    Write(u8),
    Read,
    Fence(Term),
    Link,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (1_usize..7, 0_u64..3, bodies()).prop_map(|(from, epoch, body)| Step::Hear(from, epoch, body)),
        2 => (0_u8..4).prop_map(Step::Write),
        1 => Just(Step::Read),
        1 => terms().prop_map(Step::Fence),
        1 => Just(Step::Link),
        2 => (0_u64..500).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..60)
}

fn run(config: ReplicatorConfig, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let durable = !config.durable_keys.is_empty();
    let mut bare = Bare::with(5, config);
    let (mut messages, mut asked) = (0, Vec::new());
    for step in steps {
        match step {
            Step::Hear(from, number, body) => {
                let epoch = (number > 0).then_some(EpochId { generation: 1, number });
                bare.hear_in(peer(from), epoch, body);
                messages += 1;
            }
            Step::Write(n) => {
                let request = insert(["a", "b", "c", "d"][usize::from(n)], "x", WRITE_MAJORITY);
                asked.push(bare.ask(request));
            }
            Step::Read => asked.push(bare.ask(crate::bare::get("a", READ_MAJORITY))),
            Step::Fence(term) => {
                let group = Group::new("g-");
                asked.push(bare.ask(ReplicatorRequest::Fence { group, term, within: secs(3) }));
            }
            Step::Link => bare.feed(ReplicatorInput::LinkUp(peer(1))),
            Step::Pass(ms) => bare.pass(millis(ms)),
        }
        if durable {
            bare.persist_all();
        }
    }
    bare.pass(secs(10));
    bare.persist_all();
    for id in asked {
        prop_assert!(bare.answer(id).is_some(), "every request must be answered");
    }
    let stats = bare.replicator.stats();
    prop_assert!(stats.keys <= 10, "{} keys", stats.keys);
    prop_assert_eq!(stats.requests_pending, 0);
    prop_assert!(bare.replicator.promises().len() <= 3);
    let sent = bare.sent().len();
    prop_assert!(sent < 3_000 + 100 * messages, "{} messages for {}", sent, messages);
    let id = bare.ask(insert("fresh", "tea", To::Local));
    bare.persist_all();
    let answer = bare.answer(id);
    let guarded = matches!(answer, Some(Err(RequestError::Guarded { .. })));
    prop_assert!(guarded || bare.holds("fresh", "tea"), "{answer:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// No received bytes make a decoder panic.
    #[test]
    fn random_bytes_never_panic_the_decoder(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(message) = ReplicatorMessage::decode(&bytes) {
            prop_assert_eq!(ReplicatorMessage::decode(&message.encode()), Ok(message));
        }
    }

    /// A message with some changed bytes decodes to a message that can be encoded again, or does
    /// not decode.
    #[test]
    fn changed_messages_reencode_if_they_decode(
        body in bodies(),
        spoil in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = ReplicatorMessage { epoch: Some(epoch_id()), body }.encode();
        for (at, byte) in spoil {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(message) = ReplicatorMessage::decode(&bytes) {
            prop_assert_eq!(ReplicatorMessage::decode(&message.encode()), Ok(message.clone()));
            let mut bare = Bare::of(3);
            bare.feed(ReplicatorInput::Message { from: peer(1), message });
            prop_assert!(bare.now(insert("zz", "tea", To::Local)).is_ok() || !bare.replicator.promises().is_empty());
        }
    }

    /// P60: every kind of message survives encoding and decoding.
    #[test]
    fn p60_messages_round_trip(body in bodies(), joined in any::<bool>()) {
        let message = ReplicatorMessage { epoch: joined.then_some(epoch_id()), body };
        prop_assert_eq!(ReplicatorMessage::decode(&message.encode()), Ok(message));
    }

    /// Valid-looking messages of any sender, in any order, between requests: nothing panics, every
    /// request is answered once, memory and messages are bounded, and the next local write
    /// succeeds.
    #[test]
    fn valid_looking_messages_do_no_harm(steps in steps()) {
        run(ReplicatorConfig::default(), steps)?;
    }

    /// As above, with durable keys, tiny frames and expiry.
    #[test]
    fn valid_looking_messages_do_no_harm_to_durable_data(steps in steps()) {
        run(ReplicatorConfig {
            durable_keys: vec![Pattern::new("*")],
            frame_bytes_max: 300,
            assembly_bytes_max: 5_000,
            expire_keys_after_inactivity: vec![(Pattern::new("a*"), millis(300))],
            direct_push_limit: 2,
            ..ReplicatorConfig::default()
        }, steps)?;
    }
}
