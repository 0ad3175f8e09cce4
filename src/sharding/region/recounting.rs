//! After a recovery by force: what this region knows, for whoever coordinates next. Decisions of the
//! majority that was lost may still be under way; none of them counts here from then on.

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::types::Term;

use super::{Region, Run};
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::{
    HOSTED_BYTES, ROUTE_BYTES, RouteTable, ShardRoute, ToCoordinator, ToRegion,
};

/// What is known here of shards from one on.
#[derive(Default)]
struct Known {
    hosted: Vec<(ShardId, Generation)>, // ≤ shards
    told: RouteTable,                   // ≤ shards
    next: Option<ShardId>,              // of which there was no room to tell
}

impl Region {
    /// Not before this node has installed what the coordinator had, and knows that all who were given
    /// up are over: what it would start by their end it would start after its answer.
    /// Where it may come in parts each is what is known of its shards as it is sent: of any one shard
    /// all stands in one part, and nothing older counts here from the first part on.
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
            return; // it is asked again
        }
        if term < self.floor {
            // Who asked before may be lost, and its term unknown to all others.
            let highest = Generation::new(self.floor, 0);
            let Known { hosted, told, .. } = Known::default();
            let counted = ToCoordinator::Counted { term, hosted, told, highest };
            return self.mail.counted(from, counted);
        }
        self.floor = term;
        let room = self.config.cut.words / (HOSTED_BYTES + ROUTE_BYTES);
        let room = if first.is_some() { room.max(1) } else { usize::MAX };
        let first = first.unwrap_or_default();
        let Known { hosted, told, next } = self.known(first, room);
        // A coordinator that has decided nothing may be lost with its term: below it nobody registers.
        let highest = self.highest.max(Generation::new(self.registration.term(), 0));
        let is_all = first == ShardId::default() && next.is_none();
        self.mail.counted(
            from,
            if is_all {
                ToCoordinator::Counted { term, hosted, told, highest }
            } else {
                ToCoordinator::CountedPart { term, first, next, hosted, told, highest }
            },
        );
    }

    fn known(&self, first: ShardId, room: usize) -> Known {
        let known = self.shards.range(first..);
        let mut known = known.filter(|(_, held)| held.max_gen() > Generation::NEVER);
        let (mut hosted, mut told) = (Vec::new(), Vec::new());
        for (shard, held) in known.by_ref().take(room) {
            let (shard, generation, home) = (*shard, held.max_gen(), held.home());
            told.push(ShardRoute { shard, generation, home });
            match held.run() {
                Run::Hosting(at) | Run::Draining(at) => hosted.push((shard, at)),
                // Who starts it next is to wait for its release, and takes what that carries.
                Run::Idle if held.kept().is_some() => hosted.push((shard, held.last())),
                Run::Idle => {}
            }
        }
        let next = known.next().map(|(shard, _)| *shard);
        Known { hosted, told: told.into_iter().collect(), next }
    }

    /// Whether this is an order of a coordinator that was given up by force, and lives. (One that this
    /// node has not heard of yet says it again.)
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

    /// Whether a decision is one that may be lost: it was decided again, if anybody knew of it. What
    /// the coordinator says that knows this region, under a higher term than that of the count, is
    /// not: the count may have been a second one, of a coordinator that is lost, and what the first
    /// has decided stands. (Its own words of before come before its acknowledgement, when they still
    /// are forgotten.)
    pub(super) fn is_forgotten(&mut self, from: ReplicaId, generation: Generation) -> bool {
        let registration = &self.registration;
        let knows_this = registration.is_registered() && registration.coordinator() == Some(from);
        let has_read_all = knows_this && registration.term() > self.floor;
        let is_forgotten = generation.term < self.floor && !has_read_all;
        self.stats.stale += u64::from(is_forgotten);
        is_forgotten
    }
}
