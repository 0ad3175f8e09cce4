//! Breadth-first search through every schedule of a [`Case`].
//!
//! # Reductions, and why no schedule is lost
//! - A node's step depends on its own state and one message: each step is executed once and its
//!   result is stored.
//! - Every sent body remains receivable at any later time, any number of times or never. Steps of
//!   different nodes therefore commute, and a step that sends nothing and shows nothing (an answer
//!   that completes no quorum) may as well happen right before the same node's next step that does:
//!   the states between are not visited. The order of one node's own steps is kept. (A step reads
//!   one value of another node, the number of heartbeats that the holder has sent when a
//!   configuration is installed; such a step shows something.)
//! - A body that can never have an effect on its receiver ([`Node::is_deaf_to`]) is dropped, so
//!   that states that differ only in it become one.
//! - A state is five small numbers, one per node with its receivable bodies, and the visible facts.

mod words;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Ballot, Epoch, EpochId};

use super::guard::COORDINATORS_MAX;
use super::node::{Body, Effects, Event, Node, STRANGER, forged, founding};
use super::{Case, Found, Violation};

/// Maximum number of nodes of a case.
const NODES: usize = 5;
/// Maximum number of distinct messages to one node.
const MESSAGES_MAX: usize = 256;
/// Maximum numbers of configurations and epochs; they size [`Facts`].
const CONFIGURATIONS_MAX: usize = 32;
const EPOCHS_MAX: u64 = 3;

type Inbox = [u64; MESSAGES_MAX / 64];

/// Visible facts: a bit for each decided configuration; whether a majority has acknowledged the
/// token; before that the nodes that have acknowledged it, by epoch; afterwards the nodes that have
/// answered a read without it; and for each coordinator that acts the decisions that it knows, plus
/// one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
struct Facts {
    decided: u32,
    known: bool,
    by: [u8; EPOCHS_MAX as usize],
    spoken: [u8; COORDINATORS_MAX],
}

/// A node's state together with the bodies that it may still receive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    local: u32,
    inbox: Inbox,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    places: [u32; NODES],
    facts: Facts,
}

/// One node's state, with the values that every visit reads.
struct Local {
    node: Node,
    id: usize,
    installed: Option<u8>,
    accepted: Option<(Ballot, u8)>,
    serves: bool,
    sent: u64,
    is_misled: bool,
}

/// The result of a node's step.
#[derive(Clone)]
struct Step {
    local: u32,
    said: Vec<(u8, u16)>,
    acked: bool,
    lacked: bool,
    speaks: Option<(u8, u8)>,
    is_shown: bool,
}

/// A visible step, after any number of invisible ones.
#[derive(Clone)]
struct Move {
    place: u32,
    said: Vec<(u8, u16)>,
    acked: bool,
    lacked: bool,
    speaks: Option<(u8, u8)>,
}

pub(super) struct Search<'a> {
    case: &'a Case,
    locals: Vec<Local>,
    by_essence: HashMap<String, u32>,
    heard: Vec<Vec<(ReplicaId, Body)>>, // by receiver
    by_text: HashMap<String, u16>,
    configurations: Vec<Arc<Epoch>>,
    steps: HashMap<(u32, Event, (u64, u64)), Option<Step>>,
    places: Vec<Place>,
    by_place: HashMap<Place, u32>,
    added: HashMap<(u32, u16), u32>,
    moves: HashMap<(u32, u64, bool), Arc<[Move]>>,
    seen: Seen,
}

impl<'a> Search<'a> {
    pub(super) fn new(case: &'a Case) -> Self {
        assert!(case.nodes as usize <= NODES, "a state has {NODES} places");
        Self {
            case,
            locals: Vec::new(),
            by_essence: HashMap::new(),
            heard: vec![Vec::new(); NODES],
            by_text: HashMap::new(),
            configurations: Vec::new(),
            steps: HashMap::new(),
            places: Vec::new(),
            by_place: HashMap::new(),
            added: HashMap::new(),
            moves: HashMap::new(),
            seen: Seen::new(),
        }
    }

    /// Visits states until all are visited, `most` is reached, or a state violates a property.
    pub(super) fn run(mut self, most: usize) -> Found {
        let start = self.start();
        self.seen.insert(start, u32::MAX);
        let (mut depth, mut level_end, mut next) = (0, 1, 0);
        let mut found = Found::default();
        while next < self.seen.order.len() {
            if next == level_end {
                (depth, level_end) = (depth + 1, self.seen.order.len());
            }
            let state = self.seen.order[next].0;
            found.note(self.newest(&state), self.takes_over(&state));
            if let Some(violation) = self.violation(&state) {
                found.violation = Some((violation, depth));
                found.trace = self.story(next);
                break;
            }
            if self.seen.order.len() >= most {
                found.is_complete = false;
                break;
            }
            self.expand(state, next as u32);
            next += 1;
        }
        found.states = self.seen.order.len();
        found.depth = depth;
        found.nodes = self.locals.len();
        found.places = self.places.len();
        found.messages = self.heard.iter().map(Vec::len).max().unwrap_or_default();
        found
    }

