//! The bench's section of `docs/measured/receivers.md`: a short table and the charts, between two marks, so that no figure
//! is ever typed by hand.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::bed::Setup;
use crate::chart;
use crate::machine::Machine;
use crate::options::Options;
use crate::receiver::Receiver;
use crate::report::{rate, table};
use crate::summary::{Line, LossFree};
use crate::trial::Load;

const BEGIN: &str = "<!-- bench: begin (written by 'make bench') -->\n";
const END: &str = "<!-- bench: end -->";
/// Before the studies, within the section; a run of other parts leaves what is behind it.
const STUDIES: &str = "<!-- bench: studies -->\n";
/// Before those of rules, in the same way.
const RULES: &str = "<!-- bench: rules -->\n";

/// What a run has for the section; empty where it did not measure it, and what was there stays.
pub struct News {
    /// Receivers beside each other.
    pub receivers: String,
    /// The studies of parallelism.
    pub studies: String,
    /// The studies of rules.
    pub rules: String,
}

/// The page of the documentation that has the section, in the repository.
pub const PAGE: &str = "docs/measured/receivers.md";
/// The repository, as seen from the page.
const UP: &str = "../..";

/// Puts the section into the page of the repository at `root`; `folder` is that of the results, below `root`.
///
/// # Errors
/// If the page has no marks or cannot be written, or the results are elsewhere.
pub fn update(root: &Path, folder: &Path, news: &dyn Fn(&str) -> News) -> Result<()> {
    let path = &root.join(PAGE);
    let home = root.canonicalize()?;
    let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
    let below = folder.strip_prefix(&home).with_context(|| {
        format!("--readme: the results in {} are not below {}", folder.display(), home.display())
    })?;
    let below = below.to_str().context("--readme: the folder's name is not UTF-8")?;
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let text = insert(&text, &news(&format!("{UP}/{below}"))).with_context(|| path.display().to_string())?;
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// The text with what is between the marks replaced, as far as there is news.
fn insert(text: &str, news: &News) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("no line {}", BEGIN.trim_end()))?;
    let (old, after) =
        rest.split_once(END).with_context(|| format!("no line {END} after {}", BEGIN.trim_end()))?;
    ensure!(!after.contains(BEGIN), "the line {} is there twice", BEGIN.trim_end());
    let (old, old_rules) = old.split_once(RULES).unwrap_or((old, ""));
    let (old_receivers, old_studies) = old.split_once(STUDIES).unwrap_or((old, ""));
    let new = |mark: &str, news: &str, old: &str| {
        let text = if news.is_empty() { old } else { news };
        if text.is_empty() { String::new() } else { format!("{mark}{text}") }
    };
    let receivers = new("", &news.receivers, old_receivers);
    let studies = new(STUDIES, &news.studies, old_studies);
    let rules = new(RULES, &news.rules, old_rules);
    Ok(format!("{before}{BEGIN}{receivers}{studies}{rules}{END}{after}"))
}

