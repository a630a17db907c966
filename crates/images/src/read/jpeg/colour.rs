//! From components to RGB: libjpeg's `jdcolor.c`, and Pillow's conversion of inks.

use super::frame::Frame;
use super::segments::Segments;
use super::upsample;
use crate::limits::{ImageError, Kind};

/// The meaning of a picture's components.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    Grey,
    Rgb,
    Ycbcr,
    /// Four inks, inverted, as Adobe's programs write them.
    Cmyk,
    /// The same, with the first three as YCbCr.
    Ycck,
}

impl Space {
    /// The space, by libjpeg's rules.
    ///
    /// # Errors
    /// The picture has two components.
    pub fn of(found: &Segments, frame: &Frame) -> Result<Self, ImageError> {
        let ids: Vec<u8> = frame.components.iter().map(|one| one.id).collect();
        match (ids.len(), found.transform) {
            (1, _) => Ok(Self::Grey),
            (3, Some(0)) if !found.is_jfif => Ok(Self::Rgb),
            (3, None) if !found.is_jfif && ids == *b"RGB" => Ok(Self::Rgb),
            (3, _) => Ok(Self::Ycbcr),
            (4, None | Some(0)) => Ok(Self::Cmyk),
            (4, _) => Ok(Self::Ycck),
            _ => {
                let variant = "one of two components";
                Err(ImageError::unsupported(Kind::Jpeg, variant))
            }
        }
    }
}

/// The pixels as RGB, from the samples of all components.
pub fn rgb(frame: &Frame, samples: &[Vec<u8>], space: Space) -> Vec<u8> {
    let (width, height) = (frame.size.0 as usize, frame.size.1 as usize);
    let mut rows = vec![vec![0; frame.units.0 * 8 * frame.largest.0]; samples.len()];
    let mut pixels = vec![0; width * height * 3];
    for (y, out) in pixels.chunks_exact_mut(width * 3).enumerate() {
        for ((component, samples), row) in frame.components.iter().zip(samples).zip(&mut rows) {
            upsample::row(frame, component, samples, y, row);
        }
        write(&rows, space, out);
    }
    pixels
}

fn write(rows: &[Vec<u8>], space: Space, out: &mut [u8]) {
    let (out, _) = out.as_chunks_mut::<3>();
    match (space, rows) {
        (Space::Grey, [grey, ..]) => {
            for (out, grey) in out.iter_mut().zip(grey) {
                *out = [*grey; 3];
            }
        }
        (Space::Rgb | Space::Ycbcr, [first, second, third]) => {
            let is_rgb = space == Space::Rgb;
            for (((out, first), second), third) in out.iter_mut().zip(first).zip(second).zip(third)
            {
                let three = [*first, *second, *third];
                *out = if is_rgb { three } else { from_ycbcr(three) };
            }
        }
        (_, [first, second, third, black]) => {
            let is_cmyk = space == Space::Cmyk;
            let inks = first.iter().zip(second).zip(third).zip(black);
            for (out, (((first, second), third), black)) in out.iter_mut().zip(inks) {
                let three = [*first, *second, *third];
                // libjpeg inverts the colours of YCCK.
                let inks = if is_cmyk {
                    three
                } else {
                    from_ycbcr(three).map(|colour| 255 - colour)
                };
                *out = from_inks(inks, *black);
            }
        }
        _ => {}
    }
}

/// `value * 2^16`, rounded.
const fn fixed(value: f64) -> i32 {
    (value * 65_536.0 + 0.5) as i32
}

fn from_ycbcr([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let red = y + ((fixed(1.402) * cr + HALF) >> 16);
    let green = y + ((-fixed(0.344_14) * cb - fixed(0.714_14) * cr + HALF) >> 16);
    let blue = y + ((fixed(1.772) * cb + HALF) >> 16);
    [red, green, blue].map(|value| value.clamp(0, 255) as u8)
}

/// The colours that inverted inks leave of white, in Pillow's integers.
fn from_inks(inks: [u8; 3], black: u8) -> [u8; 3] {
    let light = i32::from(black);
    inks.map(|ink| {
        let product = (255 - i32::from(ink)) * light + 128;
        (light - ((product + (product >> 8)) >> 8)).clamp(0, 255) as u8
    })
}
