//! Pipelines: records of workers in; flows, transactions and calls out to the exports.
//!
//! ```text
//!  capture -> Worker -> Handler (flows::FlowWorker, http::HttpWorker, voip::VoipWorker) -- channel --> export() -> outputs
//!             a thread each                                                              one thread       `-> Sink
//! ```
//! Whoever runs the capture gives each worker a thread and calls its [`Handler`] for every record. What is finished goes
//! through a channel to one exporting thread, which runs [`flows::export`], [`http::export`] or [`voip::export`]. Where the
//! outputs do not keep up, workers wait for them and their rings fill: what is lost then is in the ledger, so that every
//! packet is accounted for. A [`Sink`] sees what is exported: a screen, standard output, a store.

use wirelane::Record;

pub mod flows;
pub mod http;
pub mod voip;

/// What is done with the records of one worker.
pub trait Handler: Send {
    /// What can go wrong; it ends the worker.
    type Error: Send + 'static;

    /// One record.
    ///
    /// # Errors
    /// What ends the worker.
    fn record(&mut self, record: &Record<'_>) -> Result<(), Self::Error>;

    /// A batch has ended; `idle`: there was nothing in it, the wait was in vain.
    ///
    /// # Errors
    /// What ends the worker.
    fn pause(&mut self, _idle: bool) -> Result<(), Self::Error> {
        Ok(())
    }

    /// There will be no more.
    ///
    /// # Errors
    /// What is left undone.
    fn finish(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Sees what the exporting thread exports.
pub trait Sink<T> {
    /// What can go wrong; it ends the export, and with it the workers.
    type Error;

    /// These have been handed to the outputs.
    ///
    /// # Errors
    /// Nobody reads any more, or cannot.
    fn take(&mut self, these: Vec<T>) -> Result<(), Self::Error>;

    /// Called between two waits with what became of flows at the outputs, where there are any.
    fn look(&mut self, _outputs: &dyn Fn() -> Vec<crate::flows::OutputCounts>) {}

    /// There will be no more.
    ///
    /// # Errors
    /// As [`Sink::take`].
    fn finish(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// A packet that was taken up before may still be on its way to the worker, although the worker has found nothing.
const ON_ITS_WAY_NS: u64 = 100_000_000;

/// The workers' end of the channel: the exporting thread has ended.
fn ended(what: &str) -> crate::Error {
    crate::Error::Ended(format!("{what} have ended"))
}

/// UTC nanoseconds now.
fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}
