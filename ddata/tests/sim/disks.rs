//! Disks: the records that survive a crash, failed syncs and slow disks.

use std::time::Duration;

use ostraca_ddata::sim::{DiskFate, Fault, Faults, Simulation, SyncFailed};

use crate::probe::{Order, Probe, Seen, millis, node, probes};

fn started(sim: &Simulation<Probe>) -> Seen {
    sim.process(node(0)).expect("up").saw()[0].clone()
}

fn write_sync_write(sim: &mut Simulation<Probe>) {
    sim.command(node(0), Order::Write(1));
    sim.command(node(0), Order::Sync(9));
    sim.run_for(Duration::from_secs(1));
    sim.command(node(0), Order::Write(2));
    sim.run_for(millis(1));
}

#[test]
fn crash_loses_only_unsynced_writes() {
    let mut sim = probes(1, 3, Faults::none());
    write_sync_write(&mut sim);
    assert_eq!(sim.process(node(0)).expect("up").saw()[1..], [Seen::Synced(9, Ok(()))]);
    assert_eq!(sim.view().disk(node(0)), &[1]);
    sim.crash(node(0));
    assert!(sim.process(node(0)).is_none());
    sim.restart(node(0));
    assert_eq!(started(&sim), Seen::Started { incarnation: 2, disk: vec![1] });
}

#[test]
fn crash_cancels_a_pending_sync() {
    let mut sim = probes(1, 3, Faults::none());
    sim.command(node(0), Order::Write(1));
    sim.command(node(0), Order::Sync(9));
    sim.run_for(Duration::from_nanos(1));
    sim.fault(&Fault::crash(node(0), millis(1)));
    sim.run_for(Duration::from_secs(1));
    assert_eq!(
        sim.process(node(0)).expect("up").saw(),
        [Seen::Started { incarnation: 2, disk: Vec::new() }]
    );
}

#[test]
fn torn_tail_may_keep_unsynced_records() {
    let torn = Faults { torn_tail: 1.0, ..Faults::none() };
    let mut kept = Vec::new();
    for seed in 0..50 {
        let mut sim = probes(seed, 3, torn.clone());
        write_sync_write(&mut sim);
        sim.crash(node(0));
        sim.restart(node(0));
        kept.push(started(&sim));
    }
    assert!(kept.contains(&Seen::Started { incarnation: 2, disk: vec![1] }));
    assert!(kept.contains(&Seen::Started { incarnation: 2, disk: vec![1, 2] }));
}

#[test]
fn lost_disk_is_empty() {
    let mut sim = probes(1, 3, Faults::none());
    write_sync_write(&mut sim);
    let down = Some(millis(10));
    sim.fault(&Fault::Crash { node: node(0), disk: DiskFate::Lost, down });
    sim.run_for(millis(11));
    assert_eq!(started(&sim), Seen::Started { incarnation: 2, disk: Vec::new() });
}

#[test]
fn failed_sync_is_reported() {
    let mut sim = probes(1, 3, Faults::none());
    sim.fault(&Fault::FailSync { node: node(0) });
    sim.command(node(0), Order::Sync(1));
    sim.command(node(0), Order::Sync(2));
    sim.run_for(Duration::from_secs(1));
    let seen = sim.process(node(0)).expect("up").saw();
    assert_eq!(seen[1..], [Seen::Synced(1, Err(SyncFailed)), Seen::Synced(2, Ok(()))]);
}

#[test]
fn slow_disk_answers_late() {
    let mut sim = probes(1, 3, Faults::none());
    sim.fault(&Fault::SlowDisk { node: node(0), by: Duration::from_secs(3), span: None });
    sim.command(node(0), Order::Sync(1));
    sim.run_for(Duration::from_millis(2_999));
    assert_eq!(sim.process(node(0)).expect("up").saw().len(), 1);
    sim.run_for(Duration::from_secs(1));
    assert_eq!(sim.process(node(0)).expect("up").saw()[1], Seen::Synced(1, Ok(())));
}
