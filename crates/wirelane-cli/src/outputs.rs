//! Options of outputs: a store, and a limit of records.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ArgMatches;
use wirelane::Error;
use wirelane_monitor::kept_ledger::KeptLedger;
use wirelane_monitor::store::StoreOptions;
use wirelane_screen::table::printable;

use crate::record::options::size;
use crate::source::{self, SourceArgs};
use crate::values::time;

/// Heading of the help.
const STORE: &str = "A store, for 'wirelane query'";

/// Folder of the store, and limits of its files.
#[derive(clap::Args, Debug)]
pub struct StoreArgs {
    /// Store it all in this folder, in Parquet files by the hour, for 'wirelane query' and other tools. It is made where it is not
    /// there. Several writers may share it, of flows, calls, transactions and what probes measure
    #[arg(long = "store", value_name = "DIR", help_heading = STORE)]
    pub folder: Option<PathBuf>,

    /// Remove what is stored, of this command's kind, this long after its end, by the hour, as in 12h or 30d; of all writers
    #[arg(long, value_name = "TIME", value_parser = time, requires = "folder", help_heading = STORE)]
    store_max_age: Option<Duration>,

    /// Keep at most this much in the store, as in 10GB, and remove the oldest; of all writers and kinds
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "folder", help_heading = STORE)]
    store_max_size: Option<u64>,

    /// End a file after this time: then it can be asked about, and a crash does not lose it any more. Default: 5m, and 10s while
    /// 'wirelane ship' ships the store
    #[arg(long, value_name = "TIME", value_parser = time, requires = "folder", help_heading = STORE)]
    store_rotate: Option<Duration>,

    /// Name of this probe in the rows and files that it stores, of letters, digits and - _ . : @. Default: the name of the host
    #[arg(long, value_name = "NAME", value_parser = probe_name, requires = "folder", help_heading = STORE)]
    store_probe: Option<String>,
}

#[cfg(feature = "store")]
use wirelane_store::probe_name;

/// Without a store the option needs another that is refused.
#[cfg(not(feature = "store"))]
fn probe_name(name: &str) -> Result<String, String> {
    Ok(name.to_owned())
}

impl StoreArgs {
    /// The settings that the options describe.
    pub fn options(&self) -> StoreOptions {
        StoreOptions {
            folder: self.folder.clone(),
            max_age: self.store_max_age,
            max_size: self.store_max_size,
            rotate: self.store_rotate,
            probe: self.store_probe.clone(),
        }
    }

    /// Opens the store for the ledger of a live capture.
    ///
    /// # Errors
    /// As [`KeptLedger::open`].
    pub fn ledger(&self, source: &SourceArgs) -> Result<Option<KeptLedger>> {
        let owner = source.rights.identity()?.map(|identity| identity.ids());
        KeptLedger::open(&self.options(), source.read.is_empty(), owner)
    }
}

/// Parses the values of an option that names outputs.
///
/// # Errors
/// A usage error with the first value that is wrong.
pub fn parsed<T>(
    option: &'static str,
    values: &[String],
    parse: impl Fn(&str) -> wirelane_export::Result<T>,
) -> Result<Vec<T>> {
    let wrong = |error| match error {
        wirelane_export::Error::Target { target, reason }
        | wirelane_export::Error::Log { target, reason } => {
            Error::BadOption { option, reason: format!("{target}: {reason}") }.into()
        }
        other => anyhow::Error::from(other),
    };
    values.iter().map(|value| parse(value).map_err(wrong)).collect()
}

/// Checks that a live view has a terminal.
///
/// # Errors
/// A usage error.
pub fn needs_terminal() -> Result<()> {
    if wirelane_screen::terminal::is_terminal() {
        return Ok(());
    }
    let reason = "standard output is not a terminal: leave the option out, or use --json".to_owned();
    Err(Error::BadOption { option: "--top", reason }.into())
}

/// The option of the zone of times.
#[derive(clap::Args, Debug)]
pub struct TimesArgs {
    /// Print times in the time zone of this machine, or in that of the variable TZ, instead of UTC
    #[arg(id = "local_time", long = "local-time", conflicts_with = "json", help_heading = source::OUTPUT)]
    _local_time: bool,
}

/// Has times for people in the local time zone, if the command line asks for that.
///
/// # Errors
/// A usage error if the zone is not known.
pub fn choose_zone(matches: &ArgMatches) -> Result<()> {
    let asked = |matches: &ArgMatches| matches!(matches.try_get_one("local_time"), Ok(Some(true)));
    if !matches.subcommand().is_some_and(|(_, matches)| asked(matches)) {
        return Ok(());
    }
    wirelane_export::calendar::use_local_time().map_err(|error| {
        let reason = format!("the time zone is not known ({error}): set TZ, as in TZ=Europe/Berlin");
        Error::BadOption { option: "--local-time", reason: printable(&reason).into_owned() }.into()
    })
}

/// The option that limits outputs.
#[derive(clap::Args, Debug)]
pub struct LimitArgs {
    /// Records a second of each output of a live capture (standard output, logs, exports, the store); more are suppressed and
    /// counted. Default: as many as their packets pay for with bytes on the wire, and 1000 a second in any case; 0: no limit
    #[arg(long, value_name = "N", conflicts_with = "read", help_heading = source::OUTPUT)]
    pub output_rate: Option<u32>,
}
