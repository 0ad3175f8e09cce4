//! The simulated network: the fate of each message on a directed link between two nodes.
//!
//! Delay, loss and duplication are drawn per message from the link's quality. Conditions (cut,
//! clogged, broken, slowed) are counted per directed link, so that faults may overlap. This file
//! only decides; the engine schedules the arrivals.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::NodeIndex;
use super::clock::SimTime;
use super::stream::{RandomStream, nanos};

/// The guarantees of one lane on every link. Lanes are numbered by their place in
/// [`SimulationSetup::lanes`](super::SimulationSetup::lanes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRule {
    /// Whether messages arrive in the order of sending.
    pub fifo: bool,
    /// Whether messages may be lost silently. A `Reliable` lane loses none on a working link; if a
    /// cut, a crash or a full inbox loses one, the link breaks, as a TCP connection does.
    pub loss: LaneLoss,
    /// Whether a message may arrive twice.
    pub duplicates: bool,
    /// Whether a message that was sent before the link broke or before its receiver restarted may
    /// arrive afterwards, as a late datagram does. Nothing that is sent on a broken link arrives.
    pub crosses_restart: bool,
}

/// Whether a lane may lose a message silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneLoss {
    /// Losses are silent, as for datagrams.
    Lossy,
    /// A loss breaks the link, and both ends are told.
    Reliable,
}

impl LaneRule {
    /// A lane without any guarantee, the hardest one for a protocol.
    pub const WILD: Self =
        Self { fifo: false, loss: LaneLoss::Lossy, duplicates: true, crosses_restart: true };

    /// A lane like a TCP connection: in order, no silent loss, no duplicates.
    pub const STREAM: Self =
        Self { fifo: true, loss: LaneLoss::Reliable, duplicates: false, crosses_restart: false };
}

/// The quality of a directed link while no fault affects it.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkQuality {
    /// The minimum delay of a message.
    pub base: Duration,
    /// Mean of the exponential part of the delay.
    pub spread: Duration,
    /// Probability of a delay from the heavy tail.
    pub tail: f64,
    /// Scale of the tail: the delay that is added. It doubles with probability ½, again and again,
    /// up to a factor of 1,024.
    pub tail_scale: Duration,
    /// Probability that a message on a lossy lane is lost.
    pub loss: f64,
    /// Probability that a message arrives twice, if its lane allows that.
    pub duplicate: f64,
    /// Probability that a message on a lane without order is delayed by up to eight times `base`
    /// and `spread` together more.
    pub reorder: f64,
}

impl LinkQuality {
    /// A good local network: a delay of 0.2 ms plus 0.1 ms on average, without loss.
    #[must_use]
    pub fn clean() -> Self {
        Self {
            base: Duration::from_micros(200),
            spread: Duration::from_micros(100),
            tail: 0.0,
            tail_scale: Duration::ZERO,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
        }
    }
}

/// A directed link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimLink {
    /// The node that sends on the link.
    pub from: NodeIndex,
    /// The node that receives on the link.
    pub to: NodeIndex,
}

/// Why a message was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossReason {
    /// The quality of the link loses some messages of lossy lanes.
    ByChance,
    /// The link is cut at the sending or at the arrival, or holds as many messages as it may.
    Cut,
    /// The link is broken at the sending, or has broken before the arrival.
    Broken,
    /// The receiver is down, or another incarnation than the message was sent to.
    ReceiverGone,
    /// The inbox of the paused or slow receiver is full.
    InboxFull,
}

/// The fate of a message, decided when it is sent: the arrival times of its copies, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Lost(LossReason),
    Arrives(SimTime),
    Twice(SimTime, SimTime),
    /// The link is clogged: the message is held until [`Network::unclog`].
    Held,
}

/// The number of a message in flight: an index into the run's slab.
pub(super) type MessageSlot = u32;

/// Maximum delay of a message, in nanoseconds. It bounds how long, after `heal`, a lane in order
/// waits for a message that a fault had delayed.
const DELAY_MAX: u64 = 10_000_000_000;

/// Maximum number of messages that one clogged link holds. Further ones are lost as by a cut.
const HELD_MAX: usize = 100_000;

