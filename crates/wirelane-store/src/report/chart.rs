//! Charts over time as SVG. Only numbers and times are written here: names are outside the SVG, where they are escaped.

use plotters::prelude::*;
use wirelane_export::calendar::{shown, zone_word};

use super::{Chart, at_time, short};

/// Form of a picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Class of its element in the page.
    pub(super) class: &'static str,
    /// Width and height, in pixels.
    size: (u32, u32),
    /// Maximum number of labels of the time axis.
    labels: usize,
    /// Width of the line below the others.
    below: u32,
}

/// The forms for wide and for narrow pages. A page has both, so that letters have their size on both.
pub(super) const FORMS: [Form; 2] = [
    Form { class: "wide", size: (960, 280), labels: 8, below: 4 },
    Form { class: "narrow", size: (368, 240), labels: 3, below: 3 },
];
/// Height of the axis relative to the highest number.
const HEADROOM: f64 = 1.08;

/// Look of a line: its colour on light and on dark pages, and its dashes, in pixels.
pub(super) struct Look {
    /// Colour on light pages, as in the picture. The page's style refers to it.
    pub(super) light: &'static str,
    /// Colour on dark pages.
    pub(super) dark: &'static str,
    /// Lengths of dashes and gaps: lines differ without colours, and one below an equal one shows in its gaps.
    pub(super) dashes: &'static str,
}

const fn look(light: &'static str, dark: &'static str, dashes: &'static str) -> Look {
    Look { light, dark, dashes }
}

/// Looks of the lines, in order.
pub(super) const LOOKS: [Look; 8] = [
    look("#0072B2", "#56B4E9", "none"),
    look("#D04A00", "#FF9A57", "10 6"),
    look("#007A58", "#3CC79A", "2 5"),
    look("#A23C82", "#E79AC6", "14 4 3 4"),
    look("#806000", "#E8C54A", "5 3"),
    look("#5B4FC7", "#A49BFF", "14 4 3 4 3 4"),
    look("#007882", "#4FD0DD", "18 8"),
    look("#4D4D4D", "#BDBDBD", "2 10"),
];
/// Look of marked moments.
pub(super) const MARK: Look = look("#C00000", "#FF7070", "4 3");
/// Colour of axes and their labels, in the picture; the page's style replaces it.
const AXIS: RGBColor = RGBColor(110, 110, 110);

fn colour(text: &str) -> RGBColor {
    let part = |at: usize| text.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0);
    RGBColor(part(1), part(3), part(5))
}

/// The picture; `None` if there is nothing to draw.
pub(super) fn svg(chart: &Chart, form: Form, (from_ns, to_ns): (i64, i64), step_ns: i64) -> Option<String> {
    if chart.lines.iter().all(|line| line.points.is_empty()) {
        return None;
    }
    let points = chart.lines.iter().flat_map(|line| &line.points);
    let most = points.map(|(_, value)| *value).fold(0.0, f64::max) * HEADROOM;
    let most = if most > 0.0 { most } else { 1.0 };
    let mut text = String::new();
    draw(&mut text, (chart, form), (from_ns, to_ns.max(from_ns + 1)), step_ns, most).ok()?;
    Some(text)
}

/// Seconds between two labels of a time axis: the first that gives at most this many labels.
fn between(seconds: f64, labels: usize) -> i64 {
    const STEPS: [i64; 20] = [
        1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
        172_800, 604_800,
    ];
    let fits = |step: &i64| seconds / *step as f64 <= labels as f64;
    STEPS.into_iter().find(fits).unwrap_or((seconds / labels as f64 / 2_592_000.0).ceil() as i64 * 2_592_000)
}

