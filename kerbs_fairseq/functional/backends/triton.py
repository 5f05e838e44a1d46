"""The chunk kernels for a GPU, in Triton: totals of a chunk of tokens, gradients, and word probabilities.

K0 = |h| |w| k(c; θ) is the score without bias, K = K0 + bias the score, and P(j | word) = e^K_j / Σ e^K over the senses
of its word. The steps for one chunk:

    constants = sense_constants(vectors, theta, bias, kernel)           once per batch
    chunk = Chunk(D, h_norm, h_inverse, constants)
    totals = forward(chunk)
    targets = target_logsumexp(chunk, totals.top, words, target)
    word = word_logsumexp(chunk, totals.top, words)                     for label smoothing only
    dD = backward(chunk, TritonTotals(totals, targets, word), …)         in place of D, or in another precision
    log_probs = word_log_probs(chunk, words)                            for decoding, instead of all of these

There are no atomics: the order of every sum depends only on shapes, so that results are bitwise reproducible.
Nothing synchronizes with the device.
"""

import contextlib
import math
from typing import Any, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import padded
from kerbs_fairseq.functional.backends.triton_data import (
    BLOCKS,
    Block,
    Chunk,
    TargetTotals,
    Totals,
    TritonConstants,
    TritonTotals,
    TritonWeights,
    WordTotals,
    sense_constants,
)
from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.functional.words import CompressedRows

try:
    import triton

    from kerbs_fairseq.functional.backends import triton_kernels as kernels

    MISSING = ""
except Exception as error:  # of any kind: an installation for other hardware may fail in other ways
    MISSING = f"triton cannot be imported ({type(error).__name__}: {error})"

__all__ = [
    "Block", "Chunk", "TargetTotals", "Totals", "TritonConstants", "TritonTotals", "TritonWeights", "WordTotals",
    "available", "backward", "forward", "norm_gradient", "sense_constants", "target_logsumexp", "word_log_probs",
    "word_logsumexp",
]  # fmt: skip
OLDEST = (3, 0)  # supported version of Triton
DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of D and its gradient
WARPS = 4096  # per launch, if there is enough work: about 30 per multiprocessor; the same on every device


def interpreted() -> bool:
    """Return whether the kernels run in Triton's interpreter (TRITON_INTERPRET=1 when they were imported)."""
    return not MISSING and type(kernels.forward_kernel).__name__ == "InterpretedFunction"


def available(device: Optional[torch.device] = None, dtype: torch.dtype = torch.float32) -> tuple[bool, str]:
    """Return whether the kernels can run on ``device`` (None: the current GPU) with D in ``dtype``, and why not."""
    reason = MISSING
    if not reason and tuple(int(x) for x in triton.__version__.split(".")[:2]) < OLDEST:
        reason = f"triton {triton.__version__} is too old: needs {OLDEST[0]}.{OLDEST[1]}"
    if not reason and dtype not in DTYPES:
        reason = f"{dtype} has no Triton kernels: float32, float16 and bfloat16 have"
    if not reason and not interpreted():
        reason = _unfit(device)
    return not reason, reason or f"triton {triton.__version__}" + ", interpreted" * interpreted()


def _unfit(device: Optional[torch.device]) -> str:
    """Return why the kernels cannot run on this device, or an empty string."""
    if device is not None and device.type != "cuda":
        return f"Triton kernels run on a GPU, not on {device.type}"
    if not torch.cuda.is_available():
        return "no GPU that torch can use"
    old = torch.version.hip is None and torch.cuda.get_device_capability(device) < (7, 0)
    return "the GPU is older than compute capability 7.0" if old else ""


def forward(chunk: Chunk, mean: bool = True) -> Totals:
    """Compute the totals of each token in one pass over D, which is not changed; without ``mean`` that field is unset.

    A NaN or an infinity in D makes the total NaN, and so does an infinite |h|.
    """
    n, S = _checked(chunk)
    block = BLOCKS["forward" if chunk.D.dtype == torch.float32 else "forward, half"]
    totals = Totals(*(chunk.h_norm.new_empty(n) for _ in range(3)))
    if n == 0:
        return totals
    row_blocks = triton.cdiv(n, block.rows)
    per_part, n_parts = _split(S, block.cols, row_blocks * block.warps)
    parts = chunk.h_norm.new_empty(n_parts, 3, n)
    with _on(chunk.D):
        kernels.forward_kernel[(row_blocks, n_parts)](
            *_senses(chunk), n, S, _width(chunk.D), parts, per_part,
            KERNEL=KERNELS.index(chunk.constants.kernel), MEAN=mean, ROWS=block.rows, COLS=block.cols, **block.launch,
        )  # fmt: skip
        block = BLOCKS["vector"]
        kernels.combine_parts_kernel[(triton.cdiv(n, block.cols),)](
            parts, n_parts, n, chunk.h_inverse, *totals, MEAN=mean, ROWS=block.cols, **block.launch
        )
    return totals


