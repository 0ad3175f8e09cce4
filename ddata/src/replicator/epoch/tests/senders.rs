//! Which peers a configuration is taken from, and how far it may lie ahead.

use std::collections::BTreeMap;

use super::*;
use crate::replicator::epoch::configuration::{GENERATION_AHEAD_MAX, JUMP_MAX, NUMBER_MAX};
use crate::replicator::epoch::senders::{ALONE_FOR, CONFIRM_WITHIN};

fn numbered(generation: u64, number: u64, members: &[u64], cluster: u64) -> Arc<Epoch> {
    let members = members.iter().copied().map(id).collect();
    let settings = EpochSettings { cluster, ..EpochSettings::default() };
    let epoch = EpochId { generation, number };
    Arc::new(Epoch::founding(epoch, members, settings).unwrap())
}

fn declined(from: u64, epoch: &Epoch, why: ConfigurationRefusal) -> EpochOutput {
    EpochOutput::Declined { from: id(from), epoch: epoch.id(), why }
}

fn ballot_in(base: &Arc<Epoch>, number: u64, from: u64) -> EpochMessage {
    seal(base, ballot(number, from), &after(base, &MembershipChange::default()))
}

/// Feeds a configuration that is refused because of its sender: the installed one stays, and the
/// refusal is counted but not reported. Returns the sent messages.
fn doubts(node: &mut Bench, from: u64, epoch: &Arc<Epoch>) -> Vec<EpochOutput> {
    let (id, declined) = (node.machine.id(), node.machine.stats().declined);
    let out = node.hear(from, install(epoch));
    assert_eq!((node.machine.id(), node.machine.stats().declined), (id, declined + 1));
    assert!(out.iter().all(|output| matches!(output, EpochOutput::Send { .. })), "{out:?}");
    out
}

/// A hint probe of node 2.
fn probe(to: u64, epoch: &Epoch) -> EpochOutput {
    send(to, EpochMessage::Ping { epoch: epoch.id(), ballot: ballot(0, 2) })
}

fn probe_answer(epoch: &Epoch) -> EpochMessage {
    EpochMessage::Pong { epoch: epoch.id(), ballot: ballot(0, 2) }
}

#[test]
fn highest_generation_of_a_stranger_changes_nothing() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(2, &base);
    for generation in [2, 1 << 40, NUMBER_MAX] {
        let forged = numbered(generation, 1, &[9], 0);
        assert_eq!(doubts(&mut node, 9, &forged), []);
    }
    assert_eq!(node.machine.installed(), Some(&base));
    // A higher id alone does not make this node ask for it.
    let peer = EpochInput::PeerEpoch { from: id(9), id: Some(base.id().next()) };
    assert_eq!(node.say(peer), []);
    let highest = numbered(NUMBER_MAX, 1, &[9], 0);
    assert_eq!(node.wait(CONFIRM_WITHIN), [declined(9, &highest, ConfigurationRefusal::Sender)]);
    assert_eq!(node.wait(CONFIRM_WITHIN), [], "it is reported once");
}

/// Regression test: a founded succession kept the preceding configuration of the replaced one, and
/// the last proposal to follow that.
#[test]
fn succession_forgets_members_of_older_configurations() {
    let base = first([1, 2]);
    let sole = after(&base, &leave([1]));
    let mut node = Bench::joining(8);
    node.hear(1, install(&base));
    node.hear(2, install(&sole));
    let succession = sole.succeeded(id(8), LeaseSettings::default(), 9_000);
    let succession = Arc::new(succession.unwrap());
    node.say(EpochInput::Found(succession.clone()));
    assert!(node.machine.eligible());
    let forged = after(&succession, &join([6]));
    assert_eq!(doubts(&mut node, 1, &forged), []);
    assert!(node.machine.may_inform(id(2)), "the succession replaced its configuration");
}

#[test]
fn hint_of_a_let_in_node_makes_a_member_ping_its_voters() {
    let base = first([1, 2, 3]);
    let second = after(&base, &join([4]));
    let mut node = Bench::member(2, &base);
    assert_eq!(doubts(&mut node, 4, &second), [probe(1, &base), probe(3, &base)]);
    assert_eq!(doubts(&mut node, 4, &second), [], "one probe at a time");
    assert_eq!(node.hear(3, probe_answer(&base)), []);
    assert_eq!(node.wait(EpochConfig::default().probe_wait), [], "two of three are a quorum");
    let peer = EpochInput::PeerEpoch { from: id(4), id: Some(second.id()) };
    assert_eq!(node.say(peer), [probe(1, &base), probe(3, &base)]);
    assert_eq!(node.hear(3, install(&second))[0], installed(&second));
    let out = node.wait(2 * CONFIRM_WITHIN);
    let is_report = |output: &EpochOutput| matches!(output, EpochOutput::Declined { .. });
    assert!(!out.iter().any(is_report), "a member has confirmed it: {out:?}");
}

