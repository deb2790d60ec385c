//! Plug-ins that the configuration's measurements need: they run in the capture.

use std::path::PathBuf;

use anyhow::Result;
use wirelane::Error;
use wirelane_probe::Config;

use crate::source::{EngineArg, SourceArgs};

/// Checks that the plug-ins of the configuration can run.
///
/// # Errors
/// If they cannot run, because they need the kernel.
pub fn check(source: &SourceArgs, config: &Config) -> Result<()> {
    let Some(first) = config.plugins.first() else { return Ok(()) };
    let cannot = |option: &'static str, why: &str| {
        let reason = format!(
            "the configuration has the plug-in '{}', and plug-ins run in the kernel: {why}",
            first.name
        );
        Err(Error::BadOption { option, reason }.into())
    };
    if !source.read.is_empty() {
        return cannot("-r", "not on files: measure packets of a device");
    }
    if matches!(source.engine, EngineArg::Xsk | EngineArg::Packet) {
        return cannot("--engine", "only engine 'ring' runs them; leave the option out");
    }
    Ok(())
}

/// Makes the capture load the plug-ins of the configuration.
///
/// # Errors
/// See [`check`].
pub fn prepare(source: &mut SourceArgs, config: &Config) -> Result<()> {
    if config.plugins.is_empty() {
        return Ok(());
    }
    check(source, config)?;
    let plugins = config.plugins.iter().map(|one| (one.name.clone(), PathBuf::from(&one.file)));
    source.ruled.ask(plugins.collect())
}
