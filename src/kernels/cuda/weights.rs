//! Loads weights onto the device, from the mapped file through pinned memory.

use std::sync::Arc;

use half::{bf16, f16};

use super::driver::{Device, DeviceBuffer, DevicePtr, DriverError, Priority, Uploader};
use super::params::{Element, ElementType};
use crate::dtype::Dtype;
use crate::tensor_view::TensorView;

/// Alignment of every tensor, in bytes.
const ALIGNMENT: usize = 256;

/// Elements of one or several contiguous tensors. All weights share one allocation, freed when the last is dropped.
pub struct Weights<T> {
    start: DevicePtr<T>,
    _memory: Arc<DeviceBuffer<u8>>,
}

impl<T> Weights<T> {
    pub fn ptr(&self) -> DevicePtr<T> {
        self.start
    }
}

pub struct WeightLoader {
    uploader: Uploader,
    /// One allocation for all tensors: the driver rounds allocations up to megabytes.
    memory: Arc<DeviceBuffer<u8>>,
    used_bytes: usize,
}

impl WeightLoader {
    /// Allocates memory for `bytes` of weights in `n_tensors` tensors, pinned memory and a stream.
    pub fn new(device: &Device, bytes: usize, n_tensors: usize) -> Result<Self, DriverError> {
        let stream = device.stream(Priority::Low)?;
        Ok(Self {
            uploader: Uploader::new(device, stream)?,
            memory: Arc::new(device.alloc(bytes + n_tensors * ALIGNMENT)?),
            used_bytes: 0,
        })
    }

