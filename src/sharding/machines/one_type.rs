//! The machines of one entity type on one node.
//!
//! The singleton decides whether the coordinator must run here, the singleton's proxy finds where
//! it runs, the region registers there, and the coordinator that runs here asks the allocation
//! strategy. `message_flow` passes messages between these machines.

mod message_flow;
mod strategy_requests;

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::log_throttle::LogThrottle;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::Epoch;

use self::message_flow::{LocalInput, heard};
use super::allocations::Allocating;
use super::cluster_query::{ClusterQueryMessage, Counting};
use super::eligibility;
use super::port::{Hosts, MachineMessage, ShardingOutput};
use crate::cluster::events::ClusterState;
use crate::cluster::fault_injection::MembershipFaultInjection;
use crate::cluster::member::Member;
use crate::cluster::singleton::{
    Proxy, ProxyInput, Singleton, SingletonInput, SingletonMessage, SingletonState,
};
use crate::sharding::agreed_settings::AgreedSettings;
use crate::sharding::allocation::pins::PinsRequest;
use crate::sharding::config::ShardingConfig as Settings;
use crate::sharding::coordinator::{Coordinator, CoordinatorConfig, CoordinatorInput};
use crate::sharding::explanation::{self, DecisionSource, Topic};
use crate::sharding::fault_injection::ShardingFaultInjection;
use crate::sharding::ids::{EntityType, RegionId};
use crate::sharding::installed::Installed;
use crate::sharding::region::{PayloadPartSizes, Region, RegionConfig, RegionInput};
use crate::sharding::repeat::Pauses;
use crate::sharding::store::{HomesKey, StoreAnswer};
use crate::sharding::wire::{RegistrationRefusal, ShardingMessage, ToRegion};

/// Pause between two requests of a singleton or proxy, before a coordinator that has stepped down
/// is replaced, and between attempts to start one while a forced configuration is not in effect.
const RETRY: Duration = Duration::from_secs(1);

/// State shared by all types of a node.
#[derive(Clone, Debug)]
pub(super) struct SharedContext {
    pub(super) me: ReplicaId,
    pub(super) cut: PayloadPartSizes,
    pub(super) state: Arc<ClusterState>,
    /// The configuration in effect: all members that it removed are over. `None` until the first
    /// one is in effect.
    pub(super) epoch: Option<Arc<Epoch>>,
    pub(super) leased: bool,
    /// A configuration was forced and is not in effect yet: members that it gave up may still run.
    /// No coordinator may run meanwhile.
    pub(super) forced: bool,
    /// The node is out of the cluster for good; nothing runs here again.
    pub(super) is_out: bool,
    pub(super) last_id: u64,   // number of the last request to the Replicator
    pub(super) announce: bool, // tell membership after this input what is hosted
}

/// The machines of one entity type on one node. A type that only peers ask about has a singleton
/// and nothing else, so that inputs of the other machines have no effect.
#[derive(Clone, Debug)]
pub struct TypeMachines {
    entity_type: EntityType,
    singleton: Singleton,
    started: Option<Box<StartedType>>, // by the program; never reset
}

/// The program's specification of a type besides its settings.
#[derive(Clone, Debug)]
pub(super) struct TypeSpec {
    pub(super) extractor: Arc<str>,
    /// Name of the program's own allocation strategy.
    pub(super) strategy: Option<Arc<str>>,
    pub(super) hosts: Hosts,
}

