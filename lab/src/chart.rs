//! Charts as SVG and PNG: measurements over one axis, with the spread of repetitions, beside published points.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::element::{DashedPathElement, Drawable, PointCollection};
use plotters::prelude::*;
use plotters_backend::{BackendCoord, DrawingErrorKind};

use crate::bitmap;
use crate::duts::Duts;
use crate::suite::{Axis, Chart, Named, Quantity, Rate, Suite};
use crate::summary::{Line, Spread, Summary};

/// Form of a picture. Sizes are in pixels.
struct Form {
    width: u32,
    /// Height of a chart with curves, without the head and a legend below.
    height: u32,
    /// Height of the title and the line below it; 0: the page has them as text.
    head: u32,
    /// Width of the names beside curves or bars; 0: they are below curves, and above their bars.
    names: u32,
    /// Height of a bar with its space.
    bar: u32,
    /// Size of letters.
    letters: u32,
    /// Maximum number of labels of an axis.
    labels: usize,
    /// Length of the axis of bars relative to the highest value, so that there is room for numbers.
    room: f64,
}

/// The form of files and of wide pages.
const WIDE: Form =
    Form { width: 960, height: 368, head: 52, names: 330, bar: 26, letters: 12, labels: 10, room: 1.15 };
/// The form of narrow pages: letters keep their size.
const NARROW: Form =
    Form { width: 368, height: 250, head: 0, names: 0, bar: 42, letters: 15, labels: 4, room: 1.25 };
/// Height of a line of a legend.
const LEGEND: u32 = 20;
/// Letters for which there is room: in a title, and in the name of a series.
const TITLE: usize = 200;
const NAME: usize = 46;

/// Look of a series: its colour on light and on dark pages, and its dashes and gaps in pixels. A line without gaps is
/// below those with gaps, so that a line with equal values shows through.
struct Look {
    light: RGBColor,
    dark: RGBColor,
    dashes: (i32, i32),
}

const fn look(light: [u8; 3], dark: [u8; 3], dashes: (i32, i32)) -> Look {
    let [r, g, b] = light;
    let light = RGBColor(r, g, b);
    let [r, g, b] = dark;
    Look { light, dark: RGBColor(r, g, b), dashes }
}

const LOOKS: [Look; 10] = [
    look([0x1f, 0x6f, 0xb4], [0x6c, 0xb2, 0xf0], (1, 0)),
    look([0xd9, 0x5f, 0x02], [0xff, 0x9a, 0x57], (10, 6)),
    look([0x1b, 0x8a, 0x5a], [0x4f, 0xcf, 0x98], (3, 5)),
    look([0x9b, 0x3f, 0xa0], [0xdd, 0x96, 0xe2], (18, 6)),
    look([0xb0, 0x8a, 0x00], [0xe8, 0xc5, 0x4a], (6, 3)),
    look([0x5a, 0x5a, 0x5a], [0xbd, 0xbd, 0xbd], (3, 9)),
    look([0xc0, 0x30, 0x50], [0xff, 0x80, 0x99], (14, 12)),
    look([0x30, 0xa0, 0xb0], [0x5f, 0xd6, 0xe6], (6, 6)),
    look([0x70, 0x50, 0x20], [0xd0, 0xa8, 0x78], (10, 2)),
    look([0x60, 0x70, 0xd0], [0xa3, 0xae, 0xff], (24, 4)),
];
/// Colour of bars of published data, on light and on dark pages.
const PUBLISHED: RGBColor = RGBColor(0x8a, 0x8a, 0x8a);
/// Colours of dark pages: background, letters and axes.
pub const DARK: (RGBColor, RGBColor) = (RGBColor(0x15, 0x18, 0x1c), RGBColor(0xe6, 0xe9, 0xed));

/// A colour as plotters writes it into an SVG.
pub fn hex(RGBColor(r, g, b): RGBColor) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

/// Adds the colours of dark pages to an SVG, for viewers that prefer these.
fn with_dark_colours(svg: &str) -> String {
    let looks = LOOKS.iter().map(|look| (look.light, look.dark));
    let mut rules = String::new();
    for (light, dark) in [(WHITE, DARK.0), (BLACK, DARK.1)].into_iter().chain(looks) {
        let (light, dark) = (hex(light), hex(dark));
        for what in ["fill", "stroke"] {
            rules += &format!("svg [{what}=\"{light}\"]{{{what}:{dark}}}");
        }
    }
    svg.replacen(">\n", &format!(">\n<style>@media(prefers-color-scheme:dark){{{rules}}}</style>\n"), 1)
}

