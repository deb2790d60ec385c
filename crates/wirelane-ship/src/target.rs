//! Targets: `clickhouse+https://USER@HOST:PORT/DATABASE`.

use std::fs::File;
use std::io::Read as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::{Error, Result};

/// Largest size of a file with a secret or certificates, in bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// A database of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Name of the user.
    pub user: String,
    /// Name or address of the host; an IPv6 address without its brackets.
    pub host: String,
    /// Port of the server's HTTP interface.
    pub port: u16,
    /// Name of the database.
    pub database: String,
}

impl Target {
    /// Parses a target. Without a port it is 8443, without TLS 8123; without a user it is `default`.
    ///
    /// # Errors
    /// [`Error::Target`].
    pub fn parse(text: &str) -> Result<Target> {
        let wrong = |reason: &str| Error::Target {
            target: text.to_owned(),
            reason: reason.to_owned(),
            expected: "clickhouse+https://USER@HOST:PORT/DATABASE, or clickhouse+http://".to_owned(),
        };
        let (tls, rest) = match text.split_once("://") {
            Some(("clickhouse+https", rest)) => (true, rest),
            Some(("clickhouse+http", rest)) => (false, rest),
            _ => return Err(wrong("an unknown kind of target")),
        };
        let (place, database) = rest.split_once('/').ok_or_else(|| wrong("the database is missing"))?;
        let (user, place) = place.rsplit_once('@').unwrap_or(("default", place));
        if user.contains(':') {
            return Err(wrong("a password does not belong on a command line: give --password-file"));
        }
        let (host, port) = host_port(place, if tls { 8443 } else { 8123 }).map_err(wrong)?;
        if !is_name(user, b"-._@") || !is_name(database, b"_") {
            return Err(wrong("names of users and databases are of letters, digits and _"));
        }
        let [user, database] = [user, database].map(str::to_owned);
        Ok(Target { tls, user, host, port, database })
    }

    /// Name of the folder of its state.
    pub fn name(&self) -> String {
        format!("{}_{}_{}", self.host.replace(':', "-"), self.port, self.database)
    }

    /// The addresses of the host.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the name cannot be resolved.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>> {
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        Ok(found.map_err(|error| Error::Unreachable(format!("{}: {error}", self.host)))?.collect())
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        match self.host.contains(':') {
            true => format!("{scheme}://[{}]:{}/", self.host, self.port),
            false => format!("{scheme}://{}:{}/", self.host, self.port),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = self.url();
        let rest = url.split_once("://").map_or("", |(_, rest)| rest);
        let tls = if self.tls { "https" } else { "http" };
        write!(f, "clickhouse+{tls}://{}@{rest}{}", self.user, self.database)
    }
}

/// Whether a text is of ASCII letters, digits and these.
pub(crate) fn is_name(text: &str, more: &[u8]) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
}

/// A host and a port, as `host:1`, `host`, `[::1]:1` or `[::1]`.
pub(crate) fn host_port(text: &str, default: u16) -> std::result::Result<(String, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("an address without its ']'")?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err("not an IPv6 address in the brackets");
            }
            let port = port.strip_prefix(':').or(port.is_empty().then_some(""));
            (host, port.ok_or("an invalid port")?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    if !is_name(host, b"-._:") {
        return Err("an invalid name of a host");
    }
    let port = match port {
        "" => Some(default),
        port => port.parse().ok().filter(|port| *port > 0),
    };
    Ok((host.to_owned(), port.ok_or("an invalid port")?))
}

/// Contents of files that are read before privileges are dropped.
#[derive(Clone, Default)]
pub struct Secrets {
    /// The password.
    pub(crate) password: Option<String>,
    /// Certificates (PEM) of the authorities that are trusted in place of the built-in ones.
    pub(crate) authorities: Option<Vec<u8>>,
}

impl std::fmt::Debug for Secrets {
    /// Omits the password, which would appear in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

impl Secrets {
    /// Reads a password, and certificates.
    ///
    /// # Errors
    /// [`Error::File`]: also if others than the owner and the group may read the password.
    pub fn read(password: Option<&Path>, authorities: Option<&Path>) -> Result<Secrets> {
        let text = |path: &Path| -> Result<String> {
            let wrong =
                |reason: &str| Error::File { path: path.display().to_string(), reason: reason.to_owned() };
            let text = String::from_utf8(read(path, true)?).map_err(|_| wrong("not a text"))?;
            let text = text.trim_end_matches(['\r', '\n']);
            match !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
                true => Ok(text.to_owned()),
                false => Err(wrong("expected a password: one line of printable ASCII characters")),
            }
        };
        let password = password.map(text).transpose()?;
        let authorities = authorities.map(|path| read(path, false)).transpose()?;
        Ok(Secrets { password, authorities })
    }
}

/// Contents of a file. A secret file is refused if others could read or replace it.
fn read(path: &Path, is_secret: bool) -> Result<Vec<u8>> {
    let wrong = |reason: String| Error::File { path: path.display().to_string(), reason };
    let failed = |error: std::io::Error| wrong(error.to_string());
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode();
    if is_secret && mode & 0o007 != 0 {
        return Err(wrong(format!("is readable by others (mode {:04o}); run chmod 600", mode & 0o777)));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 > LONGEST_FILE {
        true => Err(wrong(format!("it has more than {LONGEST_FILE} bytes"))),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_written() {
        for (text, shown) in [
            ("clickhouse+https://h/db", "clickhouse+https://default@h:8443/db"),
            ("clickhouse+http://u@10.0.0.1:80/wirelane", "clickhouse+http://u@10.0.0.1:80/wirelane"),
            ("clickhouse+http://[::1]:9/a_b", "clickhouse+http://default@[::1]:9/a_b"),
            ("clickhouse+http://[::1]/d", "clickhouse+http://default@[::1]:8123/d"),
        ] {
            let target = Target::parse(text).unwrap();
            assert_eq!(target.to_string(), shown);
            assert_eq!(Target::parse(shown).unwrap(), target);
            assert!(target.name().bytes().all(|byte| byte != b'/' && byte != b':'), "{}", target.name());
        }
        for wrong in [
            "",
            "h/db",
            "clickhouse://h/db",
            "clickhouse+http://h",
            "clickhouse+http://h/",
            "clickhouse+http://u:p@h/db",
            "clickhouse+http://h:0/db",
            "clickhouse+http://h:x/db",
            "clickhouse+http://h/a.b",
            "clickhouse+http:///db",
            "clickhouse+http://[::1/db",
            "clickhouse+http://[x]/db",
            "clickhouse+http://h/d'b",
            "clickhouse+http://h h/db",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
