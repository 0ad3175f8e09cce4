//! Latency between the machine's cores, which every figure depends on.
//!
//! A cache line takes about 30 ns from one core to another that shares its last-level cache, and
//! 170 ns to one that does not. A hypervisor moves its guest's cores from time to time, which
//! changes every figure in which two threads share data, by a factor of up to three. So figures are
//! only comparable if this latency is printed beside them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const SPAN: Duration = Duration::from_millis(3);
const ROUNDS: u32 = 50;
/// Longer spans are discarded: the two measuring threads shared a core, because others were busy.
const APART_MAX: Duration = Duration::from_micros(1);

static SEEN: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

/// Measures for 3 ms. Call it before each run.
pub(crate) fn look() {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).push(apart());
}

/// Formats the range measured since the last call; measures now if there is none.
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

/// Time that a cache line takes from one core to another.
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
            least = least.min(round.elapsed()); // rounds on a shared core take longer
        }
        over.store(true, Ordering::Relaxed);
        least / (2 * ROUNDS)
    })
}
