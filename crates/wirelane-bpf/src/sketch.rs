//! The sketches of `bpf/lib/sketch.h`, compiled natively: the number of different keys, and the keys with the largest
//! counts, each in little memory and with a known error.
//!
//! The C header is the source of [`TopEntry`].

pub use crate::abi::TopEntry;
use crate::abi::{wl_native_class, wl_native_hll_add, wl_native_key_hash, wl_native_top_add};

/// Words of a key (`WL_KEY_WORDS`).
pub const KEY_WORDS: usize = crate::abi::WL_KEY_WORDS as usize;
/// Entries of a set (`WL_TOP_WAYS`).
pub const WAYS: usize = crate::abi::WL_TOP_WAYS as usize;
/// Minimum number of bits of [`Distinct`] (`WL_HLL_MIN_BITS`).
pub const MIN_BITS: u32 = crate::abi::WL_HLL_MIN_BITS;
/// Maximum number of bits of [`Distinct`] (`WL_HLL_MAX_BITS`).
pub const MAX_BITS: u32 = crate::abi::WL_HLL_MAX_BITS;
/// Classes of a histogram by powers of two (`WL_CLASSES`).
pub const CLASSES: usize = crate::abi::WL_CLASSES as usize;

/// A key, in words.
pub type Key = [u64; KEY_WORDS];

/// The hash of a key, unpredictable without the seed. (`wl_key_hash()`)
#[inline]
pub fn key_hash(key: &Key, seed: u64) -> u64 {
    // SAFETY: C reads KEY_WORDS words, which are there.
    unsafe { wl_native_key_hash(key.as_ptr(), seed) }
}

/// The class of a number in a histogram by powers of two, below [`CLASSES`]: 0 for 0, `n` for `2^(n-1)` to `2^n - 1`;
/// the last one has all larger numbers. (`wl_class()`)
#[inline]
pub fn class(value: u64) -> usize {
    // SAFETY: takes a number.
    unsafe { wl_native_class(value) as usize }
}

/// Estimates the number of different keys: HyperLogLog, with a standard error of `1.04 / sqrt(2^bits)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distinct {
    registers: Box<[u8]>,
    bits: u32,
}

impl Distinct {
    /// An empty counter of `2^bits` bytes.
    ///
    /// # Panics
    /// If `bits` is not in the range [`MIN_BITS`] to [`MAX_BITS`].
    pub fn new(bits: u32) -> Distinct {
        assert!((MIN_BITS..=MAX_BITS).contains(&bits), "{bits} bits of a hash cannot choose a register");
        Distinct { registers: vec![0; 1 << bits].into(), bits }
    }

    /// Counts a key, by its [`key_hash`]. (`wl_hll_add()`)
    #[inline]
    pub fn add(&mut self, hash: u64) {
        // SAFETY: there are 2^bits registers, and C writes the one that the first `bits` bits of the hash choose;
        // `bits` is within its limits, as `new` has checked.
        unsafe { wl_native_hll_add(self.registers.as_mut_ptr(), self.bits, hash) };
    }

    /// Merges another counter with the same seed.
    ///
    /// # Panics
    /// If it has another number of registers.
    pub fn merge(&mut self, other: &Distinct) {
        assert_eq!(self.bits, other.bits, "sketches of different sizes have nothing in common");
        for (ours, theirs) in self.registers.iter_mut().zip(&other.registers) {
            *ours = (*ours).max(*theirs);
        }
    }

    /// Estimated number of keys, by Ertl's estimator (arXiv:1702.01284, algorithm 6), which has no bias from none to
    /// 2^60.
    pub fn estimate(&self) -> f64 {
        let registers = self.registers.len() as f64;
        let last = (65 - self.bits) as usize;
        let mut number = vec![0.0f64; last + 1];
        for rank in &self.registers {
            number[usize::from(*rank).min(last)] += 1.0;
        }
        let mut z = registers * tau(1.0 - number[last] / registers);
        for rank in (1..last).rev() {
            z = 0.5 * (z + number[rank]);
        }
        z += registers * sigma(number[0] / registers);
        // 1 / (2 ln 2)
        0.5 / std::f64::consts::LN_2 * registers * registers / z
    }

    /// The standard error, as a fraction of the number.
    pub fn error(bits: u32) -> f64 {
        1.04 / f64::from(1u32 << bits).sqrt()
    }
}

