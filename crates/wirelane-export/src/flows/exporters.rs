//! All outputs of flows of one command.

use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use wirelane_analysis::flows::FlowRecord;
use wirelane_analysis::http::Transaction;

use super::carrier::{Carrier, ExportFile, Udp, Wait};
use super::encode::{Context, Encoder, ExportSettings, Message};
use super::ipfix::Ipfix;
use super::lines::{CSV_HEADER, Naming, csv_line, json_line};
use super::netflow5::Netflow5;
use super::netflow9::Netflow9;
use super::tcp::Tcp;
use super::transactions::TransactionIpfix;
use super::{Format, Target, Transport};
use crate::words::counted;
use crate::{AppendFile, Error, Limiter, OnWire, OutputOptions, OutputState, Result};

/// A message is sent after its first flow has waited for this time, full or not.
const PATIENCE: Duration = Duration::from_secs(1);
/// An output works again when a message has been sent this long after the last failure.
const SETTLED: Duration = Duration::from_secs(5);

/// Results of the flows at one output.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutputCounts {
    /// The output, as the user wrote it.
    pub target: String,
    /// Flows that were written, or sent. Over UDP, sent means accepted by the network.
    pub flows: u64,
    /// Flows that the format cannot represent: other than IPv4 in NetFlow 5, other than IP in NetFlow 9.
    pub not_exportable: u64,
    /// Flows beyond the output's write limit.
    pub suppressed_flows: u64,
    /// Flows that were given up: no space in the backlog, a full disk, an unreachable collector.
    pub unsent_flows: u64,
    /// Number of messages.
    pub messages: u64,
    /// Bytes of the messages.
    pub bytes: u64,
    /// Number of reports from the collector's host that no process listens on the port.
    pub refused: u64,
    /// Number of TCP connections.
    pub connections: u64,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Bytes of messages that wait to be sent: 0 at the end.
    #[serde(skip)]
    pub waiting: u64,
    /// Time of the first failure since the output worked last.
    #[serde(skip)]
    pub failing: Option<SystemTime>,
    /// Time of the last failure.
    #[serde(skip)]
    failed_at: Option<Instant>,
    #[serde(skip)]
    pub(super) unsent_packets: u64,
    #[serde(skip)]
    pub(super) unsent_bytes: u64,
}

impl OutputCounts {
    pub(crate) fn sent(&mut self, message: &Message) {
        self.flows += message.flows;
        self.messages += 1;
        self.bytes += message.bytes.len() as u64;
        // A message over UDP is accepted by the network also where it is refused a moment later.
        if self.failed_at.is_some_and(|at| at.elapsed() >= SETTLED) {
            self.works();
        }
    }

    /// The output works again.
    pub(super) fn works(&mut self) {
        (self.failing, self.failed_at) = (None, None);
    }

    pub(crate) fn unsent(&mut self, message: &Message) {
        self.unsent_flows += message.flows;
        self.unsent_packets += message.packets;
        self.unsent_bytes += message.octets;
    }

    /// Takes over the counts of a file.
    pub(crate) fn of_file(&mut self, file: &AppendFile) {
        let counts = file.counts();
        (self.flows, self.unsent_flows, self.bytes) = (counts.written, counts.unwritten, counts.bytes);
        self.error.clone_from(&counts.error);
        self.failing = file.failing();
    }

    /// State of the output.
    pub(crate) fn state(&self) -> OutputState {
        OutputState {
            written: self.flows,
            lost: self.unsent_flows,
            suppressed: self.suppressed_flows,
            waiting_bytes: self.waiting,
            ..OutputState::new(&self.target, self.failing, self.error.as_ref())
        }
    }

    /// Warns once about an error, and again when the error changes.
    pub(super) fn failed(&mut self, why: String) {
        self.failing.get_or_insert_with(SystemTime::now);
        self.failed_at = Some(Instant::now());
        if self.error.as_ref() != Some(&why) {
            tracing::warn!("{}: {why}", self.target);
            self.error = Some(why);
        }
    }
}

enum Kind {
    Lines { format: Format, file: AppendFile },
    Messages { encoder: Box<dyn Encoder>, carrier: Carrier, made: Vec<Message>, since: Option<Instant> },
}

struct Outlet {
    kind: Kind,
    limiter: Limiter,
    counts: OutputCounts,
    wait: Wait,
}

