//! Gate: a device whose chosen calls wait until they are released, as calls of a hung disk do. They
//! take effect late, even if their callers are gone.

use std::sync::Arc;

use flagstone_blockdev::{BlockDevice, Geometry, IoError, IoFuture, SharedDevice, ZeroFlags};
use flagstone_pool::NamedDevice;
use flagstone_runtime::sync::SharedNotify;
use flagstone_runtime::{Buf, BufMut, spawn};
use parking_lot::Mutex;

use crate::redundancy::Disk;

/// A call of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Read { offset: u64 },
    Write { offset: u64, len: usize, fua: bool },
    Flush,
}

type Held = Box<dyn FnMut(Call) -> bool + Send>;

#[derive(Default)]
struct State {
    /// Chooses the calls that wait; none if it is open.
    held: Option<Held>,
    /// Number of calls that wait.
    waiting: usize,
    /// All calls so far.
    calls: Vec<Call>,
}

struct Shared {
    child: SharedDevice,
    state: Mutex<State>,
    changed: SharedNotify,
}

/// Device with a gate.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Shared>);

impl Gate {
    pub(crate) fn new(child: SharedDevice) -> Gate {
        let (state, changed) = (Mutex::default(), SharedNotify::default());
        Gate(Arc::new(Shared { child, state, changed }))
    }

    /// Holds the calls for which `held` is true, from now on.
    pub(crate) fn hold(&self, held: impl FnMut(Call) -> bool + Send + 'static) {
        self.0.state.lock().held = Some(Box::new(held));
    }

    /// Releases all calls.
    pub(crate) fn release(&self) {
        self.0.state.lock().held = None;
        self.0.changed.notify();
    }

    /// Waits until a call is held.
    pub(crate) async fn holds_a_call(&self) {
        let holds = || (self.0.state.lock().waiting > 0).then_some(());
        self.0.changed.wait_for(holds).await;
    }

    /// Waits until the released calls have ended.
    #[allow(dead_code, reason = "for tests of late calls")]
    pub(crate) async fn is_idle(&self) {
        let is_idle = || (self.0.state.lock().waiting == 0).then_some(());
        self.0.changed.wait_for(is_idle).await;
    }

    /// The calls so far.
    #[allow(dead_code, reason = "for tests of late calls")]
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.0.state.lock().calls.clone()
    }

    fn pass<T: 'static>(
        &self,
        call: Call,
        make: impl FnOnce(&SharedDevice) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let is_held = {
            let mut state = self.0.state.lock();
            state.calls.push(call);
            let is_held = state.held.as_mut().is_some_and(|held| held(call));
            state.waiting += usize::from(is_held);
            is_held
        };
        if !is_held {
            return make(&self.0.child);
        }
        self.0.changed.notify();
        let own = self.0.clone();
        let late = spawn(async move {
            let is_open = || own.state.lock().held.is_none().then_some(());
            own.changed.wait_for(is_open).await;
            let result = make(&own.child).await;
            own.state.lock().waiting -= 1;
            own.changed.notify();
            result
        });
        IoFuture::later(async move { late.await.unwrap_or(Err(IoError::Unreachable)) })
    }
}

impl BlockDevice for Gate {
    fn geometry(&self) -> Geometry {
        self.0.child.geometry()
    }

    fn read(&self, offset: u64, buf: BufMut) -> IoFuture<BufMut> {
        self.pass(Call::Read { offset }, move |child| child.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Buf, fua: bool) -> IoFuture<()> {
        let call = Call::Write { offset, len: data.len(), fua };
        self.pass(call, move |child| child.write(offset, data, fua))
    }

    fn flush(&self) -> IoFuture<()> {
        self.pass(Call::Flush, |child| child.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.0.child.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: ZeroFlags) -> IoFuture<()> {
        self.0.child.write_zeroes(offset, len, flags)
    }
}

/// A disk behind a gate.
pub(crate) fn gated(disk: &Disk) -> (Gate, NamedDevice) {
    let gate = Gate::new(disk.named.device.clone());
    let device: SharedDevice = Arc::new(gate.clone());
    (gate, NamedDevice { name: disk.named.name.clone(), device })
}

/// True for writes of superblocks.
pub(crate) fn is_superblock(call: Call) -> bool {
    matches!(call, Call::Write { offset, fua: true, .. } if offset < 1 << 20)
}
