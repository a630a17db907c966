"""Checks the quality and the size of the bundled model against limits.

Usage: python tools/bundled_model/check.py [--model models/souffleur-tiny] [--show]
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from corpus import words_of
from evaluation import mean_loss

THREADS = 2
DEFAULT_MODEL = Path(__file__).resolve().parents[2] / "models" / "souffleur-tiny"
MAX_NEW_TOKENS = 256
LOSS_TOLERANCE = 0.05
MIN_KNOWN_WORDS = 0.98
MIN_ENDED = 0.90
MAX_WEIGHT_BYTES = 8_000_000
MAX_FOLDER_BYTES = 10_000_000


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def generate(model, tokenizer, messages):
    """The greedy answer, and whether it ended by itself."""
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(text, return_tensors="pt")
    output = model.generate(**prompt, do_sample=False, temperature=None, top_p=None, max_new_tokens=MAX_NEW_TOKENS)
    answer = output[0, prompt["input_ids"].shape[1] :]
    ended = answer[-1].item() in model.generation_config.eos_token_id
    return tokenizer.decode(answer, skip_special_tokens=True), ended


def rendered_as_recorded(tokenizer, held_out):
    return all(tokenizer.apply_chat_template(row["messages"], tokenize=False) == row["text"] for row in held_out)


def report(name, value, passed):
    print(f"{'ok  ' if passed else 'FAIL'} {name}: {value}")
    return passed


def check_precision(folder, dtype, show):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    held_out = read_lines(folder / "eval" / "held_out.jsonl")
    vocabulary = set((folder / "eval" / "words.txt").read_text().split())
    recorded = json.loads((folder / "training.json").read_text())["held_out_loss"]

    loss, _ = mean_loss(model, [tokenizer(row["text"])["input_ids"] for row in held_out])
    words, known, ended = 0, 0, 0
    prompts = read_lines(folder / "eval" / "prompts.jsonl")
    for prompt in prompts:
        answer, did_end = generate(model, tokenizer, prompt["messages"])
        said = words_of(answer)
        words += len(said)
        known += sum(word in vocabulary for word in said)
        ended += did_end
        if show:
            print(f"> {prompt['messages'][0]['content']}\n{answer}\n")

    print(f"in {dtype}:")
    return all([
        report("chat template", "as recorded", rendered_as_recorded(tokenizer, held_out)),
        report("held-out loss", f"{loss:.4f}, recorded {recorded:.4f}", abs(loss / recorded - 1) <= LOSS_TOLERANCE),
        report("known words", f"{known} of {words}", known >= MIN_KNOWN_WORDS * words),
        report("ended by itself", f"{ended} of {len(prompts)}", ended >= MIN_ENDED * len(prompts)),
    ])


def check_sizes(folder):
    weights = (folder / "model.safetensors").stat().st_size
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return all([
        report("bytes of weights", weights, weights <= MAX_WEIGHT_BYTES),
        report("bytes in all", total, total <= MAX_FOLDER_BYTES),
    ])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL)
    parser.add_argument("--show", action="store_true", help="print what the model answers")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    passed = [check_sizes(arguments.model)]
    passed += [check_precision(arguments.model, torch.float32, arguments.show)]
    passed += [check_precision(arguments.model, torch.bfloat16, False)]
    raise SystemExit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
