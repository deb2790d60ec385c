//! Collects results of a probe, prints them, and runs actions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use wirelane::PluginLine;
use wirelane::ledger::Counters;
use wirelane_export::OutputState;
use wirelane_probe::{AlarmEvent, Closed, Conditions, Event, Orders, Plan, Reader};

use super::exporter::Exporter;
use super::helper::{Asked, ProbeHelper};
use super::keep::Keep;
use super::recorder::Recorder;
use super::report::ProbeReport;
use super::show::Show;
use super::worker::now_ns;
use crate::out;
use wirelane_screen::probe::TopModel;
use wirelane_screen::table::printable;

/// Receives the results of the workers.
pub struct Controller {
    reader: Reader,
    show: Show,
    keep: Keep,
    helper: Option<ProbeHelper>,
    /// The live view, which receives all output instead of standard output.
    model: Option<Arc<TopModel>>,
    recorder: Option<Recorder>,
    exporter: Option<Exporter>,
    failure: Option<anyhow::Error>,
    changes: Changes,
}

/// Counts of changes while the probe was running.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Changes {
    /// Refused configurations.
    pub reloads_refused: u64,
    /// Successful changes with `probe set`.
    pub changes: u64,
    /// Refused changes with `probe set`.
    pub changes_refused: u64,
}

/// Locks the controller, even after a panic.
pub fn locked(controller: &Mutex<Controller>) -> MutexGuard<'_, Controller> {
    controller.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// A controller without results.
    pub fn new(
        reader: Reader,
        show: Show,
        keep: Keep,
        helper: Option<ProbeHelper>,
        (recorder, exporter): (Option<Recorder>, Option<Exporter>),
    ) -> Controller {
        let changes = Changes::default();
        Controller { reader, show, keep, helper, model: None, recorder, exporter, failure: None, changes }
    }

    /// Orders of recordings for workers; `None`: the configuration does not record.
    pub fn orders(&self) -> Option<Arc<Orders>> {
        self.recorder.as_ref().map(Recorder::orders)
    }

    /// Sets the live view that receives all output; `None`: output is printed again.
    pub fn screen(&mut self, model: Option<Arc<TopModel>>) {
        self.model = model;
    }

    /// Requests the configuration; `None` if it is not a file that can be read again.
    pub fn ask(&mut self) -> Option<Asked> {
        self.helper.as_mut().map(ProbeHelper::ask)
    }

    /// Counts of changes and refusals.
    pub fn changes(&mut self) -> &mut Changes {
        &mut self.changes
    }

    /// State of the given plan.
    pub fn conditions(&self, plan: &Plan) -> Conditions {
        self.reader.state(plan, now_ns())
    }

    /// State of the store, if there is one.
    pub fn store(&self) -> Option<OutputState> {
        self.keep.store()
    }

    /// Processes the current ledger.
    pub fn ledger(&mut self, counters: &Counters) {
        self.keep.ledger(counters);
        self.keep_recorded();
    }

    fn keep_recorded(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            self.keep.recorded(recorder.ended());
        }
    }

    /// Processes a worker's result. False: the output has failed.
    pub fn take(&mut self, closed: Closed) -> bool {
        let events = self.reader.take(closed);
        self.tell(&events);
        self.failure.is_none()
    }

    /// Begins recordings; returns their alarms.
    fn record<'e>(&mut self, events: &'e [Event]) -> Vec<&'e AlarmEvent> {
        let Some(recorder) = &mut self.recorder else { return Vec::new() };
        let recorded = events.iter().filter_map(|event| match event {
            Event::Record(recorded) => recorder.record(recorded).then_some(&recorded.alarm),
            _ => None,
        });
        recorded.collect()
    }

    fn tell(&mut self, events: &[Event]) {
        let awaited = self.record(events);
        self.keep.take(events, &awaited);
        self.keep_recorded();
        if let Some(model) = &self.model {
            model.take(events);
        }
        let mut text = String::new();
        for event in events {
            let shown = match event {
                Event::Shown(_) | Event::Alarm(_) if self.model.is_some() => Ok(String::new()),
                Event::Shown(shown) => self.show.shown(shown),
                Event::Alarm(alarm) => self.show.alarm(alarm, alarm.end_ns),
                Event::Log(line) => {
                    tracing::warn!("{}", printable(line));
                    Ok(String::new())
                }
                Event::Export(place, alarm) => {
                    self.exporter.iter_mut().for_each(|exporter| exporter.export(*place, alarm));
                    Ok(String::new())
                }
                Event::Record(_) => Ok(String::new()),
                Event::Run { words, timeout_ns } => {
                    if let Some(helper) = &mut self.helper {
                        helper.run(words, *timeout_ns);
                    }
                    Ok(String::new())
                }
            };
            match shown {
                Ok(shown) => text += &shown,
                Err(error) => self.failure = Some(error.into()),
            }
        }
        if !text.is_empty()
            && self.failure.is_none()
            && let Err(error) = out::print(text)
        {
            self.failure = Some(error);
        }
    }

    /// Ends the controller after all workers, with this ledger: prints the totals, and reports failures. `counted`:
    /// total counts of plug-ins.
    pub fn finish(
        &mut self,
        counters: Option<&Counters>,
        counted: &[PluginLine],
    ) -> (ProbeReport, Option<anyhow::Error>) {
        let (events, totals) = self.reader.finish(counted);
        self.tell(&events);
        let commands = self.helper.take().map(ProbeHelper::end);
        let recordings = self.recorder.take().map(|recorder| {
            let (recordings, alarms) = recorder.finish();
            self.keep.recorded(alarms);
            recordings
        });
        let store = std::mem::take(&mut self.keep).finish(counters);
        let exports = self.exporter.take().map(Exporter::finish);
        let changes = self.changes;
        let report = ProbeReport { totals, commands, changes, recordings, exports, store };
        (report, self.failure.take())
    }
}
