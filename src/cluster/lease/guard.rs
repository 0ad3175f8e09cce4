//! The Replicator and the [`Grantor`] as one state machine.
//!
//! Each node is a voter for configurations (epochs) and grants leases: it promises a member to
//! consent to no epoch without that member for a time, and the grants of a quorum are the member's
//! lease (docs/protocol/leases.md). Before the Replicator votes for an epoch that removes members
//! (it *seals* the present one), it asks with `AskConsent` how long its own promises to them run.
//! The question is answered within the call that asks, and a voter that has sealed an epoch grants
//! no lease in it.
//!
//! One step of the Replicator (a large merge) may take longer than a lease. [`Grants`] therefore
//! answers heartbeats on any thread while a step runs; every promise is made under its lock.
//! - Consent rule: a step that handles `Consent` holds the lock from the reading of the promises
//!   until the new epoch state is published. Heartbeats wait, so no promise is made in between.
//! - Publication rule: any other step that seals or installs an epoch has read no promise (for
//!   example, because it removes no member, or because others have decided the epoch). Its new
//!   epoch state is published under the lock before its outputs are sent. Until then no other node
//!   has seen the step, so a promise made during it has the same effects as one made before it.
//!
//! Inputs tell it the marks of gossip; it uses no gossip, member status or socket itself, so the
//! driver and the simulator run the same machine.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::replicator::{Replicator, port};

use super::{Grantor, Heartbeat, LeaseMessage};
use crate::cluster::fault_injection::MembershipFaultInjection;

/// Input of a [`GuardedReplicator`].
#[derive(Debug)]
pub enum GuardInput {
    /// Input of the Replicator. The caller must not pass `Consent`, which would bypass the consent
    /// rule: the [`GuardedReplicator`] answers `AskConsent` itself.
    Data(port::ReplicatorInput),
    /// A heartbeat or a release. `Granted` is ignored here: it is meant for the holder. A node
    /// answers the heartbeats of its peers with [`Grants::beat`]; the simulator passes all here.
    Lease {
        /// The sending incarnation, as authenticated by the transport.
        from: ReplicaId,
        /// The message of the sender.
        message: LeaseMessage,
    },
    /// Gossip marks this incarnation Down: it is granted nothing; its promise still has to expire.
    Down(ReplicaId),
    /// Gossip no longer marks this incarnation Down: it may be granted leases again.
    NotDown(ReplicaId),
    /// This incarnation's process is proven dead: its promise ends now, if the configuration has
    /// set `restart-is-proof`.
    ProvenDead(ReplicaId),
}

/// Output of a [`GuardedReplicator`].
#[derive(Clone, Debug, PartialEq)]
pub enum GuardOutput {
    /// Output of the Replicator, except `AskConsent`.
    Data(port::ReplicatorOutput),
    /// A grant: send it to the holder, which may be on this node.
    Lease {
        /// Incarnation of the receiver.
        to: ReplicaId,
        /// The message to send.
        message: LeaseMessage,
    },
}

/// Handle to the promises of this node, for use on any thread. Clones share one state and lock.
#[derive(Clone, Debug)]
pub struct Grants(Arc<Mutex<Granting>>);

#[derive(Debug)]
struct Granting {
    me: ReplicaId,
    fault_injection: MembershipFaultInjection,
    /// Created at its first use, which gives the time at which its start-up wait begins: an earlier
    /// life of this node may have made promises that it does not know.
    grantor: Option<Grantor>,
    /// The installed epoch, if any.
    installed: Option<EpochId>,
    /// The installed epoch, if this replica is a member of it and has not sealed it.
    unsealed: Option<EpochId>,
}

/// Result of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatResult {
    /// The grant to send back; `None` if it was refused.
    pub answer: Option<LeaseMessage>,
    /// The sender has installed another epoch than this node, which may have none: pass `PeerEpoch`
    /// to the Replicator. Then `answer` is `None`.
    pub is_other_epoch: bool,
}

