//! Results on disk: a folder with the suite, the machine, and a line for each completed trial.

pub mod figures;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use csv::StringRecord;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::schedule::Trial;
use crate::search::Bound;
use crate::trial::Measured;

/// Copy of the suite.
pub const SUITE: &str = "suite.toml";
/// Name of that file in version 0.1.
const SUITE_BEFORE: &str = "battery.toml";
/// One line for each trial.
pub const TRIALS: &str = "trials.csv";
/// One line for each search.
pub const SEARCHES: &str = "searches.csv";
/// Machine of the measurement.
pub const MACHINE: &str = "machine.json";

/// With agents: the machines of other roles; [`MACHINE`] is that of the sensor.
pub const OTHERS: [&str; 2] = ["injector", "receiver"];
/// With agents: sensors that the agent could not start, and the reasons.
pub const SKIPPED: &str = "skipped.json";

/// A line of `trials.csv`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// [`Case::key`](crate::schedule::Case::key) of the case.
    pub case: String,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// Requested rate in packets per second, `full`, or the speed of a capture.
    pub rate: String,
    /// `short` or `long` within a search; empty: not part of a search.
    pub search: String,
    /// Measurements: columns of their own, since CSV has no nested structures.
    #[serde(skip)]
    pub measured: Measured,
}

impl Row {
    /// All columns.
    fn columns(&self) -> (&Row, &Measured) {
        (self, &self.measured)
    }

    fn read(line: &StringRecord, names: &StringRecord) -> csv::Result<Row> {
        Ok(Row { measured: line.deserialize(Some(names))?, ..line.deserialize(Some(names))? })
    }
}

/// A line of `searches.csv`: the result for one goal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FoundRow {
    /// As in [`Row`].
    pub case: String,
    /// As in [`Row`].
    pub repetition: u32,
    /// Allowed loss, as a fraction.
    pub goal: f64,
    /// Highest rate, in packets per second; `None`: not even the lowest passed.
    pub rate: Option<f64>,
    /// Reason why it is not higher.
    pub bound: Bound,
    /// Valid trials, and invalid ones.
    pub trials: usize,
    /// See `trials`.
    pub invalid: usize,
    /// At twice the rate: packets captured per second relative to the rate; `None`: not measured.
    #[serde(default)]
    pub overload: Option<f64>,
    /// After that: the loss at four fifths of the rate; `None`: not measured, or not reported.
    #[serde(default)]
    pub lost_after: Option<f64>,
}

/// Contents of a folder.
#[derive(Debug)]
pub struct Results {
    folder: PathBuf,
    /// Trials, in order of completion.
    pub rows: Vec<Row>,
    /// Searches.
    pub found: Vec<FoundRow>,
    trials: File,
    searches: File,
    /// Whether the file of trials has the columns of this version.
    is_ours: bool,
}

impl Results {
    /// Creates a folder, which must be new or empty.
    pub fn begin(folder: &Path, suite: &str, machine: &Machine) -> Result<Results> {
        let named = || folder.display().to_string();
        fs::create_dir_all(folder).with_context(named)?;
        let is_empty = fs::read_dir(folder).with_context(named)?.next().is_none();
        ensure!(is_empty, "{} is not empty: name another folder, or go on with it by --resume", named());
        write(&folder.join(SUITE), suite)?;
        write_json(&folder.join(MACHINE), machine)?;
        let (trials, searches) = (append(&folder.join(TRIALS))?, append(&folder.join(SEARCHES))?);
        let mut results = Results {
            folder: folder.to_owned(),
            rows: Vec::new(),
            found: Vec::new(),
            trials,
            searches,
            is_ours: true,
        };
        results.trials.write_all(&head(Row::default().columns())?).context(TRIALS)?;
        results.searches.write_all(&head(FoundRow::default())?).context(SEARCHES)?;
        Ok(results)
    }

