//! One step of a run: takes the next queue entry, gives a node its batch of inputs, and carries out
//! the effects that the node has asked for.
//!
//! The order is that of the real driver: inputs, effects (there: outputs), ticks at a passed
//! deadline (ARCHITECTURE.md, "Bird's eye view").

use std::time::Duration;

use super::clock::SimTime;
use super::disk::SyncFailed;
use super::fault::{Fault, RunState};
use super::network::{Fate, LaneLoss, LossReason, SimLink};
use super::queue::{Owner, QueueEvent};
use super::schedule::{ScheduledFault, Trigger};
use super::simulation::{Action, FaultSource, InFlight, Simulation, mono_start};
use super::stream::{RandomStream, nanos};
use super::trace::EventKind;
use super::world::{INBOX_MAX, Observer, Orders, SimInput, SimulationView};
use super::{Boot, Direction, Effect, NodeIndex, Process};
use crate::clock::Instant;

/// Maximum number of inputs of one batch, as in the real driver.
const BATCH_MAX: usize = 1_024;

/// Number of ticks at one instant after which the process is assumed to spin for ever.
const TICKS_MAX: usize = 1_000;

/// Every message with a number divisible by this is encoded and decoded by the real codec.
const RECODE_EVERY: u64 = 10;

/// Maximum time until an end learns of a link that broke because a message was lost.
const TOLD_MAX: Duration = Duration::from_secs(15);

/// Probability that a crash was one of the machine, whose monotonic clock then starts anew. In the
/// other crashes only the process has stopped.
const MACHINE_CRASH: f64 = 0.5;

/// The meaning of a queue entry for its node at the time it is due.
enum ResolvedEntry<P: Process> {
    /// The entry is out of date, or was dealt with completely (a lost message).
    Nothing,
    /// The node may run: its deadline has passed, or its pause has ended.
    MayRun,
    /// The node gets an input.
    Input(SimInput<P>),
}

impl<P: Process, O: Observer<P>> Simulation<P, O> {
    /// Processes the next queue entry, and moves simulated time on to it. An input that a node
    /// takes at once starts its batch, which processes further entries. Returns `false` and changes
    /// nothing if no entry is due at `end` or before. The caller checks for a violation before the
    /// next step. Panics if the entry is due before now.
    pub(super) fn step(&mut self, end: SimTime) -> bool {
        let Some((at, owner, what)) = self.queue.pop(end) else { return false };
        assert!(at >= self.now, "simulated time never decreases");
        self.totals.simulated += at - self.now;
        self.now = at;
        match owner {
            Owner::Run => self.run_action(what),
            Owner::Node(node) => match self.resolve(node, what) {
                ResolvedEntry::Nothing => {}
                ResolvedEntry::MayRun => self.turn(node, None),
                ResolvedEntry::Input(input) => self.arrived(node, input),
            },
        }
        true
    }

    /// Carries out an entry of the run itself. The end of a fault that began before the run was
    /// healed is ignored, as is the restart of a node that was started since. A scheduled restart
    /// is no fault: it is neither counted nor recorded.
    fn run_action(&mut self, what: QueueEvent) {
        match what {
            QueueEvent::DrawFault => self.draw_fault(),
            QueueEvent::Action(slot) => match self.actions.take(slot) {
                Action::Strike { fault, source } => self.strike(&fault, source),
                Action::End { heals, fault } if heals == self.heals => self.end(&fault),
                Action::End { .. } => {} // the run was healed since
                Action::LinkUp { link, breaks } => self.link_up(link, breaks),
                Action::Restart { node, incarnation } => {
                    if self.nodes[node.get()].incarnation == incarnation {
                        self.start(node);
                    }
                }
                Action::Tell { .. } | Action::Synced { .. } => {
                    unreachable!("these belong to nodes")
                }
            },
            QueueEvent::Deliver(_) | QueueEvent::Tick | QueueEvent::Wake => {
                unreachable!("these belong to nodes")
            }
        }
    }

    /// Draws the next faults, perhaps none, and schedules them and the next draw. A healed run
    /// draws none, and no draw follows.
    fn draw_fault(&mut self) {
        if self.healed {
            return;
        }
        let down = self.nodes.iter().filter(|node| node.has_crashed()).count();
        let run_state = RunState { nodes: self.nodes.len(), down };
        for (after, fault) in self.draw.next(&self.faults, run_state) {
            let source = FaultSource::Drawn { heals: self.heals };
            self.schedule_action(self.now + after, Owner::Run, Action::Strike { fault, source });
        }
        let wait = self.draw.wait(&self.faults);
        self.queue.push(self.now + wait, Owner::Run, QueueEvent::DrawFault);
    }

