//! Memory check for named sets and patterns.

use std::sync::Arc;

use wirelane_bpf::search::Search;

use crate::error::{Error, Result};
use wirelane_rules::{NamedSet, RuleSet};

/// Refuses sets and patterns that take more than `room` MiB in the kernel, together with those in force, which are
/// freed only after the switch. Returns the payload search automaton, which is shared as long as it is in use.
///
/// # Errors
/// [`Error::BadOption`], which states the required memory.
pub(super) fn fit(new: &RuleSet, old: &RuleSet, room: usize) -> Result<Arc<Search>> {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let sum = |sets: &[&NamedSet]| sets.iter().map(|set| set.kernel_bytes()).fold(0, u64::saturating_add);
    let wanted: Vec<&NamedSet> = new.sets_in_use().collect();
    let made = search(new, room);
    let bytes_of = |made: &std::result::Result<Arc<Search>, u64>| match made {
        Ok(search) => search.bytes() as u64,
        Err(bytes) => *bytes,
    };
    let patterns = bytes_of(&made);
    // A set that stays the same exists once.
    let leaving: Vec<&NamedSet> = old.sets_in_use().filter(|set| !wanted.contains(set)).collect();
    let same = new.patterns_in_use() == old.patterns_in_use();
    let before = if same { 0 } else { bytes_of(&search(old, room)) };
    let wanted_bytes = sum(&wanted).saturating_add(patterns);
    let leaving = sum(&leaving).saturating_add(before);
    let needed = wanted_bytes.saturating_add(leaving);
    if let Ok(made) = made
        && (wanted_bytes == 0 || mib(needed) <= room as u64)
    {
        return Ok(made);
    }
    let mut each: Vec<String> =
        wanted.iter().map(|set| format!("{} {} MiB", set.name, mib(set.kernel_bytes()))).collect();
    if patterns > 0 {
        each.push(format!("patterns {} MiB", mib(patterns)));
    }
    let beside = match leaving {
        0 => String::new(),
        bytes => format!(" beside {} MiB of those in force, which go only then", mib(bytes)),
    };
    Err(Error::BadOption {
        option: "--rules-capacity",
        reason: format!(
            "the named sets and patterns are too large for memory: they need {} MiB ({}){beside}, and there is room for \
             {room}: start the capture with --rules-capacity sets={}, or ask for more false positives, for no confirmation, or \
             for fewer patterns",
            mib(wanted_bytes),
            each.join(", "),
            mib(needed)
        ),
    })
}

/// The payload search automaton. If its states alone exceed the memory limit it is not built, and the error is the
/// number of bytes that they take.
fn search(rules: &RuleSet, room: usize) -> std::result::Result<Arc<Search>, u64> {
    let least = rules.search_bytes();
    if least > (room as u64).saturating_mul(1 << 20) { Err(least) } else { Ok(rules.search()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wirelane_rules::NamedSet;

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
        assert!(refusal.contains("room for 1: start the capture with --rules-capacity sets=2"), "{refusal}");
        // The same set twice exists once; a different one exists beside the first.
        assert!(fit(&million, &million.clone(), 2).is_ok());
        let refusal = fit(&set(1 << 20, "false-positives = 0.0009"), &million, 3).unwrap_err().to_string();
        assert!(refusal.contains("beside 2 MiB of those in force"), "{refusal}");
        // Patterns take memory beside named sets.
        let words = |first: u32| {
            let list: String = (first..first + 1000).map(|number| format!("\"{number:08}\", ")).collect();
            let text = format!("[[patterns]]\nname = \"words\"\nid = 1\ntext = [{list}]\n");
            RuleSet::parse(&(text + "[[rule]]\nid = 1\npayload = \"words\"\naction = \"drop\"\n")).unwrap()
        };
        let (some, others) = (words(10_000_000), words(20_000_000));
        let refusal = fit(&some, &none, 1).unwrap_err().to_string();
        assert!(refusal.contains("they need 2 MiB (patterns 2 MiB), and there is room for 1:"), "{refusal}");
        assert!(fit(&some, &none, 2).is_ok() && fit(&some, &some.clone(), 2).is_ok());
        let refusal = fit(&others, &some, 2).unwrap_err().to_string();
        assert!(refusal.contains("beside 2 MiB of those in force"), "{refusal}");
        // A table of all entries: 128 bytes each, and 16 for each bucket.
        let sure = fit(&set(1 << 20, "confirm = true"), &none, 100).unwrap_err().to_string();
        assert!(sure.contains("they need 146 MiB"), "{sure}");
    }
}
