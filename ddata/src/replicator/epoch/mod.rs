//! Configurations: how the voters of one epoch decide the next, and nothing acked is lost.
//!
//! [`Epochs`] is a Machine inside the Replicator. Each step is one question and its answers:
//! *Withhold* (whose leases still run?), *Seal* (promise, ack no more, freeze), *Sync* (the next
//! voters merge a sealed quorum's snapshots), *Accept*, *Install*. It decides when; the parent
//! freezes, pulls, merges, persists and answers data requests, and asks [`Epochs::eligible`]
//! before it acks any. Knows no data, no lease table, no membership, no socket.
//!
//! # What the parent owes
//! - It acks and answers requests of an epoch only while [`Epochs::eligible`] and the request's
//!   epoch is [`Epochs::id`]; open requests start counting anew at [`EpochOutput::Installed`].
//! - [`EpochOutput::Freeze`]: the snapshot is taken in the step of the order, with all that was
//!   acked before it. It is given to whoever pulls it, until a newer epoch is installed; a state
//!   is given only while [`Epochs::synced`] and the epochs agree.
//! - [`EpochOutput::Persist`]: nothing ordered or said later, acks and replies included, leaves
//!   the node before it is durable.
//! - Orders to pull stand until `StopPulls`: what is lost is asked for again.
//! - Every message that it receives yields an [`EpochInput::PeerEpoch`]: that is how a decision
//!   reaches those who missed it.
//!
//! Spec: spec/safety.md §1; the rules E1–E6, L2, L3 are those of spec/reference/epochs.md §1 and
//! are model-checked there: change none without its model. `tests/epochs` drives this machine
//! through them.

mod acceptor;
mod attempt;
mod configuration;
mod deadline;
mod install;
mod message;
mod pace;
mod port;
mod propose;
mod senders;
mod sync;
mod vote;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub use self::acceptor::AcceptorState;
pub use self::configuration::{
    Ballot, Change, ChangeError, Epoch, EpochId, EpochSettings, FEW_VOTERS, InvalidEpoch, LEFT_MAX,
    LeaseSettings, MEMBERS_MAX, NotForced, Unfit,
};
pub use self::message::{AcceptedProposal, EpochMessage, Refusal, Remaining};
pub use self::port::{
    Consenting, EpochConfig, EpochInput, EpochOutput, EpochStats, Outcome, WhyRefused,
};
pub use self::senders::Declined;

use self::attempt::{Attempt, Phase};
use self::configuration::SharedEpoch;
use self::deadline::{Deadline, Deadlines};
use self::pace::Pace;
use self::senders::{Doubted, HintProbe, LetInNodes};
use self::sync::Syncing;
use self::vote::Consents;
use crate::bug::{Bug, Canary};
use crate::clock::{Instant, Now};
use crate::id::ReplicaId;
use crate::machine::{Machine, Outbox};

type Out = Outbox<EpochOutput>;

/// Doublings of the patience with an abandoned seal, at most.
const PATIENCE_DOUBLINGS: u32 = 7;
/// The same for answers to a question that seals nobody.
const PATIENCE_DOUBLINGS_UNSEALED: u32 = 3;

/// Whether this incarnation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// In no configuration yet.
    Joining,
    /// In the newest one that it knows.
    Member,
    /// In none any more, for ever.
    Excluded,
}

/// The configuration machine of one replica.
#[derive(Clone, Debug)]
pub struct Epochs {
    me: ReplicaId,
    config: EpochConfig,
    canary: Canary,
    rng: SmallRng,
    state: AcceptorState,
    role: Role,
    /// The configuration that the installed one directly follows, if it was installed here.
    former: Option<SharedEpoch>,
    /// What was installed here before this generation began by force.
    unforced: Option<SharedEpoch>,
    known: LetInNodes,
    /// What members of the installed configuration last proposed to follow it.
    proposed: Option<SharedEpoch>,
    /// Refused because of its sender, and not reported yet.
    doubted: Option<Doubted>,
    hint_probe: Option<HintProbe>,
    /// `StopServing` was said in this epoch.
    stopped: bool,
    attempt: Option<Attempt>,
    /// Ballots of this node's in this epoch that asked for seals.
    attempts: u32,
    /// Wishes given back in this epoch.
    given_back: u32,
    consents: Consents,
    /// Questions to the lease machine so far: their names.
    queries: u64,
    syncing: Option<Syncing>,
    /// Whose state is being pulled.
    source: Option<ReplicaId>,
    installs: Pace,
    asks: Pace,
    deadlines: Deadlines,
    /// What this node says to itself; empty between inputs.
    loopback: VecDeque<EpochMessage>,
    stats: EpochStats,
}

