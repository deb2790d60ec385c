//! A chart for each study: lines over queues, workers, rates, applications or rules, from zero up, a panel for each
//! quantity and setup.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::report::{FORWARDED, MANY_ENTRIES, MANY_PRECISE, MANY_WILDCARD, offered};
use super::summary::Line;
use super::{Series, Study};
use crate::bed::Setup;
use crate::summary::Spread;

const WIDTH: u32 = 900;
const HEAD: u32 = 40;
const PANEL: u32 = 300;
/// Left of a panel its numbers and their name, right of it the series.
const LEFT: u32 = 70;
const RIGHT: i32 = 290;
const BELOW: u32 = 55;

/// The name of a study's chart.
pub fn file_name(study: Study) -> String {
    format!("study-{}.svg", study.name())
}

/// What it shows.
pub fn title(study: Study) -> &'static str {
    match study {
        Study::Queues => "RX queues, each to a worker of its own",
        Study::Workers => "One RX queue to several workers, by flow",
        Study::Congestion => "Overload of the analysis, with and without congestion control",
        Study::Skew => "Skewed flows: packets of each worker, second half of a trial",
        Study::Sharing => "Applications that share a device, each gets every packet",
        Study::PreciseRules => "Precise rules in the kernel: one to many",
        Study::WildcardRules => "Wildcard rules in the kernel: one to many, of which the last is hit",
        Study::NamedSets => "Named sets in the kernel: one entry to many",
        Study::Forwarding => "One flow of 256 forwarded, the others not, by 4096 precise rules",
        Study::Filters => "A tcpdump expression in the kernel, in tcpdump's socket, and in user space",
    }
}

/// One system of axes.
struct Panel {
    heading: String,
    y_name: &'static str,
    x_name: &'static str,
    x_labels: Vec<String>,
    lines: Vec<(Series, Vec<Option<Spread>>)>,
    /// Whether each value stands on a bar of its own.
    bars: bool,
    /// A line across, and what it means.
    target: Option<f64>,
}

/// Writes a study's chart; nothing where it has no lines. `machine`: processor, cores and day.
///
/// # Errors
/// Where the file cannot be written.
pub fn write(path: &Path, study: Study, lines: &[Line], machine: &str) -> Result<bool> {
    let lines: Vec<&Line> = lines.iter().filter(|line| line.study == study).collect();
    if lines.is_empty() {
        return Ok(false);
    }
    let panels = panels(study, &lines);
    let root = SVGBackend::new(path, (WIDTH, HEAD + 20 + PANEL * panels.len() as u32)).into_drawing_area();
    // plotters' errors borrow the backend.
    let fault = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", path.display());
    root.fill(&WHITE).map_err(|error| fault(&error))?;
    let text = |size: i32| TextStyle::from(("sans-serif", size).into_font());
    root.draw(&Text::new(title(study), (12, 10), text(18))).map_err(|error| fault(&error))?;
    root.draw(&Text::new(machine.to_owned(), (12, 34), text(13))).map_err(|error| fault(&error))?;
    let (_, rest) = root.split_vertically(HEAD + 15);
    for (area, panel) in rest.split_evenly((panels.len(), 1)).iter().zip(&panels) {
        draw(area, panel).map_err(|error| fault(&error))?;
    }
    root.present().map_err(|error| fault(&error))?;
    Ok(true)
}

