//! The gate of one shard on one node. Every message for the shard passes it, in both directions; it
//! keeps the order of messages while the home changes (docs/protocol/message-order.md).
//!
//! The sending half (*route*) sends messages of this node down the lane to the shard's home, and
//! buffers them while there is no home or the lane changes. The receiving half (*host*) accepts,
//! holds or bounces messages that came down lanes to this node. The node's own region is a home
//! like any other, with a lane of length zero.
//!
//! A gate is synchronous and protected by one lock per shard. The holder calls one method at a
//! time, and the effects on lanes and mailboxes (through [`GateEffects`]) happen within the call,
//! so nothing overtakes a flush. It knows no runtime, socket, clock or message type.
//!
//! Methods that change the sending half also flush, even if nothing changed: they send waiting
//! messages as far as the lane in use has room. A lane that turns out to be gone is ended then. The
//! origin of a message is lost when it waits.

mod budget;
pub mod fault_injection;
mod host;
mod route;

use std::collections::VecDeque;

use fault_injection::{GateFault, GateFaultInjection};
use host::{GateVerdict, Host, LaneKind};
use route::{Current, Route, RouteState};

pub use budget::{Budget, BufferLimits, Full, HELD_FLOOR, HeldBudget, Reached, Waits};
pub use host::{HostState, HostingPhase};
pub use route::{HomeDecision, MailboxLimitCheck, SizedMessage};

use super::ids::{Generation, RegionId};

/// Effects of a gate on its node: lanes, mailboxes and limits. Lock order: gate, lane, mailbox.
///
/// A stamp is the generation by which the sender believes the receiver to be the home.
pub trait GateEffects<M> {
    /// Appends a message to the lane to a region.
    ///
    /// # Errors
    /// Returns the message if the lane is full or has no connection ([`Gate::room`] is called when
    /// it takes messages again), or if there is no lane because the region left the installed
    /// configuration; a newer decision will follow then.
    fn send(
        &mut self,
        to: RegionId,
        stamp: Generation,
        item: SizedMessage<M>,
        fit: MailboxLimitCheck,
    ) -> Result<(), LaneSendError<M>>;

    /// Appends a barrier to the lane to a region, also if the lane is full.
    ///
    /// # Errors
    /// [`Gone`] if there is no lane, because the region left the installed configuration.
    fn barrier(&mut self, to: RegionId, stamp: Generation) -> Result<(), Gone>;

    /// Returns a message to its sending node, also if the lane is full, with its stamp and the
    /// newest decision known here.
    fn bounce(&mut self, to: RegionId, back: Bounce<M>);

    /// Acknowledges a barrier with an echo, behind all bounces before it.
    fn echo(&mut self, to: RegionId, stamp: Generation);

    /// Puts a message into the mailbox of its entity.
    fn accept(&mut self, from: RegionId, item: SizedMessage<M>, origin: Origin);

    /// Refuses a message because the limit of held messages is reached: a dead letter is counted,
    /// and an asker is told at once.
    fn refuse(&mut self, from: RegionId, item: SizedMessage<M>);

    /// Drops a message that came back on a lane that was given up: a dead letter is counted.
    fn ignore(&mut self, from: RegionId, item: SizedMessage<M>);

    /// Reserves room in the buffer for a message of `bytes` bytes in a gate where `own` wait; see
    /// [`Budget::reserve`].
    ///
    /// # Errors
    /// [`Full`] if the region's or the shard's limit is reached.
    fn reserve(&mut self, bytes: usize, own: Waits) -> Result<(), Full>;

    /// Releases the room of a message that left the buffer.
    fn release(&mut self, bytes: usize);

    /// Reserves room for a held message of `bytes` bytes in a gate where `own` are held; see
    /// [`HeldBudget`]. A refusal on the node's own lane loses nothing because the message stays in
    /// the buffer; on another lane the message is lost.
    ///
    /// # Errors
    /// [`Full`] if a limit is reached.
    fn reserve_held(&mut self, from: RegionId, bytes: usize, own: Waits) -> Result<(), Full>;

    /// Releases the room of held messages of a lane.
    fn release_held(&mut self, from: RegionId, what: Waits);
}

/// Reason why a message was not put on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneSendError<M> {
    /// The lane has no room now.
    Full(SizedMessage<M>),
    /// The lane no longer exists.
    Gone(SizedMessage<M>),
}

