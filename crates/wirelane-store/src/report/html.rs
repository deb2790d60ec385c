//! The report as an HTML page: without scripts and external resources, enforced by a policy in the page. Its only links are
//! those to recordings.

use std::fmt::Write as _;
use std::path::Path;

use url::Url;
use wirelane::escape::is_unsafe;

use super::chart::{self, FORMS, LOOKS, Look, MARK};
use super::columns::words;
use super::{Cell, Chart, Report, Section, Table};

/// Colours of a page.
#[derive(Clone, Copy)]
struct Colours {
    page: &'static str,
    text: &'static str,
    quiet: &'static str,
}

/// Colours of light pages.
const LIGHT: Colours = Colours { page: "#FFFFFF", text: "#1F2328", quiet: "#59636E" };
/// Colours of dark pages.
const DARK: Colours = Colours { page: "#15181C", text: "#E6E9ED", quiet: "#A3ACB8" };

/// Rules except those of colours. Wide tables are moved sideways, and no word is broken.
const STYLE: &str = "\
body{font:14px/1.45 system-ui,sans-serif;max-width:72rem;margin:1.5rem auto;padding:0 1rem;background:var(--page);color:var(--text)}\
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin:2rem 0 .4rem}p{margin:.3rem 0}\
h1,h2,p,figcaption{overflow-wrap:break-word}.quiet{color:var(--quiet)}a{color:var(--bar)}figure{margin:0}\
.rows{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0}th{text-align:left;font-weight:600}\
th,td{padding:.15rem .9rem .15rem 0;border-bottom:1px solid #8884;vertical-align:top}th,.n,.t{white-space:nowrap}\
.n{text-align:right;font-variant-numeric:tabular-nums}.w{max-width:30rem;overflow-wrap:break-word}\
.bar{width:10rem;min-width:6rem}.bar div{height:.7rem;margin-top:.3rem;background:var(--bar);min-width:1px}\
svg{display:block;max-width:100%;height:auto}svg text{fill:var(--quiet)}.narrow{display:none}\
.key{display:inline-block;margin-right:1.2rem;max-width:100%}.key svg{display:inline-block;vertical-align:middle;margin-right:.35rem}\
@media(max-width:44rem){.wide,.bar{display:none}.narrow{display:block}}";

/// Letters of a text that stays on one line.
const UNBROKEN: usize = 40;

/// The rules of a page: colours and dashes of lines refer to the colours in the pictures.
fn style() -> String {
    let mut style = String::from(":root{color-scheme:light dark;");
    let mut dark = String::new();
    for (text, colours) in [(&mut style, LIGHT), (&mut dark, DARK)] {
        let Colours { page, text: letters, quiet } = colours;
        let _ = write!(text, "--page:{page};--text:{letters};--quiet:{quiet};");
    }
    let _ = write!(style, "--bar:{}}}", LOOKS[0].light);
    let _ = write!(dark, "--bar:{}", LOOKS[0].dark);
    let mut lines = String::new();
    for Look { light, dark: other, dashes } in LOOKS.iter().chain([&MARK]) {
        let _ = write!(style, "svg [stroke=\"{light}\"]{{stroke-dasharray:{dashes}}}");
        let _ = write!(lines, "svg [stroke=\"{light}\"]{{stroke:{other}}}");
    }
    format!("{style}@media(prefers-color-scheme:dark){{:root{{{dark}}}{lines}}}{STYLE}")
}

/// Formats the report.
pub(super) fn write(report: &Report, page_url: Option<&Url>) -> String {
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n");
    page += "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n";
    page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
    let _ = write!(
        page,
        "<title>wirelane: {}</title>\n<style>{}</style>\n</head>\n<body>\n<h1>Capture report</h1>\n\
         <p class=\"quiet\">{}, of the store {}</p>\n",
        escaped(&report.period()),
        style(),
        escaped(&report.period()),
        escaped(&report.store)
    );
    for section in &report.sections {
        put_section(&mut page, section, report, page_url);
    }
    page += "</body>\n</html>\n";
    page
}

// Writing to a string does not fail.
fn put_section(page: &mut String, section: &Section, report: &Report, page_url: Option<&Url>) {
    let _ = writeln!(page, "<section>\n<h2>{}</h2>", escaped(&section.title));
    for note in &section.notes {
        let _ = writeln!(page, "<p>{}</p>", escaped(note));
    }
    if let Some(chart) = &section.chart {
        put_chart(page, chart, report);
    }
    if let Some(table) = &section.table {
        put_table(page, table, page_url);
    }
    page.push_str("</section>\n");
}

