//! Failures that other systems shipped, and the behaviour here.

use ostraca_ddata::sim::seeds;

use super::super::JoinRefused;
use super::super::exchange::GossipAnswer;
use super::history::World;
use super::*;

#[test]
fn known_failure_21_late_peer_resurrects_no_member() {
    let late = state("A B C; C>B");
    for (name, before) in [("removed while Up", "A B C"), ("removed while Joining", "A Bj C")] {
        let mut ours = state(before);
        ours.remove(id('A'), &[id('B')]);
        for forget in [false, true] {
            if forget {
                assert!(ours.forget_up_to(id('A'), 4));
                assert_eq!(ours.tombstones().len(), 0, "no tombstone is left");
            }
            let mut both = late.clone();
            both.merge(&ours);
            assert!(!both.contains(id('B')), "{name}, forgotten: {forget}");
            assert!(both.reachability().is_all_reachable(), "the verdict of C about B is gone");
            let mut both = ours.clone();
            both.merge(&late);
            assert!(!both.contains(id('B')), "{name}, forgotten: {forget}");
            let again = both.admit_member(id('A'), joiner(2, 2));
            assert_eq!(again, Err(JoinRefused::Removed(id('B'))));
        }
    }
}

#[test]
fn known_failure_21_join_after_the_horizon_is_kept() {
    let mut ours = state("A B C");
    ours.remove(id('A'), &[id('B')]);
    ours.forget_up_to(id('A'), 4);
    let stamp = ours.next_stamp();
    assert!(ours.admit_member(id('A'), joiner(9, stamp)).is_ok());
    let mut late = state("A B C");
    late.merge(&ours);
    assert!(late.contains(ReplicaId::new(9)) && !late.contains(id('B')));
}

#[test]
fn known_failure_21_equal_versions_do_not_hide_a_change() {
    // B admitted D and informed only C; A removed B. The versions of A and of the merge are equal:
    // only the content shows that A lacks D.
    let mut ours = state("A B C");
    ours.remove(id('A'), &[id('B')]);
    let mut theirs = state("A B C");
    theirs.admit_member(id('B'), joiner(4, 4)).unwrap();
    theirs.merge(&ours);
    assert_eq!(theirs.version(), ours.version());
    assert!(theirs.contains(id('D')) && !ours.contains(id('D')));
    let answer = theirs.compare(id('A'), &ours.status()).unwrap();
    assert_eq!(answer, GossipAnswer::State);
}

#[test]
fn known_failure_22_restart_waits_for_removal_of_the_old() {
    let mut gossip = state("A B");
    let mut new = joiner(2, gossip.next_stamp());
    new.node.incarnation = ReplicaId::new(22);
    let refused = Err(JoinRefused::OtherIncarnation(id('B')));
    assert_eq!(gossip.admit_member(id('A'), new.clone()), refused);
    gossip.move_to(id('A'), id('B'), Status::Down).unwrap();
    assert_eq!(gossip.admit_member(id('A'), new.clone()), refused);
    gossip.remove(id('A'), &[id('B')]);
    assert!(gossip.admit_member(id('A'), new).is_ok());
}

#[test]
fn known_failure_22_one_incarnation_of_a_peer_is_up() {
    let (mut runs, mut meetings) = (0, 0);
    for seed in seeds("known_failure_22_one_incarnation_of_a_peer_is_up", 300) {
        let world = World::new(seed.value).steps(200);
        for state in &world.past {
            let mut lives: BTreeMap<_, (usize, usize)> = BTreeMap::new();
            for member in state.members() {
                let (all, ready) = lives.entry(member.peer()).or_default();
                *all += 1;
                *ready += usize::from(member.status == Status::Up);
            }
            for (peer, (all, ready)) in lives {
                assert!(ready <= 1, "{ready} incarnations of {peer} are Up");
                meetings += usize::from(all > 1);
            }
        }
        runs += 1;
    }
    assert!(meetings > 0 || runs < 100, "no state had two incarnations of a peer");
}
