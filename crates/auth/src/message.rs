//! Messages of authentication (Base 8.3.5.3, 8.3.5.5), carried by AUTH Send and AUTH Receive.
//!
//! Invariant: [`Message::parse`] accepts every output of [`Message::encode`]; lengths inside a
//! message are checked against its bytes before they are used.

use crate::group::DhGroup;
use crate::hash::Hash;

/// Largest message: room for a reply with the longest digest and group, and for a negotiation with
/// several protocols. AUTH Send and AUTH Receive of more bytes are refused.
pub const MESSAGE_BYTES: usize = 4096;

/// Reason of a failed authentication, as sent to the other side (Base 8.3.5.5.10, reason code 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Explanation {
    /// The response is wrong, or there is no secret to check it with.
    Failed = 1,
    /// No offered protocol can be used.
    ProtocolNotUsable = 2,
    /// Secure channel concatenation is requested and not supported, or missing.
    ConcatenationMismatch = 3,
    /// No offered hash function can be used.
    HashNotUsable = 4,
    /// No offered group can be used, or a public value is not in the group.
    GroupNotUsable = 5,
    /// A field of the message is wrong.
    IncorrectPayload = 6,
    /// Another message was expected.
    IncorrectMessage = 7,
}

impl Explanation {
    const ALL: [Self; 7] = [
        Self::Failed,
        Self::ProtocolNotUsable,
        Self::ConcatenationMismatch,
        Self::HashNotUsable,
        Self::GroupNotUsable,
        Self::IncorrectPayload,
        Self::IncorrectMessage,
    ];
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Failed => "authentication failed",
            Self::ProtocolNotUsable => "no usable authentication protocol",
            Self::ConcatenationMismatch => "secure channel concatenation mismatch",
            Self::HashNotUsable => "no usable hash function",
            Self::GroupNotUsable => "no usable Diffie-Hellman group, or an invalid value",
            Self::IncorrectPayload => "incorrect payload",
            Self::IncorrectMessage => "incorrect message",
        })
    }
}

/// Message of one authentication transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Transaction identifier, chosen by the host.
    pub transaction: u16,
    /// Content.
    pub body: MessageBody,
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageBody {
    /// AUTH_Negotiate, from the host: its offers, the preferred first.
    Negotiate {
        /// SC_C, as received: see [`Concatenation`](crate::Concatenation).
        concatenation: u8,
        /// Hash functions; unknown ones are left out.
        hashes: Vec<Hash>,
        /// Groups; unknown ones are left out.
        groups: Vec<DhGroup>,
    },
    /// DH-HMAC-CHAP_Challenge, from the controller.
    Challenge {
        /// Selected hash function.
        hash: Hash,
        /// Selected group.
        group: DhGroup,
        /// S1.
        sequence: u32,
        /// C1, as long as a digest.
        challenge: Vec<u8>,
        /// Public value of the group.
        public_value: Vec<u8>,
    },
    /// DH-HMAC-CHAP_Reply, from the host.
    Reply {
        /// R1, as long as a digest.
        response: Vec<u8>,
        /// C2, as long as a digest, if CVALID is set.
        challenge: Option<Vec<u8>>,
        /// S2: 0 unless the controller is to authenticate itself.
        sequence: u32,
        /// Public value of the group.
        public_value: Vec<u8>,
    },
    /// DH-HMAC-CHAP_Success1, from the controller.
    Success1 {
        /// Bytes of a digest.
        digest_bytes: u8,
        /// R2, if RVALID is set.
        response: Option<Vec<u8>>,
    },
    /// DH-HMAC-CHAP_Success2, from the host.
    Success2,
    /// AUTH_Failure1, from the controller.
    Failure1(Explanation),
    /// AUTH_Failure2, from the host.
    Failure2(Explanation),
}

