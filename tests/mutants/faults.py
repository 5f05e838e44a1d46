"""The seeded faults: small mistakes of the kind that a change of the code could make, and the tests that must see them.

A fault is put in by replacing one text, which must be in its file once. When code changes, its faults change with it:
``python tests/mutants --list`` says which texts are no longer found.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """``text`` in ``file`` of the package becomes ``replacement``; one of ``tests`` must fail."""

    area: str
    file: str
    name: str
    text: str
    replacement: str
    tests: str

    def path(self, project: Path) -> Path:
        """The file, in a copy of the project."""
        return project / "kerbs_fairseq" / self.file

    def count(self, project: Path) -> int:
        """How often the text is there."""
        path = self.path(project)
        return path.read_text(encoding="utf-8").count(self.text) if path.is_file() else 0


KERNEL, WORDS, LOSS = "functional/kernel.py", "functional/words.py", "functional/chunked_loss.py"
CPU, CONSTANTS, TYPES = "functional/backends/cpu.cpp", "functional/backends/base.py", "functional/types.py"
TABLE, STATISTICS, LAYER = "modules/sense_table.py", "modules/statistics.py", "modules/layer.py"
POLICY, ROWS, MOVES = "allocation/policy.py", "allocation/parameter_rows.py", "allocation/reallocator.py"
HOOK, CRITERION, TIED = "plugin/update_hook.py", "plugin/criterion.py", "plugin/tied_input.py"
INPUT, START, DECODING = "functional/input_embedding.py", "functional/initialization.py", "functional/decoding.py"
AVERAGE, PAGE, DRAWING, MOVE_LOG = "cli/average.py", "report/page.py", "report/drawing.py", "plugin/move_log.py"

TARGETS, HALF, GPU = (f"functional/backends/{name}.py" for name in ("targets", "half_products", "gpu"))
EAGER, PATCHES = "functional/eager.py", "plugin/fairseq_patches.py"

FAULTS = [
    # --- half precision, and what is on a GPU
    Fault(
        "half precision", LOSS, "no gain in float16",
        "weight = weight if self.gain is None else weight * self.gain", "self.gain = None",
        "test_half_loss.py",
    ),
    Fault(
        "half precision", LOSS, "the gain stays in the gradients",
        "factor = factor if self.gain is None else factor / self.gain", "pass",
        "test_half_loss.py",
    ),
    Fault(
        "half precision", LOSS, "a gain that overflows where the kernel is steep",
        "(constants.slope * constants.theta.abs().exp()).amax().clamp_min(1)", "constants.slope.amax().clamp_min(1)",
        "test_half_loss.py",
    ),
    Fault(
        "half precision", HALF, "a float32 copy of both",
        "        return features, vectors\n", "        return features.float(), vectors.float()\n",
        "test_half_loss.py::test_the_sense_table_is_never_in_float32",
    ),
    Fault(
        "half precision", HALF, "blocks forget those before them",
        "beta=beta if at == 0 else 1", "beta=beta",
        "test_half_products.py test_half_loss.py",
    ),
    Fault(
        "half precision", GPU, "targets have no weight",
        "contiguous() for x in weights)", "contiguous() for x in (*weights[:2], 0 * weights[2]))",
        "test_dispatch.py",
    ),
    Fault(
        "half precision", GPU, "smoothing is left out of the gradient",
        "smoothed = None if word is None else smooth", "smoothed = None if word is None else 0 * smooth",
        "test_dispatch.py",
    ),
    Fault(
        "no waiting", LAYER, "a check that waits",
        "torch._assert_async(within, message)", "assert bool(within), message",
        "test_no_waiting.py",
    ),
    Fault(
        "no waiting", CRITERION, "padding is taken out by a mask, on any device",
        'if features.device.type == "cpu":', "if True:",
        "test_no_waiting.py",
    ),
    Fault(
        "no waiting", HOOK, "the log's values are fetched after every update",
        "self.moved = update, self.moved if moved is None else moved\n",
        "self.moved = update, self.moved if moved is None else moved\n        summary(self.head, 0)\n",
        "test_no_waiting.py",
    ),
    Fault(
        "torch's machinery", LOSS, "gradients that are constants to create_graph",
        "raise RuntimeError(NO_SECOND_DERIVATIVES)", "pass",
        "test_torch_machinery.py",
    ),
    Fault(
        "torch's machinery", KERNEL, "ψ'' with a wrong sign",
        "_PSI_SECOND = [(-1) ** n *", "_PSI_SECOND = [(-1) ** (n + 1) *",
        "test_torch_machinery.py",
    ),
    Fault(
        "torch's machinery", EAGER, "compiled after all",
        "return _outside(function)(*args, **kwargs)", "return function(*args, **kwargs)",
        "test_torch_machinery.py",
    ),
    # --- the kernel and its derivatives
    Fault(
        "kernel", KERNEL, "φ is 0/0 at 0",
        "torch.where(x.abs() < 1e-20, torch.ones_like(x), torch.expm1(x) / x)", "torch.expm1(x) / x",
        "test_kernel.py",
    ),
    Fault(
        "kernel", KERNEL, "a series that ends too early",
        "_PSI = [(-1) ** n / math.factorial(n + 2) for n in range(18)]",
        "_PSI = [(-1) ** n / math.factorial(n + 2) for n in range(9)]",
        "test_kernel.py",
    ),
    Fault(
        "kernel", KERNEL, "a wrong coefficient of φ'",
        "_PHI_PRIME = [(n + 1) / math.factorial(n + 2)", "_PHI_PRIME = [1 / math.factorial(n + 2)",
        "test_kernel.py",
    ),
    Fault(
        "kernel", KERNEL, "θ at its bound cannot come back",
        "((theta >= ctx.bound) & (gradient < 0))", "((theta >= ctx.bound) & (gradient > 0))",
        "test_kernel.py",
    ),
    Fault(
        "kernel", KERNEL, "limits of the released θ swapped",
        "4 * torch.tanh(theta_raw / 4), 5 * torch.tanh(theta_raw / 5)",
        "5 * torch.tanh(theta_raw / 5), 4 * torch.tanh(theta_raw / 4)",
        "test_kernel.py",
    ),
    Fault(
        "kernel", KERNEL, "released: Eq. 9 for negative cosines too",
        'return curved if kernel == "paper" else torch.where(c > 0, curved, torch.ones_like(c))', "return curved",
        "test_kernel.py",
    ),
    Fault(
        "kernel", KERNEL, "a zero vector has no direction: NaN",
        "torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(TINY)",
        "torch.linalg.vector_norm(x, dim=-1, keepdim=True)",
        "test_kernel.py",
    ),
    Fault(
        "kernel", CPU, "C++: small probabilities are dropped",
        "return x < -60.0f ? 0.0f", "return x < -6.0f ? 0.0f",
        "test_cpu_backend.py test_chunked_loss.py",
    ),
    Fault(
        "kernel", CPU, "C++: the kernel without |w| at θ near 0",
        "const float curved = (half + 2.0f) * half * s.minus_inverse[j] * s.scale[j];",
        "const float curved = half * s.minus_inverse[j] * s.scale[j];",
        "test_cpu_backend.py test_chunked_loss.py",
    ),
    # --- gradients
    Fault(
        "gradient", CPU, "C++: the θ gradient near θ = 0",
        "14.0f * F", "12.0f * F",
        "test_cpu_backend.py test_chunked_loss.py",
    ),
    Fault(
        "gradient", CPU, "C++: released is curved everywhere",
        "curved = d > 0.0f;", "curved = true;",
        "test_cpu_backend.py test_chunked_loss.py",
    ),
    Fault(
        "gradient", CPU, "C++: the bias gradient of the last token alone",
        "by_bias[j] += G;", "by_bias[j] = G;",
        "test_cpu_backend.py test_chunked_loss.py",
    ),
    Fault(
        "gradient", CONSTANTS, "a sign in the gradient by θ",
        "w_norm * (SF * by_inverse - constants.slope * ST)", "w_norm * (SF * by_inverse + constants.slope * ST)",
        "test_chunked_loss.py",
    ),
    Fault(
        "gradient", LOSS, "only the last chunk teaches the vectors",
        "        if at.start:\n", "        if not at.start and False:\n",
        "test_chunked_loss.py",
    ),
    Fault(
        "gradient", LOSS, "the radial part is not divided by the norm",
        "radial = (g * same).sum(1, keepdim=True) * i", "radial = (g * same).sum(1, keepdim=True)",
        "test_chunked_loss.py",
    ),
    Fault(
        "gradient", LOSS, "gradients given away are used again",
        "gradients, ctx.gradients = ctx.gradients, None", "gradients = ctx.gradients",
        "test_chunked_loss.py",
    ),
    Fault(
        "gradient", TARGETS, "the target's senses share their gradient equally",
        "G_own = torch.exp(totals.target_senses - totals.target)",
        "G_own = totals.target_senses.isfinite() / totals.target_senses.isfinite().sum(1, keepdim=True)",
        "test_chunked_loss.py",
    ),
    Fault(
        "gradient", LOSS, "weights of tokens are ignored in the loss",
        "return (loss * batch.weight).sum()", "return loss.sum()",
        "test_chunked_loss.py",
    ),
    # --- label smoothing
    Fault(
        "label smoothing", TYPES, "spread over all words, not over the others",
        "word = epsilon / max(n_words - 1, 1)", "word = epsilon / n_words",
        "test_chunked_loss.py",
    ),
    Fault(
        "label smoothing", TYPES, "the target counted twice",
        "return cls(1.0 - epsilon - word, word)", "return cls(1.0 - epsilon, word)",
        "test_chunked_loss.py",
    ),
    Fault(
        "label smoothing", LOSS, "the gradient without the smoothed part",
        "(smoothing.nll + smoothing.word * V) * weight", "smoothing.nll * weight",
        "test_chunked_loss.py",
    ),
    # --- the map and its index
    Fault(
        "map", WORDS, "a word gets the first sense of the next one",
        "there = at < self.offsets[words + 1]", "there = at <= self.offsets[words + 1]",
        "test_word_probs.py",
    ),
    Fault(
        "map", WORDS, "what is no sense counts as sense 0",
        "return picked.masked_fill(senses < 0, -torch.inf)", "return picked",
        "test_word_probs.py",
    ),
    Fault(
        "map", TABLE, "the index does not see an edit of the map",
        "if of is now and at_version == version:", "if of is now:",
        "test_senses.py",
    ),
    Fault(
        "map", TABLE, "a checkpoint for another kernel is taken",
        "if kernel is not None and KERNELS[int(kernel)] != self.kernel:", "if False:",
        "test_senses.py test_twins.py::test_checkpoint_of_another_kind_is_refused",
    ),
    Fault(
        "map", TABLE, "another dictionary of the same size is taken",
        "int(self.vocabulary) and vocabulary != self.vocabulary", "int(self.vocabulary) and False",
        "test_senses.py",
    ),
    Fault(
        "map", START, "one sense more than the maximum",
        "return has < max_senses and", "return has <= max_senses and",
        "test_senses.py",
    ),
    # --- statistics
    Fault(
        "statistics", STATISTICS, "padding is counted",
        "live * (weight != 0).float()", "live.expand(len(target))",
        "test_statistics.py",
    ),
    Fault(
        "statistics", STATISTICS, "the decay the wrong way round",
        "self.log_accuracy.mul_(1 - self._beta)", "self.log_accuracy.mul_(self._beta)",
        "test_statistics.py",
    ),
    Fault(
        "statistics", STATISTICS, "usage is a sum, not a mean",
        "add_(seen.sense_prob, alpha=self._beta)", "add_(seen.sense_prob)",
        "test_statistics.py",
    ),
    Fault(
        "statistics", STATISTICS, "half precision casts them",
        "self._buffers[name] = value.to(cast.device)", "self._buffers[name] = cast",
        "test_statistics.py",
    ),
    Fault(
        "statistics", STATISTICS, "counts of a skipped update stay",
        "elif anew:", "elif False:",
        "test_statistics.py",
    ),
    Fault(
        "statistics", STATISTICS, "each worker for itself",
        "            sum_over_workers(self._waiting)", "            pass",
        "test_statistics.py",
    ),
    # --- who gives and who gets
    Fault(
        "policy bounds", POLICY, "one sense more than the maximum",
        "self.number[word] < self.bounds[1]", "self.number[word] <= self.bounds[1]",
        "test_policy.py",
    ),
    Fault(
        "policy bounds", POLICY, "one sense less than the minimum",
        "self.number[word] > self.bounds[0]", "self.number[word] >= self.bounds[0]",
        "test_policy.py",
    ),
    Fault(
        "policy bounds", POLICY, "special symbols get senses",
        "return word not in self.single and self.number[word] <", "return self.number[word] <",
        "test_policy.py",
    ),
    Fault(
        "policy", POLICY, "the most used sense goes first",
        "order = torch.argsort(usage, stable=True)", "order = torch.argsort(usage, descending=True, stable=True)",
        "test_policy.py",
    ),
    Fault(
        "policy", POLICY, "a sense passed over once is lost",
        "            heapq.heappush(self._back, rank)", "            pass",
        "test_policy.py",
    ),
    Fault(
        "policy", POLICY, "words that were never seen get senses",
        "situation.log_accuracy[order] < below", "situation.log_accuracy[order] <= below",
        "test_policy.py",
    ),
    Fault(
        "policy", POLICY, "released: words at the median too",
        "if counts[i] > median", "if counts[i] >= median",
        "test_policy.py",
    ),
    Fault(
        "policy", POLICY, "a sense may move twice",
        "if sense in moved:", "if False:",
        "test_policy.py",
    ),
    # --- what happens at an event
    Fault(
        "hook", MOVES, "the first event is one update late",
        "return update >= self.after", "return update > self.after",
        "test_reallocator.py",
    ),
    Fault(
        "hook", MOVES, "a split gives the word more probability",
        'rows["bias_raw"].write(at, bias)', "pass",
        "test_reallocator.py",
    ),
    Fault(
        "hook", MOVES, "both halves of a split keep the whole usage",
        "usage[at] = usage[at] / 2", "pass",
        "test_reallocator.py",
    ),
    Fault(
        "hook", HOOK, "updates are counted from 0",
        "decoder.update_hook.after_update(decoder, optimizer, update_num + 1)",
        "decoder.update_hook.after_update(decoder, optimizer, update_num)",
        "test_reallocation.py",
    ),
    Fault(
        "hook", HOOK, "an update that --amp skips is counted",
        "if amp_scale(optimizer) < scale:", "if amp_scale(optimizer) > scale:",
        "test_reallocation.py",
    ),
    Fault(
        "hook", HOOK, "the moving average mixes two words",
        "moved = before != now", "moved = before < 0",
        "test_reallocation.py",
    ),
    # --- float32 master copies and moments
    Fault(
        "master copies", ROWS, "the master copy is not written",
        "for tensor in (self.master, self.parameter.data):", "for tensor in (self.parameter.data,):",
        "test_rows.py",
    ),
    Fault(
        "master copies", ROWS, "only the master copy is written",
        "for tensor in (self.master, self.parameter.data):", "for tensor in (self.master,):",
        "test_rows.py",
    ),
    Fault(
        "master copies", ROWS, "another parameter's part of the flat copy",
        "begin += p.numel() if p.device == parameter.device else 0", "begin = p.numel()",
        "test_rows.py",
    ),
    Fault(
        "master copies", ROWS, "moments of what was there before",
        "            moment[rows] = 0", "            pass",
        "test_rows.py test_reallocation.py::test_what_a_move_changes",
    ),
    Fault(
        "master copies", ROWS, "Adafactor's moments by row are forgotten",
        "elif value.dim() and value.numel() == len(value) == len(parameter) > 1:", "elif False:",
        "test_rows.py test_reallocator.py",
    ),
    # --- resumed runs
    Fault(
        "resume", MOVE_LOG, "the moves of the last update are lost",
        "if int(row[0]) <= update", "if int(row[0]) < update",
        "test_move_log.py",
    ),
    Fault(
        "resume", MOVES, "events begin anew",
        'self.updates = int(state["updates"])', "self.updates = 0",
        "test_reallocator.py",
    ),
    Fault(
        "resume", STATISTICS, "usage is not saved",
        "self.register_buffer(name, torch.zeros(n_senses, dtype=torch.float32))",
        "self.register_buffer(name, torch.zeros(n_senses, dtype=torch.float32), persistent=False)",
        "test_reallocator.py test_statistics.py",
    ),
    Fault(
        "resume", "plugin/decoders.py", "the end of a sentence gives its sense away, in models of version 0.1",
        "self.head.senses.single = (*self.head.senses.single, self.dictionary.eos())", "pass",
        "test_old_checkpoints.py test_reallocation_commands.py::test_resumed_training_equals_uninterrupted_training",
    ),
    # --- the criterion
    Fault(
        "criterion", CRITERION, "padding has a loss",
        "real = target.ne(self.padding_idx)", "real = target.ne(-1)",
        "test_twins.py::test_stock_criteria_give_the_same_loss",
    ),
    Fault(
        "criterion", CRITERION, "--sentence-avg counts tokens",
        "target.size(0) if self.sentence_avg else", 'sample["ntokens"] if self.sentence_avg else',
        "test_twins.py::test_sentence_avg_counts_sentences",
    ),
    Fault(
        "criterion", CRITERION, "a perplexity to base e from a loss to base 2",
        'total("nll_loss") / tokens / math.log(2)', 'total("nll_loss") / tokens',
        "test_twins.py::test_losses_are_logged_as_the_stock_criterion_logs_them",
    ),
    Fault(
        "criterion", CRITERION, "label smoothing is not passed on",
        "decoder.head.loss(features, target, weight, self.label_smoothing)",
        "decoder.head.loss(features, target, weight, 0.0)",
        "test_twins.py::test_stock_criteria_give_the_same_loss",
    ),
    Fault(
        "criterion", "plugin/decoders.py", "after the loss the decoder gives features for ever",
        "        decoder.gives_features = False", "        pass",
        "test_twins.py::test_every_twin_trains_and_searches",
    ),
    # --- inputs made of senses
    Fault(
        "tied input", TIED, "weights from the context of the next step",
        "embed.posterior(contexts[:, :-1], fixed.without_first())",
        "embed.posterior(contexts[:, 1:], fixed.without_first())",
        "test_tied_input.py::test_decoder_equals_the_reference_in_values_and_gradients",
    ),
    Fault(
        "tied input", INPUT, "a word that was never seen has no input",
        "torch.where(total > 0, used / torch.where(total > 0, total, 1.0), equal)",
        "used / torch.where(total > 0, total, 1.0)",
        "test_tied_input.py::test_usage_weights",
    ),
    Fault(
        "tied input", "modules/input_embedding.py", "padding learns from being an input",
        "own_vectors(table.vectors, own, self.padding_sense())", "own_vectors(table.vectors, own)",
        "test_tied_input.py::test_padding_learns_nothing_from_being_an_input",
    ),
    # --- beams
    Fault(
        "beams", TIED, "contexts do not follow the beams",
        'features = saved["features"].index_select(0, new_order)', 'features = saved["features"]',
        "test_tied_input.py::test_incremental_decoding_equals_the_reference",
    ),
    Fault(
        "beams", "plugin/gru_lm.py", "hidden states do not follow the beams",
        'hidden = saved["hidden"].index_select(0, new_order)', 'hidden = saved["hidden"]',
        "test_twins.py::test_beam_scores_are_those_of_forced_decoding",
    ),
    Fault(
        "beams", DECODING, "θ of other senses",
        "at_least_float32(x.detach())[order]", "at_least_float32(x.detach())",
        "test_modules.py test_twins.py::test_beam_scores_are_those_of_forced_decoding",
    ),
    Fault(
        "beams", LAYER, "scores of old weights",
        "if kept is not None and now == state and kept.index is table.index:",
        "if kept is not None and kept.index is table.index:",
        "test_modules.py",
    ),
    # --- averages of checkpoints
    Fault(
        "averaging", AVERAGE, "maps that differ are averaged",
        "if name.endswith(MAP) and not torch.equal(value, other[name]):", "if False:",
        "test_average.py",
    ),
    Fault(
        "averaging", AVERAGE, "divided by one too many",
        "(total / len(paths))", "(total / (len(paths) + 1))",
        "test_average.py",
    ),
    Fault(
        "averaging", AVERAGE, "summed in half precision",
        "sums.get(name, 0) + value.double()", "sums.get(name, 0) + value",
        "test_average.py",
    ),
    Fault(
        "averaging", AVERAGE, "epochs before their updates",
        'else (epoch, float("inf"))', "else (epoch, 0)",
        "test_average.py",
    ),
    # --- reports of words that nobody has checked
    Fault(
        "report escaping", PAGE, "HTML in words is HTML",
        "return html.escape(str(value))", "return str(value)",
        "test_report.py",
    ),
    Fault(
        "report escaping", PAGE, "a word ends the script element",
        '.replace("<", "\\\\u003c")', "",
        "test_report.py",
    ),
    Fault(
        "report escaping", DRAWING, "a word with $ is mathematics",
        '"text.parse_math": False', '"text.parse_math": True',
        "test_report.py",
    ),
]  # fmt: skip
