//! Tests of a link whose connections close as soon as they are established.

use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;
use ostraca::net::config::NetLimits;
use ostraca::net::link::{ConnectionPurpose, DialSide, LinkInput, LinkOutput, PeerLink};
use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::machine::{Machine, Outbox};

struct Bench {
    link: PeerLink,
    now: Now,
}

impl Bench {
    fn new() -> Self {
        let link = PeerLink::new(PeerId::random(), PeerId::random(), &NetLimits::default(), 7);
        let now = Now { mono: Instant::from_nanos(1), wall: WallTime::default() };
        let mut bench = Self { link, now };
        bench.give(LinkInput::Addresses(vec!["/ip4/127.0.0.1/tcp/1".parse().expect("one")]));
        bench
    }

    fn give(&mut self, input: LinkInput) -> Vec<LinkOutput> {
        let mut out = Outbox::new();
        self.link.handle(self.now, input, &mut out);
        out.drain().collect()
    }
}

fn dials(outputs: &[LinkOutput]) -> usize {
    outputs.iter().filter(|output| matches!(output, LinkOutput::Dial { .. })).count()
}

#[test]
fn closing_peer_is_dialled_with_back_off() {
    let mut bench = Bench::new();
    let mut dialled = dials(&bench.give(LinkInput::Keep));
    for id in 0..1_000 {
        let connection = ConnectionId::new_unchecked(id);
        let dialler = DialSide::Us(ConnectionPurpose::Main);
        bench.give(LinkInput::Established { connection, dialler });
        bench.now.mono = bench.now.mono + Duration::from_millis(1);
        dialled += dials(&bench.give(LinkInput::Closed(connection)));
    }
    assert!(dialled < 30, "{dialled} dials within one second");
}

#[test]
fn flapping_link_abandons_its_lanes() {
    let mut bench = Bench::new();
    bench.give(LinkInput::Keep);
    let mut given_up = 0;
    for id in 0..20_000 {
        let connection = ConnectionId::new_unchecked(id);
        let dialler = DialSide::Us(ConnectionPurpose::Main);
        let mut all = bench.give(LinkInput::Established { connection, dialler });
        bench.now.mono = bench.now.mono + Duration::from_millis(1);
        all.extend(bench.give(LinkInput::Closed(connection)));
        all.extend(bench.give(LinkInput::Tick));
        given_up += all.iter().filter(|o| matches!(o, LinkOutput::GiveUp(_))).count();
    }
    assert!(given_up > 0, "no lane is abandoned in 20 s without an open lane");
}
