//! A model: the explorations of its bounds, and those of weakened rules.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Explorations that run at the same time: their memory adds up.
const THREADS_MAX: usize = 2;

/// A run that ends in a violation.
pub(crate) struct Failure {
    /// The broken property.
    pub(crate) property: String,
    /// The steps of the run, in words.
    pub(crate) steps: Vec<String>,
}

/// The result of an exploration.
pub(crate) struct Outcome {
    /// Number of distinct states.
    pub(crate) states: usize,
    /// Number of steps to the farthest state.
    pub(crate) depth: usize,
    /// The shortest run to a violation, if there is any.
    pub(crate) failure: Option<Failure>,
}

pub(crate) type Explore = Box<dyn Fn() -> Outcome + Send + Sync>;

/// An exploration in which every property must hold.
pub(crate) struct Bounds {
    pub(crate) text: &'static str,
    pub(crate) is_deep: bool,
    pub(crate) explore: Explore,
}

/// An exploration in which one rule is weakened, so that a property must break.
pub(crate) struct Weakened {
    /// The rule: its page and heading.
    pub(crate) rule: &'static str,
    /// Name of the fault injection.
    pub(crate) fault: String,
    /// Behaviour with the fault.
    pub(crate) text: &'static str,
    pub(crate) is_deep: bool,
    pub(crate) explore: Explore,
}

pub(crate) struct Model {
    pub(crate) name: &'static str,
    /// The machines that are explored, and their surroundings.
    pub(crate) about: &'static str,
    /// The properties that are checked in every state.
    pub(crate) checks: &'static str,
    pub(crate) bounds: Vec<Bounds>,
    pub(crate) rules: Vec<Weakened>,
}

impl Model {
    /// Leaves out the explorations that take minutes.
    pub(crate) fn drop_deep(&mut self) {
        self.bounds.retain(|bounds| !bounds.is_deep);
        self.rules.retain(|rule| !rule.is_deep);
    }
}

/// Runs the explorations on as many threads as memory permits, and passes the results on in their
/// order.
pub(crate) fn run_all(all: &[&Explore], mut done: impl FnMut(usize, Outcome, Duration)) {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let next = Arc::new(Mutex::new(0..all.len()));
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (next, send) = (Arc::clone(&next), send.clone());
            scope.spawn(move || {
                while let Some(index) = next.lock().ok().and_then(|mut next| next.next()) {
                    let begun = Instant::now();
                    let outcome = all[index]();
                    if send.send((index, outcome, begun.elapsed())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut early: Vec<(usize, Outcome, Duration)> = Vec::new();
        let mut turn = 0;
        for result in receive {
            early.push(result);
            while let Some(at) = early.iter().position(|(index, ..)| *index == turn) {
                let (index, outcome, time) = early.swap_remove(at);
                done(index, outcome, time);
                turn += 1;
            }
        }
    });
}
