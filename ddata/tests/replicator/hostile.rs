//! A hostile client, and a hostile node that no member let in, send messages that only members may
//! send.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::encoded::{NESTING_MAX, from_foreign};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::key::Group;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{
    Ballot, Epoch, EpochId, EpochMessage, EpochSettings, InvalidEpoch, LEASE_MAX, LeaseSettings,
    MembershipChange,
};
use ostraca_ddata::replicator::port::{ReplicatorAlarm, ReplicatorOutput};
use ostraca_ddata::replicator::request::{ReplicatorReply, WriteConsistency};
use ostraca_ddata::replicator::wire::{At, Body, Query, ReplicatorMessage};
use ostraca_ddata::types::edit::Edit;
use ostraca_ddata::types::{ORSet, Term};

use crate::bare::{Bare, epoch_id, insert, peer};
use crate::cluster::{Plan, READ_MAJORITY, WRITE_MAJORITY, first_epoch, got, secs};
use crate::node::{Command, replica};

/// Incarnation of a client that the transport admits and no member lets in.
const CLIENT: ReplicaId = ReplicaId::new(0xbad);

fn takeover(by: ReplicaId, generation: u64, number: u64) -> Arc<Epoch> {
    let id = EpochId { generation, number };
    Arc::new(Epoch::founding(id, vec![by], EpochSettings::default()).expect("one member"))
}

#[test]
fn forged_configurations_leave_the_cluster_running() {
    let highest = EpochId { generation: u64::MAX, number: 1 };
    let none = Epoch::founding(highest, vec![CLIENT], EpochSettings::default());
    assert_eq!(none.unwrap_err(), InvalidEpoch::Number(highest));
    let mut cluster = Plan { nodes: 4, started: 4, ..Plan::of(3) }.start();
    cluster.run(secs(1));
    for by in [CLIENT, replica(3, 1)] {
        for epoch in [takeover(by, u64::MAX / 2, 1), takeover(by, 1, 2), takeover(by, 1, 1 << 40)] {
            let id = Some(epoch.id());
            let body = Body::Epoch(EpochMessage::Install { epoch });
            for node in 0..3 {
                let message = ReplicatorMessage { epoch: id, body: body.clone() };
                cluster.command(node, Command::Inject(by, message));
            }
            cluster.run(secs(1));
        }
    }
    assert_eq!(cluster.log().installed.len(), 3, "only the first configuration is installed");
    let add = |set: &mut Edit<'_, ORSet<String>>| set.insert("tea");
    let write = cluster.update::<ORSet<String>, _>(0, "w", WRITE_MAJORITY, add);
    assert!(matches!(cluster.answer(write), Ok(ReplicatorReply::Updated { .. })));
    let read = cluster.get(2, "w", READ_MAJORITY);
    assert!(got::<ORSet<String>>(cluster.answer(read)).unwrap().contains("tea"));
    // Once a member lets it in, the same node joins as any other.
    cluster.introduce();
    cluster
        .propose(1, MembershipChange { join: vec![replica(3, 1)], ..MembershipChange::default() });
    cluster.run(secs(5));
    assert_eq!(cluster.log().installed.iter().filter(|(_, e)| e.id().number == 2).count(), 4);
}

