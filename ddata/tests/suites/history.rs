//! The observer of every suite. It records requests and replies and checks the guarantees between
//! them.
//!
//! Checked after every event:
//! - Every majority read shows the changes of all majority writes acknowledged, and the contexts of
//!   all majority reads completed, before a node received its request.
//! - The causal context of a value determines the value ([`Model`] computes it). Long histories are
//!   checked by samples.
//! - The rules of configurations ([`Chain`]) and coordinators ([`Decisions`]) hold.
//! - Each request has one answer by its deadline; the end of a subscription has none.
//! - No notice follows the end of a subscription.
//!
//! At the end of a run, [`History::at_rest`] checks that all replicas are equal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::causal::{CausalContext, DotSet};
use ostraca_ddata::clock::Instant;
use ostraca_ddata::data::Value;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::key::KeyName;
use ostraca_ddata::replicator::request::{
    ReplicatorReply, RequestError, RequestId, SubscriptionId, SubscriptionNotice,
};
use ostraca_ddata::sim::{InvariantViolation, NodeIndex, Observer, Orders, SimulationView};
use ostraca_ddata::types::Term;

use crate::chain::Chain;
use crate::decisions::Decisions;
use crate::node::{Event, Made, Node};
use crate::oracle::{Model, Slot, What, rank_of};
use crate::strikes::Strikes;

/// A request of the driver.
#[derive(Clone, Debug)]
pub struct Asked {
    pub key: Option<KeyName>,
    pub ask: Ask,
    /// Whether a majority must answer.
    pub strong: bool,
    /// Time within which it must be answered; `None` means no deadline.
    pub within: Option<Duration>,
}

/// The purpose of a request.
#[derive(Clone, Debug)]
pub enum Ask {
    Read,
    Change(What),
    /// Writes the home of a shard, as a coordinator of `term` does; `seq` counts its decisions.
    Decide {
        home: u64,
        shard: u32,
        term: Term,
        seq: u64,
    },
    /// Tries to remove a key of a guarded map, which must change nothing.
    Unguard,
    Fence(Term),
    /// Ends a subscription: no notice of it may follow.
    Unsubscribe(SubscriptionId),
    /// A request of which only the answer's time and number are checked.
    Other,
}

/// A request under way.
#[derive(Clone, Debug)]
struct Open {
    asked: Box<Asked>,
    by: ReplicaId,
    due: Option<(NodeIndex, Instant)>,
    /// Dots that the answer of a majority read must show.
    must: CausalContext,
    /// Dots of the key that the author of a change held after it.
    knew: CausalContext,
}

type Answer = Result<ReplicatorReply, RequestError>;

/// The record of a run.
#[derive(Default)]
pub struct History {
    expected: BTreeMap<RequestId, Box<Asked>>, // sent, not yet at a node; ≤ requests of a run
    open: BTreeMap<RequestId, Box<Open>>,
    due: BTreeMap<NodeIndex, (ReplicaId, BTreeSet<(Instant, RequestId)>)>,
    answered: BTreeSet<RequestId>,
    must: BTreeMap<KeyName, CausalContext>, // dots that every later majority read must show
    models: BTreeMap<KeyName, Model>,
    notices: BTreeMap<SubscriptionId, (ReplicaId, BTreeMap<KeyName, Option<Value>>)>,
    /// Ended subscriptions, and whether they had received a notice by then.
    ended: BTreeMap<SubscriptionId, bool>, // ≤ subscriptions of a run
    pub chain: Chain,
    pub decisions: Decisions,
    /// Faults right after chosen events.
    pub strikes: Strikes,
    /// Answers that the driver or a coordinator waits for.
    pub awaited: BTreeMap<RequestId, Option<Answer>>,
    pub counts: Counts,
    /// Turns all checks off, except that of configurations, which the driver reads: the speed test
    /// measures the cost of the simulator alone.
    pub is_blind: bool,
    /// Whether every value is checked, as at the end of a run.
    checks_all: bool,
}

/// Numbers of events of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub strong_writes: u64,
    pub strong_reads: u64,
    pub timeouts: u64,
    pub refused: u64,
    pub values_seen: u64,
    pub expired: u64,
}

/// Prefix of keys that expire: their owner, one replica, deletes them after a time without use.
pub const EXPIRING: &str = "exp-";

