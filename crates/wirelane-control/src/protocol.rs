//! What is said over a control socket: one JSON object a line, `{"version":1,"ask":...}` there and
//! `{"version":1,"answer":...}` back, in the same order.

use serde::{Deserialize, Serialize};

use wirelane_rules::{Changed, ExactFields, ExactLine, ExactRule, Rule, RuleSet, RuleStats};

/// The version of the protocol: who hears another one says so and does nothing.
pub(super) const VERSION: u32 = 1;
/// Most bytes of a line: a set with a million exact-match rules and more, which comes in one piece because it takes the place
/// of the old one as a whole. One connection at a time may have so much (`connections.rs`).
pub(super) const LONGEST: usize = 256 << 20;

/// A question, on a line of its own.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) version: u32,
    pub(super) ask: Ask,
}

/// What can be asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Ask {
    /// What capture is this?
    Status,
    /// These rules are to take the place of all others.
    Load(RuleSet),
    /// These are to come beside the others.
    Add {
        #[serde(default)]
        rules: Vec<Rule>,
        #[serde(default)]
        exact: Vec<ExactRule>,
    },
    /// These are to go.
    Remove {
        #[serde(default)]
        ids: Vec<u32>,
        #[serde(default)]
        exact: Vec<ExactFields>,
    },
    /// All exact-match rules are to go, and with `all` the others too.
    Flush { all: bool },
    /// What have the rules counted?
    Stats,
    /// What exact-match rules are there, from here on?
    ExactValue { from: Position },
    /// What the program that captures answers by itself.
    Program(serde_json::Value),
}

/// A place among the exact-match rules of a capture, which is shown a part at a time. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub(super) device: usize,
    pub(super) at: Option<u32>,
}

/// An answer, on a line of its own.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) version: u32,
    pub(super) answer: Answer,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Status(Status),
    Changed(Changed),
    Stats(Box<RuleStats>),
    ExactValue {
        rules: Vec<ExactLine>,
        next: Option<Position>,
    },
    /// What the program says.
    Program(serde_json::Value),
    /// It was not done; what was in force stays in force.
    Refused(String),
}

/// What a capture says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// The name of its program.
    pub command: String,
    /// `ring`, `xsk` or `packet`.
    pub engine: String,
    /// The devices that it captures on.
    pub devices: Vec<String>,
    /// The devices that its rules may send packets to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress_devices: Vec<String>,
    /// The plug-ins that its rules may ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<String>,
    /// The cookie of the network namespace that these are in (SO_NETNS_COOKIE).
    pub namespace: u64,
}

/// A line that says `what`.
pub(super) fn line(what: &impl Serialize) -> Vec<u8> {
    // What we say has string keys and finite numbers only, so that it can be written.
    let mut line = serde_json::to_vec(what).unwrap_or_default();
    line.push(b'\n');
    line
}

/// How lines begin that may be long: those of `load` and `add`, as [`line`] writes them.
pub(super) const BRING_RULES: [&[u8]; 2] =
    [b"{\"version\":1,\"ask\":{\"load\":", b"{\"version\":1,\"ask\":{\"add\":"];

/// Whether a line, of which some has come, is a question that brings rules.
pub(super) fn brings_rules(line: &[u8]) -> bool {
    BRING_RULES.iter().any(|begin| line.starts_with(begin))
}

/// The question on a line, or what is wrong with it.
pub(super) fn question(line: &[u8]) -> Result<Ask, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    // Of another version, that is all that can be understood.
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
            Ask::ExactValue { from: Position { device: 3, at: Some(9) } },
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
