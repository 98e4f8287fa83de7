//! Loss of the log device at a crash: the device is blank, or an old copy.

use super::*;

/// A crash with the loss of the log device.
pub(super) struct Loss {
    pub(super) images: Vec<Image>,
    /// An earlier state of the log device.
    pub(super) old: Image,
    pub(super) time: usize,
}

/// Newest update in copies 0 and 1 of a disk's superblock.
fn update_of(image: &Image) -> Option<u64> {
    let copies = (0..4).filter_map(|copy| {
        let mut block = [0; BLOCK];
        image.read(copy as u64 * (256 << 10), &mut block);
        Superblock::decode(&block, copy).ok()
    });
    copies.map(|superblock| superblock.update).max()
}

impl Loss {
    /// Checks an opening without the tail, and another after a crash of the first one. True if the
    /// writers' volume was withheld.
    pub(super) async fn check(
        self,
        plan: Plan,
        volatile: bool,
        history: &History,
        rng: &mut Rng,
        context: &str,
    ) -> bool {
        let Loss { mut images, old, time } = self;
        let newest = images[..plan.disks].iter().filter_map(update_of).max();
        // An old copy with the newest update cannot be distinguished from the log device.
        let is_old = update_of(&old).zip(newest).is_some_and(|(old, newest)| old + 1 < newest);
        let is_blank = !is_old || rng.chance(0.5);
        *images.last_mut().unwrap() = if is_blank { Image::default() } else { old };
        let kind = if is_blank { "blank" } else { "old" };
        let context = format!("{context} with a {kind} log device");
        let (devices, trace) = disks_of(images, &plan.sizes(), 0, volatile);
        let mut last = 0;
        let accept = || last = trace.lock().now();
        let withheld = open_prefix(devices, plan, history, time, &context, accept).await;
        let trace = std::mem::take(&mut *trace.lock());
        let point = rng.below(last as u64 + 1) as usize;
        trace
            .at_each_event(
                |time| time == point,
                &mut Rng::new(rng.next_u64()),
                async |_, images| {
                    let context = format!("{context}, then after event {point} of recovery");
                    let (devices, _) = disks_of(images, &plan.sizes(), 0, volatile);
                    open_prefix(devices, plan, history, time, &context, || {}).await;
                },
            )
            .await;
        withheld
    }
}

/// Opens a pool whose log device lost the tail. True if the writers' volume is withheld.
async fn open_prefix(
    mut devices: Vec<NamedDevice>,
    plan: Plan,
    history: &History,
    time: usize,
    context: &str,
    before_acceptance: impl FnOnce(),
) -> bool {
    let log = devices.split_off(plan.disks).pop();
    // Without the blank device: refused, or the same result once the loss is recorded.
    let recorded = match Pool::open(devices.clone()).await {
        Ok(pool) => {
            unlock(&pool);
            let is_withheld = pool.open_volume("db").is_err();
            pool.close().await.unwrap();
            Some(is_withheld)
        }
        Err(PoolError::LogDeviceMissing { .. }) => None,
        Err(error) => panic!("{context}: {error}"),
    };
    let options = OpenOptions { log, ..OpenOptions::default() };
    let pool = match Pool::open_with(devices, &options).await {
        Ok(pool) => pool,
        Err(error) => panic!("{context}: {error}"),
    };
    before_acceptance();
    unlock(&pool);
    let writers = history.actors.len() - 1;
    let withheld = match pool.open_volume("db") {
        Ok(_) => false,
        Err(VolumeError::Incomplete { .. }) => {
            let accepted = pool.give_up_tail().await.unwrap();
            assert!(accepted.contains(&"db".to_owned()), "{context}");
            true
        }
        Err(error) => panic!("{context}: {error}"),
    };
    assert!(recorded.is_none_or(|recorded| recorded == withheld), "{context}");
    let found = content(&pool, history, context).await;
    history.check_of(&found, time, if withheld { 0 } else { writers }, context);
    pool.close().await.unwrap();
    withheld
}
