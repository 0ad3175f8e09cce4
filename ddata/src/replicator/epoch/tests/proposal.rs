//! The proposer: from the proposed change to the decision, with every refusal and interruption.

use super::*;

fn withheld(base: &Arc<Epoch>, ballot: Ballot, remaining: Vec<Remaining>) -> EpochMessage {
    EpochMessage::Withheld { epoch: base.id(), ballot, remaining }
}

fn consent(query: u64) -> EpochInput {
    EpochInput::Consent { query, remaining: vec![] }
}

fn decided(epoch: &Arc<Epoch>, deferred: Vec<ReplicaId>) -> EpochOutput {
    outcome(ProposalOutcome::Decided { epoch: epoch.id(), deferred })
}

/// Node 1 of {1, 2, 3} has proposed `change`, and the quorum {1, 2} is sealed.
fn sealed_quorum(change: &MembershipChange) -> (Bench, Arc<Epoch>, Arc<Epoch>) {
    let base = first([1, 2, 3]);
    let next = after(&base, change);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(change.clone()));
    if change.removed().next().is_some() {
        node.say(consent(1));
        node.hear(2, withheld(&base, ballot(1, 1), vec![]));
        node.say(consent(2));
    }
    node.hear(2, sealed(&base, ballot(1, 1), None));
    (node, base, next)
}

#[test]
fn join_is_sealed_synced_accepted_and_installed() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let b = ballot(1, 1);
    let mut node = Bench::member(1, &base);
    let out = node.say(EpochInput::Propose(join([4])));
    let ask = seal(&base, b, &next);
    assert_eq!(out, [send(2, ask.clone()), send(3, ask), EpochOutput::Freeze(base.id())]);
    let out = node.hear(2, sealed(&base, b, None));
    let order = sync(&base, b, &next, ids([1, 2]));
    let pull = EpochOutput::PullSnapshot { epoch: base.id(), of: id(2) };
    let expected = [send(2, order.clone()), send(3, order.clone()), send(4, order), pull];
    assert_eq!(out, expected);
    assert_eq!(node.hear(2, synced(&base)), []);
    assert_eq!(node.hear(2, synced(&base)), [], "a repeated confirmation counts once");
    let out = node.say(EpochInput::SnapshotMerged { epoch: base.id(), of: id(2) });
    let ask = accept(&base, b, &next);
    assert_eq!(out, [EpochOutput::StopPulls, send(2, ask.clone()), send(3, ask)]);
    let out = node.hear(2, accepted(&base, b));
    let tell = [2, 3, 4].map(|to| send(to, install(&next)));
    let here = [installed(&next), decided(&next, vec![]), EpochOutput::Synced(next.id())];
    assert_eq!(out, [&here[..], &tell].concat());
    assert!(node.machine.eligible());
    assert_eq!(node.machine.stats().decided, 1);
}

#[test]
fn sole_member_decides_at_once() {
    let base = first([1]);
    let next = after(&base, &MembershipChange::default());
    let mut node = Bench::member(1, &base);
    let out = node.say(EpochInput::Propose(MembershipChange::default()));
    let end = [installed(&next), decided(&next, vec![]), EpochOutput::Synced(next.id())];
    assert_eq!(out, [&[EpochOutput::Freeze(base.id())][..], &end].concat());
}

#[test]
fn removal_withholds_leases_first() {
    let base = first([1, 2, 3]);
    let b = ballot(1, 1);
    let mut node = Bench::member(1, &base);
    let out = node.say(EpochInput::Propose(leave([3])));
    let ask = EpochMessage::Withhold { epoch: base.id(), ballot: b, removed: ids([3]) };
    let why = Consenting::Withhold;
    let own = EpochOutput::AskConsent { query: 1, removed: ids([3]), why };
    assert_eq!(out, [send(2, ask.clone()), send(3, ask), own]);
    assert_eq!(node.say(consent(1)), []);
    let out = node.hear(2, withheld(&base, b, vec![]));
    let ask = seal(&base, b, &after(&base, &leave([3])));
    let own = EpochOutput::AskConsent { query: 2, removed: ids([3]), why: Consenting::Seal };
    assert_eq!(out, [send(2, ask.clone()), send(3, ask), own]);
}

