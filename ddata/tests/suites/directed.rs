//! Directed scenarios on one machine, for rules whose violation alone does no harm or is hardly
//! ever visible from outside: each shows the forbidden answer with the planted fault, and its
//! absence without.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::data::Registry;
use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::key::{Group, Key};
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{
    Ballot, Epoch, EpochId, EpochMessage, EpochSettings, MembershipChange,
};
use ostraca_ddata::replicator::port::{Peer, ReplicatorInput, ReplicatorOutput};
use ostraca_ddata::replicator::request::{
    Guard, ReplicatorRequest, RequestId, Update, WriteConsistency,
};
use ostraca_ddata::replicator::wire::{AckScope, At, Body, QueryAnswer, ReplicatorMessage};
use ostraca_ddata::replicator::{Replicator, ReplicatorParameters};
use ostraca_ddata::types::{Flag, LWWRegister, Term};

const fn id(number: u64) -> ReplicaId {
    ReplicaId::new(number)
}

fn first() -> Arc<Epoch> {
    let members = vec![id(1), id(2), id(3)];
    let number = EpochId { generation: 1, number: 1 };
    Arc::new(
        Epoch::founding(number, members, EpochSettings::default()).expect("a valid configuration"),
    )
}

fn machine(me: u64, fault_injection: FaultInjection) -> Replicator {
    let (config, registry) = (ReplicatorConfig::default(), Registry::new());
    Replicator::new(ReplicatorParameters { me: id(me), config, registry, seed: 1, fault_injection })
}

/// The messages that a machine sends in answer to one input.
fn feed(machine: &mut Replicator, input: ReplicatorInput) -> Vec<Body> {
    let body = |output| match output {
        ReplicatorOutput::Send { message, .. } => Some(message.body),
        _ => None,
    };
    order(machine, input).into_iter().filter_map(body).collect()
}

/// The outputs of a machine for one input.
fn order(machine: &mut Replicator, input: ReplicatorInput) -> Vec<ReplicatorOutput> {
    let now = Now { mono: Instant::from_nanos(1_000), wall: WallTime::from_millis(1_000) };
    let mut out = Outbox::new();
    machine.handle(now, input, &mut out);
    out.drain().collect()
}

fn from(sender: u64, epoch: &Epoch, body: Body) -> ReplicatorInput {
    ReplicatorInput::Message {
        from: id(sender),
        message: ReplicatorMessage { epoch: Some(epoch.id()), body },
    }
}

/// Whether a member that is not synced for its installed configuration acknowledges a push.
fn acks_unsynced(fault_injection: FaultInjection) -> bool {
    let mut joiner = machine(4, fault_injection);
    let peer = |number| Peer { id: id(number), stopping: false, reachable: true };
    feed(&mut joiner, ReplicatorInput::Members([1, 2, 3, 4].map(peer).to_vec()));
    let change = MembershipChange { join: vec![id(4)], ..MembershipChange::default() };
    let second = Arc::new(first().next(&change).expect("a valid change"));
    let install = EpochMessage::Install { epoch: second.clone() };
    feed(&mut joiner, from(1, &second, Body::Epoch(install)));
    assert!(joiner.epochs().is_member() && !joiner.epochs().synced());
    let push = Body::Write { push: 1, whole: true, entries: Default::default() };
    let answers = feed(&mut joiner, from(1, &second, push));
    let ack = answers.iter().find_map(|body| match body {
        Body::Ack { counts, .. } => Some(*counts),
        _ => None,
    });
    ack.expect("an answer to the push")
}

#[test]
fn unsynced_member_does_not_count() {
    assert!(!acks_unsynced(FaultInjection::none()));
    assert!(acks_unsynced(FaultInjection::with(ReplicatorFault::AckBeforeSync)));
}

/// Whether a member installs a configuration of a peer that is in no configuration.
fn installs_of_a_stranger(fault_injection: FaultInjection) -> bool {
    let mut member = machine(1, fault_injection);
    feed(&mut member, ReplicatorInput::Found(first()));
    let stranger = id(9);
    let number = EpochId { generation: 2, number: 1 };
    let forged = Epoch::founding(number, vec![stranger], EpochSettings::default());
    let forged = Arc::new(forged.expect("one member"));
    let install = EpochMessage::Install { epoch: forged.clone() };
    feed(&mut member, from(stranger.get(), &forged, Body::Epoch(install)));
    let is_declined = member.epochs().stats().declined == 1;
    assert!(is_declined != member.epochs().is_excluded());
    member.epochs().installed() == Some(&forged)
}

