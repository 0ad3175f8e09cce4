//! Syncing for the next configuration: snapshots of sealed quorums, and lasting confirmations.

use super::*;

fn pull(base: &Arc<Epoch>, of: u64) -> EpochOutput {
    EpochOutput::PullSnapshot { epoch: base.id(), of: id(of) }
}

fn merged(base: &Arc<Epoch>, of: u64) -> EpochInput {
    EpochInput::SnapshotMerged { epoch: base.id(), of: id(of) }
}

#[test]
fn joiner_confirms_after_snapshots_of_a_quorum() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut joiner = Bench::joining(4);
    let out = joiner.hear(1, sync(&base, ballot(1, 1), &next, ids([1, 2])));
    assert_eq!(out, [installed(&base), pull(&base, 1), pull(&base, 2)]);
    assert!(!joiner.machine.is_member() && !joiner.machine.eligible());
    assert_eq!(joiner.say(merged(&base, 2)), []);
    assert_eq!(joiner.say(merged(&base, 2)), [], "a repeated snapshot counts once");
    let out = joiner.say(merged(&base, 1));
    assert_eq!(out, [EpochOutput::StopPulls, send(1, synced(&base))]);
    assert!(joiner.disk.ready && !joiner.machine.eligible());
    assert_eq!(joiner.hear(1, install(&next)), [installed(&next), EpochOutput::Synced(next.id())]);
    assert!(joiner.machine.eligible());
}

#[test]
fn half_with_tiebreaker_is_a_sync_quorum() {
    let base = first([1, 2]);
    let next = after(&base, &join([3]));
    let mut joiner = Bench::joining(3);
    joiner.hear(1, sync(&base, ballot(1, 1), &next, ids([1, 2])));
    assert_eq!(joiner.say(merged(&base, 2)), []);
    assert_eq!(joiner.say(merged(&base, 1)).last(), Some(&send(1, synced(&base))));
}

#[test]
fn sealed_voter_counts_its_own_snapshot() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut voter = Bench::member(2, &base);
    voter.hear(1, seal(&base, ballot(1, 1), &next));
    let out = voter.hear(1, sync(&base, ballot(1, 1), &next, ids([1, 2])));
    assert_eq!(out, [pull(&base, 1)]);
    let out = voter.say(merged(&base, 1));
    assert_eq!(out, [EpochOutput::StopPulls, send(1, synced(&base))]);
}

#[test]
fn seal_during_pull_counts_own_snapshot() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut voter = Bench::member(3, &base);
    voter.hear(1, sync(&base, ballot(1, 1), &next, ids([1, 2])));
    voter.say(merged(&base, 2));
    let out = voter.hear(1, seal(&base, ballot(1, 1), &next));
    assert!(out.contains(&send(1, synced(&base))), "{out:?}");
}

#[test]
fn confirmation_holds_for_later_ballots_and_proposals() {
    let base = first([1, 2, 3]);
    let mut joiner = Bench::joining(4);
    joiner.hear(1, sync(&base, ballot(1, 1), &after(&base, &join([4])), ids([1, 2])));
    joiner.say(merged(&base, 1));
    joiner.say(merged(&base, 2));
    let other = after(&base, &join([4, 5]));
    let out = joiner.hear(3, sync(&base, ballot(2, 3), &other, ids([2, 3])));
    assert_eq!(out, [send(3, synced(&base))]);
}

#[test]
fn snapshots_of_several_ballots_make_one_quorum() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut joiner = Bench::joining(4);
    joiner.hear(1, sync(&base, ballot(1, 1), &next, ids([1, 2])));
    joiner.say(merged(&base, 2)); // 1 dies with its snapshot
    let out = joiner.hear(3, sync(&base, ballot(2, 3), &next, ids([2, 3])));
    assert_eq!(out, [pull(&base, 3)]);
    let out = joiner.say(merged(&base, 3));
    let told = [send(1, synced(&base)), send(3, synced(&base))];
    assert_eq!(out, [&[EpochOutput::StopPulls][..], &told].concat());
}

#[test]
fn snapshots_of_non_voters_and_other_epochs_do_not_count() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut joiner = Bench::joining(4);
    joiner.hear(1, sync(&base, ballot(1, 1), &next, ids([1, 2])));
    assert_eq!(joiner.say(merged(&base, 9)), []);
    assert_eq!(joiner.say(merged(&next, 1)), []);
    joiner.say(merged(&base, 1));
    assert!(!joiner.machine.state().ready);
}

#[test]
fn sync_request_without_sealed_quorum_is_dropped() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut joiner = Bench::joining(4);
    for sealed in [ids([1]), ids([1, 8, 9]), ids([])] {
        assert_eq!(joiner.hear(1, sync(&base, ballot(1, 1), &next, sealed)), []);
    }
    let without_me = after(&base, &join([5]));
    assert_eq!(joiner.hear(1, sync(&base, ballot(1, 1), &without_me, ids([1, 2]))), []);
    assert_eq!(joiner.hear(9, sync(&base, ballot(1, 9), &next, ids([1, 2]))), []);
    assert_eq!(joiner.machine.stats().nonsense, 5);
    assert_eq!(joiner.machine.installed(), None);
}

#[test]
fn sync_continues_after_its_install() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut joiner = Bench::joining(4);
    joiner.hear(1, sync(&base, ballot(1, 1), &next, ids([1, 2])));
    joiner.say(merged(&base, 2));
    let state = EpochOutput::PullState { epoch: next.id(), from: id(1) };
    assert_eq!(joiner.hear(1, install(&next)), [installed(&next), state]);
    assert!(joiner.machine.is_voter() && !joiner.machine.eligible());
    let out = joiner.say(merged(&base, 1));
    assert_eq!(out, [EpochOutput::StopPulls, EpochOutput::Synced(next.id())]);
    assert!(joiner.machine.eligible());
}

#[test]
fn synced_voter_asks_for_the_decision() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut joiner = Bench::joining(4);
    joiner.hear(1, sync(&base, ballot(1, 1), &next, ids([1, 2])));
    let out = joiner.wait(Duration::from_secs(2));
    let ask = EpochMessage::Ask { installed: Some(base.id()) };
    assert!(matches!(&out[..], [EpochOutput::Send { message, .. }] if *message == ask), "{out:?}");
    joiner.hear(1, install(&next));
    joiner.say(EpochInput::StateMerged { epoch: next.id(), from: id(1) });
    assert_eq!(joiner.wait(Duration::from_secs(60)), []);
}

#[cfg(feature = "canaries")]
#[test]
fn faults_ack_before_sync_and_sync_from_fewer() {
    let base = first([1, 2, 3]);
    let next = after(&base, &join([4]));
    let mut early = Bench::with(4, FaultInjection::with(ReplicatorFault::AckBeforeSync));
    early.hear(1, install(&next));
    assert!(early.machine.eligible());
    let mut few = Bench::with(4, FaultInjection::with(ReplicatorFault::SyncFromFewer));
    few.hear(1, sync(&base, ballot(1, 1), &next, ids([1, 2])));
    assert_eq!(few.say(merged(&base, 2)).last(), Some(&send(1, synced(&base))));
}
