//! A capture: devices (or a file) on one side, workers on the other, the ledger between.

use std::path::Path;
use std::sync::Arc;

use crate::control::Service;
use crate::device::Selected;
use crate::engine::choose::{self, Started};
use crate::engine::file::{FileInput, FileProgress};
use crate::file::FileCapture;
use crate::filter::{FileFilter, Filter};
use crate::in_force::{Changed, InForce, PluginLine, RuleStats};
use crate::interfaces::{CaptureDevice, Interfaces};
use crate::ledger::Ledger;
use crate::live::LiveCapture;
use crate::meter::Meter;
use crate::rules::{PreciseFields, PreciseRule, Rule, RuleSet};
use crate::settings::Settings;
use crate::sockets::SocketCapture;
use crate::watch::Ending;
use crate::worker::Worker;
use crate::{Error, Result};
use wirelane_privsep::Sandbox;

/// A running capture: ask it for its workers once, and for its ledger at any time.
///
/// There is an example at the [front page](crate#example).
#[derive(Debug)]
pub struct Capture(Kind, Option<Service>);

/// The counts of a capture's plug-ins, for another thread than the capture's. They are those of this capture until it is
/// closed: then ask [`Capture::rule_stats`] before, and this no more.
#[derive(Clone, Debug)]
pub struct PluginCounts(Arc<InForce>);

impl PluginCounts {
    /// What each plug-in has done so far, on all devices. While packets flow, counts are read one after the other.
    pub fn read(&self) -> Vec<PluginLine> {
        self.0.plugin_lines()
    }
}

#[derive(Debug)]
enum Kind {
    Live(Box<LiveCapture>),
    /// With the reason for this engine, where the choice was ours.
    Sockets(Box<SocketCapture>, Option<String>),
    File(Box<FileCapture>),
}

impl Capture {
    /// Starts a capture on devices.
    pub(crate) fn live(
        settings: &Settings,
        selected: Vec<Selected>,
        confinement: Option<&Sandbox>,
    ) -> Result<Capture> {
        let (started, service) = choose::start(settings, selected, confinement)?;
        let kind = match started {
            Started::Ring(live) => Kind::Live(Box::new(live)),
            Started::Sockets(sockets, reason) => Kind::Sockets(Box::new(sockets), reason),
        };
        let mut capture = Capture(kind, None);
        capture.1 = service.map(|service| service.of(capture.engine(), &capture.devices()));
        Ok(capture)
    }

    /// The socket at which other processes ask this program, the first time, where [`crate::Builder::service`] has made
    /// one; none after that.
    pub fn service(&mut self) -> Option<Service> {
        self.1.take()
    }

    /// Reads a pcap or pcapng file, also one that zstd or gzip compressed (`-` is standard input), by the `file` engine. Needs no privilege.
    ///
    /// # Errors
    /// [`crate::Error::Io`] where it cannot be opened, [`crate::Error::CaptureFile`] where it does not begin as one.
    pub fn open_file(path: &Path) -> Result<Capture> {
        Capture::read_file(FileInput::open(path)?, FileFilter::default())
    }

    /// Reads a file that has been opened, as [`Capture::open_file`] does: the packets that a filter accepts.
    ///
    /// # Errors
    /// As [`Capture::open_file`].
    pub fn read_file(input: FileInput, filter: FileFilter) -> Result<Capture> {
        FileCapture::read(input, filter, None).map(|file| Capture(Kind::File(Box::new(file)), None))
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
        FileCapture::read(input, filter, Some((rules, inner)))
            .map(|file| Capture(Kind::File(Box::new(file)), None))
    }