    /// Decides the meaning of an entry for its node now, and takes the entry's message or action
    /// out of its slab. A tick counts only if it is due at `armed`, which it clears. A node that is
    /// busy or paused ignores ticks and early wakes, because `rest` or the pause has scheduled a
    /// `Wake`, after which it arms a new tick; inputs are returned all the same.
    fn resolve(&mut self, index: NodeIndex, what: QueueEvent) -> ResolvedEntry<P> {
        let node = &mut self.nodes[index.get()];
        match what {
            QueueEvent::Deliver(slot) => self.resolve_message(slot),
            QueueEvent::Action(slot) => self.resolve_action(index, slot),
            QueueEvent::Tick if node.armed == self.now => {
                node.armed = SimTime::NEVER;
                if node.ready_at <= self.now {
                    ResolvedEntry::MayRun
                } else {
                    ResolvedEntry::Nothing
                }
            }
            QueueEvent::Wake if node.ready_at <= self.now => ResolvedEntry::MayRun,
            QueueEvent::Tick | QueueEvent::Wake | QueueEvent::DrawFault => ResolvedEntry::Nothing,
        }
    }

    /// Delivers a message, or counts it as lost.
    ///
    /// It is lost if its link is cut or its receiver is down. On a lane that does not [cross
    /// restarts](super::LaneRule::crosses_restart) it is also lost if its link has broken since it
    /// was sent (even if the link is up again), or if the receiver is another incarnation. The link
    /// is looked at first, but not for a message of a node to itself. In each case the message is
    /// no longer in flight.
    fn resolve_message(&mut self, slot: u32) -> ResolvedEntry<P> {
        let in_flight = self.messages.take(slot);
        self.in_flight[usize::from(in_flight.lane)] -= 1;
        let InFlight { from, to, lane, breaks, incarnation, message } = in_flight;
        let link = SimLink { from, to };
        let node = &self.nodes[to.get()];
        let rule = self.network.lane(usize::from(lane));
        let same = node.incarnation == incarnation;
        let there = node.process.is_some() && (same || rule.crosses_restart);
        // With the present number of breaks, a break is never a reason for loss.
        let breaks = if rule.crosses_restart { self.network.breaks(link) } else { breaks };
        let passes = if from == to { Ok(()) } else { self.network.passes(link, breaks) };
        match passes {
            Ok(()) if there => ResolvedEntry::Input(SimInput::Message { from, lane, message }),
            Ok(()) => self.lost(link, usize::from(lane), LossReason::ReceiverGone),
            Err(why) => self.lost(link, usize::from(lane), why),
        }
    }

    /// Carries out an action that belongs to a node. It has no effect on another incarnation than
    /// the one that it names, nor on a node that is down. The end of a sync makes records safe, or
    /// loses some of them, before the node gets it as an input, also while the node is paused.
    fn resolve_action(&mut self, index: NodeIndex, slot: u32) -> ResolvedEntry<P> {
        let node = &mut self.nodes[index.get()];
        match self.actions.take(slot) {
            Action::Tell { incarnation, input } => {
                let meant = incarnation.is_none_or(|meant| meant == node.incarnation);
                if meant && node.process.is_some() {
                    ResolvedEntry::Input(input)
                } else {
                    ResolvedEntry::Nothing
                }
            }
            Action::Synced { incarnation, token, end, fails } => {
                if node.incarnation != incarnation || node.process.is_none() {
                    return ResolvedEntry::Nothing;
                }
                let outcome = if fails {
                    node.disk.fail(end, &mut node.chance);
                    Err(SyncFailed)
                } else {
                    node.disk.sync(end);
                    Ok(())
                };
                ResolvedEntry::Input(SimInput::Synced { token, outcome })
            }
            _ => unreachable!("the other actions belong to the run"),
        }
    }

