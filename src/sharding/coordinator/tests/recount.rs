//! Recount after a forced configuration: the nodes asked, the decisions made again, and
//! interruptions.

use std::collections::BTreeSet;

use super::*;
use crate::sharding::installed::ForcedGeneration;
use crate::sharding::store::RecountRecord;
use crate::sharding::wire::RegistrationRefusal;

const OTHER: ShardId = ShardId::new(3);

/// A generation of an earlier term, whose owner is lost.
fn old(number: u64, seq: u64) -> Generation {
    Generation::new(Term { number, owner: ReplicaId::new(4) }, seq)
}

fn lives(generation: Generation, home: Option<u64>, after: &[(u64, Generation)]) -> ShardHome {
    let after = after.iter().map(|(id, at)| (region(*id), *at)).collect();
    ShardHome { generation, region: home.map(region), after, epoch: forced([]).epoch }
}

/// Id of the forced configuration.
const ORIGIN: EpochId = EpochId { generation: 2, number: 6 };

/// Base of the term numbers in these tests: the first term after the forced configuration is number
/// 9.
const BASE: u64 = (2 << 20) - 8;

fn term(number: u64) -> Term {
    super::term(BASE + number)
}

/// The forced configuration with these members, installed.
fn forced(members: impl IntoIterator<Item = u64>) -> Installed {
    let members: BTreeSet<RegionId> = members.into_iter().map(region).collect();
    let forced = Some(ForcedGeneration { origin: ORIGIN, kept: members.clone() });
    Installed { epoch: ORIGIN, members, forced }
}

/// A later configuration; the forced one kept 1, 2 and 3.
fn later(number: u64, members: impl IntoIterator<Item = u64>) -> Installed {
    let members = members.into_iter().map(region).collect();
    let number = ORIGIN.number + number;
    Installed { epoch: EpochId { number, ..ORIGIN }, members, ..forced(1..=3) }
}

/// A coordinator at term 9 that has read these cells, written them again and begun to ask 1, 2 and
/// 3.
fn asking(cells: Vec<(ShardId, ShardHome)>) -> (Bench, Vec<CoordinatorOutput>) {
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Installed(forced(1..=3)));
    bench.tell(CoordinatorInput::Start { above: 2 });
    let is_empty = cells.is_empty();
    let mut out = bench.answer(StoreAnswer::Fenced(cells, None, None));
    if !is_empty {
        out = bench.answer(StoreAnswer::Written);
    }
    (bench, out)
}

impl Bench {
    fn count(
        &mut self,
        from: u64,
        hosted: &[(ShardId, Generation)],
        told: &[(ShardId, Generation, Option<u64>)],
    ) -> Vec<CoordinatorOutput> {
        let route = |(shard, generation, home): &(ShardId, Generation, Option<u64>)| ShardRoute {
            shard: *shard,
            generation: *generation,
            home: home.map(region),
        };
        let highest = told.iter().map(|(_, at, _)| *at).max().unwrap_or_default();
        let (hosted, told) = (hosted.to_vec(), told.iter().map(route).collect());
        let term = self.machine.term();
        self.hear(from, ToCoordinator::Counted { term, hosted, told, highest })
    }
}

impl Bench {
    /// The answer of a node in a part: the shards from `first` on.
    fn part(
        &mut self,
        from: u64,
        (first, next): (u32, Option<u32>),
        told: &[(ShardId, Generation)],
    ) -> Vec<CoordinatorOutput> {
        let route = |(shard, generation): &(ShardId, Generation)| {
            let (shard, generation) = (*shard, *generation);
            ShardRoute { shard, generation, home: Some(region(from)) }
        };
        let word = ToCoordinator::CountedPart {
            term: self.machine.term(),
            first: ShardId::new(first),
            next: next.map(ShardId::new),
            hosted: told.to_vec(),
            told: told.iter().map(route).collect(),
            highest: Generation::NEVER,
        };
        self.hear(from, word)
    }
}

