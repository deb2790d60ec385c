//! Capacity for rules, allocated at the start: a process in the sandbox cannot get more.

use crate::error::{Error, Result};
use wirelane_rules::{MOST_RULES, RuleSet};

/// Room for the rules of a capture, on each device. What is 0 is chosen: twice what the capture's first rules need, and
/// enough for ordinary sets.
///
/// Engine `ring` sets the memory aside when the capture starts; the other engines take what they need when they need
/// it, but for exact-match rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesCapacity {
    /// Wildcard rules. Each takes 128 bytes of counters per lane (RX queue or CPU).
    pub rules: usize,
    /// Exact-match rules, those that packets make included. Replacing a whole set takes room for the old and the new ones.
    /// Each takes about 200 bytes once it is there, and 16 before.
    pub exact: usize,
    /// Nodes of look-up tables, 2 KiB each.
    pub nodes: usize,
    /// Classes of look-up tables, 1,152 bytes each.
    pub classes: usize,
    /// MiB of the kernel's memory for named sets ([`crate::rules::NamedSet`]) and patterns ([`crate::rules::Patterns`]),
    /// those in force and those that are to replace them. It is taken when it is needed. What is 0 is a quarter of the machine's memory.
    pub sets: usize,
}

/// The most that can be asked for.
const MOST: RulesCapacity =
    RulesCapacity { rules: MOST_RULES, exact: 1 << 26, nodes: 1 << 20, classes: 1 << 20, sets: 1 << 20 };
/// The least that is set aside unasked: sets of some hundred rules.
const FLOOR: RulesCapacity =
    RulesCapacity { rules: 512, exact: 1 << 16, nodes: 2048, classes: 2048, sets: 0 };

impl RulesCapacity {
    /// Refuses what is more than there can be.
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

    /// The room that is set aside for these rules first.
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

    /// Bytes for named sets.
    pub(crate) fn set_bytes(&self) -> u64 {
        (self.sets as u64) << 20
    }

    /// Counters of one lane: twice as many as there are rules, so that a new set has counters of its own beside the old,
    /// and one for searching payloads.
    pub(crate) fn slots(&self) -> usize {
        2 * self.rules + 1
    }

    /// The one for searching payloads.
    pub(crate) fn search_slot(&self) -> usize {
        2 * self.rules
    }
}

/// In MiB; where it cannot be found out, of a machine with 4 GiB.
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
