//! Sets of CPUs in the form in which the kernel writes them: `0-3,8` (cpuset(7), "List format").

use std::collections::BTreeSet;

/// CPUs by number.
pub type CpuSet = BTreeSet<usize>;

/// The highest accepted CPU number: the capacity of a `cpu_set_t`, less one.
pub const LAST_CPU: usize = 1023;

/// Parses a list; `None` if it is malformed. The empty text is the empty set.
pub fn parse(list: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for part in list.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last): (usize, usize) = match part.split_once('-') {
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None => {
                let one = part.parse().ok()?;
                (one, one)
            }
        };
        if first > last || last > LAST_CPU {
            return None;
        }
        set.extend(first..=last);
    }
    Some(set)
}

/// Formats a list, as the kernel does.
pub fn format(set: &CpuSet) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut cpus = set.iter().copied().peekable();
    while let Some(first) = cpus.next() {
        let mut last = first;
        while cpus.next_if_eq(&(last + 1)).is_some() {
            last += 1;
        }
        parts.push(if first == last { first.to_string() } else { format!("{first}-{last}") });
    }
    parts.join(",")
}

/// Parses a bit mask, as in `rps_cpus`: 32 bits in hexadecimal between commas, the highest first.
pub fn parse_mask(mask: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for (word, digits) in mask.trim().split(',').rev().enumerate() {
        let bits = u32::from_str_radix(digits, 16).ok()?;
        set.extend((0..32).filter(|bit| bits & (1 << bit) != 0).map(|bit| word * 32 + bit));
    }
    set.iter().all(|cpu| *cpu <= LAST_CPU).then_some(set)
}

/// Formats a bit mask.
pub fn format_mask(set: &CpuSet) -> String {
    let words = set.last().map_or(1, |last| last / 32 + 1);
    let mut bits = vec![0u32; words];
    for cpu in set {
        bits[cpu / 32] |= 1 << (cpu % 32);
    }
    bits.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_those_of_the_kernel() {
        assert_eq!(parse("0-2,8\n"), Some(CpuSet::from([0, 1, 2, 8])));
        assert_eq!(parse("\n"), Some(CpuSet::new()));
        for wrong in ["3-1", "a", "1-", "0-99999999999", "5000"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(parse_mask("00000001,80000003\n"), Some(CpuSet::from([0, 1, 31, 32])));
        assert_eq!(parse_mask("0"), Some(CpuSet::new()));
        assert_eq!(parse_mask("zz"), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(set in prop::collection::btree_set(0..=LAST_CPU, 0..40)) {
            prop_assert_eq!(parse_mask(&format_mask(&set)), Some(set.clone()));
            prop_assert_eq!(parse(&format(&set)), Some(set));
        }
    }
}