/// The nodes asked, with the first shard of each request.
fn asks_from(outputs: &[CoordinatorOutput]) -> Vec<(u64, u32)> {
    let asks = sent(outputs).into_iter().filter_map(|(to, word)| match word {
        ToRegion::Recount { first, .. } => {
            Some((to, first.expect("the request allows parts").get()))
        }
        _ => None,
    });
    asks.collect()
}

/// The record of a recount completed by term 9.
fn of_term_9(origin: Option<EpochId>) -> Option<RecountRecord> {
    origin.map(|origin| RecountRecord { origin, term: term(9) })
}

fn recounts(outputs: &[CoordinatorOutput]) -> Vec<u64> {
    let words = sent(outputs).into_iter();
    words.filter(|(_, word)| matches!(word, ToRegion::Recount { .. })).map(|(to, _)| to).collect()
}

fn recorded(outputs: &[CoordinatorOutput]) -> Option<EpochId> {
    asked(outputs).into_iter().find_map(|ask| match ask {
        StoreRequest::Recover { recovered, .. } => Some(recovered.origin),
        _ => None,
    })
}

#[test]
fn recount_asks_all_survivors_until_they_answer() {
    let (mut bench, out) = asking(vec![(SHARD, cell(old(2, 9), Some(1), &[]))]);
    assert_eq!(
        (recounts(&out), bench.machine.phase()),
        (vec![1, 2, 3], CoordinatorPhase::Recounting)
    );
    assert_eq!(
        sent(&bench.register(1, &[])),
        [(1, ToRegion::NotYet(RegistrationRefusal::Reading))]
    );
    assert_eq!(bench.hear(1, ToCoordinator::GetShardHome(vec![OTHER])), []);
    assert_eq!(bench.count(1, &[], &[]), []);
    assert_eq!(bench.count(5, &[], &[]), [], "node 5 was given up");
    let (waited, out) = bench.wait().unwrap();
    assert_eq!((waited, recounts(&out)), (2_000, vec![2, 3]));
    let mut warned = false;
    while !warned {
        let (_, out) = bench.wait().unwrap();
        warned = out.iter().any(|out| {
            matches!(out, CoordinatorOutput::Slow(slow)
            if slow.awaited == [region(2), region(3)])
        });
    }
    assert_eq!(bench.now.mono.as_nanos() / 1_000_000, 10_000);
    assert_eq!(
        (bench.machine.phase(), bench.machine.stats().terms),
        (CoordinatorPhase::Recounting, 0)
    );
}

#[test]
fn recount_keeps_running_shards_and_frees_lost_homes() {
    let stored = vec![
        (ShardId::new(1), cell(old(2, 1), Some(1), &[])),
        (ShardId::new(2), cell(old(2, 2), Some(5), &[])),
    ];
    let (mut bench, _) = asking(stored);
    let one = (ShardId::new(1), old(2, 1), Some(1));
    bench.count(1, &[(one.0, one.1)], &[one]);
    // unknown to the survivors' replicas
    bench.count(2, &[(OTHER, old(3, 1))], &[(OTHER, old(3, 1), Some(2))]);
    let out = bench.count(3, &[], &[]);
    let now = g_of(9, 2);
    let cells = vec![
        (ShardId::new(1), lives(now, Some(1), &[])),
        (ShardId::new(2), lives(now, Some(5), &[])),
        (OTHER, lives(now, Some(2), &[])),
    ];
    assert_eq!(written(&out), [(2, cells)]);
    assert_eq!(sent(&out), [], "nothing is sent before a quorum holds it");
    let out = bench.answer(StoreAnswer::Written);
    assert_eq!((recorded(&out), sent(&out)), (Some(ORIGIN), vec![]));
    let out = bench.answer(StoreAnswer::Written);
    assert!(out.contains(&CoordinatorOutput::Acting(bench.machine.term())), "{out:?}");
    assert_eq!(bench.machine.stats().recounts, 1);
    let (_, out) = bench.wait().unwrap(); // unregistered regions have heard nothing yet
    let hosts = sent(&out).into_iter().filter_map(|(to, word)| match word {
        ToRegion::Host(words) => {
            Some((to, words.iter().map(|word| word.shard).collect::<Vec<_>>()))
        }
        _ => None,
    });
    assert_eq!(hosts.collect::<Vec<_>>(), [(1, vec![ShardId::new(1)]), (2, vec![OTHER])]);
    let out = bench.register(1, &[(one.0, one.1)]);
    assert_eq!(
        questions(&out),
        [vec![ShardId::new(2)]],
        "the shard of the lost home gets a new one"
    );
    assert_eq!(bench.machine.stats().duplicate_home_detected, 0);
}

