//! Throughput of the whole path: four producers encode messages, which pass an outgoing and an
//! incoming queue to one decoding consumer. Compared are a lane, and raw TCP with the same encoding
//! and queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use futures::future::{BoxFuture, FutureExt};
use futures::io::{AsyncReadExt, AsyncWriteExt};
use ostraca::net::lane::Lane;
use ostraca::net::{Busy, Inbound, Receiver, TrafficClass};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::cores;
use crate::outbox::Outbox;
use crate::stacks::{Boxed, Sides, tcp};
use crate::throughput::{Count, Figure, Watch, median};
use crate::{BATCH, RUN, RUNS};

const PRODUCERS: usize = 4;
const QUEUE: usize = 4_096;

/// A message of about 100 bytes on the wire.
#[derive(Clone, Serialize, Deserialize)]
struct Message {
    #[serde(rename = "e")]
    entity: u64,
    #[serde(rename = "n")]
    number: u64,
    #[serde(rename = "t")]
    text: String,
}

impl Message {
    fn new() -> Self {
        Self { entity: 1 << 40, number: 1 << 40, text: "x".repeat(72) }
    }

    fn encode(&self, to: &mut Vec<u8>) {
        let mut serializer = rmp_serde::Serializer::new(to).with_struct_map();
        self.serialize(&mut serializer).expect("it encodes");
    }

    fn decode(bytes: &[u8]) -> Self {
        rmp_serde::from_slice(bytes).expect("it decodes")
    }
}

/// Decodes messages and puts them into a queue.
struct Queue(mpsc::Sender<Message>);

impl Receiver for Queue {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        if self.0.capacity() == 0 {
            return Err(Busy);
        }
        match self.0.try_send(Message::decode(message.body)) {
            Err(TrySendError::Full(_)) => Err(Busy),
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()), // the run has ended
        }
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        async {
            let _ = self.0.reserve().await; // a slot, released at once
        }
        .boxed()
    }
}

fn consume(sides: &Sides, mut queue: mpsc::Receiver<Message>) -> Arc<AtomicU64> {
    let count = Arc::<AtomicU64>::default();
    let counted = count.clone();
    sides.far.spawn(async move {
        while let Some(message) = queue.recv().await {
            std::hint::black_box(&message);
            counted.store(counted.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    });
    count
}

fn ours() -> Figure {
    let sides = Sides::new();
    let (give, take) = mpsc::channel(QUEUE);
    let [near, far] = sides.nets(Arc::new(Count::default()), Arc::new(Queue(give)));
    let count = consume(&sides, take);
    let lane = near.lane(&far, TrafficClass::User);
    let until = Instant::now() + RUN;
    let produce = |lane: Lane| async move {
        let (message, mut bytes) = (Message::new(), Vec::new());
        while Instant::now() < until {
            for _ in 0..100 {
                bytes.clear();
                message.encode(&mut bytes);
                while lane.send(&[], &bytes).is_err() {
                    lane.room().await;
                }
            }
            tokio::task::yield_now().await;
        }
    };
    let watch = Watch::start();
    let producers: Vec<_> =
        (0..PRODUCERS).map(|_| sides.near.spawn(produce(lane.clone()))).collect();
    for producer in producers {
        sides.near.block_on(producer).expect("no panic");
    }
    watch.stop(count.load(Ordering::Relaxed) as f64)
}

async fn write(outbox: Arc<Outbox>, mut stream: Boxed) {
    let mut taken = Vec::new();
    loop {
        outbox.take(&mut taken).await;
        for piece in taken.chunks(BATCH) {
            if stream.write_all(piece).await.is_err() {
                return; // the run has ended
            }
        }
        taken.clear();
    }
}

async fn read(mut stream: Boxed, queue: mpsc::Sender<Message>) {
    let (mut bytes, mut end) = (vec![0; 256 * 1024], 0);
    while let Ok(len) = stream.read(&mut bytes[end..]).await {
        end += len;
        let mut at = 0;
        while end - at >= 4 {
            let len = u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four")) as usize;
            if end - at < 4 + len {
                break;
            }
            if queue.send(Message::decode(&bytes[at + 4..at + 4 + len])).await.is_err() || len == 0
            {
                return; // the run has ended
            }
            at += 4 + len;
        }
        bytes.copy_within(at..end, 0);
        end -= at;
    }
}

fn limit() -> Figure {
    let sides = Sides::new();
    let (here, there) = sides.connect(tcp);
    let (give, take) = mpsc::channel(QUEUE);
    let count = consume(&sides, take);
    let outbox = Arc::<Outbox>::default();
    sides.near.spawn(write(outbox.clone(), here));
    sides.far.spawn(read(there, give));
    let until = Instant::now() + RUN;
    let produce = |outbox: Arc<Outbox>| async move {
        let (message, mut bytes) = (Message::new(), Vec::new());
        while Instant::now() < until {
            for _ in 0..100 {
                bytes.clear();
                message.encode(&mut bytes);
                outbox.push(&bytes).await;
            }
            tokio::task::yield_now().await;
        }
    };
    let watch = Watch::start();
    let producers: Vec<_> =
        (0..PRODUCERS).map(|_| sides.near.spawn(produce(outbox.clone()))).collect();
    for producer in producers {
        sides.near.block_on(producer).expect("no panic");
    }
    watch.stop(count.load(Ordering::Relaxed) as f64)
}

pub(crate) fn run() {
    let mut bytes = Vec::new();
    Message::new().encode(&mut bytes);
    println!("── Encode, queue, lane, decode, queue: {} B (goal: ratio >= 0.6) ──", bytes.len());
    let (mut mine, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        cores::look();
        raw.push(limit());
        mine.push(ours());
    }
    let (mine, raw) = (median(mine), median(raw));
    println!(
        "ours {:.3} M/s ({:.0} ns CPU), raw TCP {:.3} M/s ({:.0} ns CPU), ratio {:.2}; {}",
        mine.per_second / 1e6,
        mine.cpu,
        raw.per_second / 1e6,
        raw.cpu,
        mine.per_second / raw.per_second,
        cores::seen(),
    );
}
