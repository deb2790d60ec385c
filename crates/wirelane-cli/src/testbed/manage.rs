//! The manager: reads batteries, runs them, writes reports.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use wirelane_testbed::battery::{Battery, Means};
use wirelane_testbed::machine::Machine;
use wirelane_testbed::page::{self, Report};
use wirelane_testbed::papers::{self, Form};
use wirelane_testbed::results::{self, Results};
use wirelane_testbed::run::{On, Progress as _};
use wirelane_testbed::sensors::Sensors;
use wirelane_testbed::{run as runner, schedule};

use super::agent::place;
use super::progress::{Shown, time};
use super::{PapersArgs, ReportArgs, RunArgs, SensorsArgs};
use crate::out;
use crate::table::printable;

/// In the folder of papers: how they were run.
const PAPERS: &str = "papers.json";

/// What [`PAPERS`] says.
#[derive(Serialize, Deserialize)]
struct Papers {
    quick: bool,
    batteries: Vec<String>,
}

/// Those that are shipped, and these.
pub fn adapters(paths: &[PathBuf]) -> Result<Sensors> {
    let mut sensors = Sensors::shipped();
    for path in paths {
        sensors.add(path)?;
    }
    Ok(sensors)
}

/// Reads a battery; a capture that it replays is found from where the battery is.
fn parse(text: &str, path: &Path, sensors: &Sensors) -> Result<Battery> {
    let mut battery = Battery::parse(text, path, sensors)?;
    if let Some(file) = &mut battery.traffic.replay {
        let beside = path.parent().unwrap_or(Path::new("")).join(&file);
        let found = fs::canonicalize(&beside).with_context(|| format!("the capture {}", beside.display()))?;
        *file = found.to_str().context("the capture's path is no text")?.to_owned();
    }
    Ok(battery)
}

/// `wirelane testbed run`.
pub fn run(args: &RunArgs) -> Result<()> {
    let sensors = adapters(&args.sensors)?;
    if let Some(folder) = &args.resume {
        let mut results = Results::resume(folder)?;
        let battery = parse(&results.battery()?, &folder.join(results::BATTERY), &sensors)?;
        let on = place(&battery, &args.identity)?;
        if args.check {
            return check(&battery, &sensors, &on, Some(&results));
        }
        return measure(&battery, &sensors, on, &mut results);
    }
    let path = args.battery.as_ref().context("name a battery")?;
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let battery = parse(&text, path, &sensors)?;
    let on = place(&battery, &args.identity)?;
    if args.check {
        return check(&battery, &sensors, &on, None);
    }
    possible(&battery, &sensors, &on)?;
    let folder = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("testbed-{}", battery.name)));
    // A battery that is gone on with is read where its results are.
    let text = match &battery.traffic.replay {
        Some(file) => replaced(&text, file)?,
        None => text,
    };
    let (machine, others) = machines(&on);
    let mut results = Results::begin(&folder, &text, &machine)?;
    for (role, machine) in others {
        results.keep_other(role, &machine)?;
    }
    measure(&battery, &sensors, on, &mut results)
}

/// Whether it can be run there.
fn possible(battery: &Battery, sensors: &Sensors, on: &On) -> Result<()> {
    match on {
        On::Here(_) => battery.possible(&Means::here(), sensors),
        On::Away(agents) => {
            let (injector, sensor) = agents.cores();
            battery.possible_away(injector, sensor, sensors)
        }
    }
}

