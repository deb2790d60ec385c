//! The store at the end of the exporting thread: of flows, calls, transactions or what a probe measures.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::shares::Shares;

/// Folder of the store, and limits of its files.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The store's folder; `None`: there is no store.
    pub folder: Option<PathBuf>,
    /// Age at which files are removed.
    pub max_age: Option<Duration>,
    /// Bytes beyond which the oldest files are removed.
    pub max_size: Option<u64>,
    /// Time after which a file is ended, if not the usual one.
    pub rotate: Option<Duration>,
    /// Name of the probe; `None`: the host's.
    pub probe: Option<String>,
}

#[cfg(feature = "store")]
pub use built::Store;
#[cfg(not(feature = "store"))]
pub use missing::Store;

#[cfg(feature = "store")]
mod built {
    use super::*;
    use wirelane::Error;
    use wirelane_export::{Limiter, OutputState};
    use wirelane_store::{LEAST_SIZE, Storable, StoreCounts, StoreSettings, Writer};

    /// Bytes of a row in a file, if rows have hardly anything in common: until the average is known.
    const ROW: usize = 256;

    /// A store of these values.
    pub struct Store<T> {
        writer: Writer<T>,
        limiter: Limiter,
        /// Bytes on the wire that led to a value.
        wire_bytes: fn(&T) -> u64,
    }

    impl<T: Storable> Store<T> {
        /// Creates the folder, before privileges are dropped; `None` if no store is requested.
        pub fn open(
            options: &StoreOptions,
            live: bool,
            owner: Option<(u32, u32)>,
            shares: Shares,
            wire_bytes: fn(&T) -> u64,
        ) -> Result<Option<Store<T>>> {
            let Some(folder) = options.folder.clone() else { return Ok(None) };
            if options.max_size.is_some_and(|most| most < LEAST_SIZE) {
                let reason = format!("a store takes {LEAST_SIZE} bytes at least");
                return Err(Error::BadOption { option: "--store-max-size", reason }.into());
            }
            let probe = match &options.probe {
                Some(probe) => probe.clone(),
                None => wirelane_store::host_name()
                    .map_err(|error| anyhow::anyhow!("{error}; name the probe with --store-probe"))?,
            };
            let settings = StoreSettings {
                folder,
                probe: probe.into(),
                max_age: options.max_age,
                max_size: options.max_size,
                rotate: options.rotate,
                live,
                memory: shares.store,
                owner,
            };
            let (writer, limiter) = (Writer::open(settings)?, Limiter::new(shares.limit));
            Ok(Some(Store { writer, limiter, wire_bytes }))
        }

        /// Starts the writer's thread, after privileges are dropped.
        pub fn start(&mut self, naming: T::Naming) -> Result<()> {
            Ok(self.writer.start(naming)?)
        }

        /// Stores values, as far as the write limit allows.
        pub fn take(&mut self, mut these: Vec<T>) {
            let Store { limiter, wire_bytes, writer } = self;
            let row_bytes = writer.row_bytes().map_or(ROW, |bytes| bytes as usize);
            these.retain(|one| {
                let rows = T::TABLES.iter().map(|table| one.rows(*table)).sum::<u64>();
                let admits = rows == 0 || limiter.admits(wire_bytes(one));
                match admits {
                    true => limiter.spent(row_bytes * rows as usize),
                    false => writer.suppressed(rows),
                }
                admits
            });
            self.writer.take(these);
        }

        /// Number of rows of all tables that this process has not stored here: suppressed and unwritten ones.
        pub fn unstored(&self) -> u64 {
            self.writer.unstored()
        }

        /// Flag of the capture's end: from then on the writers of this store wait for the disk.
        pub fn ending(&self) -> std::sync::Arc<std::sync::atomic::AtomicBool> {
            self.writer.ending()
        }

        /// State of the store.
        pub fn state(&self) -> OutputState {
            OutputState { suppressed: self.limiter.suppressed(), ..self.writer.state() }
        }

        /// Ends the store and returns the results.
        pub fn finish(self) -> Stored {
            Stored { suppressed: self.limiter.suppressed(), counts: self.writer.finish() }
        }
    }

    /// Results of the store.
    #[derive(Debug, serde::Serialize)]
    pub struct Stored {
        /// Flows, calls or transactions beyond the store's write limit.
        suppressed: u64,
        #[serde(flatten)]
        counts: StoreCounts,
    }

    impl Stored {
        /// The error of a store with missing rows.
        pub fn failure(&self) -> Option<anyhow::Error> {
            self.counts.failure().map(Into::into)
        }

        /// The results for people.
        pub fn text(&self) -> String {
            use wirelane_screen::table::{amount, counted, printable};
            let counts = &self.counts;
            // Names of tables are plurals.
            let rows = |(table, rows): (&wirelane_store::Table, &u64)| {
                counted(*rows, table.name().trim_end_matches('s'))
            };
            let mut text = format!(
                "store {}: {} in {}, {} bytes",
                printable(&counts.store),
                counts.rows.iter().map(rows).collect::<Vec<_>>().join(" and "),
                counted(counts.files, "file"),
                amount(counts.bytes)
            );
            for lacking in counts.unwritten.iter().filter(|(_, rows)| **rows > 0) {
                text += &format!("; {} unwritten", rows(lacking));
            }
            if self.suppressed > 0 {
                text += &format!("; {} suppressed (--output-rate)", amount(self.suppressed));
            }
            if counts.unshipped_rows > 0 {
                text +=
                    &format!("; {} removed before they were shipped", counted(counts.unshipped_rows, "row"));
            }
            for (noun, number, what) in [
                ("old file", counts.removed_files, "removed"),
                ("unfinished file", counts.cleared_files, "of dead writers removed"),
            ] {
                if number > 0 {
                    text += &format!("; {} {what}", counted(number, noun));
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

    /// A store without the feature, which cannot be created.
    pub struct Store<T>(Never, std::marker::PhantomData<T>);

    /// A type without values.
    enum Never {}

    /// See [`Store`].
    #[derive(Debug, serde::Serialize)]
    pub enum Stored {}

    impl<T> Store<T> {
        /// Fails if a store is requested.
        pub fn open(
            options: &StoreOptions,
            _live: bool,
            _owner: Option<(u32, u32)>,
            _shares: Shares,
            _wire_bytes: fn(&T) -> u64,
        ) -> Result<Option<Store<T>>> {
            match options.folder {
                Some(_) => Err(not_built()),
                None => Ok(None),
            }
        }

        /// Never called.
        pub fn start<N>(&mut self, _naming: N) -> Result<()> {
            match self.0 {}
        }

        /// Never called.
        pub fn take(&mut self, _these: Vec<T>) {
            match self.0 {}
        }

        /// Never called.
        pub fn unstored(&self) -> u64 {
            match self.0 {}
        }

        /// Never called.
        pub fn ending(&self) -> std::sync::Arc<std::sync::atomic::AtomicBool> {
            match self.0 {}
        }

        /// Never called.
        pub fn state(&self) -> wirelane_export::OutputState {
            match self.0 {}
        }

        /// Never called.
        pub fn finish(self) -> Stored {
            match self.0 {}
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

/// Error of a program that was built without the store.
#[cfg(not(feature = "store"))]
pub fn not_built() -> anyhow::Error {
    anyhow::anyhow!(
        "this program was built without the store; 'make build' builds one with it (cargo: feature 'store' of the \
         crate wirelane-cli)"
    )
}
