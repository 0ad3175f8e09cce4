//! Decisions of the coordinator: from a question to a confirmed home, and faults between the steps.

use super::*;

#[test]
fn first_home_is_written_before_it_is_announced() {
    let mut bench = Bench::acting(1..=3);
    let out = bench.hear(2, ToCoordinator::GetShardHome(vec![SHARD]));
    assert_eq!((questions(&out), sent(&out)), (vec![vec![SHARD]], vec![]));
    let out = bench.place(&[(SHARD, 1)]);
    let home = cell(g(1), Some(1), &[]);
    assert_eq!((written(&out), sent(&out)), (vec![(1, vec![(SHARD, home.clone())])], vec![]));
    let out = bench.answer(StoreAnswer::Written);
    let all = [(1, host(&home)), (1, announce(1, Some(1)))].into_iter();
    let all = all.chain([2, 3].map(|id| (id, announce(1, Some(1)))));
    assert_eq!(sent(&out), all.collect::<Vec<_>>());
}

#[test]
fn a_move_releases_and_hosts_in_one_step_after_one_write() {
    let mut bench = Bench::hosted();
    let home = cell(g(2), Some(2), &[(1, 1)]);
    assert_eq!(written(&bench.moves(Some(2))), [(2, vec![(SHARD, home.clone())])]);
    let out = bench.answer(StoreAnswer::Written);
    let expected = [
        (1, release(2, Some(2), 1)),
        (1, announce(2, Some(2))),
        (2, host(&home)),
        (2, announce(2, Some(2))),
        (3, announce(2, Some(2))),
    ];
    assert_eq!(sent(&out), expected);
}

#[test]
fn host_and_release_repeat_until_confirmed_announce_does_not() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    bench.answer(StoreAnswer::Written);
    let again = vec![(1, release(2, Some(2), 1)), (2, host(&cell(g(2), Some(2), &[(1, 1)])))];
    for pause in [200, 400, 800, 1_600, 2_000, 2_000] {
        let (waited, out) = bench.wait().unwrap();
        assert_eq!((waited, sent(&out)), (pause, again.clone()));
    }
    bench.hear(1, ToCoordinator::Hosted(vec![(SHARD, g(1))]));
    assert!(bench.wait().is_some(), "an earlier tenure's confirmation settles nothing");
    bench.hear(2, ToCoordinator::Hosted(vec![(SHARD, g(2))]));
    assert_eq!(bench.wait(), None);
    assert!(bench.machine.record(SHARD).unwrap().is_settled());
}

#[test]
fn a_late_write_is_repeated_unchanged_under_a_higher_stamp() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    let home = cell(g(2), Some(2), &[(1, 1)]);
    assert_eq!(written(&bench.answer(StoreAnswer::Late)), [(3, vec![(SHARD, home.clone())])]);
    assert_eq!(bench.answer(StoreAnswer::NotNow { why: "overloaded".into() }), []);
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, written(&out)), (200, vec![(4, vec![(SHARD, home)])]));
    bench.answer(StoreAnswer::Written);
    let next = cell(g(5), Some(3), &[(1, 1), (2, 2)]);
    assert_eq!(written(&bench.moves(Some(3))), [(5, vec![(SHARD, next)])]);
}

#[test]
fn a_thousand_shards_asked_for_one_by_one_take_two_writes() {
    let mut bench = Bench::acting(1..=2);
    let shard = ShardId::new;
    assert_eq!(questions(&bench.hear(1, ToCoordinator::GetShardHome(vec![shard(0)]))).len(), 1);
    for number in 1..1_000 {
        let out = bench.hear(1, ToCoordinator::GetShardHome(vec![shard(number)]));
        assert_eq!(out, [], "the strategy has not answered yet");
    }
    let out = bench.place(&[(shard(0), 1)]);
    assert_eq!((written(&out).len(), questions(&out)[0].len()), (1, 999));
    let homes: Vec<_> = (1..1_000).map(|n| (shard(n), u64::from(n % 2) + 1)).collect();
    assert_eq!(bench.place(&homes), [], "decided, waiting for the first write");
    let out = bench.answer(StoreAnswer::Written);
    assert_eq!(written(&out)[0].1.len(), 999);
    let out = bench.answer(StoreAnswer::Written);
    assert_eq!(sent(&out).len(), 4, "a Host and an Announce to each of two regions");
    assert_eq!(bench.machine.stats().writes, 2);
}

