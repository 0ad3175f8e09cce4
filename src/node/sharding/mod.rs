//! [`Sharding`], the handle: entity types that a program starts on this node (spec/sharding.md).
//!
//! The machines of a type run beside membership; what runs its entities is told of their orders by
//! `hostings`, and has this node's lanes, lease, clock and runtime through `world`.

mod balancing;
mod error;
mod health;
pub(crate) mod hostings;
mod pinning;
mod queries;
mod starting;
mod steps;
mod strategies;
mod view;
mod world;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ostraca_ddata::id::ReplicaId;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub use self::balancing::{Drained, RebalanceError};
pub use self::error::{NotReady, NotStarted, Unanswered};
use self::hostings::Hostings;
pub use self::pinning::{Pin, PinError};
pub use self::queries::{QueryError, RegionState, ShardState};
pub use self::starting::EntityTypeSetup;
pub use self::view::TypeView;
use self::world::{Shared, TypeWorld};
use super::clock::Clock;
use super::control::machine::{Control, ControlInbox, ControlInput};
use super::crew::Crew;
use super::lease::Lease;
use super::replicator::Replicator;
use crate::cluster::member::NAME_BYTES_MAX;
use crate::config::Config;
use crate::net::handle::Net;
use crate::sharding::allocation::ShardAllocationStrategy;
use crate::sharding::asks::Asks;
use crate::sharding::config::Sharding as Settings;
pub use crate::sharding::explain::{About, Account, Explained, Explanation, Witness};
use crate::sharding::hosting::{Hosting, World};
use crate::sharding::ids::{EntityType, RegionId};
pub use crate::sharding::machines::ClusterShardingStats;
use crate::sharding::machines::{Hosts, Input};

/// Between two looks at what still waits for the end of a change of lanes.
const REMIND: Duration = Duration::from_secs(2);

/// Cluster sharding on this node. Cheap to clone; every clone is the same.
#[derive(Clone)]
pub struct Sharding(Arc<Inner>);

struct Inner {
    me: RegionId,
    settings: Settings,
    phase: Duration, // of the shutdown, in which shards are handed over
    roles: BTreeSet<String>,
    message_bytes_max: usize,
    asks: Arc<Asks>,
    replicator: Replicator,
    shared: Shared,
    hostings: Arc<Hostings>,
    started: Mutex<Started>,
    seen_up: OnceLock<tokio::time::Instant>, // by a health check
}

/// Handles, and what each was started for; ≤ types that hostings takes.
type Started = BTreeMap<EntityType, (Hosts, Box<dyn Any + Send>)>;

/// What a node makes its sharding of.
pub(super) struct Setup<'a> {
    pub(super) me: ReplicaId,
    pub(super) config: &'a Config,
    pub(super) net: Arc<OnceLock<Net>>,
    pub(super) inbox: ControlInbox,
    pub(super) lease: Lease,
    pub(super) clock: Clock,
    pub(super) hostings: Arc<Hostings>,
    pub(super) replicator: Replicator,
}

/// What is said of a type that is started, beside its settings.
struct Spec {
    extractor: Arc<str>, // its name
    strategy: Option<Named>,
    hosts: Hosts,
}

/// A strategy of the program's own, and what it calls itself: asked once, and not while anything is
/// locked here, for it is the user's code.
type Named = (Arc<str>, Arc<dyn ShardAllocationStrategy>);

impl Sharding {
    /// On the runtime that it is made on.
    pub(super) fn new(setup: Setup<'_>) -> Self {
        let Setup { me, config, net, inbox, lease, clock, hostings, replicator } = setup;
        let phase = super::shutdown::Phase::ClusterShardingShutdownRegion;
        drop(hostings.remind_every(REMIND)); // it ends with the machines
        let (runtime, net) = (Handle::current(), Arc::downgrade(&net));
        let (full, weak) = (Arc::default(), Arc::downgrade(&hostings));
        let crew = Crew::new(runtime.clone());
        let shared = Shared { net, inbox, lease, clock, runtime, crew, hostings: weak, full };
        Self(Arc::new(Inner {
            me: RegionId::new(me),
            settings: config.sharding.clone(),
            phase: config.shutdown.timeout(phase),
            roles: config.cluster.roles.clone(),
            // A message's length is 32 bits on the wire.
            message_bytes_max: config.net.limits.message_bytes_max.min(u32::MAX as usize),
            asks: hostings.asks().clone(),
            replicator,
            shared,
            hostings,
            started: Mutex::default(),
            seen_up: OnceLock::new(),
        }))
    }

