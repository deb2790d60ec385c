//! Replay of captures: as recorded, faster or slower, or as fast as the device accepts the frames.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::LOOK_AT_STOP;
use super::account::{Meter, per_second};
use super::interface::Interface;
use super::pace::{Clock, SystemClock};
use super::packet_socket::{BATCH, Frames, PacketSocket};
use wirelane_pcapng::{MergedReader, Reached};
use wirelane_privsep::Sandbox;

use wirelane_bpf::layout::LinkType;

use crate::{Error, Result};

/// A frame that is sent later than this after its due time is late.
const LATE: Duration = Duration::from_millis(1);

/// A frame of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Capture time in nanoseconds since any fixed moment.
    pub ts_ns: u64,
    /// Link type: the kind of the frame's first header.
    pub link_type: LinkType,
    /// Length on the wire in bytes, without FCS.
    pub wire_len: u32,
    /// Captured bytes.
    pub bytes: &'a [u8],
}

/// Source of the frames of a replay: capture files, read once.
pub trait FrameReader {
    /// Calls `visit` with the next available frames until it returns `false`. Returns `false` at the end of the
    /// capture.
    fn read(&mut self, visit: &mut dyn FnMut(Frame<'_>) -> Result<bool>) -> Result<bool>;
}

impl FrameReader for MergedReader {
    fn read(&mut self, visit: &mut dyn FnMut(Frame<'_>) -> Result<bool>) -> Result<bool> {
        match self.advance(LOOK_AT_STOP)? {
            Reached::Packet(packet) => {
                let interface = &self.interfaces()[usize::from(packet.interface)];
                let frame = Frame {
                    ts_ns: packet.ts_ns,
                    link_type: interface.link_type,
                    wire_len: packet.wire_len,
                    bytes: self.data(&packet),
                };
                if visit(frame)? {
                    self.consume(&packet);
                }
                Ok(true)
            }
            Reached::Further | Reached::Wait => Ok(true),
            Reached::End => Ok(false),
        }
    }
}

/// Speed of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReplaySpeed {
    /// The recorded distances divided by this factor: 1 is as recorded, 10 is ten times as fast.
    Factor(f64),
    /// As fast as the device accepts the frames.
    Max,
}

/// Parameters of a replay.
#[derive(Clone, Debug)]
pub struct ReplayPlan {
    /// The device to send from.
    pub device: String,
    /// Speed.
    pub speed: ReplaySpeed,
    /// Number of passes.
    pub passes: u64,
}

/// Result of a replay.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplayReport {
    /// The device.
    pub device: String,
    /// Frames read, in all passes.
    pub read: u64,
    /// Frames handed to the kernel.
    pub offered: u64,
    /// Offered frames that the device counted as transmitted.
    pub sent: u64,
    /// Offered frames that the device counted as dropped.
    pub dropped: u64,
    /// Offered frames neither counted as sent nor as dropped.
    pub unaccounted: u64,
    /// Packets that the device counted beyond the offered ones: another sender uses the device too.
    pub others: u64,
    /// Number of retries because the device had no space for a frame.
    pub refused: u64,
    /// Skipped: larger than the device's MTU allows.
    pub too_large: u64,
    /// Skipped: shorter than an Ethernet header.
    pub too_short: u64,
    /// Skipped: not Ethernet frames.
    pub not_ethernet: u64,
    /// Skipped: the capture holds only the beginning of the frame.
    pub cut: u64,
    /// Frames sent more than 1 ms after their due time.
    pub late: u64,
    /// Maximum delay of a frame after its due time, in seconds.
    pub most_late_s: f64,
    /// Bytes of the offered frames, without FCS.
    pub bytes: u64,
    /// Finished passes.
    pub passes: u64,
    /// Time from the first frame to the end of the last, in seconds.
    pub duration_s: f64,
    /// Offered frames per second.
    pub pps: f64,
    /// Offered bits per second, without FCS, preamble and gap.
    pub bps: f64,
    /// Whether more than 1 % of the frames were late.
    pub fell_short: bool,
}

/// Due times of the frames, derived from the times in the capture.
#[derive(Debug, Default)]
struct Schedule {
    /// Capture time of the latest frame of this pass.
    last_ns: Option<u64>,
    /// Due time of that frame.
    due: Duration,
}

impl Schedule {
    /// The due time of a frame with this capture time. A time that goes backwards counts as no distance: a capture of
    /// several queues has such times, and the order in the file is kept.
    fn next(&mut self, ts_ns: u64, factor: f64) -> Duration {
        let distance = self.last_ns.map_or(0, |last| ts_ns.saturating_sub(last));
        self.last_ns = Some(self.last_ns.map_or(ts_ns, |last| last.max(ts_ns)));
        let seconds = distance as f64 / 1e9 / factor;
        self.due += Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 4);
        self.due
    }

