//! Options after a pcapng block's fixed part (draft-ietf-opsawg-pcapng, section 3.5).

use super::decode::Order;

/// Codes of the options that are read; most codes have another meaning in each type of block.
pub(super) mod code {
    pub(in crate::read) const END: u16 = 0;
    pub(in crate::read) const COMMENT: u16 = 1;
    pub(in crate::read) const IF_NAME: u16 = 2;
    pub(in crate::read) const IF_DESCRIPTION: u16 = 3;
    pub(in crate::read) const IF_TSRESOL: u16 = 9;
    pub(in crate::read) const IF_TSOFFSET: u16 = 14;
    pub(in crate::read) const EPB_FLAGS: u16 = 2;
}

/// One option.
#[derive(Debug)]
pub(super) struct BlockOption<'a> {
    pub(super) code: u16,
    /// Without the padding.
    pub(super) value: &'a [u8],
}

/// Iterator over options. The end-of-options option may be missing where the block ends.
#[derive(Debug)]
pub(super) struct Options<'a> {
    rest: &'a [u8],
    order: Order,
}

impl<'a> Options<'a> {
    /// The options of a block (without its second length) that start at `at`.
    pub(super) fn new(block: &'a [u8], at: usize, order: Order) -> Options<'a> {
        Options { rest: block.get(at..).unwrap_or_default(), order }
    }

    /// Ends the iteration with an error.
    fn overrun(&mut self, code: u16, len: usize, room: usize) -> String {
        self.rest = &[];
        format!("an option of code {code} and {len} bytes, where its block has {room} left")
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = std::result::Result<BlockOption<'a>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        // A tail shorter than an option's header can only be padding.
        let (head, rest) = self.rest.split_at_checked(4)?;
        let (code, len) = (self.order.u16(head, 0), usize::from(self.order.u16(head, 2)));
        if code == code::END {
            self.rest = &[];
            return None;
        }
        let Some(value) = rest.get(..len) else {
            return Some(Err(self.overrun(code, len, rest.len())));
        };
        self.rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(BlockOption { code, value }))
    }
}
