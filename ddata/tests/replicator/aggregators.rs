//! Requests that wait for other replicas: the cases of Pekko's `WriteAggregatorSpec` (P1–P13) and
//! the arithmetic of the levels, on one machine with 4 peers and a timeout of 3 s.
//!
//! | Pekko | here |
//! |---|---|
//! | P1, P3, P7 the needed number is asked, the rest after timeout/5 | all are asked at once; silent ones are asked again after twice the p95 |
//! | P2 unreachable ones are asked last | reachability does not matter for a write |
//! | P8, P9 a `DeltaNack` gets the full state | a `Lack` gets a repair at once, silent ones get the delta again |
//! | P4–P6 floors and additions | as Pekko's |
//! | P10–P13 durable keys | as Pekko's, but the local copy counts only when it is on disk (defect 14) |

use ostraca_ddata::causal::CausalContext;
use ostraca_ddata::durable::StoreError;
use ostraca_ddata::key::Pattern;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{EpochId, EpochMessage};
use ostraca_ddata::replicator::port::ReplicatorInput;
use ostraca_ddata::replicator::request::{
    MinCap, ReadConsistency as Read, ReplicatorReply, ReplicatorRequest, RequestError,
    WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::{
    At, Body, ContextBytes, EntryContent, KeyContext, Nack, QueryAnswer,
};

use crate::bare::{Bare, Words, ack, epoch_id, get, insert, nack, peer, sent_as};
use crate::cluster::{READ_MAJORITY, WRITE_MAJORITY, first_epoch, millis, secs};

fn durable() -> Bare {
    let config =
        ReplicatorConfig { durable_keys: vec![Pattern::new("*")], ..ReplicatorConfig::default() };
    Bare::with(5, config)
}

fn broken() -> StoreError {
    StoreError("no space left".into())
}

fn lack(context: &CausalContext) -> Nack {
    Nack::Lack(ContextBytes::new(context))
}

/// The contents of the entries pushed to this peer.
fn brought(bare: &mut Bare, to: usize) -> Vec<EntryContent> {
    let to = peer(to);
    let pushes = bare.pushes().into_iter().filter(|(peer, ..)| *peer == to);
    pushes.flat_map(|(.., entries)| entries).map(|entry| entry.content).collect()
}

#[test]
fn p01_two_acks_of_four_peers_complete_a_majority() {
    let mut bare = Bare::of(5);
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(5);
    bare.hear(3, ack(push));
    assert_eq!(bare.answer(id), None);
    assert_eq!(bare.replicator.stats().requests_pending, 1);
    bare.hear(1, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(ReplicatorReply::Updated { .. }))));
    assert_eq!(bare.replicator.stats().requests_pending, 0);
}

#[test]
fn p02_acks_of_unreachable_replicas_count() {
    let mut bare = Bare::of(5);
    bare.members(5, &[], &[3, 4]);
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(5);
    bare.hear(3, ack(push));
    bare.hear(4, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(ReplicatorReply::Updated { .. }))));
}

#[test]
fn p03_timeout_after_one_ack_names_the_missing_replicas() {
    let mut bare = Bare::of(5);
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(5);
    bare.hear(2, ack(push));
    bare.hear(2, ack(push)); // a duplicate counts once
    bare.pass(millis(2_999));
    assert_eq!(bare.answer(id), None);
    bare.pass(millis(1));
    let Some(Err(RequestError::Timeout(tally))) = bare.answer(id) else { panic!("no timeout") };
    assert_eq!((tally.answered, tally.needed), (2, 3));
    assert_eq!(tally.missing, [peer(1), peer(3), peer(4)]);
    assert!(bare.holds("k", "tea"), "the update stays applied");
    assert_eq!(bare.replicator.stats().timeouts, 1);
}

/// The number of acknowledgements of peers that complete a write at this level.
fn acks_needed(members: usize, level: To) -> usize {
    let mut bare = Bare::of(members);
    let id = bare.ask(insert("k", "tea", level));
    if bare.answer(id).is_some() {
        return 0;
    }
    let (push, _) = bare.push_to_all(members);
    for n in 1..members {
        bare.hear(n, ack(push));
        if let Some(answer) = bare.answer(id) {
            assert!(answer.is_ok());
            return n;
        }
    }
    panic!("{members} members: {level:?} is never complete");
}

