//! What the allocation strategy sees, and the coordinator's questions to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;

use crate::cluster::events::ClusterState;
use crate::cluster::member::Status;
use crate::sharding::allocation::{Allocations, AppVersion, Candidate, Move, Moving, Strategy};
use crate::sharding::coordinator::{Coordinator, CoordinatorInput};
use crate::sharding::ids::{RegionId, ShardId};

/// Between two looks at the balance that something has given cause for, at least.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The strategy of one type, and what it was asked.
#[derive(Clone, Debug)]
pub(super) struct Allocating {
    me: RegionId,
    strategy: Strategy,
    interval: Duration,
    /// A question that the strategy had no answer to; asked anew when members change.
    open: Option<(u64, Vec<ShardId>)>, // ≤ number-of-shards
    looked: Instant,
    look_at: Option<Instant>,
}

impl Allocating {
    pub(super) const fn new(me: ReplicaId, strategy: Strategy, interval: Duration) -> Self {
        let (me, looked) = (RegionId::new(me), Instant::from_nanos(0));
        Self { me, strategy, interval, open: None, looked, look_at: None }
    }

    /// The coordinator asks where these are to live.
    pub(super) fn ask(&mut self, question: u64, shards: Vec<ShardId>) {
        self.open = Some((question, shards));
    }

    /// The answer, as far as there is one now.
    pub(super) fn answer(
        &mut self,
        coordinator: &Coordinator,
        state: &ClusterState,
    ) -> Option<CoordinatorInput> {
        let (question, shards) = self.open.take()?;
        let mut seen = seen(coordinator, state);
        let mut homes = Vec::with_capacity(shards.len());
        let mut because = None;
        for shard in &shards {
            let Some((home, why)) = self.strategy.allocate(*shard, self.me, &seen) else {
                continue;
            };
            if let Some(candidate) = seen.regions.get_mut(&home) {
                candidate.shards.push(*shard); // the next one sees it
            }
            homes.push((*shard, home));
            because.get_or_insert(why);
        }
        let Some(why) = because else {
            self.open = Some((question, shards));
            return None;
        };
        Some(CoordinatorInput::Allocated { question, homes, why: why.to_string().into() })
    }

    /// Something may have upset the balance.
    pub(super) fn upset(&mut self, now: Instant) {
        if !matches!(self.strategy, Strategy::Rounds(_)) {
            let soon = now.max(self.looked + LOOK_AGAIN);
            self.look_at = Some(self.look_at.map_or(soon, |at| at.min(soon)));
        }
    }

    /// The coordinator acts, or no more.
    pub(super) fn acts(&mut self, now: Instant, acts: bool) {
        self.look_at = acts.then_some(now + self.interval);
        self.open = None;
    }

    /// The moves that the balance needs, if it is time to look.
    pub(super) fn look(
        &mut self,
        now: Instant,
        coordinator: &Coordinator,
        state: &ClusterState,
    ) -> Vec<CoordinatorInput> {
        if self.look_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        (self.looked, self.look_at) = (now, Some(now + self.interval));
        let moves = self.strategy.rebalance(&seen(coordinator, state)).into_iter();
        let order = |wanted: Move| {
            let why: Arc<str> = wanted.why.to_string().into();
            CoordinatorInput::Move { shard: wanted.shard, to: Some(wanted.to), why }
        };
        moves.map(order).collect()
    }

    pub(super) const fn next_deadline(&self) -> Option<Instant> {
        self.look_at
    }
}

/// Everything that is known of the balance. Regions of members that nobody knows are left out.
fn seen(coordinator: &Coordinator, state: &ClusterState) -> Allocations {
    let mut planned = coordinator.allocation();
    let age = |shard: &ShardId| {
        let decided = coordinator.record(*shard).map(|record| record.home().generation);
        (decided.is_none(), decided, *shard)
    };
    let mut candidate = |region: RegionId, leaving: bool| {
        let member = state.members.get(&region.replica())?;
        let mut shards = planned.remove(&region).unwrap_or_default();
        shards.sort_by_key(age);
        Some(Candidate {
            status: member.status,
            reachable: !state.unreachable.contains(&region.replica()),
            draining: leaving || member.hosting.draining,
            version: AppVersion::new(&member.app_version),
            address: member.address.clone(),
            shards,
        })
    };
    let hosts = coordinator.regions().filter(|(_, region)| !region.proxy);
    let regions: BTreeMap<RegionId, Candidate> =
        hosts.filter_map(|(id, region)| Some((id, candidate(id, region.leaving)?))).collect();
    let moving = coordinator.under_way().map(|(shard, from, to)| (shard, Moving { from, to }));
    let others_unsettled = state.members.iter().any(|(id, member)| {
        let here = regions.contains_key(&RegionId::new(*id));
        let joins = matches!(member.status, Status::Joining | Status::WeaklyUp);
        !here && (joins || state.unreachable.contains(id))
    });
    let (load, stall_p99) = (BTreeMap::new(), None);
    Allocations { moving: moving.collect(), others_unsettled, regions, load, stall_p99 }
}
