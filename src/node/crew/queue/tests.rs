//! The queue alone: rule by rule, and in every order of calls.

use super::*;

fn queue(workers_max: usize) -> Queue<u32> {
    Queue::new(Settings { workers_max, crowd: 16, rests: 8 })
}

fn worker(queue: &Queue<u32>, burst: u32) -> Place {
    let added = queue.add(burst).expect("it is open");
    called(added)
}

fn called(added: Added) -> Place {
    added.call.expect("nobody works yet").places().next().expect("one")
}

#[test]
fn one_worker_is_called_for_few_bursts_and_as_many_as_may_for_many() {
    let queue = queue(3);
    let mut place = worker(&queue, 0);
    assert_eq!(queue.take(&mut place, Pace::Quick), Next::Work(0));
    let calls = (1..100).filter(|burst| queue.add(*burst).expect("it is open").call.is_some());
    assert_eq!(calls.collect::<Vec<_>>(), [17, 33]);
}

#[test]
fn each_burst_brings_a_worker_as_long_as_none_has_come() {
    let queue = queue(3);
    let calls = (0..100).filter(|burst| queue.add(*burst).expect("it is open").call.is_some());
    assert_eq!(calls.collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_worker_calls_colleagues_if_much_waits_or_what_waits_would_wait_for_long() {
    let queue = queue(2);
    let mut place = worker(&queue, 0);
    assert_eq!(queue.take(&mut place, Pace::Quick), Next::Work(0));
    let _ = queue.add(1);
    let _ = queue.add(2);
    assert_eq!(queue.take(&mut place, Pace::Quick), Next::Work(1));
    let _ = queue.add(3);
    assert!(matches!(queue.take(&mut place, Pace::Slow), Next::Call(_)), "two wait for one");
    assert_eq!(queue.take(&mut place, Pace::Slow), Next::Work(2), "no more than two may");
}

/// A queue whose workers stand still, and that has been found so.
fn stuck(workers_max: usize, bursts: u32) -> (Queue<u32>, Vec<Place>, Call) {
    let (queue, mut waited, mut places) = (queue(workers_max), false, Vec::new());
    for burst in 0..bursts {
        let added = queue.add(burst).expect("it is open");
        places.extend(added.call.into_iter().flat_map(Call::places));
    }
    assert_eq!(queue.look(&mut waited), Seen::Work);
    let Seen::Stuck(call) = queue.look(&mut waited) else { panic!("nobody takes anything") };
    (queue, places, call)
}

#[test]
fn for_who_is_written_off_others_are_called_as_many_as_there_is_work_for() {
    for (workers_max, bursts, called) in [(1, 1, 1), (4, 3, 3), (4, 100, 4)] {
        let (.., call) = stuck(workers_max, bursts);
        assert_eq!(call.places().count(), called);
    }
}

#[test]
fn who_is_written_off_goes_on_only_where_there_is_work_and_a_place() {
    let (queue, mut blocked, call) = stuck(1, 2);
    assert_eq!(queue.take(&mut blocked[0], Pace::Quick), Next::End, "another has its place");
    let mut place = call.places().next().expect("one");
    for burst in 0..2 {
        assert_eq!(queue.take(&mut place, Pace::Quick), Next::Work(burst));
    }
    assert_eq!(queue.take(&mut blocked[0], Pace::Quick), Next::End, "nothing waits");

    let (queue, mut blocked, _call) = stuck(2, 1);
    assert_eq!(queue.take(&mut blocked[0], Pace::Quick), Next::Work(0));
}

#[test]
fn for_those_that_are_held_up_others_are_called_while_one_works() {
    let (queue, mut waited) = (queue(3), false);
    let mut places = Vec::new();
    for burst in 0..40 {
        let added = queue.add(burst).expect("it is open");
        places.extend(added.call.into_iter().flat_map(Call::places));
    }
    assert_eq!(places.len(), 3);
    assert_eq!(queue.look(&mut waited), Seen::Work);
    assert!(matches!(queue.take(&mut places[0], Pace::Quick), Next::Work(_)));
    let Seen::Stuck(call) = queue.look(&mut waited) else { panic!("two have not come") };
    assert_eq!(call.places().count(), 2);
    assert!(matches!(queue.take(&mut places[0], Pace::Quick), Next::Work(_)), "it goes on");
    assert_eq!(queue.take(&mut places[1], Pace::Quick), Next::End, "there are three again");
}

#[test]
fn what_comes_while_handlers_are_slow_brings_a_worker() {
    let queue = queue(3);
    let mut place = worker(&queue, 0);
    assert_eq!(queue.take(&mut place, Pace::Slow), Next::Work(0));
    let calls = (1..4).map(|burst| queue.add(burst).expect("it is open").call.is_some());
    assert_eq!(calls.collect::<Vec<_>>(), [true, true, false], "no more than three may");
}

#[test]
fn nobody_is_written_off_while_bursts_are_taken_or_none_waits() {
    let (queue, mut waited) = (queue(1), false);
    let mut place = worker(&queue, 1);
    for burst in 2..10 {
        let _ = queue.add(burst);
        assert_eq!(queue.look(&mut waited), Seen::Work);
        assert!(matches!(queue.take(&mut place, Pace::Quick), Next::Work(_)));
    }
    assert!(matches!(queue.take(&mut place, Pace::Quick), Next::Work(_)));
    for _ in 0..3 {
        assert_eq!(queue.look(&mut waited), Seen::Work);
    }
    while queue.take(&mut place, Pace::Quick) != Next::End {}
    assert_eq!(queue.look(&mut waited), Seen::Idle);
}

#[test]
fn what_has_only_come_since_the_last_look_has_waited_for_nobody() {
    let (queue, mut waited) = (queue(1), false);
    let mut place = worker(&queue, 1);
    assert!(matches!(queue.take(&mut place, Pace::Quick), Next::Work(_)));
    assert_eq!(queue.look(&mut waited), Seen::Work);
    let _ = queue.add(2);
    assert_eq!(queue.look(&mut waited), Seen::Work);
}

#[test]
fn a_watch_is_asked_for_once_until_it_has_ended_and_ends_only_at_rest() {
    let queue = queue(1);
    let first = queue.add(1).expect("it is open");
    assert!(first.watch && !queue.add(2).expect("it is open").watch);
    assert!(!queue.unwatch(), "two wait");
    let mut place = called(first);
    while queue.take(&mut place, Pace::Quick) != Next::End {}
    assert!(queue.unwatch());
    assert!(queue.add(3).expect("it is open").watch);
}

#[test]
fn a_closed_queue_gives_back_what_waits_and_what_comes() {
    let queue = queue(1);
    let _place = worker(&queue, 1);
    assert_eq!(queue.close(), [1]);
    assert_eq!(queue.add(2), Err(2));
}

/// How often a worker rests that has handled one burst, and whether the next one comes meanwhile.
fn rests(queue: &Queue<u32>, next_comes: bool) -> usize {
    let mut place = worker(queue, 1);
    let mut rests = 0;
    loop {
        match queue.take(&mut place, Pace::Quick) {
            Next::Rest => {
                rests += 1;
                if next_comes && rests == 1 {
                    let _ = queue.add(2);
                }
            }
            Next::End => return rests,
            Next::Work(_) | Next::Call(_) => {}
        }
    }
}

#[test]
fn workers_rest_while_that_brings_them_something_and_else_now_and_then() {
    let queue = queue(1);
    let vain: Vec<_> = (0..6).map(|_| rests(&queue, false)).collect();
    assert_eq!(vain, [8, 8, 8, 8, 0, 0], "it may be worth it, as long as nobody knows");
    let vain = (0..32).filter(|_| rests(&queue, false) > 0).count();
    assert_eq!(vain, 2);
    while rests(&queue, true) == 0 {}
    assert_eq!(rests(&queue, true), 9, "one, and eight in vain");
    let vain: Vec<_> = (0..6).map(|_| rests(&queue, false)).collect();
    assert_eq!(vain, [8, 8, 8, 0, 0, 0]);
}

/// All orders of calls, up to this many.
const DEPTH: usize = 9;

/// How often a worker finds nothing before it ends, at most.
const VAIN_MAX: usize = 2;

/// A queue, and all who know of it.
struct World {
    queue: Queue<u32>,
    workers_max: usize,
    added: u32,
    places: Vec<Place>, // of workers that have not ended
    waited: bool,
    taken: Vec<u32>,
    returned: Vec<u32>, // as the queue was closed, or since
    watched: bool,
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add,
    Take(usize),
    Look,
    Unwatch,
    Close,
}

impl World {
    fn after(workers_max: usize, steps: &[Step]) -> Self {
        let mut world = Self {
            queue: Queue::new(Settings { workers_max, crowd: 1, rests: 1 }),
            workers_max,
            added: 0,
            places: Vec::new(),
            waited: false,
            taken: Vec::new(),
            returned: Vec::new(),
            watched: false,
            closed: false,
        };
        steps.iter().for_each(|step| world.take(*step));
        world
    }

    /// What can happen next. (A worker that is dropped with its runtime is one that takes nothing any
    /// more.)
    fn steps(&self) -> Vec<Step> {
        let takes = (0..self.places.len()).map(Step::Take);
        let watch = if self.watched { &[Step::Look, Step::Unwatch][..] } else { &[] };
        let close = (!self.closed).then_some(Step::Close);
        [Step::Add].into_iter().chain(takes).chain(watch.iter().copied()).chain(close).collect()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Add => self.add(),
            Step::Take(worker) => match self.queue.take(&mut self.places[worker], Pace::Quick) {
                Next::Work(burst) => self.taken.push(burst),
                Next::Call(call) => self.places.extend(call.places()),
                Next::Rest => {}
                Next::End => drop(self.places.remove(worker)),
            },
            Step::Look => {
                if let Seen::Stuck(call) = self.queue.look(&mut self.waited) {
                    self.places.extend(call.places());
                }
            }
            Step::Unwatch => self.watched = !self.queue.unwatch(),
            Step::Close => {
                self.closed = true;
                self.returned.extend(self.queue.close());
                assert!(self.queue.close().is_empty(), "once");
            }
        }
    }

    fn add(&mut self) {
        let burst = self.added;
        self.added += 1;
        match self.queue.add(burst) {
            Ok(Added { call, watch }) => {
                assert!(!self.closed);
                assert!(!watch || !self.watched, "one watch");
                self.watched |= watch;
                self.places.extend(call.into_iter().flat_map(Call::places));
            }
            Err(back) => {
                assert!(self.closed && back == burst);
                self.returned.push(back);
            }
        }
    }

    fn check(&self) {
        let inner = self.queue.lock();
        let of_this_shift = self.places.iter().filter(|place| place.shift == inner.shift).count();
        assert_eq!(of_this_shift, inner.workers, "who was called is counted, until it ends");
        let is_fresh = |place: &&Place| place.shift == inner.shift && place.is_fresh;
        assert_eq!(self.places.iter().filter(is_fresh).count(), inner.fresh);
        let has_come = |place: &&Place| place.shift == inner.shift && place.looks > inner.looks;
        assert_eq!(self.places.iter().filter(has_come).count(), inner.came);
        assert!(inner.workers <= self.workers_max);
        let waits = !inner.bursts.is_empty();
        assert!(!waits || inner.workers > 0 && self.watched, "who waits has a worker and a watch");
        assert!(!waits || !self.closed, "nothing waits where nobody may come");
        let seen = self.taken.iter().chain(&self.returned).chain(&inner.bursts);
        assert!(seen.copied().eq(0..self.added), "taken in order, or given back; each once");
    }

    /// All come as often as they are to: what waits is taken, and nobody is left over.
    fn go_on(mut self) {
        let left = self.added as usize - self.taken.len() - self.returned.len();
        let turns = left + self.workers_max + VAIN_MAX; // one takes all, and calls the others
        for _ in 0..turns {
            for worker in (0..self.places.len()).rev() {
                self.take(Step::Take(worker));
            }
        }
        self.check();
        assert_eq!(self.taken.len() + self.returned.len(), self.added as usize, "all was taken");
        assert!(self.places.is_empty() && self.queue.unwatch(), "all have ended");
    }
}

fn explore(workers_max: usize, steps: &mut Vec<Step>) -> usize {
    let world = World::after(workers_max, steps);
    world.check();
    if steps.len() == DEPTH {
        world.go_on();
        return 1;
    }
    let next = world.steps().into_iter();
    next.map(|step| {
        steps.push(step);
        let seen = explore(workers_max, steps);
        steps.pop();
        seen
    })
    .sum()
}

#[test]
fn in_every_order_of_calls_who_waits_has_a_worker_and_is_taken_once_or_given_back() {
    for workers_max in 1..=3 {
        let orders = explore(workers_max, &mut Vec::new());
        assert!(orders > 10_000, "{workers_max}: {orders}");
    }
}
