#!/usr/bin/env bash
# Target control of blktests (its NVME_TARGET_CONTROL): runs the program as the target of blktests'
# NVMe/TCP tests, on the machine that runs them, as root:
#
#   modprobe nvmet-tcp && mount -t configfs configfs /sys/kernel/config
#   FLAGSTONE=/usr/bin/flagstone NVME_TARGET_CONTROL=…/blktests-target.sh ./check nvme/041 nvme/054
#
# Some tests also write to the kernel's target in /sys/kernel/config/nvmet. `setup` mounts files
# over it, and a change of the host's keys there is applied when blktests asks for the transport,
# just before it connects. A test that changes keys under a connection has to ask as well. Without
# effect are a host's hash and group, which the program has no settings for; blktests does not tell
# a target control of `--ports` and `--tls`, so 057 passes without a connection, and 062 fails.
#
# FLAGSTONE_BLKTESTS has the configuration, the log and the disk (/run/flagstone-blktests).
set -euo pipefail

program=${FLAGSTONE:-flagstone}
state=${FLAGSTONE_BLKTESTS:-/run/flagstone-blktests}
nvmet=/sys/kernel/config/nvmet
address=127.0.0.1 port=4420
hostid=0f01fb42-9f7f-4856-b0b3-51e60b8de349
hostnqn=nqn.2014-08.org.nvmexpress:uuid:$hostid
subsysnqn=nqn.2026-01.io.flagstone:blktests
uuid=91fdba0d-f87b-4c25-b80f-db7be1418b9e

fail() {
    echo "$0: $*" >&2
    exit 1
}

configuration() {
    cat <<END
[server]
state = "$state/state"
listen = ["nvme-tcp://$address:$port"]
[volume.blktests]
device = "$state/disk"
nqn = "$(cat "$state/subsysnqn")"
uuid = "$(cat "$state/uuid")"
allow_hosts = ["$(cat "$state/hostnqn")"]
END
    [ -s "$state/keys/dhchap_key" ] || return 0
    cat <<END
[host.blktests]
nqn = "$(cat "$state/hostnqn")"
key_file = "$state/keys/dhchap_key"
END
    [ ! -s "$state/keys/dhchap_ctrl_key" ] ||
        echo "controller_key_file = \"$state/keys/dhchap_ctrl_key\""
}

stop_server() {
    local pid
    pid=$(cat "$state/server.pid" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    rm -f "$state/server.pid"
}

start_server() {
    configuration >"$state/blktests.toml"
    : >"$state/listening"
    "$program" serve --api "$state/api.sock" "$state/blktests.toml" \
        >"$state/listening" 2>>"$state/server.log" &
    echo $! >"$state/server.pid"
    until grep -q '^listening on nvme-tcp' "$state/listening"; do
        kill -0 "$(cat "$state/server.pid")" 2>/dev/null ||
            fail "the server has not started; see $state/server.log"
        sleep 0.05
    done
}

# Applies what a test has written over the kernel's target. With the first key, the host has to
# authenticate from now on. A later one stands before the previous one: without that, the program
# would end the host's connections, and the kernel's target keeps them.
apply() {
    local host file new old changed=''
    [ -e "$state/server.pid" ] || return 0
    host=$nvmet/hosts/$(cat "$state/hostnqn")
    for file in dhchap_key dhchap_ctrl_key; do
        new=$(cat "$host/$file")
        old=$(head -n 1 "$state/keys/$file")
        [ "$new" != "$old" ] || continue
        printf '%s\n' "$new" ${old:+"$old"} >"$state/keys/$file"
        changed=yes
    done
    [ -n "$changed" ] || return 0
    if configuration | cmp -s - "$state/blktests.toml"; then
        "$program" reload --api "$state/api.sock" >>"$state/server.log" 2>&1
    else
        stop_server
        start_server
    fi
}

setup() {
    local hostkey='' ctrlkey='' host
    cleanup
    mkdir -p "$state"/{keys,state}
    chmod 700 "$state" "$state/keys"
    while [ $# -gt 1 ]; do
        case $1 in
            --subsysnqn) subsysnqn=$2 ;;
            --subsys-uuid) uuid=$2 ;;
            --hostnqn) hostnqn=$2 ;;
            --hostkey) hostkey=$2 ;;
            # As documented, and as blktests passes it.
            --ctrlkey | --ctrkey) ctrlkey=$2 ;;
            *) fail "unknown option $1" ;;
        esac
        shift 2
    done
    echo "$subsysnqn" >"$state/subsysnqn"
    echo "$uuid" >"$state/uuid"
    echo "$hostnqn" >"$state/hostnqn"
    truncate -s 1G "$state/disk"
    mount -t tmpfs flagstone-blktests "$nvmet"
    host=$nvmet/hosts/$hostnqn
    mkdir -p "$host" "$nvmet/subsystems/$subsysnqn/namespaces/1"
    echo -n "$hostkey" >"$host/dhchap_key"
    echo -n "$ctrlkey" >"$host/dhchap_ctrl_key"
    : >"$host/dhchap_hash"
    : >"$host/dhchap_dhgroup"
    # Reservations need no setting.
    echo 1 >"$nvmet/subsystems/$subsysnqn/namespaces/1/resv_enable"
    (
        umask 077
        cat "$host/dhchap_key" >"$state/keys/dhchap_key"
        cat "$host/dhchap_ctrl_key" >"$state/keys/dhchap_ctrl_key"
    )
    start_server
}

cleanup() {
    [ -d "$state" ] || return 0
    stop_server
    if mountpoint -q "$nvmet"; then umount "$nvmet"; fi
    rm -rf "$state"/{disk,keys,state}
}

config() {
    case ${1:-} in
        --show-blkdev-type) echo file ;;
        --show-trtype)
            # blktests asks before each connect.
            apply
            echo tcp
            ;;
        --show-hostnqn) echo $hostnqn ;;
        --show-hostid) echo $hostid ;;
        --show-host-traddr | --show-traddr) echo $address ;;
        --show-trsvid) echo $port ;;
        --show-subsysnqn) echo $subsysnqn ;;
        --show-subsys-uuid) echo $uuid ;;
        *) fail "unknown option ${1:-}" ;;
    esac
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
    config | setup | cleanup) "$command" "$@" ;;
    *) fail "unknown command '$command'; config, setup and cleanup are known" ;;
esac