#[test]
fn strategy_sees_unwritten_decisions() {
    let mut bench = Bench::acting(1..=2);
    let shards = |numbers: &[u32]| numbers.iter().copied().map(ShardId::new).collect::<Vec<_>>();
    bench.hear(1, ToCoordinator::GetShardHome(shards(&[1, 2])));
    bench.place(&[(ShardId::new(1), 1), (ShardId::new(2), 2)]);
    bench.hear(1, ToCoordinator::GetShardHome(shards(&[3])));
    bench.place(&[(ShardId::new(3), 2)]);
    let allocation: Vec<_> = bench.machine.allocation().into_iter().collect();
    assert_eq!(allocation, [(region(1), shards(&[1])), (region(2), shards(&[2, 3]))]);
}

#[test]
fn a_known_home_is_answered_without_a_write() {
    let mut bench = Bench::hosted();
    let out = bench.hear(3, ToCoordinator::GetShardHome(vec![SHARD]));
    assert_eq!((sent(&out), out.len()), (vec![(3, announce(1, Some(1)))], 1));
}

#[test]
fn unusable_choice_is_asked_again_after_timeout() {
    let mut bench = Bench::acting(1..=2);
    bench.hear(1, ToCoordinator::GetShardHome(vec![SHARD]));
    assert_eq!(bench.place(&[(SHARD, 4)]), [], "4 has not registered");
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, questions(&out)), (5_000, vec![vec![SHARD]]));
    assert_eq!(bench.machine.stats().refused, 1);
    bench.place(&[]);
    let out = bench.register(4, &[]);
    assert_eq!(questions(&out), [vec![SHARD]], "at once when a region registers");
    let late = CoordinatorInput::Allocated { question: 0, homes: vec![] };
    assert_eq!(bench.tell(late), []);
}

#[test]
fn strategy_gets_first_asker_or_none_for_lost_home() {
    let mut bench = Bench::acting(1..=3);
    let asked = bench.hear(2, ToCoordinator::GetShardHome(vec![SHARD]));
    assert_eq!(askers(&asked), [(SHARD, Some(region(2)))]);
    let other = ShardId::new(8);
    bench.hear(3, ToCoordinator::GetShardHome(vec![SHARD, other]));
    let asked = bench.wait().expect("the question is repeated").1;
    assert_eq!(askers(&asked), [(SHARD, Some(region(2))), (other, Some(region(3)))]);
    bench.place(&[(SHARD, 1), (other, 1)]);
    bench.answer(StoreAnswer::Written);
    let lost = bench.tell(CoordinatorInput::Installed(installed(2, [2, 3, 4, 5])));
    assert_eq!(askers(&lost), [(SHARD, None), (other, None)]);
}

#[test]
fn a_lost_region_is_replaced_in_one_write_and_told_nothing() {
    let mut bench = Bench::acting(1..=3);
    let shards: Vec<_> = (0..10).map(ShardId::new).collect();
    bench.hear(1, ToCoordinator::GetShardHome(shards.clone()));
    let homes: Vec<_> = shards.iter().map(|shard| (*shard, 1)).collect();
    bench.place(&homes);
    bench.answer(StoreAnswer::Written);
    let out = bench.tell(CoordinatorInput::Installed(installed(2, [2, 3, 4, 5])));
    assert_eq!(questions(&out), std::slice::from_ref(&shards));
    let homes: Vec<_> = shards.iter().map(|shard| (*shard, 2)).collect();
    let out = bench.place(&homes);
    let [(2, cells)] = &written(&out)[..] else { panic!("{out:?}") };
    assert_eq!((cells.len(), &cells[0].1.after), (10, &[(region(1), g(1))].into()));
    let to: Vec<u64> =
        sent(&bench.answer(StoreAnswer::Written)).iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [2, 2, 3], "Host to 2, Announce to 2 and 3; nothing to 1");
}

