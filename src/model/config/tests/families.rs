//! Tests of family-specific configuration: latent attention, states, sinks, factors, special RoPE.

use super::*;

#[test]
fn latent_attention_takes_the_defaults_of_its_class() {
    let used = json!({"num_experts_per_tok": 6, "rms_norm_eps": null});
    let v2 = parse(&with(base("DeepseekV2ForCausalLM"), used)).expect("supported");
    let latent = v2.latent.expect("attention is latent");
    assert_eq!((latent.query_rank, latent.rank), (Some(1536), 512));
    assert_eq!((latent.plain_dim, latent.rotary_dim), (128, 64));
    assert_eq!((latent.value_dim, latent.eps), (128, 1e-6));
    assert!(latent.interleaved);
    assert_eq!((v2.num_key_value_heads, v2.head_dim), (1, 64));
    let experts = v2.experts.expect("has experts");
    assert_eq!(experts.routing, Routing::softmax(64, 6, false));
    assert_eq!((experts.width, experts.shared_width), (1407, Some(2814)));
    assert_eq!(experts.layers, [true; 3]);

    let v3 = parse(&with(
        base("DeepseekV3ForCausalLM"),
        json!({"q_lora_rank": null}),
    ));
    let v3 = v3.expect("supported");
    assert_eq!(v3.latent.expect("attention is latent").query_rank, None);
    assert_eq!(v3.experts, None, "the first three layers have none");

    let kinds = json!({"mlp_layer_types": ["sparse", "dense", "sparse"]});
    let glm = parse(&with(base("Glm4MoeLiteForCausalLM"), kinds)).expect("supported");
    let latent = glm.latent.as_ref().expect("attention is latent");
    assert_eq!((latent.plain_dim, latent.value_dim), (192, 256));
    assert_eq!(latent.query_rank, Some(768));
    let experts = glm.experts.expect("has experts");
    assert_eq!(experts.layers, [true, false, true]);
    assert_eq!(experts.routing.scale, 1.8);
    assert!(experts.corrected && experts.routing.groups.is_none());
    assert_eq!(glm.eos_token_ids, [1]);
}

#[test]
fn yarn_scales_the_scores_of_latent_attention() {
    let scale = fixture("deepseek-v2").attention_scale();
    let by = 0.1 * 0.6 * 8_f64.ln() + 1.0;
    let expected = by * by / f64::from(20 + 12).sqrt();
    assert!((f64::from(scale) - expected).abs() < 1e-7, "{scale}");
    let plain = fixture("deepseek-v3-plain").attention_scale();
    assert_eq!(plain, 32_f32.sqrt().recip());
}

#[test]
fn unsupported_keys_of_hybrids_are_rejected() {
    let table = [
        (
            json!({"attn_output_gate": false}),
            "attn_output_gate is false, supported: true",
        ),
        (
            json!({"head_dim": 36, "partial_rotary_factor": 0.25}),
            "partial_rotary_factor is 0.25, which rotates 9 of the 36 elements of a head, expected an even number",
        ),
        (
            json!({"linear_num_key_heads": 3, "linear_num_value_heads": 8}),
            "linear_num_key_heads is 3 and does not divide linear_num_value_heads, 8",
        ),
        (
            json!({"layer_types": ["linear_attention"]}),
            "layer_types has 1 entries, expected",
        ),
        (
            json!({"layer_types": ["linear_attention", "full_attention", "conv"]}),
            "layer_types names \"conv\", supported:",
        ),
    ];
    let names = [
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen3NextForCausalLM",
    ];
    for (name, (edits, problem)) in names.into_iter().flat_map(|name| {
        let table = table.iter();
        table.map(move |row| (name, row))
    }) {
        let error = parse(&with(base(name), edits.clone())).expect_err("must fail");
        assert!(error.to_string().contains(problem), "{name}: {error}");
    }
    let named = json!({"layer_types": ["conv", "full_attention", "linear_attention"]});
    for name in ["Lfm2ForCausalLM", "Lfm2MoeForCausalLM"] {
        let error = parse(&with(base(name), named.clone())).expect_err("must fail");
        let problem = "layer_types names \"linear_attention\", supported:";
        assert!(error.to_string().contains(problem), "{name}: {error}");
    }
}