#[test]
fn p04_to_p06_floors_and_additions_count_as_in_pekko() {
    let floor = [(3, 3), (4, 4), (5, 5), (6, 5), (7, 5), (8, 5), (9, 5), (10, 6), (11, 6), (12, 7)];
    for (members, needed) in floor {
        let level = To::Majority(MinCap(5), secs(3));
        assert_eq!(acks_needed(members, level) + 1, needed, "{members}, floor 5");
    }
    let plus = [(3, 1, 3), (4, 1, 4), (5, 1, 4), (5, 2, 5), (8, 2, 7), (9, 1, 6), (11, 3, 9)];
    for (members, more, needed) in plus {
        let level = To::MajorityPlus(more, MinCap(0), secs(3));
        assert_eq!(acks_needed(members, level) + 1, needed, "{members} + {more}");
    }
    for (cap, needed) in [(5, 6), (7, 7), (10, 9)] {
        let level = To::MajorityPlus(1, MinCap(cap), secs(3));
        assert_eq!(acks_needed(9, level) + 1, needed, "9 + 1, floor {cap}");
    }
    for n in 1..=5 {
        assert_eq!(acks_needed(5, To::To(n, secs(3))) + 1, n, "To({n})");
    }
    assert_eq!(acks_needed(5, To::All(secs(3))), 4);
    for level in [WRITE_MAJORITY, To::All(secs(3)), To::To(1, secs(3))] {
        assert_eq!(acks_needed(1, level), 0, "{level:?} needs only this replica if it is alone");
    }
}

#[test]
fn p07_changes_go_as_deltas_and_two_acks_complete_them() {
    let mut bare = Bare::of(5);
    let _ = bare.now(insert("k", "coffee", To::Local));
    let (first, _) = bare.push_to_all(5);
    (1..5).for_each(|n| bare.hear(n, ack(first)));
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, entries) = bare.push_to_all(5);
    assert!(matches!(&entries[..], [entry] if matches!(entry.content, EntryContent::Delta(_))));
    bare.hear(1, ack(push));
    bare.hear(2, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(_))));
}

#[test]
fn p08_lack_gets_a_repair_and_silent_peers_a_resend() {
    let mut bare = Bare::of(5);
    let id = bare.ask(insert("k", "tea", To::All(secs(3))));
    let (push, _) = bare.push_to_all(5);
    bare.hear(1, ack(push));
    bare.hear(2, ack(push));
    bare.hear(3, nack(push, lack(&CausalContext::new())));
    assert_eq!(brought(&mut bare, 3).len(), 1, "the repair, in the same batch");
    bare.hear(3, ack(push));
    bare.pass(millis(150)); // twice the first guess of a round trip
    let again = bare.pushes();
    assert!(!again.is_empty() && again.iter().all(|(to, ..)| *to == peer(4)), "{again:?}");
    assert_eq!(bare.answer(id), None);
    bare.hear(4, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(_))));
    bare.pass(secs(3));
    assert_eq!(bare.pushes(), [], "nothing is resent");
    assert_eq!(bare.replicator.stats().pushes_open, 0);
}

#[test]
fn p09_one_ack_one_lack_two_silent_end_in_a_timeout() {
    let mut bare = Bare::of(5);
    let id = bare.ask(insert("k", "tea", To::All(secs(3))));
    let (push, _) = bare.push_to_all(5);
    bare.hear(1, ack(push));
    bare.hear(2, nack(push, lack(&CausalContext::new())));
    bare.pass(millis(150));
    let again: Vec<_> = bare.pushes().into_iter().map(|(to, ..)| to).collect();
    for silent in [2, 3, 4] {
        assert!(again.contains(&peer(silent)), "{silent} is asked again");
    }
    assert!(!again.contains(&peer(1)));
    bare.pass(secs(3));
    let Some(Err(RequestError::Timeout(tally))) = bare.answer(id) else { panic!("no timeout") };
    assert_eq!((tally.answered, tally.needed), (2, 5));
    assert_eq!(tally.missing, [peer(2), peer(3), peer(4)]);
}

