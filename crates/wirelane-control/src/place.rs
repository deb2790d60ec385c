//! Paths of control sockets: a file per capture and purpose, in a folder of the user who started it.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use wirelane_privsep::broker::{Broker, Kind, LogLine, Outcome, Registration, Task};
use wirelane_privsep::process::{ProcessId, RUN_FOLDER, run_folder};

use crate::{Error, Result};

/// Purpose of a control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A capture's rules: `wirelane rules`.
    Rules,
    /// The measurements of a probe: `wirelane probe set` and `wirelane probe show`.
    Probe,
    /// A monitor: `wirelane status` and `wirelane reload`.
    Monitor,
}

impl Purpose {
    const ALL: [Purpose; 3] = [Purpose::Rules, Purpose::Probe, Purpose::Monitor];

    /// The suffix of the socket's file name.
    fn ending(self) -> &'static str {
        match self {
            Purpose::Rules => ".control",
            Purpose::Probe => ".probe",
            Purpose::Monitor => ".monitor",
        }
    }

    /// The command that uses the socket.
    pub(super) fn command(self) -> &'static str {
        match self {
            Purpose::Rules => "wirelane rules",
            Purpose::Probe => "wirelane probe set",
            Purpose::Monitor => "wirelane status",
        }
    }
}

/// The file of a control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFile {
    pub(super) path: PathBuf,
}

impl SocketFile {
    /// A file name that is unique since the start of the system: `PID.START.NUMBER.control`, or with the suffix of
    /// another purpose.
    fn new(folder: &Path, purpose: Purpose) -> SocketFile {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let this = ProcessId::this();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let ending = purpose.ending();
        SocketFile { path: folder.join(format!("{}.{}.{number}{ending}", this.pid, this.start)) }
    }

    /// The process encoded in the name, and the purpose; `None` if it is not the name of a control socket.
    fn owner(path: &Path) -> Option<(ProcessId, Purpose)> {
        let name = path.file_name()?.to_str()?;
        let of = |purpose: &Purpose| Some((name.strip_suffix(purpose.ending())?, *purpose));
        let (name, purpose) = Purpose::ALL.iter().find_map(of)?;
        let mut numbers = name.split('.').map(str::parse::<u64>);
        let (pid, start) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some((ProcessId { pid: pid.try_into().ok()?, start }, purpose))
    }

    /// Removes the file. A missing file is not an error, and a file that is not a socket is kept.
    pub fn remove(&self) -> io::Result<()> {
        let removed = match fs::symlink_metadata(&self.path) {
            Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(e) => Err(e),
        };
        match removed {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Warning that the file could not be removed.
    pub fn not_removed(&self, why: &io::Error) -> LogLine {
        LogLine::Warning(format!("removing the control socket {}: {why}", self.path.display()))
    }
}

/// Removing a [`SocketFile`], as a task of a broker.
pub const KIND: Kind = Kind {
    name: "control socket",
    capabilities: &[],
    prepare: Kind::nothing,
    read: |task, descriptors| {
        let file: SocketFile = serde_json::from_slice(task).ok()?;
        descriptors.is_empty().then(|| Box::new(file) as Box<dyn Task>)
    },
};

impl Task for SocketFile {
    /// Never retried: a removal that fails now would fail a moment later too, and the next start tries again.
    fn undo(&mut self, _prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>) {
        (true, self.remove().err().map(|e| self.not_removed(&e)).into_iter().collect())
    }
}

/// The folder for control sockets of this user, created if it is missing: for root the folder of the journals, for
/// other users a folder under `$XDG_RUNTIME_DIR`.
///
/// # Errors
/// [`Error::Unsupported`] if this user has no such folder; [`Error::Io`] if it cannot be created.
pub fn folder() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(run_folder()?);
    }
    let path = folder_of_user().ok_or_else(|| Error::Unsupported {
        what: "a control socket ('wirelane rules' and 'wirelane probe set' talk to one)".into(),
        needs: "a folder of this user's for sockets: the environment has no XDG_RUNTIME_DIR".into(),
        instead: "set it to a folder that only this user can enter, or start the capture by sudo".into(),
    })?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.map_err(|source| Error::Io { path: path.clone(), source })?;
    Ok(path)
}

/// The folder of a user other than root.
fn folder_of_user() -> Option<PathBuf> {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty())?;
    Some(PathBuf::from(folder).join("wirelane"))
}

/// Folder of the runtime folders of services, which the service manager creates for their users.
const SERVICES: &str = "/run/wirelane-monitor";

/// The folders with the sockets of captures that this user may manage.
pub(super) fn folders() -> Vec<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    let root = is_root.then(|| PathBuf::from(RUN_FOLDER));
    let services = if is_root { fs::read_dir(SERVICES).ok() } else { None };
    let services = services.into_iter().flatten().flatten().map(|entry| entry.path().join("wirelane"));
    let mut all: Vec<PathBuf> = root.into_iter().chain(services).collect();
    // The environment may name the folder of a service.
    all.extend(folder_of_user().filter(|folder| !all.contains(folder)));
    all
}

/// The files of sockets with this purpose in a folder. Files of processes that have ended are removed, for all
/// purposes.
///
/// # Errors
/// The folder exists, but cannot be read.
pub(super) fn files(folder: &Path, purpose: Purpose) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        match SocketFile::owner(&path) {
            Some((owner, its)) if owner.lives() => files.extend((its == purpose).then_some(path)),
            // The broker was killed too.
            Some(_) => SocketFile { path }.remove()?,
            None => {}
        }
    }
    files.sort();
    Ok(files)
}

