//! The holder's side of the hosting lease: heartbeats to all voters, and the time until which this
//! node may serve (docs/protocol/leases.md).

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::Epoch;

use super::{Heartbeat, LeaseConfig, LeaseMessage, holding_time};
use crate::cluster::fault_injection::{MembershipFault, MembershipFaultInjection};

/// Maximum number of heartbeats whose grants are awaited. A grant of an older heartbeat could no
/// longer extend the lease, unless configurations change many times a second.
const BEATS_MAX: usize = 64;

/// End of the lease of a member that needs no lease.
const FOREVER: Instant = Instant::from_nanos(u64::MAX);

/// Input of a [`LeaseHolder`].
#[derive(Clone, Debug, PartialEq)]
pub enum HolderInput {
    /// A deadline may have passed.
    Tick,
    /// The Replicator installed this configuration. Grants of earlier heartbeats no longer count; a
    /// running lease keeps its end.
    Installed(Arc<Epoch>),
    /// The Replicator has answered a proposal that does not contain this node
    /// (docs/protocol/leases.md#stop-at-the-own-answer). Ends the lease at once; ignored unless
    /// this node is in the installed configuration and has not released its lease.
    StopServing,
    /// The Replicator has learned that this incarnation was removed. Ends the lease at once and for
    /// ever, in every state, also after a release, which is then no longer repeated.
    Excluded,
    /// A grantor, possibly this node's own, granted a heartbeat.
    Granted {
        /// Incarnation of the granting voter.
        from: ReplicaId,
        /// The heartbeat that it answers.
        beat: Heartbeat,
    },
    /// Everything that ran here has stopped, and nothing will be started again in this incarnation.
    /// Ends the lease for ever. A node that is in no configuration has no lease, and sends its
    /// release once a configuration contains it.
    Release,
}

/// Output of a [`LeaseHolder`].
#[derive(Clone, Debug, PartialEq)]
pub enum HolderOutput {
    /// Send to a voter. Messages to this node go to its own grantor.
    Send {
        /// Incarnation of the receiving voter.
        to: ReplicaId,
        /// The message to send.
        message: LeaseMessage,
    },
    /// The node may serve from now until this time of its own clock: sent each time the end moves
    /// forward, and, with `u64::MAX` nanoseconds, at each install of a configuration without
    /// leases.
    Held {
        /// End of the lease. The executor compares the clock with it before each message and each
        /// poll.
        until: Instant,
    },
    /// The lease has ended: no message may begin. Running entities are only paused. Sent after
    /// `Held` at the first `Tick` after the end, or at once if an input ends the lease; not sent if
    /// a grant moved the end forward before that `Tick`.
    Lapsed,
    /// The lease has been lapsed for [`LeaseConfig::stop_after`]: stop the entities. The time
    /// counts from the end of the lease, or from the input that ended it early. Sent once after
    /// each `Lapsed`, perhaps in the same call, unless the lease was held again before.
    Stop,
}

/// Counters of a holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HolderStats {
    /// Heartbeats; one heartbeat to all voters counts once.
    pub beats: u64,
    /// Grants that were counted, repeated ones and those that extend nothing included.
    pub granted: u64,
    /// Dropped grants: of another configuration, of forgotten heartbeats, not from a voter, or
    /// while this node may hold no lease. Grants before the first configuration are not counted.
    pub stray: u64,
    /// Number of `Lapsed` outputs.
    pub lapses: u64,
}

/// Whether this node may hold a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HolderState {
    /// Not in a configuration yet, and not released.
    Outside,
    /// In the installed configuration: serves while the lease is valid.
    Member,
    /// It answered a proposal without itself: serves again only in a newer configuration that
    /// contains it.
    Stopped,
    /// It released its lease, perhaps before it was in a configuration: never serves again.
    Released,
    /// It was removed: never serves again.
    Excluded,
}

