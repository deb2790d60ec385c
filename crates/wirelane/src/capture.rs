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
use crate::watch::Ending;
use crate::worker::Worker;
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

/// The counts of a capture's plug-ins, for another thread than the capture's. They are those of this capture until it is
/// closed: then ask [`Capture::rule_stats`] before, and this no more.
#[derive(Clone, Debug)]
pub struct PluginCounts(Arc<ActiveRuleset>);

impl PluginCounts {
    /// What each plug-in has done so far, on all devices. While packets flow, counts are read one after the other.
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

    /// The socket at which other processes ask this program, the first time, where [`crate::Builder::service`] has made
    /// one; none after that.
    pub fn service(&mut self) -> Option<Service> {
        self.service.take()
    }

    /// Reads a pcap or pcapng file, also one that zstd or gzip compressed (`-` is standard input), by the `file` engine. Needs no privilege.
    ///
    /// # Errors
    /// [`wirelane_pcapng::Error::Io`] where it cannot be opened, [`wirelane_pcapng::Error::CaptureFile`] where it does not begin as one.
    pub fn open_file(path: &Path) -> Result<Capture> {
        Capture::read_file(FileInput::open(path)?, FileFilter::default())
    }

    /// Reads a file that has been opened, as [`Capture::open_file`] does: the packets that a filter accepts.
    ///
    /// # Errors
    /// As [`Capture::open_file`].
    pub fn read_file(input: FileInput, filter: FileFilter) -> Result<Capture> {
        FileCapture::read(input, filter, None).map(Capture::file)
    }

    /// The same by rules ([`crate::Builder::rules`]), which decide about the packets that the filter accepts. A rule's
    /// conditions on devices are about the names of the file's interfaces, and rules age by the time of packets. With
    /// `inner` they look at the headers inside tunnels.
    ///
    /// # Errors
    /// As [`Capture::open_file`]; [`crate::Error::Rules`] for what is wrong with the rules.
    pub fn read_file_by_rules(
        input: FileInput,
        filter: FileFilter,
        rules: &RuleSet,
        inner: bool,
    ) -> Result<Capture> {
        FileCapture::read(input, filter, Some((rules, inner))).map(Capture::file)
    }

    /// Changes which packets are wanted (see [`crate::Builder::filter`]); an empty expression wants all. Every packet is
    /// evaluated by the one or by the other expression, and none is lost for the change. On return engines `ring` and
    /// `xsk` evaluate by this one only; the workers of the others do from their next batch on.
    ///
    /// Names in the expression are looked up, which takes the right to open sockets: after
    /// [`crate::Builder::open_confined`] use addresses and numbers.
    ///
    /// # Errors
    /// [`crate::Error::Filter`], and the expression before stays in force; [`crate::Error::Bpf`] where the kernel
    /// does not take it; [`crate::Error::Unsupported`] where the capture began without a filter and has no rights any more
    /// ([`crate::Builder::filter_later`]).
    pub fn set_filter(&self, expression: &str) -> Result<()> {
        self.backend.set_filter(expression)
    }

    /// The same with a program that libpcap has compiled ([`Filter::of_program`]), whatever device the packets are of.
    ///
    /// # Errors
    /// [`crate::Error::BadOption`] of a file; [`crate::Error::Bpf`] where the kernel does not take it.
    pub fn set_compiled_filter(&self, filter: &Filter) -> Result<()> {
        self.backend.set_compiled_filter(filter)
    }

    /// Puts these rules in the place of all that are in force ([`crate::Builder::rules`]), those that packets have made
    /// included. Every packet is evaluated by the ones or by the others, and none is lost for the change; on return none is
    /// evaluated by those before. Wildcard rules that stay as they were go on counting.
    ///
    /// # Errors
    /// [`crate::Error::Rules`] for what is wrong with them, and [`crate::Error::BadOption`] where there is no room for
    /// them, or the capture was started without rules and without room for any: the rules before stay in force.
    pub fn set_rules(&self, rules: &RuleSet) -> Result<Changed> {
        self.active_rules()?.replace(rules)
    }

