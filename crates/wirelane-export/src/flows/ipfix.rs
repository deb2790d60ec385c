//! IPFIX (RFC 7011), with both directions in one record (RFC 5103) if requested.

use wirelane_analysis::flows::{FlowRecord, applications};
use wirelane_bpf::layout::l3;

use super::encode::{Context, Encoder, ExportSettings, Message, Refresh, Sets};
use super::fields::{
    self, APPLICATION_NAME, CISCO, Field, NTOP, Values, application_id, enterprise, field, ie, integer,
    reverse,
};

const HEADER: usize = 16;
const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;
const IPV4: u16 = 256;
const IPV6: u16 = 257;
const NO_IP: u16 = 258;
/// Offset from the number of a one-way template to that of the template of both directions.
const BOTH: u16 = 4;
const OPTIONS: u16 = 300;
const APPLICATIONS: u16 = 301;
const SELECTOR: u16 = 302;

/// Fields of all flows. Milliseconds are exported besides nanoseconds, which most collectors do not read.
const COMMON: [Field; 14] = [
    field(ie::OCTETS, 8),
    field(ie::PACKETS, 8),
    field(ie::LAYER2_OCTETS, 8),
    field(ie::START_MS, 8),
    field(ie::END_MS, 8),
    field(ie::START_NS, 8),
    field(ie::END_NS, 8),
    field(ie::INGRESS_INTERFACE, 4),
    field(ie::EGRESS_INTERFACE, 4),
    field(ie::OBSERVATION_POINT, 8),
    field(ie::DIRECTION, 1),
    field(ie::VLAN, 2),
    field(ie::MPLS_TOP, 3),
    field(ie::END_REASON, 1),
];

const OF_IP: [Field; 15] = [
    field(ie::SRC_PORT, 2),
    field(ie::DST_PORT, 2),
    field(ie::PROTOCOL, 1),
    field(ie::TOS, 1),
    field(ie::TCP_FLAGS, 2),
    field(ie::MIN_TTL, 1),
    field(ie::MAX_TTL, 1),
    field(ie::MIN_LENGTH, 4),
    field(ie::MAX_LENGTH, 4),
    field(ie::TCP_SEQUENCE, 4),
    field(ie::IP_VERSION, 1),
    field(ie::APPLICATION_ID, 4),
    enterprise(CISCO, ie::ROUND_TRIP, 4),
    enterprise(NTOP, ie::RETRANSMITTED, 4),
    enterprise(NTOP, ie::REORDERED, 4),
];

/// Fields that are added if addresses are those inside tunnels.
const OF_TUNNELS: [Field; 2] = [enterprise(NTOP, ie::TUNNEL_ID, 4), field(ie::LAYER2_SEGMENT, 8)];

const OF_REVERSE: [Field; 9] = [
    reverse(ie::OCTETS, 8),
    reverse(ie::PACKETS, 8),
    reverse(ie::LAYER2_OCTETS, 8),
    reverse(ie::START_MS, 8),
    reverse(ie::END_MS, 8),
    reverse(ie::TCP_FLAGS, 2),
    enterprise(NTOP, ie::RETRANSMITTED_BACK, 4),
    enterprise(NTOP, ie::REORDERED_BACK, 4),
    field(ie::BIFLOW_DIRECTION, 1),
];

/// Options of the observation domain, which is the first field: the sampling interval, and the exporter's counters.
const OPTION_FIELDS: [Field; 9] = [
    field(ie::OBSERVATION_DOMAIN, 4),
    field(ie::SAMPLING_INTERVAL, 4),
    field(ie::SAMPLING_ALGORITHM, 1),
    field(ie::EXPORTED_MESSAGES, 8),
    field(ie::EXPORTED_FLOWS, 8),
    field(ie::EXPORTED_OCTETS, 8),
    field(ie::NOT_SENT_FLOWS, 8),
    field(ie::NOT_SENT_PACKETS, 8),
    field(ie::NOT_SENT_OCTETS, 8),
];

/// Packet selection (RFC 5477), by the selector, which is the first field. Separate from the sampling interval above,
/// and after it: goflow2 2.2 takes the first number that it finds, and would take this record's packet count for the
/// interval.
const SELECTOR_FIELDS: [Field; 4] = [
    field(ie::SELECTOR_ID, 4),
    field(ie::SELECTOR_ALGORITHM, 2),
    field(ie::SAMPLED_PACKETS, 4),
    field(ie::SAMPLING_SPACE, 4),
];

/// Names of applications (RFC 6759): the first field is the scope. Fixed-length, because not every collector reads
/// variable lengths in options.
const APPLICATION_FIELDS: [Field; 2] =
    [field(ie::APPLICATION_ID, 4), field(ie::APPLICATION_NAME, APPLICATION_NAME)];

/// The fields of a flow template.
fn fields_of(template: u16, inner: bool) -> Vec<Field> {
    let tunnels = if inner { &OF_TUNNELS[..] } else { &[] };
    let v4 = [field(ie::SRC_IPV4, 4), field(ie::DST_IPV4, 4), field(ie::ICMP_IPV4, 2)];
    let v6 = [field(ie::SRC_IPV6, 16), field(ie::DST_IPV6, 16), field(ie::ICMP_IPV6, 2)];
    match template {
        IPV4 => [&v4[..], &OF_IP, tunnels, &COMMON].concat(),
        IPV6 => [&v6[..], &OF_IP, tunnels, &COMMON].concat(),
        NO_IP => [&[field(ie::ETHERNET_TYPE, 2)][..], &COMMON].concat(),
        both => [&fields_of(both - BOTH, inner)[..], &OF_REVERSE].concat(),
    }
}

