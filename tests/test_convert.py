"""kerbs-convert, fine-tuning from a softmax by fairseq-train, and fairseq's commands on what they make."""

import os
import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from commands import BIN, MEANINGLESS, PACKAGE, SMALL_TRANSFORMER, generate, launch, refused, run, train, twin

from kerbs_fairseq.cli import convert

FINETUNE = "--criterion kerbs_cross_entropy --max-update 2"


def hypotheses(output: str) -> list[tuple[str, float, str]]:
    lines = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", output, re.M)
    return sorted((number, float(score), text) for number, score, text in lines)


@pytest.fixture(scope="module")
def converted(once, transformer: Path, pairs: Path) -> Path:
    """A checkpoint of a stock Transformer as KerBS, without noise."""

    def make(folder: Path) -> None:
        folder.mkdir()
        more = ["--data", str(pairs), "--senses", "2", "--kerbs-start-noise", "0"]
        convert.main([str(transformer / "checkpoint_last.pt"), str(folder / "kerbs.pt"), *more])

    return once("converted", make) / "kerbs.pt"


@pytest.mark.e2e
def test_fairseq_generates_from_it_what_it_did(transformer: Path, pairs: Path, converted: Path) -> None:
    stock = f"{transformer}/checkpoint_last.pt"
    before, after = (hypotheses(generate(pairs, path, "--beam 3")) for path in (stock, converted))
    assert len(before) == 60
    assert [(i, text) for i, _, text in before] == [(i, text) for i, _, text in after]
    assert [score for _, score, _ in after] == pytest.approx([score for _, score, _ in before], abs=2e-4)
    together = hypotheses(generate(pairs, f"{stock}:{converted}", "--beam 3"))  # an ensemble of equals
    assert [text for *_, text in together] == [text for *_, text in before]


@pytest.mark.e2e
def test_fairseq_validates_and_interacts_with_it(transformer: Path, pairs: Path, converted: Path) -> None:
    command = f"fairseq-validate {pairs} --user-dir {PACKAGE} --task translation --batch-size 30 --path"
    losses = [
        re.findall(r"loss (\S+)", run(f"{command} {path}"))[-1]
        for path in (f"{transformer}/checkpoint_last.pt", converted)
    ]
    assert losses[0] == losses[1]
    words = (Path(pairs) / "dict.src.txt").read_text().split()[:6:2]
    out = run(f"fairseq-interactive {pairs} --user-dir {PACKAGE} --path {converted} --beam 2", input=" ".join(words))
    assert re.search(r"^H-0\t", out, re.M)
    program = (
        "import kerbs_fairseq; from fairseq.models.transformer import TransformerModel as M; "
        f"m = M.from_pretrained('{converted.parent}', 'kerbs.pt', '{pairs}'); print(repr(m.translate('{words[0]}')))"
    )
    done = launch([str(BIN / "python"), "-c", program])
    assert done.returncode == 0, done.stderr


@pytest.mark.e2e
def test_a_language_model_is_evaluated_as_before(transformer_lm: Path, text: Path, tmp_path: Path) -> None:
    stock, kerbs = f"{transformer_lm}/checkpoint_last.pt", tmp_path / "kerbs.pt"
    convert.main([stock, str(kerbs), "--data", str(text), "--kerbs-start-noise", "0"])
    command = f"fairseq-eval-lm {text} --user-dir {PACKAGE} --batch-size 20 --sample-break-mode eos --path"
    before, after = (float(re.findall(r"Perplexity: (\S+)", run(f"{command} {path}"))[-1]) for path in (stock, kerbs))
    assert after == pytest.approx(before, abs=0.011)


