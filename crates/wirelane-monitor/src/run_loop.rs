//! Run loop of a capturing command: worker threads, intervals, signals, the end.

mod change;
mod mailbox;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use wirelane::{Capture, CaptureDevice, Ledger, RuleStats, Worker};

pub use change::{Change, FlowChange, FlowLimits};
pub use mailbox::Mailbox;
pub use wirelane_export::pipeline::Handler;

use crate::advice::{self, Advisor, Expected};
use crate::status::{Status, WorkerLoad};

/// Output of a command during the capture.
pub trait Reporter {
    /// Called when the capture has started.
    fn ready(&mut self, capture: &Capture) -> Result<()>;
    /// Called once, before the start, with the way of requests of other threads to this one.
    fn begin(&mut self, _mailbox: &Mailbox) -> Result<()> {
        Ok(())
    }
    /// The flag that is set before the first worker finishes what it has gathered.
    fn ending(&self) -> Arc<AtomicBool> {
        Arc::default()
    }
    /// Called before the end of an interval is reported, with the load of each worker in it.
    fn load(&mut self, _workers: &[WorkerLoad]) {}
    /// Called at SIGHUP with [`OnHangup::Tell`].
    fn hangup(&mut self) {}
    /// The status of the run, for [`Mailbox::status`].
    fn status(&mut self, _ledger: &Ledger, _elapsed: Duration) -> Option<Status> {
        None
    }
    /// Called at the end of an interval, with the current ledger and the time since the start.
    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()>;
}

/// Result of a run.
pub struct Outcome {
    /// The final ledger.
    pub ledger: Ledger,
    /// Counters of the rules, if there are any.
    pub rules: Option<RuleStats>,
    /// Time from the start of the capture to the end.
    pub elapsed: Duration,
    /// The first failure; the ledger is still exact.
    pub failure: Option<anyhow::Error>,
}

impl Outcome {
    /// Adds a failure, unless there is one.
    pub fn fail(&mut self, failure: Option<anyhow::Error>) {
        self.failure = self.failure.take().or(failure);
    }
}

/// When a run reports and ends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time between two reports.
    pub interval: Duration,
    /// Time after which the run ends.
    pub duration: Option<Duration>,
    /// Packets after which the run ends.
    pub packets: Option<u64>,
    /// Effect of SIGHUP.
    pub on_hangup: OnHangup,
    /// Requests on which advice about a live capture depends; `None`: a file is read.
    pub live: Option<Expected>,
    /// Whether devices may end before the capture does, because a pattern has selected them; the last one may not.
    pub devices_may_end: bool,
}

/// Reason for the main thread to wake.
enum Event {
    Signal,
    Hangup,
    WorkerEnded(Result<()>),
    Status(SyncSender<Result<Status, String>>),
    Change(Box<Change>, SyncSender<Result<(), String>>),
}

/// Work of a worker so far. Relaxed: numbers that only have to differ from one interval to the next.
#[derive(Debug, Default)]
struct Meter {
    /// Number of batches, empty ones included.
    rounds: AtomicU64,
    /// Nanoseconds in which packets were handled.
    busy_ns: AtomicU64,
}

/// Minimum time before a second signal ends the program if the first one had no effect: a terminal and a parent such as
/// sudo may both pass on the same Ctrl-C.
const IMPATIENCE: Duration = Duration::from_millis(500);

