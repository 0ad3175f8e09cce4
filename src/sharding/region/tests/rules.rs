//! Rules of the region (docs/protocol/sharding.md#rules-of-the-region), one cause per test.

use super::*;

#[test]
fn host_without_predecessors_starts_and_confirms() {
    let mut bench = Bench::new();
    let out = bench.order(host(1, &[]));
    assert_eq!(starts(&out), [(g(1), None)]);
    assert_eq!(sent(&out), [confirms(1)]);
    let route = ShardRoute { shard: SHARD, generation: g(1), home: Some(region(1)) };
    assert!(out.contains(&RegionOutput::Route(route)));
    assert_eq!((bench.run(), bench.max_gen()), (HostingPhase::Hosting(g(1)), g(1)));
}

#[test]
fn repeated_host_is_confirmed_and_starts_nothing() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    let out = bench.order(host(1, &[]));
    assert_eq!((sent(&out), out.len()), (vec![confirms(1)], 1));
}

#[test]
fn host_below_max_gen_is_ignored() {
    let mut bench = Bench::new();
    bench.order(release(2, Some(2)));
    assert_eq!(bench.order(host(1, &[])), []);
    assert_eq!((bench.run(), bench.max_gen()), (HostingPhase::Idle, g(2)));
    assert_eq!(bench.region.stats().stale, 1);
}

#[test]
fn host_is_ignored_before_its_epoch_is_installed() {
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
fn predecessor_is_over_when_released_above_its_entry() {
    for (reached, over) in [(1, false), (2, false), (3, true), (4, true)] {
        let mut bench = Bench::new();
        assert_eq!(starts(&bench.order(host(3, &[(2, 2)]))), []);
        let out = bench.hear(2, released(reached, 2, None));
        assert_eq!(!starts(&out).is_empty(), over, "released at {reached}");
    }
}

#[test]
fn start_waits_for_all_predecessors() {
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
fn release_before_host_counts() {
    let mut bench = Bench::new();
    assert_eq!(bench.hear(2, released(3, 2, Some("m"))), []);
    let out = bench.order(host(3, &[(2, 2)]));
    assert_eq!(starts(&out), [(g(3), Some(Bytes::from_static(b"m")))]);
}

#[test]
fn newer_decision_is_adopted_without_restart() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    let out = bench.order(host(4, &[(2, 3)]));
    assert!(standings(&out)[&SHARD].pending, "what is stamped 4 is held");
    assert_eq!(bench.run(), HostingPhase::Hosting(g(1)), "it runs on");
    let out = bench.hear(2, released(4, 0, None));
    assert!(out.contains(&RegionOutput::Adopt { shard: SHARD, generation: g(4) }));
    assert_eq!((starts(&out), bench.run()), (vec![], HostingPhase::Hosting(g(4))));
}

#[test]
fn predecessor_below_own_tenure_is_over() {
    let mut bench = Bench::new();
    bench.order(host(3, &[]));
    let out = bench.order(host(5, &[(2, 2)]));
    assert!(out.contains(&RegionOutput::Adopt { shard: SHARD, generation: g(5) }));
}

#[test]
fn start_waits_for_end_of_own_drain() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    assert_eq!(starts(&bench.order(host(3, &[]))), []);
    assert_eq!(bench.run(), HostingPhase::Draining(g(1)));
    let out = bench.drained(Some("own"));
    assert_eq!(starts(&out), [(g(3), Some(Bytes::from_static(b"own")))]);
    assert_eq!(sent(&out), [confirms(3)], "no release is sent");
}

#[test]
fn release_is_answered_after_last_entity_ended() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    let out = bench.order(release(2, Some(2)));
    assert!(out.contains(&RegionOutput::Drain { shard: SHARD, to: Some(region(2)) }));
    assert_eq!((sent(&out), bench.run()), (vec![], HostingPhase::Draining(g(1))));
    assert_eq!(sent(&bench.order(release(2, Some(2)))), [], "asked again");
    let out = bench.drained(None);
    assert_eq!(sent(&out), [says(2, sealed(2, released(2, 1, None)))]);
    assert_eq!(bench.run(), HostingPhase::Idle);
}

