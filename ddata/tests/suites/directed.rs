//! Directed scenarios on one machine, for rules whose breach alone does no harm or is hardly ever
//! seen from outside: the forbidden answer itself is shown, and that it never comes otherwise.

use std::sync::Arc;

use ostraca_ddata::bug::{Bug, Canary};
use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::data::Registry;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::key::Group;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::config::Config;
use ostraca_ddata::replicator::epoch::{
    Ballot, Change, Epoch, EpochId, EpochMessage, EpochSettings,
};
use ostraca_ddata::replicator::port::{Input, Output};
use ostraca_ddata::replicator::wire::{Body, Message};
use ostraca_ddata::replicator::{Replicator, Setup};
use ostraca_ddata::types::Term;

const fn id(number: u64) -> ReplicaId {
    ReplicaId::new(number)
}

fn first() -> Arc<Epoch> {
    let members = vec![id(1), id(2), id(3)];
    let number = EpochId { generation: 1, number: 1 };
    Arc::new(Epoch::founding(number, members, EpochSettings::default()).expect("a valid one"))
}

fn machine(me: u64, canary: Canary) -> Replicator {
    let (config, registry) = (Config::default(), Registry::new());
    Replicator::new(Setup { me: id(me), config, registry, seed: 1, canary })
}

/// What a machine sends in answer to one input.
fn feed(machine: &mut Replicator, input: Input) -> Vec<Body> {
    let now = Now { mono: Instant::from_nanos(1_000), wall: WallTime::from_millis(1_000) };
    let mut out = Outbox::new();
    machine.handle(now, input, &mut out);
    let body = |output| match output {
        Output::Send { message, .. } => Some(message.body),
        _ => None,
    };
    out.drain().filter_map(body).collect()
}

fn from(sender: u64, epoch: &Epoch, body: Body) -> Input {
    Input::Message { from: id(sender), message: Message { epoch: Some(epoch.id()), body } }
}

/// Whether a member that has installed a configuration, and not synced for it, acks a push.
fn acks_unsynced(canary: Canary) -> bool {
    let mut joiner = machine(4, canary);
    let change = Change { join: vec![id(4)], ..Change::default() };
    let second = Arc::new(first().next(&change).expect("a valid change"));
    let install = EpochMessage::Install { epoch: second.clone() };
    feed(&mut joiner, from(1, &second, Body::Epoch(install)));
    assert!(joiner.epochs().is_member() && !joiner.epochs().synced());
    let push = Body::Write { push: 1, whole: true, entries: Vec::new() };
    let answers = feed(&mut joiner, from(1, &second, push));
    let ack = answers.iter().find_map(|body| match body {
        Body::Ack { counts, .. } => Some(*counts),
        _ => None,
    });
    ack.expect("a push is answered")
}

#[test]
fn a_member_that_is_not_synced_counts_for_nothing() {
    assert!(!acks_unsynced(Canary::none()));
    assert!(acks_unsynced(Canary::with(Bug::AckBeforeSync)));
}

/// Whether a replica that answered a Seal promises a term.
fn promises_sealed(canary: Canary) -> bool {
    let mut voter = machine(1, canary);
    feed(&mut voter, Input::Found(first()));
    let change = Change { join: vec![id(4)], ..Change::default() };
    let proposal = Arc::new(first().next(&change).expect("a valid change"));
    let ballot = Ballot { number: 1, node: id(2) };
    let seal = EpochMessage::Seal { epoch: first().id(), ballot, proposal };
    feed(&mut voter, from(2, &first(), Body::Epoch(seal)));
    assert!(voter.epochs().sealed());
    let term = Term { number: 1, owner: id(3) };
    let fence = Body::Fence { request: 1, group: Group::new("home-"), term, held: Vec::new() };
    let answers = feed(&mut voter, from(3, &first(), fence));
    answers.iter().any(|body| matches!(body, Body::Promised { .. }))
}

#[test]
fn a_sealed_replica_promises_no_term() {
    assert!(!promises_sealed(Canary::none()));
    assert!(promises_sealed(Canary::with(Bug::FenceWhileSealed)));
}
