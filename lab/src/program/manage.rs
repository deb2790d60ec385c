//! The manager: reads suites, runs them, writes reports.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::collection::{Collection, Form};
use crate::conclusions;
use crate::duts::Duts;
use crate::machine::Machine;
use crate::page::{self, Report};
use crate::results::{self, Results};
use crate::run::{On, Progress as _};
#[cfg(feature = "bench")]
use crate::suite::Named as _;
use crate::suite::{Resources, Suite};
use crate::{run as runner, schedule};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use wirelane::escape::printable;

use super::agent::place;
use super::out;
use super::progress::{Shown, time};
use super::{CollectionArgs, ReportArgs, RunArgs, SensorsArgs, wirelane_program};

/// File in the folder of a collection: the parameters of its run.
const INDEX: &str = "collection.json";

/// Contents of [`INDEX`].
#[derive(Serialize, Deserialize)]
struct Index {
    collection: Collection,
    quick: bool,
    /// Instead of those of the suites.
    #[serde(default)]
    repetitions: Option<u32>,
    suites: Vec<String>,
}

impl Index {
    fn suite(&self, name: &str, sensors: &Duts) -> Result<(&'static str, Suite)> {
        let form = if self.quick { Form::Quick } else { Form::Full };
        let (text, mut suite) = self.collection.suite(name, form, &Resources::here(), sensors)?;
        suite.repetitions = self.repetitions.unwrap_or(suite.repetitions);
        Ok((text, suite))
    }
}

/// Shipped adapters, and those of these paths.
pub fn adapters(paths: &[PathBuf]) -> Result<Duts> {
    let mut sensors = Duts::shipped();
    for path in paths {
        sensors.add(path)?;
    }
    Ok(sensors)
}

/// Reads a suite; the path of a capture that it replays is relative to the suite.
fn parse(text: &str, path: &Path, sensors: &Duts) -> Result<Suite> {
    let mut suite = Suite::parse(text, path, sensors)?;
    if let Some(file) = &mut suite.traffic.replay {
        let beside = path.parent().unwrap_or(Path::new("")).join(&file);
        let found = fs::canonicalize(&beside).with_context(|| format!("the capture {}", beside.display()))?;
        *file = found.to_str().context("the capture's path is no text")?.to_owned();
    }
    Ok(suite)
}

/// `wirelane-testbed run`.
pub fn run(args: &RunArgs) -> Result<()> {
    let sensors = adapters(&args.sensors)?;
    if let Some(folder) = &args.resume {
        let mut results = Results::resume(folder)?;
        let suite = parse(&results.suite()?, &folder.join(results::SUITE), &sensors)?;
        let on = place(&suite, &args.identity)?;
        if args.check {
            return check(&suite, &sensors, &on, Some(&results));
        }
        return measure(&suite, &sensors, on, &mut results);
    }
    let path = args.suite.as_ref().context("name a suite")?;
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let suite = parse(&text, path, &sensors)?;
    let on = place(&suite, &args.identity)?;
    if args.check {
        return check(&suite, &sensors, &on, None);
    }
    possible(&suite, &sensors, &on)?;
    let folder = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("testbed-{}", suite.name)));
    // A resumed suite is read from its results folder.
    let text = match &suite.traffic.replay {
        Some(file) => replaced(&text, file)?,
        None => text,
    };
    let (machine, others) = machines(&on);
    let mut results = Results::begin(&folder, &text, &machine)?;
    for (role, machine) in others {
        results.keep_other(role, &machine)?;
    }
    measure(&suite, &sensors, on, &mut results)
}

/// Checks that the suite can run there.
fn possible(suite: &Suite, sensors: &Duts, on: &On) -> Result<()> {
    match on {
        On::Local(_) => suite.possible(&Resources::here(), sensors),
        On::Remote(agents) => {
            let (injector, sensor) = agents.cores();
            suite.possible_remote(injector, sensor, sensors)
        }
    }
}

