#!/usr/bin/env bash
# --report-live: a page while a run trains; ports that cannot be had, and requests of every kind. Nothing hangs.
. "$(dirname "$0")/../help/tap.sh"
unset TANDEM_DATA # synthetic images
client=$PWD/tests/apps/live_client.py
page=$PWD/tests/apps/report_page.py
text=$PWD/README.md
few=(--limit 400 --batch-size 10)
cd "$work" || exit 1
port=$(free_port)

start() { # start SECONDS COMMAND...: in the background; its output is in $work/run
    timeout "$@" >"$work/run" 2>&1 </dev/null &
    run=$!
}

ended() { # ended NAME CODE: the run stops, and with that code
    wait "$run"
    local rc=$?
    echo "# code $rc" >>"$work/run"
    [ $rc -eq "$2" ]
    tap $? "$1" "$work/run"
}

fails 'no page without --report' 1 'give --report FILE' "$apps/cifar_resnet18" "${few[@]}" --report-live "$port"
for bad in 0 65536 http; do
    fails "port $bad" 64 'report-live' "$apps/cifar_resnet18" "${few[@]}" --report a.html --report-live $bad
done

start 300 "$apps/cifar_resnet18" "${few[@]}" --epochs 1000 --report a.html --report-live "$port"
works 'a page while it trains' python3 "$client" page "$port" live.html 120
says 'which nobody keeps' '^Cache-Control: no-store'
says 'and which comes again' '^Refresh: 30'
works 'it is one that a browser reads' python3 "$page" live.html
fails 'a port that is taken' 1 "no page can be served on port $port of 127\.0\.0\.1: Address already in use" \
    "$apps/cifar_resnet18" "${few[@]}" --report b.html --report-live "$port"
fails 'nor for two ranks' 1 "port $port of 127\.0\.0\.1: Address already in use" \
    "$apps/cifar_resnet18" "${few[@]}" --spawn 2 --report b.html --report-live "$port"
fails 'another address of this machine' 1 'refused' python3 -c 'import socket, sys; socket.create_connection(("127.0.0.2", int(sys.argv[1])))' "$port"
works 'bad requests' python3 "$client" hostile "$port"
cat >wanted <<END
another path: HTTP/1.1 404 Not Found
a query: HTTP/1.1 404 Not Found
a POST: HTTP/1.1 405 Method Not Allowed
another site's name: HTTP/1.1 403 Forbidden
a name that begins alike: HTTP/1.1 403 Forbidden
no host: HTTP/1.1 403 Forbidden
a byte 0: HTTP/1.1 400 Bad Request
no HTTP: HTTP/1.1 400 Bad Request
no end: HTTP/1.1 400 Bad Request
nothing: HTTP/1.1 400 Bad Request
END
diff wanted out
tap $? 'each is answered' out
python3 "$client" silent "$port" >silent 2>&1 &
works 'a page behind half a request' python3 "$client" page "$port" live.html 30
python3 "$client" silent "$port" >half 2>&1 &
silent=$!
until [ -s half ]; do sleep 0.02; done
kill -INT "$run"
ended 'Ctrl-C ends the run, although a request is half' 130
wait "$silent"

start 300 "$apps/gpt" --data "$text" --epochs 1000 --epoch-steps 10 --batch-size 2 --report gpt.html --report-live "$port"
works 'a page of a GPT' python3 "$client" page "$port" live.html 120
kill -INT "$run"
ended 'it ends' 130
works 'train_net --help' "$apps/train_net" --help
says 'train_net has the option' '--report-live'

start 300 "$apps/cifar_resnet18" "${few[@]}" --spawn 2 --epochs 1000 --report two.html --report-live "$port"
for _ in $(seq 60); do # until both ranks have steps
    python3 "$client" page "$port" live.html 120 >"$work/out" 2>&1
    grep -q 'rank 1' live.html && break
    sleep 2
done
grep -q 'rank 1' live.html
tap $? 'a page of two ranks has both, although their traces are not joined yet' "$work/out"
kill -INT "$run"
ended 'two ranks end' 130
done_testing