/// All outputs of flows of one command.
pub struct Exporters {
    settings: ExportSettings,
    naming: Option<Naming>,
    outlets: Vec<Outlet>,
    /// Number of flows so far.
    number: u64,
    /// The latest time of these flows.
    latest_ns: u64,
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
    /// Those of [`AppendFile::open`]; [`Error::Target`] if there is no route to a collector.
    pub fn open(
        targets: &[Target],
        settings: ExportSettings,
        options: OutputOptions,
        owner: Option<(u32, u32)>,
    ) -> Result<Exporters> {
        let outlets = targets.iter().map(|target| Outlet::open(target, &settings, options, owner));
        let outlets = outlets.collect::<Result<Vec<_>>>()?;
        Ok(Exporters { settings, naming: None, outlets, number: 0, latest_ns: 0 })
    }

    /// Sets the names of numbers in flows, before the first flow.
    pub fn start(&mut self, naming: Naming) {
        self.naming = Some(naming);
    }

    /// Exports flows. A flow that cannot be exported at an output is counted, and does not affect other outputs.
    pub fn flows(&mut self, flows: &[FlowRecord]) {
        let Some(naming) = self.naming.take() else { return };
        for flow in flows {
            self.number += 1;
            self.latest_ns = self.latest_ns.max(flow.last_ns());
        }
        let now_ns = self.now_ns();
        let first = self.number - flows.len() as u64;
        for outlet in &mut self.outlets {
            outlet.flows(flows, first, &self.settings, &naming, now_ns);
        }
        self.naming = Some(naming);
        self.pump();
    }

    /// Exports HTTP transactions: see [`ExportSettings::transactions`].
    pub fn transactions(&mut self, transactions: &[Transaction]) {
        let Some(naming) = self.naming.take() else { return };
        for transaction in transactions {
            self.latest_ns = self.latest_ns.max(transaction.end_ns());
        }
        let now_ns = self.now_ns();
        for outlet in &mut self.outlets {
            outlet.messages(
                transactions,
                &self.settings,
                &naming,
                now_ns,
                |encoder, transaction, context, made| encoder.transaction(transaction, context, made),
            );
        }
        self.naming = Some(naming);
        self.pump();
    }

    fn now_ns(&self) -> u64 {
        if !self.settings.live {
            return self.latest_ns;
        }
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
    }

    /// Sends queued messages without blocking.
    pub fn pump(&mut self) {
        let Some(naming) = self.naming.take() else { return };
        let now_ns = self.now_ns();
        for outlet in &mut self.outlets {
            outlet.pump(&self.settings, &naming, now_ns, false);
        }
        self.naming = Some(naming);
    }

    /// Whether the caller must wait before it adds flows: see [`ExportSettings::patient`]. A collector that has
    /// accepted nothing for [`ExportSettings::wait`] is not waited for any longer.
    pub fn is_full(&self) -> bool {
        let (most, within) = (self.settings.backlog / 2, self.settings.wait);
        let is_full = |outlet: &Outlet| outlet.waiting() > most && outlet.moves(within);
        self.settings.patient && self.outlets.iter().any(is_full)
    }

    /// Time until something has to be sent, at most `most`.
    pub fn rest(&self, most: Duration) -> Duration {
        let now = Instant::now();
        let until = |outlet: &Outlet| match outlet.wait {
            Wait::Idle => most,
            Wait::Until(moment) => moment.saturating_duration_since(now),
            Wait::Room => Duration::from_millis(1),
        };
        self.outlets.iter().map(until).min().unwrap_or(most).min(most)
    }

    /// Waits until something can be sent, or at most this long.
    pub fn wait(&self, most: Duration) {
        let rest = self.rest(most);
        let room = self.outlets.iter().find(|outlet| outlet.wait == Wait::Room);
        match room.map(|outlet| &outlet.kind) {
            Some(Kind::Messages { carrier: Carrier::Tcp(tcp), .. }) => tcp.wait(most),
            _ => std::thread::sleep(rest.max(Duration::from_micros(100))),
        }
    }

