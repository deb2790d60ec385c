//! System call filter: an allow-list by seccomp (Documentation/userspace-api/seccomp_filter.rst in the kernel tree).
//! Any other call kills the process.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::Work;
use crate::{Error, Result};

/// Allowed calls by number, each with the permitted arguments; an empty list permits any.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls that every kind of work needs: memory, threads, time, waiting, open descriptors, its own signals. Opening
/// files is left to Landlock, so that code that merely looks for a file (the C library does, for the number of CPUs)
/// gets an error and continues.
const EVERYWHERE: &[c_long] = &[
    // Memory; mmap and mprotect have conditions.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads; clone has a condition.
    libc::SYS_clone3, // refused by a filter of its own
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rseq,
    libc::SYS_getpriority,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    // Time, which the vDSO does not provide everywhere.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    // Files.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fstat,
    libc::SYS_ftruncate, // of a file that is open: a torn line at the end of standard output
    libc::SYS_getcwd,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_statx,
    libc::SYS_write,
    libc::SYS_writev,
    // Sockets that are open, and pairs (Unix sockets only, below). Not sendmsg: its address cannot be checked.
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    // Signals of this process; tgkill has a condition.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Existing children: a process that started helpers earlier waits for them.
    libc::SYS_wait4,
    libc::SYS_waitid,
    // User, group and working environment of the process.
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// The same calls in their older forms.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// Calls for recording files: creating, renaming, removing and syncing them.
const WRITING: &[c_long] = &[
    libc::SYS_copy_file_range,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_getdents64,
    libc::SYS_linkat,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_syncfs,
    libc::SYS_umask,
    libc::SYS_unlinkat,
];

/// The same calls in forms that other CPUs do not have.
#[cfg(target_arch = "x86_64")]
const WRITING_OLDER: &[c_long] =
    &[libc::SYS_rename, libc::SYS_renameat, libc::SYS_sync_file_range, libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const WRITING_OLDER: &[c_long] = &[];

/// Additional calls for creating and removing folders.
const FOLDERS: &[c_long] = &[libc::SYS_mkdirat];

/// The same calls in forms that other CPUs do not have.
#[cfg(target_arch = "x86_64")]
const FOLDERS_OLDER: &[c_long] = &[libc::SYS_mkdir, libc::SYS_rmdir];
#[cfg(not(target_arch = "x86_64"))]
const FOLDERS_OLDER: &[c_long] = &[];

/// Commands of bpf(2) on open descriptors (linux/bpf.h): reading and writing maps, querying object information.
const BPF_MAP_LOOKUP_ELEM: u64 = 1;
const BPF_MAP_UPDATE_ELEM: u64 = 2;
const BPF_MAP_DELETE_ELEM: u64 = 3;
/// Lookup of one entry with deletion: exact-match rules are added and removed.
const BPF_MAP_LOOKUP_AND_DELETE_ELEM: u64 = 21;
/// Batched lookup: exact-match rules, and maps of plug-ins and steering programs.
const BPF_MAP_LOOKUP_BATCH: u64 = 24;
const BPF_OBJ_GET_INFO_BY_FD: u64 = 15;
/// Engine xsk detaches its program from the device; closing the descriptor does so only if there is no copy of it.
const BPF_LINK_DETACH: u64 = 34;
/// The in-kernel generator is a program that is run on demand.
const BPF_PROG_TEST_RUN: u64 = 10;

/// Kind of writing after the rights are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Writes {
    /// Only descriptors that are open already.
    Nothing,
    /// Files.
    Files,
    /// Files, and new folders for them.
    Folders,
}

/// Optional activities beside the work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct More {
    /// Rules are changed while the capture runs.
    pub(super) rules: bool,
    /// Runs the functions of plug-ins for changes of rules.
    pub(super) rule_calls: bool,
    /// Connections are accepted.
    pub(super) serves: bool,
    /// TCP connections are opened.
    pub(super) connects: bool,
    /// Names are looked up, and buffers are sent together.
    pub(super) resolves: bool,
    /// Terminal settings are changed.
    pub(super) terminal: bool,
}

