//! Seccomp filters of other processes: read by ptrace(2), and evaluated for system calls.

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::sys::seccomp_filter;

/// `AUDIT_ARCH_X86_64` (linux/audit.h).
const X86_64: u32 = 0xc000_003e;

/// The filters of a thread, the newest first.
#[derive(Debug)]
pub struct Filters(Vec<Vec<libc::sock_filter>>);

impl Filters {
    /// Reads the filters of this process's main thread, which is stopped for it. Needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// If the kernel refuses, or cannot do it (`CONFIG_CHECKPOINT_RESTORE`).
    pub fn of(pid: u32) -> Result<Filters> {
        let process = Pid::from_raw(pid.cast_signed());
        ptrace::attach(process)?;
        let stopped = waitpid(process, None)?;
        ensure!(matches!(stopped, WaitStatus::Stopped(..)), "{stopped:?}");
        let filters = read_all(process);
        ptrace::detach(process, None)?;
        filters.map(Filters)
    }

    /// Number of filters.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is no filter: every call is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The action for this call (`SECCOMP_RET_...` without data): that of the strictest filter.
    ///
    /// # Errors
    /// If a filter has an instruction that is not known here.
    pub fn action(&self, number: libc::c_long, arguments: [u64; 6]) -> Result<u32> {
        let number = u32::try_from(number)?;
        let mut data = [number.to_ne_bytes(), X86_64.to_ne_bytes()].concat();
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let actions = self.0.iter().map(|filter| Ok(run(filter, &data)? & libc::SECCOMP_RET_ACTION_FULL));
        let actions = actions.collect::<Result<Vec<u32>>>()?;
        // The kernel compares actions as signed numbers: to kill is the smallest.
        let strictest = actions.into_iter().min_by_key(|action| action.cast_signed());
        Ok(strictest.unwrap_or(libc::SECCOMP_RET_ALLOW))
    }
}

fn read_all(process: Pid) -> Result<Vec<Vec<libc::sock_filter>>> {
    let mut filters = Vec::new();
    loop {
        match seccomp_filter(process.as_raw(), filters.len()) {
            Ok(filter) => filters.push(filter),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(filters),
            Err(error) => return Err(error).context("reading a seccomp filter"),
        }
    }
}

/// Runs a filter over `struct seccomp_data`; returns its verdict.
fn run(filter: &[libc::sock_filter], data: &[u8]) -> Result<u32> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const AND: u32 = libc::BPF_ALU | libc::BPF_AND;
    const ALWAYS: u32 = libc::BPF_JMP | libc::BPF_JA;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ;
    const GREATER: u32 = libc::BPF_JMP | libc::BPF_JGT;
    const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE;
    const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET;
    let (mut at, mut accumulator) = (0, 0u32);
    loop {
        let one = filter.get(at).context("a filter that ends without a verdict")?;
        let (k, branch) = (one.k, |taken: bool| usize::from(if taken { one.jt } else { one.jf }));
        at += 1 + match u32::from(one.code) {
            libc::BPF_RET => return Ok(k),
            LOAD => {
                let word = data.get(k as usize..k as usize + 4).context("a load behind the data")?;
                accumulator = u32::from_ne_bytes(word.try_into()?);
                0
            }
            AND => {
                accumulator &= k;
                0
            }
            ALWAYS => k as usize,
            EQUAL => branch(accumulator == k),
            GREATER => branch(accumulator > k),
            AT_LEAST => branch(accumulator >= k),
            ANY_BIT => branch(accumulator & k != 0),
            code => bail!("unknown instruction {code:#x}"),
        };
    }
}