impl Grants {
    fn new(me: ReplicaId, fault_injection: MembershipFaultInjection) -> Self {
        let (grantor, installed, unsealed) = (None, None, None);
        Self(Arc::new(Mutex::new(Granting { me, fault_injection, grantor, installed, unsealed })))
    }

    /// Locks the promises. A lock that was poisoned by a panic is used as it is.
    fn lock(&self) -> MutexGuard<'_, Granting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a heartbeat of `from` that was received at `now`, by the epoch state that the last
    /// finished step has published. Blocks while a step of the Replicator handles `Consent`; other
    /// steps do not delay it, except while they publish. The caller sends the answer; if the epochs
    /// differ, the heartbeat counts as refused.
    #[must_use]
    pub fn beat(&self, now: Now, from: ReplicaId, beat: Heartbeat) -> HeartbeatResult {
        let mut granting = self.lock();
        let (installed, unsealed) = (granting.installed, granting.unsealed);
        let answer = granting.grantor(now).beat(now, from, beat, unsealed);
        HeartbeatResult { answer, is_other_epoch: installed != Some(beat.epoch) }
    }
}

impl Granting {
    /// The grantor; the first call, whatever its reason, creates it, started at `now`.
    fn grantor(&mut self, now: Now) -> &mut Grantor {
        self.grantor.get_or_insert_with(|| Grantor::new(self.me, now, self.fault_injection))
    }
}

/// The Replicator with the promises of its node.
#[derive(Debug)]
pub struct GuardedReplicator {
    replicator: Replicator,
    grants: Grants,
    known: (Option<EpochId>, Option<EpochId>), // (installed, unsealed), as last published
    scratch: Outbox<port::ReplicatorOutput>,
}

impl GuardedReplicator {
    /// `fault_injection` injects faults in tests; otherwise pass
    /// [`MembershipFaultInjection::none`].
    #[must_use]
    pub fn new(replicator: Replicator, fault_injection: MembershipFaultInjection) -> Self {
        let grants = Grants::new(replicator.id(), fault_injection);
        Self { replicator, grants, known: (None, None), scratch: Outbox::new() }
    }

    /// Read access to the Replicator.
    #[must_use]
    pub const fn replicator(&self) -> &Replicator {
        &self.replicator
    }

    /// A handle that answers heartbeats without passing them through this machine.
    #[must_use]
    pub fn grants(&self) -> Grants {
        self.grants.clone()
    }

