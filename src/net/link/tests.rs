//! Tests of a single link with simulated inputs of the swarm and the lanes.

use super::*;
use ostraca_ddata::clock::WallTime;

const MS: Duration = Duration::from_millis(1);

struct Bench {
    link: PeerLink,
    now: Now,
    out: Outbox<LinkOutput>,
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
        let link = PeerLink::new(me, peer, &NetLimits::default(), 7);
        let now = Now { mono: Instant::from_nanos(1), wall: WallTime::default() };
        Self { link, now, out: Outbox::new() }
    }

    fn give(&mut self, input: LinkInput) -> Vec<LinkOutput> {
        self.link.handle(self.now, input, &mut self.out);
        self.out.drain().collect()
    }

    fn pass(&mut self, span: Duration) -> Vec<LinkOutput> {
        let end = self.now.mono + span;
        let mut all = Vec::new();
        while let Some(at) = self.link.next_deadline().filter(|at| *at <= end) {
            self.now.mono = self.now.mono.max(at);
            all.extend(self.give(LinkInput::Tick));
        }
        self.now.mono = end;
        all
    }

    fn established(&mut self, id: usize, dialler: DialSide) -> Vec<LinkOutput> {
        self.give(LinkInput::Established { connection: conn(id), dialler })
    }

    /// Lanes ordered to open, and their connections.
    fn opens(outputs: &[LinkOutput]) -> Vec<(TrafficClass, ConnectionId)> {
        let opened = |output: &LinkOutput| match output {
            LinkOutput::Open { class, connection, .. } => Some((*class, *connection)),
            _ => None,
        };
        outputs.iter().filter_map(opened).collect()
    }
}

fn kept() -> Bench {
    let (me, peer) = peers();
    let mut bench = Bench::new(me, peer);
    bench.give(LinkInput::Addresses(vec![address(1), address(2)]));
    let outputs = bench.give(LinkInput::Keep);
    assert_eq!(
        outputs,
        [LinkOutput::Dial { purpose: ConnectionPurpose::Main, address: address(1) }]
    );
    bench
}

fn dials(outputs: &[LinkOutput]) -> usize {
    outputs.iter().filter(|output| matches!(output, LinkOutput::Dial { .. })).count()
}

#[test]
fn a_kept_peer_is_dialled_and_its_control_lane_opened() {
    let mut bench = kept();
    let outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    assert_eq!(Bench::opens(&outputs), [(TrafficClass::Control, conn(1))]);
    assert_eq!(bench.link.next_deadline(), None);
}

#[test]
fn failed_dials_back_off_and_rotate_addresses() {
    let mut bench = kept();
    let mut pauses = Vec::new();
    for _ in 0..10 {
        assert_eq!(bench.give(LinkInput::DialFailed(ConnectionPurpose::Main)), []);
        let before = bench.now.mono;
        while dials(&bench.pass(MS)) == 0 {}
        pauses.push(bench.now.mono - before);
    }
    let (first, longest) = NetLimits::default().back_off;
    assert!(pauses[0] >= first / 2 && pauses[0] <= first + MS, "{pauses:?}");
    assert!(pauses[9] >= longest / 2 && pauses[9] <= longest + MS, "{pauses:?}");
}

/// A name may resolve to an outdated address, which must not displace a good one.
#[test]
fn given_and_answering_addresses_are_dialled_in_turn() {
    let (me, peer) = peers();
    let mut bench = Bench::new(me, peer);
    bench.give(LinkInput::Found(address(1)));
    bench.give(LinkInput::Addresses(vec![address(2)]));
    bench.give(LinkInput::Addresses(vec![address(3)]));
    assert_eq!(bench.link.given(), [address(3), address(1)]);
    let mut dialled = Vec::new();
    let mut outputs = bench.give(LinkInput::Keep);
    for _ in 0..3 {
        let [LinkOutput::Dial { address, .. }] = &outputs[..] else { panic!("{outputs:?}") };
        dialled.push(address.clone());
        bench.give(LinkInput::DialFailed(ConnectionPurpose::Main));
        outputs = bench.pass(1_000 * MS);
    }
    assert_eq!(dialled, [address(3), address(1), address(3)]);
    bench.give(LinkInput::Found(address(5)));
    bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    bench.give(LinkInput::Reborn);
    assert_eq!(
        bench.link.given(),
        [address(3), address(5)],
        "the address where the new incarnation answered"
    );
    bench.give(LinkInput::Closed(conn(1)));
    bench.give(LinkInput::Reborn);
    assert_eq!(bench.link.given(), [address(3)], "addresses of former incarnations are dropped");
}

