//! Arbitrary bytes as the frames of a lane: cutting ends, never panics and reads no byte beyond a
//! frame.

use ostraca::net::frame::{self, Cut, FRAME_BYTES, Frame};

pub(crate) fn run(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Cut::Frame(frame, len)) = frame::cut(rest, FRAME_BYTES) {
        assert!((5..=FRAME_BYTES).contains(&len));
        if let Frame::Message { header, .. } | Frame::First { header, .. } = frame {
            let count = usize::from(header.as_bytes()[0]);
            assert_eq!(header.fields().count(), count);
        }
        rest = &rest[len..];
    }
}
