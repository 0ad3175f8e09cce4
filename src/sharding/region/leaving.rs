//! How a region goes: when nothing is left here, whoever is to hear of it has, and no decision names
//! it that it has not heard of.
//!
//! What names a region that is gone counts as if it might have been carried out there: what an
//! earlier home still keeps would be given up, as taken.

use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;

use super::{Out, Region, RegionOutput, Run, Shard};
use crate::sharding::bug::Bug;
use crate::sharding::ids::ShardId;
use crate::sharding::wire::{
    ROUTE_BYTES, SHARD_BYTES, ShardRoute, ShardingMessage, ToCoordinator, ToRegion, in_messages,
};

/// How long one that is ready to go waits for the word of a coordinator that knows it. That answers
/// in a round trip, or as soon as what names the region is decided anew and carried out. One of before
/// this word was known never does.
const UNHEARD_MAX: Duration = Duration::from_secs(5);

/// The same while none knows it: one that has crashed has a successor in little more than its lease
/// of 5 s. A node that stops gives all of this 20 s.
const UNKNOWN_MAX: Duration = Duration::from_secs(10);

/// It is to go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    ask_at: Instant,
    let_go: bool, // the coordinator says that no decision names it, and none will
    unheard: Option<Instant>, // since when it has waited for that alone, of this coordinator
}

impl Region {
    /// Whether it goes, or has gone, and the coordinator that knows it has said that it may.
    #[must_use]
    pub fn is_let_go(&self) -> bool {
        self.leaving.is_some_and(|leaving| leaving.let_go)
    }

    pub(super) fn begin_to_leave(&mut self, now: Instant) {
        let new = Leaving { ask_at: now, let_go: false, unheard: None };
        self.leaving.get_or_insert(new);
    }

    /// When there is something to do for one that leaves.
    pub(super) fn leaves_at(&self) -> Option<Instant> {
        let Leaving { ask_at, unheard, .. } = self.leaving.filter(|_| !self.left)?;
        let goes_at = unheard.map(|since| since + self.unheard_max());
        Some(goes_at.map_or(ask_at, |at| at.min(ask_at)))
    }

    const fn unheard_max(&self) -> Duration {
        if self.registration.is_registered() { UNHEARD_MAX } else { UNKNOWN_MAX }
    }

    /// There is a coordinator that knows it now.
    pub(super) fn tell_that_it_leaves(&mut self, now: Instant) {
        if let Some(leaving) = &mut self.leaving {
            (leaving.ask_at, leaving.unheard) = (now, None);
        }
    }

    /// Something has changed of what the coordinator is to know of it, if it leaves.
    pub(super) fn ask_to_leave(&mut self, now: Instant) {
        if let Some(leaving) = &mut self.leaving {
            leaving.ask_at = now;
        }
    }

    /// A decision has come that names this region. If it leaves, the coordinator has not heard so.
    pub(super) fn is_named_again(&mut self, now: Instant) {
        if let Some(leaving) = self.leaving.as_mut().filter(|leaving| leaving.let_go) {
            (leaving.let_go, leaving.ask_at) = (false, now);
        }
    }

    pub(super) fn may_leave(&mut self, from: ReplicaId, term: Term) {
        if let Some(leaving) = &mut self.leaving
            && self.registration.is_with(from, term)
        {
            leaving.let_go = true;
        }
    }

    pub(super) fn leave(&mut self, now: Now, out: &mut Out) {
        let Some(Leaving { ask_at, .. }) = self.leaving else { return };
        if !self.left {
            for shard in self.owing() {
                if !self.carrying.contains(shard) {
                    self.carrying.begin(now.mono, shard, self.config.repeat);
                }
            }
            self.left = self.is_ready(now.mono);
            if self.left {
                self.tell_where_all_went(out);
                out.push(RegionOutput::Left);
            }
        }
        // Said by an idle one, too: nothing is to come here any more.
        if ask_at <= now.mono {
            self.ask_to_leave(now.mono + self.config.retry);
            if let Some(to) = self.registration.coordinator() {
                self.mail.say(to, ToCoordinator::Leaving);
                let bytes_max = self.config.cut.words;
                for unclaimed in in_messages(self.unclaimed(), bytes_max, |_| SHARD_BYTES) {
                    self.mail.say(to, ToCoordinator::GetShardHome(unclaimed));
                }
            }
        }
    }

