//! Rules of secure channel concatenation (Base 8.3.5.5.9): the kind of PSK that a queue accepts,
//! reasons for refusals, and requirements of a PSK on the controller's I/O queues.
//!
//! Invariants:
//! - a host learns that it has a PSK only if the target keeps it: the PSK is promised, or refused
//!   with AUTH_Failure1, before DH-HMAC-CHAP_Success1 is fetched;
//! - from the promise on, no I/O queue without TLS joins the controller.
//!
//! A refusal names the host's request, the accepted kind, and the remedy.

use std::collections::VecDeque;

use flagstone_auth::Concatenation;

use crate::limits::GENERATED_PSKS_PER_HOST;
use crate::tls::{ChannelProof, TlsMode};

/// Why a PSK is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConcatenationRefusal {
    /// SC_C has this value, which means nothing.
    Undefined(u8),
    /// It is asked for on an I/O queue.
    IoQueue,
    /// The listener has no TLS.
    NoTls,
    /// The host has a configured TLS key, and so needs no other.
    ConfiguredKey,
    /// The controller has I/O queues without TLS.
    PlainIoQueues,
    /// A new PSK is asked for, but only the connection's PSK can be replaced.
    NotNew,
    /// A replacement is asked for, where the connection has no PSK.
    NothingToReplace,
    /// The host offers no Diffie-Hellman group.
    NoGroup,
    /// The controller ended before the exchange did.
    ControllerEnded,
}

impl std::fmt::Display for ConcatenationRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("secure concatenation refused: the host asks for ")?;
        let text = match self {
            Self::Undefined(value) => {
                return write!(
                    f,
                    "SC_C {value}, which means nothing; 2 (a new PSK) and 3 (another PSK) are accepted: \
                     correct the host"
                );
            }
            Self::IoQueue => {
                "a PSK on an I/O queue; the admin queue accepts it, before I/O queues: correct the host"
            }
            Self::NoTls => {
                "a new PSK on a listener without TLS; a listener with optional TLS accepts it: add \
                 ?tls=allowed to the listener, or let the host connect without concatenation"
            }
            Self::ConfiguredKey => {
                "a PSK, and has a TLS key; hosts without one are accepted: let it connect with its TLS \
                 key, or remove its tls_key_file here"
            }
            Self::PlainIoQueues => {
                "a new PSK while it has I/O queues without TLS; it is accepted before the first I/O queue: \
                 disconnect the host, and connect it again with concatenation"
            }
            Self::NotNew => {
                "a new PSK (SC_C 2) over TLS; another PSK instead of this one (SC_C 3) is accepted: \
                 correct the host"
            }
            Self::NothingToReplace => {
                "another PSK (SC_C 3) without TLS; a new PSK (SC_C 2) is accepted: correct the host"
            }
            Self::NoGroup => {
                "a PSK with the null group alone; every other group is accepted: let the host offer \
                 ffdhe2048"
            }
            Self::ControllerEnded => {
                "a PSK, and its controller ended meanwhile; its next controller accepts it: connect again"
            }
        };
        f.write_str(text)
    }
}

/// Rule of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConcatenationRule {
    /// The kind of PSK.
    pub(crate) accepted: Concatenation,
    /// Why it is not another kind.
    otherwise: ConcatenationRefusal,
}

/// State that determines the rule of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConcatenationScope<'a> {
    pub(crate) qid: u16,
    pub(crate) channel: ChannelProof<'a>,
    pub(crate) tls_mode: TlsMode,
    /// The host has a configured TLS key for the subsystem.
    pub(crate) has_tls_key: bool,
    /// The controller has I/O queues.
    pub(crate) has_io_queues: bool,
}

impl ConcatenationRule {
    /// Rule of a queue. I/O queues of a controller that has any would stay without TLS, and a host
    /// that has a TLS key is to use it.
    pub(crate) fn of(scope: ConcatenationScope<'_>) -> Self {
        use ConcatenationRefusal as Refusal;
        let none = |otherwise| Self { accepted: Concatenation::None, otherwise };
        match scope.channel {
            _ if scope.qid != 0 => none(Refusal::IoQueue),
            ChannelProof::GeneratedPsk(_) => {
                Self { accepted: Concatenation::ReplacePsk, otherwise: Refusal::NotNew }
            }
            ChannelProof::ConfiguredKey(_) => none(Refusal::ConfiguredKey),
            ChannelProof::Plain if scope.tls_mode != TlsMode::Allowed => none(Refusal::NoTls),
            ChannelProof::Plain if scope.has_tls_key => none(Refusal::ConfiguredKey),
            ChannelProof::Plain if scope.has_io_queues => none(Refusal::PlainIoQueues),
            ChannelProof::Plain => {
                Self { accepted: Concatenation::NewPsk, otherwise: Refusal::NothingToReplace }
            }
        }
    }