/// Runs the capture until its limits, a signal, or its end. A failure after the start ends the capture and is part of
/// the outcome, so that its ledger is always shown.
pub fn run<H: Handler>(
    mut capture: Capture,
    limits: &Limits,
    handler: impl FnMut(&Worker) -> Result<H>,
    reporter: &mut dyn Reporter,
) -> Result<Outcome>
where
    H::Error: Into<anyhow::Error>,
{
    let (events, inbox) = mpsc::channel();
    watch_signals(events.clone(), limits.on_hangup)?;
    let workers = capture.workers();
    // Create all handlers before any thread runs, which would have to be stopped again.
    let handlers = workers.iter().map(handler).collect::<Result<Vec<_>>>()?;
    let budget = limits.packets.map(AtomicU64::new);
    let meters: Vec<Meter> = workers.iter().map(|_| Meter::default()).collect();
    reporter.begin(&Mailbox(events.clone()))?;
    let enough = AtomicBool::new(budget.as_ref().is_some_and(|left| left.load(Ordering::Relaxed) == 0));
    if let Some(expected) = limits.live {
        advice::at_start(&capture, expected);
    }
    let start = Instant::now();
    let ending = reporter.ending();
    reporter.ready(&capture)?;
    let (elapsed, mut failure) = std::thread::scope(|scope| {
        let mut running = 0;
        let mut failure = None;
        for ((worker, handler), meter) in workers.into_iter().zip(handlers).zip(&meters) {
            let (budget, ends, events) = (budget.as_ref(), (&enough, &*ending), events.clone());
            let advisor =
                limits.live.filter(|_| worker.index() == 0).map(|expected| Advisor::new(&capture, expected));
            let thread = std::thread::Builder::new().name(format!("wl-worker-{}", worker.index()));
            let spawned = thread.spawn_scoped(scope, move || {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    work(worker, handler, budget, (ends, meter), advisor)
                }));
                let result = result.unwrap_or_else(|_| Err(anyhow!("a worker panicked; this is a bug")));
                // The receiver is in the main thread, which outlives the scope.
                let _ = events.send(Event::WorkerEnded(result));
            });
            match spawned {
                Ok(_) => running += 1,
                // The capture must end, but the running workers have to be stopped.
                Err(error) => {
                    failure = Some(anyhow::Error::from(error).context("starting a worker's thread"));
                    break;
                }
            }
        }
        let mut run_loop = RunLoop {
            capture: &capture,
            stopped: None,
            failure,
            meters: &meters,
            before: vec![(0, 0); meters.len()],
            interval: limits.interval,
        };
        if run_loop.failure.is_some() {
            run_loop.stop();
        }
        run_loop.follow(running, start, limits, &inbox, reporter);
        (run_loop.stopped.unwrap_or_else(Instant::now) - start, run_loop.failure)
    });
    let ended = capture.ended();
    let has_ended = |device: &CaptureDevice| ended.iter().any(|(name, _)| *name == device.name);
    if !limits.devices_may_end || capture.devices().iter().all(has_ended) {
        for (device, ending) in &ended {
            failure.get_or_insert_with(|| anyhow!("device {device} {ending}"));
        }
    }
    capture.stop()?;
    // The counters are final now, and read before the capture is dropped. A failed read must not hide the ledger.
    let rules = capture.rule_stats().unwrap_or_else(|error| {
        failure.get_or_insert(error.into());
        None
    });
    let ledger = capture.close()?;
    if !ledger.balances() {
        failure
            .get_or_insert_with(|| anyhow!("the ledger does not balance; this is a bug: please report it"));
    }
    Ok(Outcome { ledger, rules, elapsed, failure })
}

/// Effect of SIGHUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHangup {
    /// Ends the capture, as SIGTERM does.
    End,
    /// Reopens logs and exports, as for logrotate; ends the capture if the terminal has hung up.
    Reopen,
    /// As `Reopen`, and also tells the reporter ([`Reporter::hangup`]).
    Tell,
    /// The command has its own handler, which reads its configuration again.
    Reload,
}

