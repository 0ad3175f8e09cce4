//! Frames of an entity type that this node has not started. Answers among them are accepted.
//!
//! A reply address may have been passed on from the entity that was asked to one of another type.
//! Then the answer arrives under that type's name, and the asker is found by the number alone.

use super::frame::ShardingFrame;
use super::pending_asks::PendingAsks;
use super::region_handle::BadFrame;

/// Passes an answer or refusal to its ask. Returns false for all other frames, which have no
/// receiver here and are not counted: the caller does that. Returns true also if the ask no longer
/// waits, which counts as late, and if the answer does not decode as the asker's type, which ends
/// the ask with an error.
///
/// # Errors
/// [`BadFrame`] if the frame does not decode: count it and go on.
pub fn take_answer(asks: &PendingAsks, frame: &[u8]) -> Result<bool, BadFrame> {
    match ShardingFrame::read(frame)? {
        ShardingFrame::Answer { correlation, body } => asks.answered(correlation, body),
        ShardingFrame::Refused { correlation, why } => asks.refused(correlation, why),
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use ostraca_ddata::types::Term;

    use super::*;
    use crate::sharding::dead_letters::DeadLetterReason;
    use crate::sharding::frame;
    use crate::sharding::ids::{Generation, ShardId};
    use crate::sharding::pending_asks::{AskFailure, AskSlot, AskedShard};

    #[test]
    fn answer_under_an_unknown_type_reaches_its_asker() {
        let asks = PendingAsks::new();
        let polled = |write: &dyn Fn(&mut Vec<u8>, u64)| {
            let slot = AskSlot::<u32>::new(AskedShard::default());
            let mut frame = Vec::new();
            write(&mut frame, slot.enlist(&asks));
            assert_eq!(take_answer(&asks, &frame), Ok(true));
            slot.poll(&Context::from_waker(Waker::noop()))
        };
        let answered = polled(&|to, number| {
            frame::answer(to, number);
            to.extend(rmp_serde::to_vec(&7_u32).expect("it encodes"));
        });
        assert!(matches!(answered, Poll::Ready(Ok(7))));
        let refused =
            polled(&|to, number| frame::refused(to, number, DeadLetterReason::NodeStopped));
        assert!(matches!(
            refused,
            Poll::Ready(Err(AskFailure::Refused(DeadLetterReason::NodeStopped)))
        ));
        assert_eq!(asks.waiting(), 0);
    }

    #[test]
    fn frames_without_receiver_or_form_are_reported() {
        let (mut barrier, term) = (Vec::new(), Term { number: 1, ..Term::default() });
        frame::barrier(&mut barrier, ShardId::new(1), Generation::new(term, 1));
        assert_eq!(take_answer(&PendingAsks::new(), &barrier), Ok(false));
        assert!(take_answer(&PendingAsks::new(), &[0xff]).is_err());
    }
}
