//! A run in plain words. C1, C2 … are configurations by number, with their members in braces;
//! "ballot 1/2" is ballot 1 of node 2; a heartbeat has the number that its holder gave it.

use std::collections::{BTreeMap, BTreeSet};

use ostraca::cluster::lease::LeaseMessage;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Ballot, BallotRefusal, Epoch, EpochId, EpochMessage};

use super::super::guard::GuardMessage;
use super::super::node::Kept;
use super::{Body, Event, Move, NODES, Place, Search, State, Step, bits};

/// An event of one node, and the state of that node before it.
type Heard = (u32, Event);

impl Search<'_> {
    /// The steps to the state with this index, one line for each.
    pub(super) fn story(&mut self, index: usize) -> Vec<String> {
        let mut path = vec![self.seen.order[index].0];
        let mut at = index;
        while let Some(&(_, before)) = self.seen.order.get(at) {
            let Some((earlier, _)) = self.seen.order.get(before as usize) else { break };
            path.push(*earlier);
            at = before as usize;
        }
        path.reverse();
        path.windows(2).map(|pair| self.line(&pair[0], &pair[1])).collect()
    }

    fn line(&mut self, before: &State, after: &State) -> String {
        let Some((id, events, step)) = (0..NODES).find_map(|id| {
            let (events, step) = self.way(before, after, id)?;
            Some((id, events, step))
        }) else {
            return "a step that leads to the next state was not found".to_owned();
        };
        let heard = |(local, event): &Heard| self.event(*local, *event);
        let events: Vec<String> = events.iter().map(heard).collect();
        let mut effects = self.changes(before, after, id);
        effects.extend(self.sent(&step));
        let line = format!("node {} {}", id + 1, events.join(", then "));
        if effects.is_empty() { line } else { format!("{line}: {}", effects.join(", ")) }
    }

    /// The events at one node that lead from a state to the next: any number of invisible ones, and
    /// a visible one.
    fn way(&mut self, before: &State, after: &State, id: usize) -> Option<(Vec<Heard>, Move)> {
        let beats = self.beats(before);
        let place = self.places[before.places[id] as usize];
        let Place { local, inbox } = place;
        let over = self.over(place);
        let mut found: Vec<(u32, Option<(usize, Event)>)> = vec![(local, None)];
        let mut visited = BTreeSet::from([local]);
        let mut next = 0;
        while next < found.len() {
            let local = found[next].0;
            let own = self.locals[local as usize].node.own_events(before.facts.known);
            for event in bits(&inbox).map(Event::Hear).chain(own) {
                let Some(step) = self.step(local, event, (beats, over)) else { continue };
                let Step { local: to, said, acked, lacked, speaks, is_shown } = step;
                if !is_shown {
                    if visited.insert(to) {
                        found.push((to, Some((next, event))));
                    }
                    continue;
                }
                let place = self.place(Place { local: to, inbox });
                let step = Move { place, said, acked, lacked, speaks };
                if self.follow(before, id, &step) == *after {
                    let mut events = vec![(local, event)];
                    let mut at = next;
                    while let (_, Some((earlier, event))) = found[at] {
                        events.push((found[earlier].0, event));
                        at = earlier;
                    }
                    events.reverse();
                    return Some((events, step));
                }
            }
            next += 1;
        }
        None
    }

    fn event(&self, local: u32, event: Event) -> String {
        let local = &self.locals[local as usize];
        match event {
            Event::Hear(message) => {
                let (from, body) = &self.heard[local.id][usize::from(message)];
                match body {
                    Body::Over(number) => {
                        format!("may know that the lease from heartbeat {number} has ended")
                    }
                    Body::Frozen(epoch, kept) => {
                        let (epoch, data) = (number(*epoch), self.data(*kept));
                        format!("merges the snapshot of node {} for {epoch} ({data})", from.get())
                    }
                    Body::State(epoch, kept) => {
                        let (epoch, data) = (number(*epoch), self.data(*kept));
                        format!("merges the state of node {} in {epoch} ({data})", from.get())
                    }
                    _ if *from == local.node.me => {
                        format!("receives {} from itself", body_text(body))
                    }
                    _ => format!("receives {} from node {}", body_text(body), from.get()),
                }
            }
            Event::Propose => {
                let change = local.node.wish();
                let ids = |ids: &[ReplicaId]| {
                    ids.iter().map(|id| id.get().to_string()).collect::<Vec<_>>().join(", ")
                };
                let join = (!change.join.is_empty()).then(|| format!("join {}", ids(&change.join)));
                let leave =
                    (!change.leave.is_empty()).then(|| format!("leave {}", ids(&change.leave)));
                let all: Vec<String> = join.into_iter().chain(leave).collect();
                format!("proposes a change ({})", all.join(", "))
            }
            Event::LosePatience => "takes the seal for abandoned".to_owned(),
            Event::Ack => "acknowledges the write".to_owned(),
            Event::Lack => "answers a read without the acknowledged write".to_owned(),
            Event::Beat => "sends a heartbeat".to_owned(),
            Event::Expire => "lets the lease from its oldest heartbeat end".to_owned(),
            Event::Fence => "takes a term as a coordinator".to_owned(),
            Event::Decide => "decides as a coordinator".to_owned(),
        }
    }

    /// The modelled part of a replica's data.
    fn data(&self, kept: Kept) -> String {
        match (self.case.token, kept.token) {
            (true, true) => "with the write".to_owned(),
            (true, false) => "without the write".to_owned(),
            (false, _) => kept.guarded.to_string(),
        }
    }

    /// The changes of a step that others can notice.
    fn changes(&self, before: &State, after: &State, id: usize) -> Vec<String> {
        let (was, is) = (self.local(before, id), self.local(after, id));
        let mut changes = Vec::new();
        let epoch = is.node.epochs.installed().filter(|_| is.installed != was.installed);
        changes.extend(epoch.map(|epoch| format!("installs {}", members(epoch))));
        let sealed = is.node.epochs.sealed() && !was.node.epochs.sealed();
        changes.extend(sealed.then(|| "is sealed".to_owned()));
        let accepted = is.node.accepted().filter(|_| is.accepted != was.accepted);
        changes
            .extend(accepted.map(|(by, epoch)| {
                format!("accepts {} in ballot {}", members(epoch), ballot(*by))
            }));
        if is.serves != was.serves {
            let text = if is.serves { "serves from now on" } else { "stops serving" };
            changes.push(text.to_owned());
        }
        for (at, spoken) in after.facts.spoken.iter().enumerate() {
            if *spoken != before.facts.spoken[at] {
                changes.push(format!("acts, knowing {}", decisions(spoken - 1)));
            }
        }
        changes
    }

    /// The messages that the step sends, each with its receivers.
    fn sent(&self, step: &Move) -> Vec<String> {
        let mut sent: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for &(to, message) in &step.said {
            let (_, body) = &self.heard[usize::from(to)][usize::from(message)];
            if !matches!(body, Body::Over(_) | Body::Frozen(..) | Body::State(..)) {
                sent.entry(body_text(body)).or_default().push((to + 1).to_string());
            }
        }
        let line = |(body, to): (String, Vec<String>)| format!("sends {body} to {}", to.join(", "));
        sent.into_iter().map(line).collect()
    }
}