#[test]
fn strangers_read_neither_sealed_nor_synced_states() {
    let mut bare = Bare::with(3, ReplicatorConfig::default());
    bare.ask(insert("k", "tea", WriteConsistency::Local));
    let joins = MembershipChange { join: vec![peer(5)], ..MembershipChange::default() };
    let proposal = Arc::new(first_epoch(3).next(&joins).unwrap());
    let (epoch, ballot) = (epoch_id(), Ballot { number: 1, node: peer(1) });
    let read = |bare: &mut Bare, from: ReplicaId, at: At| {
        bare.sent();
        let query = Query::Root { sum: 1, seed: 1 };
        bare.hear_in(from, Some(epoch), Body::Compare { session: 1, at, query });
        let is_answer =
            |(to, body): &(ReplicaId, Body)| *to == from && matches!(body, Body::Compared { .. });
        bare.sent().iter().any(is_answer)
    };
    assert!(!read(&mut bare, peer(5), At::Sealed(epoch)), "no member has proposed it yet");
    bare.hear(1, Body::Epoch(EpochMessage::Seal { epoch, ballot, proposal }));
    assert!(bare.replicator.epochs().sealed());
    for at in [At::Sealed(epoch), At::Synced(epoch), At::Live] {
        assert!(!read(&mut bare, CLIENT, at), "{at:?}");
    }
    assert!(bare.replicator.stats().strangers >= 3);
    assert!(
        read(&mut bare, peer(1), At::Sealed(epoch)) && read(&mut bare, peer(1), At::Synced(epoch))
    );
    assert!(read(&mut bare, peer(5), At::Sealed(epoch)), "a proposed member may read the snapshot");
}

#[test]
fn term_that_jumps_is_not_promised() {
    let mut bare = Bare::of(3);
    let group = Group::new("g-");
    let ask = |number: u64| {
        let term = Term { number, owner: peer(1) };
        Body::Fence { request: 1, group: group.clone(), term, held: vec![] }
    };
    // In generation 1, terms after a forced recovery begin below 2^21.
    let highest = (1 << 48) + (1 << 21);
    for number in [u64::MAX / 2, highest + 1] {
        bare.hear(1, ask(number));
        assert_eq!(bare.replicator.promises(), [], "{number}");
    }
    bare.hear(1, ask(highest));
    bare.hear(1, ask(highest + 1));
    let promised = Term { number: highest + 1, owner: peer(1) };
    assert_eq!(
        bare.replicator.promises(),
        [(group.clone(), promised)],
        "later owners can take higher terms"
    );
}

#[test]
fn lease_of_more_than_a_day_is_refused() {
    let founded = |duration: Duration| {
        let lease = LeaseSettings { duration, ..LeaseSettings::default() };
        let settings = EpochSettings { lease, ..EpochSettings::default() };
        Epoch::founding(epoch_id(), vec![peer(0)], settings)
    };
    for longer in [LEASE_MAX + Duration::from_nanos(1), Duration::MAX] {
        assert_eq!(founded(longer), Err(InvalidEpoch::Lease(longer)));
    }
    let longest = founded(LEASE_MAX).unwrap();
    let mut bytes = rmp_serde::to_vec_named(&longest).unwrap();
    assert_eq!(from_foreign::<Epoch>(&bytes, NESTING_MAX).ok(), Some(longest));
    let seconds = [0xce, 0x00, 0x01, 0x51, 0x80]; // 86,400 in MessagePack
    let at = bytes.windows(seconds.len()).position(|at| at == seconds).unwrap();
    bytes[at + 1] = 0xff;
    let error = from_foreign::<Epoch>(&bytes, NESTING_MAX).unwrap_err().to_string();
    assert!(error.contains("a lease of 4278276480s, at most 86400s are allowed"), "{error}");
}

#[test]
fn alarm_about_a_stranger_hides_none_about_a_member() {
    let mut bare = Bare::of(3);
    let id = EpochId { generation: 1, number: 2 };
    let settings = EpochSettings { cluster: 99, ..EpochSettings::default() };
    let foreign = Arc::new(Epoch::founding(id, vec![CLIENT], settings).expect("one member"));
    for from in [CLIENT, CLIENT, peer(1), peer(1)] {
        let body = Body::Epoch(EpochMessage::Install { epoch: Arc::clone(&foreign) });
        bare.hear_in(from, Some(id), body);
    }
    let declined = |output: &ReplicatorOutput| match output {
        ReplicatorOutput::Alarm(ReplicatorAlarm::Declined { from, .. }) => Some(*from),
        _ => None,
    };
    let alarms: Vec<ReplicaId> = bare.others.iter().filter_map(declined).collect();
    assert_eq!(alarms, [CLIENT, peer(1)], "one a minute about each");
}
