# All vendor-specific commands of a replication subsystem, sent by nvme-cli: to a pair in sync, and,
# as a replacement of a dead source, to its target. Needs ADDRESS, PORTS (of node 0, the source, and
# node 1), SIZE_BYTES, and a host that answers:
#
#   mirroring                       both are in sync, and have been since the last such request
#   identity NODE HEX               compare this Identify data with the node's status
#   state NODE FIELD VALUE          check a field of the node's replica status
#   bitmap NODE HEX BYTES OFFSET    compare a bitmap of BYTES per bit with the node's status: it
#                                   includes the part at OFFSET, and is not full
#   checksums NODE OFFSET BYTES PART HEX
#                                   compare the checksums of each PART of BYTES on the node's disk
#   disk NODE OFFSET HEX            compare the content of the node's disk
#   crash                           kill the source, node 1, then node 0; start node 1 again
#   room NODE BYTES                 resize the node's device to BYTES
#   rejoin                          start node 0 again, wait until it is in sync, compare the disks
#
# A command after `example` is copied verbatim from docs/nvme-vendor-commands.md.

volume=nqn.2026-01.io.flagstone:db
replica=$volume:replica
# Generation used in the examples, and values that do not fit in their dwords.
new_generation=0123456789abcdef
cd /tmp

# talk_to NODE: select the node whose replica later commands use.
talk_to() {
    case $1 in
        0) PORT=${PORTS% *} peer=node-b ;;
        1) PORT=${PORTS#* } peer=node-a ;;
    esac
}
controller_of() {
    for entry in /sys/class/nvme/nvme*; do
        if [ "$(cat "$entry/subsysnqn")" = "$1" ]; then
            basename "$entry"
            return
        fi
    done
    return 1
}
# Block device of the subsystem; nvme0c0n1 is a hidden path.
namespace_of() {
    for entry in /sys/class/nvme-subsystem/nvme-subsys*; do
        if [ "$(cat "$entry/subsysnqn")" = "$1" ]; then
            (cd "$entry" && ls -d nvme*n* | grep -v c) && return
        fi
    done
    return 1
}
is_block_device() {
    [ -b "/dev/$(namespace_of "$1")" ]
}
# Namespace of the volume, for host.sh.
namespace() {
    namespace_of "$volume"
}
is_gone() {
    refused controller_of "$1" && refused namespace_of "$1"
}
disconnect() {
    nvme disconnect -n "$1"
    eventually is_gone "$1"
}

# example COMMAND...: run it with the actual values of this run: the node's address, the name by
# which it knows its peer, and the device name chosen by the kernel.
example() {
    for word; do
        shift
        case $word in
            192.0.2.2) word=$ADDRESS ;;
            4420) word=$PORT ;;
            --hostnqn=*) word=--hostnqn=nqn.2026-01.io.flagstone:node:$peer ;;
            /dev/nvme1) word=/dev/$(controller_of "$replica") ;;
            /dev/nvme1n1) word=/dev/$(namespace_of "$replica") ;;
        esac
        set -- "$@" "$word"
    done
    "$@"
}
# The same commands with other values.
admin() {
    nvme admin-passthru "/dev/$(controller_of "$replica")" -n 1 "$@"
}
io() {
    nvme io-passthru "/dev/$(namespace_of "$replica")" -n 1 "$@"
}
# ends STATUS COMMAND...: the command must fail with this NVMe status.
ends() {
    status=$1
    shift
    if "$@" >/tmp/said 2>&1; then
        return 1
    fi
    cat /tmp/said
    grep -q "^NVMe status: .*($status)$" /tmp/said
}
# Statuses, with Do Not Retry. Those of admin commands also have More, because there is a log entry.
unrelated=0x6701
serving=0x6702
fenced=0x6703
changed=0x6704
not_attached=0x6705
inconsistent=0x6706
range=0x6707
not_now=0x6709
version=0x670a
other_group=0x670b
invalid_field=0x6002
invalid_opcode=0x6001
invalid_length=0x600f
io_path=0x4300
io_invalid_field=0x4002
io_invalid_length=0x400f
io_range=0x4080

