//! Identify: fields that hosts rely on, and invalid identifiers.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, Geometry, IoFuture, SharedDevice, ZeroFlags};
use flagstone_nvme::command::admin::Identify;
use flagstone_nvme::identify::controller::multipath;
use flagstone_nvme::identify::{
    Cns, ControllerList, IdentifyController, IdentifyNamespace, IndependentNamespace,
    NamespaceDescriptor, NamespaceList, NvmController, descriptors,
};
use flagstone_nvme::sgl::SglDescriptor;
use flagstone_nvme::status::Status;
use flagstone_nvme::wire::{Wire, ascii};
use flagstone_runtime::{Buf, BufMut};

use super::*;

fn identify(host: &TestHost, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
    send(host, Identify::new(cns, nsid))
}

fn send(host: &TestHost, identify: Identify) -> Result<Vec<u8>, Status> {
    let (_, data) = host.send(&identify.command(1), &[])?;
    assert_eq!(data.len(), 4096);
    Ok(data)
}

fn refused(status: Status) -> Result<Vec<u8>, Status> {
    Err(status.dnr())
}

/// Hosts sent discards of up to 2 TiB in one command, which lasted longer than their timeout.
#[test]
fn discards_have_an_advised_length() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let data = identify(&host, Cns::COMMAND_SET_CONTROLLER, 0).unwrap();
    let limits = NvmController::view(&data).unwrap();
    assert_eq!((limits.dsm_ranges, limits.dsm_range_blocks.get()), (0, 1 << 20));
}

/// Fields that Linux, SPDK and Windows check before they use a controller.
#[test]
fn identify_io_controller() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let data = identify(&host, Cns::CONTROLLER, 0).unwrap();
    let id = IdentifyController::view(&data).unwrap();
    assert_eq!(id.controller_id.get(), host.id());
    assert_eq!((id.controller_type, id.version.get()), (1, 0x0002_0000));
    assert_eq!(id.subnqn(), Ok(volume()));
    assert_eq!(ascii(&id.serial_number), Some("SN-1"));
    assert_eq!(ascii(&id.model_number), Some("Flagstone"));
    assert_eq!((id.vendor.get(), id.subsystem_vendor.get()), (0xf1a6, 0xf1a6));
    // Locally administered, as the second lowest bit of the first octet says.
    assert_eq!(id.oui, [0xa6, 0xf1, 0x02]);
    assert_eq!(id.max_transfer_bytes(0), Some(1 << 20));
    assert_eq!((id.capsule_cmd_16b.get(), id.capsule_resp_16b.get()), (4 + 4096, 1));
    assert_eq!((id.in_capsule_offset_16b.get(), id.max_descriptors), (0, 1));
    assert_eq!((id.fabrics_attributes, id.optional_fabrics.get()), (0, 1));
    assert_eq!(id.sgl.get(), 1 | 1 << 20 | 1 << 21);
    assert_eq!((id.sqe_exponents, id.cqe_exponents), (0x66, 0x44));
    assert_eq!((id.max_commands.get(), id.keep_alive_100ms.get()), (1024, 10));
    // Compare, Dataset Management, Write Zeroes, save and select, Verify, Copy.
    assert_eq!(id.optional_io.get(), 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 7 | 1 << 8);
    assert_eq!(id.copy_formats.get(), 1);
    assert_eq!(id.optional_admin.get(), 0);
    assert_eq!(id.attributes.get(), 1 | 1 << 6);
    assert_eq!(id.events.get(), 1 << 8 | 1 << 11);
    // No volatile cache, and Flush of all namespaces is supported.
    assert_eq!(id.volatile_write_cache, 3 << 1);
    // Linux disables ANA unless all of these hold.
    assert_ne!(id.multipath & multipath::ANA, 0);
    assert_eq!((id.ana_groups.get(), id.ana_group_max.get()), (2, 2));
    assert!(id.allowed_namespaces.get() > 0);
    assert!(id.allowed_namespaces.get() <= id.namespaces.get());
    let ana_log_bytes = 16 + 2 * 32 + 4 * id.allowed_namespaces.get();
    assert!(ana_log_bytes <= id.max_transfer_bytes(0).unwrap());
}

