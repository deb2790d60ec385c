//! Judgements about published conclusions, computed from the results of a suite.
//!
//! A conclusion compares two results, such as the highest rate of one sensor and that of another one. It holds, or it does
//! not; or it is not decided, because a result is missing, or because both took all that the generator sent.

use crate::duts::Duts;
use crate::scaling;
use crate::search::Bound;
use crate::suite::conclusion::{AtRate, By, Conclusion, Relation, Selection};
use crate::suite::{Axis, Napi, Quantity, Rate, Suite};
use crate::summary::{Line, Spread};

/// A sensor that captures so much of what is offered is limited by the generator.
const ALL: f64 = 0.98;

/// The decision about a conclusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The relation is as claimed.
    Holds,
    /// It is not.
    DoesNotHold,
    /// The results do not decide.
    NotDecided,
}

/// A conclusion with its verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The claim.
    pub claim: String,
    /// The numbers, or the reason why it is not decided.
    pub reason: String,
}

impl Judgement {
    /// Claim, verdict and reason.
    pub fn sentence(&self) -> String {
        format!("\"{}\" {}: {}.", self.claim, self.verdict.words(), self.reason)
    }
}

impl Verdict {
    /// The verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Holds => "holds here",
            Verdict::DoesNotHold => "does not hold here",
            Verdict::NotDecided => "is not decided here",
        }
    }
}

/// A result that was selected.
struct Found<'a> {
    line: &'a Line,
    quantity: Quantity,
    value: Spread,
}

/// The judgements about all conclusions of a suite.
pub fn judgements(suite: &Suite, sensors: &Duts, lines: &[Line]) -> Vec<Judgement> {
    let slows = suite.napi.iter().all(|napi| *napi == Napi::Inline);
    suite.conclusions.iter().map(|one| judgement(one, suite, sensors, lines, slows)).collect()
}

fn judgement(
    conclusion: &Conclusion,
    suite: &Suite,
    sensors: &Duts,
    lines: &[Line],
    slows: bool,
) -> Judgement {
    let (verdict, reason) = decided(conclusion, suite, sensors, lines, slows);
    Judgement { verdict, claim: conclusion.claim.clone(), reason }
}

/// The verdict, and the numbers or the reason. `slows`: whether a receiver slows its generator.
fn decided(
    conclusion: &Conclusion,
    suite: &Suite,
    sensors: &Duts,
    lines: &[Line],
    slows: bool,
) -> (Verdict, String) {
    let (quantity, of, to, is, factor) = match &conclusion.by {
        By::NotHere(reason) => return (Verdict::NotDecided, reason.clone()),
        By::Results { quantity, of, to, is, factor } => (*quantity, of, to, *is, *factor),
        By::Value { quantity, of, value, is, factor } => {
            let Some(found) = find(of, *quantity, lines) else {
                return (Verdict::NotDecided, format!("no result of {}", shown(of, sensors)));
            };
            let ours = found.value.median;
            let numbers = format!(
                "{}: {}; published: {}",
                shown(of, sensors),
                number(found.quantity, ours),
                number(found.quantity, *value)
            );
            return (of_ratio(ours / value, *is, *factor), numbers);
        }
        By::Scaling { sensor, devices, cores, factor } => {
            return match scaling::scaled(suite, lines, sensor, *devices, *cores) {
                Ok(scaled) => {
                    let verdict = of_ratio(scaled.ratio, Relation::More, *factor);
                    let is_open = scaled.is_least && verdict == Verdict::DoesNotHold;
                    (if is_open { Verdict::NotDecided } else { verdict }, scaled.words)
                }
                Err(reason) => (Verdict::NotDecided, reason),
            };
        }
    };
    let missing = |of: &Selection| (Verdict::NotDecided, format!("no result of {}", shown(of, sensors)));
    let Some(one) = find(of, quantity, lines) else { return missing(of) };
    let Some(other) = find(to, quantity, lines) else { return missing(to) };
    let (ours, theirs) = (one.value.median, other.value.median);
    let numbers = format!(
        "{}: {}; {}: {}",
        shown(of, sensors),
        number(one.quantity, ours),
        shown(to, sensors),
        number(other.quantity, theirs)
    );
    if theirs <= 0.0 {
        return (Verdict::NotDecided, numbers);
    }
    let ratio = ours / theirs;
    let mut numbers = format!("{numbers}; {ratio:.2} times");
    if let Some(reason) = without_cores(&one, &other).or_else(|| unconfirmed(&[&one, &other])) {
        return (Verdict::NotDecided, format!("{numbers}, but {reason}"));
    }
    if is_limited(&one) && is_limited(&other) {
        numbers += ", and both took all that the generator sent";
        // Where the kernel receives within the sending, a receiver slows its generator: less that is sent is a difference of
        // the receivers then, and the same is none.
        let is_same = (1.0 / factor..=factor).contains(&ratio);
        if is != Relation::Same && (is_same || !slows) {
            return (Verdict::NotDecided, numbers);
        }
    }
    (of_ratio(ratio, is, factor), numbers)
}

