//! A process that holds namespaces and sleeps: when it is gone, and whatever else was in them, so are they.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::child::Child;

/// Memory for files that goes with the namespace.
const MEMORY: &str = "mount -t tmpfs tmpfs /dev/shm || exit 1";
/// Sysfs as the namespace has it, no packet that the kernel sends by itself.
const NETWORK: &str = "mount -t sysfs sysfs /sys || exit 1
for scope in all default; do
	file=/proc/sys/net/ipv6/conf/$scope/disable_ipv6
	if [ -e $file ]; then echo 1 >$file || exit 1; fi
done
ip link set lo up || exit 1";
const SLEEP: &str = "echo held && exec sleep infinity";
/// Gives a program and its session a nice value: with autogroups (sched(7)) that of a process counts within its session only. The
/// kernel makes the autogroup a moment after the session.
const FAVOUR: &str = "tries=0
while [ -e /proc/self/autogroup ] && ! echo $0 2>/dev/null >/proc/self/autogroup && [ $tries -lt 100 ]; do
	tries=$((tries + 1)) && sleep 0.01
done
exec nice -n $0 \"$@\"";
/// What processes see as their memory for files.
const FILES: &str = "/dev/shm";

/// A holder. It is gone when dropped, and when the thread is gone that has started it.
#[derive(Debug)]
pub struct Holder {
    name: &'static str,
    child: Child,
    has_network: bool,
    /// Nice value of what runs on cores here.
    pub nice: i32,
}

impl Holder {
    /// Holds files in memory, and with `network` a network namespace. Needs root.
    ///
    /// # Errors
    /// Where the kernel or a tool refuses.
    pub fn new(name: &'static str, network: bool) -> Result<Holder> {
        let mut command = mortal();
        command.args(["unshare", "--mount"]);
        if network {
            command.arg("--net");
        }
        let script = format!("{}\n{MEMORY}\n{SLEEP}", if network { NETWORK } else { "" });
        let mut child = Child::spawn(name, command.args(["sh", "-c", &script]))?;
        child.wait_for(Duration::from_secs(10), |line| line == "held")?;
        Ok(Holder { name, child, has_network: network, nice: 0 })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Whether it is there.
    ///
    /// # Errors
    /// That it has ended.
    pub fn check(&mut self) -> Result<()> {
        ensure!(self.child.is_running()?, "the process that holds {} was ended by somebody", self.name);
        Ok(())
    }

    /// Its root folder, as this process sees it.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid()))
    }

    /// A command in its namespaces, still without the program.
    pub fn inside(&self) -> Command {
        let holder = self.pid();
        let mut command = mortal();
        command.arg("nsenter").arg(format!("--mount=/proc/{holder}/ns/mnt"));
        if self.has_network {
            command.arg(format!("--net=/proc/{holder}/ns/net"));
        }
        command
    }

    /// A command in its namespaces, on these cores. Its pid is the program's.
    pub fn on(&self, cores: &[usize], words: &[String]) -> Command {
        self.favoured(cores, words, self.nice)
    }

    /// The same with this nice value.
    pub fn favoured(&self, cores: &[usize], words: &[String], nice: i32) -> Command {
        let cores = cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut command = self.inside();
        command.args(["taskset", "-c", &cores]);
        if nice != 0 {
            command.args(["sh", "-c", FAVOUR, &nice.to_string()]);
        }
        command.args(words);
        command
    }

    /// A new folder for a trial's files, in memory.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn folder(&self, name: &str) -> Result<Folder> {
        let inside = Path::new(FILES).join(name);
        let outside = self.root().join(FILES.trim_start_matches('/')).join(name);
        fs::create_dir(&outside).with_context(|| outside.display().to_string())?;
        Ok(Folder { inside, outside })
    }
}

/// A folder of one trial, which is removed when dropped: what a trial has written must not take memory from the next one.
#[derive(Debug)]
pub struct Folder {
    /// As processes of the holder see it.
    pub inside: PathBuf,
    /// As this process does.
    pub outside: PathBuf,
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Where this fails, so does the next trial that wants to make it.
        let _ = fs::remove_dir_all(&self.outside);
    }
}

/// A process that ends with the thread that has started it, whatever ends that.
fn mortal() -> Command {
    let mut command = Command::new("setpriv");
    // A session of its own, because Linux weighs sessions against each other before processes.
    command.args(["--pdeathsig", "KILL", "setsid"]);
    command
}

/// Runs a command; what it has printed.
///
/// # Errors
/// Where it fails, with what it has said.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        bail!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