#[test]
fn running_lease_defers_only_its_removal() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(MembershipChange { join: ids([4]), ..leave([3]) }));
    node.say(consent(1));
    let runs = vec![(id(3), Duration::from_secs(3)), (id(77), Duration::from_secs(99))];
    let out = node.hear(2, withheld(&base, ballot(1, 1), runs));
    let next = after(&base, &join([4]));
    assert_eq!(out[0], send(2, seal(&base, ballot(2, 1), &next)), "the join proceeds alone");
    let out = node.hear(3, install(&next));
    assert!(out.contains(&decided(&next, ids([3]))), "{out:?}");
}

/// Node 3 of `members` proposes `change`. The nodes in `answering`, the last of a quorum, answer
/// that leases of 1 and 2 still run.
fn two_leases_run<const N: usize>(
    members: [u64; N],
    change: MembershipChange,
    answering: &[u64],
) -> (Bench, Vec<EpochOutput>) {
    let base = first(members);
    let mut node = Bench::member(3, &base);
    node.say(EpochInput::Propose(change));
    node.say(consent(1));
    let runs = || [1, 2].map(|member| (id(member), Duration::from_secs(3))).to_vec();
    let answers =
        answering.iter().map(|from| node.hear(*from, withheld(&base, ballot(1, 3), runs())));
    let last = answers.last().unwrap();
    (node, last)
}

fn withhold(base: &Arc<Epoch>, ballot: Ballot, removed: Vec<ReplicaId>) -> EpochMessage {
    EpochMessage::Withhold { epoch: base.id(), ballot, removed }
}

#[test]
fn batch_waits_for_leases_if_rest_is_no_live_quorum() {
    let base = first([1, 2, 3, 4, 5]);
    let (mut node, out) = two_leases_run([1, 2, 3, 4, 5], leave([1, 2, 5]), &[4, 5]);
    assert_eq!(out, [], "only 3 and 4 of 1 to 4 have answered, and 1 breaks ties");
    let again = withhold(&base, ballot(1, 3), ids([1, 2, 5]));
    let silent = [1, 2].map(|to| send(to, again.clone()));
    let out = node.wait(Duration::from_millis(2_999));
    assert!(silent.iter().all(|ask| out.contains(ask)), "an answer would help: {out:?}");
    assert!(out.iter().all(|ask| silent.contains(ask)), "the leases run: {out:?}");
    assert!(node.machine.eligible(), "nothing is sealed meanwhile");
    let out = node.wait(Duration::from_secs(1)); // the leases have expired, after the patience with 1 and 2
    assert!(out.contains(&send(4, again)), "{out:?}");
}

#[test]
fn batch_defers_leased_removals_if_rest_is_live() {
    // In the first case 3 breaks ties. In the second, 1 has answered, so it counts as alive.
    for (members, third) in [([3, 4, 5, 1, 2], 5), ([1, 2, 3, 4, 5], 1)] {
        let (_, out) = two_leases_run(members, leave([1, 2, 5]), &[4, third]);
        let ask = withhold(&first(members), ballot(2, 3), ids([5]));
        assert!(out.contains(&send(4, ask)), "{out:?}");
    }
}

#[test]
fn join_proceeds_without_leased_removals() {
    let members = [1, 2, 3, 4, 5];
    let change = MembershipChange { leave: ids([1, 2, 4, 5]), ..join([6]) };
    let (mut node, out) = two_leases_run(members, change, &[4, 5]);
    assert_eq!(out, [], "1 or 2 may still answer");
    let out = node.wait(Duration::from_secs(1));
    let next = after(&first(members), &join([6]));
    assert!(out.contains(&send(4, seal(&first(members), ballot(2, 3), &next))), "{out:?}");
}

#[test]
fn no_seal_before_quorum_of_remaining_has_answered() {
    let base = first([1, 2, 3, 4]);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(leave([1])));
    node.say(consent(1));
    let b = ballot(1, 1);
    assert_eq!(node.hear(2, withheld(&base, b, vec![])), [], "2 alone is no quorum of 2, 3 and 4");
    assert_eq!(node.wait(Duration::from_millis(199)), []);
    let again = withhold(&base, b, ids([1]));
    let out = node.wait(Duration::from_millis(1));
    assert_eq!(
        out,
        [3, 4].map(|to| send(to, again.clone())),
        "2 has answered and is not asked again"
    );
    assert!(node.machine.eligible(), "nothing is sealed meanwhile");
    let out = node.hear(4, withheld(&base, b, vec![]));
    assert_eq!(out[0], send(2, seal(&base, b, &after(&base, &leave([1])))));
}

