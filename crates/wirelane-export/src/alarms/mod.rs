//! Alarms to files, collectors and syslog: a line of JSON for each, or a message of RFC 5424.
//!
//! Connections are opened before privileges are dropped; a broken connection is made again. Nothing is sent twice, and
//! nothing waits for long: an alarm that cannot be sent is given up, and the caller counts it.

mod syslog;
mod tcp;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use wirelane::escape::to_json;
use wirelane_probe::AlarmEvent;
use wirelane_probe::config::Target;

use crate::flows::target::resolve;
use crate::{AppendFile, Error, OutputOptions, Result};
use tcp::Tcp;

/// Port of syslog over UDP (RFC 5426).
const SYSLOG: u16 = 514;

enum Way {
    File(Box<AppendFile>),
    Udp(UdpSocket),
    Tcp(Tcp),
    Syslog(UdpSocket),
    Unix(UnixDatagram),
}

/// An open output of alarms.
pub struct AlarmOutput {
    name: String,
    way: Way,
    host: String,
}

impl std::fmt::Debug for AlarmOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlarmOutput").field("name", &self.name).finish_non_exhaustive()
    }
}

impl AlarmOutput {
    /// Opens a target: resolves names and connects, or opens a file, which is created if it is missing, readable only
    /// for its owner. `owner`: owner of a created file.
    ///
    /// # Errors
    /// [`Error::Target`] with the reason, also if a connection is refused.
    pub fn open(target: &Target, owner: Option<(u32, u32)>) -> Result<AlarmOutput> {
        let name = target.name();
        let failed = |why: String| Error::Target { target: name.clone(), reason: why };
        let way = match target {
            Target::File(path) => Way::File(Box::new(file(Path::new(path), owner).map_err(failed)?)),
            Target::Udp(place) => Way::Udp(datagrams(place, 0).map_err(failed)?),
            Target::Syslog(place) => Way::Syslog(datagrams(place, SYSLOG).map_err(failed)?),
            Target::Tcp(place) => {
                let addresses = resolve(place, 0).map_err(failed)?;
                Way::Tcp(Tcp::connect(addresses).map_err(failed)?)
            }
            Target::Unix(path) => Way::Unix(unix(path).map_err(|error| failed(error.to_string()))?),
        };
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(AlarmOutput { name, way, host })
    }

    /// Name of the target, as the user wrote it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// TCP ports that the output may connect to again.
    pub fn tcp_ports(&self) -> Vec<u16> {
        match &self.way {
            Way::Tcp(tcp) => tcp.addresses().iter().map(SocketAddr::port).collect(),
            _ => Vec::new(),
        }
    }

    /// The file that is reopened after it was renamed.
    pub fn rotates(&self) -> Option<&Path> {
        match &self.way {
            Way::File(file) => file.rotates(),
            _ => None,
        }
    }

    /// Sends an alarm within `patience`.
    ///
    /// # Errors
    /// The reason that the alarm was not sent, or is not known to have been sent.
    pub fn send(&mut self, alarm: &AlarmEvent, patience: Duration) -> io::Result<()> {
        let line = || -> io::Result<Vec<u8>> {
            let mut line = to_json(alarm)?.into_bytes();
            line.push(b'\n');
            Ok(line)
        };
        match &mut self.way {
            Way::File(file) => append(file, &line()?),
            Way::Udp(socket) => {
                let line = line()?;
                datagram(|| socket.send(&line))
            }
            Way::Tcp(tcp) => tcp.send(&line()?, patience),
            Way::Syslog(socket) => {
                let message = syslog::message(alarm, &self.host);
                datagram(|| socket.send(message.as_bytes()))
            }
            Way::Unix(socket) => {
                let message = syslog::message(alarm, &self.host);
                socket.send(message.as_bytes()).map(drop)
            }
        }
    }
}

/// Sends a datagram. ICMP reports a refused datagram with the next call, which sends nothing then: that call is repeated,
/// and its error stands for the datagram before.
fn datagram(send: impl Fn() -> io::Result<usize>) -> io::Result<()> {
    let sent = send();
    if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        send()?;
    }
    sent.map(drop)
}