/// Linux removes the disk of a namespace that is not in the list of active ones, that has no
/// blocks, or whose Identify fails for good. A server that restarted before the device of one
/// namespace was back so removed a disk with a mounted file system.
#[test]
fn pending_namespace_is_active_and_not_ready() {
    let target = target();
    target.add_pending_namespace(&volume(), 3).unwrap();
    let again = target.add_pending_namespace(&volume(), 3);
    assert_eq!(again, Err(TargetError::NamespaceExists(3)));
    let host = TestHost::connect(&target, &volume());
    let active = |above| {
        let data = identify(&host, Cns::ACTIVE_NAMESPACES, above).unwrap();
        NamespaceList::view(&data).unwrap().iter().collect::<Vec<u32>>()
    };
    assert_eq!(active(0), [1, 3]);
    assert_eq!((active(2), active(3)), (vec![3], vec![]));
    // Identifier 3 is taken.
    assert_eq!(add_namespace(&target, None), Ok(2));
    assert_eq!(add_namespace(&target, None), Ok(4));
    assert_eq!(active(0), [1, 2, 3, 4]);
    for cns in [Cns::NAMESPACE, Cns::NAMESPACE_DESCRIPTORS, Cns::COMMAND_SET_NAMESPACE] {
        assert_eq!(identify(&host, cns, 3), Err(Status::NAMESPACE_NOT_READY), "{cns:?}");
    }
    let status = |nsid| {
        let data = identify(&host, Cns::INDEPENDENT_NAMESPACE, nsid).unwrap();
        let one = IndependentNamespace::view(&data).unwrap();
        (one.sharing, one.status, one.ana_group.get())
    };
    assert_eq!((status(1), status(3)), ((1, 1, 1), (1, 0, 2)));
    assert!(identify(&host, Cns::ATTACHED_CONTROLLERS, 3).is_ok());
    add_namespace(&target, Some(3)).unwrap();
    assert_eq!((active(0), status(3)), (vec![1, 2, 3, 4], (1, 1, 1)));
    assert!(identify(&host, Cns::NAMESPACE_DESCRIPTORS, 3).is_ok());
    // A removed namespace is not pending again.
    target.remove_namespace(&volume(), 3).unwrap();
    assert_eq!(active(0), [1, 2, 4]);
}

#[test]
fn volatile_cache_is_reported() {
    let target = target();
    let (device, _) = cached_device();
    let config = NamespaceConfig { nsid: None, device, uuid: [3; 16], read_only: false };
    target.add_namespace(&volume(), config).unwrap();
    let host = TestHost::connect(&target, &volume());
    let data = identify(&host, Cns::CONTROLLER, 0).unwrap();
    assert_eq!(IdentifyController::view(&data).unwrap().volatile_write_cache, 7);
    for (nsid, features) in [(1, 1 << 5), (2, 0)] {
        let data = identify(&host, Cns::INDEPENDENT_NAMESPACE, nsid).unwrap();
        assert_eq!(IndependentNamespace::view(&data).unwrap().features, features);
    }
}

/// A thin device, of which some bytes are in use.
struct Thin(SharedDevice, u64);

impl BlockDevice for Thin {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn used_bytes(&self) -> Option<u64> {
        Some(self.1)
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.0.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        self.0.write(offset, data, fua)
    }

    fn flush(&self) -> IoFuture<()> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.0.write_zeroes(offset, len, flags)
    }
}

#[test]
fn thin_namespace_reports_the_space_in_use() {
    for (used, blocks) in [(0, 0), (4097, 9), (u64::MAX, 1 << 21)] {
        let target = target();
        let device = Arc::new(Thin(null_device(Geometry::new(1 << 30, 512)), used));
        let config = NamespaceConfig { nsid: Some(7), device, uuid: [3; 16], read_only: false };
        target.add_namespace(&volume(), config).unwrap();
        let host = TestHost::connect(&target, &volume());
        let data = identify(&host, Cns::NAMESPACE, 7).unwrap();
        let id = IdentifyNamespace::view(&data).unwrap();
        assert_eq!((id.size_blocks.get(), id.used_blocks.get()), (1 << 21, blocks));
        assert_eq!(id.features, 1 << 4 | 1);
    }
}

#[test]
fn identify_discovery_controller() {
    let target = target();
    let host = TestHost::connect(&target, &Nqn::discovery());
    let data = identify(&host, Cns::CONTROLLER, 0).unwrap();
    let id = IdentifyController::view(&data).unwrap();
    assert_eq!((id.controller_type, id.discovery_type), (2, 1));
    assert_eq!(id.subnqn(), Ok(Nqn::discovery()));
    assert_eq!(id.events.get(), 1 << 31);
    assert_eq!((id.namespaces.get(), id.optional_io.get(), id.multipath), (0, 0, 0));
    assert!(id.max_commands.get() > 0 && id.keep_alive_100ms.get() > 0);
    for cns in (0..=255).filter(|&cns| cns != Cns::CONTROLLER.0) {
        assert_eq!(identify(&host, Cns(cns), 1), refused(Status::INVALID_FIELD));
    }
}

