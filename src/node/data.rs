//! [`DataEnvironment`]: performs the outputs of the guarded Replicator on this node.
//!
//! Module `routes` finds the destination of each output; this file sends it to the network, the
//! disk, the callers, the subscribers, membership and the node.

use std::ops::ControlFlow;
use std::sync::Arc;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::port::{ReplicatorAlarm, ReplicatorInput};
use ostraca_ddata::replicator::request::{ReplicatorReply, RequestError, RequestId};
use ostraca_ddata::replicator::wire::{Body, ReplicatorMessage};
use tokio::sync::mpsc;

use super::control::machine::{ControlInbox, ControlInput};
use super::disk::DiskHandle;
use super::driver::MachineEnvironment;
use super::message_sender::{AtomicSendCounters, MessageSender, NotSent};
use super::replicator::subscription::Subscribers;
use super::replies::Replies;
use super::routes::membership::RoutedLeaseMessage;
use super::routes::{self, ReplicatorDestination, ReplicatorEvent};
use crate::cluster::lease::LeaseMessage;
use crate::cluster::lease::guard::{GuardInput, GuardOutput, GuardedReplicator};
use crate::net::TrafficClass;

/// Result of a request.
pub(super) type DataResult = Result<ReplicatorReply, RequestError>;

/// Handle to the control part of the same node: membership and the sharding machines.
#[derive(Clone)]
pub(super) struct ControlHandle {
    /// Incarnation of this node.
    pub(super) me: ReplicaId,
    /// Inbox of the control part.
    pub(super) inbox: ControlInbox,
}

impl ControlHandle {
    /// Queues an input; drops it if the control part has ended.
    fn tell(&self, input: impl Into<ControlInput>) {
        let _ = self.inbox.fact(input.into()); // fails only after membership's end
    }
}

/// The environment in which the driver runs the guarded Replicator.
pub(super) struct DataEnvironment<O> {
    pub(super) outgoing: O,
    pub(super) sending: Arc<AtomicSendCounters>,
    pub(super) replies: Arc<Replies<DataResult>>,
    pub(super) subscribers: Arc<Subscribers>,
    pub(super) disk: DiskHandle,
    /// Queue of events for the node.
    pub(super) events: mpsc::Sender<ReplicatorEvent>,
    /// The control part of this node; `None` without membership.
    pub(super) sibling: Option<ControlHandle>,
    /// The last message with its encoding, because the same change goes to every peer. Kept until
    /// the end of the turn.
    pub(super) last: Option<(ReplicatorMessage, Vec<u8>)>,
    /// Receiver and number of the last transfer of which a part was refused by a full lane; never
    /// cleared, only replaced. Its further parts are not sent, since the Replicator will repeat the
    /// whole transfer under another number.
    pub(super) incomplete: Option<(ReplicaId, u64)>,
    /// Replies to callers, delivered at the end of the turn: when a caller has its reply, the
    /// subscribers are notified and all messages are handed to the lanes.
    pub(super) answers: Vec<(RequestId, DataResult)>, // ≤ replies of a turn
}

impl<O: MessageSender> DataEnvironment<O> {
    /// Sends a message to a peer and counts the outcome. Encodes it only if it differs from the
    /// last one of this turn. A message that cannot be sent is dropped, without a log event. A part
    /// that a full lane refuses, but no other error, makes its transfer the incomplete one, of
    /// which each later part is dropped unencoded and counts as refused by a full lane.
    fn send(&mut self, to: ReplicaId, class: TrafficClass, message: ReplicatorMessage) {
        let part = match &message.body {
            Body::Part { transfer, .. } => Some((to, *transfer)),
            _ => None,
        };
        if part.is_some() && part == self.incomplete {
            return self.sending.note(0, Err(NotSent::Full)); // useless without the lost part
        }
        let last = self.last.take().filter(|(last, _)| *last == message);
        let (message, bytes) = last.unwrap_or_else(|| {
            let bytes = message.encode();
            (message, bytes)
        });
        let sent = self.outgoing.send(to, class, &bytes);
        self.sending.note(bytes.len(), sent);
        if part.is_some() && sent == Err(NotSent::Full) {
            self.incomplete = part;
        }
        self.last = Some((message, bytes));
    }