/// The lease of this node.
#[derive(Clone, Debug)]
pub struct LeaseHolder {
    me: ReplicaId,
    config: LeaseConfig,
    fault_injection: MembershipFaultInjection,
    state: HolderState,
    epoch: Option<Arc<Epoch>>,
    /// Number of the last heartbeat; 0 before the first.
    number: u64,
    sent: VecDeque<(u64, Instant)>, // number and sending time; ≤ BEATS_MAX
    acked: BTreeMap<ReplicaId, Instant>, // newest granted sending time in this epoch; ≤ voters
    /// End of the lease, perhaps passed; `FOREVER` without leases, `None` if the node may not
    /// serve.
    until: Option<Instant>,
    /// Time at which the newest configuration was installed, or the planned end of a lease that an
    /// input ended, whichever is later.
    idle_since: Option<Instant>,
    beat_at: Option<Instant>, // next heartbeat, or repetition of the release
    /// `Held` was the last output about the lease, and no `Lapsed` followed.
    told: bool,
    stop_at: Option<Instant>, // set by `Lapsed`, cleared by `Held` and `Stop`
    stats: HolderStats,
}

impl LeaseHolder {
    /// Creates a holder without a lease for incarnation `me`. `fault_injection` injects faults in
    /// tests; otherwise pass [`MembershipFaultInjection::none`].
    #[must_use]
    pub fn new(
        me: ReplicaId,
        config: LeaseConfig,
        fault_injection: MembershipFaultInjection,
    ) -> Self {
        Self {
            me,
            config,
            fault_injection,
            state: HolderState::Outside,
            epoch: None,
            number: 0,
            sent: VecDeque::new(),
            acked: BTreeMap::new(),
            until: None,
            idle_since: None,
            beat_at: None,
            told: false,
            stop_at: None,
            stats: HolderStats::default(),
        }
    }

    /// Whether this node may begin or poll a message at this time of its own clock: the lease ends
    /// after `now`. Needs no `Tick` in between.
    #[must_use]
    pub fn serves(&self, now: Instant) -> bool {
        if self.fault_injection.has(MembershipFault::FlagNotClock) && self.is_leased() {
            return self.told;
        }
        self.until.is_some_and(|until| now < until)
    }

    /// With leases, the time since which this node is not permitted to serve: the end of its last
    /// lease in this configuration, or the installation of the configuration. Later than now while
    /// it serves, and also after an input ended a lease early: the planned end of that lease
    /// counts. `None` if no configuration was installed here, or after the release of the lease.
    #[must_use]
    pub fn idle_since(&self) -> Option<Instant> {
        self.until.max(self.idle_since).filter(|_| self.state != HolderState::Released)
    }

    /// Counters since the start.
    #[must_use]
    pub const fn stats(&self) -> &HolderStats {
        &self.stats
    }

    fn is_leased(&self) -> bool {
        self.epoch.as_ref().is_some_and(|epoch| epoch.lease().enabled)
    }

    /// Follows an installed configuration. With this node in it: sends heartbeats at once (also
    /// after a stop), or serves without a lease if leases are disabled; a released node repeats its
    /// release to the new voters. Without this node: the lease ends and the node is excluded,
    /// except that a node that was in none before stays `Outside` or `Released`. Excluded is final.
    fn installed(&mut self, now: Now, epoch: Arc<Epoch>, out: &mut Outbox<HolderOutput>) {
        let has_me = epoch.is_member(self.me);
        let before = self.epoch.replace(epoch);
        let had_me = before.is_some_and(|before| before.is_member(self.me));
        self.idle_since = self.idle_since.max(Some(now.mono));
        if !self.fault_injection.has(MembershipFault::LeaseOverTwoEpochs) {
            self.sent.clear();
            self.acked.clear();
        }
        match self.state {
            HolderState::Excluded => {}
            // It is outside still. A later configuration may contain it, even after its release.
            _ if !has_me && !had_me => self.end(self.state),
            _ if !has_me => self.end(HolderState::Excluded),
            HolderState::Released => self.beat(now, out),
            _ => {
                self.state = HolderState::Member;
                self.serve_by_settings(now, out);
            }
        }
    }

    /// Where leases are disabled, every member serves as long as it is a member, without
    /// heartbeats. Where they are enabled, sends the first heartbeat; an end of a lease that
    /// earlier disabled leases left at `FOREVER` is dropped, so the node stops serving until it has
    /// grants: `Lapsed` follows at the end of the input.
    fn serve_by_settings(&mut self, now: Now, out: &mut Outbox<HolderOutput>) {
        if self.is_leased() {
            self.until = self.until.filter(|until| *until != FOREVER);
            self.beat(now, out);
        } else {
            (self.until, self.beat_at, self.stop_at) = (Some(FOREVER), None, None);
            self.told = true;
            out.push(HolderOutput::Held { until: FOREVER });
        }
    }

