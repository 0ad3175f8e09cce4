//! The transport, from outside: lanes over streams that break and lie.
#![expect(clippy::print_stderr, reason = "a failed run says how to repeat it")]

mod lanes;