fn put_chart(page: &mut String, of: &Chart, report: &Report) {
    let step_ns = (report.step_s as i64).saturating_mul(1_000_000_000);
    let draw = |form| chart::svg(of, form, (report.from_ns, report.to_ns), step_ns);
    let pictures: Vec<String> = FORMS.into_iter().filter_map(draw).collect();
    if pictures.is_empty() {
        return;
    }
    page.push_str("<figure>\n<figcaption class=\"quiet\">");
    let key = |page: &mut String, name: &str, look: &Look| {
        let _ = write!(
            page,
            "<span class=\"key\"><svg width=\"36\" height=\"10\" aria-hidden=\"true\"><line x1=\"0\" y1=\"5\" x2=\"36\" \
             y2=\"5\" stroke-width=\"3\" stroke=\"{}\"/></svg>{}</span>",
            look.light,
            escaped(name)
        );
    };
    for (line, look) in of.lines.iter().zip(LOOKS.iter().cycle()) {
        key(page, &line.name, look);
    }
    if !of.marks.is_empty() {
        key(page, "an alarm is raised", &MARK);
    }
    page.push_str("</figcaption>\n");
    for (form, picture) in FORMS.iter().zip(pictures) {
        let _ = write!(page, "<div class=\"{}\">\n{picture}</div>\n", form.class);
    }
    page.push_str("</figure>\n");
}

