//! Tests of the configuration of Gemma's families.

use super::super::gemma as gemma_config;
use super::*;

#[test]
fn gemma_2_takes_the_defaults_of_its_class() {
    let read = parse(&with(
        base("Gemma2ForCausalLM"),
        json!({"num_attention_heads": null, "num_key_value_heads": null, "vocab_size": null, "hidden_act": "gelu"}),
    ));
    let read = read.expect("supported");
    assert_eq!((read.num_attention_heads, read.vocab_size), (8, 256_000));
    assert_eq!(
        (read.bos_token_id, read.eos_token_ids.as_slice()),
        (Some(2), &[1][..])
    );
    assert_eq!(read.windows, [Some(4096), None, Some(4096)]);
    assert_eq!((read.head_dim, read.max_position_embeddings), (256, 8192));
    assert_eq!(
        (read.attention_scale(), read.embedding_scale),
        (0.0625, Some(8.0))
    );
    assert!(read.tie_word_embeddings && read.stores_norms_minus_one());
    assert_eq!(read.qk_norm, QkNorm::None);
    assert_eq!(read.gate(), Gate::GeluTanh);
    let gemma = read.gemma.expect("the model is a Gemma");
    assert_eq!(
        (gemma.score_cap, gemma.logits_cap),
        (Some(50.0), Some(30.0))
    );
    assert_eq!(gemma.window_rope, None);
    let edits = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null});
    let uncapped = parse(&with(base("Gemma2ForCausalLM"), edits)).expect("supported");
    let gemma = uncapped.gemma.expect("the model is a Gemma");
    assert_eq!((gemma.score_cap, gemma.logits_cap), (None, None));
}

#[test]
fn gemma_3_has_a_rope_for_each_kind_of_layers() {
    let linear = json!({"rope_type": "linear", "factor": 8});
    let default = json!({"rope_type": "default", "rope_theta": 300});
    let table = [
        (json!({}), (1e6, None), 1e4),
        // The keys of published models.
        (
            json!({"rope_scaling": linear, "rope_theta": 5e5, "rope_local_base_freq": 1e3}),
            (5e5, Some(8.0)),
            1e3,
        ),
        (
            json!({"rope_parameters": {"full_attention": linear, "sliding_attention": default}}),
            (1e6, Some(8.0)),
            300.0,
        ),
    ];
    for (edits, (theta, factor), of_windows) in table {
        let read = parse(&with(base("Gemma3ForCausalLM"), edits)).expect("supported");
        assert_eq!(read.rope.theta, theta);
        let scaling = factor.map_or(RopeScaling::Default, |factor| RopeScaling::Linear {
            factor,
        });
        assert_eq!(read.rope.scaling, scaling);
        let gemma = read.gemma.expect("the model is a Gemma");
        let windowed = gemma.window_rope.expect("a separate RoPE");
        assert_eq!(
            (windowed.theta, windowed.scaling),
            (of_windows, RopeScaling::Default)
        );
        assert_eq!((gemma.score_cap, gemma.logits_cap), (None, None));
        assert_eq!(read.windows, [Some(4096); 3]);
    }
    let edits = json!({"num_hidden_layers": 7, "sliding_window": 512, "sliding_window_pattern": 3});
    let read = parse(&with(base("Gemma3ForConditionalGeneration"), edits)).expect("supported");
    let slides: Vec<bool> = read.windows.iter().map(Option::is_some).collect();
    assert_eq!(slides, [true, true, false, true, true, false, true]);
}

