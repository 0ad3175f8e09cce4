//! The Replicator and the [`Grantor`] as one machine: a question about leases is answered in the
//! step in which it is asked, and no grant leaves after a Seal's answer.
//!
//! A large merge may take the Replicator longer than a lease runs. So heartbeats need not wait for
//! it: [`Grants`] answers them on any thread, beside a step of the Replicator. Grantor and
//! Replicator still never disagree. Each answer about promises, and each grant, is one step under
//! the lock of the grants; a replica that has sealed or installed a configuration says so under
//! that lock before an output of that step leaves. A grant that is given in between is one that was
//! given before the step: the step has not read a promise without the lock, and nobody has seen an
//! output of it.
//!
//! Knows no gossip, no member's status, no socket; the same machine runs under the driver and in
//! the simulator.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::replicator::{Replicator, port};

use super::{Beat, Grantor, LeaseMessage};
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

/// The promises of a node. A clone gives the same promises; see the module's page.
#[derive(Clone, Debug)]
pub struct Grants(Arc<Mutex<Granting>>);

#[derive(Debug)]
struct Granting {
    me: ReplicaId,
    canary: Canary,
    grantor: Option<Grantor>, // from the first input on, which tells when it was started
    /// The installed epoch.
    installed: Option<EpochId>,
    /// The same, if this replica is a member of it that is not sealed.
    unsealed: Option<EpochId>,
}

/// What a heartbeat comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beaten {
    /// The answer to its sender; `None`: no grant.
    pub answer: Option<LeaseMessage>,
    /// The sender is in another epoch: the Replicator must hear of that.
    pub is_news: bool,
}

impl Grants {
    fn new(me: ReplicaId, canary: Canary) -> Self {
        let (grantor, installed, unsealed) = (None, None, None);
        Self(Arc::new(Mutex::new(Granting { me, canary, grantor, installed, unsealed })))
    }

    fn lock(&self) -> MutexGuard<'_, Granting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a heartbeat of `from` that was received at `now`. Waits for no step of the
    /// Replicator.
    #[must_use]
    pub fn beat(&self, now: Now, from: ReplicaId, beat: Beat) -> Beaten {
        let mut granting = self.lock();
        let (installed, unsealed) = (granting.installed, granting.unsealed);
        let answer = granting.grantor(now).beat(now, from, beat, unsealed);
        Beaten { answer, is_news: installed != Some(beat.epoch) }
    }
}

impl Granting {
    fn grantor(&mut self, now: Now) -> &mut Grantor {
        self.grantor.get_or_insert_with(|| Grantor::new(self.me, now, self.canary))
    }
}

/// The Replicator with the promises of its node.
#[derive(Debug)]
pub struct Guard {
    replicator: Replicator,
    grants: Grants,
    known: (Option<EpochId>, Option<EpochId>), // as the grants were told: installed, unsealed
    scratch: Outbox<port::Output>,
}

impl Guard {
    /// `canary` is [`Canary::none`] but in the suites.
    #[must_use]
    pub fn new(replicator: Replicator, canary: Canary) -> Self {
        let grants = Grants::new(replicator.id(), canary);
        Self { replicator, grants, known: (None, None), scratch: Outbox::new() }
    }

    /// The Replicator, to look at.
    #[must_use]
    pub const fn replicator(&self) -> &Replicator {
        &self.replicator
    }

    /// The promises, for the task that answers heartbeats in place of this machine.
    #[must_use]
    pub fn grants(&self) -> Grants {
        self.grants.clone()
    }

    fn lease(
        &mut self,
        now: Now,
        from: ReplicaId,
        message: LeaseMessage,
        out: &mut Outbox<GuardOutput>,
    ) {
        match message {
            LeaseMessage::Beat(beat) => {
                let granted = self.grants.beat(now, from, beat).answer;
                out.extend(granted.map(|message| GuardOutput::Lease { to: from, message }));
                // Whoever is behind learns it from the other's epoch.
                self.data(now, port::Input::PeerEpoch { from, id: Some(beat.epoch) }, out);
            }
            LeaseMessage::Release { number } => {
                let is_news = self.grants.lock().grantor(now).release(from, number);
                if is_news {
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
            self.tell_grants(now);
            for output in self.scratch.drain() {
                match output {
                    port::Output::AskConsent { query, removed, .. } => {
                        let remaining = self.grants.lock().grantor(now).consent(now, &removed);
                        consents.push_back(port::Input::Consent { query, remaining });
                    }
                    other => out.push(GuardOutput::Data(other)),
                }
            }
        }
    }

    /// Tells the grants what the last step has sealed or installed, before its outputs leave.
    fn tell_grants(&mut self, now: Now) {
        let epochs = self.replicator.epochs();
        let installed = epochs.id();
        let unsealed = installed.filter(|_| epochs.is_member() && !epochs.sealed());
        if self.known == (installed, unsealed) {
            return; // nearly always
        }
        self.known = (installed, unsealed);
        let mut granting = self.grants.lock();
        granting.unsealed = unsealed;
        let is_new = granting.installed != installed;
        granting.installed = installed;
        for output in self.scratch.as_slice().iter().filter(|_| is_new) {
            if let port::Output::Installed(epoch) = output {
                granting.grantor(now).installed(now, epoch);
            }
        }
    }
}

impl Machine for Guard {
    type Input = GuardInput;
    type Output = GuardOutput;

    fn handle(&mut self, now: Now, input: GuardInput, out: &mut Outbox<GuardOutput>) {
        match input {
            GuardInput::Data(input) => self.data(now, input, out),
            GuardInput::Lease { from, message } => self.lease(now, from, message, out),
            GuardInput::Down(id) => self.grants.lock().grantor(now).down(id),
            GuardInput::NotDown(id) => self.grants.lock().grantor(now).not_down(id),
            GuardInput::ProvenDead(id) => {
                let is_news = self.grants.lock().grantor(now).proven_dead(id);
                if is_news {
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
    use std::time::Duration;

    use ostraca_ddata::bug;
    use ostraca_ddata::clock::WallTime;
    use ostraca_ddata::data::Registry;
    use ostraca_ddata::replicator::Setup;
    use ostraca_ddata::replicator::config::Config;
    use ostraca_ddata::replicator::epoch::{Change, Epoch, EpochSettings};

    use super::*;

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
