//! Tasks of the lanes: each opens or accepts one substream, then carries one lane over it.
//!
//! A task asks the connection manager whether the peer is admitted, and reports how the lane ended.
//! The connection manager never waits for a task.

use std::sync::Arc;

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;
use ostraca_ddata::id::ReplicaId;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};

use crate::net::admission::AdmissionState;
use crate::net::client::StreamEndGuard;
use crate::net::config::NetLimits;
use crate::net::handle::Runtimes;
use crate::net::handshake::{self, HandshakeError, LaneParameters};
use crate::net::lane::inbound::InboundLane;
use crate::net::lane::{self, Lane, reader, writer};
use crate::net::swarm::{CountedSubstream, OpenFailed};
use crate::net::wire::{Hello, LaneRefusal, NodeInfo};
use crate::net::{NodeId, Receiver, TrafficClass};

/// Report or request of a task to the connection manager.
#[derive(Debug)]
pub(super) enum Report {
    /// A peer has proved that it may open this lane; the task asks for the inbound lane. `reader`
    /// aborts the task. A refusal sent as `reply` is passed on to the peer and then reported as
    /// [`Inbound`](Self::Inbound); if `reply` is dropped, the task ends without an answer and
    /// without a further report.
    Hello {
        peer: PeerId,
        connection: ConnectionId,
        hello: Hello,
        reader: AbortHandle,
        reply: oneshot::Sender<Result<InboundLane, LaneRefusal>>,
    },
    /// A peer has accepted a lane of this node and told its facts; the task asks whether to go on,
    /// and writes nothing until it has the reply.
    Welcome(WelcomedLane),
    /// A lane of this node is not, or no longer, carried. Sent once for each
    /// [`open`](Tasks::open), unless that task was aborted, for example by the next `open`. The
    /// task ends only after this report.
    Outbound { peer: PeerId, class: TrafficClass, attempt: u64, ended: OutboundEnd },
    /// A peer was refused, its handshake failed, or its lane violated the protocol. The other ends
    /// of an inbound lane are not reported.
    Inbound { peer: PeerId, class: TrafficClass, why: InboundError },
    /// A client was admitted. Its stream must end with its connection.
    ClientAdmitted { connection: ConnectionId, ends: StreamEndGuard },
    /// A client was not admitted.
    ClientFailed { peer: PeerId, connection: ConnectionId, why: InboundError },
}

/// A lane of this node that a peer has accepted.
#[derive(Debug)]
pub(super) struct WelcomedLane {
    pub(super) peer: PeerId,
    pub(super) class: TrafficClass,
    pub(super) attempt: u64,
    pub(super) connection: ConnectionId,
    pub(super) facts: NodeInfo,
    /// Number of messages of the lane that the peer has accepted.
    pub(super) accepted: u64,
    pub(super) lane: Lane,
    /// Whether the lane is not yet in the directory.
    pub(super) is_new: bool,
    /// Sent: the task writes the lane. Dropped: the task ends as [`OutboundEnd::Broken`].
    pub(super) reply: oneshot::Sender<()>,
}

/// How carrying a lane of this node ended.
#[derive(Debug)]
pub(super) enum OutboundEnd {
    /// All messages were acknowledged, and the lane was ended by an end frame, because it was
    /// finished ([`Lane::finish`]).
    Finished,
    /// Any other end: the substream was not opened or broke, the handshake failed without a
    /// refusal, the connection manager dropped [`WelcomedLane::reply`], a later substream has the
    /// lane, the lane was abandoned, or the peer's acknowledgements were invalid.
    Broken(String),
    /// The peer refused the lane.
    Refused(LaneRefusal),
    /// This node refuses the peer, because of its `Greeting` or its `Welcome`.
    Unacceptable(LaneRefusal),
}

/// Why a peer's lane or client was not served, or ended.
#[derive(Debug)]
pub(super) enum InboundError {
    /// This node refused it, and has sent the reason.
    Refused(LaneRefusal),
    /// The opening handshake failed, or the refusal could not be sent.
    Handshake(HandshakeError),
    /// The lane violated the protocol.
    Violation(lane::LaneEnd),
}

