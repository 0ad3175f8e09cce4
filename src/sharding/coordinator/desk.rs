//! What a coordinator has still to decide, and what it has decided and not yet written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca_ddata::clock::{Instant, Now};

use crate::sharding::home::ShardHome;
use crate::sharding::ids::{RegionId, ShardId};

/// A decision that waits for its write.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) to: Option<RegionId>,
    pub(super) why: Arc<str>,
    pub(super) since: Now,
}

/// Cells under way to the Replicator.
#[derive(Clone, Debug)]
pub(super) struct Writing {
    pub(super) cells: Vec<(ShardId, ShardHome)>, // ≤ BATCH_MAX
    /// The recovery write of a takeover: nothing new is decided.
    pub(super) recovery: bool,
}

/// A question to the strategy.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) number: u64,
    pub(super) ask_again: Instant,
    /// The choice helped nothing: asked again when there are other regions, or in time.
    pub(super) vain: bool,
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Desk {
    pub(super) unplaced: BTreeMap<ShardId, Option<RegionId>>, // and who asked first; ≤ shards
    pub(super) question: Option<Question>,
    pub(super) wishes: BTreeMap<ShardId, Wish>, // ≤ shards
    pub(super) unread: BTreeMap<ShardId, ShardHome>, // read and not yet re-written; ≤ shards
    pub(super) writing: Option<Writing>,
    /// All shards that are to have a home beforehand are in `unplaced`, or have been.
    pub(super) preallocated: bool,
    /// Shards whose place has changed since that was asked last; `None`: anything may have.
    pub(super) changed: Option<BTreeSet<ShardId>>, // ≤ shards
}

impl Desk {
    /// There are other regions than before: a choice that helped nothing may be made anew.
    pub(super) fn reconsider(&mut self) {
        self.question.take_if(|question| question.vain);
    }

    /// Something of the shard's place has changed: planned, decided, or carried out.
    pub(super) fn touch(&mut self, shard: ShardId) {
        if let Some(changed) = &mut self.changed {
            changed.insert(shard);
        }
    }

    /// A decision is made: it waits for the next write.
    pub(super) fn wish(
        &mut self,
        since: Now,
        shard: ShardId,
        to: Option<RegionId>,
        why: &Arc<str>,
    ) {
        self.unplaced.remove(&shard);
        self.touch(shard);
        self.wishes.insert(shard, Wish { to, why: why.clone(), since });
    }

    /// Where a shard is to live by what is decided and not yet written; `None`: nothing is.
    pub(super) fn planned(&self, shard: ShardId) -> Option<Option<RegionId>> {
        let wish = self.wishes.get(&shard).map(|wish| wish.to);
        wish.or_else(|| {
            let cells = &self.writing.as_ref().filter(|writing| !writing.recovery)?.cells;
            let at = cells.binary_search_by_key(&shard, |(id, _)| *id).ok()?;
            Some(cells[at].1.region)
        })
    }
}
