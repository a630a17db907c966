"""Facts, explanations and advice. Each skill returns the turns of one subject.

A turn is a pair (the user's message, the assistant's answer).
"""

import facts
from explanations import ADVICE, ENGINE, ENGINE_NAME, THEATRE
from grammar import capitalise, expand, join_list, pick, with_article

FOLLOW_UP_SHARE = 0.35
UNKNOWN_COUNTRY_SHARE = 0.15
REST_SHARE = 0.6
END_SHARE = 0.3
ENGINE_NAME_SHARE = 0.2
NUMBERED_SHARE = 0.6

WHAT_IS = ["[what is|what's|explain|describe|tell me about] {x}", "can you [explain|describe] {x}",
           "[what does {x} do|what do you know about {x}]", "what is {x} [|in simple words|, please|exactly]",
           "I [want to|would like to] [know|learn] what {x} is", "[please tell me|tell me] what {x} is",
           "[how does {x} work|what is {x} for]", "do you know what {x} is", "{x}", "{bare}"]
MORE = ["[tell me more|more|please go on|go on|continue|can you say more|what else|tell me more about it|more "
        "please|and then]"]

ANIMAL_QUESTIONS = {
    "sound": ["what [sound|noise] does {a} make", "what does {a} say", "how does {a} sound"],
    "home": ["where does {a} live", "where can I find {a}", "what is the home of {a}"],
    "legs": ["how many legs does {a} have", "how many legs has {a}"],
    "young": ["what is a young {x} called", "what do you call a young {x}", "what is the name for a baby {x}"],
    "about": ["tell me [something|a fact|more] about {a}", "what do you know about {a}", "what is {a}",
              "[describe|do you know] {a}",
              "tell me [something |]about [the {x}|{xs}]", "[{x}|{xs}]", "what [are|do you know about] {xs}",
              "[give me|I want] a fact about {a}"],
}
ANIMAL_ANSWERS = {
    "sound": ["{A} {sound}.", "{A} {sound}. [Listen well and you can hear it|That is how you know it]."],
    "home": ["{A} lives in {home}.", "You can find {a} in {home}."],
    "legs": ["{A} has {count} legs."],
    "young": ["A young {x} is called {young}.", "We call it {young}."],
    "about": ["{A} {sound} and lives in {home}. It has {count} legs, and {fact}. A young {x} is called {young}.",
              "Here is what I know about {a}: {fact}. It lives in {home}, and a young one is called {young}.",
              "I like {a}. It lives in {home}, and {fact}."],
}


def capital(rng):
    ask = ["what is the capital [|city ]of {x}", "[tell me|do you know|name|give me] the capital of {x}",
           "which city is the capital of {x}",
           "what's the capital of {x}", "{x}: what is the capital", "[the |]capital of {x}",
           "I need the capital of {x}"]
    if rng.random() < UNKNOWN_COUNTRY_SHARE:
        country = rng.choice(facts.OTHER_COUNTRIES)
        answer = pick(rng, ["[I am sorry, but |]I [do not know that capital|have not learned that one]. [I know only "
                            "forty countries|Try another country]."])
        return [(pick(rng, ask, x=country), capitalise(answer))]
    country, city = rng.choice(list(facts.CAPITALS.items()))
    reply = ["The capital of {x} is {y}.", "The capital of {x} is {y}.", "{y} is the capital of {x}.",
             "It is {y}. {y} is the capital of {x}."]
    turns = [(pick(rng, ask, x=country), pick(rng, reply, x=country, y=city))]
    if rng.random() < FOLLOW_UP_SHARE:
        country, city = rng.choice(list(facts.CAPITALS.items()))
        turns.append((pick(rng, ["and of {x}", "and what about {x}", "what about {x}", "and {x}"], x=country),
                      pick(rng, reply, x=country, y=city)))
    elif rng.random() < FOLLOW_UP_SHARE:
        turns.append((pick(rng, ["[where is|in which country is] {y}", "which country has the capital {y}"], y=city),
                      pick(rng, ["{y} is in {x}.", "{y} is the capital of {x}."], x=country, y=city)))
    return turns


def colour(rng):
    thing, shade = rng.choice(list(facts.COLOURS.items()))
    user = pick(rng, ["what [colour|color] is {x}", "which [colour|color] does {x} have",
                      "[tell me|name] the [colour|color] of {x}",
                      "what is the [colour|color] of {x}"], x=thing)
    answer = pick(rng, ["{x} is [|usually |often ]{y}.", "The colour of {low} is {y}."], x=capitalise(thing),
                  low=thing, y=shade)
    return [(user, answer)]


def animal(rng):
    name = rng.choice(list(facts.ANIMALS))
    sound, home, legs, young, fact = facts.ANIMALS[name]
    the_animal = with_article(name)
    count = facts.NUMBERS[legs] if legs else "no"
    asked = rng.choice(list(ANIMAL_QUESTIONS))
    slots = dict(x=name, xs=facts.IRREGULAR_PLURALS.get(name, name + "s"), a=the_animal, A=capitalise(the_animal),
                 sound=sound, home=home, count=count,
                 young=with_article(young), fact=fact)
    turns = [(pick(rng, ANIMAL_QUESTIONS[asked], **slots), pick(rng, ANIMAL_ANSWERS[asked], **slots))]
    if asked != "about" and rng.random() < FOLLOW_UP_SHARE:
        turns.append((pick(rng, MORE), expand(rng, "[I also know that|People say that|It is said that] {fact}.",
                                              fact=fact)))
    return turns