/// Error: the region left the installed configuration, and its lane has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A message that returns to its sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bounce<M> {
    /// The stamp that the sender gave it.
    pub stamp: Generation,
    /// The message that returns.
    pub item: SizedMessage<M>,
    /// The newest decision of the region that returns it; above the stamp.
    pub newest: HomeDecision,
}

/// Origin of a message of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Any caller except the other variant.
    #[default]
    Anybody,
    /// The handler of an entity that drains on this node. Its messages to a shard that also drains
    /// here are handled here, before that shard's mailboxes are sealed.
    DrainingHandler,
}

/// Result of [`Gate::tell`], as it is before the call sends what waits: a message that had to wait
/// because its lane ended may be on the next lane already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// It is on its lane, or in its mailbox.
    Sent,
    /// It waits in the gate's buffer.
    Buffered,
    /// It waits as the first one without a home. [`Gate::wants_home`] tells whether the caller must
    /// ask for the shard's home.
    FirstWithoutHome,
}

/// Fast path for a message, valid while no message waits before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FastPath {
    None,
    /// Sent down this lane.
    Lane(Current),
    /// Put into a mailbox of this node.
    Here,
}

/// The gate of a shard; see the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(C)] // the fast path touches only the first fields
pub struct Gate<M> {
    fast_path: FastPath, // derived from the rest by `update_fast_path`
    me: RegionId,
    route: Route<M>,
    host: Host<M>,
    fault_injection: GateFaultInjection,
}

impl<M> Gate<M> {
    /// Makes the gate of the node of region `me`, without a known home.
    #[must_use]
    pub const fn new(me: RegionId) -> Self {
        Self {
            fast_path: FastPath::None,
            me,
            route: Route::new(),
            host: Host::new(),
            fault_injection: GateFaultInjection::none(),
        }
    }

    /// Sends a message of this node down the lane in use, or puts it into its mailbox if the shard
    /// lives here. It waits in the buffer while no lane is open, the lane has no room, or others
    /// wait before it. The lane is tried again in this call, so the result may be `Buffered`
    /// although the flush at its end has sent the message.
    ///
    /// # Errors
    /// [`Full`] with the message, if it would have to wait and there is no room. Also flushes then.
    pub fn tell(
        &mut self,
        item: SizedMessage<M>,
        origin: Origin,
        post: &mut impl GateEffects<M>,
    ) -> Result<SendOutcome, (Full, SizedMessage<M>)> {
        let item = match self.fast_path {
            FastPath::Lane(Current { generation, home }) => {
                match post.send(home, generation, item, MailboxLimitCheck::Must) {
                    Ok(()) => return Ok(SendOutcome::Sent),
                    Err(LaneSendError::Full(item) | LaneSendError::Gone(item)) => item,
                }
            }
            FastPath::Here => {
                post.accept(self.me, item, origin);
                return Ok(SendOutcome::Sent);
            }
            FastPath::None => item,
        };
        let told = self.tell_slow(item, origin, post);
        self.flush(post);
        told
    }

    /// Takes in an acknowledged decision, from an announcement or the coordinator's answer. A
    /// decision that is not newer than the known one changes nothing.
    pub fn learn(&mut self, decision: HomeDecision, post: &mut impl GateEffects<M>) {
        self.learnt(decision, post);
        self.flush(post);
    }

    /// Returns whether [`arrived`](Self::arrived) would only [accept](GateEffects::accept) such a
    /// message. Then a caller that has its bytes elsewhere need not build a message.
    #[must_use]
    pub fn accepts(&self, from: RegionId, stamp: Generation) -> bool {
        self.host.accepts(from, LaneKind::Remote, stamp, self.fault_injection)
    }

    /// Takes in a message from the lane of another node: accepts, holds or bounces it, or refuses
    /// it if it would have to be held and the limit of held messages is reached. A message of a
    /// lane with held messages is held behind them, whatever its stamp.
    pub fn arrived(
        &mut self,
        from: RegionId,
        stamp: Generation,
        item: SizedMessage<M>,
        post: &mut impl GateEffects<M>,
    ) {
        let (fault_injection, word) = (self.fault_injection, (stamp, item));
        let reserve = |bytes, own| post.reserve_held(from, bytes, own).is_ok();
        let verdict = self.host.arrive(from, LaneKind::Remote, word, fault_injection, reserve);
        self.carry_out(from, verdict, Origin::Anybody, post);
    }

