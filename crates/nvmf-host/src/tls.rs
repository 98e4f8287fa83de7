//! TLS of a connection to a target.

use flagstone_auth::tls::{Psk, TlsKey, offered};
use flagstone_runtime::net::{Socket, Stream};
use flagstone_runtime::random_u64;
use flagstone_runtime::tls::{TlsClient, TlsFailure};
use flagstone_transport::tls_psk;

use super::HostError;
use super::connect::ConnectParams;
use super::options::IdentityVersion;

/// Name of a host that no target knows, for its log.
const PROBING_HOST: &str = "nqn.2026-01.io.flagstone:tls-probe";

/// True if the target answers a ClientHello with an alert: it has TLS, for whichever key.
///
/// The ClientHello names a host that the target does not know. With the name of this host, a target
/// that has its TLS key would take the random key for a guess, and delay the next connections from
/// this address.
pub(super) async fn is_spoken(params: &ConnectParams) -> bool {
    let mut unknown = [0; 32];
    for part in unknown.chunks_mut(8) {
        part.copy_from_slice(&random_u64().to_le_bytes());
    }
    let Ok(key) = TlsKey::new(&unknown, None) else { return false };
    let psks = offered(&key, PROBING_HOST, &params.subnqn.to_string());
    let psks = psks.into_iter().map(tls_psk);
    let Ok(client) = TlsClient::with_psks(psks.collect()) else { return false };
    let Ok(stream) = Stream::connect(&params.address).await else { return false };
    matches!(client.connect(stream, &[]).await, Err(TlsFailure::Alert(_)))
}

/// Connects, with TLS if the options say so, or with the PSK that concatenation has generated.
pub(super) async fn connect(
    params: &ConnectParams,
    generated: Option<&Psk>,
) -> Result<Socket, HostError> {
    let stream = Stream::connect(&params.address).await.map_err(HostError::Connect)?;
    if let Some(psk) = generated {
        let client = TlsClient::with_psks(vec![tls_psk(psk.clone())]);
        let client = client.map_err(|_| HostError::Options("the PSK cannot be used"))?;
        return Ok(client.connect(stream, &[]).await.map_err(HostError::GeneratedPsk)?.into());
    }
    let Some(tls) = &params.options.tls else { return Ok(stream.into()) };
    let key = tls.keys.first().ok_or(HostError::Options("there is no TLS key"))?;
    let (host, subsystem) = (params.host_nqn.to_string(), params.subnqn.to_string());
    let mut psks = offered(&key, &host, &subsystem);
    if tls.first_identity == IdentityVersion::Zero {
        psks.reverse();
    }
    let client = TlsClient::with_psks(psks.into_iter().map(tls_psk).collect());
    let client = client.map_err(|_| HostError::Options("the TLS key cannot be used"))?;
    let failed = match client.connect(stream, &[]).await {
        Ok(stream) => return Ok(stream.into()),
        Err(failed) => failed,
    };
    // A target without TLS answers a ClientHello with a TermReq, which is no record, and closes;
    // one with TLS for other hosts sends an alert.
    if !tls.allow_plain {
        return Err(HostError::Tls(failed));
    }
    tracing::warn!(address = %params.address, "connecting without TLS, as is allowed: {failed}");
    let stream = Stream::connect(&params.address).await.map_err(HostError::Connect)?;
    Ok(stream.into())
}
