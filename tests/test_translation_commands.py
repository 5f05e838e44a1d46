"""The stock translation commands, run as a user would, with the plugin as --user-dir."""

import json
import re
from pathlib import Path

import pytest
from commands import PACKAGE, SMALL_LSTM, SMALL_TRANSFORMER, generate, run, start, train

pytestmark = pytest.mark.e2e


def valid_lines(log: str) -> list[dict]:
    return [json.loads(values) for values in re.findall(r"\| valid \| (\{.*\})", log)]


LATER = ("train", "generate", "interactive", "eval-lm", "validate")  # which other tests run


@pytest.mark.parametrize("command", ["preprocess", *(pytest.param(name, marks=pytest.mark.thorough) for name in LATER)])
def test_stock_command_starts(command: str) -> None:
    assert "usage:" in run(f"fairseq-{command} --help", fresh=True)


def test_preprocess_with_two_workers_keeps_every_line(pairs: Path, corpus: Path) -> None:
    from fairseq.data import Dictionary, data_utils

    dictionary = Dictionary.load(str(pairs / "dict.tgt.txt"))
    data = data_utils.load_indexed_dataset(str(pairs / "train.src-tgt.tgt"), dictionary)
    lines = (corpus / "parallel" / "train.tgt").read_text().splitlines()
    assert [dictionary.string(data[i]) for i in range(len(data))] == lines


def test_preprocess_joined_dictionary(corpus: Path, tmp_path: Path) -> None:
    prefix = corpus / "parallel" / "valid"
    run(f"fairseq-preprocess -s src -t tgt --trainpref {prefix} --joined-dictionary --destdir {tmp_path}")
    source, target = ((tmp_path / f"dict.{side}.txt").read_text() for side in ("src", "tgt"))
    assert source == target
    words = {line.split()[0] for line in source.splitlines()}
    for side in ("src", "tgt"):
        assert set((prefix.parent / f"valid.{side}").read_text().split()) <= words


@pytest.mark.thorough  # with KerBS: test_kerbs_commands.py
def test_lstm_trains_and_validates(pairs: Path, tmp_path: Path) -> None:
    log = train(pairs, SMALL_LSTM, tmp_path, "--max-epoch 2")
    first, second = valid_lines(log)
    assert float(second["valid_loss"]) < float(first["valid_loss"])
    assert (tmp_path / "checkpoint_best.pt").is_file()


@pytest.mark.thorough  # with KerBS: test_kerbs_commands.py
def test_resume_goes_on_where_training_stopped(pairs: Path, tmp_path: Path) -> None:
    train(pairs, SMALL_TRANSFORMER, tmp_path, "--max-update 4")
    log = train(pairs, SMALL_TRANSFORMER, tmp_path, "--max-update 7")
    assert re.search(r"Loaded checkpoint .*checkpoint_last\.pt \(epoch 1 @ 4 updates\)", log)
    assert valid_lines(log)[-1]["valid_num_updates"] == "7"


def test_beam_search_translates_every_sentence(pairs: Path, transformer: Path) -> None:
    out = generate(pairs, transformer / "checkpoint_best.pt", "--beam 5", fresh=True)
    assert len(re.findall(r"^H-\d+\t", out, re.M)) == 60
    assert "Generate test with beam=5: BLEU4 =" in out


def test_scoring_by_sacrebleu(pairs: Path, transformer: Path) -> None:
    out = generate(pairs, transformer / "checkpoint_best.pt", "--beam 2 --scoring sacrebleu")
    assert re.search(r"beam=2: BLEU = [\d.]+ ", out)


@pytest.mark.thorough  # with KerBS: test_kerbs_commands.py
def test_sampling_depends_on_the_seed_alone(pairs: Path, transformer: Path) -> None:
    options = "--sampling --sampling-topk 20 --beam 1 --results-path"

    def sample(seed: int) -> list[str]:
        folder = transformer.parent / f"sample-{seed}"
        generate(pairs, transformer / "checkpoint_best.pt", f"{options} {folder} --seed {seed}")
        lines = (folder / "generate-test.txt").read_text().splitlines()
        return sorted(line for line in lines if line.startswith("H-"))

    first = sample(1)
    assert len(first) == 60
    assert sample(1) == first
    assert sample(2) != first


