//! Open probe requests of other members, until an answer arrives or they expire.
//!
//! Indirect probes are the ping-req of SWIM (Das et al., 2002).

use std::collections::BTreeMap;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::NodeId;

/// Maximum number of open requests. Further ones are rejected and counted.
pub(super) const RELAYS_MAX: usize = 256;

/// A probe request: the requesting member and its number for the request.
pub(super) type ProbeRequest = (NodeId, u64);

/// An open request about `subject`, until `until`.
#[derive(Clone, Copy, Debug)]
struct RelayedProbe {
    subject: NodeId,
    /// Heartbeats with this or a higher sequence number were sent after the request.
    sequence: u64,
    until: Instant,
}

/// The open requests of other members. The caller sends the heartbeats and the reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Relays {
    open: BTreeMap<ProbeRequest, RelayedProbe>, // ≤ RELAYS_MAX; expired ones until `expire`
    /// Number of requests rejected by a full table since the start.
    refused: u64,
}

impl Relays {
    /// Adds a request about `subject`, in place of an open one with the same asker and number, also
    /// if the table is full. Any other request is rejected by a full table: returns `false` and
    /// counts it. Expired requests fill the table until [`expire`](Self::expire). Whether the nodes
    /// are members is not checked here. `sequence` is the number of the next heartbeat.
    pub(super) fn open(
        &mut self,
        question: ProbeRequest,
        subject: NodeId,
        sequence: u64,
        until: Instant,
    ) -> bool {
        let has_room = self.open.len() < RELAYS_MAX || self.open.contains_key(&question);
        if has_room {
            self.open.insert(question, RelayedProbe { subject, sequence, until });
        } else {
            self.refused += 1;
        }
        has_room
    }

    /// Removes and returns the requests that an answer of `subject` to a heartbeat settles: those
    /// about it whose `sequence` is not higher than that of the heartbeat. Usually none. Expired
    /// requests count until [`expire`](Self::expire) drops them.
    pub(super) fn answered(&mut self, subject: NodeId, sequence: u64) -> Vec<ProbeRequest> {
        let settled = self
            .open
            .iter()
            .filter(|(_, asked)| asked.subject == subject && sequence >= asked.sequence);
        let settled: Vec<ProbeRequest> = settled.map(|(question, _)| *question).collect();
        settled.iter().for_each(|question| {
            self.open.remove(question);
        });
        settled
    }

    /// Drops expired requests, and those of or about nodes that are no longer members. They are not
    /// counted, and the requesting members get no report.
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

    /// Earliest expiry of an open request; may be in the past.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.open.values().map(|asked| asked.until).min()
    }
}
