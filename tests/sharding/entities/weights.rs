//! Messages from the entity's own node: they count in its mailbox by the bytes that `message_bytes`
//! gives, and a caller that always finds room still yields to other tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::entity_ref::TellError;
use ostraca::sharding::ids::EntityId;
use ostraca::sharding::mailbox::Measure;
use serde::{Deserialize, Serialize};

use super::door::Door;
use super::nodes::{Nodes, Plan};

const MAILBOX_BYTES: usize = 4 << 20;

/// Bytes of blobs that have not been dropped.
type Alive = Arc<AtomicUsize>;

#[derive(Serialize, Deserialize)]
struct Blob {
    bytes: usize,
    #[serde(skip)]
    alive: Alive,
}

impl Blob {
    fn new(bytes: usize, alive: &Alive) -> Self {
        alive.fetch_add(bytes, Ordering::SeqCst);
        Self { bytes, alive: Arc::clone(alive) }
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        self.alive.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

struct Store(Arc<Door>);

impl Entity for Store {
    type Message = Blob;

    fn message_bytes(blob: &Blob) -> usize {
        blob.bytes
    }

    async fn handle(&mut self, _blob: Blob, _: &mut Context<'_, Self>) {
        self.0.pass().await;
    }
}

fn store() -> (Nodes<Store>, Arc<Door>) {
    let door = Arc::<Door>::default();
    let settings = ShardingConfig { mailbox_bytes_max: MAILBOX_BYTES, ..Plan::default().settings };
    let mut nodes = Nodes::new(&Plan { nodes: 1, settings, ..Plan::default() }, |_, _| {
        let door = Arc::clone(&door);
        move |_: &EntityId| Store(Arc::clone(&door))
    });
    nodes.host(0, 0);
    (nodes, door)
}

#[test]
fn local_messages_count_with_the_weight_of_their_type() {
    let (mut nodes, door) = store();
    let (to, alive) = (nodes.nodes[0].region.entity("s"), Alive::default());
    to.tell(Blob::new(1, &alive)).expect("there is room");
    nodes.settle(); // its handler waits at the door
    for _ in 0..4 {
        to.tell(Blob::new(1 << 20, &alive)).expect("there is room");
    }
    let full =
        TellError::MailboxFull { waiting: MAILBOX_BYTES, limit: MAILBOX_BYTES, of: Measure::Bytes };
    assert_eq!(to.tell(Blob::new(1, &alive)), Err(full));
    door.open();
    nodes.settle();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    to.tell(Blob::new(10 * MAILBOX_BYTES, &alive)).expect("a single one may be larger");
}

#[test]
fn waiting_and_taken_local_messages_stay_within_bounds() {
    const BLOB: usize = 300_000;
    let (mut nodes, door) = store();
    door.open();
    let (to, alive) = (nodes.nodes[0].region.entity("s"), Alive::default());
    let (mut most, mut told) = (0, 0);
    while told < 1_000 {
        while to.tell(Blob::new(BLOB, &alive)).is_ok() {
            told += 1;
        }
        most = most.max(alive.load(Ordering::SeqCst));
        let step = *nodes.possible().first().expect("a full mailbox has a task");
        nodes.step(step, 0);
    }
    // One message may be in the handler, besides those in the mailbox.
    assert!((MAILBOX_BYTES - BLOB..=MAILBOX_BYTES + BLOB).contains(&most), "{most} bytes");
    nodes.settle();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn tell_wait_in_a_loop_lets_other_tasks_run() {
    const TOLD: usize = 5_000;
    let (nodes, _door) = store();
    let (to, alive) = (nodes.nodes[0].region.entity("s"), Alive::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let longest = runtime.block_on(async {
        let sent = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&sent);
        let sender = tokio::spawn(async move {
            for _ in 0..TOLD {
                to.tell_wait(Blob::new(1, &alive)).await.expect("there is room");
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let (mut longest, mut before) = (0, 0);
        while before < TOLD {
            tokio::task::yield_now().await;
            let now = sent.load(Ordering::SeqCst);
            (longest, before) = (longest.max(now - before), now);
        }
        sender.await.expect("it does not panic");
        longest
    });
    assert!(longest <= 128, "{longest} messages in one turn; tokio's budget is 128");
}
