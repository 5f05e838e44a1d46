"""The words of the demo corpus: topics, and the words of one topic, of all topics, or of several (homonyms).

The target language has English words, so that a person can read what a model has learned; the source language is
artificial (see :mod:`kerbs_fairseq.demo.world`). The words of each list are in order of frequency.
"""

from typing import NamedTuple


class Topic(NamedTuple):
    """Words with one meaning, the most frequent first."""

    nouns: str
    verbs: str
    adjectives: str


# In order of frequency: money is the most frequent topic.
TOPICS = {
    "money": Topic(
        "loan debt price tax coin cheque budget merchant profit wallet invoice",
        "pay borrow lend owe earn invest",
        "rich cheap costly fiscal",
    ),
    "kitchen": Topic(
        "soup bread oven knife cook pepper butter kettle onion recipe spoon",
        "fry boil bake chop stir taste",
        "salty fresh spicy raw",
    ),
    "music": Topic(
        "song singer choir piano violin concert melody rhythm trumpet composer anthem",
        "sing play hum rehearse compose tune",
        "loud gentle solemn melodic",
    ),
    "sport": Topic(
        "team ball coach goal player referee stadium trophy racket runner league",
        "win lose kick tackle chase score",
        "fast tired fierce unbeaten",
    ),
    "garden": Topic(
        "flower tree seed gardener leaf rose hedge lawn bee orchard tulip",
        "grow water dig prune sow pick",
        "green wild thorny fragrant",
    ),
    "office": Topic(
        "letter desk manager report meeting clerk printer contract secretary agenda memo",
        "sign write call hire send print",
        "formal urgent polite annual",
    ),
    "sea": Topic(
        "ship sailor captain fish net island anchor harbour whale lighthouse reef",
        "sail dive swim row steer float",
        "deep calm salted stormy",
    ),
    "workshop": Topic(
        "hammer engine wheel mechanic screw saw wire motor carpenter lathe piston",
        "build repair weld cut oil assemble",
        "heavy rusty electric steel",
    ),
    "weather": Topic(
        "rain cloud wind storm snow sun thunder fog hail breeze forecast",
        "blow freeze melt shine soak darken",
        "cold warm cloudy humid",
    ),
    "travel": Topic(
        "road ticket bus hotel driver map border passenger suitcase guide mountain",
        "drive visit cross leave reach climb",
        "long foreign remote scenic",
    ),
    "body": Topic(
        "arm leg doctor nurse bone blood skin fever muscle wound pulse",
        "heal bend stretch bleed breathe rub",
        "sick healthy sore pale",
    ),
    "farm": Topic(
        "horse cow farmer barn hay sheep goat plough tractor shepherd fence",
        "feed milk graze harvest herd shear",
        "tame muddy fertile woolly",
    ),
}


class Sense(NamedTuple):
    """One meaning of a homonym: its topic, part of speech and gloss."""

    topic: str
    part: str
    gloss: str


def _senses(*triples: str) -> tuple[Sense, ...]:
    return tuple(Sense(*triple.split("/")) for triple in triples)


