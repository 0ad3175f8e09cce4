//! Some replicas of one value, the model beside them, and the steps of random histories. After
//! every step the replica concerned is compared with the model.

use std::fmt;

use ostraca_ddata::causal::{CausalContext, Dot};
use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Causal;
use ostraca_ddata::types::delta::{Delta, Repair};
use ostraca_ddata::types::edit::Author;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::cases::Case;
use crate::model::{Action, History, Known, View, Writer};

pub(crate) type Checked = Result<(), TestCaseError>;

/// A drawn change, which each type interprets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    kind: u8,
    path: [u8; 2],
    value: u8,
    time: u8,
}

/// One step of a history. Numbers are taken modulo the number of replicas or deltas.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A change; its delta is not delivered yet.
    Edit { who: u8, op: Op },
    /// Deletes everything that the replica has seen.
    Delete { who: u8 },
    /// An earlier delta or repair arrives, possibly late or again.
    Deliver { to: u8, which: u8 },
    /// Earlier deltas arrive joined in this order.
    Group { to: u8, which: [u8; 3] },
    /// A full state arrives.
    Merge { from: u8, to: u8 },
    /// A repair for `to` arrives at `to`.
    Repair { from: u8, to: u8 },
    /// A repair for `meant` arrives at `to` instead; it may arrive at others later.
    Stray { from: u8, meant: u8, to: u8 },
    /// Drops the oldest removal record.
    Forget { who: u8 },
    /// Encodes and decodes the state.
    Recode { who: u8 },
}

impl Op {
    pub(crate) fn time(self) -> u8 {
        self.time
    }
}

fn op() -> impl Strategy<Value = Op> {
    (0..16_u8, [0..3_u8, 0..3_u8], 0..4_u8, 0..6_u8).prop_map(|(kind, path, value, time)| Op {
        kind,
        path,
        value,
        time,
    })
}

fn edit() -> impl Strategy<Value = Step> {
    (any::<u8>(), op()).prop_map(|(who, op)| Step::Edit { who, op })
}

fn deliver() -> impl Strategy<Value = Step> {
    (any::<u8>(), any::<u8>()).prop_map(|(to, which)| Step::Deliver { to, which })
}

fn merge() -> impl Strategy<Value = Step> {
    (any::<u8>(), any::<u8>()).prop_map(|(from, to)| Step::Merge { from, to })
}

fn repair() -> impl Strategy<Value = Step> {
    (any::<u8>(), any::<u8>()).prop_map(|(from, to)| Step::Repair { from, to })
}

/// Edits, deltas and full states.
fn plain_step() -> impl Strategy<Value = Step> {
    prop_oneof![5 => edit(), 4 => deliver(), 2 => merge()]
}

/// All kinds of steps.
fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => edit(),
        1 => any::<u8>().prop_map(|who| Step::Delete { who }),
        8 => deliver(),
        2 => (any::<u8>(), any::<[u8; 3]>()).prop_map(|(to, which)| Step::Group { to, which }),
        2 => merge(),
        4 => repair(),
        2 => (any::<u8>(), any::<u8>(), any::<u8>())
            .prop_map(|(from, meant, to)| Step::Stray { from, meant, to }),
        2 => any::<u8>().prop_map(|who| Step::Forget { who }),
        1 => any::<u8>().prop_map(|who| Step::Recode { who }),
    ]
}

/// A drawn history: the number of replicas and the steps.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) replicas: usize,
    pub(crate) steps: Vec<Step>,
}

/// Prints one step per line, also in the alternate form that proptest uses.
impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} replicas", self.replicas)?;
        let steps = self.steps.iter().map(|step| format!("    {step:?}"));
        f.write_str(&steps.collect::<Vec<_>>().join("\n"))
    }
}

fn run(step: impl Strategy<Value = Step>) -> impl Strategy<Value = Run> {
    (3..=5_usize, proptest::collection::vec(step, 1..=40))
        .prop_map(|(replicas, steps)| Run { replicas, steps })
}

/// Histories of edits, deltas in any order and full states.
pub(crate) fn plain() -> impl Strategy<Value = Run> {
    run(plain_step())
}

