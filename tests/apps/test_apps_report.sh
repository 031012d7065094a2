#!/usr/bin/env bash
# apps/report: the numbers of a page, from runs that are made up and from real ones, and what it refuses.
# The page in a browser: tests/long/long_report.sh.
. "$(dirname "$0")/../help/tap.sh"
unset TANDEM_DATA # synthetic images
app=$apps/report
page=$PWD/tests/apps/report_page.py
cd "$work" || exit 1

# Steps of 1 ms on two ranks. In each: kernels for 600 us, a message of 3 MiB from 500 to 800 us, waiting to 900 us;
# before it 50 us of waiting for data.
trace() { # trace STEPS NAME: the lines of a trace; NAME is that of the kernel in backward
    awk -v steps="$1" -v name="$2" 'function span(tid, cat, ts, dur, name, more) {
        printf ",{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"cat\":\"%s\",\"ts\":%.3f,\"dur\":%.3f%s,\"name\":\"%s\"}\n", \
            rank, tid, cat, 1795895075000000 + ts, dur, more, name
    }
    BEGIN {
        print "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["
        for (rank = 0; rank < 2; rank++) {
            printf "%s{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"thread_name\",\"args\":{\"name\":\"compute\"}}\n", \
                rank ? "," : "", rank
            printf ",{\"ph\":\"M\",\"pid\":%d,\"tid\":272,\"name\":\"thread_name\",\"args\":{\"name\":\"communication\"}}\n", rank
            for (i = 0; i < steps; i++) {
                at = i * 1100 + rank * 20
                span(0, "span", at, 50, "loader wait")
                span(0, "part", at + 50, 1000, "step")
                span(0, "part", at + 50, 200, "forward")
                span(0, "forward", at + 50, 200, "conv2d layer1 (Conv2d)")
                span(0, "backward", at + 250, 300, "conv2d_grad " name)
                span(0, "optimizer", at + 550, 100, "sgd optimizer")
                span(0, "forward", at + 1060, 35, "conv2d evaluation") # between two steps
                span(272, "message", at + 550, 300, "bucket 0", ",\"args\":{\"bytes\":3145728}")
                span(0, "span", at + 850, 100, "wait for buckets")
                printf ",{\"ph\":\"C\",\"pid\":%d,\"tid\":0,\"ts\":%d,\"name\":\"memory\",\"args\":{\"step\":2097152}}\n", \
                    rank, 1795895075000000 + at + 250
            }
        }
        print "]}"
    }'
}

metrics() { # metrics LR: 40 steps, tested after every tenth
    awk -v lr="$1" 'BEGIN {
        print "step,train/loss,lr,images_per_second,test/loss,test/accuracy"
        for (i = 1; i <= 40; i++) {
            printf "%d,%.4f,%g,%d,,\n", i, 2 / i, lr, 900 + i
            if (i % 10 == 0) printf "%d,,,,%.4f,%.4f\n", i, 3 / i, i / 50
        }
    }'
}

whole() { # whole NAME PAGE [TRACE]: it is HTML, needs nothing, and has the trace's events
    python3 "$page" "${@:2}" >"$work/out" 2>&1
    tap $? "$1" "$work/out"
}

mkdir first second
metrics 0.1 >first/metrics.csv
metrics 0.05 >second/metrics.csv
trace 4 'layer1 (Conv2d)' >first/trace.json
echo '{"program":"made up","ranks":2,"options":{"lr":"0.1","epochs":"4"}}' >first/settings.json
echo '{"program":"made up","ranks":2,"options":{"lr":"0.05","epochs":"4"}}' >second/settings.json

works 'one run' "$app" first -o one.html
says 'the page' '^one\.html$'
whole 'it is whole, and has all events' one.html first/trace.json
says 'what the run came to' '^first 40 0\.05 0\.075 80 940$'
says 'what limits the step' 'Compute limits the step: kernels run for 0\.6 of its 1\.05 ms \(57.%\)\. Most of that takes conv2d_grad \(backward\): 0\.3 ms\.'
says 'kernels' '^compute 0\.600 57\.1$'
says 'what no kernel hides' '^exposed communication 0\.200 19\.0$'
says 'waiting' '^waiting 0\.100 9\.5$'
says 'the rest' '^between kernels 0\.100 9\.5$'
says 'data' '^waiting for data 0\.050 4\.8$'
says 'what kernels hide' '^communication hidden by kernels 0\.100$'
says 'a kernel' '^conv2d_grad backward 1 0\.300 50$'
says 'kernels outside of steps do not count' '^conv2d forward 1 0\.200 33\.3$'
says 'a message and its bytes' '^bucket 0 message 1 0\.300 3\.000 10\.5$'
says 'bytes in the figure' 'bucket 0: 3 MiB in 0\.3 ms'
says 'memory in the figure' 'up to 2 MiB'
tap "$(($(grep -c '<svg' one.html) - 7))" 'seven figures: four curves, a bar, a step, all steps' "$work/out"

