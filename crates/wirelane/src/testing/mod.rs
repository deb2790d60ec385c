//! What tests of several modules use: dice, and the packets of the corpus.

pub(crate) mod packets;

/// Numbers that look random and are the same at every run (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub(crate) fn one(&mut self, from: &[&'static str]) -> &'static str {
        from[self.below(from.len())]
    }

    /// Any number, often a small one or one at an end of its range.
    pub(crate) fn word(&mut self) -> u32 {
        match self.below(8) {
            0..=3 => self.below(64) as u32,
            4 => self.below(70_000) as u32,
            5 => u32::MAX - self.below(64) as u32,
            6 => 1 << self.below(32),
            _ => self.next() as u32,
        }
    }
}
