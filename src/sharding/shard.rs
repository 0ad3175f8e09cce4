//! One shard on one node: its gate and its entities under one lock, and what passing the gate
//! does to them.
//!
//! Nothing of a user runs under the lock but `Serialize` when mailboxes are sealed; values and
//! messages that are given up are dropped after it.

use std::collections::VecDeque;
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
use super::slow_handlers::Handling;
use super::tenancy::{Phase, Stage};
use super::tenants::Tenants;
use super::tracked::Unfinished;
use crate::threads::Apart;

/// Why states are lost at the end.
const OVER: &str = "their node is out of the configuration";

/// A shard.
pub(super) struct Shard<E: Entity> {
    pub(super) id: ShardId,
    /// Read by handlers without the lock.
    pub(super) phase: Arc<Phase>,
    /// A hint: messages that are told here need not be encoded.
    pub(super) here: AtomicBool,
    lapses: AtomicU64, // the floor's, read by handlers without the lock
    /// Every message that comes changes it: in one line with what is above each would cost the thread
    /// that handles the last one a miss, and who tells another.
    inside: Apart<Mutex<Inside<E>>>,
}

pub(super) struct Inside<E: Entity> {
    pub(super) gate: Gate<Letter>,
    pub(super) floor: Floor<E>,
}

/// What lives behind the gate.
pub(super) struct Floor<E: Entity> {
    pub(super) tenants: Tenants<E>,
    /// Entities that have a task.
    pub(super) running: usize,
    /// By which decision it lives here.
    pub(super) generation: Generation,
    /// What the next start takes along.
    pub(super) carried: Option<Bytes>,
    pub(super) books: ShardBooks,
    /// Lapses of the lease that lasted while entities lived here: no instance outlives one.
    pub(super) lapses: u64,
    /// Tasks that drop idle instances: no other begins before they have.
    leaving: u32,
    pub(super) linger: Linger,
    canary: Canary,
    wanted: bool, // the region was asked for a home
    /// Entities that are busy where the shard lives.
    pub(super) crowded: Option<Box<Crowded>>,
    /// The lane that had no room when a caller was refused last, or none if messages waited for it:
    /// once that changes callers may try again.
    callers_saw: Option<Option<(RegionId, Generation)>>,
    pub(super) orphaned: Option<Box<Orphaned>>,
    pub(super) scratch: Vec<u8>, // a frame
}

/// A task that is to begin.
pub(super) struct Start {
    pub(super) row: u32,
    pub(super) id: EntityId,
    pub(super) waker: Option<Arc<Handling>>,
    /// Of the floor, when the row was given the task.
    pub(super) lapses: u64,
}

/// What is to be done once the lock is released.
pub(super) struct After<E: Entity> {
    pub(super) starts: SmallVec<[Start; 1]>,
    pub(super) wanted: bool,
    /// Callers that wait for an entity elsewhere may try again.
    pub(super) freed: bool,
    pub(super) drained: Option<Option<Bytes>>,
    /// Who has to stop, in whichever shard.
    pub(super) leavers: Vec<Leaver>,
    /// To be dropped.
    pub(super) values: Vec<Box<Instance<E>>>,
    pub(super) typed: Vec<E::Message>,
    pub(super) lost: Vec<(Lost, Entry<E::Message>)>,
    /// Idle instances that are to end: together they count as one that runs.
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

/// Where a message comes in.
pub(super) struct Visit<'a, E: Entity> {
    pub(super) shard: &'a Shard<E>,
    pub(super) runtime: &'a Runtime<E>,
}

impl<E: Entity> After<E> {
    /// As after nearly every message.
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

