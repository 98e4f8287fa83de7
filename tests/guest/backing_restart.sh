# Restart of the server before the server that stores its volume: the host waits and keeps the
# volume. Needs ADDRESS, PORT, NQN, and volume.sh. Overwrites the volume's data.

connect() {
    attach
    is_live
}

told_busy() {
    dmesg | grep -q 'controller is busy or not available'
}

# A host that was admitted and found no namespace would drop the device under the load.
survive() {
    device=$(namespace)
    base=$(writes_done)
    verify_fio --rw=randwrite --bs=8k --size=16m --iodepth=16 --rate_iops=1000 &
    load=$!
    eventually has_written $((base + 500))
    before=$(reconnects)
    kill -0 $load
    ask lose
    eventually told_busy
    [ "$(namespace)" = "$device" ]
    [ "$(reconnects)" -eq "$before" ]
    kill -0 $load
    ask return
    eventually has_reconnected "$before"
    wait $load
    [ "$(namespace)" = "$device" ]
}

step connect connect
step survive survive
step disconnect detach
