//! Charts as PNG, for viewers without SVG: plotters' own bitmaps, with twice the SVG's resolution.
//!
//! The font is part of the program, since the measuring machine may have none. Text is placed as by the SVG backend,
//! whose sizes and line heights are repeated here, so that both pictures are equal.

use ab_glyph::{Font, FontRef, GlyphId, PxScale, ScaleFont, point};
use anyhow::{Context, Result};
use plotters::prelude::{BitMapBackend, DrawingBackend};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingErrorKind};

/// Pixels of the PNG per pixel of the chart, in each direction. Very high lists of bars have a factor of 1, as the
/// whole bitmap is in memory.
pub fn scale(height: u32) -> u32 {
    if height <= 10_000 { 2 } else { 1 }
}

/// DejaVu Sans, reduced to Latin and Greek letters, digits and signs (`fonts/README.md`).
const FONT: &[u8] = include_bytes!("../fonts/DejaVuSans-subset.ttf");

/// Factor by which plotters reduces font sizes in an SVG.
const SIZE: f64 = 1.24;
/// Height of a small `x`, which is a unit of SVG, relative to the font size.
const EX: f32 = 0.547;

type Drawn = Result<(), DrawingErrorKind<<BitMapBackend<'static> as DrawingBackend>::ErrorType>>;

/// Draws a chart of this size on a bitmap and returns the PNG.
///
/// # Errors
/// The error of drawing.
pub fn png((width, height): (u32, u32), draw: impl FnOnce(Bitmap<'_>) -> Result<()>) -> Result<Vec<u8>> {
    let scale = scale(height);
    let (wide, high) = (width * scale, height * scale);
    let mut pixels = vec![0; 3 * wide as usize * high as usize];
    let font = FontRef::try_from_slice(FONT).context("reading the font of charts")?;
    draw(Bitmap { under: BitMapBackend::with_buffer(&mut pixels, (wide, high)), font, scale: scale as i32 })?;
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, wide, high);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().context("writing a PNG's head")?;
    writer.write_image_data(&pixels).context("writing a PNG's pixels")?;
    writer.finish().context("ending a PNG")?;
    Ok(file)
}

/// plotters' bitmap with our font, scaled by a factor that is transparent for the drawing.
pub struct Bitmap<'a> {
    under: BitMapBackend<'a>,
    font: FontRef<'static>,
    scale: i32,
}

/// A line style with a scaled width.
struct Wide {
    colour: BackendColor,
    width: u32,
}

impl BackendStyle for Wide {
    fn color(&self) -> BackendColor {
        self.colour
    }

    fn stroke_width(&self) -> u32 {
        self.width
    }
}

impl Bitmap<'_> {
    fn wide(&self, style: &impl BackendStyle) -> Wide {
        Wide { colour: style.color(), width: style.stroke_width() * self.scale.unsigned_abs() }
    }

    /// Upper left corner of a pixel of the chart on the bitmap.
    fn corner(&self, (x, y): BackendCoord) -> BackendCoord {
        (x.saturating_mul(self.scale), y.saturating_mul(self.scale))
    }

    /// Middle of a pixel, through which lines are drawn.
    fn middle(&self, at: BackendCoord) -> BackendCoord {
        let (x, y) = self.corner(at);
        (x.saturating_add(self.scale / 2), y.saturating_add(self.scale / 2))
    }
}

