//! The handle of one entity, independent of its current home: tell, ask and start.
//!
//! [`EntityRef`] is the public sending side of sharding. A call passes the message to the runtime
//! of the type on this node, which puts it into a local mailbox or onto the lane to the home.
//! [`AskFuture`] is the future of an answer; [`TellError`] and [`AskError`] state the fate of the
//! message.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::task::coop;

use super::ask_cycles::{self, AskEdge};
use super::entity::Entity;
use super::envelope::Envelope;
use super::id_hash::hash;
use super::ids::{EntityId, EntityType, InvalidName, RegionId, ShardId};
use super::pending_asks::{AskFailure, AskSlot, AskedShard, CarriedAsk, ReplyAddress};
use super::reply::Reply;
use super::runtime::{OutgoingMessage, Runtime, WaitingPlace};
use super::scope;
pub use super::send_error::{AskError, TellError, TimeoutReason};
use super::shard::ShardInner;
use super::shard_stage::ShardStage;
pub use super::slow_handlers::RunningHandler;
use super::timeouts::AskTimer;
use super::types::{Missing, TypeRegistry};

/// Reference to an entity by type and id. Cheap to clone; equal if type and id are equal. The
/// entity need not be alive.
///
/// A reference may be part of messages and answers, the only places where it can be deserialized.
/// Elsewhere (a file, an outside system) store type and id.
///
/// Sending works on a node that has started the type, also as a proxy. A node that joins starts its
/// types one after the other, and messages may arrive before that. Until then a reference can be
/// kept and passed on, and sending fails with [`TellError::NotStarted`].
pub struct EntityRef<E: Entity>(To<E>);

/// How a reference finds the runtime of its type.
enum To<E: Entity> {
    Here(Arc<EntityTarget<E>>),
    /// The node had not started the type when the reference was deserialized; every use looks it
    /// up.
    NotYet(Arc<UnresolvedEntity>),
}

/// An entity of a type that this node has started. The id may be invalid: then `shard` is the first
/// shard and `hash` is 0, and every message is refused with [`TellError::InvalidId`].
///
/// Each ask clones this `Arc` and not the runtime's: otherwise all asks of the node would write to
/// the one cache line that holds the runtime's reference count.
struct EntityTarget<E: Entity> {
    runtime: Arc<Runtime<E>>,
    shard: ShardId,
    id: Result<EntityId, InvalidName>,
    hash: u64,
}

/// An entity of a type that the node had not started.
struct UnresolvedEntity {
    entity_type: EntityType,
    types: Arc<TypeRegistry>,
    id: EntityId,
}

impl<E: Entity> EntityTarget<E> {
    fn new(runtime: &Arc<Runtime<E>>, id: Result<EntityId, InvalidName>) -> Arc<Self> {
        let shard = id.as_ref().map_or_else(|_| ShardId::default(), |id| runtime.shard_of(id));
        let hash = id.as_ref().map_or(0, |id| hash(id.as_bytes()));
        Arc::new(Self { runtime: Arc::clone(runtime), shard, id, hash })
    }

    /// Passes a message to the runtime of the type; it may wait in the shard's buffer if its lane
    /// has no room. `ask` is the ask whose reply address the message contains. Returns a refused
    /// message with the reason; an invalid id is the first one.
    fn offer(
        &self,
        parcel: OutgoingMessage<E::Message>,
        ask: Option<&dyn CarriedAsk>,
    ) -> Result<(), (TellError, OutgoingMessage<E::Message>)> {
        self.offer_with(parcel, WaitingPlace::Buffer, ask)
    }

    /// Like [`offer`](Self::offer); `place` states where the message waits if its lane has no room.
    fn offer_with(
        &self,
        parcel: OutgoingMessage<E::Message>,
        place: WaitingPlace,
        ask: Option<&dyn CarriedAsk>,
    ) -> Result<(), (TellError, OutgoingMessage<E::Message>)> {
        match &self.id {
            Ok(id) => self.runtime.offer((id, self.hash, self.shard), (parcel, place), ask),
            Err(why) => Err((TellError::InvalidId(*why), parcel)),
        }
    }

    fn asked_shard(&self) -> AskedShard {
        AskedShard { runtime: self.runtime.number, shard: self.shard }
    }

