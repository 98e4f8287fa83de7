# Restart of the server before the server that stores its volume: the host waits and keeps the
# volume. Then a subsystem with a local volume and one of the backing server: its device leaves and
# comes while the other is in use, and the host keeps its disk. Needs ADDRESS, PORT, NQN, SHARED (the NQN of the subsystem), and
# volume.sh. Overwrites the data.

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

# shared NSID: block device of a namespace of the shared subsystem.
shared() {
    for entry in /sys/block/nvme*; do
        case ${entry##*/} in
            nvme*c*n*) ;;
            nvme*n*)
                if [ "$(cat "$entry/device/subsysnqn") $(cat "$entry/nsid")" = "$SHARED $1" ]; then
                    basename "$entry"
                    return
                fi
                ;;
        esac
    done
    return 1
}

has() {
    test -b "/dev/$(shared "$1")"
}

connect_shared() {
    NQN=$SHARED
    attach
    eventually has 1
    eventually has 2
    dd if=/dev/urandom of=/tmp/data bs=64k count=16
    dd if=/tmp/data of="/dev/$(shared 2)" bs=64k oflag=direct conv=fsync
}

rescans() {
    dmesg | grep -c 'rescanning namespaces' || true
}

# The server returns without the device of the second volume, and announces it later, by an event.
# Until then the disk stays, and its I/O waits.
come_and_go() {
    NQN=$SHARED
    controller=$(controller)
    second=$(shared 2)
    fio --name=sibling --filename="/dev/$(shared 1)" --ioengine=libaio --direct=1 --verify=crc32c \
        --verify_fatal=1 --verify_state_save=0 --thread --rw=randwrite --bs=16k --size=32m \
        --iodepth=8 --rate_iops=150 &
    load=$!
    eventually has_written 100
    before=$(reconnects)
    ask lose
    eventually has_reconnected "$before"
    dd if="/dev/$second" of=/tmp/back bs=64k count=16 iflag=direct &
    reader=$!
    eventually has_written 400
    [ "$(shared 2)" = "$second" ]
    kill -0 $load
    kill -0 $reader
    events=$(rescans)
    ask return
    wait $reader
    cmp /tmp/data /tmp/back
    [ "$(rescans)" -gt "$events" ]
    [ "$(shared 2)" = "$second" ]
    [ "$(reconnects)" -eq $((before + 1)) ]
    [ "$(controller)" = "$controller" ]
    wait $load
}

disconnect_shared() {
    NQN=$SHARED
    detach
}

step connect-shared connect_shared
step come-and-go come_and_go
step disconnect-shared disconnect_shared
