//! Decides configurations: the voters of one configuration decide the next one so that no
//! acknowledged write is lost.
//!
//! [`Epochs`] is a [`Machine`] inside the Replicator, its *parent*. A change takes up to five
//! steps, each a question and its answers: *Withhold* (how long do leases of the removed members
//! run?), *Seal* (promise a ballot, acknowledge nothing more, freeze a snapshot), *Sync* (the
//! voters of the proposal merge the snapshots of a sealed quorum), *Accept* and *Install*. The
//! machine decides what happens when. The parent freezes, pulls, merges, persists and answers data
//! requests. The machine knows no data, lease table, membership or socket. In the code a
//! configuration is an [`Epoch`].
//!
//! The *patience* of a node is the time that it waits for the next configuration while it is sealed
//! or has an attempt of its own. A received `Seal` or `Accept`, a confirmed sync, a merged snapshot
//! and a new ballot restart it.
//!
//! # Obligations of the parent
//! - It acknowledges and answers requests of a configuration only while [`Epochs::eligible`] holds
//!   and the request's id is [`Epochs::id`]. At [`EpochOutput::Installed`] open requests start
//!   counting anew.
//! - At [`EpochOutput::Freeze`] it takes the snapshot in the same step, with everything
//!   acknowledged before, and serves it until a newer configuration is installed. It serves its
//!   state only while [`Epochs::synced`] holds and the ids agree.
//! - After [`EpochOutput::Persist`] nothing that was ordered later, acknowledgements and replies
//!   included, leaves the node before that state is durable.
//! - It repeats lost pulls until `StopPulls`.
//! - It passes the id of each received message as [`EpochInput::PeerEpoch`], so that a decision
//!   reaches the nodes that missed it.
//!
//! The rules have names in docs/protocol/configurations.md, where each has its reason.
//! `tests/epochs` explores this machine, and shows for each planted fault a run that violates a
//! property: explore every change of a rule there.

mod acceptor;
mod attempt;
mod configuration;
mod deadline;
mod install;
mod message;
mod port;
mod propose;
mod rate_limiter;
mod senders;
mod settings;
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
    Ballot, ChangeError, Epoch, EpochId, FEW_VOTERS, InvalidEpoch, LEFT_MAX, MEMBERS_MAX,
    MembershipChange, NotForced, ProposalMismatch,
};
pub use self::message::{AcceptedProposal, BallotRefusal, EpochMessage, Remaining};
pub use self::port::{
    Consenting, EpochConfig, EpochInput, EpochOutput, EpochStats, ProposalOutcome, ProposalRefusal,
};
pub use self::senders::ConfigurationRefusal;
pub use self::settings::{EpochSettings, LEASE_MAX, LeaseSettings};

use self::attempt::{BallotAttempt, BallotPhase};
use self::configuration::SharedEpoch;
use self::deadline::{Deadline, Deadlines};
use self::rate_limiter::PeerRateLimiter;
use self::senders::{HintProbe, LetInNodes, RefusedConfiguration};
use self::sync::Syncing;
use self::vote::Consents;
use crate::clock::{Instant, Now};
use crate::fault_injection::{FaultInjection, ReplicatorFault};
use crate::id::ReplicaId;
use crate::machine::{Machine, Outbox};

type EpochOutbox = Outbox<EpochOutput>;

/// Most doublings of the patience, one for each own ballot that reached the sealing phase. The
/// count itself goes on.
const PATIENCE_DOUBLINGS: u32 = 7;
/// Most doublings of the patience with unanswered questions while this node is not sealed, one for
/// each change given back.
const PATIENCE_DOUBLINGS_UNSEALED: u32 = 3;

/// Relation of this incarnation to the installed configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConfigurationRole {
    /// No configuration has had this incarnation as a member yet.
    Joining,
    /// The installed configuration has it.
    Member,
    /// A configuration removed or barred it. Final: a removed incarnation never returns.
    Excluded,
}

