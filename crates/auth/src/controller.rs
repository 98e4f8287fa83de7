//! Exchange at the controller: one transaction of DH-HMAC-CHAP on one queue.

use std::mem;

use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};
use zeroize::Zeroizing;

use crate::concatenation::{self, Concatenation};
use crate::group::{DhGroup, EXPONENT_BYTES, SharedSecret};
use crate::hash::{Hash, MAX_DIGEST_BYTES};
use crate::message::{Explanation, Message, MessageBody};
use crate::response::{Names, Question};
use crate::secret::Secret;
use crate::tls::Psk;

/// Secrets and rules by which a controller authenticates a host.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// Names of the host and of the subsystem, as in Connect.
    pub names: Names,
    /// Secrets of the host: one, or two during a replacement. Without any, no host authenticates.
    pub host_secrets: Vec<Secret>,
    /// Secret of the subsystem, for hosts that authenticate the controller.
    pub own_secret: Option<Secret>,
    /// Hash functions that are accepted.
    pub hashes: Vec<Hash>,
    /// Groups that are accepted.
    pub groups: Vec<DhGroup>,
    /// Concatenation that the host may request on this queue.
    pub concatenation: Concatenation,
}

/// Bytes that must be random and used once.
#[derive(Clone)]
pub struct Randomness {
    /// Private exponent.
    pub exponent: Zeroizing<[u8; EXPONENT_BYTES]>,
    /// Challenge; shorter digests use its beginning.
    pub challenge: [u8; MAX_DIGEST_BYTES],
    /// Sequence number of the challenge.
    pub sequence: u32,
}

impl Randomness {
    /// Draws from `next`, which returns 64 random bits.
    pub fn from_words(mut next: impl FnMut() -> u64) -> Self {
        Self::draw(|bytes| {
            for part in bytes.chunks_mut(8) {
                part.copy_from_slice(&next().to_le_bytes()[..part.len()]);
            }
        })
    }

    /// Draws from `fill`, which fills a slice with random bytes.
    pub fn draw(mut fill: impl FnMut(&mut [u8])) -> Self {
        let mut exponent = Zeroizing::new([0; EXPONENT_BYTES]);
        let (mut challenge, mut sequence) = ([0; MAX_DIGEST_BYTES], [0; 4]);
        fill(&mut *exponent);
        fill(&mut challenge);
        fill(&mut sequence);
        // 0 means that no response is wanted.
        Self { exponent, challenge, sequence: u32::from_le_bytes(sequence).max(1) }
    }
}

impl std::fmt::Debug for Randomness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Randomness")
    }
}

/// Progress of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeProgress {
    /// The host must send a message.
    AwaitsHost,
    /// The host must fetch a message.
    AwaitsFetch,
    /// The exchange has failed, and the host must fetch the reason.
    Failing(Explanation),
    /// The host has proven that it knows its secret, and asks for a proof of this side, which has
    /// no secret for it. The exchange has failed, and the host must fetch the reason.
    Unprovable,
    /// The host has proven that it knows its secret.
    Authenticated,
    /// The exchange has failed, and the host knows it.
    Failed(Explanation),
}

/// Why a step failed.
#[derive(Clone, Copy, Debug)]
enum StepFailure {
    /// As the host hears it.
    Explained(Explanation),
    /// The host wants a proof of this side, which has no secret.
    NoOwnSecret,
}

impl StepFailure {
    fn explanation(self) -> Explanation {
        match self {
            StepFailure::Explained(explanation) => explanation,
            StepFailure::NoOwnSecret => Explanation::Failed,
        }
    }
}

impl From<Explanation> for StepFailure {
    fn from(explanation: Explanation) -> StepFailure {
        StepFailure::Explained(explanation)
    }
}

/// Parameters selected by AUTH_Negotiate and the challenge.
#[derive(Clone, Copy, Debug)]
struct Selection {
    transaction: u16,
    hash: Hash,
    group: DhGroup,
    concatenation: Concatenation,
}

