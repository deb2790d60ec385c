//! DUTs (devices under test): any program that captures, each defined by an adapter of a few lines of TOML.
//!
//! ```text
//! title = "tcpdump"                    what people call it; the adapter's name is that of its file
//! program = "tcpdump"                  looked for before anything starts: a sensor that is not there is skipped, and named
//! package = "tcpdump"                  where it would come from (optional)
//! command = ["tcpdump", "-i", "{device}", "-w", "/dev/null"]     words, no shell
//! ready = "packet-socket"              or { regex = "..." } of a line of its output, or { json = "/ready" }, true there
//! quiet = "1200ms"                     how long it must be idle until all that was sent is certain to have been taken
//! stop = "INT"                         the signal that ends it; TERM otherwise
//! ask = ["softflowctl", "..."]         run before that; what it prints is read too (optional)
//! exact = true                         its counts must come to all that was sent, or the run ends as failed (optional)
//!
//! [counts]                             packets; of a regex the last match, of JSON pointers the sum in its last line
//! seen = { regex = '(\d+) packets received by filter' }
//! captured = { json = ["/delivered"] }          seen - lost where it is left out
//! lost = { json = ["/lost"] }
//! analysed = { json = ["/analysed"] }           captured where it is left out
//! aside = { json = ["/filtered"] }              neither lost nor captured (optional)
//!
//! [figures]                            other numbers to keep of each trial, by JSON pointers in its last line (optional)
//! "flows" = "/flow_cache/flows"
//!
//! [wanted]                             of so many packets it wants the first ones: a trial in which others are delivered is at fault
//! first = 16                           (optional)
//! of = 4096
//! count = { json = ["/delivered", "/lost"] }
//!
//! [files]                              written into {folder} before it starts (optional)
//! "rules.toml" = "..."                 a text, or { addresses = [["10.1.0.0", 16]] }: so many from there on, a line each
//! ```
//! Words of the command may contain `{device}`, `{devices}` (separated by commas: a suite may have several), `{cores}`,
//! `{queues}`, `{queue-cores}` and `{worker-cores}` (a core for each, in turn), `{workers}`, `{engine}`, `{loops}`,
//! `{entries}` (number of rules or entries), `{duration}` (seconds of traffic), `{interval}` (seconds between its
//! reports in JSON), `{buffer}` (MiB; also `{buffer-kib}` and `{buffer-bytes}`), `{folder}` (an empty one of this
//! trial, in memory), `{wirelane}` and `{testbed}` (paths of these programs) and `{load-program}` (a steering program
//! that spins `{loops}` times). A dimension of the suite that is not in the words does not result in further trials.
//!
//! Further keys, all optional: `like = "NAME"` takes absent keys from a shipped adapter, and `more = [...]` adds words
//! to the command of that one. `prepare = [...]` is a command that runs before, in the folder's namespace. `processes =
//! "queues"` or `"workers"` starts one process for each, with its number in `{index}` and its core in `{core}`; their
//! counts are added up. `copies = true`: each worker or process gets every packet. `stands-for = 256`: it selects one
//! packet of this many and does not count the others, so each selected one represents all of them. `flush = "..."`:
//! options of 'wirelane send' for packets after all others, for a sensor that delays the last packets. `also-lost =
//! "..."`: output of a sensor that has lost packets which are not in any counter.

mod counts;
mod files;
mod parse;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use regex::Regex;
use serde::{Deserialize, Serialize};
use wirelane_probe::Mistakes;
use wirelane_probe::placed::{mistakes, read};

use crate::suite::Napi;

pub use counts::Counts;
use counts::{Extractor, Extractors, last_json};
pub use files::File;
use parse::{Raw, RawReady};

/// Shipped adapters, by name: the files of `duts/`.
const SHIPPED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/duts.rs"));

/// Analysis loads in the kernel: number of loops, and the steering program with this load.
const LOADS: &[(u32, &[u8])] = include!(concat!(env!("OUT_DIR"), "/loads.rs"));

