//! Tests of the takeover, step by step, and of the end of a coordinator.

use super::*;

fn read() -> Vec<(ShardId, ShardHome)> {
    let old = |number, seq| Generation::new(Term { number, owner: ReplicaId::new(3) }, seq);
    vec![
        (ShardId::new(1), cell(old(4, 2), Some(1), &[])),
        (SHARD, cell(old(2, 9), Some(2), &[(3, 0)])),
    ]
}

/// The coordinator has read two cells, and rewrites them.
fn rewriting() -> (Bench, Vec<CoordinatorOutput>) {
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Start { above: 4 });
    let out = bench.answer(StoreAnswer::Fenced(read(), None, None));
    (bench, out)
}

#[test]
fn takes_a_term_above_all_that_its_process_knows() {
    let mut bench = Bench::new(CoordinatorConfig::default());
    let out = bench.tell(CoordinatorInput::Start { above: 4 });
    assert_eq!(
        asked(&out),
        [StoreRequest::Fence { term: term(5), within: Duration::from_secs(2) }]
    );
    assert_eq!(bench.tell(CoordinatorInput::Start { above: 9 }), [], "it has started already");
}

#[test]
fn late_fencing_read_repeats_at_once_impossible_one_later() {
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Start { above: 0 });
    assert_eq!(asked(&bench.answer(StoreAnswer::Late)).len(), 1);
    assert_eq!(bench.answer(StoreAnswer::NotNow { why: "not joined".into() }), []);
    assert_eq!(bench.machine.hindrance(), Some("not joined"));
    let (waited, out) = bench.wait().unwrap();
    let again = StoreRequest::Fence { term: term(1), within: Duration::from_secs(2) };
    assert_eq!((waited, asked(&out)), (200, vec![again]));
}

#[test]
fn refused_fencing_read_raises_the_term() {
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Start { above: 0 });
    let current = Term { number: 8, owner: ReplicaId::new(3) };
    bench.answer(StoreAnswer::Refused { current });
    let (_, out) = bench.wait().unwrap();
    assert_eq!(
        asked(&out),
        [StoreRequest::Fence { term: term(9), within: Duration::from_secs(2) }]
    );
}

#[test]
fn cells_of_a_higher_term_raise_the_own_term() {
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Start { above: 0 });
    assert_eq!(
        bench.answer(StoreAnswer::Fenced(read(), None, None)),
        [],
        "the cells have terms 4 and 2, its own is 1"
    );
    let (_, out) = bench.wait().unwrap();
    assert_eq!(
        asked(&out),
        [StoreRequest::Fence { term: term(5), within: Duration::from_secs(2) }]
    );
}

#[test]
fn takeover_rewrites_every_cell_before_speaking() {
    let (mut bench, out) = rewriting();
    assert_eq!(written(&out), [(1, read())]);
    assert_eq!((sent(&out), bench.machine.phase()), (vec![], CoordinatorPhase::Rewriting));
    let out = bench.register(1, &[]);
    assert_eq!(
        sent(&out),
        [(1, ToRegion::NotYet(crate::sharding::wire::RegistrationRefusal::Reading))]
    );
    assert_eq!(bench.hear(1, ToCoordinator::GetShardHome(vec![SHARD])), []);
    let out = bench.answer(StoreAnswer::Written);
    assert!(out.contains(&CoordinatorOutput::Acting(term(5))));
    let here = (1..=5).map(|id| (id, ToRegion::Here(term(5))));
    assert_eq!(sent(&out), here.collect::<Vec<_>>());
    assert_eq!(bench.machine.record(SHARD).unwrap().home(), &read()[1].1);
}

#[test]
fn a_late_recovery_write_is_repeated_under_a_higher_stamp() {
    let (mut bench, _) = rewriting();
    assert_eq!(written(&bench.answer(StoreAnswer::Late)), [(2, read())]);
    assert_eq!(bench.machine.phase(), CoordinatorPhase::Rewriting);
}

#[test]
fn many_cells_are_written_in_several_batches() {
    let mut bench = Bench::new(CoordinatorConfig { shards: 10_000, ..Default::default() });
    bench.tell(CoordinatorInput::Start { above: 0 });
    let cells = |from, to| (from..to).map(|s| (ShardId::new(s), cell(g(1), Some(1), &[])));
    let out = bench.answer(StoreAnswer::Fenced(cells(0, 5_000).collect(), None, None));
    assert_eq!(written(&out), [(1, cells(0, 4_096).collect())]);
    let out = bench.answer(StoreAnswer::Written);
    assert_eq!(written(&out), [(2, cells(4_096, 5_000).collect())]);
    bench.answer(StoreAnswer::Written);
    assert_eq!(
        (bench.machine.phase(), bench.machine.records().count()),
        (CoordinatorPhase::Active, 5_000)
    );
}

