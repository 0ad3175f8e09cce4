//! The gate: explored to the last state, its weakenings found, its small decisions one by one.

mod directed;
mod exploration;
mod threads;
mod world;
