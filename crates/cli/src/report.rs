//! What a capturing command shows: a line per interval, and the ledger at the end, for people or as JSON.

use std::io::{Write, stderr, stdout};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use wirelane::ledger::Counters;
use wirelane::{Capture, HookPoint, Ledger};

use crate::session::Reporter;
use crate::table::{Table, amount, printable, rate};

/// Where a report goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, for results.
    Stdout,
    /// Standard error, where standard output holds the recording.
    Stderr,
}

/// One object of `--json`.
#[derive(Serialize)]
struct Object<'a> {
    r#final: bool,
    engine: &'a str,
    duration_s: f64,
    /// Of what was analysed, over `duration_s`.
    pps: f64,
    bps: f64,
    #[serde(flatten)]
    ledger: &'a Ledger,
}

/// Shows intervals and the end, for people or as JSON.
pub struct Report {
    stream: Stream,
    json: bool,
    engine: &'static str,
    before: Option<Ledger>,
    last: Duration,
}

impl Report {
    /// A report that has shown nothing yet.
    pub fn new(json: bool, engine: &'static str, stream: Stream) -> Report {
        Report { stream, json, engine, before: None, last: Duration::ZERO }
    }

    /// The last object, or the ledger as a table.
    pub fn last(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        if self.json {
            self.object(ledger, elapsed, true)
        } else {
            self.say(&ledger_text(ledger, elapsed, self.engine))
        }
    }

    /// Something for people.
    pub fn say(&self, text: &str) -> Result<()> {
        match self.stream {
            Stream::Stdout => {
                let mut out = stdout().lock();
                out.write_all(text.as_bytes())
                    .and_then(|()| out.flush())
                    .context("writing to standard output")
            }
            Stream::Stderr => stderr().write_all(text.as_bytes()).context("writing to standard error"),
        }
    }

    /// One JSON object on a line.
    fn json_line(&self, object: &impl Serialize) -> Result<()> {
        self.say(&(serde_json::to_string(object)? + "\n"))
    }

    fn object(&self, ledger: &Ledger, duration: Duration, r#final: bool) -> Result<()> {
        let duration_s = duration.as_secs_f64();
        let (pps, bps) = speed(&ledger.total, duration);
        self.json_line(&Object { r#final, engine: self.engine, duration_s, pps, bps, ledger })
    }
}

impl Reporter for Report {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        #[derive(Serialize)]
        struct Ready<'a> {
            ready: bool,
            engine: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            engine_reason: Option<&'a str>,
            devices: Vec<wirelane::CaptureDevice>,
        }
        let devices = capture.devices();
        if self.json {
            return self.json_line(&Ready {
                ready: true,
                engine: self.engine,
                engine_reason: capture.engine_reason(),
                devices,
            });
        }
        let names: Vec<String> = devices
            .iter()
            .map(|device| match device.hook {
                Some(HookPoint::TcEgress) => format!("{} (transmitted, tc egress)", device.name),
                Some(HookPoint::PacketSocketOut) => format!("{} (transmitted, packet sockets)", device.name),
                Some(hook) => {
                    let copy = match device.zero_copy {
                        Some(true) => ", zero copy",
                        Some(false) => ", the kernel copies",
                        None => "",
                    };
                    let plural = if device.queues.len() == 1 { "" } else { "s" };
                    format!("{} ({} RX queue{plural}, {hook}{copy})", device.name, device.queues.len())
                }
                None => device.name.clone(),
            })
            .collect();
        // The interfaces of a file are not known before its packets.
        let colon = if names.is_empty() { "" } else { ": " };
        self.say(&format!("engine {}{colon}{}\n", self.engine, printable(&names.join(", "))))
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        let since = since(ledger, self.before.as_ref());
        let duration = elapsed - self.last;
        if self.json {
            self.object(&since, duration, false)?;
        } else {
            let mut table = Table::new(["", "packets", "pps", "bit/s", "filtered", "shed", "lost", "missed"]);
            let total = ("total".to_owned(), &since.total);
            let lines = since.virtual_devices.iter().map(|line| (shown(&line.name()), &line.counters));
            for (name, counters) in lines.chain([total]) {
                let (pps, bps) = speed(counters, duration);
                table.row([
                    name,
                    amount(counters.analysed),
                    rate(pps),
                    rate(bps),
                    amount(counters.filtered),
                    amount(counters.shed),
                    amount(counters.lost),
                    counters.nic_missed.map_or_else(|| "-".into(), amount),
                ]);
            }
            self.say(&format!("\n{:.1} s\n{table}", elapsed.as_secs_f64()))?;
        }
        self.before = Some(ledger.clone());
        self.last = elapsed;
        Ok(())
    }
}

