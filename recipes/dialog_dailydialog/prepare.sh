#!/usr/bin/env bash
# Dialog, DailyDialog: from the owner's files to fairseq's binary format.
#
# Needs:    nothing for --raw; else a connection (5 MB)
# Start:    recipes/dialog_dailydialog/prepare.sh
#           recipes/dialog_dailydialog/prepare.sh --raw FOLDER --out FOLDER
# Options:  --raw FOLDER   take dialogues_train.txt, dialogues_validation.txt and dialogues_test.txt from here
#           --out FOLDER   work here (out/dialog_dailydialog)
#           --tokens raw|moses|words     BPE on the text as it is; on Moses tokens; or whole words
#           --size 8000                  number of pieces
#           -- OPTION...                 for `kerbs-corpus dialog`: --max-words 80, --most N
# Pairs of validation and test that stand in train are removed, as in the paper.
# A step that is finished is skipped; one that is interrupted leaves nothing.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$0")/../common.sh"
# shellcheck source=recipes/corpus.sh
source "$(dirname "$0")/../corpus.sh"

URL=${KERBS_URL:-http://yanran.li/files/ijcnlp_dailydialog.zip}
SHA256=${KERBS_SHA256:-c641e88cbf21fd7c1b57289387f9107d33fe8685a2b37fe8066b82776535ea89}

SIZE=8000 SUFFIX='' # SUFFIX: of the files in pieces/, behind train, valid and test
prepare_options '' "$@"

check_raw
if [ -z "$RAW" ]; then
  fetch "$URL" "$OUT/ijcnlp_dailydialog.zip" "$SHA256"
  step raw "$SHA256" kerbs-corpus unpack "$OUT/ijcnlp_dailydialog.zip" {} # an archive of archives, one for each part
  RAW=$OUT/raw
fi
text="$RAW ${MORE[*]}"
step text "$text" kerbs-corpus dialog "$RAW" {} "${MORE[@]}"
step pieces "$text $TOKENS $SIZE" kerbs-corpus pieces "$OUT/text" {} --tokens "$TOKENS" --size "$SIZE" \
  --language src=en --language tgt=en
step binary "$text $TOKENS $SIZE" preprocess {} --source-lang src --target-lang tgt
say "ready: recipes/$RECIPE/train.sh seq2seq-kerbs --out $OUT"
