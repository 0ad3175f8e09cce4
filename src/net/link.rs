//! The link to one peer: which connection carries its lanes, when to dial, when to try again, and
//! when to give up.
//!
//! A [`Machine`]: knows no socket. What the swarm and the lanes' tasks report are its inputs, and
//! the hub carries out what it orders. (spec/transport.md, "Connections")
//!
//! Two nodes that dial each other at the same time get two connections. Neither is closed: both
//! sides move their lanes to the one that the smaller peer id has dialled, and the other one falls
//! idle. A connection that is clearly newer than the rest wins whoever dialled it: its peer has a
//! reason to dial again, such as a connection that died where we can't see it yet.

use std::collections::BTreeMap;
use std::time::Duration;

use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::machine::{Machine, Outbox};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Class;
use super::config::Limits;

/// Connections that come closer to each other than this are taken for crossing dials.
const CROSSING: Duration = Duration::from_secs(2);

/// How long an inbound connection may take to say what it is for before we dial ourselves.
const PATIENCE: Duration = Duration::from_secs(1);

/// Addresses of one peer that are kept, of each kind.
const ADDRESSES_MAX: usize = 8;

/// Dials for bulk that may fail in a row before bulk shares the connection of the other lanes.
const BULK_ATTEMPTS: u32 = 3;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Control, data, user.
    Main,
    /// Bulk, and nothing else.
    Bulk,
}

/// Who dialled a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialler {
    /// This node, for this purpose.
    Us(Purpose),
    /// The peer; its first lane tells the purpose.
    Peer,
}

/// How a lane's substream came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It broke, or was never opened: try again soon.
    Broken,
    /// The peer does not want it: try again late.
    Refused,
}

/// A fact for a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A deadline may have passed.
    Tick,
    /// The peer is to be reached: dial, and dial again.
    Keep,
    /// The peer need not be reached any more.
    Release,
    /// Where this node was told, or has found, that it may be dialled.
    Addresses(Vec<Multiaddr>),
    /// Where the peer itself says that it may be dialled; tried after the others.
    Told(Vec<Multiaddr>),
    /// This lane has, or will have, something to say.
    Want(Class),
    /// The peer is another incarnation now: every lane begins anew.
    Reborn,
    /// A connection is there.
    Established {
        /// Its name.
        connection: ConnectionId,
        /// Who dialled it.
        dialler: Dialler,
    },
    /// The peer has opened a lane on it, and was admitted.
    Admitted {
        /// The connection.
        connection: ConnectionId,
        /// Of what the lane is.
        class: Class,
    },
    /// A connection is gone.
    Closed(ConnectionId),
    /// A dial failed.
    DialFailed(Purpose),
    /// A lane is open.
    Opened {
        /// Which.
        class: Class,
        /// As ordered.
        attempt: u64,
    },
    /// A lane's substream is over, or could not be opened.
    Ended {
        /// Which.
        class: Class,
        /// As ordered.
        attempt: u64,
        /// Why.
        end: End,
    },
}

/// An order of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Dial this address.
    Dial {
        /// For what.
        purpose: Purpose,
        /// One address: of several the first that connects would win, the wrong peer too.
        address: Multiaddr,
    },
    /// Open a lane, and end the substream that carried it before.
    Open {
        /// Which.
        class: Class,
        /// To be named in the answer; the highest is the one that stands.
        attempt: u64,
        /// Where.
        connection: ConnectionId,
    },
    /// The link has been down for too long: count what is unacknowledged as lost. If the peer is
    /// not kept, its lanes are unused from now on: [`Input::Want`] wakes them.
    GiveUp,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    dialler: Dialler,
    /// Known at once if we dialled, else from the peer's first lane on.
    purpose: Option<Purpose>,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Nobody wants it.
    Unused,
    /// To be opened as soon as there is a connection, not before this time.
    Waiting(Instant),
    /// Ordered, or open.
    On { connection: ConnectionId, attempt: u64 },
}

