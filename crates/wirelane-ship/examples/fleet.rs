//! Many simulated probes that ship to one place: stores are filled at a rate with copies of real flows, and shipped by the code
//! of `wirelane ship`, until the place falls behind.
//!
//! ```text
//! fleet TEMPLATE FOLDER TARGET --probes 100 --flows 1000 --rotate 10 --seconds 60 --pid ENGINE
//! ```
//! TEMPLATE is a store with flows. Each probe has a store in FOLDER, which gets a file with `flows` times `rotate` rows every
//! `rotate` seconds; the probes take turns. Prints a JSON line each second, and one with the sums at the end: rows a second in and
//! out, the lag, files that wait, and the memory and CPU of the engine's process. The caller creates the schema before.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arrow::array::UInt32Array;
use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::compute::{concat_batches, take_record_batch};
use clap::Parser;
use serde_json::json;
use std::sync::Arc;
use wirelane_ship::{Place, Secrets, Settings, Shipper, Status};
use wirelane_store::Table;
use wirelane_store::shipping::{Lock, Merged, folder_of, parquet, rows};

/// Options.
#[derive(Parser)]
struct Args {
    template: PathBuf,
    folder: PathBuf,
    target: String,
    #[arg(long, default_value_t = 10)]
    probes: usize,
    /// Flows a second and probe.
    #[arg(long, default_value_t = 1000)]
    flows: usize,
    /// Seconds of a file.
    #[arg(long, default_value_t = 10.0)]
    rotate: f64,
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Seconds that a file waits for others.
    #[arg(long, default_value_t = 1.0)]
    batch_age: f64,
    /// Process of the engine.
    #[arg(long)]
    pid: Option<u32>,
    /// Threads that ship: each has its share of the probes.
    #[arg(long, default_value_t = 4)]
    threads: usize,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.retain(|path| path.extension().is_some_and(|end| end == "parquet"));
    found
}

/// A file of so many rows of the template, from this one on, as if this probe had stored them now.
fn file(
    template: &RecordBatch,
    from: usize,
    count: usize,
    probe: &str,
    now_us: i64,
) -> Result<Vec<u8>, Failure> {
    let all = template.num_rows();
    let picked = UInt32Array::from_iter_values((from..from + count).map(|row| (row % all) as u32));
    let batch = take_record_batch(template, &picked)?;
    let schema = batch.schema();
    let durations =
        batch.column_by_name("duration_ns").and_then(|column| column.as_any().downcast_ref::<Int64Array>());
    let durations = durations.ok_or("no durations")?.clone();
    let starts = || durations.values().iter().map(|duration| now_us - duration / 1000);
    let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| -> ArrayRef {
        match field.name().as_str() {
            "end_time" => Arc::new(TimestampMicrosecondArray::from(vec![now_us; count])),
            "start_time" => Arc::new(TimestampMicrosecondArray::from_iter_values(starts())),
            "start_ns" => Arc::new(Int64Array::from_iter_values(starts().map(|us| us * 1000))),
            "probe" => Arc::new(StringArray::from(vec![probe; count])),
            _ => Arc::clone(column),
        }
    });
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns.collect())?;
    Ok(parquet(Table::Flows, probe, std::iter::once(&batch))?)
}

fn now_us() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_micros() as i64)
}

