//! Malformed input: each violation gets the response that the transport specification requires, has
//! no effect, and leaves the target usable.

mod commands;
mod data;
mod digests;
mod setup_teardown;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::mem::offset_of;

use flagstone_nvme::command::admin::{GetLogPage, Identify};
use flagstone_nvme::command::fabrics::{
    CONTROLLER_ID_DYNAMIC, ConnectCommand, ConnectData, ConnectField, PropertyCommand,
};
use flagstone_nvme::digest::wire_digest;
use flagstone_nvme::identify::{Cns, NamespaceList};
use flagstone_nvme::log::{DiscoveryHeader, LogId};
use flagstone_nvme::pdu::{
    CommonHeader, DataHeader, Digests, Fatal, FatalStatus, InitializeRequest, PduType, R2tHeader,
};
use flagstone_nvme::property::{Property, PropertySize};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::wire::{U16, U32, U64};
use flagstone_nvme::{Nqn, Sqe, Status, Wire};
use flagstone_nvmf_target::TargetConfig;
use flagstone_runtime::task;

use support::client::{enabled, range};
use support::{
    BlockingDevice, Client, Dice, Host, Options, Pdu, Server, eventually, on_each_driver, pattern,
};

const BLOCK: u64 = 512;
const BOTH: Digests = Digests { header: true, data: true };

/// Runs an attack against a new target on each driver, and checks the target afterwards.
fn survives(attack: impl AsyncFn(&Server) + Sync) {
    on_each_driver(async || {
        let server = Server::new();
        attack(&server).await;
        server.is_sound().await;
    });
}

/// Starts a write of 128 KiB as command 5 on a new I/O queue; returns its R2T.
async fn asked_for_data(server: &Server) -> (Host, R2tHeader) {
    let mut host = Host::attach(server, &Options::default()).await;
    host.io.submit(big_write(5)).await;
    let r2t = host.io.r2t().await;
    assert_eq!((r2t.cid.get(), r2t.offset.get(), r2t.data_bytes.get()), (5, 0, BIG as u32));
    (host, r2t)
}

const BIG: usize = 128 << 10;

fn big_write(cid: u16) -> Sqe {
    Sqe::write(cid, 1, range(0, BLOCK, BIG), false, SglDescriptor::transport(BIG as u32))
}

/// Checks that `bytes` on a connection with a pending R2T of 128 KiB cause `fatal`, and that
/// nothing is written.
fn data_is_refused(fatal: Fatal, bytes: impl Fn(&Client, u16) -> Vec<u8> + Sync) {
    survives(async |server| {
        let (mut host, r2t) = asked_for_data(server).await;
        let before = server.gate.writes();
        let bytes = bytes(&host.io, r2t.transfer_tag.get());
        host.io.send(&bytes).await;
        assert_eq!(host.io.terminated().await, fatal);
        assert_eq!(server.gate.writes(), before);
    });
}

/// Checks that `bytes` on a new I/O queue cause `fatal`.
fn pdu_is_refused(fatal: Fatal, bytes: impl Fn(&Client) -> Vec<u8> + Sync) {
    survives(async |server| {
        let mut host = Host::attach(server, &Options::default()).await;
        let bytes = bytes(&host.io);
        host.io.send(&bytes).await;
        assert_eq!(host.io.terminated().await, fatal);
    });
}

/// Modifies the common header of `pdu`.
fn bend(mut pdu: Vec<u8>, change: impl FnOnce(&mut CommonHeader)) -> Vec<u8> {
    change(CommonHeader::view_mut(&mut pdu).unwrap());
    pdu
}

/// Modifies the header of an H2CData PDU.
fn bend_data(mut pdu: Vec<u8>, change: impl FnOnce(&mut DataHeader)) -> Vec<u8> {
    change(DataHeader::view_mut(&mut pdu).unwrap());
    pdu
}

const UNKNOWN_TAG: Fatal = Fatal::UNKNOWN_TRANSFER_TAG;
const LENGTH: Fatal = Fatal::field(offset_of!(DataHeader, data_bytes));
const OFFSET: Fatal = Fatal::field(offset_of!(CommonHeader, data_offset));
const PDU_LENGTH: Fatal = Fatal::field(offset_of!(CommonHeader, pdu_bytes));
const KIND: Fatal = Fatal::field(offset_of!(CommonHeader, kind));
const FLAGS: Fatal = Fatal::field(offset_of!(CommonHeader, flags));
const HEADER_LENGTH: Fatal = Fatal::field(offset_of!(CommonHeader, header_bytes));

fn write_capsule(io: &Client, bytes: u32) -> Vec<u8> {
    let sgl = SglDescriptor::in_capsule(bytes);
    let command = Sqe::write(7, 1, range(0, BLOCK, bytes as usize), false, sgl);
    io.capsule(&command, &pattern(3, bytes as usize))
}

fn digests() -> Options {
    Options { digests: BOTH, ..Options::default() }
}

/// Gives sent bytes time to arrive. Not a guarantee: it only makes the test more likely to catch a
/// bug.
async fn settle() {
    flagstone_runtime::time::sleep(std::time::Duration::from_millis(20)).await;
}