#[test]
fn p10_durable_write_waits_for_the_local_disk() {
    let mut bare = durable();
    let id = bare.ask(insert("k", "tea", To::To(3, secs(3))));
    let (push, _) = bare.push_to_all(5);
    bare.hear(1, ack(push));
    bare.hear(2, ack(push));
    assert_eq!(bare.answer(id), None, "two of three: the local disk has not answered");
    bare.stored(Ok(()));
    assert!(matches!(bare.answer(id), Some(Ok(_))));
}

#[test]
fn p11_one_failed_disk_of_four_does_not_fail_the_write() {
    let mut bare = durable();
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(5);
    bare.stored(Ok(()));
    bare.hear(1, nack(push, Nack::StoreFailed));
    bare.hear(2, ack(push));
    bare.hear(3, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(_))));
}

#[test]
fn p12_three_failed_disks_fail_the_write_at_once() {
    let mut bare = durable();
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(5);
    bare.stored(Ok(()));
    bare.hear(1, ack(push));
    bare.hear(2, nack(push, Nack::StoreFailed));
    bare.hear(3, nack(push, Nack::StoreFailed));
    assert_eq!(bare.answer(id), None, "the last one may still complete it");
    bare.hear(4, nack(push, Nack::StoreFailed));
    assert_eq!(bare.answer(id), Some(Err(RequestError::StoreFailure { failed: 3 })));
    assert!(bare.holds("k", "tea"), "it stays applied in memory");
}

#[test]
fn p13_two_failed_disks_and_a_silent_peer_time_out() {
    let mut bare = durable();
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(5);
    bare.stored(Ok(()));
    bare.hear(1, ack(push));
    bare.hear(2, nack(push, Nack::StoreFailed));
    bare.hear(3, nack(push, Nack::StoreFailed));
    bare.pass(secs(3));
    let Some(Err(RequestError::Timeout(tally))) = bare.answer(id) else { panic!("no timeout") };
    assert_eq!((tally.answered, tally.needed), (2, 3));
}

#[test]
fn defect_14_failed_local_disk_does_not_count() {
    let mut bare = durable();
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(5);
    bare.stored(Err(broken()));
    bare.hear(1, ack(push));
    bare.hear(2, ack(push));
    assert_eq!(bare.answer(id), None, "two disks are not a majority of five");
    bare.hear(3, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(_))));
    assert_eq!(bare.replicator.stats().store_failures, 1);
}

#[test]
fn failed_disk_is_a_store_failure_of_a_local_write() {
    let mut bare = durable();
    let id = bare.ask(insert("k", "tea", To::Local));
    assert_eq!(bare.answer(id), None, "no reply before it is on disk");
    bare.stored(Err(broken()));
    assert_eq!(bare.answer(id), Some(Err(RequestError::StoreFailure { failed: 1 })));
    let id = bare.ask(ReplicatorRequest::Delete { key: "k".into(), consistency: To::Local });
    bare.stored(Err(broken()));
    assert_eq!(bare.answer(id), Some(Err(RequestError::StoreFailure { failed: 1 })));
}

#[test]
fn replica_with_failed_disk_refuses_and_does_not_vouch() {
    let mut bare = durable();
    let mut writer = durable();
    writer.ask(insert("k", "tea", To::Local));
    let (push, entries) = writer.push_to_all(5);
    bare.sent();
    bare.hear(1, Body::Write { push, whole: true, entries: foreign(&entries).into() });
    assert_eq!(bare.sent(), [], "no acknowledgement before the disk has it");
    bare.stored(Err(broken()));
    let sent = bare.sent();
    let [(_, Body::Ack { nacks, .. })] = &sent[..] else { panic!("no ack: {sent:?}") };
    assert_eq!(nacks, &[(0, Nack::StoreFailed)]);
    let held = KeyContext { key: "k".into(), context: ContextBytes::new(&CausalContext::new()) };
    bare.hear(1, Body::Read { request: 9, held });
    let sent = bare.sent();
    let [(_, Body::ReadAnswer { context, entry, .. })] = &sent[..] else { panic!("no answer") };
    assert_eq!(*context, None, "it vouches for nothing, which equals the reader's context");
    assert!(entry.is_some(), "it sends its data all the same");
}