/// A lane of this node to open.
#[derive(Debug)]
pub(super) struct OutboundOpening {
    pub(super) peer: PeerId,
    pub(super) class: TrafficClass,
    pub(super) attempt: u64,
    pub(super) connection: ConnectionId,
    /// Incarnation of the peer; `None` at first contact.
    pub(super) to: Option<ReplicaId>,
    pub(super) lane: Lane,
    /// Whether the lane is not yet in the directory.
    pub(super) is_new: bool,
    /// Yields the substream, or the reason why it could not be opened.
    pub(super) stream: oneshot::Receiver<Result<CountedSubstream, OpenFailed>>,
}

/// A substream that a peer has opened.
#[derive(Debug)]
pub(super) struct InboundSubstream {
    pub(super) peer: PeerId,
    pub(super) connection: ConnectionId,
    pub(super) class: TrafficClass,
    pub(super) stream: CountedSubstream,
}

/// Shared context of all tasks. Cheap to clone.
#[derive(Clone)]
pub(super) struct Tasks {
    pub(super) standing: watch::Receiver<Arc<AdmissionState>>,
    pub(super) limits: Arc<NetLimits>,
    pub(super) receiver: Arc<dyn Receiver>,
    pub(super) reports: mpsc::UnboundedSender<Report>, // ≤ 3 per substream
    pub(super) runtimes: Runtimes,
}

impl Tasks {
    pub(super) fn admission(&self) -> Arc<AdmissionState> {
        self.standing.borrow().clone()
    }

    pub(super) fn report(&self, report: Report) {
        let _ = self.reports.send(report); // an error: the connection manager has stopped
    }

    /// Spawns the task of a lane on the runtime of its class, so that messages of other classes do
    /// not delay it: control on the runtime of the caller (it panics without one), beside the
    /// connections; data and bulk on `runtimes.data`; user on `runtimes.user`. The task goes on if
    /// the handle is dropped.
    fn spawn(
        &self,
        class: TrafficClass,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        match class {
            TrafficClass::Control => tokio::spawn(task),
            TrafficClass::Data | TrafficClass::Bulk => self.runtimes.data.spawn(task),
            TrafficClass::User => self.runtimes.user.spawn(task),
        }
    }

    // ── Outbound lanes ──

    /// Spawns a task that carries a lane over a substream that is being opened. Aborts the lane's
    /// previous task (`before`) at once, which then reports nothing; the new one begins when that
    /// has ended, so that the two never hold the lane together.
    ///
    /// The new task reports [`Report::Outbound`] at its end, but nothing if it is aborted.
    pub(super) fn open(
        &self,
        opening: OutboundOpening,
        before: Option<JoinHandle<()>>,
    ) -> JoinHandle<()> {
        let tasks = self.clone();
        if let Some(before) = &before {
            before.abort(); // now: the new task may itself be aborted before it is ever polled
        }
        self.spawn(opening.class, async move {
            if let Some(before) = before {
                let _ = before.await; // an error: it was aborted
            }
            let OutboundOpening { peer, class, attempt, .. } = opening;
            let ended = tasks.carry(opening).await;
            tasks.report(Report::Outbound { peer, class, attempt, ended });
        })
    }