@pytest.mark.e2e
def test_training_starts_from_a_softmax(transformer: Path, pairs: Path, tmp_path: Path) -> None:
    stock, model = f"{transformer}/checkpoint_last.pt", twin(SMALL_TRANSFORMER)
    log = train(pairs, model, tmp_path / "a", f"{FINETUNE} --finetune-from-model {stock}")
    (cost,) = re.findall(r"the validation loss goes from \S+ to \S+ bits per token \((\S+) %\)", log)
    assert float(cost) < 0.5
    resets = " ".join(f"--reset-{part}" for part in ("optimizer", "lr-scheduler", "dataloader", "meters"))
    again = train(pairs, model, tmp_path / "b", f"{FINETUNE} --restore-file {stock} {resets}")
    losses = [re.findall(r'"valid_loss": "(\S+)"', text) for text in (log, again)]
    assert losses[0] == losses[1] != []
    more = train(pairs, model, tmp_path / "a", f"{FINETUNE} --finetune-from-model {stock} --max-update 3")
    assert "started from a softmax" not in more  # but goes on from its own checkpoint
    assert "@ 2 updates" in more


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("checkpoint", "options", "message"),
    [
        ("stock", "--decoder-embed-dim 16", "the checkpoint's softmax has 32 features and the model here has 16"),
        ("stock", "--encoder-layers 2", "does not fit the architecture: it lacks encoder.layers.1."),
        ("short", "", "short.pt cannot be read as a checkpoint"),
        pytest.param("list", "", "list.pt cannot be read as a checkpoint", marks=pytest.mark.thorough),
        ("converted", "--kerbs-kernel dot", "the checkpoint has the kernel paper, the model has dot"),
        ("none", "--kerbs-start-noise 0.5", "--kerbs-start-noise has no effect without a checkpoint"),
    ],
)
def test_what_training_cannot_start_from(
    transformer: Path, converted: Path, pairs: Path, tmp_path: Path, checkpoint: str, options: str, message: str
) -> None:
    stock = transformer / "checkpoint_last.pt"
    (tmp_path / "short.pt").write_bytes(stock.read_bytes()[:10000])
    torch.save([1], tmp_path / "list.pt")
    paths = {"stock": stock, "converted": converted}
    start = (
        "" if checkpoint == "none" else f"--finetune-from-model {paths.get(checkpoint, tmp_path / f'{checkpoint}.pt')}"
    )
    command = f"fairseq-train {pairs} --user-dir {PACKAGE} {twin(SMALL_TRANSFORMER)} --save-dir {tmp_path}/to --cpu"
    refused(f"{command} --optimizer adam --max-tokens 800 {FINETUNE} {start} {options}", message)


@pytest.mark.e2e
def test_a_stock_architecture_refuses_kerbs(converted: Path, pairs: Path, tmp_path: Path) -> None:
    command = (
        f"fairseq-train {pairs} --user-dir {PACKAGE} {SMALL_TRANSFORMER} --save-dir {tmp_path} --cpu --max-update 1"
    )
    message = "the checkpoint is of a KerBS model, and the model here has a softmax: put kerbs_ before"
    refused(f"{command} --optimizer adam --max-tokens 800 --finetune-from-model {converted}", message)


def main(*arguments: object) -> None:
    convert.main([str(argument) for argument in arguments])


