//! The options of a store, and its end of the exporting thread.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use wirelane_analysis::flows::FlowRecord;
use wirelane_export::flows::Naming;

use crate::record::options::{size, time};

/// Heading of the help.
const STORE: &str = "A store of flows";

/// Where flows are stored, and for how long.
#[derive(clap::Args, Debug)]
pub struct StoreArgs {
    /// Store flows in this folder, in Parquet files by the hour, for 'wirelane query' and other tools. It is made where it is not
    /// there. Several writers may share it
    #[arg(long = "store", value_name = "DIR", help_heading = STORE)]
    pub folder: Option<PathBuf>,

    /// Remove stored flows this long after their end, by the hour, as in 12h or 30d; of all writers
    #[arg(long, value_name = "TIME", value_parser = time, requires = "folder", help_heading = STORE)]
    store_max_age: Option<Duration>,

    /// Keep at most this much in the store, as in 10GB, and remove the oldest; of all writers
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "folder", help_heading = STORE)]
    store_max_size: Option<u64>,

    /// End a file after this time: then its flows can be asked for, and a crash does not lose them any more
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "5m", requires = "folder", help_heading = STORE)]
    store_rotate: Duration,
}

#[cfg(feature = "store")]
pub use built::Store;
#[cfg(not(feature = "store"))]
pub use missing::Store;

#[cfg(feature = "store")]
mod built {
    use super::*;
    use wirelane::Error;
    use wirelane_store::{LEAST_SIZE, StoreCounts, StoreSettings, Writer};

    /// The store that flows go to.
    pub struct Store(Writer);

    impl Store {
        /// Makes the folder, before rights are given up; `None` where no store is asked for.
        pub fn open(args: &StoreArgs, live: bool, owner: Option<(u32, u32)>) -> Result<Option<Store>> {
            let Some(folder) = args.folder.clone() else { return Ok(None) };
            if args.store_max_size.is_some_and(|most| most < LEAST_SIZE) {
                let reason = format!("a store takes {LEAST_SIZE} bytes at least");
                return Err(Error::BadOption { option: "--store-max-size", reason }.into());
            }
            let settings = StoreSettings {
                folder,
                max_age: args.store_max_age,
                max_size: args.store_max_size,
                rotate: args.store_rotate,
                live,
                owner,
            };
            Ok(Some(Store(Writer::open(settings)?)))
        }

        /// Starts the writer's thread, after rights are given up.
        pub fn start(&mut self, naming: Naming) -> Result<()> {
            Ok(self.0.start(naming)?)
        }

        /// Takes flows on.
        pub fn flows(&mut self, flows: Vec<FlowRecord>) {
            self.0.flows(flows);
        }

        /// The end: what has become of the flows.
        pub fn finish(self) -> Stored {
            Stored(self.0.finish())
        }
    }

    /// What has become of the flows in the store.
    #[derive(Debug, serde::Serialize)]
    #[serde(transparent)]
    pub struct Stored(StoreCounts);

    impl Stored {
        /// The error of a store that lacks flows.
        pub fn failure(&self) -> Option<anyhow::Error> {
            self.0.failure().map(Into::into)
        }

        /// As people read it.
        pub fn text(&self) -> String {
            use crate::table::{amount, printable};
            let counts = &self.0;
            let mut text = format!(
                "store {}: {} flows in {} files, {} bytes",
                printable(&counts.store),
                amount(counts.flows),
                amount(counts.files),
                amount(counts.bytes)
            );
            for (what, number) in [
                ("flows unwritten", counts.unwritten_flows),
                ("old files removed", counts.removed_files),
                ("unfinished files of dead writers removed", counts.cleared_files),
            ] {
                if number > 0 {
                    text += &format!("; {} {what}", amount(number));
                }
            }
            text + "\n"
        }
    }
}

#[cfg(feature = "store")]
pub use built::Stored;
#[cfg(not(feature = "store"))]
pub use missing::Stored;

#[cfg(not(feature = "store"))]
mod missing {
    use super::*;

    /// There is none without the feature.
    pub enum Store {}

    /// See [`Store`].
    #[derive(Debug, serde::Serialize)]
    pub enum Stored {}

    impl Store {
        /// Refuses, where a store is asked for.
        pub fn open(args: &StoreArgs, _live: bool, _owner: Option<(u32, u32)>) -> Result<Option<Store>> {
            match args.folder {
                Some(_) => Err(crate::query::not_built()),
                None => Ok(None),
            }
        }

        /// Never called.
        pub fn start(&mut self, _naming: Naming) -> Result<()> {
            match *self {}
        }

        /// Never called.
        pub fn flows(&mut self, _flows: Vec<FlowRecord>) {
            match *self {}
        }

        /// Never called.
        pub fn finish(self) -> Stored {
            match self {}
        }
    }

    impl Stored {
        /// Never called.
        pub fn failure(&self) -> Option<anyhow::Error> {
            match *self {}
        }

        /// Never called.
        pub fn text(&self) -> String {
            match *self {}
        }
    }
}
