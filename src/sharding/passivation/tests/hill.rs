//! L13: the optimizer alone, with limit 5 and a step after every 10 accesses.

use super::super::hill_climber::WindowOptimizer;
use super::super::settings;

const SETTINGS: settings::HillClimbing = settings::HillClimbing {
    adjust_multiplier: 2.0,
    initial_step: 0.4,
    restart_threshold: 0.8,
    step_decay: 0.5,
};

/// Makes ten accesses, the first `hits` of them hits; returns the step after them.
fn round(climbing: &mut WindowOptimizer, hits: usize) -> f64 {
    for access in 0..10 {
        assert_eq!(climbing.step(), None, "within a round");
        climbing.record(access < hits);
    }
    climbing.step().expect("a step after ten accesses")
}

#[test]
fn l13_steps_decay_in_steady_state_and_restart_on_change() {
    let mut climbing = WindowOptimizer::new(&SETTINGS, 5);
    let steps: Vec<f64> = [1, 1, 1, 1, 10, 10].map(|hits| round(&mut climbing, hits)).into();
    assert_eq!(steps, [-0.4, -0.2, -0.1, -0.05, -0.025, -0.4]);
}

#[test]
fn l13_a_falling_rate_turns_the_direction_each_time() {
    let mut climbing = WindowOptimizer::new(&SETTINGS, 5);
    let steps: Vec<f64> = [5, 4, 3, 2].map(|hits| round(&mut climbing, hits)).into();
    assert_eq!(steps, [-0.4, 0.2, -0.1, 0.05]);
}