/// The machines and state of a type that the program has started here.
#[derive(Clone, Debug)]
struct StartedType {
    settings: Settings,
    agreed: AgreedSettings,
    hosts: Hosts,
    /// A coordinator or the stored settings disagree with this node's settings of the type. The
    /// node then does not announce the type, so it is no candidate for the coordinator.
    withdrawn: bool,
    /// The stored settings, if they disagree; never reset. Changes at other nodes cannot resolve
    /// that.
    stored_settings: Option<AgreedSettings>,
    differs: LogThrottle, // of `ShardingOutput::Differs`, for the settings in `reported`
    reported: Option<AgreedSettings>, // by the last `ShardingOutput::Differs`
    key: HomesKey,
    proxy: Proxy,
    region: Region,
    coordinator: Coordinator,
    coordinator_at: Option<ReplicaId>, // the proxy's target, as last queued for the region
    above: u64,                        // the highest term number used or heard of
    asked: Option<(u64, u64)>, // request to the Replicator: its number here and at the coordinator
    restart_at: Option<Instant>, // when the next attempt to start a coordinator is due
    allocating: Allocating,
    /// The last request about pins, with its number, while it is open. Answers to earlier requests,
    /// such as those of an earlier active coordinator, are ignored.
    asked_pins: Option<(u64, PinsRequest)>,
    watching: Option<u64>, // number of the request that watches the pins
}

impl TypeMachines {
    pub(super) fn new(me: ReplicaId, entity_type: EntityType) -> Self {
        let singleton = Singleton::new(me, RETRY, MembershipFaultInjection::none());
        Self { entity_type, singleton, started: None }
    }

    /// The singleton, which decides whether the coordinator runs here.
    #[must_use]
    pub const fn singleton(&self) -> &Singleton {
        &self.singleton
    }

    /// The region; `None` before the type is started here.
    #[must_use]
    pub fn region(&self) -> Option<&Region> {
        self.started.as_ref().map(|started| &started.region)
    }

    /// The coordinator, off on most nodes; `None` before the type is started here.
    #[must_use]
    pub fn coordinator(&self) -> Option<&Coordinator> {
        self.started.as_ref().map(|started| &started.coordinator)
    }

    /// The node that runs the coordinator, as far as this node's proxy knows; possibly this node.
    /// `None` also before the type is started here.
    #[must_use]
    pub fn coordinator_at(&self) -> Option<ReplicaId> {
        self.started.as_ref().and_then(|started| started.proxy.target())
    }

    /// Whether the type hosts shards here; `None`: the program has not started it.
    #[must_use]
    pub fn hosts(&self) -> Option<Hosts> {
        self.started.as_ref().map(|started| started.hosts)
    }

    /// How often the snapshot of the program's own strategy was built from scratch; 0 with a
    /// built-in strategy. One build costs time in proportion to members and shards.
    #[must_use]
    pub fn drawn(&self) -> u64 {
        self.started.as_ref().map_or(0, |started| started.allocating.drawn())
    }

    /// Whether the strategy here follows pins; `false` before the type is started here.
    #[must_use]
    pub fn follows_pins(&self) -> bool {
        let started = self.started.as_ref();
        started.is_some_and(|started| started.allocating.watches().is_some())
    }

    /// Whether membership may list this node as a host of the type: it is started, no proxy, and
    /// its settings agree. Neither leaving nor being out matters.
    pub(super) fn offers_shards(&self) -> bool {
        let started = self.started.as_ref();
        started.is_some_and(|started| started.hosts == Hosts::Shards && !started.withdrawn)
    }

    /// The program starts the type: creates its machines, begins to watch the pins if the strategy
    /// needs them, and tells the machines the configuration in effect and the members. Starting the
    /// type again changes nothing, whatever the settings. If the node is out for good, the watch
    /// begins and the region stops at once, and nothing else is told. The singleton exists before
    /// and knows the lease. The caller announces the type and has the region leave if necessary.
    pub(super) fn start(
        &mut self,
        now: Now,
        settings: Settings,
        TypeSpec { extractor, strategy, hosts }: TypeSpec,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        if self.started.is_some() {
            return;
        }
        let agreed = AgreedSettings::new(&settings, &extractor);
        let allocating = Allocating::new(&settings, strategy);
        let started =
            StartedType::new(&self.entity_type, (settings, agreed), hosts, allocating, with);
        self.started = Some(Box::new(started));
        self.watch(with, out);
        if with.is_out {
            return self.feed(now, LocalInput::Region(RegionInput::Over), with, out);
        }
        self.installed(now, with, out);
        self.members(now, with, out);
    }

