//! The error of filter expressions.

/// A filter expression that cannot be used; the message shows the place of the mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", crate::show(expression, *at, reason))]
pub struct Error {
    /// The whole expression.
    pub expression: String,
    /// Where the mistake is, in bytes: at the end where something is missing.
    pub at: usize,
    /// What is wrong.
    pub reason: String,
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;