    /// Returns the entity as the search for ask cycles compares it; `None` if this node has not
    /// used its shard yet. Panics if the id is invalid and the shard is known.
    fn as_asked(&self) -> Option<ask_cycles::AskedEntity> {
        let phase = Arc::clone(&self.runtime.shard(self.shard)?.phase);
        let (entity_type, id) = self.names();
        Some(ask_cycles::AskedEntity { phase, entity_type, id })
    }

    /// Returns why a message that was sent at `asked_at` has no answer, and the handler that it
    /// waits for, as far as this node knows. `holder` is the node whose lane has the message;
    /// `None`: the message is on this node. Takes the lock of the shard.
    ///
    /// The first cause that applies: `NoHome`, `Moving` (the gate waits for an echo), `BehindLane`
    /// (only without `holder`), `NotLeased`, `NotBegun` with the entity's own handler if it began
    /// before `asked_at`, `Moving` with the shard's oldest handler, if any, if the entity has none
    /// here and the shard drains or is aborted. Otherwise `Unknown` without a handler, for example
    /// if the entity's own handler began later, or this node has not used the shard.
    fn kept(
        &self,
        asked_at: Instant,
        holder: Option<RegionId>,
    ) -> (TimeoutReason, Option<Box<RunningHandler>>) {
        let runtime = &self.runtime;
        let Some(shard) = runtime.shard(self.shard) else { return (TimeoutReason::Unknown, None) };
        let (now, blocking) = (runtime.world.now(), runtime.blocking_in(self.shard));
        let inside = shard.lock();
        let ShardInner { gate, shard_entities } = &*inside;
        if gate.wants_home() {
            return (TimeoutReason::NoHome, None);
        }
        if gate.is_moving() {
            return (TimeoutReason::Moving, None);
        }
        if holder.is_none() && gate.uses_lane() && gate.waiting() > 0 {
            return (TimeoutReason::BehindLane, None);
        }
        if gate.leads_here() && !runtime.world.serves() {
            return (TimeoutReason::NotLeased, None);
        }
        let id = self.id.as_ref().ok();
        let row = id.and_then(|id| shard_entities.entity_table.find(self.hash, id.as_bytes()));
        match row.and_then(|row| shard_entities.handler_of(row, &blocking)) {
            // The entity handles one message at a time.
            Some(own) if own.1 < asked_at => {
                (TimeoutReason::NotBegun, shard_entities.describe(own, now))
            }
            None if matches!(shard.phase.get(), ShardStage::Draining | ShardStage::Aborted) => {
                let oldest = shard_entities.oldest_handler(&blocking);
                (
                    TimeoutReason::Moving,
                    oldest.and_then(|oldest| shard_entities.describe(oldest, now)),
                )
            }
            Some(_) | None => (TimeoutReason::Unknown, None),
        }
    }

    /// Returns type and id for an error. Panics if the id is invalid, which no sent message has.
    fn names(&self) -> (EntityType, EntityId) {
        let id = self.id.clone().expect("messages without a valid id are not sent");
        (self.runtime.entity_type.clone(), id)
    }

    /// Makes the error of a sent message from the reason why its ask failed before the timeout.
    fn unanswered(&self, question: &'static str, why: AskFailure, waited: Duration) -> AskError {
        let (entity_type, entity) = self.names();
        match why {
            AskFailure::Refused(why) => {
                AskError::Refused { entity_type, entity, question, waited, why }
            }
            AskFailure::Undecodable { bytes, source } => {
                AskError::Decode { entity_type, entity, question, waited, bytes, source }
            }
            AskFailure::NodeLost(node) => {
                AskError::NodeLost { entity_type, entity, question, waited, node }
            }
        }
    }
}

impl<E: Entity> EntityRef<E> {
    pub(super) fn new(runtime: &Arc<Runtime<E>>, id: &str) -> Self {
        Self(To::Here(EntityTarget::new(runtime, EntityId::new(id))))
    }

