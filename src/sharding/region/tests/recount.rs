//! Answers to a recount after a forced configuration, and the decisions ignored afterwards.

use super::*;
use crate::sharding::installed::ForcedGeneration;

const ORIGIN: EpochId = EpochId { generation: 2, number: 7 };

fn forced(members: impl IntoIterator<Item = u64>) -> Installed {
    let installed = installed(1, members);
    let forced = Some(ForcedGeneration { origin: ORIGIN, kept: installed.members.clone() });
    Installed { epoch: ORIGIN, forced, ..installed }
}

const fn term(number: u64) -> Term {
    Term { number, owner: ReplicaId::new(2) }
}

/// Recount by the coordinator on node 2.
fn recount(bench: &mut Bench, number: u64) -> Vec<(u64, ShardingMessage)> {
    recount_from(bench, number, Some(ShardId::default()))
}

fn recount_from(
    bench: &mut Bench,
    number: u64,
    first: Option<ShardId>,
) -> Vec<(u64, ShardingMessage)> {
    sent(&bench.hear(2, ToRegion::Recount { term: term(number), origin: ORIGIN, first }))
}

#[test]
fn recount_reports_hosted_shards_and_known_decisions() {
    let mut bench = Bench::new();
    bench.order(host(1, &[]));
    bench.order(release(2, Some(4)));
    assert_eq!(bench.run(), HostingPhase::Draining(g(1)));
    let waits = HostShard {
        shard: ShardId::new(3),
        generation: g(3),
        after: [(region(2), g(1))].into_iter().collect(),
        epoch: EpochId { generation: 1, number: 1 },
    };
    bench.order(ToRegion::Host(vec![waits]));
    assert_eq!(recount(&mut bench, 5), [], "the forced configuration is not installed");
    bench.tell(RegionInput::Installed(forced(1..=3)));
    let route = |shard, at, home| ShardRoute { shard, generation: at, home: Some(region(home)) };
    let told = [route(ShardId::new(3), g(3), 1), route(SHARD, g(2), 4)];
    let counted = ToCoordinator::Counted {
        term: term(5),
        hosted: vec![(SHARD, g(1))],
        told: told.into_iter().collect(),
        highest: g(3),
    };
    let answer = (2, ShardingMessage::Coordinator(counted));
    assert_eq!(recount(&mut bench, 5), std::slice::from_ref(&answer));
    assert_eq!(recount(&mut bench, 5), [answer], "and again");
    let past = ToCoordinator::Counted {
        term: term(4),
        hosted: vec![],
        told: RouteTable::default(),
        highest: Generation::new(term(5), 0),
    };
    let past = (2, ShardingMessage::Coordinator(past));
    assert_eq!(recount(&mut bench, 4), [past], "the coordinator must take a higher term");
}

#[test]
fn recount_blocks_old_decisions_but_pending_start_remains() {
    let mut bench = Bench::new();
    bench.order(host(1, &[(4, 1)])); // region 4 may host
    bench.tell(RegionInput::Installed(forced(1..=4)));
    recount(&mut bench, 5);
    let late = HostShard {
        shard: ShardId::new(3),
        generation: g(9),
        after: Predecessors::default(),
        epoch: EpochId { generation: 1, number: 1 },
    };
    // Also from a coordinator that was kept.
    assert_eq!(starts(&bench.hear(2, ToRegion::Host(vec![late]))), [], "the decision may be lost");
    bench.hear(2, release(9, Some(2)));
    assert_eq!((bench.max_gen(), bench.region.stats().stale), (g(1), 2));
    let installed = Installed { epoch: EpochId { generation: 2, number: 8 }, ..forced(1..=3) };
    let out = bench.tell(RegionInput::Installed(installed));
    assert_eq!(starts(&out), [(g(1), None)], "4 is out, and this decision was known");
    let again = HostShard {
        shard: SHARD,
        generation: Generation::new(term(5), 1),
        after: Predecessors::default(),
        epoch: ORIGIN,
    };
    let out = bench.hear(2, ToRegion::Host(vec![again]));
    let adopts = |out: &RegionOutput| matches!(out, RegionOutput::Adopt { .. });
    assert!(out.iter().any(adopts), "{out:?}");
    assert_eq!(starts(&out), []);
}

