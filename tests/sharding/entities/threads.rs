//! Real threads: senders, handlers and a shard that drains and starts again run concurrently. Each
//! message must be handled once and in order, and the entities' counts must move with them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant as Clock};

use bytes::Bytes;
use futures::future::BoxFuture;
use ostraca::node::executor::Executor;
use ostraca::sharding::activation::Activation;
use ostraca::sharding::context::Context;
use ostraca::sharding::entity::{BoxError, Entity, Supervision};
use ostraca::sharding::extractor::{ByMessage, HashExtractor, ShardHash};
use ostraca::sharding::fault_injection::ShardingFaultInjection;
use ostraca::sharding::ids::{EntityId, EntityType, Generation, RegionId, ShardId};
use ostraca::sharding::pending_asks::PendingAsks;
use ostraca::sharding::region::{HostingPhase, RegionInput, RegionOutput, ShardHostState};
use ostraca::sharding::region_handle::{NoRoom, RegionEnvironment};
use ostraca::sharding::shard_region::{RegionSetup, ShardRegion};
use ostraca::sharding::wire::ShardRoute;
use ostraca_ddata::clock::Instant;
use ostraca_ddata::types::Term;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Handle, Runtime};

use super::journal::{Alive, Journal};
use super::nodes::{Plan, node};

const SENDERS: u64 = 3;
const ENTITIES: u64 = 4;
const MESSAGES: u64 = 20_000;
const SHARD: ShardId = ShardId::new(0);
const DEADLINE: Duration = Duration::from_secs(120);

/// The environment of a region on a single node, on tokio.
struct Alone {
    start: Clock,
    tokio: Handle,
    crew: Arc<Executor>,
    drained: Mutex<Sender<Option<Bytes>>>,
}

impl RegionEnvironment for Alone {
    fn send(&self, to: RegionId, _: &[u8]) -> Result<(), NoRoom> {
        panic!("there is no {to}");
    }

    fn answer(&self, to: RegionId, _: &[u8]) -> Result<(), NoRoom> {
        panic!("there is no {to}");
    }

    fn tell(&self, fact: RegionInput) {
        if let RegionInput::Drained { payload, .. } = fact {
            self.drained.lock().expect("nobody panicked").send(payload).expect("it is awaited");
        }
    }

    fn serves(&self) -> bool {
        true
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).expect("584 years"))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.tokio.spawn(task);
    }

    fn run(&self, burst: Activation) {
        self.crew.run(burst);
    }

    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        let _guard = self.tokio.enter();
        Box::pin(tokio::time::sleep(pause))
    }
}

struct Reader {
    journal: Arc<Journal>,
    handled: Arc<AtomicUsize>,
    id: String,
    count: u64,
    may_go: bool,
    _alive: Alive,
}

#[derive(Serialize, Deserialize)]
struct Page {
    sender: u64,
    number: u64,
}

impl Entity for Reader {
    type Message = Page;

    async fn handle(&mut self, Page { sender, number }: Page, cx: &mut Context<'_, Self>) {
        self.journal.handles(sender, &self.id, number);
        self.count += 1;
        self.journal.counts(&self.id, self.count);
        if number % 97 == 0 {
            tokio::task::yield_now().await;
        }
        if number % 301 == 0 {
            cx.passivate();
            self.may_go = true;
        }
        self.handled.fetch_add(1, Ordering::SeqCst);
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        self.journal.hands_over(&self.id, self.count);
        Some(self.count.to_le_bytes().to_vec())
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.count = u64::from_le_bytes(state.try_into()?);
        self.journal.takes_over(&self.id, self.count);
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.journal.ends(&self.id, self.may_go);
    }
}

fn g(seq: u64) -> Generation {
    Generation::new(Term { number: 1, owner: 1.into() }, seq)
}

fn stands(region: &ShardRegion<Reader>, seq: u64, home: Option<RegionId>, run: HostingPhase) {
    let standing = ShardHostState { shard: SHARD, max_gen: g(seq), home, pending: false, run };
    region.hosting().perform(RegionOutput::Standing(standing));
}

fn starts(region: &ShardRegion<Reader>, seq: u64, payload: Option<Bytes>) {
    let (generation, home) = (g(seq), Some(node(0)));
    let hosting = region.hosting();
    hosting.perform(RegionOutput::Route(ShardRoute { shard: SHARD, generation, home }));
    hosting.perform(RegionOutput::Start { shard: SHARD, generation, payload });
    stands(region, seq, home, HostingPhase::Hosting(generation));
}

