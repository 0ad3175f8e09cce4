//! The queue alone: rule by rule, and in every order of calls.

use super::*;

fn queue(workers_max: usize) -> Queue<u32> {
    Queue::new(Settings { workers_max, crowd: 16, rests: 8 })
}

fn worker(queue: &Queue<u32>, burst: u32) -> Place {
    let added = queue.add(0, burst).expect("it is open");
    called(added)
}

fn called(added: Added) -> Place {
    added.call.expect("nobody works yet").places().next().expect("one")
}

#[test]
fn one_worker_is_called_for_few_bursts_and_as_many_as_may_for_many() {
    let queue = queue(3);
    let mut place = worker(&queue, 0);
    assert_eq!(queue.take(&mut place, Pace::Quick, None), Next::Work(0));
    let calls = (1..100).filter(|burst| queue.add(0, *burst).expect("it is open").call.is_some());
    assert_eq!(calls.collect::<Vec<_>>(), [17, 33]);
}

#[test]
fn each_burst_brings_a_worker_as_long_as_none_has_come() {
    let queue = queue(3);
    let calls = (0..100).filter(|burst| queue.add(0, *burst).expect("it is open").call.is_some());
    assert_eq!(calls.collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_worker_calls_colleagues_if_much_waits_or_what_waits_would_wait_for_long() {
    let queue = queue(2);
    let mut place = worker(&queue, 0);
    assert_eq!(queue.take(&mut place, Pace::Quick, None), Next::Work(0));
    let _ = queue.add(0, 1);
    let _ = queue.add(0, 2);
    assert_eq!(queue.take(&mut place, Pace::Quick, None), Next::Work(1));
    let _ = queue.add(0, 3);
    assert!(matches!(queue.take(&mut place, Pace::Slow, None), Next::Call(_)), "two wait for one");
    assert_eq!(queue.take(&mut place, Pace::Slow, None), Next::Work(2), "no more than two may");
}

/// A queue whose workers stand still, and that has been found so.
fn stuck(workers_max: usize, bursts: u32) -> (Queue<u32>, Vec<Place>, Call) {
    let (queue, mut waited, mut places) = (queue(workers_max), false, Vec::new());
    for burst in 0..bursts {
        let added = queue.add(0, burst).expect("it is open");
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
    assert_eq!(queue.take(&mut blocked[0], Pace::Quick, None), Next::End, "another has its place");
    let mut place = call.places().next().expect("one");
    for burst in 0..2 {
        assert_eq!(queue.take(&mut place, Pace::Quick, None), Next::Work(burst));
    }
    assert_eq!(queue.take(&mut blocked[0], Pace::Quick, None), Next::End, "nothing waits");

    let (queue, mut blocked, _call) = stuck(2, 1);
    assert_eq!(queue.take(&mut blocked[0], Pace::Quick, None), Next::Work(0));
}

#[test]
fn who_is_written_off_gives_back_what_it_holds_as_anybody_would() {
    let (queue, mut waited) = (queue(1), false);
    let mut place = worker(&queue, 0);
    let Next::Work(held) = queue.take(&mut place, Pace::Quick, None) else { panic!("one waits") };
    let _ = queue.add(0, 1);
    queue.look(&mut waited); // it came since the last one
    queue.look(&mut waited);
    let Seen::Stuck(call) = queue.look(&mut waited) else { panic!("nobody takes anything") };
    let mut other = call.places().next().expect("one");
    while queue.take(&mut other, Pace::Quick, None) != Next::End {}
    assert!(queue.unwatch());
    assert_eq!(queue.take(&mut place, Pace::Quick, Some(held)), Next::Back(held));
    let added = queue.add(0, held).expect("it is open");
    assert!(added.watch && added.call.is_some(), "somebody looks after it again");
}

#[test]
fn what_comes_back_to_a_queue_that_nobody_watches_is_added_anew() {
    let queue = queue(1);
    let mut place = worker(&queue, 0);
    let Next::Work(held) = queue.take(&mut place, Pace::Quick, None) else { panic!("one waits") };
    queue.lose_watch();
    assert_eq!(queue.take(&mut place, Pace::Quick, Some(held)), Next::Back(held));
    assert!(queue.add(0, held).expect("it is open").watch);
    assert_eq!(queue.take(&mut place, Pace::Quick, None), Next::Work(held));
    queue.close();
    assert_eq!(queue.take(&mut place, Pace::Quick, Some(held)), Next::Back(held));
    assert_eq!(queue.add(0, held), Err(held));
}

#[test]
fn for_those_that_are_held_up_others_are_called_while_one_works() {
    let (queue, mut waited) = (queue(3), false);
    let mut places = Vec::new();
    for burst in 0..40 {
        let added = queue.add(0, burst).expect("it is open");
        places.extend(added.call.into_iter().flat_map(Call::places));
    }
    assert_eq!(places.len(), 3);
    assert_eq!(queue.look(&mut waited), Seen::Work);
    assert!(matches!(queue.take(&mut places[0], Pace::Quick, None), Next::Work(_)));
    let Seen::Stuck(call) = queue.look(&mut waited) else { panic!("two have not come") };
    assert_eq!(call.places().count(), 2);
    assert!(matches!(queue.take(&mut places[0], Pace::Quick, None), Next::Work(_)), "it goes on");
    assert_eq!(queue.take(&mut places[1], Pace::Quick, None), Next::End, "there are three again");
}

#[test]
fn what_comes_while_handlers_are_slow_brings_a_worker() {
    let queue = queue(3);
    let mut place = worker(&queue, 0);
    assert_eq!(queue.take(&mut place, Pace::Slow, None), Next::Work(0));
    let calls = (1..4).map(|burst| queue.add(0, burst).expect("it is open").call.is_some());
    assert_eq!(calls.collect::<Vec<_>>(), [true, true, false], "no more than three may");
}

#[test]
fn nobody_is_written_off_while_bursts_are_taken_or_none_waits() {
    let (queue, mut waited) = (queue(1), false);
    let mut place = worker(&queue, 1);
    for burst in 2..10 {
        let _ = queue.add(0, burst);
        assert_eq!(queue.look(&mut waited), Seen::Work);
        assert!(matches!(queue.take(&mut place, Pace::Quick, None), Next::Work(_)));
    }
    assert!(matches!(queue.take(&mut place, Pace::Quick, None), Next::Work(_)));
    for _ in 0..3 {
        assert_eq!(queue.look(&mut waited), Seen::Work);
    }
    while queue.take(&mut place, Pace::Quick, None) != Next::End {}
    assert_eq!(queue.look(&mut waited), Seen::Idle);
}

#[test]
fn what_has_only_come_since_the_last_look_has_waited_for_nobody() {
    let (queue, mut waited) = (queue(1), false);
    let mut place = worker(&queue, 1);
    assert!(matches!(queue.take(&mut place, Pace::Quick, None), Next::Work(_)));
    assert_eq!(queue.look(&mut waited), Seen::Work);
    let _ = queue.add(0, 2);
    assert_eq!(queue.look(&mut waited), Seen::Work);
}

#[test]
fn a_watch_is_asked_for_once_until_it_has_ended_and_ends_only_at_rest() {
    let queue = queue(1);
    let first = queue.add(0, 1).expect("it is open");
    assert!(first.watch && !queue.add(0, 2).expect("it is open").watch);
    assert!(!queue.unwatch(), "two wait");
    let mut place = called(first);
    while queue.take(&mut place, Pace::Quick, None) != Next::End {}
    assert!(queue.unwatch());
    assert!(queue.add(0, 3).expect("it is open").watch);
}

#[test]
fn a_closed_queue_gives_back_what_waits_and_what_comes() {
    let queue = queue(1);
    let _place = worker(&queue, 1);
    assert_eq!(queue.close(), [1]);
    assert_eq!(queue.add(0, 2), Err(2));
}

/// How often a worker rests that has handled one burst, and whether the next one comes meanwhile.
fn rests(queue: &Queue<u32>, next_comes: bool) -> usize {
    let mut place = worker(queue, 1);
    let mut rests = 0;
    loop {
        match queue.take(&mut place, Pace::Quick, None) {
            Next::Rest => {
                rests += 1;
                if next_comes && rests == 1 {
                    let _ = queue.add(0, 2);
                }
            }
            Next::End => return rests,
            Next::Work(_) | Next::Back(_) | Next::Call(_) => {}
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
const DEPTH: usize = 8;

/// How often a worker finds nothing before it ends, at most.
const VAIN_MAX: usize = 2;

/// A queue, and all who know of it.
struct World {
    queue: Queue<u32>,
    workers_max: usize,
    added: u32,
    places: Vec<(Place, Option<u32>)>, // of workers that have not ended, and what each took last
    waited: bool,
    taken: Vec<u32>,
    returned: Vec<u32>, // as the queue was closed, or since
    watched: bool,
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// At that seat.
    Add(usize),
    Take(usize),
    /// What it took last is to be polled again.
    TakeAgain(usize),
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
        let adds = [Step::Add(0), Step::Add(1)].into_iter().take(self.workers_max);
        let takes = (0..self.places.len()).map(Step::Take);
        let held = self.places.iter().enumerate().filter(|(_, (_, held))| held.is_some());
        let again = held.map(|(worker, _)| Step::TakeAgain(worker));
        let watch = if self.watched { &[Step::Look, Step::Unwatch][..] } else { &[] };
        let close = (!self.closed).then_some(Step::Close);
        adds.chain(takes).chain(again).chain(watch.iter().copied()).chain(close).collect()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Add(seat) => self.add(seat),
            Step::Take(worker) => self.take_work(worker, None),
            Step::TakeAgain(worker) => {
                let again = self.places[worker].1.take();
                self.taken.retain(|burst| Some(*burst) != again);
                self.take_work(worker, again);
            }
            Step::Look => {
                if let Seen::Stuck(call) = self.queue.look(&mut self.waited) {
                    self.call(call);
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

    fn take_work(&mut self, worker: usize, again: Option<u32>) {
        let (place, held) = &mut self.places[worker];
        *held = None;
        match self.queue.take(place, Pace::Quick, again) {
            Next::Work(burst) => {
                self.taken.push(burst);
                *held = Some(burst);
            }
            Next::Back(burst) => {
                let seat = place.seat();
                self.put(seat, burst);
            }
            Next::Call(call) => self.call(call),
            Next::Rest => {}
            Next::End => drop(self.places.remove(worker)),
        }
    }

    fn call(&mut self, call: Call) {
        self.places.extend(call.places().map(|place| (place, None)));
    }

    fn add(&mut self, seat: usize) {
        self.added += 1;
        self.put(seat, self.added - 1);
    }

    fn put(&mut self, seat: usize, burst: u32) {
        match self.queue.add(seat, burst) {
            Ok(Added { call, watch }) => {
                assert!(!self.closed);
                assert!(!watch || !self.watched, "one watch");
                self.watched |= watch;
                if let Some(call) = call {
                    self.call(call);
                }
            }
            Err(back) => {
                assert!(self.closed && back == burst);
                self.returned.push(back);
            }
        }
    }

    fn check(&self) {
        let inner = self.queue.lock();
        let places = self.places.iter().map(|(place, _)| place);
        let of_this_shift: Vec<_> = places.filter(|place| place.shift == inner.shift).collect();
        let count = |is: &dyn Fn(&Place) -> bool| of_this_shift.iter().filter(|x| is(x)).count();
        assert_eq!(of_this_shift.len(), inner.workers, "who was called is counted, until it ends");
        assert_eq!(count(&|place| place.is_fresh), inner.fresh);
        assert_eq!(count(&|place| place.looks > inner.looks), inner.came);
        assert!(inner.workers <= self.workers_max);
        let waits = !inner.bursts.is_empty();
        assert!(!waits || inner.workers > 0 && self.watched, "who waits has a worker and a watch");
        assert!(!waits || !self.closed, "nothing waits where nobody may come");
        for (seat, taken) in inner.seats.iter().enumerate() {
            assert_eq!(count(&|place| place.seat == seat), usize::from(*taken), "one at each seat");
        }
        let mut seen: Vec<_> = self.taken.iter().chain(&self.returned).copied().collect();
        seen.extend(inner.bursts.iter());
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..self.added), "taken, or given back; each once");
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

// ── Lines ──

/// Those that are taken at that seat, one after the other.
fn taken(lines: &mut Lines<u32>, seat: usize) -> Vec<u32> {
    std::iter::from_fn(|| lines.take(seat)).collect()
}

#[test]
fn a_worker_takes_from_its_own_line_and_then_what_has_waited_for_longest() {
    let mut lines = Lines::new(3);
    for burst in 0..9 {
        lines.push(burst as usize, burst); // any number is a seat
    }
    assert_eq!(taken(&mut lines, 1), [1, 4, 7, 0, 2, 3, 5, 6, 8]);
    assert!(lines.is_empty());
}

/// Takes and puts back at seats that `seat` draws; how often each was taken from another's line.
fn rounds(lines: &mut Lines<u32>, own: impl Fn(u32) -> usize, turns: u32) -> usize {
    let (mut drawn, mut strayed) = (1_u32, 0);
    for _ in 0..turns {
        drawn = drawn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let seat = (drawn >> 31) as usize;
        let burst = lines.take(seat).expect("some wait");
        strayed += usize::from(own(burst) != seat);
        lines.push(own(burst), burst);
    }
    strayed
}

#[test]
fn where_lines_are_about_alike_everybody_keeps_to_its_own() {
    for (all, of_first) in [(1_000, 500), (1_000, 400), (10, 5)] {
        let mut lines = Lines::new(2);
        let own = |burst| usize::from(burst >= of_first);
        (0..all).for_each(|burst| lines.push(own(burst), burst));
        let strayed = rounds(&mut lines, own, 100_000);
        assert!(strayed < 2_000, "{strayed} of 100,000");
    }
}

#[test]
fn a_line_with_much_more_than_others_has_help_from_them() {
    let mut lines = Lines::new(2);
    let own = |burst| usize::from(burst >= 900);
    (0..1_000).for_each(|burst| lines.push(own(burst), burst));
    let strayed = rounds(&mut lines, own, 100_000);
    assert!(strayed > 10_000, "{strayed} of 100,000");
}

#[test]
fn a_line_that_nobody_sits_at_is_only_a_round_or_two_behind() {
    let mut lines = Lines::new(2);
    for burst in 0..18 {
        lines.push(usize::from(burst >= 2), burst);
    }
    let mut taken = std::collections::BTreeSet::new();
    let takes = std::iter::from_fn(|| {
        let burst = lines.take(0)?;
        lines.push(usize::from(burst >= 2), burst);
        taken.insert(burst);
        (taken.len() < 18).then_some(())
    });
    let takes = takes.take(1_000).count();
    assert!(takes < 54, "{takes} takes for 18 that wait");
}

#[test]
fn what_is_drained_comes_in_the_order_in_which_it_came() {
    let mut lines = Lines::new(2);
    for (seat, burst) in [(1, 0), (0, 1), (0, 2), (1, 3)] {
        lines.push(seat, burst);
    }
    assert_eq!((lines.drain(), lines.len()), (vec![0, 1, 2, 3], 0));
}
