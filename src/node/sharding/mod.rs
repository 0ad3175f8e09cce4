//! [`Sharding`]: the program's handle for starting and querying entity types on this node.
//!
//! The machines of a type (coordinator and region) run on the thread of membership. Module
//! `region_registry` passes their orders to the code that runs the entities, which uses this node's
//! lanes, lease, clock and runtime through module `environment`. The protocol is described in
//! docs/protocol/sharding.md.

mod balance;
mod entity_type_setup;
mod environment;
mod error;
mod health;
mod pins;
mod queries;
pub(crate) mod region_registry;
mod steps;
mod strategies;
mod view;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ostraca_ddata::id::ReplicaId;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub use self::balance::{DrainProgress, RebalanceError};
pub use self::entity_type_setup::EntityTypeSetup;
use self::environment::{SharedEnvironment, TypeEnvironment};
pub use self::error::{NotReady, NotStarted, ShardingUnavailable};
pub use self::pins::{Pin, PinError};
pub use self::queries::{RegionState, ShardState, ShardingQueryError};
use self::region_registry::RegionRegistry;
pub use self::view::TypeView;
use super::clock::Clock;
use super::control::machine::{Control, ControlInbox, ControlInput};
use super::executor::Executor;
use super::lease::LeaseDeadline;
use super::replicator::Replicator;
use super::shutdown::{Phase, ShutdownObserver};
use crate::cluster::member::NAME_BYTES_MAX;
use crate::config::Config;
use crate::net::handle::Net;
use crate::sharding::allocation::ShardAllocationStrategy;
use crate::sharding::config::ShardingConfig as Settings;
pub use crate::sharding::explanation::{
    DecisionReport, DecisionSource, ExplainedDecision, Explanation, ExplanationSubject,
};
use crate::sharding::ids::{EntityType, RegionId};
pub use crate::sharding::machines::ClusterShardingStats;
use crate::sharding::machines::{Hosts, ShardingInput};
use crate::sharding::pending_asks::PendingAsks;
use crate::sharding::region_handle::{RegionEnvironment, RegionHandle};

/// Interval of [`RegionHandle::remind`], by which all types request barrier acknowledgements again
/// that have not arrived, among other things.
const REMIND: Duration = Duration::from_secs(2);

/// Handle for cluster sharding on this node. Cheap to clone; all clones refer to the same node.
#[derive(Clone)]
pub struct Sharding(Arc<ShardingState>);

struct ShardingState {
    me: RegionId,
    settings: Settings,
    phase: Duration, // timeout of the shutdown phase in which shards are handed over
    roles: BTreeSet<String>,
    message_bytes_max: usize,
    asks: Arc<PendingAsks>,
    replicator: Replicator,
    shared: SharedEnvironment,
    region_registry: Arc<RegionRegistry>,
    started: Mutex<StartedTypes>,
    shutdown: ShutdownObserver,
    /// When a health check that missed registrations first saw this node Up, while
    /// `healthcheck.disabled-after` was set. Never reset.
    seen_up: OnceLock<tokio::time::Instant>,
}

/// Started types, each with its typed handle and with what the program asked for: `Hosts::Shards`
/// also where the region only routes because this node lacks the type's role; ≤ ENTITY_TYPES_MAX.
/// An entry is never removed, not even by the node's end.
type StartedTypes = BTreeMap<EntityType, (Hosts, Box<dyn Any + Send>)>;

/// Parts of the node that [`Sharding::new`] needs.
pub(super) struct ShardingSetup<'a> {
    pub(super) me: ReplicaId,
    pub(super) config: &'a Config,
    pub(super) net: Arc<OnceLock<Net>>,
    pub(super) inbox: ControlInbox,
    pub(super) lease: LeaseDeadline,
    pub(super) clock: Clock,
    pub(super) region_registry: Arc<RegionRegistry>,
    pub(super) replicator: Replicator,
    pub(super) shutdown: ShutdownObserver,
}

