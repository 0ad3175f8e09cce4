//! Installing decided configurations: skipped numbers, catch-up, exclusion, restart and forced
//! recovery.

use super::*;

#[test]
fn install_resets_votes_and_pulls_state_from_sender() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut node = Bench::member(2, &base);
    node.hear(1, seal(&base, ballot(1, 1), &next));
    let pull = EpochOutput::PullState { epoch: next.id(), from: id(1) };
    assert_eq!(node.hear(1, install(&next)), [installed(&next), pull]);
    let state = AcceptorState { installed: Some(next), ..AcceptorState::default() };
    assert_eq!((node.machine.state(), &node.disk), (&state, &state));
    assert!(!node.machine.eligible() && !node.machine.sealed());
}

#[test]
fn install_skips_numbers_and_ignores_older() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let third = after(&next, &join([5]));
    let mut node = Bench::member(2, &base);
    node.hear(1, install(&third));
    assert_eq!(node.hear(1, install(&third)), []);
    assert_eq!(node.hear(3, install(&next)), [send(3, install(&third))]);
    assert_eq!(node.epoch(), third.id());
    assert_eq!(node.machine.stats().installed, 2);
}

#[test]
fn higher_generation_is_newer_than_any_number() {
    let base = first([1, 2, 3]);
    let id = EpochId { generation: 2, number: 0 };
    let forced = Arc::new(Epoch::founding(id, ids([2]), EpochSettings::default()).unwrap());
    let mut node = Bench::member(2, &base);
    assert_eq!(node.hear(3, install(&forced)), [installed(&forced)]);
}

#[test]
fn state_pull_ends_with_state_of_a_member() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut node = Bench::member(2, &base);
    node.hear(1, install(&next));
    let merged = |epoch, from| EpochInput::StateMerged { epoch, from: id(from) };
    assert_eq!(node.say(merged(base.id(), 1)), []);
    assert_eq!(node.say(merged(next.id(), 9)), []);
    let out = node.say(merged(next.id(), 3));
    assert_eq!(out, [EpochOutput::StopPulls, EpochOutput::Synced(next.id())]);
    assert!(node.machine.eligible() && node.disk.synced);
    assert_eq!(node.say(merged(next.id(), 3)), []);
}

#[test]
fn failed_source_is_replaced_after_resend_interval() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut node = Bench::member(2, &base);
    node.hear(1, install(&next));
    let from = |from| EpochOutput::PullState { epoch: next.id(), from: id(from) };
    assert_eq!(node.say(EpochInput::SourceFailed { epoch: next.id(), from: id(1) }), []);
    assert_eq!(node.wait(Duration::from_millis(200)), [from(3)]);
    let silent = node.wait(Duration::from_secs(15));
    assert_eq!(silent, [from(4), from(1), from(3)]);
}

#[test]
fn removed_member_is_excluded_for_ever() {
    let base = first([1, 2, 3]);
    let next = after(&base, &leave([2]));
    let mut node = Bench::member(2, &base);
    let out = node.hear(1, install(&next));
    assert_eq!(out, [installed(&next), EpochOutput::Excluded(next.id())]);
    let id = EpochId { generation: 9, number: 0 };
    let back = Arc::new(Epoch::founding(id, ids([1, 2]), EpochSettings::default()).unwrap());
    assert_eq!(node.hear(1, install(&back)), [installed(&back)]);
    assert!(node.machine.is_excluded() && !node.machine.is_member() && !node.machine.eligible());
    let out = node.say(EpochInput::Propose(MembershipChange::default()));
    assert_eq!(out, [outcome(ProposalOutcome::Refused { why: ProposalRefusal::NotAMember })]);
    assert_eq!(node.hear(1, seal(&back, ballot(1, 1), &after(&back, &join([5])))), []);
}

#[test]
fn joiner_removed_while_cut_off_is_excluded() {
    let with = after(&first([1, 2]), &join([3]));
    let without = after(&with, &leave([3]));
    let mut joiner = Bench::joining(3);
    let out = joiner.hear(1, install(&without));
    assert_eq!(out, [installed(&without), EpochOutput::Excluded(without.id())]);
    let mut stranger = Bench::joining(4);
    assert_eq!(stranger.hear(1, install(&without)), [installed(&without)]);
    assert!(!stranger.machine.is_excluded());
}

