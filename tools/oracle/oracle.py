"""Runs transformers on model folders and records what it computes, for the engine to be compared with.

    python tools/oracle/oracle.py DIR ...            writes oracle.json and oracle.safetensors into each DIR
    python tools/oracle/oracle.py --out FOLDER DIR   writes them into FOLDER/<name of DIR>

The files are described in tools/README.md.
"""

import argparse
import json
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

# 130 is beyond the windows and the original contexts of the tiny models.
PROMPT_LENGTHS = [1, 7, 33, 130]
GREEDY_TOKENS = 32
SEED = 2


@dataclass
class Answer:
    """What transformers computes for one prompt."""

    tokens: list[int]
    logits: torch.Tensor
    bf16_max_abs_error: float
    greedy: list[int]
    margins: list[float]


def load(directory, dtype):
    # Eager attention: plain matrix products and a softmax, no fused kernel with numerics of its own.
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager")
    return model.eval()


def random_prompts(vocab_size, lengths=None, seed=SEED):
    """Draws prompts over the whole vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths or PROMPT_LENGTHS]


@torch.no_grad()
def prompt_logits(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


@torch.no_grad()
def greedy(model, tokens, n_tokens):
    """Continues a prompt; returns tokens and, for each, how far its logit is ahead of the second's."""
    chosen, margins, cache, fed = [], [], None, tokens
    for _ in range(n_tokens):
        output = model(torch.tensor([fed]), past_key_values=cache, use_cache=True)
        best = output.logits[0, -1].float().topk(2)
        chosen.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
        cache, fed = output.past_key_values, chosen[-1:]
    return chosen, margins


def answer(directory, prompts, n_greedy=GREEDY_TOKENS):
    """Runs a model in f32 and in bf16 on every prompt."""
    model = load(directory, torch.float32)
    logits = [prompt_logits(model, tokens) for tokens in prompts]
    continuations = [greedy(model, tokens, n_greedy) for tokens in prompts]
    # Two copies of a large model might not fit.
    del model
    model = load(directory, torch.bfloat16)
    answers = []
    for tokens, expected, (chosen, margins) in zip(prompts, logits, continuations):
        error = (prompt_logits(model, tokens) - expected).abs().max().item()
        answers.append(Answer(tokens, expected, error, chosen, margins))
    return answers


def provenance(command):
    return {
        "command": command,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "attention": "eager",
    }


def write(folder, answers):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"logits.{i}": answer.logits.contiguous() for i, answer in enumerate(answers)}
    save_file(tensors, folder / "oracle.safetensors")
    prompts = [
        {
            "tokens": answer.tokens,
            "bf16_max_abs_error": answer.bf16_max_abs_error,
            "greedy": answer.greedy,
            "margins": [round(margin, 6) for margin in answer.margins],
        }
        for answer in answers
    ]
    lines = [json.dumps(prompt) for prompt in prompts]
    head = json.dumps(provenance("python tools/oracle/oracle.py"))
    text = '{"provenance": ' + head + ',\n"prompts": [\n' + ",\n".join(lines) + "\n]}\n"
    (folder / "oracle.json").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="model folders")
    parser.add_argument("--out", type=Path, help="write into FOLDER/<name of DIR> instead of DIR")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for directory in args.directories:
        vocab_size = transformers.AutoConfig.from_pretrained(directory).vocab_size
        answers = answer(directory, random_prompts(vocab_size))
        write(args.out / directory.name if args.out else directory, answers)
        spread = torch.cat([answer.logits for answer in answers]).std().item()
        errors = ", ".join(f"{answer.bf16_max_abs_error:.3f}" for answer in answers)
        margins = sorted(margin for answer in answers for margin in answer.margins)
        close = sum(margin <= 1e-3 for margin in margins)
        print(f"{directory}: logits std {spread:.2f}; bf16 errors {errors}; {close} close greedy margins")


if __name__ == "__main__":
    main()