/// Properties of a starting type beside its settings.
struct StartingType {
    extractor: Arc<str>, // name of the extractor
    strategy: Option<NamedStrategy>,
    hosts: Hosts,
}

/// A strategy of the program with its name. The name is asked for only once, and never under a lock
/// of this module, because it runs code of the program.
type NamedStrategy = (Arc<str>, Arc<dyn ShardAllocationStrategy>);

impl Sharding {
    /// Creates the handle, with no type started. Entities, and the executor of all types, will run
    /// on the current runtime; panics without one. Also spawns the task that reminds all types
    /// every [`REMIND`]; it ends with the machines or the registry.
    pub(super) fn new(setup: ShardingSetup<'_>) -> Self {
        let ShardingSetup {
            me,
            config,
            net,
            inbox,
            lease,
            clock,
            region_registry,
            replicator,
            shutdown,
        } = setup;
        let phase = Phase::ClusterShardingShutdownRegion;
        drop(region_registry.remind_every(REMIND)); // the task ends with the machines
        let (runtime, net) = (Handle::current(), Arc::downgrade(&net));
        let (full, weak) = (Arc::default(), Arc::downgrade(&region_registry));
        let executor = Executor::new(runtime.clone());
        let shared = SharedEnvironment {
            net,
            inbox,
            lease,
            clock,
            runtime,
            executor,
            region_registry: weak,
            full,
        };
        Self(Arc::new(ShardingState {
            me: RegionId::new(me),
            settings: config.sharding.clone(),
            phase: config.shutdown.timeout(phase),
            roles: config.cluster.roles.clone(),
            // A message's length is 32 bits on the wire.
            message_bytes_max: config.net.limits.message_bytes_max.min(u32::MAX as usize),
            asks: region_registry.asks().clone(),
            replicator,
            shared,
            region_registry,
            started: Mutex::default(),
            shutdown,
            seen_up: OnceLock::new(),
        }))
    }

