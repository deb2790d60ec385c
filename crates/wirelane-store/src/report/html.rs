//! The report as an HTML page: without scripts, links and external resources, enforced by a policy in the page.

use std::fmt::Write as _;

use wirelane::escape::is_unsafe;

use super::chart::{self, COLOURS, MARK};
use super::{Chart, Report, Section, Table};

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:14px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin:2rem 0 .4rem}p{margin:.3rem 0}\
.quiet{color:#777}table{border-collapse:collapse;margin:.5rem 0}th{text-align:left;font-weight:600}\
th,td{padding:.15rem .9rem .15rem 0;border-bottom:1px solid #8883;vertical-align:top;overflow-wrap:anywhere}\
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;overflow-wrap:normal}\
.bar{width:10rem}.bar div{height:.7rem;margin-top:.3rem;background:#0072b2;min-width:1px}\
svg{width:100%;height:auto}.key{display:inline-block;margin-right:1.2rem}\
.key i{display:inline-block;width:.9rem;height:.25rem;vertical-align:middle;margin-right:.35rem}";

/// Formats the report.
pub(super) fn write(report: &Report) -> String {
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page += "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n";
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
    let _ = write!(
        page,
        "<title>wirelane: {}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>Capture report</h1>\n\
         <p class=\"quiet\">{}, of the store {}</p>\n",
        escaped(&report.period()),
        escaped(&report.period()),
        escaped(&report.store)
    );
    for section in &report.sections {
        put_section(&mut page, section, report);
    }
    page += "</body>\n</html>\n";
    page
}

// Writing to a string does not fail.
fn put_section(page: &mut String, section: &Section, report: &Report) {
    let _ = writeln!(page, "<section>\n<h2>{}</h2>", escaped(&section.title));
    for note in &section.notes {
        let _ = writeln!(page, "<p>{}</p>", escaped(note));
    }
    if let Some(chart) = &section.chart {
        put_chart(page, chart, report);
    }
    if let Some(table) = &section.table {
        put_table(page, table);
    }
    page.push_str("</section>\n");
}

fn put_chart(page: &mut String, of: &Chart, report: &Report) {
    let step_ns = (report.step_s as i64).saturating_mul(1_000_000_000);
    let Some(picture) = chart::svg(of, (report.from_ns, report.to_ns), step_ns) else { return };
    let _ = write!(page, "<figure style=\"margin:0\">\n<figcaption class=\"quiet\">{} ", escaped(of.unit));
    for (line, colour) in of.lines.iter().zip(COLOURS.iter().cycle()) {
        let name = escaped(&line.name);
        let _ = write!(page, "<span class=\"key\"><i style=\"background:{colour}\"></i>{name}</span>");
    }
    if !of.marks.is_empty() {
        let _ =
            write!(page, "<span class=\"key\"><i style=\"background:{MARK}\"></i>an alarm is raised</span>");
    }
    let _ = writeln!(page, "</figcaption>\n{picture}</figure>");
}

fn put_table(page: &mut String, table: &Table) {
    let is_number = |column: usize| {
        table.rows.iter().any(|row| row.get(column).is_some_and(|cell| cell.number().is_some()))
    };
    let class = |column: usize| if is_number(column) { " class=\"n\"" } else { "" };
    page.push_str("<table>\n<tr>");
    for (at, name) in table.columns.iter().enumerate() {
        let _ = write!(page, "<th{}>{}</th>", class(at), escaped(name));
    }
    let bars: Vec<f64> = table
        .bar
        .map(|at| table.rows.iter().map(|row| row[at].number().unwrap_or(0.0)).collect())
        .unwrap_or_default();
    let most = bars.iter().copied().fold(0.0, f64::max);
    page.push_str(if bars.is_empty() { "</tr>\n" } else { "<th></th></tr>\n" });
    for (place, row) in table.rows.iter().enumerate() {
        page.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let _ = write!(page, "<td{}>{}</td>", class(at), escaped(&cell.shown()));
        }
        if let Some(bar) = bars.get(place) {
            let width = if most > 0.0 { 100.0 * bar / most } else { 0.0 };
            let _ = write!(page, "<td class=\"bar\"><div style=\"width:{width:.1}%\"></div></td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

/// Text without markup, in elements and in quotes. Control characters, and those that change the writing direction, are
/// shown as numbers.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            c if is_unsafe(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    safe
}

impl Report {
    /// A report with only this section, for tests.
    #[cfg(test)]
    pub(super) fn of(section: Section) -> Report {
        let store = "a<b>&\"'".to_owned();
        Report { store, from_ns: 0, to_ns: 10_000_000_000, step_s: 1, sections: vec![section] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Cell, Line};

    const HOSTILE: &str = "\"'><script>alert(1)</script>\u{1b}[2J\u{202e}x";

    fn hostile() -> Section {
        let line = Line { name: HOSTILE.to_owned(), points: vec![(0, 1.0)] };
        Section {
            title: HOSTILE.to_owned(),
            notes: vec![HOSTILE.to_owned()],
            chart: Some(Chart { unit: "bit/s", lines: vec![line], marks: vec![5] }),
            table: Some(Table {
                columns: vec!["name", "bytes"],
                rows: vec![
                    vec![Cell::Text(HOSTILE.to_owned()), Cell::Count(5)],
                    vec![Cell::Unknown, Cell::Count(10)],
                ],
                bar: Some(1),
            }),
        }
    }

    /// Battery: S6
    #[test]
    fn hostile_names_are_text_wherever_they_are() {
        let page = Report::of(hostile()).html();
        assert!(!page.to_lowercase().contains("<script"), "{page}");
        let safe = "&quot;&#39;&gt;&lt;script&gt;alert(1)&lt;/script&gt;\\u{1b}[2J\\u{202e}x";
        assert_eq!(page.matches(safe).count(), 4, "title, note, legend, cell: {page}");
        assert!(page.contains("of the store a&lt;b&gt;&amp;&quot;&#39;</p>"));
        // Only tags that this module writes.
        let tags: std::collections::BTreeSet<&str> = page
            .split('<')
            .skip(1)
            .map(|rest| rest.split(|c: char| c.is_whitespace() || c == '>').next().unwrap_or_default())
            .map(|tag| tag.trim_start_matches('/').trim_end_matches('/'))
            .collect();
        let known = [
            "!DOCTYPE",
            "body",
            "circle",
            "div",
            "figcaption",
            "figure",
            "h1",
            "h2",
            "head",
            "html",
            "i",
            "line",
            "meta",
            "p",
            "polyline",
            "rect",
            "section",
            "span",
            "style",
            "svg",
            "table",
            "td",
            "text",
            "th",
            "title",
            "tr",
        ];
        assert!(tags.iter().all(|tag| known.contains(tag)), "{tags:?}");
    }

    #[test]
    fn bars_are_shares_of_the_greatest() {
        let page = Report::of(hostile()).html();
        assert!(page.contains("width:50.0%") && page.contains("width:100.0%"), "{page}");
        assert!(page.contains("<td class=\"n\">10</td>"), "{page}");
    }
}
