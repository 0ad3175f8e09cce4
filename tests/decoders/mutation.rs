//! Mutations of well-formed inputs, drawn from a seed.

use ostraca::ddata::sim::{RandomStream, seeds};

/// Number of inputs per seed.
pub(crate) const INPUTS: u64 = 32;
/// Maximum number of mutations of one input.
const MUTATIONS_MAX: u64 = 6;
/// Maximum length of an input, in bytes.
const INPUT_BYTES_MAX: usize = 64 * 1024;
/// Bytes with a special meaning in the formats: MessagePack markers and the ends of ranges.
const SPECIAL: [u8; 16] = [
    0x00, 0x01, 0x7f, 0x80, 0x81, 0x8f, 0x9f, 0xa0, 0xc0, 0xc4, 0xc6, 0xcf, 0xdb, 0xdd, 0xdf, 0xff,
];

/// A fuzz body. It panics if a decoder violates its contract, and otherwise returns a number for
/// the outcome. Inputs with different numbers took different paths.
pub(crate) type Body = fn(&[u8]) -> u64;

/// Runs `body` on mutated inputs of the corpus: `seed_count` seeds of [`INPUTS`] inputs each, or as
/// many as the variables of [`seeds`] request.
///
/// # Panics
/// If `body` panics. The seed and its replay command are printed.
pub(crate) fn explore(test: &'static str, seed_count: u64, corpus: &[Vec<u8>], body: Body) {
    for input in corpus {
        let _ = body(input);
    }
    for seed in seeds(test, seed_count) {
        for input in inputs(corpus, seed.value) {
            let _ = body(&input);
        }
    }
}

/// The inputs of one seed.
pub(crate) fn inputs(corpus: &[Vec<u8>], seed: u64) -> impl Iterator<Item = Vec<u8>> {
    let mut chance = RandomStream::split(seed, "mutation", 0);
    (0..INPUTS).map(move |_| mutated(corpus, &mut chance))
}

fn mutated(corpus: &[Vec<u8>], chance: &mut RandomStream) -> Vec<u8> {
    let mut input = pick(corpus, chance);
    for _ in 0..=chance.below(MUTATIONS_MAX) {
        mutate(&mut input, corpus, chance);
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], chance: &mut RandomStream) {
    let at = place(input.len() as u64 + 1, chance);
    let end = (at + place(17, chance)).min(input.len());
    let byte = match chance.below(2) {
        0 => SPECIAL[place(SPECIAL.len() as u64, chance)],
        _ => chance.bits() as u8,
    };
    match chance.below(7) {
        0 => input.truncate(at),
        1 => input.insert(at, byte),
        2 => drop(input.drain(at..end)),
        3 => input[at..end].fill(byte),
        4 => {
            let repeated = input[at..end].to_vec();
            input.splice(at..at, repeated.repeat(1 + place(40, chance)));
        }
        5 => {
            let other = pick(corpus, chance);
            input.truncate(at);
            input.extend_from_slice(&other[place(other.len() as u64 + 1, chance)..]);
        }
        _ => {
            if let Some(found) = input.get_mut(at) {
                *found ^= 1 << chance.below(8);
            }
        }
    }
}

fn pick(corpus: &[Vec<u8>], chance: &mut RandomStream) -> Vec<u8> {
    corpus.get(place(corpus.len() as u64, chance)).cloned().unwrap_or_default()
}

fn place(bound: u64, chance: &mut RandomStream) -> usize {
    usize::try_from(chance.below(bound)).expect("below the length of a slice")
}
