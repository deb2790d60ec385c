//! All outputs of calls of one command.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use wirelane_analysis::voip::{Ending, Finished, Stream};

use super::hep;
use super::ipfix::StreamRecords;
use super::lines::{CSV_HEADER, call_csv, call_json, stream_json};
use crate::flows::OutputCounts as SentCounts;
use crate::flows::carrier::{ExportFile, Udp, Wait};
use crate::flows::encode::Message;
use crate::flows::exporters::udp;
use crate::flows::target::resolve;
use crate::words::counted;
use crate::{AppendFile, Error, Limiter, OnWire, OutputLimit, OutputOptions, OutputState, Result};

/// Default port of HEP receivers.
const HEP_PORT: u16 = 9060;
/// Default port of IPFIX collectors.
const IPFIX_PORT: u16 = 4739;

/// Settings of the outputs of calls.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Agent id of HEP, and observation domain of IPFIX: distinguishes capture agents for receivers.
    pub agent: u32,
    /// Maximum messages per second to each receiver; 0: no limit.
    pub rate: u32,
    /// Maximum bytes that wait for a receiver.
    pub backlog: usize,
    /// Write limit of each output.
    pub limit: OutputLimit,
    /// Whether to wait for space instead of giving up messages: when reading a file, waiting loses no packets.
    pub patient: bool,
    /// Maximum time to wait for receivers at the end.
    pub wait: Duration,
    /// Whether files contain the pressed keys (DTMF).
    pub digits: bool,
}

/// Export target of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A HEP v3 receiver over UDP, at the first of these addresses that has a route.
    Hep(String, Vec<SocketAddr>),
    /// An IPFIX collector over UDP.
    Ipfix(String, Vec<SocketAddr>),
    /// An IPFIX file.
    IpfixFile(String, PathBuf),
    /// A file of JSON lines.
    Json(String, PathBuf),
    /// A CSV file.
    Csv(String, PathBuf),
}

impl Target {
    /// Parses a target: `hep://HOST[:PORT]`, `ipfix://HOST[:PORT]`, `file:PATH` with `.json`, `.csv` or `.ipfix`.
    /// Resolves names.
    ///
    /// # Errors
    /// [`Error::Target`] with the fault and the expected form.
    pub fn parse(text: &str) -> Result<Target> {
        let wrong = |reason: String| Error::Target { target: text.to_owned(), reason };
        if let Some(path) = text.strip_prefix("file:") {
            let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
            return match extension {
                "json" | "jsonl" | "ndjson" => Ok(Target::Json(text.to_owned(), path.into())),
                "csv" => Ok(Target::Csv(text.to_owned(), path.into())),
                "ipfix" => Ok(Target::IpfixFile(text.to_owned(), path.into())),
                _ => Err(wrong("the file's name must end in .json, .csv or .ipfix".into())),
            };
        }
        let at = |place: &str, port| resolve(place.trim_end_matches('/'), port).map_err(wrong);
        if let Some(place) = text.strip_prefix("hep://") {
            return Ok(Target::Hep(text.to_owned(), at(place, HEP_PORT)?));
        }
        if let Some(place) = text.strip_prefix("ipfix://") {
            return Ok(Target::Ipfix(text.to_owned(), at(place, IPFIX_PORT)?));
        }
        let shape =
            "write hep://HOST:PORT, ipfix://HOST:PORT, or file:PATH with .json, .csv or .ipfix at its end";
        Err(wrong(shape.into()))
    }

    /// Whether the target receives the original SIP messages.
    pub fn takes_signals(&self) -> bool {
        matches!(self, Target::Hep(..))
    }

    fn name(&self) -> &str {
        match self {
            Target::Hep(name, _) | Target::Ipfix(name, _) => name,
            Target::IpfixFile(name, _) | Target::Json(name, _) | Target::Csv(name, _) => name,
        }
    }
}

/// Results at one output.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutputCounts {
    /// The output, as the user wrote it.
    pub target: String,
    /// Records that were written, or accepted by the network. Lines: calls and streams outside calls. IPFIX: streams.
    /// HEP: SIP messages and streams. `suppressed` and `unsent` count the same.
    pub records: u64,
    /// Lines, or messages: with HEP one for each SIP message, and one for each stream; with IPFIX one for many streams.
    /// Over UDP: messages accepted by the network.
    pub messages: u64,
    /// Records beyond the output's write limit.
    pub suppressed: u64,
    /// Records that were given up.
    pub unsent: u64,
    /// Bytes of the lines or messages.
    pub bytes: u64,
    /// Number of reports from the receiver's host that no process listens on the port.
    pub refused: u64,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

