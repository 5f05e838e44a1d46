"""The demo corpus: sentences from a lexicon, a grammar and a seed, in which the sense of every token is known.

A sentence has one topic. The target language puts determiner and adjective before the noun, the auxiliary before the
verb and the object after it. The source language puts the verb last and adjectives after the noun, has postpositions
instead of prepositions, and no determiners: the determiner of the target is drawn from a distribution of the noun's
sense, so no model can be certain of it. A source word corresponds to one *sense*, so a target word with four senses has
four source words; about one source word in eight corresponds to two senses of different topics, so that only the rest
of the sentence determines the target word.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Optional

from kerbs_fairseq.demo import lexicon

PARTS = ("noun", "verb", "adjective")
WORDS_PER_SENTENCE = (4, 15)
WIDE_SHARE = 0.2  # of the content words
NARROW_SHARE = 0.15  # of the clauses
SHARED_SOURCE_SHARE = 0.3  # of the words of one topic: half of these take the source word of the other half
DETERMINER_SHARES = (0.75, 0.15, 0.07, 0.03)  # of the determiners of a noun, the preferred one first
ZIPF = 0.9  # the r-th word of a list is drawn in proportion to 1 / r^ZIPF


@dataclass(frozen=True)
class Entry:
    """One sense of a target word, the unit of sentences."""

    word: str
    sense: int  # 0, 1, ... among the senses of the word
    part: str
    topic: str  # "" for words of all topics and grammar words
    gloss: str
    source: str  # "" for determiners, which the source language does not have
    range: str  # narrow | topic | wide | grammar

    @property
    def tag(self) -> str:
        """The name of the sense in the sense files: word.number."""
        return f"{self.word}.{self.sense}"


class Sentence(NamedTuple):
    """A sentence pair, with the entries of the target words in target order."""

    source: tuple[str, ...]
    target: tuple[Entry, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The target words."""
        return tuple(entry.word for entry in self.target)


@dataclass
class NounPhrase:
    """A determiner, an optional adjective and a noun."""

    determiner: Entry
    adjective: Optional[Entry]
    noun: Entry

    def target(self) -> list[Entry]:
        """Return the entries in target order."""
        return [entry for entry in (self.determiner, self.adjective, self.noun) if entry is not None]

    def source(self) -> list[str]:
        """Return the source words in source order: noun and adjective, no determiner."""
        return [e.source for e in (self.noun, self.adjective) if e is not None]


