//! The failure detector of one node: heartbeats to monitored members, suspicion by phi accrual,
//! indirect probes, and evidence from closed connections
//! (docs/protocol/membership.md#phi-accrual-suspicion).
//!
//! [`Monitor`] is a pure state machine: its owner passes times and facts, and it emits
//! [`MonitorOrder`]s. The owner determines the monitored members from the ring and spreads the
//! verdicts by gossip.

mod local_health;
mod phi;
mod relay;
mod subject;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::NodeId;
use ostraca_ddata::machine::Outbox;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

pub use self::local_health::{LocalHealth, OwnTimer};
pub use self::phi::{PhiAccrual, phi};
use self::relay::Relays;
use self::subject::{Subject, Suspicion};
use crate::cluster::config::FailureDetector;

/// Number of heartbeats per interval to a member that has not answered in the current round, so
/// that one lost message costs only a part of an interval. With one heartbeat per interval and 5 %
/// loss, a pause of 2.8 s after a lost answer led to a false accusation.
const REPEATS: u32 = 4;

/// An observer off the ring that has connection evidence first waits for the observers on the ring,
/// and then for a random time of up to `WITNESS_EACH` per member, at most `WITNESS_MAX`. So only a
/// few of them accuse before the others learn of it by gossip.
const WITNESS_EACH: Duration = Duration::from_millis(10);
const WITNESS_MAX: Duration = Duration::from_secs(1);
/// Time in which accusations of observers on the ring spread by gossip.
const HEARSAY: Duration = Duration::from_millis(100);

/// Reason of a suspicion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspicionReason {
    /// The member has not answered for too long.
    Silence,
    /// Its connection was closed and a new one was refused.
    Refused,
}

/// Output of a [`Monitor`]: an order to the membership machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MonitorOrder {
    /// Send a heartbeat to `to`, which echoes the sequence number ([`Monitor::answered`]).
    Heartbeat {
        /// The member that is monitored.
        to: NodeId,
        /// Sequence number; increases with every heartbeat of this node.
        sequence: u64,
    },
    /// Ask `via` to probe `subject` ([`Monitor::probe_asked`] there).
    AskProbe {
        /// The member that should probe.
        via: NodeId,
        /// The member to probe.
        subject: NodeId,
        /// Number of the probe request.
        probe: u64,
    },
    /// Tell `to` that `subject` has answered the indirect probe ([`Monitor::vouched`] there).
    TellProbed {
        /// The member that requested the probe.
        to: NodeId,
        /// The member that was probed.
        subject: NodeId,
        /// Number of the probe request.
        probe: u64,
    },
    /// Accuse `subject`: neither this node nor any member that it asked can reach it.
    Unreachable {
        /// The member that is accused.
        subject: NodeId,
        /// Reason of the accusation.
        why: SuspicionReason,
    },
    /// Withdraw the accusation of `subject`: it is reachable again.
    Reachable {
        /// The member that is reachable again.
        subject: NodeId,
    },
    /// Report a bad link: `via` reaches `subject`, this node does not.
    BadLink {
        /// The member that does not answer this node.
        subject: NodeId,
        /// A member that `subject` does answer.
        via: NodeId,
    },
    /// Report that this node was stopped for `gap`. Its suspicions and evidence are dropped, but
    /// not its accusations.
    Paused {
        /// Time for which nothing ran on this node.
        gap: Duration,
    },
}

/// Counters of a [`Monitor`] since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MonitorStats {
    /// Heartbeats sent, including those for indirect probes.
    pub heartbeats: u64,
    /// Answers that match no heartbeat, or one that was answered already, or come from a member
    /// that is not monitored; those that settle a probe request never count.
    pub strange_answers: u64,
    /// Number of suspicions of members, those that lead to an accusation included.
    pub suspicions: u64,
    /// Suspicions and accusations that another member refuted.
    pub vouched: u64,
    /// Number of accusations of members.
    pub accusations: u64,
    /// Pauses of this node.
    pub pauses: u64,
}

