//! Sends numbered packets from one or several threads, each pinned to its own CPU.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::account::{Interval, Meter, Report, ThreadReport, divide, fell_short, per_second};
use super::cpu::pin_to;
use super::interface::{Counters, Interface};
use super::live_frames::{self, Handle};
use super::pace::{Clock, Pacer, Step, SystemClock, monotonic_ns};
use super::packet_socket::{BATCH, SocketSender};
use super::plan::{Plan, check, shares};
use super::streams::Streams;
use super::template::Template;
use super::xsk_socket::{AnySender, XskSender};
use super::{Counts, LOOK_AT_STOP, Method, Share, wake};
use crate::{Error, Result};
use wirelane_privsep::Sandbox;

/// Below this rate `auto` chooses the socket: its threads sleep between bursts, while the program in the kernel keeps
/// its CPU busy at any rate. A socket reaches several times this rate.
const WORTH_LIVE_FRAMES: f64 = 200_000.0;

/// Duration of a burst through a socket: short compared to a receiver's buffers, long compared to a timer.
const SOCKET_BURST: Duration = Duration::from_micros(50);

/// After this long without a single packet accepted by the device, live frames are assumed to be rejected.
const REFUSAL_NS: u64 = 500_000_000;

/// Interval of the checks on the threads.
const WATCH: Duration = Duration::from_millis(10);

/// Progress of a thread with a socket, written only by this thread.
#[derive(Default)]
struct Progress {
    offered: AtomicU64,
    refused: AtomicU64,
    given_up: AtomicU64,
    completed: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
}

/// Sending method of a thread.
enum Engine<'a> {
    Kernel(Handle<'a>),
    Socket(Progress),
}

/// One sending thread. Aligned to its own cache lines to avoid false sharing.
#[repr(align(128))]
struct Sending<'a> {
    engine: Engine<'a>,
    share: Share,
    cpu: usize,
    /// Thread id while the thread runs, otherwise 0.
    id: AtomicI32,
}

impl Sending<'_> {
    fn counts(&self) -> Counts {
        match &self.engine {
            Engine::Kernel(handle) => handle.counts(),
            Engine::Socket(progress) => {
                let read = |field: &AtomicU64| field.load(Ordering::Relaxed);
                Counts {
                    offered: read(&progress.offered),
                    refused: read(&progress.refused),
                    given_up: read(&progress.given_up),
                    completed: read(&progress.completed),
                    first_ns: read(&progress.first_ns),
                    last_ns: read(&progress.last_ns),
                }
            }
        }
    }
}

struct Running<'a> {
    plan: &'a Plan,
    interface: &'a Interface,
    streams: &'a Streams,
    kernel: bool,
    /// Name of the method in the report.
    method: &'static str,
    /// Packets are counted as sent on completion by the driver, not by the device's counters: drivers do not count
    /// zero-copy packets, or count them differently from packets of the stack (virtnet_xsk_xmit(),
    /// drivers/net/virtio_net.c).
    by_completion: bool,
    /// Request to all threads to end.
    end: AtomicBool,
    threads: Vec<Sending<'a>>,
}

/// Sends according to `plan` until it is done or `stop` is set, and calls `on_interval` while it runs.
pub fn generate(plan: &Plan, stop: &AtomicBool, on_interval: impl FnMut(&Interval)) -> Result<Report> {
    run(plan, None, stop, on_interval)
}

/// As [`generate`], but drops the process's rights after all actions that need them and before a thread starts or a
/// packet is sent. The process must not have other threads at this moment.
pub fn generate_confined(
    plan: &Plan,
    confinement: &Sandbox,
    stop: &AtomicBool,
    on_interval: impl FnMut(&Interval),
) -> Result<Report> {
    run(plan, Some(confinement), stop, on_interval)
}

