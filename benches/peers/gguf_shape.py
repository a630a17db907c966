"""The shape of a dense model, and the bytes of its matrices, from a GGUF file."""

import sys

from shapes import FileShape

# Matrices with at most this many bits per weight are compared with the peak of 4-bit products.
NIBBLE_BITS = 5.5


def read(package, path):
    """The `FileShape` of the file at `path`, read by llama.cpp's Python package in the folder `package`."""
    sys.path.insert(0, str(package))
    from gguf import GGUFReader

    reader = GGUFReader(path)
    value = lambda key: reader.fields[key].contents() if key in reader.fields else None
    arch = value("general.architecture")
    of = lambda key: value(f"{arch}.{key}")
    if of("expert_count") or of("ssm.state_size"):
        raise SystemExit(f"--gguf: {path} has experts or recurrent states; --gguf measures only dense transformers")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    matrices = [tensor for name, tensor in tensors.items() if len(tensor.shape) == 2 and name.startswith("blk.")] + [head]
    n_bytes = sum(int(tensor.n_bytes) for tensor in matrices)
    in_nibbles = sum(int(tensor.n_bytes) for tensor in matrices if 8 * tensor.n_bytes / tensor.n_elements <= NIBBLE_BITS)
    hidden, heads = of("embedding_length"), of("attention.head_count")
    return FileShape(
        arch, int(head.shape[1]), hidden, of("block_count"), heads, of("attention.head_count_kv") or heads,
        of("attention.key_length") or hidden // heads, of("feed_forward_length"), "output.weight" not in tensors,
        of("rope.freq_base") or 1e4, of("attention.layer_norm_rms_epsilon") or 0.0, of("context_length"),
        matrix_bytes=n_bytes, nibbles=2 * in_nibbles > n_bytes,
    )