/// The sensor's machine, and those of the other roles where these are others.
fn machines(on: &On) -> (Machine, Vec<(&'static str, Machine)>) {
    match on {
        On::Here(_) => (Machine::describe(), Vec::new()),
        On::Away(agents) => {
            let others = agents.others().into_iter().map(|(role, machine)| (role, machine.clone()));
            (agents.sensor().clone(), others.collect())
        }
    }
}

/// The text with the capture's whole path.
fn replaced(text: &str, file: &str) -> Result<String> {
    let line = |line: &str| match line.split_once('=') {
        Some((key, _)) if key.trim() == "replay" => format!("replay = {file:?}"),
        _ => line.to_owned(),
    };
    let lines: Vec<String> = text.lines().map(line).collect();
    let text = lines.join("\n") + "\n";
    ensure!(
        text.contains(&format!("replay = {file:?}")),
        "write 'replay = \"FILE\"' on a line of its own, under [traffic]"
    );
    Ok(text)
}

/// What would be run.
fn check(battery: &Battery, sensors: &Sensors, on: &On, results: Option<&Results>) -> Result<()> {
    possible(battery, sensors, on)?;
    let skipped = on.skipped(battery, sensors);
    let mut trials = schedule::trials(battery, sensors);
    trials.retain(|trial| {
        !skipped.contains_key(&trial.case.sensor) && results.is_none_or(|results| !results.has(trial))
    });
    let mut text = String::new();
    for trial in &trials {
        let _ = writeln!(text, "{} #{}", trial.case.key(), trial.repetition);
    }
    for (name, why) in &skipped {
        let _ = writeln!(text, "{name} is skipped: {}", printable(why));
    }
    let _ = writeln!(text, "{} trials, about {}", trials.len(), time(runner::expected(battery, &trials)));
    out::print(text)
}

/// Runs what is not there yet, and reports.
fn measure(battery: &Battery, sensors: &Sensors, on: On, results: &mut Results) -> Result<()> {
    possible(battery, sensors, &on)?;
    let (machine, others) = machines(&on);
    same_machine(results, &machine, &results.machine()?)?;
    for ((_, now), (_, then)) in others.iter().zip(&results.others()?) {
        same_machine(results, now, then)?;
    }
    let mut shown = Shown::new();
    shown.note(&format!(
        "results go to {}; after an interruption go on with --resume",
        results.folder().display()
    ));
    let outcomes = runner::run(battery, sensors, results, on, &mut shown);
    shown.finish();
    let outcomes = outcomes?;
    write(battery, sensors, results)?;
    if !outcomes.faults.is_empty() {
        bail!("{} of {} trials went wrong; the report names them", outcomes.faults.len(), outcomes.run);
    }
    Ok(())
}

fn same_machine(results: &Results, now: &Machine, then: &Machine) -> Result<()> {
    ensure!(
        (&now.cpu, &now.kernel, now.cores) == (&then.cpu, &then.kernel, then.cores),
        "{} was begun on another machine ({}, {} cores, Linux {}): begin anew, with --out",
        results.folder().display(),
        printable(&then.cpu),
        then.cores,
        printable(&then.kernel)
    );
    Ok(())
}

/// `wirelane testbed report`.
pub fn report(args: &ReportArgs) -> Result<()> {
    let sensors = adapters(&args.sensors)?;
    if args.folder.join(PAPERS).is_file() {
        return page_of_papers(&args.folder, &read_papers(&args.folder)?, &sensors);
    }
    let results = Results::resume(&args.folder)?;
    let battery = match paper(&args.folder)? {
        Some((name, how)) => papers::battery(&name, form(&how), &Means::here(), &sensors)?.1,
        None => parse(&results.battery()?, &args.folder.join(results::BATTERY), &sensors)?,
    };
    write(&battery, &sensors, &results)
}

/// Writes all that is made of results, and shows the table.
fn write(battery: &Battery, sensors: &Sensors, results: &Results) -> Result<()> {
    let report = Report::of(battery, sensors, results)?;
    let page = report.write(battery, sensors, results.folder())?;
    #[cfg(feature = "store")]
    super::parquet::write_trials(results)?;
    out::print(format!("{}\n{}\n", report.table, page.display()))
}

/// `wirelane testbed sensors`.
pub fn sensors(args: &SensorsArgs) -> Result<()> {
    let sensors = adapters(&args.sensors)?;
    let width = sensors.names().iter().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for adapter in sensors.all() {
        let missing = adapter.missing().map_or(String::new(), |missing| format!("; {missing}"));
        let _ =
            writeln!(text, "{:width$}  {}{}", adapter.name, printable(&adapter.title), printable(&missing));
    }
    out::print(text)
}

/// `wirelane testbed papers`.
pub fn papers(args: &PapersArgs) -> Result<()> {
    if args.list {
        let text: String = papers::names().iter().map(|name| format!("{name}\n")).collect();
        return out::print(text);
    }
    let (sensors, means) = (Sensors::shipped(), Means::here());
    let (folder, how) = match &args.resume {
        Some(folder) => (folder.clone(), read_papers(folder)?),
        None => {
            let batteries = match args.only.is_empty() {
                true => papers::names().into_iter().map(str::to_owned).collect(),
                false => args.only.clone(),
            };
            (args.out.clone(), Papers { quick: args.quick, batteries })
        }
    };
    let form = form(&how);
    // All of them before the first one starts.
    for name in &how.batteries {
        papers::battery(name, form, &means, &sensors)?.1.possible(&means, &sensors)?;
    }
    if args.resume.is_none() {
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let is_empty = fs::read_dir(&folder).with_context(|| folder.display().to_string())?.next().is_none();
        ensure!(
            is_empty,
            "{} is not empty: name another folder with --out, or go on with it by --resume",
            folder.display()
        );
        results::write(&folder.join(PAPERS), &(serde_json::to_string_pretty(&how)? + "\n"))?;
    }
    let mut wrong = Vec::new();
    for name in &how.batteries {
        let (text, battery) = papers::battery(name, form, &means, &sensors)?;
        let place = folder.join(name);
        let mut results = match place.join(results::TRIALS).is_file() {
            true => Results::resume(&place)?,
            false => Results::begin(&place, text, &Machine::describe())?,
        };
        let on = On::Here(std::env::current_exe().context("where this program is")?);
        if let Err(error) = measure(&battery, &sensors, on, &mut results) {
            wrong.push(format!("{name}: {error:#}"));
        }
    }
    page_of_papers(&folder, &how, &sensors)?;
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

fn read_papers(folder: &Path) -> Result<Papers> {
    let path = folder.join(PAPERS);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{}: is this a folder of 'testbed papers'?", path.display()))?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Of a folder that is one battery's among those of papers: its name, and how they were run.
fn paper(folder: &Path) -> Result<Option<(String, Papers)>> {
    let folder = fs::canonicalize(folder).with_context(|| folder.display().to_string())?;
    let (Some(above), Some(name)) = (folder.parent(), folder.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(None);
    };
    if !above.join(PAPERS).is_file() {
        return Ok(None);
    }
    let how = read_papers(above)?;
    Ok(how.batteries.iter().any(|battery| battery == name).then(|| (name.to_owned(), how)))
}

fn form(how: &Papers) -> Form {
    if how.quick { Form::Quick } else { Form::Full }
}

/// One page of all batteries that have results.
fn page_of_papers(folder: &Path, how: &Papers, sensors: &Sensors) -> Result<()> {
    let form = form(how);
    let mut parts = String::new();
    for name in &how.batteries {
        let place = folder.join(name);
        if !place.join(results::TRIALS).is_file() {
            continue;
        }
        let (_, battery) = papers::battery(name, form, &Means::here(), sensors)?;
        let results = Results::resume(&place)?;
        parts += &Report::of(&battery, sensors, &results)?.section(&battery);
    }
    let title =
        if how.quick { "Published measurements, in the quick form" } else { "Published measurements" };
    let path = folder.join(page::PAGE);
    results::write(&path, &page::document(title, &parts))?;
    out::print(format!("{}\n", path.display()))
}
