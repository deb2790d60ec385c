//! The peers that are no program of their own: each as small as such a receiver is usually written. A receiver
//! runs in a process of its own (`wirelane-bench receive KIND -i DEV`), says `{"ready": true}`, counts until
//! SIGTERM, and then gives one object with what it received and what its kernel side says it dropped.

mod count_drop;
mod packet;
mod ring;
mod socket;
mod xsk;

use std::io::{Write, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

/// How long a receiver waits in poll(2) before it looks whether it is to end.
const POLL: Duration = Duration::from_millis(50);

/// The kinds of receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Counts in XDP and drops.
    Drop,
    /// One AF_XDP socket in copy mode that sleeps in poll(2) when it is idle.
    Xsk,
    /// The same, but it never sleeps.
    XskBusy,
    /// One AF_PACKET socket with a ring of TPACKET_V3 blocks.
    Packet,
}

/// What a receiver found.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    received: u64,
    dropped: u64,
}

/// When to stop.
struct Stop(Arc<AtomicBool>);

impl Stop {
    fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Receives on `device` until SIGTERM or SIGINT; `jumbo` where frames are larger than a page.
///
/// # Errors
/// Where the kernel refuses the program, the socket or the ring.
pub fn run(kind: Kind, device: &str, jumbo: bool) -> Result<()> {
    let stop = Stop(Arc::new(AtomicBool::new(false)));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop.0)).context("catching signals")?;
    }
    let index = socket::interface_index(device).with_context(|| format!("no device {device}"))?;
    let counts = match kind {
        Kind::Drop => count_drop::run(index, &stop),
        Kind::Xsk => xsk::run(index, jumbo, false, &stop),
        Kind::XskBusy => xsk::run(index, jumbo, true, &stop),
        Kind::Packet => packet::run(index, &stop),
    }?;
    say(&serde_json::json!({
        "final": true, "received": counts.received, "dropped": counts.dropped
    }))
}

fn ready() -> Result<()> {
    say(&serde_json::json!({ "ready": true }))
}

fn say(object: &serde_json::Value) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{object}").and_then(|()| out.flush()).context("writing to standard output")
}
