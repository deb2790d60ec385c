//! Sensors: any program that captures, by an adapter of a few lines of TOML each.
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
//! [files]                              written into {folder} before it starts (optional)
//! "rules.toml" = "..."                 a text, or { addresses = [["10.1.0.0", 16]] }: so many from there on, a line each
//! ```
//! Words of the command may hold `{device}`, `{devices}` (with commas: a battery may have several), `{cores}`, `{queues}`, `{workers}`, `{engine}`, `{loops}`, `{duration}` (seconds of
//! traffic), `{buffer}` (MiB; also `{buffer-kib}` and `{buffer-bytes}`), `{folder}` (an empty one of this trial, in memory),
//! `{wirelane}` (this program) and `{load-program}` (a steering program that spins `{loops}` times). A dimension of the battery that
//! the words do not hold makes no further trials.

mod counts;
mod files;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use regex::Regex;
use serde::Deserialize;
use wirelane_probe::Mistakes;
use wirelane_probe::placed::{At, mistakes, read};

pub use counts::Counts;
use counts::{Ways, ways};
pub use files::File;

/// Adapters that are shipped, by name.
const SHIPPED: [(&str, &str); 24] = [
    ("dumpcap", include_str!("../../sensors/dumpcap.toml")),
    ("libpcap-loops", include_str!("../../sensors/libpcap-loops.toml")),
    ("netsniff-ng", include_str!("../../sensors/netsniff-ng.toml")),
    ("nfpcapd", include_str!("../../sensors/nfpcapd.toml")),
    ("nobody", include_str!("../../sensors/nobody.toml")),
    ("softflowd", include_str!("../../sensors/softflowd.toml")),
    ("suricata", include_str!("../../sensors/suricata.toml")),
    ("tcpdump", include_str!("../../sensors/tcpdump.toml")),
    ("wirelane-count", include_str!("../../sensors/wirelane-count.toml")),
    ("wirelane-count-congestion", include_str!("../../sensors/wirelane-count-congestion.toml")),
    ("wirelane-count-copy", include_str!("../../sensors/wirelane-count-copy.toml")),
    ("wirelane-count-queue", include_str!("../../sensors/wirelane-count-queue.toml")),
    ("wirelane-count-take", include_str!("../../sensors/wirelane-count-take.toml")),
    ("wirelane-devices", include_str!("../../sensors/wirelane-devices.toml")),
    ("wirelane-devices-free", include_str!("../../sensors/wirelane-devices-free.toml")),
    ("wirelane-flows", include_str!("../../sensors/wirelane-flows.toml")),
    ("wirelane-flows-kernel", include_str!("../../sensors/wirelane-flows-kernel.toml")),
    ("wirelane-http", include_str!("../../sensors/wirelane-http.toml")),
    ("wirelane-kernel-loops", include_str!("../../sensors/wirelane-kernel-loops.toml")),
    ("wirelane-record", include_str!("../../sensors/wirelane-record.toml")),
    ("wirelane-rules-network", include_str!("../../sensors/wirelane-rules-network.toml")),
    ("wirelane-rules-set", include_str!("../../sensors/wirelane-rules-set.toml")),
    ("wirelane-voip", include_str!("../../sensors/wirelane-voip.toml")),
    ("wirelane-voip-kernel", include_str!("../../sensors/wirelane-voip-kernel.toml")),
];

/// Analysis loads of the kernel: loops, and the steering program that spins so many times.
const LOADS: &[(u32, &[u8])] = include!(concat!(env!("OUT_DIR"), "/loads.rs"));

/// What a command line may ask for.
const PLACEHOLDERS: [&str; 14] = [
    "device",
    "devices",
    "cores",
    "queues",
    "workers",
    "engine",
    "loops",
    "duration",
    "buffer",
    "buffer-kib",
    "buffer-bytes",
    "folder",
    "wirelane",
    "load-program",
];
const SIGNALS: [&str; 5] = ["INT", "TERM", "HUP", "USR1", "QUIT"];

/// How to know that a sensor is ready.
#[derive(Clone, Debug)]
pub enum Ready {
    /// It has a packet socket, and is idle.
    PacketSocket,
    /// A line of its output says so.
    Says(Regex),
    /// A line of JSON has `true` there.
    Json(String),
}

/// A sensor, as its adapter says it.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Its name in batteries and results.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// The program that it needs.
    pub program: String,
    /// Where that would come from.
    pub package: Option<String>,
    /// The command line, with placeholders.
    pub command: Vec<String>,
    /// How to know that it is ready.
    pub ready: Ready,
    /// How long it must be idle until it has taken everything.
    pub quiet: Duration,
    /// The signal that ends it, without SIG.
    pub stop: String,
    /// A command that asks it for its counters before that; empty: none.
    pub ask: Vec<String>,
    /// Whether its counts come to all that was sent.
    pub exact: bool,
    /// Whether it counts a packet once for each worker.
    pub copies: bool,
    /// Files that it brings along, by their names in the trial's folder.
    pub files: BTreeMap<String, File>,
    /// The adapter as it was read.
    pub text: String,
    counts: Ways,
}

