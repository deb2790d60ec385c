//! A connection in the table.

use wirelane_bpf::flow::FlowKey;
use wirelane_bpf::http::HttpHalf;

use super::connection::Connection;
use crate::flows::lists::{Link, Links};

/// An entry of the table: a connection with its key and its state in the table.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: FlowKey,
    pub(super) hash: u64,
    pub(super) connection: Connection,
    /// Per direction: state for finding packets with heads.
    pub(super) halves: [HttpHalf; 2],
    /// Memory in bytes, as included in the sum of the table.
    pub(super) memory: usize,
    pub(super) last_ns: u64,
    pub(super) number: u64,
    pub(super) silence: Link,
    /// Number of connections that have used this index before.
    pub(super) generation: u32,
    pub(super) free: bool,
    pub(super) counted: bool,
    /// Whether it carries TLS or HTTP/2, which is not read.
    pub(super) sealed: bool,
    /// Whether retransmitted bytes differed from the first ones since the last transaction.
    pub(super) conflict: bool,
}

/// Links of entries in order of idle time.
pub(super) struct Silences<'a>(pub(super) &'a mut [Entry]);

impl Links for Silences<'_> {
    fn link(&mut self, at: u32) -> &mut Link {
        &mut self.0[at as usize].silence
    }
}
