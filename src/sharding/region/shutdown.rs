//! Shutdown of a region (docs/protocol/sharding.md#a-leaving-region-waits-for-permission).
//!
//! A leaving region may exit once it hosts no shard, has no pending decision, keeps no payload that
//! another region could take, has told the next homes that it was named in vain, and its
//! coordinator has confirmed that no decision names it any longer. Otherwise the next home would
//! have to count the region as a possible host, and would discard the payload that an earlier home
//! still keeps.

use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;

use super::{HostingPhase, Reach, Region, RegionInput, RegionOutbox, RegionOutput, RegionShard};
use crate::sharding::fault_injection::ShardingFault;
use crate::sharding::ids::ShardId;
use crate::sharding::wire::{
    ROUTE_BYTES, SHARD_BYTES, ShardRoute, ShardingMessage, ToCoordinator, ToRegion, in_messages,
};

/// How long a ready region waits for `MayLeave` from a coordinator that knows it. The coordinator
/// answers within a round trip, or as soon as it has replaced and settled the decisions that name
/// the region. A coordinator of a release without `MayLeave` never answers.
const PERMISSION_WAIT_MAX: Duration = Duration::from_secs(5);

/// The same limit while no coordinator knows the region. A crashed coordinator has a successor in
/// little more than its lease of 5 s. Coordinated shutdown gives the whole leave 20 s.
const UNREGISTERED_WAIT_MAX: Duration = Duration::from_secs(10);

/// State of a region whose node is stopping. A region *leaves* from [`Region::begin_to_leave`]
/// until it outputs `Left`; from then on it *has left*. It has this state in both phases, and
/// `permitted` and `ask_at` still change after it has left. A region that has stopped for good
/// (`RegionInput::Over`) ignores all of this.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionShutdown {
    ask_at: Instant, // when `Leaving` is sent next
    permitted: bool, // `MayLeave` arrived, and no decision named the region since
    // since when only the permission has been missing
    ready_since: Option<Instant>,
}

impl Region {
    /// Whether the region leaves or has left, and its coordinator has permitted that. Shards may
    /// still run here then. False of a region that has left without the permission.
    #[must_use]
    pub fn may_exit(&self) -> bool {
        self.leaving.is_some_and(|leaving| leaving.permitted)
    }

    /// Begins to leave: `Leaving` is due now. No effect if the region leaves or has left already.
    pub(super) fn begin_to_leave(&mut self, now: Instant) {
        let new = RegionShutdown { ask_at: now, permitted: false, ready_since: None };
        self.leaving.get_or_insert(new);
    }

    /// The next time at which a leaving region must act: send `Leaving`, or leave without the
    /// permission. `None` if it does not leave, or has left, although a region that has left still
    /// sends `Leaving` when it works for another reason.
    pub(super) fn leaves_at(&self) -> Option<Instant> {
        let RegionShutdown { ask_at, ready_since, .. } = self.leaving.filter(|_| !self.left)?;
        let goes_at = ready_since.map(|since| since + self.permission_wait_max());
        Some(goes_at.map_or(ask_at, |at| at.min(ask_at)))
    }

    /// How long the region waits for the permission, by whether it is registered now.
    const fn permission_wait_max(&self) -> Duration {
        if self.registration.is_registered() { PERMISSION_WAIT_MAX } else { UNREGISTERED_WAIT_MAX }
    }

    /// A coordinator has registered this region: `Leaving` is due now, and the time that the region
    /// waits for the permission begins anew. A permission stays. No effect unless the region leaves
    /// or has left.
    pub(super) fn tell_that_it_leaves(&mut self, now: Instant) {
        if let Some(leaving) = &mut self.leaving {
            (leaving.ask_at, leaving.ready_since) = (now, None);
        }
    }

    /// Something changed that the coordinator must hear from a leaving region: `Leaving` is next
    /// due at `at`, earlier or later than before. No effect unless the region leaves or has left.
    pub(super) fn ask_to_leave(&mut self, at: Instant) {
        if let Some(leaving) = &mut self.leaving {
            leaving.ask_at = at;
        }
    }

    /// A decision named this region again. A permission to leave is withdrawn, because the
    /// coordinator gave it without knowing that the region still acts on a decision, and `Leaving`
    /// is due now. No effect without a permission. A region that has left does not come back.
    pub(super) fn is_named_again(&mut self, now: Instant) {
        if let Some(leaving) = self.leaving.as_mut().filter(|leaving| leaving.permitted) {
            (leaving.permitted, leaving.ask_at) = (false, now);
        }
    }

    /// Handles an input after the region has stopped for good: it must send no message. A payload
    /// that was sealed before and arrives only now is discarded and counted, as
    /// [`Reach::Unsent`], because no other region has it. Ignores all other inputs.
    pub(super) fn after_stop(&mut self, input: RegionInput, out: &mut RegionOutbox) {
        if let RegionInput::Drained { shard, payload: Some(payload) } = input {
            self.stats.discarded += 1;
            let (reach, from) = (Reach::Unsent, self.me);
            out.push(RegionOutput::Discard { reach, shard, from, payload });
        }
    }

    /// Handles `MayLeave`: records the permission; [`leave`](Self::leave) uses it at the end of the
    /// batch. Ignored unless the region leaves or has left, and is registered with this coordinator
    /// under this term. Whether the region is ready does not matter.
    pub(super) fn may_leave(&mut self, from: ReplicaId, term: Term) {
        if let Some(leaving) = &mut self.leaving
            && self.registration.is_with(from, term)
        {
            leaving.permitted = true;
        }
    }

