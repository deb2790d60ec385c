//! Tests of the packet functions, in both of their compilations.
//!
//! The native one is always tested. The kernel's is driven by BPF_PROG_TEST_RUN, which needs root: without it
//! these tests fail and say so, unless WIRELANE_UNPRIVILEGED=1 asks for them to be left out. Tests on real
//! captures need the corpus, which lies beside the repository or where WIRELANE_CORPUS says, and say that they
//! are left out where it is absent.

mod build;
mod cache_lines;
mod captures;
mod corpus;
mod describe;
mod documented;
mod encapsulations;
mod ground_truth;
mod guarded;
mod hash;
mod http;
mod opinion;
mod probe;
mod properties;
mod rtp_probe;
mod rules;
mod second_opinion;
mod tables;
mod tables_network;
mod verifier;