    /// Sends a grant to a holder of a lease and counts the outcome; a grant that cannot be sent is
    /// dropped. This node's own holder gets it as an input of membership, uncounted. Without
    /// membership every receiver counts as another node.
    fn send_lease(&mut self, to: ReplicaId, message: LeaseMessage) {
        if let Some(sibling) = self.sibling.as_ref().filter(|sibling| sibling.me == to) {
            if let RoutedLeaseMessage::Membership(input) = routes::membership::lease(to, message) {
                sibling.tell(input);
            }
            return;
        }
        let bytes = routes::encode(&message);
        self.sending.note(bytes.len(), self.outgoing.send_lease(to, &bytes));
    }

    /// Logs an event, always, and queues it for the node. If the queue is full, the event is
    /// dropped and an error is logged as well; if the node has ended, it is dropped without a
    /// further log event. Never waits.
    fn tell(&self, event: ReplicatorEvent) {
        log(&event, |node| self.outgoing.name_of(node));
        if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) {
            tracing::error!(
                ?event,
                "node.event_lost: the queue of the Replicator's events is full, and this event has \
                 no effect on the node"
            );
        }
    }
}

impl<O: MessageSender> MachineEnvironment<GuardedReplicator> for DataEnvironment<O> {
    const NAME: &'static str = "replicator";
    const ON_CALLERS: bool = true;

    fn tick() -> GuardInput {
        GuardInput::Data(ReplicatorInput::Tick)
    }

    /// Performs an output. Membership also learns those about configurations, before the output
    /// takes its own route. A reply or notification for the sharding machines goes to them only,
    /// within the call. Replies to programs wait for [`flush`](MachineEnvironment::flush);
    /// notifications of subscribers, writes and events do not.
    fn perform(&mut self, output: GuardOutput) {
        let mut output = output;
        if let Some(sibling) = &self.sibling {
            if let Some(news) = routes::membership::news(&output) {
                sibling.tell(news);
            }
            output = match routes::sharding::answer(output) {
                ControlFlow::Break(answer) => return sibling.tell(answer),
                ControlFlow::Continue(output) => output,
            };
        }
        match routes::route(output) {
            ReplicatorDestination::Peer { to, class, message } => self.send(to, class, message),
            ReplicatorDestination::Holder { to, message } => self.send_lease(to, message),
            ReplicatorDestination::Caller { id, reply } => self.answers.push((id, reply)),
            ReplicatorDestination::Subscriber { subscription, notice } => {
                self.subscribers.tell(subscription, notice);
            }
            ReplicatorDestination::Disk { id, records } => self.disk.write(id, records),
            ReplicatorDestination::Node(event) => self.tell(event),
        }
    }

    /// Forgets the last encoded message, sends the gathered ones, and then delivers the replies of
    /// the turn, those of dropped futures excepted.
    fn flush(&mut self) {
        self.last = None;
        self.outgoing.flush();
        if !self.answers.is_empty() {
            self.replies.reply_all(self.answers.drain(..));
        }
    }

    /// Whether the disk is behind: it is the only part that completes orders later. The result of a
    /// write is a fact for the machine, and thus wakes it once the disk is not behind any longer.
    fn defers_requests(&self) -> bool {
        self.disk.is_behind()
    }
}

/// Logs an event. Needs no throttle: the Replicator raises alarms at most once a minute for each
/// kind and node, other events are rare. `Failed` is logged at level debug, because its origin logs
/// an error; `Outcome` and `Pending` at level debug too.
fn log(event: &ReplicatorEvent, name: impl Fn(ReplicaId) -> String) {
    match event {
        ReplicatorEvent::Installed(epoch) => {
            let (id, members) = (epoch.id(), epoch.members().len());
            tracing::info!(epoch = %id, members, "ddata.installed");
        }
        ReplicatorEvent::Synced(epoch) => tracing::info!(%epoch, "ddata.synced"),
        ReplicatorEvent::Excluded(epoch) => {
            // Membership knows whether the node left on request, and logs `cluster.out` or
            // `cluster.left`.
            tracing::info!(%epoch, "ddata.excluded: this incarnation's data no longer takes part");
        }
        ReplicatorEvent::StopServing => {
            tracing::info!("ddata.stop_serving: the next configuration may exclude this node");
        }
        ReplicatorEvent::Pending(epoch) => tracing::debug!(epoch = %epoch.id(), "ddata.pending"),
        ReplicatorEvent::Alarm(alarm) => log_alarm(alarm, name),
        ReplicatorEvent::LoadFailed(error) => tracing::error!(
            %error,
            "ddata.load_failed: the data directory's replicated data cannot be read, and the node \
             stops; repair the disk, or start the node with an empty data directory"
        ),
        ReplicatorEvent::Outcome(_) | ReplicatorEvent::Failed(_) => {
            tracing::debug!(?event, "ddata.event");
        }
    }
}