/// Machine of the sensor, and other machines with their roles.
fn machines(on: &On) -> (Machine, Vec<(&'static str, Machine)>) {
    match on {
        On::Local(_) => (Machine::describe(), Vec::new()),
        On::Remote(agents) => {
            let others = agents.others().into_iter().map(|(role, machine)| (role, machine.clone()));
            (agents.sensor().clone(), others.collect())
        }
    }
}

/// Text with the absolute path of the capture.
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

/// Reports what a run would do.
fn check(suite: &Suite, sensors: &Duts, on: &On, results: Option<&Results>) -> Result<()> {
    possible(suite, sensors, on)?;
    let skipped = on.skipped(suite, sensors);
    let mut trials = schedule::trials(suite, sensors);
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
    let _ = writeln!(text, "{} trials, about {}", trials.len(), time(runner::expected(suite, &trials)));
    out::print(text)
}

/// Runs the remaining trials, and writes the report.
fn measure(suite: &Suite, sensors: &Duts, on: On, results: &mut Results) -> Result<()> {
    possible(suite, sensors, &on)?;
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
    let outcomes = runner::run(suite, sensors, results, on, &mut shown);
    shown.finish();
    let outcomes = outcomes?;
    write(suite, sensors, results)?;
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

/// `wirelane-testbed report`.
pub fn report(args: &ReportArgs) -> Result<()> {
    let sensors = adapters(&args.sensors)?;
    if args.folder.join(INDEX).is_file() {
        return page_of_collection(&args.folder, &read_index(&args.folder)?, &sensors);
    }
    let results = Results::resume(&args.folder)?;
    let suite = match of_collection(&args.folder)? {
        Some((name, index)) => index.suite(&name, &sensors)?.1,
        None => parse(&results.suite()?, &args.folder.join(results::SUITE), &sensors)?,
    };
    write(&suite, &sensors, &results)
}

/// Writes all reports of the results, and shows the table.
fn write(suite: &Suite, sensors: &Duts, results: &Results) -> Result<()> {
    let report = Report::of(suite, sensors, results)?;
    let page = report.write(suite, sensors, results.folder())?;
    if !suite.conclusions.is_empty() {
        let path = results.folder().join(conclusions::CONCLUSIONS);
        results::write(&path, &conclusions::page(&[(suite, &report)]))?;
    }
    #[cfg(feature = "store")]
    super::parquet::write_trials(results)?;
    out::print(format!("{}\n{}\n", report.table, page.display()))
}

/// `wirelane-testbed sensors`.
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

/// `wirelane-testbed reproductions` and `bench`: runs the suites of a collection, one after the other.
pub fn collection(collection: Collection, args: &CollectionArgs) -> Result<()> {
    if args.list {
        return out::print(collection.names().iter().map(|name| format!("{name}\n")).collect::<String>());
    }
    let (sensors, resources) = (Duts::shipped(), Resources::here());
    let (folder, index) = match &args.resume {
        Some(folder) => (folder.clone(), read_index(folder)?),
        None => {
            let suites = match args.only.is_empty() {
                true => collection.names().into_iter().map(str::to_owned).collect(),
                false => args.only.clone(),
            };
            let default =
                || PathBuf::from(format!("testbed-{}", collection.title().to_lowercase().replace(' ', "-")));
            let index = Index { collection, quick: args.quick, repetitions: args.repetitions, suites };
            (args.out.clone().unwrap_or_else(default), index)
        }
    };
    ensure!(index.collection == collection, "{} is a folder of another collection", folder.display());
    // Check all suites before the first one starts.
    let mut suites = Vec::new();
    let mut wrong = Vec::new();
    for name in &index.suites {
        let (text, suite) = index.suite(name, &sensors)?;
        match suite.possible(&resources, &sensors) {
            Ok(()) => suites.push((name, text, suite)),
            // If all suites are selected, those that this machine cannot run are skipped and named.
            Err(error) if args.only.is_empty() && resources.root => wrong.push(format!("{name}: {error:#}")),
            Err(error) => return Err(error),
        }
    }
    if args.resume.is_none() {
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let is_empty = fs::read_dir(&folder).with_context(|| folder.display().to_string())?.next().is_none();
        ensure!(
            is_empty,
            "{} is not empty: name another folder with --out, or go on with it by --resume",
            folder.display()
        );
        results::write_json(&folder.join(INDEX), &index)?;
    }
    for (name, text, suite) in suites {
        let place = folder.join(name);
        let mut results = match place.join(results::TRIALS).is_file() {
            true => Results::resume(&place)?,
            false => Results::begin(&place, text, &Machine::describe())?,
        };
        if let Err(error) = measure(&suite, &sensors, On::Local(wirelane_program()?), &mut results) {
            wrong.push(format!("{name}: {error:#}"));
        }
    }
    page_of_collection(&folder, &index, &sensors)?;
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

fn read_index(folder: &Path) -> Result<Index> {
    let path = folder.join(INDEX);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{}: is this the folder of a collection?", path.display()))?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// For a folder of one suite of a collection: its name, and the parameters of the run.
fn of_collection(folder: &Path) -> Result<Option<(String, Index)>> {
    let folder = fs::canonicalize(folder).with_context(|| folder.display().to_string())?;
    let (Some(above), Some(name)) = (folder.parent(), folder.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(None);
    };
    if !above.join(INDEX).is_file() {
        return Ok(None);
    }
    let index = read_index(above)?;
    Ok(index.suites.iter().any(|suite| suite == name).then(|| (name.to_owned(), index)))
}

/// Writes one page about all suites with results, and a text of what the results say about published conclusions.
fn page_of_collection(folder: &Path, index: &Index, sensors: &Duts) -> Result<()> {
    let (mut parts, mut reports) = (String::new(), Vec::new());
    for name in &index.suites {
        let place = folder.join(name);
        if !place.join(results::TRIALS).is_file() {
            continue;
        }
        let (_, suite) = index.suite(name, sensors)?;
        let results = Results::resume(&place)?;
        let report = Report::of(&suite, sensors, &results)?;
        parts += &format!("<h2>{}</h2>\n", page::escaped(&suite.title));
        parts += &report.section(&suite);
        reports.push((suite, report));
    }
    let quick = if index.quick { ", in the quick form" } else { "" };
    let title = format!("{}{quick}", index.collection.title());
    if index.collection == Collection::Reproductions {
        let each: Vec<_> = reports.iter().map(|(suite, report)| (suite, report)).collect();
        results::write(&folder.join(conclusions::CONCLUSIONS), &conclusions::page(&each))?;
    }
    let path = folder.join(page::PAGE);
    results::write(&path, &page::document(&title, &parts))?;
    out::print(format!("{}\n", path.display()))
}

/// `wirelane-testbed measure`: measures single parts.
#[cfg(feature = "bench")]
pub fn measure_parts(args: &crate::bench::Args) -> Result<()> {
    use crate::bench::{Part, measure};

    let wirelane = wirelane_program()?;
    let parts = if args.parts.is_empty() { Part::all() } else { &args.parts };
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let machine = Machine::describe();
    results::write_json(&args.out.join(results::MACHINE), &machine)?;
    for part in parts {
        let Some(tables) = measure(*part, args, &wirelane)? else {
            out::note(&format!(
                "left out: {} (it searches payloads of real captures: --captures FOLDER)",
                part.name()
            ));
            continue;
        };
        let page: Vec<String> = tables.iter().map(|table| table.markdown()).collect();
        let page = format!("# {}\n\n```\n{}```\n\n{}", part.name(), machine.text(), page.join("\n"));
        results::write(&args.out.join(format!("{}.md", part.name())), &page)?;
        for (at, table) in tables.iter().enumerate() {
            results::write(&args.out.join(format!("{}-{}.csv", part.name(), at + 1)), &table.csv())?;
        }
        out::print(page)?;
    }
    out::print(format!("{}\n", args.out.display()))
}