#[derive(Debug)]
enum State {
    AwaitNegotiate,
    OweChallenge(Selection),
    AwaitReply(Selection),
    OweSuccess { transaction: u16, hash: Hash, response: Option<Vec<u8>>, psk: Option<Psk> },
    AwaitSuccess2 { transaction: u16, psk: Option<Psk> },
    OweFailure { transaction: u16, failure: StepFailure },
    Authenticated { proven: bool, psk: Option<Psk> },
    Failed(Explanation),
}

/// One exchange: [`ControllerExchange::send`] takes the host's messages, and
/// [`ControllerExchange::fetch`] returns the answers.
#[derive(Debug)]
pub struct ControllerExchange {
    options: ControllerOptions,
    randomness: Randomness,
    state: State,
    /// SC_C, once AUTH_Negotiate was received.
    asked: Option<u8>,
    /// Position of the secret that the host has proven.
    matched: Option<usize>,
}

impl ControllerExchange {
    /// Exchange that begins with the host's AUTH_Negotiate.
    pub fn new(options: ControllerOptions, randomness: Randomness) -> Self {
        Self { options, randomness, state: State::AwaitNegotiate, asked: None, matched: None }
    }

    /// Concatenation that the host asks for: SC_C as received, which may mean nothing. `None`
    /// before AUTH_Negotiate.
    pub fn asked_concatenation(&self) -> Option<u8> {
        self.asked
    }

    /// True if the host is authenticated and a PSK made, and the host has not been told yet. The
    /// last time for [`ControllerExchange::refuse`].
    pub fn offers_psk(&self) -> bool {
        matches!(self.state, State::OweSuccess { psk: Some(_), .. })
    }

    /// Refuses the PSK that [`ControllerExchange::offers_psk`]: the host fetches AUTH_Failure1, and
    /// the PSK is erased. Nothing happens at any other time.
    pub fn refuse(&mut self, explanation: Explanation) {
        if let State::OweSuccess { transaction, psk: Some(_), .. } = self.state {
            let failure = StepFailure::Explained(explanation);
            self.state = State::OweFailure { transaction, failure };
        }
    }

    /// Progress of the exchange.
    pub fn progress(&self) -> ExchangeProgress {
        match self.state {
            State::AwaitNegotiate | State::AwaitReply(_) | State::AwaitSuccess2 { .. } => {
                ExchangeProgress::AwaitsHost
            }
            State::OweChallenge(_) | State::OweSuccess { .. } => ExchangeProgress::AwaitsFetch,
            State::OweFailure { failure: StepFailure::Explained(explanation), .. } => {
                ExchangeProgress::Failing(explanation)
            }
            State::OweFailure { failure: StepFailure::NoOwnSecret, .. } => {
                ExchangeProgress::Unprovable
            }
            State::Authenticated { .. } => ExchangeProgress::Authenticated,
            State::Failed(explanation) => ExchangeProgress::Failed(explanation),
        }
    }

    /// The PSK that the host asked for, once it is authenticated.
    pub fn take_psk(&mut self) -> Option<Psk> {
        match &mut self.state {
            State::Authenticated { psk, .. } => psk.take(),
            _ => None,
        }
    }

    /// Position of the host's secret among [`ControllerOptions::host_secrets`], once the host has
    /// proven it.
    pub fn matched_secret(&self) -> Option<usize> {
        self.matched
    }

    /// True if the host is authenticated, and this side has authenticated itself to it.
    pub fn has_proven(&self) -> bool {
        matches!(self.state, State::Authenticated { proven: true, .. })
    }