fn panels(study: Study, lines: &[&Line]) -> Vec<Panel> {
    let mut setups: Vec<Setup> = lines.iter().map(|line| line.setup).collect();
    setups.dedup();
    let mut panels = Vec::new();
    let (table_2, lines): (Vec<&Line>, Vec<&Line>) =
        lines.iter().copied().partition(|line| line.series.is_of_table_2());
    if !table_2.is_empty() {
        panels.push(arrangements(&table_2));
    }
    for setup in setups {
        let of = of_widest_load(lines.iter().copied().filter(|line| line.setup == setup).collect());
        if of.is_empty() {
            continue;
        }
        let heading = |what: &str| match setup {
            Setup::A => format!("{what}; setup A: NAPI on the generator's core"),
            Setup::B => format!("{what}; setup B: NAPI on the receivers' cores"),
        };
        let mut panel = |what: &str, y_name, x_name, target, value: &dyn Fn(&Line) -> Option<Spread>| {
            let mut xs: Vec<u32> = of.iter().map(|line| line.x).collect();
            xs.sort_unstable();
            xs.dedup();
            let mut all: Vec<Series> = of.iter().map(|line| line.series).collect();
            all.sort_unstable();
            all.dedup();
            let points = |series: Series| {
                let at = |x: &u32| of.iter().find(|line| (line.series, line.x) == (series, *x));
                (series, xs.iter().map(|x| value(at(x)?)).collect())
            };
            let label = |x: &u32| match study {
                Study::Congestion => offered(*x),
                Study::Filters => format!("1 in {x}"),
                _ => x.to_string(),
            };
            panels.push(Panel {
                heading: heading(what),
                y_name,
                x_name,
                x_labels: xs.iter().map(label).collect(),
                lines: all.into_iter().map(points).collect(),
                bars: false,
                target,
            });
        };
        let mpps = |line: &Line| Some(scaled(line.pps, 1e-6));
        let single = |value: f64| Spread { median: value, low: value, high: value };
        match study {
            Study::Queues => panel("Packets received", "Mpps", "RX queues", None, &mpps),
            Study::Workers => {
                panel("Packets received", "Mpps", "workers", None, &mpps);
                let x_name = "workers; dashed: the target for 8, where each has a core";
                panel("The same, of one worker", "ratio to one", x_name, Some(0.9), &|line| line.of_one);
            }
            Study::Congestion => {
                let loops = of.first().map_or(0, |line| line.load);
                let what = |quantity: &str| format!("{quantity}, {loops} loops each");
                let x_name =
                    "offered, of what the worker can analyse with a core of its own; dashed: the target";
                panel(&what("Packets analysed"), "of the most", x_name, Some(0.95), &|line| line.of_most);
                panel(&what("Flows whole, of those begun"), "%", x_name, Some(95.0), &|line| {
                    line.whole_flows.map(|whole| scaled(whole, 100.0))
                });
            }
            Study::Sharing => {
                panel("Packets received by all together", "Mpps", "applications", None, &mpps);
                panel("Time per packet", "ns", "applications", None, &|line| Some(single(line.kernel_ns)));
            }
            Study::Skew => panels.push(shares(heading("Shares of the packets"), &of)),
            Study::PreciseRules | Study::WildcardRules => {
                let target = if study == Study::PreciseRules { MANY_PRECISE } else { MANY_WILDCARD };
                panel("Packets judged", "Mpps", "rules", None, &mpps);
                let x_name = "rules; dashed: the target";
                panel("The same, of one rule", "ratio to one", x_name, Some(target), &|line| line.of_one);
            }
            Study::NamedSets => {
                panel("Packets judged", "Mpps", "entries", None, &mpps);
                let x_name = "entries; dashed: the target";
                panel("The same, of one entry", "ratio to one", x_name, Some(MANY_ENTRIES), &|line| {
                    line.of_one
                });
            }
            Study::Forwarding => {
                panel("Packets judged", "Mpps", "bytes of a frame", None, &mpps);
                let x_name = "bytes of a frame; dashed: the target";
                let of_limit = |line: &Line| line.of_limit.map(single);
                panel("The same, of XDP_DROP", "ratio", x_name, Some(FORWARDED), &of_limit);
            }
            Study::Filters => {
                panel("Packets judged", "Mpps", "packets that are wanted", None, &mpps);
                let cpu = |line: &Line| Some(single(line.receiver_ns));
                panel(
                    "CPU time of the receiver's process per packet",
                    "ns",
                    "packets that are wanted",
                    None,
                    &cpu,
                );
            }
        }
    }
    panels
}

