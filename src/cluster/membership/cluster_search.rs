//! The stage of a node that is in no cluster: it asks for one, joins it, or founds one with the
//! other seeds (docs/protocol/membership.md#search-before-founding).
//!
//! [`OrphanRecovery`](super::orphan_recovery) runs the same search inside a cluster that has lost
//! its members. A method that returns an optional [`SearchResult`] returns `None` while the search
//! goes on; after a result the search is dropped.

mod ballots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::NodeId;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, EpochSettings, LeaseSettings};
use rand::RngExt;

use super::foundation::Founding;
use super::port::{MembershipOutput, OperatorNotice, ResumeRefusal, StopReason};
use super::succession::Succession;
use super::{MembershipCore, MembershipOutbox, SEEDS_MAX};
use crate::cluster::gossip::{ClusterId, Gossip};
use crate::cluster::member::{Address, Member};
use crate::cluster::wire::{ClusterMessage, Foundation, InitAnswer};

/// Maximum number of addresses that are asked: the seeds and as many known members.
const ASKED_MAX: usize = 2 * SEEDS_MAX;

/// Pause after the first round of requests; each later pause is twice as long.
const FIRST_ROUND: Duration = Duration::from_millis(100);
/// How long the remaining seeds may still promise, and so become founders, once a majority has
/// promised.
const LATECOMERS: Duration = Duration::from_millis(100);
/// Interval at which founding messages are repeated.
const RESEND: Duration = Duration::from_millis(300);
/// Maximum duration of an attempt to found.
const PATIENCE: Duration = Duration::from_secs(2);
/// Delay of each further seed in the order of proposers.
const TURN: Duration = Duration::from_millis(500);
/// How long a seed waits for an earlier seed that has not answered yet.
const UNHEARD: Duration = Duration::from_millis(150);
/// Maximum number of asked members that are at no seed's address.
const CALLERS_MAX: usize = 16;
/// Maximum number of remembered answers.
const ANSWERS_MAX: usize = 256;
/// How long an answer proves that its sender belongs to no cluster of this node's.
const FRESH_FOR: Duration = Duration::from_secs(3);
/// Maximum pause between two rounds of requests of a node that lost its cluster and may forget it,
/// because its evidence must be fresh.
const LOST_ROUND: Duration = Duration::from_secs(1);

/// Result of the search.
#[derive(Debug)]
pub(super) enum SearchResult {
    /// The node was admitted.
    Welcome(Arc<Gossip>),
    /// The node is a founder; the cluster was founded by this node or by another seed.
    Found(Foundation),
    /// The node was the only member of its cluster, and resumes it.
    Succeeded(Foundation, Box<OperatorNotice>),
    /// The node must stop.
    Stop(StopReason),
}

/// The search for a cluster.
#[derive(Debug)]
pub(super) struct Searching {
    started: Instant,
    seeds: BTreeSet<Address>,              // the list; ≤ SEEDS_MAX
    asked: BTreeSet<Address>, // other seeds and known members, or the node to join; ≤ ASKED_MAX
    own: BTreeSet<Address>,   // DNS names of `asked` that resolve to this node, too; ≤ `asked`
    callers: BTreeSet<NodeId>, // connected members elsewhere that are asked, too; ≤ CALLERS_MAX
    founding: Option<Founding>, // `None`: this node founds no cluster
    equal: BTreeSet<NodeId>,  // searching seeds with the same list and settings; ≤ ANSWERS_MAX
    answers: BTreeMap<NodeId, InitAnswer>, // of connected nodes, the last one each; ≤ ANSWERS_MAX
    outsiders: BTreeMap<NodeId, Instant>, // time of the proof; ≤ ANSWERS_MAX
    refused: BTreeSet<Address>, // dials failed, no answer since; ≤ `asked`
    succession: Option<Succession>, // this node was the only member of its cluster
    ask_at: Instant,
    pause: Duration,
    longest_pause: Duration,
    warn_at: Instant,
    // Times of the founding. The last three are set during an attempt only.
    propose_at: Option<Instant>, // `None`: no majority of the seeds agrees
    latecomers_until: Option<Instant>, // a majority has promised, and others may still
    resend_at: Option<Instant>,
    patient_until: Option<Instant>, // end of the attempt
    /// The member that was asked to let this node in, and the time until which the node waits for
    /// its answer. Meanwhile no other member is asked, and nothing is founded or resumed.
    join: Option<(NodeId, Instant)>,
}

