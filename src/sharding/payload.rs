//! What a move carries along: messages that were accepted and not begun, in order
//! (spec/sharding.md §5 R5).
//!
//! ```text
//! version u8 (1) · (length u32 · letter) per message
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use super::dead_letters::Lost;
use super::entity::Entity;
use super::hosting::BadFrame;
use super::ids::EntityId;
use super::instance::Instance;
use super::letter::Letter;
use super::runtime::encode;
use super::tenants::{Entry, Tenants};

const VERSION: u8 = 1;

/// What is dropped once the lock is released.
pub(super) struct Left<E: Entity> {
    pub(super) values: Vec<Box<Instance<E>>>,
    /// Their bytes are in the payload.
    pub(super) typed: Vec<E::Message>,
    pub(super) lost: Vec<(Lost, Entry<E::Message>)>,
}

/// Empties a shard's mailboxes.
pub(super) fn seal<E: Entity>(mut tenants: Tenants<E>) -> (Option<Bytes>, Left<E>) {
    let mut left = Left { values: Vec::new(), typed: Vec::new(), lost: Vec::new() };
    let mut bytes = Vec::new();
    for tenant in tenants.all() {
        left.values.extend(tenant.state.take());
        let Some(busy) = &mut tenant.busy else { continue };
        for entry in busy.mailbox.drain(..) {
            match entry {
                Entry::Letter(letter) => append(&mut bytes, &letter),
                Entry::Typed(message) => match letter_of(&tenant.id, &message) {
                    Some(letter) => {
                        append(&mut bytes, &letter);
                        left.typed.push(message);
                    }
                    None => left.lost.push((Lost::Unencodable, Entry::Typed(message))),
                },
            }
        }
    }
    ((!bytes.is_empty()).then(|| bytes.into()), left)
}

fn letter_of<M: serde::Serialize>(to: &EntityId, message: &M) -> Option<Letter> {
    // A panic of the user's here would take the shard's lock with it.
    catch_unwind(AssertUnwindSafe(|| encode(to, message, None).ok())).ok().flatten()
}

fn append(bytes: &mut Vec<u8>, letter: &Letter) {
    if bytes.is_empty() {
        bytes.push(VERSION);
    }
    let length = u32::try_from(letter.bytes().len()).expect("a message is shorter than 4 GiB");
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(letter.bytes());
}

/// The letters of a payload, and why there are no more, if it ends too early.
pub(super) fn read(payload: &Bytes) -> (Vec<Letter>, Result<(), BadFrame>) {
    let mut letters = Vec::new();
    let Some((VERSION, mut rest)) = payload.split_first().map(|(v, rest)| (*v, rest)) else {
        return (letters, Err(BadFrame("a payload of an unknown version")));
    };
    while !rest.is_empty() {
        match next(payload, rest) {
            Ok((letter, behind)) => {
                letters.push(letter);
                rest = behind;
            }
            Err(why) => return (letters, Err(why)),
        }
    }
    (letters, Ok(()))
}

fn next<'a>(whole: &Bytes, rest: &'a [u8]) -> Result<(Letter, &'a [u8]), BadFrame> {
    let cut = BadFrame("a payload cut short");
    let (length, rest) = rest.split_first_chunk::<4>().ok_or(cut)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (letter, behind) = rest.split_at_checked(length).ok_or(cut)?;
    Ok((Letter::read(whole.slice_ref(letter))?, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_cut_gives_what_is_whole() {
        let to = EntityId::new("a").unwrap();
        let letters = [letter_of(&to, &1).unwrap(), letter_of(&to, &"two").unwrap()];
        let mut bytes = Vec::new();
        letters.iter().for_each(|letter| append(&mut bytes, letter));
        let whole = bytes.len();
        let first = 1 + 4 + letters[0].bytes().len();
        for length in 0..=whole {
            let (read, rest) = read(&Bytes::copy_from_slice(&bytes[..length]));
            let expected = usize::from(length >= first) + usize::from(length == whole);
            assert_eq!(read, letters[..expected]);
            assert_eq!(rest.is_ok(), length == 1 || length == first || length == whole);
        }
        assert!(read(&Bytes::from_static(&[9])).1.is_err(), "of another release");
    }
}
