//! The membership machine: one per node (spec/membership.md).
//!
//! A node first *searches*: it asks its seeds for a cluster, joins the one that answers, or founds
//! one with a majority of them (`searching`, `founding`). Then it is *inside*: state spreads
//! (`spreading`), nodes watch each other (`watching`), and whoever leads proposes configurations
//! (`deciding`). Who is Up and who is gone follows from installed configurations only; nothing
//! here that is safe rests on convergence, or on who was suspected.
//!
//! This file holds the fields and the `match`. Knows no socket, clock, disk, key or shard.

mod admitting;
mod astray;
mod calling;
mod deciding;
mod former;
mod founding;
mod inside;
mod links;
mod notices;
pub mod port;
pub mod recovering;
#[cfg(test)]
mod recovering_tests;
mod searching;
mod shunned;
mod spreading;
pub mod stats;
#[cfg(test)]
mod stranger_tests;
mod succession;
mod telling;
mod watching;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, PeerKey};
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::Epoch;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use self::inside::Inside;
use self::links::Links;
use self::notices::Notices;
use self::port::{Command, Input, Memory, Notice, Output, Setup, Sole, StopReason};
use self::recovering::NotRecovered;
use self::searching::{Entry, Searching};
use self::stats::Stats;
use super::bug::Canary;
use super::config::Cluster;
use super::gossip::{ClusterId, Gossip};
use super::lease::{Holder, HolderInput, HolderOutput, LeaseConfig};
use super::member::{Address, Hosting, Member};
use super::wire::{ClusterMessage, Foundation, InitAnswer, Settings};

type Out = Outbox<Output>;

/// Addresses in a list of seeds, at most; what a list has on top is not used.
const SEEDS_MAX: usize = 64;

/// Answers that wait until what they rely on is durable, at most; more are not given.
const WAITING_MAX: usize = 256;

/// Addresses of other members that are remembered for the next start, at most.
pub const KNOWN_MAX: usize = 16;

/// How long a side that only the next configuration needs waits for word of it; a link that broke
/// should be mended by then, and else those who are left start anew.
const PENDING_FOR: Duration = Duration::from_secs(120);

/// What may be installed next.
#[derive(Debug)]
struct Pending {
    epoch: Arc<Epoch>,
    until: Instant,
}

/// One node's membership. See the module's page.
#[derive(Debug)]
pub struct Membership {
    core: Core,
    stage: Stage,
    holder: Holder,
}

/// What every part needs.
#[derive(Debug)]
struct Core {
    me: NodeId,
    address: Address,
    config: Cluster,
    settings: Settings,
    canary: Canary,
    rng: SmallRng,
    links: Links,
    memory: Memory,
    directory: Option<u64>,
    /// The newest configuration that is installed here.
    installed: Option<Arc<Epoch>>,
    /// What may be installed next, as far as this node's voter knows.
    pending: Option<Pending>,
    hosting: Hosting,
    /// How often there was nothing to recover when it was ordered, and why the last time.
    not_forced: Option<(u64, NotRecovered)>,
    /// Nothing runs here any more and nothing will.
    drained: bool,
    ordered: u64,    // times that memory was to be persisted
    durable: u64,    // times that it was
    open_after: u64, // so many writes must be durable before others may be members
    waiting: VecDeque<(u64, NodeId, ClusterMessage)>, // ≤ WAITING_MAX
    loopback: VecDeque<ClusterMessage>, // empty between inputs
    notices: Notices,
    stats: Stats,
}

#[derive(Debug)]
enum Stage {
    /// Not yet asked for anything.
    New,
    /// In no cluster.
    Searching(Box<Searching>),
    /// In one.
    Inside(Box<Inside>),
    /// Told to stop; says nothing any more.
    Over(StopReason),
}

