#!/usr/bin/env bash
# What every train.sh and evaluate.sh does with one cell of the paper's tables. Read with `source`.

# shellcheck source=recipes/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cell() { # cell NAME MODEL...: MODEL-HEAD[-ABLATION][+VARIANT] into $model, $head, $ablation, or stop with what there is
  local known=() m rest base=$1
  [[ $1 =~ ^([a-z0-9-]+)\+[A-Za-z0-9][A-Za-z0-9._-]*$ ]] && base=${BASH_REMATCH[1]}
  for m in "${@:2}"; do
    for rest in softmax mos kerbs kerbs-nokernel kerbs-onesense kerbs-static; do known+=("$m-$rest"); done
  done
  [[ $base =~ ^[a-z0-9-]+$ && " ${known[*]} " == *" $base "* ]] ||
    die "there is no cell '$1'; there are, and variants of them with +NAME of letters, digits, '.', '_' and '-': ${known[*]}"
  # shellcheck disable=SC2034 # model is read by train.sh
  IFS=- read -r model head ablation <<<"$base"
}

cell_options() { # cell_options MODELS OPTIONS "$@": sets CELL, SEED, OUT, RUN, MORE and what else OPTIONS allows
  local models=$1 allowed=" -h --help --seed --out -- $2 "
  CELL='' SEED=1 OUT=out/$RECIPE SCALE=paper UPDATES='' AGAINST='' MORE=()
  shift 2
  while [ $# -gt 0 ]; do
    [[ $1 != -* || $allowed == *" $1 "* ]] || die "unknown option $1; options for fairseq itself go behind --"
    case $1 in
      -h | --help) usage && exit ;;
      --seed) take_number SEED "$@" && shift 2 ;;
      --out) take OUT "$@" && shift 2 ;;
      --scale) take SCALE "$@" && shift 2 ;;
      --updates) take_number UPDATES "$@" && shift 2 ;;
      --against) take AGAINST "$@" && shift 2 ;;
      --) shift && MORE=("$@") && break ;;
      *) [ -z "$CELL" ] || die "one cell at a time: $CELL or $1" && CELL=$1 && shift ;;
    esac
  done
  [ -n "$CELL" ] || { usage && exit 2; }
  # shellcheck disable=SC2086 # a list of words
  [ -z "$AGAINST" ] || cell "$AGAINST" $models
  # shellcheck disable=SC2086
  cell "$CELL" $models
  [ "$SCALE" = paper ] || [ "$SCALE" = small ] || die "--scale $SCALE: paper or small"
  [ -d "$OUT/binary" ] || die "$OUT has no data: run recipes/$RECIPE/prepare.sh --out $OUT first"
  RUN=$OUT/runs/$CELL/seed_$SEED
}

lock_run() { # one process at a time works on a run; the lock lasts until this script and all that it started have ended
  local code=0
  { mkdir -p "$RUN" && exec {LOCK}>"$RUN/.lock"; } 2>/dev/null || die "$RUN cannot be written"
  command -v flock >/dev/null || return 0 # not on every system
  flock --wait 5 "$LOCK" 2>/dev/null || code=$?
  # other codes than 1 are of file systems that have no locks
  [ "$code" -ne 1 ] || die "another process is at work on $CELL, seed $SEED in $OUT: wait for it, or stop it"
}

same_settings() { # same_settings FILE TEXT: stop if the run has been made with others; else write them down
  if [ -f "$RUN/$1" ]; then
    [ "$(cat "$RUN/$1")" = "$2" ] ||
      die "$RUN was made with other options ($(cat "$RUN/$1")): remove it, or choose another --out or --seed, or CELL+NAME"
  else
    { echo "$2" >"$RUN/$1"; } 2>/dev/null || die "$RUN cannot be written"
  fi
}

train_cell() { # train_cell ARCH OPTION...: train, or go on with, the model of this cell; KerBS moves senses in time
  local arch=$1 criterion=cross_entropy every=100 after=1000 until=0 options paths=()
  options=("${@:2}" --seed "$SEED")
  [ "$head" = softmax ] || arch=${head}_$arch
  if [ "$head" = kerbs ]; then
    criterion=kerbs_cross_entropy
    options+=(--kerbs-seed "$SEED")
    if [ "$ablation" = static ]; then # what says how senses move would be refused
      options+=(--kerbs-reallocate-every 0)
    else
      [ -z "$UPDATES" ] || { every=$((UPDATES / 30 + 1)) after=$((UPDATES / 10)) until=$((UPDATES * 7 / 10)); }
      options+=(--kerbs-reallocate-every "$every" --kerbs-reallocate-after "$after" --kerbs-reallocate-until "$until")
      paths=(--kerbs-move-log "$RUN/moves.tsv")
    fi
    [ "$ablation" != nokernel ] || options+=(--kerbs-kernel dot)
    [ "$ablation" != onesense ] || options+=(--kerbs-senses 1)
  fi
  options+=(--criterion "$criterion" --no-epoch-checkpoints --log-format json --log-interval 100 "${MORE[@]}")
  [ -f "$RUN/trained" ] || lock_run # what is finished is only read
  same_settings training "--arch $arch ${options[*]}"
  if [ -f "$RUN/trained" ]; then
    say "$CELL, seed $SEED: trained before"
    return
  fi
  [ -f "$RUN/checkpoint_last.pt" ] || rm -f "$RUN/moves.tsv" "$RUN/train.log" # of a training that got nowhere
  rm -f "$RUN"/{scores.json,evaluation,test.hyp,test.nll,generate-test.txt,eval-lm.log}
  say "$CELL, seed $SEED: fairseq-train $OUT/binary --arch $arch ${options[*]}"
  fairseq-train "$OUT/binary" --user-dir "$USER_DIR" --arch "$arch" --save-dir "$RUN" "${paths[@]}" "${options[@]}" 2>&1 |
    tee -a "$RUN/train.log" | { grep --line-buffered '| valid |' || true; } ||
    die "$CELL, seed $SEED failed: $(tail -n 1 "$RUN/train.log"); all it said is in $RUN/train.log"
  touch "$RUN/trained"
}

evaluated() { # whether it has been done; stop with an error if there is no model, or it was done with other options
  [ -f "$RUN/trained" ] || die "$CELL, seed $SEED is not trained: run recipes/$RECIPE/train.sh $CELL --seed $SEED --out $OUT"
  [ -f "$RUN/scores.json" ] || lock_run
  same_settings evaluation "${MORE[*]}"
  [ -f "$RUN/scores.json" ] && say "$CELL, seed $SEED: evaluated before: $(tr -d '\n' <"$RUN/scores.json")"
}

compare() { # with the cell of --against, if there is one: is the difference one? and outputs side by side
  [ -z "$AGAINST" ] || kerbs-evaluate compare "$RECIPE" "$OUT" "$OUT/runs/$AGAINST/seed_$SEED" "$RUN"
}

fail_evaluation() { # fail_evaluation LOG: stop with the end of what a command said
  rm -f "$RUN/evaluation"
  die "$CELL, seed $SEED: $(tail -n 1 "$RUN/$1"); all it said is in $RUN/$1"
}