/// The same change as in `entries`, made by peer 1: `entries` have the dots of this replica.
fn foreign(
    entries: &[ostraca_ddata::replicator::wire::Entry],
) -> Vec<ostraca_ddata::replicator::wire::Entry> {
    let mut peer_1 = Bare::named(peer(1), ReplicatorConfig::default());
    peer_1.found(first_epoch(5));
    peer_1.ask(insert("k", "tea", To::Local));
    let (_, _, own) = peer_1.pushes().remove(0);
    assert_eq!(own.len(), entries.len());
    own
}

#[test]
fn level_above_the_members_is_refused_without_change() {
    let mut bare = Bare::of(3);
    let refused = Err(RequestError::NotEnoughReplicas { needed: 4, existing: 3 });
    assert_eq!(bare.now(insert("k", "tea", To::To(4, secs(3)))), refused);
    assert_eq!(bare.now(get("k", Read::From(4, secs(3)))), refused);
    assert_eq!((bare.sent(), bare.holds("k", "tea")), (vec![], false));
}

#[test]
fn without_a_configuration_only_local_requests_succeed() {
    let mut bare = Bare::of(0);
    let not_joined = Err(RequestError::NotJoined);
    assert_eq!(bare.now(insert("k", "tea", WRITE_MAJORITY)), not_joined);
    assert_eq!(bare.now(insert("k", "tea", To::To(1, secs(3)))), not_joined);
    assert_eq!(bare.now(get("k", READ_MAJORITY)), not_joined);
    assert_eq!(bare.now(ReplicatorRequest::FlushChanges { within: secs(1) }), not_joined);
    assert_eq!(bare.now(ReplicatorRequest::ReplicaCount), Ok(ReplicatorReply::ReplicaCount(0)));
    assert!(!bare.holds("k", "tea"));
    assert!(bare.now(insert("k", "tea", To::Local)).is_ok());
    assert!(bare.holds("k", "tea"));
    assert_eq!(bare.sent(), []);
}

#[test]
fn known_failure_25_number_of_open_requests_is_bounded() {
    let mut bare =
        Bare::with(3, ReplicatorConfig { max_pending_requests: 3, ..ReplicatorConfig::default() });
    let waiting = [
        bare.ask(insert("k", "tea", WRITE_MAJORITY)),
        bare.ask(get("k", READ_MAJORITY)),
        bare.ask(ReplicatorRequest::FlushChanges { within: secs(3) }),
    ];
    let overloaded = Err(RequestError::Overloaded { limit: 3 });
    assert_eq!(bare.now(insert("k", "coffee", WRITE_MAJORITY)), overloaded);
    assert_eq!(bare.now(get("k", READ_MAJORITY)), overloaded);
    assert_eq!(bare.now(ReplicatorRequest::FlushChanges { within: secs(3) }), overloaded);
    assert!(!bare.holds("k", "coffee"), "a refused request changes nothing");
    assert!(bare.now(get("k", Read::Local)).is_ok(), "a local read does not wait and is served");
    bare.pass(secs(3));
    assert!(waiting.iter().all(|id| matches!(bare.answer(*id), Some(Err(_)))));
    assert_eq!(bare.replicator.stats().requests_pending, 0);
    bare.ask(insert("k", "coffee", WRITE_MAJORITY));
    assert!(bare.holds("k", "coffee"));
}

#[test]
fn sealed_replica_counts_neither_itself_nor_for_peers() {
    let mut bare = Bare::of(5);
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, entries) = bare.push_to_all(5);
    bare.seal(5, 4);
    bare.hear(1, ack(push));
    bare.hear(2, ack(push));
    assert_eq!(bare.answer(id), None, "two voters count, the sealed replica does not");
    bare.sent();
    bare.hear(1, Body::Write { push: 9, whole: true, entries: entries.into() });
    let sent = bare.sent();
    let counts = |(_, body): &_| matches!(body, Body::Ack { counts: false, push: 9, .. });
    assert!(sent.iter().any(counts), "its acknowledgement does not count: {sent:?}");
    bare.hear(3, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(_))), "three voters count that are not sealed");
}

