//! Payloads fetched in parts: they count once they are complete, with the effect of a release.

use super::*;
use crate::sharding::wire::{Fetch, PayloadPart, ReleasedWithLongPayload};

/// Ten bytes in parts of two; one `Fetch` asks for two parts.
const CUT: PayloadPartSizes = PayloadPartSizes { whole: 4, part: 2, window: 4, words: 1 << 20 };
const LONG: &str = "0123456789";

fn bench() -> Bench {
    Bench::with(
        RegionConfig { cut: CUT, ..RegionConfig::default() },
        ShardingFaultInjection::none(),
    )
}

fn carries(reached: u64, last: u64, length: u64) -> ToRegion {
    let (reached, last) = (g(reached), g(last));
    let (sealed, cluster) = (Generation::NEVER, 1);
    ToRegion::Carries(vec![ReleasedWithLongPayload {
        shard: SHARD,
        reached,
        last,
        length,
        sealed,
        cluster,
    }])
}

fn fetch(last: u64, at: u64) -> ToRegion {
    ToRegion::Fetch(vec![Fetch { shard: SHARD, last: g(last), at }])
}

fn piece(last: u64, at: usize) -> ToRegion {
    let bytes = Bytes::from_static(&LONG.as_bytes()[at..at + 2]);
    ToRegion::Part(PayloadPart { shard: SHARD, last: g(last), at: at as u64, bytes })
}

fn whole() -> Option<Bytes> {
    Some(Bytes::from_static(LONG.as_bytes()))
}

/// Offsets of the `Fetch` messages to region 2.
fn asked(out: &[RegionOutput]) -> Vec<u64> {
    let fetches = sent(out).into_iter().filter_map(|(to, message)| match message {
        ShardingMessage::Region(ToRegion::Fetch(words)) if to == 2 => Some(words),
        _ => None,
    });
    fetches.flatten().map(|word| word.at).collect()
}

#[test]
fn long_payload_is_announced_and_sent_in_parts_on_request() {
    let mut bench = bench();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    let word = says(2, sealed(2, carries(2, 1, 10)));
    assert_eq!(sent(&bench.drained(Some(LONG))), std::slice::from_ref(&word));
    for (at, pieces) in [(0, &[0, 2][..]), (4, &[4, 6]), (8, &[8]), (10, &[]), (99, &[])] {
        let expected: Vec<_> = pieces.iter().map(|at| says(2, piece(1, *at))).collect();
        assert_eq!(sent(&bench.hear(2, fetch(1, at))), expected, "from {at}");
    }
    assert_eq!(sent(&bench.hear(2, fetch(3, 0))), [], "another tenure");
    assert_eq!(bench.wait().map(|(_, out)| sent(&out)), Some(vec![word]), "unchanged");
    bench.hear(2, ToRegion::Hosted(vec![(SHARD, g(2))]));
    assert_eq!(sent(&bench.hear(2, fetch(1, 0))), [], "it is dropped");
}

#[test]
fn a_shard_starts_with_a_long_payload_once_that_is_whole() {
    let mut bench = bench();
    bench.order(host(2, &[(2, 1)]));
    assert_eq!(asked(&bench.hear(2, carries(2, 1, 10))), [0]);
    let mut out = Vec::new();
    for at in [0, 2, 4, 6, 8] {
        assert_eq!(starts(&out), []);
        assert_eq!(asked(&out), if at == 4 || at == 8 { vec![at as u64] } else { vec![] });
        out = bench.hear(2, piece(1, at));
    }
    assert_eq!(starts(&out), [(g(2), whole())]);
    assert!(sent(&out).contains(&says(2, ToRegion::Hosted(vec![(SHARD, g(2))]))));
    assert_eq!(bench.region.arriving(), 0);
    let again = bench.hear(2, carries(2, 1, 10));
    assert_eq!(sent(&again), [says(2, ToRegion::Hosted(vec![(SHARD, g(2))]))]);
}

#[test]
fn lost_parts_are_requested_again_duplicates_are_ignored() {
    let mut bench = bench();
    bench.order(host(2, &[(2, 1)]));
    bench.hear(2, carries(2, 1, 10));
    bench.hear(2, piece(1, 2)); // out of order
    bench.hear(2, piece(1, 0));
    bench.hear(2, piece(1, 0)); // duplicate
    assert_eq!(bench.region.arriving(), 2);
    let asked_soon = asked(&bench.hear(2, carries(2, 1, 10)));
    assert!(asked_soon.is_empty(), "a part came: more may be on their way");
    assert_eq!(asked(&bench.hear(2, carries(2, 1, 10))), [2]);
    for at in [2, 0, 8, 4] {
        bench.hear(2, piece(1, at));
    }
    assert_eq!(bench.region.arriving(), 6);
    bench.hear(2, piece(1, 6));
    assert_eq!(starts(&bench.hear(2, piece(1, 8))), [(g(2), whole())]);
}

