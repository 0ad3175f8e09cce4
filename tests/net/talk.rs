//! Conversations: the data of each end follows from the seed, and is split at random.

use futures::io::{AsyncWrite, AsyncWriteExt};

use crate::lanes::pipe::{Chance, Nature};

/// Data that end number `end` sends: short or long.
pub(crate) fn said(seed: u64, end: usize) -> Vec<u8> {
    let mut chance = Chance(seed ^ ((end as u64 + 1) << 32));
    let len = if chance.one_in(3) { chance.size(1_500_000) } else { chance.size(20_000) };
    let first = chance.next();
    (0..len as u64).map(|at| (at.wrapping_mul(first) >> 24) as u8).collect()
}

/// Sends the data in pieces, flushes some of them, and closes.
pub(crate) async fn say(mut to: impl AsyncWrite + Unpin, said: &[u8], mut chance: Chance) {
    let mut rest = said;
    while !rest.is_empty() {
        let (piece, others) = rest.split_at(chance.size(rest.len().min(200_000)));
        to.write_all(piece).await.expect("it is heard");
        if chance.one_in(2) {
            to.flush().await.expect("it is heard");
        }
        rest = others;
    }
    to.close().await.expect("it is heard");
}

/// A connection with a random capacity, which splits reads and writes or not.
pub(crate) fn nature(chance: &mut Chance) -> Nature {
    let capacity = chance.size(300_000);
    let cuts = chance.one_in(2).then(|| chance.clone());
    Nature { capacity, chance: cuts, ..Nature::default() }
}
