//! Changes of a running probe: SIGHUP (hot reload of its configuration) and `wirelane probe set`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGHUP;
use wirelane::PluginLine;
use wirelane::control::{Service, Serving};
use wirelane::rules::{Rule, RuleSet};
use wirelane_probe::{Changes, Conditions, Config, Plan, Switches};

use super::controller::{self, Controller};
use wirelane_screen::table::printable;

/// A request to a running probe.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Question {
    /// Returns the state.
    Show,
    /// Sets these values.
    Set(Vec<String>),
}

/// State of a running probe.
#[derive(Debug, Serialize, Deserialize)]
pub struct Standing {
    /// Path of the configuration, or its name if it is not a file.
    pub config: String,
    /// Values that were set since the configuration was read.
    pub set: Vec<String>,
    /// State of measurements, alarms and schedules.
    #[serde(flatten)]
    pub conditions: Conditions,
}

/// The active configuration.
struct ActiveConfig {
    text: String,
    /// Values that were set since the configuration was read.
    set: Vec<String>,
}

/// Changes the active plan.
pub struct Changer {
    switches: Arc<Switches>,
    /// Path for messages.
    path: PathBuf,
    /// Seed of sketches.
    seed: u64,
    /// If the kernel measures in intervals: the rules whose packets are delivered.
    whole: Option<RuleSet>,
    /// Loaded plug-ins, by their index in the configuration.
    plugins: Vec<PluginLine>,
    /// The active configuration; the lock is held during a change, so that there is one change at a time.
    active: Mutex<ActiveConfig>,
}

/// Maximum number of remembered words of set values.
const MOST_WORDS: usize = 1000;

impl Changer {
    /// Creates a changer for the active plan, made from this text.
    pub fn new(
        switches: Arc<Switches>,
        (path, text): (PathBuf, &str),
        seed: u64,
        whole: Option<RuleSet>,
        plugins: Vec<PluginLine>,
    ) -> Changer {
        let active = ActiveConfig { text: text.to_owned(), set: Vec::new() };
        Changer { switches, path, seed, whole, plugins, active: Mutex::new(active) }
    }

    fn locked(&self) -> MutexGuard<'_, ActiveConfig> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that reads the configuration again at each SIGHUP.
    pub fn watch(self: &Arc<Self>, controller: &Arc<Mutex<Controller>>) -> Result<()> {
        let mut signals =
            signal_hook::iterator::Signals::new([SIGHUP]).context("installing a signal handler")?;
        let (changer, controller) = (Arc::clone(self), Arc::downgrade(controller));
        let watch = move || {
            for _ in &mut signals {
                wirelane_export::append::reopen();
                let Some(controller) = controller.upgrade() else { break };
                // The controller is not locked while waiting: results continue to be printed.
                let asked = controller::locked(&controller).ask();
                let text = match asked {
                    Some(answer) => answer.wait(),
                    None => Err("it is not a file that could be read again".to_owned()),
                };
                let told = text.and_then(|text| changer.replace(&text));
                let path = printable(&changer.path.display().to_string()).into_owned();
                match told {
                    Ok(0) => tracing::warn!("{path} was read again, and is active"),
                    Ok(_) => {
                        tracing::warn!(
                            "{path} was read again, and is active; values that were set are discarded"
                        );
                    }
                    Err(reason) => {
                        controller::locked(&controller).changes().reloads_refused += 1;
                        tracing::warn!("the configuration stays as it was: {reason}");
                    }
                }
            }
        };
        std::thread::Builder::new().name("wl-reload".into()).spawn(watch).context("watching for SIGHUP")?;
        Ok(())
    }

