# Linux's host proves a key with DH-HMAC-CHAP, one way and both ways. Needs ADDRESS, PORT, NQN, the
# keys KEY of this host, CONTROLLER_KEY and WRONG_KEY, and the guides' commands CONNECT and
# CONNECT_ALL with these addresses.

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

# The key where the guides have it.
bring_key() {
    mkdir -p /etc/flagstone/keys
    echo "$KEY" | tee /tmp/db1 >/etc/flagstone/keys/host
    cd /tmp
}

# Of the server's files, this host has its key only.
ssh() {
    [ "$1" = root@10.0.0.1 ]
    shift
    "$@"
}

is_attached() {
    eventually namespace
    eventually test -b "/dev/$(namespace)"
    is_live
    [ "$(kernel_log 'authenticated')" -gt "$1" ]
    ask authenticated
    verify_fio --rw=randwrite --bs=4k --iodepth=8 --size=4m
}

one_way() {
    bring_key
    before=$(kernel_log 'authenticated')
    eval "$CONNECT"
    is_attached "$before"
    detach
}

# Discovery needs no key, and hands the key on to the volume's controllers.
connect_all() {
    bring_key
    relay
    nvme connect-all -t tcp -a "$ADDRESS" -s "$PORT" || true
    is_detached
    before=$(kernel_log 'authenticated')
    eval "$CONNECT_ALL"
    is_attached "$before"
    nvme disconnect-all
    eventually is_detached
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
step connect-all connect_all
step both-ways both_ways
step restart restart
