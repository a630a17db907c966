"""Makes the tiny random models of tests/fixtures/models: one for each family and rope variant.

    python tools/oracle/make_models.py [--out tests/fixtures/models] [NAME ...]

Every config.json is written from a dictionary in this file, in the old style (`rope_theta`, `rope_scaling`) or in
that of transformers 5 (`rope_parameters`), and read back by transformers, so that the engine and the oracle parse the
same file. The weights are seeded. Their scales make the logits spread (standard deviation about 2) and the attention
peaked, so that a wrong rotation, window, norm or bias moves the logits by far more than the tests allow.
"""

import argparse
import json
import math
import shutil
import zlib
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURES = REPOSITORY / "tests/fixtures/models"

VOCAB_SIZE = 288
BOS, EOS = 0, 1
HIDDEN = 64
LAYERS = 2
CONTEXT = 256
WINDOW = 24
# An epsilon that changes the logits visibly. The usual 1e-5 and 1e-6 give nearly the same logits.
WIDE_EPS = 0.05

SPECIAL_TOKENS = ["<s>", "</s>"]
# The tokenizer learns a few merges from this text.
TOKENIZER_TEXT = "The prompter feeds the actors their lines, and the actors feed the audience. " * 4

BASE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "intermediate_size": 112,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
LLAMA = BASE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN2 = BASE | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = BASE | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MISTRAL = BASE | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN3_MOE = BASE | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
MIXTRAL = BASE | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
LFM2 = {name: value for name, value in BASE.items() if name != "rms_norm_eps"} | {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "norm_eps": 1e-5,
}
# No two head widths are equal: a test notices if two are confused.
DELTA_NET = BASE | {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 20,
}
QWEN3_VL = BASE | {"model_type": "qwen3_vl_text"}
QWEN3_5 = DELTA_NET | {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}
QWEN3_5_MOE = DELTA_NET | {"model_type": "qwen3_5_moe_text"}
QWEN3_NEXT = DELTA_NET | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}
# Families whose checkpoints store the norm weights minus one.
NORM_MINUS_ONE_FAMILIES = ("qwen3_5", "qwen3_next", "gemma2", "gemma3")

# Published config.json files of Gemma name the activation under both keys.
GEMMA = BASE | {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 24,
    "sliding_window": WINDOW,
    "rms_norm_eps": 1e-6,
}
GEMMA2 = GEMMA | {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}
GEMMA3 = GEMMA | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    # Gemma 3 normalizes queries and keys, which makes the scores smaller. A small value here scales them up.
    "query_pre_attn_scalar": 3,
}

DEEPSEEK_V2 = BASE | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_key_value_heads": 4,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 12,
    "v_head_dim": 28,
    "moe_intermediate_size": 24,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = DEEPSEEK_V2 | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
GLM4_MOE_LITE = DEEPSEEK_V2 | {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite"}
GPT_OSS = BASE | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "intermediate_size": 64,
    "head_dim": 24,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": WINDOW,
    "attention_bias": True,
    "rope_theta": 5000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "truncate": False,
    },
    "swiglu_limit": 1.5,
}
YARN = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "mscale": 1.0,
    "mscale_all_dim": 0.6,
}

GRANITE = BASE | {"architectures": ["GraniteForCausalLM"], "model_type": "granite"}
OLMO2 = BASE | {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "pad_token_id": EOS}
SMOLLM3 = BASE | {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3"}
# The default `pad_token_id` of Phi-3, 32000, is beyond the vocabulary.
PHI3 = BASE | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": EOS}
MINISTRAL3 = BASE | {
    "architectures": ["Ministral3ForCausalLM"],
    "model_type": "ministral3",
    "head_dim": 24,
    "rope_parameters": YARN | {"rope_type": "yarn", "rope_theta": 10000.0, "llama_4_scaling_beta": 0.4},
    "pad_token_id": EOS,
}

GEMMA4 = {name: value for name, value in GEMMA.items() if name != "hidden_act"} | {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
}

# Transformers builds vision-language models with their vision tower, whose weights this script does not store.
TINY_VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}

