//! A run in plain words. A, B and C are the nodes that can host the shard, S is a node that only
//! sends; m1, m2 … are the messages of a sender; g1, g2 … are the generations of decisions.

use std::collections::{BTreeMap, VecDeque};

use ostraca::sharding::gate::HomeDecision;
use ostraca::sharding::ids::Generation;

use super::{
    Down, Life, Message, NOWHERE, Node, Number, Pruning, Scope, Step, Teller, Up, World, node,
};

fn name(node: Node) -> String {
    match node {
        NOWHERE => "no node".to_owned(),
        1..=8 => char::from(b'A' + node - 1).to_string(),
        _ => "S".to_owned(),
    }
}

fn stamp(generation: Generation) -> String {
    format!("g{}", generation.seq)
}

fn of(message: Message, scope: &Scope) -> String {
    if scope.senders.len() > 1 {
        format!("m{} of {}", message.n, name(message.sender))
    } else {
        format!("m{}", message.n)
    }
}

fn newest(decision: HomeDecision) -> String {
    let home = decision.home.map_or_else(|| "no home".to_owned(), |home| name(node(home)));
    format!("{} at {home}", stamp(decision.generation))
}

fn down(word: &Down, scope: &Scope) -> String {
    match word {
        Down::Message(at, item) => format!("{} (stamp {})", of(item.message, scope), stamp(*at)),
        Down::Barrier(at) => format!("a barrier (stamp {})", stamp(*at)),
    }
}

fn up(word: &Up, scope: &Scope) -> String {
    match word {
        Up::Bounce(back) => {
            format!("a bounce of {} (newest {})", of(back.item.message, scope), newest(back.newest))
        }
        Up::Echo(at) => format!("an echo (stamp {})", stamp(*at)),
    }
}

/// The steps of a run with their effects, one line each.
pub(crate) fn story(scope: &Scope, steps: &[Step]) -> Vec<String> {
    let mut world = World::new(scope);
    let tell = |step: &Step| {
        let before = world.clone();
        world.take(scope, *step);
        let effects = before.effects(&world, scope, *step);
        let line = before.line(scope, *step);
        if effects.is_empty() { line } else { format!("{line}: {}", effects.join(", ")) }
    };
    steps.iter().map(tell).collect()
}

impl World {
    fn line(&self, scope: &Scope, step: Step) -> String {
        match step {
            Step::Tell(sender, teller) => self.line_of_tell(scope, sender, teller),
            Step::Down(from, to) => {
                let word = self.down.get(&(from, to)).and_then(VecDeque::front);
                let word = word.map(|word| down(word, scope)).unwrap_or_default();
                format!("{} reads {word} from {}", name(to), name(from))
            }
            Step::Up(from, to) => {
                let word = self.up.get(&(from, to)).and_then(VecDeque::front);
                let word = word.map(|word| up(word, scope)).unwrap_or_default();
                format!("{} reads {word} from {}", name(to), name(from))
            }
            Step::Announce(to, number) => {
                format!("{} hears the announcement of {}", name(to), self.decided_by(number))
            }
            Step::Move(home, pruning) => {
                let number = self.last() + 1;
                let shorter = match pruning {
                    Pruning::Prune => ", without the predecessors that are over",
                    Pruning::Keep => "",
                };
                format!("the coordinator decides g{number} at {}{shorter}", name(home))
            }
            Step::Host(at, number) => format!("{} receives Host of g{number}", name(at)),
            Step::Release(at, number) => {
                format!("{} receives Release for {}", name(at), self.decided_by(number))
            }
            Step::Start(at) => format!("{} sees all predecessors over", name(at)),
            Step::Handle(at) => {
                let message = self.regions[&at].mailbox.front().map(|(message, _)| *message);
                let message = message.map(|message| of(message, scope)).unwrap_or_default();
                format!("{} handles {message}", name(at))
            }
            Step::DrainEnds(at) => format!("the drain of {} ends", name(at)),
            Step::Room(sender) => format!("the lane of {} has room", name(sender)),
            step => line_of_fate(step),
        }
    }

    fn line_of_tell(&self, scope: &Scope, sender: Node, teller: Teller) -> String {
        let message = of(Message { sender, n: self.told[&sender] + 1 }, scope);
        match teller {
            Teller::Anybody => format!("{} tells {message}", name(sender)),
            Teller::DrainingHandler => {
                format!("a draining handler on {} tells {message}", name(sender))
            }
        }
    }

    fn decided_by(&self, number: Number) -> String {
        format!("g{number} at {}", name(self.cell(number).home))
    }

    /// The differences that a step made.
    fn effects(&self, after: &Self, scope: &Scope, step: Step) -> Vec<String> {
        let mut effects = Vec::new();
        for (node, region) in &after.regions {
            if region.life != self.regions[node].life {
                effects.push(match region.life {
                    Life::Idle => format!("{} hosts nothing", name(*node)),
                    Life::Hosting(at) => format!("{} hosts at g{at}", name(*node)),
                    Life::Draining(_) => format!("{} drains", name(*node)),
                });
            }
            let had = &self.regions[node].mailbox;
            let new = region.mailbox.iter().filter(|entry| !had.contains(entry));
            let new: Vec<String> = new.map(|(message, _)| of(*message, scope)).collect();
            if !new.is_empty() {
                effects.push(format!("mailbox of {} gets {}", name(*node), new.join(", ")));
            }
        }
        let consumed = |key: (Node, Node), is_down: bool| match step {
            Step::Down(from, to) if is_down => usize::from(key == (from, to)),
            Step::Up(from, to) if !is_down => usize::from(key == (from, to)),
            _ => 0,
        };
        let sent = new_words(&self.down, &after.down, |key| consumed(key, true));
        let back = new_words(&self.up, &after.up, |key| consumed(key, false));
        let line = |key: (Node, Node), word: String| {
            format!("{} sends {word} to {}", name(key.0), name(key.1))
        };
        effects.extend(sent.map(|(key, word)| line(key, down(word, scope))));
        effects.extend(back.map(|(key, word)| line(key, up(word, scope))));
        let lost = after.lost.difference(&self.lost);
        effects.extend(lost.map(|message| format!("{} is counted lost", of(*message, scope))));
        effects
    }
}

type Lanes<W> = BTreeMap<(Node, Node), VecDeque<W>>;

/// The entries of each lane behind those that it had, less the number read from it.
fn new_words<'a, W>(
    before: &'a Lanes<W>,
    after: &'a Lanes<W>,
    consumed: impl Fn((Node, Node)) -> usize,
) -> impl Iterator<Item = ((Node, Node), &'a W)> {
    after.iter().flat_map(move |(key, words)| {
        let had = before.get(key).map_or(0, VecDeque::len).saturating_sub(consumed(*key));
        words.iter().skip(had).map(move |word| (*key, word))
    })
}

fn line_of_fate(step: Step) -> String {
    match step {
        Step::Crash(at) => format!("{} crashes", name(at)),
        Step::Removed(at, gone) => {
            format!("{} installs a configuration without {}", name(at), name(gone))
        }
        Step::GiveUp(sender, host) => {
            format!("{} gives up its lane to {}", name(sender), name(host))
        }
        Step::BreakDown(from, to, keeps) | Step::BreakUp(from, to, keeps) => {
            format!("the lane from {} to {} breaks behind entry {keeps}", name(from), name(to))
        }
        Step::Remind(sender) => format!("{} repeats its barrier", name(sender)),
        Step::Leave(sender) => format!("{} leaves in order", name(sender)),
        step => format!("{step:?}"),
    }
}