    /// Does the work of a region that leaves or has left; otherwise does nothing. While it leaves:
    /// begins to repeat the releases of shards for which it was named in vain (the first comes
    /// after a pause), and once it [is ready](Self::is_ready), announces the new homes to all
    /// members and outputs `Left`, before the messages of the batch.
    ///
    /// In both phases also sends `Leaving`, with the request for missing homes, whenever that is
    /// due, to the known coordinator even if it has not registered the region. Without a known
    /// coordinator it tries again after `retry`.
    pub(super) fn leave(&mut self, now: Now, out: &mut RegionOutbox) {
        let Some(RegionShutdown { ask_at, .. }) = self.leaving else { return };
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
        // A region that has left also sends this, so that its coordinator places nothing here.
        if ask_at <= now.mono {
            self.ask_to_leave(now.mono + self.config.retry);
            if let Some(to) = self.registration.coordinator() {
                self.outbound.say(to, ToCoordinator::Leaving);
                let bytes_max = self.config.cut.words;
                for unclaimed in in_messages(self.unclaimed(), bytes_max, |_| SHARD_BYTES) {
                    self.outbound.say(to, ToCoordinator::GetShardHome(unclaimed));
                }
            }
        }
    }

    /// Whether the region may leave now. It may not while a shard runs here, waits for a start, has
    /// a payload that some region could take, or [owes](Self::owes) a release. After that it also
    /// needs the permission, or must have waited [`permission_wait_max`](Self::permission_wait_max)
    /// since only that was missing. It needs none if no other member could take its shards, if it
    /// is a proxy, or if no coordinator may know it.
    ///
    /// Records since when only the permission has been missing, and forgets that time while more
    /// than the permission is missing. A payload that no region could take stays kept.
    fn is_ready(&mut self, now: Instant) -> bool {
        let busy = |held: &RegionShard| {
            let carries = held.kept().is_some() && (self.heirs || self.has_home(held));
            held.run() != HostingPhase::Idle
                || held.pending().is_some()
                || carries
                || self.owes(held)
        };
        let is_busy = self.shards.values().any(busy);
        let named = self.heirs && !self.config.proxy && self.registration.may_be_known();
        let max = self.permission_wait_max();
        let waits = named && !self.fault_injection.has(ShardingFault::LeavesUnheard);
        let Some(leaving) = self.leaving.as_mut().filter(|_| !is_busy) else {
            self.leaving.iter_mut().for_each(|leaving| leaving.ready_since = None);
            return false;
        };
        let since = *leaving.ready_since.get_or_insert(now);
        leaving.permitted || !waits || since + max <= now
    }

    /// Shards whose next home must hear that this region was named in vain. If the region exited
    /// before, the next home would count it as a possible host and discard the payload that an
    /// earlier home keeps. Without another member that could take the payload it does not matter.
    fn owing(&self) -> Vec<ShardId> {
        let owing = self.shards.iter().filter(|(_, held)| self.owes(held));
        owing.map(|(shard, _)| *shard).collect()
    }

    /// Whether the region must not leave before the shard's next home has heard that it was named
    /// in vain. False once it has left, and without another member that could take the payload.
    fn owes(&self, held: &RegionShard) -> bool {
        let waits =
            self.heirs && !self.left && !self.fault_injection.has(ShardingFault::LeavesUnconfirmed);
        waits && held.owes_word()
    }

    /// Shards that need a home before this region can exit: those with a payload kept here whose
    /// home is missing or removed, and those whose next home must still hear from this region. A
    /// coordinator that is asked for them either gives them a home, whose `Release` reaches this
    /// region, or answers that somebody hosted them and could not confirm it.
    fn unclaimed(&self) -> Vec<ShardId> {
        let unclaimed = self.shards.iter().filter(|(_, held)| self.is_unclaimed(held));
        unclaimed.map(|(shard, _)| *shard).collect()
    }

    /// See [`unclaimed`](Self::unclaimed). False once the region has left, and without another
    /// member that could take a payload.
    fn is_unclaimed(&self, held: &RegionShard) -> bool {
        let waits = self.owes(held) || (held.kept().is_some() && !self.has_home(held));
        waits && self.heirs && !self.left
    }

    /// A drain ended. If the region leaves and the shard is [unclaimed](Self::unclaimed), `Leaving`
    /// is due now, with the request for its home. Otherwise this has no effect.
    pub(super) fn ask_for_home_of(&mut self, now: Instant, shard: ShardId) {
        let held = self.shards.get(&shard).filter(|_| self.leaving.is_some());
        if held.is_some_and(|held| self.is_unclaimed(held)) {
            self.ask_to_leave(now);
        }
    }

    /// Whether the shard's newest decision names a home that is a member.
    fn has_home(&self, held: &RegionShard) -> bool {
        held.home().is_some_and(|home| self.installed.members.contains(&home))
    }

    /// Tells every other member of the configuration the homes of the shards that this region ever
    /// got a decision about, without those that have no home or are still at home here; sends
    /// nothing if none is left. Outputs the messages directly, not with the batch. The coordinator
    /// may leave together with this region, and regions that have not found its successor have not
    /// heard of the moves since. Without this announcement they would learn the new homes only
    /// after this region is gone.
    fn tell_where_all_went(&self, out: &mut RegionOutbox) {
        let route = |(shard, held): (&ShardId, &RegionShard)| {
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
