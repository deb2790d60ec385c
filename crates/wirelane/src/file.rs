//! A capture from a file, by the `file` engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::Source;
use crate::engine::file::{Disorder, FileInput, FileOptions, FileProgress, FileSource, InterfaceLines};
use crate::filter::{FileFilter, FileInUse, FileView};
use crate::in_force::{InForce, Judge, NativeRules, RulesRoom, Target, Times};
use crate::interfaces::CaptureDevice;
use crate::ledger::{Counters, Ledger, VirtualDeviceLine, WorkerLine};
use crate::rules::RuleSet;
use crate::worker::Worker;
use crate::{Batch, FileInterface, Result};

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct FileCapture {
    name: String,
    progress: Option<FileProgress>,
    lines: InterfaceLines,
    source: Option<FileSource>,
    filter: Arc<FileInUse>,
    rules: Option<Arc<InForce>>,
    stopped: Arc<AtomicBool>,
}

/// A file that can be told to end.
#[derive(Debug)]
struct Stoppable {
    name: String,
    source: FileSource,
    stopped: Arc<AtomicBool>,
}

impl Source for Stoppable {
    fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        // Relaxed: nothing else is read on the strength of it.
        if self.stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.source.next_batch(wait)
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        let Disorder { records, beyond } = self.source.disorder();
        if records == 0 {
            return;
        }
        let name = &self.name;
        let sorted = records - beyond;
        tracing::warn!("{name}: {records} packets are out of time order; {sorted} of them have been sorted");
        if beyond != 0 {
            tracing::warn!(
                "{name}: {beyond} packets are too far from their place in time to be sorted: sort the file with reordercap"
            );
        }
    }
}

impl FileCapture {
    pub(crate) fn read(
        input: FileInput,
        filter: FileFilter,
        rules: Option<(&RuleSet, bool)>,
    ) -> Result<FileCapture> {
        let name = input.name().display().to_string();
        let options = FileOptions { in_order: !input.is_any_order(), ..FileOptions::default() };
        let mut source = FileSource::read(input, options)?;
        let filter = Arc::new(FileInUse::new(filter));
        source.filter_by(FileView::new(Arc::clone(&filter)));
        let in_force = rules.map(|(rules, inner)| {
            let native = NativeRules::new("", 1, RulesRoom::default().for_rules(rules)?);
            source.judge_by(Judge::new(Arc::clone(&native), 0), inner);
            let targets: Vec<Arc<dyn Target>> = vec![native];
            InForce::new(targets, Times::Utc, rules).map(Arc::new)
        });
        Ok(FileCapture {
            name,
            progress: source.progress(),
            lines: source.lines(),
            source: Some(source),
            filter,
            rules: in_force.transpose()?,
            stopped: Arc::default(),
        })
    }

    pub(crate) fn workers(&mut self) -> Vec<Worker> {
        let source = self.source.take();
        let name = self.name.clone();
        let source = source.map(|source| Stoppable { name, source, stopped: Arc::clone(&self.stopped) });
        source.into_iter().map(|source| Worker::new(0, None, Box::new(source), None)).collect()
    }

    pub(crate) fn devices(&self) -> Vec<CaptureDevice> {
        let described = self.lines.now();
        described
            .iter()
            .map(|line| CaptureDevice {
                name: self.device_name(&line.interface),
                queues: vec![line.interface.queue.into()],
                hook: None,
                link_type: line.interface.link_type,
                mac: None,
                speed_mbps: None,
                zero_copy: None,
            })
            .collect()
    }

    pub(crate) fn progress(&self) -> Option<FileProgress> {
        self.progress.clone()
    }

    pub(crate) fn lines(&self) -> InterfaceLines {
        self.lines.clone()
    }

    pub(crate) fn set_filter(&self, expression: &str) -> Result<()> {
        self.filter.set(FileFilter::compile(expression)?);
        Ok(())
    }

    pub(crate) fn rules(&self) -> Option<&Arc<InForce>> {
        self.rules.as_ref()
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn ledger(&self) -> Ledger {
        let mut total = Counters::default();
        let mut virtual_devices = Vec::new();
        for (index, line) in self.lines.now().into_iter().enumerate() {
            let counted = line.counters();
            let delivered = counted.read_packets - counted.filtered_packets - counted.absorbed_packets;
            let counters = Counters {
                seen: counted.read_packets,
                filtered: counted.filtered_packets,
                absorbed: counted.absorbed_packets,
                delivered,
                analysed: counted.analysed_packets,
                in_flight: delivered - counted.analysed_packets,
                bytes: counted.analysed_bytes,
                ..Counters::default()
            };
            total += counters;
            virtual_devices.push(VirtualDeviceLine {
                device: self.device_name(&line.interface),
                queue: line.interface.queue.into(),
                index,
                egress: false,
                counters,
            });
        }
        let worker = WorkerLine { worker: 0, core: None, counters: total, sleeps: 0, wakes: 0 };
        Ledger {
            total,
            virtual_devices,
            workers: vec![worker],
            balance: None,
            lost_by: BTreeMap::new(),
            flow_cache: None,
            exits: Vec::new(),
        }
    }

    /// `eth1` of an interface called `eth1@2`; the file's name where the interface has none.
    fn device_name(&self, interface: &FileInterface) -> String {
        if interface.name.is_empty() { self.name.clone() } else { interface.device().to_owned() }
    }
}