/// When to try again.
#[derive(Clone, Copy, Debug, Default)]
struct BackOff {
    failures: u32,
    until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Dial {
    under_way: bool,
    back_off: BackOff,
}

/// See the module's page.
#[derive(Debug)]
pub struct Link {
    me: PeerId,
    peer: PeerId,
    back_off: (Duration, Duration),
    link_down_max: Duration,
    kept: bool,
    given: Vec<Multiaddr>,     // ≤ ADDRESSES_MAX
    told: Vec<Multiaddr>,      // ≤ ADDRESSES_MAX
    addresses: Vec<Multiaddr>, // both, each once
    next_address: usize,
    connections: BTreeMap<ConnectionId, Connection>, // ≤ limits.connections_per_peer, by the swarm
    main: Dial,
    bulk: Dial,
    lanes: [Lane; 4],
    lane_back_off: [BackOff; 4],
    attempt: u64,
    down_since: Option<Instant>,
    rng: SmallRng,
}

impl Link {
    /// A link that is not wanted yet.
    #[must_use]
    pub fn new(me: PeerId, peer: PeerId, limits: &Limits, seed: u64) -> Self {
        Self {
            me,
            peer,
            back_off: limits.back_off,
            link_down_max: limits.link_down_max,
            kept: false,
            given: Vec::new(),
            told: Vec::new(),
            addresses: Vec::new(),
            next_address: 0,
            connections: BTreeMap::new(),
            main: Dial::default(),
            bulk: Dial::default(),
            lanes: [Lane::Unused; 4],
            lane_back_off: [BackOff::default(); 4],
            attempt: 0,
            down_since: None,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// Whether nothing speaks for remembering this peer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.kept && self.connections.is_empty() && !self.main.under_way && !self.bulk.under_way
    }

    /// Whether the peer is to be reached.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        self.kept
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Whether this connection is among those it has been told of.
    #[must_use]
    pub fn knows(&self, connection: ConnectionId) -> bool {
        self.connections.contains_key(&connection)
    }

    /// The connection that carries control, data and user lanes.
    #[must_use]
    pub fn carrier(&self) -> Option<ConnectionId> {
        let mut usable: Vec<_> =
            self.connections.iter().filter(|(_, c)| c.purpose == Some(Purpose::Main)).collect();
        usable.sort_by_key(|(id, connection)| (connection.since, **id));
        let best = usable.into_iter().reduce(|old, new| {
            let crossed = new.1.since - old.1.since < CROSSING;
            let keeps = crossed && self.is_preferred(old.1) && !self.is_preferred(new.1);
            if keeps { old } else { new }
        });
        best.map(|(id, _)| *id)
    }

    /// Whether the smaller of the two peer ids dialled it.
    fn is_preferred(&self, connection: &Connection) -> bool {
        matches!(connection.dialler, Dialler::Us(_)) == (self.me < self.peer)
    }

    fn bulk_carrier(&self) -> Option<ConnectionId> {
        let ours = |c: &Connection| c.dialler == Dialler::Us(Purpose::Bulk);
        let own = self.connections.iter().filter(|(_, c)| ours(c)).map(|(id, _)| *id).max();
        let shares = self.bulk.back_off.failures >= BULK_ATTEMPTS || self.addresses.is_empty();
        own.or_else(|| self.carrier().filter(|_| shares))
    }

    fn pause(&mut self, failures: u32) -> Duration {
        let (first, longest) = self.back_off;
        let full = first.saturating_mul(1 << failures.min(16)).min(longest);
        full.mul_f64(self.rng.random_range(0.5..=1.0))
    }

    fn failed(&mut self, now: Instant, mut back_off: BackOff) -> BackOff {
        let pause = self.pause(back_off.failures);
        back_off.failures = back_off.failures.saturating_add(1);
        back_off.until = Some(now + pause);
        back_off
    }

    fn dial_failed(&mut self, now: Instant, purpose: Purpose) {
        let back_off = self.dial(purpose).back_off;
        let back_off = self.failed(now, back_off);
        *self.dial(purpose) = Dial { under_way: false, back_off };
    }

    const fn dial(&mut self, purpose: Purpose) -> &mut Dial {
        match purpose {
            Purpose::Main => &mut self.main,
            Purpose::Bulk => &mut self.bulk,
        }
    }

    fn established(&mut self, now: Instant, connection: ConnectionId, dialler: Dialler) {
        let purpose = if let Dialler::Us(purpose) = dialler {
            self.dial(purpose).under_way = false;
            Some(purpose)
        } else {
            None
        };
        self.connections.insert(connection, Connection { dialler, purpose, since: now });
    }

    fn admitted(&mut self, connection: ConnectionId, class: Class) {
        let purpose = if class == Class::Bulk { Purpose::Bulk } else { Purpose::Main };
        if let Some(connection) = self.connections.get_mut(&connection)
            && connection.purpose != Some(Purpose::Main)
            && connection.dialler == Dialler::Peer
        {
            connection.purpose = Some(purpose);
        }
    }

    fn opened(&mut self, class: Class, attempt: u64) {
        if matches!(self.lanes[class as usize], Lane::On { attempt: g, .. } if g == attempt) {
            self.lane_back_off[class as usize] = BackOff::default();
            self.dial(if class == Class::Bulk { Purpose::Bulk } else { Purpose::Main }).back_off =
                BackOff::default();
        }
    }

    fn ended(&mut self, now: Instant, class: Class, attempt: u64, end: End) {
        let index = class as usize;
        if !matches!(self.lanes[index], Lane::On { attempt: g, .. } if g == attempt) {
            return; // of an earlier substream
        }
        let mut back_off = self.lane_back_off[index];
        if end == End::Refused {
            back_off.failures = back_off.failures.max(16);
        }
        back_off = self.failed(now, back_off);
        self.lane_back_off[index] = back_off;
        self.lanes[index] = Lane::Waiting(back_off.until.unwrap_or(now));
    }

    fn closed(&mut self, now: Instant, connection: ConnectionId) {
        self.connections.remove(&connection);
        for lane in &mut self.lanes {
            if matches!(lane, Lane::On { connection: c, .. } if *c == connection) {
                *lane = Lane::Waiting(now);
            }
        }
    }

    fn reborn(&mut self, now: Instant) {
        for lane in &mut self.lanes {
            if *lane != Lane::Unused {
                *lane = Lane::Waiting(now);
            }
        }
        self.lane_back_off = [BackOff::default(); 4];
    }

    fn set_addresses(&mut self) {
        self.given.truncate(ADDRESSES_MAX);
        self.told.truncate(ADDRESSES_MAX);
        self.addresses.clear();
        for address in self.given.iter().chain(&self.told) {
            if !self.addresses.contains(address) {
                self.addresses.push(address.clone());
            }
        }
    }

    fn wants(&self, class: Class) -> bool {
        self.lanes[class as usize] != Lane::Unused
    }

    /// Brings the lanes to where they should be.
    fn settle(&mut self, now: Instant, out: &mut Outbox<Output>) {
        let carrier = self.carrier();
        let bulk_carrier = self.bulk_carrier();
        for class in Class::ALL {
            let target = if class == Class::Bulk { bulk_carrier } else { carrier };
            if let Some(target) = target {
                self.settle_lane(now, class, target, out);
            }
        }
        self.settle_down(now, carrier, out);
        let has_own = self.connections.values().any(|c| c.dialler == Dialler::Us(Purpose::Bulk));
        if self.wants(Class::Bulk) && carrier.is_some() && !has_own {
            self.want_connection(now, Purpose::Bulk, out);
        }
    }

    /// Without a connection: dials if the peer is kept, and gives up what waits too long.
    fn settle_down(
        &mut self,
        now: Instant,
        carrier: Option<ConnectionId>,
        out: &mut Outbox<Output>,
    ) {
        if !self.is_down(carrier) {
            self.down_since = None;
            return;
        }
        if self.kept {
            self.want_connection(now, Purpose::Main, out);
        }
        let since = *self.down_since.get_or_insert(now);
        if now - since >= self.link_down_max {
            self.down_since = Some(now);
            out.push(Output::GiveUp);
            if !self.kept {
                self.lanes = [Lane::Unused; 4];
            }
        }
    }

    fn is_down(&self, carrier: Option<ConnectionId>) -> bool {
        let wanted = self.kept || Class::ALL.into_iter().any(|class| self.wants(class));
        wanted && carrier.is_none()
    }

    fn settle_lane(
        &mut self,
        now: Instant,
        class: Class,
        target: ConnectionId,
        out: &mut Outbox<Output>,
    ) {
        let due = match self.lanes[class as usize] {
            Lane::Unused => false,
            Lane::Waiting(at) => now >= at,
            Lane::On { connection, .. } => connection != target,
        };
        if due {
            self.attempt += 1;
            let attempt = self.attempt;
            self.lanes[class as usize] = Lane::On { connection: target, attempt };
            out.push(Output::Open { class, attempt, connection: target });
        }
    }

    fn want_connection(&mut self, now: Instant, purpose: Purpose, out: &mut Outbox<Output>) {
        let waits = self.dial_at(now, purpose).is_none_or(|at| now < at);
        if waits {
            return;
        }
        let address = self.addresses[self.next_address % self.addresses.len()].clone();
        self.next_address = self.next_address.wrapping_add(1);
        self.dial(purpose).under_way = true;
        out.push(Output::Dial { purpose, address });
    }

    /// When a dial for this purpose may begin; `None`: not of its own accord.
    fn dial_at(&self, now: Instant, purpose: Purpose) -> Option<Instant> {
        let dial = if purpose == Purpose::Main { &self.main } else { &self.bulk };
        if dial.under_way || self.addresses.is_empty() {
            return None;
        }
        let unnamed = self.connections.values().filter(|c| c.purpose.is_none());
        let patient = unnamed.map(|c| c.since + PATIENCE).max();
        let after = dial.back_off.until.max(patient.filter(|_| purpose == Purpose::Main));
        Some(after.unwrap_or(now))
    }
}

impl Machine for Link {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input, out: &mut Outbox<Output>) {
        let now = now.mono;
        match input {
            Input::Tick => {}
            Input::Keep => {
                self.kept = true;
                if !self.wants(Class::Control) {
                    self.lanes[Class::Control as usize] = Lane::Waiting(now);
                }
            }
            Input::Release => self.kept = false,
            Input::Addresses(addresses) => {
                self.given = addresses;
                self.set_addresses();
            }
            Input::Told(addresses) => {
                self.told = addresses;
                self.set_addresses();
            }
            Input::Want(class) if self.wants(class) => {}
            Input::Want(class) => self.lanes[class as usize] = Lane::Waiting(now),
            Input::Reborn => self.reborn(now),
            Input::Established { connection, dialler } => {
                self.established(now, connection, dialler);
            }
            Input::Admitted { connection, class } => self.admitted(connection, class),
            Input::Closed(connection) => self.closed(now, connection),
            Input::DialFailed(purpose) => self.dial_failed(now, purpose),
            Input::Opened { class, attempt } => self.opened(class, attempt),
            Input::Ended { class, attempt, end } => self.ended(now, class, attempt, end),
        }
        self.settle(now, out);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let far = Instant::from_nanos(u64::MAX);
        let carrier = self.carrier();
        let bulk_carrier = self.bulk_carrier();
        let lanes = Class::ALL.into_iter().filter_map(|class| {
            let has_target = if class == Class::Bulk { bulk_carrier } else { carrier }.is_some();
            match self.lanes[class as usize] {
                Lane::Waiting(at) if has_target => Some(at),
                _ => None,
            }
        });
        let down = self.is_down(carrier);
        let redials = down && self.kept;
        let redial = self.dial_at(Instant::default(), Purpose::Main).filter(|_| redials);
        let give_up = self.down_since.filter(|_| down).map(|since| since + self.link_down_max);
        let has_own = self.connections.values().any(|c| c.dialler == Dialler::Us(Purpose::Bulk));
        let bulk_lacks = self.wants(Class::Bulk) && carrier.is_some() && !has_own;
        let bulk = self.dial_at(Instant::default(), Purpose::Bulk).filter(|_| bulk_lacks);
        lanes.chain(redial).chain(give_up).chain(bulk).min().filter(|at| *at < far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostraca_ddata::clock::WallTime;

    const MS: Duration = Duration::from_millis(1);

    struct Bench {
        link: Link,
        now: Now,
        out: Outbox<Output>,
    }

    fn peers() -> (PeerId, PeerId) {
        let (a, b) = (PeerId::random(), PeerId::random());
        (a.min(b), a.max(b))
    }

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address")
    }

