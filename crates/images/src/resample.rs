//! Pillow's resampling, to the bit: integers of 22 fractional bits, one pass for each axis, 8-bit samples between them.
//!
//! Source: `src/libImaging/Resample.c` of Pillow. Models were trained on pictures that it scaled, and other libraries
//! differ from it by up to several levels.

use crate::picture::Picture;

/// Pillow 13 runs the vertical pass first where that is less work; Pillow 12 and older never do.
const TALL_PICTURES_SHRINK_FIRST: bool = true;

const PRECISION_BITS: u32 = 32 - 8 - 2;

/// A resampling filter, which is stretched when a picture shrinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Filter {
    /// A triangle.
    Bilinear,
    /// Keys' cubic with a = -0.5.
    Bicubic,
    /// Lanczos with three lobes.
    Lanczos,
}

impl Filter {
    /// The filter with this number in Pillow and in preprocessor files.
    pub fn from_pillow(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Lanczos),
            2 => Some(Self::Bilinear),
            3 => Some(Self::Bicubic),
            _ => None,
        }
    }

    /// The number that [`Filter::from_pillow`] reads.
    pub fn pillow_number(self) -> u8 {
        match self {
            Self::Lanczos => 1,
            Self::Bilinear => 2,
            Self::Bicubic => 3,
        }
    }

    /// Half the filter's width, in source pixels of a picture that does not shrink.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Self::Bilinear => (1.0 - x.abs()).max(0.0),
            Self::Bicubic => bicubic(x.abs()),
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    if x < 1.0 {
        return ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    }
    if x < 2.0 {
        return (((x - 5.0) * x + 8.0) * x - 4.0) * A;
    }
    0.0
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// The source samples of one target sample: the first of them, and their weights with 22 fractional bits.
struct Window {
    start: usize,
    weights: Vec<i32>,
}

/// The windows of all samples of an axis of `to` samples, made from `from` samples.
fn windows(from: u32, to: u32, filter: Filter) -> Vec<Window> {
    let scale = f64::from(from) / f64::from(to);
    let filter_scale = scale.max(1.0);
    let support = filter.support() * filter_scale;
    let windows = (0..to).map(|i| {
        let center = (f64::from(i) + 0.5) * scale;
        // A cast cuts towards zero, and negative numbers to zero.
        let start = (center - support + 0.5) as u32;
        let end = ((center + support + 0.5) as u32).min(from);
        let weights = (start..end).map(|x| {
            let distance = f64::from(x) - center + 0.5;
            filter.weight(distance * (1.0 / filter_scale))
        });
        let weights: Vec<f64> = weights.collect();
        let sum: f64 = weights.iter().sum();
        let fixed = weights.into_iter().map(|weight| {
            let weight = if sum == 0.0 { weight } else { weight / sum };
            fixed(weight)
        });
        Window {
            start: start as usize,
            weights: fixed.collect(),
        }
    });
    windows.collect()
}

/// A weight with 22 fractional bits, rounded half away from zero.
fn fixed(weight: f64) -> i32 {
    let scaled = weight * f64::from(1 << PRECISION_BITS);
    if weight < 0.0 {
        (scaled - 0.5) as i32
    } else {
        (scaled + 0.5) as i32
    }
}

/// One half, to which the products are added.
const HALF: i32 = 1 << (PRECISION_BITS - 1);

fn to_sample(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

/// Scales the rows to `width`.
fn horizontal(picture: &Picture, width: u32, filter: Filter) -> Picture {
    let windows = windows(picture.width(), width, filter);
    let mut pixels = Vec::with_capacity(width as usize * picture.height() as usize * 3);
    for row in picture.pixels().chunks_exact(picture.width() as usize * 3) {
        for window in &windows {
            let source = &row[window.start * 3..(window.start + window.weights.len()) * 3];
            let (mut red, mut green, mut blue) = (HALF, HALF, HALF);
            for (pixel, weight) in source.chunks_exact(3).zip(&window.weights) {
                red += i32::from(pixel[0]) * weight;
                green += i32::from(pixel[1]) * weight;
                blue += i32::from(pixel[2]) * weight;
            }
            pixels.extend([red, green, blue].map(to_sample));
        }
    }
    Picture::new(width, picture.height(), pixels).expect("as many pixels as were pushed")
}

/// Scales the columns to `height`.
fn vertical(picture: &Picture, height: u32, filter: Filter) -> Picture {
    let windows = windows(picture.height(), height, filter);
    let stride = picture.width() as usize * 3;
    let mut pixels = Vec::with_capacity(stride * height as usize);
    let mut sums = vec![HALF; stride];
    for window in &windows {
        sums.fill(HALF);
        let source = picture.pixels()[window.start * stride..].chunks_exact(stride);
        for (row, weight) in source.zip(&window.weights) {
            for (sum, sample) in sums.iter_mut().zip(row) {
                *sum += i32::from(*sample) * weight;
            }
        }
        pixels.extend(sums.iter().map(|sum| to_sample(*sum)));
    }
    Picture::new(picture.width(), height, pixels).expect("as many pixels as were pushed")
}

/// Scales a picture to `width` x `height` pixels, with the samples of Pillow's `Image.resize`.
///
/// The picture between the passes has at most as many pixels as the larger of source and target.
///
/// # Panics
/// If a side is 0.
pub fn resize(picture: &Picture, width: u32, height: u32, filter: Filter) -> Picture {
    assert!(width > 0 && height > 0, "a picture has pixels");
    let (from_width, from_height) = (picture.width(), picture.height());
    let is_tall = from_height > height
        && u64::from(from_height - height) > 2 * u64::from(from_width.saturating_sub(width));
    match (from_width != width, from_height != height) {
        (false, false) => picture.clone(),
        (true, false) => horizontal(picture, width, filter),
        (false, true) => vertical(picture, height, filter),
        (true, true) if TALL_PICTURES_SHRINK_FIRST && is_tall => {
            horizontal(&vertical(picture, height, filter), width, filter)
        }
        (true, true) => vertical(&horizontal(picture, width, filter), height, filter),
    }
}
