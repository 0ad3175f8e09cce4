//! Subscriptions, expiry, pages of keys, counts of replicas and flushes (P58, M27).

use std::collections::BTreeMap;

use ostraca_ddata::data::Value;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::key::{KeyName, Pattern};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::MembershipChange;
use ostraca_ddata::replicator::port::ReplicatorOutput;
use ostraca_ddata::replicator::request::{
    ReadConsistency as Read, ReplicatorReply, ReplicatorRequest, SubscriptionId,
    SubscriptionNotice, WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::Body;
use ostraca_ddata::sim::{Fault, Faults, NodeIndex};
use ostraca_ddata::types::{LWWMap, LWWRegister, PNCounter};

use crate::bare::{Bare, Words, get, insert, peer};
use crate::cluster::{Cluster, Plan, WRITE_MAJORITY, millis, secs};
use crate::node::replica;

type Register = LWWRegister<String>;

fn subscribe(bare: &mut Bare, id: u64, pattern: &str) -> SubscriptionId {
    let subscription = SubscriptionId(id);
    bare.ask(ReplicatorRequest::Subscribe { subscription, pattern: Pattern::new(pattern) });
    subscription
}

/// The notices since the last call, as (subscription, key, number of words).
fn told(bare: &mut Bare) -> Vec<(u64, String, Option<usize>)> {
    let notify = |output| match output {
        ReplicatorOutput::Notify { subscription, notice } => Some((subscription.0, notice)),
        _ => None,
    };
    let told = std::mem::take(&mut bare.others).into_iter().filter_map(notify);
    told.map(|(id, notice)| match notice {
        SubscriptionNotice::Changed { key, value, .. } => {
            (id, key.to_string(), Some(value.get::<Words>().expect("words").len()))
        }
        SubscriptionNotice::Deleted { key } => (id, key.to_string(), None),
    })
    .collect()
}

fn event(id: u64, key: &str, words: Option<usize>) -> (u64, String, Option<usize>) {
    (id, key.to_owned(), words)
}

fn delete(key: &str) -> ReplicatorRequest {
    ReplicatorRequest::Delete { key: key.into(), consistency: To::Local }
}

#[test]
fn notices_are_current_value_then_changes_then_deletion() {
    let mut bare = Bare::of(1);
    let _ = bare.now(insert("k", "tea", To::Local));
    subscribe(&mut bare, 1, "k");
    assert_eq!(told(&mut bare), [event(1, "k", Some(1))]);
    let _ = bare.now(insert("k", "coffee", To::Local));
    assert_eq!(told(&mut bare), [event(1, "k", Some(2))]);
    let _ = bare.now(delete("k"));
    assert_eq!(told(&mut bare), [event(1, "k", None)]);
    let _ = bare.now(insert("k", "milk", To::Local));
    assert_eq!(told(&mut bare), [event(1, "k", Some(1))], "the key can be used again");
}

#[test]
fn subscription_to_an_absent_key_sees_its_first_value() {
    let mut bare = Bare::of(1);
    subscribe(&mut bare, 1, "k");
    let _ = bare.now(delete("k"));
    assert_eq!(told(&mut bare), []);
    let _ = bare.now(insert("k", "tea", To::Local));
    assert_eq!(told(&mut bare), [event(1, "k", Some(1))]);
}

#[test]
fn known_failure_36_overlapping_prefixes_are_all_notified() {
    let mut bare = Bare::of(1);
    for (id, pattern) in [(1, "a*"), (2, "ab*"), (3, "abc"), (4, "*"), (5, "b*")] {
        subscribe(&mut bare, id, pattern);
    }
    let _ = bare.now(insert("abc", "tea", To::Local));
    let mut all = told(&mut bare);
    all.sort();
    assert_eq!(all, [1, 2, 3, 4].map(|id| event(id, "abc", Some(1))));
}

#[test]
fn p58_prefix_subscription_sees_present_and_new_keys() {
    let mut bare = Bare::of(1);
    for key in ["shard-2", "shard-1", "other"] {
        let _ = bare.now(insert(key, "tea", To::Local));
    }
    subscribe(&mut bare, 1, "shard-*");
    assert_eq!(told(&mut bare), [event(1, "shard-1", Some(1)), event(1, "shard-2", Some(1))]);
    let _ = bare.now(insert("other", "coffee", To::Local));
    let _ = bare.now(insert("shard-3", "tea", To::Local));
    assert_eq!(told(&mut bare), [event(1, "shard-3", Some(1))]);
    bare.ask(ReplicatorRequest::Unsubscribe(SubscriptionId(1)));
    let _ = bare.now(insert("shard-4", "tea", To::Local));
    assert_eq!(told(&mut bare), []);
}

#[test]
fn unsubscribe_keeps_others_of_the_same_pattern() {
    let mut bare = Bare::of(1);
    for (id, pattern) in [(1, "k*"), (2, "k*"), (3, "k")] {
        subscribe(&mut bare, id, pattern);
    }
    bare.ask(ReplicatorRequest::Unsubscribe(SubscriptionId(1)));
    bare.ask(ReplicatorRequest::Unsubscribe(SubscriptionId(1)));
    bare.ask(ReplicatorRequest::Unsubscribe(SubscriptionId(99)));
    let _ = bare.now(insert("k", "tea", To::Local));
    let mut all = told(&mut bare);
    all.sort();
    assert_eq!(all, [event(2, "k", Some(1)), event(3, "k", Some(1))]);
}

#[test]
fn changes_of_a_key_in_one_batch_are_one_notice() {
    let mut bare = Bare::of(1);
    subscribe(&mut bare, 1, "k");
    bare.batch((0..50).map(|n| insert("k", &n.to_string(), To::Local)).collect());
    assert_eq!(told(&mut bare), [event(1, "k", Some(50))]);
    bare.batch(vec![insert("x", "tea", To::Local), delete("x")]);
    assert_eq!(told(&mut bare), [], "there is no subscription to x");
}

#[test]
fn interval_coalesces_to_the_latest_value() {
    let notify_subscribers_interval = millis(500);
    let mut bare = Bare::with(
        1,
        ReplicatorConfig { notify_subscribers_interval, ..ReplicatorConfig::default() },
    );
    subscribe(&mut bare, 1, "k*");
    for n in 0..4 {
        let _ = bare.now(insert("k", &n.to_string(), To::Local));
        bare.pass(millis(100));
        assert_eq!(told(&mut bare), []);
    }
    bare.pass(millis(100));
    assert_eq!(told(&mut bare), [event(1, "k", Some(4))]);
    bare.pass(secs(5));
    assert_eq!(told(&mut bare), [], "the value is reported once");
}

#[test]
fn subscriber_in_mid_interval_sees_the_deletion() {
    let notify_subscribers_interval = millis(500);
    let mut bare = Bare::with(
        1,
        ReplicatorConfig { notify_subscribers_interval, ..ReplicatorConfig::default() },
    );
    subscribe(&mut bare, 1, "k");
    let _ = bare.now(insert("k", "tea", To::Local));
    subscribe(&mut bare, 2, "k");
    let both = told(&mut bare);
    assert!(both.contains(&event(1, "k", Some(1))) && both.contains(&event(2, "k", Some(1))));
    let _ = bare.now(delete("k"));
    bare.pass(secs(1));
    let mut both = told(&mut bare);
    both.sort();
    assert_eq!(both, [event(1, "k", None), event(2, "k", None)]);
}

#[test]
fn change_that_reads_the_same_is_not_notified() {
    let mut cluster = Plan::of(3).start();
    let set = |text: &'static str| {
        move |register: &mut ostraca_ddata::types::edit::Edit<'_, Register>| register.set(text)
    };
    cluster.write::<Register, _>(0, "k", WRITE_MAJORITY, set("on")).unwrap();
    let subscription = cluster.subscribe(2, "k");
    cluster.run(secs(1));
    assert_eq!(cluster.notices(subscription).len(), 1);
    cluster.write::<Register, _>(1, "k", To::All(secs(3)), set("on")).unwrap();
    cluster.run(secs(1));
    assert_eq!(cluster.notices(subscription).len(), 1);
    cluster.write::<Register, _>(1, "k", To::All(secs(3)), set("off")).unwrap();
    cluster.run(millis(1));
    assert_eq!(cluster.notices(subscription).len(), 2);
}

