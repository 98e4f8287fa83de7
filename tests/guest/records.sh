# The runtime's tests of TLS records, with the records in the guest's kernel (Linux 6.14 or later).
# Needs the program of the tests on the share.

kernel_tls() {
    awk -v name="$1" '$1 == name { print $2 }' /proc/net/tls_stat
}

records() {
    # Mapping a program over 9p is slow, hence the copy.
    cp "/share/$TESTS" /tmp/tests
    LD_LIBRARY_PATH=/share/lib /tmp/tests tls:: --test-threads=1
    cat /proc/net/tls_stat
    [ "$(kernel_tls TlsTxSw)" -gt 0 ]
    [ "$(kernel_tls TlsRxRekeyOk)" -gt 0 ]
    [ "$(kernel_tls TlsTxRekeyOk)" -gt 0 ]
    [ "$(kernel_tls TlsRxRekeyError)" -eq 0 ]
    [ "$(kernel_tls TlsTxRekeyError)" -eq 0 ]
}

step tls-records records
