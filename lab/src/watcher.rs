//! What this process has started and waits for, and a process that ends it when this one is gone.
//!
//! The kernel's signal for the death of a parent is not enough: it is forgotten where a program gives up its user or rights, as
//! sensors do, and it is for one process and not for those that this has started.

use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Keeps what has begun (`+ PID`) and not ended (`- PID`) until nobody tells any more, and kills that, with its sessions.
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
    /// Where the watcher is told; none: nothing was ever started.
    watcher: Option<ChildStdin>,
    /// Processes, with the threads that have started them.
    pids: Vec<(ThreadId, u32)>,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { watcher: None, pids: Vec::new() });

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This thread has started a process, with a session of its own.
///
/// # Errors
/// Where there is nobody to end it after this process.
pub fn started(pid: u32) -> Result<()> {
    let mut running = running();
    if running.watcher.is_none() {
        // Nobody's signal is for it: a session of its own.
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

/// A process is about to be waited for.
pub fn ended(pid: u32) {
    let mut running = running();
    running.pids.retain(|(_, running)| *running != pid);
    if let Some(watcher) = &mut running.watcher {
        // One that was ended by somebody ends nothing.
        let _ = watcher.write_all(format!("- {pid}\n").as_bytes());
    }
}

/// Kills what a thread has started and still waits for, with all of its sessions.
pub fn kill_all_of(thread: ThreadId) {
    for (_, pid) in running().pids.iter().filter(|(of, _)| *of == thread) {
        if let Ok(pid) = i32::try_from(*pid) {
            // Its session, and the process itself where that has none of its own yet.
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
