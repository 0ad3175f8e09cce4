//! Tests of the example `flights`: reading its input (`reading`), comparing its totals
//! (`counting`), and the built program with nodes as processes (`running`).

#[path = "../../examples/flights/records.rs"]
mod records;
#[path = "../../examples/flights/tally.rs"]
mod tally;

mod counting;
mod reading;
mod running;
