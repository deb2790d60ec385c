//! The sandbox: a process gives up the rights that it no longer needs once it is set up.
//!
//! Setting up a capture takes root's rights; running it takes only file descriptors that are open by then. One call
//! between the two gives the rights up for good, so that an exploited parser bug has no privileges to use:
//!
//! | what | how | left |
//! | --- | --- | --- |
//! | user and groups | setresuid(2), setgroups(2) | an unprivileged user: see [`Identity`] |
//! | capabilities | capset(2), the bounding set too | none but those of [`Sandbox::keep`], and CAP_DAC_OVERRIDE for some outputs: see [`Sandbox::output`] |
//! | new privileges | `PR_SET_NO_NEW_PRIVS` | none, whatever is executed |
//! | files and network | Landlock (Linux 5.13) | the outputs that were named; no TCP but [`Sandbox::connects`], no abstract sockets, no signals |
//! | system calls | seccomp, an allow-list | those of the work; any other kills the process (SIGSYS) |
//! | memory | `PR_SET_DUMPABLE` | no core dump, no debugger but root's |
//!
//! Nothing happens automatically: the program calls [`Sandbox::apply`] at the right moment, before it starts threads.

mod calls;
mod files;
mod identity;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use caps::{CapSet, CapsHashSet};
use nix::sys::prctl;

pub use identity::Identity;

use crate::capability::Capability;
use crate::{Error, Result};

/// Whether [`Sandbox::apply`] was called in this process.
static APPLIED: AtomicBool = AtomicBool::new(false);

/// Whether this process has given up rights by [`Sandbox::apply`]: asking for them again may end it.
pub fn is_applied() -> bool {
    // Relaxed: threads are started after the sandbox is applied, which orders the store before their loads.
    APPLIED.load(Ordering::Relaxed)
}

/// The work of the process after the sandbox is applied, which determines the system calls that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads the rings of a live capture.
    Capture,
    /// Reads an open capture file.
    Read,
    /// Sends packets.
    Send,
    /// Serves TCP connections on a listening socket.
    Serve,
    /// Reads files, and sends them over TCP connections that it opens: see [`Sandbox::connects`].
    Ship,
}

/// The rights to give up and to keep: see the [module](self).
#[derive(Clone, Debug)]
pub struct Sandbox {
    work: Work,
    identity: Option<Identity>,
    outputs: Vec<PathBuf>,
    trees: Vec<PathBuf>,
    sources: Vec<PathBuf>,
    logs: Vec<PathBuf>,
    reads: Vec<PathBuf>,
    read_back: bool,
    kept: Vec<Capability>,
    rules: bool,
    rule_calls: bool,
    serves: bool,
    ports: Vec<u16>,
    resolves: bool,
    terminal: bool,
}

impl Sandbox {
    /// Creates a sandbox for this work; afterwards nothing can be opened, and the user stays the same.
    pub fn new(work: Work) -> Sandbox {
        Sandbox {
            work,
            identity: None,
            outputs: Vec::new(),
            trees: Vec::new(),
            sources: Vec::new(),
            logs: Vec::new(),
            reads: Vec::new(),
            read_back: false,
            kept: Vec::new(),
            rules: false,
            rule_calls: false,
            serves: false,
            ports: Vec::new(),
            resolves: false,
            terminal: false,
        }
    }

    /// Becomes this user. Only root can do that.
    #[must_use]
    pub fn identity(mut self, identity: Option<Identity>) -> Sandbox {
        self.identity = identity;
        self
    }

    /// Allows writing an output: afterwards files can be created, written, renamed and removed in its folder, but
    /// nowhere else. If the output is a pipe or a device, which exists already, only that one can be opened.
    ///
    /// If the new user may not write there, CAP_DAC_OVERRIDE is kept, which Landlock restricts to this folder; without
    /// Landlock that is an error.
    #[must_use]
    pub fn output(mut self, path: &Path) -> Sandbox {
        self.outputs.push(files::place_of(path));
        self
    }

    /// Allows writing in an existing folder, and creating and removing folders below it: otherwise as for
    /// [`Sandbox::output`].
    #[must_use]
    pub fn tree(mut self, folder: &Path) -> Sandbox {
        self.trees.push(folder.to_owned());
        self
    }

