//! Recent decisions that concern this region, and the events about their progress.

use std::collections::BTreeSet;

use ostraca_ddata::clock::Now;

use super::port::{RegionOutput, Standing};
use super::shard::Run;
use super::{Out, Region};
use crate::sharding::ids::{Generation, ShardId};
use crate::sharding::pace::Kind;
use crate::sharding::remembered::{Remembered, Slow, Step, What};
use crate::sharding::wire::{HostShard, ReleaseShard};

impl Region {
    /// Records a `Host`: this region is the next home.
    pub(super) fn remember_told(&mut self, now: Now, word: &HostShard) {
        let entry = Remembered {
            from: word.after.iter().max_by_key(|(_, last)| *last).map(|(id, _)| id),
            to: Some(self.me),
            awaited: word.after.iter().map(|(id, _)| id).collect(),
            ..Remembered::new(now, word.shard, word.generation, "told to host it".into())
        };
        self.keep(What::Told, entry);
    }

    /// Records a `Release` of a shard that runs here. Other regions record the decisions about
    /// shards that do not.
    pub(super) fn remember_release(&mut self, now: Now, word: &ReleaseShard) {
        let ReleaseShard { shard, generation, to, .. } = *word;
        let runs = self.shards.get(&shard).is_some_and(|held| held.run() != Run::Idle);
        if !runs || to == Some(self.me) {
            return;
        }
        let (from, why) = (Some(self.me), "told to release it".into());
        let entry = Remembered { from, to, ..Remembered::new(now, shard, generation, why) };
        self.keep(What::Draining, entry);
    }

    fn keep(&mut self, what: What, entry: Remembered) {
        self.ring.push(entry.clone());
        self.steps.push(Step { what, of: entry });
    }

    pub(super) fn note_settled(
        &mut self,
        now: Now,
        shard: ShardId,
        generation: Generation,
        what: What,
    ) {
        let note = |entry: &mut Remembered| entry.settled = Some(now.mono - entry.begun);
        if let Some(entry) = self.ring.note(shard, generation, note) {
            self.steps.push(Step { what, of: entry.clone() });
        }
    }

    /// The last entity of a drained shard has ended. Several decisions may have asked for that
    /// drain; all of them are marked.
    pub(super) fn note_drained(&mut self, now: Now, shard: ShardId) {
        let drains = self.shards.get(&shard).is_some_and(|held| held.run() != Run::Idle);
        if !drains {
            return;
        }
        let me = self.me;
        let like = |entry: &Remembered| entry.from == Some(me) && entry.drained.is_none();
        let note = |entry: &mut Remembered| entry.drained = Some(now.mono - entry.begun);
        if let Some(entry) = self.ring.note_each(shard, like, note) {
            self.steps.push(Step { what: What::Drained, of: entry.clone() });
        }
    }

    /// Measures how long a shard waits for its predecessors.
    pub(super) fn keep_pace(&mut self, now: Now, before: Standing, after: Standing) {
        let Standing { shard, .. } = after;
        let waits_anew = !before.pending || before.max_gen != after.max_gen;
        match (before.pending, after.pending) {
            (_, true) if waits_anew => self.pace.begin(now.mono, shard, Kind::Move),
            (true, false) if matches!(after.run, Run::Hosting(_)) => self.pace.end(now.mono, shard),
            (true, false) => self.pace.forget(shard),
            _ => {}
        }
    }

    pub(super) fn tell_steps(&mut self, out: &mut Out) {
        for step in self.steps.drain(..) {
            out.push(RegionOutput::Step(Box::new(step)));
        }
    }

    /// Reports moves that take unusually long, with the regions that they wait for. This region is
    /// one of them if it still drains such a shard.
    pub(super) fn look_for_slow(&mut self, now: Now, out: &mut Out) {
        let Some(slow) = self.pace.take_slow(now.mono) else { return };
        let mut awaited = BTreeSet::new();
        for held in slow.shards.iter().filter_map(|shard| self.shards.get(shard)) {
            awaited.extend(held.awaited(&self.installed));
            if matches!(held.run(), Run::Draining(_)) {
                awaited.insert(self.me);
            }
        }
        let awaited = awaited.into_iter().collect();
        out.push(RegionOutput::Slow(Slow { awaited, ..slow }));
    }
}