#[test]
fn target_lost_during_write_is_replaced_by_next_decision() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    let out = bench.tell(CoordinatorInput::Installed(installed(2, [1, 3])));
    assert_eq!(out, [], "a write under way is completed");
    let out = bench.answer(StoreAnswer::Written);
    assert!(!sent(&out).iter().any(|(to, _)| *to == 2));
    assert_eq!(questions(&out), [vec![SHARD]]);
    let out = bench.place(&[(SHARD, 1)]);
    let back =
        ShardHome { epoch: EpochId { generation: 1, number: 2 }, ..cell(g(3), Some(1), &[(2, 2)]) };
    assert_eq!(written(&out), [(3, vec![(SHARD, back)])], "1 need not wait for itself");
}

#[test]
fn target_lost_before_the_write_is_chosen_anew() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    let other = ShardId::new(8);
    bench.hear(1, ToCoordinator::GetShardHome(vec![other]));
    bench.place(&[(other, 3)]);
    let out = bench.tell(CoordinatorInput::Installed(installed(2, [1, 2])));
    assert_eq!(questions(&out), [vec![other]]);
}

#[test]
fn shard_without_home_is_released_until_drained() {
    let mut bench = Bench::hosted();
    bench.moves(None);
    let out = bench.answer(StoreAnswer::Written);
    assert_eq!(sent(&out)[0], (1, release(2, None, 1)));
    assert_eq!(sent(&bench.wait().unwrap().1), [(1, release(2, None, 1))]);
    bench.hear(1, ToCoordinator::Drained(vec![(SHARD, g(2))]));
    assert_eq!(bench.wait(), None);
    let out = bench.hear(2, ToCoordinator::GetShardHome(vec![SHARD]));
    assert_eq!(questions(&out), [vec![SHARD]], "a request gives it a home again");
    let home = cell(g(3), Some(2), &[(1, 1)]);
    assert_eq!(written(&bench.place(&[(SHARD, 2)])), [(3, vec![(SHARD, home)])]);
}

#[test]
fn second_move_does_not_wait_and_lists_both_homes() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    bench.answer(StoreAnswer::Written);
    bench.moves(Some(3));
    let out = bench.answer(StoreAnswer::Written);
    let releases = sent(&out).into_iter().filter(|(_, word)| matches!(word, ToRegion::Release(_)));
    let listed = [1, 2].map(|id| (id, release(3, Some(3), id)));
    assert_eq!(releases.collect::<Vec<_>>(), listed, "each at the decision that named the region");
}

#[test]
fn full_shutdown_stops_new_moves_and_finishes_old_ones() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    bench.tell(CoordinatorInput::Prepare);
    assert!(!sent(&bench.answer(StoreAnswer::Written)).is_empty());
    assert_eq!(bench.moves(Some(3)), []);
    let word = ToRegion::MayLeave(term(1)); // nothing moves any longer, so it need not wait
    assert_eq!(sent(&bench.hear(2, ToCoordinator::Leaving)), [(2, word)]);
}

#[test]
fn minimum_regions_gates_only_the_first_allocation() {
    let config = CoordinatorConfig { min_regions: 2, ..CoordinatorConfig::default() };
    let mut bench = Bench::acting_with(config, [1]);
    assert_eq!(bench.hear(1, ToCoordinator::GetShardHome(vec![SHARD])), []);
    assert_eq!(questions(&bench.register(2, &[])), [vec![SHARD]]);
    bench.place(&[(SHARD, 2)]);
    bench.answer(StoreAnswer::Written);
    bench.tell(CoordinatorInput::Installed(installed(2, [1])));
    let out = bench.hear(1, ToCoordinator::GetShardHome(vec![ShardId::new(8)]));
    assert!(bench.machine.pending_decisions.question.is_some(), "one region suffices now: {out:?}");
}

#[test]
fn all_shards_are_placed_at_once_if_so_configured() {
    let config = CoordinatorConfig { preallocate: true, shards: 10, ..Default::default() };
    let mut bench = Bench::acting_with(config, []);
    let all: Vec<_> = (0..10).map(ShardId::new).collect();
    assert_eq!(questions(&bench.register(1, &[])), std::slice::from_ref(&all));
    let homes: Vec<_> = all.iter().map(|shard| (*shard, 1)).collect();
    assert_eq!(written(&bench.place(&homes))[0].1.len(), 10);
    assert_eq!(questions(&bench.answer(StoreAnswer::Written)), Vec::<Vec<ShardId>>::new());
}

