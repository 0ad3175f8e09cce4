//! Choice of the payload that a start takes. Each rule is also tested with a planted fault that
//! disables it.

use super::*;
use crate::sharding::fault_injection::ShardingFault;
use crate::sharding::installed::ForcedGeneration;

fn bytes(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

/// The payload that region 1 starts with at `g(4)` under a fault, and the discarded payloads.
fn taken(
    bug: Option<ShardingFault>,
    prepare: impl Fn(&mut Bench) -> Vec<RegionOutput>,
) -> (Option<Bytes>, Vec<Bytes>) {
    let fault_injection =
        bug.map_or_else(ShardingFaultInjection::none, ShardingFaultInjection::with);
    let out = prepare(&mut Bench::with(RegionConfig::default(), fault_injection));
    let discarded = out.iter().filter_map(|output| match output {
        RegionOutput::Discard { payload, .. } => Some(payload.clone()),
        _ => None,
    });
    let discarded = discarded.collect();
    let [(_, payload)] = &starts(&out)[..] else { panic!("{out:?}") };
    (payload.clone(), discarded)
}

/// A→B→A→B: region 2 hosted last at 1, although it was named again at 3; region 3 hosted at 2.
fn two_releases(bench: &mut Bench) -> Vec<RegionOutput> {
    bench.order(host(4, &[(2, 3), (3, 2)]));
    bench.hear(2, released(4, 1, Some("old")));
    bench.hear(3, released(4, 2, Some("new")))
}

#[test]
fn payload_of_latest_tenure_is_taken() {
    assert_eq!(taken(None, two_releases), (bytes("new"), vec![]));
    assert_eq!(taken(Some(ShardingFault::PayloadByListed), two_releases).0, bytes("old"));
    assert_eq!(taken(Some(ShardingFault::PayloadOfLowest), two_releases).0, bytes("old"));
}

/// The shard drained for region 2, which never hosted, and comes back.
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
    assert_eq!(taken(Some(ShardingFault::OwnPayloadLeftOut), own).0, None);
}

/// Region 3 took the payload of region 2, handled it and crashed.
fn removed(bench: &mut Bench) -> Vec<RegionOutput> {
    bench.order(host(4, &[(2, 1), (3, 3)]));
    bench.hear(2, released(4, 1, Some("handled by 3, for all we know")));
    bench.tell(RegionInput::Installed(installed(2, [1, 2, 4, 5])))
}

#[test]
fn tenure_ended_by_removal_discards_earlier_payloads() {
    let discarded = vec![Bytes::from_static(b"handled by 3, for all we know")];
    assert_eq!(taken(None, removed), (None, discarded));
    let weak = taken(Some(ShardingFault::RemovedDoesNotCount), removed);
    assert_eq!(weak.0, bytes("handled by 3, for all we know"), "handled twice");
}

/// While region 2 drained, region 3 was named as the next home and crashed before any release.
fn only_named(bench: &mut Bench) -> Vec<RegionOutput> {
    bench.order(host(4, &[(2, 1), (3, 3)]));
    bench.hear(2, sealed(4, released(4, 1, Some("of 2"))));
    bench.tell(RegionInput::Installed(installed(2, [1, 2, 4, 5])))
}

/// The same with region 1 as the draining region.
fn another_was_only_named(bench: &mut Bench) -> Vec<RegionOutput> {
    bench.order(host(1, &[]));
    bench.order(release(3, Some(3)));
    bench.order(host(4, &[(3, 3)]));
    bench.drained(Some("own"));
    bench.tell(RegionInput::Installed(installed(2, [1, 2, 4, 5])))
}

#[test]
fn region_named_before_seal_has_not_hosted() {
    assert_eq!(taken(None, only_named), (bytes("of 2"), vec![]));
    assert_eq!(taken(None, another_was_only_named), (bytes("own"), vec![]));
    for prepare in [only_named, another_was_only_named] {
        let (payload, discarded) = taken(Some(ShardingFault::NamedCountsAsHosted), prepare);
        assert_eq!((payload, discarded.len()), (None, 1), "lost though nobody handled it");
    }
}