#[test]
fn removal_of_sender_drops_unfinished_payload() {
    let mut bench = bench();
    bench.order(host(2, &[(2, 1)]));
    bench.hear(2, carries(2, 1, 10));
    bench.hear(2, piece(1, 0));
    let out = bench.tell(RegionInput::Installed(installed(2, [1, 3, 4, 5])));
    assert_eq!((starts(&out), bench.region.arriving()), (vec![(g(2), None)], 0));
    assert_eq!(sent(&bench.hear(2, carries(9, 1, 10))), [], "not a member");
}

#[test]
fn parts_of_earlier_tenure_are_ignored() {
    let mut bench = bench();
    bench.order(host(5, &[(2, 4)]));
    bench.hear(2, carries(5, 1, 10));
    bench.hear(2, piece(1, 0));
    assert_eq!(asked(&bench.hear(2, carries(5, 4, 10))), [0], "begun anew");
    bench.hear(2, piece(1, 0));
    bench.hear(2, carries(5, 1, 10)); // late
    assert_eq!(bench.region.arriving(), 0);
    let [.., last] = [0, 2, 4, 6, 8].map(|at| bench.hear(2, piece(4, at)));
    assert_eq!(starts(&last), [(g(5), whole())]);
}

#[test]
fn complete_payload_is_not_fetched_again() {
    let mut bench = bench();
    bench.order(host(3, &[(2, 1), (3, 2)]));
    bench.hear(2, carries(2, 1, 10));
    [0, 2, 4, 6, 8].into_iter().for_each(|at| drop(bench.hear(2, piece(1, at))));
    assert!(asked(&bench.hear(2, carries(3, 1, 10))).is_empty());
    bench.tell(RegionInput::Installed(installed(2, [1, 2, 4, 5])));
    assert_eq!(bench.run(), HostingPhase::Hosting(g(3)));
}

#[test]
fn fetch_for_superseded_decision_is_dropped() {
    let mut bench = bench();
    bench.order(host(2, &[(2, 1)]));
    bench.hear(2, carries(2, 1, 10));
    bench.hear(2, piece(1, 0));
    bench.order(release(3, Some(4)));
    assert_eq!(bench.region.arriving(), 0);
    assert_eq!(sent(&bench.hear(2, carries(2, 1, 10))), []);
}

#[test]
fn a_release_without_its_payload_ends_the_fetch_of_it() {
    let mut bench = bench();
    bench.order(host(2, &[(2, 1)]));
    bench.hear(2, carries(2, 1, 10));
    bench.hear(2, piece(1, 0));
    assert_eq!(starts(&bench.hear(2, released(2, 1, None))), [(g(2), None)]);
    assert_eq!(bench.region.arriving(), 0);
}

/// An announcement of tenure `last` of a shard.
fn announcement(shard: u32, last: u64, length: u64) -> ReleasedWithLongPayload {
    ReleasedWithLongPayload {
        shard: ShardId::new(shard),
        reached: g(9),
        last: g(last),
        length,
        sealed: Generation::NEVER,
        cluster: 1,
    }
}

/// Shards whose payloads are requested.
fn requested(out: &[RegionOutput]) -> Vec<u32> {
    let fetches = sent(out).into_iter().filter_map(|(_, message)| match message {
        ShardingMessage::Region(ToRegion::Fetch(words)) => Some(words),
        _ => None,
    });
    fetches.flatten().map(|word| word.shard.get()).collect()
}

/// Announces payloads of these shards and lengths; returns the shards that are requested.
fn announce(bench: &mut Bench, payloads: &[(u32, u64)]) -> Vec<u32> {
    let words = payloads.iter().map(|(shard, length)| announcement(*shard, 1, *length));
    requested(&bench.hear(2, ToRegion::Carries(words.collect())))
}

fn pass(bench: &mut Bench, millis: u64) {
    bench.now.mono = bench.now.mono + Duration::from_millis(millis);
}

#[test]
fn four_payloads_at_a_time_and_stalled_ones_lose_their_turn() {
    let mut bench = bench();
    let six: Vec<(u32, u64)> = (0..6).map(|shard| (shard, 10)).collect();
    assert_eq!(announce(&mut bench, &six), [0, 1, 2, 3]);
    assert_eq!(announce(&mut bench, &six), [0, 1, 2, 3], "asked again, no others");
    pass(&mut bench, 10_000);
    assert_eq!(announce(&mut bench, &six), [0, 1, 4, 5], "four in all, those that wait first");
}

/// The announcement that finds the payload stalled also asks to request it again.
#[test]
fn stalled_payload_without_a_turn_is_not_requested() {
    let mut bench = bench();
    let two = [(0, 200 << 20), (1, 200 << 20)];
    assert_eq!(announce(&mut bench, &two), [0], "more than 256 MiB together");
    pass(&mut bench, 10_000);
    assert_eq!(announce(&mut bench, &two), [1]);
    assert_eq!(announce(&mut bench, &two), [1], "the other waits");
}