enum Kind {
    /// HEP messages, or IPFIX records if there is an encoder for them.
    Messages {
        udp: Udp,
        counts: SentCounts,
        wait: Wait,
        records: Option<StreamRecords>,
    },
    IpfixFile {
        file: Box<ExportFile>,
        counts: SentCounts,
        records: StreamRecords,
    },
    Lines {
        file: Box<AppendFile>,
        csv: bool,
        target: String,
    },
}

/// All outputs of calls of one command.
pub struct Exporters {
    settings: Settings,
    outlets: Vec<Kind>,
    limiters: Vec<Limiter>,
    calls: u64,
    streams: u64,
}

impl std::fmt::Debug for Exporters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporters").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Exporters {
    /// Opens all outputs. `owner`: owner of created files.
    ///
    /// # Errors
    /// Those of [`AppendFile::open`]; [`Error::Target`] if there is no route to a receiver.
    pub fn open(
        targets: &[Target],
        settings: Settings,
        options: OutputOptions,
        owner: Option<(u32, u32)>,
    ) -> Result<Exporters> {
        let open = |target: &Target| -> Result<Kind> {
            let name = target.name();
            let mut counts = SentCounts::default();
            counts.target = name.to_owned();
            let records = |file| StreamRecords::new(file, settings.agent, !settings.patient);
            let (path, csv) = match target {
                Target::Hep(_, addresses) | Target::Ipfix(_, addresses) => {
                    let udp = Udp::new(udp(name, addresses)?, settings.rate);
                    let records = matches!(target, Target::Ipfix(..)).then(|| records(false));
                    return Ok(Kind::Messages { udp, counts, wait: Wait::Idle, records });
                }
                Target::Json(_, path) | Target::IpfixFile(_, path) => (path, false),
                Target::Csv(_, path) => (path, true),
            };
            if matches!(target, Target::IpfixFile(..)) {
                let file = AppendFile::open(path, options, owner, Vec::new())?.holding(settings.backlog);
                return Ok(Kind::IpfixFile {
                    file: Box::new(ExportFile::new(file)),
                    counts,
                    records: records(true),
                });
            }
            let header = if csv { CSV_HEADER } else { "" };
            let file = AppendFile::open_lines(path, options, owner, header.into())?;
            let file = file.holding(settings.backlog);
            Ok(Kind::Lines { file: Box::new(file), csv, target: name.to_owned() })
        };
        let outlets = targets.iter().map(open).collect::<Result<Vec<_>>>()?;
        let limiters = outlets.iter().map(|_| Limiter::new(settings.limit)).collect();
        Ok(Exporters { settings, outlets, limiters, calls: 0, streams: 0 })
    }

    /// Exports ended calls and streams. An item that cannot be exported is counted, and does not affect other outputs.
    pub fn take(&mut self, finished: &[Finished]) {
        for one in finished {
            match one {
                Finished::Call(_) => self.calls += 1,
                Finished::Stream(..) => self.streams += 1,
                Finished::Signal(_) | Finished::Kept(_) => {}
            }
            for outlet in 0..self.outlets.len() {
                self.export(outlet, one);
            }
        }
        self.pump();
    }

    fn export(&mut self, outlet: usize, one: &Finished) {
        let (settings, calls, streams) = (self.settings, self.calls, self.streams);
        let (outlet, limiter) = (&mut self.outlets[outlet], &mut self.limiters[outlet]);
        let records = match (&*outlet, one) {
            // A line is a call with its streams. The CSV table of calls cannot represent a stream.
            (Kind::Lines { .. }, Finished::Call(_)) => 1,
            (Kind::Lines { csv, .. }, Finished::Stream(..)) => u64::from(!csv),
            (_, Finished::Call(record)) => record.streams.len() as u64,
            (_, Finished::Stream(..)) => 1,
            (_, Finished::Signal(_) | Finished::Kept(_)) => 0,
        };
        if records > 0 && !limiter.admits_group(records, one.wire_bytes()) {
            return;
        }
        match outlet {
            Kind::Messages { udp, counts, records: Some(records), .. } => {
                let mut made = Vec::new();
                streams_of(one, |stream, ending| records.stream(stream, ending, &mut made));
                for message in made {
                    limiter.spent(message.bytes.len());
                    udp.backlog.push(message, settings.backlog, counts);
                }
            }
            Kind::IpfixFile { file, counts, records } => {
                let mut made = Vec::new();
                streams_of(one, |stream, ending| records.stream(stream, ending, &mut made));
                for message in made {
                    limiter.spent(message.bytes.len());
                    file.push(message, || records.preamble(), counts);
                }
            }
            Kind::Messages { udp, counts, .. } => {
                let mut push = |bytes: Vec<u8>| {
                    let message = Message { bytes, records: 1, flows: 1, ..Message::default() };
                    udp.backlog.push(message, settings.backlog, counts);
                };
                match one {
                    Finished::Signal(signal) => {
                        let copy = hep::signal(signal, settings.agent);
                        if limiter.admits_copy(signal.bytes.len(), copy.len()) {
                            push(copy);
                        }
                    }
                    Finished::Call(_) | Finished::Stream(..) => streams_of(one, |stream, _| {
                        let call = if let Finished::Call(record) = one { &*record.call.call_id } else { "" };
                        let report = hep::stream(stream, call, settings.agent);
                        limiter.spent(report.len());
                        push(report);
                    }),
                    // Only for capture files of calls.
                    Finished::Kept(_) => {}
                }
            }
            Kind::Lines { file, csv, .. } => {
                let mut append = |make: &dyn Fn(&mut Vec<u8>)| {
                    file.append(1, |text| {
                        let before = text.len();
                        make(text);
                        limiter.spent(text.len() - before);
                    });
                };
                match one {
                    Finished::Call(record) if *csv => append(&|text| call_csv(text, record)),
                    Finished::Call(record) => {
                        append(&|text| call_json(text, calls, record, settings.digits));
                    }
                    Finished::Stream(stream, ending) if !*csv => {
                        append(&|text| stream_json(text, streams, stream, *ending, settings.digits));
                    }
                    Finished::Stream(..) | Finished::Signal(_) | Finished::Kept(_) => {}
                }
            }
        }
    }

    /// Sends queued messages without blocking.
    pub fn pump(&mut self) {
        self.send(false);
    }

    /// Sends queued messages; `last`: also those that are not full yet.
    fn send(&mut self, last: bool) {
        let most = self.settings.backlog;
        for outlet in &mut self.outlets {
            match outlet {
                Kind::Messages { udp, counts, wait, records } => {
                    if let Some(records) = records.as_mut().filter(|records| last || records.is_due()) {
                        let mut made = Vec::new();
                        records.end(&mut made);
                        made.into_iter().for_each(|message| udp.backlog.push(message, most, counts));
                    }
                    *wait = udp.pump(counts);
                }
                Kind::IpfixFile { file, counts, records } => {
                    if last || records.is_due() {
                        let mut made = Vec::new();
                        records.end(&mut made);
                        made.into_iter()
                            .for_each(|message| file.push(message, || records.preamble(), counts));
                    }
                    file.file.flush();
                    file.count(counts);
                }
                Kind::Lines { file, .. } => file.flush(),
            }
        }
    }

    fn waiting(&self) -> usize {
        let waiting = |outlet: &Kind| match outlet {
            Kind::Messages { udp, .. } => udp.backlog.bytes,
            Kind::Lines { .. } | Kind::IpfixFile { .. } => 0,
        };
        self.outlets.iter().map(waiting).max().unwrap_or(0)
    }

    /// Whether the caller must wait before it adds items: see [`Settings::patient`].
    pub fn is_full(&self) -> bool {
        self.settings.patient && self.waiting() > self.settings.backlog / 2
    }

    /// Time until something has to be sent, at most `most`.
    pub fn rest(&self, most: Duration) -> Duration {
        let now = Instant::now();
        let until = |outlet: &Kind| match outlet {
            Kind::Lines { .. } | Kind::IpfixFile { .. } | Kind::Messages { wait: Wait::Idle, .. } => most,
            Kind::Messages { wait: Wait::Until(moment), .. } => moment.saturating_duration_since(now),
            Kind::Messages { wait: Wait::Room, .. } => Duration::from_millis(1),
        };
        self.outlets.iter().map(until).min().unwrap_or(most).min(most)
    }

    /// Sends waiting messages after the last item, for at most [`Settings::wait`], and gives up the rest.
    pub fn finish(&mut self) {
        let end = Instant::now() + self.settings.wait;
        self.send(true);
        while self.waiting() > 0 && Instant::now() < end {
            std::thread::sleep(self.rest(Duration::from_millis(50)).max(Duration::from_micros(100)));
            self.pump();
        }
        for outlet in &mut self.outlets {
            match outlet {
                Kind::IpfixFile { file, counts, .. } => {
                    file.file.finish();
                    file.count(counts);
                }
                Kind::Messages { udp, counts, .. } => {
                    while let Some(message) = udp.backlog.pop() {
                        counts.unsent_flows += message.flows;
                    }
                }
                Kind::Lines { file, .. } => file.finish(),
            }
        }
    }

    /// The files that are reopened after they were renamed.
    pub fn rotating(&self) -> impl Iterator<Item = &Path> {
        self.outlets.iter().filter_map(|outlet| match outlet {
            Kind::IpfixFile { file, .. } => file.file.rotates(),
            Kind::Lines { file, .. } => file.rotates(),
            Kind::Messages { .. } => None,
        })
    }

    /// Results at each output.
    pub fn counts(&self) -> Vec<OutputCounts> {
        let counts = |(outlet, limiter): (&Kind, &Limiter)| match outlet {
            Kind::Lines { file, target, .. } => {
                let counts = file.counts();
                OutputCounts {
                    target: target.clone(),
                    records: counts.written,
                    messages: counts.written,
                    suppressed: limiter.suppressed(),
                    unsent: counts.unwritten,
                    bytes: counts.bytes,
                    refused: 0,
                    error: counts.error.clone(),
                }
            }
            Kind::Messages { counts, .. } | Kind::IpfixFile { counts, .. } => OutputCounts {
                target: counts.target.clone(),
                records: counts.flows,
                messages: counts.messages,
                suppressed: limiter.suppressed(),
                unsent: counts.unsent_flows,
                bytes: counts.bytes,
                refused: counts.refused,
                error: counts.error.clone(),
            },
        };
        self.outlets.iter().zip(&self.limiters).map(counts).collect()
    }

    /// State of each output.
    pub fn states(&self) -> Vec<OutputState> {
        let state = |(outlet, limiter): (&Kind, &Limiter)| {
            let state = match outlet {
                Kind::Lines { file, target, .. } => {
                    let counts = file.counts();
                    OutputState {
                        written: counts.written,
                        lost: counts.unwritten,
                        waiting_bytes: file.waiting() as u64,
                        ..OutputState::new(target, file.failing(), counts.error.as_ref())
                    }
                }
                Kind::Messages { counts, udp, .. } => {
                    OutputState { waiting_bytes: udp.backlog.bytes as u64, ..counts.state() }
                }
                Kind::IpfixFile { counts, file, .. } => {
                    OutputState { waiting_bytes: file.file.waiting() as u64, ..counts.state() }
                }
            };
            OutputState { suppressed: limiter.suppressed(), ..state }
        };
        self.outlets.iter().zip(&self.limiters).map(state).collect()
    }

    /// The first file with missing items, and the reason. Unreachable receivers are not a failure.
    pub fn failure(&self) -> Option<Error> {
        self.outlets.iter().find_map(|outlet| {
            let (target, file, of) = match outlet {
                Kind::IpfixFile { counts, file, .. } => (&counts.target, &file.file, "stream"),
                Kind::Lines { target, file, .. } => (target, &**file, "line"),
                Kind::Messages { .. } => return None,
            };
            let (lacking, error) = (file.counts().unwritten, file.counts().error.clone().unwrap_or_default());
            let reason = format!("{error}; {} missing from it", counted(lacking, of));
            (lacking > 0).then(|| Error::Target { target: target.clone(), reason })
        })
    }
}

/// Calls `each` for the streams of an ended call or stream.
fn streams_of(one: &Finished, mut each: impl FnMut(&Stream, Ending)) {
    match one {
        Finished::Call(record) => record.streams.iter().for_each(|stream| each(stream, record.ending)),
        Finished::Stream(stream, ending) => each(stream, *ending),
        Finished::Signal(_) | Finished::Kept(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_or_say_what_could_be() {
        let receiver = Target::parse("hep://127.0.0.1").unwrap();
        assert_eq!(receiver, Target::Hep("hep://127.0.0.1".into(), vec!["127.0.0.1:9060".parse().unwrap()]));
        assert_eq!(Target::parse("file:x.csv").unwrap(), Target::Csv("file:x.csv".into(), "x.csv".into()));
        for (text, part) in [
            ("netflow9://127.0.0.1", "write hep://HOST:PORT"),
            ("file:x.parquet", ".json, .csv or .ipfix"),
            ("hep://", "a host"),
            ("hep://127.0.0.1:x", "'x' is not a port"),
        ] {
            let error = Target::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
