"""Writes a tiny GGUF file for each family of tokens: a vocabulary, and weights that are zero."""

import collections
import re
import struct

import cases

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
N_MERGES = 260
WIDTH = 32
Q4_0, F32 = 2, 0
# Bytes of a block of 32 zeros.
BLOCK_BYTES = 18
ALIGNMENT = 32
BLANK = "\u2581"


def write(path, pairs, tensors):
    """A GGUF file of version 3. Pairs are key and value; tensors are name, sizes (innermost first) and type."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for key, value in pairs:
        out += text(key) + typed(value)
    data = 0
    for name, sizes, kind in tensors:
        out += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, data)
        data += aligned(n_bytes(sizes, kind))
    path.write_bytes(out + bytes(aligned(len(out)) - len(out) + data))


def n_bytes(sizes, kind):
    """The bytes of a tensor."""
    count = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    return count * 4 if kind == F32 else count // 32 * BLOCK_BYTES


def aligned(size):
    """The next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def text(value):
    """A text with its length."""
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def typed(value):
    """A value with its type."""
    match value:
        case bool():
            return struct.pack("<IB", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
        case _:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def model(path, family):
    """Writes the file of a family."""
    architecture, tokens = family["architecture"], family["pairs"]["tokenizer.ggml.tokens"]
    sizes = {
        "context_length": 4096, "embedding_length": WIDTH, "block_count": 1, "feed_forward_length": WIDTH,
        "attention.head_count": 1, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0, "vocab_size": len(tokens),
    }
    pairs = [("general.architecture", architecture), ("general.name", path.stem)]
    pairs += [(f"{architecture}.{key}", value) for key, value in sizes.items()]
    pairs += family["pairs"].items()
    square = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    rows = [("token_embd", len(tokens)), *((f"blk.0.{name}", WIDTH) for name in square)]
    norms = ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"]
    if architecture == "qwen2":
        norms += [f"blk.0.{name}.bias" for name in square[:3]]
    tensors = [(f"{name}.weight", (WIDTH, count), Q4_0) for name, count in rows]
    write(path, pairs, tensors + [(name, (WIDTH,), F32) for name in norms])


def families():
    """The families: the architecture and the pairs of the tokenizer."""
    qwen = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
            "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
    starcoder = ["<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<filename>",
                 "<reponame>", "<h1>"]
    deepseek = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜fim▁hole｜>", "<｜fim▁begin｜>",
                "<｜fim▁end｜>", "<|EOT|>"]
    llama = ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"]
    gemma = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|file_separator|>"]
    mistral = ["[SUFFIX]", "[PREFIX]", "[MIDDLE]"]
    return {
        "qwen2.5-coder": byte_level("qwen2", {
            "fim_pre": qwen[3], "fim_suf": qwen[5], "fim_mid": qwen[4], "fim_pad": qwen[6], "fim_rep": qwen[7],
            "fim_sep": qwen[8], "eos": qwen[0], "bos": qwen[0], "add_bos": False,
        }, qwen, ["<tool_call>", "</tool_call>"], "qwen2"),
        # Its tokens are found by their texts.
        "starcoder": byte_level("starcoder", {"eos": starcoder[0], "bos": starcoder[0]}, starcoder, []),
        "deepseek-coder": byte_level("deepseek-coder", {
            "fim_pre": deepseek[3], "fim_suf": deepseek[2], "fim_mid": deepseek[4], "eos": deepseek[1],
            "bos": deepseek[0], "add_bos": True,
        }, deepseek, ["ö", "ü"]),
        # The older keys.
        "codellama": sentence_piece({"prefix": llama[0], "suffix": llama[1], "middle": llama[2], "eot": llama[3]},
                                    ["<s>", "</s>"], llama, []),
        "codegemma": sentence_piece({"prefix": gemma[0], "suffix": gemma[2], "middle": gemma[1], "add_space": False},
                                    ["<bos>", "<eos>"], gemma,
                                    ["\n\n", "\n\n\n", " " * 2, " " * 4, " " * 8, "<h1>", "</h1>"]),
        "codestral": sentence_piece({"fim_pre": mistral[1], "fim_suf": mistral[0], "fim_mid": mistral[2]},
                                    ["<s>", "</s>"], mistral, []),
    }