fn run(
    plan: &Plan,
    confinement: Option<&Sandbox>,
    stop: &AtomicBool,
    mut on_interval: impl FnMut(&Interval),
) -> Result<Report> {
    check(plan)?;
    let streams = Streams::new(&plan.traffic, plan.cpus.len() as u64)?;
    let interface = Interface::find(&plan.device)?;
    for template in streams.templates() {
        let most = interface.largest_frame(template.has_vlan());
        if template.largest() <= most {
            continue;
        }
        let reason = format!(
            "{} bytes are too many: {} has an MTU of {} and takes frames of up to {most} bytes",
            template.largest(),
            interface.name,
            interface.mtu
        );
        return Err(Error::BadOption { option: "--size", reason });
    }
    let (kernel, method_reason) = choose(plan, &interface, &streams)?;

    // All steps that can fail happen before the first packet is sent.
    let shares = shares(plan);
    let mut storage: Vec<_> = shares.iter().map(|_| MaybeUninit::uninit()).collect();
    let mut programs = Vec::new();
    let mut sockets = Vec::new();
    for (share, storage) in shares.iter().zip(&mut storage) {
        if let Some(template) = kernel {
            wake::prepare()?;
            programs.push(live_frames::load(storage, interface.index, template, *share)?);
            sockets.push(None);
        } else {
            sockets.push(Some(if plan.method == Method::Xsk {
                AnySender::Xsk(XskSender::open(&interface, &streams, *share)?)
            } else {
                AnySender::Packet(SocketSender::open(&interface, &streams, *share, plan.retries)?)
            }));
        }
    }
    let mut handles = programs.iter().map(live_frames::LiveFrames::handle);
    let mut engine = || handles.next().map_or_else(|| Engine::Socket(Progress::default()), Engine::Kernel);
    let threads = shares
        .iter()
        .zip(&plan.cpus)
        .map(|(share, cpu)| Sending { engine: engine(), share: *share, cpu: *cpu, id: AtomicI32::new(0) })
        .collect();
    let running = Running {
        plan,
        interface: &interface,
        streams: &streams,
        kernel: kernel.is_some(),
        by_completion: sockets.iter().flatten().any(AnySender::is_zero_copy),
        method: sockets.iter().flatten().next().map_or("kernel", AnySender::name),
        end: AtomicBool::new(false),
        threads,
    };
    let meter = Meter::start(&interface)?;
    confinement.map_or(Ok(()), Sandbox::apply)?;
    thread::scope(|scope| {
        let handles: Vec<_> = running
            .threads
            .iter()
            .zip(sockets)
            .map(|(sending, socket)| {
                let running = &running;
                scope.spawn(move || running.thread(sending, socket))
            })
            .collect();
        let all_done = || handles.iter().all(thread::ScopedJoinHandle::is_finished);
        let watched = watch(&running, &meter, stop, all_done, &mut on_interval);
        let mut outcome = Ok(());
        for handle in handles {
            let result = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(result);
        }
        outcome.and(watched)
    })?;
    report(&running, &meter, method_reason)
}

/// The template, if packets are generated inside the kernel.
type InKernel<'s> = Option<&'s Template>;

/// Whether to generate inside the kernel, with the reason if the generator chose the method.
fn choose<'s>(
    plan: &Plan,
    interface: &Interface,
    streams: &'s Streams,
) -> Result<(InKernel<'s>, Option<String>)> {
    let possible = || -> Result<InKernel<'s>> {
        let Some(template) = streams.only() else {
            let reason = "inside the kernel there is one stream; use --method socket or xsk".to_owned();
            return Err(Error::BadOption { option: "--method", reason });
        };
        if template.largest() > live_frames::LARGEST_FRAME {
            let reason = format!(
                "frames inside the kernel have {} bytes or fewer, not {}; use --method socket",
                live_frames::LARGEST_FRAME,
                template.largest()
            );
            return Err(Error::BadOption { option: "--method", reason });
        }
        live_frames::permitted()?;
        live_frames::check_device(interface)?;
        Ok(Some(template))
    };
    match plan.method {
        Method::Socket | Method::Xsk => Ok((None, None)),
        Method::Kernel => possible().map(|template| (template, None)),
        Method::Auto if plan.pps.is_some_and(|pps| pps < WORTH_LIVE_FRAMES) => {
            let reason =
                format!("it sleeps between packets, which suffices up to {WORTH_LIVE_FRAMES} a second");
            Ok((None, Some(reason)))
        }
        Method::Auto => match possible() {
            Ok(template) => Ok((template, Some("the fastest".into()))),
            // The user did not set the option that the error names.
            Err(Error::BadOption { reason, .. }) => {
                Ok((None, Some(format!("live frames do not work here: {reason}"))))
            }
            Err(error) => Ok((None, Some(format!("live frames do not work here: {error}")))),
        },
    }
}

