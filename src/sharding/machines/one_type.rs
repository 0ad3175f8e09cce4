//! The machines of one entity type on one node: who hears whom among them.
//!
//! The singleton says where the coordinator is to run, its proxy where it does run, the region
//! registers there, and the strategy is asked by the coordinator that runs here, if one does. What
//! one of them says to another on this node goes through a queue, in order: what follows from a word
//! comes behind what was said before it. Only a coordinator that begins here is told at once, by a
//! queue of its own, what it begins with.

mod choosing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::Epoch;

use super::allocating::Allocating;
use super::port::{Hosts, Output, Word};
use super::standing;
use super::survey::{Counting, SurveyMessage};
use crate::cluster::bug::Canary as ClusterCanary;
use crate::cluster::events::ClusterState;
use crate::cluster::member::Member;
use crate::cluster::singleton::{
    Proxy, ProxyInput, ProxyOutput, Running, Singleton, SingletonInput, SingletonMessage,
    SingletonOutput,
};
use crate::sharding::agreed::Agreed;
use crate::sharding::allocation::pins::AskPins;
use crate::sharding::bug::Canary;
use crate::sharding::config::Sharding as Settings;
use crate::sharding::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorInput, CoordinatorOutput, Phase,
};
use crate::sharding::explain::{self, Topic, Witness};
use crate::sharding::ids::{EntityType, RegionId};
use crate::sharding::installed::Installed;
use crate::sharding::region::{Cut, Region, RegionConfig, RegionInput, RegionOutput};
use crate::sharding::remembered::{Slow, Step};
use crate::sharding::repeat::Pauses;
use crate::sharding::store::{Answer, HomesKey};
use crate::sharding::wire::{NotYet, ShardingMessage, ToRegion};

/// Between two requests of a singleton, and before a coordinator that was refused is replaced.
const RETRY: Duration = Duration::from_secs(1);

/// Between two complaints about settings that differ.
const COMPLAIN: Duration = Duration::from_secs(60);

/// What all types of a node share.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) me: ReplicaId,
    pub(super) cut: Cut,
    pub(super) state: Arc<ClusterState>,
    /// The configuration by which others count as over.
    pub(super) epoch: Option<Arc<Epoch>>,
    pub(super) leased: bool,
    /// A configuration was forced, and those who were given up may not be over yet: nobody
    /// coordinates.
    pub(super) forced: bool,
    /// Nothing runs here ever again.
    pub(super) out: bool,
    pub(super) last_id: u64,   // of questions to the Replicator
    pub(super) announce: bool, // what is hosted here, to membership, after this input
}

/// A word of one machine to another.
#[derive(Debug)]
enum Local {
    Region(RegionInput),
    Coordinator(CoordinatorInput),
    Singleton(SingletonInput),
    Proxy(ProxyInput),
}

/// See the module's page.
#[derive(Clone, Debug)]
pub struct TypeMachines {
    entity_type: EntityType,
    singleton: Singleton,
    started: Option<Box<Started>>,
}

/// What the program says of a type, beside its settings.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) extractor: Arc<str>,
    /// The name of a strategy of its own.
    pub(super) strategy: Option<Arc<str>>,
    pub(super) hosts: Hosts,
}

/// What there is once the program has started the type here.
#[derive(Clone, Debug)]
struct Started {
    settings: Settings,
    agreed: Agreed,
    hosts: Hosts,
    /// A coordinator, or the cluster's data, say otherwise of the type: this node is no candidate
    /// for its place.
    withdrawn: bool,
    /// What the cluster's data say, if they say otherwise: nothing that others do mends that.
    bound: Option<Agreed>,
    complained: Option<Instant>,
    key: HomesKey,
    proxy: Proxy,
    region: Region,
    coordinator: Coordinator,
    coordinator_at: Option<ReplicaId>, // as the region was told
    above: u64,                        // the highest term used or heard of
    asked: Option<(u64, u64)>,         // the question under way: here, and at the coordinator
    again_at: Option<Instant>,         // a coordinator that was refused is replaced
    allocating: Allocating,
    asked_pins: Option<(u64, AskPins)>,
    watching: Option<u64>,
}

