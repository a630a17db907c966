"""Things the model can make. Each skill returns the turns of one subject.

A turn is a pair (the user's message, the assistant's answer).
"""

import json

import facts
import stories
from grammar import capitalise, join_list, pick, with_article
from unknown import TOPICS

MAX_SUM_OPERAND = 10
MAX_FACTOR = 5
MAX_COUNT = 10
MAX_ITEMS = 7
MAX_ECHO = 6
FOLLOW_UP_SHARE = 0.35
HERO_SHARE = 0.6
LONG_STORY_SHARE = 0.2
SOLUTION_SHARE = 0.7
SPELLED_SHARE = 0.4
DOWN_SHARE = 0.3
NUMBERED_SHARE = 0.5
AMERICAN_SHARE = 0.5
RARE_SUBJECT_SHARE = 0.4

WANT = "[|please |can you |could you |could you please |I would like you to ]"
FRUIT_COLOURS = {"apple": "red", "banana": "yellow", "cherry": "red", "grape": "green", "lemon": "yellow"}


def vocabulary_for_echo():
    words = set(facts.NAMES) | set(facts.COLOURS.values()) | set(facts.SIZES) | set(facts.NUMBERS) | set(facts.ANIMALS)
    for members in facts.CATEGORIES.values():
        words.update(members)
    for pair in facts.OPPOSITES:
        words.update(pair)
    return sorted(words | {"stage", "curtain", "token", "page", "tree", "river", "lamp", "letter", "story", "whisper"})


ECHO_WORDS = vocabulary_for_echo()


def spoken_or_digits(rng, numbers):
    words = rng.random() < SPELLED_SHARE and max(numbers) < len(facts.NUMBERS)
    return [facts.NUMBERS[n] if words else str(n) for n in numbers]


def arithmetic_turn(rng, templates):
    kind = rng.choice(["plus", "plus", "minus", "times"])
    if kind == "times":
        left, right = rng.randint(1, MAX_FACTOR), rng.randint(1, MAX_FACTOR)
        result = left * right
    else:
        left, right = rng.randint(0, MAX_SUM_OPERAND), rng.randint(0, MAX_SUM_OPERAND)
        result = left + right
        if kind == "minus":
            left, result = result, left
    x, y, z = spoken_or_digits(rng, [left, right, result])
    sign = {"plus": "+", "minus": "-", "times": "*"}[kind]
    slots = dict(x=x, y=y, z=z, op=kind, sign=sign)
    digits = x.isdigit()
    user = pick(rng, templates + (["{x} {sign} {y}", "what is {x} {sign} {y}", "{x}{sign}{y}",
                                   "{x} {sign} {y} ="] if digits else []), **slots)
    answer = pick(rng, ["{x} {op} {y} is {z}."], **slots)
    return user, capitalise(answer)


def arithmetic(rng):
    turns = [arithmetic_turn(rng, ["what is {x} {op} {y}", "how much is {x} {op} {y}",
                                   "[calculate|compute] {x} {op} {y}", "{x} {op} {y}",
                                   "what do you get for {x} {op} {y}", "tell me what {x} {op} {y} is"])]
    while rng.random() < FOLLOW_UP_SHARE:
        turns.append(arithmetic_turn(rng, ["and {x} {op} {y}", "what about {x} {op} {y}", "and what is {x} {op} {y}"]))
    return turns


def counting(rng):
    start = rng.randint(1, 3)
    end = rng.randint(start + 2, start + MAX_COUNT)
    down = rng.random() < DOWN_SHARE
    numbers = list(range(start, end + 1))
    if down:
        numbers.reverse()
    words = spoken_or_digits(rng, numbers)
    user = pick(rng, ["count [|down ]from {x} to {y}", "[can you|please] count from {x} to {y}",
                      "[say|list] the numbers from {x} to {y}"],
                x=words[0], y=words[-1])
    return [(user, capitalise(", ".join(words)) + ".")]


def listing(rng):
    category = rng.choice(list(facts.CATEGORIES))
    members = facts.CATEGORIES[category]
    count = rng.randint(2, min(MAX_ITEMS, len(members)))
    chosen = [members[i] for i in sorted(rng.sample(range(len(members)), count))]
    number = rng.choice([str(count), facts.NUMBERS[count]])
    numbered = rng.random() < NUMBERED_SHARE
    asked = "colors" if category == "colours" and rng.random() < AMERICAN_SHARE else category
    user = pick(rng, ["[name|list|give me|tell me|write down|I need] {n} {c}", "[can|could] you [name|list] {n} {c}",
                      "[make|write] a list of {n} {c}", "what are {n} {c}", "{n} {c}"], n=number, c=asked)
    lead = pick(rng, ["Here are {n} {c}:", "Here are {n} {c}:", "[Of course|With pleasure]. {N} {c}:"],
                n=facts.NUMBERS[count], N=capitalise(facts.NUMBERS[count]), c=category)
    if numbered:
        body = "\n" + "\n".join(f"{i}. {item}" for i, item in enumerate(chosen, 1))
    else:
        body = " " + join_list(chosen) + "."
    return [(user, lead + body)]


