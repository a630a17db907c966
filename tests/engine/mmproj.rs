//! Tests of GGUF models with a separate file for the vision tower: answers about images equal those of the same weights
//! in a safetensors folder, the tower's file is found or named, wrong files are refused, and cache keys of images depend
//! on the tower's weights.

use std::fs;
use std::path::Path;

use serde_json::json;
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_engine::{EngineParts, Progress};
use souffleur_request::{ChatPrompt, GenerateRequest, ImageDigest, ImageFile};
use souffleur_state::sampling::LogprobWish;
use souffleur_state::scheduler::stats::EngineStats;

use crate::gguf_files::writer::{File, Value};
use crate::identity::start;
use crate::mmproj_models::{GEMMA4, Kind, LFM2, Model, PIXTRAL, QWEN, png, with};
use crate::requests::{Bits, bits};
use crate::world::{World, collect};

/// More tokens than a block of the KV store, with the picture before it.
const TEXT: &str =
    "There are many pictures in this book, and one of them is on this page. Describe it, please.";

fn config(model_path: &Path) -> EngineConfig {
    EngineConfig {
        model_path: model_path.to_owned(),
        dtype: DtypeChoice::Float32,
        max_total_tokens: Some(4096),
        max_running_requests: Some(4),
        context_length: Some(256),
        image_max_tokens: Some(70),
        threads: 1,
        ..EngineConfig::default()
    }
}

fn with_mmproj(model_path: &Path, mmproj: &Path) -> EngineConfig {
    EngineConfig {
        mmproj: Some(mmproj.to_owned()),
        ..config(model_path)
    }
}

/// A question about a picture.
fn chat(picture: u8) -> ChatPrompt {
    let content = json!([
        {"type": "text", "text": "Look at it: "},
        {"type": "image"},
        {"type": "text", "text": TEXT},
    ]);
    ChatPrompt {
        images: vec![ImageFile {
            bytes: png(picture).into(),
            field: "messages[0].content[1]".into(),
        }],
        ..ChatPrompt::new(json!([{"role": "user", "content": content}]))
    }
}

fn ask(picture: u8) -> GenerateRequest {
    let mut request = GenerateRequest::new(chat(picture).into());
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 8;
    sampling.ignore_eos = true;
    sampling.temperature = 0.0;
    request
}

/// The answers about two pictures.
async fn answers(config: EngineConfig) -> [Bits; 2] {
    let world = start(config);
    let (first, _) = bits(world.generate(ask(1))).await;
    let (second, _) = bits(world.generate(ask(2))).await;
    world.assert_no_leaks().await;
    world.stop().await;
    [first, second]
}

/// The largest difference of log probabilities; infinite if a token differs.
fn difference(one: &[(u32, u32)], other: &[(u32, u32)]) -> f32 {
    let ids = |bits: &[(u32, u32)]| -> Vec<u32> { bits.iter().map(|(id, _)| *id).collect() };
    if ids(one) != ids(other) {
        return f32::INFINITY;
    }
    let pairs = one.iter().zip(other);
    let differences = pairs.map(|(a, b)| (f32::from_bits(a.1) - f32::from_bits(b.1)).abs());
    differences.fold(0.0, f32::max)
}

#[tokio::test]
async fn a_model_of_two_files_answers_as_the_folder_of_the_same_weights() {
    // GGUF metadata has epsilons, means and deviations in f32, and some files have the elements of heads permuted for
    // RoPE, so that sums round differently.
    let kinds: [(&Kind, f32); 4] = [
        (&QWEN, 1e-3),
        (&PIXTRAL, 1e-3),
        (&GEMMA4, 1e-3),
        (&LFM2, 0.0),
    ];
    for (kind, bound) in kinds {
        let model = kind.make(1);
        let of_folder = match kind.files {
            Some(_) => config(&model.safetensors()),
            None => with_mmproj(&model.safetensors(), &model.mmproj()),
        };
        let expected = answers(of_folder).await;
        // The pictures matter by more than the bound.
        let distance = difference(&expected[0], &expected[1]);
        assert!(
            distance > 10.0 * bound.max(1e-4),
            "{}: {distance}",
            kind.text
        );
        let got = answers(config(&model.gguf())).await;
        for (got, expected) in got.iter().zip(&expected) {
            let distance = difference(got, expected);
            assert!(distance <= bound, "{}: {distance}", kind.text);
        }
    }
}