impl Membership {
    /// A node that knows nobody; it begins with its first input.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let Setup { me, address, config, settings, memory, directory, seed, canary } = setup;
        let memory = succession::completed(memory, me, directory);
        let lease = LeaseConfig {
            heartbeat_interval: config.lease.heartbeat_interval,
            stop_after: config.lease.stop_after,
        };
        let core = Core {
            me,
            address,
            config,
            settings,
            canary,
            rng: SmallRng::seed_from_u64(seed),
            links: Links::default(),
            memory,
            directory,
            installed: None,
            pending: None,
            hosting: Hosting::default(),
            not_forced: None,
            drained: false,
            ordered: 0,
            durable: 0,
            open_after: 0,
            waiting: VecDeque::new(),
            loopback: VecDeque::new(),
            notices: Notices::default(),
            stats: Stats::default(),
        };
        Self { core, stage: Stage::New, holder: Holder::new(me.incarnation, lease, canary) }
    }

    /// This incarnation.
    #[must_use]
    pub const fn me(&self) -> NodeId {
        self.core.me
    }

    /// The state of the cluster as this node knows it; none before it is in one, or after it was
    /// told to stop.
    #[must_use]
    pub const fn gossip(&self) -> Option<&Gossip> {
        match &self.stage {
            Stage::Inside(inside) => Some(inside.gossip()),
            Stage::New | Stage::Searching(_) | Stage::Over(_) => None,
        }
    }

    /// The newest configuration that is installed here.
    #[must_use]
    pub const fn configuration(&self) -> Option<&Arc<Epoch>> {
        self.core.installed.as_ref()
    }

    /// Why it was told to stop, if it was.
    #[must_use]
    pub const fn stopped(&self) -> Option<StopReason> {
        match self.stage {
            Stage::Over(why) => Some(why),
            Stage::New | Stage::Searching(_) | Stage::Inside(_) => None,
        }
    }

    /// Whether this node may begin a message at this time of its own clock.
    #[must_use]
    pub fn serves(&self, now: Instant) -> bool {
        self.holder.serves(now)
    }

    /// What was counted so far.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.core.stats
    }

    /// What a node that takes part in no cluster waits for, as its log says it.
    #[must_use]
    pub fn waits_for(&self) -> Option<Notice> {
        match &self.stage {
            Stage::Searching(searching) => searching.waits_for(&self.core),
            Stage::Inside(inside) => inside.is_astray().then_some(Notice::Astray),
            Stage::New | Stage::Over(_) => None,
        }
    }

    /// How things stand, as subscribers were told.
    #[must_use]
    pub fn state(&self) -> Option<&Arc<super::events::ClusterState>> {
        match &self.stage {
            Stage::Inside(inside) => Some(inside.told()),
            Stage::New | Stage::Searching(_) | Stage::Over(_) => None,
        }
    }

    fn take(&mut self, now: Now, input: Input, out: &mut Out) {
        match input {
            Input::Tick => self.tick(now, out),
            Input::Up { node, addresses, cluster } => {
                self.up(now, node, addresses, cluster, out);
            }
            Input::Closed(node) => {
                self.core.links.closed(node);
                match &mut self.stage {
                    Stage::Searching(searching) => searching.closed(node),
                    Stage::Inside(inside) => inside.closed(&mut self.core, now, node, out),
                    Stage::New | Stage::Over(_) => {}
                }
            }
            Input::DialRefused { node, address } => match (&mut self.stage, node) {
                (Stage::Inside(inside), Some(node)) => {
                    inside.refused(&mut self.core, now, node, out);
                }
                (Stage::Searching(searching), _) => searching.refused(&self.core, now, &address),
                _ => {}
            },
            Input::Quarantined(by) => self.quarantined(now, by, out),
            Input::NewIncarnation { old, node, is_proof } => {
                if let Stage::Inside(inside) = &mut self.stage {
                    inside.new_incarnation(&mut self.core, now, (old, node), is_proof, out);
                }
            }
            Input::Message { from, message, waited } => {
                self.message(now, from, message, waited, out);
            }
            Input::Granted { from, beat } => {
                self.hold(now, HolderInput::Granted { from, beat }, out);
            }
            Input::Installed(epoch) => self.installed(now, epoch, out),
            Input::Synced(_) => {}
            Input::Outcome(outcome) => {
                if let Stage::Inside(inside) = &mut self.stage {
                    inside.outcome(now, &outcome);
                }
            }
            Input::Excluded(_) => self.excluded(now, out),
            Input::StopServing => self.hold(now, HolderInput::StopServing, out),
            Input::Pending(epoch) => self.pending(now, epoch),
            Input::Persisted => self.persisted(now, out),
            Input::DowningLease(answer) => {
                if let Stage::Inside(inside) = &mut self.stage {
                    let ends = inside.downing_lease(&mut self.core, now, answer, out);
                    self.stop_if(now, ends, out);
                }
            }
            Input::Command(command) => self.command(now, &command, out),
        }
    }

    fn tick(&mut self, now: Now, out: &mut Out) {
        self.hold(now, HolderInput::Tick, out);
        match &mut self.stage {
            Stage::Searching(searching) => {
                let entry = searching.tick(&mut self.core, now, out);
                self.enter(now, entry, out);
            }
            Stage::Inside(inside) => {
                let ends = inside.tick(&mut self.core, now, out);
                self.stop_if(now, ends, out);
            }
            Stage::New | Stage::Over(_) => {}
        }
    }

    fn up(
        &mut self,
        now: Now,
        node: NodeId,
        addresses: Vec<Address>,
        cluster: Option<ClusterId>,
        out: &mut Out,
    ) {
        if node.peer == self.core.me.peer {
            // Its own address under another name, or another life of itself: no link.
            self.core.stats.own_dialled += 1;
            match &mut self.stage {
                Stage::Searching(searching) if node == self.core.me => {
                    searching.is_own(&self.core, &addresses);
                }
                Stage::Inside(inside) if node == self.core.me => inside.is_own(&addresses),
                _ => {}
            }
            return;
        }
        self.core.links.up(node, addresses);
        match &mut self.stage {
            Stage::Searching(searching) => searching.up(&mut self.core, node, out),
            Stage::Inside(inside) => inside.up(&mut self.core, now, node, cluster, out),
            Stage::New | Stage::Over(_) => {}
        }
    }

    fn quarantined(&mut self, now: Now, by: PeerKey, out: &mut Out) {
        let why = match &mut self.stage {
            Stage::Inside(inside) => inside.quarantined(&mut self.core, by),
            // It was let in and removed before it heard of either: this life never gets in. Who has
            // never been up has proved nothing, and may be a stranger at a seed's address.
            Stage::Searching(_) if self.core.links.has_proved(by) => Some(StopReason::Removed),
            Stage::Searching(_) => {
                self.core.stats.nonsense += 1;
                None
            }
            Stage::New | Stage::Over(_) => None,
        };
        self.stop_if(now, why, out);
    }

    fn message(
        &mut self,
        now: Now,
        from: NodeId,
        message: ClusterMessage,
        waited: Duration,
        out: &mut Out,
    ) {
        match &mut self.stage {
            Stage::Searching(searching) => {
                let entry = searching.message(&mut self.core, now, from, message, out);
                self.enter(now, entry, out);
            }
            Stage::Inside(inside) => {
                let ends = inside.message(&mut self.core, now, from, message, waited, out);
                self.stop_if(now, ends, out);
            }
            Stage::New | Stage::Over(_) => {}
        }
    }

    fn command(&mut self, now: Now, command: &Command, out: &mut Out) {
        match command {
            Command::Host { entity_types, draining } => {
                let (entity_types, draining) = (entity_types.clone(), *draining);
                let revision = self.core.hosting.revision + 1;
                self.core.hosting = Hosting { revision, draining, entity_types };
            }
            Command::Drained => {
                self.core.drained = true;
                self.hold(now, HolderInput::Release, out);
            }
            Command::Join(address) => {
                if let Stage::Searching(searching) = &mut self.stage {
                    searching.join(&mut self.core, now, address.clone(), out);
                }
                return;
            }
            Command::Recover => return self.recover(now, out),
            Command::Leave(_) | Command::Down(_) | Command::PrepareForFullShutdown => {}
        }
        match &mut self.stage {
            Stage::Inside(inside) => inside.command(&mut self.core, command, out),
            // Who is in no cluster has nothing to leave.
            Stage::Searching(_) | Stage::New => {
                let leaves =
                    matches!(command, Command::Leave(id) if *id == self.core.me.incarnation);
                if leaves || matches!(command, Command::Drained) {
                    self.stop(now, StopReason::Left, out);
                }
            }
            Stage::Over(_) => {}
        }
    }

    fn persisted(&mut self, now: Now, out: &mut Out) {
        self.core.persisted(out);
        match &mut self.stage {
            Stage::Searching(searching) => {
                let entry = searching.succeed(&mut self.core, now, out);
                self.enter(now, entry, out);
            }
            Stage::Inside(inside) if self.core.durable == self.core.ordered => inside.unsettle(),
            _ => {}
        }
    }

    fn pending(&mut self, now: Now, epoch: Arc<Epoch>) {
        let installed = self.core.installed.as_ref().map(|installed| installed.id());
        if Some(epoch.id()) > installed {
            self.core.pending = Some(Pending { epoch, until: now.mono + PENDING_FOR });
            if let Stage::Inside(inside) = &mut self.stage {
                inside.unsettle();
            }
        }
    }

    fn installed(&mut self, now: Now, epoch: Arc<Epoch>, out: &mut Out) {
        let previous = self.core.installed.replace(epoch.clone());
        self.core.pending = None;
        self.core.note_sole(&epoch, out);
        self.hold(now, HolderInput::Installed(epoch), out);
        if let Stage::Inside(inside) = &mut self.stage {
            inside.installed(&self.core, now, previous.as_deref());
        }
    }

    fn excluded(&mut self, now: Now, out: &mut Out) {
        self.hold(now, HolderInput::Excluded, out);
        let why = match &mut self.stage {
            Stage::Inside(inside) => inside.excluded(&self.core, now),
            Stage::New | Stage::Searching(_) | Stage::Over(_) => None,
        };
        self.stop_if(now, why, out);
    }

    fn enter(&mut self, now: Now, entry: Option<Entry>, out: &mut Out) {
        let Some(entry) = entry else { return };
        let (gossip, foundation) = match entry {
            Entry::Stop(why) => return self.stop(now, why, out),
            Entry::Welcome(gossip) => (gossip, None),
            Entry::Found(foundation) => (foundation.gossip.clone(), Some(foundation)),
            Entry::Succeeded(foundation, notice) => {
                return self.go_on(now, &foundation, *notice, out);
            }
        };
        let cluster = gossip.cluster();
        // Of no other foundation than the one that was decided is there a cluster.
        let voted = self.core.memory.founding.take().and_then(|votes| votes.accepted);
        let voted = voted.map(|(_, voted)| voted).filter(|f| f.gossip.cluster() == cluster);
        let before = self.core.memory.founded.take().filter(|f| f.gossip.cluster() == cluster);
        let founded = foundation.clone().or(voted).or(before);
        let known = std::mem::take(&mut self.core.memory.known);
        // With the first write: a crash before the second one would leave a node that waits for others.
        let sole = foundation.as_ref().and_then(|foundation| self.core.sole(&foundation.epoch));
        let cluster = Some(cluster);
        self.core.memory = Memory { cluster, founding: None, founded, sole, known };
        self.core.persist(out);
        out.push(Output::Belongs(gossip.cluster()));
        if let Some(foundation) = foundation.filter(|_| self.core.installed.is_none()) {
            out.push(Output::Found(foundation.epoch));
        }
        let inside = Inside::new(&mut self.core, now, Gossip::clone(&gossip));
        self.stage = Stage::Inside(Box::new(inside));
    }

    /// The only member of a cluster goes on with it; its configuration is on disk.
    fn go_on(&mut self, now: Now, foundation: &Foundation, notice: Notice, out: &mut Out) {
        let memory = &mut self.core.memory;
        // No node is left that has not heard how the cluster began.
        (memory.founding, memory.founded) = (None, None);
        memory.known.clear();
        self.core.persist(out);
        out.push(Output::Notice(notice));
        out.push(Output::Belongs(foundation.gossip.cluster()));
        out.push(Output::Found(foundation.epoch.clone()));
        let inside = Inside::new(&mut self.core, now, Gossip::clone(&foundation.gossip));
        self.stage = Stage::Inside(Box::new(inside));
    }

    fn stop_if(&mut self, now: Now, why: Option<StopReason>, out: &mut Out) {
        if let Some(why) = why {
            self.stop(now, why, out);
        }
    }

    /// Says nothing any more after this.
    fn stop(&mut self, now: Now, why: StopReason, out: &mut Out) {
        if !matches!(self.stage, Stage::Over(_)) {
            self.hold(now, HolderInput::Excluded, out);
            self.stage = Stage::Over(why);
            out.push(Output::Stop(why));
        }
    }

    fn hold(&mut self, now: Now, input: HolderInput, out: &mut Out) {
        let mut orders = Outbox::new();
        self.holder.handle(now, input, &mut orders);
        out.extend(orders.drain().map(|order| match order {
            HolderOutput::Send { to, message } => Output::SendLease { to, message },
            HolderOutput::Held { until } => Output::LeaseHeld { until },
            HolderOutput::Lapsed => Output::LeaseLapsed,
            HolderOutput::Stop => Output::LeaseLost,
        }));
    }
}