/// Those with the load for which there are most values, the others being rows of the table only; nearly always all.
fn of_widest_load(lines: Vec<&Line>) -> Vec<&Line> {
    let of = |load: u32| lines.iter().filter(|line| line.load == load).count();
    let widest = lines.iter().map(|line| line.load).max_by_key(|load| of(*load));
    lines.iter().copied().filter(|line| Some(line.load) == widest).collect()
}

/// Fusco and Deri's Table 2: a bar for each setup.
fn arrangements(lines: &[&Line]) -> Panel {
    let line = |(at, line): (usize, &&Line)| {
        let mut values = vec![None; lines.len()];
        values[at] = Some(scaled(line.pps, 1e-6));
        (line.series, values)
    };
    // The labels begin with "(a)".
    let label = |line: &&Line| line.series.label().chars().take(3).collect();
    Panel {
        heading: "Fusco and Deri's Table 2: packets received".to_owned(),
        y_name: "Mpps",
        x_name: "setups; NAPI on the generator's core in (a) to (c)",
        x_labels: lines.iter().map(label).collect(),
        lines: lines.iter().enumerate().map(line).collect(),
        bars: true,
        target: None,
    }
}

/// The workers' shares, the busiest first.
fn shares(heading: String, lines: &[&Line]) -> Panel {
    let workers = lines.iter().map(|line| line.shares_late.len()).max().unwrap_or(0);
    let percent = |share: f64| Spread { median: share * 100.0, low: share * 100.0, high: share * 100.0 };
    let line = |line: &&Line| {
        let values = (0..workers).map(|worker| line.shares_late.get(worker).copied().map(percent));
        (line.series, values.collect())
    };
    Panel {
        heading,
        y_name: "% of the packets",
        x_name: "workers, the busiest first; dashed: all equal",
        x_labels: (1..=workers).map(|worker| worker.to_string()).collect(),
        lines: lines.iter().map(line).collect(),
        bars: false,
        target: (workers > 0).then(|| 100.0 / workers as f64),
    }
}

fn scaled(spread: Spread, by: f64) -> Spread {
    Spread { median: spread.median * by, low: spread.low * by, high: spread.high * by }
}

fn colour(series: Series) -> RGBColor {
    match series {
        Series::Ring
        | Series::RingGroups
        | Series::Controlled
        | Series::Adaptive
        | Series::RuleHit
        | Series::RulesApart
        | Series::SetMiss
        | Series::ForwardTaken
        | Series::FilterKernel => RGBColor(0x1f, 0x6f, 0xb4),
        Series::RingPerQueue
        | Series::RuleSpread
        | Series::RulesNear
        | Series::SetHit
        | Series::ForwardLeft
        | Series::FilterWorker => RGBColor(0x2a, 0x9d, 0x8f),
        Series::OneReader => RGBColor(0x60, 0x60, 0x60),
        Series::Locked => RGBColor(0xc0, 0x6a, 0x1e),
        Series::Unplaced => RGBColor(0x2a, 0x9d, 0x8f),
        Series::Tuned => RGBColor(0x1f, 0x6f, 0xb4),
        Series::Drop => RGBColor(0x60, 0x60, 0x60),
        Series::Uncontrolled | Series::Static | Series::Fanout | Series::Packet => RGBColor(0xc0, 0x6a, 0x1e),
        Series::SetSure | Series::Xsk | Series::Tcpdump => RGBColor(0x8e, 0x44, 0x8b),
    }
}