    /// Ends the lease immediately, in the new `state`: nothing may begin from now on, and grants of
    /// heartbeats sent so far no longer count. `Lapsed` follows at the end of the input if `Held`
    /// was the last output. A stop that an earlier lapse has planned stays planned.
    fn end(&mut self, state: HolderState) {
        self.state = state;
        let until = self.until.take().filter(|until| *until != FOREVER);
        self.idle_since = self.idle_since.max(until);
        self.sent.clear();
        self.acked.clear();
    }

    /// Releases the lease: ends it, and sends the release to every voter now and at each heartbeat
    /// interval. If the node is in no configuration, [`installed`](Self::installed) sends it later.
    /// Does nothing if the node is released or excluded already.
    fn release(&mut self, now: Now, out: &mut Outbox<HolderOutput>) {
        let is_outside = self.state == HolderState::Outside;
        let is_member = matches!(self.state, HolderState::Member | HolderState::Stopped);
        if (is_outside || is_member) && !self.fault_injection.has(MembershipFault::ReleaseGoesOn) {
            self.end(HolderState::Released);
        }
        // No voter knows a node outside: it sends the release once a configuration contains it.
        if is_member {
            self.send_all(LeaseMessage::Release { number: self.number }, out);
            self.beat_at = Some(now.mono + self.config.heartbeat_interval);
        }
    }

    /// Sends a heartbeat to every voter, this node included, and schedules the next one. After a
    /// release it repeats the release instead. Sends and schedules nothing if leases are disabled,
    /// or the node is outside, stopped or excluded. Forgets the oldest heartbeat beyond
    /// [`BEATS_MAX`].
    fn beat(&mut self, now: Now, out: &mut Outbox<HolderOutput>) {
        self.beat_at = None;
        let Some(epoch) = self.epoch.clone().filter(|epoch| epoch.lease().enabled) else { return };
        match self.state {
            HolderState::Member => {}
            HolderState::Released => {
                self.send_all(LeaseMessage::Release { number: self.number }, out);
                self.beat_at = Some(now.mono + self.config.heartbeat_interval);
                return;
            }
            HolderState::Outside | HolderState::Stopped | HolderState::Excluded => return,
        }
        self.number += 1;
        self.stats.beats += 1;
        if self.sent.len() >= BEATS_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((self.number, now.mono));
        self.send_all(
            LeaseMessage::Beat(Heartbeat { epoch: epoch.id(), number: self.number }),
            out,
        );
        self.beat_at = Some(now.mono + self.config.heartbeat_interval);
        if self.fault_injection.has(MembershipFault::OwnAckAlways) && epoch.is_voter(self.me) {
            self.acked.insert(self.me, now.mono);
        }
    }

    /// Sends to every voter of the installed configuration, this node included if it is one.
    fn send_all(&self, message: LeaseMessage, out: &mut Outbox<HolderOutput>) {
        if let Some(epoch) = &self.epoch {
            out.extend(epoch.voters().iter().map(|to| HolderOutput::Send { to: *to, message }));
        }
    }

    /// Counts a grant, and moves the end of the lease forward if a quorum of the voters has now
    /// granted newer heartbeats: reports `Held` and cancels a planned stop, also after a lapse. An
    /// end never moves back. If the new end has passed already, it is kept, but nothing is reported
    /// and a planned stop stays. Drops stray grants ([`HolderStats::stray`]).
    fn granted(
        &mut self,
        now: Now,
        from: ReplicaId,
        beat: Heartbeat,
        out: &mut Outbox<HolderOutput>,
    ) {
        let Some(epoch) = self.epoch.clone() else { return };
        let same = beat.epoch == epoch.id()
            || self.fault_injection.has(MembershipFault::LeaseOverTwoEpochs);
        let sent = self.sent.iter().find(|(number, _)| *number == beat.number).map(|(_, at)| *at);
        let Some(sent) = sent.filter(|_| {
            same && epoch.is_voter(from)
                && epoch.lease().enabled
                && self.state == HolderState::Member
        }) else {
            self.stats.stray += 1;
            return;
        };
        self.stats.granted += 1;
        let sent =
            if self.fault_injection.has(MembershipFault::LeaseFromAck) { now.mono } else { sent };
        let newest = self.acked.entry(from).or_insert(sent);
        *newest = sent.max(*newest);
        let Some(since) = quorum_since(&epoch, &self.acked) else { return };
        let span = if self.fault_injection.has(MembershipFault::NoDriftMargin) {
            epoch.lease().duration
        } else {
            holding_time(epoch.lease())
        };
        let until = since + span;
        if self.until.is_none_or(|before| before < until) {
            self.until = Some(until);
            if now.mono < until {
                self.told = true;
                self.stop_at = None;
                out.push(HolderOutput::Held { until });
            }
        }
    }