#[test]
fn notice_tells_which_map_keys_have_changed() {
    let mut bare = Bare::of(1);
    type Map = LWWMap<u32, u32>;
    let put = |key: u32, value: u32| {
        crate::bare::change::<Map, _>("m", To::Local, move |map| map.insert(&key, &value))
    };
    bare.batch((0..1_000).map(|n| put(n, 0)).collect());
    subscribe(&mut bare, 1, "m");
    bare.others.clear();
    bare.batch(vec![put(7, 1), put(9, 0), put(2_000, 5)]);
    let [
        ReplicatorOutput::Notify {
            notice: SubscriptionNotice::Changed { value, before, .. }, ..
        },
    ] = &bare.others[..]
    else {
        panic!("not one event: {:?}", bare.others)
    };
    let mut changed: Vec<u32> =
        value.keys_changed_since(before.as_ref()).iter().map(|key| key.decode().unwrap()).collect();
    changed.sort_unstable();
    assert_eq!(changed, [7, 2_000], "key 9 was written and reads the same");
    let old = |key: &u32| before.as_ref().and_then(Value::get::<Map>).unwrap().get(key).unwrap();
    assert_eq!((old(&7), old(&2_000)), (Some(0), None));
    assert_eq!(value.get::<Map>().unwrap().get(&7).unwrap(), Some(1));
    assert_eq!(value.keys_changed_since(None).len(), 1_001);
}

