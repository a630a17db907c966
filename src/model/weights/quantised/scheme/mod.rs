//! Quantisation scheme of a checkpoint: `quantization_config` of `config.json`, or a separate file.

use std::fmt;
use std::path::Path;

use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;

const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// Inputs of an Affine4 block; groups must be multiples.
const BLOCK: usize = 32;
const MAX_GROUP: usize = 1 << 20;
const KEYS: [&str; 2] = ["quantization_config", "compression_config"];
/// Files read if `config.json` has no scheme: AutoGPTQ and GPTQModel write the first, AutoAWQ the second.
pub(crate) const FILES: [&str; 2] = ["quantize_config.json", "quant_config.json"];

/// Key of the bits per code in AutoAWQ's file.
const AWQ_BITS: &str = "w_bit";

/// The scheme of quantised matrices; any matrix may still be plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Codes in E4M3.
    Fp8 {
        /// Outputs and inputs that share a scale; `None` for scales per row or matrix.
        block: Option<[usize; 2]>,
    },
    /// Signed bytes; scales per row, group of inputs or matrix.
    Int8,
    Int4(Packing, Group),
}

/// How 4-bit codes are packed in 32-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Eight inputs in a word.
    Gptq {
        /// Number to add to a stored zero point.
        zero_offset: u8,
    },
    /// Eight outputs in a word, even ones first.
    Awq,
    /// Eight inputs in a word, outputs outermost.
    CompressedTensors {
        /// Whether zero points are stored; otherwise they are 8.
        has_zeros: bool,
    },
}

/// Inputs of an output that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Inputs(usize),
    Row,
}

impl Group {
    pub fn size(self, inputs: usize) -> usize {
        match self {
            Self::Inputs(size) => size,
            Self::Row => inputs,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fp8 { block: None } => f.write_str("fp8 (E4M3), a scale for each row or matrix"),
            Self::Fp8 {
                block: Some([outputs, inputs]),
            } => write!(f, "fp8 (E4M3), a scale for {outputs} x {inputs} weights"),
            Self::Int8 => f.write_str("compressed-tensors, 8 bits"),
            Self::Int4(packing, group) => {
                let name = match packing {
                    Packing::Gptq { .. } => "gptq",
                    Packing::Awq => "awq",
                    Packing::CompressedTensors { .. } => "compressed-tensors",
                };
                match group {
                    Group::Inputs(size) => write!(f, "{name}, 4 bits, groups of {size}"),
                    Group::Row => write!(f, "{name}, 4 bits, a scale for each row"),
                }
            }
        }
    }
}

impl Scheme {
    /// Reads the scheme of a folder's weights; `None` for plain ones. Files other than `config.json`, which may be
    /// leftovers, are read only if there are quantised codes.
    ///
    /// # Errors
    /// [`LoadError::Format`] that names the unsupported key.
    pub fn read(dir: &Path, has_codes: bool) -> Result<Option<Self>, LoadError> {
        let config = JsonFile::read(&dir.join("config.json"), MAX_CONFIG_BYTES)?;
        // Vision-language models may nest the scheme in their decoder's configuration.
        let config = config.with_nested("text_config")?;
        if let Some(key) = KEYS.into_iter().find(|key| config.value(key).is_some()) {
            let Some(quantization) = config.object(key)? else {
                return Ok(None);
            };
            return Self::of_method(&quantization, quantization.text("quant_method")?);
        }
        let files = FILES.map(|name| dir.join(name));
        match files.iter().find(|file| file.exists()) {
            Some(file) if has_codes => {
                let json = JsonFile::read(file, MAX_CONFIG_BYTES)?;
                // The method may be unnamed: AWQ's tools have other keys than GPTQ's.
                let implied = if json.value(AWQ_BITS).is_some() {
                    "awq"
                } else {
                    "gptq"
                };
                Self::of_method(&json, Some(json.text("quant_method")?.unwrap_or(implied)))
            }
            _ => Ok(None),
        }
    }

