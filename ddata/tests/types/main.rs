//! Every replicated type, proved or broken.

mod cases;
mod crate_bugs;
mod known_failures;
mod laws;
mod model;
mod oracles;
mod pekko_leaves;
mod pekko_maps;
mod pekko_sets;
mod quorum;
mod registers;
mod regressions;
mod world;
