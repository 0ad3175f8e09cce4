//! Totals of flights, the differences between expected and counted totals, and the verdict on them.

use crate::records::{Flight, Record};
use crate::tally::{Difference, Tally, Totals, Verdict, differences};

fn record(tailnum: &str, row: u64, delay: Option<i32>) -> Record {
    let (carrier, origin, dest) = ("UA".to_owned(), "EWR".to_owned(), "IAH".to_owned());
    let flight =
        Flight { row, carrier, origin, dest, miles: 1_400, cancelled: delay.is_none(), delay };
    Record { tailnum: tailnum.to_owned(), flight }
}

fn totals(records: &[Record]) -> Totals {
    let mut totals = Totals::default();
    records.iter().for_each(|record| totals.add(record));
    totals
}

#[test]
fn flight_counts_for_aircraft_airline_and_both_airports() {
    let totals = totals(&[record("N1", 1, Some(5)), record("N2", 2, None)]);
    let one = Tally { flights: 1, cancelled: 0, miles: 1_400, arrived: 1, delay: 5 };
    let both = Tally { flights: 2, cancelled: 1, miles: 2_800, arrived: 1, delay: 5 };
    assert_eq!((totals.aircraft["N1"], totals.airlines["UA"], totals.all()), (one, both, both));
    assert_eq!((totals.airports["EWR"].left(), totals.airports["IAH"].inbound), (both, both));
    assert_eq!((totals.airports["EWR"].flights(), totals.entities()), (2, 5));
}

#[test]
fn equal_totals_are_exact_even_after_a_crash() {
    let totals = totals(&[record("N1", 1, Some(5))]);
    let same = differences(&totals, &totals);
    assert_eq!(same, []);
    assert_eq!([true, false].map(|crashed| Verdict::of(crashed, 0, &same)), [Verdict::Exact; 2]);
}

#[test]
fn missing_flight_is_named_for_each_of_its_entities() {
    let (one, other) = (record("N1", 1, Some(5)), record("N2", 2, Some(7)));
    let (expected, counted) = (totals(&[one.clone(), other]), totals(&[one]));
    let all = differences(&expected, &counted);
    let summary =
        |one: &Difference| (one.kind, one.id.clone(), one.flights_expected, one.flights_counted);
    let named = [("aircraft", "N2", 1, 0), ("airline", "UA", 2, 1), ("airport", "EWR", 2, 1)];
    let named: Vec<_> = named.into_iter().chain([("airport", "IAH", 2, 1)]).collect();
    let named: Vec<_> = named.into_iter().map(|(k, id, e, c)| (k, id.to_owned(), e, c)).collect();
    assert_eq!(all.iter().map(summary).collect::<Vec<_>>(), named);
    assert!(all[0].counted.is_null(), "the aircraft has no counter");
    assert_eq!(Verdict::of(true, 0, &all), Verdict::MissingAsAsked);
    assert_eq!(Verdict::of(false, 0, &all), Verdict::Different, "no node was killed");
}

#[test]
fn surplus_or_disordered_flight_is_always_wrong() {
    let one = record("N1", 1, Some(5));
    let (expected, counted) = (totals(std::slice::from_ref(&one)), totals(&[one.clone(), one]));
    let all = differences(&expected, &counted);
    assert_eq!(Verdict::of(true, 0, &all), Verdict::Different);
    assert_eq!(Verdict::of(true, 1, &[]), Verdict::Different);
}
