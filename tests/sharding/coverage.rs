//! Checks that sharding's tests cover two checklists. Every known failure of other implementations
//! has a test with its number in the name (`known_failure_05_…`). Every behaviour of Pekko's sharding
//! has a test in `SHOWN`, or a reason in `NOT_SHOWN`. Their letters: E extractors, identity and start;
//! P passivation; S the life of an entity in its shard; K coordinator and regions on few nodes; N many
//! nodes; U tests that failures of Pekko call for. Vectors of allocation and traces of passivation
//! are tests with their number first: `a1_…` to `l13_…`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Folders with tests of sharding.
const BELOW: [&str; 6] = [
    "src/node/sharding",
    "src/node/routes",
    "src/sharding",
    "tests/cluster_net",
    "tests/processes",
    "tests/sharding",
];

/// Numbers of the known failures that concern sharding, except 10, 18 and 19, which are about
/// daemons and remembered entities: neither exists yet.
const KNOWN_FAILURES: [u32; 18] = [1, 2, 3, 4, 5, 6, 7, 11, 14, 24, 27, 34, 35, 37, 38, 39, 42, 43];

/// Behaviours and their tests.
const SHOWN: &[(&str, &str)] = &[
    ("E1", "e1_murmur2_gives_the_hashes_of_kafka"),
    ("E2", "e2_shard_is_absolute_hash_modulo_shards"),
    ("E3", "e3_e5_ids_come_from_the_message_or_there_is_none"),
    ("E5", "e3_e5_ids_come_from_the_message_or_there_is_none"),
    ("E6", "empty_id_is_refused_at_the_call"),
    ("E7", "e7_a_hundred_threads_get_the_same_answers"),
    ("E8", "repeated_start_returns_the_handle_unless_the_types_differ"),
    ("E9", "types_started_twice_by_several_threads_exist_once"),
    ("E10", "proxy_routes_and_hosts_nothing_even_if_started_twice"),
    ("E11", "types_of_two_roles_run_on_members_of_their_role"),
    ("E12", "member_without_role_is_never_a_candidate"),
    ("E13", "repeated_start_returns_the_handle_unless_the_types_differ"),
    ("E14", "types_started_twice_by_several_threads_exist_once"),
    ("E15", "queries_return_every_home_and_entity_count"),
    ("E17", "known_failure_14_other_settings_are_not_registered"),
    ("E18", "unregistered_region_reports_after_10_s_then_each_minute"),
    ("E19", "messages_match_golden_bytes_and_decode_unchanged"),
    ("E20", "e20_strategies_read_from_text_and_built_in_code_are_equal"),
    ("P3", "known_failure_05_each_live_entity_gets_its_stop_message"),
    ("P4", "p4_slot_of_a_self_stopped_entity_is_free"),
    ("P5", "e20_remembering_stops_passivation_unknown_policy_fails"),
    ("P6", "l2_least_recently_used_follows_its_limit_down_and_up"),
    ("P7", "an_entity_that_passivates_itself_loses_no_message"),
    ("S6", "start_of_a_passivating_entity_waits_for_next_instance"),
    ("S7", "start_waits_for_the_factory_and_moves_with_the_shard"),
    ("S9", "any_node_starts_an_entity_without_a_message"),
    ("S10", "panic_and_passivation_lose_no_later_message"),
    ("S13", "endless_handler_is_aborted_without_losing_later_messages"),
    ("S14", "known_failure_05_each_live_entity_gets_its_stop_message"),
    ("S15", "known_failure_05_each_live_entity_gets_its_stop_message"),
    ("K1", "minimum_regions_gates_only_the_first_allocation"),
    ("K2", "stop_is_answered_after_the_drain"),
    ("K3", "nodes_leaving_one_after_another_lose_no_message"),
    ("K4", "known_failure_37_silent_node_is_named_beside_other_answers"),
    ("K5", "queries_return_every_home_and_entity_count"),
    ("K6", "registered_type_is_no_longer_missing"),
    ("K7", "a_lapsed_lease_pauses_handlers_and_begins_nothing"),
    ("K8", "long_lapse_drops_instances_and_keeps_waiting_messages"),
    ("K10", "tell_and_ask_work_locally_and_remotely"),
    ("N1", "lone_node_coordinates_registers_and_offers_its_type"),
    ("N2", "joining_node_gets_its_share_with_the_fewest_moves"),
    ("N3", "known_failure_43_messages_of_a_passivating_entity_move"),
    ("N4", "proxy_routes_and_hosts_nothing_even_if_started_twice"),
    ("N5", "shards_of_a_removed_node_get_new_homes"),
    ("N6", "joining_node_gets_its_share_with_the_fewest_moves"),
    ("N7", "killed_coordinator_loses_only_entities_of_its_node"),
    ("N8", "joining_node_gets_its_share_with_the_fewest_moves"),
    ("N11", "known_failure_06_paused_coordinator_is_replaced_for_good"),
    ("N12", "partitioned_host_loses_only_its_entities_and_rejoins"),
    ("N13", "query_counts_every_shard_once_including_empty_ones"),
    ("N14", "nodes_leaving_one_after_another_lose_no_message"),
    ("N15", "nodes_leaving_one_after_another_lose_no_message"),
    ("N16", "an_idle_region_leaves_at_once"),
    ("N17", "two_nodes_leaving_at_once_move_only_their_own_shards"),
    ("N18", "minimum_regions_gates_only_the_first_allocation"),
    ("N19", "types_of_two_roles_run_on_members_of_their_role"),
    ("N20", "nodes_leaving_one_after_another_lose_no_message"),
    ("N21", "unregistered_region_reports_after_10_s_then_each_minute"),
    ("N22", "a_known_home_is_answered_without_a_write"),
    ("N24", "rolling_update_moves_shards_to_newest_nodes_only"),
    ("N26", "full_shutdown_stops_new_moves_and_finishes_old_ones"),
    ("N27", "every_strategy_hosts_shards_on_one_side_of_a_split"),
    ("N28", "whole_nodes_keep_one_host_and_host_all_after_faults"),
    ("U1", "from_every_state_the_newest_decision_can_be_carried_out"),
    ("U2", "known_failure_35_a_frozen_bystander_holds_up_no_move"),
    ("U3", "endless_handler_is_aborted_without_losing_later_messages"),
    ("U4", "known_failure_34_a_silent_node_of_three_stops_no_allocation"),
    ("U5", "a_frozen_former_coordinator_that_wakes_is_refused_and_silent"),
    ("U6", "shard_running_without_a_decision_is_kept_there"),
    ("U7", "known_failure_38_announcement_changes_routes_only"),
    ("U8", "a_thousand_shards_asked_for_one_by_one_take_two_writes"),
    ("U9", "message_limit_of_region_and_quarter_for_one_shard"),
    ("U10", "known_failure_43_messages_of_a_passivating_entity_move"),
    ("U11", "sizes_end_within_one_of_each_other_with_the_fewest_moves"),
    ("U12", "new_node_is_filled_while_others_are_unsettled"),
];

