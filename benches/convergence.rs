//! Measures how fast a change of replicated data reaches every replica.
//!
//! `cargo bench --bench convergence` first prints a table of simulated clusters: 10 to 1,000
//! replicas, links of 1 ms, a loss of 0 %, 1 % or 10 % of all messages, and a healed partition. It
//! lists time, one-way trips, messages and bytes per change, each with the lower bound of any
//! protocol (`ostraca_ddata::convergence::LowerBounds`). These figures are the same on every machine.
//! Then criterion times real nodes over libp2p on loopback, all in this process, and one way over
//! raw TCP. A second table lists their one-way trips, and the messages and bytes that their lanes
//! counted, with the same bound. Loss and partitions are only simulated; on loopback they would
//! need the kernel's `netem`.
//!
//! Pictures and criterion's report are written to `target/criterion`. Arguments are criterion's; in
//! addition, `-- simulated` prints the first table only and `-- real` measures real nodes only.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints its results")]

#[path = "../src/cli/curve.rs"]
mod curve;

use std::env;
use std::fs::create_dir_all;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode};
use ostraca::prelude::*;
use ostraca_ddata::convergence::{DataKind, LowerBounds, Plan, RunOutcome, WriteDurability, run};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use curve::{PropagationCurves, draw};

type BenchError = Box<dyn std::error::Error>;

const SIZES: [usize; 5] = [10, 32, 100, 320, 1_000];
const LOSSES: [f64; 3] = [0.0, 0.01, 0.1];
const REAL: [usize; 3] = [3, 5, 10];
const CHANGES: usize = 10;
const CUT: Duration = Duration::from_secs(10);
/// Number of changes on real nodes whose messages and bytes are counted.
const COUNTED: u64 = 200;
/// The index of the data lane in a node's counters.
const DATA: usize = 1;

fn main() -> Result<(), BenchError> {
    let chosen = |name: &str| env::args().skip(1).any(|argument| argument == name);
    if !chosen("real") && !chosen("--test") && !chosen("--list") {
        simulated()?;
    }
    if !chosen("simulated") {
        real()?;
    }
    Ok(())
}

// ── Simulated ──

fn simulated() -> Result<(), BenchError> {
    let pictures = pictures()?;
    println!("simulated: 1 ms one way, mean of {CHANGES} changes; each figure with its bound\n");
    println!(
        "{:>8}  {:<12} {:<9} {:>6}  {:>9}  {:>6} {:>6}  {:>8} {:>8}  {:>9} {:>9}  {:>9}",
        "replicas",
        "data",
        "write",
        "lost",
        "all, ms",
        "trips",
        "bound",
        "messages",
        "bound",
        "bytes",
        "bound",
        "gossip"
    );
    let base = Plan { changes: CHANGES, ..Plan::default() };
    for loss in LOSSES {
        let mut curves = Vec::new();
        for nodes in SIZES {
            let plan = Plan { nodes, loss, ..base.clone() };
            curves.push((nodes, row(&plan)?));
            row(&Plan { level: WriteDurability::Majority, ..plan })?;
        }
        let what = format!("one entry of an ORMap, {} % lost", loss * 100.0);
        picture(&pictures.join(format!("lost-{}.svg", loss * 100.0)), &what, &curves)?;
        for kind in [DataKind::OrSet, DataKind::LwwRegister] {
            row(&Plan { nodes: 100, loss, kind, ..base.clone() })?;
        }
    }
    println!("\nboth halves of a partition of 10 s change; from the heal");
    let mut curves = Vec::new();
    for nodes in SIZES {
        curves
            .push((nodes, row(&Plan { nodes, partition: Some(CUT), changes: 3, ..base.clone() })?));
    }
    picture(&pictures.join("partition.svg"), "two changes, since a partition healed", &curves)?;
    for kind in [DataKind::OrSet, DataKind::LwwRegister] {
        row(&Plan { nodes: 100, partition: Some(CUT), changes: 3, kind, ..base.clone() })?;
    }
    println!("\npictures: {}\n", pictures.display());
    Ok(())
}

/// Measures one plan and prints its line.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn row(plan: &Plan) -> Result<RunOutcome, BenchError> {
    let outcome = run(plan, &mut |_| {})?;
    let bound = LowerBounds::of(plan, outcome.push_bytes);
    let each = |sum: u64| sum as f64 / plan.changes as f64;
    println!(
        "{:>8}  {:<12} {:<9} {:>5}%  {:>9.2}  {:>6.2} {:>6.2}  {:>8.1} {:>8.1}  {:>9.0} {:>9.0}  \
         {:>9.0}",
        plan.nodes,
        format!("{:?}", plan.kind),
        format!("{:?}", plan.level),
        plan.loss * 100.0,
        outcome.converged().as_secs_f64() * 1e3,
        outcome.rounds(plan),
        bound.rounds,
        each(outcome.pushed.messages),
        bound.messages,
        each(outcome.pushed.bytes),
        bound.bytes,
        each(outcome.compared.messages),
    );
    Ok(outcome)
}