/// Converts signals to events, until the end of the process.
fn watch_signals(events: mpsc::Sender<Event>, on_hangup: OnHangup) -> Result<()> {
    let terminal = Controlling::open();
    let hangup: &[i32] = if on_hangup == OnHangup::Reload { &[] } else { &[SIGHUP] };
    let mut signals =
        signal_hook::iterator::Signals::new([&[SIGINT, SIGTERM, SIGUSR1, SIGUSR2], hangup].concat())
            .context("installing signal handlers")?;
    let watch = move || {
        let mut first: Option<Instant> = None;
        for signal in &mut signals {
            let reopens = match signal {
                SIGUSR1 | SIGUSR2 => true,
                SIGHUP => on_hangup != OnHangup::End && !terminal.is_gone(),
                _ => false,
            };
            if reopens {
                wirelane_export::append::reopen();
                if signal == SIGHUP && on_hangup == OnHangup::Tell {
                    // The receiver has ended only after the capture.
                    let _ = events.send(Event::Hangup);
                }
                continue;
            }
            match first {
                None => {
                    first = Some(Instant::now());
                    // The remaining work may take long with a slow disk or a slow command.
                    if events.send(Event::Signal).is_err() {
                        tracing::warn!(
                            "the capture is over and is being finished; another signal leaves that undone"
                        );
                    }
                }
                Some(first) if first.elapsed() < IMPATIENCE => {}
                Some(_) => {
                    tracing::warn!("a second signal: ended at once, with whatever is unfinished");
                    wirelane_screen::terminal::restore();
                    // The kernel takes everything back, as from any process that is killed.
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            }
        }
    };
    std::thread::Builder::new().name("wl-signals".into()).spawn(watch).context("watching for signals")?;
    Ok(())
}

/// The controlling terminal, opened at the start.
struct Controlling(Option<std::fs::File>);

impl Controlling {
    /// Opens the terminal, if the process has one.
    fn open() -> Controlling {
        Controlling(std::fs::File::open("/dev/tty").ok())
    }

    /// Whether there was a terminal and it has hung up.
    fn is_gone(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        self.0.as_ref().is_some_and(|terminal| {
            let mut fds = [PollFd::new(terminal, PollFlags::empty())];
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
        })
    }
}

/// The main thread's part of a run.
struct RunLoop<'a> {
    capture: &'a Capture,
    /// Time since which the capture is being stopped.
    stopped: Option<Instant>,
    /// The first failure.
    failure: Option<anyhow::Error>,
    /// Work of each worker, and its rounds and busy time at the end of the last interval.
    meters: &'a [Meter],
    before: Vec<(u64, u64)>,
    /// Time between two reports.
    interval: Duration,
}

impl RunLoop<'_> {
    /// The load of each worker since the last call, this long ago.
    fn load(&mut self, since: Duration) -> Vec<WorkerLoad> {
        let read =
            |meter: &Meter| (meter.rounds.load(Ordering::Relaxed), meter.busy_ns.load(Ordering::Relaxed));
        let now: Vec<(u64, u64)> = self.meters.iter().map(read).collect();
        let before = std::mem::replace(&mut self.before, now.clone());
        let load = |(worker, ((rounds, busy), (rounds_before, busy_before)))| WorkerLoad {
            worker,
            // A batch may have begun in the interval before.
            busy: ((busy - busy_before) as f64 / since.as_nanos().max(1) as f64).min(1.0),
            progress: rounds != rounds_before,
        };
        now.into_iter().zip(before).enumerate().map(load).collect()
    }

    /// Changes the capture, completely or not at all.
    fn change(&mut self, change: &Change) -> Result<(), String> {
        if self.stopped.is_some() {
            return Err("the capture has ended".to_owned());
        }
        change.apply(self.capture)?;
        self.interval = change.interval.unwrap_or(self.interval);
        Ok(())
    }

    /// Answers a request. Whoever has asked may have ended.
    fn answer(&mut self, event: Event, elapsed: Duration, reporter: &mut dyn Reporter) {
        match event {
            Event::Status(reply) => {
                let ledger = self.capture.ledger().map_err(|error| error.to_string());
                let none = || "this command has no status".to_owned();
                let status = ledger.and_then(|ledger| reporter.status(&ledger, elapsed).ok_or_else(none));
                let _ = reply.send(status);
            }
            Event::Change(change, reply) => {
                let _ = reply.send(self.change(&change));
            }
            Event::Hangup => reporter.hangup(),
            Event::Signal | Event::WorkerEnded(_) => {}
        }
    }

    fn stop(&mut self) {
        self.stopped.get_or_insert_with(Instant::now);
        if let Err(error) = self.capture.stop() {
            self.failure.get_or_insert(error.into());
        }
    }

    fn fail(&mut self, error: anyhow::Error) {
        self.failure.get_or_insert(error);
        self.stop();
    }

    /// Reports at every interval, and ends the capture at its limits, until all workers have ended.
    fn follow(
        &mut self,
        mut running: usize,
        start: Instant,
        limits: &Limits,
        inbox: &mpsc::Receiver<Event>,
        reporter: &mut dyn Reporter,
    ) {
        let mut next = start + self.interval;
        let mut reported = start;
        let end = limits.duration.map(|duration| start + duration);
        while running > 0 {
            let now = Instant::now();
            if self.stopped.is_none() {
                if end.is_some_and(|end| now >= end) {
                    self.stop();
                } else if now >= next {
                    reporter.load(&self.load(now - reported));
                    reported = now;
                    let shown = self
                        .capture
                        .ledger()
                        .map_err(Into::into)
                        .and_then(|ledger| reporter.interval(&ledger, now - start));
                    next = after(next, now, self.interval);
                    if let Err(error) = shown {
                        self.fail(error);
                    }
                    continue;
                }
            }
            let wait = match self.stopped {
                // Only the workers' end is still waited for.
                Some(_) => Duration::from_secs(3600),
                None => end.map_or(next, |end| end.min(next)).saturating_duration_since(now),
            };
            match inbox.recv_timeout(wait) {
                Ok(Event::Signal) => self.stop(),
                Ok(Event::WorkerEnded(result)) => {
                    running -= 1;
                    // A worker that has failed or finished ends all of them.
                    match result {
                        Ok(()) => self.stop(),
                        Err(error) => self.fail(error),
                    }
                }
                Ok(event) => {
                    let interval = self.interval;
                    self.answer(event, start.elapsed(), reporter);
                    if self.interval != interval {
                        next = Instant::now() + self.interval;
                    }
                }
                Err(_) => {}
            }
        }
    }
}

