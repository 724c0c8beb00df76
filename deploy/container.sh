#!/bin/sh
# What a container does, by its first word:
#
#   superlink [OPTION...]    serve; the first start makes certificates for the name "superlink"
#   register ID...           give ca.pem out, and let in the node of each client
#   data NAME [OPTION...]    write a directory of examples for each client, once
#   node ID [OPTION...]      make a key once, wait to be let in, work
#   dashboard [OPTION...]    show the runs
#   run NAME KEYS            start a run, in the container of the SuperLink
#
# and any other words are a command. Of the folders below, link and state hold what is secret;
# exchange holds what may be public: ca.pem, the nodes' public keys, and who was let in.
set -eu
home=${BOUQUET_HOME:-/var/lib/bouquet}
link=$home/link exchange=$home/exchange state=$home/state

wait_for() {
    until test -e "$1"; do sleep 1; done
}

what=${1:-}
case $what in
superlink)
    shift
    test -e "$link/ca.pem" || set -- --name superlink "$@"
    exec bouquet superlink --folder "$link" "$@"
    ;;
register)
    shift
    wait_for "$link/ca.pem"
    cp "$link/ca.pem" "$exchange/ca.pem"
    until bouquet superlink nodes --folder "$link" >/dev/null 2>&1; do sleep 1; done
    for id in "$@"; do
        wait_for "$exchange/$id.key.pub"
        test -e "$exchange/$id.registered" && continue
        bouquet superlink register "$exchange/$id.key.pub" --clients "$id" --folder "$link"
        touch "$exchange/$id.registered"
    done
    ;;
data)
    shift
    test -e "$home/data/parts" || exec bouquet data split "$@" --out "$home/data/parts"
    ;;
node)
    id=$2
    shift 2
    test -e "$state/node.key" || bouquet node key "$state/node.key"
    cp "$state/node.key.pub" "$exchange/$id.key.pub"
    wait_for "$exchange/$id.registered"
    exec bouquet node --superlink "${BOUQUET_SUPERLINK:-superlink:9092}" --ca "$exchange/ca.pem" \
        --key "$state/node.key" --client-id "$id" --state-dir "$state" \
        --data-path "$home/data/parts" "$@"
    ;;
dashboard)
    shift
    exec bouquet dashboard "$home/runs" --host 0.0.0.0 --port 8080 "$@"
    ;;
run)
    name=$2
    shift 2
    export FLWR_HOME="$link/flower" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
    exec flwr run . --stream \
        --run-config "data.name=\"folder\" out=\"$home/runs/$name\" $*"
    ;;
*)
    exec "$@"
    ;;
esac
