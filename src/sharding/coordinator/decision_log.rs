//! Log of recent decisions, and the events about their progress.

use std::collections::BTreeSet;
use std::sync::Arc;

use ostraca_ddata::clock::Now;

use super::pending_decisions::PlannedHome;
use super::port::CoordinatorOutput;
use super::takeover::reason;
use super::{Coordinator, CoordinatorOutbox};
use crate::sharding::decision_history::{
    DecisionStep, DecisionStepKind, Remembered, SlowDecisions,
};
use crate::sharding::home::ShardHome;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::slow_decisions::DecisionKind;

impl Coordinator {
    /// Records a decision when its first write begins; repeated writes are not recorded. All
    /// durations of the entry count from `since` of the plan, its `begun`, so they include the time
    /// in the queue. `from` is the acknowledged home before. Also prepares the event `Decided`.
    /// Decisions that are made again after a forced configuration are recorded, too; cells that a
    /// takeover only rewrites are not.
    pub(super) fn remember(
        &mut self,
        now: Now,
        shard: ShardId,
        home: &ShardHome,
        from: Option<RegionId>,
        plan: PlannedHome,
    ) {
        let PlannedHome { to, why, since, .. } = plan;
        let entry = Remembered {
            from,
            to,
            queued: Some(now.mono - since.mono),
            awaited: home.after.keys().copied().collect(),
            ..Remembered::new(since, shard, home.generation, why)
        };
        self.decision_history.push(entry.clone());
        self.steps.push(DecisionStep { what: DecisionStepKind::Decided, of: entry });
    }

    /// Records that a quorum holds a decision, and prepares the event `Written`. Does nothing if
    /// the decision is not remembered.
    pub(super) fn note_written(&mut self, now: Now, shard: ShardId, generation: Generation) {
        let note = |entry: &mut Remembered| entry.written = Some(now.mono - entry.begun);
        if let Some(entry) = self.decision_history.note(shard, generation, note) {
            self.steps.push(DecisionStep { what: DecisionStepKind::Written, of: entry.clone() });
        }
    }

    /// Records that a decision is carried out (see `ShardRecord::is_settled`), and prepares the
    /// event `Settled`. The duration counts for the detection of slow decisions even if the
    /// decision is not remembered.
    pub(super) fn note_settled(&mut self, now: Now, shard: ShardId, generation: Generation) {
        self.slow_decisions.end(now.mono, shard);
        let note = |entry: &mut Remembered| entry.settled = Some(now.mono - entry.begun);
        if let Some(entry) = self.decision_history.note(shard, generation, note) {
            self.steps.push(DecisionStep { what: DecisionStepKind::Settled, of: entry.clone() });
        }
    }

    /// Starts to measure how long the regions take to carry out a decision that a quorum holds: as
    /// a `Move` if it lists predecessors, with or without a home, else as a `Start`. Replaces the
    /// measurement of the shard's decision before. Does nothing for a shard without a record.
    pub(super) fn note_open(&mut self, now: Now, shard: ShardId) {
        let Some(record) = self.records.get(&shard) else { return };
        let has_predecessors = !record.home().after.is_empty();
        let kind = if has_predecessors { DecisionKind::Move } else { DecisionKind::Start };
        self.slow_decisions.begin(now.mono, shard, kind);
    }

    /// The reason of an allocation: why the shard needs a home (its acknowledged home is lost, or
    /// else leaves), followed by the strategy's reason. The latter alone in all other cases.
    pub(super) fn cause(&self, shard: ShardId, why: &Arc<str>) -> Arc<str> {
        let Some(record) = self.records.get(&shard) else { return why.clone() };
        if record.is_lost(&self.installed) {
            reason(&format!("its region is out of the cluster: {why}"))
        } else if self.is_leaving(shard) {
            reason(&format!("its region leaves: {why}"))
        } else {
            why.clone()
        }
    }

    /// Emits the events of this batch, in order, and forgets them. Called at each tick, also when
    /// the coordinator is off or down.
    pub(super) fn tell_steps(&mut self, out: &mut CoordinatorOutbox) {
        for step in self.steps.drain(..) {
            out.push(CoordinatorOutput::Step(Box::new(step)));
        }
    }

    /// Reports decisions that take unusually long, each once, all in one output, with the regions
    /// that they wait for: home and predecessors, without those that are out of the configuration.
    /// Regions that have done their part are named, too. Looks at most every `LOOK_AGAIN`, whatever
    /// it finds.
    pub(super) fn look_for_slow(&mut self, now: Now, out: &mut CoordinatorOutbox) {
        let Some(slow) = self.slow_decisions.take_slow(now.mono) else { return };
        let mut awaited = BTreeSet::new();
        for record in slow.shards.iter().filter_map(|shard| self.records.get(shard)) {
            let home = record.home();
            let named = home.region.iter().chain(home.after.keys());
            awaited.extend(named.filter(|id| !record.is_out(**id, &self.installed)));
        }
        let awaited = awaited.into_iter().collect();
        out.push(CoordinatorOutput::Slow(SlowDecisions { awaited, ..slow }));
    }
}
