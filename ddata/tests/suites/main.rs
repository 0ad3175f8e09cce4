//! The Replicator's suites: real machines in simulated clusters under faults, with oracles.
//!
//! Each run draws sizes, settings, habits and faults from its seed ([`plans`]), runs a storm, then
//! peace ([`run`]); [`history`] checks after every event, and once more at rest.
//!
//! | line | checked by | in |
//! |---|---|---|
//! | DESIGN I1, R1, L5: equal at rest, byte for byte | `History::at_rest` | every suite |
//! | I2, R2: acknowledged writes are in later majority reads, over changes and restarts | `History::read`, `at_rest` | every suite |
//! | R3: what a majority read showed stays shown | `History::read` | every suite |
//! | R4: no dot that nobody made, none made twice or for another | `Model::made`, `check` | every suite |
//! | values: add-wins, observed-remove, sums, last writer; a delete erases what it saw only | `Model::check` on every read, reply and notice | every suite |
//! | I3, R5, D1, D2 ([X] §2): terms, fences, recovery writes | [`decisions`] | `coordinators` |
//! | M1, M2, M3 ([X] §1): one configuration per epoch, rising, nobody returns | [`chain`] | `configuration_changes`, `coordinators`, `durable`, `large_and_eager` |
//! | [X] §1: abandoned seals, several proposers, false suspicion, joins, leaves, restarts as joiners | [`membership`], [`strikes`] | `configuration_changes` |
//! | L2, L6: after the last fault everything is answered, everybody joins | `Run::peace` | every suite, where a majority is left |
//! | [D] requests: one answer to each, by its deadline | `History::overdue`, `replied` | every suite |
//! | [D] levels: Local, To/From, Majority, MajorityPlus, `min_cap`, All | [`workload`] | every suite |
//! | [D] subscriptions: the last notice is what is held | `History::subscribers_know` | every suite |
//! | [D] rule R, repairs, removal records, `delta.enabled` off | marks | `converges_under_faults` |
//! | [D] anti-entropy, `max-delta-elements` 3 | marks | `converges_under_faults` |
//! | [D] expiry | `exp-` keys: an owner's own deletes are in the model as well; marks | every suite |
//! | [D] clocks: jumps, rates, `max-clock-skew` 1 s | faults, register oracle | every suite |
//! | [D] durable keys, write-behind, failing and slow disks, R8's acks | marks | `durable` |
//! | [D] large data: pieces, frames of 1 to 4 KB; eager rounds | marks | `large_and_eager` |
//! | the canaries of `bug::Bug` | [`canaries`], [`directed`] | each within 2,000 seeds |
//!
//! A run whose crashes took a majority for good ([X] §1: both configurations need a live quorum)
//! is checked for safety only, and counted under the mark `run.outside`.
//!
//! `OSTRACA_SIM_SECONDS=600 cargo test -p ostraca-ddata --all-features --test suites suites::`
//! runs each suite that long on fresh seeds.

#![cfg(feature = "canaries")]
#![allow(unreachable_pub, missing_docs, reason = "a test binary exports nothing")]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod canaries;
mod chain;
mod coordinators;
mod decisions;
mod directed;
mod history;
mod membership;
#[path = "../replicator/node.rs"]
mod node;
mod oracle;
mod plans;
mod regressions;
mod replay;
mod run;
mod speed;
mod strikes;
mod suites;
mod workload;
