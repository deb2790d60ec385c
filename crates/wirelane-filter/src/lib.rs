//! tcpdump's filter expressions (pcap-filter(7)), compiled for the kernel and for user space.
//!
//! ```text
//!  expression -> libpcap.rs: classic BPF -> translate.rs: steps -+-> instructions/: eBPF, for the kernel
//!       |                                                        +-> the kernel's interpreter: bpf/verdict.h
//!       |                                                        `-> natively: Filter::accepts
//!       `-> locate.rs: where the mistake is, if there is one
//!  in_use.rs   filters of a running capture by the engines that evaluate natively, which can be changed
//!  file.rs     the same for files, with a filter for each link type
//! ```
//!
//! The kernel and user space run the same interpreter, `bpf/lib/filter.h`.

mod error;
mod file;
mod in_use;
pub mod instructions;
mod libpcap;
mod locate;
mod suggest;
#[cfg(test)]
mod tests;
mod translate;

use std::ffi::CString;
use std::mem::offset_of;

use wirelane_bpf::filter::{Filter as Layout, MAX_TEXT, Step};
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::linktype;
use wirelane_bpf::native;

pub use self::error::{Error, Result};
pub use self::file::FileFilter;
pub use self::file::{FileInUse, FileView};
pub use self::in_use::{InUse, View};
pub use self::locate::show;
pub use self::translate::Classic;

/// An expression, compiled for packets of one link type.
///
/// ```
/// # use wirelane_bpf::linktype;
/// # use wirelane_filter::Filter;
/// let filter = Filter::compile("udp port 53", linktype::RAW)?;
/// # let mut packet = [0u8; 28];
/// # packet[0] = 0x45; packet[9] = 17; packet[21] = 53;
/// assert!(filter.accepts(&packet, 28, false));
/// # Ok::<(), wirelane_filter::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    text: String,
    steps: Vec<Step>,
}

/// Origin of the packets that a filter is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Devices: the direction of a packet is known.
    Live,
    /// A file.
    File,
}

impl Filter {
    /// Compiles an expression for packets of files with this LINKTYPE number ([`wirelane_bpf::linktype`]). An empty one
    /// accepts all packets.
    ///
    /// Names of hosts, networks, ports and protocols are resolved by the system's resolver.
    ///
    /// # Errors
    /// [`Error`], with the position of the mistake.
    pub fn compile(expression: &str, link_number: u32) -> Result<Filter> {
        Filter::of(expression, link_number, Origin::File)
    }

    /// A filter from a program that libpcap compiled for packets of live devices (pcap_compile(3PCAP)). Only its
    /// verdict is used, not the number of bytes that it accepts.
    ///
    /// # Errors
    /// [`Error`] if the program uses an operation that in-kernel filters do not have, or is too long.
    pub fn of_program(program: &[Classic]) -> Result<Filter> {
        let text = format!("(a compiled program of {} instructions)", program.len());
        match translate::translate(program, true) {
            Ok(steps) => Ok(Filter { text, steps }),
            Err(reason) => Err(Error { expression: text, at: 0, reason }),
        }
    }

    /// Compiles an expression for packets of this origin.
    pub fn of(expression: &str, link_number: u32, origin: Origin) -> Result<Filter> {
        Filter::try_of(expression, link_number, origin).map_err(|reason| {
            // A prefix that accepts nothing is still valid, unless exactly this is the mistake.
            let compiles = |text: &str| match steps(text, link_number, origin) {
                Ok(_) => true,
                Err(other) => other == NOTHING && reason != NOTHING,
            };
            Error {
                expression: expression.to_owned(),
                at: locate::mistake(expression, &reason, compiles),
                reason: in_our_words(&reason),
            }
        })
    }

    /// As [`Filter::of`], without the position of a mistake. The error is libpcap's or our text.
    fn try_of(expression: &str, link_number: u32, origin: Origin) -> std::result::Result<Filter, String> {
        Ok(Filter { text: expression.trim().to_owned(), steps: steps(expression, link_number, origin)? })
    }

    /// The expression.
    pub fn expression(&self) -> &str {
        &self.text
    }

    /// The steps that the interpreter runs.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The filter as `struct wl_filter`, the value in a map of the kernel.
    pub fn encode(&self) -> Vec<u8> {
        let text = self.expression().as_bytes();
        let mut bytes = Vec::with_capacity(size_of::<Layout>());
        bytes.extend((self.steps().len() as u32).to_ne_bytes());
        bytes.extend((text.len() as u32).to_ne_bytes());
        bytes.extend(&text[..text.len().min(MAX_TEXT)]);
        bytes.resize(offset_of!(Layout, steps), 0);
        for step in self.steps() {
            bytes.extend([step.op, step.with_x, step.size, 0]);
            bytes.extend(step.yes.to_ne_bytes());
            bytes.extend(step.no.to_ne_bytes());
            bytes.extend(step.value.to_ne_bytes());
            bytes.extend([0; 4]);
        }
        bytes.resize(size_of::<Layout>(), 0);
        bytes
    }

    /// Whether the filter accepts a packet of `wire_len` bytes, of which `data` was captured, and which was transmitted
    /// (`outgoing`) or received.
    pub fn accepts(&self, data: &[u8], wire_len: u32, outgoing: bool) -> bool {
        native::filter(&self.steps, data, wire_len, outgoing)
    }
}

/// The filter for the packets of a device with this link type and name; `None` for an empty expression.
///
/// # Errors
/// [`Error`].
pub fn for_device(expression: &str, link_type: LinkType, device: &str) -> Result<Option<Filter>> {
    if expression.trim().is_empty() {
        return Ok(None);
    }
    match linktype::number(link_type) {
        Some(number) => Filter::of(expression, number, Origin::Live).map(Some),
        None => Err(Error {
            expression: expression.to_owned(),
            at: 0,
            reason: format!("packets of {} begin with headers that expressions are not known for", device),
        }),
    }
}

fn steps(expression: &str, link_number: u32, origin: Origin) -> std::result::Result<Vec<Step>, String> {
    if expression.len() > LONGEST {
        return Err(format!("it has {} bytes, more than {LONGEST}", expression.len()));
    }
    let text = CString::new(expression).map_err(|_| "a zero byte cannot be in it".to_owned())?;
    let classic = libpcap::compile(&text, link_number, origin)?;
    translate::translate(&classic, origin == Origin::Live)
}

/// Maximum bytes of an expression. libpcap's run time grows with the cube of the number of terms (10 s for 400 ports), and
/// it uses stack for each part.
pub const LONGEST: usize = 8192;

/// libpcap's message for an expression that no packet can satisfy.
const NOTHING: &str = "expression rejects all packets";

/// libpcap's messages, without the part that the marked position already shows.
fn in_our_words(reason: &str) -> String {
    match reason {
        "can't parse filter expression: syntax error" | "syntax error in filter expression" => {
            "syntax error".to_owned()
        }
        NOTHING => "no packet can be all of this".to_owned(),
        _ => reason.to_owned(),
    }
}