fn file(path: &Path, owner: Option<(u32, u32)>) -> std::result::Result<AppendFile, String> {
    // Do not wait for a reader of a pipe.
    if path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_symlink()) {
        return Err("it is there and is not a file".into());
    }
    AppendFile::open_lines(path, OutputOptions::default(), owner, Vec::new())
        .map_err(|error| error.to_string())
}

/// Appends a line. A line that cannot be written is given up.
fn append(file: &mut AppendFile, line: &[u8]) -> io::Result<()> {
    file.flush();
    let before = file.counts().unwritten;
    file.append(1, |text| text.extend_from_slice(line));
    file.finish();
    if file.counts().unwritten == before {
        return Ok(());
    }
    Err(io::Error::other(file.counts().error.clone().unwrap_or_default()))
}

fn datagrams(place: &str, port: u16) -> std::result::Result<UdpSocket, String> {
    let mut why = String::new();
    for address in resolve(place, port)? {
        let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).and_then(|socket| {
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match socket {
            Ok(socket) => return Ok(socket),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

fn unix(path: &str) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wirelane_probe::State;

    fn alarm(number: u64) -> AlarmEvent {
        AlarmEvent {
            alarm: "flood".into(),
            measurement: "syns".into(),
            state: State::Raised,
            key: [("dst".to_owned(), "10.0.0.1".into())].into_iter().collect(),
            key_text: "10.0.0.1".into(),
            value_name: "pps".into(),
            value: number as f64,
            time: "1700000000.000000000".into(),
            end_ns: 1_700_000_000_000_000_000,
        }
    }

    const PATIENCE: Duration = Duration::from_secs(2);

    #[test]
    fn files_are_appended_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alarms.jsonl");
        let target = Target::File(path.to_str().unwrap().to_owned());
        for number in 0..2 {
            let mut output = AlarmOutput::open(&target, None).unwrap();
            output.send(&alarm(number), PATIENCE).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        for (line, number) in [(lines[0], 0.0), (lines[1], 1.0)] {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!((&value["value"], &value["key"]["dst"]), (&number.into(), &"10.0.0.1".into()));
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(AlarmOutput::open(&Target::File(link.to_str().unwrap().to_owned()), None).is_err());
        let full = AlarmOutput::open(&Target::File("/dev/full".into()), None).unwrap_err();
        assert!(full.to_string().contains("not a file"), "{full}");
    }

    #[test]
    fn datagrams_reach_who_listens() {
        let inbox = UdpSocket::bind("127.0.0.1:0").unwrap();
        inbox.set_read_timeout(Some(PATIENCE)).unwrap();
        let place = inbox.local_addr().unwrap().to_string();
        let mut bytes = [0; 2048];
        for (target, begin) in [
            (Target::Udp(place.clone()), "{\"alarm\":\"flood\""),
            (Target::Syslog(place), "<28>1 2023-11-14T22:13:20.000000Z "),
        ] {
            AlarmOutput::open(&target, None).unwrap().send(&alarm(7), PATIENCE).unwrap();
            let length = inbox.recv(&mut bytes).unwrap();
            let text = std::str::from_utf8(&bytes[..length]).unwrap();
            assert!(text.starts_with(begin), "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let inbox = UnixDatagram::bind(&path).unwrap();
        let target = Target::Unix(path.to_str().unwrap().to_owned());
        AlarmOutput::open(&target, None).unwrap().send(&alarm(7), PATIENCE).unwrap();
        let length = inbox.recv(&mut bytes).unwrap();
        assert!(bytes[..length].starts_with(b"<28>1 "));
        drop(inbox);
        std::fs::remove_file(&path).unwrap();
        let nobody = AlarmOutput::open(&target, None).unwrap_err();
        assert!(nobody.to_string().contains("No such file"), "{nobody}");
    }

    /// ICMP's answer to an alarm that found no receiver does not take the next alarm.
    #[test]
    fn a_receiver_that_comes_back_gets_the_next_datagram() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = receiver.local_addr().unwrap();
        let socket = datagrams("127.0.0.1", address.port()).unwrap();
        drop(receiver);
        datagram(|| socket.send(b"lost")).unwrap();
        // The loopback device answers before the call returns.
        let receiver = UdpSocket::bind(address).unwrap();
        let before = datagram(|| socket.send(b"next")).unwrap_err();
        assert_eq!(before.kind(), io::ErrorKind::ConnectionRefused);
        let mut bytes = [0; 16];
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let length = receiver.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"next");
    }
}