    /// Returns the entity with its runtime. An unresolved reference looks the type up at every
    /// call, never stores the result, and fails with [`TellError::NotStarted`] while the type is
    /// absent, or started as another type. Does not fail for an invalid id.
    fn target(&self) -> Result<Cow<'_, Arc<EntityTarget<E>>>, TellError> {
        match &self.0 {
            To::Here(target) => Ok(Cow::Borrowed(target)),
            To::NotYet(absent) => {
                let UnresolvedEntity { entity_type, types, id } = &**absent;
                let found = types.find(entity_type);
                let runtime = found
                    .map_err(|_| TellError::NotStarted { entity_type: entity_type.clone() })?;
                Ok(Cow::Owned(EntityTarget::new(&runtime, Ok(id.clone()))))
            }
        }
    }

    fn entity_type(&self) -> &EntityType {
        match &self.0 {
            To::Here(target) => &target.runtime.entity_type,
            To::NotYet(absent) => &absent.entity_type,
        }
    }

    /// Returns the entity's id.
    ///
    /// # Errors
    /// [`InvalidName`] if it is empty or too long; sending fails with the same error.
    pub fn id(&self) -> Result<&EntityId, InvalidName> {
        match &self.0 {
            To::Here(target) => target.id.as_ref().map_err(|why| *why),
            To::NotYet(absent) => Ok(&absent.id),
        }
    }

    /// Returns the entity's shard. Returns the first shard while this node has not started the
    /// type, and if the id is invalid.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        self.target().map_or_else(|_| ShardId::default(), |target| target.shard)
    }

    /// Sends a message without waiting. Messages from one node to one entity are handled in the
    /// order of the calls, as far as the calls are ordered, also across moves.
    ///
    /// # Errors
    /// [`TellError`]: the message was not sent. Without an error it is on its way, and is lost only
    /// with a node or where the loss is counted. A [`Reply`] in a message that was not sent may
    /// vanish without a report, because the message may have been encoded before it was refused;
    /// its asker then waits for the timeout. Pass on such messages with
    /// [`tell_wait`](Self::tell_wait).
    pub fn tell(&self, message: E::Message) -> Result<(), TellError> {
        self.target()?.offer(OutgoingMessage::Typed(message), None).map_err(|(why, parcel)| {
            drop_unsent(parcel);
            why
        })
    }

    /// Sends a message and waits until there is room for it. Does nothing before the first poll.
    /// Nothing was sent if the future is dropped before it completes. Takes part in tokio's
    /// cooperative budget, so a task that calls it in a loop lets others run.
    ///
    /// Tries again whenever room is reported, up to twice in one poll. While the lane to the home
    /// is full, a long message, or one behind a long buffer, waits here with its caller; after 256
    /// refused tries it may also wait in the shard's buffer, and the call returns once it is there.
    /// If the future is dropped, a [`Reply`] in the message may vanish without a report, as with
    /// [`tell`](Self::tell).
    ///
    /// Inside a handler use a timeout: two entities that wait for room in each other's full
    /// mailbox, on one node or on two, wait for ever. Or use [`tell`](Self::tell) there and react
    /// to [`MailboxFull`](TellError::MailboxFull) and [`Busy`](TellError::Busy).
    ///
    /// # Errors
    /// Any [`TellError`] for which waiting does not help ([`TellError::is_full`] is false).
    pub async fn tell_wait(&self, message: E::Message) -> Result<(), TellError> {
        let target = self.target()?;
        let mut parcel = Some(OutgoingMessage::Typed(message));
        let mut registration = target.runtime.caller_registration();
        let mut refused = 0;
        let sent = std::future::poll_fn(|cx| {
            for registered in [false, true] {
                let Some(offered) = parcel.take() else { return Poll::Ready(Ok(())) };
                let place = match refused {
                    ..REFUSED_MAX => WaitingPlace::Caller,
                    _ => WaitingPlace::Buffer,
                };
                match target.offer_with(offered, place, None) {
                    Ok(()) => return Poll::Ready(Ok(())),
                    Err((why, back)) if why.is_full() => {
                        parcel = Some(back);
                        refused += 1;
                    }
                    Err((why, back)) => {
                        drop_unsent(back);
                        return Poll::Ready(Err(why));
                    }
                }
                if !registered {
                    registration.register(cx.waker());
                }
            }
            Poll::Pending
        });
        coop::cooperative(sent).await
    }

    /// Sends a message and returns a future of its answer, with a timeout of `ask-timeout`. The
    /// call itself sends the message, and the timeout begins with the call, not with the first
    /// poll. A timeout of a second or more, or a first poll after the timeout, may be reported up
    /// to 50 ms late.
    ///
    /// If the entity's node crashes, a message that is still on this node is sent to the entity's
    /// next home, and the ask goes on; an ask whose message was sent to that node fails with
    /// [`AskError::NodeLost`] as soon as this node learns of the removal. The error tells whether
    /// the message may have been handled: see [`AskError`].
    ///
    /// `question` makes the message from the answer's address: `ask(Command::Get)`. The call itself
    /// never fails: if the message is not sent, the first poll returns [`AskError::NotSent`].
    pub fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> E::Message) -> AskFuture<E, T>
    where
        T: DeserializeOwned + Send + 'static,
    {
        self.ask_for(None, question)
    }

    /// Like [`ask`](Self::ask), with the given timeout. A zero timeout fails with
    /// [`AskError::NoTime`], and nothing is sent; if the type is not started, that is reported
    /// instead.
    pub fn ask_within<T>(
        &self,
        timeout: Duration,
        question: impl FnOnce(Reply<T>) -> E::Message,
    ) -> AskFuture<E, T>
    where
        T: DeserializeOwned + Send + 'static,
    {
        self.ask_for(Some(timeout), question)
    }

    /// Sends the message that `question` makes. `None`: the timeout is the type's `ask-timeout`.
    ///
    /// Does not call `question` if the type is not started here or, checked next, the timeout is
    /// zero. Calls it even if the id is invalid, and drops the message then, as after any other
    /// refusal. Every error becomes a future that returns it at its first poll.
    fn ask_for<T>(
        &self,
        timeout: Option<Duration>,
        question: impl FnOnce(Reply<T>) -> E::Message,
    ) -> AskFuture<E, T>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let named = std::any::type_name::<E::Message>();
        let target = match self.target() {
            Ok(_) if timeout.is_some_and(|timeout| timeout.is_zero()) => {
                return AskFuture::unsent(named, AskError::NoTime, None);
            }
            Ok(target) => target,
            Err(why) => return AskFuture::unsent(named, why.into(), None),
        };
        let Runtime { ask_handles, me: node, settings, .. } = &*target.runtime;
        let (node, slot) = (*node, AskSlot::new(target.asked_shard()));
        let message = question(Reply::here(Arc::clone(&slot), ask_handles.mine(), node));
        let asked = AskFuture::new(&target, &slot, named, timeout.unwrap_or(settings.ask_timeout));
        let ask = slot.carried(node);
        if let Err((why, parcel)) = target.offer(OutgoingMessage::Typed(message), Some(&ask)) {
            drop_unsent(parcel);
            return AskFuture::unsent(named, why.into(), Some(target.into_owned()));
        }
        asked
    }

    /// Starts the entity if it is not alive, and waits until it is, for at most `ask-timeout`. The
    /// start is queued after the entity's waiting messages. The call sends it, not the first poll.
    ///
    /// If the start fails, supervision decides about further tries, and the future goes on waiting.
    /// If the start request is not sent, the first poll returns [`AskError::NotSent`].
    pub fn start(&self) -> AskFuture<E, ()> {
        let target = match self.target() {
            Ok(target) => target,
            Err(why) => return AskFuture::unsent(START, why.into(), None),
        };
        let id = match &target.id {
            Ok(id) => id,
            Err(why) => return AskFuture::unsent(START, TellError::InvalidId(*why).into(), None),
        };
        let Runtime { asks, me: node, settings, .. } = &*target.runtime;
        let slot = AskSlot::new(target.asked_shard());
        let asked = AskFuture::new(&target, &slot, START, settings.ask_timeout);
        let start =
            Envelope::start(id, ReplyAddress { node: *node, correlation: slot.enlist(asks) });
        if let Err((why, _)) = target.offer(OutgoingMessage::Envelope(start), None) {
            return AskFuture::unsent(START, why.into(), Some(target.into_owned()));
        }
        asked
    }
}

