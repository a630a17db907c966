use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::kernels::Gate;
use crate::kernels::routing::{Routing, WeightSum};
use crate::model::rope::{MAX_POSITIONS, RopeScaling};

fn base(architecture: &str) -> Value {
    json!({
        "architectures": [architecture],
        "vocab_size": 288,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    })
}

fn with(mut config: Value, edits: Value) -> Value {
    for (key, value) in edits.as_object().expect("edits are an object") {
        config[key] = value.clone();
    }
    config
}

fn parse(config: &Value) -> Result<ModelConfig, LoadError> {
    ModelConfig::parse(Path::new("m/config.json"), config.to_string().as_bytes())
}

fn fixture(name: &str) -> ModelConfig {
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    ModelConfig::read(&models.join(name)).expect("fixtures are supported")
}

#[test]
fn fixtures_are_read_as_transformers_reads_them() {
    let linear = fixture("llama-rope-linear");
    assert_eq!(
        linear.bias,
        BiasConfig {
            qkv: true,
            o: true,
            mlp: true
        }
    );
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 4.0 });
    assert_eq!(
        (
            linear.num_key_value_heads,
            linear.head_dim,
            linear.eos_token_ids
        ),
        (2, 16, vec![1])
    );

    let llama3 = fixture("llama-rope-llama3");
    assert!(
        llama3.tie_word_embeddings && matches!(llama3.rope.scaling, RopeScaling::Llama3 { .. })
    );
    assert_eq!(
        (llama3.eos_token_ids, llama3.dtype),
        (vec![1, 2], Some(Dtype::BF16))
    );

    let yarn = fixture("llama-rope-yarn");
    assert_eq!(
        (yarn.head_dim, yarn.q_width(), yarn.kv_width()),
        (24, 96, 48)
    );
    assert_eq!(yarn.context_tokens(), 256);
    assert_eq!(
        yarn.kv_layout(Dtype::BF16).bytes_per_token(),
        2 * 2 * 48 * 2
    );

    let qwen2 = fixture("qwen2");
    assert_eq!(
        qwen2.bias,
        BiasConfig {
            qkv: true,
            o: false,
            mlp: false
        }
    );
    assert_eq!(qwen2.windows, [None, None]);
    assert_eq!(fixture("qwen2-window").windows, [None, Some(24)]);

    let qwen3 = fixture("qwen3");
    assert!(qwen3.qk_norm && !qwen3.bias.qkv && qwen3.head_dim == 32);
    let experts = |name: &str| fixture(name).experts.expect("it has experts");
    let moe = experts("qwen3-moe");
    assert_eq!(moe.routing, Routing::softmax(11, 3, true));
    assert_eq!((moe.width, moe.layers), (40, vec![true; 2]));
    let sparse = experts("qwen3-moe-sparse");
    assert_eq!(sparse.routing, Routing::softmax(6, 4, false));
    assert_eq!(sparse.layers, [false, true, false, false, false]);
    assert_eq!(fixture("qwen3-moe-sparse").windows, [Some(24); 5]);
    let mixtral = experts("mixtral");
    assert_eq!(mixtral.routing, Routing::softmax(5, 2, true));
    assert_eq!((mixtral.width, mixtral.layers), (56, vec![true; 2]));
    assert_eq!(fixture("mixtral").rope.theta, 1e6);
    let mistral = fixture("mistral");
    assert_eq!(mistral.windows, [Some(24), Some(24)]);
    assert_eq!((mistral.rms_norm_eps, mistral.rope.theta), (1e-5, 10_000.0));
}

#[test]
fn absent_keys_take_the_defaults_of_their_class() {
    let table = [
        ("LlamaForCausalLM", 16, 2048, Some(1), vec![2], None),
        (
            "MistralForCausalLM",
            16,
            131_072,
            Some(1),
            vec![2],
            Some(4096),
        ),
        ("Qwen2ForCausalLM", 16, 32_768, None, vec![], None),
        ("Qwen3ForCausalLM", 128, 32_768, None, vec![], None),
    ];
    for (name, head_dim, context, bos, eos, window) in table {
        let config = parse(&base(name)).expect("supported");
        assert_eq!(
            (config.head_dim, config.context_tokens()),
            (head_dim, context),
            "{name}"
        );
        assert_eq!(
            (config.bos_token_id, config.eos_token_ids),
            (bos, eos),
            "{name}"
        );
        assert_eq!(
            (config.windows, config.rms_norm_eps),
            (vec![window; 3], 1e-6),
            "{name}"
        );
        assert_eq!(
            (config.tie_word_embeddings, config.rope.theta),
            (false, 10_000.0),
            "{name}"
        );
    }
    let mut mistral = with(
        base("MistralForCausalLM"),
        json!({"num_attention_heads": 32}),
    );
    mistral
        .as_object_mut()
        .expect("object")
        .remove("num_key_value_heads");
    assert_eq!(parse(&mistral).expect("supported").num_key_value_heads, 8);
    let null = with(
        base("MistralForCausalLM"),
        json!({"num_key_value_heads": null, "sliding_window": null}),
    );
    let null = parse(&null).expect("supported");
    assert_eq!((null.num_key_value_heads, null.windows), (4, vec![None; 3]));
}

