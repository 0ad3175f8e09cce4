//! Latency of round trips: without other traffic, and on the control lane beside bulk.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use futures::io::{AsyncReadExt, AsyncWriteExt};
use ostraca::net::lane::Lane;
use ostraca::net::{Busy, Inbound, Receiver, TrafficClass};
use tokio::sync::Notify;

use crate::BATCH;
use crate::cores;
use crate::stacks::{BenchNode, Boxed, Sides, StackSetup, noise, substream, tcp};

const BODY: usize = 100;
const ROUND_TRIPS: usize = 4_000;
const ROUNDS: usize = 3;
/// Pause between an answer on the control lane and the next request.
const PAUSE: Duration = Duration::from_millis(1);
const BESIDE_BULK: Duration = Duration::from_secs(4);

/// Latency samples in ascending order.
struct Spans(Vec<Duration>);

impl Spans {
    fn of(mut spans: Vec<Duration>) -> Self {
        spans.sort_unstable();
        Self(spans)
    }

    fn at(&self, percent: usize) -> f64 {
        let index = (self.0.len() * percent / 100).min(self.0.len() - 1);
        self.0[index].as_secs_f64() * 1e6
    }
}

/// Sends the messages of one class back on that class; drops all others.
#[derive(Default)]
struct Echo(OnceLock<Lane>);

