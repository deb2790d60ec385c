//! Runs a program to which the kernel refuses bpf(2): `without-bpf EPERM|ENOSYS PROGRAM [ARGUMENT...]`, as a
//! container's seccomp filter does, and as a kernel does that was built without it.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context, Result, bail};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

fn main() -> Result<()> {
    const USAGE: &str = "usage: without-bpf EPERM|ENOSYS PROGRAM [ARGUMENT...]";
    let mut arguments = std::env::args().skip(1);
    let error = match arguments.next().as_deref() {
        Some("EPERM") => libc::EPERM,
        Some("ENOSYS") => libc::ENOSYS,
        _ => bail!(USAGE),
    };
    let program = arguments.next().context(USAGE)?;
    let filter: BpfProgram = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_bpf, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(error.cast_unsigned()),
        ARCH.try_into()?,
    )?
    .try_into()?;
    seccompiler::apply_filter(&filter)?;
    // exec() returns only if it fails.
    Err(Command::new(&program).args(arguments).exec()).with_context(|| program)
}
