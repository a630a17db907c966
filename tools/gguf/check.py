"""Compares the engine's GGUF reader, and the writer of its tests, with the package `gguf`.

Usage: check.py [PATH OF THE souffleur BINARY]

1. Each fixture model is written by GGUFWriter, as llama.cpp's converter would write it, whole and split, with
   metadata in other widths and with another alignment. `souffleur logits` must give the logits of the safetensors,
   bit for bit.
2. The files that `cargo test --test models f32_files` writes are read by GGUFReader: metadata and every element of every
   tensor must be those of the fixture.
3. `souffleur plan` reads a file of block types: it must print each type with its number of tensors, and refuse a type
   without kernels, with the name of the tensor.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures/models"
MODELS = [
    "llama",
    "llama-rope-linear",
    "llama-rope-llama3",
    "llama-rope-yarn",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3-moe",
    "qwen3-moe-sparse",
]
NAMES = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.", "blk."),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate.", "ffn_gate_inp."),
    ("block_sparse_moe.gate.", "ffn_gate_inp."),
]
# The stacks of experts, whose matrices have these names in checkpoints.
EXPERTS = {
    "ffn_gate_exps": ("gate_proj", "w1"),
    "ffn_up_exps": ("up_proj", "w3"),
    "ffn_down_exps": ("down_proj", "w2"),
}


def stacked(tensors):
    """The tensors, with the matrices of a layer's experts stacked and named as in GGUF files."""
    result, experts = {}, {}
    for name, values in tensors.items():
        layer, is_expert, rest = name.partition(".experts.")
        layer = re.match(r"(model\.layers\.\d+\.)?", layer)[0]
        if not is_expert:
            result[name] = values
        elif rest == "gate_up_proj":
            for half, part in zip(np.split(values, 2, axis=1), ("ffn_gate_exps", "ffn_up_exps")):
                result[f"{layer}{part}.weight"] = half
        elif rest == "down_proj":
            result[f"{layer}ffn_down_exps.weight"] = values
        else:
            expert, projection, _ = rest.split(".")
            part = next(part for part, names in EXPERTS.items() if projection in names)
            experts.setdefault(f"{layer}{part}.weight", {})[int(expert)] = values
    return result | {name: np.stack([own[i] for i in range(len(own))]) for name, own in experts.items()}


def safetensors(file):
    """All tensors of a file, widened to f32, by name."""
    data = file.read_bytes()
    header_bytes = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        start, end = (8 + header_bytes + offset for offset in info["data_offsets"])
        raw = data[start:end]
        match info["dtype"]:
            case "F32":
                values = np.frombuffer(raw, "<f4")
            case "BF16":
                words = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
                values = words.view(np.float32)
            case other:
                raise ValueError(f"{name} has type {other}")
        tensors[name] = values.reshape(info["shape"])
    return tensors


