//! Collects results of a probe, prints them, and runs actions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use wirelane::PluginLine;
use wirelane::ledger::Counters;
use wirelane_probe::{Closed, Conditions, Event, Orders, Plan, Reader};

use super::exporter::Exporter;
use super::helper::{Asked, Listening};
use super::keep::Keep;
use super::recorder::Recorder;
use super::report::ProbeReport;
use super::show::Show;
use super::worker::now_ns;
use crate::out;
use wirelane_screen::probe::TopModel;
use wirelane_screen::table::printable;

/// Takes what workers hand over.
pub struct Controller {
    reader: Reader,
    show: Show,
    keep: Keep,
    helper: Option<Listening>,
    /// Where there is a screen everything goes there, and nothing is printed.
    model: Option<Arc<TopModel>>,
    recorder: Option<Recorder>,
    exporter: Option<Exporter>,
    failure: Option<anyhow::Error>,
    changes: Changes,
}

/// What was changed while it ran.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Changes {
    /// Configurations that were refused.
    pub reloads_refused: u64,
    /// Times that something was set.
    pub changes: u64,
    /// Times that this was refused.
    pub changes_refused: u64,
}

/// The controller, whoever panicked at it.
pub fn locked(controller: &Mutex<Controller>) -> MutexGuard<'_, Controller> {
    controller.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// Nothing has come yet.
    pub fn new(
        reader: Reader,
        show: Show,
        keep: Keep,
        helper: Option<Listening>,
        (recorder, exporter): (Option<Recorder>, Option<Exporter>),
    ) -> Controller {
        let changes = Changes::default();
        Controller { reader, show, keep, helper, model: None, recorder, exporter, failure: None, changes }
    }

    /// Where workers find what is to be recorded; `None`: nothing ever is.
    pub fn orders(&self) -> Option<Arc<Orders>> {
        self.recorder.as_ref().map(Recorder::orders)
    }

    /// The screen on which everything is shown; `None`: what comes is printed again.
    pub fn screen(&mut self, model: Option<Arc<TopModel>>) {
        self.model = model;
    }

    /// Asks for the configuration; `None` where it is not a file that could be read again.
    pub fn ask(&mut self) -> Option<Asked> {
        self.helper.as_mut().map(Listening::ask)
    }

    /// Counts changes, and refusals.
    pub fn changes(&mut self) -> &mut Changes {
        &mut self.changes
    }

    /// How things stand by the plan in force.
    pub fn conditions(&self, plan: &Plan) -> Conditions {
        self.reader.state(plan, now_ns())
    }

    /// The ledger says so now.
    pub fn ledger(&mut self, counters: &Counters) {
        self.keep.ledger(counters);
    }

    /// Takes what a worker hands over. False: it cannot be shown to anybody any more.
    pub fn take(&mut self, closed: Closed) -> bool {
        let events = self.reader.take(closed);
        self.tell(&events);
        self.failure.is_none()
    }

    fn tell(&mut self, events: &[Event]) {
        self.keep.take(events);
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
                Event::Record(recorded) => {
                    self.recorder.iter_mut().for_each(|recorder| recorder.record(recorded));
                    Ok(String::new())
                }
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

    /// All workers have ended, with this ledger: the totals, and what has failed.
    /// `counted`: what plug-ins have counted in all.
    pub fn finish(
        &mut self,
        counters: Option<&Counters>,
        counted: &[PluginLine],
    ) -> (ProbeReport, Option<anyhow::Error>) {
        let (events, totals) = self.reader.finish(counted);
        self.tell(&events);
        let commands = self.helper.take().map(Listening::end);
        let store = std::mem::take(&mut self.keep).finish(counters);
        let recordings = self.recorder.take().map(Recorder::finish);
        let exports = self.exporter.take().map(Exporter::finish);
        let changes = self.changes;
        let report = ProbeReport { totals, commands, changes, recordings, exports, store };
        (report, self.failure.take())
    }
}
