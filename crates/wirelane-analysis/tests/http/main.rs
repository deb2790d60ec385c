//! HTTP transactions: generated conversations, hostile ones, any order of packets, in-kernel selection by lanes, and
//! the corpus.

mod accounts;
mod any_order;
mod cases;
mod corpus;
mod hostile;
mod offloaded;
mod wire;
