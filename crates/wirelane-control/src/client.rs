//! Client side of the control socket: discovery of captures, and requests to them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::net::sockopt;

use super::connections::PATIENCE;
use super::place::{Purpose, files, folders};
use super::protocol::{Answer, Ask, LONGEST, Position, Reply, Request, Status, VERSION, line};
use crate::{Error, Result};
use wirelane_netdev::sys;
use wirelane_rules::{Changed, ExactFields, ExactLine, ExactRule, Rule, RuleSet, RuleStats};

/// A capture that accepts requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Path of the control socket.
    pub path: PathBuf,
    /// Self-description of the capture.
    pub status: Status,
    /// Whether the capture's devices are in this network namespace.
    pub here: bool,
}

/// The captures in all network namespaces that this user may manage and that have a socket for this purpose.
///
/// # Errors
/// [`Error::Io`] if the folder of the sockets cannot be read.
pub fn instances(purpose: Purpose) -> Result<Vec<Instance>> {
    let here = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)
        .and_then(|socket| sys::namespace_cookie(&socket))
        .map_err(|source| Error::kernel("asking for the network namespace", source))?;
    let mut instances = Vec::new();
    for folder in folders() {
        let paths = files(&folder, purpose).map_err(|source| Error::Io { path: folder.clone(), source })?;
        for path in paths {
            match Client::connect(&path, purpose).and_then(|mut client| client.status()) {
                Ok(status) => instances.push(Instance { path, here: status.namespace == here, status }),
                // The capture ended in the meantime, or has another protocol version, which is an error only if the
                // user names it.
                Err(e) => tracing::info!("{e}"),
            }
        }
    }
    Ok(instances)
}

/// A connection to a capture.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
    purpose: Purpose,
    /// Time of the last answer.
    active: Instant,
}

impl Client {
    /// Connects to the socket of a capture for this purpose.
    ///
    /// # Errors
    /// [`Error::Control`] if no capture listens there, or access is denied.
    pub fn connect(path: &Path, purpose: Purpose) -> Result<Client> {
        let (stream, path) = (BufReader::new(Client::open(path, purpose)?), path.to_owned());
        Ok(Client { stream, path, purpose, active: Instant::now() })
    }

