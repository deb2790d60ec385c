//! Export targets of events.

use super::check::Check;
use super::{Action, ActionKind, Config};
use crate::placed::At;

/// Target of events, as the user writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file to which lines of JSON are appended: `file:PATH`.
    File(String),
    /// Datagrams of JSON: `udp://HOST:PORT`.
    Udp(String),
    /// Lines of JSON over a connection: `tcp://HOST:PORT`.
    Tcp(String),
    /// Syslog (RFC 5424) by UDP: `syslog://HOST[:PORT]`.
    Syslog(String),
    /// Syslog to a socket of this host, such as `unix:/dev/log`.
    Unix(String),
}

impl Target {
    fn parse(text: &str) -> Option<Target> {
        let (kind, place) = text.split_once(':')?;
        let remote = |has_port: bool| {
            place.strip_prefix("//").filter(|place| is_remote(place, has_port)).map(str::to_owned)
        };
        let local = || (!place.is_empty() && !place.contains('\0')).then(|| place.to_owned());
        match kind {
            "file" => local().map(Target::File),
            "unix" => local().map(Target::Unix),
            "udp" => remote(true).map(Target::Udp),
            "tcp" => remote(true).map(Target::Tcp),
            "syslog" => remote(false).map(Target::Syslog),
            _ => None,
        }
    }

    /// Name as in the configuration.
    pub fn name(&self) -> String {
        match self {
            Target::File(place) => format!("file:{place}"),
            Target::Udp(place) => format!("udp://{place}"),
            Target::Tcp(place) => format!("tcp://{place}"),
            Target::Syslog(place) => format!("syslog://{place}"),
            Target::Unix(place) => format!("unix:{place}"),
        }
    }
}

/// `HOST:PORT`; without `has_port` also `HOST`. Addresses of IPv6 are in brackets.
fn is_remote(place: &str, has_port: bool) -> bool {
    let behind = place.rfind(']').map_or(0, |bracket| bracket + 1);
    match place[behind..].split_once(':') {
        Some((host, port)) => behind + host.len() > 0 && port.parse::<u16>().is_ok_and(|port| port > 0),
        None => !has_port && !place.is_empty(),
    }
}

impl Action {
    /// Target of the action, if it exports events.
    pub fn target(&self) -> Option<&Target> {
        match &self.kind {
            ActionKind::Export(target) => Some(target),
            _ => None,
        }
    }
}

impl Config {
    /// Targets of all actions, with the indices of the actions.
    pub fn targets(&self) -> Vec<(usize, &Target)> {
        let actions = self.actions.iter().enumerate();
        actions.filter_map(|(place, action)| Some((place, action.target()?))).collect()
    }
}

impl Check<'_> {
    pub(super) fn target(&mut self, text: &At<String>) -> Target {
        Target::parse(text.get_ref()).unwrap_or_else(|| {
            let reason = "write file:PATH, udp://HOST:PORT or tcp://HOST:PORT (JSON), syslog://HOST:PORT or unix:PATH \
                          (syslog)";
            self.fault(text, reason);
            Target::File(String::new())
        })
    }
}