impl Searching {
    /// The search of a starting node. It takes part in a founding only if its data directory
    /// contains no cluster. With seeds it must also be a seed, or `expected-nodes` must be set;
    /// without seeds it must not wait for a `join`, whatever `expected-nodes` is. The founding
    /// keeps the stored votes of an earlier incarnation, and counts `expected-nodes` or else the
    /// seeds as voters. Sends and dials nothing itself, but may report a doubt of the succession,
    /// which is due at once if no address is asked. The first round of requests is due at the next
    /// `tick`.
    pub(super) fn new(core: &mut MembershipCore, now: Now, out: &mut MembershipOutbox) -> Self {
        let seeds = core.seeds();
        let known = core.memory.known.clone();
        let is_seed = seeds.contains(&core.address) || core.config.expected_nodes.is_some();
        let founds = if seeds.is_empty() { !core.config.wait_for_join } else { is_seed };
        let voter_count = core.config.expected_nodes.unwrap_or(seeds.len()).max(1);
        let founding = (founds && core.memory.cluster.is_none()).then(|| {
            let memory = core.memory.founding.clone().unwrap_or_default();
            Founding::new(core.me, voter_count, memory, core.fault_injection)
        });
        let longest = core.config.retry_unsuccessful_join_after;
        let mut search = Self::of(core, now, (seeds, known), founding, longest);
        search.succession = Succession::new(core, now, out);
        search.hasten(core, now);
        search
    }

    /// The search of a node that has lost its cluster: it also asks these addresses, and neither
    /// founds a cluster nor resumes one. Without a data directory it pauses for 1 s at most.
    pub(super) fn anew(core: &MembershipCore, now: Now, known: BTreeSet<Address>) -> Self {
        let usual = core.config.retry_unsuccessful_join_after;
        let longest = if core.directory.is_none() { usual.min(LOST_ROUND) } else { usual };
        Self::of(core, now, (core.seeds(), known), None, longest)
    }

    /// A search that begins now. It asks the seeds before the known addresses, never its own
    /// address, and at most [`ASKED_MAX`] in all.
    fn of(
        core: &MembershipCore,
        now: Now,
        (seeds, mut known): (BTreeSet<Address>, BTreeSet<Address>),
        founding: Option<Founding>,
        longest_pause: Duration,
    ) -> Self {
        known.retain(|address| !seeds.contains(address) && *address != core.address);
        let mut asked: BTreeSet<Address> =
            seeds.iter().chain(&known).take(ASKED_MAX).cloned().collect();
        asked.remove(&core.address);
        Self {
            started: now.mono,
            seeds,
            asked,
            own: BTreeSet::new(),
            callers: BTreeSet::new(),
            founding,
            equal: BTreeSet::new(),
            answers: BTreeMap::new(),
            outsiders: BTreeMap::new(),
            refused: BTreeSet::new(),
            succession: None,
            ask_at: now.mono,
            pause: FIRST_ROUND,
            longest_pause,
            warn_at: now.mono + core.config.seed_node_timeout,
            propose_at: None,
            latecomers_until: None,
            resend_at: None,
            patient_until: None,
            join: None,
        }
    }

    /// A node without seeds is told which node to join: it asks only that address from now on, the
    /// first time in this call, and no longer founds or resumes a cluster. Ignored if the node has
    /// seeds. A request to join that was sent before and earlier answers remain.
    pub(super) fn join(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        address: Address,
        out: &mut MembershipOutbox,
    ) {
        if self.seeds.is_empty() {
            self.stop_founding();
            self.founding = None;
            self.succession = None;
            self.asked = BTreeSet::from([address]);
            self.pause = FIRST_ROUND;
            self.ask(core, now, out);
        }
    }

    /// The last connection with a node ended: forgets its answer and all evidence of it, and no
    /// longer asks it as a caller. If it was asked to let this node in, asks the next member that
    /// answered. Its addresses do not count as refused.
    pub(super) fn closed(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        node: NodeId,
        out: &mut MembershipOutbox,
    ) {
        self.callers.remove(&node);
        self.answers.remove(&node);
        self.outsiders.remove(&node);
        self.equal.remove(&node);
        if self.join.is_some_and(|(via, _)| via == node) {
            self.join = None;
            self.try_join(core, now, out);
        }
    }

