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

use super::desk::{self, Desk};
use crate::table::printable;

/// What is asked of a probe that runs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Question {
    /// How do things stand?
    Show,
    /// These are to be set.
    Set(Vec<String>),
}

/// How things stand.
#[derive(Debug, Serialize, Deserialize)]
pub struct Standing {
    /// The configuration's path, or what it is otherwise.
    pub config: String,
    /// What was set since that was read.
    pub set: Vec<String>,
    /// The rest.
    #[serde(flatten)]
    pub conditions: Conditions,
}

/// The configuration in force.
struct InForce {
    text: String,
    /// What was set since it was read.
    set: Vec<String>,
}

/// Changes the plan in force.
pub struct Changer {
    switches: Arc<Switches>,
    /// For messages.
    path: PathBuf,
    /// Of sketches.
    seed: u64,
    /// Where the kernel adds packets up, by intervals: the rules whose packets come up.
    whole: Option<RuleSet>,
    /// Plug-ins that are loaded, by their places in the configuration.
    plugins: Vec<PluginLine>,
    /// One change at a time: the lock is held while one is made.
    in_force: Mutex<InForce>,
}

/// Most words that are remembered of what was set.
const MOST_WORDS: usize = 1000;

impl Changer {
    /// For the plan in force, which is of this text.
    pub fn new(
        switches: Arc<Switches>,
        (path, text): (PathBuf, &str),
        seed: u64,
        whole: Option<RuleSet>,
        plugins: Vec<PluginLine>,
    ) -> Changer {
        let in_force = InForce { text: text.to_owned(), set: Vec::new() };
        Changer { switches, path, seed, whole, plugins, in_force: Mutex::new(in_force) }
    }

    fn locked(&self) -> MutexGuard<'_, InForce> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread that reads the configuration again at each SIGHUP.
    pub fn watch(self: &Arc<Self>, desk: &Arc<Mutex<Desk>>) -> Result<()> {
        let mut signals =
            signal_hook::iterator::Signals::new([SIGHUP]).context("installing a signal handler")?;
        let (changer, desk) = (Arc::clone(self), Arc::downgrade(desk));
        let watch = move || {
            for _ in &mut signals {
                wirelane_export::append::reopen();
                let Some(desk) = desk.upgrade() else { break };
                // The desk is not held while it is waited for: results go on.
                let asked = desk::locked(&desk).ask();
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
                        desk::locked(&desk).changes().reloads_refused += 1;
                        tracing::warn!("the configuration stays as it was: {reason}");
                    }
                }
            }
        };
        std::thread::Builder::new().name("wl-reload".into()).spawn(watch).context("watching for SIGHUP")?;
        Ok(())
    }

    /// Answers who asks, until what this returns is dropped.
    pub fn serve(self: &Arc<Self>, service: Service, desk: &Arc<Mutex<Desk>>) -> Result<Serving> {
        let (changer, desk) = (Arc::clone(self), Arc::downgrade(desk));
        let serving = service.serve(move |question| {
            let question: Question =
                serde_json::from_value(question).map_err(|error| format!("invalid request: {error}"))?;
            let desk = desk.upgrade().ok_or("the probe has ended")?;
            if let Question::Set(words) = question {
                let told = changer.set(&words, &desk);
                let mut desk = desk::locked(&desk);
                let count = desk.changes();
                *(if told.is_ok() { &mut count.changes } else { &mut count.changes_refused }) += 1;
                told?;
            }
            serde_json::to_value(changer.standing(&desk)).map_err(|error| error.to_string())
        });
        serving.context("serving changes of the probe")
    }

    /// How things stand now.
    fn standing(&self, desk: &Mutex<Desk>) -> Standing {
        let in_force = self.locked();
        let (_, plan) = self.switches.now();
        let conditions = desk::locked(desk).conditions(&plan);
        Standing { config: self.path.display().to_string(), set: in_force.set.clone(), conditions }
    }

    /// Sets this, all or nothing.
    fn set(&self, words: &[String], desk: &Mutex<Desk>) -> std::result::Result<(), String> {
        let changes = Changes::parse(words)?;
        let mut in_force = self.locked();
        let changed = changes.apply(&in_force.text, &self.path)?;
        self.fits(&changed.config)?;
        // Meanwhile the reader switches nothing.
        let holding = desk::locked(desk);
        self.switches.change(&changed).map_err(|error| error.to_string())?;
        drop(holding);
        in_force.text = changed.text;
        in_force.set.extend_from_slice(words);
        let too_many = in_force.set.len().saturating_sub(MOST_WORDS);
        in_force.set.drain(..too_many);
        tracing::warn!("set, and active: {}", printable(&words.join(" ")));
        Ok(())
    }

    /// Puts another configuration in force; how many words were set in the one before.
    fn replace(&self, text: &str) -> std::result::Result<usize, String> {
        let config = Config::parse(text, &self.path).map_err(|mistakes| mistakes.to_string())?;
        let mut in_force = self.locked();
        self.fits(&config)?;
        let plan = Plan::new(config, self.seed).map_err(|error| error.to_string())?;
        self.switches.replace(plan);
        let before = std::mem::replace(&mut *in_force, InForce { text: text.to_owned(), set: Vec::new() });
        Ok(before.set.len())
    }

    /// Whether the packets come up that the workers measure.
    fn comes_up(&self, config: &Config) -> std::result::Result<(), String> {
        let (Some(whole), Some(wanted)) = (&self.whole, config.whole()) else { return Ok(()) };
        let comes_up = |wanted: &Rule| whole.rules.iter().any(|rule| rule.conditions == wanted.conditions);
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

    /// Whether a configuration can take over while it runs.
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