    /// Sends all waiting messages after the last flow, for at most [`ExportSettings::wait`].
    pub fn finish(&mut self) {
        let end = Instant::now() + self.settings.wait;
        let naming = self.naming.take();
        let now_ns = self.now_ns();
        let Some(naming) = naming else { return };
        loop {
            let mut waiting = false;
            for outlet in &mut self.outlets {
                outlet.pump(&self.settings, &naming, now_ns, true);
                waiting |= outlet.waiting() > 0;
            }
            if !waiting || Instant::now() >= end {
                break;
            }
            self.wait(Duration::from_millis(50).min(end.saturating_duration_since(Instant::now())));
        }
        for outlet in &mut self.outlets {
            outlet.end();
        }
    }

    /// The files that are reopened after they were renamed.
    pub fn rotating(&self) -> impl Iterator<Item = &Path> {
        self.outlets.iter().filter_map(|outlet| outlet.file()?.rotates())
    }

    /// Results of the flows, for each output.
    pub fn counts(&self) -> Vec<OutputCounts> {
        let counts = |outlet: &Outlet| {
            let waiting = outlet.file().map_or_else(|| outlet.waiting(), AppendFile::waiting) as u64;
            OutputCounts { waiting, ..outlet.counts.clone() }
        };
        self.outlets.iter().map(counts).collect()
    }

    /// State of each output.
    pub fn states(&self) -> Vec<OutputState> {
        self.counts().iter().map(OutputCounts::state).collect()
    }

    /// The first file with unsent flows, and the reason. Unreachable collectors are not a failure.
    pub fn failure(&self) -> Option<Error> {
        let lacks = |outlet: &&Outlet| outlet.file().is_some() && outlet.counts.unsent_flows > 0;
        let broken = self.outlets.iter().find(lacks)?;
        let (target, reason) = (&broken.counts.target, broken.counts.error.clone().unwrap_or_default());
        let unsent = counted(broken.counts.unsent_flows, "flow");
        Some(Error::Target { target: target.clone(), reason: format!("{reason}; {unsent} missing from it") })
    }
}