/// The failure detector of one node.
///
/// Every input with a time first checks for a pause of this node (`wake`), even if it is then
/// ignored, so it may also emit [`MonitorOrder::Paused`]. After each input the owner must ask
/// [`next_deadline`](Self::next_deadline) again.
///
/// Phases of a monitored member: *trusted*; *suspected*, while other members probe it; *vouched*,
/// for one interval after one of them has reached it (`Suspicion::BadLink`); *accused*, after the
/// probes have expired, until it answers or is vouched for. It is *silent* once phi reaches the
/// threshold. An observer *off the ring* monitors a member only because of
/// evidence or a suspicion.
#[derive(Debug)]
pub struct Monitor {
    config: FailureDetector,
    own: NodeId,
    members: BTreeSet<NodeId>,
    accused: BTreeSet<NodeId>, // by others; ⊆ members after the next update
    /// The monitored members: those of the ring, and others with evidence or a suspicion.
    subjects: BTreeMap<NodeId, Subject>, // ⊆ members
    relays: Relays,
    health: LocalHealth,
    timer: OwnTimer,
    repeat_at: Instant,
    /// The last number given to a heartbeat or a probe request.
    numbers: u64,
    rng: SmallRng,
    stats: MonitorStats,
}

impl Monitor {
    /// Creates a monitor without members. The first round begins one heartbeat interval after
    /// `now`. `seed` seeds its random choices.
    #[must_use]
    pub fn new(config: FailureDetector, own: NodeId, now: Instant, seed: u64) -> Self {
        Self {
            timer: OwnTimer::new(now, config.heartbeat_interval),
            repeat_at: now + config.heartbeat_interval / REPEATS,
            config,
            own,
            members: BTreeSet::new(),
            accused: BTreeSet::new(),
            subjects: BTreeMap::new(),
            relays: Relays::default(),
            health: LocalHealth::default(),
            numbers: 0,
            rng: SmallRng::seed_from_u64(seed),
            stats: MonitorStats::default(),
        }
    }

    /// Sets the members, and those of them that this node monitors (`ring`). Neither this node nor
    /// a node of `ring` that is no member is monitored.
    ///
    /// Suspected, vouched and accused members, and those with connection evidence, even only one
    /// half of it, stay monitored until they answer or are no longer members; other members that
    /// leave the ring are dropped. A node that is no longer a member is dropped without
    /// [`MonitorOrder::Reachable`], also if it was accused. Newly monitored members get a heartbeat
    /// in this call; members that are on the ring again keep their history. Also drops expired
    /// probe requests, and those of or about nodes that are no longer members.
    pub fn set_members(
        &mut self,
        now: Instant,
        members: BTreeSet<NodeId>,
        ring: &BTreeSet<NodeId>,
        out: &mut Outbox<MonitorOrder>,
    ) {
        self.wake(now, out);
        self.members = members;
        let Self { members, subjects, own, .. } = self;
        subjects.retain(|node, subject| {
            subject.on_ring = ring.contains(node);
            members.contains(node) && !subject.is_idle()
        });
        let wanted = ring.intersection(members).filter(|node| *node != own);
        let new: Vec<NodeId> =
            wanted.filter(|node| !subjects.contains_key(node)).copied().collect();
        for node in new {
            self.subjects.insert(node, Subject::new(PhiAccrual::new(&self.config), true));
            self.ask(now, node, out);
        }
        self.relays.expire(now, |node| self.members.contains(&node));
    }

    /// Sets the members that are accused by others, in place of the former ones. An observer off
    /// the ring then stops monitoring them, with its evidence and a running suspicion, unless it
    /// has accused them as well: a second accusation adds nothing and would be one more change to
    /// gossip. On the ring nothing changes. Emits no orders.
    pub fn set_accused(&mut self, accused: BTreeSet<NodeId>) {
        self.accused = accused;
        let Self { accused, subjects, .. } = self;
        subjects.retain(|node, subject| {
            let speaks =
                subject.on_ring || matches!(subject.suspicion, Suspicion::Unreachable { .. });
            speaks || !accused.contains(node)
        });
    }

    /// Handles elapsed time. Must be called at [`next_deadline`](Self::next_deadline) at the
    /// latest; an earlier call does no harm. Begins a round of heartbeats if one is due, or else
    /// repeats unanswered ones if that is due; then drops expired probe requests, and re-evaluates
    /// each monitored member.
    pub fn tick(&mut self, now: Instant, out: &mut Outbox<MonitorOrder>) {
        self.wake(now, out);
        if self.timer.is_due(now) {
            self.begin_round(now, out);
        } else if now >= self.repeat_at {
            self.repeat(now, out);
        }
        self.relays.expire(now, |node| self.members.contains(&node));
        let nodes: Vec<NodeId> = self.subjects.keys().copied().collect();
        for node in nodes {
            self.consider(now, node, out);
        }
    }

