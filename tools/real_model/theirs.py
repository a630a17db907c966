"""The results of llama.cpp and transformers for the file."""

import re

import gguf
import torch
from llama_cpp import Llama
from transformers import AutoModelForCausalLM, DynamicCache

# Logits of a large vocabulary take a megabyte for each token.
CHUNK_TOKENS = 256
MARKER_TYPES = (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
MOST_MARKERS = 200
# Unused rows of the embedding, some of which converters mark as user-defined.
FILLER = re.compile(r"\[PAD\d+\]$")


class Vocabulary:
    """llama.cpp's tokenizer."""

    def __init__(self, file):
        fields = gguf.GGUFReader(file).fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        types = fields["tokenizer.ggml.token_type"].contents()
        self.markers = [text for text, kind in zip(tokens, types) if kind in MARKER_TYPES and text.strip() and not FILLER.match(text)][:MOST_MARKERS]
        # It puts a space before every text, also after markers: texts with markers do not decode to themselves.
        prefix = fields.get("tokenizer.ggml.add_space_prefix")
        is_sentence_piece = fields["tokenizer.ggml.model"].contents() == "llama"
        self.puts_blanks = is_sentence_piece and (prefix is None or prefix.contents())
        self.llama = Llama(model_path=str(file), vocab_only=True, verbose=False)

    def tokenize(self, text, add_special_tokens=False):
        """The ids of a text, in which each marker is one token."""
        return self.llama.tokenize(text.encode(), add_bos=add_special_tokens, special=True)

    def comes_back(self, text):
        """Whether the ids of a text become the same text."""
        return not (self.puts_blanks and any(marker in text for marker in self.markers))

    def pieces(self, ids):
        """The texts of ids, for people."""
        return [self.llama.detokenize([token], special=True) for token in ids]


def key_dim(file):
    """Elements of a key of one head."""
    fields = gguf.GGUFReader(file).fields
    value = lambda name: fields[f"{fields['general.architecture'].contents()}.{name}"].contents()
    try:
        return value("attention.key_length")
    except KeyError:
        return value("embedding_length") // value("attention.head_count")


@torch.no_grad()
def reference(file, ids, prompts, count):
    """transformers in f32 with the dequantised weights: log probabilities of `ids`; for each prompt the greedy
    tokens, and the logit of each minus the second highest."""
    # Plain matrix products and a softmax, no fused kernel with different numerics.
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager").eval()
    return log_probabilities(model, ids), [greedy(model, prompt, count) for prompt in prompts]


def log_probabilities(model, ids):
    """The log probability of each token but the first."""
    cache, found = DynamicCache(), []
    for start in range(0, len(ids) - 1, CHUNK_TOKENS):
        fed = ids[start : start + CHUNK_TOKENS][: len(ids) - 1 - start]
        logits = model(torch.tensor([fed]), past_key_values=cache, use_cache=True).logits[0]
        following = torch.tensor(ids[start + 1 : start + 1 + len(fed)])
        found += logits.double().log_softmax(dim=-1).gather(-1, following[:, None])[:, 0].tolist()
    return found


def greedy(model, ids, count):
    """The greedy tokens, and the logit of each minus the second highest."""
    chosen, margins, cache, fed = [], [], DynamicCache(), ids
    for _ in range(count):
        best = model(torch.tensor([fed]), past_key_values=cache, use_cache=True).logits[0, -1].topk(2)
        chosen.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
        fed = chosen[-1:]
    return chosen, margins
