"""The benchmarks run, in a size that measures nothing."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import __main__ as everything
from benchmarks import decoding, device, inputs, kernel, layer, memory, timing, updates
from kerbs_fairseq.modules import KernelizedBayesianSoftmax

SMALL = "--words 60 --sentences 3 --length 4"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def run(module: object, arguments: str, results: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments.split(), "--rounds", "1", "--results", str(results)])
    module.main()  # type: ignore[attr-defined]
    return [json.loads(line) for line in results.read_text().splitlines()]


def test_layer(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = run(layer, "--sizes 20 8 30 --label-smoothing 0.1", results, monkeypatch)
    assert line["settings"]["tokens"] == 20
    some = {"KerBS", "KerBS, at most 4 senses of a word", "KerBS by autograd", layer.SOFTMAX}
    assert some < set(line["seconds"])
    assert line["torch"]
    assert f"{layer.SOFTMAX} = 1" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no arm nonsense"):
        run(layer, "--sizes 20 8 30 --arms nonsense", results, monkeypatch)


def test_device(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(device, "--device cpu --sizes 20 8 30 --dtypes float32 bfloat16", results, monkeypatch)
    assert [(line["settings"]["dtype"], line["settings"]["kind"]) for line in lines] == [
        (dtype, kind) for dtype in ("float32", "bfloat16") for kind in ("training", "decoding")
    ]
    assert all("KerBS, 1.5" in line["seconds"] for line in lines)
    assert "predicted in half precision, 1.5 senses per word:\n  A100      training " in capsys.readouterr().out


@pytest.mark.skipif(device.torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"--device cuda: torch .* finds no GPU here"):
        run(device, "--device cuda", results, monkeypatch)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--device", "cuda"])
    with pytest.raises(SystemExit, match="1"):
        everything.main()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"--device cuda: torch {device.torch.__version__} finds no GPU here\n"


def test_the_prediction_is_what_the_documentation_says() -> None:
    text = (Path(device.__file__).parents[1] / "docs" / "performance.md").read_text()
    for ratio in device.RATIOS:
        found = device.predictions(layer.Case(8192, 512, 32000, ratio))
        numbers = [found[card]["training"] for card in device.CARDS]
        numbers += [found[card]["decoding"] for card in ("A100", "H100")]
        assert f"| {ratio:g} | " + " | ".join(f"{x:.2f}" for x in numbers) + " |\n" in text
    found = device.predictions(layer.Case(8192, 512, 32000))
    numbers = [found[card]["training, float32 products"] for card in device.CARDS]
    assert "float32 products | " + " | ".join(f"{x:.1f}" for x in numbers) in text


def test_growth_varies_one_size_at_a_time() -> None:
    base, *others = layer.grown()
    assert all(sum(a != b for a, b in zip(base, other)) == 1 for other in others)


@pytest.mark.parametrize("module", [updates, decoding, inputs])
def test_models(module: object, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = run(module, f"{SMALL} --models lstm", results, monkeypatch)
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in line["seconds"].values())


def test_memory_of_a_case() -> None:
    assert memory.loss_case(50, 300, 8) >= 0
    assert memory.step_case("lstm", "KerBS", 60, 3, 4) >= 0


def test_ratios_are_of_medians() -> None:
    found = timing.ratios({"a": [1.0, 2.0, 9.0], "b": [4.0, 6.0, 5.0]}, "a")
    assert found["b"] == (2.5, 2.0, 3.0)
    assert found["a"][0] == 1


def test_affine_fits_are_those_of_numpy() -> None:
    generator = torch.Generator().manual_seed(1)
    x, y, weights = (torch.rand(40, 3, generator=generator) for _ in range(3))
    slope, intercept = kernel.affine_fits(x, y, weights)
    for i in range(3):
        expected = np.polyfit(x[:, i].double(), y[:, i].double(), 1, w=weights[:, i].double().sqrt())
        assert [float(slope[i]), float(intercept[i])] == pytest.approx(expected.tolist())


def test_what_the_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """At θ = 0 the kernel is its own affine function; at other θ the three kinds of scores differ."""
    torch.manual_seed(1)
    head = KernelizedBayesianSoftmax(5, 12, senses=1.5, min_senses=1, init="random")
    features, targets = torch.randn(60, 5), torch.randint(0, 12, (60,))
    same = list(kernel.perplexities(head, features, targets).values())
    assert same == pytest.approx([same[0]] * 3)
    head.senses.theta_raw.data.uniform_(2, 5)
    values = kernel.perplexities(head, features, targets)
    expected = head.log_prob(features[30:]).detach().gather(1, targets[30:, None]).mean().neg().exp()
    assert values["the kernel"] == pytest.approx(float(expected), rel=1e-5)
    assert len({round(value, 4) for value in values.values()}) == 3