    /// Why a host that asked for SC_C `asked` was refused.
    pub(crate) fn refusal(self, asked: u8) -> ConcatenationRefusal {
        match Concatenation::from_id(asked) {
            None => ConcatenationRefusal::Undefined(asked),
            // The kind is accepted, so it was the group.
            Some(kind) if kind == self.accepted => ConcatenationRefusal::NoGroup,
            Some(_) => self.otherwise,
        }
    }
}

/// Secure channel concatenation of a controller: the requirement on its I/O queues, and the PSKs
/// that they have used, which end with it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Concatenated {
    requirement: Requirement,
    /// Identities of generated PSKs that I/O queues have used, at most [`GENERATED_PSKS_PER_HOST`],
    /// as many as the host has. The last use of the first is the longest ago.
    used: VecDeque<Vec<u8>>,
}

/// Requirement on a controller's I/O queues.
#[derive(Debug, Default, PartialEq, Eq)]
enum Requirement {
    /// Nothing.
    #[default]
    No,
    /// TLS: on the plain admin queue, the host is about to have a PSK.
    Promised,
    /// TLS: on the plain admin queue, the host has made the PSK with this identity. It has to
    /// reconnect with TLS.
    Made(Vec<u8>),
    /// TLS: the admin queue uses the generated PSK with this identity.
    Secured(Vec<u8>),
}

impl Concatenated {
    /// A PSK is promised.
    ///
    /// # Errors
    /// [`ConcatenationRefusal::PlainIoQueues`].
    pub(crate) fn promise(&mut self, has_io_queues: bool) -> Result<(), ConcatenationRefusal> {
        match self.requirement {
            Requirement::No if has_io_queues => Err(ConcatenationRefusal::PlainIoQueues),
            Requirement::No => {
                self.requirement = Requirement::Promised;
                Ok(())
            }
            Requirement::Promised | Requirement::Made(_) | Requirement::Secured(_) => Ok(()),
        }
    }

    /// Keeps the promised PSK. Returns the identity of the PSK that it replaces.
    pub(crate) fn keep(&mut self, identity: Vec<u8>) -> Option<Vec<u8>> {
        let (next, last) = match std::mem::take(&mut self.requirement) {
            Requirement::Secured(last) => (Requirement::Secured(identity.clone()), Some(last)),
            Requirement::Made(last) => (Requirement::Made(identity.clone()), Some(last)),
            Requirement::Promised | Requirement::No => (Requirement::Made(identity.clone()), None),
        };
        self.requirement = next;
        // It ends with this controller, too: I/O queues use what it replaces.
        if let Some(used) = self.used.iter_mut().find(|used| Some(&**used) == last.as_ref()) {
            *used = identity;
        }
        last
    }

    /// Queue `qid` joins over `channel`. False if it needs TLS by a generated PSK, and has not.
    pub(crate) fn join(&mut self, qid: u16, channel: ChannelProof<'_>) -> bool {
        match (qid, channel) {
            (0, ChannelProof::GeneratedPsk(identity)) => {
                self.requirement = Requirement::Secured(identity.to_vec());
            }
            (_, ChannelProof::GeneratedPsk(identity)) => self.begin_use(identity),
            (0, ChannelProof::Plain | ChannelProof::ConfiguredKey(_)) => {}
            (_, ChannelProof::Plain | ChannelProof::ConfiguredKey(_)) => return !self.needs_tls(),
        }
        true
    }

    fn begin_use(&mut self, identity: &[u8]) {
        self.used.retain(|used| used != identity);
        if self.used.len() == GENERATED_PSKS_PER_HOST {
            self.used.pop_front();
        }
        self.used.push_back(identity.to_vec());
    }

    /// Identities of the PSKs that end with the controller.
    pub(crate) fn used(self) -> impl Iterator<Item = Vec<u8>> {
        self.used.into_iter()
    }

    /// True if I/O queues have to use TLS.
    pub(crate) fn needs_tls(&self) -> bool {
        self.requirement != Requirement::No
    }
}

#[cfg(test)]
mod tests {
    use flagstone_auth::KeyUse;

    use super::*;

