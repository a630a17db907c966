"""A tiny template language: `[a|b|c]` picks one option, `{slot}` inserts a value."""

import re

CHOICE = re.compile(r"\[([^\[\]]*)\]")
VOWELS = "aeiou"


def expand(rng, template, **slots):
    """Resolves choices from the inside out, then fills the slots."""
    text = template
    while match := CHOICE.search(text):
        option = rng.choice(match.group(1).split("|"))
        text = text[: match.start()] + option + text[match.end() :]
    for name, value in slots.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def pick(rng, templates, **slots):
    return expand(rng, rng.choice(templates), **slots)


def with_article(noun):
    return ("an " if noun[0].lower() in VOWELS else "a ") + noun


def capitalise(text):
    return text[:1].upper() + text[1:]


def join_list(items):
    if len(items) == 1:
        return items[0]
    return ", ".join(items[:-1]) + " and " + items[-1]