#[test]
fn removal_without_live_rest_is_refused_then_repeatable() {
    let base = first([1, 2]);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(leave([1])));
    node.say(consent(1));
    let out = node.wait(Duration::from_secs(1));
    let why = ProposalRefusal::TooFewAnswered;
    assert_eq!(out.last(), Some(&outcome(ProposalOutcome::Refused { why })));
    assert_eq!(node.wait(Duration::from_secs(60)), [], "no timer of the attempt is left");
    node.say(EpochInput::Propose(lost([2])));
    let alone = after(&base, &lost([2]));
    let asks = node.say(consent(2));
    assert!(asks.contains(&send(2, seal(&base, ballot(2, 1), &alone))), "{asks:?}");
}

/// Regression test: the refusal claimed that no voter was sealed. Here 2 was sealed by the first
/// ballot of the batch, which refusals of other voters ended.
#[test]
fn change_may_be_given_back_after_a_voter_was_sealed() {
    let base = first([1, 2, 3, 4, 5]);
    let b = ballot(1, 1);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(leave([4, 5])));
    node.say(consent(1));
    node.hear(2, withheld(&base, b, vec![]));
    node.hear(3, withheld(&base, b, vec![])); // its own question before the seal stays open
    node.hear(2, sealed(&base, b, None));
    for from in [3, 4, 5] {
        let leased = BallotRefusal::Leased(vec![(id(5), Duration::from_secs(3))]);
        node.hear(from, refused(&base, b, leased));
    }
    let out = node.wait(Duration::from_secs(2));
    let why = ProposalRefusal::TooFewAnswered;
    assert!(!why.to_string().contains("sealed"), "{why}");
    assert_eq!(out.last(), Some(&outcome(ProposalOutcome::Refused { why })));
}

#[test]
fn late_answer_lets_batch_proceed_without_leased_removals() {
    let base = first([1, 2, 3, 4]);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(leave([1, 3])));
    node.say(consent(1));
    let runs = || vec![(id(3), Duration::from_secs(3))];
    let out = node.hear(2, withheld(&base, ballot(1, 1), runs()));
    assert_eq!(out, [], "only 2 of 2, 3 and 4 has answered");
    assert_eq!(
        node.hear(2, withheld(&base, ballot(1, 1), runs())),
        [],
        "a repeated answer changes nothing"
    );
    let out = node.hear(4, withheld(&base, ballot(1, 1), runs()));
    assert_eq!(out[0], send(2, withhold(&base, ballot(2, 1), ids([1]))));
}

#[test]
fn fewest_removals_are_deferred_for_silent_voters() {
    let base = first([1, 2, 3, 4, 5]);
    for change in [leave([1, 2]), MembershipChange { leave: ids([1, 2]), ..join([6]) }] {
        let mut node = Bench::member(4, &base);
        node.say(EpochInput::Propose(change.clone()));
        node.say(consent(1));
        node.hear(1, withheld(&base, ballot(1, 4), vec![]));
        let out = node.hear(2, withheld(&base, ballot(1, 4), vec![]));
        assert_eq!(out, [], "only 4 of 3, 4 and 5 has answered, and 3 breaks ties");
        let out = node.wait(Duration::from_secs(1));
        let one = withhold(&base, ballot(2, 4), ids([1]));
        assert!(out.contains(&send(2, one)), "2 stays, with 3, 4 and 5, and breaks ties: {out:?}");
    }
}

#[test]
fn patience_doubles_with_each_refused_change() {
    let base = first([1, 2]);
    let mut node = Bench::member(1, &base);
    let mut spans = Vec::new();
    for query in 1..=6 {
        node.say(EpochInput::Propose(leave([1])));
        node.say(consent(query));
        let begun = node.now.mono;
        while node.machine.attempt.is_some() {
            node.wait(Duration::from_millis(100));
        }
        spans.push(node.now.mono - begun);
    }
    let after = |doublings: u32| Duration::from_millis(500) * (1 << doublings);
    for (doublings, span) in [0, 1, 2, 3, 3, 3].into_iter().zip(spans) {
        assert!(span >= after(doublings), "{span:?}");
        assert!(span <= after(doublings + 1) + Duration::from_millis(100), "{span:?}");
    }
}