    /// See [`Floor::lapses`].
    pub(super) fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::Acquire)
    }

    /// Whether what comes now comes from a handler that drains, as this shard does: it is handled
    /// before the shard leaves.
    fn is_waited_for(&self) -> bool {
        self.phase.is_draining() && scope::is_draining()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inside<E>> {
        self.inside.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something at the gate, and what follows from it.
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

    /// What anybody outside has to know of the gate now.
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
    /// The region no longer asks: it will be asked again.
    pub(super) const fn ask_again(&mut self) {
        self.wanted = false;
    }

    /// Whether there is room for a message of `bytes` bytes in an entity's mailbox.
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
        // Nothing makes room in a shard that drains: who waited for that would hold up the drain.
        if checked.is_err() && shard.is_waited_for() { Ok(()) } else { checked }
    }

    /// A message of this node into its mailbox, or back if that is full.
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

    /// Into its mailbox. Starts its entity, if it has none that runs and the stage allows.
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

    /// An entity has nothing to do: a row without a task, or none if it has no value.
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

    /// A move has brought what an instance handed over elsewhere. False: that is lost, for its
    /// entity had one already.
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

    /// Gives an entity a task.
    pub(super) fn start(&mut self, row: u32, after: &mut After<E>) {
        let busy = self.tenants.busy(row);
        busy.runs = true;
        let waker = busy.waker.clone();
        self.running += 1;
        let (id, lapses) = (self.tenants.get(row).id.clone(), self.lapses);
        after.starts.push(Start { row, id, waker, lapses });
    }

    /// Starts it for messages that a draining handler waits for, if nobody handles them yet.
    pub(super) fn go_on(&mut self, row: u32, after: &mut After<E>) {
        let busy = self.tenants.get(row).busy.as_ref();
        if busy.is_some_and(|busy| busy.marked > 0 && !busy.runs) {
            self.start(row, after);
        }
    }

    fn wake(&mut self) {
        let busy = self.tenants.all().filter_map(|tenant| tenant.busy.as_ref());
        let running = busy.filter(|busy| busy.runs);
        running.filter_map(|busy| busy.waker.as_ref()).for_each(|handling| handling.waker.wake());
    }
}

/// The gate's way to the node, its lanes and its mailboxes.
pub(super) struct Desk<'a, E: Entity> {
    pub(super) runtime: &'a Arc<Runtime<E>>,
    pub(super) shard: &'a Arc<Shard<E>>,
    pub(super) floor: &'a mut Floor<E>,
    pub(super) after: &'a mut After<E>,
    pub(super) fit: Fit,
    /// It comes from a lane, and its sender says that it had waited for a home or came back.
    pub(super) moved: bool,
}

