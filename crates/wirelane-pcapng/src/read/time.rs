//! Conversion of file timestamps to nanoseconds since 1970.

/// Nanoseconds per second.
const NANOS: u64 = 1_000_000_000;

/// The unit of an interface's timestamps: `if_tsresol` of pcapng (draft-ietf-opsawg-pcapng, section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampResolution {
    /// Units of 10^-n s: 6 is microseconds, 9 nanoseconds.
    Decimal(u8),
    /// Units of 2^-n s.
    Binary(u8),
}

impl TimestampResolution {
    /// Decodes the option's byte: the highest bit selects the base, the rest is the exponent.
    pub(super) fn from_option(byte: u8) -> TimestampResolution {
        match byte & 0x80 {
            0 => TimestampResolution::Decimal(byte),
            _ => TimestampResolution::Binary(byte & 0x7f),
        }
    }
}

/// Converts the timestamps of one interface to UTC nanoseconds.
///
/// Times before 1970 become 0 and times after 2554 become `u64::MAX`: such values are damage or nonsense, and a packet
/// is more important than its timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    scale: Scale,
    offset_ns: i128,
}

/// Conversion of units to nanoseconds. A finer unit than 10^-28 s cannot reach one nanosecond in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Multiply(u64),
    Divide(u64),
    Shift(u32),
    Nothing,
}

impl Clock {
    /// The clock of an interface with this resolution and `if_tsoffset` in seconds.
    pub(super) fn new(resolution: TimestampResolution, offset_s: i64) -> Clock {
        let scale = match resolution {
            TimestampResolution::Decimal(n @ 0..=9) => Scale::Multiply(10u64.pow(u32::from(9 - n))),
            TimestampResolution::Decimal(n @ 10..=28) => Scale::Divide(10u64.pow(u32::from(n - 9))),
            TimestampResolution::Decimal(_) => Scale::Nothing,
            TimestampResolution::Binary(n) => Scale::Shift(u32::from(n & 0x7f)),
        };
        Clock { scale, offset_ns: i128::from(offset_s) * i128::from(NANOS) }
    }

    /// UTC nanoseconds of a timestamp in units of the interface.
    pub(super) fn nanoseconds(&self, units: u64) -> u64 {
        // Neither product can overflow: 64 bits times at most 30 bits.
        let nanos = match self.scale {
            Scale::Multiply(factor) => u128::from(units) * u128::from(factor),
            Scale::Divide(divisor) => u128::from(units / divisor),
            Scale::Shift(bits) => (u128::from(units) * u128::from(NANOS)) >> bits,
            Scale::Nothing => 0,
        };
        let sum = nanos.cast_signed() + self.offset_ns;
        u64::try_from(sum).unwrap_or(if sum < 0 { 0 } else { u64::MAX })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(resolution: TimestampResolution, offset_s: i64, units: u64) -> u64 {
        Clock::new(resolution, offset_s).nanoseconds(units)
    }

    #[test]
    fn known_times() {
        use TimestampResolution::{Binary, Decimal};
        assert_eq!(at(Decimal(6), 0, 1_700_000_000_123_456), 1_700_000_000_123_456_000);
        assert_eq!(at(Decimal(9), 0, 1_700_000_000_123_456_789), 1_700_000_000_123_456_789);
        assert_eq!(at(Decimal(0), 0, 1_700_000_000), 1_700_000_000_000_000_000);
        assert_eq!(at(Decimal(12), 0, 1_999), 1);
        assert_eq!(at(Decimal(19), 0, u64::MAX), 1_844_674_407);
        assert_eq!(at(Decimal(28), 0, u64::MAX), 1);
        assert_eq!(at(Decimal(29), 0, u64::MAX), 0);
        assert_eq!(at(Decimal(127), 5, u64::MAX), 5_000_000_000);
        assert_eq!(at(Binary(0), 0, 3), 3_000_000_000);
        assert_eq!(at(Binary(1), 0, 3), 1_500_000_000);
        assert_eq!(at(Binary(63), 0, 1 << 63), 1_000_000_000);
        assert_eq!(at(Binary(127), 0, u64::MAX), 0);
        assert_eq!(at(Decimal(6), -10, 20_000_000), 10_000_000_000);
        assert_eq!(at(Decimal(6), -30, 20_000_000), 0, "before 1970");
        assert_eq!(at(Decimal(0), 0, u64::MAX), u64::MAX, "after 2554");
        assert_eq!(at(Decimal(0), i64::MIN, u64::MAX), u64::MAX, "sums beyond both ends");
        assert_eq!(at(Decimal(0), i64::MIN, 0), 0);
    }

    proptest! {
        /// Comparison with the definition in floating point: units / 10^n (or 2^n) + offset.
        #[test]
        fn agrees_with_the_definition(byte: u8, offset in -4_000_000_000i64..4_000_000_000, units: u64) {
            let resolution = TimestampResolution::from_option(byte);
            let unit = match resolution {
                TimestampResolution::Decimal(n) => 10f64.powi(-i32::from(n)),
                TimestampResolution::Binary(n) => 2f64.powi(-i32::from(n)),
            };
            let expected = ((units as f64 * unit + offset as f64) * 1e9).clamp(0.0, u64::MAX as f64);
            let got = at(resolution, offset, units) as f64;
            prop_assert!((got - expected).abs() <= 2.0 + expected.max(4e18) * 1e-15, "{got} {expected}");
        }
    }
}