    fn is_ready(&mut self, now: Instant) -> bool {
        let busy = |held: &Shard| {
            let carries = held.kept().is_some() && (self.heirs || self.has_home(held));
            held.run() != Run::Idle || held.pending().is_some() || carries || self.owes(held)
        };
        let is_busy = self.shards.values().any(busy);
        let named = self.heirs && !self.config.proxy && self.registration.may_be_known();
        let max = self.unheard_max();
        let waits = named && !self.canary.has(Bug::LeavesUnheard);
        let Some(leaving) = self.leaving.as_mut().filter(|_| !is_busy) else {
            self.leaving.iter_mut().for_each(|leaving| leaving.unheard = None);
            return false;
        };
        let since = *leaving.unheard.get_or_insert(now);
        leaving.let_go || !waits || since + max <= now
    }

    /// Shards whose next home is to hear that this region was named in vain: once it is gone
    /// unheard, what an earlier home holds would be given up, as if it had been taken here. (If
    /// nobody could take that, it is no matter.)
    fn owing(&self) -> Vec<ShardId> {
        let owing = self.shards.iter().filter(|(_, held)| self.owes(held));
        owing.map(|(shard, _)| *shard).collect()
    }

    fn owes(&self, held: &Shard) -> bool {
        let waits = self.heirs && !self.left && !self.canary.has(Bug::LeavesUnconfirmed);
        waits && held.owes_word()
    }

    /// Shards of which something is kept here that somebody else could take, and that live nowhere,
    /// or with a home that is out; and those of which something is to be heard. Whoever gets them is
    /// told of it by their release; or somebody has had them, and could not say so.
    fn unclaimed(&self) -> Vec<ShardId> {
        let unclaimed = self.shards.iter().filter(|(_, held)| self.is_unclaimed(held));
        unclaimed.map(|(shard, _)| *shard).collect()
    }

    fn is_unclaimed(&self, held: &Shard) -> bool {
        let waits = self.owes(held) || (held.kept().is_some() && !self.has_home(held));
        waits && self.heirs && !self.left
    }

    /// A shard's drain has ended: who leaves asks at once for a home that it lacks.
    pub(super) fn ask_for_home_of(&mut self, now: Instant, shard: ShardId) {
        let held = self.shards.get(&shard).filter(|_| self.leaving.is_some());
        if held.is_some_and(|held| self.is_unclaimed(held)) {
            self.ask_to_leave(now);
        }
    }

    fn has_home(&self, held: &Shard) -> bool {
        held.home().is_some_and(|home| self.installed.members.contains(&home))
    }

    /// Its coordinator may have left with it, and others may not have found the next one: then they
    /// have heard of no move since, and would learn of the moves only when this region is gone.
    fn tell_where_all_went(&self, out: &mut Out) {
        let route = |(shard, held): (&ShardId, &Shard)| {
            let home = held.home().filter(|home| *home != self.me)?;
            Some(ShardRoute { shard: *shard, generation: held.max_gen(), home: Some(home) })
        };
        let routes: Vec<ShardRoute> = self.shards.iter().filter_map(route).collect();
        for routes in in_messages(routes, self.config.cut.words, |_| ROUTE_BYTES) {
            let word = ToRegion::Announce(routes.into_iter().collect());
            let message = ShardingMessage::Region(word);
            for to in self.installed.members.iter().filter(|to| **to != self.me) {
                out.push(RegionOutput::Send { to: to.replica(), message: message.clone() });
            }
        }
    }
}