def story(rng):
    hero = rng.choice(stories.HEROES) if rng.random() < HERO_SHARE else None
    about = " about " + with_article(hero) if hero else ""
    if rng.random() < LONG_STORY_SHARE:
        user = pick(rng, [WANT + "[tell me|tell|write|make up] a [long|very long|longer] story{about}",
                          "[a|I want a|give me a] long story{about}"], about=about)
        return [(user, stories.long_story(rng, hero))]
    user = pick(rng, [WANT + "[tell me|tell|write|make up] a [|short |little |nice |bedtime ]story{about}",
                      "[a story{about}|story time|once upon a time]",
                      "I want [to hear |]a story{about}", "[do you know|give me] a story{about}"], about=about)
    turns = [(user, stories.story(rng, hero))]
    if rng.random() < FOLLOW_UP_SHARE:
        hero = rng.choice(stories.HEROES)
        turns.append((pick(rng, ["[another one|another story|one more|again], [please, |]this time about {a}",
                                 "now [one|a story] about {a}"], a=with_article(hero)),
                      stories.story(rng, hero)))
    return turns


def poem(rng):
    subject = rng.choice(TOPICS if rng.random() < RARE_SUBJECT_SHARE else stories.POEM_SUBJECTS)
    user = pick(rng, [WANT + "write [|me ]a [|short |little |small ]poem about {x}", "a poem about {x}",
                      "[give me|I want|compose] a poem about {x}"], x=subject)
    return [(user, stories.poem(rng, subject))]


def joke(rng):
    jokes = rng.sample(facts.JOKES, 2)
    turns = [(pick(rng, [WANT + "tell me a [|good |funny |short ]joke",
                         "[do you know a joke|make me laugh|joke|say something funny|I want to laugh|another joke]"]),
              jokes[0])]
    if rng.random() < FOLLOW_UP_SHARE:
        turns.append((pick(rng, ["[another one|another joke|one more|tell me another one][|, please]"]), jokes[1]))
    return turns


def riddle(rng):
    puzzle, solution = rng.choice(facts.RIDDLES)
    turns = [(pick(rng, [WANT + "[ask|give|tell] me a riddle",
                         "[do you know a riddle|riddle|I like riddles|a riddle, please]"]),
              pick(rng, ["{p}", "Here is a riddle: {p}", "{p} [Take your time|Think about it]."], p=puzzle))]
    if rng.random() < SOLUTION_SHARE:
        turns.append((pick(rng, ["[I don't know|I do not know|tell me|what is the answer|I give up|no idea|what is "
                                 "it|tell me the answer]"]),
                      pick(rng, ["The answer is: {s}.", "It is {s}."], s=solution)))
    return turns


def echo(rng):
    words = [rng.choice(ECHO_WORDS) for _ in range(rng.randint(1, MAX_ECHO))]
    text = " ".join(words)
    user = pick(rng, ["[repeat after me|repeat|say|echo|please repeat|please say|write]: {t}",
                      "[say|repeat|write] \"{t}\"",
                      "[repeat the words|say the words] {t}"], t=text)
    return [(user, pick(rng, ["{t}", "{t}", "\"{t}\""], t=text))]


def person_record(rng):
    name = rng.choice(facts.GUESTS)
    record = {"name": name, "age": rng.randint(20, 60), "city": rng.choice(facts.CATEGORIES["cities"])}
    return record, rng.choice(["a person", f"a person called {name}"])


def animal_record(rng):
    name = rng.choice(list(facts.ANIMALS))
    return {"name": name, "legs": facts.ANIMALS[name][2]}, rng.choice(["an animal", f"the animal {name}"])


def fruit_record(rng):
    name = rng.choice(list(FRUIT_COLOURS))
    return {"name": name, "colour": FRUIT_COLOURS[name]}, rng.choice(["a fruit", f"the fruit {name}"])


def country_record(rng):
    country = rng.choice(list(facts.CAPITALS))
    return {"country": country, "capital": facts.CAPITALS[country]}, f"the country {country}"


def as_json(rng):
    record, subject = rng.choice([person_record, animal_record, fruit_record, country_record])(rng)
    user = pick(rng, ["[describe|give me|write|show me] {s} [as|in] JSON",
                      "[answer in|reply in|use] JSON: {s} with {f}",
                      "[give me|write|create] a JSON object for {s}", "JSON for {s}"],
                s=subject, f=join_list(list(record)))
    return [(user, json.dumps(record))]