    fn conn(id: usize) -> ConnectionId {
        ConnectionId::new_unchecked(id)
    }

    impl Bench {
        fn new(me: PeerId, peer: PeerId) -> Self {
            let link = Link::new(me, peer, &Limits::default(), 7);
            let now = Now { mono: Instant::from_nanos(1), wall: WallTime::default() };
            Self { link, now, out: Outbox::new() }
        }

        fn give(&mut self, input: Input) -> Vec<Output> {
            self.link.handle(self.now, input, &mut self.out);
            self.out.drain().collect()
        }

        fn pass(&mut self, span: Duration) -> Vec<Output> {
            let end = self.now.mono + span;
            let mut all = Vec::new();
            while let Some(at) = self.link.next_deadline().filter(|at| *at <= end) {
                self.now.mono = self.now.mono.max(at);
                all.extend(self.give(Input::Tick));
            }
            self.now.mono = end;
            all
        }

        fn established(&mut self, id: usize, dialler: Dialler) -> Vec<Output> {
            self.give(Input::Established { connection: conn(id), dialler })
        }

        /// Where lanes were ordered to open.
        fn opens(outputs: &[Output]) -> Vec<(Class, ConnectionId)> {
            let opened = |output: &Output| match output {
                Output::Open { class, connection, .. } => Some((*class, *connection)),
                _ => None,
            };
            outputs.iter().filter_map(opened).collect()
        }
    }

