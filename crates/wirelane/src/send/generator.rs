//! Numbered packets from one or several threads, each pinned to a CPU of its own.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::account::{Interval, Meter, Report, ThreadReport, fell_short, per_second};
use super::interface::Interface;
use super::pace::{Clock, Pacer, Step, SystemClock};
use super::packet_socket::SocketSender;
use super::pattern::{Template, Traffic};
use super::{LOOK_AT_STOP, Method, Sender, Share, live_frames};
use crate::{Error, Result};

/// Below this rate a socket spaces packets better than live frames, whose every call costs some 20 us.
const WORTH_LIVE_FRAMES: f64 = 50_000.0;

/// Length of a burst in time, by method: short against a receiver's buffers, long against what a call costs.
const SOCKET_BURST: Duration = Duration::from_micros(50);
const KERNEL_BURST: Duration = Duration::from_micros(500);

/// How long a call at full speed should take, so that ends and intervals are noticed in time.
const CALL_TIME: Duration = Duration::from_millis(5);

/// After this long without a single packet that the device took, live frames are taken to be refused.
const REFUSAL: Duration = Duration::from_millis(500);

/// What to send, how fast, and for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The device to send from.
    pub device: String,
    /// The packets.
    pub traffic: Traffic,
    /// How they get to the device.
    pub method: Method,
    /// Packets per second of all threads together; none: as fast as possible.
    pub pps: Option<f64>,
    /// Ends after this many packets.
    pub packets: Option<u64>,
    /// Ends after this time.
    pub duration: Option<Duration>,
    /// The CPUs to send from, one thread each. On a veth, live frames arrive on the peer's RX queue with the
    /// number of the sending CPU (modulo its queues); frames of a socket on the one that their flow hashes to.
    pub cpus: Vec<usize>,
    /// How often `on_interval` is called.
    pub interval: Duration,
}

/// What a thread tells the others, written by itself only. One cache line each, so that threads do not slow
/// each other.
#[repr(align(128))]
#[derive(Default)]
struct Progress {
    offered: AtomicU64,
    refused: AtomicU64,
    given_up: AtomicU64,
    burst: AtomicU64,
    finished_ns: AtomicU64,
}

struct Running<'a> {
    plan: &'a Plan,
    interface: &'a Interface,
    template: &'a Template,
    kernel: bool,
    /// The caller's wish to end.
    stop: &'a AtomicBool,
    /// Our own: a thread failed, or nothing gets through.
    abort: AtomicBool,
    ready: Barrier,
    progress: Vec<Progress>,
}

/// Sends what `plan` says until it is done or `stop` is set, and calls `on_interval` while it runs.
pub fn generate(plan: &Plan, stop: &AtomicBool, mut on_interval: impl FnMut(&Interval)) -> Result<Report> {
    check(plan)?;
    let template = Template::new(&plan.traffic)?;
    let interface = Interface::find(&plan.device)?;
    let most = interface.largest_frame(template.has_vlan());
    if template.largest() > most {
        let reason = format!(
            "{} bytes are too many: {} has an MTU of {} and takes frames of up to {most} bytes",
            template.largest(),
            interface.name,
            interface.mtu
        );
        return Err(Error::BadOption { option: "--size", reason });
    }
    let (kernel, method_reason) = choose(plan, &interface, &template)?;
    let threads = plan.cpus.len();
    let running = Running {
        plan,
        interface: &interface,
        template: &template,
        kernel,
        stop,
        abort: AtomicBool::new(false),
        ready: Barrier::new(threads + 1),
        progress: (0..threads).map(|_| Progress::default()).collect(),
    };
    let meter = Meter::start(&interface)?;
    let outcome = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|index| {
                let running = &running;
                scope.spawn(move || running.thread(index))
            })
            .collect();
        running.ready.wait();
        let watched = watch(&running, &meter, &handles, &mut on_interval);
        if watched.is_err() {
            running.abort.store(true, Ordering::Relaxed);
        }
        let mut first_error = None;
        for handle in handles {
            let result = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if let Err(error) = result {
                first_error.get_or_insert(error);
            }
        }
        match first_error {
            Some(error) => Err(error),
            None => watched,
        }
    });
    outcome?;
    report(&running, &meter, method_reason)
}