#[test]
fn older_epoch_is_answered_with_newest_configuration() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(2, &base);
    let peer = |from, id| EpochInput::PeerEpoch { from: super::id(from), id };
    assert_eq!(node.say(peer(9, None)), [send(9, install(&base))]);
    let older = EpochId { generation: 0, number: 7 };
    assert_eq!(node.say(peer(3, Some(older))), [send(3, install(&base))]);
    let ask = EpochMessage::Ask { installed: Some(base.id()) };
    assert_eq!(node.say(peer(1, Some(base.id().next()))), [send(1, ask)]);
    assert_eq!(node.say(peer(4, Some(base.id()))), []);
    let asked = node.hear(5, EpochMessage::Ask { installed: None });
    assert_eq!(asked, [send(5, install(&base))]);
}

#[test]
fn second_configuration_of_same_id_is_counted_and_ignored() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(2, &base);
    assert_eq!(node.hear(1, install(&first([2, 3]))), []);
    assert_eq!(node.machine.stats().nonsense, 1);
    assert_eq!(node.machine.installed(), Some(&base));
}

#[test]
fn restart_restores_promise_proposal_and_number() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut before = Bench::member(2, &base);
    before.hear(1, accept(&base, ballot(4, 1), &next));
    let bytes = rmp_serde::to_vec_named(&before.disk).unwrap();
    let mut node = Bench::joining(2);
    let out = node.say(EpochInput::Restore(rmp_serde::from_slice(&bytes).unwrap()));
    let synced = EpochOutput::Synced(base.id());
    assert_eq!(out, [installed(&base), EpochOutput::Freeze(base.id()), synced]);
    assert!(!node.machine.eligible());
    let why = BallotRefusal::Promised(ballot(4, 1));
    let out = node.hear(3, seal(&base, ballot(3, 3), &next));
    assert_eq!(out, [send(3, refused(&base, ballot(3, 3), why))]);
    let out = node.hear(3, seal(&base, ballot(5, 3), &next));
    assert_eq!(out, [send(3, sealed(&base, ballot(5, 3), Some((ballot(4, 1), next))))]);
}

#[test]
fn ballot_number_is_not_reused_after_restart() {
    let base = first([1, 2, 3]);
    let mut before = Bench::member(2, &base);
    before.say(EpochInput::Propose(leave([3]))); // its own lease question is never answered
    let mut node = Bench::joining(2);
    node.say(EpochInput::Restore(before.disk));
    let out = node.say(EpochInput::Propose(MembershipChange::default()));
    let same = after(&base, &MembershipChange::default());
    assert!(out.contains(&send(1, seal(&base, ballot(2, 2), &same))), "{out:?}");
}

#[test]
fn restored_state_of_other_incarnation_makes_joiner() {
    let base = first([1, 2, 3]);
    let before = Bench::member(2, &base);
    let mut node = Bench::joining(8);
    assert_eq!(node.say(EpochInput::Restore(before.disk)), [installed(&base)]);
    assert!(!node.machine.is_member() && !node.machine.eligible());
    assert_eq!(node.hear(1, seal(&base, ballot(1, 1), &after(&base, &join([8])))), []);
}

/// The order to go on with the members in `kept`, instead of the configuration installed there.
fn force<const N: usize>(node: &Bench, kept: [u64; N]) -> EpochInput {
    let replaced = node.machine.installed().map(|epoch| epoch.id()).unwrap_or_default();
    EpochInput::Force { replaced, kept: ids(kept).into_iter().collect() }
}

#[test]
fn force_installs_at_once_and_tells_all_members() {
    let base = first([1, 2, 3, 4, 5]);
    let mut node = Bench::member(4, &base);
    node.hear(1, seal(&base, ballot(1, 1), &after(&base, &leave([2])))); // an abandoned seal
    node.now.wall = WallTime::from_millis(9_000);
    let out = node.say(force(&node, [2, 4, 7]));
    let forced = node.machine.installed().unwrap().clone();
    assert_eq!((forced.members(), forced.left()), (&ids([2, 4])[..], &ids([1, 3, 5])[..]));
    assert_eq!((forced.id().generation, forced.is_forced()), (9_000, true));
    assert!(node.machine.eligible() && node.disk.synced && node.disk.promise.is_none());
    let told = [1, 2, 3, 5].map(|to| send(to, install(&forced)));
    assert_eq!(out[..2], [installed(&forced), EpochOutput::Synced(forced.id())]);
    assert_eq!(out[2..], told);
    assert_eq!((node.machine.stats().forced, node.machine.is_voter()), (1, true));
}