    /// Copies tensors contiguously, converted to `element`, and appends `n_zeros` zeros.
    pub fn elements(
        &mut self,
        parts: &[TensorView<'_>],
        n_zeros: usize,
        element: ElementType,
    ) -> Result<Weights<Element>, DriverError> {
        let elements = parts.iter().map(TensorView::elements).sum::<usize>();
        let (end, zeros) = (elements * element.bytes(), n_zeros * element.bytes());
        let (memory, start) = self.take(end + zeros)?;
        let to: &DeviceBuffer<u8> = &memory;
        self.upload(to, start, parts, element)?;
        if zeros > 0 {
            let fill = |to: &mut [u8], _: usize| to.fill(0);
            self.uploader.upload(to, start + end, zeros, fill)?;
        }
        Ok(Weights {
            start: memory.at(start).cast(),
            _memory: memory,
        })
    }

    /// Allocates uninitialised elements, which a kernel computes on the device.
    pub fn uninit(
        &mut self,
        elements: usize,
        element: ElementType,
    ) -> Result<Weights<Element>, DriverError> {
        let (memory, start) = self.take(elements * element.bytes())?;
        Ok(Weights {
            start: memory.at(start).cast(),
            _memory: memory,
        })
    }

    pub fn f32(&mut self, parts: &[TensorView<'_>]) -> Result<Weights<f32>, DriverError> {
        let Weights { start, _memory } = self.elements(parts, 0, ElementType::F32)?;
        Ok(Weights {
            start: start.cast(),
            _memory,
        })
    }

    pub fn f32_values(&mut self, values: &[f32]) -> Result<Weights<f32>, DriverError> {
        let (shape, bytes) = ([values.len()], bytemuck::cast_slice(values));
        self.f32(&[TensorView::plain(Dtype::F32, &shape, bytes)])
    }

    pub fn finish(self) -> Result<(), DriverError> {
        self.uploader.finish()
    }

    /// Takes memory for a tensor; falls back to a separate allocation if the planned memory is full.
    fn take(&mut self, bytes: usize) -> Result<(Arc<DeviceBuffer<u8>>, usize), DriverError> {
        let start = self.used_bytes;
        if start + bytes > self.memory.len() {
            let memory = self.memory.device().alloc(bytes)?;
            return Ok((Arc::new(memory), 0));
        }
        self.used_bytes = (start + bytes).next_multiple_of(ALIGNMENT);
        Ok((self.memory.clone(), start))
    }

    fn upload(
        &mut self,
        memory: &DeviceBuffer<u8>,
        start: usize,
        parts: &[TensorView<'_>],
        element: ElementType,
    ) -> Result<(), DriverError> {
        let mut at = start;
        for part in parts {
            let bytes = part.elements() * element.bytes();
            // The uploader's memory and its parts are aligned to elements.
            let fill = |to: &mut [u8], first: usize| match element {
                ElementType::F32 => fill_f32(bytemuck::cast_slice_mut(to), part, first / 4),
                ElementType::Bf16 => fill_bf16(bytemuck::cast_slice_mut(to), part, first / 2),
            };
            self.uploader.upload(memory, at, bytes, fill)?;
            at += bytes;
        }
        Ok(())
    }
}

/// Writes elements of a tensor, from index `first` on, as f32.
fn fill_f32(to: &mut [f32], from: &TensorView<'_>, first: usize) {
    match from.plain_dtype() {
        Some(Dtype::F32) => copy(to, from, first),
        Some(Dtype::F16) => convert(to, from, first, |bits| f16::from_bits(bits).to_f32()),
        Some(Dtype::BF16) => convert(to, from, first, |bits| bf16::from_bits(bits).to_f32()),
        None => decode(from, first, to, |value| value),
    }
}

/// As [`fill_f32`], but rounded to bfloat16.
fn fill_bf16(to: &mut [u16], from: &TensorView<'_>, first: usize) {
    let rounded = |value: f32| bf16::from_f32(value).to_bits();
    match from.plain_dtype() {
        Some(Dtype::BF16) => copy(to, from, first),
        Some(Dtype::F16) => convert(to, from, first, |bits| {
            rounded(f16::from_bits(bits).to_f32())
        }),
        None => decode(from, first, to, rounded),
        Some(Dtype::F32) => {
            let words = from.bytes.chunks_exact(4).skip(first);
            for (to, word) in to.iter_mut().zip(words) {
                *to = rounded(f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            }
        }
    }
}

fn decode<T>(from: &TensorView<'_>, first: usize, to: &mut [T], convert: impl Fn(f32) -> T) {
    let width = from.width();
    let mut row = vec![0.0; width];
    let mut at = first;
    let mut rest = to;
    while !rest.is_empty() {
        from.read_row(at / width, &mut row);
        let values = &row[at % width..];
        let (part, after) = rest.split_at_mut(values.len().min(rest.len()));
        let values = part.iter_mut().zip(values);
        values.for_each(|(to, value)| *to = convert(*value));
        at += part.len();
        rest = after;
    }
}

/// Copies elements unchanged: the file is little-endian, as are all hosts with CUDA drivers.
fn copy<T: bytemuck::Pod>(to: &mut [T], from: &TensorView<'_>, first: usize) {
    let to: &mut [u8] = bytemuck::cast_slice_mut(to);
    let start = first * size_of::<T>();
    to.copy_from_slice(&from.bytes[start..start + to.len()]);
}

fn convert<T>(to: &mut [T], from: &TensorView<'_>, first: usize, convert: impl Fn(u16) -> T) {
    let pairs = from.bytes.chunks_exact(2).skip(first);
    for (to, pair) in to.iter_mut().zip(pairs) {
        *to = convert(u16::from_le_bytes([pair[0], pair[1]]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [f32; 5] = [0.0, 1.0, -2.5, 3.140_625, 65280.0];

    fn bytes(dtype: Dtype) -> Vec<u8> {
        let bytes = |value: f32| match dtype {
            Dtype::F32 => value.to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        };
        VALUES.into_iter().flat_map(bytes).collect()
    }

    #[test]
    fn every_dtype_is_converted_to_the_requested_elements() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let bytes = bytes(dtype);
            let view = TensorView::plain(dtype, &[5], &bytes);
            let exact: Vec<f32> = view.to_f32();
            for first in [0, 2] {
                let mut to = [7.0; 3];
                fill_f32(&mut to, &view, first);
                assert_eq!(to, exact[first..first + 3], "{dtype:?}");
                let mut to = [7; 3];
                fill_bf16(&mut to, &view, first);
                let rounded = exact.iter().map(|value| bf16::from_f32(*value).to_bits());
                assert_eq!(to.to_vec(), rounded.skip(first).take(3).collect::<Vec<_>>());
            }
        }
    }
}