/// The table of receivers and its charts, empty where none were measured; `folder`: the results as seen from the page.
pub fn section(
    options: &Options,
    machine: &Machine,
    lines: &[Line],
    loss_free: &[LossFree],
    folder: &str,
) -> String {
    if lines.is_empty() && loss_free.is_empty() {
        return String::new();
    }
    let loads: Vec<Load> =
        options.loads().into_iter().filter(|load| Some(&load.size) == options.sizes.first()).collect();
    let cells: Vec<(Setup, Load)> =
        options.setups.iter().flat_map(|setup| loads.iter().map(|load| (*setup, *load))).collect();
    let mut heads = vec!["Mpps received".to_owned()];
    heads.extend(cells.iter().map(|(setup, load)| format!("{}, {}", setup.name(), load.method.label())));
    heads.extend(["0 loss".to_owned(), "0.5 % loss".to_owned()]);
    let mut receivers: Vec<Receiver> = Vec::new();
    for receiver in lines.iter().map(|line| line.receiver).chain(loss_free.iter().map(|one| one.receiver)) {
        if !receivers.contains(&receiver) {
            receivers.push(receiver);
        }
    }
    receivers.sort();
    let rows = receivers.into_iter().map(|receiver| {
        let mut row = vec![receiver.label().to_owned()];
        for (setup, load) in &cells {
            let line =
                lines.iter().find(|line| (line.setup, line.load, line.receiver) == (*setup, *load, receiver));
            row.push(line.map_or_else(
                || "-".into(),
                |line| {
                    let ratio = line.of_limit.map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
                    format!("{:.2}{ratio}", line.pps.median / 1e6)
                },
            ));
        }
        for goal in [0.0, 0.005] {
            let one = loss_free.iter().find(|one| one.receiver == receiver && one.found.goal == goal);
            row.push(one.map_or_else(|| "-".into(), |one| rate(&one.found)));
        }
        row
    });
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut text = format!(
        "\n{}-byte frames, one queue, one worker; {}, {} cores, Linux {}, {}. In brackets: the ratio to XDP_DROP in the \
         same round. A: generator and NAPI on one core, receiver on the other. B: NAPI shares the receiver's core. The \
         last columns: the highest rate of {} that is received whole, and with 0.5 % loss, in setup {}. Spread, other \
         sizes, accounts of every packet and how to read all this: [{folder}]({folder}/README.md).\n\n{}\n",
        options.sizes.first().copied().unwrap_or_default(),
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.date,
        options.searched_load().map_or("frames", |load| load.method.label()),
        options.setups.last().map_or("-", |setup| setup.name()),
        table(&heads, rows),
    );
    for load in loads.into_iter().filter(|load| lines.iter().any(|line| line.load == *load)) {
        let _ = writeln!(
            text,
            "![Packets received at full speed, {}]({folder}/{})\n",
            load.method.label(),
            chart::file_name(load)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let news = |receivers: &str, studies: &str| News {
            receivers: receivers.to_owned(),
            studies: studies.to_owned(),
            rules: String::new(),
        };
        let text = format!("a\n{BEGIN}old\n{END}\nb\n");
        let new = insert(&text, &news("new\n", "")).unwrap();
        assert_eq!(new, format!("a\n{BEGIN}new\n{END}\nb\n"));
        assert_eq!(insert(&new, &news("new\n", "")).unwrap(), new);
        // What a run has not measured stays.
        let both = insert(&new, &news("", "studies\n")).unwrap();
        assert_eq!(both, format!("a\n{BEGIN}new\n{STUDIES}studies\n{END}\nb\n"));
        let newer = insert(&both, &news("newer\n", "")).unwrap();
        assert_eq!(newer, format!("a\n{BEGIN}newer\n{STUDIES}studies\n{END}\nb\n"));
        assert_eq!(insert(&newer, &news("", "")).unwrap(), newer);
        let rules = News { rules: "rules\n".to_owned(), ..news("", "") };
        let all = insert(&newer, &rules).unwrap();
        assert_eq!(all, format!("a\n{BEGIN}newer\n{STUDIES}studies\n{RULES}rules\n{END}\nb\n"));
        assert_eq!(insert(&all, &news("", "")).unwrap(), all);
        let without = insert(&new, &rules).unwrap();
        assert_eq!(without, format!("a\n{BEGIN}new\n{RULES}rules\n{END}\nb\n"));
        assert_eq!(insert(&without, &news("", "studies\n")).unwrap(), insert(&both, &rules).unwrap());
        assert!(insert("no marks", &news("x", "")).is_err());
        assert!(insert(BEGIN, &news("x", "")).is_err());
        assert!(insert(&format!("{BEGIN}{END}{BEGIN}{END}"), &news("x", "")).is_err());
    }

    #[test]
    fn the_page_has_the_marks() {
        let text = fs::read_to_string(wirelane_tests::repository().join(PAGE)).unwrap();
        let nothing = News { receivers: String::new(), studies: String::new(), rules: String::new() };
        assert_eq!(insert(&text, &nothing).unwrap(), text);
    }
}