# With two sets of vectors of an image for the first two layers of the text model.
TINY_QWEN_VISION = {
    "model_type": "qwen3_vl_vision",
    "hidden_size": 16,
    "intermediate_size": 16,
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
}

# Standard deviations of router logits. Sigmoid routers have a smaller one: sigmoids of large logits are all nearly 0
# or 1.
ROUTER_GAIN = 6.0
SIGMOID_ROUTER_GAIN = 1.5

# name: (config.json, stored dtype, number of shards)
MODELS = {
    "llama": (
        LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dtype": "float32"},
        torch.float32,
        1,
    ),
    "llama-rope-llama3": (
        LLAMA
        | {
            "rope_theta": 10000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
            "tie_word_embeddings": True,
            "eos_token_id": [EOS, 2],
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "llama-rope-linear": (
        LLAMA
        | {
            "rope_theta": 5000.0,
            "rope_scaling": {"type": "linear", "factor": 4.0},
            "attention_bias": True,
            "mlp_bias": True,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "llama-rope-yarn": (
        LLAMA
        | {
            "head_dim": 24,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "llama-rope-yarn-full": (
        LLAMA
        | {
            "head_dim": 32,
            "num_key_value_heads": 4,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 2000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 3.0,
                "beta_slow": 0.5,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "truncate": False,
            },
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "llama-rope-yarn-given": (
        LLAMA
        | {
            "rms_norm_eps": WIDE_EPS,
            "mlp_bias": True,
            "rope_theta": 5000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": None,
                "original_max_position_embeddings": 32,
                "attention_factor": 1.3,
                "beta_fast": 4.0,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
            },
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "llama-sharded": (
        LLAMA | {"num_key_value_heads": 1, "rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": "float16"},
        torch.float16,
        3,
    ),
    "qwen2": (
        QWEN2
        | {
            "rope_theta": 1000000.0,
            "use_sliding_window": False,
            "sliding_window": WINDOW,
            "max_window_layers": 0,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "qwen2-window": (
        QWEN2
        | {
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "head_dim": 24,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "qwen3": (
        QWEN3
        | {
            "head_dim": 32,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "qwen3-window": (
        QWEN3
        | {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rms_norm_eps": WIDE_EPS,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "qwen3-moe": (
        QWEN3_MOE
        | {
            "head_dim": 32,
            "num_experts": 11,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "qwen3-moe-sparse": (
        QWEN3_MOE
        | {
            "num_hidden_layers": 5,
            "num_local_experts": 6,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 16,
            "intermediate_size": 48,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "mixtral": (
        MIXTRAL
        | {
            "intermediate_size": 56,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": None,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "mixtral-window": (
        MIXTRAL
        | {
            "head_dim": 24,
            "intermediate_size": 48,
            "rms_norm_eps": WIDE_EPS,
            "num_experts": 4,
            "num_experts_per_tok": 3,
            "sliding_window": WINDOW,
            "rope_theta": 5000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "lfm2": (
        LFM2
        | {
            "num_hidden_layers": 5,
            "layer_types": ["conv", "full_attention", "conv", "full_attention", "conv"],
            "block_ffn_dim_multiplier": 1.3,
            "block_multiple_of": 16,
            "block_auto_adjust_ff_dim": True,
            "rope_theta": 1000000.0,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "lfm2-bias": (
        LFM2
        | {
            "num_hidden_layers": 4,
            "full_attn_idxs": [0, 2],
            "conv_bias": True,
            "conv_L_cache": 4,
            "block_ff_dim": 80,
            "block_auto_adjust_ff_dim": False,
            "tie_embedding": False,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "lfm2-attention": (
        LFM2
        | {
            "norm_eps": WIDE_EPS,
            "block_auto_adjust_ff_dim": False,
            "intermediate_size": 80,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "lfm2-moe": (
        LFM2
        | {
            "architectures": ["Lfm2MoeForCausalLM"],
            "model_type": "lfm2_moe",
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "routed_scaling_factor": 1.5,
            "use_expert_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "lfm2-moe-plain": (
        LFM2
        | {
            "architectures": ["Lfm2MoeForCausalLM"],
            "model_type": "lfm2_moe",
            "norm_eps": WIDE_EPS,
            "layer_types": ["full_attention", "conv"],
            "conv_bias": True,
            "conv_L_cache": 2,
            "num_dense_layers": 0,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": False,
            "use_expert_bias": False,
            "tie_embedding": False,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "qwen3-vl": (
        {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "tie_word_embeddings": True,
            "vision_config": TINY_QWEN_VISION,
            "text_config": QWEN3_VL
            | {
                "num_hidden_layers": 3,
                "intermediate_size": 64,
                "head_dim": 32,
                "tie_word_embeddings": True,
                "rope_theta": 10000.0,
                "rope_scaling": {"rope_type": "default", "mrope_section": [7, 5, 4], "mrope_interleaved": True},
                "dtype": "bfloat16",
            },
        },
        torch.bfloat16,
        1,
    ),
    "qwen3-5": (
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "tie_word_embeddings": False,
            "text_config": QWEN3_5
            | {
                "num_hidden_layers": 4,
                "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 0.25,
                    "mrope_section": [2, 1, 1],
                    "mrope_interleaved": True,
                },
                "dtype": "bfloat16",
            },
        },
        torch.bfloat16,
        1,
    ),
    "qwen3-5-interval": (
        QWEN3_5
        | {
            "num_hidden_layers": 3,
            "full_attention_interval": 2,
            "attention_bias": True,
            "linear_conv_kernel_dim": 3,
            "linear_key_head_dim": 21,
            "partial_rotary_factor": 0.5,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "qwen3-5-tied": (
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "tie_word_embeddings": True,
            "text_config": QWEN3_5
            | {
                "layer_types": ["linear_attention", "full_attention"],
                "rms_norm_eps": WIDE_EPS,
                "tie_word_embeddings": True,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 2000.0,
                    "partial_rotary_factor": 0.5,
                    "factor": 8.0,
                    "original_max_position_embeddings": 32,
                    "mrope_section": [4, 2, 2],
                    "mrope_interleaved": True,
                },
                "dtype": "bfloat16",
            },
        },
        torch.bfloat16,
        1,
    ),
    "qwen3-5-moe": (
        {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "text_config": QWEN3_5_MOE
            | {
                "layer_types": ["full_attention", "linear_attention"],
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
                "shared_expert_intermediate_size": 40,
                "dtype": "bfloat16",
            },
        },
        torch.bfloat16,
        1,
    ),
    "qwen3-next": (
        QWEN3_NEXT
        | {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 32,
            "norm_topk_prob": False,
            "mlp_only_layers": [0],
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "qwen3-next-sparse": (
        QWEN3_NEXT
        | {
            "num_hidden_layers": 4,
            "rms_norm_eps": WIDE_EPS,
            "attention_bias": True,
            "partial_rotary_factor": 0.75,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
            "intermediate_size": 48,
            "decoder_sparse_step": 2,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "deepseek-v2": (
        DEEPSEEK_V2
        | {
            "q_lora_rank": None,
            "kv_lora_rank": 48,
            "rope_scaling": YARN,
            "rope_theta": 10000.0,
            "n_routed_experts": 9,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "topk_method": "greedy",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
        },
        torch.bfloat16,
        1,
    ),
    "deepseek-v2-grouped": (
        DEEPSEEK_V2
        | {
            "q_lora_rank": 40,
            "kv_lora_rank": 40,
            "rms_norm_eps": 0.02,
            "n_routed_experts": 12,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "first_k_dense_replace": 1,
            "rope_theta": 5000.0,
        },
        torch.bfloat16,
        1,
    ),
    "deepseek-v3": (
        DEEPSEEK_V3
        | {
            "q_lora_rank": 36,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 24,
            "rope_scaling": YARN | {"mscale": 0.7},
            "n_routed_experts": 9,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "n_group": 3,
            "topk_group": 2,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.6,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 1,
        },
        torch.bfloat16,
        1,
    ),
    "deepseek-v3-plain": (
        DEEPSEEK_V3
        | {
            "q_lora_rank": None,
            "kv_lora_rank": 40,
            "rope_interleave": False,
            "attention_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 0.6,
            "first_k_dense_replace": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        torch.bfloat16,
        1,
    ),
    "glm4-moe-lite": (
        GLM4_MOE_LITE
        | {
            "q_lora_rank": 24,
            "kv_lora_rank": 32,
            "v_head_dim": 36,
            "n_routed_experts": 7,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 0.7,
            "mlp_layer_types": ["sparse", "dense"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 1.0},
        },
        torch.bfloat16,
        1,
    ),
    "glm4-moe-lite-grouped": (
        GLM4_MOE_LITE
        | {
            "num_hidden_layers": 3,
            "intermediate_size": 80,
            "q_lora_rank": None,
            "kv_lora_rank": 40,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 12,
            "v_head_dim": 20,
            "rope_interleave": False,
            "attention_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 0,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.4,
            "rms_norm_eps": WIDE_EPS,
            "tie_word_embeddings": True,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
        },
        torch.bfloat16,
        1,
    ),
    "gpt-oss": (
        GPT_OSS | {"layer_types": ["full_attention", "sliding_attention"], "torch_dtype": "bfloat16"},
        torch.bfloat16,
        1,
    ),
    "gpt-oss-plain": (
        {name: value for name, value in GPT_OSS.items() if name not in ("head_dim", "rope_scaling")}
        | {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rms_norm_eps": WIDE_EPS,
            "intermediate_size": 48,
            "num_local_experts": 4,
            "num_experts_per_tok": 3,
            "attention_bias": False,
            "rope_theta": 500.0,
            "swiglu_alpha": 1.1,
            "swiglu_limit": 2.5,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "gpt-oss-mxfp4": (
        GPT_OSS
        | {
            "layer_types": ["sliding_attention", "full_attention"],
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "tie_word_embeddings": True,
            "quantization_config": {
                "quant_method": "mxfp4",
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
            },
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "granite": (
        GRANITE
        | {
            "embedding_multiplier": 2.5,
            "attention_multiplier": 0.4,
            "residual_multiplier": 0.6,
            "logits_scaling": 1.7,
            "rope_theta": 10000.0,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "granite-bias": (
        GRANITE
        | {
            "num_key_value_heads": 1,
            "rms_norm_eps": WIDE_EPS,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "residual_multiplier": 1.3,
            "rope_scaling": {"type": "linear", "factor": 4.0},
            "rope_theta": 5000.0,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "olmo2": (
        OLMO2
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, "dtype": "bfloat16"},
        torch.bfloat16,
        1,
    ),
    "olmo2-bias": (
        OLMO2
        | {
            "num_key_value_heads": 4,
            "rms_norm_eps": WIDE_EPS,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_scaling": {"type": "linear", "factor": 4.0},
            "rope_theta": 10000.0,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "smollm3": (
        SMOLLM3 | {"no_rope_layers": [0, 1], "rope_theta": 10000.0, "pad_token_id": EOS, "torch_dtype": "bfloat16"},
        torch.bfloat16,
        1,
    ),
    "smollm3-window": (
        SMOLLM3
        | {
            "num_hidden_layers": 5,
            "intermediate_size": 48,
            "rms_norm_eps": WIDE_EPS,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "pad_token_id": EOS,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "phi3": (
        PHI3 | {"sliding_window": WINDOW, "rope_theta": 10000.0, "torch_dtype": "bfloat16"},
        torch.bfloat16,
        1,
    ),
    "phi3-partial": (
        PHI3
        | {
            "num_key_value_heads": 1,
            "rms_norm_eps": WIDE_EPS,
            "partial_rotary_factor": 0.75,
            "tie_word_embeddings": True,
            "rope_theta": 5000.0,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "phi3-longrope": (
        PHI3
        | {
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 32,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.05, 1.2, 1.4, 1.9, 2.5],
                "long_factor": [1.1, 1.6, 3.0, 7.0, 15.0, 30.0],
            },
            "rope_theta": 10000.0,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "phi3-longrope-su": (
        PHI3
        | {
            "num_key_value_heads": 4,
            "sliding_window": WINDOW,
            "original_max_position_embeddings": 32,
            "rope_scaling": {
                "type": "su",
                # With the old type name `su`, transformers looks for this key here too.
                "original_max_position_embeddings": 32,
                "attention_factor": 1.1,
                "short_factor": [1.0, 1.02, 1.1, 1.2, 1.4, 1.7, 2.0, 2.2],
                "long_factor": [1.2, 1.5, 2.5, 4.0, 9.0, 14.0, 25.0, 40.0],
            },
            "rope_theta": 10000.0,
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "ministral3": (MINISTRAL3 | {"torch_dtype": "bfloat16"}, torch.bfloat16, 1),
    "mistral3": (
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "text_config": {name: value for name, value in MINISTRAL3.items() if name != "architectures"}
            | {"num_key_value_heads": 1, "sliding_window": WINDOW, "tie_word_embeddings": False},
            # The weights of the vision tower are not stored.
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "head_dim": 8,
                "image_size": 28,
                "patch_size": 14,
            },
            "tie_word_embeddings": False,
            "eos_token_id": EOS,
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "gemma2": (
        GEMMA2
        | {
            "layer_types": ["full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 10,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
            "rope_theta": 10000.0,
            "eos_token_id": [EOS, 2],
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "gemma2-plain": (
        GEMMA2
        | {
            "num_hidden_layers": 3,
            "intermediate_size": 80,
            "rms_norm_eps": WIDE_EPS,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": None,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "gemma3": (
        GEMMA3
        | {
            "num_hidden_layers": 3,
            "intermediate_size": 80,
            "sliding_window_pattern": 2,
            "rope_theta": 20000.0,
            "rope_local_base_freq": 500.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "eos_token_id": [EOS, 2],
            "torch_dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "gemma3-wrapped": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "eos_token_id": EOS,
            "vision_config": TINY_VISION,
            "text_config": GEMMA3
            | {
                "rms_norm_eps": WIDE_EPS,
                "layer_types": ["full_attention", "sliding_attention"],
                "attention_bias": True,
                "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": 10.0,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                },
                "dtype": "bfloat16",
            },
        },
        torch.bfloat16,
        1,
    ),
    "gemma4": (
        GEMMA4
        | {
            "intermediate_size": 48,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"] * 2,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "final_logit_softcapping": 10.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 200.0},
            },
            "eos_token_id": [EOS, 2],
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "gemma4-experts": (
        {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "vision_config": None,
            "audio_config": None,
            "text_config": GEMMA4
            | {
                "intermediate_size": 48,
                "num_hidden_layers": 3,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "enable_moe_block": True,
                "num_experts": 5,
                "top_k_experts": 2,
                "moe_intermediate_size": 24,
                "dtype": "bfloat16",
            },
        },
        torch.bfloat16,
        1,
    ),
    "gemma4-plain": (
        GEMMA4
        | {
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "rms_norm_eps": WIDE_EPS,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
    "mistral": (
        MISTRAL | {"rope_theta": 10000.0, "sliding_window": WINDOW, "torch_dtype": "bfloat16"},
        torch.bfloat16,
        1,
    ),
    "mistral-full": (
        MISTRAL
        | {
            "head_dim": 24,
            "num_key_value_heads": 1,
            "rms_norm_eps": WIDE_EPS,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
            "dtype": "bfloat16",
        },
        torch.bfloat16,
        1,
    ),
}


# Models that store each expert's matrices as separate tensors: the module's name, then the names of the gate, up and
# down projections.
EXPERT_NAMES = {
    "qwen3-moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3-next": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "lfm2-moe": ("feed_forward", ("w1", "w3", "w2")),
    "deepseek-v2": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "deepseek-v3": ("mlp", ("gate_proj", "up_proj", "down_proj")),
    "glm4-moe-lite-grouped": ("mlp", ("gate_proj", "up_proj", "down_proj")),
}

# Models whose published checkpoints have layers for speculative decoding after the last one of the model.
EXTRA_LAYER_MODELS = {"deepseek-v3"}


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TOKENIZER_TEXT], trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def random_weight(name, tensor, config, generator):
    """Draws a random tensor, whose scale depends on the use of the tensor."""

    def normal(std):
        return torch.randn(tensor.shape, generator=generator) * std

    def between(low, high):
        return low + torch.rand(tensor.shape, generator=generator) * (high - low)

    if name.endswith("A_log"):
        # Makes the state decay by a factor of .9 to .999 for each token: a faster decay would hide errors in the state.
        return between(math.log(0.0015), math.log(0.15))
    if name.endswith("dt_bias"):
        return between(-1.0, 1.0)
    if name.endswith(("in_proj_b.weight", "in_proj_ba.weight", "shared_expert_gate.weight")):
        return normal(2 / math.sqrt(HIDDEN))
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        return between(0.5, 1.5)
    if name.endswith(".router.proj.weight"):
        # The model divides the router's input by the root of the hidden size.
        return normal(ROUTER_GAIN)
    if name.endswith("expert_bias"):
        return normal(0.3)
    if "norm" in name and config.model_type.startswith(NORM_MINUS_ONE_FAMILIES) and "linear_attn" not in name:
        return between(-0.5, 0.5)
    if config.model_type == "olmo2" and name.endswith(("q_norm.weight", "k_norm.weight")):
        # OLMo 2 normalizes queries and keys, which makes the scores of narrow heads small. These weights scale them up.
        return between(1.0, 3.0)
    if "norm" in name:
        return 0.5 + torch.rand(tensor.shape, generator=generator)
    if name.endswith(".bias") and "router" not in name:
        return normal(0.3)
    if "embed_tokens" in name:
        return normal(2 / math.sqrt(HIDDEN) if config.tie_word_embeddings else 0.5)
    if "lm_head" in name:
        return normal(2 / math.sqrt(HIDDEN))
    if name.endswith("sinks"):
        return 4 * torch.rand(tensor.shape, generator=generator) - 1
    if name.endswith("proj_bias"):
        return normal(0.3)
    if name.endswith("mlp.router.bias"):
        return normal(3.0)
    if name.endswith(("mlp.gate.weight", "mlp.router.weight", "feed_forward.gate.weight")):
        sigmoid = config.model_type in ("deepseek_v3", "glm4_moe_lite", "lfm2_moe")
        return normal((SIGMOID_ROUTER_GAIN if sigmoid else ROUTER_GAIN) / math.sqrt(HIDDEN))
    if config.model_type == "gpt_oss" and ".experts." in name:
        # In transformers, experts of GPT-OSS have the shape (experts, inputs, outputs).
        return normal(1 / math.sqrt(tensor.shape[1]))
    if name.endswith("e_score_correction_bias"):
        return normal(0.5)
    peaked = ("q_proj", "k_proj", "q_b_proj", "kv_a_proj", "qkv_proj")
    gain = 1.4 if any(part in name for part in peaked) else 1.0
    # The last axis is that of the inputs, also in stacked experts.
    return normal(gain / math.sqrt(tensor.shape[-1]))


def unstack_experts(weights, expert_names):
    """Splits stacked experts into one tensor for each matrix of each expert, as most checkpoints store them."""
    module, (gate, up, down) = expert_names
    result = {}
    for name, tensor in weights.items():
        layer, _, rest = name.partition(".feed_forward." if ".feed_forward." in name else ".mlp.")
        match rest:
            case "experts.gate_up_proj":
                for i, expert in enumerate(tensor):
                    halves = zip((gate, up), expert.chunk(2))
                    result |= {f"{layer}.{module}.experts.{i}.{part}.weight": half.clone() for part, half in halves}
            case "experts.down_proj":
                experts = enumerate(tensor)
                result |= {f"{layer}.{module}.experts.{i}.{down}.weight": expert.clone() for i, expert in experts}
            case "gate.weight":
                result[f"{layer}.{module}.gate.weight"] = tensor
            case _:
                result[name] = tensor
    return result


def random_mxfp4(name, tensor, generator):
    """Returns random MXFP4 blocks (4-bit codes) and scales for experts of the shape (experts, inputs, outputs)."""
    experts, inputs, outputs = tensor.shape
    shape = (experts, outputs, inputs // 32)
    blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
    # The root mean square of the sixteen values of a code is 2.9.
    middle = 127 - round(math.log2(2.9 * math.sqrt(inputs)))
    scales = torch.randint(middle - 1, middle + 2, shape, generator=generator, dtype=torch.uint8)
    scales[..., 0, 0] = 0
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}


def save_weights(directory, weights, n_shards):
    if n_shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    weight_map = {}
    for shard in range(n_shards):
        file = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors"
        part = {name: weights[name] for name in names[shard::n_shards]}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(directory / "model.safetensors.index.json", index)


def write_json(file, value):
    file.write_text(json.dumps(value, indent=2) + "\n")


def make(name, directory):
    config, dtype, n_shards = MODELS[name]
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": config.get("eos_token_id", EOS)})
    make_tokenizer().save(str(directory / "tokenizer.json"))
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    write_json(directory / "tokenizer_config.json", tokenizer_config)

    full_config = AutoConfig.from_pretrained(directory)
    is_quantized = hasattr(full_config, "quantization_config")
    if is_quantized:
        del full_config.quantization_config
    text_config = full_config.get_text_config()
    # transformers has no class for only the decoder of this family.
    is_whole = full_config.model_type == "qwen3_vl"
    model = (
        AutoModelForImageTextToText.from_config(full_config)
        if is_whole
        else AutoModelForCausalLM.from_config(text_config)
    )
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    weights = {}
    for tensor_name, tensor in sorted(model.state_dict().items()):
        if tensor_name == "lm_head.weight" and text_config.tie_word_embeddings:
            continue
        if tensor_name.startswith("model.visual."):
            continue
        # A model without shared experts has empty tensors for them, which are not stored.
        if tensor.numel() == 0:
            continue
        if is_quantized and tensor_name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            weights |= random_mxfp4(tensor_name, tensor, generator)
            continue
        # Routing corrections are stored as f32, also in bf16 models.
        stored = torch.float32 if "correction_bias" in tensor_name else dtype
        weights[tensor_name] = random_weight(tensor_name, tensor, text_config, generator).to(stored).contiguous()
    if full_config is not text_config and not is_whole:
        # Vision-language checkpoints have a longer prefix for the tensors of the language model.
        if full_config.model_type == "mistral3":
            weights = {f"language_model.{name}": tensor for name, tensor in weights.items()}
        else:
            weights = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in weights.items()}
    if name in EXPERT_NAMES:
        weights = unstack_experts(weights, EXPERT_NAMES[name])
    if name in EXTRA_LAYER_MODELS:
        extra = f"model.layers.{text_config.num_hidden_layers}"
        weights[f"{extra}.eh_proj.weight"] = torch.ones(HIDDEN, 2 * HIDDEN, dtype=dtype)
        weights[f"{extra}.input_layernorm.weight"] = torch.ones(HIDDEN, dtype=dtype)
    save_weights(directory, weights, n_shards)
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"{name}: {sum(tensor.numel() for tensor in weights.values())} weights, {size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to make (all)")
    parser.add_argument("--out", type=Path, default=FIXTURES, help="folder that gets one folder for each model")
    args = parser.parse_args()
    unknown = set(args.names) - set(MODELS)
    if unknown:
        parser.error(f"unknown models {sorted(unknown)}, choose from {sorted(MODELS)}")
    for name in args.names or MODELS:
        make(name, args.out / name)


if __name__ == "__main__":
    main()
