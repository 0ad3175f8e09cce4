//! Export and import of entity state in a planned move
//! (docs/protocol/sharding.md#entity-state-travels-in-the-payload): an instance that ends is asked
//! for its state, the state waits dormant where its shard arrives, and the next instance imports
//! it.
//!
//! A dormant state is an entry of the shard's entity table without task or value. Passivation
//! treats it as an idle entity, and it travels on if its shard moves before a message needs it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::batch::SingleMessage;
use super::dead_letters::DeadLetterReason;
use super::entity::Entity;
use super::fault_injection::ShardingFault;
use super::gate::MailboxLimitCheck;
use super::ids::{ENTITY_BYTES_MAX, EntityId, ShardId};
use super::instance::Instance;
use super::panics;
use super::payload;
use super::runtime::Runtime;
use super::shard::{OVER, Shard};
use super::tracked::UnfinishedTasks;
use crate::sharding::region::{Reach, RegionInput};
use crate::wakers::yield_now;

/// Bytes reserved for the fields around a state in a frame between regions.
const AROUND_BYTES: usize = 256;

/// Number of instances after which other tasks get a turn.
const TURN: usize = 256;

/// A state that an instance exported and no other has imported yet.
pub(super) type ExportedState = Box<[u8]>;

impl<E: Entity> Runtime<E> {
    /// Asks an instance that ends for its state. Runs user code, so it must not be called under a
    /// lock. `None` if the instance exports none; also if its state is too long for a message
    /// between regions, with an id of the greatest length, or the export panics, and then the loss
    /// is logged and counted. A panic also counts as a failure. An empty state is a state.
    pub(super) fn export_state(
        &self,
        shard: ShardId,
        id: &EntityId,
        value: &mut E,
    ) -> Option<ExportedState> {
        let handed = catch_unwind(AssertUnwindSafe(|| value.export_state()));
        let limit = self.message_bytes_max.saturating_sub(AROUND_BYTES + ENTITY_BYTES_MAX);
        let entity_type = &self.entity_type;
        match handed {
            Ok(None) => return None,
            Ok(Some(state)) if state.len() <= limit => return Some(state.into()),
            Ok(Some(state)) => tracing::error!(
                %entity_type, entity = %id, %shard, bytes = state.len(), limit,
                "sharding.export_failed: the state is longer than a lane allows and is lost: \
                 export less, or raise net.limits.message-bytes-max on all nodes"
            ),
            Err(panic) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let why = panics::message(panic);
                tracing::error!(
                    %entity_type, entity = %id, %shard, why = &*why,
                    "sharding.export_failed: the export of the state panicked; the state is lost"
                );
            }
        }
        self.lost_states.add(1);
        None
    }

    /// Passes a state to a fresh instance. Returns false if the import returns an error or panics:
    /// the state is lost, which is logged and counted; the caller counts the failure and decides
    /// about the instance. Runs user code, so it must not be called under a lock.
    pub(super) fn import_state(
        &self,
        shard: ShardId,
        id: &EntityId,
        value: &mut E,
        state: &ExportedState,
    ) -> bool {
        let taken = catch_unwind(AssertUnwindSafe(|| value.import_state(state)));
        let (entity_type, bytes) = (&self.entity_type, state.len());
        match taken {
            Ok(Ok(())) => return true,
            Ok(Err(why)) => tracing::error!(
                %entity_type, entity = %id, %shard, bytes, %why,
                "sharding.import_failed: the import of the state failed; the state is lost"
            ),
            Err(panic) => {
                let why = panics::message(panic);
                tracing::error!(
                    %entity_type, entity = %id, %shard, bytes, why = &*why,
                    "sharding.import_failed: the import of the state panicked; the state is lost"
                );
            }
        }
        self.lost_states.add(1);
        false
    }

    /// Counts states of a shard that were lost, for the reason `why`. Logs at most once a minute
    /// per type; the log line has the total. No effect for a `count` of 0.
    pub(super) fn lose_states(&self, count: usize, shard: ShardId, why: &'static str) {
        let total = self.lost_states.add_and_log(count, || self.world.now());
        let Some(total) = total else { return };
        let entity_type = &self.entity_type;
        tracing::warn!(
            %entity_type, %shard, count, total, why,
            "sharding.lost_states: exported entity states were lost and will not be imported"
        );
    }

    /// Counts the messages and states of a payload that no later home can take, and tells the
    /// askers that its envelopes name. The reason is `Discarded` if the payload was sent; otherwise
    /// `NodeStopped` once the node has stopped, else `LastHostLeft`. Entries behind a malformed one
    /// are not counted.
    pub(super) fn lose_payload(&self, shard: ShardId, reach: Reach, payload: &Bytes) {
        let (carried, _) = payload::read(payload);
        let (lost, why) = match reach {
            Reach::Unsent if self.is_over() => (DeadLetterReason::NodeStopped, OVER),
            Reach::Unsent => {
                (DeadLetterReason::LastHostLeft, "the last node that hosts the type left")
            }
            Reach::Sent => (
                DeadLetterReason::Discarded,
                "the move that carried them was overtaken, or its node left the configuration",
            ),
        };
        for envelope in carried.envelopes {
            self.lose(lost, SingleMessage::Envelope(envelope), shard);
        }
        self.lose_states(carried.states.len(), shard, why);
    }
}