#[test]
fn m27_subscription_before_joining_sees_remote_changes() {
    let mut cluster = Plan { nodes: 3, started: 3, ..Plan::of(2) }.start();
    let early = cluster.subscribe(2, "k*");
    cluster.write::<Words, _>(0, "k1", WRITE_MAJORITY, |set| set.insert("tea")).unwrap();
    cluster.write::<Words, _>(0, "x", WRITE_MAJORITY, |set| set.insert("tea")).unwrap();
    cluster.run(secs(2));
    assert_eq!(cluster.notices(early), [], "the node knows no peers");
    cluster.introduce();
    cluster
        .propose(0, MembershipChange { join: vec![replica(2, 1)], ..MembershipChange::default() });
    cluster.run(secs(5));
    cluster.write::<Words, _>(1, "k2", To::All(secs(3)), |set| set.insert("tea")).unwrap();
    let request = ReplicatorRequest::Delete { key: "k1".into(), consistency: To::All(secs(3)) };
    let deleted = cluster.ask(1, request);
    cluster.answer(deleted).unwrap();
    cluster.run(secs(1));
    let key = |notice: &SubscriptionNotice| match notice {
        SubscriptionNotice::Changed { key, .. } => (key.to_string(), true),
        SubscriptionNotice::Deleted { key } => (key.to_string(), false),
    };
    let told: Vec<_> = cluster.notices(early).iter().map(key).collect();
    assert_eq!(told, [("k1".into(), true), ("k2".into(), true), ("k1".into(), false)]);
}

#[test]
fn slow_subscriber_delays_nothing() {
    // Notices are outputs: the machine keeps none of them.
    let mut bare = Bare::of(1);
    subscribe(&mut bare, 1, "k");
    for n in 0..1_000 {
        let _ = bare.now(insert("k", &(n % 10).to_string(), To::Local));
    }
    let events = told(&mut bare);
    assert_eq!(events.len(), 10, "inserting a present element changes nothing for a reader");
    assert!(bare.replicator.next_deadline_is_far(&bare.now));
}

trait Quiet {
    fn next_deadline_is_far(&self, now: &ostraca_ddata::clock::Now) -> bool;
}

impl Quiet for ostraca_ddata::replicator::Replicator {
    fn next_deadline_is_far(&self, now: &ostraca_ddata::clock::Now) -> bool {
        use ostraca_ddata::machine::Machine as _;
        self.next_deadline().is_none_or(|at| at > now.mono)
    }
}

// ── expiry ──

fn expiring(after: std::time::Duration) -> ReplicatorConfig {
    ReplicatorConfig {
        expire_keys_after_inactivity: vec![(Pattern::new("s*"), after)],
        ..ReplicatorConfig::default()
    }
}

fn tea(cluster: &mut Cluster, node: usize, key: &str) {
    cluster.write::<Words, _>(node, key, WRITE_MAJORITY, |set| set.insert("tea")).unwrap();
}

