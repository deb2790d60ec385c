//! Error of filter expressions.

/// An invalid filter expression; the message marks the position of the mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", crate::show(expression, *at, reason))]
pub struct Error {
    /// The complete expression.
    pub expression: String,
    /// Position of the mistake in bytes; the end of the expression if something is missing there.
    pub at: usize,
    /// Description of the mistake.
    pub reason: String,
}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