works 'two runs' "$app" first second -o two.html
whole 'the page is whole' two.html
says 'what differs' '^lr 0\.1 0\.05$'
says 'what does not' '^epochs 4 4$'
says 'and that there is no time line' 'No time line: the run has no trace\.json'
works 'a trace alone' "$app" first/trace.json --out=trace.html
whole 'the page is whole' trace.html first/trace.json
says 'and without curves' 'No curves: the runs have no metrics\.csv'
works 'metrics alone' "$app" second/metrics.csv -o metrics.html

mkdir many
trace 5000 'layer1 (Conv2d)' >many/trace.json
works 'a long run' "$app" many -o many.html
whole 'the page is whole' many.html
says 'with the same numbers' '^compute 0\.600 57\.1$'
[ "$(wc -c <many.html)" -lt 2000000 ]
tap $? 'it is not much larger: kernels are joined'

# ---- texts that are not what they seem ----

bad='</title></script><script>alert(1)</script><img src=x onerror=alert(2)>&quot;\u2028\u0000'
mkdir "bad <b>&'\""
cp second/metrics.csv "bad <b>&'\"/metrics.csv"
trace 4 "$bad" | sed 's/"name":"compute"/"name":"<script>x<\/script>"/' >"bad <b>&'\"/trace.json"
printf '{"program":"%s","%s":["<script>"]}' "$bad" "$bad" >"bad <b>&'\"/settings.json"
works 'hostile names' "$app" "bad <b>&'\"" -o bad.html
whole 'the page is whole, with two scripts' bad.html
says 'the name of the run is a text' "^bad <b>&'\" 40"
printf 'step,<script>,train/loss\n1,2,3\n' >bad.csv
works 'hostile columns' "$app" bad.csv -o bad.html
trace 2 "$(printf '\xff\xfe\xc3(')" >bytes.json
works 'names that are not UTF-8' "$app" bytes.json -o bytes.html
iconv -f UTF-8 -t UTF-8 -c bytes.html >bytes.utf8
whole 'the page is whole' bytes.utf8

# ---- files that are not what they seem ----

fails 'no such run' 1 'none cannot be read: No such file' "$app" none -o x.html
fails 'nothing to show' 64 'one run' "$app"
mkdir empty
fails 'a folder without files' 1 'empty has neither metrics\.csv nor trace\.json: .*--log-dir' "$app" empty -o x.html
fails 'a page without a place' 1 'none/x\.html' "$app" first -o none/x.html
fails 'text in place of a trace' 1 'README\.md:1: no "traceEvents" in it: this is no trace' "$app" "$OLDPWD/README.md" -o x.html
echo '{"traceEvents":[{"ph":"X","name":"a"}]}' >foreign.json
fails 'another program'"'"'s trace' 1 'foreign\.json:1: no "traceEvents"' "$app" foreign.json -o x.html
for line in 'nonsense' ',[1]' ',{"ph":"X","pid":-1,"tid":0,"ts":1,"dur":1,"name":"x"}' \
    ',{"ph":"X","pid":0,"tid":0,"ts":1e99,"dur":1,"name":"x"}' ',{"ph":"X","pid":0,"tid":0,"ts":1,"name":"x"}'; do
    trace 2 x | sed "5s/.*/$line/" >wrong.json
    fails "a line of $line" 1 'wrong\.json:5: .* this is no trace' "$app" wrong.json -o x.html
