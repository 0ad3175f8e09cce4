//! Tests of lanes: order, no loss, no duplication and bounds, over connections that break anywhere.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use ostraca::ddata::id::ReplicaId;
use ostraca::net::config::NetLimits;
use ostraca::net::lane::inbound::{InboundLane, Turn};
use ostraca::net::lane::{Lane, LaneEnd, reader, writer};
use ostraca::net::{Busy, Inbound, NodeId, Receiver, TrafficClass};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

pub(crate) mod cuts;
mod hostile;
pub(crate) mod pipe;
mod pressure;
mod writers;

use pipe::{Nature, PipeEnd, pipe};

fn node(number: u64) -> NodeId {
    // The identity multihash of nothing: any valid peer id will do.
    let peer = libp2p::PeerId::from_bytes(&[0, 0]).expect("an identity multihash");
    NodeId { peer, incarnation: ReplicaId::new(number) }
}

fn lane(limits: &NetLimits) -> Lane {
    Lane::new(node(2), TrafficClass::User, limits)
}

/// Received messages as (names, body), rejected while it is paused.
#[derive(Default)]
struct Inbox {
    taken: Mutex<Taken>,
    changed: Notify,
}

#[derive(Default)]
struct Taken {
    messages: Vec<(Vec<String>, Vec<u8>)>,
    paused: bool,
    refused: u64,
}

impl Inbox {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    fn pause(&self) {
        self.taken.lock().expect("no panic inside").paused = true;
    }

    fn go_on(&self) {
        self.taken.lock().expect("no panic inside").paused = false;
        self.changed.notify_waiters();
    }

    fn refused(&self) -> u64 {
        self.taken.lock().expect("no panic inside").refused
    }

    fn bodies(&self) -> Vec<Vec<u8>> {
        let taken = self.taken.lock().expect("no panic inside");
        taken.messages.iter().map(|(_, body)| body.clone()).collect()
    }

    fn len(&self) -> usize {
        self.taken.lock().expect("no panic inside").messages.len()
    }

    async fn holds(&self, count: usize) {
        until(|| self.len() >= count).await;
    }
}

impl Receiver for Inbox {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        let mut taken = self.taken.lock().expect("no panic inside");
        if taken.paused {
            taken.refused += 1;
            return Err(Busy);
        }
        let fields = message.fields.iter().map(ToString::to_string).collect();
        taken.messages.push((fields, message.body.to_vec()));
        Ok(())
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        async {
            loop {
                let changed = self.changed.notified();
                if !self.taken.lock().expect("no panic inside").paused {
                    return;
                }
                changed.await;
            }
        }
        .boxed()
    }
}

/// Waits for a condition for ten seconds, far longer than it takes.
async fn until(mut met: impl FnMut() -> bool) {
    let waited = async {
        while !met() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waited).await.expect("it comes to that");
}

async fn ended(task: JoinHandle<LaneEnd>) -> LaneEnd {
    let waited = tokio::time::timeout(Duration::from_secs(10), task).await;
    waited.expect("it ends").expect("it does not panic")
}

fn read(
    end: PipeEnd,
    turn: Turn,
    limits: &NetLimits,
    to: Arc<dyn Receiver>,
) -> JoinHandle<LaneEnd> {
    let limits = limits.clone();
    tokio::spawn(
        async move { reader::run(end, turn, node(1), TrafficClass::User, &limits, to).await },
    )
}

async fn turn(lane: &Lane, inbound: &InboundLane) -> Turn {
    let turn = inbound.take_over(lane.next_generation(), lane.first_unacknowledged()).await;
    turn.expect("the latest generation gets its turn")
}

/// Connects both ends and spawns the writer's task and the reader's.
async fn connect(
    lane: &Lane,
    inbound: &InboundLane,
    limits: &NetLimits,
    to: Arc<dyn Receiver>,
    nature: Nature,
) -> (JoinHandle<LaneEnd>, JoinHandle<LaneEnd>) {
    let turn = turn(lane, inbound).await;
    let (there, here) = pipe(nature);
    let writer = tokio::spawn(writer::run(there, lane.clone(), turn.accepted()));
    (writer, read(here, turn, limits, to))
}