    /// Membership or the configuration in effect has changed, or the type was just created or
    /// started. Does nothing before a configuration is in effect. Tells singleton and proxy the new
    /// candidates and the region whether it has heirs, schedules a rebalance, and lets the strategy
    /// work on its open question. While the cluster shuts down, first tells singleton and
    /// coordinator to prepare, each time.
    ///
    /// Also makes a withdrawn node a candidate again, and announces that, once no other member
    /// announces the type, whatever its status, unless the stored settings disagree.
    pub(super) fn members(
        &mut self,
        now: Now,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let Some(epoch) = with.epoch.as_deref() else { return };
        let settings = self.started.as_ref().map(|started| &started.settings);
        let peers = eligibility::peers(&with.state, epoch, &self.entity_type, settings);
        if with.state.preparing_for_shutdown {
            self.feed(now, LocalInput::Singleton(SingletonInput::Prepare), with, out);
            self.feed(now, LocalInput::Coordinator(CoordinatorInput::Prepare), with, out);
        }
        self.feed(now, LocalInput::Singleton(SingletonInput::Members(peers.clone())), with, out);
        self.feed(now, LocalInput::Proxy(ProxyInput::Members(peers)), with, out);
        self.tell_of_heirs(now, with, out);
        if let Some(started) = &mut self.started {
            started.allocating.rebalance_soon(now.mono);
            let offers = |member: &Member| eligibility::offers(member, &self.entity_type);
            let mut of_others = with.state.members.iter().filter(|(id, _)| **id != with.me);
            // No other node offers the type, so none can disagree. Without a candidate no node
            // would decide.
            let may_return = started.withdrawn && started.stored_settings.is_none();
            if may_return && !of_others.any(|(_, member)| offers(member)) {
                started.region.forget_refusal();
                (started.withdrawn, with.announce) = (false, true);
            }
        }
        self.allocate(now, with, out);
    }

    /// Tells the region whether other nodes could take over its shards, if that has changed. Does
    /// nothing before the type is started or a configuration is in effect.
    fn tell_of_heirs(
        &mut self,
        now: Now,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let (Some(started), Some(epoch)) = (self.started.as_deref(), with.epoch.as_deref()) else {
            return;
        };
        let settings = &started.settings;
        let any = eligibility::has_heirs(with.me, &with.state, epoch, &self.entity_type, settings);
        if any != started.region.has_heirs() {
            self.feed(now, LocalInput::Region(RegionInput::Heirs { any }), with, out);
        }
    }

    /// A new configuration takes effect: all members that it removed are over. Tells coordinator
    /// and region, also a coordinator that is off. [`members`](Self::members) must follow, for the
    /// singleton. Does nothing before a configuration is in effect.
    pub(super) fn installed(
        &mut self,
        now: Now,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let Some(installed) = with.epoch.as_deref().map(Installed::from) else { return };
        let told = CoordinatorInput::Installed(installed.clone());
        self.feed(now, LocalInput::Coordinator(told), with, out);
        self.feed(now, LocalInput::Region(RegionInput::Installed(installed)), with, out);
    }

    /// A configuration was forced. The coordinator stops, because an earlier coordinator and a
    /// later one could both decide. The next one begins when the given-up members are over, and
    /// recounts first: if the singleton runs here, a start is tried from [`RETRY`] on. An answer to
    /// the stopped coordinator's request is no longer awaited. The singleton is not told and keeps
    /// its state; the region and the proxy are not told either.
    pub(super) fn forced(
        &mut self,
        now: Now,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        self.feed(now, LocalInput::Coordinator(CoordinatorInput::Stop), with, out);
        if let Some(started) = &mut self.started {
            (started.asked, started.restart_at) = (None, Some(now.mono + RETRY));
        }
    }

    /// Tells the singleton whether the lease is held (`with.leased`). It stops the coordinator
    /// without the lease, and starts it with the lease if this node has all rights; the region is
    /// not told.
    pub(super) fn leased(
        &mut self,
        now: Now,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let held = with.leased;
        let input = if held { SingletonInput::LeaseHeld } else { SingletonInput::LeaseOver };
        self.feed(now, LocalInput::Singleton(input), with, out);
    }

