//! A capture: devices (or a file) on one side, workers on the other, the ledger between.

use std::path::Path;
use std::sync::Arc;

use wirelane_pcapng::{FileInput, FileProgress};

use crate::active_rules::{ActiveRuleset, Changed, PluginLine, RuleStats};
use crate::backend::Backend;
use crate::choose;
use crate::error::{Error, Result};
use crate::file::FileCapture;
use crate::interfaces::{CaptureDevice, Interfaces};
use crate::ledger::Ledger;
use crate::meter::Meter;
use crate::settings::Settings;
use crate::state::StateReader;
use crate::watch::Ending;
use crate::worker::Worker;
use wirelane_bpf::flow::Timeouts;
use wirelane_control::Service;
use wirelane_filter::{FileFilter, Filter};
use wirelane_netdev::Selected;
use wirelane_privsep::Sandbox;
use wirelane_rules::{ExactFields, ExactRule, Rule, RuleSet};

/// A running capture: ask it for its workers once, and for its ledger at any time.
///
/// There is an example at the [front page](crate#example).
#[derive(Debug)]
pub struct Capture {
    backend: Box<dyn Backend>,
    service: Option<Service>,
}

/// The counts of a capture's plug-ins, for use on another thread than the capture's. They are valid until the capture
/// is closed: call [`Capture::rule_stats`] before that, and do not use this afterwards.
#[derive(Clone, Debug)]
pub struct PluginCounts(Arc<ActiveRuleset>);

impl PluginCounts {
    /// Counts of each plug-in so far, over all devices. While packets flow, counts are read one after the other.
    pub fn read(&self) -> Vec<PluginLine> {
        self.0.plugin_lines()
    }
}

impl Capture {
    /// Starts a capture on devices.
    pub(crate) fn live(
        settings: &Settings,
        selected: Vec<Selected>,
        confinement: Option<&Sandbox>,
    ) -> Result<Capture> {
        let (backend, service) = choose::start(settings, selected, confinement)?;
        let service = service.map(|service| {
            service.of(backend.engine(), backend.devices().into_iter().map(|device| device.name).collect())
        });
        Ok(Capture { backend, service })
    }

    fn file(file: FileCapture) -> Capture {
        Capture { backend: Box::new(file), service: None }
    }

    /// The socket at which other processes send requests to this program, on the first call, where
    /// [`crate::Builder::service`] has opened one; `None` on later calls.
    pub fn service(&mut self) -> Option<Service> {
        self.service.take()
    }

    /// Reads a pcap or pcapng file, also one that zstd or gzip compressed (`-` is standard input), by the `file` engine. Needs no privilege.
    ///
    /// # Errors
    /// [`wirelane_pcapng::Error::Io`] where it cannot be opened, [`wirelane_pcapng::Error::CaptureFile`] where it does
    /// not begin as a capture file.
    pub fn open_file(path: &Path) -> Result<Capture> {
        Capture::read_file(FileInput::open(path)?, FileFilter::default())
    }

    /// Reads an open file, as [`Capture::open_file`] does: the packets that a filter accepts.
    ///
    /// # Errors
    /// As [`Capture::open_file`].
    pub fn read_file(input: FileInput, filter: FileFilter) -> Result<Capture> {
        Capture::read_files(vec![input], filter)
    }

    /// Reads several open files as one: their packets in the order of the time stamps. Equal interfaces of several files
    /// are one. Memory depends on how many files overlap in time. A file that is damaged ends there, and the error comes
    /// after the packets of the others.
    ///
    /// # Errors
    /// As [`Capture::open_file`]; [`wirelane_pcapng::Error::BadOption`] without a file, and for a pipe among several
    /// files.
    pub fn read_files(inputs: Vec<FileInput>, filter: FileFilter) -> Result<Capture> {
        FileCapture::read(inputs, filter, None).map(Capture::file)
    }

