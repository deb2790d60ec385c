//! A probe as one of several analyses of a monitor's capture: the section [probe].

use std::path::PathBuf;

use anyhow::Result;
use wirelane::{Error, KernelFlows};
use wirelane_monitor::probe::analysis::ProbeAnalysis;
use wirelane_monitor::probe::helper;
use wirelane_monitor::probe::show::Show;
use wirelane_probe::Config;

use super::{Origin, kernel, plugins};
use crate::outputs::StoreArgs;
use crate::source::{SourceArgs, SteeringArg};

/// Options of the section, and those that all sections share.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration of 'wirelane probe'
    #[arg(long, value_name = "FILE", required_unless_present = "ready", conflicts_with = "ready")]
    config: Option<PathBuf>,

    /// Use a ready-made configuration instead
    #[arg(long, value_name = "NAME", value_parser = super::ready_name)]
    ready: Option<String>,

    /// Flows that each lane has room for, where measurements are made in the kernel
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=KernelFlows::MOST_ENTRIES as i64))]
    cache_entries: Option<u32>,

    #[command(flatten)]
    pub source: SourceArgs,

    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,

    #[arg(long, value_enum, default_value_t = SteeringArg::Flow)]
    steering: SteeringArg,

    #[command(flatten)]
    store: StoreArgs,

    /// Whether the capture has other analyses.
    #[arg(skip)]
    pub is_beside_others: bool,
}

impl Args {
    /// Checks the configuration.
    pub fn check(&self) -> Result<()> {
        let config = self.config()?;
        if !self.is_beside_others {
            kernel::rules(&self.source, self.cache_entries, &config, self.steering)?;
        } else if self.cache_entries.is_some() {
            let reason = "measurements in the kernel exclude other sections; leave it out".to_owned();
            return Err(Error::BadOption { option: "--cache-entries", reason }.into());
        }
        plugins::check(&self.source, &config)
    }

    /// Keys of a monitor's `[capture]` that must say what the `[capture]` of the configuration says, which they replace.
    pub fn replaced(&self) -> Result<Vec<(&'static str, &'static [&'static str])>> {
        let capture = self.config()?.capture;
        let keys: [(bool, &str, &[&str]); 4] = [
            (capture.engine.is_some(), "engine", &["engine"]),
            (capture.workers.is_some(), "workers", &["workers"]),
            (capture.steering.is_some(), "steering", &["steering"]),
            (capture.filter.is_some(), "filter", &["filter", "filter-file"]),
        ];
        Ok(keys.into_iter().filter_map(|(is_there, key, keys)| is_there.then_some((key, keys))).collect())
    }

    /// The configuration.
    fn config(&self) -> Result<Config> {
        let wrong = |reason: String| Error::BadOption { option: "--config", reason };
        let origin = Origin::load(self.config.as_deref(), self.ready.as_deref())
            .map_err(|error| wrong(format!("{error:#}")))?;
        let config =
            Config::parse(&origin.text, &origin.path).map_err(|mistakes| wrong(mistakes.to_string()))?;
        let foreign = [
            (
                config.asks_for_kernel(),
                "analysis = \"kernel\": what is measured in the kernel excludes other sections",
            ),
            (!config.plugins.is_empty(), "[[plugin]]: plug-ins exclude other sections"),
        ];
        let foreign = foreign.into_iter().find(|(is_there, _)| self.is_beside_others && *is_there);
        if let Some((_, reason)) = foreign {
            return Err(wrong(format!("{}: {reason}", origin.path.display())).into());
        }
        if matches!(self.steering, SteeringArg::Copy | SteeringArg::RoundRobin) {
            let reason =
                "each packet is counted by one worker, and those of a connection by the same: give 'flow'";
            return Err(Error::BadOption { option: "--steering", reason: reason.to_owned() }.into());
        }
        Ok(config)
    }

    /// Opens the outputs, before privileges are dropped.
    pub fn prepare(&mut self) -> Result<ProbeAnalysis> {
        let config = self.config()?;
        if !self.is_beside_others {
            self.source.kernel_flows =
                kernel::flows(&mut self.source, self.cache_entries, &config, self.steering)?;
            plugins::prepare(&mut self.source, &config)?;
        }
        let identity = self.source.rights.identity()?;
        let runs = config.runs_programs();
        let helper = runs.then(|| helper::start(identity, None, &self.source.rights.secrets)).transpose()?;
        super::opened(&mut self.source, &self.store, config, (helper, Show::Nothing), (self.workers, None))
    }
}