fn picture(file: &Path, title: &str, curves: &[(usize, RunOutcome)]) -> Result<(), BenchError> {
    let curve = |(nodes, outcome): &'_ (usize, RunOutcome)| {
        (format!("{nodes} replicas"), outcome.seen.clone())
    };
    let named: Vec<_> = curves.iter().map(curve).collect();
    let curves: Vec<_> = named
        .iter()
        .map(|(name, seen)| PropagationCurves { name: Some(name.clone()), seen })
        .collect();
    draw(file, title, &curves)
}

/// The directory `target/criterion/convergence`, created if it does not exist.
fn pictures() -> Result<PathBuf, BenchError> {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"));
    let pictures = target.join("criterion").join("convergence");
    create_dir_all(&pictures)?;
    Ok(pictures)
}

// ── Real nodes ──

fn real() -> Result<(), BenchError> {
    let runtime = Runtime::new()?;
    let mut criterion = Criterion::default().sample_size(20).configure_from_args();
    let mut group = criterion.benchmark_group("real nodes");
    group.sampling_mode(SamplingMode::Flat).measurement_time(Duration::from_secs(2));
    group.warm_up_time(Duration::from_millis(500));
    group.bench_function("one way over raw TCP", |bencher| {
        bencher.iter_custom(|trips| runtime.block_on(raw(trips)).expect("loopback works") / 2);
    });
    let mut rows = Vec::new();
    for nodes in REAL {
        let cluster = match runtime.block_on(Replicas::start(nodes)) {
            Ok(cluster) => cluster,
            Err(error) => {
                eprintln!("{nodes} nodes do not start here: {error}");
                continue;
            }
        };
        for (kind, name) in KINDS {
            for (level, write) in [
                (WriteDurability::Local, "WriteLocal"),
                (WriteDurability::Majority, "WriteMajority"),
            ] {
                let id = BenchmarkId::new(format!("{name}/{write}"), nodes);
                group.bench_function(id, |bencher| {
                    bencher.iter_custom(|changes| {
                        let spread = cluster.changes(kind, level, changes);
                        runtime.block_on(spread).expect("a cluster on loopback answers")
                    });
                });
                rows.push(runtime.block_on(cluster.count((kind, name), (level, write)))?);
            }
        }
        runtime.block_on(cluster.stop());
    }
    group.finish();
    criterion.final_summary();
    print(&rows, runtime.block_on(raw(2_000))? / 4_000)
}

/// The result of some changes on real nodes, with what their data lanes sent in total.
struct Counted {
    plan: Plan,
    names: [&'static str; 2],
    took: Duration,
    messages: u64,
    bytes: u64,
}

/// Prints the results of real nodes with the same bound as the simulated ones.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn print(rows: &[Counted], one_way: Duration) -> Result<(), BenchError> {
    println!(
        "\nreal nodes, mean of {COUNTED} changes, comparisons and acknowledgements included; one \
         trip: {one_way:.1?} one way over raw TCP\n"
    );
    println!(
        "{:>8}  {:<12} {:<13}  {:>9}  {:>6} {:>6}  {:>8} {:>8}  {:>9} {:>9}",
        "nodes",
        "data",
        "write",
        "all, ms",
        "trips",
        "bound",
        "messages",
        "bound",
        "bytes",
        "bound"
    );
    for Counted { plan, names: [data, write], took, messages, bytes } in rows {
        let bound = LowerBounds::of(plan, run(plan, &mut |_| {})?.push_bytes);
        let each = |sum: u64| sum as f64 / COUNTED as f64;
        let all = took.as_secs_f64() / COUNTED as f64;
        println!(
            "{:>8}  {data:<12} {write:<13}  {:>9.2}  {:>6.1} {:>6.2}  {:>8.1} {:>8.1}  {:>9.0} {:>9.0}",
            plan.nodes,
            all * 1e3,
            all / one_way.as_secs_f64(),
            bound.rounds,
            each(*messages),
            bound.messages,
            each(*bytes),
            bound.bytes,
        );
    }
    Ok(())
}

const KINDS: [(DataKind, &str); 3] = [
    (DataKind::LwwRegister, "LWWRegister"),
    (DataKind::OrSet, "ORSet"),
    (DataKind::OrMap, "ORMap"),
];

/// Measures `trips` round trips of 100 bytes over raw TCP.
async fn raw(trips: u64) -> Result<Duration, BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let echo = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let mut buffer = [0; 100];
        while stream.read_exact(&mut buffer).await.is_ok() {
            stream.write_all(&buffer).await?;
        }
        std::io::Result::Ok(())
    });
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut buffer, begun) = ([7; 100], Instant::now());
    for _ in 0..trips {
        stream.write_all(&buffer).await?;
        stream.read_exact(&mut buffer).await?;
    }
    let took = begun.elapsed();
    drop(stream);
    echo.await??;
    Ok(took)
}