/// Another address may be outdated, and fail only after the link has been down for too long.
#[test]
fn last_good_address_is_dialled_first() {
    let mut bench = kept();
    bench.give(LinkInput::DialFailed(ConnectionPurpose::Main));
    let outputs = bench.pass(1_000 * MS);
    assert_eq!(
        outputs,
        [LinkOutput::Dial { purpose: ConnectionPurpose::Main, address: address(2) }]
    );
    let outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    let outputs = bench.give(LinkInput::Want(TrafficClass::Bulk));
    assert_eq!(
        outputs,
        [LinkOutput::Dial { purpose: ConnectionPurpose::Bulk, address: address(2) }]
    );
    bench.give(LinkInput::DialFailed(ConnectionPurpose::Bulk));
    let outputs = bench.pass(1_000 * MS);
    assert_eq!(
        outputs,
        [LinkOutput::Dial { purpose: ConnectionPurpose::Bulk, address: address(1) }],
        "then another"
    );
    let outputs = bench.give(LinkInput::Closed(conn(1)));
    assert_eq!(
        outputs,
        [LinkOutput::Dial { purpose: ConnectionPurpose::Main, address: address(2) }]
    );
}

#[test]
fn crossing_dials_settle_on_the_smaller_peers_connection() {
    let (small, large) = peers();
    for (me, peer, by_us_wins) in [(small, large, true), (large, small, false)] {
        for ours_first in [true, false] {
            let mut bench = Bench::new(me, peer);
            bench.give(LinkInput::Addresses(vec![address(1)]));
            bench.give(LinkInput::Keep);
            let ours =
                |bench: &mut Bench| bench.established(1, DialSide::Us(ConnectionPurpose::Main));
            let theirs = |bench: &mut Bench| {
                bench.established(2, DialSide::Peer);
                bench
                    .give(LinkInput::Admitted { connection: conn(2), class: TrafficClass::Control })
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
            let outputs = bench.give(LinkInput::Want(TrafficClass::Data));
            assert_eq!(Bench::opens(&outputs), [(TrafficClass::Data, winner)]);
        }
    }
}

#[test]
fn much_newer_connection_wins_regardless_of_dialler() {
    let mut bench = kept();
    bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    bench.pass(CROSSING);
    bench.established(2, DialSide::Peer);
    let outputs =
        bench.give(LinkInput::Admitted { connection: conn(2), class: TrafficClass::Control });
    assert_eq!(Bench::opens(&outputs), [(TrafficClass::Control, conn(2))]);
}

#[test]
fn unadmitted_connection_carries_no_lanes() {
    let (me, peer) = peers();
    let mut bench = Bench::new(me, peer);
    bench.give(LinkInput::Want(TrafficClass::Control));
    assert_eq!(bench.established(1, DialSide::Peer), []);
    let outputs =
        bench.give(LinkInput::Admitted { connection: conn(1), class: TrafficClass::Control });
    assert_eq!(Bench::opens(&outputs), [(TrafficClass::Control, conn(1))]);
}

#[test]
fn peers_bulk_connection_carries_no_lanes_of_this_node() {
    let (me, peer) = peers();
    let mut bench = Bench::new(me, peer);
    bench.give(LinkInput::Want(TrafficClass::Control));
    bench.established(1, DialSide::Peer);
    let outputs =
        bench.give(LinkInput::Admitted { connection: conn(1), class: TrafficClass::Bulk });
    assert_eq!(outputs, []);
    assert_eq!(bench.link.carrier(), None);
}

#[test]
fn lanes_move_when_their_connection_dies() {
    let mut bench = kept();
    bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    bench.give(LinkInput::Want(TrafficClass::Data));
    bench.pass(CROSSING);
    bench.established(2, DialSide::Peer);
    bench.give(LinkInput::Admitted { connection: conn(2), class: TrafficClass::Control });
    let outputs = bench.give(LinkInput::Closed(conn(2)));
    let both = [(TrafficClass::Control, conn(1)), (TrafficClass::Data, conn(1))];
    assert_eq!(Bench::opens(&outputs), both);
    let outputs = bench.give(LinkInput::Closed(conn(1)));
    assert_eq!(dials(&outputs), 1, "{outputs:?}");
}

#[test]
fn broken_substream_reopens_with_a_higher_attempt() {
    let mut bench = kept();
    let outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    assert_eq!(bench.give(LinkInput::Ended { class, attempt, end: End::Broken }), []);
    let outputs = bench.pass(60 * MS);
    let [LinkOutput::Open { attempt: next, .. }] = outputs[..] else { panic!("{outputs:?}") };
    assert!(next > attempt);
    let late = LinkInput::Ended { class, attempt, end: End::Broken };
    assert_eq!(bench.give(late), [], "an end of the earlier substream changes nothing");
    assert_eq!(bench.pass(10_000 * MS), []);
}

#[test]
fn refused_lane_is_retried_after_the_longest_pause() {
    let mut bench = kept();
    let outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Ended { class, attempt, end: End::Refused });
    assert_eq!(bench.pass(2_000 * MS), []);
    assert_eq!(Bench::opens(&bench.pass(3_100 * MS)).len(), 1);
}