/// Compiled filters, not yet enforced.
pub(super) struct Filters {
    thread_flags: BpfProgram,
    /// Refusal of sockets that name resolution asks for and does without.
    families: Option<BpfProgram>,
    allowed: BpfProgram,
}

impl Filters {
    /// Compiles the filters for this work; allocates.
    pub(super) fn compile(work: Work, writes: Writes, more: More) -> Result<Filters> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| Error::Unsupported {
            what: format!("restricting system calls on {}", std::env::consts::ARCH),
            needs: "an allow-list for this CPU".into(),
            instead: "run without confinement (--keep-rights)".into(),
        })?;
        let failed = |source| Error::kernel("compiling the list of system calls", io::Error::other(source));
        let compile = |rules: Rules, others, matching| -> std::result::Result<BpfProgram, _> {
            SeccompFilter::new(rules, others, matching, arch)?.try_into()
        };
        // clone3 passes its flags in memory, where a filter cannot read them. Without clone3 the C library uses clone.
        let clone3 = Rules::from([(libc::SYS_clone3, Vec::new())]);
        let thread_flags = compile(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32));
        let refused = SeccompAction::Errno(libc::EAFNOSUPPORT as u32);
        let families = more.resolves.then(|| compile(other_families()?, SeccompAction::Allow, refused));
        let calls = calls(work, writes, more).map_err(failed)?;
        let allowed = compile(calls, SeccompAction::KillProcess, SeccompAction::Allow);
        Ok(Filters {
            thread_flags: thread_flags.map_err(failed)?,
            families: families.transpose().map_err(failed)?,
            allowed: allowed.map_err(failed)?,
        })
    }

    /// Enforces the filters, for all threads and for good.
    pub(super) fn install(&self) -> Result<()> {
        // The allow-list is installed last: it does not allow the installation of another filter.
        for filter in
            [Some(&self.thread_flags), self.families.as_ref(), Some(&self.allowed)].into_iter().flatten()
        {
            seccompiler::apply_filter_all_threads(filter).map_err(|source| {
                Error::kernel("restricting system calls by seccomp", io::Error::other(source))
            })?;
        }
        Ok(())
    }
}

/// Sockets that the C library asks for when it looks a name up, and does without: of the name service's daemons, and of
/// rtnetlink.
fn other_families() -> std::result::Result<Rules, seccompiler::BackendError> {
    let rule = |family: libc::c_int| {
        let is = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, family as u64)?;
        SeccompRule::new(vec![is])
    };
    Ok(Rules::from([(libc::SYS_socket, vec![rule(libc::AF_UNIX)?, rule(libc::AF_NETLINK)?])]))
}

