//! A picture in memory: what plotters draws on where a PNG is asked for. It has a small font of its own,
//! so that neither building nor running needs fonts of the system.

use anyhow::{Context, Result};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontTransform,
};

use super::glyphs::{GLYPH_HEIGHT, GLYPH_WIDTH, is_set};

/// Pixels of a glyph's dot.
const DOT: i32 = 2;

/// An RGB picture.
pub struct Canvas {
    width: u32,
    height: u32,
    /// Three bytes a pixel, row by row from the top.
    pixels: Vec<u8>,
}

impl Canvas {
    /// A white one of this width and height.
    pub fn new((width, height): (u32, u32)) -> Self {
        Self { width, height, pixels: vec![255; width as usize * height as usize * 3] }
    }

    /// The picture as a PNG file.
    pub fn to_png(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![];
        let mut encoder = png::Encoder::new(&mut bytes, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let encode = |encoder: png::Encoder<'_, _>| -> Result<(), png::EncodingError> {
            let mut writer = encoder.write_header()?;
            writer.write_image_data(&self.pixels)?;
            writer.finish()
        };
        encode(encoder).context("cannot encode the picture")?;
        Ok(bytes)
    }

    fn blend(&mut self, (x, y): BackendCoord, color: BackendColor) {
        let inside = (0..self.width as i32).contains(&x) && (0..self.height as i32).contains(&y);
        if !inside {
            return;
        }
        let at = (y as usize * self.width as usize + x as usize) * 3;
        let (red, green, blue) = color.rgb;
        for (pixel, new) in self.pixels[at..at + 3].iter_mut().zip([red, green, blue]) {
            let mixed = f64::from(*pixel) * (1.0 - color.alpha) + f64::from(new) * color.alpha;
            *pixel = mixed.round() as u8;
        }
    }
}

impl DrawingBackend for &mut Canvas {
    type ErrorType = std::io::Error;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn ensure_prepared(&mut self) -> Result<(), DrawingErrorKind<Self::ErrorType>> {
        Ok(())
    }

    fn present(&mut self) -> Result<(), DrawingErrorKind<Self::ErrorType>> {
        Ok(())
    }

    fn draw_pixel(
        &mut self,
        point: BackendCoord,
        color: BackendColor,
    ) -> Result<(), DrawingErrorKind<Self::ErrorType>> {
        self.blend(point, color);
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        pos: BackendCoord,
    ) -> Result<(), DrawingErrorKind<Self::ErrorType>> {
        let (width, height) = text_size(text);
        let dx = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Right => -width,
            HPos::Center => -width / 2,
        };
        let dy = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -height / 2,
            VPos::Bottom => -height,
        };
        let transform: FontTransform = style.transform();
        for (index, letter) in text.chars().enumerate() {
            let left = index as i32 * (GLYPH_WIDTH as i32 + 1) * DOT;
            for y in 0..GLYPH_HEIGHT as i32 * DOT {
                for x in 0..GLYPH_WIDTH as i32 * DOT {
                    if is_set(letter, (x / DOT) as usize, (y / DOT) as usize) {
                        let (x, y) = transform.transform(left + x + dx, y + dy);
                        self.blend((pos.0 + x, pos.1 + y), style.color());
                    }
                }
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        _style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Self::ErrorType>> {
        let (width, height) = text_size(text);
        Ok((width as u32, height as u32))
    }
}

fn text_size(text: &str) -> (i32, i32) {
    let width = text.chars().count() as i32 * (GLYPH_WIDTH as i32 + 1) - 1;
    (width.max(0) * DOT, GLYPH_HEIGHT as i32 * DOT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_in_the_file() {
        let mut canvas = Canvas::new((4, 2));
        let half_black = BackendColor { alpha: 0.5, rgb: (0, 0, 0) };
        canvas.blend((1, 1), half_black);
        canvas.blend((4, 0), half_black);
        canvas.blend((0, -1), half_black);
        let png = canvas.to_png().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels.iter().filter(|byte| **byte == 128).count(), 3);
        assert_eq!(&pixels[15..18], &[128; 3]);
    }
}