/// A socket connected to the first of these addresses that has a route.
pub(crate) fn udp(name: &str, addresses: &[std::net::SocketAddr]) -> Result<UdpSocket> {
    let mut last = None;
    for address in addresses {
        let any: std::net::SocketAddr =
            if address.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        let opened = UdpSocket::bind(any).and_then(|socket| {
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match opened {
            Ok(socket) => return Ok(socket),
            Err(error) => last = Some(format!("{address}: {error}")),
        }
    }
    let reason = last.unwrap_or_else(|| "it has no address".into());
    Err(Error::Target { target: name.to_owned(), reason })
}

impl Outlet {
    fn open(
        target: &Target,
        settings: &ExportSettings,
        options: OutputOptions,
        owner: Option<(u32, u32)>,
    ) -> Result<Outlet> {
        let kind = match (target.format, &target.transport) {
            (format @ (Format::Json | Format::Csv), Transport::File(path)) => {
                let header = if format == Format::Csv { CSV_HEADER } else { "" };
                let file = AppendFile::open_lines(path, options, owner, header.into())?;
                Kind::Lines { format, file: file.holding(settings.backlog) }
            }
            (format, transport) => {
                let once = !matches!(transport, Transport::Udp(_));
                let encoder: Box<dyn Encoder> = match format {
                    Format::Netflow5 => Box::new(Netflow5::new(target.message)),
                    Format::Netflow9 => Box::new(Netflow9::new(target.message, settings)),
                    _ => {
                        // Each TCP connection and each file begins with the templates.
                        let first = once;
                        if settings.transactions {
                            Box::new(TransactionIpfix::new(target.message, once, first))
                        } else {
                            Box::new(Ipfix::new(target.message, once, first, settings))
                        }
                    }
                };
                let carrier = match transport {
                    Transport::File(path) => Carrier::File(Box::new(ExportFile::new(
                        AppendFile::open(path, options, owner, Vec::new())?.holding(settings.backlog),
                    ))),
                    Transport::Udp(addresses) => {
                        Carrier::Udp(Udp::new(udp(&target.name, addresses)?, settings.rate))
                    }
                    Transport::Tcp(addresses) => Carrier::Tcp(Box::new(Tcp::new(addresses.clone()))),
                };
                Kind::Messages { encoder, carrier, made: Vec::new(), since: None }
            }
        };
        let counts = OutputCounts { target: target.name.clone(), ..OutputCounts::default() };
        Ok(Outlet { kind, limiter: Limiter::new(settings.limit), counts, wait: Wait::Idle })
    }

    fn flows(
        &mut self,
        flows: &[FlowRecord],
        first: u64,
        settings: &ExportSettings,
        naming: &Naming,
        now_ns: u64,
    ) {
        match &mut self.kind {
            Kind::Lines { format, file } => {
                for (at, flow) in flows.iter().enumerate() {
                    if !self.limiter.admits(flow.wire_bytes()) {
                        continue;
                    }
                    file.append(1, |text| {
                        let before = text.len();
                        match format {
                            Format::Csv => csv_line(text, flow, naming),
                            _ => json_line(text, first + at as u64 + 1, flow, naming),
                        }
                        self.limiter.spent(text.len() - before);
                    });
                }
                self.counts.suppressed_flows = self.limiter.suppressed();
            }
            Kind::Messages { .. } => {
                self.messages(flows, settings, naming, now_ns, |encoder, flow, context, made| {
                    encoder.flow(flow, context, made)
                });
            }
        }
    }

    /// Encodes the items with `encode` into messages, and queues the full ones.
    fn messages<T: OnWire>(
        &mut self,
        all: &[T],
        settings: &ExportSettings,
        naming: &Naming,
        now_ns: u64,
        encode: impl Fn(&mut dyn Encoder, &T, &Context<'_>, &mut Vec<Message>) -> bool,
    ) {
        let Kind::Messages { encoder, carrier, made, since } = &mut self.kind else { return };
        for one in all {
            if !self.limiter.admits(one.wire_bytes()) {
                continue;
            }
            let context = Context { settings, naming, counts: &self.counts, now_ns };
            if !encode(encoder.as_mut(), one, &context, made) {
                self.counts.not_exportable += 1;
            }
            for message in made.drain(..) {
                *since = None;
                self.limiter.spent(message.bytes.len());
                let context = Context { settings, naming, counts: &self.counts.clone(), now_ns };
                carrier.push(message, encoder.as_mut(), &context, &mut self.counts);
            }
            since.get_or_insert_with(Instant::now);
        }
        self.counts.suppressed_flows = self.limiter.suppressed();
    }

    fn pump(&mut self, settings: &ExportSettings, naming: &Naming, now_ns: u64, last: bool) {
        let (encoder, carrier, made, since) = match &mut self.kind {
            Kind::Lines { file, .. } => {
                file.flush();
                return self.counts.of_file(file);
            }
            Kind::Messages { encoder, carrier, made, since } => (encoder, carrier, made, since),
        };
        if last || since.is_some_and(|since| since.elapsed() >= PATIENCE) {
            *since = None;
            let context = Context { settings, naming, counts: &self.counts, now_ns };
            encoder.end(&context, made);
            for message in made.drain(..) {
                let context = Context { settings, naming, counts: &self.counts.clone(), now_ns };
                carrier.push(message, encoder.as_mut(), &context, &mut self.counts);
            }
        }
        let before = self.counts.clone();
        let context = Context { settings, naming, counts: &before, now_ns };
        self.wait = carrier.pump(encoder.as_mut(), &context, &mut self.counts);
    }

    fn file(&self) -> Option<&AppendFile> {
        match &self.kind {
            Kind::Lines { file, .. } => Some(file),
            Kind::Messages { carrier: Carrier::File(file), .. } => Some(&file.file),
            Kind::Messages { .. } => None,
        }
    }

    fn waiting(&self) -> usize {
        match &self.kind {
            Kind::Messages { carrier, .. } => carrier.waiting(),
            _ => 0,
        }
    }

    fn moves(&self, within: Duration) -> bool {
        matches!(&self.kind, Kind::Messages { carrier, .. } if carrier.moves(within))
    }

    /// Ends the output: gives up all waiting messages.
    fn end(&mut self) {
        let file = match &mut self.kind {
            Kind::Lines { file, .. } => file,
            Kind::Messages { carrier: Carrier::File(file), .. } => &mut file.file,
            Kind::Messages { carrier, .. } => {
                carrier.give_up(&mut self.counts);
                if let Carrier::Tcp(tcp) = carrier {
                    tcp.end();
                }
                return;
            }
        };
        file.finish();
        self.counts.of_file(file);
    }
}
