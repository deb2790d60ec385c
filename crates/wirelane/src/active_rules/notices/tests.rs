use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use proptest::prelude::*;

use super::super::tests::{evaluate, observed, set};
use super::super::{ActiveRuleset, Evaluator};
use super::*;

const SECOND: u64 = 1_000_000_000;

/// Keeps all notices.
#[derive(Debug, Default)]
struct Diary(Mutex<Vec<Notice>>);

impl Observer for Diary {
    fn hear(&self, notice: &Notice) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(notice.clone());
    }
}

impl Diary {
    fn take(&self) -> Vec<Notice> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Event, id, whether exact, and packets.
    fn short(&self) -> Vec<(Event, u32, bool, u64)> {
        let short = |one: Notice| (one.event, one.id, one.exact.is_some(), one.counts.packets);
        self.take().into_iter().map(short).collect()
    }
}

fn open(devices: &[&str], text: &str) -> (ActiveRuleset, Vec<Evaluator>, Arc<Diary>) {
    let diary = Arc::new(Diary::default());
    let (rules, evaluates) = observed(devices, text, vec![diary.clone()]);
    (rules, evaluates, diary)
}

const FIRST: &str = r#"
    [[rule]]
    id = 1
    src = "192.0.2.1"
    action = "none"

    [[rule]]
    id = 2
    action = "count"

    [[exact]]
    id = 3
    src = "192.0.2.3"
    action = "pass"
    idle = 10
"#;

#[test]
fn each_change_is_told_once_with_its_counts() {
    use Event::{Added, Expired, Removed};
    let (rules, mut evaluates, diary) = open(&["", ""], FIRST);
    assert_eq!(diary.short(), [(Added, 1, false, 0), (Added, 2, false, 0), (Added, 3, true, 0)]);
    for (evaluator, last) in [(0, 1), (0, 3), (1, 3), (1, 2)] {
        evaluate(&mut evaluates[evaluator], "", [192, 0, 2, last], SECOND);
    }
    // Rule 1 stays. Rule 2 changes, and so does 3, whose entries are others in any case. Rule 4 is new.
    let next = FIRST.replace("count", "drop") + "[[rule]]\nid = 4\naction = \"none\"\n";
    rules.replace(&set(&next)).unwrap();
    assert_eq!(
        diary.short(),
        [
            (Added, 4, false, 0),
            (Removed, 2, false, 2),
            (Removed, 3, true, 2),
            (Added, 2, false, 0),
            (Added, 3, true, 0)
        ]
    );
    // An exact-match rule of a refused change was in force for a moment: it is added and removed.
    let twice = set(&FIRST.replace("id = 3", "id = 9")).exact;
    rules.extend(Vec::new(), twice).unwrap_err();
    assert_eq!(diary.short(), [(Added, 9, true, 0), (Removed, 9, true, 0)]);
    let many: String = (1..=5).map(|id| format!("[[rule]]\nid = {id}\naction = \"drop\"\n")).collect();
    rules.replace(&set(&many)).unwrap_err();
    assert_eq!(diary.short(), []);
    // An entry ends on one device, then on the other.
    evaluate(&mut evaluates[0], "", [192, 0, 2, 3], 5 * SECOND);
    for evaluator in &mut evaluates {
        evaluate(evaluator, "", [192, 0, 2, 9], 12 * SECOND);
        while rules.sweep().unwrap() {}
    }
    assert_eq!(diary.short(), [], "the first one has been hit at second 5");
    evaluate(&mut evaluates[0], "", [192, 0, 2, 9], 16 * SECOND);
    while rules.sweep().unwrap() {}
    assert_eq!(diary.short(), [(Expired, 3, true, 1)]);
    rules.remove(&[1], &[]).unwrap();
    assert_eq!(diary.short(), [(Removed, 1, false, 1)]);
    rules.flush(true).unwrap();
    assert_eq!(diary.short(), [(Removed, 2, false, 3), (Removed, 4, false, 0)]);
}

/// A packet's rule is told at its end, by the plug-ins of the rule that asked for it.
#[test]
fn rules_of_packets_end_with_the_name_of_their_plug_in() {
    let text = "[[rule]]\nid = 5\naction = \"pass\"\ninsert = { fields = [\"src\"], action = \"count\", idle = 10 }\n";
    let (rules, mut evaluates, diary) = open(&["", ""], text);
    diary.take();
    // As if the rule named one: native rules have no plug-ins.
    rules.lock().untold.plugins.insert(5, vec!["dns".to_owned()]);
    for evaluator in &mut evaluates {
        for _ in 0..3 {
            evaluate(evaluator, "", [192, 0, 2, 1], SECOND);
        }
        evaluate(evaluator, "", [192, 0, 2, 2], 9 * SECOND);
        evaluate(evaluator, "", [198, 51, 100, 1], 12 * SECOND);
    }
    while rules.sweep().unwrap() {}
    let [told] = &diary.take()[..] else { panic!() };
    assert_eq!((told.event, told.id, told.is_made), (Event::Expired, 5, true));
    assert_eq!((told.counts.packets, told.plugins.as_slice()), (4, &["dns".to_owned()][..]));
    let (key, idle_s) = told.exact.unwrap();
    assert_eq!((&key.src[..4], key.shape, idle_s), (&[192, 0, 2, 1][..], 1, 10));
    rules.remove(&[5], &[]).unwrap();
    let told = diary.take();
    let short: Vec<_> = told.iter().map(|one| (one.event, one.id, one.is_made, one.plugins.len())).collect();
    // The rule that a packet made is a rule of the plug-in, though rule 5 is gone.
    assert_eq!(
        short,
        [(Event::Removed, 5, false, 0), (Event::Removed, 5, true, 1), (Event::Removed, 5, true, 1)]
    );
}

