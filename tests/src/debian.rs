//! Debian systems in namespaces: a root of a few hundred MB below an overlay, with apt, and with systemd as its first process.
//!
//! ```text
//! target/debian/trixie   made once by debootstrap
//!    ^ lower
//! Debian                 an overlay of the test's own: chroot, apt; its changes are in one folder
//!    ^ root
//! Machine                systemd in namespaces of processes, mounts and control groups, in a network namespace of a lab
//! ```
//! Nothing in it reaches the machine: /proc/sys is read-only, and devices are those of the network namespace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::{Child, repository, sys};

/// Packages of a root beyond the smallest: what tests call in it, and the manager of services.
const PACKAGES: &str = "iproute2,util-linux,procps,systemd,rpm";

/// A Debian of a test; removed on drop.
#[derive(Debug)]
pub struct Debian {
    folder: TempDir,
}

impl Debian {
    /// A fresh one of this suite. `None`, after a message that `test` is skipped, where it cannot be made: without debootstrap,
    /// or where the mirror does not answer.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn new(test: &str, suite: &str) -> Result<Option<Debian>> {
        let lower = repository().join("target/debian").join(suite);
        if !lower.exists()
            && let Err(error) = make(&lower, suite)
        {
            println!("left out: {test} ({error:#})");
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        for part in ["upper", "work", "root"] {
            fs::create_dir(folder.path().join(part))?;
        }
        // Services of other users look files up in it.
        run(Command::new("chmod").arg("755").arg(folder.path()).arg(folder.path().join("upper")))?;
        let part = |name: &str| folder.path().join(name).display().to_string();
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), part("upper"), part("work"));
        run(Command::new("mount").args(["-t", "overlay", "-o", &options, "none", &part("root")]))?;
        Ok(Some(Debian { folder }))
    }

    /// Its root folder.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Runs a shell script in it, with the network of the machine, and returns its standard output.
    ///
    /// # Errors
    /// If the script fails; the error has its standard error.
    pub fn shell(&self, script: &str) -> Result<String> {
        self.shell_in(Command::new("unshare"), script)
    }

    /// Runs a shell script in it, with a network of its own that has a loopback device only.
    ///
    /// # Errors
    /// As [`Debian::shell`].
    pub fn shell_alone(&self, script: &str) -> Result<String> {
        let mut command = Command::new("unshare");
        command.arg("--net");
        self.shell_in(command, script)
    }

    fn shell_in(&self, mut unshare: Command, script: &str) -> Result<String> {
        let root = self.root();
        // The end of its first process ends all others.
        unshare.args(["--pid", "--mount", "--fork", "--kill-child", "sh", "-euc", IN_CHROOT, "sh"]);
        let output = run(unshare.arg(root).arg(script))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Boots it in a network namespace, up to the services of every system.
    ///
    /// # Errors
    /// If systemd does not come up.
    pub fn boot(&self, namespace: &str) -> Result<Machine<'_>> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("wltest-{}-boot-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let group = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
            .map(Path::new)
            .into_iter()
            .find(|root| root.join("cgroup.procs").exists())
            .context("there is no control group of version 2")?
            .join(name);
        fs::create_dir(&group)?;
        // The kernel is that of the machine, and has its modules.
        let masked = self.root().join("etc/systemd/system/systemd-modules-load.service");
        if !masked.exists() {
            std::os::unix::fs::symlink("/dev/null", masked)?;
        }
        let mut command = Command::new("sh");
        // `ip netns exec` hides the control groups.
        command
            .args(["-euc", "echo $$ >\"$1/cgroup.procs\"; shift; exec ip netns exec \"$@\"", "sh"])
            .arg(&group);
        command.args([namespace, "sh", "-euc", BOOT, "sh"]).arg(self.root());
        let child = Child::spawn(&mut command)?;
        let mut machine = Machine { child, leader: 0, group, _system: self };
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            ensure!(Instant::now() < end, "systemd did not come up");
            if !machine.child.is_running()? {
                bail!("systemd ended: {}", machine.child.errors());
            }
            std::thread::sleep(Duration::from_millis(100));
            let pid = machine.child.pid();
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            machine.leader = children.trim().parse().unwrap_or(0);
            if machine.leader != 0
                && machine
                    .run(&["systemctl", "is-system-running"])
                    .is_ok_and(|state| state.trim() == "running")
            {
                return Ok(machine);
            }
        }
    }
}

