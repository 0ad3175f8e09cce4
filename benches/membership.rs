//! Cost of a join, a leave and a crash in clusters of 3 to 1,000 simulated nodes: time until every
//! view contains the change, rounds, and messages and bytes per node, each next to its theoretical
//! value.
//!
//! `cargo bench --bench membership`; arguments select sizes: `-- 3 10 32`. The bench runs the real
//! machines of whole nodes (membership, Replicator, guard) on links that take exactly 1 ms and lose
//! nothing. The milliseconds between the first and the last view with a change are therefore the
//! rounds of messages in which the change spread. Times are simulated and equal on every machine,
//! except in the last line of each size: the ratio of simulated to real time.
//!
//! Finally the bench starts 5 and 10 processes and prints the time until they form one cluster,
//! next to the goal; `-- processes` runs only this part.
//!
//! Theory: up to `direct-limit` (100) members a change is sent directly to all members in one hop;
//! here the proposer announces that a configuration is installed. Above that limit, push gossip to
//! one random peer per round at most doubles the number of informed nodes, so it takes at least
//! log2 n rounds; gossip to f = ⌈ln n⌉ + 6 peers at once takes log n / log (f + 1).
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints")]

#[cfg(feature = "cli")] // whole nodes need the transport, which pure builds leave out
#[path = "membership/processes.rs"]
mod processes;
#[path = "../tests/cluster/whole/mod.rs"]
mod whole;

use std::cell::RefCell;
use std::io::{IsTerminal as _, stderr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ostraca::cluster::gossip::targets::fanout;
use ostraca::cluster::member::Status;
use ostraca::cluster::membership::port::MembershipCommand;
use ostraca_ddata::sim::{
    Fault, Faults, LaneRule, LinkQuality, LinkSet, NodeIndex, SimTime, Simulation, SimulationSetup,
};

use whole::{Command, Meter, WholeNode, World, node_at};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const SIZES: [usize; 6] = [3, 10, 32, 100, 320, 1_000];
const DIRECT_LIMIT: usize = 100;
/// Interval at which views are checked.
const LOOK: Duration = MS;

/// Interval of the progress lines on a terminal.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Maximum number of messages per node for one event; a larger number is a message storm that would
/// take hours to end.
const MESSAGES_MAX: f64 = 20_000.0;

type Sim = Simulation<WholeNode, ()>;

struct Bench {
    sim: Sim,
    meter: Rc<RefCell<Meter>>,
    nodes: usize,
    idle: Rate,
}

/// Messages and bytes that one node sends.
#[derive(Clone, Copy, Default)]
struct Rate {
    messages: f64,
    bytes: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "cli")]
    if processes::serves()? {
        return Ok(());
    }
    let alone = std::env::args().any(|argument| argument == "processes");
    let chosen: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    if !alone {
        simulated(&chosen);
    }
    #[cfg(feature = "cli")]
    if chosen.is_empty() {
        processes::figures()?;
    }
    Ok(())
}

fn simulated(chosen: &[usize]) {
    println!("one round is 1 ms; messages and bytes are above idle, per node, until one second");
    println!(
        "after all views show it, without the lease's; rounds: from the first view that shows"
    );
    println!("it to the last\n");
    println!(
        "{:>6} {:<24} {:>9} {:>9} {:>7} {:>7} {:>7} {:>9} {:>10}",
        "nodes", "", "first s", "all s", "rounds", "theory", "log2 n", "messages", "bytes"
    );
    for nodes in SIZES.into_iter().filter(|n| chosen.is_empty() || chosen.contains(n)) {
        if let Err(what) = figures(nodes) {
            println!("{nodes:>6} {what}");
        }
    }
}

