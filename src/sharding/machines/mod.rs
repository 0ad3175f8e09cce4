//! The sharding machines of a node. Each entity type has a region, a singleton that decides where
//! the type's coordinator runs, and the coordinator itself while it runs here. [`Machines`]
//! composes them into one machine that runs beside membership.
//!
//! Every member has it, whether it has started a type or not, because a node that wants to run a
//! coordinator needs the consent of all others. The machine does no I/O, reads no clock, and
//! handles no message of an entity.

mod allocations;
mod cluster_query;
mod eligibility;
mod one_type;
mod port;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::{Epoch, EpochId};
use ostraca_ddata::replicator::request::{ReplicatorReply, RequestError, SubscriptionNotice};
use ostraca_ddata::types::Term;

use self::cluster_query::OpenClusterQuery;
pub use self::cluster_query::{
    ClusterQuery, ClusterQueryMessage, ClusterQueryResult, ClusterShardingStats, Counting,
};
pub use self::one_type::TypeMachines;
use self::one_type::{SharedContext, TypeSpec};
pub use self::port::{Hosts, MachineMessage, ShardingInput, ShardingOutput};
use super::allocation::StrategyAnswer;
use super::config::ShardingConfig as Settings;
use super::ids::{EntityType, RegionId};
use super::region::{PayloadPartSizes, RegionInput};
use super::store::HomesKey;
use super::wire::{ShardingMessage, ToCoordinator, ToRegion};
use crate::cluster::events::ClusterState;
use crate::cluster::lease::{DepartedMembers, Departure};
use crate::cluster::member::{ENTITY_TYPES_MAX, Status};
use crate::cluster::singleton::SingletonMessage;

type ShardingOutbox = Outbox<ShardingOutput>;

/// Maximum number of concurrent cluster queries, which messages and outputs call surveys. Further
/// ones end at once, with every region unanswered, and send nothing.
pub const QUERIES_MAX: usize = 1_024;

/// The machines of all entity types on one node.
///
/// A type is *started* if the program has started it here. Other types are known because a peer
/// asked for the right to run their coordinator; they have a singleton only. A type is never
/// forgotten. The node *drains* between `Drain` and `StopDraining` and from `PrepareToLeave` on,
/// *leaves* from the first `Leave` on, and is *out* after `Out` or its removal; the last two, and
/// the drain since `PrepareToLeave`, never end.
#[derive(Clone, Debug)]
pub struct Machines {
    types: BTreeMap<EntityType, TypeMachines>, // ≤ ENTITY_TYPES_MAX started, and as many asked for
    with: SharedContext,                       // passed to the machines of each type
    // The newest installed configuration; nodes that it removed may still run. `with.epoch` is the
    // one in effect.
    newest: Option<Arc<Epoch>>,
    departures: DepartedMembers,
    /// Removed nodes that had announced that nothing runs on them any longer.
    stopped: BTreeSet<ReplicaId>, // ≤ members removed since the configuration in effect
    // when the next departed node counts as over: it certainly runs no entity any longer
    over_at: Option<Instant>,
    cluster_queries: BTreeMap<u64, OpenClusterQuery>, // ≤ QUERIES_MAX
    draining: bool,        // announced to membership; only `StopDraining` clears it
    drains_for_good: bool, // since `PrepareToLeave`: `StopDraining` has no effect
    leaving: bool,         // since the first `Leave`, for good
    left: bool,            // `ShardingOutput::Left` was output
    refused: u64,
}

impl Machines {
    /// The machines of incarnation `me`, with no type started. If the configuration disables
    /// leases, a removed node counts as running for `removal_margin` longer. With leases its
    /// removal has waited for its lease, so there is no wait, or, if the configuration was forced,
    /// one lease.
    #[must_use]
    pub fn new(me: ReplicaId, removal_margin: Duration) -> Self {
        let with = SharedContext {
            me,
            cut: PayloadPartSizes::default(),
            state: Arc::default(),
            epoch: None,
            leased: false,
            forced: false,
            is_out: false,
            last_id: 0,
            announce: false,
        };
        Self {
            types: BTreeMap::new(),
            with,
            newest: None,
            departures: DepartedMembers::new(removal_margin),
            stopped: BTreeSet::new(),
            over_at: None,
            cluster_queries: BTreeMap::new(),
            draining: false,
            drains_for_good: false,
            leaving: false,
            left: false,
            refused: 0,
        }
    }