    fn kept() -> Bench {
        let (me, peer) = peers();
        let mut bench = Bench::new(me, peer);
        bench.give(Input::Addresses(vec![address(1), address(2)]));
        let outputs = bench.give(Input::Keep);
        assert_eq!(outputs, [Output::Dial { purpose: Purpose::Main, address: address(1) }]);
        bench
    }

    fn dials(outputs: &[Output]) -> usize {
        outputs.iter().filter(|output| matches!(output, Output::Dial { .. })).count()
    }

    #[test]
    fn a_kept_peer_is_dialled_and_its_control_lane_opened() {
        let mut bench = kept();
        let outputs = bench.established(1, Dialler::Us(Purpose::Main));
        assert_eq!(Bench::opens(&outputs), [(Class::Control, conn(1))]);
        assert_eq!(bench.link.next_deadline(), None);
    }

    #[test]
    fn a_refused_dial_is_tried_again_with_growing_pauses_and_the_next_address() {
        let mut bench = kept();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            assert_eq!(bench.give(Input::DialFailed(Purpose::Main)), []);
            let before = bench.now.mono;
            while dials(&bench.pass(MS)) == 0 {}
            pauses.push(bench.now.mono - before);
        }
        let (first, longest) = Limits::default().back_off;
        assert!(pauses[0] >= first / 2 && pauses[0] <= first + MS, "{pauses:?}");
        assert!(pauses[9] >= longest / 2 && pauses[9] <= longest + MS, "{pauses:?}");
    }

