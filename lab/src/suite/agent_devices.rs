//! Agents of a suite: roles on other machines.

use wirelane_probe::placed::At;

use super::check::Check;
use super::{Napi, Shape, Suite, raw};

/// Agents of injector, sensor and receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentDevices {
    /// Agent of the injector.
    pub injector: AgentDevice,
    /// Agent of the sensor.
    pub sensor: AgentDevice,
    /// Agent of the receiver, if there is one.
    pub receiver: Option<AgentDevice>,
}

impl AgentDevices {
    /// All agents.
    fn all(&self) -> impl Iterator<Item = &AgentDevice> {
        [&self.injector, &self.sensor].into_iter().chain(&self.receiver)
    }
}

/// An agent and its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentDevice {
    /// Address or name, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Name of the device.
    pub device: String,
}

impl AgentDevice {
    /// `HOST:PORT`, for people.
    pub fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Reads `ADDRESS:PORT`, `NAME:PORT` or `[ADDRESS]:PORT`.
pub(super) fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').filter(|inner| inner.contains(':'))?,
        None => Some(host).filter(|host| !host.contains(':'))?,
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty() && host.len() <= 253 && host.chars().all(is_plain)).then(|| (host.to_owned(), port))
}

/// Whether a device can have this name (dev_valid_name() in the kernel's net/core/dev.c).
pub fn is_device(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_graphic() && !"/:".contains(c);
    (1..16).contains(&name.len())
        && ![".", ".."].contains(&name)
        && name.chars().all(is_plain)
        && !name.starts_with('-')
}

/// Agents of injector, sensor and receiver, as in the file.
type Named = (Option<At<raw::AgentDevice>>, Option<At<raw::AgentDevice>>, Option<At<raw::Receiver>>);

impl Check {
    /// Agents, for all roles or for none, and whether there is a receiver.
    pub(super) fn agent_devices(&mut self, named: Named) -> (Option<AgentDevices>, bool) {
        let (injector, sensor, receiver) = named;
        let (injector, sensor) = match (injector, sensor) {
            (Some(injector), Some(sensor)) => (injector.value, sensor.value),
            (None, None) => {
                return match receiver {
                    Some(At { value: raw::Receiver::Local(here), .. }) => (None, here),
                    Some(receiver) => {
                        let reason = "the receiver has an agent, and the others have none: give [injector] and [sensor], or write \
                                      'receiver = true' for this one machine";
                        self.fault(&receiver, reason);
                        (None, true)
                    }
                    None => (None, false),
                };
            }
            (Some(one), None) | (None, Some(one)) => {
                self.fault(
                    &one,
                    "injector and sensor both have an agent, or none of them: give [injector] and [sensor]",
                );
                return (None, false);
            }
        };
        let receiver = match receiver {
            Some(At { value: raw::Receiver::Remote(agent_device), .. }) => Some(agent_device),
            Some(here @ At { value: raw::Receiver::Local(true), .. }) => {
                self.fault(
                    &here,
                    "injector and sensor have agents, and so has the receiver: give [receiver]",
                );
                None
            }
            Some(_) | None => None,
        };
        let is_there = receiver.is_some();
        let (injector, sensor) = (self.agent_device(injector), self.agent_device(sensor));
        let receiver = receiver.map(|agent_device| self.agent_device(agent_device));
        let agent_devices = match (injector, sensor, receiver) {
            (Some(injector), Some(sensor), None) => Some(AgentDevices { injector, sensor, receiver: None }),
            (Some(injector), Some(sensor), Some(Some(agent_device))) => {
                Some(AgentDevices { injector, sensor, receiver: Some(agent_device) })
            }
            // The mistakes have been reported.
            _ => None,
        };
        (agent_devices, is_there)
    }