    /// Takes in a barrier from the lane of another node: echoes it, or keeps it behind the held
    /// messages of its lane, where it replaces a barrier directly before it.
    pub fn barrier_arrived(
        &mut self,
        from: RegionId,
        stamp: Generation,
        post: &mut impl GateEffects<M>,
    ) {
        let verdict = self.host.barrier(from, stamp, self.fault_injection);
        self.carry_out(from, verdict, Origin::Anybody, post);
    }

    /// Takes in a message that another node bounced. It is [ignored](GateEffects::ignore) unless
    /// its lane and stamp are those in use. Otherwise it is kept, beyond the limits, until the echo
    /// of the barrier, which is sent now if none is under way, and its decision is learned.
    pub fn bounced(&mut self, from: RegionId, back: Bounce<M>, post: &mut impl GateEffects<M>) {
        if self.is_current(from, back.stamp) {
            self.came_back(back, post);
            self.flush(post);
        } else {
            post.ignore(from, back.item);
        }
    }

    /// Takes in the echo of a barrier from another node. Completes the change of lanes, if one is
    /// under way from this lane with this stamp; otherwise changes nothing.
    pub fn echoed(&mut self, from: RegionId, stamp: Generation, post: &mut impl GateEffects<M>) {
        self.echo_came(from, stamp);
        self.flush(post);
    }

    /// Sets the state of the shard in the region of this node, learns its decision, and decides
    /// again about held messages.
    ///
    /// `payload` holds the messages that a start took from the previous home; they go into the
    /// mailboxes first, because the previous home accepted them before anything that arrives here
    /// (docs/protocol/message-order.md#payload-before-direct-messages). The end of a drain calls
    /// this in the same step, under the same lock, in which it seals the mailboxes, with `HostState
    /// { run: HostingPhase::Idle, ..gate.standing() }`
    /// (docs/protocol/message-order.md#seal-and-gate-change-in-one-step). A report of `Draining`
    /// that the region's machine made before it heard of that end counts as `Idle`.
    ///
    /// When messages of this node no longer stay here, the gate changes to the newest known
    /// decision without a barrier. Order: payload (whatever the state is), decision, held messages,
    /// flush.
    pub fn stand(
        &mut self,
        mut standing: HostState,
        mut payload: VecDeque<SizedMessage<M>>,
        post: &mut impl GateEffects<M>,
    ) {
        let sealed = self.host.standing.run == HostingPhase::Idle;
        if sealed && matches!(standing.run, HostingPhase::Draining(_)) {
            standing.run = HostingPhase::Idle; // after the seal no entity is left that could drain
        }
        let stayed = self.stays_here();
        self.host.standing = standing;
        if !self.fault_injection.has(GateFault::PayloadBehind) {
            payload.drain(..).for_each(|item| post.accept(self.me, item, Origin::Anybody));
        }
        let newest = HomeDecision { generation: standing.newest, home: standing.home };
        if stayed && !self.stays_here() {
            // The own lane is empty, so no echo has to be awaited
            // (docs/protocol/message-order.md#the-own-region-keeps-its-gate).
            self.route.learn(newest);
            self.route.complete(self.fault_injection);
        } else {
            self.learnt(newest, post);
        }
        let settled = self.host.settle(self.me, self.fault_injection);
        self.release_held(post);
        for (from, verdict) in settled {
            self.carry_out(from, verdict, Origin::Anybody, post);
        }
        payload.drain(..).for_each(|item| post.accept(self.me, item, Origin::Anybody));
        self.flush(post);
    }

    /// Returns whether the lane to this region is in use: it takes messages of this node, or its
    /// echo is awaited. Also true for the own region.
    #[must_use]
    pub fn uses_lane_to(&self, region: RegionId) -> bool {
        self.route.mode.current().is_some_and(|current| current.home == region)
    }

    /// Ends the lane of a region that left the installed configuration; unacknowledged messages on
    /// it are lost. If it is the lane in use, the gate changes to a newer decision, or has no lane
    /// until one comes; waiting and returned messages stay. A known home that is this region is
    /// forgotten, but not its generation: only a newer decision names a home again.
    ///
    /// Acknowledged messages of it that are held here stay
    /// (docs/protocol/message-order.md#a-lane-ends-with-its-incarnation): its node may have left in
    /// order because none of its messages waited with it. Its held barriers are dropped.
    pub fn removed(&mut self, region: RegionId, post: &mut impl GateEffects<M>) {
        let current = self.route.mode.current();
        if self.route.known.home == Some(region) {
            self.route.known.home = None;
        }
        if let Some(current) = current.filter(|current| current.home == region) {
            self.lane_ended(current);
        }
        self.host.ended(region, self.fault_injection);
        self.release_held(post);
        self.flush(post);
    }

