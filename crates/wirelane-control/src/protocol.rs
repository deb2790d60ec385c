//! The protocol of a control socket: one JSON object per line, requests `{"version":1,"ask":...}` and answers
//! `{"version":1,"answer":...}`, in the same order.

use serde::{Deserialize, Serialize};

use wirelane_rules::{Changed, ExactFields, ExactLine, ExactRule, Rule, RuleSet, RuleStats};

/// Version of the protocol: a request with another version is refused.
pub(super) const VERSION: u32 = 1;
/// Maximum bytes of a line: enough for a set with more than a million exact-match rules, which is sent as a whole
/// because it replaces the active set atomically. Only one connection at a time may use this much (`connections.rs`).
pub(super) const LONGEST: usize = 256 << 20;

/// A request, on one line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) version: u32,
    pub(super) ask: Ask,
}

/// Kinds of requests.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Ask {
    /// Query the self-description of the capture.
    Status,
    /// Replace all rules by these rules.
    Load(RuleSet),
    /// Add these rules.
    Add {
        #[serde(default)]
        rules: Vec<Rule>,
        #[serde(default)]
        exact: Vec<ExactRule>,
    },
    /// Remove these rules.
    Remove {
        #[serde(default)]
        ids: Vec<u32>,
        #[serde(default)]
        exact: Vec<ExactFields>,
    },
    /// Remove all exact-match rules, and with `all` also the wildcard rules.
    Flush { all: bool },
    /// Query the counters of the rules.
    Stats,
    /// Query a page of exact-match rules from this position on.
    Exact { from: Position },
    /// Query a page of a map of a plug-in, or of the steering program, from this position on.
    State { program: String, map: String, from: Option<u32> },
    /// Application-defined request to the capturing program.
    Program(serde_json::Value),
}

/// A position in the exact-match rules of a capture, which are listed page by page. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub(super) device: usize,
    pub(super) at: Option<u32>,
}

/// An answer, on one line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) version: u32,
    pub(super) answer: Answer,
}

/// Kinds of answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Status(Status),
    Changed(Changed),
    Stats(Box<RuleStats>),
    Exact {
        rules: Vec<ExactLine>,
        next: Option<Position>,
    },
    /// Entries of a map, and the position of the next page.
    State {
        entries: Vec<serde_json::Value>,
        next: Option<u32>,
    },
    /// Application-defined answer of the program.
    Program(serde_json::Value),
    /// The request was refused; the active rules are unchanged.
    Refused(String),
}

/// Self-description of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub command: String,
    /// `ring`, `xsk` or `packet`.
    pub engine: String,
    /// Devices that it captures on.
    pub devices: Vec<String>,
    /// Devices that its rules may send packets to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress_devices: Vec<String>,
    /// Plug-ins that its rules may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<String>,
    /// Maps of its plug-ins and of its steering program: the program's name, and the map's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maps: Vec<(String, String)>,
    /// Cookie of the network namespace of these devices (SO_NETNS_COOKIE).
    pub namespace: u64,
}

/// The line with the serialized value.
pub(super) fn line(what: &impl Serialize) -> Vec<u8> {
    // Our values have string keys and finite numbers only, so serialization cannot fail.
    let mut line = serde_json::to_vec(what).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Prefixes of lines that may be long: `load` and `add` requests as written by [`line`].
pub(super) const BRING_RULES: [&[u8]; 2] =
    [b"{\"version\":1,\"ask\":{\"load\":", b"{\"version\":1,\"ask\":{\"add\":"];

/// Whether a possibly incomplete line is a request that carries rules.
pub(super) fn brings_rules(line: &[u8]) -> bool {
    BRING_RULES.iter().any(|begin| line.starts_with(begin))
}

/// The request on a line, or a description of the fault.
pub(super) fn question(line: &[u8]) -> Result<Ask, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    // Only the version is interpreted before it is known to match.
    match serde_json::from_slice::<Version>(line) {
        Ok(Version { version: VERSION }) => {}
        Ok(Version { version }) => {
            return Err(format!(
                "this capture speaks version {VERSION} of the protocol, and was asked in version {version}: use the \
                 wirelane that it was started with"
            ));
        }
        Err(e) => return Err(format!("invalid request: {e}")),
    }
    serde_json::from_slice::<Request>(line)
        .map(|request| request.ask)
        .map_err(|e| format!("invalid request: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_they_were_written() {
        let asks = [
            Ask::Status,
            Ask::Load(RuleSet::default()),
            Ask::Add { rules: Vec::new(), exact: Vec::new() },
            Ask::Remove { ids: vec![7, u32::MAX], exact: vec![ExactFields::default()] },
            Ask::Flush { all: true },
            Ask::Stats,
            Ask::Exact { from: Position { device: 3, at: Some(9) } },
            Ask::State { program: "dns".into(), map: "names".into(), from: Some(9) },
            Ask::Program(serde_json::json!({"set": ["interval=5s"]})),
        ];
        for ask in asks {
            let shown = format!("{ask:?}");
            let line = line(&Request { version: VERSION, ask });
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
            assert_eq!(brings_rules(&line), shown.starts_with("Load") || shown.starts_with("Add"), "{shown}");
            assert_eq!(format!("{:?}", question(&line).unwrap()), shown);
        }
        assert!(
            matches!(question(br#"{"version":1,"ask":{"remove":{}}}"#), Ok(Ask::Remove { ids, .. }) if ids.is_empty())
        );
    }

    #[test]
    fn what_is_no_question_is_refused_with_a_reason() {
        for (line, reason) in [
            (&br#"{"version":2,"ask":{"fly":{}}}"#[..], "version 1"),
            (br#"{"version":1,"ask":{"fly":{}}}"#, "fly"),
            (br#"{"version":1,"ask":{"flush":{"all":1}}}"#, "boolean"),
            (br#"{"version":1,"ask":{"flush":{"all":true,"and":1}}}"#, "and"),
            (br#"{"ask":"status"}"#, "version"),
            (b"", "EOF"),
            (b"\xff\0", "invalid request"),
            (b"[[[[[[", "invalid request"),
        ] {
            let refusal = question(line).unwrap_err();
            assert!(refusal.contains(reason), "{refusal}");
        }
        let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
        assert!(question(&deep).is_err(), "without a stack overflow");
    }
}
