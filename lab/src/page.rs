//! Report of a run: a self-contained HTML page, tables, CSV, and charts.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::chart::{self, Drawn};
use crate::duts::Duts;
use crate::machine::Machine;
use crate::results::{self, Results};
use crate::suite::Suite;
use crate::summary::{Summary, summarise};
use crate::text;

/// HTML page.
pub const PAGE: &str = "report.html";
/// Text table.
pub const TABLE: &str = "report.txt";
/// CSV of medians.
pub const SUMMARY: &str = "summary.csv";

/// Rules of a page. Wide tables are moved sideways on narrow pages, charts are others there, and no word is broken.
const STYLE: &str = ":root{color-scheme:light dark;--page:#FFFFFF;--text:#1F2328;--box:#F4F5F7;--warn:#A33030}\
@media(prefers-color-scheme:dark){:root{--page:#15181C;--text:#E6E9ED;--box:#22262C;--warn:#FF9A9A}}\
body{font:15px/1.45 sans-serif;margin:2em auto;max-width:1000px;padding:0 1rem;background:var(--page);color:var(--text)}\
h1,h2,p,li{overflow-wrap:break-word}.rows{overflow-x:auto}figure{margin:1em 0}.narrow{display:none}table{border-collapse:collapse;\
font-size:13px;margin:1em 0}td,th{border-bottom:1px solid #8884;padding:3px 8px;text-align:right;vertical-align:top}\
td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}td:last-child{min-width:14rem}td:first-child{white-space:nowrap}\
svg{display:block;max-width:100%;height:auto}\
@media(max-width:62rem){.wide{display:none}.narrow{display:block}.narrow svg{width:100%;max-width:34rem}}\
pre{background:var(--box);padding:1em;overflow-x:auto}.aside{color:var(--warn)}";

/// Report of a suite's results.
#[derive(Debug)]
pub struct Report {
    /// Summary.
    pub summary: Summary,
    /// Table for a terminal.
    pub table: String,
    /// The charts.
    pub drawn: Vec<Drawn>,
    /// Machine; with agents, that of the sensor.
    pub machine: Machine,
    /// Other machines, with their roles.
    pub others: Vec<(&'static str, Machine)>,
}

impl Report {
    /// Creates a report of these results.
    pub fn of(suite: &Suite, sensors: &Duts, results: &Results) -> Result<Report> {
        let machine = results.machine()?;
        let summary = summarise(suite, sensors, results)?;
        let others = results.others()?;
        let below = machine.short();
        let drawn = chart::draw(suite, sensors, &summary, &below)?;
        let table = text::table(suite, &summary);
        Ok(Report { summary, table, drawn, machine, others })
    }

    /// Writes it into the folder of the results, and replaces earlier reports.
    pub fn write(&self, suite: &Suite, sensors: &Duts, folder: &Path) -> Result<PathBuf> {
        results::write(&folder.join(TABLE), &format!("{}\n{}", self.table, self.machines()))?;
        results::write(&folder.join(SUMMARY), &text::csv(sensors, &self.summary)?)?;
        for one in &self.drawn {
            results::write(&folder.join(format!("{}.svg", one.name)), &one.svg)?;
            results::write(&folder.join(format!("{}.png", one.name)), &one.png)?;
        }
        let page = folder.join(PAGE);
        results::write(&page, &document(&suite.title, &self.section(suite)))?;
        Ok(page)
    }