def target_logsumexp(chunk: Chunk, top: Tensor, words: CompressedRows, target: Tensor, most: int = 0) -> TargetTotals:
    """Compute the totals of the ``target`` (n,) int32 of each token. ``most``: columns of ``scores``, ≥ its senses."""
    n, _ = _checked(chunk)
    scores = chunk.h_norm.new_full((n, most), -math.inf) if most else None
    lse, mean, target_top, target_total = (chunk.h_norm.new_empty(n) for _ in range(4))
    totals = TargetTotals(lse, mean, target_top, target_total, scores)
    _pairs(chunk, top, words, target, totals.lse, mean=totals.mean, targets=totals)
    return totals


def word_logsumexp(chunk: Chunk, top: Tensor, words: CompressedRows) -> WordTotals:
    """Compute the log-sum-exp of every word, and the sums for label smoothing."""
    n, _ = _checked(chunk)
    V = len(words.offsets) - 1
    log2 = chunk.h_norm.new_empty(n, V)
    parts = chunk.h_norm.new_empty(triton.cdiv(V, BLOCKS["words"].cols) + len(words.many), 2, n)
    _words(chunk, top, words, log2, parts=parts)
    return WordTotals(log2, *parts.sum(0))


def word_log_probs(chunk: Chunk, words: CompressedRows, out: Optional[Tensor] = None) -> Tensor:
    """Compute log P of every word (n, V), in float32 or in the dtype of ``out``."""
    totals = forward(chunk, mean=False)
    if out is None:
        out = chunk.h_norm.new_empty(len(chunk.D), len(words.offsets) - 1)
    _words(chunk, totals.top, words, out, total=totals.total)
    return out


def backward(
    chunk: Chunk,
    totals: TritonTotals,
    weights: TritonWeights,
    target: Tensor,
    sense_to_word: Tensor,
    sums: Tensor,
    out: Optional[Tensor] = None,
) -> Tensor:
    """Compute the gradient w.r.t. D, G ∂K/∂D, into ``out`` (n, S) or in place of D; adds to ``sums`` (4, S).

    G is defined in :class:`TritonWeights`; ``target`` (n,) and ``sense_to_word`` (S,) are int32. The sums are Σ G|h|F,
    Σ G|h|c²φ', Σ G|h|c where ``released`` is the inner product, and Σ G if there is a bias; rows that a kernel does not
    have are not changed. In float16 small weights make G underflow: scale them up, and the results down again.
    The padding of rows is written to.
    """
    n, S = _checked(chunk)
    D, constants, top, word = chunk.D, chunk.constants, totals.all.top, totals.word
    out = D if out is None else out
    if out.shape != D.shape or out.stride(1) != 1 or out.dtype not in DTYPES:
        raise ValueError(f"a gradient {tuple(out.shape)} {out.dtype} of products {tuple(D.shape)}")
    if sums.shape != (4, S) or not sums.is_contiguous() or (weights.word is None) is not (word is None):
        raise ValueError("sums must be (4, senses), contiguous; weights and totals of words come together")
    if n == 0:
        return out
    wanted = {"paper": 0b0011, "dot": 0, "released": 0b0111}[constants.kernel] | (0b1000 * constants.has_bias)
    block = BLOCKS["backward" if word is None else "backward, smoothing"]
    col_blocks = triton.cdiv(S, block.cols)
    per_part, n_parts = _split(n, block.rows, col_blocks * block.warps)
    parts = chunk.h_norm.new_empty(n_parts, 4, constants.table.size(1))
    smoothing = (top, top, 0) if word is None else (weights.word, *_rows(word.log2))
    with _on(D):
        kernels.backward_kernel[(col_blocks, n_parts)](
            *_senses(chunk), *_rows(out), n, S, min(_width(D), _width(out)), top, weights.all, target,
            totals.target.top, totals.target.total, weights.target, sense_to_word, *smoothing, parts, per_part,
            KERNEL=KERNELS.index(constants.kernel), SMOOTH=word is not None, BIAS=constants.has_bias,
            ROWS=block.rows, COLS=block.cols, **block.launch,
        )  # fmt: skip
        if wanted:
            block = BLOCKS["vector"]
            kernels.add_sums_kernel[(triton.cdiv(S, block.cols), 4)](
                parts, n_parts, S, constants.table.size(1), constants.table[4], sums,
                WANTED=wanted, COLS=block.cols, **block.launch,
            )  # fmt: skip
    return out


