#!/usr/bin/env bash
# Pages of apps/report in a browser: one device, two ranks, four ranks that share the parameters, a GPT, two runs,
# and 8 ranks x 1,000 steps.
. "$(dirname "$0")/../help/tap.sh"
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ||
    skip_all "${0##*/}" 'no browser: apt install chromium'
unset TANDEM_DATA # synthetic images
here=$PWD/tests/long
cd "$work" || exit 1
few=(--limit 64 --batch-size 16 --epochs 1 --threads 1)
works 'one device' "$apps/cifar_resnet18" "${few[@]}" --report one.html
works 'two ranks' "$apps/cifar_resnet18" "${few[@]}" --spawn 2 --report two.html
works 'four ranks that share the parameters' "$apps/cifar_resnet18" "${few[@]}" --spawn 4 --batch-size 8 \
    --shard parameters --report four.html
works 'a GPT' "$apps/gpt" --data "$here/../../README.md" --epochs 1 --epoch-steps 4 --warmup 1 --batch-size 2 --report gpt.html
works 'two runs' "$apps/report" one two -o both.html

# A trace of 8 ranks, 1,000 steps of 50 ms.
awk 'function span(tid, cat, ts, dur, name, more) {
    printf ",{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"cat\":\"%s\",\"ts\":%.0f,\"dur\":%d%s,\"name\":\"%s\"}\n", \
        rank, tid, cat, 1795895075000000 + ts, dur, more, name
}
BEGIN {
    printf "{\"traceEvents\":[\n{}\n"
    for (rank = 0; rank < 8; rank++)
        for (step = 0; step < 1000; step++) {
            at = 50000 * step + 100 * rank
            span(0, "part", at, 49000, "step")
            for (k = 0; k < 60; k++) span(0, "forward", at + 250 * k, 240, "conv2d layer" k " (Conv2d)")
            for (k = 0; k < 100; k++) span(0, "backward", at + 15000 + 280 * k, 270, "conv2d_grad layer" k % 60 " (Conv2d)")
            for (k = 0; k < 9; k++) span(272, "message", at + 18000 + 3000 * k, 2500, "bucket " k, ",\"args\":{\"bytes\":4194304}")
            span(0, "span", at + 43500, 2400, "wait for buckets")
            span(0, "optimizer", at + 46000, 2500, "sgd optimizer")
        }
    print "]}"
}' >large.json
works '8 ranks x 1,000 steps' "$apps/report" large.json -o large.html
[ "$(stat -c %s large.html)" -lt 1000000 ]
tap $? 'less than a megabyte'
python3 "$here/report_browser.py" "$work" >"$work/browser" 2>&1
tap $? 'in the browser' "$work/browser"
grep '^#' "$work/browser"
done_testing
