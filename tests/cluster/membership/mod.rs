//! Clusters of whole nodes: each step of a node's life, and a failure between two steps.
//!
//! The checklists of spec/reference/pekko-cluster.md §5.3 to §5.6 and §5.8 as far as they need several
//! nodes, and what shows each; names without a place are of this directory. §5.1 is listed in
//! src/cluster/gossip/tests, §5.2 and the decisions of §5.3 and §5.4 in src/cluster/downing/tests, §5.7
//! in ../singleton.rs.
//!
//! §5.3 and §5.4, several nodes:
//! - A link cut both ways: `one_bad_link_removes_nobody`; beside a split: `a_bad_link_inside_the_
//!   larger_side_…` (whom a third one reaches is not unreachable here, so nobody goes).
//! - One crash, a split, by strategy: `whatever_the_strategy_who_crashes_…`, `…three_of_five_go_on_…`.
//! - Repeated flapping ends all: only with `down-all-when-unstable`, `a_cluster_that_does_not_come_to_
//!   rest_…` of src/cluster/downing; with leases it is off, and chaos shows that nobody need go.
//! - lease-majority: `a_granted_lease_downs_…` and seven more there; `with_lease_majority_…` (2, and on
//!   processes 2: tests/processes/lease.rs).
//! - Quarantined by a peer: src/cluster/membership/shunned.rs, `only_who_was_up_once_…`.
//! - The larger side keeps what it hosts: tests/sharding.
//!
//! §5.5, join, leave, restart:
//! - Seeds at once, whichever first: `three_seeds_found_one_cluster_…`, `a_seed_that_crashes_at_any_
//!   moment_…`, `thirty_nodes_that_start_at_once_…`; the first seed again: `every_node_is_restarted_
//!   in_turn_…`; all seeds stopped: `seeds_that_remember_a_cluster_never_found_a_second_one`.
//! - One seed, join by address, that twice, and somewhere else when it is inside: `a_node_without_seeds_
//!   founds_alone_…`, tests/cluster_net `a_node_that_waits_joins_whom_it_is_told_to`. Who only asks is
//!   no member and watched by nobody.
//! - Restart at the same address: `a_restart_on_the_same_data_directory_…` (not noticed before; the
//!   oldest is one of those), `a_restart_without_proof_…`, `a_life_that_is_over_…` (again and again),
//!   tests/processes `known_failure_22_…`.
//! - Deadline of a join: `a_node_gives_up_only_if_it_was_told_to`; settings: `settings_that_must_
//!   agree_…`, `settings_that_should_…`. A checker of one's own and hidden paths: settings that
//!   must agree are a fixed list here, without secrets; nobody can turn the check off.
//! - `min-nr-of-members`, callbacks: there are none; a program reads events.
//! - WeaklyUp: `a_joiner_that_no_quorum_takes_in_…`, `a_newcomer_on_the_smaller_side_…`; it cannot be
//!   turned off, only be made to wait.
//! - Leave: `subscribers_hear_of_each_step_…`, `who_leaves_is_out_of_every_view_…` (whoever leads),
//!   `two_of_four_may_leave_at_once`, `all_may_leave_at_once_…`, `anybody_may_crash_at_any_moment_
//!   while_another_one_leaves`; of a Joining node: `who_was_let_in_by_the_side_that_goes_may_leave_…`.
//! - Before a full stop: `a_cluster_that_is_about_to_stop_…`; singletons: ../singleton.rs.
//! - An app version that is set later: it is a setting, known at the start.
//! - The first is the oldest, ages agree: `ages_are_the_order_of_the_configuration_in_every_view`.
//!
//! §5.6, failures and networks:
//! - Crash of anybody, the leader among them: `who_crashes_is_removed_by_a_quorum_…`, `the_leader_
//!   may_crash_at_any_moment_…`; convergence beside who is Down: a table in src/cluster/gossip.
//! - Heals: `one_bad_link_removes_nobody`, `a_split_that_heals_in_time_…`; newcomers during a cut: `a_
//!   newcomer_on_the_smaller_side_…`, `who_was_let_in_…`; all else: chaos.
//! - Links cut in one direction, or some of them: bad_links.
//! - Half of it downed, then healed: `the_removed_side_of_a_healed_split_…`, `…however_late_…`,
//!   `gossip_from_a_removed_incarnation_resurrects_nobody`.
//! - Quarantine: src/cluster/membership/shunned.rs; proof of death: `…_is_proof_…`. Watch: there is
//!   none, a program reads events.
//! - Churn: `a_life_that_is_over_leaves_nothing_but_a_tombstone`.
//! - Five of six leave at once: `of_six_all_but_one_may_leave_at_once`.
//! - Large and frequent messages: tests/cluster_net `membership_goes_on_while_replicated_data_is_busy`;
//!   stress: chaos. Values for operators: there, `who_is_unreachable_is_shown_…`.
//! - Data centres: there are none.
//!
//! §5.8, coordinated shutdown; src/node/shutdown, or tests/cluster_net:
//! - Order: phases are a fixed list, without a graph and none that is off: `the_phases_are_those_of_
//!   the_specification_…`; tasks: `tasks_run_once_in_the_order_of_phases`, `the_tasks_of_a_phase_
//!   run_side_by_side`, `panicking_or_hanging_task_does_not_stop_the_shutdown` (there is no abort).
//! - Once; added while it runs, taken back: `task_can_add_tasks_only_to_later_phases`, `what_is_
//!   abandoned_keeps_nothing_…`, `tasks_of_the_program_run_where_they_were_put`. It begins at the
//!   first phase; tasks have no names.
//! - Reasons and signals: `the_first_signal_makes_a_node_leave_in_order`, `the_second_signal_ends_it_at_
//!   once`, `one_that_is_declared_dead_stops`, `one_that_others_ask_to_leave_…`; exit codes are the
//!   program's.
//! - Publish-subscribe and the receptionist: there are none.

use std::time::Duration;

use ostraca_ddata::sim::{Faults, LaneRule, NodeIndex, Seed, Setup, Simulation};

use super::whole::{Watch, WholeNode, World};

mod bad_input;
mod bad_links;
mod canaries;
mod chaos;
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

/// A run without faults but those that the test orders; the first `started` places start at once.
pub(super) fn calm(seed: impl Into<Seed>, places: usize, started: usize, world: World) -> Sim {
    let setup = Setup {
        started: Some(started),
        lanes: vec![LaneRule::STREAM],
        faults: Faults::none(),
        ..Setup::new(seed, places)
    };
    Simulation::new(setup, Watch::default(), world.factory())
}

pub(super) fn at(sim: &Sim, place: usize) -> &WholeNode {
    sim.process(NodeIndex::new(place)).expect("it is up")
}

/// Runs until `reached`; if it is not, says how each node sees things.
#[track_caller]
pub(super) fn until(sim: &mut Sim, seconds: u32, reached: impl FnMut(&Sim) -> bool) {
    if let Err(failure) = sim.try_run_until(seconds * SECOND, reached) {
        let stories: String = sim.processes().map(|(_, node)| node.story()).collect();
        panic!("{}\n{stories}{failure}", failure.reason);
    }
}

/// Whether all of these list exactly these as Up, have the same configuration, and have converged.
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
