//! The gate of one shard on one node: every message for the shard passes it, in either direction
//! (spec/safety.md §5, model-checked in spec/reference/order.md).
//!
//! It has two halves. The *route* half sends messages of this node down the lane to the shard's
//! home, and buffers while it has none or is changing lanes. The *host* half takes messages that
//! came down lanes to this node: accepts them, holds them until a decision arrives, or sends them
//! back. A node's own region is a home like any other, with a lane of length zero.
//!
//! Synchronous and under one lock per shard: whoever owns it calls one method at a time, and what
//! that does to lanes and mailboxes (through [`Post`]) happens inside. So nothing overtakes a
//! flush. Knows no runtime, no socket, no clock, and nothing of what a message is.

mod budget;
pub mod bug;
mod host;
mod route;

use std::collections::VecDeque;

use bug::{Bug, Canary};
use host::{Host, Lane, Verdict};
use route::{Current, Mode, Route};

pub use budget::{Budget, Full, HELD_FLOOR, HeldBudget, Limits, Reached, Waits};
pub use host::{Run, Standing};
pub use route::{Decision, Fit, Item};

use super::ids::{Generation, RegionId};

/// What a gate needs of its node. Lock order: gate, lane, mailbox.
///
/// A stamp is the generation by which its sender believes the receiver to be the home.
pub trait Post<M> {
    /// Appends a message to the lane to a region.
    ///
    /// # Errors
    /// Gives the message back if the lane is full ([`Gate::room`] then says that it no longer is)
    /// or not there yet, or if there is none, because the region is out of the installed
    /// configuration: a newer decision will come.
    fn send(
        &mut self,
        to: RegionId,
        stamp: Generation,
        item: Item<M>,
        fit: Fit,
    ) -> Result<(), NotSent<M>>;

    /// Appends a barrier to the lane to a region, full or not.
    ///
    /// # Errors
    /// [`Gone`] if there is none, because the region is out of the installed configuration.
    fn barrier(&mut self, to: RegionId, stamp: Generation) -> Result<(), Gone>;

    /// Sends a message back to the node that it came from, full or not, with its stamp and the
    /// newest decision known here.
    fn bounce(&mut self, to: RegionId, back: Bounce<M>);

    /// Answers a barrier, behind every bounce before it.
    fn echo(&mut self, to: RegionId, stamp: Generation);

    /// Into the mailbox of its entity.
    fn accept(&mut self, from: RegionId, item: Item<M>, origin: Origin);

    /// More is held than may be: a counted dead letter, an answer at once for an ask.
    fn refuse(&mut self, from: RegionId, item: Item<M>);

    /// A message that came back down a lane that was given up: it was counted as lost then.
    fn ignore(&mut self, from: RegionId, item: Item<M>);

    /// Room in the buffer, for a message of `bytes` bytes in a gate where `own` wait; see
    /// [`Budget::reserve`].
    ///
    /// # Errors
    /// [`Full`] if the region's or the shard's limit is reached.
    fn reserve(&mut self, bytes: usize, own: Waits) -> Result<(), Full>;

    /// A message that had reserved its room has left the buffer.
    fn release(&mut self, bytes: usize);

    /// Room for a message of `bytes` bytes from a lane that is held, in a gate where `own` are; see
    /// [`Budget::reserve`]. A node's own lane may be refused at no loss, another only at that of the
    /// message.
    ///
    /// # Errors
    /// [`Full`] if a limit is reached.
    fn reserve_held(&mut self, from: RegionId, bytes: usize, own: Waits) -> Result<(), Full>;

    /// Messages of a lane that had reserved their room are held no longer.
    fn release_held(&mut self, from: RegionId, what: Waits);
}

/// Why a message is not on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSent<M> {
    /// The lane has no room now.
    Full(Item<M>),
    /// There is no such lane any more.
    Gone(Item<M>),
}

/// A region is out of the installed configuration, and its lane has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A message on its way back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bounce<M> {
    /// As it was stamped.
    pub stamp: Generation,
    /// The message.
    pub item: Item<M>,
    /// The newest decision that its receiver knows; above the stamp.
    pub newest: Decision,
}

/// Who tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Anybody.
    #[default]
    Anybody,
    /// A handler of an entity that drains on this node: what it tells a shard that drains here
    /// too is handled here, before that shard's mailboxes are sealed.
    DrainingHandler,
}

/// What became of a message that was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// On its lane, or in its mailbox.
    Sent,
    /// In the buffer.
    Buffered,
    /// In the buffer, as the first one: somebody should ask for the shard's home.
    FirstWithoutHome,
}

