//! What manager and agent say to each other.
//!
//! The heads of `Hello`, `Welcome` and `Refused` are the same in all versions, so that any two can say that they do not fit.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::Machine;
use crate::roles::{DutOrder, SendOrder, Sent, Taken};

/// The version of what is said.
pub const PROTOCOL: u64 = 3;
/// The version of this program: numbers of different ones are not compared.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What is kept of a reason: programs can say much.
const LONGEST_REASON: usize = 16 << 10;

/// A role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It sends.
    Injector,
    /// It captures.
    Sensor,
    /// It counts what the sensor's machine passes on.
    Receiver,
}

impl Role {
    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Injector => "injector",
            Role::Sensor => "sensor",
            Role::Receiver => "receiver",
        }
    }
}

/// What a manager says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToAgent {
    /// First.
    Hello(Hello),
    /// It is there.
    Ping,
    /// Something to do, when all before is answered.
    Order(Order),
}

/// Who a manager is, and what it wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u64,
    /// [`VERSION`].
    pub version: String,
    /// What the agent is to be.
    pub role: Role,
    /// The device that it is to work on.
    pub device: String,
    /// Bytes of a frame behind its Ethernet header, at most.
    pub mtu: u32,
    /// Whether a device with GRO could merge the packets.
    pub merges: bool,
    /// Sensors that will be asked for.
    pub sensors: Vec<String>,
}

/// Something to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Start a sensor.
    Start(DutOrder),
    /// Measure it from now on.
    Begin,
    /// Send.
    Send(SendOrder),
    /// All is sent.
    Sent,
    /// End the sensor.
    End,
    /// Count what arrives from now on.
    Count,
    /// Say how much that was.
    Counted,
}

impl Order {
    /// Whose it is.
    pub fn role(&self) -> Role {
        match self {
            Order::Send(_) => Role::Injector,
            Order::Start(_) | Order::Begin | Order::Sent | Order::End => Role::Sensor,
            Order::Count | Order::Counted => Role::Receiver,
        }
    }
}

/// What an agent says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromAgent {
    /// First, or
    Welcome(Box<Welcome>),
    /// first and last.
    Refused(Refused),
    /// It is there.
    Pong,
    /// An order is carried out.
    Done(Answer),
    /// The sensor did something wrong.
    Fault(String),
    /// The agent could not do what it should.
    Failed(String),
}

/// Who an agent is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// [`PROTOCOL`].
    pub protocol: u64,
    /// [`VERSION`].
    pub version: String,
    /// Cores that a manager may have.
    pub cores: Vec<usize>,
    /// The machine.
    pub machine: Machine,
    /// Of the sensors that were asked for, those that it has an adapter of.
    pub sensors: BTreeMap<String, Offer>,
}

/// A sensor of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The adapter.
    pub text: String,
    /// Why it cannot be run there.
    pub missing: Option<String>,
}

/// Why an agent does not work for a manager.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// [`PROTOCOL`].
    pub protocol: u64,
    /// [`VERSION`].
    pub version: String,
    /// For people.
    pub reason: String,
}

/// What an order has come to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It is done.
    Done,
    /// So much was sent.
    Sent(Sent),
    /// So much was taken.
    Taken(Taken),
    /// So many packets have arrived.
    Received(u64),
}

