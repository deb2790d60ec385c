//! Properties that newer kernels report through the generic netlink family `netdev`: the XDP features of a driver (6.3
//! and newer), and the NAPI instance, IRQ and kernel thread of a queue (6.8 and newer). It is defined in
//! Documentation/netlink/specs/netdev.yaml in the kernel's sources.

use std::io;

use serde::Serialize;

use super::netlink::{Client, attributes, push_attribute, u16_at, u32_at, u64_at};

// linux/genetlink.h
const GENL_HEADER: usize = 4;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_CMD_NAPI_SET: u8 = 14;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_IRQ: u16 = 3;
const NETDEV_A_NAPI_PID: u16 = 4;
const NETDEV_A_NAPI_THREADED: u16 = 8;
const NETDEV_A_QUEUE_ID: u16 = 1;
const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
const NETDEV_A_QUEUE_TYPE: u16 = 3;
const NETDEV_A_QUEUE_NAPI_ID: u16 = 4;
const NETDEV_QUEUE_TYPE_RX: u32 = 0;

/// XDP features of a device's driver (`enum netdev_xdp_act`, `enum netdev_xdp_rx_metadata`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct XdpFeatures {
    /// Programs run in the driver: native XDP.
    pub native: bool,
    /// Native programs may redirect packets to other devices, CPUs and AF_XDP sockets.
    pub redirect: bool,
    /// The device accepts packets that were redirected to it.
    pub redirect_target: bool,
    /// AF_XDP sockets receive without a copy.
    pub zero_copy: bool,
    /// Programs run on the card.
    pub offload: bool,
    /// Packets in several buffers (larger than a page) reach native programs.
    pub multi_buffer: bool,
    /// The device accepts redirected packets in several buffers.
    pub redirect_target_multi_buffer: bool,
    /// Programs may read the card's receive timestamp.
    pub rx_timestamp: bool,
    /// Programs may read the card's receive hash.
    pub rx_hash: bool,
    /// Programs may read a VLAN tag that the card has stripped.
    pub rx_vlan_tag: bool,
}

impl XdpFeatures {
    fn from_bits(features: u64, metadata: u64) -> XdpFeatures {
        XdpFeatures {
            native: features & 1 != 0,
            redirect: features & 2 != 0,
            redirect_target: features & 4 != 0,
            zero_copy: features & 8 != 0,
            offload: features & 16 != 0,
            multi_buffer: features & 32 != 0,
            redirect_target_multi_buffer: features & 64 != 0,
            rx_timestamp: metadata & 1 != 0,
            rx_hash: metadata & 2 != 0,
            rx_vlan_tag: metadata & 4 != 0,
        }
    }
}

/// The NAPI instance of one RX queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueNapi {
    /// The RX queue.
    pub queue: u32,
    /// The NAPI instance that serves it.
    pub napi_id: u32,
    /// Its interrupt.
    pub irq: Option<u32>,
    /// The kernel thread that polls it, if NAPI is threaded.
    pub thread: Option<u32>,
    /// Its threaded mode (6.17 and newer): see [`NapiThread`].
    pub threaded: Option<u32>,
}

/// Polling of a NAPI instance (`enum netdev_napi_threaded`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NapiThread {
    /// By interrupts.
    Off = 0,
    /// By a thread, which interrupts wake.
    On = 1,
    /// By a thread that never sleeps (Linux 6.19).
    BusyPoll = 2,
}

/// The netlink family, in the network namespace in which it was opened.
pub struct Netdev {
    client: Client,
    family: u16,
}

impl Netdev {
    /// Opens the family; `None` if this kernel does not have it.
    pub fn open() -> Option<Netdev> {
        let mut client = Client::open(libc::NETLINK_GENERIC).ok()?;
        let family = family(&mut client, "netdev")?;
        Some(Netdev { client, family })
    }

    /// XDP features of a device; `None` if the kernel does not report them.
    pub(super) fn xdp_features(&mut self, ifindex: u32) -> Option<XdpFeatures> {
        let (mut features, mut metadata) = (None, 0);
        self.ask(NETDEV_CMD_DEV_GET, 0, NETDEV_A_DEV_IFINDEX, ifindex, |body| {
            for (kind, value) in genl_attributes(body) {
                match kind {
                    NETDEV_A_DEV_XDP_FEATURES => features = u64_at(value, 0),
                    NETDEV_A_DEV_XDP_RX_METADATA_FEATURES => metadata = u64_at(value, 0).unwrap_or(0),
                    _ => {}
                }
            }
        })
        .ok()?;
        features.map(|features| XdpFeatures::from_bits(features, metadata))
    }

