//! Shutdown of a region: its conditions and the messages that it sends.

use super::life::{ack, asks, found};
use super::*;

fn may_leave(number: u64) -> ToRegion {
    ToRegion::MayLeave(Term { number, owner: COORDINATOR })
}

fn leaving() -> (u64, ShardingMessage) {
    (COORDINATOR.get(), ShardingMessage::Coordinator(ToCoordinator::Leaving))
}

/// A registered region that is told to leave, with other regions that could take its payloads.
fn leaves() -> Bench {
    let mut bench = Bench::new();
    found(&mut bench);
    bench.order(ack(1));
    bench.tell(RegionInput::Heirs { any: true });
    let out = bench.tell(RegionInput::Leave);
    assert_eq!(out, [RegionOutput::Send { to: COORDINATOR, message: leaving().1 }]);
    bench
}

#[test]
fn leaves_once_shards_and_payloads_are_elsewhere() {
    let mut bench = Bench::new();
    found(&mut bench);
    bench.order(ack(1));
    bench.order(host(1, &[]));
    assert_eq!(sent(&bench.tell(RegionInput::Leave)), [leaving()]);
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, sent(&out)), (2_000, vec![leaving()]));
    bench.order(release(2, Some(2)));
    assert!(!bench.drained(Some("m")).contains(&RegionOutput::Left), "a payload is kept");
    let out = bench.hear(2, ToRegion::Hosted(vec![(SHARD, g(2))]));
    // Regions that have not found the next coordinator learn of the move before this one exits.
    let home = ShardRoute { shard: SHARD, generation: g(2), home: Some(region(2)) };
    let told = |to| says(to, ToRegion::Announce([home].into_iter().collect()));
    assert_eq!(sent(&out), [2, 3, 4, 5].map(told));
    assert_eq!(out.last(), Some(&RegionOutput::Left));
}

#[test]
fn payload_without_next_home_is_discarded_once() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, None));
    bench.drained(Some("m"));
    assert_eq!(bench.tell(RegionInput::Leave), [RegionOutput::Left]);
    let (reach, from, payload) = (Reach::Unsent, region(1), Bytes::from_static(b"m"));
    let lost = RegionOutput::Discard { reach, shard: SHARD, from, payload };
    assert_eq!(bench.tell(RegionInput::Forsaken), [lost], "discarded once, and nothing else");
    assert_eq!(bench.tell(RegionInput::Forsaken), []);
    assert_eq!(sent(&bench.order(release(2, None))).len(), 1, "it still answers `Release`");
}

#[test]
fn payload_sealed_before_the_stop_is_discarded() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    assert_eq!(bench.tell(RegionInput::Over), [RegionOutput::StopAll]);
    let (reach, from, payload) = (Reach::Unsent, region(1), Bytes::from_static(b"m"));
    let lost = RegionOutput::Discard { reach, shard: SHARD, from, payload };
    assert_eq!(bench.drained(Some("m")), [lost]);
    assert_eq!(bench.drained(None), []);
}

#[test]
fn payload_without_home_delays_leave_while_heirs_exist() {
    let stopped = || {
        let mut bench = Bench::new();
        found(&mut bench);
        bench.order(ack(1));
        bench.order(host(1, &[]));
        bench.order(release(2, None));
        bench.tell(RegionInput::Heirs { any: true });
        bench
    };
    let mut bench = stopped();
    assert_eq!(sent(&bench.tell(RegionInput::Leave)), [leaving()]);
    let drained = sent(&bench.drained(Some("m")));
    assert!(drained.contains(&asks(&[7])), "at once: {drained:?}");
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, sent(&out)), (2_000, vec![leaving(), asks(&[7])]));
    let word = sealed(2, released(3, 1, Some("m")));
    assert_eq!(sent(&bench.order(release(3, Some(2)))), [says(2, word)]);
    bench.order(may_leave(1));
    let out = bench.hear(2, ToRegion::Hosted(vec![(SHARD, g(3))]));
    assert_eq!(out.last(), Some(&RegionOutput::Left));

    let mut bench = stopped();
    bench.drained(Some("m"));
    assert!(!bench.tell(RegionInput::Leave).contains(&RegionOutput::Left));
    let out = bench.tell(RegionInput::Heirs { any: false });
    assert!(out.contains(&RegionOutput::Left), "no other region is left: {out:?}");

    let mut bench = stopped();
    bench.drained(None);
    bench.tell(RegionInput::Leave);
    assert!(bench.order(may_leave(1)).contains(&RegionOutput::Left), "nothing is kept");
}

