//! Tests of a link whose connections close as soon as they are established.

use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;
use ostraca::net::config::Limits;
use ostraca::net::link::{Dialler, Input, Link, Output, Purpose};
use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::machine::{Machine, Outbox};

struct Bench {
    link: Link,
    now: Now,
}

impl Bench {
    fn new() -> Self {
        let link = Link::new(PeerId::random(), PeerId::random(), &Limits::default(), 7);
        let now = Now { mono: Instant::from_nanos(1), wall: WallTime::default() };
        let mut bench = Self { link, now };
        bench.give(Input::Addresses(vec!["/ip4/127.0.0.1/tcp/1".parse().expect("one")]));
        bench
    }

    fn give(&mut self, input: Input) -> Vec<Output> {
        let mut out = Outbox::new();
        self.link.handle(self.now, input, &mut out);
        out.drain().collect()
    }
}

fn dials(outputs: &[Output]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Dial { .. })).count()
}

#[test]
fn closing_peer_is_dialled_with_back_off() {
    let mut bench = Bench::new();
    let mut dialled = dials(&bench.give(Input::Keep));
    for id in 0..1_000 {
        let connection = ConnectionId::new_unchecked(id);
        let dialler = Dialler::Us(Purpose::Main);
        bench.give(Input::Established { connection, dialler });
        bench.now.mono = bench.now.mono + Duration::from_millis(1);
        dialled += dials(&bench.give(Input::Closed(connection)));
    }
    assert!(dialled < 30, "{dialled} dials within one second");
}

#[test]
fn flapping_link_abandons_its_lanes() {
    let mut bench = Bench::new();
    bench.give(Input::Keep);
    let mut given_up = 0;
    for id in 0..20_000 {
        let connection = ConnectionId::new_unchecked(id);
        let dialler = Dialler::Us(Purpose::Main);
        let mut all = bench.give(Input::Established { connection, dialler });
        bench.now.mono = bench.now.mono + Duration::from_millis(1);
        all.extend(bench.give(Input::Closed(connection)));
        all.extend(bench.give(Input::Tick));
        given_up += all.iter().filter(|o| matches!(o, Output::GiveUp(_))).count();
    }
    assert!(given_up > 0, "no lane is abandoned in 20 s without an open lane");
}
