//! A process beside the capture, forked before rights are given up, and the socket between the two.
//!
//! Forked and not re-executed, as a library cannot know what its program's file would do. The child has the capturing
//! process's memory and nothing else of it: no descriptor but its socket (its standard streams lead nowhere), no
//! capability but CAP_NET_ADMIN, no signals that are meant for the capture. It is nobody's child, so that nobody has to
//! wait for it, and sees the capture's end as the end of the stream, however that came.

use std::convert::Infallible;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// Starts the process, which does `work` and ends. What is given is this process's end of the socket.
///
/// `work` may allocate (the C library makes its allocator whole in a forked child, also where the process has other
/// threads) but must take no lock that another thread could hold at this moment: it must not log.
pub(super) fn start(name: &'static CStr, work: impl FnOnce(UnixStream)) -> io::Result<UnixStream> {
    let (ours, its) = UnixStream::pair()?;
    // SAFETY: the child runs `detach`, which never returns to the program that was forked, and keeps what is said above.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            detach(name, its, work);
            // SAFETY: ends this process and runs nothing of the program that was forked.
            unsafe { libc::_exit(1) }
        }
        child => wait_for(child).map(|()| ours),
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

/// The child. Comes back only for an error.
fn detach(name: &CStr, socket: UnixStream, work: impl FnOnce(UnixStream)) -> Option<Infallible> {
    // SAFETY: system calls without pointers; _exit runs nothing of the program that was forked.
    unsafe {
        libc::setsid();
        match libc::fork() {
            -1 => libc::_exit(1),
            0 => {}
            _ => libc::_exit(0),
        }
    }
    let socket = leave_descriptors(&socket).ok()?;
    // SAFETY: constants, and strings that end with a zero.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2]
        {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::chdir(c"/".as_ptr());
    }
    keep_net_admin_only().ok()?;
    // A panic must not unwind into the program that was forked.
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(UnixStream::from(socket))));
    // SAFETY: ends this process and runs nothing of the program that was forked.
    unsafe { libc::_exit(i32::from(done.is_err())) }
}

/// Closes everything but the socket, and points the standard streams at nothing, so that no file that is opened later
/// is taken for one of them.
fn leave_descriptors(socket: &UnixStream) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) and open(2) with constants and live descriptors.
    let (socket, nothing) = unsafe {
        let socket = libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3);
        (socket, libc::open(c"/dev/null".as_ptr(), libc::O_RDWR))
    };
    if socket < 0 || nothing < 0 {
        return Err(io::Error::last_os_error());
    }
    for stream in 0..3 {
        // SAFETY: dup2(2) with live descriptors; what it closes are this forked process's own copies.
        if unsafe { libc::dup2(nothing, stream) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    close(3, socket as u32 - 1);
    close(socket as u32 + 1, u32::MAX);
    // SAFETY: duplicated above, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Closes the descriptors from `first` to `last`.
fn close(first: u32, last: u32) {
    // SAFETY: descriptors of this forked process; values that own them are never dropped, as it ends by _exit(2).
    if first <= last && unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
        // Refused in some containers.
        for each in first..=last.min(1 << 16) {
            // SAFETY: as above.
            unsafe { libc::close(each as RawFd) };
        }
    }
}

/// capset(2): `struct __user_cap_header_struct` and two of `struct __user_cap_data_struct`.
fn keep_net_admin_only() -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    const NET_ADMIN: u32 = 1 << 12;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable; first for capabilities 0 to 31, then for the others.
    let sets = [NET_ADMIN, NET_ADMIN, 0, 0, 0, 0];
    // SAFETY: live arrays of the layout of those structs, only read; and constants.
    let status = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr())
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends all of a message, which is short enough for the socket's buffer; no signal where nobody listens.
pub(super) fn send(socket: &UnixStream, message: &[u8]) -> io::Result<()> {
    // SAFETY: a live buffer of this length, only read.
    let sent = unsafe {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), flags)
    };
    match usize::try_from(sent) {
        Ok(sent) if sent == message.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Reads what is there without waiting: `WouldBlock` where nothing is, 0 at the end of the stream.
pub(super) fn receive(socket: &UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: a live buffer of this length, exclusively borrowed.
    let got = unsafe {
        libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
    };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};

    use super::*;
    use crate::privilege::{self, Capability};

    /// What is left to the process, as it sees it itself: its descriptors, its capabilities, its name.
    #[test]
    fn the_process_has_its_socket_and_one_capability() {
        if privilege::require(&[Capability::NetAdmin], "this test").is_err() {
            println!("left out: the_process_has_its_socket_and_one_capability (no CAP_NET_ADMIN)");
            return;
        }
        let held = fs::File::open("/proc/self/status").unwrap();
        let mut socket = start(c"wl-test", |mut socket| {
            let mut question = [0; 4];
            while socket.read_exact(&mut question).is_ok() {
                let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
                let links = fs::read_dir("/proc/self/fd").map(|all| {
                    all.filter_map(|one| fs::read_link(one.ok()?.path()).ok())
                        .map(|link| link.display().to_string())
                        .collect::<Vec<_>>()
                });
                let _ = write!(socket, "{status}fds: {:?}\nend\n", links.unwrap_or_default());
            }
        })
        .unwrap();
        drop(held);
        send(&socket, b"tell").unwrap();
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
        assert_eq!(descriptors.matches("\"/dev/null\"").count(), 3, "{descriptors}");
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
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("process {pid} goes on");
    }
}
