//! The voter: `Withhold`, `Seal`, `Accept`, and the reasons for which it refuses.

use super::*;

#[test]
fn seal_freezes_then_answers_and_stops_acks() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut voter = Bench::member(2, &base);
    let out = voter.hear(1, seal(&base, ballot(1, 1), &next));
    let expected = [EpochOutput::Freeze(base.id()), send(1, sealed(&base, ballot(1, 1), None))];
    assert_eq!(out, expected);
    assert!(voter.machine.sealed() && !voter.machine.eligible());
    assert_eq!(voter.disk.promise, Some(ballot(1, 1)));
}

#[test]
fn repeated_seal_is_answered_and_freezes_once() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut voter = Bench::member(2, &base);
    voter.hear(1, seal(&base, ballot(1, 1), &next));
    let again = voter.hear(1, seal(&base, ballot(1, 1), &next));
    assert_eq!(again, [send(1, sealed(&base, ballot(1, 1), None))]);
    let higher = voter.hear(3, seal(&base, ballot(1, 3), &next));
    assert_eq!(higher, [send(3, sealed(&base, ballot(1, 3), None))]);
}

#[test]
fn lower_ballot_is_refused_with_the_promise() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut voter = Bench::member(2, &base);
    voter.hear(3, seal(&base, ballot(2, 3), &next));
    let why = BallotRefusal::Promised(ballot(2, 3));
    let out = voter.hear(1, seal(&base, ballot(2, 1), &next));
    assert_eq!(out, [send(1, refused(&base, ballot(2, 1), why.clone()))]);
    let out = voter.hear(1, accept(&base, ballot(2, 1), &next));
    assert_eq!(out, [send(1, refused(&base, ballot(2, 1), why))]);
    assert_eq!(voter.machine.stats().refused, 2);
    assert_eq!(voter.machine.state().accepted, None);
}

#[test]
fn accept_seals_and_is_named_to_next_ballot() {
    let base = first([1, 2, 3]);
    let (one, other) = (after(&base, &join([4])), after(&base, &join([5])));
    let mut voter = Bench::member(2, &base);
    let out = voter.hear(1, accept(&base, ballot(1, 1), &one));
    let expected = [EpochOutput::Freeze(base.id()), send(1, accepted(&base, ballot(1, 1)))];
    assert_eq!(out, expected);
    assert!(!voter.machine.eligible());
    let out = voter.hear(3, seal(&base, ballot(2, 3), &other));
    let named = Some((ballot(1, 1), one));
    assert_eq!(out, [send(3, sealed(&base, ballot(2, 3), named))]);
}

/// Regression test: the second proposal replaced the first, and was not written to disk.
#[test]
fn second_proposal_of_one_ballot_is_not_accepted() {
    let base = first([1, 2, 3]);
    let (one, other) = (after(&base, &join([4])), after(&base, &join([5])));
    let mut voter = Bench::member(2, &base);
    voter.hear(1, accept(&base, ballot(1, 1), &one));
    assert_eq!(voter.hear(1, accept(&base, ballot(1, 1), &other)), []);
    assert_eq!(voter.machine.stats().nonsense, 1);
    let again = voter.hear(1, accept(&base, ballot(1, 1), &one));
    assert_eq!(again, [send(1, accepted(&base, ballot(1, 1)))]);
    assert_eq!(voter.machine.state().accepted, Some((ballot(1, 1), one)));
}

#[test]
fn seal_with_removal_waits_for_lease_machine() {
    let base = first([1, 2, 3]);
    let next = after(&base, &leave([3]));
    let mut voter = Bench::member(2, &base);
    let out = voter.hear(1, seal(&base, ballot(1, 1), &next));
    let why = Consenting::Seal;
    assert_eq!(out, [EpochOutput::AskConsent { query: 1, removed: ids([3]), why }]);
    assert!(voter.machine.eligible(), "the lease machine has not answered");
    let out = voter.say(EpochInput::Consent { query: 1, remaining: vec![] });
    assert_eq!(out.last(), Some(&send(1, sealed(&base, ballot(1, 1), None))));
}

#[test]
fn running_lease_refuses_seal() {
    let base = first([1, 2, 3]);
    let next = after(&base, &leave([3]));
    let mut voter = Bench::member(2, &base);
    voter.hear(1, seal(&base, ballot(1, 1), &next));
    let remaining = vec![(id(3), Duration::from_secs(2))];
    let out = voter.say(EpochInput::Consent { query: 1, remaining: remaining.clone() });
    assert_eq!(out, [send(1, refused(&base, ballot(1, 1), BallotRefusal::Leased(remaining)))]);
    assert!(voter.machine.eligible());
}

#[test]
fn promise_during_lease_query_refuses_seal() {
    let base = first([1, 2, 3]);
    let mut voter = Bench::member(2, &base);
    voter.hear(1, seal(&base, ballot(1, 1), &after(&base, &leave([3]))));
    voter.hear(3, seal(&base, ballot(2, 3), &after(&base, &join([4]))));
    let out = voter.say(EpochInput::Consent { query: 1, remaining: vec![] });
    let why = BallotRefusal::Promised(ballot(2, 3));
    assert_eq!(out, [send(1, refused(&base, ballot(1, 1), why))]);
}