#[test]
fn decision_log_has_reason_and_durations() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    bench.now.mono = bench.now.mono + Duration::from_millis(3);
    bench.answer(StoreAnswer::Written);
    bench.now.mono = bench.now.mono + Duration::from_millis(20);
    bench.hear(2, ToCoordinator::Hosted(vec![(SHARD, g(2))]));
    let entry = bench.machine.remembered().of_shard(SHARD).next().unwrap();
    assert_eq!((entry.from, entry.to, &*entry.why), (Some(region(1)), Some(region(2)), "test"));
    let ms = |ms| Some(Duration::from_millis(ms));
    assert_eq!((entry.queued, entry.written, entry.settled), (ms(0), ms(3), ms(23)));
    assert_eq!(entry.awaited, [region(1)]);
    let moved = [DecisionStepKind::Decided, DecisionStepKind::Written, DecisionStepKind::Settled];
    assert_eq!(bench.steps, [moved, moved].concat(), "its first home, and the move");
}

#[test]
fn decision_log_has_time_queued_behind_a_write() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    let pass = |bench: &mut Bench, ms| bench.now.mono = bench.now.mono + Duration::from_millis(ms);
    bench.hear(3, ToCoordinator::GetShardHome(vec![ShardId::new(8)]));
    bench.place(&[(ShardId::new(8), 3)]);
    pass(&mut bench, 30);
    bench.answer(StoreAnswer::Written);
    pass(&mut bench, 4);
    bench.answer(StoreAnswer::Written);
    let entry = bench.machine.remembered().of_shard(ShardId::new(8)).next().unwrap();
    let ms = |ms| Some(Duration::from_millis(ms));
    assert_eq!((entry.queued, entry.written, entry.settled), (ms(30), ms(34), None));
}

#[test]
fn reason_begins_with_lost_or_leaving_home() {
    for (leaves, why) in [
        (true, "its region leaves: fewest shards"),
        (false, "its region is out of the cluster: fewest shards"),
    ] {
        let mut bench = Bench::hosted();
        if leaves {
            bench.hear(1, ToCoordinator::Leaving);
        } else {
            bench.tell(CoordinatorInput::Installed(installed(2, 2..=5)));
        }
        bench.place(&[(SHARD, 2)]);
        let entry = bench.machine.remembered().of_shard(SHARD).next().unwrap();
        assert_eq!((&*entry.why, entry.from), (why, Some(region(1))));
    }
}

#[test]
fn slow_move_is_reported_once_with_awaited_regions() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    bench.answer(StoreAnswer::Written);
    let mut told = Vec::new();
    while bench.now.mono < Now::default().mono + Duration::from_secs(90) {
        let (_, out) = bench.wait().unwrap();
        told.extend(out.into_iter().filter_map(|order| match order {
            CoordinatorOutput::Slow(slow) => Some(slow),
            _ => None,
        }));
    }
    let [SlowDecisions { shards, waited, limit, awaited }] = &told[..] else { panic!("{told:?}") };
    assert_eq!((&shards[..], *limit), (&[SHARD][..], Duration::from_secs(30)));
    assert!((*limit..*limit + Duration::from_secs(3)).contains(waited), "{waited:?}");
    assert_eq!(awaited[..], [region(1), region(2)]);
}

fn stopped(outputs: &[CoordinatorOutput]) -> Vec<u64> {
    let word =
        |word: &ToRegion| matches!(word, ToRegion::Stopped(told) if told[..] == [(SHARD, 1)]);
    let told = sent(outputs).into_iter().filter(|(_, it)| word(it));
    told.map(|(to, _)| to).collect()
}

#[test]
fn stop_is_answered_after_the_drain() {
    let mut bench = Bench::hosted();
    let stop = || ToCoordinator::Stop(vec![(SHARD, 1), (ShardId::new(99_999), 1)]);
    let out = bench.hear(2, stop());
    assert_eq!(written(&out), [(2, vec![(SHARD, cell(g(2), None, &[(1, 1)]))])]);
    assert_eq!(sent(&bench.answer(StoreAnswer::Written))[0], (1, release(2, None, 1)));
    assert_eq!(written(&bench.hear(3, stop())), [], "once");
    let out = bench.hear(1, ToCoordinator::Drained(vec![(SHARD, g(2))]));
    assert_eq!(stopped(&out), [2, 3]);
    assert_eq!(stopped(&bench.hear(2, stop())), [2], "answered again");
    let other = vec![(ShardId::new(8), 7)];
    let never = bench.hear(2, ToCoordinator::Stop(other.clone()));
    assert_eq!(sent(&never), [(2, ToRegion::Stopped(other))], "no region hosts it");
}