    /// Section of a page about this suite, without a heading.
    pub fn section(&self, suite: &Suite) -> String {
        let mut html = String::new();
        for paragraph in suite.about.split("\n\n").filter(|text| !text.trim().is_empty()) {
            let _ = writeln!(html, "<p>{}</p>", escaped(paragraph.trim()));
        }
        for one in &self.drawn {
            let title = escaped(&one.title);
            let _ =
                write!(html, "<figure aria-label=\"{title}\">\n<div class=\"wide\">\n{}</div>\n", one.svg);
            let _ = writeln!(
                html,
                "<div class=\"narrow\">\n<p><strong>{title}</strong><br/>{}</p>\n{}</div>\n</figure>",
                escaped(&one.below),
                one.narrow
            );
        }
        if !suite.findings.is_empty() {
            html += "<p>What was published:</p>\n<ul>\n";
            for finding in &suite.findings {
                let _ = writeln!(html, "<li>{}</li>", escaped(finding));
            }
            html += "</ul>\n";
        }
        if !self.summary.judgements.is_empty() {
            html += "<p>Published conclusions, decided by the results below:</p>\n<ul>\n";
            for judgement in &self.summary.judgements {
                let _ = writeln!(html, "<li>{}</li>", escaped(&judgement.sentence()));
            }
            html += "</ul>\n";
        }
        for (conditions, said) in &self.summary.said {
            let _ = write!(html, "<p>{}, analysed:</p>\n<ul>\n", escaped(conditions));
            for sentence in said {
                let _ = writeln!(html, "<li>{}</li>", escaped(sentence));
            }
            html += "</ul>\n";
        }
        for (name, why) in &self.summary.skipped {
            let _ = writeln!(html, "<p class=\"aside\">Skipped: {} ({})</p>", escaped(name), escaped(why));
        }
        if self.summary.missing > 0 {
            let _ =
                writeln!(html, "<p class=\"aside\">{} trials are not there yet.</p>", self.summary.missing);
        }
        html +=
            "<details open=\"\"><summary>All numbers (medians)</summary>\n<div class=\"rows\">\n<table>\n";
        for (at, row) in text::rows(&self.summary).iter().enumerate() {
            html += "<tr>";
            for cell in row {
                let _ = match at {
                    0 => write!(html, "<th>{}</th>", escaped(text::words(cell))),
                    _ => write!(html, "<td>{}</td>", escaped(cell)),
                };
            }
            html += "</tr>\n";
        }
        html += "</table>\n</div>\n</details>\n";
        if !self.summary.faults.is_empty() {
            let faults = self.summary.faults.join("\n");
            let _ = writeln!(
                html,
                "<p class=\"aside\">Trials that went wrong:</p>\n<pre>{}</pre>",
                escaped(&faults)
            );
        }
        let _ = writeln!(html, "<h3>Machine</h3>\n<pre>{}</pre>", escaped(&self.machines()));
        html
    }

    /// Descriptions of all machines, as lines of text.
    fn machines(&self) -> String {
        if self.others.is_empty() {
            return self.machine.text();
        }
        let mut text = format!("Sensor:\n{}", self.machine.text());
        for (role, machine) in &self.others {
            let (first, rest) = role.split_at(1);
            let _ = write!(text, "\n{}{rest}:\n{}", first.to_uppercase(), machine.text());
        }
        text
    }
}

/// A complete page with these parts, which are HTML.
pub fn document(title: &str, parts: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>{title}</h1>\n{parts}</body>\n</html>\n"
    )
}

