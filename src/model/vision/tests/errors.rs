//! Errors of configurations, files and images: each names value and limit.

use super::*;
use serde_json::{Value, json};

#[track_caller]
pub(super) fn refused<T>(result: Result<T, LoadError>, expected: &str) {
    let error = result.err().expect(expected).to_string();
    assert!(error.contains(expected), "{error}\nexpected {expected}");
}

/// A folder with the files of a fixture, whose config.json is changed.
pub(super) fn changed(name: &str, change: impl Fn(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary folder");
    let text = fs::read(fixture(name).join("config.json")).expect("committed");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    change(&mut config);
    fs::write(dir.path().join("config.json"), config.to_string()).expect("writable");
    let weights = "model.safetensors";
    fs::copy(fixture(name).join(weights), dir.path().join(weights)).expect("writable");
    dir
}

#[track_caller]
fn refuses(name: &str, (place, key, value): (&str, &str, Value), expected: &str) {
    let dir = changed(name, |config| config[place][key] = value.clone());
    refused(TowerCheckpoint::open_folder(dir.path()), expected);
}

/// As [`refuses`], with a top-level key of `config.json`.
#[track_caller]
fn refuses_key(name: &str, (key, value): (&str, Value), expected: &str) {
    let dir = changed(name, |config| config[key] = value.clone());
    refused(TowerCheckpoint::open_folder(dir.path()), expected);
}

#[test]
fn models_without_a_tower_have_none() {
    let dir = changed("qwen", |config| config["vision_config"] = Value::Null);
    let read = TowerConfig::read(dir.path()).expect("readable");
    assert_eq!(read, None);
    // The weights of the text model alone, as some converters leave them.
    let dir = changed("qwen", |_| {});
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama");
    let weights = "model.safetensors";
    fs::copy(text.join(weights), dir.path().join(weights)).expect("writable");
    let opened = TowerCheckpoint::open_folder(dir.path()).expect("readable");
    assert!(opened.is_none());
}

#[test]
fn options_that_change_the_result_are_refused_by_name() {
    let deepstack = json!([0, 1]);
    let place = "vision_config";
    let key = "deepstack_visual_indexes";
    refuses(
        "qwen",
        (place, key, deepstack),
        "vision_config.deepstack_visual_indexes names layers",
    );
    refuses_key("qwen", ("model_type", json!("qwen3_vl")), key);
    refuses(
        "qwen3-vl",
        (place, key, json!([2, 0])),
        "vision_config.deepstack_visual_indexes is [2, 0], expected ascending",
    );
    refuses(
        "qwen3-vl",
        (place, key, json!([0, 3])),
        "numbers of layers below 3, the tower's depth",
    );
    refuses_key(
        "qwen",
        ("model_type", json!("idefics3")),
        "model_type is \"idefics3\", towers are supported",
    );
    let layer = ("vision_feature_layer", json!(-2));
    refuses_key(
        "pixtral",
        layer.clone(),
        "vision_feature_layer is -2, expected -1",
    );
    refuses_key("lfm2", layer, "vision_feature_layer is -2, expected -1");
    refuses(
        "pixtral",
        (place, "model_type", json!("clip")),
        "supported: \"pixtral\"",
    );
    refuses(
        "qwen",
        (place, "hidden_act", json!("relu")),
        "hidden_act is \"relu\", supported: ",
    );
    refuses("qwen", (place, "in_channels", json!(4)), "from 3 to 3");
    refuses(
        "gemma4",
        (place, "attention_bias", json!(true)),
        "attention_bias is true",
    );
    refuses(
        "gemma4",
        (place, "num_key_value_heads", json!(1)),
        "from 2 to 2",
    );
}

/// Checks a value of a key in `vision_config`.
#[track_caller]
fn refuses_size(name: &str, key: &str, value: Value, expected: &str) {
    refuses(name, ("vision_config", key, value), expected);
}

#[test]
fn hostile_sizes_of_towers_with_rope_are_refused_before_memory_is_taken() {
    let qwen = |key, value, expected| refuses_size("qwen", key, value, expected);
    qwen(
        "num_heads",
        json!(5),
        "num_heads is 5 and does not divide hidden_size, 24",
    );
    qwen(
        "num_heads",
        json!(4),
        "heads of 6 elements, expected a multiple of 4",
    );
    qwen("num_position_embeddings", json!(24), "expected the square");
    qwen(
        "patch_size",
        json!(0),
        "patch_size is 0, expected a whole number from 1 to 256",
    );
    qwen("patch_size", json!([4, 4]), "patch_size is [4,4]");
    qwen("spatial_merge_size", json!(0), "spatial_merge_size is 0");
    qwen("depth", json!(1e9), "depth is 1000000000");
    qwen("hidden_size", json!(-1), "hidden_size is -1");
    qwen(
        "temporal_patch_size",
        json!(99),
        "temporal_patch_size is 99",
    );
    let gemma4 = |key, value, expected| refuses_size("gemma4", key, value, expected);
    gemma4("head_dim", json!(10), "heads of 10 elements");
    gemma4(
        "position_embedding_size",
        json!(1 << 20),
        "position_embedding_size is 1048576",
    );
    let text = ("text_config", "hidden_size", Value::Null);
    refuses("pixtral", text, "hidden_size is missing");
}

#[test]
fn hostile_sizes_of_towers_without_rope_are_refused_before_memory_is_taken() {
    refuses_size("lfm2", "num_patches", json!(35), "num_patches is 35");
    refuses_size(
        "lfm2",
        "layer_norm_eps",
        json!(2.0),
        "layer_norm_eps is 2.0",
    );
    refuses_key(
        "lfm2",
        ("downsample_factor", json!(99)),
        "downsample_factor is 99",
    );
    refuses_size("gemma3", "image_size", json!(3), "mm_tokens_per_image is 4");
    refuses_key(
        "gemma3",
        ("mm_tokens_per_image", json!(5)),
        "mm_tokens_per_image is 5",
    );
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let place = "vision_config";
    let missing = "tensor model.visual.blocks.2.norm1.weight is missing, expected shape [24]";
    refuses("qwen", (place, "depth", json!(3)), missing);
    let shape = "tensor model.visual.blocks.0.mlp.linear_fc1.weight has shape [44, 24]";
    refuses("qwen", (place, "intermediate_size", json!(40)), shape);
    let bounds = "tensor model.vision_tower.encoder.layers.0.self_attn.q_proj.input_min is missing";
    refuses(
        "gemma4-plain",
        (place, "use_clipped_linears", json!(true)),
        bounds,
    );
    let width = "tensor multi_modal_projector.mm_input_projection_weight has shape [24, 20]";
    refuses("gemma3", ("text_config", "hidden_size", json!(32)), width);
}

#[test]
fn the_width_of_the_text_model_must_be_that_of_the_vectors() {
    let checkpoint = checkpoint("qwen");
    let source = Path::new("mmproj.gguf");
    assert!(checkpoint.config.check_width(source, 20).is_ok());
    let error = checkpoint.config.check_width(source, 32);
    refused(
        error,
        "mmproj.gguf: the vision tower makes vectors of width 20, the text model's embeddings have width 32",
    );
}

#[test]
fn the_text_model_must_take_the_further_vectors() {
    let config = checkpoint("qwen3-vl").config;
    assert_eq!((config.text_width, config.out_width()), (20, 60));
    let source = Path::new("mmproj.gguf");
    assert!(config.check_width(source, 20).is_ok());
    assert!(config.check_deepstack(source, 2).is_ok());
    refused(
        config.check_deepstack(source, 0),
        "mmproj.gguf: the vision tower makes vectors for the outputs of 2 layers (deepstack), the text model takes \
         them for 0",
    );
}

#[test]
fn images_that_a_tower_cannot_encode_are_refused() {
    let refused = |name: &str, (h, w): (usize, usize), values: usize, expected: &str| {
        let mut backend = plain_backend();
        let tower = Tower::load(&checkpoint(name), &mut backend).expect("complete");
        let patches = |_: std::ops::Range<usize>| vec![0.0; values];
        let begun = tower.begin(TowerGrid { h, w });
        let advanced = begun.and_then(|mut begun| begun.advance(&tower, &mut backend, 1, &patches));
        let error = advanced.expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}\nexpected {expected}");
    };
    refused(
        "qwen",
        (3, 2),
        6 * 96,
        "3 x 2 patches is not whole blocks of 2 x 2",
    );
    refused("qwen", (0, 2), 0, "0 x 2 patches is not whole blocks");
    refused("qwen", (512, 130), 0, "the limit is 65536 patches");
    refused("qwen", (usize::MAX, 2), 0, "the limit is 65536 patches");
    refused(
        "qwen",
        (2, 2),
        95 * 4,
        "an image has 380 values, its patches have 384",
    );
    refused(
        "gemma3",
        (3, 3),
        9 * 48,
        "3 x 3 patches is not the 6 x 6 of this model",
    );
    refused("gemma4", (15, 3), 45 * 48, "the limit is 12 patches a side");
}
