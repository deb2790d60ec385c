//! NetFlow version 9 (RFC 3954).

use wirelane_analysis::flows::{FlowRecord, applications};
use wirelane_bpf::layout::l3;

use super::encode::{Context, Encoder, ExportSettings, Message, Refresh, Sets, one_way};
use super::fields::{self, APPLICATION_NAME, Field, Values, application_id, field, ie, integer};

const HEADER: usize = 20;
const TEMPLATES: u16 = 0;
const OPTIONS_TEMPLATES: u16 = 1;
const IPV4: u16 = 256;
const IPV6: u16 = 257;
const OPTIONS: u16 = 300;
const APPLICATIONS: u16 = 301;
/// The exporter as the scope of options.
const SCOPE_SYSTEM: u16 = 1;

const COMMON: [Field; 25] = [
    field(ie::SRC_PORT, 2),
    field(ie::DST_PORT, 2),
    field(ie::PROTOCOL, 1),
    field(ie::TOS, 1),
    field(ie::TCP_FLAGS, 1),
    field(ie::DIRECTION, 1),
    field(ie::OCTETS, 8),
    field(ie::PACKETS, 8),
    field(ie::FIRST_SWITCHED, 4),
    field(ie::LAST_SWITCHED, 4),
    field(ie::INGRESS_INTERFACE, 4),
    field(ie::EGRESS_INTERFACE, 4),
    field(ie::VLAN, 2),
    field(ie::MPLS_TOP, 3),
    field(ie::MIN_TTL, 1),
    field(ie::MAX_TTL, 1),
    field(ie::MIN_LENGTH, 2),
    field(ie::MAX_LENGTH, 2),
    field(ie::IP_VERSION, 1),
    field(ie::END_REASON, 1),
    field(ie::OBSERVATION_POINT, 8),
    field(ie::APPLICATION_ID, 4),
    field(ie::ROUND_TRIP_9, 4),
    field(ie::RETRANSMITTED_9, 4),
    field(ie::REORDERED_9, 4),
];

/// Fields that are added if addresses are those inside tunnels.
const OF_TUNNELS: [Field; 2] = [field(ie::TUNNEL_ID_9, 4), field(ie::LAYER2_SEGMENT, 8)];

/// The names of applications (RFC 6759).
const APPLICATION_FIELDS: [Field; 2] =
    [field(ie::APPLICATION_ID, 4), field(ie::APPLICATION_NAME, APPLICATION_NAME)];

const OPTION_FIELDS: [Field; 5] = [
    field(ie::SAMPLING_INTERVAL, 4),
    field(ie::SAMPLING_ALGORITHM, 1),
    field(ie::EXPORTED_OCTETS, 8),
    field(ie::EXPORTED_MESSAGES, 8),
    field(ie::EXPORTED_FLOWS, 8),
];

/// Encodes NetFlow 9 messages.
pub(super) struct Netflow9 {
    sets: Sets,
    refresh: Refresh,
    templates: [Vec<Field>; 2],
    messages: u32,
    /// Reference of the times in UTC milliseconds; known with the first flow.
    boot_ms: Option<u64>,
}

impl Netflow9 {
    /// For messages of this size.
    pub fn new(most: usize, settings: &ExportSettings) -> Netflow9 {
        let tunnels = if settings.inner { &OF_TUNNELS[..] } else { &[] };
        let v4 = [field(ie::SRC_IPV4, 4), field(ie::DST_IPV4, 4), field(ie::ICMP_IPV4, 2)];
        let v6 = [field(ie::SRC_IPV6, 16), field(ie::DST_IPV6, 16), field(ie::ICMP_IPV4, 2)];
        Netflow9 {
            sets: Sets::new(HEADER, most),
            refresh: Refresh::new(false),
            templates: [[&v4[..], &COMMON, tunnels].concat(), [&v6[..], &COMMON, tunnels].concat()],
            messages: 0,
            boot_ms: None,
        }
    }

    fn describe(&mut self, context: &Context<'_>, out: &mut Vec<Message>) {
        let mut described: Vec<(u16, Vec<u8>)> = Vec::new();
        for (id, fields) in [IPV4, IPV6].into_iter().zip(&self.templates) {
            let mut template = id.to_be_bytes().to_vec();
            template.extend((fields.len() as u16).to_be_bytes());
            fields::specifiers(&mut template, fields);
            described.push((TEMPLATES, template));
        }
        for (id, fields) in [(OPTIONS, &OPTION_FIELDS[..]), (APPLICATIONS, &APPLICATION_FIELDS)] {
            let mut template = id.to_be_bytes().to_vec();
            template.extend(4u16.to_be_bytes());
            template.extend((4 * fields.len() as u16).to_be_bytes());
            fields::specifiers(&mut template, &[field(SCOPE_SYSTEM, 4)]);
            fields::specifiers(&mut template, fields);
            described.push((OPTIONS_TEMPLATES, template));
        }
        let counts = context.counts;
        let values = [context.settings.sampling.into(), 1, counts.bytes, counts.messages, counts.flows];
        let mut record = context.settings.domain.to_be_bytes().to_vec();
        for (field, value) in OPTION_FIELDS.iter().zip(values) {
            integer(&mut record, value, field.bytes);
        }
        described.push((OPTIONS, record));
        for (number, name) in std::iter::once((0, "Unknown")).chain(applications()) {
            let mut record = context.settings.domain.to_be_bytes().to_vec();
            record.extend(application_id(number).to_be_bytes());
            record.extend(name.as_bytes());
            record.resize(8 + usize::from(APPLICATION_NAME), 0);
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
        let records = self.sets.all;
        let mut message = self.sets.take();
        let now_ms = context.now_ns / 1_000_000;
        let boot_ms = self.boot_ms.unwrap_or(now_ms);
        // The collector computes our start from seconds and uptime: the uptime is that of the whole second.
        let header = [
            (9 << 16) | u32::from(records),
            (now_ms / 1000 * 1000).wrapping_sub(boot_ms) as u32,
            (now_ms / 1000) as u32,
            self.messages,
            context.settings.domain,
        ];
        for (place, word) in message.bytes.chunks_exact_mut(4).zip(header) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        self.messages = self.messages.wrapping_add(1);
        out.push(message);
    }
}

impl Encoder for Netflow9 {
    fn flow(&mut self, flow: &FlowRecord, context: &Context<'_>, out: &mut Vec<Message>) -> bool {
        let (set, at) = match flow.key.l3 {
            l3::IPV4 => (IPV4, 0),
            l3::IPV6 => (IPV6, 1),
            _ => return false,
        };
        let boot_ms = *self.boot_ms.get_or_insert_with(|| boot_ms(flow));
        let mut record = Vec::new();
        for (number, way) in one_way(flow).enumerate() {
            record.clear();
            let interfaces = fields::interfaces(&way, context.naming.index(flow));
            let values = Values { flow: &way, interfaces, boot_ms };
            values.record(&mut record, &self.templates[at]);
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
            if number == 0 {
                self.sets.count(flow);
            }
        }
        true
    }

    fn end(&mut self, context: &Context<'_>, out: &mut Vec<Message>) {
        self.finish(context, out);
    }

    fn preamble(&mut self, _: &Context<'_>) -> Option<Message> {
        None
    }
}

/// Start time of an exporter whose first flow is this one: whole seconds before it, so that somewhat older flows do not
/// have negative times. 2^32 milliseconds are 49 days; times count modulo that.
pub(super) fn boot_ms(flow: &FlowRecord) -> u64 {
    (flow.first_ns() / 1_000_000_000).saturating_sub(3600) * 1000
}
