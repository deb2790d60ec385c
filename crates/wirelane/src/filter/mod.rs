//! tcpdump's filter expressions (pcap-filter(7)): which packets a capture wants.
//!
//! ```text
//!  expression -> libpcap.rs: classic BPF -> translate.rs: steps -.-> the kernel: bpf/verdict.h
//!       |                                                        `-> natively: Filter::accepts
//!       `-> locate.rs: where the mistake is, if there is one
//!  in_use.rs   filters of a running capture by the engines that judge natively, which can be changed
//!  file.rs     the same for files, with a filter for each link type
//! ```
//!
//! Both ways go through one interpreter, `bpf/lib/filter.h`.

mod file;
mod in_use;
mod libpcap;
mod locate;
#[cfg(test)]
mod tests;
mod translate;

use std::ffi::CString;

use wirelane_bpf::filter::Step;
use wirelane_bpf::native;

pub use self::file::FileFilter;
pub(crate) use self::file::{FileInUse, FileView};
pub(crate) use self::in_use::{InUse, View};
pub(crate) use self::locate::show;
pub use self::translate::Classic;
use crate::device::Device;
use crate::{Error, Result, linktype};

/// An expression, compiled for packets of one link type.
///
/// ```
/// # use wirelane::{filter::Filter, linktype};
/// let filter = Filter::compile("udp port 53", linktype::RAW)?;
/// # let mut packet = [0u8; 28];
/// # packet[0] = 0x45; packet[9] = 17; packet[21] = 53;
/// assert!(filter.accepts(&packet, 28, false));
/// # Ok::<(), wirelane::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    text: String,
    steps: Vec<Step>,
}

/// Where the packets come from that a filter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Devices: it is known which way a packet goes.
    Live,
    /// A file.
    File,
}

impl Filter {
    /// Compiles an expression for packets of files whose link type has this LINKTYPE number ([`crate::linktype`]). An
    /// empty one accepts everything.
    ///
    /// Names in it are looked up: of hosts, networks, ports and protocols, as the system does.
    ///
    /// # Errors
    /// [`Error::Filter`], with the place of the mistake.
    pub fn compile(expression: &str, link_number: u32) -> Result<Filter> {
        Filter::of(expression, link_number, Origin::File)
    }

    /// A program that libpcap has compiled for packets of live devices (pcap_compile(3PCAP)). It says which packets are
    /// wanted; how many bytes of them it accepts does not matter.
    ///
    /// # Errors
    /// [`Error::Filter`] where it does something that filters in the kernel cannot, or is too long.
    pub fn of_program(program: &[Classic]) -> Result<Filter> {
        let text = format!("(a compiled program of {} instructions)", program.len());
        match translate::translate(program, true) {
            Ok(steps) => Ok(Filter { text, steps }),
            Err(reason) => Err(Error::Filter { expression: text, at: 0, reason }),
        }
    }

    /// The same for packets of this origin.
    pub(crate) fn of(expression: &str, link_number: u32, origin: Origin) -> Result<Filter> {
        Filter::try_of(expression, link_number, origin).map_err(|reason| {
            // That a beginning accepts nothing does not make it wrong, unless this is what is wrong.
            let compiles = |text: &str| match steps(text, link_number, origin) {
                Ok(_) => true,
                Err(other) => other == NOTHING && reason != NOTHING,
            };
            Error::Filter {
                expression: expression.to_owned(),
                at: locate::mistake(expression, &reason, compiles),
                reason: in_our_words(&reason),
            }
        })
    }

    /// The same without looking for the place of a mistake. The error is libpcap's text, or ours.
    fn try_of(expression: &str, link_number: u32, origin: Origin) -> std::result::Result<Filter, String> {
        Ok(Filter { text: expression.trim().to_owned(), steps: steps(expression, link_number, origin)? })
    }

    /// The expression.
    pub fn expression(&self) -> &str {
        &self.text
    }

    /// Its steps.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether it accepts a packet that had `wire_len` bytes, of which `data` is there, and that was on its way out
    /// (`outgoing`) or came in.
    pub fn accepts(&self, data: &[u8], wire_len: u32, outgoing: bool) -> bool {
        native::filter(&self.steps, data, wire_len, outgoing)
    }
}

/// The filter for the packets of a device; `None` of an empty expression.
///
/// # Errors
/// [`Error::Filter`].
pub(crate) fn for_device(expression: &str, device: &Device) -> Result<Option<Filter>> {
    if expression.trim().is_empty() {
        return Ok(None);
    }
    match linktype::number(device.link_type) {
        Some(number) => Filter::of(expression, number, Origin::Live).map(Some),
        None => Err(Error::Filter {
            expression: expression.to_owned(),
            at: 0,
            reason: format!(
                "packets of {} begin with headers that expressions are not known for",
                device.name
            ),
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

/// Most bytes of an expression. libpcap takes time by the square of its length, and stack for each part of it.
pub(crate) const LONGEST: usize = 8192;

/// libpcap's message for an expression that no packet can satisfy.
const NOTHING: &str = "expression rejects all packets";

/// libpcap's messages, without what the place of the mistake says already.
fn in_our_words(reason: &str) -> String {
    match reason {
        "can't parse filter expression: syntax error" | "syntax error in filter expression" => {
            "this is not understood".to_owned()
        }
        NOTHING => "no packet can be all of this".to_owned(),
        _ => reason.to_owned(),
    }
}
