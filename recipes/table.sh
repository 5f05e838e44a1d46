#!/usr/bin/env bash
# The table of one task: trains and evaluates its cells with several seeds, or goes on where it stopped.
#
# Needs:    what the recipe's prepare.sh has written
# Start:    recipes/table.sh TASK [--out out/TASK] [--seeds 1,2,3]      TASK: mt_iwslt16, lm_1b, dialog_dailydialog
# Options:  --cells a,b        only these cells; MODEL: all its cells; CELL+NAME: a variant, with options of its own behind --
#                              (default: the cells of the paper)
#           --lr-grid a,b,c    try these rates with the first seed; each cell gets the one with the lowest validation loss
#           --grid-updates N   length of the trainings with which rates are tried (that of a run)
#           --lenpen-grid a,b  try these length penalties on the validation set; each cell gets the one with the best BLEU
#           --min-len-grid a,b the same for the least number of pieces of an output; chosen before the length penalty
#           --jobs 2           models trained side by side
#           --scale small      the setting of docs/protocol.md, for a laptop      --updates N    length of the training
#           -- OPTION...       for fairseq-train, the same for all cells
# Prints the table as Markdown at the end; OUT/table.md has it after every model. A cell that fails does not stop others.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$0")/common.sh"

case ${1:-} in
  '' | -h | --help) usage && exit ;;
esac
TASK=$1 && shift
[ -f "$ROOT/recipes/$TASK/train.sh" ] || die "there is no task '$TASK'; there are: mt_iwslt16 lm_1b dialog_dailydialog"
need kerbs-table
out=(--out "out/$TASK")
[[ " $* " == *" --out "* ]] && out=()
exec kerbs-table "$ROOT/recipes/$TASK" "${out[@]}" "$@"