/// Messages, values and instances that a shard has given up. They are dropped outside the shard's
/// lock. Either dropped at once, or passed to a task that runs [`sweep`](Self::sweep). `Drop` does
/// the rest of that, so nothing is skipped when the task is dropped early, except the wait for the
/// tasks of ended instances.
pub(super) struct DeferredDrop<E: Entity> {
    pub(super) runtime: Arc<Runtime<E>>,
    pub(super) shard: Arc<Shard<E>>,
    pub(super) lost: Vec<(DeadLetterReason, SingleMessage<E::Message>)>,
    pub(super) values: Vec<Box<Instance<E>>>,
    pub(super) typed: Vec<E::Message>,
    /// Idle instances that end now; their shard waits for them.
    pub(super) leaving: Option<LeavingInstances<E>>,
    /// Exported states of the instances that have ended, by row; empty at first.
    pub(super) states: Vec<(u32, ExportedState)>,
    /// The payload of a drain that has ended, reported to the region after all drops.
    pub(super) drained: Option<Option<Bytes>>,
}

/// Idle instances of a shard that end together, with their row in the table.
pub(super) struct LeavingInstances<E: Entity> {
    pub(super) export_state: StateExport,
    pub(super) instances: Vec<(u32, EntityId, Box<Instance<E>>)>,
    /// Tasks of the instances that were dropped.
    pub(super) unfinished: UnfinishedTasks,
}

/// Whether instances export their state before they are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateExport {
    /// They export it, because their shard moves.
    Asked,
    /// They do not, because their node has no lease.
    No,
}

impl<E: Entity> DeferredDrop<E> {
    /// Returns whether it contains no user values, so that it can be dropped at once by a thread
    /// that must not run user code. Encoded messages and a drained payload are no user values;
    /// `leaving` always counts as one, because its tasks must be awaited.
    pub(super) fn is_light(&self) -> bool {
        let envelopes =
            self.lost.iter().all(|(_, entry)| matches!(entry, SingleMessage::Envelope(_)));
        envelopes && self.values.is_empty() && self.typed.is_empty() && self.leaving.is_none()
    }

    /// Ends all instances, with a turn for other tasks after each [`TURN`], and waits until their
    /// tasks, and those in `unfinished` from the start, have ended. Its drop at the end does
    /// everything else.
    pub(super) async fn sweep(mut self) {
        let mut turn = 0;
        while self.end_one() {
            turn += 1;
            if turn % TURN == 0 {
                yield_now().await;
            }
        }
        if let Some(leaving) = &mut self.leaving {
            leaving.unfinished.end().await;
        }
    }

    /// Ends one instance, the last of the list: takes its exported state if that is asked and the
    /// node has not stopped, asks its tasks to stop and drops it, without a wait for them. Returns
    /// false if none is left.
    fn end_one(&mut self) -> bool {
        let Some(LeavingInstances { export_state, instances, unfinished }) = &mut self.leaving
        else {
            return false;
        };
        let Some((row, id, mut instance)) = instances.pop() else { return false };
        let forgets = self.runtime.fault_injection.has(ShardingFault::IdleHandNothingOver);
        if *export_state == StateExport::Asked && !self.runtime.is_over() && !forgets {
            let state = self.runtime.export_state(self.shard.id, &id, &mut instance.value);
            self.states.extend(state.map(|state| (row, state)));
        }
        unfinished.add(instance.stop_tasks());
        self.runtime.discard(instance);
        true
    }
}

impl<E: Entity> Drop for DeferredDrop<E> {
    /// Ends the remaining instances, counts the lost messages and tells their askers, drops all
    /// values, and only then tells the shard that its instances have ended, and the region that the
    /// drain has; if the node has stopped, the payload is lost instead. Takes the shard's lock if
    /// instances ended.
    fn drop(&mut self) {
        while self.end_one() {}
        let (runtime, shard) = (&self.runtime, &self.shard);
        for (why, entry) in self.lost.drain(..) {
            runtime.lose(why, entry, shard.id);
        }
        self.values.drain(..).for_each(|value| runtime.discard(value));
        self.typed.drain(..).for_each(|message| runtime.discard(message));
        // The shard is reported as empty only after all values are dropped.
        if self.leaving.is_some() {
            let states = std::mem::take(&mut self.states);
            shard.pass(runtime, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                gate_effects.left(gate, states);
            });
        }
        if let Some(payload) = self.drained.take() {
            if runtime.is_over() {
                // The region's machine may have ended, and hands nothing over.
                if let Some(payload) = payload {
                    runtime.lose_payload(shard.id, Reach::Unsent, &payload);
                }
            } else {
                runtime.world.tell(RegionInput::Drained { shard: shard.id, payload });
            }
            runtime.share_limit();
            runtime.room_here(); // waiting callers try again, at the next home
        }
    }
}