/// The way on which nothing waits and nothing has to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Clear {
    Not,
    /// Down a lane.
    Lane(Current),
    /// Into a mailbox of this node.
    Here,
}

/// The gate of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(C)] // a message on a clear way touches only what stands first
pub struct Gate<M> {
    clear: Clear, // follows from the rest; set anew by whatever changes it
    me: RegionId,
    route: Route<M>,
    host: Host<M>,
    canary: Canary,
}

impl<M> Gate<M> {
    /// The gate on the node of region `me`, which knows of no home.
    #[must_use]
    pub const fn new(me: RegionId) -> Self {
        Self {
            clear: Clear::Not,
            me,
            route: Route::new(),
            host: Host::new(),
            canary: Canary::none(),
        }
    }

    /// A message of this node.
    ///
    /// # Errors
    /// [`Full`], with the message, if it would have to wait and there is no room.
    pub fn tell(
        &mut self,
        item: Item<M>,
        origin: Origin,
        post: &mut impl Post<M>,
    ) -> Result<Told, (Full, Item<M>)> {
        let item = match self.clear {
            Clear::Lane(Current { generation, home }) => {
                match post.send(home, generation, item, Fit::Must) {
                    Ok(()) => return Ok(Told::Sent),
                    Err(NotSent::Full(item) | NotSent::Gone(item)) => item,
                }
            }
            Clear::Here => {
                post.accept(self.me, item, origin);
                return Ok(Told::Sent);
            }
            Clear::Not => item,
        };
        let told = self.tell_unclear(item, origin, post);
        self.flush(post);
        told
    }

    /// An acked decision: from an announcement or the coordinator's answer.
    pub fn learn(&mut self, decision: Decision, post: &mut impl Post<M>) {
        self.learnt(decision, post);
        self.flush(post);
    }

    /// Whether all that [`arrived`](Self::arrived) does with a message is to have it
    /// [accepted](Post::accept): then whoever has its bytes elsewhere need not make a message of it.
    #[must_use]
    pub fn accepts(&self, from: RegionId, stamp: Generation) -> bool {
        self.host.accepts(from, Lane::Remote, stamp, self.canary)
    }

    /// A message from the lane of another node.
    pub fn arrived(
        &mut self,
        from: RegionId,
        stamp: Generation,
        item: Item<M>,
        post: &mut impl Post<M>,
    ) {
        let (canary, word) = (self.canary, (stamp, item));
        let reserve = |bytes, own| post.reserve_held(from, bytes, own).is_ok();
        let verdict = self.host.arrive(from, Lane::Remote, word, canary, reserve);
        self.carry_out(from, verdict, Origin::Anybody, post);
    }

    /// A barrier from the lane of another node.
    pub fn barrier_arrived(&mut self, from: RegionId, stamp: Generation, post: &mut impl Post<M>) {
        let verdict = self.host.barrier(from, stamp, self.canary);
        self.carry_out(from, verdict, Origin::Anybody, post);
    }

    /// A message came back from another node.
    pub fn bounced(&mut self, from: RegionId, back: Bounce<M>, post: &mut impl Post<M>) {
        if self.is_current(from, back.stamp) {
            self.came_back(back, post);
            self.flush(post);
        } else {
            post.ignore(from, back.item);
        }
    }

    /// The echo of a barrier came from another node.
    pub fn echoed(&mut self, from: RegionId, stamp: Generation, post: &mut impl Post<M>) {
        self.echo_came(from, stamp);
        self.flush(post);
    }

    /// The shard stands differently with the region of this node.
    ///
    /// `payload` is what a start takes along, to go ahead of everything. Whoever seals the
    /// mailboxes of a shard that has drained says so in the same step, under the same lock, with
    /// `Standing { run: Run::Idle, ..gate.standing() }`; what the region's machine had said before
    /// it heard of that does not undo it.
    pub fn stand(
        &mut self,
        mut standing: Standing,
        mut payload: VecDeque<Item<M>>,
        post: &mut impl Post<M>,
    ) {
        let sealed = self.host.standing.run == Run::Idle;
        if sealed && matches!(standing.run, Run::Draining(_)) {
            standing.run = Run::Idle; // only what lives here can drain
        }
        let stayed = self.stays_here();
        self.host.standing = standing;
        if !self.canary.has(Bug::PayloadBehind) {
            payload.drain(..).for_each(|item| post.accept(self.me, item, Origin::Anybody));
        }
        let newest = Decision { generation: standing.newest, home: standing.home };
        if stayed && !self.stays_here() {
            // The own lane is empty: nothing has to be waited for (S9).
            self.route.learn(newest);
            self.route.complete(self.canary);
        } else {
            self.learnt(newest, post);
        }
        let settled = self.host.settle(self.me, self.canary);
        self.release_held(post);
        for (from, verdict) in settled {
            self.carry_out(from, verdict, Origin::Anybody, post);
        }
        payload.drain(..).for_each(|item| post.accept(self.me, item, Origin::Anybody));
        self.flush(post);
    }