    fn start(&mut self) -> State {
        let first = founding(self.case.members);
        let mut said = Vec::new();
        let mut state = State { places: [0; NODES], facts: Facts::default() };
        for id in 1..=NODES as u64 {
            let mut node = Node::new(id, self.case);
            if id <= self.case.members {
                let effects = node.found(first.clone());
                said.extend(effects.said.into_iter().map(|(to, body)| (node.me, to, body)));
            } else {
                node.join_later();
            }
            let local = self.intern(node);
            state.places[id as usize - 1] = self.place(Place { local, inbox: Inbox::default() });
        }
        for to in (1..=self.case.nodes).filter(|_| self.case.is_attacked) {
            let forged = forged(to, &first).into_iter();
            said.extend(forged.map(|body| (STRANGER, ReplicaId::new(to), body)));
        }
        for (from, to, body) in said {
            let (to, message) = self.message(from, to, body);
            state.places[usize::from(to)] = self.add(state.places[usize::from(to)], message);
        }
        let first = self.configuration(&first);
        state.facts.decided |= 1 << first;
        state
    }

    // ── one node ──

    fn intern(&mut self, node: Node) -> u32 {
        let essence = node.essence();
        if let Some(local) = self.by_essence.get(&essence) {
            return *local;
        }
        // All excluded nodes are equal for the search.
        let installed = node.epochs.installed().filter(|_| !node.epochs.is_excluded()).cloned();
        let installed = installed.map(|epoch| self.configuration(&epoch));
        let accepted = node.accepted().cloned();
        let accepted = accepted.map(|(ballot, epoch)| (ballot, self.configuration(&epoch)));
        let (serves, sent, id) = (node.serves(), node.sent(), node.me.get() as usize - 1);
        let is_misled = node.is_misled();
        self.locals.push(Local { node, id, installed, accepted, serves, sent, is_misled });
        let local = self.locals.len() as u32 - 1;
        self.by_essence.insert(essence, local);
        local
    }

    fn configuration(&mut self, epoch: &Arc<Epoch>) -> u8 {
        let known = self.configurations.iter().position(|known| known == epoch);
        let index = known.unwrap_or_else(|| {
            self.configurations.push(epoch.clone());
            self.configurations.len() - 1
        });
        assert!(index < CONFIGURATIONS_MAX, "room for {CONFIGURATIONS_MAX} configurations");
        index as u8
    }

    fn message(&mut self, from: ReplicaId, to: ReplicaId, body: Body) -> (u8, u16) {
        let receiver = to.get() as usize - 1;
        let text = format!("{from} {to} {body:?}");
        let heard = &mut self.heard[receiver];
        let message = *self.by_text.entry(text).or_insert_with(|| {
            heard.push((from, body));
            heard.len() as u16 - 1
        });
        assert!(usize::from(message) < MESSAGES_MAX, "room for {MESSAGES_MAX} messages");
        (receiver as u8, message)
    }

    fn step(&mut self, at: u32, event: Event, lease: (u64, u64)) -> Option<Step> {
        if let Some(step) = self.steps.get(&(at, event, lease)) {
            return step.clone();
        }
        let before = &self.locals[at as usize];
        let (was, served, from) = (before.installed, before.serves, before.node.me);
        let mut node = before.node.clone();
        let heard = match event {
            Event::Hear(message) => Some(&self.heard[before.id][usize::from(message)]),
            _ => None,
        };
        let Effects { said, acked, lacked, speaks, void } = node.take(event, heard, lease);
        let local = self.intern(node);
        let said: Vec<_> =
            said.into_iter().map(|(to, body)| self.message(from, to, body)).collect();
        let after = &self.locals[local as usize];
        let shows = after.installed != was || after.serves && !served;
        let is_shown = shows || acked || lacked || speaks.is_some() || !said.is_empty();
        let nothing = void || local == at && !is_shown;
        let step = (!nothing).then_some(Step { local, said, acked, lacked, speaks, is_shown });
        self.steps.insert((at, event, lease), step.clone());
        step
    }

    fn place(&mut self, mut place: Place) -> u32 {
        place.inbox = self.audible(place);
        let places = &mut self.places;
        *self.by_place.entry(place).or_insert_with(|| {
            places.push(place);
            places.len() as u32 - 1
        })
    }