impl Core {
    /// The list of seeds.
    fn seeds(&self) -> BTreeSet<Address> {
        self.config.seeds.iter().take(SEEDS_MAX).cloned().collect()
    }

    /// How this node would be a member.
    fn member(&self) -> Member {
        Member {
            roles: self.config.roles.clone(),
            app_version: self.config.app_version.clone(),
            hosting: self.hosting.clone(),
            ..Member::joining(self.me, self.address.clone(), 0)
        }
    }

    fn send(&mut self, to: NodeId, message: ClusterMessage, out: &mut Out) {
        if to == self.me {
            self.loopback.push_back(message);
        } else {
            self.stats.sent += 1;
            out.push(Output::Send { to, message });
        }
    }

    /// Tells who has asked for a cluster, or is to know of one, how things stand here.
    fn answer(&mut self, to: NodeId, what: InitAnswer, out: &mut Out) {
        let settings = self.settings.clone();
        self.send(to, ClusterMessage::InitJoinAnswer { what, settings }, out);
    }

    fn persist(&mut self, out: &mut Out) {
        self.ordered += 1;
        out.push(Output::Persist(self.memory.clone()));
    }

    /// Writes down that this node is its cluster's only member, or removes that, as the installed
    /// configuration says. See [`Sole`](port::Sole).
    fn note_sole(&mut self, epoch: &Arc<Epoch>, out: &mut Out) {
        let sole = self.sole(epoch).filter(|_| self.memory.cluster.is_some());
        if self.memory.sole != sole {
            self.memory.sole = sole;
            self.persist(out);
        }
    }