impl TypeMachines {
    pub(super) fn new(me: ReplicaId, entity_type: EntityType) -> Self {
        let singleton = Singleton::new(me, RETRY, ClusterCanary::none());
        Self { entity_type, singleton, started: None }
    }

    /// Whether the coordinator is to run here.
    #[must_use]
    pub const fn singleton(&self) -> &Singleton {
        &self.singleton
    }

    /// The region, once the type is started here.
    #[must_use]
    pub fn region(&self) -> Option<&Region> {
        self.started.as_ref().map(|started| &started.region)
    }

    /// The coordinator, once the type is started here; most of them are off.
    #[must_use]
    pub fn coordinator(&self) -> Option<&Coordinator> {
        self.started.as_ref().map(|started| &started.coordinator)
    }

    /// Where the coordinator runs, as far as is known here.
    #[must_use]
    pub fn coordinator_at(&self) -> Option<ReplicaId> {
        self.started.as_ref().and_then(|started| started.proxy.target())
    }

    /// What the type does here; `None`: the program has not started it.
    #[must_use]
    pub fn hosts(&self) -> Option<Hosts> {
        self.started.as_ref().map(|started| started.hosts)
    }

    /// How often all that a strategy of the program's own is shown was put together anew, which costs
    /// as much as there is.
    #[must_use]
    pub fn drawn(&self) -> u64 {
        self.started.as_ref().map_or(0, |started| started.allocating.drawn())
    }

    /// Whether the strategy here is the one that follows pins.
    #[must_use]
    pub fn follows_pins(&self) -> bool {
        let started = self.started.as_ref();
        started.is_some_and(|started| started.allocating.watches().is_some())
    }

    /// Whether membership is to know of it: it hosts, and nobody has refused what it says.
    pub(super) fn offers_shards(&self) -> bool {
        let started = self.started.as_ref();
        started.is_some_and(|started| started.hosts == Hosts::Shards && !started.withdrawn)
    }

    /// The program starts the type.
    pub(super) fn start(
        &mut self,
        now: Now,
        settings: Settings,
        Spec { extractor, strategy, hosts }: Spec,
        with: &mut Surroundings,
        out: &mut Outbox<Output>,
    ) {
        if self.started.is_some() {
            return;
        }
        let agreed = Agreed::new(&settings, &extractor);
        let allocating = Allocating::new(&settings, strategy);
        let started = Started::new(&self.entity_type, (settings, agreed), hosts, allocating, with);
        self.started = Some(Box::new(started));
        self.watch(with, out);
        if with.out {
            return self.feed(now, Local::Region(RegionInput::Over), with, out);
        }
        self.installed(now, with, out);
        self.members(now, with, out);
    }

    /// Membership, or the configuration, has changed.
    pub(super) fn members(&mut self, now: Now, with: &mut Surroundings, out: &mut Outbox<Output>) {
        let Some(epoch) = with.epoch.as_deref() else { return };
        let settings = self.started.as_ref().map(|started| &started.settings);
        let peers = standing::peers(&with.state, epoch, &self.entity_type, settings);
        if with.state.preparing_for_shutdown {
            self.feed(now, Local::Singleton(SingletonInput::Prepare), with, out);
            self.feed(now, Local::Coordinator(CoordinatorInput::Prepare), with, out);
        }
        self.feed(now, Local::Singleton(SingletonInput::Members(peers.clone())), with, out);
        self.feed(now, Local::Proxy(ProxyInput::Members(peers)), with, out);
        self.tell_of_heirs(now, with, out);
        if let Some(started) = &mut self.started {
            started.allocating.upset(now.mono);
            let offers = |member: &Member| standing::offers(member, &self.entity_type);
            let mut of_others = with.state.members.iter().filter(|(id, _)| **id != with.me);
            // Nobody is left who could say otherwise: without a candidate nobody would decide.
            let may_return = started.withdrawn && started.bound.is_none();
            if may_return && !of_others.any(|(_, member)| offers(member)) {
                started.region.forget_refusal();
                (started.withdrawn, with.announce) = (false, true);
            }
        }
        self.allocate(now, with, out);
    }

