//! Authentication of a queue (Base 8.3.5), with DH-HMAC-CHAP: after Connect, bounded by the
//! caller's timeout, and again at intervals, while I/O continues.
//!
//! The group operations run off this core.

use std::rc::Rc;

use flagstone_auth::host::ExchangeOptions;
use flagstone_auth::message::MESSAGE_BYTES;
use flagstone_auth::tls::Psk;
use flagstone_auth::{
    Concatenation, DhGroup, Explanation, Hash, HostExchange, HostFailure, HostStep, KeyDemand,
    KeyRing, Names, Randomness,
};
use flagstone_nvme::command::fabrics::AuthenticationCommand;
use flagstone_nvme::{Sqe, Status};
use flagstone_runtime::time::{self, Backoff};
use flagstone_runtime::{buf, compute, random_u64};

use super::HostError;
use super::command::CommandData;
use super::connect::{ConnectParams, succeeded};
use super::queue::HostQueue;
use crate::limits::{BUSY_PAUSE, BUSY_PAUSE_MAX, REAUTHENTICATION_TIMEOUT};

/// Authenticates `queue`, which is connected and asks for it. Returns the PSK that `concatenation`
/// asks for.
pub(super) async fn authenticate(
    queue: &Rc<HostQueue>,
    params: &ConnectParams,
    concatenation: Concatenation,
) -> Result<Option<Psk>, HostError> {
    let host = exchange(params, concatenation)?;
    send(queue, host.negotiate()).await?;
    run(queue, host, concatenation).await
}

/// Authenticates `queue` again. A target that is too busy for that may put it off, but not until
/// the next time: it would otherwise never have to prove itself.
pub(super) async fn reauthenticate(
    queue: &Rc<HostQueue>,
    params: &ConnectParams,
) -> Result<(), HostError> {
    let mut pauses = Backoff::new(BUSY_PAUSE, BUSY_PAUSE_MAX);
    let begun = time::now();
    loop {
        let exchange = authenticate(queue, params, Concatenation::None);
        match time::timeout(REAUTHENTICATION_TIMEOUT, exchange).await? {
            Err(HostError::FabricsRefused { status, .. })
                if status.code() == Status::COMMAND_INTERRUPTED
                    && !status.is_dnr()
                    && begun.elapsed() < params.options.reauthentication_interval => {}
            ended => return ended.map(drop),
        }
        time::sleep(pauses.advance()).await;
    }
}

/// Runs an exchange after its first message.
async fn run(
    queue: &Rc<HostQueue>,
    mut host: HostExchange,
    concatenation: Concatenation,
) -> Result<Option<Psk>, HostError> {
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

/// Outcome of an exchange that the target has not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnaskedOutcome {
    /// Both sides have proven themselves.
    Authenticated,
    /// The target has no key of this host, which may do without.
    NoKey,
}

/// Authenticates `queue`, whose target does not ask for it but has to prove itself. The target may
/// ask for nothing because it also accepts this host without a key.
///
/// Only a target without a key makes a host with optional keys do without, by its refusal of the
/// first message. Every other refusal is an error. An attacker on the way can still send that
/// refusal, so optional keys keep nobody out.
///
/// # Errors
/// [`HostError::NoProof`] if the target has no key of this host, which needs one.
pub(super) async fn authenticate_unasked(
    queue: &Rc<HostQueue>,
    params: &ConnectParams,
) -> Result<UnaskedOutcome, HostError> {
    let host = exchange(params, Concatenation::None)?;
    match send(queue, host.negotiate()).await {
        Err(HostError::FabricsRefused { status, .. }) if means_no_key(status) => {
            let demand = params.options.keys.as_ref().map(|keys| keys.demand);
            if demand != Some(KeyDemand::Optional) {
                return Err(HostError::NoProof);
            }
            let address = &params.address;
            tracing::warn!(%address, "connecting without authentication, as is allowed: {status}");
            return Ok(UnaskedOutcome::NoKey);
        }
        other => other?,
    }
    run(queue, host, Concatenation::None).await?;
    Ok(UnaskedOutcome::Authenticated)
}

/// True for the answers to AUTH_Negotiate of a target without a key of this host: Command Sequence
/// Error, as the queue has nothing to authenticate, or Invalid Command Opcode from a target that
/// knows no authentication.
pub(super) fn means_no_key(status: Status) -> bool {
    let known = [Status::COMMAND_SEQUENCE_ERROR, Status::INVALID_OPCODE];
    status.is_dnr() && known.contains(&status.code())
}

fn exchange(
    params: &ConnectParams,
    concatenation: Concatenation,
) -> Result<HostExchange, HostError> {
    let keys = params.options.keys.as_ref().ok_or(HostError::KeyRequired)?;
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

/// Sends an authentication command that must succeed. Returns its data.
async fn ask_reserved(
    queue: &Rc<HostQueue>,
    command: &Sqe,
    data: CommandData,
) -> Result<CommandData, HostError> {
    let ended = queue.run_reserved(command, data).await;
    succeeded("authentication", command, ended).map(|(_, data)| data)
}

async fn send(queue: &Rc<HostQueue>, message: Vec<u8>) -> Result<(), HostError> {
    let command = AuthenticationCommand::send(0, message.len() as u32).command();
    let mut data = buf::alloc_small(message.len());
    data.copy_from_slice(&message);
    ask_reserved(queue, &command, CommandData::Out(data.freeze())).await.map(drop)
}

async fn fetch(queue: &Rc<HostQueue>) -> Result<Vec<u8>, HostError> {
    let command = AuthenticationCommand::receive(0, MESSAGE_BYTES as u32).command();
    // The length is an allocation length: SPDK's target sends only the message.
    let place = CommandData::UpTo(buf::alloc_small(MESSAGE_BYTES));
    match ask_reserved(queue, &command, place).await? {
        CommandData::UpTo(message) => Ok(message.to_vec()),
        _ => unreachable!("the place comes back"),
    }
}
