//! Panics of the program's code that are caught: their messages for the log, and the drop of their
//! payloads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Maximum length of a panic's message in the log, in bytes. The rest is cut off.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// Returns the message of a caught panic, at most [`MESSAGE_BYTES_MAX`] bytes, cut at a character.
/// Control characters and an empty message stay as they are. A payload that is neither `&str` nor
/// `String` gives "a panic without text". Drops the payload by [`forget_panic`].
pub(super) fn message(panic: Box<dyn Any + Send>) -> Box<str> {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => *text,
        (_, Some(text)) => text.as_str(),
        (None, None) => "a panic without text",
    };
    let mut end = text.len().min(MESSAGE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let message = text[..end].into();
    forget_panic(panic);
    message
}

/// Drops the content of a user's panic. Its `Drop` is the user's code as well and may panic again;
/// the second panic is swallowed, and its content is leaked.
pub(crate) fn forget_panic(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the message of the panic of `run`, which must panic.
    fn caught(run: impl FnOnce()) -> Box<str> {
        message(catch_unwind(AssertUnwindSafe(run)).expect_err("it panics"))
    }

    #[test]
    fn message_of_a_panic_is_read_and_bounded() {
        struct PanicsWhenDropped;
        impl Drop for PanicsWhenDropped {
            fn drop(&mut self) {
                panic!("planned by the test: a payload that panics again");
            }
        }
        assert_eq!(&*caught(|| panic!("planned by the test")), "planned by the test");
        let number = 7;
        assert_eq!(&*caught(|| panic!("planned: {number}")), "planned: 7");
        let long = "ä".repeat(MESSAGE_BYTES_MAX); // two bytes each
        assert_eq!(caught(|| panic!("x{long}")).len(), MESSAGE_BYTES_MAX - 1);
        let without = caught(|| std::panic::panic_any(PanicsWhenDropped));
        assert_eq!(&*without, "a panic without text");
    }
}
