"""Rating sheets of a blinded study: one for each rater, and the key that says which system wrote what.

All raters see the same sets and responses, each in a different random order. Every response on every sheet has a unique
id, so rows may be sorted and files renamed. If several systems gave the same response to an input, it is shown once,
and its score counts for each of them.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

from kerbs_fairseq.human_evaluation import cells
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import new_folder, read_text

FORMAT = 1
KEY = "key.json"
EMPTY = "(empty)"
# without vowels: no words; without digits: no number or date for a spreadsheet program
LETTERS = "bcdfghjkmnpqrstvwxz"
INSTRUCTIONS = """# How to rate

Your sheet is a table. Each row has an input and one response to it; the responses to the same input stand together and
have the same number in the column `set`. Read the input, read all responses of the set, then write one number into
the column `score` of each row:

| score | meaning |
|---|---|
| 0 | The response is neither fluent nor relevant: not well-formed language, and no answer to this input. |
| 1 | One of the two: fluent, but beside the point; or to the point, but not well-formed. |
| 2 | Both: well-formed language that fits the input. |

- Fluent: a speaker of the language could have written it so. Upper and lower case and spaces before punctuation do not
  count.
- Relevant: somebody could sensibly say it in reply to this very input. It need not be the reply that you would give.{}
- Whole numbers only; every row needs one. Two responses of a set may have the same score.
- Responses come from different sources in random order. Do not guess at them, and rate alone: do not compare with the
  other raters before all are done.
- An apostrophe at the start of a cell keeps the spreadsheet program from calculating with it: pass over it.
  `(empty)` stands for a response without any text.
- Do not change the other columns, above all not `response id`. Save as CSV (UTF-8), and send the file back.
"""
WITH_REFERENCE = (
    "\n- The column `reference` holds a reply that a person gave. It is there to help, and is not rated: another reply"
    "\n  can be just as relevant."
)


class Item(NamedTuple):
    """One input with the responses of the systems."""

    line: int
    input: str
    reference: Optional[str]
    responses: dict[str, str]

    def distinct(self) -> dict[str, list[str]]:
        """Return {response: the systems that gave it}."""
        systems: dict[str, list[str]] = {}
        for system, response in self.responses.items():
            systems.setdefault(response, []).append(system)
        return systems


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text file, as raters see them."""
    text = read_text(path)
    return [cells.shown(line) for line in text.removesuffix("\n").split("\n")] if text else []


def items_of(source: Path, systems: dict[str, Path], reference: Optional[Path]) -> list[Item]:
    """Return the distinct inputs with their responses, at their first occurrence; empty inputs are left out."""
    paths = [source, *systems.values(), *([reference] if reference else [])]
    texts = [lines_of(path) for path in paths]
    if len({len(lines) for lines in texts}) > 1:
        counts = ", ".join(f"{path} has {len(lines)}" for path, lines in zip(paths, texts))
        raise UserError(f"the files must have the same number of lines: {counts}")
    inputs, references = texts[0], texts[-1] if reference else None
    first = {text: number for number, text in reversed(list(enumerate(inputs))) if text}
    return [
        Item(
            line=number + 1,
            input=text,
            reference=references[number] if references else None,
            responses={name: lines[number] or EMPTY for name, lines in zip(systems, texts[1:])},
        )
        for text, number in sorted(first.items(), key=lambda pair: pair[1])
    ]


def chosen(items: list[Item], sets: int, seed: int) -> list[Item]:
    """Draw ``sets`` of the items at random."""
    if len(items) < sets:
        raise UserError(f"there are {len(items)} different inputs, and --sets asks for {sets}")
    return random.Random(f"{seed} sets").sample(items, sets)


def new_ids(items: list[Item], seed: int) -> Iterator[str]:
    """Yield distinct ids that depend on the texts: sheets of two studies do not fit the same key."""
    digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()
    random_letters, used = random.Random(f"{seed} ids {digest}"), set()
    while True:
        made = "".join(random_letters.choices(LETTERS, k=6))
        if made not in used:
            used.add(made)
            yield made


def checksum(key: dict[str, Any]) -> str:
    """Return the checksum of a key, without the checksum in it."""
    rest = {name: value for name, value in key.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def study(items: list[Item], raters: int, seed: int) -> tuple[dict[str, Any], list[list[list[str]]]]:
    """Return the key, and the rows of each rater's sheet."""
    ids, responses, sheets = new_ids(items, seed), {}, []
    with_reference = items[0].reference is not None
    for rater in range(1, raters + 1):
        order = random.Random(f"{seed} rater {rater}")
        rows = [[cells.SET, cells.INPUT, *[cells.REFERENCE] * with_reference, cells.ID, cells.RESPONSE, cells.SCORE]]
        for place, number in enumerate(order.sample(range(len(items)), len(items)), start=1):
            item = items[number]
            distinct = list(item.distinct().items())
            for response, systems in order.sample(distinct, len(distinct)):
                name = next(ids)
                responses[name] = {"rater": rater, "set": number + 1, "systems": systems, "response": response}
                reference = [cells.escape(item.reference)] if item.reference is not None else []
                rows.append([str(place), cells.escape(item.input), *reference, name, cells.escape(response), ""])
        sheets.append(rows)
    key: dict[str, Any] = {
        "keep this file from the raters": "it says which system wrote which response",
        "kerbs-rate": FORMAT,
        "systems": list(items[0].responses),
        "raters": raters,
        "seed": seed,
        "sets": [{"line": item.line, "input": item.input} for item in items],
        "responses": responses,
    }
    return {**key, "checksum": checksum(key)}, sheets


def make(
    source: Path,
    systems: dict[str, Path],
    folder: Path,
    *,
    reference: Optional[Path] = None,
    sets: int = 50,
    raters: int = 3,
    seed: int = 1,
    delimiter: str = ",",
) -> dict[str, Any]:
    """Write a study into the new ``folder``, completely or not at all; return its key."""
    with new_folder(folder) as beside:
        items = chosen(items_of(source, systems, reference), sets, seed)
        key, sheets = study(items, raters, seed)
        for number, rows in enumerate(sheets, start=1):
            cells.write(beside / f"rater_{number}.csv", rows, delimiter)
        instructions = INSTRUCTIONS.format(WITH_REFERENCE if reference else "")
        (beside / "INSTRUCTIONS.md").write_text(instructions, encoding="utf-8")
        (beside / KEY).write_text(json.dumps(key, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return key