impl Drop for Debian {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.root()).status();
    }
}

/// A booted [`Debian`]; all its processes end on drop.
#[derive(Debug)]
pub struct Machine<'a> {
    child: Child,
    /// The process id of systemd, as seen from outside.
    leader: u32,
    group: PathBuf,
    _system: &'a Debian,
}

impl Machine<'_> {
    /// Runs a command line in it to its end, and returns its standard output.
    ///
    /// # Errors
    /// If it fails; the error has its standard error.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let output = run(&mut self.command(words))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A command line in it.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let leader = self.leader.to_string();
        command.args(["-t", &leader, "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--"]).args(words);
        command
    }

    /// The process id, as seen from outside, of one of its processes.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn outside(&self, pid: u32) -> Result<u32> {
        let space = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let inside = space(&self.leader.to_string());
        let ends = format!("\t{pid}");
        for entry in fs::read_dir("/proc")?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let is_it = status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with(&ends));
            if is_it && space(&name) == inside {
                return name.parse().context("a process id");
            }
        }
        bail!("there is no process {pid} in the machine")
    }

    /// A property of a unit, by `systemctl show`.
    ///
    /// # Errors
    /// If systemd does not answer.
    pub fn property(&self, unit: &str, name: &str) -> Result<String> {
        Ok(self.run(&["systemctl", "show", "--value", "-p", name, unit])?.trim().to_owned())
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        // The kernel ends all processes of its namespace with it.
        if self.leader != 0 {
            let _ = sys::signal(self.leader, sys::Signal::Kill);
        }
        let end = Instant::now() + Duration::from_secs(20);
        while self.child.is_running().unwrap_or(false) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = Command::new("find").arg(&self.group).args(["-depth", "-type", "d", "-delete"]).output();
    }
}

/// Its words are the root and the script.
const IN_CHROOT: &str = r#"
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount -o bind,ro "$1/proc/sys" "$1/proc/sys"
mount -t sysfs sysfs "$1/sys"
mount -t tmpfs -o mode=755 none "$1/dev"
for device in null zero full random urandom tty; do
	touch "$1/dev/$device"
	mount --bind "/dev/$device" "$1/dev/$device"
done
ln -s /proc/self/fd "$1/dev/fd"
exec chroot "$1" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
	DEBIAN_FRONTEND=noninteractive sh -euc "$2"
"#;

/// Its word is the root.
const BOOT: &str = r#"
exec unshare --pid --mount --uts --ipc --cgroup --fork --kill-child sh -euc '
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount -o bind,ro "$1/proc/sys" "$1/proc/sys"
mount -t sysfs sysfs "$1/sys"
mount -t cgroup2 none "$1/sys/fs/cgroup"
mount -t tmpfs -o mode=755 none "$1/run"
mount -t tmpfs none "$1/tmp"
mount -t tmpfs -o mode=755 none "$1/dev"
for device in null zero full random urandom tty; do
	touch "$1/dev/$device"
	mount --bind "/dev/$device" "$1/dev/$device"
done
mkdir "$1/dev/pts" "$1/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 none "$1/dev/pts"
ln -s pts/ptmx "$1/dev/ptmx"
ln -s /proc/self/fd "$1/dev/fd"
cd "$1"
mkdir -p mnt/former
pivot_root . mnt/former
umount -l /mnt/former
exec env -i container=wirelane-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=sysinit.target
' sh "$1"
"#;

/// Makes the root that all tests share.
fn make(lower: &Path, suite: &str) -> Result<()> {
    let known = Command::new("debootstrap").arg("--version").output();
    ensure!(known.is_ok_and(|output| output.status.success()), "no debootstrap: scripts/setup");
    let folder = lower.parent().context("a folder of roots")?;
    fs::create_dir_all(folder)?;
    // Complete or not at all: another test may make the same one.
    let fresh = tempfile::tempdir_in(folder)?;
    let root = fresh.path().join("root");
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", &format!("--include={PACKAGES}"), suite]).arg(&root);
    run(&mut command).with_context(|| format!("debootstrap has no {suite} here"))?;
    fs::rename(&root, lower).or_else(|error| if lower.exists() { Ok(()) } else { Err(error) })?;
    Ok(())
}

fn run(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{:?}: {}: {}", command.get_program(), output.status, errors.trim());
    Ok(output)
}
