//! Netlink messages for clsact (rtnetlink(7), linux/pkt_sched.h, linux/pkt_cls.h).

use crate::hook::Hook;
use wirelane_netdev::netlink::{attributes, message, push_attribute, u32_at};

/// `TC_H_CLSACT`, and TC_H_INGRESS too: the parent of both qdiscs that exist beside a device's queues.
const PARENT: u32 = 0xffff_fff1;
/// Handle of these qdiscs.
const QDISC: u32 = 0xffff_0000;
/// Bytes of `struct tcmsg`.
const TCMSG: usize = 20;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_CHAIN: u16 = 11;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;

/// Location of the filters on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterLocation {
    pub(super) ifindex: u32,
    pub(super) egress: bool,
}

impl FilterLocation {
    pub(super) fn new(ifindex: u32, hook: Hook) -> FilterLocation {
        FilterLocation { ifindex, egress: hook == Hook::Egress }
    }

    fn parent(self) -> u32 {
        // TC_H_MIN_EGRESS, TC_H_MIN_INGRESS
        if self.egress { 0xffff_fff3 } else { 0xffff_fff2 }
    }

    fn header(self, handle: u32, priority: u16) -> Vec<u8> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        header(self.ifindex, handle, self.parent(), u32::from(priority) << 16 | u32::from(all))
    }
}

fn header(ifindex: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for field in [ifindex, handle, parent, info] {
        body.extend_from_slice(&field.to_ne_bytes());
    }
    body
}

/// A filter as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter<'a> {
    pub(super) kind: &'a [u8],
    pub(super) handle: u32,
    pub(super) priority: u16,
    /// The protocol as in linux/if_ether.h, in host byte order.
    pub(super) protocol: u16,
    pub(super) chain: u32,
    /// Id of the BPF program.
    pub(super) program: Option<u32>,
}

impl Filter<'_> {
    /// Whether a filter of ours can have the same priority.
    pub(super) fn is_bpf_for_all(&self) -> bool {
        self.kind == b"bpf" && i32::from(self.protocol) == libc::ETH_P_ALL
    }
}

/// Reads the body of an RTM_NEWTFILTER. Allocates nothing.
pub(super) fn read_filter(body: &[u8]) -> Option<Filter<'_>> {
    let info = u32_at(body, 16)?;
    let mut filter = Filter {
        kind: &[],
        handle: u32_at(body, 8)?,
        priority: (info >> 16) as u16,
        protocol: u16::from_be(info as u16),
        chain: 0,
        program: None,
    };
    for (kind, value) in attributes(&body[TCMSG..]) {
        match kind {
            TCA_KIND => filter.kind = value.strip_suffix(&[0]).unwrap_or(value),
            TCA_CHAIN => filter.chain = u32_at(value, 0)?,
            TCA_OPTIONS => {
                for (kind, value) in attributes(value) {
                    if kind == TCA_BPF_ID {
                        filter.program = u32_at(value, 0);
                    }
                }
            }
            _ => {}
        }
    }
    Some(filter)
}

/// The kind of the qdisc in an RTM_NEWQDISC, if it is in clsact's position on this device.
pub(super) fn read_qdisc(body: &[u8], ifindex: u32) -> Option<&[u8]> {
    (u32_at(body, 4)? == ifindex && u32_at(body, 12)? == PARENT).then_some(())?;
    let (_, kind) = attributes(&body[TCMSG..]).find(|(kind, _)| *kind == TCA_KIND)?;
    Some(kind.strip_suffix(&[0]).unwrap_or(kind))
}

/// A request, in the parts that [`crate::device::netlink::Client::request`] takes.
pub(super) struct Request {
    pub(super) kind: u16,
    pub(super) flags: i32,
    pub(super) body: Vec<u8>,
}

impl Request {
    fn new(kind: u16, flags: i32, body: Vec<u8>) -> Request {
        Request { kind, flags, body }
    }

    /// The whole request, as sent over a socket.
    pub(super) fn bytes(&self, sequence: u32) -> Vec<u8> {
        message(self.kind, self.flags, sequence, &self.body)
    }

    /// Lists the qdiscs (of all devices; the kernel does not filter).
    pub(super) fn qdiscs(ifindex: u32) -> Request {
        Request::new(libc::RTM_GETQDISC, libc::NLM_F_DUMP, header(ifindex, 0, 0, 0))
    }

