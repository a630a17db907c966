//! Checks the pool sizes and the double-sparsity channels of the CPU executor before memory is allocated.

use super::CpuOptions;
use souffleur_base::error::LoadError;
use souffleur_base::kv_layout::{KvDtype, KvLayout};
use souffleur_model::loader::Checkpoint;
use souffleur_model::sparsity::ModelSparsity;

/// Refuses sizes of 0, and pools that exceed 32-bit ids or the address space.
pub(super) fn check(options: &CpuOptions, layout: &KvLayout) -> Result<(), LoadError> {
    let CpuOptions {
        n_pages,
        page_size,
        max_rows,
        n_state_slots,
        n_window_pages,
        ..
    } = *options;
    for (name, value) in [
        ("n_pages", n_pages),
        ("page_size", page_size),
        ("max_rows", max_rows),
    ] {
        if value == 0 {
            return Err(LoadError::Memory(format!(
                "{name} is 0, expected at least 1"
            )));
        }
    }
    check_pages(n_pages, page_size, layout.bytes_per_token())?;
    check_pages(n_window_pages, page_size, layout.window_bytes_per_token())?;
    check_states(n_state_slots, layout)
}

fn check_pages(n_pages: usize, page_size: usize, bytes_per_token: u64) -> Result<(), LoadError> {
    let slots = (n_pages as u64)
        .checked_add(1)
        .and_then(|pages| pages.checked_mul(page_size as u64));
    let slots = slots.filter(|slots| *slots <= u64::from(u32::MAX));
    let bytes = slots.and_then(|slots| slots.checked_mul(bytes_per_token));
    match bytes.filter(|bytes| *bytes <= isize::MAX as u64) {
        Some(_) => Ok(()),
        None => Err(LoadError::Memory(format!(
            "a KV pool of {n_pages} pages of {page_size} tokens is too large: at most {} tokens (32-bit ids) and {} \
             bytes are supported; lower max_total_tokens",
            u32::MAX,
            isize::MAX
        ))),
    }
}

pub(super) fn layout(options: &CpuOptions, checkpoint: &Checkpoint) -> Result<KvLayout, LoadError> {
    let layout = checkpoint.kv_layout_in(options.kv_dtype);
    if options.n_window_pages == 0 {
        return Ok(layout);
    }
    let windowed = layout.windowed(&checkpoint.config.windows);
    windowed.ok_or_else(|| {
        LoadError::Memory(format!(
            "n_window_pages is {}, expected 0: no layer of the model has a window, or window sizes differ",
            options.n_window_pages
        ))
    })
}

/// Refuses a choice of channels for double sparsity that was made for another model.
pub(super) fn check_sparsity(
    sparsity: &ModelSparsity,
    layout: &KvLayout,
    windows: &[Option<usize>],
) -> Result<(), LoadError> {
    let rules = &sparsity.rules;
    let fits = |layer: usize| {
        let Some(channels) = &rules.layers[layer] else {
            return true;
        };
        let pages = layout.layers()[layer].pages();
        let pages = pages.filter(|_| windows[layer].is_none());
        pages.is_some_and(|pages| {
            let mut all = (0..channels.n_heads()).flat_map(|head| channels.head(head));
            pages.dtype != KvDtype::Int8
                && channels.n_heads() == pages.heads
                && all.all(|channel| usize::from(*channel) < pages.key_dim)
        })
    };
    let n_layers = layout.layers().len();
    if rules.layers.len() == n_layers && rules.tokens > 0 && (0..n_layers).all(fits) {
        Ok(())
    } else {
        Err(LoadError::Memory(
            "the channel file (ds_channel_config_path) was made for a model with other layers, heads or KV: make one \
             for this model with `souffleur calibrate`"
                .to_owned(),
        ))
    }
}

fn check_states(n_slots: usize, layout: &KvLayout) -> Result<(), LoadError> {
    let mut layers = layout.layers().iter().enumerate();
    let Some((index, layer)) = layers.find(|(_, layer)| layer.state_bytes() > 0) else {
        return Ok(());
    };
    if n_slots == 0 {
        return Err(LoadError::Memory(format!(
            "n_state_slots is 0, expected at least 1: layer {index} keeps {layer}"
        )));
    }
    let slots = (n_slots as u64).checked_add(1);
    let slots = slots.filter(|slots| *slots <= u64::from(u32::MAX));
    let bytes = slots.and_then(|slots| slots.checked_mul(layout.state_bytes()));
    match bytes.filter(|bytes| *bytes <= isize::MAX as u64) {
        Some(_) => Ok(()),
        None => Err(LoadError::Memory(format!(
            "a pool of {n_slots} states of {} bytes is too large: at most {} states (32-bit ids) and {} bytes are \
             supported; lower max_mamba_cache_size",
            layout.state_bytes(),
            u32::MAX,
            isize::MAX
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use souffleur_base::kv_layout::{LayerKv, StateHeads};

    #[test]
    fn state_pools_need_a_slot_and_must_fit_ids_and_memory() {
        let heads = StateHeads::default();
        let layout = |bytes| KvLayout::new(vec![LayerKv::State { bytes, heads }; 2]);
        assert!(check_states(0, &KvLayout::new(Vec::new())).is_ok());
        assert!(check_states(3, &layout(4096)).is_ok());
        let error = |n_slots, bytes| {
            let error = check_states(n_slots, &layout(bytes)).expect_err("the pool is refused");
            error.to_string()
        };
        let none = error(0, 4096);
        assert!(
            none.contains("layer 0 keeps a state of 4096 bytes per sequence"),
            "{none}"
        );
        assert!(error(usize::MAX, 8).contains("too large"));
        assert!(error(1 << 30, 1 << 40).contains("too large"));
    }
}