#[test]
fn gpt_oss_takes_the_defaults_of_its_class() {
    let read = parse(&base("GptOssForCausalLM")).expect("supported");
    assert_eq!((read.head_dim, read.sinks), (64, true));
    assert_eq!(read.windows, [Some(128), None, Some(128)]);
    assert!(read.bias.qkv && read.bias.o && read.eos_token_ids.is_empty());
    let experts = read.experts.expect("has experts");
    assert_eq!(
        (experts.routing.n_experts, experts.routing.n_used),
        (128, 4)
    );
    let clamped = Gate::Clamped {
        limit: 7.0,
        slope: 1.702,
    };
    assert_eq!((experts.gate, experts.bias), (clamped, true));
    for (edits, theta, is_yarn) in [
        (json!({}), 150_000.0, true),
        (
            json!({"rope_theta": 500, "rope_scaling": null}),
            500.0,
            true,
        ),
        (json!({"rope_parameters": {}}), 150_000.0, false),
    ] {
        let read = parse(&with(base("GptOssForCausalLM"), edits)).expect("supported");
        assert_eq!(read.rope.theta, theta);
        assert_eq!(matches!(read.rope.scaling, RopeScaling::Yarn(_)), is_yarn);
    }
    let fixture = fixture("gpt-oss");
    assert_eq!(fixture.windows, [None, Some(24)]);
    assert_eq!(fixture.rope.theta, 5000.0);
}

#[test]
fn dense_families_take_the_defaults_of_their_classes() {
    let granite = parse(&base("GraniteForCausalLM")).expect("supported");
    assert_eq!(granite.attention_scale(), 1.0, "not 1/sqrt(head_dim)");
    assert_eq!(
        (granite.embedding_scale, granite.logits_divisor),
        (None, None)
    );
    assert_eq!(
        (granite.residual_scale, granite.windows),
        (None, vec![None; 3])
    );
    assert_eq!(
        (granite.bos_token_id, granite.eos_token_ids),
        (Some(1), vec![2])
    );
    assert_eq!(
        (granite.max_position_embeddings, granite.rms_norm_eps),
        (2048, 1e-6)
    );

    let smollm3 = with(
        base("SmolLM3ForCausalLM"),
        json!({"num_hidden_layers": 8, "num_attention_heads": 8}),
    );
    let mut absent = smollm3.clone();
    absent
        .as_object_mut()
        .expect("object")
        .remove("num_key_value_heads");
    let read = parse(&absent).expect("supported");
    let expected = [true, true, true, false, true, true, true, false];
    assert_eq!(
        (read.rotated, read.num_key_value_heads),
        (expected.to_vec(), 4)
    );
    assert!(read.tie_word_embeddings);
    assert_eq!((read.rope.theta, read.windows), (2e6, vec![None; 8]));
    assert_eq!(
        (read.bos_token_id, read.eos_token_ids),
        (Some(128_000), vec![128_001])
    );

    let phi3 = parse(&base("Phi3ForCausalLM")).expect("supported");
    assert_eq!((phi3.rotary_dim, phi3.windows), (16, vec![None; 3]));
    assert_eq!(
        (phi3.eos_token_ids, phi3.rms_norm_eps),
        (vec![32_000], 1e-5)
    );
    assert_eq!(
        (phi3.max_position_embeddings, phi3.rope.long_above()),
        (4096, None)
    );

    let ministral3 = parse(&base("Ministral3ForCausalLM")).expect("supported");
    assert_eq!((ministral3.head_dim, ministral3.rope.theta), (128, 1e6));
    let scale = ministral3.query_scale.expect("queries are scaled");
    assert_eq!(
        (scale.at(16_383), scale.at(16_384)),
        (1.0, 1.0 + 0.1 * 2f32.ln())
    );
    assert_eq!(ministral3.rope.frequencies(128).attention_scale, 1.0);
    assert_eq!(ministral3.context_tokens(), 262_144);
}