    /// The node is out for good; the caller has cleared `with.leased`. The singleton hears that the
    /// lease is lost, and the region stops. A region that has handed over everything starts nothing
    /// either way. It only discards its payloads, and continues to return messages until its node
    /// ends, because some senders may not have heard of the moves.
    pub(super) fn end_for_good(
        &mut self,
        now: Now,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        self.leased(now, with, out);
        let how = if self.has_left() { RegionInput::Forsaken } else { RegionInput::Over };
        self.feed(now, LocalInput::Region(how), with, out);
    }

    /// Passes an input to the region; dropped if the type is not started here.
    pub(super) fn fact(
        &mut self,
        now: Now,
        fact: RegionInput,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        self.feed(now, LocalInput::Region(fact), with, out);
    }

    /// Handles a message of the same type's machines on another node. `Here` and `Gone` of a
    /// singleton go to the proxy, its other messages to the singleton. If a node answers a
    /// registration with `Elsewhere`, the proxy hears first that no coordinator runs there, then
    /// the region gets the message. A cluster query is answered at once, unless the executor of the
    /// entities must answer it. Whether `from` is a member is left to the receiving machine. A
    /// message for a machine that does not exist here is dropped.
    pub(super) fn message(
        &mut self,
        now: Now,
        from: ReplicaId,
        word: MachineMessage,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let local = match word {
            MachineMessage::Sharding(message) => {
                let elsewhere = ToRegion::NotYet(RegistrationRefusal::Elsewhere);
                if message == ShardingMessage::Region(elsewhere) {
                    self.feed(now, LocalInput::Proxy(ProxyInput::Denied { from }), with, out);
                }
                heard(from, message)
            }
            MachineMessage::Singleton(
                message @ (SingletonMessage::Here | SingletonMessage::Gone),
            ) => LocalInput::Proxy(ProxyInput::Message { from, message }),
            MachineMessage::Singleton(message) => {
                LocalInput::Singleton(SingletonInput::Message { from, message })
            }
            MachineMessage::ClusterQuery(question) => {
                if let Some(answer) = self.answer_query(with.me, from, question, out) {
                    self.send(from, MachineMessage::ClusterQuery(answer), out);
                }
                return;
            }
        };
        self.feed(now, local, with, out);
    }

    /// Answers a request of a cluster query, if the machines alone can (`Why`). For `Ask` and
    /// `Exists` it outputs an order to the executor of the entities, which answers to `from`, and
    /// returns `None`. The order for `Ask` names the shards that are hosted or drain here; without
    /// any, one empty message answers. Also returns `None`, without output, if the type is not
    /// started here or `question` is itself an answer.
    pub(super) fn answer_query(
        &self,
        me: ReplicaId,
        from: ReplicaId,
        question: ClusterQueryMessage,
        out: &mut Outbox<ShardingOutput>,
    ) -> Option<ClusterQueryMessage> {
        let (to, entity_type, region) = (from, self.entity_type.clone(), self.region()?);
        match question {
            ClusterQueryMessage::Ask { number } => {
                let shards = region.hosted().map(|(shard, _)| shard).collect();
                let messages = Counting::in_messages(shards, region.words_bytes_max());
                out.push(ShardingOutput::Count { to, entity_type, number, messages });
                None
            }
            ClusterQueryMessage::Exists { number, entity } => {
                out.push(ShardingOutput::Exists { to, entity_type, number, entity });
                None
            }
            ClusterQueryMessage::Why { number, topic } => {
                let accounts = self.recall(me, topic);
                Some(ClusterQueryMessage::Because { number, accounts })
            }
            ClusterQueryMessage::Told { .. }
            | ClusterQueryMessage::Because { .. }
            | ClusterQueryMessage::Lives { .. } => None, // answers, of no type in particular
        }
    }

