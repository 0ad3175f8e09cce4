//! Planted faults: runs of a suite's plan must catch each one within 2,000 seeds, and the run that
//! catches it must pass without the fault. [`ReplicatorFault`] describes them.
//!
//! Four are caught in [`crate::directed`] instead: `AckBeforeSync`, `FenceWhileSealed` and
//! `MixedEpochs` hardly ever do harm while all other rules are kept, and `ConfigurationFromAnybody`
//! does harm only if a peer forges messages.
//!
//! `OSTRACA_CANARIES=1` and `--nocapture` print the seed that catches each fault, and the reason.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::sim::Seed;

use crate::plans;
use crate::run::{Plan, run};

/// Seeds within which a fault must be caught.
const SEEDS_MAX: u64 = 2_000;

/// The first seed of a plan that catches a fault, and the reason of its failure. A panic, whose
/// message is on stderr, counts as well.
fn hunt(bug: ReplicatorFault, plan: fn(Seed) -> Plan) -> Option<(u64, String)> {
    let (next, found) = (AtomicU64::new(0), Mutex::new(None::<(u64, String)>));
    let fails = |seed: u64| {
        let plan = Plan { fault_injection: FaultInjection::with(bug), ..plan(seed.into()) };
        let run = std::panic::AssertUnwindSafe(|| run(plan).err().map(|failure| failure.reason));
        std::panic::catch_unwind(run).unwrap_or_else(|_| Some("a panic".into()))
    };
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let mut best = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if seed >= SEEDS_MAX || best.as_ref().is_some_and(|(other, _)| *other < seed) {
                return;
            }
            drop(best);
            if let Some(reason) = fails(seed) {
                best = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if best.as_ref().is_none_or(|(other, _)| seed < *other) {
                    *best = Some((seed, reason));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn is_caught(bug: ReplicatorFault, plan: fn(Seed) -> Plan) {
    let Some((seed, reason)) = hunt(bug, plan) else {
        panic!("none of {SEEDS_MAX} seeds catches {bug:?}");
    };
    if let Err(failure) = run(plan(seed.into())) {
        panic!("seed {seed} fails without {bug:?} too:\n{failure}");
    }
    if std::env::var_os("OSTRACA_CANARIES").is_some() {
        say(&format!("{bug:?}: seed {seed}: {}", reason.lines().next().unwrap_or_default()));
    }
}

#[expect(clippy::print_stderr, reason = "asked for by OSTRACA_CANARIES")]
fn say(text: &str) {
    let text: String = text.chars().take(300).collect();
    eprintln!("{text}");
}

/// One test for each fault, with the plan whose load makes the missing rule matter.
macro_rules! canaries {
    ($($name:ident: $bug:ident by $plan:ident;)+) => {
        $(#[test]
        fn $name() {
            is_caught(ReplicatorFault::$bug, plans::$plan);
        })+
    };
}

canaries! {
    no_read_repair: NoReadRepair by steady;
    no_term_check: NoTermCheck by contested;
    no_recovery_write: NoRecoveryWrite by contested;
    accept_before_sync: AcceptBeforeSync by changing;
    not_sealed: NotSealed by contested;
    ignore_accepted: IgnoreAccepted by changing;
    adopt_lowest_ballot: AdoptLowestBallot by contested;
    ballot_without_node: BallotWithoutNode by changing;
    accept_below_promise: AcceptBelowPromise by changing;
    half_without_tiebreaker: HalfWithoutTiebreaker by changing;
    sync_from_fewer: SyncFromFewer by contested;
    snapshot_before_last_ack: SnapshotBeforeLastAck by contested;
    term_without_coordinator: TermWithoutCoordinator by contested;
    cells_not_synced: CellsNotSynced by replaced;
    promises_not_synced: PromisesNotSynced by contested;
    delta_with_whole_context: DeltaWithWholeContext by steady;
    no_rule_r: NoRuleR by steady;
    no_stale_check: NoStaleCheck by contested;
    guarded_key_removed: GuardedKeyRemoved by coordinated;
    merge_by_arrival: MergeByArrival by steady;
    delete_erases_unseen: DeleteErasesUnseen by steady;
    delta_stands_for_all: DeltaStandsForAll by steady;
}