/// Refused tries of one `tell_wait` after which its message may wait in the shard's buffer,
/// whatever its length; a full buffer still refuses it. Otherwise messages that others send
/// meanwhile could delay it without bound.
const REFUSED_MAX: u32 = 256;

/// Drops a message that was not sent, with the replies in it that were not encoded: their askers
/// are told that there is no answer.
fn drop_unsent<M>(parcel: OutgoingMessage<M>) {
    drop(parcel);
}

impl<E: Entity> Clone for EntityRef<E> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            To::Here(target) => To::Here(Arc::clone(target)),
            To::NotYet(absent) => To::NotYet(Arc::clone(absent)),
        })
    }
}

/// Compares types and ids. Two invalid ids are equal if they have the same error.
impl<E: Entity> PartialEq for EntityRef<E> {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id() && self.entity_type() == other.entity_type()
    }
}

impl<E: Entity> Eq for EntityRef<E> {}

/// Hashes the id only, with the process's key; all invalid ids have the hash 0.
impl<E: Entity> Hash for EntityRef<E> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let hash = match &self.0 {
            To::Here(target) => target.hash,
            To::NotYet(absent) => hash(absent.id.as_bytes()),
        };
        hash.hash(state);
    }
}

/// Writes type and id. Fails if the id is invalid.
impl<E: Entity> Serialize for EntityRef<E> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let id = self.id().map_err(serde::ser::Error::custom)?;
        (self.entity_type(), id).serialize(to)
    }
}