fn g_of(number: u64, seq: u64) -> Generation {
    Generation::new(term(number), seq)
}

/// Name, stored cell, hosting nodes, told decisions; then the expected home and predecessors.
type Case<'a> = (
    &'a str,
    Option<(u64, Option<u64>)>,
    &'a [(u64, u64)],
    &'a [(u64, u64, Option<u64>)],
    Option<u64>,
    &'a [(u64, u64)],
);

#[test]
fn recount_repeats_the_newest_known_decision() {
    const CASES: &[Case<'_>] = &[
        (
            "moved to a survivor",
            Some((3, Some(1))),
            &[(2, 5)],
            &[(2, 5, Some(2))],
            Some(2),
            &[(1, 3)],
        ),
        (
            "moving",
            Some((3, Some(1))),
            &[(1, 3)],
            &[(1, 3, Some(1)), (2, 5, Some(2))],
            Some(2),
            &[(1, 3)],
        ),
        ("released to a lost one", Some((3, Some(1))), &[], &[(1, 5, Some(4))], Some(4), &[(1, 3)]),
        ("draining to a lost one", None, &[(1, 3)], &[(1, 5, Some(4))], Some(1), &[(4, 5)]),
        ("stopped", Some((3, Some(1))), &[], &[(1, 5, None)], None, &[(1, 3)]),
        ("told only", None, &[], &[(3, 5, Some(3))], Some(3), &[]),
        ("stored only", Some((3, Some(2))), &[], &[], Some(2), &[]),
    ];
    for (what, stored, hosted, told, home, after) in CASES {
        let at = |seq: u64| old(2, seq);
        let stored = stored.map(|(seq, home)| (SHARD, cell(at(seq), home, &[])));
        let (mut bench, _) = asking(stored.into_iter().collect());
        let mut out = Vec::new();
        for id in 1..=3 {
            let of = |hosts: &&(u64, u64)| hosts.0 == id;
            let hosted = hosted.iter().filter(of).map(|(_, seq)| (SHARD, at(*seq)));
            let told = told.iter().filter(|told| told.0 == id);
            let told = told.map(|(_, seq, home)| (SHARD, at(*seq), *home));
            out = bench.count(id, &hosted.collect::<Vec<_>>(), &told.collect::<Vec<_>>());
        }
        let after: Vec<_> = after.iter().map(|(id, seq)| (*id, at(*seq))).collect();
        let [(seq, cells)] = &written(&out)[..] else { panic!("{what}: {out:?}") };
        assert_eq!(cells[..], [(SHARD, lives(g_of(9, *seq), *home, &after))], "{what}");
    }
}

#[test]
fn silent_node_is_awaited_until_removed_new_one_not_asked() {
    let (mut bench, _) = asking(vec![]);
    bench.count(1, &[], &[]);
    bench.count(2, &[], &[]);
    let out = bench.tell(CoordinatorInput::Installed(later(8, [1, 2, 3, 6])));
    assert_eq!((recounts(&out), bench.machine.phase()), (vec![3], CoordinatorPhase::Recounting));
    assert_eq!(bench.count(6, &[], &[]), [], "node 6 joined later");
    let out = bench.tell(CoordinatorInput::Installed(later(9, [1, 2, 6])));
    assert_eq!(
        (recorded(&out), bench.machine.phase()),
        (Some(ORIGIN), CoordinatorPhase::Rewriting)
    );
    bench.answer(StoreAnswer::Written);
    assert_eq!(bench.machine.phase(), CoordinatorPhase::Active);
}