    /// The bodies whose receipt can still have an effect on the node.
    fn audible(&self, place: Place) -> Inbox {
        let local = &self.locals[place.local as usize];
        let over = self.over(place);
        let mut inbox = Inbox::default();
        for message in bits(&place.inbox) {
            let body = &self.heard[local.id][usize::from(message)].1;
            let is_past = matches!(body, Body::Over(number) if *number < over);
            if !is_past && !local.node.is_deaf_to(body) {
                inbox[usize::from(message) / 64] |= 1 << (message % 64);
            }
        }
        inbox
    }

    /// The last heartbeat up to which the holder's leases have ended, as received here.
    fn over(&self, place: Place) -> u64 {
        let heard = &self.heard[self.locals[place.local as usize].id];
        let over = bits(&place.inbox).map(|message| match heard[usize::from(message)].1 {
            Body::Over(number) => number,
            _ => 0,
        });
        over.max().unwrap_or_default()
    }

    fn add(&mut self, at: u32, message: u16) -> u32 {
        if let Some(place) = self.added.get(&(at, message)) {
            return *place;
        }
        let mut place = self.places[at as usize];
        place.inbox[usize::from(message) / 64] |= 1 << (message % 64);
        let with = self.place(place);
        self.added.insert((at, message), with);
        with
    }

    /// All visible steps that are possible next from here.
    fn moves(&mut self, at: u32, beats: u64, known: bool) -> Arc<[Move]> {
        if let Some(moves) = self.moves.get(&(at, beats, known)) {
            return moves.clone();
        }
        let Place { local, inbox } = self.places[at as usize];
        let over = self.over(self.places[at as usize]);
        let (mut moves, mut waiting) = (Vec::new(), vec![local]);
        let mut visited = BTreeSet::from([local]);
        while let Some(local) = waiting.pop() {
            let own = self.locals[local as usize].node.own_events(known);
            for event in bits(&inbox).map(Event::Hear).chain(own) {
                let Some(step) = self.step(local, event, (beats, over)) else { continue };
                let Step { local, said, acked, lacked, speaks, is_shown } = step;
                if is_shown {
                    let place = self.place(Place { local, inbox });
                    moves.push(Move { place, said, acked, lacked, speaks });
                } else if visited.insert(local) {
                    waiting.push(local);
                }
            }
        }
        let moves: Arc<[Move]> = moves.into();
        self.moves.insert((at, beats, known), moves.clone());
        moves
    }

    // ── all nodes ──

    fn local(&self, state: &State, index: usize) -> &Local {
        &self.locals[self.places[state.places[index] as usize].local as usize]
    }

    fn beats(&self, state: &State) -> u64 {
        self.case.holder.map_or(0, |id| self.local(state, id as usize - 1).sent)
    }

    fn expand(&mut self, state: State, index: u32) {
        let beats = self.beats(&state);
        for id in 0..NODES {
            let moves = self.moves(state.places[id], beats, state.facts.known);
            for step in moves.iter() {
                let after = self.follow(&state, id, step);
                if after != state {
                    self.seen.insert(after, index);
                }
            }
        }
    }

    /// The state after a visible step of the node with this index.
    fn follow(&mut self, state: &State, id: usize, step: &Move) -> State {
        let mut after = *state;
        after.places[id] = step.place;
        for &(to, message) in &step.said {
            let to = usize::from(to);
            after.places[to] = self.add(after.places[to], message);
        }
        self.show(state, &mut after, id, step);
        after
    }

    fn show(&self, before: &State, after: &mut State, id: usize, step: &Move) {
        let (was, is) = (self.local(before, id), self.local(after, id));
        if let Some(installed) = is.installed.filter(|_| is.installed != was.installed) {
            after.facts.decided |= 1 << installed;
        }
        if let Some(accepted) = is.accepted.filter(|_| is.accepted != was.accepted) {
            let base = &self.configurations[usize::from(is.installed.expect("a voter"))];
            let took = |other: &&Local| {
                other.accepted == Some(accepted) && other.installed == is.installed
            };
            let who = (0..NODES).map(|id| self.local(after, id)).filter(took);
            let who: BTreeSet<_> = who.map(|local| local.node.me).collect();
            if base.is_quorum(&who, FaultInjection::none()) {
                after.facts.decided |= 1 << accepted.1;
            }
        }
        if let Some((by, decisions)) = step.speaks {
            after.facts.spoken[usize::from(by) - 1] = decisions + 1;
        }
        if step.acked || step.lacked {
            let epoch = was.node.epochs.id().expect("who acks has one");
            let by = &mut after.facts.by[epoch.number as usize - 1];
            *by |= 1 << id;
            let by = *by;
            let is_known = if self.case.epoch_fault == Some(ReplicatorFault::MixedEpochs) {
                let all = after.facts.by.iter().fold(0, |all, by| all | by);
                self.decided(after).any(|epoch| has_majority(epoch, all))
            } else {
                self.is_majority(after, epoch, by)
            };
            if step.acked && is_known {
                (after.facts.known, after.facts.by) = (true, Default::default());
            }
        }
    }

