//! The unsafe leaf under everything: `bpf/lib` built both ways.
//!
//! * [`filter`]: compiled filter expressions.
//! * [`flow`]: what packets of one flow come to.
//! * [`flow_cache`]: the first-level flow cache.
//! * [`http`]: which packets have heads of HTTP in them.
//! * [`instance`]: what a capture program and its users share.
//! * [`judge`]: rules, judged natively.
//! * [`kernel`]: which kernel runs here.
//! * [`layout`]: the structs that kernel and user space share.
//! * [`linktype`]: link types by the numbers of capture files.
//! * [`members`]: named sets, which rules ask.
//! * [`native`]: the packet functions, compiled natively.
//! * [`rules`]: compiled rules.
//! * [`rtp`]: what packets of one RTP stream come to.
//! * [`search`]: the automata that search payloads for patterns.
//! * [`sketch`]: how many different keys there were, and which of them had most.
//! * [`skel`]: the kernel programs, ready to be loaded.
//! * [`stream`]: RTP streams that are measured in the kernel.
pub mod filter;
pub mod flow;
pub mod flow_cache;
pub mod http;
pub mod instance;
pub mod judge;
pub mod kernel;
pub mod layout;
pub mod linktype;
pub mod members;
pub mod native;
pub mod rtp;
pub mod rules;
pub mod search;
pub mod skel;
pub mod sketch;
pub mod stream;
