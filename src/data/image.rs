//! Decoding, cropping and resizing images.

use std::io::Cursor;

use fast_image_resize::images::{Image as Resized, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::augment::Draws;

/// A decoded image: `[height, width, 3]`, red, green and blue.
pub(super) struct Image {
    pub width: u32,
    pub height: u32,
    pixels: Vec<u8>,
}

/// Upper limit for the bytes of an image file, far above practical sizes.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;

/// Upper limit for the pixels of an image, before and after resizing: 400 MB. A header of a few
/// bytes can announce billions of pixels, and their memory would be allocated before anything is
/// decoded.
const MAX_PIXELS: u64 = 1 << 27;

fn check_size(width: u64, height: u64) -> Result<(), String> {
    if width.saturating_mul(height) > MAX_PIXELS {
        return Err(format!("{width} x {height} are more than the limit of {MAX_PIXELS} pixels"));
    }
    Ok(())
}

/// Decodes JPEG or PNG, recognized by the first bytes and not by the file's name. Gray becomes RGB,
/// and transparency is dropped. The EXIF orientation is ignored.
///
/// # Errors
/// A description, if the bytes are neither or are damaged.
pub(super) fn decode(bytes: &[u8]) -> Result<Image, String> {
    if bytes.starts_with(&[0xff, 0xd8]) {
        decode_jpeg(bytes)
    } else if bytes.starts_with(b"\x89PNG") {
        decode_png(bytes)
    } else if bytes.is_empty() {
        Err("the file is empty".to_owned())
    } else {
        Err("it is neither a JPEG nor a PNG".to_owned())
    }
}

fn decode_jpeg(bytes: &[u8]) -> Result<Image, String> {
    // In strict mode damaged files are errors; otherwise the decoder fills missing parts with gray.
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(u16::MAX.into())
        .set_max_height(u16::MAX.into())
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let (width, height) = decoder.dimensions().ok_or("it has no size")?;
    check_size(width as u64, height as u64)?;
    let pixels = decoder.decode().map_err(|error| error.to_string())?;
    let expected = width * height * 3;
    if pixels.len() != expected {
        return Err(format!("{} bytes of pixels instead of {expected}", pixels.len()));
    }
    Ok(Image { width: width as u32, height: height as u32, pixels })
}

fn decode_png(bytes: &[u8]) -> Result<Image, String> {
    let in_words = |error: png::DecodingError| error.to_string();
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(in_words)?;
    check_size(reader.info().width.into(), reader.info().height.into())?;
    let size = reader.output_buffer_size().ok_or("it is too large for the address space")?;
    let mut pixels = vec![0; size];
    let frame = reader.next_frame(&mut pixels).map_err(in_words)?;
    pixels.truncate(frame.buffer_size());
    let pixels = match frame.color_type.samples() {
        3 => pixels,
        4 => pixels.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
        samples => pixels.chunks_exact(samples).flat_map(|pixel| [pixel[0]; 3]).collect(),
    };
    Ok(Image { width: frame.width, height: frame.height, pixels })
}

/// A rectangle of an image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rect {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// Ranges of a random crop: its share of the image's area, and its width divided by its height.
const SCALE: (f64, f64) = (0.08, 1.0);
const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);

impl Rect {
    /// A random crop: its area is uniform in 0.08 to 1 of the image's, and the logarithm of its
    /// aspect ratio is uniform between those of 3/4 and 4/3. After ten tries that do not fit, the
    /// largest central crop with such a ratio. The method of torchvision's `RandomResizedCrop`;
    /// Szegedy et al., "Going Deeper with Convolutions" (2014).
    pub fn random(draws: &mut Draws, width: u32, height: u32) -> Self {
        let area = f64::from(width) * f64::from(height);
        for _ in 0..10 {
            let area = area * (SCALE.0 + (SCALE.1 - SCALE.0) * draws.unit());
            let ratio = draws.log_uniform(RATIO.0, RATIO.1);
            let crop =
                [(area * ratio).sqrt(), (area / ratio).sqrt()].map(|side| side.round() as u32);
            if (1..=width).contains(&crop[0]) && (1..=height).contains(&crop[1]) {
                let left = draws.below(width - crop[0] + 1);
                let top = draws.below(height - crop[1] + 1);
                return Self { left, top, width: crop[0], height: crop[1] };
            }
        }
        let side = |other: u32, ratio: f64| ((f64::from(other) * ratio).round() as u32).max(1);
        let widest = width.min(side(height, RATIO.1));
        let highest = height.min(side(width, 1.0 / RATIO.0));
        Self::centred(width, height, widest, highest)
    }