#[test]
fn lane_that_stays_refused_is_given_up() {
    let mut bench = kept();
    let mut outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    let mut given_up = 0;
    for _ in 0..31_000 {
        for output in outputs {
            let LinkOutput::Open { class, attempt, .. } = output else { panic!("{output:?}") };
            let ended = bench.give(LinkInput::Ended { class, attempt, end: End::Refused });
            given_up +=
                ended.iter().filter(|it| **it == LinkOutput::GiveUp(TrafficClass::Control)).count();
        }
        outputs = bench.pass(MS);
    }
    // It is retried after 2.5 to 5 s, and given up at the first refusal after 5 s.
    assert!((3..=6).contains(&given_up), "{given_up}");
    let outputs = if outputs.is_empty() { bench.pass(5_000 * MS) } else { outputs };
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    bench.pass(60_000 * MS);
    let ended = bench.give(LinkInput::Ended { class, attempt, end: End::Refused });
    assert_eq!(ended, [], "its time begins with the first refusal after it was open");
}

#[test]
fn lane_is_awaited_while_it_can_still_be_carried() {
    let mut bench = kept();
    let control = TrafficClass::Control;
    assert!(bench.link.awaits(control), "its first dial is under way");
    assert!(!bench.link.awaits(TrafficClass::User), "it has no messages");
    bench.give(LinkInput::DialFailed(ConnectionPurpose::Main));
    assert!(!bench.link.awaits(control), "no dial succeeds");
    bench.pass(60 * MS);
    let outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    assert!(bench.link.awaits(control), "it is being opened");
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    assert!(bench.link.awaits(control), "it is open, or its break is not yet reported");
    bench.give(LinkInput::Ended { class, attempt, end: End::Broken });
    assert!(bench.link.awaits(control), "it will be reopened on the same connection");
    let outputs = bench.pass(60 * MS);
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    assert_eq!(dials(&bench.give(LinkInput::Closed(conn(1)))), 1);
    assert!(bench.link.awaits(control), "the link was up a moment ago");
    let outputs = bench.established(2, DialSide::Us(ConnectionPurpose::Main));
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Ended { class, attempt, end: End::Refused });
    assert!(!bench.link.awaits(control), "the peer refused it");
}

