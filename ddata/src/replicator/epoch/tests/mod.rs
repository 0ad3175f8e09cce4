//! Transcripts of the configuration machine.
