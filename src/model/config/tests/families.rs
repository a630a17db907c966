//! Parts that only some families have: latent attention, states, sinks.

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
    let experts = v2.experts.expect("it has experts");
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
    let experts = glm.experts.expect("it has experts");
    assert_eq!(experts.layers, [true, false, true]);
    assert_eq!(experts.routing.scale, 1.8);
    assert!(experts.corrected && experts.routing.groups.is_none());
    assert_eq!(glm.eos_token_ids, [1]);
}

#[test]
fn yarn_sharpens_the_scores_of_latent_attention() {
    let scale = fixture("deepseek-v2").attention_scale();
    let by = 0.1 * 0.6 * 8_f64.ln() + 1.0;
    let expected = by * by / f64::from(20 + 12).sqrt();
    assert!((f64::from(scale) - expected).abs() < 1e-7, "{scale}");
    let plain = fixture("deepseek-v3-plain").attention_scale();
    assert_eq!(plain, 32_f32.sqrt().recip());
}

#[test]
fn hybrids_say_what_they_cannot_do() {
    let table = [
        (
            json!({"attn_output_gate": false}),
            "attn_output_gate is false, supported is true",
        ),
        (
            json!({"head_dim": 36, "partial_rotary_factor": 0.25}),
            "partial_rotary_factor is 0.25: 9 elements of a head of 36, expected an even number",
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
            "layer_types names \"conv\", supported are",
        ),
    ];
    let names = [
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen3NextForCausalLM",
    ];
    for (name, (edits, complaint)) in names.into_iter().flat_map(|name| {
        let table = table.iter();
        table.map(move |row| (name, row))
    }) {
        let error = parse(&with(base(name), edits.clone())).expect_err("it is refused");
        assert!(error.to_string().contains(complaint), "{name}: {error}");
    }
    let named = json!({"layer_types": ["conv", "full_attention", "linear_attention"]});
    for name in ["Lfm2ForCausalLM", "Lfm2MoeForCausalLM"] {
        let error = parse(&with(base(name), named.clone())).expect_err("it is refused");
        let complaint = "layer_types names \"linear_attention\", supported are";
        assert!(error.to_string().contains(complaint), "{name}: {error}");
    }
}

#[test]
fn gpt_oss_takes_the_defaults_of_its_class() {
    let read = parse(&base("GptOssForCausalLM")).expect("supported");
    assert_eq!((read.head_dim, read.sinks), (64, true));
    assert_eq!(read.windows, [Some(128), None, Some(128)]);
    assert!(read.bias.qkv && read.bias.o && read.eos_token_ids.is_empty());
    let experts = read.experts.expect("it has experts");
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