    /// Opens a folder to continue or read it. Removes an incomplete last line, as left by an interruption.
    pub fn resume(folder: &Path) -> Result<Results> {
        let read = |name: &str| whole_lines(&folder.join(name));
        let (trials, searches) = (read(TRIALS)?, read(SEARCHES)?);
        let parse =
            |name: &'static str| move |error| anyhow::anyhow!("{name}: {error}; it was changed since");
        let mut reader = csv::Reader::from_reader(trials.as_bytes());
        let names = reader.headers().map_err(parse(TRIALS))?.clone();
        let rows: Result<_, _> = reader.records().map(|line| Row::read(&line?, &names)).collect();
        let found: Result<Vec<FoundRow>, _> =
            csv::Reader::from_reader(searches.as_bytes()).deserialize().collect();
        Ok(Results {
            is_ours: trials.as_bytes().starts_with(&head(Row::default().columns())?),
            folder: folder.to_owned(),
            rows: rows.map_err(parse(TRIALS))?,
            found: found.map_err(parse(SEARCHES))?,
            trials: append(&folder.join(TRIALS))?,
            searches: append(&folder.join(SEARCHES))?,
        })
    }

    /// Path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Text of the suite.
    pub fn suite(&self) -> Result<String> {
        let path = [SUITE, SUITE_BEFORE].map(|name| self.folder.join(name));
        let path = path.iter().find(|path| path.is_file()).unwrap_or(&path[0]);
        fs::read_to_string(path).with_context(|| path.display().to_string())
    }

    /// Machine of the measurement.
    pub fn machine(&self) -> Result<Machine> {
        let path = self.folder.join(MACHINE);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Other machines, with the names of their roles.
    pub fn others(&self) -> Result<Vec<(&'static str, Machine)>> {
        let read = |role: &&'static str| {
            Ok(self.aside(&format!("{role}.json"))?.map(|machine: Machine| (*role, machine)))
        };
        OTHERS.iter().filter_map(|role| read(role).transpose()).collect()
    }

    /// Stores the machine of another role.
    pub fn keep_other(&self, role: &str, machine: &Machine) -> Result<()> {
        write_json(&self.folder.join(format!("{role}.json")), machine)
    }

    /// DUTs that an agent could not start in the last run, and the reasons; `None`: no run yet, or no agents.
    pub fn skipped(&self) -> Result<Option<BTreeMap<String, String>>> {
        self.aside(SKIPPED)
    }

    /// Stores the sensors that an agent could not start.
    pub fn skip(&self, skipped: &BTreeMap<String, String>) -> Result<()> {
        write_json(&self.folder.join(SKIPPED), skipped)
    }

    /// Contents of an optional file.
    fn aside<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<Option<T>> {
        let path = self.folder.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map(Some).with_context(|| path.display().to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// Whether this trial is complete.
    pub fn has(&self, trial: &Trial) -> bool {
        let key = trial.case.key();
        let searched = |found: &FoundRow| found.case == key && found.repetition == trial.repetition;
        if matches!(trial.case.rate, crate::suite::Rate::Search(_)) {
            return self.found.iter().any(searched);
        }
        self.rows
            .iter()
            .any(|row| row.search.is_empty() && row.case == key && row.repetition == trial.repetition)
    }

    /// Trials of an interrupted search, in order.
    pub fn begun(&self, trial: &Trial) -> Vec<Row> {
        let key = trial.case.key();
        let of = |row: &&Row| !row.search.is_empty() && row.case == key && row.repetition == trial.repetition;
        self.rows.iter().filter(of).cloned().collect()
    }

    /// Appends a trial immediately.
    pub fn add(&mut self, row: Row) -> Result<()> {
        ensure!(
            self.is_ours,
            "{TRIALS} has the columns of another version, which wrote it: go on with that one, or begin anew"
        );
        self.trials.write_all(&lines(&[row.columns()])?).context(TRIALS)?;
        self.rows.push(row);
        Ok(())
    }

    /// Appends the results of a search, all goals in one write, so that a search is stored completely or not at all.
    pub fn add_found(&mut self, found: Vec<FoundRow>) -> Result<()> {
        self.searches.write_all(&lines(&found)?).context(SEARCHES)?;
        self.found.extend(found);
        Ok(())
    }
}

/// Writes a file.
pub fn write(path: &Path, content: &(impl AsRef<[u8]> + ?Sized)) -> Result<()> {
    fs::write(path, content).with_context(|| path.display().to_string())
}

/// Writes a file of JSON for people.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write(path, &(serde_json::to_string_pretty(value)? + "\n"))
}

fn append(path: &Path) -> Result<File> {
    OpenOptions::new().create(true).append(true).open(path).with_context(|| path.display().to_string())
}

/// Text of a file up to its last line end; the rest is cut off.
fn whole_lines(path: &Path) -> Result<String> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => bail!("{}: {error}: is this the folder of a suite's results?", path.display()),
    };
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    if whole < bytes.len() {
        let file = OpenOptions::new().write(true).open(path).with_context(|| path.display().to_string())?;
        file.set_len(whole as u64).with_context(|| path.display().to_string())?;
    }
    String::from_utf8(bytes[..whole].to_vec()).with_context(|| path.display().to_string())
}

