//! The whole stack under faults: membership, leases, replicated data, coordinators and regions
//! wired as in the driver, and on each node the runtime of an entity type with its gates, tasks and
//! user code, over lanes that outlive connections.
//!
//! Checked at every step: a shard has one host, and generations of an entity never go back; no
//! handler begins or continues without a lease; an entity handles each message of a sender once and
//! in order. Checked at rest: every message was handled, counted as lost, or was lost with a
//! crashed node, a lane to it, or an abandoned lane; and all messages told at rest are handled.
//!
//! `OSTRACA_SIM_SECONDS=600 cargo test -p ostraca --test sharding whole_stack -- --nocapture`

pub(crate) mod book;
pub(crate) mod player;
pub(crate) mod quarters;

use std::sync::Arc;

use ostraca::sharding::config::ShardingConfig as Settings;
use ostraca::sharding::fault_injection::{ShardingFault, ShardingFaultInjection};
use ostraca_ddata::sim::{Failure, RandomStream, Seed, Totals, on_all_cores};

use self::book::Book;
use self::quarters::Plan;
use crate::nodes::chaos::{AT_REST, Chaos, LOST};
use crate::nodes::{settings, some_passivation};

fn plan(seed: Seed, fault_injection: ShardingFaultInjection) -> Plan {
    let mut chance = RandomStream::split(seed.value, "plan", 0);
    let passivation = some_passivation(seed, &mut chance, 10, &[100, 500, 2_000]);
    let lane_max = *chance.pick(&[4, 64, usize::MAX]);
    let settings = Settings { passivation, ..*settings() };
    Plan { book: Arc::<Book>::default(), settings, lane_max, fault_injection }
}

fn run(seed: Seed, fault_injection: ShardingFaultInjection) -> Result<Totals, Box<Failure>> {
    let plan = plan(seed, fault_injection);
    let book = Arc::clone(&plan.book);
    let mut chaos = Chaos::with_entities(seed, plan);
    chaos.storm()?;
    let ending = chaos.peace()?;
    if ending == AT_REST {
        chaos.tell_at_rest()?;
    }
    let mut totals = chaos.it.sim.totals();
    totals.marks.hit(ending);
    let starts = chaos.it.sim.observer().starts;
    let pages = book.pages();
    let mut hit = |mark, count: u64| (0..count).for_each(|_| totals.marks.hit(mark));
    hit("starts", starts);
    hit("told", pages.told);
    hit("handled", pages.handled);
    hit("excused", pages.excused);
    hit("states taken over", pages.taken);
    hit("answers", pages.answers);
    hit("unanswered", pages.unanswered);
    drop(pages);
    Ok(totals)
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn whole_stack_handles_each_message_once_and_in_order() {
    let name = "whole_stack_handles_each_message_once_and_in_order";
    let run = |seed| {
        run(seed, ShardingFaultInjection::none()).unwrap_or_else(|failure| panic!("{failure}"))
    };
    let totals = on_all_cores(name, 20, run);
    let of = |mark| totals.marks.count(mark);
    eprintln!(
        "{} seeds ({} at rest, {} lost), {:.1} h simulated, {} crashes, {} starts, {} told, {} handled, {} \
         excused, {} states taken over, {} answers, {} unanswered",
        totals.runs,
        of(AT_REST),
        of(LOST),
        totals.simulated.as_secs_f64() / 3_600.0,
        totals.crashes,
        of("starts"),
        of("told"),
        of("handled"),
        of("excused"),
        of("states taken over"),
        of("answers"),
        of("unanswered"),
    );
    totals.must_have_hit(["starts", "handled", "states taken over", "answers", AT_REST]);
    assert!(totals.runs == 1 || of("handled") > 100 * totals.runs, "too few messages");
}

/// A former fault of the simulated transport: the refusal of a packet of a former link ended the
/// next link, whose packets were then refused in turn, without end.
#[test]
fn refused_packet_of_a_former_link_does_not_end_the_next() {
    run(Seed::from(112_128_965_286_192), ShardingFaultInjection::none())
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// Two nodes leave gracefully, one after the other, while a message of the second to the first has
/// not arrived. A leaving node waits for its lanes only for a limited time.
#[test]
fn messages_between_two_nodes_that_left_are_excused() {
    run(Seed::from(123_257_803_882_116), ShardingFaultInjection::none())
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn omitted_rules_are_found_in_the_whole_stack() {
    for (bug, invariant) in [
        (ShardingFault::LeaseNotAsked, "instance"),
        (ShardingFault::TakenGivenBackBehind, "order"),
        (ShardingFault::PassivatedWithMessages, "loss"),
        (ShardingFault::StateTakenAgain, "state"),
    ] {
        let violation =
            |value: u64| run(Seed::from(value), ShardingFaultInjection::with(bug)).err();
        let mut found = (0..60).filter_map(violation);
        let is_it = |failure: Box<Failure>| failure.reason.starts_with(invariant);
        assert!(found.any(is_it), "{bug:?} is not found as a violation of {invariant}");
    }
}
