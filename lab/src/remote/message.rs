//! Messages between manager and agent.
//!
//! The heads of `Hello`, `Welcome` and `Refused` are the same in all versions, so that any two can report a mismatch.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::Machine;
use crate::roles::{DutOrder, SendOrder, Sent, Taken};

/// Version of the protocol.
pub const PROTOCOL: u64 = 4;
/// Version of this program: numbers of different versions are not compared.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Maximum length of a stored reason: the output of programs can be long.
const LONGEST_REASON: usize = 16 << 10;

/// A role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Sends packets.
    Injector,
    /// Captures packets.
    Sensor,
    /// Counts packets that the sensor's machine passes on.
    Receiver,
}

impl Role {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Role::Injector => "injector",
            Role::Sensor => "sensor",
            Role::Receiver => "receiver",
        }
    }
}

/// Message from a manager.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToAgent {
    /// First message.
    Hello(Hello),
    /// Sign of life.
    Ping,
    /// An order, which is executed after all earlier ones.
    Order(Order),
}

/// Identification and request of a manager.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u64,
    /// [`VERSION`].
    pub version: String,
    /// Requested role of the agent.
    pub role: Role,
    /// Device to use.
    pub device: String,
    /// Maximum bytes of a frame after its Ethernet header.
    pub mtu: u32,
    /// Whether a device with GRO could merge the packets.
    pub merges: bool,
    /// Whether RX queues and NAPI of the device are to be set.
    pub arranges: bool,
    /// Sensors that will be requested.
    pub sensors: Vec<String>,
}

/// An order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Start a sensor.
    Start(DutOrder),
    /// Start the measurement.
    Begin,
    /// Send packets.
    Send(SendOrder),
    /// All packets are sent.
    Sent,
    /// End the sensor and read its counters.
    End,
    /// Start to count packets at the receiver.
    Count,
    /// Report the number of packets.
    Counted,
}

impl Order {
    /// Role that executes the order.
    pub fn role(&self) -> Role {
        match self {
            Order::Send(_) => Role::Injector,
            Order::Start(_) | Order::Begin | Order::Sent | Order::End => Role::Sensor,
            Order::Count | Order::Counted => Role::Receiver,
        }
    }
}

/// Message from an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromAgent {
    /// First message: the agent accepts the manager.
    Welcome(Box<Welcome>),
    /// First and last message: the agent refuses.
    Refused(Refused),
    /// Sign of life.
    Pong,
    /// An order was executed.
    Done(Answer),
    /// Failure of the sensor.
    Fault(String),
    /// Failure of the agent.
    Failed(String),
}

/// Identification of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// [`PROTOCOL`].
    pub protocol: u64,
    /// [`VERSION`].
    pub version: String,
    /// Cores that a manager may use.
    pub cores: Vec<usize>,
    /// Description of the machine.
    pub machine: Machine,
    /// Requested sensors for which it has an adapter.
    pub sensors: BTreeMap<String, Offer>,
}

/// A sensor that an agent offers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Text of the adapter.
    pub text: String,
    /// Reason why it cannot run there.
    pub missing: Option<String>,
}

/// Refusal of a manager.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// [`PROTOCOL`].
    pub protocol: u64,
    /// [`VERSION`].
    pub version: String,
    /// Reason for people.
    pub reason: String,
}

/// Result of an order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Completed.
    Done,
    /// Packets sent.
    Sent(Sent),
    /// Packets captured.
    Taken(Taken),
    /// Packets received.
    Received(u64),
}

impl FromAgent {
    /// Text of an error, cut to the maximum length.
    pub fn reason(error: &anyhow::Error) -> String {
        let mut text = format!("{error:#}");
        let end = (0..=LONGEST_REASON.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text
    }

    /// A refusal with this reason.
    pub fn refused(reason: impl Into<String>) -> FromAgent {
        FromAgent::Refused(Refused { protocol: PROTOCOL, version: VERSION.to_owned(), reason: reason.into() })
    }
}

/// Text from the other side without control characters that a terminal would interpret.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Parses a message.
pub fn read<T: for<'de> Deserialize<'de>>(frame: &[u8]) -> Result<T> {
    serde_json::from_slice(frame).context("what the other side says is not understood")
}

/// Parses the first message of a manager.
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

/// Parses the first message of an agent.
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

/// Checks that the other side has this version.
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
                "merges": false, "arranges": false, "sensors": [], "command": "sh"}}}}"#
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