#[test]
fn configuration_of_a_stranger_is_not_installed() {
    assert!(!installs_of_a_stranger(FaultInjection::none()));
    assert!(installs_of_a_stranger(FaultInjection::with(
        ReplicatorFault::ConfigurationFromAnybody
    )));
}

/// Whether a sealed replica promises a term.
fn promises_sealed(fault_injection: FaultInjection) -> bool {
    let mut voter = machine(1, fault_injection);
    feed(&mut voter, ReplicatorInput::Found(first()));
    let change = MembershipChange { join: vec![id(4)], ..MembershipChange::default() };
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
fn sealed_replica_promises_no_term() {
    assert!(!promises_sealed(FaultInjection::none()));
    assert!(promises_sealed(FaultInjection::with(ReplicatorFault::FenceWhileSealed)));
}

/// Whether a majority write that began among three members ends when two of the next five hold it:
/// the writer itself, and one by an acknowledgement in the new configuration.
fn two_of_five_are_enough(fault_injection: FaultInjection) -> bool {
    let mut writer = machine(1, fault_injection);
    feed(&mut writer, ReplicatorInput::Found(first()));
    let level = WriteConsistency::majority(Duration::from_secs(3));
    let update = Update::new(&Key::<Flag>::new("flag"), level, |flag| flag.switch_on().map(drop));
    let request = ReplicatorRequest::Update(update);
    feed(&mut writer, ReplicatorInput::Request { id: RequestId(1), request });
    feed(&mut writer, ReplicatorInput::Tick);
    let change = MembershipChange { join: vec![id(4), id(5)], ..MembershipChange::default() };
    let second = Arc::new(first().next(&change).expect("a valid change"));
    let install = EpochMessage::Install { epoch: second.clone() };
    let asked = feed(&mut writer, from(2, &second, Body::Epoch(install)));
    let session = asked.iter().find_map(|body| match body {
        Body::Compare { session, at: At::Synced(_), .. } => Some(*session),
        _ => None,
    });
    let (session, at) = (session.expect("it syncs"), At::Synced(second.id()));
    let same =
        Body::Compared { session, at, answer: QueryAnswer::Same.into(), promises: Vec::new() };
    feed(&mut writer, from(2, &second, same));
    assert!(writer.epochs().eligible());
    let first_sending = 1 << 4; // the name of the first push's first sending
    let ack =
        Body::Ack { push: first_sending, scope: AckScope::All, counts: true, nacks: Vec::new() };
    let done = |outputs: Vec<ReplicatorOutput>| {
        outputs.iter().any(|output| matches!(output, ReplicatorOutput::Reply { reply: Ok(_), .. }))
    };
    let early = done(order(&mut writer, from(4, &second, ack.clone())));
    assert!(
        early || done(order(&mut writer, from(5, &second, ack))),
        "three of five are a majority"
    );
    early
}

#[test]
fn acknowledgements_of_two_configurations_never_mix() {
    assert!(!two_of_five_are_enough(FaultInjection::none()));
    assert!(two_of_five_are_enough(FaultInjection::with(ReplicatorFault::MixedEpochs)));
}

/// Two coordinators of one node wrote one key in one batch. Their changes were joined under the
/// higher term, so that the write of the lower one was acknowledged after the fence of the higher
/// one had returned (found by the suite of coordinators, seed 1040).
#[test]
fn two_terms_never_share_an_entry() {
    let mut writer = machine(1, FaultInjection::none());
    let mut sent = order(&mut writer, ReplicatorInput::Found(first()));
    for number in [1, 2] {
        let level = WriteConsistency::majority(Duration::from_secs(3));
        let key = Key::<LWWRegister<u64>>::new("home-0");
        let update = Update::new(&key, level, move |home| home.set(&number));
        let guard = Guard { group: Group::new("home-"), term: Term { number, owner: id(1) } };
        let request = ReplicatorRequest::Update(update.guarded(guard));
        sent.extend(order(
            &mut writer,
            ReplicatorInput::Request { id: RequestId(number), request },
        ));
    }
    sent.extend(order(&mut writer, ReplicatorInput::Tick));
    let terms = |output: ReplicatorOutput| match output {
        ReplicatorOutput::Send {
            to,
            message: ReplicatorMessage { body: Body::Write { entries, .. }, .. },
            ..
        } if to == id(2) => entries.iter().filter_map(|entry| entry.guard.as_ref()?.term).collect(),
        _ => Vec::new(),
    };
    let terms: Vec<u64> = sent.into_iter().flat_map(terms).map(|term| term.number).collect();
    assert_eq!(terms, [1, 2]);
}
