//! Link to one peer: decides which connection carries its lanes, when to dial, when to retry, and
//! when to abandon messages.
//!
//! A [`Machine`] without I/O. Its inputs are events of the swarm and of the lanes' tasks; the
//! connection manager carries out its outputs.
//!
//! The smaller peer id carries (docs/protocol/transport.md#the-smaller-peer-id-carries): two nodes
//! that dial each other at the same time get two connections. Neither is closed. Both sides move
//! their lanes to the one that was dialled by the smaller peer id, and the other one becomes idle.
//! A connection that is clearly newer than the rest wins regardless of its dialler, because the
//! peer had a reason to dial again, such as a broken connection that this side has not noticed yet.
//!
//! Dial only known addresses (docs/protocol/transport.md#dial-only-known-addresses): a link dials
//! only addresses from this node's own settings or from membership, and those at which the peer has
//! answered such a dial. The addresses that a peer tells in `Hello` are never dialled, because
//! otherwise any admitted peer could have this node connect to any host and port behind its
//! firewall. A peer that is not kept is not dialled again when its connection breaks; it must dial
//! itself.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::machine::{Machine, Outbox};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::TrafficClass;
use super::config::NetLimits;

/// Maximum distance in time of two connections that are treated as crossing dials.
const CROSSING: Duration = Duration::from_secs(2);

/// How long an inbound connection may take to open its first lane before this node dials itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// Maximum pause between two attempts, whatever is set: the product of a longer one and a fraction
/// might not be a time.
const PAUSE_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Maximum number of addresses of one peer, separately for given and for found ones.
const ADDRESSES_MAX: usize = 8;

/// Number of consecutive failed dials for bulk after which bulk shares the connection of the other
/// lanes.
const BULK_ATTEMPTS: u32 = 3;

/// Number of failures that a refusal counts for at least, so that the longest pause follows. A lane
/// with as many failures counts as refused in [`PeerLink::awaits`], also if it only broke.
const REFUSED: u32 = 16;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionPurpose {
    /// Control, data and user lanes.
    Main,
    /// The bulk lane only: a control message must not wait behind bulk data in one socket
    /// (docs/protocol/transport.md#bulk-has-its-own-connection).
    Bulk,
}

/// Side that dialled a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialSide {
    /// This node, for this purpose.
    Us(ConnectionPurpose),
    /// The peer. The class of its first lane tells the purpose.
    Peer,
}

/// How a lane's substream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It broke or could not be opened: retry after a pause that grows with the lane's failures.
    Broken,
    /// The peer refused the lane: retry after the longest pause, as after all later failures until
    /// the lane was open for that long or the peer has a new incarnation.
    Refused,
}

/// Input of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkInput {
    /// A deadline may have passed.
    Tick,
    /// The link must be kept up: dial whenever it is down.
    Keep,
    /// The link need not be kept up any longer.
    Release,
    /// Configured addresses of the peer. They replace the previous ones, even with an empty list.
    /// The first eight are used. A dial under way continues.
    Addresses(Vec<Multiaddr>),
    /// An address at which the peer answered a dial that named no peer. It is tried in addition to
    /// the others. Beyond eight, the oldest is dropped.
    Found(Multiaddr),
    /// This lane has, or will have, messages to send.
    Want(TrafficClass),
    /// The peer has a new incarnation: every wanted lane is opened anew at once, and addresses at
    /// which the former incarnation answered are dropped.
    Reborn,
    /// A connection was established.
    Established {
        /// Id of the connection.
        connection: ConnectionId,
        /// Side that dialled it.
        dialler: DialSide,
    },
    /// The peer was admitted and has opened a lane on the connection.
    Admitted {
        /// Id of the connection.
        connection: ConnectionId,
        /// Class of the lane.
        class: TrafficClass,
    },
    /// A connection is closing or was closed. May come twice for one connection.
    Closed(ConnectionId),
    /// A dial for this purpose failed before its connection was established. Counts as a failure
    /// even if the link has no such dial under way.
    DialFailed(ConnectionPurpose),
    /// A lane was opened.
    Opened {
        /// Class of the lane.
        class: TrafficClass,
        /// Attempt number from [`LinkOutput::Open`].
        attempt: u64,
    },
    /// A lane's substream has ended, or could not be opened.
    Ended {
        /// Class of the lane.
        class: TrafficClass,
        /// Attempt number from [`LinkOutput::Open`].
        attempt: u64,
        /// How the substream ended.
        end: End,
    },
}

