//! Current state of outputs: whether each works, and since when it does not.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// State of an output of a running capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputState {
    /// The output, as the user wrote it.
    pub target: String,
    /// Whether the last attempt to write or send has succeeded.
    pub works: bool,
    /// Time of the first failure since it worked last, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since_s: Option<u64>,
    /// Records that are written, or accepted by the network.
    pub written: u64,
    /// Records that were given up.
    pub lost: u64,
    /// Records beyond the output's write limit.
    pub suppressed: u64,
    /// Bytes that wait to be written or sent.
    pub waiting_bytes: u64,
    /// The last error, of an output that does not work or has lost records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl OutputState {
    /// The state of an output that has failed since this time, if it has, with its last error.
    pub fn new(target: &str, failing: Option<SystemTime>, error: Option<&String>) -> OutputState {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        OutputState {
            target: target.to_owned(),
            works: failing.is_none(),
            failing_since_s: failing.map(seconds),
            error: error.cloned(),
            ..OutputState::default()
        }
    }
}