fn figures(nodes: usize) -> Result<(), String> {
    let begun = Instant::now();
    let mut bench = Bench::form(nodes)?;
    bench.measure_idle()?;
    let node = NodeIndex::new;
    bench.event("join", LOOK, |sim| sim.restart(node(nodes)), |view| is_up(view, nodes))?;
    let leaver = nodes / 2;
    bench.event("leave", LOOK, |sim| leave(sim, leaver), |view| is_out(view, leaver))?;
    let killed = nodes / 3 + 1;
    let kills = |sim: &mut Sim| kill(sim, killed, nodes);
    bench.event("crash, process killed", LOOK, kills, |view| is_out(view, killed))?;
    let silent = nodes; // the node that joined
    let crash = |sim: &mut Sim| sim.crash(node(silent));
    bench.event("crash, host silent", LOOK, crash, |view| is_out(view, silent))?;
    let simulated = Duration::from_nanos(bench.sim.now().as_nanos()).as_secs_f64();
    let real = begun.elapsed();
    let times = simulated / real.as_secs_f64();
    println!("{nodes:>6} {simulated:.1} s simulated in {real:.1?}: {times:.2} times real time");
    Ok(())
}

/// Status of the first life of a place in this node's view.
fn status(view: &WholeNode, place: usize) -> Option<Status> {
    let id = node_at(place, 1, true).incarnation;
    Some(view.membership.gossip()?.member(id)?.status)
}

fn is_up(view: &WholeNode, place: usize) -> bool {
    status(view, place) == Some(Status::Up)
}

fn is_out(view: &WholeNode, place: usize) -> bool {
    view.membership.gossip().is_some() && status(view, place).is_none()
}

fn are_up(view: &WholeNode, nodes: usize) -> bool {
    view.membership.gossip().is_some_and(|gossip| {
        gossip.len() >= nodes && gossip.members().all(|member| member.status == Status::Up)
    })
}

fn leave(sim: &mut Sim, place: usize) {
    let node = NodeIndex::new(place);
    let id = sim.process(node).map(|node| node.me().incarnation);
    if let Some(id) = id {
        sim.command(node, Command::User(MembershipCommand::Leave(id)));
    }
}

/// Kills the process: its connections break at once. A host that loses power breaks none.
fn kill(sim: &mut Sim, place: usize, nodes: usize) {
    let node = NodeIndex::new(place);
    let others: Vec<_> = (0..=nodes).map(NodeIndex::new).filter(|other| *other != node).collect();
    let out = LinkSet { from: vec![node], to: others.clone() };
    sim.fault(&Fault::Break { links: vec![out, LinkSet { from: others, to: vec![node] }] });
    sim.crash(node);
}

impl Bench {
    /// Founds a cluster of up to three seeds; then all other nodes join at once.
    fn form(nodes: usize) -> Result<Self, String> {
        let meter = Rc::new(RefCell::new(Meter::default()));
        let mut world = World::new(nodes.min(3));
        world.meter = Some(meter.clone());
        world.drain = Some(MS);
        let link = LinkQuality { base: MS, spread: Duration::ZERO, ..LinkQuality::clean() };
        let faults = Faults { links: vec![link], crash_is_told: 0.0, ..Faults::none() };
        let lanes = vec![LaneRule::STREAM];
        let setup = SimulationSetup {
            started: Some(nodes.min(3)),
            lanes,
            faults,
            ..SimulationSetup::new(1, nodes + 1)
        };
        let sim = Simulation::new(setup, (), world.factory());
        let mut bench = Self { sim, meter, nodes, idle: Rate::default() };
        let seeds = nodes.min(3);
        bench.event("founding by the seeds", LOOK, |_| (), |view| are_up(view, seeds))?;
        let rest = |sim: &mut Sim| (seeds..nodes).for_each(|at| sim.restart(NodeIndex::new(at)));
        bench.event("join of the rest at once", 20 * LOOK, rest, |view| are_up(view, nodes))?;
        Ok(bench)
    }

    fn measure_idle(&mut self) -> Result<(), String> {
        // Simulating a minute of a large cluster takes minutes.
        let seconds = if self.nodes > 320 { 4 } else { 10 };
        self.run(2 * seconds * SECOND)?;
        self.meter.borrow_mut().reset();
        self.run(seconds * SECOND)?;
        let (total, seconds) = (self.sent(), f64::from(seconds));
        self.idle = Rate { messages: total.messages / seconds, bytes: total.bytes / seconds };
        let meter = self.meter.borrow();
        let each = seconds * self.nodes as f64;
        let part = |sent: whole::Sent| sent.messages as f64 / each;
        let parts = (part(meter.membership), part(meter.lease), part(meter.data));
        println!(
            "{:>6} {:<24} {:>52.1} {:>10.0}   (membership {:.1}, lease {:.1}, data {:.1})",
            self.nodes,
            "idle, each second",
            self.idle.messages + parts.1,
            self.idle.bytes + meter.lease.bytes as f64 / each,
            parts.0,
            parts.1,
            parts.2
        );
        Ok(())
    }