/// A listening socket of this process, and its file, which the broker removes however the process ends.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: UnixListener,
    file: SocketFile,
    registration: Registration,
    /// The user with access besides root: the user who started the capture, even if the process changes its user later.
    /// `None`: those whom the file's mode permits.
    pub(super) user: Option<u32>,
}

impl Listener {
    /// Creates a listening socket in the folder of this user.
    ///
    /// # Errors
    /// As [`folder`]; [`Error::Kernel`] if the socket cannot be created.
    pub fn open(broker: &Arc<Broker>, purpose: Purpose) -> Result<Listener> {
        let folder = folder()?;
        if let Err(e) = files(&folder, purpose) {
            tracing::warn!("{}: looking for sockets that killed captures have left: {e}", folder.display());
        }
        let file = SocketFile::new(&folder, purpose);
        let registration = broker.register(&KIND, &file, &[])?;
        let socket = listen(&file.path, OWNER).map_err(|source| {
            Error::kernel(format!("making the control socket {}", file.path.display()), source)
        })?;
        let user = Some(rustix::process::geteuid().as_raw());
        tracing::info!("'{}' reaches this capture at {}", purpose.command(), file.path.display());
        Ok(Listener { socket, file, registration, user })
    }

    /// Creates a listening socket for others. A socket that a killed process has left there is replaced.
    ///
    /// # Errors
    /// [`Error::Control`]: the path is in use, or the socket cannot be created, or given to its group.
    pub fn shared(broker: &Arc<Broker>, purpose: Purpose, socket: &SharedSocket) -> Result<Listener> {
        let SharedSocket { path, group, mode } = socket;
        let failed = |reason: String| Error::Control { path: path.clone(), reason };
        let file = SocketFile { path: path.clone() };
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(failed("another file is there: expected a path for a new socket".into()));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                let reason = "another process answers there: end it, or choose another path";
                return Err(failed(reason.into()));
            }
            // Nobody answers at a socket that a killed process has left, and its name cannot be bound again.
            Ok(_) => file.remove().map_err(|e| failed(format!("removing an old socket: {e}")))?,
            Err(_) => {}
        }
        let registration = broker.register(&KIND, &file, &[])?;
        // Nobody else connects before the socket has its group.
        let listening = listen(path, OWNER).map_err(|e| failed(format!("making the control socket: {e}")))?;
        let listener = Listener { socket: listening, file, registration, user: None };
        if let Some(group) = group {
            lchown(path, None, Some(*group)).map_err(|e| {
                failed(format!("giving the socket to group {group}: {e}; only root and members of it can"))
            })?;
        }
        fs::set_permissions(path, Permissions::from_mode(*mode))
            .map_err(|e| failed(format!("setting the mode of the socket: {e}")))?;
        tracing::info!("'{}' reaches this capture at {}", purpose.command(), path.display());
        Ok(listener)
    }
}

/// Mode of a socket to which only its user can connect.
const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

/// A socket at a fixed path, to which others can connect, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSocket {
    /// Path of the socket.
    pub path: PathBuf,
    /// Group of the file, by its number.
    pub group: Option<u32>,
    /// Mode of the file: write permission is permission to connect.
    pub mode: u32,
}

/// A listening socket with a backlog, whose file has this mode.
fn listen(path: &Path, mode: Mode) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before the socket has a name: the file gets the socket's mode (unix_bind_bsd() in net/unix/af_unix.c), so
    // other users cannot connect at any moment.
    rustix::fs::fchmod(&socket, mode)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 16)?;
    Ok(UnixListener::from(socket))
}

impl Drop for Listener {
    fn drop(&mut self) {
        let removed = match self.registration.undo() {
            Outcome::Done(said) => {
                said.iter().for_each(LogLine::log);
                return;
            }
            Outcome::Unserved => self.file.remove(),
            // The file has no owner any more: the next process that lists the folder removes it.
            Outcome::Impossible => return,
        };
        if let Err(e) = removed {
            self.file.not_removed(&e).log();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_whose_it_is_and_goes_with_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let file = SocketFile::new(folder.path(), Purpose::Rules);
        let (owner, purpose) = SocketFile::owner(&file.path).unwrap();
        assert_eq!((owner.pid, purpose), (std::process::id(), Purpose::Rules));
        assert!(owner.lives());
        let listener = listen(&file.path, OWNER).unwrap();
        assert_eq!(fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
        // A file of a process that has ended, and files of other programs.
        let dead = folder.path().join(format!("{}.1.0.probe", i32::MAX));
        let _dead_listener = listen(&dead, OWNER).unwrap();
        let probe = SocketFile::new(folder.path(), Purpose::Probe);
        let _probe_listener = listen(&probe.path, OWNER).unwrap();
        let not_ours = ["x.1.0.control".to_owned(), "1.probe".to_owned(), "tune-1-2.journal".to_owned()];
        for name in &not_ours {
            fs::write(folder.path().join(name), b"").unwrap();
        }
        assert_eq!(files(folder.path(), Purpose::Rules).unwrap(), std::slice::from_ref(&file.path));
        assert_eq!(files(folder.path(), Purpose::Probe).unwrap(), std::slice::from_ref(&probe.path));
        assert!(!dead.exists(), "it is removed by whoever looks");
        assert!(not_ours.iter().all(|name| folder.path().join(name).exists()));
        drop(listener);
        file.remove().unwrap();
        file.remove().unwrap();
        assert!(!file.path.exists());
        assert_eq!(files(&folder.path().join("none"), Purpose::Rules).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = SocketFile::new(folder.path(), Purpose::Rules);
        fs::write(&file.path, b"somebody's").unwrap();
        file.remove().unwrap();
        assert!(file.path.exists());
    }
}
