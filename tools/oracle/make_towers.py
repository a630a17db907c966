"""Makes the tiny random vision towers of tests/fixtures/towers, with the vectors that transformers computes.

    python tools/oracle/make_towers.py [--out tests/fixtures/towers] [NAME ...]

A folder has the config.json of a vision-language model (of its text model only the width), the tensors of its tower and
projector under the names of published checkpoints, and oracle.safetensors: for each image its patches, in the order of
the model's image processor, and its vectors. Weights and patches are seeded and representable in bfloat16, so that the
files are small and the engine computes with the same values. transformers computes in float32.
"""

import argparse
import json
import math
import zlib
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.models.gemma3.configuration_gemma3 import Gemma3Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig, Gemma4VisionConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4MultimodalEmbedder, Gemma4VisionModel
from transformers.models.lfm2_vl.configuration_lfm2_vl import Lfm2VlConfig
from transformers.models.lfm2_vl.modeling_lfm2_vl import Lfm2VlMultiModalProjector
from transformers.models.mistral3.configuration_mistral3 import Mistral3Config
from transformers.models.mistral3.modeling_mistral3 import Mistral3MultiModalProjector
from transformers.models.pixtral.configuration_pixtral import PixtralVisionConfig
from transformers.models.pixtral.modeling_pixtral import PixtralVisionModel
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.models.siglip.configuration_siglip import SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipVisionModel
from transformers.models.siglip2.configuration_siglip2 import Siglip2VisionConfig
from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionModel

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURES = REPOSITORY / "tests/fixtures/towers"

TEXT_WIDTH = 20
# An epsilon that changes the vectors visibly, where the configuration has one.
WIDE_EPS = 0.05

VISION = {
    "hidden_size": 24,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 4,
}
QWEN = {
    "hidden_size": 24,
    "intermediate_size": 44,
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": TEXT_WIDTH,
    "num_position_embeddings": 25,
    "hidden_act": "gelu_pytorch_tanh",
    "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
}
QWEN3_VL = QWEN | {"depth": 3, "deepstack_visual_indexes": [0, 2]}
GEMMA4 = VISION | {
    "num_key_value_heads": 2,
    "head_dim": 12,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 12,
    "rms_norm_eps": WIDE_EPS,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
}


def bf16(x):
    return x.to(torch.bfloat16).to(torch.float32)


def fill(module, generator):
    """Fills all parameters and buffers with random values that make every part of the tower matter."""
    named = list(module.named_parameters()) + [
        (name, x) for name, x in module.named_buffers() if "inv_freq" not in name and "position_ids" not in name
    ]
    for name, x in named:
        noise = torch.randn(x.shape, generator=generator)
        if name.endswith(("input_min", "output_min")):
            value = -1.0 - noise.abs() / 4
        elif name.endswith(("input_max", "output_max")):
            value = 1.0 + noise.abs() / 4
        elif name.endswith("mm_soft_emb_norm.weight"):
            value = noise / 4
        elif name.endswith("std_scale") or (x.ndim == 1 and name.endswith("weight")):
            value = 1.0 + noise / 4
        elif x.ndim <= 1:
            value = noise / 4
        elif "position" in name or "pos_embed" in name:
            value = noise / 2
        elif name.endswith("mm_input_projection_weight"):
            value = noise / math.sqrt(x.shape[0])
        else:
            # Queries and keys are larger, so that attention is peaked.
            scale = 2.0 if any(part in name for part in ("qkv", "q_proj", "k_proj")) else 1.2
            value = noise * scale / math.sqrt(x[0].numel())
        with torch.no_grad():
            x.copy_(bf16(value))


def pixels_of(h, w, patch, generator):
    return bf16(torch.randn(1, 3, h * patch, w * patch, generator=generator))


