//! Who is alive: heartbeats to the monitored peers, suspicion, probes through others, and the
//! evidence of closed connections.
//!
//! [`Monitor`] is a plain struct, fed with points of time and facts; it answers with [`Order`]s.
//! It knows no gossip and no ring: whom it monitors it is told, and what it finds others spread.
//! Spec: spec/membership.md, *Failure detector*.

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
use self::subject::{Standing, Subject};
use crate::cluster::config::FailureDetector;

/// Who has not answered is asked so many times an interval: one lost message costs a part of it.
/// (Without: at 5 % loss a pause of 2.8 s after a lost answer was an accusation.)
const REPEATS: u32 = 4;

/// A witness off the ring waits for those on it, and then for a time that it draws: so few speak
/// before they hear of each other. So much for each member, and so long at most.
const WITNESS_EACH: Duration = Duration::from_millis(10);
const WITNESS_MAX: Duration = Duration::from_secs(1);
/// How long the word of those on the ring takes to get about.
const HEARSAY: Duration = Duration::from_millis(100);

/// Why a peer is accused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It has not answered for too long.
    Silence,
    /// Its connection was closed and a new one refused.
    Refused,
}

/// What the membership machine is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ask `to` for a sign of life; it echoes the number ([`Monitor::answered`]).
    Heartbeat {
        /// Whom.
        to: NodeId,
        /// Rises with every heartbeat of this node.
        sequence: u64,
    },
    /// Ask `via` to probe `subject` ([`Monitor::probe_asked`] there).
    AskProbe {
        /// Whom to ask.
        via: NodeId,
        /// Whom it is to probe.
        subject: NodeId,
        /// Which question this is.
        probe: u64,
    },
    /// Tell `to` that `subject` has answered ([`Monitor::vouched`] there).
    TellProbed {
        /// Who asked.
        to: NodeId,
        /// Who answered.
        subject: NodeId,
        /// Which question this settles.
        probe: u64,
    },
    /// This node cannot reach `subject`, and nobody that it asked can.
    Unreachable {
        /// Who is accused.
        subject: NodeId,
        /// Of what.
        why: Why,
    },
    /// `subject` is there again.
    Reachable {
        /// Who is cleared.
        subject: NodeId,
    },
    /// Only the link is bad: `via` reaches `subject`, this node does not.
    BadLink {
        /// Who does not answer this node.
        subject: NodeId,
        /// Whom it does answer.
        via: NodeId,
    },
    /// This node was stopped for `gap`. What it noticed meanwhile is forgotten.
    Paused {
        /// How long.
        gap: Duration,
    },
}

/// What a [`Monitor`] has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Heartbeats sent, those for others included.
    pub heartbeats: u64,
    /// Answers to no question, or to one answered already.
    pub strange_answers: u64,
    /// Peers suspected.
    pub suspicions: u64,
    /// Suspicions that another node could refute.
    pub vouched: u64,
    /// Peers accused.
    pub accusations: u64,
    /// Times that this node was stopped.
    pub pauses: u64,
}

/// The failure detector of one node.
#[derive(Debug)]
pub struct Monitor {
    config: FailureDetector,
    own: NodeId,
    members: BTreeSet<NodeId>,
    accused: BTreeSet<NodeId>, // by others; ⊆ members but for a moment
    subjects: BTreeMap<NodeId, Subject>, // ⊆ members
    relays: Relays,
    health: LocalHealth,
    timer: OwnTimer,
    repeat_at: Instant,
    numbers: u64,
    rng: SmallRng,
    stats: Stats,
}