def test_there_and_back(
    transformer: Path, converted: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    main(converted, tmp_path / "back.pt", "--data", pairs, "--to-softmax")
    line = capsys.readouterr().out
    assert "transformer_iwslt_de_en, exact, validation perplexity" in line
    before, after = re.findall(r"perplexity (\S+) with KerBS, (\S+) with", line)[0]
    assert before == after
    stock = torch.load(transformer / "checkpoint_last.pt", weights_only=False)
    back = torch.load(tmp_path / "back.pt", weights_only=False)
    assert stock["model"].keys() == back["model"].keys()
    for name, value in stock["model"].items():
        if not any(part in name for part in MEANINGLESS):
            torch.testing.assert_close(back["model"][name], value, atol=1e-6, rtol=0, msg=name)
    assert back["cfg"]["model"]._name == stock["cfg"]["model"]._name
    assert not [name for name in vars(back["cfg"]["model"]) if name.startswith("kerbs_")]


def test_an_approximation_is_asked_for_and_measured(
    transformer_lm: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    kerbs, back = tmp_path / "kerbs.pt", tmp_path / "back.pt"
    options = ("--kerbs-start-noise", "1", "--kerbs-start-split", "noise")
    main(transformer_lm / "checkpoint_last.pt", kerbs, "--data", text, *options)
    with pytest.raises(
        SystemExit, match=r"cannot be converted exactly: .* senses with different vectors; --approximate"
    ):
        main(kerbs, back, "--data", text, "--to-softmax")
    assert not back.exists()
    capsys.readouterr()
    main(kerbs, back, "--data", text, "--to-softmax", "--approximate")
    line = capsys.readouterr().out
    assert "transformer_lm, an approximation (" in line
    before, after = map(float, re.findall(r"perplexity (\S+) with KerBS, (\S+) with", line)[0])
    assert abs(after - before) > 1
    # noise sums to zero, so the nearest softmax is the one that it began with
    name = "decoder.output_projection.weight"
    stock, converted = (
        torch.load(path, weights_only=False)["model"][name] for path in (f"{transformer_lm}/checkpoint_last.pt", back)
    )
    torch.testing.assert_close(converted, stock, atol=1e-5, rtol=0)


def test_an_old_checkpoint_with_args(transformer: Path, pairs: Path, tmp_path: Path) -> None:
    state = torch.load(transformer / "checkpoint_last.pt", weights_only=False)
    parts = [vars(part) if isinstance(part, Namespace) else part for part in state["cfg"].values() if part]
    state["args"] = Namespace(**{name: value for part in parts for name, value in part.items()})
    state["args"].arch, state["args"].task, state["args"].criterion = (
        "transformer_iwslt_de_en",
        "translation",
        "cross_entropy",
    )
    state["args"].optimizer, state["args"].lr_scheduler = "adam", "fixed"
    del state["cfg"]
    torch.save(state, tmp_path / "old.pt")
    main(tmp_path / "old.pt", tmp_path / "new.pt", "--data", pairs, "--kerbs-start-noise", "0")
    new = torch.load(tmp_path / "new.pt", weights_only=False)
    assert new["cfg"]["model"]._name == "kerbs_transformer_iwslt_de_en"
    words = new["model"]["decoder.head.senses.sense_to_word"]
    expected = state["model"]["decoder.output_projection.weight"][words]
    assert torch.equal(new["model"]["decoder.head.senses.vectors"], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("missing.pt out.pt", "missing.pt does not exist"),
        ("short.pt out.pt", "short.pt cannot be read as a checkpoint"),
        ("list.pt out.pt", "list.pt is not a fairseq checkpoint: it has no model"),
        ("foreign.pt out.pt", "foreign.pt does not say which architecture it is of"),
        ("other.pt out.pt", "other.pt is of the architecture my_model, which is not known here: name the code"),
        ("code.pt out.pt", "code.pt asks for .*, which no checkpoint needs"),
        ("kerbs.pt out.pt", "kerbs.pt has a KerBS output layer already"),
        ("stock.pt out.pt --to-softmax", "stock.pt has a softmax output layer: --to-softmax takes one with KerBS"),
        ("stock.pt stock.pt", "cannot write stock.pt: it is one of the inputs"),
        ("stock.pt folder", "cannot write folder: it is a directory"),
        ("stock.pt no/such/out.pt", "cannot write no/such/out.pt: No such file"),
        ("stock.pt /dev/full", "cannot write /dev/full: it is not a regular file"),
        ("stock.pt out.pt --data folder", "--data folder does not fit the checkpoint"),
        ("stock.pt out.pt --data nowhere", "--data nowhere is not a directory"),
        ("stock.pt out.pt --approximate", "--approximate has no effect without --to-softmax"),
        ("kerbs.pt out.pt --to-softmax --senses 2", "--kerbs-senses has no effect with --to-softmax"),
        ("stock.pt out.pt --senses 99", "99 senses per word are outside the bounds"),
        ("stock.pt out.pt --senses 1 --kerbs-power 0.5", "--kerbs-power has no effect with --kerbs-senses 1"),
        ("stock.pt out.pt --data joined", "has 344 words and the dictionary here has 680"),
    ],
)
def test_mistakes(
    transformer: Path,
    converted: Path,
    pairs: Path,
    joined: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    stock = transformer / "checkpoint_last.pt"
    for name, path in {"stock.pt": stock, "kerbs.pt": converted, "joined": joined}.items():
        Path(name).symlink_to(path)
    Path("folder").mkdir()
    Path("short.pt").write_bytes(stock.read_bytes()[:10000])
    torch.save([1], "list.pt")
    torch.save({"model": {"a": torch.ones(1)}}, "foreign.pt")
    torch.save({"model": {"a": torch.ones(1)}, "cfg": {"model": {"_name": "my_model"}}}, "other.pt")
    torch.save({"model": {}, "cfg": os.getcwd}, "code.pt")
    before = {path: path.read_bytes() for path in (stock, converted)}
    data = [] if "--data" in arguments else ["--data", str(pairs)]
    with pytest.raises(SystemExit, match=message):
        main(*arguments.split(), *data)
    assert not Path("out.pt").exists()
    assert not list(tmp_path.rglob(".*"))
    assert {path: path.read_bytes() for path in (stock, converted)} == before
