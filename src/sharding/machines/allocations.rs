//! Allocation of one type: puts the coordinator's questions to the strategy, and passes the chosen
//! homes and moves to the coordinator.
//!
//! A built-in strategy answers at once, `external` once the pins are read, and a strategy of the
//! program within a timeout. Until it answers, and after a failure, all shards stay where they are
//! (docs/protocol/sharding.md#a-failing-strategy-changes-nothing). The shards of a leaving node do
//! not wait for a strategy that fails or is slow: the node has little time, and loses the payloads
//! that it has not handed over by then. They go to the region with the fewest shards.
//!
//! *Pause*: the time after a failure of the program's strategy in which it is not asked; choices of
//! homes and of moves pause separately. *Late*: a leaving region whose [`LEAVER_WITHIN`] is over.
//! No method carries anything out: the caller passes the returned [`AllocationAction`]s on.

mod pinned;
mod program;
mod snapshot;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::replicator::request::{ReplicatorReply, RequestError, SubscriptionNotice};

use self::pinned::Pinned;
use self::program::{LEAVER_WITHIN, ProgramStrategy, WITHIN};
use crate::cluster::events::ClusterState;
use crate::cluster::member::{Address, Status};
use crate::sharding::allocation::pins::PinsRequest;
use crate::sharding::allocation::{
    AllocationReason, AllocationStrategy, Allocations, AppVersion, Candidate, Move, Moving,
    StrategyAnswer, StrategyRequest,
};
use crate::sharding::config::ShardingConfig as Settings;
use crate::sharding::coordinator::{Chosen, Coordinator, CoordinatorInput};
use crate::sharding::ids::{Generation, RegionId, ShardId};

/// Minimum time between two rebalances that a change of the cluster causes.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// [`LOOK_AGAIN`] for a strategy of the program.
const CONSULT_AGAIN: Duration = Duration::from_secs(1);

/// Action that follows from the strategy's answer, or from its absence.
#[derive(Debug)]
pub(super) enum AllocationAction {
    /// Input of the coordinator: chosen homes, or a move.
    Decide(CoordinatorInput),
    /// Request to the Replicator, about pins.
    Ask(PinsRequest),
    /// Question to the program's strategy, which answers by `strategy_answered`.
    Consult { number: u64, asked: StrategyRequest },
    /// Warning for an operator: the program's strategy has failed, and why.
    Failed(Arc<str>),
    /// Warning for an operator: pinned addresses without a region, with the number of shards that
    /// are pinned to each.
    Absent(BTreeMap<Address, usize>),
}

/// The configured strategy, with the state that it needs.
#[derive(Clone, Debug)]
enum ConfiguredStrategy {
    Rule(AllocationStrategy),
    Pins(Box<Pinned>),
    Program(ProgramStrategy),
}

/// Reason for choosing a home without the program's strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FallbackReason {
    Failed,
    Late,
}

/// The lowest shard number.
const FIRST: ShardId = ShardId::new(0);

/// Shards that the coordinator asks about, each with the region that asked for it.
type AskedShards = Vec<(ShardId, Option<RegionId>)>;

/// The strategy of one type, its open question, and the time of the next rebalance.
#[derive(Clone, Debug)]
pub(super) struct Allocating {
    configured_strategy: ConfiguredStrategy,
    interval: Duration,
    /// Number and shards of the coordinator's question that is not answered yet. The coordinator
    /// may have given it up; it then ignores the answer.
    open: Option<(u64, AskedShards)>, // ≤ number-of-shards
    /// Time of the last [`look`](Self::look) that was due, also one that was put off.
    looked: Instant,
    /// Time of the next rebalance; `None` while the coordinator is not active here.
    look_at: Option<Instant>,
}

impl Allocating {
    /// Uses the program's strategy of the name `own`, if given, else the configured one.
    pub(super) fn new(settings: &Settings, own: Option<Arc<str>>) -> Self {
        let configured_strategy = match (own, settings.strategy()) {
            (Some(name), _) => ConfiguredStrategy::Program(ProgramStrategy::new(name)),
            (None, AllocationStrategy::External(external)) => {
                let (shards, read_timeout) =
                    (settings.number_of_shards, settings.waiting_for_state_timeout);
                ConfiguredStrategy::Pins(Box::new(Pinned::new(external, shards, read_timeout)))
            }
            (None, strategy) => ConfiguredStrategy::Rule(strategy),
        };
        let (interval, looked) = (settings.rebalance_interval, Instant::from_nanos(0));
        Self { configured_strategy, interval, open: None, looked, look_at: None }
    }