    /// The central `width` x `height` of an image of the given size.
    pub fn centred(image_width: u32, image_height: u32, width: u32, height: u32) -> Self {
        let (left, top) = ((image_width - width) / 2, (image_height - height) / 2);
        Self { left, top, width, height }
    }

    fn whole(image: &Image) -> Self {
        Self { left: 0, top: 0, width: image.width, height: image.height }
    }
}

impl Image {
    #[cfg(test)]
    pub fn pixel(&self, row: u32, column: u32) -> &[u8] {
        &self.pixels[3 * (row * self.width + column) as usize..][..3]
    }

    /// Resizes a rectangle of the image, with bilinear interpolation and antialiasing.
    ///
    /// # Errors
    /// A description, if the rectangle is not inside the image.
    pub fn resize(&self, rect: Rect, width: u32, height: u32) -> Result<Self, String> {
        let source = ImageRef::new(self.width, self.height, &self.pixels, PixelType::U8x3)
            .map_err(|error| error.to_string())?;
        let mut resized = Resized::new(width, height, PixelType::U8x3);
        let [left, top, crop_width, crop_height] =
            [rect.left, rect.top, rect.width, rect.height].map(f64::from);
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .crop(left, top, crop_width, crop_height);
        Resizer::new()
            .resize(&source, &mut resized, &options)
            .map_err(|error| error.to_string())?;
        Ok(Self { width, height, pixels: resized.into_vec() })
    }

    /// Resizes the image so that its shorter side has `side` pixels, and keeps its aspect ratio.
    ///
    /// # Errors
    /// As [`Self::resize`].
    pub fn resize_shorter_side(&self, side: u32) -> Result<Self, String> {
        let (shorter, other) = (self.width.min(self.height), self.width.max(self.height));
        let longer = u64::from(side) * u64::from(other) / u64::from(shorter);
        // The longer side of a narrow image can become huge.
        check_size(side.into(), longer)?;
        let longer = longer as u32;
        let (width, height) =
            if self.width <= self.height { (side, longer) } else { (longer, side) };
        self.resize(Rect::whole(self), width, height)
    }

