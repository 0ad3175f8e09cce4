//! Pending decisions of a coordinator: shards that need a home, decisions that wait for a write,
//! and the write under way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca_ddata::clock::{Instant, Now};

use crate::sharding::home::ShardHome;
use crate::sharding::ids::{RegionId, ShardId};

/// A decision that waits for its write: an entry of [`PendingDecisions::wishes`].
#[derive(Clone, Debug)]
pub(super) struct PlannedHome {
    pub(super) to: Option<RegionId>, // `None`: the shard gets no home
    pub(super) why: Arc<str>,
    pub(super) since: Now, // when it was planned
    /// Whether the shard was found running at `to`. Such a decision is written even if the region
    /// leaves: the next home could otherwise start beside it, because no decision would list it.
    pub(super) runs: bool,
}

/// A write under way to the Replicator.
#[derive(Clone, Debug)]
pub(super) struct Writing {
    pub(super) cells: Vec<(ShardId, ShardHome)>, // by shard, ascending; ≤ BATCH_MAX
    /// Whether this is the rewrite of a takeover or a recount, instead of new decisions.
    pub(super) recovery: bool,
}

/// A request to the strategy for homes.
#[derive(Clone, Debug)]
pub(super) struct StrategyQuestion {
    pub(super) number: u64,
    pub(super) ask_again: Instant,
    /// The answer contained no usable choice. The strategy is asked again when the regions change,
    /// at the latest at `ask_again`.
    pub(super) vain: bool,
}

/// Decisions of a coordinator that no quorum holds yet.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingDecisions {
    /// Shards that need a home, with the region that asked first; `None` if none asked. May include
    /// shards that must stop first. ≤ shards
    pub(super) unplaced: BTreeMap<ShardId, Option<RegionId>>,
    pub(super) question: Option<StrategyQuestion>,
    pub(super) wishes: BTreeMap<ShardId, PlannedHome>, // wait for a write; ≤ shards
    pub(super) unread: BTreeMap<ShardId, ShardHome>,   // read, not yet rewritten; ≤ shards
    pub(super) writing: Option<Writing>,
    /// With `preallocate`: every shard has been put into `unplaced` once.
    pub(super) preallocated: bool,
    /// Shards whose home or move changed since the last query; `None`: anything may have changed.
    pub(super) changed: Option<BTreeSet<ShardId>>, // ≤ shards
}

impl PendingDecisions {
    /// The regions have changed: drops a question without a usable answer, which may be asked again
    /// at once. A question that waits for its answer stays.
    pub(super) fn reconsider(&mut self) {
        self.question.take_if(|question| question.vain);
    }

    /// Records that the home or the move of a shard changed; nothing to do if anything may have.
    pub(super) fn touch(&mut self, shard: ShardId) {
        if let Some(changed) = &mut self.changed {
            changed.insert(shard);
        }
    }

    /// Records that anything may have changed, for example the regions.
    pub(super) fn touch_all(&mut self) {
        self.changed = None;
    }

    /// Adds a decision, which waits for the next write. Replaces a decision for the shard that
    /// waits, not one that is being written, and takes the shard out of `unplaced`. Checks nothing.
    pub(super) fn plan(
        &mut self,
        since: Now,
        shard: ShardId,
        to: Option<RegionId>,
        why: &Arc<str>,
    ) {
        self.unplaced.remove(&shard);
        self.touch(shard);
        self.wishes.insert(shard, PlannedHome { to, why: why.clone(), since, runs: false });
    }

    /// Adds the first decision about a shard, which stays where it was found running.
    pub(super) fn plan_running(
        &mut self,
        since: Now,
        shard: ShardId,
        at: RegionId,
        why: &Arc<str>,
    ) {
        self.plan(since, shard, Some(at), why);
        if let Some(wish) = self.wishes.get_mut(&shard) {
            wish.runs = true;
        }
    }

    /// The home of a shard by a decision that waits for its write or is being written; of two, by
    /// the one that waits. Outer `None`: there is no such decision; inner `None`: it names no home.
    /// Cells that a takeover or recount rewrites do not count.
    pub(super) fn planned(&self, shard: ShardId) -> Option<Option<RegionId>> {
        let wish = self.wishes.get(&shard).map(|wish| wish.to);
        wish.or_else(|| {
            let cells = &self.writing.as_ref().filter(|writing| !writing.recovery)?.cells;
            let at = cells.binary_search_by_key(&shard, |(id, _)| *id).ok()?;
            Some(cells[at].1.region)
        })
    }
}
