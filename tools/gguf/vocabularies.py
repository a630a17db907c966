"""Compares our tokenizers with the expected ids beside llama.cpp's vocabulary files.

    python tools/gguf/vocabularies.py FOLDER [NAME ...]

FOLDER is `models` of llama.cpp's sources, with `ggml-vocab-NAME.gguf`, `.gguf.inp` and `.gguf.out`; without names all are
taken. Each vocabulary becomes JSON in a temporary folder, which a unit test of the engine reads. The test prints what
each output ends at, every text with other ids, and a line of totals; it fails for differences that are not explained.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gguf import GGUFReader

REPOSITORY = Path(__file__).resolve().parents[2]
PREFIX = "tokenizer.ggml."
SEPARATOR = "\n__ggml_vocab_test__\n"
TEST = "model::text::gguf::tests::files::vocabulary_files_encode_as_expected"


def fields(path):
    found = GGUFReader(path).fields.items()
    return {key[len(PREFIX) :]: field.contents() for key, field in found if key.startswith(PREFIX)}


def cases(path):
    """Texts and their ids; none where the files beside the vocabulary are missing."""
    texts, ids = (path.with_name(path.name + suffix) for suffix in (".inp", ".out"))
    if not (texts.exists() and ids.exists()):
        return {"texts": [], "ids": []}
    texts = texts.read_bytes().decode().split(SEPARATOR)
    ids = [[int(token) for token in line.split()] for line in ids.read_text().split("\n")]
    if len(ids) == len(texts) + 1 and not ids[-1]:
        ids.pop()
    if len(ids) != len(texts):
        sys.exit(f"{path}: {len(texts)} texts, but {len(ids)} lines of ids")
    return {"texts": texts, "ids": ids}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    names = {f"ggml-vocab-{name}.gguf" for name in arguments.names}
    files = sorted(arguments.folder.glob("ggml-vocab-*.gguf"))
    files = [file for file in files if not names or file.name in names]
    if not files:
        sys.exit(f"{arguments.folder} has no such ggml-vocab-*.gguf")
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            name = file.name.removeprefix("ggml-vocab-").removesuffix(".gguf")
            text = json.dumps(fields(file) | cases(file))
            (Path(folder) / f"{name}.json").write_text(text)
        command = ["cargo", "test", "--locked", "--lib", "--", TEST, "--exact", "--nocapture"]
        environment = os.environ | {"SOUFFLEUR_VOCABULARIES": folder}
        sys.exit(subprocess.run(command, cwd=REPOSITORY, env=environment).returncode)


main()