    fn tell_of_heirs(&mut self, now: Now, with: &mut Surroundings, out: &mut Outbox<Output>) {
        let (Some(started), Some(epoch)) = (self.started.as_deref(), with.epoch.as_deref()) else {
            return;
        };
        let settings = &started.settings;
        let any = standing::has_heirs(with.me, &with.state, epoch, &self.entity_type, settings);
        if any != started.region.has_heirs() {
            self.feed(now, Local::Region(RegionInput::Heirs { any }), with, out);
        }
    }

    /// A configuration is installed, and those who are out of it are over.
    pub(super) fn installed(
        &mut self,
        now: Now,
        with: &mut Surroundings,
        out: &mut Outbox<Output>,
    ) {
        let Some(installed) = with.epoch.as_deref().map(Installed::from) else { return };
        let told = CoordinatorInput::Installed(installed.clone());
        self.feed(now, Local::Coordinator(told), with, out);
        self.feed(now, Local::Region(RegionInput::Installed(installed)), with, out);
    }

    /// A configuration was forced: whatever is decided by what was before may be decided twice. The
    /// next coordinator begins when those who were given up are over, and counts what survives.
    pub(super) fn forced(&mut self, now: Now, with: &mut Surroundings, out: &mut Outbox<Output>) {
        self.feed(now, Local::Coordinator(CoordinatorInput::Stop), with, out);
        if let Some(started) = &mut self.started {
            (started.asked, started.again_at) = (None, Some(now.mono + RETRY));
        }
    }

    pub(super) fn leased(&mut self, now: Now, with: &mut Surroundings, out: &mut Outbox<Output>) {
        let held = with.leased;
        let input = if held { SingletonInput::LeaseHeld } else { SingletonInput::LeaseOver };
        self.feed(now, Local::Singleton(input), with, out);
    }

    /// Nothing runs here ever again. A region that has handed over everything starts nothing any
    /// more either way, and goes on sending back what comes to it until its node ends: there may be
    /// senders that have not heard of the moves (spec/safety.md §5, "everything else → bounce").
    pub(super) fn over(&mut self, now: Now, with: &mut Surroundings, out: &mut Outbox<Output>) {
        self.leased(now, with, out);
        let how = if self.has_left() { RegionInput::Forsaken } else { RegionInput::Over };
        self.feed(now, Local::Region(how), with, out);
    }

    pub(super) fn fact(
        &mut self,
        now: Now,
        fact: RegionInput,
        with: &mut Surroundings,
        out: &mut Outbox<Output>,
    ) {
        self.feed(now, Local::Region(fact), with, out);
    }

    /// A peer's machine says.
    pub(super) fn message(
        &mut self,
        now: Now,
        from: ReplicaId,
        word: Word,
        with: &mut Surroundings,
        out: &mut Outbox<Output>,
    ) {
        let local = match word {
            Word::Sharding(ShardingMessage::Region(ToRegion::NotYet(NotYet::Elsewhere))) => {
                self.feed(now, Local::Proxy(ProxyInput::Denied { from }), with, out);
                heard(from, ShardingMessage::Region(ToRegion::NotYet(NotYet::Elsewhere)))
            }
            Word::Sharding(message) => heard(from, message),
            Word::Singleton(message @ (SingletonMessage::Here | SingletonMessage::Gone)) => {
                Local::Proxy(ProxyInput::Message { from, message })
            }
            Word::Singleton(message) => Local::Singleton(SingletonInput::Message { from, message }),
            Word::Survey(question) => {
                if let Some(answer) = self.asked(with.me, from, question, out) {
                    self.send(from, Word::Survey(answer), out);
                }
                return;
            }
        };
        self.feed(now, local, with, out);
    }

