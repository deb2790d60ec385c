//! Where results come together: shown, and acted upon.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use signal_hook::consts::SIGHUP;
use wirelane::PluginLine;
use wirelane::ledger::Counters;
use wirelane_probe::{Closed, Config, Event, Orders, Plan, Reader, Switches};

use super::exporter::Exporter;
use super::helper::Listening;
use super::keep::Keep;
use super::recorder::Recorder;
use super::report::ProbeReport;
use super::show::Show;
use crate::out;
use crate::table::printable;

/// Takes what workers hand over.
pub struct Desk {
    reader: Reader,
    show: Show,
    keep: Keep,
    helper: Option<Listening>,
    recorder: Option<Recorder>,
    exporter: Option<Exporter>,
    failure: Option<anyhow::Error>,
    refused: u64,
}

/// The desk, whoever panicked at it.
pub fn locked(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// Nothing has come yet.
    pub fn new(
        reader: Reader,
        show: Show,
        keep: Keep,
        helper: Option<Listening>,
        (recorder, exporter): (Option<Recorder>, Option<Exporter>),
    ) -> Desk {
        Desk { reader, show, keep, helper, recorder, exporter, failure: None, refused: 0 }
    }

    /// Where workers find what is to be recorded; `None`: nothing ever is.
    pub fn orders(&self) -> Option<Arc<Orders>> {
        self.recorder.as_ref().map(Recorder::orders)
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
        let mut text = String::new();
        for event in events {
            let shown = match event {
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
        let report =
            ProbeReport { totals, commands, recordings, exports, reloads_refused: self.refused, store };
        (report, self.failure.take())
    }
}

/// What reading the configuration again takes.
pub struct Reload {
    /// Where workers find the plan in force.
    pub switches: Arc<Switches>,
    /// For messages.
    pub path: PathBuf,
    /// Of sketches.
    pub seed: u64,
    /// The kernel adds packets up, by intervals.
    pub in_kernel: bool,
    /// Plug-ins that are loaded, by their places in the configuration.
    pub plugins: Vec<PluginLine>,
}

impl Reload {
    /// Starts the thread that reads the configuration again at each SIGHUP.
    pub fn watch(self, desk: &Arc<Mutex<Desk>>) -> Result<()> {
        let mut signals =
            signal_hook::iterator::Signals::new([SIGHUP]).context("installing a signal handler")?;
        let desk = Arc::downgrade(desk);
        let watch = move || {
            for _ in &mut signals {
                let Some(desk) = desk.upgrade() else { break };
                // The desk is not held while it is waited for: results go on.
                let asked = locked(&desk).helper.as_mut().map(Listening::ask);
                let text = match asked {
                    Some(answer) => answer.wait(),
                    None => Err("it is not a file that could be read again".to_owned()),
                };
                let told = text.and_then(|text| self.replace(&text));
                let path = printable(&self.path.display().to_string()).into_owned();
                match told {
                    Ok(()) => tracing::warn!("{path} was read again, and is in force"),
                    Err(reason) => {
                        locked(&desk).refused += 1;
                        tracing::warn!("the configuration stays as it was: {reason}");
                    }
                }
            }
        };
        std::thread::Builder::new().name("wl-reload".into()).spawn(watch).context("watching for SIGHUP")?;
        Ok(())
    }

    fn replace(&self, text: &str) -> std::result::Result<(), String> {
        let config = Config::parse(text, &self.path).map_err(|mistakes| mistakes.to_string())?;
        let (_, now) = self.switches.now();
        if config.capture != now.config().capture {
            return Err("[capture] has changed, which takes another start".to_owned());
        }
        if config.plugins != now.config().plugins {
            return Err("a [[plugin]] has changed, which takes another start".to_owned());
        }
        let now_config = now.config();
        if config.recordings() != now_config.recordings() || config.targets() != now_config.targets() {
            return Err("what is recorded by an action has changed, or where it is exported, which takes another start".to_owned());
        }
        config.check_counters(&self.plugins)?;
        if config.place() != now.config().place()
            || config.interval_ns != now.config().interval_ns && self.in_kernel
        {
            return Err("where it measures has changed, or the interval of what the kernel adds up, which takes another \
                        start"
                .to_owned());
        }
        let plan = Plan::new(config, self.seed).map_err(|error| error.to_string())?;
        self.switches.replace(plan);
        Ok(())
    }
}
