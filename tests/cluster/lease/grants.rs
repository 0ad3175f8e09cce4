//! Heartbeats that one thread answers while another thread steps the Replicator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostraca::cluster::bug::Canary;
use ostraca::cluster::lease::Beat;
use ostraca::cluster::lease::guard::{Guard, GuardInput};
use ostraca_ddata::bug;
use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::data::Registry;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::config::Config;
use ostraca_ddata::replicator::epoch::{
    Ballot, Change, Epoch, EpochId, EpochMessage, EpochSettings,
};
use ostraca_ddata::replicator::wire::{Body, Message};
use ostraca_ddata::replicator::{Replicator, Setup, port};

const ME: ReplicaId = ReplicaId::new(1);
const LEAVER: ReplicaId = ReplicaId::new(2);
const EPOCH: EpochId = EpochId { generation: 1, number: 1 };
const PROPOSER: ReplicaId = ReplicaId::new(3);

fn at(seconds: u64) -> Now {
    let mono = Instant::from_nanos(0) + Duration::from_secs(seconds);
    Now { mono, wall: WallTime::default() }
}

/// A founded voter, and a Seal that removes LEAVER.
fn voter() -> (Guard, GuardInput) {
    let members = vec![ME, LEAVER, PROPOSER];
    let founded = Epoch::founding(EPOCH, members, EpochSettings::default()).expect("three");
    let leave = Change { leave: vec![LEAVER], ..Change::default() };
    let proposal = Arc::new(founded.next(&leave).expect("two are left"));
    let ballot = Ballot { number: 1, node: PROPOSER };
    let seal = EpochMessage::Seal { epoch: EPOCH, ballot, proposal };
    let message = Message { epoch: Some(EPOCH), body: Body::Epoch(seal) };
    let (registry, canary) = (Registry::new(), bug::Canary::none());
    let setup = Setup { me: ME, config: Config::default(), registry, seed: 1, canary };
    let mut guard = Guard::new(Replicator::new(setup), Canary::none());
    let found = GuardInput::Data(port::Input::Found(Arc::new(founded)));
    guard.handle(at(0), found, &mut Outbox::new());
    (guard, GuardInput::Data(port::Input::Message { from: PROPOSER, message }))
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
                    let beat = Beat { epoch: EPOCH, number };
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