/// The configuration machine of one replica.
#[derive(Clone, Debug)]
pub struct Epochs {
    me: ReplicaId,
    config: EpochConfig,
    fault_injection: FaultInjection,
    rng: SmallRng,
    state: AcceptorState,
    role: ConfigurationRole,
    /// The configuration that directly precedes the installed one, if it was installed here.
    former: Option<SharedEpoch>,
    /// The configuration that was installed here before a forced one replaced it; kept until the
    /// next forced one, however many configurations follow.
    unforced: Option<SharedEpoch>,
    known: LetInNodes,
    /// The last proposal for the next configuration that a member of the installed one sent, this
    /// node included, by a `Seal` or `Accept` that was not refused, or by a `Sync`.
    proposed: Option<SharedEpoch>,
    /// The newest configuration refused because of its sender and not reported yet.
    doubted: Option<RefusedConfiguration>,
    hint_probe: Option<HintProbe>,
    /// `StopServing` was ordered in the installed configuration.
    stopped: bool,
    attempt: Option<BallotAttempt>,
    /// Ballots of this node in the installed configuration that reached the sealing phase.
    sealing_ballots: u32,
    /// Batches refused with `TooFewAnswered` in the installed configuration.
    changes_given_back: u32,
    consents: Consents,
    /// The id of the last question to the lease machine.
    queries: u64,
    syncing: Option<Syncing>,
    /// The replica whose state is pulled; `None` if no pull of a state is ordered.
    source: Option<ReplicaId>,
    installs: PeerRateLimiter,
    asks: PeerRateLimiter,
    deadlines: Deadlines,
    /// Messages of this node to itself; empty between inputs.
    loopback: VecDeque<EpochMessage>,
    stats: EpochStats,
}

