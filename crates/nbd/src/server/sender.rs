//! Sends replies: all that are ready go in one send, and at most one send is in flight.

use std::rc::Rc;

use flagstone_runtime::{Buf, BufMut, SendList, buf};

use crate::limits::{HEADER_BLOCK_BYTES, SEND_BYTES};
use crate::server::connection::{Answer, Connection, Reply};
use crate::wire::reply::{MAX_HEADER_BYTES, put_data, put_error, put_simple};

/// Carves headers from pooled blocks. Headers that follow each other leave as one segment.
struct Headers {
    /// `block[..open]` is written and not yet in a list.
    block: Option<BufMut>,
    open: usize,
}

impl Headers {
    /// Room for one header more; the block before is put into the list first.
    fn room(&mut self, list: &mut SendList) {
        let room = self.block.as_ref().map_or(0, |block| block.len() - self.open);
        if room < MAX_HEADER_BYTES {
            self.close(list);
            self.block = None;
            // Not from the pool: the replies that wait behind it may hold all of that.
            self.block = Some(buf::alloc_small(HEADER_BLOCK_BYTES));
        }
    }

    fn put(&mut self, structured: bool, reply: &Reply) {
        let block = self.block.as_mut().expect("room was made");
        let out = &mut block[self.open..];
        self.open += match &reply.answer {
            Answer::Data { offset, data } if structured => {
                put_data(out, reply.cookie, *offset, data.len() as u32)
            }
            Answer::Done | Answer::Data { .. } => put_simple(out, reply.cookie, 0),
            Answer::Failed(error) if structured => put_error(out, reply.cookie, *error),
            Answer::Failed(error) => put_simple(out, reply.cookie, error.0),
        };
    }

    /// Puts what is written into the list.
    fn close(&mut self, list: &mut SendList) {
        if let Some(block) = &mut self.block
            && self.open > 0
        {
            list.push(block.split_to(self.open).freeze());
            self.open = 0;
        }
    }
}

/// What one send carries, and the budget that comes back with it.
struct Sender {
    headers: Headers,
    /// Data of a reply whose front is sent already.
    rest: Option<Buf>,
    requests: usize,
    bytes: usize,
}

impl Sender {
    /// Fills the list with replies that are ready, up to [`SEND_BYTES`].
    fn fill(&mut self, connection: &Connection, list: &mut SendList) {
        if let Some(data) = self.rest.take() {
            self.push_data(data, list);
        }
        while list.bytes() < SEND_BYTES && self.rest.is_none() {
            let Some(reply) = connection.next_reply() else { break };
            self.headers.room(list);
            self.headers.put(connection.session.structured, &reply);
            self.requests += 1;
            self.bytes += reply.budget;
            if let Answer::Data { data, .. } = reply.answer {
                self.headers.close(list);
                self.push_data(data, list);
            }
        }
        self.headers.close(list);
    }

    fn push_data(&mut self, data: Buf, list: &mut SendList) {
        if data.len() <= SEND_BYTES {
            list.push(data);
        } else {
            list.push(data.slice(0..SEND_BYTES));
            self.rest = Some(data.slice(SEND_BYTES..data.len()));
        }
    }
}

/// Runs until the receiver has ended and all that was in flight is answered, or thrown away once
/// the peer takes nothing more.
pub(crate) async fn send_replies(connection: Rc<Connection>) {
    let headers = Headers { block: None, open: 0 };
    let mut sender = Sender { headers, rest: None, requests: 0, bytes: 0 };
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
        sender.fill(&connection, &mut list);
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
