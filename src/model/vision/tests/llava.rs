//! Pixtral-12B: Pixtral's tower with LLaVA's projector. The fixture's tensors are those of Mistral 3, of which this
//! projector leaves out two.

use serde_json::{Value, json};

use super::errors::{changed, refused};
use super::*;

/// Changes the fixture's configuration, and then one more key.
fn llava((key, value): (&str, Value)) -> tempfile::TempDir {
    changed("pixtral", |config| {
        config["model_type"] = json!("llava");
        config["spatial_merge_size"] = Value::Null;
        config["vision_feature_layer"] = json!(-1);
        config["vision_feature_select_strategy"] = json!("full");
        config["multimodal_projector_bias"] = json!(false);
        config[key] = value.clone();
    })
}

#[test]
fn each_patch_of_pixtral_12b_has_a_vector() {
    // The first and the last values, computed with transformers 5.23.
    let expected: [(TowerGrid, [f32; 3], [f32; 3]); 3] = [
        (
            TowerGrid { h: 2, w: 2 },
            [-0.154071, -1.459766, -1.030541],
            [-0.075911, 0.362811, 0.521332],
        ),
        (
            TowerGrid { h: 4, w: 6 },
            [-0.334013, -1.153846, 0.255164],
            [-1.701312, -1.455203, 3.4206],
        ),
        (
            TowerGrid { h: 6, w: 2 },
            [-1.204064, 2.460337, 1.447778],
            [2.380102, 1.942752, 3.015566],
        ),
    ];
    let dir = llava(("image_token_index", json!(10)));
    let opened = TowerCheckpoint::open_folder(dir.path());
    let checkpoint = opened.expect("supported").expect("there is a tower");
    let mut backend = plain_backend();
    let tower = Tower::load(&checkpoint, &mut backend).expect("complete");
    for (grid, first, last) in expected {
        let images = images("pixtral");
        let image = images.iter().find(|image| image.grid == grid);
        let image = image.expect("the fixture has this image");
        let vectors = encode(&tower, &mut backend, image, grid);
        assert_eq!(vectors.len(), grid.n_patches() * 20);
        let ends = [&vectors[..3], &vectors[vectors.len() - 3..]].concat();
        for (ours, theirs) in ends.iter().zip([first, last].concat()) {
            assert!((ours - theirs).abs() < 1e-4, "{grid:?}: {ours}, {theirs}");
        }
    }
}

#[test]
fn only_pixtral_is_supported_of_llava() {
    for (key, value, expected) in [
        (
            "vision_feature_select_strategy",
            json!("default"),
            "vision_feature_select_strategy must be \"full\"",
        ),
        (
            "vision_feature_layer",
            Value::Null,
            "vision_feature_layer is missing, expected -1",
        ),
        (
            "vision_feature_layer",
            json!(-2),
            "vision_feature_layer is -2, expected -1",
        ),
        (
            "vision_config",
            json!({"hidden_size": 24}),
            "vision_config.model_type is \"clip_vision_model\", supported: \"pixtral\"",
        ),
        (
            "multimodal_projector_bias",
            Value::Null,
            "tensor multi_modal_projector.linear_1.bias is missing, expected shape [20]",
        ),
    ] {
        let dir = llava((key, value));
        refused(TowerCheckpoint::open_folder(dir.path()), expected);
    }
}
