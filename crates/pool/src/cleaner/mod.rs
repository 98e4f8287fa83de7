//! Cleaner: copies live blocks out of the segments with the fewest of them, so that the next
//! checkpoint frees these segments.

use flagstone_blockdev::IoError;

use crate::manage::shared::Shared;

impl Shared {
    /// Cleans some segments.
    ///
    /// # Errors
    /// Of the devices.
    pub(crate) async fn clean(&self) -> Result<(), IoError> {
        let mut state = self.state.lock();
        state.wanted.cleaning = false;
        state.clean = true;
        drop(state);
        self.progress.notify();
        Ok(())
    }
}
