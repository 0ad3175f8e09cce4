//! Tests of registrations and audits, of leaving regions, and of the number and length of messages.

use super::*;
use crate::sharding::wire::{RegistrationRefusal, SLOW_SHARDS_MAX};

#[test]
fn known_failure_27_proxy_gets_all_homes_and_no_shard() {
    let mut bench = Bench::hosted();
    let (hosted, highest) = (Vec::new(), Generation::NEVER);
    let word = ToCoordinator::Register {
        proxy: true,
        hosted,
        highest,
        agreed: AgreedSettings::default(),
        slow: Vec::new(),
    };
    let route = ShardRoute { shard: SHARD, generation: g(1), home: Some(region(1)) };
    let homes: RouteTable = [route].into_iter().collect();
    assert_eq!(sent(&bench.hear(4, word)), [(4, ToRegion::RegisterAck { term: term(1), homes })]);
    assert_eq!((bench.moves(Some(4)), bench.machine.stats().refused), (vec![], 1));
    bench.moves(Some(2));
    let told = sent(&bench.answer(StoreAnswer::Written));
    assert!(told.contains(&(4, announce(2, Some(2)))), "a proxy learns homes");
}

#[test]
fn audit_gets_the_table_only_if_it_missed_a_decision() {
    let mut bench = Bench::hosted();
    for (highest, routes) in [(Generation::NEVER, 1), (g(1), 0)] {
        let out = bench.hear(
            2,
            ToCoordinator::Register {
                proxy: false,
                hosted: vec![],
                highest,
                agreed: AgreedSettings::default(),
                slow: Vec::new(),
            },
        );
        let [(2, ToRegion::RegisterAck { homes, .. })] = &sent(&out)[..] else {
            panic!("{out:?}");
        };
        assert_eq!(homes.len(), routes);
    }
}

#[test]
fn non_member_is_invited_once_it_is_a_member() {
    let mut bench = Bench::acting(1..=3);
    assert_eq!(
        sent(&bench.register(6, &[])),
        [(6, ToRegion::NotYet(RegistrationRefusal::NoMember))]
    );
    let out = bench.tell(CoordinatorInput::Installed(installed(2, 1..=6)));
    assert_eq!(sent(&out), [(6, ToRegion::Here(term(1)))]);
}

#[test]
fn registration_repeats_unconfirmed_host_at_once() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    bench.answer(StoreAnswer::Written);
    let out = sent(&bench.register(2, &[]));
    assert!(out.contains(&(2, host(&cell(g(2), Some(2), &[(1, 1)])))), "{out:?}");
    assert!(out.contains(&(1, release(2, Some(2), 1))), "{out:?}");
}

/// The shard has moved from region 1 to 2 and to 3. The cell no longer lists region 1.
fn moved_twice() -> Bench {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    bench.answer(StoreAnswer::Written);
    bench.hear(2, ToCoordinator::Hosted(vec![(SHARD, g(2))]));
    bench.moves(Some(3));
    bench.answer(StoreAnswer::Written);
    bench.hear(3, ToCoordinator::Hosted(vec![(SHARD, g(3))]));
    bench
}

#[test]
fn unauthorized_host_is_told_to_release_and_counted() {
    for (highest, counted) in [(g(1), 0), (g(2), 0), (g(3), 1)] {
        let mut bench = moved_twice();
        let hosted = vec![(SHARD, g(1))];
        let out = bench.hear(
            1,
            ToCoordinator::Register {
                proxy: false,
                hosted,
                highest,
                agreed: AgreedSettings::default(),
                slow: Vec::new(),
            },
        );
        assert!(sent(&out).contains(&(1, release(3, Some(3), 0))), "{out:?}");
        let stats = bench.machine.stats();
        assert_eq!(stats.duplicate_home_detected, counted, "highest generation {highest}");
    }
}

#[test]
fn region_that_must_still_release_is_no_duplicate() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    bench.answer(StoreAnswer::Written);
    let (hosted, highest) = (vec![(SHARD, g(1))], g(2));
    bench.hear(
        1,
        ToCoordinator::Register {
            proxy: false,
            hosted,
            highest,
            agreed: AgreedSettings::default(),
            slow: Vec::new(),
        },
    );
    assert_eq!(bench.machine.stats().duplicate_home_detected, 0);
}