    /// Another name of a seed resolves to this node, so no other node votes for it: the addresses
    /// are no longer asked, and the founding counts fewer voters unless `expected-nodes` gives
    /// their number. With that setting, or if this node founds nothing, a DNS name may also resolve
    /// to other nodes: it is asked as before, and only not waited for. Addresses that are not asked
    /// are ignored.
    pub(super) fn add_own(&mut self, core: &MembershipCore, addresses: &[Address]) {
        let before = self.asked.len();
        let many = core.config.expected_nodes.is_some() || self.founding.is_none();
        for address in addresses {
            if !(many && address.is_name()) {
                self.asked.remove(address);
            } else if self.asked.contains(address) {
                self.own.insert(address.clone());
            }
        }
        let twice = before - self.asked.len();
        if let Some(founding) = self.founding.as_mut().filter(|_| twice > 0)
            && core.config.expected_nodes.is_none()
        {
            founding.set_fewer_voters(self.asked.len() + 1);
        }
    }

    /// A node is connected: asks it for a cluster if it is at an asked address, and otherwise
    /// nothing.
    pub(super) fn up(
        &mut self,
        core: &mut MembershipCore,
        node: NodeId,
        out: &mut MembershipOutbox,
    ) {
        if self.is_asked(core, node) {
            self.init(core, node, out);
        }
    }

    /// Whether this node asks that node: it is at an asked address, or has called.
    fn is_asked(&self, core: &MembershipCore, node: NodeId) -> bool {
        self.callers.contains(&node) || self.is_at_a_seed(core, node)
    }

    /// Whether the node answers at one of the asked addresses.
    fn is_at_a_seed(&self, core: &MembershipCore, node: NodeId) -> bool {
        core.links.addresses(node).is_some_and(|at| !at.is_disjoint(&self.asked))
    }

    /// A node mentions a cluster. If it was not asked before, it is asked from now on, provided
    /// that this node has seeds (otherwise it is told which node to join). Returns whether it is
    /// new. Does nothing if the node is not connected, or [`CALLERS_MAX`] are asked. Sends nothing.
    fn add_caller(&mut self, core: &MembershipCore, by: NodeId) -> bool {
        let heeds = self.callers.len() < CALLERS_MAX && !self.seeds.is_empty();
        heeds && core.links.is_up(by) && !self.is_asked(core, by) && self.callers.insert(by)
    }

    /// The earliest time at which [`tick`](Self::tick) has something to do, without the end of the
    /// search by `shutdown-after-unsuccessful-join`, which the first `tick` after it notices. May
    /// be in the past.
    pub(super) fn next_deadline(&self) -> Instant {
        let others = [
            self.propose_at.filter(|_| self.founding.is_some()),
            self.latecomers_until,
            self.resend_at,
            self.patient_until,
            self.join.map(|(_, until)| until),
            self.succession
                .as_ref()
                .filter(|_| self.join.is_none())
                .and_then(Succession::next_deadline),
            Some(self.warn_at),
        ];
        others.into_iter().flatten().fold(self.ask_at, Instant::min)
    }

    /// Performs what is due, in this order: the stop of a node that has not joined in the time that
    /// is set (then nothing else); requests; the notice about silent nodes; another member in place
    /// of one that did not answer the join; founding, which gives up an open attempt while a join
    /// is open; succession. Returns only `Stop` or `Succeeded`: a founding ends in `message`.
    pub(super) fn tick(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) -> Option<SearchResult> {
        let limit = core.config.shutdown_after_unsuccessful_join;
        if limit.is_some_and(|limit| now.mono.saturating_since(self.started) >= limit) {
            return Some(SearchResult::Stop(StopReason::NotJoined));
        }
        if now.mono >= self.ask_at {
            self.ask(core, now, out);
        }
        if now.mono >= self.warn_at {
            self.warn(core, now, out);
        }
        if self.join.is_some_and(|(_, until)| now.mono >= until) {
            self.join = None;
            self.try_join(core, now, out);
        }
        self.found(core, now, out);
        self.succeed(core, now, out)
    }

    // ── the only member of a cluster ──

    pub(super) const fn succession(&self) -> Option<&Succession> {
        self.succession.as_ref()
    }

