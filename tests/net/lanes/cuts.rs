//! Tests with any number of broken connections, at any byte, in either direction.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca::net::lane::SendError;
use ostraca::net::wire::LaneRefusal;

use super::pipe::{Chance, Looks};
use super::*;

/// Runs a test with its seeds. A failure prints how to repeat it.
pub(crate) fn seeds(test: &str, fixed: u64, run: impl Fn(u64)) {
    let seeds = match env::var("OSTRACA_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("OSTRACA_SEED is a number");
            seed..=seed
        }
        Err(_) => 0..=fixed - 1,
    };
    for seed in seeds {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(cause) = failed {
            eprintln!(
                "seed {seed} failed: OSTRACA_SEED={seed} cargo test -p ostraca --test net {test}"
            );
            std::panic::resume_unwind(cause);
        }
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Message `number`: its contents follow from the number and the seed.
fn message(seed: u64, number: u64) -> (Vec<String>, Vec<u8>) {
    let mut chance = Chance(seed ^ number.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let fields = (0..chance.below(5)).map(|_| format!("name-{}", chance.below(9))).collect();
    let long = chance.one_in(40);
    let len = chance.size(if long { 200_000 } else { 400 });
    let mut body = number.to_le_bytes().to_vec();
    body.resize(len + 8, number as u8);
    (fields, body)
}

/// Accepts messages only in the expected order, and is busy at random.
struct Strict {
    seed: u64,
    next: AtomicU64,
    chance: Mutex<Chance>,
}

impl Receiver for Strict {
    fn receive(&self, got: Inbound<'_>) -> Result<(), Busy> {
        if self.chance.lock().expect("no panic inside").one_in(20) {
            return Err(Busy);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (fields, body) = message(self.seed, number);
        assert!(got.body == body, "message {number} came as another");
        assert!(got.fields.iter().map(|name| &**name).eq(fields.iter().map(|name| &**name)));
        Ok(())
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        let turns = self.chance.lock().expect("no panic inside").below(5);
        async move {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        }
        .boxed()
    }
}

fn limits(chance: &mut Chance) -> NetLimits {
    NetLimits {
        lane_bytes_max: [[1_000, 200_000, 4_000_000][chance.below(3)]; 4],
        lane_window: [1_000, 70_000, 8_000_000][chance.below(3)],
        frame_bytes_max: [8_192, 20_000, 65_536][chance.below(3)],
        ..NetLimits::default()
    }
}

fn nature(chance: &mut Chance) -> Nature {
    Nature {
        capacity: chance.size(100_000),
        lives: [chance.size(400_000), chance.size(2_000)],
        looks: [Looks::Ended, Looks::Reset, Looks::Silent][chance.below(3)],
        chance: Some(chance.clone()),
    }
}

async fn send_all(lane: Lane, seed: u64, count: u64) {
    for number in 0..count {
        let (fields, body) = message(seed, number);
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        loop {
            match lane.send(&fields, &body) {
                Ok(()) => break,
                Err(SendError::Full { .. }) => lane.room().await,
                Err(cause) => panic!("{cause}"),
            }
        }
        if number.is_multiple_of(50) {
            tokio::task::yield_now().await;
        }
    }
}

/// Runs one connection after another until everything has arrived. Returns how many of them broke.
async fn run(seed: u64, count: u64) -> u64 {
    let mut chance = Chance(seed);
    let limits = limits(&mut chance);
    let lane = lane(&limits);
    let inbound = InboundLane::new();
    let strict =
        Arc::new(Strict { seed, next: AtomicU64::new(0), chance: Mutex::new(Chance(!seed)) });
    let producer = tokio::spawn(send_all(lane.clone(), seed, count));
    let mut cuts = 0;
    while !producer.is_finished() || lane.stats().unacknowledged > 0 {
        if chance.one_in(10) {
            drop(turn(&lane, &inbound).await); // its Welcome does not arrive
        }
        let nature = nature(&mut chance);
        let (mut writer, _reader) =
            connect(&lane, &inbound, &limits, Arc::clone(&strict) as _, nature).await;
        if chance.one_in(4) {
            for _ in 0..chance.size(500) {
                tokio::task::yield_now().await;
            }
            writer.abort(); // this side closes the connection
            let _ = (&mut writer).await;
        } else {
            let done = until(|| {
                writer.is_finished() || (producer.is_finished() && lane.stats().unacknowledged == 0)
            });
            done.await;
            writer.abort();
        }
        cuts += 1;
    }
    producer.await.expect("the producer ends well");
    lane.finish();
    let (writer, reader) =
        connect(&lane, &inbound, &limits, Arc::clone(&strict) as _, Nature::default()).await;
    assert!(matches!(ended(writer).await, LaneEnd::Finished));
    assert!(matches!(ended(reader).await, LaneEnd::Finished));
    assert_eq!(strict.next.load(Ordering::Relaxed), count);
    assert_eq!(inbound.stats().accepted, count);
    let stats = lane.stats();
    assert_eq!((stats.acknowledged, stats.kept_bytes), (count, 0));
    assert_eq!(stats.undrained_since, None);
    cuts
}

#[test]
fn cuts_at_any_byte_keep_order_without_loss() {
    let cuts = AtomicU64::new(0);
    let test = "cuts_at_any_byte_keep_order_without_loss";
    seeds(test, 150, |seed| {
        block_on(async {
            cuts.fetch_add(run(seed, 600).await, Ordering::Relaxed);
        });
    });
    let cuts = cuts.into_inner();
    assert!(env::var("OSTRACA_SEED").is_ok() || cuts > 2_000, "only {cuts} connections broke");
}

#[test]
fn abandoned_lane_counts_unacknowledged_exactly() {
    seeds("abandoned_lane_counts_unacknowledged_exactly", 200, |seed| block_on(give_up(seed)));
}

async fn give_up(seed: u64) {
    let mut chance = Chance(seed);
    let limits = NetLimits::default();
    let lane = lane(&limits);
    let inbound = InboundLane::new();
    let inbox = Inbox::new();
    let (writer, reader) =
        connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, nature(&mut chance)).await;
    let mut sent = 0_u64;
    for _ in 0..chance.size(200) {
        for _ in 0..chance.size(30) {
            lane.send(&["a"], &vec![7; chance.size(3_000)]).expect("there is room");
            sent += 1;
        }
        tokio::task::yield_now().await;
    }
    let before = lane.stats();
    let lost = lane.break_off();
    assert_eq!((lost, before.unacknowledged), (sent - before.acknowledged, lost));
    assert!(inbox.len() as u64 >= before.acknowledged, "what was acknowledged had arrived");
    assert!(inbox.len() as u64 <= sent);
    assert_eq!(lane.break_off(), 0, "nothing is counted twice");
    assert_eq!(lane.send(&[], b"late"), Err(SendError::Broken));
    assert_eq!(lane.stats().kept_bytes, 0);
    let end = ended(writer).await;
    assert!(matches!(end, LaneEnd::Superseded | LaneEnd::Broken(_)), "{end:?}");
    reader.abort();
}

#[tokio::test]
async fn lane_after_an_abandoned_one_delivers_all_messages() {
    let limits = NetLimits::default();
    let (inbound, inbox) = (InboundLane::new(), Inbox::new());
    let old = lane(&limits);
    old.send(&["name"], b"old").expect("there is room");
    let (_writer, _reader) =
        connect(&old, &inbound, &limits, Arc::clone(&inbox) as _, Nature::default()).await;
    inbox.holds(1).await;
    old.break_off();
    let new = lane(&limits);
    new.send(&["name"], b"new").expect("there is room");
    let (_writer, _reader) =
        connect(&new, &inbound, &limits, Arc::clone(&inbox) as _, Nature::default()).await;
    inbox.holds(2).await;
    assert_eq!(inbox.bodies(), [b"old", b"new"]);
    assert_eq!(inbound.stats().accepted, 2);
    let late = inbound.take_over(old.next_generation(), 1).await;
    assert_eq!(late.err(), Some(LaneRefusal::Superseded));
}

#[tokio::test]
async fn names_survive_a_broken_connection() {
    let limits = NetLimits::default();
    let (lane, inbound, inbox) = (lane(&limits), InboundLane::new(), Inbox::new());
    for round in 0..3 {
        let (writer, reader) =
            connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, Nature::default()).await;
        let own = format!("round-{round}");
        lane.send(&["order", &own], b"1").expect("there is room");
        lane.send(&[&own, "order"], b"2").expect("there is room");
        inbox.holds(2 * round + 2).await;
        until(|| lane.stats().unacknowledged == 0).await;
        writer.abort();
        assert!(matches!(ended(reader).await, LaneEnd::Broken(_)));
    }
    let taken = inbox.taken.lock().expect("no panic inside");
    for (round, pair) in taken.messages.chunks(2).enumerate() {
        let own = format!("round-{round}");
        assert_eq!(pair[0].0, ["order", &own]);
        assert_eq!(pair[1].0, [&own, "order"]);
    }
}

#[tokio::test]
async fn later_generation_waits_and_the_latest_wins() {
    let limits = NetLimits::default();
    let (lane, inbound, inbox) = (lane(&limits), InboundLane::new(), Inbox::new());
    inbox.pause();
    lane.send(&[], b"one").expect("there is room");
    let silent = Nature { lives: [8, 0], looks: Looks::Silent, ..Nature::default() };
    let (_writer, first) = connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, silent).await;
    tokio::task::yield_now().await;

    let early = lane.next_generation();
    let held = turn(&lane, &inbound).await;
    assert!(matches!(ended(first).await, LaneEnd::Superseded), "it was told to end");
    assert_eq!(inbound.take_over(early, 1).await.err(), Some(LaneRefusal::Superseded));

    // Two more generations wait for the held turn; only the later one gets it.
    let (third, fourth) = (lane.next_generation(), lane.next_generation());
    let mut third = Box::pin(inbound.take_over(third, 1));
    assert!(futures::poll!(&mut third).is_pending());
    let mut fourth = Box::pin(inbound.take_over(fourth, 1));
    assert!(futures::poll!(&mut fourth).is_pending());
    held.superseded().await;
    drop(held);
    assert_eq!(third.await.err(), Some(LaneRefusal::Superseded));
    assert_eq!(fourth.await.expect("the latest").accepted(), 0);
}

#[tokio::test]
async fn gap_is_refused_and_wrong_acks_end_the_sender() {
    let limits = NetLimits::default();
    let (lane, inbound) = (lane(&limits), InboundLane::new());
    let gap = inbound.take_over(lane.next_generation(), 2).await;
    assert_eq!(gap.err(), Some(LaneRefusal::Gap { accepted: 0, first: 2 }));
    lane.send(&[], b"one").expect("there is room");
    let (there, _here) = pipe(Nature::default());
    let end = writer::run(there, lane.clone(), 1).await;
    assert!(matches!(end, LaneEnd::Violation(_)), "it was never sent: {end:?}");
    assert_eq!(lane.stats().unacknowledged, 1);
}