fn holders(cluster: &Cluster, key: &str) -> usize {
    (0..3).filter(|n| cluster.held::<Words>(*n, key).is_some()).count()
}

#[test]
fn m27_unused_key_expires_everywhere_and_is_reusable() {
    cov_mark::check!(key_expired);
    let mut cluster = Plan { config: expiring(secs(4)), ..Plan::of(3) }.start();
    let subscription = cluster.subscribe(1, "s*");
    for key in ["s1", "other"] {
        tea(&mut cluster, 0, key);
    }
    cluster.run(secs(3));
    assert_eq!(holders(&cluster, "s1"), 3, "the key has not expired yet");
    cluster.run(secs(6));
    assert_eq!((holders(&cluster, "s1"), holders(&cluster, "other")), (0, 3));
    let last = cluster.notices(subscription).pop();
    assert_eq!(last, Some(SubscriptionNotice::Deleted { key: "s1".into() }));
    let expired: u64 = (0..3).map(|n| cluster.stats(n).expired).sum();
    assert_eq!(expired, 1, "one replica decides");
    assert!(cluster.read::<Words>(2, "s1", Read::majority(secs(3))).is_none());
    tea(&mut cluster, 2, "s1");
    cluster.settle(&[0, 1, 2], secs(3));
    assert_eq!(holders(&cluster, "s1"), 3);
}

#[test]
fn reads_on_one_node_keep_a_key_alive() {
    for reader in 0..3 {
        let mut cluster = Plan { config: expiring(secs(4)), ..Plan::of(3) }.start();
        tea(&mut cluster, 0, "s1");
        for _ in 0..20 {
            cluster.run(secs(1));
            assert!(cluster.read::<Words>(reader, "s1", Read::Local).is_some(), "by {reader}");
        }
        cluster.run(secs(10));
        assert_eq!(holders(&cluster, "s1"), 0);
    }
}

#[test]
fn clocks_an_hour_apart_do_not_affect_expiry() {
    let faults = Faults { wall_skew: secs(3_600), ..Faults::none() };
    let mut cluster = Plan { config: expiring(secs(4)), faults, ..Plan::of(3) }.start();
    tea(&mut cluster, 0, "s1");
    for node in 0..3 {
        let (node, millis) = (NodeIndex::new(node), 3_600_000 - 3_600_000 * node as i64);
        cluster.sim.fault(&Fault::Jump { node, millis });
    }
    cluster.run(secs(3));
    assert_eq!(holders(&cluster, "s1"), 3);
    cluster.run(secs(5));
    assert_eq!(holders(&cluster, "s1"), 0);
}

#[test]
fn change_concurrent_with_expiry_survives() {
    // The owner of the key is on one side and does not receive the change made on the other.
    for writer in 0..3 {
        let mut cluster = Plan { config: expiring(secs(4)), ..Plan::of(3) }.start();
        tea(&mut cluster, 0, "s1");
        cluster.settle(&[0, 1, 2], secs(1));
        let others: Vec<usize> = (0..3).filter(|n| *n != writer).collect();
        cluster.partition(&[&[writer], &others]);
        cluster.write::<Words, _>(writer, "s1", To::Local, |set| set.insert("coffee")).unwrap();
        cluster.run(secs(3));
        cluster.read::<Words>(writer, "s1", Read::Local);
        cluster.run(secs(4));
        cluster.heal();
        cluster.run(secs(1));
        if cluster.stats(writer).expired == 0 {
            let held = cluster.read::<Words>(others[0], "s1", Read::From(3, secs(3)));
            assert!(held.is_some_and(|set| set.contains("coffee")), "written by {writer}");
        }
    }
}

#[test]
fn new_owner_of_a_key_waits_for_reports() {
    // The keys are used by reads on node 0 only; their owners change.
    let mut cluster =
        Plan { nodes: 4, started: 4, config: expiring(secs(4)), ..Plan::of(4) }.start();
    cluster.introduce();
    for n in 0..20 {
        tea(&mut cluster, 0, &format!("s{n}"));
    }
    let mut next = 2;
    for round in 0..12 {
        for n in 0..20 {
            let held = cluster.read::<Words>(0, &format!("s{n}"), Read::Local);
            assert!(held.is_some(), "s{n} expired in round {round}");
        }
        cluster.run(secs(1));
        if round == 4 || round == 8 {
            next += 1;
            let leave = vec![replica(next - 1, 1)];
            cluster.propose(0, MembershipChange { leave, ..MembershipChange::default() });
        }
    }
    assert_eq!(cluster.node(0).replicator.epochs().installed().unwrap().members().len(), 2);
}