impl<E: Entity> Desk<'_, E> {
    /// The shard starts here, lives on here, or is to end here.
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
            // Before the gate knows: what is accepted on the way is not begun.
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
                "sharding.payload: cut short; messages and states behind that place are lost"
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

    /// Before any message: an instance that these begin finds its state.
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
        let (last_word, mut instances) = (self.runtime.last_word, Vec::new());
        for row in self.floor.tenants.rows().collect::<Vec<_>>() {
            let tenant = self.floor.tenants.get_mut(row);
            if tenant.busy.as_ref().is_some_and(|busy| busy.runs) {
                continue;
            }
            if last_word && tenant.state.is_some() {
                self.floor.start(row, self.after);
            } else if let Some(instance) = tenant.state.take() {
                instances.push((row, tenant.id.clone(), instance));
            }
        }
        self.end(instances, HandOver::Asked);
        self.floor.wake(); // who waits for a restart, or for the lease, waits no longer
        self.after.freed = true; // nor does a handler of another shard that drains, for room here
        self.seal_if_done(gate);
    }

    /// `handoff-timeout` is over.
    pub(super) fn abort(&mut self) {
        if self.shard.phase.is_draining() {
            self.shard.phase.set(Stage::Aborted);
            self.floor.wake();
        }
    }

    /// The lease has lapsed for long: nothing is told to anybody, for no handler may run. A shard
    /// that drains has its own time.
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
                continue; // its task drops it: nobody else begins another one meanwhile
            }
            let id = &tenant.id;
            instances.extend(tenant.state.take().map(|instance| (row, id.clone(), instance)));
        }
        self.end(instances, HandOver::No);
        self.floor.wake(); // who handles a message drops it
    }

    fn end(&mut self, instances: Vec<(u32, EntityId, Box<Instance<E>>)>, hand_over: HandOver) {
        if !instances.is_empty() {
            self.leave(Leaving { hand_over, instances, unfinished: Unfinished::default() });
        }
    }

    /// No entity of the shard begins before these tasks have ended: for an activation that was
    /// dropped, and cannot wait for the tasks of its instance.
    pub(super) fn end_after(&mut self, unfinished: Unfinished) {
        self.leave(Leaving { hand_over: HandOver::No, instances: Vec::new(), unfinished });
    }

    fn leave(&mut self, leaving: Leaving<E>) {
        self.floor.running += 1; // until they are dropped
        self.floor.leaving += 1;
        self.after.leaving = Some(leaving);
    }

    /// Idle instances are dropped, and these states are left of them.
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

    /// A row that has no instance: it starts for what came too early, or is none any more.
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
                self.floor.running += 1; // parks as if it had run
                self.floor.park(row, runtime, self.after);
            }
        }
    }

    /// A state waits for the next instance, here or elsewhere.
    pub(super) fn keep(&mut self, row: u32, state: State) {
        if self.runtime.is_over() {
            return self.runtime.lose_states(1, self.shard.id, OVER);
        }
        let before = self.floor.tenants.keep(row, state);
        assert!(before.is_none(), "an entity has one state");
    }

    /// An entity's task has ended.
    pub(super) fn ended(&mut self, gate: &mut Gate<Letter>) {
        assert!(self.floor.running > 0, "a task ends that never began");
        self.floor.running -= 1;
        self.seal_if_done(gate);
    }

    /// The last one has ended: what was accepted and not begun goes to the next home, and this
    /// node's own gate leaves in the same step (spec/safety.md §5).
    fn seal_if_done(&mut self, gate: &mut Gate<Letter>) {
        let ends = matches!(self.shard.phase.get(), Stage::Draining | Stage::Aborted);
        if !ends || self.floor.running > 0 || self.runtime.is_over() {
            return;
        }
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
        self.after.freed = true; // who waits for room in a mailbox that was here goes another way
    }

    /// Everything ends now, and nothing is carried along: whatever waits anywhere is lost. What
    /// comes later finds the runtime over, under this lock.
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

    /// Into the mailbox of its entity: a letter that is accepted.
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

    /// Sends a message down the lane, if it has room and nothing waits for it. Else gives the message
    /// back: its caller waits with it.
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
                    let told = gate.tell(item, Origin::Anybody, self); // finds that out
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
                self.lose(Lost::TooLong, item.message); // those behind it go on
                return Ok(());
            }
            Err(NoRoom::Full | NoRoom::NoLane) => {}
        }
        // Before the last try: what room is told of after it finds this shard in the list.
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
            Ok(()) | Err(NoRoom::Full | NoRoom::TooLong) => Ok(()), // it is said again
        }
    }

    fn bounce(&mut self, to: RegionId, back: Bounce<Letter>) {
        let Bounce { stamp, item, newest } = back;
        if self.runtime.is_removed(to) {
            return self.lose(Lost::NodeGone, item.message); // a lane may linger that nobody reads
        }
        self.runtime.sent_back.fetch_add(1, Ordering::Relaxed);
        frame::bounce(&mut self.floor.scratch, self.shard.id, stamp, newest, &item.message);
        let why = match self.runtime.world.answer(to, &self.floor.scratch) {
            Ok(()) => return,
            Err(NoRoom::NoLane) => Lost::NodeGone,
            Err(NoRoom::Full) => Lost::LaneFull,
            Err(NoRoom::TooLong) => Lost::TooLong,
        };
        self.lose(why, item.message); // the echo behind it says that nothing is out any more
    }

    fn echo(&mut self, to: RegionId, stamp: Generation) {
        self.runtime.sent_back.fetch_add(1, Ordering::Relaxed);
        frame::echo(&mut self.floor.scratch, self.shard.id, stamp);
        // Whoever is out of the configuration waits for no echo, others ask again.
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

    /// What waited for a home elsewhere is refused nothing here that its sender's buffer, and a lane,
    /// can have kept: a planned move loses none.
    fn reserve_held(&mut self, from: RegionId, bytes: usize, own: Waits) -> Result<(), Full> {
        let mut held = self.runtime.held();
        if self.moved { held.reserve_moved(from, bytes) } else { held.reserve(from, bytes, own) }
    }

    fn release_held(&mut self, from: RegionId, what: Waits) {
        self.runtime.held().release(from, what);
    }
}
