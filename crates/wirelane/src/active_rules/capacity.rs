//! Capacity for rules, allocated at the start: a process in the sandbox cannot get more.

use crate::error::{Error, Result};
use wirelane_rules::{MOST_RULES, RuleSet};

/// Capacity for the rules of a capture, on each device. A value of 0 selects a default: twice the need of the capture's
/// first rules, and enough for ordinary sets.
///
/// Engine `ring` allocates the memory when the capture starts; the other engines allocate on demand, except for
/// exact-match rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesCapacity {
    /// Wildcard rules. Each takes 128 bytes of counters per lane (RX queue or CPU).
    pub rules: usize,
    /// Exact-match rules, including those that packets make. Replacing a whole set needs capacity for the old and the
    /// new ones. Each takes about 200 bytes once it exists, and 16 before.
    pub exact: usize,
    /// Nodes of look-up tables, 2 KiB each.
    pub nodes: usize,
    /// Classes of look-up tables, 1,152 bytes each.
    pub classes: usize,
    /// MiB of kernel memory for named sets ([`crate::rules::NamedSet`]) and patterns ([`crate::rules::Patterns`]),
    /// those in force and their replacements. Allocated on demand. 0: a quarter of the machine's memory.
    pub sets: usize,
}

/// Maximum of each capacity.
const MOST: RulesCapacity =
    RulesCapacity { rules: MOST_RULES, exact: 1 << 26, nodes: 1 << 20, classes: 1 << 20, sets: 1 << 20 };
/// Minimum of each default capacity: sets of some hundred rules.
const FLOOR: RulesCapacity =
    RulesCapacity { rules: 512, exact: 1 << 16, nodes: 2048, classes: 2048, sets: 0 };

impl RulesCapacity {
    /// Refuses capacities above the maximum.
    ///
    /// # Errors
    /// [`Error::BadOption`].
    pub(crate) fn check(&self) -> Result<()> {
        for (name, asked, most) in [
            ("rules", self.rules, MOST.rules),
            ("exact", self.exact, MOST.exact),
            ("nodes", self.nodes, MOST.nodes),
            ("classes", self.classes, MOST.classes),
            ("sets", self.sets, MOST.sets),
        ] {
            if asked > most {
                let reason = format!("{name}={asked} is more than {most}, the most that there can be");
                return Err(Error::BadOption { option: "--rules-capacity", reason });
            }
        }
        Ok(())
    }

    /// Capacity to allocate at the start for these rules.
    ///
    /// # Errors
    /// As [`RuleSet::check`].
    pub(crate) fn for_rules(&self, rules: &RuleSet) -> Result<RulesCapacity> {
        let tables = rules.room()?;
        let need = RulesCapacity {
            rules: rules.rules.len(),
            exact: rules.exact.len(),
            nodes: tables.nodes,
            classes: tables.classes,
            sets: 0,
        };
        let sets = if self.sets == 0 { quarter_of_memory() } else { self.sets };
        Ok(RulesCapacity { sets, ..self.for_need(need) })
    }

    fn for_need(&self, need: RulesCapacity) -> RulesCapacity {
        let of = |asked: usize, need: usize, floor: usize, most: usize| match asked {
            0 => (2 * need).max(floor).min(most),
            asked => asked,
        };
        RulesCapacity {
            rules: of(self.rules, need.rules, FLOOR.rules, MOST.rules),
            exact: of(self.exact, need.exact, FLOOR.exact, MOST.exact),
            nodes: of(self.nodes, need.nodes, FLOOR.nodes, MOST.nodes),
            classes: of(self.classes, need.classes, FLOOR.classes, MOST.classes),
            sets: self.sets,
        }
    }

    /// Bytes for named sets and patterns.
    pub(crate) fn set_bytes(&self) -> u64 {
        (self.sets as u64) << 20
    }

    /// Number of counters of one lane: twice the number of rules, so that a new set has its own counters beside the old
    /// set's, and one for payload search.
    pub(crate) fn slots(&self) -> usize {
        2 * self.rules + 1
    }

    /// Slot of the payload search counter.
    pub(crate) fn search_slot(&self) -> usize {
        2 * self.rules
    }
}

/// A quarter of the machine's memory in MiB; of 4 GiB where it is unknown.
fn quarter_of_memory() -> usize {
    let all = std::fs::read_to_string("/proc/meminfo").ok();
    let line = all.as_deref().and_then(|all| all.lines().find_map(|line| line.strip_prefix("MemTotal:")));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
    (kib.unwrap_or(4 << 20) / 1024 / 4).clamp(1, MOST.sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_twice_what_is_needed_or_what_was_asked_for() {
        let need = RulesCapacity { rules: 3000, exact: 100, nodes: 5000, classes: 10, sets: 0 };
        let room = RulesCapacity { classes: 7, ..RulesCapacity::default() }.for_need(need);
        assert_eq!(room, RulesCapacity { rules: 4096, exact: 65536, nodes: 10_000, classes: 7, sets: 0 });
        assert!(quarter_of_memory() > 16, "what the machine has");
        assert!(room.check().is_ok());
        let refusal =
            RulesCapacity { rules: 4097, ..RulesCapacity::default() }.check().unwrap_err().to_string();
        assert!(refusal.contains("rules=4097 is more than 4096"), "{refusal}");
    }
}
