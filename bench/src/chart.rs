//! The chart: for each case, what every receiver reached, as bars.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::results::{Results, Row};

const WIDTH: i32 = 900;
const BAR: i32 = 18;
const LEFT: i32 = 190;
const RIGHT: i32 = 150;

/// Writes the medians of all cases to `path` as SVG.
///
/// # Errors
/// Where the file cannot be written.
pub fn write(results: &Results, path: &Path) -> Result<()> {
    let cases = results.cases();
    let height: i32 = cases.iter().map(|case| 60 + BAR * results.of(*case).count() as i32).sum::<i32>() + 20;
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    let failed = |error| anyhow!("drawing {}: {error:?}", path.display());
    draw(results, &area).and_then(|()| area.present().map_err(|error| error.to_string())).map_err(failed)
}

fn draw(results: &Results, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<(), String> {
    let text = |error: DrawingAreaErrorKind<_>| error.to_string();
    area.fill(&WHITE).map_err(text)?;
    let mut y = 30;
    for case in results.cases() {
        let rows: Vec<&Row> = results.of(case).collect();
        let most = rows.iter().filter_map(|row| row.pps()).fold(1.0, f64::max);
        let title = format!(
            "Setup {}, {}-byte frames, generator: {} (Mpps received; share of the limit)",
            case.setup.name(),
            case.size,
            case.method.name()
        );
        area.draw(&Text::new(title, (10, y - 18), ("sans-serif", 14))).map_err(text)?;
        for row in rows {
            let name = row.receiver.name();
            area.draw(&Text::new(name, (10, y + 2), ("sans-serif", 12))).map_err(text)?;
            if let Some(pps) = row.pps() {
                let right = LEFT + (pps / most * f64::from(WIDTH - LEFT - RIGHT)) as i32;
                let colour =
                    if row.receiver.is_ours() { RGBColor(32, 96, 160) } else { RGBColor(150, 150, 150) };
                let bar = Rectangle::new([(LEFT, y + 1), (right, y + BAR - 4)], colour.filled());
                area.draw(&bar).map_err(text)?;
                let share = results.ratio(row, crate::receiver::Receiver::Drop);
                let share = share.map_or_else(String::new, |share| format!("  {share:.2}"));
                let label = format!("{:.3}{share}", pps / 1e6);
                area.draw(&Text::new(label, (right + 6, y + 2), ("sans-serif", 12))).map_err(text)?;
            }
            y += BAR;
        }
        y += 60;
    }
    Ok(())
}
