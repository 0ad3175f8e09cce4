//! Rules R1 to R6, one cause each.

use super::*;

#[test]
fn r1_a_host_without_earlier_hosts_starts_at_once_and_confirms() {
    let mut bench = Bench::new();
    let out = bench.order(host(1, &[]));
    assert_eq!(starts(&out), [(g(1), None)]);
    assert_eq!(sent(&out), [confirms(1)]);
    let route = ShardRoute { shard: SHARD, generation: g(1), home: Some(region(1)) };
    assert!(out.contains(&RegionOutput::Route(route)));
    assert_eq!((bench.run(), bench.max_gen()), (Run::Hosting(g(1)), g(1)));
}

#[test]
fn r1_a_repeated_host_is_confirmed_again_and_starts_nothing() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    let out = bench.order(host(1, &[]));
    assert_eq!((sent(&out), out.len()), (vec![confirms(1)], 1));
}

#[test]
fn r1_a_host_below_what_was_heard_is_ignored() {
    let mut bench = Bench::new();
    bench.order(release(2, Some(2)));
    assert_eq!(bench.order(host(1, &[])), []);
    assert_eq!((bench.run(), bench.max_gen()), (Run::Idle, g(2)));
    assert_eq!(bench.region.stats().stale, 1);
}

#[test]
fn r1_a_host_waits_for_the_configuration_that_its_coordinator_had() {
    let mut bench = Bench::new();
    let ToRegion::Host(mut words) = host(1, &[(6, 1)]) else { unreachable!() };
    words[0].epoch.number = 2;
    let early = ToRegion::Host(words);
    assert_eq!(bench.order(early.clone()), [], "region 6 is absent, and may just have joined");
    assert_eq!((bench.max_gen(), bench.region.stats().too_early), (Generation::NEVER, 1));
    bench.tell(RegionInput::Installed(installed(2, 1..=6)));
    assert_eq!(starts(&bench.order(early)), [], "6 is a member and may host");
    let out = bench.tell(RegionInput::Installed(installed(3, 1..=5)));
    assert_eq!(starts(&out), [(g(1), None)], "6 is out");
}

#[test]
fn r2_an_earlier_host_is_over_when_it_released_above_its_entry() {
    for (reached, over) in [(1, false), (2, false), (3, true), (4, true)] {
        let mut bench = Bench::new();
        assert_eq!(starts(&bench.order(host(3, &[(2, 2)]))), []);
        let out = bench.hear(2, released(reached, 2, None));
        assert_eq!(!starts(&out).is_empty(), over, "released at {reached}");
    }
}

#[test]
fn r2_all_earlier_hosts_must_be_over() {
    let mut bench = Bench::new();
    bench.order(host(3, &[(2, 1), (3, 2)]));
    assert_eq!(bench.region.awaited(SHARD), [region(2), region(3)]);
    assert_eq!(starts(&bench.hear(3, released(3, 0, None))), []);
    assert_eq!(bench.region.awaited(SHARD), [region(2)]);
    let out = bench.hear(2, released(3, 1, None));
    assert_eq!(starts(&out), [(g(3), None)]);
    let hosted = ToRegion::Hosted(vec![(SHARD, g(3))]);
    assert_eq!(sent(&out), [says(2, hosted.clone()), says(3, hosted), confirms(3)]);
}

#[test]
fn r2_a_release_that_comes_before_the_host_counts() {
    let mut bench = Bench::new();
    assert_eq!(bench.hear(2, released(3, 2, Some("m"))), []);
    let out = bench.order(host(3, &[(2, 2)]));
    assert_eq!(starts(&out), [(g(3), Some(Bytes::from_static(b"m")))]);
}

#[test]
fn r3_a_newer_decision_for_a_running_shard_is_adopted_without_a_restart() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    let out = bench.order(host(4, &[(2, 3)]));
    assert!(standings(&out)[&SHARD].pending, "what is stamped 4 is held");
    assert_eq!(bench.run(), Run::Hosting(g(1)), "it runs on");
    let out = bench.hear(2, released(4, 0, None));
    assert!(out.contains(&RegionOutput::Adopt { shard: SHARD, generation: g(4) }));
    assert_eq!((starts(&out), bench.run()), (vec![], Run::Hosting(g(4))));
}

