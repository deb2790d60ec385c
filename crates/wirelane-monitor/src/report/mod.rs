//! Output of capturing commands: a table per interval and the ledger at the end, as text or JSON.

mod objects;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use wirelane::escape::to_json;
use wirelane::ledger::Counters;
use wirelane::{BalanceReport, Capture, EgressLine, HookPoint, Ledger, RuleStats};

pub use objects::Recorded;
use objects::{Analyses, Object};

use crate::flows::report::FlowsReport;
use crate::http::report::HttpReport;
use crate::out;
use crate::probe::report::ProbeReport;
use crate::receive::ReceiveReport;
use crate::run_loop::Reporter;
use crate::ship::ShipStatus;
use crate::voip::report::VoipReport;
use wirelane_screen::table::{Table, amount, counted, printable, rate};

/// Destination of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, for results.
    Stdout,
    /// Standard error, if the recording goes to standard output.
    Stderr,
    /// No report.
    Nowhere,
}

/// Reports intervals and the end, for people or as JSON.
pub struct Report {
    stream: Stream,
    json: bool,
    engine: &'static str,
    before: Option<Ledger>,
    last: Duration,
    recorded: Option<Recorded>,
    recorded_before: Option<Recorded>,
    rules: Option<RuleStats>,
    flows: Option<FlowsReport>,
    http: Option<HttpReport>,
    voip: Option<VoipReport>,
    probe: Option<ProbeReport>,
    receive: Option<ReceiveReport>,
    ship: Option<Vec<ShipStatus>>,
    /// Printed after the results of a recording, if those are text.
    closing: String,
    /// Whether several analyses share the capture.
    by_analysis: bool,
}

impl Report {
    /// A report without output so far.
    pub fn new(json: bool, engine: &'static str, stream: Stream) -> Report {
        Report {
            stream,
            json,
            engine,
            before: None,
            last: Duration::ZERO,
            recorded: None,
            recorded_before: None,
            rules: None,
            flows: None,
            http: None,
            voip: None,
            probe: None,
            receive: None,
            ship: None,
            closing: String::new(),
            by_analysis: false,
        }
    }

    /// Reports each analysis under its name, since several share the capture.
    #[must_use]
    pub fn by_analysis(mut self) -> Report {
        self.by_analysis = true;
        self
    }

    /// Sets the final counts of the rules, to be shown with the last ledger.
    pub fn ruled(&mut self, rules: Option<RuleStats>) {
        self.rules = rules;
    }

    /// Sets the final report of flows, to be shown with the last ledger.
    pub fn flows(&mut self, flows: FlowsReport) {
        self.flows = Some(flows);
    }

    /// Sets the final report of HTTP, to be shown with the last ledger.
    pub fn http(&mut self, http: HttpReport) {
        self.http = Some(http);
    }

    /// Sets the final report of calls, to be shown with the last ledger.
    pub fn voip(&mut self, voip: VoipReport) {
        self.voip = Some(voip);
    }

    /// Sets the final report of a probe, to be shown with the last ledger.
    pub fn probe(&mut self, probe: ProbeReport) {
        self.probe = Some(probe);
    }

    /// Sets the streams of numbered packets so far, to be shown with the next ledger.
    pub fn receive(&mut self, receive: ReceiveReport) {
        self.receive = Some(receive);
    }

    /// Sets the last status of each target of the store, to be shown with the last ledger.
    pub fn shipped(&mut self, targets: Vec<ShipStatus>) {
        self.ship = Some(targets);
    }

    /// Adds a line after the results of a recording, if those are printed as text.
    pub fn closing(&mut self, line: &str) {
        self.closing += line;
    }

    /// Sets the results of the recording so far, to be shown with the next ledger.
    pub fn recorded(&mut self, recorded: Recorded) {
        self.recorded = Some(recorded);
    }

