//! Exchange at the host: one transaction of DH-HMAC-CHAP on one queue.

use std::mem;

use subtle::ConstantTimeEq;

use crate::concatenation::{self, Concatenation};
use crate::controller::Randomness;
use crate::group::DhGroup;
use crate::hash::{Digest64, Hash};
use crate::message::{Explanation, Message, MessageBody};
use crate::response::{Names, Question};
use crate::secret::Secret;
use crate::tls::Psk;

/// Secrets and rules by which a host authenticates.
#[derive(Clone, Debug)]
pub struct ExchangeOptions {
    /// Names of the host and of the subsystem, as in Connect.
    pub names: Names,
    /// Secret of the host.
    pub secret: Secret,
    /// Secrets of the subsystem, of which the controller must know one; empty if it need not
    /// authenticate.
    pub controller_secrets: Vec<Secret>,
    /// Offered hash functions.
    pub hashes: Vec<Hash>,
    /// Offered groups, the preferred first.
    pub groups: Vec<DhGroup>,
    /// Requested PSK. Needs controller secrets, and excludes SHA-512 and the null group.
    pub concatenation: Concatenation,
}

/// Failure of the exchange.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFailure {
    /// The controller refused, most often because it has another secret for this host.
    #[error("the controller refused: {0}")]
    Refused(Explanation),
    /// The controller violated the protocol, or does not know the subsystem's secret. The host must
    /// send AUTH_Failure2.
    #[error("the controller is not trusted: {explanation}")]
    Distrusted {
        /// Reason of the failure.
        explanation: Explanation,
        /// Message to send before the connection is closed.
        final_reply: Vec<u8>,
    },
}

#[derive(Debug)]
enum State {
    AwaitChallenge,
    /// With the responses of which the controller must send one; empty if it need not authenticate.
    AwaitSuccess {
        expected: Vec<Digest64>,
        digest_bytes: usize,
        psk: Option<Psk>,
    },
    Authenticated(Option<Psk>),
    Ended,
}

/// Next step of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostStep {
    /// Send this message, then fetch the next one.
    Reply(Vec<u8>),
    /// Both sides have succeeded; send this message, if there is one.
    Authenticated(Option<Vec<u8>>),
}

/// One exchange: send [`HostExchange::negotiate`], then give each fetched message to
/// [`HostExchange::fetched`].
#[derive(Debug)]
pub struct HostExchange {
    options: ExchangeOptions,
    randomness: Randomness,
    transaction: u16,
    state: State,
}

impl HostExchange {
    /// Exchange with identifier `transaction`, which must be unique on the queue.
    pub fn new(mut options: ExchangeOptions, transaction: u16, randomness: Randomness) -> Self {
        let kind = options.concatenation;
        options.hashes.retain(|hash| kind.fits_hash(*hash));
        options.groups.retain(|group| kind.fits_group(*group));
        Self { options, randomness, transaction, state: State::AwaitChallenge }
    }

    /// The first message.
    pub fn negotiate(&self) -> Vec<u8> {
        self.encode(MessageBody::Negotiate {
            concatenation: self.options.concatenation.id(),
            hashes: self.options.hashes.clone(),
            groups: self.options.groups.clone(),
        })
    }

    /// The requested PSK, after both sides have succeeded.
    pub fn take_psk(&mut self) -> Option<Psk> {
        match &mut self.state {
            State::Authenticated(psk) => psk.take(),
            _ => None,
        }
    }

    /// Takes a message of the controller.
    ///
    /// # Errors
    /// The exchange has failed; close the connection.
    pub fn fetched(&mut self, bytes: &[u8]) -> Result<HostStep, HostFailure> {
        let state = mem::replace(&mut self.state, State::Ended);
        let message = Message::parse(bytes).map_err(|explanation| self.distrust(explanation))?;
        if let MessageBody::Failure1(explanation) = message.body {
            return Err(HostFailure::Refused(explanation));
        }
        let next = self.next(state, message);
        let (state, step) = next.map_err(|explanation| self.distrust(explanation))?;
        self.state = state;
        Ok(step)
    }

