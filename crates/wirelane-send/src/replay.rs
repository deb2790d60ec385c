//! Replay of captures: as recorded, faster or slower, or as fast as the device accepts the frames.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::LOOK_AT_STOP;
use super::account::{Meter, per_second};
use super::interface::Interface;
use super::pace::{Clock, SystemClock};
use super::packet_socket::{BATCH, Frames, PacketSocket};
use super::rewrite::Rewrite;
use super::sides::{Side, Sides};
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
    /// This many frames per second.
    Pps(f64),
    /// This many megabits per second, of frames without FCS.
    Mbps(f64),
    /// As fast as the device accepts the frames.
    Max,
}

/// Parameters of a replay.
#[derive(Clone, Debug)]
pub struct ReplayPlan {
    /// The device to send from.
    pub device: String,
    /// The device for the frames of servers; `device` is for those of clients then.
    pub server_device: Option<String>,
    /// Changes of the frames.
    pub rewrite: Rewrite,
    /// Speed.
    pub speed: ReplaySpeed,
    /// Number of passes.
    pub passes: u64,
}

/// Frames of one of two devices.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceReport {
    /// The device.
    pub device: String,
    /// Frames handed to the kernel.
    pub offered: u64,
    /// Bytes of these, without FCS.
    pub bytes: u64,
    /// Offered frames that the device counted as transmitted.
    pub sent: u64,
    /// Offered frames that the device counted as dropped.
    pub dropped: u64,
    /// Offered frames neither counted as sent nor as dropped.
    pub unaccounted: u64,
    /// Packets that the device counted beyond the offered ones.
    pub others: u64,
}