/// A type that is started long afterwards, when all kept members are gone, needs no answer.
#[test]
fn recount_without_kept_members_asks_nobody() {
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Installed(later(12, [6, 7])));
    bench.tell(CoordinatorInput::Start { above: 0 });
    let out = bench.answer(StoreAnswer::Fenced(Vec::new(), None, None));
    assert_eq!((recounts(&out), recorded(&out)), (vec![], Some(ORIGIN)));
    bench.answer(StoreAnswer::Written);
    assert_eq!(bench.machine.phase(), CoordinatorPhase::Active);
}

#[test]
fn answer_of_removed_node_is_dropped() {
    let (mut bench, _) = asking(vec![]);
    bench.count(3, &[(SHARD, old(2, 1))], &[(SHARD, old(2, 1), Some(3))]);
    bench.count(2, &[], &[]);
    bench.tell(CoordinatorInput::Installed(later(8, [1, 2])));
    let out = bench.count(1, &[], &[]);
    assert_eq!((written(&out), recorded(&out)), (vec![], Some(ORIGIN)));
}

#[test]
fn interrupted_recount_is_repeated_recorded_one_is_not() {
    // Records of other forced configurations, also of the same generation: two operators forced one
    // each.
    let others = [EpochId { generation: 1, ..ORIGIN }, EpochId { number: 5, ..ORIGIN }];
    for recorded in [None, Some(others[0]), Some(others[1]), Some(ORIGIN)].map(of_term_9) {
        let (mut bench, _) = asking(vec![]);
        (1..=2).for_each(|id| {
            bench.count(id, &[], &[]);
        });
        let out = bench.count(3, &[(SHARD, old(2, 1))], &[(SHARD, old(2, 1), Some(3))]);
        let cells = written(&out).remove(0).1;
        bench.answer(StoreAnswer::Written);
        bench.tell(CoordinatorInput::Stop);
        bench.tell(CoordinatorInput::Start { above: BASE + 9 });
        bench.answer(StoreAnswer::Fenced(cells, None, recorded));
        let out = bench.answer(StoreAnswer::Written);
        if recorded == of_term_9(Some(ORIGIN)) {
            assert!(out.contains(&CoordinatorOutput::Acting(term(10))), "{out:?}");
            continue;
        }
        assert_eq!(recounts(&out), [1, 2, 3], "{recorded:?}");
        (1..=2).for_each(|id| {
            bench.count(id, &[], &[]);
        });
        // Node 3 has not heard of the decision in between: it was never announced.
        let out = bench.count(3, &[(SHARD, old(2, 1))], &[(SHARD, old(2, 1), Some(3))]);
        assert_eq!(written(&out)[0].1, [(SHARD, lives(g_of(10, 2), Some(3), &[]))]);
    }
}

#[test]
fn reported_higher_term_ends_the_recount() {
    let (mut bench, _) = asking(vec![]);
    let out = bench.count(1, &[], &[(SHARD, old(BASE + 12, 1), Some(1))]);
    let [CoordinatorOutput::SteppedDown { highest, .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!(*highest, old(BASE + 12, 1).term);
}

#[test]
fn forced_configuration_ends_active_coordinator() {
    let mut bench = Bench::hosted();
    let out = bench.tell(CoordinatorInput::Installed(forced(1..=3)));
    assert!(matches!(&out[..], [CoordinatorOutput::SteppedDown { .. }]), "{out:?}");
    assert_eq!(bench.machine.phase(), CoordinatorPhase::Down);
    let mut bench = Bench::hosted();
    bench.tell(CoordinatorInput::Installed(later(8, 1..=3)));
    assert_eq!(
        bench.machine.phase(),
        CoordinatorPhase::Down,
        "also if the forced one itself was missed"
    );
}

#[test]
fn other_forced_configuration_of_same_generation_counts_anew() {
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Installed(later(8, 1..=3)));
    bench.tell(CoordinatorInput::Start { above: 0 });
    bench.answer(StoreAnswer::Fenced(Vec::new(), None, of_term_9(Some(ORIGIN))));
    assert_eq!(bench.machine.phase(), CoordinatorPhase::Active);
    let origin = EpochId { number: ORIGIN.number + 90, ..ORIGIN };
    let kept = [2, 3].map(region).into();
    let theirs = Installed {
        epoch: origin,
        forced: Some(ForcedGeneration { origin, kept }),
        ..forced(2..=3)
    };
    bench.tell(CoordinatorInput::Installed(theirs));
    assert_eq!(bench.machine.phase(), CoordinatorPhase::Down);
}

/// Its epoch is that of the forced configuration and its term is below the recorded one, so it
/// comes from a recount that did not complete. No region acts on it.
#[test]
fn decision_of_incomplete_recount_is_made_again() {
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Installed(forced(1..=3)));
    bench.tell(CoordinatorInput::Start { above: BASE + 11 });
    let unfinished = lives(g_of(9, 2), Some(1), &[]);
    let recovered = RecountRecord { origin: ORIGIN, term: term(10) };
    let cells = vec![(SHARD, unfinished.clone())];
    let out = bench.answer(StoreAnswer::Fenced(cells, None, Some(recovered)));
    let again = ShardHome { generation: g_of(12, 1), ..unfinished };
    assert_eq!(written(&out), [(1, vec![(SHARD, again)])]);
}

