//! HTTP transactions: conversations that are made up, hostile ones, any order of packets, what a lane sends up
//! of them, and the corpus.

mod accounts;
mod any_order;
mod cases;
mod corpus;
mod hostile;
mod offloaded;
mod wire;
