#!/usr/bin/env bash
# What the recipes share; each of their scripts reads this file with `source`. Nothing here runs by itself.
#
# Every recipe works in one folder, --out (default: out/RECIPE in the folder it is started from):
#   raw/      the owner's files, unless --raw names another folder     text/    sentences, one per line
#   pieces/   the same in subwords                                      binary/  for fairseq
#   runs/CELL/seed_N/   a trained model with its logs, outputs and scores.json
# A step makes its folder under another name and renames it when all went well: what is there is whole, and is skipped.
# What was made with other settings is never mixed with what is asked for: that is an error.

[ "${BASH_VERSINFO[0]}" -ge 5 ] || { echo "bash 5 or newer is needed, this is $BASH_VERSION" >&2 && exit 1; }
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
RECIPE=$(basename "$(cd "$(dirname "$0")" && pwd)")
# shellcheck disable=SC2034 # read by the others
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