def byte_level(splits, roles, control, user, architecture="llama"):
    """A vocabulary of bytes and merges."""
    spelled = spelling()
    merges = trained("".join(spelled[byte] for byte in word.encode()) for word in words())
    tokens = list(dict.fromkeys([*spelled.values(), *("".join(pair) for pair in merges)]))
    # Bytes that no text has may be missing, and their characters be user-defined tokens.
    pairs = vocabulary("gpt2", [(token, NORMAL) for token in tokens if token not in user], roles, control, user)
    pairs["tokenizer.ggml.pre"] = splits
    pairs["tokenizer.ggml.merges"] = [" ".join(pair) for pair in merges]
    return {"architecture": architecture, "pairs": pairs}


def sentence_piece(roles, ends, control, user):
    """A vocabulary of pieces with scores, in which characters of most scripts are missing."""
    letters = {letter for word in words() for letter in word.replace(" ", BLANK) if letter < "\u0500"} | {BLANK}
    merges = trained(word for word in (word.replace(" ", BLANK) for word in words()) if letters.issuperset(word))
    entries = [("<unk>", UNKNOWN), (ends[0], CONTROL), (ends[1], CONTROL)]
    entries += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    pieces = ["".join(pair) for pair in merges] + sorted(letters)
    # User-defined pieces have spaces, where other pieces have U+2581.
    entries += [(piece, NORMAL) for piece in dict.fromkeys(pieces) if piece.replace(BLANK, " ") not in user]
    roles = {"bos": ends[0], "eos": ends[1], "unknown": "<unk>", "add_bos": True, **roles}
    pairs = vocabulary("llama", entries, roles, control, user)
    n_others, n_tokens = 3 + 256, len(pairs["tokenizer.ggml.tokens"])
    pairs["tokenizer.ggml.scores"] = [float(min(0, n_others - place)) for place in range(n_tokens)]
    return {"architecture": "llama", "pairs": pairs}


def vocabulary(kind, entries, roles, control, user):
    """The pairs of all kinds of vocabularies. Roles are the parts of keys, with a token or a flag."""
    entries = [*entries, *((token, CONTROL) for token in control), *((token, USER) for token in user)]
    tokens = [token for token, _ in entries]
    assert len(set(tokens)) == len(tokens), collections.Counter(tokens).most_common(3)
    pairs = {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": tokens,
             "tokenizer.ggml.token_type": [kind for _, kind in entries]}
    for role, value in roles.items():
        if role == "add_space":
            pairs["tokenizer.ggml.add_space_prefix"] = value
        elif role == "add_bos":
            pairs["tokenizer.ggml.add_bos_token"] = value
        else:
            pairs[f"tokenizer.ggml.{role}_token_id"] = tokens.index(value)
    return pairs


def spelling():
    """GPT-2's characters for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    found = {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    return dict(sorted(found.items()))


def words():
    """The words of the cases, each with the space before it."""
    texts = cases.CODE + cases.HEADER + cases.SCRIPTS + "myproject\nfilename\n"
    return re.findall(r" ?[^\W\d_]+| ?\d| ?[^\w\s]+|\s+(?!\S)|\s+|_", texts)


def trained(texts):
    """The merges of the most frequent pairs."""
    counts = collections.Counter(tuple(word) for word in texts)
    merges = []
    while len(merges) < N_MERGES:
        pairs = collections.Counter()
        for word, count in counts.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        counts = collections.Counter({merged(word, best): count for word, count in counts.items()})
    return merges


def merged(word, pair):
    """A word whose parts are merged."""
    out = []
    for part in word:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)