#[test]
fn r3_a_region_that_hosts_above_an_entry_waits_for_it_no_more() {
    let mut bench = Bench::new();
    bench.order(host(3, &[]));
    let out = bench.order(host(5, &[(2, 2)]));
    assert!(out.contains(&RegionOutput::Adopt { shard: SHARD, generation: g(5) }));
}

#[test]
fn r3_while_it_drains_nothing_starts_and_afterwards_it_starts_anew() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    assert_eq!(starts(&bench.order(host(3, &[]))), []);
    assert_eq!(bench.run(), Run::Draining(g(1)));
    let out = bench.drained(Some("own"));
    assert_eq!(starts(&out), [(g(3), Some(Bytes::from_static(b"own")))]);
    assert_eq!(sent(&out), [confirms(3)], "and releases nothing");
}

#[test]
fn r4_a_hosting_region_drains_and_says_nothing_before_its_last_entity_ended() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    let out = bench.order(release(2, Some(2)));
    assert!(out.contains(&RegionOutput::Drain { shard: SHARD, to: Some(region(2)) }));
    assert_eq!((sent(&out), bench.run()), (vec![], Run::Draining(g(1))));
    assert_eq!(sent(&bench.order(release(2, Some(2)))), [], "asked again");
    let out = bench.drained(None);
    assert_eq!(sent(&out), [says(2, sealed(2, released(2, 1, None)))]);
    assert_eq!(bench.run(), Run::Idle);
}

#[test]
fn r4_a_region_that_never_hosted_answers_at_once_and_every_time() {
    let mut bench = Bench::new();
    for _ in 0..2 {
        let out = bench.order(release(2, Some(3)));
        assert_eq!(sent(&out), [says(3, released(2, 0, None))]);
    }
    assert_eq!(bench.max_gen(), g(2));
}

#[test]
fn r4_a_late_release_stops_nothing() {
    let mut bench = Bench::new();
    bench.order(host(3, &[]));
    assert_eq!(bench.order(release(2, Some(2))), []);
    assert_eq!((bench.run(), bench.max_gen()), (Run::Hosting(g(3)), g(3)));
}

#[test]
fn r4_a_release_ends_a_start_that_waits() {
    let mut bench = Bench::new();
    bench.order(host(2, &[(2, 1)]));
    let out = bench.order(release(3, Some(4)));
    assert_eq!(sent(&out), [says(4, released(3, 0, None))]);
    assert!(!standings(&out)[&SHARD].pending);
    assert_eq!(starts(&bench.hear(2, released(3, 1, None))), [], "too late");
}

#[test]
fn r4_a_newer_release_while_it_drains_changes_only_where_it_goes() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    assert_eq!(sent(&bench.order(release(3, Some(4)))), []);
    assert_eq!(sent(&bench.drained(None)), [says(4, sealed(3, released(3, 1, None)))]);
}

#[test]
fn r4_without_a_home_the_coordinator_hears_that_it_is_drained() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, None));
    let drained = ToCoordinator::Drained(vec![(SHARD, g(2))]);
    let drained = (COORDINATOR.get(), ShardingMessage::Coordinator(drained));
    assert_eq!(sent(&bench.drained(Some("kept"))), [drained]);
    let out = bench.order(release(3, Some(2)));
    let word = sealed(2, released(3, 1, Some("kept")));
    assert_eq!(sent(&out), [says(2, word)], "the next home gets it");
}

#[test]
fn r6_a_region_that_is_out_stops_everything_and_never_hosts_again() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    let out = bench.tell(RegionInput::Over);
    assert_eq!(out, [RegionOutput::StopAll]);
    assert_eq!(bench.order(host(2, &[])), []);
    assert_eq!(bench.order(release(3, Some(2))), [], "its word counts for nothing");
    assert_eq!((bench.run(), bench.region.next_deadline()), (Run::Idle, None));
}

#[test]
fn r6_what_is_carried_and_not_taken_when_a_region_is_out_is_counted_as_lost() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    bench.drained(Some("m"));
    let (from, payload) = (region(1), Bytes::from_static(b"m"));
    let lost = RegionOutput::Discard { reach: Reach::Sent, shard: SHARD, from, payload };
    assert_eq!(bench.tell(RegionInput::Over), [lost, RegionOutput::StopAll]);
    assert_eq!(bench.region.stats().discarded, 1);
}