/// What stands for the placeholders of a command line.
#[derive(Clone, Debug)]
pub struct Fill<'a> {
    /// The device to capture on, or several with commas.
    pub device: &'a str,
    /// Cores.
    pub cores: &'a [usize],
    /// RX queues.
    pub queues: u32,
    /// Workers.
    pub workers: usize,
    /// Engine.
    pub engine: &'a str,
    /// Loops per packet.
    pub loops: u32,
    /// Seconds of traffic.
    pub duration: f64,
    /// MiB.
    pub buffer: u32,
    /// A folder of this trial, as the sensor sees it.
    pub folder: &'a Path,
    /// The same folder, as this process sees it.
    pub outside: &'a Path,
    /// This program.
    pub wirelane: &'a Path,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Raw {
    title: Option<String>,
    program: At<String>,
    package: Option<String>,
    command: At<Vec<At<String>>>,
    ready: At<RawReady>,
    quiet: At<String>,
    stop: Option<At<String>>,
    #[serde(default)]
    ask: Vec<At<String>>,
    #[serde(default)]
    exact: bool,
    #[serde(default)]
    copies: bool,
    files: Option<At<BTreeMap<String, files::Raw>>>,
    counts: At<counts::Raw>,
}

/// `"packet-socket"`, or a table.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawReady {
    Word(String),
    Table(BTreeMap<String, String>),
}

impl Adapter {
    /// Reads the text of an adapter; `path` is for messages.
    ///
    /// # Errors
    /// Every mistake that was found, each with line and column.
    pub fn parse(name: &str, text: &str, path: &Path) -> Result<Adapter, Mistakes> {
        let raw: Raw = match read(text) {
            Ok(raw) => raw,
            Err(fault) => return Err(mistakes(text, path, vec![(fault.at.unwrap_or(0), fault.reason)])),
        };
        let mut found: Vec<(usize, String)> = Vec::new();
        if raw.command.value.is_empty() {
            found.push((raw.command.start, "the command has no words".into()));
        }
        for word in raw.command.value.iter().chain(&raw.ask) {
            for asked in placeholders(&word.value) {
                if !PLACEHOLDERS.contains(&asked) {
                    found.push((
                        word.start,
                        format!("there is no {{{asked}}}; there are {}", PLACEHOLDERS.join(", ")),
                    ));
                }
            }
        }
        let ready = match ready(&raw.ready.value) {
            Ok(ready) => ready,
            Err(reason) => {
                found.push((raw.ready.start, reason));
                Ready::PacketSocket
            }
        };
        let quiet = humantime::parse_duration(&raw.quiet.value)
            .ok()
            .filter(|quiet| *quiet <= Duration::from_secs(60));
        if quiet.is_none() {
            found.push((raw.quiet.start, "give a length of time up to \"60s\", as in \"300ms\"".into()));
        }
        if let Some(stop) = raw.stop.as_ref().filter(|stop| !SIGNALS.contains(&stop.value.as_str())) {
            found.push((stop.start, format!("give one of the signals {}", SIGNALS.join(", "))));
        }
        let counts = ways(&raw.counts, &mut found);
        let files = files::files(raw.files, &mut found);
        if !found.is_empty() {
            return Err(mistakes(text, path, found));
        }
        let words = |list: Vec<At<String>>| list.into_iter().map(|word| word.value).collect();
        Ok(Adapter {
            title: raw.title.unwrap_or_else(|| name.to_owned()),
            name: name.to_owned(),
            program: raw.program.value,
            package: raw.package,
            command: words(raw.command.value),
            ready,
            quiet: quiet.unwrap_or_default(),
            stop: raw.stop.map_or_else(|| "TERM".to_owned(), |stop| stop.value),
            ask: words(raw.ask),
            exact: raw.exact,
            copies: raw.copies,
            files,
            text: text.to_owned(),
            counts,
        })
    }

    /// Whether its command line has any of these.
    pub fn asks_for(&self, names: &[&str]) -> bool {
        self.command.iter().any(|word| placeholders(word).iter().any(|asked| names.contains(asked)))
    }

