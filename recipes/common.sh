#!/usr/bin/env bash
# What the recipes share; each of their scripts reads this file with `source`. Nothing here runs by itself.
#
# Every recipe works in one folder, --out (default: out/RECIPE in the folder it is started from):
#   raw/      the owner's files, unless --raw names another folder     text/    sentences, one a line
#   pieces/   the same in subwords                                      binary/  for fairseq
#   runs/CELL/seed_N/   a trained model with its logs, outputs and scores.json
# A step makes its folder under another name and renames it when all went well: what is there is whole, and is skipped.
# What was made with other settings is never mixed with what is asked for: that is an error.

[ "${BASH_VERSINFO[0]}" -ge 5 ] || { echo "bash 5 or newer is needed, this is $BASH_VERSION" >&2 && exit 1; }
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
RECIPE=$(basename "$(cd "$(dirname "$0")" && pwd)")
USER_DIR=$ROOT/kerbs_fairseq
if [ -x "$ROOT/.venv/bin/fairseq-train" ]; then PATH=$ROOT/.venv/bin:$PATH; fi # what `make setup` has made

say() { echo "$RECIPE: $*"; }

die() {
  echo "$RECIPE: $*" >&2
  exit 1
}

usage() { # print the head of the script that was started
  sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0"
}

need() { # need COMMAND...: stop unless all of them can be run
  local command
  for command in "$@"; do
    command -v "$command" >/dev/null ||
      die "$command is not installed: run 'make setup', or see 'Install' in the README; then kerbs-doctor"
  done
}

take() { # take VARIABLE "$@": set it to the value that follows an option
  [ $# -ge 3 ] || die "$2 needs a value"
  printf -v "$1" %s "$3"
}

take_number() { # the same for a whole number from 1 on
  take "$@"
  [[ $3 =~ ^[1-9][0-9]{0,8}$ ]] || die "$2 $3: a whole number from 1 on is needed"
}

# --- prepare.sh

check_raw() { # stop unless --raw, if given, is a folder, and --tokens is known; RAW becomes a full path
  [ -z "$RAW" ] || RAW=$(cd "$RAW" 2>/dev/null && pwd) || die "--raw is no folder"
  [[ " raw moses words " == *" $TOKENS "* ]] || die "--tokens $TOKENS: raw, moses or words"
  mkdir -p "$OUT" 2>/dev/null || die "$OUT cannot be written"
}

step() { # step NAME SETTINGS COMMAND...: make the folder OUT/NAME, for which {} stands in the command; once
  local name=$1 settings=$2 part=$OUT/.$1.part command=() word
  shift 2
  if [ -d "$OUT/$name" ]; then
    [ "$(cat "$OUT/$name/.settings")" = "$settings" ] ||
      die "$OUT/$name was made with other settings ($(cat "$OUT/$name/.settings")): remove it with all that was made from it, or choose another --out"
    say "$name: done before"
    return
  fi
  rm -rf "$part"
  for word in "$@"; do
    [ "$word" = '{}' ] && word=$part
    command+=("$word")
  done
  say "$name: $*"
  if ! { "${command[@]}" && echo "$settings" >"$part/.settings" && mv "$part" "$OUT/$name"; }; then
    rm -rf "$part"
    die "$name failed; nothing of it was kept"
  fi
}

fetch() { # fetch URL FILE SUM: download into the folder of FILE, and compare with the checksum (md5 or sha256)
  local url=$1 file=$2 sum=$3 tool=sha256sum
  [ ${#sum} -eq 32 ] && tool=md5sum
  need $tool
  if [ ! -f "$file" ]; then
    need curl
    mkdir -p "$(dirname "$file")"
    say "downloading $url"
    curl --fail --location --retry 3 --continue-at - --output "$file.part" "$url" ||
      { rm -f "$file.part" && curl --fail --location --retry 3 --output "$file.part" "$url"; } || # it cannot go on
      die "cannot download $url: get the file by other means, unpack it, and give its folder with --raw"
    mv "$file.part" "$file"
  fi
  [ "$($tool <"$file" | cut -d' ' -f1)" = "$sum" ] ||
    die "$file is not the file that is expected (its $tool differs): remove it to download it again, or use --raw"
}

preprocess() { # preprocess FOLDER OPTION...: from subwords to fairseq's binary files
  local to=$1 log=$OUT/preprocess.log
  shift
  fairseq-preprocess "$@" --trainpref "$OUT/pieces/train$SUFFIX" --validpref "$OUT/pieces/valid$SUFFIX" \
    --testpref "$OUT/pieces/test$SUFFIX" --destdir "$to" --workers "$(nproc 2>/dev/null || echo 1)" >"$log" 2>&1 ||
    { say "fairseq-preprocess: $(tail -n 1 "$log")" >&2 && return 1; }
}

# --- train.sh and evaluate.sh

cell() { # cell NAME MODEL...: split MODEL-HEAD[-ABLATION] into $model, $head, $ablation, or stop with what there is
  local known=() m rest
  for m in "${@:2}"; do
    for rest in softmax mos kerbs kerbs-nokernel kerbs-onesense kerbs-static; do known+=("$m-$rest"); done
  done
  [[ " ${known[*]} " == *" $1 "* ]] || die "there is no cell '$1'; there are: ${known[*]}"
  # shellcheck disable=SC2034 # model is read by train.sh
  IFS=- read -r model head ablation <<<"$1"
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

same_settings() { # same_settings FILE TEXT: stop if the run has been made with others; else write them down
  if [ -f "$RUN/$1" ]; then
    [ "$(cat "$RUN/$1")" = "$2" ] ||
      die "$RUN was made with other options ($(cat "$RUN/$1")): remove it, or choose another --out or --seed"
  else
    { mkdir -p "$RUN" && echo "$2" >"$RUN/$1"; } 2>/dev/null || die "$RUN cannot be written"
  fi
}

train_cell() { # train_cell ARCH OPTION...: train, or go on with, the model of this cell; KerBS moves senses in time
  local arch=$1 criterion=cross_entropy every=100 after=1000 until=0 options paths=()
  options=("${@:2}" --seed "$SEED")
  [ "$head" = softmax ] || arch=${head}_$arch
  if [ "$head" = kerbs ]; then
    [ -z "$UPDATES" ] || { every=$((UPDATES / 30 + 1)) after=$((UPDATES / 10)) until=$((UPDATES * 7 / 10)); }
    [ "$ablation" != static ] || every=0
    criterion=kerbs_cross_entropy
    options+=(--kerbs-seed "$SEED" --kerbs-reallocate-every "$every" --kerbs-reallocate-after "$after"
      --kerbs-reallocate-until "$until")
    [ "$ablation" != nokernel ] || options+=(--kerbs-kernel dot)
    [ "$ablation" != onesense ] || options+=(--kerbs-senses 1)
    paths=(--kerbs-move-log "$RUN/moves.tsv")
  fi
  options+=(--criterion "$criterion" --no-epoch-checkpoints --log-format json --log-interval 100 "${MORE[@]}")
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

generate() { # generate OPTION...: beam search over the test set into $RUN/generate-test.txt
  [[ " $* " != *" --remove-bpe"* && " $* " != *" --post-process"* ]] || die "--remove-bpe: the recipe joins subwords itself"
  fairseq-generate "$OUT/binary" --user-dir "$USER_DIR" --path "$RUN/checkpoint_best.pt" --gen-subset test --beam 5 \
    --batch-size 128 --no-progress-bar --results-path "$RUN" "$@" >"$RUN/generate.log" 2>&1 || fail_evaluation generate.log
}
