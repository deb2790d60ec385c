//! A capture from a file, by the `file` engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::Source;
use wirelane_pcapng::{FileInput, FileInterface, FileProgress};

use crate::active_rules::{ActiveRuleset, Evaluator, NativeRules, RulesCapacity, Target, Times};
use crate::backend::Backend;
use crate::batch::Batch;
use crate::engine::file::{Disorder, FileOptions, FileSource, InterfaceLines};
use crate::error::{Error, Result};
use crate::interfaces::{CaptureDevice, Interfaces};
use crate::ledger::{Counters, Ledger, VirtualDeviceLine, WorkerLine};
use crate::worker::Worker;
use wirelane_filter::{FileFilter, FileInUse, FileView, Filter};
use wirelane_rules::RuleSet;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct FileCapture {
    name: String,
    progress: Option<FileProgress>,
    lines: InterfaceLines,
    source: Option<FileSource>,
    filter: Arc<FileInUse>,
    rules: Option<Arc<ActiveRuleset>>,
    stopped: Arc<AtomicBool>,
}

/// A file that can be stopped.
#[derive(Debug)]
struct Stoppable {
    name: String,
    source: FileSource,
    stopped: Arc<AtomicBool>,
}

impl Source for Stoppable {
    fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        // Relaxed: no other data depends on it.
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
        inputs: Vec<FileInput>,
        filter: FileFilter,
        rules: Option<(&RuleSet, bool)>,
    ) -> Result<FileCapture> {
        let name = match &inputs[..] {
            [input] => input.name().display().to_string(),
            _ => format!("{} files", inputs.len()),
        };
        let in_order = !inputs.iter().all(FileInput::is_any_order);
        let mut source = FileSource::merge(inputs, FileOptions { in_order, ..FileOptions::default() })?;
        let filter = Arc::new(FileInUse::new(filter));
        source.filter_by(FileView::new(Arc::clone(&filter)));
        let active_rules = rules.map(|(rules, inner)| {
            let native = NativeRules::new("", 1, RulesCapacity::default().for_rules(rules)?);
            source.evaluate_by(Evaluator::new(Arc::clone(&native), 0), inner);
            let targets: Vec<Arc<dyn Target>> = vec![native];
            ActiveRuleset::new(targets, Times::Utc, rules, Vec::new()).map(Arc::new)
        });
        Ok(FileCapture {
            name,
            progress: source.progress(),
            lines: source.lines(),
            source: Some(source),
            filter,
            rules: active_rules.transpose()?,
            stopped: Arc::default(),
        })
    }

    /// `eth1` for an interface called `eth1@2`; the file's name where the interface has no name.
    fn device_name(&self, interface: &FileInterface) -> String {
        if interface.name.is_empty() { self.name.clone() } else { interface.device().to_owned() }
    }
}

impl Backend for FileCapture {
    fn workers(&mut self) -> Vec<Worker> {
        let source = self.source.take();
        let name = self.name.clone();
        let source = source.map(|source| Stoppable { name, source, stopped: Arc::clone(&self.stopped) });
        source.into_iter().map(|source| Worker::new(0, None, Box::new(source), None)).collect()
    }

    fn devices(&self) -> Vec<CaptureDevice> {
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

    fn progress(&self) -> Option<FileProgress> {
        self.progress.clone()
    }

    fn interfaces(&self) -> Interfaces {
        Interfaces::file(self.lines.clone())
    }

    fn set_filter(&self, expression: &str) -> Result<()> {
        self.filter.set(FileFilter::compile(expression)?);
        Ok(())
    }

    fn rules(&self) -> Option<&Arc<ActiveRuleset>> {
        self.rules.as_ref()
    }

    fn stop(&self) -> Result<()> {
        self.stopped.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn ledger(&self) -> Result<Ledger> {
        let mut total = Counters::default();
        let mut virtual_devices: Vec<VirtualDeviceLine> = Vec::new();
        // Merged files have many interfaces without names, which nobody can tell apart: they share a line.
        let mut unnamed: Option<(usize, usize)> = None;
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
            if line.interface.name.is_empty() {
                let (at, interfaces) = unnamed.get_or_insert((virtual_devices.len(), 0));
                *interfaces += 1;
                if let Some(shared) = virtual_devices.get_mut(*at) {
                    shared.device = format!("{} ({interfaces} interfaces without names)", self.name);
                    shared.counters += counters;
                    continue;
                }
            }
            virtual_devices.push(VirtualDeviceLine {
                device: self.device_name(&line.interface),
                queue: line.interface.queue.into(),
                index,
                egress: false,
                counters,
            });
        }
        let worker = WorkerLine { worker: 0, core: None, counters: total, sleeps: 0, wakes: 0 };
        Ok(Ledger {
            total,
            virtual_devices,
            workers: vec![worker],
            balance: None,
            lost_by: BTreeMap::new(),
            flow_cache: None,
            plugins: Vec::new(),
            plugin_records: None,
            egress_devices: Vec::new(),
        })
    }

    fn engine(&self) -> &'static str {
        "file"
    }

    fn set_compiled_filter(&self, _filter: &Filter) -> Result<()> {
        Err(Error::BadOption {
            option: "filter",
            reason: "a compiled program is for devices: give the expression for a file".into(),
        })
    }
}
