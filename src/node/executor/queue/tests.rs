//! Tests of the queue without a runtime: single rules, and all orders of calls up to a depth.

use super::*;

fn queue(workers_max: usize) -> Queue<u32> {
    Queue::new(QueueSettings { workers_max, spawn_threshold: 16, spin_budget: 8 })
}

fn worker(queue: &Queue<u32>, activation: u32) -> WorkerState {
    let added = queue.add(0, activation).expect("it is open");
    called(added)
}

fn called(added: AddResult) -> WorkerState {
    added.call.expect("there is no worker yet").places().next().expect("one")
}

#[test]
fn number_of_workers_follows_the_number_of_activations() {
    let queue = queue(3);
    let mut place = worker(&queue, 0);
    assert_eq!(queue.take(&mut place, PollSpeed::Quick, None), WorkerStep::Work(0));
    let calls =
        (1..100).filter(|activation| queue.add(0, *activation).expect("it is open").call.is_some());
    assert_eq!(calls.collect::<Vec<_>>(), [17, 33]);
}

#[test]
fn each_activation_starts_a_worker_until_one_has_come() {
    let queue = queue(3);
    let calls =
        (0..100).filter(|activation| queue.add(0, *activation).expect("it is open").call.is_some());
    assert_eq!(calls.collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn worker_starts_another_one_after_a_slow_poll() {
    let queue = queue(2);
    let mut place = worker(&queue, 0);
    assert_eq!(queue.take(&mut place, PollSpeed::Quick, None), WorkerStep::Work(0));
    let _ = queue.add(0, 1);
    let _ = queue.add(0, 2);
    assert_eq!(queue.take(&mut place, PollSpeed::Quick, None), WorkerStep::Work(1));
    let _ = queue.add(0, 3);
    assert!(
        matches!(queue.take(&mut place, PollSpeed::Slow, None), WorkerStep::Call(_)),
        "two wait for one"
    );
    assert_eq!(
        queue.take(&mut place, PollSpeed::Slow, None),
        WorkerStep::Work(2),
        "no more than two may"
    );
}

/// Creates a queue whose workers make no progress, after the watch has detected it.
fn stuck(
    workers_max: usize,
    activations: u32,
) -> (Queue<u32>, Vec<WorkerState>, WorkerSpawnRequest) {
    let (queue, mut waited, mut places) = (queue(workers_max), false, Vec::new());
    for activation in 0..activations {
        let added = queue.add(0, activation).expect("it is open");
        places.extend(added.call.into_iter().flat_map(WorkerSpawnRequest::places));
    }
    assert_eq!(queue.look(&mut waited), QueueCheck::Work);
    let QueueCheck::Stuck(call) = queue.look(&mut waited) else { panic!("no worker came") };
    (queue, places, call)
}

#[test]
fn written_off_workers_are_replaced_as_far_as_there_is_work() {
    for (workers_max, activations, called) in [(1, 1, 1), (4, 3, 3), (4, 100, 4)] {
        let (.., call) = stuck(workers_max, activations);
        assert_eq!(call.places().count(), called);
    }
}

#[test]
fn written_off_worker_continues_only_with_work_and_a_free_place() {
    let (queue, mut blocked, call) = stuck(1, 2);
    assert_eq!(
        queue.take(&mut blocked[0], PollSpeed::Quick, None),
        WorkerStep::End,
        "another has its place"
    );
    let mut place = call.places().next().expect("one");
    for activation in 0..2 {
        assert_eq!(queue.take(&mut place, PollSpeed::Quick, None), WorkerStep::Work(activation));
    }
    assert_eq!(
        queue.take(&mut blocked[0], PollSpeed::Quick, None),
        WorkerStep::End,
        "nothing waits"
    );

    let (queue, mut blocked, _call) = stuck(2, 1);
    assert_eq!(queue.take(&mut blocked[0], PollSpeed::Quick, None), WorkerStep::Work(0));
}

#[test]
fn written_off_worker_adds_its_activation_like_a_new_one() {
    let (queue, mut waited) = (queue(1), false);
    let mut place = worker(&queue, 0);
    let WorkerStep::Work(held) = queue.take(&mut place, PollSpeed::Quick, None) else {
        panic!("one waits")
    };
    let _ = queue.add(0, 1);
    queue.look(&mut waited); // the worker came since the last look
    queue.look(&mut waited);
    let QueueCheck::Stuck(call) = queue.look(&mut waited) else { panic!("no worker came") };
    let mut other = call.places().next().expect("one");
    while queue.take(&mut other, PollSpeed::Quick, None) != WorkerStep::End {}
    assert!(queue.unwatch());
    assert_eq!(queue.take(&mut place, PollSpeed::Quick, Some(held)), WorkerStep::Back(held));
    let added = queue.add(0, held).expect("it is open");
    assert!(added.watch && added.call.is_some(), "a watch and a worker are started again");
}

#[test]
fn activation_returned_to_an_unwatched_queue_starts_a_watch() {
    let queue = queue(1);
    let mut place = worker(&queue, 0);
    let WorkerStep::Work(held) = queue.take(&mut place, PollSpeed::Quick, None) else {
        panic!("one waits")
    };
    queue.lose_watch();
    assert_eq!(queue.take(&mut place, PollSpeed::Quick, Some(held)), WorkerStep::Back(held));
    assert!(queue.add(0, held).expect("it is open").watch);
    assert_eq!(queue.take(&mut place, PollSpeed::Quick, None), WorkerStep::Work(held));
    queue.close();
    assert_eq!(queue.take(&mut place, PollSpeed::Quick, Some(held)), WorkerStep::Back(held));
    assert_eq!(queue.add(0, held), Err(held));
}

#[test]
fn blocked_workers_are_replaced_while_another_one_works() {
    let (queue, mut waited) = (queue(3), false);
    let mut places = Vec::new();
    for activation in 0..40 {
        let added = queue.add(0, activation).expect("it is open");
        places.extend(added.call.into_iter().flat_map(WorkerSpawnRequest::places));
    }
    assert_eq!(places.len(), 3);
    assert_eq!(queue.look(&mut waited), QueueCheck::Work);
    assert!(matches!(queue.take(&mut places[0], PollSpeed::Quick, None), WorkerStep::Work(_)));
    let QueueCheck::Stuck(call) = queue.look(&mut waited) else { panic!("two have not come") };
    assert_eq!(call.places().count(), 2);
    assert!(
        matches!(queue.take(&mut places[0], PollSpeed::Quick, None), WorkerStep::Work(_)),
        "it continues"
    );
    assert_eq!(
        queue.take(&mut places[1], PollSpeed::Quick, None),
        WorkerStep::End,
        "there are three again"
    );
}

#[test]
fn activation_added_while_polls_are_slow_starts_a_worker() {
    let queue = queue(3);
    let mut place = worker(&queue, 0);
    assert_eq!(queue.take(&mut place, PollSpeed::Slow, None), WorkerStep::Work(0));
    let calls =
        (1..4).map(|activation| queue.add(0, activation).expect("it is open").call.is_some());
    assert_eq!(calls.collect::<Vec<_>>(), [true, true, false], "no more than three may");
}

#[test]
fn no_worker_is_written_off_while_activations_are_taken() {
    let (queue, mut waited) = (queue(1), false);
    let mut place = worker(&queue, 1);
    for activation in 2..10 {
        let _ = queue.add(0, activation);
        assert_eq!(queue.look(&mut waited), QueueCheck::Work);
        assert!(matches!(queue.take(&mut place, PollSpeed::Quick, None), WorkerStep::Work(_)));
    }
    assert!(matches!(queue.take(&mut place, PollSpeed::Quick, None), WorkerStep::Work(_)));
    for _ in 0..3 {
        assert_eq!(queue.look(&mut waited), QueueCheck::Work);
    }
    while queue.take(&mut place, PollSpeed::Quick, None) != WorkerStep::End {}
    assert_eq!(queue.look(&mut waited), QueueCheck::Idle);
}

#[test]
fn activation_added_since_the_last_look_is_not_stuck() {
    let (queue, mut waited) = (queue(1), false);
    let mut place = worker(&queue, 1);
    assert!(matches!(queue.take(&mut place, PollSpeed::Quick, None), WorkerStep::Work(_)));
    assert_eq!(queue.look(&mut waited), QueueCheck::Work);
    let _ = queue.add(0, 2);
    assert_eq!(queue.look(&mut waited), QueueCheck::Work);
}

/// Breaks the invariant of the queue by hand.
#[test]
fn waiting_activation_without_workers_is_stuck() {
    let (queue, mut waited) = (queue(2), false);
    let _ = queue.add(0, 0);
    let mut inner = queue.lock();
    (inner.workers, inner.fresh) = (0, 0);
    inner.worker_slots.fill(false);
    drop(inner);
    queue.look(&mut waited);
    let QueueCheck::Stuck(call) = queue.look(&mut waited) else { panic!("nobody takes it") };
    let mut place = call.places().next().expect("one");
    assert_eq!(queue.take(&mut place, PollSpeed::Quick, None), WorkerStep::Work(0));
}

#[test]
fn queue_has_one_watch_which_ends_only_when_idle() {
    let queue = queue(1);
    let first = queue.add(0, 1).expect("it is open");
    assert!(first.watch && !queue.add(0, 2).expect("it is open").watch);
    assert!(!queue.unwatch(), "two wait");
    let mut place = called(first);
    while queue.take(&mut place, PollSpeed::Quick, None) != WorkerStep::End {}
    assert!(queue.unwatch());
    assert!(queue.add(0, 3).expect("it is open").watch);
}

#[test]
fn closed_queue_returns_waiting_and_later_activations() {
    let queue = queue(1);
    let _place = worker(&queue, 1);
    assert_eq!(queue.close(), [1]);
    assert_eq!(queue.add(0, 2), Err(2));
}

/// Number of times that a worker spins after one activation; optionally another activation is added
/// at its first spin.
fn rests(queue: &Queue<u32>, next_comes: bool) -> usize {
    let mut place = worker(queue, 1);
    let mut rests = 0;
    loop {
        match queue.take(&mut place, PollSpeed::Quick, None) {
            WorkerStep::Rest => {
                rests += 1;
                if next_comes && rests == 1 {
                    let _ = queue.add(0, 2);
                }
            }
            WorkerStep::End => return rests,
            WorkerStep::Work(_) | WorkerStep::Back(_) | WorkerStep::Call(_) => {}
        }
    }
}

#[test]
fn workers_spin_while_that_finds_work_and_rarely_otherwise() {
    let queue = queue(1);
    let vain: Vec<_> = (0..6).map(|_| rests(&queue, false)).collect();
    assert_eq!(vain, [8, 8, 8, 8, 0, 0], "the first four workers spin to find out");
    let vain = (0..32).filter(|_| rests(&queue, false) > 0).count();
    assert_eq!(vain, 2);
    while rests(&queue, true) == 0 {}
    assert_eq!(rests(&queue, true), 9, "one with success, and eight without");
    let vain: Vec<_> = (0..6).map(|_| rests(&queue, false)).collect();
    assert_eq!(vain, [8, 8, 8, 0, 0, 0]);
}

/// Number of calls up to which all orders are explored.
const DEPTH: usize = 8;

/// Maximum number of times that a worker finds nothing before it ends.
const VAIN_MAX: usize = 2;

/// A queue with its workers, and the activations that were added, taken and returned.
struct World {
    queue: Queue<u32>,
    workers_max: usize,
    added: u32,
    places: Vec<(WorkerState, Option<u32>)>, // of present workers, with the activation each took last
    waited: bool,
    taken: Vec<u32>,
    returned: Vec<u32>, // when the queue was closed, or later
    watched: bool,
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Add an activation at this slot.
    Add(usize),
    Take(usize),
    /// The worker takes work, and returns its last activation to be polled again.
    TakeAgain(usize),
    Look,
    Unwatch,
    Close,
}

impl World {
    fn after(workers_max: usize, steps: &[Step]) -> Self {
        let mut world = Self {
            queue: Queue::new(QueueSettings { workers_max, spawn_threshold: 1, spin_budget: 1 }),
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

    /// Possible next steps. A worker that is dropped with its runtime is covered by one that takes
    /// nothing from some step on.
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
            Step::Add(worker_slot) => self.add(worker_slot),
            Step::Take(worker) => self.take_work(worker, None),
            Step::TakeAgain(worker) => {
                let again = self.places[worker].1.take();
                self.taken.retain(|activation| Some(*activation) != again);
                self.take_work(worker, again);
            }
            Step::Look => {
                if let QueueCheck::Stuck(call) = self.queue.look(&mut self.waited) {
                    self.call(call);
                }
            }
            Step::Unwatch => self.watched = !self.queue.unwatch(),
            Step::Close => {
                self.closed = true;
                self.returned.extend(self.queue.close());
                assert!(self.queue.close().is_empty(), "each is returned once");
            }
        }
    }

    fn take_work(&mut self, worker: usize, again: Option<u32>) {
        let (place, held) = &mut self.places[worker];
        *held = None;
        match self.queue.take(place, PollSpeed::Quick, again) {
            WorkerStep::Work(activation) => {
                self.taken.push(activation);
                *held = Some(activation);
            }
            WorkerStep::Back(activation) => {
                let worker_slot = place.worker_slot();
                self.put(worker_slot, activation);
            }
            WorkerStep::Call(call) => self.call(call),
            WorkerStep::Rest => {}
            WorkerStep::End => drop(self.places.remove(worker)),
        }
    }

    fn call(&mut self, call: WorkerSpawnRequest) {
        self.places.extend(call.places().map(|place| (place, None)));
    }

    fn add(&mut self, worker_slot: usize) {
        self.added += 1;
        self.put(worker_slot, self.added - 1);
    }

    fn put(&mut self, worker_slot: usize, activation: u32) {
        match self.queue.add(worker_slot, activation) {
            Ok(AddResult { call, watch }) => {
                assert!(!self.closed);
                assert!(!watch || !self.watched, "there is one watch at a time");
                self.watched |= watch;
                if let Some(call) = call {
                    self.call(call);
                }
            }
            Err(back) => {
                assert!(self.closed && back == activation);
                self.returned.push(back);
            }
        }
    }

    fn check(&self) {
        let inner = self.queue.lock();
        let places = self.places.iter().map(|(place, _)| place);
        let of_this_shift: Vec<_> = places.filter(|place| place.shift == inner.shift).collect();
        let count =
            |is: &dyn Fn(&WorkerState) -> bool| of_this_shift.iter().filter(|x| is(x)).count();
        assert_eq!(of_this_shift.len(), inner.workers, "a started worker is counted until its end");
        assert_eq!(count(&|place| place.is_fresh), inner.fresh);
        assert_eq!(count(&|place| place.looks > inner.looks), inner.came);
        assert!(inner.workers <= self.workers_max);
        let waits = !inner.activations.is_empty();
        assert!(!waits || inner.workers > 0 && self.watched, "waiting needs a worker and a watch");
        assert!(!waits || !self.closed, "nothing waits in a closed queue");
        for (worker_slot, taken) in inner.worker_slots.iter().enumerate() {
            assert_eq!(
                count(&|place| place.worker_slot == worker_slot),
                usize::from(*taken),
                "one per slot"
            );
        }
        let mut seen: Vec<_> = self.taken.iter().chain(&self.returned).copied().collect();
        seen.extend(inner.activations.iter());
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..self.added), "each is taken or returned once, or waits");
    }

    /// Lets all workers run to their end: then all activations were taken, and the watch can end.
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
fn in_all_orders_of_calls_each_activation_is_taken_or_returned() {
    for workers_max in 1..=3 {
        let orders = explore(workers_max, &mut Vec::new());
        assert!(orders > 10_000, "{workers_max}: {orders}");
    }
}

// ── Lines ──

/// Takes all elements at a slot, in order.
fn taken(lines: &mut ActivationQueues<u32>, worker_slot: usize) -> Vec<u32> {
    std::iter::from_fn(|| lines.take(worker_slot)).collect()
}

#[test]
fn worker_takes_its_own_line_first_then_the_oldest() {
    let mut lines = ActivationQueues::new(3);
    for activation in 0..9 {
        lines.push(activation as usize, activation); // any number is a slot
    }
    assert_eq!(taken(&mut lines, 1), [1, 4, 7, 0, 2, 3, 5, 6, 8]);
    assert!(lines.is_empty());
}

/// Takes and returns elements at random slots. Returns the number of takes from another's line.
fn rounds(lines: &mut ActivationQueues<u32>, own: impl Fn(u32) -> usize, turns: u32) -> usize {
    let (mut drawn, mut strayed) = (1_u32, 0);
    for _ in 0..turns {
        drawn = drawn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let worker_slot = (drawn >> 31) as usize;
        let activation = lines.take(worker_slot).expect("some wait");
        strayed += usize::from(own(activation) != worker_slot);
        lines.push(own(activation), activation);
    }
    strayed
}

#[test]
fn workers_keep_to_their_own_of_similar_lines() {
    for (all, of_first) in [(1_000, 500), (1_000, 400), (10, 5)] {
        let mut lines = ActivationQueues::new(2);
        let own = |activation| usize::from(activation >= of_first);
        (0..all).for_each(|activation| lines.push(own(activation), activation));
        let strayed = rounds(&mut lines, own, 100_000);
        assert!(strayed < 2_000, "{strayed} of 100,000");
    }
}

#[test]
fn much_longer_line_is_served_by_other_workers_too() {
    let mut lines = ActivationQueues::new(2);
    let own = |activation| usize::from(activation >= 900);
    (0..1_000).for_each(|activation| lines.push(own(activation), activation));
    let strayed = rounds(&mut lines, own, 100_000);
    assert!(strayed > 10_000, "{strayed} of 100,000");
}

#[test]
fn line_without_a_worker_is_at_most_two_rounds_behind() {
    let mut lines = ActivationQueues::new(2);
    for activation in 0..18 {
        lines.push(usize::from(activation >= 2), activation);
    }
    let mut taken = std::collections::BTreeSet::new();
    let takes = std::iter::from_fn(|| {
        let activation = lines.take(0)?;
        lines.push(usize::from(activation >= 2), activation);
        taken.insert(activation);
        (taken.len() < 18).then_some(())
    });
    let takes = takes.take(1_000).count();
    assert!(takes < 54, "{takes} takes for 18 that wait");
}

#[test]
fn drain_keeps_the_order_of_pushes() {
    let mut lines = ActivationQueues::new(2);
    for (worker_slot, activation) in [(1, 0), (0, 1), (0, 2), (1, 3)] {
        lines.push(worker_slot, activation);
    }
    assert_eq!((lines.drain(), lines.len()), (vec![0, 1, 2, 3], 0));
}
