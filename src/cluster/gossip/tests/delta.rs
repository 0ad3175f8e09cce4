//! Deltas: merging a delta equals merging the whole state, and a delta with an unknown base changes
//! nothing.

use std::cell::Cell;

use ostraca_ddata::sim::seeds;
use rand::RngExt;

use super::super::delta::GossipDelta;
use super::super::exchange::{GossipAnswer, GossipDigest, GossipRefused};
use super::super::wire;
use super::history::World;
use super::*;
use crate::cluster::gossip::merge::MergeRelation;

type Change = fn(&mut Gossip);

fn contains(state: &Gossip, other: &Gossip) -> bool {
    let mut joined = state.clone();
    joined.merge(other);
    joined.content == state.content
}

/// The difference that a change by A makes to a common state.
fn news(start: &str, change: impl FnOnce(&mut Gossip)) -> (Gossip, GossipDelta) {
    let base = state(start);
    let mut changed = base.clone();
    change(&mut changed);
    let delta = changed.delta(&base, vec![base.digest()]).expect("a small change");
    (changed, delta)
}

fn accuses(by: char, whom: char) -> impl FnOnce(&mut Gossip) {
    move |gossip| assert!(gossip.accuse(id(by), id(whom), ReachabilityStatus::Unreachable))
}

#[test]
fn delta_on_its_base_equals_the_whole_state() {
    let (deltas, changed) = (Cell::new(0), Cell::new(0));
    let test = "delta_on_its_base_equals_the_whole_state";
    for seed in seeds(test, 150) {
        let mut world = World::without_terminated(seed.value).steps(150);
        for _ in 0..150 {
            let mut any = || world.rng.random_range(0..world.past.len());
            let (base, present, other) = (any(), any(), any());
            let (base, present) = (&world.past[base], &world.past[present]);
            let mut receiver = world.past[other].clone();
            let related = contains(present, base) && contains(&receiver, base);
            let delta = related.then(|| present.delta(base, vec![base.digest()])).flatten();
            let Some(delta) = delta else { continue };
            deltas.set(deltas.get() + 1);
            let mut whole = receiver.clone();
            whole.merge(present);
            let before = receiver.content.clone();
            let is_changed = receiver.content.add(&delta);
            assert_eq!(receiver.content, whole.content, "{seed}");
            assert_eq!(is_changed, receiver.content != before, "{seed}");
            changed.set(changed.get() + u32::from(is_changed));
            let decoded = wire::decode::<GossipDelta>(&wire::encode(&delta));
            assert_eq!(decoded.expect("well formed"), delta, "{seed}");
        }
    }
    let figures = (deltas.get(), changed.get());
    assert!(figures.0 > 1_000 && figures.1 > 200, "deltas, and changes by them: {figures:?}");
}

#[test]
fn delta_is_much_shorter_than_the_state() {
    let names: String = ('A'..='Z').map(|name| format!("{name} ")).collect();
    let (changed, delta) = news(&names, accuses('A', 'C'));
    let (whole, part) = (wire::encode(&changed).len(), wire::encode(&delta).len());
    assert!(part * 20 < whole, "{part} of {whole} bytes");
}

#[test]
fn delta_transfers_state_and_seen_set() {
    let start = "A B C D; seen A B C D";
    let (changed, delta) = news(start, accuses('A', 'D'));
    let mut b = state(start);
    let own = b.digest();
    let received = b.receive_delta((id('B'), id('A')), &delta, own, |_| false).unwrap();
    assert_eq!(
        (received.relation, received.answer),
        (MergeRelation::TheirsNewer, GossipAnswer::Nothing)
    );
    assert_eq!(b.content, changed.content);
    assert_eq!(b.seen(), &BTreeSet::from([id('A'), id('B')]));

    let again = b.receive_delta((id('B'), id('A')), &delta, b.digest(), |_| false).unwrap();
    assert_eq!((again.relation, again.seen_changed), (MergeRelation::Same, false));
}