    /// Resumes the cluster whose only member this node was, if that is due and the new
    /// configuration is on disk; the first call when it is due only orders that write. `None`
    /// otherwise, and if the node was not the only member, doubts it, or waits for the answer of a
    /// member that it asked to let it in.
    pub(super) fn succeed(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) -> Option<SearchResult> {
        if self.join.is_some() {
            return None; // a member has answered
        }
        let succession = self.succession.as_mut()?;
        let foundation = succession.prepare_or_resume(core, now, out)?;
        let notice = succession.notice(foundation.epoch.id());
        Some(SearchResult::Succeeded(foundation, Box::new(notice)))
    }

    /// An operator orders to resume the cluster regardless of doubts, at the next
    /// [`tick`](Self::tick). Returns whether that is possible: whether this node was its only
    /// member.
    pub(super) fn insist(&mut self, now: Now) -> bool {
        self.succession.as_mut().map(|succession| succession.insist(now)).is_some()
    }

    /// Ends the succession's wait for answers once each asked address has answered, refused, or
    /// turned out to be this node's own; at once if none is asked. Does nothing without a
    /// succession.
    fn hasten(&mut self, core: &MembershipCore, now: Now) {
        let Some(succession) = &mut self.succession else { return };
        let answering = core.links.reached(&self.asked, |node| self.answers.contains_key(&node));
        let is_done = |at: &Address| {
            self.own.contains(at) || self.refused.contains(at) || answering.contains(at)
        };
        if self.asked.iter().all(is_done) {
            succession.hasten(now);
        }
    }

    /// A dial of this address failed. Counts as refused until a node there answers `InitJoin`; a
    /// connection alone does not end that. Ignored for addresses that are not asked.
    pub(super) fn refused(&mut self, core: &MembershipCore, now: Now, address: &Address) {
        if self.asked.contains(address) {
            self.refused.insert(address.clone());
            self.hasten(core, now);
        }
    }

    // ── a cluster without remaining members ──

    /// Whether a connected node at this address has recently proved that it is not in this node's
    /// cluster, whatever other nodes at the address say.
    pub(super) fn is_vacated(&self, core: &MembershipCore, now: Now, address: &Address) -> bool {
        self.outsiders.keys().filter(|node| self.is_outsider(now, **node)).any(|node| {
            core.links.addresses(*node).is_some_and(|addresses| addresses.contains(address))
        })
    }

    /// Whether `node` has proved within [`FRESH_FOR`] that it is not in this node's cluster.
    pub(super) fn is_outsider(&self, now: Now, node: NodeId) -> bool {
        self.outsiders.get(&node).is_some_and(|at| now.mono < *at + FRESH_FOR)
    }

    /// Whether an answer proves that its sender is not in this node's cluster. A node with the same
    /// cluster in its data directory may be needed to resume it, so it is no proof. To a node that
    /// belongs to no cluster, `Member` and `Remembers` prove nothing. `Waits` is proof even for the
    /// own cluster: its sender is in no configuration and has no data directory. `Incompatible` is
    /// no proof.
    fn is_outside(core: &MembershipCore, what: InitAnswer) -> bool {
        match what {
            InitAnswer::Searching | InitAnswer::OtherSeeds | InitAnswer::Waits(_) => true,
            InitAnswer::Member(theirs) | InitAnswer::Remembers(theirs) => !is_ours(core, theirs),
            InitAnswer::Incompatible => false,
        }
    }

    /// Records an answer as evidence: no address of the sender counts as refused any longer, and
    /// the sender counts as an outsider from now on, or no longer. A further outsider beyond
    /// [`ANSWERS_MAX`] is not recorded.
    fn note(&mut self, core: &MembershipCore, now: Now, from: NodeId, what: InitAnswer) {
        for address in core.links.addresses(from).into_iter().flatten() {
            self.refused.remove(address);
        }
        if !Self::is_outside(core, what) {
            self.outsiders.remove(&from);
        } else if self.outsiders.len() < ANSWERS_MAX || self.outsiders.contains_key(&from) {
            self.outsiders.insert(from, now.mono);
        }
    }

