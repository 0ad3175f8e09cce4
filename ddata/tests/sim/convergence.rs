//! Tests of the measurements of `ostraca_ddata::convergence`. The default one-way time is 1 ms; a
//! round is one one-way time.

use std::time::Duration;

use ostraca_ddata::convergence::{
    DataKind, LowerBounds, Plan, RunFailure, RunOutcome, WriteDurability, run,
};

const MS: Duration = Duration::from_millis(1);

fn measured(plan: &Plan) -> RunOutcome {
    run(plan, &mut |_| {}).unwrap_or_else(|failed| panic!("{plan:?}: {failed}"))
}

#[test]
fn change_is_pushed_directly_to_all_replicas() {
    for kind in [DataKind::LwwRegister, DataKind::OrSet, DataKind::OrMap] {
        let plan = Plan { nodes: 10, changes: 5, kind, ..Plan::default() };
        let outcome = measured(&plan);
        assert_eq!(outcome.seen.len(), 5);
        for seen in &outcome.seen {
            // Ascending times; the author's is the first.
            assert_eq!(seen.len(), 10, "all replicas see the change");
            assert!(seen.is_sorted() && seen[0].is_zero() && seen[9] >= MS, "{seen:?}");
        }
        assert!(outcome.rounds(&plan) < 2.0, "{kind:?}: {} rounds", outcome.rounds(&plan));
        let bound = LowerBounds::of(&plan, outcome.push_bytes);
        assert_eq!(outcome.pushed.messages, 5 * bound.messages as u64, "{kind:?}");
        assert!(outcome.answered.iter().all(Duration::is_zero), "a local write does not wait");
    }
}

#[test]
fn majority_write_takes_a_round_trip() {
    let plan = Plan { level: WriteDurability::Majority, changes: 3, ..Plan::default() };
    let outcome = measured(&plan);
    assert!(outcome.answered.iter().all(|&answered| answered >= 2 * MS && answered < 5 * MS));
}

#[test]
fn lost_messages_are_resent() {
    let plan = Plan { nodes: 20, loss: 0.3, changes: 5, ..Plan::default() };
    let outcome = measured(&plan);
    let bound = LowerBounds::of(&plan, outcome.push_bytes);
    assert!(bound.rounds > 1.0);
    assert!(outcome.rounds(&plan) > 1.5, "many messages are lost, so some replica waits");
    let pushed = outcome.pushed.messages as f64 / 5.0;
    let without_loss = 2.0 * 19.0; // a push to each other replica, and its acknowledgement
    assert!(pushed > 1.2 * without_loss, "{pushed} messages");
}

/// Each change of the plan is two here, one in each half, and times count from the heal.
#[test]
fn both_halves_converge_after_the_heal() {
    let partition = Some(Duration::from_secs(4));
    let plan = Plan {
        nodes: 7,
        partition,
        level: WriteDurability::Majority,
        changes: 2,
        ..Plan::default()
    };
    let outcome = measured(&plan);
    for (seen, answered) in outcome.seen.iter().zip(&outcome.answered) {
        assert_eq!(seen.len(), 7);
        assert!(seen[0] >= MS, "no replica has both changes before the heal");
        assert!(seen[6] < Duration::from_secs(20), "{seen:?}");
        // `answered`: when the later of the two authors had its answer.
        assert!(*answered >= MS, "one of the two authors has no majority before the heal");
    }
}

/// Regression test: the time for a change ended before the heal of such a partition.
#[test]
fn change_converges_after_a_long_partition() {
    let partition = Some(Duration::from_secs(600));
    for level in [WriteDurability::Local, WriteDurability::Majority] {
        let plan = Plan { nodes: 3, partition, level, changes: 1, ..Plan::default() };
        assert_eq!(measured(&plan).seen[0].len(), 3, "{level:?}");
    }
}

#[test]
fn the_same_plan_gives_the_same_outcome() {
    let plan = Plan { nodes: 12, loss: 0.1, changes: 3, seed: 7, ..Plan::default() };
    assert_eq!(measured(&plan), measured(&plan));
    assert_ne!(measured(&plan).seen, measured(&Plan { seed: 8, ..plan.clone() }).seen);
}

#[test]
fn error_names_invalid_field_of_plan() {
    let base = Plan::default();
    for (plan, what) in [
        (Plan { nodes: 1, ..base.clone() }, "the number of nodes is 1; it must be 2 to 10000"),
        (Plan { loss: 1.0, ..base.clone() }, "the loss is 1;"),
        (Plan { loss: f64::NAN, ..base.clone() }, "the loss is NaN;"),
        (Plan { one_way: Duration::ZERO, ..base.clone() }, "the one-way time is 0 ms;"),
        (Plan { changes: 0, ..base.clone() }, "the number of changes is 0;"),
        (Plan { partition: Some(Duration::ZERO), ..base.clone() }, "the partition is"),
    ] {
        let failed = run(&plan, &mut |_| {}).expect_err(what);
        assert!(matches!(failed, RunFailure::Unfit { .. }) && failed.to_string().starts_with(what));
    }
}

#[test]
fn network_that_loses_nearly_all_is_reported() {
    let plan = Plan { nodes: 40, loss: 0.999, changes: 1, ..Plan::default() };
    let failed = run(&plan, &mut |_| {}).expect_err("nearly all messages are lost");
    assert!(matches!(failed, RunFailure::TooLong { nodes: 40, .. }), "{failed}");
}