/// The verdict about a ratio.
fn of_ratio(ratio: f64, is: Relation, factor: f64) -> Verdict {
    let holds = match is {
        Relation::More => ratio >= factor,
        Relation::Less => ratio <= 1.0 / factor,
        Relation::Same => (1.0 / factor..=factor).contains(&ratio),
    };
    if holds { Verdict::Holds } else { Verdict::DoesNotHold }
}

/// The reason why results of different numbers of workers say nothing about workers: they share cores.
fn without_cores(one: &Found<'_>, other: &Found<'_>) -> Option<String> {
    let case = |found: &Found<'_>| (found.line.case.workers.unwrap_or(1), found.line.case.cores.len());
    let (ours, theirs) = (case(one), case(other));
    let (workers, cores) = if ours.0 > theirs.0 { ours } else { theirs };
    let has_fewer = ours.0 != theirs.0 && workers > cores;
    has_fewer.then(|| format!("{workers} workers had {cores} core{} here", if cores == 1 { "" } else { "s" }))
}

/// The reason why a rate that was searched for decides nothing.
fn unconfirmed(found: &[&Found<'_>]) -> Option<String> {
    let searched = found.iter().filter(|found| found.quantity == Quantity::Rate);
    let bounds = searched.filter_map(|found| found.line.found.last()).map(|(_, _, bound)| *bound);
    let mut reasons = bounds.filter_map(|bound| match bound {
        Bound::Loss => None,
        Bound::Generator => Some("the generator was the limit of a search".to_owned()),
        Bound::Trials => Some("a search was not confirmed".to_owned()),
    });
    reasons.next()
}

/// Whether the generator was the limit.
fn is_limited(found: &Found<'_>) -> bool {
    let is_rate = matches!(found.quantity, Quantity::Captured | Quantity::Analysed);
    is_rate && found.line.offered.is_some_and(|offered| found.value.median >= ALL * offered.median)
}

/// The result that a selection means.
fn find<'a>(of: &Selection, quantity: Quantity, lines: &'a [Line]) -> Option<Found<'a>> {
    fn is<T: PartialEq>(wanted: Option<T>, value: Option<T>) -> bool {
        wanted.is_none() || wanted == value
    }
    let quantity = of.quantity.unwrap_or(quantity);
    let matching = lines.iter().filter(|line| {
        let case = &line.case;
        case.sensor == of.sensor
            && is(of.size, case.size)
            && is(of.loops, case.loops)
            && is(of.cores, Some(case.cores.len()))
            && is(of.workers, case.workers)
            && is(of.queues, Some(case.queues))
            && is(of.calls, case.calls)
            && of.pps.is_none_or(|pps| line.case.rate == Rate::Pps(pps))
            && is(of.devices, Some(case.devices.unwrap_or(1)))
    });
    let found = matching.filter_map(|line| Some(Found { line, quantity, value: line.value(quantity)? }));
    // Of times per packet, the highest value is of no interest.
    let by_rate = of.rate == AtRate::Highest || !matches!(quantity, Quantity::Captured | Quantity::Analysed);
    let place = |found: &Found<'_>| match by_rate {
        true => found.line.place(Axis::Rate).unwrap_or(0.0),
        false => found.value.median,
    };
    found.max_by(|one, other| place(one).total_cmp(&place(other)))
}