    /// Handles a message of a holder. A heartbeat is answered by a grant, or not at all, and its
    /// epoch is passed to the Replicator in either case. The first release of a member is reported
    /// to the Replicator as `Released`, so that it asks again where the promise was reported as
    /// running. A release of a node that is not a member, or is proven dead, has no effect.
    /// `Granted` is ignored. The lock is free when the Replicator handles its input.
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
                // The node with the older epoch learns of the newer one; equal ones have no effect.
                self.data(
                    now,
                    port::ReplicatorInput::PeerEpoch { from, id: Some(beat.epoch) },
                    out,
                );
            }
            LeaseMessage::Release { number } => {
                let is_first = self.grants.lock().grantor(now).release(from, number);
                if is_first {
                    self.data(now, port::ReplicatorInput::Released(from), out);
                }
            }
            LeaseMessage::Granted(_) => {} // meant for the holder
        }
    }

    /// Feeds an input to the Replicator and answers each `AskConsent` it emits (consent rule), also
    /// those that an answer leads to. Publishes each step's new epoch state before it passes on the
    /// step's outputs. Drops `Found` if an epoch is installed already. The caller must not hold the
    /// lock of the grants.
    ///
    /// After `consent` the Grantor refuses the removed members for 2·T_q only (T_q is the duration
    /// of a promise). If the lock were released and the process suspended for longer than that
    /// before the seal, a heartbeat could be granted, and the voter would seal although the lease
    /// it had just granted still runs.
    fn data(&mut self, now: Now, input: port::ReplicatorInput, out: &mut Outbox<GuardOutput>) {
        let is_founded = self.replicator.epochs().installed().is_some();
        if matches!(input, port::ReplicatorInput::Found(_)) && is_founded {
            return; // seeds found together: another one's equal configuration arrived first
        }
        let grants = self.grants.clone();
        let mut questions = VecDeque::new();
        self.replicator.handle(now, input, &mut self.scratch);
        self.tell_grants(now, || grants.lock()); // publication rule: locks only for a new state
        self.forward(&mut questions, out);
        while let Some((query, removed)) = questions.pop_front() {
            let mut granting = grants.lock();
            let remaining = granting.grantor(now).consent(now, &removed);
            let consent = port::ReplicatorInput::Consent { query, remaining };
            self.replicator.handle(now, consent, &mut self.scratch);
            self.tell_grants(now, || granting); // consent rule: holds the lock until then
            self.forward(&mut questions, out);
        }
    }

    /// Passes on the outputs of a step, and leaves none behind; questions about leases are queued
    /// instead.
    fn forward(
        &mut self,
        questions: &mut VecDeque<(u64, Vec<ReplicaId>)>,
        out: &mut Outbox<GuardOutput>,
    ) {
        for output in self.scratch.drain() {
            match output {
                port::ReplicatorOutput::AskConsent { query, removed, .. } => {
                    questions.push_back((query, removed));
                }
                other => out.push(GuardOutput::Data(other)),
            }
        }
    }

    /// Publishes the epoch state after a step to the grants, before the step's outputs are sent:
    /// must be called before [`forward`](Self::forward), because it reads them. Calls `lock` only
    /// if the state has changed since the last publication; a lock that `lock` already holds is
    /// released on return. If another epoch is installed, tells the grantor of each one installed
    /// in the step.
    fn tell_grants<'a>(&mut self, now: Now, lock: impl FnOnce() -> MutexGuard<'a, Granting>) {
        let epochs = self.replicator.epochs();
        let installed = epochs.id();
        let unsealed = installed.filter(|_| epochs.is_member() && !epochs.sealed());
        if self.known == (installed, unsealed) {
            return; // most steps neither seal nor install
        }
        self.known = (installed, unsealed);
        let mut granting = lock();
        granting.unsealed = unsealed;
        let is_new = granting.installed != installed;
        granting.installed = installed;
        if !is_new {
            return;
        }
        for output in self.scratch.as_slice() {
            if let port::ReplicatorOutput::Installed(epoch) = output {
                granting.grantor(now).installed(now, epoch);
            }
        }
    }
}

impl Machine for GuardedReplicator {
    type Input = GuardInput;
    type Output = GuardOutput;

    /// As described at [`GuardInput`]. A first proof of death is also reported to the Replicator as
    /// `Released`, like a first release, unless the member was released before; `Down` and
    /// `NotDown` are not reported and have no output.
    fn handle(&mut self, now: Now, input: GuardInput, out: &mut Outbox<GuardOutput>) {
        match input {
            GuardInput::Data(input) => self.data(now, input, out),
            GuardInput::Lease { from, message } => self.lease(now, from, message, out),
            GuardInput::Down(id) => self.grants.lock().grantor(now).down(id),
            GuardInput::NotDown(id) => self.grants.lock().grantor(now).not_down(id),
            GuardInput::ProvenDead(id) => {
                let is_first = self.grants.lock().grantor(now).proven_dead(id);
                if is_first {
                    self.data(now, port::ReplicatorInput::Released(id), out);
                }
            }
        }
    }

    /// A promise needs no deadline: the Replicator was told how long it runs, and asks again then.
    fn next_deadline(&self) -> Option<Instant> {
        self.replicator.next_deadline()
    }
}