    /// Takes a message of the host, from AUTH Send. The host's next AUTH Receive fetches any error.
    pub fn send(&mut self, bytes: &[u8]) {
        let mut transaction = match self.state {
            State::AwaitReply(Selection { transaction, .. })
            | State::AwaitSuccess2 { transaction, .. } => transaction,
            _ => 0,
        };
        let parsed = Message::parse(bytes).inspect(|message| {
            if matches!(self.state, State::AwaitNegotiate) {
                transaction = message.transaction;
                if let MessageBody::Negotiate { concatenation, .. } = message.body {
                    self.asked = Some(concatenation);
                }
            }
        });
        let state = mem::replace(&mut self.state, State::Failed(Explanation::Failed));
        let next = parsed.map_err(StepFailure::from);
        let next = next.and_then(|message| self.next(state, message));
        self.state = next.unwrap_or_else(|failure| State::OweFailure { transaction, failure });
    }

    fn next(&mut self, state: State, message: Message) -> Result<State, StepFailure> {
        let same = |transaction: u16| match message.transaction == transaction {
            true => Ok(()),
            false => Err(Explanation::IncorrectPayload),
        };
        match (state, message.body) {
            (State::AwaitNegotiate, MessageBody::Negotiate { concatenation, hashes, groups }) => {
                self.select(message.transaction, concatenation, &hashes, &groups)
            }
            (
                State::AwaitReply(selection),
                MessageBody::Reply { response, challenge, sequence, public_value },
            ) => {
                same(selection.transaction)?;
                let reply = Reply { response, challenge, sequence, public_value };
                self.check_reply(selection, &reply)
            }
            (State::AwaitSuccess2 { transaction, psk }, MessageBody::Success2) => {
                same(transaction)?;
                Ok(State::Authenticated { proven: true, psk })
            }
            (
                State::AwaitReply(Selection { transaction, .. })
                | State::AwaitSuccess2 { transaction, .. },
                MessageBody::Failure2(explanation),
            ) => {
                same(transaction)?;
                Ok(State::Failed(explanation))
            }
            _ => Err(Explanation::IncorrectMessage.into()),
        }
    }

    /// Selects the hash function of the host's key, or without one the strongest that both sides
    /// accept: whoever makes the key chooses, because some hosts offer what they cannot use. Debian
    /// 13's ktls-utils fail with the SHA-384 that its kernel offers for concatenation. The group is
    /// the host's first that this side accepts, because the host prefers it. The null group is the
    /// last resort, wherever the host lists it: Linux lists it first. Concatenation excludes the
    /// null group and SHA-512.
    fn select(
        &self,
        transaction: u16,
        concatenation: u8,
        hashes: &[Hash],
        groups: &[DhGroup],
    ) -> Result<State, StepFailure> {
        let concatenation = Concatenation::from_id(concatenation)
            .filter(|kind| [Concatenation::None, self.options.concatenation].contains(kind))
            .ok_or(Explanation::ConcatenationMismatch)?;
        let fits =
            |hash: &Hash| self.options.hashes.contains(hash) && concatenation.fits_hash(*hash);
        let usable = || hashes.iter().copied().filter(fits);
        let of_key = self.options.host_secrets.first().and_then(Secret::transformation);
        let hash = usable().find(|hash| Some(*hash) == of_key).or_else(|| usable().max());
        let hash = hash.ok_or(Explanation::HashNotUsable)?;
        if !groups.iter().any(|group| concatenation.fits_group(*group)) && !groups.is_empty() {
            return Err(Explanation::ConcatenationMismatch.into());
        }
        let accepted = |group: &DhGroup| {
            self.options.groups.contains(group) && concatenation.fits_group(*group)
        };
        let usable = || groups.iter().copied().filter(accepted);
        let group = usable().find(|group| *group != DhGroup::Null).or_else(|| usable().next());
        let group = group.ok_or(Explanation::GroupNotUsable)?;
        Ok(State::OweChallenge(Selection { transaction, hash, group, concatenation }))
    }

    fn challenge(&self, hash: Hash) -> &[u8] {
        &self.randomness.challenge[..hash.digest_bytes()]
    }

