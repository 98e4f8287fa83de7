# Functions shared by the scripts in the guest. The host reads and answers on the control line, file
# descriptor 3 (the second serial port), one line per message:
#
#   guest  STEP name     a step begins; its output goes to NAME.log on the share
#   guest  PASS name     it passed
#   guest  FAIL name     it failed, and the script ends
#   guest  ASK request   the guest waits until the host has done it
#   host   OK            it is done
#   host   NO reason     it could not be done

# step NAME COMMAND...: run the command (often a function) as a step.
step() {
    step_name=$1
    shift
    echo "STEP $step_name" >&3
    # Not in a condition, because the shell ignores -e there.
    (
        set -ex
        "$@"
    ) >"/share/$step_name.log" 2>&1
    step_status=$?
    if [ $step_status -ne 0 ]; then
        dmesg | tail -n 40 >"/share/$step_name.dmesg.log"
        show_state >"/share/$step_name.state.log" 2>&1
        echo "FAIL $step_name" >&3
        exit 1
    fi
    echo "PASS $step_name" >&3
}

# State at a failure: controllers, paths with their I/O in flight, and what programs wait for.
show_state() {
    for entry in /sys/class/nvme/nvme*; do
        echo "$entry: $(cat "$entry/subsysnqn"): $(cat "$entry/state")"
    done
    for entry in /sys/class/nvme/nvme*/nvme*n* /sys/block/nvme*; do
        [ -d "$entry" ] || continue
        echo "$entry: ana $(cat "$entry/ana_state" 2>/dev/null), in flight $(cat "$entry/inflight")," \
            "stat $(cat "$entry/stat")"
    done
    # fio prints its own state on this signal.
    killall -USR1 fio
    sleep 1
    for entry in /proc/[0-9]*/task/[0-9]*; do
        case $(cat "$entry/comm" 2>/dev/null) in
            fio | kworker/*nvme* | nvme*)
                echo "$entry: $(cat "$entry/comm"): $(cat "$entry/wchan")"
                cat "$entry/stack" 2>/dev/null
                ;;
        esac
    done
}

# ask REQUEST...: ask the host to do something, and wait for it.
ask() {
    echo "ASK $*" >&3
    read -r answer <&3
    [ "$answer" = OK ]
}

# eventually COMMAND...: retry until it succeeds. The limit is a safety net, not a measurement.
eventually() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ]
        usleep 50000
    done 2>/dev/null
}

# refused COMMAND...: the command must fail. (-e does not apply after a `!`.)
refused() {
    if "$@"; then
        return 1
    fi
}