    /// Reports an ended lease, orders the stop after a long lapse, and sends a due heartbeat, in
    /// this order, all in one call if all are due.
    fn tick(&mut self, now: Now, out: &mut Outbox<HolderOutput>) {
        if self.told && self.until.is_none_or(|until| until <= now.mono) {
            self.told = false;
            self.stats.lapses += 1;
            out.push(HolderOutput::Lapsed);
            self.stop_at = Some(self.until.unwrap_or(now.mono) + self.config.stop_after);
        }
        if self.stop_at.is_some_and(|at| at <= now.mono) {
            self.stop_at = None;
            out.push(HolderOutput::Stop);
        }
        if self.beat_at.is_some_and(|at| at <= now.mono) {
            self.beat(now, out);
        }
    }
}

/// The latest time such that the voters that granted heartbeats sent at or after it are a quorum,
/// with half of the voters and the tiebreaker being sufficient
/// (docs/protocol/configurations.md#quorum-by-the-tie-rule). `None` if the voters that granted are
/// no quorum; grants of nodes that are no voters do not count.
fn quorum_since(epoch: &Epoch, acked: &BTreeMap<ReplicaId, Instant>) -> Option<Instant> {
    let voters = epoch.voters();
    let mut newest: Vec<_> =
        voters.iter().filter_map(|voter| Some((Reverse(*acked.get(voter)?), *voter))).collect();
    newest.sort_unstable();
    let mut tiebreaker = false;
    newest.iter().zip(1..).find_map(|((Reverse(at), voter), count)| {
        tiebreaker |= *voter == epoch.tiebreaker();
        let enough = 2 * count > voters.len() || (2 * count == voters.len() && tiebreaker);
        enough.then_some(*at)
    })
}

impl Machine for LeaseHolder {
    type Input = HolderInput;
    type Output = HolderOutput;

    /// As described at [`HolderInput`]. A lease that an input ends is reported within the same
    /// call, which then acts as a `Tick`, too; one that merely expired is reported at the next
    /// `Tick`.
    fn handle(&mut self, now: Now, input: HolderInput, out: &mut Outbox<HolderOutput>) {
        match input {
            HolderInput::Tick => self.tick(now, out),
            HolderInput::Installed(epoch) => self.installed(now, epoch, out),
            HolderInput::StopServing if self.state == HolderState::Member => {
                if !self.fault_injection.has(MembershipFault::OwnRemovalGoesOn) {
                    self.end(HolderState::Stopped);
                }
            }
            HolderInput::StopServing => {}
            HolderInput::Excluded => self.end(HolderState::Excluded),
            HolderInput::Granted { from, beat } => self.granted(now, from, beat, out),
            HolderInput::Release => self.release(now, out),
        }
        if self.told && self.until.is_none() {
            self.tick(now, out); // the lease ended in this call: report it at once
        }
    }

    /// The earliest of the next heartbeat or release, the end of a held lease, and the stop after a
    /// lapse; in the past until a `Tick` handles it. `None` if none of them is planned, as before
    /// the first configuration or with disabled leases.
    fn next_deadline(&self) -> Option<Instant> {
        let lapse = self.until.filter(|until| self.told && *until != FOREVER);
        [self.beat_at, lapse, self.stop_at].into_iter().flatten().min()
    }
}

#[cfg(test)]
#[path = "holder_tests.rs"]
mod tests;
