"""Makes the tiny checkpoint with tool and think tokens, tests/fixtures/qwen3-agents.

    python tools/agents_model/make.py [--out tests/fixtures/qwen3-agents]

Its weights are random: tests replace the model with a scripted executor, or constrain its output with a grammar. Only
the text side matters: a byte-level tokenizer whose tool and think tokens are added but not special, as in Qwen3, and rows
of the output head without a token. The chat template, written by hand, is in the same folder.
"""

import argparse
import json
import math
import zlib
from pathlib import Path

import numpy
from safetensors import TensorSpec, serialize_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "tests/fixtures/qwen3-agents"

# Rows of the output head; the tokenizer has some fewer, as in Qwen3.
VOCABULARY = 720
BPE_TOKENS = 704
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [END_OF_TEXT, START, END]
MARKERS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
# The pattern of the Qwen family: one digit is one piece.
PIECES = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# The tokenizer is trained on texts like those of conversations with tools, so that prompts have fewer tokens than bytes.
TEXTS = [
    "The prompter whispers the next line, the actor speaks it, and the audience hears nothing but the play.",
    "system user assistant tool function name arguments description parameters type object properties required",
    '{"type": "function", "function": {"name": "seat", "description": "Books a seat in a row of the theatre.", '
    '"parameters": {"type": "object", "properties": {"row": {"type": "integer"}, "name": {"type": "string"}, '
    '"lights": {"type": "boolean"}, "prices": {"type": "array", "items": {"type": "number"}}}, '
    '"required": ["row"], "additionalProperties": false}}}',
    '{"name": "weather", "arguments": {"city": "Lisbon", "days": 3, "unit": "celsius"}}',
    '{\n  "title": "A short title",\n  "answer": true,\n  "reason": null,\n  "steps": ["one", "two"]\n}',
    "# Tools\n\nThese functions can be called:\n<tools>\n</tools>\n\nWrite each call as one JSON object between its tags:\n",
    "You are a helpful assistant. The user wants to know what the weather is like, so the tool must be called with the "
    "name of the city, and then the answer can be given in a sentence. First think, then answer.",
    "You are an agent that runs on the user's computer. When a command has to be run, call the shell with the command, "
    "read its output, and go on until the task is done. Do not stop before the work is complete. Use files and folders "
    "of the current directory, write code that is simple, and explain what you changed and which tests were run.",
    "There are twelve rows in this theatre. This row is free, that one is not; the others have been sold already. "
    "If you want a better place, please ask again before the doors open, because there will be no more after that.",
]

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 64, 2, 1, 32, 64
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    assert tokenizer.get_vocab_size() == BPE_TOKENS, tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    assert tokenizer.get_vocab_size() < VOCABULARY
    return tokenizer


def shapes():
    """Name and shape of every weight."""
    layer = {
        "input_layernorm": [HIDDEN],
        "post_attention_layernorm": [HIDDEN],
        "self_attn.q_proj": [HEADS * HEAD_DIM, HIDDEN],
        "self_attn.k_proj": [KV_HEADS * HEAD_DIM, HIDDEN],
        "self_attn.v_proj": [KV_HEADS * HEAD_DIM, HIDDEN],
        "self_attn.o_proj": [HIDDEN, HEADS * HEAD_DIM],
        "self_attn.q_norm": [HEAD_DIM],
        "self_attn.k_norm": [HEAD_DIM],
        "mlp.gate_proj": [INNER, HIDDEN],
        "mlp.up_proj": [INNER, HIDDEN],
        "mlp.down_proj": [HIDDEN, INNER],
    }
    weights = {f"model.layers.0.{name}.weight": shape for name, shape in layer.items()}
    return weights | {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}


def draw(name, shape):
    """One weight; its scale makes the logits spread with a standard deviation of about 2."""
    random = numpy.random.Generator(numpy.random.PCG64(zlib.crc32(name.encode())))
    if "norm" in name:
        return 0.5 + random.random(shape)
    scale = 2 / math.sqrt(HIDDEN) if "embed_tokens" in name else 1 / math.sqrt(shape[1])
    return random.standard_normal(shape) * scale


def bfloat16(values):
    """The upper halves of the values as f32."""
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2")


def write_json(file, value):
    file.write_text(json.dumps(value, indent=2) + "\n")


def make(out):
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(out / "tokenizer.json"))
    end, end_of_text = tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)
    write_json(out / "config.json", CONFIG | {"bos_token_id": None, "eos_token_id": end})
    write_json(out / "generation_config.json", {"eos_token_id": [end, end_of_text], "pad_token_id": end_of_text})
    tokens = {"bos_token": None, "eos_token": END, "pad_token": END_OF_TEXT, "unk_token": None}
    write_json(out / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False} | tokens)
    # Must outlive the TensorSpecs, which only point to them.
    weights = {name: bfloat16(draw(name, shape)) for name, shape in sorted(shapes().items())}
    tensors = {
        name: TensorSpec(dtype="bfloat16", shape=weight.shape, data_ptr=weight.ctypes.data, data_len=weight.nbytes)
        for name, weight in weights.items()
    }
    serialize_file(tensors, str(out / "model.safetensors"), {"format": "pt"})
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {tokenizer.get_vocab_size()} tokens, {size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder that gets the files")
    make(parser.parse_args().out)


if __name__ == "__main__":
    main()