    /// Changes which packets are wanted (see [`crate::Builder::filter`]); an empty expression wants all. Every packet is
    /// judged by the one or by the other expression, and none is lost for the change. On return engines `ring` and
    /// `xsk` judge by this one only; the workers of the others do from their next batch on.
    ///
    /// Names in the expression are looked up, which takes the right to open sockets: after
    /// [`crate::Builder::open_confined`] use addresses and numbers.
    ///
    /// # Errors
    /// [`crate::Error::Filter`], and the expression before stays in force; [`crate::Error::Bpf`] where the kernel
    /// does not take it.
    pub fn set_filter(&self, expression: &str) -> Result<()> {
        match &self.0 {
            Kind::Live(live) => live.set_filter(expression),
            Kind::Sockets(sockets, _) => sockets.set_filter(expression),
            Kind::File(file) => file.set_filter(expression),
        }
    }

    /// The same with a program that libpcap has compiled ([`Filter::of_program`]), whatever device the packets are of.
    ///
    /// # Errors
    /// [`crate::Error::BadOption`] of a file; [`crate::Error::Bpf`] where the kernel does not take it.
    pub fn set_compiled_filter(&self, filter: &Filter) -> Result<()> {
        match &self.0 {
            Kind::Live(live) => live.set_filters(Some(filter)),
            Kind::Sockets(sockets, _) => sockets.set_filters(Some(filter)),
            Kind::File(_) => Err(Error::BadOption {
                option: "filter",
                reason: "a compiled program is for devices: give the expression for a file".into(),
            }),
        }
    }

    /// Puts these rules in the place of all that are in force ([`crate::Builder::rules`]), those that packets have made
    /// included. Every packet is judged by the ones or by the others, and none is lost for the change; on return none is
    /// judged by those before. Wildcard rules that stay as they were go on counting.
    ///
    /// # Errors
    /// [`crate::Error::Rules`] for what is wrong with them, and [`crate::Error::BadOption`] where there is no room for
    /// them, or the capture was started without rules and without room for any: the rules before stay in force.
    pub fn set_rules(&self, rules: &RuleSet) -> Result<Changed> {
        self.in_force()?.replace(rules)
    }

    /// Adds rules to those in force, precise ones at some hundred thousand a second.
    ///
    /// # Errors
    /// As [`Capture::set_rules`]; also where an id is in use. Then none has been added.
    pub fn add_rules(&self, rules: Vec<Rule>, precise: Vec<PreciseRule>) -> Result<Changed> {
        self.in_force()?.extend(rules, precise)
    }

    /// Removes the rules with these ids, with the precise rules that they have made, and the precise rules of these
    /// fields. What is not there is not an error.
    ///
    /// # Errors
    /// [`crate::Error::BadOption`] where there can be no rules; what the kernel said.
    pub fn remove_rules(&self, ids: &[u32], precise: &[PreciseFields]) -> Result<Changed> {
        self.in_force()?.remove(ids, precise)
    }

