//! Errors of rule sets.

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Rules that cannot be used; the message has a line for each mistake.
    #[error("{}", crate::Mistake::listed(mistakes))]
    Rules {
        /// What is wrong with them; at least one.
        mistakes: Vec<crate::Mistake>,
    },
    /// The tables would need more than there is room for.
    #[error("{option}: {reason}")]
    BadOption {
        /// The option, as the library or the command line calls it.
        option: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;