    /// Whether these nodes are a majority of the decided configuration with this id. (Nobody answers
    /// in a configuration that is only proposed.)
    fn is_majority(&self, state: &State, epoch: EpochId, by: u8) -> bool {
        self.decided(state).any(|decided| decided.id() == epoch && has_majority(decided, by))
    }

    fn decided(&self, state: &State) -> impl Iterator<Item = &Arc<Epoch>> {
        let decided = state.facts.decided;
        let all = self.configurations.iter().enumerate();
        all.filter(move |(index, _)| decided & (1 << index) != 0).map(|(_, epoch)| epoch)
    }

    fn newest(&self, state: &State) -> u64 {
        self.decided(state).map(|epoch| epoch.id().number).max().unwrap_or_default()
    }

    /// Whether a configuration without the holder is decided.
    fn takes_over(&self, state: &State) -> bool {
        let holder = self.case.holder.map(ReplicaId::new);
        holder.is_some_and(|id| self.decided(state).any(|epoch| !epoch.is_member(id)))
    }

    fn violation(&self, state: &State) -> Option<Violation> {
        if (0..NODES).any(|id| self.local(state, id).is_misled) {
            return Some(Violation::Forged);
        }
        let ids: Vec<_> = self.decided(state).map(|epoch| epoch.id()).collect();
        let distinct: BTreeSet<_> = ids.iter().collect();
        if distinct.len() != ids.len() {
            return Some(Violation::TwoConfigurations);
        }
        let serves = self.case.holder.is_some_and(|id| self.local(state, id as usize - 1).serves);
        if serves && self.takes_over(state) {
            return Some(Violation::Overlap);
        }
        if self.is_superseded(&state.facts) {
            return Some(Violation::Superseded);
        }
        let lacks = |(number, by): (u64, &u8)| {
            self.is_majority(state, EpochId { generation: 1, number }, *by)
        };
        let lost = state.facts.known && (1..).zip(&state.facts.by).any(lacks);
        lost.then_some(Violation::Lost)
    }

    /// Whether a coordinator acts without a decision that one of a term up to its own knows.
    fn is_superseded(&self, facts: &Facts) -> bool {
        let same = self.case.epoch_fault == Some(ReplicatorFault::TermWithoutCoordinator);
        let acts = |at: &usize| facts.spoken[*at] > 0;
        let known = |at: usize| facts.spoken[at] - 1;
        let mut pairs = (0..COORDINATORS_MAX).filter(acts).flat_map(|lower| {
            (0..COORDINATORS_MAX).filter(acts).map(move |higher| (lower, higher))
        });
        pairs.any(|(lower, higher)| (lower < higher || same) && known(lower) & !known(higher) != 0)
    }
}

/// Whether these nodes, as bits, are a majority of the voters.
fn has_majority(epoch: &Epoch, by: u8) -> bool {
    let voters = epoch.voters();
    2 * voters.iter().filter(|id| by & (1 << (id.get() - 1)) != 0).count() > voters.len()
}

fn bits(inbox: &Inbox) -> impl Iterator<Item = u16> {
    let words = *inbox;
    (0..).zip(words).flat_map(|(word, mut left)| {
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(word * 64 + bit as u16)
        })
    })
}

/// States in the order of their discovery, each with its predecessor.
struct Seen {
    order: Vec<(State, u32)>,
    table: Vec<u32>, // open addressing; at most half full
}

impl Seen {
    fn new() -> Self {
        Self { order: Vec::new(), table: vec![u32::MAX; 1 << 16] }
    }

    fn insert(&mut self, state: State, before: u32) {
        if 2 * self.order.len() >= self.table.len() {
            let size = 2 * self.table.len();
            self.table = vec![u32::MAX; size];
            for index in 0..self.order.len() {
                let slot = self.slot(&self.order[index].0);
                self.table[slot] = index as u32;
            }
        }
        let slot = self.slot(&state);
        if self.table[slot] == u32::MAX {
            self.table[slot] = self.order.len() as u32;
            self.order.push((state, before));
        }
    }

    /// The slot of this state, or the free slot where it would be inserted.
    fn slot(&self, state: &State) -> usize {
        let mut hash = u64::from(state.facts.decided) | u64::from(state.facts.known) << 32;
        let [one, two, three] = state.facts.by.map(u64::from);
        let spoken = state.facts.spoken.iter().fold(0, |all, by| all << 8 | u64::from(*by));
        hash ^= one << 40 ^ two << 48 ^ three << 56 ^ spoken.wrapping_mul(0x2545_f491_4f6c_dd1d);
        for place in state.places {
            hash = (hash ^ u64::from(place)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        while self.table[slot] != u32::MAX && self.order[self.table[slot] as usize].0 != *state {
            slot = (slot + 1) & mask;
        }
        slot
    }
}