#[test]
fn shard_running_without_a_decision_is_kept_there() {
    let mut bench = Bench::acting([1]);
    let lost = Generation::new(Term { number: 1, owner: ReplicaId::new(3) }, 4);
    let out = bench.register(2, &[(SHARD, lost)]);
    assert_eq!(written(&out), [(1, vec![(SHARD, cell(g(1), Some(2), &[]))])]);
}

/// Otherwise the next home would not wait for the leaving region.
#[test]
fn shard_running_at_a_leaving_region_is_recorded_first() {
    let mut bench = Bench::acting(1..=3);
    let other = ShardId::new(8);
    bench.hear(1, ToCoordinator::GetShardHome(vec![other]));
    bench.place(&[(other, 1)]); // the write is pending
    let lost = Generation::new(Term { number: 1, owner: ReplicaId::new(3) }, 4);
    bench.register(3, &[(SHARD, lost)]);
    let out = bench.hear(3, ToCoordinator::Leaving);
    let may_leave = |(_, word): &(_, ToRegion)| matches!(word, ToRegion::MayLeave(_));
    assert!(!sent(&out).iter().any(may_leave), "its shard is not recorded yet");
    let out = bench.answer(StoreAnswer::Written);
    assert_eq!(written(&out), [(2, vec![(SHARD, cell(g(2), Some(3), &[]))])]);
    assert_eq!(questions(&bench.answer(StoreAnswer::Written)), [[SHARD]]);
    let out = bench.place(&[(SHARD, 2)]);
    assert_eq!(written(&out), [(3, vec![(SHARD, cell(g(3), Some(2), &[(3, 2)]))])]);
}

#[test]
fn a_leaving_region_is_emptied_by_one_write_and_is_no_target() {
    let mut bench = Bench::acting(1..=3);
    let shards: Vec<_> = (0..10).map(ShardId::new).collect();
    bench.hear(1, ToCoordinator::GetShardHome(shards.clone()));
    bench.place(&shards.iter().map(|shard| (*shard, 1)).collect::<Vec<_>>());
    bench.answer(StoreAnswer::Written);
    let out = bench.hear(1, ToCoordinator::Leaving);
    assert_eq!(questions(&out), std::slice::from_ref(&shards));
    assert_eq!(bench.hear(1, ToCoordinator::Leaving), [], "a repeated request is ignored");
    assert_eq!(bench.place(&[(shards[0], 1)]), [], "a leaving region is no target");
    bench.wait();
    let out = bench.place(&shards.iter().map(|shard| (*shard, 3)).collect::<Vec<_>>());
    let lost = sent(&out).len();
    assert_eq!((written(&out).iter().map(|(_, cells)| cells.len()).sum::<usize>(), lost), (10, 0));
}

#[test]
fn the_last_region_leaves_its_shards_nowhere() {
    let mut bench = Bench::hosted();
    bench.hear(2, ToCoordinator::Leaving);
    bench.hear(3, ToCoordinator::Leaving);
    let out = bench.hear(1, ToCoordinator::Leaving);
    assert_eq!(written(&out), [(2, vec![(SHARD, cell(g(2), None, &[(1, 1)]))])]);
}

#[test]
fn question_ends_when_the_last_target_leaves() {
    let mut bench = Bench::hosted();
    assert_eq!(questions(&bench.hear(1, ToCoordinator::Leaving)), [vec![SHARD]]);
    let question =
        bench.machine.pending_decisions.question.as_ref().expect("a question is open").number;
    bench.hear(2, ToCoordinator::Leaving);
    let out = bench.hear(3, ToCoordinator::Leaving);
    let nowhere = [(2, vec![(SHARD, cell(g(2), None, &[(1, 1)]))])];
    assert_eq!(written(&out), nowhere, "no target is left");
    let homes = vec![Chosen { shard: SHARD, to: region(3), why: "test".into() }];
    let late = bench.tell(CoordinatorInput::Allocated { question, homes });
    assert_eq!((written(&late), questions(&late)), (vec![], vec![]), "the late answer is ignored");
}