/// Region 2 sealed its payload under a decision that is not above the one that named region 3.
#[test]
fn region_named_at_or_after_seal_may_have_hosted() {
    let offered = |bench: &mut Bench| {
        bench.order(host(4, &[(2, 1), (3, 3)]));
        bench.hear(2, sealed(3, released(4, 1, Some("of 2"))));
        bench.tell(RegionInput::Installed(installed(2, [1, 2, 4, 5])))
    };
    assert_eq!(taken(None, offered), (None, vec![Bytes::from_static(b"of 2")]));
}

/// Region 3 may have installed a configuration without 2 and started without its release.
#[test]
fn removed_region_vouches_for_nobody() {
    let both_out = |bench: &mut Bench| {
        bench.order(host(4, &[(2, 1), (3, 3)]));
        bench.hear(2, sealed(4, released(4, 1, Some("of 2"))));
        bench.tell(RegionInput::Installed(installed(2, [1, 4, 5])))
    };
    let discarded = vec![Bytes::from_static(b"of 2")];
    assert_eq!(taken(None, both_out), (None, discarded));
    assert_eq!(taken(Some(ShardingFault::RemovedVouches), both_out), (bytes("of 2"), vec![]));
}

/// Later decisions may be lost with the majority, and with them the regions that they named.
#[test]
fn seal_before_forced_configuration_vouches_for_nobody() {
    let forced = |bench: &mut Bench| {
        bench.order(host(4, &[(2, 1), (3, 3)]));
        bench.hear(2, sealed(4, released(4, 1, Some("of 2"))));
        let epoch = EpochId { generation: 2, number: 1 };
        let members: BTreeSet<RegionId> = [1, 2, 4, 5].into_iter().map(region).collect();
        let forced = Some(ForcedGeneration { origin: epoch, kept: members.clone() });
        bench.tell(RegionInput::Installed(Installed { epoch, members, forced }))
    };
    assert_eq!(taken(None, forced), (None, vec![Bytes::from_static(b"of 2")]));
}

/// Region 2 hosted last and released: it had taken the payload or counted it.
#[test]
fn payload_older_than_released_tenure_is_no_loss() {
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
fn release_before_removal_is_taken() {
    let mut bench = Bench::new();
    bench.hear(2, released(4, 3, Some("in time")));
    bench.tell(RegionInput::Installed(installed(2, [1, 3, 4, 5])));
    assert_eq!(starts(&bench.order(host(4, &[(2, 3)]))), [(g(4), bytes("in time"))]);
}

#[test]
fn a_repeated_release_brings_nothing_again_and_is_confirmed() {
    for (bug, again) in [(None, 0), (Some(ShardingFault::PayloadTakenAgain), 1)] {
        let fault_injection =
            bug.map_or_else(ShardingFaultInjection::none, ShardingFaultInjection::with);
        let mut bench = Bench::with(RegionConfig::default(), fault_injection);
        bench.order(host(2, &[(2, 1)]));
        bench.hear(2, released(2, 1, Some("m")));
        let out = bench.hear(2, released(2, 1, Some("m")));
        assert_eq!(starts(&out).len(), again);
        let confirmed = says(2, ToRegion::Hosted(vec![(SHARD, g(2))]));
        assert_eq!(sent(&out).contains(&confirmed), bug.is_none());
    }
}

/// The first confirmation is lost and the shard moves on before the payload is sent again. Without
/// another confirmation the keeper would keep it forever and could not leave.
#[test]
fn former_host_still_confirms_the_payload_it_took() {
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
fn payload_is_kept_until_hosted_above_its_tenure() {
    for (bug, kept) in [(None, true), (Some(ShardingFault::KeptDroppedOnEqual), false)] {
        let fault_injection =
            bug.map_or_else(ShardingFaultInjection::none, ShardingFaultInjection::with);
        let mut bench = Bench::with(RegionConfig::default(), fault_injection);
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
fn unconfirmed_payload_is_sent_again_unchanged() {
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
