//! Fuzz target for controller data as parsed by a host: Identify data, log pages, results.
//!
//! Input: one byte that selects the structure, then its bytes.

use flagstone_nvme::command::fabrics::ConnectResult;
use flagstone_nvme::event::AsyncEvent;
use flagstone_nvme::feature::NumberOfQueues;
use flagstone_nvme::identify::{IdentifyController, IdentifyNamespace, NamespaceList, descriptors};
use flagstone_nvme::limits::NAMESPACE_LIST_ENTRIES;
use flagstone_nvme::log::{DiscoveryEntry, ErrorEntry, SmartHealth, ana};
use flagstone_nvme::wire::ascii;
use flagstone_nvme::{Cqe, Nqn, Wire};

/// Parses the structure selected by the first byte.
pub fn run(input: &[u8]) {
    let Some((choice, data)) = input.split_first() else { return };
    match choice % 8 {
        0 => controller(data),
        1 => namespace(data),
        2 => assert!(descriptors(data).count() <= data.len() / 4),
        3 => lists(data),
        4 => discovery(data),
        5 => groups(data),
        6 => health(data),
        _ => completion(data),
    }
}

/// Structure padded to a page: bytes missing from a short answer are 0.
fn padded<T: Wire + Clone>(data: &[u8]) -> T {
    let mut page = data.to_vec();
    page.resize(data.len().max(T::BYTES), 0);
    T::view(&page).expect("long enough").clone()
}

fn controller(data: &[u8]) {
    let controller: IdentifyController = padded(data);
    for field in [&controller.serial_number[..], &controller.model_number[..]] {
        if let Some(text) = ascii(field) {
            assert!(text.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
        }
    }
    for page_exponent in 0..16 {
        if let Some(bytes) = controller.max_transfer_bytes(page_exponent) {
            assert!(bytes >= 4096 && bytes.is_power_of_two());
        }
    }
    assert!(
        controller.in_capsule_bytes().is_multiple_of(16)
            || controller.in_capsule_bytes() == u32::MAX
    );
    let _ = controller.subnqn();
}

fn namespace(data: &[u8]) {
    let namespace: IdentifyNamespace = padded(data);
    if let Some(bytes) = namespace.format().and_then(|format| format.block_bytes()) {
        assert!(bytes >= 512 && bytes.is_power_of_two());
    }
}

fn lists(data: &[u8]) {
    let list: NamespaceList = padded(data);
    let ids: Vec<u32> = list.iter().collect();
    assert!(ids.len() <= NAMESPACE_LIST_ENTRIES && !ids.contains(&0));
}

fn discovery(data: &[u8]) {
    for entry in DiscoveryEntry::view_list(data) {
        let _ = entry.tcp_address();
        if let Ok(name) = entry.subnqn() {
            assert_eq!(Nqn::new(name.as_str()), Ok(name));
        }
    }
    let entry: DiscoveryEntry = padded(data);
    let _ = (entry.tcp_address(), entry.subnqn());
}

fn groups(data: &[u8]) {
    let namespaces: usize = ana::groups(data)
        .map(|(group, ids)| {
            let _ = group.state().to_string();
            ids.len()
        })
        .sum();
    assert!(namespaces * 4 <= data.len());
}

fn health(data: &[u8]) {
    let _: SmartHealth = padded(data);
    for entry in ErrorEntry::view_list(data) {
        let _ = entry.bytes();
    }
}

fn completion(data: &[u8]) {
    let completion: Cqe = padded(data);
    let status = completion.status();
    let _ = (status.to_string(), status.name(), status.fabrics_name(), status.is_path_error());
    let event: AsyncEvent = completion.async_event();
    let _ = (event.mask(), event.to_result());
    let dw0 = completion.dw0.get();
    let queues = NumberOfQueues::from_result(dw0);
    assert!(queues.submission > 0 && queues.completion > 0);
    let _ = ConnectResult::from_dw0(dw0);
}
