//! HTTP transactions: conversations that are made up, hostile ones, any order of packets, and the corpus.

mod any_order;
mod cases;
mod corpus;
mod hostile;
mod wire;