    /// Starts the next pass at the end of this one.
    fn restart(&mut self) {
        self.last_ns = None;
    }
}

/// Replays a capture until it is done or `stop` is set. `open` returns a reader at the start of the capture, and is
/// called once for each pass.
pub fn replay<R: FrameReader>(
    plan: &ReplayPlan,
    open: impl FnMut() -> Result<R>,
    stop: &AtomicBool,
) -> Result<ReplayReport> {
    run(plan, None, open, stop)
}

/// As [`replay`], but drops the process's rights before the first reader is opened, which then has only the rights that
/// [`wirelane_privsep::Work::Send`] leaves. The process must not have other threads at this moment.
pub fn replay_confined<R: FrameReader>(
    plan: &ReplayPlan,
    confinement: &Sandbox,
    open: impl FnMut() -> Result<R>,
    stop: &AtomicBool,
) -> Result<ReplayReport> {
    run(plan, Some(confinement), open, stop)
}

fn run<R: FrameReader>(
    plan: &ReplayPlan,
    confinement: Option<&Sandbox>,
    mut open: impl FnMut() -> Result<R>,
    stop: &AtomicBool,
) -> Result<ReplayReport> {
    if let ReplaySpeed::Factor(factor) = plan.speed
        && !(factor.is_finite() && (1e-3..=1e6).contains(&factor))
    {
        let reason =
            format!("{factor} is not a speed; give 'recorded', a factor from 0.001x to 1000000x, or 'max'");
        return Err(Error::BadOption { option: "--speed", reason });
    }
    let interface = Interface::find(&plan.device)?;
    // One TX queue, so that the frames keep their order.
    let socket = PacketSocket::open(&interface, false)?;
    let meter = Meter::start(&interface)?;
    confinement.map_or(Ok(()), Sandbox::apply)?;
    // Space for a VLAN tag: the kernel allows 4 bytes more if the frame has one.
    let mut outlet = Outlet {
        socket,
        frames: Frames::new(interface.largest_frame(true)),
        filled: 0,
        clock: SystemClock::start(),
        stop,
        report: ReplayReport { device: plan.device.clone(), ..ReplayReport::default() },
    };
    let mut schedule = Schedule::default();
    for _ in 0..plan.passes {
        let mut reader = open()?;
        let mut visit = |frame: Frame<'_>| {
            if let ReplaySpeed::Factor(factor) = plan.speed {
                // Also for a skipped frame: the others keep their distances.
                let due = schedule.next(frame.ts_ns, factor);
                outlet.wait_until(due)?;
                outlet.note_lateness(due);
            }
            if outlet.stopped() {
                return Ok(false);
            }
            outlet.add(&frame, &interface)?;
            Ok(true)
        };
        let mut more = true;
        while more && !stop.load(Ordering::Relaxed) {
            more = reader.read(&mut visit)?;
        }
        if more {
            break;
        }
        outlet.report.passes += 1;
        schedule.restart();
    }
    outlet.flush()?;
    let duration_s = outlet.clock.now().as_secs_f64();
    let mut report = outlet.report;
    let divided = meter.settle(report.offered, report.refused)?;
    report.sent = divided.sent;
    report.dropped = divided.dropped;
    report.unaccounted = divided.unaccounted;
    report.others = divided.others;
    report.duration_s = duration_s;
    report.pps = per_second(report.offered, duration_s);
    report.bps = per_second(report.bytes * 8, duration_s);
    report.fell_short = report.late * 100 > report.offered;
    Ok(report)
}