/// The coordinator that had counted and decided ended. The next one counted again and ended before
/// it decided anything. The third knows only of the first count, and its decisions are adopted.
#[test]
fn decisions_of_first_recount_survive_a_second_one() {
    let mut bench = Bench::new();
    bench.tell(RegionInput::Installed(forced(1..=4)));
    recount(&mut bench, 3);
    recount(&mut bench, 5);
    let word = HostShard {
        shard: SHARD,
        generation: Generation::new(term(3), 1),
        after: Predecessors::default(),
        epoch: ORIGIN,
    };
    let host = || ToRegion::Host(vec![word.clone()]);
    let at = |number| Term { number, owner: ReplicaId::new(4) };
    let ack = |number| ToRegion::RegisterAck { term: at(number), homes: RouteTable::default() };
    bench.hear(4, ToRegion::Here(at(7)));
    assert_eq!(starts(&bench.hear(4, host())), [], "it may have been sent before the recount");
    bench.hear(2, ack(7));
    assert_eq!(starts(&bench.hear(2, host())), [], "not the coordinator");
    bench.hear(4, ack(7));
    assert_eq!(starts(&bench.hear(2, host())), [], "not the coordinator");
    assert_eq!(starts(&bench.hear(4, host())), [(word.generation, None)]);
    assert_eq!(bench.region.stats().stale, 3);
}

#[test]
fn recount_reports_term_of_coordinator_without_decisions() {
    let mut bench = Bench::new();
    bench.tell(RegionInput::CoordinatorAt(Some(COORDINATOR)));
    bench.order(ToRegion::Here(Term { number: 8, owner: COORDINATOR }));
    bench.tell(RegionInput::Installed(forced(1..=3)));
    let answer = recount(&mut bench, 5);
    let highest = answer.iter().find_map(|(_, word)| match word {
        ShardingMessage::Coordinator(ToCoordinator::Counted { highest, .. }) => Some(*highest),
        _ => None,
    });
    assert_eq!(highest.map(|at| at.term.number), Some(8), "{answer:?}");
}

#[test]
fn recount_is_answered_to_members_after_force_only() {
    let mut bench = Bench::new();
    assert_eq!(recount(&mut bench, 5), []);
    bench.tell(RegionInput::Installed(forced([1, 3])));
    assert_eq!(recount(&mut bench, 5), [], "2 was given up");
    bench.hear(3, host(1, &[]));
    assert_eq!(bench.run(), HostingPhase::Hosting(g(1)), "the request changed nothing");
}

/// The given-up coordinator still runs and has not heard that it is out.
#[test]
fn orders_of_given_up_coordinator_are_ignored() {
    let mut bench = Bench::new();
    bench.tell(RegionInput::CoordinatorAt(Some(ReplicaId::new(2))));
    bench.hear(2, host(1, &[]));
    bench.tell(RegionInput::Installed(forced(1..=3)));
    let last = bench.max_gen();
    let other = ShardId::new(3);
    let late = HostShard {
        shard: other,
        generation: g(9),
        after: Predecessors::default(),
        epoch: EpochId { generation: 1, number: 1 },
    };
    assert_eq!(starts(&bench.order(ToRegion::Host(vec![late]))), []);
    bench.order(release(9, Some(2)));
    assert_eq!((bench.run(), bench.max_gen()), (HostingPhase::Hosting(last), last));
    bench.order(ToRegion::Here(Term { number: 8, owner: COORDINATOR }));
    assert_eq!(bench.region.registration.coordinator(), Some(ReplicaId::new(2)));
    assert_eq!((bench.region.stats().given_up, bench.region.stats().stale), (3, 0));
    bench.hear(3, release(9, Some(2)));
    assert_eq!(bench.max_gen(), g(9), "a kept coordinator is obeyed until the recount");
}

/// Otherwise its next home would start without the payload and confirm that it was taken.
#[test]
fn recount_reports_tenure_of_kept_payload() {
    for (payload, told) in [(Some("m"), vec![(SHARD, g(1))]), (None, vec![])] {
        let mut bench = Bench::new();
        bench.order(host(1, &[]));
        bench.order(release(2, Some(4)));
        bench.drained(payload);
        bench.tell(RegionInput::Installed(forced(1..=3)));
        let out = recount(&mut bench, 5);
        let [(2, ShardingMessage::Coordinator(ToCoordinator::Counted { hosted, .. }))] = &out[..]
        else {
            panic!("{out:?}")
        };
        assert_eq!(*hosted, told);
    }
}

