//! The registered regions: registrations, which also serve as audits, requests for homes, and
//! changes of the members.
//!
//! An audit compares the shards that a region hosts with the decisions and orders the release of
//! those without authority (docs/protocol/sharding.md#audit-releases-unauthorized-hosts), so that a
//! second host of a shard is found and stops.

use ostraca_ddata::clock::Now;

use super::outbound::send;
use super::takeover::reason;
use super::{Coordinator, CoordinatorOutbox, CoordinatorPhase};
use crate::sharding::agreed_settings::AgreedSettings;
use crate::sharding::fault_injection::ShardingFault;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::installed::Installed;
use crate::sharding::wire::{
    ROUTE_BYTES, RegistrationRefusal, ReleaseShard, ShardRoute, ToRegion, in_messages,
};

/// A registered region or proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RegisteredRegion {
    /// Whether the region only routes messages and hosts no shard.
    pub proxy: bool,
    /// Whether the region leaves and must get no further shards. Never taken back while it is
    /// registered. Until the region gets `MayLeave`, it is also one of [`Coordinator::leavers`].
    pub leaving: bool,
}

impl Coordinator {
    /// Registered regions that can be given shards: neither proxies nor leaving. Reachability,
    /// status and program version do not matter here; strategies consider them.
    pub fn targets(&self) -> impl Iterator<Item = RegionId> + '_ {
        let fit = self.regions.iter().filter(|(_, region)| !region.proxy && !region.leaving);
        fit.map(|(id, _)| *id)
    }

    /// Whether a region can be given shards, see [`targets`](Self::targets).
    #[must_use]
    pub fn is_target(&self, region: RegionId) -> bool {
        self.regions.get(&region).is_some_and(|region| !region.proxy && !region.leaving)
    }

    /// Whether the home of a shard by the acknowledged decision is a registered region that
    /// [leaves](Self::leaves). Planned decisions do not matter. `false` without a home.
    #[must_use]
    pub fn is_leaving(&self, shard: ShardId) -> bool {
        let home = self.records.get(&shard).and_then(|record| record.home().region);
        home.is_some_and(|home| self.leaves(home))
    }

    /// Reason why the coordinator does not register a region; `None` if it does. In this order:
    /// `Elsewhere` if it is off or down, `Reading` until it is active, `Differs` if any setting
    /// differs from this node's, `NoMember`.
    pub(super) fn refusal(
        &self,
        from: RegionId,
        agreed: &AgreedSettings,
    ) -> Option<RegistrationRefusal> {
        match self.phase {
            CoordinatorPhase::Off | CoordinatorPhase::Down => Some(RegistrationRefusal::Elsewhere),
            // This node's settings may be the ones that differ: the cluster's are not read yet.
            CoordinatorPhase::Reading
            | CoordinatorPhase::Rewriting
            | CoordinatorPhase::Recounting => Some(RegistrationRefusal::Reading),
            _ if *agreed != self.agreed => Some(RegistrationRefusal::Differs(self.agreed.clone())),
            CoordinatorPhase::Active => {
                (!self.installed.members.contains(&from)).then_some(RegistrationRefusal::NoMember)
            }
        }
    }

    /// Registers a region, acknowledges that, and audits what it hosts. Called for each part of a
    /// registration; `hosted` has only the shards of this part. `highest` is the highest generation
    /// of any decision that the region has received. The caller has checked [`refusal`] and
    /// [`is_superseded`].
    ///
    /// Only the first part in a batch is acknowledged. The answer has the routes of all
    /// acknowledged decisions if the region is new or has not heard of the newest one, otherwise
    /// none. The entry of a region that leaves stays as it is; that of another one takes the new
    /// `proxy`. A new region allows the strategy to be asked again after a vain answer.
    ///
    /// [`refusal`]: Self::refusal
    /// [`is_superseded`]: Self::is_superseded
    pub(super) fn register(
        &mut self,
        now: Now,
        from: RegionId,
        proxy: bool,
        hosted: &[(ShardId, Generation)],
        highest: Generation,
        out: &mut CoordinatorOutbox,
    ) {
        let known = self.regions.get(&from).copied();
        // A leaving region registers as a proxy. Its entry must remain that of a leaving region,
        // because the shards of a proxy would not get other homes.
        let leaver = known.filter(|known| known.leaving);
        let new = leaver.unwrap_or(RegisteredRegion { proxy, leaving: false });
        self.regions.insert(from, new);
        if known != Some(new) {
            self.pending_decisions.touch_all();
        }
        if known.is_none() {
            self.pending_decisions.reconsider(); // a known region becomes no better target later
        }
        if self.outbound.is_first_part_of_registration(from) {
            // An audit of a region that knows the newest decision needs no table.
            let newest = self.records.values().map(|record| record.home().generation).max();
            let lacks = known.is_none() || newest > Some(highest);
            let recorded = self.records.keys().filter(|_| lacks);
            let homes = recorded.filter_map(|shard| self.route(*shard)).collect(); // each has one
            self.acknowledge(from, homes, out);
        }
        self.audit(now, from, hosted, highest);
    }

    /// Sends the table of homes, ahead of the messages of the batch, in parts: each as `Announce`,
    /// the last one as `RegisterAck`, which is sent also if the table is empty. A region that
    /// misses a part asks for a home when it needs one.
    fn acknowledge(&self, from: RegionId, homes: Vec<ShardRoute>, out: &mut CoordinatorOutbox) {
        let mut tables = in_messages(homes, self.config.word_bytes_max, |_| ROUTE_BYTES);
        let last = tables.pop().unwrap_or_default();
        for table in tables {
            let table = table.into_iter().collect();
            send(from.replica(), ToRegion::Announce(table), out);
        }
        let homes = last.into_iter().collect(); // the last part, which completes the table
        send(from.replica(), ToRegion::RegisterAck { term: self.term, homes }, out);
    }

    /// Compares the shards that a region hosts or drains with the decisions. Each first counts as a
    /// `Hosted`, so it may settle its decision, and is then [checked](Self::audit_shard). The
    /// messages of every unsettled decision that names the region become due with the next tick,
    /// whether the region hosts the shard or not, and their pauses begin anew.
    fn audit(
        &mut self,
        now: Now,
        from: RegionId,
        hosted: &[(ShardId, Generation)],
        highest: Generation,
    ) {
        for (shard, at) in hosted {
            let newest = self.records.get(shard).map(|record| record.home().generation);
            let assumed = newest
                .filter(|_| self.fault_injection.has(ShardingFault::RegistrationConfirmsNewest));
            self.confirmed(now, *shard, from, assumed.unwrap_or(*at));
            self.audit_shard(now, (*shard, *at), from, highest);
        }
        let concerned = self.records.iter().filter(|(_, record)| {
            let home = record.home();
            let named = home.region == Some(from) || home.after.contains_key(&from);
            named && !record.is_settled()
        });
        // The repetition is due at once, but is sent at the end of the batch, because further parts
        // of the registration may settle the shard before.
        for shard in concerned.map(|(shard, _)| *shard).collect::<Vec<_>>() {
            self.repeats.begin_now(now.mono, shard, self.config.repeat);
        }
    }

    /// Checks one shard that a region hosts at `at`. Orders its release if the acknowledged
    /// decision is not older than `at` and neither names the region as home nor lists it at `at` or
    /// above. A shard without a decision, acknowledged or planned, is planned to stay where it was
    /// found running, also if that region leaves: its `Leaving` follows and moves the shard. Counts
    /// a duplicate home if the region had heard of the acknowledged decision, and a shard that the
    /// type does not have.
    fn audit_shard(
        &mut self,
        now: Now,
        (shard, at): (ShardId, Generation),
        from: RegionId,
        highest: Generation,
    ) {
        if shard.get() >= self.config.shards {
            self.stats.strange += 1;
            return;
        }
        let Some(record) = self.records.get(&shard) else {
            // Possible only after a quorum has lost its data: the shard stays where it runs.
            if self.pending_decisions.planned(shard).is_none() {
                let why = reason("it was found running");
                self.pending_decisions.plan_running(now, shard, from, &why);
            }
            return;
        };
        let home = record.home();
        let is_listed = home.after.get(&from).is_some_and(|last| *last >= at);
        // A region that the decision lists as a predecessor, with the last generation at which it
        // may host, gets a `Release` anyway. A region with a newer decision than the recorded one
        // got it from another coordinator, whose audit it is subject to.
        if home.region == Some(from) || is_listed || at > home.generation {
            return;
        }
        // It counts as a duplicate only if the region had received a decision as new as this one
        // when it registered. Otherwise the registration is merely late.
        self.stats.duplicate_home_detected += u64::from(highest >= home.generation);
        let (generation, to, listed) = (home.generation, home.region, Generation::NEVER);
        self.outbound.release(from, ReleaseShard { shard, generation, to, listed });
    }

    /// Announces to the asker the acknowledged homes, also those that leave. A shard without a
    /// home, or whose home is lost, is marked as needing one and causes no answer; if it is planned
    /// to get a home, it is not marked, because the announcement follows. A shard that must stop
    /// first is marked too, and gets its home afterwards.
    ///
    /// A leaving region also gets `Hosted` for each shard that another region has hosted since: it
    /// need not keep that payload. The asker need not be registered. Counts shards that the type
    /// does not have as `strange`.
    pub(super) fn get_homes(&mut self, from: RegionId, shards: Vec<ShardId>) {
        for shard in shards {
            if shard.get() >= self.config.shards {
                self.stats.strange += 1;
                continue;
            }
            // A leaving region may ask because it keeps a payload, not only for waiting messages.
            // It drops the payload once another region has hosted the shard.
            // `hosted`: the generation at which that other region has hosted it.
            if let Some(hosted) = self.is_over_for(shard, from) {
                self.outbound.hosted(from, shard, hosted);
            }
            let lost = self.records.get(&shard).is_none_or(|r| r.is_lost(&self.installed));
            match self.route(shard).filter(|route| route.home.is_some() && !lost) {
                Some(route) => self.outbound.announce(from, route),
                None if self.pending_decisions.planned(shard).flatten().is_some() => {} // announced to all
                None => self.mark_unplaced(shard, Some(from)),
            }
        }
    }

    /// Installs a configuration, in every phase; ignores one that is not newer. A coordinator that
    /// runs, active or not, steps down if the new one belongs to another forced generation.
    /// Otherwise one that is not active only continues its recount.
    ///
    /// An active one then forgets the regions of removed members with their slow handlers and stop
    /// requests, and sends `Here` to new members. Removed regions no longer host anything:
    /// decisions for them whose write has not begun are taken back, decisions without a home that
    /// waited for them only are settled, and shards whose acknowledged home is lost are unplaced.
    pub(super) fn install(&mut self, now: Now, installed: Installed, out: &mut CoordinatorOutbox) {
        let before = self.installed.members.clone();
        let is_replaced = self.installed.is_replaced_by(&installed);
        let runs = !matches!(self.phase, CoordinatorPhase::Off | CoordinatorPhase::Down);
        if !self.installed.install(installed) {
            return;
        }
        if runs && is_replaced {
            let why = "a configuration was forced, so all homes must be read and counted again";
            return self.step_down(self.term, why, out);
        }
        self.recount_members(now, out);
        if self.phase != CoordinatorPhase::Active {
            return;
        }
        self.regions.retain(|id, _| self.installed.members.contains(id));
        self.slow.retain(|id, _| self.installed.members.contains(id));
        self.leavers.retain(|id, _| self.installed.members.contains(id));
        for requests in self.stops.values_mut() {
            requests.retain(|id, _| self.installed.members.contains(id));
        }
        self.pending_decisions.touch_all();
        self.pending_decisions.reconsider();
        for new in self.installed.members.difference(&before) {
            send(new.replica(), ToRegion::Here(self.term), out);
        }
        let members = self.installed.members.clone();
        self.take_back_wishes(|wish| wish.to.is_some_and(|home| !members.contains(&home)));
        // A removed predecessor may have been the last that a decision without a home waited for.
        let settle = |(shard, record): (&ShardId, &mut super::ShardRecord)| {
            record.settle_empty(&self.installed).then_some(*shard)
        };
        let settled: Vec<ShardId> = self.records.iter_mut().filter_map(settle).collect();
        settled.into_iter().for_each(|shard| self.settled(now, shard));
        self.check_homes();
    }
}
