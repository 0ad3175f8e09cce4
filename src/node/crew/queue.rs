//! Bursts that wait for a worker, and how many workers there are for them: one short lock.
//!
//! While anything waits there is a worker that has been called and will look again before it ends:
//! whoever adds finds it counted, or calls one. Workers that a blocked thread holds up are
//! written off, and others called in their place ([`look`](Queue::look)).
//!
//! Every call is one hold of that lock: so an order of calls is all that threads can make of it, and
//! the tests try them all.

mod lines;

use std::iter;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lines::Lines;

/// How many workers there are, and how long they stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Workers at a time, at most; but for those that are written off.
    pub(super) workers_max: usize,
    /// Bursts that wait for each worker before another one is called.
    pub(super) crowd: usize,
    /// Turns of others that a worker which finds nothing stays for.
    pub(super) rests: u8,
}

/// See the module's page.
pub(super) struct Queue<B> {
    inner: Mutex<Inner<B>>,
    settings: Settings,
}

struct Inner<B> {
    bursts: Lines<B>,   // ≤ entities that have a task
    workers: usize,     // called and not ended, of this shift
    seats: Box<[bool]>, // whether one of these sits there
    fresh: usize,       // of these: called, and have not come yet
    came: usize,        // of these: since the last look
    pace: Pace,         // of the last one that came
    shift: u64,         // the next begins when workers are written off
    looks: u64,
    patience: Patience,
    watched: bool,
    closed: bool,
}

/// Workers that are to be started, for that shift.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the queue counts on them"]
pub(super) struct Call {
    shift: u64,
    seat: usize,      // of one worker
    more: Vec<usize>, // those of others
}

/// What is to be done for a burst that was added.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) call: Option<Call>,
    /// Nobody watches the queue yet.
    pub(super) watch: bool,
}

/// A worker's place.
#[derive(Debug)]
pub(super) struct Place {
    shift: u64,
    seat: usize,
    is_fresh: bool,
    looks: u64, // when it came last; 0: it has not
    rests: u8,  // that it has left, once it has found nothing
    rested: bool,
}

/// How long a worker's last poll took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Quick,
    /// So long that who waits should have a worker of its own.
    Slow,
}

/// What a worker does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<B> {
    /// Polls this.
    Work(B),
    /// Adds this, which was to be polled again, as anybody would, and takes anew.
    Back(B),
    /// Calls a colleague, for there is much to do, and lets it have its turn.
    Call(Call),
    /// Lets others have a turn, and looks again.
    Rest,
    /// Ends: it is not counted any more.
    End,
}

/// What somebody sees who looks at the queue now and then.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing waits, nobody works.
    Idle,
    /// Somebody works.
    Work,
    /// Something has waited since the last look, and not all workers came: some are held up. All
    /// are written off; those that come go on.
    Stuck(Call),
}

impl<B> Queue<B> {
    pub(super) fn new(settings: Settings) -> Self {
        let inner = Inner {
            bursts: Lines::new(settings.workers_max),
            workers: 0,
            seats: vec![false; settings.workers_max.max(1)].into(),
            fresh: 0,
            came: 0,
            pace: Pace::Quick,
            shift: 0,
            looks: 0,
            patience: Patience::default(),
            watched: false,
            closed: false,
        };
        Self { inner: Mutex::new(inner), settings }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<B>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the line of the worker that sits there; any number will do. The burst comes back if the queue
    /// is closed.
    pub(super) fn add(&self, seat: usize, burst: B) -> Result<Added, B> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(burst);
        }
        inner.bursts.push(seat, burst);
        let watch = !std::mem::replace(&mut inner.watched, true);
        // Workers that have not come may stand behind a task that keeps its thread, where no other
        // thread finds them but by a further call.
        let nobody_came = inner.fresh == inner.workers;
        let may_wait = match inner.pace {
            _ if nobody_came => inner.workers,
            Pace::Slow => 0,
            Pace::Quick => inner.workers * self.settings.crowd,
        };
        Ok(Added { call: inner.call(self.settings.workers_max, may_wait), watch })
    }

    /// `again`: what was taken last and is to be polled again goes back to the end of the line; unless
    /// this worker is not counted any more: then somebody may have to be called for it.
    pub(super) fn take(&self, place: &mut Place, pace: Pace, again: Option<B>) -> Next<B> {
        let mut inner = self.lock();
        if let Some(burst) = again {
            if inner.closed || !inner.watched || place.shift != inner.shift {
                return Next::Back(burst);
            }
            inner.bursts.push(place.seat, burst);
        }
        if !inner.admits(place, self.settings.workers_max) {
            return Next::End;
        }
        inner.pace = pace;
        let may_wait = match pace {
            Pace::Slow => 1, // it is taken now
            Pace::Quick => inner.workers * self.settings.crowd,
        };
        if let Some(call) = inner.call(self.settings.workers_max, may_wait) {
            return Next::Call(call);
        }
        if let Some(burst) = inner.bursts.take(place.seat) {
            if std::mem::take(&mut place.rested) {
                inner.patience.paid();
            }
            return Next::Work(burst);
        }
        if !std::mem::replace(&mut place.rested, true) {
            place.rests = inner.patience.grant(self.settings.rests);
        } else if place.rests == 0 {
            inner.patience.in_vain();
        }
        if place.rests > 0 {
            place.rests -= 1;
            return Next::Rest;
        }
        inner.workers -= 1;
        inner.seats[place.seat] = false;
        inner.came -= 1;
        Next::End
    }

    /// `waited`: what the last look left there, whether something waited.
    pub(super) fn look(&self, waited: &mut bool) -> Seen {
        let mut inner = self.lock();
        inner.looks += 1;
        let came = std::mem::take(&mut inner.came);
        let waits = !inner.bursts.is_empty();
        let waited = std::mem::replace(waited, waits);
        if !waits && inner.workers == 0 {
            return Seen::Idle;
        }
        if !waits || !waited || came == inner.workers {
            return Seen::Work;
        }
        let places = self.settings.workers_max.saturating_sub(came).max(1);
        let workers = inner.bursts.len().min(places);
        inner.shift += 1;
        inner.workers = workers;
        inner.fresh = workers;
        inner.seats.fill(false);
        let (seat, shift) = (inner.sit_down(), inner.shift);
        let more = (1..workers).map(|_| inner.sit_down()).collect();
        Seen::Stuck(Call { shift, seat, more })
    }

    /// Nobody watches it any more. `false`: somebody must.
    pub(super) fn unwatch(&self) -> bool {
        let mut inner = self.lock();
        let quiet = inner.bursts.is_empty() && inner.workers == 0;
        inner.watched = !quiet;
        quiet
    }

    /// The watch has failed: the next burst brings another.
    pub(super) fn lose_watch(&self) {
        self.lock().watched = false;
    }

    /// Takes nothing any more; what waited comes back.
    pub(super) fn close(&self) -> Vec<B> {
        let mut inner = self.lock();
        inner.closed = true;
        inner.bursts.drain()
    }
}

