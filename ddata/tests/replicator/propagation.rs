//! The spreading of changes: the cases of Pekko's `DeltaPropagationSelectorSpec` (P14–P21), resends,
//! repairs, frames, anti-entropy, and some of the known failures that `failures.rs` lists.
//!
//! A *push* is the message with the changes of a batch. A peer that did not get one is repaired in
//! one of two ways: it answers a later change that builds on the lost one with `Lack` and gets the
//! difference at once, or anti-entropy finds the difference.
//!
//! | Pekko | here |
//! |---|---|
//! | P14 buffers emptied without peers | nothing is kept without peers |
//! | P15, P16 slices of peers per tick | one message per peer and batch, to all at once |
//! | P17 a late peer gets old and new | pushes are resent one by one, never joined |
//! | P18, P19 versions and ranges of deltas | dots replace them; updates of a batch are one delta |
//! | P20 over 1,000 operations become a placeholder | no such limit: frames are cut by bytes |
//! | P21 slice sizes | all peers up to `direct_push_limit`, above it voters and `ln n + 6` |

use ostraca_ddata::key::Pattern;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::MembershipChange;
use ostraca_ddata::replicator::port::ReplicatorInput;
use ostraca_ddata::replicator::request::{
    ReadConsistency as Read, ReplicatorReply, ReplicatorRequest, WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::{Body, Entry, EntryContent};
use ostraca_ddata::types::delta::Delta;
use ostraca_ddata::types::shape::Shape;
use ostraca_ddata::types::{LWWRegister, ORSet, PNCounterMap};

use crate::bare::{Bare, Words, ack, change, insert, peer, sent_as};
use crate::cluster::{Cluster, Plan, WRITE_MAJORITY, first_epoch, millis, secs};
use crate::node::replica;

/// Settings without periodic anti-entropy, so that changes spread by pushes only. A link that comes up
/// still starts one comparison.
fn no_gossip() -> ReplicatorConfig {
    let never = secs(1_000_000);
    ReplicatorConfig {
        gossip_interval: never,
        busy_gossip_interval: never,
        ..ReplicatorConfig::default()
    }
}

fn delta(entry: &Entry, shape: &Shape) -> Delta {
    let EntryContent::Delta(bytes) = &entry.content else { panic!("no delta: {entry:?}") };
    Delta::decode(bytes.as_slice(), shape).expect("the delta decodes")
}

#[test]
fn p14_without_peers_nothing_is_collected() {
    let mut bare = Bare::of(1);
    let _ = bare.now(insert("k", "tea", To::Local));
    assert_eq!(bare.sent(), []);
    assert_eq!(bare.replicator.stats().pushes_open, 0);
}

#[test]
fn p15_p16_batch_is_one_message_to_every_peer() {
    let mut bare = Bare::of(4);
    bare.batch(vec![insert("a", "tea", To::Local), insert("b", "tea", To::Local)]);
    let (push, entries) = bare.push_to_all(4);
    let mut keys: Vec<_> = entries.iter().map(|entry| entry.key.as_str()).collect();
    keys.sort_unstable(); // their order is that of hashes
    assert_eq!(keys, ["a", "b"]);
    for n in 1..4 {
        assert_eq!(
            bare.replicator.stats().pushes_open,
            1,
            "the push is open until all peers hold it"
        );
        bare.hear(n, ack(push));
    }
    assert_eq!(bare.replicator.stats().pushes_open, 0);
    bare.pass(secs(5));
    assert_eq!(bare.pushes(), [], "nothing is resent");
}

/// Only the oldest push is resent to a silent peer. Its acknowledgement shows that the second push,
/// which was sent before that resend, is lost, because messages of a lane arrive in order.
#[test]
fn p17_late_peer_gets_old_and_new_pushes_again() {
    let mut bare = Bare::with(3, no_gossip());
    let _ = bare.now(insert("k", "tea", To::Local));
    let (first, _) = bare.push_to_all(3);
    bare.hear(1, ack(first));
    let _ = bare.now(insert("k", "coffee", To::Local));
    let (second, _) = bare.push_to_all(3);
    bare.hear(1, ack(second));
    bare.pass(millis(150)); // more than the patience with a peer that has never answered
    let again = bare.pushes();
    let [(to, name, _)] = &again[..] else { panic!("only the oldest is resent: {again:?}") };
    assert_eq!((*to, sent_as(*name)), (peer(2), (sent_as(first).0, 1)), "its first resend");
    bare.hear(2, ack(*name));
    bare.pass(millis(1));
    let again = bare.pushes();
    let [(to, name, _)] = &again[..] else { panic!("the rest follows the answer: {again:?}") };
    assert_eq!((*to, sent_as(*name)), (peer(2), (sent_as(second).0, 1)));
    bare.hear(2, ack(*name));
    bare.pass(secs(5));
    assert_eq!(bare.pushes(), []);
    assert_eq!(bare.replicator.stats().pushes_open, 0);
}

#[test]
fn p18_p19_updates_of_a_batch_are_one_delta() {
    let mut bare = Bare::of(3);
    let words = ["tea", "coffee", "milk"];
    bare.batch(words.map(|word| insert("k", word, To::Local)).into());
    let (_, entries) = bare.push_to_all(3);
    assert_eq!(entries.len(), 1);
    let delta = delta(&entries[0], &Shape::ORSet);
    assert_eq!(delta.dots().len(), 3);
    let (mut other, from) = (Bare::named(peer(1), ReplicatorConfig::default()), peer(0));
    other.found(first_epoch(3));
    let body = Body::Write { push: 1, whole: true, entries: entries.into() };
    other.hear_in(from, Some(crate::bare::epoch_id()), body);
    assert!(words.iter().all(|word| other.holds("k", word)));
}

#[test]
fn p20_thousand_map_updates_arrive_as_one_delta() {
    let mut bare = Bare::of(2);
    let add = |n: u32| change::<PNCounterMap<u32>, _>("k", To::Local, move |map| map.add(&n, 1));
    bare.batch((0..1_000).map(add).collect());
    let mut other = Bare::named(peer(1), ReplicatorConfig::default());
    other.found(first_epoch(2));
    for (_, body) in bare.sent() {
        other.hear_in(peer(0), Some(crate::bare::epoch_id()), body);
    }
    let held = other.replicator.peek(&"k".into()).and_then(|v| v.get::<PNCounterMap<u32>>());
    assert_eq!(held.map(|map| map.len()), Some(1_000));
    assert_eq!(other.replicator.stats().states_merged, 0);
}

#[test]
fn p21_above_the_limit_voters_and_a_few_get_a_change() {
    for members in [1, 2, 10, 101] {
        let mut bare = Bare::of(members);
        let _ = bare.now(insert("k", "tea", To::Local));
        assert_eq!(bare.pushes().len(), members - 1);
    }
    let mut bare = Bare::of(201);
    let voters = first_epoch(201).voters().len();
    let _ = bare.now(insert("k", "tea", To::Local));
    let sent = bare.pushes().len();
    let fanout = 6 + 6; // ⌈ln 200⌉ + 6; some of them may be voters, and this node may be one
    assert!((fanout..fanout + voters).contains(&sent), "{sent} of 200, {voters} voters");
}

#[test]
fn change_is_not_sent_back_to_origin_or_forwarder() {
    let mut origin = Bare::named(peer(1), ReplicatorConfig::default());
    origin.found(first_epoch(4));
    let _ = origin.now(insert("k", "tea", To::Local));
    let (.., entries) = origin.pushes().remove(0);
    let mut bare = Bare::of(4);
    bare.hear(1, Body::Write { push: 1, whole: true, entries: entries.clone().into() });
    assert_eq!(bare.pushes(), [], "all peers got it from the origin");

    // Above the limit each receiver of a new change forwards it; a push 0 asks for no answer.
    let forwarding = ReplicatorConfig { direct_push_limit: 2, ..ReplicatorConfig::default() };
    let mut bare = Bare::with(4, forwarding);
    bare.hear(2, Body::Write { push: 0, whole: true, entries: entries.clone().into() });
    let to: Vec<_> = bare.pushes().into_iter().map(|(to, ..)| to).collect();
    assert_eq!(to, [peer(3)], "neither its origin 1 nor the forwarder 2");
    bare.hear(3, Body::Write { push: 0, whole: true, entries: entries.into() });
    assert_eq!(bare.pushes(), [], "a known change is not forwarded");
}

#[test]
fn eager_rounds_reach_all_replicas_of_a_large_cluster() {
    let config = ReplicatorConfig { direct_push_limit: 10, ..no_gossip() };
    let mut cluster = Plan { config, ..Plan::of(40) }.start();
    cluster.write::<Words, _>(7, "k", To::Local, |set| set.insert("tea")).unwrap();
    cluster.run(secs(1));
    let have = (0..40).filter(|n| cluster.held::<Words>(*n, "k").is_some()).count();
    assert!(have >= 39, "{have} of 40"); // each node is missed with probability e^-6
}

#[test]
fn silent_peer_is_asked_again_after_twice_the_p95() {
    let mut bare = Bare::with(2, no_gossip());
    bare.round_trips(millis(10));
    let _ = bare.now(insert("k", "tea", To::Local));
    bare.sent();
    bare.pass(millis(19));
    assert_eq!(bare.pushes(), []);
    bare.pass(millis(1));
    assert_eq!(bare.pushes().len(), 1);
    bare.pass(millis(39));
    assert_eq!(bare.pushes(), [], "the patience is doubled");
    bare.pass(millis(1));
    assert_eq!(bare.pushes().len(), 1);
}

#[test]
fn new_link_resends_everything_outstanding() {
    let mut bare = Bare::with(3, no_gossip());
    for key in ["a", "b", "c"] {
        let _ = bare.now(insert(key, "tea", To::Local));
    }
    let pushes: Vec<_> = bare.pushes().into_iter().map(|(_, push, _)| push).collect();
    for push in &pushes {
        bare.hear(1, ack(*push));
    }
    bare.feed(ReplicatorInput::LinkUp(peer(2)));
    let again = bare.pushes();
    assert_eq!(again.len(), 3);
    assert!(again.iter().all(|(to, ..)| *to == peer(2)));
    bare.feed(ReplicatorInput::LinkUp(peer(1)));
    assert_eq!(bare.pushes(), [], "node 1 holds everything");
}

#[test]
fn removal_before_its_insertion_is_repaired() {
    let mut cluster = Plan { config: no_gossip(), ..Plan::of(3) }.start();
    cluster.partition(&[&[0, 1], &[2]]);
    cluster.write::<Words, _>(0, "k", To::Local, |set| set.insert("tea")).unwrap();
    cluster.run(secs(10));
    assert_eq!(cluster.stats(0).pushes_open, 0, "left to anti-entropy, which never runs here");
    cluster.heal();
    cluster.write::<Words, _>(1, "k", To::All(secs(3)), |set| set.remove("tea")).unwrap();
    assert!(cluster.stats(2).lacks > 0, "the removal overwrites an insertion never seen");
    assert!(cluster.held::<Words>(2, "k").is_none());
    let context = |cluster: &Cluster, n| {
        cluster.node(n).replicator.peek(&"k".into()).unwrap().state().context().clone()
    };
    assert_eq!(
        context(&cluster, 2),
        context(&cluster, 1),
        "an acknowledging replica holds everything"
    );
}

#[test]
fn pushes_to_a_dead_peer_are_bounded_in_number_and_bytes() {
    let mut bare = Bare::with(2, no_gossip());
    for n in 0..6_000 {
        let _ = bare.now(insert(&format!("k{n}"), "tea", To::Local));
    }
    assert!(bare.replicator.stats().pushes_open <= 4_096); // `IDLE_MAX` of push.rs
    let mut bare = Bare::with(2, no_gossip());
    for n in 0..100 {
        let large = "x".repeat(1 << 20);
        let _ = bare.now(insert(&format!("k{n}"), &large, To::Local));
        bare.sent();
    }
    let open = bare.replicator.stats().pushes_open; // `IDLE_BYTES_MAX` is 64 MiB
    assert!((1..=64).contains(&open), "{open} pushes of 1 MiB");
    bare.pass(secs(60));
    assert_eq!(bare.replicator.stats().pushes_open, 0, "the rest is left to anti-entropy");
}

#[test]
fn changes_left_to_anti_entropy_delay_a_flush() {
    let mut cluster = Plan::of(2).start();
    cluster.partition(&[&[0], &[1]]);
    cluster.write::<Words, _>(0, "k", To::Local, |set| set.insert("tea")).unwrap();
    cluster.run(secs(10)); // longer than the resends of a push that no request waits for
    assert_eq!(cluster.stats(0).pushes_open, 0);
    let flush = cluster.ask(0, ReplicatorRequest::FlushChanges { within: secs(30) });
    cluster.run(secs(5));
    assert_eq!(cluster.answered(flush), None);
    cluster.heal();
    assert_eq!(cluster.answer(flush), Ok(ReplicatorReply::Flushed));
    assert!(cluster.held::<Words>(1, "k").is_some());
}

#[test]
fn without_deltas_full_states_are_pushed() {
    let config = ReplicatorConfig { delta_enabled: false, ..no_gossip() };
    let mut cluster = Plan { config, ..Plan::of(3) }.start();
    for word in ["tea", "coffee", "milk"] {
        cluster.write::<Words, _>(0, "k", WRITE_MAJORITY, move |set| set.insert(word)).unwrap();
    }
    cluster.settle(&[0, 1, 2], secs(2));
    assert_eq!(cluster.held::<Words>(2, "k").unwrap().len(), 3);
    assert_eq!(cluster.stats(2).deltas_merged, 0);
    assert!(cluster.stats(2).states_merged >= 3);
}

#[test]
fn known_failure_17_state_larger_than_a_frame_arrives() {
    let config = ReplicatorConfig { frame_bytes_max: 2_000, ..ReplicatorConfig::default() };
    let mut cluster = Plan { config, nodes: 4, started: 4, ..Plan::of(3) }.start();
    cluster.introduce();
    for n in 0..300_u32 {
        let word = format!("{n}-{}", "x".repeat(200));
        cluster.update::<Words, _>(0, "k", To::Local, move |set| set.insert(&word));
    }
    cluster.settle(&[0, 1, 2], secs(20));
    assert!(cluster.held::<Words>(2, "k").is_some_and(|set| set.len() == 300));
    // A joiner gets the whole state at once, 60 KB.
    cluster
        .propose(0, MembershipChange { join: vec![replica(3, 1)], ..MembershipChange::default() });
    cluster.settle(&[0, 1, 2, 3], secs(20));
    assert!(cluster.held::<Words>(3, "k").is_some_and(|set| set.len() == 300));
    for (kind, sent) in cluster.sent() {
        assert!(sent.longest <= 2_000, "{kind}: {} bytes", sent.longest);
    }
    assert!(cluster.sent()["part"].messages > 30);
}

#[test]
fn cut_value_arrives_despite_lost_pieces() {
    use ostraca_ddata::sim::{Faults, LinkQuality};
    let lossy = LinkQuality { loss: 0.2, ..LinkQuality::clean() };
    let faults = Faults { links: vec![lossy], ..Faults::none() };
    let config = ReplicatorConfig { frame_bytes_max: 4_000, ..ReplicatorConfig::default() };
    let mut cluster = Plan { config, faults, ..Plan::of(2) }.start();
    let large = "x".repeat(30_000);
    cluster.write::<LWWRegister<String>, _>(0, "k", To::Local, move |r| r.set(&large)).unwrap();
    cluster.settle(&[0, 1], secs(60));
    assert!(cluster.held::<LWWRegister<String>>(1, "k").is_some());
}

#[test]
fn known_failure_16_lost_delta_is_replaced_by_a_repair() {
    let mut cluster = Plan::of(2).start();
    for n in 0..20_u32 {
        cluster.update::<ORSet<u32>, _>(0, "k", To::Local, move |set| set.insert(&n));
    }
    cluster.settle(&[0, 1], secs(5));
    cluster.partition(&[&[0], &[1]]);
    cluster.write::<ORSet<u32>, _>(0, "k", To::Local, |set| set.remove(&3)).unwrap();
    cluster.run(secs(10));
    assert_eq!(cluster.stats(0).pushes_open, 0, "the push of the delta is given up");
    cluster.heal();
    cluster.write::<ORSet<u32>, _>(0, "k", To::Local, |set| set.insert(&20)).unwrap();
    cluster.settle(&[0, 1], secs(3));
    let held = cluster.held::<ORSet<u32>>(1, "k").unwrap();
    assert!(!held.contains(&3) && held.contains(&20) && held.len() == 20);
}

#[test]
fn known_failure_33_acked_write_is_stored_after_expiry() {
    let expire_keys_after_inactivity = vec![(Pattern::new("e*"), secs(2))];
    let config = ReplicatorConfig { expire_keys_after_inactivity, ..no_gossip() };
    let mut cluster = Plan { config, ..Plan::of(3) }.start();
    cluster.introduce();
    let tea = |set: &mut ostraca_ddata::types::edit::Edit<'_, Words>| set.insert("tea");
    cluster.write::<Words, _>(0, "e1", To::All(secs(3)), tea).unwrap();
    cluster.run(secs(10));
    for n in 0..3 {
        assert!(cluster.held::<Words>(n, "e1").is_none(), "expired on {n}");
    }
    cluster.write::<Words, _>(0, "e1", To::All(secs(3)), tea).unwrap();
    for n in 0..3 {
        assert!(cluster.held::<Words>(n, "e1").is_some(), "acknowledged, so stored on {n}");
    }
    // The same guarantee after a restart, for a key that does not expire.
    cluster.crash(0);
    cluster.restart(0);
    cluster.run(millis(100));
    cluster.introduce();
    let change = MembershipChange {
        join: vec![replica(0, 2)],
        lost: vec![replica(0, 1)],
        ..MembershipChange::default()
    };
    cluster.propose(1, change);
    cluster.run(secs(5));
    cluster.write::<Words, _>(0, "k2", To::All(secs(3)), tea).unwrap();
    for n in 0..3 {
        assert!(cluster.held::<Words>(n, "k2").is_some(), "stored on {n} after the restart");
    }
}

#[test]
fn known_failure_40_one_missing_key_costs_one_key() {
    let mut cluster = Plan::of(2).start();
    for n in 0..2_000 {
        cluster.update::<Words, _>(0, &format!("key-{n}"), To::Local, |set| set.insert("tea"));
    }
    cluster.settle(&[0, 1], secs(30));
    cluster.run(secs(3));
    cluster.partition(&[&[0], &[1]]);
    cluster.write::<Words, _>(0, "key-77", To::Local, |set| set.insert("coffee")).unwrap();
    cluster.run(secs(10));
    let (before, merged) = (cluster.sent(), [cluster.stats(0), cluster.stats(1)]);
    cluster.heal();
    cluster.settle(&[0, 1], secs(5));
    let sent = cluster.sent_since(&before);
    let bytes: u64 = sent.values().map(|sent| sent.bytes).sum();
    assert!(bytes < 30_000, "{bytes} bytes for one key of 2,000: {sent:?}");
    let after = [cluster.stats(0), cluster.stats(1)];
    let deltas = |of: &[ostraca_ddata::replicator::stats::ReplicatorStats; 2]| {
        of[0].deltas_merged + of[1].deltas_merged
    };
    let states = |of: &[ostraca_ddata::replicator::stats::ReplicatorStats; 2]| {
        of[0].states_merged + of[1].states_merged
    };
    assert_eq!(deltas(&after) - deltas(&merged) + states(&after) - states(&merged), 1);
}

/// The number of messages, and their mean size, in ten idle seconds of three equal replicas. Each
/// asks one peer about once per second (`gossip_interval`), so 60 messages are expected.
fn idle_cost(keys: usize) -> (u64, u64) {
    let mut cluster = Plan::of(3).start();
    for n in 0..keys {
        cluster.update::<Words, _>(0, &format!("key-{n}"), To::Local, |set| set.insert("tea"));
    }
    cluster.settle(&[0, 1, 2], secs(30));
    cluster.run(secs(5));
    let before = cluster.sent();
    cluster.run(secs(10));
    let sent = cluster.sent_since(&before);
    assert_eq!(sent.keys().copied().collect::<Vec<_>>(), ["compare", "compared"], "{sent:?}");
    assert!(sent["compare"].messages.abs_diff(sent["compared"].messages) <= 1);
    let (messages, bytes) = (
        sent["compare"].messages + sent["compared"].messages,
        sent["compare"].bytes + sent["compared"].bytes,
    );
    (messages, bytes / messages)
}

#[test]
fn anti_entropy_of_equals_is_one_small_message_each_way() {
    let (few, many) = (idle_cost(1), idle_cost(5_000));
    for (messages, each) in [few, many] {
        assert!((50..=80).contains(&messages), "{messages} messages of 3 nodes in 10 s");
        assert!(each <= 60, "{each} bytes each");
    }
    assert!(few.1.abs_diff(many.1) <= 8, "{few:?} and {many:?}");
}

#[test]
fn replicas_converge_within_three_intervals_of_a_heal() {
    for seed in 1..=5 {
        let mut cluster = Plan { seed, ..Plan::of(5) }.start();
        cluster.partition(&[&[0, 1], &[2, 3, 4]]);
        for n in 0..100 {
            let key = format!("k{}", n % 40);
            let word = n.to_string();
            cluster.update::<Words, _>(n % 5, &key, To::Local, move |set| set.insert(&word));
            cluster.run(millis(100));
        }
        cluster.heal();
        cluster.settle(&[0, 1, 2, 3, 4], secs(3));
    }
}

#[test]
fn joiner_is_given_missing_data_about_once() {
    let mut cluster = Plan { nodes: 5, started: 4, ..Plan::of(4) }.start();
    for n in 0..4_000 {
        cluster.update::<Words, _>(n % 4, &format!("key-{n}"), To::Local, |set| {
            set.insert("some tea for everybody")
        });
    }
    cluster.settle(&[0, 1, 2, 3], secs(60));
    cluster.run(secs(2));
    cluster.restart(4); // its first start
    cluster.run(millis(10));
    let before = cluster.sent();
    cluster.introduce(); // it gets the data before it is in a configuration
    cluster.settle(&[0, 4], secs(30));
    let sent = cluster.sent_since(&before);
    let data: u64 =
        ["write", "compared", "part"].iter().filter_map(|k| sent.get(k)).map(|s| s.bytes).sum();
    let one_copy = 4_000 * 100; // roughly: an entry takes some 100 bytes
    assert!(data < 3 * one_copy, "{data} bytes for {one_copy}: {sent:?}");
}

#[test]
fn repairs_for_an_empty_peer_wait_for_its_answers() {
    let config = ReplicatorConfig { frame_bytes_max: 4_000, ..no_gossip() };
    let mut bare = Bare::with(2, config);
    bare.batch((0..2_000).map(|n| insert(&format!("key-{n}"), "tea", To::Local)).collect());
    bare.pass(secs(30));
    bare.sent();
    bare.feed(ReplicatorInput::LinkUp(peer(1)));
    let mut questions = 0;
    let mut given = 0;
    loop {
        let sent = bare.sent();
        let bytes: usize = sent
            .iter()
            .filter(|(_, body)| matches!(body, Body::Write { .. }))
            .map(|(_, body)| wire_len(body))
            .sum();
        assert!(bytes <= 6 * 4_000, "{bytes} bytes in one step, of 2,000 keys in all");
        given += sent
            .iter()
            .map(|(_, body)| if let Body::Write { entries, .. } = body { entries.len() } else { 0 })
            .sum::<usize>();
        let Some(answer) = sent.iter().find_map(|(_, body)| empty_answer(body)) else { break };
        questions += 1;
        assert!(questions < 500);
        bare.hear(1, answer);
    }
    assert_eq!(given, 2_000, "every key is sent once");
    assert!(questions > 5);
}

fn wire_len(body: &Body) -> usize {
    ostraca_ddata::replicator::wire::ReplicatorMessage { epoch: None, body: body.clone() }
        .encode()
        .len()
}

/// The answer of an empty replica to a question of anti-entropy: all hashes of the tree are 0, and
/// no key is held.
fn empty_answer(body: &Body) -> Option<Body> {
    use ostraca_ddata::replicator::wire::{Query, QueryAnswer};
    let Body::Compare { session, at, query } = body else { return None };
    let answer = match query {
        Query::Root { .. } => QueryAnswer::Tops(vec![0; 256]),
        Query::Leaves(tops) => {
            QueryAnswer::Leaves(tops.iter().map(|t| (*t, vec![0; 256])).collect())
        }
        Query::Keys(ranges) => {
            QueryAnswer::Keys { held: vec![], upto: ranges.last().map_or(0, |r| r.1) }
        }
        Query::Want(_) => QueryAnswer::Entries { done: 0, entries: vec![] },
    };
    let answer = answer.into();
    Some(Body::Compared { session: *session, at: *at, answer, promises: vec![] })
}

#[test]
fn read_of_all_sees_an_unspread_local_write() {
    let mut cluster = Plan { config: no_gossip(), ..Plan::of(3) }.start();
    cluster.partition(&[&[0], &[1, 2]]);
    cluster.write::<Words, _>(0, "k", To::Local, |set| set.insert("tea")).unwrap();
    cluster.run(secs(5));
    cluster.heal();
    let read = cluster.read::<Words>(2, "k", Read::From(3, secs(3)));
    assert!(read.is_some_and(|set| set.contains("tea")));
    assert!(cluster.held::<Words>(2, "k").is_some(), "the reader keeps the value");
}