/// Fails for an invalid type name or id, outside of a message or an answer, and if this node has
/// started the type as another one. If it has not started the type, the reference stays unresolved
/// and looks the type up at each use.
impl<'de, E: Entity> Deserialize<'de> for EntityRef<E> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (entity_type, id): (EntityType, EntityId) = Deserialize::deserialize(from)?;
        let types = scope::types().ok_or_else(|| {
            D::Error::custom(
                "a reference to an entity can be deserialized only in a message or an answer",
            )
        })?;
        match types.find(&entity_type) {
            Ok(runtime) => Ok(Self::new(&runtime, id.as_str())),
            Err(Missing::Other) => {
                let why = format!("this node has started {entity_type} as another type");
                Err(D::Error::custom(why))
            }
            Err(Missing::Absent) => {
                Ok(Self(To::NotYet(Arc::new(UnresolvedEntity { entity_type, types, id }))))
            }
        }
    }
}

/// Writes `type/id`; `type/?` if the id is invalid.
impl<E: Entity> fmt::Display for EntityRef<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id().map_or("?", EntityId::as_str);
        write!(f, "{}/{id}", self.entity_type())
    }
}

impl<E: Entity> fmt::Debug for EntityRef<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EntityRef({self})")
    }
}

/// Name of a start request in errors.
const START: &str = "a start";

/// Future returned by `ask` and `start`. Dropping it cancels the wait, not the message.
#[must_use = "the answer is lost if nobody waits for it; tell() sends without one"]
pub struct AskFuture<E: Entity, T> {
    question: &'static str,
    how: AskProgress<E, T>,
}

enum AskProgress<E: Entity, T> {
    Waits(PendingAnswer<E, T>),
    /// The message was not sent: the error, taken by the first poll, and the receiver, if it was
    /// found and the ask had a valid form. Later polls stay pending.
    Unsent(Option<Box<AskError>>, Option<Arc<EntityTarget<E>>>),
}

/// State of an ask that waits for its answer.
struct PendingAnswer<E: Entity, T> {
    slot: Arc<AskSlot<T>>,
    target: Arc<EntityTarget<E>>,
    asked_at: Instant,
    timeout: Duration,
    timer: AskTimer,
    /// Set while an entity's handler awaits this answer; used to detect cycles. Only the first poll
    /// sets it, if a handler makes that poll.
    edge: Option<AskEdge>,
}

impl<E: Entity, T> AskFuture<E, T> {
    /// Makes the future of an ask that is about to be sent. Its time begins now; its timer is set
    /// by the first poll.
    fn new(
        target: &Arc<EntityTarget<E>>,
        slot: &Arc<AskSlot<T>>,
        question: &'static str,
        timeout: Duration,
    ) -> Self {
        let (slot, target) = (Arc::clone(slot), Arc::clone(target));
        let asked_at = target.runtime.world.now();
        let waits =
            PendingAnswer { slot, target, asked_at, timeout, timer: AskTimer::Unset, edge: None };
        Self { question, how: AskProgress::Waits(waits) }
    }

    /// Makes a future whose message was not sent; its first poll returns the error.
    fn unsent(question: &'static str, why: AskError, target: Option<Arc<EntityTarget<E>>>) -> Self {
        Self { question, how: AskProgress::Unsent(Some(Box::new(why)), target) }
    }
}

