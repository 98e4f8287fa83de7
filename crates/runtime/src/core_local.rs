//! Per-core values behind one handle that all cores share.

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static VALUES: RefCell<Vec<Option<Rc<dyn Any>>>> = const { RefCell::new(Vec::new()) };
}

/// A value per core (thread), made on first use, such as the connections of a device on that core.
/// The handle is `Send` and `Sync`; the values need not be. Dropping the handle drops the value of
/// the dropping thread; other threads drop theirs when they end.
#[derive(Debug)]
pub struct CoreLocal<T> {
    index: usize,
    value: PhantomData<fn() -> T>,
}

impl<T: 'static> Default for CoreLocal<T> {
    fn default() -> CoreLocal<T> {
        CoreLocal::new()
    }
}

impl<T: 'static> CoreLocal<T> {
    /// Starts without a value on any core.
    pub fn new() -> CoreLocal<T> {
        CoreLocal { index: NEXT.fetch_add(1, Ordering::Relaxed), value: PhantomData }
    }

    /// The value of this core, if it was made.
    pub fn get(&self) -> Option<Rc<T>> {
        let any = VALUES.with(|values| values.borrow().get(self.index).cloned().flatten())?;
        any.downcast().ok()
    }

    /// The value of this core, made now if there is none.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> Rc<T> {
        if let Some(value) = self.get() {
            return value;
        }
        let value = Rc::new(make());
        VALUES.with(|values| {
            let mut values = values.borrow_mut();
            if values.len() <= self.index {
                values.resize(self.index + 1, None);
            }
            values[self.index] = Some(value.clone());
        });
        value
    }

    /// Takes the value of this core out.
    pub fn take(&self) -> Option<Rc<T>> {
        let any =
            VALUES.with(|values| values.borrow_mut().get_mut(self.index).and_then(Option::take))?;
        any.downcast().ok()
    }
}

impl<T> Drop for CoreLocal<T> {
    fn drop(&mut self) {
        let value = VALUES.try_with(|values| {
            values.try_borrow_mut().ok()?.get_mut(self.index).and_then(Option::take)
        });
        drop(value);
    }
}
