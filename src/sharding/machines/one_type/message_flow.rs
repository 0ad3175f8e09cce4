//! Flow of messages between the machines of one type: an output of a machine becomes an input of
//! another one, or an output of all of them.
//!
//! These inputs go through one queue, so that the consequences of a message come after everything
//! that was sent before. Only a starting coordinator gets its first inputs at once, through a queue
//! of its own. Most messages of coordinator and region are sent at their next tick, which is due at
//! once after any other input.

use std::collections::VecDeque;

use ostraca_ddata::clock::Now;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};

use super::{RETRY, SharedContext, StartedType, TypeMachines, coordinator};
use crate::cluster::singleton::{
    ProxyInput, ProxyOutput, SingletonInput, SingletonMessage, SingletonOutput, SingletonState,
};
use crate::sharding::coordinator::{CoordinatorInput, CoordinatorOutput, CoordinatorPhase};
use crate::sharding::decision_history::{DecisionStep, SlowDecisions};
use crate::sharding::installed::Installed;
use crate::sharding::machines::port::{MachineMessage, ShardingOutput};
use crate::sharding::region::{RegionInput, RegionOutput};
use crate::sharding::wire::ShardingMessage;

/// Input of one machine that another one on this node caused.
#[derive(Debug)]
pub(super) enum LocalInput {
    Region(RegionInput),
    Coordinator(CoordinatorInput),
    Singleton(SingletonInput),
    Proxy(ProxyInput),
}

impl TypeMachines {
    /// Passes an input to a machine, then all inputs that follow from it, in the order in which
    /// they arise. An input for a machine that does not exist yet, because the type is not started
    /// here, is dropped; only the singleton always exists.
    pub(super) fn feed(
        &mut self,
        now: Now,
        first: LocalInput,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let mut queue = VecDeque::from([first]);
        while let Some(local) = queue.pop_front() {
            match local {
                LocalInput::Singleton(input) => {
                    self.tell_singleton(now, input, with, &mut queue, out);
                }
                LocalInput::Proxy(input) => self.tell_proxy(now, input, with, &mut queue, out),
                LocalInput::Region(input) => self.tell_region(now, input, with, &mut queue, out),
                LocalInput::Coordinator(input) => {
                    self.tell_coordinator(now, input, with, &mut queue, out);
                }
            }
        }
    }

    pub(super) fn send(
        &self,
        to: ReplicaId,
        word: MachineMessage,
        out: &mut Outbox<ShardingOutput>,
    ) {
        out.push(ShardingOutput::Send { to, entity_type: self.entity_type.clone(), word });
    }

    /// Passes an input to the singleton, and acts on its orders. `Start` begins a coordinator at
    /// once, whether the stored settings agree or not, or is answered with `Stopped` if the type is
    /// not started here. `Stop` queues the coordinator's stop and then reports it as stopped,
    /// without waiting for anything; an open request to the Replicator goes on. The local proxy
    /// hears of both, through the queue.
    fn tell_singleton(
        &mut self,
        now: Now,
        input: SingletonInput,
        with: &mut SharedContext,
        queue: &mut VecDeque<LocalInput>,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let mut orders = Outbox::new();
        self.singleton.handle(now, input, &mut orders);
        let me = with.me;
        let own = |message| LocalInput::Proxy(ProxyInput::Message { from: me, message });
        for order in orders.drain() {
            match order {
                SingletonOutput::Send { to, message } => {
                    self.send(to, MachineMessage::Singleton(message), out);
                }
                SingletonOutput::Start if self.started.is_some() => {
                    queue.push_back(own(SingletonMessage::Here));
                    self.coordinate(now, with, out);
                }
                // Only a host of the type is a candidate, but a peer may claim otherwise.
                SingletonOutput::Start => {
                    queue.push_back(LocalInput::Singleton(SingletonInput::Stopped));
                }
                SingletonOutput::Stop => {
                    queue.push_back(own(SingletonMessage::Gone));
                    queue.push_back(LocalInput::Coordinator(CoordinatorInput::Stop));
                    queue.push_back(LocalInput::Singleton(SingletonInput::Stopped));
                }
            }
        }
    }