#[test]
fn lane_that_broke_often_is_awaited() {
    let mut bench = kept();
    let mut outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    for earlier in 0..=REFUSED {
        let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
        bench.give(LinkInput::Ended { class, attempt, end: End::Broken });
        assert!(bench.link.awaits(class), "it had broken {earlier} times before");
        outputs = bench.pass(5_000 * MS);
    }
}

#[test]
fn lane_that_breaks_after_a_refusal_and_a_welcome_is_awaited() {
    let mut bench = kept();
    let outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Ended { class, attempt, end: End::Refused });
    assert!(!bench.link.awaits(class), "the peer refused it");
    let outputs = bench.pass(5_000 * MS);
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    bench.give(LinkInput::Ended { class, attempt, end: End::Broken });
    assert!(bench.link.awaits(class), "the peer has taken it since");
}

#[test]
fn bulk_is_awaited_while_a_connection_can_carry_it() {
    let mut bench = kept();
    bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    bench.give(LinkInput::Want(TrafficClass::Bulk));
    for failed in 0..BULK_ATTEMPTS {
        assert!(bench.link.awaits(TrafficClass::Bulk), "{failed} dials have failed");
        bench.pass(1_000 * MS);
        bench.give(LinkInput::DialFailed(ConnectionPurpose::Bulk));
    }
    assert!(bench.link.awaits(TrafficClass::Bulk), "it shares");
    bench.give(LinkInput::Closed(conn(1)));
    bench.give(LinkInput::DialFailed(ConnectionPurpose::Main));
    assert!(!bench.link.awaits(TrafficClass::Bulk), "no dial succeeds");
}

#[test]
fn waiting_time_starts_over_on_a_new_connection() {
    let mut bench = kept();
    assert_eq!(bench.link.carried_since(TrafficClass::Control), None);
    let outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    let there = bench.now.mono;
    assert_eq!(
        bench.link.carried_since(TrafficClass::Control),
        Some(there),
        "from then on it can open"
    );
    bench.pass(30 * MS);
    assert_eq!(bench.link.carried_since(TrafficClass::Control), Some(there));
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    assert_eq!(
        bench.link.carried_since(TrafficClass::Control),
        Some(there + 30 * MS),
        "it has opened"
    );
    bench.pass(10_000 * MS);
    bench.give(LinkInput::Closed(conn(1)));
    assert_eq!(bench.link.carried_since(TrafficClass::Control), None);
    bench.pass(10_000 * MS);
    bench.established(2, DialSide::Us(ConnectionPurpose::Main));
    assert_eq!(bench.link.carried_since(TrafficClass::Control), Some(bench.now.mono));
    // A lane that moves is not yet open on the new connection.
    bench.pass(CROSSING);
    bench.established(3, DialSide::Us(ConnectionPurpose::Main));
    assert_eq!(bench.link.carried_since(TrafficClass::Control), Some(bench.now.mono));
    // Neither is one that moves to a connection that has existed for long.
    bench.pass(10_000 * MS);
    let outputs = bench.give(LinkInput::Closed(conn(3)));
    let moved = bench.now.mono;
    assert_eq!(bench.link.carried_since(TrafficClass::Control), Some(moved));
    bench.pass(5_000 * MS);
    assert_eq!(bench.link.carried_since(TrafficClass::Control), Some(moved), "it does not open");
    // Repeated breaks there do not reset the time: the peer has still read nothing.
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Ended { class, attempt, end: End::Broken });
    assert_eq!(Bench::opens(&bench.pass(60 * MS)), [(TrafficClass::Control, conn(2))]);
    assert_eq!(bench.link.carried_since(TrafficClass::Control), Some(moved));
}