# bytes FILE FROM COUNT
bytes() {
    dd if="$1" bs=1 skip="$2" count="$3" 2>/dev/null
}
hex() {
    od -An -v -tx1 | tr -d ' \n'
}
# Converts hexadecimal digits to bytes.
unhex() {
    printf "$(sed -E 's/(..)/\\x\1/g')"
}
# little BYTES NUMBER: little-endian encoding in hexadecimal.
little() {
    left=$1
    rest=$2
    while [ $left -gt 0 ]; do
        printf %02x $((rest & 255))
        rest=$((rest >> 8))
        left=$((left - 1))
    done
}
# number FILE FROM COUNT: decodes a little-endian number.
number() {
    value=0
    shift=0
    for byte in $(bytes "$1" "$2" "$3" | od -An -v -tu1); do
        value=$((value | byte << shift))
        shift=$((shift + 8))
    done
    echo $value
}
# dwords FIRST FILE FROM COUNT: --cdwN= arguments for these bytes.
dwords() {
    at=$3
    for dword in $(seq "$1" $(($1 + $4 / 4 - 1))); do
        echo "--cdw$dword=$(number "$2" $at 4)"
        at=$((at + 4))
    done
}
identify() {
    admin -o 0xc2 -r -l 512 $(dwords 10 "$1" 32 16) -b
}
# attach_data EPOCH IN-SYNC VERSION SIZE [GENERATION]: Attach data in hexadecimal, from the source
# whose Identify is in `source` to the target whose Identify is in `target`.
attach_data() {
    theirs=$(hex <target)
    own=$(hex <source)
    echo -n "${theirs:32:32}${own:64:32}$(little 8 "$1")${5:-${theirs:112:16}}"
    echo -n "$(little 4 "$2")$(little 2 "$3")0000$(little 8 "$4")"
}
# repeat COUNT HEX
repeat() {
    for _ in $(seq "$1"); do
        echo -n "$2"
    done
}
# 4,096 bytes of text that end with its number.
text() {
    yes "block $1" | head -c 4096
}

# Only the name of a peer is admitted. After that, Linux's reads of a namespace without an attached
# source fail at once: retries on the only path would never end.
connect() {
    [ "$(cat /sys/module/nvme_core/parameters/multipath)" = Y ]
    refused nvme connect -t tcp -a "$ADDRESS" -s "$PORT" -n "$replica" --data-digest
    dmesg | grep -q 'not allowed, hostnqn'
    example nvme connect -t tcp -a 192.0.2.2 -s 4420 --data-digest \
        -n nqn.2026-01.io.flagstone:db:replica \
        --hostnqn=nqn.2026-01.io.flagstone:node:node-a \
        --hostid=$(cat /proc/sys/kernel/random/uuid)
    eventually is_block_device "$replica"
    nvme list-subsys
    refused dd if="/dev/$(namespace_of "$replica")" of=/dev/null bs=4k count=1 iflag=direct
    # The subsystem is in no discovery log.
    nvme discover -t tcp -a "$ADDRESS" -s "$PORT" >discovered
    grep -q "^subnqn: *$volume$" discovered
    refused grep -q "^subnqn: *$replica$" discovered
}

# Commands Supported and Effects: tools and kernels check it before they send an unknown command.
effects() {
    nvme get-log "/dev/$(controller_of "$replica")" -i 5 -l 4096 -b >effects-log
    for opcode in 0xc1 0xc2 0xc4 0xc5 0xc6 0xc8 0xca 0xcc 0xd0 0xd4 0xd8 0xdc 0xe0 0xe4 0xe8 0xec 0xf2 0xf5 0xf6 0xf9; do
        # Supported, changes no blocks, applies to this namespace.
        [ "$(number effects-log $((opcode * 4)) 4)" -eq $((0x100001)) ]
    done
    for opcode in 0x81 0x84 0x85; do
        [ "$(number effects-log $((1024 + opcode * 4)) 4)" -eq 3 ]
    done
    [ "$(number effects-log $((0xc3 * 4)) 4)" -eq 0 ]
}

