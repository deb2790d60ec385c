//! Names of hosts and ports from the system's files. No query is sent: a capture is passive.

use std::collections::HashMap;
use std::io::Result;
use std::net::IpAddr;
use std::path::Path;

/// Names by address, and by protocol and port.
#[derive(Debug, Default)]
pub struct Names {
    hosts: HashMap<IpAddr, String>,
    ports: HashMap<(u8, u16), String>,
}

impl Names {
    /// Reads files in the formats of hosts(5) and services(5). Lines in another format are skipped, as the system's own
    /// functions do.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(hosts: &Path, services: &Path) -> Result<Names> {
        let mut names = Names::default();
        let read = |path: &Path| {
            let named = |error: std::io::Error| {
                std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            };
            std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(named)
        };
        let words = |line: &str| -> Vec<String> {
            line.split('#').next().unwrap_or("").split_whitespace().map(str::to_owned).collect()
        };
        for line in read(hosts)?.lines() {
            if let [address, name, ..] = &words(line)[..]
                && let Ok(address) = address.parse()
            {
                names.hosts.entry(address).or_insert_with(|| name.clone());
            }
        }
        for line in read(services)?.lines() {
            let words = words(line);
            let [name, port, ..] = &words[..] else { continue };
            let Some((port, protocol)) = port.split_once('/') else { continue };
            let protocol = match protocol {
                "tcp" => 6,
                "udp" => 17,
                "sctp" => 132,
                _ => continue,
            };
            if let Ok(port) = port.parse() {
                names.ports.entry((protocol, port)).or_insert_with(|| name.clone());
            }
        }
        Ok(names)
    }

    /// An address, by its name if it has one.
    pub fn host(&self, address: IpAddr) -> String {
        self.hosts.get(&address).cloned().unwrap_or_else(|| address.to_string())
    }

    /// An address and port, by their names if they have any.
    pub fn end(&self, address: IpAddr, port: u16, protocol: u8) -> String {
        let known = self.ports.get(&(protocol, port)).cloned();
        let port = known.unwrap_or_else(|| port.to_string());
        match (self.hosts.get(&address), address) {
            (None, IpAddr::V6(address)) => format!("[{address}]:{port}"),
            _ => format!("{}:{port}", self.host(address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_files() {
        let folder = std::env::temp_dir().join(format!("wirelane-names-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (hosts, services) = (folder.join("hosts"), folder.join("services"));
        std::fs::write(&hosts, "# comment\n192.0.2.1 web www\n2001:db8::1\tsix # v6\nno address\n").unwrap();
        std::fs::write(&services, "http 80/tcp www\ndomain 53/udp\nbad\nx 1/unknown\n").unwrap();
        let names = Names::read(&hosts, &services).unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(names.end(address("192.0.2.1"), 80, 6), "web:http");
        assert_eq!(names.end(address("192.0.2.2"), 80, 17), "192.0.2.2:80");
        assert_eq!(names.end(address("2001:db8::1"), 53, 17), "six:domain");
        assert_eq!(names.end(address("2001:db8::2"), 9, 17), "[2001:db8::2]:9");
        let missing = Names::read(&folder.join("none"), &services).unwrap_err().to_string();
        assert!(missing.contains("none: "), "{missing}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