/// Histories of all steps, also misdirected repairs, deletes, joined deltas, dropped records and
/// restarts.
pub(crate) fn wild() -> impl Strategy<Value = Run> {
    run(any_step())
}

/// A change that is made after a history.
pub(crate) fn more() -> impl Strategy<Value = Op> {
    op()
}

/// A delta in transit with its events in the model.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) delta: Delta,
    pub(crate) dots: Known,
    /// Of a repair: the events that its intended receiver knows; `None` for an ordinary delta.
    pub(crate) meant_for: Option<Known>,
}

pub(crate) struct Replica<C: Case> {
    pub(crate) causal: Causal<C::Data>,
    pub(crate) known: Known,
}

impl<C: Case> Clone for Replica<C> {
    fn clone(&self) -> Self {
        Self { causal: self.causal.clone(), known: self.known.clone() }
    }
}

impl<C: Case> fmt::Debug for Replica<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.causal.fmt(f)
    }
}

pub(crate) struct World<C: Case> {
    pub(crate) replicas: Vec<Replica<C>>,
    pub(crate) history: History,
    pub(crate) sent: Vec<Sent>,
}

/// The dots of a context.
pub(crate) fn dots_of(context: &CausalContext) -> Known {
    context.minus(&CausalContext::new()).iter().map(plain_dot).collect()
}

pub(crate) fn plain_dot(dot: Dot) -> (u64, u64) {
    (dot.actor.get(), dot.counter)
}

/// The author of a change at a drawn time.
pub(crate) fn author(replica: usize, time: u8) -> Author {
    Author::new(id(replica), HybridTimestamp::from_raw(time.into()))
}

/// The ids of replicas are not in the order of their indices, so tests can't depend on that order.
pub(crate) fn id(replica: usize) -> ReplicaId {
    ReplicaId::new([70, 10, 90, 30, 50][replica])
}

/// The actions of a drawn change for a type.
pub(crate) fn actions<C: Case>(op: Op) -> Vec<Action> {
    let path = op.path[..C::DEPTH].to_vec();
    let drawn = if C::DEPTH == 0 { op.value + 4 * op.path[0] } else { op.value };
    let write = Action::Write { path: path.clone(), value: C::value(drawn) };
    let Some(&cut) = C::REMOVES.get(usize::from(op.kind) % C::REMOVES.len().max(1)) else {
        return if op.kind == 15 { vec![write.clone(), write] } else { vec![write] };
    };
    let remove = Action::Remove { prefix: path[..cut].to_vec() };
    match op.kind {
        0..=8 => vec![write],
        9..=13 => vec![remove],
        14 => vec![remove, write],
        _ => vec![write.clone(), remove, write],
    }
}

impl<C: Case> World<C> {
    pub(crate) fn new(replicas: usize) -> Self {
        let nobody = || Replica { causal: Causal::new(), known: Known::new() };
        Self {
            replicas: (0..replicas).map(|_| nobody()).collect(),
            history: History::default(),
            sent: Vec::new(),
        }
    }

    /// Runs a history and checks every step.
    pub(crate) fn after(run: &Run) -> Result<Self, TestCaseError> {
        let mut world = Self::new(run.replicas);
        for step in &run.steps {
            world.step(step)?;
        }
        Ok(world)
    }

    fn at(&self, drawn: u8) -> usize {
        usize::from(drawn) % self.replicas.len()
    }

    fn sent_at(&self, drawn: u8) -> Option<Sent> {
        (!self.sent.is_empty()).then(|| self.sent[usize::from(drawn) % self.sent.len()].clone())
    }

