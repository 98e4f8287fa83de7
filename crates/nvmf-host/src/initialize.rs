//! Connection initialization: TCP connect, ICReq and ICResp.

use flagstone_auth::tls::Psk;
use flagstone_blockdev::device::MAX_TRANSFER_BYTES;
use flagstone_nvme::limits::{COMMON_HEADER_BYTES, INITIALIZE_BYTES, TERM_REQ_MAX_BYTES};
use flagstone_nvme::pdu::{
    CommonHeader, Digests, Encoder, Fatal, InitializeRequest, InitializeResponse, PduKind,
    Receiver, Rules, TermReqHeader, encode_term_req,
};
use flagstone_nvme::wire::Wire;
use flagstone_runtime::net::Socket;
use flagstone_runtime::{buf, time};

use super::HostError;
use super::connect::ConnectParams;
use super::queue::{Agreement, InitializedConnection};
use super::tls;
use flagstone_transport::Rx;
use flagstone_transport::limits::TERMINATE_TIMEOUT;

/// HPDA: data in PDUs to the host may start at any multiple of 4 bytes.
const HOST_DATA_ALIGNMENT: u8 = 0;
/// MAXR2T: outstanding R2Ts per command.
const R2TS: u32 = 1;

pub(super) async fn initialize(
    params: &ConnectParams,
    generated: Option<&Psk>,
) -> Result<InitializedConnection, HostError> {
    let wanted = params.options.digests;
    let socket = tls::connect(params, generated).await?;
    let unused = socket.stream().clone();
    let guard = OnDrop::new(move || unused.shutdown());
    let request = InitializeRequest::new(wanted, HOST_DATA_ALIGNMENT, R2TS);
    let mut out = buf::alloc_small(INITIALIZE_BYTES);
    out.copy_from_slice(request.bytes());
    socket.send_buf(out.freeze()).await.map_err(HostError::Broken)?;
    let mut rx = Rx::new(socket.clone());
    let agreement = match agree(&mut rx, wanted).await {
        Ok(agreement) => agreement,
        Err((error, offending)) => {
            if let HostError::Protocol(fatal) = error {
                let reported = terminate(&socket, &mut rx, fatal, &offending);
                let _ = time::timeout(TERMINATE_TIMEOUT, reported).await;
            }
            return Err(error);
        }
    };
    guard.disarm();
    Ok(InitializedConnection { socket, rx, agreement })
}

/// Receives the ICResp. An error includes the invalid header.
async fn agree(rx: &mut Rx, wanted: Digests) -> Result<Agreement, (HostError, Vec<u8>)> {
    let mut scratch = [0; INITIALIZE_BYTES];
    arrive(rx, COMMON_HEADER_BYTES).await?;
    let bytes = rx.peek(COMMON_HEADER_BYTES, &mut scratch).expect("they have arrived");
    let common = *CommonHeader::view(bytes).expect("8 bytes");
    let frame = Rules::initial(Receiver::Host)
        .check(&common)
        .map_err(|violation| (violation.into(), common.bytes().to_vec()))?;
    arrive(rx, frame.header_end()).await?;
    let bytes = rx.peek(frame.header_end(), &mut scratch).expect("they have arrived");
    if frame.kind != PduKind::IcResp {
        let said = TermReqHeader::view(bytes).map(|header| header.fatal().to_string());
        return Err((HostError::Terminated(said.unwrap_or_default()), Vec::new()));
    }
    let response = *InitializeResponse::view(bytes).expect("a whole ICResp");
    if let Err(fatal) = response.check(wanted) {
        return Err((HostError::Protocol(fatal), bytes.to_vec()));
    }
    rx.skip(INITIALIZE_BYTES);
    let digests = response.digests();
    Ok(Agreement {
        encoder: Encoder::new(digests, response.controller_alignment),
        rules: Rules::of_host(digests, HOST_DATA_ALIGNMENT, MAX_TRANSFER_BYTES as u32),
        max_h2c_data_bytes: response.max_h2c_data_bytes.get(),
    })
}

async fn arrive(rx: &mut Rx, len: usize) -> Result<(), (HostError, Vec<u8>)> {
    while rx.available() < len {
        rx.more().await.map_err(|error| (error.into(), Vec::new()))?;
    }
    Ok(())
}

/// Sends a TermReq, and waits for the target to close.
async fn terminate(socket: &Socket, rx: &mut Rx, fatal: Fatal, offending: &[u8]) {
    let mut out = buf::alloc_small(TERM_REQ_MAX_BYTES);
    if let Some(len) = encode_term_req(&mut out, Receiver::Host, fatal, offending) {
        let _ = socket.send_buf(out.freeze().slice(0..len)).await;
        rx.until_closed().await;
    }
}

/// Runs a closure when it is dropped, unless it is disarmed before.
pub(super) struct OnDrop<F: FnMut()>(Option<F>);

impl<F: FnMut()> OnDrop<F> {
    pub(super) fn new(run: F) -> OnDrop<F> {
        OnDrop(Some(run))
    }

    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(run) = &mut self.0 {
            run();
        }
    }
}