#[test]
fn uncounted_ack_is_asked_for_again_until_it_counts() {
    let mut bare = Bare::of(3);
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(3);
    for n in [1, 2] {
        let Body::Ack { scope, .. } = ack(push) else { unreachable!() };
        bare.hear(n, Body::Ack { push, scope, counts: false, nacks: vec![] });
    }
    bare.pass(millis(300));
    assert_eq!(bare.answer(id), None);
    let same = |name: &u64| sent_as(*name).0 == sent_as(push).0;
    assert!(bare.pushes().iter().any(|(to, name, _)| *to == peer(2) && same(name)));
    bare.hear(2, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(_))));
    bare.sent();
    bare.pass(secs(5));
    assert_eq!(bare.pushes(), [], "both peers hold it and no request waits");
}

#[test]
fn acks_of_another_configuration_do_not_count() {
    let mut bare = Bare::of(3);
    let id = bare.ask(insert("k", "tea", To::All(secs(3))));
    let (push, _) = bare.push_to_all(3);
    bare.hear(1, ack(push));
    // A second configuration without node 2, learned from a peer.
    let change = ostraca_ddata::replicator::epoch::MembershipChange {
        leave: vec![peer(2)],
        ..Default::default()
    };
    let next = std::sync::Arc::new(first_epoch(3).next(&change).unwrap());
    bare.hear(1, Body::Epoch(EpochMessage::Install { epoch: next.clone() }));
    assert_eq!(bare.replicator.epochs().id(), Some(next.id()));
    assert_eq!(bare.answer(id), None, "counting has started anew");
    let push_again = bare.pushes().into_iter().find(|(to, ..)| *to == peer(1));
    assert_eq!(push_again.map(|(_, n, _)| n), Some(push), "the push is sent again");
    bare.hear_in(peer(1), Some(epoch_id()), ack(push));
    assert_eq!(bare.answer(id), None, "an acknowledgement of the first configuration");
    bare.hear_in(peer(1), Some(EpochId { generation: 1, number: 9 }), ack(push));
    assert_eq!(bare.answer(id), None, "an acknowledgement of an unknown configuration");
    bare.hear_in(peer(1), Some(next.id()), ack(push));
    // This replica is not synced for the new configuration until it has pulled the state.
    let synced = bare.replicator.epochs().eligible();
    assert_eq!(bare.answer(id).is_some(), synced);
}

/// Installs the next configuration of five nodes, without node 4, and returns its id.
fn install_next(bare: &mut Bare) -> EpochId {
    let change = ostraca_ddata::replicator::epoch::MembershipChange {
        leave: vec![peer(4)],
        ..Default::default()
    };
    let next = std::sync::Arc::new(first_epoch(5).next(&change).unwrap());
    bare.hear(1, Body::Epoch(EpochMessage::Install { epoch: next.clone() }));
    next.id()
}

/// Ends the sync of this replica by answering its question with `Same`.
fn sync(bare: &mut Bare, epoch: EpochId) {
    let question = |(to, body)| match body {
        Body::Compare { session, at: at @ At::Synced(_), .. } => Some((to, session, at)),
        _ => None,
    };
    let asked: Vec<_> = bare.sent().into_iter().filter_map(question).collect();
    let (answer, promises) = (QueryAnswer::Same.into(), vec![]);
    let (source, session, at) = asked.first().copied().expect("the replica syncs");
    bare.hear_in(source, Some(epoch), Body::Compared { session, at, answer, promises });
}