#[test]
fn identify_namespace_matches_device() {
    let target = target();
    let geometry = Geometry {
        physical_block_bytes: 4096,
        optimal_io_bytes: 1 << 16,
        ..Geometry::new(1 << 30, 512)
    };
    let device = null_device(geometry);
    let config = NamespaceConfig { nsid: Some(7), device, uuid: [0x5a; 16], read_only: true };
    target.add_namespace(&volume(), config).unwrap();
    let host = TestHost::connect(&target, &volume());
    let data = identify(&host, Cns::NAMESPACE, 7).unwrap();
    let id = IdentifyNamespace::view(&data).unwrap();
    assert_eq!(id.size_blocks.get(), 1 << 21);
    assert_eq!((id.capacity_blocks, id.used_blocks), (id.size_blocks, id.size_blocks));
    assert_eq!(id.format().unwrap().block_bytes(), Some(512));
    assert_eq!((id.formats_0based, id.format_in_use), (0, 0));
    let copy_blocks = (1 << 20) >> id.formats[0].block_exponent;
    assert_eq!(
        (id.copy_range_blocks.get(), id.copy_blocks.get()),
        (copy_blocks as u16, copy_blocks)
    );
    assert_eq!(id.copy_ranges_0based, 127);
    // In blocks of 512 bytes, 0's based: 4 KiB physical, 64 KiB optimal.
    assert_eq!((id.write_granularity_0based.get(), id.optimal_write_0based.get()), (7, 127));
    assert_eq!((id.features, id.sharing, id.attributes), (1 << 4, 1, 1));
    assert_eq!((id.deallocate_features, id.reservation_capabilities), (1 << 3 | 1, 0));
    assert_eq!((id.nguid, id.eui64, id.ana_group.get()), ([0x5a; 16], [0; 8], 1));
    assert_eq!(id.capacity_bytes.get(), 1 << 30);

    let data = identify(&host, Cns::INDEPENDENT_NAMESPACE, 7).unwrap();
    let id = IndependentNamespace::view(&data).unwrap();
    assert_eq!((id.sharing, id.attributes, id.status, id.ana_group.get()), (1, 1, 1, 1));
    assert_eq!(id.features, 1 << 5, "no volatile cache");

    let data = identify(&host, Cns::NAMESPACE_DESCRIPTORS, 7).unwrap();
    let names: Vec<NamespaceDescriptor> = descriptors(&data).collect();
    let uuid = [0x5a; 16];
    let expected = [
        NamespaceDescriptor::Uuid(uuid),
        NamespaceDescriptor::Nguid(uuid),
        NamespaceDescriptor::CommandSet(0),
    ];
    assert_eq!(names, expected);

    let data = identify(&host, Cns::NAMESPACE, 1).unwrap();
    let id = IdentifyNamespace::view(&data).unwrap();
    assert_eq!(id.format().unwrap().block_bytes(), Some(4096));
    assert_eq!(
        (id.size_blocks.get(), id.attributes, id.write_granularity_0based.get()),
        (256, 0, 0)
    );
}

#[test]
fn oversized_hints_are_clamped() {
    let target = target();
    let geometry = Geometry { optimal_io_bytes: u32::MAX, ..Geometry::new(1 << 30, 512) };
    let device = null_device(Geometry { physical_block_bytes: 256, ..geometry });
    let config = NamespaceConfig { nsid: Some(7), device, uuid: [0x5a; 16], read_only: false };
    target.add_namespace(&volume(), config).unwrap();
    let host = TestHost::connect(&target, &volume());
    let data = identify(&host, Cns::NAMESPACE, 7).unwrap();
    let id = IdentifyNamespace::view(&data).unwrap();
    assert_eq!((id.write_granularity_0based.get(), id.optimal_write_0based.get()), (0, 0xffff));
}

