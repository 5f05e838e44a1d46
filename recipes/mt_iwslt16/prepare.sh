#!/usr/bin/env bash
# Translation, IWSLT'16 German to English: from the owner's files to fairseq's binary format.
#
# Needs:    nothing for --raw; else a connection (about 700 MB, the archive of all languages)
# Start:    recipes/mt_iwslt16/prepare.sh
#           recipes/mt_iwslt16/prepare.sh --raw FOLDER --out FOLDER
# Options:  --raw FOLDER   take the corpus from here: IWSLT's de-en (train.tags.de-en.de, *.xml), or files line by line
#                          (train.de, train.en, val.*, test*.*), or one file with tabs (Tatoeba), split by sentence
#           --out FOLDER   work here (out/mt_iwslt16)
#           --source de --target en      languages
#           --tokens raw|moses|words     BPE on raw text; on Moses tokens, as in the paper; or whole words
#           --size 10000                 number of pieces of both languages together
#           -- OPTION...                 for `kerbs-corpus pairs`: --max-words 80, --valid-set tst2013, --most N …
# A step that is finished is skipped; one that is interrupted leaves nothing.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$0")/../common.sh"
# shellcheck source=recipes/corpus.sh
source "$(dirname "$0")/../corpus.sh"

URL=${KERBS_URL:-https://drive.usercontent.google.com/download?id=1l5y6Giag9aRPwGtuZHswh3w5v3qEz8D8&confirm=t} # WIT3's own copy
MD5=${KERBS_MD5:-c393ed3fc2a1b0f004b3331043f615ae}

SIZE=10000 SOURCE=de TARGET=en SUFFIX='' # SUFFIX: of the files in pieces/, behind train, valid and test
prepare_options '--source=SOURCE --target=TARGET' "$@"

check_raw
if [ -z "$RAW" ]; then
  fetch "$URL" "$OUT/2016-01.tgz" "$MD5"
  step raw "$MD5" kerbs-corpus unpack "$OUT/2016-01.tgz" {} \
    --member "2016-01/texts/$SOURCE/$TARGET/$SOURCE-$TARGET.tgz" # the archive of all languages has one for each pair
  RAW=$OUT/raw
fi
text="$RAW $SOURCE-$TARGET ${MORE[*]}"
step text "$text" kerbs-corpus pairs "$RAW" {} --source "$SOURCE" --target "$TARGET" "${MORE[@]}"
step pieces "$text $TOKENS $SIZE" kerbs-corpus pieces "$OUT/text" {} --tokens "$TOKENS" --size "$SIZE"
step binary "$text $TOKENS $SIZE" preprocess {} --source-lang "$SOURCE" --target-lang "$TARGET"
say "ready: recipes/$RECIPE/train.sh seq2seq-kerbs --out $OUT"
