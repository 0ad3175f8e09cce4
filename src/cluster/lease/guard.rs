//! The Replicator and the [`Grantor`] as one machine: a question about leases is answered in the
//! step in which it is asked, and no grant leaves after a Seal's answer (spec/safety.md §4).
//!
//! Knows no gossip, no member's status, no socket; the same machine runs under the driver and in
//! the simulator.

use std::collections::VecDeque;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::replicator::{Replicator, port};

use super::{Grantor, LeaseMessage};
use crate::cluster::bug::Canary;

/// A fact for a guarded Replicator.
#[derive(Debug)]
pub enum GuardInput {
    /// For the Replicator. Its `Consent` is never awaited from outside.
    Data(port::Input),
    /// A heartbeat or a release came; a grant is for the holder.
    Lease {
        /// The sending incarnation, as the transport knows it.
        from: ReplicaId,
        /// What it says.
        message: LeaseMessage,
    },
    /// Gossip says that this one is Down.
    Down(ReplicaId),
    /// Gossip no longer says that this one is Down.
    NotDown(ReplicaId),
    /// This one's process is dead, and that is proven.
    ProvenDead(ReplicaId),
}

/// An order of a guarded Replicator.
#[derive(Clone, Debug, PartialEq)]
pub enum GuardOutput {
    /// Of the Replicator, but for `AskConsent`.
    Data(port::Output),
    /// A grant: send it to the holder, which may be on this node.
    Lease {
        /// The receiver.
        to: ReplicaId,
        /// The message.
        message: LeaseMessage,
    },
}

/// The Replicator with the promises of its node.
#[derive(Debug)]
pub struct Guard {
    replicator: Replicator,
    grantor: Option<Grantor>, // from the first input on, which tells when it was started
    canary: Canary,
    scratch: Outbox<port::Output>,
}

impl Guard {
    /// `canary` is [`Canary::none`] but in the suites.
    #[must_use]
    pub fn new(replicator: Replicator, canary: Canary) -> Self {
        Self { replicator, grantor: None, canary, scratch: Outbox::new() }
    }

    /// The Replicator, to look at.
    #[must_use]
    pub const fn replicator(&self) -> &Replicator {
        &self.replicator
    }

    /// The promises, to look at; none before the first input.
    #[must_use]
    pub const fn grantor(&self) -> Option<&Grantor> {
        self.grantor.as_ref()
    }

    /// The epoch in which this replica is a member that is not sealed.
    fn unsealed(&self) -> Option<EpochId> {
        let epochs = self.replicator.epochs();
        epochs.id().filter(|_| epochs.is_member() && !epochs.sealed())
    }

    fn lease(
        &mut self,
        now: Now,
        from: ReplicaId,
        message: LeaseMessage,
        out: &mut Outbox<GuardOutput>,
    ) {
        let unsealed = self.unsealed();
        let grantor = grantor(&mut self.grantor, &self.replicator, now, self.canary);
        match message {
            LeaseMessage::Beat(beat) => {
                let granted = grantor.beat(now, from, beat, unsealed);
                out.extend(granted.map(|message| GuardOutput::Lease { to: from, message }));
                // Whoever is behind learns it from the other's epoch.
                self.data(now, port::Input::PeerEpoch { from, id: Some(beat.epoch) }, out);
            }
            LeaseMessage::Release { number } => {
                if grantor.release(from, number) {
                    self.data(now, port::Input::Released(from), out);
                }
            }
            LeaseMessage::Granted(_) => {}
        }
    }

