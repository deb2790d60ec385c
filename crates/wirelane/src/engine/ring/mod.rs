//! The `ring` engine: from the capture program's rings, in place.
//!
//! ```text
//!  attach.rs     the hooks of a device: what hangs there, and how ours gets there
//!  clsact/       tc where it has no links: filters, and what removes them
//!  instance.rs   one capture program on a device: found where it runs
//!  load.rs       loaded where it does not
//!  many.rs       an instance for devices that come up during the capture
//!  maps.rs       the maps that go with it
//!  lanes.rs      what a lane is: an RX queue or a CPU
//!  masks.rs      which groups get packets, and how: a bit for each
//!  group.rs      joining it as a group: a place, the rings' memory, the ledger's lines
//!  describe.rs   what it wants, where the lanes read it
//!  egress_devices.rs      the devices that its rules send packets to
//!  data.rs       the memory of its rings
//!  flows.rs      its flow caches: turned over, and read
//!  http.rs       the directions of HTTP that its lanes follow
//!  streams.rs    the RTP streams that its lanes measure
//!  filters.rs    the two filters of a group, and the switch between them
//!  rules/        the rules of a group: two sets, their counters, the table of exact-match rules
//!  program/      users' programs: linked into the capture program, and put in its place
//!  plugins.rs    what plug-ins have done
//!  log.rs        what libbpf and the verifier say
//!  map_factory.rs  maps of sets, patterns and flow caches that are made later, by the broker
//!  at_once.rs    changes of several maps, for which the kernel waits once
//!  room.rs       whether the kernel moved a program that it must not move
//!  tallies.rs    the ledger's lines, as lanes write them
//!  reader.rs     the reader's half of the ring protocol (the writer's half: bpf/ring.h)
//!  source.rs     a worker: all rings that lead to it; spin, sleep, wake
//!  bell.rs       the wake-up
//!  memory.rs     mappings: where the unsafe code is
//!  model/        tests only: the ring protocol under loom
//! ```

mod at_once;
pub(crate) mod attach;
pub(crate) mod bell;
pub(crate) mod clsact;
pub(crate) mod data;
mod describe;
mod egress_devices;
pub(crate) mod filters;
pub(crate) mod flows;
pub(crate) mod group;
pub(crate) mod group_config;
mod http;
pub(crate) mod instance;
pub(crate) mod lane_end;
pub(crate) mod lanes;
mod load;
pub(crate) mod log;
pub(crate) mod many;
pub(crate) mod map_factory;
mod maps;
pub(crate) mod masks;
pub(crate) mod memory;
#[cfg(test)]
mod model;
pub(crate) mod order;
mod pages;
pub(crate) mod plugins;
pub(crate) mod program;
pub(crate) mod reader;
mod room;
pub(crate) mod rules;
mod shed;
pub(crate) mod source;
pub(crate) mod stamps;
pub(crate) mod streams;
pub(crate) mod tallies;