/// Output of a link, carried out by the connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkOutput {
    /// Dial this address, for this purpose.
    Dial {
        /// Purpose of the connection.
        purpose: ConnectionPurpose,
        /// A single address: with several, the first that connects would win even if another peer
        /// answers there.
        address: Multiaddr,
    },
    /// Open a lane on this connection, and end the substream that carried it before.
    Open {
        /// Class of the lane.
        class: TrafficClass,
        /// Number of this attempt, repeated in the inputs about it. Only the highest one of a lane
        /// counts.
        attempt: u64,
        /// Connection on which to open it.
        connection: ConnectionId,
    },
    /// The lane has had no connection, or the peer has refused it, for `link_down_max`: count its
    /// unacknowledged messages as lost (docs/protocol/transport.md#giving-up-is-counted). If the
    /// peer is not kept, the lane is unused from now on, until the next [`LinkInput::Want`].
    GiveUp(TrafficClass),
}

#[derive(Clone, Copy, Debug)]
struct ConnectionInfo {
    dialler: DialSide,
    /// `None` until the peer opens its first lane. Known at once if this node dialled.
    purpose: Option<ConnectionPurpose>,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneState {
    /// No messages to send.
    Unused,
    /// Opened as soon as there is a connection, but not before this time.
    Waiting(Instant),
    /// Open, or being opened.
    On { connection: ConnectionId, attempt: u64 },
}

/// Back-off state: the failures so far, and the earliest time of the next attempt.
#[derive(Clone, Copy, Debug, Default)]
struct BackOffState {
    failures: u32,
    until: Option<Instant>,
}

/// State of the dials for one purpose.
#[derive(Clone, Debug, Default)]
struct LinkDialState {
    /// Whether a dial was ordered that has neither led to a connection nor failed.
    under_way: bool,
    /// Established connections also count as failures, until a lane opens.
    back_off: BackOffState,
    address: Option<Multiaddr>, // of the last dial
}

/// State of the link to one peer. See the [module](self) for its rules.
#[derive(Debug)]
pub struct PeerLink {
    me: PeerId,
    peer: PeerId,
    back_off: (Duration, Duration),
    link_down_max: Duration,
    kept: bool,
    known_addresses: Vec<Multiaddr>, // ≤ ADDRESSES_MAX
    found: Vec<Multiaddr>,           // ≤ ADDRESSES_MAX, the newest first
    addresses: Vec<Multiaddr>,       // `known_addresses` and `found` without duplicates
    next_address: usize,
    good: Option<Multiaddr>, // the last at which a lane was opened
    connections: BTreeMap<ConnectionId, ConnectionInfo>, // ≤ limits.connections_per_peer
    main: LinkDialState,
    bulk: LinkDialState,
    lanes: [LaneState; 4],
    lane_back_off: [BackOffState; 4],
    opened_at: [Option<Instant>; 4],
    /// Time of the first refusal of each lane since it last opened, was given up or the peer
    /// restarted. Giving up the lane of a kept peer because of refusals sets it to that moment.
    refused_since: [Option<Instant>; 4],
    /// Connection on which each lane was last ordered to open, and the first of its consecutive
    /// orders for that connection. Kept when the lane ends, the connection closes or the peer
    /// restarts.
    placed: [Option<(ConnectionId, Instant)>; 4],
    /// Number of the last attempt of any lane.
    attempt: u64,
    /// When the link was first without a carrier since a lane last opened on a main connection, or
    /// since no lane was wanted. A kept link starts it anew whenever its lanes are given up.
    down_since: Option<Instant>,
    rng: SmallRng,
}

impl PeerLink {
    /// Creates a link that is neither kept nor used.
    #[must_use]
    pub fn new(me: PeerId, peer: PeerId, limits: &NetLimits, seed: u64) -> Self {
        Self {
            me,
            peer,
            back_off: limits.back_off,
            link_down_max: limits.link_down_max,
            kept: false,
            known_addresses: Vec::new(),
            found: Vec::new(),
            addresses: Vec::new(),
            next_address: 0,
            good: None,
            connections: BTreeMap::new(),
            main: LinkDialState::default(),
            bulk: LinkDialState::default(),
            lanes: [LaneState::Unused; 4],
            lane_back_off: [BackOffState::default(); 4],
            opened_at: [None; 4],
            refused_since: [None; 4],
            placed: [None; 4],
            attempt: 0,
            down_since: None,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// Whether there is no reason to remember this peer: it is neither kept, connected nor being
    /// dialled. Lanes with messages are no reason.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.kept && self.connections.is_empty() && !self.main.under_way && !self.bulk.under_way
    }

    /// Whether the link is kept up.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        self.kept
    }

