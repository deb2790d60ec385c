//! The store of flows: flows written per second, bytes of each, and duration of ready-made queries.
//!
//! Flows of a day are generated in memory and passed to the library's writers: first to one, then to as many as there
//! are cores. Queries run in `wirelane query`, a process each, as for a user; once with the files removed from the page
//! cache, then with its current contents. Where there is one, DuckDB answers the same questions of the same files, in
//! turns, and the answers have to be equal.

mod flows;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, fadvise, statvfs};
use serde_json::Value;
use wirelane::Capture;
use wirelane_export::flows::Naming;
use wirelane_store::{StoreSettings, Writer};
use wirelane_tests::recordings::make_capture;

use super::Args;
use super::table::{Table, spread};
use crate::summary::Spread;
use flows::{Flows, SOMEBODY};

/// Number of flows, unless the options define it.
const FLOWS: u64 = 100_000_000;
const QUICK_FLOWS: u64 = 2_000_000;
/// Maximum number of flows for the rate of a single writer; at most a tenth of all.
const MOST_ALONE: u64 = 4_000_000;
/// Maximum bytes of a flow on disk, to check the available space.
const MOST_BYTES: u64 = 100;
/// Number of runs of a query with a warm page cache.
const WARM: usize = 3;
const QUICK_WARM: usize = 1;
/// Interval of readings of a query's memory.
const LOOK: Duration = Duration::from_millis(10);

/// A ready question.
struct Question {
    name: &'static str,
    /// An address, for the question that needs one.
    address: Option<&'static str>,
    /// Columns of the answer, without times, which DuckDB writes in another way; `None`: a time.
    columns: &'static [Option<&'static str>],
}

const ENDS: [Option<&str>; 3] = [Some("flows"), Some("sent_bytes"), Some("received_bytes")];
const SUMS: [Option<&str>; 3] = [Some("flows"), Some("packets"), Some("bytes")];

const QUESTIONS: [Question; 5] = [
    Question { name: "top talkers", address: None, columns: &[Some("address"), ENDS[0], ENDS[1], ENDS[2]] },
    Question {
        name: "top ports",
        address: None,
        columns: &[Some("protocol"), Some("port"), Some("application"), SUMS[0], SUMS[1], SUMS[2]],
    },
    Question { name: "by network", address: None, columns: &[Some("network"), ENDS[0], ENDS[1], ENDS[2]] },
    Question { name: "over time", address: None, columns: &[None, SUMS[0], SUMS[1], SUMS[2]] },
    Question {
        name: "who talked to",
        address: Some(SOMEBODY),
        columns: &[Some("address"), ENDS[0], ENDS[1], ENDS[2], None, None],
    },
];

/// Sums over writers.
#[derive(Default)]
struct Written {
    flows: u64,
    packets: u64,
    bytes: u64,
    files: u64,
}