identities() {
    example nvme admin-passthru /dev/nvme1 -o 0xc2 -n 1 -r -l 512 \
        --cdw10=0x33221100 --cdw11=0x77665544 --cdw12=0xbbaa9988 --cdw13=0xffeeddcc -b >target
    ask identity 1 "$(hex <target)"
    # A buffer may be larger than the data, not smaller.
    admin -o 0xc2 -r -l 4096 -b >long
    head -c 512 long | cmp - target
    ends $invalid_length admin -o 0xc2 -r -l 508
    ends $invalid_length admin -o 0xc2
    # Reserved fields are refused, so that they can get a meaning later.
    ends $invalid_field admin -o 0xc2 -r -l 512 --cdw14=1
    ends $invalid_field admin -o 0xc2 -r -l 512 --cdw2=1
    ends $invalid_opcode admin -o 0xc3
    ends $invalid_opcode nvme admin-passthru "/dev/$(controller_of "$replica")" -o 0xc2 -n 2 -r -l 512
}

# Commands accepted only from the attached source.
not_attached() {
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xc6 -n 1 -r -l 4032 --cdw10=0
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xca -n 1 -r -l 128 \
        --cdw12=1048576 --cdw13=65536
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xc4 -n 1 --cdw10=2 \
        --cdw12=0x89abcdef --cdw13=0x01234567
    repeat 128 00 | unhex >ancestors.bin
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xc5 -n 1 -w -l 128 -i ancestors.bin
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xc8 -n 1 --cdw10=12
    { repeat 16 11 | unhex && printf before-upgrade && head -c 114 /dev/zero; } >snapshot.bin
    for action in 1 2 3 4; do
        ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xf5 -n 1 -w -l 144 \
            -i snapshot.bin --cdw10=$action --cdw11=1000
    done
    ends $invalid_field admin -o 0xf5 -w -l 144 -i snapshot.bin --cdw10=5 --cdw11=1000
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xf6 -n 1 -r -l 4096
    head -c 4096 /dev/zero >page.bin
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xf9 -n 1 -w -l 4096 -i page.bin
    ends $invalid_field admin -o 0xf9 -w -l 4096 -i page.bin --cdw10=1
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xd0 -n 1 \
        --cdw10=0x33221100 --cdw11=0x77665544 --cdw12=0xbbaa9988 --cdw13=0xffeeddcc \
        --cdw14=0x89abcdef --cdw15=0x01234567
    text 3 >data.bin
    ends $io_path example nvme io-passthru /dev/nvme1n1 -o 0x81 -n 1 -w -l 4096 -i data.bin \
        --cdw12=7 --cdw13=3 --cdw14=1
    ends $io_path example nvme io-passthru /dev/nvme1n1 -o 0x84 -n 1 --cdw2=2048 \
        --cdw12=0x02000000 --cdw13=4
    head -c 100 data.bin >data.lz4
    ends $io_path example nvme io-passthru /dev/nvme1n1 -o 0x85 -n 1 -w -l 100 -i data.lz4 \
        --cdw2=1 --cdw3=100 --cdw12=0x40000007
}

