//! What a join, a leave and a crash cost in clusters of 3 to 1,000 simulated nodes: how long until
//! every view has it, in how many rounds, and what each node sends for it; beside the theory.
//!
//! `cargo bench --bench membership`; arguments pick sizes: `-- 3 10 32`. Real machines, whole nodes
//! (membership, Replicator, guard), on links that take exactly 1 ms, without loss: so the
//! milliseconds between the first and the last view that has a change are the rounds of messages
//! that its spreading took. Times are simulated and the same on every machine, but for the last line
//! of each size: how much faster than real time the simulation ran.
//!
//! In the end it starts 5 and 10 processes of the operating system and prints how long they take to be
//! one cluster, with the goal beside; `-- processes` does this alone.
//!
//! Theory: up to `direct-limit` (100) members a change goes straight to all, one hop, and here it is
//! the proposer that tells all that a configuration is installed. Above, push gossip to one random
//! peer a round doubles those who know: log2 n rounds at least; to f = ⌈ln n⌉ + 6 at once it is
//! log n / log (f + 1).
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
use ostraca::cluster::membership::port::Command as Wish;
use ostraca_ddata::sim::{
    Fault, Faults, LaneRule, LinkQuality, Links, NodeIndex, Setup, SimTime, Simulation,
};

use whole::{Command, Meter, WholeNode, World, node_at};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const SIZES: [usize; 6] = [3, 10, 32, 100, 320, 1_000];
const DIRECT_LIMIT: usize = 100;
/// Views are looked at this often.
const LOOK: Duration = MS;

/// How often a terminal is told how far a large cluster is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Of one node for one event: more is a storm, whose end would take hours.
const MESSAGES_MAX: f64 = 20_000.0;

type Sim = Simulation<WholeNode, ()>;

struct Bench {
    sim: Sim,
    meter: Rc<RefCell<Meter>>,
    nodes: usize,
    idle: Rate,
}

/// What one node sends.
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
    println!(
        "one round is 1 ms; messages and bytes are those above idle, per node, until a second"
    );
    println!(
        "after all views have it, without the lease's; rounds: from the first view that has it"
    );
    println!("to the last\n");
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
    let silent = nodes; // the one that joined
    let crash = |sim: &mut Sim| sim.crash(node(silent));
    bench.event("crash, host silent", LOOK, crash, |view| is_out(view, silent))?;
    let simulated = Duration::from_nanos(bench.sim.now().as_nanos()).as_secs_f64();
    let real = begun.elapsed();
    let times = simulated / real.as_secs_f64();
    println!("{nodes:>6} {simulated:.1} s simulated in {real:.1?}: {times:.2} times real time");
    Ok(())
}

/// Where the first life at a place stands in this node's view.
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
        sim.command(node, Command::User(Wish::Leave(id)));
    }
}

/// Its connections break at once; a host that loses power breaks none.
fn kill(sim: &mut Sim, place: usize, nodes: usize) {
    let node = NodeIndex::new(place);
    let others: Vec<_> = (0..=nodes).map(NodeIndex::new).filter(|other| *other != node).collect();
    let out = Links { from: vec![node], to: others.clone() };
    sim.fault(&Fault::Break { links: vec![out, Links { from: others, to: vec![node] }] });
    sim.crash(node);
}

impl Bench {
    /// Three seeds, then all others at once.
    fn form(nodes: usize) -> Result<Self, String> {
        let meter = Rc::new(RefCell::new(Meter::default()));
        let mut world = World::new(nodes.min(3));
        world.meter = Some(meter.clone());
        world.drain = Some(MS);
        let link = LinkQuality { base: MS, spread: Duration::ZERO, ..LinkQuality::clean() };
        let faults = Faults { links: vec![link], crash_is_told: 0.0, ..Faults::none() };
        let lanes = vec![LaneRule::STREAM];
        let setup =
            Setup { started: Some(nodes.min(3)), lanes, faults, ..Setup::new(1, nodes + 1) };
        let sim = Simulation::new(setup, (), world.factory());
        let mut bench = Self { sim, meter, nodes, idle: Rate::default() };
        let seeds = nodes.min(3);
        bench.event("founding by the seeds", LOOK, |_| (), |view| are_up(view, seeds))?;
        let rest = |sim: &mut Sim| (seeds..nodes).for_each(|at| sim.restart(NodeIndex::new(at)));
        bench.event("join of the rest at once", 20 * LOOK, rest, |view| are_up(view, nodes))?;
        Ok(bench)
    }

    fn measure_idle(&mut self) -> Result<(), String> {
        // A minute of a large cluster costs minutes.
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

    /// Sent by one node, on the average; without the lease, whose pace does not depend on events
    /// but on how many vote: from 101 members on nine.
    fn sent(&self) -> Rate {
        let meter = self.meter.borrow();
        let all = [meter.membership, meter.data];
        let nodes = self.nodes as f64;
        Rate {
            messages: all.iter().map(|sent| sent.messages).sum::<u64>() as f64 / nodes,
            bytes: all.iter().map(|sent| sent.bytes).sum::<u64>() as f64 / nodes,
        }
    }

    /// Does something, and waits until every node that goes on has it in its view.
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
                return Err(format!("{name}: given up after {MESSAGES_MAX} messages per node"));
            }
            self.tell(name, begun, &mut told);
            self.run(look)?;
        }
    }

    /// On a terminal, now and then.
    fn tell(&self, name: &str, begun: SimTime, told: &mut Option<Instant>) {
        if !stderr().is_terminal() || told.is_some_and(|at| at.elapsed() < TELL_EVERY) {
            return;
        }
        *told = Some(Instant::now());
        let passed = (self.sim.now() - begun).as_secs_f64();
        let sent = self.sent().messages;
        eprintln!(
            "{} nodes: {name}: {passed:.3} s simulated, {sent:.0} messages a node",
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

/// Rounds at least, for one that knows to tell all.
fn theory(nodes: usize) -> f64 {
    if nodes <= DIRECT_LIMIT {
        return 1.0;
    }
    (nodes as f64).ln() / (fanout(nodes) as f64 + 1.0).ln()
}