    fn sole(&self, epoch: &Arc<Epoch>) -> Option<Sole> {
        let directory = self.directory.filter(|_| *epoch.members() == [self.me.incarnation])?;
        Some(Sole { epoch: epoch.clone(), directory })
    }

    /// Whether a configuration with other members may be proposed: not before the disk has stopped
    /// saying that this node is the only one, since a restart would go on alone beside them.
    fn is_ready_for_others(&mut self, out: &mut Out) -> bool {
        if self.memory.sole.take().is_some() {
            self.persist(out);
            self.open_after = self.ordered;
        }
        self.durable >= self.open_after
    }

    /// Remembers where other members are, for the next start.
    fn remember_members(&mut self, gossip: &Gossip, out: &mut Out) {
        if self.directory.is_none() {
            return;
        }
        let is_there = |member: &&Arc<Member>| member.node != self.me && !member.status.is_going();
        let there = || gossip.members().filter(is_there).map(|member| &member.address);
        let mut known = self.memory.known.clone();
        if !known.is_empty() || gossip.len() > 1 {
            let all: BTreeSet<&Address> = there().collect();
            known.retain(|address| all.contains(address));
        }
        for address in there() {
            if known.len() >= KNOWN_MAX {
                break;
            }
            known.insert(address.clone());
        }
        if known != self.memory.known {
            self.memory.known = known;
            self.persist(out);
        }
    }