    /// Counts a lost message, and always returns [`ResolvedEntry::Nothing`]. Nothing is recorded in
    /// the trace. On a reliable lane the link breaks, unless it has broken already, because such a
    /// lane must not lose messages silently; its ends are told within [`TOLD_MAX`]. A message of a
    /// node to itself breaks nothing.
    fn lost(&mut self, link: SimLink, lane: usize, why: LossReason) -> ResolvedEntry<P> {
        self.totals.lost += 1;
        let is_silent = match why {
            LossReason::Cut | LossReason::ReceiverGone | LossReason::InboxFull => true,
            // Only lossy lanes lose by chance; the ends are told of a broken link anyway.
            LossReason::ByChance | LossReason::Broken => false,
        };
        let gap = is_silent && self.network.lane(lane).loss == LaneLoss::Reliable;
        if gap && link.from != link.to {
            self.break_link(link, TOLD_MAX);
        }
        ResolvedEntry::Nothing
    }

    /// Handles an input of a node that is up, in a batch of its own, or queues it while the node is
    /// paused or busy or has older inputs. A message of another node is lost if [`INBOX_MAX`]
    /// inputs wait; other inputs, and messages of the node itself, are queued regardless. An input
    /// is counted and recorded only when the node handles it.
    fn arrived(&mut self, index: NodeIndex, input: SimInput<P>) {
        let node = &mut self.nodes[index.get()];
        if node.ready_at <= self.now && node.inbox.is_empty() {
            self.turn(index, Some(input));
            return;
        }
        let is_full = node.inbox.len() >= INBOX_MAX;
        match input {
            SimInput::Message { from, lane, .. } if is_full && from != index => {
                let link = SimLink { from, to: index };
                let _ = self.lost(link, usize::from(lane), LossReason::InboxFull);
            }
            input => node.inbox.push_back(input),
        }
    }

    /// Runs one batch of a node: its inputs, then their effects, then its ticks, and schedules its
    /// next wake or tick. The observer checks afterwards if there was any input or tick. Does
    /// nothing, and drops the input, if the node is down. Whether the node is paused is not
    /// checked.
    fn turn(&mut self, index: NodeIndex, first: Option<SimInput<P>>) {
        if self.nodes[index.get()].process.is_none() {
            return;
        }
        let inputs = self.batch(index, first);
        self.perform(index);
        let (ticks, deadline) = self.ticks(index);
        self.rest(index, inputs + ticks, deadline);
        if inputs + ticks > 0 {
            self.check(Some(index));
        }
    }

    /// Feeds a node at most [`BATCH_MAX`] inputs: the first one, its inbox, then everything of this
    /// node that is due at the same instant (its entries follow each other in the queue). Ticks and
    /// wakes among these are dropped, because the node runs now; messages among them may be lost.
    /// Returns the number of inputs. Further inputs stay in the inbox or the queue. The effects are
    /// left to [`perform`](Self::perform).
    fn batch(&mut self, index: NodeIndex, first: Option<SimInput<P>>) -> usize {
        let mut inputs = 0;
        if let Some(first) = first {
            self.feed(index, first);
            inputs += 1;
        }
        while inputs < BATCH_MAX {
            if let Some(input) = self.nodes[index.get()].inbox.pop_front() {
                self.feed(index, input);
                inputs += 1;
                continue;
            }
            let Some(what) = self.queue.pop_same(self.now, index) else { break };
            if let ResolvedEntry::Input(input) = self.resolve(index, what) {
                self.feed(index, input);
                inputs += 1;
            }
        }
        inputs
    }

    /// Counts and records an input and calls the process with it, at the present readings of the
    /// node's clocks. Its effects are gathered in `effects`. Panics if the node is down.
    fn feed(&mut self, index: NodeIndex, input: SimInput<P>) {
        self.note_input(index, &input);
        let node = &mut self.nodes[index.get()];
        let now = node.clock.read(self.now);
        let process = node.process.as_mut().expect("`turn` has checked that the node is up");
        let fx = &mut self.effects;
        fx.node = index;
        match input {
            SimInput::Start => process.started(now, fx),
            SimInput::Message { from, message, .. } => process.message(now, from, message, fx),
            SimInput::Command(command) => process.command(now, command, fx),
            SimInput::Synced { token, outcome } => process.synced(now, token, outcome, fx),
            SimInput::LinkBroken { peer, direction } => {
                process.link_broken(now, peer, direction, fx);
            }
            SimInput::LinkUp { peer, direction } => process.link_up(now, peer, direction, fx),
        }
    }

