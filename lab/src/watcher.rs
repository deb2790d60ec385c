//! List of the processes that this process has started, and a watcher process that kills them when this one is gone.
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
/// them with their sessions.
const WATCH: &str = r#"trap "" INT TERM HUP QUIT
live=" "
while read -r what pid; do
	case $what in
	+) live="$live$pid " ;;
	-) live="${live%% $pid *} ${live#* $pid }" ;;
	esac
done
for pid in $live; do
	kill -s KILL -- "-$pid"
	kill -s KILL -- "$pid"
done"#;

struct Running {
    /// Input of the watcher; `None`: no process was started yet.
    watcher: Option<ChildStdin>,
    /// Processes, with the threads that started them.
    pids: Vec<(ThreadId, u32)>,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { watcher: None, pids: Vec::new() });

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a process that this thread has started in a session of its own.
pub fn started(pid: u32) -> Result<()> {
    let mut running = running();
    if running.watcher.is_none() {
        // In a session of its own, so that it receives no signals for others.
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", WATCH]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        running.watcher = command.spawn().context("starting a shell")?.stdin.take();
    }
    let watcher = running.watcher.as_mut().context("no pipe to a shell")?;
    watcher
        .write_all(format!("+ {pid}\n").as_bytes())
        .context("the shell that ends what this process leaves was ended by somebody")?;
    running.pids.push((std::thread::current().id(), pid));
    Ok(())
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
}