def cut(pixels, patch):
    """Rows of patches, values by channel, row, column."""
    _, c, height, width = pixels.shape
    blocks = pixels.reshape(c, height // patch, patch, width // patch, patch)
    return blocks.permute(1, 3, 0, 2, 4).reshape(-1, c * patch * patch).contiguous()


class Qwen:
    grids = [(4, 6), (2, 10), (2, 2)]
    prefix = {"tower": "model.visual."}

    def __init__(self):
        self.tower = Qwen3_5VisionModel(Qwen3_5VisionConfig(**QWEN))
        self.config = {"model_type": "qwen3_5", "vision_config": QWEN}

    def encode(self, h, w, generator):
        patches = bf16(torch.randn(h * w, 3 * 2 * 4 * 4, generator=generator))
        return patches, self.tower(patches, grid_thw=torch.tensor([[1, h, w]])).pooler_output


class Qwen3Vl:
    """Its vectors are those of the projector, then for the same position those of each projector of a layer's output."""

    grids = [(4, 6), (2, 10), (2, 2)]
    prefix = {"tower": "model.visual."}

    def __init__(self):
        self.tower = Qwen3VLVisionModel(Qwen3VLVisionConfig(**QWEN3_VL))
        self.config = {"model_type": "qwen3_vl", "vision_config": QWEN3_VL}

    def encode(self, h, w, generator):
        patches = bf16(torch.randn(h * w, 3 * 2 * 4 * 4, generator=generator))
        encoded = self.tower(patches, grid_thw=torch.tensor([[1, h, w]]))
        return patches, torch.cat([encoded.pooler_output, *encoded.deepstack_features], dim=-1)


class Gemma3:
    grids = [(6, 6)]
    prefix = {"tower": "vision_tower.vision_model.", "projector": "multi_modal_projector."}

    def __init__(self):
        vision = VISION | {"image_size": 24, "layer_norm_eps": WIDE_EPS, "vision_use_head": False}
        self.config = {"model_type": "gemma3", "mm_tokens_per_image": 4, "vision_config": vision}
        self.tower = SiglipVisionModel(SiglipVisionConfig(**vision))
        text = {"hidden_size": TEXT_WIDTH, "num_attention_heads": 2, "num_key_value_heads": 2}
        whole = Gemma3Config(
            vision_config=vision | {"model_type": "siglip_vision_model"}, text_config=text, mm_tokens_per_image=4
        )
        self.projector = Gemma3MultiModalProjector(whole)

    def encode(self, h, w, generator):
        pixels = pixels_of(h, w, 4, generator)
        return cut(pixels, 4), self.projector(self.tower(pixels).last_hidden_state)[0]


class Gemma4:
    grids = [(6, 3), (3, 12)]
    prefix = {"tower": "model.vision_tower.", "projector": "model.embed_vision."}
    options = {"use_clipped_linears": True, "standardize": True}

    def __init__(self):
        vision = GEMMA4 | self.options
        self.config = {"model_type": "gemma4", "vision_config": vision}
        config = Gemma4VisionConfig(**vision)
        self.tower = Gemma4VisionModel(config)
        text = Gemma4TextConfig(hidden_size=TEXT_WIDTH)
        self.projector = Gemma4MultimodalEmbedder(config, text)

    def encode(self, h, w, generator):
        patches = bf16(torch.rand(h * w, 3 * 4 * 4, generator=generator))
        places = torch.tensor([[x, y] for y in range(h) for x in range(w)])
        pooled = self.tower(pixel_values=patches[None], pixel_position_ids=places[None]).last_hidden_state
        return patches, self.projector(pooled)


class Gemma4Plain(Gemma4):
    options = {}


class Pixtral:
    grids = [(4, 6), (2, 2), (6, 2)]
    prefix = {"tower": "vision_tower.", "projector": "multi_modal_projector."}

    def __init__(self):
        vision = VISION | {
            "model_type": "pixtral",
            "image_size": 64,
            "hidden_act": "silu",
            "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
        }
        self.config = {
            "model_type": "mistral3",
            "spatial_merge_size": 2,
            "projector_hidden_act": "gelu",
            "vision_config": vision,
            "text_config": {"rms_norm_eps": WIDE_EPS},
        }
        self.tower = PixtralVisionModel(PixtralVisionConfig(**vision))
        text = {"model_type": "mistral", "hidden_size": TEXT_WIDTH, "rms_norm_eps": WIDE_EPS}
        whole = Mistral3Config(vision_config=vision, text_config=text, spatial_merge_size=2)
        self.projector = Mistral3MultiModalProjector(whole)

    def encode(self, h, w, generator):
        pixels = pixels_of(h, w, 4, generator)
        sizes = torch.tensor([[h * 4, w * 4]])
        encoded = self.tower(pixels, image_sizes=sizes).last_hidden_state
        return cut(pixels, 4), self.projector(encoded[0], sizes)


class Lfm2:
    grids = [(4, 6), (2, 8), (10, 4)]
    prefix = {"tower": "model.vision_tower.vision_model.", "projector": "model.multi_modal_projector."}

    def __init__(self):
        vision = VISION | {"num_patches": 36, "layer_norm_eps": WIDE_EPS, "vision_use_head": False}
        self.config = {
            "model_type": "lfm2_vl",
            "downsample_factor": 2,
            "projector_hidden_size": 28,
            "vision_config": vision,
        }
        self.tower = Siglip2VisionModel(Siglip2VisionConfig(**vision))
        whole = Lfm2VlConfig(
            vision_config=vision | {"model_type": "siglip2_vision_model"},
            text_config={"model_type": "lfm2", "hidden_size": TEXT_WIDTH},
            downsample_factor=2,
            projector_hidden_size=28,
        )
        self.projector = Lfm2VlMultiModalProjector(whole)

    def encode(self, h, w, generator):
        patches = bf16(torch.randn(h * w, 4 * 4 * 3, generator=generator))
        mask = torch.ones(1, h * w, dtype=torch.long)
        shapes = torch.tensor([[h, w]])
        encoded = self.tower(patches[None], pixel_attention_mask=mask, spatial_shapes=shapes).last_hidden_state
        return patches, self.projector(encoded.reshape(1, h, w, -1)).reshape(-1, TEXT_WIDTH)


TOWERS = {
    "qwen": Qwen,
    "qwen3-vl": Qwen3Vl,
    "gemma3": Gemma3,
    "gemma4": Gemma4,
    "gemma4-plain": Gemma4Plain,
    "pixtral": Pixtral,
    "lfm2": Lfm2,
}


def make(name, folder):
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    tower = TOWERS[name]()
    tensors = {}
    for part, prefix in tower.prefix.items():
        module = getattr(tower, part).eval()
        fill(module, generator)
        state = module.state_dict()
        tensors |= {prefix + key: x.to(torch.bfloat16).contiguous() for key, x in state.items()}
    oracle = {}
    for h, w in tower.grids:
        with torch.no_grad():
            patches, vectors = tower.encode(h, w, generator)
        print(f"{name}, {h} x {w}: {tuple(vectors.shape)}, deviation {vectors.std():.3f}")
        oracle[f"{h}x{w}.patches"] = patches.to(torch.bfloat16).contiguous()
        oracle[f"{h}x{w}.vectors"] = vectors.float().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    text = {"text_config": {"hidden_size": TEXT_WIDTH} | tower.config.get("text_config", {})}
    (folder / "config.json").write_text(json.dumps(tower.config | text, indent=2) + "\n")
    save_file(tensors, folder / "model.safetensors")
    save_file(oracle, folder / "oracle.safetensors")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=FIXTURES)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the towers to make (all by default)")
    arguments = parser.parse_args()
    for name in arguments.names or TOWERS:
        make(name, arguments.out / name)


if __name__ == "__main__":
    main()
