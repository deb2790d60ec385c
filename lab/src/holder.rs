//! A process that holds namespaces and sleeps: when it is gone, with all other processes in them, the namespaces are
//! gone, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::child::Child;

/// Memory file system that disappears with the namespace.
const MEMORY: &str = "mount -t tmpfs tmpfs /dev/shm || exit 1";
/// Sysfs of the namespace, and no packets that the kernel sends by itself.
const NETWORK: &str = "mount -t sysfs sysfs /sys || exit 1
for scope in all default; do
	file=/proc/sys/net/ipv6/conf/$scope/disable_ipv6
	if [ -e $file ]; then echo 1 >$file || exit 1; fi
done
ip link set lo up || exit 1";
const SLEEP: &str = "echo held && exec sleep infinity";
/// Sets the nice value of a program and of its session: with autogroups (sched(7)), the nice value of a process only
/// has an effect within its session. The kernel creates the autogroup shortly after the session.
const FAVOUR: &str = "tries=0
while [ -e /proc/self/autogroup ] && ! echo $0 2>/dev/null >/proc/self/autogroup && [ $tries -lt 100 ]; do
	tries=$((tries + 1)) && sleep 0.01
done
exec nice -n $0 \"$@\"";
/// Folder of the memory file system, as processes see it.
const FILES: &str = "/dev/shm";

/// A holder. It ends when dropped, and when the thread that started it ends.
#[derive(Debug)]
pub struct Holder {
    name: &'static str,
    child: Child,
    has_network: bool,
    /// Nice value of processes on cores here.
    pub nice: i32,
}

impl Holder {
    /// Holds a memory file system, and with `network` a network namespace. Needs root.
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

    /// Process id of the holder.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Checks that it is still running.
    pub fn check(&mut self) -> Result<()> {
        ensure!(self.child.is_running()?, "the process that holds {} was ended by somebody", self.name);
        Ok(())
    }

    /// Root folder of the holder, as this process sees it.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid()))
    }

    /// A command in its namespaces, to which the program is to be added.
    pub fn inside(&self) -> Command {
        let holder = self.pid();
        let mut command = mortal();
        command.arg("nsenter").arg(format!("--mount=/proc/{holder}/ns/mnt"));
        if self.has_network {
            command.arg(format!("--net=/proc/{holder}/ns/net"));
        }
        command
    }

    /// A command in its namespaces, on these cores. Its process id is that of the program.
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

    /// Creates a folder for a trial's files, in memory.
    pub fn folder(&self, name: &str) -> Result<Folder> {
        let inside = Path::new(FILES).join(name);
        let outside = self.root().join(FILES.trim_start_matches('/')).join(name);
        fs::create_dir(&outside).with_context(|| outside.display().to_string())?;
        Ok(Folder { inside, outside })
    }
}

/// A folder of one trial, which is removed when dropped, so that its files do not take memory from the next one.
#[derive(Debug)]
pub struct Folder {
    /// Path for processes of the holder.
    pub inside: PathBuf,
    /// Path for this process.
    pub outside: PathBuf,
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, the next trial that creates the folder reports it.
        let _ = fs::remove_dir_all(&self.outside);
    }
}

/// A process that is killed when the thread that started it ends, for any reason.
fn mortal() -> Command {
    let mut command = Command::new("setpriv");
    // In a session of its own, because Linux first balances sessions, then processes.
    command.args(["--pdeathsig", "KILL", "setsid"]);
    command
}

/// Runs a command and returns its output.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        bail!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