    fn next(&self, state: State, message: Message) -> Result<(State, HostStep), Explanation> {
        if message.transaction != self.transaction {
            return Err(Explanation::IncorrectPayload);
        }
        match (state, message.body) {
            (
                State::AwaitChallenge,
                MessageBody::Challenge { hash, group, sequence, challenge, public_value },
            ) => {
                // The controller may select only offered functions.
                if !self.options.hashes.contains(&hash) {
                    return Err(Explanation::HashNotUsable);
                }
                if !self.options.groups.contains(&group) {
                    return Err(Explanation::GroupNotUsable);
                }
                self.answer(hash, group, sequence, &challenge, &public_value)
            }
            (
                State::AwaitSuccess { expected, digest_bytes, psk },
                MessageBody::Success1 { digest_bytes: theirs, response },
            ) => {
                if usize::from(theirs) != digest_bytes {
                    return Err(Explanation::HashNotUsable);
                }
                if expected.is_empty() {
                    return Ok((State::Authenticated(psk), HostStep::Authenticated(None)));
                }
                let response = response.ok_or(Explanation::Failed)?;
                let known = expected
                    .iter()
                    .fold(false, |known, one| known | bool::from(one.ct_eq(&response)));
                if !known {
                    return Err(Explanation::Failed);
                }
                let final_reply = self.encode(MessageBody::Success2);
                Ok((State::Authenticated(psk), HostStep::Authenticated(Some(final_reply))))
            }
            _ => Err(Explanation::IncorrectMessage),
        }
    }

    fn answer(
        &self,
        hash: Hash,
        group: DhGroup,
        sequence: u32,
        challenge: &[u8],
        public_value: &[u8],
    ) -> Result<(State, HostStep), Explanation> {
        let shared_secret = group
            .shared_secret(&self.randomness.exponent, public_value)
            .map_err(|_| Explanation::GroupNotUsable)?;
        let names = &self.options.names;
        let transaction = self.transaction;
        let shared_secret = shared_secret.as_ref();
        let concatenation = self.options.concatenation;
        let question =
            Question { hash, challenge, sequence, transaction, concatenation, shared_secret };
        let response = question.host_response(&self.options.secret, names).to_vec();
        let own_challenge = &self.randomness.challenge[..hash.digest_bytes()];
        let own_sequence = self.randomness.sequence;
        let psk = match concatenation {
            Concatenation::None => None,
            _ => {
                let challenges = (challenge, own_challenge);
                let psk = concatenation::tls_psk(hash, shared_secret, challenges, names);
                Some(psk.ok_or(Explanation::ConcatenationMismatch)?)
            }
        };
        let question = Question { challenge: own_challenge, sequence: own_sequence, ..question };
        let secrets = self.options.controller_secrets.iter();
        let expected: Vec<Digest64> =
            secrets.map(|secret| question.controller_response(secret, names)).collect();
        let mutual = !expected.is_empty();
        // The PSK contains no secret: without authentication of the controller, anyone could have
        // made it.
        if psk.is_some() && !mutual {
            return Err(Explanation::ConcatenationMismatch);
        }
        let reply = self.encode(MessageBody::Reply {
            response,
            challenge: mutual.then(|| own_challenge.to_vec()),
            sequence: if mutual { own_sequence } else { 0 },
            public_value: group.public_value(&self.randomness.exponent),
        });
        let digest_bytes = hash.digest_bytes();
        Ok((State::AwaitSuccess { expected, digest_bytes, psk }, HostStep::Reply(reply)))
    }

    fn encode(&self, body: MessageBody) -> Vec<u8> {
        Message { transaction: self.transaction, body }.encode()
    }

    fn distrust(&self, explanation: Explanation) -> HostFailure {
        HostFailure::Distrusted {
            explanation,
            final_reply: self.encode(MessageBody::Failure2(explanation)),
        }
    }
}