    /// Somebody wants to know something; `None`: what runs entities is to answer, or nobody.
    pub(super) fn asked(
        &self,
        me: ReplicaId,
        from: ReplicaId,
        question: SurveyMessage,
        out: &mut Outbox<Output>,
    ) -> Option<SurveyMessage> {
        let (to, entity_type, region) = (from, self.entity_type.clone(), self.region()?);
        match question {
            SurveyMessage::Ask { number } => {
                let shards = region.hosted().map(|(shard, _)| shard).collect();
                let messages = Counting::in_messages(shards, region.words_bytes_max());
                out.push(Output::Count { to, entity_type, number, messages });
                None
            }
            SurveyMessage::Exists { number, entity } => {
                out.push(Output::Exists { to, entity_type, number, entity });
                None
            }
            SurveyMessage::Why { number, topic } => {
                let accounts = self.recall(me, topic);
                Some(SurveyMessage::Because { number, accounts })
            }
            SurveyMessage::Told { .. }
            | SurveyMessage::Because { .. }
            | SurveyMessage::Lives { .. } => None, // answers, of no type in particular
        }
    }

    /// What this node remembers of decisions, the newest of its coordinator and of its region.
    fn recall(&self, me: ReplicaId, topic: Topic) -> Vec<explain::Account> {
        let Some(Started { coordinator, region, .. }) = self.started.as_deref() else {
            return Vec::new();
        };
        let mut all = explain::accounts(me, Witness::Coordinator, coordinator.remembered(), topic);
        all.extend(explain::accounts(me, Witness::Region, region.remembered(), topic));
        all
    }

    /// Whether this is its question to the Replicator.
    pub(super) fn awaits(&self, id: u64) -> bool {
        let asked = self.started.as_ref().and_then(|started| started.asked);
        asked.is_some_and(|(asked, _)| asked == id)
    }

    /// What became of a question to the Replicator.
    pub(super) fn answered(
        &mut self,
        now: Now,
        id: u64,
        answer: impl FnOnce(&HomesKey) -> Answer,
        with: &mut Surroundings,
        out: &mut Outbox<Output>,
    ) {
        let Some(started) = &mut self.started else { return };
        let Some((_, own)) = started.asked.take_if(|(asked, _)| *asked == id) else { return };
        let answer = answer(&started.key);
        let input = CoordinatorInput::Answered { id: own, answer };
        self.feed(now, Local::Coordinator(input), with, out);
    }

