"""Trains the bundled model from scratch: corpus, tokenizer, weights, fixtures.

Usage: python tools/bundled_model/train.py [--out models/souffleur-tiny]
"""

import argparse
import datetime
import json
import math
import os
import random
import sys
import time
from pathlib import Path

# Threads that spin while they wait make training several times slower on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import safetensors
import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM

import corpus
import fixtures
from evaluation import mean_loss
from muon import Muon

SEED = 20
THREADS = 2
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "models" / "souffleur-tiny"

DIALOGUES = 25_000
HELD_OUT_POOL = 1_500
HELD_OUT = 100
PLAIN_TEXTS = 1_200
TOKENIZER_SAMPLE = 12_000

VOCABULARY = 2048
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# The pattern of the Qwen family: one digit is one piece.
PIECES = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

MAX_POSITIONS = 4096
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 192,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": MAX_POSITIONS,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
}

ROW = 512
ROWS_PER_STEP = 3
ISOLATED_SHARE = 0.5
MAX_GAP = 900
MATRIX_RATE = 4e-3
OTHER_RATE = 2.5e-3
FINAL_RATE_SHARE = 0.02
WARMUP_SHARE = 0.04
WEIGHT_DECAY = 0.1
MOMENTUM = 0.95
BETAS = (0.9, 0.95)
CLIP = 1.0
IGNORE = -100
PRINT_EVERY = 50


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer, dialogues, plain_texts):
    texts = [corpus.render(dialogue.as_messages) for dialogue in dialogues]
    texts += [text + END_OF_TEXT for text in plain_texts]
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def pack(rng, sequences):
    """Rows of whole sequences, of which only the last one may be cut."""
    row, used = [], 0
    for sequence in rng.sample(sequences, len(sequences)):
        piece = sequence[: ROW - used]
        row.append(piece)
        used += len(piece)
        if used == ROW:
            yield row
            row, used = [], 0


def row_tensors(rng, row):
    """Inputs, targets, positions and attention mask of one row.

    In some rows each sequence attends only to itself, as in a first turn.
    In the others it also attends to earlier sequences, across a gap of
    positions, so that training has distances up to the longest context.
    """
    inputs, targets, positions, segments = [], [], [], []
    offset = 0
    for segment, piece in enumerate(row):
        offset = min(offset + rng.randrange(MAX_GAP), MAX_POSITIONS - ROW)
        positions += [offset + len(inputs) + i for i in range(len(piece))]
        segments += [segment] * len(piece)
        inputs += piece
        targets += piece[1:] + [IGNORE]
    segments = torch.tensor(segments)
    mask = torch.ones(ROW, ROW, dtype=torch.bool).tril()
    if rng.random() < ISOLATED_SHARE:
        mask &= segments[:, None] == segments[None, :]
    return torch.tensor(inputs), torch.tensor(targets), torch.tensor(positions), mask[None]


def batch_tensors(rng, rows):
    return [torch.stack(column) for column in zip(*(row_tensors(rng, row) for row in rows))]


def rate_share(step, steps):
    """The share of the peak learning rate: a short warm-up, then a cosine."""
    warmup = max(1, int(WARMUP_SHARE * steps))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (steps - warmup)
    return FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * (1 + math.cos(math.pi * progress)) / 2


