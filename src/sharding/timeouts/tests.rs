//! Tests of the table: its results, the asks that it wakes, and the memory that it frees.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread;

use proptest::prelude::*;

use super::*;

/// Counts how often it was woken.
#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl CountingWaker {
    fn new() -> (Arc<Self>, Waker) {
        let bell = Arc::<Self>::default();
        (Arc::clone(&bell), Waker::from(bell))
    }

    fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn swept() -> (Arc<Timeouts>, Sweeper) {
    let timeouts = Timeouts::new();
    let sweeper = timeouts.claim_sweeper().expect("the first");
    (timeouts, sweeper)
}

#[test]
fn waiting_ask_is_woken_once_at_its_deadline() {
    let (timeouts, sweeper) = swept();
    let (bell, waker) = CountingWaker::new();
    let place = timeouts.enter(at(10), &waker);
    assert_eq!((sweeper.sweep(at(9)), bell.rung()), (Some(1), 0));
    assert!(timeouts.stay(&place, &waker));
    assert_eq!((sweeper.sweep(at(10)), bell.rung()), (Some(1), 1));
    assert!(!timeouts.stay(&place, &waker), "it was woken already");
    assert_eq!((sweeper.sweep(at(11)), bell.rung()), (Some(1), 1));
    timeouts.leave(place);
    assert_eq!((sweeper.sweep(at(12)), bell.rung(), timeouts.len()), (Some(0), 1, 0));
}

#[test]
fn reused_key_wakes_only_its_new_owner() {
    let (timeouts, sweeper) = swept();
    let [(former, of_former), (bell, waker)] = [CountingWaker::new(), CountingWaker::new()];
    let place = timeouts.enter(at(1), &of_former);
    let used = format!("{place:?}");
    timeouts.leave(place);
    let place = timeouts.enter(at(5), &waker);
    assert_eq!(format!("{place:?}"), used);
    assert_eq!((sweeper.sweep(at(4)), bell.rung()), (Some(1), 0));
    assert_eq!((sweeper.sweep(at(5)), bell.rung(), former.rung()), (Some(1), 1, 0));
    timeouts.leave(place);
}

#[test]
fn moved_ask_is_woken_in_its_latest_task() {
    let (timeouts, sweeper) = swept();
    let [(former, of_former), (bell, waker)] = [CountingWaker::new(), CountingWaker::new()];
    let place = timeouts.enter(at(5), &of_former);
    assert!(timeouts.stay(&place, &waker));
    assert_eq!(Arc::strong_count(&former), 2, "only the references of the test");
    assert_eq!(sweeper.sweep(at(5)), Some(1));
    assert_eq!((former.rung(), bell.rung()), (0, 1));
    timeouts.leave(place);
}

#[test]
fn one_sweeper_and_asks_learn_of_its_end() {
    let (timeouts, sweeper) = swept();
    assert!(timeouts.claim_sweeper().is_none());
    let (bell, waker) = CountingWaker::new();
    let place = timeouts.enter(at(5), &waker);
    drop(sweeper);
    assert_eq!(bell.rung(), 1);
    assert!(!timeouts.stay(&place, &waker));
    let sweeper = timeouts.claim_sweeper().expect("the next");
    assert_eq!(
        (sweeper.sweep(at(5)), bell.rung()),
        (Some(1), 1),
        "it was woken before and has its own timer"
    );
    timeouts.leave(place);
    drop(timeouts);
    assert_eq!(sweeper.sweep(at(6)), None, "a sweeper does not keep the table alive");
}

#[test]
fn memory_is_freed_when_the_sweeper_ends_unused() {
    let (timeouts, sweeper) = swept();
    let (_, waker) = CountingWaker::new();
    let places: Vec<_> = (0..1_000).map(|_| timeouts.enter(at(5), &waker)).collect();
    for place in places {
        timeouts.leave(place);
    }
    let peak = timeouts.capacity();
    assert!((1_000..=2_048).contains(&peak), "{peak}");
    for place in (0..1_000).map(|_| timeouts.enter(at(5), &waker)).collect::<Vec<_>>() {
        timeouts.leave(place);
    }
    assert_eq!(timeouts.capacity(), peak, "keys are reused");
    drop(sweeper);
    assert_eq!(timeouts.capacity(), 0);
}

/// Uses the table when it is dropped, as a task that owns asks does.
struct Nosy(Arc<Timeouts>);