/// The conditions of one directed link.
#[derive(Clone, Debug, Default)]
struct LinkState {
    quality: u16,                // into `Network::qualities`
    cuts: u16,                   // cuts that last now
    clogs: u16,                  // clogs that last now
    broken: bool,                // until it is mended
    used: bool,                  // a message was ever sent on it, even one that was lost
    breaks: u32,                 // number of times that it broke
    told_by: SimTime,            // when both ends know of the last break
    decided: (SimTime, u64),     // the time of the last decision, and its number at that instant
    slowed: u64,                 // ns added to every delay
    held: VecDeque<MessageSlot>, // ≤ HELD_MAX
}

/// A [`LinkQuality`] with all times in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct LinkTimes {
    base: u64,
    spread: u64,
    tail_scale: u64,
    tail: f64,
    loss: f64,
    duplicate: f64,
    reorder: f64,
}

/// All directed links between the nodes of a run.
#[derive(Clone, Debug)]
pub(super) struct Network {
    nodes: usize,
    lanes: Vec<LaneRule>,
    links: Vec<LinkState>,     // nodes²
    broken: BTreeSet<SimLink>, // ≤ nodes²
    last: Vec<u64>,            // latest arrival per link and lane, for order; nodes² × lanes
    qualities: Vec<LinkTimes>,
    grain: u64,  // ns; arrivals are rounded up to multiples of it
    family: u64, // of the random decisions about messages
}

impl Network {
    /// Creates the links between `nodes` nodes, up and without faults; each directed link gets one
    /// of `qualities` at random, for the whole run until [`heal`](Self::heal).
    ///
    /// # Panics
    /// Without a lane or a quality.
    pub(super) fn new(
        nodes: usize,
        lanes: Vec<LaneRule>,
        qualities: &[LinkQuality],
        grain: Duration,
        seed: u64,
    ) -> Self {
        assert!(!qualities.is_empty(), "a network needs at least one link quality");
        assert!(!lanes.is_empty(), "a network needs at least one lane");
        let mut assign = RandomStream::split(seed, "links", 0);
        let quality = |_| LinkState {
            quality: u16::try_from(assign.index(qualities.len())).unwrap_or(0),
            ..LinkState::default()
        };
        Self {
            nodes,
            links: (0..nodes * nodes).map(quality).collect(),
            broken: BTreeSet::new(),
            last: vec![0; nodes * nodes * lanes.len()],
            lanes,
            qualities: qualities.iter().map(LinkTimes::of).collect(),
            grain: nanos(grain).max(1),
            family: RandomStream::split(seed, "network", 0).bits(),
        }
    }

    #[inline]
    pub(super) fn lane(&self, lane: usize) -> LaneRule {
        self.lanes[lane]
    }

    /// Decides the fate of a message that is sent now to another node, in this order. It is lost if
    /// the link is broken or cut; held if the link is clogged, or lost as by a cut if the link
    /// holds [`HELD_MAX`] already; lost by chance on a lossy lane; and doubled by chance if its
    /// lane allows that. Its second copy has a delay of its own and may arrive first.
    ///
    /// The link counts as used, whatever the fate. Of a held message the caller reports the slot
    /// with [`hold`](Self::hold). A cut or a break may still lose the message before it arrives.
    pub(super) fn send(&mut self, now: SimTime, link: SimLink, lane: usize) -> Fate {
        let at = self.at(link);
        let rule = self.lanes[lane];
        let state = &mut self.links[at];
        state.used = true;
        if state.broken {
            return Fate::Lost(LossReason::Broken);
        }
        if state.cuts > 0 {
            return Fate::Lost(LossReason::Cut);
        }
        if state.clogs > 0 {
            return if state.held.len() < HELD_MAX {
                Fate::Held
            } else {
                Fate::Lost(LossReason::Cut)
            };
        }
        let times = self.qualities[usize::from(state.quality)];
        let mut chance = self.decision(now, at);
        if rule.loss == LaneLoss::Lossy && chance.chance(times.loss) {
            return Fate::Lost(LossReason::ByChance);
        }
        let first = self.arrival(now, at, lane, &mut chance);
        if rule.duplicates && chance.chance(times.duplicate) {
            return Fate::Twice(first, self.arrival(now, at, lane, &mut chance));
        }
        Fate::Arrives(first)
    }

    /// The arrival time of a message from a node to itself: neither faults nor the link's quality
    /// apply, and the delay is 1 ns to one grain or 10 µs, whichever is longer, before it is
    /// rounded up to the grain. A lane in order keeps its order.
    pub(super) fn loop_back(&mut self, now: SimTime, node: NodeIndex, lane: usize) -> SimTime {
        let at = self.at(SimLink { from: node, to: node });
        let delay = 1 + self.decision(now, at).below(self.grain.max(10_000));
        self.in_order(now.as_nanos().saturating_add(delay), at, lane)
    }