/// AUTH_TYPE of common messages.
const COMMON: u8 = 0;
/// AUTH_TYPE of DH-HMAC-CHAP messages.
const DH_HMAC_CHAP: u8 = 1;
/// AUTH_ID of each message.
mod id {
    pub(super) const NEGOTIATE: u8 = 0x00;
    pub(super) const CHALLENGE: u8 = 0x01;
    pub(super) const REPLY: u8 = 0x02;
    pub(super) const SUCCESS1: u8 = 0x03;
    pub(super) const SUCCESS2: u8 = 0x04;
    pub(super) const FAILURE2: u8 = 0xf0;
    pub(super) const FAILURE1: u8 = 0xf1;
}
/// Identifier of the protocol in a descriptor of AUTH_Negotiate.
const PROTOCOL: u8 = 1;
/// Bytes of such a descriptor: 4, and room for 30 hash functions and 30 groups.
const DESCRIPTOR_BYTES: usize = 64;
const LIST_BYTES: usize = 30;
/// Reason code of failures: authentication failure.
const REASON: u8 = 1;

impl Message {
    /// Bytes of the message.
    pub fn encode(&self) -> Vec<u8> {
        let (auth_type, auth_id) = match &self.body {
            MessageBody::Negotiate { .. } => (COMMON, id::NEGOTIATE),
            MessageBody::Challenge { .. } => (DH_HMAC_CHAP, id::CHALLENGE),
            MessageBody::Reply { .. } => (DH_HMAC_CHAP, id::REPLY),
            MessageBody::Success1 { .. } => (DH_HMAC_CHAP, id::SUCCESS1),
            MessageBody::Success2 => (DH_HMAC_CHAP, id::SUCCESS2),
            MessageBody::Failure1(_) => (COMMON, id::FAILURE1),
            MessageBody::Failure2(_) => (COMMON, id::FAILURE2),
        };
        let [low, high] = self.transaction.to_le_bytes();
        let mut bytes = vec![auth_type, auth_id, 0, 0, low, high];
        match &self.body {
            MessageBody::Negotiate { concatenation, hashes, groups } => {
                let (hashes, groups) = (
                    &hashes[..hashes.len().min(LIST_BYTES)],
                    &groups[..groups.len().min(LIST_BYTES)],
                );
                bytes.extend([*concatenation, 1]);
                bytes.extend([PROTOCOL, 0, hashes.len() as u8, groups.len() as u8]);
                let list = bytes.len();
                bytes.extend(hashes.iter().map(|hash| hash.id()));
                bytes.resize(list + LIST_BYTES, 0);
                bytes.extend(groups.iter().map(|group| group.id()));
                bytes.resize(list + 2 * LIST_BYTES, 0);
            }
            MessageBody::Challenge { hash, group, sequence, challenge, public_value } => {
                bytes.extend([challenge.len() as u8, 0, hash.id(), group.id()]);
                bytes.extend((public_value.len() as u16).to_le_bytes());
                bytes.extend(sequence.to_le_bytes());
                bytes.extend(challenge);
                bytes.extend(public_value);
            }
            MessageBody::Reply { response, challenge, sequence, public_value } => {
                bytes.extend([response.len() as u8, 0, u8::from(challenge.is_some()), 0]);
                bytes.extend((public_value.len() as u16).to_le_bytes());
                bytes.extend(sequence.to_le_bytes());
                bytes.extend(response);
                match challenge {
                    Some(challenge) => bytes.extend(challenge),
                    None => bytes.resize(bytes.len() + response.len(), 0),
                }
                bytes.extend(public_value);
            }
            MessageBody::Success1 { digest_bytes, response } => {
                bytes.extend([*digest_bytes, 0, u8::from(response.is_some())]);
                bytes.resize(16, 0);
                bytes.extend(response.iter().flatten());
            }
            MessageBody::Success2 => bytes.resize(16, 0),
            MessageBody::Failure1(explanation) | MessageBody::Failure2(explanation) => {
                bytes.extend([REASON, *explanation as u8]);
            }
        }
        bytes
    }

