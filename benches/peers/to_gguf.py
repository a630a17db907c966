"""Converts a model from make_models.py with llama.cpp's converter: to_gguf.py LLAMA_CPP MODEL_DIR TYPE OUT.

The converter recognises tokenizers by a hash of their output for a text; it does not know this one, so the script sets its kind.
"""

import json
import runpy
import sys
from pathlib import Path

llama_cpp, model, kind, out = sys.argv[1:]
sys.path[:0] = [llama_cpp, llama_cpp + "/gguf-py"]

from conversion import base  # noqa: E402

changed = 0
for owner in list(vars(base).values()):
    if isinstance(owner, type) and "get_vocab_base_pre" in vars(owner):
        owner.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
        changed += 1
if not changed:
    raise SystemExit("to_gguf: conversion/base.py has no class with get_vocab_base_pre: this is not the pinned version of llama.cpp")
sys.argv = ["convert_hf_to_gguf.py", model, "--outtype", kind, "--outfile", out]
if "linear_num_key_heads" in json.loads(Path(model, "config.json").read_text()):
    # The converter expects layers for speculative decoding in models with delta nets; these models have none.
    sys.argv.append("--no-mtp")
runpy.run_path(llama_cpp + "/convert_hf_to_gguf.py", run_name="__main__")