    pub(super) fn tick(&mut self, now: Now, with: &mut Surroundings, out: &mut Outbox<Output>) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now.mono);
        if is_due(self.singleton.next_deadline()) {
            self.feed(now, Local::Singleton(SingletonInput::Tick), with, out);
        }
        let Some(started) = &mut self.started else { return };
        let proxy = is_due(started.proxy.next_deadline());
        let again = started.again_at.take_if(|at| *at <= now.mono).is_some();
        let may_begin = again && started.bound.is_none();
        if may_begin && self.singleton.running() == Running::Yes {
            self.coordinate(now, with, out);
        }
        if proxy {
            self.feed(now, Local::Proxy(ProxyInput::Tick), with, out);
        }
        let Some(started) = &mut self.started else { return };
        if is_due(started.allocating.next_deadline()) {
            let Started { coordinator, allocating, .. } = started.as_mut();
            let mut next = allocating.work(now.mono, coordinator, &with.state);
            next.extend(allocating.look(now.mono, coordinator, &with.state));
            self.carry_out(now, next, with, out);
        }
        // Last, since what was said to them makes them want a tick: their words leave together.
        if is_due(self.coordinator().and_then(Machine::next_deadline)) {
            self.feed(now, Local::Coordinator(CoordinatorInput::Tick), with, out);
        }
        if is_due(self.region().and_then(Machine::next_deadline)) {
            self.feed(now, Local::Region(RegionInput::Tick), with, out);
        }
    }

    /// The coordinator, if it acts here, looks at the balance at its next tick, which is due now.
    pub(super) fn rebalance(&mut self, now: Now) {
        if let Some(started) = &mut self.started {
            started.allocating.look_now(now.mono);
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
            started.again_at,
        ];
        machines.into_iter().flatten().min()
    }

    // ── Who hears whom ──

    /// Tells one of the machines, and what follows from it.
    fn feed(&mut self, now: Now, first: Local, with: &mut Surroundings, out: &mut Outbox<Output>) {
        let mut queue = VecDeque::from([first]);
        while let Some(local) = queue.pop_front() {
            match local {
                Local::Singleton(input) => self.sing(now, input, with, &mut queue, out),
                Local::Proxy(input) => self.seek(now, input, with, &mut queue, out),
                Local::Region(input) => self.host(now, input, with, &mut queue, out),
                Local::Coordinator(input) => self.decide(now, input, with, &mut queue, out),
            }
        }
    }

    fn send(&self, to: ReplicaId, word: Word, out: &mut Outbox<Output>) {
        out.push(Output::Send { to, entity_type: self.entity_type.clone(), word });
    }

    fn sing(
        &mut self,
        now: Now,
        input: SingletonInput,
        with: &mut Surroundings,
        queue: &mut VecDeque<Local>,
        out: &mut Outbox<Output>,
    ) {
        let mut orders = Outbox::new();
        self.singleton.handle(now, input, &mut orders);
        let me = with.me;
        let own = |message| Local::Proxy(ProxyInput::Message { from: me, message });
        for order in orders.drain() {
            match order {
                SingletonOutput::Send { to, message } => {
                    self.send(to, Word::Singleton(message), out);
                }
                SingletonOutput::Start if self.started.is_some() => {
                    queue.push_back(own(SingletonMessage::Here));
                    self.coordinate(now, with, out);
                }
                // Only who hosts the type is a candidate; another's word may say otherwise.
                SingletonOutput::Start => {
                    queue.push_back(Local::Singleton(SingletonInput::Stopped));
                }
                SingletonOutput::Stop => {
                    queue.push_back(own(SingletonMessage::Gone));
                    queue.push_back(Local::Coordinator(CoordinatorInput::Stop));
                    queue.push_back(Local::Singleton(SingletonInput::Stopped));
                }
            }
        }
    }

    /// A coordinator begins here, above every term that is known.
    fn coordinate(&mut self, now: Now, with: &mut Surroundings, out: &mut Outbox<Output>) {
        let Some(started) = &mut self.started else { return };
        if with.forced {
            started.again_at = Some(now.mono + RETRY);
            return;
        }
        started.above = started.above.max(started.coordinator.term().number);
        if started.coordinator.phase() == Phase::Down {
            let ring = started.coordinator.remembered().clone();
            started.coordinator =
                coordinator(with, &started.settings, &started.agreed, &started.allocating)
                    .remembering(ring);
            started.asked = None;
        }
        let above = started.above;
        if let Some(installed) = with.epoch.as_deref().map(Installed::from) {
            let told = CoordinatorInput::Installed(installed);
            self.feed(now, Local::Coordinator(told), with, out);
        }
        if with.state.preparing_for_shutdown {
            self.feed(now, Local::Coordinator(CoordinatorInput::Prepare), with, out);
        }
        self.feed(now, Local::Coordinator(CoordinatorInput::Start { above }), with, out);
    }

    fn seek(
        &mut self,
        now: Now,
        input: ProxyInput,
        with: &Surroundings,
        queue: &mut VecDeque<Local>,
        out: &mut Outbox<Output>,
    ) {
        let Some(started) = &mut self.started else { return };
        let mut orders = Outbox::new();
        started.proxy.handle(now, input, &mut orders);
        let at = started.proxy.target();
        if started.coordinator_at != at {
            started.coordinator_at = at;
            queue.push_back(Local::Region(RegionInput::CoordinatorAt(at)));
        }
        for order in orders.drain() {
            match order {
                ProxyOutput::Identify { to } if to == with.me => {
                    if self.singleton.running() == Running::Yes {
                        let message = SingletonMessage::Here;
                        queue.push_back(Local::Proxy(ProxyInput::Message { from: to, message }));
                    }
                }
                ProxyOutput::Identify { to } => {
                    self.send(to, Word::Singleton(SingletonMessage::Identify), out);
                }
                // Nothing is sent through this proxy: it only finds.
                ProxyOutput::Deliver { .. } | ProxyOutput::Dropped { .. } => {}
            }
        }
    }

    fn host(
        &mut self,
        now: Now,
        input: RegionInput,
        with: &mut Surroundings,
        queue: &mut VecDeque<Local>,
        out: &mut Outbox<Output>,
    ) {
        let Some(started) = &mut self.started else { return };
        let mut orders = Outbox::new();
        started.region.handle(now, input, &mut orders);
        started.compare(now.mono, &self.entity_type, with, out);
        for order in orders.drain() {
            match order {
                RegionOutput::Send { to, message } if to == with.me => {
                    queue.push_back(heard(to, message));
                }
                RegionOutput::Send { to, message } => self.send(to, Word::Sharding(message), out),
                RegionOutput::Registered => out.push(Output::Registered(self.entity_type.clone())),
                RegionOutput::Left => {} // asked for by `has_left`
                RegionOutput::Stopped => out.push(Output::Stopped(self.entity_type.clone())),
                RegionOutput::Step(step) => self.step(step, out),
                RegionOutput::Slow(slow) => self.slow(slow, out),
                RegionOutput::Unregistered(complaint) => {
                    let entity_type = self.entity_type.clone();
                    out.push(Output::Unregistered { entity_type, complaint });
                }
                order => {
                    let entity_type = self.entity_type.clone();
                    out.push(Output::Order { entity_type, order });
                }
            }
        }
    }

    fn decide(
        &mut self,
        now: Now,
        input: CoordinatorInput,
        with: &mut Surroundings,
        queue: &mut VecDeque<Local>,
        out: &mut Outbox<Output>,
    ) {
        let Some(started) = &mut self.started else { return };
        if !matches!(input, CoordinatorInput::Tick | CoordinatorInput::Move { .. }) {
            started.allocating.upset(now.mono);
        }
        let mut orders = Outbox::new();
        started.coordinator.handle(now, input, &mut orders);
        if started.coordinator.phase() != Phase::Active {
            let _ = started.allocating.acts(now.mono, false); // nothing is to be asked then
        }
        for order in orders.drain() {
            self.decided(now, order, with, queue, out);
        }
    }

    fn decided(
        &mut self,
        now: Now,
        order: CoordinatorOutput,
        with: &mut Surroundings,
        queue: &mut VecDeque<Local>,
        out: &mut Outbox<Output>,
    ) {
        let entity_type = self.entity_type.clone();
        let Some(started) = &mut self.started else { return };
        match order {
            CoordinatorOutput::Send { to, message } if to == with.me => {
                queue.push_back(heard(to, message));
            }
            CoordinatorOutput::Send { to, message } => self.send(to, Word::Sharding(message), out),
            CoordinatorOutput::Ask { id: own, ask } => {
                with.last_id += 1;
                let (id, level) = (with.last_id, started.settings.write_majority_plus);
                started.asked = Some((id, own));
                out.push(Output::Ask { id, entity_type, level, ask });
            }
            CoordinatorOutput::Allocate { question, shards } => {
                started.allocating.ask(question, shards);
                let Started { coordinator, allocating, .. } = started.as_mut();
                for next in allocating.work(now.mono, coordinator, &with.state) {
                    self.follow(next, with, queue, out);
                }
            }
            CoordinatorOutput::Differs(there) => {
                started.bound = Some(there);
                started.compare(now.mono, &entity_type, with, out);
            }
            CoordinatorOutput::Step(step) => self.step(step, out),
            CoordinatorOutput::Slow(slow) => self.slow(slow, out),
            CoordinatorOutput::Acting(term) => {
                started.above = started.above.max(term.number);
                out.push(Output::Acting { entity_type, term });
                if let Some(next) = started.allocating.acts(now.mono, true) {
                    self.follow(next, with, queue, out);
                }
            }
            CoordinatorOutput::SteppedDown { highest, why } => {
                started.above = started.above.max(highest.number);
                // The singleton still stands here: the next coordinator takes a higher term.
                if self.singleton.running() == Running::Yes {
                    started.again_at = Some(now.mono + RETRY);
                }
                out.push(Output::SteppedDown { entity_type, why });
            }
        }
    }

    fn step(&self, step: Box<Step>, out: &mut Outbox<Output>) {
        out.push(Output::Step { entity_type: self.entity_type.clone(), step });
    }

    fn slow(&self, slow: Slow, out: &mut Outbox<Output>) {
        out.push(Output::Slow { entity_type: self.entity_type.clone(), slow });
    }

    /// Whether everything is handed over, after [`RegionInput::Leave`].
    pub(super) fn has_left(&self) -> bool {
        self.started.as_ref().is_none_or(|started| started.region.has_left())
    }
}