    /// Returns the lanes whose first held message waits for a decision that is unknown here.
    pub fn ahead(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.host.ahead()
    }

    /// Removes and returns the held messages of a lane whose sender left the configuration and
    /// whose decision nobody announces
    /// (docs/protocol/message-order.md#orphaned-held-messages-expire), neither of which is checked.
    /// Drops its held barriers without an echo. The caller counts the messages as lost.
    pub fn give_up_held(
        &mut self,
        lane: RegionId,
        post: &mut impl GateEffects<M>,
    ) -> Vec<SizedMessage<M>> {
        let taken = self.host.forget(lane);
        self.release_held(post);
        taken
    }

    /// Called when a region's lane was cut for long while its node stays a member. If the newest
    /// known decision names another region and the gate waits for an echo of this lane, the lane is
    /// given up and the result is true: the gate changes to that decision, and unacknowledged
    /// messages may be lost. Those that come back later are passed to [`GateEffects::ignore`].
    /// Otherwise does nothing and returns false, also if that decision names no home
    /// (docs/protocol/message-order.md#a-cut-lane-is-given-up-only-after-a-move).
    pub fn give_up(&mut self, region: RegionId, post: &mut impl GateEffects<M>) -> bool {
        let elsewhere = self.route.known.home.is_some_and(|home| home != region);
        let waits = matches!(self.route.mode, RouteState::Wait(current) if current.home == region);
        if !(elsewhere && waits) {
            return false;
        }
        self.route.complete(self.fault_injection);
        self.flush(post);
        true
    }

    /// Repeats the barrier while a change of lanes is under way, because the barrier or its echo
    /// may be lost with a lane that one of its ends gave up
    /// (docs/protocol/message-order.md#barriers-are-repeated). A second echo is ignored. Sends no
    /// barrier in any other state, nor to the own region; flushes in every state.
    pub fn remind(&mut self, post: &mut impl GateEffects<M>) {
        if let RouteState::Wait(current) = self.route.mode
            && current.home != self.me
            && post.barrier(current.home, current.generation).is_err()
        {
            self.lane_ended(current);
        }
        self.flush(post);
    }

    /// Sends waiting messages after the lane in use got room, until at least `bytes` bytes are
    /// sent; 0 sends none. Returns whether more wait and the lane has not refused one; then the
    /// caller must call again.
    pub fn room(&mut self, bytes: usize, post: &mut impl GateEffects<M>) -> bool {
        let more = self.send_waiting(bytes, post);
        self.update_fast_path();
        more
    }

    /// Removes and returns all messages, because this node has stopped hosting and routing: first
    /// the returned ones, then the waiting and the held ones. Releases their room, and drops held
    /// barriers. Known decision, lane and the shard's state stay as they are.
    pub fn empty(&mut self, post: &mut impl GateEffects<M>) -> Vec<SizedMessage<M>> {
        let mut taken = Vec::with_capacity(self.waiting() + self.held());
        for (item, counts) in self.route.empty() {
            if counts {
                post.release(item.bytes);
            }
            taken.push(item);
        }
        taken.extend(self.host.empty());
        self.release_held(post);
        self.update_fast_path();
        taken
    }