#[test]
fn identify_inactive_and_invalid_namespaces() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    for cns in [
        Cns::NAMESPACE,
        Cns::COMMAND_SET_NAMESPACE,
        Cns::INDEPENDENT_NAMESPACE,
        Cns::ALLOCATED_NAMESPACE,
    ] {
        for nsid in [2, 1024] {
            assert_eq!(identify(&host, cns, nsid), Ok(vec![0; 4096]));
        }
        for nsid in [0, 1025, 65_535, u32::MAX - 1, u32::MAX] {
            assert_eq!(identify(&host, cns, nsid), refused(Status::INVALID_NAMESPACE));
        }
    }
    for cns in [Cns::NAMESPACE_DESCRIPTORS, Cns::ATTACHED_CONTROLLERS] {
        for nsid in [0, 2, 1025, u32::MAX] {
            assert_eq!(identify(&host, cns, nsid), refused(Status::INVALID_NAMESPACE));
        }
    }
    for cns in [
        Cns::ACTIVE_NAMESPACES,
        Cns::ALLOCATED_NAMESPACES,
        Cns::COMMAND_SET_ACTIVE_NAMESPACES,
        Cns::COMMAND_SET_ALLOCATED,
    ] {
        assert_eq!(identify(&host, cns, 0).unwrap()[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(identify(&host, cns, 1), Ok(vec![0; 4096]));
        assert_eq!(identify(&host, cns, u32::MAX - 2), Ok(vec![0; 4096]));
        for nsid in [u32::MAX - 1, u32::MAX] {
            assert_eq!(identify(&host, cns, nsid), refused(Status::INVALID_NAMESPACE));
        }
    }
}

#[test]
fn unknown_identify_structures_are_refused() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let ours = [0, 1, 2, 3, 5, 6, 7, 8, 0x10, 0x11, 0x12, 0x13, 0x1a, 0x1c];
    for cns in 0..=255 {
        let answer = send(&host, Identify { controller_id: 0xffff, ..Identify::new(Cns(cns), 1) });
        if ours.contains(&cns) {
            assert!(answer.is_ok(), "{cns:#x}");
        } else {
            assert_eq!(answer, refused(Status::INVALID_FIELD));
        }
    }
    for cns in [5, 6, 7, 0x1a] {
        for csi in [1, 2, 255] {
            let answer = send(&host, Identify { csi, ..Identify::new(Cns(cns), 1) });
            assert_eq!(answer, refused(Status::INVALID_COMMAND_SET));
        }
    }
    for (controller_id, known) in [(host.id(), true), (host.id() + 1, false)] {
        let asked = Identify { controller_id, ..Identify::new(Cns::COMMAND_SETS, 0) };
        assert_eq!(send(&host, asked).is_ok(), known);
    }
}

#[test]
fn identify_needs_sufficient_sgl() {
    let target = target();
    let host = TestHost::connect(&target, &volume());
    let mut command = Identify::new(Cns::CONTROLLER, 0).command(1);
    let in_capsule = SglDescriptor::in_capsule(4096);
    let mut keyed = SglDescriptor::transport(4096);
    keyed.identifier = 0x4f;
    for (descriptor, status) in [
        (SglDescriptor::transport(4095), Status::DATA_SGL_LENGTH_INVALID),
        (SglDescriptor::transport(0), Status::DATA_SGL_LENGTH_INVALID),
        (SglDescriptor::in_capsule(0), Status::DATA_SGL_LENGTH_INVALID),
        (in_capsule, Status::DATA_SGL_LENGTH_INVALID),
        (keyed, Status::SGL_TYPE_INVALID),
    ] {
        command.data = descriptor;
        assert_eq!(host.send(&command, &[]), Err(status.dnr()));
    }
    command.data = SglDescriptor::transport(u32::MAX);
    assert_eq!(host.send(&command, &[]).unwrap().1.len(), 4096);
}

#[test]
fn controller_list() {
    let target = target();
    let hosts = [(); 3].map(|()| TestHost::connect(&target, &volume()));
    let list = |cns, controller_id| {
        let data = send(&hosts[0], Identify { controller_id, ..Identify::new(cns, 1) }).unwrap();
        let list = ControllerList::view(&data).unwrap();
        let ids = list.ids.iter().take(usize::from(list.count.get())).map(|id| id.get());
        ids.collect::<Vec<u16>>()
    };
    for cns in [Cns::CONTROLLERS, Cns::ATTACHED_CONTROLLERS] {
        assert_eq!(list(cns, 0), hosts.each_ref().map(TestHost::id));
        assert_eq!(list(cns, hosts[1].id()), [hosts[1].id(), hosts[2].id()]);
        assert!(list(cns, 0xffff).is_empty());
    }
}

#[test]
fn namespace_list_of_65535_namespaces() {
    let target = target_of(TargetConfig { max_namespaces: 65_535, ..TargetConfig::default() });
    for nsid in 2..=65_535 {
        add_namespace(&target, Some(nsid)).unwrap();
    }
    assert_eq!(add_namespace(&target, None), Err(TargetError::Full));
    let host = TestHost::connect(&target, &volume());
    let (mut last, mut seen) = (0, 0);
    loop {
        let data = identify(&host, Cns::ACTIVE_NAMESPACES, last).unwrap();
        let ids: Vec<u32> = NamespaceList::view(&data).unwrap().iter().collect();
        let Some(&end) = ids.last() else { break };
        let first = last + 1;
        assert!(ids.iter().copied().eq(first..=end), "ascending, without gaps");
        seen += ids.len();
        last = end;
    }
    assert_eq!((seen, last), (65_535, 65_535));
    assert!(identify(&host, Cns::NAMESPACE, 65_535).unwrap().iter().any(|&byte| byte != 0));
    assert_eq!(identify(&host, Cns::NAMESPACE, 65_536), refused(Status::INVALID_NAMESPACE));
    for nsid in (1..=65_535).step_by(2) {
        target.remove_namespace(&volume(), nsid).unwrap();
    }
    assert_eq!(host.controller().snapshot().len(), 32_767);
    assert_eq!(add_namespace(&target, None), Ok(1));
}