    /// Starts a coordinator here, with a term above every known one, after telling it the
    /// configuration in effect and a preparation for shutdown. One that has stepped down is
    /// replaced by a new one, which keeps only its decision history; the answer to its request is
    /// no longer awaited. One that runs already ignores the start. While a forced configuration is
    /// not in effect, this only schedules another attempt after [`RETRY`]. Does nothing if the type
    /// is not started here. The caller has checked that the singleton runs here.
    pub(super) fn coordinate(
        &mut self,
        now: Now,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let Some(started) = &mut self.started else { return };
        if with.forced {
            started.restart_at = Some(now.mono + RETRY);
            return;
        }
        started.above = started.above.max(started.coordinator.term().number);
        if started.coordinator.phase() == CoordinatorPhase::Down {
            let decision_history = started.coordinator.remembered().clone();
            started.coordinator =
                coordinator(with, &started.settings, &started.agreed, &started.allocating)
                    .remembering(decision_history);
            started.asked = None;
        }
        let above = started.above;
        if let Some(installed) = with.epoch.as_deref().map(Installed::from) {
            let told = CoordinatorInput::Installed(installed);
            self.feed(now, LocalInput::Coordinator(told), with, out);
        }
        if with.state.preparing_for_shutdown {
            self.feed(now, LocalInput::Coordinator(CoordinatorInput::Prepare), with, out);
        }
        self.feed(now, LocalInput::Coordinator(CoordinatorInput::Start { above }), with, out);
    }

    /// Passes an input to the proxy, and queues the place of the coordinator for the region when
    /// the proxy has found another one or lost it. A question of the proxy to this node is answered
    /// here, if the singleton runs here, even before a coordinator is active; otherwise it stays
    /// unanswered, and the proxy repeats it.
    fn tell_proxy(
        &mut self,
        now: Now,
        input: ProxyInput,
        with: &SharedContext,
        queue: &mut VecDeque<LocalInput>,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let Some(started) = &mut self.started else { return };
        let mut orders = Outbox::new();
        started.proxy.handle(now, input, &mut orders);
        let at = started.proxy.target();
        if started.coordinator_at != at {
            started.coordinator_at = at;
            queue.push_back(LocalInput::Region(RegionInput::CoordinatorAt(at)));
        }
        for order in orders.drain() {
            match order {
                ProxyOutput::Identify { to } if to == with.me => {
                    if self.singleton.running() == SingletonState::Yes {
                        let message = SingletonMessage::Here;
                        queue.push_back(LocalInput::Proxy(ProxyInput::Message {
                            from: to,
                            message,
                        }));
                    }
                }
                ProxyOutput::Identify { to } => {
                    self.send(to, MachineMessage::Singleton(SingletonMessage::Identify), out);
                }
                // Messages do not go through this proxy: it only locates the coordinator.
                ProxyOutput::Deliver { .. } | ProxyOutput::Dropped { .. } => {}
            }
        }
    }