fn put_table(page: &mut String, table: &Table, page_url: Option<&Url>) {
    let is_number = |column: usize| {
        table.rows.iter().any(|row| row.get(column).is_some_and(|cell| cell.number().is_some()))
    };
    let is_time = |column: usize| {
        table.rows.iter().any(|row| row.get(column).is_some_and(|cell| matches!(cell, Cell::Time(_))))
    };
    let class = |column: usize, text: &str| match (is_number(column), is_time(column)) {
        (true, _) => "n",
        (_, true) => "t",
        _ if text.chars().count() <= UNBROKEN => "t",
        _ => "w",
    };
    page.push_str("<div class=\"rows\">\n<table>\n<tr>");
    for (at, name) in table.columns.iter().enumerate() {
        let _ = write!(page, "<th class=\"{}\">{}</th>", class(at, ""), escaped(&words(name)));
    }
    let bars: Vec<f64> = table
        .bar
        .map(|at| table.rows.iter().map(|row| row[at].number().unwrap_or(0.0)).collect())
        .unwrap_or_default();
    let most = bars.iter().copied().fold(0.0, f64::max);
    page.push_str(if bars.is_empty() { "</tr>\n" } else { "<th class=\"bar\"></th></tr>\n" });
    for (place, row) in table.rows.iter().enumerate() {
        page.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let link = match cell {
                Cell::File(path) => link(path, page_url),
                _ => None,
            };
            let text = link.as_ref().map_or_else(|| cell.shown(), |(_, name)| name.clone());
            let shown = match link {
                Some((to, name)) => format!("<a href=\"{}\">{}</a>", escaped(&to), escaped(&name)),
                None => escaped(&text),
            };
            let _ = write!(page, "<td class=\"{}\">{shown}</td>", class(at, &text));
        }
        if let Some(bar) = bars.get(place) {
            let width = if most > 0.0 { 100.0 * bar / most } else { 0.0 };
            let _ = write!(page, "<td class=\"bar\"><div style=\"width:{width:.1}%\"></div></td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n</div>\n");
}

/// The address of a file and its name; `None`: this is no absolute path. A store says anything: the address of a path never
/// begins with a scheme of the store's choice.
fn link(path: &str, page: Option<&Url>) -> Option<(String, String)> {
    let url = Url::from_file_path(path).ok()?;
    let name = Path::new(path).file_name()?.to_str()?.to_owned();
    let to = match page.and_then(|page| page.make_relative(&url)) {
        Some(up) if up.starts_with("../") => up,
        Some(beside) => format!("./{beside}"),
        None => url.into(),
    };
    Some((to, name))
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
    use crate::report::Line;

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

    /// Names of the elements of a page, which is well-formed: each element is closed, in order.
    fn tags(page: &str) -> std::collections::BTreeSet<&str> {
        let (mut open, mut all) = (Vec::new(), std::collections::BTreeSet::new());
        for part in page.split('<').skip(1) {
            let (tag, text) = part.split_once('>').expect("each tag ends");
            assert!(!text.contains('>'), "{text}");
            assert!(tag.matches('"').count() % 2 == 0, "{tag}");
            let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap_or_default();
            all.insert(name);
            match tag {
                _ if tag.ends_with('/') || ["!DOCTYPE", "meta"].contains(&name) => {}
                _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "{part}"),
                _ => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
        all
    }

    /// Battery: S6
    #[test]
    fn hostile_names_are_text_wherever_they_are() {
        let page = Report::of(hostile()).html(None);
        assert!(!page.to_lowercase().contains("<script"), "{page}");
        let safe = "&quot;&#39;&gt;&lt;script&gt;alert(1)&lt;/script&gt;\\u{1b}[2J\\u{202e}x";
        assert_eq!(page.matches(safe).count(), 4, "title, note, legend, cell: {page}");
        assert!(page.contains("of the store a&lt;b&gt;&amp;&quot;&#39;</p>"));
        // Only tags that this module writes, and all closed.
        let tags = tags(&page);
        let known = [
            "!DOCTYPE",
            "a",
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
            "polygon",
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
        let page = Report::of(hostile()).html(None);
        assert!(page.contains("width:50.0%") && page.contains("width:100.0%"), "{page}");
        assert!(page.contains("<td class=\"n\">10</td>"), "{page}");
    }

    #[test]
    fn links_are_relative_to_the_page_and_no_path_becomes_another_scheme_or_markup() {
        let page = |path: &str| link(path, Some(&Url::from_file_path("/a/b/page.html").unwrap()));
        let to = |path: &str| page(path).unwrap().0;
        assert_eq!(to("/a/b/x.pcapng"), "./x.pcapng");
        assert_eq!(to("/a/b/kept/x.pcapng"), "./kept/x.pcapng");
        assert_eq!(to("/a/x.pcapng"), "../x.pcapng");
        assert_eq!(to("/c/d/x.pcapng"), "../../c/d/x.pcapng");
        assert_eq!(to("/a/b/javascript:alert(1)"), "./javascript:alert(1)");
        assert_eq!(to("/a/b/a b#c?d%e"), "./a%20b%23c%3Fd%25e");
        assert_eq!(link("/a/b/x", None), Some(("file:///a/b/x".to_owned(), "x".to_owned())));
        for other in ["javascript:alert(1)", "//evil.example/x/..", "x.pcapng", "http://evil.example/", ""] {
            assert_eq!(page(other).map(|link| link.0), None, "{other}");
        }
        let path = format!("/a/{HOSTILE}");
        let mut section = hostile();
        section.table.as_mut().unwrap().rows[0][0] = Cell::File(path.clone());
        let page = Report::of(section).html(None);
        tags(&page);
        assert!(
            !page.to_lowercase().contains("<script") && page.contains("<a href=\"file:///a/%22"),
            "{page}"
        );
    }

    #[test]
    fn a_page_has_words_units_and_both_colour_schemes() {
        let mut section = hostile();
        let table = section.table.as_mut().unwrap();
        (table.columns, table.rows[1]) = (vec!["from_uri", "ttfb_ms"], vec![Cell::Time(0), Cell::Rate(1.5)]);
        let page = Report::of(section).html(None);
        assert!(
            page.contains("<th class=\"t\">from</th><th class=\"n\">time to first byte, ms</th>"),
            "{page}"
        );
        assert!(!page.contains("ttfb_ms"), "{page}");
        for rule in [
            "color-scheme:light dark",
            "@media(prefers-color-scheme:dark)",
            "svg [stroke=\"#D04A00\"]{stroke-dasharray:10 6}",
            "svg [stroke=\"#D04A00\"]{stroke:#FF9A57}",
            "name=\"viewport\"",
            ".rows{overflow-x:auto}",
        ] {
            assert!(page.contains(rule), "{rule} is not in {page}");
        }
        assert!(!page.contains("overflow-wrap:anywhere"), "words are not broken");
        // The unit is on the axis of both pictures.
        assert_eq!(page.matches("\nbit/s\n").count(), 2, "{page}");
    }
}
