//! A page in Markdown with the verdict about each published conclusion.

use std::fmt::Write as _;

use crate::judge::{Judgement, Verdict};
use crate::page::Report;
use crate::suite::Suite;

/// File in a folder of results.
pub const CONCLUSIONS: &str = "conclusions.md";

/// The page about these suites.
pub fn page(reports: &[(&Suite, &Report)]) -> String {
    let all = || reports.iter().flat_map(|(_, report)| &report.summary.judgements);
    let count = |verdict: Verdict| all().filter(|one| one.verdict == verdict).count();
    let mut text = format!(
        "# Published conclusions, decided by results\n\nOf {} conclusions, {} hold here, {} do not hold, and {} are not decided.\n",
        all().count(),
        count(Verdict::Holds),
        count(Verdict::DoesNotHold),
        count(Verdict::NotDecided)
    );
    let mut machine = String::new();
    for (suite, report) in reports.iter().filter(|(_, report)| !report.summary.judgements.is_empty()) {
        let _ = write!(text, "\n## {}\n\n{}", suite.title, extent(suite, report));
        if machine != report.machine.short() {
            machine = report.machine.short();
            let _ = write!(text, " {machine}.");
        }
        text += "\n\n";
        for judgement in &report.summary.judgements {
            let Judgement { verdict, claim, reason } = judgement;
            let _ = writeln!(text, "- \"{claim}\" **{}**: {reason}.", verdict.words());
        }
    }
    text
}

/// How often and how long each value was measured.
fn extent(suite: &Suite, report: &Report) -> String {
    let duration = humantime::format_duration(suite.duration);
    match report.summary.lines.iter().map(|line| line.trials).max().unwrap_or(0) {
        0 => "No trial counts yet.".to_owned(),
        1 => format!("One trial of {duration} for each value."),
        trials => format!("Medians of {trials} trials of {duration}, or fewer."),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::duts::Duts;
    use crate::machine::Machine;
    use crate::results::Results;

    #[test]
    fn a_page_counts_verdicts_and_has_each_with_its_reason() {
        let text = "name = \"a\"\nsensors = [\"tcpdump\"]\nrates = [1000]\ncores = [[1]]\nrepetitions = 3\n\
                    [[conclusion]]\nclaim = \"All is faster\"\nnot-here = \"neither card exists\"\n";
        let sensors = Duts::shipped();
        let suite = Suite::parse(text, Path::new("b"), &sensors).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let results = Results::begin(&folder.path().join("r"), text, &Machine::describe()).unwrap();
        let report = Report::of(&suite, &sensors, &results).unwrap();
        let page = page(&[(&suite, &report)]);
        for part in [
            "Of 1 conclusions, 0 hold here, 0 do not hold, and 1 are not decided.",
            "\n## a\n\nNo trial counts yet. ",
            "\n- \"All is faster\" **is not decided here**: neither card exists.\n",
        ] {
            assert!(page.contains(part), "no '{part}' in {page}");
        }
    }
}
