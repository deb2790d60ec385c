//! The run: cases in turn, within each the receivers in rounds, then the searches.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use wirelane_tests::repository;

use crate::machine::{self, Machine};
use crate::options::Options;
use crate::receiver::Receiver;
use crate::results::{Results, Row};
use crate::search::{Durations, Found, Verdict, search};
use crate::trial::{Bed, Case, Method, Outcome};
use crate::{chart, trial};

/// Loss that a search allows, and the name of the result.
const GOALS: [f64; 2] = [0.0, 0.005];
/// Below this share of the rate asked for, a trial is invalid whatever the generator says.
const LEAST_OFFERED: f64 = 0.99;

/// Measures everything that the options ask for, prints the tables, and writes the results.
///
/// # Errors
/// Without root or a second core, or where the lab or a file cannot be made. A receiver that fails is named in
/// the results.
pub fn run(options: &Options) -> Result<()> {
    ensure!(wirelane_tests::require_root("the bench"), "the bench needs root: it makes network namespaces");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    ensure!(cores >= 2, "the bench needs two cores, one for the generator and one for the receiver");
    let mut receivers = Vec::new();
    for receiver in options.receivers() {
        match receiver.missing_package() {
            Some(package) => {
                println!("left out: {} (install the package {package})", receiver.name());
            }
            None => receivers.push(receiver),
        }
    }
    let folder =
        options.out.clone().unwrap_or_else(|| repository().join("bench/results").join(machine::folder()));
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let machine = Machine::look(&receivers);
    let mut results = Results::default();
    for case in options.cases() {
        println!("setup {}, {} bytes, generator {}", case.setup.name(), case.size, case.method.name());
        measure(options, case, &receivers, &mut results)?;
        // After each case, so that a run that is cut short leaves what it had.
        write(&results, &machine, &folder)?;
    }
    println!("{}", results.table());
    println!("{}\nresults: {}", machine.describe(), folder.display());
    Ok(())
}

fn measure(options: &Options, case: Case, receivers: &[Receiver], results: &mut Results) -> Result<()> {
    let bed = Bed::new(case.setup, case.size > trial::LARGEST_LIVE_FRAME)?;
    let mut rows: Vec<Row> = receivers
        .iter()
        .map(|receiver| Row {
            case,
            receiver: *receiver,
            outcomes: Vec::new(),
            rates: None,
            failures: Vec::new(),
        })
        .collect();
    for _ in 0..options.rounds() {
        for row in &mut rows {
            // What failed twice fails again, and costs time.
            if row.failures.len() > 1 {
                continue;
            }
            match bed.trial(row.receiver, case, None, options.trial()) {
                Ok(outcome) => row.outcomes.push(outcome),
                Err(error) => row.failures.push(format!("{error:#}")),
            }
        }
    }
    if searches(options, case) {
        let durations = if options.quick {
            Durations { short: Duration::from_millis(100), long: Duration::from_millis(300) }
        } else {
            Durations { short: Duration::from_millis(150), long: Duration::from_millis(1000) }
        };
        for row in &mut rows {
            match rates(&bed, row, durations) {
                Ok(rates) => row.rates = rates,
                Err(error) => row.failures.push(format!("{error:#}")),
            }
        }
    }
    for row in &rows {
        println!("  {:<23}{:>8.3} Mpps", row.receiver.name(), row.pps().map_or(f64::NAN, |pps| pps / 1e6));
        for failure in &row.failures {
            println!("    failed: {failure}");
        }
    }
    results.rows.extend(rows);
    Ok(())
}

/// Searches are for the smallest frames from inside the kernel, where packets, not bytes, are what costs.
fn searches(options: &Options, case: Case) -> bool {
    !options.no_search && !options.quick && case.method == Method::Kernel && case.size == 60
}

fn rates(bed: &Bed, row: &Row, durations: Durations) -> Result<Option<[Found; 2]>> {
    let Some(received) = row.pps().filter(|pps| *pps > 0.0) else { return Ok(None) };
    let offered = row.median(|outcome| outcome.offered as f64 / outcome.seconds).unwrap_or(received);
    // More than was received at overload is possible: a receiver that is not overrun is often faster.
    let high = (received * 1.5).min(offered * 1.02);
    let at = |goal: f64| {
        search(received * 0.5, high, durations, |rate, duration| {
            let outcome = bed.trial(row.receiver, row.case, Some(rate), duration)?;
            Ok(verdict(&outcome, rate, goal))
        })
    };
    Ok(Some([at(GOALS[0])?, at(GOALS[1])?]))
}

fn verdict(outcome: &Outcome, rate: f64, goal: f64) -> Verdict {
    if outcome.fell_short || (outcome.offered as f64) < rate * outcome.seconds * LEAST_OFFERED {
        Verdict::Invalid
    } else if outcome.loss() <= goal {
        Verdict::Held
    } else {
        Verdict::Lost
    }
}

fn write(results: &Results, machine: &Machine, folder: &Path) -> Result<()> {
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    };
    put("machine.txt", machine.describe())?;
    put("table.txt", results.table())?;
    put("trials.csv", results.trials_csv())?;
    put("rates.csv", results.rates_csv())?;
    chart::write(results, &folder.join("chart.svg"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_in_which_the_generator_stalled_is_not_counted() {
        let outcome = Outcome {
            offered: 1000,
            sent: 1000,
            received: 1000,
            dropped: Some(0),
            seconds: 1.0,
            cpu: Duration::ZERO,
            fell_short: false,
        };
        assert_eq!(verdict(&outcome, 1000.0, 0.0), Verdict::Held);
        assert_eq!(verdict(&outcome, 1100.0, 0.0), Verdict::Invalid);
        assert_eq!(verdict(&Outcome { fell_short: true, ..outcome }, 1000.0, 0.0), Verdict::Invalid);
        let lossy = Outcome { received: 996, ..outcome };
        assert_eq!(verdict(&lossy, 1000.0, 0.0), Verdict::Lost);
        assert_eq!(verdict(&lossy, 1000.0, 0.005), Verdict::Held);
    }
}
