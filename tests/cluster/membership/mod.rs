//! Clusters of whole nodes: each step of a node's life, and failures between two steps.
//!
//! The behaviours of several nodes that Pekko's tests assert, and the tests that cover them. Names
//! without a file are in this directory. Gossip is covered in src/cluster/gossip/tests, decisions
//! of downing in src/cluster/downing/tests, and singletons in ../singleton.rs.
//!
//! Split brain resolver, several nodes:
//! - A link cut both ways: `bad_link_removes_no_member`; beside a split:
//!   `bad_link_on_the_larger_side_removes_none_of_it` (a member reached by a third one is not
//!   unreachable here, so none is removed).
//! - One crash, a split, by strategy: `crashed_member_is_removed_under_every_strategy`,
//!   `three_of_five_continue_under_every_strategy`.
//! - Repeated flapping downs all nodes: only with `down-all-when-unstable`,
//!   `unstable_cluster_is_downed_on_every_node` of src/cluster/downing. With leases it is off, and
//!   chaos shows that it is not needed.
//! - lease-majority: `granted_lease_is_released_after_the_removals` and seven more there;
//!   `lease_majority_…` here, and processes in tests/processes/lease.rs.
//! - Quarantined by a peer: src/cluster/membership/quarantine.rs,
//!   `refusal_of_an_unproven_peer_is_ignored`.
//! - The larger side keeps what it hosts: tests/sharding.
//!
//! Join, leave, restart:
//! - Seeds started at once, in any order: `three_seeds_found_one_cluster_and_a_fourth_joins`,
//!   `seed_crash_during_founding_leaves_one_cluster`,
//!   `thirty_nodes_starting_at_once_form_one_cluster`; restart of the first seed:
//!   `rolling_restart_keeps_the_cluster`; all seeds stopped:
//!   `seeds_with_a_stored_cluster_never_found_another`.
//! - One seed, join by address, repeated, and elsewhere when it is a member:
//!   `node_without_seeds_founds_alone_and_another_joins_it`, and tests/cluster_net/forming.rs. A
//!   node that only asks is not a member and not monitored.
//! - Restart at the same address: `restart_on_the_same_data_directory_is_proof_of_death` (not
//!   detected before; the oldest is one of those), `restart_without_proof_joins_after_the_removal`,
//!   `removed_incarnation_leaves_only_a_tombstone` (repeated restarts), and tests/processes
//!   for a member that is killed and restarted at once.
//! - Deadline of a join: `node_stops_searching_only_if_configured`; settings:
//!   `incompatible_settings_refuse_a_join_and_are_reported`,
//!   `differing_optional_settings_only_cause_a_warning`. Custom checkers and hidden paths do not
//!   exist: settings that must agree are a fixed list without secrets, and the check cannot be
//!   disabled.
//! - `min-nr-of-members` and callbacks do not exist; a program reads events.
//! - WeaklyUp: `joiner_without_a_quorum_becomes_weakly_up`,
//!   `newcomer_on_the_smaller_side_is_weakly_up`; it cannot be disabled, only delayed.
//! - Leave: `subscribers_get_each_status_once_in_order`, `leaving_node_stops_after_its_removal`
//!   (also of the leader), `two_of_four_members_leave_at_once`, `all_members_leave_at_once`,
//!   `crash_at_any_moment_of_a_leave_is_handled`; of a Joining node:
//!   `newcomer_of_a_lost_side_can_leave`.
//! - Before a full shutdown: `full_shutdown_admits_and_promotes_no_node`; singletons:
//!   ../singleton.rs.
//! - An app version that is set later: it is a setting, known at the start.
//! - The first member is the oldest, and ages agree: `ages_have_the_order_of_the_configuration`.
//!
//! Failures and networks:
//! - Crash of any member, including the leader: `crashed_member_is_removed_by_a_quorum`,
//!   `crash_of_the_leader_during_a_removal_is_handled`; convergence beside Down members: a table in
//!   src/cluster/gossip.
//! - Heals: `bad_link_removes_no_member`, `split_that_heals_in_time_removes_no_member`; newcomers
//!   during a cut: `newcomer_on_the_smaller_side_is_weakly_up`, `newcomer_of_a_lost_side_…`; all
//!   else: chaos.
//! - Links cut in one direction, or some of them: bad_links.
//! - One side downed, then healed: `removed_side_stops_after_the_heal`,
//!   `removed_side_stops_after_a_late_heal`,
//!   `gossip_of_a_removed_incarnation_resurrects_no_member`.
//! - Quarantine: src/cluster/membership/quarantine.rs; proof of death:
//!   `restart_on_the_same_data_directory_is_proof_of_death`. Death watch does not exist; a program
//!   reads events.
//! - Churn: `removed_incarnation_leaves_only_a_tombstone`.
//! - Five of six leave at once: `five_of_six_members_leave_at_once`.
//! - Large and frequent messages, and values for operators: tests/cluster_net; stress: chaos.
//! - Data centres do not exist.
//!
//! Coordinated shutdown is covered in src/node/shutdown and tests/cluster_net:
//! - Phases are a fixed list without a dependency graph, and none can be disabled. Tasks of a phase
//!   run concurrently, and a failing or hanging task does not stop the others; there is no abort.
//! - Tasks may be added while the shutdown runs, and withdrawn. It always begins at the first
//!   phase, and tasks have no names.
//! - Reasons and signals; exit codes are defined by the program.
//! - Publish-subscribe and the receptionist do not exist.

use std::time::Duration;

use ostraca_ddata::sim::{Faults, LaneRule, NodeIndex, Seed, Simulation, SimulationSetup};

use super::whole::{Watch, WholeNode, World};

mod bad_input;
mod bad_links;
mod canaries;
mod chaos;
mod effects;
mod going;
mod joining;
mod recovering;
mod restarts;
mod splitting;
mod storms;
mod strategies;
mod weather;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) type Sim = Simulation<WholeNode, Watch>;

/// A run whose only faults are those ordered by the test; the first `started` places start at once.
pub(super) fn calm(seed: impl Into<Seed>, places: usize, started: usize, world: World) -> Sim {
    let setup = SimulationSetup {
        started: Some(started),
        lanes: vec![LaneRule::STREAM],
        faults: Faults::none(),
        ..SimulationSetup::new(seed, places)
    };
    Simulation::new(setup, Watch::default(), world.factory())
}

pub(super) fn at(sim: &Sim, place: usize) -> &WholeNode {
    sim.process(NodeIndex::new(place)).expect("the node is running")
}

/// Runs until `reached`; otherwise fails with the story of each node.
#[track_caller]
pub(super) fn until(sim: &mut Sim, seconds: u32, reached: impl FnMut(&Sim) -> bool) {
    if let Err(failure) = sim.try_run_until(seconds * SECOND, reached) {
        let stories: String = sim.processes().map(|(_, node)| node.story()).collect();
        panic!("{}\n{stories}{failure}", failure.reason);
    }
}

/// Whether all of these nodes consider exactly these nodes Up, have the same configuration, and
/// have converged.
pub(super) fn agree(sim: &Sim, places: &[usize]) -> bool {
    let expected = places.iter().copied().collect();
    places.iter().all(|place| {
        let Some(node) = sim.process(NodeIndex::new(*place)) else { return false };
        let epoch = node.epoch().map(|epoch| epoch.members().len());
        node.over.is_none()
            && node.up() == expected
            && node.members() == expected
            && node.converged()
            && epoch == Some(places.len())
    })
}
