//! Flow probes of others, as receivers: how they are started, which processes they are, and what they have counted.
//!
//! ```text
//!   softflowd    libpcap's counters, by softflowctl; whatever libpcap has is in a flow
//!   nfpcapd      its last lines: libpcap's counters, and the packets of the flows that it has written
//!   pmacctd      the core process's counters of libpcap, at SIGUSR1; its plug-in nfprobe, which makes the flows, is a process
//!                of its own, and says where the queue between the two has overflown
//! ```
//!
//! None of them exports to anybody while it is measured: flows are younger than the timeouts.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use wirelane_tests::Finished;

use crate::process;
use crate::receive::Counts;
use crate::receiver::{Circumstances, Receiver};
use crate::running::Running;

/// How long a probe may take to answer, and to end.
const LIMIT: Duration = Duration::from_secs(10);
/// How long pmacctd has to write its counters.
const ANSWER: Duration = Duration::from_millis(300);
/// The queue between pmacctd's processes, and what goes through it at once, in bytes: its documentation wants them raised, and a
/// buffer that is not yet full says nothing to the plug-in.
const PIPE: u32 = 16 << 20;
const PIPE_BUFFER: u32 = 16 << 10;

/// A file or folder of a probe, in memory.
fn place(name: &str) -> PathBuf {
    PathBuf::from("/dev/shm").join(format!("wirelane-bench-{}-{name}", std::process::id()))
}

/// The files and folders of a probe.
pub fn files(probe: Receiver) -> Vec<PathBuf> {
    let names: &[&str] = match probe {
        Receiver::Softflowd => &["softflowd.ctl", "softflowd.pid"],
        Receiver::Nfpcapd => &["nfpcapd"],
        Receiver::Pmacctd => &["pmacctd.conf"],
        _ => &[],
    };
    names.iter().map(|name| place(name)).collect()
}

/// Makes what a probe wants to find, and returns its command line.
///
/// # Errors
/// Where a file cannot be written.
pub fn prepare(probe: Receiver, at: &Circumstances<'_>) -> Result<String> {
    let (device, buffer) = (at.device, at.buffer);
    let (control, pid_file, folder, settings) =
        (place("softflowd.ctl"), place("softflowd.pid"), place("nfpcapd"), place("pmacctd.conf"));
    Ok(match probe {
        Receiver::Softflowd => format!(
            "softflowd -d -i {device} -B {} -t maxlife=60 -c {} -p {}",
            buffer << 20,
            control.display(),
            pid_file.display()
        ),
        Receiver::Nfpcapd => {
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            format!("nfpcapd -i {device} -b {buffer} -e 60,15 -w {}", folder.display())
        }
        _ => {
            let text = format!(
                "daemonize: false\npcap_interface: {device}\npmacctd_pipe_size: {}\nplugins: nfprobe\n\
                 aggregate: src_host, dst_host, src_port, dst_port, proto, tos\nnfprobe_receiver: 127.0.0.1:2100\n\
                 nfprobe_timeouts: maxlife=60\nplugin_pipe_size: {PIPE}\nplugin_buffer_size: {PIPE_BUFFER}\n",
                buffer << 20
            );
            fs::write(&settings, text).with_context(|| settings.display().to_string())?;
            format!("pmacctd -f {}", settings.display())
        }
    })
}

/// The processes that work: the one that was started, and of pmacctd its plug-in.
pub fn processes(receiver: Receiver, pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    if receiver == Receiver::Pmacctd {
        all.extend(process::children(pid));
    }
    all
}