/// A region that exits unheard counts as a possible host, and what an earlier home keeps as taken.
#[test]
fn region_named_in_vain_leaves_once_later_home_confirms() {
    let named = || {
        let mut bench = Bench::new();
        found(&mut bench);
        bench.order(ack(1));
        bench.order(host(2, &[(2, 1)]));
        bench.tell(RegionInput::Heirs { any: true });
        let out = bench.tell(RegionInput::Leave);
        assert!(!out.contains(&RegionOutput::Left), "a decision is pending: {out:?}");
        bench.order(may_leave(1)); // not enough alone
        let out = bench.order(release_named(3, Some(3), 2));
        assert!(sent(&out).contains(&says(3, released(3, 0, None))), "{out:?}");
        assert!(!out.contains(&RegionOutput::Left), "{out:?}");
        bench
    };
    let has_left = |out: &[RegionOutput]| out.contains(&RegionOutput::Left);
    let mut bench = named();
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, sent(&out)), (200, vec![says(3, released(3, 0, None))]), "again");
    let at = |seq| ToRegion::Hosted(vec![(SHARD, g(seq))]);
    assert!(!has_left(&bench.hear(2, at(2))), "not above the decision that named it");
    assert!(has_left(&bench.hear(3, at(3))));

    let mut bench = named();
    bench.order(release_named(4, Some(4), 2));
    assert!(has_left(&bench.hear(3, at(3))), "even if the shard moves on meanwhile");

    let mut bench = named();
    let out = bench.tell(RegionInput::Installed(installed(2, [1, 2, 4])));
    assert!(!has_left(&out), "the shard needs another home: {out:?}");
    let out = bench.order(release_named(4, None, 2));
    assert!(!has_left(&out), "a later home may still take a payload: {out:?}");
    let mut waits = std::iter::repeat_with(|| bench.wait().unwrap().1);
    assert!(waits.by_ref().take(10).any(|out| sent(&out).contains(&asks(&[7]))));
    let out = bench.tell(RegionInput::Heirs { any: false });
    assert!(has_left(&out), "no region could take a payload: {out:?}");

    let mut bench = Bench::new();
    bench.tell(RegionInput::Heirs { any: true });
    bench.order(host(2, &[(2, 1)]));
    bench.order(release_named(3, Some(3), 2));
    bench.hear(3, at(3));
    bench.order(release_named(4, Some(4), 2)); // the coordinator did not know of the confirmation
    let out = bench.tell(RegionInput::Leave);
    assert!(has_left(&out), "the confirmation came already: {out:?}");

    let mut bench = Bench::new();
    bench.tell(RegionInput::Heirs { any: true });
    bench.order(host(1, &[]));
    bench.order(release_named(2, Some(2), 1));
    bench.tell(RegionInput::Leave);
    assert!(has_left(&bench.drained(None)), "it hosted, so it was not named in vain");
}

#[test]
fn leaving_without_coordinator_waits_between_retries() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    assert_eq!(bench.tell(RegionInput::Leave), []);
    for _ in 0..3 {
        assert_eq!(bench.wait(), Some((2_000, vec![])));
    }
}

#[test]
fn an_idle_region_leaves_at_once() {
    let mut bench = Bench::new();
    assert_eq!(bench.tell(RegionInput::Leave), [RegionOutput::Left]);
    assert_eq!(bench.wait(), None);
}

#[test]
fn idle_leaving_region_announces_it_and_takes_no_shard() {
    let mut bench = Bench::new();
    found(&mut bench);
    bench.order(ack(1));
    let out = bench.tell(RegionInput::Leave);
    assert!(out.contains(&RegionOutput::Left));
    assert_eq!(sent(&out), [leaving()]);
    let out = bench.order(host(1, &[]));
    assert_eq!((sent(&out), bench.run()), (vec![leaving()], HostingPhase::Idle), "{out:?}");
    let out = bench.order(release(2, Some(2)));
    assert_eq!(sent(&out), [says(2, released(2, 0, None))], "the next home waits for this release");
}

/// A decision that names it may be under way. If the region exited unheard, it would count as a
/// host.
#[test]
fn idle_region_leaves_only_with_its_coordinators_permission() {
    let has_left = |out: &[RegionOutput]| out.contains(&RegionOutput::Left);
    let mut bench = leaves();
    assert_eq!(bench.order(may_leave(2)), [], "a term that has not registered it");
    assert_eq!(bench.hear(4, may_leave(1)), [], "not its coordinator");
    assert!(has_left(&bench.order(may_leave(1))));
    assert_eq!(bench.order(may_leave(1)), [], "once");

    let mut bench = leaves();
    bench.tell(RegionInput::CoordinatorAt(Some(ReplicaId::new(4))));
    assert_eq!(bench.order(may_leave(1)), [], "no longer its coordinator");
    let registered = ToRegion::RegisterAck {
        term: Term { number: 2, owner: ReplicaId::new(4) },
        homes: RouteTable::default(),
    };
    let out = bench.hear(4, registered);
    assert!(sent(&out).contains(&(4, leaving().1)), "the next coordinator is told too: {out:?}");
    let word = ToRegion::MayLeave(Term { number: 2, owner: ReplicaId::new(4) });
    assert!(has_left(&bench.hear(4, word)));

    let mut bench = leaves();
    bench.order(host(2, &[(2, 1)]));
    assert_eq!(bench.order(may_leave(1)), [], "an earlier decision is pending");
    let out = bench.order(release_named(3, Some(3), 2));
    assert!(!has_left(&out), "the new home has not confirmed yet: {out:?}");
    assert!(has_left(&bench.hear(3, ToRegion::Hosted(vec![(SHARD, g(3))]))));

    let mut bench = leaves();
    bench.tell(RegionInput::Heirs { any: false });
    assert!(bench.region.has_left(), "no region could take a payload");
}