    /// NAPI instances of a device's RX queues; empty if the kernel or the driver does not report them.
    ///
    /// If a driver does not report the queue of each instance (veth), the instances are assigned in the order of their
    /// ids, which is the order of their creation, provided that there are exactly `count`, the number of the device's
    /// queues.
    pub fn queues(&mut self, ifindex: u32, count: u32) -> Vec<QueueNapi> {
        let mut queues = Vec::new();
        let asked =
            self.ask(NETDEV_CMD_QUEUE_GET, libc::NLM_F_DUMP, NETDEV_A_QUEUE_IFINDEX, ifindex, |body| {
                let (mut queue, mut napi_id, mut direction, mut of) = (None, None, None, None);
                for (kind, value) in genl_attributes(body) {
                    match kind {
                        NETDEV_A_QUEUE_ID => queue = u32_at(value, 0),
                        NETDEV_A_QUEUE_IFINDEX => of = u32_at(value, 0),
                        NETDEV_A_QUEUE_TYPE => direction = u32_at(value, 0),
                        NETDEV_A_QUEUE_NAPI_ID => napi_id = u32_at(value, 0),
                        _ => {}
                    }
                }
                let wanted = of == Some(ifindex) && direction == Some(NETDEV_QUEUE_TYPE_RX);
                if let (true, Some(queue), Some(napi_id)) = (wanted, queue, napi_id) {
                    queues.push(QueueNapi { queue, napi_id, irq: None, thread: None, threaded: None });
                }
            });
        if asked.is_err() {
            return queues;
        }
        let mut instances = Vec::new();
        // Details are optional: after a failure the queue keeps its id without IRQ and thread.
        let _ = self.ask(NETDEV_CMD_NAPI_GET, libc::NLM_F_DUMP, NETDEV_A_NAPI_IFINDEX, ifindex, |body| {
            let (mut id, mut irq, mut thread, mut threaded) = (None, None, None, None);
            for (kind, value) in genl_attributes(body) {
                match kind {
                    NETDEV_A_NAPI_ID => id = u32_at(value, 0),
                    NETDEV_A_NAPI_IRQ => irq = u32_at(value, 0),
                    NETDEV_A_NAPI_PID => thread = u32_at(value, 0),
                    NETDEV_A_NAPI_THREADED => threaded = u32_at(value, 0),
                    _ => {}
                }
            }
            if let Some(napi_id) = id {
                instances.push(QueueNapi { queue: 0, napi_id, irq, thread, threaded });
            }
        });
        if queues.is_empty() && instances.len() == count as usize {
            instances.sort_unstable_by_key(|instance| instance.napi_id);
            return (0..).zip(instances).map(|(queue, instance)| QueueNapi { queue, ..instance }).collect();
        }
        for queue in &mut queues {
            if let Some(one) = instances.iter().find(|one| one.napi_id == queue.napi_id) {
                *queue = QueueNapi { queue: queue.queue, ..*one };
            }
        }
        queues
    }

    /// Sets how a NAPI instance is polled (Linux 6.17 and newer).
    pub fn set_threaded(&mut self, napi_id: u32, how: NapiThread) -> io::Result<()> {
        let mut body = vec![NETDEV_CMD_NAPI_SET, 1, 0, 0];
        push_attribute(&mut body, NETDEV_A_NAPI_ID, &napi_id.to_ne_bytes());
        push_attribute(&mut body, NETDEV_A_NAPI_THREADED, &(how as u32).to_ne_bytes());
        self.client.request(self.family, 0, &body, |_| ())
    }

    /// Whether this kernel has busy-polling NAPI threads. The kernel answers only with the right to set them
    /// (CAP_NET_ADMIN).
    pub fn has_busy_threads(&mut self) -> bool {
        // The kernel checks the value before it looks for the instance: a nonexistent instance is reported as not
        // found, where older kernels reject the value or the attribute.
        let told = self.set_threaded(u32::MAX, NapiThread::BusyPoll);
        told.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
    }

    fn ask(
        &mut self,
        command: u8,
        flags: i32,
        attribute: u16,
        ifindex: u32,
        reply: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let mut body = vec![command, 1, 0, 0];
        push_attribute(&mut body, attribute, &ifindex.to_ne_bytes());
        self.client.request(self.family, flags, &body, reply)
    }
}

/// The number of a generic netlink family in this kernel; `None` if it has no family of this name.
pub(super) fn family(client: &mut Client, name: &str) -> Option<u16> {
    let mut body = vec![libc::CTRL_CMD_GETFAMILY as u8, 1, 0, 0];
    push_attribute(&mut body, CTRL_ATTR_FAMILY_NAME, &[name.as_bytes(), &[0]].concat());
    let mut family = None;
    client
        .request(libc::GENL_ID_CTRL as u16, 0, &body, |body| {
            family = genl_attributes(body)
                .find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID)
                .and_then(|(_, value)| u16_at(value, 0));
        })
        .ok()?;
    family
}

/// The attributes of a generic netlink message.
pub(super) fn genl_attributes(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(body.get(GENL_HEADER..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_bits_are_those_of_the_kernel() {
        let veth = XdpFeatures::from_bits(0x23, 0x6);
        assert!(veth.native && veth.redirect && veth.multi_buffer && veth.rx_hash && veth.rx_vlan_tag);
        assert!(!veth.zero_copy && !veth.offload && !veth.redirect_target && !veth.rx_timestamp);
        assert!(XdpFeatures::from_bits(8, 1).zero_copy);
        assert_eq!(XdpFeatures::from_bits(0, 0), XdpFeatures::default());
    }
}
