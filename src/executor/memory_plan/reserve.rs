//! The memory that stays free beside weights and KV pool.

use crate::model::config::ModelConfig;

/// Left alone beside the activations: tokenizer, tree, buffers of clients, the rest of the process.
pub(super) const HEADROOM_BYTES: u64 = 128 << 20;
/// Activations and logits are f32.
const ACTIVATION_BYTES: u64 = 4;

/// The memory that has to stay free on the host: activations and logits of the largest step, and headroom for the rest of the process.
///
/// # Units
/// `step_tokens` is the most query tokens of a step (`chunked_prefill_size` and decodes), `logit_rows` the most tokens
/// whose logits are held at once.
pub fn reserve_bytes(config: &ModelConfig, step_tokens: u64, logit_rows: u64) -> u64 {
    // Residual, normed input and output of a block; q and attention's result, k and v; gate, up and their product. An output
    // that is scaled before it is added stands beside the residual.
    let own_outputs = usize::from(config.residual_scale.is_some()) * config.hidden_size;
    let widths = 3 * config.hidden_size
        + own_outputs
        + mixer_width(config)
        + latent_width(config)
        + inputs_width(config)
        + feed_forward_width(config);
    let elements = step_tokens
        .saturating_mul(widths as u64)
        .saturating_add(logit_rows.saturating_mul(config.vocab_size as u64));
    elements
        .saturating_mul(ACTIVATION_BYTES)
        .saturating_add(HEADROOM_BYTES)
}

/// The widths of what a token has in use in attention, or in a layer with a state.
fn mixer_width(config: &ModelConfig) -> usize {
    let gates = match config.gates_attention() {
        true => config.q_width(),
        false => 0,
    };
    let attention = 2 * (config.q_width() + config.kv_width()) + gates;
    let states = config.recurrent.as_ref();
    attention.max(states.map_or(0, |states| states.activations(config.hidden_size)))
}

/// The widths of what a token has in use beside that where attention is latent: queries of low rank and as they are
/// projected, the heads' parts of them, values.
fn latent_width(config: &ModelConfig) -> usize {
    config.latent.as_ref().map_or(0, |latent| {
        let shape = latent.shape(config);
        let queries = 2 * shape.query_width() + latent.query_rank.unwrap_or(0);
        queries + shape.heads().attended_width() + shape.value_width()
    })
}

/// The widths of what a token has in use of the inputs that layers get beside the embedding: those of all layers and, while
/// they are made, the projection that is added; in a layer gates and their product.
fn inputs_width(config: &ModelConfig) -> usize {
    let inputs = config.layer_inputs();
    inputs.map_or(0, |inputs| {
        2 * (config.num_hidden_layers + 1) * inputs.width
    })
}

/// The widths of what a token has in use in a feed-forward block: gate, up and their product; with experts those of each
/// that it goes through, what they read, the normed input that they share, and the router's logits.
fn feed_forward_width(config: &ModelConfig) -> usize {
    let widths = (0..config.num_hidden_layers).map(|layer| config.intermediate_in(layer));
    let mlp = 3 * widths.max().unwrap_or(0);
    let experts = config.experts.as_ref().map_or(0, |experts| {
        let each = config.hidden_size + 3 * experts.width;
        let behind_gate = config.recurrent.as_ref().and_then(|own| own.shared_expert);
        let shared = 3 * experts.shared_width.or(behind_gate).unwrap_or(0);
        config.hidden_size + experts.count() + shared + experts.routing.n_used * each
    });
    match config.fourth() {
        // They stand beside each other, and so do their results and the sum of both.
        Some(_) => mlp + experts + 3 * config.hidden_size,
        None => mlp.max(experts),
    }
}
