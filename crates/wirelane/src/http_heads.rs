//! Selection of HTTP heads in the kernel: settings, and the queries for skipped bytes.

use std::mem::offset_of;
use std::sync::Arc;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use wirelane_bpf::flow::FlowKey;
use wirelane_bpf::http::HttpWay;

/// Settings of the HTTP head selection in the kernel ([`crate::Builder::kernel_http`]).
#[derive(Clone, Copy, Debug)]
pub struct KernelHttp {
    /// Maximum number of connection directions that are followed at a time, on each device and in each direction of it.
    /// Each takes some 200 bytes of kernel memory.
    pub directions: usize,
}

impl KernelHttp {
    /// Default number of directions.
    pub const DIRECTIONS: usize = 1 << 16;
    /// Maximum number of directions.
    pub const MOST_DIRECTIONS: usize = 1 << 22;
    /// Minimum number of directions: the kernel reserves some of them for each CPU.
    pub const LEAST_DIRECTIONS: usize = 1 << 10;
}

/// Skipped bytes at the end of a direction that no record has reported, because no later packet was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingSkips {
    /// Sequence number of the first skipped byte.
    pub from: u32,
    /// Number of skipped bytes.
    pub bytes: u32,
    /// Time of the last skipped byte, on the clock of [`crate::Timebase::steady_ns`].
    pub last_ns: u64,
}

/// Access to the directions that lanes follow, on all devices of a capture.
#[derive(Clone, Debug)]
pub struct HttpOffload(Arc<[Arc<MapHandle>]>);

impl HttpOffload {
    /// Access to the directions in these maps; `None`: no maps.
    pub(crate) fn of(maps: impl Iterator<Item = Arc<MapHandle>>) -> Option<HttpOffload> {
        let maps: Arc<[_]> = maps.collect();
        (!maps.is_empty()).then_some(HttpOffload(maps))
    }

    /// Skipped and unreported bytes of the direction with this key, which has no device and no flags. While packets
    /// come, a record may report them at the same moment. Takes a system call per device: meant for connections that
    /// end.
    pub fn untold(&self, key: &FlowKey) -> impl Iterator<Item = PendingSkips> + use<'_> {
        let key = key_bytes(key);
        self.0.iter().filter_map(move |map| {
            // A failed lookup is treated as a missing entry: the caller goes on without it.
            let way = map.lookup(&key, MapFlags::ANY).ok()??;
            let from = u32::from_ne_bytes(field(&way, offset_of!(HttpWay, from))?);
            let bytes = u32::from_ne_bytes(field(&way, offset_of!(HttpWay, bytes))?);
            let last_ns = u64::from_ne_bytes(field(&way, offset_of!(HttpWay, last_ns))?);
            (bytes > 0).then_some(PendingSkips { from, bytes, last_ns })
        })
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// The bytes of a key in the kernel's map.
fn key_bytes(key: &FlowKey) -> [u8; size_of::<FlowKey>()] {
    let mut bytes = [0; size_of::<FlowKey>()];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(offset_of!(FlowKey, src), &key.src);
    put(offset_of!(FlowKey, dst), &key.dst);
    put(offset_of!(FlowKey, src_port), &key.src_port.to_ne_bytes());
    put(offset_of!(FlowKey, dst_port), &key.dst_port.to_ne_bytes());
    put(offset_of!(FlowKey, l3), &[key.l3]);
    put(offset_of!(FlowKey, proto), &[key.proto]);
    put(offset_of!(FlowKey, eth_type), &key.eth_type.to_ne_bytes());
    put(offset_of!(FlowKey, vlan), &key.vlan.to_ne_bytes());
    put(offset_of!(FlowKey, device), &key.device.to_ne_bytes());
    put(offset_of!(FlowKey, tunnel_id), &key.tunnel_id.to_ne_bytes());
    put(offset_of!(FlowKey, tunnel), &[key.tunnel]);
    put(offset_of!(FlowKey, flags), &[key.flags]);
    bytes
}