/// Placeholders of a command line, with their values.
const PLACEHOLDERS: [(&str, Value); 21] = [
    ("core", |fill| fill.order.cores[fill.index % fill.order.cores.len()].to_string()),
    ("device", |fill| fill.device.to_owned()),
    // If there are several, `device` contains all of them.
    ("devices", |fill| fill.device.to_owned()),
    ("cores", |fill| in_turn(fill, fill.order.cores.len())),
    ("queue-cores", |fill| in_turn(fill, fill.order.queues as usize)),
    ("queues", |fill| fill.order.queues.to_string()),
    ("worker-cores", |fill| in_turn(fill, fill.order.workers)),
    ("workers", |fill| fill.order.workers.to_string()),
    ("engine", |fill| fill.order.engine.clone()),
    ("entries", |fill| fill.order.entries.to_string()),
    ("index", |fill| fill.index.to_string()),
    ("interval", |fill| if fill.order.reports { REPORT_S } else { NEVER_S }.to_string()),
    ("loops", |fill| fill.order.loops.to_string()),
    ("duration", |fill| fill.order.duration_s.to_string()),
    ("buffer", |fill| fill.order.buffer.to_string()),
    ("buffer-kib", |fill| (u64::from(fill.order.buffer) << 10).to_string()),
    ("buffer-bytes", |fill| (u64::from(fill.order.buffer) << 20).to_string()),
    ("folder", |fill| fill.folder.display().to_string()),
    ("testbed", |_| std::env::current_exe().unwrap_or_default().display().to_string()),
    ("wirelane", |fill| fill.wirelane.display().to_string()),
    ("load-program", |fill| fill.folder.join(LOAD).display().to_string()),
];
type Value = fn(&Fill<'_>) -> String;
/// File name of a steering program in the folder of a trial.
const LOAD: &str = "load.bpf.o";

/// Seconds between reports of a sensor that reports while it runs, and of one that does not.
const REPORT_S: f64 = 0.1;
const NEVER_S: f64 = 3600.0;
const SIGNALS: [&str; 5] = ["INT", "TERM", "HUP", "USR1", "QUIT"];

/// Condition for the readiness of a sensor.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "RawReady")]
pub enum Ready {
    /// It has a packet socket, and is idle.
    #[default]
    PacketSocket,
    /// A line of its output matches.
    Says(Regex),
    /// A line of JSON has `true` at this pointer.
    Json(String),
}

/// Unit for which one process each is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Processes {
    /// RX queues.
    Queues,
    /// Workers.
    Workers,
}

/// Selection of the first packets of each group, with its counter.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    first: u64,
    of: NonZeroU64,
    count: Extractor,
}

impl Wanted {
    /// Number of selected packets among this many.
    pub fn of(&self, packets: u64) -> u64 {
        packets / self.of * self.first + (packets % self.of).min(self.first)
    }
}

/// A sensor, as defined by its adapter.
#[derive(Clone, Debug, Default)]
pub struct Adapter {
    /// Name in suites and results.
    pub name: String,
    /// Title for people.
    pub title: String,
    /// Required program.
    pub program: String,
    /// Package of the program.
    pub package: Option<String>,
    /// Command line, with placeholders.
    pub command: Vec<String>,
    /// Condition for its readiness.
    pub ready: Ready,
    /// Idle time after which it has processed all packets.
    pub quiet: Duration,
    /// Signal that ends it, without SIG.
    pub stop: String,
    /// Command that queries its counters before that; empty: none.
    pub ask: Vec<String>,
    /// Whether its counts must add up to all sent packets.
    pub exact: bool,
    /// Whether it counts a packet once for each worker.
    pub copies: bool,
    /// Unit for which one process each is started; `None`: a single process.
    pub processes: Option<Processes>,
    /// Number of packets that each counted one represents.
    pub stands_for: u64,
    /// Command that runs before it; empty: none.
    pub prepare: Vec<String>,
    /// Options of `wirelane send` for packets after all others; empty: none.
    pub flush: String,
    /// Output that reports lost packets which are not in any counter; empty: none.
    pub also_lost: String,
    /// Other numbers of a trial to store, as JSON pointers.
    pub figures: BTreeMap<String, String>,
    /// Selection of packets, if this is checked.
    pub wanted: Option<Wanted>,
    /// Files of the adapter, by their names in the trial's folder.
    pub files: BTreeMap<String, File>,
    /// Text of the adapter.
    pub text: String,
    counts: Extractors,
}

/// Order to start a sensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DutOrder {
    /// Name of the adapter.
    pub sensor: String,
    /// Cores of the sensor.
    pub cores: Vec<usize>,
    /// RX queues.
    pub queues: u32,
    /// Workers.
    pub workers: usize,
    /// Engine.
    pub engine: String,
    /// Loops per packet.
    pub loops: u32,
    /// Rules, or entries of a set.
    pub entries: u32,
    /// Duration of traffic in seconds.
    pub duration_s: f64,
    /// Buffer in MiB.
    pub buffer: u32,
    /// NAPI context, for an agent whose device managers may arrange; a topology has it already.
    pub napi: Napi,
    /// Whether packets have a rate, on which the priority of NAPI threads can depend.
    pub paced: bool,
    /// Whether it reports while it runs.
    #[serde(skip)]
    pub reports: bool,
}

