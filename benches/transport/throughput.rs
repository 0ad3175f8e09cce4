//! One-way throughput at several message sizes: a lane between two transports, compared with the
//! same bytes in writes of 64 KiB over raw TCP and over a bare substream of libp2p.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use futures::io::{AsyncReadExt, AsyncWriteExt};
use ostraca::ddata::id::ReplicaId;
use ostraca::net::config::NetLimits;
use ostraca::net::lane::Lane;
use ostraca::net::{Busy, Inbound, NodeId, Receiver, TrafficClass};

use crate::cores;
use crate::stacks::{Sides, StackSetup, substream, tcp};
use crate::{BATCH, RUN, RUNS};

/// Counts received messages, and ignores their contents.
#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicU64);

impl Receiver for Count {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        std::hint::black_box(message.body);
        // A single caller: no read-modify-write is needed.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(())
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

/// Result of a run.
#[derive(Clone, Copy)]
pub(crate) struct Figure {
    pub(crate) per_second: f64,
    /// Processor time per message in nanoseconds, of kernel and both ends. More reliable than the
    /// rate on a machine with other load. 0 if /proc does not provide it.
    pub(crate) cpu: f64,
}

pub(crate) struct Watch {
    start: Instant,
    cpu: Duration,
}

impl Watch {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), cpu: cpu_time() }
    }

    pub(crate) fn stop(&self, messages: f64) -> Figure {
        let cpu = cpu_time().saturating_sub(self.cpu);
        Figure {
            per_second: messages / self.start.elapsed().as_secs_f64(),
            cpu: cpu.as_nanos() as f64 / messages,
        }
    }
}

/// Processor time of all current threads.
fn cpu_time() -> Duration {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let of_task = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    Duration::from_nanos(tasks.filter_map(of_task).sum())
}

/// Throughput of a lane between two transports.
fn ours(size: usize) -> Figure {
    let sides = Sides::new();
    let count = Arc::new(Count::default());
    let [near, far] = sides.nets(Arc::new(Count::default()), count.clone());
    let lane = near.lane(&far, TrafficClass::User);
    lane.send(&[], &[7; 16]).expect("the first");
    while count.0.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1)); // the lane opens
    }
    let watch = Watch::start();
    sides.near.block_on(sides.near.spawn(produce(lane, size))).expect("no panic");
    watch.stop((count.0.load(Ordering::Relaxed) - 1) as f64)
}

async fn produce(lane: Lane, size: usize) {
    let (body, until) = (vec![7; size], Instant::now() + RUN);
    let per_look = (BATCH / size).max(1);
    while Instant::now() < until {
        for _ in 0..per_look {
            while lane.send(&[], &body).is_err() {
                lane.room().await;
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Upper limit: the same bytes are only written and read.
fn limit(stack: StackSetup, framed: usize) -> Figure {
    let sides = Sides::new();
    let (mut here, mut there) = sides.connect(stack);
    let until = Instant::now() + RUN;
    sides.near.spawn(async move {
        let bytes = vec![7; BATCH];
        while Instant::now() < until {
            here.write_all(&bytes).await.expect("the reader reads on");
            here.flush().await.expect("the reader reads on");
        }
        here.close().await.expect("the reader reads on");
    });
    let watch = Watch::start();
    let reading = async move {
        let (mut bytes, mut total) = (vec![0; 256 * 1024], 0);
        loop {
            match there.read(&mut bytes).await.expect("the writer closes in order") {
                0 => return total,
                len => total += len,
            }
        }
    };
    let total = sides.far.block_on(sides.far.spawn(reading)).expect("no panic");
    watch.stop(total as f64 / framed as f64)
}

/// Time that a caller spends in `send`, in nanoseconds, with nothing else running. A user lane takes
/// long messages only behind little unsent data, so fewer of them are counted per lane.
fn cost_of_send(size: usize) -> f64 {
    let peer = libp2p::PeerId::from_bytes(&[0, 0]).expect("an identity multihash");
    let node = NodeId { peer, incarnation: ReplicaId::new(1) };
    let body = vec![7; size];
    let count = (8 << 20) / (size + 16);
    let mut best = f64::MAX;
    for _ in 0..20 {
        let lane = Lane::new(node, TrafficClass::User, &NetLimits::default());
        let start = Instant::now();
        let sent = (0..count).take_while(|_| lane.send(&[], &body).is_ok()).count();
        assert!(sent > 0, "an empty lane refuses a message of {size} bytes");
        best = best.min(start.elapsed().as_nanos() as f64 / sent as f64);
    }
    best
}

/// Returns the figure with the median rate.
pub(crate) fn median(mut figures: Vec<Figure>) -> Figure {
    figures.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    figures[figures.len() / 2]
}

pub(crate) fn run() {
    println!("── One way, M messages/s (goal: ours >= 8 at 100 B) ──");
    println!("bytes    ours    raw TCP  ratio  substream  ratio   CPU ns: ours  raw TCP  send ns");
    for size in [16, 100, 1_024, 65_536] {
        let framed = 6 + size;
        let (mut mine, mut raw, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            cores::look();
            raw.push(limit(tcp, framed));
            bare.push(limit(substream, framed));
            mine.push(ours(size));
        }
        let (mine, raw, bare) = (median(mine), median(raw), median(bare));
        println!(
            "{size:>6}{:>8.3}{:>11.3}{:>7.2}{:>11.3}{:>7.2}{:>15.1}{:>9.1}{:>9.1}",
            mine.per_second / 1e6,
            raw.per_second / 1e6,
            mine.per_second / raw.per_second,
            bare.per_second / 1e6,
            mine.per_second / bare.per_second,
            mine.cpu,
            raw.cpu,
            cost_of_send(size),
        );
    }
    println!("{}", cores::seen());
}
