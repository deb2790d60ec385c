//! A sensor that captures packets and spins for each: a stand-in for a probe in user space.
//!
//! ```text
//! libpcap or ring --> capture threads --> analysis in the same thread
//!                                     \-> queue of limited length --> analysis threads
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use wirelane::{Builder, Selector};

use super::out;
use super::waiting::Waiting;
use super::{SensorArgs, Source};

/// Maximum delay of packets in libpcap and in a ring, in milliseconds.
const TIMEOUT: i32 = 100;
/// Captured bytes of a packet: all.
const SNAP: i32 = 262_144;

/// Counters of packets.
struct Account {
    seen: u64,
    captured: u64,
    lost: u64,
}

/// The analysis of packets: at once, or by threads that a queue leads to.
struct Analysis {
    loops: u32,
    queue: Option<Waiting>,
    /// Packets that were analysed at once.
    analysed: AtomicU64,
}

impl Analysis {
    /// Analyses a packet, or puts it into the queue, which may be full.
    fn add(&self, packet: &[u8]) {
        match &self.queue {
            Some(queue) => queue.add(packet),
            None => {
                wirelane::spin(self.loops);
                // Relaxed: a count, which is read after the threads have been joined.
                self.analysed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes packets out of the queue until it is closed and empty; their number.
    fn work(&self) -> u64 {
        let Some(queue) = &self.queue else { return 0 };
        let (mut taken, mut batch) = (0, Vec::new());
        while queue.take(&mut batch) {
            for _ in &batch {
                wirelane::spin(self.loops);
                taken += 1;
            }
        }
        taken
    }
}

/// Captures until SIGINT, SIGTERM or SIGHUP, and prints its counters.
pub fn run(args: &SensorArgs) -> Result<()> {
    let queue = args.queue.map(|limit| Waiting::new(limit as usize));
    let analysis = Analysis { loops: args.loops, queue, analysed: AtomicU64::new(0) };
    // Of the CPUs that the process may use.
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (Account { seen, captured, lost }, analysed) = thread::scope(|scope| -> Result<(Account, u64)> {
        let workers: Vec<_> =
            (0..threads).filter(|_| args.queue.is_some()).map(|_| scope.spawn(|| analysis.work())).collect();
        let account = match args.source {
            Source::Libpcap => libpcap(args, &analysis),
            Source::Ring => ring(args, threads, &analysis),
        };
        if let Some(queue) = &analysis.queue {
            queue.close();
        }
        let taken: Vec<u64> = workers.into_iter().map(joined).collect::<Result<_>>()?;
        let analysed = taken.iter().sum::<u64>() + analysis.analysed.load(Ordering::Relaxed);
        Ok((account?, analysed))
    })?;
    let last =
        json!({ "final": true, "seen": seen, "captured": captured, "analysed": analysed, "lost": lost });
    out::print(format!("{last}\n"))
}

/// Captures by libpcap, with threads that take turns at one handle.
fn libpcap(args: &SensorArgs, analysis: &Analysis) -> Result<Account> {
    let buffer = i32::try_from(args.buffer << 20).unwrap_or(i32::MAX);
    let capture = pcap::Capture::from_device(args.interface.as_str()).context("libpcap")?;
    let capture = capture.promisc(true).snaplen(SNAP).timeout(TIMEOUT).buffer_size(buffer).open();
    let mut capture = capture.with_context(|| format!("libpcap on {}", args.interface))?;
    // libpcap sleeps until packets come, whatever its timeout is.
    let stop = Arc::new(AtomicBool::new(false));
    let (wakes, stopped) = (capture.breakloop_handle(), Arc::clone(&stop));
    on_signal(move || {
        // Relaxed: the flag guards no data; libpcap's own flag wakes the reader.
        stopped.store(true, Ordering::Relaxed);
        wakes.breakloop();
    })?;
    out::print(format!("{}\n", json!({ "ready": true })))?;
    let shared = Mutex::new(capture);
    let read = || -> Result<u64> {
        let (mut captured, mut copy) = (0, Vec::new());
        loop {
            {
                let Ok(mut capture) = shared.lock() else { return Ok(captured) };
                if stop.load(Ordering::Relaxed) {
                    return Ok(captured);
                }
                match capture.next_packet() {
                    // Another thread's call makes the packet invalid.
                    Ok(packet) if args.threads > 1 => {
                        copy.clear();
                        copy.extend_from_slice(packet.data);
                    }
                    Ok(packet) => {
                        analysis.add(packet.data);
                        captured += 1;
                        continue;
                    }
                    Err(pcap::Error::TimeoutExpired) => continue,
                    Err(pcap::Error::NoMorePackets) if stop.load(Ordering::Relaxed) => continue,
                    Err(error) => {
                        return Err(error).with_context(|| format!("libpcap on {}", args.interface));
                    }
                }
            }
            analysis.add(&copy);
            captured += 1;
        }
    };
    let captured = thread::scope(|scope| -> Result<u64> {
        let readers: Vec<_> = (0..args.threads).map(|_| scope.spawn(read)).collect();
        let counts = readers.into_iter().map(|reader| joined(reader)?);
        Ok(counts.collect::<Result<Vec<u64>>>()?.into_iter().sum())
    })?;
    let mut capture = shared.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let stats = capture.stats().context("libpcap's counters")?;
    Ok(Account { seen: u64::from(stats.received), captured, lost: u64::from(stats.dropped) })
}

/// Captures by the library, with a worker for each thread; packets do not reach the host.
fn ring(args: &SensorArgs, threads: usize, analysis: &Analysis) -> Result<Account> {
    let builder = Builder::new(Selector::parse_list(&args.interface)?).workers(threads).exclusive(true);
    let mut capture = builder.ring_size((args.buffer as usize) << 20).open()?;
    let workers = capture.workers();
    let (send, signals) = std::sync::mpsc::channel();
    on_signal(move || {
        let _ = send.send(());
    })?;
    out::print(format!("{}\n", json!({ "ready": true })))?;
    let captured = thread::scope(|scope| -> Result<u64> {
        let read = |mut worker: wirelane::Worker| -> Result<u64> {
            let mut captured = 0;
            while let Some(batch) = worker.next_batch(Duration::from_millis(TIMEOUT as u64))? {
                for record in batch {
                    analysis.add(record.data());
                    captured += 1;
                }
            }
            Ok(captured)
        };
        let readers: Vec<_> = workers.into_iter().map(|worker| scope.spawn(move || read(worker))).collect();
        signals.recv().context("waiting for a signal")?;
        capture.stop()?;
        let counts = readers.into_iter().map(|reader| joined(reader)?);
        Ok(counts.collect::<Result<Vec<u64>>>()?.into_iter().sum())
    })?;
    let total = capture.close()?.total;
    Ok(Account { seen: total.seen, captured, lost: total.lost })
}

/// The result of a thread.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))
}

/// Calls `stop` at the first signal that ends the program.
fn on_signal(mut stop: impl FnMut() + Send + 'static) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("catching signals")?;
    thread::spawn(move || signals.forever().for_each(|_| stop()));
    Ok(())
}
