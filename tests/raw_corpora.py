"""Tiny raw corpora in their owners' formats, made up from a few words."""

import random
from pathlib import Path

NOUNS = {"Hund": "dog", "Katze": "cat", "Vogel": "bird", "Baum": "tree", "Stein": "stone", "Bank": "bank"}
VERBS = {"sieht": "sees", "hört": "hears", "findet": "finds", "sucht": "seeks"}


def pair(generator: random.Random) -> tuple[str, str]:
    """A sentence and its translation."""
    (a, A), (v, V), (b, B) = (generator.choice(sorted(w.items())) for w in (NOUNS, VERBS, NOUNS))
    n = generator.randrange(100)
    return f"{a} {n} {v} {b}.", f"the {A} {n} {V} the {B}."


def pairs(n: int, seed: int) -> list[tuple[str, str]]:
    generator = random.Random(seed)
    return [pair(generator) for _ in range(n)]


def write_iwslt(folder: Path, n: int = 200) -> Path:
    """train.tags.de-en.{de,en} with tags and an escaped character, and two sets in XML."""
    folder.mkdir(parents=True)
    train = pairs(n, 1)
    for at, side in enumerate(("de", "en")):
        lines = ["<url>http://example.org/talk</url>", "<title>A title &amp; more</title>"]
        lines += ['<reviewer href="x">Somebody</reviewer>', "</doc>"]
        lines += [f" {one[at]} &amp; so" for one in train[:-1]] + [f"<3 {train[-1][at]}"]  # text, not a tag
        (folder / f"train.tags.de-en.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for number, name in enumerate(("tst2013", "tst2014")):
            segments = [f'<seg id="{i}"> {one[at]} </seg>' for i, one in enumerate(pairs(20, 10 + number), 1)]
            head = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", '<srcset setid="x">', '<doc docid="1">']
            text = "\n".join([*head, "<title>no text</title>", *segments, "</doc>", "</srcset>", "</mteval>"])
            (folder / f"IWSLT16.TED.{name}.de-en.{side}.xml").write_text(text + "\n", encoding="utf-8")
    return folder


def write_dialogs(folder: Path, n: int = 60) -> Path:
    """DailyDialog: a dialog a line; one pair of the test set stands in train."""
    folder.mkdir(parents=True)
    for seed, (name, size) in enumerate((("train", n), ("validation", 8), ("test", 8))):
        lines = []
        for i in range(size):
            turns = [english for _, english in pairs(4, 1000 * seed + i)]
            if i == 0:
                turns = ["Hello there ." if name == "train" else "hello there .", "How are you ?", *turns]
            lines.append(" __eou__ ".join(turns) + " __eou__")
        (folder / f"dialogues_{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write_shards(folder: Path, n: int = 150) -> Path:
    """One-Billion-Word: shards of shuffled sentences, in a folder below."""
    below = folder / "training-monolingual.tokenized.shuffled"
    below.mkdir(parents=True)
    for shard in (1, 2):
        lines = [english.replace(".", " .") + f" {shard} {i}" for i, (_, english) in enumerate(pairs(n, shard))]
        (below / f"news.en-{shard:05}-of-00100").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