    /// `from` has echoed a heartbeat of this node. First answers the probe requests that it
    /// settles, whether or not `from` is monitored, and whatever the number is worth otherwise.
    ///
    /// A monitored member is trusted again, its connection evidence is dropped, and an accusation
    /// is withdrawn; if it is off the ring, it is no longer monitored. Only the first answer of a
    /// round counts as an interval. An echo with a number that is not higher than the last answered
    /// one, or higher than any that was sent (to any member), changes nothing of this. It counts as
    /// strange unless it settled a request, and so does one of a member that is not monitored.
    pub fn answered(
        &mut self,
        now: Instant,
        from: NodeId,
        sequence: u64,
        out: &mut Outbox<MonitorOrder>,
    ) {
        self.wake(now, out);
        let settled = self.relays.answered(from, sequence);
        let was_asked = !settled.is_empty();
        out.extend(settled.into_iter().map(|(to, probe)| MonitorOrder::TellProbed {
            to,
            subject: from,
            probe,
        }));
        let pause = self.pause();
        let Some(subject) = self.subjects.get_mut(&from) else {
            self.stats.strange_answers += u64::from(!was_asked);
            return;
        };
        if sequence <= subject.answered || sequence > self.numbers {
            self.stats.strange_answers += u64::from(!was_asked);
            return;
        }
        subject.answered = sequence;
        subject.link = subject::ConnectionEvidence::default();
        subject.accuses_from = None;
        if !std::mem::replace(&mut subject.answered_round, true) {
            // Only the first answer of a round is an interval: the answer to a repeated heartbeat
            // tells nothing about the regularity of answers.
            subject.phi.heartbeat(now, pause);
        }
        let before = std::mem::replace(&mut subject.suspicion, Suspicion::Trusted);
        if !subject.on_ring {
            self.subjects.remove(&from);
        }
        if matches!(before, Suspicion::Unreachable { .. }) {
            out.push(MonitorOrder::Reachable { subject: from });
        }
    }

    /// The last connection with `peer` was closed. That counts against the member only once a new
    /// connection was refused as well, in any order; the second of both may begin a suspicion in
    /// this call. Begins to monitor the member. Ignored for this node, for nodes that are no
    /// members, and for members that are not monitored but accused by others.
    pub fn closed(&mut self, now: Instant, peer: NodeId, out: &mut Outbox<MonitorOrder>) {
        self.evidence(now, peer, out, |link| link.is_closed = true);
    }

    /// A new connection with `peer` was refused: no process listens at its address. That counts
    /// against the member only once its last connection was closed as well; otherwise like
    /// [`closed`](Self::closed).
    pub fn refused(&mut self, now: Instant, peer: NodeId, out: &mut Outbox<MonitorOrder>) {
        self.evidence(now, peer, out, |link| link.is_refused = true);
    }

    /// A connection with `peer` was established. It is not an answer, but it invalidates earlier
    /// evidence from connections, and the wait of an observer off the ring begins anew. A suspicion
    /// that has begun, and an accusation, remain. Ignored if `peer` is not monitored.
    pub fn connected(&mut self, now: Instant, peer: NodeId, out: &mut Outbox<MonitorOrder>) {
        self.wake(now, out);
        if let Some(subject) = self.subjects.get_mut(&peer) {
            subject.link = subject::ConnectionEvidence::default();
            subject.accuses_from = None;
        }
    }

    /// `asker` requests an indirect probe of `subject`: sends a heartbeat to it, monitored or not,
    /// and waits `indirect-probe-timeout` for an answer to this or a later heartbeat. A probe of
    /// this node itself is answered in this call, also to nodes that are no members. The request is
    /// ignored if either is no member. Without an answer `asker` gets no message.
    ///
    /// A request with the number of an open one of the same `asker` replaces it, whatever its
    /// subject: it sends another heartbeat, waits anew, and is accepted even if too many are open.
    /// One with a new number is a further request, and is rejected and counted if too many are
    /// open. Expired requests keep their places until the next [`tick`](Self::tick) or
    /// [`set_members`](Self::set_members).
    pub fn probe_asked(
        &mut self,
        now: Instant,
        asker: NodeId,
        subject: NodeId,
        probe: u64,
        out: &mut Outbox<MonitorOrder>,
    ) {
        self.wake(now, out);
        if subject == self.own {
            out.push(MonitorOrder::TellProbed { to: asker, subject, probe });
            return;
        }
        let known = self.members.contains(&asker) && self.members.contains(&subject);
        let until = now + self.config.indirect_probe_timeout;
        if known && self.relays.open((asker, probe), subject, self.numbers + 1, until) {
            self.heartbeat(subject, out);
        }
    }

