//! Recent decisions that concern this region, and the events about their progress.

use std::collections::BTreeSet;

use ostraca_ddata::clock::Now;

use super::port::{RegionOutput, ShardHostState};
use super::shard::HostingPhase;
use super::{Region, RegionOutbox};
use crate::sharding::decision_history::{
    DecisionStep, DecisionStepKind, Remembered, SlowDecisions,
};
use crate::sharding::ids::{Generation, ShardId};
use crate::sharding::slow_decisions::DecisionKind;
use crate::sharding::wire::{HostShard, ReleaseShard};

impl Region {
    /// Records a `Host`: this region is the next home. The caller has checked that its generation
    /// is new. The home before is the predecessor with the highest generation, if there is one.
    /// Recorded as [`DecisionStepKind::Told`] even if the shard runs here and is only adopted.
    pub(super) fn remember_told(&mut self, now: Now, word: &HostShard) {
        let entry = Remembered {
            from: word.after.iter().max_by_key(|(_, last)| *last).map(|(id, _)| id),
            to: Some(self.me),
            awaited: word.after.iter().map(|(id, _)| id).collect(),
            ..Remembered::new(now, word.shard, word.generation, "told to host it".into())
        };
        self.keep(DecisionStepKind::Told, entry);
    }

    /// Records a `Release` of a shard that runs here (hosted or draining), before it takes effect,
    /// as [`DecisionStepKind::Draining`] even if an earlier decision drains the shard already. Does
    /// nothing for an idle shard, whose decisions other regions record, or if the order names this
    /// region as the next home. The caller has checked that its generation is new.
    pub(super) fn remember_release(&mut self, now: Now, word: &ReleaseShard) {
        let ReleaseShard { shard, generation, to, .. } = *word;
        let runs = self.shards.get(&shard).is_some_and(|held| held.run() != HostingPhase::Idle);
        if !runs || to == Some(self.me) {
            return;
        }
        let (from, why) = (Some(self.me), "told to release it".into());
        let entry = Remembered { from, to, ..Remembered::new(now, shard, generation, why) };
        self.keep(DecisionStepKind::Draining, entry);
    }

    /// Adds a decision to the history, and a step to the events of this batch.
    fn keep(&mut self, what: DecisionStepKind, entry: Remembered) {
        self.decision_history.push(entry.clone());
        self.steps.push(DecisionStep { what, of: entry });
    }

    /// Records that this region carried out the decision `generation` to host the shard, with an
    /// event `what` and the time since it received the decision. Does nothing if the decision is
    /// not remembered.
    pub(super) fn note_settled(
        &mut self,
        now: Now,
        shard: ShardId,
        generation: Generation,
        what: DecisionStepKind,
    ) {
        let note = |entry: &mut Remembered| entry.settled = Some(now.mono - entry.begun);
        if let Some(entry) = self.decision_history.note(shard, generation, note) {
            self.steps.push(DecisionStep { what, of: entry.clone() });
        }
    }

    /// The last entity of a draining shard has ended. Several decisions may have asked for that
    /// drain; all of them are marked, each with the time since it was received, with one event, for
    /// the newest. No event if none is remembered. Called before the shard turns idle: does nothing
    /// if it is idle already, but does not check that a running one drains.
    pub(super) fn note_drained(&mut self, now: Now, shard: ShardId) {
        let drains = self.shards.get(&shard).is_some_and(|held| held.run() != HostingPhase::Idle);
        if !drains {
            return;
        }
        let me = self.me;
        let like = |entry: &Remembered| entry.from == Some(me) && entry.drained.is_none();
        let note = |entry: &mut Remembered| entry.drained = Some(now.mono - entry.begun);
        if let Some(entry) = self.decision_history.note_each(shard, like, note) {
            self.steps.push(DecisionStep { what: DecisionStepKind::Drained, of: entry.clone() });
        }
    }

    /// Measures how long a pending decision waits, for predecessors or for the shard's own drain,
    /// given the shard's states before and after an input. The measurement begins anew when another
    /// decision waits. It is a sample if the wait ends with hosting, and is dropped if it ends
    /// without. A shard that starts within one input is not measured.
    pub(super) fn keep_pace(&mut self, now: Now, before: ShardHostState, after: ShardHostState) {
        let ShardHostState { shard, .. } = after;
        let waits_anew = !before.pending || before.max_gen != after.max_gen;
        match (before.pending, after.pending) {
            (_, true) if waits_anew => {
                self.slow_decisions.begin(now.mono, shard, DecisionKind::Move);
            }
            (true, false) if matches!(after.run, HostingPhase::Hosting(_)) => {
                self.slow_decisions.end(now.mono, shard);
            }
            (true, false) => self.slow_decisions.forget(shard),
            _ => {}
        }
    }

    /// Outputs the events of this batch, which end here.
    pub(super) fn tell_steps(&mut self, out: &mut RegionOutbox) {
        for step in self.steps.drain(..) {
            out.push(RegionOutput::Step(Box::new(step)));
        }
    }

    /// Reports moves that take unusually long, each once, in one output with all regions that they
    /// wait for. This region is one of them if it still drains such a shard. No timer calls this:
    /// it runs with each [`Region::work`].
    pub(super) fn look_for_slow(&mut self, now: Now, out: &mut RegionOutbox) {
        let Some(slow) = self.slow_decisions.take_slow(now.mono) else { return };
        let mut awaited = BTreeSet::new();
        for held in slow.shards.iter().filter_map(|shard| self.shards.get(shard)) {
            awaited.extend(held.awaited(&self.installed));
            if matches!(held.run(), HostingPhase::Draining(_)) {
                awaited.insert(self.me);
            }
        }
        let awaited = awaited.into_iter().collect();
        out.push(RegionOutput::Slow(SlowDecisions { awaited, ..slow }));
    }
}