/// Memory in MiB and CPU time in seconds of a process.
fn process(pid: u32) -> Option<(u64, f64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some((kib.parse::<u64>().ok()? / 1024, ticks / 100.0))
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let template = rows(Table::Flows, &files(&args.template.join("flows")), "template")?;
    let template = concat_batches(&Table::Flows.schema(), template.batches())?;
    let count = ((args.flows as f64 * args.rotate) as usize).max(1);
    let place = Place::parse(&args.target)?;

    // Files are made before, since the engine shares the processors with this program.
    let (mut locks, mut shippers, mut contents) = (Vec::new(), Vec::new(), Vec::new());
    for probe in 0..args.probes {
        let (name, store) = (format!("probe-{probe}"), args.folder.join(format!("probe-{probe}")));
        fs::create_dir_all(store.join("flows"))?;
        locks.push(Lock::shipper(&store)?.ok_or("the store is shipped already")?);
        let settings = Settings {
            store: store.clone(),
            batch_size: 32 << 20,
            batch_age: Duration::from_secs_f64(args.batch_age),
            create: false,
            probe: name.clone(),
        };
        let destination = place.clone().open(&Secrets::default(), Duration::from_secs(60))?;
        shippers.push(Shipper::open(settings, &place, destination, Merged::default())?);
        contents.push((store, file(&template, probe * count, count, &name, now_us())?));
    }
    let file_bytes = contents.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() / contents.len();
    let (over, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let boards: Vec<Mutex<Status>> = (0..args.probes).map(|_| Mutex::default()).collect();
    let mut shares: Vec<Vec<(usize, Shipper)>> = (0..args.threads).map(|_| Vec::new()).collect();
    for (at, shipper) in shippers.into_iter().enumerate() {
        shares[at % args.threads].push((at, shipper));
    }
    let engine = |begin: Option<(u64, f64)>| {
        args.pid.and_then(process).zip(begin).map(|(now, begin)| (now.0, now.1 - begin.1))
    };
    let at_begin = args.pid.and_then(process);
    let sum = |of: fn(&Status) -> f64| -> f64 {
        boards.iter().map(|board| of(&board.lock().unwrap_or_else(PoisonError::into_inner))).sum()
    };
    let most = || {
        let lags = boards.iter().map(|board| board.lock().unwrap_or_else(PoisonError::into_inner).lag_s);
        lags.fold(0.0, f64::max)
    };
    std::thread::scope(|scope| -> Result<(), Failure> {
        for share in shares {
            let (over, boards) = (&over, &boards);
            scope.spawn(move || {
                let mut share = share;
                while !over.load(Ordering::Relaxed) {
                    let mut is_idle = true;
                    for (at, shipper) in &mut share {
                        is_idle &= !matches!(shipper.step(false), Ok(true));
                        if let Ok(status) = shipper.status() {
                            *boards[*at].lock().unwrap_or_else(PoisonError::into_inner) = status;
                        }
                    }
                    if is_idle {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                }
            });
        }
        let (begun, mut told, mut next, mut lags) = (Instant::now(), 0.0, 0_u64, Vec::new());
        let gap = args.rotate / args.probes as f64;
        while begun.elapsed().as_secs_f64() < args.seconds {
            let elapsed = begun.elapsed().as_secs_f64();
            while (next as f64) * gap <= elapsed {
                let (store, bytes) = &contents[(next % args.probes as u64) as usize];
                let folder = store.join("flows").join(folder_of(now_us() / 3_600_000_000));
                fs::create_dir_all(&folder)?;
                let time = chrono::Utc::now().format("%Y%m%dT%H%M%SZ");
                let (part, whole) = (
                    folder.join(format!(".{next}.part")),
                    folder.join(format!("{time}-{next:016x}.parquet")),
                );
                fs::write(&part, bytes)?;
                fs::rename(&part, &whole)?;
                made.fetch_add(count as u64, Ordering::Relaxed);
                next += 1;
            }
            if elapsed - told >= 1.0 {
                told = elapsed;
                lags.push(most());
                let line = json!({
                    "s": elapsed.round(), "made": made.load(Ordering::Relaxed), "shipped": sum(|status| status.shipped_rows as f64),
                    "waiting_files": sum(|status| status.waiting_files as f64), "lag_s": most(),
                    "retries": sum(|status| status.retries as f64),
                    "engine_mib": engine(at_begin).map(|(mib, _)| mib), "engine_cpu_s": engine(at_begin).map(|(_, cpu)| cpu),
                });
                println!("{line}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        over.store(true, Ordering::Relaxed);
        let elapsed = begun.elapsed().as_secs_f64();
        // The first half fills caches, and the lag of a place that keeps up does not grow in the second.
        let late = &mut lags[args.seconds as usize / 2..];
        late.sort_by(f64::total_cmp);
        let shipped = sum(|status| status.shipped_rows as f64);
        let line = json!({
            "probes": args.probes, "flows_per_probe": args.flows, "rotate_s": args.rotate, "file_bytes": file_bytes,
            "bytes_per_flow": file_bytes as f64 / count as f64, "offered_per_s": (args.probes * args.flows),
            "shipped_per_s": (shipped / elapsed).round(), "batches_per_s": sum(|status| status.batches as f64) / elapsed,
            "median_lag_s": late.get(late.len() / 2), "max_lag_s": late.last(), "retries": sum(|status| status.retries as f64),
            "waiting_files": sum(|status| status.waiting_files as f64), "engine_mib": engine(at_begin).map(|(mib, _)| mib),
            "engine_cpu_share": engine(at_begin).map(|(_, cpu)| cpu / elapsed),
        });
        println!("{line}");
        Ok(())
    })?;
    Ok(())
}