    /// Sets the lengths of payloads, their parts and lists of shards, which must fit into messages
    /// of the transport. Applies only to types that are started afterwards.
    #[must_use]
    pub fn cutting(mut self, cut: PayloadPartSizes) -> Self {
        self.with.cut = cut;
        self
    }

    /// The machines of a type; `None` if neither the program nor a peer has mentioned it.
    #[must_use]
    pub fn of(&self, entity_type: &EntityType) -> Option<&TypeMachines> {
        self.types.get(entity_type)
    }

    /// All types that were started here or that peers have asked about.
    pub fn types(&self) -> impl Iterator<Item = (&EntityType, &TypeMachines)> {
        self.types.iter()
    }

    /// Whether no further shards come to this node: it drains or leaves.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        self.draining || self.leaving
    }

    /// Regions that host a type, according to the members' announcements, whatever their status and
    /// reachability; this node included. Proxies are not listed.
    pub fn regions(&self, entity_type: &EntityType) -> impl Iterator<Item = RegionId> {
        let members = self.with.state.members.iter();
        let hosting = members
            .filter(|(_, member)| eligibility::offers(member, entity_type))
            .map(|(id, _)| *id);
        hosting.map(RegionId::new)
    }

    /// Messages and starts refused because of `ENTITY_TYPES_MAX`, and messages of unknown types.
    /// Singleton messages of unknown types are not counted, unless `ENTITY_TYPES_MAX` refuses them:
    /// every member gets them, whatever types it has started. Recounts and answers to cluster
    /// queries are never counted.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Makes sure that the machines of a type exist, without starting the type. New machines get
    /// the members and the lease at once, before they are listed. Returns `false`, and counts a
    /// refusal, if `ENTITY_TYPES_MAX` of the kind exist: started types and types that only peers
    /// ask about have separate limits, so that peers cannot use up the program's share. `starts`:
    /// the program will start the type, which then passes from the second kind to the first, with
    /// the same singleton. The limits do not apply to a type that is started already, nor, without
    /// `starts`, to one that exists.
    fn entry(
        &mut self,
        now: Now,
        entity_type: &EntityType,
        starts: bool,
        out: &mut ShardingOutbox,
    ) -> bool {
        // `hosts` is `None` for a type that the program has not started.
        let is_of_sort = |of: &TypeMachines| of.hosts().is_some() == starts;
        let is_new = !self.types.contains_key(entity_type);
        let changes_sort = starts && self.types.get(entity_type).is_some_and(|of| !is_of_sort(of));
        let of_sort = || self.types.values().filter(|of| is_of_sort(of)).count();
        if (is_new || changes_sort) && of_sort() >= ENTITY_TYPES_MAX {
            self.refused += 1;
            return false;
        }
        if is_new {
            let mut new = TypeMachines::new(self.with.me, entity_type.clone());
            // Its start reads everything else from `with`.
            new.members(now, &mut self.with, out);
            new.leased(now, &mut self.with, out);
            self.types.insert(entity_type.clone(), new);
        }
        true
    }

    /// Starts a type, and announces the hosted types again. Only counts a refusal if too many types
    /// are started. A second start keeps the first settings, but announces again. While this node
    /// leaves, the region is told to leave at once; a `Left` that was output before is not
    /// repeated.
    fn start(
        &mut self,
        now: Now,
        entity_type: &EntityType,
        settings: Settings,
        spec: TypeSpec,
        out: &mut ShardingOutbox,
    ) {
        if !self.entry(now, entity_type, true, out) {
            return;
        }
        if let Some(of_type) = self.types.get_mut(entity_type) {
            of_type.start(now, settings, spec, &mut self.with, out);
        }
        if self.leaving {
            self.tell_region(now, entity_type, self.leave_input(), out);
        }
        self.with.announce = true;
    }

    /// Tells membership which types this node hosts: the started ones that are no proxies and whose
    /// settings agree. Also tells whether the node drains; that it leaves does not count as
    /// draining. Announces an unchanged list again.
    fn announce(&self, out: &mut ShardingOutbox) {
        let hosting = self.types.iter().filter(|(_, of)| of.offers_shards());
        let entity_types: BTreeSet<String> =
            hosting.map(|(name, _)| name.as_str().to_owned()).collect();
        out.push(ShardingOutput::Host { entity_types, draining: self.draining });
    }

    /// Handles a message of another node's machines, or this node's own answer to a cluster query.
    /// An answer goes to its query by its number alone, whether the type is known here or not. A
    /// recount about a type that is not started here gets an empty answer.
    ///
    /// Of a type that is unknown here, only `HandOverToMe` is handled: it creates the type's
    /// singleton, which can give another node the right to run the coordinator. Any other message
    /// is dropped, and counted as refused unless it is a singleton message. Of a type that is known
    /// but not started, messages for the other machines are dropped and not counted.
    fn message(
        &mut self,
        now: Now,
        from: ReplicaId,
        entity_type: &EntityType,
        word: MachineMessage,
        out: &mut ShardingOutbox,
    ) {
        if let MachineMessage::ClusterQuery(
            answer @ (ClusterQueryMessage::Told { number, .. }
            | ClusterQueryMessage::Because { number, .. }
            | ClusterQueryMessage::Lives { number, .. }),
        ) = word
        {
            return self.query_answered(now, from, number, answer, out);
        }
        if let MachineMessage::Sharding(ShardingMessage::Region(ToRegion::Recount {
            term,
            origin,
            ..
        })) = word
            && self.of(entity_type).is_none_or(|of_type| of_type.region().is_none())
        {
            return self.answer_empty_recount(from, entity_type, (term, origin), out);
        }
        // Of a type that was not started here, this node can only give the right to run its
        // coordinator.
        let is_known = self.types.contains_key(entity_type);
        let asks = matches!(word, MachineMessage::Singleton(SingletonMessage::HandOverToMe { .. }));
        if !is_known && !asks {
            self.refused += u64::from(!matches!(word, MachineMessage::Singleton(_)));
            return;
        }
        if !self.entry(now, entity_type, false, out) {
            return;
        }
        if let Some(of_type) = self.types.get_mut(entity_type) {
            of_type.message(now, from, word, &mut self.with, out);
        }
    }

    /// Answers a recount about a type that this node has not started: it hosts and knows nothing. A
    /// recount follows a forced recovery: the new coordinator asks all regions for the shards that
    /// they host and the decisions that they know. One from another recovery is not answered,
    /// because it belongs to a part of the cluster that shares no decisions with this one. Neither
    /// is one from a node outside the configuration in effect, nor any before there is one.
    fn answer_empty_recount(
        &self,
        to: ReplicaId,
        entity_type: &EntityType,
        (term, origin): (Term, EpochId),
        out: &mut ShardingOutbox,
    ) {
        let epoch = self.with.epoch.as_ref().filter(|epoch| epoch.is_member(to));
        if epoch.is_some_and(|epoch| epoch.origin() == Some(origin)) {
            let (hosted, told, highest) = Default::default(); // `told`: known decisions
            let message = ToCoordinator::Counted { term, hosted, told, highest };
            let word = MachineMessage::Sharding(ShardingMessage::Coordinator(message));
            out.push(ShardingOutput::Send { to, entity_type: entity_type.clone(), word });
        }
    }

    /// Begins a cluster query and sends its requests. At [`QUERIES_MAX`] open queries it ends at
    /// once, with every region unanswered, and sends nothing. A query with no node to ask, or only
    /// nodes that are no members, also ends at once; the latter get their request. The caller must
    /// not reuse the `id` of an open query, which the new one would replace without a result.
    fn cluster_query(
        &mut self,
        now: Now,
        id: u64,
        (entity_type, question): (EntityType, ClusterQuery),
        within: Duration,
        out: &mut ShardingOutbox,
    ) {
        let asked = self.nodes_to_ask(&entity_type, &question);
        let cluster_query = OpenClusterQuery::new(now.mono, entity_type, question, within, asked);
        if self.cluster_queries.len() >= QUERIES_MAX {
            return out.push(ShardingOutput::Answered { id, found: cluster_query.end() });
        }
        self.cluster_queries.insert(id, cluster_query);
        self.collect(now, out);
    }

    /// The nodes that a question concerns: the hosts of the type, but for [`ClusterQuery::Exists`]
    /// only its region, member or not. For [`ClusterQuery::Why`], if the type is started here,
    /// these include this node and the coordinator's node, if the type's proxy knows it, even if
    /// they no longer offer to host: they remember decisions. A type that is not started here has
    /// no proxy, so only its hosts are asked.
    fn nodes_to_ask(
        &self,
        entity_type: &EntityType,
        question: &ClusterQuery,
    ) -> BTreeSet<RegionId> {
        let mut asked: BTreeSet<RegionId> = match question {
            ClusterQuery::Exists { at, .. } => return BTreeSet::from([*at]),
            ClusterQuery::Count | ClusterQuery::Why(_) => self.regions(entity_type).collect(),
        };
        if matches!(question, ClusterQuery::Why(_)) {
            let of_type = self.of(entity_type);
            let coordinator = of_type.and_then(TypeMachines::coordinator_at);
            asked.extend(coordinator.map(RegionId::new));
            // A node that has not started the type gives no answer.
            let region = of_type.and_then(TypeMachines::region);
            asked.extend(region.map(|_| RegionId::new(self.with.me)));
        }
        asked
    }

    /// Handles an answer to a cluster query of any kind, and ends the query if this completes it.
    /// An answer to a query that has ended is dropped. Otherwise all queries are advanced, see
    /// [`collect`](Self::collect), also if the answer was ignored.
    fn query_answered(
        &mut self,
        now: Now,
        from: ReplicaId,
        number: u64,
        answer: ClusterQueryMessage,
        out: &mut ShardingOutbox,
    ) {
        if let Some(cluster_query) = self.cluster_queries.get_mut(&number) {
            cluster_query.told(from, answer);
            self.collect(now, out);
        }
    }

    /// Sends the requests of all cluster queries that are due: first ones, and repetitions to nodes
    /// that have not answered. Then ends the queries that are complete or timed out, or whose
    /// unanswered nodes are all no members by the present state of membership.
    ///
    /// A request to this node is carried out here without a message; `Why` is answered at once,
    /// `Count` and `Exists` are output as orders, again at each repetition. If the type is not
    /// started here, this node stays unanswered.
    fn collect(&mut self, now: Now, out: &mut ShardingOutbox) {
        for (number, cluster_query) in &mut self.cluster_queries {
            for region in cluster_query.take_due(now.mono) {
                let (to, question) = (region.replica(), cluster_query.question.request(*number));
                // A question to this node: it is both the asked node and the asker.
                let local =
                    self.types.get(&cluster_query.entity_type).filter(|_| to == self.with.me);
                match local.map(|of_type| of_type.answer_query(to, to, question.clone(), out)) {
                    Some(answer) => {
                        answer.into_iter().for_each(|answer| cluster_query.told(to, answer));
                    }
                    None if to == self.with.me => {} // the type is not started here
                    None => {
                        let (entity_type, word) = (
                            cluster_query.entity_type.clone(),
                            MachineMessage::ClusterQuery(question),
                        );
                        out.push(ShardingOutput::Send { to, entity_type, word });
                    }
                }
            }
        }
        let members = &self.with.state.members;
        let is_gone = |region: &RegionId| !members.contains_key(&region.replica());
        let ended = self
            .cluster_queries
            .iter()
            .filter(|(_, cluster_query)| cluster_query.is_over(now.mono, is_gone));
        for id in ended.map(|(id, _)| *id).collect::<Vec<_>>() {
            if let Some(found) = self.cluster_queries.remove(&id).map(OpenClusterQuery::end) {
                out.push(ShardingOutput::Answered { id, found });
            }
        }
    }

    /// Passes an input to the region of a type; dropped if the type is not started here.
    fn tell_region(
        &mut self,
        now: Now,
        entity_type: &EntityType,
        input: RegionInput,
        out: &mut ShardingOutbox,
    ) {
        if let Some(of_type) = self.types.get_mut(entity_type) {
            of_type.fact(now, input, &mut self.with, out);
        }
    }

    /// Passes an answer of the Replicator to the type whose open request has this `id`, for its
    /// coordinator or for its pins. Drops an answer that no type awaits any longer.
    fn answered(
        &mut self,
        now: Now,
        id: u64,
        reply: Result<ReplicatorReply, RequestError>,
        out: &mut ShardingOutbox,
    ) {
        if let Some(of_type) = self.types.values_mut().find(|of_type| of_type.awaits(id)) {
            let answer = |key: &HomesKey| key.answer(reply);
            of_type.answered(now, id, answer, &mut self.with, out);
        } else if let Some(of_type) = self.types.values_mut().find(|of| of.awaits_pins(id)) {
            of_type.answered_pins(now, reply, &mut self.with, out);
        }
    }

    /// Passes a change of pins to the type that watches them by request `id`; dropped if none does.
    fn noticed(&mut self, now: Now, id: u64, notice: &SubscriptionNotice) {
        if let Some(of_type) = self.types.values_mut().find(|of_type| of_type.watches(id)) {
            of_type.noticed(now, notice);
        }
    }

    /// Passes an answer of the program's allocation strategy to its type; dropped if the type is
    /// not started here.
    fn advised(
        &mut self,
        now: Now,
        entity_type: &EntityType,
        number: u64,
        advice: Result<StrategyAnswer, Arc<str>>,
        out: &mut ShardingOutbox,
    ) {
        if let Some(of_type) = self.types.get_mut(entity_type) {
            of_type.advised(now, number, advice, &mut self.with, out);
        }
    }

    /// Calls `tell` for every known type, started or not, in the order of names.
    fn each(
        &mut self,
        out: &mut ShardingOutbox,
        mut tell: impl FnMut(&mut TypeMachines, &mut SharedContext, &mut ShardingOutbox),
    ) {
        for of_type in self.types.values_mut() {
            tell(of_type, &mut self.with, out);
        }
    }

    /// Takes over a new state of membership and passes it to all types; the same `Arc` again
    /// changes nothing, an equal state in another `Arc` is passed on. If the cluster begins to shut
    /// down while this node leaves, the regions are told to leave again, in place. Cluster queries
    /// see removed members at their next step, within a second.
    fn state(&mut self, now: Now, state: Arc<ClusterState>, out: &mut ShardingOutbox) {
        if !Arc::ptr_eq(&self.with.state, &state) {
            let prepared = self.with.state.preparing_for_shutdown;
            self.with.state = state;
            self.each(out, |of_type, with, out| of_type.members(now, with, out));
            if self.leaving && !prepared && self.with.state.preparing_for_shutdown {
                // The regions were told to hand over. From now on nothing moves, so they are told
                // to stop in place.
                self.leave(now, out);
            }
        }
    }

    /// Handles an installed configuration. It takes effect once all members that it removed are
    /// over: certainly run no entity any longer. With leases that is at once, because the removal
    /// has waited for their leases, unless the configuration was forced: an operator's recovery
    /// without a quorum. Members that were Exiting are over at once. If it removes this node, the
    /// node is out, also before it takes effect. Ignored unless its id, the generation first, is
    /// higher than that of the newest one. The first configuration removes and forces nothing.
    ///
    /// A forced configuration stops the coordinators here. They start again once it is in effect,
    /// and not in this call even if that is at once: a start is tried by a tick 1 s later (`RETRY`
    /// of `one_type`) at the earliest, with a recount first.
    fn installed(&mut self, now: Now, epoch: &Arc<Epoch>, out: &mut ShardingOutbox) {
        let me = self.with.me;
        if self.newest.as_ref().is_some_and(|newest| newest.id() >= epoch.id()) {
            return;
        }
        if let Some(previous) = self.newest.replace(epoch.clone()) {
            if epoch.is_forced_after(&previous) {
                // Until it takes effect, no coordinator runs here.
                self.with.forced = true;
                self.each(out, |of_type, with, out| of_type.forced(now, with, out));
            }
            let state = &self.with.state;
            // An Exiting member has announced that nothing runs on it any longer.
            let how = |id: ReplicaId| match state.members.get(&id).map(|member| member.status) {
                Some(Status::Exiting) => Departure::Stopped,
                _ => Departure::Unheard,
            };
            self.departures.installed(now, &previous, epoch, how);
            let removed = previous.removed_by(epoch).into_iter();
            self.stopped.extend(removed.filter(|id| how(*id) == Departure::Stopped));
            if previous.is_member(me) && !epoch.is_member(me) {
                self.end_for_good(now, out);
            }
        }
        self.apply_newest(now, out);
    }

    /// Puts the newest configuration into effect, unless a member that it or an earlier one removed
    /// may still run; then `over_at` tells when to try again. Configurations between the one in
    /// effect and the newest are skipped. Does nothing if the newest one is in effect already.
    ///
    /// Ends the time without coordinators that a forced one began, and tells each type. After the
    /// outputs of the types reports the members that this drops, if any; this node may be one.
    fn apply_newest(&mut self, now: Now, out: &mut ShardingOutbox) {
        let in_effect = self.with.epoch.as_ref().map(|epoch| epoch.id());
        let Some(newest) = self.newest.clone() else { return };
        self.over_at = self.departures.next_deadline(now); // `None` once all have passed
        if in_effect == Some(newest.id()) || self.over_at.is_some() {
            return;
        }
        self.with.forced = false;
        let before = self.with.epoch.replace(newest.clone());
        let before = before.iter().flat_map(|before| before.members());
        let stopped = std::mem::take(&mut self.stopped);
        let how = |id| {
            if stopped.contains(&id) { Departure::Stopped } else { Departure::Unheard }
        };
        let gone = before.copied().filter(|id| !newest.is_member(*id));
        let gone: Vec<_> = gone.map(|id| (RegionId::new(id), how(id))).collect();
        self.each(out, |of_type, with, out| {
            of_type.installed(now, with, out);
            of_type.members(now, with, out);
        });
        if !gone.is_empty() {
            out.push(ShardingOutput::Removed(gone));
        }
    }

    /// Tells the types that the lease was gained or lost. Does nothing without a change. Once the
    /// node is out, the lease stays lost.
    fn lease(&mut self, now: Now, leased: bool, out: &mut ShardingOutbox) {
        let leased = leased && !self.with.is_out;
        if self.with.leased != leased {
            self.with.leased = leased;
            self.each(out, |of_type, with, out| of_type.leased(now, with, out));
        }
    }

    /// This node is out of the cluster: nothing runs here ever again. The lease counts as lost, of
    /// which each singleton is told, also if it was lost before. The regions stop, except for those
    /// that have left: these only discard their payloads, and still return late messages. Types
    /// that start later stop at their start. A second call does nothing. `Left` follows only if the
    /// node also leaves.
    fn end_for_good(&mut self, now: Now, out: &mut ShardingOutbox) {
        if !self.with.is_out {
            (self.with.is_out, self.with.leased) = (true, false);
            self.each(out, |of_type, with, out| of_type.end_for_good(now, with, out));
        }
    }

    /// Tells all regions to leave. [`settle`](Self::settle) reports the end. Types that start later
    /// are told at their start. A repeated call tells the regions again, but `Left` is output once.
    /// Does not announce that the node drains: the node sends `Drain` before.
    fn leave(&mut self, now: Now, out: &mut ShardingOutbox) {
        self.leaving = true;
        let input = self.leave_input();
        self.each(out, |of_type, with, out| of_type.fact(now, input.clone(), with, out));
    }

    /// The input by which regions leave. During a shutdown of the whole cluster they stop in place,
    /// because nothing moves.
    fn leave_input(&self) -> RegionInput {
        let stops_in_place = self.with.state.preparing_for_shutdown;
        if stops_in_place { RegionInput::Over } else { RegionInput::Leave }
    }

    /// Does what is due, in this order: puts a waiting configuration into effect, ticks each type,
    /// and advances the cluster queries.
    fn tick(&mut self, now: Now, out: &mut ShardingOutbox) {
        self.apply_newest(now, out);
        self.each(out, |of_type, with, out| of_type.tick(now, with, out));
        self.collect(now, out);
    }

    /// Work after every input: announces the hosted types if an input has changed them or asks for
    /// it, and reports [`ShardingOutput::Left`], once for ever, when this node leaves and the
    /// regions of all started types have left, or have stopped because the node is out. Without a
    /// started type that is at once.
    fn settle(&mut self, out: &mut ShardingOutbox) {
        if std::mem::take(&mut self.with.announce) {
            self.announce(out);
        }
        if self.leaving && !self.left && self.types.values().all(TypeMachines::has_left) {
            self.left = true;
            out.push(ShardingOutput::Left);
        }
    }
}

