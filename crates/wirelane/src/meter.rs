//! Measuring RTP streams in the kernel: which ones, and how they change hands between lanes and a worker
//! (`bpf/streams.h` has the picture).

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

/// The first id of a meter's rules. Ids of other rules are offloaded.
const FIRST_RULE: u32 = 1 << 30;
/// Most packets that are on their way up at a time, of one stream.
const UNDER_WAY: u32 = 1 << 15;

/// Measures RTP streams in the kernel. It is for one worker, which gets all packets.
#[derive(Debug)]
pub struct Meter {
    streams: Arc<Streams>,
    rules: Arc<ActiveRuleset>,
    /// The rules of places that media goes to.
    places: HashMap<(IpAddr, u16), u32>,
    next_rule: u32,
    stopped: bool,
}

/// The two ends of a stream, and its SSRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnds {
    /// Where it comes from.
    pub from: (IpAddr, u16),
    /// Where it goes.
    pub to: (IpAddr, u16),
    /// Synchronisation source.
    pub ssrc: u32,
}

/// A stream that is measured in the kernel, as long as it is nobody else's turn: what [`Meter::open`] gives.
#[derive(Clone, Debug)]
pub struct Hand {
    place: StreamSlot,
    key: StreamKey,
    /// The number of the last packet that was added here.
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
    /// Whether a packet with this tag, or none, is to be added here: lanes touch the stream no more. If not, it has to wait
    /// for one that is.
    pub fn is_next(&self, tag: Option<u32>) -> bool {
        // Before lanes have had it, all that comes is.
        !self.offloaded
            || tag.is_some_and(|tag| (1..=UNDER_WAY).contains(&tag.wrapping_sub(self.number as u32)))
    }

    /// Whether lanes may be adding packets: the statistics are theirs then.
    pub fn is_offloaded(&self) -> bool {
        self.offloaded
    }
}

impl Meter {
    pub(crate) fn new(streams: Arc<Streams>, rules: Arc<ActiveRuleset>) -> Meter {
        Meter { streams, rules, places: HashMap::new(), next_rule: FIRST_RULE, stopped: false }
    }

    /// Whether a rule with this id is a meter's: then a tag is a packet's number in its stream.
    pub fn is_its_rule(id: u32) -> bool {
        id >= FIRST_RULE
    }

    /// The capture has been stopped: rules are changed no more.
    pub fn leave(&mut self) {
        self.stopped = true;
    }

    /// Adds the exact-match rule of a place: what goes there is measured where its stream is, or, if it is for RTCP alone,
    /// delivered. A rule that it has is replaced.
    ///
    /// # Errors
    /// As [`crate::Capture::add_rules`].
    pub fn announce(&mut self, place: (IpAddr, u16), rtcp: bool) -> Result<()> {
        if self.stopped {
            return Ok(());
        }
        self.withdraw(place)?;
        let id = self.next_rule;
        // Two thirds of all ids, after which they begin anew: the first are free by then.
        self.next_rule = self.next_rule.checked_add(1).unwrap_or(FIRST_RULE);
        let action = if rtcp { Action::Pass } else { Action::Measure };
        self.rules.extend(Vec::new(), vec![ExactRule::new(id, fields(place), action)])?;
        self.places.insert(place, id);
        Ok(())
    }

    /// Removes the rule of a place, if it has one.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn withdraw(&mut self, place: (IpAddr, u16)) -> Result<()> {
        if self.places.remove(&place).is_some() && !self.stopped {
            self.rules.remove(&[], &[fields(place)])?;
        }
        Ok(())
    }

    /// Makes a place for a stream in the kernel. Its packets come up until one is given to [`Meter::give`]. `None`: there is
    /// no room for more streams.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(&mut self, ends: &StreamEnds) -> Result<Option<Hand>> {
        let key = ends.key();
        let opened = self.streams.open(&key)?;
        Ok(opened.map(|(place, number)| Hand { place, key, number, offloaded: false }))
    }

    /// What the stream has come to, with packets that did not come up, and how many these are since it was opened. It may
    /// go on meanwhile, unless [`Hand::is_next`] has said that this packet is next.
    pub fn read(&self, hand: &Hand) -> (RtpStream, u64) {
        self.streams.read(hand.place)
    }

    /// What the stream has come to with a packet that [`Hand::is_next`], and its tag: lanes go on, with what comes before
    /// `until_ns` of the kernel's monotonic clock. False: the packet came before lanes knew of the stream, and those that
    /// follow come up.
    pub fn give(&mut self, hand: &mut Hand, rtp: &RtpStream, tag: Option<u32>, until_ns: u64) -> bool {
        let ahead = tag.map(|tag| tag.wrapping_sub(hand.number as u32));
        let Some(ahead) = ahead.filter(|ahead| (1..=UNDER_WAY).contains(ahead)) else { return false };
        hand.number += u64::from(ahead);
        hand.offloaded = true;
        self.streams.give(hand.place, rtp, hand.number, until_ns);
        true
    }

    /// The next packet of the stream is to come up.
    pub fn revoke(&mut self, hand: &Hand) {
        self.streams.revoke(hand.place);
    }

    /// The stream is not measured in the kernel any more: as [`Meter::read`].
    ///
    /// # Errors
    /// What the kernel said, beside it.
    pub fn close(&mut self, hand: &Hand) -> (RtpStream, u64, Result<()>) {
        self.streams.close(hand.place, &hand.key)
    }
}

/// What a place's rule asks.
fn fields(place: (IpAddr, u16)) -> ExactFields {
    ExactFields { dst: Some(place.0), dst_port: Some(place.1), protocol: Some(17), ..ExactFields::default() }
}