    /// Prints the last JSON object, or the ledger as a table.
    pub fn last(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        if self.json {
            self.object(ledger, elapsed, self.recorded, true)
        } else {
            let recorded = self.recorded.map(|recorded| recorded_text(&recorded, elapsed));
            let rules = self.rules.as_ref().map(crate::rules::most_hit).unwrap_or_default();
            let parts = [
                ("record", recorded),
                ("flows", self.flows.as_ref().map(FlowsReport::text)),
                ("http", self.http.as_ref().map(HttpReport::text)),
                ("voip", self.voip.as_ref().map(VoipReport::text)),
                ("probe", self.probe.as_ref().map(ProbeReport::text)),
                ("receive", self.receive.as_ref().map(ReceiveReport::text)),
                ("ship", self.ship.as_ref().map(|targets| targets.iter().map(ShipStatus::text).collect())),
            ];
            let mut text = rules + &ledger_text(ledger, elapsed, self.engine);
            for (name, part) in parts {
                if let Some(part) = part {
                    text += &if self.by_analysis { format!("\n[{name}]\n") } else { String::new() };
                    text += &part;
                }
                if name == "record" {
                    text += &self.closing;
                }
            }
            self.say(&text)
        }
    }

    /// Prints text to the report's destination.
    pub fn say(&self, text: &str) -> Result<()> {
        match self.stream {
            Stream::Stdout => out::print(text),
            Stream::Stderr => out::print_aside(text),
            Stream::Nowhere => Ok(()),
        }
    }

    /// Prints one JSON object on a line.
    fn json_line(&self, object: &impl Serialize) -> Result<()> {
        self.say(&(to_json(object)? + "\n"))
    }