/// Every install starts all lease waits anew. A proposer that overtook the other's removal with
/// unchanged members would do so each time.
#[test]
fn waiting_removal_does_not_overtake_another_proposer() {
    let base = first([1, 2, 3]);
    let runs = |millis| vec![(id(3), Duration::from_millis(millis))];
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(leave([3])));
    node.say(consent(1));
    assert_eq!(node.hear(2, withheld(&base, ballot(1, 1), runs(100))), []);
    node.hear(2, seal(&base, ballot(7, 2), &after(&base, &leave([3]))));
    let out = node.say(consent(2));
    assert!(out.contains(&send(2, sealed(&base, ballot(7, 2), None))), "{out:?}");
    node.wait(Duration::from_millis(100));
    node.say(consent(3));
    assert_eq!(node.hear(2, withheld(&base, ballot(1, 1), runs(20))), [], "its clock is slow");
    let out = node.wait(Duration::from_secs(3));
    let same = after(&base, &MembershipChange::default());
    let taken_over = out.contains(&send(2, seal(&base, ballot(8, 1), &same)));
    assert!(taken_over, "the other one's is abandoned: {out:?}");
}

#[test]
fn single_removal_waits_for_its_lease() {
    let base = first([1, 2, 3]);
    let b = ballot(1, 1);
    // 9 was never a member: barring it can wait as well.
    for change in [leave([3]), leave([3, 9]), leave([9, 3])] {
        let mut node = Bench::member(1, &base);
        node.say(EpochInput::Propose(change.clone()));
        node.say(consent(1));
        let runs = vec![(id(3), Duration::from_secs(3))];
        assert_eq!(node.hear(2, withheld(&base, b, runs)), [], "{change:?}");
        assert_eq!(node.wait(Duration::from_millis(2_999)), [], "{change:?}");
        assert!(node.machine.eligible(), "nothing is sealed meanwhile");
        let out = node.wait(Duration::from_millis(1));
        let ask = withhold(&base, b, ids([3]));
        assert_eq!(out[..2], [send(2, ask.clone()), send(3, ask)], "{change:?}");
    }
}

#[test]
fn second_change_joins_batch_before_seal_only() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(leave([3])));
    node.say(consent(1));
    node.hear(2, withheld(&base, ballot(1, 1), vec![(id(3), Duration::from_secs(3))]));
    node.say(EpochInput::Propose(join([4])));
    node.say(consent(2));
    let out = node.hear(2, withheld(&base, ballot(2, 1), vec![]));
    let both = after(&base, &MembershipChange { leave: ids([3]), ..join([4]) });
    assert_eq!(out[0], send(2, seal(&base, ballot(2, 1), &both)));
    let out = node.say(EpochInput::Propose(join([5])));
    assert_eq!(out, [outcome(ProposalOutcome::Refused { why: ProposalRefusal::Busy })]);
}

#[test]
fn lease_refused_at_seal_defers_removal() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(MembershipChange { join: ids([4]), ..leave([3]) }));
    node.say(consent(1));
    node.hear(2, withheld(&base, ballot(1, 1), vec![]));
    node.say(consent(2));
    let leased = || BallotRefusal::Leased(vec![(id(3), Duration::from_secs(3))]);
    assert_eq!(node.hear(3, refused(&base, ballot(1, 1), leased())), [], "2 may still seal");
    let out = node.hear(2, refused(&base, ballot(1, 1), leased()));
    assert_eq!(out[0], send(2, seal(&base, ballot(2, 1), &after(&base, &join([4])))));
}