/// Supervises the threads until all have ended: calls `on_interval`, ends the threads when it is time, and detects that
/// the device accepts no packets.
fn watch(
    running: &Running<'_>,
    meter: &Meter,
    stop: &AtomicBool,
    all_done: impl Fn() -> bool,
    on_interval: &mut impl FnMut(&Interval),
) -> Result<()> {
    let mut outcome = Ok(());
    let mut intervals = Intervals::start();
    let mut proven = !running.kernel;
    while !all_done() {
        let until_end = running.ends_at().map_or(WATCH, |end| {
            Duration::from_nanos(end.saturating_sub(monotonic_ns())).max(Duration::from_micros(100))
        });
        let until_next = running.plan.interval.saturating_sub(intervals.last.elapsed());
        thread::sleep(WATCH.min(until_end).min(until_next));
        let first_ns = running.first_ns();
        if !proven && first_ns.is_some_and(|first| monotonic_ns() > first + REFUSAL_NS) {
            proven = true;
            if running.sum(|counts| counts.offered) > 0 && meter.read(0)?.sent == 0 {
                outcome = Err(super::refuses_live_frames(&running.interface.name));
                running.end.store(true, Ordering::Relaxed);
            }
        }
        if stop.load(Ordering::Relaxed) || running.ends_at().is_some_and(|end| monotonic_ns() >= end) {
            running.end.store(true, Ordering::Relaxed);
        }
        running.wake_who_shall_end();
        if intervals.last.elapsed() >= running.plan.interval {
            match intervals.next(running, meter) {
                Ok(interval) => on_interval(&interval),
                // The threads have to end even after an error.
                Err(error) => {
                    outcome = Err(error);
                    running.end.store(true, Ordering::Relaxed);
                }
            }
        }
    }
    outcome
}

/// State at the end of the previous interval.
struct Intervals {
    number: u64,
    last: Instant,
    offered: u64,
    bytes: u64,
    sent: u64,
    dropped: u64,
}

impl Intervals {
    fn start() -> Intervals {
        Intervals { number: 0, last: Instant::now(), offered: 0, bytes: 0, sent: 0, dropped: 0 }
    }

    fn next(&mut self, running: &Running<'_>, meter: &Meter) -> Result<Interval> {
        let duration_s = self.last.elapsed().as_secs_f64();
        let offered = running.sum(|counts| counts.offered);
        let bytes = running.bytes();
        let counted = running.counted(meter)?;
        let interval = Interval {
            interval: self.number + 1,
            offered: offered - self.offered,
            sent: counted.sent.saturating_sub(self.sent),
            dropped: counted.dropped.saturating_sub(self.dropped),
            bytes: bytes - self.bytes,
            duration_s,
            pps: per_second(offered - self.offered, duration_s),
            bps: per_second((bytes - self.bytes) * 8, duration_s),
        };
        *self = Intervals {
            number: self.number + 1,
            last: Instant::now(),
            offered,
            bytes,
            sent: counted.sent,
            dropped: counted.dropped,
        };
        Ok(interval)
    }
}