impl Started {
    fn new(
        entity_type: &EntityType,
        (settings, agreed): (Settings, Agreed),
        hosts: Hosts,
        allocating: Allocating,
        with: &Surroundings,
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
            bound: None,
            complained: None,
            key: HomesKey::new(entity_type, settings.write_majority_plus),
            proxy: Proxy::new(0, RETRY),
            region: Region::new(RegionId::new(me), config, Canary::none()).agreeing(agreed.clone()),
            coordinator: coordinator(with, &settings, &agreed, &allocating),
            coordinator_at: None,
            above: 0,
            asked: None,
            again_at: None,
            allocating,
            asked_pins: None,
            watching: None,
            settings,
            agreed,
        }
    }

    /// What follows from a coordinator's word that it says otherwise of the type.
    fn compare(
        &mut self,
        now: Instant,
        entity_type: &EntityType,
        with: &mut Surroundings,
        out: &mut Outbox<Output>,
    ) {
        let by_data = self.bound.as_ref().map(|there| (None, there));
        let refused = self.region.refused().map(|(coordinator, there)| (Some(*coordinator), there));
        let refused = by_data.or(refused);
        if self.withdrawn != refused.is_some() {
            (self.withdrawn, with.announce) = (refused.is_some(), true);
        }
        let Some((coordinator, there)) = refused else { return };
        if self.complained.is_some_and(|at| now - at < COMPLAIN) {
            return;
        }
        self.complained = Some(now);
        let (entity_type, here) = (entity_type.clone(), self.agreed.clone());
        let there = there.clone();
        out.push(Output::Differs { entity_type, here, coordinator, there });
    }
}

fn coordinator(
    with: &Surroundings,
    settings: &Settings,
    agreed: &Agreed,
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
    Coordinator::new(with.me, config, Canary::none()).agreeing(agreed.clone())
}

const fn pauses(settings: &Settings) -> Pauses {
    Pauses { first: settings.move_retry_min, longest: settings.move_retry_max }
}

/// Whose input a message is.
fn heard(from: ReplicaId, message: ShardingMessage) -> Local {
    match message {
        ShardingMessage::Coordinator(message) => {
            Local::Coordinator(CoordinatorInput::Message { from, message })
        }
        ShardingMessage::Region(message) => Local::Region(RegionInput::Message { from, message }),
    }
}
