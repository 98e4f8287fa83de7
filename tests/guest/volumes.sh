# Volumes that `flagstone volume` creates, resizes and deletes beneath a connected Linux host. Needs
# ADDRESS, PORT, NQN, SECOND (the NQN of the volume that changes), SMALL_BYTES and LARGE_BYTES, and
# volume.sh. The host of the guest runs the commands on request.

# Block device of the second volume.
second() {
    for entry in /sys/block/nvme*; do
        case ${entry##*/} in
            nvme*c*n*) ;;
            nvme*n*)
                if [ "$(cat "$entry/device/subsysnqn")" = "$SECOND" ]; then
                    basename "$entry"
                    return
                fi
                ;;
        esac
    done
    return 1
}

connect() {
    attach
    is_live
    refused second
    refused is_listed
}

is_listed() {
    nvme discover -t tcp -a "$ADDRESS" -s "$PORT" | grep -q "$SECOND"
}

has_bytes() {
    [ "$(blockdev --getsize64 "/dev/$(second)")" -eq "$1" ]
}

# Writes and reads at the end of the second volume, and on the first.
works() {
    fio --name=second --filename="/dev/$(second)" --ioengine=libaio --direct=1 --verify=crc32c \
        --verify_state_save=0 --thread --rw=write --bs=64k --offset=$(($1 - 1048576)) --size=1m
    verify_fio --rw=write --bs=64k --size=1m
}

appear() {
    ask create
    is_listed
    # It is given up soon after it is deleted.
    nvme connect -t tcp -a "$ADDRESS" -s "$PORT" -n "$SECOND" --nr-io-queues=2 --reconnect-delay=1 \
        --ctrl-loss-tmo=1
    eventually second
    eventually test -b "/dev/$(second)"
    has_bytes "$SMALL_BYTES"
    works "$SMALL_BYTES"
}

grow() {
    device=$(second)
    ask resize
    eventually has_bytes "$LARGE_BYTES"
    [ "$(second)" = "$device" ]
    works "$LARGE_BYTES"
}

is_gone() {
    refused second && refused is_attached
}

is_attached() {
    grep -q "$SECOND" /sys/class/nvme/nvme*/subsysnqn
}

disappear() {
    ask delete
    eventually is_gone
    refused is_listed
    is_live
    verify_fio --rw=write --bs=64k --size=1m
}

leave() {
    nvme disconnect -n "$SECOND"
    detach
}

step connect connect
step appear appear
step grow grow
step disappear disappear
step appear-again appear
step disconnect leave