/// The earlier coordinator had installed a later configuration; the home must not judge removals by
/// an older one.
#[test]
fn repeated_decision_never_lowers_its_epoch() {
    let ahead = |generation| ShardHome {
        epoch: later(8, []).epoch,
        ..lives(generation, Some(1), &[(2, old(2, 1))])
    };
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Installed(forced(1..=3)));
    bench.tell(CoordinatorInput::Start { above: BASE + 11 });
    let recovered = RecountRecord { origin: ORIGIN, term: term(10) };
    let cells = vec![(SHARD, ahead(g_of(9, 2)))];
    let out = bench.answer(StoreAnswer::Fenced(cells, None, Some(recovered)));
    assert_eq!(written(&out), [(1, vec![(SHARD, ahead(g_of(12, 1)))])]);
    let (mut bench, _) = asking(vec![(SHARD, ahead(old(2, 9)))]);
    (1..=2).for_each(|id| {
        bench.count(id, &[], &[]);
    });
    let out = bench.count(3, &[], &[]);
    let epochs: Vec<EpochId> = written(&out)[0].1.iter().map(|(_, home)| home.epoch).collect();
    assert_eq!(epochs, [later(8, []).epoch]);
}

#[test]
fn impossible_terms_are_not_counted() {
    let (mut bench, _) = asking(vec![]);
    let never = Generation::new(Term { number: u64::MAX, owner: ReplicaId::new(4) }, 1);
    (1..=2).for_each(|id| {
        bench.count(id, &[], &[]);
    });
    let hosted = [(SHARD, old(2, 1)), (OTHER, never)];
    let told = [(SHARD, old(2, 1), Some(3)), (OTHER, never, Some(3))];
    let out = bench.count(3, &hosted, &told);
    assert_eq!(written(&out)[0].1, [(SHARD, lives(g_of(9, 1), Some(3), &[]))]);
    assert_eq!(bench.machine.stats().strange, 2);
}

/// Only a survivor's replica held the decision, and it was read after the recount.
#[test]
fn older_decision_read_after_recount_is_made_again() {
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Installed(forced(1..=3)));
    bench.tell(CoordinatorInput::Start { above: BASE + 9 });
    let newer = lives(g_of(9, 2), Some(1), &[]);
    let older = cell(old(2, 4), Some(2), &[(3, 1)]);
    let cells = vec![(SHARD, newer.clone()), (OTHER, older.clone())];
    let out = bench.answer(StoreAnswer::Fenced(cells, None, of_term_9(Some(ORIGIN))));
    let again = ShardHome { generation: g_of(10, 1), epoch: ORIGIN, ..older };
    assert_eq!(written(&out), [(1, vec![(OTHER, again), (SHARD, newer)])]);
    bench.answer(StoreAnswer::Written);
    assert_eq!(bench.machine.phase(), CoordinatorPhase::Active);
}

#[test]
fn first_term_is_above_all_terms_of_given_up_members() {
    for (above, expected) in [(0, 9), (BASE + 8, 9), (BASE + 20, 21)] {
        let mut bench = Bench::new(CoordinatorConfig::default());
        bench.tell(CoordinatorInput::Installed(forced(1..=3)));
        bench.tell(CoordinatorInput::Start { above });
        assert_eq!(bench.machine.term(), term(expected));
    }
}