    /// Subscription that the strategy needs while the type is started, whether the coordinator runs
    /// here or not. `None` unless the strategy follows pins.
    pub(super) const fn watches(&self) -> Option<PinsRequest> {
        match &self.configured_strategy {
            ConfiguredStrategy::Pins(_) => Some(PinsRequest::Watch),
            ConfiguredStrategy::Rule(_) | ConfiguredStrategy::Program(_) => None,
        }
    }

    /// Whether the strategy is asked about one shard at a time, as that of the program is.
    pub(super) const fn is_asked_one_by_one(&self) -> bool {
        matches!(self.configured_strategy, ConfiguredStrategy::Program(_))
    }

    /// Number of times that the snapshot for the program's strategy was built from scratch; 0 for
    /// another strategy.
    pub(super) const fn drawn(&self) -> u64 {
        match &self.configured_strategy {
            ConfiguredStrategy::Program(program) => program.snapshots_built(),
            ConfiguredStrategy::Rule(_) | ConfiguredStrategy::Pins(_) => 0,
        }
    }

    /// The coordinator asks for homes of these shards; [`work`](Self::work) answers. Replaces a
    /// question that is still open.
    pub(super) fn ask(&mut self, question: u64, shards: AskedShards) {
        self.open = Some((question, shards));
    }

    /// Answers the open question as far as possible now, or returns the requests that an answer
    /// needs. First handles expired timeouts of the program's strategy, or repeats a failed read of
    /// the pins when it is due; without an open question it does only that. Pins are used for homes
    /// once the local copy was read, or that read has failed. Never rebalances; that is
    /// [`look`](Self::look).
    pub(super) fn work(
        &mut self,
        now: Instant,
        coordinator: &mut Coordinator,
        state: &Arc<ClusterState>,
    ) -> Vec<AllocationAction> {
        let mut next = self.overdue(now, coordinator, state);
        match &mut self.configured_strategy {
            ConfiguredStrategy::Rule(_) => next.extend(self.answer(coordinator, state)),
            ConfiguredStrategy::Pins(pins) => {
                next.extend(pins.due(now).map(AllocationAction::Ask));
                if pins.is_read() {
                    next.extend(self.answer(coordinator, state));
                }
            }
            ConfiguredStrategy::Program(_) => next.extend(self.consult(now, coordinator, state)),
        }
        next
    }

    /// Answers for all shards of the question at once, by a built-in strategy. Shards for which it
    /// finds no home are left out, and the coordinator asks about them again; if it finds none at
    /// all, the question stays open and the result is `None`. Whether a shard still needs a home is
    /// checked by the coordinator.
    fn answer(
        &mut self,
        coordinator: &Coordinator,
        state: &ClusterState,
    ) -> Option<AllocationAction> {
        let (_, shards) = self.open.as_ref()?;
        let choose = |(shard, asker), seen: &_| {
            let (to, why) = self.configured_strategy.allocate(shard, asker, seen)?;
            Some((to, why.to_string().into()))
        };
        let homes = homes(shards, seen(coordinator, state), choose);
        self.close(homes)
    }

    /// Closes the open question with these homes. Without any home the question stays open, and the
    /// result is `None`.
    fn close(&mut self, homes: Vec<Chosen>) -> Option<AllocationAction> {
        let (question, _) = self.open.take_if(|_| !homes.is_empty())?;
        Some(AllocationAction::Decide(CoordinatorInput::Allocated { question, homes }))
    }

