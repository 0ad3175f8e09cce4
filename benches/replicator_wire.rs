//! Measures replicated data over libp2p between processes: the latency of a majority write, the
//! number of majority writes per second, and the time until all nodes see a change.
//!
//! Run `cargo bench --bench replicator_wire`; `-- one` or `-- many` measures one figure only. The
//! limits are measured in the same run: a round trip over raw TCP to another process, and the
//! faster of two round trips to two other processes. All figures are of loopback and depend on the
//! machine and its load, so compare the ratios.
#![expect(clippy::print_stdout, reason = "a bench prints its results")]
#![expect(clippy::redundant_closure_for_method_calls, reason = "a closure reads better here")]

#[path = "raw/cores.rs"]
mod cores;
#[path = "raw/process.rs"]
mod process;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use ostraca::prelude::*;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use process::Process;

type Error = Box<dyn std::error::Error + Send + Sync>;

const ROUND_TRIPS: usize = 5_000;
const WRITES: usize = 3_000;
const IN_FLIGHT: usize = 1_024;
const WARM: Duration = Duration::from_secs(1);
const SPAN: Duration = Duration::from_secs(4);
const SIGHTS: usize = 1_000;
const SIGHTS_WARM: usize = 50;
const BODY: usize = 100;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // The work runs on a task, as in programs: if the runtime's main future waited for it, a second
    // thread would be woken each time.
    let task = match args.next().as_deref() {
        Some("node") => runtime.spawn(node()),
        Some("echo") => runtime.spawn(echo()),
        Some("one") => runtime.spawn(async {
            let limits = (raw_round_trip().await?, raw_first_of_two().await?);
            one_at_a_time(&Cluster::start(2).await?.replicator(), limits.0, limits.1).await
        }),
        Some("many") => runtime.spawn(async {
            let cluster = Cluster::start(2).await?;
            many_in_flight(&cluster).await
        }),
        _ => runtime.spawn(bench()),
    };
    runtime.block_on(task)?
}

// ── The other processes ──

/// A process that echoes everything that it receives.
async fn echo() -> Result<(), Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let (mut stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let mut buffer = [0; BODY];
    while stream.read_exact(&mut buffer).await.is_ok() {
        stream.write_all(&buffer).await?;
    }
    Ok(())
}

/// A replica that prints, for each value of "ping" that it sees, how old that value is: the value
/// is the time of the write on the clock of this machine.
async fn node() -> Result<(), Error> {
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    let node = Node::listen(Config::default()).await?;
    println!("{}", node.addresses()[0]);
    let peers = orders.next_line().await?.ok_or("no peers")?;
    node.found_static(&parse(&peers)?).await?;
    let mut pings = node.replicator().subscribe(&ping());
    println!("founded");
    loop {
        tokio::select! {
            line = orders.next_line() => if line?.is_none() { return Ok(()) },
            seen = pings.next() => {
                let Some(Change::Changed(ping)) = seen else { continue };
                let (here, sent) = (now()?, ping.get()?.unwrap_or_default());
                println!("{}", here.saturating_sub(sent));
            }
        }
    }
}

/// The time in nanoseconds on the clock that all processes of a machine share.
fn now() -> Result<u64, Error> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos().try_into()?)
}

fn ping() -> Key<LWWRegister<u64>> {
    Key::new("ping")
}

fn parse(peers: &str) -> Result<Vec<Multiaddr>, Error> {
    Ok(peers.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// A cluster of this process and the processes in `others`.
struct Cluster {
    node: Node,
    others: Vec<Process>,
}

impl Cluster {
    async fn start(others: usize) -> Result<Self, Error> {
        let node = Node::listen(Config::default()).await?;
        let mut addresses = vec![node.addresses()[0].to_string()];
        let mut processes = Vec::new();
        for _ in 0..others {
            let mut process = Process::start(&["node"])?;
            addresses.push(process.line().await?);
            processes.push(process);
        }
        let all = addresses.join(" ");
        for process in &mut processes {
            process.order(&all).await?;
        }
        node.found_static(&parse(&all)?).await?;
        for process in &mut processes {
            process.line().await?;
        }
        Ok(Self { node, others: processes })
    }

    fn replicator(&self) -> Replicator {
        self.node.replicator()
    }

    /// The processor time of all its processes; `None` if the kernel does not provide it.
    fn cpu_time(&self) -> Option<Duration> {
        let others = self.others.iter().filter_map(|process| process.child.id());
        others.chain([std::process::id()]).map(cpu_time).sum()
    }
}

/// The processor time of a process, which the kernel counts in hundredths of a second.
fn cpu_time(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse().ok());
    let (user, system): (u64, u64) = (ticks.next()?, ticks.next()?);
    Some(Duration::from_millis(10 * (user + system)))
}

// ── Measurements ──

/// Measured durations, for percentiles.
struct Spans(Vec<Duration>);

impl Spans {
    fn at(&mut self, percent: usize) -> Duration {
        self.0.sort_unstable();
        self.0[(self.0.len() - 1) * percent / 100]
    }

    fn print(&mut self, what: &str, limit: Option<Duration>) {
        let (half, most) = (self.at(50), self.at(99));
        let ratio = |limit: Duration| half.as_secs_f64() / limit.as_secs_f64();
        let ratio = limit.map_or_else(String::new, |limit| {
            format!("   p50 is {:.2} x a raw TCP round trip", ratio(limit))
        });
        println!("{what:<44} p50 {half:>9.1?}   p99 {most:>9.1?}{ratio}");
    }
}

async fn raw_round_trip() -> Result<Duration, Error> {
    let mut echo = Process::start(&["echo"])?;
    let mut stream = TcpStream::connect(echo.line().await?).await?;
    stream.set_nodelay(true)?;
    let mut buffer = [7; BODY];
    let mut spans = Spans(Vec::with_capacity(ROUND_TRIPS));
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        stream.write_all(&buffer).await?;
        stream.read_exact(&mut buffer).await?;
        spans.0.push(begun.elapsed());
    }
    spans.print("raw TCP, 100 B there and back", None);
    Ok(spans.at(50))
}