/// Shards of the first part are reported as they are then: no older decision may change them before
/// the last part is sent.
#[test]
fn old_decisions_are_ignored_from_first_part_on() {
    let cut = PayloadPartSizes { words: 1, ..PayloadPartSizes::default() };
    let mut bench = Bench::with(
        RegionConfig { cut, ..RegionConfig::default() },
        ShardingFaultInjection::none(),
    );
    bench.order(host(1, &[]));
    let (generation, epoch) = (g(1), EpochId { generation: 1, number: 1 });
    let other =
        HostShard { shard: ShardId::new(8), generation, after: Predecessors::default(), epoch };
    bench.order(ToRegion::Host(vec![other]));
    bench.tell(RegionInput::Installed(forced(1..=3)));
    let is_part = |out: &[(u64, ShardingMessage)], next: Option<ShardId>| matches!(out, [(2, ShardingMessage::Coordinator(ToCoordinator::CountedPart { next: n, .. }))] if *n == next);
    let second = Some(ShardId::new(8));
    assert!(is_part(&recount_from(&mut bench, 5, Some(ShardId::default())), second));
    bench.hear(3, release(9, Some(2)));
    assert_eq!((bench.run(), bench.max_gen()), (HostingPhase::Hosting(g(1)), g(1)));
    assert!(is_part(&recount_from(&mut bench, 5, second), None));
}

/// With the longest numbers possible and the smallest message limit.
#[test]
fn long_recount_answer_comes_in_parts_within_the_limit() {
    let bytes_max = 4 << 10;
    let cut = PayloadPartSizes { words: bytes_max, ..PayloadPartSizes::default() };
    let mut bench = Bench::with(
        RegionConfig { cut, ..RegionConfig::default() },
        ShardingFaultInjection::none(),
    );
    let far = |seq| {
        let term = Term { number: Term::NUMBER_MAX, owner: ReplicaId::new(u64::MAX) };
        Generation::new(term, u64::MAX - 9 + seq)
    };
    let epoch = EpochId { generation: 1, number: 1 };
    let host =
        |shard| HostShard { shard, generation: far(1), after: Predecessors::default(), epoch };
    bench.order(ToRegion::Host((0..1_000).map(ShardId::new).map(host).collect()));
    let to = Some(RegionId::new(ReplicaId::new(u64::MAX - 1)));
    let listed = Generation::NEVER;
    let release = |shard| ReleaseShard { shard, generation: far(2), to, listed };
    bench.order(ToRegion::Release((500..1_000).map(ShardId::new).map(release).collect()));
    let drained = |shard| RegionInput::Drained { shard: ShardId::new(shard), payload: None };
    bench.batch((900..1_000).map(drained).collect());
    bench.tell(RegionInput::Installed(forced(1..=3)));

    let (mut ask, mut parts) = (Some(ShardId::default()), 0);
    let (mut all_hosted, mut all_told) = (Vec::new(), Vec::new());
    while let Some(asked) = ask {
        let out = recount_from(&mut bench, 5, ask);
        let [(2, word)] = &out[..] else { panic!("{out:?}") };
        let bytes = rmp_serde::to_vec_named(word).expect("it encodes").len();
        assert!(bytes <= bytes_max, "{bytes} bytes");
        let ShardingMessage::Coordinator(ToCoordinator::CountedPart {
            term: of,
            first,
            next,
            hosted,
            told,
            highest,
        }) = word
        else {
            panic!("{word:?}")
        };
        assert_eq!((*of, *first, *highest), (term(5), asked, far(2)));
        all_hosted.extend(hosted.iter().copied());
        all_told.extend(told.iter());
        (ask, parts) = (*next, parts + 1);
    }
    assert!(parts > 10, "{parts} parts");
    let whole = recount_from(&mut bench, 5, None);
    let [(2, ShardingMessage::Coordinator(ToCoordinator::Counted { hosted, told, .. }))] =
        &whole[..]
    else {
        panic!("a request without `first` gets one message: {whole:?}")
    };
    assert_eq!((hosted.len(), told.len()), (900, 1_000));
    assert_eq!((&all_hosted, all_told), (hosted, told.iter().collect()));
}