    fn scope(channel: ChannelProof<'_>) -> ConcatenationScope<'_> {
        let (tls_mode, has_tls_key, has_io_queues) = (TlsMode::Allowed, false, false);
        ConcatenationScope { qid: 0, channel, tls_mode, has_tls_key, has_io_queues }
    }

    #[test]
    fn each_refusal_has_its_own_reason() {
        use ConcatenationRefusal as Refusal;
        let key = KeyUse::default();
        let (plain, generated) =
            (scope(ChannelProof::Plain), scope(ChannelProof::GeneratedPsk(b"x")));
        let [new, replace] =
            [Concatenation::NewPsk, Concatenation::ReplacePsk].map(Concatenation::id);
        for (scope, asked, reason) in [
            (plain, 1, Refusal::Undefined(1)),
            (plain, new, Refusal::NoGroup),
            (plain, replace, Refusal::NothingToReplace),
            (generated, new, Refusal::NotNew),
            (generated, replace, Refusal::NoGroup),
            (ConcatenationScope { qid: 1, ..generated }, replace, Refusal::IoQueue),
            (ConcatenationScope { tls_mode: TlsMode::Off, ..plain }, new, Refusal::NoTls),
            (ConcatenationScope { has_tls_key: true, ..plain }, new, Refusal::ConfiguredKey),
            (self::scope(ChannelProof::ConfiguredKey(&key)), replace, Refusal::ConfiguredKey),
            (ConcatenationScope { has_io_queues: true, ..plain }, new, Refusal::PlainIoQueues),
        ] {
            assert_eq!(ConcatenationRule::of(scope).refusal(asked), reason, "{scope:?}");
            let text = reason.to_string();
            // Request, accepted kind and remedy.
            let parts = ["the host asks for", "accept", ": "];
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }

    #[test]
    fn promise_keeps_plain_io_queues_out() {
        let mut state = Concatenated::default();
        assert_eq!(state.promise(true), Err(ConcatenationRefusal::PlainIoQueues));
        assert!(state.join(1, ChannelProof::Plain) && !state.needs_tls());
        assert_eq!(state.promise(false), Ok(()));
        let configured = KeyUse::default();
        let configured = ChannelProof::ConfiguredKey(&configured);
        assert!(!state.join(1, ChannelProof::Plain) && !state.join(1, configured));
        assert!(state.needs_tls() && state.join(1, ChannelProof::GeneratedPsk(b"other")));
        assert_eq!(state.keep(b"first".to_vec()), None);
        assert_eq!(state.keep(b"second".to_vec()), Some(b"first".to_vec()));
        assert_eq!(state.requirement, Requirement::Made(b"second".to_vec()));
        assert!(!state.join(1, ChannelProof::Plain) && state.join(0, ChannelProof::Plain));
        // A queue over TLS needs the promise no longer.
        assert!(state.join(0, ChannelProof::GeneratedPsk(b"second")));
        assert!(
            state.join(1, ChannelProof::GeneratedPsk(b"second")) && state.promise(true).is_ok()
        );
        assert_eq!(state.keep(b"third".to_vec()), Some(b"second".to_vec()));
        assert_eq!(state.requirement, Requirement::Secured(b"third".to_vec()));
        assert!(state.used().eq([b"other".to_vec(), b"third".to_vec()]));
    }

    /// Regression: an I/O queue used a PSK while the admin queue was plain, and the PSK outlived
    /// the controller.
    #[test]
    fn io_queue_uses_psk_whatever_the_admin_queue_is() {
        let states = [
            Requirement::No,
            Requirement::Promised,
            Requirement::Made(b"own".to_vec()),
            Requirement::Secured(b"own".to_vec()),
            Requirement::Secured(b"other".to_vec()),
        ];
        for requirement in states {
            let needs_tls = requirement != Requirement::No;
            let mut state = Concatenated { requirement, used: VecDeque::new() };
            assert!(state.join(1, ChannelProof::GeneratedPsk(b"own")));
            assert!(state.join(2, ChannelProof::GeneratedPsk(b"own")));
            assert_eq!(state.needs_tls(), needs_tls, "no other queue is concerned");
            assert!(state.used().eq([b"own".to_vec()]));
        }
        let mut state = Concatenated::default();
        for byte in 0..=GENERATED_PSKS_PER_HOST as u8 {
            assert!(state.join(1, ChannelProof::GeneratedPsk(&[byte])));
        }
        let last = (1..=GENERATED_PSKS_PER_HOST as u8).map(|byte| vec![byte]);
        assert!(state.used().eq(last), "a host has no more");
    }
}
