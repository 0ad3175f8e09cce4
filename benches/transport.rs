//! One-way throughput of a lane, beside raw tokio TCP with the same bytes in writes of 64 KiB.
//!
//! Prints ours, the limit of the same run, and the ratio. `cargo bench --bench transport`; a first
//! argument limits the runs to sizes whose name contains it. A stack is a function from nothing to
//! two connected streams ([`tcp`]): another transport is another such function.
#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::tcp::tokio::TcpStream;
use ostraca::ddata::id::ReplicaId;
use ostraca::net::config::Limits;
use ostraca::net::lane::inbound::InboundLane;
use ostraca::net::lane::{Lane, reader, writer};
use ostraca::net::{Busy, Class, Inbound, NodeId, Receiver};

const RUN: Duration = Duration::from_secs(1);
const RUNS: usize = 3;
const BATCH: usize = 64 * 1024;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
type Pair = (Box<dyn Stream>, Box<dyn Stream>);
type Stack = fn() -> BoxFuture<'static, Pair>;

/// Two ends of a TCP connection over loopback.
fn tcp() -> BoxFuture<'static, Pair> {
    async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let (there, here) =
            tokio::join!(tokio::net::TcpStream::connect(address), listener.accept());
        let (there, here) = (there.expect("it connects"), here.expect("it connects").0);
        for stream in [&there, &here] {
            stream.set_nodelay(true).expect("a socket option");
        }
        let (there, here): Pair = (Box::new(TcpStream(there)), Box::new(TcpStream(here)));
        (there, here)
    }
    .boxed()
}

fn node() -> NodeId {
    let peer = libp2p::PeerId::from_bytes(&[0, 0]).expect("an identity multihash");
    NodeId { peer, incarnation: ReplicaId::new(1) }
}

/// Counts what arrives, and looks at it no further.
#[derive(Default)]
struct Count(AtomicU64);

impl Receiver for Count {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        std::hint::black_box(message.body);
        // One lane, one caller: no read-modify-write is needed.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(())
    }

    fn ready(&self, _: Class) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

/// What a run comes to.
#[derive(Clone, Copy)]
struct Figure {
    per_second: f64,
    /// Nanoseconds of processor time per message, kernel and both ends included. Says more than
    /// the rate on a machine that does other things, too. 0 where /proc does not tell.
    cpu: f64,
}

fn figure(messages: f64, start: Instant, cpu: Duration) -> Figure {
    let cpu = cpu_time() - cpu;
    Figure {
        per_second: messages / start.elapsed().as_secs_f64(),
        cpu: cpu.as_nanos() as f64 / messages,
    }
}

/// Processor time of all threads that are there.
fn cpu_time() -> Duration {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let of_task = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    Duration::from_nanos(tasks.filter_map(of_task).sum())
}

/// Messages through a lane.
async fn ours(stack: Stack, size: usize, fields: &'static [&'static str]) -> Figure {
    let limits = Limits::default();
    let lane = Lane::new(node(), Class::User, &limits);
    let (inbound, count) = (InboundLane::new(), Arc::new(Count::default()));
    let turn = inbound.take_over(lane.next_generation(), 1).await.expect("the first");
    let (there, here) = stack().await;
    let writer = tokio::spawn(writer::run(there, lane.clone(), 0));
    let receiver: Arc<dyn Receiver> = Arc::clone(&count) as _;
    let reader = tokio::spawn(async move {
        reader::run(here, turn, node(), Class::User, &limits, receiver).await
    });
    let until = Instant::now() + RUN;
    let producer = lane.clone();
    let producer = tokio::spawn(async move {
        let body = vec![7; size];
        let per_look = (BATCH / size).max(1);
        while Instant::now() < until {
            for _ in 0..per_look {
                while producer.send(fields, &body).is_err() {
                    producer.room().await;
                }
            }
            tokio::task::yield_now().await;
        }
    });
    let (start, cpu) = (Instant::now(), cpu_time());
    producer.await.expect("the producer ends well");
    let figure = figure(count.0.load(Ordering::Relaxed) as f64, start, cpu);
    writer.abort();
    reader.abort();
    figure
}

/// The same bytes written and read, and that is all.
async fn limit(stack: Stack, framed: usize) -> Figure {
    let (mut there, mut here) = stack().await;
    let until = Instant::now() + RUN;
    let writer = tokio::spawn(async move {
        let bytes = vec![7; BATCH];
        while Instant::now() < until {
            there.write_all(&bytes).await.expect("the reader reads on");
            there.flush().await.expect("the reader reads on");
        }
        there.close().await.expect("the reader reads on");
    });
    let (start, cpu) = (Instant::now(), cpu_time());
    let (mut bytes, mut total) = (vec![0; 256 * 1024], 0);
    loop {
        match here.read(&mut bytes).await.expect("the writer closes in order") {
            0 => break,
            len => total += len,
        }
    }
    writer.await.expect("the writer ends well");
    figure(total as f64 / framed as f64, start, cpu)
}

/// Nanoseconds that a caller spends in `send`, nothing else running.
fn cost_of_send(size: usize, fields: &[&str]) -> f64 {
    let body = vec![7; size];
    let count = (8 << 20) / (size + 16);
    let mut best = f64::MAX;
    for _ in 0..20 {
        let lane = Lane::new(node(), Class::User, &Limits::default());
        let start = Instant::now();
        for _ in 0..count {
            lane.send(fields, &body).expect("there is room");
        }
        best = best.min(start.elapsed().as_nanos() as f64 / count as f64);
    }
    best
}

/// The median by rate.
fn median(mut figures: Vec<Figure>) -> Figure {
    figures.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    figures[figures.len() / 2]
}

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    let stacks: [(&str, Stack); 1] = [("tcp", tcp)];
    let head = "stack/bytes+names      ours M/s   limit M/s  ratio  CPU ns: ours   limit   send ns";
    println!("{head}");
    for (name, stack) in stacks {
        for (size, fields) in [
            (16, &[][..]),
            (100, &[][..]),
            (100, &["order", "handled"][..]),
            (1_024, &[][..]),
            (65_536, &[][..]),
        ] {
            let label = format!("{name}/{size}+{}", fields.len());
            if only.as_ref().is_some_and(|only| !label.contains(only.as_str())) {
                continue;
            }
            let framed = 6 + 2 * fields.len() + size;
            let (mut ours_all, mut limits) = (Vec::new(), Vec::new());
            for _ in 0..RUNS {
                limits.push(runtime.block_on(limit(stack, framed)));
                ours_all.push(runtime.block_on(ours(stack, size, fields)));
            }
            let (ours, limit) = (median(ours_all), median(limits));
            let ratio = ours.per_second / limit.per_second;
            println!(
                "{label:<18}{:>13.3}{:>12.3}{ratio:>7.2}{:>14.1}{:>8.1}{:>10.1}",
                ours.per_second / 1e6,
                limit.per_second / 1e6,
                ours.cpu,
                limit.cpu,
                cost_of_send(size, fields),
            );
        }
    }
}
