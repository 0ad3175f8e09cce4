//! Traces that follow from a rule.