impl Wake for Nosy {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Nosy {
    fn drop(&mut self) {
        self.0.len();
    }
}

#[test]
fn a_waker_that_is_dropped_finds_the_table_unlocked() {
    let (timeouts, sweeper) = swept();
    let nosy = || Waker::from(Arc::new(Nosy(Arc::clone(&timeouts))));
    let places = [0, 1, 9].map(|time| timeouts.enter(at(time), &nosy()));
    let [one, ..] = &places;
    assert!(timeouts.stay(one, &nosy()));
    assert_eq!(sweeper.sweep(at(1)), Some(3));
    places.into_iter().for_each(|place| timeouts.leave(place));
    assert_eq!(timeouts.len(), 0);
}

/// Panics when it is woken; the payload of the panic panics again when it is dropped.
struct Cracked;

struct Shards;

impl Wake for Cracked {
    fn wake(self: Arc<Self>) {
        std::panic::panic_any(Shards);
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        panic!("intended by the test");
    }
}

#[test]
fn panicking_waker_does_not_stop_other_wakeups() {
    let (timeouts, sweeper) = swept();
    let mut places = Vec::new();
    let mut enter = |time| {
        let (bell, waker) = CountingWaker::new();
        let cracked = Waker::from(Arc::new(Cracked));
        places.extend([&cracked, &waker, &cracked].map(|waker| timeouts.enter(at(time), waker)));
        bell
    };
    let bells = [1, 2, 3].map(&mut enter);
    let rung = || bells.iter().map(|bell| bell.rung()).collect::<Vec<_>>();
    assert_eq!((sweeper.sweep(at(1)), rung()), (Some(9), vec![1, 0, 0]));
    assert_eq!((sweeper.sweep(at(2)), rung()), (Some(9), vec![1, 1, 0]), "the sweeps go on");
    drop(sweeper);
    assert_eq!(rung(), [1, 1, 1], "the end of the sweeper wakes the rest");
    assert!(places.iter().all(|place| !timeouts.stay(place, Waker::noop())));
}

#[test]
fn entry_may_leave_on_another_thread() {
    let (timeouts, sweeper) = swept();
    let (bell, waker) = CountingWaker::new();
    let places = thread::scope(|scope| {
        let enter = || scope.spawn(|| timeouts.enter(at(5), &waker));
        let threads: Vec<_> = (0..40).map(|_| enter()).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!((sweeper.sweep(at(5)), bell.rung()), (Some(40), 40));
    places.into_iter().for_each(|place| timeouts.leave(place));
    assert_eq!(timeouts.len(), 0);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(u64),
    /// Removes the entry at this position of the list.
    Leave(usize),
    Move(usize),
    /// Sweeps after this much time.
    Sweep(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..50u64).prop_map(Step::Enter),
        2 => (0..20usize).prop_map(Step::Leave),
        1 => (0..20usize).prop_map(Step::Move),
        2 => (0..20u64).prop_map(Step::Sweep),
    ]
}

proptest! {
    /// Each sweep wakes exactly the entries that a plain list predicts, whatever left, came or
    /// moved between.
    #[test]
    fn sweep_wakes_exactly_the_due_asks(
        steps in prop::collection::vec(step(), 0..60)
    ) {
        let (timeouts, sweeper) = swept();
        let (mut now, mut waiting, mut gone) = (0, Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Enter(after) => {
                    let (bell, waker) = CountingWaker::new();
                    let deadline = now + after;
                    waiting.push((timeouts.enter(at(deadline), &waker), deadline, bell, false));
                }
                Step::Leave(which) if which < waiting.len() => {
                    let (place, _, bell, woken) = waiting.swap_remove(which);
                    timeouts.leave(place);
                    gone.push((bell, woken));
                }
                Step::Move(which) if which < waiting.len() => {
                    let (place, _, bell, woken) = &mut waiting[which];
                    let (new, waker) = CountingWaker::new();
                    prop_assert_eq!(timeouts.stay(place, &waker), !*woken);
                    if !*woken {
                        gone.push((std::mem::replace(bell, new), false));
                    }
                }
                Step::Leave(_) | Step::Move(_) => {}
                Step::Sweep(pause) => {
                    now += pause;
                    prop_assert_eq!(sweeper.sweep(at(now)), Some(waiting.len()));
                    for (_, deadline, _, woken) in &mut waiting {
                        *woken |= *deadline <= now;
                    }
                }
            }
            let all = waiting.iter().map(|(_, _, bell, woken)| (bell, woken));
            for (bell, woken) in all.chain(gone.iter().map(|(bell, woken)| (bell, woken))) {
                prop_assert_eq!(bell.rung(), usize::from(*woken));
            }
        }
        prop_assert_eq!(timeouts.len(), waiting.len());
    }
}