#[test]
fn answers_of_other_terms_or_after_recount_are_ignored() {
    let (mut bench, _) = asking(vec![]);
    let (hosted, told) = (vec![(SHARD, old(2, 1))], RouteTable::default());
    let word = ToCoordinator::Counted { term: term(8), hosted, told, highest: old(2, 1) };
    assert_eq!(bench.hear(1, word.clone()), []);
    (1..=3).for_each(|id| {
        bench.count(id, &[], &[]);
    });
    bench.answer(StoreAnswer::Written);
    assert_eq!(bench.hear(1, word), []);
    assert_eq!(bench.count(1, &[(SHARD, old(2, 1))], &[]), []);
    assert_eq!(
        (bench.machine.phase(), bench.machine.record(SHARD)),
        (CoordinatorPhase::Active, None)
    );
}

/// Regression: an answer too long for one message was dropped each time, and the recount never
/// ended. A part that counted as the whole answer would give two hosts.
#[test]
fn recount_answer_in_parts_counts_when_complete() {
    let (mut bench, out) = asking(vec![]);
    assert_eq!(asks_from(&out), [(1, 0), (2, 0), (3, 0)]);
    (1..=2).for_each(|id| {
        bench.count(id, &[], &[]);
    });
    let (at, first) = (old(2, 1), [(ShardId::new(1), old(2, 1)), (OTHER, old(2, 1))]);
    assert_eq!(asks_from(&bench.part(3, (0, Some(5)), &first)), [(3, 5)]);
    assert_eq!(bench.part(3, (0, Some(5)), &first), [], "a duplicate");
    assert_eq!(bench.part(3, (6, None), &[(SHARD, at)]), [], "a part is missing");
    assert_eq!(bench.machine.phase(), CoordinatorPhase::Recounting);
    let (waited, out) = bench.wait().expect("the request is repeated");
    assert_eq!((waited, asks_from(&out)), (2_000, vec![]), "a part came since the last request");
    let (waited, out) = bench.wait().expect("the request is repeated");
    assert_eq!((waited, asks_from(&out)), (2_000, vec![(3, 5)]));
    assert_eq!(asks_from(&bench.part(3, (5, Some(7)), &[])), [(3, 7)]);
    let out = bench.part(3, (7, None), &[(SHARD, at)]);
    let decided = |shard| (shard, lives(g_of(9, 1), Some(3), &[]));
    assert_eq!(written(&out)[0].1, [ShardId::new(1), OTHER, SHARD].map(decided));
}

#[test]
fn invalid_parts_and_parts_of_removed_nodes_do_not_count() {
    let (mut bench, _) = asking(vec![]);
    (1..=2).for_each(|id| {
        bench.count(id, &[], &[]);
    });
    let (of, twice) = ([(SHARD, old(2, 1))], [(SHARD, old(2, 1)); 2]);
    assert_eq!(bench.part(3, (0, Some(7)), &of), [], "a shard above the range");
    assert_eq!(bench.part(3, (8, None), &of), [], "a shard below the range");
    assert_eq!(bench.part(3, (7, Some(8)), &twice), [], "more rows than shards");
    assert_eq!(bench.part(3, (7, Some(7)), &[]), [], "an empty range would never end");
    assert_eq!(bench.part(3, (0, Some(SHARDS_MAX + 1)), &[]), []);
    assert_eq!(bench.machine.stats().strange, 5);
    assert_eq!(asks_from(&bench.part(3, (0, Some(8)), &of)), [(3, 8)]);
    let out = bench.tell(CoordinatorInput::Installed(later(8, [1, 2])));
    assert_eq!((written(&out), recorded(&out)), (vec![], Some(ORIGIN)), "lost with its node");
    let (mut bench, _) = asking(vec![]);
    let out = bench.part(1, (0, Some(8)), &[(SHARD, old(BASE + 12, 1))]);
    assert!(matches!(&out[..], [CoordinatorOutput::SteppedDown { .. }]), "{out:?}");
}
