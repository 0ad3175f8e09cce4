//! Transcripts of one machine: state and outputs of every step and every refusal. `tests/epochs`
//! explores many machines together.

mod configuration;
mod installation;
mod proposal;
mod senders;
mod synchronization;
mod vote;

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::clock::WallTime;

fn id(n: u64) -> ReplicaId {
    ReplicaId::new(n)
}

fn ids<const N: usize>(numbers: [u64; N]) -> Vec<ReplicaId> {
    numbers.map(ReplicaId::new).to_vec()
}

fn ballot(number: u64, node: u64) -> Ballot {
    Ballot { number, node: id(node) }
}

/// Configuration 1.1 with these members.
fn first<const N: usize>(members: [u64; N]) -> Arc<Epoch> {
    let first = EpochId { generation: 1, number: 1 };
    Arc::new(Epoch::founding(first, ids(members), EpochSettings::default()).unwrap())
}

fn after(base: &Arc<Epoch>, change: &MembershipChange) -> Arc<Epoch> {
    Arc::new(base.next(change).unwrap())
}

fn join<const N: usize>(members: [u64; N]) -> MembershipChange {
    MembershipChange { join: ids(members), ..MembershipChange::default() }
}

fn leave<const N: usize>(members: [u64; N]) -> MembershipChange {
    MembershipChange { leave: ids(members), ..MembershipChange::default() }
}

fn lost<const N: usize>(members: [u64; N]) -> MembershipChange {
    MembershipChange { lost: ids(members), ..MembershipChange::default() }
}

/// One machine with a clock. Transcripts leave out `Persist` (which is checked) and `Pending`.
struct Bench {
    machine: Epochs,
    now: Now,
    disk: AcceptorState,
    pending: Option<Arc<Epoch>>,
}

impl Bench {
    fn joining(me: u64) -> Self {
        Self::with(me, FaultInjection::none())
    }

    fn with(me: u64, fault_injection: FaultInjection) -> Self {
        let mut bench = Self {
            machine: Epochs::new(id(me), EpochConfig::default(), 7, fault_injection),
            now: Now { mono: Instant::from_nanos(1), wall: WallTime::default() },
            disk: AcceptorState::default(),
            pending: None,
        };
        let known = (1..=8).map(|n| (id(n), true)).collect();
        assert_eq!(bench.say(EpochInput::Known(known)), []);
        bench
    }

    /// A member of `epoch`, synced and unsealed.
    fn member(me: u64, epoch: &Arc<Epoch>) -> Self {
        let mut bench = Self::joining(me);
        bench.say(EpochInput::Found(epoch.clone()));
        assert!(bench.machine.eligible());
        bench
    }

    /// Feeds an input; returns the outputs without `Persist` and `Pending`. Asserts that the state
    /// on which an answer depends is on disk before the answer leaves.
    fn say(&mut self, input: EpochInput) -> Vec<EpochOutput> {
        let mut out = Outbox::new();
        self.machine.handle(self.now, input, &mut out);
        let mut outputs = Vec::new();
        for output in out.drain() {
            match output {
                EpochOutput::Persist(state) => self.disk = state,
                EpochOutput::Pending(epoch) => self.pending = Some(epoch),
                EpochOutput::Send { message: EpochMessage::Sealed { ballot, .. }, .. } => {
                    assert!(
                        self.disk.promise >= Some(ballot),
                        "a promise must be durable before it leaves"
                    );
                    outputs.push(output);
                }
                EpochOutput::Send { message: EpochMessage::Accepted { ballot, .. }, .. } => {
                    let accepted = self.disk.accepted.as_ref().map(|(ballot, _)| *ballot);
                    assert!(
                        accepted >= Some(ballot),
                        "an acceptance must be durable before it leaves"
                    );
                    outputs.push(output);
                }
                _ => outputs.push(output),
            }
        }
        outputs
    }

    fn hear(&mut self, from: u64, message: EpochMessage) -> Vec<EpochOutput> {
        self.say(EpochInput::Message { from: id(from), message })
    }

    /// Advances the clock, with a tick at every deadline on the way.
    fn wait(&mut self, span: Duration) -> Vec<EpochOutput> {
        let end = self.now.mono + span;
        let mut outputs = Vec::new();
        while let Some(at) = self.machine.next_deadline().filter(|at| *at <= end) {
            self.now.mono = self.now.mono.max(at);
            outputs.extend(self.say(EpochInput::Tick));
        }
        self.now.mono = end;
        outputs
    }

    fn epoch(&self) -> EpochId {
        self.machine.id().unwrap()
    }
}

fn send(to: u64, message: EpochMessage) -> EpochOutput {
    EpochOutput::Send { to: id(to), message }
}

fn seal(base: &Arc<Epoch>, ballot: Ballot, proposal: &Arc<Epoch>) -> EpochMessage {
    EpochMessage::Seal { epoch: base.id(), ballot, proposal: proposal.clone() }
}

fn sealed(base: &Arc<Epoch>, ballot: Ballot, accepted: Option<AcceptedProposal>) -> EpochMessage {
    EpochMessage::Sealed { epoch: base.id(), ballot, accepted }
}

fn accept(base: &Arc<Epoch>, ballot: Ballot, proposal: &Arc<Epoch>) -> EpochMessage {
    EpochMessage::Accept { epoch: base.id(), ballot, proposal: proposal.clone() }
}

fn accepted(base: &Arc<Epoch>, ballot: Ballot) -> EpochMessage {
    EpochMessage::Accepted { epoch: base.id(), ballot }
}

fn refused(base: &Arc<Epoch>, ballot: Ballot, why: BallotRefusal) -> EpochMessage {
    EpochMessage::Refused { epoch: base.id(), ballot, why }
}

fn sync(
    base: &Arc<Epoch>,
    ballot: Ballot,
    proposal: &Arc<Epoch>,
    sealed: Vec<ReplicaId>,
) -> EpochMessage {
    EpochMessage::Sync { base: base.clone(), ballot, proposal: proposal.clone(), sealed }
}

fn synced(base: &Arc<Epoch>) -> EpochMessage {
    EpochMessage::Synced { epoch: base.id() }
}

fn install(epoch: &Arc<Epoch>) -> EpochMessage {
    EpochMessage::Install { epoch: epoch.clone() }
}

fn installed(epoch: &Arc<Epoch>) -> EpochOutput {
    EpochOutput::Installed(epoch.clone())
}

fn outcome(outcome: ProposalOutcome) -> EpochOutput {
    EpochOutput::Outcome(outcome)
}