/// A marker of the series at this place: series differ without colours.
struct Marker<C> {
    place: usize,
    at: C,
    colour: RGBColor,
}

impl<'a, C> PointCollection<'a, C> for &'a Marker<C> {
    type Point = &'a C;
    type IntoIter = std::iter::Once<&'a C>;

    fn point_iter(self) -> Self::IntoIter {
        std::iter::once(&self.at)
    }
}

impl<B: DrawingBackend, C> Drawable<B> for Marker<C> {
    fn draw<I: Iterator<Item = BackendCoord>>(
        &self,
        mut points: I,
        backend: &mut B,
        _: (u32, u32),
    ) -> Result<(), DrawingErrorKind<B::ErrorType>> {
        let Some((x, y)) = points.next() else { return Ok(()) };
        let filled = self.colour.filled();
        match self.place % 4 {
            0 => backend.draw_circle((x, y), 3, &filled, true),
            1 => backend.fill_polygon([(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)], &filled),
            2 => backend.draw_circle((x, y), 4, &self.colour, false),
            _ => backend.draw_rect((x - 3, y - 3), (x + 3, y + 3), &filled, true),
        }
    }
}

/// A line, or a row of bars: name, positions and values.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name.
    pub name: String,
    /// Values in the order of the axis.
    pub points: Vec<(f64, Spread)>,
    /// Whether it is published data.
    pub published: bool,
}

/// A chart with its name and pictures.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// File name, without `.svg` or `.png`.
    pub name: String,
    /// Title.
    pub title: String,
    /// Lines below the title: the machine, and skipped rows.
    pub below: String,
    /// Picture as SVG.
    pub svg: String,
    /// Picture for narrow pages, without the title.
    pub narrow: String,
    /// The same picture as PNG, usually with twice the resolution.
    pub png: Vec<u8>,
}

/// Charts of a suite: those that it names, or a default for its dimensions.
pub fn charts(suite: &Suite) -> Vec<Chart> {
    if !suite.charts.is_empty() {
        return suite.charts.clone();
    }
    let rates = suite.rates.iter().filter(|rate| matches!(rate, Rate::Pps(_))).count();
    let over = [
        (Axis::Rate, rates),
        (Axis::Workers, suite.workers.len()),
        (Axis::Queues, suite.queues.len()),
        (Axis::Loops, suite.loops.len()),
        (Axis::Size, suite.traffic.sizes.len()),
        (Axis::Calls, suite.traffic.calls.len()),
        (Axis::Entries, suite.entries.len()),
        (Axis::Devices, suite.devices.len()),
        (Axis::Cores, suite.cores.len()),
    ];
    // The first dimension with the maximum number of values.
    let over = over
        .iter()
        .rev()
        .max_by_key(|(_, count)| *count)
        .filter(|(_, count)| *count > 1)
        .map(|(axis, _)| *axis);
    let mut quantities = Vec::new();
    if suite.rates.iter().any(|rate| !matches!(rate, Rate::Search(_))) {
        quantities.extend([Quantity::Captured, Quantity::Analysed]);
    }
    if suite.receiver && !quantities.is_empty() {
        quantities.push(Quantity::PassedOn);
    }
    if suite.searches() {
        quantities.push(Quantity::Rate);
    }
    let chart = |quantity| {
        let over = over.filter(|over| *over != Axis::Rate || quantity != Quantity::Rate);
        Chart { quantity, over, loops: None }
    };
    quantities.into_iter().map(chart).collect()
}

