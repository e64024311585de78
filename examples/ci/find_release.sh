#!/bin/sh
# Which of these builds need no guard? For the day on which you can move to another release.
#
#   sh find_release.sh vllm==0.32.0 vllm==0.33.0 ./our_vendors_vllm.whl
#
# PYTHON  a Python with vllm-guard; vLLM itself is not needed (python3)
# GUARDS  the guards whose upstream fix is asked for (clamp stale mm_merge)
#
# Prints each build in which all of them are fixed. Exit code: 0 there is one, 1 there is none,
# 2 a build could not be judged.
set -eu

PYTHON=${PYTHON:-python3}
GUARDS=${GUARDS:-clamp stale mm_merge}

if [ $# -eq 0 ]; then
    echo "usage: sh find_release.sh BUILD..." >&2
    exit 2
fi

required=
for guard in $GUARDS; do
    required="$required --require-fixed $guard"
done

found=1
for build in "$@"; do
    code=0
    # shellcheck disable=SC2086  one word each
    "$PYTHON" -m vllm_guard check "$build" $required >/dev/null || code=$?
    case $code in
        0) echo "$build"; found=0 ;;
        1) ;;
        *) exit 2 ;;
    esac
done
exit $found
