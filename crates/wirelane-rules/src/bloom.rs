//! Size and false-positive rate of a bloom filter.
//!
//! The kernel's own is used (`BPF_MAP_TYPE_BLOOM_FILTER`, Linux 5.16). It is told a number of entries and of hash
//! functions, and makes a power of two of bits of them (`bloom_map_alloc()` in `kernel/bpf/bloom_filter.c`). So the size is
//! chosen here, and it is told what leads to it.

/// The most hash functions that the kernel takes.
const MOST_HASHES: u32 = 15;
/// The fewest bits, and the most, as powers of two.
const BITS: std::ops::RangeInclusive<u32> = 6..=32;

/// The size of a bloom filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BloomSize {
    /// Hash functions.
    pub hashes: u32,
    /// Bits, a power of two.
    pub bits: u64,
}

impl BloomSize {
    /// The smallest for so many entries that is wrong for no larger a share of what is not in it, with the fewest hash
    /// functions; where there is none, the largest.
    pub fn of(entries: u64, false_positives: f64) -> BloomSize {
        let all = BITS.flat_map(|power| (1..=MOST_HASHES).map(move |hashes| (1u64 << power, hashes)));
        all.map(|(bits, hashes)| BloomSize { hashes, bits })
            .find(|size| size.false_positives(entries) <= false_positives)
            .unwrap_or(BloomSize { hashes: MOST_HASHES, bits: 1 << BITS.end() })
    }

    /// The share of what is not in it that it takes for an entry, once it has so many: (1-e^(-kn/m))^k.
    pub fn false_positives(self, entries: u64) -> f64 {
        let hashes = f64::from(self.hashes);
        (1.0 - (-hashes * entries as f64 / self.bits as f64).exp()).powf(hashes)
    }

    /// This many hash functions and bits, as a power of two, if the kernel makes such.
    pub fn sound(hashes: u32, power: u32) -> Option<BloomSize> {
        let sound = (1..=MOST_HASHES).contains(&hashes) && BITS.contains(&power);
        sound.then(|| BloomSize { hashes, bits: 1 << power })
    }

    /// Bytes of memory.
    pub fn bytes(self) -> u64 {
        self.bits / 8
    }

    /// The number of entries that the kernel has to be told to make it of this size.
    pub fn max_entries(self) -> u32 {
        let right = |entries: &u32| made(*entries, self.hashes) == self.bits;
        // As many as it is made for, or a few less: the kernel divides first.
        let most = (self.bits * 5 / 7 / u64::from(self.hashes)).clamp(1, u64::from(u32::MAX)) as u32;
        (most.saturating_sub(16).max(1)..=most.saturating_add(16)).rev().find(right).unwrap_or(most)
    }
}

/// The bits that the kernel gives to this many entries with this many hash functions.
fn made(entries: u32, hashes: u32) -> u64 {
    let bits = entries.checked_mul(hashes).and_then(|all| (all / 5).checked_mul(7));
    match bits.filter(|bits| *bits <= 1 << 31) {
        None => 1 << 32,
        Some(bits) => u64::from(bits).next_power_of_two().max(64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_makes_the_size_that_was_chosen() {
        for power in BITS {
            for hashes in 1..=MOST_HASHES {
                let size = BloomSize { hashes, bits: 1 << power };
                assert_eq!(made(size.max_entries(), hashes), size.bits, "{size:?}");
            }
        }
    }

    #[test]
    fn it_is_no_larger_than_it_has_to_be() {
        let million = BloomSize::of(1_000_000, 0.001);
        assert_eq!(million, BloomSize { hashes: 6, bits: 1 << 24 });
        assert!((0.0005..0.001).contains(&million.false_positives(1_000_000)));
        assert_eq!(million.bytes(), 2 << 20);
        let half = BloomSize { hashes: 15, bits: 1 << 23 };
        assert!(half.false_positives(1_000_000) > 0.001);
        assert_eq!(BloomSize::of(1, 0.001).bits, 64);
        // What cannot be had is not promised: whoever shows it asks for its share.
        assert_eq!(BloomSize::of(u64::MAX, 0.001).bits, 1 << 32);
    }
}
