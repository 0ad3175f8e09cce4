//! Arbitrary bytes as the frames of a lane: cutting ends, never panics and reads no byte beyond a
//! frame.

use ostraca::net::frame::{self, FRAME_BYTES, Frame, FrameParseResult};

/// Returns a hash of the kinds of the frames.
pub(crate) fn run(bytes: &[u8]) -> u64 {
    let (mut rest, mut outcome) = (bytes, 0_u64);
    while let Ok(FrameParseResult::Frame(frame, len)) = frame::cut(rest, FRAME_BYTES) {
        assert!((5..=FRAME_BYTES).contains(&len));
        if let Frame::Message { header, .. } | Frame::First { header, .. } = frame {
            let count = usize::from(header.as_bytes()[0]);
            assert_eq!(header.fields().count(), count);
        }
        outcome = outcome.wrapping_mul(11).wrapping_add(u64::from(rest[4]));
        rest = &rest[len..];
    }
    outcome
}