    /// Handles a message of another node, or of this one to itself.
    ///
    /// Answers every `InitJoin` and heartbeat, and sends the foundation of the stored cluster to a
    /// founder that has not learned of it. `Founded` counts only from a node at a seed's address,
    /// `JoinRefused` only from the member that was asked: final or not, it is reported, the
    /// member's answer is forgotten, and the next round of requests is set to
    /// `retry-unsuccessful-join-after` from now; no other member is asked here. Gossip of a node
    /// that was not asked leads to a request there. Messages that do not fit are counted as
    /// nonsense, also `Founded` and `JoinRefused` that do not count.
    pub(super) fn message(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        from: NodeId,
        message: ClusterMessage,
        out: &mut MembershipOutbox,
    ) -> Option<SearchResult> {
        use ClusterMessage as M;
        match message {
            M::InitJoin { settings, seeds, cluster, .. } => {
                let what = self.judge(core, &settings, &seeds);
                // A node with a cluster in its data directory founds none.
                if what == InitAnswer::Searching && cluster.is_none() {
                    self.agrees(core, from);
                } else {
                    self.equal.remove(&from);
                }
                core.answer(from, what, out);
                if let Some(foundation) = founded_with(core, from).filter(|_| cluster.is_none()) {
                    core.send(from, M::Founded(foundation), out);
                }
                self.found(core, now, out);
            }
            M::Founded(foundation)
                if self.is_at_a_seed(core, from)
                    && is_ours(core, foundation.gossip.cluster())
                    && is_sound(&foundation) =>
            {
                return self.on_founded(core, now, from, foundation, out);
            }
            M::InitJoinAnswer { what, settings } => {
                self.answered(core, now, from, what, &settings, out);
            }
            M::Welcome { gossip } => return self.welcome(core, from, gossip),
            M::JoinRefused { why, retry } if self.join.is_some_and(|(via, _)| via == from) => {
                core.say(
                    now,
                    OperatorNotice::JoinRefused { node: core.me, why, passes: retry },
                    out,
                );
                self.join = None;
                self.callers.remove(&from); // it may invite this node again
                self.answers.remove(&from);
                self.ask_at = now.mono + core.jittered(core.config.retry_unsuccessful_join_after);
            }
            M::Heartbeat(sequence) => core.send(from, M::HeartbeatAnswer(sequence), out),
            // The sender may have admitted this node, which has not learned of it.
            M::Gossip(_)
            | M::GossipDelta(_)
            | M::GossipDigest(_)
            | M::GossipStatus(_)
            | M::GossipSeen(_) => {
                if self.add_caller(core, from) {
                    self.init(core, from, out);
                }
            }
            founding if self.founding.is_some() => {
                return self.founding_message(core, now, from, founding, out);
            }
            _ => core.stats.nonsense += 1,
        }
        None
    }

    // ── asking ──

    /// A round of requests: dials the asked addresses at which no node is connected, and sends an
    /// `InitJoin` to each connected one. A DNS name is dialled again as long as fewer than
    /// `expected-nodes` are connected. Callers are asked unless a join is under way. Schedules the
    /// next round; the pause doubles up to the longest one.
    fn ask(&mut self, core: &mut MembershipCore, now: Now, out: &mut MembershipOutbox) {
        let linked = core.links.at(&self.asked);
        let there = core.links.reached(&self.asked, |_| true);
        // A DNS name may resolve to more nodes than have answered, and to others than before.
        let all = core.config.expected_nodes.is_none_or(|nodes| linked.len() + 1 >= nodes);
        for address in &self.asked {
            if !there.contains(address) || (address.is_name() && !all) {
                out.push(MembershipOutput::Dial(address.clone()));
            }
        }
        for (node, _) in &linked {
            self.init(core, *node, out);
        }
        for node in self.callers.iter().filter(|_| self.join.is_none()) {
            self.init(core, *node, out);
        }
        self.ask_at = now.mono + core.jittered(self.pause);
        self.pause = self.pause.saturating_mul(2).min(self.longest_pause);
    }

    /// Asks a node for a cluster.
    fn init(&self, core: &mut MembershipCore, to: NodeId, out: &mut MembershipOutbox) {
        let message = ClusterMessage::InitJoin {
            member: Box::new(core.member()),
            settings: core.settings.clone(),
            seeds: self.seeds.clone(),
            cluster: core.memory.cluster,
        };
        core.send(to, message, out);
    }

