"""KerBS from the command line, as a user would: train, resume, search, score, evaluate; and mistakes."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from commands import (
    PACKAGE,
    QUICK,
    SMALL_LSTM,
    SMALL_LSTM_LM,
    SMALL_TRANSFORMER,
    SMALL_TRANSFORMER_LM,
    by_two,
    generate,
    refused,
    run,
    train,
    twin,
    weights,
)
from forced_decoding import assert_beam_scores_are_those_of_forced_decoding

from kerbs_fairseq.runs import checkpoint

pytestmark = pytest.mark.e2e

KERBS = "--criterion kerbs_cross_entropy --label-smoothing 0.1"
LM_TASK = "--task language_modeling --sample-break-mode eos"


@pytest.fixture(scope="session")
def kerbs(once, pairs: Path) -> Path:
    """The save-dir of a KerBS Transformer trained for 12 updates."""
    return once("kerbs", lambda to: train(pairs, twin(SMALL_TRANSFORMER), to, f"{KERBS} --max-update 12"))


def test_training_logs_loss_and_perplexity_to_base_2(pairs: Path, tmp_path: Path) -> None:
    log = train(pairs, twin(SMALL_LSTM), tmp_path, f"{KERBS} --max-epoch 2", fresh=True)
    assert "in bits (base 2) per token, nll_loss too; ppl is 2^nll_loss" in log
    first, second = (json.loads(values) for values in re.findall(r"\| valid \| (\{.*\})", log))
    assert float(second["valid_nll_loss"]) < float(first["valid_nll_loss"]) < float(first["valid_loss"])
    assert 2 ** float(second["valid_nll_loss"]) == pytest.approx(float(second["valid_ppl"]), rel=1e-2)


@pytest.mark.parametrize(
    ("model", "backend"),
    [pytest.param(SMALL_TRANSFORMER, "legacy_ddp", marks=pytest.mark.thorough), (SMALL_LSTM, "c10d")],
    ids=["legacy_ddp", "c10d"],
)
def test_two_processes_equal_one(pairs: Path, tmp_path: Path, model: str, backend: str) -> None:
    options = f"{KERBS} --max-update 4 --dropout 0" + (" --attention-dropout 0" if model == SMALL_TRANSFORMER else "")
    train(pairs, twin(model), tmp_path / "one", f"{options} --update-freq 2")
    run(by_two(pairs, twin(model), tmp_path / "two", f"{options} --ddp-backend {backend}"))
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-4, msg=name)


def test_resumed_training_equals_uninterrupted_training(pairs: Path, tmp_path: Path) -> None:
    train(pairs, twin(SMALL_LSTM), tmp_path / "whole", f"{KERBS} --max-update 8")
    train(pairs, twin(SMALL_LSTM), tmp_path / "parts", f"{KERBS} --max-update 4")
    train(pairs, twin(SMALL_LSTM), tmp_path / "parts", f"{KERBS} --max-update 8")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for name in whole:
        assert torch.equal(whole[name], parts[name]), name


@pytest.mark.parametrize(
    "options",
    [
        "--beam 5",
        pytest.param("--beam 4 --diverse-beam-groups 2 --diverse-beam-strength 0.5", marks=pytest.mark.thorough),
        "--sampling --sampling-topp 0.9 --temperature 0.7 --beam 2 --nbest 2",
        pytest.param("--beam 5 --prefix-size 2", marks=pytest.mark.thorough),
    ],
    ids=["beam", "diverse", "sampling", "prefix"],
)
def test_every_search_translates_every_sentence(pairs: Path, kerbs: Path, options: str) -> None:
    out = generate(pairs, kerbs / "checkpoint_best.pt", options)
    hypotheses = dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", out, re.M))
    assert len(hypotheses) == 60
    if "prefix" in options:
        for number, target in re.findall(r"^T-(\d+)\t(.*)$", out, re.M):
            assert hypotheses[number].split()[:2] == target.split()[:2]


def test_ensemble_of_kerbs_mos_and_softmax(pairs: Path, kerbs: Path, transformer: Path, tmp_path: Path) -> None:
    train(pairs, twin(SMALL_TRANSFORMER, "mos"), tmp_path, "--max-update 6")
    models = ":".join(str(folder / "checkpoint_best.pt") for folder in (kerbs, transformer, tmp_path))
    assert len(re.findall(r"^H-\d+\t", generate(pairs, models, "--beam 3"), re.M)) == 60


def test_beam_scores_are_those_of_forced_decoding(pairs: Path, corpus: Path, kerbs: Path, tmp_path: Path) -> None:
    assert_beam_scores_are_those_of_forced_decoding(pairs, corpus, kerbs / "checkpoint_best.pt", tmp_path)


def test_interactive(pairs: Path, corpus: Path, kerbs: Path) -> None:
    sentence = (corpus / "parallel" / "valid.src").read_text().splitlines()[0]
    command = f"fairseq-interactive {pairs} --user-dir {PACKAGE} --path {kerbs}/checkpoint_best.pt --beam 5"
    out = run(f"{command} --kerbs-prune 0.6", input=sentence)
    assert re.search(r"^H-0\t-[\d.]+\t", out, re.M)
    assert "--kerbs-prune 0.6 leaves out" in out


def test_validate_repeats_the_loss_of_training(pairs: Path, tmp_path: Path) -> None:
    log = train(pairs, twin(SMALL_TRANSFORMER), tmp_path, f"{KERBS} --max-update 3")
    out = run(
        f"fairseq-validate {pairs} --task translation --user-dir {PACKAGE} --path {tmp_path}/checkpoint_last.pt "
        "--max-tokens 800 --log-format json"
    )
    last = json.loads(re.findall(r"\| valid \| (\{.*\})", log)[-1])
    assert re.search(r'"valid_nll_loss": "([\d.]+)"', out)[1] == last["valid_nll_loss"]


def test_from_pretrained(pairs: Path, kerbs: Path, tmp_path: Path) -> None:
    (tmp_path / "hub.py").write_text(
        "import kerbs_fairseq\n"
        "from fairseq.models.transformer import TransformerModel\n"
        f"hub = TransformerModel.from_pretrained({str(kerbs)!r}, 'checkpoint_best.pt', {str(pairs)!r})\n"
        "print('answer:', type(hub.models[0].decoder).__name__, repr(hub.translate('zere bida nalu', beam=5)))\n"
    )
    assert re.search(r"^answer: KerbsTransformerDecoder\w* '.*'$", run(f"python {tmp_path}/hub.py"), re.M)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(SMALL_TRANSFORMER_LM, marks=pytest.mark.thorough),
        pytest.param(SMALL_LSTM_LM, marks=pytest.mark.thorough),
        SMALL_LSTM_LM.replace("lstm_lm", "gru_lm"),
    ],
    ids=["transformer_lm", "lstm_lm", "gru_lm"],
)
def test_language_models_train_and_evaluate(text: Path, tmp_path: Path, model: str) -> None:
    train(text, twin(model), tmp_path, f"{LM_TASK} --criterion kerbs_cross_entropy --max-update 8")
    out = run(
        f"fairseq-eval-lm {text} --user-dir {PACKAGE} --path {tmp_path}/checkpoint_best.pt --gen-subset test "
        "--sample-break-mode eos --max-tokens 800"
    )
    assert float(re.search(r"Perplexity: ([\d.]+)", out)[1]) < 400
    if "gru" in model:
        pruned = run(
            f"fairseq-eval-lm {text} --user-dir {PACKAGE} --path {tmp_path}/checkpoint_best.pt --gen-subset test "
            "--sample-break-mode eos --max-tokens 800 --kerbs-prune 0.9"
        )
        assert "--kerbs-prune 0.9 leaves out" in pruned
        assert re.search(r"Perplexity: ([\d.]+)", pruned)[1] != re.search(r"Perplexity: ([\d.]+)", out)[1]
    saved = checkpoint.load(tmp_path / "checkpoint_last.pt").options("model")
    names = ("kerbs_preset", "kerbs_senses", "kerbs_bias", "kerbs_reallocate_every", "kerbs_seed")
    assert [saved[name] for name in names] == ["default", 1.5, "zero", 0, 3], "whatever the defaults are later"


@pytest.mark.parametrize("model", ["kerbs_transformer_lm", pytest.param("kerbs_gru_lm", marks=pytest.mark.thorough)])
def test_hydra_train(text: Path, tmp_path: Path, model: str) -> None:
    run(
        f"fairseq-hydra-train task=language_modeling task.data={text} +model._name={model} "
        "+model.decoder_embed_dim=32 +model.decoder_layers=1 +model.kerbs_senses=2 criterion._name=kerbs_cross_entropy "
        "optimizer=adam lr_scheduler=fixed optimization.lr=[0.005] optimization.max_update=2 dataset.max_tokens=800 "
        f"common.user_dir={PACKAGE} checkpoint.save_dir={tmp_path}/save",
        cwd=tmp_path,
    )
    saved = torch.load(tmp_path / "save" / "checkpoint_last.pt", weights_only=False)
    assert saved["cfg"]["model"]["kerbs_senses"] == 2
    assert saved["cfg"]["model"]["kerbs_init"] == "frequency"
    vectors = saved["model"]["decoder.head.senses.vectors"]
    words = saved["model"]["decoder.embed_tokens.weight"].size(0)
    assert vectors.size(0) == 3 + 2 * (words - 3)


def test_senses_that_training_did_not_use_are_left_out(pairs: Path, kerbs: Path) -> None:
    path, options = kerbs / "checkpoint_last.pt", "--beam 2 --max-len-b 8 --gen-subset valid"
    whole, same, pruned = (
        generate(pairs, path, f"{options} {more}") for more in ("", "--kerbs-prune 0", "--kerbs-prune 0.6")
    )
    hypotheses = [re.findall(r"^H-.*$", output, re.M) for output in (whole, same, pruned)]
    assert hypotheses[0] == hypotheses[1] != hypotheses[2]
    (said,) = re.findall(r"--kerbs-prune 0.6 leaves out (\d+) of (\d+) senses \([\d.]+ %\), which had (\S+) of", pruned)
    assert 0 < int(said[0]) < int(said[1])
    assert 0 < float(said[2]) <= 0.6
    for share in ("1", "-0.1", "half"):
        command = f"fairseq-generate {pairs} --user-dir {PACKAGE} --path {path} --kerbs-prune={share}"
        refused(command, f"--kerbs-prune {share}: a share of at least 0 and below 1")


def test_ema_copies_the_map(pairs: Path, tmp_path: Path) -> None:
    train(pairs, twin(SMALL_LSTM), tmp_path, f"{KERBS} --max-update 4 --store-ema --ema-decay 0.5")
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    name = "decoder.head.senses."
    model, average = saved["model"], saved["extra_state"]["ema"]
    assert torch.equal(model[name + "sense_to_word"], average[name + "sense_to_word"])
    assert not torch.equal(model[name + "vectors"], average[name + "vectors"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kerbs-senses 17", "kerbs_fairseq: 17 senses per word are outside the bounds: between 1 and 16"),
        ("--kerbs-kernel gauss", "invalid choice: 'gauss'"),
        ("--label-smoothing 1", "kerbs_fairseq: --label-smoothing 1: it must be at least 0 and below 1"),
    ],
)
def test_mistakes_get_one_line_and_no_traceback(pairs: Path, tmp_path: Path, options: str, message: str) -> None:
    # the other mistakes: test_twins.py
    command = f"--arch kerbs_lstm --criterion kerbs_cross_entropy {options}"
    refused(f"fairseq-train {pairs} --user-dir {PACKAGE} {QUICK} --save-dir {tmp_path}/save {command}", message)
    assert not list(tmp_path.rglob("*.pt"))


def test_criterion_names_the_twin_of_another_model(pairs: Path, tmp_path: Path) -> None:
    for arch in ("lstm_wiseman_iwslt_de_en", "mos_lstm_wiseman_iwslt_de_en"):
        refused(
            f"fairseq-train {pairs} --user-dir {PACKAGE} {QUICK} --save-dir {tmp_path} --arch {arch} "
            "--criterion kerbs_cross_entropy",
            "--arch kerbs_lstm",
        )


@pytest.mark.parametrize(
    ("arch", "criterion"),
    [
        pytest.param("kerbs_transformer_lm_wiki103", "kerbs_cross_entropy", marks=pytest.mark.thorough),
        ("kerbs_lstm_lm", "adaptive_loss"),
        pytest.param("kerbs_transformer_lm", "adaptive_loss", marks=pytest.mark.thorough),
        pytest.param("mos_gru_lm", "adaptive_loss", marks=pytest.mark.thorough),
    ],
)
def test_adaptive_softmax_is_refused(text: Path, tmp_path: Path, arch: str, criterion: str) -> None:
    lm = f"fairseq-train {text} --user-dir {PACKAGE} {QUICK} {LM_TASK} --save-dir {tmp_path} --ddp-backend legacy_ddp"
    refused(f"{lm} --arch {arch} --criterion {criterion}", "an adaptive softmax")
    assert not list(tmp_path.rglob("*.pt"))


def test_unsupported_model_says_why(pairs: Path, tmp_path: Path) -> None:
    refused(
        f"fairseq-train {pairs} --user-dir {PACKAGE} {QUICK} --save-dir {tmp_path} --arch kerbs_lightconv "
        "--encoder-layers 2 --decoder-layers 2",
        "kerbs_lightconv: the model's decoder is neither an LSTM nor a Transformer",
    )


def test_checkpoint_that_does_not_fit(pairs: Path, kerbs: Path, transformer: Path) -> None:
    def again(folder: Path, arch: str, options: str) -> str:
        model = SMALL_TRANSFORMER.replace("--arch ", arch)
        return (
            f"fairseq-train {pairs} --user-dir {PACKAGE} {QUICK} {model} {options} "
            f"--save-dir {folder} --restore-file {folder}/checkpoint_last.pt --max-update 20"
        )

    refused(again(kerbs, "--arch kerbs_", f"{KERBS} --kerbs-senses 2"), "senses, the model has")
    refused(again(transformer, "--arch kerbs_", KERBS), "its optimizer's state has no place for senses")


@pytest.mark.parametrize(("prefix", "side"), [("kerbs", "src"), pytest.param("mos", "tgt", marks=pytest.mark.thorough)])
def test_checkpoint_with_another_dictionary(pairs: Path, tmp_path: Path, prefix: str, side: str) -> None:
    model = twin(SMALL_TRANSFORMER, prefix)
    criterion = "--criterion kerbs_cross_entropy" if prefix == "kerbs" else ""
    train(pairs, model, tmp_path / "save", f"{criterion} --max-update 1")
    shutil.copytree(pairs, tmp_path / "other")
    with (tmp_path / "other" / f"dict.{side}.txt").open("a") as dictionary:
        dictionary.write("".join(f"strange{i} 1\n" for i in range(8)))
    command = f"{tmp_path / 'other'} --user-dir {PACKAGE}"
    again = f"fairseq-train {command} {model} {QUICK} --save-dir {tmp_path / 'save'} --max-update 2 {criterion}"
    generate = f"fairseq-generate {command} --path {tmp_path / 'save'}/checkpoint_last.pt --batch-size 30"
    for line in (again, generate):
        refused(line, "use the dictionar")
