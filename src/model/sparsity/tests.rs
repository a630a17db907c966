//! Tests of channel files, valid and invalid, and of models that cannot be sparse.

use super::*;
use serde_json::{Value, json};
use souffleur_base::kv_layout::{LayerKv, StateHeads};

const DIM: usize = 8;

fn wish(file: PathBuf) -> SparsityWish {
    SparsityWish {
        file,
        ranked_by: ChannelType::Qk,
        channels: Some(3),
        tokens: 4,
        threshold: 16,
    }
}

fn pages(values: Values) -> LayerKv {
    LayerKv::Pages(PagedKv {
        heads: 2,
        key_dim: DIM,
        values,
        labels: 0,
        dtype: KvDtype::BF16,
    })
}

/// With [`WINDOWS`]: two layers with full attention, one with a window, one with a state.
fn layout() -> KvLayout {
    let full = pages(Values::Own { dim: DIM });
    KvLayout::new(vec![
        full,
        full,
        full,
        LayerKv::State {
            bytes: 64,
            heads: StateHeads::default(),
        },
    ])
}

const WINDOWS: [Option<usize>; 4] = [None, Some(9), None, None];

fn read_as(
    json: &Value,
    wish: impl Fn(PathBuf) -> SparsityWish,
) -> Result<ModelSparsity, LoadError> {
    read_text(&json.to_string(), wish)
}

fn read_text(
    text: &str,
    wish: impl Fn(PathBuf) -> SparsityWish,
) -> Result<ModelSparsity, LoadError> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), text).expect("it is written");
    let layout = layout();
    wish(file.path().to_owned()).read(LayersToLabel {
        layout: &layout,
        windows: &WINDOWS,
        n_heads: 4,
    })
}

fn valid_file() -> Value {
    json!({
        "model.layers.0.self_attn.qk_proj": [[7, 1, 2, 0], [3, 6, 5]],
        "model.layers.0.self_attn.k_proj": [[0, 1, 2], [0, 1, 2]],
        // A row for each query head.
        "model.layers.2.self_attn.qk_proj": [[0, 1, 2, 3], [3, 1, 2, 4], [5, 6, 7], [7, 6, 5]],
    })
}

#[test]
fn the_most_important_channels_are_read_in_ascending_order() {
    let read = read_as(&valid_file(), wish).expect("valid");
    let channels = |layer: usize| {
        let labels = read.rules.layers[layer].as_ref().expect("it has labels");
        (0..2)
            .map(|head| labels.head(head).to_vec())
            .collect::<Vec<_>>()
    };
    assert_eq!(channels(0), [[1, 2, 7], [3, 5, 6]]);
    // Sums of ranks in the first two rows: 2 for channel 1, 3 for channel 3, 4 for channels 0 and 2.
    assert_eq!(channels(2), [[0, 1, 3], [5, 6, 7]]);
    assert_eq!(read.rules.layers[1], None, "it has a window");
    assert_eq!(read.rules.layers[3], None, "it has a state");
    let labelled = read.label(layout());
    let widths: Vec<u64> = labelled
        .layers()
        .iter()
        .map(LayerKv::bytes_per_token)
        .collect();
    assert_eq!(widths, [2 * (16 + 3) * 2, 2 * 16 * 2, 2 * (16 + 3) * 2, 0]);
    let by_k = read_as(
        &json!({
            "model.layers.0.self_attn.k_proj": [[0, 1, 2], [0, 1, 2]],
            "model.layers.2.self_attn.k_proj": [[0, 1, 2], [0, 1, 2]],
        }),
        |file| SparsityWish {
            ranked_by: ChannelType::K,
            ..wish(file)
        },
    );
    assert!(by_k.is_ok());
}

/// A file with the same ranks by both criteria.
const BOTH: &str = r#"{"model.layers.0.self_attn.qk_proj":[[0,1,2],[0,1,2]],"model.layers.0.self_attn.k_proj":[[0,1,2],[0,1,2]],"model.layers.2.self_attn.qk_proj":[[0,1,2],[0,1,2]],"model.layers.2.self_attn.k_proj":[[0,1,2],[0,1,2]]}"#;

#[test]
fn tags_differ_by_parameters_and_file() {
    let tag = |text: &str, edit: fn(&mut SparsityWish)| {
        let read = read_text(text, |file| {
            let mut wish = wish(file);
            edit(&mut wish);
            wish
        });
        let read = read.expect("valid");
        assert_eq!(read.stable_bytes(), read.tag.as_bytes());
        read.tag.to_string()
    };
    let tags = [
        tag(BOTH, |_| ()),
        tag(&BOTH.replace("0,1,2", "2,1,0"), |_| ()),
        tag(BOTH, |wish| wish.ranked_by = ChannelType::K),
        tag(BOTH, |wish| wish.channels = Some(2)),
        tag(BOTH, |wish| wish.tokens = 5),
        tag(BOTH, |wish| wish.threshold = 17),
    ];
    assert_eq!(tags[0], tag(BOTH, |_| ()));
    for (at, tag) in tags.iter().enumerate() {
        let others = tags.iter().enumerate().filter(|(other, _)| *other != at);
        let begins = others.filter(|(_, other)| other.starts_with(tag.as_str()));
        assert_eq!(begins.count(), 0, "{tag}");
    }
}

/// The tag must never change: it is part of the keys of blocks that older versions stored.
#[test]
fn the_tag_is_stable_across_versions() {
    let read = read_text(BOTH, wish).expect("valid");
    let expected = "ds-qk-3-4-16-3d8a78521ed72ac700c978b231f0a1638d3c651cc80a21e1628d4393d84ddc36";
    assert_eq!(&*read.tag, expected);
}