def norm_gradient(totals: TritonTotals, weights: TritonWeights) -> Tensor:
    """Compute Σ_j G_j K0_j / |h| (n,), the gradient w.r.t. |h|, with G as in :func:`backward`."""
    gradient = weights.all * totals.all.mean - weights.target * totals.target.mean
    return gradient if weights.word is None or totals.word is None else gradient - weights.word * totals.word.mean


def _words(
    chunk: Chunk,
    top: Tensor,
    words: CompressedRows,
    out: Tensor,
    total: Optional[Tensor] = None,
    parts: Optional[Tensor] = None,
) -> None:
    """Fill ``out`` (n, V) for the words with few senses, then for the others; ``parts`` (…, 2, n) gets the sums."""
    n, V, block = len(chunk.D), len(words.offsets) - 1, BLOCKS["words"]
    if n == 0 or V == 0:
        return
    blocks = triton.cdiv(V, block.cols)
    with _on(chunk.D):
        kernels.words_kernel[(blocks * triton.cdiv(n, block.rows),)](
            *_senses(chunk), n, V, top, top if total is None else total, words.order, words.offsets, words.few,
            *_rows(out), top if parts is None else parts,
            KERNEL=KERNELS.index(chunk.constants.kernel), LOG_PROBS=total is not None, SUMS=parts is not None,
            ROWS=block.rows, WORDS=block.cols, **block.launch,
        )  # fmt: skip
    rest = None if parts is None else parts[blocks:]
    _pairs(chunk, top, words, words.many, out, total=total, mean=rest)


def _pairs(
    chunk: Chunk,
    top: Tensor,
    words: CompressedRows,
    which: Tensor,
    out: Tensor,
    total: Optional[Tensor] = None,
    mean: Optional[Tensor] = None,
    targets: Optional[TargetTotals] = None,
) -> None:
    """Compute token i with which[i], into ``targets``; if that is None, every token with every word of ``which``."""
    listed = targets is None
    n, block = len(chunk.D), BLOCKS["many" if listed else "targets"]
    n_pairs = n * len(which) if listed else n
    target_sums, scores = ((top, top), None) if targets is None else ((targets.top, targets.total), targets.scores)
    score_rows = (top, 0) if scores is None else _rows(scores)
    if n_pairs == 0:
        return
    with _on(chunk.D):
        kernels.pairs_kernel[(triton.cdiv(n_pairs, block.rows),)](
            *_senses(chunk), n, n_pairs, top, top if total is None else total, words.order, words.offsets, which,
            out, out.stride(0), top if mean is None else mean, *target_sums, *score_rows,
            KERNEL=KERNELS.index(chunk.constants.kernel), LISTED=listed, LOG_PROBS=total is not None,
            MEAN=mean is not None, SCORES=scores is not None, PAIRS=block.rows, SENSES=block.cols, **block.launch,
        )  # fmt: skip


def _checked(chunk: Chunk) -> tuple[int, int]:
    """Return n and S; raise an error if the kernels cannot run or D does not fit."""
    D, S = chunk.D, chunk.constants.S
    able, reason = available(D.device, D.dtype)
    if not able:
        raise RuntimeError(f"the Triton kernels cannot run: {reason}")
    if D.dim() != 2 or D.size(1) != S or D.stride(1) != 1:
        raise ValueError(f"products {tuple(D.shape)} with strides {D.stride()} for {S} senses")
    return D.size(0), S


def _senses(chunk: Chunk) -> tuple[Any, ...]:
    """Return the first arguments of all kernels."""
    table = chunk.constants.table
    return *_rows(chunk.D), chunk.h_norm, chunk.h_inverse, table, table.size(1)


def _rows(table: Tensor) -> tuple[Tensor, int]:
    """Return a table and its row stride."""
    return table, table.stride(0)


def _width(D: Tensor) -> int:
    """Return the columns that the kernels read: with the padding, if rows are padded and the storage includes it."""
    (n, S), stride = D.shape, D.stride(0)
    end = (D.storage_offset() + (n - 1) * stride + padded(S)) * D.element_size()
    return padded(S) if stride == padded(S) and end <= D.untyped_storage().nbytes() else S


def _split(size: int, block: int, warps: int) -> tuple[int, int]:
    """Return the size of a part in whole blocks and the number of parts, for WARPS warps in all, ``warps`` per part."""
    blocks = triton.cdiv(size, block)
    per_part = triton.cdiv(blocks, min(blocks, triton.cdiv(WARPS, warps)))
    return per_part * block, triton.cdiv(blocks, per_part)


def _on(D: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Return a context manager in which kernels are launched on the device of D."""
    return torch.cuda.device(D.device) if D.is_cuda else contextlib.nullcontext()