impl DrawingBackend for Bitmap<'_> {
    type ErrorType = <BitMapBackend<'static> as DrawingBackend>::ErrorType;

    fn get_size(&self) -> (u32, u32) {
        let (wide, high) = self.under.get_size();
        (wide / self.scale.unsigned_abs(), high / self.scale.unsigned_abs())
    }

    fn ensure_prepared(&mut self) -> Drawn {
        self.under.ensure_prepared()
    }

    fn present(&mut self) -> Drawn {
        self.under.present()
    }

    fn draw_pixel(&mut self, at: BackendCoord, colour: BackendColor) -> Drawn {
        let beyond = (at.0.saturating_add(1), at.1.saturating_add(1));
        self.under.draw_rect(self.corner(at), self.corner(beyond), &colour, true)
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        let wide = self.wide(style);
        self.under.draw_path([self.middle(from), self.middle(to)], &wide)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        let wide = self.wide(style);
        self.under.draw_rect(self.corner(from), self.corner(to), &wide, fill)
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        let (wide, path) = (self.wide(style), path.into_iter().map(|at| self.middle(at)).collect::<Vec<_>>());
        self.under.draw_path(path, &wide)
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        at: BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn {
        let wide = self.wide(style);
        self.under.draw_circle(self.middle(at), radius * self.scale.unsigned_abs(), &wide, fill)
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        corners: I,
        style: &S,
    ) -> Drawn {
        let corners: Vec<_> = corners.into_iter().map(|at| self.middle(at)).collect();
        self.under.fill_polygon(corners, style)
    }

    /// Draws text like the SVG backend: the same size, and the same distance of the baseline from the anchor.
    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Drawn {
        let (wide, high) = self.under.get_size();
        let em = (style.size() / SIZE) as f32 * self.scale as f32;
        let scale = em * self.font.height_unscaled() / self.font.units_per_em().unwrap_or(1.0);
        let font = self.font.as_scaled(PxScale::from(scale));
        // More text than this has no room, in any rotation.
        let most = (wide + high) as f32;
        let mut glyphs: Vec<(GlyphId, f32)> = Vec::new();
        let mut width = 0.0;
        for letter in text.chars() {
            // Letters that the font lacks are drawn as a box, and so are control characters.
            let id = if letter.is_control() { GlyphId(0) } else { font.glyph_id(letter) };
            width += glyphs.last().map_or(0.0, |(before, _)| font.kern(*before, id));
            glyphs.push((id, width));
            width += font.h_advance(id);
            if width > most {
                break;
            }
        }
        let left = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => -width / 2.0,
            HPos::Right => -width,
        };
        let foot = match style.anchor().v_pos {
            VPos::Top => 0.76 * em,
            VPos::Center => 0.5 * EX * em,
            VPos::Bottom => -0.5 * EX * em,
        };
        let (turn, colour, (x0, y0)) = (style.transform(), style.color(), self.corner(at));
        let mut drawn = Ok(());
        for (id, x) in glyphs {
            let placed = id.with_scale_and_position(font.scale(), point(left + x, foot));
            let Some(outline) = font.outline_glyph(placed) else { continue };
            let corner = outline.px_bounds().min;
            outline.draw(|x, y, cover| {
                let (x, y) = turn.transform(corner.x as i32 + x as i32, corner.y as i32 + y as i32);
                let pixel = (x0.saturating_add(x), y0.saturating_add(y));
                if drawn.is_ok() && cover > 0.0 {
                    drawn = self.under.draw_pixel(pixel, colour.mix(f64::from(cover.min(1.0))));
                }
            });
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use plotters::prelude::*;
    use plotters::style::text_anchor::Pos;

    use super::*;

    /// A small chart, as lines of dark and light pixels.
    fn drawn(size: (u32, u32), draw: impl FnOnce(&mut Bitmap<'_>) -> Drawn) -> (u32, u32, Vec<bool>) {
        let file = png(size, |mut bitmap| {
            let white = BackendColor { alpha: 1.0, rgb: (255, 255, 255) };
            bitmap.draw_rect((0, 0), (size.0 as i32, size.1 as i32), &white, true)?;
            Ok(draw(&mut bitmap)?)
        });
        let file = file.unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        (info.width, info.height, pixels.chunks_exact(3).map(|pixel| pixel[0] < 128).collect())
    }

    /// First and last column and row with a dark pixel.
    fn bounds((width, _, dark): &(u32, u32, Vec<bool>)) -> Option<[usize; 4]> {
        let places = || (0..dark.len()).filter(|at| dark[*at]);
        let (across, down) =
            (|| places().map(|at| at % *width as usize), || places().map(|at| at / *width as usize));
        Some([across().min()?, across().max()?, down().min()?, down().max()?])
    }

    fn text(text: &str, pos: Pos, transform: FontTransform) -> [usize; 4] {
        let style = TextStyle::from(("sans-serif", 12).into_font().transform(transform)).pos(pos);
        bounds(&drawn((200, 200), |bitmap| bitmap.draw_text(text, &style, (100, 100)))).expect("letters")
    }

    #[test]
    fn letters_stand_where_an_svg_has_them() {
        let none = || FontTransform::None;
        let [left, right, top, foot] = text("HHHH", Pos::new(HPos::Left, VPos::Top), none());
        // An em is 12 / 1.24 pixels of the chart, and twice as many of the bitmap. An H is 0.73 of it high, and four
        // are 3.01 wide, of which 0.1 is empty at both ends. The baseline is 0.76 of it below.
        let em = 12.0 / 1.24 * 2.0;
        let near = |pixel: usize, expected: f64| {
            assert!((pixel as f64 + 0.5 - expected).abs() <= 2.0, "{pixel} {expected}")
        };
        near(left, 200.0 + 0.1 * em);
        near(right, 200.0 + 2.91 * em);
        near(foot, 200.0 + 0.76 * em);
        near(top, 200.0 + 0.03 * em);
        let [left, right, ..] = text("HHHH", Pos::new(HPos::Right, VPos::Top), none());
        near(left, 200.0 - 2.91 * em);
        near(right, 200.0 - 0.1 * em);
        let [left, right, top, foot] = text("HHHH", Pos::new(HPos::Center, VPos::Center), none());
        near(left, 200.0 - 1.4 * em);
        near(right, 200.0 + 1.4 * em);
        near(foot, 200.0 + 0.27 * em);
        near(top, 200.0 - 0.46 * em);
        // Rotated like the title of an axis: upwards.
        let [left, right, top, foot] =
            text("HHHH", Pos::new(HPos::Left, VPos::Top), FontTransform::Rotate270);
        near(foot, 200.0 - 0.1 * em);
        near(top, 200.0 - 2.91 * em);
        near(right, 200.0 + 0.76 * em);
        near(left, 200.0 + 0.03 * em);
    }

    /// Names come from files of any origin.
    #[test]
    fn any_text_is_drawn() {
        let whatever = [
            "\u{1b}[2J\u{9b}31m\n\r\t\0",
            "\u{202e}evil\u{200b}\u{200d}\u{feff}",
            "e\u{301}\u{20dd}",
            "日本語 עברית ไทย",
            "👩\u{200d}👩\u{200d}👧",
            "\u{10ffff}\u{e000}\u{fffd}",
            "<b>&amp;\"'",
            "…×µ≤≥–°€",
        ];
        for one in whatever {
            for transform in [
                FontTransform::None,
                FontTransform::Rotate90,
                FontTransform::Rotate180,
                FontTransform::Rotate270,
            ] {
                text(one, Pos::new(HPos::Left, VPos::Top), transform);
            }
        }
        // Letters that the font lacks are a box of the same width.
        let wide = |text_of: &str| text(text_of, Pos::default(), FontTransform::None)[1];
        assert_eq!(wide("日"), wide("\u{1b}"));
        assert!(wide("日日") > wide("日") && wide("i") < wide("日"));
        // A name of a megabyte ends at the edge of the picture.
        let long = "m".repeat(1 << 20);
        let [left, right, ..] = text(&long, Pos::default(), FontTransform::None);
        assert!(left >= 200 && right == 399, "{left} {right}");
        let far = |at| {
            drawn((20, 20), |bitmap| {
                bitmap.draw_text("far", &TextStyle::from(("sans-serif", 12).into_font()), at)
            })
        };
        for at in [(i32::MIN, i32::MIN), (i32::MAX, i32::MAX), (-500, 3)] {
            assert_eq!(bounds(&far(at)), None);
        }
    }

    #[test]
    fn what_is_drawn_is_twice_as_large() {
        let black = BackendColor { alpha: 1.0, rgb: (0, 0, 0) };
        let rect = drawn((50, 40), |bitmap| bitmap.draw_rect((10, 5), (20, 15), &black, true));
        assert_eq!((rect.0, rect.1), (100, 80));
        assert_eq!(bounds(&rect), Some([20, 39, 10, 29]));
        let pixel = drawn((50, 40), |bitmap| bitmap.draw_pixel((49, 39), black));
        assert_eq!(bounds(&pixel), Some([98, 99, 78, 79]));
        let [left, right, top, foot] =
            bounds(&drawn((50, 40), |bitmap| bitmap.draw_circle((25, 20), 5, &black, true))).unwrap();
        assert!((40..=42).contains(&left) && (60..=62).contains(&right), "{left} {right}");
        assert!((30..=32).contains(&top) && (50..=52).contains(&foot), "{top} {foot}");
        // A very high picture is not scaled.
        assert_eq!((scale(10_000), scale(10_001)), (2, 1));
    }
}
