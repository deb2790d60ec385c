//! Helper processes that keep a right that their owner gives up.
//!
//! They are forked and not re-executed, since a library cannot know how its program behaves when it is executed again.
//! Each is a session of its own, so that Ctrl-C and hang-ups do not reach it, and a child of init, so that the owner
//! does not have to wait for it. It inherits the memory of the owner, the descriptors that the caller lists, and few
//! rights (`rights.rs`).
//!
//! It allocates memory, which a process forked from a multi-threaded one may do only with some C libraries: glibc and
//! musl keep their allocator usable over fork(2), and allocators with handlers for it (jemalloc, mimalloc) do. It takes
//! no other lock that a thread may have held at that moment: it does not log, and prints nothing. Commands are
//! single-threaded at that point anyway.

mod rights;

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use self::rights::keep_only;
pub use self::rights::{Access, Rights};

/// Forks a process of this name, which keeps these rights and descriptors, runs `work`, and ends.
///
/// `work` must not log, and must follow the rules at the head of this file. The process never drops values of the
/// caller, except those that are moved into `work`.
///
/// # Errors
/// If the process cannot be forked. A process that cannot give up its other rights ends before it runs `work`.
pub fn start(name: &'static CStr, rights: Rights, keep: &[RawFd], work: impl FnOnce()) -> io::Result<()> {
    // SAFETY: the child never returns: it catches panics, and ends by _exit. It takes no lock that may be held by
    // threads that it does not have, as documented at the head of this file.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => detach(name, rights, keep, work),
        child => wait_for(child),
    }
}

/// Waits for the intermediate child, which ends at once.
fn wait_for(child: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    loop {
        // SAFETY: a live integer to write to.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
            let forked = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            return if forked { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EAGAIN)) };
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // The program waits for all its children elsewhere, or ignores SIGCHLD.
            Some(libc::ECHILD) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// Runs in the child: forks once more, so that the process becomes a child of init, and ends.
fn detach(name: &CStr, rights: Rights, keep: &[RawFd], work: impl FnOnce()) -> ! {
    // SAFETY: system calls without pointers; _exit runs nothing of the program that was forked.
    unsafe {
        libc::setsid();
        match libc::fork() {
            -1 => libc::_exit(1),
            0 => {}
            _ => libc::_exit(0),
        }
    }
    // A panic must not unwind into the program that was forked. The next start of Wirelane undoes what such a process
    // has left.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        // A process with too many rights must not serve: its owner finds the socket closed.
        if rights.assume().is_ok() {
            leave_behind(name, keep);
            work();
        }
    }));
    // SAFETY: ends this process and runs nothing of the program that was forked.
    unsafe { libc::_exit(i32::from(ended.is_err())) }
}

/// Detaches from the program that was forked: its terminal, files, signals, working directory.
fn leave_behind(name: &CStr, keep: &[RawFd]) {
    // SAFETY: sigset_t is an array of integers; all zero is a valid value, and the call below makes it the empty set.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: descriptors of this forked process only; signal numbers and dispositions without handlers, a live set,
    // and strings that end with a zero.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        // Signal handlers of the program would write to descriptors that are different files here.
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        for signal in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGQUIT,
            libc::SIGUSR1,
            libc::SIGUSR2,
            libc::SIGPIPE,
        ] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::chdir(c"/".as_ptr());
        // Standard input, output and error become a folder, which cannot be written; Landlock allows opening it with
        // O_PATH.
        let folder = libc::open(c"/".as_ptr(), libc::O_PATH);
        for standard in (0..3).filter(|standard| !keep.contains(standard) && *standard != folder) {
            libc::dup2(folder, standard);
        }
    }
    close_all_but(keep);
}

/// Closes all descriptors except these and the first three: no reader shall wait for a pipe or file that only this
/// process has open.
fn close_all_but(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().map(|fd| *fd as u32).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep.into_iter().chain([u32::MAX]) {
        // SAFETY: descriptors of this forked process only; those of the values in use are kept.
        if fd > first && unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) } != 0 {
            // close_range(2) is refused in some containers.
            for each in first..fd.min(1 << 16) {
                // SAFETY: as above.
                unsafe { libc::close(each as RawFd) };
            }
        }
        first = first.max(fd.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// The resources of the process, as it reports them itself: its descriptors, its capabilities, its name.
    #[test]
    fn the_process_has_what_it_keeps_and_one_capability() {
        if !nix::unistd::geteuid().is_root() {
            println!("left out: the_process_has_what_it_keeps_and_one_capability (needs root)");
            return;
        }
        let held = fs::File::open("/proc/self/status").unwrap();
        let (mut socket, its) = UnixStream::pair().unwrap();
        let descriptor = its.as_raw_fd();
        let rights = Rights::new(&[crate::Capability::NetAdmin], &[("/proc".into(), Access::Read)]).unwrap();
        start(c"wl-test", rights, &[descriptor], move || {
            let mut its = its;
            let mut question = [0; 4];
            while its.read_exact(&mut question).is_ok() {
                let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
                let links = fs::read_dir("/proc/self/fd").map(|all| {
                    all.filter_map(|one| fs::read_link(one.ok()?.path()).ok())
                        .map(|link| link.display().to_string())
                        .collect::<Vec<_>>()
                });
                let _ = write!(its, "{status}fds: {:?}\nend\n", links.unwrap_or_default());
            }
        })
        .unwrap();
        drop(held);
        socket.write_all(b"tell").unwrap();
        let mut text = String::new();
        while !text.ends_with("end\n") {
            let mut more = [0; 4096];
            let got = socket.read(&mut more).unwrap();
            assert!(got > 0, "it ended: {text}");
            text.push_str(std::str::from_utf8(&more[..got]).unwrap());
        }
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        assert_eq!(line("Name:"), "wl-test");
        assert_eq!((line("CapEff:"), line("CapPrm:")), ("0000000000001000", "0000000000001000"));
        assert_eq!(line("NoNewPrivs:"), "1");
        let descriptors = line("fds:");
        assert_eq!(descriptors.matches("\"/\"").count(), 3, "{descriptors}");
        assert_eq!(descriptors.matches("socket:").count(), 1, "{descriptors}");
        // The fifth one is the folder that is being read.
        assert_eq!(descriptors.matches('"').count() / 2, 5, "{descriptors}");
        let pid = line("Pid:").to_owned();
        assert_ne!(pid, std::process::id().to_string());

        // The process ends at the end of its stream.
        drop(socket);
        let gone = || {
            fs::read_to_string(format!("/proc/{pid}/stat"))
                .map_or(true, |stat| stat.contains(") Z ") || !stat.contains("wl-test"))
        };
        for _ in 0..500 {
            if gone() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("process {pid} goes on");
    }
}