/// Behaviours without a test, and the reason.
const NOT_SHOWN: &[(&str, &str)] = &[
    ("E4", "a message is a value of the type: none is absent"),
    ("E16", "data centres are not in 1.0"),
    ("S1", "another structure, checked by random runs: moves_keep_order_and_one_instance"),
    ("S2", "remembered entities do not exist yet"),
    ("S3", "remembered entities do not exist yet"),
    ("S4", "remembered entities do not exist yet"),
    ("S5", "remembered entities do not exist yet"),
    ("S8", "remembered entities do not exist yet"),
    ("S11", "remembered entities do not exist yet"),
    ("S12", "no mechanism restarts a shard by itself"),
    ("S16", "no entity has a journal"),
    ("K9", "there is no journal, and remembered entities do not exist yet"),
    ("N9", "the examples of `Sharding::start` are doc tests"),
    ("N10", "data centres are not in 1.0"),
    ("N23", "docs/protocol/sharding.md#coordinator-runs-where-the-type-is-hosted excludes it"),
    ("N25", "data centres are not in 1.0"),
    ("N29", "figures come from benches, not tests"),
];

/// The checklist: a letter with its first and last number.
const BEHAVIOURS: [(char, u32, u32); 6] =
    [('E', 1, 20), ('P', 3, 7), ('S', 1, 16), ('K', 1, 10), ('N', 1, 29), ('U', 1, 12)];

/// The names of all tests of sharding.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open: Vec<_> = BELOW.iter().map(|below| root.join(below)).collect();
    let mut names = BTreeSet::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("the folder exists");
            open.extend(entries.map(|entry| entry.expect("a readable entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(tests_in(&fs::read_to_string(&path).expect("a text file")));
        }
    }
    names
}

fn tests_in(source: &str) -> Vec<String> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in source.lines().map(str::trim) {
        is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
        let rest = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
        if let (true, Some(rest)) = (is_test, rest) {
            is_test = false;
            names.extend(rest.split('(').next().map(str::to_owned));
        }
    }
    names
}

/// The numbers in a name: `known_failure_01_and_04_…`.
fn numbers(test: &str) -> Vec<u32> {
    let Some(rest) = test.strip_prefix("known_failure_") else { return Vec::new() };
    let words = rest.split('_').take_while(|word| *word == "and" || word.parse::<u32>().is_ok());
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn every_known_failure_of_sharding_has_a_numbered_test() {
    let shown: BTreeSet<u32> = tests().iter().flat_map(|name| numbers(name)).collect();
    let missing: Vec<u32> = KNOWN_FAILURES.into_iter().filter(|it| !shown.contains(it)).collect();
    assert_eq!(missing, [0; 0]);
}

#[test]
fn every_behaviour_of_sharding_has_a_test_or_a_reason() {
    let of = |(letter, first, last): (char, u32, u32)| {
        (first..=last).map(move |number| format!("{letter}{number}"))
    };
    let all: Vec<String> = BEHAVIOURS.into_iter().flat_map(of).collect();
    let named = SHOWN.iter().chain(NOT_SHOWN).map(|(number, _)| *number);
    let mut named: Vec<&str> = named.collect();
    named.sort_by_key(|number| all.iter().position(|it| it == number));
    assert_eq!(named, all, "each behaviour once");
    let tests = tests();
    let gone: Vec<_> = SHOWN.iter().filter(|(_, test)| !tests.contains(*test)).collect();
    assert!(gone.is_empty(), "no such test: {gone:?}");
}
