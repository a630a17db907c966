"""Generates stories and poems: fixed plots with random details."""

from facts import NAMES
from grammar import capitalise, expand, pick, with_article

HEROES = ["fox", "mouse", "bear", "cat", "dog", "owl", "wolf", "frog", "rabbit", "hedgehog", "duck",
          "girl", "boy", "king", "queen", "sailor", "baker", "gardener", "actor", "prompter",
          "painter", "robot", "dragon", "knight", "musician", "clockmaker", "pirate", "princess", "prince",
          "teacher", "farmer", "fisherman", "giant", "witch", "wizard", "ghost", "snail", "turtle", "horse",
          "lion", "tiger", "elephant", "monkey", "penguin", "sheep", "goat", "bee", "ant", "spider", "whale",
          "sparrow", "squirrel", "doctor", "soldier", "tailor", "miller", "grandmother", "grandfather",
          "computer", "lamp", "cloud", "star", "tree", "snowman", "toaster", "teapot", "train", "boat"]
PLACES = ["in a small village", "in a quiet forest", "in a town by the sea", "in an old castle", "in a green valley",
          "in a house on a hill", "in an empty theatre", "in a busy city", "on a snowy mountain", "on a tiny island"]
OBJECTS = ["a golden key", "an old map", "a silver bell", "a red hat", "a broken clock", "a little lamp",
           "a blue stone", "a wooden box", "a torn letter", "a strange book", "a glass ball", "a lost shoe"]
HELPERS = ["an old woman", "a friendly crow", "a small mouse", "a kind baker", "a quiet child",
           "a wise owl", "a tired traveller", "a merry fiddler"]
MORALS = [
    "And from that day on {name} was never lonely again.",
    "Since then {name} knows that a small kindness can change a whole [day|life].",
    "And if you pass [by|that way], you can still hear {name} [laugh|sing].",
    "That evening {name} slept [very well|better than ever before].",
    "So {name} learned that [courage|patience|friendship] is worth more than gold.",
]
OPENINGS = [
    "Once upon a time there was {a_hero} called {name}, who lived {place}.",
    "Long ago, {place}, there lived {a_hero} by the name of {name}.",
    "{place_cap} there lived {a_hero}. [Everybody called the {hero}|The name of the {hero} was] {name}.",
    "There once was {a_hero} named {name}, and {name} lived {place}.",
]

BONES = [
    "One [cold|bright|rainy|windy] morning {name} found {object} [in front of the door|under a tree|beside the road]. "
    "[Nobody knew|No one could say] where it came from. {name} asked [everyone|all the neighbours], but they only "
    "shook their heads. "
    "Then {helper} came by and said: \"[That is mine|I lost it long ago|I have looked for it everywhere]. "
    "[Thank you for keeping it safe|You have a good heart].\" They [shared some bread and became friends|sat down "
    "together and talked until the stars came out].",

    "{name} had only one wish: to [see the sea|fly above the clouds|hear the most beautiful song in the world|stand "
    "on a great stage]. "
    "[So one day|One spring morning] {name} took {object} and [set out|left home]. The way was long, and [the nights "
    "were cold|the hills were steep]. "
    "On the third day {name} met {helper}, who said: \"[Follow the stream and do not be afraid|The way is shorter if "
    "you sing].\" "
    "{name} [did so|followed the advice], and at last the wish came true.",

    "Every evening {name} heard a [strange|soft|sad] sound behind the wall. [It was like a whisper|It was almost "
    "like music]. "
    "At first {name} was afraid, but then {name} took a lamp and went to look. Behind the wall sat {helper} with "
    "{object}. "
    "\"[I was so alone here|I did not dare to knock],\" said the voice in the dark. \"[Then come in and eat with "
    "me|You can stay with me],\" {name} answered, and [they had soup together|made some tea].",

    "One day a great storm came and [took the roof from the house|broke the old bridge]. All were [sad|afraid], but "
    "{name} said: "
    "\"[We can build it again|Let us start with one stone].\" {helper_cap} brought {object}, and [others brought "
    "wood and nails|many hands came to help]. "
    "They worked for [three|five|seven] days. When the sun came out again, everything was [stronger|more beautiful] "
    "than before.",

    "On the night of the great play, the [first actor|leading lady] forgot the words. The [hall|audience] was silent. "
    "{name}, who sat in the dark with {object}, knew every line by heart and whispered [the next one|the missing "
    "words]. "
    "The play went on, and [nobody noticed|the audience clapped for a long time]. Later {helper} came and said: "
    "\"[You saved the evening|I heard you, and it was beautiful].\"",
]

JOINTS = ["But that was not all.", "And so the weeks went by.", "But the story does not end here.",
          "Then the winter came, and it went again."]

POEM_SUBJECTS = ["the sea", "the moon", "the rain", "winter", "spring", "autumn", "summer", "a cat", "a tree",
                 "the night", "the theatre", "a river", "the stars", "the wind", "home", "time"]
POEM_FIRST = [
    "I think of {subject} when the day is [done|long],", "Oh {subject}, you are [near|here] again,",
    "Tonight I sing of {subject},", "There is {subject}, so quiet and [near|clear],",
]
POEM_COUPLETS = [
    "A [little|gentle] light, a [little|gentle] song,\nIt stays with me the whole day long.",
    "The hours come, the hours go,\nAnd what they mean I do not know.",
    "The lamp is lit, the page is white,\nA whisper walks across the night.",
    "The curtain falls, the hall is still,\nA [small|round] moon climbs behind the hill.",
    "So take my hand and walk with me,\nFrom the old garden to the sea.",
    "And word by word, and line by line,\nI give you mine, you give me thine.",
    "A bird sings on the garden wall,\nIt sings for no one, and for all.",
    "The snow may come, the leaves may fall,\nA friendly word is best of all.",
]


def opening(rng, hero, name):
    place = rng.choice(PLACES)
    a_hero = with_article(expand(rng, "[|young |old |little |brave |clever ]") + hero)
    return pick(rng, OPENINGS, hero=hero, a_hero=a_hero, name=name, place=place, place_cap=capitalise(place))


def chapter(rng, name, bones, thing, helper):
    return expand(rng, bones, name=name, object=thing, helper=helper, helper_cap=capitalise(helper))


def tell(rng, hero, chapters):
    """Different chapters of one story use different bones, things and helpers."""
    name = rng.choice(NAMES)
    parts = zip(rng.sample(BONES, chapters), rng.sample(OBJECTS, chapters), rng.sample(HELPERS, chapters))
    text = opening(rng, hero or rng.choice(HEROES), name)
    for number, (bones, thing, helper) in enumerate(parts):
        joint = " " + rng.choice(JOINTS) + "\n\n" if number else " "
        text += joint + chapter(rng, name, bones, thing, helper)
    return text + " " + pick(rng, MORALS, name=name)


def story(rng, hero=None):
    return tell(rng, hero, 1)


def long_story(rng, hero=None):
    return tell(rng, hero, 2)


def poem(rng, subject):
    first = pick(rng, POEM_FIRST, subject=subject)
    couplets = rng.sample(POEM_COUPLETS, rng.choice([2, 3]))
    return "\n".join([capitalise(first)] + [expand(rng, couplet) for couplet in couplets])