    fn object(
        &self,
        ledger: &Ledger,
        duration: Duration,
        recorded: Option<Recorded>,
        r#final: bool,
    ) -> Result<()> {
        let duration_s = duration.as_secs_f64();
        let (pps, bps) = speed(&ledger.total, duration);
        let file_bytes_per_s =
            recorded.map(
                |recorded| {
                    if duration_s > 0.0 { recorded.counts.file_bytes as f64 / duration_s } else { 0.0 }
                },
            );
        let engine = self.engine;
        let rule_stats = self.rules.as_ref().filter(|_| r#final);
        let (alone, end) = (!self.by_analysis, r#final);
        let analyses = Analyses {
            record: recorded,
            flows: self.flows.as_ref().filter(|_| end),
            http: self.http.as_ref().filter(|_| end),
            voip: self.voip.as_ref().filter(|_| end),
            probe: self.probe.as_ref().filter(|_| end),
            ship: self.ship.as_ref().filter(|_| end),
        };
        self.json_line(&Object {
            r#final,
            engine,
            duration_s,
            pps,
            bps,
            ledger,
            recorded: recorded.filter(|_| alone),
            rule_stats,
            flows: analyses.flows.filter(|_| alone),
            http: analyses.http.filter(|_| alone),
            voip: analyses.voip.filter(|_| alone),
            probe: analyses.probe.filter(|_| alone),
            receive: self.receive.as_ref(),
            file_bytes_per_s,
            analyses: self.by_analysis.then_some(analyses),
        })
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
                Some(hook) if device.queues.is_empty() => format!("{} that come later ({hook})", device.name),
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
        let recorded = self.recorded.map(|now| match &self.recorded_before {
            Some(before) => now.since(before),
            None => now,
        });
        if self.json {
            self.object(&since, duration, recorded, false)?;
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
            let recorded = recorded.map(|recorded| recorded_text(&recorded, duration)).unwrap_or_default();
            let received = self.receive.as_ref().map(ReceiveReport::text).unwrap_or_default();
            self.say(&format!("\n{:.1} s\n{table}{recorded}{received}", elapsed.as_secs_f64()))?;
        }
        self.recorded_before = self.recorded;
        self.before = Some(ledger.clone());
        self.last = elapsed;
        Ok(())
    }
}

/// The ledger for people.
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
    let moved = match ledger.balance {
        Some(BalanceReport { entries: Some(entries), .. }) => {
            format!("{} entries of RSS tables moved between RX queues\n", amount(entries))
        }
        Some(report) => format!(
            "{} buckets of flows moved between workers; {} elephants have a worker of their own\n",
            amount(report.moves),
            report.elephants
        ),
        None => String::new(),
    };
    let egress_devices = egress_text(ledger);
    let blocked = match ledger.total.blocked {
        0 => String::new(),
        blocked => format!(
            "{} of the filtered were dropped by another capture's device-wide rules\n",
            amount(blocked)
        ),
    };
    let aggregates = match ledger.total.aggregates {
        0 => String::new(),
        aggregates => format!(
            "{} aggregates (GRO, GSO) were seen; each counts as its packets on the wire\n",
            amount(aggregates)
        ),
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
        "\n{table}{} analysed in {:.3} s by engine {engine}: {} packets/s, {} bit/s\n{moved}{egress_devices}{blocked}{aggregates}{causes}{missed}{balance}\n",
        counted(ledger.total.analysed, "packet"),
        elapsed.as_secs_f64(),
        rate(pps),
        rate(bps),
    )
}

/// Counts of packets sent to each egress device.
fn egress_text(ledger: &Ledger) -> String {
    let line = |line: &EgressLine| {
        format!(
            "to {}: {} sent, {} unsent\n",
            printable(&line.device),
            amount(line.sent),
            amount(line.unsent)
        )
    };
    ledger.egress_devices.iter().map(line).collect()
}

/// Name of a virtual device in a table. An interface of a file without names has the file's path, of which the last
/// part is sufficient.
fn shown(name: &str) -> String {
    printable(name.rsplit('/').next().unwrap_or(name)).into_owned()
}

/// Rates of analysed packets and bits per second.
fn speed(counters: &Counters, duration: Duration) -> (f64, f64) {
    let seconds = duration.as_secs_f64();
    if seconds == 0.0 {
        return (0.0, 0.0);
    }
    (counters.analysed as f64 / seconds, counters.bytes as f64 * 8.0 / seconds)
}

/// Difference of two ledgers of the same capture.
fn since(now: &Ledger, before: Option<&Ledger>) -> Ledger {
    let mut since = now.clone();
    let Some(before) = before else { return since };
    since.total = now.total.since(&before.total);
    for line in &mut since.virtual_devices {
        // Both directions of a device have a queue 0, and their own index.
        let same = before.virtual_devices.iter().find(|b| b.index == line.index && b.queue == line.queue);
        if let Some(same) = same {
            line.counters = line.counters.since(&same.counters);
        }
    }
    for (cause, packets) in &mut since.lost_by {
        *packets -= before.lost_by.get(cause).copied().unwrap_or(0);
    }
    for (line, same) in since.egress_devices.iter_mut().zip(&before.egress_devices) {
        line.sent -= same.sent;
        line.unsent -= same.unsent;
    }
    for (line, same) in since.workers.iter_mut().zip(&before.workers) {
        line.counters = line.counters.since(&same.counters);
        line.sleeps -= same.sleeps;
        line.wakes -= same.wakes;
    }
    since
}

/// Summary of the recording for people.
fn recorded_text(recorded: &Recorded, duration: Duration) -> String {
    let counts = &recorded.counts;
    let seconds = duration.as_secs_f64();
    let per_second = if seconds > 0.0 { counts.file_bytes as f64 / seconds } else { 0.0 };
    let mut text = format!(
        "written {}, {} ({}B/s), {} ended; unwritten {}",
        counted(counts.written, "packet"),
        counted(counts.file_bytes, "byte"),
        rate(per_second),
        counted(counts.files, "file"),
        amount(counts.unwritten),
    );
    if counts.files_removed > 0 {
        text += &format!("; {} removed", counted(counts.files_removed, "oldest file"));
    }
    if let (Some(done), Some(failed)) = (recorded.post_rotate_done, recorded.post_rotate_failed) {
        text += &format!("; post-rotate commands: {} done, {} failed", amount(done), amount(failed));
    }
    text + "\n"
}
