//! Selects the running capture that a command queries or changes.

use anyhow::Result;
use wirelane::control::{Client, Purpose, Status};
use wirelane_monitor::instance;

/// Selects a running capture.
#[derive(clap::Args, Debug)]
pub struct Which {
    /// The capture on this device. Needed where there are several
    #[arg(short, long = "interface", value_name = "DEV")]
    pub interface: Option<String>,

    /// The capture of this process
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,

    /// Print JSON: one object, or of a list one a line and a last one with "final": true
    #[arg(long)]
    pub json: bool,
}

impl Which {
    /// Connects to the capture; also returns its status.
    ///
    /// # Errors
    /// If no capture, or more than one, matches.
    pub fn connect(&self, purpose: Purpose) -> Result<(Status, Client)> {
        instance::connect(self.interface.as_deref(), self.pid, purpose)
    }
}