    /// Allows reading files below this folder.
    #[must_use]
    pub fn reads(mut self, folder: &Path) -> Sandbox {
        self.sources.push(folder.to_owned());
        self
    }

    /// Allows reopening an open file by its name after it was renamed: files can be created and written in its folder,
    /// but not removed. The permissions of the folder, or of a file that logrotate creates, must let the new user do
    /// so: no capability is kept for it.
    #[must_use]
    pub fn log(mut self, path: &Path) -> Sandbox {
        self.logs.push(files::place_of(path));
        self
    }

    /// Allows reading a file again that is replaced, as certificates are: files in its folder can be read, and in that of
    /// the file that it is a link to. The permissions of the file must let the new user do so: no capability is kept for it.
    #[must_use]
    pub fn read_again(mut self, path: &Path) -> Sandbox {
        self.reads.push(files::place_of(path));
        self.reads.extend(path.canonicalize().ok().map(|path| files::place_of(&path)));
        self
    }

    /// Allows reading the outputs too: O_DIRECT reads back the block that it continues in.
    #[must_use]
    pub fn read_back(mut self, read_back: bool) -> Sandbox {
        self.read_back = read_back;
        self
    }

    /// Keeps a capability that the work still needs: for undoing a change at the end, for example.
    #[must_use]
    pub fn keep(mut self, capability: Capability) -> Sandbox {
        self.kept.push(capability);
        self
    }

    /// Allows TCP connections to these ports, on any host: an exporter reconnects to a collector that has returned.
    /// Before Linux 6.7, whose Landlock knows ports, connections to any port are allowed.
    #[must_use]
    pub fn connects(mut self, ports: &[u16]) -> Sandbox {
        self.ports.extend_from_slice(ports);
        self
    }

    /// Allows a library that connects by itself: it looks names up (UDP sockets, and files in /etc and in the folder of the
    /// resolver's configuration), and sends several buffers at once. The process must have looked a name up before, which loads
    /// the libraries for it.
    #[must_use]
    pub fn resolves(mut self, resolves: bool) -> Sandbox {
        self.resolves = resolves;
        if resolves { self.read_again(Path::new("/etc/resolv.conf")) } else { self }
    }

    /// Allows changing the settings of an open terminal: for a full-screen view, which restores them at the end.
    #[must_use]
    pub fn terminal(mut self, terminal: bool) -> Sandbox {
        self.terminal = terminal;
        self
    }

    /// Allows accepting connections on listening sockets.
    #[must_use]
    pub fn serves(mut self, serves: bool) -> Sandbox {
        self.serves = serves;
        self
    }

    /// Allows the calls that changing rules needs while a capture runs: accepting connections on an open socket, and
    /// reading and removing map entries in batches; with `calls` also running open programs (`BPF_PROG_TEST_RUN`).
    #[must_use]
    pub fn changing_rules(mut self, calls: bool) -> Sandbox {
        self.rules = true;
        self.rule_calls = calls;
        self
    }

    /// Gives the rights up for good.
    ///
    /// # Errors
    /// [`Error::BadOption`] if the process already has threads, which would keep their rights, or if the new user
    /// cannot write an output; [`Error::Unsupported`] on a CPU without an allow-list; [`Error::Kernel`] if the kernel
    /// refuses a step. After an error the process may have lost part of its rights: end it.
    pub fn apply(&self) -> Result<()> {
        alone()?;
        // Relaxed: this is the only thread.
        APPLIED.store(true, Ordering::Relaxed);
        let writes = match (self.trees.is_empty(), self.outputs.is_empty() && self.logs.is_empty()) {
            (false, _) => calls::Writes::Folders,
            (true, false) => calls::Writes::Files,
            (true, true) => calls::Writes::Nothing,
        };
        let more = calls::More {
            rules: self.rules,
            rule_calls: self.rule_calls,
            serves: self.serves,
            connects: !self.ports.is_empty(),
            resolves: self.resolves,
            terminal: self.terminal,
        };
        let calls = calls::Filters::compile(self.work, writes, more)?;
        let closed = self.outputs.iter().chain(&self.trees).find(|place| !self.may_write(place));
        prctl::set_dumpable(false).map_err(refused("forbidding core dumps"))?;
        let boxed = files::restrict(&files::Places {
            outputs: &self.outputs,
            trees: &self.trees,
            logs: &self.logs,
            reads: &self.reads,
            sources: &self.sources,
            read_back: self.read_back,
            ports: &self.ports,
        })?;
        let mut kept: CapsHashSet = self
            .kept
            .iter()
            .map(|capability| capability.name().parse())
            .collect::<std::result::Result<_, _>>()
            .map_err(failed("keeping a capability"))?;
        if let Some(place) = closed {
            self.explain_override(place, boxed)?;
            kept.insert(caps::Capability::CAP_DAC_OVERRIDE);
        }
        self.drop_user_and_capabilities(&kept)?;
        calls.install()
    }

