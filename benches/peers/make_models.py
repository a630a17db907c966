"""Makes model folders in Hugging Face layout with random bf16 weights, to measure speed without downloads.

Linear weights are N(0, 1/fan_in), projections into the residual stream are scaled by 1/sqrt(2 * layers), norms are 1 + 0.02 N(0, 1),
so that activations neither vanish nor explode and logits are about N(0, 1). The tokenizer is trained on Python's standard library.
"""

import glob
import json
import struct
import sys
import sysconfig
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import shapes

SEED = 1234
CORPUS_BYTES = 24 << 20
TOKENIZER_SIZE = 32000
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def corpus():
    """Python sources of the standard library, in pieces."""
    taken = 0
    for path in sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/**/*.py", recursive=True)):
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if taken > CORPUS_BYTES:
            return
        taken += len(text)
        yield from (text[start : start + 20000] for start in range(0, len(text), 20000))


def make_tokenizer(path):
    """Trains and saves a byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE, special_tokens=SPECIAL, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.save(str(path))


def bf16(values):
    """Converts f32 to the bits of bf16, rounding to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def tensors(shape):
    """Name, dimensions, standard deviation and mean of every tensor."""
    hidden, ffn, head = shape.hidden, shape.ffn, shape.head
    queries, keys = shape.heads * head, shape.kv_heads * head
    residual = (2 * shape.layers) ** -0.5
    # Model families with delta nets store the norms' weights minus 1.
    norm = 0 if shape.delta else 1
    yield "model.embed_tokens.weight", (shape.vocab, hidden), (hidden**-0.5 if shape.tied else 1.0), 0
    for layer in range(shape.layers):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", (hidden,), 0.02, norm
        if shape.attends(layer):
            gated = 2 if shape.delta else 1
            yield name + "self_attn.q_proj.weight", (gated * queries, hidden), hidden**-0.5, 0
            yield name + "self_attn.k_proj.weight", (keys, hidden), hidden**-0.5, 0
            yield name + "self_attn.v_proj.weight", (keys, hidden), hidden**-0.5, 0
            yield name + "self_attn.o_proj.weight", (hidden, queries), queries**-0.5 * residual, 0
            if shape.arch != "llama":
                yield name + "self_attn.q_norm.weight", (head,), 0.02, norm
                yield name + "self_attn.k_norm.weight", (head,), 0.02, norm
        else:
            yield from delta_net(name + "linear_attn.", hidden, shape.delta, residual)
        yield name + "post_attention_layernorm.weight", (hidden,), 0.02, norm
        mlps = ["mlp."]
        if shape.experts:
            yield name + "mlp.gate.weight", (shape.experts, hidden), hidden**-0.5, 0
            mlps = [f"mlp.experts.{expert}." for expert in range(shape.experts)]
        for mlp in mlps:
            yield name + mlp + "gate_proj.weight", (ffn, hidden), hidden**-0.5, 0
            yield name + mlp + "up_proj.weight", (ffn, hidden), hidden**-0.5, 0
            yield name + mlp + "down_proj.weight", (hidden, ffn), ffn**-0.5 * residual, 0
    yield "model.norm.weight", (hidden,), 0.02, norm
    if not shape.tied:
        yield "lm_head.weight", (shape.vocab, hidden), hidden**-0.5, 0


def delta_net(name, hidden, delta, residual):
    """The tensors of a gated delta net, like `tensors`, with slowly decaying states."""
    values = delta.value_heads * delta.value
    yield name + "in_proj_qkv.weight", (delta.channels, hidden), hidden**-0.5, 0
    yield name + "in_proj_z.weight", (values, hidden), hidden**-0.5, 0
    yield name + "in_proj_b.weight", (delta.value_heads, hidden), hidden**-0.5, 0
    yield name + "in_proj_a.weight", (delta.value_heads, hidden), hidden**-0.5, 0
    yield name + "conv1d.weight", (delta.channels, 1, delta.conv), delta.conv**-0.5, 0
    yield name + "dt_bias", (delta.value_heads,), 0.5, -4
    yield name + "A_log", (delta.value_heads,), 0.5, 0
    yield name + "norm.weight", (delta.value,), 0.02, 1
    yield name + "out_proj.weight", (hidden, values), values**-0.5 * residual, 0


def write_weights(path, shape):
    """Writes a safetensors file tensor by tensor."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, dims, _, _ in tensors(shape):
        size = int(np.prod(dims)) * 2
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(SEED)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, dims, deviation, mean in tensors(shape):
            left = int(np.prod(dims))
            while left:
                count = min(left, 1 << 24)
                values = rng.standard_normal(count, dtype=np.float32) * np.float32(deviation) + np.float32(mean)
                file.write(bf16(values).tobytes())
                left -= count


ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM", "llama": "LlamaForCausalLM",
}


def config(shape):
    """`config.json`."""
    made = {
        "architectures": [ARCHITECTURES[shape.arch]],
        "model_type": shape.arch, "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 2,
        "hidden_act": "silu", "head_dim": shape.head, "hidden_size": shape.hidden, "initializer_range": 0.02,
        "intermediate_size": shape.ffn, "max_position_embeddings": shape.context, "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers, "num_key_value_heads": shape.kv_heads, "rms_norm_eps": shape.eps,
        "rope_scaling": None, "rope_theta": shape.theta, "tie_word_embeddings": shape.tied, "torch_dtype": "bfloat16",
        "use_cache": True, "vocab_size": shape.vocab,
    }
    if shape.experts:
        made |= {
            "num_experts": shape.experts, "num_experts_per_tok": shape.used, "moe_intermediate_size": shape.ffn, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "output_router_logits": False, "router_aux_loss_coef": 0.001,
        }
    if shape.delta:
        rope = {"rope_type": "default", "rope_theta": shape.theta, "partial_rotary_factor": 0.25}
        delta = shape.delta
        made |= {
            "full_attention_interval": delta.every, "linear_num_key_heads": delta.key_heads, "linear_num_value_heads": delta.value_heads,
            "linear_key_head_dim": delta.key, "linear_value_head_dim": delta.value, "linear_conv_kernel_dim": delta.conv,
            "layer_types": ["full_attention" if shape.attends(layer) else "linear_attention" for layer in range(shape.layers)],
            "rope_parameters": rope | {"mrope_section": [11, 11, 10], "mrope_interleaved": True},
        }
    if shape.arch != "llama":
        return made | {"max_window_layers": shape.layers, "sliding_window": None, "use_sliding_window": False}
    return made | {"mlp_bias": False, "pretraining_tp": 1}


def make(folder, shape):
    """Makes the folder of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    special = {
        str(index): {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
        for index, text in enumerate(SPECIAL)
    }
    files = {
        "config.json": config(shape),
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": SPECIAL[2], "pad_token": SPECIAL[0],
            "unk_token": None, "clean_up_tokenization_spaces": False, "add_bos_token": False, "model_max_length": shape.context,
            "chat_template": CHATML, "added_tokens_decoder": special,
        },
        "special_tokens_map.json": {"eos_token": SPECIAL[2], "pad_token": SPECIAL[0], "additional_special_tokens": SPECIAL[1:]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    make_tokenizer(folder / "tokenizer.json")
    write_weights(folder / "model.safetensors", shape)


if __name__ == "__main__":
    make(Path(sys.argv[1]), shapes.SHAPES[sys.argv[2]])