/// Regression test: a refusal that arrived after the same voter's `Sealed` counted, and a ballot
/// that could still be sealed was given up.
#[test]
fn late_refusal_of_a_sealed_voter_is_ignored() {
    let (base, b) = (first([1, 2, 3, 4, 5]), ballot(1, 1));
    let change = MembershipChange { join: ids([6]), ..leave([5]) };
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(change.clone()));
    node.say(consent(1));
    node.hear(2, withheld(&base, b, vec![]));
    node.hear(3, withheld(&base, b, vec![]));
    node.say(consent(2));
    node.hear(2, sealed(&base, b, None));
    for from in [2, 3, 4] {
        let leased = BallotRefusal::Leased(vec![(id(5), Duration::from_secs(3))]);
        assert_eq!(node.hear(from, refused(&base, b, leased)), [], "5 may still seal");
    }
    let out = node.hear(5, sealed(&base, b, None));
    let order = sync(&base, b, &after(&base, &change), ids([1, 2, 5]));
    assert_eq!(out[0], send(2, order));
}

#[test]
fn highest_accepted_proposal_is_adopted() {
    let base = first([1, 2, 3, 4, 5]);
    let (low, high) = (after(&base, &join([6])), after(&base, &join([7])));
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(join([8])));
    node.hear(2, sealed(&base, ballot(1, 1), None));
    assert_eq!(node.hear(9, sealed(&base, ballot(1, 1), None)), [], "9 is no member");
    assert_eq!(node.hear(3, sealed(&base, ballot(9, 1), None)), [], "another ballot");
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(join([8])));
    node.hear(2, sealed(&base, ballot(1, 1), Some((ballot(3, 2), low))));
    let out = node.hear(3, sealed(&base, ballot(1, 1), Some((ballot(4, 2), high.clone()))));
    assert_eq!(out[0], send(2, sync(&base, ballot(1, 1), &high, ids([1, 2, 3]))));
    let out = node.hear(4, install(&high));
    assert!(out.contains(&outcome(ProposalOutcome::Superseded { by: high.id() })), "{out:?}");
}

#[test]
fn chosen_proposal_is_fixed_for_the_ballot() {
    let (mut node, base, next) = sealed_quorum(&join([4]));
    let other = after(&base, &join([7]));
    node.hear(3, sealed(&base, ballot(1, 1), Some((ballot(9, 3), other))));
    let out = node.wait(Duration::from_millis(200));
    assert!(out.contains(&send(4, sync(&base, ballot(1, 1), &next, ids([1, 2, 3])))), "{out:?}");
}

#[test]
fn unfit_accepted_proposal_is_dropped() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(join([4])));
    let nonsense = Some((ballot(1, 3), first([7, 8, 9])));
    assert_eq!(node.hear(3, sealed(&base, ballot(1, 1), nonsense)), []);
    assert_eq!(node.machine.stats().unfit, 1);
}

#[test]
fn lost_member_is_probed_before_accept() {
    let (mut node, base, next) = sealed_quorum(&lost([3]));
    node.say(EpochInput::SnapshotMerged { epoch: base.id(), of: id(2) });
    assert_eq!(node.hear(2, synced(&base)), [], "synced, but the probe is unanswered");
    let out = node.wait(Duration::from_millis(300));
    assert!(out.contains(&send(2, accept(&base, ballot(1, 1), &next))), "{out:?}");
}

#[test]
fn leaving_member_is_not_probed() {
    let (mut node, base, next) = sealed_quorum(&leave([3]));
    let out = node.say(EpochInput::SnapshotMerged { epoch: base.id(), of: id(2) });
    assert!(out.contains(&send(2, accept(&base, ballot(1, 1), &next))), "{out:?}");
}

#[test]
fn member_that_answers_probe_stays() {
    let (mut node, base, _) = sealed_quorum(&MembershipChange { join: ids([4]), ..lost([3]) });
    let pong = |ballot| EpochMessage::Pong { epoch: base.id(), ballot };
    assert_eq!(node.hear(2, pong(ballot(1, 1))), [], "2 was not probed");
    let out = node.hear(3, pong(ballot(1, 1)));
    let next = after(&base, &join([4]));
    assert_eq!(out[..2], [2, 3].map(|to| send(to, seal(&base, ballot(2, 1), &next))));
    let out = node.hear(2, install(&next));
    assert!(out.contains(&decided(&next, ids([3]))), "{out:?}");
}

#[test]
fn no_removal_is_withdrawn_after_accept() {
    let (mut node, base, _) = sealed_quorum(&lost([3]));
    node.say(EpochInput::SnapshotMerged { epoch: base.id(), of: id(2) });
    node.hear(2, synced(&base));
    node.wait(Duration::from_millis(300));
    let (epoch, ballot) = (base.id(), ballot(1, 1));
    assert_eq!(node.hear(3, EpochMessage::Pong { epoch, ballot }), []);
}

