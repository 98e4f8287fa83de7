# NVMe/TCP host of the Linux kernel on a volume, from discovery to disconnect. Needs ADDRESS, PORT,
# NQN, SIZE_BYTES, and volume.sh. Overwrites the volume's data.

discover() {
    nvme discover -t tcp -a "$ADDRESS" -s "$PORT" >/tmp/discovery
    cat /tmp/discovery
    grep -q "^trtype: *tcp" /tmp/discovery
    grep -q "^subnqn: *$NQN$" /tmp/discovery
}

# Connects to everything in the discovery log. Regression: with a TREQ of "secure channel not
# required", libnvme 1.3 connected to nothing, and exited with 0.
connect_all() {
    relay
    nvme connect-all -t tcp -a "$ADDRESS" -s "$PORT"
    eventually namespace
    is_live
    nvme disconnect-all
    eventually is_detached
}

discovery_controller() {
    for entry in /sys/class/nvme/nvme*; do
        if [ "$(cat "$entry/subsysnqn")" = nqn.2014-08.org.nvmexpress.discovery ]; then
            basename "$entry"
            return
        fi
    done
    return 1
}

# The discovery controller stays, and reads the log again over its connection.
persistent_discovery() {
    relay
    nvme connect-all -t tcp -a "$ADDRESS" -s "$PORT" --persistent --keep-alive-tmo=5
    eventually namespace
    is_live
    device=$(discovery_controller)
    [ "$(cat "/sys/class/nvme/$device/state")" = live ]
    nvme discover -d "$device" -t tcp -a "$ADDRESS" -s "$PORT" >/tmp/persistent
    cat /tmp/persistent
    grep -q "^subnqn: *$NQN$" /tmp/persistent
    [ "$(discovery_controller)" = "$device" ]
    nvme disconnect-all
    eventually is_detached
    refused discovery_controller
}

connect() {
    attach
    is_live
}

# field NAME FILE: a number from nvme-cli's "name : value" lines.
field() {
    sed -nE "s/^$1 *: *([^ ]+).*$/\1/p" "$2"
}

identify() {
    nvme id-ctrl "/dev/$(controller)" >/tmp/id-ctrl
    cat /tmp/id-ctrl
    grep -q "^subnqn *: $NQN$" /tmp/id-ctrl
    [ "$(field nn /tmp/id-ctrl)" -ge 1 ]
    # Compare and Write. Linux passes no fused commands through.
    [ "$(field fuses /tmp/id-ctrl)" = 0x1 ]
    nvme list-ns "/dev/$(controller)"

    nvme id-ns "/dev/$(namespace)" >/tmp/id-ns
    cat /tmp/id-ns
    block_bytes=$(cat "/sys/block/$(namespace)/queue/logical_block_size")
    [ $(($(field nsze /tmp/id-ns) * block_bytes)) -eq "$SIZE_BYTES" ]
    [ "$(blockdev --getsize64 "/dev/$(namespace)")" -eq "$SIZE_BYTES" ]
    # Without an identity, a host cannot distinguish a volume from another one with the same name.
    nvme ns-descs "/dev/$(namespace)" >/tmp/ns-descs
    cat /tmp/ns-descs
    grep -qE '^(uuid|nguid)' /tmp/ns-descs

    nvme smart-log "/dev/$(controller)"
    nvme error-log "/dev/$(controller)" >/dev/null
    nvme fw-log "/dev/$(controller)"
    nvme effects-log "/dev/$(controller)"
    nvme get-feature "/dev/$(controller)" -f 7
    # An invalid command is refused, and the connection stays up.
    refused nvme admin-passthru "/dev/$(controller)" --opcode=0x3c
    is_live
}

list() {
    nvme list >/tmp/list
    cat /tmp/list
    grep -q "^/dev/$(namespace) " /tmp/list
    nvme list-subsys
}

read_write() {
    # Sizes on both sides of the in-capsule limit and of the largest transfer.
    verify_fio --rw=randwrite --bssplit=4k/50:16k/20:64k/20:128k/9:1m/1 --size=48m --iodepth=16
    # Durable writes (FUA, or a flush after each).
    verify_fio --rw=write --bs=4k --size=1m --sync=dsync
    nvme flush "/dev/$(namespace)"
    dmesg >/tmp/dmesg
    refused grep 'unusual effects' /tmp/dmesg
}

filesystem() {
    device=/dev/$(namespace)
    mkfs.ext4 -q -F -E nodiscard "$device"
    mount -t ext4 "$device" /mnt
    mkdir /mnt/files
    dd if=/dev/urandom of=/mnt/files/large bs=1M count=8
    seq 200 | while read -r number; do
        dd if=/dev/urandom of="/mnt/files/$number" bs=1k count="$number"
    done 2>/dev/null
    (cd /mnt/files && sha256sum * >/tmp/sums)
    rm /mnt/files/1??
    sed -iE '/  1..$/d' /tmp/sums
    umount /mnt
    fsck.ext4 -f -n "$device"
    # Drops all cached pages of the device, so that later reads reach the server.
    blockdev --flushbufs "$device"
    mount -t ext4 -o ro "$device" /mnt
    (cd /mnt/files && sha256sum -c /tmp/sums >/dev/null)
    umount /mnt
}

discard() {
    # /usr/sbin: the shell would run busybox's blkdiscard, which cannot write zeroes.
    device=/dev/$(namespace)
    [ "$(cat "/sys/block/$(namespace)/queue/discard_max_bytes")" -gt 0 ]
    verify_fio --rw=write --bs=64k --size=8m
    # Data around a discarded range is kept.
    dd if="$device" of=/tmp/before bs=1M skip=4 count=4
    /usr/sbin/blkdiscard --offset 0 --length $((4 << 20)) "$device"
    dd if="$device" of=/tmp/after bs=1M skip=4 count=4 iflag=direct
    cmp /tmp/before /tmp/after
    # Zeroing is guaranteed, unlike discard.
    /usr/sbin/blkdiscard --zeroout --offset 0 --length $((4 << 20)) "$device"
    dd if="$device" bs=1M count=4 iflag=direct | cmp -n $((4 << 20)) - /dev/zero
    /usr/sbin/blkdiscard "$device"
}

disconnect() {
    detach
}

digests() {
    attach --hdr-digest --data-digest
    verify_fio --rw=randwrite --bssplit=4k/60:16k/20:64k/10:256k/10 --size=16m --iodepth=8
    detach
}

reset() {
    nvme reset "/dev/$(controller)"
    eventually is_live
    verify_fio --rw=randwrite --bs=16k --size=4m --iodepth=4
}

# The server is killed twice while fio writes; no acknowledged write may be missing. The namespace
# must return with the same identity, or the kernel drops it.
restart() {
    base=$(writes_done)
    verify_fio --rw=randwrite --bs=8k --size=48m --iodepth=16 --rate_iops=1000 &
    load=$!
    for writes in 1000 3000; do
        eventually has_written $((base + writes))
        before=$(reconnects)
        kill -0 $load
        ask restart
        eventually has_reconnected "$before"
    done
    wait $load
}

step discover discover
step connect-all connect_all
step persistent-discovery persistent_discovery
step connect connect
step identify identify
step list list
step read-write read_write
step filesystem filesystem
step discard discard
step reset reset
step disconnect disconnect
step digests digests
step reconnect connect
step restart restart
step last-disconnect disconnect
