//! Links of an emulated bed that can be cut: TCP connections that are relayed by this process.
//!
//! A cut link is silent, as a cable that was pulled: nothing is delivered and nothing is closed.
//! New connections are taken by the kernel, and get no answer. When the link heals, connections
//! that neither side has given up continue.

#![allow(
    clippy::disallowed_methods,
    reason = "the relay is a tool of the lab, outside of any executor"
)]

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::Error;

/// Bytes moved at a time in one direction of a connection.
const BLOCK_BYTES: usize = 64 << 10;
/// Interval at which a cut link is looked at again.
const LOOK: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct Shared {
    is_cut: AtomicBool,
    has_ended: AtomicBool,
    /// Both ends of each connection, until one of them closes it.
    open: Mutex<Vec<Arc<[TcpStream; 2]>>>,
}

/// A relay from a port of its own to another one of this machine; it ends when dropped.
#[derive(Debug)]
pub(crate) struct Link {
    port: u16,
    shared: Arc<Shared>,
}

impl Link {
    /// Relays connections to `port`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn to(port: u16) -> Result<Link, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::system("cannot listen"))?;
        let own = listener.local_addr().map_err(Error::system("cannot listen"))?.port();
        let shared = Arc::new(Shared::default());
        let relay = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if relay.has_ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let relay = relay.clone();
                thread::spawn(move || relay.serve(stream, port));
            }
        });
        Ok(Link { port: own, shared })
    }

    /// Port that clients connect to.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Cuts the link, or heals it.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.shared.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Closes all connections, as a client does that times out.
    pub(crate) fn close(&self) {
        for pair in self.shared.open.lock().drain(..) {
            for stream in &*pair {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        self.cut(false);
        self.close();
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn wait_while_cut(&self) {
        while self.is_cut.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
        }
    }

    fn serve(self: Arc<Shared>, client: TcpStream, port: u16) {
        self.wait_while_cut();
        let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let pair = Arc::new([client, server]);
        self.open.lock().push(pair.clone());
        let (relay, other) = (self.clone(), pair.clone());
        let back = thread::spawn(move || relay.copy(&other[1], &other[0]));
        let _ = self.copy(&pair[0], &pair[1]);
        let _ = back.join();
        self.open.lock().retain(|open| !Arc::ptr_eq(open, &pair));
    }

    /// Copies one direction until it ends. What was read before a cut is delivered after it.
    fn copy(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut block = vec![0; BLOCK_BYTES];
        let ended = loop {
            let length = match from.read(&mut block) {
                Ok(length) => length,
                Err(error) => break Err(error),
            };
            // An end is part of what a cut link does not deliver.
            self.wait_while_cut();
            if length == 0 {
                break Ok(());
            }
            if let Err(error) = to.write_all(&block[..length]) {
                break Err(error);
            }
        };
        let _ = to.shutdown(Shutdown::Write);
        if ended.is_err() {
            let _ = from.shutdown(Shutdown::Both);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_link_delivers_nothing_and_heals() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::to(listener.local_addr().unwrap().port()).unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", link.port())).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut byte = [0; 1];
        client.write_all(b"a").unwrap();
        server.read_exact(&mut byte).unwrap();
        link.cut(true);
        client.write_all(b"b").unwrap();
        server.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(server.read(&mut byte).is_err(), "nothing arrives");
        link.cut(false);
        server.set_read_timeout(None).unwrap();
        server.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"b", "it was on the way");
        link.close();
        assert_eq!(server.read(&mut byte).unwrap_or(0), 0, "closed");
    }

    #[test]
    fn closed_side_closes_other_side() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::to(listener.local_addr().unwrap().port()).unwrap();
        let client = TcpStream::connect(("127.0.0.1", link.port())).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        drop(client);
        assert_eq!(server.read(&mut [0; 1]).unwrap_or(0), 0);
    }
}