    /// Holds a message on a clogged link until [`Network::unclog`] or [`Network::heal`]. Panics if
    /// the link holds [`HELD_MAX`] already, which [`send`](Self::send) rules out.
    pub(super) fn hold(&mut self, link: SimLink, slot: MessageSlot) {
        let at = self.at(link);
        assert!(self.links[at].held.len() < HELD_MAX, "`send` has checked that the link has room");
        self.links[at].held.push_back(slot);
    }

    /// The arrival time of a message that a clog held until now, with a delay drawn as for a
    /// message that is sent now, slowness of the link included. It is neither lost by chance nor
    /// doubled.
    pub(super) fn released(&mut self, now: SimTime, link: SimLink, lane: usize) -> SimTime {
        let at = self.at(link);
        let mut chance = self.decision(now, at);
        self.arrival(now, at, lane, &mut chance)
    }

    /// The random stream for the next message on a link. It depends on the link, the time and the
    /// number of messages of the link decided before at this instant, not on other links or earlier
    /// instants, so that removing a fault does not change later ones.
    fn decision(&mut self, now: SimTime, at: usize) -> RandomStream {
        let (last, count) = &mut self.links[at].decided;
        *count = if *last == now { *count + 1 } else { 0 };
        *last = now;
        RandomStream::decision(self.family, now.as_nanos(), ((at as u64) << 24) ^ *count)
    }

    /// Draws the arrival time of a message that is sent now: a delay of 1 ns to [`DELAY_MAX`]
    /// (longer ones are cut), then [`in_order`](Self::in_order), which may exceed that. Slowness of
    /// the link adds to the delay; only lanes without order are reordered.
    fn arrival(
        &mut self,
        now: SimTime,
        at: usize,
        lane: usize,
        chance: &mut RandomStream,
    ) -> SimTime {
        let state = &self.links[at];
        let times = self.qualities[usize::from(state.quality)];
        let mut delay = times.base + state.slowed;
        if times.spread > 0 {
            delay += chance.exponential(times.spread);
        }
        if chance.chance(times.tail) {
            delay += times.tail_scale << chance.bits().leading_zeros().min(10);
        }
        if !self.lanes[lane].fifo && chance.chance(times.reorder) {
            delay += chance.below(8 * (times.spread + times.base));
        }
        self.in_order(now.as_nanos().saturating_add(delay.clamp(1, DELAY_MAX)), at, lane)
    }

    /// Rounds an arrival time up to the grain. On a lane in order the result is at least the latest
    /// arrival that was decided before on this link and lane, even if that message is lost on its
    /// way; at equal times the queue keeps the order.
    fn in_order(&mut self, arrival: u64, at: usize, lane: usize) -> SimTime {
        let mut arrival = arrival.div_ceil(self.grain).saturating_mul(self.grain);
        if self.lanes[lane].fifo {
            let last = &mut self.last[at * self.lanes.len() + lane];
            arrival = arrival.max(*last);
            *last = arrival;
        }
        SimTime::from_nanos(arrival)
    }

    /// Whether a message may arrive now that was sent when the link had broken `breaks` times. An
    /// error if the link has broken since, even if it is up again (`Broken`, which comes first), or
    /// is cut now (`Cut`). Clogs do not stop it, nor does a break that `breaks` counts already.
    #[inline]
    pub(super) fn passes(&self, link: SimLink, breaks: u32) -> Result<(), LossReason> {
        let state = &self.links[self.at(link)];
        if state.breaks != breaks {
            return Err(LossReason::Broken);
        }
        if state.cuts > 0 { Err(LossReason::Cut) } else { Ok(()) }
    }

    /// The number of times that the link has broken.
    #[inline]
    pub(super) fn breaks(&self, link: SimLink) -> u32 {
        self.links[self.at(link)].breaks
    }

    /// Whether any cut of the link lasts. A broken link is not cut by that.
    pub(super) fn is_cut(&self, link: SimLink) -> bool {
        self.links[self.at(link)].cuts > 0
    }

    pub(super) fn is_broken(&self, link: SimLink) -> bool {
        self.links[self.at(link)].broken
    }

    /// All broken links, in the order of their ends.
    pub(super) fn broken(&self) -> Vec<SimLink> {
        self.broken.iter().copied().collect()
    }

