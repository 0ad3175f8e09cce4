//! The task that writes the records of the Replicator to the durable store, in order, and reports
//! each result, and the read of the store at the start.
//!
//! The task writes on a blocking thread and combines all waiting writes into one (group commit),
//! whose result is that of each of them. A store that has returned an error stays in use: the
//! Replicator treats the records of a failed write as perhaps stored. After a panic the store is
//! never used again: every later write fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ostraca_ddata::durable::{DurableRecord, DurableStore, StoreError};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use super::control::Alive;

/// Number of unfinished writes from which [`DiskHandle::is_behind`] is true. No bound: further
/// writes are accepted.
const BEHIND: usize = 256;

/// Maximum number of waiting writes that are combined into one.
const GROUP_MAX: usize = 1_024;

/// The durable store of a node.
pub type Store = Box<dyn DurableStore + Send>;

/// The records of one write, and the number under which its result is reported.
type DiskWrite = (u64, Vec<DurableRecord>);

/// Handle to the writing task.
#[derive(Debug)]
pub(crate) struct DiskHandle {
    /// ≤ BEHIND, plus those of the turn that exceeds it, and of facts and urgent messages, which
    /// the Replicator handles even then.
    writes: mpsc::UnboundedSender<DiskWrite>,
    /// Number of unfinished writes: those that wait, and those that are being written. A write is
    /// finished before its result is reported.
    unwritten: Arc<AtomicUsize>,
}

impl DiskHandle {
    /// Starts the task that writes to `store` and calls `persisted` with the result of each write,
    /// in the order of the writes. The task ends when the handle has been dropped and everything is
    /// written; `persisted` is called until then. `alive` holds the lock of the data directory
    /// until the last write has ended, even if the task is aborted during that write, so that no
    /// other node opens the store before.
    pub(crate) fn start(
        store: Store,
        alive: Alive,
        persisted: impl Fn(u64, Result<(), StoreError>) + Send + 'static,
        runtime: &Handle,
    ) -> (Self, JoinHandle<()>) {
        let (writes, receiver) = mpsc::unbounded_channel();
        let unwritten = Arc::new(AtomicUsize::new(0));
        let store = (Some(store), alive);
        let task = runtime.spawn(write_all(store, receiver, unwritten.clone(), persisted));
        (Self { writes, unwritten }, task)
    }

    /// Queues the records to be written after all earlier ones, and returns immediately, also if
    /// the disk is behind. The result is reported under `id`, which is not checked to be unique. A
    /// write without records goes to the store as well.
    ///
    /// # Panics
    /// If the task was aborted, or its runtime has ended, before the handle was dropped.
    pub(crate) fn write(&self, id: u64, records: Vec<DurableRecord>) {
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        let sent = self.writes.send((id, records));
        assert!(sent.is_ok(), "the task receives writes until the handle is dropped");
    }

    /// Whether so many writes are unfinished ([`BEHIND`]) that the Replicator must begin no client
    /// request and no message of a peer that is not urgent. The writes of a group finish together.
    pub(crate) fn is_behind(&self) -> bool {
        self.unwritten.load(Ordering::Relaxed) >= BEHIND
    }
}

/// The task: writes groups of at most [`GROUP_MAX`] waiting writes, each in order and as one write
/// of the store, and reports the result of the group for each of its ids, in order. Counts the
/// group as finished before the first report, so that the machine that a report wakes sees the new
/// count. Continues after errors. Ends when all senders were dropped and no write waits.
async fn write_all(
    (mut store, alive): (Option<Store>, Alive),
    mut writes: mpsc::UnboundedReceiver<DiskWrite>,
    unwritten: Arc<AtomicUsize>,
    persisted: impl Fn(u64, Result<(), StoreError>),
) {
    let mut group = Vec::new();
    while writes.recv_many(&mut group, GROUP_MAX).await > 0 {
        let (mut ids, mut records) = (Vec::with_capacity(group.len()), Vec::new());
        for (id, more) in group.drain(..) {
            ids.push(id);
            records.extend(more);
        }
        let (back, result) = write((store.take(), alive.clone()), records).await;
        store = back;
        unwritten.fetch_sub(ids.len(), Ordering::Relaxed);
        ids.into_iter().for_each(|id| persisted(id, result.clone()));
    }
}

/// Writes records on a blocking thread. Returns the store and the result; after an error of the
/// store the store as well. Fails and returns no store if there is none, because it panicked
/// earlier, or if it panics now or the runtime ends; each of these has the same error. If this
/// future is dropped, a write that has begun completes, and then the store and `alive` are dropped.
async fn write(
    (store, alive): (Option<Store>, Alive),
    records: Vec<DurableRecord>,
) -> (Option<Store>, Result<(), StoreError>) {
    let gone = || StoreError("the store panicked and is no longer used: restart the node".into());
    let Some(mut store) = store else { return (None, Err(gone())) };
    let written = spawn_blocking(move || {
        let result = store.write(&records);
        // If the task was aborted, the tuple is dropped here: the store is closed before the lock.
        (store, result, alive)
    });
    match written.await {
        Ok((store, result, _alive)) => (Some(store), result),
        Err(_) => (None, Err(gone())), // a panic, or the end of the runtime
    }
}

