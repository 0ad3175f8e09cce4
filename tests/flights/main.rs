//! The main job, `examples/flights`: its parts, and the whole of it as a program that is run.

#[path = "../../examples/flights/records.rs"]
mod records;
#[path = "../../examples/flights/tally.rs"]
mod tally;

mod counting;
mod reading;
mod running;