    /// The configured addresses, followed by those at which the peer answered.
    #[must_use]
    pub fn given(&self) -> Vec<Multiaddr> {
        self.known_addresses.iter().chain(&self.found).cloned().collect()
    }

    /// Whether queued messages of a lane may still be sent soon: the lane is open or being opened;
    /// or the peer has not refused it since it was last open, and there is a connection or the
    /// first dial since the link was up is still to come.
    ///
    /// A lane whose substream has just broken counts as open until the link gets the input.
    #[must_use]
    pub fn awaits(&self, class: TrafficClass) -> bool {
        match self.lanes[class as usize] {
            LaneState::Unused => false,
            LaneState::On { .. } => true,
            LaneState::Waiting(_) if self.refused_since[class as usize].is_some() => false,
            // Bulk shares the carrier if its own dials fail.
            LaneState::Waiting(_) if self.carrier().is_some() => true,
            LaneState::Waiting(_)
                if class == TrafficClass::Bulk && self.bulk_carrier().is_some() =>
            {
                true
            }
            LaneState::Waiting(_) => {
                self.kept && !self.addresses.is_empty() && self.main.back_off.failures == 0
            }
        }
    }

    /// Time since which the peer can have read from a lane: since its current substream was opened,
    /// otherwise since the lane was first ordered to open on the connection that should carry it,
    /// also while it waits for its next attempt there. `None` if neither has happened.
    #[must_use]
    pub fn carried_since(&self, class: TrafficClass) -> Option<Instant> {
        let target = if class == TrafficClass::Bulk { self.bulk_carrier() } else { self.carrier() };
        let placed = self.placed[class as usize].filter(|(place, _)| Some(*place) == target);
        self.opened_at[class as usize].or(placed.map(|(_, since)| since))
    }

    /// Number of established connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Whether this connection is one of the link's.
    #[must_use]
    pub fn knows(&self, connection: ConnectionId) -> bool {
        self.connections.contains_key(&connection)
    }