/// Logs an alarm as a warning with advice for the operator; one of the store as an error. An alarm
/// without a text of its own is logged as `ddata.alarm` with its fields; `TooLarge` has that name
/// and a text.
fn log_alarm(alarm: &ReplicatorAlarm, name: impl Fn(ReplicaId) -> String) {
    match alarm {
        ReplicatorAlarm::ImpossibleClock { from, ahead } => {
            tracing::warn!(
                from = %name(*from), ?ahead,
                "ddata.impossible_clock: the clocks of that node and of this one differ by this much, \
                 either may be wrong: check the time service of both"
            );
        }
        ReplicatorAlarm::ClockAhead { from, ahead } => {
            tracing::warn!(
                from = %name(*from), ?ahead,
                "ddata.clock_ahead: that node's clock is ahead of this one's: check the time service \
                 of both"
            );
        }
        ReplicatorAlarm::LargeValue { key, bytes } => {
            tracing::warn!(
                %key, bytes,
                "ddata.large_value: the value is larger than ddata.log-data-size-exceeding, and \
                 some messages carry all of it; spread it over several keys"
            );
        }
        ReplicatorAlarm::Undecodable { from, why } => {
            tracing::warn!(
                from = %name(*from), why,
                "ddata.undecodable: data of that node was refused; run one release with the same \
                 registered data types on all nodes"
            );
        }
        ReplicatorAlarm::WrongType { from, key } => {
            tracing::warn!(
                from = %name(*from), %key,
                "ddata.wrong_type: the key has another data type on that node, and its change was \
                 refused; use a key for one type only"
            );
        }
        ReplicatorAlarm::Declined { from, epoch, why } => {
            tracing::warn!(
                from = %name(*from), %epoch, %why,
                "ddata.configuration_declined: if all members that this node knows are gone, restart it"
            );
        }
        ReplicatorAlarm::Store(error) => {
            tracing::error!(
                %error,
                "ddata.store: changes could not be written and are not acknowledged; check the \
                 disk of the data directory"
            );
        }
        ReplicatorAlarm::TooLarge { peer, bytes, limit } => {
            tracing::warn!(
                node = %name(*peer), bytes, limit,
                "ddata.alarm: a message to or from that node exceeds ddata.assembly-bytes-max and \
                 was dropped; raise the setting equally on all nodes"
            );
        }
        other => tracing::warn!(?other, "ddata.alarm"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    /// A writer to memory, as a subscriber needs it.
    #[derive(Clone, Default)]
    struct AlarmLog(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for AlarmLog {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no test panics under it").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The line that an alarm logs.
    fn logged(alarm: &ReplicatorAlarm) -> String {
        let log = AlarmLog::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().log_internal_errors(false).with_ansi(false);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            log_alarm(alarm, |id: ReplicaId| id.to_string());
        });
        let bytes = log.0.lock().expect("no test panics under it");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A node whose own clock is behind raises this alarm about a healthy peer.
    #[test]
    fn impossible_clock_blames_neither_node() {
        let (from, ahead) = (ReplicaId::new(7), Duration::from_secs(180));
        let line = logged(&ReplicatorAlarm::ImpossibleClock { from, ahead });
        let named = ["WARN", "ddata.impossible_clock", "ahead=180s"];
        assert!(named.iter().all(|part| line.contains(part)), "{line}");
        assert!(line.contains(&format!("from={from}")), "{line}");
        let fair =
            ["the clocks of that node and of this one differ", "either may be wrong", "both"];
        assert!(fair.iter().all(|part| line.contains(part)), "{line}");
        for blame in ["that node's clock", "this node's clock", "set the clock"] {
            assert!(!line.contains(blame), "{line}");
        }
    }
}
