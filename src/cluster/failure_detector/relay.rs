//! Probing for others: who asked about whom, until an answer comes or time is up.
//!
//! Knows no detector. The idea is SWIM's (Das et al., 2002), the ping-req.

use std::collections::BTreeMap;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::NodeId;

/// Questions of others that wait for an answer, at most; more are not taken, and counted.
pub(super) const RELAYS_MAX: usize = 256;

/// One question: who asks, and by what number it knows it.
pub(super) type Question = (NodeId, u64);

#[derive(Clone, Copy, Debug)]
struct Asked {
    subject: NodeId,
    /// Heartbeats from this one on were sent after the question.
    sequence: u64,
    until: Instant,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Relays {
    open: BTreeMap<Question, Asked>, // ≤ RELAYS_MAX
    refused: u64,
}

impl Relays {
    /// Takes a question about `subject`; false if there is no room.
    pub(super) fn open(
        &mut self,
        question: Question,
        subject: NodeId,
        sequence: u64,
        until: Instant,
    ) -> bool {
        let has_room = self.open.len() < RELAYS_MAX || self.open.contains_key(&question);
        if has_room {
            self.open.insert(question, Asked { subject, sequence, until });
        } else {
            self.refused += 1;
        }
        has_room
    }

    /// `subject` has answered a heartbeat: the questions that this settles.
    pub(super) fn answered(&mut self, subject: NodeId, sequence: u64) -> Vec<Question> {
        let settled = self
            .open
            .iter()
            .filter(|(_, asked)| asked.subject == subject && sequence >= asked.sequence);
        let settled: Vec<Question> = settled.map(|(question, _)| *question).collect();
        settled.iter().for_each(|question| {
            self.open.remove(question);
        });
        settled
    }

    /// Drops the questions whose time is up, and those of and about nodes that are gone.
    pub(super) fn expire(&mut self, now: Instant, is_member: impl Fn(NodeId) -> bool) {
        self.open.retain(|(asker, _), asked| {
            now < asked.until && is_member(*asker) && is_member(asked.subject)
        });
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) const fn refused(&self) -> u64 {
        self.refused
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.open.values().map(|asked| asked.until).min()
    }
}
