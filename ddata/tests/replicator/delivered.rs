//! Delivery of pushes: flushes end only when all peers hold the changes, and pushes end although
//! requests are answered within their batch, acknowledgements cover parts, or configurations
//! change.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::key::Group;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{Epoch, EpochMessage, EpochSettings, MembershipChange};
use ostraca_ddata::replicator::port::{Peer, ReplicatorInput};
use ostraca_ddata::replicator::request::{
    ReplicatorReply, ReplicatorRequest, RequestError, RequestId, WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::{AckScope, At, Body, QueryAnswer};
use ostraca_ddata::types::{LWWRegister, Term};

use crate::bare::{Bare, ack, change, epoch_id, guarded, insert, peer};
use crate::cluster::{WRITE_MAJORITY, first_epoch, millis, secs};

/// Younger changes are in no digest sums, and so in no comparison.
const SETTLED: Duration = millis(100);

fn flush(bare: &mut Bare) -> RequestId {
    bare.ask(ReplicatorRequest::FlushChanges { within: secs(60) })
}

/// Answers every comparison that was sent since the last call with `Same`, and returns their
/// number.
fn say_the_same(bare: &mut Bare) -> usize {
    let live = |(to, body)| match body {
        Body::Compare { session, at: At::Live, .. } => Some((to, session)),
        _ => None,
    };
    let asked: Vec<_> = bare.sent().into_iter().filter_map(live).collect();
    for (to, session) in &asked {
        let (answer, promises) = (QueryAnswer::Same.into(), vec![]);
        let body = Body::Compared { session: *session, at: At::Live, answer, promises };
        bare.hear_in(*to, Some(epoch_id()), body);
    }
    asked.len()
}

/// Regression test: a comparison that started before a change had settled did not cover the change,
/// but ended the flush that waited for it.
#[test]
fn comparison_does_not_confirm_unsettled_changes() {
    let mut bare = Bare::of(2);
    bare.round_trips(millis(1));
    let _ = bare.now(insert("k", "tea", To::Local));
    bare.pass(millis(60));
    let _ = bare.now(insert("k", "rum", To::Local));
    let changed = bare.now.mono;
    while bare.replicator.stats().pushes_open > 0 {
        bare.pass(millis(1));
    }
    assert!(bare.now.mono < changed + SETTLED, "the push is given up before the change settles");
    let flush = flush(&mut bare);
    say_the_same(&mut bare); // comparisons from before the flush
    bare.feed(ReplicatorInput::LinkUp(peer(1)));
    assert!(bare.now.mono < changed + SETTLED);
    assert_eq!(say_the_same(&mut bare), 1, "a link that comes up starts a comparison");
    assert_eq!(bare.answer(flush), None, "the change was not in those sums");
    while say_the_same(&mut bare) == 0 || bare.now.mono < changed + 2 * SETTLED {
        bare.pass(millis(10));
    }
    assert_eq!(bare.answer(flush), Some(Ok(ReplicatorReply::Flushed)));
}

/// Regression test: a push that a successful flush had waited for was never left to anti-entropy if
/// an install restarted it later.
#[test]
fn flush_that_succeeds_keeps_no_push() {
    let mut bare = Bare::of(4);
    let write = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(4);
    let flush = flush(&mut bare);
    for n in 1..4 {
        bare.hear(n, Body::Ack { push, scope: AckScope::All, counts: false, nacks: vec![] });
    }
    assert_eq!(bare.answer(flush), Some(Ok(ReplicatorReply::Flushed)));
    assert_eq!(bare.answer(write), None, "no peer counts it");
    let change = MembershipChange { leave: vec![peer(3)], ..MembershipChange::default() };
    let next = Arc::new(first_epoch(4).next(&change).expect("it may leave"));
    bare.hear(1, Body::Epoch(EpochMessage::Install { epoch: next }));
    bare.pass(secs(60));
    assert!(matches!(bare.answer(write), Some(Err(RequestError::Timeout(_)))));
    assert_eq!(bare.replicator.stats().pushes_open, 0, "it is left to anti-entropy");
}

#[test]
fn flush_timeout_names_the_peers_that_lack_changes() {
    let mut bare = Bare::of(4);
    let _ = bare.now(insert("k", "tea", To::Local));
    let flush = flush(&mut bare);
    let (push, _) = bare.push_to_all(4);
    bare.hear(2, ack(push));
    bare.pass(secs(60));
    let Some(Err(RequestError::Timeout(tally))) = bare.answer(flush) else { panic!("no timeout") };
    assert_eq!((tally.answered, tally.needed), (2, 4));
    assert_eq!(tally.missing, [peer(1), peer(3)]);
}

#[test]
fn changes_before_the_first_configuration_delay_a_flush() {
    let mut bare = Bare::of(0);
    let _ = bare.now(insert("k", "tea", To::Local));
    assert_eq!(bare.pushes(), [], "there are no peers");
    bare.found(first_epoch(3));
    let (push, entries) = bare.push_to_all(3);
    assert!(matches!(&entries[..], [entry] if entry.key.as_str() == "k"));
    let flush = flush(&mut bare);
    bare.hear(1, ack(push));
    assert_eq!(bare.answer(flush), None, "one of two peers holds it");
    bare.hear(2, ack(push));
    assert_eq!(bare.answer(flush), Some(Ok(ReplicatorReply::Flushed)));
}

/// Regression test: a push whose request was answered within its own batch never ended.
#[test]
fn push_ends_if_its_request_is_answered_within_the_batch() {
    let mut bare = Bare::of(3);
    let id = RequestId(77);
    let all = |n| Peer { id: peer(n), stopping: false, reachable: true };
    bare.feed_all(vec![
        ReplicatorInput::Request { id, request: insert("k", "tea", To::To(1, secs(3))) },
        ReplicatorInput::Members((0..3).map(all).collect()), // makes the replica count again
    ]);
    assert!(matches!(bare.answer(id), Some(Ok(ReplicatorReply::Updated { .. }))));
    let (push, _) = bare.push_to_all(3);
    bare.hear(1, ack(push));
    bare.hear(2, ack(push));
    assert_eq!(bare.replicator.stats().pushes_open, 0, "all peers hold it");
}

#[test]
fn partially_counted_ack_is_asked_again_for_the_rest() {
    let mut bare = Bare::of(3);
    let ids =
        bare.batch(vec![insert("a", "tea", WRITE_MAJORITY), insert("b", "tea", WRITE_MAJORITY)]);
    let (push, entries) = bare.push_to_all(3);
    assert_eq!(entries.len(), 2);
    bare.hear(2, Body::Ack { push, scope: AckScope::All, counts: false, nacks: vec![] });
    let scope = AckScope::Only(vec![entries[0].index]);
    bare.hear(2, Body::Ack { push, scope, counts: true, nacks: vec![] });
    let answered = |bare: &Bare| ids.iter().filter(|id| bare.answer(**id).is_some()).count();
    assert_eq!(answered(&bare), 1);
    bare.sent();
    bare.pass(secs(1));
    let (_, again, asked) = bare
        .pushes()
        .into_iter()
        .find(|(to, _, all)| *to == peer(2) && all.iter().any(|e| e.index == entries[1].index))
        .expect("a peer whose answer did not count is asked again");
    assert_eq!(asked.len(), 1, "only the uncounted entry is asked for: {asked:?}");
    let scope = AckScope::Only(vec![entries[1].index]);
    bare.hear(2, Body::Ack { push: again, scope, counts: true, nacks: vec![] });
    assert_eq!(answered(&bare), 2);
}

#[test]
fn request_for_all_asks_all_members_after_an_install() {
    let config = ReplicatorConfig { direct_push_limit: 2, ..ReplicatorConfig::default() };
    let few = EpochSettings { voter_limit: 20, ..EpochSettings::default() };
    let members = (0..40).map(peer).collect();
    let first = Arc::new(Epoch::founding(epoch_id(), members, few).expect("a valid configuration"));
    let mut bare = Bare::with(0, config);
    bare.found(first.clone());
    bare.ask(insert("k", "tea", To::All(secs(3))));
    assert_eq!(bare.pushes().len(), 39);
    let change = MembershipChange { leave: vec![peer(39)], ..MembershipChange::default() };
    let next = Arc::new(first.next(&change).unwrap());
    bare.hear(1, Body::Epoch(EpochMessage::Install { epoch: next }));
    let mut asked: Vec<_> = bare.pushes().into_iter().map(|(to, ..)| to).collect();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), 38);
}

