//! The durable store: failed writes, records that must be on disk before a message leaves, and the
//! records that are loaded at the start.

use ostraca_ddata::durable::{DurableRecord, StoreError};
use ostraca_ddata::key::{Group, Pattern};
use ostraca_ddata::machine::Machine as _;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{Ballot, EpochConfig, EpochMessage, MembershipChange};
use ostraca_ddata::replicator::port::{ReplicatorInput, ReplicatorOutput};
use ostraca_ddata::replicator::request::{
    ReadConsistency as Read, ReplicatorReply, ReplicatorRequest, RequestError, SubscriptionId,
    SubscriptionNotice, WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::{At, Body, Query, QueryAnswer};
use ostraca_ddata::types::{LWWRegister, Term};

use crate::bare::{Bare, ack, change, epoch_id, get, insert, peer};
use crate::cluster::{READ_MAJORITY, WRITE_MAJORITY, first_epoch, millis, secs};

fn on_disk() -> ReplicatorConfig {
    ReplicatorConfig { durable_keys: vec![Pattern::new("d*")], ..ReplicatorConfig::default() }
}

fn full() -> Result<(), StoreError> {
    Err(StoreError("no space left".into()))
}

/// Member 1 asks for the seal of a configuration without member 2.
fn seal(bare: &mut Bare) {
    let change = MembershipChange { leave: vec![peer(2)], ..MembershipChange::default() };
    let proposal = std::sync::Arc::new(first_epoch(3).next(&change).unwrap());
    let ballot = Ballot { number: 1, node: peer(1) };
    bare.hear(1, Body::Epoch(EpochMessage::Seal { epoch: epoch_id(), ballot, proposal }));
}

fn sealed(bare: &mut Bare) -> usize {
    let sealed = |body: &Body| matches!(body, Body::Epoch(EpochMessage::Sealed { .. }));
    bare.sent().iter().filter(|(_, body)| sealed(body)).count()
}

#[test]
fn vote_is_not_sent_before_it_is_on_disk() {
    let epoch = EpochConfig { abandoned_after: secs(1_000), ..EpochConfig::default() };
    let mut bare = Bare::with(3, ReplicatorConfig { epoch, ..on_disk() });
    seal(&mut bare);
    bare.stored(full());
    assert_eq!(sealed(&mut bare), 0);
    seal(&mut bare);
    assert_eq!((sealed(&mut bare), bare.persists.len()), (0, 0), "the vote is not on disk yet");
    bare.pass(secs(1));
    assert_eq!(bare.persists.len(), 1, "the write is repeated");
    seal(&mut bare);
    bare.stored(full());
    assert_eq!(sealed(&mut bare), 0, "the write fails again");
    bare.pass(secs(1));
    seal(&mut bare);
    assert_eq!(sealed(&mut bare), 0, "the vote is being written");
    bare.stored(Ok(()));
    assert_eq!(sealed(&mut bare), 1, "the vote is on disk");
    seal(&mut bare);
    assert_eq!(sealed(&mut bare), 1);
}

#[test]
fn replica_with_unwritten_vote_does_not_count() {
    let mut bare = Bare::joining(on_disk());
    bare.feed(ReplicatorInput::Found(first_epoch(3)));
    while !bare.persists.is_empty() {
        bare.stored(full());
    }
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(3);
    bare.hear(1, ack(push));
    assert_eq!(bare.answer(id), None, "one of three: its own answer does not count");
    let mut other = Bare::named(peer(1), ReplicatorConfig::default());
    other.found(first_epoch(3));
    other.ask(insert("k", "milk", WRITE_MAJORITY));
    let (_, push, entries) = other.pushes().remove(0);
    bare.hear(1, Body::Write { push, whole: true, entries: entries.into() });
    let acks = |bare: &mut Bare| {
        let acks = bare.sent().into_iter().filter_map(|(_, body)| match body {
            Body::Ack { counts, .. } => Some(counts),
            _ => None,
        });
        acks.collect::<Vec<_>>()
    };
    assert_eq!(acks(&mut bare), [false], "merged, but not counted");
    assert!(bare.holds("k", "milk"));
    bare.pass(secs(1));
    bare.persist_all();
    assert!(matches!(bare.answer(id), Some(Ok(_))), "it counts itself once the vote is on disk");
    let alarms = bare.others.iter().filter(|o| matches!(o, ReplicatorOutput::Alarm(_))).count();
    assert_eq!((alarms, bare.replicator.stats().store_failures > 0), (1, true));
}

// ── loading ──

fn record(key: &str, shape: &str, state: Vec<u8>) -> DurableRecord {
    DurableRecord::Data { key: key.into(), shape: shape.into(), group: None, state }
}

fn good() -> Vec<u8> {
    let mut former = Bare::named(peer(9), ReplicatorConfig::default());
    let _ = former.now(insert("d1", "tea", To::Local));
    former.replicator.peek(&"d1".into()).unwrap().state().encode()
}

#[test]
fn undecodable_record_stops_the_replica_and_is_named() {
    let promise = |name: &str, number| {
        let term = Term { number, owner: peer(9) };
        DurableRecord::Promise { group: Group::new(name), term }
    };
    for (bad, said) in [
        (record("d2", "or-set", vec![0xff, 1, 2]), "key `d2`"),
        (record("d3", "a-type-of-the-next-release", good()), "key `d3`"),
        (record("d1", "pn-counter", good()), "key `d1`"),
        (promise("", 1), "promise"),
        (promise("d-", 0), "promise"),
        (promise("d-", u64::MAX), "promise"),
    ] {
        let mut bare = Bare::unloaded(on_disk());
        let waiting = bare.ask(get("d1", Read::Local));
        bare.feed(ReplicatorInput::Loaded(vec![record("d1", "or-set", good()), bad.clone(), bad]));
        let [ReplicatorOutput::LoadFailed(error)] = &bare.others[..] else {
            panic!("{:?}", bare.others)
        };
        assert_eq!(error.failed, 2);
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(bare.answer(waiting), Some(Err(RequestError::NotLoaded)));
        let write = bare.now(insert("d1", "milk", To::Local));
        assert_eq!(write, Err(RequestError::NotLoaded));
        bare.feed(ReplicatorInput::Found(first_epoch(3)));
        bare.hear(1, Body::Compare { session: 1, at: At::Live, query: Query::Leaves(vec![1]) });
        bare.pass(secs(10));
        assert_eq!(
            (bare.sent(), &bare.persists[..]),
            (vec![], &[][..]),
            "it sends and writes nothing"
        );
        assert_eq!(bare.replicator.next_deadline(), None);
    }
}

#[test]
fn written_records_are_loaded_and_served() {
    let mut bare = Bare::unloaded(on_disk());
    bare.feed(ReplicatorInput::Loaded(vec![record("d1", "or-set", good())]));
    assert!(bare.holds("d1", "tea") && bare.others.is_empty());
}

#[test]
fn full_queue_while_loading_refuses_no_subscription() {
    let mut bare = Bare::unloaded(ReplicatorConfig { max_pending_requests: 1, ..on_disk() });
    let waiting = bare.ask(get("d1", Read::Local));
    let refused = bare.now(get("d1", Read::Local));
    assert_eq!(refused, Err(RequestError::Overloaded { limit: 1 }));
    let subscribe = |id, pattern| ReplicatorRequest::Subscribe {
        subscription: SubscriptionId(id),
        pattern: Pattern::new(pattern),
    };
    for request in [
        subscribe(1, "d*"),
        subscribe(2, "d1"),
        subscribe(3, "d*"),
        ReplicatorRequest::Unsubscribe(SubscriptionId(3)),
    ] {
        let id = bare.ask(request);
        assert_eq!(bare.answer(id), None);
    }
    assert!(bare.others.is_empty());
    bare.feed(ReplicatorInput::Loaded(vec![record("d1", "or-set", good())]));
    let told: Vec<_> = bare
        .others
        .iter()
        .map(|output| match output {
            ReplicatorOutput::Notify {
                subscription,
                notice: SubscriptionNotice::Changed { key, before: None, .. },
            } => (subscription.0, key.as_str()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [(1, "d1"), (2, "d1")]);
    assert!(matches!(bare.answer(waiting), Some(Ok(_))));
}

/// Regression test: requests at `Local` that waited for the disk were not counted.
#[test]
fn local_changes_that_wait_for_the_disk_are_bounded() {
    let mut bare = Bare::with(1, ReplicatorConfig { max_pending_requests: 2, ..on_disk() });
    let first = bare.ask(insert("d1", "tea", To::Local));
    let second = bare.ask(insert("d2", "tea", To::Local));
    assert_eq!(bare.replicator.stats().requests_pending, 2);
    let overloaded = Err(RequestError::Overloaded { limit: 2 });
    assert_eq!(bare.now(insert("d3", "tea", To::Local)), overloaded);
    let delete = ReplicatorRequest::Delete { key: "d1".into(), consistency: To::Local };
    assert_eq!(bare.now(delete), overloaded);
    assert!(bare.holds("d1", "tea") && bare.replicator.stats().keys == 2);
    assert!(bare.now(insert("other", "tea", To::Local)).is_ok(), "it waits for no disk");
    bare.stored(full());
    bare.stored(Ok(()));
    let failed = Err(RequestError::StoreFailure { failed: 1 });
    assert_eq!(bare.answer(first), Some(failed));
    assert!(matches!(bare.answer(second), Some(Ok(_))));
    assert_eq!(bare.replicator.stats().requests_pending, 0);
}

// ── records that must be on disk before a message leaves ──

/// The entries that another member pushes when it inserts this word.
fn written(key: &str, word: &str) -> Vec<ostraca_ddata::replicator::wire::Entry> {
    let mut other = Bare::named(peer(1), ReplicatorConfig::default());
    other.found(first_epoch(3));
    other.ask(insert(key, word, WRITE_MAJORITY));
    other.pushes().remove(0).2
}

#[test]
fn unawaited_repairs_are_written_to_disk() {
    let mut bare = Bare::with(3, on_disk());
    bare.hear(1, Body::Write { push: 0, whole: true, entries: written("d1", "tea").into() });
    assert_eq!(bare.persists.len(), 1);
    bare.stored(Ok(()));
    bare.hear(1, Body::Write { push: 0, whole: true, entries: written("other", "tea").into() });
    assert_eq!(bare.persists.len(), 0, "the key is not durable");
    let id = bare.ask(get("d2", READ_MAJORITY));
    let entry = Some(written("d2", "tea").remove(0).into());
    bare.hear(1, Body::ReadAnswer { request: id.0, counts: false, context: None, entry });
    assert_eq!(bare.persists.len(), 1, "a repair in a read answer is written, too");
}

/// Regression test: the recovery write waits for the own disk only, and was sent to none of the
/// members of a configuration that was installed meanwhile.
#[test]
fn recovery_write_without_peers_completes_after_install() {
    let mut bare = Bare::with(1, on_disk());
    bare.ask(change::<LWWRegister<u32>, _>("d-1", To::Local, |home| home.set(&1)));
    bare.stored(full());
    let (group, term) = (Group::new("d-"), Term { number: 1, owner: peer(0) });
    let id = bare.ask(ReplicatorRequest::Fence { group, term, within: secs(3) });
    bare.stored(Ok(()));
    assert_eq!(bare.answer(id), None, "the promise is on disk, the value is not");
    let join = vec![peer(1), peer(2)];
    bare.feed(ReplicatorInput::Propose(MembershipChange { join, ..MembershipChange::default() }));
    bare.persist_all();
    assert_eq!(bare.answer(id), None, "the replica is sealed");
    bare.hear(1, Body::Epoch(EpochMessage::Synced { epoch: epoch_id() }));
    bare.persist_all();
    let next = bare.replicator.epochs().id();
    let pushes = bare.pushes();
    let Some((_, push, _)) = pushes.iter().find(|(to, ..)| *to == peer(1)) else {
        panic!("{pushes:?}")
    };
    bare.hear_in(peer(1), next, ack(*push));
    assert!(matches!(bare.answer(id), Some(Ok(ReplicatorReply::Fenced { .. }))));
}

/// Regression test: a key whose write had failed was written again only after its next change, or a
/// message about it.
#[test]
fn failed_write_of_a_key_is_repeated_without_a_change() {
    let behind = ReplicatorConfig { write_behind_interval: Some(millis(20)), ..on_disk() };
    for (config, pause) in [(behind, millis(20)), (on_disk(), secs(1))] {
        let mut bare = Bare::with(3, config);
        bare.hear(1, Body::Write { push: 0, whole: true, entries: written("d1", "tea").into() });
        bare.pass(millis(20));
        assert_eq!(bare.persists.len(), 1);
        for result in [full(), full(), Ok(())] {
            bare.stored(result);
            assert_eq!(bare.persists.len(), 0);
            bare.pass(pause);
        }
        assert_eq!(bare.persists.len(), 0, "it is on disk");
    }
}

/// A joiner that has merged the whole state of a member. Its writes are ordered: the data, and
/// last the end of the sync.
fn merged() -> Bare {
    let mut bare = Bare::joining(on_disk());
    let mut source = Bare::named(peer(1), ReplicatorConfig::default());
    source.found(first_epoch(3));
    for n in 0..30 {
        let _ = source.now(insert(&format!("d{n}"), "tea", To::Local));
    }
    bare.feed(ReplicatorInput::Message {
        from: peer(1),
        message: ostraca_ddata::replicator::wire::ReplicatorMessage {
            epoch: Some(epoch_id()),
            body: Body::Epoch(EpochMessage::Install { epoch: first_epoch(3) }),
        },
    });
    bare.persist_all();
    source.sent();
    for _ in 0..50 {
        for (to, body) in bare.sent() {
            if to == peer(1) {
                source.hear(0, body);
            }
        }
        for (to, body) in source.sent() {
            let ours = matches!(&body, Body::Compared { at: At::Synced(_), .. });
            let gone = |answer: &QueryAnswer| *answer == QueryAnswer::Gone;
            assert!(!matches!(&body, Body::Compared { answer, .. } if gone(answer)));
            if to == peer(0) && ours {
                bare.hear(1, body);
            }
        }
        bare.pass(std::time::Duration::from_millis(5));
    }
    assert!(bare.holds("d29", "tea"));
    assert!(!is_synced(&bare), "nothing of it is on disk");
    bare
}

fn is_synced(bare: &Bare) -> bool {
    bare.others.contains(&ReplicatorOutput::Synced(epoch_id()))
}

/// Also a regression test: the failed writes were repeated at once, again and again.
#[test]
fn sync_ends_when_everything_is_on_disk() {
    let mut bare = merged();
    for _ in 0..2 {
        while bare.persists.len() > 1 {
            bare.stored(full());
        }
        bare.stored(Ok(()));
        assert!(!is_synced(&bare), "the data are not on disk");
        assert!(bare.persists.is_empty(), "there is a pause");
        bare.pass(secs(1));
        assert!(bare.persists.len() > 1, "the writes are repeated");
    }
    bare.persist_all();
    assert!(is_synced(&bare));
}

/// Regression test: the sync ended after the pause, although the terms were not on disk.
#[test]
fn sync_ends_when_its_terms_are_on_disk() {
    let mut bare = merged();
    while bare.persists.len() > 1 {
        bare.stored(Ok(()));
    }
    bare.stored(full());
    bare.pass(secs(1));
    assert!(!is_synced(&bare), "the last write failed");
    bare.persist_all();
    assert!(is_synced(&bare));
}