/// Runs all measurements. The data are removed at the end, also after an error.
pub(super) fn measure(options: &Args, wirelane: &Path) -> Result<Vec<Table>> {
    let total = options.flows.unwrap_or(if options.quick { QUICK_FLOWS } else { FLOWS });
    let place = options.store_folder.clone().unwrap_or_else(std::env::temp_dir);
    let named = || place.display().to_string();
    let disk = statvfs(&place).with_context(named)?;
    let (room, needed) = (disk.f_bavail * disk.f_frsize, total * MOST_BYTES);
    ensure!(
        room >= needed,
        "{}: {room} bytes are free, and {total} flows take up to {needed}; choose another folder (--store-folder), or fewer flows (--flows)",
        place.display()
    );
    let folder =
        tempfile::Builder::new().prefix("wirelane-testbed-store-").tempdir_in(&place).with_context(named)?;
    let naming = naming(folder.path())?;
    let store = folder.path().join("flows.db");
    let mut table = Table::new(
        "The store of flows: written",
        format!(
            "Flows of a day, made in memory (which takes {:.0} ns each, beside the writer), written until their files are whole and on the \
             disk.",
            making(total.min(MOST_ALONE / 4))
        ),
        &["writers", "flows", "seconds", "flows/s", "bytes a flow", "files"],
    );
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let alone = (total / 10).clamp(1, MOST_ALONE);
    let mut packets = 0;
    for (number, (writers, flows)) in [(1, alone), (cores, total - alone)].into_iter().enumerate() {
        packets += write(&store, &naming, writers, flows, number as u64, &mut table)?;
    }
    // All flows and packets that were written are present.
    let sum = "SELECT count(*) AS flows, sum(packets) AS packets FROM flows";
    let (_, _, answer) = ask(wirelane, &store, &[sum])?;
    let sums: Value = serde_json::from_str(answer.trim()).context("the sums are no JSON")?;
    ensure!(
        sums["flows"] == total && sums["packets"] == packets,
        "{total} flows of {packets} packets were written, and the store has {answer}"
    );
    let mut answers = Table::new(
        "The store of flows: asked",
        format!(
            "Ready questions over {total} flows, seconds of `wirelane query` from its start to its end (cold: no file in the page cache), \
             and of DuckDB's query alone, in turns, with equal answers."
        ),
        &[
            "question",
            "cold",
            "warm, median",
            "spread",
            "most MiB",
            "rows",
            "DuckDB, median",
            "its spread",
            "ratio",
        ],
    );
    for question in &QUESTIONS {
        let times = if options.quick { QUICK_WARM } else { WARM };
        measure_question((wirelane, options.duckdb.as_deref()), &store, question, times, &mut answers)?;
    }
    Ok(vec![table, answers])
}

/// Names of a capture file's interface, which has none.
fn naming(folder: &Path) -> Result<Naming> {
    let file = folder.join("empty.pcap");
    make_capture(&file, 60, [])?;
    Ok(Naming::new(Capture::open_file(&file)?.interfaces(), vec![1]))
}

/// Nanoseconds for generating a flow.
fn making(count: u64) -> f64 {
    let mut flows = Flows::new(count, 0);
    let start = Instant::now();
    while let Some(batch) = flows.batch() {
        std::hint::black_box(batch);
    }
    start.elapsed().as_nanos() as f64 / count.max(1) as f64
}