/// The reports of uses sent since the last call, by receiver.
fn reports(bare: &mut Bare) -> BTreeMap<ReplicaId, Vec<(KeyName, u64)>> {
    let mut reports = BTreeMap::<_, Vec<_>>::new();
    for (to, body) in bare.sent() {
        if let Body::Used(keys) = body {
            reports.entry(to).or_default().extend(keys);
        }
    }
    reports
}

#[test]
fn use_is_reported_again_until_the_owner_knows_it() {
    let mut bare = Bare::with(3, expiring(secs(4)));
    let keys: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
    for key in &keys {
        let _ = bare.now(insert(key, "tea", To::Local));
    }
    bare.pass(millis(100));
    for key in &keys {
        let _ = bare.now(get(key, Read::Local));
    }
    bare.sent();
    let seconds = |bare: &mut Bare| {
        bare.pass(millis(1_000));
        reports(bare)
    };
    let first = seconds(&mut bare);
    assert_eq!(first.len(), 2, "each of the others owns some: {first:?}");
    let names = |keys: &[(KeyName, u64)]| keys.iter().map(|(k, _)| k.clone()).collect::<Vec<_>>();
    let again = seconds(&mut bare);
    for (owner, keys) in &first {
        assert_eq!(names(keys), names(&again[owner]), "no owner has answered yet");
    }
    bare.hear(1, Body::Known(first[&peer(1)].clone())); // the owner has got the first report only
    bare.hear(2, Body::Known(first[&peer(1)].clone())); // node 2 does not own these keys
    let third = seconds(&mut bare);
    assert_eq!(third.keys().collect::<Vec<_>>(), [&peer(2)]);
    let _ = bare.now(get(first[&peer(1)][0].0.as_str(), Read::Local));
    assert!(seconds(&mut bare).contains_key(&peer(1)), "a later use is reported");
}

#[test]
fn owner_of_a_key_answers_reports_of_its_use() {
    let mut bare = Bare::with(3, expiring(secs(4)));
    let keys: Vec<KeyName> = (0..20).map(|n| KeyName::new(&format!("s{n}"))).collect();
    for key in &keys {
        let _ = bare.now(insert(key.as_str(), "tea", To::Local));
    }
    bare.sent();
    bare.hear(1, Body::Used(keys.iter().map(|key| (key.clone(), 500)).collect()));
    let sent = bare.sent();
    let [(to, Body::Known(known))] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(*to, peer(1));
    assert!((1..20).contains(&known.len()), "its own keys only: {}", known.len());
    assert!(known.iter().all(|(_, age)| *age == 0), "it has just used them itself");
}

#[test]
fn guarded_keys_never_expire() {
    let mut cluster = Plan { config: expiring(secs(2)), ..Plan::of(3) }.start();
    cluster.write::<Words, _>(1, "s-home-0", To::Local, |set| set.insert("tea")).unwrap();
    let term = ostraca_ddata::types::Term { number: 1, owner: replica(0, 1) };
    let fence = cluster.fence(0, "s-home", term, secs(3));
    cluster.answer(fence).unwrap();
    let write = cluster.guarded::<LWWRegister<u32>, _>(
        0,
        ("s-home", term),
        "s-home-1",
        WRITE_MAJORITY,
        |home| home.set(&1),
    );
    cluster.answer(write).unwrap();
    tea(&mut cluster, 0, "s1");
    cluster.run(secs(20));
    assert_eq!(holders(&cluster, "s1"), 0);
    assert!((0..3).all(|n| cluster.held::<LWWRegister<u32>>(n, "s-home-1").is_some()));
    assert_eq!(holders(&cluster, "s-home-0"), 3, "a key older than its group is guarded, too");
}

