"""Writes the first inputs of the fuzz targets from the fixtures: seeds.py FIXTURES OUT."""

import base64
import json
import sys
from pathlib import Path

# As in targets/settings.rs.
TYPES = ["qwen3_5", "gemma3", "gemma4", "pixtral", "mistral3", "lfm2_vl"]

fixtures, out = Path(sys.argv[1]), Path(sys.argv[2])
for entry in json.loads((fixtures / "files.json").read_text()):
    folder = out / entry["name"].split("-")[0]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / entry["name"]).write_bytes(base64.b64decode(entry["file"]))
settings = out / "settings"
settings.mkdir(parents=True, exist_ok=True)
for name, files in json.loads((fixtures / "cases.json").read_text())["processors"].items():
    number = TYPES.index(files["model_type"]) if files["model_type"] in TYPES else 0
    for which, key in ((0, "preprocessor"), (128, "processor")):
        if key in files:
            text = json.dumps(files[key]).encode()
            (settings / f"{name}-{key}").write_bytes(bytes([which + number]) + text)