    /// Reports the reason why this node waits, and schedules the next report.
    fn warn(&mut self, core: &mut MembershipCore, now: Now, out: &mut MembershipOutbox) {
        self.warn_at = now.mono + core.config.seed_node_timeout;
        if let Some(notice) = self.waits_for(core) {
            core.say(now, notice, out);
        }
    }

    /// The notice about the nodes that this node waits for, as far as it knows them; `None` if
    /// there is nothing to say. Without a stored cluster: the asked addresses that have not
    /// answered, if any. With one: the doubts of a succession, if any; otherwise always a notice,
    /// with the silent addresses and those of nodes that wait for the same cluster.
    pub(super) fn waits_for(&self, core: &MembershipCore) -> Option<OperatorNotice> {
        let linked = core.links.at(&self.asked);
        let answering = linked.iter().filter(|(node, _)| self.answers.contains_key(node));
        let answering: BTreeSet<&Address> = answering.map(|(_, address)| address).collect();
        let reached = core.links.reached(&self.asked, |node| self.answers.contains_key(&node));
        let silent = self.asked.difference(&self.own).filter(|at| !reached.contains(at));
        let silent: Vec<Address> = silent.cloned().collect();
        match (core.memory.cluster, &self.succession) {
            (Some(_), Some(succession)) => succession.doubts(),
            (Some(cluster), None) => {
                let waits = |node| self.answers.get(node) == Some(&InitAnswer::Remembers(cluster));
                let stopped = linked.iter().filter(|(node, _)| waits(node));
                let stopped: Vec<Address> = stopped.map(|(_, address)| address.clone()).collect();
                Some(if silent.is_empty() {
                    OperatorNotice::AllStopped { cluster, stopped }
                } else {
                    OperatorNotice::Remembers { cluster, silent, stopped }
                })
            }
            (None, _) => {
                let own = usize::from(self.seeds.contains(&core.address));
                let answers = self.seeds.iter().filter(|seed| answering.contains(seed)).count();
                let all = core.config.expected_nodes.unwrap_or(self.seeds.len());
                let others_suffice = 2 * (answers + own) > all;
                (!silent.is_empty())
                    .then_some(OperatorNotice::SeedsSilent { silent, others_suffice })
            }
        }
    }

    /// The answer to a node that also searches for a cluster, in this order: `Incompatible`,
    /// `Remembers` with the cluster in the own data directory, `OtherSeeds` if this node founds
    /// nothing or the lists differ, `Searching`.
    fn judge(
        &self,
        core: &MembershipCore,
        settings: &crate::cluster::wire::ComparedSettings,
        seeds: &BTreeSet<Address>,
    ) -> InitAnswer {
        if !core.differing(settings).0.is_empty() {
            InitAnswer::Incompatible
        } else if let Some(cluster) = core.memory.cluster {
            InitAnswer::Remembers(cluster)
        } else if self.founding.is_none() || *seeds != self.seeds {
            InitAnswer::OtherSeeds
        } else {
            InitAnswer::Searching
        }
    }

    /// Records that a seed may found with this node. Beyond [`ANSWERS_MAX`] an asked node replaces
    /// one that is not asked, and others are not recorded.
    fn agrees(&mut self, core: &MembershipCore, from: NodeId) {
        let full = self.equal.len() >= ANSWERS_MAX && !self.equal.contains(&from);
        let room = full.then(|| self.room(core, from, self.equal.iter()));
        if let Some(room) = room {
            let Some(other) = room else { return };
            self.equal.remove(&other);
        }
        self.equal.insert(from);
    }