    /// Passes an input to the region, then compares the settings of the type, because the input may
    /// be a refusal; a report of that comes before the region's outputs. Messages to this node are
    /// queued for the machine that they are for. The region's `Left` is ignored, because
    /// [`has_left`](Self::has_left) is polled. Reports for the node become outputs of their own,
    /// and all other orders, for the executor of the entities, [`ShardingOutput::Order`].
    fn tell_region(
        &mut self,
        now: Now,
        input: RegionInput,
        with: &mut SharedContext,
        queue: &mut VecDeque<LocalInput>,
        out: &mut Outbox<ShardingOutput>,
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
                RegionOutput::Send { to, message } => {
                    self.send(to, MachineMessage::Sharding(message), out);
                }
                RegionOutput::Registered => {
                    out.push(ShardingOutput::Registered(self.entity_type.clone()));
                }
                RegionOutput::Left => {} // polled with `has_left`
                RegionOutput::Stopped => {
                    out.push(ShardingOutput::Stopped(self.entity_type.clone()));
                }
                RegionOutput::Step(step) => self.step(step, out),
                RegionOutput::Slow(slow) => self.slow(slow, out),
                RegionOutput::Unregistered(complaint) => {
                    let entity_type = self.entity_type.clone();
                    out.push(ShardingOutput::Unregistered { entity_type, complaint });
                }
                order => {
                    let entity_type = self.entity_type.clone();
                    out.push(ShardingOutput::Order { entity_type, order });
                }
            }
        }
    }

    /// Passes an input to the coordinator, and carries out its orders. Every input but `Tick` and
    /// `Move` schedules a rebalance. If the coordinator is not active afterwards, whether it was
    /// before or not, the strategy is reset before the orders are carried out: it drops its open
    /// question and no rebalance is due. An open request about pins is forgotten.
    fn tell_coordinator(
        &mut self,
        now: Now,
        input: CoordinatorInput,
        with: &mut SharedContext,
        queue: &mut VecDeque<LocalInput>,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let Some(started) = &mut self.started else { return };
        if !matches!(input, CoordinatorInput::Tick | CoordinatorInput::Move { .. }) {
            started.allocating.rebalance_soon(now.mono);
        }
        let mut orders = Outbox::new();
        started.coordinator.handle(now, input, &mut orders);
        if started.coordinator.phase() != CoordinatorPhase::Active {
            let _ = started.allocating.set_active(now.mono, false); // an inactive strategy asks nothing
            started.asked_pins = None; // nor does the answer to its last request make it ask again
        }
        for order in orders.drain() {
            self.decided(now, order, with, queue, out);
        }
    }

    /// Carries out one order of the coordinator. A request to the Replicator replaces the open one,
    /// whose answer is then ignored. A new question to the strategy is put at once, and an answer
    /// that it gives at once is queued. Stored settings that differ withdraw this node as a
    /// candidate for good. `Acting` is output before the strategy becomes active and reads the
    /// pins.
    ///
    /// After `SteppedDown` another coordinator starts here in [`RETRY`], but only if the singleton
    /// runs here both now and at that time. The singleton is not told, so it continues to run.
    fn decided(
        &mut self,
        now: Now,
        order: CoordinatorOutput,
        with: &mut SharedContext,
        queue: &mut VecDeque<LocalInput>,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let entity_type = self.entity_type.clone();
        let Some(started) = &mut self.started else { return };
        match order {
            CoordinatorOutput::Send { to, message } if to == with.me => {
                queue.push_back(heard(to, message));
            }
            CoordinatorOutput::Send { to, message } => {
                self.send(to, MachineMessage::Sharding(message), out);
            }
            CoordinatorOutput::Ask { id: own, ask } => {
                with.last_id += 1;
                let (id, level) = (with.last_id, started.settings.write_majority_plus);
                started.asked = Some((id, own));
                out.push(ShardingOutput::Ask { id, entity_type, level, ask });
            }
            CoordinatorOutput::Allocate { question, shards } => {
                started.allocating.ask(question, shards);
                let StartedType { coordinator, allocating, .. } = started.as_mut();
                for next in allocating.work(now.mono, coordinator, &with.state) {
                    self.follow(next, with, queue, out);
                }
            }
            CoordinatorOutput::Differs(there) => {
                started.stored_settings = Some(there);
                started.compare(now.mono, &entity_type, with, out);
            }
            CoordinatorOutput::Step(step) => self.step(step, out),
            CoordinatorOutput::Slow(slow) => self.slow(slow, out),
            CoordinatorOutput::Acting(term) => {
                started.above = started.above.max(term.number);
                out.push(ShardingOutput::Acting { entity_type, term });
                if let Some(next) = started.allocating.set_active(now.mono, true) {
                    self.follow(next, with, queue, out);
                }
            }
            CoordinatorOutput::SteppedDown { highest, why } => {
                started.above = started.above.max(highest.number);
                // The singleton still runs here: the next coordinator takes a higher term.
                if self.singleton.running() == SingletonState::Yes {
                    started.restart_at = Some(now.mono + RETRY);
                }
                out.push(ShardingOutput::SteppedDown { entity_type, why });
            }
        }
    }

    fn step(&self, step: Box<DecisionStep>, out: &mut Outbox<ShardingOutput>) {
        out.push(ShardingOutput::Step { entity_type: self.entity_type.clone(), step });
    }

    fn slow(&self, slow: SlowDecisions, out: &mut Outbox<ShardingOutput>) {
        out.push(ShardingOutput::Slow { entity_type: self.entity_type.clone(), slow });
    }
}

/// The input for the machine that a message is for: coordinator or region.
pub(super) fn heard(from: ReplicaId, message: ShardingMessage) -> LocalInput {
    match message {
        ShardingMessage::Coordinator(message) => {
            LocalInput::Coordinator(CoordinatorInput::Message { from, message })
        }
        ShardingMessage::Region(message) => {
            LocalInput::Region(RegionInput::Message { from, message })
        }
    }
}
