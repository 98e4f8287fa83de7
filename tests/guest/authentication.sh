# Linux's host proves a key with DH-HMAC-CHAP, one way and both ways. Needs ADDRESS, PORT, NQN, and
# the keys KEY of this host, CONTROLLER_KEY and WRONG_KEY.

# kernel_log TEXT: how often the kernel has said so.
kernel_log() {
    dmesg | grep -c "$1" || true
}

without_key() {
    refused nvme connect -t tcp -a "$ADDRESS" -s "$PORT" -n "$NQN"
    is_detached
}

wrong_key() {
    refused nvme connect -t tcp -a "$ADDRESS" -s "$PORT" -n "$NQN" --dhchap-secret "$WRONG_KEY"
    is_detached
}

# The target proves its key, too, and this host does not believe another one.
wrong_controller() {
    refused nvme connect -t tcp -a "$ADDRESS" -s "$PORT" -n "$NQN" --dhchap-secret "$KEY" \
        --dhchap-ctrl-secret "$WRONG_KEY"
    is_detached
}

one_way() {
    attach --dhchap-secret "$KEY"
    [ "$(kernel_log 'authenticated')" -gt 0 ]
    verify_fio --rw=randwrite --bs=4k --iodepth=8 --size=4m
    detach
}

both_ways() {
    attach --dhchap-secret "$KEY" --dhchap-ctrl-secret "$CONTROLLER_KEY"
    verify_fio --rw=randwrite --bs=4k --iodepth=8 --size=4m
}

# The host authenticates again on each queue of the new connection.
restart() {
    before=$(reconnects)
    ask restart
    eventually has_reconnected "$before"
    verify_fio --rw=randrw --bs=4k --iodepth=8 --size=4m
    detach
}

step without-key without_key
step wrong-key wrong_key
step wrong-controller wrong_controller
step one-way one_way
step both-ways both_ways
step restart restart
