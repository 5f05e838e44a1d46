"""From owners' files to text: formats, splits without leaks, subwords and back, and what is wrong with a file."""

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from raw_corpora import pairs, write_dialogs, write_iwslt, write_shards

from kerbs_fairseq.corpora import pieces
from kerbs_fairseq.corpora.command import main
from kerbs_fairseq.corpora.lines import clean, read_lines
from kerbs_fairseq.corpora.pairs import Splits, read_tabbed, side_by_side
from kerbs_fairseq.corpora.split import cut_sentences, families, split_by_sentence, tidy, without_overlap
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import new_folder


def text_of(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text(encoding="utf-8").splitlines()


def refusal(*arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    assert isinstance(stopped.value.code, str), "a clear message"
    assert "\n" not in stopped.value.code
    return stopped.value.code


# --- lines


def test_lines_of_any_system_are_cleaned(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("\ufeffa\u00a0 b\r\nu\u0308ber\u200b\n\tc\x07\x0bd \n".encode())
    assert read_lines(path) == ["a b", "über", "c d"]


def test_a_form_feed_or_line_separator_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\u2028b\x0cc\x85d\nsecond\n".encode())
    assert read_lines(path) == ["a b c d", "second"]


def test_gzip_is_unpacked_and_a_cut_one_named(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n" * 1000))
    assert len(read_lines(path)) == 2000
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"text\.gz, after line"):
        read_lines(path)
    path.write_bytes(gzip.compress(b"one\ntwo\n" * 1000)[:12] + b"\xff" * 40)
    with pytest.raises(UserError, match=r"text\.gz, after line 0"):
        read_lines(path)


def test_bytes_that_are_not_utf8_are_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"fine\nna\xefve\n")
    with pytest.raises(UserError, match="line 2: not UTF-8"):
        read_lines(path)


@example("a\u200b\u0308")  # what was apart meets
@given(st.text())
def test_clean_text_stays_as_it_is(text: str) -> None:
    once = clean(text)
    assert clean(once) == once
    assert len(once.splitlines()) <= 1  # whoever splits it


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    def stop_half_way() -> None:
        with new_folder(tmp_path / "new") as folder:
            (folder / "half").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop_half_way()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "taken").touch()
    with pytest.raises(UserError, match="exists"), new_folder(tmp_path):
        pass


# --- parallel text


def test_iwslt_tags_and_xml(tmp_path: Path) -> None:
    raw = write_iwslt(tmp_path / "raw" / "de-en")
    main(["pairs", str(raw.parent), str(tmp_path / "text")])  # the archive has a folder for the pair
    german, english = pairs(200, 1)[0]
    assert text_of(tmp_path / "text", "train.de")[0] == f"{german} & so"
    assert text_of(tmp_path / "text", "train.en")[0] == f"{english} & so"
    for number, part in enumerate(("valid", "test")):
        assert text_of(tmp_path / "text", f"{part}.en") == [one[1] for one in pairs(20, 10 + number)]


def test_iwslt_faults(tmp_path: Path) -> None:
    raw = write_iwslt(tmp_path / "raw")
    out = tmp_path / "text"
    assert "no set tst2099" in refusal("pairs", raw, out, "--test-set", "tst2099")
    assert "tst2013, tst2014" in refusal("pairs", raw, out, "--test-set", "tst2099")
    xml = raw / "IWSLT16.TED.tst2014.de-en.en.xml"
    xml.write_text(xml.read_text().replace("</mteval>", ""))
    xml.write_text("\n".join(xml.read_text().splitlines()[:-4]))
    assert "is cut short" in refusal("pairs", raw, out)
    train = raw / "train.tags.de-en.de"
    train.write_text("\n".join(train.read_text().splitlines()[:-1]))
    assert "has 199 lines and train.tags.de-en.en 200" in refusal("pairs", raw, out)
    train.unlink()
    assert "cannot be read" in refusal("pairs", raw, out)
    assert not out.exists()


def test_files_line_by_line(tmp_path: Path) -> None:
    for part, n in (("train", 30), ("val", 5), ("test_2016", 5)):
        for at, side in enumerate(("de", "en")):
            (tmp_path / f"{part}.{side}").write_bytes("".join(f"{p[at]}\r\n" for p in pairs(n, n)).encode())
    (tmp_path / "train.de").write_bytes(b"\r\n" + (tmp_path / "train.de").read_bytes())
    (tmp_path / "train.en").write_bytes(b"alone\r\n" + (tmp_path / "train.en").read_bytes())
    main(["pairs", str(tmp_path), str(tmp_path / "text"), "--max-words", "7"])
    assert text_of(tmp_path / "text", "train.de") == [one[0] for one in pairs(30, 30)]
    summary = json.loads((tmp_path / "text" / "corpus.json").read_text())
    assert summary["pairs"] == {"train": 30, "valid": 5, "test": 5}
    assert summary["left_out"] == {"train: empty on one side": 1}
    (tmp_path / "val.en").unlink()
    assert "val.en does not" in refusal("pairs", tmp_path, tmp_path / "other")


def test_tabs_need_two_columns(tmp_path: Path) -> None:
    path = tmp_path / "deu.txt"
    path.write_text("Hi.\tHallo!\tlicence\n\nRun!\tLauf!\n")
    assert read_tabbed(path, swap=True) == [("Hallo!", "Hi."), ("Lauf!", "Run!")]
    path.write_text("Hi.\tHallo!\nRun!\n")
    with pytest.raises(UserError, match="line 2"):
        read_tabbed(path, swap=True)


def test_unequal_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("1\n")
    with pytest.raises(UserError, match="a has 2 lines and b 1"):
        side_by_side(tmp_path / "a", tmp_path / "b")


def test_an_empty_folder_says_what_is_looked_for(tmp_path: Path) -> None:
    assert "train.tags.de-en.de" in refusal("pairs", tmp_path, tmp_path / "out")
    assert "dialogues_train.txt" in refusal("dialog", tmp_path, tmp_path / "out")
    assert "news.en-" in refusal("sentences", tmp_path, tmp_path / "out", "--cut", "3,2,1")
    assert "is not a directory" in refusal("pairs", tmp_path / "missing", tmp_path / "out")
    assert "train.*" in refusal("pieces", tmp_path, tmp_path / "out")


# --- splits


sentences = st.sampled_from("abcdefghijklm")


@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=30))
def test_families_share_no_sentence(corpus: list[tuple[str, str]]) -> None:
    groups = families(corpus)
    assert sorted(p for group in groups for p in group) == sorted(set(corpus))
    for at in (0, 1):
        sides = [{p[at] for p in group} for group in groups]
        assert sum(map(len, sides)) == len(set().union(*sides)), "no sentence in two groups"


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_no_sentence_stands_in_two_parts(seed: int) -> None:
    generator = random.Random(seed)
    corpus = [(f"s{generator.randrange(150)}", f"t{generator.randrange(150)}") for _ in range(60)]
    if len(families(corpus)) <= 8:
        return
    splits = split_by_sentence(corpus, 5, 3, seed)
    assert (len(splits.valid), len(splits.test)) == (5, 3)
    for at in (0, 1):
        parts = [{p[at] for p in part} for part in splits.parts().values()]
        assert sum(map(len, parts)) == len(set().union(*parts))
    assert splits == split_by_sentence(corpus, 5, 3, seed), "the same for the same seed"