    /// Asks the program's strategy about one of the shards that need a home, the first from
    /// `search_from` on, then from the lowest number. The open question's list is not used. Shards
    /// of leaving regions that cannot wait are placed without the strategy ([`rescue`]): if any
    /// shard waits for a late region, only this is done; during a pause, for all leaving regions.
    ///
    /// Returns `None` without an open question of the coordinator, while a question about a home is
    /// open at the strategy, and while no shard needs a home or no region may host.
    ///
    /// [`rescue`]: Self::rescue
    fn consult(
        &mut self,
        now: Instant,
        coordinator: &mut Coordinator,
        state: &Arc<ClusterState>,
    ) -> Option<AllocationAction> {
        let (ConfiguredStrategy::Program(program), Some(_)) =
            (&mut self.configured_strategy, &self.open)
        else {
            return None;
        };
        if program.has_late() {
            let is_late =
                |unplaced| leaver(coordinator, unplaced).is_some_and(|at| program.is_late(at));
            if coordinator.unplaced(FIRST).any(is_late) {
                return self.rescue(coordinator, state, FallbackReason::Late);
            }
        }
        if program.homes.is_pausing() {
            // Leaving nodes cannot wait for the end of the pause.
            return self.rescue(coordinator, state, FallbackReason::Failed);
        }
        if !program.homes.is_free() {
            return None;
        }
        let first = |from| coordinator.unplaced(from).next();
        let (shard, asker) = first(program.search_from).or_else(|| first(FIRST))?;
        let seen = program.update_snapshot(coordinator, state);
        if seen.targets().is_empty() {
            return None; // no region may host now, whatever the strategy answers
        }
        let number = program.next_number();
        program.search_from = ShardId::new(shard.get().saturating_add(1));
        program.homes.ask(now, number, shard);
        Some(AllocationAction::Consult {
            number,
            asked: StrategyRequest::Home { shard, asker, seen },
        })
    }

    /// Handles questions whose timeout has expired as failures, homes first, and ends elapsed
    /// pauses. Updates which leaving regions are late: [`consult`](Self::consult) then places their
    /// shards. Empty for a built-in strategy.
    fn overdue(
        &mut self,
        now: Instant,
        coordinator: &Coordinator,
        state: &ClusterState,
    ) -> Vec<AllocationAction> {
        let ConfiguredStrategy::Program(program) = &mut self.configured_strategy else {
            return Vec::new();
        };
        let (homes, moves) = (program.homes.expire(now), program.moves.expire(now));
        let leavers = coordinator.regions().filter(|(_, region)| region.leaving);
        program.update_leaving(now, leavers.map(|(region, _)| region));
        let why = || Arc::from(format!("it has not answered within {WITHIN:?}"));
        let mut next = Vec::new();
        if homes {
            next.extend(self.failed_at_home(now, why(), coordinator, state));
        }
        if moves {
            next.extend(self.failed_at_moves(now, why()));
        }
        next
    }

    /// The program's strategy has failed to choose a home: begins a pause of the home questions,
    /// reports the failure unless one of either kind was reported within a minute, and places the
    /// shards of all leaving regions without the strategy. After the pause it is asked about the
    /// next shard, and about the failed one again only after all others.
    fn failed_at_home(
        &mut self,
        now: Instant,
        why: Arc<str>,
        coordinator: &Coordinator,
        state: &ClusterState,
    ) -> Vec<AllocationAction> {
        let ConfiguredStrategy::Program(program) = &mut self.configured_strategy else {
            return Vec::new();
        };
        program.homes.failed(now);
        let complaint = program.complain(now, why).map(AllocationAction::Failed);
        let rescue = self.rescue(coordinator, state, FallbackReason::Failed);
        complaint.into_iter().chain(rescue).collect()
    }

    /// Chooses homes for the shards that leaving nodes wait for, without the program's strategy:
    /// the target with the fewest shards, choices before included. With
    /// [`Late`](FallbackReason::Late) only for late regions, else for all leaving ones. Considers
    /// all shards that need a home now, which may be more than the open question named.
    ///
    /// Closes the open question if it finds any home; does nothing without one. A question that is
    /// open at the strategy stays open; its answer may then come too late for its shard.
    fn rescue(
        &mut self,
        coordinator: &Coordinator,
        state: &ClusterState,
        reason: FallbackReason,
    ) -> Option<AllocationAction> {
        let (ConfiguredStrategy::Program(program), Some(_)) =
            (&self.configured_strategy, &self.open)
        else {
            return None;
        };
        let choose = |unplaced, seen: &Allocations| {
            let from = leaver(coordinator, unplaced)?;
            let why = match reason {
                FallbackReason::Failed => {
                    "the program's strategy has failed, and time is short".into()
                }
                FallbackReason::Late if !program.is_late(from) => return None,
                FallbackReason::Late => {
                    format!("the program's strategy took over {LEAVER_WITHIN:?} for it")
                }
            };
            let (to, fewest) = seen.fewest()?;
            Some((to, format!("{why}: {fewest}").into()))
        };
        let shards: AskedShards = coordinator.unplaced(FIRST).collect();
        let homes = homes(&shards, seen(coordinator, state), choose);
        self.close(homes)
    }

