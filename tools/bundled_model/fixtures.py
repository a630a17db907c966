"""Held-out dialogues, prompts and the word list, for the engine's own tests."""

import json

from corpus import render, words_of

PROMPTS = 50


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def unseen_prompts(training, pool):
    """First messages that do not occur in training, of each kind in turn."""
    seen = {text for dialogue in training for text in dialogue.user_texts}
    by_kind = {}
    for dialogue in pool:
        text = dialogue.user_texts[0]
        if text not in seen:
            seen.add(text)
            by_kind.setdefault(dialogue.kind, []).append(text)
    chosen = []
    while len(chosen) < PROMPTS:
        for kind in sorted(by_kind):
            if by_kind[kind] and len(chosen) < PROMPTS:
                chosen.append({"kind": kind, "messages": [{"role": "user", "content": by_kind[kind].pop(0)}]})
    return chosen


def word_list(dialogues, plain_texts):
    words = set()
    for dialogue in dialogues:
        for _, content in dialogue.messages:
            words.update(words_of(content))
    for text in plain_texts:
        words.update(words_of(text))
    return sorted(words)


def write(folder, training, pool, plain_texts, count):
    folder.mkdir(parents=True, exist_ok=True)
    held_out = [{"kind": d.kind, "messages": d.as_messages, "text": render(d.as_messages)} for d in pool[:count]]
    write_lines(folder / "held_out.jsonl", held_out)
    write_lines(folder / "prompts.jsonl", unseen_prompts(training, pool[count:]))
    (folder / "words.txt").write_text("\n".join(word_list(training, plain_texts)) + "\n")
    return held_out
