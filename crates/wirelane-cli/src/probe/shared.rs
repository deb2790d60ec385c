//! A probe as one of several analyses of a monitor's capture: the section [probe].

use std::path::PathBuf;

use anyhow::Result;
use wirelane::Error;
use wirelane_monitor::probe::analysis::{ProbeAnalysis, Settings};
use wirelane_monitor::probe::exporter::Opened;
use wirelane_monitor::probe::helper;
use wirelane_monitor::probe::recorder::Folders;
use wirelane_monitor::probe::show::Show;
use wirelane_monitor::shares::Shares;
use wirelane_monitor::store::Store;
use wirelane_probe::Config;

use crate::outputs::StoreArgs;
use crate::source::{SourceArgs, SteeringArg};

/// Options of the section, and those that all sections share.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration of 'wirelane probe', without [capture]
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    #[command(flatten)]
    pub source: SourceArgs,

    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,

    #[arg(long, value_enum, default_value_t = SteeringArg::Flow)]
    steering: SteeringArg,

    #[command(flatten)]
    store: StoreArgs,
}

impl Args {
    /// Checks the configuration.
    pub fn check(&self) -> Result<()> {
        self.config().map(|_| ())
    }

    /// The configuration, of which one capture for several analyses has no plug-ins and no measurements in the kernel.
    fn config(&self) -> Result<Config> {
        let wrong = |reason: String| Error::BadOption { option: "--config", reason };
        let path = &self.config;
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
        let config = Config::parse(&text, path).map_err(|mistakes| wrong(mistakes.to_string()))?;
        let foreign = [
            (
                config.capture != Default::default(),
                "[capture]: the monitor's file says what is captured; leave it out",
            ),
            (
                config.is_in_kernel(),
                "analysis = \"kernel\": what is measured in the kernel excludes other sections",
            ),
            (!config.plugins.is_empty(), "[[plugin]]: a monitor has no plug-ins"),
        ];
        if let Some((_, reason)) = foreign.into_iter().find(|(is_there, _)| *is_there) {
            return Err(wrong(format!("{}: {reason}", path.display())).into());
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
        let live = self.source.read.is_empty();
        let identity = self.source.rights.identity()?;
        let owner = identity.as_ref().map(|identity| identity.ids());
        let runs = config.runs_programs();
        let helper = runs.then(|| helper::start(identity, None, &self.source.rights.secrets)).transpose()?;
        let store = Store::open(&self.store.options(), live, owner, Shares::UNLIMITED, |_| 0)?;
        self.source.rights.stores(self.store.folder.as_ref());
        let folders = Folders::open(&config, owner, &mut self.source.rights.trees)?;
        let targets = Opened::open(&config, owner, self.source.rights.exports())?;
        Ok(ProbeAnalysis::new(Settings {
            config,
            seed: super::seed(live)?,
            inner: self.source.inner,
            live,
            workers: self.workers,
            show: Show::Nothing,
            store,
            helper,
            folders,
            targets,
        }))
    }
}
