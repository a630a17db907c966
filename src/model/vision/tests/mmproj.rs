//! Towers in GGUF files, written from the fixtures as llama.cpp's converter does.

use super::*;
use crate::config::ModelConfig;
use crate::gguf_writer::{File, Tensor, Value};

#[path = "../../../../tests/common/mmproj.rs"]
mod converter;
pub(super) use converter::header;

fn file(name: &str) -> File {
    let bytes = fs::read(fixture(name).join("model.safetensors")).expect("committed");
    let tensors = SafeTensors::deserialize(&bytes).expect("valid");
    let mut names = tensors.names();
    names.sort_unstable();
    let tensors = names.into_iter().map(|name| {
        let shape = tensors.tensor(name).expect("named").shape().to_vec();
        (name.to_owned(), shape, values(&tensors, name))
    });
    converter::of_tensors(name, &checkpoint(name).config, tensors)
}

pub(super) fn open(file: &File) -> Result<TowerCheckpoint, LoadError> {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("mmproj.gguf");
    fs::write(&path, file.bytes()).expect("writable");
    TowerCheckpoint::open_mmproj(&path)
}

#[test]
fn towers_from_gguf_files_have_the_bits_of_those_from_safetensors() {
    for name in TOWERS {
        let folder = checkpoint(name);
        let mut gguf = open(&file(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        // The text model's epsilon is not in the file; published models have the tower's.
        if folder.config.family == TowerFamily::Pixtral {
            assert_eq!(gguf.config.projector_eps, gguf.config.eps);
            gguf.config.projector_eps = folder.config.projector_eps;
        }
        assert_eq!(gguf.config, folder.config, "{name}");
        let mut backend = plain_backend();
        let towers = [&folder, &gguf].map(|checkpoint| {
            Tower::load(checkpoint, &mut backend).expect("every tensor is checked")
        });
        for image in images(name) {
            let [one, other] = towers
                .each_ref()
                .map(|tower| encode(tower, &mut backend, &image, image.grid));
            assert!(one == other, "{name}, {:?}", image.grid);
            assert!(difference(&one, &image.vectors) < BOUND, "{name}");
        }
    }
}

#[test]
fn the_projector_of_pixtral_12b_neither_normalises_nor_joins() {
    let mut file = file("pixtral");
    let left_out: [&[u8]; 2] = [b"mm.input_norm.weight", b"mm.patch_merger.weight"];
    let n_tensors = file.tensors.len();
    file.tensors
        .retain(|tensor| !left_out.contains(&tensor.name.as_slice()));
    assert_eq!(file.tensors.len(), n_tensors - left_out.len());
    let config = open(&file).expect("supported").config;
    assert_eq!((config.merge, config.projector_norm), (1, false));
}

/// The text model of a fixture, with the width of the fixtures' towers.
fn text_model(name: &str) -> ModelConfig {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    ModelConfig {
        hidden_size: 20,
        ..ModelConfig::read(&models.join(name)).expect("fixtures are supported")
    }
}

#[test]
fn a_tower_next_to_a_model_is_used_if_it_is_the_only_one_that_fits() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let model = dir.path().join("m.gguf");
    let find = |hidden_size: usize| {
        let text = ModelConfig {
            hidden_size,
            ..text_model("qwen3-5")
        };
        tower_next_to(&model, &text)
    };
    let put = |name: &str, file: &File| {
        let path = dir.path().join(name);
        fs::write(&path, file.bytes()).expect("writable");
        path
    };
    put("m.gguf", &File::default());
    assert_eq!(find(20).expect("readable"), None);
    let own = put("mmproj-m.gguf", &file("qwen"));
    // A broken file, two of other kinds, and one of another width.
    fs::write(dir.path().join("mmproj-broken.gguf"), "GG").expect("writable");
    put(
        "mmproj-other.gguf",
        &with("qwen", "clip.projector_type", Value::Text("ldp".to_owned())),
    );
    put("mmproj-stranger.gguf", &file("lfm2"));
    put(
        "mmproj-wide.gguf",
        &with("qwen", "clip.vision.projection_dim", Value::U32(32)),
    );
    assert_eq!(find(20).expect("readable"), Some(own));
    assert_eq!(find(64).expect("readable"), None);
    put("mmproj-second.gguf", &file("qwen"));
    let error = find(20).expect_err("two fit").to_string();
    assert!(error.contains("2 vision towers of width 20"), "{error}");
    assert!(
        error.contains("mmproj-m.gguf, mmproj-second.gguf"),
        "{error}"
    );
    assert!(error.contains("--mmproj"), "{error}");
}

#[test]
fn towers_of_other_families_and_widths_do_not_fit() {
    const OF_TOWERS: [(&str, &[&str]); 6] = [
        ("qwen", &["qwen3-5", "qwen3-5-moe"]),
        ("qwen3-vl", &["qwen3-vl"]),
        ("gemma3", &["gemma3"]),
        ("gemma4", &["gemma4", "gemma4-plain"]),
        ("pixtral", &["llama", "ministral3"]),
        ("lfm2", &["lfm2", "lfm2-moe"]),
    ];
    let source = Path::new("mmproj.gguf");
    let check = |tower: &str, text: &str| {
        let config = checkpoint(tower).config;
        let checked = config.check_fits(source, &text_model(text));
        checked.map_err(|error| error.to_string())
    };
    for (tower, texts) in OF_TOWERS {
        for (other, others) in OF_TOWERS {
            for text in others {
                let checked = check(tower, text);
                assert_eq!(
                    checked.is_ok(),
                    tower == other,
                    "{tower}, {text}: {checked:?}"
                );
            }
        }
        assert!(check(tower, "qwen3").is_err(), "{tower}: {texts:?}");
    }
    let error = |tower: &str, text: &str| check(tower, text).expect_err("it is another model's");
    assert_eq!(
        error("gemma3", "qwen3-5"),
        "mmproj.gguf: clip.projector_type is \"gemma3\", but text models of the family qwen35 have \"qwen3vl_merger\": \
         use the mmproj file of this model",
    );
    let without_grid = error("qwen", "qwen3");
    assert!(
        without_grid.contains("text models of the family qwen3 have no M-RoPE"),
        "{without_grid}"
    );
    let without_tower = error("lfm2", "qwen3");
    assert!(
        without_tower.contains("text models of the family qwen3 have no vision tower"),
        "{without_tower}"
    );
    let narrow = ModelConfig {
        hidden_size: 32,
        ..text_model("qwen3-5")
    };
    let error = checkpoint("qwen").config.check_fits(source, &narrow);
    let error = error.expect_err("the widths differ").to_string();
    assert!(
        error.contains("vectors of width 20, the text model's embeddings have width 32"),
        "{error}"
    );
}

/// The settings of a file with these keys.
fn image_keys(pairs: Vec<(&str, Value)>) -> Result<ImageKeys, String> {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("mmproj.gguf");
    let add =
        |file: File, (key, value): (&str, Value)| file.pair(&format!("clip.vision.{key}"), value);
    let file = pairs.into_iter().fold(File::default(), add);
    fs::write(&path, file.bytes()).expect("writable");
    ImageKeys::open(&path).map_err(|error| error.to_string())
}

#[test]
fn settings_of_images_are_read() {
    assert_eq!(image_keys(Vec::new()), Ok(ImageKeys::default()));
    let all = image_keys(vec![
        ("image_size", Value::U32(896)),
        ("image_mean", Value::F32s(vec![0.5, 0.25, 0.0])),
        ("image_std", Value::F32s(vec![0.5, 0.25, 1.0])),
        ("image_min_pixels", Value::U32(1024)),
        ("image_max_pixels", Value::I32(4096)),
        ("image_resize_algo", Value::Text("bicubic".to_owned())),
    ]);
    let expected = ImageKeys {
        image_size: Some(896),
        mean: Some([0.5, 0.25, 0.0]),
        std: Some([0.5, 0.25, 1.0]),
        min_pixels: Some(1024),
        max_pixels: Some(4096),
        filter: Some(3),
    };
    assert_eq!(all, Ok(expected));
}

#[test]
fn settings_of_images_out_of_bounds_are_refused_by_name() {
    let refused = |key: &str, value: Value, expected: &str| {
        let error = image_keys(vec![(key, value)]).expect_err(expected);
        assert!(error.contains(&format!("clip.vision.{key} ")), "{error}");
        assert!(error.contains(expected), "{error}\nexpected {expected}");
    };
    let floats = |values: &[f32]| Value::F32s(values.to_vec());
    for (value, expected) in [
        (Value::U32(0), "is 0, expected a whole number from 1 to"),
        (Value::F32(1.0), "is 1, expected a whole number"),
    ] {
        refused("image_size", value, expected);
    }
    refused(
        "image_min_pixels",
        Value::I32(-1),
        "is -1, expected a whole number",
    );
    refused(
        "image_max_pixels",
        Value::U64(u64::MAX),
        "expected a whole number from 1 to 67108864",
    );
    for (value, expected) in [
        (floats(&[0.5; 2]), "has 2 numbers, expected three"),
        (
            floats(&[0.0, f32::NAN, 0.0]),
            "expected three finite numbers",
        ),
        (Value::F32(0.5), "expected a list of floats"),
    ] {
        refused("image_mean", value, expected);
    }
    refused(
        "image_std",
        floats(&[0.5, 0.0, 0.5]),
        "expected three numbers above 0",
    );
    refused("image_std", floats(&[1.0; 100_000]), "has 100000 numbers");
    let unknown = Value::Text("nearest".to_owned());
    refused(
        "image_resize_algo",
        unknown,
        "is \"nearest\", supported: lanczos, bilinear",
    );
    let error = ImageKeys::open(Path::new("none/mmproj.gguf")).expect_err("there is no file");
    assert!(error.to_string().contains("none/mmproj.gguf"), "{error}");
}

#[test]
fn towers_in_half_precision_are_read() {
    for name in ["gemma3", "pixtral"] {
        let mut file = file(name);
        for tensor in file
            .tensors
            .iter_mut()
            .filter(|tensor| tensor.sizes.len() > 1)
        {
            let words = tensor.data.chunks_exact(4);
            let words = words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            let halves = words.flat_map(|x| half::f16::from_f32(x).to_le_bytes());
            (tensor.data, tensor.type_id) = (halves.collect(), 1);
        }
        let mut gguf = open(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(gguf.dtype, Dtype::F16);
        gguf.config.projector_eps = checkpoint(name).config.projector_eps;
        let mut backend = plain_backend();
        let tower = Tower::load(&gguf, &mut backend).expect("every tensor is checked");
        for image in images(name) {
            let vectors = encode(&tower, &mut backend, &image, image.grid);
            assert!(difference(&vectors, &image.vectors) < 0.01, "{name}");
        }
    }
}

#[track_caller]
fn refused(file: &File, expected: &str) {
    let error = open(file).err().expect(expected).to_string();
    assert!(error.contains(expected), "{error}\nexpected {expected}");
}

/// The file with another value of a key.
fn with(name: &str, key: &str, value: Value) -> File {
    let mut file = file(name);
    file.pairs.retain(|(known, _)| known != key.as_bytes());
    file.pair(key, value)
}

#[test]
fn files_of_other_models_and_broken_files_are_refused_by_name() {
    let text = |text: &str| Value::Text(text.to_owned());
    let decoder = with("qwen", "general.architecture", text("llama"));
    refused(
        &decoder,
        "is \"llama\", expected \"clip\": this file has no vision tower",
    );
    let other = with("qwen", "clip.projector_type", text("ldp"));
    refused(
        &other,
        "clip.projector_type is \"ldp\", supported: qwen3vl_merger, gemma3",
    );
    let deepstack = with(
        "qwen",
        "clip.vision.is_deepstack_layers",
        Value::I32s(vec![0, 1]),
    );
    refused(
        &deepstack,
        "tensor v.deepstack.1.norm.weight is missing, expected shape [96]",
    );
    let beyond = with(
        "qwen",
        "clip.vision.is_deepstack_layers",
        Value::I32s(vec![0, 0, 1]),
    );
    refused(
        &beyond,
        "clip.vision.is_deepstack_layers names layer 2, expected layers below 2",
    );
    let heads = with("qwen", "clip.vision.attention.head_count", Value::U32(5));
    refused(
        &heads,
        "clip.vision.attention.head_count is 5, which does not divide 24",
    );
    let layers = with("lfm2", "clip.vision.block_count", Value::U32(3));
    refused(&layers, "tensor v.blk.2.ln1.weight is missing");
    let width = with("gemma3", "clip.vision.projection_dim", Value::U32(24));
    refused(
        &width,
        "tensor mm.input_projection.weight has shape [24, 20]",
    );
    let mut cut = file("pixtral");
    cut.tensors
        .retain(|tensor| tensor.name != b"mm.patch_merger.weight");
    refused(
        &cut,
        "tensor mm.patch_merger.weight is missing, expected shape [24, 96]",
    );
    let size = with("gemma3", "clip.vision.image_size", Value::U32(20));
    refused(
        &size,
        "clip.vision.image_size makes 5 patches a side, expected a multiple of 3",
    );
}