    /// Starts a type with the region that `make` creates, or returns the handle of an earlier
    /// start, also after the machines' end, and ignores the new settings. A type whose role this
    /// node lacks becomes a proxy.
    ///
    /// Holds the lock of the started types, also while `make` runs, so that two starts of a type
    /// create one region. Returns before the machines know the type. If the machines have ended,
    /// the new region is stopped and forgotten.
    fn start_type<H: Clone + Send + 'static>(
        &self,
        entity_type: &EntityType,
        settings: Settings,
        StartingType { extractor, strategy, hosts }: StartingType,
        make: impl FnOnce(Settings, Arc<dyn RegionEnvironment>) -> (H, Arc<dyn RegionHandle>),
    ) -> Result<H, NotStarted> {
        let mut started = self.started();
        if let Some(known) = known(&started, entity_type, hosts) {
            return known;
        }
        let wanted = hosts;
        self.check(entity_type, &settings)?;
        let hosts = if self.may_host(&settings) { hosts } else { Hosts::Nothing };
        let world = TypeEnvironment::new(entity_type.clone(), self.0.shared.clone());
        let (handle, hosting) = make(settings.clone(), Arc::new(world));
        if !self.0.region_registry.add(entity_type, &hosting) {
            return Err(NotStarted::TooMany);
        }
        let strategy = strategy.map(|named| self.bring(entity_type, named));
        let (entity, settings) = (entity_type.clone(), Box::new(settings));
        let start =
            ShardingInput::Start { entity_type: entity, settings, extractor, strategy, hosts };
        if self.tell(start).is_err() {
            self.0.region_registry.remove(entity_type);
            return Err(NotStarted::Stopped);
        }
        started.insert(entity_type.clone(), (wanted, Box::new(handle.clone())));
        Ok(handle)
    }

    /// Registers a strategy of the program, so that the machines can ask it; it must be registered
    /// before the machines know the type. Returns its name.
    fn bring(&self, entity_type: &EntityType, (name, strategy): NamedStrategy) -> Arc<str> {
        let SharedEnvironment { inbox, runtime, .. } = &self.0.shared;
        let strategies = self.0.region_registry.strategies();
        strategies.add(entity_type, strategy, runtime.clone(), inbox.clone());
        name
    }

    /// Whether this node has the type's role, or the type needs none.
    fn may_host(&self, settings: &Settings) -> bool {
        settings.role.as_ref().is_none_or(|role| self.0.roles.contains(role))
    }

    /// Checks the length of the type's name, then its settings, with `handoff-timeout` against the
    /// shutdown phase in which shards move away. The extractor's name is checked by the caller.
    fn check(&self, entity_type: &EntityType, settings: &Settings) -> Result<(), NotStarted> {
        let bytes = entity_type.as_str().len();
        if bytes > NAME_BYTES_MAX {
            return Err(NotStarted::LongName { bytes });
        }
        Ok(settings.check(self.0.phase)?)
    }

    /// Waits until the coordinator has registered this node's region of the type once; proxies
    /// register as well. From then on messages are routed; earlier messages are buffered. A region
    /// that was registered once counts, even if its coordinator has failed since or the node has
    /// stopped. If the type has not been started here, this waits for its start too, without a
    /// limit; an invalid name is not detected.
    ///
    /// # Errors
    /// [`ShardingUnavailable`] if the node stops before that or has stopped.
    pub async fn wait_until_registered(
        &self,
        entity_type: &str,
    ) -> Result<(), ShardingUnavailable> {
        let mut progress = self.0.region_registry.progress();
        let is_registered = |registered: &BTreeSet<EntityType>| {
            registered.iter().any(|known| known.as_str() == entity_type)
        };
        let seen = progress
            .wait_for(|progress| progress.ended || is_registered(&progress.registered))
            .await
            .map_err(|_| ShardingUnavailable)?;
        if is_registered(&seen.registered) { Ok(()) } else { Err(ShardingUnavailable) }
    }

    /// State of each entity type that was started on this node, proxies included, in the order of
    /// their names. Types about which only other nodes have asked are left out.
    ///
    /// # Errors
    /// [`ShardingUnavailable`] if the node has stopped or stops meanwhile.
    pub async fn types(&self) -> Result<Vec<TypeView>, ShardingUnavailable> {
        self.look(|control| {
            let types = control.machines().types();
            types.filter_map(|(name, of_type)| TypeView::of(name, of_type)).collect()
        })
        .await
    }

    /// Waits until the machines have handled all facts that were queued before, so also the start
    /// of a type. Fails with `Stopped` if they have ended or end meanwhile.
    async fn settled(&self) -> Result<(), NotStarted> {
        self.look(|_| ()).await.map_err(|ShardingUnavailable| NotStarted::Stopped)
    }

    /// Reads the machines: runs `look` on their thread after all facts that were queued before.
    /// Waits without a limit for a place among the requests, and for the result. If the future is
    /// dropped meanwhile, `look` may still run. Fails if the machines have ended or end meanwhile.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Control) -> T + Send + 'static,
    ) -> Result<T, ShardingUnavailable> {
        let (sender, receiver) = oneshot::channel();
        let place = self.0.shared.inbox.place().await.map_err(|_| ShardingUnavailable)?;
        let look = |control: &Control| {
            let _ = sender.send(look(control)); // fails if the caller dropped its future
        };
        place.look(look).map_err(|_| ShardingUnavailable)?;
        receiver.await.map_err(|_| ShardingUnavailable)
    }

    /// Makes this node, which stops, accept no further shards. Nothing ends that.
    pub(super) fn begin_drain(&self) {
        // Fails if the node has stopped: nothing to drain then.
        let _ = self.tell(ShardingInput::PrepareToLeave);
    }

    /// Hands over all shards; while the whole cluster shuts down, stops them in place. Ends when
    /// none is left on this node and other nodes have probably learned the new homes, see
    /// [`RegionRegistry::calm`]. Only the timeout of the shutdown phase limits the handover. Ends
    /// early if the machines end, and does nothing if they have ended. The caller must call
    /// [`begin_drain`](Self::begin_drain) before. A repeated call after the handover only waits for
    /// the calm.
    pub(super) async fn leave(&self) {
        if self.tell(ShardingInput::Leave).is_ok() {
            let mut progress = self.0.region_registry.progress();
            let _ = progress.wait_for(|progress| progress.left || progress.ended).await;
            self.0.region_registry.calm().await;
        }
    }

    /// Time after which messages on a broken lane are given up for shards that have moved: that of
    /// `[cluster.sharding]` for all types, whatever their own settings.
    pub(super) fn lane_broken_after(&self) -> Duration {
        self.0.settings.lane_broken_after
    }

    /// Queues an input of the machines, without a limit and without waiting. Fails only after their
    /// end; success does not mean that they will handle it.
    fn tell(&self, input: ShardingInput) -> Result<(), ShardingUnavailable> {
        self.0.shared.inbox.fact(ControlInput::from(input)).map_err(|_| ShardingUnavailable)
    }

    /// Locks the started types.
    fn started(&self) -> MutexGuard<'_, StartedTypes> {
        self.0.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of a wait that begins now. A timeout of more than 30 years is cut to that, because the
