//! Tests of the entity table: ids that collide under an unkeyed hash need as few comparisons as
//! others.

use std::collections::BTreeSet;

use xxhash_rust::xxh3::xxh3_64;

use super::super::context::Context;
use super::super::id_hash::hash;
use super::*;

struct Idle;

impl Entity for Idle {
    type Message = ();

    async fn handle(&mut self, (): (), _cx: &mut Context<'_, Self>) {}
}

/// First 128 bytes of XXH3's default secret, as little-endian words.
const SECRET: [u64; 16] = [
    0xbe4b_a423_396c_feb8,
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
    0x4c26_3a81_e690_35e0,
    0xcb00_c391_bb52_283c,
    0xa32e_531b_8b65_d088,
    0x4ef9_0da2_9748_6471,
    0xd8ac_dea9_46ef_1938,
    0x3f34_9ce3_3f76_faa8,
    0x1d4f_0bc7_c7bb_dcf9,
    0x3159_b4cd_4be0_518a,
    0x6473_78d9_c97e_9fc8,
];

/// Candidates for each of the eight 16-byte blocks of an id.
const BLOCKS: u32 = 1 << 18;

/// Number of bits that the first and the second round of the birthday search cancel.
const ROUND_BITS: u32 = 18;

fn block(lane: usize, number: u32) -> [u8; 16] {
    let mut rest = u64::from(number) * 7_919 + lane as u64;
    let mut letter = || {
        let letter = b'a' + (rest % 26) as u8;
        rest /= 26;
        letter
    };
    std::array::from_fn(|_| letter())
}

/// The summand of one block; XXH3 adds up eight of them for an id of 128 bytes.
fn summand(lane: usize, number: u32) -> u64 {
    let block = u128::from_le_bytes(block(lane, number));
    // Blocks from the end alternate with blocks from the beginning.
    let words = if lane < 4 { 4 * lane } else { 4 * (7 - lane) + 2 };
    let low = block as u64 ^ SECRET[words];
    let high = (block >> 64) as u64 ^ SECRET[words + 1];
    let product = u128::from(low) * u128::from(high);
    product as u64 ^ (product >> 64) as u64
}

/// A partial sum with the numbers of its blocks; 0 for blocks that are not part of it.
type Sum = (u64, [u32; 8]);

/// Returns pairs whose sums are zero in `bits`.
fn join(left: &[Sum], mut right: Vec<Sum>, bits: u64) -> Vec<Sum> {
    right.sort_unstable_by_key(|(sum, _)| sum & bits);
    let mut joined = Vec::new();
    for (sum, blocks) in left {
        let wanted = sum.wrapping_neg() & bits;
        let first = right.partition_point(|(sum, _)| sum & bits < wanted);
        let fitting = right[first..].iter().take_while(|(sum, _)| sum & bits == wanted);
        joined.extend(fitting.take(8).map(|(other, more)| {
            (sum.wrapping_add(*other), std::array::from_fn(|lane| blocks[lane] | more[lane]))
        }));
    }
    joined
}

/// Returns distinct ids of 128 lower-case letters with equal unkeyed XXH3, found by Wagner's
/// algorithm.
fn colliding_ids() -> BTreeSet<String> {
    let lane = |lane: usize| -> Vec<Sum> {
        let one = |number| {
            (summand(lane, number), std::array::from_fn(|at| u32::from(at == lane) * number))
        };
        (0..BLOCKS).map(one).collect()
    };
    let first = (1 << ROUND_BITS) - 1;
    let pair = |n: usize| join(&lane(2 * n), lane(2 * n + 1), first);
    let second = (1 << (2 * ROUND_BITS)) - 1;
    let (front, back) = (join(&pair(0), pair(1), second), join(&pair(2), pair(3), second));
    let ids = join(&front, back, u64::MAX).into_iter().map(|(_, blocks)| {
        let bytes = blocks.iter().enumerate().flat_map(|(lane, &number)| block(lane, number));
        bytes.map(char::from).collect()
    });
    ids.collect()
}

/// Returns the number of id comparisons when each id is added, and found once.
fn comparisons(ids: &BTreeSet<String>, hash: impl Fn(&[u8]) -> u64) -> usize {
    let mut entity_table = EntityTable::<Idle>::new();
    for id in ids {
        assert_eq!(entity_table.find(hash(id.as_bytes()), id.as_bytes()), None);
        entity_table.add(hash(id.as_bytes()), EntityId::new(id).expect("an id"));
    }
    for id in ids {
        assert!(entity_table.find(hash(id.as_bytes()), id.as_bytes()).is_some());
    }
    entity_table.compared.get()
}

#[test]
fn ids_that_collide_unkeyed_cost_as_much_as_others() {
    let ids = colliding_ids();
    assert!(ids.len() > 64, "{} ids", ids.len());
    let unkeyed: BTreeSet<u64> = ids.iter().map(|id| xxh3_64(id.as_bytes())).collect();
    assert_eq!(unkeyed.len(), 1, "all ids collide");
    assert!(comparisons(&ids, xxh3_64) > ids.len() * ids.len() / 2, "the counter works");
    let compared = comparisons(&ids, hash);
    assert!(compared <= ids.len() + 10, "{compared} comparisons for {} ids", ids.len());
}
