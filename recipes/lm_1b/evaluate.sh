#!/usr/bin/env bash
# Language model: perplexity per word of the test set, of one trained cell; comparable between sizes of the subwords.
#
# Needs:    a model that train.sh has finished
# Start:    recipes/lm_1b/evaluate.sh CELL [--seed 1] [--out out/lm_1b]
# Options:  --against CELL   also say whether the difference from that cell is one (paired bootstrap)
#           -- OPTION...     for fairseq-eval-lm
# Writes test.nll and scores.json into the folder of the model; what has been evaluated is skipped.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$0")/../common.sh"
# shellcheck source=recipes/cells.sh
source "$(dirname "$0")/../cells.sh"

cell_options gru --against "$@"
need fairseq-eval-lm kerbs-evaluate
if ! evaluated; then
  fairseq-eval-lm "$OUT/binary" --user-dir "$USER_DIR" --path "$RUN/checkpoint_best.pt" --gen-subset test \
    --sample-break-mode eos --tokens-per-sample 1024 --max-tokens 4000 --output-word-probs --no-progress-bar \
    "${MORE[@]}" >"$RUN/eval-lm.log" 2>&1 || fail_evaluation eval-lm.log
  score
fi
compare
