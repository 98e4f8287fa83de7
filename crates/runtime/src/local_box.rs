//! Boxed futures with pooled memory, so that the steady state of a data path allocates nothing.
//!
//! A [`LocalBox`] is a `Pin<Box<dyn Future>>` that stays on one core and takes its memory from the
//! free lists of the core, one list per power of two up to 4 KiB.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

/// Smallest and largest pooled sizes, as powers of two; larger futures use the allocator directly.
const MIN_SHIFT: u32 = 6;
const MAX_SHIFT: u32 = 12;
const CLASSES: usize = (MAX_SHIFT - MIN_SHIFT + 1) as usize;
/// Idle blocks kept per size: at most 4,096 × (64 B + … + 4 KiB) ≈ 33 MB per core, reached only
/// after as many operations were in flight at once.
const KEEP: usize = 4096;
const ALIGN: usize = 64;

struct FreeLists([Vec<NonNull<u8>>; CLASSES]);

impl Drop for FreeLists {
    fn drop(&mut self) {
        for (class, list) in self.0.iter_mut().enumerate() {
            for block in list.drain(..) {
                // SAFETY: blocks of a list were allocated with the layout of its class and are
                // idle.
                unsafe { dealloc(block.as_ptr(), class_layout(class)) };
            }
        }
    }
}

thread_local! {
    static FREE: RefCell<FreeLists> = const { RefCell::new(FreeLists([const { Vec::new() }; CLASSES])) };
}

fn class_layout(class: usize) -> Layout {
    Layout::from_size_align(1 << (MIN_SHIFT as usize + class), ALIGN).expect("a valid layout")
}

fn class_of(layout: Layout) -> Option<usize> {
    if layout.align() > ALIGN || layout.size() > 1 << MAX_SHIFT {
        return None;
    }
    let shift = layout.size().next_power_of_two().trailing_zeros().max(MIN_SHIFT);
    Some((shift - MIN_SHIFT) as usize)
}

fn take(layout: Layout) -> NonNull<u8> {
    let class = class_of(layout);
    if let Some(class) = class
        && let Ok(Some(block)) = FREE.try_with(|free| free.borrow_mut().0[class].pop())
    {
        return block;
    }
    let layout = class.map_or(layout, class_layout);
    // SAFETY: `layout` has a non-zero size: class layouts do, and larger ones exceed 4 KiB or 64 B
    // of alignment (a size of zero with such an alignment is rounded up by `padded`).
    let ptr = unsafe { alloc(layout) };
    NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout))
}

fn give_back(block: NonNull<u8>, layout: Layout) {
    let Some(class) = class_of(layout) else {
        // SAFETY: `take` allocated it with this layout.
        unsafe { dealloc(block.as_ptr(), layout) };
        return;
    };
    let kept = FREE.try_with(|free| {
        let list = &mut free.borrow_mut().0[class];
        if list.len() < KEEP {
            list.push(block);
        }
        list.last() == Some(&block)
    });
    if kept != Ok(true) {
        // SAFETY: `take` allocated it with the layout of its class, and no list holds it.
        unsafe { dealloc(block.as_ptr(), class_layout(class)) };
    }
}

/// A type-erased future in pooled memory of this core.
pub struct LocalBox<T> {
    future: NonNull<dyn Future<Output = T>>,
    layout: Layout,
}

impl<T> LocalBox<T> {
    /// Moves `future` into pooled memory.
    pub fn new<F: Future<Output = T> + 'static>(future: F) -> LocalBox<T> {
        let layout = Layout::new::<F>();
        let layout = if layout.size() == 0 {
            Layout::from_size_align(1, layout.align()).expect("a valid layout")
        } else {
            layout
        };
        let place = take(layout).cast::<F>();
        // SAFETY: the block is large and aligned enough for an `F`, and exclusively owned.
        unsafe { place.write(future) };
        let future: NonNull<dyn Future<Output = T>> = place;
        LocalBox { future, layout }
    }
}

impl<T> Future for LocalBox<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        // SAFETY: the future is alive until drop, exclusively owned, and never moves from its
        // block.
        unsafe { Pin::new_unchecked(this.future.as_mut()) }.poll(cx)
    }
}

impl<T> Unpin for LocalBox<T> {}

impl<T> Drop for LocalBox<T> {
    fn drop(&mut self) {
        // SAFETY: the future is alive and dropped once, here.
        unsafe { self.future.drop_in_place() };
        give_back(self.future.cast(), self.layout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_and_values_dropped() {
        let token = std::rc::Rc::new(());
        let held = token.clone();
        let first = LocalBox::new(async move {
            let _held = held;
        });
        let at = first.future.cast::<u8>();
        drop(first);
        assert_eq!(std::rc::Rc::strong_count(&token), 1);
        let second = LocalBox::new(async {});
        assert_eq!(at, second.future.cast::<u8>());
    }

    #[test]
    fn large_future_runs_to_completion() {
        let big = [7_u8; 9000];
        let mut future =
            LocalBox::new(async move { big.iter().map(|x| u32::from(*x)).sum::<u32>() });
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert_eq!(Pin::new(&mut future).poll(&mut cx), Poll::Ready(63_000));
    }
}
