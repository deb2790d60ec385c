//! HTTP/1 transactions: requests with their responses, of any port (RFC 9110, RFC 9112).
//!
//! ```text
//! Record -> headers -> HttpTable: Connection -> Stream -> Parser -> Exchanges -> Transaction -> logs
//!           parse once            both          in order  messages  which answers
//!           (bpf/lib)       directions                        which
//! ```
//!
//! One table for each worker; steering by flow brings both directions of a connection to the same one. A connection is HTTP
//! once a head has been seen in it: at its beginning, or where a packet begins with one (`bpf/lib/http.h`, the same
//! functions that a kernel's selection would run). From there on heads and bodies follow each other by their lengths.
//!
//! # What is missing
//! Bodies are counted by sequence numbers, also where they were not captured. What is missing within a head, or at the end
//! of a body, costs the direction its place: it goes on with the next packet that begins with a head, which is marked
//! ([`Mark::Resynchronised`]). What answers what is then decided by what had been acknowledged.
//!
//! # Memory
//! Connections, what is held of them until it is in order, heads, and transactions that wait for an answer take no more than
//! they are given. Where that is used up, connections that are over go first, then those that have been silent longest:
//! their transactions are handed out, and marked ([`Mark::Evicted`]).
//!
//! # Sums
//! Every packet is in one of five counts, and every head that was read is in exactly one transaction
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