impl Receiver for Echo {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        if let Some(lane) = self.0.get().filter(|lane| lane.class() == message.class) {
            lane.send(&[], message.body).expect("one at a time has room");
        }
        Ok(())
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

/// Notifies the task that waits for an answer.
#[derive(Default)]
struct Answered(Notify);

impl Receiver for Answered {
    fn receive(&self, _: Inbound<'_>) -> Result<(), Busy> {
        self.0.notify_one();
        Ok(())
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

/// Two transports, a lane on which every message is answered, and the notification of answers.
fn answering(sides: &Sides, class: TrafficClass) -> ([BenchNode; 2], Lane, Arc<Answered>) {
    let (echo, answered) = (Arc::<Echo>::default(), Arc::<Answered>::default());
    let [near, far] = sides.nets(answered.clone(), echo.clone());
    let lane = near.lane(&far, class);
    assert!(echo.0.set(far.lane(&near, class)).is_ok(), "set once");
    ([near, far], lane, answered)
}

async fn ask(
    lane: Lane,
    answered: Arc<Answered>,
    until: impl Fn(usize) -> bool,
    pause: Duration,
) -> Vec<Duration> {
    let (body, mut spans) = ([7; BODY], Vec::new());
    for n in 0.. {
        if until(n) {
            break;
        }
        let begun = Instant::now();
        lane.send(&[], &body).expect("one at a time has room");
        answered.0.notified().await;
        spans.push(begun.elapsed());
        rest(pause).await;
    }
    spans
}

async fn rest(pause: Duration) {
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
}

async fn ask_raw(
    mut stream: Boxed,
    until: impl Fn(usize) -> bool,
    pause: Duration,
) -> Vec<Duration> {
    let (mut body, mut spans) = ([7; BODY], Vec::new());
    for n in 0.. {
        if until(n) {
            break;
        }
        let begun = Instant::now();
        stream.write_all(&body).await.expect("it answers");
        stream.flush().await.expect("it answers");
        stream.read_exact(&mut body).await.expect("it answers");
        spans.push(begun.elapsed());
        rest(pause).await;
    }
    spans
}

async fn echo_raw(mut stream: Boxed) {
    let mut body = [0; BODY];
    while stream.read_exact(&mut body).await.is_ok() {
        let written = stream.write_all(&body).await;
        if written.is_err() || stream.flush().await.is_err() {
            return; // the run has ended
        }
    }
}

// ── Without other traffic ──

const WARM: usize = 500;

fn alone_ours() -> Vec<Duration> {
    let sides = Sides::new();
    let (_hosts, lane, answered) = answering(&sides, TrafficClass::User);
    let asking = ask(lane, answered, |n| n == ROUND_TRIPS + WARM, Duration::ZERO);
    sides.near.block_on(sides.near.spawn(asking)).expect("no panic").split_off(WARM)
}

fn alone_raw(stack: StackSetup) -> Vec<Duration> {
    let sides = Sides::new();
    let (here, there) = sides.connect(stack);
    sides.far.spawn(echo_raw(there));
    let asking = ask_raw(here, |n| n == ROUND_TRIPS + WARM, Duration::ZERO);
    sides.near.block_on(sides.near.spawn(asking)).expect("no panic").split_off(WARM)
}

// ── Beside bulk ──

/// Rate at which bulk messages are sent.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    Saturated,
    /// 125 MB/s, a link of 1 Gbit/s.
    Gigabit,
}

impl Pace {
    /// Waits until the next 64 KiB are due; the first ones at `begun`.
    async fn next(self, begun: Instant, sent: u64) {
        if self == Self::Gigabit {
            let due = Duration::from_secs_f64(sent as f64 * BATCH as f64 / 125e6);
            tokio::time::sleep_until((begun + due).into()).await;
        }
    }
}

async fn bulk(lane: Lane, pace: Pace) {
    let (body, begun) = (vec![7; BATCH - 64], Instant::now());
    for sent in 0.. {
        pace.next(begun, sent).await;
        while lane.send(&[], &body).is_err() {
            lane.room().await;
        }
        tokio::task::consume_budget().await;
    }
}

async fn bulk_raw(mut stream: Boxed, pace: Pace) {
    let (body, begun) = (vec![7; BATCH], Instant::now());
    for sent in 0.. {
        pace.next(begun, sent).await;
        if stream.write_all(&body).await.is_err() || stream.flush().await.is_err() {
            return; // the run has ended
        }
    }
}

async fn drain(mut stream: Boxed) {
    let mut bytes = vec![0; 256 * 1024];
    while stream.read(&mut bytes).await.is_ok_and(|len| len > 0) {}
}

fn beside_bulk_ours(class: TrafficClass, pace: Pace) -> (Vec<Duration>, f64) {
    let sides = Sides::new();
    let ([near, far], lane, answered) = answering(&sides, TrafficClass::Control);
    let heavy = near.lane(&far, class);
    sides.near.spawn(bulk(heavy.clone(), pace));
    let end = Instant::now() + BESIDE_BULK;
    let asking = ask(lane, answered, move |_| Instant::now() >= end, PAUSE);
    let spans = sides.near.block_on(sides.near.spawn(asking)).expect("no panic");
    (spans, heavy.stats().sent_bytes as f64 / BESIDE_BULK.as_secs_f64() / 1e6)
}

fn beside_bulk_raw(pace: Pace) -> Vec<Duration> {
    let sides = Sides::new();
    let (here, there) = sides.connect(noise);
    sides.far.spawn(drain(there));
    sides.near.spawn(bulk_raw(here, pace));
    let (here, there) = sides.connect(noise);
    sides.far.spawn(echo_raw(there));
    let end = Instant::now() + BESIDE_BULK;
    let asking = ask_raw(here, move |_| Instant::now() >= end, PAUSE);
    sides.near.block_on(sides.near.spawn(asking)).expect("no panic")
}

/// Merges several short runs, which alternate.
fn rounds<const N: usize>(runs: [&dyn Fn() -> Vec<Duration>; N]) -> [Spans; N] {
    let mut all = [const { Vec::new() }; N];
    for _ in 0..ROUNDS {
        cores::look();
        for (spans, run) in all.iter_mut().zip(runs) {
            spans.extend(run());
        }
    }
    all.map(Spans::of)
}

pub(crate) fn run() {
    println!("── There and back, {BODY} B, µs (goal: p50 <= 1.3 x raw TCP) ──");
    let [mine, raw, sealed, bare] =
        rounds([&alone_ours, &|| alone_raw(tcp), &|| alone_raw(noise), &|| alone_raw(substream)]);
    let all = [("ours", &mine), ("raw TCP", &raw), ("TCP, Noise", &sealed), ("substream", &bare)];
    for (name, spans) in all {
        println!(
            "{name:<10} p50 {:>7.1}  p99 {:>7.1}   ratio to raw TCP: {:.2}, {:.2}",
            spans.at(50),
            spans.at(99),
            spans.at(50) / raw.at(50),
            spans.at(99) / raw.at(99),
        );
    }
    println!("{}", cores::seen());
}

pub(crate) fn run_beside_bulk() {
    println!("── Control, {BODY} B a ms, beside bulk, µs (goal: p99 <= 1.5 x raw) ──");
    beside("bulk", TrafficClass::Bulk);
    println!("── The same, beside users' messages of 64 KiB, which share its connection ──");
    beside("users", TrafficClass::User);
    println!("{}", cores::seen());
}

fn beside(load: &str, class: TrafficClass) {
    for (name, pace) in [("saturated", Pace::Saturated), ("125 MB/s", Pace::Gigabit)] {
        let rate = std::cell::Cell::new(0.0);
        let ours = || {
            let (spans, bulk) = beside_bulk_ours(class, pace);
            rate.set(bulk);
            spans
        };
        let [mine, raw] = rounds([&ours, &|| beside_bulk_raw(pace)]);
        println!(
            "{name:<10} ours p50 {:>7.1}  p99 {:>8.1} ({load} {:.0} MB/s)   two sockets of TCP + Noise \
             p50 {:>7.1}  p99 {:>8.1}   ratio of p99 {:.2}",
            mine.at(50),
            mine.at(99),
            rate.get(),
            raw.at(50),
            raw.at(99),
            mine.at(99) / raw.at(99),
        );
    }
}
