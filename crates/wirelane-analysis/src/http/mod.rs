//! HTTP/1 transactions: requests with their responses, on any port (RFC 9110, RFC 9112).
//!
//! ```text
//! Record -> headers -> HttpTable: Connection -> Stream -> Parser -> Exchanges -> Transaction -> logs
//!           parse once            both          in order  messages  which answers
//!           (bpf/lib)       directions                        which
//! ```
//!
//! One table for each worker; steering by flow brings both directions of a connection to the same one. A connection is
//! HTTP once a head was seen in it: at its beginning, or in a packet that begins with one (`bpf/lib/http.h`, the
//! functions that the kernel's selection also runs). After that, heads and bodies follow each other by their lengths.
//!
//! # What is missing
//! Bodies are counted by sequence numbers, even if they were not captured. Bytes that are missing within a head, or at
//! the end of a body, make the parser lose its position in that direction: it continues with the next packet that
//! begins with a head, which is marked ([`Mark::Resynchronised`]). Responses are then assigned to requests by
//! acknowledgements.
//!
//! # Memory
//! Connections, the pieces that are held until they are in order, heads, and transactions that wait for a response have
//! a common memory limit. When it is reached, finished connections are evicted first, then those that were idle
//! longest: their transactions are handed out and marked ([`Mark::Evicted`]).
//!
//! # Sums
//! Every packet is in one of five counters, and every head that was read is in exactly one transaction
//! ([`Totals::balance`]).
mod chunks;
mod connection;
mod entry;
mod exchange;
mod head;
mod parser;
mod segment;
mod settings;
mod stream;
mod table;
mod totals;
mod transaction;

pub use settings::{HttpSettings, LEAST_MEMORY};
pub use table::HttpTable;
pub use totals::Totals;
pub use transaction::{MARKS, Mark, Marks, Message, Transaction, fields};