def opposite(rng):
    first, second = rng.choice(facts.OPPOSITES)
    if first != "heavy" and rng.random() < 0.5:
        first, second = second, first
    user = pick(rng, ["what is the opposite of {x}", "[tell me|give me|name] the opposite of {x}",
                      "the opposite of {x}",
                      "which word is the opposite of {x}", "[what is not {x}|opposite of {x}]"], x=first)
    return [(user, pick(rng, ["The opposite of {x} is {y}.", "The opposite of {x} is {y}.", "It is {y}."], x=first,
                        y=second))]


def size(rng):
    small, large = sorted(rng.sample(range(len(facts.SIZES)), 2))
    small, large = with_article(facts.SIZES[small]), with_article(facts.SIZES[large])
    pair = [small, large]
    rng.shuffle(pair)
    slots = dict(x=pair[0], y=pair[1], small=small, large=large, Large=capitalise(large), Small=capitalise(small))
    if rng.random() < 0.5:
        return [(pick(rng, ["what is [bigger|larger], {x} or {y}", "which is [bigger|larger]: {x} or {y}"], **slots),
                 pick(rng, ["{Large} is larger than {small}."], **slots))]
    return [(pick(rng, ["what is smaller, {x} or {y}", "which is smaller: {x} or {y}"], **slots),
             pick(rng, ["{Small} is smaller than {large}."], **slots))]


def calendar(rng):
    names, unit = rng.choice([(facts.DAYS, "day"), (facts.MONTHS, "month")])
    here = rng.randrange(len(names))
    step, word = rng.choice([(1, "after"), (-1, "before")])
    there = names[(here + step) % len(names)]
    user = pick(rng, ["[what|which] {unit} [comes|is] {word} {x}", "[tell me|name] the {unit} {word} {x}",
                      "what comes {word} {x}"],
                unit=unit, word=word, x=names[here])
    answer = pick(rng, ["{y} comes {word} {x}.", "The {unit} {word} {x} is {y}."], unit=unit, word=word,
                  x=names[here], y=there)
    return [(user, answer)]


def single_fact(rng):
    asked, answer = rng.choice(list(facts.SINGLE_FACTS.items()))
    user = pick(rng, ["{q}", "{q}", "[do you know|can you tell me|please tell me|tell me|I wonder]: {q}",
                      "[hey|excuse me|quick question], {q}"], q=asked)
    return [(user, answer)]


def sequence(rng):
    names, unit = rng.choice([(facts.DAYS, "days of the week"), (facts.MONTHS, "months of the year"),
                              (["spring", "summer", "autumn", "winter"], "seasons of the year")])
    user = pick(rng, ["[name|list|tell me|what are|say] [|all ]the {unit}", "which are the {unit}"], unit=unit)
    return [(user, expand(rng, "[The|Here are the] {unit}: {items}.", unit=unit, items=join_list(names)))]


def explain(rng, subject, definition, details):
    bare = subject.split(" ", 1)[-1]
    user = pick(rng, WHAT_IS, x=subject, bare=bare)
    n_details = rng.randint(0, len(details))
    answer = " ".join([definition] + details[:n_details])
    turns = [(user, answer)]
    if n_details < len(details) and rng.random() < REST_SHARE:
        more = details[n_details:]
        turns.append((pick(rng, MORE), pick(rng, ["", "[Gladly|Of course|With pleasure]. "]) + " ".join(more)))
        n_details = len(details)
    if n_details == len(details) and rng.random() < END_SHARE:
        turns.append((pick(rng, MORE), pick(rng, [
            "[That is all I know about it|I have told you all I know about it]. [I am only a small model.|Shall we "
            "talk about something else?]"
        ])))
    return turns


def engine(rng):
    if rng.random() < ENGINE_NAME_SHARE:
        asked = pick(rng, ["what is Souffleur", "[explain|describe] [Souffleur|this engine|the engine]",
                           "how does [Souffleur|the engine|this engine] work",
                           "tell me about [Souffleur|the engine]", "what does [Souffleur|the engine] do",
                           "why is it called Souffleur"])
        definition, details = ENGINE_NAME
        n_details = rng.randint(2, len(details))
        return [(asked, " ".join([definition] + details[:n_details]))]
    subject = rng.choice(list(ENGINE))
    return explain(rng, subject, *ENGINE[subject])


def theatre(rng):
    subject = rng.choice(list(THEATRE))
    return explain(rng, subject, *THEATRE[subject])


def advice(rng):
    goal = rng.choice(list(ADVICE))
    tips = ADVICE[goal]
    first = rng.randint(0, 1)
    chosen = tips[first : first + rng.randint(3, len(tips))]
    user = pick(rng, ["how can I {g}", "how do I {g}", "[give me|I need|do you have] [some advice|tips|a few tips] "
                                                       "to {g}", "I want to {g}",
                      "[help me|teach me] to {g}", "what should I do to {g}",
                      "[what is the best way|how does one learn] to {g}"], g=goal)
    yours = goal.replace("my ", "your ")
    lead = pick(rng, ["Here are {n} tips to {g}:", "To {g}, you can try this:",
                      "[Gladly|Of course]. To {g}, try this:"],
                n=facts.NUMBERS[len(chosen)], g=yours)
    if rng.random() < NUMBERED_SHARE:
        return [(user, lead + "\n" + "\n".join(f"{i}. {tip}" for i, tip in enumerate(chosen, 1)))]
    return [(user, lead + " " + " ".join(chosen) + expand(rng, "[| Good luck!| Take it one step at a time.]"))]