/// Series of a chart: one for each sensor and each combination of the other varied dimensions.
pub fn series(suite: &Suite, sensors: &Duts, summary: &Summary, chart: &Chart) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for line in &summary.lines {
        let of_load = chart.loops.is_none_or(|loops| line.case.loops.is_none_or(|of| of == loops));
        let Some(value) = line.value(chart.quantity).filter(|_| of_load) else { continue };
        let place = match chart.over {
            Some(axis) => line.place(axis),
            None => Some(0.0),
        };
        let Some(place) = place else { continue };
        let name = name(suite, sensors, line, chart);
        match all.iter_mut().find(|one| one.name == name) {
            Some(one) => one.points.push((place, value)),
            None => all.push(Series { name, points: vec![(place, value)], published: false }),
        }
    }
    for one in suite.published.iter().filter(|one| one.quantity == chart.quantity) {
        let spread = |y: f64| Spread { median: y, low: y, high: y };
        let points = one.points.iter().map(|(x, y)| (*x, spread(*y))).collect();
        all.push(Series { name: format!("published: {}", one.name), points, published: true });
    }
    for one in &mut all {
        one.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    all
}

/// Name of a series: the sensor, and its conditions.
fn name(suite: &Suite, sensors: &Duts, line: &Line, chart: &Chart) -> String {
    let case = &line.case;
    let title = sensors.get(&case.sensor).map_or(case.sensor.as_str(), |adapter| adapter.title.as_str());
    let mut words = vec![title.to_owned()];
    let mut add = |axis: Option<Axis>, varies: bool, text: Option<String>| {
        if varies && chart.over != axis {
            words.extend(text);
        }
    };
    let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    add(Some(Axis::Cores), suite.cores.len() > 1, Some(counted(case.cores.len(), "core")));
    add(Some(Axis::Workers), suite.workers.len() > 1, case.workers.map(|count| counted(count, "worker")));
    add(Some(Axis::Queues), suite.queues.len() > 1, Some(counted(case.queues as usize, "RX queue")));
    let loops = suite.loops.len() > 1 && chart.loops.is_none();
    add(Some(Axis::Loops), loops, case.loops.map(|loops| format!("{loops} loops")));
    add(Some(Axis::Size), suite.traffic.sizes.len() > 1, case.size.map(|size| format!("{size} bytes")));
    add(Some(Axis::Calls), suite.traffic.calls.len() > 1, case.calls.map(|calls| format!("{calls} calls")));
    add(
        Some(Axis::Entries),
        suite.entries.len() > 1,
        case.entries.map(|entries| format!("{entries} entries")),
    );
    add(
        Some(Axis::Devices),
        suite.devices.len() > 1,
        case.devices.map(|count| counted(count as usize, "device")),
    );
    add(None, suite.engines.len() > 1, case.engine.clone());
    add(None, suite.napi.len() > 1, case.napi.map(|napi| format!("NAPI {}", napi.name())));
    let set: Vec<String> = case.cores.iter().map(ToString::to_string).collect();
    let same_count = suite.cores.iter().any(|set| set.len() == case.cores.len() && *set != case.cores);
    add(None, same_count, Some(format!("on {}", set.join("+"))));
    let rates = suite.rates.len() > 1 && chart.quantity != Quantity::Rate;
    add(Some(Axis::Rate), rates, Some(case.rate.name()));
    words.join(", ")
}

/// Factor by which values are multiplied in a chart.
fn scale(quantity: Quantity) -> f64 {
    match quantity {
        Quantity::Captured | Quantity::Analysed | Quantity::PassedOn | Quantity::Rate => 1e-3,
        Quantity::Loss | Quantity::Idle => 100.0,
        Quantity::Cpu | Quantity::Generator => 1.0,
    }
}

/// Draws all charts of a suite that have data. `below` is written under each title.
///
/// # Errors
/// A chart cannot be drawn.
pub fn draw(suite: &Suite, sensors: &Duts, summary: &Summary, below: &str) -> Result<Vec<Drawn>> {
    bitmap::register()?;
    let mut drawn = Vec::new();
    for (at, chart) in charts(suite).iter().enumerate() {
        let series = series(suite, sensors, summary, chart);
        if series.iter().all(|one| one.published) {
            continue;
        }
        let (what, _) = chart.quantity.title();
        let load = chart.loops.map_or(String::new(), |loops| format!(", {loops} loops"));
        let title = format!("{}: {}{load}", suite.title, what.to_lowercase());
        let skipped: Vec<&str> = summary.skipped.keys().map(String::as_str).collect();
        let below = if skipped.is_empty() {
            below.to_owned()
        } else {
            format!("{below}; skipped: {}", skipped.join(", "))
        };
        let head = (title.as_str(), below.as_str());
        let size = (WIDE.width, height(&WIDE, chart, &series));
        let png = bitmap::png(size, |bitmap| Ok(picture(bitmap, &WIDE, chart, &series, head)?))?;
        let (svg, narrow) = (svg(&WIDE, chart, &series, head)?, svg(&NARROW, chart, &series, head)?);
        let name = format!("chart-{}-{}", at + 1, chart.quantity.name());
        drawn.push(Drawn { name, title, below, svg, narrow, png });
    }
    Ok(drawn)
}

