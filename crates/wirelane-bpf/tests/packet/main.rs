//! Tests of the packet functions, in both of their compilations.
//!
//! The native one is always tested. The kernel's is run by BPF_PROG_TEST_RUN, which needs root: without it these tests
//! fail with a message, unless WIRELANE_UNPRIVILEGED=1 skips them. Tests on real captures need the corpus, which is
//! beside the repository or at WIRELANE_CORPUS, and print that they are skipped if it is absent.

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
mod shed;
mod tables;
mod tables_network;
mod verifier;
