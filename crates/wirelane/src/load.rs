//! Analysis load: simulated work per packet.

/// An odd number whose small powers are not 1.
const MIX: u64 = 0x5bd1_e995;

/// Spins for `loops` loops, as if a packet were analysed: 1000 and 25000 are the numbers that the measurements of
/// Ksensor and of its architecture used for light and heavy analysis.
///
/// A loop is a multiplication and an exclusive or that depend on the previous loop, in a register: four cycles on
/// today's cores, and as many in the kernel, where the test-bed's `programs/load.bpf.c` does the same. Loops that pass
/// a value through memory (as [`std::hint::black_box`] does) take as long as the core needs to predict which store a
/// load belongs to: analysis rates of one bench differed by a third from round to round.
pub fn spin(loops: u32) {
    let mut value = u64::from(loops);
    for turn in 0..loops {
        value = value.wrapping_mul(MIX) ^ u64::from(turn);
    }
    std::hint::black_box(value);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    /// Checks not the speed, but that the compiler has not found a closed formula.
    #[test]
    fn more_loops_take_longer() {
        let time = |loops| {
            let took = |_| {
                let start = Instant::now();
                super::spin(loops);
                start.elapsed()
            };
            (0..5).map(took).min().unwrap()
        };
        assert!(time(50_000_000) > 10 * time(500_000));
    }
}