#[test]
fn softcaps_depend_on_the_class() {
    let caps = json!({"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0});
    let wrapped = json!({"text_config": caps});
    for (class, edits, expected) in [
        ("Gemma2ForCausalLM", &caps, (Some(5.0), Some(10.0))),
        ("Gemma3ForCausalLM", &caps, (None, Some(10.0))),
        ("Gemma3ForConditionalGeneration", &wrapped, (None, None)),
        ("Gemma4ForCausalLM", &caps, (None, Some(10.0))),
        (
            "Gemma4ForConditionalGeneration",
            &wrapped,
            (None, Some(10.0)),
        ),
    ] {
        let read = parse(&with(base(class), edits.clone())).expect("supported");
        let gemma = read.gemma.expect("the model is a Gemma");
        assert_eq!((gemma.score_cap, gemma.logits_cap), expected, "{class}");
    }
}

#[test]
fn unsupported_gemma_keys_are_rejected() {
    let table = [
        (
            json!({"hidden_activation": "gelu"}),
            "hidden_activation is \"gelu\", supported: \"gelu_pytorch_tanh\"",
        ),
        (
            json!({"use_bidirectional_attention": true}),
            "use_bidirectional_attention is true",
        ),
        (
            json!({"final_logit_softcapping": 0}),
            "final_logit_softcapping is 0, expected a number from",
        ),
        (
            json!({"sliding_window": null}),
            "sliding_window is null, expected a number of tokens",
        ),
        (
            json!({"query_pre_attn_scalar": -1}),
            "query_pre_attn_scalar is -1, expected",
        ),
        (
            json!({"rope_parameters": {"rope_theta": 1e4}}),
            "rope_parameters.rope_theta is unknown, expected full_attention and sliding_attention",
        ),
    ];
    for (edits, problem) in table {
        let error = parse(&with(base("Gemma3ForCausalLM"), edits)).expect_err("must fail");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn embedding_scales_are_rounded_to_the_element_type() {
    let scale = gemma_config::embedding_scale(2560);
    assert_eq!(Dtype::BF16.rounded(scale), 50.5);
    assert_eq!(Dtype::F32.rounded(scale), scale);
    assert_eq!(Dtype::F16.rounded(scale), 50.59375);
}

fn gemma4(edits: Value) -> Result<ModelConfig, LoadError> {
    parse(&with(base("Gemma4ForCausalLM"), edits))
}

#[test]
fn gemma_4_has_heads_of_two_sizes() {
    let read =
        gemma4(json!({"attention_k_eq_v": true, "num_global_key_value_heads": 1, "head_dim": 32}))
            .expect("supported");
    assert_eq!(
        read.windows,
        [Some(512), Some(512), None],
        "the last layer has full attention"
    );
    assert_eq!(
        [0, 2].map(|layer| read.heads_in(layer)),
        [(2, 32), (1, 512)]
    );
    assert_eq!((read.q_width(), read.kv_width()), (4 * 512, 512));
    assert_eq!(
        [0, 2].map(|layer| read.value_projection(layer)),
        ["v_proj", "k_proj"]
    );
    assert_eq!(
        (read.attention_scale(), read.stores_norms_minus_one()),
        (1.0, false)
    );
    let gemma = read.gemma4().expect("the model is a Gemma");
    let inputs = gemma.inputs.expect("per-layer inputs are the default");
    assert_eq!((inputs.width, inputs.vocab_size), (256, 262_144));
    let proportional = RopeScaling::Proportional {
        part: 0.25,
        factor: 1.0,
    };
    assert_eq!((read.rope.theta, &read.rope.scaling), (1e6, &proportional));
    let rope = read.rope.frequencies(512);
    assert_eq!(rope.inv_freq[0], 1.0);
    assert!(rope.inv_freq[63] > 0.0 && rope.inv_freq[64..].iter().all(|angle| *angle == 0.0));
    // Full-attention layers have their own number of heads only if their keys are also the values.
    let read = gemma4(json!({"num_global_key_value_heads": 1})).expect("supported");
    assert_eq!(read.heads_in(2), (2, 512));
}

#[test]
fn heads_of_gemma_4_may_be_stated_layer_by_layer() {
    let older = json!({"attention_k_eq_v": true, "num_global_key_value_heads": 1, "global_head_dim": 64, "head_dim": 32});
    // Written by transformers 5.23.
    let newer = json!({"attention_k_eq_v": true, "head_dim": 32, "per_layer_config": {
        "1": {"head_dim": 32, "intermediate_size": 112},
        "2": {"head_dim": 64, "num_key_value_heads": 1},
    }});
    let read = gemma4(newer).expect("supported");
    assert_eq!([1, 2].map(|layer| read.heads_in(layer)), [(2, 32), (1, 64)]);
    assert_eq!(read, gemma4(older).expect("supported"));
    // All layers have the same heads: keys of older files have no effect.
    let equal = json!({"head_dim": 32, "global_head_dim": 64, "per_layer_config": {}});
    let read = gemma4(equal).expect("supported");
    assert_eq!([1, 2].map(|layer| read.heads_in(layer)), [(2, 32); 2]);
}

#[test]
fn a_projection_shared_by_keys_and_values_counts_once() {
    let config_with = |keys_are_values: bool| {
        let edits = json!({"attention_k_eq_v": keys_are_values, "head_dim": 32});
        gemma4(edits).expect("supported")
    };
    let (plain, shared) = (config_with(false), config_with(true));
    let (kv_heads, head_dim) = shared.heads_in(2);
    let values = (kv_heads * head_dim * shared.hidden_size) as u64;
    assert_eq!(plain.parameters() - shared.parameters(), values);
    let read: u64 = shared.tensors().iter().map(|spec| spec.elements()).sum();
    assert_eq!(read - shared.parameters(), values, "a step reads both");
}

#[test]
fn last_layers_of_gemma_4_share_kv_of_earlier_layers() {
    let kinds = ["sliding_attention", "full_attention"].repeat(3);
    let sharing = |n: usize| {
        gemma4(json!({
            "num_hidden_layers": 6, "layer_types": kinds, "num_kv_shared_layers": n,
            "use_double_wide_mlp": true, "head_dim": 32, "global_head_dim": 64,
        }))
    };
    let read = sharing(3).expect("supported");
    let layers = 0..6;
    let sources: Vec<usize> = layers.clone().map(|layer| read.kv_source(layer)).collect();
    assert_eq!(sources, [0, 1, 2, 1, 2, 1]);
    let widths: Vec<usize> = layers.map(|layer| read.intermediate_in(layer)).collect();
    assert_eq!(widths, [112, 112, 112, 224, 224, 224]);
    let layout = read.kv_layout(Dtype::BF16);
    assert_eq!(layout.layers()[4], LayerKv::Shared(2));
    assert_eq!(layout.read_by(4), layout.layers()[2].pages());
    let token = |dim: u64| 2 * 2 * dim * 2;
    assert_eq!(layout.bytes_per_token(), 2 * token(32) + token(64));
    let error = sharing(5)
        .expect_err("no full-attention layer keeps KV")
        .to_string();
    let problem = "num_kv_shared_layers is 5, but no earlier layer of the same kind has KV";
    assert!(error.contains(problem), "{error}");
    assert!(sharing(6).is_err());
}

#[test]
fn unsupported_gemma_4_keys_are_rejected() {
    let table = [
        (
            json!({"per_layer_config": {"3": {"head_dim": 64}}}),
            "per_layer_config.3 is unknown, expected a layer from 0 to 2",
        ),
        (
            json!({"per_layer_config": {"02": {"head_dim": 64}}}),
            "per_layer_config.02 is unknown",
        ),
        (
            json!({"per_layer_config": {"2": {"head_dim": 7}}}),
            "per_layer_config.2.head_dim is 7, expected an even number",
        ),
        (
            json!({"per_layer_config": {"2": {"num_key_value_heads": 3}}}),
            "per_layer_config.2.num_key_value_heads is 3 and does not divide num_attention_heads, 4",
        ),
        (
            json!({"per_layer_config": {"2": {"intermediate_size": 224}}}),
            "per_layer_config.2.intermediate_size differs from the whole model's, supported of single layers: head_dim",
        ),
        (
            json!({"per_layer_config": {"1": {"head_dim": 64}}, "head_dim": 32}),
            "per_layer_config.1 has 2 KV heads of 64 elements, expected 2 of 32: it has a window",
        ),
        (
            json!({"per_layer_config": {"2": {"head_dim": 64}}, "head_dim": 32, "layer_types":
                ["full_attention", "sliding_attention", "full_attention"]}),
            "per_layer_config.2 has 2 KV heads of 64 elements, expected 2 of 32: it has full attention",
        ),
        (
            json!({"use_bidirectional_attention": "all"}),
            "use_bidirectional_attention is \"all\"",
        ),
        (
            json!({"global_head_dim": 7}),
            "global_head_dim is 7, expected an even number",
        ),
        (
            json!({"attention_k_eq_v": true, "num_global_key_value_heads": 3}),
            "num_global_key_value_heads is 3 and does not divide num_attention_heads, 4",
        ),
        (json!({"enable_moe_block": true}), "num_experts is missing"),
        (
            json!({"enable_moe_block": true, "num_experts": 2, "top_k_experts": 3, "moe_intermediate_size": 8}),
            "top_k_experts is 3, more than num_experts, 2",
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}}}),
            "partial_rotary_factor is 0.5, supported: 1, except for rope_type \"proportional\"",
        ),
    ];
    for (edits, problem) in table {
        let error = gemma4(edits).expect_err("must fail").to_string();
        assert!(error.contains(problem), "{error}");
    }
    let config = gemma4(json!({"use_bidirectional_attention": "vision"})).expect("supported");
    assert_eq!(config.bidirectional(), Some(BidirectionalLayers::Windowed));
    assert_eq!(config.images(), ImageSupport::Bidirectional);
}