    /// Sends once all that was ordered to be persisted so far is.
    fn send_durably(&mut self, to: NodeId, message: ClusterMessage, out: &mut Out) {
        if self.durable == self.ordered {
            self.send(to, message, out);
        } else if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back((self.ordered, to, message));
        }
    }

    fn persisted(&mut self, out: &mut Out) {
        self.durable = self.ordered.min(self.durable + 1);
        while self.waiting.front().is_some_and(|(after, ..)| *after <= self.durable) {
            if let Some((_, to, message)) = self.waiting.pop_front() {
                self.send(to, message, out);
            }
        }
    }

    fn say(&mut self, now: Now, notice: Notice, out: &mut Out) {
        self.notices.say(now.mono, notice, out);
    }

    /// `span`, give or take a fifth.
    fn jittered(&mut self, span: Duration) -> Duration {
        span.mul_f64(self.rng.random_range(0.8..1.2))
    }

    /// Names of the settings that differ, of those that must agree and of those that should.
    fn differing(&self, theirs: &Settings) -> (Vec<String>, Vec<String>) {
        (differ(&self.settings.must, &theirs.must), differ(&self.settings.should, &theirs.should))
    }
}

/// Names whose values are not the same, or that one side lacks.
fn differ(ours: &[(String, String)], theirs: &[(String, String)]) -> Vec<String> {
    let lacks = |those: &[(String, String)], pair: &(String, String)| !those.contains(pair);
    let mine = ours.iter().filter(|pair| lacks(theirs, pair));
    let foreign = theirs.iter().filter(|pair| lacks(ours, pair));
    let names: BTreeSet<&String> = mine.chain(foreign).map(|(name, _)| name).collect();
    names.into_iter().cloned().collect()
}

impl Machine for Membership {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Out) {
        if matches!(self.stage, Stage::New) {
            let searching = Searching::new(&mut self.core, now, out);
            self.stage = Stage::Searching(Box::new(searching));
        }
        self.take(now, input, out);
        while let Some(message) = self.core.loopback.pop_front() {
            self.message(now, self.core.me, message, Duration::ZERO, out);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let stage = match &self.stage {
            Stage::New => Some(Instant::default()),
            Stage::Searching(searching) => Some(searching.next_deadline()),
            Stage::Inside(inside) => {
                let pending = self.core.pending.as_ref().map(|pending| pending.until);
                Some(pending.into_iter().fold(inside.next_deadline(), Instant::min))
            }
            Stage::Over(_) => None,
        };
        [stage, self.holder.next_deadline()].into_iter().flatten().min()
    }
}
