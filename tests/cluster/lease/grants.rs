//! Heartbeats that one thread answers while another thread steps the Replicator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostraca::cluster::fault_injection::MembershipFaultInjection;
use ostraca::cluster::lease::Heartbeat;
use ostraca::cluster::lease::guard::{GuardInput, GuardedReplicator};
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

/// A founded voter, and a Seal that removes LEAVER.
fn voter() -> (GuardedReplicator, GuardInput) {
    let members = vec![ME, LEAVER, PROPOSER];
    let founded = Epoch::founding(EPOCH, members, EpochSettings::default()).expect("three");
    let leave = MembershipChange { leave: vec![LEAVER], ..MembershipChange::default() };
    let proposal = Arc::new(founded.next(&leave).expect("two are left"));
    let ballot = Ballot { number: 1, node: PROPOSER };
    let seal = EpochMessage::Seal { epoch: EPOCH, ballot, proposal };
    let message = ReplicatorMessage { epoch: Some(EPOCH), body: Body::Epoch(seal) };
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
    let found = GuardInput::Data(port::ReplicatorInput::Found(Arc::new(founded)));
    guard.handle(at(0), found, &mut Outbox::new());
    (guard, GuardInput::Data(port::ReplicatorInput::Message { from: PROPOSER, message }))
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
