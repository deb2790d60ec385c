//! Charts as PNG, for viewers without SVG: plotters' own bitmaps, with twice the SVG's resolution.
//!
//! The font is part of the program, since the measuring machine may have none.

use anyhow::{Context, Result, anyhow};
use plotters::prelude::{BitMapBackend, DrawingBackend, FontDesc, FontStyle, TextStyle};
use plotters::style::register_font;
use plotters::style::text_anchor::Pos;
use plotters_backend::{BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingErrorKind};

/// Pixels of the PNG per pixel of the chart, in each direction. Very high lists of bars have a factor of 1, as the
/// whole bitmap is in memory.
pub fn scale(height: u32) -> u32 {
    if height <= 10_000 { 2 } else { 1 }
}

/// DejaVu Sans, reduced to Latin and Greek letters, digits and signs (`fonts/README.md`).
const FONT: &[u8] = include_bytes!("../fonts/DejaVuSans-subset.ttf");

/// Text of plotters' bitmaps in units of that of an SVG: its size, and its distance from the anchor as a part of it.
const SIZE: f64 = 1.164 / 1.24;
const LOWER: f64 = 0.12;

/// Makes the font known to plotters, which measures text with it.
pub fn register() -> Result<()> {
    register_font("sans-serif", FontStyle::Normal, FONT).map_err(|_| anyhow!("the font of charts is damaged"))
}

type Drawn = Result<(), DrawingErrorKind<<BitMapBackend<'static> as DrawingBackend>::ErrorType>>;

/// Draws a chart of this size on a bitmap and returns the PNG.
pub fn png((width, height): (u32, u32), draw: impl FnOnce(Bitmap<'_>) -> Result<()>) -> Result<Vec<u8>> {
    let scale = scale(height);
    let (wide, high) = (width * scale, height * scale);
    let mut pixels = vec![0; 3 * wide as usize * high as usize];
    draw(Bitmap { under: BitMapBackend::with_buffer(&mut pixels, (wide, high)), scale: scale as i32 })?;
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, wide, high);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().context("writing a PNG's head")?;
    writer.write_image_data(&pixels).context("writing a PNG's pixels")?;
    writer.finish().context("ending a PNG")?;
    Ok(file)
}

/// plotters' bitmap, scaled by a factor that is transparent for the drawing.
pub struct Bitmap<'a> {
    under: BitMapBackend<'a>,
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

    /// Draws text as large as an SVG has it, and as far below or above its anchor.
    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> Drawn {
        let size = style.size() * f64::from(self.scale);
        let font = FontDesc::new(style.family(), size * SIZE, style.style()).transform(style.transform());
        let style = TextStyle {
            font,
            color: style.color(),
            pos: Pos::new(style.anchor().h_pos, style.anchor().v_pos),
        };
        let (x, y) = self.corner(at);
        let (right, down) = style.font.get_transform().transform(0, (size * LOWER) as i32);
        self.under.draw_text(text, &style, (x.saturating_add(right), y.saturating_add(down)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use plotters::prelude::*;
    use plotters::style::text_anchor::{HPos, VPos};

    use super::*;

    /// Width, height and pixels of a PNG.
    pub(crate) fn decoded(png: &[u8]) -> (u32, u32, Vec<[u8; 3]>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        (info.width, info.height, bytes.as_chunks().0.to_vec())
    }

    /// A small chart, as lines of dark and light pixels.
    fn drawn(size: (u32, u32), draw: impl FnOnce(&mut Bitmap<'_>) -> Drawn) -> (u32, u32, Vec<bool>) {
        let file = png(size, |mut bitmap| {
            let white = BackendColor { alpha: 1.0, rgb: (255, 255, 255) };
            bitmap.draw_rect((0, 0), (size.0 as i32, size.1 as i32), &white, true)?;
            Ok(draw(&mut bitmap)?)
        });
        let (width, height, pixels) = decoded(&file.unwrap());
        (width, height, pixels.iter().map(|pixel| pixel[0] < 128).collect())
    }

    /// First and last column and row with a dark pixel.
    fn bounds((width, _, dark): &(u32, u32, Vec<bool>)) -> Option<[usize; 4]> {
        let places = || (0..dark.len()).filter(|at| dark[*at]);
        let (across, down) =
            (|| places().map(|at| at % *width as usize), || places().map(|at| at / *width as usize));
        Some([across().min()?, across().max()?, down().min()?, down().max()?])
    }

    fn text(text: &str, pos: Pos, transform: FontTransform) -> [usize; 4] {
        register().unwrap();
        let style = TextStyle::from(("sans-serif", 12).into_font().transform(transform)).pos(pos);
        bounds(&drawn((200, 200), |bitmap| bitmap.draw_text(text, &style, (100, 100)))).expect("letters")
    }

    #[test]
    fn letters_stand_where_an_svg_has_them() {
        // An em is 12 / 1.24 pixels of the chart, and twice as many of the bitmap. An H is 0.73 of it high, and four
        // are 3.01 wide, of which 0.1 is empty at both ends. The baseline is 0.76 of it below.
        let em = 12.0 / 1.24 * 2.0;
        let near = |pixels: [usize; 4], expected: [f64; 4]| {
            let distances =
                pixels.iter().zip(expected).map(|(at, em_of)| *at as f64 + 0.5 - 200.0 - em_of * em);
            assert!(distances.into_iter().all(|distance| distance.abs() <= 3.0), "{pixels:?} {expected:?}");
        };
        let none = || FontTransform::None;
        near(text("HHHH", Pos::new(HPos::Left, VPos::Top), none()), [0.1, 2.91, 0.03, 0.76]);
        near(text("HHHH", Pos::new(HPos::Right, VPos::Top), none()), [-2.91, -0.1, 0.03, 0.76]);
        near(text("HHHH", Pos::new(HPos::Center, VPos::Center), none()), [-1.4, 1.4, -0.46, 0.27]);
        // Rotated like the title of an axis: upwards.
        near(text("HHHH", Pos::default(), FontTransform::Rotate270), [0.03, 0.76, -2.91, -0.1]);
        // Letters that the font lacks are a box.
        assert_eq!(text("日", Pos::default(), none()), text("ไ", Pos::default(), none()));
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
