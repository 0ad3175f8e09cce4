//! Clients of this node: let in by the same rules as nodes, counted apart, and known to nobody.

use std::collections::BTreeMap;

use libp2p::swarm::ConnectionId;
use tokio::sync::mpsc;

use super::tasks::{Report, Tasks, Why};
use crate::net::client::{ClientStream, Ends, Held};
use crate::net::handshake::{self, HandshakeError};
use crate::net::swarm::{Calling, Slot, Slots};
use crate::net::wire::Refusal;

/// See the module's page.
pub(super) struct Clients {
    places: Slots, // ≤ limits.clients
    taker: Option<mpsc::Sender<ClientStream>>,
    open: BTreeMap<ConnectionId, Vec<Ends>>, // ≤ limits.clients, and those that have just gone
}

/// Whose key a client calls with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// Its own.
    Own,
    /// That of a node which is known: its connection is taken for one of the node's.
    OfNode,
}

/// What one client needs to be let in.
struct Room {
    place: Slot,
    taker: mpsc::OwnedPermit<ClientStream>,
}

impl Clients {
    pub(super) fn new(places: Slots) -> Self {
        Self { places, taker: None, open: BTreeMap::new() }
    }

    /// Who takes clients from now on.
    pub(super) fn are_for(&mut self, taker: mpsc::Sender<ClientStream>) {
        self.taker = Some(taker);
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.places.taken()
    }

    /// A client calls. It is answered by a task of its own, and handed over if it is let in.
    pub(super) fn call(&self, calling: Calling, key: Key, tasks: &Tasks) {
        let (places, taker, tasks) = (self.places.clone(), self.taker.clone(), tasks.clone());
        tokio::spawn(async move {
            let (peer, connection) = (calling.peer, calling.connection);
            let room = || match key {
                Key::Own => room(&places, taker),
                Key::OfNode => Err(Refusal::Twin),
            };
            if let Err(why) = answer(calling, &tasks, room).await {
                tasks.tell(Report::Client { peer, connection, why });
            }
        });
    }

    /// A client was let in on this connection.
    pub(super) fn opened(&mut self, connection: ConnectionId, ends: Ends) {
        self.open.retain(|_, streams| {
            streams.retain(|ends| !ends.are_over());
            !streams.is_empty()
        });
        self.open.entry(connection).or_default().push(ends);
    }

    /// A connection is gone, or going.
    pub(super) fn connection_ended(&mut self, connection: ConnectionId) {
        self.open.remove(&connection);
    }
}

fn room(places: &Slots, taker: Option<mpsc::Sender<ClientStream>>) -> Result<Room, Refusal> {
    use mpsc::error::TrySendError::{Closed, Full};
    let full = || Refusal::Limit { what: "net.limits.clients".to_owned() };
    let taker = taker.filter(|taker| !taker.is_closed()).ok_or(Refusal::Unserved)?;
    let place = places.take().ok_or_else(full)?;
    let taker = taker.try_reserve_owned().map_err(|error| match error {
        Full(_) => full(),
        Closed(_) => Refusal::Unserved,
    })?;
    Ok(Room { place, taker })
}

async fn answer(
    calling: Calling,
    tasks: &Tasks,
    room: impl FnOnce() -> Result<Room, Refusal>,
) -> Result<(), Why> {
    let Calling { peer, connection, mut stream, place: unanswered } = calling;
    let (us, within) = (tasks.standing(), tasks.limits.handshake_within);
    let answered = handshake::answer(&mut stream, &us, peer, within, room).await;
    let Room { place, taker } = answered.map_err(|error| match error {
        HandshakeError::Unacceptable(refusal) => Why::Refused(refusal),
        error => Why::Handshake(error),
    })?;
    drop(unanswered);
    let held = Held::Place { _place: place };
    let undrained_max = tasks.limits.control_undrained_max;
    let (stream, ends) = ClientStream::new(stream, peer, undrained_max, held);
    tasks.tell(Report::LetIn { connection, ends });
    taker.send(stream);
    Ok(())
}