#[test]
fn known_failure_38_an_announcement_changes_routes_only() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    let route = ShardRoute { shard: SHARD, generation: g(5), home: Some(region(2)) };
    let out = bench.order(ToRegion::Announce([route].into_iter().collect()));
    assert_eq!(out, [RegionOutput::Route(route)]);
    assert_eq!((bench.run(), bench.max_gen()), (Run::Hosting(g(1)), g(1)));
}

#[test]
fn words_about_shards_that_there_cannot_be_are_counted_and_dropped() {
    let config = RegionConfig { shards: 7, ..RegionConfig::default() };
    let mut bench = Bench::with(config, Canary::none());
    for word in [host(1, &[]), release(1, Some(2)), released(1, 0, None)] {
        assert_eq!(bench.order(word), []);
    }
    assert_eq!((bench.region.stats().strange, bench.region.shard(SHARD)), (3, None));
}

#[test]
fn a_proxy_hosts_nothing() {
    let config = RegionConfig { proxy: true, ..RegionConfig::default() };
    let mut bench = Bench::with(config, Canary::none());
    assert_eq!(bench.order(host(1, &[])), []);
}

#[test]
fn known_failure_02_a_drain_is_told_to_the_coordinator_that_asks_for_it_now() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, None));
    assert_eq!(sent(&bench.hear(8, release(2, None))), [], "another one acts; it drains still");
    let told = |to: u64| {
        let drained = ToCoordinator::Drained(vec![(SHARD, g(2))]);
        vec![(to, ShardingMessage::Coordinator(drained))]
    };
    bench.drained(None);
    assert_eq!(sent(&bench.hear(8, release(2, None))), told(8));
}

#[test]
fn known_failure_03_who_dies_before_it_has_released_is_waited_for_no_more() {
    let mut bench = Bench::new();
    assert_eq!(starts(&bench.order(host(3, &[(2, 1), (3, 2)]))), []);
    let out = bench.tell(RegionInput::Installed(installed(2, [1, 3, 4, 5])));
    assert_eq!(starts(&out), [], "region 3 may still host");
    let out = bench.hear(3, released(3, 2, Some("m")));
    assert_eq!(starts(&out), [(g(3), Some(Bytes::from_static(b"m")))]);
}

/// Generations of the cluster that were told.
fn raised(outputs: &[RegionOutput]) -> Vec<u64> {
    let raised = outputs.iter().filter_map(|output| match output {
        RegionOutput::ClusterGeneration(generation) => Some(*generation),
        _ => None,
    });
    raised.collect()
}

fn of_generation(generation: u64, members: impl IntoIterator<Item = u64>) -> RegionInput {
    let mut forced = installed(1, members);
    forced.epoch.generation = generation;
    RegionInput::Installed(forced)
}

#[test]
fn the_generation_of_the_cluster_rises_with_what_is_installed_and_is_said_with_each_release() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    assert_eq!(raised(&bench.tell(of_generation(3, 1..=5))), [3]);
    assert_eq!(raised(&bench.tell(of_generation(2, 1..=5))), [0; 0], "older");
    assert_eq!(raised(&bench.tell(RegionInput::Installed(installed(9, 1..=5)))), [0; 0], "older");
    bench.order(release(2, Some(2)));
    let said = sent(&bench.drained(None));
    let [(2, ShardingMessage::Region(ToRegion::Released(words)))] = &said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(words[0].cluster, 3);
}

#[test]
fn a_release_of_who_is_ahead_counts_once_this_node_is_as_far_and_raises_nothing_by_itself() {
    let word = |cluster| {
        let ToRegion::Released(mut words) = released(3, 2, None) else { unreachable!() };
        words[0].cluster = cluster;
        ToRegion::Released(words)
    };
    let starts = |out: &[RegionOutput]| {
        let place = |wanted: &dyn Fn(&RegionOutput) -> bool| out.iter().position(wanted);
        place(&|output| matches!(output, RegionOutput::Start { .. }))
    };
    let mut bench = Bench::new();
    bench.order(host(3, &[(2, 2)]));
    for hostile in [4, u64::MAX] {
        let out = bench.hear(2, word(hostile));
        assert_eq!((raised(&out), starts(&out)), (vec![], None));
    }
    assert_eq!(bench.region.stats().too_early, 2);
    assert_eq!(raised(&bench.tell(of_generation(4, 1..=5))), [4]);
    let out = bench.hear(2, word(4));
    assert!(starts(&out).is_some() && raised(&out).is_empty(), "it is said again: {out:?}");
}
