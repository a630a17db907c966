//! Tiny random models that read images: folders, and GGUF files whose towers are files of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::{Value as Json, json};
use souffleur_model::vision::{TowerCheckpoint, TowerConfig, TowerFamily};
use tempfile::TempDir;

use crate::gguf_files::writer::{File, Tensor, Value};
use crate::gguf_files::{of_folder, widened};
use crate::random_models::{Stored, write_tensors};

#[path = "../common/mmproj.rs"]
mod converter;

/// Width of the fixtures' text models, and of the vectors of the fixtures' towers.
const HIDDEN: usize = 64;
const OF_TOWERS: usize = 20;
/// Positions of an axis in Gemma 4's tower: those of the fixture are fewer than a picture has patches.
const POSITIONS: usize = 64;
/// Letters of bytes that never occur in UTF-8, whose tokens the marks of images replace.
const FREE_LETTERS: [&str; 3] = ["õ", "ö", "÷"];

/// A family of models.
pub struct Kind {
    /// Fixtures of the text model and of the tower.
    pub text: &'static str,
    pub tower: &'static str,
    /// The tokens of images.
    pub marks: [&'static str; 3],
    /// The template's text for an image.
    pub image: &'static str,
    /// Keys of the image processor, under `clip.vision`.
    pub sizes: &'static [(&'static str, u32)],
    /// The files of the image processor, and of the processor around it; `None` if no class of the family in Hugging
    /// Face layout has a tower here.
    pub files: Option<[&'static str; 2]>,
}

const HALVES: &str = r#""image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]"#;

pub const QWEN: Kind = Kind {
    text: "qwen3-5",
    tower: "qwen",
    marks: ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"],
    image: "<|vision_start|><|image_pad|><|vision_end|>",
    sizes: &[("image_min_pixels", 256), ("image_max_pixels", 4096)],
    files: Some([
        r#""image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2,
        "temporal_patch_size": 2, "size": {"shortest_edge": 256, "longest_edge": 4096}"#,
        "{}",
    ]),
};

pub const PIXTRAL: Kind = Kind {
    text: "mistral3",
    tower: "pixtral",
    marks: ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
    image: "[IMG]",
    sizes: &[("image_size", 64)],
    files: Some([
        r#""image_processor_type": "PixtralImageProcessor", "patch_size": 4, "size": {"longest_edge": 64}"#,
        r#"{"patch_size": 4, "spatial_merge_size": 2}"#,
    ]),
};

pub const GEMMA4: Kind = Kind {
    text: "gemma4",
    tower: "gemma4",
    marks: ["<|image|>", "<|image>", "<image|>"],
    image: "<|image|>",
    // Seventy tokens.
    sizes: &[("image_max_pixels", 10_080)],
    files: None,
};

pub const LFM2: Kind = Kind {
    text: "lfm2",
    tower: "lfm2",
    marks: ["<image>", "<|image_start|>", "<|image_end|>"],
    image: "<image>",
    sizes: &[("image_min_pixels", 256), ("image_max_pixels", 4096)],
    files: None,
};

/// The files of a model.
pub struct Model {
    pub folder: TempDir,
}

impl Model {
    /// In Hugging Face layout, with the tower if the family has such a class.
    pub fn safetensors(&self) -> PathBuf {
        self.folder.path().join("safetensors")
    }

    /// The text model.
    pub fn gguf(&self) -> PathBuf {
        self.folder.path().join("gguf/text.gguf")
    }

    /// The tower, next to the text model.
    pub fn mmproj(&self) -> PathBuf {
        self.folder.path().join("gguf/mmproj-F32.gguf")
    }
}

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn fixture(path: &str) -> PathBuf {
    crate::repository::repository()
        .join("tests/fixtures")
        .join(path)
}

fn read_json(path: &Path) -> Json {
    let text = fs::read(path).expect("fixtures are committed");
    serde_json::from_slice(&text).expect("JSON")
}

fn write_json(path: &Path, value: &Json) {
    fs::write(path, value.to_string()).expect("writable");
}

impl Kind {
    pub fn template(&self) -> String {
        let text = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
            {% for p in m.content %}{% if p.type == 'image' %}IMAGE{% else %}{{ p.text }}{% endif %}{% endfor %}\
            {% endif %}{% endfor %}";
        text.replace("IMAGE", self.image)
    }

    /// The configuration of the text model, with values that GGUF files have too.
    fn text_config(&self) -> Json {
        let mut config = read_json(&fixture("models").join(self.text).join("config.json"));
        let is_nested = config.get("text_config").is_some();
        let text = if is_nested {
            &mut config["text_config"]
        } else {
            &mut config
        };
        match self.text {
            "gemma4" => text["query_pre_attn_scalar"] = text["head_dim"].clone(),
            _ => text["sliding_window"] = Json::Null,
        }
        if self.text == "qwen3-5" {
            text["attention_bias"] = json!(false);
            text["mlp_bias"] = json!(false);
        }
        config
    }