/// Real nodes in this process that replicate data.
struct Replicas {
    nodes: Vec<Node>,
    next: AtomicU64, // the next value to write; each is different
}

impl Replicas {
    async fn start(count: usize) -> Result<Self, BenchError> {
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..count {
            nodes.push(Node::listen(Config::default()).await?);
        }
        let peers: Vec<Multiaddr> = nodes.iter().map(|node| node.addresses()[0].clone()).collect();
        let founding = nodes.iter().map(|node| node.found_static(&peers));
        futures::future::try_join_all(founding).await?;
        Ok(Self { nodes, next: AtomicU64::new(0) })
    }

    /// Measures `changes` times from a change on the first node until a subscriber on every node
    /// has seen it, and returns the sum.
    async fn changes(
        &self,
        kind: DataKind,
        level: WriteDurability,
        changes: u64,
    ) -> Result<Duration, BenchError> {
        match kind {
            DataKind::LwwRegister => {
                let key = Key::<LWWRegister<u64>>::new("register");
                let change = |edit: &mut Edit<'_, LWWRegister<u64>>, n: u64| edit.set(&n);
                self.spread(
                    &key,
                    level,
                    changes,
                    change,
                    |seen, n| matches!(seen.get(), Ok(Some(m)) if m == n),
                )
                .await
            }
            DataKind::OrSet => {
                let key = Key::<ORSet<u64>>::new("set");
                // Inserts one element and removes one, so that the set does not grow.
                let change = |edit: &mut Edit<'_, ORSet<u64>>, n: u64| {
                    edit.remove(&n.saturating_sub(100))?;
                    edit.insert(&n).map(drop)
                };
                self.spread(&key, level, changes, change, |seen, n| seen.contains(&n)).await
            }
            DataKind::OrMap => {
                let key = Key::<ORMap<u64, LWWRegister<u64>>>::new("map");
                let change = |edit: &mut Edit<'_, ORMap<u64, LWWRegister<u64>>>, n: u64| {
                    edit.update(&(n % 100), |register| register.set(&n))
                };
                let has = |seen: &ORMap<u64, LWWRegister<u64>>, n: u64| {
                    seen.get(&(n % 100))
                        .is_some_and(|register| matches!(register.get(), Ok(Some(m)) if m == n))
                };
                self.spread(&key, level, changes, change, has).await
            }
        }
    }

    async fn spread<T: DataType>(
        &self,
        key: &Key<T>,
        level: WriteDurability,
        changes: u64,
        change: impl Fn(&mut Edit<'_, T>, u64) -> Result<(), EditError> + Copy + Send + 'static,
        has: impl Fn(&T, u64) -> bool,
    ) -> Result<Duration, BenchError> {
        let mut told: Vec<_> =
            self.nodes.iter().map(|node| node.replicator().subscribe(key)).collect();
        let (replicator, mut spent) = (self.nodes[0].replicator(), Duration::ZERO);
        for _ in 0..changes {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let begun = Instant::now();
            let update = move |edit: &mut Edit<'_, T>| change(edit, n);
            match level {
                WriteDurability::Local => replicator.update(key, WriteLocal, update).await?,
                WriteDurability::Majority => {
                    replicator.update(key, WriteMajority::within(secs(5)), update).await?;
                }
            }
            for told in &mut told {
                loop {
                    match told.next().await.ok_or("a node has ended")? {
                        Change::Changed(seen) if has(&seen, n) => break,
                        _ => {} // an earlier value
                    }
                }
            }
            spent += begun.elapsed();
        }
        Ok(spent)
    }

    /// Makes [`COUNTED`] further changes and counts their messages and bytes.
    async fn count(
        &self,
        (kind, data): (DataKind, &'static str),
        (level, write): (WriteDurability, &'static str),
    ) -> Result<Counted, BenchError> {
        let plan =
            Plan { nodes: self.nodes.len(), kind, level, changes: CHANGES, ..Plan::default() };
        let before = self.settled().await;
        let took = self.changes(kind, level, COUNTED).await?;
        let after = self.settled().await;
        let (messages, bytes) = (after.0 - before.0, after.1 - before.1);
        Ok(Counted { plan, names: [data, write], took, messages, bytes })
    }

    /// The messages and bytes that all data lanes have sent, once none sends any longer.
    async fn settled(&self) -> (u64, u64) {
        let mut before = self.sent().await;
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = self.sent().await;
            if now == before {
                return now;
            }
            before = now;
        }
    }

    async fn sent(&self) -> (u64, u64) {
        let (mut messages, mut bytes) = (0, 0);
        for node in &self.nodes {
            for peer in node.stats().await.net.peers {
                let Some(lane) = &peer.outbound[DATA] else { continue };
                messages += lane.sent;
                bytes += lane.sent_bytes;
            }
        }
        (messages, bytes)
    }

    async fn stop(self) {
        for node in self.nodes {
            node.stop().await;
        }
    }
}
