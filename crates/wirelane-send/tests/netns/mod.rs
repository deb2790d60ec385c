//! Two network namespaces joined by a veth pair, removed with everything in them when the value is dropped.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The near device is `wltx` in one namespace, the far one `wlrx` in the other.
pub struct Pair {
    near: String,
    far: String,
}

impl Pair {
    /// A pair with one queue; `None` without root if the environment permits skipping.
    pub fn new(test: &str) -> Option<Pair> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // SAFETY: takes no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            assert!(
                std::env::var_os("WIRELANE_UNPRIVILEGED").is_some(),
                "{test} creates network namespaces and needs root; WIRELANE_UNPRIVILEGED=1 leaves it out"
            );
            println!("left out: {test} (no root)");
            return None;
        }
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let pair = Pair { near: format!("wl-tx-{unique}"), far: format!("wl-rx-{unique}") };
        ip(&["netns", "add", &pair.near]);
        ip(&["netns", "add", &pair.far]);
        for space in [&pair.near, &pair.far] {
            // Only our packets shall be on the wire. The file is missing if the kernel has no IPv6, which has the same
            // effect.
            let switch = "f=/proc/sys/net/ipv6/conf/default/disable_ipv6; [ ! -e $f ] || echo 1 >$f";
            run(Command::new("ip").args(["netns", "exec", space, "sh", "-c", switch]));
        }
        ip(&[
            "-n", &pair.near, "link", "add", "wltx", "type", "veth", "peer", "name", "wlrx", "netns",
            &pair.far,
        ]);
        ip(&["-n", &pair.near, "link", "set", "wltx", "up"]);
        ip(&["-n", &pair.far, "link", "set", "wlrx", "up"]);
        Some(pair)
    }

    /// Lets the far end accept frames from inside the kernel: on a veth, GRO enables NAPI.
    pub fn allow_live_frames(&self) {
        let mut command = Command::new("ip");
        run(command.args(["netns", "exec", &self.far, "ethtool", "-K", "wlrx", "gro", "on"]));
    }

    /// Sets the MTU of both ends.
    pub fn set_mtu(&self, mtu: u32) {
        let mtu = mtu.to_string();
        ip(&["-n", &self.near, "link", "set", "wltx", "mtu", &mtu]);
        ip(&["-n", &self.far, "link", "set", "wlrx", "mtu", &mtu]);
    }

    /// Runs `body` on its own thread in the near namespace.
    pub fn in_near<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        let space = File::open(format!("/run/netns/{}", self.near)).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                // SAFETY: no memory is passed; the descriptor is open.
                let moved = unsafe { libc::setns(space.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(moved, 0, "setns: {}", std::io::Error::last_os_error());
                body()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts tcpdump at the far end, writing to `file`; returns when it is listening.
    pub fn receiver(&self, file: &Path) -> Receiver {
        let mut tcpdump = Command::new("ip")
            .args(["netns", "exec", &self.far, "tcpdump", "-n", "-i", "wlrx", "-B", "65536", "-U", "-s", "0"])
            .args(["--time-stamp-precision=nano", "-Z", "root", "-w"])
            .arg(file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("tcpdump is installed");
        let mut errors = BufReader::new(tcpdump.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert_ne!(errors.read_line(&mut line).unwrap(), 0, "tcpdump ended before it was listening");
        }
        Receiver { tcpdump, errors, file: file.to_owned() }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for space in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", space]).status();
        }
    }
}

/// A running tcpdump.
pub struct Receiver {
    tcpdump: Child,
    errors: BufReader<ChildStderr>,
    file: PathBuf,
}

impl Receiver {
    /// Waits until `count` frames were received (10 s at most), ends tcpdump and returns all frames that it wrote.
    pub fn finish(mut self, count: usize) -> Vec<Vec<u8>> {
        let start = Instant::now();
        while read_frames(&self.file).len() < count && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(50));
        }
        // SAFETY: no memory is passed; the process is our child and has not been waited for.
        unsafe { libc::kill(self.tcpdump.id() as libc::pid_t, libc::SIGINT) };
        let messages: Vec<String> = self.errors.by_ref().lines().map_while(Result::ok).collect();
        self.tcpdump.wait().unwrap();
        let lossless = messages.iter().any(|line| line.starts_with("0 packets dropped by kernel"));
        assert!(lossless, "tcpdump did not keep up: {messages:?}");
        read_frames(&self.file)
    }
}

use std::io::Read as _;

impl Drop for Receiver {
    fn drop(&mut self) {
        // Ends tcpdump if a test failed before; an error means that it has ended.
        let _ = self.tcpdump.kill();
        let _ = self.tcpdump.wait();
    }
}

/// The frames of a pcap file, read by the `pcap-parser` crate; an incomplete frame is omitted.
pub fn read_frames(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let Ok((mut rest, header)) = pcap_parser::parse_pcap_header(&bytes) else { return Vec::new() };
    let mut frames = Vec::new();
    loop {
        let block = if header.is_bigendian() {
            pcap_parser::parse_pcap_frame_be(rest)
        } else {
            pcap_parser::parse_pcap_frame(rest)
        };
        let Ok((after, block)) = block else { return frames };
        frames.push(block.data[..block.caplen as usize].to_vec());
        rest = after;
    }
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