/// Otherwise the record would grow with each region that reports a drain.
#[test]
fn drain_reported_by_a_non_predecessor_is_not_kept() {
    let mut bench = Bench::hosted();
    bench.hear(2, ToCoordinator::Stop(vec![(SHARD, 1)]));
    bench.answer(StoreAnswer::Written);
    let before = bench.machine.record(SHARD).cloned();
    let out = bench.hear(3, ToCoordinator::Drained(vec![(SHARD, g(2))]));
    assert_eq!((stopped(&out), bench.machine.record(SHARD)), (vec![], before.as_ref()));
}

#[test]
fn stopping_shard_gets_a_home_only_after_the_stop() {
    let mut bench = Bench::hosted();
    bench.hear(2, ToCoordinator::Stop(vec![(SHARD, 1)]));
    bench.answer(StoreAnswer::Written);
    let out = bench.hear(3, ToCoordinator::GetShardHome(vec![SHARD]));
    assert_eq!(questions(&out), [[]; 0], "region 1 may still run it, and would adopt it");
    assert_eq!(written(&bench.moves(Some(1))), [], "a move is refused too");
    let out = bench.hear(1, ToCoordinator::Drained(vec![(SHARD, g(2))]));
    assert_eq!((stopped(&out), questions(&out)), (vec![2], vec![vec![SHARD]]));
    let out = bench.place(&[(SHARD, 1)]);
    assert_eq!(written(&out), [(3, vec![(SHARD, cell(g(3), Some(1), &[]))])]);
}

#[test]
fn newest_stop_request_is_answered() {
    let mut bench = Bench::hosted();
    bench.hear(2, ToCoordinator::Stop(vec![(SHARD, 4)]));
    bench.answer(StoreAnswer::Written);
    bench.hear(2, ToCoordinator::Stop(vec![(SHARD, 5)]));
    bench.hear(2, ToCoordinator::Stop(vec![(SHARD, 4)])); // late
    let out = bench.hear(1, ToCoordinator::Drained(vec![(SHARD, g(2))]));
    assert!(sent(&out).contains(&(2, ToRegion::Stopped(vec![(SHARD, 5)]))), "{out:?}");
}

#[test]
fn stop_overrides_pending_question_to_strategy() {
    let mut bench = Bench::hosted();
    bench.hear(1, ToCoordinator::Leaving);
    bench.hear(2, ToCoordinator::Stop(vec![(SHARD, 1)]));
    assert_eq!(written(&bench.place(&[(SHARD, 3)])), [], "the stop is decided already");
    bench.answer(StoreAnswer::Written);
    bench.hear(3, ToCoordinator::GetShardHome(vec![SHARD]));
    let out = bench.tell(CoordinatorInput::Installed(installed(2, 2..=5)));
    assert_eq!((stopped(&out), questions(&out)), (vec![2], vec![vec![SHARD]]), "1 is out");
}

#[test]
fn removed_requester_of_a_stop_blocks_nothing() {
    let mut bench = Bench::hosted();
    bench.hear(2, ToCoordinator::Stop(vec![(SHARD, 1)]));
    bench.answer(StoreAnswer::Written);
    bench.hear(3, ToCoordinator::GetShardHome(vec![SHARD]));
    let out = bench.tell(CoordinatorInput::Installed(installed(2, [1, 3, 4, 5])));
    assert_eq!(questions(&out), [vec![SHARD]]);
}

#[test]
fn confirmation_before_stop_is_written_does_not_end_it() {
    let mut bench = Bench::acting(1..=3);
    bench.hear(1, ToCoordinator::GetShardHome(vec![SHARD]));
    bench.place(&[(SHARD, 1)]);
    bench.answer(StoreAnswer::Written);
    bench.hear(2, ToCoordinator::Stop(vec![(SHARD, 1)]));
    let out = bench.hear(1, ToCoordinator::Hosted(vec![(SHARD, g(1))]));
    assert_eq!(stopped(&out), Vec::<u64>::new());
    bench.answer(StoreAnswer::Written);
    let out = bench.hear(1, ToCoordinator::Drained(vec![(SHARD, g(2))]));
    assert_eq!(stopped(&out), [2]);
}