    fn check_reply(&mut self, selection: Selection, reply: &Reply) -> Result<State, StepFailure> {
        let Selection { transaction, hash, group, concatenation } = selection;
        if reply.response.len() != hash.digest_bytes() {
            return Err(Explanation::IncorrectPayload.into());
        }
        // A host that returns this side's challenge wants a response for another exchange.
        if reply.challenge.as_deref() == Some(self.challenge(hash)) {
            return Err(Explanation::Failed.into());
        }
        let shared_secret = group
            .shared_secret(&self.randomness.exponent, &reply.public_value)
            .map_err(|_| Explanation::GroupNotUsable)?;
        let names = &self.options.names;
        let question = Question {
            hash,
            challenge: self.challenge(hash),
            sequence: self.randomness.sequence,
            transaction,
            concatenation,
            shared_secret: shared_secret.as_ref(),
        };
        // Try all secrets, so that the time does not reveal the matching one.
        let (mut known, mut matched) = (Choice::from(0), 0_u64);
        for (secret, position) in self.options.host_secrets.iter().zip(0..) {
            let expected = question.host_response(secret, names);
            let matches = expected.ct_eq(&reply.response);
            matched.conditional_assign(&position, matches);
            known |= matches;
        }
        if !bool::from(known) {
            return Err(Explanation::Failed.into());
        }
        // With sequence number 0 the challenge only serves secure channel concatenation.
        let response = match &reply.challenge {
            Some(challenge) if reply.sequence != 0 => {
                let secret = self.options.own_secret.as_ref().ok_or(StepFailure::NoOwnSecret)?;
                let question = Question { challenge, sequence: reply.sequence, ..question };
                Some(question.controller_response(secret, names).to_vec())
            }
            _ => None,
        };
        let psk = match concatenation {
            Concatenation::None => None,
            _ => Some(self.psk(hash, shared_secret.as_ref(), reply)?),
        };
        self.matched = Some(matched as usize);
        Ok(State::OweSuccess { transaction, hash, response, psk })
    }

    /// Computes the PSK, for which the host must send a challenge, even if it wants no response.
    fn psk(
        &self,
        hash: Hash,
        shared_secret: Option<&SharedSecret>,
        reply: &Reply,
    ) -> Result<Psk, Explanation> {
        let theirs = reply.challenge.as_deref().ok_or(Explanation::IncorrectPayload)?;
        let challenges = (self.challenge(hash), theirs);
        concatenation::tls_psk(hash, shared_secret, challenges, &self.options.names)
            .ok_or(Explanation::ConcatenationMismatch)
    }

    /// Message that the host fetches with AUTH Receive of `room` bytes. `None` if there is none, or
    /// it does not fit; the exchange then stays unchanged.
    pub fn fetch(&mut self, room: usize) -> Option<Vec<u8>> {
        let (transaction, body, next) = match &self.state {
            &State::OweChallenge(selection) => {
                let Selection { transaction, hash, group, .. } = selection;
                let body = MessageBody::Challenge {
                    hash,
                    group,
                    sequence: self.randomness.sequence,
                    challenge: self.challenge(hash).to_vec(),
                    public_value: group.public_value(&self.randomness.exponent),
                };
                (transaction, body, State::AwaitReply(selection))
            }
            State::OweSuccess { transaction, hash, response, psk } => {
                let (digest_bytes, psk) = (hash.digest_bytes() as u8, psk.clone());
                let next = match response {
                    Some(_) => State::AwaitSuccess2 { transaction: *transaction, psk },
                    None => State::Authenticated { proven: false, psk },
                };
                (
                    *transaction,
                    MessageBody::Success1 { digest_bytes, response: response.clone() },
                    next,
                )
            }
            &State::OweFailure { transaction, failure } => {
                let explanation = failure.explanation();
                (transaction, MessageBody::Failure1(explanation), State::Failed(explanation))
            }
            _ => return None,
        };
        let bytes = Message { transaction, body }.encode();
        if bytes.len() > room {
            return None;
        }
        self.state = next;
        Some(bytes)
    }
}

struct Reply {
    response: Vec<u8>,
    challenge: Option<Vec<u8>>,
    sequence: u32,
    public_value: Vec<u8>,
}