#[test]
fn unknown_leaving_region_is_told_to_register() {
    let mut bench = Bench::acting(1..=3);
    bench.tell(CoordinatorInput::Installed(installed(2, 1..=4)));
    let here = |out: &[CoordinatorOutput], id| {
        sent(out).into_iter().any(|(to, word)| to == id && matches!(word, ToRegion::Here(_)))
    };
    assert!(here(&bench.hear(4, ToCoordinator::Leaving), 4), "4 is a member, not registered");
    assert!(!here(&bench.hear(9, ToCoordinator::Leaving), 9), "9 is no member");
    bench.register(4, &[]);
    let out = bench.hear(4, ToCoordinator::Leaving);
    assert!(!here(&out, 4));
    assert!(sent(&out).iter().any(|(to, word)| *to == 4 && matches!(word, ToRegion::MayLeave(_))));
}

#[test]
fn draining_1000_shards_takes_20_coordinator_messages() {
    let mut bench = Bench::new(CoordinatorConfig::default());
    bench.tell(CoordinatorInput::Installed(installed(2, 1..=10)));
    bench.tell(CoordinatorInput::Start { above: 0 });
    bench.answer(StoreAnswer::Fenced(Vec::new(), None, None));
    (1..=10).for_each(|id| {
        bench.register(id, &[]);
    });
    let shards: Vec<_> = (0..1_000).map(ShardId::new).collect();
    bench.hear(1, ToCoordinator::GetShardHome(shards.clone()));
    bench.place(&shards.iter().map(|shard| (*shard, 1)).collect::<Vec<_>>());
    bench.answer(StoreAnswer::Written);
    bench.hear(1, ToCoordinator::Hosted(shards.iter().map(|shard| (*shard, g(1))).collect()));
    bench.hear(1, ToCoordinator::Leaving);
    let to = |shard: &ShardId| (*shard, u64::from(shard.get() % 9) + 2);
    assert_eq!(written(&bench.place(&shards.iter().map(to).collect::<Vec<_>>())).len(), 1);
    assert_eq!(sent(&bench.answer(StoreAnswer::Written)).len(), 1 + 9 + 10);
    for id in 2..=10 {
        let its = shards.iter().filter(|shard| to(shard).1 == id);
        let its = its.map(|shard| (*shard, g(2))).collect();
        let told = sent(&bench.hear(id, ToCoordinator::Hosted(its)));
        assert_eq!(told, if id == 10 { vec![(1, may_leave())] } else { vec![] });
    }
    assert_eq!(bench.wait(), None);
    assert!(bench.machine.records().all(|(_, record)| record.is_settled()));
}

fn may_leave() -> ToRegion {
    ToRegion::MayLeave(term(1))
}

/// Once no open decision names a region, no later home waits for it.
#[test]
fn leaving_region_may_exit_once_no_decision_names_it() {
    let mut bench = Bench::hosted();
    assert_eq!(sent(&bench.hear(3, ToCoordinator::Leaving)), [(3, may_leave())], "never named");
    assert_eq!(sent(&bench.hear(3, ToCoordinator::Leaving)), [(3, may_leave())], "repeated");
    assert_eq!(bench.machine.leavers().count(), 0);
    let lets_go = |out: &[CoordinatorOutput], to| sent(out).contains(&(to, may_leave()));

    let mut bench = Bench::hosted();
    assert!(!lets_go(&bench.hear(1, ToCoordinator::Leaving), 1), "1 is the home");
    bench.place(&[(SHARD, 2)]);
    assert!(!lets_go(&bench.answer(StoreAnswer::Written), 1), "1 may still host");
    assert!(lets_go(&bench.hear(2, ToCoordinator::Hosted(vec![(SHARD, g(2))])), 1));

    let mut bench = Bench::hosted();
    bench.moves(Some(2)); // the write is pending
    assert!(!lets_go(&bench.hear(2, ToCoordinator::Leaving), 2), "2 may have become the home");
    assert!(!lets_go(&bench.answer(StoreAnswer::Written), 2), "2 is the home");
    bench.place(&[(SHARD, 3)]);
    assert!(!lets_go(&bench.answer(StoreAnswer::Written), 2), "2 must still receive its release");
    assert!(lets_go(&bench.hear(3, ToCoordinator::Hosted(vec![(SHARD, g(3))])), 2));

    let mut bench = Bench::hosted();
    bench.moves(None);
    bench.answer(StoreAnswer::Written);
    assert!(!lets_go(&bench.hear(1, ToCoordinator::Leaving), 1), "1 must still release the shard");
    assert!(lets_go(&bench.hear(1, ToCoordinator::Drained(vec![(SHARD, g(2))])), 1));
}

