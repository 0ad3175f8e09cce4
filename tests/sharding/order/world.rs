//! The model that the exploration runs: one shard, one entity and a few nodes. The gates are the
//! real ones; regions and coordinator follow the rules of docs/protocol/sharding.md#moves in a few
//! lines.
//!
//! A state is a value and a step is a function of it, so all that can happen is explored, not
//! sampled. `Scope` bounds a run, [`World::steps`] lists the possible steps, [`World::take`] takes
//! one, and [`World::violation`] checks the state.

mod lanes;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ostraca::sharding::gate::fault_injection::GateFaultInjection;
use ostraca::sharding::gate::{
    Bounce, Full, Gate, GateEffects, Gone, HomeDecision, HostState, HostingPhase, LaneSendError,
    MailboxLimitCheck, Origin, Reached, SizedMessage, Waits,
};
use ostraca::sharding::ids::{Generation, RegionId};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;

pub(crate) use words::story;

/// Number of a node; its region has the same.
pub(crate) type Node = u8;

/// Used in place of a home: the shard has none.
const NOWHERE: Node = 0;

/// Number of a decision, from 1.
pub(crate) type Number = u8;

/// Message number `n` of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Message {
    pub(crate) sender: Node,
    pub(crate) n: u8,
}

/// Bounds of an exploration: the events that may happen, and how often.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// Number of regions that can host; they are on nodes 1 to `regions`.
    pub(crate) regions: Node,
    /// Nodes that send messages; nodes above `regions` only route.
    pub(crate) senders: &'static [Node],
    pub(crate) messages: u8,
    pub(crate) moves: u8,
    pub(crate) crashes: u8,
    /// Lanes that their sender may give up: unread messages are counted as lost, and later ones use
    /// a new lane.
    pub(crate) give_ups: u8,
    /// Lanes that may break, in one direction, and lose any part of their entries.
    pub(crate) breaks: u8,
    /// Senders that may leave in order.
    pub(crate) leaves: u8,
    /// Whether barriers are repeated after they or their echoes were lost.
    pub(crate) reminds: bool,
    /// How often barriers may be repeated without such a loss.
    pub(crate) spurious: u8,
    /// Whether a decision may leave the shard without a home.
    pub(crate) deallocates: bool,
    /// Messages that fit into a lane.
    pub(crate) lane: usize,
    /// Messages from a sender's own node that its gate may hold.
    pub(crate) held: usize,
    pub(crate) fault_injection: GateFaultInjection,
}

impl Default for Scope {
    fn default() -> Self {
        Self {
            regions: 3,
            senders: &[9],
            messages: 3,
            moves: 1,
            crashes: 0,
            give_ups: 0,
            breaks: 0,
            leaves: 0,
            reminds: true,
            spurious: 0,
            deallocates: false,
            lane: 8,
            held: usize::MAX,
            fault_injection: GateFaultInjection::none(),
        }
    }
}

