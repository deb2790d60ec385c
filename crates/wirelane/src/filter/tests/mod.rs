//! The translator and the interpreter against libpcap.
//!
//! ```text
//! rejected    what does not compile, and where the error points
//! translate   each instruction of classic BPF, and what cannot be translated
//! generated   expressions of all primitives, over every capture of the corpus: equal to libpcap's verdicts
//! hostile     cut packets, lengths that lie, and steps that no translator would make
//! kernel      the kernel's compilation of the interpreter, equal to the native one
//! generator   makes the expressions
//! packets     the corpus
//! ```

mod generated;
mod generator;
mod hostile;
mod kernel;
mod packets;
mod rejected;
mod translate;

/// Numbers that look random and are the same at every run (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn one(&mut self, from: &[&'static str]) -> &'static str {
        from[self.below(from.len())]
    }

    /// Any number, often a small one or one at an end of its range.
    fn word(&mut self) -> u32 {
        match self.below(8) {
            0..=3 => self.below(64) as u32,
            4 => self.below(70_000) as u32,
            5 => u32::MAX - self.below(64) as u32,
            6 => 1 << self.below(32),
            _ => self.next() as u32,
        }
    }
}
