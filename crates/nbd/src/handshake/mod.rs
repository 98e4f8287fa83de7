//! Server side of "Fixed newstyle negotiation", without I/O: bytes in, bytes out.
//!
//! Invariants: it never panics and never buffers more than one option, whatever the input. Every
//! option gets the reply that the protocol specifies, or the connection is closed where the
//! protocol has none.

use std::sync::Arc;
use std::time::Duration;

use crate::export::{Export, ExportLookup, Exports};
use crate::limits::{
    MAX_OPTION_BYTES, MAX_OPTIONS, MAX_OPTIONS_EACH, MAX_STRING_BYTES, NEGOTIATION_TIMEOUT,
    NEGOTIATION_TIMEOUT_EACH,
};
use crate::session::NbdSession;
use crate::wire::expected::EXPECTED_CONTEXT;
use crate::wire::link::{LINK_CONTEXT, LinkId};
use crate::wire::option::{
    InfoRequest, InvalidOption, MetaRequest, OPTION_HEADER_BYTES, OptionHeader, info, option,
    put_info, put_reply, reply_type, string,
};
use crate::wire::{INIT_MAGIC, OPTION_MAGIC, handshake_flag, u32_at};

const SERVER_FLAGS: u16 = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
const TRAILING_ZEROES: usize = 124;
/// Identifier of a selected link context.
const LINK_CONTEXT_ID: u32 = 1;
/// Identifier of a selected `base:allocation`.
pub(crate) const ALLOCATION_CONTEXT_ID: u32 = 2;
/// "Metadata contexts": the namespace of the protocol, and its context.
const ALLOCATION_NAMESPACE: &str = "base:";
pub(crate) const ALLOCATION_CONTEXT: &str = "base:allocation";

/// Reason why a negotiation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The client sent ABORT.
    #[error("the client aborted the negotiation")]
    Aborted,
    /// Client flags that the server did not offer.
    #[error("unknown client flags 0x{0:08x}")]
    UnknownFlags(u32),
    /// Invalid magic: the stream is out of sync.
    #[error("not an option: 0x{0:016x}")]
    BadMagic(u64),
    /// Option data longer than [`MAX_OPTION_BYTES`].
    #[error("an option of {0} bytes is too long")]
    OptionTooLong(u32),
    /// More than [`MAX_OPTIONS`] options, and [`MAX_OPTIONS_EACH`] for each export.
    #[error("more than {MAX_OPTIONS} options, and {MAX_OPTIONS_EACH} for each export")]
    TooManyOptions,
    /// EXPORT_NAME, which has no error reply, before the TLS that is required.
    #[error("TLS is required")]
    TlsRequired,
    /// The TLS handshake failed, or data arrived before it that nothing protects.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// Unknown export in EXPORT_NAME, which has no error reply.
    #[error("no such export")]
    UnknownExport,
}

/// Refused request of a client, for the log. The negotiation may continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdRefusal {
    /// Name of the export, as received; empty if the client named none.
    pub export: String,
    pub reason: NbdRefusalReason,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NbdRefusalReason {
    #[error("no such export")]
    UnknownExport,
    /// The device of the export is not open yet.
    #[error("this export is not available yet")]
    NotYet,
    /// The device of the export cannot be reached, or another node serves it.
    #[error("the device of this export cannot be reached now")]
    Unreachable,
    /// The client asked for TLS, which its listener does not have.
    #[error("TLS is not configured")]
    Tls,
    /// The client asked for something before TLS, which is required.
    #[error("the client does not begin TLS, which is required")]
    TlsRequired,
    /// The export has a list of clients, and this one is not on it.
    #[error("the export does not admit this client")]
    NotAdmitted,
    #[error("{0}")]
    Failed(HandshakeError),
    /// The negotiation took too long.
    #[error("the client did not complete the negotiation in time")]
    TimedOut,
    /// Too many negotiations of its address are in progress.
    #[error("too many negotiations of this address are in progress")]
    Busy,
    /// The client was admitted, but commands of earlier connections to the export have not ended.
    #[error("commands of an earlier connection have not ended in time")]
    Unfinished,
}

impl NbdRefusalReason {
    /// Names of all reasons.
    pub const NAMES: [&str; 11] = [
        "unknown-export",
        "not-yet",
        "unreachable",
        "tls",
        "tls-required",
        "tls-failed",
        "not-admitted",
        "protocol",
        "timeout",
        "busy",
        "unfinished",
    ];

