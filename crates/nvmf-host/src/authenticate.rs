//! Authentication of a queue after Connect (Base 8.3.5), with DH-HMAC-CHAP.
//!
//! The caller's timeout bounds it. The group operations run off this core.

use std::rc::Rc;

use flagstone_auth::host::ExchangeOptions;
use flagstone_auth::message::MESSAGE_BYTES;
use flagstone_auth::tls::Psk;
use flagstone_auth::{
    Concatenation, DhGroup, Explanation, Hash, HostExchange, HostFailure, HostStep, KeyDemand,
    KeyPair, KeyRing, Names, Randomness,
};
use flagstone_nvme::command::fabrics::AuthenticationCommand;
use flagstone_runtime::{buf, compute, random_u64};

use super::HostError;
use super::command::CommandData;
use super::connect::{ConnectParams, ask};
use super::queue::HostQueue;

/// Authenticates `queue`, which is connected and asks for it. Returns the PSK that `concatenation`
/// asks for.
pub(super) async fn authenticate(
    queue: &Rc<HostQueue>,
    params: &ConnectParams,
    concatenation: Concatenation,
) -> Result<Option<Psk>, HostError> {
    let keys = params.options.keys.as_ref().ok_or(HostError::KeyRequired)?;
    let mut host = exchange(keys, params, concatenation)?;
    send(queue, host.negotiate()).await?;
    loop {
        let message = fetch(queue).await?;
        let computed = compute(move || {
            let step = host.fetched(&message);
            (host, step)
        });
        let (kept, step) = computed.await.map_err(HostError::Broken)?;
        host = kept;
        match step {
            Ok(HostStep::Reply(reply)) => send(queue, reply).await?,
            Ok(HostStep::Authenticated(final_reply)) => {
                if let Some(final_reply) = final_reply {
                    send(queue, final_reply).await?;
                }
                return Ok(host.take_psk());
            }
            Err(failure) => {
                if let HostFailure::Distrusted { final_reply, .. } = &failure {
                    // The connection ends anyway.
                    let _ = send(queue, final_reply.clone()).await;
                }
                let mismatch = HostFailure::Refused(Explanation::ConcatenationMismatch);
                return Err(match concatenation {
                    Concatenation::None => HostError::Authentication(failure),
                    _ if failure == mismatch => HostError::ConcatenationRefused,
                    _ => HostError::Authentication(failure),
                });
            }
        }
    }
}

/// Authenticates `queue`, whose target does not ask for it but has to prove itself. The target may
/// ask for nothing because it also accepts this host without a key.
///
/// # Errors
/// [`HostError::NoProof`] if the target has no key of this host, which needs one.
pub(super) async fn authenticate_unasked(
    queue: &Rc<HostQueue>,
    params: &ConnectParams,
) -> Result<(), HostError> {
    let demand = params.options.keys.as_ref().map(|keys| keys.demand);
    match authenticate(queue, params, Concatenation::None).await {
        Err(HostError::FabricsRefused { status, .. }) if status.is_dnr() => {
            if demand != Some(KeyDemand::Optional) {
                return Err(HostError::NoProof);
            }
            let address = &params.address;
            tracing::warn!(%address, "connecting without authentication, as is allowed: {status}");
            Ok(())
        }
        other => other.map(drop),
    }
}

fn exchange(
    keys: &KeyPair,
    params: &ConnectParams,
    concatenation: Concatenation,
) -> Result<HostExchange, HostError> {
    let options = ExchangeOptions {
        names: Names { host: params.host_nqn.to_string(), subsystem: params.subnqn.to_string() },
        secret: keys.host.first().ok_or(HostError::KeyRequired)?,
        controller_secrets: keys.controller.as_ref().map(KeyRing::secrets).unwrap_or_default(),
        hashes: Hash::ALL.into(),
        // The smallest group first: the larger ones take ten times as long, and add nothing to a
        // secret of 256 random bits. This side accepts what the target prefers.
        groups: DhGroup::ALL.into(),
        concatenation,
    };
    Ok(HostExchange::new(options, random_u64() as u16, Randomness::from_words(random_u64)))
}

async fn send(queue: &Rc<HostQueue>, message: Vec<u8>) -> Result<(), HostError> {
    let command = AuthenticationCommand::send(0, message.len() as u32).command();
    let mut data = buf::alloc_small(message.len());
    data.copy_from_slice(&message);
    ask(queue, "Authentication Send", command, CommandData::Out(data.freeze())).await.map(drop)
}

async fn fetch(queue: &Rc<HostQueue>) -> Result<Vec<u8>, HostError> {
    let command = AuthenticationCommand::receive(0, MESSAGE_BYTES as u32).command();
    // The length is an allocation length: SPDK's target sends only the message.
    let place = CommandData::UpTo(buf::alloc_small(MESSAGE_BYTES));
    match ask(queue, "Authentication Receive", command, place).await?.1 {
        CommandData::UpTo(message) => Ok(message.to_vec()),
        _ => unreachable!("the place comes back"),
    }
}