/// Frames to send, collected in batches.
struct Outlet<'a> {
    socket: PacketSocket,
    frames: Frames,
    filled: usize,
    clock: SystemClock,
    stop: &'a AtomicBool,
    report: ReplayReport,
}

impl Outlet<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sends the collected frames, then sleeps until the next frame is due. Frames that are due already are collected
    /// into a batch instead.
    fn wait_until(&mut self, due: Duration) -> Result<()> {
        if due <= self.clock.now() {
            return Ok(());
        }
        self.flush()?;
        loop {
            let now = self.clock.now();
            if due <= now || self.stopped() {
                return Ok(());
            }
            self.clock.sleep((due - now).min(LOOK_AT_STOP));
        }
    }

    fn note_lateness(&mut self, due: Duration) {
        let late = self.clock.now().saturating_sub(due);
        self.report.late += u64::from(late > LATE);
        self.report.most_late_s = self.report.most_late_s.max(late.as_secs_f64());
    }

    fn add(&mut self, frame: &Frame<'_>, interface: &Interface) -> Result<()> {
        self.report.read += 1;
        let tagged = matches!(frame.bytes.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
        let length = frame.bytes.len();
        let left_out = if frame.link_type != LinkType::Ethernet {
            &mut self.report.not_ethernet
        } else if frame.wire_len as usize > interface.largest_frame(tagged)
            || length > interface.largest_frame(tagged)
        {
            &mut self.report.too_large
        } else if length < frame.wire_len as usize {
            &mut self.report.cut
        } else if length < 14 {
            &mut self.report.too_short
        } else {
            self.frames.slot(self.filled)[..length].copy_from_slice(frame.bytes);
            self.frames.set_length(self.filled, length);
            self.filled += 1;
            return if self.filled == BATCH { self.flush() } else { Ok(()) };
        };
        *left_out += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let (taken, refused) = self.socket.send_all(&mut self.frames, self.filled, true, self.stop)?;
        self.report.bytes += (0..taken).map(|slot| self.frames.length(slot) as u64).sum::<u64>();
        self.report.offered += taken as u64;
        self.report.refused += refused;
        self.filled = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_kept_and_divided() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.next(5_000_000_000, 2.0), Duration::ZERO);
        assert_eq!(schedule.next(5_000_001_000, 2.0), Duration::from_nanos(500));
        assert_eq!(schedule.next(6_000_001_000, 2.0), Duration::from_nanos(500_000_500));
    }

    #[test]
    fn times_that_go_backwards_do_not_add_up() {
        let mut schedule = Schedule::default();
        schedule.next(1000, 1.0);
        assert_eq!(schedule.next(3000, 1.0), Duration::from_nanos(2000));
        assert_eq!(schedule.next(2000, 1.0), Duration::from_nanos(2000));
        assert_eq!(schedule.next(4000, 1.0), Duration::from_nanos(3000));
    }

    #[test]
    fn the_next_pass_follows_at_once() {
        let mut schedule = Schedule::default();
        schedule.next(1000, 1.0);
        schedule.next(2000, 1.0);
        schedule.restart();
        assert_eq!(schedule.next(1000, 1.0), Duration::from_nanos(1000));
        assert_eq!(schedule.next(2000, 1.0), Duration::from_nanos(2000));
    }
}
