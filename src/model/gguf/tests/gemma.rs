//! Tests of Gemma's families in GGUF.

use super::models::{config, described};
use super::*;
use souffleur_base::prompt_images::BidirectionalLayers;

fn layers(architecture: &str, count: usize) -> File {
    let mut file = described(architecture);
    let key = format!("{architecture}.block_count").into_bytes();
    file.pairs.retain(|(name, _)| *name != key);
    file.size(&format!("{architecture}.block_count"), count)
        .tensor(Tensor::f32("token_embd.weight", &[5, 4], &[0.0; 20]))
}

#[test]
fn missing_keys_mean_the_usual_windows_and_rope() {
    let gemma2 = config(&layers("gemma2", 3)).expect("supported");
    assert_eq!(gemma2.windows, [Some(4096), None, Some(4096)]);
    let gemma = gemma2.gemma.as_ref().expect("the model is a Gemma");
    assert_eq!(
        (gemma.score_cap, gemma.logits_cap, gemma.norms_minus_one),
        (None, None, false)
    );
    assert_eq!(gemma.window_rope, None);
    let gemma3 = config(&layers("gemma3", 7)).expect("supported");
    assert_eq!(gemma3.windows, [None; 7]);
    let windowed = layers("gemma3", 7).size("gemma3.attention.sliding_window", 512);
    let gemma3 = config(&windowed).expect("supported");
    let slides: Vec<usize> = (0..7)
        .filter(|layer| gemma3.windows[*layer].is_some())
        .collect();
    assert_eq!(slides, [0, 1, 2, 3, 4, 6]);
    let gemma = gemma3.gemma.as_ref().expect("the model is a Gemma");
    assert_eq!(gemma.window_rope.as_ref().map(|rope| rope.theta), Some(1e4));
    assert_eq!(gemma3.embedding_scale, Some(2.0));
}

#[test]
fn only_gemma_2_has_a_softcap_of_scores() {
    let capped = |name: &str| {
        let file = layers(name, 2);
        let file = file.number(&format!("{name}.final_logit_softcapping"), 30.0);
        file.number(&format!("{name}.attn_logit_softcapping"), 50.0)
    };
    let read = config(&capped("gemma2")).expect("supported");
    let caps = read.gemma.expect("the model is a Gemma");
    assert_eq!((caps.score_cap, caps.logits_cap), (Some(50.0), Some(30.0)));
    refused(
        config(&capped("gemma3")),
        "gemma3.attn_logit_softcapping is 50, which is not supported",
    );
}

#[test]
fn scores_of_the_largest_models_have_another_scale() {
    // In the loop the factor is always 1/sqrt(2): the largest models divide a hidden size of 4 by two heads, and the
    // others have heads of two elements.
    let scale = |name, layers_of| {
        config(&layers(name, layers_of))
            .expect("supported")
            .attention_scale()
    };
    for (name, largest) in [("gemma2", 46), ("gemma3", 62)] {
        let wide = layers(name, largest).size(&format!("{name}.attention.key_length"), 8);
        let wide = wide.size(&format!("{name}.attention.value_length"), 8);
        assert_eq!(
            config(&wide).expect("supported").attention_scale(),
            0.5_f32.sqrt()
        );
        assert_eq!(scale(name, largest - 1), 0.5_f32.sqrt());
    }
    let wide = layers("gemma2", 2).size("gemma2.attention.key_length", 16);
    let wide = wide.size("gemma2.attention.value_length", 16);
    assert_eq!(config(&wide).expect("supported").attention_scale(), 0.25);
}

/// Gemma 4 with two layers, the second with full attention.
fn gemma4() -> File {
    [
        ("attention.sliding_window", 16),
        ("attention.sliding_window_pattern", 2),
        ("attention.key_length", 8),
        ("attention.key_length_swa", 4),
    ]
    .into_iter()
    .fold(layers("gemma4", 2), |file, (name, size)| {
        file.size(&format!("gemma4.{name}"), size)
    })
}

fn replaced(mut file: File, name: &str, value: Value) -> File {
    let key = format!("gemma4.{name}").into_bytes();
    file.pairs.retain(|(name, _)| *name != key);
    file.pair(&format!("gemma4.{name}"), value)
}

#[test]
fn gemma_4_lists_are_read_by_layer_type() {
    let heads = Value::I32s(vec![2, 1]);
    let read = config(&replaced(gemma4(), "attention.head_count_kv", heads)).expect("supported");
    assert_eq!([0, 1].map(|layer| read.heads_in(layer)), [(2, 4), (1, 8)]);
    assert_eq!(
        (
            read.head_dim,
            read.intermediate_size,
            read.attention_scale()
        ),
        (4, 6, 1.0)
    );
    // The file has no value projections, so keys are the values.
    assert_eq!(read.value_projection(1), "k_proj");
    assert_eq!(read.layer_inputs(), None);
    let windowed = Some(BidirectionalLayers::Windowed);
    assert_eq!(
        read.bidirectional(),
        windowed,
        "of models without per-layer inputs"
    );
    for (name, value, problem) in [
        (
            "attention.head_count_kv",
            Value::I32s(vec![2]),
            "has 1 entries, expected one for each of 2 layers",
        ),
        (
            "attention.head_count_kv",
            Value::I32s(vec![3, 1]),
            "is 3 and does not divide gemma4.attention.head_count, 2",
        ),
        (
            "feed_forward_length",
            Value::I32s(vec![6, 7]),
            "differs between layers, supported",
        ),
        (
            "feed_forward_length",
            Value::I32s(vec![6, 12]),
            "differs between layers, supported",
        ),
        (
            "attention.shared_kv_layers",
            Value::U32(2),
            "is 2, expected less than the number of layers, 2",
        ),
        (
            "attention.shared_kv_layers",
            Value::U32(1),
            "no earlier layer of the same kind has KV for layer 1 to share",
        ),
        (
            "attention.key_length_swa",
            Value::U32(3),
            "is 3, expected an even number",
        ),
        (
            "embedding_length_per_layer_input",
            Value::U32(4),
            "per_layer_token_embd.weight is not in the file",
        ),
    ] {
        refused(config(&replaced(gemma4(), name, value)), problem);
    }
}