/// Guarded group of the coordinators, and the prefix of its keys.
pub const GROUP: &str = "home-";

impl History {
    /// Announces a request that the driver sends.
    pub fn expect(&mut self, id: RequestId, asked: Asked) {
        if !self.is_blind {
            self.expected.insert(id, Box::new(asked));
        }
    }

    /// Keeps the answer to a request in `awaited`.
    pub fn await_answer(&mut self, id: RequestId) {
        self.awaited.insert(id, None);
    }

    /// A node has received a request: its time begins, and its process may be another one than that
    /// of earlier requests, which then have no answers.
    fn taken_up(&mut self, view: &SimulationView<'_, Node>, node: NodeIndex, id: RequestId) {
        let Some(asked) = self.expected.remove(&id) else { return };
        let by = view.process(node).expect("the acting node runs").id();
        let must = asked.key.as_ref().and_then(|key| self.must.get(key).cloned());
        let due = asked.within.map(|within| (node, view.clock(node).mono + within));
        if let Some((_, at)) = due {
            let (of, due) = self.due.entry(node).or_insert((by, BTreeSet::new()));
            if *of != by {
                (*of, *due) = (by, BTreeSet::new());
            }
            due.insert((at, id));
        }
        if let Ask::Decide { home, shard, term, seq } = asked.ask {
            self.decisions.invoked(home, shard, (term, seq));
        }
        if let Ask::Unsubscribe(subscription) = asked.ask {
            let told = self.notices.remove(&subscription).is_some();
            self.ended.insert(subscription, told);
            return; // this request has no answer
        }
        let must = must.unwrap_or_default();
        let open = Open { asked, by, due, must, knew: CausalContext::new() };
        self.open.insert(id, Box::new(open));
    }

    fn made(&mut self, node: &Node, id: RequestId, made: &Made) -> Result<(), String> {
        let Some(open) = self.open.get_mut(&id) else { return Ok(()) };
        open.knew = made.after.clone();
        if matches!(open.asked.ask, Ask::Unguard) && made.before != made.after {
            return Err(format!("a key was removed from the guarded map {}", made.key));
        }
        let (what, term) = match &open.asked.ask {
            Ask::Change(what) => (what.clone(), None),
            Ask::Decide { home, shard, term, seq } => {
                (What::Write(Slot::Of(*shard), *home), Some((*term, *seq)))
            }
            _ => return Ok(()),
        };
        let slot = if let What::Write(slot, _) = what { Some(slot) } else { None };
        let rank =
            slot.zip(made.value.as_ref()).and_then(|(slot, value)| rank_of(value, slot, term));
        let model = self.models.entry(made.key.clone()).or_default();
        model.made(node.id(), &made.before, &made.after, what, rank)
    }

    /// A key has expired: its owner deletes what it has seen of the key.
    fn expired(&mut self, node: &Node, made: &Made) -> Result<(), String> {
        self.counts.expired += 1;
        let model = self.models.entry(made.key.clone()).or_default();
        model.made(node.id(), &made.before, &made.after, What::Clear, None)
    }

    fn replied(&mut self, id: RequestId, answer: &Answer) -> Result<(), String> {
        if let Some(awaited) = self.awaited.get_mut(&id) {
            *awaited = Some(answer.clone());
        }
        if self.is_blind {
            return Ok(());
        }
        if !self.answered.insert(id) {
            return Err(format!("{id:?} was answered twice"));
        }
        let Some(open) = self.open.remove(&id) else { return Ok(()) };
        if let Some((node, at)) = open.due
            && let Some((_, due)) = self.due.get_mut(&node)
        {
            due.remove(&(at, id));
        }
        match answer {
            Ok(reply) => self.succeeded(&open, reply),
            Err(RequestError::Timeout(_)) => {
                self.counts.timeouts += 1;
                Ok(())
            }
            Err(_) => {
                self.counts.refused += 1;
                Ok(())
            }
        }
    }

