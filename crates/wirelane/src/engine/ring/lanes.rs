//! Definition of a lane for each hook and driver: an RX queue if only one thread at a time runs the program for it,
//! else a CPU; and the choice of a hook beside other captures.

use std::sync::Arc;

use super::attach::{self, Found};
use super::instance::running;
use crate::error::{Error, Result};
use crate::hook::Hook;
use wirelane_netdev::{Device, XdpMode};
use wirelane_privsep::broker::Broker;

/// Whether two threads can be inside this driver's XDP hook for one RX queue at the same time.
pub(super) fn shares_queues(driver: &str) -> bool {
    // tun/tap runs the program in the writing thread, without a lock per queue (drivers/net/tun.c). A bond and a
    // Hyper-V device hand the program down to other devices, each with a queue 0 of its own (bond_xdp_set() in
    // drivers/net/bonding/bond_main.c, netvsc_vf_setxdp() in drivers/net/hyperv/netvsc_bpf.c).
    matches!(driver, "tun" | "tap" | "bonding" | "hv_netvsc")
}

/// Whether tc knows the RX queue of a packet. A veth hands packets over without it, unless NAPI polls it
/// (drivers/net/veth.c, veth_xmit()): the packet then has the number of the sender's TX queue.
pub(super) fn tells_queues(driver: &str) -> bool {
    driver != "veth"
}

/// On a PREEMPT_RT kernel, one packet's program may be preempted by another's on the same CPU: a lane that is a CPU
/// would have two writers. An RX queue under native XDP is polled by one thread there too.
pub(super) fn refuse_realtime(realtime: bool, per_cpu: bool, device: &Device, hook: Hook) -> Option<Error> {
    (realtime && per_cpu).then(|| Error::Unsupported {
        what: format!("capturing on {} by {hook}", device.name),
        needs: "a kernel without PREEMPT_RT (/sys/kernel/realtime says 1 here), to count and copy exactly"
            .into(),
        instead: "--hook native works, where the driver has native XDP".into(),
    })
}

/// The hook for received packets where the user did not choose: the hook of an instance that runs on the device, so
/// that all captures of the device get copies. At different hooks, packets that one of them consumes would not reach
/// the others. `None`: XDP.
pub(crate) fn beside_others(
    device: &Device,
    wanted: Option<Hook>,
    broker: &Arc<Broker>,
) -> Result<Option<Hook>> {
    Ok(match wanted {
        Some(Hook::Ingress) => match attach::look(device, Hook::Xdp(XdpMode::Native)) {
            Ok(Found::Ours { .. }) => None,
            // tc works beside the XDP of other programs.
            Ok(Found::Nothing | Found::NoLinks) | Err(Error::ForeignProgram { .. }) => wanted,
            Err(error) => return Err(error),
        },
        None => running(device, Hook::Ingress, broker)?.map(|_| Hook::Ingress),
        _ => wanted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_realtime_kernels_lanes_are_rx_queues_only() {
        let device = Device::open("lo").unwrap();
        let message = |realtime, per_cpu| {
            refuse_realtime(realtime, per_cpu, &device, Hook::Ingress).map(|error| error.to_string())
        };
        let refusal = message(true, true).unwrap();
        assert!(refusal.contains("lo by tc ingress") && refusal.contains("--hook native"), "{refusal}");
        assert_eq!([message(true, false), message(false, true), message(false, false)], [None, None, None]);
    }
}
