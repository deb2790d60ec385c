//! Parts of our own benchmarks: small receivers and generators in addition to `wirelane`, files with many rules, and
//! measurements of single parts. Receivers and generators are hidden commands of `wirelane-testbed`, which adapters
//! (`duts/`) and injectors start.
//!
//! ```text
//! receive/   XDP_DROP, AF_XDP and TPACKET_V3 receivers, and our ring engine with analyses that are chosen
//! clones     a generator of clones of one socket buffer     flows    one of flows that end, or differ in size
//! rules      files of many rules and large sets
//! parts      single parts: `cost`, `program`, `patterns`, `flow_cache`, `voip`, `store`; a capture program `driven` by test runs
//! ```

pub mod clones;
mod cost;
mod driven;
mod flow_cache;
pub mod flows;
mod generator;
mod patterns;
mod program;
pub mod receive;
pub mod rules;
mod skel;
#[cfg(feature = "store")]
mod store;
mod table;
mod voip;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::suite::Resources;
pub use table::Table;

/// A part that is measured separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Costs of the parts of a kernel program
    Cost,
    /// Costs of the whole capture program, by the features that are asked of it
    Program,
    /// Payloads searched for patterns, beside the crate that makes the automata; needs --captures
    Patterns,
    /// In-kernel flows: cost of a packet, and number of flow parts that are delivered
    FlowCache,
    /// RTP of calls in the kernel and in user space: what a packet costs, by the number of streams
    Voip,
    /// The store of flows: flows written a second, bytes of each, seconds of ready questions
    #[cfg(feature = "store")]
    Store,
}

impl Part {
    /// All parts.
    pub fn all() -> &'static [Part] {
        clap::ValueEnum::value_variants()
    }
}

/// Options of `measure`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Parts to measure. Default: all
    #[arg(value_enum)]
    pub(crate) parts: Vec<Part>,

    /// Fewer packets and flows
    #[arg(long)]
    pub(crate) quick: bool,

    /// The core that measures
    #[arg(long, value_name = "CORE", default_value_t = 1)]
    pub(crate) core: usize,

    /// patterns: a folder with pcap and pcapng files, whose payloads are searched
    #[arg(long, value_name = "DIR")]
    pub(crate) captures: Option<PathBuf>,

    /// store: flows that are written and asked about, some 65 bytes each. Default: 100 million, or 2 million with --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..))]
    pub(crate) flows: Option<u64>,

    /// store: the folder in which they are written to one of their own. Default: that for temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) store_folder: Option<PathBuf>,

    /// store: a Python interpreter that has DuckDB, which answers the same questions of the same files in turns
    #[arg(long, value_name = "PYTHON")]
    pub(crate) duckdb: Option<PathBuf>,

    /// Folder for the results, which is made
    #[arg(long, value_name = "DIR", default_value = "testbed-parts")]
    pub(crate) out: PathBuf,
}

/// Measures a part; `None`: it needs captures, and none are given.
#[cfg_attr(not(feature = "store"), expect(unused_variables, reason = "only the store runs the program"))]
pub(crate) fn measure(part: Part, options: &Args, wirelane: &Path) -> Result<Option<Vec<Table>>> {
    Resources::here().fast_programs()?;
    let tables = match (part, &options.captures) {
        (Part::Cost, _) => on_core(options.core, cost::measure)?,
        (Part::Program, _) => on_core(options.core, program::measure)?,
        (Part::Patterns, None) => return Ok(None),
        (Part::Patterns, Some(folder)) => on_core(options.core, || patterns::measure(folder))?,
        (Part::FlowCache, _) => on_core(options.core, || flow_cache::measure(options.quick))?,
        (Part::Voip, _) => on_core(options.core, || voip::measure(options.quick))?,
        #[cfg(feature = "store")]
        (Part::Store, _) => store::measure(options, wirelane)?,
    };
    Ok(Some(tables))
}

/// Runs a function in a thread of its own, so that only this thread is pinned to the core.
fn on_core<T: Send>(core: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            receive::pin(core)?;
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