# refused_attach STATUS HEX: sends HEX as attach.bin, which must be refused.
refused_attach() {
    echo -n "$2" | unhex >attach.bin
    ends "$1" example nvme admin-passthru /dev/nvme1 -o 0xc1 -n 1 -w -l 64 -i attach.bin
}
# None of these detaches the current source.
refused_attaches() {
    # The sender: the node that would be the source, with its own Identify data.
    cp target source
    epoch=$(number target 48 8)
    refused_attach $unrelated "$(attach_data $epoch 1 3 "$SIZE_BYTES")"
    echo -n "$(bytes target 0 32 | hex)$(repeat 16 a5)$(bytes target 48 464 | hex)" | unhex >source
    [ "$(wc -c <source)" -eq 512 ]
    sound=$(attach_data $epoch 1 3 "$SIZE_BYTES")
    refused_attach $unrelated "$(repeat 16 5a)$(echo -n "$sound" | cut -c33-)"
    refused_attach $fenced "$(attach_data $((epoch - 1)) 1 3 "$SIZE_BYTES")"
    nvme error-log "/dev/$(controller_of "$replica")" -e 1 >errors
    cat errors
    grep -q '^status_field.*0x4703' errors
    # Tools show no result of a failed command; the newer epoch is in the log.
    grep -qE "^cs[[:space:]]*: 0x$(printf %x "$epoch")$" errors
    refused_attach $changed "$(attach_data $epoch 1 3 "$SIZE_BYTES" "$(repeat 8 77)")"
    refused_attach $version "$(attach_data $epoch 1 9 "$SIZE_BYTES")"
    refused_attach $version "$(attach_data $epoch 1 1 "$SIZE_BYTES")"
    refused_attach $range "$(attach_data $epoch 1 3 $((2 * SIZE_BYTES)))"
    refused_attach $range "$(attach_data $epoch 1 3 $((SIZE_BYTES - 512)))"
    # A reserved flag, a volume of a group, no volume.
    refused_attach $invalid_field "$(attach_data $epoch 5 3 "$SIZE_BYTES")"
    refused_attach $other_group "$(echo -n "$sound" | sed -E 's/^(.{108})../\101/')"
    refused_attach $invalid_field "$(repeat 16 00)$(echo -n "$sound" | cut -c33-)"
    # Too little data, and more than any command takes.
    ends $invalid_length admin -o 0xc1 -w -l 60 -i attach.bin
    head -c 8192 /dev/zero >long
    ends $invalid_field admin -o 0xc1 -w -l 8192 -i long
}

other_refusals() {
    # The generation differs from the one in the operator's command.
    ends $changed example nvme admin-passthru /dev/nvme1 -o 0xd4 -n 1 --cdw12=0x89abcdef --cdw13=0x01234567
    # It has no role to transfer, and no space for this size.
    ends $not_now example nvme admin-passthru /dev/nvme1 -o 0xcc -n 1
    ends $range example nvme admin-passthru /dev/nvme1 -o 0xd8 -n 1 --cdw10=0x0c000000
    ends $invalid_field admin -o 0xd8 --cdw10=512
    ends $invalid_field admin -o 0xd8
    # The sender is no known peer.
    ends $unrelated example nvme admin-passthru /dev/nvme1 -o 0xdc -n 1 \
        --cdw10=0x33221100 --cdw11=0x77665544 --cdw12=0xbbaa9988 --cdw13=0xffeeddcc --cdw14=9
    ends $unrelated example nvme admin-passthru /dev/nvme1 -o 0xe4 -n 1 \
        --cdw10=0x33221100 --cdw11=0x77665544 --cdw12=0xbbaa9988 --cdw13=0xffeeddcc --cdw14=9
    ends $unrelated example nvme admin-passthru /dev/nvme1 -o 0xe8 -n 1 \
        --cdw10=0x33221100 --cdw11=0x77665544 --cdw12=0xbbaa9988 --cdw13=0xffeeddcc --cdw14=9
    ends $invalid_field admin -o 0xe0 --cdw10=512 --cdw12=0x1000 --cdw14=0x10000
    ends $invalid_field admin -o 0xe0 --cdw10=4096 --cdw12=0x1000 --cdw14=0x10001
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xe0 -n 1 --cdw10=0x100000 --cdw12=0x1000 --cdw14=0x10000
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xec -n 1 --cdw10=7
    ends $invalid_field admin -o 0xec --cdw10=0
    ends $not_attached example nvme admin-passthru /dev/nvme1 -o 0xf2 -n 1 --cdw10=12 --cdw12=1 --cdw13=5000 -r -l 8
    ends $invalid_field admin -o 0xf2 --cdw10=12 --cdw12=1 -r -l 8
    ends $invalid_field admin -o 0xc8 --cdw10=12 --cdw14=2
}

# Hosts write continuously until they are stopped.
hosts_write() {
    nvme connect -t tcp -a "$ADDRESS" -s "${PORTS% *}" -n "$volume" --nr-io-queues=2
    eventually is_block_device "$volume"
    (
        until [ -e enough ]; do
            verify_fio --rw=randwrite --bs=8k --size=2m --iodepth=8 --rate_iops=200
        done
        touch written
    ) >/share/load.log 2>&1 &
    ask mirroring
}

# The hosts' data is intact, and the mirror is unchanged.
undisturbed() {
    touch enough
    eventually test -e written
    ask mirroring
    disconnect "$volume"
    disconnect "$replica"
}

