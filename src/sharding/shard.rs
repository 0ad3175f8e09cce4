//! One shard on one node: its gate and its entities under one lock, and the effects of the gate's
//! verdicts on the entities.
//!
//! Under the lock no code of the user runs, except `Serialize` when mailboxes are sealed. Values
//! and messages to drop are collected in [`After`] and dropped once the lock is released.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use smallvec::SmallVec;

use super::actives::Leaver;
use super::batch::{Entry, Passing};
use super::bug::{Bug, Canary};
use super::crowded::Crowded;
use super::dead_letters::Lost;
use super::entity::Entity;
use super::entity_ref::TellError;
use super::frame;
use super::gate::{
    Bounce, Fit, Full, Gate, Gone, Item, NotSent, Origin, Post, Reached, Run, Standing, Told, Waits,
};
use super::handover::{HandOver, Leaving, State};
use super::hosting::NoRoom;
use super::id_hash::hash;
use super::ids::{EntityId, Generation, RegionId, ShardId};
use super::instance::Instance;
use super::letter::Letter;
use super::linger::Linger;
use super::mailbox::MailboxFull;
use super::moved::Orphaned;
use super::passivating::ShardBooks;
use super::payload;
use super::runtime::{LONG_BYTES, Runtime};
use super::scope;
use super::slow_handlers::{Handling, RunningRow};
use super::tenancy::{Phase, Stage};
use super::tenants::Tenants;
use super::tracked::Unfinished;
use crate::threads::Apart;

/// Why states are lost when the node is out.
const OVER: &str = "their node is out of the configuration";

/// A shard on this node.
pub(super) struct Shard<E: Entity> {
    pub(super) id: ShardId,
    /// The stage of the shard. Handlers read it without the lock.
    pub(super) phase: Arc<Phase>,
    /// Hint that the shard is hosted here, so that messages of this node need no encoding.
    pub(super) here: AtomicBool,
    lapses: AtomicU64, // copy of `Floor::lapses` that handlers read without the lock
    /// Every message changes it. On its own cache line it causes no cache misses for handlers and
    /// senders that read the fields above.
    inside: Apart<Mutex<Inside<E>>>,
}

/// The state behind a shard's lock.
pub(super) struct Inside<E: Entity> {
    pub(super) gate: Gate<Letter>,
    pub(super) floor: Floor<E>,
}

/// The entities behind the gate, and their state.
pub(super) struct Floor<E: Entity> {
    pub(super) tenants: Tenants<E>,
    /// Number of entities with a task.
    pub(super) running: usize,
    /// The decision by which the shard is hosted here.
    pub(super) generation: Generation,
    /// The payload for the next start.
    pub(super) carried: Option<Bytes>,
    pub(super) books: ShardBooks,
    /// Number of long lapses of the lease while entities ran here. No instance outlives one.
    pub(super) lapses: u64,
    /// Number of tasks that are dropping idle instances. No activation begins before they have
    /// ended.
    leaving: u32,
    pub(super) linger: Linger,
    canary: Canary,
    wanted: bool, // the region was asked for the home
    /// Entities that are busy at the shard's home.
    pub(super) crowded: Option<Box<Crowded>>,
    /// The lane that had no room when a caller was refused last; inner `None`: messages waited for
    /// it. Callers may try again once this changes.
    callers_saw: Option<Option<(RegionId, Generation)>>,
    pub(super) orphaned: Option<Box<Orphaned>>,
    /// Rows whose handlers were found to be slow; some may have ended since.
    pub(super) slow: BTreeSet<u32>, // ≤ rows
    /// The handler that had awaited for the longest time at the last check; it may have ended since.
    pub(super) oldest: Option<RunningRow>,
    pub(super) scratch: Vec<u8>, // buffer for one frame
}

/// A task to begin.
pub(super) struct Start {
    pub(super) row: u32,
    pub(super) id: EntityId,
    pub(super) waker: Option<Arc<Handling>>,
    /// The lapses of the floor when the entity got the task.
    pub(super) lapses: u64,
}