    fn may_write(&self, place: &Path) -> bool {
        match &self.identity {
            Some(identity) => identity.may_write(place),
            // A user that does not change gets the kernel's error when the output is opened. Root's right to write
            // anywhere, however, is a capability that is dropped.
            None => !nix::unistd::geteuid().is_root() || identity::may_write_as(place, 0, 0),
        }
    }

    fn explain_override(&self, place: &Path, boxed: bool) -> Result<()> {
        let name = self.identity.as_ref().map_or("root without capabilities", Identity::name);
        let refuse = |why: &str| {
            let place = place.display();
            let reason = format!(
                "{name} may not write to {place}, and {why}; name a user who may, 'root' for one, or another folder"
            );
            Err(Error::BadOption { option: "--user", reason })
        };
        if !boxed {
            return refuse("without Landlock (Linux 5.13) no right to it can be kept");
        }
        if place.canonicalize().is_ok_and(|place| place.parent().is_none()) {
            return refuse("a right to it would be one to everything below");
        }
        tracing::info!(
            "{name} may not write to {}: CAP_DAC_OVERRIDE is kept, for this place only (Landlock)",
            place.display()
        );
        Ok(())
    }

    fn drop_user_and_capabilities(&self, kept: &CapsHashSet) -> Result<()> {
        // Emptying the bounding set needs a capability, and matters only to executed programs, which there are not.
        if caps::has_cap(None, CapSet::Effective, caps::Capability::CAP_SETPCAP).unwrap_or(false) {
            for capability in caps::runtime::thread_all_supported().difference(kept) {
                caps::drop(None, CapSet::Bounding, *capability)
                    .map_err(failed("emptying the bounding set"))?;
            }
        }
        if let Some(identity) = &self.identity {
            prctl::set_keepcaps(!kept.is_empty()).map_err(refused("keeping a capability"))?;
            identity.assume()?;
        }
        caps::clear(None, CapSet::Ambient).map_err(failed("dropping ambient capabilities"))?;
        caps::clear(None, CapSet::Inheritable).map_err(failed("dropping inheritable capabilities"))?;
        // The effective set must be a subset of the permitted set at every moment, so it shrinks first.
        for set in [CapSet::Effective, CapSet::Permitted] {
            caps::set(None, set, kept).map_err(failed("dropping capabilities"))?;
        }
        prctl::set_no_new_privs().map_err(refused("forbidding new privileges"))
    }
}

/// Gives up all capabilities for good, and the ability of executed programs to gain others: for a helper that runs
/// commands as its current user.
///
/// # Errors
/// The kernel's error, or an error if the process already has threads.
pub fn without_capabilities() -> Result<()> {
    alone()?;
    prctl::set_dumpable(false).map_err(refused("forbidding core dumps"))?;
    Sandbox::new(Work::Read).drop_user_and_capabilities(&CapsHashSet::new())
}

/// Checks that the process has one thread: others would keep their capabilities and file access, which are per thread.
fn alone() -> Result<()> {
    let path = PathBuf::from("/proc/self/task");
    let count = || std::fs::read_dir(&path).map(Iterator::count);
    let mut threads = 0;
    // A joined thread is still listed for a moment.
    for _ in 0..500 {
        threads = count().map_err(|source| Error::Io { path: path.clone(), source })?;
        if threads == 1 {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Err(Error::BadOption {
        option: "confinement",
        reason: format!(
            "{threads} threads run already, which would keep their rights; confine before starting any"
        ),
    })
}

fn refused(action: &'static str) -> impl Fn(nix::Error) -> Error {
    move |errno| Error::kernel(action, errno.into())
}

fn failed<E: std::error::Error + Send + Sync + 'static>(action: &'static str) -> impl Fn(E) -> Error {
    move |source| Error::kernel(action, io::Error::other(source))
}