    /// Returns the number of waiting messages of this node, returned ones included.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.route.waiting()
    }

    /// Returns the bytes of the waiting messages that count against the buffer's limits; returned
    /// messages do not.
    #[must_use]
    pub const fn buffered_bytes(&self) -> usize {
        self.route.counted().bytes
    }

    /// Returns the number of waiting messages whose home is known and that wait for its lane, also
    /// the own one, or for an echo; 0 while no lane is in use.
    #[must_use]
    pub fn behind_a_lane(&self) -> usize {
        if self.route.mode == RouteState::Parked { 0 } else { self.route.waiting() }
    }

    /// Returns the number of held messages from lanes.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.host.held().messages
    }

    /// Returns whether a message of this node goes straight into its mailbox here, that is, whether
    /// [`tell`](Self::tell) would only [accept](GateEffects::accept) it. Also true while the shard
    /// drains here; false while messages wait in the buffer, even if it lives here.
    #[must_use]
    pub const fn leads_here(&self) -> bool {
        matches!(self.fast_path, FastPath::Here)
    }

    /// Returns the lane and stamp with which a message of this node goes out at once, that is, with
    /// which [`tell`](Self::tell) would only [send](GateEffects::send) it, if the lane takes it.
    #[must_use]
    pub const fn lane(&self) -> Option<(RegionId, Generation)> {
        match self.fast_path {
            FastPath::Lane(Current { generation, home }) => Some((home, generation)),
            FastPath::Here | FastPath::None => None,
        }
    }

    /// Returns whether messages wait and no lane is in use, because no home is known, the known
    /// decision names none, or its home was removed: the caller must ask for the home. Check after
    /// every call, because any call may end a lane.
    #[must_use]
    pub fn wants_home(&self) -> bool {
        self.route.mode == RouteState::Parked && self.route.waiting() > 0
    }

    /// Returns whether messages of this node go down a lane to another node, or wait for room in
    /// it; false while an echo is awaited.
    #[must_use]
    pub fn uses_lane(&self) -> bool {
        matches!(self.route.mode, RouteState::Open(current) if current.home != self.me)
    }

    /// Returns whether a change of lanes is under way.
    #[must_use]
    pub const fn is_moving(&self) -> bool {
        matches!(self.route.mode, RouteState::Wait(_))
    }

    /// Returns the newest acknowledged decision that this gate knows, without its home if that was
    /// [removed](Self::removed).
    #[must_use]
    pub const fn newest(&self) -> HomeDecision {
        self.route.known
    }

    /// Returns the state of the shard in the region of this node.
    #[must_use]
    pub const fn standing(&self) -> HostState {
        self.host.standing
    }
}

/// State of a gate that an exploration inspects.
#[cfg(feature = "canaries")]
impl<M> Gate<M> {
    /// Returns the held messages of all lanes.
    pub fn held_messages(&self) -> impl Iterator<Item = &SizedMessage<M>> + '_ {
        self.host.messages()
    }

    /// Returns whether a barrier of this lane waits behind held messages.
    #[must_use]
    pub fn holds_barrier_of(&self, lane: RegionId) -> bool {
        self.host.holds_barrier_of(lane)
    }
}

/// The steps of both halves, and their connection by the own lane.
impl<M> Gate<M> {
    /// Sends or buffers a message without the fast path. Ends the lane if it turns out to be gone,
    /// and buffers the message. The caller flushes.
    fn tell_slow(
        &mut self,
        item: SizedMessage<M>,
        origin: Origin,
        post: &mut impl GateEffects<M>,
    ) -> Result<SendOutcome, (Full, SizedMessage<M>)> {
        let Some(current) = self.route.open(self.fault_injection) else {
            return self.buffer(item, post);
        };
        match self.send(current, item, (origin, MailboxLimitCheck::Must), post) {
            Ok(()) => Ok(SendOutcome::Sent),
            Err(LaneSendError::Full(item)) => self.buffer(item, post),
            Err(LaneSendError::Gone(item)) => {
                self.lane_ended(current);
                self.buffer(item, post)
            }
        }
    }

    /// Recomputes the fast path: there is one if no message waits in the buffer and the lane in use
    /// is open; for the own lane only while the shard hosts or drains here by that decision.
    fn update_fast_path(&mut self) {
        self.fast_path = match self.route.open(GateFaultInjection::none()) {
            Some(_) if self.stays_here() => FastPath::Here,
            Some(current) if current.home != self.me => FastPath::Lane(current),
            _ => FastPath::None,
        };
    }

    /// Puts a message at the end of the buffer, or returns it if the budget has no room. Only the
    /// first message that waits without a lane gives [`SendOutcome::FirstWithoutHome`].
    fn buffer(
        &mut self,
        item: SizedMessage<M>,
        post: &mut impl GateEffects<M>,
    ) -> Result<SendOutcome, (Full, SizedMessage<M>)> {
        let first = self.route.waiting() == 0 && self.route.mode == RouteState::Parked;
        match post.reserve(item.bytes, self.route.counted()) {
            Ok(()) => self.route.push(item),
            Err(full) => return Err((full, item)),
        }
        Ok(if first { SendOutcome::FirstWithoutHome } else { SendOutcome::Buffered })
    }

