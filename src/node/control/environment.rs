//! [`ControlEnvironment`]: performs the outputs of membership and the sharding machines on this
//! node.
//!
//! Module `routes` finds the destination of each output; this file sends it to the network, the
//! disk, the Replicator, the hosted types, the log or the program. An answer to the machines is
//! queued in their inbox, and dropped once the inbox is closed by the stop.

use std::sync::Arc;

use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::log_throttle::LogThrottle;

use super::super::clock::Clock;
use super::super::cluster::watchers::Watchers;
use super::super::downing_lease::LeaseRequester;
use super::super::driver::MachineEnvironment;
use super::super::lanes::Lanes;
use super::super::lease::LeaseDeadline;
use super::super::message_sender::NotSent;
use super::super::parts::ReplicatorNotifier;
use super::super::routes::membership::{
    MembershipDestination, MembershipEvent, RoutedLeaseMessage, TransportCommand,
};
use super::super::routes::sharding::{self, ShardingDestination};
use super::super::routes::{self, Subsystem};
use super::super::sharding::region_registry::RegionRegistry;
use super::super::shutdown::{CoordinatedShutdown, Reason};
use super::dialler::Dialler;
use super::machine::{Control, ControlInbox, ControlInput, ControlOutput};
use super::memory::MemoryWriter;
use crate::cluster::downing::LeaseAnswer;
use crate::cluster::events::ClusterEvent;
use crate::cluster::lease::{Heartbeat, LeaseMessage};
use crate::cluster::membership::port::{
    MembershipInput, MembershipOutput, Memory, OperatorNotice, StopReason,
};
use crate::cluster::wire::ClusterMessage;
use crate::net::TrafficClass;
use crate::net::handle::Net;
use crate::sharding::ids::{EntityType, ShardId};
use crate::sharding::machines::{MachineMessage, ShardingInput};
use crate::sharding::wire::{Released, ShardingMessage, ToRegion};

/// Log message after a long time without a quorum. Once the lease is granted again, new instances
/// of the entities start and handle the buffered messages.
const STOPS: &str =
    "no quorum has answered for long: entities and coordinators are stopped; their shards stay";

/// Reaction of a node to being downed or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalReaction {
    /// Run the coordinated shutdown.
    ShutDown,
    /// Continue without a cluster and without a lease, as `run-coordinated-shutdown-when-down =
    /// false` sets.
    Stay,
}

impl RemovalReaction {
    /// Whether the node continues after this decision of membership. Only a node that was downed or
    /// removed can.
    const fn stays(self, reason: StopReason) -> bool {
        match reason {
            StopReason::Left
            | StopReason::NotJoined
            | StopReason::Orphaned
            | StopReason::Stranded => false,
            _ => matches!(self, Self::Stay),
        }
    }
}

/// The environment in which the driver runs membership and the sharding machines.
pub(crate) struct ControlEnvironment {
    pub(crate) me: NodeId,
    pub(crate) lanes: Lanes,
    /// Inputs for the guarded Replicator of this node, and its lease promises.
    pub(crate) data: ReplicatorNotifier,
    /// Inbox of the machines whose outputs this performs.
    pub(crate) inbox: ControlInbox,
    pub(crate) net: Net,
    pub(crate) dialling: Dialler,
    pub(crate) watchers: Arc<Watchers>,
    pub(crate) lease: LeaseDeadline,
    /// The task that acquires the lease of `lease-majority`, if the program provides one.
    pub(crate) asking: Option<LeaseRequester>,
    /// The task that writes the membership file; `None` without a data directory.
    pub(crate) memory: Option<MemoryWriter>,
    pub(crate) shutdown: CoordinatedShutdown,
    /// Applies only to a node that was downed or removed: a node that left in order or that no
    /// cluster admitted shuts down in any case.
    pub(crate) on_removal: RemovalReaction,
    /// The hosted entity types.
    pub(crate) region_registry: Arc<RegionRegistry>,
    pub(crate) clock: Clock,
    /// Throttles of two log events: neither may silence the other.
    pub(crate) not_sent: LogThrottle,
    pub(crate) never_fits: LogThrottle,
    /// The last message with its encoding, because equal gossip goes to many peers. Kept until the
    /// end of the turn.
    pub(crate) last: Option<(ClusterMessage, Vec<u8>)>,
}

