//! Answers to messages, and convergence of the resulting exchange.

use ostraca_ddata::sim::seeds;

use super::super::exchange::{GossipAnswer, GossipRefused, GossipSeen, Received};
use super::super::targets::Targeting;
use super::history::World;
use super::*;
use crate::cluster::gossip::merge::MergeRelation;

/// Two states derived from one start by the given changes.
fn pair(first: &[fn(&mut Gossip)], second: &[fn(&mut Gossip)]) -> (Gossip, Gossip) {
    let start = state("A B C; seen A B C");
    let changed = |changes: &[fn(&mut Gossip)]| {
        let mut gossip = start.clone();
        changes.iter().for_each(|change| change(&mut gossip));
        gossip
    };
    (changed(first), changed(second))
}

const BY_A: fn(&mut Gossip) = |gossip| {
    assert!(gossip.accuse(id('A'), id('C'), ReachabilityStatus::Unreachable));
};
const BY_B: fn(&mut Gossip) = |gossip| {
    assert!(gossip.accuse(id('B'), id('C'), ReachabilityStatus::Unreachable));
};
const SEEN_BY_C: fn(&mut Gossip) = |gossip| {
    assert!(gossip.see(id('C')));
};

#[test]
fn status_answer_depends_on_missing_parts() {
    let table: [(&str, &[_], &[_], _); 6] = [
        ("equal", &[], &[], GossipAnswer::Nothing),
        ("newer here", &[BY_A], &[], GossipAnswer::State),
        ("older here", &[], &[BY_B], GossipAnswer::Status),
        ("concurrent", &[BY_A], &[BY_B], GossipAnswer::State),
        ("seen by more here", &[BY_A, SEEN_BY_C], &[BY_A], GossipAnswer::Seen),
        ("seen by more there", &[BY_A], &[BY_A, SEEN_BY_C], GossipAnswer::Seen),
    ];
    for (name, first, second, expected) in table {
        let (a, b) = pair(first, second);
        assert_eq!(a.compare(id('B'), &b.status()), Ok(expected), "{name}");
    }
}

#[test]
fn ask_for_all_is_always_answered_with_the_state() {
    let pairs: [(&[_], &[_]); 4] =
        [(&[BY_A], &[]), (&[], &[BY_B]), (&[BY_A], &[BY_B]), (&[BY_A], &[BY_A, BY_B])];
    for (first, second) in pairs {
        let (a, b) = pair(first, second);
        assert_eq!(a.compare(id('B'), &b.ask_for_all()), Ok(GossipAnswer::State));
    }
}

#[test]
fn received_state_is_merged_seen_and_answered() {
    let table: [(&str, &[_], &[_], _, _, &str); 6] = [
        ("equal", &[], &[], MergeRelation::Same, GossipAnswer::Nothing, "ABC"),
        ("newer here", &[BY_A], &[], MergeRelation::OursNewer, GossipAnswer::State, "A"),
        ("older here", &[], &[BY_B], MergeRelation::TheirsNewer, GossipAnswer::Seen, "AB"),
        ("concurrent", &[BY_A], &[BY_B], MergeRelation::Both, GossipAnswer::State, "A"),
        (
            "seen by more here",
            &[BY_A, SEEN_BY_C],
            &[BY_A],
            MergeRelation::Same,
            GossipAnswer::Seen,
            "AC",
        ),
        (
            "seen by more there",
            &[BY_A],
            &[BY_A, SEEN_BY_C],
            MergeRelation::Same,
            GossipAnswer::Nothing,
            "AC",
        ),
    ];
    for (name, first, second, merged, answer, seen) in table {
        let (mut a, b) = pair(first, second);
        let before = a.seen().clone();
        let received = a.receive(id('A'), id('B'), &b).unwrap();
        assert_eq!((received.relation, received.answer), (merged, answer), "{name}");
        assert_eq!(a.seen(), &seen.chars().map(id).collect(), "{name}");
        assert_eq!(received.seen_changed, before != *a.seen(), "{name}");
    }
}