impl<E: Entity, T> PendingAnswer<E, T> {
    /// Returns the answer, or the reason why there is none. An answer that is there wins over a
    /// timeout that has expired.
    ///
    /// The first poll sets the timer. If an entity's handler makes it, it also records which entity
    /// waits for which, and fails with [`AskError::AsksItself`] in this poll if the handler asks
    /// its own entity, although the message was sent and will be handled. At the timeout returns
    /// [`AskError::Cycle`] if handlers of this node wait for each other, otherwise
    /// [`AskError::Timeout`] with its reason; an answer that comes later counts as late. Must not
    /// be polled after it was ready.
    fn poll(&mut self, question: &'static str, cx: &mut Context<'_>) -> Poll<Result<T, AskError>> {
        let Self { slot, target, asked_at, timeout, timer, edge } = self;
        let Runtime { timeouts, asks, world, .. } = &*target.runtime;
        let failed = |why| target.unanswered(question, why, world.now() - *asked_at);
        if let Poll::Ready(answer) = slot.poll(cx) {
            timer.end(timeouts);
            *edge = None;
            return Poll::Ready(answer.map_err(failed));
        }
        if matches!(timer, AskTimer::Unset)
            && let (Some(by), Some(asked)) = (scope::handler(), target.as_asked())
        {
            let new = AskEdge::new(by, asked.clone());
            if new.is_loop(&asked) {
                timer.end(timeouts);
                let _unread = slot.forget(asks); // a later answer counts as late
                let (entity_type, entity) = target.names();
                return Poll::Ready(Err(AskError::AsksItself { entity_type, entity, question }));
            }
            *edge = Some(new);
        }
        let waited = *timeout;
        if timer.poll((timeouts, world), (*asked_at, waited), cx).is_pending() {
            return Poll::Pending;
        }
        timer.end(timeouts);
        if let Some(answer) = slot.forget(asks) {
            *edge = None;
            return Poll::Ready(answer.map_err(failed)); // it has arrived since the poll above
        }
        let (kept, handler) = target.kept(*asked_at, slot.holder());
        let (entity_type, entity) = target.names();
        let cycle = match (edge.take(), target.as_asked()) {
            (Some(edge), Some(asked)) => edge.cycle(&asked),
            _ => Vec::new(),
        };
        if !cycle.is_empty() {
            let from_asker = cycle.last().into_iter().chain(&cycle);
            let names: Vec<_> = from_asker.map(|asked| format!("{asked:?}")).collect();
            let cycle = names.join(" -> ");
            return Poll::Ready(Err(AskError::Cycle {
                entity_type,
                entity,
                question,
                waited,
                cycle,
            }));
        }
        Poll::Ready(Err(AskError::Timeout { entity_type, entity, question, waited, kept, handler }))
    }
}

/// An ask that was not sent returns its error at the first poll and is pending for ever afterwards,
/// without a wakeup. One that was sent must not be polled after it was ready.
impl<E: Entity, T> Future for AskFuture<E, T> {
    type Output = Result<T, AskError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { question, how } = self.get_mut();
        match how {
            AskProgress::Waits(waits) => waits.poll(question, cx),
            AskProgress::Unsent(why, _) => {
                why.take().map_or(Poll::Pending, |why| Poll::Ready(Err(*why)))
            }
        }
    }
}

/// Ends the timeout and removes the ask from the table, also when the future has completed. An
/// answer that is there is dropped; one that comes later is dropped and counted as late.
impl<E: Entity, T> Drop for PendingAnswer<E, T> {
    fn drop(&mut self) {
        let Runtime { timeouts, asks, .. } = &*self.target.runtime;
        self.timer.end(timeouts);
        let _unread = self.slot.forget(asks);
    }
}

/// Shows the entity, or `None` if the ask failed before its message was offered.
impl<E: Entity, T> fmt::Debug for AskFuture<E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match &self.how {
            AskProgress::Waits(waits) => Some(&waits.target),
            AskProgress::Unsent(_, target) => target.as_ref(),
        };
        let entity = target.map(|target| EntityRef(To::Here(Arc::clone(target))));
        let mut asked = f.debug_struct("AskFuture");
        asked.field("entity", &entity).field("question", &self.question).finish_non_exhaustive()
    }
}