    /// Counts an input and records it in the trace, messages and commands with the digest that the
    /// process computes or, without one, that of their `Debug` text. Ticks do not pass here, but
    /// are counted and recorded as well.
    fn note_input(&mut self, index: NodeIndex, input: &SimInput<P>) {
        self.totals.events += 1;
        let trace = &mut self.trace;
        match input {
            SimInput::Message { from, lane, message } => {
                self.totals.delivered += 1;
                let digest = P::digest(message).unwrap_or_else(|| trace.digest(message));
                let kind = EventKind::Message { from: *from, lane: *lane };
                trace.record(self.now, index, kind, digest, message);
            }
            SimInput::Command(command) => {
                let digest = P::digest_command(command).unwrap_or_else(|| trace.digest(command));
                trace.record(self.now, index, EventKind::Command, digest, command);
            }
            SimInput::Start => trace.record(self.now, index, EventKind::Start, 0, &()),
            SimInput::Synced { token, outcome } => {
                let digest = token * 2 + u64::from(outcome.is_err());
                trace.record(self.now, index, EventKind::Synced, digest, &(token, outcome));
            }
            SimInput::LinkBroken { peer, direction } => {
                let kind = EventKind::LinkBroken { peer: *peer };
                trace.record(self.now, index, kind, *direction as u64, direction);
            }
            SimInput::LinkUp { peer, direction } => {
                let kind = EventKind::LinkUp { peer: *peer };
                trace.record(self.now, index, kind, *direction as u64, direction);
            }
        }
    }

    /// Carries out the effects that a node has asked for, in order. An emitted event may crash or
    /// restart the node; the effects after it are then lost. It may also start another node, whose
    /// first batch then runs inside this one.
    fn perform(&mut self, index: NodeIndex) {
        let incarnation = self.nodes[index.get()].incarnation;
        let mut pending = std::mem::take(&mut self.effects.pending);
        for effect in pending.drain(..) {
            match effect {
                Effect::Send { to, lane, message } => self.send(index, to, lane, message),
                Effect::Emit(event) => self.emitted(index, &event),
                Effect::Write(record) => self.nodes[index.get()].disk.write(record),
                Effect::Sync(token) => self.sync(index, token),
            }
            let node = &self.nodes[index.get()];
            if node.process.is_none() || node.incarnation != incarnation {
                break;
            }
        }
        self.effects.pending = pending;
    }

    /// Sends a message: schedules the arrival of each copy, holds it on a clogged link, or loses
    /// it. Whether the receiver is up is decided at the arrival. Every tenth message of the run,
    /// lost ones included, is encoded and decoded by the process first. Panics if there is no such
    /// node or lane, or too many messages are in flight.
    fn send(&mut self, from: NodeIndex, to: NodeIndex, lane: usize, mut message: P::Message) {
        self.totals.sent += 1;
        if self.totals.sent.is_multiple_of(RECODE_EVERY) {
            message = P::recode(message);
        }
        let link = SimLink { from, to };
        let in_flight = InFlight {
            from,
            to,
            lane: u8::try_from(lane).expect("at most 256 lanes"),
            breaks: self.network.breaks(link),
            incarnation: self.nodes[to.get()].incarnation,
            message,
        };
        if from == to {
            let at = self.network.loop_back(self.now, from, lane);
            self.post(at, in_flight);
            return;
        }
        match self.network.send(self.now, link, lane) {
            Fate::Arrives(at) => self.post(at, in_flight),
            Fate::Twice(first, second) => {
                self.totals.doubled += 1;
                let again = InFlight { message: in_flight.message.clone(), ..in_flight };
                self.post(first, in_flight);
                self.post(second, again);
            }
            Fate::Held => {
                self.in_flight[lane] += 1;
                let slot = self.messages.put(in_flight);
                self.network.hold(link, slot);
            }
            Fate::Lost(why) => {
                let _ = self.lost(link, lane, why);
            }
        }
    }

    /// Schedules the arrival of a message, and counts it as in flight.
    fn post(&mut self, at: SimTime, in_flight: InFlight<P>) {
        self.in_flight[usize::from(in_flight.lane)] += 1;
        let to = in_flight.to;
        let slot = self.messages.put(in_flight);
        self.queue.push(at, Owner::Node(to), QueueEvent::Deliver(slot));
    }