#[test]
fn one_lease_query_per_proposer_until_install() {
    let base = first([1, 2, 3]);
    let next = after(&base, &leave([3]));
    let mut voter = Bench::member(2, &base);
    for query in 1..=3 {
        let out = voter.hear(1, seal(&base, ballot(query, 1), &next));
        let why = Consenting::Seal;
        assert_eq!(out, [EpochOutput::AskConsent { query, removed: ids([3]), why }]);
    }
    assert_eq!(voter.say(EpochInput::Consent { query: 1, remaining: vec![] }), []);
    assert_eq!(voter.machine.stats().consents_dropped, 2);
    voter.hear(1, install(&after(&base, &join([9]))));
    assert_eq!(voter.say(EpochInput::Consent { query: 3, remaining: vec![] }), []);
    assert!(!voter.machine.sealed());
}

#[test]
fn withhold_is_answered_with_running_leases() {
    let base = first([1, 2, 3]);
    let mut voter = Bench::member(2, &base);
    let ask = |removed| EpochMessage::Withhold { epoch: base.id(), ballot: ballot(1, 1), removed };
    let out = voter.hear(1, ask(ids([3, 3, 8])));
    let why = Consenting::Withhold;
    assert_eq!(out, [EpochOutput::AskConsent { query: 1, removed: ids([3]), why }]);
    let runs = (id(3), Duration::from_secs(1));
    let remaining = vec![runs, (id(1), Duration::ZERO)];
    let out = voter.say(EpochInput::Consent { query: 1, remaining });
    let (epoch, ballot) = (base.id(), ballot(1, 1));
    let answer = EpochMessage::Withheld { epoch, ballot, remaining: vec![runs] };
    assert_eq!(out, [send(1, answer)]);
    assert!(voter.machine.eligible(), "withholding seals nothing");
    assert_eq!(voter.hear(1, ask(ids([8]))), []);
    assert_eq!(voter.machine.stats().nonsense, 1);
}

#[test]
fn early_release_repeats_withheld_answer() {
    let base = first([1, 2, 3]);
    let (epoch, why) = (base.id(), Consenting::Withhold);
    let mut voter = Bench::member(2, &base);
    let withhold =
        |number, by, removed| EpochMessage::Withhold { epoch, ballot: ballot(number, by), removed };
    let withheld = |number, by, remaining| EpochMessage::Withheld {
        epoch,
        ballot: ballot(number, by),
        remaining,
    };
    let runs = vec![(id(3), Duration::from_secs(1))];
    voter.hear(1, withhold(1, 1, ids([3])));
    voter.say(EpochInput::Consent { query: 1, remaining: runs.clone() });
    assert_eq!(voter.say(EpochInput::Released(id(1))), [], "no proposer asked about 1");
    let out = voter.say(EpochInput::Released(id(3)));
    assert_eq!(out, [EpochOutput::AskConsent { query: 2, removed: ids([3]), why }]);
    let out = voter.say(EpochInput::Consent { query: 2, remaining: Vec::new() });
    assert_eq!(out, [send(1, withheld(1, 1, Vec::new()))]);
    assert_eq!(voter.say(EpochInput::Released(id(3))), [], "the last answer named no lease");
    // Only the last question of each proposer counts, and an install drops all of them.
    voter.hear(1, withhold(2, 1, ids([3])));
    voter.say(EpochInput::Consent { query: 3, remaining: runs.clone() });
    voter.hear(1, withhold(3, 1, ids([3])));
    voter.say(EpochInput::Consent { query: 4, remaining: runs.clone() });
    voter.say(EpochInput::Released(id(3)));
    let out = voter.say(EpochInput::Consent { query: 5, remaining: runs.clone() });
    assert_eq!(out, [send(1, withheld(3, 1, runs))]);
    voter.hear(1, install(&after(&base, &join([9]))));
    assert_eq!(voter.say(EpochInput::Released(id(3))), []);
}

/// Regression test: the repeated question replaced an open one of the same peer's newer ballot.
#[test]
fn early_release_repeats_the_newest_withhold_of_a_peer() {
    let base = first([1, 2, 3]);
    let (epoch, removed) = (base.id(), || ids([3]));
    let mut voter = Bench::member(2, &base);
    let withhold =
        |number| EpochMessage::Withhold { epoch, ballot: ballot(number, 1), removed: removed() };
    voter.hear(1, withhold(1));
    let remaining = vec![(id(3), Duration::from_secs(1))];
    voter.say(EpochInput::Consent { query: 1, remaining });
    voter.hear(1, withhold(2));
    let out = voter.say(EpochInput::Released(id(3)));
    let why = Consenting::Withhold;
    assert_eq!(out, [EpochOutput::AskConsent { query: 3, removed: removed(), why }]);
    let out = voter.say(EpochInput::Consent { query: 3, remaining: Vec::new() });
    let ballot = ballot(2, 1);
    assert_eq!(out, [send(1, EpochMessage::Withheld { epoch, ballot, remaining: Vec::new() })]);
}

