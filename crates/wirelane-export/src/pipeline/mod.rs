//! Pipelines: records of workers in; flows, transactions and calls out to the exports.
//!
//! ```text
//!  capture -> Worker -> Handler (flows::FlowWorker, http::HttpWorker, voip::VoipWorker) -- channel --> export() -> outputs
//!             a thread each                                                              one thread       `-> Sink
//! ```
//! The program that runs the capture gives each worker a thread and calls its [`Handler`] for every record. Finished
//! items are sent through a channel to one exporting thread, which runs [`flows::export`], [`http::export`] or
//! [`voip::export`]. If the outputs do not keep up, workers wait for them and their rings fill: packets lost then are
//! in the ledger, so that every packet is accounted for. A [`Sink`] receives the exported items: for a screen, standard
//! output, or a store.

use wirelane::Record;

use crate::OutputState;

pub mod flows;
pub mod http;
pub mod voip;

/// Handles the records of one worker.
pub trait Handler: Send {
    /// Error that ends the worker.
    type Error: Send + 'static;

    /// Handles one record.
    ///
    /// # Errors
    /// An error that ends the worker.
    fn record(&mut self, record: &Record<'_>) -> Result<(), Self::Error>;

    /// Called at the end of a batch; `idle`: the batch was empty after waiting.
    ///
    /// # Errors
    /// An error that ends the worker.
    fn pause(&mut self, _idle: bool) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Called after the last record.
    ///
    /// # Errors
    /// An error of the remaining work.
    fn finish(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl<E: Send + 'static> Handler for Box<dyn Handler<Error = E>> {
    type Error = E;

    fn record(&mut self, record: &Record<'_>) -> Result<(), E> {
        (**self).record(record)
    }

    fn pause(&mut self, idle: bool) -> Result<(), E> {
        (**self).pause(idle)
    }

    fn finish(&mut self) -> Result<(), E> {
        (**self).finish()
    }
}

/// Receives the items that the exporting thread exports.
pub trait Sink<T> {
    /// Error that ends the export, and with it the workers.
    type Error;

    /// Receives items that have been handed to the outputs.
    ///
    /// # Errors
    /// The receiver has ended or failed.
    fn take(&mut self, these: Vec<T>) -> Result<(), Self::Error>;

    /// Called between two waits with the results of flows at the outputs, if there are any.
    fn look(&mut self, _outputs: &dyn Fn() -> Vec<crate::flows::OutputCounts>) {}

    /// Called between two waits with the state of the outputs.
    fn told(&mut self, _states: &dyn Fn() -> Vec<OutputState>) {}

    /// Called after the last item.
    ///
    /// # Errors
    /// As [`Sink::take`].
    fn finish(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Time that a packet captured earlier may still be on its way to a worker that has found none.
const ON_ITS_WAY_NS: u64 = 100_000_000;

/// Error of a worker that sends after the exporting thread has ended.
fn ended(what: &str) -> crate::Error {
    crate::Error::Ended(format!("{what} have ended"))
}

/// Current time in UTC nanoseconds.
fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}