    /// Whether it can be given these loads and workers.
    ///
    /// # Errors
    /// Which load there is not.
    pub fn serves(&self, loops: &[u32], _workers: &[usize]) -> Result<()> {
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

    /// Why it cannot be run here; none: it can.
    pub fn missing(&self) -> Option<String> {
        if self.program == "{wirelane}" || find(&self.program).is_some() {
            return None;
        }
        let from =
            self.package.as_ref().map_or(String::new(), |package| format!(" (Debian's package {package})"));
        Some(format!("{} is not installed{from}", self.program))
    }

    /// Its command line. What files it needs are written.
    ///
    /// # Errors
    /// Where a file cannot be written.
    pub fn words(&self, fill: &Fill<'_>) -> Result<Vec<String>> {
        files::write(&self.files, fill.outside)?;
        filled(&self.command, fill)
    }

    /// The command that asks it for its counters; empty: none.
    ///
    /// # Errors
    /// As [`Adapter::words`].
    pub fn asking(&self, fill: &Fill<'_>) -> Result<Vec<String>> {
        filled(&self.ask, fill)
    }

    /// What it has counted, from all that it has said.
    ///
    /// # Errors
    /// Which counter is not there.
    pub fn counts(&self, said: &str) -> Result<Counts> {
        self.counts.read(said).with_context(|| {
            let end: Vec<&str> = said.lines().rev().take(8).collect();
            let end: Vec<&str> = end.into_iter().rev().collect();
            format!("what {} said is not understood; it ended with: {}", self.name, end.join(" | "))
        })
    }
}

fn ready(raw: &RawReady) -> Result<Ready, String> {
    let wanted = "give \"packet-socket\", { regex = \"...\" } or { json = \"/pointer\" }";
    match raw {
        RawReady::Word(word) if word == "packet-socket" => Ok(Ready::PacketSocket),
        RawReady::Table(table) => match (table.len(), table.get("regex"), table.get("json")) {
            (1, Some(regex), None) => Regex::new(regex).map(Ready::Says).map_err(|error| error.to_string()),
            (1, None, Some(pointer)) if pointer.starts_with('/') => Ok(Ready::Json(pointer.clone())),
            _ => Err(wanted.to_owned()),
        },
        RawReady::Word(_) => Err(wanted.to_owned()),
    }
}

/// The names in braces.
fn placeholders(word: &str) -> Vec<&str> {
    word.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name).collect()
}

fn filled(words: &[String], fill: &Fill<'_>) -> Result<Vec<String>> {
    let cores = fill.cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut load = String::new();
    if words.iter().any(|word| word.contains("{load-program}")) {
        let (_, object) = LOADS.iter().find(|(loops, _)| *loops == fill.loops).context("no such load")?;
        let path = fill.outside.join("load.bpf.o");
        fs::write(&path, object).with_context(|| path.display().to_string())?;
        load = fill.folder.join("load.bpf.o").display().to_string();
    }
    let values = [
        ("device", fill.device.to_owned()),
        // Where there are several, `device` is all of them.
        ("devices", fill.device.to_owned()),
        ("cores", cores),
        ("queues", fill.queues.to_string()),
        ("workers", fill.workers.to_string()),
        ("engine", fill.engine.to_owned()),
        ("loops", fill.loops.to_string()),
        ("duration", fill.duration.to_string()),
        ("buffer", fill.buffer.to_string()),
        ("buffer-kib", (u64::from(fill.buffer) << 10).to_string()),
        ("buffer-bytes", (u64::from(fill.buffer) << 20).to_string()),
        ("folder", fill.folder.display().to_string()),
        ("wirelane", fill.wirelane.display().to_string()),
        ("load-program", load),
    ];
    let fill_in = |word: &String| {
        let replace =
            |word: String, (name, value): &(&str, String)| word.replace(&format!("{{{name}}}"), value);
        values.iter().fold(word.clone(), replace)
    };
    Ok(words.iter().map(fill_in).collect())
}

/// Where a program is, by PATH and where Debian keeps those of root.
pub fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// All adapters that a battery can name.
#[derive(Clone, Debug, Default)]
pub struct Sensors(BTreeMap<String, Adapter>);

impl Sensors {
    /// Those that are shipped.
    ///
    /// # Panics
    /// Never: tests read them all.
    pub fn shipped() -> Sensors {
        let read = |(name, text): &(&str, &str)| {
            let adapter = Adapter::parse(name, text, Path::new(name));
            ((*name).to_owned(), adapter.unwrap_or_else(|mistakes| panic!("{name}: {mistakes}")))
        };
        Sensors(SHIPPED.iter().map(read).collect())
    }

    /// Adds an adapter, or all `.toml` files of a folder. One of the same name takes the place of what is shipped.
    ///
    /// # Errors
    /// What cannot be read, or makes no sense.
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

    /// The adapter of this name.
    pub fn get(&self, name: &str) -> Option<&Adapter> {
        self.0.get(name)
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// All of them, by name.
    pub fn all(&self) -> impl Iterator<Item = &Adapter> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests;
