//! Sums of flights, and the comparison of the entities' sums with those of a sequential pass.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::records::{Flight, Record};

/// Sums over a set of flights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) flights: u64,
    pub(crate) cancelled: u64,
    pub(crate) miles: u64,
    /// Flights whose delay at arrival is known.
    pub(crate) arrived: u64,
    /// Sum of these delays, in minutes.
    pub(crate) delay: i64,
}

impl Tally {
    pub(crate) fn add(&mut self, flight: &Flight) {
        self.flights += 1;
        self.cancelled += u64::from(flight.cancelled);
        self.miles += u64::from(flight.miles);
        self.arrived += u64::from(flight.delay.is_some());
        self.delay += i64::from(flight.delay.unwrap_or(0));
    }

    fn plus(self, other: &Self) -> Self {
        Self {
            flights: self.flights + other.flights,
            cancelled: self.cancelled + other.cancelled,
            miles: self.miles + other.miles,
            arrived: self.arrived + other.arrived,
            delay: self.delay + other.delay,
        }
    }
}

impl<'a> std::iter::Sum<&'a Tally> for Tally {
    fn sum<I: Iterator<Item = &'a Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), Self::plus)
    }
}

/// State of an airport.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Traffic {
    /// Flights that arrive there.
    pub(crate) inbound: Tally,
    /// Departing flights, by destination.
    pub(crate) outbound: BTreeMap<String, Tally>, // ≤ airports of the file
}

impl Traffic {
    /// Number of departing and arriving flights.
    pub(crate) fn flights(&self) -> u64 {
        self.left().flights + self.inbound.flights
    }

    pub(crate) fn left(&self) -> Tally {
        self.outbound.values().sum()
    }

    pub(crate) fn leaves(&mut self, flight: &Flight) {
        match self.outbound.get_mut(&flight.dest) {
            Some(tally) => tally.add(flight),
            None => self.outbound.entry(flight.dest.clone()).or_default().add(flight),
        }
    }
}

/// States of all entities, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) aircraft: BTreeMap<String, Tally>, // each ≤ names in the file
    pub(crate) airlines: BTreeMap<String, Tally>,
    pub(crate) airports: BTreeMap<String, Traffic>,
}

impl Totals {
    /// Adds a flight, for the sequential pass.
    pub(crate) fn add(&mut self, Record { tailnum, flight }: &Record) {
        self.aircraft.entry(tailnum.clone()).or_default().add(flight);
        self.airlines.entry(flight.carrier.clone()).or_default().add(flight);
        self.airports.entry(flight.origin.clone()).or_default().leaves(flight);
        self.airports.entry(flight.dest.clone()).or_default().inbound.add(flight);
    }

    /// Sums over all flights, from the aircraft.
    pub(crate) fn all(&self) -> Tally {
        self.aircraft.values().sum()
    }

    pub(crate) fn entities(&self) -> usize {
        self.aircraft.len() + self.airlines.len() + self.airports.len()
    }
}

/// An entity whose state differs from the sequential pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Difference {
    pub(crate) kind: &'static str,
    pub(crate) id: String,
    /// Number of flights in the sequential pass.
    pub(crate) flights_expected: u64,
    /// Number of flights that the entity has counted.
    pub(crate) flights_counted: u64,
    pub(crate) expected: serde_json::Value,
    /// `null` if the entity has not answered.
    pub(crate) counted: serde_json::Value,
}

/// Overall result of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// Every entity agrees with the sequential pass.
    Exact,
    /// A node was killed on request. The flights in `differences` are missing, and none was counted
    /// twice.
    MissingAsAsked,
    /// The result is wrong.
    Different,
}

impl Verdict {
    pub(crate) fn of(crashed: bool, disorder: u64, differences: &[Difference]) -> Self {
        let surplus = |one: &Difference| one.flights_counted > one.flights_expected;
        match differences {
            _ if disorder > 0 => Self::Different,
            [] => Self::Exact,
            all if crashed && !all.iter().any(surplus) => Self::MissingAsAsked,
            _ => Self::Different,
        }
    }
}

/// Lists the entities whose states differ from the sequential pass.
pub(crate) fn differences(expected: &Totals, counted: &Totals) -> Vec<Difference> {
    let flights = |tally: &Tally| tally.flights;
    let mut all = compared("aircraft", &expected.aircraft, &counted.aircraft, flights);
    all.extend(compared("airline", &expected.airlines, &counted.airlines, flights));
    all.extend(compared("airport", &expected.airports, &counted.airports, Traffic::flights));
    all
}

fn compared<S: PartialEq + Serialize>(
    kind: &'static str,
    expected: &BTreeMap<String, S>,
    counted: &BTreeMap<String, S>,
    flights: impl Fn(&S) -> u64,
) -> Vec<Difference> {
    let value = |account: Option<&S>| serde_json::to_value(account).unwrap_or_default();
    let pairs = expected.iter().map(|(id, account)| (id, account, counted.get(id)));
    let differing = pairs.filter(|(_, account, counted)| Some(*account) != *counted);
    let difference = |(id, account, counted): (&String, &S, Option<&S>)| Difference {
        kind,
        id: id.clone(),
        flights_expected: flights(account),
        flights_counted: counted.map_or(0, &flights),
        expected: value(Some(account)),
        counted: value(counted),
    };
    differing.map(difference).collect()
}