    /// Name, for metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            NbdRefusalReason::UnknownExport => "unknown-export",
            NbdRefusalReason::NotYet => "not-yet",
            NbdRefusalReason::Unreachable => "unreachable",
            NbdRefusalReason::Tls => "tls",
            NbdRefusalReason::TlsRequired => "tls-required",
            NbdRefusalReason::NotAdmitted => "not-admitted",
            NbdRefusalReason::Failed(HandshakeError::Tls(_)) => "tls-failed",
            NbdRefusalReason::Failed(_) => "protocol",
            NbdRefusalReason::TimedOut => "timeout",
            NbdRefusalReason::Busy => "busy",
            NbdRefusalReason::Unfinished => "unfinished",
        }
    }
}

/// Next action after [`Handshake::step`].
#[derive(Debug)]
pub enum HandshakeStep {
    /// Receive more bytes.
    More,
    /// A message was consumed: call again.
    Again,
    /// Nothing was consumed: ask whether the devices of these exports can be reached, and call
    /// again.
    Check(Vec<Arc<Export>>),
    /// Send the output, begin TLS, and call [`Handshake::secured`]. Nothing that was received in
    /// plain text may be used afterwards.
    StartTls,
    /// The transmission phase begins.
    Begin(NbdSession),
    /// Send the output, then close.
    Close(HandshakeError),
}

/// Encryption of a negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// There is none.
    Off,
    /// The client may begin it.
    Offered,
    /// The client has to begin it.
    Required,
    /// It has begun, and the client has proven these names.
    Secured(Vec<String>),
}

/// Negotiation state of a server.
#[derive(Debug)]
pub struct Handshake {
    exports: Arc<Exports>,
    security: Security,
    flags: Option<u32>,
    structured: bool,
    options: u32,
    /// Selected link, and the export for which it was selected.
    link: Option<(String, LinkId)>,
    /// Export for which `base:allocation` was selected.
    allocation: Option<String>,
    /// Export that the client named last.
    named: String,
    refusal: Option<NbdRefusal>,
    /// The exports of the next option were checked.
    is_checked: bool,
    /// Export that was refused for now: a later attempt may succeed.
    refused_for_now: Option<String>,
}

