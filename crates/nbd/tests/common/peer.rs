//! A plain client that says exactly the bytes that a test wants it to say.

use flagstone_nbd::wire::option::{
    ReplyHeader, info, info_request, option, put_option, reply_type,
};
use flagstone_nbd::wire::reply::{Header, chunk};
use flagstone_nbd::wire::request::{Cookie, Request};
use flagstone_runtime::net::{Address, Stream};
use flagstone_runtime::{Buf, buf};

/// What a client agrees on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreed {
    pub structured: bool,
    pub sized: bool,
}

pub struct Peer {
    pub stream: Stream,
    pub agreed: Agreed,
}

/// A reply without its framing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

/// All that a client says before its first request.
pub fn hello(name: &str, agreed: Agreed) -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    if agreed.structured {
        put_option(&mut bytes, option::STRUCTURED_REPLY, &[]);
    }
    let items: &[u16] = if agreed.sized { &[info::BLOCK_SIZE] } else { &[] };
    put_option(&mut bytes, option::GO, &info_request(name, items));
    bytes
}

pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    Request { flags, command, cookie: Cookie(cookie), offset, len }.encode().to_vec()
}

impl Peer {
    /// Connects and reads the greeting.
    pub async fn greeted(address: &Address) -> Peer {
        let stream = Stream::connect(address).await.unwrap();
        let peer = Peer { stream, agreed: Agreed::default() };
        peer.read(18).await.unwrap();
        peer
    }

    /// Connects and negotiates the export `disk`.
    pub async fn begun(address: &Address, agreed: Agreed) -> Peer {
        let mut peer = Peer::greeted(address).await;
        peer.agreed = agreed;
        peer.send(&hello("disk", agreed)).await;
        loop {
            let bytes = peer.read(20).await.unwrap();
            let header = ReplyHeader::decode(&bytes).unwrap().unwrap();
            peer.read(header.len as usize).await.unwrap();
            if header.option == option::GO && header.kind != reply_type::INFO {
                assert_eq!(header.kind, reply_type::ACK);
                return peer;
            }
        }
    }

    pub async fn send(&self, bytes: &[u8]) {
        self.try_send(bytes).await.unwrap();
    }

    pub async fn try_send(&self, bytes: &[u8]) -> std::io::Result<()> {
        for part in bytes.chunks(1 << 20) {
            self.stream.send_buf(Buf::copy_of(part).unwrap()).await?;
        }
        Ok(())
    }

    /// The next `len` bytes, or `None` when the server closes before.
    pub async fn read(&self, len: usize) -> Option<Vec<u8>> {
        let (result, buf) = self.stream.recv_exact(buf::alloc(len).await).await;
        result.ok().map(|()| buf.to_vec())
    }

    /// True when the server closes without another byte.
    pub async fn sees_end(&self) -> bool {
        self.read(1).await.is_none()
    }

    /// The next reply; `read_len` is the length of data to expect of a successful simple reply.
    pub async fn reply(&self, read_len: usize) -> Option<Reply> {
        let mut bytes = self.read(16).await?;
        if !self.agreed.structured || Header::decode(&bytes).unwrap().is_some() {
            let Ok(Some(Header::Simple { cookie, error })) = Header::decode(&bytes) else {
                panic!("a simple reply was agreed");
            };
            let data = match error {
                0 => self.read(read_len).await?,
                _ => Vec::new(),
            };
            return Some(Reply { cookie: cookie.0, error, data });
        }
        bytes.extend(self.read(4).await?);
        let Ok(Some(Header::Chunk { cookie, kind, len, flags })) = Header::decode(&bytes) else {
            panic!("a chunk was agreed");
        };
        assert_eq!(flags, 1, "every reply of ours is one chunk");
        let body = self.read(len as usize).await?;
        let (error, data) = match kind {
            chunk::OFFSET_DATA => (0, body[8..].to_vec()),
            chunk::ERROR => (u32::from_be_bytes(body[..4].try_into().unwrap()), Vec::new()),
            other => panic!("chunk of type {other}"),
        };
        Some(Reply { cookie: cookie.0, error, data })
    }
}
