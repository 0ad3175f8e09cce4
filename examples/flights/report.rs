//! The report of a run, as text or as JSON.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use indicatif::{HumanCount, HumanFloatCount};
use serde::Serialize;

use crate::acts::Played;
use crate::entities::TYPES;
use crate::feed::Fed;
use crate::records::{NOT_AVAILABLE, Problems};
use crate::tally::{Difference, Tally, Totals, Verdict};

/// Maximum number of differing entities in the text; JSON contains all.
const DIFFERENCES_SHOWN: usize = 20;

/// Number of aircraft and of routes in the rankings.
const TOP: usize = 10;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) file: String,
    pub(crate) totals: Counts,
    pub(crate) busiest_aircraft: Vec<Busy>,
    pub(crate) most_delayed_routes: Vec<Route>,
    pub(crate) problems: Problems,
    /// Whether the file may have had more flights than could be read.
    pub(crate) incomplete: bool,
    pub(crate) fed: Fed,
    pub(crate) acts: Vec<Played>,
    pub(crate) nodes: BTreeMap<String, Home>,
    pub(crate) dead_letters: BTreeMap<String, u64>,
    /// Number of messages that were given up unacknowledged: to a killed node, and control messages
    /// to a node that has left.
    pub(crate) given_up: u64,
    /// Number of entity states that were lost in moves.
    pub(crate) lost_states: u64,
    /// Number of panics of entities.
    pub(crate) failures: u64,
    /// Number of flights that reached an aircraft out of order.
    pub(crate) disorder: u64,
    /// Entities whose states differ from the sequential pass.
    pub(crate) differences: Vec<Difference>,
    pub(crate) verdict: Verdict,
}

/// Sums over the reports of all entities.
#[derive(Debug, Serialize)]
pub(crate) struct Counts {
    pub(crate) aircraft: usize,
    pub(crate) airlines: usize,
    pub(crate) airports: usize,
    #[serde(flatten)]
    pub(crate) flights: Tally,
}

#[derive(Debug, Serialize)]
pub(crate) struct Busy {
    pub(crate) tailnum: String,
    pub(crate) flights: u64,
    pub(crate) miles: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Route {
    pub(crate) origin: String,
    pub(crate) dest: String,
    /// Total delay of all flights, in minutes.
    pub(crate) delay: i64,
    pub(crate) arrived: u64,
}

/// Shards and entities on a node.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Home {
    pub(crate) shards: BTreeMap<String, usize>,
    pub(crate) entities: BTreeMap<&'static str, usize>,
}

impl Counts {
    pub(crate) fn of(totals: &Totals) -> Self {
        let Totals { aircraft, airlines, airports } = totals;
        let (aircraft, airlines, airports) = (aircraft.len(), airlines.len(), airports.len());
        Self { aircraft, airlines, airports, flights: totals.all() }
    }
}

/// The aircraft with the most flights; equal ones are ordered by name.
pub(crate) fn busiest(totals: &Totals) -> Vec<Busy> {
    let known = totals.aircraft.iter().filter(|(tailnum, _)| *tailnum != NOT_AVAILABLE);
    let mut all: Vec<_> = known.collect();
    all.sort_by_key(|(tailnum, tally)| (Reverse(tally.flights), *tailnum));
    let busy = |(tailnum, tally): (&String, &Tally)| {
        let (tailnum, flights, miles) = (tailnum.clone(), tally.flights, tally.miles);
        Busy { tailnum, flights, miles }
    };
    all.into_iter().take(TOP).map(busy).collect()
}

/// The routes with the largest total delay; equal ones are ordered by name.
pub(crate) fn most_delayed(totals: &Totals) -> Vec<Route> {
    let routes = totals.airports.iter().flat_map(|(origin, traffic)| {
        traffic.outbound.iter().map(move |(dest, tally)| (origin, dest, tally))
    });
    let mut all: Vec<_> = routes.collect();
    all.sort_by_key(|(origin, dest, tally)| (Reverse(tally.delay), *origin, *dest));
    let route = |(origin, dest, tally): (&String, &String, &Tally)| {
        let (origin, dest) = (origin.clone(), dest.clone());
        Route { origin, dest, delay: tally.delay, arrived: tally.arrived }
    };
    all.into_iter().take(TOP).map(route).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_totals(f)?;
        self.write_nodes(f)?;
        self.write_course(f)?;
        self.write_problems(f)?;
        self.write_verdict(f)
    }
}

