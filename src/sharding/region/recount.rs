//! Answers to a recount. After a forced configuration each surviving region reports to the new
//! coordinator what it knows, because decisions of the lost majority may still be on their way.
//! From then on the region ignores those decisions
//! (docs/protocol/sharding.md#recount-after-a-forced-configuration).

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::types::Term;

use super::{HostingPhase, Region};
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::{
    HOSTED_BYTES, ROUTE_BYTES, RouteTable, ShardRoute, ToCoordinator, ToRegion,
};

/// Knowledge of this region about the shards from a given number on.
#[derive(Default)]
struct Known {
    /// Shards that are hosted or drain here, or whose payload is kept; at most all shards.
    hosted: Vec<(ShardId, Generation)>,
    /// The newest decision about each shard, received in a `Host` or `Release`; at most all shards.
    told: RouteTable,
    /// The first shard that did not fit; `None`: all fitted.
    next: Option<ShardId>,
}

impl Region {
    /// Answers `Recount` with everything that this region hosts and was told, and ignores decisions
    /// of terms below `term` from now on. If it has answered a recount of a higher term before, it
    /// reports only that term, which ends the asking coordinator, and changes nothing.
    ///
    /// Gives no answer, so that the coordinator repeats its request, unless the term is valid and
    /// the installed configuration has the same origin and contains `from`; this comes first. The
    /// region must consider all given-up members as over; otherwise it could start a shard, because
    /// of their removal, after its answer. It need not be registered with `from`.
    ///
    /// With `first` the answer lists the shards from that one on, as many as fit a message, and at
    /// least one if any is left. Without `first` it lists all shards in one message of any length.
    /// A list of all shards is sent as `Counted`, also with `first` 0, any other as `CountedPart`.
    /// The answer of a higher term is an empty `Counted`.
    ///
    /// An answer in parts reports each shard as it is when its part is sent. That is consistent:
    /// all facts of one shard are in one part, and older decisions are ignored from the first part
    /// on.
    pub(super) fn recount(
        &mut self,
        from: ReplicaId,
        (term, origin): (Term, EpochId),
        first: Option<ShardId>,
    ) {
        let installed = &self.installed;
        let is_same = installed.origin() == Some(origin);
        let is_member = installed.members.contains(&RegionId::new(from));
        if !(is_same && is_member && term.is_valid()) {
            return; // the coordinator repeats its request
        }
        if term < self.floor {
            // The coordinator of the higher term may be lost, and nobody else may know that term.
            // Reporting it ends the asking coordinator.
            let highest = Generation::new(self.floor, 0);
            let Known { hosted, told, .. } = Known::default();
            let counted = ToCoordinator::Counted { term, hosted, told, highest };
            return self.outbound.counted(from, counted);
        }
        self.floor = term;
        let room = self.config.cut.words / (HOSTED_BYTES + ROUTE_BYTES);
        let room = if first.is_some() { room.max(1) } else { usize::MAX };
        let first = first.unwrap_or_default();
        let Known { hosted, told, next } = self.known(first, room);
        // A coordinator that decided nothing may be lost, and its term with it. A region does not
        // register below the highest term that it knows, so it reports that term too.
        let highest = self.highest.max(Generation::new(self.registration.term(), 0));
        let is_all = first == ShardId::default() && next.is_none();
        self.outbound.counted(
            from,
            if is_all {
                ToCoordinator::Counted { term, hosted, told, highest }
            } else {
                ToCoordinator::CountedPart { term, first, next, hosted, told, highest }
            },
        );
    }

    /// Collects what is known of the first `room` shards from `first` on. Shards without a `Host`
    /// or `Release` are left out and take no room. An idle shard with a kept payload is listed as
    /// hosted at its last tenure.
    fn known(&self, first: ShardId, room: usize) -> Known {
        let known = self.shards.range(first..);
        let mut known = known.filter(|(_, held)| held.max_gen() > Generation::NEVER);
        let (mut hosted, mut told) = (Vec::new(), Vec::new());
        for (shard, held) in known.by_ref().take(room) {
            let (shard, generation, home) = (*shard, held.max_gen(), held.home());
            told.push(ShardRoute { shard, generation, home });
            match held.run() {
                HostingPhase::Hosting(at) | HostingPhase::Draining(at) => hosted.push((shard, at)),
                // The next home must wait for this region's release and take the payload.
                HostingPhase::Idle if held.kept().is_some() => hosted.push((shard, held.last())),
                HostingPhase::Idle => {}
            }
        }
        let next = known.next().map(|(shard, _)| *shard);
        Known { hosted, told: told.into_iter().collect(), next }
    }

    /// Whether `message` is an order of a coordinator that was given up by force and still runs;
    /// counts it then, as one message. Never true of `Announce`, `Recount` and the messages of
    /// regions, nor before a forced configuration. Then every node outside of the configuration
    /// counts as given up; a valid coordinator that this node has not heard of yet repeats its
    /// orders.
    pub(super) fn is_given_up(&mut self, from: ReplicaId, message: &ToRegion) -> bool {
        use ToRegion as To;
        let is_order = matches!(
            message,
            To::Here(_)
                | To::RegisterAck { .. }
                | To::NotYet(_)
                | To::Host(_)
                | To::Release(_)
                | To::Stopped(_)
                | To::MayLeave(_)
        );
        let is_given_up = is_order && self.installed.is_given_up(RegionId::new(from));
        self.stats.given_up += u64::from(is_given_up);
        is_given_up
    }

    /// Whether a decision of a term below the recount's must be ignored; counts it as stale then.
    /// Always false before the first recount. Such a decision may be lost; if any survivor knew of
    /// it, it was decided again.
    ///
    /// Decisions are accepted from a coordinator that has registered this region under a term above
    /// the recount's. The recount may have been a second one, by a coordinator that is lost since,
    /// and then the decisions of the first recount are valid. Orders that the coordinator sent
    /// before its acknowledgement are still ignored.
    pub(super) fn is_forgotten(&mut self, from: ReplicaId, generation: Generation) -> bool {
        let registration = &self.registration;
        let knows_this = registration.is_registered() && registration.coordinator() == Some(from);
        let has_read_all = knows_this && registration.term() > self.floor;
        let is_forgotten = generation.term < self.floor && !has_read_all;
        self.stats.stale += u64::from(is_forgotten);
        is_forgotten
    }
}
