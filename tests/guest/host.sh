# Functions shared by the scripts of the NVMe host.

# The namespace's block device (nvme0n1). nvme0c0n1 is a hidden path.
namespace() {
    for entry in /sys/block/nvme*; do
        case ${entry##*/} in
            nvme*c*n*) ;;
            nvme*n*)
                basename "$entry"
                return
                ;;
        esac
    done
    return 1
}

# fio writes, then reads everything back and compares checksums.
verify_fio() {
    fio --name=verify --filename="/dev/$(namespace)" --ioengine=libaio --direct=1 \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --thread --randrepeat=1 --allrandrepeat=1 "$@"
}
