//! A record of a batch: the application's view.

use wirelane_bpf::flow_cache::FlowPart;
use wirelane_bpf::http::SkippedBytes;
use wirelane_bpf::layout::{
    FOUND_MORE, FOUND_MORE_HITS, Found, Hits, Ip, LinkType, NO_OFFSET, RecordHeader, Tail, flags, record_kind,
};

use crate::application::{self, Application};
use crate::headers::Headers;
use crate::settings::Clock;

/// The bytes of a [`Found`].
pub(crate) type FoundBytes = [u8; size_of::<Found>()];
/// The bytes of a [`Hits`].
pub(crate) type HitBytes = [u8; size_of::<Hits>()];

/// The number at this place of a [`Found`].
pub(crate) fn found_id(found: &FoundBytes, place: usize) -> u32 {
    words(found).nth(place).unwrap_or(0)
}

/// The numbers in these bytes.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + use<'_> {
    bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word))
}

/// Number of the device of records ([`Record::device`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceNumber {
    /// The number, or that of slot 0.
    first: u16,
    /// Distance between the numbers of two slots; 0: the header has a queue, not a slot.
    step: u16,
}

impl DeviceNumber {
    /// The numbers of the slots of a program that any number of devices have (`wl_slots`).
    pub(crate) fn of_slots(first: u16, step: u16) -> DeviceNumber {
        DeviceNumber { first, step }
    }

    /// The device and the RX queue of a record with this queue or slot. Devices in slots have one queue.
    #[inline]
    pub(crate) fn place(self, queue: u16) -> (u16, u16) {
        let device = self.first.wrapping_add(self.step.wrapping_mul(queue));
        (device, if self.step == 0 { queue } else { 0 })
    }
}

impl From<u16> for DeviceNumber {
    fn from(device: u16) -> DeviceNumber {
        DeviceNumber { first: device, step: 0 }
    }
}

/// One record of a batch: a header and the bytes after it, both read in place.
///
/// Its layout is the same for every engine ([`RecordHeader`]), so an application does not depend on the engine.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    header: &'a RecordHeader,
    data: &'a [u8],
    device: u16,
    queue: u16,
    tag: Option<u32>,
    tail: Tail,
    found: Option<&'a FoundBytes>,
    note: Option<&'a [u8]>,
    hits: Option<&'a HitBytes>,
    digest: Option<&'a Ip>,
    flow: Option<&'a FlowPart>,
    http: Option<&'a SkippedBytes>,
    plugin: Option<&'a [u8]>,
}