    /// What the rules have counted; `None` where the capture has none. Of wildcard rules it is read where the lanes
    /// write it, without a system call; of precise rules by some thousand at a time.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn rule_stats(&self) -> Result<Option<RuleStats>> {
        self.rules().map(|rules| rules.stats()).transpose()
    }

    /// What measures RTP streams in the kernel; `None` where that was not asked for ([`crate::Builder::kernel_streams`]).
    pub fn meter(&self) -> Option<Meter> {
        let Kind::Live(live) = &self.0 else { return None };
        Some(Meter::new(Arc::clone(live.streams()?), Arc::clone(live.rules()?)))
    }

    /// What reads the counts of the capture's plug-ins while it runs ([`crate::Builder::plugin`]); `None` where it has none.
    pub fn plugins(&self) -> Option<PluginCounts> {
        let counts = PluginCounts(Arc::clone(self.rules()?));
        (!counts.read().is_empty()).then_some(counts)
    }

    fn rules(&self) -> Option<&Arc<InForce>> {
        match &self.0 {
            Kind::Live(live) => live.rules(),
            Kind::Sockets(sockets, _) => sockets.rules(),
            Kind::File(file) => file.rules(),
        }
    }

    fn in_force(&self) -> Result<&Arc<InForce>> {
        self.rules().ok_or_else(|| Error::BadOption {
            option: "rules",
            reason: "the capture was started without: start it with rules, or with room for some".into(),
        })
    }

    /// `ring`, `xsk`, `packet` or `file`.
    pub fn engine(&self) -> &'static str {
        match &self.0 {
            Kind::Live(_) => "ring",
            Kind::Sockets(sockets, _) => sockets.engine(),
            Kind::File(_) => "file",
        }
    }

    /// Why this engine, where [`crate::Engine::Auto`] could not take the best one.
    pub fn engine_reason(&self) -> Option<&str> {
        match &self.0 {
            Kind::Sockets(_, reason) => reason.as_deref(),
            Kind::Live(_) | Kind::File(_) => None,
        }
    }

    /// The devices, in the order of [`crate::Record::device`]. Interfaces of a file appear as they are read.
    pub fn devices(&self) -> Vec<CaptureDevice> {
        match &self.0 {
            Kind::Live(live) => live.devices(),
            Kind::Sockets(sockets, _) => sockets.devices(),
            Kind::File(file) => file.devices(),
        }
    }

    /// What stands behind a record's device and RX queue.
    pub fn interfaces(&self) -> Interfaces {
        match &self.0 {
            Kind::Live(live) => Interfaces::live(live.devices(), live.snap_len()),
            Kind::Sockets(sockets, _) => Interfaces::live(sockets.devices(), sockets.snap_len()),
            Kind::File(file) => Interfaces::file(file.lines()),
        }
    }

    /// The workers, the first time; none after that.
    pub fn workers(&mut self) -> Vec<Worker> {
        match &mut self.0 {
            Kind::Live(live) => live.workers(),
            Kind::Sockets(sockets, _) => sockets.workers(),
            Kind::File(file) => file.workers(),
        }
    }

    /// The ledger now. While packets flow, `seen` is the sum of its columns; after [`Capture::stop`] it is the
    /// lanes' own count, and the sums hold exactly.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] where a device's statistics cannot be read.
    pub fn ledger(&self) -> Result<Ledger> {
        match &self.0 {
            Kind::Live(live) => live.ledger(),
            Kind::Sockets(sockets, _) => sockets.ledger(),
            Kind::File(file) => Ok(file.ledger()),
        }
    }

    /// How far a regular file has been read; `None` of devices, pipes and standard input.
    pub fn progress(&self) -> Option<FileProgress> {
        match &self.0 {
            Kind::Live(_) | Kind::Sockets(..) => None,
            Kind::File(file) => file.progress(),
        }
    }

    /// The devices from which nothing more will come, by name, and why: of a device that was deleted, or lost the
    /// capture program, the part of the capture has ended.
    pub fn ended(&self) -> Vec<(String, Ending)> {
        match &self.0 {
            Kind::Live(live) => live.ended(),
            Kind::Sockets(sockets, _) => sockets.ended(),
            Kind::File(_) => Vec::new(),
        }
    }

    /// To be called in a process that was forked from the one that started the capture, where it is to go on
    /// ([`crate::keep_captures_over_fork`]): threads are not forked, so what looks after the clock and the devices starts
    /// anew here. Moving load stays with the process that started the capture.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] where the thread cannot be started.
    pub fn adopt(&mut self) -> Result<()> {
        match &mut self.0 {
            Kind::Live(live) => live.adopt(),
            Kind::Sockets(sockets, _) => sockets.adopt(),
            Kind::File(_) => Ok(()),
        }
    }

    /// No more packets: on return the lanes write nothing, and workers end once they have yielded what is in
    /// their rings.
    ///
    /// # Errors
    /// [`crate::Error::Bpf`] where the kernel refuses to take the group out.
    pub fn stop(&self) -> Result<()> {
        match &self.0 {
            Kind::Live(live) => live.stop(),
            Kind::Sockets(sockets, _) => sockets.stop(),
            Kind::File(file) => {
                file.stop();
                Ok(())
            }
        }
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
