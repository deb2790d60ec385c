//! HTTP transactions as lines of logs, in the formats of servers, and their files.
//!
//! One transaction is one line, whatever bytes it has in it: each format escapes as the server does whose format it is.
//! What a passive log cannot know stands there as a server writes what it does not know: the name that a client has given
//! itself by ident (`-`), who it has logged in as (`-`; what is in Authorization is not logged), what a cache has done
//! (`NONE`).
mod apache;
mod escape;
mod json;
mod logs;
mod squid;
#[cfg(test)]
mod tests;
mod w3c;

use wirelane_analysis::http::Transaction;

pub use escape::{apache as escape_apache, plain};
pub use logs::{Log, LogCounts, Logs};

/// A format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Apache's common format.
    Common,
    /// Apache's combined format.
    Combined,
    /// The combined format behind the virtual host.
    Vhost,
    /// [`LogFormat::Common`] with microseconds at the end.
    CommonUs,
    /// [`LogFormat::Combined`] with microseconds at the end.
    CombinedUs,
    /// [`LogFormat::Vhost`] with microseconds at the end.
    VhostUs,
    /// Squid's native format.
    Squid,
    /// W3C's extended format, with the fields of IIS.
    W3c,
    /// A JSON object a line.
    Json,
}

/// Formats by their names.
pub const LOG_FORMATS: [(&str, LogFormat); 9] = [
    ("common", LogFormat::Common),
    ("combined", LogFormat::Combined),
    ("vhost", LogFormat::Vhost),
    ("common-us", LogFormat::CommonUs),
    ("combined-us", LogFormat::CombinedUs),
    ("vhost-us", LogFormat::VhostUs),
    ("squid", LogFormat::Squid),
    ("w3c", LogFormat::W3c),
    ("json", LogFormat::Json),
];

impl LogFormat {
    /// The format of this name.
    pub fn named(name: &str) -> Option<LogFormat> {
        LOG_FORMATS.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// What stands before the first line. `now_ns`: when the log begins, in UTC.
    pub fn header(self, now_ns: u64) -> String {
        if self == LogFormat::W3c { w3c::header(now_ns) } else { String::new() }
    }

    /// Writes a transaction, the `number`th of all, as a line. `extra`: the names of fields that were kept beside the usual
    /// ones.
    pub fn line(self, out: &mut Vec<u8>, number: u64, transaction: &Transaction, extra: &[Box<str>]) {
        match self {
            LogFormat::Common => apache::line(out, transaction, false, false, false),
            LogFormat::Combined => apache::line(out, transaction, false, true, false),
            LogFormat::Vhost => apache::line(out, transaction, true, true, false),
            LogFormat::CommonUs => apache::line(out, transaction, false, false, true),
            LogFormat::CombinedUs => apache::line(out, transaction, false, true, true),
            LogFormat::VhostUs => apache::line(out, transaction, true, true, true),
            LogFormat::Squid => squid::line(out, transaction),
            LogFormat::W3c => w3c::line(out, transaction),
            LogFormat::Json => json::line(out, number, transaction, extra),
        }
    }
}
