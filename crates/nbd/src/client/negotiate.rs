//! The client's side of "Fixed newstyle negotiation", without I/O: bytes in, bytes out.

use crate::limits::{MAX_OPTION_REPLIES, MAX_OPTION_REPLY_BYTES, MAX_REQUEST_BYTES};
use crate::wire::expected::EXPECTED_CONTEXT;
use crate::wire::link::LinkId;
use crate::wire::option::{
    REPLY_HEADER_BYTES, ReplyHeader, info, info_request, meta_request, option, put_option,
    reply_type,
};
use crate::wire::{INIT_MAGIC, OPTION_MAGIC, handshake_flag, transmission_flag};
use crate::wire::{u16_at, u32_at, u64_at};

const GREETING_BYTES: usize = 18;
const TRAILING_ZEROES: usize = 124;

/// What the server said about the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// Size of the export, in bytes.
    pub size_bytes: u64,
    /// [`transmission_flag`]s.
    pub flags: u16,
    /// Reads are answered in chunks.
    pub structured: bool,
    /// The server ends a link's earlier connection before it serves the next.
    pub fences: bool,
    /// Minimum, preferred and maximum sizes, in bytes; the protocol's defaults if not said.
    pub block_sizes: [u32; 3],
}

impl ServerInfo {
    /// True when the [`transmission_flag`] is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// Whoever answers does not speak NBD.
    #[error("this is no NBD server: it begins with 0x{0:016x}")]
    NotNbd(u64),
    /// A server from before 2010.
    #[error("the server speaks the old form of the protocol only")]
    TooOld,
    /// There is no such export.
    #[error("the server has no export `{0}`")]
    UnknownExport(String),
    /// There is to be such an export: later attempts may find it.
    #[error("the server's export `{0}` is not available yet: it waits for its own device")]
    NotYet(String),
    /// The server refuses with an error reply.
    #[error("the server refuses (error {code}): {message}")]
    Refused {
        /// Number of the error, without its high bit ("Option reply types").
        code: u32,
        /// The server's words; may be empty.
        message: String,
    },
    /// The server's bytes are not the protocol.
    #[error("the server broke the protocol: {0}")]
    Broken(&'static str),
}

use NegotiationError::Broken;

/// What [`Negotiation::step`] leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    More,
    /// Something was consumed; send what was written and call again.
    Again,
    /// The transmission phase begins.
    Begin(ServerInfo),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    Structured,
    Link,
    Go,
    /// The export is not available: is it expected?
    Expected,
    ExportName,
}

/// One negotiation of a client.
#[derive(Debug)]
pub struct Negotiation {
    export: String,
    link: LinkId,
    state: State,
    zeroes: bool,
    replies: u32,
    size_and_flags: Option<(u64, u16)>,
    /// The server has said so of the export.
    expected: bool,
    info: ServerInfo,
}

impl Negotiation {
    /// For the export of that name, as the next connection of that link.
    pub fn new(export: &str, link: LinkId) -> Negotiation {
        let block_sizes = [1, 4096, MAX_REQUEST_BYTES];
        let (structured, fences) = (false, false);
        let info = ServerInfo { size_bytes: 0, flags: 0, structured, fences, block_sizes };
        Negotiation {
            export: export.to_owned(),
            link,
            state: State::Greeting,
            zeroes: true,
            replies: 0,
            size_and_flags: None,
            expected: false,
            info,
        }
    }

    /// Takes at most one message from the front of `input` and writes what to send to `out`.
    /// Returns how many bytes it took, and what follows.
    ///
    /// # Errors
    /// [`NegotiationError`]: close the connection.
    pub fn step(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Progress), NegotiationError> {
        match self.state {
            State::Greeting => self.greeting(input, out),
            State::ExportName => self.export_name(input),
            State::Structured | State::Link | State::Go | State::Expected => {
                self.option_reply(input, out)
            }
        }
    }