fn calls(work: Work, writes: Writes, more: More) -> std::result::Result<Rules, seccompiler::BackendError> {
    let mut allowed = Rules::new();
    let mut lists = vec![EVERYWHERE, OLDER];
    if writes >= Writes::Files {
        lists.extend([WRITING, WRITING_OLDER]);
    }
    if writes >= Writes::Folders {
        lists.extend([FOLDERS, FOLDERS_OLDER]);
    }
    for call in lists.into_iter().flatten() {
        allowed.insert(*call, Vec::new());
    }
    // One argument of a call has one of these values, or, masked, this one.
    let one_of = |argument: u8, values: &[u64]| {
        let rule = |value: &u64| {
            SeccompRule::new(vec![SeccompCondition::new(
                argument,
                SeccompCmpArgLen::Dword,
                SeccompCmpOp::Eq,
                *value,
            )?])
        };
        values.iter().map(rule).collect::<std::result::Result<Vec<_>, _>>()
    };
    let condition = |argument, length, operator, value| {
        SeccompRule::new(vec![SeccompCondition::new(argument, length, operator, value)?])
            .map(|rule| vec![rule])
    };
    let masked = |argument, mask: u64, value| {
        condition(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
    };
    let nil = |argument| condition(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0);
    let int = |value: libc::c_int| value as u64;

    // Executable memory is mapped before.
    allowed.insert(libc::SYS_mmap, masked(2, int(libc::PROT_EXEC), 0)?);
    allowed.insert(libc::SYS_mprotect, masked(2, int(libc::PROT_EXEC), 0)?);
    // Threads, not processes.
    let thread = int(libc::CLONE_THREAD);
    allowed.insert(libc::SYS_clone, masked(0, thread, thread)?);
    // The calling thread only. It can yield more, and cannot gain anything without CAP_SYS_NICE.
    allowed.insert(libc::SYS_sched_setattr, nil(0)?);
    // Reading a limit (the C library needs the stack's), not setting one.
    allowed.insert(libc::SYS_prlimit64, nil(2)?);
    // Names of threads and of memory.
    allowed.insert(libc::SYS_prctl, one_of(0, &[int(libc::PR_SET_NAME), int(libc::PR_SET_VMA)])?);
    // Terminal queries: whether a descriptor is a terminal, and its size. The standard library uses the others, on open
    // descriptors.
    let controls = [libc::TCGETS, libc::TCGETS2, libc::TIOCGWINSZ, libc::FIONBIO, libc::FIOCLEX];
    // Terminal settings. Not TIOCSTI, which would type into the terminal.
    let settings = if more.terminal { &[libc::TCSETS, libc::TCSETS2][..] } else { &[] };
    // Size of an answer of the name service.
    let sizes = if more.resolves { &[libc::FIONREAD][..] } else { &[] };
    // Counters that only the driver has (vmxnet3's lost packets). Settings need CAP_NET_ADMIN.
    let counters = if work == Work::Capture { &[libc::SIOCETHTOOL][..] } else { &[] };
    allowed.insert(libc::SYS_ioctl, one_of(1, &[&controls[..], settings, sizes, counters].concat())?);
    // Not F_SETOWN, which selects the process that gets a descriptor's signals.
    let about = [
        libc::F_DUPFD,
        libc::F_DUPFD_CLOEXEC,
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        libc::F_GETLK,
        libc::F_SETLK,
        libc::F_OFD_SETLK,
        libc::F_SETPIPE_SZ,
        libc::F_GETPIPE_SZ,
    ];
    allowed.insert(libc::SYS_fcntl, one_of(1, &about.map(int))?);
    allowed.insert(libc::SYS_socketpair, one_of(0, &[int(libc::AF_UNIX)])?);
    // Only to the peer of a connected socket, not to an address.
    allowed.insert(libc::SYS_sendto, nil(4)?);
    if more.connects {
        // TCP over IPv4 or IPv6 only. Landlock restricts the ports.
        let family = |family: libc::c_int, kind: libc::c_int| {
            let is = |argument, operator, value| {
                SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
            };
            let masked = SeccompCmpOp::MaskedEq(0xf);
            SeccompRule::new(vec![is(0, SeccompCmpOp::Eq, int(family))?, is(1, masked, int(kind))?])
        };
        let (stream, datagram) = (libc::SOCK_STREAM, libc::SOCK_DGRAM);
        let mut sockets = vec![family(libc::AF_INET, stream)?, family(libc::AF_INET6, stream)?];
        if more.resolves {
            sockets.extend([family(libc::AF_INET, datagram)?, family(libc::AF_INET6, datagram)?]);
            // Refused by a filter of its own, with an error.
            sockets.extend(other_families()?.into_values().flatten());
            // Sockets are of TCP and UDP only, so that addresses need no check.
            allowed.insert(libc::SYS_sendmsg, Vec::new());
            allowed.insert(libc::SYS_sendmmsg, Vec::new());
        }
        allowed.insert(libc::SYS_socket, sockets);
        allowed.insert(libc::SYS_connect, Vec::new());
    }
    allowed.insert(libc::SYS_tgkill, one_of(0, &[u64::from(std::process::id())])?);
    let maps = [BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM, BPF_OBJ_GET_INFO_BY_FD];
    match work {
        Work::Read => {}
        Work::Capture => {
            let own = [BPF_LINK_DETACH, BPF_MAP_LOOKUP_BATCH];
            let take = if more.rules { &[BPF_MAP_LOOKUP_AND_DELETE_ELEM][..] } else { &[] };
            let run = if more.rule_calls { &[BPF_PROG_TEST_RUN][..] } else { &[] };
            allowed.insert(libc::SYS_bpf, one_of(0, &[&maps[..], &own, take, run].concat())?);
            if more.rules || more.serves {
                // On the control socket, or another one, which is open by then.
                allowed.insert(libc::SYS_accept4, Vec::new());
            }
            // At the end, packet sockets get a filter that accepts nothing.
            allowed.insert(libc::SYS_setsockopt, one_of(2, &[int(libc::SO_ATTACH_FILTER)])?);
        }
        Work::Send => {
            allowed.insert(libc::SYS_bpf, one_of(0, &[&maps[..], &[BPF_PROG_TEST_RUN]].concat())?);
            allowed.insert(libc::SYS_sendmmsg, Vec::new());
        }
        Work::Ship => {
            // Limits of time of a connection, TCP_NODELAY and SO_KEEPALIVE.
            let options = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::TCP_NODELAY, libc::SO_KEEPALIVE];
            allowed.insert(libc::SYS_setsockopt, one_of(2, &options.map(int))?);
            allowed.insert(libc::SYS_getpeername, Vec::new());
            allowed.insert(libc::SYS_getsockname, Vec::new());
        }
        Work::Serve => {
            allowed.insert(libc::SYS_accept4, Vec::new());
            allowed.insert(libc::SYS_getpeername, Vec::new());
            let options = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::TCP_NODELAY];
            allowed.insert(libc::SYS_setsockopt, one_of(2, &options.map(int))?);
        }
    }
    Ok(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_compiles_and_leaves_out_what_reaches_outside() {
        for work in [Work::Capture, Work::Read, Work::Send, Work::Serve, Work::Ship] {
            use Writes::{Files, Folders, Nothing};
            for (writes, rules) in
                [(Nothing, false), (Files, false), (Folders, false), (Nothing, true), (Files, true)]
            {
                let few = More { rules, ..More::default() };
                let many = More { connects: true, terminal: true, ..few };
                let resolving = More { resolves: true, ..many };
                assert!(Filters::compile(work, writes, resolving).is_ok(), "{work:?}");
                assert!(Filters::compile(work, writes, few).is_ok(), "{work:?}");
                assert!(Filters::compile(work, writes, many).is_ok(), "{work:?}");
                let allowed = calls(work, writes, few).unwrap();
                let accepts = allowed.contains_key(&libc::SYS_accept4);
                let serves = rules && work == Work::Capture || work == Work::Serve;
                assert_eq!(accepts, serves, "{work:?}");
                for call in [
                    libc::SYS_execve,
                    libc::SYS_execveat,
                    libc::SYS_socket,
                    libc::SYS_connect,
                    libc::SYS_ptrace,
                    libc::SYS_process_vm_writev,
                    libc::SYS_kill,
                    libc::SYS_setns,
                    libc::SYS_unshare,
                    libc::SYS_mount,
                    libc::SYS_setresuid,
                    libc::SYS_capset,
                    libc::SYS_io_uring_setup,
                    libc::SYS_perf_event_open,
                    libc::SYS_init_module,
                    libc::SYS_memfd_create,
                    libc::SYS_userfaultfd,
                ] {
                    assert!(!allowed.contains_key(&call), "{work:?}: call {call}");
                }
                assert_eq!(allowed.contains_key(&libc::SYS_renameat2), writes != Nothing);
                assert_eq!(allowed.contains_key(&libc::SYS_mkdirat), writes == Folders);
                let connecting = calls(work, writes, many).unwrap();
                let more: Vec<_> = connecting.keys().filter(|call| !allowed.contains_key(call)).collect();
                assert_eq!(
                    more,
                    [&libc::SYS_socket.min(libc::SYS_connect), &libc::SYS_socket.max(libc::SYS_connect)]
                );
            }
        }
    }
}