@pytest.mark.thorough  # with KerBS: test_kerbs_commands.py
def test_score_reference_gives_a_score_per_reference_token(pairs: Path, transformer: Path) -> None:
    out = generate(pairs, transformer / "checkpoint_best.pt", "--score-reference")
    references = dict(re.findall(r"^T-(\d+)\t(.*)$", out, re.M))
    scores = dict(re.findall(r"^P-(\d+)\t(.*)$", out, re.M))
    assert len(references) == 60
    for number, reference in references.items():
        assert len(scores[number].split()) == len(reference.split()) + 1  # and the end of the sentence


@pytest.mark.thorough  # with KerBS: test_kerbs_commands.py
def test_validate_repeats_the_loss_of_training(pairs: Path, tmp_path: Path) -> None:
    log = train(pairs, SMALL_TRANSFORMER, tmp_path, "--max-update 3")
    out = run(
        f"fairseq-validate {pairs} --task translation --user-dir {PACKAGE} --path {tmp_path}/checkpoint_last.pt "
        "--max-tokens 800 --log-format json"
    )
    assert re.search(r'"valid_loss": "([\d.]+)"', out)[1] == valid_lines(log)[-1]["valid_loss"]


def test_interactive_with_sentencepiece(corpus: Path, tmp_path: Path) -> None:
    import sentencepiece

    raw = corpus / "parallel"
    pieces = tmp_path / "pieces.model"
    sentencepiece.SentencePieceTrainer.train(
        input=[str(raw / "train.src"), str(raw / "train.tgt")],
        model_prefix=str(pieces.with_suffix("")),
        vocab_size=200,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    for split in ("train", "valid"):
        for side in ("src", "tgt"):
            lines = (raw / f"{split}.{side}").read_text().splitlines()
            text = "".join(" ".join(processor.encode(line, out_type=str)) + "\n" for line in lines)
            (tmp_path / f"{split}.{side}").write_text(text)
    run(
        f"fairseq-preprocess -s src -t tgt --trainpref {tmp_path}/train --validpref {tmp_path}/valid "
        f"--destdir {tmp_path}/data --joined-dictionary"
    )
    train(tmp_path / "data", SMALL_TRANSFORMER, tmp_path / "save", "--max-update 6 --share-all-embeddings")
    sentence = (raw / "valid.src").read_text().splitlines()[0]
    out = run(
        f"fairseq-interactive {tmp_path}/data --user-dir {PACKAGE} --path {tmp_path}/save/checkpoint_last.pt "
        f"--bpe sentencepiece --sentencepiece-model {pieces} --beam 5 --max-len-b 20",
        input=f"{sentence}\n",
    )
    encoded = " ".join(processor.encode(sentence, out_type=str))
    assert f"S-0\t{encoded}" in out
    assert re.search(r"^D-0\t-[\d.]+\t[^▁]*$", out, re.M), "the translation is shown as plain text again"


def test_unknown_user_option_is_refused(pairs: Path) -> None:
    done = start(f"fairseq-train {pairs} --user-dir {PACKAGE} --arch transformer --no-such-option 1")
    assert done.returncode != 0
    assert "unrecognized arguments" in done.stderr


@pytest.mark.thorough  # with KerBS: test_kerbs_commands.py
def test_from_pretrained(pairs: Path, transformer: Path) -> None:
    program = (
        "import kerbs_fairseq\n"
        "from fairseq.models.transformer import TransformerModel\n"
        f"hub = TransformerModel.from_pretrained({str(transformer)!r}, 'checkpoint_best.pt', {str(pairs)!r})\n"
        "print('answer:', repr(hub.translate('zere bida nalu', beam=5)))\n"
    )
    script = transformer.parent / "hub.py"
    script.write_text(program)
    out = run(f"python {script}")
    assert re.search(r"^answer: '.*'$", out, re.M)
