# Namespaces that appear, grow and disappear beneath a connected Linux host. Needs ADDRESS, PORT, NQN,
# SMALL_BYTES and LARGE_BYTES, and volume.sh. The host of the guest changes namespace 2 on request.

# Block device of namespace 2.
second() {
    for entry in /sys/block/nvme*; do
        case ${entry##*/} in
            nvme*c*n*) ;;
            nvme*n*)
                if [ "$(cat "$entry/nsid")" = 2 ]; then
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
}

has_bytes() {
    [ "$(blockdev --getsize64 "/dev/$(second)")" -eq "$1" ]
}

# Writes and reads at the end of namespace 2, and on namespace 1.
works() {
    fio --name=second --filename="/dev/$(second)" --ioengine=libaio --direct=1 --verify=crc32c \
        --verify_state_save=0 --thread --rw=write --bs=64k --offset=$(($1 - 1048576)) --size=1m
    verify_fio --rw=write --bs=64k --size=1m
}

appear() {
    ask add
    eventually second
    eventually test -b "/dev/$(second)"
    has_bytes "$SMALL_BYTES"
    works "$SMALL_BYTES"
}

grow() {
    device=$(second)
    ask grow
    eventually has_bytes "$LARGE_BYTES"
    [ "$(second)" = "$device" ]
    works "$LARGE_BYTES"
}

is_gone() {
    refused second
}

disappear() {
    ask remove
    eventually is_gone
    is_live
    verify_fio --rw=write --bs=64k --size=1m
}

step connect connect
step appear appear
step grow grow
step disappear disappear
step appear-again appear
step disconnect detach
