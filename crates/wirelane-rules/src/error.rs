//! Errors of rule sets.

/// All errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid rules; the message has a line for each mistake.
    #[error("{}", crate::Mistake::listed(mistakes))]
    Rules {
        /// The mistakes; at least one.
        mistakes: Vec<crate::Mistake>,
    },
    /// The tables would exceed the available capacity.
    #[error("{option}: {reason}")]
    BadOption {
        /// Name of the option in the library or on the command line.
        option: &'static str,
        /// Description of the fault, and of the expected value.
        reason: String,
    },
}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