def test_a_split_that_is_asked_too_much(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ask for fewer"):
        split_by_sentence([("a", "b"), ("c", "d")], 1, 1, 1)


def test_long_sentences_are_left_out_of_training_alone() -> None:
    long = ("a b c", "d")
    splits = tidy(Splits([long, ("a", "b")], [long], [long]), max_words=2)
    assert (splits.train, splits.valid, splits.test) == ([("a", "b")], [long], [long])
    assert splits.left_out == {"train: over 2 words": 1}
    with pytest.raises(UserError, match="nothing is left for train"):
        tidy(Splits([long], [long], [long]), max_words=2)


def test_overlap_is_found_whatever_the_capitals() -> None:
    splits = without_overlap(Splits([("A", "b")], [("a", "c")], [("a", "B"), ("b", "a")]))
    assert splits.test == [("b", "a")]
    assert splits.left_out == {"valid: stands in train": 0, "test: stands in train": 1}


def test_shards_are_cut_into_parts_without_overlap(tmp_path: Path) -> None:
    raw = write_shards(tmp_path / "raw")
    files = sorted(raw.rglob("news*"))
    parts = cut_sentences(files, [200, 20, 30], seed=1)
    assert [len(part) for part in parts] == [200, 20, 30]
    assert len({line for part in parts for line in part}) == 250
    assert parts == cut_sentences(files[::-1], [200, 20, 30], seed=1), "whatever the order of the files"
    assert parts != cut_sentences(files, [200, 20, 30], seed=2)
    with pytest.raises(UserError, match=r"1,000 sentences are asked for .* there are 300"):
        cut_sentences(files, [900, 50, 50], seed=1)


def test_long_sentences_are_not_drawn_for_training(tmp_path: Path) -> None:
    (tmp_path / "news").write_text("".join(f"s{i}{' x' * (i % 3)}\n" for i in range(60)))
    train, *held_out = cut_sentences([tmp_path / "news"], [20, 10, 10], seed=1, max_words=2)
    assert (len(train), [len(part) for part in held_out]) == (20, [10, 10])
    assert max(len(line.split()) for line in train) == 2
    assert max(len(line.split()) for part in held_out for line in part) == 3, "validation and test are as they are"
    assert len({line for part in (train, *held_out) for line in part}) == 40
    with pytest.raises(UserError, match="40 of up to 2 words"):
        cut_sentences([tmp_path / "news"], [40, 10, 10], seed=1, max_words=2)


def test_a_corpus_with_parts_of_its_own_keeps_them(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        (tmp_path / f"ptb.{part}.txt").write_text(f" {part} one \n\n {part} two \n")
    main(["sentences", str(tmp_path), str(tmp_path / "text")])
    assert text_of(tmp_path / "text", "test.txt") == ["test one", "test two"]
    (tmp_path / "ptb.valid.txt").unlink()
    assert "--cut" in refusal("sentences", tmp_path, tmp_path / "other")


# --- dialogs


def test_turns_become_pairs_and_the_overlap_goes(tmp_path: Path) -> None:
    raw = write_dialogs(tmp_path / "raw")
    main(["dialog", str(raw), str(tmp_path / "text")])
    source, target = (text_of(tmp_path / "text", f"train.{side}") for side in ("src", "tgt"))
    assert (source[0], target[0]) == ("Hello there .", "How are you ?")
    assert source[1] == target[0], "an answer is answered"
    assert "hello there ." not in text_of(tmp_path / "text", "test.src")
    left_out = json.loads((tmp_path / "text" / "corpus.json").read_text())["left_out"]
    assert left_out["test: stands in train"] == 1


def test_a_dialog_without_end_is_named(tmp_path: Path) -> None:
    raw = write_dialogs(tmp_path / "raw")
    path = raw / "dialogues_validation.txt"
    path.write_text(path.read_text()[:-20])
    assert "line 8: the last turn is not ended by __eou__" in refusal("dialog", raw, tmp_path / "out")


# --- subwords


@pytest.fixture
def text(tmp_path: Path) -> Path:
    main(["pairs", str(write_iwslt(tmp_path / "raw")), str(tmp_path / "text")])
    return tmp_path / "text"


@pytest.mark.parametrize("tokens", pieces.TOKENS)
def test_subwords_and_back(text: Path, tmp_path: Path, tokens: str) -> None:
    out = tmp_path / "pieces"
    main(["pieces", str(text), str(out), "--tokens", tokens, "--size", "100"])
    settings = pieces.settings_of(out)
    for side in ("de", "en"):
        encoded = text_of(out, f"test.{side}")
        assert pieces.to_text(encoded, settings, side) == text_of(text, f"test.{side}")
        assert (encoded == text_of(text, f"test.{side}")) == (tokens == "words")


def test_more_pieces_than_there_can_be(text: Path, tmp_path: Path) -> None:
    message = refusal("pieces", text, tmp_path / "pieces", "--size", "50000")
    assert "choose another --size" in message
    assert "at the most" in message
    assert "different characters: choose another --size" in refusal("pieces", text, tmp_path / "pieces", "--size", "9")
    assert not (tmp_path / "pieces").exists()


def test_a_comma_in_a_path_and_a_language_without_a_side(text: Path, tmp_path: Path) -> None:
    main(["pieces", str(text), str(tmp_path / "a,b"), "--size", "100"])
    assert "SIDE=LANGUAGE" in refusal("pieces", text, tmp_path / "c", "--language", "en")


def test_no_settings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="kerbs-corpus pieces"):
        pieces.settings_of(tmp_path)