#[test]
fn expired_durable_key_does_not_return_from_disk() {
    let config = ReplicatorConfig { durable_keys: vec![Pattern::new("*")], ..expiring(secs(2)) };
    let mut cluster = Plan { config, ..Plan::of(3) }.start();
    tea(&mut cluster, 0, "s1");
    cluster.run(secs(10));
    assert_eq!(holders(&cluster, "s1"), 0);
    for node in 0..3 {
        cluster.crash(node);
        cluster.restart(node);
    }
    cluster.run(secs(1));
    assert_eq!(holders(&cluster, "s1"), 0);
    assert!(
        (0..3).all(|n| cluster.node(n).replicator.peek(&"s1".into()).is_some()),
        "its context is kept"
    );
}

// ── keys, counts, flushes ──

fn page(bare: &mut Bare, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let after = after.map(KeyName::new);
    let request = ReplicatorRequest::Keys { prefix: prefix.into(), after, limit };
    let Ok(ReplicatorReply::Keys(keys)) = bare.now(request) else { panic!("no keys") };
    keys.iter().map(KeyName::to_string).collect()
}

#[test]
fn keys_are_paged_by_name_without_deleted_ones() {
    let mut bare = Bare::of(1);
    for key in ["b2", "a", "b1", "c", "b3", "b4"] {
        let _ = bare.now(insert(key, "tea", To::Local));
    }
    let _ = bare.now(delete("b3"));
    assert_eq!(page(&mut bare, "b", None, 2), ["b1", "b2"]);
    assert_eq!(page(&mut bare, "b", Some("b2"), 2), ["b4"]);
    assert_eq!(page(&mut bare, "b", Some("b4"), 2), [""; 0]);
    assert_eq!(page(&mut bare, "", None, 10), ["a", "b1", "b2", "b4", "c"]);
    assert_eq!(page(&mut bare, "", None, 0), [""; 0]);
    let _ = bare.now(insert("b3", "coffee", To::Local));
    assert_eq!(page(&mut bare, "b", Some("b2"), 10), ["b3", "b4"]);
    assert_eq!((bare.replicator.stats().keys, bare.replicator.stats().keys_deleted), (6, 0));
}

#[test]
fn replica_count_is_0_while_loading_or_unjoined() {
    let config =
        ReplicatorConfig { durable_keys: vec![Pattern::new("*")], ..ReplicatorConfig::default() };
    let mut bare = Bare::unloaded(config.clone());
    assert_eq!(bare.now(ReplicatorRequest::ReplicaCount), Ok(ReplicatorReply::ReplicaCount(0)));
    assert_eq!(
        Bare::joining(config).now(ReplicatorRequest::ReplicaCount),
        Ok(ReplicatorReply::ReplicaCount(0))
    );
    for members in [1, 3, 5] {
        let mut bare = Bare::of(members);
        assert_eq!(
            bare.now(ReplicatorRequest::ReplicaCount),
            Ok(ReplicatorReply::ReplicaCount(members))
        );
    }
}

#[test]
fn flush_ends_when_all_replicas_hold_earlier_changes() {
    let mut cluster = Plan::of(3).start();
    for n in 0..50 {
        cluster.update::<PNCounter, _>(0, &format!("k{n}"), To::Local, |count| count.add(1));
    }
    let flush = cluster.ask(0, ReplicatorRequest::FlushChanges { within: secs(5) });
    assert_eq!(cluster.answer(flush), Ok(ReplicatorReply::Flushed));
    for (node, n) in (1..3).flat_map(|node| (0..50).map(move |n| (node, n))) {
        assert!(cluster.held::<PNCounter>(node, &format!("k{n}")).is_some());
    }
    cluster.crash(2);
    cluster.update::<PNCounter, _>(0, "k0", To::Local, |count| count.add(1));
    let flush = cluster.ask(0, ReplicatorRequest::FlushChanges { within: secs(5) });
    assert!(cluster.answer(flush).is_err(), "node 2 does not hold it");
}

#[test]
fn flush_without_pending_changes_ends_at_once() {
    let mut bare = Bare::of(3);
    assert_eq!(
        bare.now(ReplicatorRequest::FlushChanges { within: secs(1) }),
        Ok(ReplicatorReply::Flushed)
    );
    let writes = |(_, body): &_| matches!(body, Body::Write { .. });
    assert!(!bare.sent().iter().any(writes));
}
