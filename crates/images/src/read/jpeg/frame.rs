//! A frame's header: the size of the picture, and how its components are sampled.

use crate::limits::{ImageError, Kind};
use crate::read::header::File;

/// A component: one of brightness, two of colour, or four inks.
#[derive(Debug, Clone)]
pub struct Component {
    pub id: u8,
    /// Samples across and down for each unit of the frame: 1 to 4.
    pub factors: (usize, usize),
    /// The number of its quantisation table: 0 to 3.
    pub table: usize,
    /// Samples across and down that belong to the picture.
    pub samples: (usize, usize),
    /// Blocks across and down, including the padding of the last units (MCUs).
    pub blocks: (usize, usize),
}

impl Component {
    /// Blocks across and down in a scan of this component alone.
    pub fn own_blocks(&self) -> (usize, usize) {
        (self.samples.0.div_ceil(8), self.samples.1.div_ceil(8))
    }

    pub fn n_blocks(&self) -> usize {
        self.blocks.0 * self.blocks.1
    }

    /// Bytes of a row of samples, one each.
    pub fn stride(&self) -> usize {
        self.blocks.0 * 8
    }
}

#[derive(Debug, Clone)]
pub struct Frame {
    /// Width and height.
    pub size: (u32, u32),
    pub is_progressive: bool,
    /// 1, 3 or 4 of them.
    pub components: Vec<Component>,
    /// The largest factors of all components.
    pub largest: (usize, usize),
    /// Units across and down: `8 * largest` pixels each.
    pub units: (usize, usize),
}

impl Frame {
    /// The frame in the segment whose length is at `at`.
    ///
    /// # Errors
    /// The segment is cut or damaged, or the variant is not read.
    pub fn read(file: &File, at: usize, is_progressive: bool) -> Result<Self, ImageError> {
        let precision = file.byte(at + 2)?;
        if precision != 8 {
            let variant = format!("one of {precision} bits a sample");
            return Err(ImageError::unsupported(Kind::Jpeg, variant));
        }
        let (height, width) = (file.u16_be(at + 3)?, file.u16_be(at + 5)?);
        let n_components = usize::from(file.byte(at + 7)?);
        if !(1..=4).contains(&n_components) {
            return Err(file.damaged(format!("it has {n_components} components")));
        }
        let size = (usize::from(width), usize::from(height));
        let listed = file.at(at + 8, n_components * 3)?.chunks_exact(3);
        let listed: Vec<[u8; 3]> = listed.map(|three| [three[0], three[1], three[2]]).collect();
        let factors = |listed: &[u8; 3]| (usize::from(listed[1] >> 4), usize::from(listed[1] & 15));
        let is_factor = |(h, v)| (1..=4).contains(&h) && (1..=4).contains(&v);
        if !listed.iter().map(factors).all(is_factor) {
            return Err(file.damaged("a sampling factor is not 1 to 4"));
        }
        let widest = listed.iter().map(|one| factors(one).0).max().unwrap_or(1);
        let highest = listed.iter().map(|one| factors(one).1).max().unwrap_or(1);
        let units = (size.0.div_ceil(8 * widest), size.1.div_ceil(8 * highest));
        let mut components = Vec::new();
        for one in &listed {
            let (h, v) = factors(one);
            if widest % h != 0 || highest % v != 0 {
                let variant = "one whose sampling factors are no multiples of each other";
                return Err(ImageError::unsupported(Kind::Jpeg, variant));
            }
            if one[2] > 3 {
                return Err(file.damaged(format!(
                    "a component uses quantisation table {}, and the last is 3",
                    one[2]
                )));
            }
            components.push(Component {
                id: one[0],
                factors: (h, v),
                table: usize::from(one[2]),
                samples: (
                    (size.0 * h).div_ceil(widest),
                    (size.1 * v).div_ceil(highest),
                ),
                blocks: (units.0 * h, units.1 * v),
            });
        }
        Ok(Self {
            size: (u32::from(width), u32::from(height)),
            is_progressive,
            components,
            largest: (widest, highest),
            units,
        })
    }

    /// The most bytes that decoding takes: of a progressive picture all coefficients, two bytes each, and the samples
    /// of one component; then the samples of all and the picture.
    pub fn decoder_bytes(&self) -> u64 {
        let blocks = |component: &Component| component.n_blocks() as u64 * 64;
        let samples: u64 = self.components.iter().map(blocks).sum();
        let largest = self.components.iter().map(blocks).max().unwrap_or(0);
        let pixels = u64::from(self.size.0) * u64::from(self.size.1);
        let rows = self.units.0 as u64 * 8 * self.largest.0 as u64 * 4;
        let coefficients = if self.is_progressive {
            samples * 2 + largest
        } else {
            0
        };
        coefficients.max(samples + pixels * 3) + rows
    }
}