    /// Adds rules to those in force, exact ones at some hundred thousand a second.
    ///
    /// # Errors
    /// As [`Capture::set_rules`]; also where an id is in use. Then none has been added.
    pub fn add_rules(&self, rules: Vec<Rule>, exact: Vec<ExactRule>) -> Result<Changed> {
        self.active_rules()?.extend(rules, exact)
    }

    /// Removes the rules with these ids, with the exact-match rules that they have made, and the exact-match rules of these
    /// fields. What is not there is not an error.
    ///
    /// # Errors
    /// [`crate::Error::BadOption`] where there can be no rules; what the kernel said.
    pub fn remove_rules(&self, ids: &[u32], exact: &[ExactFields]) -> Result<Changed> {
        self.active_rules()?.remove(ids, exact)
    }

    /// What the rules have counted; `None` where the capture has none. Of wildcard rules it is read where the lanes
    /// write it, without a system call; of exact-match rules by some thousand at a time.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn rule_stats(&self) -> Result<Option<RuleStats>> {
        self.rules().map(|rules| rules.stats()).transpose()
    }

    /// What measures RTP streams in the kernel; `None` where that was not asked for ([`crate::Builder::kernel_streams`]).
    pub fn meter(&self) -> Option<Meter> {
        self.backend.meter()
    }

    /// What reads the counts of the capture's plug-ins while it runs ([`crate::Builder::plugin`]); `None` where it has none.
    pub fn plugins(&self) -> Option<PluginCounts> {
        let counts = PluginCounts(Arc::clone(self.rules()?));
        (!counts.read().is_empty()).then_some(counts)
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

    /// `ring`, `xsk`, `packet` or `file`.
    pub fn engine(&self) -> &'static str {
        self.backend.engine()
    }

    /// Why this engine, where [`crate::Engine::Auto`] could not take the best one.
    pub fn engine_reason(&self) -> Option<&str> {
        self.backend.engine_reason()
    }

    /// The devices, in the order of [`crate::Record::device`]. Interfaces of a file appear as they are read.
    pub fn devices(&self) -> Vec<CaptureDevice> {
        self.backend.devices()
    }

    /// What stands behind a record's device and RX queue.
    pub fn interfaces(&self) -> Interfaces {
        self.backend.interfaces()
    }

    /// The workers, the first time; none after that.
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

    /// How far a regular file has been read; `None` of devices, pipes and standard input.
    pub fn progress(&self) -> Option<FileProgress> {
        self.backend.progress()
    }

    /// The devices from which nothing more will come, by name, and why: of a device that was deleted, or lost the
    /// capture program, the part of the capture has ended.
    pub fn ended(&self) -> Vec<(String, Ending)> {
        self.backend.ended()
    }

    /// To be called in a process that was forked from the one that started the capture, where it is to go on
    /// ([`crate::keep_captures_over_fork`]): threads are not forked, so what looks after the clock and the devices starts
    /// anew here. Moving load stays with the process that started the capture.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] where the thread cannot be started.
    pub fn adopt(&mut self) -> Result<()> {
        self.backend.adopt()
    }

    /// No more packets: on return the lanes write nothing, and workers end once they have yielded what is in
    /// their rings.
    ///
    /// # Errors
    /// [`crate::Error::Bpf`] where the kernel refuses to take the group out.
    pub fn stop(&self) -> Result<()> {
        self.backend.stop()
    }

    /// Stops and returns the final ledger. Drop or finish the workers before: what they have not yielded by
    /// now is `in_flight`.
    ///
    /// # Errors
    /// As [`Capture::stop`] and [`Capture::ledger`].
    pub fn close(self) -> Result<Ledger> {
        self.stop()?;
        self.ledger()
    }
}