impl Epochs {
    /// The machine of incarnation `me`, in no configuration; `seed` only spreads its timers.
    #[must_use]
    pub fn new(me: ReplicaId, config: EpochConfig, seed: u64, canary: Canary) -> Self {
        Self {
            me,
            installs: Pace::new(config.resend_first),
            asks: Pace::new(config.resend_first),
            config,
            canary,
            rng: SmallRng::seed_from_u64(seed),
            state: AcceptorState::default(),
            role: Role::Joining,
            former: None,
            unforced: None,
            known: LetInNodes::new(),
            proposed: None,
            doubted: None,
            hint_probe: None,
            stopped: false,
            attempt: None,
            attempts: 0,
            given_back: 0,
            consents: Consents::default(),
            queries: 0,
            syncing: None,
            source: None,
            deadlines: Deadlines::default(),
            loopback: VecDeque::new(),
            stats: EpochStats::default(),
        }
    }

    /// The newest decided configuration that this node knows. It may lack this node: a joiner
    /// learns of configurations before it is in one, and an excluded node keeps the newest.
    #[must_use]
    pub const fn installed(&self) -> Option<&Arc<Epoch>> {
        self.state.installed.as_ref()
    }

    /// Its id, for the epoch field of every message.
    #[must_use]
    pub fn id(&self) -> Option<EpochId> {
        self.state.id()
    }

    /// Whether this replica may ack and answer requests of the installed epoch: it is a member,
    /// synced and not sealed. Nothing else may ack.
    #[must_use]
    pub fn eligible(&self) -> bool {
        self.is_member()
            && (self.state.synced || self.canary.has(Bug::AckBeforeSync))
            && (!self.state.is_sealed() || self.canary.has(Bug::NotSealed))
    }

    /// Whether this replica has promised a ballot of the installed epoch: it acks no more in it,
    /// grants no lease, and serves its frozen snapshot.
    #[must_use]
    pub const fn sealed(&self) -> bool {
        self.state.is_sealed()
    }

    /// Whether the state here holds everything acked before the installed epoch: only then may
    /// the parent answer a state pull for it.
    #[must_use]
    pub const fn synced(&self) -> bool {
        self.state.synced
    }