    /// A region is out of the installed configuration: its lane has ended, and with it what was
    /// on it and was not acknowledged. What was, and is held here, stays: its node may have left
    /// in order, for none of its messages waited with it.
    pub fn removed(&mut self, region: RegionId, post: &mut impl Post<M>) {
        let current = self.route.mode.current();
        if self.route.known.home == Some(region) {
            self.route.known.home = None;
        }
        if let Some(current) = current.filter(|current| current.home == region) {
            self.lane_ended(current);
        }
        self.host.ended(region, self.canary);
        self.release_held(post);
        self.flush(post);
    }

    /// Lanes of which messages are held for a decision that nobody has told of here.
    pub fn ahead(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.host.ahead()
    }

    /// Takes out what is held of a lane: its sender is out, and nobody tells of the decision that it
    /// waits for.
    pub fn give_up_held(&mut self, lane: RegionId, post: &mut impl Post<M>) -> Vec<Item<M>> {
        let taken = self.host.forget(lane);
        self.release_held(post);
        taken
    }

    /// A region's lane is cut for long while its node stays a member. If the shard has moved on,
    /// whatever was on that lane is given up, and true is returned: count what it had not
    /// acknowledged.
    pub fn give_up(&mut self, region: RegionId, post: &mut impl Post<M>) -> bool {
        let elsewhere = self.route.known.home.is_some_and(|home| home != region);
        let waits = matches!(self.route.mode, Mode::Wait(current) if current.home == region);
        if !(elsewhere && waits) {
            return false;
        }
        self.route.complete(self.canary);
        self.flush(post);
        true
    }

    /// While a change of lanes is under way: says the barrier again. It, or its echo, may be lost
    /// with a lane that one of its ends has given up; a second echo is of nothing any more.
    pub fn remind(&mut self, post: &mut impl Post<M>) {
        if let Mode::Wait(current) = self.route.mode
            && current.home != self.me
            && post.barrier(current.home, current.generation).is_err()
        {
            self.lane_ended(current);
        }
        self.flush(post);
    }

    /// The lane in use has room again: sends what waits, until about so many bytes are sent. Whether
    /// more waits and the lane has not refused it.
    pub fn room(&mut self, bytes: usize, post: &mut impl Post<M>) -> bool {
        let more = self.send_waiting(bytes, post);
        self.look();
        more
    }

    /// Takes out whatever waits or is held: this node is over, and nobody will handle it.
    pub fn empty(&mut self, post: &mut impl Post<M>) -> Vec<Item<M>> {
        let mut taken = Vec::with_capacity(self.waiting() + self.held());
        for (item, counts) in self.route.empty() {
            if counts {
                post.release(item.bytes);
            }
            taken.push(item);
        }
        taken.extend(self.host.empty());
        self.release_held(post);
        self.look();
        taken
    }

