//! A lane: one ordered, one-directional line of messages to one incarnation, for one class, that
//! outlives connections.