#[test]
fn refused_coordinator_is_silent_for_good() {
    let current = Term { number: 7, owner: ReplicaId::new(3) };
    let mut acting = Bench::hosted();
    acting.moves(Some(2));
    for mut bench in [rewriting().0, acting] {
        let out = bench.answer(StoreAnswer::Refused { current });
        assert!(matches!(&out[..], [CoordinatorOutput::SteppedDown { highest, .. }]
            if *highest == current));
        assert_eq!(bench.tell(CoordinatorInput::Start { above: 0 }), []);
        assert_eq!(bench.moves(Some(3)), []);
        assert_eq!(bench.hear(1, ToCoordinator::GetShardHome(vec![SHARD])), []);
        assert_eq!((bench.wait(), bench.machine.phase()), (None, CoordinatorPhase::Down));
        let out = bench.register(1, &[]);
        assert_eq!(
            sent(&out),
            [(1, ToRegion::NotYet(crate::sharding::wire::RegistrationRefusal::Elsewhere))]
        );
    }
}

#[test]
fn reported_higher_term_ends_the_coordinator() {
    let mut bench = Bench::hosted();
    let highest = Generation::new(Term { number: 2, owner: ReplicaId::new(3) }, 1);
    let word = ToCoordinator::Register {
        proxy: false,
        hosted: vec![],
        highest,
        agreed: AgreedSettings::default(),
        slow: Vec::new(),
    };
    let out = bench.hear(2, word);
    assert!(matches!(&out[..], [CoordinatorOutput::SteppedDown { highest: term, .. }]
        if *term == highest.term));
}

#[test]
fn stopped_coordinator_forgets_and_restarts_at_a_higher_term() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    let late = bench.machine.pending_request.unwrap();
    bench.tell(CoordinatorInput::Stop);
    let answer = StoreAnswer::Written;
    assert_eq!(bench.tell(CoordinatorInput::Answered { id: late, answer }), []);
    assert_eq!(
        (bench.machine.phase(), bench.machine.records().count()),
        (CoordinatorPhase::Off, 0)
    );
    let out = bench.tell(CoordinatorInput::Start { above: 0 });
    assert_eq!(
        asked(&out),
        [StoreRequest::Fence { term: term(2), within: Duration::from_secs(2) }]
    );
}

#[test]
fn takeover_repeats_only_unconfirmed_decisions() {
    let (mut bench, _) = rewriting();
    bench.answer(StoreAnswer::Written);
    let [(one, first), (_, second)] = <[_; 2]>::try_from(read()).unwrap();
    let out = bench.register(1, &[(one, first.generation)]);
    assert!(matches!(&sent(&out)[..], [(1, ToRegion::RegisterAck { .. })]), "{out:?}");
    let out = bench.register(2, &[]);
    assert_eq!(
        sent(&out)[1..],
        [
            (2, host(&second)),
            (3, {
                let ShardHome { generation, region: to, ref after, .. } = second;
                let listed = after[&region(3)];
                ToRegion::Release(vec![ReleaseShard { shard: SHARD, generation, to, listed }])
            })
        ]
    );
    bench.hear(2, ToCoordinator::Hosted(vec![(SHARD, second.generation)]));
    assert_eq!(bench.wait(), None, "every decision is settled");
}

#[test]
fn homes_that_were_lost_meanwhile_are_replaced_by_one_write() {
    let (mut bench, _) = rewriting();
    bench.tell(CoordinatorInput::Installed(installed(2, [3, 4])));
    bench.answer(StoreAnswer::Written);
    assert_eq!(questions(&bench.register(3, &[])), [vec![ShardId::new(1), SHARD]]);
    let out = bench.place(&[(ShardId::new(1), 3), (SHARD, 3)]);
    let [(2, cells)] = &written(&out)[..] else { panic!("{out:?}") };
    let after = |index: usize| cells[index].1.after.keys().copied().collect::<Vec<_>>();
    assert_eq!((after(0), after(1)), (vec![region(1)], vec![region(2)]), "3 is the home now");
}