    /// `via` reports that `subject` has answered its probe. Reports a bad link and withdraws an
    /// accusation; the member is not suspected again for one heartbeat interval, but may be after
    /// that, because its silence and evidence remain. Ignored if `via` is no member, or if `probe`
    /// is not the number of the present suspicion or accusation; a second report is therefore
    /// ignored. Whether `via` was asked is not checked.
    pub fn vouched(
        &mut self,
        now: Instant,
        via: NodeId,
        subject: NodeId,
        probe: u64,
        out: &mut Outbox<MonitorOrder>,
    ) {
        self.wake(now, out);
        if !self.members.contains(&via) {
            return;
        }
        let Some(held) = self.subjects.get_mut(&subject) else { return };
        let (was_unreachable, asked) = match held.suspicion {
            Suspicion::Suspected { probe, .. } => (false, probe),
            Suspicion::Unreachable { probe } => (true, probe),
            Suspicion::Trusted | Suspicion::BadLink { .. } => return,
        };
        if probe != asked {
            return;
        }
        held.suspicion = Suspicion::BadLink { until: now + self.config.heartbeat_interval };
        self.stats.vouched += 1;
        out.push(MonitorOrder::BadLink { subject, via });
        if was_unreachable {
            out.push(MonitorOrder::Reachable { subject });
        }
    }