    /// Messages of this node that wait here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.route.waiting()
    }

    /// Bytes of those of them that count against the buffer's limits.
    #[must_use]
    pub const fn buffered_bytes(&self) -> usize {
        self.route.counted().bytes
    }

    /// Those of them that wait for a lane, not for a home to be known.
    #[must_use]
    pub fn behind_a_lane(&self) -> usize {
        if self.route.mode == Mode::Parked { 0 } else { self.route.waiting() }
    }

    /// Messages from lanes that are held here.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.host.held().messages
    }

    /// Whether a message of this node goes straight to its mailbox here: exactly then
    /// [`tell`](Self::tell) would [accept](Post::accept) it, and do nothing else.
    #[must_use]
    pub const fn leads_here(&self) -> bool {
        matches!(self.clear, Clear::Here)
    }

    /// The lane down which a message of this node goes at once, and its stamp: exactly then
    /// [`tell`](Self::tell) would [send](Post::send) it there, and do nothing else if the lane takes it.
    #[must_use]
    pub const fn lane(&self) -> Option<(RegionId, Generation)> {
        match self.clear {
            Clear::Lane(Current { generation, home }) => Some((home, generation)),
            Clear::Here | Clear::Not => None,
        }
    }

    /// Whether messages wait and no decision says where to: somebody has to ask for the shard's
    /// home. Look after every call: a lane may end by any of them.
    #[must_use]
    pub fn wants_home(&self) -> bool {
        self.route.mode == Mode::Parked && self.route.waiting() > 0
    }

    /// Whether messages of this node go down a lane to another node, or wait for room in it.
    #[must_use]
    pub fn uses_lane(&self) -> bool {
        matches!(self.route.mode, Mode::Open(current) if current.home != self.me)
    }

    /// Whether a change of lanes is under way.
    #[must_use]
    pub const fn is_moving(&self) -> bool {
        matches!(self.route.mode, Mode::Wait(_))
    }

    /// The newest acked decision that this gate has heard of.
    #[must_use]
    pub const fn newest(&self) -> Decision {
        self.route.known
    }

    /// How the shard stands with the region of this node.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        self.host.standing
    }
}

#[cfg(test)]
impl<M> Gate<M> {
    fn held_messages(&self) -> impl Iterator<Item = &Item<M>> + '_ {
        self.host.messages()
    }

    fn holds_barrier_of(&self, lane: RegionId) -> bool {
        self.host.holds_barrier_of(lane)
    }
}

/// The steps of both halves, and how they meet on the own lane.
impl<M> Gate<M> {
    fn tell_unclear(
        &mut self,
        item: Item<M>,
        origin: Origin,
        post: &mut impl Post<M>,
    ) -> Result<Told, (Full, Item<M>)> {
        let Some(current) = self.route.open(self.canary) else { return self.buffer(item, post) };
        match self.send(current, item, (origin, Fit::Must), post) {
            Ok(()) => Ok(Told::Sent),
            Err(NotSent::Full(item)) => self.buffer(item, post),
            Err(NotSent::Gone(item)) => {
                self.lane_ended(current);
                self.buffer(item, post)
            }
        }
    }

    /// Sets `clear` by the rest.
    fn look(&mut self) {
        self.clear = match self.route.open(Canary::none()) {
            Some(_) if self.stays_here() => Clear::Here,
            Some(current) if current.home != self.me => Clear::Lane(current),
            _ => Clear::Not,
        };
    }

    fn buffer(&mut self, item: Item<M>, post: &mut impl Post<M>) -> Result<Told, (Full, Item<M>)> {
        let first = self.route.waiting() == 0 && self.route.mode == Mode::Parked;
        match post.reserve(item.bytes, self.route.counted()) {
            Ok(()) => self.route.push(item),
            Err(full) => return Err((full, item)),
        }
        Ok(if first { Told::FirstWithoutHome } else { Told::Buffered })
    }

    /// Sends what can be sent. Whatever changed the gate ends with it.
    fn flush(&mut self, post: &mut impl Post<M>) {
        self.send_waiting(usize::MAX, post);
        self.look();
    }

    /// As many as the lane has room for (S2), until so many bytes are sent. The lane may change on the
    /// way. Whether more waits and the lane has not refused it.
    fn send_waiting(&mut self, most: usize, post: &mut impl Post<M>) -> bool {
        let mut sent = 0_usize;
        while sent < most
            && let Some((current, waiting, fit)) = self.route.next()
        {
            let (counts, bytes) = (waiting.counts, waiting.item.bytes);
            let put_back = |item| route::Waiting { item, counts };
            match self.send(current, waiting.item, (Origin::Anybody, fit), post) {
                Ok(()) if counts => {
                    self.route.left(bytes);
                    post.release(bytes);
                }
                Ok(()) => {}
                Err(NotSent::Full(item)) => {
                    self.route.put_back(put_back(item), fit);
                    return false;
                }
                Err(NotSent::Gone(item)) => {
                    self.route.put_back(put_back(item), fit);
                    self.lane_ended(current);
                }
            }
            sent = sent.saturating_add(bytes.max(1));
        }
        matches!(self.route.mode, Mode::Open(_)) && self.route.buffered() > 0
    }