/// Writes flows with several writers, each with a thread, and one that generates flows for it, until all files are
/// complete and on disk. Returns the number of packets of these flows.
fn write(
    store: &Path,
    naming: &Naming,
    writers: usize,
    count: u64,
    seed: u64,
    table: &mut Table,
) -> Result<u64> {
    let start = Instant::now();
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers as u64)
            .map(|number| {
                let share = count / writers as u64 + u64::from(number < count % writers as u64);
                scope.spawn(move || write_one(store, naming.clone(), share, seed << 8 | number))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<Vec<Written>>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let sum = parts.into_iter().fold(Written::default(), |sum, one| Written {
        flows: sum.flows + one.flows,
        packets: sum.packets + one.packets,
        bytes: sum.bytes + one.bytes,
        files: sum.files + one.files,
    });
    ensure!(sum.flows == count, "{count} flows were to be written, and {} were", sum.flows);
    table.row(&[
        &writers,
        &sum.flows,
        &format!("{seconds:.1}"),
        &format!("{:.0}", sum.flows as f64 / seconds),
        &format!("{:.1}", sum.bytes as f64 / sum.flows.max(1) as f64),
        &sum.files,
    ]);
    Ok(sum.packets)
}

fn write_one(store: &Path, naming: Naming, count: u64, seed: u64) -> Result<Written> {
    let mut writer = Writer::open(StoreSettings {
        memory: wirelane_store::MEMORY,
        folder: store.to_owned(),
        probe: "bench".into(),
        max_age: None,
        max_size: None,
        rotate: Some(Duration::from_secs(3600)),
        live: false,
        owner: None,
    })?;
    writer.start(naming)?;
    let mut flows = Flows::new(count, seed);
    while let Some(batch) = flows.batch() {
        writer.take(batch);
    }
    let counts = writer.finish();
    if let Some(error) = counts.failure() {
        return Err(error.into());
    }
    let flows_written = counts.rows.values().sum();
    Ok(Written { flows: flows_written, packets: flows.packets, bytes: counts.bytes, files: counts.files })
}

/// Asks a question with all files outside of the page cache, and then this many times with a warm one, in turns with the
/// interpreter that has DuckDB.
fn measure_question(
    (wirelane, duckdb): (&Path, Option<&Path>),
    store: &Path,
    question: &Question,
    times: usize,
    table: &mut Table,
) -> Result<()> {
    let words: Vec<&str> = question.name.split(' ').chain(question.address).collect();
    forget(store)?;
    let (cold_s, mut peak_mib, answer) = ask(wirelane, store, &words)?;
    let (mut warm, mut peer) = (Vec::new(), Vec::new());
    for _ in 0..times {
        let (seconds, mib, again) = ask(wirelane, store, &words)?;
        ensure!(again == answer, "{}: two answers to one question", question.name);
        warm.push(seconds);
        peak_mib = peak_mib.max(mib);
        if let Some(python) = duckdb {
            peer.push(ask_duckdb(python, store, question, &answer)?);
        }
    }
    let (ours, theirs) = (Spread::of(warm).context("no time")?, Spread::of(peer));
    let ratio = theirs.as_ref().map(|theirs| ours.median / theirs.median);
    let [warm, ends] = spread(ours, 2);
    let [peer, peer_ends] = theirs.map_or(["-".into(), "-".into()], |theirs| spread(theirs, 2));
    table.row(&[
        &words.join(" "),
        &format!("{cold_s:.2}"),
        &warm,
        &ends,
        &format!("{peak_mib:.0}"),
        &answer.lines().count(),
        &peer,
        &peer_ends,
        &ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
    ]);
    Ok(())
}

/// Has DuckDB answer a question; returns the seconds of its query. Its answer has to be ours.
fn ask_duckdb(python: &Path, store: &Path, question: &Question, ours: &str) -> Result<f64> {
    let rows = ours.lines().count().to_string();
    let mut command = Command::new(python);
    command.args(["-c", include_str!("duckdb.py")]).arg(store).args([question.name, &rows]);
    let output = command.args(question.address).output().context("the interpreter of --duckdb")?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: DuckDB, for '{}': {message}", python.display(), question.name);
    let (seconds, theirs): (f64, Vec<Vec<Value>>) = serde_json::from_slice(&output.stdout)?;
    let columns = || question.columns.iter().enumerate().filter_map(|(at, name)| Some((at, (*name)?)));
    let theirs: Vec<Vec<Value>> =
        theirs.iter().map(|row| columns().map(|(at, _)| row[at].clone()).collect()).collect();
    let ours: Vec<Vec<Value>> = ours
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line)?;
            Ok(columns().map(|(_, name)| row[name].clone()).collect())
        })
        .collect::<Result<_>>()?;
    ensure!(ours == theirs, "'{}' has two answers, ours {ours:?} and DuckDB's {theirs:?}", question.name);
    Ok(seconds)
}

/// Runs a query; returns seconds, peak memory in MiB, and the answer.
fn ask(wirelane: &Path, store: &Path, question: &[&str]) -> Result<(f64, f64, String)> {
    let start = Instant::now();
    let mut command = Command::new(wirelane);
    command.arg("query").args(question).arg("--json").arg("--store").arg(store);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("wirelane query")?;
    let status = format!("/proc/{}/status", child.id());
    let reader = std::thread::spawn(move || child.wait_with_output().map(|output| (output, start.elapsed())));
    let mut peak = 0.0_f64;
    while !reader.is_finished() {
        // The process may have ended by now.
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        peak = peak.max(kib.unwrap_or(0.0) / 1024.0);
        std::thread::sleep(LOOK);
    }
    let (output, took) = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(
        output.status.success() && message.is_empty(),
        "wirelane query {}: {message}",
        question.join(" ")
    );
    Ok((took.as_secs_f64(), peak, String::from_utf8(output.stdout).context("the answer is not UTF-8")?))
}

/// Makes the kernel drop these files from its page cache (posix_fadvise(2)): they are on disk.
fn forget(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            forget(&path)?;
        } else {
            let file = File::open(&path).with_context(|| path.display().to_string())?;
            fadvise(&file, 0, None, Advice::DontNeed).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
