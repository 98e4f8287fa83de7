# Functions for a volume with one path. Need ADDRESS, PORT, NQN.

# Controller (nvme0) of the only connection. Its number differs between connections.
controller() {
    for entry in /sys/class/nvme/nvme*; do
        if [ "$(cat "$entry/subsysnqn")" = "$NQN" ]; then
            basename "$entry"
            return
        fi
    done
    return 1
}
attach() {
    nvme connect -t tcp -a "$ADDRESS" -s "$PORT" -n "$NQN" \
        --nr-io-queues=2 --reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=5 "$@"
    eventually namespace
    eventually test -b "/dev/$(namespace)"
}
detach() {
    nvme disconnect -n "$NQN"
    eventually is_detached
}
is_detached() {
    refused namespace && refused controller
}
is_live() {
    [ "$(cat "/sys/class/nvme/$(controller)/state")" = live ]
}

# Completed writes, the fifth number of stat. With a hidden path, older kernels count only
# there, newer ones on both.
writes_done() {
    awk '$5 > most { most = $5 } END { print most + 0 }' /sys/block/nvme*/stat
}
has_written() {
    [ "$(writes_done)" -ge "$1" ]
}
reconnects() {
    dmesg | grep -c 'Successfully reconnected' || true
}
has_reconnected() {
    [ "$(reconnects)" -gt "$1" ] && is_live
}

# The discovery log has the address at which the server was reached. Here that is 127.0.0.1, of the
# machine around the guest, so a relay serves that address in the guest.
relay() {
    nc -ll -p "$PORT" -e nc "$ADDRESS" "$PORT" &
    relay=$!
    trap 'kill $relay' EXIT
}
