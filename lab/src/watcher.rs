//! List of the processes that this process has started and of settings that it has changed, and a watcher process that kills the
//! former and sets back the latter when this one is gone.
//!
//! The kernel's signal for the death of a parent is not sufficient: it is cleared when a program changes its user or
//! privileges, as sensors do, and it applies to one process and not to its descendants.

use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Keeps the list of processes that have begun (`+ PID`) and not ended (`- PID`) until its input ends, and then kills
/// them with their sessions. After that it runs the commands that set something back (`= NUMBER COMMANDS`, in one line),
/// except those that were withdrawn (`/ NUMBER`).
const WATCH: &str = r#"trap "" INT TERM HUP QUIT
live=" " undo=" "
while read -r what pid commands; do
	case $what in
	+) live="$live$pid " ;;
	-) live="${live%% $pid *} ${live#* $pid }" ;;
	=) eval "undo_$pid=\$commands"; undo="$undo$pid " ;;
	/) eval "undo_$pid=" ;;
	esac
done
for pid in $live; do
	kill -s KILL -- "-$pid"
	kill -s KILL -- "$pid"
done
for number in $undo; do
	eval "eval \"\$undo_$number\""
	eval "undo_$number="
done"#;

struct Running {
    /// Input of the watcher; `None`: no process was started yet.
    watcher: Option<ChildStdin>,
    /// Processes, with the threads that started them.
    pids: Vec<(ThreadId, u32)>,
    /// Settings that were changed so far.
    settings: u32,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { watcher: None, pids: Vec::new(), settings: 0 });

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a process that this thread has started in a session of its own.
pub fn started(pid: u32) -> Result<()> {
    let mut running = running();
    running.tell(&format!("+ {pid}\n"))?;
    running.pids.push((std::thread::current().id(), pid));
    Ok(())
}

impl Running {
    /// Writes a line to the watcher, which is started if there is none.
    fn tell(&mut self, line: &str) -> Result<()> {
        if self.watcher.is_none() {
            // In a session of its own, so that it receives no signals for others.
            let mut command = Command::new("setsid");
            command
                .args(["sh", "-c", WATCH])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            self.watcher = command.spawn().context("starting a shell")?.stdin.take();
        }
        let watcher = self.watcher.as_mut().context("no pipe to a shell")?;
        watcher
            .write_all(line.as_bytes())
            .context("the shell that ends what this process leaves was ended by somebody")
    }
}

/// Commands of a shell that set something back: when this value is dropped, or by the watcher when this process is gone.
#[derive(Debug)]
pub struct Undo {
    number: u32,
    commands: String,
}

impl Undo {
    /// Registers the commands, which are one line. Call before the change.
    pub fn register(commands: String) -> Result<Undo> {
        let mut running = running();
        running.settings += 1;
        let undo = Undo { number: running.settings, commands };
        running.tell(&format!("= {} {}\n", undo.number, undo.commands))?;
        Ok(undo)
    }

    /// Registers other commands instead. Call before the change that they set back.
    pub fn change(&mut self, commands: String) -> Result<()> {
        if commands != self.commands {
            running().tell(&format!("= {} {commands}\n", self.number))?;
            self.commands = commands;
        }
        Ok(())
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // Settings of a device that is gone cannot be set back, and need not.
        let mut command = Command::new("sh");
        let _ = command.args(["-c", &self.commands]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        // If the watcher was killed, this has no effect.
        let _ = running().tell(&format!("/ {}\n", self.number));
    }
}

/// Removes a process that is about to be reaped.
pub fn ended(pid: u32) {
    let mut running = running();
    running.pids.retain(|(_, running)| *running != pid);
    if let Some(watcher) = &mut running.watcher {
        // If the watcher was killed, this has no effect.
        let _ = watcher.write_all(format!("- {pid}\n").as_bytes());
    }
}

/// Kills the processes that a thread has started and not reaped, with all of their sessions.
pub fn kill_all_of(thread: ThreadId) {
    for (_, pid) in running().pids.iter().filter(|(of, _)| *of == thread) {
        if let Ok(pid) = i32::try_from(*pid) {
            // Its session, and the process itself if it has not created one yet.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;

    fn is_there(pid: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !(stat.is_empty() || stat.contains(") Z "))
    }

    #[test]
    fn what_has_not_ended_is_killed_with_its_sessions_and_no_other() {
        let start = |script: &str| Command::new("setsid").args(["sh", "-c", script]).spawn().unwrap();
        let mut ours = [start("sleep 71 & sleep 72"), start("sleep 73"), start("sleep 74")];
        let [first, second, third] = [ours[0].id(), ours[1].id(), ours[2].id()];
        let end = Instant::now() + Duration::from_secs(20);
        let children = || crate::process::children(first);
        while children().len() < 2 {
            assert!(Instant::now() < end, "they do not start");
        }
        let theirs = children();
        let mut watcher = Command::new("sh").args(["-c", WATCH]).stdin(Stdio::piped()).spawn().unwrap();
        let told = format!("+ {first}\n+ {second}\n+ {third}\n- {second}\n");
        watcher.stdin.take().unwrap().write_all(told.as_bytes()).unwrap();
        watcher.wait().unwrap();
        for pid in [&theirs[..], &[first, third]].concat() {
            while is_there(pid) {
                assert!(Instant::now() < end, "{pid} is there");
            }
        }
        assert!(is_there(second));
        for child in &mut ours {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    #[test]
    fn settings_are_set_back_once_by_the_process_or_by_the_watcher() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let append = |name: &str| format!("echo back >>{}", file(name).display());
        let read = |name: &str| fs::read_to_string(file(name)).unwrap_or_default();
        drop(Undo::register(append("here")).unwrap());
        assert_eq!(read("here"), "back\n");
        let mut watcher = Command::new("sh").args(["-c", WATCH]).stdin(Stdio::piped()).spawn().unwrap();
        let told = format!(
            "= 1 {}\n= 2 {}; echo $((1 + 1)) >>{}\n/ 1\n",
            append("one"),
            append("two"),
            file("two").display()
        );
        watcher.stdin.take().unwrap().write_all(told.as_bytes()).unwrap();
        watcher.wait().unwrap();
        assert_eq!((read("one").as_str(), read("two").as_str()), ("", "back\n2\n"));
    }
}
