//! GGUF metadata of Gemma's families. Norm weights are stored as plain factors.

use std::ops::RangeInclusive;

use super::Gguf;
use super::keys::{KV_HEADS, Keys, LOGITS_CAP, SCORE_CAP};
use super::names::INPUT_TABLE;
use crate::config::gemma::{GemmaConfig, GemmaRules, ImageAttention, WINDOW_THETA};
use crate::config::gemma4::{Gemma4Config, LayerInputs};
use crate::config::limits::{
    FACTORS, HEAD_DIM, HEADS, INTERMEDIATE, LAYERS, check_head_dim, check_kv_heads,
};
use crate::family::Family;
use crate::rope::{RopeConfig, RopeScaling};
use souffleur_base::error::LoadError;
use souffleur_base::prompt_images::BidirectionalLayers;

/// Layer counts of the 27B models of Gemma 2 and 3, which scale attention scores differently.
const LARGEST: [usize; 2] = [46, 62];

pub(super) fn read(keys: &Keys<'_>, family: &Family) -> Result<Option<GemmaConfig>, LoadError> {
    let Some(rules) = &family.gemma else {
        return Ok(None);
    };
    let cap = |name: &str| {
        if !family.gguf.numbers.contains(&name) {
            return Ok(None);
        }
        let cap = keys.number(name, 0.0..=*FACTORS.end())?;
        Ok(cap.filter(|cap| *cap != 0.0).map(|cap| cap as f32))
    };
    let theta = keys.number("rope.freq_base_swa", 1.000_001..=1e15)?;
    let usual = rules.has_window_rope.then_some(WINDOW_THETA);
    Ok(Some(GemmaConfig {
        score_cap: cap(SCORE_CAP)?,
        logits_cap: cap(LOGITS_CAP)?,
        norms_minus_one: false,
        window_rope: theta.or(usual).map(|theta| RopeConfig {
            theta,
            scaling: RopeScaling::Default,
        }),
        images: rules.images,
        gemma4: None,
    }))
}

/// Adds what only Gemma 4 has. Files do not say how images attend: in published models those of the larger ones, which
/// have no per-layer inputs, are bidirectional.
pub(super) fn with_gemma4(gemma: GemmaConfig, gemma4: Option<Gemma4Config>) -> GemmaConfig {
    let is_large = gemma4.as_ref().is_some_and(|it| it.inputs.is_none());
    GemmaConfig {
        images: if is_large {
            ImageAttention::Bidirectional(BidirectionalLayers::Windowed)
        } else {
            gemma.images
        },
        gemma4,
        ..gemma
    }
}

/// Layer sizes of Gemma 4. Files list a size by layer if it differs between layers.
pub(super) struct Gemma4Sizes {
    pub config: Gemma4Config,
    /// K/V heads of sliding-window layers, and their size.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// MLP width of layers that keep KV.
    pub intermediate_size: usize,
}

