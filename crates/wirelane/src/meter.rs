//! Measuring RTP streams in the kernel: selection of streams, and their handover between lanes and a worker
//! (`bpf/streams.h` has a diagram).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use wirelane_bpf::layout::l3;
use wirelane_bpf::rtp::RtpStream;
use wirelane_bpf::stream::StreamKey;

use crate::active_rules::ActiveRuleset;
use crate::engine::ring::streams::{StreamSlot, Streams};
use crate::error::Result;
use wirelane_rules::{Action, ExactFields, ExactRule};

/// The first id of a meter's rules. Other rules have smaller ids.
const FIRST_RULE: u32 = 1 << 30;
/// Maximum number of packets of one stream that are being delivered at a time.
const UNDER_WAY: u32 = 1 << 15;

/// Measures RTP streams in the kernel. To be used by a single worker, which gets all packets.
#[derive(Debug)]
pub struct Meter {
    streams: Arc<Streams>,
    rules: Arc<ActiveRuleset>,
    /// Rules of announced media destinations.
    places: HashMap<(IpAddr, u16), u32>,
    next_rule: u32,
    stopped: bool,
}

/// The two ends of a stream, and its SSRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnds {
    /// Source address and port.
    pub from: (IpAddr, u16),
    /// Destination address and port.
    pub to: (IpAddr, u16),
    /// Synchronisation source.
    pub ssrc: u32,
}

/// Handle of a stream that can be measured in the kernel, from [`Meter::open`].
#[derive(Clone, Debug)]
pub struct Hand {
    place: StreamSlot,
    key: StreamKey,
    /// The number of the last packet that the worker added.
    number: u64,
    /// Whether lanes may be adding packets.
    offloaded: bool,
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

impl StreamEnds {
    fn key(&self) -> StreamKey {
        StreamKey {
            src: octets(self.from.0),
            dst: octets(self.to.0),
            src_port: self.from.1.to_be(),
            dst_port: self.to.1.to_be(),
            ssrc: self.ssrc,
            l3: u32::from(if self.from.0.is_ipv4() { l3::IPV4 } else { l3::IPV6 }),
        }
    }
}

impl Hand {
    /// Whether the worker is to add a packet with this tag, or without one: lanes no longer touch the stream. If false,
    /// the packet has to wait for a packet for which this is true.
    pub fn is_next(&self, tag: Option<u32>) -> bool {
        // Before the stream is handed to the lanes, the worker adds every packet.
        !self.offloaded
            || tag.is_some_and(|tag| (1..=UNDER_WAY).contains(&tag.wrapping_sub(self.number as u32)))
    }

    /// Whether lanes may be adding packets: then they own the statistics.
    pub fn is_offloaded(&self) -> bool {
        self.offloaded
    }
}

impl Meter {
    pub(crate) fn new(streams: Arc<Streams>, rules: Arc<ActiveRuleset>) -> Meter {
        Meter { streams, rules, places: HashMap::new(), next_rule: FIRST_RULE, stopped: false }
    }

    /// Whether a rule with this id belongs to a meter: then a tag is a packet's number in its stream.
    pub fn is_its_rule(id: u32) -> bool {
        id >= FIRST_RULE
    }

    /// Marks the capture as stopped: rules are not changed any more.
    pub fn leave(&mut self) {
        self.stopped = true;
    }

    /// Adds the exact-match rule of a media destination: its packets are measured where the stream has a slot in the
    /// kernel, or, if it is for RTCP alone, delivered. An earlier rule for the destination is replaced.
    ///
    /// # Errors
    /// As [`crate::Capture::add_rules`].
    pub fn announce(&mut self, place: (IpAddr, u16), rtcp: bool) -> Result<()> {
        if self.stopped {
            return Ok(());
        }
        self.withdraw(place)?;
        let id = self.next_rule;
        // Two thirds of all ids before they wrap: the first ones are free again by then.
        self.next_rule = self.next_rule.checked_add(1).unwrap_or(FIRST_RULE);
        let action = if rtcp { Action::Pass } else { Action::Measure };
        self.rules.extend(Vec::new(), vec![ExactRule::new(id, fields(place), action)])?;
        self.places.insert(place, id);
        Ok(())
    }

    /// Removes the rule of a media destination, if it has one.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub fn withdraw(&mut self, place: (IpAddr, u16)) -> Result<()> {
        if self.places.remove(&place).is_some() && !self.stopped {
            self.rules.remove(&[], &[fields(place)])?;
        }
        Ok(())
    }

    /// Allocates a slot for a stream in the kernel. Its packets are delivered until one is given to [`Meter::give`].
    /// `None`: no slot is free.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub fn open(&mut self, ends: &StreamEnds) -> Result<Option<Hand>> {
        let key = ends.key();
        let opened = self.streams.open(&key)?;
        Ok(opened.map(|(place, number)| Hand { place, key, number, offloaded: false }))
    }

    /// The stream's state, including packets that stayed in the kernel, and their number since it was opened. Lanes may
    /// change it meanwhile, unless [`Hand::is_next`] is true for the current packet.
    pub fn read(&self, hand: &Hand) -> (RtpStream, u64) {
        self.streams.read(hand.place)
    }

    /// Hands the stream's state after a packet with [`Hand::is_next`], and its tag, over to the lanes; they continue
    /// with packets from before `until_ns` of the kernel's monotonic clock. False: the packet came before lanes knew of
    /// the stream, and the following packets are delivered.
    pub fn give(&mut self, hand: &mut Hand, rtp: &RtpStream, tag: Option<u32>, until_ns: u64) -> bool {
        let ahead = tag.map(|tag| tag.wrapping_sub(hand.number as u32));
        let Some(ahead) = ahead.filter(|ahead| (1..=UNDER_WAY).contains(ahead)) else { return false };
        hand.number += u64::from(ahead);
        hand.offloaded = true;
        self.streams.give(hand.place, rtp, hand.number, until_ns);
        true
    }

    /// Requests the delivery of the stream's next packet.
    pub fn revoke(&mut self, hand: &Hand) {
        self.streams.revoke(hand.place);
    }

    /// Stops measuring the stream in the kernel; returns its final state, as [`Meter::read`].
    ///
    /// # Errors
    /// The error that the kernel returned, beside the state.
    pub fn close(&mut self, hand: &Hand) -> (RtpStream, u64, Result<()>) {
        self.streams.close(hand.place, &hand.key)
    }
}

/// Match fields of the rule for a media destination.
fn fields(place: (IpAddr, u16)) -> ExactFields {
    ExactFields { dst: Some(place.0), dst_port: Some(place.1), protocol: Some(17), ..ExactFields::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_a_meter_have_the_shape_by_which_lanes_look_streams_up_first() {
        for address in ["192.0.2.1", "2001:db8::1"] {
            let place = (address.parse().unwrap(), 5004);
            assert_eq!(fields(place).shape(), crate::active_rules::OF_A_PLACE);
        }
    }
}