#[test]
fn failed_attempt_does_not_inherit_a_long_uptime() {
    let mut bench = kept();
    let outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    bench.pass(10_000 * MS);
    bench.give(LinkInput::Closed(conn(1)));
    let outputs = bench.established(2, DialSide::Us(ConnectionPurpose::Main));
    let [LinkOutput::Open { class, mut attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    let mut pauses = Vec::new();
    for _ in 0..10 {
        bench.give(LinkInput::Ended { class, attempt, end: End::Broken });
        let before = bench.now.mono;
        let outputs = loop {
            let outputs = bench.pass(MS);
            if !outputs.is_empty() {
                break outputs;
            }
        };
        pauses.push(bench.now.mono - before);
        let [LinkOutput::Open { attempt: next, .. }] = outputs[..] else { panic!("{outputs:?}") };
        attempt = next;
    }
    let (first, longest) = NetLimits::default().back_off;
    assert!(pauses[0] <= first + MS, "the back-off has started over: {pauses:?}");
    assert!(pauses[9] >= longest / 2, "{pauses:?}");
}

#[test]
fn down_link_abandons_lanes_repeatedly() {
    let mut bench = kept();
    bench.give(LinkInput::DialFailed(ConnectionPurpose::Main));
    let mut given_up = 0;
    for _ in 0..21_000 {
        for output in bench.pass(MS) {
            match output {
                LinkOutput::GiveUp(class) => {
                    assert_eq!(class, TrafficClass::Control);
                    given_up += 1;
                }
                LinkOutput::Dial { purpose, .. } => {
                    bench.give(LinkInput::DialFailed(purpose));
                }
                LinkOutput::Open { .. } => panic!("nothing to open on"),
            }
        }
    }
    assert_eq!(given_up, 4);
}

#[test]
fn bulk_gets_a_connection_of_its_own_and_shares_if_that_fails() {
    let mut bench = kept();
    bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    let outputs = bench.give(LinkInput::Want(TrafficClass::Bulk));
    assert!(matches!(outputs[..], [LinkOutput::Dial { purpose: ConnectionPurpose::Bulk, .. }]));
    let outputs = bench.established(2, DialSide::Us(ConnectionPurpose::Bulk));
    assert_eq!(Bench::opens(&outputs), [(TrafficClass::Bulk, conn(2))]);
    let Some(LinkOutput::Open { class, attempt, .. }) = outputs.last() else {
        panic!("{outputs:?}")
    };
    bench.give(LinkInput::Opened { class: *class, attempt: *attempt });
    let mut outputs = bench.give(LinkInput::Closed(conn(2)));
    for _ in 0..BULK_ATTEMPTS {
        assert_eq!(dials(&outputs), 1, "{outputs:?}");
        outputs = bench.give(LinkInput::DialFailed(ConnectionPurpose::Bulk));
        if Bench::opens(&outputs).is_empty() {
            outputs = bench.pass(1_000 * MS);
        }
    }
    assert_eq!(Bench::opens(&outputs), [(TrafficClass::Bulk, conn(1))]);
}

#[test]
fn bulk_that_shares_a_connection_reopens_there() {
    let mut bench = kept();
    bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    let mut outputs = bench.give(LinkInput::Want(TrafficClass::Bulk));
    for _ in 0..BULK_ATTEMPTS {
        assert_eq!(dials(&outputs), 1, "{outputs:?}");
        outputs = bench.give(LinkInput::DialFailed(ConnectionPurpose::Bulk));
        if Bench::opens(&outputs).is_empty() {
            outputs = bench.pass(1_000 * MS);
        }
    }
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    bench.give(LinkInput::Ended { class, attempt, end: End::Broken });
    let outputs = bench.pass(60 * MS);
    assert_eq!(Bench::opens(&outputs), [(TrafficClass::Bulk, conn(1))]);
}

#[test]
fn reopened_bulk_lane_does_not_replace_the_carrier() {
    let mut bench = kept();
    let outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    bench.give(LinkInput::Want(TrafficClass::Bulk));
    let outputs = bench.established(2, DialSide::Us(ConnectionPurpose::Bulk));
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    bench.give(LinkInput::Closed(conn(1)));
    bench.pass(3_000 * MS);
    bench.give(LinkInput::Ended { class, attempt, end: End::Broken });
    let outputs = bench.pass(60 * MS);
    let [LinkOutput::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(LinkInput::Opened { class, attempt });
    let outputs = bench.pass(NetLimits::default().link_down_max - 3_060 * MS);
    assert_eq!(outputs, [LinkOutput::GiveUp(TrafficClass::Control)]);
}

#[test]
fn new_incarnation_reopens_every_lane() {
    let mut bench = kept();
    bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    bench.give(LinkInput::Want(TrafficClass::User));
    let outputs = bench.give(LinkInput::Reborn);
    let both = [(TrafficClass::Control, conn(1)), (TrafficClass::User, conn(1))];
    assert_eq!(Bench::opens(&outputs), both);
}

#[test]
fn lanes_of_an_unkept_peer_are_abandoned_once() {
    let (me, peer) = peers();
    let mut bench = Bench::new(me, peer);
    bench.established(1, DialSide::Peer);
    bench.give(LinkInput::Admitted { connection: conn(1), class: TrafficClass::Control });
    bench.give(LinkInput::Want(TrafficClass::Data));
    bench.give(LinkInput::Closed(conn(1)));
    assert_eq!(bench.pass(60_000 * MS), [LinkOutput::GiveUp(TrafficClass::Data)]);
    assert!(!bench.link.wants(TrafficClass::Data));
}

#[test]
fn lane_wanted_after_refusals_waits_the_full_time() {
    let (me, peer) = peers();
    let mut bench = Bench::new(me, peer);
    bench.give(LinkInput::Want(TrafficClass::Control)); // down since now
    bench.established(1, DialSide::Peer);
    let admitted = LinkInput::Admitted { connection: conn(1), class: TrafficClass::Control };
    let mut outputs = bench.give(admitted);
    while bench.link.wants(TrafficClass::Control) {
        for output in outputs {
            let LinkOutput::Open { class, attempt, .. } = output else { panic!("{output:?}") };
            bench.give(LinkInput::Ended { class, attempt, end: End::Refused });
        }
        outputs = bench.pass(MS);
    }
    bench.give(LinkInput::Closed(conn(1)));
    assert_eq!(bench.give(LinkInput::Want(TrafficClass::User)), [], "a connection may come");
    assert_eq!(bench.pass(NetLimits::default().link_down_max - MS), []);
    assert_eq!(bench.pass(MS), [LinkOutput::GiveUp(TrafficClass::User)]);
}

/// Refuses the lane that these outputs open, and asserts that it is not given up.
fn assert_outlives_refusal(bench: &mut Bench, outputs: &[LinkOutput]) {
    let [LinkOutput::Open { class, attempt, .. }] = *outputs else { panic!("{outputs:?}") };
    assert_eq!(bench.give(LinkInput::Ended { class, attempt, end: End::Refused }), []);
}

#[test]
fn refusals_before_a_lane_was_abandoned_do_not_count() {
    let (me, peer) = peers();
    let control = TrafficClass::Control;
    let mut bench = Bench::new(me, peer);
    bench.established(1, DialSide::Peer);
    bench.give(LinkInput::Admitted { connection: conn(1), class: control });
    // Given up because of refusals.
    let mut outputs = bench.give(LinkInput::Want(control));
    while bench.link.wants(control) {
        for output in outputs {
            let LinkOutput::Open { class, attempt, .. } = output else { panic!("{output:?}") };
            bench.give(LinkInput::Ended { class, attempt, end: End::Refused });
        }
        outputs = bench.pass(MS);
    }
    bench.pass(60_000 * MS);
    let outputs = bench.give(LinkInput::Want(control));
    assert_outlives_refusal(&mut bench, &outputs);
    // Given up because no carrier came.
    bench.give(LinkInput::Closed(conn(1)));
    assert_eq!(bench.pass(60_000 * MS), [LinkOutput::GiveUp(control)]);
    bench.established(2, DialSide::Peer);
    bench.give(LinkInput::Admitted { connection: conn(2), class: control });
    let outputs = bench.give(LinkInput::Want(control));
    assert_outlives_refusal(&mut bench, &outputs);
}

#[test]
fn refusals_before_a_kept_link_was_down_do_not_count() {
    let mut bench = kept();
    let outputs = bench.established(1, DialSide::Us(ConnectionPurpose::Main));
    assert_outlives_refusal(&mut bench, &outputs);
    assert_eq!(dials(&bench.give(LinkInput::Closed(conn(1)))), 0, "it pauses");
    let outputs = bench.pass(NetLimits::default().link_down_max);
    assert_eq!(dials(&outputs), 1, "{outputs:?}");
    assert!(outputs.contains(&LinkOutput::GiveUp(TrafficClass::Control)), "{outputs:?}");
    let outputs = bench.established(2, DialSide::Us(ConnectionPurpose::Main));
    assert_outlives_refusal(&mut bench, &outputs);
}

#[test]
fn a_released_peer_is_not_dialled() {
    let mut bench = kept();
    bench.give(LinkInput::DialFailed(ConnectionPurpose::Main));
    assert_eq!(bench.give(LinkInput::Release), []);
    assert_eq!(dials(&bench.pass(60_000 * MS)), 0);
    assert!(bench.link.is_idle());
}

#[test]
fn every_wanted_lane_ends_up_on_the_carrier() {
    for seed in 0..2_000_u64 {
        let mut chance = SmallRng::seed_from_u64(seed);
        let mut bench = kept();
        let mut next = 10;
        let mut open: BTreeMap<TrafficClass, (u64, ConnectionId)> = BTreeMap::new();
        let mut pending: Vec<LinkOutput> = Vec::new();
        let mut live: Vec<usize> = Vec::new();
        let mut dialling: Vec<ConnectionPurpose> = vec![ConnectionPurpose::Main];
        for step in 0..60 {
            let quiet = step >= 50; // no more faults: what is dialled connects
            let outputs = match chance.random_range(0..7) {
                0 if !quiet => {
                    next += 1;
                    live.push(next);
                    let mut all = bench.established(next, DialSide::Peer);
                    let class = TrafficClass::ALL[chance.random_range(0..4)];
                    all.extend(bench.give(LinkInput::Admitted { connection: conn(next), class }));
                    all
                }
                1 if !quiet && !live.is_empty() => {
                    let gone = live.swap_remove(chance.random_range(0..live.len()));
                    bench.give(LinkInput::Closed(conn(gone)))
                }
                2 if !quiet && !dialling.is_empty() => {
                    bench.give(LinkInput::DialFailed(dialling.remove(0)))
                }
                3 if !quiet => {
                    bench.give(LinkInput::Want(TrafficClass::ALL[chance.random_range(0..4)]))
                }
                _ if !dialling.is_empty() => {
                    next += 1;
                    live.push(next);
                    bench.established(next, DialSide::Us(dialling.remove(0)))
                }
                _ => bench.pass(6_000 * MS),
            };
            pending.extend(outputs);
            for output in pending.drain(..) {
                match output {
                    LinkOutput::Open { class, attempt, connection } => {
                        let before = open.insert(class, (attempt, connection));
                        assert!(before.is_none_or(|(g, _)| g < attempt), "seed {seed}");
                    }
                    LinkOutput::Dial { purpose, .. } => dialling.push(purpose),
                    LinkOutput::GiveUp(_) => {}
                }
            }
        }
        let carrier = bench.link.carrier().unwrap_or_else(|| panic!("seed {seed}: no carrier"));
        for class in [TrafficClass::Control, TrafficClass::Data, TrafficClass::User] {
            if bench.link.wants(class) {
                assert_eq!(open[&class].1, carrier, "seed {seed}: {class:?}");
            }
        }
    }
}
