//! Entities of one real node: a successor and the tasks of its predecessor, and an active-entity limit
//! after a burst of new ids.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ostraca::prelude::*;
use ostraca::sharding::ids::EntityId;
use ostraca::sharding::passivation::settings::PassivationStrategy;
use serde::{Deserialize, Serialize};

use crate::waits::{eventually, soon};

/// Locks by entity id, as files or sockets would be held.
#[derive(Clone, Default)]
struct Locks(Arc<Mutex<BTreeSet<String>>>);

/// A held lock. Dropping it releases the lock.
struct Lock(Locks, String);

impl Locks {
    fn take(&self, id: &str) -> Option<Lock> {
        let is_free = self.0.lock().expect("nobody panicked").insert(id.to_owned());
        is_free.then(|| Lock(self.clone(), id.to_owned()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.0.lock().expect("nobody panicked").remove(&self.1);
    }
}

/// Takes the lock of its id for a task that never ends by itself.
struct Worker {
    id: String,
    locks: Locks,
    taken: Arc<AtomicU64>,
    held: Arc<AtomicU64>,
}

#[derive(Serialize, Deserialize)]
enum Order {
    Work,
    End,
}

impl Entity for Worker {
    type Message = Order;

    async fn handle(&mut self, order: Order, cx: &mut Context<'_, Self>) {
        match order {
            Order::End => cx.passivate(),
            Order::Work => match self.locks.take(&self.id) {
                Some(lock) => {
                    cx.spawn(async move {
                        let _held = lock;
                        std::future::pending::<()>().await;
                    });
                    self.taken.fetch_add(1, Ordering::SeqCst);
                }
                None => {
                    self.held.fetch_add(1, Ordering::SeqCst);
                }
            },
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn successor_finds_the_locks_of_its_predecessor_free() {
    const ENTITIES: u64 = 300;
    let node = Node::start(Config::default()).await.expect("it starts");
    let locks = Locks::default();
    let [taken, held] = [(); 2].map(|()| Arc::<AtomicU64>::default());
    let factory = {
        let (taken, held) = (Arc::clone(&taken), Arc::clone(&held));
        move |id: &EntityId| Worker {
            id: id.as_str().to_owned(),
            locks: locks.clone(),
            taken: Arc::clone(&taken),
            held: Arc::clone(&held),
        }
    };
    let workers = node.sharding().start("worker", factory).await.expect("it starts");
    soon(node.sharding().wait_until_registered("worker")).await.expect("it serves");
    let count = |of: &AtomicU64| of.load(Ordering::SeqCst);
    for number in 0..ENTITIES {
        workers.entity(&format!("w{number}")).tell(Order::Work).expect("room");
    }
    eventually("all hold their locks", async || count(&taken) == ENTITIES).await;
    for number in 0..ENTITIES {
        let worker = workers.entity(&format!("w{number}"));
        worker.tell(Order::End).expect("room");
        worker.tell(Order::Work).expect("room");
    }
    eventually("all have successors", async || count(&taken) + count(&held) == 2 * ENTITIES).await;
    assert_eq!(count(&held), 0, "successors that found their lock held");
    soon(node.stop()).await;
}

/// Numbers of live instances and of handled messages.
#[derive(Clone, Default)]
struct Counts {
    alive: Arc<AtomicU64>,
    handled: Arc<AtomicU64>,
}

struct Counted(Counts);

impl Counted {
    fn new(counts: &Counts) -> Self {
        counts.alive.fetch_add(1, Ordering::SeqCst);
        Self(counts.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Serialize, Deserialize)]
struct Hello;

impl Entity for Counted {
    type Message = Hello;

    async fn handle(&mut self, _: Hello, _: &mut Context<'_, Self>) {
        self.0.handled.fetch_add(1, Ordering::SeqCst);
    }
}

/// No message follows the burst.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn active_entity_limit_is_kept_after_a_burst() {
    const LIMIT: u64 = 1_000;
    const IDS: u64 = 20_000;
    let mut config = Config::default();
    config.sharding.passivation.strategy = PassivationStrategy::LeastRecentlyUsed;
    config.sharding.passivation.active_entity_limit = LIMIT as usize;
    let node = Node::start(config).await.expect("it starts");
    let counts = Counts::default();
    let factory = {
        let counts = counts.clone();
        move |_: &EntityId| Counted::new(&counts)
    };
    let all = node.sharding().start("counted", factory).await.expect("it starts");
    soon(node.sharding().wait_until_registered("counted")).await.expect("it serves");
    for number in 0..IDS {
        let entity = all.entity(&format!("e{number}"));
        soon(entity.tell_wait(Hello)).await.expect("there is room");
    }
    let count = |of: &AtomicU64| of.load(Ordering::SeqCst);
    eventually("all are handled", async || count(&counts.handled) == IDS).await;
    eventually("the limit is kept", async || count(&counts.alive) <= LIMIT).await;
    soon(node.stop()).await;
}
