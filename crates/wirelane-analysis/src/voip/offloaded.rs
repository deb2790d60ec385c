//! Streams of calls that are measured in the kernel ([`wirelane::Meter`]): the same statistics by the same code.
//! Ownership of a stream alternates between kernel and user space. Packets that are delivered are added here; in
//! between, lanes add the packets that they do not deliver.

use wirelane::{Hand, Meter, Record, StreamEnds};
use wirelane_bpf::rtp::{RtpPacket, RtpStream};

use super::media::Endpoint;
use super::monitor::Monitor;
use super::stream::{MediaAddress, Stream};

/// Maximum packets of one stream that wait for user space to own it; above this number the stream stays in user space.
const MOST_HELD: usize = 64;

/// State of a stream that is measured in the kernel.
#[derive(Clone, Debug)]
pub(super) struct Offloaded {
    hand: Hand,
    /// UTC minus the kernel's monotonic clock, for all packets of the stream, in nanoseconds.
    shift_ns: i64,
    /// Packets that lanes added without delivering them, up to the last reading.
    taken: u64,
    /// Packets that were delivered while lanes owned the stream, with their times; `None`: one with a broken header.
    held: Vec<(Option<RtpPacket>, u64)>,
}

/// Arrival of the current packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Time on the kernel's monotonic clock.
    steady_ns: u64,
    tag: Option<u32>,
}

/// Handle of the kernel's measurement, and the current packet.
#[derive(Debug)]
pub(super) struct Kernel {
    meter: Meter,
    /// `None`: the current packet did not pass through lanes.
    arrival: Option<Arrival>,
}

/// Statistics with all times shifted.
fn shifted(mut rtp: RtpStream, by_ns: i64) -> RtpStream {
    for time in [&mut rtp.first_ns, &mut rtp.last_ns, &mut rtp.seq_ns] {
        *time = time.wrapping_add_signed(by_ns);
    }
    rtp
}

impl Offloaded {
    /// Adopts the statistics that lanes left; the meaning of payload types is taken from here. Returns the number of
    /// packets that lanes have added since the last reading.
    fn learn(&mut self, stream: &mut Stream, (rtp, taken): (RtpStream, u64)) -> u64 {
        let payload = stream.rtp.payload;
        stream.rtp = RtpStream { payload, ..shifted(rtp, self.shift_ns) };
        let more = taken - self.taken;
        self.taken = taken;
        more
    }

    /// Adds the held packets.
    fn release(&mut self, stream: &mut Stream) {
        for (packet, ts_ns) in std::mem::take(&mut self.held) {
            match packet {
                Some(packet) => stream.take(&packet, ts_ns),
                None => stream.rtp.malformed += 1,
            }
        }
    }
}

impl Monitor {
    /// Enables measurement in the kernel. Call before the first record.
    pub fn measure_offloaded(&mut self, meter: Meter) {
        self.kernel = Some(Kernel { meter, arrival: None });
    }

    /// Makes a record the current packet.
    pub(super) fn arrives(&mut self, record: &Record<'_>) {
        if let Some(kernel) = &mut self.kernel {
            let tag = record.tag().filter(|_| record.rule().is_some_and(Meter::is_its_rule));
            kernel.arrival = Some(Arrival { steady_ns: record.header().ts_ns, tag });
        }
    }

    /// A place becomes one where media is measured, or one for RTCP alone.
    pub(super) fn rule(&mut self, place: MediaAddress, endpoint: Endpoint, before: Option<Endpoint>) {
        let Some(kernel) =
            self.kernel.as_mut().filter(|_| before.is_none_or(|old| old.rtcp != endpoint.rtcp))
        else {
            return;
        };
        if let Err(e) = kernel.meter.announce(place, endpoint.rtcp) {
            // Its packets are delivered and measured here.
            self.counts.places_without_rule += 1;
            if self.counts.places_without_rule == 1 {
                tracing::warn!("media is measured in user space where it has no rule: {e}");
            }
        }
    }

    /// A place is nobody's any more.
    pub(super) fn unrule(&mut self, place: MediaAddress) {
        if let Some(kernel) = &mut self.kernel
            && let Err(e) = kernel.meter.withdraw(place)
        {
            tracing::warn!("{e}");
        }
    }

