//! Call gate: admits calls without a lock, and counts those in flight by core.
//!
//! The state of the mirror has a *version*. A change of the state invalidates the version before
//! its first effect, and publishes the next one when it releases the lock of the state
//! ([`StateGuard`](crate::mirror::StateGuard)). Each core keeps what calls need to know of the
//! state under one version, and reads it again under the lock when the version differs.
//!
//! A call first counts itself, then sets its marks, and then confirms the version. A change first
//! invalidates the version, and then reads counts and marks. So either the change sees the call
//! with its marks, or the call sees the change, is not admitted, and asks again under the lock.
//! Both sides are sequentially consistent.
//!
//! A core counts in memory of its own: admission writes no memory that other cores write.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use flagstone_runtime::CoreLocal;
use parking_lot::Mutex;

use crate::limits::PEERS_MAX;

/// Kind as which a call is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// A host write or flush.
    HostCall,
    /// A change of the local leg without a host: for the attached source, or a rewrite.
    SourceCall,
    /// A call to one peer, and the half of the unflushed bitmap in which it is marked.
    Leg(usize, Option<usize>),
}

/// Calls of one core. In cache lines of its own. A call may end on another core than it began, so
/// that only the sum of all cores is meaningful.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CallCounters {
    host_calls: AtomicUsize,
    source_calls: AtomicUsize,
    legs: [LegCalls; PEERS_MAX],
}

#[derive(Debug, Default)]
struct LegCalls {
    all: AtomicUsize,
    halves: [AtomicUsize; 2],
}

impl CallCounters {
    fn add(&self, counted: Counted, change: usize) {
        let add = |count: &AtomicUsize| {
            count.fetch_add(change, Ordering::SeqCst);
        };
        match counted {
            Counted::HostCall => add(&self.host_calls),
            Counted::SourceCall => add(&self.source_calls),
            Counted::Leg(leg, half) => {
                add(&self.legs[leg].all);
                half.iter().for_each(|half| add(&self.legs[leg].halves[*half]));
            }
        }
    }

    fn get(&self, counted: Counted) -> usize {
        let count = match counted {
            Counted::HostCall => &self.host_calls,
            Counted::SourceCall => &self.source_calls,
            Counted::Leg(leg, None) => &self.legs[leg].all,
            Counted::Leg(leg, Some(half)) => &self.legs[leg].halves[half],
        };
        count.load(Ordering::SeqCst)
    }
}

/// State of one core: its counters, and a `View` of the shared state under some version.
struct Core<View> {
    counters: Arc<CallCounters>,
    view: RefCell<Option<(u64, Rc<View>)>>,
}

/// Admission by one executor of the calls of hosts.
pub(crate) struct CallAdmission<View: 'static> {
    /// Even: published. Odd: a change is in progress.
    version: AtomicU64,
    /// Tasks that wait for calls to end.
    awaited: AtomicUsize,
    counters: Mutex<Vec<Arc<CallCounters>>>,
    cores: CoreLocal<Core<View>>,
}

impl<View: 'static> Default for CallAdmission<View> {
    fn default() -> CallAdmission<View> {
        let (version, awaited) = (AtomicU64::new(0), AtomicUsize::new(0));
        CallAdmission { version, awaited, counters: Mutex::default(), cores: CoreLocal::new() }
    }
}

impl<View: 'static> CallAdmission<View> {
    /// Invalidates the version, before a change of the state. Called under its lock.
    pub(crate) fn begin_change(&self) {
        let before = self.version.fetch_add(1, Ordering::SeqCst);
        debug_assert!(before.is_multiple_of(2), "changes are made one after the other");
        fence(Ordering::SeqCst);
    }

    /// Publishes the changed state.
    pub(crate) fn end_change(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Version of the state.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// True while this version is published. A later change sees everything that the caller did
    /// before.
    pub(crate) fn confirm(&self, version: u64) -> bool {
        fence(Ordering::SeqCst);
        self.version() == version && version.is_multiple_of(2)
    }

    fn core(&self) -> Rc<Core<View>> {
        self.cores.get_or_init(|| {
            let counters = Arc::<CallCounters>::default();
            self.counters.lock().push(counters.clone());
            Core { counters, view: RefCell::default() }
        })
    }

    /// This core's view of the state, with its version. `read` creates a view under the lock of the
    /// state, which keeps the version from changing.
    pub(crate) fn view(&self, read: impl FnOnce() -> (u64, View)) -> (u64, Rc<View>) {
        let core = self.core();
        if let Some((version, view)) = &*core.view.borrow()
            && *version == self.version()
        {
            return (*version, view.clone());
        }
        let (version, view) = read();
        let view = Rc::new(view);
        *core.view.borrow_mut() = Some((version, view.clone()));
        (version, view)
    }

    /// Counts a call.
    pub(crate) fn begin(&self, counted: Counted) {
        self.core().counters.add(counted, 1);
    }

    /// Counts a call as ended. True when a task waits for that, and has to be woken.
    #[must_use]
    pub(crate) fn end(&self, counted: Counted) -> bool {
        self.core().counters.add(counted, 1usize.wrapping_neg());
        self.awaited.load(Ordering::SeqCst) > 0
    }

    /// Calls in flight. Complete for the caller only if it changed the state before, so that no
    /// call is admitted under an earlier version.
    pub(crate) fn in_flight(&self, counted: Counted) -> usize {
        let cores = self.counters.lock();
        let sum = cores.iter().map(|core| core.get(counted)).fold(0, usize::wrapping_add);
        assert!(isize::try_from(sum).is_ok(), "more calls ended than began");
        sum
    }

    /// From now on, until the result is dropped, the end of a call wakes waiting tasks.
    pub(crate) fn await_calls(&self) -> AwaitedCalls<'_> {
        self.awaited.fetch_add(1, Ordering::SeqCst);
        AwaitedCalls(&self.awaited)
    }
}

/// See [`CallAdmission::await_calls`].
pub(crate) struct AwaitedCalls<'a>(&'a AtomicUsize);

impl Drop for AwaitedCalls<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
#[path = "call_admission_tests.rs"]
mod tests;