    /// Schedules the arrival of a message that a clogged link held, with a new delay from now on.
    /// It was counted as in flight when it was held. It may still be lost at its arrival.
    pub(super) fn release(&mut self, slot: u32) {
        let Some(in_flight) = self.messages.get(slot) else {
            unreachable!("a held message keeps its slot until it arrives")
        };
        let link = SimLink { from: in_flight.from, to: in_flight.to };
        let (to, lane) = (in_flight.to, usize::from(in_flight.lane));
        let at = self.network.released(self.now, link, lane);
        self.queue.push(at, Owner::Node(to), QueueEvent::Deliver(slot));
    }

    /// Starts a sync of the records written so far. It ends after a random time, longer on a slow
    /// disk, never at the same instant and not before earlier syncs of the same disk, those of
    /// crashed incarnations included. A pending [`FailSync`](Fault::FailSync) makes it fail and is
    /// used up now; a later slowness does not change its end.
    fn sync(&mut self, index: NodeIndex, token: u64) {
        let node = &mut self.nodes[index.get()];
        let what = ((index.get() as u64) << 48) ^ token;
        let mut chance = RandomStream::decision(self.family, self.now.as_nanos(), what);
        let delay = chance.exponential(nanos(self.faults.sync)).max(1); // not at the same instant
        let at = self.now + Duration::from_nanos(delay) + node.sync_slower;
        node.synced_at = node.synced_at.max(at);
        let fails = std::mem::take(&mut node.sync_fails);
        let (incarnation, end, at) = (node.incarnation, node.disk.end(), node.synced_at);
        self.schedule_action(
            at,
            Owner::Node(index),
            Action::Synced { incarnation, token, end, fails },
        );
    }

    /// Shows an event to the observer, carries out the observer's orders (commands are scheduled,
    /// faults are injected at once), and then shows it to the rules, unless the run was healed;
    /// also if a fault has crashed the node by then. A violation is kept if it is the first one;
    /// the orders are carried out all the same, and the run goes on until the end of the step.
    fn emitted(&mut self, index: NodeIndex, event: &P::Event) {
        self.trace.record(self.now, index, EventKind::Event, 0, event);
        let mut orders = Orders::default();
        let view = SimulationView {
            now: self.now,
            touched: Some(index),
            nodes: &self.nodes,
            network: &self.network,
        };
        if let Err(violation) = self.observer.event(&view, index, event, &mut orders) {
            self.violation.get_or_insert(violation.what);
        }
        for (after, node, command) in orders.commands {
            self.schedule_command(after, node, command);
        }
        for fault in orders.faults {
            self.strike(&fault, FaultSource::Harness);
        }
        if !self.rules.is_empty() && !self.healed {
            self.apply_rules(index, event);
        }
    }

    /// Injects the faults of the rules that match an event, in the order of the rules, each with
    /// its probability. Every match is counted for the [`Trigger`], also one without a fault; the
    /// count of each node starts at 1 again at a later instant. A crash that would leave too few
    /// nodes up is left out. If a schedule is followed, its targeted faults occur instead of drawn
    /// ones, at most one for each match, whatever the probability and the number of nodes down.
    fn apply_rules(&mut self, index: NodeIndex, event: &P::Event) {
        for number in 0..self.rules.len() {
            let rule = &mut self.rules[number];
            if !(rule.matches)(event) {
                continue;
            }
            if rule.matched_at != self.now {
                rule.matched_at = self.now;
                rule.matches_by_node.clear();
            }
            let nth = rule.matches_by_node.entry(index).or_default();
            *nth += 1;
            let trigger = Trigger { rule: number, node: index, nth: *nth };
            let fault = match &mut self.planned {
                Some(lines) => planned_fault(lines, self.now, trigger),
                None => {
                    let strikes = self.rules_chance.chance(rule.probability);
                    strikes
                        .then(|| (rule.fault)(index))
                        .filter(|fault| self.leaves_enough_up(fault))
                }
            };
            if let Some(fault) = fault {
                self.strike(&fault, FaultSource::Rule(trigger));
            }
        }
    }