def make_optimizers(model):
    """Muon for the matrices inside the layers, which learns from far fewer tokens, and AdamW for the rest."""
    matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
    gains = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": [model.model.embed_tokens.weight]}, {"params": gains, "weight_decay": 0.0}]
    return [
        Muon(matrices, lr=MATRIX_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
        torch.optim.AdamW(groups, lr=OTHER_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True),
    ]


def update(optimizers, share):
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = share * group.setdefault("peak", group["lr"])
        optimizer.step()
        optimizer.zero_grad()


def batch_loss(model, batch):
    inputs, targets, positions, mask = batch
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=inputs, position_ids=positions, attention_mask={"full_attention": mask},
                       use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


def train(model, sequences):
    rng = random.Random(SEED)
    rows = list(pack(rng, sequences))
    steps = len(rows) // ROWS_PER_STEP
    optimizers = make_optimizers(model)
    started = time.monotonic()
    recent = []
    for step in range(steps):
        loss = batch_loss(model, batch_tensors(rng, rows[step * ROWS_PER_STEP : (step + 1) * ROWS_PER_STEP]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        update(optimizers, rate_share(step, steps))
        recent.append(loss.item())
        if (step + 1) % PRINT_EVERY == 0 or step + 1 == steps:
            seconds = time.monotonic() - started
            print(f"step {step + 1}/{steps} loss {sum(recent) / len(recent):.4f} {seconds:.0f} s", flush=True)
            recent = []
    return steps, time.monotonic() - started


def rounded_to_bf16(model):
    return model.to(torch.bfloat16).to(torch.float32)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_tokenizer(out, tokenizer):
    tokenizer.save(str(out / "tokenizer.json"))
    write_json(out / "tokenizer_config.json", {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": MAX_POSITIONS,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    })


def write_model(out, model, config, tokenizer):
    write_json(out / "config.json", config)
    end, end_of_text = tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)
    write_json(out / "generation_config.json", {
        "do_sample": True,
        "eos_token_id": [end, end_of_text],
        "pad_token_id": end_of_text,
        "temperature": 0.7,
        "top_p": 0.95,
    })
    # The output projection is tied to the embeddings, so it is not stored.
    weights = {name: tensor.to(torch.bfloat16).contiguous()
               for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    safetensors.torch.save_file(weights, out / "model.safetensors", {"format": "pt"})


def record(out, held_out_loss, tokens, steps, seconds, parameters):
    write_json(out / "training.json", {
        "held_out_loss": round(held_out_loss, 6),
        "held_out_loss_is": "mean nats per predicted token over eval/held_out.jsonl, teacher-forced over all tokens "
                            "of each "
                            "rendered dialogue except its first, weights rounded to bf16, computed in f32",
        "training_loss_is": "cross-entropy over all tokens of system, user and assistant",
        "held_out_tokens": tokens,
        "parameters": parameters,
        "steps": steps,
        "training_tokens": steps * ROWS_PER_STEP * ROW,
        "training_seconds": round(seconds),
        "threads": THREADS,
        "seed": SEED,
        "date": datetime.date.today().isoformat(),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "safetensors": safetensors.__version__,
        },
        "license": "MIT OR Apache-2.0",
    })


def make_model(tokenizer):
    end, end_of_text = tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)
    config = {**MODEL, "bos_token_id": None, "eos_token_id": end, "pad_token_id": end_of_text,
              "vocab_size": tokenizer.get_vocab_size()}
    return config, Qwen3ForCausalLM(Qwen3Config(**config))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)

    dialogues = corpus.unique_dialogues(SEED, DIALOGUES)
    training, pool = dialogues[:-HELD_OUT_POOL], dialogues[-HELD_OUT_POOL:]
    plain = corpus.plain_texts(SEED, PLAIN_TEXTS)
    tokenizer = train_tokenizer([corpus.render(d.as_messages) for d in training[:TOKENIZER_SAMPLE]])
    write_tokenizer(out, tokenizer)
    held_out = fixtures.write(out / "eval", training, pool, plain, HELD_OUT)

    config, model = make_model(tokenizer)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters, {tokenizer.get_vocab_size()} tokens in the vocabulary", flush=True)
    steps, seconds = train(model, encode(tokenizer, training, plain))
    model = rounded_to_bf16(model).eval()
    loss, tokens = mean_loss(model, [tokenizer.encode(row["text"]).ids for row in held_out])
    write_model(out, model, config, tokenizer)
    record(out, loss, tokens, steps, seconds, parameters)
    print(f"held-out loss {loss:.4f} nats per token, {seconds:.0f} s of training")


if __name__ == "__main__":
    main()