    /// Whether the installed configuration has this node, and it was never without it.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.role == Role::Member
    }

    /// Whether this node's answers count in quorums.
    #[must_use]
    pub fn is_voter(&self) -> bool {
        self.is_member() && self.state.installed.as_ref().is_some_and(|c| c.is_voter(self.me))
    }

    /// Whether this incarnation was removed. It never comes back: restart the node.
    #[must_use]
    pub fn is_excluded(&self) -> bool {
        self.role == Role::Excluded
    }

    /// Whether `id` may read the snapshot that this replica froze: it is a member of the installed
    /// configuration or of one that a member has proposed to follow it.
    #[must_use]
    pub fn may_sync(&self, id: ReplicaId) -> bool {
        let is_in = |epoch: Option<&SharedEpoch>| epoch.is_some_and(|it| it.is_member(id));
        is_in(self.state.installed.as_ref()) || is_in(self.proposed.as_ref())
    }

    /// Whether a configuration that `id` sends may be installed here ([`senders`]).
    #[must_use]
    pub fn may_inform(&self, id: ReplicaId) -> bool {
        self.believes(id)
    }

    /// Whether `answered` holds a quorum of the installed configuration by the tie rule, which
    /// fences and leases use. Client operations use [`super::quorum::Level`].
    #[must_use]
    pub fn is_quorum(&self, answered: &BTreeSet<ReplicaId>) -> bool {
        self.state.installed.as_ref().is_some_and(|epoch| epoch.is_quorum(answered, self.canary))
    }

    /// What would have to be durable now.
    #[must_use]
    pub const fn state(&self) -> &AcceptorState {
        &self.state
    }

    /// What was counted so far.
    #[must_use]
    pub const fn stats(&self) -> &EpochStats {
        &self.stats
    }

    /// Everything that decides what this machine does next but clocks, chance and counts: two
    /// machines of one essence go the same ways. For exhaustive exploration.
    #[cfg(feature = "canaries")]
    #[must_use]
    pub fn essence(&self) -> String {
        let who = (self.role, self.stopped, self.attempts, self.source);
        let senders = (&self.former, &self.unforced, &self.proposed, &self.known, &self.hint_probe);
        format!("{:?}", (&self.state, who, &self.attempt, &self.consents, &self.syncing, senders))
    }

    fn tick(&mut self, now: Now, out: &mut Out) {
        while let Some(due) = self.deadlines.pop_due(now.mono) {
            match due {
                Deadline::Patience => self.lose_patience(now, out),
                Deadline::Resend => self.resend(now, out),
                Deadline::Leases => self.leases_expired(now, out),
                Deadline::RemovalProbe => self.removal_probe_ended(now, out),
                Deadline::Source => self.next_source(now, out),
                Deadline::Ask => self.ask_somebody(now, out),
                Deadline::Doubt => self.report_doubt(out),
                Deadline::HintProbe => self.hint_probe_ended(now, out),
            }
        }
    }

    fn receive(&mut self, now: Now, from: ReplicaId, message: EpochMessage, out: &mut Out) {
        use EpochMessage as M;
        match message {
            M::Install { epoch } => self.learn(now, Some(from), epoch, out),
            M::Ask { installed } => self.peer_epoch(now, from, installed, out),
            M::Sync { base, ballot, proposal, sealed } => {
                self.on_sync(now, from, sync::SyncRequest { base, ballot, proposal, sealed }, out);
            }
            M::Ping { epoch, ballot } => {
                self.peer_epoch(now, from, Some(epoch), out);
                self.send(from, M::Pong { epoch, ballot }, out);
            }
            M::Pong { epoch, ballot } if ballot == self.hint_ballot() => {
                if self.id() == Some(epoch) {
                    self.hint_probe_answered(from);
                }
            }
            M::Withhold { epoch, ballot, removed } => {
                if let Some(current) = self.voting(now, from, epoch, ballot, out) {
                    self.on_withhold(&current, from, ballot, removed, out);
                }
            }
            M::Seal { epoch, ballot, proposal } => {
                if let Some(current) = self.voting(now, from, epoch, ballot, out) {
                    self.on_seal(now, &current, vote::VoteRequest { from, ballot, proposal }, out);
                }
            }
            M::Accept { epoch, ballot, proposal } => {
                if let Some(current) = self.voting(now, from, epoch, ballot, out) {
                    self.on_accept(
                        now,
                        &current,
                        &vote::VoteRequest { from, ballot, proposal },
                        out,
                    );
                }
            }
            M::Synced { epoch } if self.same_epoch(now, from, epoch, out) => {
                self.on_synced(now, from, out);
            }
            M::Withheld { epoch, ballot, remaining }
                if self.mine(now, from, epoch, ballot, out) =>
            {
                self.on_withheld(now, from, remaining, out);
            }
            M::Sealed { epoch, ballot, accepted } if self.mine(now, from, epoch, ballot, out) => {
                self.on_sealed(now, from, accepted, out);
            }
            M::Refused { epoch, ballot, why } if self.mine(now, from, epoch, ballot, out) => {
                self.on_refused(now, from, why, out);
            }
            M::Pong { epoch, ballot } if self.mine(now, from, epoch, ballot, out) => {
                self.on_pong(now, from, out);
            }
            M::Accepted { epoch, ballot } if self.mine(now, from, epoch, ballot, out) => {
                self.on_accepted(now, from, out);
            }
            // Answers to an earlier ballot or of another epoch.
            M::Synced { .. }
            | M::Withheld { .. }
            | M::Sealed { .. }
            | M::Refused { .. }
            | M::Pong { .. }
            | M::Accepted { .. } => {}
        }
    }

    /// Whether `epoch` is the installed one; if not, whoever is behind learns of the newer.
    fn same_epoch(&mut self, now: Now, from: ReplicaId, epoch: EpochId, out: &mut Out) -> bool {
        if self.id() != Some(epoch) {
            self.peer_epoch(now, from, Some(epoch), out);
        }
        self.id() == Some(epoch)
    }

    /// Whether this answers the attempt that is under way.
    fn mine(
        &mut self,
        now: Now,
        from: ReplicaId,
        epoch: EpochId,
        ballot: Ballot,
        out: &mut Out,
    ) -> bool {
        self.same_epoch(now, from, epoch, out)
            && self.attempt.as_ref().is_some_and(|attempt| attempt.ballot == ballot)
    }

    fn send(&mut self, to: ReplicaId, message: EpochMessage, out: &mut Out) {
        if to == self.me {
            self.loopback.push_back(message);
        } else {
            out.push(EpochOutput::Send { to, message });
        }
    }

    fn send_all(
        &mut self,
        to: impl IntoIterator<Item = ReplicaId>,
        message: &EpochMessage,
        out: &mut Out,
    ) {
        for to in to {
            self.send(to, message.clone(), out);
        }
    }

    fn persist(&self, out: &mut Out) {
        out.push(EpochOutput::Persist(self.state.clone()));
    }

    /// Starts the wait for somebody else's success anew, if there is anything to wait for.
    fn restart_patience(&mut self, now: Now) {
        if self.state.is_sealed() || self.attempt.is_some() {
            let asks = |attempt: &Attempt| attempt.phase < Phase::Sealing;
            let asks = !self.state.is_sealed() && self.attempt.as_ref().is_some_and(asks);
            let doublings = if asks {
                self.given_back.min(PATIENCE_DOUBLINGS_UNSEALED)
            } else {
                self.attempts.min(PATIENCE_DOUBLINGS)
            };
            let span = self.config.abandoned_after * (1 << doublings);
            let random = self.up_to(span);
            self.deadlines.set(Deadline::Patience, now.mono + span + random);
        }
    }

    fn up_to(&mut self, span: Duration) -> Duration {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.random_range(0..=nanos))
    }

    /// A random index below `len`, which is not 0.
    fn pick(&mut self, len: usize) -> usize {
        self.rng.random_range(0..len)
    }

    fn current(&self) -> SharedEpoch {
        let installed = self.state.installed.as_ref();
        installed.expect("only with a configuration installed is anything voted on").clone()
    }
}

