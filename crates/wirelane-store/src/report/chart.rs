//! Charts over time as SVG. Only numbers and times are written here: names are outside the SVG, where they are escaped.

use chrono::DateTime;
use plotters::prelude::*;

use super::{Chart, short};

/// Size of the picture, in its own units.
const SIZE: (u32, u32) = (960, 260);
/// Height of the axis relative to the highest number.
const HEADROOM: f64 = 1.08;

/// Colours of the lines, in order: distinguishable for colour-blind people, too (Okabe and Ito).
pub(super) const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a8a00", "#555555"];
/// Colour of marked moments.
pub(super) const MARK: &str = "#c00000";

fn colour(text: &str) -> RGBColor {
    let part = |at: usize| text.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0);
    RGBColor(part(1), part(3), part(5))
}

/// The picture; `None` if there is nothing to draw.
pub(super) fn svg(chart: &Chart, (from_ns, to_ns): (i64, i64), step_ns: i64) -> Option<String> {
    if chart.lines.iter().all(|line| line.points.is_empty()) {
        return None;
    }
    let points = chart.lines.iter().flat_map(|line| &line.points);
    let most = points.map(|(_, value)| *value).fold(0.0, f64::max) * HEADROOM;
    let most = if most > 0.0 { most } else { 1.0 };
    let mut text = String::new();
    draw(&mut text, chart, (from_ns, to_ns.max(from_ns + 1)), step_ns, most).ok()?;
    Some(text)
}

/// Draws into memory: fails if there is no room for labels, which does not happen at this size.
fn draw(
    text: &mut String,
    chart: &Chart,
    (from_ns, to_ns): (i64, i64),
    step_ns: i64,
    most: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    // Seconds since the beginning: the axis can be divided into even parts.
    let second = |ns: i64| ns.saturating_sub(from_ns) as f64 / 1e9;
    let (end, step) = (second(to_ns), step_ns as f64 / 1e9);
    let form = if end <= 600.0 {
        "%H:%M:%S"
    } else if end <= 2.0 * 86_400.0 {
        "%H:%M"
    } else {
        "%m-%d %H:%M"
    };
    let time =
        |at: &f64| DateTime::from_timestamp_nanos(from_ns + (at * 1e9) as i64).format(form).to_string();
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    let mut plot = ChartBuilder::on(&root)
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..most)?;
    plot.configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBAColor(128, 128, 128, 0.25))
        .axis_style(RGBColor(128, 128, 128))
        .label_style(("sans-serif", 12).into_font().color(&RGBColor(110, 110, 110)))
        .x_labels(8)
        .y_labels(5)
        .x_label_formatter(&time)
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    let mark = colour(MARK);
    plot.draw_series(chart.marks.iter().filter(|at| (from_ns..=to_ns).contains(*at)).map(|at| {
        PathElement::new(vec![(second(*at), 0.0), (second(*at), most)], mark.mix(0.6).stroke_width(1))
    }))?;
    for (line, colour) in chart.lines.iter().zip(COLOURS.map(colour).iter().cycle()) {
        for run in line.points.chunk_by(|a, b| b.0 - a.0 <= step_ns) {
            // A value is drawn over the whole step in which it was measured.
            let ends = |(at, value): &(i64, f64)| {
                let start = second(*at).max(0.0);
                [(start, *value), ((second(*at) + step).min(end), *value)]
            };
            let path: Vec<(f64, f64)> = run.iter().flat_map(ends).collect();
            plot.draw_series(std::iter::once(PathElement::new(path, colour.stroke_width(2))))?;
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
        assert_eq!(svg(&chart(&[]), (0, 10 * s), s), None);
        let picture = svg(&chart(&[(0, 5.0), (s, 7.0), (5 * s, 1.0)]), (0, 10 * s), s).unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{picture}");
        let lines = picture.matches("stroke=\"#0072B2\"").count();
        assert_eq!(lines, 2, "two runs: nothing was measured between: {picture}");
        assert_eq!(
            picture.matches("stroke=\"#C00000\"").count(),
            1,
            "a mark that is not of this time is left out"
        );
        assert!(!picture.contains("script"), "{picture}");
        let silent = svg(&chart(&[(0, 0.0)]), (0, 0), s).unwrap();
        assert!(!silent.contains("NaN") && !silent.contains("inf"), "{silent}");
    }
}
