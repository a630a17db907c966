//! Tensor descriptions of a GGUF file: name, shape, type and byte range, checked before any data is read.

use std::ops::Range;

use rustc_hash::FxHashSet;

use crate::cursor::Cursor;
use crate::element::ElementType;
use crate::metadata::shown;

/// Limit for a file, and for all parts of a model together.
pub(super) const MAX_TENSORS: u64 = 1 << 16;
/// The limit of llama.cpp.
const MAX_NAME_BYTES: u64 = 63;
const MAX_DIMENSIONS: u32 = 4;
/// The shortest description: length of a name, name of one byte, number of dimensions, one size, type, offset.
const MIN_INFO_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    pub element: &'static ElementType,
    pub bytes: Range<usize>,
}

struct Description {
    name: String,
    shape: Vec<usize>,
    element: &'static ElementType,
    bytes: usize,
    offset: u64,
}

pub(super) fn count(cursor: &mut Cursor<'_>) -> Result<usize, String> {
    cursor.count(MAX_TENSORS, MIN_INFO_BYTES, "the number of tensors")
}

/// Reads the descriptions of `count` tensors, whose data must end by `file_bytes`.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    count: usize,
    alignment: usize,
    file_bytes: usize,
) -> Result<Vec<TensorInfo>, String> {
    let mut names = FxHashSet::default();
    let mut descriptions = Vec::new();
    for index in 0..count {
        let tensor = read_one(cursor, index)?;
        if !names.insert(tensor.name.clone()) {
            return Err(format!(
                "the tensor {} occurs twice: the file is broken, download it again",
                shown(&tensor.name)
            ));
        }
        descriptions.push(tensor);
    }
    place(descriptions, cursor.at(), alignment, file_bytes)
}

fn read_one(cursor: &mut Cursor<'_>, index: usize) -> Result<Description, String> {
    let what = format!("the name of tensor {index}");
    let name = cursor.string(MAX_NAME_BYTES, &what)?;
    let name = match std::str::from_utf8(name) {
        Ok(name) if !name.is_empty() => name.to_owned(),
        _ => {
            return Err(format!(
                "{what} is empty or not UTF-8: the file is broken, download it again"
            ));
        }
    };
    let what = format!("the description of tensor {}", shown(&name));
    let dimensions = cursor.u32(&what)?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return Err(format!(
            "tensor {} has {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}: the file is broken, download it \
             again",
            shown(&name)
        ));
    }
    let mut sizes = Vec::new();
    for _ in 0..dimensions {
        sizes.push(cursor.u64(&what)?);
    }
    let type_id = cursor.u32(&what)?;
    let offset = cursor.u64(&what)?;
    let element = ElementType::from_id(type_id).ok_or_else(|| {
        format!(
            "tensor {} has the unknown type {type_id}: use a GGUF file of this model with another quantisation",
            shown(&name)
        )
    })?;
    let (shape, bytes) = shape_and_bytes(&name, &sizes, element)?;
    Ok(Description {
        name,
        shape,
        element,
        bytes,
        offset,
    })
}

/// The shape (outermost dimension first) and size in bytes; `sizes` has the innermost dimension first.
fn shape_and_bytes(
    name: &str,
    sizes: &[u64],
    element: &'static ElementType,
) -> Result<(Vec<usize>, usize), String> {
    let broken = |reason: String| {
        let name = shown(name);
        format!("tensor {name} has sizes {sizes:?}{reason}: the file is broken, download it again")
    };
    let shape: Option<Vec<usize>> = sizes
        .iter()
        .rev()
        .map(|&size| usize::try_from(size).ok().filter(|&size| size > 0))
        .collect();
    let shape = shape.ok_or_else(|| broken(", expected sizes of at least 1".to_owned()))?;
    let row = shape[shape.len() - 1];
    if !row.is_multiple_of(element.block_elements) {
        let (name, block) = (element.name, element.block_elements);
        return Err(broken(format!(
            ", expected a row length that is a multiple of {block}, the block size of {name}"
        )));
    }
    let elements = shape.iter().try_fold(1_usize, |product, &size| {
        let product = product.checked_mul(size)?;
        (product <= isize::MAX as usize).then_some(product)
    });
    let bytes = elements
        .and_then(|elements| element.bytes_of(elements))
        .filter(|&bytes| bytes <= isize::MAX as usize);
    match bytes {
        Some(bytes) => Ok((shape, bytes)),
        None => Err(broken(
            ", which make at least 2^63 elements or bytes".to_owned(),
        )),
    }
}

/// The byte ranges of tensors whose descriptions end at `end`: they must be contiguous, padded to `alignment`.
fn place(
    descriptions: Vec<Description>,
    end: usize,
    alignment: usize,
    file_bytes: usize,
) -> Result<Vec<TensorInfo>, String> {
    // The sums of at most 2^16 sizes below 2^63 fit in u128.
    let aligned = |at: u128| at.next_multiple_of(alignment as u128);
    let data = aligned(end as u128);
    let mut expected = 0_u128;
    let mut placed = Vec::with_capacity(descriptions.len());
    for tensor in descriptions {
        let name = shown(&tensor.name);
        if u128::from(tensor.offset) != expected {
            return Err(format!(
                "tensor {name} begins at byte {} of the data, expected {expected}, where the tensor before it ends: the \
                 file is broken, download it again",
                tensor.offset
            ));
        }
        let start = data + expected;
        let end = start + tensor.bytes as u128;
        if end > file_bytes as u128 {
            return Err(format!(
                "tensor {name} ends at byte {end}, the file at byte {file_bytes}: the file is incomplete, download it \
                 again"
            ));
        }
        expected = aligned(expected + tensor.bytes as u128);
        placed.push(TensorInfo {
            name: tensor.name,
            shape: tensor.shape,
            element: tensor.element,
            bytes: start as usize..end as usize,
        });
    }
    Ok(placed)
}