/// Regression test: without peers no push was opened, so that a write which was incomplete at the
/// next install was sent to none of its members.
#[test]
fn write_of_a_sealed_sole_replica_completes_after_install() {
    let mut bare = Bare::of(1);
    let join = vec![peer(1), peer(2)];
    bare.feed(ReplicatorInput::Propose(MembershipChange { join, ..MembershipChange::default() }));
    assert!(bare.replicator.epochs().sealed(), "no joiner has synced");
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    assert_eq!((bare.answer(id), bare.pushes()), (None, vec![]));
    bare.hear(1, Body::Epoch(EpochMessage::Synced { epoch: epoch_id() }));
    assert!(bare.replicator.epochs().eligible(), "the next configuration is installed");
    let next = bare.replicator.epochs().id();
    let pushes = bare.pushes();
    let [(first, push, _), (second, ..)] = &pushes[..] else { panic!("{pushes:?}") };
    assert_eq!((*first, *second, bare.answer(id)), (peer(1), peer(2), None));
    bare.hear_in(peer(1), next, ack(*push));
    assert!(matches!(bare.answer(id), Some(Ok(ReplicatorReply::Updated { .. }))));
    bare.hear_in(peer(2), next, ack(*push));
    assert_eq!(bare.replicator.stats().pushes_open, 0);
}

#[test]
fn majority_write_of_a_sole_replica_leaves_no_push_open() {
    let mut bare = Bare::of(1);
    assert!(bare.now(insert("k", "tea", WRITE_MAJORITY)).is_ok());
    assert_eq!((bare.replicator.stats().pushes_open, bare.sent()), (0, vec![]));
}

#[test]
fn guarded_update_without_change_probes_with_its_guard() {
    type Home = LWWRegister<u32>;
    let mut bare = Bare::of(3);
    let _ = bare.now(change::<Home, _>("g-1", To::Local, |home| home.set(&1)));
    bare.sent();
    let first = Term { number: 1, owner: peer(0) };
    bare.ask(guarded::<Home, _>(("g-", first), "g-1", WRITE_MAJORITY, |home| home.set_first(&2)));
    let (_, entries) = bare.push_to_all(3);
    let guard = entries[0]
        .guard
        .as_ref()
        .expect("replicas that know the group refuse an entry without guard");
    assert_eq!((&guard.group, guard.term), (&Group::new("g-"), Some(first)));
}
