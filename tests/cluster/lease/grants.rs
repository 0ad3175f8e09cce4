//! The Replicator with the promises of its node: a release that comes late, and heartbeats that one
//! thread answers while another thread steps the Replicator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostraca::cluster::fault_injection::MembershipFaultInjection;
use ostraca::cluster::lease::guard::{GuardInput, GuardedReplicator};
use ostraca::cluster::lease::{Heartbeat, LeaseMessage};
use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::data::Registry;
use ostraca_ddata::fault_injection;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{
    Ballot, Epoch, EpochId, EpochMessage, EpochSettings, MembershipChange,
};
use ostraca_ddata::replicator::wire::{Body, ReplicatorMessage};
use ostraca_ddata::replicator::{Replicator, ReplicatorParameters, port};

const ME: ReplicaId = ReplicaId::new(1);
const LEAVER: ReplicaId = ReplicaId::new(2);
const EPOCH: EpochId = EpochId { generation: 1, number: 1 };
const PROPOSER: ReplicaId = ReplicaId::new(3);

fn at(seconds: u64) -> Now {
    let mono = Instant::from_nanos(0) + Duration::from_secs(seconds);
    Now { mono, wall: WallTime::default() }
}

/// A member of a founded configuration with these members, and that configuration.
fn founded(members: Vec<ReplicaId>) -> (GuardedReplicator, Arc<Epoch>) {
    let epoch = Epoch::founding(EPOCH, members, EpochSettings::default());
    let epoch = Arc::new(epoch.expect("two or three members"));
    let (registry, fault_injection) = (Registry::new(), fault_injection::FaultInjection::none());
    let setup = ReplicatorParameters {
        me: ME,
        config: ReplicatorConfig::default(),
        registry,
        seed: 1,
        fault_injection,
    };
    let mut guard =
        GuardedReplicator::new(Replicator::new(setup), MembershipFaultInjection::none());
    let found = GuardInput::Data(port::ReplicatorInput::Found(Arc::clone(&epoch)));
    guard.handle(at(0), found, &mut Outbox::new());
    (guard, epoch)
}

/// The removal of LEAVER.
fn removal() -> MembershipChange {
    MembershipChange { leave: vec![LEAVER], ..MembershipChange::default() }
}

/// A founded voter, and a Seal that removes LEAVER.
fn voter() -> (GuardedReplicator, GuardInput) {
    let (guard, founded) = founded(vec![ME, LEAVER, PROPOSER]);
    let proposal = Arc::new(founded.next(&removal()).expect("two are left"));
    let ballot = Ballot { number: 1, node: PROPOSER };
    let seal = EpochMessage::Seal { epoch: EPOCH, ballot, proposal };
    let message = ReplicatorMessage { epoch: Some(EPOCH), body: Body::Epoch(seal) };
    (guard, GuardInput::Data(port::ReplicatorInput::Message { from: PROPOSER, message }))
}

/// The `Release` of a leaving node may arrive after the proposal that removes it.
#[test]
fn late_release_completes_pending_removal() {
    let (mut guard, _) = founded(vec![ME, LEAVER]);
    let now = at(100); // the start-up wait has passed
    let lease = |message| GuardInput::Lease { from: LEAVER, message };
    let beat = LeaseMessage::Beat(Heartbeat { epoch: EPOCH, number: 7 });
    let mut out = Outbox::new();
    guard.handle(now, lease(beat), &mut out);
    guard.handle(now, GuardInput::Data(port::ReplicatorInput::Propose(removal())), &mut out);
    let is_out = |guard: &GuardedReplicator| {
        guard.replicator().epochs().installed().is_some_and(|epoch| !epoch.is_member(LEAVER))
    };
    assert!(!is_out(&guard), "its lease runs");
    guard.handle(now, lease(LeaseMessage::Release { number: 7 }), &mut out);
    assert!(is_out(&guard), "{:?}", guard.replicator().epochs().stats());
}

/// Another thread answers heartbeats while the guard answers a Seal that removes their sender. The
/// clock of these heartbeats is far ahead, as after a suspension of the process: the Grantor's
/// refusal of the named member has expired for them.
#[test]
fn no_grant_is_given_between_consent_and_seal() {
    for round in 0..4_000_u32 {
        let (mut guard, seal) = voter();
        let (grants, starts) = (guard.grants(), AtomicBool::new(round > 0));
        let ends = AtomicBool::new(false);
        let granted = std::thread::scope(|scope| {
            let beats = scope.spawn(|| {
                while !starts.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                for _ in 0..round {
                    std::hint::spin_loop();
                }
                let (mut granted, mut number) = (false, 0);
                loop {
                    let is_last = ends.load(Ordering::Acquire);
                    number += 1;
                    let beat = Heartbeat { epoch: EPOCH, number };
                    granted |= grants.beat(at(1_000), LEAVER, beat).answer.is_some();
                    if is_last {
                        return granted;
                    }
                }
            });
            guard.handle(at(100), seal, &mut Outbox::new());
            ends.store(true, Ordering::Release);
            starts.store(true, Ordering::Release);
            beats.join().expect("no panic")
        });
        let is_sealed = guard.replicator().epochs().sealed();
        assert_ne!(is_sealed, granted, "round {round}: sealed, granted");
    }
}