/// End of the interval after one that ended at `last` and was reported at `now`: a multiple of the interval after
/// `last`, without missed intervals.
fn after(last: Instant, now: Instant, interval: Duration) -> Instant {
    let missed = now.saturating_duration_since(last).as_nanos() / interval.as_nanos().max(1);
    // If the multiple cannot be computed, the intervals start again at `now`.
    let beats = u32::try_from(missed + 1).ok().and_then(|beats| interval.checked_mul(beats));
    beats.and_then(|beats| last.checked_add(beats)).unwrap_or(now + interval)
}

/// Main loop of one worker's thread. The handler is finished also after a fault of the capture, which is returned first.
fn work<H: Handler>(
    mut worker: Worker,
    mut handler: H,
    budget: Option<&AtomicU64>,
    ((enough, ending), meter): ((&AtomicBool, &AtomicBool), &Meter),
    mut advisor: Option<Advisor>,
) -> Result<()>
where
    H::Error: Into<anyhow::Error>,
{
    worker.pin()?;
    let mut failure = None;
    while !enough.load(Ordering::Relaxed) {
        let batch = match worker.next_batch(Duration::from_millis(100)) {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            // Results of the packets before the fault count: of a file that ends inside a packet, for example.
            Err(error) => {
                failure = Some(anyhow::Error::from(error));
                break;
            }
        };
        let idle = batch.is_empty();
        meter.rounds.fetch_add(1, Ordering::Relaxed);
        let began = (!idle).then(Instant::now);
        match budget {
            None => {
                for record in batch {
                    if advisor.as_mut().is_some_and(|advisor| !advisor.record(&record)) {
                        advisor = None;
                    }
                    handler.record(&record).map_err(Into::into)?;
                }
            }
            Some(left) => {
                // The budget is decremented before a record is taken, so that exactly this many are processed.
                let mut batch = batch;
                while !batch.is_empty() && claim(left) {
                    if let Some(record) = batch.next() {
                        handler.record(&record).map_err(Into::into)?;
                    }
                }
                if left.load(Ordering::Relaxed) == 0 {
                    enough.store(true, Ordering::Relaxed);
                }
            }
        }
        handler.pause(idle).map_err(Into::into)?;
        if let Some(began) = began {
            meter.busy_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }
    ending.store(true, Ordering::Relaxed);
    let finished = handler.finish().map_err(Into::into);
    failure.map_or(finished, Err)
}

/// Takes one from the budget. False: the budget is used up.
fn claim(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
}

#[cfg(test)]
mod tests;