impl Handshake {
    /// Starts a negotiation: writes the greeting to `out`.
    pub fn new(exports: Arc<Exports>, out: &mut Vec<u8>) -> Handshake {
        out.extend_from_slice(&INIT_MAGIC.to_be_bytes());
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&SERVER_FLAGS.to_be_bytes());
        Handshake {
            exports,
            security: Security::Off,
            flags: None,
            structured: false,
            options: 0,
            link: None,
            allocation: None,
            named: String::new(),
            refusal: None,
            is_checked: false,
            refused_for_now: None,
        }
    }

    /// Sets the encryption that is offered or required.
    #[must_use]
    pub fn with_security(mut self, security: Security) -> Handshake {
        self.security = security;
        self
    }

    /// Continues after the TLS handshake. Nothing that was negotiated in plain text is kept.
    pub fn secured(&mut self, names: Vec<String>) {
        self.security = Security::Secured(names);
        self.structured = false;
        (self.link, self.allocation, self.refused_for_now) = (None, None, None);
        self.named.clear();
    }

    fn admits(&self, export: &Export) -> bool {
        match &self.security {
            Security::Secured(names) => export.admits(names),
            Security::Off | Security::Offered | Security::Required => export.admits(&[]),
        }
    }

    /// The export that was found, if this client may use it.
    fn admitted(&self, found: ExportLookup) -> Result<Arc<Export>, NbdRefusalReason> {
        match found {
            ExportLookup::Here(export) if self.admits(&export) => match export.reach.is_lost() {
                true => Err(NbdRefusalReason::Unreachable),
                false => Ok(export),
            },
            ExportLookup::Here(_) if self.security == Security::Offered => {
                Err(NbdRefusalReason::TlsRequired)
            }
            ExportLookup::Here(_) => Err(NbdRefusalReason::NotAdmitted),
            ExportLookup::Expected => Err(NbdRefusalReason::NotYet),
            ExportLookup::Nothing => Err(NbdRefusalReason::UnknownExport),
        }
    }

    /// The request that the last [`Handshake::step`] refused.
    pub fn take_refusal(&mut self) -> Option<NbdRefusal> {
        self.refusal.take()
    }

    pub fn refusal(&self, reason: NbdRefusalReason) -> NbdRefusal {
        NbdRefusal { export: self.named.clone(), reason }
    }

    /// Options that a client may send: a few for each export that it lists.
    fn options_max(&self) -> u32 {
        self.exports_count().saturating_mul(MAX_OPTIONS_EACH).saturating_add(MAX_OPTIONS)
    }

    /// Time that a client may take for all steps, which grows like the options.
    pub fn time_max(&self) -> Duration {
        let each = NEGOTIATION_TIMEOUT_EACH.saturating_mul(self.exports_count());
        NEGOTIATION_TIMEOUT.saturating_add(each)
    }

    fn exports_count(&self) -> u32 {
        u32::try_from(self.exports.all().len()).unwrap_or(u32::MAX)
    }

    /// Consumes at most one message from the front of `input`, and writes the reply to `out`.
    /// Returns the bytes consumed and the next action.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, HandshakeStep) {
        if self.flags.is_none() {
            return self.client_flags(input);
        }
        let header = match OptionHeader::decode(input) {
            Ok(Some(header)) => header,
            Ok(None) => return (0, HandshakeStep::More),
            Err(bad) => return (0, HandshakeStep::Close(HandshakeError::BadMagic(bad.0))),
        };
        if header.len > MAX_OPTION_BYTES {
            return (0, HandshakeStep::Close(HandshakeError::OptionTooLong(header.len)));
        }
        let end = OPTION_HEADER_BYTES + header.len as usize;
        let Some(data) = input.get(OPTION_HEADER_BYTES..end) else {
            return (0, HandshakeStep::More);
        };
        if !std::mem::take(&mut self.is_checked) {
            let in_doubt = self.in_doubt(header.option, data);
            if !in_doubt.is_empty() {
                self.is_checked = true;
                return (0, HandshakeStep::Check(in_doubt));
            }
        }
        self.options += 1;
        if self.options > MAX_OPTIONS && self.options > self.options_max() {
            return (end, HandshakeStep::Close(HandshakeError::TooManyOptions));
        }
        (end, self.answer(header.option, data, out))
    }

    /// Exports that an option is about whose devices may be unreachable.
    fn in_doubt(&self, kind: u32, data: &[u8]) -> Vec<Arc<Export>> {
        let name = match kind {
            _ if self.security == Security::Required => return Vec::new(),
            option::LIST => {
                let mut exports = self.exports.all();
                exports.retain(|export| self.admits(export) && export.reach.is_in_doubt());
                return exports;
            }
            option::EXPORT_NAME => string(data),
            option::INFO | option::GO => InfoRequest::decode(data).map(|request| request.name),
            option::SET_META_CONTEXT => MetaRequest::decode(data, "").map(|request| request.name),
            _ => return Vec::new(),
        };
        match name.map(|name| self.exports.find(name)) {
            Ok(ExportLookup::Here(export)) if self.admits(&export) => {
                Some(export).filter(|export| export.reach.is_in_doubt()).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, HandshakeStep) {
        let Some(flags) = u32_at(input, 0) else { return (0, HandshakeStep::More) };
        if flags & !u32::from(SERVER_FLAGS) != 0 {
            return (4, HandshakeStep::Close(HandshakeError::UnknownFlags(flags)));
        }
        self.flags = Some(flags);
        (4, HandshakeStep::Again)
    }

    fn answer(&mut self, kind: u32, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        if self.security == Security::Required && !matches!(kind, option::STARTTLS | option::ABORT)
        {
            self.refusal = Some(self.refusal(NbdRefusalReason::TlsRequired));
            if kind == option::EXPORT_NAME {
                return HandshakeStep::Close(HandshakeError::TlsRequired);
            }
            put_reply(out, kind, reply_type::ERR_TLS_REQD, b"begin TLS first");
            return HandshakeStep::Again;
        }
        let outcome = match kind {
            option::STARTTLS => match (&self.security, no_data(data)) {
                (Security::Offered | Security::Required, Ok(())) => {
                    put_reply(out, kind, reply_type::ACK, &[]);
                    return HandshakeStep::StartTls;
                }
                (Security::Off, _) => {
                    self.refusal = Some(self.refusal(NbdRefusalReason::Tls));
                    put_reply(out, kind, reply_type::ERR_UNSUP, b"TLS is not configured");
                    Ok(())
                }
                (_, outcome) => outcome.and(Err(InvalidOption::Unexpected)),
            },
            option::EXPORT_NAME => return self.export_name(data, out),
            option::ABORT => {
                put_reply(out, kind, reply_type::ACK, &[]);
                return HandshakeStep::Close(HandshakeError::Aborted);
            }
            option::LIST => self.list(data, out),
            option::INFO => self.describe(kind, data, out).map(drop),
            option::GO => match self.describe(kind, data, out) {
                Ok(Some(session)) => return HandshakeStep::Begin(session),
                other => other.map(drop),
            },
            option::STRUCTURED_REPLY => no_data(data).map(|()| {
                self.structured = true;
                put_reply(out, kind, reply_type::ACK, &[]);
            }),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(kind, data, out)
            }
            // Extended headers and unknown options are unsupported.
            _ => {
                put_reply(out, kind, reply_type::ERR_UNSUP, b"this option is not supported");
                Ok(())
            }
        };
        if let Err(invalid) = outcome {
            put_reply(out, kind, reply_type::ERR_INVALID, invalid.to_string().as_bytes());
        }
        HandshakeStep::Again
    }

    fn session(&self, export: &Arc<Export>, sized: bool) -> NbdSession {
        let link = self.link.as_ref().filter(|(name, _)| *name == export.name);
        let link = link.map(|(_, link)| *link);
        let mut session = NbdSession::new(export.clone(), self.structured, sized);
        session.link = link;
        session.reports_allocation = self.allocation.as_ref() == Some(&export.name);
        session
    }

    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>) -> HandshakeStep {
        self.named = String::from_utf8_lossy(&data[..data.len().min(MAX_STRING_BYTES)]).into();
        let found = string(data).map_or(ExportLookup::Nothing, |name| self.exports.find(name));
        let export = match self.admitted(found) {
            Ok(export) => export,
            Err(reason) => {
                self.refusal = Some(self.refusal(reason));
                return HandshakeStep::Close(HandshakeError::UnknownExport);
            }
        };
        out.extend_from_slice(&export.device.geometry().size_bytes.to_be_bytes());
        out.extend_from_slice(&export.transmission_flags(self.structured).to_be_bytes());
        if self.flags.unwrap_or(0) & u32::from(handshake_flag::NO_ZEROES) == 0 {
            out.resize(out.len() + TRAILING_ZEROES, 0);
        }
        HandshakeStep::Begin(self.session(&export, false))
    }

    fn list(&self, data: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidOption> {
        no_data(data)?;
        let all = self.exports.all();
        for export in all.iter().filter(|one| self.admits(one) && !one.reach.is_lost()) {
            let mut entry = (export.name.len() as u32).to_be_bytes().to_vec();
            entry.extend_from_slice(export.name.as_bytes());
            entry.extend_from_slice(export.description.as_bytes());
            put_reply(out, option::LIST, reply_type::SERVER, &entry);
        }
        put_reply(out, option::LIST, reply_type::ACK, &[]);
        Ok(())
    }

    /// Finds an export, or writes an error reply ("The requested export is not available").
    fn find(&mut self, kind: u32, name: &str, out: &mut Vec<u8>) -> Option<Arc<Export>> {
        name.clone_into(&mut self.named);
        let reason = match self.admitted(self.exports.find(name)) {
            Ok(export) => {
                self.refused_for_now = None;
                return Some(export);
            }
            Err(reason) => reason,
        };
        let for_now = matches!(reason, NbdRefusalReason::NotYet | NbdRefusalReason::Unreachable);
        self.refused_for_now = for_now.then(|| name.to_owned());
        let (code, why): (u32, &[u8]) = match reason {
            NbdRefusalReason::TlsRequired => {
                (reply_type::ERR_TLS_REQD, b"this export requires TLS: begin TLS first")
            }
            NbdRefusalReason::NotAdmitted => {
                (reply_type::ERR_POLICY, b"this export does not admit this client")
            }
            NbdRefusalReason::NotYet => {
                (reply_type::ERR_UNKNOWN, b"this export is not available yet; try again later")
            }
            NbdRefusalReason::Unreachable => {
                (reply_type::ERR_UNKNOWN, b"this export cannot be reached now; try again later")
            }
            _ => (reply_type::ERR_UNKNOWN, b"no such export"),
        };
        self.refusal = Some(self.refusal(reason));
        put_reply(out, kind, code, why);
        None
    }

    /// Handles INFO and GO: returns the session for a GO, or `None` after an error reply.
    fn describe(
        &mut self,
        kind: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<NbdSession>, InvalidOption> {
        let request = InfoRequest::decode(data)?;
        let Some(export) = self.find(kind, request.name, out) else { return Ok(None) };
        let size = export.device.geometry().size_bytes.to_be_bytes();
        let flags = export.transmission_flags(self.structured).to_be_bytes();
        put_info(out, kind, info::EXPORT, &[&size, &flags]);
        if request.wants_name {
            put_info(out, kind, info::NAME, &[export.name.as_bytes()]);
        }
        if request.wants_description && !export.description.is_empty() {
            put_info(out, kind, info::DESCRIPTION, &[export.description.as_bytes()]);
        }
        if request.wants_block_size {
            let [minimum, preferred, maximum] = export.block_sizes().map(u32::to_be_bytes);
            put_info(out, kind, info::BLOCK_SIZE, &[&minimum, &preferred, &maximum]);
        }
        put_reply(out, kind, reply_type::ACK, &[]);
        Ok(Some(self.session(&export, request.wants_block_size)))
    }

    /// Two contexts can be selected: a link and `base:allocation`. Two can be listed: the latter,
    /// and the context of an expected export.
    fn meta_context(
        &mut self,
        kind: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), InvalidOption> {
        let selects = kind == option::SET_META_CONTEXT;
        if selects {
            (self.link, self.allocation) = (None, None);
        }
        if !selects && self.is_expected(data)? {
            // A listed context has no identifier.
            let context = [&0_u32.to_be_bytes(), EXPECTED_CONTEXT.as_bytes()].concat();
            put_reply(out, kind, reply_type::META_CONTEXT, &context);
            put_reply(out, kind, reply_type::ACK, &[]);
            return Ok(());
        }
        let request = MetaRequest::decode(data, LINK_CONTEXT)?;
        if !self.structured && selects {
            put_reply(out, kind, reply_type::ERR_INVALID, b"negotiate structured replies first");
            return Ok(());
        }
        let Some(export) = self.find(kind, request.name, out) else { return Ok(()) };
        if let Some(link) = request.query.and_then(LinkId::decode).filter(|_| selects) {
            self.link = Some((export.name.clone(), link));
            let mut context = LINK_CONTEXT_ID.to_be_bytes().to_vec();
            context.extend_from_slice(link.encode().as_bytes());
            put_reply(out, kind, reply_type::META_CONTEXT, &context);
        }
        let query = MetaRequest::decode(data, ALLOCATION_NAMESPACE)?.query;
        // A list may ask for a whole namespace, or for everything with no query.
        let lists = !selects && (query == Some(ALLOCATION_NAMESPACE) || !has_queries(data));
        if lists || query == Some(ALLOCATION_CONTEXT) {
            if selects {
                self.allocation = Some(export.name.clone());
            }
            let mut context =
                if selects { ALLOCATION_CONTEXT_ID } else { 0 }.to_be_bytes().to_vec();
            context.extend_from_slice(ALLOCATION_CONTEXT.as_bytes());
            put_reply(out, kind, reply_type::META_CONTEXT, &context);
        }
        put_reply(out, kind, reply_type::ACK, &[]);
        Ok(())
    }
}

impl Handshake {
    /// True if the query asks whether an export is expected, and it is: see
    /// [`crate::wire::expected`].
    fn is_expected(&self, data: &[u8]) -> Result<bool, InvalidOption> {
        let request = MetaRequest::decode(data, EXPECTED_CONTEXT)?;
        let asked = request.query == Some(EXPECTED_CONTEXT);
        // What was refused last may have become available meanwhile.
        let refused = self.refused_for_now.as_deref() == Some(request.name);
        let expected = || matches!(self.exports.find(request.name), ExportLookup::Expected);
        Ok(asked && (refused || expected()))
    }
}

/// True if the data of a valid LIST_META_CONTEXT has queries: its last field is their number
/// otherwise.
fn has_queries(data: &[u8]) -> bool {
    let name_bytes = u32_at(data, 0).unwrap_or(0) as usize;
    u32_at(data, 4 + name_bytes) != Some(0)
}

fn no_data(data: &[u8]) -> Result<(), InvalidOption> {
    if data.is_empty() { Ok(()) } else { Err(InvalidOption::Unexpected) }
}

#[cfg(test)]
mod tests;
