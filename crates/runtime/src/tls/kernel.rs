//! Records by the kernel: after the handshake, sends and receives of the socket are as on a
//! plain one.
//!
//! A KeyUpdate of the peer changes the keys of receives, and those of sends if it asks for that:
//! the answer precedes the next data. Unasked, the keys of sends stay, because Linux's own NVMe/TCP
//! takes no KeyUpdate. Every other message ends the connection, but whole session tickets, which a
//! client ignores.
//!
//! A close without [`KernelRecords::close`] drops records that TCP has not taken from the kernel's
//! TLS.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::RawFd;

use zeroize::Zeroizing;

use super::traffic::{Side, Suite, TrafficSecrets, kernel_keys, next_secret};
use crate::buf::{self, BufMut};
use crate::driver::kernel_tls::{self, KernelTlsDirection};
use crate::limits::{TLS_CLOSE_TIMEOUT, TLS_RECORD_BYTES};
use crate::net::Stream;
use crate::op::SendMode;
use crate::time;
use crate::vectored::{RecvList, SendList};

// Types of records, messages and alerts (RFC 8446, sections 5.1, 4 and 6).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
const NO_REQUEST: u8 = 0;
const REQUEST: u8 = 1;
const CLOSE_NOTIFY: u8 = 0;
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD: u8 = 20;
const ILLEGAL_PARAMETER: u8 = 47;
const INTERNAL_ERROR: u8 = 80;

/// Messages in a row without data: peers update their keys after billions of records, and servers
/// offer a few session tickets.
const MESSAGES_MAX: u8 = 32;

/// Alert that ends the stream in order.
const CLOSURE: [u8; 2] = [1, CLOSE_NOTIFY];

/// Answer to a KeyUpdate that asks for one.
const KEY_UPDATE_ANSWER: [u8; 5] = [KEY_UPDATE, 0, 0, 1, NO_REQUEST];

/// Hands the records of both directions to the kernel, after the last message of the handshake and
/// before the first record of data. `None` if the kernel does not take them; the library continues.
///
/// # Errors
/// The kernel took only one direction.
pub(super) fn take_records(
    stream: &Stream,
    mut secrets: TrafficSecrets,
    suite: Suite,
    side: Side,
) -> io::Result<Option<KernelSecrets>> {
    let receiving = secrets.take(suite, side.peer());
    let sending = secrets.take(suite, side);
    let (Some(receive), Some(send)) = (receiving, sending) else { return Ok(None) };
    let raw = stream.descriptor();
    if kernel_tls::attach(raw, &kernel_keys(suite, &receive)).is_err() {
        return Ok(None);
    }
    kernel_tls::set_keys(raw, KernelTlsDirection::Send, &kernel_keys(suite, &send))?;
    Ok(Some(KernelSecrets { suite, receive, send }))
}

/// Secrets of the kernel's keys, from which the next ones come.
pub(super) struct KernelSecrets {
    suite: Suite,
    receive: Zeroizing<Vec<u8>>,
    send: Zeroizing<Vec<u8>>,
}

/// Both directions of a stream whose records the kernel has.
pub(super) struct KernelRecords {
    side: Side,
    secrets: RefCell<KernelSecrets>,
    receiving: Cell<Receiving>,
    sending: Cell<Sending>,
    send_keys: Cell<SendKeys>,
    /// Messages since the last data.
    messages: Cell<u8>,
    /// Alert at the end of the stream: its level and description.
    alert: Cell<[u8; 2]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Receiving {
    Open,
    /// If the receive was dropped, data is lost.
    InFlight,
    /// The peer has ended the stream in order.
    Ended,
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    Open,
    /// If the send was dropped, data is lost.
    InFlight,
    /// The closure alert was sent, or the stream has failed.
    Closed,
}

/// Keys of sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendKeys {
    Current,
    /// The peer has asked for others since the last data.
    UpdateDue,
}

impl KernelRecords {
    pub(super) fn new(side: Side, secrets: KernelSecrets) -> KernelRecords {
        KernelRecords {
            side,
            secrets: RefCell::new(secrets),
            receiving: Cell::new(Receiving::Open),
            sending: Cell::new(Sending::Open),
            send_keys: Cell::new(SendKeys::Current),
            messages: Cell::new(0),
            alert: Cell::new(CLOSURE),
        }
    }

