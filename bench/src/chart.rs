//! The throughput of 60-byte frames (the first size) as a chart: a bar per receiver and setup, with its spread.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::bed::Setup;
use crate::receiver::Receiver;
use crate::summary::Line;
use crate::trial::Load;

const WIDTH: u32 = 900;
const BAR: u32 = 26;
const HEAD: u32 = 40;
const FOOT: u32 = 60;
const NAMES: u32 = 210;

const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const LIMIT: RGBColor = RGBColor(0x60, 0x60, 0x60);
const PEERS: RGBColor = RGBColor(0xc0, 0x8a, 0x3e);

/// The name of the chart of this load.
pub fn file_name(load: Load) -> String {
    format!("throughput-{}-{}.svg", load.size, load.method.name())
}

/// Writes the chart of this load; nothing where no receiver was measured under it.
///
/// # Errors
/// Where the file cannot be written.
pub fn write(path: &Path, lines: &[Line], load: Load, caption: &str) -> Result<()> {
    let panel = |setup| {
        let mut found: Vec<&Line> =
            lines.iter().filter(|line| (line.setup, line.load) == (setup, load)).collect();
        found.sort_by(|a, b| b.pps.median.total_cmp(&a.pps.median));
        (setup, found)
    };
    let panels: Vec<(Setup, Vec<&Line>)> =
        [Setup::A, Setup::B].into_iter().map(panel).filter(|(_, lines)| !lines.is_empty()).collect();
    if panels.is_empty() {
        return Ok(());
    }
    let height = |lines: &[&Line]| HEAD + FOOT + BAR * lines.len() as u32;
    let total = HEAD + panels.iter().map(|(_, lines)| height(lines)).sum::<u32>();
    let root = SVGBackend::new(path, (WIDTH, total)).into_drawing_area();
    // plotters' errors borrow the backend.
    let fault = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", path.display());
    root.fill(&WHITE).map_err(|error| fault(&error))?;
    let title = TextStyle::from(("sans-serif", 18).into_font());
    root.draw(&Text::new(caption.to_owned(), (12, 12), title)).map_err(|error| fault(&error))?;
    // One scale for both, so that bars can be compared across.
    let all = panels.iter().flat_map(|(_, lines)| lines);
    let most = all.map(|line| line.pps.high / 1e6).fold(0.0, f64::max) * 1.12;
    let (_, mut rest) = root.split_vertically(HEAD);
    for (setup, lines) in &panels {
        let (area, below) = rest.split_vertically(height(lines));
        draw(&area, *setup, lines, most).map_err(|error| fault(&error))?;
        rest = below;
    }
    root.present().map_err(|error| fault(&error))
}

fn draw<'a>(
    area: &DrawingArea<SVGBackend<'a>, Shift>,
    setup: Setup,
    lines: &[&Line],
    most: f64,
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
    let heading = match setup {
        Setup::A => "A: NAPI on the generator's core",
        Setup::B => "B: NAPI on the receiver's core",
    };
    let count = lines.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(heading, ("sans-serif", 15))
        .margin_right(20)
        .x_label_area_size(FOOT - 20)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(0.0..most, 0.0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .disable_y_axis()
        .y_labels(0)
        .x_desc("million packets received per second; blue: Wirelane, grey: the limit, lines: spread")
        .draw()?;
    let row = |index: usize| count - index as f64;
    chart.draw_series(lines.iter().enumerate().map(|(index, line)| {
        let colour = match line.receiver {
            Receiver::Drop | Receiver::DropRead => LIMIT,
            receiver if receiver.is_ours() => OURS,
            _ => PEERS,
        };
        let corners = [(0.0, row(index) - 0.15), (line.pps.median / 1e6, row(index) - 0.85)];
        Rectangle::new(corners, colour.filled())
    }))?;
    chart.draw_series(lines.iter().enumerate().map(|(index, line)| {
        let ends = vec![(line.pps.low / 1e6, row(index) - 0.5), (line.pps.high / 1e6, row(index) - 0.5)];
        PathElement::new(ends, BLACK.stroke_width(2))
    }))?;
    let to_pixels = chart.plotting_area();
    for (index, line) in lines.iter().enumerate() {
        let (left, middle) = to_pixels.map_coordinate(&(0.0, row(index) - 0.5));
        let (right, _) = to_pixels.map_coordinate(&(line.pps.high / 1e6, row(index) - 0.5));
        let (offset_x, offset_y) = area.get_base_pixel();
        let at = |x: i32| (x - offset_x, middle - offset_y - 6);
        let name = TextStyle::from(("sans-serif", 13).into_font());
        area.draw(&Text::new(line.receiver.label(), at(left - NAMES as i32 + 8), name.clone()))?;
        area.draw(&Text::new(format!("{:.2}", line.pps.median / 1e6), at(right + 6), name))?;
    }
    Ok(())
}
