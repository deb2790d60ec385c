//! HTTP transactions as log lines, in the formats of web servers, and their files.
//!
//! One transaction is one line, whatever bytes it contains: each format escapes as its server does. For values that a
//! passive log cannot know, it contains what a server writes for unknown values: the client's name by ident (`-`), the
//! authenticated user (`-`; Authorization is not logged), the result of a cache (`NONE`).
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

/// Log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Apache's common format.
    Common,
    /// Apache's combined format.
    Combined,
    /// The combined format after the virtual host.
    Vhost,
    /// [`LogFormat::Common`] with microseconds at the end.
    CommonUs,
    /// [`LogFormat::Combined`] with microseconds at the end.
    CombinedUs,
    /// [`LogFormat::Vhost`] with microseconds at the end.
    VhostUs,
    /// nginx's combined format.
    Nginx,
    /// Squid's native format.
    Squid,
    /// W3C's extended format, with the fields of IIS.
    W3c,
    /// One JSON object per line.
    Json,
}

/// Formats by name.
pub const LOG_FORMATS: [(&str, LogFormat); 10] = [
    ("common", LogFormat::Common),
    ("combined", LogFormat::Combined),
    ("vhost", LogFormat::Vhost),
    ("common-us", LogFormat::CommonUs),
    ("combined-us", LogFormat::CombinedUs),
    ("vhost-us", LogFormat::VhostUs),
    ("nginx", LogFormat::Nginx),
    ("squid", LogFormat::Squid),
    ("w3c", LogFormat::W3c),
    ("json", LogFormat::Json),
];

impl LogFormat {
    /// The format with this name.
    pub fn named(name: &str) -> Option<LogFormat> {
        LOG_FORMATS.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Text before the first line. `now_ns`: start of the log, in UTC.
    pub fn header(self, now_ns: u64) -> String {
        if self == LogFormat::W3c { w3c::header(now_ns) } else { String::new() }
    }

    /// Writes a transaction as a line, with its number in the log. `extra`: names of header fields that were recorded
    /// besides the usual ones.
    pub fn line(self, out: &mut Vec<u8>, number: u64, transaction: &Transaction, extra: &[Box<str>]) {
        match self {
            LogFormat::Common => apache::Style::COMMON.line(out, transaction),
            LogFormat::Combined => apache::Style::COMBINED.line(out, transaction),
            LogFormat::Vhost => apache::Style::VHOST.line(out, transaction),
            LogFormat::CommonUs => apache::Style::COMMON.timed().line(out, transaction),
            LogFormat::CombinedUs => apache::Style::COMBINED.timed().line(out, transaction),
            LogFormat::VhostUs => apache::Style::VHOST.timed().line(out, transaction),
            LogFormat::Nginx => apache::Style::NGINX.line(out, transaction),
            LogFormat::Squid => squid::line(out, transaction),
            LogFormat::W3c => w3c::line(out, transaction),
            LogFormat::Json => json::line(out, number, transaction, extra),
        }
    }
}