    /// Returns the connection that carries control, data and user lanes: the youngest one, except
    /// that of two established less than two seconds apart the one that the smaller peer id dialled
    /// wins. With more than two, the winner so far is compared with the next younger one. `None` if
    /// there is none. Connections for bulk do not count, and those that the peer dialled count only
    /// once it has opened another lane than bulk on them.
    #[must_use]
    pub fn carrier(&self) -> Option<ConnectionId> {
        let mut usable: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, c)| c.purpose == Some(ConnectionPurpose::Main))
            .collect();
        usable.sort_by_key(|(id, connection)| (connection.since, **id));
        let best = usable.into_iter().reduce(|old, new| {
            let crossed = new.1.since - old.1.since < CROSSING;
            let keeps = crossed && self.is_preferred(old.1) && !self.is_preferred(new.1);
            if keeps { old } else { new }
        });
        best.map(|(id, _)| *id)
    }

    /// Whether the smaller of the two peer ids dialled it.
    fn is_preferred(&self, connection: &ConnectionInfo) -> bool {
        matches!(connection.dialler, DialSide::Us(_)) == (self.me < self.peer)
    }

    /// Returns the connection that carries the bulk lane: the latest that this node has dialled for
    /// bulk, never one that the peer has dialled for its own. Without one, the carrier of the other
    /// lanes after [`BULK_ATTEMPTS`] failures in a row (connections on which no lane opened count)
    /// or if no address is known, otherwise `None`.
    fn bulk_carrier(&self) -> Option<ConnectionId> {
        let ours = |c: &ConnectionInfo| c.dialler == DialSide::Us(ConnectionPurpose::Bulk);
        let own = self.connections.iter().filter(|(_, c)| ours(c)).map(|(id, _)| *id).max();
        let shares = self.bulk.back_off.failures >= BULK_ATTEMPTS || self.addresses.is_empty();
        own.or_else(|| self.carrier().filter(|_| shares))
    }

    /// Draws the pause after that many earlier failures: the first pause doubled as often (at most
    /// 16 times), at most the longest one and [`PAUSE_MAX`], times a random factor of 0.5 to 1.
    fn pause(&mut self, failures: u32) -> Duration {
        let (first, longest) = self.back_off;
        let full = first.saturating_mul(1 << failures.min(16)).min(longest).min(PAUSE_MAX);
        full.mul_f64(self.rng.random_range(0.5..=1.0))
    }

    /// Returns the back-off state after one more failure, now.
    fn failed(&mut self, now: Instant, mut back_off: BackOffState) -> BackOffState {
        let pause = self.pause(back_off.failures);
        back_off.failures = back_off.failures.saturating_add(1);
        back_off.until = Some(now + pause);
        back_off
    }

    /// Ends the dial for this purpose, if one is under way, and counts a failure in any case.
    fn dial_failed(&mut self, now: Instant, purpose: ConnectionPurpose) {
        let back_off = self.dial(purpose).back_off;
        let back_off = self.failed(now, back_off);
        let dial = self.dial(purpose);
        (dial.under_way, dial.back_off) = (false, back_off);
    }

    /// Returns the state of the dials for this purpose. Dials nothing.
    const fn dial(&mut self, purpose: ConnectionPurpose) -> &mut LinkDialState {
        match purpose {
            ConnectionPurpose::Main => &mut self.main,
            ConnectionPurpose::Bulk => &mut self.bulk,
        }
    }

    /// Adds a connection, or replaces the entry of a known one. One that the peer dialled has no
    /// purpose yet and carries no lane; one that this node dialled ends the dial for its purpose,
    /// and counts as a failed one until a lane opens, so that the pause before the next one starts.
    fn established(&mut self, now: Instant, connection: ConnectionId, dialler: DialSide) {
        let purpose = if let DialSide::Us(purpose) = dialler {
            // Counts as a failure until a lane opens on it, so that a peer which closes connections
            // at once is not dialled again without a pause.
            self.dial_failed(now, purpose);
            Some(purpose)
        } else {
            None
        };
        self.connections.insert(connection, ConnectionInfo { dialler, purpose, since: now });
    }

    /// Sets the purpose of a connection that the peer dialled, by the class of a lane that the peer
    /// has opened on it. A main connection stays that; one for bulk becomes a main one with any
    /// other class. Has no effect on unknown connections, and on those that this node dialled.
    fn admitted(&mut self, connection: ConnectionId, class: TrafficClass) {
        let purpose = if class == TrafficClass::Bulk {
            ConnectionPurpose::Bulk
        } else {
            ConnectionPurpose::Main
        };
        if let Some(connection) = self.connections.get_mut(&connection)
            && connection.purpose != Some(ConnectionPurpose::Main)
            && connection.dialler == DialSide::Peer
        {
            connection.purpose = Some(purpose);
        }
    }

    /// Whether this attempt is the lane's current one, and its substream has not ended.
    #[must_use]
    pub fn is_current_attempt(&self, class: TrafficClass, attempt: u64) -> bool {
        matches!(self.lanes[class as usize], LaneState::On { attempt: a, .. } if a == attempt)
    }

    /// Marks a lane as opened, unless the attempt is not the current one. The time of refusals
    /// ends, and dials for the purpose of its connection start without a pause; on a main
    /// connection, the time without a carrier ends as well. The address of a connection that this
    /// node dialled is tried first later on. The back-off of the lane itself stays
    /// ([`substream_over`](Self::substream_over)).
    fn opened(&mut self, now: Instant, class: TrafficClass, attempt: u64) {
        let LaneState::On { connection, .. } = self.lanes[class as usize] else { return };
        if !self.is_current_attempt(class, attempt) {
            return;
        }
        self.opened_at[class as usize] = Some(now);
        self.refused_since[class as usize] = None;
        let dialler = self.connections.get(&connection).map(|c| c.dialler);
        // By connection and not by class: bulk that shares the carrier shows nothing about the
        // dials for bulk, and bulk on its own connection shows nothing about the carrier.
        let purpose = match dialler {
            Some(DialSide::Us(purpose)) => purpose,
            Some(DialSide::Peer) | None => ConnectionPurpose::Main,
        };
        self.dial(purpose).back_off = BackOffState::default();
        if purpose == ConnectionPurpose::Main {
            self.down_since = None;
        }
        if matches!(dialler, Some(DialSide::Us(_))) {
            self.good = self.dial(purpose).address.clone();
        }
    }

    /// Makes a lane wait for its next attempt, with a pause that grows with its failures; the
    /// longest after a refusal. A substream that was open for at least the longest pause clears
    /// earlier failures first. A refusal may give the lane up ([`refused`](Self::refused)). Has no
    /// effect if the attempt is not the current one.
    fn ended(
        &mut self,
        now: Instant,
        (class, attempt): (TrafficClass, u64),
        end: End,
        out: &mut Outbox<LinkOutput>,
    ) {
        let index = class as usize;
        if !self.is_current_attempt(class, attempt) {
            return; // of an earlier attempt
        }
        self.substream_over(now, index);
        let mut back_off = self.lane_back_off[index];
        if end == End::Refused {
            back_off.failures = back_off.failures.max(REFUSED);
        }
        back_off = self.failed(now, back_off);
        self.lane_back_off[index] = back_off;
        self.lanes[index] = LaneState::Waiting(back_off.until.unwrap_or(now));
        if end == End::Refused {
            self.refused(now, class, out);
        }
    }

    /// Gives up a lane that the peer has refused for `link_down_max` (0: at the first refusal);
    /// checked at each refusal only. Without this rule the lane would hold its messages as long as
    /// the connection lives. The lane of a kept peer goes on waiting, and is given up again after
    /// the same time; that of another peer is unused then, and its next use may be refused for the
    /// full time.
    fn refused(&mut self, now: Instant, class: TrafficClass, out: &mut Outbox<LinkOutput>) {
        let index = class as usize;
        let since = *self.refused_since[index].get_or_insert(now);
        if now - since >= self.link_down_max {
            self.refused_since[index] = self.kept.then_some(now);
            out.push(LinkOutput::GiveUp(class));
            if !self.kept {
                self.lanes[index] = LaneState::Unused;
            }
        }
    }

    /// Ends the current substream of a lane. If it was open for at least the longest pause, the
    /// back-off starts over; if it was never opened, nothing changes. Leaves the state of the lane
    /// to the caller.
    fn substream_over(&mut self, now: Instant, index: usize) {
        if self.opened_at[index].take().is_some_and(|at| now - at >= self.back_off.1) {
            self.lane_back_off[index] = BackOffState::default();
        }
    }

    /// Removes a connection. Lanes that are open or being opened on it wait for another one,
    /// without a pause and without a failure. Has no effect if the connection is unknown.
    fn closed(&mut self, now: Instant, connection: ConnectionId) {
        self.connections.remove(&connection);
        for index in 0..self.lanes.len() {
            if matches!(self.lanes[index], LaneState::On { connection: c, .. } if c == connection) {
                self.lanes[index] = LaneState::Waiting(now);
                self.substream_over(now, index);
            }
        }
    }

    /// Makes every wanted lane wait without a pause, also an open one, and forgets its failures and
    /// refusals. Drops `good` and the addresses at which the peer answered; the newest of these
    /// stays if this node dialled a present connection. Connections, pauses of dials and
    /// `down_since` stay.
    fn peer_restarted(&mut self, now: Instant) {
        for lane in &mut self.lanes {
            if *lane != LaneState::Unused {
                *lane = LaneState::Waiting(now);
            }
        }
        self.lane_back_off = [BackOffState::default(); 4];
        self.opened_at = [None; 4];
        self.refused_since = [None; 4];
        // If this node dialled, the newest found address is that of the new incarnation; all others
        // are outdated.
        let ours = |connection: &ConnectionInfo| matches!(connection.dialler, DialSide::Us(_));
        self.found.truncate(usize::from(self.connections.values().any(ours)));
        (self.good, self.next_address) = (None, 0);
        self.set_addresses();
    }

    /// Computes `addresses` from `known_addresses` and `found`, after cutting both to their first
    /// [`ADDRESSES_MAX`]. Changes neither `good` nor `next_address`.
    fn set_addresses(&mut self) {
        self.known_addresses.truncate(ADDRESSES_MAX);
        self.found.truncate(ADDRESSES_MAX);
        self.addresses.clear();
        for address in self.known_addresses.iter().chain(&self.found) {
            if !self.addresses.contains(address) {
                self.addresses.push(address.clone());
            }
        }
    }

    /// Whether the lane is open, being opened or waiting.
    fn wants(&self, class: TrafficClass) -> bool {
        self.lanes[class as usize] != LaneState::Unused
    }

    /// Opens and moves lanes to the connections that should carry them, then dials if one is
    /// missing, and gives up lanes if the link was down for too long. A lane without such a
    /// connection stays as it is; bulk that shares the carrier still has this node dial for bulk.
    fn settle(&mut self, now: Instant, out: &mut Outbox<LinkOutput>) {
        let carrier = self.carrier();
        let bulk_carrier = self.bulk_carrier();
        for class in TrafficClass::ALL {
            let target = if class == TrafficClass::Bulk { bulk_carrier } else { carrier };
            if let Some(target) = target {
                self.settle_lane(now, class, target, out);
            }
        }
        self.settle_without_carrier(now, carrier, out);
        if self.lacks_bulk(carrier) {
            self.want_connection(now, ConnectionPurpose::Bulk, out);
        }
    }

    /// Handles a missing carrier: dials if the peer is kept, and gives up all waiting lanes once
    /// the link was down for `link_down_max`. For a kept peer that repeats after the same time; the
    /// lanes of another peer are unused then. Does nothing while there is a carrier, but does not
    /// count the link as up either. Forgets the time without a carrier while no lane is wanted.
    fn settle_without_carrier(
        &mut self,
        now: Instant,
        carrier: Option<ConnectionId>,
        out: &mut Outbox<LinkOutput>,
    ) {
        if !self.is_wanted() {
            self.down_since = None; // no lane waits; the next one may wait for the full time
        }
        if !self.is_down(carrier) {
            return; // a flapping link counts as down until a lane opens
        }
        if self.kept {
            self.want_connection(now, ConnectionPurpose::Main, out);
        }
        let since = *self.down_since.get_or_insert(now);
        if now - since >= self.link_down_max {
            self.down_since = self.kept.then_some(now);
            for class in TrafficClass::ALL {
                // A lane that is not waiting has a connection, such as bulk with its own.
                if matches!(self.lanes[class as usize], LaneState::Waiting(_)) {
                    self.refused_since[class as usize] = None; // the next lane was not refused
                    out.push(LinkOutput::GiveUp(class));
                    if !self.kept {
                        self.lanes[class as usize] = LaneState::Unused;
                    }
                }
            }
        }
    }

    /// Whether the bulk lane is wanted and this node has no connection that it dialled for bulk;
    /// also while one is being dialled, or bulk shares the carrier. `false` while the other lanes
    /// have no connection, which comes first.
    fn lacks_bulk(&self, carrier: Option<ConnectionId>) -> bool {
        let ours = |c: &ConnectionInfo| c.dialler == DialSide::Us(ConnectionPurpose::Bulk);
        let has_own = self.connections.values().any(ours);
        self.wants(TrafficClass::Bulk) && carrier.is_some() && !has_own
    }

    /// Whether the link is kept or has a lane that is open, being opened or waiting.
    fn is_wanted(&self) -> bool {
        self.kept || TrafficClass::ALL.into_iter().any(|class| self.wants(class))
    }

    /// Whether the link needs a carrier, because it is kept or has a wanted lane, and has none.
    fn is_down(&self, carrier: Option<ConnectionId>) -> bool {
        self.is_wanted() && carrier.is_none()
    }

    /// Opens a lane on the connection `target` if its pause is over, or moves it there without a
    /// pause if it is on another one. Each order is a new attempt, and ends the former substream
    /// without a failure. Does nothing if the lane is unused, still pauses, or is there already.
    fn settle_lane(
        &mut self,
        now: Instant,
        class: TrafficClass,
        target: ConnectionId,
        out: &mut Outbox<LinkOutput>,
    ) {
        let due = match self.lanes[class as usize] {
            LaneState::Unused => false,
            LaneState::Waiting(at) => now >= at,
            LaneState::On { connection, .. } => connection != target,
        };
        if due {
            self.substream_over(now, class as usize);
            self.attempt += 1;
            let attempt = self.attempt;
            self.lanes[class as usize] = LaneState::On { connection: target, attempt };
            let placed = &mut self.placed[class as usize];
            *placed = placed.filter(|(place, _)| *place == target).or(Some((target, now)));
            out.push(LinkOutput::Open { class, attempt, connection: target });
        }
    }

    /// Dials for this purpose, unless a dial is under way, none may begin yet, or no address is
    /// known. As long as no dial for it has failed (nor connected without a lane) since a lane
    /// opened, dials `good`, if that is still in `addresses`; otherwise one address after the other
    /// in turn, which both purposes share.
    fn want_connection(
        &mut self,
        now: Instant,
        purpose: ConnectionPurpose,
        out: &mut Outbox<LinkOutput>,
    ) {
        let waits = self.dial_at(now, purpose).is_none_or(|at| now < at);
        if waits {
            return;
        }
        let first = self.dial(purpose).back_off.failures == 0;
        let good = self.good.as_ref().filter(|good| first && self.addresses.contains(good));
        let address = good.cloned().unwrap_or_else(|| {
            let next = self.addresses[self.next_address % self.addresses.len()].clone();
            self.next_address = self.next_address.wrapping_add(1);
            next
        });
        let dial = self.dial(purpose);
        (dial.under_way, dial.address) = (true, Some(address.clone()));
        out.push(LinkOutput::Dial { purpose, address });
    }

    /// When a dial for this purpose may begin, also a time in the past: after the pause of the last
    /// one and, for the main purpose, after the time that the newest inbound connection without a
    /// lane has to open one ([`PATIENCE`]). `now` if neither applies; `None` if a dial for this
    /// purpose is under way or there is no address.
    fn dial_at(&self, now: Instant, purpose: ConnectionPurpose) -> Option<Instant> {
        let dial = if purpose == ConnectionPurpose::Main { &self.main } else { &self.bulk };
        if dial.under_way || self.addresses.is_empty() {
            return None;
        }
        let unnamed = self.connections.values().filter(|c| c.purpose.is_none());
        let patient = unnamed.map(|c| c.since + PATIENCE).max();
        let after = dial.back_off.until.max(patient.filter(|_| purpose == ConnectionPurpose::Main));
        Some(after.unwrap_or(now))
    }
}

