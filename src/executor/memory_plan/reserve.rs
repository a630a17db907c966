//! The memory plan's reserve: memory for activations, logits and headroom.

use souffleur_model::config::ModelConfig;

/// Headroom in addition to the activations: tokenizer, tree, buffers of clients, the rest of the process.
pub(super) const HEADROOM_BYTES: u64 = 128 << 20;
/// Activations and logits are f32.
const ACTIVATION_BYTES: u64 = 4;

/// Host memory that stays free: activations and logits of the largest step, and headroom for the process.
///
/// `step_tokens` is the limit of query tokens in a step (`chunked_prefill_size` and decodes); `logit_rows` is the limit
/// of tokens whose logits are held at once.
pub fn reserve_bytes(config: &ModelConfig, step_tokens: u64, logit_rows: u64) -> u64 {
    // Residual, normed input and output of a block; q and attention's result, k and v; gate, up and their product. An
    // output that is scaled before it is added needs memory in addition to the residual.
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

/// Activations of a token in attention or a recurrent mixer, in elements.
fn mixer_width(config: &ModelConfig) -> usize {
    let gates = if config.gates_attention() {
        config.q_width()
    } else {
        0
    };
    let attention = 2 * (config.q_width() + config.kv_width()) + gates;
    let states = config.recurrent.as_ref();
    attention.max(states.map_or(0, |states| states.activations(config.hidden_size)))
}

/// Additional activations of a token in latent attention, in elements: low-rank queries, projected queries, the heads'
/// parts of the queries, and values.
fn latent_width(config: &ModelConfig) -> usize {
    config.latent.as_ref().map_or(0, |latent| {
        let shape = latent.shape(config);
        let queries = 2 * shape.query_width() + latent.query_rank.unwrap_or(0);
        queries + shape.heads().attended_width() + shape.value_width()
    })
}

/// Activations of a token for per-layer inputs, in elements: the inputs of all layers, the projection that is added to
/// them, and one layer's gates and their product.
fn inputs_width(config: &ModelConfig) -> usize {
    let inputs = config.layer_inputs();
    inputs.map_or(0, |inputs| {
        2 * (config.num_hidden_layers + 1) * inputs.width
    })
}

/// Activations of a token in a feed-forward block, in elements: gate, up and their product; with experts, these and the
/// input of each routed expert, the shared normed input, and the router's logits.
fn feed_forward_width(config: &ModelConfig) -> usize {
    let widths = (0..config.num_hidden_layers).map(|layer| config.intermediate_in(layer));
    let mlp = 3 * widths.max().unwrap_or(0);
    let experts = config.experts.as_ref().map_or(0, |experts| {
        let each = config.hidden_size + 3 * experts.width;
        let gated = config.recurrent.as_ref().and_then(|own| own.shared_expert);
        let shared = 3 * experts.shared_width.or(gated).unwrap_or(0);
        config.hidden_size + experts.count() + shared + experts.routing.n_used * each
    });
    match config.gemma4() {
        // In Gemma 4, the activations of MLP and experts exist at once, like their results and the sum of both.
        Some(_) => mlp + experts + 3 * config.hidden_size,
        None => mlp.max(experts),
    }
}