    fn agent_device(&mut self, raw: raw::AgentDevice) -> Option<AgentDevice> {
        let address = host_and_port(&raw.agent.value);
        if address.is_none() {
            self.fault(&raw.agent, "give an agent's address and port, as in \"192.0.2.1:4433\"");
        }
        if !is_device(&raw.device.value) {
            self.fault(&raw.device, "give the name of a device, as in \"eth1\"");
        }
        let (host, port) = address?;
        Some(AgentDevice { host, port, device: raw.device.value })
    }
}

impl Suite {
    /// Whether the sensor's agent has to set RX queues and NAPI of its device, which otherwise stay as they are.
    pub fn arranges(&self) -> bool {
        self.queues != [1] || self.per_core || self.napi != [Napi::Inline]
    }

    /// First setting of this suite that requires a topology on this machine; `None`: the suite has no agents, or no
    /// such setting.
    pub(super) fn not_remote(&self) -> Option<&'static str> {
        let agent_devices = self.agent_devices.as_ref()?;
        let mut addresses: Vec<String> = agent_devices.all().map(AgentDevice::address).collect();
        addresses.sort_unstable();
        if addresses.windows(2).any(|pair| pair[0] == pair[1]) {
            Some(
                "two roles have the same agent: an agent works for one of them; leave all out for this one machine",
            )
        } else if self.traffic.replay.is_some() {
            Some("agents replay no captures: leave out 'replay', or [injector] and [sensor]")
        } else if !self.traffic.calls.is_empty() {
            Some("agents place no calls: leave out 'calls', or [injector] and [sensor]")
        } else if self.devices != [1] {
            Some("agents have one device each: leave out 'devices'")
        } else if self.traffic.web || self.traffic.shape != Shape::Steady {
            Some(
                "agents send no web traffic and no flows of a 'shape': leave these out, or [injector] and [sensor]",
            )
        } else if self.overload {
            Some("agents measure no overload: leave out 'overload'")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::duts::Duts;

    const AGENTS: &str = "[injector]\nagent = \"192.0.2.1:4433\"\ndevice = \"eth1\"\n\
                          [sensor]\nagent = \"192.0.2.2:4433\"\ndevice = \"eth2\"\n";

    const RECEIVER: &str = "[receiver]\nagent = \"192.0.2.3:4433\"\ndevice = \"eth3\"\n";

    fn parse(head: &str, tail: &str) -> Result<Suite, String> {
        let text = format!("name = \"a\"\nsensors = [\"tcpdump\"]\n{head}{tail}");
        Suite::parse(&text, Path::new("b.toml"), &Duts::shipped())
            .map_err(|mistakes| mistakes.0[0].to_string())
    }

    #[test]
    fn a_suite_names_agents() {
        let agent_devices = parse("rates = [1]\n", AGENTS).unwrap().agent_devices.unwrap();
        assert_eq!(
            (agent_devices.injector.address(), agent_devices.sensor.device),
            ("192.0.2.1:4433".into(), "eth2".into())
        );
        assert_eq!((agent_devices.receiver, parse("rates = [1]\n", "").unwrap().agent_devices), (None, None));
        let three = parse("rates = [1]\n", &format!("{AGENTS}{RECEIVER}")).unwrap();
        assert!(three.receiver && three.agent_devices.unwrap().receiver.unwrap().device == "eth3");
        let here = |head: &str| parse(head, "").unwrap().receiver;
        assert!(here("rates = [1]\nreceiver = true\n") && !here("rates = [1]\nreceiver = false\n"));
        assert!(!here("rates = [1]\n"));
    }

    #[test]
    fn what_agents_cannot_do_is_refused_with_its_place() {
        let one = AGENTS.split_once("[sensor]").unwrap().0;
        for (head, tail, place, words) in [
            ("rates = [1]\n", one.to_owned(), "4:1", "both"),
            ("rates = [1]\n", AGENTS.replace("192.0.2.2", "192.0.2.1"), "4:1", "same agent"),
            ("rates = [1]\n", AGENTS.replace("192.0.2.2:4433", "192.0.2.2"), "8:9", "address and port"),
            ("rates = [1]\n", AGENTS.replace("eth2", "eth 2"), "9:10", "name of a device"),
            (
                "rates = [1]\n",
                format!("{AGENTS}{}", RECEIVER.replace("192.0.2.3", "192.0.2.2")),
                "4:1",
                "same agent",
            ),
            ("rates = [1]\nreceiver = true\n", AGENTS.to_owned(), "4:12", "[receiver]"),
            ("rates = [1]\n", RECEIVER.to_owned(), "4:1", "'receiver = true'"),
            ("rates = [1]\nreceiver = 3\n", String::new(), "4:12", "true, or"),
            (
                "rates = [1]\n",
                format!("{AGENTS}{}", RECEIVER.replace("eth3", "")),
                "12:10",
                "name of a device",
            ),
            ("rates = [1]\ndevices = 2\n", AGENTS.to_owned(), "4:11", "one device"),
            ("", format!("{AGENTS}[traffic]\nreplay = \"a.pcap\"\n"), "3:1", "no captures"),
            ("rates = [1]\n", format!("{AGENTS}[traffic]\ncalls = [1]\n"), "4:1", "no calls"),
            ("rates = [1]\n", AGENTS.replace("device = \"eth2\"", "command = \"sh\""), "9:1", "command"),
        ] {
            let found = parse(head, &tail).unwrap_err();
            assert!(found.contains(&format!("b.toml:{place}:")) && found.contains(words), "{found}");
        }
    }

    #[test]
    fn a_suite_may_arrange_the_sensors_device() {
        let arranges = |head: &str| parse(&format!("rates = [1]\n{head}"), AGENTS).unwrap().arranges();
        assert!(!arranges("") && !arranges("queues = [1]\nnapi = \"inline\"\n"));
        for head in ["queues = [1, 2]\n", "cores = [[0]]\nper-core = true\n", "napi = \"threads\"\n"] {
            assert!(arranges(head), "{head}");
        }
    }

    #[test]
    fn the_suites_for_an_emulated_machine_can_be_run_there() {
        let sensors = Duts::shipped();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
        let suites: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!suites.is_empty());
        for path in suites {
            let suite = Suite::parse(&fs::read_to_string(&path).unwrap(), &path, &sensors);
            let suite = suite.unwrap_or_else(|mistakes| panic!("{}", mistakes.0[0]));
            suite.possible_remote(&[0, 1], &[0, 1], &sensors).unwrap();
            assert!(suite.arranges() && !suite.conclusions.is_empty(), "{}", path.display());
        }
    }