done
printf '{"traceEvents":[\n]}\n' >nothing.json
fails 'a trace of nothing' 1 'nothing\.json:2: no events' "$app" nothing.json -o x.html
printf '{"traceEvents":[\n{"ph":"M","pi' >begun.json
fails 'a trace that has just begun' 1 'begun\.json:2: no events' "$app" begun.json -o x.html
echo 'time,loss' >time.csv
fails 'another table' 1 "time\.csv: the first line is not 'step" "$app" time.csv -o x.html
printf 'step,loss\n1,2\n2,x\n' >words.csv
fails 'a word among numbers' 1 "words\.csv:3: 'x' is no number" "$app" words.csv -o x.html
printf 'step,loss\n1,2\n1e71,2\n' >far.csv
fails 'a step that none can be' 1 "far\.csv:3: '1e71' is no number of a step" "$app" far.csv -o x.html
printf 'step,train/loss,lr,images_per_second\n9e15,-1e38,1e300,1e-300\n9e15,1e38,-1e308,3\n' >large.csv
works 'the largest numbers' "$app" large.csv -o large.html
whole 'the page is whole' large.html
! grep -qE '[ "MLHV-](nan|inf)\b' large.html
tap $? 'and has places for all of them'
trace 2 x | sed 's/"ts":1795895075/"ts":9007199254/; s/"dur":[0-9]*/"dur":0/' >short.json
works 'a trace of no time' "$app" short.json -o short.html
! grep -qE '[ "MLHV-](nan|inf)\b' short.html
tap $? 'and has places for all of it'
printf 'step,loss\n1,2,3\n' >wide.csv
fails 'a row that is too long' 1 "wide\.csv:2: '3' is no number of one of 2 columns" "$app" wide.csv -o x.html
printf 'step,loss\n1\n' >narrow.csv
fails 'a row that is too short' 1 'narrow\.csv:2: 1 values, and there are 2 columns' "$app" narrow.csv -o x.html
echo '[1]' >empty/settings.json
cp first/metrics.csv empty
fails 'settings that are none' 1 'empty/settings\.json: no settings' "$app" empty -o x.html
head -c 3000 first/trace.json >cut.json
works 'a trace of a program that was killed' "$app" cut.json -o cut.html
whole 'the page is whole' cut.html
says 'and says so' 'The trace ends in the middle of the run'
[ ! -e x.html ]
tap $? 'no page where something is wrong'
trace 2 x | grep -v '"step"' >parts.json
works 'a trace without steps' "$app" parts.json -o parts.html
whole 'the page is whole' parts.html
says 'and says so' 'no spans with the name step'

# ---- runs that write it themselves ----

few=(--limit 64 --batch-size 16 --epochs 1 --threads 1)
works 'two ranks with --report' "$apps/cifar_resnet18" "${few[@]}" --batch-size 8 --spawn 2 --report run.html
says 'they say so' '^report: run\.html$'
whole 'the page is whole, and has all events' run.html run/trace.json
says 'curves, ranks, options' '^ranks 2$'
says 'what a rank keeps' "^optimizer's state, MiB on a rank 42\.6[0-9]$"
says 'messages of two ranks' '^bucket 0 .*message 1 .* 9\.02'
works 'a GPT' "$apps/gpt" --data "$OLDPWD/README.md" --preset gpt-nano --epochs 1 --epoch-steps 2 --warmup 1 --batch-size 2 \
    --log-dir gpt --report gpt.html
whole 'the page is whole, and has all events' gpt.html gpt/trace.json
says 'it counts tokens' 'Tokens a second'
draw=$OLDPWD/docs/tutorial/draw_ways.py
works 'the figure of ways to share a step' python3 "$draw" ways.svg 'A & B=run'
grep -q '>A &amp; B<' ways.svg && grep -q '>1[23][0-9] MiB a rank<' ways.svg && grep -q 'ms; 43 MiB in messages; ' ways.svg
tap $? 'what a rank keeps, and what it sends' ways.svg
fails 'a figure of two steps' 1 'gpt/trace\.json has fewer than three steps' python3 "$draw" ways.svg GPT=gpt
fails 'two traces' 1 'give one of --report and --trace' "$apps/cifar_resnet18" "${few[@]}" --report x.html --trace x.json
fails 'a page that has no place' 1 'none/x\.html cannot be written' "$apps/cifar_resnet18" "${few[@]}" --report none/x.html \
    --log-dir logs
fails 'a test has no report' 64 "unrecognized option.*report" "$apps/test_net" --report x.html
done_testing