    /// Sends all messages that can be sent. Every operation that changes the gate ends with this
    /// call.
    fn flush(&mut self, post: &mut impl GateEffects<M>) {
        self.send_waiting(usize::MAX, post);
        self.update_fast_path();
    }

    /// Sends waiting messages from the head of the buffer, in order, as far as the lane has room
    /// and until at least `most` bytes were sent
    /// (docs/protocol/message-order.md#flush-from-the-head). Sent messages release the room that
    /// they had reserved. If the lane is gone, the gate changes to a newer decision, if it knows
    /// one, and goes on there. Returns whether more wait and the lane has not refused one.
    fn send_waiting(&mut self, most: usize, post: &mut impl GateEffects<M>) -> bool {
        let mut sent = 0_usize;
        while sent < most
            && let Some((current, waiting, fit)) = self.route.next()
        {
            let (counts, bytes) = (waiting.counts, waiting.item.bytes);
            let put_back = |item| route::QueuedItem { item, counts };
            match self.send(current, waiting.item, (Origin::Anybody, fit), post) {
                Ok(()) if counts => {
                    self.route.left(bytes);
                    post.release(bytes);
                }
                Ok(()) => {}
                Err(LaneSendError::Full(item)) => {
                    self.route.put_back(put_back(item), fit);
                    return false;
                }
                Err(LaneSendError::Gone(item)) => {
                    self.route.put_back(put_back(item), fit);
                    self.lane_ended(current);
                }
            }
            sent = sent.saturating_add(bytes.max(1));
        }
        matches!(self.route.mode, RouteState::Open(_)) && self.route.buffered() > 0
    }

    /// Sends a message down the lane of `current`. On the own lane applies the rules of the
    /// receiver at once: `Ok` also if the message is held or comes back in this call. One that may
    /// not be held there for lack of room counts as refused by a full lane.
    fn send(
        &mut self,
        current: Current,
        item: SizedMessage<M>,
        (origin, fit): (Origin, MailboxLimitCheck),
        post: &mut impl GateEffects<M>,
    ) -> Result<(), LaneSendError<M>> {
        let Current { generation, home } = current;
        if home != self.me {
            return post.send(home, generation, item, fit);
        }
        let (fault_injection, me, word) = (self.fault_injection, self.me, (generation, item));
        let reserve = |bytes, own| post.reserve_held(me, bytes, own).is_ok();
        match self.host.arrive(self.me, LaneKind::Own, word, fault_injection, reserve) {
            // Treated as a full lane until the shard's state here changes.
            GateVerdict::Refuse(item) => Err(LaneSendError::Full(item)),
            verdict => {
                self.carry_out(self.me, verdict, origin, post);
                Ok(())
            }
        }
    }

    /// Releases the room of messages that were held and no longer are.
    fn release_held(&mut self, post: &mut impl GateEffects<M>) {
        for (lane, what) in self.host.take_left() {
            post.release_held(lane, what);
        }
    }

    /// Carries out a verdict of the receiving half for a message or barrier of the lane of `from`.
    /// On the own lane a bounce returns the message to the sending half here, which ignores it if
    /// the lane is no longer in use, and an echo completes the change. The caller flushes.
    fn carry_out(
        &mut self,
        from: RegionId,
        verdict: GateVerdict<M>,
        origin: Origin,
        post: &mut impl GateEffects<M>,
    ) {
        let HostState { newest, home, .. } = self.host.standing;
        match verdict {
            GateVerdict::Hold => {}
            GateVerdict::Accept(item) => post.accept(from, item, origin),
            GateVerdict::Refuse(item) => post.refuse(from, item),
            GateVerdict::Bounce { stamp, item } => {
                let newest = HomeDecision { generation: newest, home };
                let back = Bounce { stamp, item, newest };
                if from != self.me {
                    post.bounce(from, back);
                } else if self.is_current(from, stamp) {
                    self.came_back(back, post);
                } else {
                    post.ignore(from, back.item);
                }
            }
            GateVerdict::Echo { stamp } if from == self.me => self.echo_came(from, stamp),
            GateVerdict::Echo { stamp } => post.echo(from, stamp),
        }
    }