impl Monitor {
    /// A monitor of nobody yet.
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
            stats: Stats::default(),
        }
    }

    /// Who is a member, and whom of them this node is to monitor.
    ///
    /// Who is suspected or accused stays monitored until it answers or is no member any more;
    /// who leaves the ring otherwise is forgotten. New ones are asked at once.
    pub fn set_members(
        &mut self,
        now: Instant,
        members: BTreeSet<NodeId>,
        ring: &BTreeSet<NodeId>,
        out: &mut Outbox<Order>,
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

    /// Whom others accuse. A witness off the ring, who has nothing but a broken connection, then has
    /// nothing to add, and what it would say would be one more change for all to hear of.
    pub fn set_accused(&mut self, accused: BTreeSet<NodeId>) {
        self.accused = accused;
        let Self { accused, subjects, .. } = self;
        subjects.retain(|node, subject| {
            let speaks =
                subject.on_ring || matches!(subject.standing, Standing::Unreachable { .. });
            speaks || !accused.contains(node)
        });
    }

    /// Time has passed; to be called at [`next_deadline`](Self::next_deadline) at the latest.
    pub fn tick(&mut self, now: Instant, out: &mut Outbox<Order>) {
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

    /// `from` has echoed a heartbeat of this node.
    pub fn answered(&mut self, now: Instant, from: NodeId, sequence: u64, out: &mut Outbox<Order>) {
        self.wake(now, out);
        let settled = self.relays.answered(from, sequence);
        let was_asked = !settled.is_empty();
        out.extend(settled.into_iter().map(|(to, probe)| Order::TellProbed {
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
        subject.link = subject::Link::default();
        subject.speaks_at = None;
        if !std::mem::replace(&mut subject.answered_round, true) {
            // Only the first answer of a round: that to a repeated question says nothing about
            // how regularly they come.
            subject.phi.heartbeat(now, pause);
        }
        let before = std::mem::replace(&mut subject.standing, Standing::Trusted);
        if !subject.on_ring {
            self.subjects.remove(&from);
        }
        if matches!(before, Standing::Unreachable { .. }) {
            out.push(Order::Reachable { subject: from });
        }
    }

    /// The last connection with `peer` is closed.
    pub fn closed(&mut self, now: Instant, peer: NodeId, out: &mut Outbox<Order>) {
        self.evidence(now, peer, out, |link| link.is_closed = true);
    }

    /// A new connection with `peer` was refused: nobody listens at its address.
    pub fn refused(&mut self, now: Instant, peer: NodeId, out: &mut Outbox<Order>) {
        self.evidence(now, peer, out, |link| link.is_refused = true);
    }

    /// There is a connection with `peer`. That is no answer yet, but what was said of its
    /// connection before is no evidence any more.
    pub fn connected(&mut self, now: Instant, peer: NodeId, out: &mut Outbox<Order>) {
        self.wake(now, out);
        if let Some(subject) = self.subjects.get_mut(&peer) {
            subject.link = subject::Link::default();
            subject.speaks_at = None;
        }
    }

    /// `asker` wants to know whether this node can reach `subject`.
    pub fn probe_asked(
        &mut self,
        now: Instant,
        asker: NodeId,
        subject: NodeId,
        probe: u64,
        out: &mut Outbox<Order>,
    ) {
        self.wake(now, out);
        if subject == self.own {
            out.push(Order::TellProbed { to: asker, subject, probe });
            return;
        }
        let known = self.members.contains(&asker) && self.members.contains(&subject);
        let until = now + self.config.indirect_probe_timeout;
        if known && self.relays.open((asker, probe), subject, self.numbers + 1, until) {
            self.heartbeat(subject, out);
        }
    }

    /// `via` says that `subject` has answered it.
    pub fn vouched(
        &mut self,
        now: Instant,
        via: NodeId,
        subject: NodeId,
        probe: u64,
        out: &mut Outbox<Order>,
    ) {
        self.wake(now, out);
        if !self.members.contains(&via) {
            return;
        }
        let Some(held) = self.subjects.get_mut(&subject) else { return };
        let (was_unreachable, asked) = match held.standing {
            Standing::Suspected { probe, .. } => (false, probe),
            Standing::Unreachable { probe } => (true, probe),
            Standing::Trusted | Standing::Vouched { .. } => return,
        };
        if probe != asked {
            return;
        }
        held.standing = Standing::Vouched { until: now + self.config.heartbeat_interval };
        self.stats.vouched += 1;
        out.push(Order::BadLink { subject, via });
        if was_unreachable {
            out.push(Order::Reachable { subject });
        }
    }

    /// When [`tick`](Self::tick) is due at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let (pause, expected) = (self.pause(), self.config.expected_response_after);
        let subjects = self.subjects.values().filter_map(|s| s.next_deadline(pause, expected));
        let others = subjects.chain(self.relays.next_deadline());
        let own = self.timer.due().min(self.repeat_at);
        others.min().map_or(own, |at| at.min(own))
    }

    /// Suspicion of `peer`, if it is monitored.
    #[must_use]
    pub fn phi(&self, now: Instant, peer: NodeId) -> Option<f64> {
        self.subjects.get(&peer).map(|subject| subject.phi.phi(now, self.pause()))
    }

    /// Who is monitored now.
    pub fn monitored(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.subjects.keys().copied()
    }

    /// How much this node trusts itself.
    #[must_use]
    pub const fn health(&self) -> LocalHealth {
        self.health
    }

    /// What was counted, and how many questions of others wait and were not taken.
    #[must_use]
    pub fn stats(&self) -> (Stats, usize, u64) {
        (self.stats, self.relays.len(), self.relays.refused())
    }

    // ── own pauses ──

    /// Before anything else: was this node itself stopped? Then it knows nothing of the time since.
    fn wake(&mut self, now: Instant, out: &mut Outbox<Order>) {
        let Some(gap) = self.timer.gap(now) else { return };
        self.health.worse();
        self.stats.pauses += 1;
        self.subjects.values_mut().for_each(|subject| subject.excuse(gap));
        self.repeat_at = now;
        out.push(Order::Paused { gap });
    }

    fn pause(&self) -> Duration {
        self.health.pause(self.config.acceptable_heartbeat_pause)
    }

    // ── heartbeats ──

    fn begin_round(&mut self, now: Instant, out: &mut Outbox<Order>) {
        let half = self.config.heartbeat_interval / 2;
        let awaited = self.subjects.values().filter(|subject| {
            subject.asked_at.is_some_and(|at| now - at >= half)
                && !matches!(subject.standing, Standing::Unreachable { .. })
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

    /// Asks once more who has not answered in this round.
    fn repeat(&mut self, now: Instant, out: &mut Outbox<Order>) {
        self.repeat_at = now + self.config.heartbeat_interval / REPEATS;
        let silent = self.subjects.iter().filter(|(_, subject)| {
            !subject.answered_round && !matches!(subject.standing, Standing::Unreachable { .. })
        });
        let silent: Vec<NodeId> = silent.map(|(node, _)| *node).collect();
        silent.into_iter().for_each(|node| self.heartbeat(node, out));
    }

    fn ask(&mut self, now: Instant, node: NodeId, out: &mut Outbox<Order>) {
        if let Some(subject) = self.subjects.get_mut(&node) {
            subject.asked_at.get_or_insert(now);
            subject.answered_round = false;
        }
        self.heartbeat(node, out);
    }

    fn heartbeat(&mut self, to: NodeId, out: &mut Outbox<Order>) {
        self.stats.heartbeats += 1;
        let sequence = self.number();
        out.push(Order::Heartbeat { to, sequence });
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    // ── suspicion ──

    fn evidence(
        &mut self,
        now: Instant,
        peer: NodeId,
        out: &mut Outbox<Order>,
        note: impl FnOnce(&mut subject::Link),
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
            // Whoever has a connection is a witness, on the ring or not: monitored until it
            // answers.
            self.ask(now, peer, out);
        }
        self.consider(now, peer, out);
    }

    /// Suspects, gives up waiting, or accuses, as time and evidence have it.
    fn consider(&mut self, now: Instant, node: NodeId, out: &mut Outbox<Order>) {
        let (pause, expected) = (self.pause(), self.config.expected_response_after);
        let Some(subject) = self.subjects.get_mut(&node) else { return };
        if !subject.phi.has_begun() && subject.asked_at.is_some_and(|at| now >= at + expected) {
            // It never answered: from here on its silence counts.
            subject.phi.heartbeat(now, pause);
        }
        let charge = subject.charge(now, pause);
        match &subject.standing {
            Standing::Trusted => match charge {
                None => subject.speaks_at = None,
                Some(why) => {
                    if self.speaks(now, node) {
                        self.suspect(now, node, why, out);
                    }
                }
            },
            Standing::Vouched { until } if now >= *until => match charge {
                Some(why) => self.suspect(now, node, why, out),
                None => subject.standing = Standing::Trusted,
            },
            Standing::Suspected { why, until, .. } if now >= *until => {
                let why = *why;
                self.accuse(node, why, out);
            }
            Standing::Vouched { .. }
            | Standing::Suspected { .. }
            | Standing::Unreachable { .. } => {}
        }
    }

    /// Whether this node has waited for others to speak, if it is to.
    fn speaks(&mut self, now: Instant, node: NodeId) -> bool {
        let most = WITNESS_MAX.min(WITNESS_EACH * u32::try_from(self.members.len()).unwrap_or(100));
        let Some(subject) = self.subjects.get_mut(&node) else { return false };
        if subject.on_ring {
            subject.speaks_at = None;
            return true;
        }
        let first = self.config.indirect_probe_timeout + HEARSAY;
        let rng = &mut self.rng;
        let at = *subject
            .speaks_at
            .get_or_insert_with(|| now + first + most.mul_f64(rng.random_range(0.0..1.0)));
        let speaks = now >= at;
        if speaks {
            subject.speaks_at = None;
        }
        speaks
    }

    /// Asks others first; accuses at once only if there is nobody to ask.
    fn suspect(&mut self, now: Instant, node: NodeId, why: Why, out: &mut Outbox<Order>) {
        self.stats.suspicions += 1;
        let probe = self.number();
        let asked = self.witnesses(node);
        if asked.is_empty() {
            self.accuse(node, why, out);
            return;
        }
        out.extend(asked.into_iter().map(|via| Order::AskProbe { via, subject: node, probe }));
        let until = now + self.config.indirect_probe_timeout;
        if let Some(subject) = self.subjects.get_mut(&node) {
            subject.standing = Standing::Suspected { why, probe, until };
        }
    }

    fn accuse(&mut self, node: NodeId, why: Why, out: &mut Outbox<Order>) {
        self.stats.accusations += 1;
        let probe = self.number();
        if let Some(subject) = self.subjects.get_mut(&node) {
            subject.standing = Standing::Unreachable { probe };
        }
        out.push(Order::Unreachable { subject: node, why });
    }

    /// Others are asked about an accused one in every round: the answers may have been lost.
    fn ask_again(&mut self, node: NodeId, out: &mut Outbox<Order>) {
        let Some(Standing::Unreachable { probe }) = self.subjects.get(&node).map(|s| &s.standing)
        else {
            return;
        };
        let probe = *probe;
        let asked = self.witnesses(node);
        out.extend(asked.into_iter().map(|via| Order::AskProbe { via, subject: node, probe }));
    }

    /// Some members that this node trusts, drawn at random.
    fn witnesses(&mut self, about: NodeId) -> Vec<NodeId> {
        let doubtful = |node: &NodeId| {
            self.subjects.get(node).is_some_and(|subject| subject.standing != Standing::Trusted)
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