    /// Ticks the node while its deadline has passed, and carries out the effects of each tick.
    /// Returns the number of ticks and the deadline that remains, which is in the future; `None` if
    /// there is none, or the node has crashed meanwhile. A node that an event restarted is ticked
    /// as its new incarnation. Panics after [`TICKS_MAX`] ticks.
    fn ticks(&mut self, index: NodeIndex) -> (usize, Option<Instant>) {
        for ticks in 0..TICKS_MAX {
            let node = &mut self.nodes[index.get()];
            let now = node.clock.read(self.now);
            let Some(process) = &mut node.process else { return (ticks, None) };
            let deadline = process.next_deadline();
            if deadline.is_none_or(|deadline| deadline > now.mono) {
                return (ticks, deadline);
            }
            self.totals.events += 1;
            self.trace.record(self.now, index, EventKind::Tick, 0, &());
            self.effects.node = index;
            process.tick(now, &mut self.effects);
            self.perform(index);
        }
        panic!("node {index} asked for {TICKS_MAX} ticks at one instant: its deadline never moves");
    }

    /// Ends a batch of `handled` inputs and ticks: a slow node is busy for some time for each of
    /// them, which replaces a pause that began in this batch, even a longer one; any other waits
    /// for its deadline. A node that is busy or paused, or has inputs left, gets a wake instead of
    /// a tick; after the wake it asks for its deadline anew.
    fn rest(&mut self, index: NodeIndex, handled: usize, deadline: Option<Instant>) {
        let node = &mut self.nodes[index.get()];
        if !node.per_input.is_zero() && handled > 0 {
            let handled = u32::try_from(handled).unwrap_or(u32::MAX);
            node.ready_at = self.now + node.per_input.saturating_mul(handled);
        }
        if !node.inbox.is_empty() || node.ready_at > self.now {
            let at = node.ready_at.max(self.now);
            self.queue.push(at, Owner::Node(index), QueueEvent::Wake);
        } else {
            self.arm_for(index, deadline);
        }
    }

    /// Schedules a tick for the node's deadline. An earlier tick that is scheduled already is kept
    /// and finds out by itself that it is too early, so a deadline that keeps moving costs nothing.
    /// Does nothing if the node is down or has no deadline.
    pub(super) fn arm(&mut self, index: NodeIndex) {
        let deadline = self.nodes[index.get()].process.as_ref().and_then(P::next_deadline);
        self.arm_for(index, deadline);
    }

    /// As [`arm`](Self::arm), for a deadline on the node's own clock. A deadline in the past gives
    /// a tick at the present time; `None` schedules nothing.
    fn arm_for(&mut self, index: NodeIndex, deadline: Option<Instant>) {
        let node = &mut self.nodes[index.get()];
        let Some(at) = deadline.map(|deadline| node.clock.when(deadline).max(self.now)) else {
            return;
        };
        if at < node.armed {
            node.armed = at;
            self.queue.push(at, Owner::Node(index), QueueEvent::Tick);
        }
    }

    /// Lets the observer check its invariants, after an action of the node `touched` (`None`: after
    /// a fault). The first violation of the run is kept, and ends the run after this step; later
    /// ones are dropped.
    pub(super) fn check(&mut self, touched: Option<NodeIndex>) {
        let view =
            SimulationView { now: self.now, touched, nodes: &self.nodes, network: &self.network };
        if let Err(violation) = self.observer.check(&view) {
            self.violation.get_or_insert(violation.what);
        }
    }

    /// Starts the next incarnation of a node that is down, from the synced records of its disk, and
    /// runs its first batch. Does nothing if the node is up.
    ///
    /// Breaks its old links before, if the crash has not, and schedules attempts to bring up all
    /// broken links of the run. After some of the crashes the monotonic clock starts anew
    /// ([`MACHINE_CRASH`]). The node and its disk stay slow if they were, a pending `FailSync` and
    /// the rate of its clock stay; a pause does not. The observer checks after the batch.
    pub(super) fn start(&mut self, index: NodeIndex) {
        if self.nodes[index.get()].process.is_some() {
            return;
        }
        // If no peer noticed the crash, the start of the new incarnation ends old connections.
        self.break_links_of(index);
        let node = &mut self.nodes[index.get()];
        if node.has_crashed() && node.chance.chance(MACHINE_CRASH) {
            node.clock.reboot(self.now, mono_start(&mut node.chance));
        }
        node.incarnation += 1;
        node.ready_at = self.now;
        node.armed = SimTime::NEVER;
        let boot = Boot {
            node: index,
            incarnation: node.incarnation,
            seed: node.chance.bits(),
            now: node.clock.read(self.now),
            disk: node.disk.synced(),
        };
        node.process = Some((self.factory)(boot));
        self.reconnect_all();
        self.turn(index, Some(SimInput::Start));
    }