impl ControlEnvironment {
    /// Sends a message of membership, with [`send_bytes`](Self::send_bytes). Encodes it only if it
    /// differs from the last one of this turn.
    fn send(&mut self, to: NodeId, message: ClusterMessage) {
        let last = self.last.take().filter(|(last, _)| *last == message);
        let (message, bytes) = last.unwrap_or_else(|| {
            let bytes = routes::encode(&message);
            (message, bytes)
        });
        self.send_bytes(to.incarnation, Subsystem::Membership.header(), &bytes);
        self.last = Some((message, bytes));
    }

    /// Sends a message of the lease to a voter's grantor, with [`send_bytes`](Self::send_bytes).
    /// This node's own grantor answers a heartbeat within this call, and gets a release as an input
    /// of the guarded Replicator.
    fn send_lease(&mut self, to: ReplicaId, message: LeaseMessage) {
        let own = to == self.me.incarnation;
        if let (true, LeaseMessage::Beat(beat)) = (own, message) {
            return self.beat(beat);
        }
        match routes::membership::lease(to, message) {
            RoutedLeaseMessage::Guard(input) if own => self.data.give(input),
            _ => self.send_bytes(to, Subsystem::Lease.header(), &routes::encode(&message)),
        }
    }

    /// Passes a heartbeat to this node's own grantor, and queues its grant, if it gives one, for
    /// membership; a refusal has no answer. Waits for a running step of the Replicator only if that
    /// step relies on promises (`Consent`).
    fn beat(&self, beat: Heartbeat) {
        let me = self.me.incarnation;
        let answer = self.data.grants().beat(self.clock.now(), me, beat).answer;
        if let Some(RoutedLeaseMessage::Membership(input)) =
            answer.map(|granted| routes::membership::lease(me, granted))
        {
            let _ = self.inbox.fact(input.into()); // fails only after the stop
        }
    }

    /// Sends a message of the sharding machines on the control lane, with the entity type in the
    /// header. A message that cannot be sent is dropped. That is logged as
    /// [`complain`](Self::complain) describes; only of one that carries a shard's payload and is
    /// too long, as `sharding.payload_too_long` instead.
    fn send_word(&mut self, to: ReplicaId, entity_type: &EntityType, word: &MachineMessage) {
        let (part, bytes) = sharding::say(word);
        let header = [part, entity_type.as_str()];
        let sent = self.lanes.send_with(to, TrafficClass::Control, &header, &bytes);
        match (sent, carried(word)) {
            (Err(NotSent::TooLong), Some(shard)) => {
                self.never_fits(to, entity_type, shard, bytes.len());
            }
            (sent, _) => self.complain(to, &header, bytes.len(), sent),
        }
    }

    /// Logs, at most once a minute for all shards and receivers together, that a shard's payload of
    /// accepted messages cannot be sent: its pieces follow this node's limit, and the receiver's
    /// limit is lower. The machines repeat it in vain until one of the two nodes leaves.
    fn never_fits(
        &mut self,
        to: ReplicaId,
        entity_type: &EntityType,
        shard: ShardId,
        bytes: usize,
    ) {
        if self.never_fits.permit(self.clock.mono()) {
            tracing::warn!(
                to = %self.net.name_of(to), %entity_type, %shard, bytes,
                "sharding.payload_too_long: the next home of the shard waits for messages, and \
                 accepts only shorter pieces; set net.limits.message-bytes-max equally on all \
                 nodes, or stop this node, which counts the messages as lost"
            );
        }
    }

    /// Sends bytes on the control lane. A message that cannot be sent is dropped, because the
    /// machines repeat important messages, and logged as [`complain`](Self::complain) describes.
    fn send_bytes(&mut self, to: ReplicaId, header: &[&str], bytes: &[u8]) {
        let sent = self.lanes.send_with(to, TrafficClass::Control, header, bytes);
        self.complain(to, header, bytes.len(), sent);
    }

    /// Logs that a message was not sent, at most once a minute for all receivers and causes
    /// together; does nothing if it was sent. A receiver without a lane is not logged and begins no
    /// minute, because the transport reports links.
    fn complain(
        &mut self,
        to: ReplicaId,
        header: &[&str],
        bytes: usize,
        sent: Result<(), NotSent>,
    ) {
        match sent {
            Ok(()) | Err(NotSent::NoLink) => {}
            Err(why) if self.not_sent.permit(self.clock.mono()) => {
                tracing::warn!(
                    to = %self.net.name_of(to), ?header, bytes, %why,
                    "cluster.not_sent: a control message was dropped; important ones are repeated"
                );
            }
            Err(_) => {}
        }
    }

