//! The blocks of a picture's components, while the scans are read.

use super::frame::Frame;
use super::idct;
use super::segments::Segments;
use crate::limits::ImageError;
use crate::read::header::File;

/// A component's blocks.
pub struct Plane {
    /// The quantisation table at its first scan.
    table: Option<[u16; 64]>,
    /// One byte a sample; empty in a progressive picture until all scans are read.
    samples: Vec<u8>,
    /// 64 for each block of a progressive picture, in the order of a block's rows.
    coefficients: Vec<i16>,
}

impl Plane {
    /// The coefficients of a block of a progressive picture.
    pub fn block(&mut self, number: usize) -> &mut [i16; 64] {
        &mut self.coefficients.as_chunks_mut::<64>().0[number]
    }

    /// Writes the samples of the block at a place, in blocks across and down.
    pub fn write(&mut self, block: &[i16; 64], (x, y): (usize, usize), stride: usize) {
        if let Some(table) = &self.table {
            idct::write(
                block,
                table,
                &mut self.samples[y * 8 * stride + x * 8..],
                stride,
            );
        }
    }
}

/// All components' blocks.
pub struct Planes {
    planes: Vec<Plane>,
}

impl Planes {
    pub fn new(frame: &Frame) -> Self {
        let plane = |n_blocks: usize| Plane {
            table: None,
            samples: vec![
                0;
                if frame.is_progressive {
                    0
                } else {
                    n_blocks * 64
                }
            ],
            coefficients: vec![
                0;
                if frame.is_progressive {
                    n_blocks * 64
                } else {
                    0
                }
            ],
        };
        let components = frame.components.iter();
        Self {
            planes: components.map(|one| plane(one.n_blocks())).collect(),
        }
    }

    /// A component's blocks, with the quantisation table of its first scan.
    ///
    /// # Errors
    /// The table is missing.
    pub fn begin(
        &mut self,
        file: &File,
        tables: &Segments,
        frame: &Frame,
        component: usize,
    ) -> Result<(), ImageError> {
        let number = frame.components[component].table;
        let plane = &mut self.planes[component];
        if plane.table.is_none() {
            plane.table = tables.quantisation[number];
        }
        if plane.table.is_none() {
            return Err(file.damaged(format!("quantisation table {number} is missing")));
        }
        Ok(())
    }

    pub fn of(&mut self, component: usize) -> &mut Plane {
        &mut self.planes[component]
    }

    /// The samples of all components.
    ///
    /// # Errors
    /// A component has no scan.
    pub fn samples(self, file: &File, frame: &Frame) -> Result<Vec<Vec<u8>>, ImageError> {
        let mut samples = Vec::new();
        for (mut plane, component) in self.planes.into_iter().zip(&frame.components) {
            if plane.table.is_none() {
                return Err(file.damaged(format!("component {} has no scan", component.id)));
            }
            if frame.is_progressive {
                let coefficients = std::mem::take(&mut plane.coefficients);
                plane.samples = vec![0; coefficients.len()];
                let across = component.blocks.0;
                for (number, block) in coefficients.as_chunks::<64>().0.iter().enumerate() {
                    let place = (number % across, number / across);
                    plane.write(block, place, component.stride());
                }
            }
            samples.push(plane.samples);
        }
        Ok(samples)
    }
}