    /// Reads files as [`Capture::read_files`] does, with rules ([`crate::Builder::rules`]), which decide about the packets that the filter accepts. A
    /// rule's conditions on devices refer to the names of the file's interfaces, and rules expire by packet time. With
    /// `inner` they look at the headers inside tunnels.
    ///
    /// # Errors
    /// As [`Capture::open_file`]; [`crate::Error::Rules`] for invalid rules.
    pub fn read_files_by_rules(
        inputs: Vec<FileInput>,
        filter: FileFilter,
        rules: &RuleSet,
        inner: bool,
    ) -> Result<Capture> {
        FileCapture::read(inputs, filter, Some((rules, inner))).map(Capture::file)
    }

    /// Changes the filter (see [`crate::Builder::filter`]); an empty expression accepts all packets. Every packet is
    /// evaluated either by the old or by the new expression, and the change loses none. On return engines `ring` and
    /// `xsk` evaluate by the new one only; the workers of the others do from their next batch on.
    ///
    /// Names in the expression are looked up, which takes the right to open sockets: after
    /// [`crate::Builder::open_confined`] use addresses and numbers.
    ///
    /// # Errors
    /// [`crate::Error::Filter`], and the previous expression stays in force; [`crate::Error::Bpf`] where the kernel
    /// refuses it; [`crate::Error::Unsupported`] where the capture has no rights any more ([`crate::Builder::filter_later`]).
    pub fn set_filter(&self, expression: &str) -> Result<()> {
        self.backend.set_filter(expression)
    }

    /// Sets a filter that libpcap has compiled ([`Filter::of_program`]), whatever the device of the packets.
    ///
    /// # Errors
    /// [`crate::Error::BadOption`] for a file; [`crate::Error::Bpf`] where the kernel refuses it.
    pub fn set_compiled_filter(&self, filter: &Filter) -> Result<()> {
        self.backend.set_compiled_filter(filter)
    }

    /// Changes the capacity of each lane and the timeouts of flows that are made in the kernel
    /// ([`crate::Builder::kernel_flows`]). No packet is lost. Caches of another capacity are filled within some seconds; those
    /// before are read to the end, and freed. Parts that were made under longer timeouts are not divided again.
    ///
    /// # Errors
    /// [`crate::Error::BadOption`] for an invalid capacity, or for more than 64 times that of the start;
    /// [`crate::Error::Kernel`] without memory: then some devices may have changed, and a call with the former values changes
    /// them back; [`crate::Error::Unsupported`] for a capture without flows in the kernel.
    pub fn change_flows(&self, entries: usize, timeouts: Timeouts) -> Result<()> {
        self.backend.change_flows(entries, timeouts)
    }

    /// Replaces all rules in force ([`crate::Builder::rules`]), including those that packets have made. Every packet is
    /// evaluated either by the old or by the new rules, and the change loses none; on return no packet is evaluated by
    /// the old ones. Wildcard rules that stay the same continue counting.
    ///
    /// # Errors
    /// [`crate::Error::Rules`] for invalid rules, and [`crate::Error::BadOption`] where capacity is missing, or the
    /// capture was started without rules and without capacity for them: the previous rules stay in force.
    pub fn set_rules(&self, rules: &RuleSet) -> Result<Changed> {
        self.active_rules()?.replace(rules)
    }

    /// Adds rules to those in force, exact ones at some hundred thousand a second.
    ///
    /// # Errors
    /// As [`Capture::set_rules`]; also where an id is in use. Then no rule has been added.
    pub fn add_rules(&self, rules: Vec<Rule>, exact: Vec<ExactRule>) -> Result<Changed> {
        self.active_rules()?.extend(rules, exact)
    }

    /// Removes the rules with these ids, with the exact-match rules that they have made, and the exact-match rules of
    /// these fields. Ids and fields that match no rule are ignored.
    ///
    /// # Errors
    /// [`crate::Error::BadOption`] where the capture has no capacity for rules; otherwise the error that the kernel
    /// returned.
    pub fn remove_rules(&self, ids: &[u32], exact: &[ExactFields]) -> Result<Changed> {
        self.active_rules()?.remove(ids, exact)
    }

