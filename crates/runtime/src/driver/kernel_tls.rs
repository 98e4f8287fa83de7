//! Kernel TLS: system calls that give the records of a connected TCP socket to the kernel.
//!
//! The kernel then encrypts what is sent and decrypts what is received. Its receives fail with
//! `EIO` at a record that is not data; [`receive_record`] takes such a record out.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::os;

/// Names of the upper-layer protocols that the kernel's TCP offers, one of them `tls`.
const PROTOCOLS: &str = "/proc/sys/net/ipv4/tcp_available_ulp";

// From <linux/tls.h>.
const TLS_SET_RECORD_TYPE: libc::c_int = 1;
const TLS_GET_RECORD_TYPE: libc::c_int = 2;

/// Direction of the records of a socket, as `TLS_TX` and `TLS_RX` of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelTlsDirection {
    Send = 1,
    Receive = 2,
}

/// Control message with the type of a record.
#[repr(C)]
pub(crate) struct RecordTypeMessage {
    header: libc::cmsghdr,
    record_type: u8,
    padding: [u8; 7],
}

impl RecordTypeMessage {
    /// Message for a send of a record of this type.
    pub(crate) fn new(record_type: u8) -> RecordTypeMessage {
        let header = libc::cmsghdr {
            cmsg_len: LENGTH as _,
            cmsg_level: libc::SOL_TLS,
            cmsg_type: TLS_SET_RECORD_TYPE,
        };
        RecordTypeMessage { header, record_type, padding: [0; 7] }
    }

    /// The type of a received record; `None` if the kernel has not given it.
    fn record_type(&self) -> Option<u8> {
        let header = &self.header;
        let is_there = header.cmsg_level == libc::SOL_TLS
            && header.cmsg_type == TLS_GET_RECORD_TYPE
            && header.cmsg_len >= LENGTH;
        is_there.then_some(self.record_type)
    }
}

/// Bytes of a control message with a type.
const LENGTH: usize = size_of::<libc::cmsghdr>() + 1;

/// The kernel has no such cipher. It looks for modules at each attempt, so one has to do.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// True if the kernel has TLS. Loads no module.
pub(crate) fn is_available() -> bool {
    !IS_REFUSED.load(Relaxed)
        && std::fs::read_to_string(PROTOCOLS).is_ok_and(|names| offers_tls(&names))
}

fn offers_tls(names: &str) -> bool {
    names.split_ascii_whitespace().any(|name| name == "tls")
}

/// Prepares a connected TCP socket, whose data stays as it is, and gives it the keys of receives.
/// If the kernel will never take them, [`is_available`] is false from then on.
pub(crate) fn attach(raw: RawFd, keys: &[u8]) -> io::Result<()> {
    let attached = set_option(raw, libc::SOL_TCP, libc::TCP_ULP, b"tls");
    let result = attached.and_then(|()| set_keys(raw, KernelTlsDirection::Receive, keys));
    if let Err(error) = &result
        && matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP))
    {
        IS_REFUSED.store(true, Relaxed);
    }
    result
}

/// Gives the records of a direction to the kernel. `keys` is a `tls12_crypto_info_*`.
pub(crate) fn set_keys(raw: RawFd, direction: KernelTlsDirection, keys: &[u8]) -> io::Result<()> {
    set_option(raw, libc::SOL_TLS, direction as libc::c_int, keys)
}

/// The error of the socket that no call has reported.
pub(crate) fn take_error(raw: RawFd) -> Option<io::Error> {
    rustix::net::sockopt::socket_error(os::borrow(raw)).ok()?.err().map(io::Error::from)
}

fn set_option(raw: RawFd, level: libc::c_int, name: libc::c_int, value: &[u8]) -> io::Result<()> {
    let (place, len) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
    // SAFETY: `place` has `len` readable bytes for the time of the call.
    let result = unsafe { libc::setsockopt(raw, level, name, place, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes out the record at which a receive failed with `EIO`, without waiting. Returns its type and
/// the length of its content in `place`; a longer content is cut.
pub(crate) fn receive_record(raw: RawFd, place: &mut [u8]) -> io::Result<(u8, usize)> {
    let mut part = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() as _ };
    let mut control = RecordTypeMessage::new(0);
    // SAFETY: `msghdr` is plain data for which all zeroes is a valid (empty) value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<RecordTypeMessage>() as _;
    // SAFETY: the message points to one buffer and one control message, both writable in the given
    // lengths and alive during the call.
    let count = unsafe { libc::recvmsg(raw, &raw mut message, libc::MSG_DONTWAIT) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    let record_type = control.record_type();
    let untyped = || io::Error::new(io::ErrorKind::InvalidData, "a TLS record without a type");
    Ok((record_type.ok_or_else(untyped)?, count as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_message_has_the_layout_of_the_kernel() {
        // SAFETY: both compute with their argument only.
        let (length, space) = unsafe { (libc::CMSG_LEN(1), libc::CMSG_SPACE(1)) };
        assert_eq!(LENGTH, length as usize);
        assert_eq!(size_of::<RecordTypeMessage>(), space as usize);
        assert_eq!(std::mem::offset_of!(RecordTypeMessage, record_type), LENGTH - 1);
    }

    #[test]
    fn only_a_record_type_of_the_kernel_is_read() {
        let mut received = RecordTypeMessage::new(21);
        assert_eq!(received.record_type(), None, "a message for a send");
        received.header.cmsg_type = TLS_GET_RECORD_TYPE;
        assert_eq!(received.record_type(), Some(21));
        received.header.cmsg_len = (LENGTH - 1) as _;
        assert_eq!(received.record_type(), None, "cut");
        received = RecordTypeMessage::new(21);
        received.header.cmsg_type = TLS_GET_RECORD_TYPE;
        received.header.cmsg_level = libc::SOL_SOCKET;
        assert_eq!(received.record_type(), None, "another level");
    }

    #[test]
    fn tls_is_found_among_the_protocols_of_tcp() {
        assert!(offers_tls("espintcp mptcp tls\n"));
        assert!(!offers_tls("espintcp mptcp\n") && !offers_tls("") && !offers_tls("tlsx"));
    }
}