/// Result of drawing with a backend.
type Done<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Height of a picture in pixels.
fn height(form: &Form, chart: &Chart, series: &[Series]) -> u32 {
    let legend = LEGEND * series.len() as u32;
    let body = match chart.over {
        Some(_) if form.names == 0 => form.height + 8 + legend,
        Some(_) => form.height.max(60 + legend),
        None => 56 + form.bar * series.iter().map(|one| one.points.len() as u32).sum::<u32>(),
    };
    form.head + body
}

/// Picture as SVG, with the colours of dark pages.
fn svg(form: &Form, chart: &Chart, series: &[Series], head: (&str, &str)) -> Result<String> {
    let mut svg = String::new();
    let size = (form.width, height(form, chart, series));
    picture(SVGBackend::with_string(&mut svg, size), form, chart, series, head)?;
    Ok(with_dark_colours(&svg))
}

/// Draws the whole picture with any backend.
fn picture<B: DrawingBackend>(
    backend: B,
    form: &Form,
    chart: &Chart,
    series: &[Series],
    (title, below): (&str, &str),
) -> Done<B> {
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    let (head, area) = root.split_vertically(form.head);
    if form.head > 0 {
        for (text, at, size) in [(title, 10, 17), (below, 34, 12)] {
            let style = TextStyle::from(("sans-serif", size).into_font());
            head.draw(&Text::new(cut(text, TITLE), (12, at), style))?;
        }
    }
    match chart.over {
        Some(axis) => curves(&area, form, chart.quantity, axis, series)?,
        None => bars(&area, form, chart.quantity, series)?,
    }
    root.present()
}

fn curves<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    form: &Form,
    quantity: Quantity,
    axis: Axis,
    series: &[Series],
) -> Done<B> {
    // Rules and entries have a logarithmic axis.
    let across = |x: f64| match axis {
        Axis::Rate => x * 1e-3,
        Axis::Entries => x.max(1.0).log10(),
        _ => x,
    };
    let scale = scale(quantity);
    let points = || series.iter().flat_map(|one| &one.points);
    let most = points().map(|(_, value)| value.high * scale).fold(0.0, f64::max).max(1e-9) * 1.08;
    let (low, high) = points()
        .map(|(x, _)| across(*x))
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    let margin = ((high - low) * 0.03).max(if high > low { 0.0 } else { 0.5 });
    // The legend is beside the plot, or below it.
    let (plot, (left, top)) = match form.names {
        0 => (area.split_vertically(form.height).0, (8, form.height as i32)),
        names => (area.clone(), ((form.width - names) as i32 + 14, 6)),
    };
    let letters = || TextStyle::from(("sans-serif", form.letters).into_font());
    let mut chart = ChartBuilder::on(&plot)
        .margin_left(6)
        .margin_right(form.names.max(14))
        .margin_bottom(8)
        .x_label_area_size(42)
        .y_label_area_size(66)
        .build_cartesian_2d(low - margin..high + margin, 0.0..most)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .label_style(letters())
        .x_labels(form.labels)
        .x_desc(axis.title())
        .x_label_formatter(&|x| match axis {
            Axis::Entries => format!("{:.0}", 10_f64.powf(*x)),
            _ => format!("{}", (x * 100.0).round() / 100.0),
        })
        .y_desc(quantity.title().1)
        .draw()?;
    for (at, one) in series.iter().enumerate() {
        let Look { light: colour, dashes: (dash, gap), .. } = LOOKS[at % LOOKS.len()];
        let width = if gap == 0 && series.len() > 1 { 4 } else { 2 };
        let style = colour.stroke_width(width);
        let path: Vec<(f64, f64)> =
            one.points.iter().map(|(x, value)| (across(*x), value.median * scale)).collect();
        // Published data are from another machine: points without a line.
        if !one.published {
            match gap {
                0 => chart.draw_series(LineSeries::new(path.clone(), style))?,
                _ => chart.draw_series(DashedLineSeries::new(path.clone(), dash, gap, style))?,
            };
            let spread = |(x, value): &(f64, Spread)| {
                let ends = vec![(across(*x), value.low * scale), (across(*x), value.high * scale)];
                PathElement::new(ends, colour.stroke_width(1))
            };
            chart.draw_series(one.points.iter().map(spread))?;
            chart.draw_series(path.iter().map(|point| Marker { place: at, at: *point, colour }))?;
        } else {
            chart.draw_series(path.iter().map(|at| Cross::new(*at, 5, colour)))?;
        }
        let (x, y) = (left, top + (LEGEND * at as u32) as i32);
        if one.published {
            area.draw(&Cross::new((x + 18, y + 7), 5, colour))?;
        } else {
            let path = vec![(x, y + 7), (x + 36, y + 7)];
            match gap {
                0 => area.draw(&PathElement::new(path, style))?,
                _ => area.draw(&DashedPathElement::new(path, dash, gap, style))?,
            }
            area.draw(&Marker { place: at, at: (x + 18, y + 7), colour })?;
        }
        area.draw(&Text::new(cut(&one.name, NAME), (x + 42, y), letters()))?;
    }
    Ok(())
}

