//! Seeded discrete-event simulator for any machine.
