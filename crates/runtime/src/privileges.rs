//! Privileges of the process: what a server gives up before it starts its threads, which inherit
//! the result.
//!
//! Kept, of a process that has them (as root has): `CAP_DAC_OVERRIDE`, because devices and files of
//! other owners are opened again later, and `CAP_NET_BIND_SERVICE`, because listeners are bound
//! after this. No program that it might start can gain others (`no_new_privs`).

use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// The capabilities that a server keeps.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::NET_BIND_SERVICE);

/// Gives up what serving does not need. Call it before any other thread starts: capabilities belong
/// to a thread.
///
/// # Errors
/// The system refuses a part of it.
pub fn drop_privileges() -> io::Result<()> {
    set_no_new_privs(true)?;
    let held = capabilities(None)?;
    if held.permitted.contains(CapabilitySet::SYS_RESOURCE) {
        // Without CAP_IPC_LOCK, kernels before 5.12 count rings of io_uring as locked memory. A
        // container may forbid this, and io_uring then falls back to threads.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    }
    if held.permitted.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(KEPT).iter() {
            match capability_is_in_bounding_set(capability) {
                Ok(true) => remove_capability_from_bounding_set(capability)?,
                // INVAL: this kernel does not know the capability.
                Ok(false) | Err(Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let permitted = held.permitted.intersection(KEPT);
    let sets =
        CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// Forbids core dumps of this process, and that other processes of its user read its memory: both
/// have its keys.
///
/// # Errors
/// The system refuses it.
pub fn forbid_core_dumps() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    // The limit does not apply to a dump into a pipe; this does.
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