    fn open(path: &Path, purpose: Purpose) -> Result<UnixStream> {
        let failed = |reason: String| Error::Control { path: path.to_owned(), reason };
        let stream = UnixStream::connect(path).map_err(|e| {
            failed(match e.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    "access denied: only root and the user who started this capture may query or change it; use sudo".into()
                }
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => match purpose {
                    Purpose::Rules => {
                        "the capture has ended ('wirelane rules instances' lists the running ones)"
                            .into()
                    }
                    Purpose::Probe => "the probe has ended".into(),
                    Purpose::Monitor => "no monitor listens there".into(),
                },
                _ => format!("connecting to the capture: {e}"),
            })
        })?;
        // Requests go only to a process that ran as root or as this user when it started to listen.
        let peer = sockopt::socket_peercred(&stream)
            .map_err(|e| failed(format!("asking who the capture belongs to: {e}")))?;
        // A monitor may be a service of a user of its own, whom root and members of its group may ask: answers are texts for
        // people, and nothing is entrusted to it.
        let user = rustix::process::geteuid();
        if !peer.uid.is_root() && peer.uid != user && purpose != Purpose::Monitor {
            return Err(failed(format!(
                "it belongs to user {}, who is neither root nor this user",
                peer.uid.as_raw()
            )));
        }
        Ok(stream)
    }

    /// The self-description of the capture.
    ///
    /// # Errors
    /// [`Error::Control`].
    pub fn status(&mut self) -> Result<Status> {
        match self.ask(Ask::Status)? {
            Answer::Status(status) => Ok(status),
            other => Err(self.odd(&other)),
        }
    }

    /// Replaces all active rules by these rules.
    ///
    /// # Errors
    /// [`Error::Control`]; the active rules are unchanged.
    pub fn load(&mut self, rules: RuleSet) -> Result<Changed> {
        self.change(Ask::Load(rules))
    }

    /// Adds rules to the active rules.
    ///
    /// # Errors
    /// As [`Client::load`].
    pub fn add(&mut self, rules: Vec<Rule>, exact: Vec<ExactRule>) -> Result<Changed> {
        self.change(Ask::Add { rules, exact })
    }

    /// Removes rules by their ids, and exact-match rules by their fields.
    ///
    /// # Errors
    /// As [`Client::load`].
    pub fn remove(&mut self, ids: Vec<u32>, exact: Vec<ExactFields>) -> Result<Changed> {
        self.change(Ask::Remove { ids, exact })
    }

    /// Removes all exact-match rules, and with `all` also the wildcard rules.
    ///
    /// # Errors
    /// As [`Client::load`].
    pub fn flush(&mut self, all: bool) -> Result<Changed> {
        self.change(Ask::Flush { all })
    }

    /// The counters of the rules.
    ///
    /// # Errors
    /// [`Error::Control`].
    pub fn stats(&mut self) -> Result<RuleStats> {
        match self.ask(Ask::Stats)? {
            Answer::Stats(stats) => Ok(*stats),
            other => Err(self.odd(&other)),
        }
    }

    /// A page of exact-match rules from a position on, and the position of the next page.
    ///
    /// # Errors
    /// [`Error::Control`].
    pub fn exact(&mut self, from: Position) -> Result<(Vec<ExactLine>, Option<Position>)> {
        match self.ask(Ask::Exact { from })? {
            Answer::Exact { rules, next } => Ok((rules, next)),
            other => Err(self.odd(&other)),
        }
    }

    /// A page of a map of a plug-in, or of the steering program ([`Status::maps`]), from a position on, and the position of
    /// the next page. Entries have the fields `key`, and `value` or `values`.
    ///
    /// # Errors
    /// [`Error::Control`].
    pub fn state(
        &mut self,
        program: &str,
        map: &str,
        from: Option<u32>,
    ) -> Result<(Vec<serde_json::Value>, Option<u32>)> {
        match self.ask(Ask::State { program: program.to_owned(), map: map.to_owned(), from })? {
            Answer::State { entries, next } => Ok((entries, next)),
            other => Err(self.odd(&other)),
        }
    }

    /// Sends an application-defined request to the capturing program ([`Service`](crate::Service)).
    ///
    /// # Errors
    /// [`Error::Control`], also if the program refuses the request.
    pub fn program(&mut self, question: serde_json::Value) -> Result<serde_json::Value> {
        match self.ask(Ask::Program(question))? {
            Answer::Program(answer) => Ok(answer),
            other => Err(self.odd(&other)),
        }
    }

    fn change(&mut self, ask: Ask) -> Result<Changed> {
        match self.ask(ask)? {
            Answer::Changed(changed) => Ok(changed),
            other => Err(self.odd(&other)),
        }
    }

    fn ask(&mut self, ask: Ask) -> Result<Answer> {
        let question = line(&Request { version: VERSION, ask });
        if question.len() > LONGEST {
            return Err(self.failed(format!(
                "these rules take {} bytes, and {LONGEST} is the most in one go: add exact-match rules by 'wirelane rules add'",
                question.len()
            )));
        }
        // A capture closes idle connections, and this one may have been idle while a file of rules was read.
        if self.active.elapsed() > PATIENCE / 2 {
            self.stream = BufReader::new(Client::open(&self.path, self.purpose)?);
        }
        let mut answer = Vec::new();
        let written = self.stream.get_mut().write_all(&question);
        // A request that is refused before it is complete gets an answer too.
        let read = self.stream.by_ref().take(2 * LONGEST as u64).read_until(b'\n', &mut answer);
        let asked = if answer.ends_with(b"\n") { read } else { written.and(read) };
        self.active = Instant::now();
        match asked {
            Ok(_) if answer.ends_with(b"\n") => {}
            Ok(_) => return Err(self.failed("the capture ended before it answered".into())),
            Err(e) => return Err(self.failed(format!("asking the capture: {e}"))),
        }
        match serde_json::from_slice::<Reply>(&answer) {
            Ok(Reply { answer: Answer::Refused(reason), .. }) => Err(self.failed(reason)),
            Ok(Reply { answer, .. }) => Ok(answer),
            Err(e) => Err(self.failed(format!("invalid answer: {e}"))),
        }
    }

    fn odd(&self, answer: &Answer) -> Error {
        self.failed(format!("unexpected answer: {answer:?}"))
    }

    fn failed(&self, reason: String) -> Error {
        Error::Control { path: self.path.clone(), reason }
    }
}