#[test]
fn smollm3_layers_without_rope_are_read() {
    let read = |edits| parse(&with(base("SmolLM3ForCausalLM"), edits));
    let marked = read(json!({"no_rope_layers": [0, 1, 0, 1]})).expect("longer lists are valid");
    assert_eq!(marked.rotated, [false, true, false]);
    let sliding =
        json!({"no_rope_layer_interval": 2, "use_sliding_window": true, "sliding_window": 8});
    let sliding = read(sliding).expect("supported");
    assert_eq!(sliding.rotated, [true, false, true]);
    assert_eq!(sliding.windows, [None, Some(8), None]);
    for (edits, problem) in [
        (
            json!({"no_rope_layers": [1]}),
            "has 1 entries, expected at least 3 (num_hidden_layers)",
        ),
        (
            json!({"no_rope_layers": [1, 2, 1]}),
            "has 2, expected zeros and ones",
        ),
        (
            json!({"no_rope_layer_interval": 0}),
            "no_rope_layer_interval is 0, expected",
        ),
    ] {
        let error = read(edits).expect_err("must fail").to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn phi3_rope_follows_its_keys() {
    let both = json!({"short_factor": [1, 2, 3, 4, 5, 6], "long_factor": [2, 4, 6, 8, 10, 12]});
    let long = |kind: &str| with(both.clone(), json!({"type": kind}));
    let read = |edits| {
        let partial = with(
            base("Phi3ForCausalLM"),
            json!({"partial_rotary_factor": 0.75}),
        );
        parse(&with(partial, edits))
    };
    for kind in ["longrope", "su", "yarn"] {
        let edits = json!({"rope_scaling": long(kind), "max_position_embeddings": 131_072});
        let config = read(edits).expect("the names are synonyms");
        assert_eq!(
            (config.rotary_dim, config.rope.long_above()),
            (12, Some(4096))
        );
        let rope = config.rope.frequencies(12);
        let long = rope.long_inv_freq.expect("longrope has long frequencies");
        assert_eq!((rope.inv_freq[0], long[0]), (1.0, 0.5));
        let expected = (1.0 + 32_f64.ln() / 4096_f64.ln()).sqrt();
        assert_eq!(rope.attention_scale, expected as f32);
    }
    for (edits, problem) in [
        (
            json!({"rope_scaling": with(long("su"), json!({"long_factor": [1]}))}),
            "long_factor has 1 numbers, expected 6",
        ),
        (
            json!({"rope_scaling": {"type": "longrope", "long_factor": [1]}}),
            "short_factor is missing",
        ),
        (
            json!({"rope_scaling": with(long("su"), json!({"long_factor": [1, "x"]}))}),
            "expected a list of numbers",
        ),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2}}),
            "rope_scaling has type linear, supported for Phi-3: default",
        ),
        (
            json!({"partial_rotary_factor": 0.7}),
            "rotates 11 of the 16 elements of a head",
        ),
    ] {
        let error = read(edits).expect_err("must fail").to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn mistral_3_vision_models_have_mistral_or_ministral_3_decoders() {
    let wrapped = |kind: Value| {
        let decoder = with(base("Ministral3ForCausalLM"), json!({"model_type": kind}));
        parse(&json!({
            "architectures": ["Mistral3ForConditionalGeneration"],
            "text_config": decoder,
        }))
    };
    let known = wrapped(json!("ministral3")).expect("supported");
    assert_eq!(known.architecture.name(), "Ministral3ForCausalLM");
    for kind in [json!("mistral"), Value::Null] {
        let known = wrapped(kind).expect("supported");
        assert_eq!(known.architecture.name(), "MistralForCausalLM");
    }
    let error = wrapped(json!("mistral4"))
        .expect_err("must fail")
        .to_string();
    let problem = "text_config.model_type is \"mistral4\", supported:";
    assert!(error.contains(problem), "{error}");
}

#[test]
fn lfm2_vl_models_have_decoders_of_lfm2() {
    for (kind, name) in [
        ("lfm2", "Lfm2ForCausalLM"),
        ("lfm2_moe", "Lfm2MoeForCausalLM"),
    ] {
        let known = parse(&json!({
            "architectures": ["Lfm2VlForConditionalGeneration"],
            "model_type": "lfm2_vl",
            "text_config": with(base(name), json!({"model_type": kind})),
            "tie_word_embeddings": true,
        }));
        assert_eq!(known.expect("supported").architecture.name(), name);
    }
}

#[test]
fn of_llava_models_only_those_with_mistral_s_decoder_are_supported() {
    let wrapped = |kind: &str| {
        let edits =
            json!({"model_type": kind, "num_attention_heads": null, "sliding_window": null});
        parse(&json!({
            "architectures": ["LlavaForConditionalGeneration"],
            "text_config": with(base("MistralForCausalLM"), edits),
        }))
    };
    let pixtral = wrapped("mistral").expect("supported");
    assert_eq!(pixtral.architecture.name(), "MistralForCausalLM");
    assert_eq!(
        (pixtral.num_attention_heads, pixtral.windows),
        (32, vec![None; 3])
    );
    let error = wrapped("llama").expect_err("must fail").to_string();
    let problem = "text_config.model_type is \"llama\", supported: \"mistral\"";
    assert!(error.contains(problem), "{error}");
}

#[test]
fn dense_fixtures_have_the_features_of_their_families() {
    let granite = fixture("granite");
    assert_eq!(
        (granite.embedding_scale, granite.residual_scale),
        (Some(2.5), Some(0.6))
    );
    assert_eq!(
        (granite.attention_scale(), granite.logits_divisor),
        (0.4, Some(1.7))
    );
    assert_eq!(fixture("smollm3").rotated, [false, true]);
    let window = fixture("smollm3-window");
    assert_eq!(window.windows, [None, None, None, Some(24), None]);
    assert_eq!(fixture("phi3").windows, [Some(24); 2]);
    assert_eq!(fixture("phi3-longrope").rope.long_above(), Some(32));
    let ministral3 = fixture("mistral3").query_scale.expect("queries are scaled");
    assert_eq!((ministral3.slope, ministral3.period), (0.4, 32));
}