/// Other predecessors may take long, or may have crashed.
#[test]
fn leaving_region_waits_for_no_other_predecessor() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    bench.answer(StoreAnswer::Written);
    bench.moves(None);
    bench.answer(StoreAnswer::Written);
    let may = (1, may_leave());
    bench.hear(2, ToCoordinator::Drained(vec![(SHARD, g(2))]));
    assert!(!sent(&bench.hear(1, ToCoordinator::Leaving)).contains(&may), "1 has not drained");
    let out = bench.hear(1, ToCoordinator::Drained(vec![(SHARD, g(2))]));
    assert!(!sent(&out).contains(&may), "this drain was for an earlier decision");
    let out = bench.hear(1, ToCoordinator::Drained(vec![(SHARD, g(3))]));
    assert!(sent(&out).contains(&may), "{out:?}");
    assert!(!bench.machine.record(SHARD).expect("it is known").is_settled(), "2 has not drained");
}

#[test]
fn unwritten_home_on_a_leaving_region_is_replaced() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    let other = ShardId::new(8);
    bench.hear(3, ToCoordinator::GetShardHome(vec![other]));
    bench.place(&[(other, 3)]); // waits until the pending write has ended
    assert_eq!(bench.machine.planned(other), Some(region(3)));
    assert_eq!(questions(&bench.hear(3, ToCoordinator::Leaving)), [[other]]);
    let out = bench.place(&[(other, 2)]);
    assert!(written(&out).is_empty(), "{out:?}");
    let out = bench.answer(StoreAnswer::Written);
    let cells: Vec<_> = written(&out).into_iter().flat_map(|(_, cells)| cells).collect();
    assert!(
        matches!(&cells[..], [(shard, home)] if *shard == other && home.region == Some(region(2)))
    );
}

/// The shard was hosted by region 1, and was stopped.
fn stopped() -> Bench {
    let mut bench = Bench::hosted();
    bench.moves(None);
    bench.answer(StoreAnswer::Written);
    bench.hear(1, ToCoordinator::Drained(vec![(SHARD, g(2))]));
    bench
}

/// Messages wait at region 2 for a shard that was stopped.
#[test]
fn leaving_region_gets_a_home_for_a_stopped_shard() {
    let mut bench = stopped();
    bench.hear(2, ToCoordinator::Leaving);
    let out = bench.hear(2, ToCoordinator::GetShardHome(vec![SHARD]));
    assert_eq!(questions(&out), [[SHARD]]);
    bench.place(&[(SHARD, 3)]);
    assert!(sent(&bench.answer(StoreAnswer::Written)).contains(&(2, announce(3, Some(3)))));
}

/// A planned move to the leaving region waits for its write.
#[test]
fn planned_move_to_a_leaving_region_is_withdrawn() {
    let mut bench = Bench::hosted();
    let other = ShardId::new(8);
    bench.hear(3, ToCoordinator::GetShardHome(vec![other]));
    bench.place(&[(other, 3)]); // the write is pending
    bench.moves(Some(2));
    assert_eq!(bench.machine.planned(SHARD), Some(region(2)));
    assert_eq!(questions(&bench.hear(2, ToCoordinator::Leaving)), [[]; 0]);
    assert_eq!(bench.machine.planned(SHARD), Some(region(1)));
}