/// A step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Tell(Node, Teller),
    /// The host takes the next message or barrier from the lane of a sender.
    Down(Node, Node),
    /// The sender takes the next bounce or echo from the lane back.
    Up(Node, Node),
    Announce(Node, Number),
    /// The coordinator decides; with `Prune` it drops predecessors that have ended.
    Move(Node, Pruning),
    Host(Node, Number),
    Release(Node, Number),
    /// All earlier homes have ended: the region starts or adopts.
    Start(Node),
    Handle(Node),
    DrainEnds(Node),
    Room(Node),
    Crash(Node),
    /// The first node installs a configuration without the second one.
    Removed(Node, Node),
    GiveUp(Node, Node),
    /// The lane from a sender to a host keeps this many entries and loses the others.
    BreakDown(Node, Node, usize),
    /// The same for the lane back.
    BreakUp(Node, Node, usize),
    /// A sender repeats its barrier.
    Remind(Node),
    /// A sender leaves in order.
    Leave(Node),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Teller {
    Anybody,
    DrainingHandler,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pruning {
    Prune,
    Keep,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Down {
    Message(Generation, SizedMessage<Message>),
    Barrier(Generation),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Up {
    Bounce(Bounce<Message>),
    Echo(Generation),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cell {
    home: Node,
    after: BTreeMap<Node, Number>,
}

/// The last `Released` of a region: "I host nothing below `above`".
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Released {
    above: Number,
    last: Option<Number>,
    payload: Vec<Message>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Life {
    #[default]
    Idle,
    Hosting(Number),
    Draining(Number),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Region {
    life: Life,
    newest: Number,
    home: Option<Node>,
    pending: Option<BTreeMap<Node, Number>>,
    mailbox: VecDeque<(Message, bool)>, // and whether a draining handler sent it
    last: Option<Number>,
    kept: Vec<Message>,
}

/// State of all nodes and lanes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    gates: BTreeMap<Node, Gate<Message>>,
    regions: BTreeMap<Node, Region>,
    down: BTreeMap<(Node, Node), VecDeque<Down>>,
    up: BTreeMap<(Node, Node), VecDeque<Up>>,
    cells: Vec<Cell>,
    hosted: BTreeMap<Node, Number>,
    released: BTreeMap<Node, Released>,
    told: BTreeMap<Node, u8>,
    handled: Vec<Message>,
    /// Counted as lost; some of them may have been handled all the same.
    lost: BTreeSet<Message>,
    /// Messages bounced to a sender that had left in order; this takes a second decision.
    stranded: BTreeSet<Message>,
    crashed: BTreeSet<Node>,
    left: BTreeSet<Node>,
    installed: BTreeMap<Node, BTreeSet<Node>>, // by node: nodes out of its configuration
    moves: u8,
    crashes: u8,
    give_ups: u8,
    breaks: u8,
    leaves: u8,
    spurious: u8,
}

/// A property that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Messages of a sender were handled out of order.
    Order,
    /// A message was handled twice.
    Twice,
    /// No further step is possible, and a message was neither handled nor counted as lost.
    Lost,
    /// Two regions host the shard at the same time.
    TwoHosts,
}

const BYTES: usize = 1;

fn region(node: Node) -> RegionId {
    RegionId::new(ReplicaId::new(node.into()))
}

fn somewhere(home: Node) -> Option<RegionId> {
    (home != NOWHERE).then(|| region(home))
}

fn node(region: RegionId) -> Node {
    Node::try_from(region.replica().get()).expect("nodes are few")
}

fn generation(number: Number) -> Generation {
    Generation::new(Term::default(), number.into())
}

fn items(messages: &[Message]) -> VecDeque<SizedMessage<Message>> {
    messages.iter().map(|&message| SizedMessage { message, bytes: BYTES }).collect()
}

/// The node of a gate while one of its methods runs.
struct Wires<'a> {
    me: Node,
    lane: usize,
    held: usize,
    draining: bool,
    down: &'a mut BTreeMap<(Node, Node), VecDeque<Down>>,
    up: &'a mut BTreeMap<(Node, Node), VecDeque<Up>>,
    mailbox: Option<&'a mut VecDeque<(Message, bool)>>,
    out: &'a BTreeSet<Node>,
    left: &'a BTreeSet<Node>,
    lost: &'a mut BTreeSet<Message>,
    stranded: &'a mut BTreeSet<Message>,
}

impl GateEffects<Message> for Wires<'_> {
    fn send(
        &mut self,
        to: RegionId,
        stamp: Generation,
        item: SizedMessage<Message>,
        _fit: MailboxLimitCheck,
    ) -> Result<(), LaneSendError<Message>> {
        if self.out.contains(&node(to)) {
            return Err(LaneSendError::Gone(item));
        }
        let lane = self.down.entry((self.me, node(to))).or_default();
        let messages = lane.iter().filter(|word| matches!(word, Down::Message(..))).count();
        if messages >= self.lane {
            return Err(LaneSendError::Full(item));
        }
        lane.push_back(Down::Message(stamp, item));
        Ok(())
    }

    fn barrier(&mut self, to: RegionId, stamp: Generation) -> Result<(), Gone> {
        if self.out.contains(&node(to)) {
            return Err(Gone);
        }
        self.down.entry((self.me, node(to))).or_default().push_back(Down::Barrier(stamp));
        Ok(())
    }

    fn bounce(&mut self, to: RegionId, back: Bounce<Message>) {
        if self.left.contains(&node(to)) {
            self.stranded.insert(back.item.message);
        }
        if self.out.contains(&node(to)) {
            self.lost.insert(back.item.message);
            return;
        }
        self.up.entry((self.me, node(to))).or_default().push_back(Up::Bounce(back));
    }

    fn echo(&mut self, to: RegionId, stamp: Generation) {
        if self.out.contains(&node(to)) {
            return;
        }
        self.up.entry((self.me, node(to))).or_default().push_back(Up::Echo(stamp));
    }

    fn accept(&mut self, _from: RegionId, item: SizedMessage<Message>, origin: Origin) {
        let marked = self.draining && origin == Origin::DrainingHandler;
        let mailbox = self.mailbox.as_mut().expect("only a region accepts");
        mailbox.push_back((item.message, marked));
    }

    fn refuse(&mut self, _from: RegionId, item: SizedMessage<Message>) {
        panic!("{item:?}: nothing is refused without a limit");
    }

    fn ignore(&mut self, _from: RegionId, item: SizedMessage<Message>) {
        self.lost.insert(item.message);
    }

    fn reserve(&mut self, _bytes: usize, _own: Waits) -> Result<(), Full> {
        Ok(())
    }

    fn release(&mut self, bytes: usize) {
        assert_eq!(bytes, BYTES);
    }

    fn reserve_held(&mut self, _from: RegionId, _bytes: usize, own: Waits) -> Result<(), Full> {
        let (buffered, limit, why) = (own.messages, self.held, Reached::RegionMessages);
        if buffered < limit { Ok(()) } else { Err(Full { buffered, limit, why }) }
    }

    fn release_held(&mut self, _from: RegionId, what: Waits) {
        assert_eq!(what.bytes, what.messages * BYTES);
    }
}

impl World {
    /// Region 1 hosts by decision 1; no other node has heard of it.
    pub(crate) fn new(scope: &Scope) -> Self {
        let hosts = 1..=scope.regions;
        let nodes: BTreeSet<Node> = hosts.clone().chain(scope.senders.iter().copied()).collect();
        let gate = |&node: &Node| (node, Gate::new(region(node)).with_fault(scope.fault_injection));
        let mut world = Self {
            gates: nodes.iter().map(gate).collect(),
            regions: hosts.map(|node| (node, Region::default())).collect(),
            down: BTreeMap::new(),
            up: BTreeMap::new(),
            cells: vec![Cell { home: 1, after: BTreeMap::new() }],
            hosted: BTreeMap::new(),
            released: BTreeMap::new(),
            told: scope.senders.iter().map(|&sender| (sender, 0)).collect(),
            handled: Vec::new(),
            lost: BTreeSet::new(),
            stranded: BTreeSet::new(),
            crashed: BTreeSet::new(),
            left: BTreeSet::new(),
            installed: nodes.iter().map(|&node| (node, BTreeSet::new())).collect(),
            moves: scope.moves,
            crashes: scope.crashes,
            give_ups: scope.give_ups,
            breaks: scope.breaks,
            leaves: scope.leaves,
            spurious: scope.spurious,
        };
        world.take(scope, Step::Host(1, 1));
        world.take(scope, Step::Start(1));
        world
    }

    /// Returns the steps that are possible now.
    pub(crate) fn steps(&self, scope: &Scope) -> Vec<Step> {
        let mut steps = Vec::new();
        self.steps_of_senders(scope, &mut steps);
        self.steps_of_regions(&mut steps);
        self.steps_of_the_coordinator(scope, &mut steps);
        self.steps_of_fate(&mut steps);
        self.steps_of_lanes(scope, &mut steps);
        self.steps_of_leavers(&mut steps);
        steps
    }

    fn steps_of_senders(&self, scope: &Scope, steps: &mut Vec<Step>) {
        for (&sender, &told) in self.told.iter().filter(|(sender, _)| self.lives(**sender)) {
            if told < scope.messages {
                steps.push(Step::Tell(sender, Teller::Anybody));
                let draining = |region: &Region| matches!(region.life, Life::Draining(_));
                if self.regions.get(&sender).is_some_and(draining) {
                    steps.push(Step::Tell(sender, Teller::DrainingHandler));
                }
            }
            let newest = self.gates[&sender].newest().generation;
            let news = (1..=self.last()).filter(|&number| generation(number) > newest);
            steps.extend(news.map(|number| Step::Announce(sender, number)));
            if self.gates[&sender].waiting() > 0 {
                steps.push(Step::Room(sender));
            }
        }
        let down = self.down.iter().filter(|((_, to), words)| !words.is_empty() && self.lives(*to));
        steps.extend(down.map(|(&(from, to), _)| Step::Down(from, to)));
        let up = self.up.iter().filter(|((_, to), words)| !words.is_empty() && self.lives(*to));
        steps.extend(up.map(|(&(from, to), _)| Step::Up(from, to)));
    }

    fn steps_of_regions(&self, steps: &mut Vec<Step>) {
        for (&node, region) in self.regions.iter().filter(|(node, _)| self.lives(**node)) {
            for number in region.newest + 1..=self.last() {
                let cell = self.cell(number);
                if cell.home == node {
                    steps.push(Step::Host(node, number));
                } else if cell.after.contains_key(&node) {
                    steps.push(Step::Release(node, number));
                }
            }
            if self.may_start(node) {
                steps.push(Step::Start(node));
            }
            match region.life {
                Life::Hosting(_) if !region.mailbox.is_empty() => steps.push(Step::Handle(node)),
                Life::Draining(_) if region.mailbox.iter().any(|(_, marked)| *marked) => {
                    steps.push(Step::Handle(node));
                }
                Life::Draining(_) => steps.push(Step::DrainEnds(node)),
                Life::Hosting(_) | Life::Idle => {}
            }
        }
    }

    fn steps_of_the_coordinator(&self, scope: &Scope, steps: &mut Vec<Step>) {
        let home = self.cell(self.last()).home;
        if self.moves == 0 && self.lives(home) {
            return;
        }
        let nowhere = scope.deallocates.then_some(NOWHERE);
        let regions = self.regions.keys().copied().chain(nowhere);
        for node in regions.filter(|&n| n != home && self.lives(n)) {
            steps.push(Step::Move(node, Pruning::Keep));
            if self.decided(node, Pruning::Prune) != self.decided(node, Pruning::Keep) {
                steps.push(Step::Move(node, Pruning::Prune));
            }
        }
    }

    fn steps_of_fate(&self, steps: &mut Vec<Step>) {
        if self.crashes > 0 {
            steps.extend(self.regions.keys().filter(|n| self.lives(**n)).map(|&n| Step::Crash(n)));
        }
        for (&node, out) in self.installed.iter().filter(|(node, _)| self.lives(**node)) {
            let gone = self.crashed.union(&self.left).filter(|gone| !out.contains(gone));
            steps.extend(gone.map(|&gone| Step::Removed(node, gone)));
            if self.give_ups > 0 {
                let others = self.regions.keys().filter(|other| **other != node);
                steps.extend(others.map(|&other| Step::GiveUp(node, other)));
            }
        }
    }

    /// Applies a step to the state.
    pub(crate) fn take(&mut self, scope: &Scope, step: Step) {
        match step {
            Step::Tell(sender, origin) => self.tell(scope, sender, origin),
            Step::Down(from, to) => self.word_down(scope, from, to),
            Step::Up(from, to) => self.word_up(scope, from, to),
            Step::Announce(sender, number) => {
                let decision = self.decision(number);
                self.with(scope, sender, |gate, post| gate.learn(decision, post));
            }
            Step::Move(home, pruning) => {
                self.moves = self.moves.saturating_sub(u8::from(self.lives(self.home())));
                let cell = self.decided(home, pruning);
                self.cells.push(cell);
            }
            Step::Host(node, number) => {
                let after = self.cell(number).after.clone();
                let region = self.region(node);
                (region.newest, region.home, region.pending) = (number, Some(node), Some(after));
                self.stand(scope, node, &[]);
            }
            Step::Release(node, number) => self.release(scope, node, number),
            Step::Start(node) => self.start(scope, node),
            Step::Handle(node) => {
                let (message, _) = self.region(node).mailbox.pop_front().expect("not empty");
                self.handled.push(message);
            }
            Step::DrainEnds(node) => self.drain_ends(scope, node),
            Step::Room(sender) => self.with(scope, sender, |gate, post| {
                gate.room(usize::MAX, post);
            }),
            Step::Crash(node) => self.crash(node),
            Step::Removed(node, gone) => self.removed(scope, node, gone),
            Step::GiveUp(sender, host) => self.give_up(scope, sender, host),
            Step::BreakDown(from, to, keeps) => self.break_down(from, to, keeps),
            Step::BreakUp(from, to, keeps) => self.break_up(from, to, keeps),
            Step::Leave(sender) => self.leave(sender),
            Step::Remind(sender) => {
                if self.is_answered(sender) {
                    self.spurious -= 1;
                }
                self.with(scope, sender, |gate, post| gate.remind(post));
            }
        }
    }

    /// Returns the property that does not hold now, if any. With `quiet` no further step is
    /// possible.
    pub(crate) fn violation(&self, scope: &Scope, quiet: bool) -> Option<Violation> {
        let faults = scope.crashes + scope.give_ups + scope.breaks;
        let may_lose = scope.moves > 1 && self.lost.is_subset(&self.stranded);
        if faults == 0 && !(self.lost.is_empty() || may_lose) {
            return Some(Violation::Lost);
        }
        let hosts = |(node, of): &(&Node, &Region)| self.lives(**node) && of.life != Life::Idle;
        if self.regions.iter().filter(hosts).count() > 1 {
            return Some(Violation::TwoHosts);
        }
        for &sender in scope.senders {
            let own = self.handled.iter().filter(|message| message.sender == sender);
            let numbers: Vec<u8> = own.map(|message| message.n).collect();
            if numbers.iter().collect::<BTreeSet<_>>().len() < numbers.len() {
                return Some(Violation::Twice);
            }
            if !numbers.is_sorted() {
                return Some(Violation::Order);
            }
            let accounted = |n| {
                let message = Message { sender, n };
                self.lost.contains(&message) || self.handled.contains(&message)
            };
            let quiet = quiet && self.home() != NOWHERE;
            if quiet && !self.crashed.contains(&sender) && !(1..=self.told[&sender]).all(accounted)
            {
                return Some(Violation::Lost);
            }
        }
        None
    }

    /// Returns the number of messages counted as lost.
    pub(crate) fn lost(&self) -> usize {
        self.lost.len()
    }

    fn lives(&self, node: Node) -> bool {
        !self.crashed.contains(&node) && !self.left.contains(&node)
    }

    fn last(&self) -> Number {
        Number::try_from(self.cells.len()).expect("decisions are few")
    }

    fn cell(&self, number: Number) -> &Cell {
        &self.cells[usize::from(number) - 1]
    }

    fn home(&self) -> Node {
        self.cell(self.last()).home
    }

    fn decision(&self, number: Number) -> HomeDecision {
        HomeDecision { generation: generation(number), home: somewhere(self.cell(number).home) }
    }

    fn region(&mut self, node: Node) -> &mut Region {
        self.regions.get_mut(&node).expect("a node with a region")
    }

    /// A decision lists every predecessor
    /// (docs/protocol/sharding.md#a-decision-lists-every-predecessor): otherwise the next home
    /// could start while one of them still runs.
    fn decided(&self, home: Node, pruning: Pruning) -> Cell {
        let before = self.cell(self.last());
        let mut after = before.after.clone();
        after.insert(before.home, self.last());
        after.remove(&NOWHERE);
        after.remove(&home);
        if pruning == Pruning::Prune {
            let newest = self.hosted.values().copied().max().unwrap_or(0);
            after.retain(|_, entry| *entry >= newest);
        }
        Cell { home, after }
    }

    /// Guarded start and adoption (docs/protocol/sharding.md#guarded-start-and-adoption): a region
    /// starts only after all predecessors have ended.
    fn may_start(&self, node: Node) -> bool {
        let region = &self.regions[&node];
        let Some(after) = &region.pending else { return false };
        let hosts_above = |number| matches!(region.life, Life::Hosting(at) if at > number);
        let is_over = |(earlier, &number): (&Node, &Number)| {
            self.installed[&node].contains(earlier)
                || self.released.get(earlier).is_some_and(|of| of.above > number)
                || hosts_above(number)
        };
        !matches!(region.life, Life::Draining(_)) && after.iter().all(is_over)
    }

    /// A start takes one payload (docs/protocol/sharding.md#a-start-takes-one-payload), the one of
    /// the latest tenure; an adoption takes none.
    fn start(&mut self, scope: &Scope, node: Node) {
        let number = self.regions[&node].newest;
        let after = self.region(node).pending.take().expect("a start was asked for");
        let mut payload = Vec::new();
        if self.regions[&node].life == Life::Idle {
            // Sorted by the generation of the last tenure; `None`: the payload was lost with its
            // node.
            let mut carried: Vec<(Number, Option<Vec<Message>>)> = Vec::new();
            let own = &self.regions[&node];
            carried.extend(own.last.map(|last| (last, Some(own.kept.clone()))));
            for (earlier, entry) in after {
                match self.released.get(&earlier).filter(|of| of.above > entry) {
                    Some(of) => {
                        carried.extend(of.last.map(|last| (last, Some(of.payload.clone()))));
                    }
                    None => carried.push((entry, None)),
                }
            }
            carried.sort();
            match carried.pop() {
                Some((_, Some(highest))) => payload = highest,
                Some((_, None)) => {
                    let others = carried.into_iter().filter_map(|(_, list)| list);
                    self.lost.extend(others.flatten());
                }
                None => {}
            }
            self.region(node).kept.clear();
        }
        let region = self.region(node);
        (region.life, region.last) = (Life::Hosting(number), Some(number));
        self.hosted.insert(node, number);
        self.stand(scope, node, &payload);
    }

    /// Release drains (docs/protocol/sharding.md#release-drains); an idle region answers at once.
    fn release(&mut self, scope: &Scope, node: Node, number: Number) {
        let home = self.cell(number).home;
        let region = self.region(node);
        (region.newest, region.home, region.pending) = (number, Some(home), None);
        match region.life {
            Life::Hosting(at) => region.life = Life::Draining(at),
            Life::Draining(_) => {}
            Life::Idle => self.say_released(node),
        }
        self.stand(scope, node, &[]);
    }

    /// Release after the last stop (docs/protocol/sharding.md#release-after-last-stop).
    fn drain_ends(&mut self, scope: &Scope, node: Node) {
        let region = self.region(node);
        region.life = Life::Idle;
        region.kept = region.mailbox.drain(..).map(|(message, _)| message).collect();
        if self.regions[&node].home != Some(node) {
            self.say_released(node);
        }
        self.stand(scope, node, &[]);
    }

    fn say_released(&mut self, node: Node) {
        let region = &self.regions[&node];
        let released =
            Released { above: region.newest, last: region.last, payload: region.kept.clone() };
        self.released.insert(node, released);
    }

    fn tell(&mut self, scope: &Scope, sender: Node, origin: Teller) {
        let told = self.told.get_mut(&sender).expect("a sender");
        *told += 1;
        let item = SizedMessage { message: Message { sender, n: *told }, bytes: BYTES };
        let origin = match origin {
            Teller::Anybody => Origin::Anybody,
            Teller::DrainingHandler => Origin::DrainingHandler,
        };
        // As in the runtime: with a known lane, the fast path past the gate's own steps.
        self.with(scope, sender, |gate, post| match gate.lane() {
            Some((home, stamp)) => {
                let sent = post.send(home, stamp, item, MailboxLimitCheck::Must);
                if let Err(LaneSendError::Full(item) | LaneSendError::Gone(item)) = sent {
                    gate.tell(item, origin, post).expect("there is no limit");
                }
            }
            None => {
                gate.tell(item, origin, post).expect("there is no limit");
            }
        });
    }

    fn word_down(&mut self, scope: &Scope, from: Node, to: Node) {
        let word = self.down.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        let word = word.expect("the lane is not empty");
        // As in the runtime: a message that is accepted at once takes the fast path.
        self.with(scope, to, |gate, post| match word {
            Down::Message(stamp, item) if gate.accepts(region(from), stamp) => {
                post.accept(region(from), item, Origin::Anybody);
            }
            Down::Message(stamp, item) => gate.arrived(region(from), stamp, item, post),
            Down::Barrier(stamp) => gate.barrier_arrived(region(from), stamp, post),
        });
    }

    fn word_up(&mut self, scope: &Scope, from: Node, to: Node) {
        let word = self.up.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        let word = word.expect("the lane is not empty");
        self.with(scope, to, |gate, post| match word {
            Up::Bounce(back) => gate.bounced(region(from), back, post),
            Up::Echo(stamp) => gate.echoed(region(from), stamp, post),
        });
    }

    /// Counts the messages in the mailbox and payload of the node as lost.
    fn crash(&mut self, node: Node) {
        self.crashes -= 1;
        self.crashed.insert(node);
        let region = self.region(node);
        let mailbox = std::mem::take(&mut region.mailbox);
        let kept = std::mem::take(&mut region.kept);
        self.lost.extend(mailbox.into_iter().map(|(message, _)| message).chain(kept));
        let payload = self.released.get(&node).map(|of| of.payload.clone());
        self.lost.extend(payload.unwrap_or_default());
    }

    fn give_up(&mut self, scope: &Scope, sender: Node, host: Node) {
        let mut given_up = false;
        self.with(scope, sender, |gate, post| given_up = gate.give_up(region(host), post));
        if given_up {
            self.give_ups -= 1;
            self.count_between(sender, host);
        }
    }

    fn stand(&mut self, scope: &Scope, node: Node, payload: &[Message]) {
        let of = &self.regions[&node];
        let standing = HostState {
            run: match of.life {
                Life::Idle => HostingPhase::Idle,
                Life::Hosting(at) => HostingPhase::Hosting(generation(at)),
                Life::Draining(at) => HostingPhase::Draining(generation(at)),
            },
            newest: generation(of.newest),
            home: of.home.and_then(somewhere),
            pending: of.pending.is_some(),
        };
        let payload = items(payload);
        self.with(scope, node, |gate, post| gate.stand(standing, payload, post));
    }

    fn with(
        &mut self,
        scope: &Scope,
        me: Node,
        act: impl FnOnce(&mut Gate<Message>, &mut Wires<'_>),
    ) {
        let region = self.regions.get_mut(&me);
        let draining = region.as_ref().is_some_and(|of| matches!(of.life, Life::Draining(_)));
        let mut wires = Wires {
            me,
            lane: scope.lane,
            held: if scope.senders.contains(&me) { scope.held } else { usize::MAX },
            draining,
            down: &mut self.down,
            up: &mut self.up,
            mailbox: region.map(|region| &mut region.mailbox),
            out: &self.installed[&me],
            left: &self.left,
            lost: &mut self.lost,
            stranded: &mut self.stranded,
        };
        act(self.gates.get_mut(&me).expect("a node"), &mut wires);
        // Removes empty lanes, so that they do not distinguish states.
        self.down.retain(|_, words| !words.is_empty());
        self.up.retain(|_, words| !words.is_empty());
    }
}