impl<B> Inner<B> {
    fn call(&mut self, workers_max: usize, may_wait: usize) -> Option<Call> {
        let calls = self.workers < workers_max && self.bursts.len() > may_wait;
        calls.then(|| {
            self.workers += 1;
            self.fresh += 1;
            Call { shift: self.shift, seat: self.sit_down(), more: Vec::new() }
        })
    }

    /// A seat for one more worker.
    fn sit_down(&mut self) -> usize {
        let free = self.seats.iter().position(|taken| !taken);
        let seat = free.expect("there are as many seats as there may be workers");
        self.seats[seat] = true;
        seat
    }

    /// Whether a worker goes on. One that was written off does if there is work, and a place.
    fn admits(&mut self, place: &mut Place, workers_max: usize) -> bool {
        let was_fresh = std::mem::take(&mut place.is_fresh);
        if place.shift == self.shift {
            self.fresh -= usize::from(was_fresh);
        } else if !self.bursts.is_empty() && self.workers < workers_max {
            place.shift = self.shift;
            place.looks = 0; // nobody has counted it here
            self.workers += 1;
            place.seat = self.sit_down();
        } else {
            return false;
        }
        if std::mem::replace(&mut place.looks, self.looks + 1) != self.looks + 1 {
            self.came += 1;
        }
        true
    }
}

impl Place {
    /// Where the worker sits.
    pub(super) const fn seat(&self) -> usize {
        self.seat
    }
}

impl Call {
    /// Of each worker.
    pub(super) fn places(self) -> impl Iterator<Item = Place> {
        let Self { shift, seat, more } = self;
        iter::once(seat).chain(more).map(move |seat| Place {
            shift,
            seat,
            is_fresh: true,
            looks: 0,
            rests: 0,
            rested: false,
        })
    }
}

/// Whether a worker that finds nothing stays for a few turns of others.
///
/// Where messages come one after the other that saves starting a worker for each; where they
/// are rare it keeps a thread from sleeping. So workers rest while that has brought them something,
/// and else try it now and then.
#[derive(Debug)]
struct Patience {
    worth: u8,   // how often yet in vain
    hurried: u8, // workers that have ended at once since it was tried last
}

impl Default for Patience {
    fn default() -> Self {
        Self { worth: Self::WORTH, hurried: 0 }
    }
}

impl Patience {
    /// In vain in a row, before workers end at once.
    const WORTH: u8 = 4;
    const TRIAL_EVERY: u8 = 16;

    const fn grant(&mut self, rests: u8) -> u8 {
        self.hurried += 1;
        if self.worth > 0 || self.hurried >= Self::TRIAL_EVERY {
            self.hurried = 0;
            return rests;
        }
        0
    }

    const fn paid(&mut self) {
        self.worth = Self::WORTH;
    }

    const fn in_vain(&mut self) {
        self.worth = self.worth.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
