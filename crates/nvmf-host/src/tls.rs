//! TLS of a connection to a target.

use flagstone_auth::tls::{Psk, offered};
use flagstone_runtime::net::{Socket, Stream};
use flagstone_runtime::tls::TlsClient;
use flagstone_transport::tls_psk;

use super::HostError;
use super::connect::ConnectParams;

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
    let psks = offered(&key, &host, &subsystem).into_iter().map(tls_psk);
    let client = TlsClient::with_psks(psks.collect());
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
