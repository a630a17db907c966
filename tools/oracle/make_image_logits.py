"""Makes tests/fixtures/image_logits: prompts with images, and the logits that transformers computes for them.

    python tools/oracle/make_image_logits.py [--out tests/fixtures/image_logits] [NAME ...]

An image is a grid of random vectors in place of embeddings, between two marks; towers have their own fixtures. The
text models are those of tests/fixtures/models. Positions are those of the model's own `get_rope_index`, and the masks of
Gemma those of its own `create_masks_for_vision_model`. In Qwen3-VL a vector continues with those that are added to the
outputs of the first layers. Files also have logits with mistakes: `N.sectioned` of Qwen3-VL are the last token's of the
N-th prompt with sections of M-RoPE that are not interleaved, those of Gemma have wrong masks.
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
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel, Qwen3VLTextModel

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


class Qwen35:
    whole = Qwen3_5Model
    n_sets = 0

    def __init__(self, config, weights):
        self.model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config["text_config"])).float().eval()
        self.model.load_state_dict({name.replace("model.language_model.", "model."): x for name, x in weights.items()})
        self.embedding = self.model.get_input_embeddings()

    def logits(self, embeddings, places, is_image, sets):
        return self.model(inputs_embeds=embeddings, position_ids=places).logits[0]


class Qwen3Vl:
    whole = Qwen3VLModel

    def __init__(self, config, weights):
        self.n_sets = len(config["vision_config"]["deepstack_visual_indexes"])
        self.model = Qwen3VLTextModel(Qwen3VLTextConfig(**config["text_config"])).float().eval()
        self.model.load_state_dict({name.removeprefix("model.language_model."): x for name, x in weights.items()})
        self.embedding = self.model.get_input_embeddings()

    def logits(self, embeddings, places, is_image, sets):
        deepstack = {"visual_pos_masks": is_image, "deepstack_visual_embeds": sets} if sets else {}
        states = self.model(inputs_embeds=embeddings, position_ids=places, **deepstack).last_hidden_state[0]
        return states @ self.embedding.weight.T

    def sectioned(self, *arguments):
        """The logits with pairs that rotate by time, row and column in three sections, as in Qwen2-VL."""
        rotary = self.model.rotary_emb
        interleaved = rotary.recomposition_frequencies

        def recompose(frequencies):
            parts = frequencies.split(rotary.mrope_section, dim=-1)
            joined = torch.cat([part[axis] for axis, part in enumerate(parts)], dim=-1)
            return torch.cat([joined, joined], dim=-1)

        rotary.recomposition_frequencies = recompose
        logits = self.logits(*arguments)
        rotary.recomposition_frequencies = interleaved
        return logits


MODELS = {"qwen3-5": Qwen35, "qwen3-vl": Qwen3Vl}


def model_of(name):
    folder = FIXTURES / "models" / name
    weights = {name: x.float() for name, x in load_file(folder / "model.safetensors").items()}
    return MODELS[name](json.loads((folder / "config.json").read_text()), weights)


def positions(whole, tokens, kinds, grids):
    """Of time, rows and columns, [3, 1, tokens]."""
    stub = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=1)))
    stub.get_vision_position_ids = whole.get_vision_position_ids.__get__(stub)
    grids = torch.tensor([[1, rows, columns] for rows, columns in grids]) if grids else None
    return whole.get_rope_index(stub, tokens, kinds, image_grid_thw=grids)[0]


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
        width = model.embedding.embedding_dim * (1 + model.n_sets)
        vectors.append(torch.randn(rows * columns, width, generator=generator))
    ids, kinds = torch.tensor([tokens]), torch.tensor([kinds])
    embeddings = model.embedding(ids)
    # As large as the model's own embeddings.
    vectors = [x * embeddings.std() for x in vectors]
    is_image = kinds == 1
    sets = []
    if vectors:
        first, *sets = torch.cat(vectors).chunk(1 + model.n_sets, dim=-1)
        embeddings[is_image] = first
    return {"tokens": tokens, "images": images}, vectors, ids, kinds, embeddings, sets


def answer(model, parts, generator):
    prompt, vectors, ids, kinds, embeddings, sets = prompt_of(model, parts, generator)
    grids = [(image["rows"], image["columns"]) for image in prompt["images"]]
    places = positions(model.whole, ids, kinds, grids)
    text_places = torch.arange(ids.shape[1]).view(1, 1, -1)
    arguments = (embeddings, torch.cat([text_places, places]), kinds == 1, sets)
    logits = {"logits": model.logits(*arguments)}
    if hasattr(model, "sectioned"):
        logits["sectioned"] = model.sectioned(*arguments)[-1:]
    return prompt, vectors, logits


class Gemma:
    n_sets = 0

    def __init__(self, folder):
        eager = {"dtype": torch.float32, "attn_implementation": "eager"}
        self.model = AutoModelForCausalLM.from_pretrained(folder, **eager).eval()
        self.embedding = self.model.get_input_embeddings()


def gemma_answer(module, gemma, parts, generator):
    """Also the logits of causal masks, and for Gemma 4 of the masks of Gemma 3."""
    prompt, vectors, ids, kinds, embeddings, _ = prompt_of(gemma, parts, generator)
    model = gemma.model
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
    model = Gemma(FIXTURES / "models" / name) if name in GEMMA else model_of(name)
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
        mistakes = {kind: x - right[-len(x) :] for kind, x in logits.items() if kind != "logits"}
        wrong = {kind: f"{x.abs().max():.1e}" for kind, x in mistakes.items()}
        print(f"{name}, {parts}: {tuple(right.shape)}, deviation {right.std():.2f}, wrong by {wrong}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "prompts.json").write_text(json.dumps(prompts) + "\n")
    save_file(tensors, out / "oracle.safetensors")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=FIXTURES / "image_logits")
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*MODELS, *GEMMA])
    arguments = parser.parse_args()
    for name in arguments.names:
        make(name, arguments.out / name)


if __name__ == "__main__":
    main()