    /// Orders the membership file to be written; its task reports [`MembershipInput::Persisted`].
    /// Without a data directory that input is queued within the call, and nothing is kept.
    fn persist(&self, memory: Memory) {
        match &self.memory {
            Some(writing) => writing.write(memory),
            None => {
                let _ = self.inbox.fact(MembershipInput::Persisted.into()); // fails only after the stop
            }
        }
    }

    /// Carries out an order for the transport: all but `Belongs` through the [`Dialler`], which
    /// resolves names. `Belongs` sets the cluster's id that peers are told from now on, and is
    /// logged.
    fn link(&self, order: TransportCommand) {
        match order {
            TransportCommand::Dial(address) => self.dialling.dial(address),
            TransportCommand::Keep { node, address } => self.dialling.keep(node, &address),
            TransportCommand::Release(node) => self.dialling.release(node),
            TransportCommand::Forget(node) => self.dialling.forget(node),
            TransportCommand::Belongs(id) => {
                tracing::info!(cluster = %id, "cluster.belongs");
                self.net.belongs_to(id.0);
            }
        }
    }

    /// Handles an event of membership. `LeaseHeld` sets the time of expiry, which may be sooner
    /// than before. A lapsed lease pauses the entities of this node; a lost one, which ends the
    /// lease again, also drops all their instances.
    fn tell(&self, event: MembershipEvent) {
        match event {
            MembershipEvent::Cluster(event) => self.publish(event),
            MembershipEvent::Notice(notice) => self.notice(&notice),
            MembershipEvent::LeaseHeld(until) => self.lease.hold(until),
            MembershipEvent::LeaseLapsed => {
                self.lapsed("entities begin no message until a quorum answers");
            }
            MembershipEvent::LeaseLost => {
                self.lapsed(STOPS);
                self.region_registry.lapsed();
            }
            MembershipEvent::DowningLease { acquire } => self.ask_for_lease(acquire),
            MembershipEvent::Stop(reason) => self.stop(reason),
        }
    }

    /// Passes an order to acquire or release the lease of `lease-majority` to its task. If the task
    /// does not accept an order to acquire, because too many are queued or there is no task, logs
    /// that, without a throttle, and queues [`LeaseAnswer::Denied`] for membership; an order to
    /// release is dropped silently then. A node without a provider does not start with this
    /// strategy.
    fn ask_for_lease(&self, acquire: bool) {
        let is_asked = self.asking.as_ref().is_some_and(|asking| asking.order(acquire));
        if acquire && !is_asked {
            tracing::warn!(
                "cluster.downing_lease: not requested, because an earlier call is pending"
            );
            let denied = MembershipInput::DowningLease(Some(LeaseAnswer::Denied));
            let _ = self.inbox.fact(denied.into()); // fails only after the stop
        }
    }

    /// Logs a notice at level warn or info. Logs silent seeds only at level debug while
    /// [`Dialler::is_refused`], because the transport has just warned that a peer refused this
    /// node, which explains their silence.
    fn notice(&self, notice: &OperatorNotice) {
        if matches!(notice, OperatorNotice::SeedsSilent { .. }) && self.dialling.is_refused() {
            tracing::debug!(%notice, "cluster.notice");
        } else if !notice.is_warning() {
            tracing::info!(%notice, "cluster.notice");
        } else {
            tracing::warn!(%notice, "cluster.notice");
        }
    }

    /// Logs an event of the cluster and publishes it to listeners. Between the two, an event that
    /// this node itself is Leaving begins the coordinated shutdown, without effect if that runs
    /// already. No other event about this node begins it: for Down and removal, `Stop` follows.
    fn publish(&self, event: ClusterEvent) {
        log(&event);
        if let ClusterEvent::MemberLeft(member) = &event
            && member.node == self.me
        {
            self.shutdown.begin(Reason::Leaving);
        }
        self.watchers.publish(event);
    }

    /// Ends the hosting lease. Logs a warning with the consequence `what`, except once a shutdown
    /// has begun. A later `LeaseHeld` sets the lease again.
    fn lapsed(&self, what: &str) {
        self.lease.end();
        if self.shutdown.reason().is_none() {
            tracing::warn!("cluster.lease_lapsed: {what}");
        }
    }