    #[test]
    fn crossing_dials_end_on_the_connection_of_the_smaller_peer_on_both_sides() {
        let (small, large) = peers();
        for (me, peer, by_us_wins) in [(small, large, true), (large, small, false)] {
            for ours_first in [true, false] {
                let mut bench = Bench::new(me, peer);
                bench.give(Input::Addresses(vec![address(1)]));
                bench.give(Input::Keep);
                let ours = |bench: &mut Bench| bench.established(1, Dialler::Us(Purpose::Main));
                let theirs = |bench: &mut Bench| {
                    bench.established(2, Dialler::Peer);
                    bench.give(Input::Admitted { connection: conn(2), class: Class::Control })
                };
                if ours_first {
                    ours(&mut bench);
                    theirs(&mut bench);
                } else {
                    theirs(&mut bench);
                    ours(&mut bench);
                }
                let winner = if by_us_wins { conn(1) } else { conn(2) };
                assert_eq!(bench.link.carrier(), Some(winner));
                let outputs = bench.give(Input::Want(Class::Data));
                assert_eq!(Bench::opens(&outputs), [(Class::Data, winner)]);
            }
        }
    }

    #[test]
    fn a_connection_that_comes_much_later_takes_over_whoever_dialled_it() {
        let mut bench = kept();
        bench.established(1, Dialler::Us(Purpose::Main));
        bench.pass(CROSSING);
        bench.established(2, Dialler::Peer);
        let outputs = bench.give(Input::Admitted { connection: conn(2), class: Class::Control });
        assert_eq!(Bench::opens(&outputs), [(Class::Control, conn(2))]);
    }