/// Regression test, found by the suites: an entry that was merged in one configuration and on disk
/// in the next was acknowledged as if it had been merged in the next.
#[test]
fn entry_on_disk_after_an_install_is_acked_without_counting() {
    let mut bare = durable();
    let entries = crate::input::pushed(&mut crate::input::other(1), insert("k", "tea", To::Local));
    bare.hear(1, Body::Write { push: 9, whole: true, entries: entries.into() });
    let [merged] = bare.persists[..] else { panic!("{:?}", bare.persists) };
    bare.sent();
    let epoch = install_next(&mut bare);
    let others = |bare: &mut Bare| {
        while let Some(at) = bare.persists.iter().position(|id| *id != merged) {
            let id = bare.persists.remove(at);
            bare.feed(ReplicatorInput::Persisted { id, result: Ok(()) });
        }
    };
    others(&mut bare);
    sync(&mut bare, epoch);
    others(&mut bare);
    bare.pass(secs(1)); // a write of the key is missing: the end of the sync is tried again
    others(&mut bare);
    assert!(
        bare.replicator.epochs().eligible(),
        "the replica is eligible in the new configuration"
    );
    bare.sent();
    bare.stored(Ok(()));
    let sent = bare.sent();
    let counts = sent.iter().find_map(|(_, body)| match body {
        Body::Ack { push: 9, counts, .. } => Some(*counts),
        _ => None,
    });
    assert_eq!(counts, Some(false), "{sent:?}");
}

/// Regression test, found by the suites: a read that was sent before this replica had synced took
/// an answer "the same" as equal to the state that it held later.
#[test]
fn equal_answer_refers_to_the_context_in_the_question() {
    let mut bare = Bare::of(5);
    let _ = bare.now(insert("k", "tea", To::Local));
    let id = bare.ask(get("k", READ_MAJORITY));
    bare.sent();
    let epoch = install_next(&mut bare);
    let milk = crate::input::pushed(&mut crate::input::other(3), insert("k", "milk", To::Local));
    let body = Body::Write { push: 0, whole: true, entries: milk.into() };
    bare.hear_in(peer(3), Some(epoch), body);
    sync(&mut bare, epoch);
    assert!(bare.replicator.epochs().eligible() && bare.holds("k", "milk"));
    for n in [1, 2] {
        bare.hear_in(peer(n), Some(epoch), same(id.0));
    }
    assert_eq!(bare.answer(id), None, "nodes 1 and 2 hold the tea, but not the milk");
    assert_eq!(bare.replicator.stats().read_repairs, 1);
}

#[test]
fn all_excludes_members_that_announce_their_stop() {
    let mut bare = Bare::of(3);
    let id = bare.ask(insert("k", "tea", To::All(secs(3))));
    let (push, _) = bare.push_to_all(3);
    bare.hear(1, ack(push));
    assert_eq!(bare.answer(id), None);
    bare.members(3, &[2], &[]);
    assert!(matches!(bare.answer(id), Some(Ok(_))), "node 2 has announced its stop");
    let id = bare.ask(get("k", Read::All(secs(3))));
    let asked: Vec<_> = bare.sent().into_iter().filter_map(read).collect();
    assert_eq!(asked.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [peer(1)]);
    bare.hear(1, same(asked[0].1));
    assert!(matches!(bare.answer(id), Some(Ok(_))));
}

fn read(
    (to, body): (ostraca_ddata::id::ReplicaId, Body),
) -> Option<(ostraca_ddata::id::ReplicaId, u64)> {
    if let Body::Read { request, .. } = body { Some((to, request)) } else { None }
}

/// An answer that vouches for the reader's own context.
fn same(request: u64) -> Body {
    Body::ReadAnswer { request, counts: true, context: None, entry: None }
}

#[test]
fn all_needs_a_majority_of_the_voters() {
    let mut bare = Bare::of(5);
    bare.members(5, &[2, 3, 4], &[]);
    let id = bare.ask(insert("k", "tea", To::All(secs(3))));
    let (push, _) = bare.push_to_all(5);
    bare.hear(1, ack(push));
    assert_eq!(
        bare.answer(id),
        None,
        "both remaining members hold it, but two of five are not a majority"
    );
    bare.hear(2, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(_))));
    let id = bare.ask(insert("k", "milk", To::All(secs(3))));
    let (push, _) = bare.push_to_all(5);
    bare.hear(1, ack(push));
    bare.pass(secs(3));
    let Some(Err(RequestError::Timeout(tally))) = bare.answer(id) else { panic!("no timeout") };
    assert_eq!(tally.missing, [peer(2), peer(3), peer(4)], "one of them must answer as well");
    bare.sent();
    let id = bare.ask(insert("k", "coffee", To::To(2, secs(3))));
    let (push, _) = bare.push_to_all(5);
    bare.hear(1, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(_))), "To(n) needs exactly n replicas");
}