impl Epochs {
    /// Creates the machine of incarnation `me`, in no configuration. `seed` only decides the random
    /// parts of timers and which voter is asked or pulled from first.
    #[must_use]
    pub fn new(
        me: ReplicaId,
        config: EpochConfig,
        seed: u64,
        fault_injection: FaultInjection,
    ) -> Self {
        Self {
            me,
            installs: PeerRateLimiter::new(config.resend_first),
            asks: PeerRateLimiter::new(config.resend_first),
            config,
            fault_injection,
            rng: SmallRng::seed_from_u64(seed),
            state: AcceptorState::default(),
            role: ConfigurationRole::Joining,
            former: None,
            unforced: None,
            known: LetInNodes::new(),
            proposed: None,
            doubted: None,
            hint_probe: None,
            stopped: false,
            attempt: None,
            sealing_ballots: 0,
            changes_given_back: 0,
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

    /// The id of the installed configuration, which every message carries; `None` before the first.
    #[must_use]
    pub fn id(&self) -> Option<EpochId> {
        self.state.id()
    }

    /// Whether this replica may acknowledge and answer requests of the installed configuration: it
    /// is a member, synced and not sealed (docs/protocol/configurations.md#eligible-replica).
    #[must_use]
    pub fn eligible(&self) -> bool {
        self.is_member()
            && (self.state.synced || self.fault_injection.has(ReplicatorFault::AckBeforeSync))
            && (!self.state.is_sealed() || self.fault_injection.has(ReplicatorFault::NotSealed))
    }

    /// Whether this replica has promised a ballot of the installed configuration. It then
    /// acknowledges no request, grants no lease, and serves its frozen snapshot.
    #[must_use]
    pub const fn sealed(&self) -> bool {
        self.state.is_sealed()
    }

    /// Whether the state here holds everything acknowledged before the installed configuration.
    /// Only then may the parent answer a state pull for it. May also hold on a node that is no
    /// member.
    #[must_use]
    pub const fn synced(&self) -> bool {
        self.state.synced
    }

    /// Whether the installed configuration has this node, and no earlier one removed it.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.role == ConfigurationRole::Member
    }

    /// Whether this node votes in the installed configuration.
    #[must_use]
    pub fn is_voter(&self) -> bool {
        self.is_member() && self.state.installed.as_ref().is_some_and(|c| c.is_voter(self.me))
    }

    /// Whether this incarnation was removed or barred. It never returns: restart the node.
    #[must_use]
    pub fn is_excluded(&self) -> bool {
        self.role == ConfigurationRole::Excluded
    }

    /// Whether `id` may read the snapshot that this replica froze: it is a member of the installed
    /// configuration or of the one that a member has proposed last to follow it. Does not tell
    /// whether there is a snapshot. False before the first configuration.
    #[must_use]
    pub fn may_sync(&self, id: ReplicaId) -> bool {
        let is_in = |epoch: Option<&SharedEpoch>| epoch.is_some_and(|it| it.is_member(id));
        is_in(self.state.installed.as_ref()) || is_in(self.proposed.as_ref())
    }

    /// Whether a configuration that `id` sends may be installed here, by the sender rule
    /// (docs/protocol/configurations.md#sender-rule).
    #[must_use]
    pub fn may_inform(&self, id: ReplicaId) -> bool {
        self.believes(id)
    }

    /// Whether `answered` holds a quorum of the installed configuration by the tie rule, which
    /// fences and leases use. Ids that are no voters do not count. False before the first
    /// configuration. Client operations use [`super::quorum::Level`].
    #[must_use]
    pub fn is_quorum(&self, answered: &BTreeSet<ReplicaId>) -> bool {
        self.state
            .installed
            .as_ref()
            .is_some_and(|epoch| epoch.is_quorum(answered, self.fault_injection))
    }

    /// The state that must be durable now.
    #[must_use]
    pub const fn state(&self) -> &AcceptorState {
        &self.state
    }

    /// Counters since the machine was created.
    #[must_use]
    pub const fn stats(&self) -> &EpochStats {
        &self.stats
    }

    /// All state that decides the next steps, as text: without deadlines, random numbers, counters
    /// (except that of sealing ballots), rate limits and refusals that wait for their report.
    /// Exhaustive exploration takes two machines with equal text for one state.
    #[cfg(feature = "canaries")]
    #[must_use]
    pub fn essence(&self) -> String {
        let own = (self.role, self.stopped, self.sealing_ballots, self.source);
        let senders = (&self.former, &self.unforced, &self.proposed, &self.known, &self.hint_probe);
        format!("{:?}", (&self.state, own, &self.attempt, &self.consents, &self.syncing, senders))
    }

    /// Handles each deadline at or before `now`, in the order of the kinds, and clears it before;
    /// also one that the handling of another sets to such a time. Does nothing if none has passed.
    fn tick(&mut self, now: Now, out: &mut EpochOutbox) {
        while let Some(due) = self.deadlines.pop_due(now.mono) {
            match due {
                Deadline::AbandonedSeal => self.lose_patience(now, out),
                Deadline::Resend => self.resend(now, out),
                Deadline::Leases => self.leases_expired(now, out),
                Deadline::RemovalProbe => self.removal_probe_ended(now, out),
                Deadline::Source => self.next_source(now, out),
                Deadline::Ask => self.ask_random_peer(now, out),
                Deadline::Doubt => self.report_doubt(out),
                Deadline::HintProbe => self.hint_probe_ended(now, out),
            }
        }
    }

    /// Handles a message of a peer, or of this node to itself.
    ///
    /// A message about another configuration than the installed one is dropped without a count and
    /// makes the side that is behind learn of the newer one; `Install` and `Sync` bring their
    /// configuration along. Answers count only in the running ballot, `Synced` in every ballot of
    /// the configuration; others are dropped and not counted.
    ///
    /// A `Ping` is always answered, also of a node that is no member and on a node that is none;
    /// like an `Ask`, it also makes the side that is behind learn of the newer configuration. A
    /// `Pong` to a hint probe counts only there.
    fn receive(&mut self, now: Now, from: ReplicaId, message: EpochMessage, out: &mut EpochOutbox) {
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
                self.hint_probe_answered(from, epoch);
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
                    let request = vote::VoteRequest { from, ballot, proposal };
                    self.on_accept(now, &current, &request, out);
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
            // An answer to an earlier ballot, or of another configuration.
            M::Synced { .. }
            | M::Withheld { .. }
            | M::Sealed { .. }
            | M::Refused { .. }
            | M::Pong { .. }
            | M::Accepted { .. } => {}
        }
    }

