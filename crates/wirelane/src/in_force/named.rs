//! Whether there is memory for named sets.

use crate::rules::{NamedSet, RuleSet};
use crate::{Error, Result};

/// Refuses sets that take more than so many MiB in the kernel, together with those in force that go only when they have
/// come.
///
/// # Errors
/// [`Error::BadOption`], which says how much they need.
pub(super) fn fit(new: &RuleSet, old: &RuleSet, room: usize) -> Result<()> {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let sum = |sets: &[&NamedSet]| sets.iter().map(|set| set.kernel_bytes()).fold(0, u64::saturating_add);
    let wanted: Vec<&NamedSet> = new.sets_in_use().collect();
    if wanted.is_empty() {
        return Ok(());
    }
    // One that stays as it is is there once.
    let leaving: Vec<&NamedSet> = old.sets_in_use().filter(|set| !wanted.contains(set)).collect();
    let needed = sum(&wanted).saturating_add(sum(&leaving));
    if mib(needed) <= room as u64 {
        return Ok(());
    }
    let each: Vec<String> =
        wanted.iter().map(|set| format!("{} {} MiB", set.name, mib(set.kernel_bytes()))).collect();
    let beside = match sum(&leaving) {
        0 => String::new(),
        bytes => format!(" beside {} MiB of those in force, which go only then", mib(bytes)),
    };
    Err(Error::BadOption {
        option: "--rules-room",
        reason: format!(
            "the named sets are too large for memory: they need {} MiB ({}){beside}, and there is room for {room}: start the \
             capture with --rules-room sets={}, or ask for more false positives, or for no confirmation",
            mib(sum(&wanted)),
            each.join(", "),
            mib(needed)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::NamedSet;

    fn set(entries: u32, rest: &str) -> RuleSet {
        let text = format!(
            "[[sets]]\nname = \"threats\"\nentries = \"10.0.0.0-10.{}.{}.255\"\n{rest}\n[[rule]]\nid = 1\nsrc-in = \"threats\"\n\
             action = \"drop\"\n",
            (entries - 1) >> 16,
            (entries - 1) >> 8 & 0xff
        );
        RuleSet::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[test]
    fn what_is_too_large_is_refused_with_what_it_needs() {
        let (none, million) = (RuleSet::default(), set(1 << 20, ""));
        assert_eq!(million.sets.iter().map(NamedSet::kernel_bytes).sum::<u64>(), 2 << 20);
        assert!(fit(&million, &none, 2).is_ok());
        let refusal = fit(&million, &none, 1).unwrap_err().to_string();
        assert!(refusal.contains("too large for memory: they need 2 MiB (threats 2 MiB)"), "{refusal}");
        assert!(refusal.contains("room for 1: start the capture with --rules-room sets=2"), "{refusal}");
        // Twice the same is there once; another one beside the first.
        assert!(fit(&million, &million.clone(), 2).is_ok());
        let refusal = fit(&set(1 << 20, "false-positives = 0.0009"), &million, 3).unwrap_err().to_string();
        assert!(refusal.contains("beside 2 MiB of those in force"), "{refusal}");
        // A table of all entries: 128 bytes each, and 16 for each bucket.
        let sure = fit(&set(1 << 20, "confirm = true"), &none, 100).unwrap_err().to_string();
        assert!(sure.contains("they need 146 MiB"), "{sure}");
    }
}