#[test]
fn known_failure_11_answers_after_a_stop_are_ignored() {
    for rewrites in [false, true] {
        let mut bench = Bench::new(CoordinatorConfig::default());
        bench.tell(CoordinatorInput::Start { above: 4 });
        let mut answer = StoreAnswer::Fenced(read(), None, None);
        if rewrites {
            bench.answer(answer);
            answer = StoreAnswer::Written;
        }
        let late = bench.machine.pending_request.unwrap();
        bench.tell(CoordinatorInput::Stop);
        assert_eq!(bench.tell(CoordinatorInput::Answered { id: late, answer: answer.clone() }), []);
        assert_eq!(
            (bench.machine.phase(), bench.machine.records().count()),
            (CoordinatorPhase::Off, 0)
        );
        let out = bench.tell(CoordinatorInput::Start { above: 4 });
        assert_eq!(
            asked(&out),
            [StoreRequest::Fence { term: term(6), within: Duration::from_secs(2) }]
        );
        assert_eq!(bench.tell(CoordinatorInput::Answered { id: late, answer }), []);
        assert_eq!(
            bench.machine.phase(),
            CoordinatorPhase::Reading,
            "the request was of the former run"
        );
    }
}

/// A coordinator whose node has the type in `shards` shards. It has read `cells`, and settings with
/// `there` shards.
fn agreeing(
    shards: u32,
    cells: Vec<(ShardId, ShardHome)>,
    there: Option<u32>,
) -> (Bench, Vec<CoordinatorOutput>) {
    let says =
        |shards| AgreedSettings { shards, extractor: "xxh3".into(), ..AgreedSettings::default() };
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.machine = bench.machine.agreeing(says(shards));
    bench.tell(CoordinatorInput::Start { above: 4 });
    let out = bench.answer(StoreAnswer::Fenced(cells, there.map(says), None));
    (bench, out)
}

/// Numbers of shards in writes of settings, with the sequence number of each stamp.
fn agrees(outputs: &[CoordinatorOutput]) -> Vec<(u64, u32)> {
    let asked = asked(outputs).into_iter().filter_map(|ask| match ask {
        StoreRequest::Agree { seq, agreed, .. } => Some((seq, agreed.shards)),
        _ => None,
    });
    asked.collect()
}

#[test]
fn first_coordinator_overwrites_settings_without_homes() {
    for there in [None, Some(1_000), Some(100)] {
        let (mut bench, out) = agreeing(1_000, vec![], there);
        assert_eq!(
            (agrees(&out), bench.machine.phase()),
            (vec![(1, 1_000)], CoordinatorPhase::Rewriting)
        );
        assert_eq!(agrees(&bench.answer(StoreAnswer::Late)), [(2, 1_000)]);
        let out = bench.answer(StoreAnswer::Written);
        assert!(out.contains(&CoordinatorOutput::Acting(term(5))), "{there:?}");
    }
}

#[test]
fn homes_without_settings_get_settings_before_the_rewrite() {
    let (mut bench, out) = agreeing(1_000, read(), None);
    assert_eq!((agrees(&out), written(&out)), (vec![(1, 1_000)], vec![]));
    assert_eq!(written(&bench.answer(StoreAnswer::Written)), [(2, read())]);
}

#[test]
fn settings_mismatch_with_homes_steps_down_without_a_write() {
    let (mut bench, out) = agreeing(100, read(), Some(1_000));
    let [CoordinatorOutput::SteppedDown { .. }, CoordinatorOutput::Differs(there)] = &out[..]
    else {
        panic!("{out:?}");
    };
    assert_eq!((there.shards, bench.machine.phase()), (1_000, CoordinatorPhase::Down));
    assert_eq!(bench.register(1, &[]).len(), 1, "the region is told to look elsewhere");
    let (_, out) = agreeing(1_000, read(), Some(1_000));
    assert_eq!((agrees(&out), written(&out)), (vec![], vec![(1, read())]), "the settings agree");
}

#[test]
fn refused_write_of_settings_ends_the_coordinator() {
    let (mut bench, _) = agreeing(1_000, vec![], None);
    let current = Term { number: 9, owner: ReplicaId::new(3) };
    let out = bench.answer(StoreAnswer::Refused { current });
    assert!(matches!(&out[..], [CoordinatorOutput::SteppedDown { .. }]), "{out:?}");
    assert_eq!(bench.hear(1, ToCoordinator::GetShardHome(vec![SHARD])), []);
}
