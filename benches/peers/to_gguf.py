"""Converts a model of ours with llama.cpp's own converter: to_gguf.py LLAMA_CPP MODEL_DIR TYPE OUT.

The converter recognises tokenizers by a hash of their output for a text; it does not know ours, so this script sets the kind.
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
    raise SystemExit("to_gguf: conversion/base.py has no get_vocab_base_pre any more; this converter is not the pinned one")
sys.argv = ["convert_hf_to_gguf.py", model, "--outtype", kind, "--outfile", out]
if "linear_num_key_heads" in json.loads(Path(model, "config.json").read_text()):
    # Delta nets' families are taken to have layers for speculative decoding; ours have none.
    sys.argv.append("--no-mtp")
runpy.run_path(llama_cpp + "/convert_hf_to_gguf.py", run_name="__main__")
