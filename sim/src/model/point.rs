//! Points in time of a device: what a snapshot, a clone or a rollback may contain.
//!
//! A snapshot that is taken during a load has, per sector, a version that was readable when the
//! order began, or one written since. Once it has been read, it never changes.

use super::{Change, SECTOR_BYTES, Sector, Shared, ZEROES, version_of};

/// A device during an order.
#[derive(Clone, Debug)]
pub struct Point {
    /// Versions that were readable at the beginning, per sector.
    visible: Vec<Vec<u32>>,
    /// First version written later.
    next: u32,
    /// At the end: the first version written later, and the sectors that may have got zeroes.
    end: Option<(u32, Vec<bool>)>,
}

impl Shared {
    /// The device now, before an order begins.
    pub fn point(&self) -> Point {
        let model = self.0.borrow();
        let readable = |sector: &Sector| {
            assert!(!sector.unknown, "a snapshot of unknown content");
            let all = sector.visible.iter().chain(&sector.late).chain(&sector.changing);
            all.copied().collect()
        };
        let visible = model.sectors.iter().map(readable).collect();
        Point { visible, next: model.next_version, end: None }
    }

    /// Ends the order that began at `point`: later writes are not in it.
    pub fn end_point(&self, point: &mut Point) {
        let model = self.0.borrow();
        let zeroed = model.sectors.iter().map(|sector| sector.zeroed >= point.next).collect();
        point.end = Some((model.next_version, zeroed));
    }

    /// Checks the content of a snapshot whose order began at `point`.
    ///
    /// # Panics
    /// When the model does not allow it.
    pub fn check_snapshot(&self, point: &Point, content: &[u8]) {
        let mut model = self.0.borrow_mut();
        let (end, zeroed) = point.end.as_ref().expect("the order has ended");
        for (number, (bytes, visible)) in
            content.chunks(SECTOR_BYTES).zip(&point.visible).enumerate()
        {
            let found = version_of(model.seed, number, bytes)
                .unwrap_or_else(|what| panic!("sector {number} of a snapshot holds {what}"));
            let is_later = match found {
                ZEROES => zeroed.get(number).copied().unwrap_or_default(),
                version => (point.next..*end).contains(&version),
            };
            assert!(
                is_later || visible.contains(&found),
                "sector {number} of a snapshot holds version {found}; it may hold {visible:?}, or a \
                 version from {} to before {end}",
                point.next
            );
        }
        model.checks += point.visible.len() as u64;
    }

    /// Model of a volume with this content, which continues from a snapshot of this device.
    pub fn continued(&self, content: &[u8]) -> Shared {
        let copy = self.fork();
        copy.becomes(content);
        copy
    }

    /// The device has this content, durably: a rollback has ended.
    pub fn becomes(&self, content: &[u8]) {
        let mut model = self.0.borrow_mut();
        model.now += 1;
        let (seed, now) = (model.seed, model.now);
        model.sectors.resize_with(content.len() / SECTOR_BYTES, || Sector::new(true));
        for (number, (sector, bytes)) in
            model.sectors.iter_mut().zip(content.chunks(SECTOR_BYTES)).enumerate()
        {
            let version = version_of(seed, number, bytes).expect("it was checked");
            *sector = Sector { zeroed: sector.zeroed, ..Sector::new(true) };
            (sector.visible, sector.after_loss) = (vec![version], vec![(now, version)]);
            sector.durable_since = now;
        }
    }

    /// Grows the device to `bytes`, if it is smaller, by zeroes.
    pub fn grow_zeroed(&self, bytes: u64) {
        let mut model = self.0.borrow_mut();
        let sectors = model.sectors.len().max(bytes as usize / SECTOR_BYTES);
        model.sectors.resize_with(sectors, || Sector::new(true));
    }
}

/// Notes that a sector may get zeroes after `next`.
pub(super) fn note_zeroes(sector: &mut Sector, change: Option<Change>, next: u32) {
    if matches!(change, Some(Change::Zero | Change::Discard)) {
        sector.zeroed = next;
    }
}