    #[test]
    fn agents_have_one_device_each() {
        let text =
            format!("name = \"a\"\nsensors = [\"wirelane-devices\"]\nrates = [1]\ndevices = 2\n{AGENTS}");
        let found = Suite::parse(&text, Path::new("b.toml"), &Duts::shipped()).unwrap_err();
        assert!(found.0[0].to_string().contains("b.toml:5:1: agents have one device each"), "{found:?}");
    }

    #[test]
    fn addresses_and_devices_are_told_from_others() {
        for (text, host, port) in [
            ("192.0.2.1:4433", "192.0.2.1", 4433),
            ("[2001:db8::1]:1", "2001:db8::1", 1),
            ("a-b.example:9", "a-b.example", 9),
        ] {
            assert_eq!(host_and_port(text), Some((host.to_owned(), port)));
            let agent_device = AgentDevice { host: host.into(), port, device: "eth1".into() };
            assert_eq!(agent_device.address(), text);
        }
        for text in
            ["", "a", ":1", "a:", "a:0", "a:65536", "2001:db8::1:1", "[a]:1", "[::1:1", "a b:1", "a/b:1"]
        {
            assert_eq!(host_and_port(text), None, "{text}");
        }
        assert!(is_device("eth1") && is_device("veth-a.5@x"));
        for name in ["", "..", "a/b", "a b", "a:1", "-j", "sixteen-letters-"] {
            assert!(!is_device(name), "{name}");
        }
    }
}
