//! Size and false-positive rate of a bloom filter.
//!
//! The kernel's bloom filter map is used (`BPF_MAP_TYPE_BLOOM_FILTER`, Linux 5.16). It takes a number of entries and of
//! hash functions, and derives a power of two of bits from them (`bloom_map_alloc()` in `kernel/bpf/bloom_filter.c`).
//! So the size is chosen here, and the kernel gets a number of entries that results in this size.

/// Maximum number of hash functions that the kernel accepts.
const MOST_HASHES: u32 = 15;
/// Minimum and maximum number of bits, as powers of two.
const BITS: std::ops::RangeInclusive<u32> = 6..=32;

/// The size of a bloom filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BloomSize {
    /// Number of hash functions.
    pub hashes: u32,
    /// Number of bits, a power of two.
    pub bits: u64,
}

impl BloomSize {
    /// The smallest filter for this many entries whose false-positive rate is at most `false_positives`, with the
    /// fewest hash functions; the largest filter if none reaches that rate.
    pub fn of(entries: u64, false_positives: f64) -> BloomSize {
        let all = BITS.flat_map(|power| (1..=MOST_HASHES).map(move |hashes| (1u64 << power, hashes)));
        all.map(|(bits, hashes)| BloomSize { hashes, bits })
            .find(|size| size.false_positives(entries) <= false_positives)
            .unwrap_or(BloomSize { hashes: MOST_HASHES, bits: 1 << BITS.end() })
    }

    /// False-positive rate with this many entries: (1-e^(-kn/m))^k.
    pub fn false_positives(self, entries: u64) -> f64 {
        let hashes = f64::from(self.hashes);
        (1.0 - (-hashes * entries as f64 / self.bits as f64).exp()).powf(hashes)
    }

    /// A filter with this many hash functions and 2^`power` bits; `None` if the kernel does not support it.
    pub fn sound(hashes: u32, power: u32) -> Option<BloomSize> {
        let sound = (1..=MOST_HASHES).contains(&hashes) && BITS.contains(&power);
        sound.then(|| BloomSize { hashes, bits: 1 << power })
    }

    /// Memory in bytes.
    pub fn bytes(self) -> u64 {
        self.bits / 8
    }

    /// The number of entries to pass to the kernel to get a filter of this size.
    pub fn max_entries(self) -> u32 {
        let right = |entries: &u32| made(*entries, self.hashes) == self.bits;
        // The nominal number of entries or a few less: the kernel divides first.
        let most = (self.bits * 5 / 7 / u64::from(self.hashes)).clamp(1, u64::from(u32::MAX)) as u32;
        (most.saturating_sub(16).max(1)..=most.saturating_add(16)).rev().find(right).unwrap_or(most)
    }
}

/// The number of bits that the kernel allocates for this many entries with this many hash functions.
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
        // If no filter reaches the requested rate, the largest one is returned; callers read its actual rate.
        assert_eq!(BloomSize::of(u64::MAX, 0.001).bits, 1 << 32);
    }
}
