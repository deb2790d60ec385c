//! What only our own benchmarks have: small receivers and generators beside `wirelane`, files of many rules, and measurements of
//! single parts. Each of the first is a hidden command of `wirelane-testbed`, which adapters (`duts/`) and injectors start.
//!
//! ```text
//! receive/   XDP_DROP, AF_XDP and TPACKET_V3 receivers, and our ring engine with analyses that are chosen
//! clones     a generator of clones of one socket buffer     flows    one of flows that end, or differ in size
//! rules      files of many rules and large sets
//! parts      single parts: `cost`, `patterns`, `flow_cache`, `voip`, `store`; a capture program `driven` by test runs
//! ```

pub mod clones;
mod cost;
mod driven;
mod flow_cache;
pub mod flows;
mod patterns;
pub mod receive;
pub mod rules;
mod skel;
#[cfg(feature = "store")]
mod store;
mod table;
mod voip;

use std::path::PathBuf;

use anyhow::Result;

pub use table::Table;

/// A part that is measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// What the parts of a kernel program cost
    Cost,
    /// Payloads searched for patterns, beside the crate that makes the automata; needs --captures
    Patterns,
    /// Flows made in the kernel: what a packet costs, and how many parts of flows come up
    FlowCache,
    /// RTP of calls in the kernel and in user space: what a packet costs, by the number of streams
    Voip,
    /// The store of flows: flows written a second, bytes of each, seconds of ready questions
    #[cfg(feature = "store")]
    Store,
}

impl Part {
    /// All of them.
    pub fn all() -> &'static [Part] {
        clap::ValueEnum::value_variants()
    }

    /// Its name, in options and of its files.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// How parts are measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The core that measures.
    pub core: usize,
    /// Fewer packets and flows.
    pub quick: bool,
    /// A folder with captures, whose payloads are searched.
    pub captures: Option<PathBuf>,
    /// Flows of the store; none: 100 million, or 2 million where it is to be quick.
    pub flows: Option<u64>,
    /// Where the store is written; none: the folder for temporary files.
    pub store: Option<PathBuf>,
    /// The program `wirelane`.
    pub wirelane: PathBuf,
}

/// Measures a part; none: it needs captures, and there are none.
///
/// # Errors
/// Where the kernel refuses something, or a result is not exact.
pub fn measure(part: Part, options: &Options) -> Result<Option<Vec<Table>>> {
    let tables = match (part, &options.captures) {
        (Part::Cost, _) => on_core(options.core, cost::measure)?,
        (Part::Patterns, None) => return Ok(None),
        (Part::Patterns, Some(folder)) => on_core(options.core, || patterns::measure(folder))?,
        (Part::FlowCache, _) => on_core(options.core, || flow_cache::measure(options.quick))?,
        (Part::Voip, _) => on_core(options.core, || voip::measure(options.quick))?,
        #[cfg(feature = "store")]
        (Part::Store, _) => store::measure(options)?,
    };
    Ok(Some(tables))
}

/// Runs this in a thread of its own, so that only it is kept on the core.
fn on_core<T: Send>(core: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            receive::pin(core)?;
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
