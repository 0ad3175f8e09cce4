//! Guarded groups: terms, fences, and writes of superseded owners
//! (docs/protocol/replication.md#guarded-groups).

use ostraca_ddata::durable::StoreError;
use ostraca_ddata::key::{Group, Pattern};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::MembershipChange;
use ostraca_ddata::replicator::port::{ReplicatorAlarm, ReplicatorOutput};
use ostraca_ddata::replicator::request::{
    ReplicatorReply, ReplicatorRequest, RequestError, WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::{Body, Entry, EntryContent, Nack, WireGuard};
use ostraca_ddata::types::{LWWMap, LWWRegister, ORMap, Term};

use crate::bare::{Answer, Bare, Words, change, guarded, insert, nack, peer};
use crate::cluster::{Cluster, Plan, READ_MAJORITY, WRITE_MAJORITY, first_epoch, millis, secs};
use crate::node::replica;

type Home = LWWRegister<u32>;

fn term(number: u64, owner: usize) -> Term {
    Term { number, owner: peer(owner) }
}

fn home(at: Term, to: To, value: u32) -> ReplicatorRequest {
    guarded::<Home, _>(("g-", at), "g-1", to, move |home| home.set(&value))
}

fn fence(at: Term) -> ReplicatorRequest {
    ReplicatorRequest::Fence { group: Group::new("g-"), term: at, within: secs(3) }
}

fn write(cluster: &mut Cluster, node: usize, at: Term, value: u32) -> Answer {
    let id = cluster.ask(node, home(at, WRITE_MAJORITY, value));
    cluster.answer(id)
}

fn take(cluster: &mut Cluster, node: usize, at: Term) -> Answer {
    let id = cluster.ask(node, fence(at));
    cluster.answer(id)
}

fn value(cluster: &Cluster, node: usize) -> Option<u32> {
    cluster.held::<Home>(node, "g-1").and_then(|home| home.get().unwrap())
}

/// The values that a fence read, by key.
fn read(answer: Answer) -> Vec<(String, Option<u32>)> {
    let Ok(ReplicatorReply::Fenced { values, .. }) = answer else {
        panic!("not fenced: {answer:?}")
    };
    let value = |value: ostraca_ddata::data::Value| value.get::<Home>().unwrap().get().unwrap();
    values.into_iter().map(|(key, held)| (key.to_string(), value(held))).collect()
}

#[test]
fn unguarded_change_of_a_guarded_key_is_refused() {
    let mut bare = Bare::of(1);
    assert!(bare.now(fence(term(1, 0))).is_ok());
    let refused = Err(RequestError::Guarded { group: Group::new("g-") });
    assert_eq!(bare.now(insert("g-1", "tea", To::Local)), refused);
    assert!(bare.now(home(term(1, 0), WRITE_MAJORITY, 7)).is_ok());
    assert_eq!(bare.now(insert("g-2", "tea", To::Local)), refused, "a new key is refused, too");
    let delete = ReplicatorRequest::Delete { key: "g-1".into(), consistency: To::Local };
    assert_eq!(bare.now(delete), refused);
    assert!(bare.now(insert("other", "tea", To::Local)).is_ok());
}

#[test]
fn group_is_known_wherever_its_data_arrive() {
    let mut cluster = Plan::of(3).start();
    take(&mut cluster, 0, term(1, 0)).unwrap();
    write(&mut cluster, 0, term(1, 0), 7).unwrap();
    cluster.settle(&[0, 1, 2], secs(3));
    for node in 0..3 {
        let refused = cluster.write::<Words, _>(node, "g-9", To::Local, |set| set.insert("tea"));
        assert_eq!(refused, Err(RequestError::Guarded { group: Group::new("g-") }));
    }
}

#[test]
fn guard_must_match_the_keys_group_and_have_a_term() {
    let mut bare = Bare::of(1);
    let not_in = Err(RequestError::NotInGroup { group: Group::new("h-") });
    let wrong = guarded::<Home, _>(("h-", term(1, 0)), "g-1", WRITE_MAJORITY, |home| home.set(&1));
    assert_eq!(bare.now(wrong), not_in);
    let none =
        guarded::<Home, _>(("g-", Term::default()), "g-1", WRITE_MAJORITY, |home| home.set(&1));
    assert_eq!(bare.now(none), Err(RequestError::UnfitTerm { term: Term::default() }));
    assert!(bare.now(home(term(1, 0), WRITE_MAJORITY, 1)).is_ok());
    let inner = guarded::<Home, _>(("g-1", term(1, 0)), "g-1", WRITE_MAJORITY, |home| home.set(&1));
    assert_eq!(bare.now(inner), Err(RequestError::Guarded { group: Group::new("g-") }));
}

fn said(answer: Answer, what: &str) {
    let Err(RequestError::ModifyFailure(error)) = answer else { panic!("{answer:?}") };
    assert!(error.0.to_string().contains(what), "{}", error.0);
}

#[test]
fn only_registers_and_maps_of_them_are_guarded() {
    let mut bare = Bare::of(1);
    let guard = ("g-", term(1, 0));
    let set = guarded::<Words, _>(guard, "g-set", WRITE_MAJORITY, |set| set.insert("tea"));
    said(bare.now(set), "can't be guarded");
    assert_eq!(bare.replicator.peek(&"g-set".into()), None, "nothing was changed");
    type Map = LWWMap<u32, u32>;
    type Deep = ORMap<u32, LWWRegister<u32>>;
    let put = guarded::<Map, _>(guard, "g-map", WRITE_MAJORITY, |map| map.insert(&1, &1));
    assert!(bare.now(put).is_ok());
    let put =
        guarded::<Deep, _>(guard, "g-deep", WRITE_MAJORITY, |map| map.update(&1, |r| r.set(&1)));
    assert!(bare.now(put).is_ok());
}

#[test]
fn key_of_a_guarded_map_is_never_removed() {
    let mut bare = Bare::of(1);
    let guard = ("g-", term(1, 0));
    type Map = LWWMap<u32, Option<u32>>;
    let put = guarded::<Map, _>(guard, "g-map", WRITE_MAJORITY, |map| map.insert(&1, &Some(1)));
    assert!(bare.now(put).is_ok());
    let remove = guarded::<Map, _>(guard, "g-map", WRITE_MAJORITY, |map| map.remove(&1));
    said(bare.now(remove), "never removed");
    let clear = guarded::<Map, _>(guard, "g-map", WRITE_MAJORITY, |map| map.clear());
    said(bare.now(clear), "never removed");
    let none = guarded::<Map, _>(guard, "g-map", WRITE_MAJORITY, |map| map.insert(&1, &None));
    assert!(bare.now(none).is_ok());
    let map = bare.replicator.peek(&"g-map".into()).unwrap().get::<Map>().unwrap();
    assert_eq!(map.get(&1).unwrap(), Some(None));
}

#[test]
fn term_below_the_own_promise_is_refused_without_change() {
    let mut bare = Bare::of(1);
    assert!(bare.now(fence(term(3, 0))).is_ok());
    let fenced = Err(RequestError::Fenced { current: term(3, 0), nowhere: true });
    assert_eq!(bare.now(home(term(2, 9), WRITE_MAJORITY, 7)), fenced);
    assert_eq!(bare.now(fence(term(2, 9))), fenced);
    assert_eq!(bare.replicator.peek(&"g-1".into()), None);
}

#[test]
fn one_refusal_ends_a_write_as_indeterminate() {
    let mut bare = Bare::of(5);
    let id = bare.ask(home(term(1, 0), WRITE_MAJORITY, 7));
    let (push, entries) = bare.push_to_all(5);
    let guard = WireGuard { group: Group::new("g-"), term: Some(term(1, 0)) };
    assert_eq!(entries[0].guard, Some(guard));
    bare.hear(1, nack(push, Nack::Fenced(term(2, 1))));
    let fenced = RequestError::Fenced { current: term(2, 1), nowhere: false };
    assert_eq!(bare.answer(id), Some(Err(fenced)));
}

#[test]
fn refusal_that_leaves_no_majority_means_nowhere() {
    let mut bare = Bare::of(2);
    let id = bare.ask(home(term(1, 0), WRITE_MAJORITY, 7));
    let (push, _) = bare.push_to_all(2);
    bare.hear(1, nack(push, Nack::Fenced(term(2, 1))));
    let fenced = RequestError::Fenced { current: term(2, 1), nowhere: true };
    assert_eq!(bare.answer(id), Some(Err(fenced)));
}

#[test]
fn write_below_the_promise_is_refused_but_gossip_merged() {
    let mut owner = Bare::of(3);
    owner.ask(home(term(1, 0), WRITE_MAJORITY, 7));
    let (push, mut entries) = owner.push_to_all(3);
    let mut bare = Bare::named(peer(1), ReplicatorConfig::default());
    bare.found(crate::cluster::first_epoch(3));
    let epoch = Some(crate::bare::epoch_id());
    let (group, high) = (Group::new("g-"), term(2, 2));
    bare.hear(2, Body::Fence { request: 1, group, term: high, held: vec![] });
    bare.sent();
    let body = Body::Write { push, whole: true, entries: entries.clone().into() };
    bare.hear_in(peer(0), epoch, body);
    let sent = bare.sent();
    let [(_, Body::Ack { nacks, .. })] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(nacks, &[(0, Nack::Fenced(high))]);
    assert_eq!((bare.replicator.stats().fenced, bare.replicator.stats().keys), (1, 0));
    entries[0].guard.as_mut().unwrap().term = None;
    bare.hear_in(peer(0), epoch, Body::Write { push: 0, whole: true, entries: entries.into() });
    assert_eq!(bare.replicator.stats().keys, 1, "gossip of a refused write is merged");
}

#[test]
fn fence_may_repeat_its_term_but_not_lower_it() {
    let mut cluster = Plan::of(3).start();
    assert_eq!(read(take(&mut cluster, 0, term(2, 0))), []);
    write(&mut cluster, 0, term(2, 0), 7).unwrap();
    for _ in 0..3 {
        assert_eq!(read(take(&mut cluster, 0, term(2, 0))), [("g-1".to_owned(), Some(7))]);
    }
    write(&mut cluster, 0, term(2, 0), 8).unwrap();
    let lower = take(&mut cluster, 2, term(1, 2));
    assert!(matches!(lower, Err(RequestError::Fenced { current, .. }) if current == term(2, 0)));
    let other = take(&mut cluster, 1, term(2, 1));
    assert_eq!(read(other), [("g-1".to_owned(), Some(8))], "same number, higher owner");
    assert!(matches!(write(&mut cluster, 0, term(2, 0), 9), Err(RequestError::Fenced { .. })));
}

#[test]
fn fence_replies_only_when_a_majority_holds_its_values() {
    let mut cluster = Plan::of(5).start();
    take(&mut cluster, 0, term(1, 0)).unwrap();
    cluster.settle(&[0, 1, 2, 3, 4], secs(2));
    cluster.partition(&[&[0], &[1, 2, 3, 4]]);
    let id = cluster.ask(0, home(term(1, 0), WRITE_MAJORITY, 7));
    assert!(matches!(cluster.answer(id), Err(RequestError::Timeout(_))));
    cluster.run(secs(5));
    cluster.partition(&[&[0, 1, 2], &[3, 4]]);
    cluster.sim.heal();
    cluster.partition(&[&[0, 1, 2], &[3, 4]]);
    let values = read(take(&mut cluster, 1, term(2, 1)));
    let holders = (0..5).filter(|n| value(&cluster, *n) == Some(7)).count();
    assert!(values.is_empty() || holders >= 3, "{values:?} held by {holders}");
    assert!(!values.is_empty(), "node 0 is one of the three that can answer");
}

/// The majorities of the write and of the fence have a replica in common. It acknowledged the write
/// before it promised, so its answer contains the write; or it promised first and refused the
/// write.
#[test]
fn fence_shows_majority_writes_from_before_the_group() {
    for owner in [1, 2] {
        let mut cluster = Plan::of(3).start();
        cluster.partition(&[&[0, 1], &[2]]);
        let early = cluster.write::<Home, _>(0, "g-1", WRITE_MAJORITY, |home| home.set(&7));
        assert!(early.is_ok(), "no replica knows the group yet: {early:?}");
        cluster.heal();
        cluster.partition(&[&[0], &[1, 2]]);
        let at = term(1, owner);
        let values = read(take(&mut cluster, owner, at));
        assert_eq!(values, [("g-1".to_owned(), Some(7))], "owner {owner}");
        assert_eq!(
            (value(&cluster, 1), value(&cluster, 2)),
            (Some(7), Some(7)),
            "a majority holds it"
        );
        write(&mut cluster, owner, at, 8).unwrap();
        cluster.heal();
        cluster.settle(&[0, 1, 2], secs(5));
        assert_eq!(value(&cluster, 0), Some(8), "the owner's next write overwrites it");
    }
}

#[test]
fn key_of_an_inner_group_is_not_in_the_outer_one() {
    let mut bare = Bare::of(1);
    let inner = guarded::<Home, _>(("g-x-", term(1, 0)), "g-x-1", WRITE_MAJORITY, |h| h.set(&1));
    assert!(bare.now(inner).is_ok());
    assert!(bare.now(home(term(1, 0), WRITE_MAJORITY, 7)).is_ok());
    assert_eq!(read(bare.now(fence(term(2, 0)))), [("g-1".to_owned(), Some(7))]);
}

#[test]
fn refused_write_spreads_but_loses_to_the_higher_term() {
    let mut cluster = Plan::of(3).start();
    take(&mut cluster, 0, term(1, 0)).unwrap();
    write(&mut cluster, 0, term(1, 0), 1).unwrap();
    cluster.settle(&[0, 1, 2], secs(3));
    cluster.partition(&[&[0], &[1, 2]]);
    assert_eq!(read(take(&mut cluster, 1, term(2, 1))), [("g-1".to_owned(), Some(1))]);
    write(&mut cluster, 1, term(2, 1), 2).unwrap();
    for stale in 3..10 {
        let id = cluster.ask(0, home(term(1, 0), WRITE_MAJORITY, stale));
        let late = cluster.answer(id); // node 0 has not promised the term of node 1
        assert!(matches!(late, Err(RequestError::Timeout(_))), "{late:?}");
    }
    assert_eq!(value(&cluster, 0), Some(9));
    cluster.heal();
    cluster.settle(&[0, 1, 2], secs(5));
    for node in 0..3 {
        assert_eq!(value(&cluster, node), Some(2), "at {node}");
    }
    assert_eq!(cluster.read::<Home>(0, "g-1", READ_MAJORITY).unwrap().get().unwrap(), Some(2));
    let refused = write(&mut cluster, 0, term(1, 0), 10);
    assert!(matches!(refused, Err(RequestError::Fenced { .. })), "{refused:?}");
    cluster.settle(&[0, 1, 2], secs(5));
    assert_eq!(value(&cluster, 1), Some(2));
}

#[test]
fn promises_survive_a_restart_of_all_nodes_with_disks() {
    let config =
        ReplicatorConfig { durable_keys: vec![Pattern::new("g-*")], ..ReplicatorConfig::default() };
    let mut cluster = Plan { config, ..Plan::of(3) }.start();
    take(&mut cluster, 0, term(5, 0)).unwrap();
    write(&mut cluster, 0, term(5, 0), 7).unwrap();
    cluster.run(secs(1));
    for node in 0..3 {
        cluster.crash(node);
    }
    for node in 0..3 {
        cluster.restart(node);
    }
    cluster.run(secs(1));
    let promised = [(Group::new("g-"), term(5, 0))];
    for node in 0..3 {
        assert_eq!(cluster.node(node).replicator.promises(), promised, "at {node}");
        assert_eq!(value(&cluster, node), Some(7));
    }
    let id = cluster.ask(1, home(term(4, 1), WRITE_MAJORITY, 9));
    let fenced = RequestError::Fenced { current: term(5, 0), nowhere: true };
    assert_eq!(cluster.answer(id), Err(fenced));
    let refused = cluster.write::<Words, _>(2, "g-2", To::Local, |set| set.insert("tea"));
    assert_eq!(refused, Err(RequestError::Guarded { group: Group::new("g-") }));
}

#[test]
fn promises_travel_with_a_change_of_the_configuration() {
    let mut cluster = Plan { nodes: 6, started: 6, ..Plan::of(3) }.start();
    cluster.introduce();
    take(&mut cluster, 0, term(5, 0)).unwrap();
    write(&mut cluster, 0, term(5, 0), 7).unwrap();
    let join = (3..6).map(|n| replica(n, 1)).collect();
    cluster.propose(1, MembershipChange { join, ..MembershipChange::default() });
    cluster.run(secs(5));
    let leave = (0..3).map(|n| replica(n, 1)).collect();
    cluster.propose(4, MembershipChange { leave, ..MembershipChange::default() });
    cluster.run(secs(5));
    for node in 3..6 {
        let epochs = cluster.node(node).replicator.epochs();
        assert_eq!(epochs.installed().unwrap().members().len(), 3);
        let promises = cluster.node(node).replicator.promises();
        assert_eq!(promises, [(Group::new("g-"), term(5, 0))], "at {node}");
    }
    let refused = write(&mut cluster, 3, term(4, 3), 9);
    assert!(matches!(refused, Err(RequestError::Fenced { .. })), "{refused:?}");
    assert_eq!(read(take(&mut cluster, 3, term(6, 3))), [("g-1".to_owned(), Some(7))]);
}

// ── writes without a guard ──

/// A member of three that has promised a term of group `g-` to member 2, and the entries of an
/// unguarded write by member 1, which does not know the group.
fn promised_and_unaware() -> (Bare, Vec<Entry>) {
    let mut owner = Bare::named(peer(1), ReplicatorConfig::default());
    owner.found(crate::cluster::first_epoch(3));
    owner.ask(insert("g-1", "tea", WRITE_MAJORITY));
    let (.., entries) = owner.pushes().remove(0);
    let mut bare = Bare::of(3);
    bare.hear(
        2,
        Body::Fence { request: 1, group: Group::new("g-"), term: term(1, 2), held: vec![] },
    );
    bare.sent();
    (bare, entries)
}

fn nacks(bare: &mut Bare) -> Vec<(u32, Nack)> {
    let sent = bare.sent();
    let [(_, Body::Ack { nacks, .. })] = &sent[..] else { panic!("{sent:?}") };
    nacks.clone()
}

#[test]
fn unguarded_write_is_not_acknowledged_but_may_spread() {
    let (mut bare, mut entries) = promised_and_unaware();
    let write = |push, entries: &[Entry]| {
        let entries = entries.to_vec();
        Body::Write { push, whole: true, entries: entries.into() }
    };
    bare.hear(1, write(3, &entries));
    assert_eq!(nacks(&mut bare), [(0, Nack::Guarded(Group::new("g-")))]);
    assert_eq!((bare.replicator.stats().unguarded, bare.replicator.stats().keys), (1, 0));
    bare.hear(1, write(0, &entries));
    assert!(bare.holds("g-1", "tea"), "gossip is merged");
    bare.hear(1, write(3, &entries));
    assert_eq!(
        nacks(&mut bare),
        [(0, Nack::Guarded(Group::new("g-")))],
        "it is held, but not acknowledged as a write"
    );
    entries[0].guard = Some(WireGuard { group: Group::new("g-"), term: None });
    bare.hear(1, write(4, &entries));
    assert_eq!(nacks(&mut bare), [], "the write-back of a read is accepted");
}

#[test]
fn write_with_the_guard_of_an_inner_group_is_refused() {
    let (mut bare, mut entries) = promised_and_unaware();
    entries[0].guard = Some(WireGuard { group: Group::new("g-1"), term: Some(term(9, 1)) });
    bare.hear(1, Body::Write { push: 3, whole: true, entries: entries.into() });
    assert_eq!(nacks(&mut bare), [(0, Nack::Guarded(Group::new("g-")))]);
}

#[test]
fn refusal_of_a_change_teaches_its_group() {
    let mut bare = Bare::of(5);
    let id = bare.ask(insert("g-1", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(5);
    let group = Group::new("g-");
    bare.hear(1, nack(push, Nack::Guarded(group.clone())));
    let meanwhile = RequestError::GuardedMeanwhile { group: group.clone() };
    assert_eq!(bare.answer(id), Some(Err(meanwhile)));
    assert_eq!(bare.now(insert("g-2", "tea", To::Local)), Err(RequestError::Guarded { group }));
    let id = bare.ask(insert("h-1", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(5);
    bare.hear(1, nack(push, Nack::Guarded(Group::new("g-"))));
    assert_eq!(
        bare.answer(id),
        None,
        "a refusal by a group that does not contain the key is ignored"
    );
}

#[test]
fn promise_in_mid_write_ends_an_unguarded_write() {
    let mut bare = Bare::of(3);
    let id = bare.ask(insert("g-1", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(3);
    let (group, at) = (Group::new("g-"), term(1, 2));
    bare.hear(2, Body::Fence { request: 1, group: group.clone(), term: at, held: vec![] });
    bare.hear(1, crate::bare::ack(push));
    assert_eq!(bare.answer(id), Some(Err(RequestError::GuardedMeanwhile { group })));
}

#[test]
fn read_writes_back_data_older_than_the_group() {
    let never = secs(1_000_000);
    let config = ReplicatorConfig {
        gossip_interval: never,
        busy_gossip_interval: never,
        ..ReplicatorConfig::default()
    };
    for reader in [0, 1] {
        let mut cluster = Plan { config: config.clone(), ..Plan::of(3) }.start();
        cluster.partition(&[&[0], &[1, 2]]);
        cluster.write::<Words, _>(0, "g-1", To::Local, |set| set.insert("tea")).unwrap();
        cluster.run(secs(5));
        take(&mut cluster, 1, term(1, 1)).unwrap();
        cluster.partition(&[&[0, 1], &[2]]);
        cluster.sim.heal();
        cluster.partition(&[&[0, 1], &[2]]);
        let read = cluster.read::<Words>(reader, "g-1", READ_MAJORITY);
        assert!(read.is_some_and(|set| set.contains("tea")), "by {reader}");
        assert!(cluster.held::<Words>(1, "g-1").is_some(), "a majority holds it");
    }
}

#[test]
fn guarded_update_below_a_majority_is_refused() {
    let mut bare = Bare::of(3);
    for weak in [To::Local, To::To(1, secs(1)), To::To(3, secs(1))] {
        assert_eq!(bare.now(home(term(1, 0), weak, 7)), Err(RequestError::TooWeak));
    }
    assert_eq!((bare.replicator.peek(&"g-1".into()), bare.pushes()), (None, vec![]));
    for strong in [WRITE_MAJORITY, To::All(secs(1))] {
        let id = bare.ask(home(term(1, 0), strong, 7));
        assert_eq!(bare.answer(id), None, "the write is open");
    }
}

// ── one machine ──

fn durable(members: usize) -> Bare {
    let config =
        ReplicatorConfig { durable_keys: vec![Pattern::new("g-*")], ..ReplicatorConfig::default() };
    Bare::with(members, config)
}

fn promised(request: u64) -> Body {
    Body::Promised { request, counts: true, differing: vec![], entries: vec![] }
}

#[test]
fn own_promise_counts_when_it_is_on_disk() {
    let mut bare = durable(3);
    let id = bare.ask(fence(term(1, 0)));
    bare.hear(1, promised(id.0));
    assert_eq!(bare.answer(id), None, "one of three: the own promise is not on disk");
    bare.stored(Ok(()));
    assert!(matches!(bare.answer(id), Some(Ok(ReplicatorReply::Fenced { .. }))));
    let id = bare.ask(fence(term(2, 0)));
    bare.stored(Err(StoreError("no space left".into())));
    bare.hear(1, promised(id.0));
    assert_eq!(bare.answer(id), None, "a promise on a failed disk does not count");
    bare.hear(2, promised(id.0));
    assert!(matches!(bare.answer(id), Some(Ok(ReplicatorReply::Fenced { .. }))));
}

#[test]
fn promise_is_sent_only_when_it_is_on_disk() {
    let mut bare = durable(3);
    let ask =
        || Body::Fence { request: 1, group: Group::new("g-"), term: term(1, 1), held: vec![] };
    let promises = |bare: &mut Bare| {
        let promise = |(_, body): &_| matches!(body, Body::Promised { .. });
        bare.sent().iter().filter(|sent| promise(sent)).count()
    };
    bare.hear(1, ask());
    bare.hear(1, ask());
    assert_eq!(promises(&mut bare), 0);
    bare.stored(Ok(()));
    assert_eq!(promises(&mut bare), 1);
    bare.stored(Err(StoreError("no space left".into())));
    assert_eq!(promises(&mut bare), 0);
}

#[test]
fn refusal_without_a_higher_term_is_ignored() {
    let mut bare = Bare::of(3);
    let id = bare.ask(fence(term(3, 0)));
    for current in [Term::default(), term(2, 9), term(3, 0)] {
        bare.hear(1, Body::NotPromised { request: id.0, current });
    }
    assert_eq!(bare.answer(id), None);
    bare.hear(1, Body::NotPromised { request: id.0, current: term(4, 1) });
    let fenced = RequestError::Fenced { current: term(4, 1), nowhere: false };
    assert_eq!(bare.answer(id), Some(Err(fenced)));
}

#[test]
fn fence_timeout_names_the_silent_members() {
    let mut bare = Bare::of(5);
    let id = bare.ask(fence(term(1, 0)));
    bare.hear(1, promised(id.0));
    bare.hear(1, promised(id.0));
    bare.sent();
    bare.pass(millis(150));
    let again: Vec<_> = bare
        .sent()
        .into_iter()
        .filter(|(_, body)| matches!(body, Body::Fence { .. }))
        .map(|(to, _)| to)
        .collect();
    assert_eq!(again, [peer(2), peer(3), peer(4)]);
    bare.pass(secs(3));
    let Some(Err(RequestError::Timeout(tally))) = bare.answer(id) else { panic!("no timeout") };
    assert_eq!((tally.answered, tally.needed), (2, 3));
    assert_eq!(tally.missing, [peer(2), peer(3), peer(4)]);
}

#[test]
fn fence_timeout_counts_by_the_tie_rule() {
    for (me, needed) in [(0, 2), (1, 3)] {
        let mut bare = Bare::named(peer(me), ReplicatorConfig::default());
        bare.found(first_epoch(4)); // node 0 is the tiebreaker
        let id = bare.ask(fence(term(1, me)));
        bare.pass(secs(4));
        let Some(Err(RequestError::Timeout(tally))) = bare.answer(id) else { panic!("{me}") };
        assert_eq!((tally.answered, tally.needed), (1, needed), "{me}");
    }
}

#[test]
fn fence_sends_contexts_and_recovery_write_has_the_term() {
    cov_mark::check!(recovery_write);
    let mut bare = Bare::of(3);
    bare.ask(home(term(1, 0), WRITE_MAJORITY, 7));
    bare.sent();
    let id = bare.ask(fence(term(2, 0)));
    let asked = bare.sent().into_iter().find_map(|(_, body)| match body {
        Body::Fence { request, held, .. } => Some((request, held)),
        _ => None,
    });
    let (request, held) = asked.unwrap();
    assert_eq!(held.len(), 1);
    let nothing = ostraca_ddata::causal::CausalContext::new();
    let nothing = ostraca_ddata::replicator::wire::ContextBytes::new(&nothing);
    let differing =
        vec![ostraca_ddata::replicator::wire::KeyContext { key: "g-1".into(), context: nothing }];
    bare.hear(1, Body::Promised { request, counts: true, differing, entries: vec![] });
    assert_eq!(bare.answer(id), None, "node 1 lacks the value, so a recovery write is needed");
    let (push, entries) = bare.push_to_all(3);
    let guard = WireGuard { group: Group::new("g-"), term: Some(term(2, 0)) };
    assert_eq!(entries[0].guard, Some(guard));
    assert!(matches!(entries[0].content, EntryContent::Probe(_)));
    bare.hear(2, crate::bare::ack(push));
    assert_eq!(read(bare.answer(id).unwrap()), [("g-1".to_owned(), Some(7))]);
}

/// Guarded keys belong to the library, so the program could not act on the alarm.
#[test]
fn large_guarded_value_raises_no_alarm() {
    let config = ReplicatorConfig { log_data_size_exceeding: 5_000, ..ReplicatorConfig::default() };
    let mut bare = Bare::with(1, config);
    assert!(bare.now(fence(term(1, 0))).is_ok());
    let alarms = |bare: &Bare| -> Vec<ReplicatorAlarm> {
        let alarm = |output: &ReplicatorOutput| match output {
            ReplicatorOutput::Alarm(alarm) => Some(alarm.clone()),
            _ => None,
        };
        bare.others.iter().filter_map(alarm).collect()
    };
    type Text = LWWRegister<String>;
    let text = "x".repeat(6_000);
    let large = text.clone();
    let guard = ("g-", term(1, 0));
    let set = guarded::<Text, _>(guard, "g-1", WRITE_MAJORITY, move |r| r.set(&large));
    assert!(bare.now(set).is_ok());
    assert_eq!(alarms(&bare), []);
    let set = change::<Text, _>("other", To::Local, move |r| r.set(&text));
    assert!(bare.now(set).is_ok());
    let alarms = alarms(&bare);
    let [ReplicatorAlarm::LargeValue { key, .. }] = &alarms[..] else { panic!("{alarms:?}") };
    assert_eq!(key.as_str(), "other");
}
