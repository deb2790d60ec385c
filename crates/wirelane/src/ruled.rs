//! What a live capture does about its rules when it starts: they come into force, a socket is made for who changes
//! them, and once rights are given up a thread serves it.

use std::sync::Arc;

use crate::control::{self, About, Listener, Purpose, Server};
use crate::in_force::{InForce, RulesRoom, Target, Times};
use crate::settings::Settings;
use crate::{Error, Result};
use wirelane_privsep::Sandbox;
use wirelane_privsep::cleanup::CleanupProcess;

/// Rules that are in force before the first packet is judged, and what is needed to change them.
pub(crate) struct Ready {
    in_force: Arc<InForce>,
    listener: Option<Listener>,
    about: About,
}

/// The room that a capture with these settings sets aside for rules on each device; `None` where it has none.
///
/// # Errors
/// [`Error::Rules`] for what is wrong with the rules.
pub(crate) fn room(settings: &Settings) -> Result<Option<RulesRoom>> {
    settings.rules.as_ref().map(|rules| settings.rules_room.for_rules(rules)).transpose()
}

/// Puts the rules of a capture in force on its devices; `None` where it has none. Takes the rights that making a socket
/// takes.
///
/// # Errors
/// As [`InForce::new`], and where there can be no socket.
pub(crate) fn start(
    settings: &Settings,
    engine: &'static str,
    targets: Vec<Arc<dyn Target>>,
    times: Times,
    cleanup: &Arc<CleanupProcess>,
) -> Result<Option<Ready>> {
    let Some(rules) = &settings.rules else { return Ok(None) };
    let mut devices: Vec<String> = targets.iter().map(|target| target.device().to_owned()).collect();
    devices.dedup();
    let exits = settings.exits.clone();
    let plugins = settings.plugins.iter().map(|(name, _)| name.clone()).collect();
    let (command, namespace) = control::whereabouts()?;
    let in_force = Arc::new(InForce::new(targets, times, rules)?);
    let listener = match settings.is_managed().then(|| Listener::open(cleanup, Purpose::Rules)) {
        Some(Err(e @ Error::Unsupported { .. })) => {
            tracing::warn!("{e}; without, 'wirelane rules' cannot change the rules of this capture");
            None
        }
        listener => listener.transpose()?,
    };
    Ok(Some(Ready {
        in_force,
        listener,
        about: About { engine, command, devices, exits, plugins, namespace },
    }))
}

/// Gives the capture's rights up, but for what changing rules takes where there are any.
///
/// # Errors
/// As [`Sandbox::apply`].
pub(crate) fn confine(confinement: Option<&Sandbox>, ruled: bool) -> Result<()> {
    match confinement {
        Some(confinement) if ruled => Ok(confinement.clone().changing_rules().apply()?),
        Some(confinement) => Ok(confinement.apply()?),
        None => Ok(()),
    }
}

impl Ready {
    /// Starts the thread that serves changes.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(crate) fn serve(self) -> Result<(Arc<InForce>, Server)> {
        let server = Server::start(self.listener, Arc::clone(&self.in_force), self.about)?;
        Ok((self.in_force, server))
    }
}