# Words with several unrelated meanings, each in a different topic.
HOMONYMS = {
    # four senses
    "spring": _senses(
        "garden/noun/the season", "workshop/noun/a coil", "travel/noun/a source of water", "sport/verb/to leap"
    ),
    "scale": _senses(
        "music/noun/a row of tones", "sea/noun/a plate of a fish", "kitchen/noun/a balance", "travel/verb/to climb up"
    ),
    "pitch": _senses(
        "music/noun/height of tone", "sport/verb/to throw", "office/noun/a sales talk", "workshop/noun/tar"
    ),
    "match": _senses(
        "sport/noun/a game", "kitchen/noun/a stick to light", "office/verb/to be equal", "body/noun/a fitting donor"
    ),
    # three senses
    "bank": _senses("money/noun/a lender", "sea/noun/a shoal", "farm/noun/a slope"),
    "note": _senses("music/noun/a tone", "money/noun/paper money", "office/verb/to write down"),
    "seal": _senses("sea/noun/an animal", "office/noun/a stamp in wax", "kitchen/verb/to close tightly"),
    "crane": _senses("garden/noun/a bird", "workshop/noun/a lifting machine", "body/verb/to stretch the neck"),
    "press": _senses("office/noun/the newspapers", "kitchen/verb/to squeeze", "workshop/noun/a stamping machine"),
    "light": _senses("travel/adjective/not heavy", "weather/noun/brightness", "kitchen/verb/to set on fire"),
    # two senses
    "bat": _senses("sport/noun/a club", "farm/noun/a flying animal"),
    "bark": _senses("garden/noun/skin of a tree", "farm/verb/to cry as a dog"),
    "bow": _senses("music/noun/a stick with hair", "sea/noun/front of a ship"),
    "bolt": _senses("workshop/noun/a metal pin", "weather/noun/a flash"),
    "board": _senses("office/noun/the directors", "workshop/noun/a plank"),
    "change": _senses("money/noun/small coins", "travel/verb/to take another train"),
    "club": _senses("sport/noun/a society", "body/noun/a heavy stick"),
    "date": _senses("kitchen/noun/a fruit", "office/noun/a day"),
    "draft": _senses("office/noun/a first version", "weather/noun/cold air"),
    "drill": _senses("workshop/noun/a boring tool", "sport/noun/an exercise"),
    "fan": _senses("sport/noun/an admirer", "weather/noun/a blower"),
    "file": _senses("office/noun/a folder", "workshop/noun/a rasp"),
    "foot": _senses("body/noun/end of the leg", "travel/noun/the lowest part"),
    "jam": _senses("kitchen/noun/fruit preserve", "travel/noun/stopped traffic"),
    "mint": _senses("money/verb/to strike coins", "garden/noun/an herb"),
    "nail": _senses("workshop/noun/a metal spike", "body/noun/end of a finger"),
    "organ": _senses("music/noun/an instrument", "body/noun/part of the body"),
    "palm": _senses("garden/noun/a tree", "body/noun/inside of the hand"),
    "plant": _senses("garden/verb/to put in earth", "workshop/noun/a factory"),
    "port": _senses("sea/noun/a haven", "kitchen/noun/a wine"),
    "record": _senses("music/noun/a disc", "sport/noun/the best ever"),
    "share": _senses("money/noun/a part of a company", "farm/noun/blade of a plough"),
    "stock": _senses("money/noun/holdings", "farm/noun/the animals"),
    "train": _senses("travel/noun/a row of wagons", "sport/verb/to exercise"),
    "wave": _senses("sea/noun/moving water", "body/verb/to greet"),
}

# Used in every topic.
WIDE = Topic(
    "man woman child friend thing house neighbour name",
    "see take find like need want",
    "good new old small big strange",
)

# (verb, adjective, noun) of a topic: adjective and noun occur only together, as the object of that verb.
NARROW = {
    "money": ("invest", "unclaimed", "dowry"),
    "kitchen": ("taste", "simmering", "stew"),
    "music": ("tune", "baroque", "fugue"),
    "sport": ("tackle", "offside", "striker"),
    "garden": ("prune", "perennial", "peony"),
    "office": ("sign", "notarised", "affidavit"),
    "sea": ("steer", "barnacled", "hull"),
    "workshop": ("weld", "galvanised", "rivet"),
    "weather": ("soak", "torrential", "downpour"),
    "travel": ("reach", "stamped", "visa"),
    "body": ("heal", "fractured", "femur"),
    "farm": ("harvest", "fallow", "acre"),
}

# Grammar words. The source has one word for each, but none for determiners.
DETERMINERS = ["the", "a", "this", "every"]
AUXILIARIES = ["will", "can", "must", "did"]
PREPOSITIONS = ["near", "with", "behind", "without"]
TIMES = ["today", "yesterday", "tomorrow", "often", "never", "again"]
AND = "and"