/// Contribution of the registers that are still 0. Infinite if all are.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// Contribution of the registers that have reached their maximum.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

/// The keys with the largest counts: Space-Saving in sets of [`WAYS`] entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    entries: Box<[TopEntry]>,
}

impl Top {
    /// An empty table; `sets` must be a power of two.
    ///
    /// # Panics
    /// If `sets` is not a power of two.
    pub fn new(sets: usize) -> Top {
        assert!(sets.is_power_of_two(), "{sets} sets cannot be chosen by a hash");
        Top { entries: vec![TopEntry::default(); sets * WAYS].into() }
    }

    fn set_of(&self, hash: u64) -> usize {
        (hash as usize & (self.entries.len() / WAYS - 1)) * WAYS
    }

    /// Adds `weight` to a key with this [`key_hash`]. (`wl_top_add()`)
    #[inline]
    pub fn add(&mut self, key: &Key, hash: u64, weight: u64) {
        let at = self.set_of(hash);
        let set = &mut self.entries[at..at + WAYS];
        // SAFETY: the set has WAYS entries with the layout of C's struct; C writes within them, and
        // reads KEY_WORDS words of the key.
        unsafe { wl_native_top_add(set.as_mut_ptr(), key.as_ptr(), weight) };
    }

    /// Upper bound of the count of a key that has no entry; `hash` is its [`key_hash`].
    pub fn most_without_entry(&self, hash: u64) -> u64 {
        let at = self.set_of(hash);
        self.entries[at..at + WAYS].iter().map(|entry| entry.count).min().unwrap_or(0)
    }

    /// The entries in use, in arbitrary order.
    pub fn entries(&self) -> impl Iterator<Item = &TopEntry> {
        self.entries.iter().filter(|entry| entry.count > 0)
    }

