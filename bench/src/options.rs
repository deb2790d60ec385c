//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::receive::Kind;
use crate::receiver::Receiver;
use crate::trial::{Case, LARGEST_LIVE_FRAME, Method, Setup};

/// Measure Wirelane beside its peers, in network namespaces of its own. Needs root and two cores.
#[derive(clap::Parser, Debug)]
#[command(version)]
pub struct Options {
    /// Fewer cases and shorter trials: under three minutes
    #[arg(long)]
    pub quick: bool,
    /// Receivers to compare; the limit (drop) is always among them
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub receivers: Vec<Receiver>,
    /// Frame sizes in bytes, without FCS
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = clap::value_parser!(u32).range(60..=9014))]
    pub sizes: Vec<u32>,
    /// Setups: a (receiver alone on core 1), b (receiver shares core 1 with NAPI)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST", ignore_case = true)]
    pub setups: Vec<Setup>,
    /// Generators
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub methods: Vec<Method>,
    /// How often each receiver has its turn
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Seconds of one trial at full speed
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Leave out the search for the highest rate without loss
    #[arg(long)]
    pub no_search: bool,
    /// Folder for the results [default: bench/results/DATE-KERNEL in the repository]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// What else to do
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What the bench starts itself as.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Receive and count until SIGTERM (the bench starts its own receivers so)
    #[command(hide = true)]
    Receive {
        /// The kind of receiver
        #[arg(value_enum)]
        kind: Kind,
        /// The device
        #[arg(short = 'i')]
        device: String,
        /// Packets may be larger than a page
        #[arg(long)]
        jumbo: bool,
    },
}

impl Options {
    /// The receivers asked for, the limit first.
    pub fn receivers(&self) -> Vec<Receiver> {
        let asked = |receiver: &Receiver| {
            *receiver == Receiver::Drop || self.receivers.is_empty() || self.receivers.contains(receiver)
        };
        Receiver::ALL.into_iter().filter(asked).collect()
    }

    /// The cases asked for. Live frames are left out where a frame is too large to be one.
    pub fn cases(&self) -> Vec<Case> {
        let or = |asked: &[u32], all: &[u32]| if asked.is_empty() { all.to_vec() } else { asked.to_vec() };
        let sizes = or(&self.sizes, if self.quick { &[60] } else { &[60, 300, 1500, 9000] });
        let setups = if self.setups.is_empty() { vec![Setup::A, Setup::B] } else { self.setups.clone() };
        let methods =
            if self.methods.is_empty() { vec![Method::Kernel, Method::Socket] } else { self.methods.clone() };
        let mut cases = Vec::new();
        for setup in setups {
            for method in &methods {
                for size in &sizes {
                    if *method == Method::Socket || *size <= LARGEST_LIVE_FRAME {
                        cases.push(Case { setup, method: *method, size: *size });
                    }
                }
            }
        }
        cases
    }

    /// How often each receiver has its turn.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 2 } else { 3 })
    }

    /// How long a trial at full speed lasts.
    pub fn trial(&self) -> Duration {
        self.seconds.unwrap_or(Duration::from_millis(if self.quick { 300 } else { 500 }))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    if (0.05..=60.0).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err("a trial lasts 0.05 to 60 seconds".to_owned())
    }
}
