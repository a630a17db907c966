"""Makes tests/fixtures/image_logits: prompts with images, and the logits that transformers computes for them.

    python tools/oracle/make_image_logits.py [--out tests/fixtures/image_logits] [NAME ...]

An image is a grid of random vectors in place of embeddings, between two marks; towers have their own fixtures. The
text models are those of tests/fixtures/models. Positions are those of the model's own `get_rope_index`, and the masks of
Gemma those of its own `create_masks_for_vision_model`. Gemma's files also have the logits of wrong masks.
"""

import argparse
import json
import zlib
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5Model

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURES = REPOSITORY / "tests/fixtures"

PAD, BEGIN, END = 250, 251, 252
# A number is so many tokens of text, a pair an image's rows and columns of vectors.
PROMPTS = [
    [9],
    [(2, 3), 8],
    [4, (3, 2), 6],
    [5, (1, 4)],
    [2, (2, 2), 1, (4, 1), (1, 5), 5],
]
# The last image is longer than the models' windows.
GEMMA_PROMPTS = PROMPTS + [[3, (5, 6), 4]]
GEMMA = {"gemma3": modeling_gemma3, "gemma4-plain": modeling_gemma4}
# Every fourth of Gemma's logits is stored.
COLUMN_STEP = 4


def model_of(folder):
    text = json.loads((folder / "config.json").read_text())["text_config"]
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text)).float().eval()
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("model.language_model.", "model."): x.float() for name, x in weights.items()}
    model.load_state_dict(renamed)
    return model


def positions(tokens, kinds, grids):
    """Of time, rows and columns, [3, 1, tokens]."""
    stub = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=1)))
    stub.get_vision_position_ids = Qwen3_5Model.get_vision_position_ids.__get__(stub)
    grids = torch.tensor([[1, rows, columns] for rows, columns in grids]) if grids else None
    return Qwen3_5Model.get_rope_index(stub, tokens, kinds, image_grid_thw=grids)[0]


def prompt_of(model, parts, generator):
    """The prompt, the vectors of its images, its ids, its kinds of tokens (1 for vectors), and its embeddings."""
    tokens, kinds, images, vectors = [], [], [], []
    for part in parts:
        if isinstance(part, int):
            text = torch.randint(2, 240, (part,), generator=generator).tolist()
            tokens += text
            kinds += [0] * part
            continue
        rows, columns = part
        images.append({"first": len(tokens), "rows": rows, "columns": columns})
        tokens += [BEGIN] + [PAD] * (rows * columns) + [END]
        kinds += [0] + [1] * (rows * columns) + [0]
        vectors.append(torch.randn(rows * columns, model.config.hidden_size, generator=generator))
    ids, kinds = torch.tensor([tokens]), torch.tensor([kinds])
    embeddings = model.get_input_embeddings()(ids)
    # As large as the model's own embeddings.
    vectors = [x * embeddings.std() for x in vectors]
    if vectors:
        embeddings[kinds == 1] = torch.cat(vectors)
    return {"tokens": tokens, "images": images}, vectors, ids, kinds, embeddings


def answer(model, parts, generator):
    prompt, vectors, ids, kinds, embeddings = prompt_of(model, parts, generator)
    grids = [(image["rows"], image["columns"]) for image in prompt["images"]]
    places = positions(ids, kinds, grids)
    text_places = torch.arange(ids.shape[1]).view(1, 1, -1)
    logits = model(inputs_embeds=embeddings, position_ids=torch.cat([text_places, places])).logits[0]
    return prompt, vectors, {"logits": logits}


def gemma_of(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def gemma_answer(module, model, parts, generator):
    """Also the logits of causal masks, and for Gemma 4 of the masks of Gemma 3."""
    prompt, vectors, ids, kinds, embeddings = prompt_of(model, parts, generator)
    arguments = {
        "config": model.config,
        "inputs_embeds": embeddings,
        "attention_mask": None,
        "past_key_values": None,
        "position_ids": torch.arange(ids.shape[1])[None],
    }
    runs = module.get_block_sequence_ids_for_mask(kinds, device=ids.device)
    masks = {"logits": module.create_masks_for_vision_model(block_sequence_ids=runs, **arguments), "causal": None}
    if module is modeling_gemma4:
        masks["everywhere"] = modeling_gemma3.create_masks_for_vision_model(block_sequence_ids=runs, **arguments)
    logits = {name: model(inputs_embeds=embeddings, attention_mask=mask).logits[0] for name, mask in masks.items()}
    return prompt, vectors, {name: x[:, ::COLUMN_STEP] for name, x in logits.items()}


def make(name, out):
    folder = FIXTURES / "models" / name
    model = gemma_of(folder) if name in GEMMA else model_of(folder)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    prompts, tensors = [], {}
    for index, parts in enumerate(GEMMA_PROMPTS if name in GEMMA else PROMPTS):
        with torch.no_grad():
            if name in GEMMA:
                prompt, vectors, logits = gemma_answer(GEMMA[name], model, parts, generator)
            else:
                prompt, vectors, logits = answer(model, parts, generator)
        prompts.append(prompt)
        tensors |= {f"{index}.{kind}": x.contiguous() for kind, x in logits.items()}
        tensors |= {f"{index}.vectors.{k}": x.contiguous() for k, x in enumerate(vectors)}
        right = logits["logits"]
        wrong = {kind: f"{(x - right).abs().max():.1e}" for kind, x in logits.items() if kind != "logits"}
        print(f"{name}, {parts}: {tuple(right.shape)}, deviation {right.std():.2f}, wrong by {wrong}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "prompts.json").write_text(json.dumps(prompts) + "\n")
    save_file(tensors, out / "oracle.safetensors")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=FIXTURES / "image_logits")
    parser.add_argument("names", nargs="*", metavar="NAME", default=["qwen3-5", *GEMMA])
    arguments = parser.parse_args()
    for name in arguments.names:
        make(name, arguments.out / name)


if __name__ == "__main__":
    main()
