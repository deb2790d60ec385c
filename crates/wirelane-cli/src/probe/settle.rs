//! Merges capture settings of the configuration and the command line.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum as _;
use clap::builder::PossibleValue;
use wirelane::Error;
use wirelane_probe::Config;
use wirelane_probe::config::{Engine, Steering};

use super::{Args, Origin};
use crate::source::{EngineArg, SteeringArg};

/// Applies the configuration's capture settings that are not on the command line.
pub fn settle(args: &mut Args, config: &Config) -> Result<(usize, SteeringArg)> {
    let capture = &config.capture;
    let source = &mut args.source;
    ensure!(
        capture.devices.is_empty() || capture.read.is_none(),
        "[capture] has devices and read: give one of them"
    );
    if source.interface.is_empty() && source.read.is_empty() {
        source.interface.clone_from(&capture.devices);
        source.read = capture.read.iter().map(PathBuf::from).collect();
    }
    if let (EngineArg::Auto, Some(engine)) = (source.engine, capture.engine) {
        source.engine = match engine {
            Engine::Auto => EngineArg::Auto,
            // Another source on the command line needs another engine.
            Engine::File if source.read.is_empty() => EngineArg::Auto,
            Engine::File => EngineArg::File,
            _ if !source.read.is_empty() => EngineArg::Auto,
            Engine::Ring => EngineArg::Ring,
            Engine::Xsk => EngineArg::Xsk,
            Engine::Packet => EngineArg::Packet,
        };
    }
    if source.filter.is_empty()
        && source.filter_file.is_none()
        && let Some(filter) = &capture.filter
    {
        source.filter = vec![filter.clone()];
    }
    let steering = match (args.steering, capture.steering) {
        (Some(SteeringArg::Copy | SteeringArg::RoundRobin), _) => {
            let reason =
                "each packet is counted by one worker, and those of a connection by the same: give 'flow'";
            return Err(Error::BadOption { option: "--steering", reason: reason.into() }.into());
        }
        (Some(steering), _) => steering,
        (None, None | Some(Steering::Flow)) => SteeringArg::Flow,
        (None, Some(Steering::Queue)) => SteeringArg::Queue,
    };
    let from_file = !source.read.is_empty();
    let workers = args.workers.or(if from_file { None } else { capture.workers }).unwrap_or(1);
    Ok((workers, steering))
}

/// What the configuration of a command line says about the capture, as keys of a monitor's `[capture]`, each with the value that
/// is in force beside the options.
///
/// # Errors
/// The configuration cannot be read or has mistakes, or is on standard input.
pub fn settled(mut args: Args) -> Result<Vec<(&'static str, Vec<String>)>> {
    if args.ready.is_some() {
        return Ok(Vec::new());
    }
    if args.config.as_ref().is_some_and(|config| config.as_os_str() == "-") {
        let reason = "a monitor reads no standard input: give the configuration as a file";
        return Err(Error::BadOption { option: "--print-config", reason: reason.into() }.into());
    }
    let origin = Origin::load(args.config.as_deref(), None)?;
    let config = Config::parse(&origin.text, &origin.path)?;
    let (workers, steering) = settle(&mut args, &config)?;
    let (capture, source) = (&config.capture, &args.source);
    let name = |value: Option<PossibleValue>| value.map(|value| vec![value.get_name().to_owned()]);
    let keys = [
        ("interface", (!capture.devices.is_empty()).then(|| source.interface.clone())),
        (
            "read",
            capture
                .read
                .as_ref()
                .map(|_| source.read.iter().map(|file| file.display().to_string()).collect()),
        ),
        ("engine", capture.engine.and_then(|_| name(source.engine.to_possible_value()))),
        ("workers", capture.workers.map(|_| vec![workers.to_string()])),
        ("steering", capture.steering.and_then(|_| name(steering.to_possible_value()))),
        ("filter", capture.filter.as_ref().map(|_| source.filter.clone())),
    ];
    Ok(keys
        .into_iter()
        .filter_map(|(key, words)| Some((key, words.filter(|words| !words.is_empty())?)))
        .collect())
}