pub(super) fn read_gemma4(
    gguf: &Gguf,
    keys: &Keys<'_>,
    windows: &[Option<usize>],
    heads: usize,
) -> Result<Gemma4Sizes, LoadError> {
    const SHARING: &str = "attention.shared_kv_layers";
    const WIDTHS: &str = "feed_forward_length";
    let layers = windows.len();
    let n_sharing = keys.size(SHARING, 0..=*LAYERS.end())?.unwrap_or(0);
    let kv_heads = per_layer(keys, KV_HEADS, HEADS, layers)?;
    for count in &kv_heads {
        check_kv_heads(*count, (&keys.key("attention.head_count"), heads))
            .map_err(|reason| keys.error(KV_HEADS, reason))?;
    }
    let of_kind = |slides: bool| windows.iter().position(|window| window.is_some() == slides);
    let first = |slides: bool| of_kind(slides).or(of_kind(!slides)).unwrap_or(0);
    let (windowed, full) = (first(true), first(false));
    let like_first = |layer: usize| match windows[layer] {
        Some(_) => kv_heads[windowed],
        None => kv_heads[full],
    };
    if let Some(other) = (0..layers).find(|layer| kv_heads[*layer] != like_first(*layer)) {
        let reason = format!(
            "is {} in layer {other}, expected {} as in other layers of its attention type: convert the model again",
            kv_heads[other],
            like_first(other)
        );
        return Err(keys.error(KV_HEADS, reason));
    }
    let dim = |name: &str| -> Result<usize, LoadError> {
        let dim = keys.required(name, HEAD_DIM)?;
        check_head_dim(dim).map_err(|reason| keys.error(name, reason))?;
        Ok(dim)
    };
    let widths = per_layer(keys, WIDTHS, INTERMEDIATE, layers)?;
    let (narrow, widest) = (widths[0], widths[layers - 1]);
    let double_wide = widest == 2 * narrow;
    let is_supported = (0..layers).all(|layer| {
        let doubles = double_wide && layer + n_sharing >= layers;
        widths[layer] == if doubles { 2 * narrow } else { narrow }
    });
    if !is_supported {
        let reason = "differs between layers, supported: one width, doubled in the layers that share keys and values";
        return Err(keys.error(WIDTHS, reason));
    }
    let config = Gemma4Config {
        full_kv_heads: kv_heads[full],
        full_head_dim: dim("attention.key_length")?,
        keys_are_values: gguf.tensor(&format!("blk.{full}.attn_v.weight")).is_none(),
        n_sharing,
        double_wide,
        inputs: inputs(gguf, keys)?,
    };
    config
        .check_sharing(windows)
        .map_err(|reason| keys.error(SHARING, reason))?;
    Ok(Gemma4Sizes {
        config,
        kv_heads: kv_heads[windowed],
        head_dim: dim("attention.key_length_swa")?,
        intermediate_size: narrow,
    })
}

/// The value for each layer, from a scalar or from a list.
fn per_layer(
    keys: &Keys<'_>,
    name: &str,
    limits: RangeInclusive<usize>,
    layers: usize,
) -> Result<Vec<usize>, LoadError> {
    let key = keys.key(name);
    if !keys.metadata.is_list(&key) {
        return Ok(vec![keys.required(name, limits)?; layers]);
    }
    let within = *limits.start() as i64..=*limits.end() as i64;
    let mut sizes = keys.metadata.integers(&key, within)?.unwrap_or_default();
    if sizes.len() < layers {
        let reason = format!(
            "has {} entries, expected one for each of {layers} layers: convert the model again",
            sizes.len()
        );
        return Err(keys.error(name, reason));
    }
    sizes.truncate(layers);
    Ok(sizes.into_iter().map(|size| size as usize).collect())
}

fn inputs(gguf: &Gguf, keys: &Keys<'_>) -> Result<Option<LayerInputs>, LoadError> {
    const WIDTH: &str = "embedding_length_per_layer_input";
    let width = keys.size(WIDTH, 0..=*INTERMEDIATE.end())?.unwrap_or(0);
    if width == 0 {
        return Ok(None);
    }
    let table = gguf.tensor(INPUT_TABLE);
    let rows = table.and_then(|table| table.info.shape.first().copied());
    let missing = || {
        keys.error(
            WIDTH,
            format!("is {width}, but {INPUT_TABLE} is not in the file: convert the model again"),
        )
    };
    Ok(Some(LayerInputs {
        width,
        vocab_size: rows.ok_or_else(missing)?,
    }))
}

/// The factor on attention scores. GGUF has no key for it; it follows from the number of layers, as in llama.cpp.
pub(super) fn score_scale(
    rules: &GemmaRules,
    layers: usize,
    hidden: usize,
    (heads, head_dim): (usize, usize),
) -> f32 {
    let scalar = if rules.plain_scores {
        1
    } else if LARGEST.contains(&layers) {
        hidden / heads
    } else {
        head_dim
    };
    (scalar as f64).powf(-0.5) as f32
}
