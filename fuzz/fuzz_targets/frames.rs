//! Any bytes as frames: they are cut without a panic, in steps that end, and nothing is read
//! beyond them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ostraca::net::frame::{self, Cut, FRAME_BYTES, Frame};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Cut::Frame(frame, len)) = frame::cut(rest, FRAME_BYTES) {
        assert!((5..=FRAME_BYTES).contains(&len));
        if let Frame::Message { header, .. } | Frame::First { header, .. } = frame {
            let count = usize::from(header.as_bytes()[0]);
            assert_eq!(header.fields().count(), count);
        }
        rest = &rest[len..];
    }
});