    /// The program's strategy has failed to choose moves: begins a pause of the move questions, at
    /// whose end the next rebalance takes place, instead of at its time before. Returns the report,
    /// unless a failure of either kind was reported within a minute.
    fn failed_at_moves(&mut self, now: Instant, why: Arc<str>) -> Option<AllocationAction> {
        let ConfiguredStrategy::Program(program) = &mut self.configured_strategy else {
            return None;
        };
        program.moves.failed(now);
        self.look_at = self.look_at.and(program.moves.next_deadline());
        program.complain(now, why).map(AllocationAction::Failed)
    }

    /// Handles an answer of the program's strategy. Answers to questions that are no longer open
    /// are ignored, and so are all answers if the strategy is a built-in one. A home that is no
    /// target now, an answer of the wrong kind and an error are failures; invalid moves are left
    /// out, without a failure. Moves are checked against the present state and may be none. Asks no
    /// next question; the caller calls [`work`](Self::work) for that.
    pub(super) fn strategy_answered(
        &mut self,
        now: Instant,
        number: u64,
        advice: Result<StrategyAnswer, Arc<str>>,
        coordinator: &Coordinator,
        state: &ClusterState,
    ) -> Vec<AllocationAction> {
        let ConfiguredStrategy::Program(program) = &mut self.configured_strategy else {
            return Vec::new();
        };
        if let Some(shard) = program.homes.take(number) {
            return match advice {
                Ok(StrategyAnswer::Home(to)) if is_target(coordinator, state, to) => {
                    self.chosen(shard, to, coordinator).into_iter().collect()
                }
                Ok(StrategyAnswer::Home(to)) => {
                    let why = format!("it answered {to} for shard {shard}, which is no target");
                    self.failed_at_home(now, why.into(), coordinator, state)
                }
                Ok(StrategyAnswer::Moves(_)) => {
                    let why = format!("it answered no home for shard {shard}, but moves");
                    self.failed_at_home(now, why.into(), coordinator, state)
                }
                Err(why) => self.failed_at_home(now, why, coordinator, state),
            };
        }
        if program.moves.take(number).is_none() {
            return Vec::new(); // too late, or asked under a former coordinator
        }
        match advice {
            Ok(StrategyAnswer::Moves(moves)) => {
                program.moves.succeeded();
                let sensible = seen(coordinator, state).valid_moves(&moves, &program.name);
                sensible.iter().map(decide).collect()
            }
            Ok(StrategyAnswer::Home(_)) => {
                self.failed_at_moves(now, "it answered no moves".into()).into_iter().collect()
            }
            Err(why) => self.failed_at_moves(now, why).into_iter().collect(),
        }
    }

    /// Answers for one shard with the home that the program's strategy has chosen, and closes the
    /// open question, whichever shards that named. The next pause is the shortest again. If the
    /// shard needs no home any longer, the question stays open and the result is `None`.
    fn chosen(
        &mut self,
        shard: ShardId,
        to: RegionId,
        coordinator: &Coordinator,
    ) -> Option<AllocationAction> {
        let ConfiguredStrategy::Program(program) = &mut self.configured_strategy else {
            return None;
        };
        program.homes.succeeded();
        let (question, _) = self.open.take_if(|_| coordinator.is_unplaced(shard))?;
        let homes = vec![Chosen { shard, to, why: program.name.clone() }];
        Some(AllocationAction::Decide(CoordinatorInput::Allocated { question, homes }))
    }