fn ballot(ballot: Ballot) -> String {
    format!("{}/{}", ballot.number, ballot.node.get())
}

fn number(epoch: EpochId) -> String {
    format!("C{}", epoch.number)
}

fn members(epoch: &Epoch) -> String {
    let members: Vec<String> = epoch.members().iter().map(|id| id.get().to_string()).collect();
    format!("{} {{{}}}", number(epoch.id()), members.join(", "))
}

fn body_text(body: &Body) -> String {
    match body {
        Body::Epoch(message) => epoch_text(message),
        Body::Lease(LeaseMessage::Beat(beat)) => {
            format!("heartbeat {} of {}", beat.number, number(beat.epoch))
        }
        Body::Lease(LeaseMessage::Granted(beat)) => {
            format!("the grant of heartbeat {} of {}", beat.number, number(beat.epoch))
        }
        Body::Lease(LeaseMessage::Release { number }) => format!("Release after {number}"),
        Body::Over(heartbeat) => format!("the end of the lease from heartbeat {heartbeat}"),
        Body::Frozen(epoch, _) => format!("the snapshot for {}", number(*epoch)),
        Body::State(epoch, _) => format!("the state in {}", number(*epoch)),
        Body::Guard(message) => guard_text(message),
    }
}

fn decisions(known: u8) -> String {
    let of = (1..=8).filter(|by| known & (1 << (by - 1)) != 0).map(|by| by.to_string());
    let of: Vec<String> = of.collect();
    if of.is_empty() { "no decision".to_owned() } else { format!("decision {}", of.join(", ")) }
}

fn guard_text(message: &GuardMessage) -> String {
    match message {
        GuardMessage::Fence { by, .. } => format!("Fence of coordinator {by}"),
        GuardMessage::Promised { by, value, .. } => {
            format!("Promised to coordinator {by}, holding {}", decisions(value.decisions))
        }
        GuardMessage::Write { by, value, decides, .. } => {
            let purpose = if *decides { "decision" } else { "recovery write" };
            format!("the {purpose} of coordinator {by}, with {}", decisions(value.decisions))
        }
        GuardMessage::Written { by, .. } => format!("Written to coordinator {by}"),
        GuardMessage::Refused { by } => format!("Fenced to coordinator {by}"),
    }
}

fn epoch_text(message: &EpochMessage) -> String {
    use EpochMessage as M;
    match message {
        M::Withhold { ballot: by, .. } => format!("Withhold ({})", ballot(*by)),
        M::Withheld { ballot: by, .. } => format!("Withheld ({})", ballot(*by)),
        M::Seal { ballot: by, proposal, .. } => {
            format!("Seal ({}) for {}", ballot(*by), members(proposal))
        }
        M::Sealed { ballot: by, accepted: None, .. } => format!("Sealed ({})", ballot(*by)),
        M::Sealed { ballot: by, accepted: Some((at, proposal)), .. } => format!(
            "Sealed ({}), having accepted {} in {}",
            ballot(*by),
            members(proposal),
            ballot(*at)
        ),
        M::Refused { ballot: by, why: BallotRefusal::Promised(higher), .. } => {
            format!("Refused ({}): {} is promised", ballot(*by), ballot(*higher))
        }
        M::Refused { ballot: by, why: BallotRefusal::Leased(_), .. } => {
            format!("Refused ({}): a lease runs", ballot(*by))
        }
        M::Sync { ballot: by, proposal, .. } => {
            format!("Sync ({}) for {}", ballot(*by), members(proposal))
        }
        M::Synced { epoch } => format!("Synced after {}", number(*epoch)),
        M::Ping { .. } => "Ping".to_owned(),
        M::Pong { .. } => "Pong".to_owned(),
        M::Accept { ballot: by, proposal, .. } => {
            format!("Accept ({}) of {}", ballot(*by), members(proposal))
        }
        M::Accepted { ballot: by, .. } => format!("Accepted ({})", ballot(*by)),
        M::Install { epoch } => format!("Install of {}", members(epoch)),
        M::Ask { .. } => "Ask for a newer configuration".to_owned(),
    }
}
