// The texts below the pictures, for readers who see the engine for the first time.

const EXPLANATIONS = {
  Actors: [
    "A request goes from the server to the Tokenizer, which makes tokens of its text, and to the Scheduler, " +
      "which queues it. For each step the Scheduler sends a plan: the RadixCache finds cached prefixes and " +
      "evicts others, the Allocator grants pages, and the plan returns. The Executor computes it while the next " +
      "one is made. Its tokens return to the Tokenizer, which sends text to the client.",
    "Each actor owns its data alone and handles one message at a time. If one dies, the Watchdog rebuilds all " +
      "of them.",
  ],
  "Radix tree": [
    "Prompts that begin alike share the keys and values of their beginning, which are computed once. A box is " +
      "a run of tokens, and the boxes below it continue it. A box is as wide as its own tokens and those of all " +
      "boxes below it.",
    "A new box flashes. A prompt that leaves a box in its middle splits it. When memory is short, boxes that " +
      "no request uses fall out, in the order of the eviction policy. A pin keeps a box in memory.",
  ],
  Steps: [
    "A step computes one batch: parts of prompts (prefill), the next token of running requests (decode), or " +
      "both (mixed). A bar is as wide as the step took and as tall as the tokens that it computed, on a " +
      "logarithmic scale.",
    "In the gaps the engine plans, samples, or has no work.",
  ],
  Requests: [
    "A lane is a request: the tokens of its prompt that came from the cache, those that were computed, those " +
      "still to compute, and its output. Running requests come first, then those that wait, then those that ended.",
    "A long prompt is computed in parts, so that other requests go on. If memory is short, a request is " +
      "retracted: it waits, and later continues from the cache.",
  ],
  Memory: [
    "The KV pool holds the keys and values of tokens. A page is free, belongs to one running request alone, " +
      "or is in the tree. Pages of the tree are in use by requests, or can be evicted.",
    "Each actor counts its own pages, and after every plan the counts must add up to the pool. If they did " +
      "not, this picture would say so in red.",
  ],
};
