//! Tests of every replicated type: laws on random histories against a simple model, differential
//! tests against other implementations, known failures of other projects, and malformed bytes.
//!
//! A failing property prints its smallest history and stores its seed in
//! `tests/proptest-regressions/`. `PROPTEST_CASES=20000 cargo test -p ostraca-ddata --test types`
//! tries more histories. The planted faults need `--features canaries`.
//!
//! Properties of the data types and the tests that check them:
//!
//! | property | test |
//! |---|---|
//! | laws on reachable states, never on arbitrary structs | `laws::*::merge_is_a_join`, and `World::check` after every step of every history |
//! | ops ≡ states after each sync with equal knowledge | `laws::*::a_delta_is_a_small_state`; `World::check` compares all replicas that know the same events |
//! | each delta as delta = as state; any order, loss, repeats; groups | `laws::*::{a_delta_is_a_small_state, a_late_replica_catches_up, joined_deltas_equal_single_deltas, all_replicas_converge}` |
//! | acked by a majority, then read by a majority, N = 3 and 5 | `quorum::*`; without the causal delta rule it fails: `quorum::fault_injection` |
//! | equal contexts ⇒ equal states | `World::check`, in content and in bytes |
//! | `repair(ctx)` = full merge, with removal rings cut | `laws::*::{a_repair_is_the_full_merge, misdirected_repair_does_no_harm}` |
//! | fold at different epochs + old durable copy + newcomer = never-pruned oracle | not yet: folding of departed replicas is not implemented (docs/protocol/replication.md#forgetting-needs-a-decision); every encoded state has its fold level, always 0 |
//! | differential against `Orswot` on full-state merges | `oracles::*` |
#![expect(clippy::redundant_closure_for_method_calls, reason = "edits read as users write them")]
#![expect(clippy::unwrap_used, reason = "a test's helper may panic as the test may")]

#[cfg(feature = "canaries")]
mod canaries;
mod cases;
mod crate_bugs;
mod extremes;
mod golden;
mod known_failures;
mod laws;
mod leaves;
mod model;
mod oracles;
mod pekko_leaves;
mod pekko_maps;
mod pekko_sets;
mod quorum;
mod registers;
mod regressions;
mod wire;
mod world;