#[test]
fn replaced_payload_waits_for_its_turn() {
    let mut bench = bench();
    let five: Vec<(u32, u64)> = (0..5).map(|shard| (shard, 10)).collect();
    assert_eq!(announce(&mut bench, &five), [0, 1, 2, 3]);
    pass(&mut bench, 1);
    let repeated_and_replaced = vec![announcement(0, 1, 10), announcement(0, 2, 10)];
    let out = bench.hear(2, ToRegion::Carries(repeated_and_replaced));
    assert_eq!(requested(&out), [4], "the fifth has waited longer");
}

#[test]
fn long_payload_is_not_overtaken() {
    let mut bench = bench();
    assert_eq!(announce(&mut bench, &[(0, 200 << 20)]), [0]);
    pass(&mut bench, 1);
    assert!(announce(&mut bench, &[(1, 100 << 20)]).is_empty(), "it does not fit");
    pass(&mut bench, 1);
    assert!(announce(&mut bench, &[(2, 10)]).is_empty(), "it came later");
    let mut word = released(9, 1, None);
    if let ToRegion::Released(words) = &mut word {
        words.iter_mut().for_each(|word| word.shard = ShardId::new(0));
    }
    assert_eq!(requested(&bench.hear(2, word)), [1, 2], "none is under way");
}

#[test]
fn stall_time_counts_from_begin_of_turn() {
    let mut bench = bench();
    let of = |shard, at: usize| {
        let bytes = Bytes::from_static(&LONG.as_bytes()[at..at + 2]);
        ToRegion::Part(PayloadPart { shard: ShardId::new(shard), last: g(1), at: at as u64, bytes })
    };
    let six: Vec<(u32, u64)> = (0..6).map(|shard| (shard, 10)).collect();
    announce(&mut bench, &six);
    for at in [0, 2, 4, 6] {
        bench.now.mono = bench.now.mono + Duration::from_secs(3);
        (0..4).for_each(|shard| drop(bench.hear(2, of(shard, at))));
    }
    assert_eq!(asked(&bench.hear(2, of(0, 8))), [0], "the fifth gets the turn of the first");
    assert!(asked(&bench.tell(RegionInput::Tick)).is_empty(), "and no other gets it");
    assert!(asked(&bench.hear(2, of(5, 0))).is_empty());
    bench.hear(2, of(4, 0));
    assert_eq!(bench.region.arriving(), 10 + 3 * 8 + 2, "its parts are accepted");
}

#[test]
fn repeated_fetch_in_one_message_is_answered_once() {
    let mut bench = bench();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(2)));
    bench.drained(Some(LONG));
    let word = |at| Fetch { shard: SHARD, last: g(1), at };
    let out = bench.hear(2, ToRegion::Fetch((0..100).map(|at| word(at % 10)).collect()));
    assert_eq!(sent(&out), [0, 2].map(|at| says(2, piece(1, at))));
}

#[test]
fn received_payload_is_dropped_and_resent_with_decisions() {
    let mut bench = bench();
    bench.order(host(3, &[(2, 1), (3, 2)]));
    bench.hear(2, released(3, 1, Some("abc")));
    assert_eq!(bench.region.arriving(), 3, "complete, but another predecessor is awaited");
    bench.order(release(4, Some(4)));
    assert_eq!(bench.region.arriving(), 0, "region 2 keeps it for region 4");
    bench.order(host(5, &[(2, 1), (3, 2), (4, 4)]));
    let words = [(3, released(5, 0, None)), (4, released(5, 0, None))];
    for (from, word) in words {
        assert_eq!(starts(&bench.hear(from, word)), [], "region 2 has not sent it again");
    }
    let out = bench.hear(2, released(5, 1, Some("abc")));
    assert_eq!(starts(&out), [(g(5), Some(Bytes::from_static(b"abc")))]);
}

#[test]
fn release_for_later_decision_outlives_late_release() {
    let mut bench = bench();
    bench.hear(2, released(5, 1, Some("abc")));
    bench.order(release(4, Some(4)));
    assert_eq!(bench.region.arriving(), 3);
    let out = bench.order(host(5, &[(2, 1)]));
    assert_eq!(starts(&out), [(g(5), Some(Bytes::from_static(b"abc")))]);
}

#[test]
fn impossible_payload_length_is_counted() {
    let mut bench = bench();
    for length in [0, 1 << 32, u64::MAX] {
        assert_eq!(sent(&bench.hear(2, carries(2, 1, length))), []);
    }
    assert_eq!(bench.region.stats().strange, 3);
    bench.hear(2, carries(2, 1, 1)); // then a part that is longer than announced
    bench.hear(2, piece(1, 0));
    assert_eq!(bench.region.arriving(), 0);
}