    fn succeeded(&mut self, open: &Open, reply: &ReplicatorReply) -> Result<(), String> {
        let Asked { key, ask, strong, .. } = &*open.asked;
        match (ask, reply, key) {
            (Ask::Read, ReplicatorReply::Got { value, context }, Some(key)) => {
                self.check_value(key, value.as_ref(), context)?;
                if *strong {
                    self.counts.strong_reads += 1;
                    self.read(open, key, context)?;
                }
            }
            (Ask::Change(what), ReplicatorReply::Updated { value, dots }, Some(key)) => {
                let value = value.as_ref().ok_or("an update whose reply has no value")?;
                self.check_value(key, Some(value), value.state().context())?;
                if *strong {
                    self.written(key, what, dots, &open.knew);
                }
            }
            (Ask::Change(what), ReplicatorReply::Deleted { dots }, Some(key)) if *strong => {
                self.written(key, what, dots, &open.knew);
            }
            (Ask::Decide { home, .. }, ReplicatorReply::Updated { dots, .. }, Some(key)) => {
                self.counts.strong_writes += 1;
                self.must.entry(key.clone()).or_default().extend(dots);
                return self.decisions.acked(*home);
            }
            (Ask::Fence(term), ReplicatorReply::Fenced { values, .. }, _) => {
                return self.decisions.fenced(*term, values);
            }
            _ => {}
        }
        Ok(())
    }

    /// A majority has acknowledged a change. Later majority reads must show the change's own dots.
    /// After a removal, and after a change that had no effect, they must show everything that its
    /// author knew.
    fn written(&mut self, key: &KeyName, what: &What, dots: &DotSet, knew: &CausalContext) {
        self.counts.strong_writes += 1;
        let must = self.must.entry(key.clone()).or_default();
        must.extend(dots);
        if dots.is_empty() || what.takes_out() {
            must.merge(knew);
        }
    }

    fn read(&mut self, open: &Open, key: &KeyName, shown: &CausalContext) -> Result<(), String> {
        if !shown.includes(&open.must) {
            let lost = open.must.minus(shown);
            return Err(format!(
                "a majority read of {key} by {} does not show {lost:?}, which was acknowledged or \
                 read before its request",
                open.by
            ));
        }
        self.must.entry(key.clone()).or_default().merge(shown);
        Ok(())
    }

    /// Checks a value against the context that it was shown with.
    fn check_value(
        &mut self,
        key: &KeyName,
        value: Option<&Value>,
        context: &CausalContext,
    ) -> Result<(), String> {
        let empty = Model::default();
        let model = self.models.get(key).unwrap_or(&empty);
        // A check costs as much as the key has events: long histories are sampled.
        self.counts.values_seen += 1;
        if !self.checks_all && !self.counts.values_seen.is_multiple_of(1 + model.len() as u64 / 32)
        {
            return Ok(());
        }
        model.check(value, context).map_err(|why| format!("{key}: {why}"))
    }

    /// Checks a replica's value against its context, for the report of a failed run.
    pub fn judge(&self, key: &KeyName, value: &Value) -> Result<(), String> {
        let shown = (!value.state().is_bottom()).then_some(value);
        self.models.get(key).map_or(Ok(()), |model| model.check(shown, value.state().context()))
    }

    /// Fails if a request at the node has no answer by its deadline.
    fn overdue(&self, view: &SimulationView<'_, Node>, node: NodeIndex) -> Result<(), String> {
        let Some((by, due)) = self.due.get(&node) else { return Ok(()) };
        let Some((at, id)) = due.first() else { return Ok(()) };
        let lives = view.process(node).is_some_and(|node| node.id() == *by);
        if lives && *at <= view.clock(node).mono {
            let open = self.open.get(id).map(|open| &open.asked);
            return Err(format!("{id:?} has no answer by its deadline: {open:?}"));
        }
        Ok(())
    }