    /// Latest time of the next [`tick`](Self::tick); may be in the past.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let (pause, expected) = (self.pause(), self.config.expected_response_after);
        let subjects = self.subjects.values().filter_map(|s| s.next_deadline(pause, expected));
        let others = subjects.chain(self.relays.next_deadline());
        let own = self.timer.due().min(self.repeat_at);
        others.min().map_or(own, |at| at.min(own))
    }

    /// Current phi of `peer`, 0 before its first answer; `None` if it is not monitored. Takes the
    /// doubt of this node into account.
    #[must_use]
    pub fn phi(&self, now: Instant, peer: NodeId) -> Option<f64> {
        self.subjects.get(&peer).map(|subject| subject.phi.phi(now, self.pause()))
    }

    /// The members that are monitored now.
    pub fn monitored(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.subjects.keys().copied()
    }

    /// Confidence of this node in its own observations.
    #[must_use]
    pub const fn health(&self) -> LocalHealth {
        self.health
    }

    /// The counters, the number of open probe requests of other members, and the number of rejected
    /// ones.
    #[must_use]
    pub fn stats(&self) -> (MonitorStats, usize, u64) {
        (self.stats, self.relays.len(), self.relays.refused())
    }

    // ── own pauses ──

    /// Called before every input: detects a pause of this node, about which it cannot judge others.
    /// After a pause it raises the doubt by one, counts the pause, drops suspicions, vouchings and
    /// connection evidence, excludes the pause from the silence, counts the present round as
    /// answered, and reports the pause. Accusations remain. Sends no heartbeat itself: both a round
    /// and a repetition are due now, and the next [`tick`](Self::tick) begins the round, which sets
    /// the time of the next repetition again.
    fn wake(&mut self, now: Instant, out: &mut Outbox<MonitorOrder>) {
        let Some(gap) = self.timer.gap(now) else { return };
        self.health.worse();
        self.stats.pauses += 1;
        self.subjects.values_mut().for_each(|subject| subject.excuse(gap));
        self.repeat_at = now;
        out.push(MonitorOrder::Paused { gap });
    }

    /// The acceptable pause, extended by the doubt of this node.
    fn pause(&self) -> Duration {
        self.health.pause(self.config.acceptable_heartbeat_pause)
    }

    // ── heartbeats ──

    /// Begins a round: updates the doubt from the answers of the last round, and sends a heartbeat
    /// to each monitored member, accused or not, which counts as unanswered from then on. Probes of
    /// accused members are requested again. The caller has advanced the timer of rounds; the time
    /// of the next repetition is set here.
    ///
    /// The doubt rises if more than half of at least two awaited answers are missing, otherwise it
    /// falls; a round with fewer than two leaves it unchanged. Members that are accused, or were
    /// first asked less than half an interval ago, are not awaited. After a pause of this node all
    /// awaited members count as answered, so with two or more of them this lowers the doubt that
    /// [`wake`](Self::wake) has raised.
    fn begin_round(&mut self, now: Instant, out: &mut Outbox<MonitorOrder>) {
        let half = self.config.heartbeat_interval / 2;
        let awaited = self.subjects.values().filter(|subject| {
            subject.asked_at.is_some_and(|at| now - at >= half)
                && !matches!(subject.suspicion, Suspicion::Unreachable { .. })
        });
        let answers: Vec<bool> = awaited.map(|subject| subject.answered_round).collect();
        let missed = answers.iter().filter(|answered| !**answered).count();
        self.health.judge(answers.len(), missed);
        let nodes: Vec<NodeId> = self.subjects.keys().copied().collect();
        for node in nodes {
            self.ask(now, node, out);
            self.ask_again(node, out);
        }
        self.repeat_at = now + self.config.heartbeat_interval / REPEATS;
    }

    /// Repeats the heartbeat, with a new number, to members that have not answered in this round,
    /// except accused ones, and sets the time of the next repetition.
    fn repeat(&mut self, now: Instant, out: &mut Outbox<MonitorOrder>) {
        self.repeat_at = now + self.config.heartbeat_interval / REPEATS;
        let silent = self.subjects.iter().filter(|(_, subject)| {
            !subject.answered_round && !matches!(subject.suspicion, Suspicion::Unreachable { .. })
        });
        let silent: Vec<NodeId> = silent.map(|(node, _)| *node).collect();
        silent.into_iter().for_each(|node| self.heartbeat(node, out));
    }

    /// Sends the heartbeat of a round, whose answer then counts as the first of the round.
    fn ask(&mut self, now: Instant, node: NodeId, out: &mut Outbox<MonitorOrder>) {
        if let Some(subject) = self.subjects.get_mut(&node) {
            subject.asked_at.get_or_insert(now);
            subject.answered_round = false;
        }
        self.heartbeat(node, out);
    }

    /// Sends a heartbeat with a new number, also to a member that is not monitored.
    fn heartbeat(&mut self, to: NodeId, out: &mut Outbox<MonitorOrder>) {
        self.stats.heartbeats += 1;
        let sequence = self.number();
        out.push(MonitorOrder::Heartbeat { to, sequence });
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    // ── suspicion ──

    /// Notes evidence from a connection and re-evaluates the member. A member that was not
    /// monitored is from then on, with a heartbeat at once, unless others accuse it; off the ring,
    /// until it answers, others accuse it, or its evidence is void at a later
    /// [`set_members`](Self::set_members). Ignored for this node and nodes that are no members.
    fn evidence(
        &mut self,
        now: Instant,
        peer: NodeId,
        out: &mut Outbox<MonitorOrder>,
        note: impl FnOnce(&mut subject::ConnectionEvidence),
    ) {
        self.wake(now, out);
        if !self.members.contains(&peer) || peer == self.own {
            return;
        }
        let is_new = !self.subjects.contains_key(&peer);
        if is_new && self.accused.contains(&peer) {
            return;
        }
        let fresh = || Subject::new(PhiAccrual::new(&self.config), false);
        let subject = self.subjects.entry(peer).or_insert_with(fresh);
        note(&mut subject.link);
        if is_new {
            // A member with connection evidence is monitored until it answers, even if it is not on
            // the ring.
            self.ask(now, peer, out);
        }
        self.consider(now, peer, out);
    }

    /// Suspects, trusts again or accuses a member, depending on time and evidence.
    ///
    /// A trusted member with evidence (silence, or a closed and refused connection, which comes
    /// first) is suspected, off the ring only after the wait of [`speaks`](Self::speaks). A
    /// suspected one is accused when its probes expire, even if the evidence is gone. A vouched one
    /// is suspected again, without a wait, or trusted when its time is over. An accused one is left
    /// alone. The silence of a member that never answered counts from `expected-response-after` on.
    fn consider(&mut self, now: Instant, node: NodeId, out: &mut Outbox<MonitorOrder>) {
        let (pause, expected) = (self.pause(), self.config.expected_response_after);
        let Some(subject) = self.subjects.get_mut(&node) else { return };
        if !subject.phi.has_begun() && subject.asked_at.is_some_and(|at| now >= at + expected) {
            // The member never answered: from now on its silence counts.
            subject.phi.heartbeat(now, pause);
        }
        let charge = subject.evidence(now, pause);
        match &subject.suspicion {
            Suspicion::Trusted => match charge {
                None => subject.accuses_from = None,
                Some(why) => {
                    if self.speaks(now, node) {
                        self.suspect(now, node, why, out);
                    }
                }
            },
            Suspicion::BadLink { until } if now >= *until => match charge {
                Some(why) => self.suspect(now, node, why, out),
                None => subject.suspicion = Suspicion::Trusted,
            },
            Suspicion::Suspected { why, until, .. } if now >= *until => {
                let why = *why;
                self.accuse(node, why, out);
            }
            Suspicion::BadLink { .. }
            | Suspicion::Suspected { .. }
            | Suspicion::Unreachable { .. } => {}
        }
    }

    /// Whether this node may act on its evidence: always on the ring. An observer off the ring
    /// first waits for a time that the first call chooses; answers `true` once that time has come,
    /// and forgets it: a later suspicion waits anew.
    fn speaks(&mut self, now: Instant, node: NodeId) -> bool {
        let most = WITNESS_MAX.min(WITNESS_EACH * u32::try_from(self.members.len()).unwrap_or(100));
        let Some(subject) = self.subjects.get_mut(&node) else { return false };
        if subject.on_ring {
            subject.accuses_from = None;
            return true;
        }
        let first = self.config.indirect_probe_timeout.saturating_add(HEARSAY);
        let rng = &mut self.rng;
        let at = *subject
            .accuses_from
            .get_or_insert_with(|| now + first + most.mul_f64(rng.random_range(0.0..1.0)));
        let speaks = now >= at;
        if speaks {
            subject.accuses_from = None;
        }
        speaks
    }

    /// Requests indirect probes under a new number; accuses in this call only if there is no member
    /// to ask. Counts as a suspicion in both cases. Does not check the present phase.
    fn suspect(
        &mut self,
        now: Instant,
        node: NodeId,
        why: SuspicionReason,
        out: &mut Outbox<MonitorOrder>,
    ) {
        self.stats.suspicions += 1;
        let probe = self.number();
        let asked = self.witnesses(node);
        if asked.is_empty() {
            self.accuse(node, why, out);
            return;
        }
        out.extend(asked.into_iter().map(|via| MonitorOrder::AskProbe {
            via,
            subject: node,
            probe,
        }));
        let until = now + self.config.indirect_probe_timeout;
        if let Some(subject) = self.subjects.get_mut(&node) {
            subject.suspicion = Suspicion::Suspected { why, probe, until };
        }
    }

    /// Accuses a member under a new probe number, so that answers to the probes of the suspicion no
    /// longer count. Requests no probes: the next round does.
    fn accuse(&mut self, node: NodeId, why: SuspicionReason, out: &mut Outbox<MonitorOrder>) {
        self.stats.accusations += 1;
        let probe = self.number();
        if let Some(subject) = self.subjects.get_mut(&node) {
            subject.suspicion = Suspicion::Unreachable { probe };
        }
        out.push(MonitorOrder::Unreachable { subject: node, why });
    }

    /// Requests new indirect probes about an accused member, because earlier answers may be lost.
    /// Keeps the number of the accusation. Does nothing for other members.
    fn ask_again(&mut self, node: NodeId, out: &mut Outbox<MonitorOrder>) {
        let Some(Suspicion::Unreachable { probe }) = self.subjects.get(&node).map(|s| &s.suspicion)
        else {
            return;
        };
        let probe = *probe;
        let asked = self.witnesses(node);
        out.extend(asked.into_iter().map(|via| MonitorOrder::AskProbe {
            via,
            subject: node,
            probe,
        }));
    }

    /// Random members that this node trusts, monitored or not, at most `indirect-probes`; members
    /// that only others accuse are among them. May be empty. `about` and this node are left out.
    fn witnesses(&mut self, about: NodeId) -> Vec<NodeId> {
        let doubtful = |node: &NodeId| {
            self.subjects.get(node).is_some_and(|subject| subject.suspicion != Suspicion::Trusted)
        };
        let able = self
            .members
            .iter()
            .filter(|node| **node != self.own && **node != about && !doubtful(node));
        let mut able: Vec<NodeId> = able.copied().collect();
        let (chosen, _) = able.partial_shuffle(&mut self.rng, self.config.indirect_probes);
        chosen.to_vec()
    }
}