    fn run(&mut self, span: Duration) -> Result<(), String> {
        self.sim.try_run_for(span).map_err(|failure| failure.reason.clone())
    }

    /// Average sent by one node, without lease messages: their rate depends on the number of voters
    /// (nine from 101 members on), not on events.
    fn sent(&self) -> Rate {
        let meter = self.meter.borrow();
        let all = [meter.membership, meter.data];
        let nodes = self.nodes as f64;
        Rate {
            messages: all.iter().map(|sent| sent.messages).sum::<u64>() as f64 / nodes,
            bytes: all.iter().map(|sent| sent.bytes).sum::<u64>() as f64 / nodes,
        }
    }

    /// Runs an event and waits until the view of every running node satisfies `has_it`.
    fn event(
        &mut self,
        name: &str,
        look: Duration,
        happens: impl FnOnce(&mut Sim),
        has_it: impl Fn(&WholeNode) -> bool,
    ) -> Result<(), String> {
        let mut told = None;
        self.meter.borrow_mut().reset();
        let begun = self.sim.now();
        happens(&mut self.sim);
        let mut first: Option<SimTime> = None;
        loop {
            let views = self.sim.processes().filter(|(_, node)| node.over.is_none());
            let (mut some, mut all) = (false, true);
            for (_, node) in views {
                let has = has_it(node);
                (some, all) = (some || has, all && has);
                if some && !all {
                    break;
                }
            }
            let now = self.sim.now();
            if some {
                first.get_or_insert(now);
            }
            if all {
                self.run(SECOND)?;
                self.print(name, begun, first.unwrap_or(now), now);
                return Ok(());
            }
            if now - begun > 120 * SECOND {
                return Err(format!("{name}: not in every view after {:?}", now - begun));
            }
            if self.sent().messages > MESSAGES_MAX {
                return Err(format!("{name}: stopped after {MESSAGES_MAX} messages per node"));
            }
            self.tell(name, begun, &mut told);
            self.run(look)?;
        }
    }

    /// Prints progress on a terminal, at most every [`TELL_EVERY`].
    fn tell(&self, name: &str, begun: SimTime, told: &mut Option<Instant>) {
        if !stderr().is_terminal() || told.is_some_and(|at| at.elapsed() < TELL_EVERY) {
            return;
        }
        *told = Some(Instant::now());
        let passed = (self.sim.now() - begun).as_secs_f64();
        let sent = self.sent().messages;
        eprintln!(
            "{} nodes: {name}: {passed:.3} s simulated, {sent:.0} messages per node",
            self.nodes
        );
    }

    fn print(&self, name: &str, begun: SimTime, first: SimTime, last: SimTime) {
        let window = (self.sim.now() - begun).as_secs_f64();
        let (sent, idle) = (self.sent(), self.idle);
        let messages = (sent.messages - idle.messages * window).max(0.0);
        let bytes = (sent.bytes - idle.bytes * window).max(0.0);
        let rounds = (last - first).as_millis();
        println!(
            "{:>6} {:<24} {:>9.3} {:>9.3} {:>7} {:>7.1} {:>7.1} {:>9.1} {:>10.0}",
            self.nodes,
            name,
            (first - begun).as_secs_f64(),
            (last - begun).as_secs_f64(),
            rounds,
            theory(self.nodes),
            (self.nodes as f64).log2(),
            messages,
            bytes
        );
    }
}

/// Minimum number of rounds for a sender that informs all nodes.
fn theory(nodes: usize) -> f64 {
    if nodes <= DIRECT_LIMIT {
        return 1.0;
    }
    (nodes as f64).ln() / (fanout(nodes) as f64 + 1.0).ln()
}