impl Machine for Epochs {
    type Input = EpochInput;
    type Output = EpochOutput;

    fn handle(&mut self, now: Now, input: EpochInput, out: &mut Out) {
        match input {
            EpochInput::Tick => self.tick(now, out),
            EpochInput::Propose(change) => self.propose(now, change, out),
            EpochInput::Message { from, message } => self.receive(now, from, message, out),
            EpochInput::Consent { query, remaining } => self.on_consent(now, query, remaining, out),
            EpochInput::Released(id) => self.released(id, out),
            EpochInput::SnapshotMerged { epoch, of } => self.snapshot_merged(now, epoch, of, out),
            EpochInput::StateMerged { epoch, from } => self.state_merged(epoch, from, out),
            EpochInput::SourceFailed { epoch, from } => self.source_failed(now, epoch, from),
            EpochInput::Found(epoch) => self.found(now, epoch, out),
            EpochInput::Force { replaced, kept } => self.force(now, replaced, &kept, out),
            EpochInput::Restore(state) => self.restore(now, state, out),
            EpochInput::PeerEpoch { from, id } => self.peer_epoch(now, from, id, out),
            EpochInput::Known(known) => self.known(known),
        }
        while let Some(message) = self.loopback.pop_front() {
            self.receive(now, self.me, message, out);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }
}