#[test]
fn resend_interval_doubles_up_to_bound() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(join([4])));
    let ask = seal(&base, ballot(1, 1), &next);
    let mut times = Vec::new();
    for tenth in 1..=100 {
        let out = node.wait(Duration::from_millis(100));
        times.extend(out.contains(&send(2, ask.clone())).then_some(tenth));
    }
    assert_eq!(times, [2, 6, 14, 30, 50, 70, 90]);
    node.hear(2, sealed(&base, ballot(9, 9), None));
    assert_eq!(node.machine.stats().attempts, 1, "a resend begins no ballot");
}

#[test]
fn overtaken_attempt_retries_above_the_promise() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(join([4])));
    node.hear(3, refused(&base, ballot(1, 1), BallotRefusal::Promised(ballot(6, 2))));
    let out = node.wait(Duration::from_millis(2_100)); // after one attempt of its own
    assert!(out.contains(&send(2, seal(&base, ballot(7, 1), &next))), "{out:?}");
}

#[test]
fn overtaken_attempt_still_counts_answers() {
    let (mut node, base, next) = sealed_quorum(&join([4]));
    node.hear(3, refused(&base, ballot(1, 1), BallotRefusal::Promised(ballot(6, 2))));
    node.say(EpochInput::SnapshotMerged { epoch: base.id(), of: id(2) });
    let out = node.hear(2, synced(&base));
    assert!(out.contains(&send(2, accept(&base, ballot(1, 1), &next))), "{out:?}");
}

#[test]
fn patience_doubles_per_attempt_and_confirmations_last() {
    let (mut node, base, next) = sealed_quorum(&join([4, 5, 6])); // 4 of 6 must sync, or 3 with the tiebreaker
    node.hear(2, synced(&base));
    let mut begun = Vec::new();
    for second in 0..40 {
        let before = node.machine.stats().attempts;
        node.wait(Duration::from_secs(1));
        let number = node.machine.stats().attempts;
        if number > before {
            begun.push(second);
            let b = ballot(number, 1);
            let out = node.hear(2, sealed(&base, b, None));
            let order = sync(&base, b, &next, ids([1, 2]));
            let asked = |to| out.contains(&send(to, order.clone()));
            let first_three = number <= 4;
            assert_eq!((asked(4), asked(2)), (first_three, false), "2 has confirmed before");
        }
    }
    assert!(begun.len() >= 3 && begun.windows(2).all(|pair| pair[0] < pair[1]), "{begun:?}");
}

#[test]
fn unsynced_proposal_is_replaced_by_unchanged_members() {
    let (mut node, base, _) = sealed_quorum(&join([4, 5, 6]));
    let mut out = Vec::new();
    while node.machine.stats().abandoned == 0 {
        out = node.wait(Duration::from_millis(50));
        let number = node.machine.stats().attempts;
        if out.iter().any(|o| matches!(o, EpochOutput::Send { message: EpochMessage::Seal { ballot, .. }, .. } if ballot.number == number)) {
            node.hear(2, sealed(&base, ballot(number, 1), None));
        }
    }
    assert!(
        out.contains(&outcome(ProposalOutcome::Refused { why: ProposalRefusal::NotSynced })),
        "{out:?}"
    );
    let same = after(&base, &MembershipChange::default());
    assert!(out.contains(&send(2, seal(&base, ballot(5, 1), &same))), "{out:?}");
}

#[test]
fn confirmed_sync_repeats_seal_to_all_voters() {
    let (mut node, base, next) = sealed_quorum(&join([4, 5, 6]));
    let again = send(2, seal(&base, ballot(1, 1), &next));
    assert!(!node.wait(Duration::from_millis(200)).contains(&again), "2 has answered");
    node.hear(4, synced(&base));
    assert!(node.wait(Duration::from_millis(400)).contains(&again));
}