/// Values for the placeholders of a command line.
#[derive(Clone, Debug)]
pub struct Fill<'a> {
    /// Device to capture on, or several separated by commas.
    pub device: &'a str,
    /// Conditions of the trial.
    pub order: &'a DutOrder,
    /// Index of this process among those of the sensor.
    pub index: usize,
    /// Folder of this trial, as the sensor sees it.
    pub folder: &'a Path,
    /// The same folder, as this process sees it.
    pub outside: &'a Path,
    /// Path of the program `wirelane`.
    pub wirelane: &'a Path,
}

impl Adapter {
    /// Parses the text of an adapter; `path` is for messages.
    ///
    /// # Errors
    /// All mistakes, each with line and column.
    pub fn parse(name: &str, text: &str, path: &Path) -> Result<Adapter, Mistakes> {
        let raw: Raw = match read(text) {
            Ok(raw) => raw,
            Err(fault) => return Err(mistakes(text, path, vec![(fault.at.unwrap_or(0), fault.reason)])),
        };
        let mut found: Vec<(usize, String)> = Vec::new();
        let base = raw.like.as_ref().and_then(|like| {
            let base = shipped(&like.value);
            if base.is_none() {
                found.push((like.start, format!("no shipped adapter is called {:?}", like.value)));
            }
            base
        });
        let adapter = Adapter::checked(name, text, raw, base, &mut found);
        if found.is_empty() { Ok(adapter) } else { Err(mistakes(text, path, found)) }
    }

    /// Whether its command lines use any of these placeholders.
    pub fn asks_for(&self, names: &[&str]) -> bool {
        let mut words = self.command.iter().chain(&self.prepare);
        let is_asked = |word: &String| {
            placeholders(word)
                .iter()
                .any(|asked| names.contains(asked) || *asked == "worker-cores" && names.contains(&"workers"))
        };
        let by_process = match self.processes {
            Some(Processes::Workers) => names.contains(&"workers"),
            Some(Processes::Queues) | None => false,
        };
        by_process || words.any(is_asked)
    }

    /// Checks that it supports these loads.
    ///
    /// # Errors
    /// The first load that is not available.
    pub fn serves(&self, loops: &[u32]) -> Result<()> {
        let there = |loops: &&u32| LOADS.iter().any(|(there, _)| there == *loops);
        if self.asks_for(&["load-program"])
            && let Some(missing) = loops.iter().find(|loops| !there(loops))
        {
            let known: Vec<String> = LOADS.iter().map(|(loops, _)| loops.to_string()).collect();
            bail!(
                "{} has no load of {missing} loops, since the kernel wants to know them; there are {}",
                self.name,
                known.join(", ")
            );
        }
        Ok(())
    }

    /// Reason why it cannot run here; `None`: it can.
    pub fn missing(&self) -> Option<String> {
        // The sensor over libpcap is part of every test-bed.
        let receives = self.program == "{testbed}" && self.command.get(1).is_none_or(|word| word != "sensor");
        if receives && !cfg!(feature = "bench") {
            return Some("this test-bed was built without its receivers (cargo: feature 'bench')".to_owned());
        }
        if ["{wirelane}", "{testbed}"].contains(&self.program.as_str()) || find(&self.program).is_some() {
            return None;
        }
        let from =
            self.package.as_ref().map_or(String::new(), |package| format!(" (Debian's package {package})"));
        Some(format!("{} is not installed{from}", self.program))
    }

