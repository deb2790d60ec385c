//! Programs that use libpcap, with the system's or with ours.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use wirelane::groups::Group;

use crate::{Child, Lab, repository, wirelane_binary};

/// The libpcap that a program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The system's libpcap.
    System,
    /// Our libpcap, under the soname of libpcap.
    DropIn,
    /// Our libpcap, preloaded before the system's.
    Preload,
}

impl Library {
    /// Command words that make a program use the library; `folder` is for files that this needs.
    ///
    /// # Errors
    /// If our library is not built.
    pub fn words(self, folder: &Path) -> Result<Vec<String>> {
        let set = |name: &str, value: &Path| Ok(vec!["env".into(), format!("{name}={}", value.display())]);
        match self {
            Library::System => Ok(vec!["env".into()]),
            Library::DropIn => {
                let link = folder.join("libpcap.so.0.8");
                if !link.exists() {
                    std::os::unix::fs::symlink(built("libwirelane_libpcap_dropin.so")?, &link)?;
                }
                set("LD_LIBRARY_PATH", folder)
            }
            Library::Preload => set("LD_PRELOAD", &built("libwirelane_libpcap_preload.so")?),
        }
    }
}

/// Path of a library that cargo has built.
///
/// # Errors
/// If the library is not built.
pub fn built(name: &str) -> Result<PathBuf> {
    let path = wirelane_binary()?.with_file_name(name);
    ensure!(path.exists(), "{} has not been built: run 'cargo build' first, or 'make test'", path.display());
    Ok(path)
}

/// Path of the system's libpcap.
pub fn systems() -> PathBuf {
    PathBuf::from(format!("/usr/lib/{}-linux-gnu/libpcap.so.0.8", std::env::consts::ARCH))
}

/// Compiles one of the C programs in `tests/pcap/`.
///
/// # Errors
/// With the compiler's message, if it fails.
pub fn compile(name: &str, folder: &Path, options: &[&str]) -> Result<PathBuf> {
    // The guests of 'make test-kernels' have no compiler.
    let compiled = wirelane_binary()?.with_file_name(name);
    if options.is_empty() && compiled.exists() {
        return Ok(compiled);
    }
    // Without "=", which env(1) would read as a variable assignment.
    let program = folder.join(format!("{name}{}", options.join("").replace('=', "-")));
    let output = Command::new("cc")
        .args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"])
        .args(options)
        .arg("-o")
        .arg(&program)
        .arg(repository().join(format!("tests/pcap/{name}.c")))
        .args(["-lpcap", "-lpthread"])
        .output()
        .context("running cc")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(program)
}

/// Starts a program on the lab's receiver with a library.
///
/// # Errors
/// If the program cannot be started.
pub fn start(lab: &Lab, library: Library, folder: &Path, words: &[&str]) -> Result<Child> {
    let before = library.words(folder)?;
    let all: Vec<&str> = before.iter().map(String::as_str).chain(words.iter().copied()).collect();
    lab.spawn(&lab.receiver().namespace, &all)
}

/// Waits until the receiver has a live group that is `wanted`.
///
/// # Errors
/// If there is no such group in time, or the child has ended.
pub fn wait_for_groups(lab: &Lab, child: &mut Child, wanted: impl Fn(&Group) -> bool) -> Result<()> {
    let end = Instant::now() + crate::numbers::LIMIT;
    loop {
        let groups = lab.enter(&lab.receiver().namespace, wirelane::groups::list)??;
        if groups.iter().any(|group| group.alive && wanted(group)) {
            return Ok(());
        }
        if !child.is_running()? || Instant::now() > end {
            bail!("it does not capture; groups: {groups:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a program has a handler for SIGTERM: tcpdump installs one when it captures in both directions, and from
/// then on prints its counts at the end.
///
/// # Errors
/// If the program has no handler in time, or has ended.
pub fn wait_for_handler(child: &Child) -> Result<()> {
    let end = Instant::now() + crate::numbers::LIMIT;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid()))?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).context("no SigCgt")?;
        if u64::from_str_radix(caught.trim(), 16)? & (1 << 14) != 0 {
            return Ok(());
        }
        ensure!(Instant::now() < end, "it has no handler for SIGTERM");
        std::thread::sleep(Duration::from_millis(10));
    }
}