#[test]
fn idle_region_answers_every_release() {
    let mut bench = Bench::new();
    for _ in 0..2 {
        let out = bench.order(release(2, Some(3)));
        assert_eq!(sent(&out), [says(3, released(2, 0, None))]);
    }
    assert_eq!(bench.max_gen(), g(2));
}

#[test]
fn late_release_stops_nothing() {
    let mut bench = Bench::new();
    bench.order(host(3, &[]));
    assert_eq!(bench.order(release(2, Some(2))), []);
    assert_eq!((bench.run(), bench.max_gen()), (HostingPhase::Hosting(g(3)), g(3)));
}

#[test]
fn release_cancels_pending_start() {
    let mut bench = Bench::new();
    bench.order(host(2, &[(2, 1)]));
    let out = bench.order(release(3, Some(4)));
    assert_eq!(sent(&out), [says(4, released(3, 0, None))]);
    assert!(!standings(&out)[&SHARD].pending);
    assert_eq!(starts(&bench.hear(2, released(3, 1, None))), [], "too late");
}

#[test]
fn newer_release_redirects_running_drain() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    assert_eq!(sent(&bench.order(release(3, Some(4)))), []);
    assert_eq!(sent(&bench.drained(None)), [says(4, sealed(3, released(3, 1, None)))]);
}

#[test]
fn drain_without_home_is_reported_to_coordinator() {
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
fn removed_region_stops_everything_for_good() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    let out = bench.tell(RegionInput::Over);
    assert_eq!(out, [RegionOutput::StopAll]);
    assert_eq!(bench.order(host(2, &[])), []);
    assert_eq!(bench.order(release(3, Some(2))), [], "it sends nothing");
    assert_eq!((bench.run(), bench.region.next_deadline()), (HostingPhase::Idle, None));
}

#[test]
fn removed_region_counts_its_payloads_as_lost() {
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
fn known_failure_38_announcement_changes_routes_only() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    let route = ShardRoute { shard: SHARD, generation: g(5), home: Some(region(2)) };
    let out = bench.order(ToRegion::Announce([route].into_iter().collect()));
    assert_eq!(out, [RegionOutput::Route(route)]);
    assert_eq!((bench.run(), bench.max_gen()), (HostingPhase::Hosting(g(1)), g(1)));
}

#[test]
fn messages_about_unknown_shards_are_dropped() {
    let config = RegionConfig { shards: 7, ..RegionConfig::default() };
    let mut bench = Bench::with(config, ShardingFaultInjection::none());
    for word in [host(1, &[]), release(1, Some(2)), released(1, 0, None)] {
        assert_eq!(bench.order(word), []);
    }
    assert_eq!((bench.region.stats().strange, bench.region.shard(SHARD)), (3, None));
}

#[test]
fn a_proxy_hosts_nothing() {
    let config = RegionConfig { proxy: true, ..RegionConfig::default() };
    let mut bench = Bench::with(config, ShardingFaultInjection::none());
    assert_eq!(bench.order(host(1, &[])), []);
}

#[test]
fn known_failure_02_drain_is_reported_to_present_coordinator() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, None));
    assert_eq!(
        sent(&bench.hear(8, release(2, None))),
        [],
        "a new coordinator asks; still draining"
    );
    let told = |to: u64| {
        let drained = ToCoordinator::Drained(vec![(SHARD, g(2))]);
        vec![(to, ShardingMessage::Coordinator(drained))]
    };
    bench.drained(None);
    assert_eq!(sent(&bench.hear(8, release(2, None))), told(8));
}

#[test]
fn known_failure_03_removed_predecessor_is_not_awaited() {
    let mut bench = Bench::new();
    assert_eq!(starts(&bench.order(host(3, &[(2, 1), (3, 2)]))), []);
    let out = bench.tell(RegionInput::Installed(installed(2, [1, 3, 4, 5])));
    assert_eq!(starts(&out), [], "region 3 may still host");
    let out = bench.hear(3, released(3, 2, Some("m")));
    assert_eq!(starts(&out), [(g(3), Some(Bytes::from_static(b"m")))]);
}

/// Cluster generations among the outputs.
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
fn releases_carry_the_highest_cluster_generation() {
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
fn release_of_newer_cluster_generation_waits_for_install() {
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
    assert!(starts(&out).is_some() && raised(&out).is_empty(), "the repetition counts: {out:?}");
}