impl FromAgent {
    /// An error, as far as it is kept.
    pub fn reason(error: &anyhow::Error) -> String {
        let mut text = format!("{error:#}");
        let end = (0..=LONGEST_REASON.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text
    }

    /// A refusal.
    pub fn refused(reason: impl Into<String>) -> FromAgent {
        FromAgent::Refused(Refused { protocol: PROTOCOL, version: VERSION.to_owned(), reason: reason.into() })
    }
}

/// What the other side wrote for people, without what a terminal would obey.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// A message.
///
/// # Errors
/// Where it is none.
pub fn read<T: for<'de> Deserialize<'de>>(frame: &[u8]) -> Result<T> {
    serde_json::from_slice(frame).context("what the other side says is not understood")
}

/// Reads what a manager says first.
///
/// # Errors
/// Where it is no manager, or one of another version.
pub fn read_hello(frame: &[u8]) -> Result<Hello> {
    let value: Value = read(frame)?;
    let hello =
        value.get("hello").context("this agent speaks with managers of 'wirelane testbed run' only")?;
    fits(hello, "the manager is", "this agent is")?;
    match read(frame)? {
        ToAgent::Hello(hello) => Ok(hello),
        _ => bail!("no hello"),
    }
}

/// Reads what an agent says first.
///
/// # Errors
/// Where it is no agent, one of another version, or refuses; the reason.
pub fn read_welcome(frame: &[u8]) -> Result<Welcome> {
    let value: Value = read(frame)?;
    if let Some(reason) = value.pointer("/refused/reason") {
        bail!("it refuses: {}", plain(reason.as_str().unwrap_or("it does not say why")));
    }
    fits(
        value.get("welcome").context("it is no agent of 'wirelane testbed agent'")?,
        "it is",
        "this manager is",
    )?;
    match read(frame)? {
        FromAgent::Welcome(welcome) => Ok(*welcome),
        _ => bail!("no welcome"),
    }
}

/// Whether the other side is of this version.
fn fits(head: &Value, other: &str, this: &str) -> Result<()> {
    let (protocol, version) = (head["protocol"].as_u64(), head["version"].as_str());
    ensure!(
        protocol == Some(PROTOCOL) && version == Some(VERSION),
        "{other} wirelane {} (protocol {}), {this} wirelane {VERSION} (protocol {PROTOCOL}): install the same version on all machines",
        plain(version.unwrap_or("of no version")),
        protocol.map_or("unknown".to_owned(), |protocol| protocol.to_string())
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_are_told_even_where_all_else_differs() {
        let hello = br#"{"hello": {"protocol": 7, "version": "9.9.9", "what": ["is", "this"]}}"#;
        let error = read_hello(hello).unwrap_err().to_string();
        assert!(
            error.contains("the manager is wirelane 9.9.9 (protocol 7)") && error.contains(VERSION),
            "{error}"
        );
        let text = format!(r#"{{"welcome": {{"protocol": {PROTOCOL}, "version": "0.0.1"}}}}"#);
        let error = read_welcome(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("it is wirelane 0.0.1") && error.contains("same version"), "{error}");
        let text = r#"{"refused": {"protocol": 7, "version": "9.9.9", "reason": "because"}}"#;
        assert_eq!(read_welcome(text.as_bytes()).unwrap_err().to_string(), "it refuses: because");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for frame in ["", "x", "[]", "{}", "{\"ping\": 1}", "\"ping\""] {
            assert!(
                read_hello(frame.as_bytes()).is_err() && read_welcome(frame.as_bytes()).is_err(),
                "{frame}"
            );
        }
        let text = format!(
            r#"{{"hello": {{"protocol": {PROTOCOL}, "version": "{VERSION}", "role": "sensor", "device": "a", "mtu": 1500,
                "merges": false, "sensors": [], "command": "sh"}}}}"#
        );
        assert!(format!("{:#}", read_hello(text.as_bytes()).unwrap_err()).contains("command"));
        assert!(read_hello(text.replace(", \"command\": \"sh\"", "").as_bytes()).is_ok());
    }

    #[test]
    fn reasons_are_text() {
        let text = r#"{"refused": {"reason": "a\u001b[31mb\nc"}}"#;
        assert_eq!(read_welcome(text.as_bytes()).unwrap_err().to_string(), "it refuses: a\u{fffd}[31mb\nc");
        let text = r#"{"hello": {"protocol": 7, "version": "\u001b]0;x\u0007"}}"#;
        assert!(!read_hello(text.as_bytes()).unwrap_err().to_string().contains(char::is_control));
    }

    #[test]
    fn long_reasons_are_cut() {
        let reason = FromAgent::reason(&anyhow::anyhow!("\u{e9}".repeat(20_000)));
        assert_eq!(reason.len(), LONGEST_REASON);
    }
}
