//! `ostraca secret`: as many random bytes as nobody guesses.

use rand::TryRng;
use rand::rngs::SysRng;

use super::{Outcome, answer};

/// 256 bits, from the system.
const BYTES: usize = 32;

pub(super) fn run() -> Outcome {
    let mut bytes = [0; BYTES];
    SysRng.try_fill_bytes(&mut bytes)?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    answer(&format!("{text}\n"))
}
