"""The seeded faults of resumed runs, the fairseq side and the tools."""

from fault import AVERAGE, CRITERION, DECODING, DRAWING, INPUT, MOVE_LOG, MOVES, PAGE, STATISTICS, TIED, WORDS, Fault

PLUGIN_FAULTS = [
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
        "real = target.ne(self.padding_idx)\n        if features", "real = target.ne(-1)\n        if features",
        "test_twin_losses.py::test_stock_criteria_give_the_same_loss",
    ),
    Fault(
        "criterion", CRITERION, "--sentence-avg counts tokens",
        "target.size(0) if self.sentence_avg else", 'sample["ntokens"] if self.sentence_avg else',
        "test_twin_losses.py::test_sentence_avg_counts_sentences",
    ),
    Fault(
        "criterion", CRITERION, "a perplexity to base e from a loss to base 2",
        'total("nll_loss") / tokens / math.log(2)', 'total("nll_loss") / tokens',
        "test_twin_losses.py::test_losses_are_logged_as_the_stock_criterion_logs_them",
    ),
    Fault(
        "criterion", CRITERION, "label smoothing is not passed on",
        "decoder.head.loss(features, target, weight, self.label_smoothing)",
        "decoder.head.loss(features, target, weight, 0.0)",
        "test_twin_losses.py::test_stock_criteria_give_the_same_loss",
    ),
    Fault(
        "criterion", "plugin/decoders.py", "after the loss the decoder gives features for ever",
        "        _FEATURES_OF.reset(before)", "        pass",
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
        "sense_vectors(table.vectors, senses, self.padding_sense())", "sense_vectors(table.vectors, senses)",
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
        "test_twin_losses.py::test_beam_scores_are_those_of_forced_decoding",
    ),
    Fault(
        "beams", DECODING, "θ of other senses",
        "at_least_float32(x.detach())[order]", "at_least_float32(x.detach())",
        "test_modules.py test_twin_losses.py::test_beam_scores_are_those_of_forced_decoding",
    ),
    Fault(
        "beams", "plugin/decoders.py", "a search has the weights of an earlier one",
        "state[name] = self.head.word_scorer()", "state[name] = vars(self).setdefault('old', self.head.word_scorer())",
        "test_shared_models.py",
    ),
    Fault(
        "beams", "functional/backends/packed.py", "padding of the packed table is scored",
        "return table[:, : self.size]", "return table",
        "test_cpu_backend.py",
    ),
    Fault(
        "beams", WORDS, "the second senses go to the wrong words",
        "others[starts[number] + rank[of_word]] = senses", "others[starts[number] + rank[of_word].flip(0)] = senses",
        "test_word_probs.py",
    ),
    # --- from and to a softmax
    Fault(
        "conversion", "functional/from_softmax.py", "every sense has the word's whole bias",
        "(of_words[sense_to_word] + share.log())", "of_words[sense_to_word]",
        "test_from_softmax.py",
    ),
    Fault(
        "conversion", "modules/prepared.py", "an exported model has one sense per word",
        "words.index_copy(-1, self.several, sums).sub_(", "words.clone().sub_(",
        "test_export.py test_twins_as_models.py",
    ),
    # --- activation
    Fault(
        "activation", "activation.py", "the core activates the plugin",
        "    if FAIRSEQ not in sys.modules:\n", "    if False:\n",
        "test_torch_only.py",
    ),
    Fault(
        "activation", "activation.py", "fairseq imported later is not noticed",
        "        fault = activate()\n", "        fault = None\n",
        "test_torch_only.py",
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
        "test_report.py test_report_command.py",
    ),
    Fault(
        "report escaping", PAGE, "a word ends the script element",
        '.replace("<", "\\\\u003c")', "",
        "test_report.py test_report_command.py",
    ),
    Fault(
        "report escaping", DRAWING, "a word with $ is mathematics",
        '"text.parse_math": False', '"text.parse_math": True',
        "test_report.py test_report_command.py",
    ),
]  # fmt: skip