/// The permission came from a coordinator that did not know of the second `Host`.
#[test]
fn host_after_permission_withdraws_it() {
    let mut bench = leaves();
    bench.order(host(1, &[]));
    bench.order(may_leave(1)); // premature, by a fault
    bench.order(host(2, &[]));
    bench.order(release(3, None));
    assert!(!bench.drained(None).contains(&RegionOutput::Left));
    assert!(bench.order(may_leave(1)).contains(&RegionOutput::Left));
}

/// A coordinator that has not heard `Leaving` would otherwise give it shards.
#[test]
fn leaving_region_registers_as_proxy() {
    let mut bench = leaves();
    let out = bench.order(ToRegion::Here(Term { number: 2, owner: COORDINATOR }));
    let registers = |(_, word): &(u64, ShardingMessage)| {
        matches!(word, ShardingMessage::Coordinator(ToCoordinator::Register { proxy: true, .. }))
    };
    assert!(sent(&out).iter().any(registers), "{out:?}");
}

/// A coordinator of a release without `MayLeave`, or no coordinator at all.
#[test]
fn region_leaves_without_permission_after_timeout() {
    let goes_after = |bench: &mut Bench| {
        let begun = bench.now.mono;
        while !bench.wait().expect("the region leaves").1.contains(&RegionOutput::Left) {}
        (bench.now.mono - begun).as_millis()
    };
    assert_eq!(goes_after(&mut leaves()), 5_000);

    let mut bench = leaves();
    (0..2).for_each(|_| drop(bench.wait()));
    bench.tell(RegionInput::CoordinatorAt(None));
    assert_eq!(goes_after(&mut bench), 6_000, "10 s without a coordinator");

    let mut bench = leaves();
    (0..2).for_each(|_| drop(bench.wait()));
    bench.tell(RegionInput::CoordinatorAt(None));
    found(&mut bench);
    bench.order(ack(2));
    assert_eq!(goes_after(&mut bench), 5_000, "a new coordinator has the full time");

    let mut bench = leaves();
    bench.order(host(2, &[]));
    (0..3).for_each(|_| drop(bench.wait()));
    bench.order(release_named(3, None, 2));
    bench.drained(None);
    assert_eq!(goes_after(&mut bench), 5_000, "counted from when only the permission is missing");
}

#[test]
fn unregistered_or_proxy_region_leaves_at_once() {
    let mut bench = Bench::new();
    bench.tell(RegionInput::Heirs { any: true });
    assert_eq!(bench.tell(RegionInput::Leave), [RegionOutput::Left], "no coordinator was asked");
    let mut bench = Bench::new();
    found(&mut bench);
    bench.tell(RegionInput::Heirs { any: true });
    bench.order(ToRegion::NotYet(RegistrationRefusal::Differs(AgreedSettings::default())));
    let out = bench.tell(RegionInput::Leave);
    assert!(out.contains(&RegionOutput::Left), "the coordinator refused it");
    let config = RegionConfig { proxy: true, ..RegionConfig::default() };
    let mut bench = Bench::with(config, ShardingFaultInjection::none());
    found(&mut bench);
    bench.order(ack(1));
    bench.tell(RegionInput::Heirs { any: true });
    assert!(bench.tell(RegionInput::Leave).contains(&RegionOutput::Left), "a proxy gets no shard");
}

/// The home may have hosted and crashed before it confirmed.
#[test]
fn leaving_region_asks_home_for_payload_of_removed_home() {
    let mut bench = leaves();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    bench.drained(Some("m"));
    let out = bench.tell(RegionInput::Installed(installed(2, [1, 3, 4])));
    assert_eq!(sent(&out), [leaving(), asks(&[7])]);
    bench.order(may_leave(1));
    let out = bench.order(ToRegion::Hosted(vec![(SHARD, g(2))]));
    assert_eq!(out.last(), Some(&RegionOutput::Left));
}

/// The home crashed before it took the payload, and there is no other node.
#[test]
fn last_node_leaves_with_payload_of_removed_home() {
    let mut bench = leaves();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    bench.drained(Some("m"));
    bench.tell(RegionInput::Installed(installed(2, [1])));
    assert!(!bench.region.has_left(), "a region may join");
    let out = bench.tell(RegionInput::Heirs { any: false });
    assert!(out.contains(&RegionOutput::Left), "{out:?}");
}