    /// Answers requests until the returned value is dropped.
    pub fn serve(self: &Arc<Self>, service: Service, controller: &Arc<Mutex<Controller>>) -> Result<Serving> {
        let (changer, controller) = (Arc::clone(self), Arc::downgrade(controller));
        let serving = service.serve(move |question| {
            let question: Question =
                serde_json::from_value(question).map_err(|error| format!("invalid request: {error}"))?;
            let controller = controller.upgrade().ok_or("the probe has ended")?;
            if let Question::Set(words) = question {
                let told = changer.set(&words, &controller);
                let mut controller = controller::locked(&controller);
                let count = controller.changes();
                *(if told.is_ok() { &mut count.changes } else { &mut count.changes_refused }) += 1;
                told?;
            }
            serde_json::to_value(changer.standing(&controller)).map_err(|error| error.to_string())
        });
        serving.context("serving changes of the probe")
    }

    /// The current state.
    fn standing(&self, controller: &Mutex<Controller>) -> Standing {
        let active = self.locked();
        let (_, plan) = self.switches.now();
        let conditions = controller::locked(controller).conditions(&plan);
        Standing { config: self.path.display().to_string(), set: active.set.clone(), conditions }
    }

    /// Applies all of these changes, or none.
    fn set(&self, words: &[String], controller: &Mutex<Controller>) -> std::result::Result<(), String> {
        let changes = Changes::parse(words)?;
        let mut active = self.locked();
        let changed = changes.apply(&active.text, &self.path)?;
        self.fits(&changed.config)?;
        // The reader does not switch anything while the controller is locked.
        let holding = controller::locked(controller);
        self.switches.change(&changed).map_err(|error| error.to_string())?;
        drop(holding);
        active.text = changed.text;
        active.set.extend_from_slice(words);
        let too_many = active.set.len().saturating_sub(MOST_WORDS);
        active.set.drain(..too_many);
        tracing::warn!("set, and active: {}", printable(&words.join(" ")));
        Ok(())
    }

    /// Activates another configuration; returns the number of words that were set in the previous one.
    fn replace(&self, text: &str) -> std::result::Result<usize, String> {
        let config = Config::parse(text, &self.path).map_err(|mistakes| mistakes.to_string())?;
        let mut active = self.locked();
        self.fits(&config)?;
        let plan = Plan::new(config, self.seed).map_err(|error| error.to_string())?;
        self.switches.replace(plan);
        let before = std::mem::replace(&mut *active, ActiveConfig { text: text.to_owned(), set: Vec::new() });
        Ok(before.set.len())
    }

    /// Checks that the packets measured by the workers are delivered.
    fn comes_up(&self, config: &Config) -> std::result::Result<(), String> {
        let (Some(whole), Some(wanted)) = (&self.whole, config.whole()) else { return Ok(()) };
        let same =
            |one: &Rule, other: &Rule| one.conditions == other.conditions && one.both_ways == other.both_ways;
        let comes_up = |wanted: &Rule| whole.rules.iter().any(|rule| same(rule, wanted));
        let of_others =
            !wanted.rules.is_empty() && (wanted.sets != whole.sets || wanted.patterns != whole.patterns);
        match wanted.rules.iter().find(|rule| of_others || !comes_up(rule)) {
            None => Ok(()),
            Some(rule) => Err(format!(
                "a measurement of the workers has the rule {}, whose packets the running capture does not deliver: restart the probe",
                rule.name.as_deref().unwrap_or("without a name")
            )),
        }
    }

    /// Whether a configuration can be activated during the capture.
    fn fits(&self, config: &Config) -> std::result::Result<(), String> {
        let (_, now) = self.switches.now();
        if config.capture != now.config().capture {
            return Err("[capture] has changed: restart the probe".to_owned());
        }
        if config.is_in_kernel() != now.config().is_in_kernel()
            || config.interval_ns != now.config().interval_ns && self.whole.is_some()
        {
            return Err("the place of an analysis has changed, or the interval of sums of the kernel: restart the probe"
                .to_owned());
        }
        self.comes_up(config)?;
        if config.plugins != now.config().plugins {
            return Err("a [[plugin]] has changed: restart the probe".to_owned());
        }
        let before = now.config();
        if config.recordings() != before.recordings() || config.targets() != before.targets() {
            return Err("a recording or an export of an action has changed: restart the probe".to_owned());
        }
        config.check_counters(&self.plugins)
    }
}