    /// Starts what runs a type here, as `make` says, unless it runs already: then its handle is
    /// given back.
    fn start_type<H: Clone + Send + 'static>(
        &self,
        entity_type: &EntityType,
        settings: Settings,
        Spec { extractor, strategy, hosts }: Spec,
        make: impl FnOnce(Settings, Arc<dyn World>) -> (H, Arc<dyn Hosting>),
    ) -> Result<H, NotStarted> {
        let mut started = self.started();
        if let Some(known) = known(&started, entity_type, hosts) {
            return known;
        }
        let wanted = hosts;
        self.check(entity_type, &settings)?;
        let hosts = if self.may_host(&settings) { hosts } else { Hosts::Nothing };
        let world = TypeWorld::new(entity_type.clone(), self.0.shared.clone());
        let (handle, hosting) = make(settings.clone(), Arc::new(world));
        if !self.0.hostings.add(entity_type, &hosting) {
            return Err(NotStarted::TooMany);
        }
        let strategy = strategy.map(|named| self.bring(entity_type, named));
        let (entity, settings) = (entity_type.clone(), Box::new(settings));
        let start = Input::Start { entity_type: entity, settings, extractor, strategy, hosts };
        self.tell(start).map_err(|Unanswered| NotStarted::Stopped)?;
        started.insert(entity_type.clone(), (wanted, Box::new(handle.clone())));
        Ok(handle)
    }

    /// From now on the machines may ask this strategy; what it calls itself.
    fn bring(&self, entity_type: &EntityType, (name, strategy): Named) -> Arc<str> {
        let Shared { inbox, runtime, .. } = &self.0.shared;
        let strategies = self.0.hostings.strategies();
        strategies.add(entity_type, strategy, runtime.clone(), inbox.clone());
        name
    }

    fn may_host(&self, settings: &Settings) -> bool {
        settings.role.as_ref().is_none_or(|role| self.0.roles.contains(role))
    }

    fn check(&self, entity_type: &EntityType, settings: &Settings) -> Result<(), NotStarted> {
        let bytes = entity_type.as_str().len();
        if bytes > NAME_BYTES_MAX {
            return Err(NotStarted::LongName { bytes });
        }
        Ok(settings.check(self.0.phase)?)
    }

    /// Ends when the coordinator has known this node's region of the type once: from then on the
    /// node serves. What is sent earlier waits.
    ///
    /// # Errors
    /// [`Unanswered`] if the node stops before.
    pub async fn registered(&self, entity_type: &str) -> Result<(), Unanswered> {
        let mut progress = self.0.hostings.progress();
        let is_registered = |registered: &BTreeSet<EntityType>| {
            registered.iter().any(|known| known.as_str() == entity_type)
        };
        let seen = progress
            .wait_for(|progress| progress.ended || is_registered(&progress.registered))
            .await
            .map_err(|_| Unanswered)?;
        if is_registered(&seen.registered) { Ok(()) } else { Err(Unanswered) }
    }

    /// The entity types that were started here, as they stand on this node.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn types(&self) -> Result<Vec<TypeView>, Unanswered> {
        self.look(|control| {
            let types = control.machines().types();
            types.filter_map(|(name, of_type)| TypeView::of(name, of_type)).collect()
        })
        .await
    }

    /// Ends when what was told to the machines before is done.
    async fn settled(&self) -> Result<(), NotStarted> {
        self.look(|_| ()).await.map_err(|Unanswered| NotStarted::Stopped)
    }

    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Control) -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let (sender, receiver) = oneshot::channel();
        let place = self.0.shared.inbox.place().await.map_err(|_| Unanswered)?;
        let look = |control: &Control| {
            let _ = sender.send(look(control)); // who asked may have left
        };
        place.look(look).map_err(|_| Unanswered)?;
        receiver.await.map_err(|_| Unanswered)
    }

    /// No shard is to come here from now on.
    pub(super) fn begin_drain(&self) {
        let _ = self.tell(Input::Drain); // it has stopped: nothing to drain
    }

    /// Hands over everything; ends when nothing is left here and, as far as can be seen from here
    /// within a bound, nobody sends here any more.
    pub(super) async fn leave(&self) {
        if self.tell(Input::Leave).is_ok() {
            let mut progress = self.0.hostings.progress();
            let _ = progress.wait_for(|progress| progress.left || progress.ended).await;
            self.0.hostings.calm().await;
        }
    }

    /// After how long a lane that is cut is given up for shards that have moved.
    pub(super) fn cut_after(&self) -> Duration {
        self.0.settings.lane_broken_after
    }

    fn tell(&self, input: Input) -> Result<(), Unanswered> {
        self.0.shared.inbox.fact(ControlInput::from(input)).map_err(|_| Unanswered)
    }

    fn started(&self) -> MutexGuard<'_, Started> {
        self.0.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a second start of a type gives; `None`: it is the first.
fn known<H: Clone + 'static>(
    started: &Started,
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
    fn a_type_started_again_gives_its_handle_unless_another_was_meant() {
        let named = |name: &str| EntityType::new(name).expect("a name");
        let mut started = Started::new();
        started.insert(named("hosted"), (Hosts::Shards, Box::new(1_u32)));
        started.insert(named("routed"), (Hosts::Nothing, Box::new(2_u32)));
        let again = |name: &str, hosts| known::<u32>(&started, &named(name), hosts);
        assert!(again("new", Hosts::Shards).is_none());
        assert!(matches!(again("hosted", Hosts::Shards), Some(Ok(1))));
        assert!(matches!(again("hosted", Hosts::Nothing), Some(Ok(1))), "it routes as well");
        assert!(matches!(again("routed", Hosts::Nothing), Some(Ok(2))));
        let only_routes = again("routed", Hosts::Shards);
        assert!(matches!(only_routes, Some(Err(NotStarted::OnlyRoutes { .. }))));
        let other = known::<i64>(&started, &named("routed"), Hosts::Shards);
        assert!(matches!(other, Some(Err(NotStarted::OtherEntity { .. }))));
    }
}