#[test]
fn impossible_changes_are_refused_at_once() {
    let base = after(&first([1, 2, 3]), &leave([3]));
    let mut node = Bench::member(1, &base);
    let why = |why| [outcome(ProposalOutcome::Refused { why })];
    let returned = ProposalRefusal::Change(ChangeError::Returned(id(3)));
    assert_eq!(node.say(EpochInput::Propose(join([3]))), why(returned));
    let no_member = ProposalRefusal::Change(ChangeError::NobodyLeft);
    assert_eq!(node.say(EpochInput::Propose(leave([1, 2]))), why(no_member));
    let mut stranger = Bench::joining(9);
    assert_eq!(stranger.say(EpochInput::Propose(join([9]))), why(ProposalRefusal::NotAMember));
    assert_eq!(node.machine.stats().attempts, 0);
}

#[test]
fn proposer_may_remove_itself() {
    let base = first([1, 2]);
    let next = after(&base, &leave([1]));
    let b = ballot(1, 1);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(leave([1])));
    assert_eq!(
        node.say(consent(1)),
        [],
        "half with the tiebreaker, but no remaining member has answered"
    );
    assert_eq!(node.hear(2, withheld(&base, b, vec![])).len(), 2, "Seal and the lease question");
    let out = node.say(consent(2));
    assert_eq!(out[..2], [EpochOutput::Freeze(base.id()), EpochOutput::StopServing]);
    assert!(out.contains(&send(2, sync(&base, b, &next, ids([1])))), "{out:?}");
    let out = node.hear(2, synced(&base));
    let end = [
        installed(&next),
        decided(&next, vec![]),
        EpochOutput::Excluded(next.id()),
        send(2, install(&next)),
    ];
    assert_eq!(out, [&[send(2, accept(&base, b, &next))][..], &end].concat());
}

#[test]
fn lease_wait_ends_when_another_node_seals() {
    let base = first([1, 2, 3]);
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(leave([3])));
    node.say(consent(1));
    node.hear(2, withheld(&base, ballot(1, 1), vec![(id(3), Duration::from_secs(30))]));
    node.hear(2, seal(&base, ballot(4, 2), &after(&base, &join([4]))));
    let out = node.wait(Duration::from_secs(3));
    let same = after(&base, &MembershipChange::default());
    assert!(out.contains(&send(2, seal(&base, ballot(5, 1), &same))), "{out:?}");
}

#[test]
fn adopted_removal_is_neither_probed_nor_withdrawn() {
    let base = first([1, 2, 3]);
    let next = after(&base, &lost([3]));
    let mut node = Bench::member(1, &base);
    node.say(EpochInput::Propose(lost([3])));
    node.say(consent(1));
    node.hear(2, withheld(&base, ballot(1, 1), vec![]));
    node.say(consent(2));
    let out = node.hear(2, sealed(&base, ballot(1, 1), Some((ballot(1, 0), next))));
    let (epoch, ballot) = (base.id(), ballot(1, 1));
    assert!(!out.contains(&send(3, EpochMessage::Ping { epoch, ballot })), "{out:?}");
    assert_eq!(node.hear(3, EpochMessage::Pong { epoch, ballot }), []);
    let out = node.say(EpochInput::SnapshotMerged { epoch, of: id(2) });
    assert!(matches!(
        out.last(),
        Some(EpochOutput::Send { message: EpochMessage::Accept { .. }, .. })
    ));
}

#[test]
fn member_without_vote_may_propose() {
    let many: Vec<_> = (1..=101).map(id).collect();
    let first = EpochId { generation: 1, number: 1 };
    let base = Arc::new(Epoch::founding(first, many, EpochSettings::default()).unwrap());
    let mut node = Bench::member(50, &base);
    let out = node.say(EpochInput::Propose(join([200])));
    let next = after(&base, &join([200]));
    let ask = (1..=9).map(|to| send(to, seal(&base, ballot(1, 50), &next)));
    assert_eq!(out, ask.collect::<Vec<_>>());
    assert!(node.machine.eligible() && !node.machine.is_voter() && !node.machine.sealed());
    for voter in 1..=5 {
        node.hear(voter, sealed(&base, ballot(1, 50), None));
    }
    for voter in 1..=5 {
        node.hear(voter, synced(&base));
    }
    for voter in 1..=5 {
        node.hear(voter, accepted(&base, ballot(1, 50)));
    }
    assert_eq!(node.epoch(), next.id());
    assert!(!node.machine.eligible(), "it must pull a state first");
}
