//! Sensors compared without a suite's file, and two folders of results compared.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::machine::Machine;
use crate::results::Results;
use crate::run as runner;
use crate::run::Progress as _;
use crate::spread::{self, CaseStatistics, Comparison};
use crate::suite::{Resources, Suite};

use super::manage::adapters;
use super::progress::Shown;
use super::{CompareArgs, QuickArgs, out, wirelane_program};

/// The object of `quick --json`.
#[derive(Serialize)]
struct Output<'a> {
    machine: &'a Machine,
    cases: &'a [CaseStatistics],
}

/// `wirelane-testbed quick`.
pub fn quick(args: &QuickArgs) -> Result<()> {
    let sensors = adapters(&args.adapters)?;
    if let Some(unknown) = args.sensors.iter().find(|name| sensors.get(name).is_none()) {
        bail!("{}", unknown_sensor(unknown, &sensors.names()));
    }
    if let Some(folder) = &args.out {
        let is_used = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        ensure!(!is_used, "{} is not empty: name another folder with --out", folder.display());
    }
    let text = suite(args);
    let suite = Suite::parse(&text, Path::new("the options"), &sensors)?;
    suite.possible(&Resources::here(), &sensors)?;
    let missing = runner::skipped(&suite, &sensors);
    if let Some((name, why)) = missing.iter().next() {
        bail!("{name}: {why}");
    }
    let temporary = tempfile::tempdir().context("a folder for the results")?;
    let folder = args.out.clone().unwrap_or_else(|| temporary.path().join("results"));
    let machine = Machine::describe();
    let mut results = Results::begin(&folder, &text, &machine)?;
    let mut shown = Shown::new();
    if args.out.is_some() {
        shown.note(&format!("results go to {}", folder.display()));
    }
    let outcomes =
        runner::run(&suite, &sensors, &mut results, runner::On::Local(wirelane_program()?), &mut shown);
    shown.finish();
    let outcomes = outcomes?;
    let cases = spread::statistics(&results);
    if args.json {
        out::print(serde_json::to_string(&Output { machine: &machine, cases: &cases })? + "\n")?;
    } else {
        out::print(spread::text(&cases))?;
    }
    if let Some(fault) = outcomes.faults.first() {
        bail!("{} of {} trials went wrong; the first: {fault}", outcomes.faults.len(), outcomes.run);
    }
    Ok(())
}

/// Error message for a name that no sensor has.
fn unknown_sensor(name: &str, known: &[String]) -> String {
    let similar = known
        .iter()
        .map(|one| (strsim::damerau_levenshtein(one, name), one))
        .min()
        .filter(|(distance, _)| *distance <= 2)
        .map_or(";".to_owned(), |(_, one)| format!(": did you mean '{one}'?"));
    let name = name.escape_debug();
    format!("there is no sensor '{name}'{similar} 'wirelane testbed sensors' lists them")
}

/// The suite of the options.
fn suite(args: &QuickArgs) -> String {
    let mut text = String::from("name = \"quick\"\n");
    let _ = writeln!(text, "sensors = {:?}", args.sensors);
    let _ = writeln!(text, "rates = {:?}", args.rates.iter().map(|rate| rate.0).collect::<Vec<_>>());
    let _ = writeln!(text, "duration = {:?}\nrepetitions = {}", args.duration, args.runs);
    if let Some(core) = args.core {
        let _ = writeln!(text, "cores = [[{core}]]");
    }
    let _ = writeln!(text, "[traffic]\nsizes = {:?}", args.sizes);
    text
}

/// `wirelane-testbed compare`.
pub fn compare(args: &CompareArgs) -> Result<()> {
    let read = |folder: &PathBuf| Results::resume(folder).map(|results| spread::statistics(&results));
    let comparison: Comparison = spread::compare(&read(&args.before)?, &read(&args.after)?);
    ensure!(
        !comparison.changes.is_empty(),
        "{} and {} have no case in common: expected results of the same suite",
        args.before.display(),
        args.after.display()
    );
    let text = if args.json { serde_json::to_string(&comparison)? + "\n" } else { comparison.text() };
    out::print(text)
}
