//! Client side of "Fixed newstyle negotiation", without I/O: bytes in, bytes out.

use crate::handshake::ALLOCATION_CONTEXT;
use crate::limits::{MAX_OPTION_REPLIES, MAX_OPTION_REPLY_BYTES, MAX_REQUEST_BYTES};
use crate::wire::expected::EXPECTED_CONTEXT;
use crate::wire::link::LinkId;
use crate::wire::option::{
    OptionReplyHeader, REPLY_HEADER_BYTES, info, info_request, meta_request, option, put_option,
    reply_type,
};
use crate::wire::{INIT_MAGIC, OPTION_MAGIC, handshake_flag, transmission_flag};
use crate::wire::{u16_at, u32_at, u64_at};

const GREETING_BYTES: usize = 18;
const TRAILING_ZEROES: usize = 124;

/// Export properties reported by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// Size of the export, in bytes.
    pub size_bytes: u64,
    /// Bits of [`transmission_flag`].
    pub flags: u16,
    /// Reads are answered in chunks.
    pub structured: bool,
    /// The server ends a link's previous connection before it serves the next.
    pub fences: bool,
    /// BLOCK_STATUS reports which parts are holes (`base:allocation`).
    pub reports_allocation: bool,
    /// Minimum, preferred and maximum block sizes, in bytes; the protocol's defaults if absent.
    pub block_sizes: [u32; 3],
}

impl ServerInfo {
    /// True when the [`transmission_flag`] is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Reason why the negotiation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// The peer does not speak NBD.
    #[error("not an NBD server: its greeting begins with 0x{0:016x}")]
    NotNbd(u64),
    /// The server predates 2010.
    #[error("the server supports only the old form of the protocol")]
    TooOld,
    /// The export does not exist.
    #[error("the server has no export `{0}`")]
    UnknownExport(String),
    /// The export is expected: a later attempt may succeed.
    #[error("the server's export `{0}` is not available yet: it waits for its own device")]
    NotYet(String),
    /// The server sent an error reply.
    #[error("the server refuses (error {code}): {message}")]
    Refused {
        /// Error number without its high bit ("Option reply types").
        code: u32,
        /// Message of the server; may be empty.
        message: String,
    },
    /// The server requires TLS.
    #[error("the server requires TLS: write nbds:// and its options")]
    TlsRequired,
    /// The server does not speak TLS.
    #[error("the server refuses TLS: {0}")]
    NoTls(String),
    /// The server violated the protocol.
    #[error("the server violated the protocol: {0}")]
    Broken(&'static str),
}

use NegotiationError::Broken;

/// Next action after [`Negotiation::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NegotiationStep {
    /// Receive more bytes.
    More,
    /// A message was consumed: send the output and call again.
    Again,
    /// Begin TLS, then call [`Negotiation::secured`]. Nothing may have been received yet.
    StartTls,
    /// The transmission phase begins.
    Begin(ServerInfo),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    StartTls,
    Structured,
    /// The link and the allocation of the export.
    Contexts,
    Go,
    /// The export is unavailable: ask whether it is expected.
    Expected,
    ExportName,
}

/// Bytes consumed, and the next action.
pub type StepResult = Result<(usize, NegotiationStep), NegotiationError>;

/// Negotiation state of a client.
#[derive(Debug)]
pub struct Negotiation {
    export: String,
    link: LinkId,
    state: State,
    /// The connection has to be encrypted.
    tls: bool,
    zeroes: bool,
    replies: u32,
    size_and_flags: Option<(u64, u16)>,
    /// The server reported the export as expected.
    expected: bool,
    info: ServerInfo,
}

impl Negotiation {
    /// Negotiates the named export for the next connection of `link`.
    pub fn new(export: &str, link: LinkId) -> Negotiation {
        let block_sizes = [1, 4096, MAX_REQUEST_BYTES];
        let info = ServerInfo {
            size_bytes: 0,
            flags: 0,
            structured: false,
            fences: false,
            reports_allocation: false,
            block_sizes,
        };
        Negotiation {
            export: export.to_owned(),
            link,
            state: State::Greeting,
            tls: false,
            zeroes: true,
            replies: 0,
            size_and_flags: None,
            expected: false,
            info,
        }
    }

    /// Requires TLS.
    #[must_use]
    pub fn with_tls(mut self) -> Negotiation {
        self.tls = true;
        self
    }

    /// Continues after the TLS handshake.
    pub fn secured(&mut self, out: &mut Vec<u8>) {
        put_option(out, option::STRUCTURED_REPLY, &[]);
        self.state = State::Structured;
    }

