//! A connection in the table.

use wirelane_bpf::flow::FlowKey;
use wirelane_bpf::http::HttpHalf;

use super::connection::Connection;
use crate::flows::lists::{Link, Links};

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: FlowKey,
    pub(super) hash: u64,
    pub(super) connection: Connection,
    /// Which packets of each direction have heads in them.
    pub(super) halves: [HttpHalf; 2],
    /// Bytes that it takes, as was added to the sum.
    pub(super) memory: usize,
    pub(super) last_ns: u64,
    pub(super) number: u64,
    pub(super) silence: Link,
    /// Of the same place, the how manyth connection.
    pub(super) generation: u32,
    pub(super) free: bool,
    pub(super) counted: bool,
    /// It is known to be something else that carries HTTP.
    pub(super) sealed: bool,
    /// Bytes that were sent twice were not the same, since the last transaction.
    pub(super) conflict: bool,
}

/// The links of entries by how long they have been silent.
pub(super) struct Silences<'a>(pub(super) &'a mut [Entry]);

impl Links for Silences<'_> {
    fn link(&mut self, at: u32) -> &mut Link {
        &mut self.0[at as usize].silence
    }
}
