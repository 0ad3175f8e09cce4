//! Clients of this node. They pass the same admission as nodes, have a limit of their own, and are
//! not known as peers.
//!
//! A task of its own answers each call: it makes the handshake, reserves a slot, delivers the
//! stream to the application, and reports the result to the connection manager.

use std::collections::BTreeMap;

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;
use tokio::sync::mpsc;

use super::ConnectionManager;
use super::tasks::{InboundError, Report, Tasks};
use crate::net::client::{ClientStream, HeldResource, StreamEndGuard};
use crate::net::handshake::{self, HandshakeError};
use crate::net::swarm::{ClientSubstream, LimitSlot, LimitSlots};
use crate::net::wire::LaneRefusal;

/// Admitted clients, and the channel on which the application takes them.
pub(super) struct Clients {
    places: LimitSlots, // ≤ limits.clients
    /// `None` until the application takes clients: until then every client is refused, and also
    /// after the application has dropped the receiver.
    taker: Option<mpsc::Sender<ClientStream>>,
    /// Dropping a guard ends its stream.
    open: BTreeMap<ConnectionId, Vec<StreamEndGuard>>, // ≤ limits.clients, and ended ones
}

/// Owner of the key with which a client calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyOwner {
    /// The client, which is not known as a node.
    Client,
    /// A known node: the client's connection is counted as one of the node's. Such a call is
    /// refused as [`LaneRefusal::Twin`], but only after a valid handshake.
    KnownNode,
}

/// Slot and channel permit for one client, reserved before it is admitted.
struct Reservation {
    place: LimitSlot,
    taker: mpsc::OwnedPermit<ClientStream>,
}

impl Clients {
    /// Creates the state without a channel for clients.
    pub(super) fn new(places: LimitSlots) -> Self {
        Self { places, taker: None, open: BTreeMap::new() }
    }

    /// Sets the channel on which clients are delivered from now on. Replaces an earlier one, on
    /// which clients that are being admitted still arrive.
    pub(super) fn deliver_to(&mut self, taker: mpsc::Sender<ClientStream>) {
        self.taker = Some(taker);
    }

    /// Number of taken slots: admitted clients whose streams exist, also ended ones that the
    /// application holds, and clients with a valid proof that are being answered.
    pub(super) fn count(&self) -> usize {
        self.places.taken()
    }

    /// Answers a calling client in a task of its own, with the channel of now. If the client is
    /// admitted, its stream is delivered ([`answer`]); if not, the task reports
    /// [`Report::ClientFailed`]. Nothing aborts the task while the runtime runs.
    fn call(&self, calling: ClientSubstream, key: KeyOwner, tasks: &Tasks) {
        let (places, taker, tasks) = (self.places.clone(), self.taker.clone(), tasks.clone());
        tokio::spawn(async move {
            let (peer, connection) = (calling.peer, calling.connection);
            // Judged again, because the stop may have begun since the handshake did.
            let room = || match key {
                _ if tasks.admission().stopping => Err(LaneRefusal::Stopping),
                KeyOwner::Client => room(&places, taker),
                KeyOwner::KnownNode => Err(LaneRefusal::Twin),
            };
            if let Err(why) = answer(calling, &tasks, room).await {
                tasks.report(Report::ClientFailed { peer, connection, why });
            }
        });
    }

    /// Registers the stream of an admitted client, so that it ends with this connection. Also
    /// removes the streams that the application has dropped, of all connections; nothing else does
    /// before the end of the connection. One connection may have several.
    fn opened(&mut self, connection: ConnectionId, ends: StreamEndGuard) {
        self.open.retain(|_, streams| {
            streams.retain(|ends| !ends.is_stream_dropped());
            !streams.is_empty()
        });
        self.open.entry(connection).or_default().push(ends);
    }

    /// Ends the streams of a connection that is closed or closing. Their slots stay taken until the
    /// application drops them. Has no effect if it has none, or when called again.
    pub(super) fn connection_ended(&mut self, connection: ConnectionId) {
        self.open.remove(&connection);
    }
}

