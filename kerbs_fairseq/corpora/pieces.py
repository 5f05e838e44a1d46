"""Subwords: sentencepiece on raw text, on Moses tokens as in the paper, or none; and the conversion back to text."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from kerbs_fairseq.corpora.lines import raw_lines, write_lines
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import new_folder, read_json

SETTINGS = "pieces.json"
TOKENS = ("raw", "moses", "words")
MODEL = "sentencepiece.model"


def encode_folder(text: Path, out: Path, tokens: str, size: int, languages: Sequence[str] = ()) -> dict[str, Any]:
    """Encode train, valid and test of all sides of ``text`` into the new folder ``out``; return the settings.

    The subwords are learned on the training text of all sides together.
    """
    check_languages(languages)
    sides = sorted({path.suffix[1:] for path in text.glob("train.*")})
    if not sides:
        raise UserError(f"{text} has no train.*: it should be a folder that kerbs-corpus wrote")
    settings = {"tokens": tokens, "size": size, "sides": sides, "languages": list(languages)}
    with new_folder(out) as folder:
        tokenised = {
            (part, side): tokenise(list(raw_lines(text / f"{part}.{side}")), tokens, language_of(side, languages))
            for part in ("train", "valid", "test")
            for side in sides
        }
        if tokens != "words":
            training = folder / "training.txt"
            write_lines(training, (line for side in sides for line in tokenised["train", side]))
            learn(training, folder / "sentencepiece", size)
            training.unlink()
        for (part, side), lines in tokenised.items():
            encoded = lines if tokens == "words" else split(lines, folder / MODEL)
            write_lines(folder / f"{part}.{side}", encoded)
        (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    return settings


def language_of(side: str, languages: Sequence[str]) -> str:
    """Return the language of a side, for Moses: its name, unless ``languages`` (side=language) says otherwise."""
    return dict(pair.split("=", 1) for pair in languages).get(side, side)


def check_languages(languages: Sequence[str]) -> None:
    """Raise a UserError if one of ``languages`` is not SIDE=LANGUAGE."""
    for pair in languages:
        if "=" not in pair:
            raise UserError(f"--language {pair}: write it as SIDE=LANGUAGE, for example src=en")


def tokenise(lines: Sequence[str], tokens: str, language: str) -> list[str]:
    """Return the lines as Moses tokens, or as they are."""
    if tokens != "moses":
        return list(lines)
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normaliser, tokeniser = MosesPunctNormalizer(language), MosesTokenizer(language)
    return [tokeniser.tokenize(normaliser.normalize(line), return_str=True, escape=False) for line in lines]


def detokenise(lines: Sequence[str], tokens: str, language: str) -> list[str]:
    """Convert the tokens of :func:`tokenise` back to text."""
    if tokens != "moses":
        return list(lines)
    from sacremoses import MosesDetokenizer

    detokeniser = MosesDetokenizer(language)
    return [detokeniser.detokenize(line.split(), unescape=False) for line in lines]


def learn(training: Path, prefix: Path, size: int) -> None:
    """Train a BPE model of ``size`` pieces; the text is not normalized, as it has been cleaned already."""
    import sentencepiece

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=raw_lines(training),  # not a path, which would be split at commas
            model_prefix=str(prefix),
            vocab_size=size,
            model_type="bpe",
            character_coverage=1.0,
            normalization_rule_name="identity",
            minloglevel=2,
        )
    except RuntimeError as error:
        limit = re.search(r"value <= (\d+)", str(error))
        if limit:
            problem = f"no {size} pieces can be had from so little text, {limit[1]} at the most"
        elif "required_chars" in str(error):
            problem = f"{size} pieces are fewer than the text has different characters"
        else:
            raise UserError(f"sentencepiece failed (is the disk full?): {' '.join(str(error).split())}") from None
        raise UserError(f"{problem}: choose another --size") from None


def split(lines: Sequence[str], model: Path) -> list[str]:
    """Return the lines as pieces with spaces between them."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [" ".join(pieces) for pieces in processor.encode(list(lines), out_type=str)]


def join(line: str) -> str:
    """Join the pieces of a line to words."""
    return line.replace(" ", "").replace("▁", " ").strip()


def to_text(lines: Sequence[str], settings: dict[str, Any], side: Optional[str] = None) -> list[str]:
    """Convert the output of a model to plain text."""
    tokens = settings["tokens"]
    words = list(lines) if tokens == "words" else [join(line) for line in lines]
    return detokenise(words, tokens, language_of(side or settings["sides"][-1], settings["languages"]))


def settings_of(folder: Path) -> dict[str, Any]:
    """Read the settings that :func:`encode_folder` has written."""
    path = folder / SETTINGS
    if not path.is_file():
        raise UserError(f"{folder} has no {SETTINGS}: it should be a folder that kerbs-corpus pieces wrote")
    try:
        settings = read_json(path)
        check_languages(settings["languages"])
        assert settings["tokens"] in TOKENS
        assert all(isinstance(side, str) for side in settings["sides"])
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise UserError(f"{path} is damaged: run kerbs-corpus pieces again") from None
    return settings