/// runtime's clock may not represent later instants.
fn end_of_wait(timeout: Duration) -> tokio::time::Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    tokio::time::Instant::now() + timeout.min(FAR)
}

/// Result of a repeated start of a type; `None` if the type has not been started before. The handle
/// of a type that hosts shards also serves as a proxy. The error is [`NotStarted::OtherEntity`] if
/// the handle is not of type `H`, checked first; [`NotStarted::OnlyRoutes`] if a type that was
/// started as a proxy shall host. A type that only routes because this node lacks its role counts
/// as one that hosts.
fn known<H: Clone + 'static>(
    started: &StartedTypes,
    entity_type: &EntityType,
    hosts: Hosts,
) -> Option<Result<H, NotStarted>> {
    let (before, handle) = started.get(entity_type)?;
    let entity_type = || entity_type.clone();
    let Some(handle) = handle.downcast_ref::<H>() else {
        return Some(Err(NotStarted::OtherEntity { entity_type: entity_type() }));
    };
    if (*before, hosts) == (Hosts::Nothing, Hosts::Shards) {
        return Some(Err(NotStarted::OnlyRoutes { entity_type: entity_type() }));
    }
    Some(Ok(handle.clone()))
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharding").field("me", &self.0.me).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_wait_has_an_end() {
        let (now, day) = (tokio::time::Instant::now(), Duration::from_secs(86_400));
        assert!(end_of_wait(Duration::MAX) > now + day);
        assert!((now + day..now + 2 * day).contains(&end_of_wait(day)));
    }

    #[test]
    fn repeated_start_returns_the_handle_unless_the_types_differ() {
        let named = |name: &str| EntityType::new(name).expect("a name");
        let mut started = StartedTypes::new();
        started.insert(named("hosted"), (Hosts::Shards, Box::new(1_u32)));
        started.insert(named("routed"), (Hosts::Nothing, Box::new(2_u32)));
        let again = |name: &str, hosts| known::<u32>(&started, &named(name), hosts);
        assert!(again("new", Hosts::Shards).is_none());
        assert!(matches!(again("hosted", Hosts::Shards), Some(Ok(1))));
        assert!(matches!(again("hosted", Hosts::Nothing), Some(Ok(1))), "a host routes as well");
        assert!(matches!(again("routed", Hosts::Nothing), Some(Ok(2))));
        let only_routes = again("routed", Hosts::Shards);
        assert!(matches!(only_routes, Some(Err(NotStarted::OnlyRoutes { .. }))));
        let other = known::<i64>(&started, &named("routed"), Hosts::Shards);
        assert!(matches!(other, Some(Err(NotStarted::OtherEntity { .. }))));
    }
}