/// A selection in words.
fn shown(of: &Selection, sensors: &Duts) -> String {
    let title = sensors.get(&of.sensor).map_or(&*of.sensor, |adapter| &*adapter.title);
    let mut words = vec![title.to_owned()];
    words.extend(of.size.map(|size| format!("{size} bytes")));
    words.extend(of.loops.map(|loops| format!("{loops} loops")));
    let several =
        |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    words.extend(of.cores.map(|cores| several(cores, "core")));
    words.extend(of.queues.map(|queues| several(queues as usize, "RX queue")));
    words.extend(of.workers.map(|workers| several(workers, "worker")));
    words.extend(of.devices.map(|devices| several(devices as usize, "device")));
    words.extend(of.calls.map(|calls| format!("{calls} calls")));
    words.extend(of.pps.map(|pps| format!("{:.0} kpps offered", pps / 1e3)));
    words.extend((of.rate == AtRate::Highest).then(|| "at the highest rate".to_owned()));
    words.extend(of.quantity.map(|quantity| quantity.title().0.to_lowercase()));
    words.join(", ")
}

/// A value with its unit.
fn number(quantity: Quantity, value: f64) -> String {
    match quantity {
        Quantity::Cpu | Quantity::Generator => format!("{value:.0} ns a packet"),
        Quantity::Loss => format!("{:.2} %", value * 100.0),
        Quantity::Idle => format!("{:.0} %", value * 100.0),
        // Three digits at least, since values are compared to some hundredths.
        _ if value < 1e5 => format!("{:.1} kpps", value / 1e3),
        _ => format!("{:.0} kpps", value / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::machine::Machine;
    use crate::results::{FoundRow, Results, Row};
    use crate::schedule;
    use crate::summary::summarise;
    use crate::trial::Measured;

    const TEXT: &str = r#"
name = "a"
sensors = ["tcpdump", "wirelane-count"]
rates = [1000, 2000, 3000]
cores = [[1]]
repetitions = 1
"#;

    /// Judgements about conclusions in this text: of tcpdump 900, 800 and 700 packets are captured a second, of the other
    /// one 990, 1990 and 1500.
    fn judged(text: &str) -> Vec<Judgement> {
        let (sensors, text) = (Duts::shipped(), format!("{TEXT}{text}"));
        let suite = Suite::parse(&text, Path::new("b"), &sensors).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::begin(&folder.path().join("r"), &text, &Machine::describe()).unwrap();
        for trial in schedule::trials(&suite, &sensors) {
            let (case, rate) = (trial.case.key(), trial.case.rate.name());
            let Rate::Pps(pps) = trial.case.rate else { panic!() };
            let at = pps as usize / 1000 - 1;
            let captured = match &*trial.case.sensor {
                "tcpdump" => [900, 800, 700][at],
                _ => [990, 1990, 1500][at],
            };
            let measured = Measured {
                offered: pps as u64,
                captured,
                analysed: captured,
                duration_s: 1.0,
                ..Measured::default()
            };
            results.add(Row { case, repetition: 1, rate, search: String::new(), measured }).unwrap();
        }
        let lines = summarise(&suite, &sensors, &results).unwrap().lines;
        judgements(&suite, &sensors, &lines)
    }

    fn conclusion(of: &str, to: &str, is: &str) -> String {
        format!(
            "[[conclusion]]\nclaim = \"x\"\ncompare = \"captured\"\nof = {{ {of} }}\nto = {{ {to} }}\nis = \"{is}\"\n"
        )
    }

    #[test]
    fn conclusions_hold_or_not_by_the_numbers() {
        let (ours, theirs) = ("sensor = \"wirelane-count\"", "sensor = \"tcpdump\"");
        let last = |sensor: &str| format!("{sensor}, rate = \"highest\"");
        use Verdict::{DoesNotHold, Holds, NotDecided};
        for (text, verdict, part) in [
            (conclusion(ours, theirs, "more"), Holds, "2.0 kpps; tcpdump: 0.9 kpps; 2.21 times"),
            (conclusion(ours, theirs, "less"), DoesNotHold, "2.21 times"),
            (conclusion(ours, theirs, "same"), DoesNotHold, "2.21 times"),
            (conclusion(&last(ours), &last(theirs), "more"), Holds, "at the highest rate: 1.5 kpps; "),
            (conclusion(&last(ours), ours, "same"), DoesNotHold, "0.75 times"),
            (conclusion(&last(ours), ours, "less"), Holds, "0.75 times"),
            (conclusion(ours, ours, "same"), Holds, "1.00 times"),
            (conclusion(ours, ours, "more"), NotDecided, "all that the generator sent"),
            (
                conclusion(ours, &format!("{theirs}, size = 1514"), "more"),
                NotDecided,
                "no result of tcpdump, 1514 bytes",
            ),
            (
                "[[conclusion]]\nclaim = \"x\"\nnot-here = \"no such card\"\n".into(),
                NotDecided,
                ": no such card.",
            ),
        ] {
            let [judgement] = &judged(&text)[..] else { panic!() };
            assert_eq!(judgement.verdict, verdict, "{text}{}", judgement.sentence());
            assert!(judgement.sentence().contains(part), "{}", judgement.sentence());
            assert!(judgement.sentence().starts_with("\"x\" "), "{}", judgement.sentence());
        }
        let published = |value: f64| {
            format!(
                "[[conclusion]]\nclaim = \"x\"\ncompare = \"captured\"\nof = {{ {ours}, pps = 2000 }}\nvalue = {value}\nis = \"more\"\n"
            )
        };
        for (value, verdict) in [(1500.0, Holds), (2500.0, DoesNotHold)] {
            let [judgement] = &judged(&published(value))[..] else { panic!() };
            assert_eq!(judgement.verdict, verdict, "{}", judgement.sentence());
            assert!(
                judgement.sentence().contains("2 kpps offered: 2.0 kpps; published: "),
                "{}",
                judgement.sentence()
            );
        }
        let factor = conclusion(ours, theirs, "more") + "factor = 2.5\n";
        assert_eq!(judged(&factor)[0].verdict, DoesNotHold);
    }

    #[test]
    fn workers_that_share_a_core_and_unconfirmed_searches_decide_nothing() {
        let text = "name = \"a\"\nsensors = [\"wirelane-count\"]\nsearch = [0]\ncores = [[1]]\nworkers = [1, 2]\n\
                    [[conclusion]]\nclaim = \"x\"\ncompare = \"rate\"\nof = { sensor = \"wirelane-count\", workers = 2 }\n\
                    to = { sensor = \"wirelane-count\", workers = 1 }\nis = \"more\"\n\
                    [[conclusion]]\nclaim = \"y\"\ncompare = \"rate\"\nof = { sensor = \"wirelane-count\", workers = 1 }\n\
                    to = { sensor = \"wirelane-count\", workers = 1 }\nis = \"same\"\n";
        let sensors = Duts::shipped();
        let suite = Suite::parse(text, Path::new("b"), &sensors).unwrap();
        for (bound, expected) in [
            (Bound::Loss, Verdict::Holds),
            (Bound::Generator, Verdict::NotDecided),
            (Bound::Trials, Verdict::NotDecided),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let mut results = Results::begin(&folder.path().join("r"), text, &Machine::describe()).unwrap();
            for trial in schedule::trials(&suite, &sensors) {
                let rate = Some(1000.0 * trial.case.workers.unwrap() as f64);
                let (case, repetition) = (trial.case.key(), 1);
                let found = FoundRow { case, repetition, rate, bound, trials: 9, ..FoundRow::default() };
                results.add_found(vec![found]).unwrap();
            }
            let lines = summarise(&suite, &sensors, &results).unwrap().lines;
            let [shared, same] = &judgements(&suite, &sensors, &lines)[..] else { panic!() };
            assert_eq!(shared.verdict, Verdict::NotDecided);
            assert!(
                shared.reason.ends_with("2.00 times, but 2 workers had 1 core here"),
                "{}",
                shared.reason
            );
            assert_eq!(same.verdict, expected, "{}", same.reason);
        }
    }

    #[test]
    fn mistakes_in_conclusions_have_their_place() {
        let sensors = Duts::shipped();
        let wrong = "[[conclusion]]\nclaim = \"x\"\nis = \"more\"\n[[conclusion]]\nclaim = \"x\"\ncompare = \"captured\"\n\
                     of = { sensor = \"ring\" }\nto = { sensor = \"tcpdump\" }\nis = \"more\"\nfactor = 0.5\n";
        let mistakes =
            Suite::parse(&format!("{TEXT}{wrong}"), Path::new("b"), &sensors).unwrap_err().to_string();
        for part in [
            "b:7:1: give compare, of, is and one of to and value; or scaling; or not-here",
            "ring is not among the sensors of this suite",
            "a factor is a number from 1 on",
        ] {
            assert!(mistakes.contains(part), "no '{part}' in {mistakes}");
        }
    }
}