#[test]
fn seen_set_counts_for_its_state_only() {
    let (mut a, b) = pair(&[BY_A], &[BY_A, SEEN_BY_C]);
    let news = b.seen_set();
    let received = a.receive_seen(id('B'), &news).unwrap();
    assert_eq!((received.seen_changed, received.answer), (true, GossipAnswer::Nothing));
    assert_eq!(a.seen(), b.seen());

    a.accuse(id('A'), id('B'), ReachabilityStatus::Unreachable);
    let nothing = Received {
        relation: MergeRelation::Same,
        seen_changed: false,
        answer: GossipAnswer::Nothing,
    };
    assert_eq!(a.receive_seen(id('B'), &news), Ok(nothing), "of an earlier state");
    assert_eq!(a.seen(), &BTreeSet::from([id('A')]));
}

#[test]
fn single_seen_entry_is_answered_with_the_whole_set() {
    let (mut leader, member) = pair(&[BY_A, SEEN_BY_C], &[BY_A]);
    let word = member.i_have_seen(id('B'));
    assert_eq!(word.nodes, BTreeSet::from([id('B')]));
    let received = leader.receive_seen(id('B'), &word).unwrap();
    assert_eq!((received.seen_changed, received.answer), (true, GossipAnswer::Seen));
    assert_eq!(leader.seen().len(), 3);
}

#[test]
fn non_members_are_not_added_to_the_seen_set() {
    let mut gossip = state("A B; seen A");
    let nodes = BTreeSet::from([id('B'), id('Z')]);
    let word = GossipSeen { cluster: CLUSTER, content: gossip.digest(), nodes };
    gossip.receive_seen(id('B'), &word).unwrap();
    assert_eq!(gossip.seen(), &BTreeSet::from([id('A'), id('B')]));
}

#[test]
fn refused_gossip_changes_nothing() {
    let mut foreign = state("A B");
    foreign.content.cluster = ClusterId(2);
    let mut without_me = state("A B Cd; seen B");
    without_me.remove(id('B'), &[id('A')]);
    let mut forgotten = without_me.clone();
    forgotten.forget_up_to(id('B'), 4);
    let stranger = GossipRefused::Stranger;
    let refusal = GossipRefused::ForeignCluster { ours: CLUSTER, theirs: ClusterId(2) };
    let table = [
        ("another cluster", 'B', foreign, refusal),
        ("an unknown sender", 'Z', state("A B Cd Z"), stranger(id('Z'))),
        ("a sender that is Down", 'C', state("A B Cd"), stranger(id('C'))),
        ("a state that removed this node", 'B', without_me, GossipRefused::Removed(id('A'))),
        ("the same, forgotten since", 'B', forgotten, GossipRefused::Removed(id('A'))),
    ];
    for (name, from, theirs, refusal) in table {
        let mut ours = state("A B Cd; seen A");
        let before = ours.clone();
        assert_eq!(ours.receive(id('A'), id(from), &theirs), Err(refusal), "{name}");
        assert_eq!(ours, before, "{name}");
        if !matches!(refusal, GossipRefused::Removed(_)) {
            assert_eq!(ours.compare(id(from), &theirs.status()), Err(refusal), "{name}");
            assert_eq!(ours.receive_seen(id(from), &theirs.seen_set()), Err(refusal), "{name}");
        }
    }
}

