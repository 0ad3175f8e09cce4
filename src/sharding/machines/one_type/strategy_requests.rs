//! Link between the allocation strategy of a type and the other machines: its requests and their
//! answers.

use std::collections::VecDeque;
use std::sync::Arc;

use ostraca_ddata::clock::Now;
use ostraca_ddata::machine::Outbox;
use ostraca_ddata::replicator::request::{ReplicatorReply, RequestError, SubscriptionNotice};

use super::message_flow::LocalInput;
use super::{SharedContext, TypeMachines};
use crate::sharding::allocation::StrategyAnswer;
use crate::sharding::machines::allocations::AllocationAction;
use crate::sharding::machines::port::ShardingOutput;

impl TypeMachines {
    /// Begins to watch the pins when the type is started, if its strategy needs them, also on nodes
    /// without the coordinator. The watch lasts as long as the node. Called once; a second call
    /// would subscribe again and ignore the notices of the first watch.
    pub(super) fn watch(&mut self, with: &mut SharedContext, out: &mut Outbox<ShardingOutput>) {
        let Some(started) = &mut self.started else { return };
        if let Some(ask) = started.allocating.watches() {
            with.last_id += 1;
            started.watching = Some(with.last_id);
            let (id, entity_type) = (with.last_id, self.entity_type.clone());
            out.push(ShardingOutput::AskPins { id, entity_type, ask });
        }
    }

    /// Lets the strategy work on the coordinator's open question after a change, and carries out
    /// the result, that of expired timeouts included. Rebalances nothing. Does nothing if the type
    /// is not started here.
    pub(super) fn allocate(
        &mut self,
        now: Now,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let Some(started) = &mut self.started else { return };
        let next = started.allocating.work(now.mono, &mut started.coordinator, &with.state);
        self.carry_out(now, next, with, out);
    }

    /// The program's own strategy has answered question `number`. An answer to a question that is
    /// no longer open changes nothing. In each case the strategy then gets its next question about
    /// a home, if there is one. Does nothing if the type is not started here.
    pub(in crate::sharding::machines) fn advised(
        &mut self,
        now: Now,
        number: u64,
        advice: Result<StrategyAnswer, Arc<str>>,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let Some(started) = &mut self.started else { return };
        let (allocating, coordinator) = (&mut started.allocating, &started.coordinator);
        let next = allocating.strategy_answered(now.mono, number, advice, coordinator, &with.state);
        self.carry_out(now, next, with, out);
        self.allocate(now, with, out);
    }

    /// Whether this is the type's open request about pins. Watches and replaced requests are not.
    pub(in crate::sharding::machines) fn awaits_pins(&self, id: u64) -> bool {
        let asked = self.started.as_ref().and_then(|started| started.asked_pins);
        asked.is_some_and(|(asked, _)| asked == id)
    }

    /// The Replicator has answered the open request about pins, which this closes. Sends the next
    /// request, and lets the strategy work on its open question. The caller has checked
    /// [`awaits_pins`](Self::awaits_pins). Whether the coordinator is still active here is not
    /// checked.
    pub(in crate::sharding::machines) fn answered_pins(
        &mut self,
        now: Now,
        reply: Result<ReplicatorReply, RequestError>,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let Some(started) = &mut self.started else { return };
        let Some((_, asked)) = started.asked_pins.take() else { return };
        let next = started.allocating.answered(now.mono, asked, reply);
        self.carry_out(now, next, with, out);
        self.allocate(now, with, out);
    }

    /// Whether this watch was started by this type.
    pub(in crate::sharding::machines) fn watches(&self, id: u64) -> bool {
        self.started.as_ref().is_some_and(|started| started.watching == Some(id))
    }

    /// The watched pins have changed: passes them to the strategy, and schedules a rebalance if the
    /// coordinator is active here. Does not answer an open question. The caller has checked
    /// [`watches`](Self::watches).
    pub(in crate::sharding::machines) fn noticed(&mut self, now: Now, notice: &SubscriptionNotice) {
        if let Some(started) = &mut self.started {
            started.allocating.noticed(now.mono, notice);
        }
    }

    /// Carries out actions of the strategy: first outputs all requests and warnings, then passes
    /// the chosen homes and moves to the coordinator, one after the other, each with all that
    /// follows from it.
    pub(super) fn carry_out(
        &mut self,
        now: Now,
        all: impl IntoIterator<Item = AllocationAction>,
        with: &mut SharedContext,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let mut queue = VecDeque::new();
        all.into_iter().for_each(|next| self.follow(next, with, &mut queue, out));
        for local in queue {
            self.feed(now, local, with, out);
        }
    }

    /// Carries out one action of the strategy. Chosen homes and moves are only queued for the
    /// coordinator. A request about pins replaces the open one, whose answer is then ignored. Does
    /// nothing if the type is not started here.
    pub(super) fn follow(
        &mut self,
        next: AllocationAction,
        with: &mut SharedContext,
        queue: &mut VecDeque<LocalInput>,
        out: &mut Outbox<ShardingOutput>,
    ) {
        let (Some(started), entity_type) = (&mut self.started, self.entity_type.clone()) else {
            return;
        };
        match next {
            AllocationAction::Decide(input) => queue.push_back(LocalInput::Coordinator(input)),
            AllocationAction::Ask(ask) => {
                with.last_id += 1;
                started.asked_pins = Some((with.last_id, ask));
                out.push(ShardingOutput::AskPins { id: with.last_id, entity_type, ask });
            }
            AllocationAction::Consult { number, asked } => {
                out.push(ShardingOutput::Consult { entity_type, number, asked });
            }
            AllocationAction::Failed(why) => {
                out.push(ShardingOutput::StrategyFailed { entity_type, why });
            }
            AllocationAction::Absent(addresses) => {
                out.push(ShardingOutput::PinsAbsent { entity_type, addresses });
            }
        }
    }
}
