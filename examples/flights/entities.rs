//! The entities: an aircraft, an airline, an airport. Each adds up the flights that it is told of.
//!
//! A flight goes from its aircraft to the airline, from there to the airport that it leaves and on
//! to the one that it is bound for, which answers whoever fed it in: an answer says that all four
//! have counted it. So what is under way is bounded by what the feeder has no answer for.
//!
//! What they know is in memory, and goes along when their shard moves in order.

use ostraca::node::sharding::NotStarted;
use ostraca::prelude::*;
use ostraca::sharding::entity::BoxError;
use serde::{Deserialize, Serialize};

use crate::records::Flight;
use crate::tally::{Tally, Traffic};

/// What an entity answers when it is asked what it knows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Account<S> {
    pub(crate) known: S,
    /// The node on which it lives.
    pub(crate) node: u64,
    /// Flights that came to it out of the order in which they were sent.
    pub(crate) disorder: u64,
}

/// What an aircraft and an airline are told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// One of its flights; the reply goes to whoever fed it in.
    Flown(Flight, Reply<()>),
    Report(Reply<Account<Tally>>),
}

/// What an airport is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Seen {
    /// A flight that leaves it.
    Leaves(Flight, Reply<()>),
    /// A flight that is bound for it.
    BoundFor(Flight, Reply<()>),
    Report(Reply<Account<Traffic>>),
}

/// Who flies: `tailnum`.
pub(crate) struct Aircraft {
    state: Logbook,
    airlines: ShardRegion<Airline>,
}

/// What an aircraft knows.
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
                // One node feeds all flights in, in the order of the file.
                self.state.disorder += u64::from(flight.row <= self.state.last_row);
                self.state.last_row = flight.row;
                let airline = self.airlines.entity(&flight.carrier);
                // An error drops the reply, which tells the feeder.
                let _ = airline.tell_wait(Told::Flown(flight, done)).await;
            }
            Told::Report(reply) => {
                let (known, disorder) = (self.state.tally, self.state.disorder);
                reply.send(Account { known, disorder, node: cx.node().replica().get() });
            }
        }
    }

    fn hand_over(&mut self) -> Option<Vec<u8>> {
        serde_json::to_vec(&self.state).ok()
    }

    fn take_over(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.state = serde_json::from_slice(state)?;
        Ok(())
    }
}

/// Who sells the seats: `carrier`.
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

    fn hand_over(&mut self) -> Option<Vec<u8>> {
        serde_json::to_vec(&self.tally).ok()
    }

    fn take_over(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.tally = serde_json::from_slice(state)?;
        Ok(())
    }
}

/// Where it begins and ends: `origin` and `dest`.
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

    fn hand_over(&mut self) -> Option<Vec<u8>> {
        serde_json::to_vec(&self.0).ok()
    }

    fn take_over(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.0 = serde_json::from_slice(state)?;
        Ok(())
    }
}

/// Messages to entities that a flight costs.
pub(crate) const MESSAGES_PER_FLIGHT: u64 = 4;

pub(crate) const TYPES: [&str; 3] = ["aircraft", "airline", "airport"];

/// The three types on one node.
pub(crate) struct Regions {
    pub(crate) aircraft: ShardRegion<Aircraft>,
    pub(crate) airlines: ShardRegion<Airline>,
    pub(crate) airports: ShardRegion<Airport>,
}

impl Regions {
    /// For a node on which they live.
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

    /// For a node that only talks to them.
    pub(crate) async fn start_proxies(sharding: &Sharding) -> Result<Self, NotStarted> {
        let [aircraft, airline, airport] = TYPES;
        Ok(Self {
            aircraft: sharding.start_proxy(aircraft).await?,
            airlines: sharding.start_proxy(airline).await?,
            airports: sharding.start_proxy(airport).await?,
        })
    }

    /// States that a move was to carry and nobody took.
    pub(crate) fn lost_states(&self) -> u64 {
        let Self { aircraft, airlines, airports } = self;
        aircraft.lost_states() + airlines.lost_states() + airports.lost_states()
    }

    /// Panics of entities.
    pub(crate) fn failures(&self) -> u64 {
        let Self { aircraft, airlines, airports } = self;
        aircraft.failures() + airlines.failures() + airports.failures()
    }

    /// Messages that nobody handled, as far as this node knows, by reason.
    pub(crate) fn dead_letters(&self) -> std::collections::BTreeMap<String, u64> {
        let all = self.aircraft.dead_letters().chain(self.airlines.dead_letters());
        let mut letters = std::collections::BTreeMap::new();
        for (why, count) in all.chain(self.airports.dead_letters()).filter(|(_, n)| *n > 0) {
            *letters.entry(why.name().to_owned()).or_default() += count;
        }
        letters
    }
}
