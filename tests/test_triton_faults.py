"""Faults in the Triton kernels are noticed by the comparison with float64."""

from pathlib import Path

import pytest
import triton_oracle as oracle
from triton_oracle import SENSES, SMALL_BLOCKS, assert_close, assert_no_number_shows, interpreter, problem

from kerbs_fairseq.functional.backends import triton as backend

REASON = backend.MISSING or oracle.too_old()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

FAULTS = {
    "sums are not rescaled": ("total = tl.fma(total, shrink, e)", "total = total + e"),
    "the mean is not rescaled": ("mean = tl.fma(mean, shrink, e * (F * slopes))", "mean += e * (F * slopes)"),
    "parts are not rescaled": (" * part_shrink\n        if", "\n        if"),
    "the padding is read": ("d = tl.where((cols < S)[None, :], d, 0.0)", "d = d"),
    "tail of the tokens": ("in_rows = rows < last", "in_rows = rows < last - 1"),
    "tail of the senses": ("in_senses = cols < S\n", "in_senses = cols < S - 1\n"),
    "slope of the kernel": ("gradient = G * (E * (slope * LN2))", "gradient = G * (slope * LN2)"),
    "slope without log 2": ("gradient = G * (E * (slope * LN2))", "gradient = G * (E * slope)"),
    "the target is left out": ("of_target = words ==", "of_target = words + 1 =="),
    "smoothing of the target": ("own_share -= smooth_share", "own_share -= 0.0"),
    "sum over the wrong axis": ("tl.store(to, tl.sum(sum_F, 0)", "tl.store(to, tl.sum(tl.sum(sum_F, 1), 0)"),
    "F in the place of T": ("tl.fma(d, E, -F) * b), sum_T)", "F), sum_T)"),
    "φ' near 0": ("q = tl.fma(q, y, 2.3104888e-01)", "q = tl.fma(q, y, 2.4e-01)"),
    "φ near 0": ("p = tl.fma(p, y, 3.4657345e-01)", "p = tl.fma(p, y, 3.47e-01)"),
    "the bias is left out": ("return tl.fma(F, slope, -top) + bias", "return tl.fma(F, slope, -top)"),
    "senses of a word": ("size <= most", "size < most"),
    "maximum of a word": ("highest = tl.where(rises, K, highest)", "highest = tl.where(rises, highest, K)"),
    "later senses of a word": ("range(0, tl.max(size, 0), SENSES)", "range(0, SENSES, SENSES)"),
    "|w| inside the sums": ("tl.where(row == 1, inverse * inverse, inverse)", "inverse"),
    "only the last part": ("value += tl.load(parts", "value = tl.load(parts"),
    "an infinite product": ("e = tl.fma(d, 0.0, e)", "e = e"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, tmp_path: Path) -> None:
    right, wrong = FAULTS[fault]
    text = oracle.SOURCE.read_text()
    assert right in text, "the fault is out of date"
    (tmp_path / "faulty.py").write_text(text.replace(right, wrong))
    kernels = oracle.load_interpreted(tmp_path / "faulty.py")
    with interpreter(kernels, SMALL_BLOCKS), pytest.raises(AssertionError):
        check_shortly(infinite=fault == "an infinite product")


def check_shortly(infinite: bool) -> None:
    if infinite:
        assert_no_number_shows("paper", float("inf"))
    else:
        assert_close(problem(9, SENSES, smoothing=0.1), decode=False)


def test_without_a_fault_nothing_is_noticed() -> None:
    with interpreter(oracle.load_interpreted(), SMALL_BLOCKS):
        check_shortly(infinite=False)
        check_shortly(infinite=True)