#[tokio::test]
async fn a_named_tower_is_the_one_that_is_found_next_to_the_model() {
    let model = LFM2.make(1);
    let found = answers(config(&model.gguf())).await;
    let elsewhere = model.folder.path().join("tower.gguf");
    fs::rename(model.mmproj(), &elsewhere).expect("writable");
    let named = answers(with_mmproj(&model.gguf(), &elsewhere)).await;
    assert_eq!(named, found);
    let other = model.folder.path().join("other.gguf");
    fs::write(&other, LFM2.mmproj_of(2).bytes()).expect("writable");
    let other = answers(with_mmproj(&model.gguf(), &other)).await;
    assert_ne!(other, found);
}

/// Whether an engine reads images.
fn sees(config: &EngineConfig) -> bool {
    let parts = EngineParts::from_model(config, Progress::silent());
    let parts = parts.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(parts.images.is_some(), parts.vision.is_some());
    parts.images.is_some()
}

#[test]
fn without_a_tower_that_fits_a_model_takes_text_only() {
    let model = LFM2.make(1);
    assert!(sees(&config(&model.gguf())));
    assert!(!sees(&EngineConfig {
        no_mmproj: true,
        ..config(&model.gguf())
    }));
    let put = |name: &str, file: &File| {
        let path = model.mmproj().with_file_name(name);
        fs::write(&path, file.bytes()).expect("writable");
        path
    };
    // Other models' towers and broken ones are left out.
    put(
        "mmproj-wide.gguf",
        &with(LFM2.mmproj_of(1), "projection_dim", Value::U32(32)),
    );
    put("mmproj-qwen.gguf", &QWEN.mmproj_of(1));
    fs::write(model.mmproj().with_file_name("mmproj-cut.gguf"), "GGUF").expect("writable");
    assert!(sees(&config(&model.gguf())));
    let second = put("mmproj-F16.gguf", &LFM2.mmproj_of(1));
    assert!(!sees(&config(&model.gguf())), "two fit");
    assert!(sees(&with_mmproj(&model.gguf(), &second)));
    fs::remove_file(&second).expect("written before");
    fs::remove_file(model.mmproj()).expect("written before");
    assert!(!sees(&config(&model.gguf())));
}

#[tokio::test]
async fn a_model_whose_tower_is_left_out_refuses_images_and_serves_text() {
    let model = LFM2.make(1);
    let world = start(EngineConfig {
        no_mmproj: true,
        ..config(&model.gguf())
    });
    let outcome = collect(world.generate(ask(1))).await;
    let refusal = format!("{:?}", outcome.end);
    assert!(outcome.tokens.is_empty(), "{refusal}");
    assert!(refusal.contains("takes text only"), "{refusal}");
    let mut text = GenerateRequest::new(ChatPrompt::of_user("Hello").into());
    text.sampling.max_new_tokens = 4;
    text.sampling.ignore_eos = true;
    assert_eq!(collect(world.generate(text)).await.tokens.len(), 4);
    world.stop().await;
}

#[track_caller]
fn refused(config: &EngineConfig, expected: &[&str]) {
    let error = EngineParts::from_model(config, Progress::silent()).err();
    let error = error.expect("the tower is refused").to_string();
    for part in expected {
        assert!(error.contains(part), "{error}\nexpected {part}");
    }
}

#[test]
fn a_named_file_that_is_not_the_models_tower_is_refused_by_name() {
    let model = QWEN.make(1);
    let place = model.folder.path().join("named.gguf");
    let put = |bytes: &[u8]| {
        fs::write(&place, bytes).expect("writable");
        with_mmproj(&model.gguf(), &place)
    };
    let own = || QWEN.mmproj_of(1);
    let absent = with_mmproj(&model.gguf(), &model.folder.path().join("none.gguf"));
    refused(&absent, &["none.gguf"]);
    refused(&put(b"GGUF"), &["named.gguf"]);
    refused(&put(b"not a model"), &["named.gguf"]);
    refused(
        &with_mmproj(&model.gguf(), &model.gguf()),
        &[
            "text.gguf",
            "general.architecture is \"qwen35\", expected \"clip\"",
        ],
    );
    refused(
        &put(&GEMMA4.mmproj_of(1).bytes()),
        &[
            "named.gguf",
            "is \"gemma4v\", but text models of the family qwen35 have \"qwen3vl_merger\"",
        ],
    );
    // The projector's tensor contradicts `projection_dim`, and is checked before the text model's width.
    let narrow = with(own(), "projection_dim", Value::U32(32));
    refused(
        &put(&narrow.bytes()),
        &["named.gguf", "mm.2.weight", "[32, 96]"],
    );
    let mut cut = own();
    cut.tensors
        .retain(|tensor| tensor.name != b"v.post_ln.bias");
    refused(&put(&cut.bytes()), &["tensor v.post_ln.bias is missing"]);
    let flat = with(own(), "image_std", Value::F32s(vec![0.5, 0.0, 0.5]));
    refused(
        &put(&flat.bytes()),
        &["clip.vision.image_std begins with [0.5, 0.0, 0.5], expected three numbers above 0"],
    );
    let bounds = with(own(), "image_max_pixels", Value::U32(100));
    refused(
        &put(&bounds.bytes()),
        &["clip.vision.image_min_pixels is 256, and has to be at most image_max_pixels, 100"],
    );
}