#[test]
fn qwen_slides_where_its_keys_say() {
    let on = json!({"use_sliding_window": true, "sliding_window": 8});
    let table = [
        (json!({"max_window_layers": 1}), [None, Some(8), Some(8)]),
        (json!({"max_window_layers": 28}), [None; 3]),
        (
            json!({"max_window_layers": 0, "use_sliding_window": false}),
            [None; 3],
        ),
        (
            json!({"max_window_layers": 0, "sliding_window": null}),
            [None; 3],
        ),
        (
            json!({"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
            [Some(8), None, Some(8)],
        ),
    ];
    for (edits, windows) in table {
        let config = with(with(base("Qwen3ForCausalLM"), on.clone()), edits);
        assert_eq!(
            parse(&config).expect("supported").windows,
            windows,
            "{config}"
        );
    }
}

#[test]
fn what_is_not_supported_is_refused_with_key_value_and_limit() {
    let table = [
        (
            json!({"architectures": ["GPT2LMHeadModel"]}),
            "architecture \"GPT2LMHeadModel\" is not supported",
        ),
        (json!({"architectures": null}), "architectures is missing"),
        (json!({"hidden_size": null}), "hidden_size is missing"),
        (
            json!({"hidden_size": 63}),
            "hidden_size is 63 and not a multiple of num_attention_heads, 4",
        ),
        (
            json!({"num_attention_heads": 0}),
            "num_attention_heads is 0, expected a whole number from 1 to 4096",
        ),
        (
            json!({"num_attention_heads": 64}),
            "head_dim is 1, expected an even number",
        ),
        (
            json!({"num_key_value_heads": 3}),
            "is 3 and does not divide num_attention_heads, 4",
        ),
        (
            json!({"vocab_size": -1}),
            "vocab_size is -1, expected a whole number from 1 to 16777216",
        ),
        (
            json!({"num_hidden_layers": 1e9}),
            "num_hidden_layers is 1000000000.0, expected a whole number",
        ),
        (
            json!({"head_dim": 15}),
            "head_dim is 15, expected an even number",
        ),
        (
            json!({"hidden_act": "gelu"}),
            "hidden_act is \"gelu\", supported is \"silu\"",
        ),
        (
            json!({"dtype": "float8_e4m3fn"}),
            "supported are float32, float16 and bfloat16",
        ),
        (
            json!({"eos_token_id": [2, -1]}),
            "eos_token_id is [2,-1], expected a token id",
        ),
        (
            json!({"tie_word_embeddings": 1}),
            "tie_word_embeddings is 1, expected true or false",
        ),
        (
            json!({"layer_types": ["full_attention"]}),
            "has 1 entries, expected num_hidden_layers, 3",
        ),
        (
            json!({"layer_types": ["full_attention", "x", "full_attention"]}),
            "names \"x\", supported are",
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
            "but use_sliding_window or sliding_window is off",
        ),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2}}),
            "so K/V cannot be reused",
        ),
    ];
    for (edits, expected) in table {
        let config = with(base("Qwen2ForCausalLM"), edits);
        let error = parse(&config).expect_err(expected).to_string();
        assert!(
            error.starts_with("m/config.json: ") && error.contains(expected),
            "{error}"
        );
    }
    let not_json = ModelConfig::parse(Path::new("c"), b"[1")
        .expect_err("not JSON")
        .to_string();
    assert!(not_json.starts_with("c: is not JSON"), "{not_json}");
}

#[test]
fn hostile_values_are_refused_or_stay_within_bounds() {
    let hostile = [
        json!(-1),
        json!(0),
        json!(1),
        json!(u64::MAX),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!([]),
        json!([[[]]]),
        json!({}),
        json!({"rope_type": "yarn", "factor": 1e6, "original_max_position_embeddings": 1 << 27}),
        json!({"rope_type": "llama3", "factor": 1e-6, "low_freq_factor": 1e-6, "high_freq_factor": 1e6}),
        json!(true),
        json!(null),
    ];
    let keys = [
        "architectures",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "layer_types",
        "rope_scaling",
        "rope_parameters",
        "rope_theta",
        "partial_rotary_factor",
        "bos_token_id",
        "eos_token_id",
        "dtype",
        "torch_dtype",
        "attention_bias",
        "mlp_bias",
        "original_max_position_embeddings",
    ];
    for architecture in Architecture::ALL {
        for key in keys {
            for value in &hostile {
                let config = with(base(architecture.name()), json!({ key: value }));
                let Ok(config) = parse(&config) else { continue };
                assert!(config.parameters() > 0 && config.context_tokens() <= MAX_POSITIONS);
                let rope = config.rope.frequencies(config.head_dim);
                assert!(
                    rope.inv_freq.iter().all(|radians| radians.is_finite()),
                    "{config:?}"
                );
            }
        }
    }
}