# hello NODE: connects to its replica only. Both replicas have one name, so Linux would treat them
# as two paths to one subsystem.
hello() {
    talk_to "$1"
    nvme connect -t tcp -a "$ADDRESS" -s "$PORT" -n "$replica" --data-digest --nr-io-queues=2 \
        --hostnqn="nqn.2026-01.io.flagstone:node:$peer" --hostid="$(cat /proc/sys/kernel/random/uuid)"
    eventually is_block_device "$replica"
}

# Answers of the serving node, and the transfer of its role.
hand_over() {
    hello 0
    admin -o 0xc2 -r -l 512 -b >source
    ask identity 0 "$(hex <source)"
    refused_attach $serving "$(
        bytes source 16 16 | hex
        bytes target 32 16 | hex
        little 8 100
        bytes source 56 8 | hex
        repeat 16 00
    )"
    ends $serving admin -o 0xd4 $(dwords 12 source 56 8)
    ends $serving example nvme admin-passthru /dev/nvme1 -o 0xd8 -n 1 --cdw10=0x0c000000
    # The request comes from a non-peer, and then from its target.
    example nvme admin-passthru /dev/nvme1 -o 0xc2 -n 1 -r -l 512 \
        --cdw10=0x33221100 --cdw11=0x77665544 --cdw12=0xbbaa9988 --cdw13=0xffeeddcc
    ends $not_now example nvme admin-passthru /dev/nvme1 -o 0xcc -n 1
    identify target >source
    example nvme admin-passthru /dev/nvme1 -o 0xcc -n 1
    ask state 1 serving true
    ask state 0 serving false
    ask mirroring
    identify target >source
    ask identity 0 "$(hex <source)"
    disconnect "$replica"
}

# Known data, written by hosts and recorded in the log when the source crashes. The NVM command set
# specification has the checksums of these blocks.
known=$((1 << 20))
known_data() {
    nvme connect -t tcp -a "$ADDRESS" -s "${PORTS#* }" -n "$volume" --nr-io-queues=2
    eventually is_block_device "$volume"
    rising=$(for value in $(seq 0 255); do printf %02x "$value"; done)
    falling=$(for value in $(seq 255 -1 0); do printf %02x "$value"; done)
    {
        head -c 4096 /dev/zero
        head -c 4096 /dev/zero | tr '\0' '\377'
        repeat 16 "$rising" | unhex
        repeat 16 "$falling" | unhex
    } >known.bin
    [ "$(wc -c <known.bin)" -eq 16384 ]
    dd if=known.bin of="/dev/$(namespace_of "$volume")" bs=16k seek=$((known >> 14)) oflag=direct
    disconnect "$volume"
    ask crash
}

# Acts as the source: node 0, with its own identity.
attach() {
    hello 1
    identify source >target
    ask identity 1 "$(hex <target)"
    echo -n "$(attach_data "$(number target 48 8)" 0 3 "$SIZE_BYTES")" | unhex >attach.bin
    example nvme admin-passthru /dev/nvme1 -o 0xc1 -n 1 -w -l 64 -i attach.bin
    ask state 1 role target
    ask state 1 has_source true
    # A repetition, as from a source that did not receive the answer.
    example nvme admin-passthru /dev/nvme1 -o 0xc1 -n 1 -w -l 64 -i attach.bin
    # Ordinary commands are accepted from the attached source.
    blockdev --flushbufs "/dev/$(namespace_of "$replica")"
    dd if="/dev/$(namespace_of "$replica")" bs=16k skip=$((known >> 14)) count=1 iflag=direct | cmp - known.bin
}

differences() {
    example nvme admin-passthru /dev/nvme1 -o 0xc6 -n 1 -r -l 4032 --cdw10=0 -b >bitmap
    [ "$(wc -c <bitmap)" -eq 4032 ]
    ask bitmap 1 "$(hex <bitmap)" "$(number target 4 4)" $known
    ends $range admin -o 0xc6 -r -l 4032 --cdw10=1
    ends $range admin -o 0xc6 -r -l 4032 --cdw10=0xffffffff --cdw11=0xffffffff
    ends $invalid_length admin -o 0xc6 -r -l 4028
    ends $invalid_field admin -o 0xc6 -r -l 4032 --cdw12=1
}