    /// Writes a rectangle as f32 `[3, height, width]`. `tables` map the bytes of each color to
    /// values.
    pub fn write(&self, rect: Rect, mirrored: bool, tables: &[[f32; 256]; 3], out: &mut [u8]) {
        let (words, _) = out.as_chunks_mut::<4>();
        let (width, height) = (rect.width as usize, rect.height as usize);
        let planes = words.chunks_exact_mut(width * height).zip(tables).enumerate();
        for (colour, (plane, table)) in planes {
            for (row, words) in plane.chunks_exact_mut(width).enumerate() {
                let first = (rect.top as usize + row) * self.width as usize + rect.left as usize;
                let pixels = self.pixels[3 * first..][..3 * width].chunks_exact(3);
                let values = pixels.map(|pixel| table[usize::from(pixel[colour])].to_ne_bytes());
                if mirrored {
                    words.iter_mut().rev().zip(values).for_each(|(word, value)| *word = value);
                } else {
                    words.iter_mut().zip(values).for_each(|(word, value)| *word = value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_crops_lie_in_the_image_and_vary_as_they_should() {
        let mut areas = vec![];
        for example in 0..2000 {
            let rect = Rect::random(&mut Draws::new(0, 0, example), 400, 300);
            assert!(rect.left + rect.width <= 400 && rect.top + rect.height <= 300, "{rect:?}");
            let ratio = f64::from(rect.width) / f64::from(rect.height);
            assert!((0.72..1.4).contains(&ratio), "{rect:?}");
            areas.push(f64::from(rect.width * rect.height) / 120_000.0);
        }
        assert!(areas.iter().all(|area| (0.078..=1.0).contains(area)));
        let mean = areas.iter().sum::<f64>() / 2000.0;
        // An area s above 9/16 fits into 4:3 with probability -ln(s) / 2 ln(4/3), a smaller one
        // always: the mean of those that fit is 0.432, and its deviation here 0.006.
        assert!((mean - 0.432).abs() < 0.02, "{mean}");
    }

    #[test]
    fn images_too_long_for_a_crop_are_cut_in_the_centre() {
        let mut fell_back = 0;
        for example in 0..100 {
            let wide = Rect::random(&mut Draws::new(0, 0, example), 3000, 30);
            let high = Rect::random(&mut Draws::new(0, 0, example), 30, 3000);
            assert!(wide.height <= 30 && wide.width <= 40 && high.height <= 40);
            fell_back += u32::from(wide == Rect { left: 1480, top: 0, width: 40, height: 30 });
            assert!(high.width < 30 || high == Rect { left: 0, top: 1480, width: 30, height: 40 });
        }
        assert!(fell_back > 50, "{fell_back}");
        let dot = Rect::random(&mut Draws::new(0, 0, 0), 1, 1);
        assert_eq!(dot, Rect { left: 0, top: 0, width: 1, height: 1 });
    }

    #[test]
    fn a_rectangle_is_written_by_colour_and_mirrored() {
        let pixels: Vec<_> = (0..4 * 3 * 3).collect();
        let image = Image { width: 4, height: 3, pixels };
        let table = |colour: usize| std::array::from_fn(|byte| (1000 * colour + byte) as f32);
        let tables = [table(0), table(1), table(2)];
        let rect = Rect { left: 1, top: 2, width: 2, height: 1 };
        let mut out = [0f32; 6];
        image.write(rect, false, &tables, bytemuck::cast_slice_mut(&mut out));
        assert_eq!(out, [27., 30., 1028., 1031., 2029., 2032.]);
        image.write(rect, true, &tables, bytemuck::cast_slice_mut(&mut out));
        assert_eq!(out, [30., 27., 1031., 1028., 2032., 2029.]);
    }

    #[test]
    fn png_of_every_kind_becomes_colour() {
        use png::{BitDepth, ColorType};
        for (kind, depth, data, expected) in [
            (ColorType::Rgb, BitDepth::Eight, vec![1, 2, 3, 4, 5, 6], [4, 5, 6]),
            (ColorType::Rgba, BitDepth::Eight, vec![1, 2, 3, 0, 4, 5, 6, 9], [4, 5, 6]),
            (ColorType::Grayscale, BitDepth::Eight, vec![1, 2], [2, 2, 2]),
            (ColorType::GrayscaleAlpha, BitDepth::Eight, vec![1, 0, 2, 0], [2, 2, 2]),
            (ColorType::Grayscale, BitDepth::One, vec![0b0100_0000], [255, 255, 255]),
            (ColorType::Rgb, BitDepth::Sixteen, (0..12).collect(), [6, 8, 10]),
        ] {
            let mut bytes = vec![];
            let mut encoder = png::Encoder::new(&mut bytes, 2, 1);
            encoder.set_color(kind);
            encoder.set_depth(depth);
            encoder.write_header().unwrap().write_image_data(&data).unwrap();
            let image = decode(&bytes).unwrap();
            assert_eq!((image.width, image.height, image.pixel(0, 1)), (2, 1, &expected[..]));
            assert!(decode(&bytes[..bytes.len() - 20]).is_err(), "{kind:?}: cut off");
        }
    }

    #[test]
    fn sizes_that_no_memory_holds_are_refused_before_memory_is_asked_for() {
        let mut png = vec![];
        let mut encoder = png::Encoder::new(&mut png, 100_000, 100_000);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().unwrap();
        writer.write_chunk(png::chunk::IDAT, &[0x78, 0x9c, 3, 0]).unwrap();
        drop(writer);
        let message = decode(&png).err().unwrap();
        assert!(message.starts_with("100000 x 100000 are more than"), "{message}");

        let mut jpeg = vec![];
        let encoder = jpeg_encoder::Encoder::new(&mut jpeg, 90);
        encoder.encode(&[9; 8 * 8 * 3], 8, 8, jpeg_encoder::ColorType::Rgb).unwrap();
        assert_eq!(decode(&jpeg).unwrap().width, 8);
        let frame = jpeg.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
        jpeg[frame + 5..frame + 9].fill(0xff);
        let message = decode(&jpeg).err().unwrap();
        assert!(message.starts_with("65535 x 65535 are more than"), "{message}");

        // The longer one would have no pixel, counted with 32 bits.
        for (height, expected) in [(1 << 20, "256 x 268435456"), (1 << 24, "256 x 4294967296")] {
            let pixels = vec![0; 3 * height as usize];
            let strip = Image { width: 1, height, pixels };
            let message = strip.resize_shorter_side(256).err().unwrap();
            assert!(message.starts_with(&format!("{expected} are more than")), "{message}");
        }
    }
}
