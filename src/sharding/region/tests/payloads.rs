//! What a move carries along (spec/reference/order.md §3 H4 to H6), each rule also left out.

use super::*;
use crate::sharding::bug::Bug;

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
    let word = says(2, released(2, 1, Some("m")));
    assert_eq!(sent(&bench.drained(Some("m"))), std::slice::from_ref(&word));
    for pause in [200, 400, 800, 1_600, 2_000, 2_000] {
        let (waited, out) = bench.wait().unwrap();
        assert_eq!((waited, sent(&out)), (pause, vec![word.clone()]));
    }
    bench.hear(2, ToRegion::Hosted(vec![(SHARD, g(2))]));
    assert_eq!(bench.wait(), None);
}
