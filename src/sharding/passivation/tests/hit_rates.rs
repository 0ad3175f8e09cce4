//! Hit rates (messages that find their entity active) compared with plain LRU and with the optimum.

#![expect(clippy::print_stdout, reason = "the rates are the result")]

use std::collections::BTreeMap;

use ostraca_ddata::clock::Instant;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::settings::{self, PassivationStrategy};
use super::super::{Access, PassivationPolicy, Slot};
use super::hash;

const LIMIT: usize = 1_000;
const ACCESSES: usize = 300_000;

const ALL: [PassivationStrategy; 5] = [
    PassivationStrategy::LeastRecentlyUsed,
    PassivationStrategy::Segmented,
    PassivationStrategy::LeastFrequentlyUsed,
    PassivationStrategy::MostRecentlyUsed,
    PassivationStrategy::Composite,
];

fn rate(strategy: PassivationStrategy, trace: &[u32]) -> f64 {
    let settings = settings::PassivationConfig {
        strategy,
        active_entity_limit: LIMIT,
        ..settings::PassivationConfig::default()
    };
    let mut passivation = PassivationPolicy::new(&settings);
    let highest = trace.iter().copied().max().unwrap_or(0) as usize;
    let mut active = vec![false; highest + 1];
    let (mut hits, mut stop) = (0_usize, Vec::new());
    for &id in trace {
        hits += usize::from(active[id as usize]);
        active[id as usize] = true;
        let access = Access { now: Instant::default(), slot: Slot(id), hash: hash(id.into()) };
        passivation.touched(access, &mut |_| false, &mut stop);
        stop.drain(..).for_each(|slot| active[slot.index()] = false);
    }
    hits as f64 / trace.len() as f64
}

/// Stops the entity whose next use is the latest: Belady, *A study of replacement algorithms*
/// (1966).
fn best(trace: &[u32]) -> f64 {
    let mut next_use = vec![usize::MAX; trace.len()];
    let mut seen = BTreeMap::new();
    for (at, id) in trace.iter().enumerate().rev() {
        if let Some(later) = seen.insert(*id, at) {
            next_use[at] = later;
        }
    }
    let mut active: BTreeMap<u32, usize> = BTreeMap::new();
    let mut by_next: BTreeMap<(usize, u32), ()> = BTreeMap::new();
    let mut hits = 0_usize;
    for (at, id) in trace.iter().enumerate() {
        if let Some(planned) = active.insert(*id, next_use[at]) {
            hits += 1;
            by_next.remove(&(planned, *id));
        }
        by_next.insert((next_use[at], *id), ());
        if active.len() > LIMIT {
            let ((_, gone), ()) = by_next.pop_last().expect("an entity is active");
            active.remove(&gone);
        }
    }
    hits as f64 / trace.len() as f64
}

/// Samples entities with a popularity of 1/rank^exponent.
fn zipf(rng: &mut SmallRng, entities: u32, exponent: f64) -> impl FnMut() -> u32 {
    let mut total = 0.0;
    let sums: Vec<f64> = (1..=entities)
        .map(|rank| {
            total += f64::from(rank).powf(-exponent);
            total
        })
        .collect();
    move || {
        let at = rng.random_range(0.0..total);
        u32::try_from(sums.partition_point(|sum| *sum < at)).expect("ranks are 32 bits")
    }
}

fn traces() -> [(&'static str, Vec<u32>); 4] {
    let rng = &mut SmallRng::seed_from_u64(7);
    let mut popular = zipf(rng, 50_000, 0.9);
    let steady: Vec<u32> = (0..ACCESSES).map(|_| popular()).collect();
    // A third of the messages goes through all entities, once each, in bursts of 5,000.
    let mut scanned = 50_000;
    let mut scan = Vec::with_capacity(ACCESSES);
    while scan.len() < ACCESSES {
        scan.extend((0..10_000).map(|_| popular()));
        scan.extend(scanned..scanned + 5_000);
        scanned += 5_000;
    }
    let looped = (0..ACCESSES).map(|at| u32::try_from(at % 2_000).expect("small")).collect();
    // The popular entities change four times.
    let shifting = (0..ACCESSES)
        .map(|at| popular() + 10_000 * u32::try_from(at / (ACCESSES / 5)).expect("small"))
        .collect();
    [("zipf 0.9", steady), ("zipf and scans", scan), ("loop", looped), ("shifting", shifting)]
}

#[test]
fn composite_hit_rate_is_near_the_best_unlike_lru() {
    for (name, trace) in traces() {
        let rates: Vec<f64> = ALL.iter().map(|&strategy| rate(strategy, &trace)).collect();
        let best = best(&trace);
        let shown: Vec<String> = ALL
            .iter()
            .zip(&rates)
            .map(|(strategy, rate)| format!("{strategy:?} {:.1} %", rate * 100.0))
            .collect();
        println!("{name}: best {:.1} %, {}", best * 100.0, shown.join(", "));
        let [lru, segmented, _, mru, composite] = rates[..] else { panic!("five strategies") };
        assert!(rates.iter().all(|&rate| rate <= best), "{name}: no strategy may beat the optimum");
        match name {
            "loop" => assert!(lru < 0.01 && mru > 0.4 && composite > 0.3, "{name}"),
            "shifting" => assert!(composite >= lru * 0.95, "{name}"),
            _ => assert!(composite > lru * 1.05 && segmented > lru, "{name}"),
        }
    }
}