    /// The fixture's tower, with vectors of the text model's width.
    fn tower_config(&self) -> Json {
        let mut config = read_json(&fixture("towers").join(self.tower).join("config.json"));
        let text = self.text_config();
        let text = text.get("text_config").unwrap_or(&text);
        config["text_config"] = text.clone();
        let vision = &mut config["vision_config"];
        match self.tower {
            "qwen" => vision["out_hidden_size"] = json!(HIDDEN),
            "gemma4" => vision["position_embedding_size"] = json!(POSITIONS),
            _ => {}
        }
        config
    }

    /// The fixture's tensors; those whose shapes change are random.
    fn tower_tensors(&self, seed: u64) -> Tensors {
        let path = fixture("towers").join(self.tower).join("model.safetensors");
        let bytes = fs::read(path).expect("fixtures are committed");
        let tensors = SafeTensors::deserialize(&bytes).expect("valid");
        let mut names = tensors.names();
        names.sort_unstable();
        let mut rng = fastrand::Rng::with_seed(seed);
        let changed = names.into_iter().map(|name| {
            let view = tensors.tensor(name).expect("named");
            let is_table = name.ends_with("position_embedding_table");
            let size = |(axis, size): (usize, &usize)| match *size {
                OF_TOWERS => HIDDEN,
                _ if is_table && axis == 1 => POSITIONS,
                size => size,
            };
            let shape: Vec<usize> = view.shape().iter().enumerate().map(size).collect();
            let values = if shape == view.shape() {
                widened(view.dtype(), view.data())
            } else {
                let deviation = (shape[shape.len() - 1] as f32).sqrt().recip();
                let values = (0..shape.iter().product::<usize>())
                    .map(|_| deviation * (2.0 * rng.f32() - 1.0));
                values.collect()
            };
            (name.to_owned(), (shape, values))
        });
        changed.collect()
    }

    fn tokenizer(&self) -> Json {
        let mut tokenizer = read_json(&fixture("models").join(self.text).join("tokenizer.json"));
        for (letter, mark) in FREE_LETTERS.into_iter().zip(self.marks) {
            let vocabulary = tokenizer["model"]["vocab"].as_object_mut();
            let vocabulary = vocabulary.expect("an object");
            let id = vocabulary
                .shift_remove(letter)
                .expect("the byte has a token");
            vocabulary.insert(mark.to_owned(), id.clone());
            let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
            let mut token = added[0].clone();
            (token["id"], token["content"]) = (id, mark.into());
            added.push(token);
        }
        tokenizer
    }

    /// The model's files, with a tower of this seed.
    pub fn make(&self, seed: u64) -> Model {
        let folder = tempfile::tempdir().expect("temporary folder");
        let model = Model { folder };
        let dir = model.safetensors();
        fs::create_dir_all(&dir).expect("writable");
        let config = self.text_config();
        write_json(&dir.join("config.json"), &config);
        let source = fixture("models").join(self.text);
        for name in ["model.safetensors", "generation_config.json"] {
            fs::copy(source.join(name), dir.join(name)).expect("the fixture is complete");
        }
        let tokenizer = self.tokenizer();
        write_json(&dir.join("tokenizer.json"), &tokenizer);
        let mut settings = read_json(&source.join("tokenizer_config.json"));
        settings["chat_template"] = self.template().into();
        write_json(&dir.join("tokenizer_config.json"), &settings);
        fs::create_dir(folder_of(&model.gguf())).expect("writable");
        let text = with_vocabulary(of_folder(&dir), &tokenizer, &self.template());
        fs::write(model.gguf(), text.bytes()).expect("writable");
        let tower = self.tower_tensors(seed);
        fs::write(model.mmproj(), self.mmproj(&tower).bytes()).expect("writable");
        if self.files.is_some() {
            self.add_tower(&dir, config, &tower);
        }
        model
    }

    /// The tower of this seed as a file.
    pub fn mmproj_of(&self, seed: u64) -> File {
        self.mmproj(&self.tower_tensors(seed))
    }

    fn mmproj(&self, tower: &Tensors) -> File {
        let dir = tempfile::tempdir().expect("temporary folder");
        write_json(&dir.path().join("config.json"), &self.tower_config());
        write_tensors(dir.path(), &stored(tower));
        let opened = TowerCheckpoint::open_folder(dir.path());
        let checkpoint = opened.expect("supported").expect("there is a tower");
        let tensors = tower
            .iter()
            .map(|(name, (shape, values))| (name.clone(), shape.clone(), values.clone()));
        let file = converter::of_tensors(self.tower, &checkpoint.config, tensors);
        let file = with(file, "image_mean", Value::F32s(vec![0.5; 3]));
        let file = with(file, "image_std", Value::F32s(vec![0.5; 3]));
        let sizes = self.sizes.iter();
        sizes.fold(file, |file, (key, size)| with(file, key, Value::U32(*size)))
    }

