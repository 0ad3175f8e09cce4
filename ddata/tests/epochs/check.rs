//! Properties that must hold after every step.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId};

use crate::parent::{Cell, Term};
use crate::world::Node;

/// The incarnation of a hostile client: the transport admits it, no member lets it in.
pub(crate) const HOSTILE: u64 = 99;

/// A violated property, by its letter in docs/protocol/configurations.md#properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Violation {
    /// Two different configurations with one id.
    A,
    /// An acknowledged or returned token is missing from a majority read.
    Bc,
    /// Two acknowledged decisions, neither built on the other.
    D1,
    /// A recovered coordinator lacks a decision that was acknowledged or answered under a term up
    /// to its own.
    D2,
    /// A configuration that no quorum decided is installed, or a ballot of its maker is promised.
    Forged,
    /// A configuration has a member that had left, or was barred, in an earlier one.
    Returned,
    /// A replica acknowledged although it lacks data acknowledged in an earlier configuration.
    /// Harmless alone (docs/protocol/configurations.md#eligible-replica), so it is checked only in
    /// strict runs.
    Unsynced,
}

/// All that was acknowledged or returned to clients so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checker {
    pub(crate) configurations: BTreeMap<EpochId, Arc<Epoch>>,
    /// Tokens acknowledged or returned, with the configuration.
    pub(crate) known: Vec<(EpochId, u64)>,
    acked: Vec<Cell>,
    spoken: BTreeMap<(Term, u64), Vec<u16>>, // by term and coordinator
    pub(crate) found: Option<Violation>,
    pub(crate) strict: bool,
}

impl Checker {
    pub(crate) fn installed(&mut self, epoch: &Arc<Epoch>) {
        let first = self.configurations.entry(epoch.id()).or_insert_with(|| epoch.clone());
        if first != epoch {
            self.violated(Violation::A);
        }
        if epoch.is_member(ReplicaId::new(HOSTILE)) {
            self.violated(Violation::Forged);
        }
        let has_left = |id| {
            let earlier = self.configurations.range(..epoch.id()).map(|(_, earlier)| earlier);
            earlier.into_iter().any(|earlier| earlier.left().contains(id))
        };
        if epoch.members().iter().any(has_left) {
            self.violated(Violation::Returned);
        }
    }

    /// The number of barred incarnations: listed as departed, never members.
    pub(crate) fn barred(&self) -> u64 {
        let configurations = || self.configurations.values();
        let was_member = |id: &ReplicaId| configurations().any(|epoch| epoch.is_member(*id));
        let left = configurations().next_back().map(|epoch| epoch.left()).unwrap_or_default();
        left.iter().filter(|id| !was_member(id)).count() as u64
    }

    pub(crate) fn violated(&mut self, violation: Violation) {
        self.found.get_or_insert(violation);
    }

    pub(crate) fn all_known(&self) -> u64 {
        self.known.iter().fold(0, |all, (_, tokens)| all | tokens)
    }

    pub(crate) fn promised(&mut self, epoch: EpochId, tokens: u64) {
        self.known.push((epoch, tokens));
    }

    pub(crate) fn read(&mut self, epoch: EpochId, expected: u64, got: u64) {
        if expected & !got != 0 {
            self.violated(Violation::Bc);
        }
        self.promised(epoch, got);
    }

    /// A replica has acknowledged or answered in `epoch` and holds `tokens`.
    pub(crate) fn served(&mut self, epoch: EpochId, tokens: u64) {
        let earlier = self.known.iter().filter(|(known, _)| *known < epoch);
        if self.strict && earlier.fold(0, |all, (_, t)| all | t) & !tokens != 0 {
            self.violated(Violation::Unsynced);
        }
    }

    /// Checks that no majority that could answer a read now lacks a known token.
    pub(crate) fn reads(&mut self, nodes: &BTreeMap<u64, Node>) {
        let known = self.all_known();
        if known == 0 || self.found.is_some() {
            return;
        }
        for epoch in self.configurations.values() {
            let answers: Vec<_> = nodes
                .values()
                .filter(|node| {
                    node.epochs.eligible()
                        && node.epochs.installed() == Some(epoch)
                        && node.epochs.is_voter()
                })
                .map(|node| node.parent.data.tokens)
                .collect();
            let majority = epoch.voters().len() / 2 + 1;
            let lacking = |token: u64| answers.iter().filter(|held| *held & token == 0).count();
            if (0..64).map(|bit| 1 << bit).any(|t| known & t != 0 && lacking(t) >= majority) {
                self.found = Some(Violation::Bc);
            }
        }
    }

    /// A majority has acknowledged a decision.
    pub(crate) fn acked(&mut self, coordinator: u64, cell: &Cell) {
        let chain = |other: &Cell| {
            other.history.starts_with(&cell.history) || cell.history.starts_with(&other.history)
        };
        if !self.acked.iter().all(chain) {
            self.violated(Violation::D1);
        }
        self.acked.push(cell.clone());
        self.speaks(cell.term, coordinator, &cell.history);
    }

    /// A recovered coordinator answers with this history.
    pub(crate) fn speaks(&mut self, term: Term, coordinator: u64, history: &[u16]) {
        self.spoken.insert((term, coordinator), history.to_vec());
        let has = |all: &[u16], part: &[u16]| part.iter().all(|decision| all.contains(decision));
        let fine = self.spoken.iter().all(|((lower, _), earlier)| {
            self.spoken
                .iter()
                .all(|((higher, _), later)| lower.above(*higher) || has(later, earlier))
        });
        if !fine {
            self.violated(Violation::D2);
        }
    }
}
