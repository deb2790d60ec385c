//! Output of `wirelane send`: progress and reports, as text and as JSON.

use std::fmt::Display;

use anyhow::Result;
use serde::Serialize;
use wirelane::escape::to_json;
use wirelane_screen::table::{amount, counted, rate, wrap};
use wirelane_send::{Interval, ReplayReport, Report};

use crate::out;

/// A JSON object of the output: its own fields, and whether it is the last.
#[derive(Serialize)]
struct Line<'a, T> {
    r#final: bool,
    #[serde(flatten)]
    fields: &'a T,
}

/// Prints a JSON object on a line.
///
/// # Errors
/// As [`out::print`].
pub fn print_json(fields: &impl Serialize, last: bool) -> Result<()> {
    let line = to_json(&Line { r#final: last, fields })?;
    out::print(line + "\n")
}

/// A progress line, the first one after the header.
///
/// # Errors
/// As [`out::print`].
pub fn print_interval(interval: &Interval, elapsed_s: f64) -> Result<()> {
    let mut text = String::new();
    if interval.interval == 1 {
        text = format!(
            "{:>9}  {:>14}  {:>14}  {:>11}  {:>8}  {:>8}\n",
            "seconds", "offered", "sent", "dropped", "pps", "bit/s"
        );
    }
    text += &format!(
        "{elapsed_s:>9.1}  {:>14}  {:>14}  {:>11}  {:>8}  {:>8}",
        amount(interval.offered),
        amount(interval.sent),
        amount(interval.dropped),
        rate(interval.pps),
        rate(interval.bps)
    );
    out::print(text + "\n")
}

/// Lines of a report: a name and a text.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, text: impl Display) {
        self.0 += &format!("{name:<11}  {}\n", wrap(&text.to_string(), 13));
    }

    fn device(&mut self, sent: u64, dropped: u64, unaccounted: u64, others: u64) {
        self.line("sent", amount(sent));
        self.line("dropped", amount(dropped));
        if unaccounted > 0 {
            let what = "offered, but neither sent nor dropped by the device";
            self.line("unaccounted", format!("{}: {what}", amount(unaccounted)));
        }
        if others > 0 {
            self.line(
                "others",
                format!("{}: other senders' packets, counted by the device too", amount(others)),
            );
        }
    }

    fn speed(&mut self, duration_s: f64, pps: f64, bps: f64) {
        self.line("took", format!("{duration_s:.3} s: {} packets/s, {} bit/s", rate(pps), rate(bps)));
    }

    fn print(self) -> Result<()> {
        out::print(self.0)
    }
}

/// Packets per second as a whole number, if the exact value matters.
fn whole(pps: f64) -> String {
    amount(pps.round() as u64)
}

/// Prints the end of a run of the generator.
///
/// # Errors
/// As [`out::print`].
pub fn print_report(report: &Report) -> Result<()> {
    let mut lines = Lines::default();
    lines.line("device", &report.device);
    match &report.method_reason {
        Some(reason) => lines.line("method", format!("{} ({reason})", report.method)),
        None => lines.line("method", report.method),
    }
    let mut asked =
        report.asked_pps.map_or("full speed".to_owned(), |pps| format!("{} packets/s", whole(pps)));
    if let Some(packets) = report.asked_packets {
        asked += &format!(", {}", counted(packets, "packet"));
    }
    if let Some(seconds) = report.asked_duration_s {
        asked += &format!(", {seconds} s");
    }
    lines.line("asked", asked);
    let mut offered = format!("{}, {}", counted(report.offered, "packet"), counted(report.bytes, "byte"));
    if let (Some(first), Some(last)) = (report.first_sequence, report.last_sequence) {
        offered += &format!(", numbers {first} to {last}");
    }
    lines.line("offered", offered);
    lines.device(report.sent, report.dropped, report.unaccounted, report.others);
    if report.refused > 0 {
        lines.line("refused", format!("{} times: the device was full, tried again", amount(report.refused)));
    }
    lines.speed(report.duration_s, report.pps, report.bps);
    if report.fell_short {
        lines.line(
            "fell short",
            format!(
                "{} packets/s were asked for, {} were reached",
                whole(report.asked_pps.unwrap_or(0.0)),
                whole(report.pps)
            ),
        );
    }
    lines.print()
}

/// Prints the end of a replay.
///
/// # Errors
/// As [`out::print`].
pub fn print_replay(report: &ReplayReport) -> Result<()> {
    let mut lines = Lines::default();
    lines.line("device", &report.device);
    let passes = if report.passes == 1 { "1 pass".to_owned() } else { format!("{} passes", report.passes) };
    lines.line("read", format!("{} in {passes}", counted(report.read, "frame")));
    let left_out = [
        (report.too_large, "larger than the device's MTU allows; raise it with: ip link set DEV mtu N"),
        (report.too_short, "shorter than an Ethernet header"),
        (report.not_ethernet, "not Ethernet frames"),
        (report.cut, "captured in part only"),
    ];
    for (count, reason) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        lines.line("left out", format!("{}: {reason}", amount(count)));
    }
    lines.line("offered", format!("{}, {}", counted(report.offered, "frame"), counted(report.bytes, "byte")));
    for (device, side) in report.devices.iter().zip(["clients", "servers"]) {
        let sent = format!("{} of {side}, {} sent", counted(device.offered, "frame"), amount(device.sent));
        lines.line(&device.device, sent);
    }
    lines.device(report.sent, report.dropped, report.unaccounted, report.others);
    lines.speed(report.duration_s, report.pps, report.bps);
    if report.fell_short {
        lines.line(
            "fell short",
            format!(
                "{} {} more than 1 ms late, up to {:.3} s",
                counted(report.late, "frame"),
                if report.late == 1 { "was" } else { "were" },
                report.most_late_s
            ),
        );
    }
    lines.print()
}