    /// Handles the Replicator's answer to a request about pins, and returns the next request, also
    /// if the coordinator is no longer active. A rebalance is scheduled whether the request
    /// succeeded or not. Does not answer the open question; the caller calls [`work`](Self::work)
    /// for that. Does nothing for a strategy without pins.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        asked: PinsRequest,
        reply: Result<ReplicatorReply, RequestError>,
    ) -> Option<AllocationAction> {
        let ConfiguredStrategy::Pins(pins) = &mut self.configured_strategy else { return None };
        let next = pins.answered(now, asked, reply);
        self.rebalance_soon(now);
        next.map(AllocationAction::Ask)
    }

    /// Handles a change of the pins on this node, whether the coordinator is active or not. Each
    /// notice schedules a rebalance. Does nothing for a strategy without pins.
    pub(super) fn noticed(&mut self, now: Instant, notice: &SubscriptionNotice) {
        if let ConfiguredStrategy::Pins(pins) = &mut self.configured_strategy {
            pins.noticed(notice);
            self.rebalance_soon(now);
        }
    }

    /// An operator requests a rebalance now, regardless of the interval and of the minimum pause:
    /// makes the next [`look`](Self::look) due. `look` may still put it off. Ignored where the
    /// coordinator is not active.
    pub(super) fn rebalance(&mut self, now: Instant) {
        self.look_at = self.look_at.map(|_| now);
    }

    /// Schedules a rebalance soon, because a change may have upset the balance: now, or
    /// [`LOOK_AGAIN`] ([`CONSULT_AGAIN`] for the program's strategy) after the last one. Never puts
    /// off a rebalance that is due earlier. Rounds keep to their interval. Ignored where the
    /// coordinator is not active.
    pub(super) fn rebalance_soon(&mut self, now: Instant) {
        let pause = match &self.configured_strategy {
            ConfiguredStrategy::Rule(AllocationStrategy::Rounds(_)) => return,
            ConfiguredStrategy::Rule(_) | ConfiguredStrategy::Pins(_) => LOOK_AGAIN,
            ConfiguredStrategy::Program(_) => CONSULT_AGAIN,
        };
        let soon = now.max(self.looked + pause);
        self.look_at = self.look_at.map(|at| at.min(soon));
    }

    /// The coordinator became active, or is not active; the latter may be repeated. Forgets the
    /// open question, and the questions at the program's strategy, whose pauses continue. An active
    /// coordinator rebalances first after the interval; another one does not. Pins must be read
    /// again: returns the request, if the strategy needs them and the coordinator is active.
    pub(super) fn set_active(&mut self, now: Instant, acts: bool) -> Option<AllocationAction> {
        self.look_at = acts.then_some(now + self.interval);
        self.open = None;
        match &mut self.configured_strategy {
            ConfiguredStrategy::Rule(_) => None,
            ConfiguredStrategy::Pins(pins) => pins.set_active(acts).map(AllocationAction::Ask),
            ConfiguredStrategy::Program(program) => {
                program.reset();
                None
            }
        }
    }

    /// Rebalances if it is time, and schedules the next rebalance after the interval: returns the
    /// moves, or the question to the program's strategy; perhaps nothing.
    ///
    /// While a question about moves is open at the program's strategy, or a pause of these lasts,
    /// the rebalance is put off until its deadline, or the end of the pause. Pins cause moves only
    /// once they were read from a majority; before, the rebalance is skipped. A changed set of
    /// pinned addresses without a region is reported after the moves. The coordinator checks each
    /// move, and may refuse it.
    pub(super) fn look(
        &mut self,
        now: Instant,
        coordinator: &mut Coordinator,
        state: &Arc<ClusterState>,
    ) -> Vec<AllocationAction> {
        if self.look_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        (self.looked, self.look_at) = (now, Some(now + self.interval));
        match &mut self.configured_strategy {
            ConfiguredStrategy::Rule(strategy) => {
                let moves = strategy.rebalance(&seen(coordinator, state));
                moves.iter().map(decide).collect()
            }
            ConfiguredStrategy::Pins(pins) if !pins.may_move() => Vec::new(),
            ConfiguredStrategy::Pins(pins) => {
                let seen = seen(coordinator, state);
                let moves = pins.external.rebalance(&seen);
                let moves = moves.iter().map(decide);
                moves.chain(pins.absent(&seen).map(AllocationAction::Absent)).collect()
            }
            ConfiguredStrategy::Program(program) if !program.moves.is_free() => {
                self.look_at = program.moves.next_deadline();
                Vec::new()
            }
            ConfiguredStrategy::Program(program) => {
                let number = program.next_number();
                program.moves.ask(now, number, ());
                let asked =
                    StrategyRequest::Moves { seen: program.update_snapshot(coordinator, state) };
                vec![AllocationAction::Consult { number, asked }]
            }
        }
    }

    /// The time at which [`work`](Self::work) or [`look`](Self::look) has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let configured_strategy = match &self.configured_strategy {
            ConfiguredStrategy::Rule(_) => None,
            ConfiguredStrategy::Pins(pins) => pins.next_deadline(),
            ConfiguredStrategy::Program(program) => program.next_deadline(),
        };
        configured_strategy.into_iter().chain(self.look_at).min()
    }
}

impl ConfiguredStrategy {
    /// Chooses a home by a built-in strategy; `None` if no region may host, and always for the
    /// program's strategy. Pins that are not known are taken for none.
    fn allocate(
        &self,
        shard: ShardId,
        asker: Option<RegionId>,
        seen: &Allocations,
    ) -> Option<(RegionId, AllocationReason)> {
        match self {
            Self::Rule(strategy) => strategy.allocate(shard, asker, seen),
            Self::Pins(pins) => pins.external.allocate(shard, asker, seen),
            Self::Program(_) => None, // answers asynchronously
        }
    }
}