/// Ends a probe; what it counted.
///
/// # Errors
/// Where it does not answer, does not end, or says something unexpected.
pub fn end(probe: Receiver, mut running: Running) -> Result<Counts> {
    let (text, counts) = match probe {
        Receiver::Softflowd => {
            let output =
                Command::new("softflowctl").arg("-c").arg(place("softflowd.ctl")).arg("statistics").output();
            let text = String::from_utf8_lossy(&output.context("softflowctl")?.stdout).into_owned();
            running.take()?.terminate(LIMIT)?;
            let counts = softflowd(&text);
            (text, counts)
        }
        Receiver::Nfpcapd => {
            let text = said(&running.take()?.terminate(LIMIT)?);
            let counts = nfpcapd(&text);
            (text, counts)
        }
        _ => {
            process::signal("-USR1", running.child()?.pid())?;
            std::thread::sleep(ANSWER);
            // Asked to end, it takes four seconds for that.
            running.kill()?;
            let text = said(&running.take()?.finish(LIMIT)?);
            let counts = pmacctd(&text);
            (text, counts)
        }
    };
    counts.with_context(|| format!("{} said something unexpected: {text}", probe.label()))
}

fn said(finished: &Finished) -> String {
    format!("{}\n{}", finished.stderr, finished.lines.join("\n"))
}

/// The number behind these words.
fn number_after(text: &str, words: &str) -> Option<u64> {
    let rest = &text[text.rfind(words)? + words.len()..];
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// What libpcap's counters come to: `received` includes what was dropped.
fn of_libpcap(received: u64, lost: u64) -> Counts {
    Counts { seen: Some(received), received: received.saturating_sub(lost), lost, ..Counts::default() }
}

/// libpcap keeps the last packets from it until a block of its ring is full: they are not lost.
fn softflowd(text: &str) -> Option<Counts> {
    Some(of_libpcap(
        number_after(text, "Packets received by libpcap:")?,
        number_after(text, "Packets dropped by libpcap:")?,
    ))
}

/// Received are the packets of the flows that it has written.
fn nfpcapd(text: &str) -> Option<Counts> {
    let stat = &text[text.find("Stat: received:")?..];
    let seen = number_after(stat.lines().next()?, "received:")?;
    let lost = number_after(stat.lines().next()?, "dropped by OS/Buffer:")?;
    let line = text.lines().rfind(|line| line.starts_with("Ident:"))?;
    let received = number_after(line, "Packets:")?;
    Some(Counts {
        seen: Some(seen),
        received,
        lost,
        bytes: number_after(line, "Bytes:"),
        ..Counts::default()
    })
}

/// What its plug-in has missed it does not count, but says once; that there was something is one packet at least.
fn pmacctd(text: &str) -> Option<Counts> {
    let (received, lost) =
        (number_after(text, "received_packets=")?, number_after(text, "dropped_packets=")?);
    let missed = u64::from(text.contains("Missing data detected"));
    let counts = of_libpcap(received, lost);
    Some(Counts { received: counts.received.saturating_sub(missed), lost: lost + missed, ..counts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(counts: &Counts) -> (Option<u64>, u64, u64) {
        (counts.seen, counts.received, counts.lost)
    }

    #[test]
    fn what_probes_say_is_understood() {
        let text = "Packets processed: 598228\nFragments: 0\nPackets received by libpcap: 598272\n\
                    Packets dropped by libpcap: 72\nPackets dropped by interface: 0\n";
        assert_eq!(numbers(&softflowd(text).unwrap()), (Some(598_272), 598_200, 72));
        let text = "Startup nfpcapd.\nStat: received: 668032, dropped by OS/Buffer: 32, freeze_q_cnt: 0\n\
                    Processed: 668000, skipped: 0, short caplen: 0, unknown: 0\n\
                    Ident: 'none' Flows: 4096, Packets: 668000, Bytes: 30728000\nTerminating nfpcapd.\n";
        assert_eq!(numbers(&nfpcapd(text).unwrap()), (Some(668_032), 668_000, 32));
        let text = "NOTICE ( default/core ): stats [rx0,0] time=1795422105 received_packets=100010 dropped_packets=10\n";
        assert_eq!(numbers(&pmacctd(text).unwrap()), (Some(100_010), 100_000, 10));
        let text = format!(
            "WARN ( default_nfprobe/nfprobe ): Missing data detected. Sequence received=3 expected=2\n{text}"
        );
        assert_eq!(numbers(&pmacctd(&text).unwrap()), (Some(100_010), 99_999, 11));
        assert!(softflowd("").is_none() && nfpcapd("Stat: received: 1").is_none() && pmacctd("x").is_none());
    }
}