    /// Decodes a message. Ignores bytes after its end, because buffers may be longer.
    ///
    /// # Errors
    /// The explanation to send.
    pub fn parse(bytes: &[u8]) -> Result<Self, Explanation> {
        let mut fields = Fields(bytes.get(..bytes.len().min(MESSAGE_BYTES)).unwrap_or(bytes));
        let [auth_type, auth_id, _, _, low, high] = fields.array()?;
        let body = match (auth_type, auth_id) {
            (COMMON, id::NEGOTIATE) => negotiate(&mut fields)?,
            (DH_HMAC_CHAP, id::CHALLENGE) => challenge(&mut fields)?,
            (DH_HMAC_CHAP, id::REPLY) => reply(&mut fields)?,
            (DH_HMAC_CHAP, id::SUCCESS1) => success1(&mut fields)?,
            (DH_HMAC_CHAP, id::SUCCESS2) => MessageBody::Success2,
            (COMMON, id::FAILURE1) => MessageBody::Failure1(explanation(&mut fields)?),
            (COMMON, id::FAILURE2) => MessageBody::Failure2(explanation(&mut fields)?),
            _ => return Err(Explanation::IncorrectMessage),
        };
        Ok(Self { transaction: u16::from_le_bytes([low, high]), body })
    }
}

fn negotiate(fields: &mut Fields<'_>) -> Result<MessageBody, Explanation> {
    let [concatenation, descriptors] = fields.array()?;
    for _ in 0..descriptors {
        let mut descriptor = Fields(fields.take(DESCRIPTOR_BYTES)?);
        let [protocol, _, hashes, groups] = descriptor.array()?;
        if protocol != PROTOCOL {
            continue;
        }
        let (hash_ids, group_ids): ([u8; LIST_BYTES], [u8; LIST_BYTES]) =
            (descriptor.array()?, descriptor.array()?);
        let hash_ids = hash_ids.get(..usize::from(hashes)).ok_or(Explanation::IncorrectPayload)?;
        let group_ids =
            group_ids.get(..usize::from(groups)).ok_or(Explanation::IncorrectPayload)?;
        return Ok(MessageBody::Negotiate {
            concatenation,
            hashes: hash_ids.iter().filter_map(|&id| Hash::from_id(id)).collect(),
            groups: group_ids.iter().filter_map(|&id| DhGroup::from_id(id)).collect(),
        });
    }
    Err(Explanation::ProtocolNotUsable)
}

fn challenge(fields: &mut Fields<'_>) -> Result<MessageBody, Explanation> {
    let [digest_bytes, _, hash, group, low, high, s0, s1, s2, s3] = fields.array()?;
    let hash = Hash::from_id(hash).ok_or(Explanation::HashNotUsable)?;
    let group = DhGroup::from_id(group).ok_or(Explanation::GroupNotUsable)?;
    if usize::from(digest_bytes) != hash.digest_bytes() {
        return Err(Explanation::HashNotUsable);
    }
    if usize::from(u16::from_le_bytes([low, high])) != group.value_bytes() {
        return Err(Explanation::GroupNotUsable);
    }
    Ok(MessageBody::Challenge {
        hash,
        group,
        sequence: u32::from_le_bytes([s0, s1, s2, s3]),
        challenge: fields.take(hash.digest_bytes())?.to_vec(),
        public_value: fields.take(group.value_bytes())?.to_vec(),
    })
}

fn reply(fields: &mut Fields<'_>) -> Result<MessageBody, Explanation> {
    let [digest_bytes, _, challenge_valid, _, low, high, s0, s1, s2, s3] = fields.array()?;
    let digest_bytes = digest(digest_bytes)?;
    let response = fields.take(digest_bytes)?.to_vec();
    let challenge = fields.take(digest_bytes)?.to_vec();
    let public_value = fields.take(usize::from(u16::from_le_bytes([low, high])))?.to_vec();
    Ok(MessageBody::Reply {
        response,
        challenge: flag(challenge_valid)?.then_some(challenge),
        sequence: u32::from_le_bytes([s0, s1, s2, s3]),
        public_value,
    })
}

fn success1(fields: &mut Fields<'_>) -> Result<MessageBody, Explanation> {
    let [digest_bytes, _, response_valid, ..]: [u8; 10] = fields.array()?;
    let bytes = digest(digest_bytes)?;
    let response = match flag(response_valid)? {
        true => Some(fields.take(bytes)?.to_vec()),
        false => None,
    };
    Ok(MessageBody::Success1 { digest_bytes, response })
}