    /// Counts of the rules; `None` where the capture has no rules. Counts of wildcard rules are read from the memory
    /// that the lanes write, without a system call; those of exact-match rules by some thousand at a time.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub fn rule_stats(&self) -> Result<Option<RuleStats>> {
        self.rules().map(|rules| rules.stats()).transpose()
    }

    /// The meter of RTP streams in the kernel; `None` where none was requested ([`crate::Builder::kernel_streams`]).
    pub fn meter(&self) -> Option<Meter> {
        self.backend.meter()
    }

    /// A reader of the counts of the capture's plug-ins while it runs ([`crate::Builder::plugin`]); `None` without
    /// plug-ins.
    pub fn plugins(&self) -> Option<PluginCounts> {
        let counts = PluginCounts(Arc::clone(self.rules()?));
        (!counts.read().is_empty()).then_some(counts)
    }

    /// A reader of the maps of the capture's plug-ins and of its steering program; `None` where they have none.
    pub fn state(&self) -> Option<StateReader> {
        self.backend.state().filter(|state| state.maps().next().is_some()).cloned()
    }

    fn rules(&self) -> Option<&Arc<ActiveRuleset>> {
        self.backend.rules()
    }

    fn active_rules(&self) -> Result<&Arc<ActiveRuleset>> {
        self.rules().ok_or_else(|| Error::BadOption {
            option: "rules",
            reason: "the capture was started without rules: start it with rules, or with capacity for rules"
                .into(),
        })
    }

    /// Name of the engine: `ring`, `xsk`, `packet` or `file`.
    pub fn engine(&self) -> &'static str {
        self.backend.engine()
    }

    /// The reason for this engine, if [`crate::Engine::Auto`] could not take the best one.
    pub fn engine_reason(&self) -> Option<&str> {
        self.backend.engine_reason()
    }

    /// The devices, in the order of [`crate::Record::device`]. Interfaces of a file appear as they are read.
    pub fn devices(&self) -> Vec<CaptureDevice> {
        self.backend.devices()
    }

    /// Descriptions of the devices and RX queues of records.
    pub fn interfaces(&self) -> Interfaces {
        self.backend.interfaces()
    }

    /// The workers, on the first call; an empty list on later calls.
    pub fn workers(&mut self) -> Vec<Worker> {
        self.backend.workers()
    }

    /// The ledger now. While packets flow, `seen` is the sum of its columns; after [`Capture::stop`] it is the
    /// lanes' own count, and the sums hold exactly.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] where a device's statistics cannot be read.
    pub fn ledger(&self) -> Result<Ledger> {
        self.backend.ledger()
    }

    /// Progress through a regular file; `None` of devices, pipes and standard input.
    pub fn progress(&self) -> Option<FileProgress> {
        self.backend.progress()
    }

    /// The devices that will deliver nothing more, by name, and why: the part of the capture on a device ends when the
    /// device is deleted or loses the capture program.
    pub fn ended(&self) -> Vec<(String, Ending)> {
        self.backend.ended()
    }

    /// Continues the capture in a process that was forked from the one that started it
    /// ([`crate::keep_captures_over_fork`]). Threads are not forked, so the maintenance thread for the clock and the
    /// devices is started anew here. Load balancing stays in the process that started the capture.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] where the thread cannot be started.
    pub fn adopt(&mut self) -> Result<()> {
        self.backend.adopt()
    }

    /// Stops the capture: on return the lanes write nothing, and workers end once they have yielded the records in
    /// their rings.
    ///
    /// # Errors
    /// [`crate::Error::Bpf`] where the kernel refuses to remove the group.
    pub fn stop(&self) -> Result<()> {
        self.backend.stop()
    }

    /// Stops and returns the final ledger. Drop or finish the workers before: records that they have not yielded by now
    /// are `in_flight`.
    ///
    /// # Errors
    /// As [`Capture::stop`] and [`Capture::ledger`].
    pub fn close(self) -> Result<Ledger> {
        self.stop()?;
        self.ledger()
    }
}