impl ConnectionManager {
    /// Answers a client that has opened a substream. Drops the substream, which resets it, if its
    /// connection is closed or closing by now. The key is that of a known node if the connection
    /// manager has any state for the peer, also one that is not connected or was never admitted.
    pub(super) fn on_client_call(&mut self, calling: ClientSubstream) {
        if self.swarm.behaviour().is_open(calling.connection) {
            let is_node = self.peers.contains_key(&calling.peer);
            let key = if is_node { KeyOwner::KnownNode } else { KeyOwner::Client };
            self.clients.call(calling, key, &self.tasks);
        }
    }

    /// Registers an admitted client, and its connection as admitted, so that it no longer counts
    /// towards `limits.unadmitted`. If the connection is closed or closing by now, drops `ends`
    /// instead, which ends the client's stream; the application gets it all the same.
    pub(super) fn client_admitted(&mut self, connection: ConnectionId, ends: StreamEndGuard) {
        if self.swarm.behaviour().is_open(connection) {
            self.swarm.behaviour_mut().client_admitted(connection);
            self.clients.opened(connection, ends);
        }
    }

    /// Logs that a client was not admitted. Only a refusal is counted, each time, and a warning,
    /// once a minute for all clients together; a handshake that failed is logged at DEBUG. A client
    /// with the key of a known node also loses its connection; others may call on theirs again.
    pub(super) fn client_failed(
        &mut self,
        id: PeerId,
        connection: ConnectionId,
        why: &InboundError,
    ) {
        let InboundError::Refused(refusal) = why else {
            tracing::debug!(peer = %id, ?why, "net.client_not_let_in");
            return;
        };
        self.counted.refused += 1;
        // Most clients have a new peer id each time, so all of them share one throttled warning.
        if self.warning_throttle.due(std::time::Instant::now(), None, "client") {
            tracing::warn!(
                peer = %id, told = %refusal,
                "net.client_refused: a client was refused and told the reason"
            );
        }
        if *refusal == LaneRefusal::Twin {
            self.close(connection); // the link of that node has counted it as its own
        }
    }
}

/// Reserves a slot and a place in the channel for one client. Fails with [`LaneRefusal::Unserved`],
/// checked first, if the application takes no clients (yet, or any longer), and with
/// [`LaneRefusal::Limit`], which names `net.limits.clients`, if all slots are taken or the channel
/// is full. Keeps nothing after a failure. Never waits.
fn room(
    places: &LimitSlots,
    taker: Option<mpsc::Sender<ClientStream>>,
) -> Result<Reservation, LaneRefusal> {
    use mpsc::error::TrySendError::{Closed, Full};
    let full = || LaneRefusal::Limit { what: "net.limits.clients".to_owned() };
    let taker = taker.filter(|taker| !taker.is_closed()).ok_or(LaneRefusal::Unserved)?;
    let place = places.take().ok_or_else(full)?;
    let taker = taker.try_reserve_owned().map_err(|error| match error {
        Full(_) => full(),
        Closed(_) => LaneRefusal::Unserved,
    })?;
    Ok(Reservation { place, taker })
}

/// Makes the handshake with a client, by the admission state of its start and within
/// `handshake_within`, and, once it is admitted, reports it to the connection manager and then
/// delivers its stream. `room` is called only for a client that is otherwise admitted; its refusal
/// is sent to the client.
///
/// Fails as `Refused` only if this node refuses the client and could send the reason, otherwise as
/// `Handshake`. The connection may carry the next call once the client is admitted, or when this
/// returns an error.
async fn answer(
    calling: ClientSubstream,
    tasks: &Tasks,
    room: impl FnOnce() -> Result<Reservation, LaneRefusal>,
) -> Result<(), InboundError> {
    let ClientSubstream { peer, connection, mut stream, place: unanswered } = calling;
    let (us, within) = (tasks.admission(), tasks.limits.handshake_within);
    let answered = handshake::answer(&mut stream, &us, peer, within, room).await;
    let Reservation { place, taker } = answered.map_err(|error| match error {
        HandshakeError::Unacceptable(refusal) => InboundError::Refused(refusal),
        error => InboundError::Handshake(error),
    })?;
    drop(unanswered);
    let held = HeldResource::Slot { _slot: place };
    let undrained_max = tasks.limits.control_undrained_max;
    let (stream, ends) = ClientStream::new(stream, peer, undrained_max, held);
    tasks.report(Report::ClientAdmitted { connection, ends });
    taker.send(stream);
    Ok(())
}
