//! Reply sender: all ready replies go out in one send, with at most one send in flight.

use std::rc::Rc;

use flagstone_runtime::{Buf, SendList};
use flagstone_transport::Gather;

use crate::limits::SEND_BYTES;
use crate::server::connection::{NbdConnection, QueuedReply, ReplyBody};
use crate::wire::reply::{MAX_HEADER_BYTES, put_data, put_error, put_simple};

/// Current send, and the budget that it releases.
#[derive(Default)]
struct Sender {
    gather: Gather,
    /// Remaining data of a reply that was partly sent.
    rest: Option<Buf>,
    requests: usize,
    bytes: usize,
}

impl Sender {
    /// Gathers ready replies, up to [`SEND_BYTES`].
    fn fill(&mut self, connection: &NbdConnection) {
        if let Some(data) = self.rest.take() {
            self.push_data(data);
        }
        while self.gather.bytes() < SEND_BYTES && self.rest.is_none() {
            let Some(reply) = connection.next_reply() else { break };
            let structured = connection.session.structured;
            self.gather.header(MAX_HEADER_BYTES, |out| Some(put(out, structured, &reply)));
            self.requests += 1;
            self.bytes += reply.budget;
            if let ReplyBody::Data { data, .. } = reply.answer {
                self.push_data(data);
            }
        }
    }

    fn push_data(&mut self, data: Buf) {
        if data.len() <= SEND_BYTES {
            self.gather.payload(data);
        } else {
            self.gather.payload(data.slice(0..SEND_BYTES));
            self.rest = Some(data.slice(SEND_BYTES..data.len()));
        }
    }
}

/// Writes the header of a reply, and returns its length.
fn put(out: &mut [u8], structured: bool, reply: &QueuedReply) -> usize {
    match &reply.answer {
        ReplyBody::Data { offset, data } if structured => {
            put_data(out, reply.cookie, *offset, data.len() as u32)
        }
        ReplyBody::Done | ReplyBody::Data { .. } => put_simple(out, reply.cookie, 0),
        ReplyBody::Failed(error) if structured => put_error(out, reply.cookie, *error),
        ReplyBody::Failed(error) => put_simple(out, reply.cookie, error.0),
    }
}

/// Runs until the receiver has ended and every request in flight was answered, or its reply
/// discarded because the peer is gone.
pub(crate) async fn send_replies(connection: Rc<NbdConnection>) {
    let mut sender = Sender::default();
    let mut list = SendList::new();
    loop {
        let ready = || {
            let all_done = connection.ended.get() && connection.in_flight() == 0;
            (connection.has_replies() || all_done).then_some(())
        };
        if sender.rest.is_none() {
            connection.sender.wait_for(ready).await;
            if !connection.has_replies() {
                return;
            }
        }
        sender.fill(&connection);
        sender.gather.take_into(&mut list);
        if connection.broken.get() {
            list.clear();
            sender.rest = None;
        } else {
            connection.sending.set(true);
            connection.watch();
            let (result, rest) = connection.stream.send_all(list).await;
            list = rest;
            connection.sending.set(false);
            connection.progressed();
            if result.is_err() {
                connection.break_off();
                list.clear();
                sender.rest = None;
            }
        }
        let (requests, bytes) = if sender.rest.is_none() {
            (std::mem::take(&mut sender.requests), std::mem::take(&mut sender.bytes))
        } else {
            (0, 0)
        };
        connection.answered(requests, bytes);
    }
}