/// Encodes IPFIX messages.
pub(super) struct Ipfix {
    sets: Sets,
    refresh: Refresh,
    templates: Vec<(u16, Vec<Field>)>,
    /// Number of data records before the current message.
    sequence: u32,
    record: Vec<u8>,
}

impl Ipfix {
    /// For messages of this size; `once`: templates are sent only at the start, and with `preamble` not together with
    /// flows, but only in [`Encoder::preamble`].
    pub fn new(most: usize, once: bool, preamble: bool, settings: &ExportSettings) -> Ipfix {
        let ids: &[u16] = if settings.biflow {
            &[IPV4, IPV6, NO_IP, IPV4 + BOTH, IPV6 + BOTH]
        } else {
            &[IPV4, IPV6, NO_IP]
        };
        let templates = ids.iter().map(|id| (*id, fields_of(*id, settings.inner))).collect();
        let mut refresh = Refresh::new(once);
        if preamble {
            refresh.done();
        }
        Ipfix { sets: Sets::new(HEADER, most), refresh, templates, sequence: 0, record: Vec::new() }
    }

    /// Adds the templates, and the option records, to the message.
    fn describe(&mut self, context: &Context<'_>, out: &mut Vec<Message>) {
        let mut described: Vec<(u16, Vec<u8>)> = Vec::new();
        for (id, fields) in &self.templates {
            let mut template = id.to_be_bytes().to_vec();
            template.extend((fields.len() as u16).to_be_bytes());
            fields::specifiers(&mut template, fields);
            described.push((TEMPLATES, template));
        }
        let of_options = [
            (OPTIONS, &OPTION_FIELDS[..]),
            (SELECTOR, &SELECTOR_FIELDS),
            (APPLICATIONS, &APPLICATION_FIELDS),
        ];
        for (id, fields) in of_options {
            let mut template = id.to_be_bytes().to_vec();
            // One of the fields is the scope.
            template.extend((fields.len() as u16).to_be_bytes());
            template.extend(1u16.to_be_bytes());
            fields::specifiers(&mut template, fields);
            described.push((OPTIONS_TEMPLATES, template));
        }
        let (settings, counts) = (context.settings, context.counts);
        let every = settings.sampling;
        let sampling = [settings.domain, every, 1].map(u64::from);
        let statistics = [
            counts.messages,
            counts.flows,
            counts.bytes,
            counts.unsent_flows + counts.not_exportable,
            counts.unsent_packets,
            counts.unsent_bytes,
        ];
        let mut record = Vec::new();
        for (field, value) in OPTION_FIELDS.iter().zip(sampling.into_iter().chain(statistics)) {
            integer(&mut record, value, field.bytes);
        }
        described.push((OPTIONS, record));
        // Systematic count-based sampling: one packet, then a gap.
        let mut record = Vec::new();
        for (field, value) in SELECTOR_FIELDS.iter().zip([1, 1, 1, every - 1]) {
            integer(&mut record, value.into(), field.bytes);
        }
        described.push((SELECTOR, record));
        for (number, name) in std::iter::once((0, "Unknown")).chain(applications()) {
            let mut record = application_id(number).to_be_bytes().to_vec();
            record.extend(name.as_bytes());
            record.resize(4 + usize::from(APPLICATION_NAME), 0);
            described.push((APPLICATIONS, record));
        }
        for (set, record) in described {
            if set == OPTIONS_TEMPLATES {
                self.sets.separate();
            }
            if !self.sets.fits(set, record.len()) {
                self.finish(context, out);
            }
            self.sets.put(set, &record);
        }
    }

    fn finish(&mut self, context: &Context<'_>, out: &mut Vec<Message>) {
        if self.sets.is_empty() {
            return;
        }
        let seconds = (context.now_ns / 1_000_000_000) as u32;
        out.push(self.sets.ipfix(seconds, &mut self.sequence, context.settings.domain));
    }
}

impl Encoder for Ipfix {
    fn flow(&mut self, flow: &FlowRecord, context: &Context<'_>, out: &mut Vec<Message>) -> bool {
        let both = if flow.reverse.is_some() { BOTH } else { 0 };
        let set = match flow.key.l3 {
            l3::IPV4 => IPV4 + both,
            l3::IPV6 => IPV6 + both,
            _ => NO_IP,
        };
        let Some(at) = self.templates.iter().position(|(id, _)| *id == set) else { return false };
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        let interfaces = fields::interfaces(flow, context.naming.index(flow));
        let values = Values { flow, interfaces, boot_ms: 0 };
        values.record(&mut record, &self.templates[at].1);
        if !self.sets.fits(set, record.len()) {
            self.finish(context, out);
        }
        if self.sets.is_empty() && self.refresh.is_due(context.settings.refresh) {
            let before = out.len();
            self.describe(context, out);
            if self.refresh.is_alone() {
                self.finish(context, out);
                out[before..].iter_mut().for_each(|message| message.settles = true);
            }
            if !self.sets.fits(set, record.len()) {
                self.finish(context, out);
            }
        }
        self.sets.put(set, &record);
        self.sets.count(flow);
        self.record = record;
        true
    }

    fn end(&mut self, context: &Context<'_>, out: &mut Vec<Message>) {
        self.finish(context, out);
    }

    fn preamble(&mut self, context: &Context<'_>) -> Option<Message> {
        // The current message continues after the preamble.
        let before = std::mem::replace(&mut self.sets, Sets::new(HEADER, usize::from(u16::MAX)));
        let mut out = Vec::new();
        self.describe(context, &mut out);
        self.finish(context, &mut out);
        self.sets = before;
        out.pop()
    }
}