# Checksums of the known data, from the specification.
known_sums() {
    for sum in 0x6482d367eb22b64e 0xc0ddba7302eca3ac 0x3e729f5f6750449c 0x9a2df64b8e9e517e; do
        little 8 $sum
    done
}

# Writes that a crashed source may not have made durable have no checksum until they are copied.
suspect_data() {
    admin -o 0xca -r -l 32 --cdw10=$known --cdw12=16384 --cdw13=4096 -b >sums
    known_sums >known.sums
    for part in 1 17 33 49; do
        [ "$(hex <sums | cut -c$part-$((part + 15)))" != "$(cut -c$part-$((part + 15)) <known.sums)" ]
    done
}

checksums() {
    dd if=known.bin of="/dev/$(namespace_of "$replica")" bs=16k seek=$((known >> 14)) oflag=direct
    admin -o 0xca -r -l 32 --cdw10=$known --cdw12=16384 --cdw13=4096 -b >sums
    [ "$(hex <sums)" = "$(known_sums)" ]
    example nvme admin-passthru /dev/nvme1 -o 0xca -n 1 -r -l 128 --cdw12=1048576 --cdw13=65536 -b >sums
    ask checksums 1 0 1048576 65536 "$(hex <sums)"
    # The last part is shorter.
    admin -o 0xca -r -l 24 --cdw10=$known --cdw12=20480 --cdw13=8192 -b >sums
    ask checksums 1 $known 20480 8192 "$(hex <sums)"
    ends $range admin -o 0xca -r -l 16 --cdw10=$((SIZE_BYTES - 4096)) --cdw12=8192 --cdw13=4096
    ends $invalid_field admin -o 0xca -r -l 8 --cdw12=512 --cdw13=4096
    ends $invalid_field admin -o 0xca -r -l 8 --cdw12=2097152 --cdw13=2097152
    ends $invalid_field admin -o 0xca -r -l 8 --cdw12=4096
    ends $invalid_length admin -o 0xca -r -l 8 --cdw12=8192 --cdw13=4096
}

# The generation of the examples, then none: the replica is blank, and waits for a source.
discard_data() {
    old=$(bytes target 56 8 | hex)
    example nvme admin-passthru /dev/nvme1 -o 0xd0 -n 1 --cdw10=0x33221100 --cdw11=0x77665544 \
        --cdw12=0xbbaa9988 --cdw13=0xffeeddcc --cdw14=0x89abcdef --cdw15=0x01234567
    ask state 1 generation $new_generation
    identify source >target
    ask identity 1 "$(hex <target)"
    ends $invalid_field admin -o 0xd0 --cdw14=1
    ends $changed admin -o 0xd4 --cdw10=1 --cdw12=0x01234567 --cdw13=0x89abcdef
    # Its source counts on its data while it is attached.
    ends $not_now admin -o 0xd4 --cdw12=0x89abcdef --cdw13=0x01234567
    disconnect "$replica"
    hello 1
    ask state 1 has_source false
    identify source >target
    ends $changed admin -o 0xd4 --cdw10=1 --cdw12=0x89abcdef --cdw13=0x01234567
    example nvme admin-passthru /dev/nvme1 -o 0xd4 -n 1 --cdw12=0x89abcdef --cdw13=0x01234567
    ask state 1 generation 0000000000000000
    # The second attempt is refused.
    ends $changed admin -o 0xd4 --cdw12=0x89abcdef --cdw13=0x01234567
    identify source >target
    ask identity 1 "$(hex <target)"
    # A generation that no longer exists.
    refused_attach $changed "$(attach_data "$(number target 48 8)" 0 3 "$SIZE_BYTES" "$old")"
    echo -n "$(attach_data "$(number target 48 8)" 0 0 0)" | unhex >attach.bin
    example nvme admin-passthru /dev/nvme1 -o 0xc1 -n 1 -w -l 64 -i attach.bin
}