#[test]
fn read_at_all_asks_stopping_voters_for_a_majority() {
    let mut bare = Bare::of(5);
    bare.members(5, &[2, 3, 4], &[]);
    let id = bare.ask(get("k", Read::All(secs(3))));
    let asked: Vec<_> = bare.sent().into_iter().filter_map(read).collect();
    let all: Vec<_> = (1..5).map(peer).collect();
    assert_eq!(asked.iter().map(|(to, _)| *to).collect::<Vec<_>>(), all);
    bare.hear(2, same(asked[0].1));
    bare.hear(3, same(asked[0].1));
    assert_eq!(bare.answer(id), None, "node 1 is a member that counts");
    bare.hear(1, same(asked[0].1));
    assert!(matches!(bare.answer(id), Some(Ok(_))));
}

#[test]
fn failed_disk_beside_stopping_voters_fails_no_write() {
    for to in [To::All(secs(3)), WRITE_MAJORITY] {
        let mut bare = durable();
        bare.members(5, &[2, 3, 4], &[]);
        let id = bare.ask(insert("k", "tea", to));
        let (push, _) = bare.push_to_all(5);
        bare.stored(Ok(()));
        bare.hear(4, nack(push, Nack::StoreFailed));
        bare.hear(1, ack(push));
        assert_eq!(bare.answer(id), None, "a stopping voter can still acknowledge");
        bare.hear(2, ack(push));
        assert!(matches!(bare.answer(id), Some(Ok(_))));
    }
    let mut bare = durable();
    bare.members(5, &[2, 3, 4], &[]);
    let id = bare.ask(insert("k", "tea", To::All(secs(3))));
    let (push, _) = bare.push_to_all(5);
    bare.stored(Ok(()));
    bare.hear(1, nack(push, Nack::StoreFailed));
    let failed = Err(RequestError::StoreFailure { failed: 1 });
    assert_eq!(bare.answer(id), Some(failed), "node 1 is a member that counts");
}

#[test]
fn read_asks_all_voters_and_equal_answers_are_short() {
    let mut bare = Bare::of(5);
    let _ = bare.now(insert("k", "tea", To::Local));
    bare.sent();
    let id = bare.ask(get("k", READ_MAJORITY));
    let asked: Vec<_> = bare.sent().into_iter().filter_map(read).collect();
    assert_eq!(asked.len(), 4);
    bare.hear(1, same(asked[0].1));
    bare.hear(1, same(asked[0].1)); // a duplicate
    assert_eq!(bare.answer(id), None);
    bare.hear(2, same(asked[0].1));
    let Some(Ok(ReplicatorReply::Got { value: Some(value), .. })) = bare.answer(id) else {
        panic!("no value")
    };
    assert!(value.get::<Words>().unwrap().contains("tea"));
    assert_eq!((bare.pushes(), bare.replicator.stats().read_repairs), (vec![], 0));
}

#[test]
fn read_with_differing_answers_writes_back_first() {
    cov_mark::check!(read_repair);
    let mut bare = Bare::of(3);
    let _ = bare.now(insert("k", "tea", To::Local));
    bare.sent();
    let id = bare.ask(get("k", READ_MAJORITY));
    let request = bare.sent().into_iter().find_map(read).unwrap().1;
    let nothing = Some(ContextBytes::new(&CausalContext::new()));
    bare.hear(2, Body::ReadAnswer { request, counts: true, context: nothing, entry: None });
    assert_eq!(bare.answer(id), None, "only one replica holds it");
    let back = bare.pushes();
    let to = |n| back.iter().find(|(to, ..)| *to == peer(n)).map(|(.., e)| e[0].content.clone());
    assert!(matches!(to(2), Some(EntryContent::Delta(_))), "node 2 is known to lack it");
    assert!(matches!(to(1), Some(EntryContent::Probe(_))), "node 1 is probed");
    bare.hear(2, Body::Ack { push: back[0].1, scope: scope_0(), counts: true, nacks: vec![] });
    assert!(matches!(bare.answer(id), Some(Ok(ReplicatorReply::Got { value: Some(_), .. }))));
    assert_eq!(bare.replicator.stats().read_repairs, 1);
}

