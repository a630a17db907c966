"""The synthetic, templated corpus: seeded dialogues and plain texts."""

import random
import re
from dataclasses import dataclass

import stories
from explanations import ENGINE, THEATRE
from skills import SKILLS
from grammar import expand

SYSTEM_SHARE = 0.25
LOWER_CASE_SHARE = 0.3
NO_MARK_SHARE = 0.35
POLITE_SHARE = 0.1
TURN_WEIGHTS = {1: 0.5, 2: 0.25, 3: 0.15, 4: 0.1}
MAX_TURNS = 4

WORD = re.compile(r"[A-Za-z']+")
QUESTION_START = re.compile(
    r"^(what|who|where|when|why|how|which|do|does|can|could|is|are|will|have|should|would)\b", re.IGNORECASE)
SYSTEM_PROMPTS = [
    "You are a [helpful|friendly|kind|polite|useful|good] [assistant|model|chatbot|helper].",
    "You are a [helpful|friendly] assistant. [Answer briefly|Be polite|Answer in English|Use simple words|Be concise].",
    "You are Souffleur[|, a small model|, the prompter of a theatre].",
    "[Answer the questions of the user|Help the user|Talk with the user] [politely|in simple English|as well as you "
    "can].",
    "[Be brief|Be kind|Use short sentences|Answer honestly].",
]


@dataclass(frozen=True)
class Dialogue:
    kind: str
    messages: tuple

    @property
    def as_messages(self):
        return [{"role": role, "content": content} for role, content in self.messages]

    @property
    def user_texts(self):
        return [content for role, content in self.messages if role == "user"]


def render(messages):
    """A complete dialogue, rendered by the chat template."""
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)


def as_typed(rng, text):
    """Varies case and punctuation, as people do when they type."""
    text = text.strip()
    if rng.random() < POLITE_SHARE and QUESTION_START.match(text):
        text = text + ", please"
    last_is_word = text[-1:].isalnum()
    if last_is_word and rng.random() >= NO_MARK_SHARE:
        text += "?" if QUESTION_START.match(text) else rng.choice(".....!")
    if rng.random() >= LOWER_CASE_SHARE:
        text = text[:1].upper() + text[1:]
    elif text != "I":
        text = text.lower() if rng.random() < 0.5 else text
    return text


def typed_turn(rng, kind, turn):
    user, answer = turn
    return (user if kind == "echo" else as_typed(rng, user)), answer


def dialogue(rng):
    weights = [weight for weight, _ in SKILLS]
    wanted = rng.choices(list(TURN_WEIGHTS), list(TURN_WEIGHTS.values()))[0]
    messages = []
    if rng.random() < SYSTEM_SHARE:
        messages.append(("system", expand(rng, rng.choice(SYSTEM_PROMPTS))))
    kind, turns = None, []
    while len(turns) < wanted:
        skill = rng.choices([skill for _, skill in SKILLS], weights)[0]
        kind = kind or skill.__name__
        turns += [typed_turn(rng, skill.__name__, turn) for turn in skill(rng)]
    for user, answer in turns[:MAX_TURNS]:
        messages += [("user", user), ("assistant", answer)]
    return Dialogue(kind, tuple(messages))


def unique_dialogues(seed, count):
    rng = random.Random(seed)
    found = {}
    while len(found) < count:
        made = dialogue(rng)
        found.setdefault(made.messages, made)
    return list(found.values())


def plain_text(rng):
    """Text without a chat template, so that plain completions are legible too."""
    if rng.random() < 0.6:
        return stories.story(rng)
    subjects = {**ENGINE, **THEATRE}
    definition, details = subjects[rng.choice(list(subjects))]
    return " ".join([definition] + details)


def plain_texts(seed, count):
    rng = random.Random(seed)
    return [plain_text(rng) for _ in range(count)]


def words_of(text):
    return [word.lower() for word in WORD.findall(text)]
