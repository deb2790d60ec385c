//! Hooks: the points at which packets are taken from a device.

use wirelane_netdev::XdpMode;

/// A hook of a device at which packets can be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// Received packets, by XDP in the driver or in the stack.
    Xdp(XdpMode),
    /// Received packets, by tc: behind XDP, and beside other programs.
    Ingress,
    /// Transmitted packets, by tc.
    Egress,
}

impl std::fmt::Display for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Hook::Xdp(mode) => write!(f, "{mode} XDP"),
            Hook::Ingress => f.write_str("tc ingress"),
            Hook::Egress => f.write_str("tc egress"),
        }
    }
}

/// Form of the attachment to tc's hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tc {
    /// By link (TCX) where the kernel has it, else by clsact filters.
    Best,
    /// By clsact filters.
    Clsact,
}

/// The point at which packets of a device are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HookPoint {
    /// XDP in the driver.
    NativeXdp,
    /// XDP in the network stack.
    GenericXdp,
    /// tc, received packets.
    TcIngress,
    /// tc, transmitted packets.
    TcEgress,
    /// Packet sockets, received packets.
    PacketSocket,
    /// Packet sockets, transmitted packets.
    PacketSocketOut,
    /// AF_XDP sockets behind XDP in the driver.
    XdpSocket,
    /// AF_XDP sockets behind XDP in the network stack.
    GenericXdpSocket,
}

impl HookPoint {
    /// Whether the packets are transmitted ones.
    pub fn is_egress(self) -> bool {
        matches!(self, HookPoint::TcEgress | HookPoint::PacketSocketOut)
    }
}

impl HookPoint {
    pub(crate) fn of(hook: Hook) -> HookPoint {
        match hook {
            Hook::Xdp(XdpMode::Generic) => HookPoint::GenericXdp,
            Hook::Xdp(_) => HookPoint::NativeXdp,
            Hook::Ingress => HookPoint::TcIngress,
            Hook::Egress => HookPoint::TcEgress,
        }
    }
}

impl std::fmt::Display for HookPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HookPoint::NativeXdp => "native XDP",
            HookPoint::GenericXdp => "generic XDP",
            HookPoint::TcIngress => "tc ingress",
            HookPoint::TcEgress => "tc egress",
            HookPoint::PacketSocket => "packet sockets",
            HookPoint::PacketSocketOut => "packet sockets, transmitted",
            HookPoint::XdpSocket => "AF_XDP, native XDP",
            HookPoint::GenericXdpSocket => "AF_XDP, generic XDP",
        })
    }
}