    /// Whether `epoch` is the installed one. If not, the side that is behind learns of the newer
    /// one, by [`peer_epoch`](Self::peer_epoch), which installs nothing at once.
    fn same_epoch(
        &mut self,
        now: Now,
        from: ReplicaId,
        epoch: EpochId,
        out: &mut EpochOutbox,
    ) -> bool {
        if self.id() != Some(epoch) {
            self.peer_epoch(now, from, Some(epoch), out);
        }
        self.id() == Some(epoch)
    }

    /// Whether an answer names the installed configuration and the ballot of the running attempt.
    /// False without an attempt. Another configuration also has the effect described at
    /// [`same_epoch`](Self::same_epoch).
    fn mine(
        &mut self,
        now: Now,
        from: ReplicaId,
        epoch: EpochId,
        ballot: Ballot,
        out: &mut EpochOutbox,
    ) -> bool {
        self.same_epoch(now, from, epoch, out)
            && self.attempt.as_ref().is_some_and(|attempt| attempt.ballot == ballot)
    }

    /// Sends a message. One to this node itself is received after the present input has been
    /// handled, before [`handle`](Machine::handle) returns.
    fn send(&mut self, to: ReplicaId, message: EpochMessage, out: &mut EpochOutbox) {
        if to == self.me {
            self.loopback.push_back(message);
        } else {
            out.push(EpochOutput::Send { to, message });
        }
    }

    /// Sends a message to each of these nodes, as [`send`](Self::send) does.
    fn send_all(
        &mut self,
        to: impl IntoIterator<Item = ReplicaId>,
        message: &EpochMessage,
        out: &mut EpochOutbox,
    ) {
        for to in to {
            self.send(to, message.clone(), out);
        }
    }

    /// Orders the whole voting state to be made durable, even if it has not changed.
    fn persist(&self, out: &mut EpochOutbox) {
        out.push(EpochOutput::Persist(self.state.clone()));
    }

    /// Sets the patience timer anew: `abandoned_after`, doubled as below, and a random time up to
    /// as much again. It doubles for each own ballot of this configuration that reached the sealing
    /// phase. While an own attempt has sent no `Seal` and this node is not sealed, it doubles for
    /// each change given back instead. Does nothing if this node is not sealed and has no attempt;
    /// a timer that is set then stays.
    fn restart_patience(&mut self, now: Now) {
        if self.state.is_sealed() || self.attempt.is_some() {
            let before_seal = |attempt: &BallotAttempt| attempt.phase < BallotPhase::Sealing;
            let asks_unsealed =
                !self.state.is_sealed() && self.attempt.as_ref().is_some_and(before_seal);
            let doublings = if asks_unsealed {
                self.changes_given_back.min(PATIENCE_DOUBLINGS_UNSEALED)
            } else {
                self.sealing_ballots.min(PATIENCE_DOUBLINGS)
            };
            let span = self.config.abandoned_after.saturating_mul(1 << doublings);
            let random = self.up_to(span);
            self.deadlines.set(Deadline::AbandonedSeal, now.mono + span + random);
        }
    }

    /// A random time from zero to `span`, both included.
    fn up_to(&mut self, span: Duration) -> Duration {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.random_range(0..=nanos))
    }

    /// A random index below `len`, which must not be 0.
    fn pick(&mut self, len: usize) -> usize {
        self.rng.random_range(0..len)
    }

    /// The installed configuration. Panics before the first one is installed.
    fn current(&self) -> SharedEpoch {
        let installed = self.state.installed.as_ref();
        installed.expect("a vote needs an installed configuration").clone()
    }
}

impl Machine for Epochs {
    type Input = EpochInput;
    type Output = EpochOutput;

    /// Handles the input, then the messages of this node to itself until none is left. `Found` and
    /// `Restore` panic if their conditions do not hold.
    fn handle(&mut self, now: Now, input: EpochInput, out: &mut EpochOutbox) {
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
