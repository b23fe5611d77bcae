#!/bin/sh
# A remote worker in a shell: it runs a program for each job of one task. It needs curl 7.55 and jq 1.6, or later.
#
#   PGQUEUE_REMOTE_URL=https://example.com/remote/ PGQUEUE_REMOTE_TOKEN=pgq_... sh worker.sh shop.video.encode ./encode
#
# The program reads the arguments as JSON, such as {"args": [7], "kwargs": {}}, from its standard input. Its output, as
# JSON or as text, is the result. With another exit status than 0, the attempt has failed, and the end of its standard
# error is the error. It gets SIGTERM if the job was cancelled, its lease was lost or its time is over.
#
# SIGTERM and Ctrl-C: the worker ends after its job.
set -u
umask 077
url=${PGQUEUE_REMOTE_URL%/}/v1 task=$1 stopping='' curl='' job='' heart=''
shift
case $url in
https://* | http://localhost[:/]* | http://127.0.0.1[:/]*) ;;
*) echo "PGQUEUE_REMOTE_URL would send the token without encryption: use https" >&2; exit 1 ;;
esac
dir=$(mktemp -d) || exit 1

# Send the JSON in $dir/body-NAME. Print the HTTP status, and write the answer to $dir/NAME. 000: there is no answer.
post() { # ADDRESS SECONDS; the name is the last part of the address
    exec curl --silent --max-time "$2" --output "$dir/${1##*/}" --write-out '%{http_code}' \
        --header "@$dir/headers" --data-binary "@$dir/body-${1##*/}" "$url/$1"
}

seconds() { date +%s; }

stop_job() { # REASON
    echo "$1" >"$dir/reason"
    kill "$job" 2>/dev/null
}

# Extend the lease until the job has ended. It runs in the background, beside the job.
keep_lease() {
    until=$((sent_at + lease)) pause=$every deadline=$(($(seconds) + timeout))
    trap 'kill "$nap" 2>/dev/null; exit' TERM
    while [ -e "$dir/input" ]; do
        sleep "$pause" &
        nap=$!
        wait "$nap"
        kill -0 "$$" 2>/dev/null || { kill "$job"; exit; } # this worker was killed: end its job too
        at=$(seconds) pause=2
        case $(post extend 5) in
        200)
            until=$((at + lease)) pause=$every
            [ "$(jq '.executions[0].cancel_requested' "$dir/extend")" = false ] || stop_job cancelled
            ;;
        401 | 403 | 404 | 409) stop_job lost ;;
        esac
        [ "$(seconds)" -lt "$deadline" ] || stop_job timeout
        # Stop before the lease ends: then another worker may start the job.
        [ "$(seconds)" -lt $((until - lease / 5)) ] || stop_job lost
    done
}

# Send a report until the server has answered. Return 1 if it refuses the report.
report() { # OPERATION, and a filter of jq that makes the item
    jq --null-input --arg execution "$execution" --rawfile output "$dir/output" --arg error "$error" \
        '{executions: [{execution: $execution} + ('"$2"')]}' >"$dir/body-$1"
    while :; do
        answer=$(post "$1" 10)
        case $answer in
        200 | 404 | 409) return 0 ;; # it was written, or the job is another worker's now
        400 | 413 | 422) return 1 ;;
        401 | 403) exit 1 ;;
        esac
        sleep 2
    done
}

# Run the program, and report how it ended.
run() {
    jq '.executions[0] | {args, kwargs}' "$dir/claim" >"$dir/input"
    jq --arg worker "$worker" '{$worker, executions: [.executions[0] | {execution}]}' "$dir/claim" >"$dir/body-extend"
    lease=$(jq '.executions[0].lease_seconds | floor' "$dir/claim")
    timeout=$(jq '.executions[0].timeout_seconds // 1e9 | ceil' "$dir/claim")
    : >"$dir/reason"
    "$@" <"$dir/input" >"$dir/output" 2>"$dir/error" &
    job=$!
    keep_lease &
    heart=$!
    wait "$job"
    status=$?
    while kill -0 "$job" 2>/dev/null; do # a signal has ended `wait`, and the job still runs
        wait "$job"
        status=$?
    done
    cat "$dir/error" >&2
    reason=$(cat "$dir/reason") error="exit status $status: $(tail -c 2000 "$dir/error")"
    if [ "$status" = 0 ]; then
        report complete '{result: (try ($output | fromjson) catch ($output | rtrimstr("\n")))}' ||
            report fail '{then: "dead", error: "the server refuses the result"}'
    elif [ "$reason" = cancelled ]; then
        report fail '{then: "cancel", error: "cancelled while it ran"}'
    elif [ "$reason" = timeout ]; then
        report fail '{error: "its time was over"}'
    elif [ "$reason" != lost ]; then
        report fail '{$error}'
    fi
    rm "$dir/input" # ends keep_lease()
    kill "$heart"
    wait "$heart"
    job='' heart=''
}

# Wait for the command that was just started in the background. A signal ends it at once; in the foreground it would not.
wait_for_last() {
    curl=$!
    [ -z "$stopping" ] || kill -KILL "$curl" 2>/dev/null # the signal has come before its id was known
    wait "$curl"
    curl=''
}

# End what still runs, and let the server release what is left.
end() {
    trap - EXIT TERM INT
    for each in $curl $job $heart; do kill "$each" 2>/dev/null; done
    jq --null-input --arg worker "${worker:-}" '{$worker}' >"$dir/body-stop"
    [ -z "${worker:-}" ] || (post workers/stop 10) >/dev/null
    rm -rf "$dir"
}

trap end EXIT
trap 'stopping=yes; [ -z "$curl" ] || kill -KILL "$curl" 2>/dev/null' TERM INT # a new process can lose SIGTERM
printf 'Authorization: Bearer %s\nContent-Type: application/json\n' "$PGQUEUE_REMOTE_TOKEN" >"$dir/headers"

jq --null-input --arg name "$(uname -n)" --argjson pid "$$" '{$name, $pid}' >"$dir/body-workers"
[ "$(post workers 10)" = 201 ] || { echo "cannot register: $(cat "$dir/workers" 2>/dev/null)" >&2; exit 1; }
worker=$(jq --raw-output .worker "$dir/workers")
every=$(jq '[.extend_seconds | floor, 1] | max' "$dir/workers")
wait_seconds=$(jq '[20, .max_wait_seconds, .extend_seconds] | min' "$dir/workers")
jq --null-input --arg worker "$worker" --arg task "$task" --argjson wait_seconds "$wait_seconds" \
    '{$worker, $wait_seconds, tasks: [$task]}' >"$dir/body-claim"

pause=1
while [ -z "$stopping" ]; do
    sent_at=$(seconds)
    post claim 40 >"$dir/status" &
    wait_for_last
    [ -z "$stopping" ] || break
    case $(cat "$dir/status") in
    200) execution=$(jq --raw-output '.executions[0].execution // ""' "$dir/claim") ;;
    000 | 429 | 5??) execution='' ;;
    *) cat "$dir/claim" >&2; exit 1 ;; # a service manager starts it again
    esac
    if [ -n "$execution" ]; then
        pause=1
        run "$@"
        continue
    fi
    left=$((sent_at + pause - $(seconds))) # the time for which the server has waited for work is a part of the pause
    pause=$((pause < 8 ? 2 * pause : 15))
    if [ "$left" -gt 0 ]; then
        sleep "$left" &
        wait_for_last
    fi
done
