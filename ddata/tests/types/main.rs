//! Every replicated type, proved or broken.

mod regressions;