    /// Its command line. Writes the files that it needs.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn words(&self, fill: &Fill<'_>) -> Result<Vec<String>> {
        files::write(&self.files, fill.outside)?;
        filled(&self.command, fill)
    }

    /// Command that runs before it; empty: none. Writes the files that it needs.
    ///
    /// # Errors
    /// As [`Adapter::words`].
    pub fn preparing(&self, fill: &Fill<'_>) -> Result<Vec<String>> {
        files::write(&self.files, fill.outside)?;
        filled(&self.prepare, fill)
    }

    /// Command that queries its counters; empty: none.
    ///
    /// # Errors
    /// As [`Adapter::words`].
    pub fn asking(&self, fill: &Fill<'_>) -> Result<Vec<String>> {
        filled(&self.ask, fill)
    }

    /// Captured and lost packets so far, if it reports at intervals.
    pub fn told(&self, said: &str) -> Option<(u64, u64)> {
        if !self.asks_for(&["interval"]) {
            return None;
        }
        let reports = said.lines().filter_map(|line| self.counts.read(line).ok());
        Some(reports.fold((0, 0), |sum, one| (sum.0 + one.captured, sum.1 + one.lost)))
    }

    /// Its counters, extracted from its whole output.
    ///
    /// # Errors
    /// The first counter that is missing.
    pub fn counts(&self, said: &str) -> Result<Counts> {
        let counts = self.counts.read(said).and_then(|counts| {
            let json = last_json(said);
            let figure = |(name, pointer): (&String, &String)| {
                let value = json.as_ref().and_then(|json| json.pointer(pointer)?.as_f64());
                value.map(|value| (name.clone(), value))
            };
            let wanted = match &self.wanted {
                Some(wanted) => Some(wanted.count.read("wanted", said, json.as_ref())?),
                None => None,
            };
            let figures = self.figures.iter().filter_map(figure).collect();
            let also_lost = u64::from(!self.also_lost.is_empty() && said.contains(&self.also_lost));
            Ok(Counts {
                captured: (counts.captured * self.stands_for).saturating_sub(also_lost),
                lost: counts.lost + also_lost,
                wanted,
                figures,
                ..counts
            })
        });
        counts.with_context(|| {
            let end: Vec<&str> = said.lines().rev().take(8).collect();
            let end: Vec<&str> = end.into_iter().rev().collect();
            format!("what {} said is not understood; it ended with: {}", self.name, end.join(" | "))
        })
    }
}

/// Names in braces.
fn placeholders(word: &str) -> Vec<&str> {
    word.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name).collect()
}

/// The first of these cores, repeated if there are too few.
fn in_turn(fill: &Fill<'_>, count: usize) -> String {
    let cores = fill.order.cores.iter().cycle().take(count);
    cores.map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Words with the values of their placeholders. Writes the steering program that they name.
fn filled(words: &[String], fill: &Fill<'_>) -> Result<Vec<String>> {
    if words.iter().any(|word| word.contains("{load-program}")) {
        let (_, object) =
            LOADS.iter().find(|(loops, _)| *loops == fill.order.loops).context("no such load")?;
        let path = fill.outside.join(LOAD);
        fs::write(&path, object).with_context(|| path.display().to_string())?;
    }
    let fill_in = |word: &String| {
        let replace =
            |word: String, (name, value): &(&str, Value)| word.replace(&format!("{{{name}}}"), &value(fill));
        PLACEHOLDERS.iter().fold(word.clone(), replace)
    };
    Ok(words.iter().map(fill_in).collect())
}

/// Path of a program, from PATH and Debian's folders of programs for root.
pub fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// A shipped adapter.
fn shipped(name: &str) -> Option<Adapter> {
    let (_, text) = SHIPPED.iter().find(|(of, _)| *of == name)?;
    Adapter::parse(name, text, Path::new(name)).ok()
}

/// All adapters that a suite can name.
#[derive(Clone, Debug, Default)]
pub struct Duts(BTreeMap<String, Adapter>);

impl Duts {
    /// All shipped adapters.
    ///
    /// # Panics
    /// Never: tests parse all of them.
    pub fn shipped() -> Duts {
        let read = |(name, text): &(&str, &str)| {
            let adapter = Adapter::parse(name, text, Path::new(name));
            ((*name).to_owned(), adapter.unwrap_or_else(|mistakes| panic!("{name}: {mistakes}")))
        };
        Duts(SHIPPED.iter().map(read).collect())
    }

    /// Adds an adapter, or all `.toml` files of a folder. It replaces a shipped adapter of the same name.
    ///
    /// # Errors
    /// The first file that cannot be read or is invalid.
    pub fn add(&mut self, path: &Path) -> Result<()> {
        let mut files = vec![path.to_owned()];
        if path.is_dir() {
            let entries = fs::read_dir(path).with_context(|| path.display().to_string())?;
            files = entries.flatten().map(|entry| entry.path()).collect();
            files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
            files.sort();
        }
        for file in files {
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let name =
                file.file_stem().and_then(|name| name.to_str()).context("an adapter's name is no text")?;
            let adapter = Adapter::parse(name, &text, &file)?;
            self.0.insert(name.to_owned(), adapter);
        }
        Ok(())
    }

    /// Adapter of this name.
    pub fn get(&self, name: &str) -> Option<&Adapter> {
        self.0.get(name)
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// All adapters, by name.
    pub fn all(&self) -> impl Iterator<Item = &Adapter> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests;