impl Machine for Machines {
    type Input = ShardingInput;
    type Output = ShardingOutput;

    /// Handles an input, then outputs a changed announcement and, once, `Left`. `Drain` and
    /// `StopDraining` only set the announcement, and repeat an unchanged one; `StopDraining` is
    /// ignored once this node leaves.
    fn handle(&mut self, now: Now, input: ShardingInput, out: &mut ShardingOutbox) {
        match input {
            ShardingInput::Tick => self.tick(now, out),
            ShardingInput::Start { entity_type, settings, extractor, strategy, hosts } => {
                let spec = TypeSpec { extractor, strategy, hosts };
                self.start(now, &entity_type, *settings, spec, out);
            }
            ShardingInput::State(state) => self.state(now, state, out),
            ShardingInput::Installed(epoch) => self.installed(now, &epoch, out),
            ShardingInput::LeaseHeld => self.lease(now, true, out),
            ShardingInput::LeaseLost => self.lease(now, false, out),
            ShardingInput::Out => self.end_for_good(now, out),
            ShardingInput::Message { from, entity_type, word } => {
                self.message(now, from, &entity_type, word, out);
            }
            ShardingInput::Answered { id, reply } => self.answered(now, id, reply, out),
            ShardingInput::Noticed { id, notice } => self.noticed(now, id, &notice),
            ShardingInput::Advised { entity_type, number, advice } => {
                self.advised(now, &entity_type, number, advice, out);
            }
            ShardingInput::Fact { entity_type, fact } => {
                self.tell_region(now, &entity_type, fact, out);
            }
            ShardingInput::Query { id, entity_type, question, within } => {
                self.cluster_query(now, id, (entity_type, question), within, out);
            }
            ShardingInput::Drain => {
                (self.draining, self.with.announce) = (true, true);
            }
            ShardingInput::PrepareToLeave => {
                (self.draining, self.drains_for_good, self.with.announce) = (true, true, true);
            }
            // A stop of the node is final: the drain before it must not end, or this node would
            // offer to take shards again.
            ShardingInput::StopDraining if self.leaving || self.drains_for_good => {}
            ShardingInput::StopDraining => (self.draining, self.with.announce) = (false, true),
            ShardingInput::Rebalance(entity_type) => {
                if let Some(of_type) = self.types.get_mut(&entity_type) {
                    of_type.rebalance(now);
                }
            }
            ShardingInput::Leave => self.leave(now, out),
        }
        self.settle(out);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let types = self.types.values().filter_map(TypeMachines::next_deadline);
        let cluster_queries = self.cluster_queries.values().map(OpenClusterQuery::next_deadline);
        types.chain(cluster_queries).chain(self.over_at).min()
    }
}