impl<'a> Record<'a> {
    /// A record of the device with this index in its capture.
    pub(crate) fn new(
        header: &'a RecordHeader,
        data: &'a [u8],
        device: impl Into<DeviceNumber>,
    ) -> Record<'a> {
        let (device, queue) = device.into().place(header.queue);
        Record {
            header,
            data,
            device,
            queue,
            tag: None,
            tail: Tail::default(),
            found: None,
            note: None,
            hits: None,
            digest: None,
            flow: None,
            http: None,
            plugin: None,
        }
    }

    /// A part of a flow of this device.
    pub(crate) fn of_flow(
        header: &'a RecordHeader,
        flow: &'a FlowPart,
        device: impl Into<DeviceNumber>,
    ) -> Record<'a> {
        // The header has the queue of the packet that ended the part.
        let (device, queue) = device.into().place(flow.flow.queue);
        Record { flow: Some(flow), device, queue, ..Record::new(header, &[], device) }
    }

    /// A report of skipped bytes of HTTP on this device.
    pub(crate) fn of_http(
        header: &'a RecordHeader,
        http: &'a SkippedBytes,
        device: impl Into<DeviceNumber>,
    ) -> Record<'a> {
        Record { http: Some(http), ..Record::new(header, &[], device) }
    }

    /// A record of a plug-in on this device.
    pub(crate) fn of_plugin(
        header: &'a RecordHeader,
        record: &'a [u8],
        device: impl Into<DeviceNumber>,
    ) -> Record<'a> {
        Record { plugin: Some(record), ..Record::new(header, &[], device) }
    }

    /// The digest of a packet of this device.
    pub(crate) fn of_digest(
        header: &'a RecordHeader,
        digest: &'a Ip,
        device: impl Into<DeviceNumber>,
    ) -> Record<'a> {
        Record { digest: Some(digest), ..Record::new(header, &[], device) }
    }

    /// Attaches the rule results: a tag, and the patterns in the payload.
    pub(crate) fn said(mut self, tag: Option<u32>, found: Option<&'a FoundBytes>) -> Record<'a> {
        (self.tag, self.found) = (tag, found);
        self
    }

    /// Attaches the segments of an aggregate.
    pub(crate) fn aggregated(mut self, tail: Tail) -> Record<'a> {
        self.tail = tail;
        self
    }

    /// Packets on the wire: more than one where the record is an aggregate of GRO or GSO.
    pub fn segments(&self) -> u32 {
        self.tail.segments(self.header.wire_len)
    }

    /// Bytes on the wire, with the headers of all segments.
    pub fn wire_bytes(&self) -> u64 {
        self.tail.wire_bytes(self.header.wire_len)
    }

    /// Segment sizes of an aggregate: the payload of each of its packets except the last, and the bytes before the
    /// payload, which each of its packets has; zeros otherwise.
    pub fn segment_size(&self) -> (u16, u16) {
        (self.tail.segment_size, self.tail.headers)
    }

    /// Attaches a plug-in's note.
    pub(crate) fn noted(mut self, note: Option<&'a [u8]>) -> Record<'a> {
        self.note = note;
        self
    }

    /// Attaches the rules that the packet hit, where it hit several.
    pub(crate) fn hit(mut self, hits: Option<&'a HitBytes>) -> Record<'a> {
        self.hits = hits;
        self
    }

    /// The numbers in the record's [`wirelane_bpf::layout::Found`].
    fn found(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.found.into_iter().flat_map(|found| words(found))
    }

    /// The rule that let the packet pass, or if none did, the first that it hit; `None`: it hit no rule. See
    /// [`crate::Builder::rules`].
    pub fn rule(&self) -> Option<u32> {
        (self.header.rule_id != 0).then_some(self.header.rule_id)
    }

    /// The ids of the rules that the packet hit, in the order of their evaluation, up to 16. A rule of which sampling
    /// refused the packet is hit, too.
    pub fn rules(&self) -> impl Iterator<Item = u32> + use<'a> {
        let alone = self.rule().filter(|_| self.hits.is_none());
        let several = self.hits.into_iter().flat_map(|hits| words(hits)).take_while(|id| *id != 0);
        several.chain(alone)
    }

    /// Whether the packet hit more rules than [`Record::rules`] returns, or was not compared with all because of the limit.
    pub fn has_more_rules(&self) -> bool {
        self.hits.is_some() && self.found().nth(2).is_some_and(|id| id & FOUND_MORE_HITS != 0)
    }

    /// The tag that a rule has assigned.
    pub fn tag(&self) -> Option<u32> {
        self.tag
    }

    /// The ids of the patterns found in the payload, in order: up to four of them. The payload is searched only where
    /// all other conditions of a rule with patterns match ([`crate::rules::Patterns`]).
    pub fn patterns(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.found().map(|id| id & !FOUND_MORE).take_while(|id| *id != 0)
    }

    /// Whether the payload has more patterns than [`Record::patterns`] returns.
    pub fn has_more_patterns(&self) -> bool {
        self.found().last().is_some_and(|id| id & FOUND_MORE != 0)
    }

    /// The note of a plug-in, up to 32 bytes that the plug-in defines: if several plug-ins match the packet, the note
    /// of the first one ([`crate::Builder::plugin`]).
    pub fn note(&self) -> Option<&'a [u8]> {
        self.note
    }

    /// Whether the payload was searched only in part: it exceeds the search limit, has too many patterns, or was cut
    /// before; or a plug-in was not called, as it has been switched off.
    pub fn is_half_searched(&self) -> bool {
        self.header.flags & flags::HALF_SEARCHED != 0
    }

    /// The packet's headers, where a rule has delivered them instead of its bytes ([`crate::rules::Action::Digest`]).
    /// Offsets are those in the packet.
    pub fn digest(&self) -> Option<&'a Ip> {
        self.digest
    }

    /// Whether the packet was also measured in the kernel ([`crate::Builder::deliver_measured`]).
    pub fn is_measured(&self) -> bool {
        self.header.kind == record_kind::MEASURED
    }

    /// The part of a flow, where the record is one and not a packet ([`crate::Builder::kernel_flows`]). Its times are
    /// those of [`crate::Timebase::steady_ns`], and the device of its key is 0: use [`Record::device`].
    pub fn flow(&self) -> Option<&'a FlowPart> {
        self.flow
    }

    /// Skipped bytes of an HTTP connection before its next packet, where the record is such a report and not a packet
    /// ([`crate::Builder::kernel_http`]). Its time is that of [`crate::Timebase::steady_ns`].
    pub fn http(&self) -> Option<&'a SkippedBytes> {
        self.http
    }

    /// A record that a plug-in has written (`plugin_record()`), where this is one and not a packet
    /// ([`crate::Builder::plugin_records`]): the plug-in's index in the order of [`crate::Builder::plugin`], and the bytes.
    pub fn plugin(&self) -> Option<(usize, &'a [u8])> {
        self.plugin.map(|record| (self.header.rule_id as usize, record))
    }

    /// Addresses, ports and protocol of the packet, without parsing it again. `None` where there is no network layer,
    /// or its addresses were not captured.
    pub fn headers(&self) -> Option<Headers> {
        match self.digest {
            Some(digest) => Headers::of_digest(digest),
            None => Headers::of_packet(self.header, self.data),
        }
    }

    /// The header with all fields from the kernel side.
    pub fn header(&self) -> &'a RecordHeader {
        self.header
    }

    /// The captured bytes, from the link layer on; empty for a digest.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Length of the packet on the wire, in bytes.
    pub fn wire_len(&self) -> u32 {
        self.header.wire_len
    }

    /// Index of the device (or file interface) in [`crate::Capture::devices`].
    pub fn device(&self) -> usize {
        usize::from(self.device)
    }

    /// RX queue of the packet.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Link type, which defines the first byte of [`Record::data`].
    pub fn link_type(&self) -> LinkType {
        LinkType::from_code(self.header.link)
    }

    /// The bytes after the transport header, where one was found and captured.
    pub fn payload(&self) -> Option<&'a [u8]> {
        match self.header.payload_off {
            NO_OFFSET => None,
            offset => self.data.get(usize::from(offset)..),
        }
    }

    /// The message of HTTP, SIP or RTP that begins in the payload, with its fields. Only this packet is read: a payload
    /// that continues a message has none.
    pub fn application(&self) -> Option<Application<'a>> {
        match self.header.payload_off {
            NO_OFFSET => None,
            offset => application::of(self.data, usize::from(offset), self.header.proto),
        }
    }

    /// Source of the timestamp.
    pub fn clock(&self) -> Clock {
        match self.header.flags & (flags::HW_CLOCK | flags::BATCH_CLOCK) {
            0 => Clock::Packet,
            flags::BATCH_CLOCK => Clock::Batch,
            _ => Clock::Card,
        }
    }

    /// Whether the packet was transmitted.
    pub fn is_egress(&self) -> bool {
        self.header.flags & flags::EGRESS != 0
    }

    /// Whether the packet was cut by the snap length or by a rule that truncates, or is a digest.
    pub fn is_snapped(&self) -> bool {
        self.header.flags & flags::SNAPPED != 0
    }
}