/// Text escaped for HTML. Control characters are replaced.
pub fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html += "&amp;",
            '<' => html += "&lt;",
            '>' => html += "&gt;",
            '"' => html += "&quot;",
            '\'' => html += "&#39;",
            '\n' | '\t' => html.push(c),
            c if c.is_control() => html.extend(c.escape_debug()),
            c => html.push(c),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bitmap::tests::decoded;
    use crate::results::Row;
    use crate::schedule;
    use crate::trial::Measured;

    #[test]
    fn texts_from_outside_are_texts() {
        assert_eq!(
            escaped("<script>\"a\" & 'b'\u{1b}[0m\n"),
            "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;\\u{1b}[0m\n"
        );
    }

    /// A suite over rates with two sensors, one of them missing, with hostile names.
    fn report(folder: &Path) -> (Suite, Duts, Report) {
        let adapter = "title = \"<b>evil</b>\"\nprogram = \"PROGRAM\"\ncommand = [\"true\"]\nready = \"packet-socket\"\n\
                       quiet = \"1s\"\n[counts]\ncaptured = { regex = '(\\d+)' }\n";
        let adapters = folder.join("adapters");
        std::fs::create_dir(&adapters).unwrap();
        std::fs::write(adapters.join("evil.toml"), adapter.replace("PROGRAM", "true")).unwrap();
        std::fs::write(adapters.join("gone.toml"), adapter.replace("PROGRAM", "no-such-program")).unwrap();
        let mut sensors = Duts::shipped();
        sensors.add(&adapters).unwrap();
        let text = "name = \"a\"\ntitle = \"A <i>suite</i>\\u001b\\uffff\"\nabout = \"It is </p><script>alert(1)</script>.\"\nsensors = [\"evil\", \
                    \"gone\"]\nrates = [1000, 2000]\ncores = [[1]]\nfindings = [\"x < y\"]\n[[published]]\nname = \"them\"\n\
                    quantity = \"captured\"\npoints = [[1000, 800], [2000, 900]]\n";
        let suite = Suite::parse(text, Path::new("b"), &sensors).unwrap();
        let mut results = Results::begin(&folder.join("r"), text, &Machine::describe()).unwrap();
        for trial in schedule::trials(&suite, &sensors).iter().filter(|trial| trial.case.sensor == "evil") {
            let measured = Measured {
                offered: 1000,
                sent: 1000,
                captured: 700,
                analysed: 700,
                duration_s: 1.0,
                ..Measured::default()
            };
            let (case, rate) = (trial.case.key(), trial.case.rate.name());
            results.add(Row { case, repetition: 1, rate, search: String::new(), measured }).unwrap();
        }
        let report = Report::of(&suite, &sensors, &results).unwrap();
        (suite, sensors, report)
    }

    #[test]
    fn a_page_needs_nothing_else_and_runs_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (suite, sensors, report) = report(folder.path());
        let page = report.write(&suite, &sensors, &folder.path().join("r")).unwrap();
        let html = std::fs::read_to_string(page).unwrap();
        for wrong in ["<script", "<b>evil", "<i>suite", "src=", "href=", "url("] {
            assert!(!html.contains(wrong), "{wrong} in {html}");
        }
        for right in [
            "&lt;b&gt;evil",
            "<svg",
            "x &lt; y",
            "Skipped: gone",
            "no-such-program is not installed",
            "<td>0.7</td>",
        ] {
            assert!(html.contains(right), "no {right} in {html}");
        }
        assert_eq!(html.matches("<svg").count(), 4, "captured and analysed, for wide and for narrow pages");
        for right in [
            "<th>frame, bytes</th>",
            "color-scheme:light dark",
            "name=\"viewport\"",
            ".rows{overflow-x:auto}",
            "width=\"368\"",
        ] {
            assert!(html.contains(right), "no {right} in {html}");
        }
    }

    #[test]
    fn charts_show_ours_theirs_and_who_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let (suite, _, report) = report(folder.path());
        assert_eq!(report.drawn.len(), 2);
        let captured = &report.drawn[0];
        assert_eq!(captured.name, "chart-1-captured");
        for text in ["published: them", "skipped: gone", "&lt;b&gt;evil", "polyline"] {
            assert!(captured.svg.contains(text), "no {text}");
        }
        // An SVG must not contain other characters.
        assert!(captured.svg.contains("&lt;/i&gt;\u{fffd}\u{fffd}: packets captured"), "{}", captured.svg);
        assert!(!report.drawn[1].svg.contains("published"), "nobody has published what was analysed");
        assert!(report.table.contains("gone: skipped, no-such-program"), "{}", report.table);
        assert!(
            report.table.lines().any(|line| line.starts_with("evil") && line.contains("0.7")),
            "{}",
            report.table
        );
        assert_eq!(chart::charts(&suite).len(), 2);
    }

    #[test]
    fn charts_are_there_as_png_too() {
        let folder = tempfile::tempdir().unwrap();
        let (suite, sensors, report) = report(folder.path());
        report.write(&suite, &sensors, &folder.path().join("r")).unwrap();
        for name in ["chart-1-captured", "chart-2-analysed"] {
            let svg = std::fs::read_to_string(folder.path().join(format!("r/{name}.svg"))).unwrap();
            assert!(svg.contains("width=\"960\" height=\"420\""), "{svg}");
            let (width, height, pixels) =
                decoded(&std::fs::read(folder.path().join(format!("r/{name}.png"))).unwrap());
            assert_eq!((width, height), (2 * 960, 2 * 420));
            let many = |colour: [u8; 3]| pixels.iter().filter(|pixel| **pixel == colour).count();
            // Background, line of the first sensor, letters.
            assert!(many([255; 3]) > 1_000_000 && many([0x1f, 0x6f, 0xb4]) > 500 && many([0; 3]) > 1000);
            // Published points have another colour, and are in one of the two charts.
            assert_eq!(many([0xd9, 0x5f, 0x02]) > 20, name == "chart-1-captured");
        }
    }

    #[test]
    fn medians_are_in_csv() {
        let folder = tempfile::tempdir().unwrap();
        let (_, sensors, report) = report(folder.path());
        let csv = text::csv(&sensors, &report.summary).unwrap();
        let rows: Vec<&str> = csv.lines().collect();
        assert_eq!(rows.len(), 3);
        assert!(
            rows[0].starts_with("sensor,size,rate,") && rows[0].contains("captured,captured_low"),
            "{csv}"
        );
        assert!(rows[1].starts_with("evil,60,1000,") && rows[1].contains(",700.000000,700.000000,"), "{csv}");
    }
}
