//! Notifications to the service manager (sd_notify(3)): readiness, state, and the watchdog.

use std::fmt::Write as _;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use wirelane::Ledger;
use wirelane::ledger::Counters;
use wirelane_screen::table::{amount, rate};

/// The notification socket of the service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    /// Whether the manager expects to hear from the service regularly.
    watchdog: bool,
    packets: u64,
    elapsed: Duration,
    /// Whether every worker made progress in the last interval.
    progress: bool,
}

impl Notifier {
    /// Connects to the socket that `NOTIFY_SOCKET` names, before privileges are dropped; `None`: no manager waits for
    /// notifications. `interval`: time between two of them.
    ///
    /// # Errors
    /// The socket cannot be reached, or the watchdog's time is too short for the interval.
    pub fn from_environment(interval: Duration) -> Result<Option<Notifier>> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
        let bytes = name.as_encoded_bytes();
        let address = match bytes.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&name),
        };
        let connect = |address: SocketAddr| -> io::Result<UnixDatagram> {
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            // A manager that does not read must not stop the capture.
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket =
            address.and_then(connect).context("connecting to the service manager (NOTIFY_SOCKET)")?;
        fits_watchdog(interval)?;
        let watchdog = watchdog().is_some();
        Ok(Some(Notifier { socket, watchdog, packets: 0, elapsed: Duration::ZERO, progress: true }))
    }

    /// Packets are being captured.
    pub fn ready(&self) {
        self.send("READY=1\nSTATUS=capturing\n");
    }

    /// The start waits for devices, and may take this much longer.
    pub fn waiting(&self, devices: &str, longer: Duration) {
        self.send(&format!("STATUS=waiting for {devices}\nEXTEND_TIMEOUT_USEC={}\n", longer.as_micros()));
    }

    /// Sends the state of an interval. `progress`: whether every worker has made progress; if one has not, the watchdog
    /// is not fed, and the log has the ledger, because the manager may end the process before it prints the ledger.
    pub fn interval(&mut self, ledger: &Ledger, elapsed: Duration, progress: bool) {
        let total = &ledger.total;
        let seconds = elapsed.saturating_sub(self.elapsed).as_secs_f64();
        let packets = total.analysed.saturating_sub(self.packets);
        (self.packets, self.elapsed) = (total.analysed, elapsed);
        let pps = if seconds > 0.0 { packets as f64 / seconds } else { 0.0 };
        let mut text = format!("STATUS={} packets/s, {} lost", rate(pps), amount(total.lost));
        if !progress {
            text += "; a worker makes no progress";
        }
        // With a watchdog the end is near.
        if !progress && (self.progress || self.watchdog) {
            tracing::warn!("a worker makes no progress; the ledger so far: {}", line(total));
        } else if progress && !self.progress {
            tracing::warn!("all workers make progress again");
        }
        self.progress = progress;
        text.push('\n');
        if self.watchdog && progress {
            let _ = writeln!(text, "WATCHDOG=1");
        }
        self.send(&text);
    }

    /// The capture ends, and outputs are being finished.
    pub fn stopping(&self) {
        self.send("STOPPING=1\n");
    }

    fn send(&self, text: &str) {
        if let Err(error) = self.socket.send(text.as_bytes()) {
            tracing::debug!("notifying the service manager: {error}");
        }
    }
}

/// All columns in one line.
fn line(total: &Counters) -> String {
    let Counters { seen, filtered, absorbed, shed, lost, delivered, analysed, .. } = total;
    format!(
        "seen {seen}, filtered {filtered}, absorbed {absorbed}, shed {shed}, lost {lost}, delivered {delivered}, \
         analysed {analysed}"
    )
}

/// Checks that the manager's watchdog, if there is one, is fed often enough with this interval.
///
/// # Errors
/// The watchdog's time is too short for the interval.
pub fn fits_watchdog(interval: Duration) -> Result<()> {
    if let Some(time) = watchdog().filter(|_| std::env::var_os("NOTIFY_SOCKET").is_some()) {
        ensure!(
            interval <= time / 2,
            "the interval of {} s is more than half of the watchdog's {} s: choose a shorter one, or a longer WatchdogSec",
            interval.as_secs_f64(),
            time.as_secs_f64()
        );
    }
    Ok(())
}

/// The time after which the manager ends a service that it has not heard of; `None`: it does not.
fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|_| ours).map(Duration::from_micros)
}
