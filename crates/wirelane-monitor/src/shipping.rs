//! `wirelane ship`: ships a store to its targets until a signal, until its input ends, or until everything is shipped.
//!
//! ```text
//! Opened: lock of the store, a connection for each target -- the caller drops its rights --> run
//!   a thread for each target: Shipper (wirelane-ship) -> Status -> standard output
//!   a thread that merges small files
//! ```

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use wirelane::escape::{printable, to_json};
use wirelane_ship::{Destination, Place, Secrets, Settings, Shipper, Status};
use wirelane_store::shipping::{Lock, Merged, Merger, Outbox};

use crate::out;

/// Time between two looks of a thread for new files, and for the end.
const LOOK: Duration = Duration::from_millis(200);
/// Failed attempts after which --once gives up.
const ATTEMPTS: u64 = 5;
/// Time between two searches for small files that can be merged.
const MERGE: Duration = Duration::from_secs(60);
/// Time that another shipper gets to end, as after a restart of its monitor.
const ENDING: Duration = Duration::from_secs(3);

/// When shipping ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At a signal.
    Signal,
    /// When everything is shipped that is there.
    Shipped,
    /// When standard input has ended and everything is shipped; signals do not end it.
    InputEnds,
}

/// A store with its targets, of which this process is the shipper.
pub struct Opened {
    settings: Settings,
    until: Until,
    destinations: Vec<(Place, Box<dyn Destination>)>,
    stop: Arc<AtomicBool>,
    _lock: Lock,
}