    /// Whether anything was ever sent on the link, even if it was lost.
    pub(super) fn is_used(&self, link: SimLink) -> bool {
        self.links[self.at(link)].used
    }

    /// Adds a cut. The link is cut until as many were removed.
    pub(super) fn cut(&mut self, link: SimLink) {
        let at = self.at(link);
        self.links[at].cuts = self.links[at].cuts.saturating_add(1);
    }

    /// Removes one cut. Does nothing if the link is not cut.
    pub(super) fn uncut(&mut self, link: SimLink) {
        let at = self.at(link);
        self.links[at].cuts = self.links[at].cuts.saturating_sub(1);
    }

    /// Adds a clog. The link holds messages until as many were removed.
    pub(super) fn clog(&mut self, link: SimLink) {
        let at = self.at(link);
        self.links[at].clogs = self.links[at].clogs.saturating_add(1);
    }

    /// Removes one clog. If it was the last one, returns the held messages in the order of sending,
    /// for the caller to release; otherwise none. Does nothing if the link is not clogged.
    pub(super) fn unclog(&mut self, link: SimLink) -> VecDeque<MessageSlot> {
        let at = self.at(link);
        let state = &mut self.links[at];
        state.clogs = state.clogs.saturating_sub(1);
        if state.clogs == 0 { std::mem::take(&mut state.held) } else { VecDeque::new() }
    }

    /// Adds to the delay of every later message on the link. Several delays add up, to at most 2^50
    /// ns (13 days).
    pub(super) fn slow(&mut self, link: SimLink, by: Duration) {
        let at = self.at(link);
        self.links[at].slowed = self.links[at].slowed.saturating_add(nanos(by)).min(1 << 50);
    }

    /// Takes a delay back that [`slow`](Self::slow) added. Messages in flight keep theirs.
    pub(super) fn unslow(&mut self, link: SimLink, by: Duration) {
        let at = self.at(link);
        self.links[at].slowed = self.links[at].slowed.saturating_sub(nanos(by));
    }

    /// Breaks the link, so that messages in flight, and those that a clog holds, are lost when they
    /// would arrive ([`passes`](Self::passes)). Both ends will know by `told_by`; the caller tells
    /// them. Cuts and clogs stay. Returns `false` and changes nothing if the link is broken
    /// already.
    pub(super) fn break_link(&mut self, link: SimLink, told_by: SimTime) -> bool {
        let at = self.at(link);
        let state = &mut self.links[at];
        if state.broken {
            return false;
        }
        state.broken = true;
        state.breaks += 1;
        state.told_by = told_by;
        self.broken.insert(link);
        true
    }

    /// The earliest time at which a broken link may be up again: when both ends know that it broke.
    /// Of a link that is up, that of its last break; 0 if it never broke.
    pub(super) fn told_by(&self, link: SimLink) -> SimTime {
        self.links[self.at(link)].told_by
    }

    /// Repairs the link, whether it is cut or not. Returns `false` if it was not broken. The number
    /// of breaks stays, so that messages from before the break are still lost.
    pub(super) fn mend(&mut self, link: SimLink) -> bool {
        let at = self.at(link);
        self.broken.remove(&link);
        std::mem::take(&mut self.links[at].broken)
    }

    /// Ends all conditions except breaks, however often they were added, gives every link the clean
    /// quality for good, and returns the messages that clogs held, for the caller to release.
    pub(super) fn heal(&mut self) -> Vec<MessageSlot> {
        self.qualities.fill(LinkTimes::of(&LinkQuality::clean()));
        let mut held = Vec::new();
        for state in &mut self.links {
            state.cuts = 0;
            state.clogs = 0;
            state.slowed = 0;
            held.extend(state.held.drain(..));
        }
        held
    }

    /// The index of a link in `links`. Both nodes must exist, which is not checked: an unknown
    /// receiver gives the index of another link.
    #[inline]
    fn at(&self, link: SimLink) -> usize {
        link.from.get() * self.nodes + link.to.get()
    }
}