/// Draws into memory: fails if there is no room for labels, which does not happen at this size.
fn draw(
    text: &mut String,
    (chart, form): (&Chart, Form),
    (from_ns, to_ns): (i64, i64),
    step_ns: i64,
    most: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let zone = zone_word();
    let seconds = to_ns.saturating_sub(from_ns) as f64 / 1e9;
    let (hours, days) = if seconds <= 600.0 {
        ("%H:%M:%S", format!("time ({zone}), from {}", at_time(from_ns, "%Y-%m-%d")))
    } else if seconds <= 2.0 * 86_400.0 {
        ("%H:%M", format!("time ({zone}), from {}", at_time(from_ns, "%Y-%m-%d")))
    } else {
        ("%m-%d %H:%M", format!("month-day and time ({zone}), from {}", at_time(from_ns, "%Y")))
    };
    // Labels are at round times of the zone at the beginning.
    let between_ns = between(seconds, form.labels).saturating_mul(1_000_000_000);
    let ahead_ns = i64::from(shown(u64::try_from(from_ns).unwrap_or(0)).offset().seconds()) * 1_000_000_000;
    let number = |ns: i64| ns.saturating_add(ahead_ns).div_euclid(between_ns);
    let labels = (number(from_ns)..=number(to_ns))
        .map(|number| number.saturating_mul(between_ns).saturating_sub(ahead_ns))
        .filter(|at| (from_ns..=to_ns).contains(at))
        .collect();
    let letters = || ("sans-serif", 14).into_font().color(&AXIS);
    let root = SVGBackend::with_string(text, form.size).into_drawing_area();
    let mut plot = ChartBuilder::on(&root)
        .margin(6)
        .margin_right(36)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d((from_ns..to_ns).with_key_points(labels), 0.0..most)?;
    plot.configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBAColor(128, 128, 128, 0.25))
        .axis_style(AXIS)
        .label_style(letters())
        .axis_desc_style(letters())
        .x_desc(days)
        .y_desc(chart.unit)
        .x_labels(2 * form.labels)
        .y_labels(5)
        .x_label_formatter(&|at| at_time(*at, hours))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    let mark = colour(MARK.light);
    plot.draw_series(
        chart
            .marks
            .iter()
            .filter(|at| (from_ns..=to_ns).contains(*at))
            .map(|at| PathElement::new(vec![(*at, 0.0), (*at, most)], mark.stroke_width(1))),
    )?;
    for (at, (line, look)) in chart.lines.iter().zip(LOOKS.iter().cycle()).enumerate() {
        // The first line is below the others, and shows beside them.
        let is_below = at == 0 && chart.lines.len() > 1;
        let style = colour(look.light).stroke_width(if is_below { form.below } else { 2 });
        for run in line.points.chunk_by(|a, b| b.0 - a.0 <= step_ns) {
            // A value is drawn over the whole step in which it was measured.
            let ends = |(at, value): &(i64, f64)| {
                [((*at).max(from_ns), *value), (at.saturating_add(step_ns).min(to_ns), *value)]
            };
            let path: Vec<(i64, f64)> = run.iter().flat_map(ends).collect();
            plot.draw_series(std::iter::once(PathElement::new(path, style)))?;
        }
    }
    root.present()?;
    drop(plot);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Line;

    fn chart(points: &[(i64, f64)]) -> Chart {
        let line = Line { name: "</svg><script>".to_owned(), points: points.to_vec() };
        Chart { unit: "bit/s", lines: vec![line], marks: vec![3, 1_000_000_000_000] }
    }

    #[test]
    fn lines_are_drawn_where_something_was_measured_and_names_are_not() {
        let s = 1_000_000_000;
        assert_eq!(svg(&chart(&[]), FORMS[0], (0, 10 * s), s), None);
        let picture = svg(&chart(&[(0, 5.0), (s, 7.0), (5 * s, 1.0)]), FORMS[0], (0, 10 * s), s).unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{picture}");
        let lines = picture.matches("stroke=\"#0072B2\"").count();
        assert_eq!(lines, 2, "two runs: nothing was measured between: {picture}");
        assert_eq!(
            picture.matches("stroke=\"#C00000\"").count(),
            1,
            "a mark that is not of this time is left out"
        );
        assert!(!picture.contains("script"), "{picture}");
        let silent = svg(&chart(&[(0, 0.0)]), FORMS[1], (0, 0), s).unwrap();
        assert!(!silent.contains("NaN") && !silent.contains("inf"), "{silent}");
    }
    #[test]
    fn both_axes_have_units_in_both_forms_and_for_any_time() {
        let s = 1_000_000_000;
        for form in FORMS {
            for (to_ns, words) in [
                (10 * s, "time (UTC), from 1970-01-01"),
                (7200 * s, "time (UTC), from 1970-01-01"),
                (3 * 86_400 * s, "month-day and time (UTC), from 1970"),
            ] {
                let picture = svg(&chart(&[(0, 5.0)]), form, (0, to_ns), s).unwrap();
                let texts: Vec<&str> = picture.split("<text").skip(1).collect();
                for unit in ["bit/s", words] {
                    let found = texts.iter().filter(|text| text.contains(&format!("\n{unit}\n")));
                    assert_eq!(found.count(), 1, "{unit}: {picture}");
                }
                assert!(picture.contains(&format!("width=\"{}\"", form.size.0)), "{picture}");
            }
        }
    }

    #[test]
    fn labels_of_times_are_round_and_few() {
        for (seconds, labels, expected) in
            [(3620.0, 8, 600), (3620.0, 3, 1800), (0.5, 8, 1), (86_400.0, 8, 10_800), (4e8, 8, 51_840_000)]
        {
            assert_eq!(between(seconds, labels), expected, "{seconds} s, {labels} labels");
        }
        let s = 1_000_000_000;
        let picture = svg(&chart(&[(0, 5.0)]), FORMS[0], (1012 * s, 4632 * s), s).unwrap();
        for label in ["00:20", "00:30", "01:10"] {
            assert!(picture.contains(&format!("\n{label}\n")), "{label}: {picture}");
        }
    }

    #[test]
    fn lines_differ_without_colours() {
        let dashes: std::collections::BTreeSet<&str> = LOOKS.iter().map(|look| look.dashes).collect();
        assert_eq!(dashes.len(), LOOKS.len());
    }
}
