//! What is said to be delivered is, and what is under way comes to an end: flushes, answers that
//! come before the end of their batch, acknowledgements by parts, configurations in between.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::key::Group;
use ostraca_ddata::replicator::config::Config;
use ostraca_ddata::replicator::epoch::{Change, Epoch, EpochMessage, EpochSettings};
use ostraca_ddata::replicator::port::{Input, Peer};
use ostraca_ddata::replicator::request::{Reply, Request, RequestId, WriteConsistency as To};
use ostraca_ddata::replicator::wire::{Answer, At, Body, Scope};
use ostraca_ddata::types::{LWWRegister, Term};

use crate::bare::{Bare, ack, change, epoch_id, guarded, insert, peer};
use crate::cluster::{WRITE_MAJORITY, first_epoch, millis, secs};

/// What is younger is in nobody's sums, and so in no comparison.
const SETTLED: Duration = millis(100);

fn flush(bare: &mut Bare) -> RequestId {
    bare.ask(Request::FlushChanges { within: secs(60) })
}

/// Answers every comparison asked for since it was last looked with "the same"; how many there were.
fn say_the_same(bare: &mut Bare) -> usize {
    let live = |(to, body)| match body {
        Body::Compare { session, at: At::Live, .. } => Some((to, session)),
        _ => None,
    };
    let asked: Vec<_> = bare.sent().into_iter().filter_map(live).collect();
    for (to, session) in &asked {
        let (answer, promises) = (Answer::Same.into(), vec![]);
        let body = Body::Compared { session: *session, at: At::Live, answer, promises };
        bare.hear_in(*to, Some(epoch_id()), body);
    }
    asked.len()
}

/// Found by reading: a comparison that began before a change had settled said nothing of it, and
/// ended the flush that waited for it.
#[test]
fn an_equal_peer_has_not_what_was_changed_just_before_it_was_compared() {
    let mut bare = Bare::of(2);
    bare.round_trips(millis(1));
    let _ = bare.now(insert("k", "tea", To::Local));
    bare.pass(millis(60));
    let _ = bare.now(insert("k", "rum", To::Local));
    let changed = bare.now.mono;
    while bare.replicator.stats().pushes_open > 0 {
        bare.pass(millis(1));
    }
    assert!(bare.now.mono < changed + SETTLED, "given up while the change was young");
    let flush = flush(&mut bare);
    say_the_same(&mut bare); // what was asked before is no news
    bare.feed(Input::LinkUp(peer(1)));
    assert!(bare.now.mono < changed + SETTLED);
    assert_eq!(say_the_same(&mut bare), 1, "whoever is back is compared with");
    assert_eq!(bare.answer(flush), None, "the change was not in those sums");
    while say_the_same(&mut bare) == 0 || bare.now.mono < changed + 2 * SETTLED {
        bare.pass(millis(10));
    }
    assert_eq!(bare.answer(flush), Some(Ok(Reply::Flushed)));
}

#[test]
fn what_was_changed_before_the_first_configuration_is_pushed_and_holds_up_a_flush() {
    let mut bare = Bare::of(0);
    let _ = bare.now(insert("k", "tea", To::Local));
    assert_eq!(bare.pushes(), [], "there is nobody");
    bare.found(first_epoch(3));
    let (push, entries) = bare.push_to_all(3);
    assert!(matches!(&entries[..], [entry] if entry.key.as_str() == "k"));
    let flush = flush(&mut bare);
    bare.hear(1, ack(push));
    assert_eq!(bare.answer(flush), None, "one of two has it");
    bare.hear(2, ack(push));
    assert_eq!(bare.answer(flush), Some(Ok(Reply::Flushed)));
}

/// Found by reading: a push whose request was answered within its own batch was never over.
#[test]
fn nobody_waits_for_a_request_that_was_answered_within_its_batch() {
    let mut bare = Bare::of(3);
    let id = RequestId(77);
    let all = |n| Peer { id: peer(n), stopping: false, reachable: true };
    bare.feed_all(vec![
        Input::Request { id, request: insert("k", "tea", To::To(1, secs(3))) },
        Input::Members((0..3).map(all).collect()), // counts anew
    ]);
    assert!(matches!(bare.answer(id), Some(Ok(Reply::Updated { .. }))));
    let (push, _) = bare.push_to_all(3);
    bare.hear(1, ack(push));
    bare.hear(2, ack(push));
    assert_eq!(bare.replicator.stats().pushes_open, 0, "everybody has it");
}

#[test]
fn who_could_count_a_part_is_asked_again_for_the_rest() {
    let mut bare = Bare::of(3);
    let ids =
        bare.batch(vec![insert("a", "tea", WRITE_MAJORITY), insert("b", "tea", WRITE_MAJORITY)]);
    let (push, entries) = bare.push_to_all(3);
    assert_eq!(entries.len(), 2);
    bare.hear(2, Body::Ack { push, scope: Scope::All, counts: false, nacks: vec![] });
    let scope = Scope::Only(vec![entries[0].index]);
    bare.hear(2, Body::Ack { push, scope, counts: true, nacks: vec![] });
    let answered = |bare: &Bare| ids.iter().filter(|id| bare.answer(**id).is_some()).count();
    assert_eq!(answered(&bare), 1);
    bare.sent();
    bare.pass(secs(1));
    let (_, again, asked) = bare
        .pushes()
        .into_iter()
        .find(|(to, _, all)| *to == peer(2) && all.iter().any(|e| e.index == entries[1].index))
        .expect("whoever could not count it is asked again");
    assert_eq!(asked.len(), 1, "the other is answered: {asked:?}");
    let scope = Scope::Only(vec![entries[1].index]);
    bare.hear(2, Body::Ack { push: again, scope, counts: true, nacks: vec![] });
    assert_eq!(answered(&bare), 2);
}

#[test]
fn who_waits_for_all_asks_all_of_the_next_configuration_too() {
    let config = Config { direct_push_limit: 2, ..Config::default() };
    let few = EpochSettings { voter_limit: 20, ..EpochSettings::default() };
    let members = (0..40).map(peer).collect();
    let first = Arc::new(Epoch::founding(epoch_id(), members, few).expect("a valid one"));
    let mut bare = Bare::with(0, config);
    bare.found(first.clone());
    bare.ask(insert("k", "tea", To::All(secs(3))));
    assert_eq!(bare.pushes().len(), 39);
    let change = Change { leave: vec![peer(39)], ..Change::default() };
    let next = Arc::new(first.next(&change).unwrap());
    bare.hear(1, Body::Epoch(EpochMessage::Install { epoch: next }));
    let mut asked: Vec<_> = bare.pushes().into_iter().map(|(to, ..)| to).collect();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), 38);
}

#[test]
fn a_guarded_update_that_changes_nothing_asks_under_its_guard() {
    type Home = LWWRegister<u32>;
    let mut bare = Bare::of(3);
    let _ = bare.now(change::<Home, _>("g-1", To::Local, |home| home.set(&1)));
    bare.sent();
    let first = Term { number: 1, owner: peer(0) };
    bare.ask(guarded::<Home, _>(("g-", first), "g-1", WRITE_MAJORITY, |home| home.set_first(&2)));
    let (_, entries) = bare.push_to_all(3);
    let guard = entries[0].guard.as_ref().expect("who knows the group would refuse it without");
    assert_eq!((&guard.group, guard.term), (&Group::new("g-"), Some(first)));
}