#[test]
fn only_voters_answer_a_hint_probe() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(2, &base);
    doubts(&mut node, 4, &after(&base, &join([4])));
    let answered =
        |node: &Bench| node.machine.hint_probe.as_ref().map(|probe| probe.answered.clone());
    for stranger in 4..1_000 {
        assert_eq!(node.hear(stranger, probe_answer(&base)), []);
    }
    assert_eq!(answered(&node), Some([id(2)].into()), "strangers take no room");
    node.hear(3, probe_answer(&base));
    assert_eq!(answered(&node), Some([id(2), id(3)].into()));
}

#[test]
fn unanswered_probe_makes_a_member_believe_let_in_nodes() {
    let base = first([1, 2, 3]);
    let second = after(&base, &join([4]));
    let mut node = Bench::member(2, &base);
    doubts(&mut node, 4, &second);
    let ask = EpochMessage::Ask { installed: Some(base.id()) };
    assert_eq!(node.wait(EpochConfig::default().probe_wait), [send(4, ask)]);
    assert_eq!(doubts(&mut node, 9, &second), [], "9 is not let in");
    let mut late = Bench { machine: node.machine.clone(), ..Bench::joining(2) };
    late.now = node.now;
    assert_eq!(node.hear(4, install(&second))[0], installed(&second));
    late.wait(ALONE_FOR);
    doubts(&mut late, 4, &second);
    // A voter that answers late ends this, too.
    late.wait(EpochConfig::default().probe_wait);
    late.hear(1, probe_answer(&base));
    doubts(&mut late, 4, &second);
}

#[test]
fn voter_answers_a_probe_with_its_newer_configuration() {
    let base = first([1, 2, 3]);
    let second = after(&base, &leave([3]));
    let mut node = Bench::member(1, &base);
    node.hear(3, install(&second));
    let out = node.hear(2, EpochMessage::Ping { epoch: base.id(), ballot: ballot(0, 2) });
    assert_eq!(out, [send(2, install(&second)), send(2, probe_answer(&base))]);
}

#[test]
fn voter_believes_newcomers_of_a_proposal_that_it_heard() {
    let base = first([1, 2, 3]);
    let second = after(&base, &join([4]));
    let mut node = Bench::member(2, &base);
    doubts(&mut node, 4, &second);
    node.hear(1, seal(&base, ballot(1, 1), &second));
    assert_eq!(node.hear(4, install(&second))[0], installed(&second));
    // The next proposal adds no believed newcomer yet.
    doubts(&mut node, 5, &after(&second, &join([5])));
}

#[test]
fn member_takes_configurations_of_members_now_and_before() {
    let base = first([1, 2, 3]);
    let second = after(&base, &leave([1]).and(&join([4])));
    let third = after(&second, &join([5]));
    let fourth = after(&third, &join([6]));
    let mut node = Bench::member(2, &base);
    // 4 is let in but no member here, and 2 reaches a quorum.
    doubts(&mut node, 4, &second);
    node.hear(1, install(&second));
    assert_eq!(node.epoch(), second.id());
    node.hear(1, install(&third)); // removed by the last change
    assert_eq!(node.epoch(), third.id());
    doubts(&mut node, 1, &fourth);
    node.hear(4, install(&fourth));
    assert_eq!(node.epoch(), fourth.id());
}

/// Found by the exhaustive search: after a skip, the configuration before it does not count.
#[test]
fn member_that_skipped_a_change_doubts_nodes_removed_in_it() {
    let base = first([1, 2, 3]);
    let third = after(&after(&base, &leave([1])), &join([4]));
    let fourth = after(&third, &join([5]));
    let mut node = Bench::member(2, &base);
    node.hear(3, install(&third));
    doubts(&mut node, 1, &fourth);
    node.hear(4, install(&fourth));
    assert_eq!(node.epoch(), fourth.id());
}

#[test]
fn member_without_quorum_believes_nodes_let_in_only() {
    let base = first([1, 2, 3]);
    let later = after(&after(&base, &leave([1]).and(&join([4]))), &leave([3]));
    let mut node = Bench::member(2, &base);
    let reached = |alive: &[u64]| {
        let known = (1..=4).map(|n| (id(n), alive.contains(&n))).collect();
        EpochInput::Known(known)
    };
    node.say(reached(&[1, 2, 4]));
    doubts(&mut node, 4, &later);
    node.say(reached(&[2, 4]));
    doubts(&mut node, 9, &later);
    node.hear(4, install(&later));
    assert_eq!(node.epoch(), later.id());
}