    fn of_method(json: &JsonFile, method: Option<&str>) -> Result<Option<Self>, LoadError> {
        let supported = "\"fp8\", \"compressed-tensors\", \"gptq\" or \"awq\"";
        let scheme = match method {
            // MXFP4 stacks of experts are found by name.
            Some("mxfp4") => return Ok(None),
            Some("fp8") => fp8(json),
            Some("compressed-tensors") => compressed_tensors(json),
            Some("gptq") => gptq(json),
            Some("awq") => awq(json),
            Some(_) => Err(unsupported(json, "quant_method", supported)),
            None => Err(json.error(
                "quant_method",
                format!("is missing, supported: {supported}"),
            )),
        };
        scheme.map(Some)
    }
}

fn unsupported(json: &JsonFile, key: &str, supported: &str) -> LoadError {
    let remedy = "use the model in a supported quantisation, or the float16 or bfloat16 model";
    match json.value(key) {
        Some(value) => json.expected(key, value, format!("{supported}: {remedy}")),
        None => json.error(key, format!("is missing, expected {supported}: {remedy}")),
    }
}

/// Checks that the text at `key`, if any, is among `texts`.
fn one_of(json: &JsonFile, key: &str, texts: &[&str]) -> Result<(), LoadError> {
    let matches = |text: &str| texts.iter().any(|known| text.eq_ignore_ascii_case(known));
    match json.text(key)? {
        Some(text) if !matches(text) => Err(unsupported(json, key, &texts.join(" or "))),
        _ => Ok(()),
    }
}

/// Checks that the flag at `key`, if any, is `supported`.
fn require_flag(json: &JsonFile, key: &str, supported: bool) -> Result<(), LoadError> {
    match json.flag(key)? {
        Some(flag) if flag != supported => Err(unsupported(json, key, &supported.to_string())),
        _ => Ok(()),
    }
}

fn four_bits(json: &JsonFile, key: &str) -> Result<(), LoadError> {
    match json.size(key, 0..=usize::MAX)? {
        Some(4) => Ok(()),
        _ => Err(unsupported(json, key, "4")),
    }
}

/// The group size: a whole number of blocks, or -1 for a row.
fn group(json: &JsonFile, key: &str) -> Result<Group, LoadError> {
    let supported = format!("-1 or a multiple of {BLOCK} up to {MAX_GROUP}");
    let number = json.value(key).and_then(serde_json::Value::as_i64);
    match number {
        Some(-1) => Ok(Group::Row),
        Some(size) => usize::try_from(size)
            .ok()
            .filter(|size| (1..=MAX_GROUP).contains(size) && size.is_multiple_of(BLOCK))
            .map(Group::Inputs)
            .ok_or_else(|| unsupported(json, key, &supported)),
        None => Err(unsupported(json, key, &supported)),
    }
}

fn block(json: &JsonFile, key: &str) -> Result<Option<[usize; 2]>, LoadError> {
    let Some(value) = json.value(key) else {
        return Ok(None);
    };
    let sizes: Option<Vec<usize>> = value.as_array().and_then(|sizes| {
        let sizes = sizes
            .iter()
            .map(|size| usize::try_from(size.as_u64()?).ok());
        sizes.collect()
    });
    match sizes.as_deref() {
        Some(&[outputs, inputs])
            if [outputs, inputs]
                .iter()
                .all(|n| (1..=MAX_GROUP).contains(n)) =>
        {
            Ok(Some([outputs, inputs]))
        }
        _ => Err(json.expected(
            key,
            value,
            format!("two whole numbers from 1 to {MAX_GROUP}"),
        )),
    }
}

fn fp8(json: &JsonFile) -> Result<Scheme, LoadError> {
    one_of(json, "fmt", &["e4m3"])?;
    Ok(Scheme::Fp8 {
        block: block(json, "weight_block_size")?,
    })
}

fn gptq(json: &JsonFile) -> Result<Scheme, LoadError> {
    four_bits(json, "bits")?;
    one_of(json, "checkpoint_format", &["gptq", "gptq_v2"])?;
    one_of(json, "pack_dtype", &["int32"])?;
    require_flag(json, "is_marlin_format", false)?;
    let zero_offset = match json.text("checkpoint_format")? {
        Some(format) if format.eq_ignore_ascii_case("gptq_v2") => 0,
        _ => 1,
    };
    let packing = Packing::Gptq { zero_offset };
    Ok(Scheme::Int4(packing, group(json, "group_size")?))
}

