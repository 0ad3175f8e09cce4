//! Every replicated type, proved or broken.

mod cases;
mod laws;
mod model;
mod regressions;
mod world;