    /// Handles membership's decision that this node must stop: logs it, ends the lease, tells the
    /// watchers, and begins the coordinated shutdown, in this order. With [`RemovalReaction::Stay`]
    /// a node that was downed, downed itself or was removed does not shut down, and the log event
    /// tells that; `Left`, `NotJoined`, `Orphaned` and `Stranded` always begin the shutdown. The
    /// machines and streams of events continue here in either case.
    fn stop(&self, reason: StopReason) {
        let stays = self.on_removal.stays(reason);
        log_stop(reason, stays);
        self.lease.end();
        self.watchers.set_stop_reason(reason);
        if !stays {
            self.shutdown.begin(reason.into());
        }
    }
}

/// The shard whose payload a message carries; of several shards, the one with the longest payload.
/// `None` for a message of another kind or without shards. The shards of a
/// [`ToRegion::Released`] need not have a payload.
fn carried(word: &MachineMessage) -> Option<ShardId> {
    match word {
        MachineMessage::Sharding(ShardingMessage::Region(ToRegion::Part(part))) => Some(part.shard),
        MachineMessage::Sharding(ShardingMessage::Region(ToRegion::Released(words))) => {
            let length = |word: &&Released| word.payload.as_ref().map_or(0, bytes::Bytes::len);
            words.iter().max_by_key(length).filter(|word| length(word) > 0).map(|word| word.shard)
        }
        _ => None,
    }
}

/// Logs membership's decision that this node must stop. `stays`: the node continues nevertheless.
fn log_stop(reason: StopReason, stays: bool) {
    match reason {
        StopReason::Left => tracing::info!("cluster.left"),
        StopReason::Orphaned => tracing::warn!(%reason, "cluster.orphaned: this node stops"),
        reason if stays => {
            tracing::error!(%reason, "cluster.out: this node continues without a cluster");
        }
        reason => tracing::error!(%reason, "cluster.out: this node stops"),
    }
}

/// Logs an event of the cluster. Changes of members (status or reachability, with node and address)
/// and of the leader, and the preparation for a full shutdown, are logged at level info, all others
/// (state, hosted types, leaders of roles, convergence) at level debug. There is no throttle.
fn log(event: &ClusterEvent) {
    let (what, member) = match event {
        ClusterEvent::MemberJoined(member) => ("joining", member),
        ClusterEvent::MemberWeaklyUp(member) => ("weakly_up", member),
        ClusterEvent::MemberUp(member) => ("up", member),
        ClusterEvent::MemberLeft(member) => ("leaving", member),
        ClusterEvent::MemberExited(member) => ("exiting", member),
        ClusterEvent::MemberDowned(member) => ("down", member),
        ClusterEvent::MemberRemoved { member, .. } => ("removed", member),
        ClusterEvent::UnreachableMember(member) => ("unreachable", member),
        ClusterEvent::ReachableMember(member) => ("reachable", member),
        ClusterEvent::LeaderChanged(leader) => {
            return tracing::info!(leader = leader.map(tracing::field::display), "cluster.leader");
        }
        ClusterEvent::PreparingForShutdown => {
            return tracing::info!("cluster.preparing_for_shutdown");
        }
        other => return tracing::debug!(event = ?other, "cluster.event"),
    };
    tracing::info!(what, node = %member.node, address = %member.address, "cluster.member");
}

impl MachineEnvironment<Control> for ControlEnvironment {
    const NAME: &'static str = "membership";

    fn tick() -> ControlInput {
        ControlInput::Tick
    }

    fn perform(&mut self, output: ControlOutput) {
        match output {
            ControlOutput::Membership(output) => self.member(output),
            ControlOutput::Sharding(dest) => self.shard(dest),
        }
    }

    /// Forgets the last encoded message. Each message was handed to its lane when it was performed.
    fn flush(&mut self) {
        self.last = None;
    }
}

impl ControlEnvironment {
    /// Performs an output of membership at the destination that `routes` finds for it.
    fn member(&mut self, output: MembershipOutput) {
        match routes::membership::route(output) {
            MembershipDestination::Peer { to, message } => self.send(to, message),
            MembershipDestination::Lease { to, message } => self.send_lease(to, message),
            MembershipDestination::Guard(input) => self.data.give(input),
            MembershipDestination::Transport(order) => self.link(order),
            MembershipDestination::Disk(memory) => self.persist(memory),
            MembershipDestination::Node(event) => self.tell(event),
        }
    }