    fn send(
        &mut self,
        current: Current,
        item: Item<M>,
        (origin, fit): (Origin, Fit),
        post: &mut impl Post<M>,
    ) -> Result<(), NotSent<M>> {
        let Current { generation, home } = current;
        if home != self.me {
            return post.send(home, generation, item, fit);
        }
        let (canary, me, word) = (self.canary, self.me, (generation, item));
        let reserve = |bytes, own| post.reserve_held(me, bytes, own).is_ok();
        match self.host.arrive(self.me, Lane::Own, word, canary, reserve) {
            // Until the shard stands otherwise here: as a lane that is full.
            Verdict::Refuse(item) => Err(NotSent::Full(item)),
            verdict => {
                self.carry_out(self.me, verdict, origin, post);
                Ok(())
            }
        }
    }

    /// What was held before, and is not any more.
    fn release_held(&mut self, post: &mut impl Post<M>) {
        for (lane, what) in self.host.take_left() {
            post.release_held(lane, what);
        }
    }

    fn carry_out(
        &mut self,
        from: RegionId,
        verdict: Verdict<M>,
        origin: Origin,
        post: &mut impl Post<M>,
    ) {
        let Standing { newest, home, .. } = self.host.standing;
        match verdict {
            Verdict::Hold => {}
            Verdict::Accept(item) => post.accept(from, item, origin),
            Verdict::Refuse(item) => post.refuse(from, item),
            Verdict::Bounce { stamp, item } => {
                let newest = Decision { generation: newest, home };
                let back = Bounce { stamp, item, newest };
                if from != self.me {
                    post.bounce(from, back);
                } else if self.is_current(from, stamp) {
                    self.came_back(back, post);
                } else {
                    post.ignore(from, back.item);
                }
            }
            Verdict::Echo { stamp } if from == self.me => self.echo_came(from, stamp),
            Verdict::Echo { stamp } => post.echo(from, stamp),
        }
    }

    /// S3.
    fn learnt(&mut self, decision: Decision, post: &mut impl Post<M>) {
        if !self.route.learn(decision) {
            return;
        }
        match self.route.mode {
            Mode::Parked => self.route.complete(self.canary),
            Mode::Open(_) if self.stays_here() => {}
            Mode::Open(current) => self.change(current, post),
            Mode::Wait(current) if self.canary.has(Bug::BarrierReplaced) => {
                let home = decision.home.unwrap_or(current.home);
                self.change(Current { generation: decision.generation, home }, post);
            }
            Mode::Wait(_) => {}
        }
    }

    /// S4.
    fn came_back(&mut self, back: Bounce<M>, post: &mut impl Post<M>) {
        self.route.returned(back.item);
        self.learnt(back.newest, post);
        if let Mode::Open(current) = self.route.mode
            && current.generation == back.stamp
        {
            self.change(current, post);
        }
    }

    /// Waits for everything on the lane to be accepted or to come back.
    fn change(&mut self, current: Current, post: &mut impl Post<M>) {
        self.route.mode = Mode::Wait(current);
        if self.canary.has(Bug::FlushWithoutEcho) {
            return self.route.complete(self.canary);
        }
        if current.home != self.me {
            if post.barrier(current.home, current.generation).is_err() {
                self.lane_ended(current);
            }
            return;
        }
        let verdict = self.host.barrier(self.me, current.generation, self.canary);
        self.carry_out(self.me, verdict, Origin::Anybody, post);
    }

    /// S6.
    fn lane_ended(&mut self, current: Current) {
        if self.route.known.generation > current.generation {
            self.route.complete(self.canary);
        } else {
            self.route.mode = Mode::Parked;
        }
    }

    /// S5.
    fn echo_came(&mut self, from: RegionId, stamp: Generation) {
        let waits = matches!(self.route.mode, Mode::Wait(_));
        if waits && self.is_current(from, stamp) {
            self.route.complete(self.canary);
        }
    }

    /// Whether something from a lane belongs to what is on it now. If not, the lane was given up,
    /// or its end removed.
    fn is_current(&self, from: RegionId, stamp: Generation) -> bool {
        let current = self.route.mode.current();
        current.is_some_and(|current| current.home == from && current.generation == stamp)
    }

    /// While the shard lives or drains here by the decision that messages go by, they go on
    /// coming here: announcements only raise what is known (S9).
    fn stays_here(&self) -> bool {
        let (Run::Hosting(at) | Run::Draining(at)) = self.host.standing.run else { return false };
        self.is_current(self.me, at)
    }
}

#[cfg(feature = "canaries")]
impl<M> Gate<M> {
    /// The same with a rule left out.
    #[must_use]
    pub const fn with_canary(mut self, canary: Canary) -> Self {
        self.canary = canary;
        self
    }
}

#[cfg(test)]
mod tests;
