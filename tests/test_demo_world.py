"""The demo corpus: what is promised of it, checked on the files and on the world behind them."""

import collections
import csv
import math
import random
from pathlib import Path

import pytest
from commands import start
from hypothesis import given, settings
from hypothesis import strategies as st

from kerbs_fairseq.demo import lexicon
from kerbs_fairseq.demo.world import WORDS_PER_SENTENCE, World, all_target_words
from kerbs_fairseq.demo.write import SPLITS, Sizes, WorldExhausted, distinct_sentences, main, write_corpus

SMALL = (Sizes(300, 30, 30), Sizes(300, 30, 30))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of `make demo`."""
    folder = tmp_path_factory.mktemp("demo") / "corpus"
    write_corpus(folder)
    return folder


def lines(path: Path) -> list[list[str]]:
    return [line.split(" ") for line in path.read_text(encoding="utf-8").splitlines()]


def truth(folder: Path) -> list[dict[str, str]]:
    with (folder / "truth.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the lexicon


def test_no_word_is_in_two_lists() -> None:
    words = collections.Counter(word for words in all_target_words() for word in words)
    assert [word for word, count in words.items() if count > 1] == []


def test_homonyms_have_two_to_four_senses_each_in_its_own_topic() -> None:
    counts = collections.Counter(len(senses) for senses in lexicon.HOMONYMS.values())
    assert set(counts) == {2, 3, 4}
    assert min(counts.values()) >= 4
    for word, senses in lexicon.HOMONYMS.items():
        topics = [sense.topic for sense in senses]
        assert len(set(topics)) == len(topics), word
        assert set(topics) <= set(lexicon.TOPICS), word


# --- the world


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_any_seed_gives_a_sound_world(seed: int) -> None:
    world = World(seed)
    by_source = collections.defaultdict(list)
    for entry in world.entries:
        assert (entry.source == "") == (entry.part == "determiner")
        if entry.source:
            by_source[entry.source].append(entry)
    target_words = {entry.word for entry in world.entries}
    shared = [entries for entries in by_source.values() if len(entries) > 1]
    assert len(shared) >= 20, "context must be needed to translate"
    for entries in shared:
        assert len({entry.topic for entry in entries}) == len(entries) == 2
        assert len({entry.word for entry in entries}) == 2
    assert not target_words & set(by_source)
    rng = random.Random(seed)
    for _ in range(50):
        sentence = world.sentence(rng)
        assert WORDS_PER_SENTENCE[0] <= len(sentence.target) <= WORDS_PER_SENTENCE[1]
        assert len({entry.topic for entry in sentence.target} - {""}) <= 1
        translated = [entry for entry in sentence.target if entry.part != "determiner"]
        assert sorted(sentence.source) == sorted(entry.source for entry in translated)


def test_a_world_that_runs_out_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1)
    one = world.sentence(random.Random(0))
    monkeypatch.setattr(World, "sentence", lambda self, rng: one)
    stream = distinct_sentences(world, 1)
    assert next(stream) == one
    with pytest.raises(WorldExhausted):
        next(stream)


# --- the files


def test_same_seed_same_bytes_and_other_seed_other_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        write_corpus(tmp_path / name, seed, *SMALL)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")["parallel/train.tgt"] != contents(tmp_path / "c")["parallel/train.tgt"]


def test_senses_repeat_the_text(full: Path) -> None:
    for corpus, ending in (("parallel", "tgt"), ("mono", "txt")):
        for split in SPLITS:
            text, senses = (lines(full / corpus / f"{split}.{e}") for e in (ending, "senses"))
            assert [[tag.rpartition(".")[0] for tag in line] for line in senses] == text


def test_splits_do_not_overlap_on_either_side(full: Path) -> None:
    target = [
        tuple(line)
        for c, e in (("parallel", "tgt"), ("mono", "txt"))
        for s in SPLITS
        for line in lines(full / c / f"{s}.{e}")
    ]
    source = [tuple(line) for s in SPLITS for line in lines(full / "parallel" / f"{s}.src")]
    assert len(set(target)) == len(target) == 6800 + 8800
    assert len(set(source)) == len(source) == 6800


def test_valid_and_test_hold_no_word_that_train_does_not(full: Path) -> None:
    for corpus, endings in (("parallel", ("src", "tgt")), ("mono", ("txt",))):
        for ending in endings:
            seen = {word for line in lines(full / corpus / f"train.{ending}") for word in line}
            for split in ("valid", "test"):
                assert {word for line in lines(full / corpus / f"{split}.{ending}") for word in line} <= seen


def test_sentences_have_4_to_15_words(full: Path) -> None:
    lengths = collections.Counter(len(line) for line in lines(full / "parallel" / "train.tgt"))
    assert (min(lengths), max(lengths)) == (4, 15)
    assert len(lengths) == 12


def test_frequencies_are_zipf_like(full: Path) -> None:
    counts = collections.Counter(word for line in lines(full / "mono" / "train.txt") for word in line)
    ranked = [count for _, count in counts.most_common(300)]
    x, y = [math.log(rank) for rank in range(1, 301)], [math.log(count) for count in ranked]
    mean_x, mean_y = sum(x) / 300, sum(y) / 300
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)
    assert -1.3 < slope < -0.7


def test_truth_agrees_with_the_text(full: Path) -> None:
    rows = truth(full)
    for corpus in ("parallel", "mono"):
        counts = collections.Counter(tag for line in lines(full / corpus / "train.senses") for tag in line)
        assert {f"{row['word']}.{row['sense']}": int(row[f"count_{corpus}"]) for row in rows} == counts
    senses = collections.Counter(row["word"] for row in rows)
    assert all(int(row["senses"]) == senses[row["word"]] for row in rows)
    assert set(senses.values()) == {1, 2, 3, 4}
    for row in rows:
        if int(row["senses"]) > 1:
            assert min(int(row["count_parallel"]), int(row["count_mono"])) >= 15, f"{row}: too rare to be learned"


def test_narrow_and_wide_words_differ_in_their_contexts(full: Path) -> None:
    range_of = {row["word"]: row["range"] for row in truth(full) if row["senses"] == "1"}
    neighbours = collections.defaultdict(set)
    counts: collections.Counter = collections.Counter()
    for line in lines(full / "mono" / "train.txt"):
        for word in line:
            counts[word] += 1
            neighbours[word] |= {other for other in line if range_of.get(other) != "grammar"}
    spread = collections.defaultdict(list)
    for word, words in neighbours.items():
        if 80 <= counts[word] <= 250 and word in range_of:
            spread[range_of[word]].append(len(words))
    mean = {name: sum(values) / len(values) for name, values in spread.items()}
    assert mean["narrow"] < mean["topic"] < mean["wide"]


def test_the_source_alone_does_not_tell_the_word_but_the_topic_does(full: Path) -> None:
    rows = [row for row in truth(full) if row["source"]]
    ambiguous = collections.Counter(row["source"] for row in rows)
    assert sum(count > 1 for count in ambiguous.values()) >= 20
    keys = [(row["source"], row["topic"]) for row in rows]
    assert len(set(keys)) == len(keys)


# --- the command


def test_command_writes_what_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    main([str(tmp_path / "out"), "--parallel", "20,3,2", "--mono", "10,1,1"])
    assert "25 sentence pairs and 12 sentences" in capsys.readouterr().out
    assert len(lines(tmp_path / "out" / "parallel" / "valid.src")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{there}"], "exists: name another folder"),
        (["{there}", "--force"], "is not a demo corpus"),
        (["{new}", "--parallel", "10,10"], "is not three whole numbers"),
        (["{new}", "--mono", "10,0,10"], "at least one sentence"),
        (["{file}/below"], "cannot write"),
    ],
)
def test_bad_input_is_explained_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture, arguments: list[str], message: str
) -> None:
    names = {name: str(tmp_path / name) for name in ("there", "new", "file")}
    Path(names["there"]).mkdir()
    (Path(names["there"]) / "precious").write_text("keep me")
    Path(names["file"]).write_text("a file, no folder")
    with pytest.raises(SystemExit) as stopped:
        main([argument.format(**names) for argument in arguments])
    assert stopped.value.code
    assert message in str(stopped.value.code) + capsys.readouterr().err
    assert sorted(contents(tmp_path)) == ["file", "there/precious"]


@pytest.mark.e2e
def test_console_command(tmp_path: Path) -> None:
    done = start(f"kerbs-demo-corpus {tmp_path}/out --parallel 5,1,1 --mono 5,1,1", fresh=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "truth.tsv").is_file()