class Model:
    """A fixture, as a converter sees it."""

    def __init__(self, name):
        self.folder = FIXTURES / name
        self.config = json.loads((self.folder / "config.json").read_text())
        self.tensors = stacked(safetensors(self.folder / "model.safetensors"))
        kind = self.config["model_type"]
        self.arch = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe"}.get(kind, kind)
        self.rope = self.config.get("rope_scaling") or self.config.get("rope_parameters") or {}
        self.rope_type = self.rope.get("rope_type") or self.rope.get("type") or "default"
        default_theta = 1e6 if kind == "mixtral" else 1e4
        self.theta = self.rope.get("rope_theta") or self.config.get("rope_theta") or default_theta
        heads = self.config["num_attention_heads"]
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // heads

    def in_file(self):
        """The tensors of a GGUF file: their names, and their values with rows in the order of the architecture."""
        for name, values in sorted(self.tensors.items()):
            if self.arch == "llama" and re.search(r"[qk]_proj", name):
                halves = values.reshape(-1, 2, self.head_dim // 2, *values.shape[1:])
                values = halves.swapaxes(1, 2).reshape(values.shape)
            for ours, theirs in NAMES:
                name = name.replace(ours, theirs)
            yield name, np.ascontiguousarray(values)
        if self.rope_type == "llama3":
            yield "rope_freqs.weight", self.divisors()

    def divisors(self):
        low, high = self.rope["low_freq_factor"], self.rope["high_freq_factor"]
        exponents = np.arange(0, self.head_dim, 2) / self.head_dim
        wavelengths = 2 * np.pi * self.theta**exponents
        turns = self.rope["original_max_position_embeddings"] / wavelengths
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return (1 / ((1 - smooth) / self.rope["factor"] + smooth)).astype(np.float32)

    def write(self, file, split=0, alignment=None):
        writer = gguf.GGUFWriter(file, self.arch, split_max_tensors=split)
        if alignment:
            writer.add_custom_alignment(alignment)
        config = self.config
        writer.add_type(gguf.GGUFType.MODEL)
        writer.add_name(self.folder.name)
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        # Any width will do.
        writer.add_uint64(f"{self.arch}.feed_forward_length", config["intermediate_size"])
        writer.add_int8(f"{self.arch}.attention.head_count", config["num_attention_heads"])
        writer.add_head_count_kv([config["num_key_value_heads"]] * config["num_hidden_layers"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_rope_dimension_count(self.head_dim)
        writer.add_rope_freq_base(self.theta)
        if self.rope_type == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(self.rope["factor"])
        if self.rope_type == "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(self.rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(self.rope["original_max_position_embeddings"])
        if experts := config.get("num_experts") or config.get("num_local_experts"):
            writer.add_expert_count(experts)
            writer.add_expert_used_count(config["num_experts_per_tok"])
            writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])
            writer.add_expert_weights_norm(config.get("norm_topk_prob", config["model_type"] == "mixtral"))
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{token}" for token in range(config["vocab_size"])])
        writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
        writer.add_eos_token_id(1)
        for name, values in self.in_file():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def logits(binary, model, work):
    prompts = work / "prompts.json"
    prompts.write_text(json.dumps({"prompts": [[(n * 37 + 11) % 288 for n in range(100)]]}))
    out = work / "logits.safetensors"
    command = [binary, "logits", "--dtype", "float32", "--model-path", model]
    subprocess.run([*command, "--input", prompts, "--output", out], check=True)
    return out.read_bytes()


def without_window(model, work):
    """A folder without sliding windows, which GGUF files of Mistral do not have."""
    folder = work / model.folder.name
    folder.mkdir()
    config = {**model.config, "sliding_window": None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(model.folder / "model.safetensors")
    return folder


def check_reader(binary, model, work):
    expected = logits(binary, without_window(model, work), work)
    for variant in [{}, {"alignment": 64}, {"split": 7}]:
        folder = work / f"{model.folder.name}-{'-'.join(variant)}"
        folder.mkdir()
        model.write(folder / "m.gguf", **variant)
        # The only model of its folder, whole or split.
        assert logits(binary, folder, work) == expected, f"{folder.name}: the logits differ"
    print(f"{model.folder.name}: GGUFWriter's files give the logits of the safetensors")


def check_writer(model, file):
    reader = gguf.GGUFReader(file)
    assert reader.get_field("general.architecture").contents() == model.arch
    heads = reader.get_field(f"{model.arch}.attention.head_count")
    assert heads.contents() == model.config["num_attention_heads"]
    expected = dict(model.in_file())
    assert {tensor.name for tensor in reader.tensors} == set(expected)
    for tensor in reader.tensors:
        values = expected[tensor.name]
        assert tensor.data.shape == values.shape, tensor.name
        # The divisors are computed in Rust, so their last bits may differ.
        close = np.allclose(tensor.data, values, rtol=1e-6, atol=0)
        same = np.array_equal(tensor.data, values)
        assert same or (close and tensor.name == "rope_freqs.weight"), tensor.name
    print(f"{model.folder.name}: GGUFReader reads the files of the tests")


def check_types(binary, work):
    """A model wide enough for blocks of 256, with random blocks."""
    kinds = gguf.GGMLQuantizationType
    shapes = {"token_embd": (64, 256), "output": (64, 256)}
    for part, shape in {
        "attn_q": (256, 256),
        "attn_k": (256, 256),
        "attn_v": (256, 256),
        "attn_output": (256, 256),
        "ffn_gate": (512, 256),
        "ffn_up": (512, 256),
        "ffn_down": (256, 512),
    }.items():
        shapes[f"blk.0.{part}"] = shape
    types = [kinds.Q4_K, kinds.Q6_K, kinds.Q4_K, kinds.Q4_K, kinds.Q6_K, kinds.Q8_0, kinds.Q5_K, kinds.Q4_0, kinds.IQ4_XS]
    for last in [kinds.IQ4_XS, kinds.IQ2_XXS]:
        types[-1] = last
        file = work / f"blocks-{last.name}.gguf"
        writer = gguf.GGUFWriter(file, "llama")
        writer.add_block_count(1)
        writer.add_context_length(64)
        writer.add_embedding_length(256)
        writer.add_feed_forward_length(512)
        writer.add_head_count(4)
        writer.add_head_count_kv(4)
        writer.add_layer_norm_rms_eps(1e-5)
        for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"]:
            writer.add_tensor(f"{name}.weight", np.ones(256, np.float32))
        for (name, (rows, width)), kind in zip(shapes.items(), types):
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            data = np.zeros((rows, width // block * block_bytes), np.uint8)
            writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        ran = subprocess.run([binary, "plan", "--model-path", file], capture_output=True, text=True)
        if last == kinds.IQ2_XXS:
            assert ran.returncode != 0 and re.search(r"blk\.0\.ffn_down\.weight\W+has type IQ2_XXS", ran.stderr), ran
            continue
        assert ran.returncode == 0, ran.stderr
        for kind in {kind.name for kind in types}:
            count = sum(used.name == kind for used in types)
            assert re.search(rf"{count} of {kind} \(", ran.stdout), f"{kind}: {ran.stdout}"
    print("plan: block types are counted, and one without kernels is refused by name")


def main():
    binary = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "target/release/souffleur"
    models = [Model(name) for name in MODELS]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for model in models:
            check_reader(binary.resolve(), model, work)
        check_types(binary.resolve(), work)
        files = work / "files"
        files.mkdir()
        test = ["cargo", "test", "--locked", "--test", "models", "f32_files"]
        subprocess.run(test, cwd=ROOT, check=True, env={**os.environ, "SOUFFLEUR_TEST_GGUF_DIR": str(files)})
        for model in models:
            check_writer(model, files / f"{model.folder.name}.gguf")


if __name__ == "__main__":
    main()
