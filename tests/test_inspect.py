"""kerbs-inspect on synthetic models, on trained models, and on files that are not models."""

import json
import sys
from pathlib import Path

import pytest
import torch
from commands import SMALL_LSTM_LM, SMALL_TRANSFORMER, run, start, train, twin
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import WORDS, checkpoint

from kerbs_fairseq.functional.kernel import released_theta
from kerbs_fairseq.inspection import command as inspect
from kerbs_fairseq.inspection import contexts, findings
from kerbs_fairseq.inspection.learned import load
from kerbs_fairseq.inspection.pieces import highlighted, mark_of
from kerbs_fairseq.runs.checkpoint import Code, fingerprint
from kerbs_fairseq.runs.errors import UserError


def test_words_by_number_of_senses(synthetic: Path) -> None:
    lines = {line["senses"]: line for line in findings.by_number(load(synthetic))}
    assert {n: line["words"] for n, line in lines.items()} == {1: 1, 2: 2, 3: 1}
    assert lines[2]["samples"] == ["the", "river"]  # the more frequent first
    assert lines[3]["samples"] == ["bank"]


@given(st.lists(st.text("abc'", min_size=1, max_size=4), min_size=1, max_size=8), st.data())
def test_subwords_are_shown_as_text(words: list[str], data: st.DataObject) -> None:
    cuts = [data.draw(st.integers(1, len(word))) for word in words]
    parts = [[word[:cut], word[cut:]] if word[cut:] else [word] for word, cut in zip(words, cuts)]
    styles = {
        "▁": [f"▁{part}" if i == 0 else part for word in parts for i, part in enumerate(word)],
        "@@": [f"{part}@@" if i + 1 < len(word) else part for word in parts for i, part in enumerate(word)],
        "": words,
    }
    for mark, pieces in styles.items():
        assert mark_of([*pieces, "x"]) in (mark, "")
        position = data.draw(st.integers(0, len(pieces) - 1))
        text = highlighted([*pieces, "</s>"], position, mark)
        assert text.replace("»", "").replace("«", "") == " ".join(words)
        assert f"»{pieces[position].strip('▁').removesuffix('@@')}«" in text
    assert mark_of(["▁a", "b@@"]) == "▁"
    assert mark_of(["a", "b@@"]) == "@@"
    assert highlighted(["▁to", "</s>"], 1, "▁") == "to »</s>«"
    assert highlighted(["▁to", "▁"], 1, "▁") == "to »▁«"


def test_movers_are_counted_from_the_first_allocation(synthetic: Path) -> None:
    model, first = load(synthetic), torch.tensor([1, 1, 1, 1, 2, 2, 3, 1])
    assert torch.equal(model.initial, first)
    movers = findings.movers(model)
    for line in movers["won"] + movers["lost"]:
        at = model.find(line["word"])
        assert (line["from"], line["to"]) == (int(first[at]), int(model.numbers[at]))
    assert sum(len(lines) for lines in movers.values()) == int((model.numbers != first).sum())