    /// The entry of a full table that `from` replaces: the first one of a node that is not asked,
    /// if `from` is asked; otherwise `None`. Only the asked nodes can vote or admit this node. In a
    /// large cluster, all other nodes that start with this one ask it, too.
    fn room<'a>(
        &self,
        core: &MembershipCore,
        from: NodeId,
        mut held: impl Iterator<Item = &'a NodeId>,
    ) -> Option<NodeId> {
        if self.is_asked(core, from) {
            held.find(|id| !self.is_asked(core, **id)).copied()
        } else {
            None
        }
    }

    /// Handles an answer to `InitJoin`, or an invitation, which is the same message unasked. The
    /// node compares the settings itself: if some that must agree differ, the answer counts as
    /// `Incompatible`.
    ///
    /// A member of any cluster is a doubt that stops a succession. A member of another cluster than
    /// the stored one is reported, and not joined. A caller that is no member is not asked again; a
    /// member that was not asked is, up to [`CALLERS_MAX`]. The answer is then remembered, and the
    /// node joins or founds if it can.
    fn answered(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        from: NodeId,
        what: InitAnswer,
        settings: &crate::cluster::wire::ComparedSettings,
        out: &mut MembershipOutbox,
    ) {
        let (must, should) = core.differing(settings);
        // A node that invites does not know the settings of this node.
        let what = if must.is_empty() { what } else { InitAnswer::Incompatible };
        let which = if must.is_empty() { should } else { must };
        if !which.is_empty() {
            core.say(now, OperatorNotice::SettingsDiffer { node: from, which }, out);
        }
        self.note(core, now, from, what);
        match (what, core.memory.cluster) {
            (InitAnswer::Member(theirs), Some(ours)) if theirs != ours => {
                core.say(now, OperatorNotice::ForeignCluster { node: from, ours, theirs }, out);
                if let Some(succession) = &mut self.succession {
                    succession.doubt(core, now, ResumeRefusal::OtherCluster(theirs), out);
                }
                return;
            }
            (InitAnswer::Member(_), Some(_)) => {
                if let Some(succession) = &mut self.succession {
                    succession.doubt(core, now, ResumeRefusal::Member, out);
                }
            }
            (InitAnswer::OtherSeeds, _) if self.founding.is_some() => {
                core.say(now, OperatorNotice::OtherSeeds { node: from }, out);
            }
            _ => {}
        }
        if !matches!(what, InitAnswer::Member(_)) {
            self.callers.remove(&from);
        } else if !self.add_caller(core, from) && !self.is_asked(core, from) {
            return; // CALLERS_MAX are asked already
        }
        self.remember(core, from, what);
        self.try_join(core, now, out);
        self.hasten(core, now);
        self.found(core, now, out);
    }

    /// Stores the answer of a node, in place of an earlier one; if the table is full, see
    /// [`room`](Self::room). `Searching` also makes the node a possible voter; any other answer
    /// withdraws that.
    fn remember(&mut self, core: &MembershipCore, from: NodeId, what: InitAnswer) {
        let full = self.answers.len() >= ANSWERS_MAX && !self.answers.contains_key(&from);
        if let Some(other) = full.then(|| self.room(core, from, self.answers.keys())).flatten() {
            self.answers.remove(&other);
        }
        if self.answers.len() < ANSWERS_MAX || self.answers.contains_key(&from) {
            self.answers.insert(from, what);
        }
        if what == InitAnswer::Searching {
            self.agrees(core, from);
        } else {
            self.equal.remove(&from);
        }
    }

    // ── joining ──

    /// Asks a member to let this node in: the first in the order of node ids of those that answered
    /// `Member` and were not asked since; forgets its answer, so that the others are next. Gives an
    /// open attempt to found up. Does nothing while a request to join is open, once a succession
    /// has ordered its write, or if no member has answered.
    fn try_join(&mut self, core: &mut MembershipCore, now: Now, out: &mut MembershipOutbox) {
        if self.join.is_some() || self.succession.as_ref().is_some_and(Succession::is_prepared) {
            return;
        }
        let is_member =
            |(_, answer): &(&NodeId, &InitAnswer)| matches!(answer, InitAnswer::Member(_));
        let Some(via) = self.answers.iter().find(is_member).map(|(node, _)| *node) else { return };
        self.stop_founding();
        let message = ClusterMessage::Join {
            member: Box::new(core.member()),
            settings: core.settings.clone(),
        };
        core.send(via, message, out);
        self.join = Some((via, now.mono + core.config.retry_unsuccessful_join_after));
        // If this member does not admit the node, the others are asked first.
        self.answers.remove(&via);
    }

    /// Enters the cluster, if the state lists this node, is of the stored cluster (if any), and
    /// comes from an asked node; the node need not be the one asked last. Otherwise counts
    /// nonsense.
    fn welcome(
        &mut self,
        core: &mut MembershipCore,
        from: NodeId,
        gossip: Arc<Gossip>,
    ) -> Option<SearchResult> {
        if !(gossip.lists(core.me) && is_ours(core, gossip.cluster()) && self.is_asked(core, from))
        {
            core.stats.nonsense += 1;
            return None;
        }
        Some(SearchResult::Welcome(gossip))
    }
}