    /// Feeds the Replicator, and the answers to the questions that it asks.
    fn data(&mut self, now: Now, input: port::Input, out: &mut Outbox<GuardOutput>) {
        let (mut next, mut consents) = (Some(input), VecDeque::new());
        while let Some(input) = next.take().or_else(|| consents.pop_front()) {
            let is_founded = self.replicator.epochs().installed().is_some();
            if matches!(input, port::Input::Found(_)) && is_founded {
                continue; // the other founders' word was faster than this node's own
            }
            self.replicator.handle(now, input, &mut self.scratch);
            for output in self.scratch.drain() {
                match output {
                    port::Output::AskConsent { query, removed, .. } => {
                        let grantor =
                            grantor(&mut self.grantor, &self.replicator, now, self.canary);
                        let remaining = grantor.consent(now, &removed);
                        consents.push_back(port::Input::Consent { query, remaining });
                    }
                    port::Output::Installed(epoch) => {
                        grantor(&mut self.grantor, &self.replicator, now, self.canary)
                            .installed(now, &epoch);
                        out.push(GuardOutput::Data(port::Output::Installed(epoch)));
                    }
                    other => out.push(GuardOutput::Data(other)),
                }
            }
        }
    }
}

fn grantor<'a>(
    held: &'a mut Option<Grantor>,
    replicator: &Replicator,
    now: Now,
    canary: Canary,
) -> &'a mut Grantor {
    held.get_or_insert_with(|| Grantor::new(replicator.id(), now, canary))
}

impl Machine for Guard {
    type Input = GuardInput;
    type Output = GuardOutput;

    fn handle(&mut self, now: Now, input: GuardInput, out: &mut Outbox<GuardOutput>) {
        match input {
            GuardInput::Data(input) => self.data(now, input, out),
            GuardInput::Lease { from, message } => self.lease(now, from, message, out),
            GuardInput::Down(id) => {
                grantor(&mut self.grantor, &self.replicator, now, self.canary).down(id);
            }
            GuardInput::NotDown(id) => {
                grantor(&mut self.grantor, &self.replicator, now, self.canary).not_down(id);
            }
            GuardInput::ProvenDead(id) => {
                let grantor = grantor(&mut self.grantor, &self.replicator, now, self.canary);
                if grantor.proven_dead(id) {
                    self.data(now, port::Input::Released(id), out);
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.replicator.next_deadline()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ostraca_ddata::bug;
    use ostraca_ddata::clock::WallTime;
    use ostraca_ddata::data::Registry;
    use ostraca_ddata::replicator::Setup;
    use ostraca_ddata::replicator::config::Config;
    use ostraca_ddata::replicator::epoch::{Change, Epoch, EpochSettings};

    use super::*;
    use crate::cluster::lease::Beat;

    const ME: ReplicaId = ReplicaId::new(1);
    const LEAVER: ReplicaId = ReplicaId::new(2);

    /// Its word that it has released its lease may be heard later than its word that it is Exiting.
    #[test]
    fn who_leaves_in_order_is_let_go_at_once_whatever_is_heard_first() {
        let (registry, canary) = (Registry::new(), bug::Canary::none());
        let setup = Setup { me: ME, config: Config::default(), registry, seed: 1, canary };
        let mut guard = Guard::new(Replicator::new(setup), Canary::none());
        let mut now = Now { mono: Instant::from_nanos(0), wall: WallTime::default() };
        let id = EpochId { generation: 1, number: 1 };
        let founded = Epoch::founding(id, vec![ME, LEAVER], EpochSettings::default());
        let founded = Arc::new(founded.expect("two"));
        let change = Change { leave: vec![LEAVER], ..Change::default() };
        let lease = |message| GuardInput::Lease { from: LEAVER, message };
        let beat = LeaseMessage::Beat(Beat { epoch: id, number: 7 });
        let mut out = Outbox::new();
        guard.handle(now, GuardInput::Data(port::Input::Found(founded)), &mut out);
        now.mono = now.mono + Duration::from_secs(100); // no wait is left of the start
        guard.handle(now, lease(beat), &mut out);
        guard.handle(now, GuardInput::Data(port::Input::Propose(change)), &mut out);
        let is_out = |guard: &Guard| {
            guard.replicator().epochs().installed().is_some_and(|epoch| !epoch.is_member(LEAVER))
        };
        assert!(!is_out(&guard), "its lease runs");
        guard.handle(now, lease(LeaseMessage::Release { number: 7 }), &mut out);
        assert!(is_out(&guard), "{:?}", guard.replicator().epochs().stats());
    }
}