fn draw<'a>(
    area: &DrawingArea<SVGBackend<'a>, Shift>,
    panel: &Panel,
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
    let text = |size: i32| TextStyle::from(("sans-serif", size).into_font());
    let highs = panel.lines.iter().flat_map(|(_, values)| values.iter().flatten()).map(|value| value.high);
    let most = highs.chain(panel.target).fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.1;
    let count = panel.x_labels.len().max(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.heading, ("sans-serif", 15))
        .margin_top(4)
        .margin_right(RIGHT)
        .x_label_area_size(BELOW)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(-0.4..count - 0.6, 0.0..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(0)
        .y_labels(6)
        .y_label_formatter(&|value| if most < 3.0 { format!("{value:.2}") } else { format!("{value:.0}") })
        .label_style(("sans-serif", 13))
        .draw()?;
    if let Some(target) = panel.target {
        // Dashes by hand: fifty of them.
        let dash = |part: u32| {
            let x = |step: f64| -0.4 + (count - 0.2) * step / 50.0;
            let (from, to) = (x(f64::from(part)), x(f64::from(part) + 0.5));
            PathElement::new(vec![(from, target), (to, target)], BLACK.mix(0.5).stroke_width(1))
        };
        chart.draw_series((0..50).map(dash))?;
    }
    for (series, values) in &panel.lines {
        let colour = colour(*series);
        let known = || values.iter().enumerate().filter_map(|(at, value)| Some((at as f64, (*value)?)));
        if panel.bars {
            chart.draw_series(known().map(|(at, value)| {
                Rectangle::new([(at - 0.3, 0.0), (at + 0.3, value.median)], colour.mix(0.4).filled())
            }))?;
        }
        chart.draw_series(LineSeries::new(
            known().map(|(at, value)| (at, value.median)),
            colour.stroke_width(2),
        ))?;
        chart.draw_series(known().map(|(at, value)| Circle::new((at, value.median), 4, colour.filled())))?;
        chart.draw_series(known().map(|(at, value)| {
            PathElement::new(vec![(at, value.low), (at, value.high)], colour.stroke_width(1))
        }))?;
    }
    let plot = chart.plotting_area();
    let (base_x, base_y) = area.get_base_pixel();
    let place = |x: f64, y: f64| {
        let (x, y) = plot.map_coordinate(&(x, y));
        (x - base_x, y - base_y)
    };
    for (at, label) in panel.x_labels.iter().enumerate() {
        let (x, y) = place(at as f64, 0.0);
        // About half of the label's width to the left.
        let half = label.chars().count() as i32 * 7 / 2;
        area.draw(&Text::new(label.clone(), (x - half, y + 8), text(13)))?;
    }
    let (left, bottom) = place(-0.4, 0.0);
    area.draw(&Text::new(panel.x_name, (left, bottom + 28), text(13)))?;
    let (right, top) = place(count - 0.6, most);
    area.draw(&Text::new(panel.y_name, (12, top - 18), text(13)))?;
    for (number, (series, _)) in panel.lines.iter().enumerate() {
        let y = top + 12 + 22 * number as i32;
        let colour = colour(*series);
        let mark = vec![(right + 14, y), (right + 38, y)];
        area.draw(&PathElement::new(mark, colour.stroke_width(3)))?;
        area.draw(&Text::new(series.label(), (right + 44, y - 7), text(13)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::summary::summarise;
    use crate::study::summary::tests::point;

    #[test]
    fn a_chart_names_its_axes_and_series_and_begins_at_zero() {
        let points = [
            point(Study::Workers, Series::Ring, 1, 0, 900),
            point(Study::Workers, Series::Ring, 2, 0, 800),
            point(Study::Workers, Series::Fanout, 1, 0, 700),
        ];
        let path = std::env::temp_dir().join(format!("wirelane-bench-chart-{}.svg", std::process::id()));
        assert!(write(&path, Study::Workers, &summarise(&points, false), "a processor, 2 cores").unwrap());
        let svg = std::fs::read_to_string(&path).unwrap();
        for words in
            ["One RX queue", "workers", "Mpps", "Wirelane, one capture", "PACKET_FANOUT", "a processor"]
        {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        assert!(svg.contains("\n0.00\n"), "{svg}");
        assert!(!write(&path, Study::Queues, &summarise(&points, false), "").unwrap());
        std::fs::remove_file(path).unwrap();
    }
}