impl Machine for PeerLink {
    type Input = LinkInput;
    type Output = LinkOutput;

    /// Applies an input, then outputs what is due after it: lanes to open, dials, and lanes to give
    /// up. Only `now.mono` counts.
    ///
    /// [`LinkInput::Keep`] also makes the control lane wanted; [`LinkInput::Release`] leaves lanes,
    /// connections and a dial under way as they are. [`LinkInput::Want`] has no effect on a lane
    /// that is already wanted; an unused one waits without a pause, but keeps its failures.
    fn handle(&mut self, now: Now, input: LinkInput, out: &mut Outbox<LinkOutput>) {
        let now = now.mono;
        match input {
            LinkInput::Tick => {}
            LinkInput::Keep => {
                self.kept = true;
                if !self.wants(TrafficClass::Control) {
                    self.lanes[TrafficClass::Control as usize] = LaneState::Waiting(now);
                }
            }
            LinkInput::Release => self.kept = false,
            LinkInput::Addresses(addresses) => {
                self.known_addresses = addresses;
                self.set_addresses();
            }
            LinkInput::Found(address) => {
                self.found.retain(|known| *known != address);
                self.found.insert(0, address);
                self.set_addresses();
            }
            LinkInput::Want(class) if self.wants(class) => {}
            LinkInput::Want(class) => self.lanes[class as usize] = LaneState::Waiting(now),
            LinkInput::Reborn => self.peer_restarted(now),
            LinkInput::Established { connection, dialler } => {
                self.established(now, connection, dialler);
            }
            LinkInput::Admitted { connection, class } => self.admitted(connection, class),
            LinkInput::Closed(connection) => self.closed(now, connection),
            LinkInput::DialFailed(purpose) => self.dial_failed(now, purpose),
            LinkInput::Opened { class, attempt } => self.opened(now, class, attempt),
            LinkInput::Ended { class, attempt, end } => self.ended(now, (class, attempt), end, out),
        }
        self.settle(now, out);
    }