impl Running<'_> {
    fn sum(&self, field: impl Fn(&Counts) -> u64) -> u64 {
        self.threads.iter().map(|thread| field(&thread.counts())).sum()
    }

    /// The counters so far.
    fn counted(&self, meter: &Meter) -> Result<Counters> {
        if self.by_completion {
            return Ok(Counters { sent: self.sum(|counts| counts.completed), dropped: 0 });
        }
        meter.read(self.sum(|counts| counts.refused))
    }

    fn bytes(&self) -> u64 {
        let bytes = |thread: &Sending<'_>| {
            self.streams.bytes_of(thread.share.first, thread.share.stride, thread.counts().offered)
        };
        self.threads.iter().map(bytes).sum()
    }

    /// Time of the first packet; `None` before it.
    fn first_ns(&self) -> Option<u64> {
        self.threads.iter().map(|thread| thread.counts().first_ns).filter(|first| *first > 0).min()
    }

    /// End of the run, counted from the first packet.
    fn ends_at(&self) -> Option<u64> {
        Some(self.first_ns()?.saturating_add(self.plan.duration?.as_nanos() as u64))
    }

    fn ended(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }

    /// Threads inside the kernel return only on a signal. It is repeated until they have returned.
    fn wake_who_shall_end(&self) {
        for thread in &self.threads {
            let id = thread.id.load(Ordering::Relaxed);
            let over = self.ended() || thread.counts().offered >= thread.share.limit;
            if self.kernel && over && id != 0 {
                wake::wake(id);
            }
        }
    }

    fn thread(&self, sending: &Sending<'_>, socket: Option<AnySender<'_>>) -> Result<()> {
        sending.id.store(wake::own_id(), Ordering::Relaxed);
        let outcome = pin_to(sending.cpu).and_then(|()| match (&sending.engine, socket) {
            (Engine::Kernel(handle), _) => {
                handle.run(&self.streams.templates()[0], sending.share, &|| self.ended())
            }
            (Engine::Socket(progress), Some(socket)) => self.send_share(sending.share, progress, socket),
            (Engine::Socket(_), None) => unreachable!("generate() opens a socket for each such thread"),
        });
        sending.id.store(0, Ordering::Relaxed);
        if outcome.is_err() {
            self.end.store(true, Ordering::Relaxed);
        }
        outcome
    }

    fn send_share(&self, share: Share, progress: &Progress, mut socket: AnySender<'_>) -> Result<()> {
        let most = BATCH as u64;
        let mut pacer = share.pps.map(|pps| Pacer::new(pps, SOCKET_BURST, most));
        let mut left = share.limit;
        let clock = SystemClock::start();
        progress.first_ns.store(monotonic_ns(), Ordering::Relaxed);
        while left > 0 && !self.ended() {
            let now = clock.now();
            if self.plan.duration.is_some_and(|duration| now >= duration) {
                break;
            }
            let due = match pacer.as_mut().map(|pacer| pacer.step(now)) {
                None => most,
                Some(Step::Send(due)) => due,
                Some(Step::Wait(wait)) => {
                    let rest = self.plan.duration.map_or(LOOK_AT_STOP, |duration| duration - now);
                    clock.sleep(wait.min(rest).min(LOOK_AT_STOP));
                    continue;
                }
            };
            let (taken, refused) = socket.send(due.min(left), &self.end)?;
            left -= taken;
            progress.offered.fetch_add(taken, Ordering::Relaxed);
            progress.refused.fetch_add(refused, Ordering::Relaxed);
            progress.last_ns.store(monotonic_ns(), Ordering::Relaxed);
            progress.completed.store(socket.completed(), Ordering::Relaxed);
            if let Some(pacer) = pacer.as_mut() {
                pacer.return_unsent(due - taken);
                progress.given_up.store(pacer.given_up(), Ordering::Relaxed);
            }
        }
        let finished = socket.finish();
        progress.completed.store(socket.completed(), Ordering::Relaxed);
        finished
    }
}

fn report(running: &Running<'_>, meter: &Meter, method_reason: Option<String>) -> Result<Report> {
    let plan = running.plan;
    let offered = running.sum(|counts| counts.offered);
    let refused = running.sum(|counts| counts.refused);
    let bytes = running.bytes();
    let divided = match running.by_completion {
        true => divide(offered, running.counted(meter)?),
        false => meter.settle(offered, refused)?,
    };
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
    let threads: Vec<ThreadReport> = running
        .threads
        .iter()
        .map(|thread| {
            let offered = thread.counts().offered;
            let Share { first, stride, .. } = thread.share;
            ThreadReport {
                cpu: thread.cpu,
                offered,
                first_sequence: (offered > 0).then_some(first),
                last_sequence: offered.checked_sub(1).map(|steps| first + steps * stride),
                stride,
            }
        })
        .collect();
    let last_ns = running.threads.iter().map(|thread| thread.counts().last_ns).max().unwrap_or(0);
    let nanoseconds = running.first_ns().map_or(0, |first| last_ns.saturating_sub(first));
    let duration_s = Duration::from_nanos(nanoseconds).as_secs_f64();
    let burst =
        plan.pps.map_or(0.0, |pps| pps * SOCKET_BURST.as_secs_f64()) as u64 + running.threads.len() as u64;
    Ok(Report {
        device: plan.device.clone(),
        method: running.method,
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
        given_up: running.sum(|counts| counts.given_up),
        fell_short: fell_short(offered, plan.pps, duration_s, burst),
        first_sequence: threads.iter().filter_map(|thread| thread.first_sequence).min(),
        last_sequence: threads.iter().filter_map(|thread| thread.last_sequence).max(),
        threads,
    })
}
