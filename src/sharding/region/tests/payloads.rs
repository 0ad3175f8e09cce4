//! What a move carries along (spec/reference/order.md §3 H4 to H6), each rule also left out.

use super::*;
use crate::sharding::bug::Bug;
use crate::sharding::installed::Forced;

fn bytes(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

/// The payload that region 1 starts with at `g(4)`, by this rule, and what it discards.
fn taken(
    bug: Option<Bug>,
    prepare: impl Fn(&mut Bench) -> Vec<RegionOutput>,
) -> (Option<Bytes>, Vec<Bytes>) {
    let canary = bug.map_or_else(Canary::none, Canary::with);
    let out = prepare(&mut Bench::with(RegionConfig::default(), canary));
    let discarded = out.iter().filter_map(|output| match output {
        RegionOutput::Discard { payload, .. } => Some(payload.clone()),
        _ => None,
    });
    let discarded = discarded.collect();
    let [(_, payload)] = &starts(&out)[..] else { panic!("{out:?}") };
    (payload.clone(), discarded)
}

/// A→B→A→B in short: 2 hosted last at 1, though it was named again at 3; 3 hosted at 2.
fn two_releases(bench: &mut Bench) -> Vec<RegionOutput> {
    bench.order(host(4, &[(2, 3), (3, 2)]));
    bench.hear(2, released(4, 1, Some("old")));
    bench.hear(3, released(4, 2, Some("new")))
}

#[test]
fn the_payload_of_the_latest_stay_is_taken() {
    assert_eq!(taken(None, two_releases), (bytes("new"), vec![]));
    assert_eq!(taken(Some(Bug::PayloadByListed), two_releases).0, bytes("old"));
    assert_eq!(taken(Some(Bug::PayloadOfLowest), two_releases).0, bytes("old"));
}

/// There and back: it drained, the other never hosted.
fn own(bench: &mut Bench) -> Vec<RegionOutput> {
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    bench.drained(Some("own"));
    bench.order(host(4, &[(2, 2)]));
    bench.hear(2, released(4, 0, None))
}

#[test]
fn a_regions_own_payload_is_a_candidate() {
    assert_eq!(taken(None, own), (bytes("own"), vec![]));
    assert_eq!(taken(Some(Bug::OwnPayloadLeftOut), own).0, None);
}

/// 3 took the payload of 2, handled it, and died.
fn removed(bench: &mut Bench) -> Vec<RegionOutput> {
    bench.order(host(4, &[(2, 1), (3, 3)]));
    bench.hear(2, released(4, 1, Some("handled by 3, for all we know")));
    bench.tell(RegionInput::Installed(installed(2, [1, 2, 4, 5])))
}

#[test]
fn a_stay_that_ended_by_removal_leaves_nothing_and_what_others_hold_is_counted() {
    let discarded = vec![Bytes::from_static(b"handled by 3, for all we know")];
    assert_eq!(taken(None, removed), (None, discarded));
    let weak = taken(Some(Bug::RemovedDoesNotCount), removed);
    assert_eq!(weak.0, bytes("handled by 3, for all we know"), "handled twice");
}

/// 2 drained for long; 3 was the next home meanwhile, and died before 2 had released to anybody.
fn only_named(bench: &mut Bench) -> Vec<RegionOutput> {
    bench.order(host(4, &[(2, 1), (3, 3)]));
    bench.hear(2, sealed(4, released(4, 1, Some("of 2"))));
    bench.tell(RegionInput::Installed(installed(2, [1, 2, 4, 5])))
}

/// The same, and this one was the slow one.
fn another_was_only_named(bench: &mut Bench) -> Vec<RegionOutput> {
    bench.order(host(1, &[]));
    bench.order(release(3, Some(3)));
    bench.order(host(4, &[(3, 3)]));
    bench.drained(Some("own"));
    bench.tell(RegionInput::Installed(installed(2, [1, 2, 4, 5])))
}

#[test]
fn who_was_only_named_before_a_payload_was_sealed_has_not_hosted() {
    assert_eq!(taken(None, only_named), (bytes("of 2"), vec![]));
    assert_eq!(taken(None, another_was_only_named), (bytes("own"), vec![]));
    for prepare in [only_named, another_was_only_named] {
        let (payload, discarded) = taken(Some(Bug::NamedCountsAsHosted), prepare);
        assert_eq!((payload, discarded.len()), (None, 1), "nobody has handled it");
    }
}

/// 2 says so of a decision below that of 3, which it had heard of when it sealed its payload.
#[test]
fn who_was_named_when_it_was_sealed_or_later_may_have_hosted() {
    let offered = |bench: &mut Bench| {
        bench.order(host(4, &[(2, 1), (3, 3)]));
        bench.hear(2, sealed(3, released(4, 1, Some("of 2"))));
        bench.tell(RegionInput::Installed(installed(2, [1, 2, 4, 5])))
    };
    assert_eq!(taken(None, offered), (None, vec![Bytes::from_static(b"of 2")]));
}

/// 3 may have installed a configuration without 2, and have started without its word.
#[test]
fn who_is_out_vouches_for_nobody() {
    let both_out = |bench: &mut Bench| {
        bench.order(host(4, &[(2, 1), (3, 3)]));
        bench.hear(2, sealed(4, released(4, 1, Some("of 2"))));
        bench.tell(RegionInput::Installed(installed(2, [1, 4, 5])))
    };
    let discarded = vec![Bytes::from_static(b"of 2")];
    assert_eq!(taken(None, both_out), (None, discarded));
    assert_eq!(taken(Some(Bug::RemovedVouches), both_out), (bytes("of 2"), vec![]));
}

/// Later decisions may be lost with a majority, and with them who else was named.
#[test]
fn what_was_sealed_before_a_recovery_by_force_vouches_for_nobody() {
    let forced = |bench: &mut Bench| {
        bench.order(host(4, &[(2, 1), (3, 3)]));
        bench.hear(2, sealed(4, released(4, 1, Some("of 2"))));
        let epoch = EpochId { generation: 2, number: 1 };
        let members: BTreeSet<RegionId> = [1, 2, 4, 5].into_iter().map(region).collect();
        let forced = Some(Forced { origin: epoch, kept: members.clone() });
        bench.tell(RegionInput::Installed(Installed { epoch, members, forced }))
    };
    assert_eq!(taken(None, forced), (None, vec![Bytes::from_static(b"of 2")]));
}

/// Who hosted last says so: it took what others still keep, or counted it.
#[test]
fn what_is_kept_of_a_stay_before_that_of_a_living_region_is_no_loss() {
    let stale = |bench: &mut Bench| {
        bench.order(host(1, &[]));
        bench.order(release(2, Some(2)));
        bench.drained(Some("taken by 2, whose confirmation is late"));
        bench.order(host(4, &[(2, 2)]));
        bench.hear(2, released(4, 2, None))
    };
    assert_eq!(taken(None, stale), (None, vec![]));
}

#[test]
fn what_a_region_released_before_it_was_removed_is_taken() {
    let mut bench = Bench::new();
    bench.hear(2, released(4, 3, Some("in time")));
    bench.tell(RegionInput::Installed(installed(2, [1, 3, 4, 5])));
    assert_eq!(starts(&bench.order(host(4, &[(2, 3)]))), [(g(4), bytes("in time"))]);
}

#[test]
fn a_repeated_release_brings_nothing_again_and_is_confirmed() {
    for (bug, again) in [(None, 0), (Some(Bug::PayloadTakenAgain), 1)] {
        let canary = bug.map_or_else(Canary::none, Canary::with);
        let mut bench = Bench::with(RegionConfig::default(), canary);
        bench.order(host(2, &[(2, 1)]));
        bench.hear(2, released(2, 1, Some("m")));
        let out = bench.hear(2, released(2, 1, Some("m")));
        assert_eq!(starts(&out).len(), again);
        let confirmed = says(2, ToRegion::Hosted(vec![(SHARD, g(2))]));
        assert_eq!(sent(&out).contains(&confirmed), bug.is_none());
    }
}

/// The first confirmation is lost, and the shard goes on before the payload is said again: its
/// keeper would keep it for ever, and could not leave.
#[test]
fn who_hosted_confirms_what_it_took_also_when_it_hosts_no_more() {
    let mut bench = Bench::new();
    bench.order(host(2, &[(2, 1)]));
    bench.hear(2, released(2, 1, Some("m")));
    bench.order(release(3, Some(3)));
    let confirmed = says(2, ToRegion::Hosted(vec![(SHARD, g(2))]));
    assert_eq!(sent(&bench.hear(2, released(2, 1, Some("m")))), std::slice::from_ref(&confirmed));
    bench.drained(Some("n"));
    assert_eq!(sent(&bench.hear(2, released(2, 1, Some("m")))), [confirmed]);
    assert_eq!(sent(&bench.hear(2, released(3, 1, Some("m")))), [], "it never hosted at 3");
}

#[test]
fn the_payload_is_kept_until_somebody_hosts_above_the_stay() {
    for (bug, kept) in [(None, true), (Some(Bug::KeptDroppedOnEqual), false)] {
        let canary = bug.map_or_else(Canary::none, Canary::with);
        let mut bench = Bench::with(RegionConfig::default(), canary);
        bench.order(host(1, &[]));
        bench.order(release(2, Some(2)));
        bench.drained(Some("m"));
        bench.hear(2, ToRegion::Hosted(vec![(SHARD, g(1))]));
        let shard = bench.region.shard(SHARD).unwrap();
        assert_eq!(shard.kept().is_some(), kept, "its own confirmation, late: {bug:?}");
        bench.hear(2, ToRegion::Hosted(vec![(SHARD, g(2))]));
        assert_eq!(bench.region.shard(SHARD).unwrap().kept(), None);
    }
}

#[test]
fn a_payload_that_nobody_has_confirmed_is_sent_again_unchanged() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    let word = says(2, sealed(2, released(2, 1, Some("m"))));
    assert_eq!(sent(&bench.drained(Some("m"))), std::slice::from_ref(&word));
    for pause in [200, 400, 800, 1_600, 2_000, 2_000] {
        let (waited, out) = bench.wait().unwrap();
        assert_eq!((waited, sent(&out)), (pause, vec![word.clone()]));
    }
    bench.hear(2, ToRegion::Hosted(vec![(SHARD, g(2))]));
    assert_eq!(bench.wait(), None);
}