/// Measures what a majority of three needs at least from the network and the cores: sending to two
/// other processes and receiving the first answer, while the second one arrives later.
async fn raw_first_of_two() -> Result<Duration, Error> {
    let (mut one, mut other) = (Process::start(&["echo"])?, Process::start(&["echo"])?);
    let mut a = TcpStream::connect(one.line().await?).await?;
    let mut b = TcpStream::connect(other.line().await?).await?;
    let (mut from_a, mut from_b) = ([0; BODY], [0; BODY]);
    let (mut heard_a, mut heard_b) = (0, 0); // bytes
    a.set_nodelay(true)?;
    b.set_nodelay(true)?;
    let mut spans = Spans(Vec::with_capacity(ROUND_TRIPS));
    for n in 1..=ROUND_TRIPS {
        let begun = Instant::now();
        a.write_all(&[7; BODY]).await?;
        b.write_all(&[7; BODY]).await?;
        while heard_a.max(heard_b) < n * BODY {
            tokio::select! {
                read = a.read(&mut from_a) => heard_a += read?,
                read = b.read(&mut from_b) => heard_b += read?,
            }
        }
        spans.0.push(begun.elapsed());
    }
    spans.print("raw TCP, 100 B to two, the first answer", None);
    Ok(spans.at(50))
}

async fn one_at_a_time(
    replicator: &Replicator,
    limit: Duration,
    of_three: Duration,
) -> Result<(), Error> {
    let key = Key::<LWWRegister<u64>>::new("one");
    cores::look();
    let mut spans = Spans(Vec::with_capacity(WRITES));
    for n in 0..(WRITES + 200) as u64 {
        let begun = Instant::now();
        let level = WriteMajority::within(secs(5));
        replicator.update(&key, level, move |one| one.set(&n)).await?;
        if n >= 200 {
            spans.0.push(begun.elapsed());
        }
    }
    spans.print("WriteMajority, 3 nodes, one at a time", Some(limit));
    let ratio = spans.at(50).as_secs_f64() / of_three.as_secs_f64();
    let cores = cores::seen();
    println!("{:<44} p50 is {ratio:.2} x the first of two raw TCP answers; {cores}", "");
    Ok(())
}

/// Runs [`IN_FLIGHT`] tasks, each of which writes its own key again as soon as a majority holds its
/// last write.
async fn many_in_flight(cluster: &Cluster) -> Result<(), Error> {
    let done = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..IN_FLIGHT)
        .map(|n| {
            let (replicator, done) = (cluster.replicator(), done.clone());
            let key = Key::<PNCounter>::new(&format!("many-{n}"));
            tokio::spawn(async move {
                loop {
                    let level = WriteMajority::within(secs(10));
                    let written = replicator.update(&key, level, |count| count.increment());
                    if let Err(why) = written.await {
                        return why;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(WARM).await;
    cores::look();
    let (begun, before) = (Instant::now(), done.load(Ordering::Relaxed));
    let spent = cluster.cpu_time();
    tokio::time::sleep(SPAN).await;
    let made = (done.load(Ordering::Relaxed) - before) as f64;
    let rate = made / begun.elapsed().as_secs_f64();
    let spent = cluster.cpu_time().zip(spent).map(|(now, before)| now - before);
    let each = spent.map_or(f64::NAN, |spent| spent.as_secs_f64() * 1e6 / made);
    for writer in writers {
        writer.abort();
        if let Ok(why) = writer.await {
            return Err(why.into()); // the writer failed before it was aborted
        }
    }
    cores::look();
    println!(
        "{:<44} {rate:>9.0}/s   {each:.1} us of processor time each, over all processes; {}",
        format!("WriteMajority, 3 nodes, {IN_FLIGHT} in flight"),
        cores::seen()
    );
    Ok(())
}

/// Measures from a write here until the last of all processes sees it; one write at a time.
async fn seen_by_all(others: usize) -> Result<(), Error> {
    let mut cluster = Cluster::start(others).await?;
    let replicator = cluster.replicator();
    let mut spans = Spans(Vec::new());
    for n in 0..SIGHTS + SIGHTS_WARM {
        let sent = now()?;
        replicator.update(&ping(), WriteLocal, move |ping| ping.set(&sent)).await?;
        let mut last = 0_u64;
        for process in &mut cluster.others {
            last = last.max(process.line().await?.parse()?);
        }
        if n >= SIGHTS_WARM {
            spans.0.push(Duration::from_nanos(last));
        }
    }
    spans.print(&format!("WriteLocal seen by all of {}", others + 1), None);
    drop(cluster.others);
    cluster.node.stop().await;
    Ok(())
}

async fn bench() -> Result<(), Error> {
    let limit = raw_round_trip().await?;
    let of_three = raw_first_of_two().await?;
    let cluster = Cluster::start(2).await?;
    let replicator = cluster.replicator();
    one_at_a_time(&replicator, limit, of_three).await?;
    many_in_flight(&cluster).await?;
    drop(cluster);
    for others in [2, 4, 9] {
        seen_by_all(others).await?;
    }
    Ok(())
}