fn check(plan: &Plan) -> Result<()> {
    if let Some(pps) = plan.pps
        && !(pps.is_finite() && (0.001..=1e9).contains(&pps))
    {
        let reason = format!(
            "{pps} packets per second is not possible; give 0.001 to 1e9, or leave it out for full speed"
        );
        return Err(Error::BadOption { option: "--rate", reason });
    }
    if plan.packets == Some(0) {
        return Err(Error::BadOption { option: "--packets", reason: "0 packets are nothing to send".into() });
    }
    if plan.duration == Some(Duration::ZERO) {
        return Err(Error::BadOption { option: "--duration", reason: "give more than 0 seconds".into() });
    }
    if plan.interval < Duration::from_millis(10) {
        return Err(Error::BadOption { option: "--interval", reason: "give 0.01 seconds or more".into() });
    }
    if plan.cpus.is_empty() || plan.cpus.len() > 1024 {
        return Err(Error::BadOption {
            option: "--threads",
            reason: "give between 1 and 1024 threads".into(),
        });
    }
    Ok(())
}

/// Whether to generate inside the kernel, and why where that was our choice.
fn choose(plan: &Plan, interface: &Interface, template: &Template) -> Result<(bool, Option<String>)> {
    let possible = || -> Result<()> {
        if template.largest() > live_frames::LARGEST_FRAME {
            let reason = format!(
                "frames inside the kernel have {} bytes or fewer, not {}; use --method socket",
                live_frames::LARGEST_FRAME,
                template.largest()
            );
            return Err(Error::BadOption { option: "--method", reason });
        }
        live_frames::permitted()?;
        live_frames::check_device(interface)
    };
    match plan.method {
        Method::Socket => Ok((false, None)),
        Method::Kernel => possible().map(|()| (true, None)),
        Method::Auto if plan.pps.is_some_and(|pps| pps < WORTH_LIVE_FRAMES) => {
            let reason = format!("socket: it spaces packets evenly below {WORTH_LIVE_FRAMES} per second");
            Ok((false, Some(reason)))
        }
        Method::Auto => match possible() {
            Ok(()) => Ok((true, Some("kernel: live frames are the fastest".into()))),
            Err(error) => Ok((false, Some(format!("socket, because live frames do not work here: {error}")))),
        },
    }
}