fn bars<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    form: &Form,
    quantity: Quantity,
    series: &[Series],
) -> Done<B> {
    let rows: Vec<(&Series, Spread)> =
        series.iter().flat_map(|one| one.points.iter().map(move |(_, value)| (one, *value))).collect();
    let scale = scale(quantity);
    let most = rows.iter().map(|(_, value)| value.high * scale).fold(0.0, f64::max).max(1e-9) * form.room;
    let count = rows.len() as f64;
    let letters = || TextStyle::from(("sans-serif", form.letters).into_font());
    // A name is beside its bar, or above it: places of both within a row, from its top.
    let (named, from, to) = if form.names == 0 { (0.22, 0.44, 0.92) } else { (0.5, 0.15, 0.85) };
    let middle = (from + to) / 2.0;
    let mut chart = ChartBuilder::on(area)
        .margin_left(if form.names == 0 { 16 } else { 0 })
        .margin_right(20)
        .x_label_area_size(44)
        .y_label_area_size(form.names)
        .build_cartesian_2d(0.0..most, 0.0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .disable_y_axis()
        .y_labels(0)
        .label_style(letters())
        .x_labels(form.labels)
        .x_desc(quantity.title().1)
        .draw()?;
    for (at, (one, value)) in rows.iter().enumerate() {
        let top = count - at as f64;
        let colour = if one.published { PUBLISHED } else { LOOKS[0].light };
        let corners = [(0.0, top - from), (value.median * scale, top - to)];
        chart.draw_series([Rectangle::new(corners, colour.filled())])?;
        let ends = vec![(value.low * scale, top - middle), (value.high * scale, top - middle)];
        chart.draw_series([PathElement::new(ends, BLACK.stroke_width(2))])?;
        let (offset_x, offset_y) = area.get_base_pixel();
        let place = |x: f64, down: f64| {
            let (x, y) = chart.plotting_area().map_coordinate(&(x, top - down));
            (x - offset_x, y - offset_y - form.letters as i32 / 2)
        };
        let (left, right) = (place(0.0, named), place(value.high * scale, middle));
        let indent = if form.names == 0 { 0 } else { form.names as i32 - 8 };
        area.draw(&Text::new(cut(&one.name, NAME), (left.0 - indent, left.1), letters()))?;
        let number = format!("{:.*}", usize::from(value.median * scale < 100.0), value.median * scale);
        area.draw(&Text::new(number, (right.0 + 6, right.1), letters()))?;
    }
    Ok(())
}

/// Text without characters that XML or the font do not allow.
fn printable(text: &str) -> String {
    let stands = |letter: char| !letter.is_control() && !matches!(letter, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|letter| if stands(letter) { letter } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// Text, cut to this many letters.
fn cut(text: &str, most: usize) -> String {
    let text = printable(text);
    if text.chars().count() <= most { text } else { text.chars().take(most - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests;
