//! Tests of a single link with simulated inputs of the swarm and the lanes.

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

    /// Lanes ordered to open, and their connections.
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
fn failed_dials_back_off_and_rotate_addresses() {
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

/// A name may resolve to an outdated address, which must not displace a good one.
#[test]
fn given_and_answering_addresses_are_dialled_in_turn() {
    let (me, peer) = peers();
    let mut bench = Bench::new(me, peer);
    bench.give(Input::Found(address(1)));
    bench.give(Input::Addresses(vec![address(2)]));
    bench.give(Input::Addresses(vec![address(3)]));
    assert_eq!(bench.link.given(), [address(3), address(1)]);
    let mut dialled = Vec::new();
    let mut outputs = bench.give(Input::Keep);
    for _ in 0..3 {
        let [Output::Dial { address, .. }] = &outputs[..] else { panic!("{outputs:?}") };
        dialled.push(address.clone());
        bench.give(Input::DialFailed(Purpose::Main));
        outputs = bench.pass(1_000 * MS);
    }
    assert_eq!(dialled, [address(3), address(1), address(3)]);
    bench.give(Input::Found(address(5)));
    bench.established(1, Dialler::Us(Purpose::Main));
    bench.give(Input::Reborn);
    assert_eq!(
        bench.link.given(),
        [address(3), address(5)],
        "the address where the new incarnation answered"
    );
    bench.give(Input::Closed(conn(1)));
    bench.give(Input::Reborn);
    assert_eq!(bench.link.given(), [address(3)], "addresses of former incarnations are dropped");
}

/// Another address may be outdated, and fail only after the link has been down for too long.
#[test]
fn last_good_address_is_dialled_first() {
    let mut bench = kept();
    bench.give(Input::DialFailed(Purpose::Main));
    let outputs = bench.pass(1_000 * MS);
    assert_eq!(outputs, [Output::Dial { purpose: Purpose::Main, address: address(2) }]);
    let outputs = bench.established(1, Dialler::Us(Purpose::Main));
    let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(Input::Opened { class, attempt });
    let outputs = bench.give(Input::Want(Class::Bulk));
    assert_eq!(outputs, [Output::Dial { purpose: Purpose::Bulk, address: address(2) }]);
    bench.give(Input::DialFailed(Purpose::Bulk));
    let outputs = bench.pass(1_000 * MS);
    assert_eq!(
        outputs,
        [Output::Dial { purpose: Purpose::Bulk, address: address(1) }],
        "then another"
    );
    let outputs = bench.give(Input::Closed(conn(1)));
    assert_eq!(outputs, [Output::Dial { purpose: Purpose::Main, address: address(2) }]);
}

#[test]
fn crossing_dials_settle_on_the_smaller_peers_connection() {
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
fn much_newer_connection_wins_regardless_of_dialler() {
    let mut bench = kept();
    bench.established(1, Dialler::Us(Purpose::Main));
    bench.pass(CROSSING);
    bench.established(2, Dialler::Peer);
    let outputs = bench.give(Input::Admitted { connection: conn(2), class: Class::Control });
    assert_eq!(Bench::opens(&outputs), [(Class::Control, conn(2))]);
}

#[test]
fn unadmitted_connection_carries_no_lanes() {
    let (me, peer) = peers();
    let mut bench = Bench::new(me, peer);
    bench.give(Input::Want(Class::Control));
    assert_eq!(bench.established(1, Dialler::Peer), []);
    let outputs = bench.give(Input::Admitted { connection: conn(1), class: Class::Control });
    assert_eq!(Bench::opens(&outputs), [(Class::Control, conn(1))]);
}

#[test]
fn peers_bulk_connection_carries_no_lanes_of_this_node() {
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
fn broken_substream_reopens_with_a_higher_attempt() {
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
fn refused_lane_is_retried_after_the_longest_pause() {
    let mut bench = kept();
    let outputs = bench.established(1, Dialler::Us(Purpose::Main));
    let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(Input::Ended { class, attempt, end: End::Refused });
    assert_eq!(bench.pass(2_000 * MS), []);
    assert_eq!(Bench::opens(&bench.pass(3_100 * MS)).len(), 1);
}

#[test]
fn lane_that_stays_refused_is_given_up() {
    let mut bench = kept();
    let mut outputs = bench.established(1, Dialler::Us(Purpose::Main));
    let mut given_up = 0;
    for _ in 0..31_000 {
        for output in outputs {
            let Output::Open { class, attempt, .. } = output else { panic!("{output:?}") };
            let ended = bench.give(Input::Ended { class, attempt, end: End::Refused });
            given_up += ended.iter().filter(|it| **it == Output::GiveUp(Class::Control)).count();
        }
        outputs = bench.pass(MS);
    }
    // It is retried after 2.5 to 5 s, and given up at the first refusal after 5 s.
    assert!((3..=6).contains(&given_up), "{given_up}");
    let outputs = if outputs.is_empty() { bench.pass(5_000 * MS) } else { outputs };
    let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(Input::Opened { class, attempt });
    bench.pass(60_000 * MS);
    let ended = bench.give(Input::Ended { class, attempt, end: End::Refused });
    assert_eq!(ended, [], "its time begins with the first refusal after it was open");
}

#[test]
fn lane_is_awaited_while_it_can_still_be_carried() {
    let mut bench = kept();
    let control = Class::Control;
    assert!(bench.link.awaits(control), "its first dial is under way");
    assert!(!bench.link.awaits(Class::User), "it has no messages");
    bench.give(Input::DialFailed(Purpose::Main));
    assert!(!bench.link.awaits(control), "no dial succeeds");
    bench.pass(60 * MS);
    let outputs = bench.established(1, Dialler::Us(Purpose::Main));
    assert!(bench.link.awaits(control), "it is being opened");
    let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(Input::Opened { class, attempt });
    assert!(bench.link.awaits(control), "it is open, or its break is not yet reported");
    bench.give(Input::Ended { class, attempt, end: End::Broken });
    assert!(bench.link.awaits(control), "it will be reopened on the same connection");
    let outputs = bench.pass(60 * MS);
    let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(Input::Opened { class, attempt });
    assert_eq!(dials(&bench.give(Input::Closed(conn(1)))), 1);
    assert!(bench.link.awaits(control), "the link was up a moment ago");
    let outputs = bench.established(2, Dialler::Us(Purpose::Main));
    let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(Input::Ended { class, attempt, end: End::Refused });
    assert!(!bench.link.awaits(control), "the peer refused it");
}

#[test]
fn bulk_is_awaited_while_a_connection_can_carry_it() {
    let mut bench = kept();
    bench.established(1, Dialler::Us(Purpose::Main));
    bench.give(Input::Want(Class::Bulk));
    for failed in 0..BULK_ATTEMPTS {
        assert!(bench.link.awaits(Class::Bulk), "{failed} dials have failed");
        bench.pass(1_000 * MS);
        bench.give(Input::DialFailed(Purpose::Bulk));
    }
    assert!(bench.link.awaits(Class::Bulk), "it shares");
    bench.give(Input::Closed(conn(1)));
    bench.give(Input::DialFailed(Purpose::Main));
    assert!(!bench.link.awaits(Class::Bulk), "no dial succeeds");
}

#[test]
fn waiting_time_starts_over_on_a_new_connection() {
    let mut bench = kept();
    assert_eq!(bench.link.carried_since(Class::Control), None);
    let outputs = bench.established(1, Dialler::Us(Purpose::Main));
    let there = bench.now.mono;
    assert_eq!(bench.link.carried_since(Class::Control), Some(there), "from then on it can open");
    bench.pass(30 * MS);
    assert_eq!(bench.link.carried_since(Class::Control), Some(there));
    let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(Input::Opened { class, attempt });
    assert_eq!(bench.link.carried_since(Class::Control), Some(there + 30 * MS), "it has opened");
    bench.pass(10_000 * MS);
    bench.give(Input::Closed(conn(1)));
    assert_eq!(bench.link.carried_since(Class::Control), None);
    bench.pass(10_000 * MS);
    bench.established(2, Dialler::Us(Purpose::Main));
    assert_eq!(bench.link.carried_since(Class::Control), Some(bench.now.mono));
    // A lane that moves is not yet open on the new connection.
    bench.pass(CROSSING);
    bench.established(3, Dialler::Us(Purpose::Main));
    assert_eq!(bench.link.carried_since(Class::Control), Some(bench.now.mono));
    // Neither is one that moves to a connection that has existed for long.
    bench.pass(10_000 * MS);
    let outputs = bench.give(Input::Closed(conn(3)));
    let moved = bench.now.mono;
    assert_eq!(bench.link.carried_since(Class::Control), Some(moved));
    bench.pass(5_000 * MS);
    assert_eq!(bench.link.carried_since(Class::Control), Some(moved), "it does not open");
    // Repeated breaks there do not reset the time: the peer has still read nothing.
    let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(Input::Ended { class, attempt, end: End::Broken });
    assert_eq!(Bench::opens(&bench.pass(60 * MS)), [(Class::Control, conn(2))]);
    assert_eq!(bench.link.carried_since(Class::Control), Some(moved));
}

#[test]
fn failed_attempt_does_not_inherit_a_long_uptime() {
    let mut bench = kept();
    let outputs = bench.established(1, Dialler::Us(Purpose::Main));
    let [Output::Open { class, attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    bench.give(Input::Opened { class, attempt });
    bench.pass(10_000 * MS);
    bench.give(Input::Closed(conn(1)));
    let outputs = bench.established(2, Dialler::Us(Purpose::Main));
    let [Output::Open { class, mut attempt, .. }] = outputs[..] else { panic!("{outputs:?}") };
    let mut pauses = Vec::new();
    for _ in 0..10 {
        bench.give(Input::Ended { class, attempt, end: End::Broken });
        let before = bench.now.mono;
        let outputs = loop {
            let outputs = bench.pass(MS);
            if !outputs.is_empty() {
                break outputs;
            }
        };
        pauses.push(bench.now.mono - before);
        let [Output::Open { attempt: next, .. }] = outputs[..] else { panic!("{outputs:?}") };
        attempt = next;
    }
    let (first, longest) = Limits::default().back_off;
    assert!(pauses[0] <= first + MS, "the back-off has started over: {pauses:?}");
    assert!(pauses[9] >= longest / 2, "{pauses:?}");
}

#[test]
fn down_link_abandons_lanes_repeatedly() {
    let mut bench = kept();
    bench.give(Input::DialFailed(Purpose::Main));
    let mut given_up = 0;
    for _ in 0..21_000 {
        for output in bench.pass(MS) {
            match output {
                Output::GiveUp(class) => {
                    assert_eq!(class, Class::Control);
                    given_up += 1;
                }
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
    let Some(Output::Open { class, attempt, .. }) = outputs.last() else { panic!("{outputs:?}") };
    bench.give(Input::Opened { class: *class, attempt: *attempt });
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
fn new_incarnation_reopens_every_lane() {
    let mut bench = kept();
    bench.established(1, Dialler::Us(Purpose::Main));
    bench.give(Input::Want(Class::User));
    let outputs = bench.give(Input::Reborn);
    let both = [(Class::Control, conn(1)), (Class::User, conn(1))];
    assert_eq!(Bench::opens(&outputs), both);
}

#[test]
fn lanes_of_an_unkept_peer_are_abandoned_once() {
    let (me, peer) = peers();
    let mut bench = Bench::new(me, peer);
    bench.established(1, Dialler::Peer);
    bench.give(Input::Admitted { connection: conn(1), class: Class::Control });
    bench.give(Input::Want(Class::Data));
    bench.give(Input::Closed(conn(1)));
    assert_eq!(bench.pass(60_000 * MS), [Output::GiveUp(Class::Data)]);
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
fn every_wanted_lane_ends_up_on_the_carrier() {
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
                    Output::GiveUp(_) => {}
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