/// Result of a replay. With two devices its counts are sums.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReplayReport {
    /// The device.
    pub device: String,
    /// The devices of clients and of servers, if there are two.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceReport>,
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

    /// The due time of a frame, and after it a pause of this many seconds.
    fn then(&mut self, pause_s: f64) -> Duration {
        let due = self.due;
        self.due += Duration::try_from_secs_f64(pause_s).unwrap_or(Duration::MAX / 4);
        due
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
    if let ReplaySpeed::Pps(rate) | ReplaySpeed::Mbps(rate) = plan.speed
        && !(rate.is_finite() && (1e-3..=1e9).contains(&rate))
    {
        let option = if matches!(plan.speed, ReplaySpeed::Pps(_)) { "--rate" } else { "--mbps" };
        return Err(Error::BadOption {
            option,
            reason: format!("{rate} is not possible; give 0.001 to 1e9"),
        });
    }
    if plan.server_device.as_ref() == Some(&plan.device) {
        let reason = format!("{} is the device of the clients; name another one", plan.device);
        return Err(Error::BadOption { option: "--server-interface", reason });
    }
    let names = std::iter::once(&plan.device).chain(&plan.server_device);
    let exits = names.map(|name| Exit::open(name)).collect::<Result<_>>()?;
    confinement.map_or(Ok(()), Sandbox::apply)?;
    let mut outlet = Outlet {
        exits,
        current: 0,
        sides: plan.server_device.as_ref().map(|_| Sides::new()),
        rewrite: (!plan.rewrite.is_empty()).then_some(&plan.rewrite),
        clock: SystemClock::start(),
        stop,
        report: ReplayReport { device: plan.device.clone(), ..ReplayReport::default() },
    };
    let mut schedule = Schedule::default();
    for _ in 0..plan.passes {
        let mut reader = open()?;
        let mut visit = |frame: Frame<'_>| {
            let exit = outlet.exit_of(&frame);
            let due = match (plan.speed, exit) {
                // Also for a skipped frame: the others keep their distances.
                (ReplaySpeed::Factor(factor), _) => Some(schedule.next(frame.ts_ns, factor)),
                (ReplaySpeed::Pps(pps), Ok(_)) => Some(schedule.then(1.0 / pps)),
                (ReplaySpeed::Mbps(mbps), Ok(_)) => {
                    Some(schedule.then(frame.bytes.len() as f64 * 8.0 / (mbps * 1e6)))
                }
                (ReplaySpeed::Max, _) | (_, Err(_)) => None,
            };
            if let Some(due) = due {
                outlet.wait_until(due)?;
                outlet.note_lateness(due);
            }
            if outlet.stopped() {
                return Ok(false);
            }
            outlet.report.read += 1;
            match exit {
                Ok(exit) => outlet.add(&frame, exit)?,
                Err(left_out) => *left_out(&mut outlet.report) += 1,
            }
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
    for exit in outlet.exits {
        let device = exit.settle()?;
        report.offered += device.offered;
        report.bytes += device.bytes;
        report.sent += device.sent;
        report.dropped += device.dropped;
        report.unaccounted += device.unaccounted;
        report.others += device.others;
        report.devices.push(device);
    }
    if plan.server_device.is_none() {
        report.devices.clear();
    }
    report.duration_s = duration_s;
    report.pps = per_second(report.offered, duration_s);
    report.bps = per_second(report.bytes * 8, duration_s);
    report.fell_short = report.late * 100 > report.offered;
    Ok(report)
}

/// A device of a replay, with the frames that it gets next.
struct Exit {
    interface: Interface,
    socket: PacketSocket,
    meter: Meter,
    frames: Frames,
    filled: usize,
    refused: u64,
    report: DeviceReport,
}

impl Exit {
    fn open(device: &str) -> Result<Exit> {
        let interface = Interface::find(device)?;
        Ok(Exit {
            // One TX queue, so that the frames keep their order.
            socket: PacketSocket::open(&interface, false)?,
            meter: Meter::start(&interface)?,
            // Space for a VLAN tag: the kernel allows 4 bytes more if the frame has one.
            frames: Frames::new(interface.largest_frame(true)),
            filled: 0,
            refused: 0,
            report: DeviceReport { device: device.to_owned(), ..DeviceReport::default() },
            interface,
        })
    }

    fn flush(&mut self, stop: &AtomicBool) -> Result<u64> {
        let (taken, refused) = self.socket.send_all(&mut self.frames, self.filled, true, stop)?;
        self.report.bytes += (0..taken).map(|slot| self.frames.length(slot) as u64).sum::<u64>();
        self.report.offered += taken as u64;
        self.refused += refused;
        self.filled = 0;
        Ok(refused)
    }

    fn settle(mut self) -> Result<DeviceReport> {
        let divided = self.meter.settle(self.report.offered, self.refused)?;
        self.report.sent = divided.sent;
        self.report.dropped = divided.dropped;
        self.report.unaccounted = divided.unaccounted;
        self.report.others = divided.others;
        Ok(self.report)
    }
}

/// The count of a reason for which a frame is skipped.
type LeftOut = fn(&mut ReplayReport) -> &mut u64;

/// Frames to send, collected in batches. Only one device has frames at a time, so all frames keep their order.
struct Outlet<'a> {
    exits: Vec<Exit>,
    /// The device with frames that wait.
    current: usize,
    sides: Option<Sides>,
    rewrite: Option<&'a Rewrite>,
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

    /// The device of a frame, or the reason why it is skipped.
    fn exit_of(&mut self, frame: &Frame<'_>) -> std::result::Result<usize, LeftOut> {
        if frame.link_type != LinkType::Ethernet {
            return Err(|report| &mut report.not_ethernet);
        }
        let exit = match self.sides.as_mut().map(|sides| sides.of(frame.bytes)) {
            None | Some(Side::Client) => 0,
            Some(Side::Server) => 1,
        };
        // The kernel allows the bytes of a tag for 802.1Q only (net/packet/af_packet.c).
        let tagged = frame.bytes.get(12..14) == Some(&[0x81, 0x00]);
        let most = self.exits[exit].interface.largest_frame(tagged);
        let length = frame.bytes.len();
        if frame.wire_len as usize > most || length > most {
            Err(|report| &mut report.too_large)
        } else if length < frame.wire_len as usize {
            Err(|report| &mut report.cut)
        } else if length < 14 {
            Err(|report| &mut report.too_short)
        } else {
            Ok(exit)
        }
    }

    fn add(&mut self, frame: &Frame<'_>, exit: usize) -> Result<()> {
        if exit != self.current {
            self.flush()?;
            self.current = exit;
        }
        let exit = &mut self.exits[exit];
        let slot = &mut exit.frames.slot(exit.filled)[..frame.bytes.len()];
        slot.copy_from_slice(frame.bytes);
        if let Some(rewrite) = self.rewrite {
            rewrite.apply(slot);
        }
        exit.frames.set_length(exit.filled, frame.bytes.len());
        exit.filled += 1;
        if exit.filled == BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.report.refused += self.exits[self.current].flush(self.stop)?;
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