def test_an_old_checkpoint_does_not_know_its_start(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where options of the first allocation are there: they are those of the last run, not of the first."""
    for number, initial in enumerate((None, torch.zeros(8, dtype=torch.int32))):  # 0: from an older checkpoint still
        path = checkpoint(tmp_path / f"{number}.pt", data, **{"decoder.head.senses.initial_senses": initial})
        assert findings.movers(load(path)) == {}
        inspect.main([str(path)])
        printed = capsys.readouterr().out
        assert "Senses per word at the start: unknown" in printed
        assert "Most moved" not in printed


def test_the_dictionary_of_the_training_is_told_from_others(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *WORDS]
    made = {"decoder.head.senses.vocabulary": torch.tensor(fingerprint(symbols))}
    path = checkpoint(tmp_path / "new.pt", data, **made)
    assert load(path).same_dictionary is True
    inspect.main([str(path)])
    assert "unknown" not in capsys.readouterr().out
    other = tmp_path / "other"
    other.mkdir()
    (other / "dict.tgt.txt").write_text("".join(f"{word} 1\n" for word in reversed(WORDS)))  # as many words
    with pytest.raises(UserError, match=r"dict\.tgt\.txt is not the dictionary that the model was trained with"):
        load(path, other)
    assert load(checkpoint(tmp_path / "old.pt", data), other).same_dictionary is None
    inspect.main([str(tmp_path / "old.pt"), "--data", str(other)])
    assert "Whether this is the dictionary of the training: unknown" in capsys.readouterr().out
    (data / "dict.tgt.txt").write_text((other / "dict.tgt.txt").read_text())
    assert load(path).words[4] == "#4", "better numbers than wrong words"


def test_of_two_dictionaries_that_fit_the_tasks_own_is_taken(tmp_path: Path, data: Path) -> None:
    other = WORDS[::-1]
    (data / "dict.txt").write_text("".join(f"{word} 1\n" for word in other))
    path = checkpoint(tmp_path / "both.pt", data)
    assert load(path).words[4:] == WORDS, "dict.TARGET.txt for a translation"
    state = torch.load(path, weights_only=False)
    state["model"]["decoder.head.senses.vocabulary"] = torch.tensor(
        fingerprint(["<s>", "<pad>", "</s>", "<unk>", *other])
    )
    torch.save(state, path)
    assert load(path).words[4:] == other, "whichever is that of the training"
    del state["model"]["decoder.head.senses.vocabulary"], state["cfg"]["task"]["target_lang"]
    torch.save(state, path)
    assert load(path).words[4:] == other, "dict.txt for a language model"


def test_a_word_is_its_beginning_piece(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "dict.tgt.txt").write_text("bank 9\n▁bank 8\n▁money 7\nx 6\n")
    model = load(checkpoint(tmp_path / "pieces.pt", data))
    assert [model.find(word) for word in ("bank", "▁bank", "money", "x")] == [5, 5, 6, 7]
    inspect.main([str(tmp_path / "pieces.pt"), "--word", "bank"])
    assert "▁bank, 8 times" in capsys.readouterr().out


def test_theta_has_a_learning_rate_of_its_own(tmp_path: Path, data: Path) -> None:
    path = checkpoint(tmp_path / "rates.pt", data, **{"decoder.head.senses.rates": torch.tensor([500_000, 1_000_000])})
    torch.testing.assert_close(load(path).theta, torch.linspace(-0.5, 0.6, 12))


def test_models_of_ones_own_need_their_code_by_name_or_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("named", "recorded"):
        (tmp_path / f"code_{name}").mkdir()
        (tmp_path / f"code_{name}" / "__init__.py").write_text("")
    (tmp_path / "code_broken").mkdir()
    (tmp_path / "code_broken" / "__init__.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = Code("kerbs_own", "translation", str(tmp_path / "code_recorded"))
    with pytest.raises(UserError, match=r"the architecture kerbs_own comes from the --user-dir .*code_recorded"):
        contexts.import_code(own, None)
    assert "code_recorded" not in sys.modules
    contexts.import_code(own, tmp_path / "code_named")
    assert "code_named" in sys.modules
    contexts.import_code(own, None, trust=True)
    assert "code_recorded" in sys.modules
    with pytest.raises(UserError, match="the task own comes from"):
        contexts.import_code(Code("kerbs_lstm", "own", "elsewhere"), None)
    with pytest.raises(UserError, match="code_broken cannot be imported: division by zero"):
        contexts.import_code(own, tmp_path / "code_broken")
    contexts.import_code(Code("kerbs_lstm", "translation", "elsewhere"), None)  # ours, and known


def test_one_word_in_detail(synthetic: Path) -> None:
    word = findings.word_in_detail(load(synthetic), "bank")
    assert [sense["sense"] for sense in word["senses"]] == [4, 5, 6]
    assert [round(sense["share"], 3) for sense in word["senses"]] == [0.6, 0.396, 0.004]
    assert word["senses"][0]["nearest"][0] == {"word": "money", "cosine": pytest.approx(1.0)}
    assert word["senses"][0]["length"] == pytest.approx(1.0)
    assert word["count"] == 10
    thetas = torch.linspace(-1, 1.2, 12)[4:7]
    assert word["theta"] == pytest.approx(float((thetas * torch.tensor([0.6, 0.396, 0.004])).sum()), abs=1e-6)


def test_idle_senses(synthetic: Path) -> None:
    idle = findings.idle(load(synthetic))
    assert idle["senses"] == 1  # the senses of "the" have no usage, and equal shares
    assert idle["words"] == [{"word": "bank", "idle": 1, "of": 3}]


def test_theta_is_what_the_kernel_uses(tmp_path: Path, data: Path) -> None:
    raw = torch.linspace(-1, 1.2, 12)
    assert torch.equal(load(checkpoint(tmp_path / "p.pt", data)).theta, raw.clamp(-1, 1))
    assert torch.equal(load(checkpoint(tmp_path / "r.pt", data, "released")).theta, released_theta(raw))
    dot = load(checkpoint(tmp_path / "d.pt", data, "dot"))
    assert findings.widths(dot) == {}


def test_usage_of_words_that_were_not_seen_for_long(tmp_path: Path, data: Path) -> None:
    usage = torch.ones(12)
    usage[4:7] = torch.tensor([2e-33, 1e-33, 1e-33])
    model = load(checkpoint(tmp_path / "long.pt", data, **{"decoder.head.statistics.usage": usage}))
    torch.testing.assert_close(model.share[4:7], torch.tensor([0.5, 0.25, 0.25]))


def test_languages_that_the_checkpoint_does_not_name(tmp_path: Path, data: Path) -> None:
    """Found as fairseq finds them: by the names of the files, not of the dictionaries."""
    path = checkpoint(tmp_path / "pair.pt", data)
    state = torch.load(path, weights_only=False)
    state["cfg"]["task"]["target_lang"] = None
    torch.save(state, path)
    (data / "dict.de.txt").write_text((data / "dict.tgt.txt").read_text())
    (data / "dict.en.txt").write_text("".join(f"en{i} 1\n" for i in range(4)))
    (data / "train.en-de.en.idx").touch()
    assert load(path).words[4:] == WORDS


def test_language_models_with_fewer_words_than_their_dictionary(tmp_path: Path, data: Path) -> None:
    path = checkpoint(tmp_path / "lm.pt", data)
    state = torch.load(path, weights_only=False)
    state["cfg"]["task"] = {"data": str(data), "output_dictionary_size": 8}
    torch.save(state, path)
    (data / "dict.txt").write_text((data / "dict.tgt.txt").read_text() + "rare 1\n")
    assert load(path).words[4:] == WORDS


def test_broken_dictionaries_and_old_checkpoints_get_one_line(tmp_path: Path, synthetic: Path, data: Path) -> None:
    (data / "dict.tgt.txt").write_bytes(b"\xff\xfe nonsense")
    with pytest.raises(UserError, match="cannot be read as a dictionary"):
        load(synthetic)
    state = torch.load(synthetic, weights_only=False)
    del state["model"]["decoder.head.senses.kernel_id"]
    torch.save(state, tmp_path / "old.pt")
    with pytest.raises(UserError, match="another version"):
        load(tmp_path / "old.pt")


def test_odd_words_are_shown_as_they_are(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "dict.tgt.txt").write_text("[red] 9\n:cat: 8\nfoo\\ 7\n\x1b[31mx\x9b\u202e 6\n")
    inspect.main([str(checkpoint(tmp_path / "odd.pt", data, "dot")), "--group", "g=:cat:", "--word", "[red]"])
    printed = capsys.readouterr().out
    for word in ("[red]", ":cat:", "foo\\", "Groups", r"\x1b[31mx\x9b\u202e"):
        assert word in printed
    assert not {"\x1b", "\x9b", "\u202e"} & {*printed}, "nothing that commands a terminal"


def test_json_has_no_nan(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = torch.full((12,), torch.nan)
    path = checkpoint(tmp_path / "nan.pt", data, **{"decoder.head.senses.theta_raw": raw})
    inspect.main([str(path), "--json"])
    assert "NaN" not in capsys.readouterr().out


def test_half_precision_is_read(tmp_path: Path, data: Path) -> None:
    half = {
        "decoder.head.senses.vectors": torch.eye(12, 6).half(),
        "decoder.head.senses.theta_raw": torch.ones(12).half(),
    }
    model = load(checkpoint(tmp_path / "half.pt", data, **half))
    assert model.vectors.dtype == model.theta.dtype == torch.float32


def test_without_a_dictionary_words_are_numbers(
    tmp_path: Path, synthetic: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "dict.tgt.txt").unlink()
    inspect.main([str(synthetic)])
    printed = capsys.readouterr().out
    assert "No dictionary found" in printed
    assert "#4" in printed


def test_the_terminal_shows_every_part(synthetic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect.main([str(synthetic), "--word", "bank", "--group", "water=river,bank"])
    printed = capsys.readouterr().out
    for part in ("12 senses of 8 words", "Senses per word", "Most moved", "θ of all senses", "Groups", "water",
                 "Idle senses: 1 (8.3%)", "bank, 10 times", "money 1.00"):  # fmt: skip
        assert part in printed, part


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--word bnak", "there is no word 'bnak' among the 8 of the model; did you mean bank"),
        ("--group water", "write it as NAME=WORD,WORD"),
        ("--data nowhere", "is not a directory"),
        ("--contexts 0", "--contexts 0: at least 1"),
    ],
)
def test_mistakes_get_one_line(synthetic: Path, options: str, message: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        inspect.main([str(synthetic), *options.split()])
    assert message in str(stopped.value)
    assert "\n" not in str(stopped.value)


def test_another_dictionary_is_refused(synthetic: Path, data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(UserError, match="has no dictionary of the target"):
        load(synthetic, other)
    (other / "dict.tgt.txt").write_text("a 1\n")
    with pytest.raises(UserError, match=r"dict\.tgt\.txt has 5 words, the model has 8"):
        load(synthetic, other)


def test_what_is_no_kerbs_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        load(tmp_path / "text.pt")
    torch.save({"model": {"decoder.embed_tokens.weight": torch.zeros(2, 2)}}, tmp_path / "stock.pt")
    with pytest.raises(UserError, match="is not a KerBS model: it has no senses"):
        load(tmp_path / "stock.pt")
    torch.save({"model": {"decoder.head.prior.weight": torch.zeros(2, 2)}}, tmp_path / "mos.pt")
    with pytest.raises(UserError, match="a mixture of softmaxes"):
        load(tmp_path / "mos.pt")


# --- trained models, by the command


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (SMALL_TRANSFORMER, ""),
        (SMALL_LSTM_LM, "--task language_modeling --sample-break-mode eos --kerbs-kernel released"),
    ],
    ids=["transformer", "lstm_lm"],
)
def test_trained_models_with_contexts(pairs: Path, text: Path, tmp_path: Path, model: str, options: str) -> None:
    folder = text if "_lm" in model else pairs
    train(folder, twin(model), tmp_path, f"--criterion kerbs_cross_entropy --max-update 4 {options}")
    printed = start(f"kerbs-inspect {tmp_path}/checkpoint_last.pt --json --data {folder} --word the --word a").stdout
    result = json.loads(printed)
    assert [word["word"] for word in result["words"]] == ["the", "a"]
    for word in result["words"]:
        assert abs(sum(sense["share"] for sense in word["senses"]) - 1) < 1e-5
        contexts = [context for sense in word["senses"] for context in sense["contexts"]]
        assert contexts
        assert all(f"»{word['word']}«" in context["text"] for context in contexts)
        assert all(0 < context["probability"] <= 1 + 1e-6 for context in contexts)
    # every time that the word is a target is counted
    lines = (folder.parent / "corpus").glob("mono/valid.txt" if folder == text else "parallel/valid.tgt")
    times = sum(line.split().count("the") for path in lines for line in path.read_text().splitlines())
    assert sum(sense["meant"] for sense in result["words"][0]["senses"]) == times
    assert "Senses per word" in run(f"kerbs-inspect {tmp_path}/checkpoint_last.pt")
    missing = start(f"kerbs-inspect {tmp_path}/checkpoint_last.pt --data {folder} --word the --split nowhere")
    assert missing.returncode == 1
    assert "has no nowhere" in missing.stderr
    assert "Traceback" not in missing.stderr