#[test]
fn delta_merges_with_a_concurrent_change() {
    let start = "A B C D; seen A B C D";
    let (_, delta) = news(start, accuses('A', 'D'));
    let (mut b, other) = news(start, accuses('B', 'D'));
    let (base, own) = (state(start).digest(), b.digest());
    let knows = |digest| digest == base;
    let received = b.receive_delta((id('B'), id('A')), &delta, own, knows).unwrap();
    assert_eq!((received.relation, received.answer), (MergeRelation::Both, GossipAnswer::Nothing));
    assert_eq!(b.seen(), &BTreeSet::from([id('B')]));
    let accusers: Vec<_> = b.reachability().accusers_of(id('D')).collect();
    assert_eq!(accusers, [id('A'), id('B')]);

    let known = |digest| [base, other.content()].contains(&digest);
    let digest = b.digest();
    let old = b.receive_delta((id('B'), id('A')), &other, digest, known).unwrap();
    assert_eq!((old.relation, old.seen_changed), (MergeRelation::OursNewer, false));
}

#[test]
fn delta_with_unknown_base_is_answered_with_a_status() {
    let (_, delta) = news("A B C D; seen A", accuses('A', 'D'));
    let mut b = state("A B C Dl");
    let before = b.clone();
    let own = b.digest();
    let received = b.receive_delta((id('B'), id('A')), &delta, own, |_| false).unwrap();
    assert_eq!(
        (received.relation, received.answer),
        (MergeRelation::OursNewer, GossipAnswer::Status)
    );
    assert_eq!(b, before);
}

#[test]
fn delta_is_refused_like_a_state() {
    let removes =
        |name: char| move |gossip: &mut Gossip| assert!(gossip.remove(id('A'), &[id(name)]));
    let (_, without_me) = news("A B C", removes('B'));
    let (_, other) = news("A B C", accuses('A', 'C'));
    let mut foreign = other.clone();
    foreign.cluster = ClusterId(2);
    let table = [
        (
            "another cluster",
            'A',
            foreign,
            GossipRefused::ForeignCluster { ours: CLUSTER, theirs: ClusterId(2) },
        ),
        ("an unknown sender", 'Z', other, GossipRefused::Stranger(id('Z'))),
        ("one that removes this node", 'A', without_me, GossipRefused::Removed(id('B'))),
    ];
    for (name, from, delta, refusal) in table {
        let mut b = state("A B C");
        let (before, own) = (b.clone(), b.digest());
        let refused = b.receive_delta((id('B'), id(from)), &delta, own, |_| true);
        assert_eq!((refused, &b), (Err(refusal), &before), "{name}");
    }
}

#[test]
fn inexpressible_changes_have_no_delta() {
    let table: [(&str, Change); 3] = [
        ("most of it is new", |gossip| {
            gossip.move_to(id('A'), id('A'), Status::Leaving).unwrap();
            gossip.move_to(id('A'), id('B'), Status::Leaving).unwrap();
        }),
        ("removals are forgotten", |gossip| assert!(gossip.forget_up_to(id('A'), 1))),
        ("a full shutdown", |gossip| assert!(gossip.prepare_for_full_shutdown(id('A')))),
    ];
    for (name, change) in table {
        let base = state("A B C");
        let mut changed = base.clone();
        change(&mut changed);
        assert_eq!(changed.delta(&base, vec![base.digest()]), None, "{name}");
    }
}

#[test]
fn digest_answer_contains_missing_parts() {
    let start = state("A B C; seen A B");
    let mut newer = start.clone();
    assert!(newer.accuse(id('A'), id('C'), ReachabilityStatus::Unreachable));
    let (old, new) = (start.digest(), newer.digest());
    let same_seen = {
        let mut seen = newer.clone();
        seen.see(id('B'));
        seen.seen_digest()
    };
    let table = [
        ("equal, without a digest of the seen set", new, None, GossipAnswer::Nothing),
        ("equal, seen by the same", new, Some(same_seen), GossipAnswer::Nothing),
        ("equal, seen by others", new, Some(1), GossipAnswer::Seen),
        ("of a former state", old, None, GossipAnswer::State),
        ("of an unknown state", 7, Some(1), GossipAnswer::Status),
    ];
    for (name, content, seen, expected) in table {
        let mut a = newer.clone();
        let digest = GossipDigest { cluster: CLUSTER, content, seen };
        let received = a.receive_digest(id('B'), &digest, new, |known| known == old).unwrap();
        assert_eq!(received.answer, expected, "{name}");
        assert_eq!(a.seen().contains(&id('B')), content == new, "{name}");
    }
}