    /// Waits for the substream, opens the lane on it, asks the connection manager whether to go on
    /// ([`Report::Welcome`]), and writes the lane until it ends.
    ///
    /// Takes the lane's next generation only once the substream is open; a failed handshake has
    /// used it up. Judges the peer by the admission state of that time. The handshake is limited to
    /// `handshake_within`; the waits for the substream and for the reply have no limit here. The
    /// lane counts as connected from after the reply until this returns or is dropped.
    async fn carry(&self, opening: OutboundOpening) -> OutboundEnd {
        let OutboundOpening { peer, class, attempt, connection, to, lane, is_new, stream } =
            opening;
        let mut stream = match stream.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(why)) => return OutboundEnd::Broken(why.to_string()),
            Err(_) => return OutboundEnd::Broken("the connection is closed".to_owned()),
        };
        let wanted = LaneParameters {
            peer,
            to,
            class,
            generation: lane.next_generation(),
            first_unacknowledged: lane.first_unacknowledged(),
        };
        let within = self.limits.handshake_within;
        let opened = match handshake::open(&mut stream, &self.admission(), wanted, within).await {
            Ok(opened) => opened,
            Err(HandshakeError::Refused(refusal)) => return OutboundEnd::Refused(refusal),
            Err(HandshakeError::Unacceptable(refusal)) => {
                return OutboundEnd::Unacceptable(refusal);
            }
            Err(error) => return OutboundEnd::Broken(error.to_string()),
        };
        let (reply, goes_on) = oneshot::channel();
        let (facts, accepted) = (opened.facts, opened.accepted);
        let welcomed = WelcomedLane {
            peer,
            class,
            attempt,
            connection,
            facts,
            accepted,
            lane: lane.clone(),
            is_new,
            reply,
        };
        self.report(Report::Welcome(welcomed));
        if goes_on.await.is_err() {
            return OutboundEnd::Broken("the lane is another's meanwhile".to_owned());
        }
        match writer::run(stream, lane, accepted).await {
            lane::LaneEnd::Finished => OutboundEnd::Finished,
            ended => OutboundEnd::Broken(ended.to_string()),
        }
    }

    // ── Inbound lanes ──

    /// Spawns a task that accepts a substream and reads the lane that it carries. The task reports
    /// [`Report::Inbound`] only for the ends that [`InboundError`] lists, and not if it was
    /// aborted. Until the connection manager has got its [`Report::Hello`], nothing but the timeout
    /// of the handshake and the end of the substream ends it.
    pub(super) fn accept(&self, accepting: InboundSubstream) {
        let tasks = self.clone();
        // The connection manager needs the task's abort handle, which exists only once the task is
        // spawned.
        let (sender, receiver) = oneshot::channel();
        let task = self.spawn(accepting.class, async move {
            let Ok(reader) = receiver.await else { return };
            let (peer, class) = (accepting.peer, accepting.class);
            if let Err(why) = tasks.read(accepting, reader).await {
                tasks.report(Report::Inbound { peer, class, why });
            }
        });
        let _ = sender.send(task.abort_handle()); // cannot fail: the task waits for it
    }

    /// Judges the peer's hello, asks the connection manager for the inbound lane
    /// ([`Report::Hello`]), waits for the turn to read it, welcomes the peer, and reads to the end.
    /// `reader` is the abort handle of this task. The hello, the refusal and the welcome have
    /// `handshake_within` each; the waits for the reply and for the turn have no limit here.
    ///
    /// A refusal, by the connection manager or by [`InboundLane::take_over`], is sent to the peer
    /// before it is returned; if that fails, the error of the sending is returned instead. Returns
    /// `Ok` also when the connection manager drops the request, when a later substream takes the
    /// turn over, also during the welcome, and when the connection breaks after the welcome.
    async fn read(
        &self,
        accepting: InboundSubstream,
        reader: AbortHandle,
    ) -> Result<(), InboundError> {
        let InboundSubstream { peer, connection, class, mut stream } = accepting;
        let within = self.limits.handshake_within;
        let us = self.admission();
        let asked = match handshake::accept(&mut stream, &us, peer, class, within).await {
            Ok(asked) => asked,
            Err(HandshakeError::Unacceptable(refusal)) => {
                return Err(InboundError::Refused(refusal));
            }
            Err(error) => return Err(InboundError::Handshake(error)),
        };
        let (reply, lane) = oneshot::channel();
        let hello = asked.hello.clone();
        let (generation, first) = (hello.generation, hello.first_unacknowledged);
        self.report(Report::Hello { peer, connection, hello, reader, reply });
        let Ok(lane) = lane.await else { return Ok(()) }; // the manager dropped it
        let turn = match lane {
            Ok(lane) => lane.take_over(generation, first).await,
            Err(refusal) => Err(refusal),
        };
        let node: NodeId = asked.node;
        let turn = match turn {
            Ok(turn) => turn,
            Err(refusal) => {
                let sent = asked.refuse(&mut stream, &refusal, within).await;
                return Err(
                    sent.map_or_else(InboundError::Handshake, |()| InboundError::Refused(refusal))
                );
            }
        };
        // A peer that does not read its welcome must not delay its next substream.
        tokio::select! {
            sent = asked.welcome(&mut stream, &us, turn.accepted(), within) => {
                sent.map_err(InboundError::Handshake)?;
            }
            () = turn.superseded() => return Ok(()),
        }
        drop(us); // a snapshot with the whole quarantine; the lane may live long
        let receiver = self.receiver.clone();
        match reader::run(stream, turn, node, class, &self.limits, receiver).await {
            ended @ lane::LaneEnd::Violation(_) => Err(InboundError::Violation(ended)),
            _ => Ok(()),
        }
    }
}