    pub(super) async fn recv(
        &self,
        stream: &Stream,
        mut place: BufMut,
    ) -> (io::Result<usize>, BufMut) {
        loop {
            if let Some(result) = self.begin_receive(place.is_empty()) {
                return (result, place);
            }
            let (result, back) = stream.recv(place).await;
            place = back;
            if let Some(result) = self.end_receive(stream, result) {
                return (result, place);
            }
        }
    }

    pub(super) async fn recv_vectored(
        &self,
        stream: &Stream,
        mut list: RecvList,
    ) -> (io::Result<usize>, RecvList) {
        loop {
            if let Some(result) = self.begin_receive(list.bytes() == 0) {
                return (result, list);
            }
            let (result, back) = stream.recv_vectored(list).await;
            list = back;
            if let Some(result) = self.end_receive(stream, result) {
                return (result, list);
            }
        }
    }

    /// The result of a receive that needs no system call.
    fn begin_receive(&self, no_room: bool) -> Option<io::Result<usize>> {
        match self.receiving.get() {
            Receiving::Open if no_room => Some(Ok(0)),
            Receiving::Open => {
                self.receiving.set(Receiving::InFlight);
                None
            }
            Receiving::Ended => Some(Ok(0)),
            Receiving::InFlight | Receiving::Failed => {
                Some(Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }

    /// The result for the caller; `None` to receive again.
    fn end_receive(&self, stream: &Stream, result: io::Result<usize>) -> Option<io::Result<usize>> {
        let received = match result {
            // The kernel tells a malformed record before the end only if it is asked.
            // A peer may end without a closure alert. The protocols above detect truncation.
            Ok(0) => match kernel_tls::take_error(stream.descriptor()) {
                Some(error) => refused_record(error),
                None => Received::End,
            },
            Ok(count) => {
                self.receiving.set(Receiving::Open);
                self.messages.set(0);
                return Some(Ok(count));
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => Received::Nothing,
                Some(libc::EIO) if !self.admits_message() => {
                    refused(UNEXPECTED_MESSAGE, "too many messages without data")
                }
                Some(libc::EIO) => self.receive_message(stream),
                _ => refused_record(error),
            },
        };
        match received {
            Received::Nothing => {
                self.receiving.set(Receiving::Open);
                None
            }
            Received::KeyUpdate(asked) => {
                self.receiving.set(Receiving::Open);
                if asked == SendKeys::UpdateDue {
                    self.send_keys.set(asked);
                }
                None
            }
            Received::End => {
                self.receiving.set(Receiving::Ended);
                Some(Ok(0))
            }
            Received::Failed(alert, error) => {
                self.receiving.set(Receiving::Failed);
                if let Some(description) = alert {
                    self.alert.set([2, description]);
                    // It would be the result of the next send.
                    let _ = kernel_tls::take_error(stream.descriptor());
                }
                Some(Err(error))
            }
        }
    }

    /// Counts a message. False if there were too many since the last data: each KeyUpdate costs a
    /// derivation and a system call, and a receive would not end.
    fn admits_message(&self) -> bool {
        self.messages.set(self.messages.get().saturating_add(1));
        self.messages.get() <= MESSAGES_MAX
    }

    /// Takes a record out that is not data.
    fn receive_message(&self, stream: &Stream) -> Received {
        // The kernel gives a record in one piece.
        let mut content = vec![0; TLS_RECORD_BYTES];
        let raw = stream.descriptor();
        match kernel_tls::receive_record(raw, &mut content) {
            Ok((kind, length)) => match classify(self.side, kind, &content[..length]) {
                Received::KeyUpdate(asked) => {
                    let updated =
                        self.secrets.borrow_mut().update(raw, KernelTlsDirection::Receive);
                    updated.map_or_else(key_update_failed, |()| Received::KeyUpdate(asked))
                }
                other => other,
            },
            // The kernel forgets an empty one.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => unexpected(),
            Err(error) => refused_record(error),
        }
    }

    /// As [`Stream::send`].
    pub(super) async fn send(
        &self,
        stream: &Stream,
        list: SendList,
    ) -> (io::Result<usize>, SendList) {
        if self.sending.get() != Sending::Open {
            return (Err(io::ErrorKind::BrokenPipe.into()), list);
        }
        self.sending.set(Sending::InFlight);
        if let Err(error) = self.answer_key_update(stream).await {
            self.sending.set(Sending::Closed);
            return (Err(error), list);
        }
        let (result, list) = send_uninterrupted(stream, list, SendMode::Part).await;
        self.sending.set(if result.is_ok() { Sending::Open } else { Sending::Closed });
        (result, list)
    }

    /// Changes the keys of sends if the peer has asked for that (RFC 8446, section 4.6.3).
    async fn answer_key_update(&self, stream: &Stream) -> io::Result<()> {
        if self.send_keys.replace(SendKeys::Current) == SendKeys::Current {
            return Ok(());
        }
        // A record is encrypted when the kernel takes it, so the old keys are of no more use then.
        send_record(stream, HANDSHAKE, &KEY_UPDATE_ANSWER).await?;
        self.secrets.borrow_mut().update(stream.descriptor(), KernelTlsDirection::Send)
    }

    /// As [`super::TlsStream::close`].
    pub(super) async fn close(&self, stream: &Stream) -> io::Result<()> {
        if self.sending.get() != Sending::Open {
            return Ok(());
        }
        self.sending.set(Sending::InFlight);
        // Records that TCP has not taken yet would be lost when the socket is closed. Some kernels
        // count the alert as sent while such records wait: a peer that reads late may lose both.
        let alert = self.alert.get();
        let sent = time::timeout(TLS_CLOSE_TIMEOUT, send_record(stream, ALERT, &alert)).await;
        self.sending.set(Sending::Closed);
        sent.unwrap_or(Ok(()))
    }
}

/// Sends a record that is not data, after all earlier ones.
async fn send_record(stream: &Stream, record_type: u8, content: &[u8]) -> io::Result<()> {
    let mut buffer = buf::alloc_small(content.len());
    buffer.copy_from_slice(content);
    let mut list = SendList::new().with_tls_record_type(record_type);
    list.push(buffer.freeze());
    send_uninterrupted(stream, list, SendMode::Flush).await.0.map(drop)
}

/// Sends again after a signal, which came before anything was sent.
async fn send_uninterrupted(
    stream: &Stream,
    mut list: SendList,
    mode: SendMode,
) -> (io::Result<usize>, SendList) {
    loop {
        let (result, rest) = stream.send_from(list, mode).await;
        list = rest;
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return (result, list),
        }
    }
}

impl KernelSecrets {
    /// Gives the next keys of a direction to the kernel.
    fn update(&mut self, raw: RawFd, direction: KernelTlsDirection) -> io::Result<()> {
        let secret = match direction {
            KernelTlsDirection::Receive => &mut self.receive,
            KernelTlsDirection::Send => &mut self.send,
        };
        let next = next_secret(self.suite, secret);
        kernel_tls::set_keys(raw, direction, &kernel_keys(self.suite, &next))?;
        *secret = next;
        Ok(())
    }
}

fn key_update_failed(error: io::Error) -> Received {
    let reason =
        format!("the peer changes its keys (KeyUpdate), which this kernel cannot: {error}");
    refused(INTERNAL_ERROR, &reason)
}

/// Meaning of a record that is not data, or of a failed receive.
enum Received {
    /// It is ignored.
    Nothing,
    /// The end of the stream.
    End,
    /// The next record has the next keys. `UpdateDue` if this side owes such a message, too.
    KeyUpdate(SendKeys),
    /// The end of the connection, and the alert that the peer is due.
    Failed(Option<u8>, io::Error),
}

fn classify(side: Side, kind: u8, content: &[u8]) -> Received {
    match (kind, content) {
        (ALERT, [_, CLOSE_NOTIFY]) => Received::End,
        (ALERT, _) => Received::Failed(None, io::ErrorKind::ConnectionAborted.into()),
        (HANDSHAKE, [KEY_UPDATE, 0, 0, 1, NO_REQUEST]) => Received::KeyUpdate(SendKeys::Current),
        (HANDSHAKE, [KEY_UPDATE, 0, 0, 1, REQUEST]) => Received::KeyUpdate(SendKeys::UpdateDue),
        (HANDSHAKE, [KEY_UPDATE, 0, 0, 1, _]) => {
            refused(ILLEGAL_PARAMETER, "a KeyUpdate asks for something unknown")
        }
        (HANDSHAKE, tickets) if side == Side::Client && are_session_tickets(tickets) => {
            Received::Nothing
        }
        _ => unexpected(),
    }
}

/// True for whole messages of servers that offer to resume the session.
fn are_session_tickets(mut messages: &[u8]) -> bool {
    while let [NEW_SESSION_TICKET, high, middle, low, rest @ ..] = messages {
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        match rest.get(length..) {
            Some([]) => return true,
            Some(more) => messages = more,
            None => return false,
        }
    }
    false
}

/// The kernel's errors for records that it refuses, and errors of the connection.
fn refused_record(error: io::Error) -> Received {
    match error.raw_os_error() {
        Some(libc::EBADMSG) => refused(BAD_RECORD, "a record fails authentication"),
        Some(libc::EMSGSIZE | libc::EINVAL) => refused(BAD_RECORD, "a record is malformed"),
        _ => Received::Failed(None, error),
    }
}

fn unexpected() -> Received {
    refused(UNEXPECTED_MESSAGE, "an unexpected message")
}

fn refused(alert: u8, reason: &str) -> Received {
    let error = io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {reason}"));
    Received::Failed(Some(alert), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(received: Received) -> String {
        match received {
            Received::Nothing => "nothing".to_owned(),
            Received::End => "end".to_owned(),
            Received::KeyUpdate(asked) => format!("key update {asked:?}"),
            Received::Failed(alert, error) => format!("{alert:?} {:?}", error.kind()),
        }
    }

    #[test]
    fn records_that_are_not_data_are_classified() {
        let ticket = [&[NEW_SESSION_TICKET, 0, 0, 3][..], &[7; 3]].concat();
        let two = [&ticket[..], &ticket].concat();
        let cases: [(&str, Side, u8, &[u8], &str); 19] = [
            ("closure", Side::Server, ALERT, &[1, 0], "end"),
            ("closure with another level", Side::Client, ALERT, &[2, 0], "end"),
            ("fatal alert", Side::Server, ALERT, &[2, 80], "None ConnectionAborted"),
            ("empty alert", Side::Server, ALERT, &[], "None ConnectionAborted"),
            ("long alert", Side::Server, ALERT, &[1, 0, 0], "None ConnectionAborted"),
            ("ticket", Side::Client, HANDSHAKE, &ticket, "nothing"),
            ("two tickets", Side::Client, HANDSHAKE, &two, "nothing"),
            ("ticket of a client", Side::Server, HANDSHAKE, &ticket, "Some(10) InvalidData"),
            ("cut ticket", Side::Client, HANDSHAKE, &ticket[..6], "Some(10) InvalidData"),
            ("ticket's header", Side::Client, HANDSHAKE, &ticket[..3], "Some(10) InvalidData"),
            (
                "ticket, key update",
                Side::Client,
                HANDSHAKE,
                &[&ticket[..], &[KEY_UPDATE, 0, 0, 1, 0]].concat(),
                "Some(10) InvalidData",
            ),
            ("key update", Side::Client, HANDSHAKE, &[24, 0, 0, 1, 0], "key update Current"),
            ("request", Side::Server, HANDSHAKE, &[24, 0, 0, 1, 1], "key update UpdateDue"),
            ("unknown", Side::Server, HANDSHAKE, &[24, 0, 0, 1, 2], "Some(47) InvalidData"),
            (
                "two",
                Side::Server,
                HANDSHAKE,
                &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0],
                "Some(10) InvalidData",
            ),
            ("half of it", Side::Server, HANDSHAKE, &[24, 0, 0], "Some(10) InvalidData"),
            ("renegotiation", Side::Server, HANDSHAKE, &[1, 0, 0, 0], "Some(10) InvalidData"),
            ("empty message", Side::Client, HANDSHAKE, &[], "Some(10) InvalidData"),
            ("unknown content", Side::Client, 25, &[1, 2, 3], "Some(10) InvalidData"),
        ];
        for (what, side, kind, content, wanted) in cases {
            assert_eq!(text(classify(side, kind, content)), wanted, "{what}");
        }
    }

    #[test]
    fn messages_without_data_are_bounded() {
        let [receive, send] = [0, 1].map(|byte| Zeroizing::new(vec![byte; 32]));
        let secrets = KernelSecrets { suite: Suite::Aes128GcmSha256, receive, send };
        let records = KernelRecords::new(Side::Server, secrets);
        for _ in 0..MESSAGES_MAX {
            assert!(records.admits_message());
        }
        for _ in 0..300 {
            assert!(!records.admits_message());
        }
    }

    #[test]
    fn refused_records_have_the_error_of_the_library() {
        for (errno, wanted) in [
            (libc::EBADMSG, "Some(20) InvalidData"),
            (libc::EMSGSIZE, "Some(20) InvalidData"),
            (libc::EINVAL, "Some(20) InvalidData"),
            (libc::ECONNRESET, "None ConnectionReset"),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(text(refused_record(error)), wanted);
        }
    }
}