#[test]
fn joiner_without_membership_takes_no_configuration() {
    let base = first([1, 2, 3]);
    let mut node = Bench::joining(4);
    node.say(EpochInput::Known(BTreeMap::new()));
    doubts(&mut node, 1, &base);
    let next = after(&base, &join([4]));
    let order = sync(&base, ballot(1, 1), &next, ids([1, 2]));
    assert_eq!(node.hear(1, order), []);
    node.say(EpochInput::Known([(id(1), true)].into_iter().collect()));
    doubts(&mut node, 3, &base);
    assert_eq!(node.hear(1, install(&base)), [installed(&base)]);
    // Members of the installed configuration are believed, too.
    assert_eq!(node.hear(3, install(&next))[0], installed(&next));
}

#[test]
fn forced_side_still_hears_the_other_operators_side() {
    let base = first([1, 2, 3, 4]);
    let by = |me: u64, kept: u64, wall| {
        Arc::new(base.forced(id(me), &ids([kept]).into_iter().collect(), wall).unwrap())
    };
    let (lower, higher) = (by(2, 4, 8_000), by(1, 3, 9_000));
    let mut node = Bench::member(4, &base);
    node.hear(2, install(&lower));
    let later = after(&after(&lower, &join([5])), &join([6]));
    node.hear(2, install(&after(&lower, &join([5]))));
    node.hear(2, install(&later));
    assert_eq!(node.epoch(), later.id());
    node.hear(1, install(&higher));
    assert!(node.machine.is_excluded());
}

#[test]
fn configuration_of_another_cluster_is_declined() {
    let ours = numbered(1, 1, &[1, 2], 7);
    let theirs = numbered(1, 2, &[1, 2], 8);
    let mut node = Bench::member(2, &ours);
    let why = ConfigurationRefusal::Cluster { ours: 7, theirs: 8 };
    assert_eq!(node.hear(1, install(&theirs)), [declined(1, &theirs, why)]);
    assert_eq!(ours.admits(&theirs), Err(ProposalMismatch::Cluster(8)));
    assert_eq!(after(&ours, &join([3])).cluster(), 7);
    assert_eq!(ours.forced(id(2), &BTreeSet::new(), 9).unwrap().cluster(), 7);
}

#[test]
fn number_or_generation_that_jumps_is_declined_even_of_a_member() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(2, &base);
    node.now.wall = WallTime::from_millis(5_000);
    for (generation, number) in
        [(1, 1 + JUMP_MAX + 1), (5_000 + GENERATION_AHEAD_MAX + 1, 1), (NUMBER_MAX, NUMBER_MAX)]
    {
        let far = numbered(generation, number, &[1, 2], 0);
        assert_eq!(node.hear(1, install(&far)), [declined(1, &far, ConfigurationRefusal::Jump)]);
    }
    let near = numbered(5_000 + GENERATION_AHEAD_MAX, 1 + JUMP_MAX, &[1, 2], 0);
    node.hear(1, install(&near));
    assert_eq!(node.epoch(), near.id());
    let force = EpochInput::Force { replaced: near.id(), kept: BTreeSet::new() };
    node.say(force);
    assert!(node.epoch() > near.id(), "forced recovery still has a higher id");
}

#[test]
fn ballot_that_jumps_is_not_promised() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(2, &base);
    assert_eq!(node.hear(1, ballot_in(&base, JUMP_MAX + 1, 1)), []);
    assert_eq!((node.machine.state().promise, node.machine.stats().nonsense), (None, 1));
    node.hear(1, ballot_in(&base, JUMP_MAX, 1));
    assert_eq!(node.machine.state().promise, Some(ballot(JUMP_MAX, 1)));
    node.hear(3, ballot_in(&base, JUMP_MAX + 1, 3));
    assert_eq!(node.machine.state().promise, Some(ballot(JUMP_MAX + 1, 3)));
}

#[test]
fn stranger_neither_seals_nor_overtakes_an_attempt() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(2, &base);
    let next = after(&base, &join([4]));
    for message in [
        seal(&base, ballot(1, 9), &next),
        accept(&base, ballot(1, 9), &next),
        EpochMessage::Withhold { epoch: base.id(), ballot: ballot(1, 9), removed: ids([3]) },
        sync(&base, ballot(1, 9), &after(&base, &join([2])), ids([1, 2])),
    ] {
        assert_eq!(node.hear(9, message), []);
    }
    assert_eq!((node.machine.state().promise, node.machine.stats().nonsense), (None, 4));
    node.say(EpochInput::Propose(join([4])));
    let mine = node.machine.state().number;
    let why = BallotRefusal::Promised(ballot(mine + 100, 9));
    assert_eq!(node.hear(9, refused(&base, ballot(mine, 2), why.clone())), []);
    assert_eq!(node.machine.state().number, mine, "only voters refuse");
    node.hear(3, refused(&base, ballot(mine, 2), why));
    assert_eq!(node.machine.state().number, mine + 100);
}
