//! How far the machine's cores are from each other.
//!
//! A cache line takes some 30 ns from one core to another that shares its last cache, and 170 ns to one
//! that does not. A hypervisor moves its guest's cores now and then, and with that every figure changes
//! in which two threads share anything: by a factor of up to three. So no figure is compared with
//! another one without this beside it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const SPAN: Duration = Duration::from_millis(3);
const ROUNDS: u32 = 50;
/// Else the two threads that look share a core, for others have the rest.
const APART_MAX: Duration = Duration::from_micros(1);

static SEEN: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

/// Looks, for 3 ms. To be called before each run.
pub(crate) fn look() {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).push(apart());
}

/// What was seen since this was asked last; now, if nobody looked.
pub(crate) fn seen() -> String {
    let mut seen = std::mem::take(&mut *SEEN.lock().unwrap_or_else(PoisonError::into_inner));
    if seen.is_empty() {
        seen.push(apart());
    }
    seen.retain(|apart| *apart < APART_MAX);
    seen.sort_unstable();
    if seen.is_empty() {
        return "cores were busy".to_owned();
    }
    let [least, most] = [seen[0], seen[seen.len() - 1]].map(|span| span.as_nanos());
    if most <= least + least / 2 {
        format!("cores {least} ns apart")
    } else {
        format!("cores {least} to {most} ns apart")
    }
}

/// What a cache line takes from one core to another.
fn apart() -> Duration {
    let (ball, over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if ball.load(Ordering::Acquire) == 1 {
                    ball.store(0, Ordering::Release);
                }
                std::hint::spin_loop();
            }
        });
        let (begun, mut least) = (Instant::now(), Duration::MAX);
        while begun.elapsed() < SPAN {
            let round = Instant::now();
            for _ in 0..ROUNDS {
                ball.store(1, Ordering::Release);
                while ball.load(Ordering::Acquire) == 1 {
                    std::hint::spin_loop();
                }
            }
            least = least.min(round.elapsed()); // who shares a core with others waits for them
        }
        over.store(true, Ordering::Relaxed);
        least / (2 * ROUNDS)
    })
}
