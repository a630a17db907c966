//! A server whose scripted model reads images: the vocabulary of the checkpoint with tool tokens has those of images, too,
//! and its template writes them.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, image_reader};
use souffleur::server::ServerConfig;
use tempfile::TempDir;

use crate::mean_tower::see;
use crate::scripted::{self, Line};
use crate::world::{CONTEXT_TOKENS, World};

/// Their ids are below the size of the vocabulary, and no token of the checkpoint has them.
const MARKS: [(&str, u32); 3] = [
    ("<|vision_start|>", 713),
    ("<|image_pad|>", 714),
    ("<|vision_end|>", 715),
];
/// Writes the parts of a content.
const PARTS: &str = "{%- macro text_of(content) -%}{%- if content is string -%}{{- content -}}{%- else -%}\
    {%- for part in content -%}{%- if part.type == 'image' -%}\
    {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}{%- else -%}{{- part.text -}}{%- endif -%}{%- endfor -%}\
    {%- endif -%}{%- endmacro -%}";

pub struct SeeingWorld {
    pub world: World,
    /// Images that were encoded.
    pub encoded: Arc<AtomicUsize>,
    _folder: TempDir,
}

impl SeeingWorld {
    /// A server whose model replies with these lines.
    pub fn start(lines: &[Line<'_>]) -> Self {
        let folder = model();
        let config = EngineConfig {
            model_path: folder.path().to_owned(),
            served_model_name: Some("scripted".to_owned()),
            max_total_tokens: Some(CONTEXT_TOKENS + 1024),
            max_running_requests: Some(32),
            ..EngineConfig::default()
        };
        let world = World::without_engine(ServerConfig::default());
        let mut parts = scripted::parts(&config, lines);
        let text = parts.text.clone().expect("the model has a tokenizer");
        let reader = image_reader(folder.path(), &text, b"tower", &config);
        parts.images = Some(Arc::new(reader.unwrap_or_else(|error| panic!("{error}"))));
        let encoded = see(&mut parts);
        let engine = Engine::start_with(config, parts).unwrap_or_else(|error| panic!("{error}"));
        world.state.slot().fill(engine);
        Self {
            world,
            encoded,
            _folder: folder,
        }
    }

    /// A PNG file.
    pub fn picture() -> Vec<u8> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = file.join("tests/fixtures/images/containers.json");
        let file = read_json(&file)["same"]["png"].take();
        let decoded = STANDARD.decode(file.as_str().expect("a text"));
        decoded.expect("base64")
    }
}

fn model() -> TempDir {
    let source = scripted::checkpoint();
    let folder = TempDir::new().expect("a folder can be made");
    let to = folder.path();
    let copied = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer_config.json",
    ];
    for file in copied {
        fs::copy(source.join(file), to.join(file)).expect("the fixture is complete");
    }
    let mut tokenizer = read_json(&source.join("tokenizer.json"));
    let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
    for (mark, id) in MARKS {
        let mut token = added[0].clone();
        (token["id"], token["content"]) = (json!(id), json!(mark));
        added.push(token);
    }
    write(&to.join("tokenizer.json"), &tokenizer.to_string());
    let template = fs::read_to_string(source.join("chat_template.jinja"));
    let template = template.expect("the fixture is complete");
    let template = template
        .replace("messages[0].content", "text_of(messages[0].content)")
        .replace("message.content", "text_of(message.content)");
    write(
        &to.join("chat_template.jinja"),
        &format!("{PARTS}{template}"),
    );
    let halves = [0.5, 0.5, 0.5];
    let settings = json!({"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "image_mean": halves,
        "image_std": halves, "size": {"shortest_edge": 64, "longest_edge": 16384}});
    write(&to.join("preprocessor_config.json"), &settings.to_string());
    folder
}

fn read_json(file: &Path) -> Value {
    let text = fs::read_to_string(file).expect("the fixture is complete");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

fn write(file: &Path, text: &str) {
    fs::write(file, text).expect("the folder can be written");
}