    /// Checks a cluster at rest: the members of the newest configuration hold the same bytes,
    /// everything that acknowledgements and reads have promised, and values that follow from their
    /// contexts.
    pub fn at_rest(&mut self, view: &SimulationView<'_, Node>) -> Result<(), String> {
        let Some(newest) = self.chain.newest().cloned().filter(|_| !self.is_blind) else {
            return Ok(());
        };
        self.checks_all = true;
        let mut first: Option<(ReplicaId, BTreeMap<KeyName, Vec<u8>>)> = None;
        for (_, node) in view.processes().filter(|(_, node)| newest.is_member(node.id())) {
            let mut held = BTreeMap::new();
            for (key, value) in node.replicator.dump() {
                if value.state().context().is_empty() {
                    continue;
                }
                let shown = (!value.state().is_bottom()).then_some(&value);
                self.check_value(key, shown, value.state().context())?;
                held.insert(key.clone(), value.state().encode());
            }
            for (key, must) in &self.must {
                let has = node.replicator.peek(key);
                let has = has.map(|value| value.state().context().clone()).unwrap_or_default();
                if !has.includes(must) {
                    let lost = must.minus(&has);
                    return Err(format!("{} has lost {lost:?} of {key}", node.id()));
                }
            }
            match &first {
                None => first = Some((node.id(), held)),
                Some((id, other)) if *other != held => {
                    let mut keys = held.keys().chain(other.keys());
                    let key = keys.find(|key| other.get(*key) != held.get(*key));
                    return Err(format!("{} and {id} differ at rest at {key:?}", node.id()));
                }
                Some(_) => {}
            }
        }
        self.subscribers_know(view)
    }

    /// The last notice of every subscription must equal the value that its node holds.
    fn subscribers_know(&self, view: &SimulationView<'_, Node>) -> Result<(), String> {
        for (subscription, (of, told)) in &self.notices {
            let Some((_, node)) = view.processes().find(|(_, node)| node.id() == *of) else {
                continue;
            };
            for (key, last) in told {
                let held = node.replicator.peek(key).filter(|value| !value.state().is_bottom());
                let same = match (&held, last) {
                    (Some(held), Some(last)) => held.reads_like(last),
                    (held, last) => held.is_none() && last.is_none(),
                };
                if !same {
                    let text = |value: Option<&Value>| {
                        value.map(|v| {
                            format!(
                                "{:?} {:?}",
                                v.get::<ostraca_ddata::types::ORSet<u64>>(),
                                v.state().context()
                            )
                        })
                    };
                    let (last, held) = (text(last.as_ref()), text(held.as_ref()));
                    return Err(format!(
                        "the last notice of {subscription:?} of {of} on {key} was {last:?}, the \
                         node holds {held:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn notified(
        &mut self,
        by: ReplicaId,
        id: SubscriptionId,
        notice: &SubscriptionNotice,
    ) -> Result<(), String> {
        let (key, value) = match notice {
            SubscriptionNotice::Changed { key, value, .. } => (key, Some(value.clone())),
            SubscriptionNotice::Deleted { key } => (key, None),
        };
        match self.ended.get(&id) {
            Some(true) => {
                return Err(format!("{id:?} of {by} had a notice on {key} after its end"));
            }
            // The requests for the subscription and for its end may both have waited for durable data
            // to load. Then its first notices follow the event that its end was received, so notices
            // of a subscription that had none before are not checked.
            Some(false) => return Ok(()),
            None => {}
        }
        if let Some(value) = &value {
            self.check_value(key, Some(value), value.state().context())?;
        }
        let (_, told) = self.notices.entry(id).or_insert((by, BTreeMap::new()));
        told.insert(key.clone(), value);
        Ok(())
    }
}

impl Observer<Node> for History {
    fn event(
        &mut self,
        view: &SimulationView<'_, Node>,
        node: NodeIndex,
        event: &Event,
        orders: &mut Orders<Node>,
    ) -> Result<(), InvariantViolation> {
        let process = view.process(node).expect("the emitting node runs");
        let outcome = match event {
            Event::Replied(id, answer) => self.replied(*id, answer),
            Event::Installed(epoch) => self.chain.installed(process.id(), epoch),
            _ if self.is_blind => Ok(()),
            Event::Asked(id) => {
                self.taken_up(view, node, *id);
                Ok(())
            }
            Event::Made(id, made) => self.made(process, *id, made),
            Event::Expired(made) => self.expired(process, made),
            Event::Notified(id, notice) => self.notified(process.id(), *id, notice),
            _ => Ok(()),
        };
        outcome.map_err(InvariantViolation::new)?;
        if let Some(fault) = self.strikes.after(view, node, event, &self.chain) {
            orders.fault(fault);
        }
        Ok(())
    }

    fn check(&mut self, view: &SimulationView<'_, Node>) -> Result<(), InvariantViolation> {
        match view.touched() {
            Some(node) => self.overdue(view, node).map_err(InvariantViolation::new),
            None => Ok(()),
        }
    }
}