#[test]
fn invalid_files_are_refused_with_the_reason() {
    let first = "model.layers.0.self_attn.qk_proj";
    let with = |value: Value| {
        let mut json = valid_file();
        json[first] = value;
        json
    };
    let table = [
        (
            json!({}),
            format!("{first} is missing: make the file with `souffleur calibrate`"),
        ),
        (json!([1]), "expected a JSON object".to_owned()),
        (with(json!(null)), format!("{first} is missing")),
        (with(json!("x")), "is not a list".to_owned()),
        (
            with(json!([[1, 2, 3]])),
            "has 1 rows, expected 2 (one for each key head) or 4".to_owned(),
        ),
        (
            with(json!([[1, 2, 3], 7])),
            format!("{first}, row 1: is not a list of channels"),
        ),
        (
            with(json!([[1, 2, 3], [1, 2]])),
            "row 1: has 2 channels, expected at least 3".to_owned(),
        ),
        (
            with(json!([[1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7, 0]])),
            "has 9 channels".to_owned(),
        ),
        (
            with(json!([[1, 2, 8], [1, 2, 3]])),
            "row 0: 8 is not a channel, expected a whole number from 0 to 7".to_owned(),
        ),
        (
            with(json!([[1, 2, -1], [1, 2, 3]])),
            "-1 is not a channel".to_owned(),
        ),
        (
            with(json!([[1, 2, 3.5], [1, 2, 3]])),
            "3.5 is not a channel".to_owned(),
        ),
        (
            with(json!([[1, 2, "3"], [1, 2, 3]])),
            "\"3\" is not a channel".to_owned(),
        ),
        (
            with(json!([[1, 2, 1], [1, 2, 3]])),
            "row 0: channel 1 occurs twice".to_owned(),
        ),
    ];
    for (json, expected) in table {
        let error = read_as(&json, wish).expect_err("must fail").to_string();
        assert!(error.contains(&expected), "{error}: expected {expected}");
    }
    let missing = wish(PathBuf::from("/no/such/channels.json"));
    let layout = layout();
    let layers = LayersToLabel {
        layout: &layout,
        windows: &WINDOWS,
        n_heads: 4,
    };
    let error = missing
        .read(layers)
        .expect_err("there is no file")
        .to_string();
    assert!(error.contains("/no/such/channels.json"), "{error}");
}

#[test]
fn models_that_cannot_be_sparse_are_refused_by_name() {
    let refused = |layout: KvLayout, windows: &[Option<usize>], channels: usize| {
        let layers = LayersToLabel {
            layout: &layout,
            windows,
            n_heads: 4,
        };
        layers
            .labels(Some(channels))
            .expect_err("must fail")
            .to_string()
    };
    let latent = KvLayout::uniform(
        2,
        PagedKv {
            heads: 1,
            key_dim: DIM,
            values: Values::InKeys { dim: 4 },
            labels: 0,
            dtype: KvDtype::BF16,
        },
    );
    let error = refused(latent, &[None; 2], 3);
    assert!(
        error.contains("enable_double_sparsity is on, but layer 0 uses latent attention"),
        "{error}"
    );
    let error = refused(layout(), &[Some(5); 4], 3);
    assert!(
        error.contains("every layer of this model has a window or a recurrent state"),
        "{error}"
    );
    let error = refused(layout(), &WINDOWS, 9);
    assert!(
        error.contains("ds_heavy_channel_num is 9, but keys of layer 0 have only 8 channels"),
        "{error}"
    );
}

#[test]
fn written_channels_are_read_back() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let ranks = |layer| {
        let of_head = |shift: usize| -> Vec<f64> {
            (0..DIM)
                .map(|channel| ((channel + shift) % DIM) as f64)
                .collect()
        };
        let heads = vec![of_head(0), of_head(3)];
        ChannelRanks {
            layer,
            importance: [heads.clone(), heads.clone(), heads],
        }
    };
    write(file.path(), &[ranks(0), ranks(2)]).expect("it is written");
    let layout = layout();
    let layers = LayersToLabel {
        layout: &layout,
        windows: &WINDOWS,
        n_heads: 4,
    };
    for ranked_by in ChannelType::ALL {
        let wish = SparsityWish {
            ranked_by,
            ..wish(file.path().to_owned())
        };
        let read = wish.read(layers).expect("valid");
        let labels = read.rules.layers[2].as_ref().expect("it has labels");
        assert_eq!(
            (labels.head(0), labels.head(1)),
            (&[5, 6, 7][..], &[2, 3, 4][..])
        );
    }
}

#[test]
fn default_labels_have_a_quarter_of_a_key_but_at_least_32_channels_if_it_has_them() {
    let expected = [
        (8, 8),
        (32, 32),
        (64, 32),
        (128, 32),
        (192, 48),
        (256, 64),
        (512, 128),
    ];
    for (key_dim, channels) in expected {
        assert_eq!(default_channels(key_dim), channels, "{key_dim}");
    }
    let layout = layout();
    let layers = LayersToLabel {
        layout: &layout,
        windows: &WINDOWS,
        n_heads: 4,
    };
    let labels = layers.labels(None).expect("it can be sparse");
    let given = layers.labels(Some(DIM)).expect("it can be sparse");
    assert_eq!(labels, given);
    assert_eq!(sizes_text(&[0, 32, 32, 0, 32]), "32");
    assert_eq!(sizes_text(&[0, 32, 64, 0]), "32+64");
}