    /// Merges another table of the same size and seed. The bounds hold for the sums; of more than [`WAYS`] keys of a
    /// set those with the largest counts stay, and the count of a key without an entry is still at most the smallest of
    /// them.
    ///
    /// # Panics
    /// If it has another size.
    pub fn merge(&mut self, other: &Top) {
        assert_eq!(
            self.entries.len(),
            other.entries.len(),
            "sketches of different sizes have nothing in common"
        );
        let least = |set: &[TopEntry]| set.iter().map(|entry| entry.count).min().unwrap_or(0);
        let has =
            |set: &[TopEntry], key: &Key| set.iter().find(|one| one.count > 0 && one.key == *key).copied();
        for (ours, theirs) in self.entries.chunks_exact_mut(WAYS).zip(other.entries.chunks_exact(WAYS)) {
            let (our_least, their_least) = (least(ours), least(theirs));
            let without = |least: u64| TopEntry { count: least, error: least, key: Key::default() };
            let mut sums: Vec<TopEntry> = Vec::with_capacity(2 * WAYS);
            for entry in ours.iter().chain(theirs).filter(|entry| entry.count > 0) {
                if sums.iter().any(|sum| sum.key == entry.key) {
                    continue;
                }
                let a = has(ours, &entry.key).unwrap_or(without(our_least));
                let b = has(theirs, &entry.key).unwrap_or(without(their_least));
                sums.push(TopEntry { count: a.count + b.count, error: a.error + b.error, key: entry.key });
            }
            sums.sort_by(|a, b| b.count.cmp(&a.count).then(a.key.cmp(&b.key)));
            sums.resize(WAYS, TopEntry::default());
            ours.copy_from_slice(&sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        for (value, expected) in
            [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (1 << 38, 39), (u64::MAX, 39)]
        {
            assert_eq!(class(value), expected, "{value}");
        }
    }

    /// The numbers 0 to `end` as keys.
    fn keys(end: u64) -> impl Iterator<Item = Key> {
        (0..end).map(|number| [number, 0, 0, 0, 0, number.rotate_left(40)])
    }

    /// Battery: I10
    #[test]
    fn a_million_keys_are_counted_within_the_error_that_is_stated() {
        for bits in [10, 14] {
            let (mut distinct, mut half) = (Distinct::new(bits), Distinct::new(bits));
            let mut next = 1;
            let mut worst: f64 = 0.0;
            for (number, key) in keys(1_000_000).enumerate() {
                let hash = key_hash(&key, 7);
                distinct.add(hash);
                // A repeated key does not count again.
                distinct.add(hash);
                if number % 2 == 0 {
                    half.add(hash);
                }
                if number + 1 == next {
                    let error = (distinct.estimate() - next as f64) / next as f64;
                    worst = worst.max(error.abs());
                    next = next * 5 / 4 + 1;
                }
            }
            // Three times the standard error at each of sixty checks, and at the end.
            assert!(worst < 3.0 * Distinct::error(bits), "{bits} bits: {worst}");
            let before = distinct.clone();
            distinct.merge(&half);
            assert_eq!(distinct, before, "what both have counted is counted once");
        }
        assert_eq!(Distinct::new(10).estimate(), 0.0);
    }

    /// Keys of a few hosts with most of the traffic, and of a million with little: their bounds hold.
    /// Battery: I10
    #[test]
    fn the_greatest_of_a_million_keys_are_found_within_their_bounds() {
        let (seed, mut tops) = (99, [Top::new(256), Top::new(256)]);
        let mut exact = std::collections::HashMap::<Key, u64>::new();
        for (number, key) in keys(1_000_000).enumerate() {
            let hash = key_hash(&key, seed);
            for (key, weight) in
                [(key, 60), ([number as u64 % 20, 1, 0, 0, 0, 0], 1_000 + number as u64 % 20)]
            {
                let hash = if key[1] == 1 { key_hash(&key, seed) } else { hash };
                tops[number % 2].add(&key, hash, weight);
                *exact.entry(key).or_default() += weight;
            }
        }
        let mut merged = tops[0].clone();
        merged.merge(&tops[1]);
        for entry in merged.entries().chain(tops[0].entries().filter(|entry| entry.key[1] == 1)) {
            let had = exact[&entry.key];
            assert!(entry.count - entry.error <= had, "{entry:?} had {had}");
        }
        assert!(merged.entries().all(|entry| exact[&entry.key] <= entry.count));
        // The count of a key without an entry is at most the smallest one of its set.
        let there: std::collections::HashSet<Key> = merged.entries().map(|entry| entry.key).collect();
        for (key, had) in exact.iter().filter(|(key, _)| !there.contains(*key)) {
            assert!(*had <= merged.most_without_entry(key_hash(key, seed)), "{key:?} had {had}");
        }
        let mut all: Vec<&TopEntry> = merged.entries().collect();
        all.sort_by_key(|entry| std::cmp::Reverse(entry.count));
        let mut greatest: Vec<Key> = all[..20].iter().map(|entry| entry.key).collect();
        greatest.sort_unstable();
        let expected: Vec<Key> = (0..20).map(|number| [number, 1, 0, 0, 0, 0]).collect();
        assert_eq!(greatest, expected);
        for (half, top) in tops.iter().enumerate() {
            let total: u64 = top.entries().map(|entry| entry.count).sum();
            let extra: u64 = (half as u64..20).step_by(2).sum();
            assert_eq!(total, 500_000 * 1_060 + 50_000 * extra, "no weight is lost");
        }
    }

    /// The header compiles to BPF, since it is also used in the kernel.
    #[test]
    fn sketches_compile_to_bpf() {
        let clang = ["clang-19", "clang"].into_iter().find(|clang| {
            std::process::Command::new(clang).arg("--version").output().is_ok_and(|o| o.status.success())
        });
        let clang = clang.expect("the build has found one");
        let source = "#include \"lib/sketch.h\"\n\
            int use(struct wl_top_entry *set, __u8 *registers, __u64 *key)\n\
            { __u64 hash = wl_key_hash(key, 7); wl_hll_add(registers, 10, hash); wl_top_add(set, key, hash);\n\
            return wl_class(hash); }\n";
        let kernel = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf");
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        let mut child = std::process::Command::new(clang)
            .args([
                "-target",
                "bpf",
                "-mcpu=v3",
                "-O2",
                "-Wall",
                "-Werror",
                "-Wno-unused-function",
                "-x",
                "c",
            ])
            .arg(format!("-I{kernel}"))
            .arg(format!("-idirafter/usr/include/{triple}"))
            .args(["-c", "-o", "/dev/null", "-"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("clang starts");
        use std::io::Write as _;
        child.stdin.take().expect("a pipe").write_all(source.as_bytes()).expect("clang reads");
        assert!(child.wait().expect("clang ends").success());
    }
}
