//! The output: a line for each exploration, a table of the rules, and single runs in words.

use std::process::ExitCode;
use std::time::Instant;

use crate::model::{Bounds, Explore, Model, Outcome, Weakened, run_all};

const PAGES: &str = "docs/protocol/";

/// Prints the explorations of all models; returns whether all properties held and each weakened
/// rule was noticed.
pub(crate) fn all(models: &[Model]) -> bool {
    let begun = Instant::now();
    let (mut fine, mut states) = (true, 0);
    for model in models {
        println!("{}: {}", model.name.to_uppercase(), model.about);
        println!("  checks: {}", model.checks);
        println!("  {:<68} {:>10} {:>6} {:>8}  verdict", "bounds", "states", "depth", "time");
        let explorations: Vec<&Explore> = model.bounds.iter().map(|it| &it.explore).collect();
        run_all(&explorations, |index, outcome, time| {
            let Bounds { text, .. } = &model.bounds[index];
            let verdict = match &outcome.failure {
                None => "holds".to_owned(),
                Some(failure) => format!("VIOLATED: {}", failure.property),
            };
            println!(
                "  {text:<68} {:>10} {:>6} {:>6.1} s  {verdict}",
                grouped(outcome.states),
                outcome.depth,
                time.as_secs_f64()
            );
            print_run(&outcome);
            fine &= outcome.failure.is_none();
            states += outcome.states;
        });
        println!();
    }
    println!("RULES: the shortest run that fails without each rule");
    println!("  {:<61} {:<26} {:>5}  broken property", "rule", "fault injection", "steps");
    for model in models {
        let explorations: Vec<&Explore> = model.rules.iter().map(|it| &it.explore).collect();
        run_all(&explorations, |index, outcome, _| {
            fine &= print_rule(&model.rules[index], &outcome);
            states += outcome.states;
        });
    }
    println!();
    println!(
        "{} states in {:.0} s. `--trace RULE` prints a run.",
        grouped(states),
        begun.elapsed().as_secs_f64()
    );
    fine
}

fn print_rule(weakened: &Weakened, outcome: &Outcome) -> bool {
    let Weakened { rule, fault, .. } = weakened;
    let rule = rule.trim_start_matches(PAGES);
    match &outcome.failure {
        Some(failure) => {
            println!("  {rule:<61} {fault:<26} {:>5}  {}", failure.steps.len(), failure.property);
        }
        None => {
            let states = grouped(outcome.states);
            println!("  {rule:<61} {fault:<26}     -  NOT NOTICED in {states} states");
        }
    }
    outcome.failure.is_some()
}

fn print_run(outcome: &Outcome) {
    let Some(failure) = &outcome.failure else { return };
    let width = failure.steps.len().to_string().len();
    for (at, step) in failure.steps.iter().enumerate() {
        println!("  {:>width$}. {step}", at + 1);
    }
    println!("  {:>width$}  => {}", "", failure.property);
}

/// Prints the runs without the rules that one of `names` is a part of.
pub(crate) fn traces(models: &[Model], names: &[String]) -> ExitCode {
    let plain = |text: &str| text.to_lowercase().replace([' ', '-', '_'], "");
    let is_wanted = |rule: &&Weakened| {
        let texts = [plain(rule.rule), plain(&rule.fault)];
        names.iter().any(|name| texts.iter().any(|text| text.contains(&plain(name))))
    };
    let rules: Vec<&Weakened> =
        models.iter().flat_map(|model| &model.rules).filter(is_wanted).collect();
    if rules.is_empty() {
        let faults = models.iter().flat_map(|model| &model.rules).map(|rule| rule.fault.as_str());
        let faults: Vec<&str> = faults.collect();
        println!(
            "no rule or fault injection has {names:?} in its name; fault injections: {}",
            faults.join(", ")
        );
        return ExitCode::from(2);
    }
    let explorations: Vec<&Explore> = rules.iter().map(|rule| &rule.explore).collect();
    let mut fine = true;
    run_all(&explorations, |index, outcome, time| {
        let Weakened { rule, fault, text, .. } = rules[index];
        println!("{rule}");
        println!("  weakened by {fault}: {text}");
        let (states, seconds) = (grouped(outcome.states), time.as_secs_f64());
        println!("  explored {states} states in {seconds:.1} s; the shortest failing run:");
        print_run(&outcome);
        println!();
        fine &= outcome.failure.is_some();
    });
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A number with a comma between thousands.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
