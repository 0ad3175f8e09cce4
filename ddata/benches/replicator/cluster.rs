//! A few Replicators in one thread, driven as the node's loop drives them: a batch of inputs, a
//! tick if one is due, then the outputs. Messages go from hand to hand, encoded or not.

use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::data::Registry;
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, EpochSettings};
use ostraca_ddata::replicator::port::{ReplicatorInput, ReplicatorOutput};
use ostraca_ddata::replicator::request::{
    ReplicatorReply, ReplicatorRequest, RequestError, RequestId,
};
use ostraca_ddata::replicator::wire::ReplicatorMessage;
use ostraca_ddata::replicator::{Replicator, ReplicatorParameters};

use crate::ratio;

/// How messages travel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    /// As they are.
    Handed,
    /// Encoded by the sender, decoded by the receiver.
    Encoded,
}

/// What waits for a node.
enum Mail {
    Input(ReplicatorInput),
    Bytes(ReplicaId, Vec<u8>),
}

struct Node {
    machine: Replicator,
    inbox: Vec<Mail>,
    out: Outbox<ReplicatorOutput>,
    busy: Duration,
}

/// What went over the wire.
#[derive(Clone, Copy, Default)]
pub(crate) struct Traffic {
    pub(crate) messages: u64,
    pub(crate) bytes: u64, // only counted when encoded
}

pub(crate) struct Cluster {
    nodes: Vec<Node>,
    now: Duration,
    wire: Wire,
    next: u64,
    /// Nothing reaches this node, nothing leaves it.
    pub(crate) cut_off: Option<usize>,
    pub(crate) traffic: Traffic,
    pub(crate) replies: Vec<Result<ReplicatorReply, RequestError>>,
}

/// One way over a fast network.
const HOP: Duration = Duration::from_micros(25);

fn replica(node: usize) -> ReplicaId {
    ReplicaId::new(0x9e37_79b9_7f4a_7c15_u64.rotate_left(8 * node as u32))
}

impl Cluster {
    /// `nodes` founding members.
    pub(crate) fn new(nodes: usize, wire: Wire) -> Self {
        let members: Vec<ReplicaId> = (0..nodes).map(replica).collect();
        let id = EpochId { generation: 1, number: 1 };
        let epoch = Epoch::founding(id, members.clone(), EpochSettings::default());
        let epoch = std::sync::Arc::new(epoch.expect("members are distinct"));
        let node = |(seed, me)| {
            let (config, registry) = (ReplicatorConfig::default(), Registry::new());
            let setup = ReplicatorParameters {
                me,
                config,
                registry,
                seed,
                fault_injection: FaultInjection::none(),
            };
            let inbox = vec![Mail::Input(ReplicatorInput::Found(epoch.clone()))];
            let (machine, out) = (Replicator::new(setup), Outbox::new());
            Node { machine, inbox, out, busy: Duration::ZERO }
        };
        let nodes = (0_u64..).zip(members).map(node).collect();
        let now = Duration::from_secs(1);
        let (traffic, replies) = (Traffic::default(), Vec::new());
        let mut cluster = Self { nodes, now, wire, next: 0, cut_off: None, traffic, replies };
        cluster.run();
        cluster
    }

    pub(crate) fn node(&self, node: usize) -> &Replicator {
        &self.nodes[node].machine
    }

    pub(crate) fn ask(&mut self, node: usize, request: ReplicatorRequest) {
        self.next += 1;
        let input = ReplicatorInput::Request { id: RequestId(self.next), request };
        self.nodes[node].inbox.push(Mail::Input(input));
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Runs until nothing is under way and nothing is due.
    pub(crate) fn run(&mut self) {
        loop {
            let worked = (0..self.nodes.len()).filter(|node| self.batch(*node)).count();
            if worked == 0 {
                return;
            }
            self.now += HOP;
        }
    }

    /// The time each node has worked since it was last asked.
    pub(crate) fn take_busy(&mut self) -> Vec<Duration> {
        self.nodes.iter_mut().map(|node| std::mem::take(&mut node.busy)).collect()
    }

    fn batch(&mut self, index: usize) -> bool {
        let mono = Instant::from_nanos(self.now.as_nanos() as u64);
        let wall = WallTime::from_millis(1_700_000_000_000 + self.now.as_millis() as u64);
        let now = Now { mono, wall };
        if self.nodes[index].inbox.is_empty() && !self.is_due(index, mono) {
            return false;
        }
        let (sent, took) = ratio::timed(|| {
            let node = &mut self.nodes[index];
            for mail in std::mem::take(&mut node.inbox) {
                node.machine.handle(now, opened(mail), &mut node.out);
            }
            if self.is_due(index, mono) {
                let node = &mut self.nodes[index];
                node.machine.handle(now, ReplicatorInput::Tick, &mut node.out);
            }
            self.perform(index)
        });
        self.nodes[index].busy += took;
        for (to, mail) in sent {
            if self.cut_off.is_none_or(|cut| cut != index && cut != to) {
                self.nodes[to].inbox.push(mail);
            }
        }
        true
    }

    fn is_due(&self, node: usize, now: Instant) -> bool {
        self.nodes[node].machine.next_deadline().is_some_and(|at| at <= now)
    }

    fn perform(&mut self, index: usize) -> Vec<(usize, Mail)> {
        let node = &mut self.nodes[index];
        let (from, mut sent) = (node.machine.id(), Vec::new());
        for output in node.out.drain() {
            match output {
                ReplicatorOutput::Send { to, message, .. } => {
                    let to = (0..).find(|node| replica(*node) == to).expect("a member");
                    self.traffic.messages += 1;
                    sent.push((to, posted(self.wire, from, message, &mut self.traffic)));
                }
                ReplicatorOutput::Reply { reply, .. } => self.replies.push(reply),
                _ => {}
            }
        }
        sent
    }
}

fn posted(wire: Wire, from: ReplicaId, message: ReplicatorMessage, traffic: &mut Traffic) -> Mail {
    match wire {
        Wire::Handed => Mail::Input(ReplicatorInput::Message { from, message }),
        Wire::Encoded => {
            let bytes = message.encode();
            traffic.bytes += bytes.len() as u64;
            Mail::Bytes(from, bytes)
        }
    }
}

fn opened(mail: Mail) -> ReplicatorInput {
    match mail {
        Mail::Input(input) => input,
        Mail::Bytes(from, bytes) => {
            let message = ReplicatorMessage::decode(&bytes).expect("our own bytes");
            ReplicatorInput::Message { from, message }
        }
    }
}