#[test]
fn removed_sender_learns_of_its_removal() {
    let mut ours = state("A B C; seen A");
    let mut theirs = state("A B C; seen B");
    ours.remove(id('A'), &[id('B')]);
    for forgotten in [false, true] {
        if forgotten {
            ours.forget_up_to(id('A'), 4);
        }
        let refused = ours.clone().receive(id('A'), id('B'), &theirs);
        assert_eq!(refused, Err(GossipRefused::SenderRemoved(id('B'))));
        let by_status =
            if forgotten { GossipRefused::Stranger } else { GossipRefused::SenderRemoved };
        assert_eq!(ours.compare(id('B'), &theirs.status()), Err(by_status(id('B'))));
        let learnt = theirs.receive(id('B'), id('A'), &ours);
        assert_eq!(learnt, Err(GossipRefused::Removed(id('B'))));
    }
    let unknown = state("A B Z; seen Z");
    assert_eq!(
        ours.receive(id('A'), id('Z'), &unknown),
        Err(GossipRefused::Stranger(id('Z'))),
        "an unknown sender"
    );
}

#[test]
fn state_with_too_many_members_is_refused() {
    let mut ours = state("A B; seen A");
    let mut theirs = state("A B");
    let strangers = (100..100 + super::super::MEMBERS_MAX as u64).map(|n| joiner(n, n));
    theirs.content.members.extend(strangers.map(|m| (m.incarnation(), Arc::new(m))));
    let refused = ours.receive(id('A'), id('B'), &theirs);
    assert_eq!(refused, Err(GossipRefused::TooManyMembers { len: 10_002 }));
    assert_eq!(ours.len(), 2);
}

/// One regular gossip of `from`, and all answers that follow.
fn gossip(world: &mut World, from: ReplicaId) {
    let targeting = Targeting::default();
    let mine = world.running[&from].clone();
    let Some(to) = targeting.regular(&mine, from, &mut world.rng) else { return };
    let agrees = mine.seen().contains(&to);
    let mut mail =
        Some((from, to, if agrees { GossipAnswer::Status } else { GossipAnswer::State }));
    let mut messages = 0;
    while let Some((from, to, what)) = mail.take() {
        messages += 1;
        assert!(messages < 8, "two nodes answer each other for ever");
        if !world.running.contains_key(&to) {
            return;
        }
        let sender = world.running[&from].clone();
        let receiver = world.state(to);
        let answer = match what {
            GossipAnswer::Nothing => return,
            GossipAnswer::Status => receiver.compare(from, &sender.status()),
            GossipAnswer::State => {
                receiver.receive(to, from, &sender).map(|received| received.answer)
            }
            GossipAnswer::Seen => {
                receiver.receive_seen(from, &sender.seen_set()).map(|received| received.answer)
            }
        };
        match answer {
            Ok(answer) => mail = Some((to, from, answer)),
            Err(GossipRefused::SenderRemoved(_)) => mail = Some((to, from, GossipAnswer::State)),
            Err(GossipRefused::Removed(_)) => {
                world.running.remove(&to);
            }
            Err(_) => {}
        }
    }
}

#[test]
fn regular_gossip_converges_and_then_stops() {
    let (mut runs, mut agreements) = (0, 0);
    for seed in seeds("regular_gossip_converges_and_then_stops", 300) {
        runs += 1;
        let mut world = World::without_terminated(seed.value).steps(120);
        for (me, state) in &mut world.running {
            for subject in state.reachability().accused_by(*me).collect::<Vec<_>>() {
                state.acquit(*me, subject);
            }
        }
        for _ in 0..60 {
            for from in world.running.keys().copied().collect::<Vec<_>>() {
                if world.running.contains_key(&from) {
                    gossip(&mut world, from);
                }
            }
        }
        let founder = world.running[&id('A')].clone();
        let living = |member: &&Arc<Member>| member.status != Status::Down;
        for member in founder.members().filter(living) {
            let me = member.incarnation();
            // A Down member may be the only one that learned of its removal: it has stopped.
            let Some(other) = world.running.get(&me) else { continue };
            agreements += usize::from(me != id('A'));
            assert_eq!(other.digest(), founder.digest(), "{me} differs");
            let silent = founder.compare(me, &other.status());
            assert_eq!(silent, Ok(GossipAnswer::Nothing), "{me} still gets an answer");
        }
    }
    assert!(agreements >= runs || runs < 10, "too few nodes were left");
}