/// Drains and restarts the shard until `done`; returns how often.
fn moves(
    region: &ShardRegion<Reader>,
    drained: &Receiver<Option<Bytes>>,
    done: &AtomicBool,
) -> u64 {
    let mut seq = 1;
    while !done.load(Ordering::SeqCst) {
        stands(region, seq + 1, None, HostingPhase::Draining(g(seq)));
        let payload = drained.recv_timeout(DEADLINE).expect("it drains");
        seq += 2;
        starts(region, seq, payload);
    }
    seq / 2
}

fn send(region: &ShardRegion<Reader>, sender: u64) {
    for number in 1..=MESSAGES {
        let to = region.entity(&format!("e{}", number % ENTITIES));
        let started = Clock::now();
        while let Err(why) = to.tell(Page { sender, number }) {
            assert!(why.is_full() && started.elapsed() < DEADLINE, "{why}");
            thread::yield_now();
        }
    }
}

/// The region, and a receiver of the payload of each drain.
fn readers(
    tokio: &Runtime,
    journal: &Arc<Journal>,
    handled: &Arc<AtomicUsize>,
) -> (ShardRegion<Reader>, Receiver<Option<Bytes>>) {
    let (sender, drained) = channel();
    let (start, handle) = (Clock::now(), tokio.handle().clone());
    let crew = Executor::new(handle.clone());
    let world = Alone { start, tokio: handle, crew, drained: Mutex::new(sender) };
    let hash = HashExtractor::new(ShardHash::Xxh3, 1).expect("one shard");
    let (book, count) = (Arc::clone(journal), Arc::clone(handled));
    let setup = RegionSetup {
        entity_type: EntityType::new("readers").expect("a name"),
        me: node(0),
        settings: Plan::default().settings,
        message_bytes_max: 1 << 20,
        supervision: Supervision::Restart,
        extractor: Arc::new(ByMessage::new(hash, |_: &Page| None)),
        factory: Box::new(move |id: &EntityId| Reader {
            _alive: book.begins(id.as_str(), node(0)),
            journal: Arc::clone(&book),
            handled: Arc::clone(&count),
            id: id.as_str().to_owned(),
            count: 0,
            may_go: false,
        }),
        asks: PendingAsks::new(),
        fault_injection: ShardingFaultInjection::none(),
    };
    (ShardRegion::new(setup, Arc::new(world)), drained)
}

#[test]
fn drains_under_load_keep_each_message_once_and_in_order() {
    let (journal, handled) = (Arc::<Journal>::default(), Arc::<AtomicUsize>::default());
    let mut tokio = Builder::new_multi_thread();
    let tokio = tokio.worker_threads(2).enable_all().build().expect("a runtime");
    let (region, drained) = readers(&tokio, &journal, &handled);
    starts(&region, 1, None);
    let done = AtomicBool::new(false);
    let all = (SENDERS * MESSAGES) as usize;
    let moved = thread::scope(|scope| {
        let (region, done) = (&region, &done);
        let mover = scope.spawn(move || moves(region, &drained, done));
        let sends = |sender| scope.spawn(move || send(region, sender));
        let senders: Vec<_> = (0..SENDERS).map(sends).collect();
        senders.into_iter().for_each(|sender| sender.join().expect("it sends"));
        let sent = Clock::now();
        while handled.load(Ordering::SeqCst) < all && sent.elapsed() < DEADLINE {
            thread::yield_now();
        }
        done.store(true, Ordering::SeqCst);
        mover.join().expect("it moves")
    });
    assert_eq!(journal.pages().violations, [""; 0]);
    assert_eq!(handled.load(Ordering::SeqCst), all);
    assert_eq!(region.dead_letters().map(|(_, count)| count).sum::<u64>(), 0);
    assert_eq!(region.lost_states(), 0);
    assert!(moved > 0 && journal.pages().taken > 0, "the shard never moved");
}

/// A program may end its runtime before its node: messages that were queued and never begun are in
/// the payload.
#[test]
fn drain_ends_even_if_the_runtime_ended_before() {
    let (journal, handled) = (Arc::<Journal>::default(), Arc::<AtomicUsize>::default());
    let tokio = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (region, drained) = readers(&tokio, &journal, &handled);
    starts(&region, 1, None);
    for number in 1..=ENTITIES {
        region.entity(&format!("e{number}")).tell(Page { sender: 0, number }).expect("it has room");
    }
    stands(&region, 2, None, HostingPhase::Draining(g(1)));
    drop(tokio); // a current-thread runtime that was never driven
    let payload = drained.recv_timeout(DEADLINE).expect("it drains");
    assert!(payload.is_some(), "the payload carries the messages");
    assert_eq!(handled.load(Ordering::SeqCst), 0);
}