impl LinkTimes {
    /// Converts a quality; each time is at most 2^50 ns (13 days).
    fn of(quality: &LinkQuality) -> Self {
        // 2^50 ns are 13 days, so sums of delays cannot overflow.
        let bounded = |span| nanos(span).min(1 << 50);
        Self {
            base: bounded(quality.base),
            spread: bounded(quality.spread),
            tail_scale: bounded(quality.tail_scale),
            tail: quality.tail,
            loss: quality.loss,
            duplicate: quality.duplicate,
            reorder: quality.reorder,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: SimLink = SimLink { from: NodeIndex::new(0), to: NodeIndex::new(1) };
    const BACK: SimLink = SimLink { from: NodeIndex::new(1), to: NodeIndex::new(0) };

    fn network(rule: LaneRule, quality: LinkQuality) -> Network {
        Network::new(2, vec![rule], &[quality], Duration::ZERO, 1)
    }

    fn arrivals(network: &mut Network, sent: u64) -> Vec<SimTime> {
        (0..sent)
            .filter_map(|n| match network.send(SimTime::from_nanos(n * 1_000), LINK, 0) {
                Fate::Arrives(at) | Fate::Twice(at, _) => Some(at),
                Fate::Lost(_) | Fate::Held => None,
            })
            .collect()
    }

    #[test]
    fn loss_rate_is_as_configured_and_zero_on_reliable_lanes() {
        let lossy = LinkQuality { loss: 0.2, ..LinkQuality::clean() };
        let arrived = arrivals(&mut network(LaneRule::WILD, lossy.clone()), 10_000).len();
        assert!((7_800..8_200).contains(&arrived), "{arrived}");
        assert_eq!(arrivals(&mut network(LaneRule::STREAM, lossy), 10_000).len(), 10_000);
    }

    #[test]
    fn only_fifo_lanes_keep_the_order() {
        let jittery = LinkQuality {
            spread: Duration::from_millis(5),
            tail: 0.05,
            tail_scale: Duration::from_millis(1),
            ..LinkQuality::clean()
        };
        let ordered = arrivals(&mut network(LaneRule::STREAM, jittery.clone()), 1_000);
        assert!(ordered.is_sorted());
        assert!(!arrivals(&mut network(LaneRule::WILD, jittery), 1_000).is_sorted());
    }

    #[test]
    fn duplication_rate_is_as_configured() {
        let quality = LinkQuality { duplicate: 0.1, ..LinkQuality::clean() };
        let mut network = network(LaneRule::WILD, quality);
        let twice = (0..10_000)
            .filter(|_| matches!(network.send(SimTime::default(), LINK, 0), Fate::Twice(..)))
            .count();
        assert!((900..1_100).contains(&twice), "{twice}");
    }

    #[test]
    fn cut_affects_one_direction_and_cuts_add_up() {
        let mut network = network(LaneRule::WILD, LinkQuality::clean());
        network.cut(LINK);
        network.cut(LINK);
        network.uncut(LINK);
        assert_eq!(network.send(SimTime::default(), LINK, 0), Fate::Lost(LossReason::Cut));
        assert!(matches!(network.send(SimTime::default(), BACK, 0), Fate::Arrives(_)));
        network.uncut(LINK);
        assert!(matches!(network.send(SimTime::default(), LINK, 0), Fate::Arrives(_)));
    }

    #[test]
    fn broken_link_loses_messages_in_flight_and_is_repaired_once() {
        let mut network = network(LaneRule::STREAM, LinkQuality::clean());
        let before = network.breaks(LINK);
        assert!(network.break_link(LINK, SimTime::default()));
        assert!(!network.break_link(LINK, SimTime::default()));
        assert_eq!(network.passes(LINK, before), Err(LossReason::Broken));
        assert_eq!(network.send(SimTime::default(), LINK, 0), Fate::Lost(LossReason::Broken));
        assert!(network.mend(LINK));
        assert!(!network.mend(LINK));
        assert_eq!(network.passes(LINK, network.breaks(LINK)), Ok(()));
    }

    #[test]
    fn last_clog_releases_held_messages_in_order() {
        let mut network = network(LaneRule::STREAM, LinkQuality::clean());
        network.clog(LINK);
        network.clog(LINK);
        for slot in 0..3 {
            assert_eq!(network.send(SimTime::default(), LINK, 0), Fate::Held);
            network.hold(LINK, slot);
        }
        assert!(network.unclog(LINK).is_empty());
        assert_eq!(network.unclog(LINK), [0, 1, 2]);
    }

    #[test]
    fn a_grain_makes_messages_arrive_together() {
        let grain = Duration::from_millis(1);
        let mut network = Network::new(2, vec![LaneRule::WILD], &[LinkQuality::clean()], grain, 1);
        for at in arrivals(&mut network, 100) {
            assert_eq!(at.as_nanos() % 1_000_000, 0);
        }
    }
}
