//! Helper processes that keep a right which their owner gives up.
//!
//! They are forked and not re-executed, since a library cannot know what its program's file would do. Each is a session
//! of its own, so that Ctrl-C and hang-ups do not reach it, and nobody's child, so that nobody has to wait for it. Of the
//! owner it has the memory, the descriptors that it is told to keep, and few rights (`rights.rs`).
//!
//! It allocates, which a process may not that was forked from one with threads, but for C libraries that see to it:
//! glibc and musl keep their allocator usable over fork(2), and allocators with handlers for it (jemalloc, mimalloc)
//! do. It takes no other lock that a thread may have held at that moment: it does not log, and prints nothing. Commands
//! have no threads then anyway.

mod rights;

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use self::rights::{Access, Rights};

/// Forks a process of this name, which keeps these rights and descriptors, does `work`, and ends.
///
/// `work` must not log, and must keep to what is said above. Values of the caller's are never dropped in the process, but
/// for those that `work` has taken.
///
/// # Errors
/// Where it cannot be forked. A process that cannot give up its other rights ends before it does any work.
pub fn start(name: &'static CStr, rights: Rights, keep: &[RawFd], work: impl FnOnce()) -> io::Result<()> {
    // SAFETY: the child never returns: it catches panics, and ends by _exit. It uses nothing that is locked by threads
    // that it does not have, as the head of this file says.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => detach(name, rights, keep, work),
        child => wait_for(child),
    }
}

/// Waits for the child between us and the process, which ends at once.
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
            // The program around us waits for all children, or ignores their ends.
            Some(libc::ECHILD) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// The child: forks once more, so that the process is a child of init, and ends.
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
    // A panic must not unwind into the program that was forked. What it leaves, the next Wirelane heals.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        // With more rights than it should have it does not serve: the owner finds its socket closed.
        if rights.assume().is_ok() {
            leave_behind(name, keep);
            work();
        }
    }));
    // SAFETY: ends this process and runs nothing of the program that was forked.
    unsafe { libc::_exit(i32::from(ended.is_err())) }
}

/// Leaves behind what belongs to the program that was forked: its terminal, files, signals, folder.
fn leave_behind(name: &CStr, keep: &[RawFd]) {
    // SAFETY: sigset_t is an array of integers; all zero is a valid value, and the call below makes it the empty set.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: descriptors of this forked process only; signal numbers and dispositions without handlers, a live set,
    // and strings that end with a zero.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        // Handlers of the program would write to descriptors that are other files here.
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
        // Whatever writes to standard output or error meets a folder, which cannot be written; Landlock lets it be
        // opened so.
        let folder = libc::open(c"/".as_ptr(), libc::O_PATH);
        for standard in (0..3).filter(|standard| !keep.contains(standard) && *standard != folder) {
            libc::dup2(folder, standard);
        }
    }
    close_all_but(keep);
}

/// Closes every descriptor but these and the first three: nobody waits for a pipe or file because this process has it open.
fn close_all_but(keep: &[RawFd]) {
    let mut keep: Vec<u32> = keep.iter().map(|fd| *fd as u32).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep.into_iter().chain([u32::MAX]) {
        // SAFETY: descriptors of this forked process only; those of the values in use are kept.
        if fd > first && unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) } != 0 {
            // Refused in some containers.
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

    /// What is left to the process, as it sees it itself: its descriptors, its capabilities, its name.
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
        // The folder that is being read is the fifth.
        assert_eq!(descriptors.matches('"').count() / 2, 5, "{descriptors}");
        let pid = line("Pid:").to_owned();
        assert_ne!(pid, std::process::id().to_string());

        // The end of the stream is its end.
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
