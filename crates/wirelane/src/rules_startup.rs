//! Rules of a live capture at its start: activates them, opens the control socket, and starts the thread that serves it
//! once rights are given up.

use std::sync::Arc;

use crate::active_rules::{ActiveRuleset, Observer, RulesCapacity, Target, Times};
use crate::settings::Settings;
use crate::state::{StateEntry, StateReader};
use serde_json::Value;
use wirelane_control::{About, Cursor, Listener, Purpose, Server};
use wirelane_rules::{Changed, ExactFields, ExactLine, ExactRule, Rule, RuleSet, RuleStats};

type Result<T, E = crate::error::Error> = std::result::Result<T, E>;
use wirelane_privsep::Sandbox;
use wirelane_privsep::broker::Broker;

/// Rules that are active before the first packet is evaluated, and the control socket to change them.
pub(crate) struct StartedRules {
    active_rules: Arc<ActiveRuleset>,
    listener: Option<Listener>,
    about: About,
}

/// Capacity for rules that a capture with these settings allocates on each device; `None`: no rules.
///
/// # Errors
/// [`Error::Rules`] for invalid rules.
pub(crate) fn room(settings: &Settings) -> Result<Option<RulesCapacity>> {
    settings.rules.as_ref().map(|rules| settings.rules_capacity.for_rules(rules)).transpose()
}

/// Activates the rules of a capture on its devices; `None`: no rules. `observers` hear of their changes. Needs the rights to
/// open a socket.
///
/// # Errors
/// As [`ActiveRuleset::new`], and where the socket cannot be opened.
pub(crate) fn start(
    settings: &Settings,
    engine: &'static str,
    targets: Vec<Arc<dyn Target>>,
    times: Times,
    broker: &Arc<Broker>,
    observers: Vec<Arc<dyn Observer>>,
) -> Result<Option<StartedRules>> {
    let Some(rules) = &settings.rules else { return Ok(None) };
    let mut devices: Vec<String> = targets.iter().map(|target| target.device().to_owned()).collect();
    devices.dedup();
    let egress_devices = settings.egress_devices.clone();
    let plugins = settings.plugins.iter().map(|(name, _)| name.clone()).collect();
    let (command, namespace) = wirelane_control::whereabouts()?;
    let active_rules = Arc::new(ActiveRuleset::new(targets, times, rules, observers)?);
    let listener = match settings.is_managed().then(|| Listener::open(broker, Purpose::Rules)) {
        Some(Err(e @ wirelane_control::Error::Unsupported { .. })) => {
            tracing::warn!("{e}; without, 'wirelane rules' cannot change the rules of this capture");
            None
        }
        listener => listener.transpose()?,
    };
    Ok(Some(StartedRules {
        active_rules,
        listener,
        about: About { engine, command, devices, egress_devices, plugins, maps: Vec::new(), namespace },
    }))
}

/// Gives up the capture's rights, except for those needed to change these rules, if there are any.
///
/// # Errors
/// As [`Sandbox::apply`].
pub(crate) fn confine(confinement: Option<&Sandbox>, ruled: Option<&StartedRules>) -> Result<()> {
    match (confinement, ruled) {
        (Some(confinement), Some(rules)) => {
            Ok(confinement.clone().changing_rules(rules.active_rules.has_observers()).apply()?)
        }
        (Some(confinement), None) => Ok(confinement.apply()?),
        (None, _) => Ok(()),
    }
}

impl StartedRules {
    /// Starts the thread that serves changes, and these maps of users' programs.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(crate) fn serve(self, state: StateReader) -> Result<(Arc<ActiveRuleset>, Server)> {
        let maps = state.maps().map(|(program, map)| (program.to_owned(), map.to_owned())).collect();
        let served = Arc::new(Served(Arc::clone(&self.active_rules), state));
        let server = Server::start(self.listener, served, About { maps, ..self.about })?;
        Ok((self.active_rules, server))
    }
}

/// The rules in force, as seen by the control socket.
struct Served(Arc<ActiveRuleset>, StateReader);

fn answered<T>(result: Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

impl wirelane_control::Rules for Served {
    fn replace(&self, rules: &RuleSet) -> Result<Changed, String> {
        answered(self.0.replace(rules))
    }

    fn extend(&self, rules: Vec<Rule>, exact: Vec<ExactRule>) -> Result<Changed, String> {
        answered(self.0.extend(rules, exact))
    }

    fn remove(&self, ids: &[u32], exact: &[ExactFields]) -> Result<Changed, String> {
        answered(self.0.remove(ids, exact))
    }

    fn flush(&self, all: bool) -> Result<Changed, String> {
        answered(self.0.flush(all))
    }

    fn stats(&self) -> Result<RuleStats, String> {
        answered(self.0.stats())
    }

    fn exact(&self, from: Cursor) -> Result<(Vec<ExactLine>, Option<Cursor>), String> {
        answered(self.0.exact(from))
    }

    fn state(
        &self,
        program: &str,
        map: &str,
        from: Option<u32>,
    ) -> Result<(Vec<Value>, Option<u32>), String> {
        let (entries, next) = answered(self.1.page(program, map, from))?;
        Ok((entries.into_iter().map(StateEntry::into_json).collect(), next))
    }

    fn sweep(&self) -> Result<bool, String> {
        answered(self.0.sweep())
    }
}