fn scope_0() -> ostraca_ddata::replicator::wire::AckScope {
    ostraca_ddata::replicator::wire::AckScope::Only(vec![0])
}

#[test]
fn read_timeout_names_the_missing_replicas() {
    let mut bare = Bare::of(5);
    let id = bare.ask(get("k", READ_MAJORITY));
    let request = bare.sent().into_iter().find_map(read).unwrap().1;
    bare.hear(4, same(request));
    bare.hear(3, Body::ReadAnswer { request, counts: false, context: None, entry: None });
    bare.pass(millis(150));
    let again: Vec<_> = bare.sent().into_iter().filter_map(read).map(|(to, _)| to).collect();
    assert!(again.contains(&peer(3)) && !again.contains(&peer(4)));
    bare.pass(secs(3));
    let Some(Err(RequestError::Timeout(tally))) = bare.answer(id) else { panic!("no timeout") };
    assert_eq!((tally.answered, tally.needed), (2, 3));
    assert_eq!(tally.missing, [peer(1), peer(2), peer(3)]);
}

#[test]
fn update_without_change_waits_for_a_majority() {
    let mut bare = Bare::of(3);
    let _ = bare.now(insert("k", "tea", To::Local));
    bare.sent();
    let id = bare.ask(crate::bare::change::<Words, _>("k", WRITE_MAJORITY, |_| Ok(())));
    let (push, entries) = bare.push_to_all(3);
    assert!(matches!(entries[0].content, EntryContent::Probe(_)), "a probe, not the value");
    assert_eq!(bare.answer(id), None);
    bare.hear(1, ack(push));
    assert!(
        matches!(bare.answer(id), Some(Ok(ReplicatorReply::Updated { dots, .. })) if dots.is_empty())
    );
}

/// If it were joined with a change of its batch, replicas that hold that change would acknowledge
/// it without holding the earlier removal, and a majority read would show the removed element.
#[test]
fn update_without_change_is_probed_also_beside_a_change() {
    let remove = |to| crate::bare::change::<Words, _>("k", to, |set| set.remove("tea"));
    for first in [0, 1] {
        let mut bare = Bare::of(3);
        let _ = bare.now(insert("k", "tea", To::Local));
        let _ = bare.now(remove(To::Local));
        bare.sent();
        let mut both = vec![insert("k", "rum", WRITE_MAJORITY), remove(WRITE_MAJORITY)];
        both.rotate_left(first);
        let mut ids = bare.batch(both);
        ids.rotate_left(first);
        let (push, entries) = bare.push_to_all(3);
        assert!(
            matches!(
                [&entries[0].content, &entries[1].content],
                [EntryContent::Delta(_), EntryContent::Probe(_)]
            ),
            "the change, then the probe: {entries:?}"
        );
        bare.hear(1, Body::Ack { push, scope: scope_0(), counts: true, nacks: vec![] });
        assert!(matches!(bare.answer(ids[0]), Some(Ok(ReplicatorReply::Updated { .. }))));
        assert_eq!(
            bare.answer(ids[1]),
            None,
            "a replica that holds the change may lack the removal"
        );
        bare.hear(1, ack(push));
        assert!(matches!(bare.answer(ids[1]), Some(Ok(ReplicatorReply::Updated { .. }))));
    }
}

#[test]
fn update_without_change_creates_no_key() {
    let mut bare = Bare::of(3);
    let remove = |to| crate::bare::change::<Words, _>("k", to, |set| set.remove("tea"));
    for to in [To::Local, WRITE_MAJORITY] {
        let answer = bare.now(remove(to));
        assert!(matches!(answer, Ok(ReplicatorReply::Updated { dots, .. }) if dots.is_empty()));
    }
    assert_eq!((bare.replicator.stats().keys, bare.sent()), (0, vec![]));
}