begin_resync() {
    admin -o 0xc4 --cdw10=1
    ask state 1 inconsistent true
    ends $inconsistent admin -o 0xc4 --cdw10=3 --cdw12=1
    ends $not_now admin -o 0xc8 --cdw10=12
    ends $invalid_field admin -o 0xc4 --cdw10=4 --cdw12=1
    ends $invalid_field admin -o 0xc4 --cdw10=2
    ends $invalid_field admin -o 0xc4 --cdw10=1 --cdw11=1
}

# True once nvme-cli has sent a command to an I/O queue: its ioctl has not returned.
is_sent() {
    cat /proc/[0-9]*/syscall 2>/dev/null | grep -qE '^16 0x[0-9a-f]+ 0xc0(484e43|504e48) '
}

# Write 3 may run in parallel with 2, so it does not wait for it; 4 waits for 3.
ordered_writes() {
    text 1 >data1.bin
    io -o 0x81 -w -l 4096 -i data1.bin --cdw10=8 --cdw12=7 --cdw13=1
    ask disk 1 4096 "$(hex <data1.bin)"
    text 3 >data.bin
    example nvme io-passthru /dev/nvme1n1 -o 0x81 -n 1 -w -l 4096 -i data.bin --cdw12=7 --cdw13=3 --cdw14=1
    ask disk 1 0 "$(hex <data.bin)"
    ends $io_range io -o 0x81 -w -l 4096 -i data.bin --cdw12=7 --cdw13=3 --cdw14=1
    example nvme io-passthru /dev/nvme1n1 -o 0x84 -n 1 --cdw2=2048 --cdw12=0x02000000 --cdw13=4 &
    zeroes=$!
    eventually is_sent
    ask disk 1 0 "$(hex <data.bin)"
    # Write 2, durable, including the block before those of write 1: all of it is zero at the end.
    io -o 0x81 -w -l 4096 -i data1.bin --cdw10=0 --cdw12=0x40000007 --cdw13=2
    wait $zeroes
    ask disk 1 0 "$(head -c 8192 /dev/zero | hex)"
    # Out of range, without a length, and with reserved bits.
    last=$((SIZE_BYTES / 512 - 7))
    ends $io_range io -o 0x81 -w -l 4096 -i data.bin --cdw10=$last --cdw12=7 --cdw13=5
    ends $io_range io -o 0x84 --cdw2=8 --cdw10=$last --cdw13=5
    ends $io_invalid_length io -o 0x81 -w -l 2048 -i data.bin --cdw12=7 --cdw13=5
    ends $io_invalid_field io -o 0x81 -w -l 4096 -i data.bin --cdw12=0x80000007 --cdw13=5
    ends $io_invalid_field io -o 0x81 -w -l 4096 -i data.bin --cdw12=7 --cdw2=1 --cdw13=5
    ends $io_invalid_field io -o 0x84 --cdw12=0 --cdw13=5
    # None of the refused writes took the sequence number.
    io -o 0x84 --cdw2=2048 --cdw10=2048 --cdw13=5
    ask disk 1 $known "$(head -c 16384 /dev/zero | hex)"
}