impl Report {
    fn write_totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { aircraft, airlines, airports, flights } = &self.totals;
        let Tally { flights, cancelled, miles, arrived, delay } = *flights;
        writeln!(f, "{} flights of {}", count(flights), shown(&self.file))?;
        writeln!(f, "  {} aircraft, {airlines} airlines, {airports} airports", of(*aircraft))?;
        writeln!(f, "  {} cancelled; {} miles", count(cancelled), count(miles))?;
        writeln!(f, "  {} arrived, {} minutes late in all\n", count(arrived), minutes(delay))?;
        writeln!(f, "The busiest aircraft    flights       miles")?;
        for Busy { tailnum, flights, miles } in &self.busiest_aircraft {
            let tailnum = shown(tailnum);
            writeln!(f, "  {tailnum:<20} {:>8}  {:>10}", count(*flights), count(*miles))?;
        }
        writeln!(f, "\nThe most delayed routes minutes    arrived   on average")?;
        for Route { origin, dest, delay, arrived } in &self.most_delayed_routes {
            let average = *delay as f64 / (*arrived).max(1) as f64;
            let route = shown(&format!("{origin} - {dest}"));
            writeln!(
                f,
                "  {route:<20} {:>8}  {:>9} {average:>12.1}",
                minutes(*delay),
                count(*arrived)
            )?;
        }
        Ok(())
    }

    fn write_nodes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nWhat lives where        aircraft   airlines   airports     shards")?;
        for (name, home) in &self.nodes {
            write!(f, "  {name:<20}")?;
            for of_type in TYPES {
                write!(f, " {:>10}", of(home.entities.get(of_type).copied().unwrap_or(0)))?;
            }
            writeln!(f, " {:>10}", home.shards.values().sum::<usize>())?;
        }
        Ok(())
    }

    fn write_course(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fed { flights, seconds, messages_per_second, unanswered, .. } = &self.fed;
        let rate = HumanFloatCount(messages_per_second.round());
        writeln!(f, "\n{} flights in {seconds:.2} s", count(*flights))?;
        writeln!(f, "  {rate} messages to entities a second while no node came or went")?;
        for Played { act, at_row, rows_meanwhile, seconds } in &self.acts {
            let (at, meanwhile) = (count(*at_row), count(*rows_meanwhile));
            writeln!(f, "  {act:?} at flight {at}: {seconds:.2} s, {meanwhile} flights meanwhile")?;
        }
        for (why, flights) in unanswered {
            writeln!(f, "  {} flights are not answered for: {why}", count(*flights))?;
        }
        match self.dead_letters.is_empty() {
            true => writeln!(f, "  dead letters: none")?,
            false => writeln!(f, "  dead letters: {}", listed(&self.dead_letters))?,
        }
        if self.given_up > 0 {
            let given_up = count(self.given_up);
            writeln!(f, "  {given_up} messages of any kind were on their way to nodes that went")?;
        }
        let odd = [
            (self.lost_states, "states of entities were lost in moves"),
            (self.failures, "panics of entities"),
            (self.disorder, "flights came to their aircraft out of order"),
        ];
        for (number, what) in odd.into_iter().filter(|(number, _)| *number > 0) {
            writeln!(f, "  {} {what}", count(number))?;
        }
        Ok(())
    }

    fn write_problems(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problems { missing_columns, malformed, named, not_available, cut_short } =
            &self.problems;
        if !missing_columns.is_empty() {
            writeln!(f, "\nThe file has no column {}", missing_columns.join(", "))?;
        }
        if *malformed > 0 {
            writeln!(f, "\n{} lines are no flights and were left out", count(*malformed))?;
            for line in named {
                writeln!(f, "  line {}: {}", line.line, shown(&line.why))?;
            }
        }
        if !not_available.is_empty() {
            writeln!(f, "\nNot available (NA)       values   first in line")?;
        }
        for (column, gaps) in not_available {
            let first = gaps.first_lines.first().copied().unwrap_or(0);
            writeln!(f, "  {column:<20} {:>8}   {first:>13}", count(gaps.count))?;
        }
        match cut_short {
            Some(why) => writeln!(f, "\nThe rest of the file can't be read: {}", shown(why)),
            None => Ok(()),
        }
    }

    fn write_verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { aircraft, airlines, airports, .. } = self.totals;
        let entities = of(aircraft + airlines + airports);
        writeln!(f)?;
        if self.verdict == Verdict::Exact && self.incomplete {
            return write!(
                f,
                "INCOMPLETE: the file may have more flights than could be read. All {entities} \
                 entities agree with what could be read."
            );
        }
        if self.verdict == Verdict::Exact {
            return write!(
                f,
                "All {entities} entities agree with a sequential pass over the file."
            );
        }
        for one in self.differences.iter().take(DIFFERENCES_SHOWN) {
            let Difference { kind, id, flights_expected, flights_counted, .. } = one;
            let id = shown(id);
            writeln!(f, "  {kind} {id}: {flights_counted} flights of {flights_expected}")?;
        }
        if let Some(more) = self.differences.len().checked_sub(DIFFERENCES_SHOWN)
            && more > 0
        {
            writeln!(f, "  and {} more, which --json names", of(more))?;
        }
        let differing = of(self.differences.len());
        match self.verdict {
            Verdict::MissingAsAsked => write!(
                f,
                "{differing} of {entities} entities miss flights: what they knew was in the memory \
                 of the node that was killed, or was on its way there. Nothing was counted twice.",
            ),
            _ => write!(f, "WRONG: {differing} of {entities} entities differ from the file."),
        }
    }
}

/// Escapes text of the file for a terminal: control characters, and characters that change the
/// direction of text.
fn shown(text: &str) -> String {
    let is_harmful = |c: char| {
        c.is_control()
            || matches!(c,
                '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match is_harmful(c) {
            true => clean.extend(c.escape_unicode()),
            false => clean.push(c),
        }
    }
    clean
}

/// Formats a number as in `1,234`.
fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

fn of(number: usize) -> String {
    count(number as u64)
}

fn minutes(number: i64) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", count(number.unsigned_abs()))
}

fn listed(counts: &BTreeMap<String, u64>) -> String {
    let mut text = String::new();
    for (at, (what, count)) in counts.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{count} {what}"); // never fails for a `String`
    }
    text
}
