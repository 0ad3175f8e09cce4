//! Durable keys: they are written before they are acknowledged, and survive a restart.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use ostraca::ddata::durable::{DurableRecord, DurableStore, MemoryStore, StoreError};
use ostraca::ddata::key::Pattern;
use ostraca::ddata::replicator::config::ReplicatorConfig;
use ostraca::ddata::replicator::port::ReplicatorAlarm;
use ostraca::node::parts::start_replicator;
use ostraca::node::replicator::FlushError;
use ostraca::node::routes::ReplicatorEvent;
use ostraca::prelude::*;

use crate::cluster::{setup, stored};
use crate::waits::soon;

/// A store that outlives the node, and can be made to fail.
#[derive(Clone, Default)]
struct Drive(Arc<Mutex<(MemoryStore, bool)>>);

impl Drive {
    fn fail(&self) {
        self.0.lock().expect("no test panics under it").1 = true;
    }
}

impl DurableStore for Drive {
    fn write(&mut self, records: &[DurableRecord]) -> Result<(), StoreError> {
        let mut drive = self.0.lock().expect("no test panics under it");
        if drive.1 { Err(StoreError("no space left".into())) } else { drive.0.write(records) }
    }

    fn load(&self) -> Result<Vec<DurableRecord>, StoreError> {
        let drive = self.0.lock().expect("no test panics under it");
        if drive.1 { Err(StoreError("the file is torn".into())) } else { drive.0.load() }
    }
}

/// Makes a store hang until this is dropped.
struct Hang(Arc<(Mutex<bool>, Condvar)>);

struct Hanging(Arc<(Mutex<bool>, Condvar)>, MemoryStore);

impl Hang {
    fn begin() -> (Self, Hanging) {
        let hangs = Arc::new((Mutex::new(true), Condvar::new()));
        (Self(hangs.clone()), Hanging(hangs, MemoryStore::default()))
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        *self.0.0.lock().expect("no test panics under it") = false;
        self.0.1.notify_all();
    }
}

impl DurableStore for Hanging {
    fn write(&mut self, records: &[DurableRecord]) -> Result<(), StoreError> {
        let (hangs, goes_on) = &*self.0;
        let hangs = hangs.lock().expect("no test panics under it");
        drop(goes_on.wait_while(hangs, |hangs| *hangs).expect("no test panics under it"));
        self.1.write(records)
    }

    fn load(&self) -> Result<Vec<DurableRecord>, StoreError> {
        self.1.load()
    }
}

/// Number of unwritten orders from which the Replicator begins no new request.
const BEHIND: usize = 256;

fn durable() -> ReplicatorConfig {
    ReplicatorConfig { durable_keys: vec![Pattern::new("d-*")], ..ReplicatorConfig::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_durable_writes_survive_a_restart() {
    let drive = Drive::default();
    let key = Key::<PNCounter>::new("d-hits");
    let node = stored(0, durable(), Box::new(drive.clone())).await;
    for _ in 0..100 {
        soon(node.handle.update(&key, WriteLocal, |counter| counter.increment()))
            .await
            .expect("written");
    }
    let lost = Key::<PNCounter>::new("hits");
    node.handle.update(&lost, WriteLocal, |counter| counter.increment()).await.expect("local");
    soon(node.running.stop()).await.expect("the Replicator did not panic");
    let node = stored(1, durable(), Box::new(drive)).await; // another incarnation
    let read = soon(node.handle.get(&key, ReadLocal)).await.expect("local");
    assert_eq!(read.map(|counter| counter.value()), Some(100));
    assert_eq!(soon(node.handle.get(&lost, ReadLocal)).await.expect("local"), None);
    soon(node.running.stop()).await.expect("the Replicator did not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_disk_write_is_not_acknowledged_and_raises_an_alarm() {
    let drive = Drive::default();
    let mut node = stored(0, durable(), Box::new(drive.clone())).await;
    let key = Key::<Flag>::new("d-flag");
    soon(node.handle.update(&Key::<Flag>::new("d-first"), WriteLocal, |flag| flag.switch_on()))
        .await
        .expect("written");
    drive.fail();
    let write = WriteMajority::within(secs(30));
    let update = soon(node.handle.update(&key, write, |flag| flag.switch_on())).await;
    assert!(matches!(update, Err(UpdateError::StoreFailure { failed: 1 })), "{update:?}");
    let told = loop {
        if let ReplicatorEvent::Alarm(alarm) = soon(node.events.recv()).await.expect("it runs") {
            break alarm;
        }
    };
    assert_eq!(told, ReplicatorAlarm::Store(StoreError("no space left".into())));
    soon(node.running.stop()).await.expect("the Replicator did not panic");
}

/// In the end so many orders are unwritten that the Replicator begins no new request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_time_out_while_the_disk_hangs() {
    let (hang, drive) = Hang::begin();
    let node = stored(0, durable(), Box::new(drive)).await;
    let hits = Key::<PNCounter>::new("hits");
    let (briefly, mut unwritten) = (Duration::from_millis(100), Vec::new());
    loop {
        let key = Key::<Flag>::new(&format!("d-{}", unwritten.len()));
        let update = node.handle.update(&key, WriteLocal, |flag| flag.switch_on());
        unwritten.push(tokio::spawn(update));
        assert!(unwritten.len() < 10_000, "the Replicator still begins new requests");
        let read = soon(node.handle.get(&hits, ReadMajority::within(briefly))).await;
        match read {
            Ok(_) | Err(GetError::Timeout(_)) => {}
            // With fewer, the machine was slow: the disk is not behind yet.
            Err(GetError::Unanswered { .. }) if unwritten.len() <= BEHIND => {}
            Err(GetError::Unanswered { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let write = WriteMajority::within(briefly);
    let update = soon(node.handle.update(&hits, write, |counter| counter.increment())).await;
    assert!(matches!(update, Err(UpdateError::Unanswered { .. })), "{update:?}");
    let deleted = soon(node.handle.delete(&hits, write)).await;
    assert!(matches!(deleted, Err(DeleteError::Unanswered { .. })), "{deleted:?}");
    let flushed = soon(node.handle.flush_changes(briefly)).await;
    assert!(matches!(flushed, Err(FlushError::Timeout)), "{flushed:?}");
    drop(hang);
    for update in unwritten {
        soon(update).await.expect("no panic").expect("written once the store continues");
    }
    let read = soon(node.handle.get(&hits, ReadLocal)).await.expect("local");
    assert_eq!(read.map(|counter| counter.value()), None, "the delete came after the update");
    soon(node.running.stop()).await.expect("the Replicator did not panic");
}

#[tokio::test]
async fn unreadable_store_fails_the_start() {
    let drive = Drive::default();
    drive.fail();
    let mut setup = setup(0, durable());
    setup.store = Box::new(drive);
    let refused = start_replicator(setup, ()).await.err();
    assert_eq!(refused, Some(StoreError("the file is torn".into())));
}
