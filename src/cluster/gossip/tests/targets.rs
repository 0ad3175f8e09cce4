//! Selection of the receivers of gossip.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::super::targets::{StateOrigin, Targeting, fanout, pace};
use super::*;

/// `count` Up members, of which the first `seen` have seen the state.
fn cluster_of(count: u64, seen: u64) -> Gossip {
    let mut gossip = state("");
    let up = |n| Member { status: Status::Up, up_number: Some(n), ..joiner(n, n) };
    gossip.content.members = (1..=count).map(|n| (ReplicaId::new(n), Arc::new(up(n)))).collect();
    gossip.seen = (1..=seen).map(ReplicaId::new).collect();
    gossip
}

#[test]
fn straggler_preference_decreases_from_400_to_1200_members() {
    let targeting = Targeting::default();
    let table = [(1, 0.8), (400, 0.8), (600, 0.62), (800, 0.44), (1_000, 0.26), (1_200, 0.08)];
    for (members, expected) in table {
        let found = targeting.probability(members);
        assert!((found - expected).abs() < 1e-9, "{members} members: {found}");
    }
    assert!((targeting.probability(10_000) - 0.08).abs() < 1e-9);
}

#[test]
fn straggler_preference_is_applied() {
    // 5 of 10 members have seen the state, so 5 of 9 receivers have not.
    let gossip = cluster_of(10, 5);
    for (probability, expected) in [(0.0, 5.0 / 9.0), (0.8, 0.8 + 0.2 * 5.0 / 9.0), (1.0, 1.0)] {
        let targeting =
            Targeting { different_view_probability: probability, ..Targeting::default() };
        let rng = &mut SmallRng::seed_from_u64(7);
        let draws = 20_000;
        let mut behind = 0;
        for _ in 0..draws {
            let to = targeting.regular(&gossip, id('A'), rng).unwrap();
            behind += u32::from(!gossip.seen().contains(&to));
        }
        let share = f64::from(behind) / f64::from(draws);
        assert!((share - expected).abs() < 0.015, "{probability}: {share}, not {expected}");
    }
}

#[test]
fn own_unreachable_members_get_no_gossip() {
    let rng = &mut SmallRng::seed_from_u64(1);
    let targeting = Targeting::default();
    let targets = |text: &str, rng: &mut SmallRng| {
        let gossip = state(text);
        let draws = (0..200).filter_map(|_| targeting.regular(&gossip, id('A'), rng));
        draws.collect::<BTreeSet<_>>()
    };
    let ids = |names: &str| names.chars().map(id).collect::<BTreeSet<_>>();
    assert_eq!(targets("A", rng), ids(""));
    assert_eq!(targets("A B C; seen A", rng), ids("BC"));
    assert_eq!(targets("A B C; seen A B C", rng), ids("BC"), "all have seen it: any member");
    assert_eq!(targets("A B C; seen A; A>B", rng), ids("C"));
    assert_eq!(targets("A B C; seen A; C>B", rng), ids("BC"), "unreachable to another node only");
    assert_eq!(targets("A B Cj Dd; seen A", rng), ids("BCD"));
    assert_eq!(targets("A B; seen A; A>B", rng), ids(""));
}

#[test]
fn small_cluster_sends_changes_directly_to_all() {
    let rng = &mut SmallRng::seed_from_u64(1);
    let targeting = Targeting::default();
    let gossip = state("A B C Dj Ed F; seen A; A>B");
    assert_eq!(
        targeting.eager(&gossip, id('A'), StateOrigin::Own, rng),
        [id('C'), id('D'), id('F')]
    );
    assert_eq!(targeting.eager(&gossip, id('A'), StateOrigin::Heard, rng), []);
    let full = cluster_of(100, 1);
    assert_eq!(targeting.eager(&full, id('A'), StateOrigin::Own, rng).len(), 99);
    assert_eq!(targeting.eager(&full, id('A'), StateOrigin::Heard, rng), []);
}

#[test]
fn large_cluster_forwards_changes_to_random_members() {
    let rng = &mut SmallRng::seed_from_u64(1);
    let targeting = Targeting::default();
    for (members, fanned) in [(101, 11), (1_000, 13), (10_000, 16)] {
        assert_eq!(fanout(members as usize), fanned);
        for news in [StateOrigin::Own, StateOrigin::Heard] {
            let gossip = cluster_of(members, 50);
            let targets = targeting.eager(&gossip, id('A'), news, rng);
            let distinct: BTreeSet<_> = targets.iter().collect();
            assert_eq!((targets.len(), distinct.len()), (fanned, fanned));
            assert!(targets.iter().all(|target| !gossip.seen().contains(target)));
        }
    }
    let nearly_all = cluster_of(101, 98);
    assert_eq!(targeting.eager(&nearly_all, id('A'), StateOrigin::Heard, rng).len(), 3);
    assert_eq!(fanout(0), 6);
}

#[test]
fn change_reaches_a_thousand_members_in_five_hops() {
    let start = cluster_of(1_000, 1);
    let targeting = Targeting::default();
    for seed in 0..5 {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let mut knows = BTreeSet::from([id('A')]);
        let mut wave = vec![id('A')];
        let mut hops = 0;
        while !wave.is_empty() {
            let mut next = Vec::new();
            for me in wave {
                let mut mine = start.clone();
                mine.see(me);
                let told = targeting.eager(&mine, me, StateOrigin::Heard, rng);
                next.extend(told.into_iter().filter(|to| knows.insert(*to)));
            }
            hops += usize::from(!next.is_empty());
            wave = next;
        }
        assert_eq!(knows.len(), 1_000, "seed {seed}: a member was not reached");
        assert!(hops <= 5, "seed {seed}: {hops} hops");
    }
}

#[test]
fn gossip_is_three_times_as_fast_before_half_have_seen_it() {
    let second = Duration::from_secs(1);
    let table = [(4, 1, second / 3), (4, 2, second), (5, 2, second / 3), (5, 3, second)];
    for (members, seen, expected) in table {
        assert_eq!(pace(&cluster_of(members, seen), second), expected, "{seen} of {members}");
    }
}