fn explanation(fields: &mut Fields<'_>) -> Result<Explanation, Explanation> {
    let [_, code] = fields.array()?;
    // An unknown explanation is a failure, too.
    let known = Explanation::ALL.into_iter().find(|known| *known as u8 == code);
    Ok(known.unwrap_or(Explanation::Failed))
}

fn digest(bytes: u8) -> Result<usize, Explanation> {
    let hash = Hash::from_digest_bytes(usize::from(bytes));
    hash.map(Hash::digest_bytes).ok_or(Explanation::IncorrectPayload)
}

fn flag(value: u8) -> Result<bool, Explanation> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Explanation::IncorrectPayload),
    }
}

/// Unread bytes of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Explanation> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Explanation::IncorrectPayload)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Explanation> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Explanation::IncorrectPayload)?;
        self.0 = rest;
        Ok(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body() -> impl Strategy<Value = MessageBody> {
        let bytes = |count: usize| prop::collection::vec(any::<u8>(), count);
        let hash = (0..3usize).prop_map(|index| Hash::ALL[index]);
        let group = (0..6usize).prop_map(|index| DhGroup::ALL[index]);
        let explanation = (0..7usize).prop_map(|index| Explanation::ALL[index]);
        prop_oneof![
            (
                any::<u8>(),
                prop::collection::vec(hash.clone(), 0..4),
                prop::collection::vec(group.clone(), 0..7)
            )
                .prop_map(|(concatenation, hashes, groups)| MessageBody::Negotiate {
                    concatenation,
                    hashes,
                    groups
                }),
            (hash.clone(), group.clone(), any::<u32>()).prop_flat_map(
                move |(hash, group, sequence)| (
                    bytes(hash.digest_bytes()),
                    bytes(group.value_bytes())
                )
                    .prop_map(move |(challenge, public_value)| {
                        MessageBody::Challenge { hash, group, sequence, challenge, public_value }
                    })
            ),
            (hash.clone(), group, any::<u32>(), any::<bool>()).prop_flat_map(
                move |(hash, group, sequence, mutual)| {
                    let digest = hash.digest_bytes();
                    (bytes(digest), bytes(digest), bytes(group.value_bytes())).prop_map(
                        move |(response, challenge, public_value)| MessageBody::Reply {
                            response,
                            challenge: mutual.then_some(challenge),
                            sequence,
                            public_value,
                        },
                    )
                }
            ),
            (hash, any::<bool>()).prop_flat_map(move |(hash, valid)| {
                bytes(hash.digest_bytes()).prop_map(move |response| MessageBody::Success1 {
                    digest_bytes: hash.digest_bytes() as u8,
                    response: valid.then_some(response),
                })
            }),
            Just(MessageBody::Success2),
            explanation.clone().prop_map(MessageBody::Failure1),
            explanation.prop_map(MessageBody::Failure2),
        ]
    }

    proptest! {
        #[test]
        fn messages_parse_to_what_was_encoded(transaction: u16, body in body()) {
            let message = Message { transaction, body };
            let bytes = message.encode();
            prop_assert!(bytes.len() <= MESSAGE_BYTES);
            prop_assert_eq!(Message::parse(&bytes), Ok(message.clone()));
            let mut longer = bytes.clone();
            longer.resize(MESSAGE_BYTES, 0xaa);
            prop_assert_eq!(Message::parse(&longer), Ok(message));
            // Success2 needs nothing after its header; every other message needs its last byte.
            if bytes.get(1) != Some(&id::SUCCESS2) {
                prop_assert!(Message::parse(&bytes[..bytes.len() - 1]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300),
                                       kind in 0..2u8, id in 0..5u8) {
            let _ = Message::parse(&bytes);
            if let [auth_type, auth_id, ..] = &mut bytes[..] {
                (*auth_type, *auth_id) = (kind, id);
            }
            let _ = Message::parse(&bytes);
        }
    }
}