/// The next home, which took the payload, may have died before it could confirm that.
#[test]
fn leaving_region_learns_that_its_release_was_used() {
    let mut bench = Bench::hosted();
    bench.moves(Some(2));
    bench.answer(StoreAnswer::Written);
    bench.hear(2, ToCoordinator::Hosted(vec![(SHARD, g(2))]));
    let asks = || ToCoordinator::GetShardHome(vec![SHARD]);
    let hosted = ToRegion::Hosted(vec![(SHARD, g(2))]);
    let tells = |out: &[CoordinatorOutput]| sent(out).contains(&(1, hosted.clone()));
    assert!(!tells(&bench.hear(1, asks())), "1 does not leave");
    bench.hear(1, ToCoordinator::Leaving);
    assert!(tells(&bench.hear(1, asks())));
    bench.moves(Some(3));
    bench.answer(StoreAnswer::Written);
    bench.hear(2, ToCoordinator::Leaving);
    let out = sent(&bench.hear(2, asks()));
    assert!(!out.iter().any(|(_, word)| matches!(word, ToRegion::Hosted(_))), "{out:?}");
}

/// The payload of a stopped shard goes to a next home like any other payload.
#[test]
fn payload_of_a_stopped_shard_gets_a_home_when_keeper_leaves() {
    let mut bench = stopped();
    assert!(bench.machine.record(SHARD).unwrap().is_settled());
    bench.hear(1, ToCoordinator::Leaving);
    let out = bench.hear(1, ToCoordinator::GetShardHome(vec![SHARD]));
    assert!(matches!(out[..], [CoordinatorOutput::Allocate { .. }]), "{out:?}");
    bench.place(&[(SHARD, 1)]);
    assert!(
        bench.machine.pending_decisions.planned(SHARD).is_none(),
        "a leaving region gets no shard"
    );
    bench.hear(1, ToCoordinator::GetShardHome(vec![SHARD]));
    bench.now.mono = bench.now.mono + Duration::from_secs(60);
    bench.tick();
    bench.place(&[(SHARD, 2)]);
    let out = bench.answer(StoreAnswer::Written);
    assert!(sent(&out).contains(&(1, release(3, Some(2), 1))), "{out:?}");
}

/// In one message each, these orders for 1,000 shards would exceed the smallest lane limit.
#[test]
fn messages_about_many_shards_fit_the_lane_limit() {
    let word_bytes_max = 4 << 10;
    let config =
        CoordinatorConfig { word_bytes_max, shards: SHARDS_MAX, ..CoordinatorConfig::default() };
    let mut bench = Bench::new(config);
    let [from, to] = [u64::MAX - 2, u64::MAX - 1]; // ids of the greatest encoded length
    bench.tell(CoordinatorInput::Installed(installed(2, [from, to])));
    let number = Term::NUMBER_MAX - 9;
    bench.tell(CoordinatorInput::Start { above: number });
    let owner = ReplicaId::new(u64::MAX);
    let far = |seq| Generation::new(Term { number, owner }, u64::MAX - 9 + seq);
    let moves = |shard| {
        let epoch = EpochId { generation: 1, number: 1 };
        let after = BTreeMap::from([(region(from), far(1))]);
        (
            ShardId::new(shard),
            ShardHome { generation: far(2), region: Some(region(to)), after, epoch },
        )
    };
    let shards = SHARDS_MAX - 1_000..SHARDS_MAX;
    bench.answer(StoreAnswer::Fenced(shards.map(moves).collect(), None, None));
    let mut told = sent(&bench.answer(StoreAnswer::Written));
    [from, to].iter().for_each(|id| told.extend(sent(&bench.register(*id, &[]))));
    let (mut routes, mut hosts, mut releases) = (0, 0, 0);
    for (to, word) in &told {
        let bytes = rmp_serde::to_vec_named(word).expect("it encodes").len();
        assert!(bytes <= word_bytes_max, "{bytes} bytes to {to}");
        match word {
            ToRegion::RegisterAck { homes, .. } | ToRegion::Announce(homes) => {
                routes += homes.len();
            }
            ToRegion::Host(words) => hosts += words.len(),
            ToRegion::Release(words) => releases += words.len(),
            _ => {}
        }
    }
    assert!(routes >= 2_000 && hosts >= 1_000 && releases >= 1_000, "{routes} {hosts} {releases}");
}

