//! The entity types aircraft, airline and airport. Each entity sums up the flights that it is told.
//!
//! The aircraft passes a flight to its airline, the airline to the airport of origin, and that to
//! the destination, which answers the feeder: an answer means that all four entities have counted
//! the flight. The flights in transit are therefore bounded by the feeder's unanswered asks.
//!
//! The entities keep their state in memory and hand it over in planned moves.

use ostraca::node::sharding::NotStarted;
use ostraca::prelude::*;
use ostraca::sharding::entity::BoxError;
use serde::{Deserialize, Serialize};

use crate::records::Flight;
use crate::tally::{Tally, Traffic};

/// An entity's report at the end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Account<S> {
    pub(crate) known: S,
    /// Incarnation of the node on which the entity lives.
    pub(crate) node: u64,
    /// Number of flights that arrived out of order.
    pub(crate) disorder: u64,
}

/// Message of an aircraft and of an airline.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// One of its flights; the reply goes to the feeder.
    Flown(Flight, Reply<()>),
    Report(Reply<Account<Tally>>),
}

/// Message of an airport.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Seen {
    /// A flight that leaves the airport.
    Leaves(Flight, Reply<()>),
    /// A flight that arrives at the airport.
    BoundFor(Flight, Reply<()>),
    Report(Reply<Account<Traffic>>),
}

/// An aircraft; its id is `tailnum`.
pub(crate) struct Aircraft {
    state: Logbook,
    airlines: ShardRegion<Airline>,
}

/// State of an aircraft.
#[derive(Default, Serialize, Deserialize)]
struct Logbook {
    tally: Tally,
    last_row: u64,
    disorder: u64,
}

impl Entity for Aircraft {
    type Message = Told;

    async fn handle(&mut self, told: Told, cx: &mut Context<'_, Self>) {
        match told {
            Told::Flown(flight, done) => {
                self.state.tally.add(&flight);
                // A single node feeds all flights, in the order of the file.
                self.state.disorder += u64::from(flight.row <= self.state.last_row);
                self.state.last_row = flight.row;
                let airline = self.airlines.entity(&flight.carrier);
                // An error drops the reply, so that the feeder's ask fails.
                let _ = airline.tell_wait(Told::Flown(flight, done)).await;
            }
            Told::Report(reply) => {
                let (known, disorder) = (self.state.tally, self.state.disorder);
                reply.send(Account { known, disorder, node: cx.node().replica().get() });
            }
        }
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        serde_json::to_vec(&self.state).ok()
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.state = serde_json::from_slice(state)?;
        Ok(())
    }
}

/// An airline; its id is `carrier`.
pub(crate) struct Airline {
    tally: Tally,
    airports: ShardRegion<Airport>,
}

impl Entity for Airline {
    type Message = Told;

    async fn handle(&mut self, told: Told, cx: &mut Context<'_, Self>) {
        match told {
            Told::Flown(flight, done) => {
                self.tally.add(&flight);
                let origin = self.airports.entity(&flight.origin);
                let _ = origin.tell_wait(Seen::Leaves(flight, done)).await; // as above
            }
            Told::Report(reply) => {
                let node = cx.node().replica().get();
                reply.send(Account { known: self.tally, disorder: 0, node });
            }
        }
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        serde_json::to_vec(&self.tally).ok()
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.tally = serde_json::from_slice(state)?;
        Ok(())
    }
}

/// An airport; its id is an `origin` or a `dest`.
#[derive(Default)]
pub(crate) struct Airport(Traffic);

impl Entity for Airport {
    type Message = Seen;

    async fn handle(&mut self, seen: Seen, cx: &mut Context<'_, Self>) {
        match seen {
            Seen::Leaves(flight, done) => {
                self.0.leaves(&flight);
                let destination = cx.entity(&flight.dest);
                let _ = destination.tell_wait(Seen::BoundFor(flight, done)).await; // as above
            }
            Seen::BoundFor(flight, done) => {
                self.0.inbound.add(&flight);
                done.send(());
            }
            Seen::Report(reply) => {
                let (known, node) = (self.0.clone(), cx.node().replica().get());
                reply.send(Account { known, disorder: 0, node });
            }
        }
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        serde_json::to_vec(&self.0).ok()
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.0 = serde_json::from_slice(state)?;
        Ok(())
    }
}

/// Number of messages to entities for each flight.
pub(crate) const MESSAGES_PER_FLIGHT: u64 = 4;

pub(crate) const TYPES: [&str; 3] = ["aircraft", "airline", "airport"];

/// The three types on one node.
pub(crate) struct Regions {
    pub(crate) aircraft: ShardRegion<Aircraft>,
    pub(crate) airlines: ShardRegion<Airline>,
    pub(crate) airports: ShardRegion<Airport>,
}

impl Regions {
    /// Starts the types on a node that hosts them.
    pub(crate) async fn start(sharding: &Sharding) -> Result<Self, NotStarted> {
        let [aircraft, airline, airport] = TYPES;
        let airports = sharding.start(airport, |_| Airport::default()).await?;
        let to = airports.clone();
        let new = move |_: &_| Airline { tally: Tally::default(), airports: to.clone() };
        let airlines = sharding.start(airline, new).await?;
        let to = airlines.clone();
        let new = move |_: &_| Aircraft { state: Logbook::default(), airlines: to.clone() };
        let aircraft = sharding.start(aircraft, new).await?;
        Ok(Self { aircraft, airlines, airports })
    }

    /// Starts proxies for the types, on a node that only sends to them.
    pub(crate) async fn start_proxies(sharding: &Sharding) -> Result<Self, NotStarted> {
        let [aircraft, airline, airport] = TYPES;
        Ok(Self {
            aircraft: sharding.start_proxy(aircraft).await?,
            airlines: sharding.start_proxy(airline).await?,
            airports: sharding.start_proxy(airport).await?,
        })
    }

    /// Number of states that were lost in moves.
    pub(crate) fn lost_states(&self) -> u64 {
        let Self { aircraft, airlines, airports } = self;
        aircraft.lost_states() + airlines.lost_states() + airports.lost_states()
    }

    /// Number of panics of entities.
    pub(crate) fn failures(&self) -> u64 {
        let Self { aircraft, airlines, airports } = self;
        aircraft.failures() + airlines.failures() + airports.failures()
    }

    /// Number of dead letters that this node has counted, by reason.
    pub(crate) fn dead_letters(&self) -> std::collections::BTreeMap<String, u64> {
        let all = self.aircraft.dead_letters().chain(self.airlines.dead_letters());
        let mut letters = std::collections::BTreeMap::new();
        for (why, count) in all.chain(self.airports.dead_letters()).filter(|(_, n)| *n > 0) {
            *letters.entry(why.name().to_owned()).or_default() += count;
        }
        letters
    }
}