#[test]
fn published_configurations_have_the_sizes_of_their_models() {
    let kinds = |layers: usize, period: usize| -> Vec<&str> {
        let kind = |layer: usize| {
            if (layer + 1).is_multiple_of(period) {
                "full_attention"
            } else {
                "sliding_attention"
            }
        };
        (0..layers).map(kind).collect()
    };
    // Minimal configurations; all other keys have defaults.
    let gemma3 = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "torch_dtype": "bfloat16",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    });
    let small = json!({
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_key_value_heads": 1,
            "num_kv_shared_layers": 20, "layer_types": kinds(35, 5), "use_double_wide_mlp": true,
        },
    });
    let large = json!({
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32,
            "num_key_value_heads": 16, "num_global_key_value_heads": 4, "attention_k_eq_v": true,
            "hidden_size_per_layer_input": 0,
        },
    });
    let gemma2 = json!({
        "architectures": ["Gemma2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 14336,
        "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
    });
    for (config, bytes_per_token) in [
        (gemma2, 344_064),
        (gemma3, 139_264),
        (small, 18_432),
        (large, 901_120),
    ] {
        let read = parse(&config).expect("supported");
        let layout = read.kv_layout(Dtype::BF16);
        assert_eq!(layout.bytes_per_token(), bytes_per_token, "{config}");
        let full = read.windows.iter().filter(|window| window.is_none());
        assert!(full.count() * 7 > read.num_hidden_layers, "{config}");
    }
}