    /// Consumes at most one message from the front of `input`, and writes output to `out`. Returns
    /// the bytes consumed and the next action.
    ///
    /// # Errors
    /// [`NegotiationError`]: close the connection.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> StepResult {
        match self.state {
            State::Greeting => self.greeting(input, out),
            State::ExportName => self.export_name(input),
            State::StartTls | State::Structured | State::Contexts | State::Go | State::Expected => {
                self.option_reply(input, out)
            }
        }
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> StepResult {
        let (Some(init), Some(magic), Some(flags)) =
            (u64_at(input, 0), u64_at(input, 8), u16_at(input, 16))
        else {
            return match u64_at(input, 0) {
                Some(other) if other != INIT_MAGIC => Err(NegotiationError::NotNbd(other)),
                _ => Ok((0, NegotiationStep::More)),
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
        if self.tls {
            put_option(out, option::STARTTLS, &[]);
            self.state = State::StartTls;
        } else {
            put_option(out, option::STRUCTURED_REPLY, &[]);
            self.state = State::Structured;
        }
        Ok((GREETING_BYTES, NegotiationStep::Again))
    }

    fn option_reply(&mut self, input: &[u8], out: &mut Vec<u8>) -> StepResult {
        let header =
            OptionReplyHeader::decode(input).map_err(|_| Broken("not a reply to an option"))?;
        let Some(header) = header else { return Ok((0, NegotiationStep::More)) };
        let expected = match self.state {
            State::StartTls => option::STARTTLS,
            State::Structured => option::STRUCTURED_REPLY,
            State::Contexts => option::SET_META_CONTEXT,
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
            return Ok((0, NegotiationStep::More));
        };
        let progress = match self.state {
            State::StartTls => tls_reply(header.kind, data)?,
            State::Structured => self.structured_reply(header.kind, out),
            State::Contexts => self.contexts_reply(header.kind, data, out),
            State::Expected => self.expected_reply(header.kind, data)?,
            _ => self.go_reply(header.kind, data, out)?,
        };
        Ok((end, progress))
    }

    fn structured_reply(&mut self, kind: u32, out: &mut Vec<u8>) -> NegotiationStep {
        // An error only means that the server lacks structured replies.
        self.info.structured = kind == reply_type::ACK;
        if self.info.structured {
            // Metadata contexts, and therefore links, require structured replies.
            let queries = [self.link.encode(), ALLOCATION_CONTEXT.to_owned()];
            let request = meta_request(&self.export, &queries.each_ref().map(String::as_str));
            put_option(out, option::SET_META_CONTEXT, &request);
            self.state = State::Contexts;
        } else {
            self.go(out);
        }
        NegotiationStep::Again
    }

    fn contexts_reply(&mut self, kind: u32, data: &[u8], out: &mut Vec<u8>) -> NegotiationStep {
        match (kind, data.get(4..)) {
            (reply_type::META_CONTEXT, Some(name)) if name == ALLOCATION_CONTEXT.as_bytes() => {
                self.info.reports_allocation = true;
            }
            (reply_type::META_CONTEXT, name) => {
                self.info.fences |= name == Some(self.link.encode().as_bytes());
            }
            // ACK or refusal: either is the last reply.
            _ => self.go(out),
        }
        NegotiationStep::Again
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
    ) -> Result<NegotiationStep, NegotiationError> {
        match kind {
            reply_type::INFO => {
                self.information(data)?;
                Ok(NegotiationStep::Again)
            }
            reply_type::ACK => {
                let (size, flags) = self.size_and_flags.ok_or(Broken("no size before the end"))?;
                self.begin(size, flags)
            }
            reply_type::ERR_UNSUP => {
                put_option(out, option::EXPORT_NAME, self.export.as_bytes());
                self.state = State::ExportName;
                Ok(NegotiationStep::Again)
            }
            // The metadata context with the reason requires structured replies.
            reply_type::ERR_UNKNOWN if self.info.structured => {
                let request = meta_request(&self.export, &[EXPECTED_CONTEXT]);
                put_option(out, option::LIST_META_CONTEXT, &request);
                self.state = State::Expected;
                Ok(NegotiationStep::Again)
            }
            reply_type::ERR_UNKNOWN => Err(NegotiationError::UnknownExport(self.export.clone())),
            reply_type::ERR_TLS_REQD => Err(NegotiationError::TlsRequired),
            error if error & reply_type::ERROR_BIT != 0 => Err(NegotiationError::Refused {
                code: error & !reply_type::ERROR_BIT,
                message: String::from_utf8_lossy(data).into_owned(),
            }),
            _ => Err(Broken("an unknown reply to GO")),
        }
    }

    fn expected_reply(
        &mut self,
        kind: u32,
        data: &[u8],
    ) -> Result<NegotiationStep, NegotiationError> {
        if kind == reply_type::META_CONTEXT {
            self.expected |= data.get(4..) == Some(EXPECTED_CONTEXT.as_bytes());
            return Ok(NegotiationStep::Again);
        }
        // ACK or refusal: either is the last reply.
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

    fn export_name(&mut self, input: &[u8]) -> StepResult {
        let bytes = 10 + if self.zeroes { TRAILING_ZEROES } else { 0 };
        let (Some(size), Some(flags)) = (u64_at(input, 0), u16_at(input, 8)) else {
            return Ok((0, NegotiationStep::More));
        };
        if input.len() < bytes {
            return Ok((0, NegotiationStep::More));
        }
        Ok((bytes, self.begin(size, flags)?))
    }

    fn begin(&mut self, size_bytes: u64, flags: u16) -> Result<NegotiationStep, NegotiationError> {
        let [minimum, preferred, maximum] = self.info.block_sizes;
        if !minimum.is_power_of_two() || minimum > 1 << 16 || !preferred.is_power_of_two() {
            return Err(Broken("block sizes that are not powers of two up to 64 KiB"));
        }
        if maximum < minimum.max(512) {
            return Err(Broken("a maximum size below the minimum"));
        }
        if flags & transmission_flag::HAS_FLAGS == 0 {
            return Err(Broken("transmission flags without HAS_FLAGS"));
        }
        (self.info.size_bytes, self.info.flags) = (size_bytes, flags);
        Ok(NegotiationStep::Begin(self.info))
    }
}

/// Handles the answer to STARTTLS. A server that refuses it is not used without.
fn tls_reply(kind: u32, data: &[u8]) -> Result<NegotiationStep, NegotiationError> {
    match kind {
        reply_type::ACK if data.is_empty() => Ok(NegotiationStep::StartTls),
        error if error & reply_type::ERROR_BIT != 0 => {
            Err(NegotiationError::NoTls(String::from_utf8_lossy(data).into_owned()))
        }
        _ => Err(Broken("an unknown reply to STARTTLS")),
    }
}