    /// Sends the answer to a cluster query to the asking node. If that is this one, the answer is
    /// queued as an input of the machines, handled in a later turn.
    fn answer(&mut self, to: ReplicaId, entity_type: EntityType, word: MachineMessage) {
        if to == self.me.incarnation {
            let own = ShardingInput::Message { from: to, entity_type, word };
            let _ = self.inbox.fact(own.into()); // fails only after the stop
        } else {
            self.send_word(to, &entity_type, &word);
        }
    }

    /// Performs an output of the sharding machines. Cluster queries about this node are answered
    /// within the call, for a type that is not started here as if it had no entities and no shards;
    /// the entities are counted once for all messages of one output. A request to a strategy is
    /// only started. An output for membership does not come here: [`Control`] handles it itself.
    fn shard(&mut self, dest: ShardingDestination) {
        match dest {
            ShardingDestination::Peer { to, entity_type, word } => {
                self.send_word(to, &entity_type, &word);
            }
            ShardingDestination::Guard(input) => self.data.give(input),
            ShardingDestination::Membership(input) => {
                let _ = self.inbox.fact(input.into()); // fails only after the stop
            }
            ShardingDestination::Entities { entity_type, order } => {
                self.region_registry.perform(&entity_type, order);
            }
            ShardingDestination::Count { to, entity_type, number, messages } => {
                let entities = self.region_registry.count(&entity_type);
                for counting in &messages {
                    let word = sharding::counted(number, counting, &entities);
                    self.answer(to, entity_type.clone(), word);
                }
            }
            ShardingDestination::Exists { to, entity_type, number, entity } => {
                let lives = self.region_registry.lives(&entity_type, &entity);
                self.answer(to, entity_type, sharding::lives(number, lives));
            }
            ShardingDestination::Strategy { entity_type, number, asked } => {
                self.region_registry.strategies().ask(&entity_type, number, asked);
            }
            ShardingDestination::Removed(regions) => {
                let all = regions.into_iter();
                all.for_each(|(region, how)| self.region_registry.removed(region, how));
            }
            ShardingDestination::Node(event) => self.region_registry.happened(event),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use crate::sharding::ids::Generation;
    use crate::sharding::wire::PayloadPart;

    use super::*;

    /// A writer to memory, as a subscriber needs it.
    #[derive(Clone, Default)]
    struct MemoryLog(Arc<Mutex<Vec<u8>>>);

    impl io::Write for MemoryLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no test panics under it").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The line that a node with this reaction logs about a decision that it must stop.
    fn logged(on_removal: RemovalReaction, reason: StopReason) -> String {
        let log = MemoryLog::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().log_internal_errors(false).with_ansi(false);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            log_stop(reason, on_removal.stays(reason));
        });
        let bytes = log.0.lock().expect("no test panics under it");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn log_states_whether_a_removed_node_stops() {
        let (stops, continues) = ("this node stops", "this node continues without a cluster");
        let table = [
            (RemovalReaction::ShutDown, StopReason::Removed, stops),
            (RemovalReaction::Stay, StopReason::Removed, continues),
            (RemovalReaction::Stay, StopReason::Downed, continues),
            (RemovalReaction::Stay, StopReason::NotJoined, stops),
        ];
        for (on_removal, reason, what) in table {
            let line = logged(on_removal, reason);
            assert!(line.contains("ERROR"), "{on_removal:?}: {line}");
            assert!(line.contains(&format!("cluster.out: {what}")), "{on_removal:?}: {line}");
        }
    }

    #[test]
    fn too_long_message_is_attributed_to_its_largest_shard() {
        let last = Generation::NEVER;
        let word = |shard, length: usize| Released {
            shard: ShardId::new(shard),
            reached: last,
            last,
            payload: (length > 0).then(|| vec![0; length].into()),
            sealed: last,
            cluster: 1,
        };
        let say = |message| MachineMessage::Sharding(ShardingMessage::Region(message));
        let released = say(ToRegion::Released(vec![word(1, 5), word(2, 90), word(3, 0)]));
        assert_eq!(carried(&released), Some(ShardId::new(2)));
        let without = say(ToRegion::Released(vec![word(1, 0), word(3, 0)]));
        assert_eq!(carried(&without), None, "no payload is too long");
        let (shard, bytes) = (ShardId::new(4), vec![0; 9].into());
        let piece = say(ToRegion::Part(PayloadPart { shard, last, at: 0, bytes }));
        assert_eq!(carried(&piece), Some(shard));
        assert_eq!(carried(&say(ToRegion::Hosted(vec![(shard, last)]))), None);
    }
}
