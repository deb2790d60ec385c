//! One run of a capturing command: workers in their threads, intervals, signals, the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use wirelane::{Capture, Ledger, Record, Worker};

use crate::source::SourceArgs;

/// What a command does with the records of one worker.
pub trait Handler: Send {
    /// One record.
    fn record(&mut self, record: &Record<'_>) -> Result<()>;
    /// A batch has ended; `idle`: there was nothing in it, the wait was in vain.
    fn pause(&mut self, _idle: bool) -> Result<()> {
        Ok(())
    }
    /// There will be no more.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What a command shows.
pub trait Reporter {
    /// Packets are captured from now on.
    fn ready(&mut self, capture: &Capture) -> Result<()>;
    /// An interval has ended: the ledger now, and how long it is since the start.
    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()>;
}

/// How a run ended.
pub struct Outcome {
    /// The final ledger.
    pub ledger: Ledger,
    /// From ready to the end.
    pub elapsed: Duration,
    /// What went wrong, after which the ledger is still exact.
    pub failure: Option<anyhow::Error>,
}

/// Why the main thread wakes.
enum Event {
    Signal,
    WorkerEnded(Result<()>),
}

/// Runs the capture until its limits, a signal, or its end.
pub fn run<H: Handler>(
    mut capture: Capture,
    args: &SourceArgs,
    mut handler: impl FnMut(&Worker) -> Result<H>,
    reporter: &mut dyn Reporter,
) -> Result<Outcome> {
    let (events, inbox) = mpsc::channel();
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).context("installing signal handlers")?;
    let handle = signals.handle();
    let on_signal = events.clone();
    let watcher = std::thread::Builder::new().name("wl-signals".into()).spawn(move || {
        for _ in &mut signals {
            if on_signal.send(Event::Signal).is_err() {
                break;
            }
        }
    })?;

    let budget = args.packets.map(AtomicU64::new);
    let enough = AtomicBool::new(budget.as_ref().is_some_and(|left| left.load(Ordering::Relaxed) == 0));
    let workers = capture.workers();
    let mut running = workers.len();
    let start = Instant::now();
    reporter.ready(&capture)?;
    let mut failure = None;
    let elapsed = std::thread::scope(|scope| -> Result<Duration> {
        for worker in workers {
            let handler = handler(&worker)?;
            let (budget, enough, events) = (budget.as_ref(), &enough, events.clone());
            std::thread::Builder::new().name(format!("wl-worker-{}", worker.index())).spawn_scoped(
                scope,
                move || {
                    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        work(worker, handler, budget, enough)
                    }));
                    let result = result.unwrap_or_else(|_| Err(anyhow!("a worker panicked; this is a bug")));
                    // The main thread outlives the scope.
                    let _ = events.send(Event::WorkerEnded(result));
                },
            )?;
        }
        let mut next = start + args.interval;
        let end = args.duration.map(|duration| start + duration);
        let mut stopped = None;
        while running > 0 {
            let now = Instant::now();
            if stopped.is_none() && end.is_some_and(|end| now >= end) {
                stopped = Some(now);
                capture.stop()?;
            }
            if stopped.is_none() && now >= next {
                reporter.interval(&capture.ledger()?, now - start)?;
                next += args.interval;
                continue;
            }
            let wake = end.filter(|_| stopped.is_none()).map_or(next, |end| end.min(next));
            let wait =
                if stopped.is_some() { Duration::from_secs(1) } else { wake.saturating_duration_since(now) };
            match inbox.recv_timeout(wait) {
                Ok(Event::Signal) => {
                    stopped.get_or_insert_with(Instant::now);
                    capture.stop()?;
                }
                Ok(Event::WorkerEnded(result)) => {
                    running -= 1;
                    if let Err(error) = result {
                        failure.get_or_insert(error);
                    }
                    // One that failed or has had enough ends all.
                    stopped.get_or_insert_with(Instant::now);
                    capture.stop()?;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the capture's threads are gone; this is a bug"),
            }
        }
        Ok(stopped.unwrap_or_else(Instant::now) - start)
    })?;
    handle.close();
    if watcher.join().is_err() {
        bail!("the signal thread panicked; this is a bug");
    }
    for (device, ending) in capture.ended() {
        failure.get_or_insert_with(|| anyhow!("device {device} {ending}"));
    }
    let ledger = capture.close()?;
    if !ledger.balances() {
        failure
            .get_or_insert_with(|| anyhow!("the ledger does not balance; this is a bug: please report it"));
    }
    Ok(Outcome { ledger, elapsed, failure })
}

/// The life of one worker's thread.
fn work<H: Handler>(
    mut worker: Worker,
    mut handler: H,
    budget: Option<&AtomicU64>,
    enough: &AtomicBool,
) -> Result<()> {
    worker.pin()?;
    while !enough.load(Ordering::Relaxed) {
        let Some(batch) = worker.next_batch(Duration::from_millis(100))? else { break };
        let idle = batch.is_empty();
        match budget {
            None => {
                for record in batch {
                    handler.record(&record)?;
                }
            }
            Some(left) => {
                // Counted down before a record is yielded, so that exactly as many are.
                let mut batch = batch;
                while !batch.is_empty() && claim(left) {
                    if let Some(record) = batch.next() {
                        handler.record(&record)?;
                    }
                }
                if left.load(Ordering::Relaxed) == 0 {
                    enough.store(true, Ordering::Relaxed);
                }
            }
        }
        handler.pause(idle)?;
    }
    handler.finish()
}

/// Takes one of what is left. False: nothing is.
fn claim(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
}