#[test]
fn voter_for_own_removal_stops_serving_first() {
    let base = first([1, 2, 3]);
    let next = after(&base, &leave([2]));
    let mut voter = Bench::member(2, &base);
    voter.hear(1, seal(&base, ballot(1, 1), &next));
    let out = voter.say(EpochInput::Consent { query: 1, remaining: vec![] });
    let answer = send(1, sealed(&base, ballot(1, 1), None));
    assert_eq!(out, [EpochOutput::Freeze(base.id()), EpochOutput::StopServing, answer]);
    let mut voter = Bench::member(2, &base);
    let out = voter.hear(1, accept(&base, ballot(1, 1), &next));
    let answer = send(1, accepted(&base, ballot(1, 1)));
    assert_eq!(out, [EpochOutput::Freeze(base.id()), EpochOutput::StopServing, answer]);
}

#[test]
fn ballots_of_non_members_and_forged_ones_are_dropped() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut voter = Bench::member(2, &base);
    for (from, ballot) in [(9, ballot(1, 9)), (1, ballot(1, 3)), (1, ballot(u64::MAX, 1))] {
        assert_eq!(voter.hear(from, seal(&base, ballot, &next)), []);
    }
    assert_eq!(voter.machine.stats().nonsense, 3);
    assert!(!voter.machine.sealed());
}

#[test]
fn proposal_with_returning_incarnation_is_dropped() {
    let base = after(&first([1, 2, 3]), &leave([3]));
    let mut voter = Bench::member(2, &base);
    let back = Epoch::founding(base.id().next(), ids([1, 2, 3]), EpochSettings::default());
    let back = Arc::new(back.unwrap());
    assert_eq!(voter.hear(1, seal(&base, ballot(1, 1), &back)), []);
    assert_eq!(voter.hear(1, accept(&base, ballot(1, 1), &back)), []);
    assert_eq!(voter.machine.stats().unfit, 2);
    assert!(!voter.machine.sealed());
}

#[test]
fn older_epoch_gets_install_and_newer_gets_ask() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut voter = Bench::member(2, &next);
    assert_eq!(voter.hear(1, seal(&base, ballot(1, 1), &next)), [send(1, install(&next))]);
    assert_eq!(voter.hear(1, seal(&base, ballot(1, 1), &next)), [], "once per interval");
    voter.wait(Duration::from_millis(200));
    assert_eq!(voter.hear(1, seal(&base, ballot(1, 1), &next)), [send(1, install(&next))]);
    let later = after(&next, &join([5]));
    let ask = EpochMessage::Ask { installed: Some(next.id()) };
    assert_eq!(voter.hear(3, seal(&later, ballot(1, 3), &later)), [send(3, ask)]);
}

#[test]
fn member_answers_probe() {
    let base = first([1, 2, 3]);
    let (epoch, ballot) = (base.id(), ballot(1, 1));
    let mut node = Bench::member(3, &base);
    let out = node.hear(1, EpochMessage::Ping { epoch, ballot });
    assert_eq!(out, [send(1, EpochMessage::Pong { epoch, ballot })]);
}

#[test]
fn abandoned_seal_is_ended_with_unchanged_members() {
    let base = first([1, 2, 3]);
    let mut voter = Bench::member(2, &base);
    voter.hear(1, seal(&base, ballot(1, 1), &after(&base, &join([4]))));
    assert_eq!(voter.wait(Duration::from_millis(499)), []);
    let out = voter.wait(Duration::from_millis(502));
    let same = after(&base, &MembershipChange::default());
    let mine = seal(&base, ballot(2, 2), &same);
    assert_eq!(out[..2], [send(1, mine.clone()), send(3, mine)]);
    assert_eq!(voter.machine.stats().abandoned, 1);
}

#[test]
fn patience_restarts_with_each_seal_and_accept() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut voter = Bench::member(2, &base);
    for number in 1..10 {
        voter.hear(1, seal(&base, ballot(number, 1), &next));
        voter.wait(Duration::from_millis(499));
        voter.hear(1, accept(&base, ballot(number, 1), &next));
        voter.wait(Duration::from_millis(499));
    }
    assert_eq!(voter.machine.stats().abandoned, 0);
}

#[test]
fn pending_proposal_survives_overtaken_ballot() {
    let base = first([1, 2, 3]);
    let (grown, other) = (after(&base, &join([4])), after(&base, &join([5])));
    let mut node = Bench::member(3, &base);
    node.hear(1, seal(&base, ballot(1, 1), &grown));
    assert_eq!(node.pending, None, "a seal makes no proposal pending");
    node.hear(1, sync(&base, ballot(1, 1), &grown, ids([1, 2])));
    assert_eq!(node.pending.take(), Some(grown.clone()));
    node.hear(2, accept(&base, ballot(2, 2), &other));
    assert_eq!(node.pending, Some(other.clone()));
    node.hear(1, sync(&base, ballot(1, 1), &grown, ids([1, 2])));
    assert_eq!(node.pending, Some(other));
}
