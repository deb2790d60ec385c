//! Filters as eBPF instructions: the body of `wl_filter_code()` (bpf/filter_code.h).
//!
//! ```text
//!            +-> fast: no tag, and the linear part has all bytes at fixed offsets up to HEAD
//!  which one-+-> loads: any other packet without a tag to put back; bytes are loaded by the kernel's helper
//!            +-> tagged: as `loads`, and bytes 12 to 15 are the tag
//! ```
//!
//! Each filter is translated three times, once for each kind of packet. Its registers are machine registers, and its
//! memory is on the stack. The verdict equals the interpreter's (`bpf/lib/filter.h`) for every packet, so the program
//! needs no interpreter.

mod assemble;
mod body;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use wirelane_bpf::filter::Step;

use self::assemble::{Assembly, Operand, R0, R2, R5, R6, R7, Width, jump};
use self::body::{Body, Kind, Reachable};

/// Type of the context that a program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// `struct xdp_md`.
    Xdp,
    /// `struct __sk_buff`.
    Skb,
}

impl Context {
    /// Offsets of `data` and `data_end` in the context (linux/bpf.h).
    fn ends(self) -> (i16, i16) {
        match self {
            Context::Xdp => (0, 4),
            Context::Skb => (76, 80),
        }
    }

    /// The helper that copies bytes of a packet to memory: `bpf_xdp_load_bytes()` or `bpf_skb_load_bytes()`.
    fn helper(self) -> u32 {
        match self {
            Context::Xdp => 189,
            Context::Skb => 26,
        }
    }
}

/// Name of the function whose body is generated.
const FUNCTION: &str = "wl_filter_code";

/// The result for a number that no filter has.
const UNKNOWN: u32 = 2;

/// Puts these filters into an object with the functions of bpf/filter_code.h. Each filter has a number.
///
/// `false`: the filters do not fit, or one of them has an invalid step; the object is unchanged.
pub fn put(object: &mut [u8], filters: &[(u32, &[Step])], context: Context) -> bool {
    let Some(at) = room(object) else { return false };
    let Some(code) = instructions(filters, context, at.len() / 8) else { return false };
    let Some(room) = object.get_mut(at) else { return false };
    room.copy_from_slice(&code);
    true
}

/// Bytes of the object that are the function's instructions.
fn room(object: &[u8]) -> Option<std::ops::Range<usize>> {
    let file = object::File::parse(object).ok()?;
    let function = file.symbols().find(|symbol| symbol.name() == Ok(FUNCTION))?;
    let section = file.section_by_index(function.section_index()?).ok()?;
    let start = (section.file_range()?.0 + function.address()) as usize;
    Some(start..start + function.size() as usize)
}

/// The function that evaluates the filter with the given number, as exactly `capacity` instructions of 8 bytes. Its
/// parameters: the context, the number, the packet's length, its direction, its tag (0: none).
///
/// `None` where the filters do not fit, or one of them has an invalid step.
fn instructions(filters: &[(u32, &[Step])], context: Context, capacity: usize) -> Option<Vec<u8>> {
    let mut code = Assembly::default();
    let rest = code.label();
    // The rest of the function is never reached, which the verifier knows; but code that no jump leads to is refused.
    code.operate(Width::Double, assemble::alu::MOVE, R0, Operand::Is(UNKNOWN));
    code.jump_if(Width::Double, jump::NOT_EQUAL, R0, Operand::Is(UNKNOWN), rest);
    let starts: Vec<_> = filters.iter().map(|_| code.label()).collect();
    for ((number, _), start) in filters.iter().zip(&starts) {
        code.jump_if(Width::Word, jump::EQUAL, R2, Operand::Is(*number), *start);
    }
    code.leave();
    for ((_, steps), start) in filters.iter().zip(starts) {
        code.here(start);
        filter(&mut code, steps, context)?;
    }
    code.here(rest);
    while code.len() + 1 < capacity {
        code.operate(Width::Double, assemble::alu::MOVE, R0, Operand::Is(UNKNOWN));
    }
    code.leave();
    let code = code.done()?;
    (code.len() == capacity).then(|| code.concat())
}

fn filter(code: &mut Assembly, steps: &[Step], context: Context) -> Option<()> {
    let reachable = Reachable::of(steps)?;
    let head = reachable.head(steps);
    let (tagged, loads) = (code.label(), code.label());
    code.jump_if(Width::Word, jump::NOT_EQUAL, R5, Operand::Is(0), tagged);
    let (data, end) = context.ends();
    code.load(4, R6, assemble::R1, data);
    code.load(4, R7, assemble::R1, end);
    if head > 0 {
        code.copy(R0, R6);
        code.add(R0, Operand::Is(head));
        code.jump_if(Width::Double, jump::GREATER, R0, Operand::Of(R7), loads);
    }
    Body::new(code, context, Kind::Fast { head }).emit(steps, &reachable);
    if head > 0 {
        code.here(loads);
        Body::new(code, context, Kind::Loads).emit(steps, &reachable);
    }
    code.here(tagged);
    Body::new(code, context, Kind::Tagged).emit(steps, &reachable);
    Some(())
}