    /// Remembered decisions about a topic, of the coordinator, then of the region, up to `TOLD_MAX`
    /// of each, newest first. The coordinator here remembers them also when it does not run. Empty
    /// if the type is not started here.
    fn recall(&self, me: ReplicaId, topic: Topic) -> Vec<explanation::DecisionReport> {
        let Some(StartedType { coordinator, region, .. }) = self.started.as_deref() else {
            return Vec::new();
        };
        let mut all = explanation::newest_reports(
            me,
            DecisionSource::Coordinator,
            coordinator.remembered(),
            topic,
        );
        all.extend(explanation::newest_reports(
            me,
            DecisionSource::Region,
            region.remembered(),
            topic,
        ));
        all
    }

    /// Whether this is the coordinator's open request to the Replicator. An earlier request that a
    /// newer one replaced is not awaited.
    pub(super) fn awaits(&self, id: u64) -> bool {
        let asked = self.started.as_ref().and_then(|started| started.asked);
        asked.is_some_and(|(asked, _)| asked == id)
    }

    /// The Replicator has answered the coordinator's request `id`, which this closes. Passes the
    /// answer on, with the coordinator's own number of the request, also to a coordinator that has
    /// stopped, which ignores it. Does nothing, and does not call `answer`, if that request is not
    /// the open one; see [`awaits`](Self::awaits).
    pub(super) fn answered(
        &mut self,
        now: Now,
        id: u64,
        answer: impl FnOnce(&HomesKey) -> StoreAnswer,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let Some(started) = &mut self.started else { return };
        let Some((_, own)) = started.asked.take_if(|(asked, _)| *asked == id) else { return };
        let answer = answer(&started.key);
        let input = CoordinatorInput::Answered { id: own, answer };
        self.feed(now, LocalInput::Coordinator(input), with, out);
    }

    /// Ticks the machines whose deadline has passed: singleton, proxy and allocation (first the
    /// open question, then a due rebalance), then coordinator and region, so that the messages
    /// which follow from the former are sent together; these two are due at once after any other
    /// input.
    ///
    /// Before the proxy, also starts the next coordinator when `restart_at` has passed, but only if
    /// the singleton still runs here and the stored settings agree; otherwise the attempt is
    /// dropped. A coordinator that runs already is not affected.
    pub(super) fn tick(
        &mut self,
        now: Now,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now.mono);
        if is_due(self.singleton.next_deadline()) {
            self.feed(now, LocalInput::Singleton(SingletonInput::Tick), with, out);
        }
        let Some(started) = &mut self.started else { return };
        let proxy = is_due(started.proxy.next_deadline());
        let again = started.restart_at.take_if(|at| *at <= now.mono).is_some();
        let may_begin = again && started.stored_settings.is_none();
        if may_begin && self.singleton.running() == SingletonState::Yes {
            self.coordinate(now, with, out);
        }
        if proxy {
            self.feed(now, LocalInput::Proxy(ProxyInput::Tick), with, out);
        }
        let Some(started) = &mut self.started else { return };
        if is_due(started.allocating.next_deadline()) {
            let StartedType { coordinator, allocating, .. } = started.as_mut();
            let mut next = allocating.work(now.mono, coordinator, &with.state);
            next.extend(allocating.look(now.mono, coordinator, &with.state));
            self.carry_out(now, next, with, out);
        }
        // These ticks come last, because the inputs above make the machines dirty. Their messages
        // are then sent together.
        if is_due(self.coordinator().and_then(Machine::next_deadline)) {
            self.feed(now, LocalInput::Coordinator(CoordinatorInput::Tick), with, out);
        }
        if is_due(self.region().and_then(Machine::next_deadline)) {
            self.feed(now, LocalInput::Region(RegionInput::Tick), with, out);
        }
    }

    /// The coordinator, if it is active here, checks the balance at the next [`tick`](Self::tick),
    /// which is due at once. Moves nothing itself; ignored where no coordinator is active.
    pub(super) fn rebalance(&mut self, now: Now) {
        if let Some(started) = &mut self.started {
            started.allocating.rebalance(now.mono);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let singleton = self.singleton.next_deadline();
        let Some(started) = &self.started else { return singleton };
        let machines = [
            singleton,
            started.proxy.next_deadline(),
            started.region.next_deadline(),
            started.coordinator.next_deadline(),
            started.allocating.next_deadline(),
            started.restart_at,
        ];
        machines.into_iter().flatten().min()
    }

    /// Whether the region has handed over everything after [`RegionInput::Leave`], or was told to
    /// stop by [`RegionInput::Over`]. `true` if the type is not started here.
    pub(super) fn has_left(&self) -> bool {
        self.started.as_ref().is_none_or(|started| started.region.has_left())
    }
}

