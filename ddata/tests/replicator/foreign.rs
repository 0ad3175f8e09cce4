//! Messages that no correct peer sends: impossible terms and numbers, trailing bytes, messages that
//! are too long, answers that are valid in part. Invalid parts are refused and counted, valid ones
//! beside them are merged.

use ostraca_ddata::causal::CausalContext;
use ostraca_ddata::encoded::Encoded;
use ostraca_ddata::key::Group;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{
    Ballot, BallotRefusal, Epoch, EpochId, EpochMessage, EpochSettings, InvalidEpoch,
    MembershipChange,
};
use ostraca_ddata::replicator::port::{ReplicatorAlarm, ReplicatorInput, ReplicatorOutput};
use ostraca_ddata::replicator::request::{
    ReplicatorReply, ReplicatorRequest, RequestError, WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::{
    At, Body, ContextBytes, Entry, EntryContent, KeyContext, Nack, QueryAnswer, ReplicatorMessage,
    WireGuard,
};
use ostraca_ddata::types::{LWWRegister, Term};

use crate::bare::{Bare, START, change, epoch_id, get, guarded, insert, nack, peer};
use crate::cluster::{READ_MAJORITY, WRITE_MAJORITY, first_epoch, millis, secs};
use crate::input::{junk, other, pushed};

type Home = LWWRegister<u32>;

fn term(number: u64) -> Term {
    Term { number, owner: peer(1) }
}

fn fence(group: &str, term: Term) -> ReplicatorRequest {
    ReplicatorRequest::Fence { group: Group::new(group), term, within: secs(3) }
}

// ── terms and numbers ──

#[test]
fn invalid_terms_and_empty_groups_are_refused_here() {
    let mut bare = Bare::of(1);
    let home =
        |group, term| guarded::<Home, _>((group, term), "g-1", WRITE_MAJORITY, |home| home.set(&1));
    for number in [0, u64::MAX / 2 + 1, u64::MAX] {
        let unfit = Err(RequestError::UnfitTerm { term: term(number) });
        assert_eq!(bare.now(fence("g-", term(number))), unfit);
        assert_eq!(bare.now(home("g-", term(number))), unfit);
    }
    assert_eq!(bare.now(fence("", term(1))), Err(RequestError::UnfitGroup));
    assert_eq!(bare.now(home("", term(1))), Err(RequestError::UnfitGroup));
    assert!(bare.now(insert("k", "tea", To::Local)).is_ok(), "no group has become known");
    assert!(bare.now(fence("g-", term(1))).is_ok());
}

/// Regression test: this replica promised such a term, which its peers never do, so that the fence
/// timed out and the promise stayed.
#[test]
fn own_fence_for_a_term_that_jumps_is_refused() {
    let mut bare = Bare::of(3);
    bare.sent();
    let highest = (1 << 48) + (1 << 21); // in generation 1
    for number in [highest + 1, u64::MAX / 2] {
        let term = term(number);
        assert_eq!(bare.now(fence("g-", term)), Err(RequestError::TermJumps { term, highest }));
    }
    assert_eq!((bare.replicator.promises(), bare.sent()), (vec![], vec![]));
    let id = bare.ask(fence("g-", term(highest)));
    assert_eq!((bare.answer(id), bare.replicator.promises().len()), (None, 1));
}

#[test]
fn invalid_terms_of_peers_are_ignored_and_counted() {
    let mut bare = Bare::of(3);
    for (group, number) in [("g-", 0), ("g-", u64::MAX), ("", 1)] {
        let (group, term) = (Group::new(group), term(number));
        bare.hear(1, Body::Fence { request: 1, group, term, held: vec![] });
    }
    assert_eq!((bare.replicator.promises(), bare.replicator.stats().undecodable), (vec![], 3));
    let id = bare.ask(fence("g-", term(3)));
    bare.hear(1, Body::NotPromised { request: id.0, current: term(u64::MAX) });
    assert_eq!(bare.answer(id), None, "no term could be higher than that one");
    let id = bare.ask(guarded::<Home, _>(("h-", term(3)), "h-1", WRITE_MAJORITY, |h| h.set(&1)));
    let (push, _) = bare.push_to_all_of_many(3);
    bare.hear(1, nack(push, Nack::Fenced(term(u64::MAX))));
    assert_eq!((bare.answer(id), bare.replicator.stats().undecodable), (None, 5));
    let mut entries = pushed(&mut other(1), change::<Home, _>("i-1", To::Local, |h| h.set(&1)));
    for (group, number) in [("i-", Some(u64::MAX)), ("", None)] {
        let (group, term) = (Group::new(group), number.map(term));
        entries[0].guard = Some(WireGuard { group, term });
        bare.sent();
        bare.hear(1, Body::Write { push: 7, whole: true, entries: entries.clone().into() });
        let sent = bare.sent();
        let [(_, Body::Ack { nacks, .. })] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(nacks, &[(0, Nack::Undecodable)]);
    }
    assert!(bare.replicator.peek(&"i-1".into()).is_none());
}

#[test]
fn refusal_for_a_nameless_group_guards_no_key() {
    let mut bare = Bare::of(3);
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(3);
    bare.hear(1, nack(push, Nack::Guarded(Group::new(""))));
    assert_eq!((bare.answer(id), bare.replicator.stats().undecodable), (None, 1));
    assert!(bare.now(insert("k", "milk", To::Local)).is_ok(), "no group has become known");
}

#[test]
fn register_with_an_invalid_term_does_not_decode() {
    use ostraca_ddata::clock::HybridTimestamp;
    use ostraca_ddata::types::Causal;
    use ostraca_ddata::types::edit::Author;
    let written = |number| {
        let mut register = Causal::<Home>::new();
        let author = Author::new(peer(1), HybridTimestamp::from_raw(START << 16));
        let author = Author { term: Some(term(number)), ..author };
        register.edit(author, |home| home.set(&1)).unwrap();
        register.encode()
    };
    assert!(Causal::<Home>::decode(&written(u64::MAX / 2)).is_ok());
    assert!(Causal::<Home>::decode(&written(u64::MAX / 2 + 1)).is_err(), "it would win for ever");
    assert!(Causal::<Home>::decode(&written(0)).is_err(), "no replica can hold term 0");
}

#[test]
fn invalid_promises_are_not_merged_in_a_sync() {
    let mut bare = Bare::joining(ReplicatorConfig::default());
    let install = Body::Epoch(EpochMessage::Install { epoch: first_epoch(3) });
    bare.hear_in(peer(1), Some(epoch_id()), install);
    let asked = bare.sent().into_iter().find_map(|(to, body)| match body {
        Body::Compare { session, at: at @ At::Synced(_), .. } => Some((to, session, at)),
        _ => None,
    });
    let (source, session, at) = asked.unwrap();
    let good = (Group::new("g-"), term(4));
    let promises =
        vec![(Group::new("a-"), term(u64::MAX)), (Group::new(""), term(1)), good.clone()];
    bare.hear_in(
        source,
        Some(epoch_id()),
        Body::Compared { session, at, answer: QueryAnswer::Same.into(), promises },
    );
    assert_eq!(bare.replicator.promises(), [good]);
    assert_eq!(bare.replicator.stats().undecodable, 2);
}

/// Regression test: `Same` ended a sync whatever the open question was.
#[test]
fn same_answers_only_the_root_question_of_a_sync() {
    let mut bare = Bare::joining(ReplicatorConfig::default());
    let install = Body::Epoch(EpochMessage::Install { epoch: first_epoch(3) });
    bare.hear_in(peer(1), Some(epoch_id()), install);
    let asked = |bare: &mut Bare| {
        let asked = bare.sent().into_iter().find_map(|(to, body)| match body {
            Body::Compare { session, at: at @ At::Synced(_), .. } => Some((to, session, at)),
            _ => None,
        });
        asked.expect("the replica syncs")
    };
    let answer = |bare: &mut Bare, (source, session, at), answer: QueryAnswer| {
        let (answer, promises) = (answer.into(), vec![]);
        let body = Body::Compared { session, at, answer, promises };
        bare.hear_in(source, Some(epoch_id()), body);
    };
    let root = asked(&mut bare);
    answer(&mut bare, root, QueryAnswer::Tops(vec![1; 256]));
    let keys = asked(&mut bare);
    answer(&mut bare, keys, QueryAnswer::Same);
    assert!(!bare.replicator.epochs().synced(), "no key of the source was merged");
    assert_eq!(bare.replicator.stats().false_digests, 1);
    answer(&mut bare, keys, QueryAnswer::Keys { held: vec![], upto: u16::MAX });
    assert!(bare.replicator.epochs().synced());
}

#[test]
fn ballots_and_ids_near_the_last_number_are_refused() {
    let id = EpochId { generation: 1, number: u64::MAX };
    let last = Epoch::founding(id, vec![peer(1)], EpochSettings::default());
    assert_eq!(last.unwrap_err(), InvalidEpoch::Number(id));
    let mut bare = Bare::of(3);
    bare.feed(ReplicatorInput::Propose(MembershipChange {
        leave: vec![peer(2)],
        ..MembershipChange::default()
    }));
    let number = bare.replicator.epochs().state().number;
    let ballot = Ballot { number, node: peer(0) };
    let why = BallotRefusal::Promised(Ballot { number: u64::MAX, node: peer(1) });
    let epoch = epoch_id();
    bare.hear(1, Body::Epoch(EpochMessage::Refused { epoch, ballot, why }));
    let proposal = std::sync::Arc::new(first_epoch(3).next(&MembershipChange::default()).unwrap());
    let accepted = Some((Ballot { number: u64::MAX, node: peer(1) }, proposal));
    bare.hear(1, Body::Epoch(EpochMessage::Sealed { epoch, ballot, accepted }));
    let stats = bare.replicator.stats().epoch;
    assert_eq!((stats.nonsense, stats.unfit), (1, 1));
    bare.pass(secs(5));
    assert!(bare.replicator.epochs().state().number < 100, "it does not adopt the number");
}

#[test]
fn proposal_for_an_earlier_configuration_is_superseded() {
    let mut bare = Bare::of(3);
    let change = MembershipChange { leave: vec![peer(2)], ..MembershipChange::default() };
    let base = EpochId { number: epoch_id().number - 1, ..epoch_id() };
    let attempts = |bare: &Bare| bare.replicator.stats().epoch.attempts;
    bare.feed(ReplicatorInput::ProposeAfter { base, change: change.clone() });
    assert_eq!(attempts(&bare), 0);
    bare.feed(ReplicatorInput::ProposeAfter { base: epoch_id(), change });
    assert_eq!(attempts(&bare), 1);
}

// ── bytes ──

#[test]
fn trailing_bytes_are_refused() {
    let entries = pushed(&mut other(1), insert("k", "tea", To::Local));
    let bodies = [
        Body::Write { push: 1, whole: true, entries: entries.into() },
        Body::Used(vec![("k".into(), 70_000); 20]),
        Body::Compare {
            session: 1,
            at: At::Live,
            query: ostraca_ddata::replicator::wire::Query::Leaves(vec![1; 40]),
        },
        Body::Part { transfer: 1, total: 70_000, offset: 0, bytes: vec![7; 70_000].into() },
    ];
    for body in bodies {
        let message = ReplicatorMessage { epoch: Some(epoch_id()), body };
        let mut bytes = message.encode();
        assert_eq!(ReplicatorMessage::decode(&bytes), Ok(message));
        for behind in [0x00, 0x91, 0xc0, 0xc1, 0xdf] {
            bytes.push(behind);
            assert!(ReplicatorMessage::decode(&bytes).is_err(), "{behind:x}");
            bytes.pop();
        }
    }
    for value in [rmp_serde::to_vec(&-1.5_f64).unwrap(), rmp_serde::to_vec(&"tea").unwrap()] {
        let behind = [&value[..], &[0]].concat();
        assert!(Encoded::from_bytes(&behind).decode::<serde::de::IgnoredAny>().is_err());
        assert!(Encoded::from_bytes(&value).decode::<serde::de::IgnoredAny>().is_ok());
    }
}

#[test]
fn answer_covers_no_buckets_beyond_its_ranges() {
    let mut bare = Bare::of(3);
    let ranges = (0..300).map(|n| (2 * n, 2 * n)).collect();
    let query = ostraca_ddata::replicator::wire::Query::Keys(ranges);
    bare.hear(1, Body::Compare { session: 1, at: At::Live, query });
    let upto = bare.sent().into_iter().find_map(|(_, body)| match body {
        Body::Compared { answer, .. } => match *answer {
            QueryAnswer::Keys { upto, .. } => Some(upto),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(upto, Some(2 * 255), "256 ranges were examined, and no key is in them");
}

#[test]
fn guarded_changes_with_long_names_overrun_no_frame() {
    let frame = 4_096;
    let mut bare =
        Bare::with(3, ReplicatorConfig { frame_bytes_max: frame, ..ReplicatorConfig::default() });
    let group = "g".repeat(900);
    let keys: Vec<String> = (0..40).map(|n| format!("{group}-{n}")).collect();
    let write = |key: &String| {
        guarded::<Home, _>((&group, term(1)), key, WRITE_MAJORITY, |home| home.set(&1))
    };
    bare.batch(keys.iter().map(write).collect());
    let sent = bare.sent();
    assert!(sent.len() >= 40, "two entries of 2 kB to a frame, for two peers");
    for (_, body) in sent {
        assert!(
            !matches!(body, Body::Part { .. }),
            "batches are cut to frames, not messages to pieces"
        );
        assert!(ReplicatorMessage { epoch: Some(epoch_id()), body }.encode().len() <= frame);
    }
}

#[test]
fn too_long_messages_are_refused_by_both_sides() {
    let mut bare = Bare::of(3);
    let piece = |transfer, total| Body::Part { transfer, total, offset: 0, bytes: junk() };
    bare.hear(1, piece(1, 64 << 20));
    let stats = bare.replicator.stats();
    assert_eq!((stats.too_large, stats.assemblies_dropped), (0, 0), "64 MiB are allowed");
    bare.hear(1, piece(2, (64 << 20) + 1));
    assert_eq!(bare.replicator.stats().too_large, 1);
    let alarm = ReplicatorAlarm::TooLarge { peer: peer(1), bytes: (64 << 20) + 1, limit: 64 << 20 };
    assert_eq!(bare.others, [ReplicatorOutput::Alarm(alarm)]);

    let config = ReplicatorConfig {
        frame_bytes_max: 1_000,
        assembly_bytes_max: 10_000,
        ..ReplicatorConfig::default()
    };
    let mut bare = Bare::with(2, config);
    bare.ask(insert("k", &"x".repeat(9_000), To::Local));
    assert!(bare.sent().iter().any(|(_, body)| matches!(body, Body::Part { .. })));
    assert_eq!(bare.replicator.stats().too_large, 0);
    bare.ask(insert("l", &"x".repeat(11_000), To::Local));
    assert!(!bare.sent().iter().any(|(_, body)| matches!(body, Body::Part { .. })));
    bare.pass(secs(1));
    assert!(bare.replicator.stats().too_large > 0);
    let too_large = |o: &ReplicatorOutput| {
        matches!(o, ReplicatorOutput::Alarm(ReplicatorAlarm::TooLarge { limit: 10_000, .. }))
    };
    assert!(bare.others.iter().any(too_large), "{:?}", bare.others);
}

/// Regression test: only the last such message before a tick was counted.
#[test]
fn every_message_that_is_too_long_is_counted() {
    let config = ReplicatorConfig { assembly_bytes_max: 100_000, ..ReplicatorConfig::default() };
    let mut bare = Bare::with(4, config);
    bare.ask(insert("k", &"x".repeat(100_000), To::Local));
    assert_eq!(bare.replicator.stats().too_large, 3, "one to each peer");
}

// ── answers that fit in part ──

#[test]
fn partly_invalid_promise_is_merged_but_does_not_count() {
    let mut bare = Bare::of(3);
    let id = bare.ask(fence("g-", Term { number: 1, owner: peer(0) }));
    let good = pushed(&mut other(1), change::<Home, _>("g-2", To::Local, |h| h.set(&7))).remove(0);
    let bad = |key: &str, content| Entry { key: key.into(), content, ..good.clone() };
    let entries = vec![bad("g-1", EntryContent::Delta(junk())), good.clone()];
    let promised =
        |differing, entries| Body::Promised { request: id.0, counts: true, differing, entries };
    bare.hear(1, promised(vec![], entries));
    assert!(bare.replicator.peek(&"g-2".into()).is_some(), "the valid entry is merged");
    assert_eq!(bare.answer(id), None, "it is unknown what node 1 holds under g-1");
    let false_held = KeyContext { key: "g-3".into(), context: crate::input::false_context() };
    bare.hear(1, promised(vec![false_held], vec![]));
    assert_eq!(bare.answer(id), None);
    assert_eq!(bare.replicator.stats().undecodable, 2);
    let elsewhere = bad("other", EntryContent::Delta(junk()));
    bare.hear(2, promised(vec![], vec![elsewhere]));
    let answer = bare.answer(id);
    assert!(answer.is_none(), "the recovery write of g-2 comes first: {answer:?}");
    let (push, _) = bare.push_to_all_of_many(3);
    bare.hear(1, crate::bare::ack(push));
    let Some(Ok(ReplicatorReply::Fenced { values, .. })) = bare.answer(id) else {
        panic!("not fenced")
    };
    assert_eq!(values.len(), 1);
}

#[test]
fn read_answer_without_its_data_does_not_count() {
    let mut bare = Bare::of(3);
    let entry = pushed(&mut other(1), insert("k", "tea", To::Local)).remove(0);
    let id = bare.ask(get("k", READ_MAJORITY));
    let mut holder = Bare::named(peer(1), ReplicatorConfig::default());
    let _ = holder.now(insert("k", "tea", To::Local));
    let context = holder.replicator.peek(&"k".into()).unwrap().state().context().clone();
    let context = Some(ContextBytes::new(&context));
    let answer =
        |entry| Body::ReadAnswer { request: id.0, counts: true, context: context.clone(), entry };
    bare.hear(1, answer(None));
    assert_eq!((bare.answer(id), bare.replicator.stats().undecodable), (None, 1));
    bare.hear(1, answer(Some(entry.into())));
    assert_eq!(bare.replicator.stats().undecodable, 1, "this answer is complete");
    assert_eq!(bare.replicator.stats().read_repairs, 1);
}

#[test]
fn empty_answer_of_another_type_does_not_block_a_read() {
    let mut bare = Bare::of(5);
    let id = bare.ask(get("k", READ_MAJORITY));
    let mut holder = other(1);
    let tea = pushed(&mut holder, insert("k", "tea", To::Local)).remove(0);
    let context = holder.replicator.peek(&"k".into()).unwrap().state().context().clone();
    let answer = |context: Option<ContextBytes>, entry: &Entry| Body::ReadAnswer {
        request: id.0,
        counts: true,
        context,
        entry: Some(entry.clone().into()),
    };
    let nothing = EntryContent::Probe(ContextBytes::new(&CausalContext::new()));
    let counter = Entry { shape: "pn-counter".into(), content: nothing, ..tea.clone() };
    bare.hear(2, answer(None, &counter));
    for honest in [1, 3] {
        assert_eq!(bare.answer(id), None);
        bare.hear(honest, answer(Some(ContextBytes::new(&context)), &tea));
    }
    assert!(matches!(bare.answer(id), Some(Ok(ReplicatorReply::Got { value: Some(_), .. }))));
}

#[test]
fn refused_entry_of_a_promise_is_not_returned() {
    let mut bare = Bare::of(3);
    let id = bare.ask(fence("g-", Term { number: 1, owner: peer(0) }));
    // It has a dot of this replica, which this replica did not make.
    let mut twin = other(0);
    let forged = pushed(&mut twin, change::<Home, _>("g-1", To::Local, |h| h.set(&7))).remove(0);
    let promised =
        |entries| Body::Promised { request: id.0, counts: true, differing: vec![], entries };
    bare.hear(1, promised(vec![forged]));
    assert_eq!((bare.answer(id), bare.replicator.stats().undecodable), (None, 1));
    bare.hear(2, promised(vec![]));
    let Some(Ok(ReplicatorReply::Fenced { values, .. })) = bare.answer(id) else {
        panic!("not fenced")
    };
    assert!(values.is_empty(), "{values:?}");
}

#[test]
fn promise_without_its_data_does_not_count() {
    let mut bare = Bare::of(3);
    let id = bare.ask(fence("g-", Term { number: 1, owner: peer(0) }));
    let mut holder = other(1);
    let home = change::<Home, _>("g-1", To::Local, |h| h.set(&7));
    let home = pushed(&mut holder, home).remove(0);
    let context = holder.replicator.peek(&"g-1".into()).unwrap().state().context().clone();
    let held = KeyContext { key: "g-1".into(), context: ContextBytes::new(&context) };
    let promised = |entries| {
        let differing = vec![held.clone()];
        Body::Promised { request: id.0, counts: true, differing, entries }
    };
    bare.hear(1, promised(vec![]));
    assert_eq!((bare.answer(id), bare.replicator.stats().undecodable), (None, 1));
    bare.hear(1, promised(vec![home]));
    let (push, _) = bare.push_to_all_of_many(3);
    bare.hear(1, crate::bare::ack(push));
    let Some(Ok(ReplicatorReply::Fenced { values, .. })) = bare.answer(id) else {
        panic!("not fenced")
    };
    assert_eq!(values.len(), 1);
}

// ── peers that come back, and leases ──

#[test]
fn reachable_again_peer_is_compared_at_once() {
    let config = ReplicatorConfig { gossip_interval: secs(1_000), ..ReplicatorConfig::default() };
    let mut bare = Bare::with(3, config);
    bare.members(3, &[], &[2]);
    bare.pass(secs(5));
    bare.sent();
    bare.members(3, &[], &[2]);
    bare.pass(secs(5));
    assert_eq!(bare.sent(), [], "no peer has become reachable");
    bare.members(3, &[], &[]);
    bare.pass(millis(200));
    let compared: Vec<_> = bare.sent().into_iter().map(|(to, _)| to).collect();
    assert_eq!(compared.first(), Some(&peer(2)));
}

#[test]
fn claimed_lease_time_is_capped_at_the_lease_length() {
    let mut bare = Bare::of(3);
    bare.feed(ReplicatorInput::Propose(MembershipChange {
        lost: vec![peer(2)],
        ..MembershipChange::default()
    }));
    let withholds = |bare: &mut Bare| {
        let withhold = |body: &Body| matches!(body, Body::Epoch(EpochMessage::Withhold { .. }));
        bare.sent().iter().filter(|(_, body)| withhold(body)).count()
    };
    assert!(withholds(&mut bare) > 0);
    let ballot = Ballot { number: bare.replicator.epochs().state().number, node: peer(0) };
    let remaining = vec![(peer(2), secs(1_000_000_000))];
    bare.hear(1, Body::Epoch(EpochMessage::Withheld { epoch: epoch_id(), ballot, remaining }));
    bare.sent();
    bare.pass(millis(4_990));
    assert_eq!(withholds(&mut bare), 0, "the lease may be valid for five seconds");
    bare.pass(millis(20));
    assert!(withholds(&mut bare) > 0, "the question is repeated");
}
