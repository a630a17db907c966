"""All skills and how often each is used, and the fallback for everything else."""

from crafts import (ECHO_WORDS, arithmetic, as_json, counting, echo, joke, listing, poem, riddle, story)
from grammar import pick
from knowledge import (advice, animal, calendar, capital, colour, engine, opposite, sequence, single_fact, size,
                       theatre)
from smalltalk import (abilities, complaint, compliment, farewell, favourites, feelings, greeting, identity,
                       introduction, thanks)
from unknown import (ADMIT, CODE, CODE_ANSWER, CURRENT, CURRENT_ANSWER, EXPERT, EXPERT_ANSWER, FOREIGN,
                     FOREIGN_ANSWER, GIBBERISH, GIBBERISH_ANSWER, HARD_SUMS, HARD_SUMS_ANSWER, NEWS, NEWS_ANSWER, OFFER,
                     OPINION, OPINION_ANSWER, QUESTIONS, STATEMENT, STATEMENT_ANSWER, TASKS, TASKS_ANSWER, TOPICS)

# (weight, prompts, the answer before the offer)
UNKNOWN = [
    (8, QUESTIONS, ADMIT), (2, CODE, CODE_ANSWER), (2, CURRENT, CURRENT_ANSWER), (1, EXPERT, EXPERT_ANSWER),
    (2, FOREIGN, FOREIGN_ANSWER), (2, GIBBERISH, GIBBERISH_ANSWER), (1, OPINION, OPINION_ANSWER),
    (2, TASKS, TASKS_ANSWER), (1, HARD_SUMS, HARD_SUMS_ANSWER),
    (1, NEWS, NEWS_ANSWER), (1, STATEMENT, STATEMENT_ANSWER),
]


def unknown(rng):
    """Whatever a user may type: the answer is honest, friendly and short."""
    topic = rng.choice(TOPICS)
    _, asked, answer = rng.choices(UNKNOWN, [weight for weight, _, _ in UNKNOWN])[0]
    numbers = dict(big=rng.randint(100, 9999), large=rng.randint(21, 999), middle=rng.randint(21, 99),
                   year=rng.randint(1200, 2030))
    user = pick(rng, asked, topic=topic, other=rng.choice(TOPICS), word=rng.choice(ECHO_WORDS),
                next=rng.choice(ECHO_WORDS), **numbers)
    return [(user, pick(rng, answer) + " " + pick(rng, OFFER))]


# (weight, skill)
SKILLS = [
    (5, greeting), (3, introduction), (4, identity), (2, abilities), (2, feelings), (1.5, favourites),
    (2, thanks), (1, compliment), (1.5, complaint), (1.5, farewell),
    (5, capital), (2, colour), (5, animal), (2.5, opposite), (2, size), (2, calendar), (3, single_fact),
    (1, sequence), (9, engine), (6, theatre), (6, advice),
    (7, arithmetic), (1.5, counting), (6, listing), (11, story), (3, poem), (2, joke), (1.5, riddle),
    (4, echo), (2, as_json), (12, unknown),
]