    /// Removes all rules, after the capture has stopped.
    pub(super) fn leave_rules(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.meter.leave();
        }
    }

    /// Whether a packet can be added to its stream now. If so, user space owns the statistics, and the result is the
    /// packet's time on the stream's clock; otherwise the packet is held. `packet` is `None` if the header is broken.
    pub(super) fn takes_turn(&mut self, at: u32, packet: Option<&RtpPacket>, ts_ns: u64) -> Option<u64> {
        let (Some(kernel), Some(stream)) = (&mut self.kernel, self.streams.get_mut(at)) else {
            return Some(ts_ns);
        };
        let Some(mut offloaded) = stream.offloaded.take() else { return Some(ts_ns) };
        let arrival = kernel.arrival;
        let ts_ns =
            arrival.map_or(ts_ns, |arrival| arrival.steady_ns.wrapping_add_signed(offloaded.shift_ns));
        if offloaded.hand.is_next(arrival.and_then(|arrival| arrival.tag)) {
            if offloaded.hand.is_offloaded() {
                let more = offloaded.learn(stream, kernel.meter.read(&offloaded.hand));
                self.counts.rtp_packets += more;
                self.counts.rtp_absorbed += more;
            }
            offloaded.release(stream);
            stream.offloaded = Some(offloaded);
            return Some(ts_ns);
        }
        offloaded.held.push((packet.copied(), ts_ns));
        self.counts.rtp_held += 1;
        if offloaded.held.len() < MOST_HELD {
            kernel.meter.revoke(&offloaded.hand);
            stream.offloaded = Some(offloaded);
        } else {
            // Lanes do not return ownership: the rule of the stream is gone.
            stream.offloaded = Some(offloaded);
            self.close_offloaded(at);
        }
        None
    }

    /// Returns ownership to lanes after a packet was added to a stream.
    pub(super) fn hand_down(&mut self, at: u32, ts_ns: u64) {
        let (Some(kernel), Some(stream)) = (&mut self.kernel, self.streams.get_mut(at)) else { return };
        let Some(arrival) = kernel.arrival else { return };
        let closes_at_ns = stream.closes_at_ns();
        if let Some(offloaded) = &mut stream.offloaded {
            let until_ns = closes_at_ns.wrapping_add_signed(-offloaded.shift_ns);
            let rtp = shifted(stream.rtp, -offloaded.shift_ns);
            kernel.meter.give(&mut offloaded.hand, &rtp, arrival.tag, until_ns);
            return;
        }
        if stream.call.is_none() || std::mem::replace(&mut stream.stays_here, true) {
            return;
        }
        let ends = StreamEnds { from: stream.from, to: stream.to, ssrc: stream.rtp.ssrc };
        match kernel.meter.open(&ends) {
            Ok(Some(hand)) => {
                let shift_ns = ts_ns.wrapping_sub(arrival.steady_ns) as i64;
                stream.offloaded = Some(Box::new(Offloaded { hand, shift_ns, taken: 0, held: Vec::new() }));
                self.counts.streams_offloaded += 1;
            }
            Ok(None) => self.counts.streams_without_room += 1,
            Err(e) => {
                self.counts.streams_without_room += 1;
                tracing::warn!("{e}");
            }
        }
    }

    /// Revokes ownership, so that lanes learn changed payload types.
    pub(super) fn relearn(&mut self, at: u32) {
        if let (Some(kernel), Some(stream)) = (&mut self.kernel, self.streams.get(at))
            && let Some(offloaded) = &stream.offloaded
        {
            kernel.meter.revoke(&offloaded.hand);
        }
    }

    /// Updates the statistics of a stream from the kernel. Lanes keep ownership.
    pub(super) fn look_offloaded(&mut self, at: u32) {
        let (Some(kernel), Some(stream)) = (&self.kernel, self.streams.get_mut(at)) else { return };
        let Some(mut offloaded) = stream.offloaded.take() else { return };
        if offloaded.hand.is_offloaded() {
            let more = offloaded.learn(stream, kernel.meter.read(&offloaded.hand));
            self.counts.rtp_packets += more;
            self.counts.rtp_absorbed += more;
        }
        stream.offloaded = Some(offloaded);
    }

    /// Ends the measurement of a stream in the kernel.
    pub(super) fn close_offloaded(&mut self, at: u32) {
        let (Some(kernel), Some(stream)) = (&mut self.kernel, self.streams.get_mut(at)) else { return };
        let Some(mut offloaded) = stream.offloaded.take() else { return };
        let (rtp, taken, closed) = kernel.meter.close(&offloaded.hand);
        if let Err(e) = closed {
            tracing::warn!("{e}");
        }
        if offloaded.hand.is_offloaded() {
            let more = offloaded.learn(stream, (rtp, taken));
            self.counts.rtp_packets += more;
            self.counts.rtp_absorbed += more;
        }
        offloaded.release(stream);
    }
}
