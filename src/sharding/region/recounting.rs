//! After a recovery by force: what this region knows, for whoever coordinates next. Decisions of the
//! majority that was lost may still be under way; none of them counts here from then on.

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::types::Term;

use super::{Region, Run};
use crate::sharding::ids::{Generation, RegionId};
use crate::sharding::wire::{ShardRoute, ToCoordinator, ToRegion};

impl Region {
    /// Not before this node has installed what the coordinator had, and knows that all who were given
    /// up are over: what it would start by their end it would start after its answer.
    pub(super) fn recount(&mut self, from: ReplicaId, term: Term, origin: EpochId) {
        let installed = &self.installed;
        let is_same = installed.origin() == Some(origin);
        let is_member = installed.members.contains(&RegionId::new(from));
        if !(is_same && is_member && term.is_valid()) {
            return; // it is asked again
        }
        if term < self.floor {
            // Who asked before may be lost, and its term unknown to all others.
            let highest = Generation::new(self.floor, 0);
            let (hosted, told) = Default::default();
            let counted = ToCoordinator::Counted { term, hosted, told, highest };
            return self.mail.counted(from, counted);
        }
        self.floor = term;
        let told = self.shards.iter().filter(|(_, held)| held.max_gen() > Generation::NEVER);
        let told = told.map(|(shard, held)| ShardRoute {
            shard: *shard,
            generation: held.max_gen(),
            home: held.home(),
        });
        let told = told.collect();
        let hosted = self.hosted().filter_map(|(shard, run)| match run {
            Run::Idle => None,
            Run::Hosting(at) | Run::Draining(at) => Some((shard, at)),
        });
        // A coordinator that has decided nothing may be lost with its term: below it nobody registers.
        let highest = self.highest.max(Generation::new(self.registration.term(), 0));
        let hosted = hosted.collect();
        self.mail.counted(from, ToCoordinator::Counted { term, hosted, told, highest });
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