/// Whether this node may belong to that cluster: its memory, which is also that of its data
/// directory, names no other.
fn is_ours(core: &MembershipCore, cluster: ClusterId) -> bool {
    core.memory.cluster.is_none_or(|ours| ours == cluster)
}

/// Whether the foundation is well formed, and its counters are those of a new cluster: gossip and
/// configuration have the same members and cluster, all are Up or Leaving, and the number is 1.
fn is_sound(foundation: &Foundation) -> bool {
    let Foundation { gossip, epoch } = foundation;
    let members: BTreeSet<_> = gossip.members().map(|member| member.incarnation()).collect();
    epoch.members().iter().copied().collect::<BTreeSet<_>>() == members
        && epoch.id().number == 1
        && epoch.cluster() == gossip.cluster().0
        && gossip.members().all(|member| member.counts())
        && gossip.is_near_first_state().is_ok()
}

/// The foundation of the stored cluster, if `node` is one of its founders. The founder may not have
/// learned of it, and no other node of the first configuration may be left to inform it.
fn founded_with(core: &MembershipCore, node: NodeId) -> Option<Foundation> {
    core.memory.founded.clone().filter(|foundation| foundation.gossip.lists(node))
}

/// Whether so many founders have failed that the remaining ones are no quorum by the tie rule, for
/// which half of the voters suffice with the tiebreaker. A founder has failed if `promisers` has
/// its peer key with another node id, older or newer; otherwise it counts as alive. The caller only
/// reports the loss, and proposes the foundation all the same.
pub(super) fn is_lost(foundation: &Foundation, promisers: &[Member]) -> bool {
    let Foundation { gossip, epoch } = foundation;
    let is_over = |founder: &Member| {
        let again = promisers.iter().find(|member| member.peer() == founder.peer());
        again.is_some_and(|member| member.node != founder.node)
    };
    let rest = gossip.members().filter(|founder| !is_over(founder));
    let rest = rest.map(|founder| founder.incarnation()).collect();
    !epoch.is_quorum(&rest, ostraca_ddata::fault_injection::FaultInjection::none())
}

/// The lease settings of a cluster founded by this node.
pub(super) const fn lease_settings(core: &MembershipCore) -> LeaseSettings {
    let lease = &core.config.lease;
    LeaseSettings {
        enabled: lease.enabled,
        duration: lease.duration,
        drift_ppm: lease.drift_ppm,
        restart_is_proof: lease.restart_is_proof,
        trust_downing: false,
    }
}

/// A foundation of a new random cluster with these members, all Up; the first in address order is
/// the oldest. Their stamps become 1, 2 and so on in that order, their hosting is kept. The
/// generation is the wall clock in ms, at least 1. `None` if there is no member, they give no valid
/// configuration, or one of them is not admitted, because it is invalid, has a revision that jumps,
/// or another one has its peer key.
fn foundation(
    core: &mut MembershipCore,
    now: Now,
    mut promisers: Vec<Member>,
) -> Option<Foundation> {
    promisers.sort_by(Member::by_address);
    promisers.iter_mut().zip(1..).for_each(|(member, stamp)| member.since = stamp);
    let members: Vec<_> = promisers.iter().map(Member::incarnation).collect();
    let lease = lease_settings(core);
    let cluster = ClusterId(core.rng.random());
    let settings = EpochSettings { lease, cluster: cluster.0, ..EpochSettings::default() };
    // No voting seed has a cluster in its data directory, so only the clock distinguishes this
    // generation from earlier ones.
    let id = EpochId { generation: now.wall.as_millis().max(1), number: 1 };
    let epoch = Epoch::founding(id, members.clone(), settings).ok()?;
    let mut promisers = promisers.into_iter();
    let oldest = promisers.next()?;
    let by = oldest.incarnation();
    let mut gossip = Gossip::found(cluster, oldest).ok()?;
    for member in promisers {
        gossip.admit_member(by, member).ok()?;
    }
    gossip.promote(by, &super::configuration_proposals::ages(&epoch));
    Some(Foundation { gossip: Arc::new(gossip), epoch: Arc::new(epoch) })
}