    /// Breaks a directed link, tells both ends that are up within `told_max`, each at its own time,
    /// and schedules an attempt to bring the link up after that. An end that is down, or crashes
    /// before its time, is not told. Does nothing if the link is broken.
    pub(super) fn break_link(&mut self, link: SimLink, told_max: Duration) {
        let mut chance = self.decision_about(link);
        let mut told = || self.now + chance.span(Duration::from_micros(1), told_max);
        let (sender, receiver) = (told(), told());
        if !self.network.break_link(link, sender.max(receiver)) {
            return;
        }
        let broken = |peer, direction| SimInput::LinkBroken { peer, direction };
        self.tell(sender, link.from, broken(link.to, Direction::Outgoing));
        self.tell(receiver, link.to, broken(link.from, Direction::Incoming));
        self.reconnect(link);
    }

    /// The random stream for decisions about a link now. It depends on the link and the time only,
    /// so that a schedule with fewer faults leaves the others unchanged. All decisions of one
    /// instant draw the same numbers: the times until both ends are told and the wait of
    /// `reconnect` are correlated.
    fn decision_about(&self, link: SimLink) -> RandomStream {
        let what = ((link.from.get() as u64) << 16) ^ link.to.get() as u64;
        RandomStream::decision(self.family, self.now.as_nanos(), what)
    }

    /// Schedules an input for a node, provided that its incarnation is still the same then. Does
    /// nothing if the node is down.
    fn tell(&mut self, at: SimTime, index: NodeIndex, input: SimInput<P>) {
        let node = &self.nodes[index.get()];
        if node.process.is_some() {
            let incarnation = Some(node.incarnation);
            self.schedule_action(at, Owner::Node(index), Action::Tell { incarnation, input });
        }
    }

    /// Schedules an attempt to bring a broken link up: 1 ms to 1 s after now or, if that is later,
    /// after the time at which both ends know of the break. Earlier attempts stay scheduled.
    fn reconnect(&mut self, link: SimLink) {
        let from = self.now.max(self.network.told_by(link));
        let wait = self.decision_about(link).span(Duration::from_millis(1), Duration::from_secs(1));
        let breaks = self.network.breaks(link);
        self.schedule_action(from + wait, Owner::Run, Action::LinkUp { link, breaks });
    }

    /// Schedules an attempt for every broken link, because a node or a link has recovered.
    pub(super) fn reconnect_all(&mut self) {
        for link in self.network.broken() {
            self.reconnect(link);
        }
    }

    /// Brings a broken link up and tells both ends at this instant, if both are up, the link is not
    /// cut, and it has not broken again since this attempt was scheduled. Otherwise does nothing,
    /// and schedules no further attempt.
    fn link_up(&mut self, link: SimLink, breaks: u32) {
        let up = |node: NodeIndex| self.nodes[node.get()].process.is_some();
        let possible = up(link.from) && up(link.to) && !self.network.is_cut(link);
        if !possible || self.network.breaks(link) != breaks || !self.network.mend(link) {
            // If a node is down or the link is cut, the recovery schedules another attempt; if the
            // link broke again, that break has done so. Otherwise the link is up already.
            return;
        }
        let input = |peer, direction| SimInput::LinkUp { peer, direction };
        self.tell(self.now, link.from, input(link.to, Direction::Outgoing));
        self.tell(self.now, link.to, input(link.from, Direction::Incoming));
    }
}

/// Removes and returns the targeted fault that this match of a rule triggers, if any. A fault whose
/// time has passed without its match, because the run has changed, is triggered by the next match
/// of its rule and node. Of several faults the first in the list is taken.
fn planned_fault(lines: &mut Vec<ScheduledFault>, now: SimTime, trigger: Trigger) -> Option<Fault> {
    let meant = |line: &ScheduledFault| {
        let Some(Trigger { rule, node, nth }) = line.trigger else { return false };
        let due = line.at < now || (line.at == now && nth == trigger.nth);
        rule == trigger.rule && node == trigger.node && due
    };
    let at = lines.iter().position(meant)?;
    Some(lines.remove(at).fault)
}