/// The leaving region that waits for a home of the shard: the home by the acknowledged decision, or
/// else the region that asked because it keeps a payload of the shard. `None` if neither leaves.
fn leaver(
    coordinator: &Coordinator,
    (shard, asker): (ShardId, Option<RegionId>),
) -> Option<RegionId> {
    let record = coordinator.record(shard).filter(|_| coordinator.is_leaving(shard));
    let home = record.and_then(|record| record.home().region);
    home.or(asker.filter(|asker| coordinator.leaves(*asker)))
}

/// Whether the region is one of the [targets](Allocations::targets) now: registered, no proxy, not
/// leaving or draining, Up, reachable, and of the newest version among these. Builds no snapshot,
/// because the program's strategy answers for each shard.
fn is_target(coordinator: &Coordinator, state: &ClusterState, region: RegionId) -> bool {
    let version = |region: RegionId| {
        let member = state.members.get(&region.replica())?;
        state.may_take(region.replica()).then(|| AppVersion::new(&member.app_version))
    };
    let newest = coordinator.targets().filter_map(version).max();
    coordinator.is_target(region) && newest.is_some() && version(region) == newest
}

/// Makes the coordinator's input from a move.
fn decide(wanted: &Move) -> AllocationAction {
    let why: Arc<str> = wanted.why.to_string().into();
    AllocationAction::Decide(CoordinatorInput::Move {
        shard: wanted.shard,
        to: Some(wanted.to),
        why,
    })
}

/// Homes for the shards that `choose` finds one for, in the same order; the others are left out.
/// Each choice sees the choices before it.
fn homes(
    shards: &AskedShards,
    mut seen: Allocations,
    choose: impl Fn((ShardId, Option<RegionId>), &Allocations) -> Option<(RegionId, Arc<str>)>,
) -> Vec<Chosen> {
    let mut homes = Vec::with_capacity(shards.len());
    for &(shard, asker) in shards {
        let Some((to, why)) = choose((shard, asker), &seen) else { continue };
        if let Some(candidate) = seen.regions.get_mut(&to) {
            candidate.shards.push(shard);
        }
        homes.push(Chosen { shard, to, why });
    }
    homes
}

/// Sort key of shards by the generation of their last acknowledged decision, oldest first, then by
/// number: a newer decision that waits for its write does not count. Shards without an acknowledged
/// decision come last.
type Age = (bool, Option<Generation>, ShardId);

fn age(coordinator: &Coordinator, shard: ShardId) -> Age {
    let decided = coordinator.record(shard).map(|record| record.home().generation);
    (decided.is_none(), decided, shard)
}

/// Builds the snapshot that strategies see. Proxies, regions that are not registered and regions of
/// unknown members are left out, with their shards; leaving and unreachable ones are included. A
/// region counts as draining if it leaves, or if its member announces that it drains. Each shard is
/// listed at its planned home, shards with slow handlers included, and each list is sorted by
/// [`Age`]. Members without a region here that join or are unreachable make `others_unsettled`
/// true.
fn seen(coordinator: &Coordinator, state: &ClusterState) -> Allocations {
    let mut planned = coordinator.allocation();
    let mut candidate = |region: RegionId, leaving: bool| {
        let member = state.members.get(&region.replica())?;
        let mut shards = planned.remove(&region).unwrap_or_default();
        shards.sort_by_key(|shard| age(coordinator, *shard));
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
    let stays = |shard: &ShardId| stays(coordinator, &regions, *shard);
    let with_slow_handlers = coordinator.with_slow_handlers().filter(stays).collect();
    Allocations { moving: moving.collect(), with_slow_handlers, others_unsettled, regions }
}

/// Whether planned moves leave a shard where it is, because its home reports a slow handler
/// (`slow-handler-after`). A node that leaves gives all its shards. `false` if the home is not
/// among `regions`.
fn stays(
    coordinator: &Coordinator,
    regions: &BTreeMap<RegionId, Candidate>,
    shard: ShardId,
) -> bool {
    let home = coordinator.planned(shard).and_then(|home| regions.get(&home));
    coordinator.has_slow_handler(shard) && home.is_some_and(|home| !home.is_leaving())
}
