//! Suites and adapters of the test-bed: any text is valid or has mistakes with positions; the trials of any valid one
//! can be listed.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use wirelane_lab::duts::{Adapter, Duts};
use wirelane_lab::suite::{Named as _, Resources, Suite};
use wirelane_lab::{chart, run, schedule};

static SENSORS: LazyLock<Duts> = LazyLock::new(Duts::shipped);

/// Checks printed mistakes: each begins with its position, and has no control characters.
fn look_at(mistakes: &str) {
    assert!(!mistakes.is_empty());
    assert!(mistakes.lines().all(|line| line.starts_with("t.toml:") && !line.contains(char::is_control)));
}

fuzz_target!(|text: &str| {
    if let Err(mistakes) = Adapter::parse("fuzzed", text, Path::new("t.toml")) {
        look_at(&mistakes.to_string());
    }
    let battery = match Suite::parse(text, Path::new("t.toml"), &SENSORS) {
        Ok(battery) => battery,
        Err(mistakes) => return look_at(&mistakes.to_string()),
    };
    assert!(!chart::charts(&battery).iter().any(|chart| chart.quantity.name().is_empty()));
    // The result is the missing requirement, if any.
    let _ = battery
        .possible(&Resources { cores: vec![0, 1, 2, 3], root: true, program_statistics: false }, &SENSORS);
    let dimensions = [
        battery.repetitions as usize,
        battery.rates.len(),
        battery.loops.len(),
        battery.cores.len(),
        battery.workers.len(),
        battery.queues.len(),
        battery.engines.len(),
        battery.sensors.len(),
        battery.traffic.sizes.len().max(1),
        battery.traffic.calls.len().max(1),
        battery.napi.len(),
        battery.entries.len().max(1),
    ];
    // Millions of trials take too long here.
    if dimensions.iter().product::<usize>() > 10_000 {
        return;
    }
    let trials = schedule::trials(&battery, &SENSORS);
    let mut keys: Vec<String> =
        trials.iter().map(|trial| format!("{} #{}", trial.case.key(), trial.repetition)).collect();
    assert!(!keys.is_empty() && !run::expected(&battery, &trials).is_zero());
    // A resumed suite finds each trial by its name.
    keys.sort_unstable();
    let number = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), number);
});
