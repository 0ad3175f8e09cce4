//! Disks: what is said when they fail, what must be on them before it is said, and what is done
//! with what they give back.

use ostraca_ddata::durable::StoreError;
use ostraca_ddata::key::Pattern;
use ostraca_ddata::replicator::config::Config;
use ostraca_ddata::replicator::epoch::{Ballot, Change, EpochConfig, EpochMessage};
use ostraca_ddata::replicator::port::Output;
use ostraca_ddata::replicator::wire::Body;

use crate::bare::{Bare, ack, epoch_id, insert, peer};
use crate::cluster::{WRITE_MAJORITY, first_epoch, secs};

fn on_disk() -> Config {
    Config { durable_keys: vec![Pattern::new("d*")], ..Config::default() }
}

fn full() -> Result<(), StoreError> {
    Err(StoreError("no space left".into()))
}

/// Member 1 asks for the seal of a configuration without member 2.
fn seal(bare: &mut Bare) {
    let change = Change { leave: vec![peer(2)], ..Change::default() };
    let proposal = std::sync::Arc::new(first_epoch(3).next(&change).unwrap());
    let ballot = Ballot { number: 1, node: peer(1) };
    bare.hear(1, Body::Epoch(EpochMessage::Seal { epoch: epoch_id(), ballot, proposal }));
}

fn sealed(bare: &mut Bare) -> usize {
    let sealed = |body: &Body| matches!(body, Body::Epoch(EpochMessage::Sealed { .. }));
    bare.sent().iter().filter(|(_, body)| sealed(body)).count()
}

#[test]
fn a_promise_that_the_disk_did_not_take_is_not_given_however_often_it_is_asked_for() {
    let epoch = EpochConfig { abandoned_after: secs(1_000), ..EpochConfig::default() };
    let mut bare = Bare::with(3, Config { epoch, ..on_disk() });
    seal(&mut bare);
    bare.stored(full());
    assert_eq!(sealed(&mut bare), 0);
    seal(&mut bare);
    assert_eq!((sealed(&mut bare), bare.persists.len()), (0, 0), "it is not on disk yet");
    bare.pass(secs(1));
    assert_eq!(bare.persists.len(), 1, "it is written again");
    seal(&mut bare);
    bare.stored(full());
    assert_eq!(sealed(&mut bare), 0, "and fails again");
    bare.pass(secs(1));
    seal(&mut bare);
    assert_eq!(sealed(&mut bare), 0, "it is being written");
    bare.stored(Ok(()));
    assert_eq!(sealed(&mut bare), 1, "now it is safe");
    seal(&mut bare);
    assert_eq!(sealed(&mut bare), 1);
}

#[test]
fn a_replica_whose_vote_the_disk_did_not_take_talks_on_and_counts_for_nobody() {
    let mut bare = Bare::joining(on_disk());
    bare.feed(ostraca_ddata::replicator::port::Input::Found(first_epoch(3)));
    while !bare.persists.is_empty() {
        bare.stored(full());
    }
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(3);
    bare.hear(1, ack(push));
    assert_eq!(bare.answer(id), None, "one of three: its own word does not count");
    let mut other = Bare::named(peer(1), Config::default());
    other.found(first_epoch(3));
    other.ask(insert("k", "milk", WRITE_MAJORITY));
    let (_, push, entries) = other.pushes().remove(0);
    bare.hear(1, Body::Write { push, whole: true, entries });
    let acks = |bare: &mut Bare| {
        let acks = bare.sent().into_iter().filter_map(|(_, body)| match body {
            Body::Ack { counts, .. } => Some(counts),
            _ => None,
        });
        acks.collect::<Vec<_>>()
    };
    assert_eq!(acks(&mut bare), [false], "held, and not counted");
    assert!(bare.holds("k", "milk"));
    bare.pass(secs(1));
    bare.persist_all();
    assert!(matches!(bare.answer(id), Some(Ok(_))), "it counts itself from now on");
    let alarms = bare.others.iter().filter(|o| matches!(o, Output::Alarm(_))).count();
    assert_eq!((alarms, bare.replicator.stats().store_failures > 0), (1, true));
}