/// A registration of many shards comes in parts. The coordinator orders nothing for confirmed
/// shards.
#[test]
fn registration_in_parts_is_acknowledged_once() {
    let config = CoordinatorConfig { word_bytes_max: 4 << 10, ..CoordinatorConfig::default() };
    let mut bench = Bench::new(config);
    bench.tell(CoordinatorInput::Start { above: 0 });
    let lives = |shard| (ShardId::new(shard), cell(g(2), Some(2), &[(1, 1)]));
    bench.answer(StoreAnswer::Fenced((0..1_000).map(lives).collect(), None, None));
    bench.answer(StoreAnswer::Written);
    let register = |shards: std::ops::Range<u32>| CoordinatorInput::Message {
        from: ReplicaId::new(2),
        message: ToCoordinator::Register {
            proxy: false,
            hosted: shards.map(|shard| (ShardId::new(shard), g(2))).collect(),
            highest: g(1),
            agreed: AgreedSettings::default(),
            slow: Vec::new(),
        },
    };
    // One shard is not hosted yet.
    let parts = vec![register(0..400), register(400..800), register(800..999)];
    let told = sent(&bench.batch(parts.clone()));
    let routes = told.iter().filter_map(|(to, word)| match word {
        ToRegion::RegisterAck { homes, .. } | ToRegion::Announce(homes) => {
            assert_eq!(*to, 2);
            Some(homes.len())
        }
        _ => None,
    });
    assert_eq!(routes.sum::<usize>(), 1_000, "once");
    let acks = told.iter().filter(|(_, word)| matches!(word, ToRegion::RegisterAck { .. }));
    assert_eq!(acks.count(), 1);
    let named = told.iter().flat_map(|(to, word)| match word {
        ToRegion::Host(words) => words.iter().map(|word| (*to, word.shard.get())).collect(),
        ToRegion::Release(words) => words.iter().map(|word| (*to, word.shard.get())).collect(),
        _ => Vec::new(),
    });
    assert_eq!(named.collect::<Vec<_>>(), [(1, 999), (2, 999)]);
    let again = sent(&bench.batch(parts));
    let acks = again.iter().filter(|(_, word)| matches!(word, ToRegion::RegisterAck { .. }));
    assert_eq!(acks.count(), 1, "each batch is acknowledged once");
}

fn reports_slow(slow: impl IntoIterator<Item = u32>) -> ToCoordinator {
    ToCoordinator::Register {
        proxy: false,
        hosted: Vec::new(),
        highest: g(1),
        agreed: AgreedSettings::default(),
        slow: slow.into_iter().map(ShardId::new).collect(),
    }
}

#[test]
fn report_of_slow_handlers_replaces_the_former_one() {
    let mut bench = Bench::hosted();
    bench.hear(2, reports_slow([SHARD.get()]));
    assert!(!bench.machine.has_slow_handler(SHARD), "2 is not the home");
    bench.hear(1, reports_slow([SHARD.get(), 3]));
    assert_eq!(bench.machine.with_slow_handlers().collect::<Vec<_>>(), [SHARD]);
    bench.hear(1, reports_slow([3]));
    assert!(!bench.machine.has_slow_handler(SHARD));
    bench.hear(1, reports_slow([SHARD.get()]));
    bench.tell(CoordinatorInput::Installed(installed(2, 2..=5)));
    assert_eq!(bench.machine.slow.len(), 1, "a removed region reports nothing");
}

#[test]
fn slow_handler_of_the_former_home_does_not_count() {
    let mut bench = Bench::hosted();
    bench.hear(1, reports_slow([SHARD.get()]));
    bench.moves(Some(2));
    assert!(!bench.machine.has_slow_handler(SHARD), "the next home reports none");
}

#[test]
fn report_of_slow_handlers_is_bounded() {
    let config = CoordinatorConfig { shards: 5_000, ..CoordinatorConfig::default() };
    let mut bench = Bench::acting_with(config, [1]);
    bench.hear(1, reports_slow(4_000..9_000));
    let known: Vec<usize> = bench.machine.slow.values().map(BTreeSet::len).collect();
    assert_eq!(known, [1_000], "shards that the type does not have are ignored");
    bench.hear(1, reports_slow(0..5_000));
    let known: Vec<usize> = bench.machine.slow.values().map(BTreeSet::len).collect();
    assert_eq!(known, [SLOW_SHARDS_MAX]);
}
