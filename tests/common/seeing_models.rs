//! Tiny models that read images, made of the fixtures: a text model, and a vision tower whose last matrix has the text
//! model's width. Their vocabulary has the tokens of images, and their chat template writes them.

use std::collections::BTreeMap;
use std::fs;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use souffleur_engine::EngineParts;
use souffleur_request::ImageInput;
use tempfile::TempDir;

use crate::repository::repository;

/// The token at the positions of vectors, in both vocabularies.
pub const PAD: u32 = 286;
/// Pixels of a side of a patch; 2 x 2 patches make a vector.
pub const PATCH: u32 = 4;

/// A kind of model. Its images have patches of `patch_values` values.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    pub name: &'static str,
    text: &'static str,
    tower: &'static str,
    pub patch_values: usize,
    /// Tokens in place of the last ones of the fixture's vocabulary.
    marks: &'static [(&'static str, u32)],
    template: &'static str,
    /// Tensors in the text model's width in place of those of the tower's fixture.
    widened: &'static [(&'static str, &'static [usize])],
    pub is_hybrid: bool,
    is_qwen: bool,
}

/// Recurrent states and M-RoPE; an image is between two marks.
pub const QWEN: Sight = Sight {
    name: "qwen3-5",
    text: "models/qwen3-5",
    tower: "towers/qwen",
    patch_values: 96,
    marks: &[
        ("<|im_start|>", 283),
        ("<|im_end|>", 284),
        ("<|vision_start|>", 285),
        ("<|image_pad|>", PAD),
        ("<|vision_end|>", 287),
    ],
    template: "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n\
        {% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}\
        {% else %}{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
        {% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    widened: &[
        ("model.visual.merger.linear_fc2.bias", &[64]),
        ("model.visual.merger.linear_fc2.weight", &[64, 96]),
    ],
    is_hybrid: true,
    is_qwen: true,
};

/// M-RoPE, and vectors of an image for the first two layers.
pub const DEEPSTACK: Sight = Sight {
    name: "qwen3-vl",
    text: "models/qwen3-vl",
    tower: "towers/qwen3-vl",
    widened: &[
        ("model.visual.merger.linear_fc2.bias", &[64]),
        ("model.visual.merger.linear_fc2.weight", &[64, 96]),
        (
            "model.visual.deepstack_merger_list.0.linear_fc2.bias",
            &[64],
        ),
        (
            "model.visual.deepstack_merger_list.0.linear_fc2.weight",
            &[64, 96],
        ),
        (
            "model.visual.deepstack_merger_list.1.linear_fc2.bias",
            &[64],
        ),
        (
            "model.visual.deepstack_merger_list.1.linear_fc2.weight",
            &[64, 96],
        ),
    ],
    is_hybrid: false,
    ..QWEN
};

/// Pixtral's tower: a mark ends each row of an image.
pub const PIXTRAL: Sight = Sight {
    name: "mistral3",
    text: "models/mistral3",
    tower: "towers/pixtral",
    patch_values: 48,
    marks: &[("[IMG_BREAK]", 285), ("[IMG]", PAD), ("[IMG_END]", 287)],
    template: "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}\
        {% for p in m.content %}{% if p.type == 'image' %}[IMG]{% else %}{{ p.text }}{% endif %}{% endfor %}\
        {% endif %};\n{% endfor %}",
    widened: &[
        ("multi_modal_projector.linear_1.weight", &[64, 24]),
        ("multi_modal_projector.linear_2.weight", &[64, 64]),
    ],
    is_hybrid: false,
    is_qwen: false,
};

impl Sight {
    /// Writes the model to a new folder.
    pub fn folder(&self) -> TempDir {
        let folder = TempDir::new().expect("a folder can be made");
        let fixtures = repository().join("tests/fixtures");
        let (text, tower) = (fixtures.join(self.text), fixtures.join(self.tower));
        let to = folder.path();
        let generation = "generation_config.json";
        fs::copy(text.join(generation), to.join(generation)).expect("the fixture is complete");
        write_json(&to.join("config.json"), &self.config(&text, &tower));
        write_json(&to.join("tokenizer.json"), &self.tokenizer(&text));
        let mut settings = read_json(&text.join("tokenizer_config.json"));
        settings["chat_template"] = self.template.into();
        write_json(&to.join("tokenizer_config.json"), &settings);
        self.write_processor(to);
        self.write_tensors(&text, &tower, to);
        folder
    }

    /// The tokens of an image of this size.
    pub fn image(&self, rows: u32, columns: u32) -> Vec<u32> {
        let row = vec![PAD; columns as usize];
        let rows = (0..rows).map(|_| row.clone());
        let (mark, end): (u32, u32) = (285, 287);
        if self.is_qwen {
            let vectors: Vec<u32> = rows.flatten().collect();
            return [&[mark][..], &vectors, &[end]].concat();
        }
        let mut tokens = rows.collect::<Vec<_>>().join(&mark);
        tokens.push(end);
        tokens
    }

    fn config(&self, text: &Path, tower: &Path) -> Value {
        let mut config = read_json(&text.join("config.json"));
        let tower = read_json(&tower.join("config.json"));
        config["vision_config"] = tower["vision_config"].clone();
        if self.is_qwen {
            config["vision_config"]["out_hidden_size"] = json!(64);
            config["text_config"]["max_position_embeddings"] = json!(4096);
            return config;
        }
        for key in ["spatial_merge_size", "projector_hidden_act"] {
            config[key] = tower[key].clone();
        }
        let text = config["text_config"].as_object_mut();
        text.expect("an object").shift_remove("sliding_window");
        config
    }

    fn tokenizer(&self, text: &Path) -> Value {
        let mut tokenizer = read_json(&text.join("tokenizer.json"));
        for (mark, id) in self.marks {
            let vocabulary = tokenizer["model"]["vocab"].as_object_mut();
            let vocabulary = vocabulary.expect("an object");
            let old = vocabulary.iter().find(|(_, found)| **found == *id);
            let old = old.map(|(text, _)| text.clone());
            let old = old.expect("the id has a token");
            vocabulary.shift_remove(&old);
            vocabulary.insert((*mark).to_owned(), json!(id));
            let merges = tokenizer["model"]["merges"].as_array_mut();
            merges
                .expect("a list")
                .retain(|merge| made_by(merge) != old);
            let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
            let mut token = added[0].clone();
            (token["id"], token["content"]) = (json!(id), json!(mark));
            added.push(token);
        }
        tokenizer
    }

    fn write_processor(&self, to: &Path) {
        let halves = [0.5, 0.5, 0.5];
        let mut settings = json!({"patch_size": PATCH, "image_mean": halves, "image_std": halves});
        if self.is_qwen {
            settings["image_processor_type"] = json!("Qwen2VLImageProcessor");
            settings["size"] = json!({"shortest_edge": 64, "longest_edge": 16384});
        } else {
            settings["image_processor_type"] = json!("PixtralImageProcessor");
            settings["size"] = json!({"longest_edge": 96});
            let around = json!({"patch_size": PATCH, "spatial_merge_size": 2});
            write_json(&to.join("processor_config.json"), &around);
        }
        write_json(&to.join("preprocessor_config.json"), &settings);
    }

    fn write_tensors(&self, text: &Path, tower: &Path, to: &Path) {
        let read = |folder: &Path| {
            let file = folder.join("model.safetensors");
            fs::read(file).expect("the fixture is complete")
        };
        let wide = self.widened.iter();
        let wide: Vec<(&str, &[usize], Vec<u8>)> = wide
            .map(|(name, shape)| (*name, *shape, random(name, shape.iter().product())))
            .collect();
        let (text, tower) = (read(text), read(tower));
        let parsed = [&text, &tower].map(|bytes| {
            let tensors = SafeTensors::deserialize(bytes);
            tensors
                .expect("the file is in safetensors format")
                .tensors()
        });
        let mut tensors: BTreeMap<String, TensorView<'_>> = parsed.into_iter().flatten().collect();
        for (name, shape, data) in &wide {
            let view = TensorView::new(Dtype::BF16, shape.to_vec(), data);
            let view = view.expect("as many bytes as the shape has");
            tensors.insert((*name).to_owned(), view);
        }
        safetensors::serialize_to_file(tensors, None, &to.join("model.safetensors"))
            .expect("the folder can be written");
    }
}

/// The token that a merge makes.
fn made_by(merge: &Value) -> String {
    match merge {
        Value::Array(parts) => parts.iter().filter_map(Value::as_str).collect(),
        other => other.as_str().unwrap_or_default().replacen(' ', "", 1),
    }
}

/// Numbers between -0.2 and 0.2 in bf16.
fn random(name: &str, n: usize) -> Vec<u8> {
    let mut noise = Noise::new(name.bytes().map(u32::from).sum());
    (0..n)
        .flat_map(|_| bf16::from_f32(0.2 * noise.value()).to_le_bytes())
        .collect()
}

/// Numbers between -1 and 1 that depend on a seed alone.
#[derive(Debug)]
pub struct Noise(u32);

impl Noise {
    pub fn new(seed: u32) -> Self {
        Self(seed.wrapping_mul(2_654_435_761))
    }

    pub fn value(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((self.0 >> 16) as u16) / 32768.0 - 1.0
    }
}

/// Takes the tower out of a model's configuration.
pub fn blind(folder: &Path) {
    let file = folder.join("config.json");
    let mut config = read_json(&file);
    let fields = config.as_object_mut().expect("an object");
    fields.shift_remove("vision_config");
    write_json(&file, &config);
}

/// Counts the images that the tower of these parts is asked to encode.
pub fn count_encodings(parts: &mut EngineParts) -> Arc<AtomicUsize> {
    let setup = parts.vision.take().expect("the model has a tower");
    let mut setup = Arc::into_inner(setup).expect("only the parts have it");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let nothing = |_: &dyn ImageInput| -> Arc<[u64]> { Arc::default() };
    let work = mem::replace(&mut setup.work, Box::new(nothing));
    setup.work = Box::new(move |input: &dyn ImageInput| -> Arc<[u64]> {
        counted.fetch_add(1, Ordering::SeqCst);
        work(input)
    });
    parts.vision = Some(Arc::new(setup));
    count
}

fn read_json(file: &Path) -> Value {
    let text = fs::read_to_string(file).expect("the fixture is complete");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

fn write_json(file: &Path, value: &Value) {
    fs::write(file, value.to_string()).expect("the folder can be written");
}