/// Effects to carry out once the lock is released.
pub(super) struct After<E: Entity> {
    pub(super) starts: SmallVec<[Start; 1]>,
    pub(super) wanted: bool,
    /// Callers that wait for an entity elsewhere may try again.
    pub(super) freed: bool,
    pub(super) drained: Option<Option<Bytes>>,
    /// Entities to passivate, in any shard.
    pub(super) leavers: Vec<Leaver>,
    /// Entity instances to drop outside the lock.
    pub(super) values: Vec<Box<Instance<E>>>,
    pub(super) typed: Vec<E::Message>,
    pub(super) lost: Vec<(Lost, Entry<E::Message>)>,
    /// Idle instances to end. Together they count as one running task.
    pub(super) leaving: Option<Leaving<E>>,
}

impl<E: Entity> Default for After<E> {
    fn default() -> Self {
        Self {
            starts: SmallVec::new(),
            wanted: false,
            freed: false,
            drained: None,
            leavers: Vec::new(),
            values: Vec::new(),
            typed: Vec::new(),
            lost: Vec::new(),
            leaving: None,
        }
    }
}

/// Entry point of a message: its shard and the type's runtime.
pub(super) struct Visit<'a, E: Entity> {
    pub(super) shard: &'a Shard<E>,
    pub(super) runtime: &'a Runtime<E>,
}

impl<E: Entity> After<E> {
    /// The usual result of a message.
    pub(super) fn is_nothing(&self) -> bool {
        let Self { starts, wanted, freed, drained, leavers, values, typed, lost, leaving } = self;
        starts.is_empty()
            && !(*wanted || *freed)
            && drained.is_none()
            && leavers.is_empty()
            && values.is_empty()
            && typed.is_empty()
            && lost.is_empty()
            && leaving.is_none()
    }
}

impl<E: Entity> Shard<E> {
    pub(super) fn new(id: ShardId, me: RegionId, books: ShardBooks, canary: Canary) -> Self {
        let floor = Floor {
            tenants: Tenants::new(),
            running: 0,
            generation: Generation::NEVER,
            carried: None,
            books,
            lapses: 0,
            leaving: 0,
            linger: Linger::new(),
            canary,
            wanted: false,
            crowded: None,
            callers_saw: None,
            orphaned: None,
            slow: BTreeSet::new(),
            oldest: None,
            scratch: Vec::new(),
        };
        Self {
            id,
            phase: Arc::default(),
            here: AtomicBool::new(false),
            lapses: AtomicU64::new(0),
            inside: Apart(Mutex::new(Inside { gate: Gate::new(me), floor })),
        }
    }

