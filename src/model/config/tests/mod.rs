//! Tests of reading `config.json`.

mod experts;
mod families;
mod gemma;
mod hostile;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::read::MAX_FILE_BYTES;
use super::*;
use crate::rope::{MAX_POSITIONS, RopeScaling};
use souffleur_base::error::LoadError;
use souffleur_kernels::Gate;
use souffleur_kernels::routing::{Routing, WeightSum};

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
    let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
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
}

#[test]
fn qwen_fixtures_have_the_biases_windows_and_heads_of_their_keys() {
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
    assert_eq!((qwen3.qk_norm, qwen3.head_dim), (QkNorm::Heads, 32));
    assert!(!qwen3.bias.qkv);
}

#[test]
fn images_rotate_by_rows_and_columns_in_families_with_m_rope() {
    let of = |rows, columns| Some(MropeSections { rows, columns });
    let usual = fixture("qwen3-5-interval").mrope;
    assert_eq!((fixture("qwen3-5").mrope, usual), (of(1, 1), of(11, 10)));
    assert_eq!(fixture("qwen3-5").images(), ImageSupport::Grid);
    assert_eq!(fixture("qwen3-next").mrope, None);
    let deepstack = fixture("qwen3-vl");
    assert_eq!(deepstack.mrope, of(5, 4));
    assert_eq!(deepstack.images(), ImageSupport::Deepstack(2));
    assert_eq!(deepstack.images().vector_width(64), 192);
    let without_tower = parse(&base("Qwen3VLForConditionalGeneration")).expect("supported");
    assert_eq!(without_tower.mrope, of(20, 20));
    assert_eq!(without_tower.images(), ImageSupport::Grid);
    assert_eq!(
        (without_tower.head_dim, without_tower.rope.theta),
        (128, 5e5)
    );
    assert_eq!(fixture("llama").images(), ImageSupport::Sequence);
    assert_eq!(fixture("gemma4").images(), ImageSupport::Sequence);
}

#[test]
fn images_of_gemma_attend_in_both_directions_where_transformers_says_so() {
    let of = |name: &str| (fixture(name).images(), fixture(name).bidirectional());
    let all = (ImageSupport::Bidirectional, Some(BidirectionalLayers::All));
    assert_eq!((of("gemma3"), of("gemma3-wrapped")), (all, all));
    // Gemma 4 without its key is causal, also a model without per-layer inputs.
    for causal in ["gemma4", "gemma4-plain", "llama"] {
        assert_eq!(of(causal), (ImageSupport::Sequence, None), "{causal}");
    }
    let (images, layers) = of("gemma2");
    assert!(matches!(images, ImageSupport::Missing(_)) && layers.is_none());
}

#[test]
fn experts_and_windows_of_fixtures_are_read_as_transformers_reads_them() {
    let experts = |name: &str| fixture(name).experts.expect("has experts");
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
fn absent_keys_take_the_defaults_of_their_class_but_null_does_not() {
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
fn the_windows_of_qwen_3_follow_its_keys() {
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
fn null_in_a_nested_object_means_what_it_means_outside() {
    let nested = |text: Value| {
        let config =
            json!({"architectures": ["Mistral3ForConditionalGeneration"], "eos_token_id": 7});
        let text = with(base("MistralForCausalLM"), text);
        parse(&with(config, json!({"text_config": text}))).expect("supported")
    };
    // The default is a window of 4096 tokens.
    assert_eq!(nested(json!({})).windows, [Some(4096); 3]);
    let published = json!({"model_type": "mistral", "sliding_window": null, "eos_token_id": null});
    let read = nested(published);
    assert_eq!(read.windows, [None; 3]);
    // The outer object's value stays.
    assert_eq!(read.eos_token_ids, [7]);
}

#[test]
fn the_outer_object_says_whether_embeddings_are_tied() {
    let ties = |class: &str, outer: Value, inner: Value| {
        let edits =
            json!({"tie_word_embeddings": outer, "text_config": {"tie_word_embeddings": inner}});
        let read = parse(&with(base(class), edits)).expect("supported");
        read.tie_word_embeddings
    };
    let (yes, no, absent) = (json!(true), json!(false), Value::Null);
    for class in [
        "Gemma3ForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
    ] {
        assert!(ties(class, yes.clone(), no.clone()));
        assert!(!ties(class, no.clone(), yes.clone()));
        assert!(ties(class, absent.clone(), yes.clone()));
        assert!(!ties(class, absent.clone(), no.clone()));
    }
    assert!(ties(
        "Gemma3ForConditionalGeneration",
        absent.clone(),
        absent.clone()
    ));
    assert!(!ties(
        "Qwen3_5ForConditionalGeneration",
        absent.clone(),
        absent
    ));
}