    pub(crate) fn step(&mut self, step: &Step) -> Checked {
        match *step {
            Step::Edit { who, op } => self.edit(self.at(who), op).map(|_| ()),
            Step::Delete { who } => self.delete(self.at(who)),
            Step::Deliver { to, which } => match self.sent_at(which) {
                Some(sent) => self.receive(self.at(to), &sent).map(|_| ()),
                None => Ok(()),
            },
            Step::Group { to, which } => {
                let group: Vec<_> = which.iter().filter_map(|w| self.sent_at(*w)).collect();
                self.receive_group(self.at(to), &group)
            }
            Step::Merge { from, to } => self.merge(self.at(from), self.at(to)),
            Step::Repair { from, to } => self.repair(self.at(from), self.at(to)),
            Step::Stray { from, meant, to } => {
                let (from, meant, to) = (self.at(from), self.at(meant), self.at(to));
                self.stray(from, meant, to)
            }
            Step::Forget { who } => {
                let who = self.at(who);
                self.replicas[who].causal.forget_record();
                self.check(who)
            }
            Step::Recode { who } => self.recode(self.at(who)),
        }
    }

    /// Makes a change and returns its delta, which may be empty.
    pub(crate) fn edit(&mut self, who: usize, op: Op) -> Result<Sent, TestCaseError> {
        let actions = actions::<C>(op);
        let replica = &mut self.replicas[who];
        let edited = replica.causal.edit(author(who, op.time), |edit| {
            for action in &actions {
                match action {
                    Action::Write { path, value } => C::write(edit, path, *value)?,
                    Action::Remove { prefix } => C::remove(edit, prefix)?,
                }
            }
            Ok(())
        });
        let ((), delta) = edited.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let writer = Writer { replica: id(who).get(), time: op.time.into() };
        let dots = self.history.act(&mut replica.known, writer, C::LEAF, &actions);
        self.made(who, delta, dots)
    }

    fn delete(&mut self, who: usize) -> Checked {
        let replica = &mut self.replicas[who];
        let delta = replica.causal.delete(author(who, 0));
        let writer = Writer { replica: id(who).get(), time: 0 };
        let all = [Action::Remove { prefix: Vec::new() }];
        let dots = self.history.act(&mut replica.known, writer, C::LEAF, &all);
        prop_assert!(replica.causal.state().is_bottom());
        self.made(who, delta, dots).map(|_| ())
    }

    fn made(&mut self, who: usize, delta: Delta, dots: Known) -> Result<Sent, TestCaseError> {
        prop_assert_eq!(&delta.dots().iter().map(plain_dot).collect::<Known>(), &dots);
        let overwrites = dots.iter().flat_map(|dot| &self.history.events[dot].overwrites);
        let overwrites: Known = overwrites.copied().collect();
        prop_assert_eq!(
            delta.overwritten().iter().map(plain_dot).collect::<Known>(),
            overwrites,
            "a delta's context covers its own dots only"
        );
        let sent = Sent { delta, dots, meant_for: None };
        if !sent.delta.is_empty() {
            self.sent.push(sent.clone());
        }
        self.check(who)?;
        Ok(sent)
    }

    /// Delivers a delta and returns whether it was accepted. Only the causal delta rule may decide
    /// this.
    pub(crate) fn receive(&mut self, to: usize, sent: &Sent) -> Result<bool, TestCaseError> {
        let replica = &mut self.replicas[to];
        let before = replica.causal.encode();
        let taken = replica.causal.apply(&sent.delta);
        let may = match &sent.meant_for {
            None => Some(!self.history.lacks(&replica.known, &sent.dots)),
            Some(meant) if meant.is_subset(&replica.known) => Some(true),
            Some(_) => None, // misdirected: accepted or refused, but never wrong
        };
        prop_assert!(may.is_none_or(|may| may == taken.is_ok()), "expected {may:?}: {taken:?}");
        if let Err(lack) = &taken {
            prop_assert_eq!(&lack.context, replica.causal.context());
            prop_assert_eq!(replica.causal.encode(), before, "refused and changed");
        } else {
            replica.known.extend(&sent.dots);
        }
        self.check(to)?;
        Ok(taken.is_ok())
    }