fn awq(json: &JsonFile) -> Result<Scheme, LoadError> {
    let either = |awq, common| match json.value(awq) {
        Some(_) => awq,
        None => common,
    };
    four_bits(json, either(AWQ_BITS, "bits"))?;
    one_of(json, "version", &["gemm"])?;
    require_flag(json, "zero_point", true)?;
    let group_size = either("q_group_size", "group_size");
    Ok(Scheme::Int4(Packing::Awq, group(json, group_size)?))
}

fn compressed_tensors(json: &JsonFile) -> Result<Scheme, LoadError> {
    if let Some(sparsity) = json.object("sparsity_config")? {
        one_of(&sparsity, "format", &["dense"])?;
    }
    if let Some(transforms) = json.object("transform_config")?
        && transforms
            .object("config_groups")?
            .is_some_and(|groups| !groups.entries().is_empty())
    {
        return Err(unsupported(json, "transform_config", "none"));
    }
    let groups = json
        .object("config_groups")?
        .ok_or_else(|| json.error("config_groups", "is missing"))?;
    let mut found = None;
    for key in groups.entries().keys() {
        let Some(group) = groups.object(key)? else {
            continue;
        };
        let Some(weights) = group.object("weights")? else {
            continue;
        };
        let with_format = if group.value("format").is_some() {
            &group
        } else {
            json
        };
        let scheme = weights_scheme(with_format, &weights)?;
        if found.is_some_and(|found| found != scheme) {
            let reason = "quantises weights differently from earlier groups, supported: one scheme for all; use \
                the model in a supported quantisation, or the float16 or bfloat16 model";
            return Err(groups.error(key, reason));
        }
        found = Some(scheme);
    }
    found.ok_or_else(|| json.error("config_groups", "has no group with weights"))
}

/// `json` is the object with the key `format`.
fn weights_scheme(json: &JsonFile, weights: &JsonFile) -> Result<Scheme, LoadError> {
    const FLOATS: [&str; 2] = ["float-quantized", "naive-quantized"];
    const INTEGERS: [&str; 2] = ["int-quantized", "naive-quantized"];
    const PACKED: &str = "pack-quantized";
    let format = json.text("format")?.unwrap_or("");
    let is_float = match weights.text("type")? {
        None | Some("int") => false,
        Some("float") => true,
        Some(_) => return Err(unsupported(weights, "type", "\"int\" or \"float\"")),
    };
    let known = FLOATS.contains(&format) || INTEGERS.contains(&format) || format == PACKED;
    let fits = if is_float {
        FLOATS.contains(&format)
    } else {
        !FLOATS[..1].contains(&format)
    };
    if !known || !fits {
        let supported = "\"float-quantized\" (of type float), \"int-quantized\" or \"pack-quantized\" (of type int)";
        return Err(unsupported(json, "format", supported));
    }
    if format == PACKED {
        four_bits(weights, "num_bits")?;
        let packing = Packing::CompressedTensors {
            has_zeros: !weights.flag("symmetric")?.unwrap_or(true),
        };
        let group = match weights.text("strategy")? {
            Some("channel") => Group::Row,
            Some("group") => group(weights, "group_size")?,
            _ => return Err(unsupported(weights, "strategy", "\"group\" or \"channel\"")),
        };
        return Ok(Scheme::Int4(packing, group));
    }
    if weights.size("num_bits", 0..=usize::MAX)? != Some(8) {
        return Err(unsupported(weights, "num_bits", "8"));
    }
    require_flag(weights, "symmetric", true)?;
    one_of(
        weights,
        "strategy",
        &["channel", "tensor", "block", "group"],
    )?;
    Ok(if is_float {
        Scheme::Fp8 {
            block: block(weights, "block_structure")?,
        }
    } else {
        Scheme::Int8
    })
}

#[cfg(test)]
mod tests;
