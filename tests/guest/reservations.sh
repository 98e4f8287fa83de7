# Reservations by nvme-cli: two hosts, each a controller of its own, as cluster software fences with
# them. Needs ADDRESS, PORT and NQN, and a kernel without multipath, so that each has its own device.

FIRST_ID=5f1a7e00-0000-4000-8000-00000000000a
SECOND_ID=5f1a7e00-0000-4000-8000-00000000000b

# join HOST_ID: connects as this host. nvme-cli 2.4 refuses a second host of one machine as already
# connected; the kernel accepts it.
join() {
    printf 'transport=tcp,traddr=%s,trsvcid=%s,nqn=%s,hostnqn=%s,hostid=%s' "$ADDRESS" "$PORT" \
        "$NQN" "nqn.2014-08.org.nvmexpress:uuid:$1" "$1" >/dev/nvme-fabrics
}

connect() {
    join "$FIRST_ID"
    eventually test -b /dev/nvme0n1
    join "$SECOND_ID"
    eventually test -b /dev/nvme1n1
}

write_block() {
    dd if=/dev/zero of="$1" bs=4096 count=1 oflag=direct 2>/dev/null
}

read_block() {
    dd if="$1" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null
}

register() {
    nvme resv-register /dev/nvme0n1 --nrkey=10 --rrega=0 --cptpl=3
    nvme resv-register /dev/nvme1n1 --nrkey=20 --rrega=0
    nvme resv-report /dev/nvme0n1 --eds | grep -Eq 'regctl *: 2'
}

# Write exclusive: the other host reads, and cannot write.
acquire() {
    nvme resv-acquire /dev/nvme0n1 --crkey=10 --rtype=1 --racqa=0
    write_block /dev/nvme0n1
    read_block /dev/nvme1n1
    refused write_block /dev/nvme1n1
    refused nvme resv-acquire /dev/nvme1n1 --crkey=20 --rtype=1 --racqa=0
}

# The reservation persists: the first host asked for that when it registered.
restart() {
    ask restart
    eventually read_block /dev/nvme0n1
    eventually read_block /dev/nvme1n1
    write_block /dev/nvme0n1
    refused write_block /dev/nvme1n1
}

# The second host takes over, and the first is fenced.
preempt() {
    nvme resv-acquire /dev/nvme1n1 --crkey=20 --prkey=10 --rtype=1 --racqa=2
    write_block /dev/nvme1n1
    refused write_block /dev/nvme0n1
    nvme resv-report /dev/nvme1n1 --eds | grep -Eq 'regctl *: 1'
    nvme resv-notif-log /dev/nvme0
}

release() {
    nvme resv-release /dev/nvme1n1 --crkey=20 --rtype=1 --rrela=0
    write_block /dev/nvme0n1
    nvme resv-register /dev/nvme1n1 --crkey=20 --rrega=1
}

step connect connect
step register register
step acquire acquire
step restart restart
step preempt preempt
step release release