    fn greeting(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Progress), NegotiationError> {
        let (Some(init), Some(magic), Some(flags)) =
            (u64_at(input, 0), u64_at(input, 8), u16_at(input, 16))
        else {
            return match u64_at(input, 0) {
                Some(other) if other != INIT_MAGIC => Err(NegotiationError::NotNbd(other)),
                _ => Ok((0, Progress::More)),
            };
        };
        if init != INIT_MAGIC {
            return Err(NegotiationError::NotNbd(init));
        }
        if magic != OPTION_MAGIC || flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(NegotiationError::TooOld);
        }
        self.zeroes = flags & handshake_flag::NO_ZEROES == 0;
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        out.extend_from_slice(&u32::from(flags & known).to_be_bytes());
        put_option(out, option::STRUCTURED_REPLY, &[]);
        self.state = State::Structured;
        Ok((GREETING_BYTES, Progress::Again))
    }

    fn option_reply(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Progress), NegotiationError> {
        let header = ReplyHeader::decode(input).map_err(|_| Broken("not a reply to an option"))?;
        let Some(header) = header else { return Ok((0, Progress::More)) };
        let expected = match self.state {
            State::Structured => option::STRUCTURED_REPLY,
            State::Link => option::SET_META_CONTEXT,
            State::Expected => option::LIST_META_CONTEXT,
            _ => option::GO,
        };
        self.replies += 1;
        if header.option != expected || self.replies > MAX_OPTION_REPLIES {
            return Err(Broken("a reply to no option"));
        }
        if header.len > MAX_OPTION_REPLY_BYTES {
            return Err(Broken("a reply to an option is too long"));
        }
        let end = REPLY_HEADER_BYTES + header.len as usize;
        let Some(data) = input.get(REPLY_HEADER_BYTES..end) else {
            self.replies -= 1;
            return Ok((0, Progress::More));
        };
        let progress = match self.state {
            State::Structured => self.structured_reply(header.kind, out),
            State::Link => self.link_reply(header.kind, out),
            State::Expected => self.expected_reply(header.kind, data)?,
            _ => self.go_reply(header.kind, data, out)?,
        };
        Ok((end, progress))
    }

    fn structured_reply(&mut self, kind: u32, out: &mut Vec<u8>) -> Progress {
        // An error only means that there are no structured replies here.
        self.info.structured = kind == reply_type::ACK;
        if self.info.structured {
            // Metadata contexts, and so links, are for those who use structured replies.
            let request = meta_request(&self.export, &self.link.encode());
            put_option(out, option::SET_META_CONTEXT, &request);
            self.state = State::Link;
        } else {
            self.go(out);
        }
        Progress::Again
    }

    fn link_reply(&mut self, kind: u32, out: &mut Vec<u8>) -> Progress {
        match kind {
            reply_type::META_CONTEXT => self.info.fences = true,
            // Whether it is an ACK or a refusal, it is the last reply.
            _ => self.go(out),
        }
        Progress::Again
    }

    fn go(&mut self, out: &mut Vec<u8>) {
        put_option(out, option::GO, &info_request(&self.export, &[info::BLOCK_SIZE]));
        self.state = State::Go;
    }

    fn go_reply(
        &mut self,
        kind: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Progress, NegotiationError> {
        match kind {
            reply_type::INFO => {
                self.information(data)?;
                Ok(Progress::Again)
            }
            reply_type::ACK => {
                let (size, flags) = self.size_and_flags.ok_or(Broken("no size before the end"))?;
                self.begin(size, flags)
            }
            reply_type::ERR_UNSUP => {
                put_option(out, option::EXPORT_NAME, self.export.as_bytes());
                self.state = State::ExportName;
                Ok(Progress::Again)
            }
            // Metadata contexts, in which more is said, are for those who use structured replies.
            reply_type::ERR_UNKNOWN if self.info.structured => {
                let request = meta_request(&self.export, EXPECTED_CONTEXT);
                put_option(out, option::LIST_META_CONTEXT, &request);
                self.state = State::Expected;
                Ok(Progress::Again)
            }
            reply_type::ERR_UNKNOWN => Err(NegotiationError::UnknownExport(self.export.clone())),
            error if error & reply_type::ERROR_BIT != 0 => Err(NegotiationError::Refused {
                code: error & !reply_type::ERROR_BIT,
                message: String::from_utf8_lossy(data).into_owned(),
            }),
            _ => Err(Broken("an unknown reply to GO")),
        }
    }

    fn expected_reply(&mut self, kind: u32, data: &[u8]) -> Result<Progress, NegotiationError> {
        if kind == reply_type::META_CONTEXT {
            self.expected |= data.get(4..) == Some(EXPECTED_CONTEXT.as_bytes());
            return Ok(Progress::Again);
        }
        // Whether it is an ACK or a refusal, it is the last reply.
        let export = self.export.clone();
        Err(match self.expected {
            true => NegotiationError::NotYet(export),
            false => NegotiationError::UnknownExport(export),
        })
    }

    fn information(&mut self, data: &[u8]) -> Result<(), NegotiationError> {
        let broken = Broken("an information item of the wrong length");
        match (u16_at(data, 0), data.len()) {
            (Some(info::EXPORT), 12) => {
                self.size_and_flags = u64_at(data, 2).zip(u16_at(data, 10));
            }
            (Some(info::BLOCK_SIZE), 14) => {
                let fields = || Some([u32_at(data, 2)?, u32_at(data, 6)?, u32_at(data, 10)?]);
                self.info.block_sizes = fields().ok_or(broken)?;
            }
            (Some(info::EXPORT | info::BLOCK_SIZE) | None, _) => return Err(broken),
            _ => {}
        }
        Ok(())
    }

    fn export_name(&mut self, input: &[u8]) -> Result<(usize, Progress), NegotiationError> {
        let bytes = 10 + if self.zeroes { TRAILING_ZEROES } else { 0 };
        let (Some(size), Some(flags)) = (u64_at(input, 0), u16_at(input, 8)) else {
            return Ok((0, Progress::More));
        };
        if input.len() < bytes {
            return Ok((0, Progress::More));
        }
        Ok((bytes, self.begin(size, flags)?))
    }

    fn begin(&mut self, size_bytes: u64, flags: u16) -> Result<Progress, NegotiationError> {
        let [minimum, preferred, maximum] = self.info.block_sizes;
        if !minimum.is_power_of_two() || minimum > 1 << 16 || !preferred.is_power_of_two() {
            return Err(Broken("block sizes that are not powers of two up to 64 KiB"));
        }
        if maximum < minimum.max(512) {
            return Err(Broken("a maximum size below the minimum"));
        }
        if flags & transmission_flag::HAS_FLAGS == 0 {
            return Err(Broken("transmission flags without the first"));
        }
        (self.info.size_bytes, self.info.flags) = (size_bytes, flags);
        Ok(Progress::Begin(self.info))
    }
}