    /// Delivers deltas joined into one. The result must equal that of single deltas in a suitable
    /// order.
    fn receive_group(&mut self, to: usize, group: &[Sent]) -> Checked {
        let Some((first, rest)) = group.split_first() else { return Ok(()) };
        let mut joined = first.clone();
        for sent in rest {
            joined.delta.join(&sent.delta);
            joined.dots.extend(&sent.dots);
            joined.meant_for = match (joined.meant_for, &sent.meant_for) {
                (None, None) => None,
                (a, b) => Some(a.iter().chain(b).flatten().copied().collect()),
            };
        }
        if group.iter().any(|sent| sent.meant_for.is_some()) {
            let lacks = self.history.lacks(&self.replicas[to].known, &joined.dots);
            if lacks {
                joined.meant_for = Some([(u64::MAX, 1)].into()); // may be refused
            }
        }
        self.receive(to, &joined).map(|_| ())
    }

    pub(crate) fn merge(&mut self, from: usize, to: usize) -> Checked {
        let other = self.replicas[from].clone();
        self.replicas[to].causal.merge(&other.causal);
        self.replicas[to].known.extend(&other.known);
        self.check(to)
    }

    fn repair_for(&mut self, from: usize, meant: usize) -> Result<Option<Sent>, TestCaseError> {
        let (from, meant) = (&self.replicas[from], &self.replicas[meant]);
        let dots: Known = from.known.difference(&meant.known).copied().collect();
        match from.causal.repair(meant.causal.context()) {
            Repair::Nothing => prop_assert!(dots.is_empty()),
            Repair::Full => {}
            Repair::Delta(delta) => {
                prop_assert_eq!(&delta.dots().iter().map(plain_dot).collect::<Known>(), &dots);
                let sent = Sent { delta, dots, meant_for: Some(meant.known.clone()) };
                self.sent.push(sent.clone());
                return Ok(Some(sent));
            }
        }
        Ok(None)
    }

    /// Brings `to` up to date as the Replicator does. The result must equal a full merge.
    pub(crate) fn repair(&mut self, from: usize, to: usize) -> Checked {
        let mut merged = self.replicas[to].causal.clone();
        merged.merge(&self.replicas[from].causal);
        match self.repair_for(from, to)? {
            Some(sent) => prop_assert!(self.receive(to, &sent)?),
            None => self.merge(from, to)?,
        }
        prop_assert_eq!(&self.replicas[to].causal, &merged);
        Ok(())
    }

    pub(crate) fn stray(&mut self, from: usize, meant: usize, to: usize) -> Checked {
        match self.repair_for(from, meant)? {
            Some(sent) => self.receive(to, &sent).map(|_| ()),
            None => Ok(()),
        }
    }

    fn recode(&mut self, who: usize) -> Checked {
        let causal = &mut self.replicas[who].causal;
        let bytes = causal.encode();
        let back = Causal::decode(&bytes)
            .map_err(|error| TestCaseError::fail(format!("our own bytes: {error}")))?;
        prop_assert_eq!(&back, &*causal);
        prop_assert_eq!(back.encode(), bytes);
        *causal = back;
        self.check(who)
    }

    /// The view that the model expects for a reader with the events `known`.
    pub(crate) fn expected(&self, known: &Known) -> View {
        let view = self.history.view(known, C::LEAF);
        if view.is_empty() { C::unwritten() } else { view }
    }

    /// Compares a replica with the model and with all replicas that know the same events.
    pub(crate) fn check(&self, who: usize) -> Checked {
        let replica = &self.replicas[who];
        prop_assert_eq!(&dots_of(replica.causal.context()), &replica.known);
        prop_assert_eq!(C::read(&replica.causal.value()), self.expected(&replica.known));
        for other in self.replicas.iter().filter(|other| other.known == replica.known) {
            prop_assert_eq!(other.causal.context(), replica.causal.context());
            prop_assert_eq!(&other.causal, &replica.causal, "equal contexts, unequal states");
            prop_assert_eq!(other.causal.encode(), replica.causal.encode());
        }
        Ok(())
    }

    /// Repairs all replicas until all know all events.
    pub(crate) fn heal(&mut self) -> Checked {
        let last = self.replicas.len() - 1;
        for from in 0..last {
            self.repair(from, last)?;
        }
        for to in 0..last {
            self.repair(last, to)?;
            prop_assert_eq!(&self.replicas[to].causal, &self.replicas[last].causal);
        }
        Ok(())
    }
}