/// A step of a random run.
#[derive(Clone, Debug)]
enum Step {
    Replace(Vec<One>),
    Extend(Vec<One>),
    Remove(u32),
    Flush(bool),
    Packet { device: usize, last: u8, seconds: u64 },
}

/// A rule: a wildcard one, one that makes others, or an exact one.
#[derive(Clone, Debug)]
struct One {
    id: u32,
    kind: u8,
    last: u8,
    idle: u32,
}

fn one() -> impl Strategy<Value = One> {
    (1u32..7, 0u8..4, 1u8..5, 0u32..4).prop_map(|(id, kind, last, idle)| One { id, kind, last, idle })
}

fn step() -> impl Strategy<Value = Step> {
    let ones = || proptest::collection::vec(one(), 0..5);
    prop_oneof![
        2 => ones().prop_map(Step::Replace),
        3 => ones().prop_map(Step::Extend),
        2 => (1u32..7).prop_map(Step::Remove),
        1 => any::<bool>().prop_map(Step::Flush),
        12 => (0usize..3, 1u8..5, 0u64..3).prop_map(|(device, last, seconds)| Step::Packet { device, last, seconds }),
    ]
}

/// Packets make rules of other fields than those of the exact ones: a rule that a packet makes in place of an expired one,
/// before that is swept, ends it without a notice.
fn text(ones: &[One]) -> String {
    let mut text = String::new();
    for One { id, kind, last, idle } in ones {
        let insert = "insert = { fields = [\"src\", \"dst\"], action = \"count\", idle = 2 }\n";
        match kind {
            0 => write!(text, "[[rule]]\nid = {id}\nsrc = \"192.0.2.{last}\"\naction = \"none\"\n"),
            1 => write!(text, "[[rule]]\nid = {id}\nsrc = \"192.0.2.{last}\"\naction = \"none\"\n{insert}"),
            _ => write!(
                text,
                "[[exact]]\nid = {id}\nsrc = \"192.0.2.{last}\"\naction = \"none\"\nidle = {idle}\n"
            ),
        }
        .unwrap();
    }
    text
}

proptest! {
    /// After any changes: a rule is added once and ends once; the rules that were added and have not ended are those in
    /// force; and the counts at the ends are those of the removed rules.
    #[test]
    fn what_was_told_is_what_is_in_force(steps in proptest::collection::vec(step(), 1..60)) {
        let (rules, mut evaluates, diary) = open(&["", "", ""], "");
        let mut there: BTreeMap<(u32, bool), Notice> = BTreeMap::new();
        let (mut of_rules, mut of_exact, mut now) = (0, 0, SECOND);
        for step in steps {
            // An id twice, the same fields twice, too many rules: such changes are refused.
            match &step {
                Step::Replace(ones) => drop(wirelane_rules::RuleSet::parse(&text(ones)).map(|set| rules.replace(&set))),
                Step::Extend(ones) => drop(
                    wirelane_rules::RuleSet::parse(&text(ones)).map(|set| rules.extend(set.rules, set.exact)),
                ),
                Step::Remove(id) => drop(rules.remove(&[*id], &[]).unwrap()),
                Step::Flush(all) => drop(rules.flush(*all).unwrap()),
                Step::Packet { device, last, seconds } => {
                    now += seconds * SECOND;
                    evaluate(&mut evaluates[*device], "", [192, 0, 2, *last], now);
                }
            }
            while rules.sweep().unwrap() {}
            for told in diary.take() {
                let key = (told.id, told.exact.is_some());
                match told.event {
                    _ if told.is_made => prop_assert!(told.event != Event::Added),
                    Event::Added => prop_assert!(there.insert(key, told.clone()).is_none(), "{key:?} twice"),
                    _ => {
                        let added = there.remove(&key);
                        prop_assert_eq!(added.map(|added| added.exact), Some(told.exact));
                    }
                }
                match (told_packets(&told), told.exact) {
                    (packets, Some(_)) => of_exact += packets,
                    (packets, None) => of_rules += packets,
                }
            }
            let state = rules.lock();
            let wildcard = state.rules().map(|rule| (rule.id, false));
            let mut all: Vec<_> = wildcard.chain(state.ids.keys().map(|id| (*id, true))).collect();
            all.sort_unstable();
            prop_assert_eq!(there.keys().copied().collect::<Vec<_>>(), all);
            let waiting: u64 = state.untold.parts.values().map(|counts| counts.packets).sum();
            prop_assert_eq!((of_rules, of_exact + waiting), (state.rules_gone.packets, state.exact_gone.packets));
        }
    }
}

fn told_packets(notice: &Notice) -> u64 {
    if notice.event == Event::Added { 0 } else { notice.counts.packets }
}