@dataclass
class World:
    """All senses and the distributions of their use, determined by ``seed``."""

    seed: int = 1
    entries: list[Entry] = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"kerbs world {self.seed}")
        self._new_sources = self._source_words()
        self._grammar: dict[str, list[Entry]] = {}
        self._wide: dict[str, list[Entry]] = {}
        self._topic: dict[tuple[str, str], list[Entry]] = {}
        self._narrow: dict[str, tuple[Entry, Entry]] = {}
        self._build_entries()
        # Each verb has its own order of preference among the nouns of its topic, and each noun among the adjectives, so
        # that the words of a sentence are informative about the next ones.
        self._favourites: dict[tuple[Entry, str], list[Entry]] = {}

    # --- vocabulary ---------------------------------------------------------------------------------------------------

    def _source_words(self) -> Iterator[str]:
        """Return artificial words of two syllables in random order, none of them a target word."""
        syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
        english = {word for words in all_target_words() for word in words}
        artificial = ["".join(pair) for pair in itertools.product(syllables, repeat=2)]
        artificial = [word for word in artificial if word not in english]
        self._random.shuffle(artificial)
        return iter(artificial)

    def _entry(self, word: str, part: str, topic: str, range_: str, gloss: str = "", sense: int = 0) -> Entry:
        return Entry(word, sense, part, topic, gloss or word, next(self._new_sources), range_)

    def _build_entries(self) -> None:
        for part, words in (
            ("determiner", lexicon.DETERMINERS),
            ("auxiliary", lexicon.AUXILIARIES),
            ("preposition", lexicon.PREPOSITIONS),
            ("time", lexicon.TIMES),
            ("conjunction", [lexicon.AND]),
        ):
            self._grammar[part] = [self._entry(word, part, "", "grammar") for word in words]
        self._grammar["determiner"] = [replace(entry, source="") for entry in self._grammar["determiner"]]
        for part, words_of_part in zip(PARTS, lexicon.WIDE):
            self._wide[part] = [self._entry(word, part, "", "wide") for word in words_of_part.split()]
        for topic, lists in lexicon.TOPICS.items():
            for part, words_of_part in zip(PARTS, lists):
                self._topic[topic, part] = [self._entry(w, part, topic, "topic") for w in words_of_part.split()]
        for word, senses in lexicon.HOMONYMS.items():
            for number, (topic, part, gloss) in enumerate(senses):
                pool = self._topic[topic, part]
                # in the more frequent third, so that every sense occurs often enough to be learned
                place = self._random.randrange(len(pool) // 3 + 1)
                pool.insert(place, self._entry(word, part, topic, "topic", gloss, number))
        for topic, (_, adjective, noun) in lexicon.NARROW.items():
            self._narrow[topic] = (
                self._entry(adjective, "adjective", topic, "narrow"),
                self._entry(noun, "noun", topic, "narrow"),
            )
        self._share_source_words()
        self.entries = sorted(
            itertools.chain(
                *self._grammar.values(), *self._wide.values(), *self._topic.values(), *self._narrow.values()
            ),
            key=lambda entry: (entry.word, entry.sense),
        )

    def _share_source_words(self) -> None:
        """Give some pairs of senses with the same part of speech and different topics the same source word."""
        for part in PARTS:
            places = [(key, i) for key in self._topic if key[1] == part for i in range(len(self._topic[key]))]
            self._random.shuffle(places)
            places = places[: int(SHARED_SOURCE_SHARE * len(places))]
            for (key_a, i), (key_b, j) in zip(places[0::2], places[1::2]):
                a, b = self._topic[key_a][i], self._topic[key_b][j]
                if a.topic != b.topic and a.word != b.word:
                    self._topic[key_b][j] = replace(b, source=a.source)

    # --- sentences ----------------------------------------------------------------------------------------------------

    def _zipf(self, rng: random.Random, pool: list[Entry]) -> Entry:
        return rng.choices(pool, [1 / (rank + 1) ** ZIPF for rank in range(len(pool))])[0]

    def _content(self, rng: random.Random, topic: str, part: str, near: Optional[Entry] = None) -> Entry:
        """Draw a content word of ``topic``, by the preferences of ``near`` if it is given."""
        if rng.random() < WIDE_SHARE:
            return self._zipf(rng, self._wide[part])
        pool = self._topic[topic, part]
        if near is not None and near.topic:
            pool = self._liked(near, part, pool)
        return self._zipf(rng, pool)

    def _liked(self, near: Entry, part: str, pool: list[Entry]) -> list[Entry]:
        """Return ``pool`` in the fixed order of preference of ``near``."""
        key = (near, part)
        if key not in self._favourites:
            taste = random.Random(f"{self.seed} {near.tag} {part}")
            weights = [1 / (rank + 1) ** ZIPF for rank in range(len(pool))]
            order = sorted(range(len(pool)), key=lambda i: taste.random() ** (1 / weights[i]), reverse=True)
            self._favourites[key] = [pool[i] for i in order]
        return self._favourites[key]

    def _noun_phrase(self, rng: random.Random, topic: str, near: Optional[Entry] = None) -> NounPhrase:
        noun = self._content(rng, topic, "noun", near)
        adjective = self._content(rng, topic, "adjective", noun) if rng.random() < 0.45 else None
        return NounPhrase(self._determiner(rng, noun), adjective, noun)

    def _determiner(self, rng: random.Random, noun: Entry) -> Entry:
        liked = self._liked(noun, "determiner", self._grammar["determiner"])
        return rng.choices(liked, DETERMINER_SHARES)[0]

    def _narrow_phrase(self, rng: random.Random, topic: str) -> NounPhrase:
        adjective, noun = self._narrow[topic]
        return NounPhrase(self._determiner(rng, noun), adjective, noun)

    def _narrow_verb(self, topic: str) -> Entry:
        """Return the only verb that the narrow words of ``topic`` occur with."""
        word = lexicon.NARROW[topic][0]
        return next(entry for entry in self._topic[topic, "verb"] if entry.word == word)

    def _clause(self, rng: random.Random, topic: str) -> tuple[list[str], list[Entry]]:
        """Draw a clause: (source words, target entries)."""
        narrow = rng.random() < NARROW_SHARE
        verb = self._narrow_verb(topic) if narrow else self._content(rng, topic, "verb")
        auxiliary = self._zipf(rng, self._grammar["auxiliary"])
        subject = self._noun_phrase(rng, topic, verb)
        target = [*subject.target(), auxiliary, verb]
        middle: list[str] = []
        if narrow or rng.random() < 0.8:
            thing = self._narrow_phrase(rng, topic) if narrow else self._noun_phrase(rng, topic, verb)
            target += thing.target()
            middle += thing.source()
        if rng.random() < 0.4:
            preposition = self._zipf(rng, self._grammar["preposition"])
            place = self._noun_phrase(rng, topic)
            target += [preposition, *place.target()]
            middle = [*place.source(), preposition.source, *middle]
        return [*subject.source(), *middle, verb.source, auxiliary.source], target

    def sentence(self, rng: random.Random) -> Sentence:
        """Draw a sentence; ``rng`` is the only source of randomness."""
        topics = list(lexicon.TOPICS)
        while True:
            topic = rng.choices(topics, [1 / (rank + 1) ** (ZIPF / 2) for rank in range(len(topics))])[0]
            source, target = self._clause(rng, topic)
            if rng.random() < 0.25:
                more_source, more_target = self._clause(rng, topic)
                conjunction = self._grammar["conjunction"][0]
                source, target = [*source, conjunction.source, *more_source], [*target, conjunction, *more_target]
            if rng.random() < 0.3:
                time = self._zipf(rng, self._grammar["time"])
                source, target = [time.source, *source], [*target, time]
            if WORDS_PER_SENTENCE[0] <= len(target) <= WORDS_PER_SENTENCE[1]:
                return Sentence(tuple(source), tuple(target))


def all_target_words() -> list[list[str]]:
    """Return the lists of target words of the lexicon; a homonym occurs once."""
    lists = [text.split() for topic in (*lexicon.TOPICS.values(), lexicon.WIDE) for text in topic]
    narrow = [word for _, *pair in lexicon.NARROW.values() for word in pair]
    grammar = [*lexicon.DETERMINERS, *lexicon.AUXILIARIES, *lexicon.PREPOSITIONS, *lexicon.TIMES, lexicon.AND]
    return [*lists, list(lexicon.HOMONYMS), narrow, grammar]
