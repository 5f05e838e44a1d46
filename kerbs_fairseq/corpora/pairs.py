"""Read parallel text as published: IWSLT's tags and XML, files aligned line by line, one file with tabs."""

import html
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from kerbs_fairseq.corpora.lines import clean, raw_lines, read_lines
from kerbs_fairseq.runs.errors import UserError

Pair = tuple[str, str]  # source, target
SEGMENT = re.compile(r'<seg\s+id\s*=\s*"?\d+"?\s*>(.*)</seg>')
TAGS = "url|keywords|speaker|talkid|title|description|reviewer|translator|doc|file|head|content"
TAG = re.compile(rf"[\s\ufeff]*</?({TAGS})\b")
VALID_NAMES = ("valid", "val", "dev")


@dataclass
class Splits:
    """The three parts of a corpus, and what was left out of it."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    left_out: dict[str, int] = field(default_factory=dict)

    def parts(self) -> dict[str, list[Pair]]:
        """Return the parts by name."""
        return {"train": self.train, "valid": self.valid, "test": self.test}


def side_by_side(source: Path, target: Path, read: str = "lines") -> list[Pair]:
    """Read two files that are aligned line by line."""
    readers = {"lines": read_lines, "tags": tagged_lines, "xml": xml_segments}
    sides = [readers[read](path) for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f"{source.name} has {len(sides[0]):,} lines and {target.name} {len(sides[1]):,}: they do not belong "
            "together, or one of them is cut short"
        )
    return list(zip(*sides))


def tagged_lines(path: Path) -> list[str]:
    """Return the lines of IWSLT's training text, without those that have tags."""
    return [clean(html.unescape(line)) for line in raw_lines(path) if not TAG.match(line)]


def xml_segments(path: Path) -> list[str]:
    """Return the segments of all talks of one of IWSLT's development or test sets."""
    lines = list(raw_lines(path))
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if not last.endswith(("</mteval>", "</srcset>", "</refset>")):
        raise UserError(f"{path} is cut short: it ends in {last[:40]!r}, not in </mteval>")
    return [clean(html.unescape(match[1])) for match in map(SEGMENT.search, lines) if match]


def read_iwslt(folder: Path, source: str, target: str, valid: str, test: str) -> Splits:
    """Read a folder of an IWSLT archive, such as de-en; ``valid`` and ``test`` are names such as tst2013."""
    pair = f"{source}-{target}"

    def of_set(name: str) -> list[Pair]:
        files = [sorted(folder.glob(f"*.TED.{name}.{pair}.{side}.xml")) for side in (source, target)]
        if not all(files):
            names = sorted({path.name.split(".")[2] for path in folder.glob(f"*.TED.*.{pair}.{source}.xml")})
            raise UserError(f"{folder} has no set {name} for {pair}; it has {', '.join(names) or 'none'}")
        return side_by_side(files[0][0], files[1][0], "xml")

    train = side_by_side(folder / f"train.tags.{pair}.{source}", folder / f"train.tags.{pair}.{target}", "tags")
    return Splits(train, of_set(valid), of_set(test))


def read_parallel(folder: Path, source: str, target: str) -> Splits:
    """Read train.de and train.en, and likewise valid (or val, dev) and test (or test_something)."""

    def of(*names: str) -> list[Pair]:
        for name in names:
            for path in sorted(folder.glob(f"{name}.{source}")):
                other = path.with_suffix(f".{target}")
                if not other.is_file():
                    raise UserError(f"{path.name} exists and {other.name} does not")
                return side_by_side(path, other)
        raise UserError(f"{folder} has no {names[0]}.{source}")

    return Splits(of("train"), of(*VALID_NAMES), of("test", "test[._]*"))


def read_tabbed(path: Path, swap: bool) -> list[Pair]:
    """Return (source, target) from the first two columns of a file; with ``swap`` the target is the first one."""
    pairs = []
    for number, line in enumerate(raw_lines(path), 1):
        columns = [clean(part) for part in line.split("\t")]
        if len(columns) < 2:
            if not line.strip():
                continue
            raise UserError(f"{path}, line {number}: two columns with a tab between them are needed")
        pairs.append((columns[1], columns[0]) if swap else (columns[0], columns[1]))
    if not pairs:
        raise UserError(f"{path} is empty")
    return pairs


def tabbed_file(folder: Path) -> Optional[Path]:
    """Return the only text file of the folder with a tab in its first line; None if there are none or several."""
    files = [path for path in sorted(folder.glob("*.t[xs][tv]")) if not path.name.startswith("_")]
    with_tabs = [path for path in files if "\t" in next(raw_lines(path), "")]
    return with_tabs[0] if len(with_tabs) == 1 else None