    /// Number of long lapses, see [`Floor::lapses`].
    pub(super) fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::Acquire)
    }

    /// Whether the current message comes from a draining handler while this shard drains too. Such
    /// a message is handled before the payload is sealed, because the handler may wait for it
    /// (docs/protocol/sharding.md#draining-handlers-reach-draining-shards).
    fn is_waited_for(&self) -> bool {
        self.phase.is_draining() && scope::is_draining()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inside<E>> {
        self.inside.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` at the gate under the lock, then carries out the effects.
    pub(super) fn pass<T>(
        self: &Arc<Self>,
        runtime: &Arc<Runtime<E>>,
        fit: Fit,
        act: impl FnOnce(&mut Gate<Letter>, &mut Desk<'_, E>) -> T,
    ) -> T {
        let mut after = After::default();
        let result = {
            let mut inside = self.lock();
            let Inside { gate, floor } = &mut *inside;
            let mut desk =
                Desk { runtime, shard: self, floor, after: &mut after, fit, moved: false };
            let result = act(gate, &mut desk);
            self.look(gate, floor, &mut after);
            result
        };
        runtime.carry_out(self, after);
        result
    }

    /// Updates what is derived from the gate: the hint, the request for a home, and whether callers
    /// may retry.
    pub(super) fn look(&self, gate: &Gate<Letter>, floor: &mut Floor<E>, after: &mut After<E>) {
        self.here.store(gate.leads_here(), Ordering::Release);
        let wants = gate.wants_home();
        after.wanted |= wants && !floor.wanted;
        floor.wanted = wants;
        if floor.callers_saw.is_some_and(|saw| saw != gate.lane()) {
            (floor.callers_saw, after.freed) = (None, true);
        }
        if floor.crowded.as_ref().is_some_and(|crowded| !crowded.stands(gate.newest())) {
            (floor.crowded, after.freed) = (None, true);
        }
    }
}

impl<E: Entity> Floor<E> {
    /// The route has changed, so a missing home is requested again.
    pub(super) const fn ask_again(&mut self) {
        self.wanted = false;
    }

    /// Whether an entity's mailbox has room for a message of `bytes` bytes.
    pub(super) fn check_room(
        &mut self,
        (hash, id): (u64, &[u8]),
        bytes: usize,
        visit: &Visit<'_, E>,
    ) -> Result<(), MailboxFull> {
        let row = self.tenants.find(hash, id);
        row.map_or(Ok(()), |row| self.check_row(row, bytes, visit))
    }

    fn check_row(
        &mut self,
        row: u32,
        bytes: usize,
        Visit { shard, runtime }: &Visit<'_, E>,
    ) -> Result<(), MailboxFull> {
        let Some(busy) = &mut self.tenants.get_mut(row).busy else { return Ok(()) };
        let checked = busy.mailbox.check(runtime.room_of_mailbox(), bytes);
        // A full mailbox of a draining shard gets no room, so a message that a draining handler
        // waits for is accepted anyway; otherwise it would delay the drain.
        if checked.is_err() && shard.is_waited_for() { Ok(()) } else { checked }
    }

    /// Puts a message of this node into the mailbox, or returns it if the mailbox is full.
    pub(super) fn push_within(
        &mut self,
        visit: Visit<'_, E>,
        to: (u64, &str),
        (message, bytes): (E::Message, u32),
        after: &mut After<E>,
    ) -> Result<(), (MailboxFull, E::Message)> {
        let known = self.tenants.find(to.0, to.1.as_bytes());
        if let Some(row) = known
            && let Err(full) = self.check_row(row, bytes as usize, &visit)
        {
            return Err((full, message));
        }
        let row = known.unwrap_or_else(|| self.add(to.0, to.1));
        self.push(row, to.0, visit, Passing::typed(message, bytes), after);
        Ok(())
    }

    fn add(&mut self, hash: u64, id: &str) -> u32 {
        let id = EntityId::new(id).expect("ids are checked where they come in");
        self.tenants.add(hash, id)
    }

    /// Puts a message into the mailbox, and starts the entity if it is not running and the stage
    /// allows it.
    fn push(
        &mut self,
        row: u32,
        hash: u64,
        Visit { shard, runtime }: Visit<'_, E>,
        message: Passing<'_, E::Message>,
        after: &mut After<E>,
    ) {
        let stage = shard.phase.get();
        let waited_for = shard.is_waited_for() && !self.canary.has(Bug::DrainingHandlersNotMarked);
        let busy = self.tenants.busy(row);
        busy.mailbox.push(message);
        if waited_for {
            busy.marked = busy.mailbox.len();
        }
        let may_start = !busy.runs && self.leaving == 0;
        let starts = may_start && (stage == Stage::Open || waited_for);
        if starts {
            self.start(row, after);
        }
        if stage == Stage::Open {
            self.visit(row, hash, Visit { shard, runtime }, after);
        }
    }

    /// The entity has nothing to do: parks its row, or removes the row if it has neither instance
    /// nor state.
    pub(super) fn park(&mut self, row: u32, runtime: &Runtime<E>, after: &mut After<E>) {
        self.running -= 1;
        self.tenants.idle(row);
        let tenant = self.tenants.get_mut(row);
        let (slot, stays) = (tenant.slot, tenant.state.is_some());
        if stays || self.tenants.is_dormant(row) {
            self.rest(row, runtime, after);
        } else {
            after.values.extend(self.tenants.remove(row, hash));
            self.leave_books(slot);
        }
    }

    /// Stores a state that an instance exported before a move. Returns false if the entity has one
    /// already; the new one is then lost.
    fn arrive(
        &mut self,
        id: EntityId,
        state: State,
        Visit { shard, runtime }: Visit<'_, E>,
        after: &mut After<E>,
    ) -> bool {
        let hash = hash(id.as_bytes());
        let known = self.tenants.find(hash, id.as_bytes());
        let row = known.unwrap_or_else(|| self.tenants.add(hash, id));
        let is_first = self.tenants.keep(row, state).is_none();
        if is_first {
            self.visit(row, hash, Visit { shard, runtime }, after);
            if self.tenants.get(row).busy.is_none() {
                self.rest(row, runtime, after);
            }
        }
        is_first
    }

    /// Starts a task for an entity.
    pub(super) fn start(&mut self, row: u32, after: &mut After<E>) {
        let busy = self.tenants.busy(row);
        busy.runs = true;
        let waker = busy.waker.clone();
        self.running += 1;
        let (id, lapses) = (self.tenants.get(row).id.clone(), self.lapses);
        after.starts.push(Start { row, id, waker, lapses });
    }

    /// Starts a task for messages that a draining handler waits for, unless one runs already.
    pub(super) fn go_on(&mut self, row: u32, after: &mut After<E>) {
        let busy = self.tenants.get(row).busy.as_ref();
        if busy.is_some_and(|busy| busy.marked > 0 && !busy.runs) {
            self.start(row, after);
        }
    }

    pub(super) fn wake(&mut self) {
        let busy = self.tenants.all().filter_map(|tenant| tenant.busy.as_ref());
        let running = busy.filter(|busy| busy.runs);
        running.filter_map(|busy| busy.waker.as_ref()).for_each(|handling| handling.waker.wake());
    }
}

/// Effects of the gate: access to the node, its lanes and its mailboxes.
pub(super) struct Desk<'a, E: Entity> {
    pub(super) runtime: &'a Arc<Runtime<E>>,
    pub(super) shard: &'a Arc<Shard<E>>,
    pub(super) floor: &'a mut Floor<E>,
    pub(super) after: &'a mut After<E>,
    pub(super) fit: Fit,
    /// The message comes from a lane and had been bounced or had waited for a home.
    pub(super) moved: bool,
}

impl<E: Entity> Desk<'_, E> {
    /// Applies the region's verdict: the shard starts, continues or drains here.
    pub(super) fn stand(&mut self, gate: &mut Gate<Letter>, standing: Standing) {
        let stage = self.shard.phase.get();
        let carried = match standing.run {
            Run::Hosting(generation) => {
                self.floor.generation = generation;
                if stage == Stage::Empty && !self.runtime.is_over() {
                    self.shard.phase.set(Stage::Open);
                }
                self.carried()
            }
            Run::Draining(_) | Run::Idle => VecDeque::new(),
        };
        if stage == Stage::Open && matches!(standing.run, Run::Draining(_)) {
            // Set before the gate's standing, so that messages accepted meanwhile do not begin.
            self.shard.phase.set(Stage::Draining);
            gate.stand(standing, carried, self);
            self.drain(gate);
        } else {
            gate.stand(standing, carried, self);
        }
    }

    fn carried(&mut self) -> VecDeque<Item<Letter>> {
        let Some(payload) = self.floor.carried.take() else { return VecDeque::new() };
        let (carried, rest) = payload::read(&payload);
        if let Err(why) = rest {
            let (entity_type, shard) = (&self.runtime.entity_type, self.shard.id);
            let (read, bytes) = (carried.letters.len(), payload.len());
            tracing::error!(
                %entity_type, %shard, %why, read, bytes,
                "sharding.payload: the payload of a move does not decode; the messages and states \
                 after this place are lost: run one release on all nodes"
            );
            self.runtime.dead(Lost::Undecodable, 1, shard);
        }
        self.arrive(carried.states);
        carried
            .letters
            .into_iter()
            .map(|letter| Item { bytes: letter.bytes().len(), message: letter })
            .collect()
    }

    /// Stores the states before any message, so that instances which these messages start find
    /// them.
    fn arrive(&mut self, states: Vec<(EntityId, State)>) {
        let (shard, runtime, mut lost) = (self.shard, self.runtime, 0);
        if runtime.is_over() {
            return runtime.lose_states(states.len(), shard.id, OVER);
        }
        for (id, state) in states {
            let visit = Visit { shard, runtime };
            lost += usize::from(!self.floor.arrive(id, state, visit, self.after));
        }
        runtime.lose_states(lost, shard.id, "a move carried two for one entity");
    }

    fn drain(&mut self, gate: &mut Gate<Letter>) {
        self.floor.close_books();
        let (has_stop_message, mut instances) = (self.runtime.has_stop_message, Vec::new());
        for row in self.floor.tenants.rows().collect::<Vec<_>>() {
            let tenant = self.floor.tenants.get_mut(row);
            if tenant.busy.as_ref().is_some_and(|busy| busy.runs) {
                continue;
            }
            if has_stop_message && tenant.state.is_some() {
                self.floor.start(row, self.after);
            } else if let Some(instance) = tenant.state.take() {
                instances.push((row, tenant.id.clone(), instance));
            }
        }
        self.end(instances, HandOver::Asked);
        // tasks that wait for a restart or for the lease stop waiting
        self.floor.wake();
        // and draining handlers of other shards stop waiting for room here
        self.after.freed = true;
        self.seal_if_done(gate);
    }

    /// `handoff-timeout` has expired: aborts the running handlers.
    pub(super) fn abort(&mut self) {
        if self.shard.phase.is_draining() {
            self.shard.phase.set(Stage::Aborted);
            self.floor.wake();
        }
    }

    /// The lease has lapsed for long: ends all instances of an open shard without a stop message,
    /// because no handler may run. A draining shard ends by its own timeout.
    pub(super) fn let_go(&mut self) {
        if self.shard.phase.get() != Stage::Open {
            return;
        }
        self.floor.lapses += 1;
        self.shard.lapses.store(self.floor.lapses, Ordering::Release);
        let tenants = &mut self.floor.tenants;
        let mut instances = Vec::new();
        for row in tenants.rows().collect::<Vec<_>>() {
            let tenant = tenants.get_mut(row);
            let runs = tenant.busy.as_ref().is_some_and(|busy| busy.runs);
            if runs && !self.floor.canary.has(Bug::LetGoTakesStarted) {
                continue; // its task drops it and begins no other meanwhile
            }
            let id = &tenant.id;
            instances.extend(tenant.state.take().map(|instance| (row, id.clone(), instance)));
        }
        self.end(instances, HandOver::No);
        self.floor.wake(); // running handlers are dropped
    }

    fn end(&mut self, instances: Vec<(u32, EntityId, Box<Instance<E>>)>, hand_over: HandOver) {
        if !instances.is_empty() {
            self.leave(Leaving { hand_over, instances, unfinished: Unfinished::default() });
        }
    }

    /// Delays all activations of the shard until `unfinished` has ended. An activation that was
    /// dropped uses this, because it cannot wait for the tasks of its instance.
    pub(super) fn end_after(&mut self, unfinished: Unfinished) {
        self.leave(Leaving { hand_over: HandOver::No, instances: Vec::new(), unfinished });
    }

    fn leave(&mut self, leaving: Leaving<E>) {
        self.floor.running += 1; // until they are dropped
        self.floor.leaving += 1;
        self.after.leaving = Some(leaving);
    }

    /// Idle instances were dropped; `states` are their exported states.
    pub(super) fn left(&mut self, gate: &mut Gate<Letter>, states: Vec<(u32, State)>) {
        for (row, state) in states {
            self.keep(row, state);
        }
        assert!(self.floor.leaving > 0, "they were to end");
        self.floor.leaving -= 1;
        let stage = self.shard.phase.get();
        if self.floor.leaving == 0 && !self.runtime.is_over() {
            for row in self.floor.tenants.rows().collect::<Vec<_>>() {
                match stage {
                    Stage::Open => self.begin(row),
                    Stage::Draining => self.floor.go_on(row, self.after),
                    Stage::Empty | Stage::Aborted => {}
                }
            }
        }
        self.ended(gate);
    }

    /// An entry without an instance: starts it if messages wait, otherwise parks or removes it.
    fn begin(&mut self, row: u32) {
        let (shard, runtime) = (self.shard, self.runtime);
        let tenant = self.floor.tenants.get(row);
        match &tenant.busy {
            Some(busy) if busy.runs => {}
            Some(busy) if !busy.mailbox.is_empty() => {
                let hash = hash(tenant.id.as_bytes());
                self.floor.start(row, self.after);
                self.floor.visit(row, hash, Visit { shard, runtime }, self.after);
            }
            None if tenant.state.is_some() || self.floor.tenants.is_dormant(row) => {}
            _ => {
                self.floor.running += 1; // `park` counts it as ended
                self.floor.park(row, runtime, self.after);
            }
        }
    }

    /// Stores a state for the next instance, here or at the next home.
    pub(super) fn keep(&mut self, row: u32, state: State) {
        if self.runtime.is_over() {
            return self.runtime.lose_states(1, self.shard.id, OVER);
        }
        let before = self.floor.tenants.keep(row, state);
        assert!(before.is_none(), "an entity has one state");
    }

    /// The task of an entity has ended.
    pub(super) fn ended(&mut self, gate: &mut Gate<Letter>) {
        assert!(self.floor.running > 0, "a task ends that never began");
        self.floor.running -= 1;
        self.seal_if_done(gate);
    }

    /// Seals the payload once the last entity has ended, and turns this node's own gate to the next
    /// home in the same step, so that no message falls in between
    /// (docs/protocol/sharding.md#release-after-last-stop).
    fn seal_if_done(&mut self, gate: &mut Gate<Letter>) {
        let ends = matches!(self.shard.phase.get(), Stage::Draining | Stage::Aborted);
        if !ends || self.runtime.is_over() {
            return;
        }
        if self.floor.running > 0 {
            let (shard, runtime) = (self.shard, self.runtime);
            return self.floor.abort_slow(&Visit { shard, runtime });
        }
        self.floor.slow.clear();
        self.floor.oldest = None;
        for row in self.floor.tenants.rows().collect::<Vec<_>>() {
            self.floor.tell_emptied(row, self.shard.id, self.runtime);
        }
        let tenants = std::mem::replace(&mut self.floor.tenants, Tenants::new());
        let (payload, left) = payload::seal(tenants, self.runtime.canary);
        self.after.values.extend(left.values);
        self.after.lost.extend(left.lost);
        self.after.typed.extend(left.typed);
        self.shard.phase.set(Stage::Empty);
        self.floor.generation = Generation::NEVER;
        gate.stand(Standing { run: Run::Idle, ..gate.standing() }, VecDeque::new(), self);
        self.after.drained = Some(payload);
        // callers that wait for room in a mailbox here take the new route
        self.after.freed = true;
    }

    /// Ends everything at once, because the node is out: waiting messages are lost. Later calls see
    /// `Runtime::is_over` under this lock.
    pub(super) fn stop(&mut self, gate: &mut Gate<Letter>) {
        self.floor.close_books();
        self.shard.phase.set(Stage::Aborted);
        let dormant = self.floor.tenants.forget_dormant();
        self.runtime.lose_states(dormant, self.shard.id, OVER);
        for row in self.floor.tenants.rows().collect::<Vec<_>>() {
            let tenant = self.floor.tenants.get_mut(row);
            self.after.values.extend(tenant.state.take());
            if let Some(busy) = &mut tenant.busy {
                let lost = busy.mailbox.entries().into_iter();
                self.after.lost.extend(lost.map(|entry| (Lost::NodeStopped, entry)));
                busy.marked = 0;
            }
        }
        self.floor.wake();
        for item in self.carried().into_iter().chain(gate.empty(self)) {
            self.lose(Lost::NodeStopped, item.message);
        }
    }

    /// Puts an accepted letter into the mailbox of its entity.
    pub(super) fn deliver(&mut self, from: RegionId, message: Passing<'_, E::Message>) {
        let letter = message.letter().expect("values are told here, and not delivered");
        let (hash, bytes) = (hash(letter.id_bytes()), letter.bytes().len());
        if self.runtime.is_over() {
            return self.after.lost.push((Lost::NodeStopped, message.entry()));
        }
        let known = self.floor.tenants.find(hash, letter.id_bytes());
        let row = known.unwrap_or_else(|| self.floor.add(hash, letter.id()));
        let visit = Visit { shard: self.shard, runtime: self.runtime };
        let mut is_full = false;
        if self.fit == Fit::Must && self.floor.check_row(row, bytes, &visit).is_err() {
            self.turn_away(from, row, bytes);
            is_full = true;
        }
        if is_full || self.moved && self.is_overrun(from, row, bytes) {
            return self.after.lost.push((Lost::MailboxFull, message.entry()));
        }
        self.floor.push(row, hash, visit, message, self.after);
    }

    /// Sends a message down the lane if the lane has room and no message waits for it. Otherwise
    /// returns it to its caller.
    pub(super) fn send_or_return(
        &mut self,
        gate: &mut Gate<Letter>,
        item: Item<Letter>,
    ) -> Result<Told, (TellError, Letter)> {
        let lane = gate.lane();
        let item = match lane {
            None => item,
            Some((home, stamp)) => match self.send(home, stamp, item, Fit::Must) {
                Ok(()) => return Ok(Told::Sent),
                Err(NotSent::Full(item)) => item,
                Err(NotSent::Gone(item)) => {
                    let told = gate.tell(item, Origin::Anybody, self); // detects that itself
                    return told.map_err(|(full, item)| (full.into(), item.message));
                }
            },
        };
        self.floor.callers_saw = Some(lane);
        let full = Full { buffered: item.bytes, limit: LONG_BYTES, why: Reached::ShardBytes };
        Err((full.into(), item.message))
    }

    pub(super) fn lose(&mut self, why: Lost, letter: Letter) {
        self.after.lost.push((why, Entry::Letter(letter)));
    }
}

impl<E: Entity> Post<Letter> for Desk<'_, E> {
    fn send(
        &mut self,
        to: RegionId,
        stamp: Generation,
        item: Item<Letter>,
        fit: Fit,
    ) -> Result<(), NotSent<Letter>> {
        let frame = &mut self.floor.scratch;
        frame::message(frame, self.shard.id, stamp, fit, &item.message);
        match self.runtime.world.send(to, frame) {
            Ok(()) => return Ok(()),
            Err(NoRoom::NoLane) if self.runtime.is_removed(to) => return Err(NotSent::Gone(item)),
            Err(NoRoom::TooLong) => {
                self.lose(Lost::TooLong, item.message); // messages behind it continue
                return Ok(());
            }
            Err(NoRoom::Full | NoRoom::NoLane) => {}
        }
        // Registered before the second try, so that room reported after it reaches this shard.
        self.runtime.wait_for_room(to, self.shard.id);
        match self.runtime.world.send(to, frame) {
            Ok(()) => Ok(()),
            Err(NoRoom::TooLong) => {
                self.lose(Lost::TooLong, item.message);
                Ok(())
            }
            Err(NoRoom::Full | NoRoom::NoLane) => Err(NotSent::Full(item)),
        }
    }

    fn barrier(&mut self, to: RegionId, stamp: Generation) -> Result<(), Gone> {
        frame::barrier(&mut self.floor.scratch, self.shard.id, stamp);
        match self.runtime.world.answer(to, &self.floor.scratch) {
            Err(NoRoom::NoLane) => Err(Gone),
            Ok(()) | Err(NoRoom::Full | NoRoom::TooLong) => Ok(()), // it is repeated
        }
    }

    fn bounce(&mut self, to: RegionId, back: Bounce<Letter>) {
        let Bounce { stamp, item, newest } = back;
        if self.runtime.is_removed(to) {
            return self.lose(Lost::NodeGone, item.message); // a lane may remain without a reader
        }
        self.runtime.sent_back.fetch_add(1, Ordering::Relaxed);
        frame::bounce(&mut self.floor.scratch, self.shard.id, stamp, newest, &item.message);
        let why = match self.runtime.world.answer(to, &self.floor.scratch) {
            Ok(()) => return,
            Err(NoRoom::NoLane) => Lost::NodeGone,
            Err(NoRoom::Full) => Lost::LaneFull,
            Err(NoRoom::TooLong) => Lost::TooLong,
        };
        self.lose(why, item.message); // the echo behind it still confirms the barrier
    }

    fn echo(&mut self, to: RegionId, stamp: Generation) {
        self.runtime.sent_back.fetch_add(1, Ordering::Relaxed);
        frame::echo(&mut self.floor.scratch, self.shard.id, stamp);
        // A removed region needs no echo; others repeat their barrier.
        let _sent = self.runtime.world.answer(to, &self.floor.scratch);
    }

    fn accept(&mut self, from: RegionId, item: Item<Letter>, _origin: Origin) {
        self.deliver(from, Passing::Own(item.message));
    }

    fn refuse(&mut self, _from: RegionId, item: Item<Letter>) {
        self.lose(Lost::HeldFull, item.message);
    }

    fn ignore(&mut self, _from: RegionId, item: Item<Letter>) {
        self.lose(Lost::LaneGivenUp, item.message);
    }

    fn reserve(&mut self, bytes: usize, own: Waits) -> Result<(), Full> {
        self.runtime.budget().reserve(bytes, own)
    }

    fn release(&mut self, bytes: usize) {
        self.runtime.budget().release(bytes);
        self.runtime.room_here();
    }

    /// Messages that waited for a home elsewhere have larger limits, equal to what their senders'
    /// buffers and a lane can hold, so that a planned move loses none
    /// (docs/protocol/message-order.md#moved-messages-are-exempt).
    fn reserve_held(&mut self, from: RegionId, bytes: usize, own: Waits) -> Result<(), Full> {
        let mut held = self.runtime.held();
        if self.moved { held.reserve_moved(from, bytes) } else { held.reserve(from, bytes, own) }
    }

    fn release_held(&mut self, from: RegionId, what: Waits) {
        self.runtime.held().release(from, what);
    }
}