    #[test]
    fn a_peers_connection_carries_nothing_before_the_peer_was_admitted_on_it() {
        let (me, peer) = peers();
        let mut bench = Bench::new(me, peer);
        bench.give(Input::Want(Class::Control));
        assert_eq!(bench.established(1, Dialler::Peer), []);
        let outputs = bench.give(Input::Admitted { connection: conn(1), class: Class::Control });
        assert_eq!(Bench::opens(&outputs), [(Class::Control, conn(1))]);
    }

    #[test]
    fn a_connection_that_the_peer_uses_for_bulk_carries_none_of_our_lanes() {
        let (me, peer) = peers();
        let mut bench = Bench::new(me, peer);
        bench.give(Input::Want(Class::Control));
        bench.established(1, Dialler::Peer);
        let outputs = bench.give(Input::Admitted { connection: conn(1), class: Class::Bulk });
        assert_eq!(outputs, []);
        assert_eq!(bench.link.carrier(), None);
    }

    #[test]
    fn lanes_move_when_their_connection_dies() {
        let mut bench = kept();
        bench.established(1, Dialler::Us(Purpose::Main));
        bench.give(Input::Want(Class::Data));
        bench.pass(CROSSING);
        bench.established(2, Dialler::Peer);
        bench.give(Input::Admitted { connection: conn(2), class: Class::Control });
        let outputs = bench.give(Input::Closed(conn(2)));
        let both = [(Class::Control, conn(1)), (Class::Data, conn(1))];
        assert_eq!(Bench::opens(&outputs), both);
        let outputs = bench.give(Input::Closed(conn(1)));
        assert_eq!(dials(&outputs), 1, "{outputs:?}");
    }

    #[test]
    fn a_substream_that_breaks_is_opened_anew_with_a_higher_generation() {
        let mut bench = kept();
        let outputs = bench.established(1, Dialler::Us(Purpose::Main));
        let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
        bench.give(Input::Opened { class, attempt });
        assert_eq!(bench.give(Input::Ended { class, attempt, end: End::Broken }), []);
        let outputs = bench.pass(60 * MS);
        let [Output::Open { attempt: next, .. }] = outputs[..] else { panic!("{outputs:?}") };
        assert!(next > attempt);
        let late = Input::Ended { class, attempt, end: End::Broken };
        assert_eq!(bench.give(late), [], "an end of the earlier substream changes nothing");
        assert_eq!(bench.pass(10_000 * MS), []);
    }

    #[test]
    fn a_refused_lane_is_tried_again_late() {
        let mut bench = kept();
        let outputs = bench.established(1, Dialler::Us(Purpose::Main));
        let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
        bench.give(Input::Ended { class, attempt, end: End::Refused });
        assert_eq!(bench.pass(2_000 * MS), []);
        assert_eq!(Bench::opens(&bench.pass(3_100 * MS)).len(), 1);
    }

    #[test]
    fn a_link_that_stays_down_is_given_up_again_and_again() {
        let mut bench = kept();
        bench.give(Input::DialFailed(Purpose::Main));
        let mut given_up = 0;
        for _ in 0..21_000 {
            for output in bench.pass(MS) {
                match output {
                    Output::GiveUp => given_up += 1,
                    Output::Dial { purpose, .. } => {
                        bench.give(Input::DialFailed(purpose));
                    }
                    Output::Open { .. } => panic!("nothing to open on"),
                }
            }
        }
        assert_eq!(given_up, 4);
    }

