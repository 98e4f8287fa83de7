//! Raw client that sends given bytes.

use flagstone_nbd::wire::option::{
    OptionReplyHeader, info, info_request, option, put_option, reply_type,
};
use flagstone_nbd::wire::reply::{ReplyHeader, chunk};
use flagstone_nbd::wire::request::{Cookie, NbdRequest};
use flagstone_runtime::net::{Address, Stream};
use flagstone_runtime::{BufMut, buf};

/// Negotiated features of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreed {
    pub structured: bool,
    pub sized: bool,
}

pub struct Peer {
    pub stream: Stream,
    pub agreed: Agreed,
}

/// Decoded reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

/// Bytes of a client up to its first request.
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
    NbdRequest { flags, command, cookie: Cookie(cookie), offset, len }.encode().to_vec()
}

/// Short messages do not need the memory that a test may exhaust.
async fn place(len: usize) -> BufMut {
    if len <= 4096 { buf::alloc_small(len) } else { buf::alloc(len).await }
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
            let header = OptionReplyHeader::decode(&bytes).unwrap().unwrap();
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
            let mut place = place(part.len()).await;
            place.copy_from_slice(part);
            self.stream.send_buf(place.freeze()).await?;
        }
        Ok(())
    }

    /// Next `len` bytes, or `None` when the server closes first.
    pub async fn read(&self, len: usize) -> Option<Vec<u8>> {
        let (result, buf) = self.stream.recv_exact(place(len).await).await;
        result.ok().map(|()| buf.to_vec())
    }

    /// True when the server closes without sending.
    pub async fn sees_end(&self) -> bool {
        self.read(1).await.is_none()
    }

    /// Next reply; `read_len` is the data length of a successful simple reply.
    pub async fn reply(&self, read_len: usize) -> Option<Reply> {
        let mut bytes = self.read(16).await?;
        if !self.agreed.structured || ReplyHeader::decode(&bytes).unwrap().is_some() {
            let Ok(Some(ReplyHeader::Simple { cookie, error })) = ReplyHeader::decode(&bytes)
            else {
                panic!("a simple reply was agreed");
            };
            let data = match error {
                0 => self.read(read_len).await?,
                _ => Vec::new(),
            };
            return Some(Reply { cookie: cookie.0, error, data });
        }
        bytes.extend(self.read(4).await?);
        let mut parts = Vec::new();
        loop {
            let Ok(Some(ReplyHeader::Chunk { cookie, kind, len, flags })) =
                ReplyHeader::decode(&bytes)
            else {
                panic!("a chunk was agreed");
            };
            let mut error = 0;
            match kind {
                chunk::OFFSET_DATA => {
                    let offset = self.read(8).await?;
                    parts.push((offset, self.read(len as usize - 8).await?));
                }
                chunk::ERROR => {
                    let body = self.read(len as usize).await?;
                    error = u32::from_be_bytes(body[..4].try_into().unwrap());
                }
                other => panic!("chunk of type {other}"),
            }
            if flags == 1 {
                parts.sort();
                let data = match error {
                    0 => parts.into_iter().flat_map(|(_, data)| data).collect(),
                    _ => Vec::new(),
                };
                return Some(Reply { cookie: cookie.0, error, data });
            }
            assert_eq!((flags, error), (0, 0), "an error ends its reply");
            bytes = self.read(20).await?;
        }
    }
}