/// Calls `on_interval` until all threads have ended; notices when nothing gets through.
fn watch(
    running: &Running<'_>,
    meter: &Meter<'_>,
    handles: &[thread::ScopedJoinHandle<'_, Result<()>>],
    on_interval: &mut impl FnMut(&Interval),
) -> Result<()> {
    let start = Instant::now();
    let (mut last, mut last_offered, mut last_bytes) = (start, 0, 0);
    let mut last_counted = meter.read(0)?;
    let mut number = 0;
    let mut proven = !running.kernel;
    while handles.iter().any(|handle| !handle.is_finished()) {
        let until_next = running.plan.interval.saturating_sub(last.elapsed());
        thread::sleep(until_next.min(Duration::from_millis(10)));
        if !proven && start.elapsed() > REFUSAL {
            proven = true;
            if running.sum(|progress| &progress.offered) > 0 && meter.read(0)?.sent == 0 {
                return Err(super::refuses_live_frames(&running.interface.name));
            }
        }
        let elapsed = last.elapsed();
        if elapsed < running.plan.interval {
            continue;
        }
        last = Instant::now();
        number += 1;
        let offered = running.sum(|progress| &progress.offered);
        let bytes = running.bytes();
        let counted = meter.read(running.sum(|progress| &progress.refused))?;
        let seconds = elapsed.as_secs_f64();
        on_interval(&Interval {
            interval: number,
            offered: offered - last_offered,
            sent: counted.sent - last_counted.sent,
            dropped: counted.dropped.saturating_sub(last_counted.dropped),
            bytes: bytes - last_bytes,
            duration_s: seconds,
            pps: per_second(offered - last_offered, seconds),
            bps: per_second((bytes - last_bytes) * 8, seconds),
        });
        (last_offered, last_bytes, last_counted) = (offered, bytes, counted);
    }
    Ok(())
}

impl Running<'_> {
    fn sum(&self, field: impl Fn(&Progress) -> &AtomicU64) -> u64 {
        self.progress.iter().map(|progress| field(progress).load(Ordering::Relaxed)).sum()
    }

    fn bytes(&self) -> u64 {
        let stride = self.progress.len() as u64;
        let bytes = |(first, progress): (usize, &Progress)| {
            self.template.bytes_of(first as u64, stride, progress.offered.load(Ordering::Relaxed))
        };
        self.progress.iter().enumerate().map(bytes).sum()
    }

    fn ended(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.abort.load(Ordering::Relaxed)
    }

    fn thread(&self, index: usize) -> Result<()> {
        let share = Share { first: index as u64, stride: self.progress.len() as u64 };
        // Everybody has to reach the barrier, also a thread that could not get ready.
        let mut met = false;
        let mut body = |sender: &mut dyn Sender| -> Result<()> {
            met = true;
            self.ready.wait();
            self.send_share(index, share, sender)
        };
        let outcome = pin_to(self.plan.cpus[index]).and_then(|()| {
            if self.kernel {
                let device = &self.interface.name;
                live_frames::with_sender(self.interface.index, device, self.template, share, &mut body)
            } else {
                body(&mut SocketSender::open(self.interface, self.template, share)?)
            }
        });
        if outcome.is_err() {
            self.abort.store(true, Ordering::Relaxed);
        }
        if !met {
            self.ready.wait();
        }
        outcome
    }

    fn send_share(&self, index: usize, share: Share, sender: &mut dyn Sender) -> Result<()> {
        let progress = &self.progress[index];
        let threads = share.stride;
        let pps = self.plan.pps.map(|pps| pps / threads as f64);
        let mut left = self.packets_in_all().map_or(u64::MAX, |packets| {
            // Of the numbers below `packets`, those that are this thread's.
            packets.saturating_sub(share.first).div_ceil(threads)
        });
        let spacing = if self.kernel { KERNEL_BURST } else { SOCKET_BURST };
        let mut pacer = pps.map(|pps| Pacer::new(pps, spacing, sender.most()));
        let mut full_speed = sender.most().min(256);
        if let Some(pps) = pps {
            progress.burst.store((pps * spacing.as_secs_f64()) as u64 + 1, Ordering::Relaxed);
        }
        let clock = SystemClock::start();
        while left > 0 && !self.ended() {
            let now = clock.now();
            if self.plan.duration.is_some_and(|duration| now >= duration) {
                break;
            }
            let due = match pacer.as_mut().map(|pacer| pacer.step(now)) {
                None => full_speed,
                Some(Step::Send(due)) => due,
                Some(Step::Wait(wait)) => {
                    let rest = self.plan.duration.map_or(LOOK_AT_STOP, |duration| duration - now);
                    clock.sleep(wait.min(rest).min(LOOK_AT_STOP));
                    continue;
                }
            };
            let count = due.min(left);
            let handed = sender.send(count, self.stop)?;
            left -= handed.packets;
            progress.offered.fetch_add(handed.packets, Ordering::Relaxed);
            progress.refused.fetch_add(handed.refused, Ordering::Relaxed);
            match pacer.as_mut() {
                Some(pacer) => {
                    pacer.return_unsent(due - handed.packets);
                    progress.given_up.store(pacer.given_up(), Ordering::Relaxed);
                }
                None if clock.now() - now < CALL_TIME => full_speed = (full_speed * 2).min(sender.most()),
                None => full_speed = (full_speed / 2).max(64),
            }
        }
        progress.finished_ns.store(clock.now().as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Where both a rate and a time are given, no more than their product is sent.
    fn packets_in_all(&self) -> Option<u64> {
        let by_time = self
            .plan
            .pps
            .zip(self.plan.duration)
            .map(|(pps, time)| (pps * time.as_secs_f64()).round().max(1.0) as u64);
        match (by_time, self.plan.packets) {
            (Some(by_time), Some(packets)) => Some(by_time.min(packets)),
            (by_time, packets) => by_time.or(packets),
        }
    }
}

fn report(running: &Running<'_>, meter: &Meter<'_>, method_reason: Option<String>) -> Result<Report> {
    let plan = running.plan;
    let offered = running.sum(|progress| &progress.offered);
    let refused = running.sum(|progress| &progress.refused);
    let bytes = running.bytes();
    let divided = meter.settle(offered, refused)?;
    if offered > 0 && divided.sent == 0 {
        if running.kernel {
            return Err(super::refuses_live_frames(&plan.device));
        }
        let reason = format!(
            "{} sent none of the {offered} frames that it was offered ({} dropped); is the other end of the link up?",
            plan.device, divided.dropped
        );
        return Err(Error::BadOption { option: "-i", reason });
    }
    let stride = running.progress.len() as u64;
    let threads: Vec<ThreadReport> = running
        .progress
        .iter()
        .enumerate()
        .map(|(index, progress)| {
            let offered = progress.offered.load(Ordering::Relaxed);
            let first = index as u64;
            ThreadReport {
                cpu: plan.cpus[index],
                offered,
                first_sequence: (offered > 0).then_some(first),
                last_sequence: offered.checked_sub(1).map(|steps| first + steps * stride),
                stride,
            }
        })
        .collect();
    let longest = running.progress.iter().map(|progress| progress.finished_ns.load(Ordering::Relaxed)).max();
    let duration_s = Duration::from_nanos(longest.unwrap_or(0)).as_secs_f64();
    Ok(Report {
        device: plan.device.clone(),
        method: if running.kernel { "kernel" } else { "socket" },
        method_reason,
        asked_pps: plan.pps,
        asked_packets: plan.packets,
        asked_duration_s: plan.duration.map(|time| time.as_secs_f64()),
        offered,
        sent: divided.sent,
        dropped: divided.dropped,
        unaccounted: divided.unaccounted,
        others: divided.others,
        refused,
        bytes,
        duration_s,
        pps: per_second(offered, duration_s),
        bps: per_second(bytes * 8, duration_s),
        given_up: running.sum(|progress| &progress.given_up),
        fell_short: fell_short(offered, plan.pps, duration_s, running.sum(|progress| &progress.burst)),
        first_sequence: threads.iter().filter_map(|thread| thread.first_sequence).min(),
        last_sequence: threads.iter().filter_map(|thread| thread.last_sequence).max(),
        threads,
    })
}

/// Pins the calling thread to a CPU.
fn pin_to(cpu: usize) -> Result<()> {
    let impossible = || Error::BadOption {
        option: "--cores",
        reason: format!("this process may not run on CPU {cpu}; /proc/self/status lists Cpus_allowed_list"),
    };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(impossible());
    }
    // SAFETY: `cpu_set_t` is an array of integers; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is below CPU_SETSIZE, as CPU_SET asks.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: `set` is a cpu_set_t and its size is passed; 0 means the calling thread.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(impossible()),
    }
}

/// The CPUs that this process may run on.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: `cpu_set_t` is an array of integers; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a cpu_set_t and its size is passed; 0 means the calling thread.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return vec![0];
    }
    // SAFETY: every number is below CPU_SETSIZE, as CPU_ISSET asks.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}