    #[test]
    fn bulk_gets_a_connection_of_its_own_and_shares_if_that_fails() {
        let mut bench = kept();
        bench.established(1, Dialler::Us(Purpose::Main));
        let outputs = bench.give(Input::Want(Class::Bulk));
        assert!(matches!(outputs[..], [Output::Dial { purpose: Purpose::Bulk, .. }]));
        let outputs = bench.established(2, Dialler::Us(Purpose::Bulk));
        assert_eq!(Bench::opens(&outputs), [(Class::Bulk, conn(2))]);
        let mut outputs = bench.give(Input::Closed(conn(2)));
        for _ in 0..BULK_ATTEMPTS {
            assert_eq!(dials(&outputs), 1, "{outputs:?}");
            outputs = bench.give(Input::DialFailed(Purpose::Bulk));
            if Bench::opens(&outputs).is_empty() {
                outputs = bench.pass(1_000 * MS);
            }
        }
        assert_eq!(Bench::opens(&outputs), [(Class::Bulk, conn(1))]);
    }

    #[test]
    fn a_peer_that_is_reborn_gets_every_lane_anew() {
        let mut bench = kept();
        bench.established(1, Dialler::Us(Purpose::Main));
        bench.give(Input::Want(Class::User));
        let outputs = bench.give(Input::Reborn);
        let both = [(Class::Control, conn(1)), (Class::User, conn(1))];
        assert_eq!(Bench::opens(&outputs), both);
    }

    #[test]
    fn a_peer_that_is_not_kept_is_given_up_once() {
        let (me, peer) = peers();
        let mut bench = Bench::new(me, peer);
        bench.established(1, Dialler::Peer);
        bench.give(Input::Admitted { connection: conn(1), class: Class::Control });
        bench.give(Input::Want(Class::Data));
        bench.give(Input::Closed(conn(1)));
        assert_eq!(bench.pass(60_000 * MS), [Output::GiveUp]);
        assert!(!bench.link.wants(Class::Data));
    }

    #[test]
    fn a_released_peer_is_not_dialled() {
        let mut bench = kept();
        bench.give(Input::DialFailed(Purpose::Main));
        assert_eq!(bench.give(Input::Release), []);
        assert_eq!(dials(&bench.pass(60_000 * MS)), 0);
        assert!(bench.link.is_idle());
    }

    #[test]
    fn whatever_happens_every_wanted_lane_is_on_the_carrier_in_the_end() {
        for seed in 0..2_000_u64 {
            let mut chance = SmallRng::seed_from_u64(seed);
            let mut bench = kept();
            let mut next = 10;
            let mut open: BTreeMap<Class, (u64, ConnectionId)> = BTreeMap::new();
            let mut pending: Vec<Output> = Vec::new();
            let mut live: Vec<usize> = Vec::new();
            let mut dialling: Vec<Purpose> = vec![Purpose::Main];
            for step in 0..60 {
                let quiet = step >= 50; // no more faults: what is dialled connects
                let outputs = match chance.random_range(0..7) {
                    0 if !quiet => {
                        next += 1;
                        live.push(next);
                        let mut all = bench.established(next, Dialler::Peer);
                        let class = Class::ALL[chance.random_range(0..4)];
                        all.extend(bench.give(Input::Admitted { connection: conn(next), class }));
                        all
                    }
                    1 if !quiet && !live.is_empty() => {
                        let gone = live.swap_remove(chance.random_range(0..live.len()));
                        bench.give(Input::Closed(conn(gone)))
                    }
                    2 if !quiet && !dialling.is_empty() => {
                        bench.give(Input::DialFailed(dialling.remove(0)))
                    }
                    3 if !quiet => bench.give(Input::Want(Class::ALL[chance.random_range(0..4)])),
                    _ if !dialling.is_empty() => {
                        next += 1;
                        live.push(next);
                        bench.established(next, Dialler::Us(dialling.remove(0)))
                    }
                    _ => bench.pass(6_000 * MS),
                };
                pending.extend(outputs);
                for output in pending.drain(..) {
                    match output {
                        Output::Open { class, attempt, connection } => {
                            let before = open.insert(class, (attempt, connection));
                            assert!(before.is_none_or(|(g, _)| g < attempt), "seed {seed}");
                        }
                        Output::Dial { purpose, .. } => dialling.push(purpose),
                        Output::GiveUp => {}
                    }
                }
            }
            let carrier = bench.link.carrier().unwrap_or_else(|| panic!("seed {seed}: no carrier"));
            for class in [Class::Control, Class::Data, Class::User] {
                if bench.link.wants(class) {
                    assert_eq!(open[&class].1, carrier, "seed {seed}: {class:?}");
                }
            }
        }
    }
}