    /// Adds clsact, if its position is empty.
    pub(super) fn add_qdisc(ifindex: u32) -> Request {
        let mut body = header(ifindex, QDISC, PARENT, 0);
        push_attribute(&mut body, TCA_KIND, b"clsact\0");
        Request::new(libc::RTM_NEWQDISC, libc::NLM_F_CREATE | libc::NLM_F_EXCL, body)
    }

    /// Removes clsact, with all filters.
    pub(super) fn delete_qdisc(ifindex: u32) -> Request {
        let mut body = header(ifindex, QDISC, PARENT, 0);
        push_attribute(&mut body, TCA_KIND, b"clsact\0");
        Request::new(libc::RTM_DELQDISC, 0, body)
    }

    /// Lists the filters of one direction.
    pub(super) fn filters(place: FilterLocation) -> Request {
        let body = header(place.ifindex, 0, place.parent(), 0);
        Request::new(libc::RTM_GETTFILTER, libc::NLM_F_DUMP, body)
    }

    /// Queries one filter.
    pub(super) fn filter(place: FilterLocation, handle: u32, priority: u16) -> Request {
        Request::of_bpf(libc::RTM_GETTFILTER, 0, place.header(handle, priority))
    }

    /// Removes one filter.
    pub(super) fn delete_filter(place: FilterLocation, handle: u32, priority: u16) -> Request {
        Request::of_bpf(libc::RTM_DELTFILTER, 0, place.header(handle, priority))
    }

    /// Adds a filter that is a program in direct-action mode.
    pub(super) fn add_filter(
        place: FilterLocation,
        handle: u32,
        priority: u16,
        program: u32,
        name: &str,
    ) -> Request {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut request = Request::of_bpf(libc::RTM_NEWTFILTER, flags, place.header(handle, priority));
        let mut options = Vec::new();
        push_attribute(&mut options, TCA_BPF_FD, &program.to_ne_bytes());
        push_attribute(&mut options, TCA_BPF_NAME, format!("{name}\0").as_bytes());
        push_attribute(&mut options, TCA_BPF_FLAGS, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes());
        push_attribute(&mut request.body, TCA_OPTIONS | libc::NLA_F_NESTED as u16, &options);
        request
    }

    fn of_bpf(kind: u16, flags: i32, mut body: Vec<u8>) -> Request {
        push_attribute(&mut body, TCA_KIND, b"bpf\0");
        Request::new(kind, flags, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: FilterLocation = FilterLocation { ifindex: 7, egress: true };

    #[test]
    fn a_filter_that_is_asked_for_reads_back() {
        let request = Request::add_filter(PLACE, 0x1234, 9, 3, "name");
        let filter = read_filter(&request.body).unwrap();
        assert_eq!((filter.handle, filter.priority, filter.chain), (0x1234, 9, 0));
        assert!(filter.is_bpf_for_all());
        // The kernel's answer has the program's id where the request has its descriptor.
        assert_eq!(filter.program, None);
        let mut answer = request.body;
        let mut options = Vec::new();
        push_attribute(&mut options, TCA_BPF_ID, &77u32.to_ne_bytes());
        push_attribute(&mut answer, TCA_OPTIONS, &options);
        push_attribute(&mut answer, TCA_CHAIN, &5u32.to_ne_bytes());
        let filter = read_filter(&answer).unwrap();
        assert_eq!((filter.program, filter.chain), (Some(77), 5));
    }

    #[test]
    fn qdiscs_elsewhere_are_not_taken_for_clsact() {
        let body = Request::add_qdisc(7).body;
        assert_eq!(read_qdisc(&body, 7), Some(b"clsact".as_slice()));
        assert_eq!(read_qdisc(&body, 8), None);
        let mut root = header(7, 0x8001_0000, 0xffff_ffff, 0);
        push_attribute(&mut root, TCA_KIND, b"fq_codel\0");
        assert_eq!(read_qdisc(&root, 7), None);
    }

    #[test]
    fn short_answers_are_no_filters() {
        let body = Request::filters(PLACE).body;
        for length in 0..TCMSG {
            assert_eq!(read_filter(&body[..length]), None);
            assert_eq!(read_qdisc(&body[..length], 7), None);
        }
    }
}