#[test]
fn forced_configuration_keeps_some_and_excludes_others() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(2, &base);
    node.say(force(&node, [3]));
    let forced = node.machine.installed().unwrap().clone();
    let mut kept = Bench::member(3, &base);
    let pull = EpochOutput::PullState { epoch: forced.id(), from: id(2) };
    assert_eq!(kept.hear(2, install(&forced)), [installed(&forced), pull]);
    let mut given_up = Bench::member(1, &base);
    let out = given_up.hear(2, install(&forced));
    let told = send(3, install(&forced)); // it may not have heard
    assert_eq!(out, [told, installed(&forced), EpochOutput::Excluded(forced.id())]);
    // Later configurations of this generation are decided as usual and keep the forced record.
    let next = after(&forced, &join([4]));
    assert!(next.is_forced() && forced.admits(&next).is_ok());
    assert_eq!(forced.admits(&first([2, 3])), Err(ProposalMismatch::Id(first([2]).id())));
}

#[test]
fn simultaneous_forced_configurations_differ_and_higher_wins() {
    let base = first([1, 2, 3, 4, 5]);
    let later = after(&base, &leave([5]));
    for bases in [[&base, &base], [&base, &later]] {
        let mut nodes = [(2, bases[0]), (3, bases[1])].map(|(me, base)| Bench::member(me, base));
        let forced = [0, 1].map(|at: usize| {
            nodes[at].now.wall = WallTime::from_millis(7_000);
            let order = force(&nodes[at], [2, 3]);
            nodes[at].say(order);
            nodes[at].machine.installed().unwrap().clone()
        });
        assert_ne!(forced[0].id(), forced[1].id());
        assert_eq!([7_000; 2], [0, 1].map(|at: usize| forced[at].id().generation));
        nodes[0].hear(3, install(&forced[1]));
        nodes[1].hear(2, install(&forced[0]));
        let higher = forced.iter().max_by_key(|epoch| epoch.id()).unwrap();
        assert!(nodes.iter().all(|node| node.machine.installed() == Some(higher)));
        assert!(nodes.iter().all(|node| node.machine.stats().nonsense == 0));
    }
}

#[test]
fn second_force_raises_generation_despite_clock_step() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(2, &base);
    node.now.wall = WallTime::from_millis(9_000);
    node.say(force(&node, [3]));
    node.now.wall = WallTime::from_millis(4_000);
    let before = node.epoch();
    node.say(force(&node, []));
    assert_eq!((node.epoch().generation, before.generation), (9_001, 9_000));
    assert!(node.epoch().number > before.number, "the number rises, as ages are made of it");
    assert_eq!(node.machine.installed().unwrap().members(), ids([2]));
}

#[test]
fn non_member_forces_nothing() {
    let base = first([1, 2, 3]);
    let mut stranger = Bench::joining(7);
    assert_eq!(stranger.say(force(&stranger, [1])), []);
    let mut out = Bench::member(2, &base);
    out.hear(1, install(&after(&base, &leave([2]))));
    assert_eq!(out.say(force(&out, [1, 3])), []);
    assert_eq!(out.machine.stats().forced, 0);
}

#[test]
fn force_is_ignored_after_newer_install() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(2, &base);
    let order = force(&node, [3]);
    let next = after(&base, &leave([3]));
    node.hear(1, install(&next));
    assert_eq!(node.say(order), []);
    assert_eq!((node.epoch(), node.machine.stats().forced), (next.id(), 0));
}

/// The forcing node may not know members that joined since, and they do not know it; or they have
/// removed it and refuse its messages.
#[test]
fn given_up_member_tells_all_known_members() {
    let base = first([1, 2, 3, 4]);
    let forced = Arc::new(base.forced(id(4), &ids([3]).into_iter().collect(), 9_000).unwrap());
    let later = after(&base, &leave([4]).and(&join([8])));
    let mut given_up = Bench::member(2, &base);
    given_up.hear(1, install(&later));
    given_up.say(EpochInput::StateMerged { epoch: later.id(), from: id(1) });
    let out = given_up.hear(4, install(&forced));
    let told = [1, 3, 8].map(|to| send(to, install(&forced)));
    assert_eq!(out[..3], told);
    assert_eq!(out[3..], [installed(&forced), EpochOutput::Excluded(forced.id())]);
    let mut of_those = Bench::member(8, &later);
    let out = of_those.hear(2, install(&forced));
    assert!(out.contains(&EpochOutput::Excluded(forced.id())), "{out:?}");
    // A member that is removed by an ordinary decision tells no other node.
    let mut left = Bench::member(2, &base);
    let next = after(&base, &leave([2]));
    let out = left.hear(1, install(&next));
    assert_eq!(out, [installed(&next), EpochOutput::Excluded(next.id())]);
}
