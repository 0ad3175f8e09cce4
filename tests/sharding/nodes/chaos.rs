//! Whole nodes under faults.
