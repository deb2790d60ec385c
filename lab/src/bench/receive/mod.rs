//! Small receivers for comparison with ours, each a process of its own (`wirelane-testbed receive KIND`), so that CPU
//! time is measured in the same way for all; and ours with selectable analyses, built on the library (`ring`).
//!
//! Each receives packets until SIGTERM or SIGINT and then the remaining ones, and prints its counters and those of its
//! socket as one JSON object.

mod drop;
mod packet;
mod ring;
pub(super) mod sys;
mod xsk;

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use wirelane_send::Interface;

/// One receiver.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which
    #[arg(value_enum)]
    kind: Kind,
    /// The device; for `ring` also a virtual device
    device: String,
    /// Size of its buffer in MiB
    #[arg(long, default_value_t = 4)]
    buffer: u32,
    /// Frames may be larger than a page
    #[arg(long)]
    jumbo: bool,
    /// A thread for each of these cores, which may be named twice: workers, or sockets
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// How sockets share the packets
    #[arg(long, value_enum)]
    fanout: Option<packet::Fanout>,
    #[command(flatten)]
    ring: ring::RingArgs,
}

/// The receivers in this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// An XDP program that counts and drops
    Drop,
    /// The same, reading a word of each packet
    DropRead,
    /// AF_XDP in copy mode, asleep in poll(2) while there is nothing
    XskPoll,
    /// AF_XDP in copy mode, never asleep
    XskBusy,
    /// AF_PACKET with TPACKET_V3
    Packet,
    /// Wirelane's ring engine on native XDP, by the library
    Ring,
}

/// Counters of a receiver; absent ones are not available from its interface.
#[derive(Clone, Debug, Default, Serialize)]
struct Counts {
    /// Packets that reached the receiver's hook in the kernel.
    seen: Option<u64>,
    /// Packets that were received.
    received: u64,
    /// Packets lost according to the receiver's own counters.
    lost: u64,
    /// Packets that a filter or rule rejected.
    filtered: u64,
    /// Packets that a rule counted and did not deliver.
    absorbed: u64,
    /// Packets rejected by congestion control.
    shed: u64,
    /// Figures that only our receiver has, by name.
    figures: BTreeMap<&'static str, f64>,
}

/// Time without packets after the signal until a receiver ends.
const QUIET: Duration = Duration::from_millis(20);

/// End condition: a signal, and no packets since.
struct End {
    signal: Arc<AtomicBool>,
    /// Latest known time of a received packet; `None` before the signal.
    last: Option<Instant>,
}

impl End {
    fn new() -> Result<End> {
        let signal = Arc::new(AtomicBool::new(false));
        for number in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::flag::register(number, Arc::clone(&signal)).context("catching signals")?;
        }
        Ok(End { signal, last: None })
    }

    /// Call only when there was no packet to receive: it reads a clock.
    fn reached(&mut self, took_since: bool) -> bool {
        if !self.signal.load(Ordering::Relaxed) {
            return false;
        }
        match self.last {
            Some(last) if !took_since => last.elapsed() >= QUIET,
            _ => {
                self.last = Some(Instant::now());
                false
            }
        }
    }
}

/// Receives until a signal, and prints the counters.
pub fn run(args: &Args) -> Result<()> {
    let mut end = End::new()?;
    if args.kind == Kind::Ring {
        return told(&ring::run(args, &end)?);
    }
    let interface = Interface::find(&args.device)?;
    told(&match args.kind {
        Kind::Drop => drop::run(interface.index, false, &mut end)?,
        Kind::DropRead => drop::run(interface.index, true, &mut end)?,
        Kind::XskPoll => xsk::run(&interface, args, false, &mut end)?,
        Kind::XskBusy => xsk::run(&interface, args, true, &mut end)?,
        Kind::Packet => packet::run(&interface, args, &mut end)?,
        Kind::Ring => unreachable!("served above"),
    })
}

fn told(counts: &Counts) -> Result<()> {
    writeln!(stdout(), "{}", serde_json::to_string(counts)?).context("writing to standard output")
}

/// Serves each socket by a thread on its core, from `ready` on; returns the sums of the counters.
fn each_on_its_core<S: Send>(
    sockets: Vec<S>,
    cores: &[usize],
    serve: impl Fn(S, &mut End) -> Result<Counts> + Sync,
) -> Result<Counts> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (socket, core) in sockets.into_iter().zip(cores) {
            let mut end = End::new()?;
            let serve = &serve;
            threads.push(scope.spawn(move || {
                pin(*core)?;
                serve(socket, &mut end)
            }));
        }
        ready()?;
        let mut sum = Counts::default();
        for thread in threads {
            let counts = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            sum.seen = counts.seen.map(|seen| seen + sum.seen.unwrap_or(0));
            sum.received += counts.received;
            sum.lost += counts.lost;
        }
        Ok(sum)
    })
}

fn ready() -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{{\"ready\": true}}").and_then(|()| out.flush()).context("writing to standard output")
}

/// Sleeps until a socket is readable, a signal arrives, or the time is over.
fn wait_readable(socket: BorrowedFd<'_>, timeout: Duration) -> Result<()> {
    let timeout = Timespec::try_from(timeout)?;
    match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("poll"),
    }
}

/// Pins the calling thread to one core.
pub fn pin(core: usize) -> Result<()> {
    wirelane_netdev::sys::set_affinity(0, &[core].into())
        .with_context(|| format!("core {core} cannot be used: see --cores"))
}