#[test]
fn a_tower_is_refused_for_models_without_mrope_or_image_tokens() {
    let tower = QWEN.make(1);
    let text = crate::images::folder("tests/fixtures/models/qwen3");
    refused(
        &with_mmproj(&text, &tower.mmproj()),
        &["the family qwen3 have no M-RoPE", "mmproj-F32.gguf"],
    );
    // The fixture's vocabulary lacks the tokens.
    let text = crate::images::folder("tests/fixtures/models/qwen3-5");
    refused(
        &with_mmproj(&text, &tower.mmproj()),
        &["cannot read images", "no added token <|image_pad|>"],
    );
    let narrow = crate::images::folder("tests/fixtures/models/llama");
    let pixtral = PIXTRAL.make(1);
    let config = with_mmproj(&narrow, &pixtral.mmproj());
    refused(&config, &["no added token [IMG]"]);
}

/// The digest of a picture under this configuration, from which its cache keys are made.
fn digest(config: &EngineConfig) -> ImageDigest {
    let parts = EngineParts::from_model(config, Progress::silent());
    let parts = parts.unwrap_or_else(|error| panic!("{error}"));
    let (text, reader) = (parts.text.as_ref(), parts.images.as_ref());
    let (text, reader) = text.zip(reader).expect("the model reads images");
    let read = reader.read(text, &chat(1), 250, &|| false);
    read.expect("the picture is read").prompt.images[0].digest
}

#[test]
fn the_keys_of_images_depend_on_the_weights_of_the_tower() {
    let model = LFM2.make(1);
    let own = digest(&config(&model.gguf()));
    let copy = model.folder.path().join("copy.gguf");
    fs::copy(model.mmproj(), &copy).expect("writable");
    assert_eq!(digest(&with_mmproj(&model.gguf(), &copy)), own);
    let mut file = LFM2.mmproj_of(1);
    let last = file.tensors.last_mut().expect("there are tensors");
    last.data[0] ^= 1;
    fs::write(&copy, file.bytes()).expect("writable");
    assert_ne!(digest(&with_mmproj(&model.gguf(), &copy)), own);
}

/// An engine with a KV store, which waits until the store is ready.
async fn stored(model: &Model, mmproj: &Path, folder: &Path) -> World {
    let world = start(EngineConfig {
        kv_disk_path: Some(folder.to_owned()),
        kv_disk_bytes: 1 << 28,
        kv_host_bytes: Some(1 << 24),
        page_size: 16,
        ..with_mmproj(&model.gguf(), mmproj)
    });
    let serves = |stats: &EngineStats| stats.store.is_some_and(|tier| tier.serves);
    world.until(serves).await;
    world
}

#[tokio::test]
async fn the_kv_store_keeps_the_images_of_two_towers_apart() {
    let model = PIXTRAL.make(1);
    let towers = [1_u8, 2].map(|seed| {
        let path = model.folder.path().join(format!("tower-{seed}.gguf"));
        fs::write(&path, PIXTRAL.mmproj_of(u64::from(seed)).bytes()).expect("writable");
        path
    });
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut answers = Vec::new();
    for tower in &towers {
        let world = stored(&model, tower, folder.path()).await;
        let (answer, cached) = bits(world.generate(ask(1))).await;
        assert_eq!(cached, 0);
        world.until(is_kept).await;
        world.stop().await;
        answers.push(answer);
    }
    assert_ne!(answers[0], answers[1]);
    for (tower, expected) in towers.iter().zip(&answers) {
        let world = stored(&model, tower, folder.path()).await;
        let (answer, cached) = bits(world.generate(ask(1))).await;
        assert_eq!((&answer, cached), (expected, 64));
        world.stop().await;
    }
}

/// Whether the prompt's only whole block is on the disk.
fn is_kept(stats: &EngineStats) -> bool {
    let tier = stats.store.expect("the engine has a store");
    tier.saved_blocks >= 1 && tier.queued_paths == 0 && tier.free_buffers == tier.buffers
}
