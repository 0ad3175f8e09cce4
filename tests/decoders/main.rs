//! Fuzz bodies (`fuzz/bodies`) on mutated well-formed inputs: no decoder panics, hangs or reads
//! beyond its input, whatever a peer sends.
//!
//! `OSTRACA_SIM_SECONDS=600 cargo test --test decoders` runs each body that long on fresh seeds.
//! `long_run.rs` runs a given number of executions. libFuzzer runs the same bodies guided by
//! coverage: `cargo +nightly fuzz run frames`.

mod corpus;
mod long_run;
mod mutation;

#[path = "../../fuzz/bodies/cluster.rs"]
mod cluster;
#[path = "../../fuzz/bodies/frames.rs"]
mod frames;
#[path = "../../fuzz/bodies/management.rs"]
mod management;
#[path = "../../fuzz/bodies/messages.rs"]
mod messages;
#[path = "../../fuzz/bodies/muxer.rs"]
mod muxer;
#[path = "../../fuzz/bodies/noise.rs"]
mod noise;
#[path = "../../fuzz/bodies/noise_messages.rs"]
mod noise_messages;
#[path = "../../fuzz/bodies/openings.rs"]
mod openings;
#[path = "../../fuzz/bodies/sharding.rs"]
mod sharding;

use mutation::explore;

#[test]
fn mutated_frames_never_panic() {
    explore("mutated_frames_never_panic", 2_000, &corpus::frames(), frames::run);
}

#[test]
fn mutated_replicator_messages_never_panic() {
    let corpus = corpus::replicator();
    explore("mutated_replicator_messages_never_panic", 600, &corpus, messages::run);
}

#[test]
fn mutated_muxer_input_never_panics() {
    explore("mutated_muxer_input_never_panics", 1_000, &corpus::muxer(), muxer::run);
}

#[test]
fn mutated_handshakes_never_panic() {
    explore("mutated_handshakes_never_panic", 10, &corpus::noise(), noise::run);
}

#[test]
fn mutated_noise_messages_never_panic() {
    let corpus = corpus::noise_messages();
    explore("mutated_noise_messages_never_panic", 1_000, &corpus, noise_messages::run);
}

#[test]
fn mutated_openings_never_panic() {
    explore("mutated_openings_never_panic", 2_000, &corpus::openings(), openings::run);
}

#[test]
fn mutated_cluster_messages_never_panic() {
    explore("mutated_cluster_messages_never_panic", 1_000, &corpus::cluster(), cluster::run);
}

#[test]
fn mutated_sharding_messages_never_panic() {
    explore("mutated_sharding_messages_never_panic", 1_000, &corpus::sharding(), sharding::run);
}

#[test]
fn mutated_management_messages_never_panic() {
    let corpus = corpus::management();
    explore("mutated_management_messages_never_panic", 1_000, &corpus, management::run);
}
