//! The Replicator's suites: real machines in simulated clusters under faults, with oracles.
//!
//! Each run draws sizes, settings, load and faults from its seed ([`plans`]), runs under faults, and
//! then without them until it is at rest ([`run`]). [`history`] checks after every event, and at rest.
//!
//! | guarantee | checked by | in |
//! |---|---|---|
//! | convergence: replicas at rest are equal, byte for byte | `History::at_rest` | every suite |
//! | acknowledged majority writes are in later majority reads, over changes and restarts | `History::read`, `at_rest` | every suite |
//! | what a majority read showed, later majority reads show | `History::read` | every suite |
//! | dots: each is made once, by its own replica | `Model::made`, `check` | every suite |
//! | values: add-wins, observed-remove, sums, last writer; a delete removes only what it saw | `Model::check` on every read, reply and notice | every suite |
//! | coordinators: terms, fencing reads, recovery writes | [`decisions`] | `coordinators` |
//! | configurations: one for each id, rising, without removed members | [`chain`] | `configuration_changes`, `coordinators`, `durable`, `large_and_eager` |
//! | abandoned seals, several proposers, false suspicion, joins, leaves, restarts as joiners | [`membership`], [`strikes`] | `configuration_changes` |
//! | liveness: after the last fault every request succeeds, every node is a member | `Run::peace` | every suite, where a majority is left |
//! | requests: one answer to each, by its deadline | `History::overdue`, `replied` | every suite |
//! | levels: Local, To/From, Majority, MajorityPlus, `min_cap`, All | [`workload`] | every suite |
//! | subscriptions: the last notice equals the value held | `History::subscribers_know` | every suite |
//! | causal delta rule, repairs, removal records, `delta.enabled` off | marks | `converges_under_faults` |
//! | anti-entropy, `max-delta-elements` 3 | marks | `converges_under_faults` |
//! | expiry | `exp-` keys: an owner's own deletes are in the model as well; marks | every suite |
//! | clocks: jumps, rates, `max-clock-skew` 1 s | faults, register oracle | every suite |
//! | durable keys, write-behind, failing and slow disks, acknowledgements after the fsync | marks | `durable` |
//! | large data: parts, frames of 1 to 4 KB; eager rounds | marks | `large_and_eager` |
//! | planted faults (`ReplicatorFault`) | [`canaries`], [`directed`] | each within 2,000 seeds |
//!
//! A run whose crashes took a majority for good is checked for safety only, because a configuration
//! change needs live quorums of both configurations. It is counted under the mark `run.outside`.
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