    /// Takes in a decision; ignores one that is not newer. Without a lane, the gate changes to it
    /// at once.
    ///
    /// One barrier at a time (docs/protocol/message-order.md#one-barrier-at-a-time): a newer
    /// decision changes the lane only if no change is under way, because one barrier covers
    /// everything on the lane. While messages of this node stay here, the decision is only
    /// remembered.
    fn learnt(&mut self, decision: HomeDecision, post: &mut impl GateEffects<M>) {
        if !self.route.learn(decision) {
            return;
        }
        match self.route.mode {
            RouteState::Parked => self.route.complete(self.fault_injection),
            RouteState::Open(_) if self.stays_here() => {}
            RouteState::Open(current) => self.change(current, post),
            RouteState::Wait(current) if self.fault_injection.has(GateFault::BarrierReplaced) => {
                let home = decision.home.unwrap_or(current.home);
                self.change(Current { generation: decision.generation, home }, post);
            }
            RouteState::Wait(_) => {}
        }
    }

    /// Keeps a returned message and learns the decision that it brings. The caller has checked that
    /// the message was sent down the lane in use.
    ///
    /// A bounce returns the message and teaches
    /// (docs/protocol/message-order.md#a-bounce-returns-the-message-and-teaches): it proves that
    /// this lane is no longer the right one, so the gate leaves the lane even if the decision is
    /// known already.
    fn came_back(&mut self, back: Bounce<M>, post: &mut impl GateEffects<M>) {
        self.route.returned(back.item);
        self.learnt(back.newest, post);
        if let RouteState::Open(current) = self.route.mode
            && current.generation == back.stamp
        {
            self.change(current, post);
        }
    }

    /// Leaves the lane: sends a barrier and waits until everything on the lane was accepted or came
    /// back. On the own lane the echo comes within this call, unless messages of it are held. Ends
    /// the lane if it no longer exists.
    fn change(&mut self, current: Current, post: &mut impl GateEffects<M>) {
        self.route.mode = RouteState::Wait(current);
        if self.fault_injection.has(GateFault::FlushWithoutEcho) {
            return self.route.complete(self.fault_injection);
        }
        if current.home != self.me {
            if post.barrier(current.home, current.generation).is_err() {
                self.lane_ended(current);
            }
            return;
        }
        let verdict = self.host.barrier(self.me, current.generation, self.fault_injection);
        self.carry_out(self.me, verdict, Origin::Anybody, post);
    }

    /// Changes to the known decision if it is newer than `current`; otherwise, or if that names no
    /// home, no lane is in use. Returned messages stay in the gate.
    ///
    /// A removed home ends its lane (docs/protocol/message-order.md#a-removed-home-ends-its-lane):
    /// no echo will come. The caller flushes.
    fn lane_ended(&mut self, current: Current) {
        if self.route.known.generation > current.generation {
            self.route.complete(self.fault_injection);
        } else {
            self.route.mode = RouteState::Parked;
        }
    }

    /// Completes the change of lanes if this is the echo that it waits for; otherwise does nothing.
    /// The caller flushes.
    ///
    /// Echo completes the change (docs/protocol/message-order.md#echo-completes-the-change):
    /// everything before the barrier was accepted or returned.
    fn echo_came(&mut self, from: RegionId, stamp: Generation) {
        let waits = matches!(self.route.mode, RouteState::Wait(_));
        if waits && self.is_current(from, stamp) {
            self.route.complete(self.fault_injection);
        }
    }

    /// Returns whether a bounce or echo belongs to the lane in use. If not, that lane was given up,
    /// or its region left the configuration.
    fn is_current(&self, from: RegionId, stamp: Generation) -> bool {
        let current = self.route.mode.current();
        current.is_some_and(|current| current.home == from && current.generation == stamp)
    }

    /// Returns whether messages of this node stay here: the shard lives or drains here by the
    /// decision in use. Then a newer announcement is only remembered
    /// (docs/protocol/message-order.md#the-own-region-keeps-its-gate).
    fn stays_here(&self) -> bool {
        let (HostingPhase::Hosting(at) | HostingPhase::Draining(at)) = self.host.standing.run
        else {
            return false;
        };
        self.is_current(self.me, at)
    }
}

#[cfg(feature = "canaries")]
impl<M> Gate<M> {
    /// Returns the same gate with an injected fault.
    #[must_use]
    pub const fn with_fault(mut self, fault_injection: GateFaultInjection) -> Self {
        self.fault_injection = fault_injection;
        self
    }
}

#[cfg(test)]
mod tests;