impl StartedType {
    /// Creates region, proxy and coordinator, none of which has been told anything yet. The
    /// coordinator is off. The proxy buffers no messages: it only locates the coordinator.
    fn new(
        entity_type: &EntityType,
        (settings, agreed): (Settings, AgreedSettings),
        hosts: Hosts,
        allocating: Allocating,
        with: &SharedContext,
    ) -> Self {
        let (me, cut) = (with.me, with.cut);
        let config = RegionConfig {
            shards: settings.number_of_shards,
            proxy: hosts == Hosts::Nothing,
            retry: settings.retry_interval,
            audit: settings.audit_interval,
            handoff_timeout: settings.handoff_timeout,
            repeat: pauses(&settings),
            cut,
            remembered: settings.remembered_decisions,
        };
        Self {
            hosts,
            withdrawn: false,
            stored_settings: None,
            differs: LogThrottle::new(),
            reported: None,
            key: HomesKey::new(entity_type, settings.write_majority_plus),
            proxy: Proxy::new(0, RETRY),
            region: Region::new(RegionId::new(me), config, ShardingFaultInjection::none())
                .agreeing(agreed.clone()),
            coordinator: coordinator(with, &settings, &agreed, &allocating),
            coordinator_at: None,
            above: 0,
            asked: None,
            restart_at: None,
            allocating,
            asked_pins: None,
            watching: None,
            settings,
            agreed,
        }
    }

    /// Withdraws the node as a candidate if the stored settings or a coordinator's settings differ
    /// from its own, or restores it once they agree; a change is announced to membership. Reports
    /// a difference at once, and the same one at most once a minute. Stored settings come before
    /// those of a coordinator.
    fn compare(
        &mut self,
        now: Instant,
        entity_type: &EntityType,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let by_data = self.stored_settings.as_ref().map(|there| (None, there));
        let refused = self.region.refused().map(|(coordinator, there)| (Some(*coordinator), there));
        let refused = by_data.or(refused);
        if self.withdrawn != refused.is_some() {
            (self.withdrawn, with.announce) = (refused.is_some(), true);
        }
        let Some((coordinator, there)) = refused else { return };
        if !self.differs.permit(now) && self.reported.as_ref() == Some(there) {
            return;
        }
        let there = there.clone();
        self.reported = Some(there.clone());
        let (entity_type, here) = (entity_type.clone(), self.agreed.clone());
        out.push(ShardingOutput::Differs { entity_type, here, coordinator, there });
    }
}

/// Creates a coordinator that is off, with an empty decision history.
fn coordinator(
    with: &SharedContext,
    settings: &Settings,
    agreed: &AgreedSettings,
    allocating: &Allocating,
) -> Coordinator {
    let config = CoordinatorConfig {
        shards: settings.number_of_shards,
        reading: settings.waiting_for_state_timeout,
        writing: settings.updating_state_timeout,
        repeat: pauses(settings),
        min_regions: settings.min_nr_of_members,
        preallocate: settings.preallocate,
        one_by_one: allocating.is_asked_one_by_one(),
        remembered: settings.remembered_decisions,
        word_bytes_max: with.cut.words,
        ..CoordinatorConfig::default()
    };
    Coordinator::new(with.me, config, ShardingFaultInjection::none()).agreeing(agreed.clone())
}

const fn pauses(settings: &Settings) -> Pauses {
    Pauses { first: settings.move_retry_min, longest: settings.move_retry_max }
}