#[test]
fn a_file_that_is_missing_or_endless_is_an_error() {
    let dir = tempfile::tempdir().expect("temporary folder");
    assert!(matches!(
        ModelConfig::read(dir.path()),
        Err(LoadError::Io { .. })
    ));
    let file = dir.path().join("config.json");
    std::fs::write(&file, vec![b' '; MAX_FILE_BYTES as usize + 1]).expect("writable");
    let error = ModelConfig::read(dir.path())
        .expect_err("too long")
        .to_string();
    assert!(error.contains("more than 4194304 bytes"), "{error}");
}

#[test]
fn experts_take_the_defaults_of_their_class() {
    let experts = |config: &Value| parse(config).expect("supported").experts;
    let qwen = base("Qwen3MoeForCausalLM");
    let read = parse(&qwen).expect("supported");
    assert_eq!((read.head_dim, read.num_key_value_heads), (16, 2));
    let own = read.experts.expect("it has experts");
    assert_eq!(own.routing, Routing::softmax(128, 8, false));
    assert_eq!((own.width, own.layers), (768, vec![true; 3]));
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
    let own = read.experts.expect("it has experts");
    assert_eq!(own.routing, Routing::softmax(8, 2, true));
    assert_eq!(own.width, read.intermediate_size);
    for (edits, complaint) in [
        (
            json!({"num_experts_per_tok": 9}),
            "num_experts_per_tok is 9 and more than num_experts, 8",
        ),
        (
            json!({"num_local_experts": 0}),
            "num_local_experts is 0, expected a whole number from 1 to 1024",
        ),
        (
            json!({"num_local_experts": 1024, "num_hidden_layers": 65}),
            "in each of 65 layers, supported are 65536 in all",
        ),
    ] {
        let error = parse(&with(mixtral.clone(), edits)).expect_err("it is refused");
        assert!(error.to_string().contains(complaint), "{error}");
    }
    let wrong = with(qwen, json!({"mlp_only_layers": [-1]}));
    let error = parse(&wrong).expect_err("it is refused").to_string();
    assert!(
        error.contains("mlp_only_layers is [-1], expected a list of layers"),
        "{error}"
    );
}

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
fn groups_of_experts_must_be_possible() {
    let v3 = with(
        base("DeepseekV3ForCausalLM"),
        json!({"first_k_dense_replace": 0}),
    );
    for (edits, complaint) in [
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
            "leaves one expert to a group",
        ),
        (
            json!({"n_routed_experts": 16, "topk_group": 2}),
            "of which 2 are used with 4 experts, and a token goes through 8",
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
            json!({"qk_rope_head_dim": 7}),
            "qk_rope_head_dim is 7, expected an even number",
        ),
    ] {
        let error = parse(&with(v3.clone(), edits)).expect_err("it is refused");
        assert!(error.to_string().contains(complaint), "{error}");
    }
}

#[test]
fn routers_of_other_formulas_are_refused() {
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
        let error = parse(&config).expect_err("it is refused").to_string();
        let complaint = format!("{key} is {value}");
        assert!(error.contains(&complaint), "{error} for {complaint}");
    }
    let kinds = json!({"mlp_layer_types": ["dense", "sparse", "both"]});
    let error = parse(&with(base("Glm4MoeLiteForCausalLM"), kinds)).expect_err("it is refused");
    assert!(
        error.to_string().contains("mlp_layer_types has \"both\""),
        "{error}"
    );
}

#[test]
fn null_is_no_where_its_class_takes_it_for_false() {
    let with_experts = json!({"first_k_dense_replace": 0});
    let v3 = with(base("DeepseekV3ForCausalLM"), with_experts);
    let read = |edits| parse(&with(v3.clone(), edits)).expect("supported");
    for (edits, is_no) in [
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
        let experts = read.experts.expect("it has experts");
        assert_eq!(experts.routing.sum == WeightSum::AsScored, is_no);
        assert_eq!(
            read.latent.expect("attention is latent").interleaved,
            !is_no
        );
    }
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