/// Line of column names, taken from any row.
fn head<T: Serialize>(row: T) -> Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.serialize(row)?;
    let mut text = writer.into_inner()?;
    text.truncate(text.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1));
    Ok(text)
}

fn lines<T: Serialize>(rows: &[T]) -> Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    for row in rows {
        writer.serialize(row)?;
    }
    Ok(writer.into_inner()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Case;
    use crate::suite::Rate;

    fn trial(rate: Rate, repetition: u32) -> Trial {
        let case = Case { sensor: "tcpdump".to_owned(), rate, ..Case::default() };
        Trial { case, repetition }
    }

    fn row(trial: &Trial, search: &str) -> Row {
        let measured = Measured {
            offered: 5,
            sent: 4,
            seen: Some(4),
            captured: 3,
            duration_s: 0.1,
            cores: "0:0.99 1:0.10".into(),
            figures: BTreeMap::from([("flows whole".into(), 0.95), ("moves".into(), 3.0)]),
            fault: "it said \"a, b\"".into(),
            ..Measured::default()
        };
        let case = trial.case.key();
        Row { case, repetition: trial.repetition, rate: "1000".into(), search: search.into(), measured }
    }

    #[test]
    fn what_was_written_is_read_and_half_a_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("results");
        let (first, second) = (trial(Rate::Pps(1000.0), 1), trial(Rate::Pps(1000.0), 2));
        let searched = trial(Rate::Search(vec![0.0]), 1);
        let mut results = Results::begin(&at, "name = 1\n", &Machine::describe()).unwrap();
        results.add(row(&first, "")).unwrap();
        results.add(row(&searched, "short")).unwrap();
        let found =
            FoundRow { case: searched.case.key(), repetition: 1, rate: Some(7.5), ..FoundRow::default() };
        let rows = results.rows.clone();
        drop(results);
        OpenOptions::new()
            .append(true)
            .open(at.join(TRIALS))
            .unwrap()
            .write_all(b"tcpdump size=60,2,10")
            .unwrap();

        let mut results = Results::resume(&at).unwrap();
        assert_eq!(results.rows, rows);
        assert!(results.has(&first) && !results.has(&second) && !results.has(&searched));
        assert_eq!(results.begun(&searched), &rows[1..]);
        results.add(row(&second, "")).unwrap();
        results.add_found(vec![found.clone()]).unwrap();
        let results = Results::resume(&at).unwrap();
        assert!(results.has(&first) && results.has(&second) && results.has(&searched));
        assert_eq!((results.rows.len(), results.found), (3, vec![found]));
        assert!(Results::begin(&at, "", &Machine::describe()).unwrap_err().to_string().contains("--resume"));
        assert!(Results::resume(folder.path()).is_err());
    }

    #[test]
    fn what_another_version_wrote_is_read_and_not_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("results");
        let mut results = Results::begin(&at, "", &Machine::describe()).unwrap();
        let first = trial(Rate::Pps(1000.0), 1);
        results.add(row(&first, "")).unwrap();
        let text = fs::read_to_string(at.join(TRIALS)).unwrap();
        let at_column = text.split(',').position(|name| name == "passed_on").unwrap();
        let without = |line: &str| {
            let mut cells: Vec<&str> = line.split(',').collect();
            cells.remove(at_column);
            cells.join(",") + "\n"
        };
        fs::write(at.join(TRIALS), text.lines().map(without).collect::<String>()).unwrap();
        let mut results = Results::resume(&at).unwrap();
        assert!(results.has(&first) && results.rows[0].measured.passed_on.is_none());
        let error = results.add(row(&first, "")).unwrap_err().to_string();
        assert!(error.contains("another version"), "{error}");
    }

    #[test]
    fn a_file_that_was_changed_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("results");
        Results::begin(&at, "", &Machine::describe()).unwrap();
        OpenOptions::new().append(true).open(at.join(TRIALS)).unwrap().write_all(b"a,b\n").unwrap();
        assert!(Results::resume(&at).unwrap_err().to_string().contains("changed"));
    }
}