/// Reads all records of a store, on a blocking thread, and returns the store with them. `alive` is
/// held until the read has ended, even if the start of the node is dropped during it: then the read
/// completes, and store and records are dropped before `alive`.
///
/// # Errors
/// The store's error, or that it panicked or the runtime ended. The store is dropped then.
pub(crate) async fn load(
    store: Store,
    alive: Alive,
) -> Result<(Store, Vec<DurableRecord>), StoreError> {
    let loaded = spawn_blocking(move || {
        let records = store.load();
        (records.map(|records| (store, records)), alive)
    });
    match loaded.await {
        Ok((loaded, _alive)) => loaded,
        Err(_) => Err(StoreError("the store panicked while it was read".into())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ostraca_ddata::durable::MemoryStore;
    use ostraca_ddata::key::Group;
    use ostraca_ddata::types::Term;

    use super::*;

    fn promise(group: &str) -> DurableRecord {
        DurableRecord::Promise { group: Group::new(group), term: Term::default() }
    }

    type WriteResults = Arc<Mutex<Vec<(u64, Result<(), StoreError>)>>>;

    fn start(store: Store) -> (DiskHandle, JoinHandle<()>, WriteResults) {
        let answers = WriteResults::default();
        let told = answers.clone();
        let persisted = move |id, result| {
            told.lock().expect("no test panics under it").push((id, result));
        };
        let (disk, task) = DiskHandle::start(store, Arc::new(()), persisted, &Handle::current());
        (disk, task, answers)
    }

    /// A store whose second write fails, or which panics.
    struct Failing {
        writes: u32,
        panics: bool,
    }

    impl DurableStore for Failing {
        fn write(&mut self, _: &[DurableRecord]) -> Result<(), StoreError> {
            self.writes += 1;
            assert!(!self.panics, "planned");
            if self.writes == 2 { Err(StoreError("full".into())) } else { Ok(()) }
        }

        fn load(&self) -> Result<Vec<DurableRecord>, StoreError> {
            if self.panics { panic!("planned") } else { Err(StoreError("corrupt".into())) }
        }
    }

    #[tokio::test]
    async fn disk_writes_all_orders_in_order() {
        let (disk, task, answers) = start(Box::new(MemoryStore::new()));
        (0..3_000).for_each(|id| disk.write(id, vec![promise("a")]));
        assert!(disk.is_behind());
        let unwritten = disk.unwritten.clone();
        drop(disk);
        task.await.expect("the task ends when all orders are written");
        let answers = answers.lock().expect("no test panics under it");
        assert!(answers.iter().map(|(id, _)| *id).eq(0..3_000));
        assert!(answers.iter().all(|(_, result)| result.is_ok()));
        assert_eq!(unwritten.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn store_errors_are_reported_and_a_panic_ends_its_use() {
        for (panics, expected) in [(false, [true, false, true]), (true, [false, false, false])] {
            let (disk, task, answers) = start(Box::new(Failing { writes: 0, panics }));
            for id in 0..3 {
                disk.write(id, vec![promise("a")]);
                while answers.lock().expect("no test panics under it").len() <= id as usize {
                    tokio::task::yield_now().await;
                }
            }
            drop(disk);
            task.await.expect("the task outlives a panic of its store");
            let answers = answers.lock().expect("no test panics under it");
            assert_eq!(answers.iter().map(|(_, r)| r.is_ok()).collect::<Vec<_>>(), expected);
        }
    }

    /// A store that reports the begin of each write and then waits for the test.
    struct HeldStore {
        begun: mpsc::UnboundedSender<()>,
        ends: std::sync::mpsc::Receiver<()>,
    }

    impl DurableStore for HeldStore {
        fn write(&mut self, _: &[DurableRecord]) -> Result<(), StoreError> {
            self.begun.send(()).expect("the test waits");
            self.ends.recv().expect("the test ends the write");
            Ok(())
        }

        fn load(&self) -> Result<Vec<DurableRecord>, StoreError> {
            Ok(Vec::new())
        }
    }

    #[tokio::test]
    async fn alive_guard_outlives_the_last_write() {
        let ((begun, mut writes), (end, ends)) =
            (mpsc::unbounded_channel(), std::sync::mpsc::channel());
        let alive = Arc::new(());
        let in_use = Arc::downgrade(&alive);
        let store = Box::new(HeldStore { begun, ends });
        let (disk, task) = DiskHandle::start(store, alive, |_, _| {}, &Handle::current());
        disk.write(1, vec![promise("a")]);
        writes.recv().await.expect("the write begins");
        drop(disk);
        task.abort();
        assert!(task.await.is_err_and(|error| error.is_cancelled()));
        assert!(in_use.upgrade().is_some(), "the write still runs");
        end.send(()).expect("the store waits for the test");
        assert_eq!(writes.recv().await, None, "the store is closed");
        while in_use.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn unreadable_store_is_an_error() {
        let alive = || -> Alive { Arc::new(()) };
        let corrupt = load(Box::new(Failing { writes: 0, panics: false }), alive()).await.err();
        assert_eq!(corrupt, Some(StoreError("corrupt".into())));
        assert!(load(Box::new(Failing { writes: 0, panics: true }), alive()).await.is_err());
        let mut store = MemoryStore::new();
        store.write(&[promise("a")]).expect("memory");
        let (_, records) = load(Box::new(store), alive()).await.expect("readable");
        assert_eq!(records, [promise("a")]);
    }
}