    /// The earliest of: the end of a pause of a lane that has a connection, the next dial (main
    /// only if kept and without a carrier, bulk while it lacks a connection), and the giving up of
    /// lanes that wait for a carrier. It may have passed. `None` if nothing depends on time.
    fn next_deadline(&self) -> Option<Instant> {
        let far = Instant::from_nanos(u64::MAX);
        let carrier = self.carrier();
        let bulk_carrier = self.bulk_carrier();
        let lanes = TrafficClass::ALL.into_iter().filter_map(|class| {
            let has_target =
                if class == TrafficClass::Bulk { bulk_carrier } else { carrier }.is_some();
            match self.lanes[class as usize] {
                LaneState::Waiting(at) if has_target => Some(at),
                _ => None,
            }
        });
        let down = self.is_down(carrier);
        let redials = down && self.kept;
        let redial = self.dial_at(Instant::default(), ConnectionPurpose::Main).filter(|_| redials);
        let give_up = self.down_since.filter(|_| down).map(|since| since + self.link_down_max);
        let lacks_bulk = self.lacks_bulk(carrier);
        let bulk = self.dial_at(Instant::default(), ConnectionPurpose::Bulk).filter(|_| lacks_bulk);
        lanes.chain(redial).chain(give_up).chain(bulk).min().filter(|at| *at < far)
    }
}

#[cfg(test)]
mod tests;