# 100 bytes of LZ4 that decompress to 4,096: 71 literals, repeated, and eight more.
compressed_write() {
    literal='A replica of the volume, as a Linux host writes it to a target by hand.'
    [ ${#literal} -eq 71 ]
    {
        # Token (15 or more literals, 19 or more bytes of a match), 15 + 56 literals, distance 71, and
        # 19 + 15 * 255 + 173 bytes; token (8 literals, the end).
        printf '\xff\x38%s\x47\x00' "$literal"
        repeat 15 ff | unhex
        printf '\xad\x80the end\n'
    } >data.lz4
    [ "$(wc -c <data.lz4)" -eq 100 ]
    {
        yes "$literal" | tr -d '\n' | head -c 4088
        echo 'the end'
    } >inflated
    example nvme io-passthru /dev/nvme1n1 -o 0x85 -n 1 -w -l 100 -i data.lz4 --cdw2=1 --cdw3=100 \
        --cdw12=0x40000007
    ask disk 1 0 "$(hex <inflated)"
    # An ordered write; then invalid LZ4, data too short or too long for its blocks, and no codec.
    io -o 0x85 -w -l 100 -i data.lz4 --cdw2=0x80000001 --cdw3=100 --cdw10=8 --cdw12=7 --cdw13=6
    ask disk 1 4096 "$(hex <inflated)"
    head -c 100 /dev/zero | tr '\0' '\377' >nonsense
    ends $io_invalid_field io -o 0x85 -w -l 100 -i nonsense --cdw2=1 --cdw3=100 --cdw12=7
    ends $io_invalid_field io -o 0x85 -w -l 100 -i data.lz4 --cdw2=1 --cdw3=100 --cdw12=6
    ends $io_invalid_field io -o 0x85 -w -l 100 -i data.lz4 --cdw2=1 --cdw3=100 --cdw12=8
    ends $io_invalid_field io -o 0x85 -w -l 100 -i data.lz4 --cdw2=3 --cdw3=100 --cdw12=7
    ends $io_invalid_field io -o 0x85 -w -l 100 -i data.lz4 --cdw2=1 --cdw12=7
    ends $io_invalid_field io -o 0x85 -w -l 100 -i data.lz4 --cdw2=1 --cdw3=100 --cdw12=7 --cdw13=7
    ends $io_invalid_length io -o 0x85 -w -l 96 -i data.lz4 --cdw2=1 --cdw3=100 --cdw12=7
    ask disk 1 0 "$(hex <inflated)"
}

# Zeroes the space after the volume, which will have 192 MiB.
zero_new_space() {
    ends $range example nvme admin-passthru /dev/nvme1 -o 0xd8 -n 1 --cdw10=0x0c000000
    ask room 1 $((256 << 20))
    ends $not_now example nvme admin-passthru /dev/nvme1 -o 0xd8 -n 1 --cdw10=0x0c000000
    eventually example nvme admin-passthru /dev/nvme1 -o 0xd8 -n 1 --cdw10=0x0c000000
    identify source >target
    [ "$(number target 232 8)" -ge $((192 << 20)) ]
    [ "$(number target 8 8)" -eq "$SIZE_BYTES" ]
}

# End of a resync, with the generation by which the former source is brought up to date when it
# returns.
end_resync() {
    { bytes source 56 8 && repeat 120 00 | unhex; } >ancestors.bin
    example nvme admin-passthru /dev/nvme1 -o 0xc5 -n 1 -w -l 128 -i ancestors.bin
    identify source >target
    bytes target 96 8 >newest
    bytes source 56 8 | cmp - newest
    example nvme admin-passthru /dev/nvme1 -o 0xc4 -n 1 --cdw10=2 --cdw12=0x89abcdef --cdw13=0x01234567
    ask state 1 inconsistent false
    ask state 1 generation $new_generation
    # The log is cleared.
    admin -o 0xc6 -r -l 4032 -b | cmp -n 4032 - /dev/zero
    admin -o 0xc4 --cdw10=3 --cdw12=0x76543210 --cdw13=0xfedcba98
    ask state 1 generation fedcba9876543210
    nvme flush "/dev/$(namespace_of "$replica")"
}

# It serves hosts, and refuses this host's writes.
promote() {
    example nvme admin-passthru /dev/nvme1 -o 0xc8 -n 1 --cdw10=12
    ask state 1 serving true
    identify source >target
    ask identity 1 "$(hex <target)"
    [ "$(number target 48 8)" -ge 12 ]
    ends $not_attached admin -o 0xc8 --cdw10=12
    ends $io_path io -o 0x81 -w -l 4096 -i data.bin --cdw12=7 --cdw13=7
    ends $serving admin -o 0xd4 $(dwords 12 target 56 8)
    disconnect "$replica"
    ask rejoin
}

talk_to 1
step connect connect
step hosts-write hosts_write
step effects effects
step identities identities
step not-attached not_attached
step refused-attaches refused_attaches
step other-refusals other_refusals
step undisturbed undisturbed
step hand-over hand_over
step known-data known_data
step attach attach
step differences differences
step suspect-data suspect_data
step discard discard_data
step begin-resync begin_resync
step ordered-writes ordered_writes
step compressed-write compressed_write
step zero-new-space zero_new_space
step end-resync end_resync
step checksums checksums
step promote promote
