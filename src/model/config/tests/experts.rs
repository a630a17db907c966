//! Tests of expert configuration: defaults of each family, and rejected values.

use super::*;

#[test]
fn experts_follow_the_keys_defaults_and_limits_of_their_class() {
    let experts = |config: &Value| parse(config).expect("supported").experts;
    let qwen = base("Qwen3MoeForCausalLM");
    let read = parse(&qwen).expect("supported");
    assert_eq!((read.head_dim, read.num_key_value_heads), (16, 2));
    let moe = read.experts.expect("has experts");
    assert_eq!(moe.routing, Routing::softmax(128, 8, false));
    assert_eq!((moe.width, moe.layers), (768, vec![true; 3]));
    for (edits, layers) in [
        (
            json!({"decoder_sparse_step": 2}),
            Some([false, true, false]),
        ),
        (
            json!({"mlp_only_layers": [0, 7]}),
            Some([false, true, true]),
        ),
        (
            json!({"decoder_sparse_step": 2, "mlp_only_layers": [1]}),
            None,
        ),
        (json!({"num_experts": 0}), None),
        (json!({"mlp_only_layers": null}), Some([true; 3])),
    ] {
        let got = experts(&with(qwen.clone(), edits.clone()));
        let got = got.map(|experts| experts.layers);
        assert_eq!(got, layers.map(Vec::from), "{edits}");
    }
    let mixtral = base("MixtralForCausalLM");
    let read = parse(&mixtral).expect("supported");
    assert_eq!((read.rope.theta, read.rms_norm_eps), (1e6, 1e-5));
    assert_eq!(read.windows, [None; 3]);
    let moe = read.experts.expect("has experts");
    assert_eq!(moe.routing, Routing::softmax(8, 2, true));
    assert_eq!(moe.width, read.intermediate_size);
    for (edits, problem) in [
        (
            json!({"num_experts_per_tok": 9}),
            "num_experts_per_tok is 9, more than num_experts, 8",
        ),
        (
            json!({"num_local_experts": 0}),
            "num_local_experts is 0, expected a whole number from 1 to 1024",
        ),
        (
            json!({"num_local_experts": 1024, "num_hidden_layers": 65}),
            "num_local_experts is 1024 in each of 65 layers, the limit is 65536",
        ),
    ] {
        let error = parse(&with(mixtral.clone(), edits)).expect_err("must fail");
        assert!(error.to_string().contains(problem), "{error}");
    }
    let wrong = with(qwen, json!({"mlp_only_layers": [-1]}));
    let error = parse(&wrong).expect_err("must fail").to_string();
    assert!(
        error.contains("mlp_only_layers is [-1], expected a list of layers"),
        "{error}"
    );
}

#[test]
fn invalid_values_of_deepseek_and_glm_are_rejected() {
    let v3 = with(
        base("DeepseekV3ForCausalLM"),
        json!({"first_k_dense_replace": 0}),
    );
    for (edits, problem) in [
        (
            json!({"n_routed_experts": 20}),
            "n_group is 8, expected at most 64 and a divisor of n_routed_experts, 20",
        ),
        (
            json!({"n_group": 256}),
            "n_group is 256, expected at most 64",
        ),
        (
            json!({"n_routed_experts": 8, "num_experts_per_tok": 4}),
            "leaves one expert per group",
        ),
        (
            json!({"n_routed_experts": 16, "topk_group": 2}),
            "the topk_group 2 groups of a token have 4 experts, but each token uses 8",
        ),
        (
            json!({"mlp_layer_types": ["dense"], "architectures": ["Glm4MoeLiteForCausalLM"]}),
            "mlp_layer_types has 1 entries, expected 3",
        ),
        (
            json!({"topk_method": "noisy", "architectures": ["DeepseekV2ForCausalLM"]}),
            "topk_method is \"noisy\"",
        ),
        (
            json!({
                "architectures": ["DeepseekV2ForCausalLM"], "num_experts_per_tok": 3,
                "mlp_bias": true, "n_shared_experts": 0,
            }),
            "mlp_bias is true with n_shared_experts 0",
        ),
        (
            json!({"qk_rope_head_dim": 7}),
            "qk_rope_head_dim is 7, expected an even number",
        ),
    ] {
        let error = parse(&with(v3.clone(), edits)).expect_err("must fail");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn other_router_formulas_are_rejected() {
    let v2 = json!({"num_experts_per_tok": 3});
    let table = [
        ("DeepseekV2ForCausalLM", "scoring_func", json!("sigmoid")),
        ("DeepseekV2ForCausalLM", "topk_method", json!("noaux_tc")),
        ("DeepseekV2ForCausalLM", "norm_topk_prob", json!(true)),
        ("DeepseekV2ForCausalLM", "moe_layer_freq", json!(2)),
        ("DeepseekV3ForCausalLM", "scoring_func", json!("softmax")),
        ("DeepseekV3ForCausalLM", "topk_method", json!("greedy")),
        ("DeepseekV3ForCausalLM", "moe_layer_freq", json!([0, 1, 1])),
        ("Glm4MoeLiteForCausalLM", "scoring_func", json!("softmax")),
        ("Glm4MoeLiteForCausalLM", "topk_method", json!("greedy")),
    ];
    for (name, key, value) in table {
        let config = with(with(base(name), v2.clone()), json!({ key: value }));
        let error = parse(&config).expect_err("must fail").to_string();
        let problem = format!("{key} is {value}");
        assert!(error.contains(&problem), "{error} for {problem}");
    }
    let kinds = json!({"mlp_layer_types": ["dense", "sparse", "both"]});
    let error = parse(&with(base("Glm4MoeLiteForCausalLM"), kinds)).expect_err("must fail");
    assert!(
        error.to_string().contains("mlp_layer_types has \"both\""),
        "{error}"
    );
}

#[test]
fn null_flags_are_false_as_in_transformers() {
    let with_experts = json!({"first_k_dense_replace": 0});
    let v3 = with(base("DeepseekV3ForCausalLM"), with_experts);
    let read = |edits| parse(&with(v3.clone(), edits)).expect("supported");
    for (edits, is_false) in [
        (json!({}), false),
        (
            json!({"norm_topk_prob": null, "rope_interleave": null}),
            true,
        ),
        (
            json!({"norm_topk_prob": false, "rope_interleave": false}),
            true,
        ),
    ] {
        let read = read(edits);
        let experts = read.experts.expect("has experts");
        assert_eq!(experts.routing.sum == WeightSum::AsScored, is_false);
        assert_eq!(
            read.latent.expect("attention is latent").interleaved,
            !is_false
        );
    }
}