    /// Adds the tower and the settings of its images to the folder of the text model.
    fn add_tower(&self, dir: &Path, mut config: Json, tower: &Tensors) {
        let tower_config = self.tower_config();
        for (key, value) in tower_config.as_object().expect("an object") {
            if key != "text_config" && key != "model_type" {
                config[key] = value.clone();
            }
        }
        write_json(&dir.join("config.json"), &config);
        let bytes = fs::read(dir.join("model.safetensors")).expect("written before");
        let tensors = SafeTensors::deserialize(&bytes).expect("valid");
        let mut all = stored(tower);
        for (name, view) in tensors.iter() {
            let text = Stored {
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                data: view.data().to_vec(),
            };
            all.insert(name.to_owned(), text);
        }
        write_tensors(dir, &all);
        let [image, around] = self.files.expect("the caller checks");
        let image = format!("{{{image}, {HALVES}}}");
        fs::write(dir.join("preprocessor_config.json"), image).expect("writable");
        fs::write(dir.join("processor_config.json"), around).expect("writable");
    }
}

fn folder_of(file: &Path) -> &Path {
    file.parent().expect("the file is in a folder")
}

fn stored(tensors: &Tensors) -> BTreeMap<String, Stored> {
    let stored = tensors.iter().map(|(name, (shape, values))| {
        let stored = Stored {
            dtype: safetensors::Dtype::F32,
            shape: shape.clone(),
            data: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        (name.clone(), stored)
    });
    stored.collect()
}

/// The file with another value of a key of the tower.
pub fn with(mut file: File, key: &str, value: Value) -> File {
    let key = format!("clip.vision.{key}");
    file.pairs.retain(|(known, _)| known != key.as_bytes());
    file.pair(&key, value)
}

/// Adds the vocabulary of a `tokenizer.json` and a chat template to a model's file.
fn with_vocabulary(file: File, tokenizer: &Json, template: &str) -> File {
    const CONTROL: i32 = 3;
    let vocabulary = tokenizer["model"]["vocab"].as_object().expect("an object");
    let mut tokens = vec![String::new(); vocabulary.len()];
    for (token, id) in vocabulary {
        tokens[id.as_u64().expect("an id") as usize] = token.clone();
    }
    let mut types = vec![1; tokens.len()];
    for added in tokenizer["added_tokens"].as_array().expect("a list") {
        types[added["id"].as_u64().expect("an id") as usize] = CONTROL;
    }
    let merges = tokenizer["model"]["merges"].as_array().expect("a list");
    let merges = merges.iter().map(|pair| {
        let [first, second] = [0, 1].map(|at| pair[at].as_str().expect("a text"));
        format!("{first} {second}")
    });
    file.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "gpt-2")
        .pair("tokenizer.ggml.tokens", Value::Texts(tokens))
        .pair("tokenizer.ggml.token_type", Value::I32s(types))
        .pair("tokenizer.ggml.merges", Value::Texts(merges.collect()))
        .size("tokenizer.ggml.bos_token_id", 0)
        .pair("tokenizer.ggml.add_bos_token", Value::Flag(false))
        .text("tokenizer.chat_template", template)
}

/// A picture of 24 x 16 pixels without compression.
pub fn png(seed: u8) -> Vec<u8> {
    let (width, height) = (24_u32, 16_u32);
    let mut rows = Vec::new();
    for y in 0..height {
        rows.push(0);
        for x in 0..3 * width {
            rows.push((x * 9 + y * 31 + x * y + u32::from(seed) * 77) as u8);
        }
    }
    let length = rows.len() as u16;
    let mut data = vec![0x78, 0x01, 1];
    data.extend(length.to_le_bytes());
    data.extend((!length).to_le_bytes());
    let sums = rows.iter().fold((1, 0), |(a, b): (u32, u32), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    data.extend(rows);
    data.extend(((sums.1 << 16) | sums.0).to_be_bytes());
    let header = [
        &width.to_be_bytes()[..],
        &height.to_be_bytes(),
        &[8, 2, 0, 0, 0],
    ]
    .concat();
    let chunks: [(&[u8], &[u8]); 3] = [(b"IHDR", &header), (b"IDAT", &data), (b"IEND", &[])];
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, content) in chunks {
        let body = [name, content].concat();
        file.extend((content.len() as u32).to_be_bytes());
        file.extend(&body);
        file.extend(crc32fast::hash(&body).to_be_bytes());
    }
    file
}