impl Opened {
    /// Takes the lock of the store, opens the targets, and catches signals. `passwords`: files with one for all targets, or one
    /// for each; `authorities`: a file with those to trust; `patience`: the limit of a request.
    ///
    /// # Errors
    /// If the store does not exist, another process ships it, or a target cannot be opened.
    pub fn open(
        settings: Settings,
        targets: Vec<Place>,
        passwords: &[PathBuf],
        authorities: Option<&Path>,
        patience: Duration,
        until: Until,
    ) -> Result<Opened> {
        let store = &settings.store;
        let is_store = wirelane_store::Table::ALL.iter().any(|table| store.join(table.name()).is_dir());
        ensure!(
            is_store,
            "{} is not a store: it has none of the folders flows, calls, transactions, ...",
            store.display()
        );
        let lock = locked(store)?;
        for place in &targets {
            Outbox::prepare(store, &place.name())?;
        }
        let mut destinations: Vec<(Place, Box<dyn Destination>)> = Vec::new();
        for (at, place) in targets.into_iter().enumerate() {
            let password = passwords.get(at).or(passwords.first().filter(|_| passwords.len() == 1));
            let secrets = Secrets::read(password.map(PathBuf::as_path), authorities)?;
            let destination = place.clone().open(&secrets, patience)?;
            destinations.push((place, destination));
        }
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            let flag = if until == Until::InputEnds { Arc::default() } else { Arc::clone(&stop) };
            signal_hook::flag::register(signal, flag).context("catching signals")?;
        }
        Ok(Opened { settings, until, destinations, stop, _lock: lock })
    }

    /// The targets.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.destinations.iter().map(|(place, _)| place)
    }

    /// Ships until the end, after privileges are dropped. Prints a line for each target at each interval.
    ///
    /// # Errors
    /// The state in the store is not valid, standard output fails, or not everything is shipped that has to be.
    pub fn run(self, interval: Duration, json: bool) -> Result<()> {
        let once = self.until == Until::Shipped;
        // Statuses may be shown before the first attempt has ended.
        let begin = |place: &Place| Status { to: place.to_string(), ..Status::default() };
        let boards: Vec<Mutex<Status>> = self.places().map(|place| Mutex::new(begin(place))).collect();
        let Opened { settings, until, destinations, stop, _lock } = self;
        let ending = Arc::new(AtomicBool::new(once));
        let merged = Merged::default();
        let open = |(place, destination): (Place, Box<dyn Destination>)| {
            Shipper::open(settings.clone(), &place, destination, merged.clone())
        };
        let shippers = destinations.into_iter().map(open);
        let shippers = shippers.collect::<wirelane_ship::Result<Vec<_>>>()?;
        if until == Until::InputEnds {
            let ending = Arc::clone(&ending);
            // It is not waited for: the process ends without it after a failure.
            std::thread::spawn(move || {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                ending.store(true, Ordering::Relaxed);
            });
        }
        let (merger, over) = (Merger::new(&settings.store, merged), AtomicBool::new(once));
        std::thread::scope(|scope| {
            let threads: Vec<_> = shippers
                .into_iter()
                .zip(&boards)
                .map(|(shipper, board)| scope.spawn(|| ship(shipper, once, &ending, &stop, board)))
                .collect();
            let merging = scope.spawn(|| merge(&merger, &over));
            let mut told = Instant::now();
            while !threads.iter().all(|thread| thread.is_finished()) {
                std::thread::sleep(LOOK);
                if told.elapsed() >= interval {
                    told = Instant::now();
                    if show(&boards, json).is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
            show(&boards, json)?;
            for thread in threads {
                match thread.join() {
                    Ok(result) => result?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            if merging.join().is_err() {
                bail!("the thread that merges files panicked; this is a bug");
            }
            if once {
                merger.pass(now_s(), &|| !stop.load(Ordering::Relaxed)).context("merging small files")?;
            }
            Ok(())
        })
    }
}

/// Takes the lock of the one shipper. One that ends gets a moment for it.
fn locked(store: &Path) -> Result<Lock> {
    let end = Instant::now() + ENDING;
    loop {
        let lock = Lock::shipper(store).with_context(|| format!("the store {}", store.display()))?;
        match lock {
            Some(lock) => return Ok(lock),
            None if Instant::now() < end => std::thread::sleep(LOOK),
            None => bail!(
                "another process ships the store {}: one process ships to several targets (--to ... --to ...)",
                store.display()
            ),
        }
    }
}

/// Seconds since 1970.
fn now_s() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs().cast_signed())
}

/// Merges small files from time to time, until it is over.
fn merge(merger: &Merger, over: &AtomicBool) {
    let goes_on = || !over.load(Ordering::Relaxed);
    let (mut last, mut failed) = (Instant::now(), false);
    while goes_on() {
        std::thread::sleep(LOOK);
        if last.elapsed() < MERGE {
            continue;
        }
        last = Instant::now();
        match merger.pass(now_s(), &goes_on) {
            Ok(_) => failed = false,
            Err(error) if !failed => {
                failed = true;
                let error = error.to_string();
                tracing::warn!("small files are not merged: {}; it is tried again", printable(&error));
            }
            Err(_) => {}
        }
    }
}

/// Ships to one target until it is stopped, or until the end, when everything that waits is due.
fn ship(
    mut shipper: Shipper,
    once: bool,
    ending: &AtomicBool,
    stop: &AtomicBool,
    board: &Mutex<Status>,
) -> Result<()> {
    let mut failures = 0;
    loop {
        let ends = ending.load(Ordering::Relaxed);
        let result = shipper.step(ends);
        let status = shipper.status()?;
        *board.lock().unwrap_or_else(PoisonError::into_inner) = status.clone();
        let delay = match result {
            Ok(true) => {
                failures = 0;
                Duration::ZERO
            }
            Ok(false) if ends => return Ok(()),
            Ok(false) => LOOK,
            Err(error) => {
                failures += 1;
                if once && (error.is_final() || failures >= ATTEMPTS) {
                    let files = wirelane_screen::table::counted(status.waiting_files, "file");
                    bail!("{files} not shipped to {}: {error}", status.to);
                }
                if failures == 1 {
                    tracing::warn!("{}: {}; it is tried again", status.to, printable(&error.to_string()));
                }
                // The next process goes on.
                if ends && !once {
                    return Ok(());
                }
                shipper.delay()
            }
        };
        let until = Instant::now() + delay;
        let waits = || {
            Instant::now() < until && !stop.load(Ordering::Relaxed) && ending.load(Ordering::Relaxed) == ends
        };
        while waits() {
            std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

/// Prints a line for each target.
fn show(boards: &[Mutex<Status>], json: bool) -> Result<()> {
    for board in boards {
        let status = board.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut line = match json {
            true => to_json(&status)?,
            false => {
                let error = status.error.map(|error| format!("; {}", printable(&error))).unwrap_or_default();
                format!(
                    "{}: {} rows in {} batches shipped, {} files ({} bytes) wait, lag {:.1} s, {} retries{error}",
                    printable(&status.to),
                    status.shipped_rows,
                    status.batches,
                    status.waiting_files,
                    status.waiting_bytes,
                    status.lag_s,
                    status.retries
                )
            }
        };
        line.push('\n');
        out::print(line)?;
    }
    Ok(())
}