/// The ledger as people read it.
fn ledger_text(ledger: &Ledger, elapsed: Duration, engine: &str) -> String {
    let mut table = Table::new([
        "ledger",
        "seen",
        "filtered",
        "absorbed",
        "shed",
        "lost",
        "delivered",
        "analysed",
        "in flight",
        "bytes",
    ]);
    let mut row = |name: String, c: &Counters| {
        table.row([
            name,
            amount(c.seen),
            amount(c.filtered),
            amount(c.absorbed),
            amount(c.shed),
            amount(c.lost),
            amount(c.delivered),
            amount(c.analysed),
            amount(c.in_flight),
            amount(c.bytes),
        ]);
    };
    for line in &ledger.virtual_devices {
        row(shown(&line.name()), &line.counters);
    }
    if ledger.workers.len() > 1 {
        for line in &ledger.workers {
            row(format!("worker {}", line.worker), &line.counters);
        }
    }
    row("total".into(), &ledger.total);
    let (pps, bps) = speed(&ledger.total, elapsed);
    let missed = match ledger.total.nic_missed {
        Some(missed) => format!("{} missed by the card; ", amount(missed)),
        None => String::new(),
    };
    let causes: Vec<String> = ledger
        .lost_by
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(cause, n)| format!("{} {cause}", amount(*n)))
        .collect();
    let causes =
        if causes.is_empty() { String::new() } else { format!("lost by cause: {}; ", causes.join(", ")) };
    let balance = if ledger.balances() { "the ledger balances" } else { "THE LEDGER DOES NOT BALANCE" };
    format!(
        "\n{table}{} packets analysed in {:.3} s by engine {engine}: {} packets/s, {} bit/s\n{causes}{missed}{balance}\n",
        amount(ledger.total.analysed),
        elapsed.as_secs_f64(),
        rate(pps),
        rate(bps),
    )
}

/// A virtual device as a table shows it. An interface of a file that names none has the file's path: its end is
/// enough.
fn shown(name: &str) -> String {
    printable(name.rsplit('/').next().unwrap_or(name)).into_owned()
}

/// Packets and bits a second of what was analysed.
fn speed(counters: &Counters, duration: Duration) -> (f64, f64) {
    let seconds = duration.as_secs_f64();
    if seconds == 0.0 {
        return (0.0, 0.0);
    }
    (counters.analysed as f64 / seconds, counters.bytes as f64 * 8.0 / seconds)
}

/// What happened between two ledgers of the same capture.
fn since(now: &Ledger, before: Option<&Ledger>) -> Ledger {
    let mut since = now.clone();
    let Some(before) = before else { return since };
    since.total = now.total.since(&before.total);
    for line in &mut since.virtual_devices {
        let same = before
            .virtual_devices
            .iter()
            .find(|b| b.device == line.device && b.queue == line.queue && b.egress == line.egress);
        if let Some(same) = same {
            line.counters = line.counters.since(&same.counters);
        }
    }
    for (cause, packets) in &mut since.lost_by {
        *packets -= before.lost_by.get(cause).copied().unwrap_or(0);
    }
    for (line, same) in since.workers.iter_mut().zip(&before.workers) {
        line.counters = line.counters.since(&same.counters);
        line.sleeps -= same.sleeps;
        line.wakes -= same.wakes;
    }
    since
}
