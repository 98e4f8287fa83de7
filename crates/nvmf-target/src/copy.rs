//! Copy command: copies ranges of a namespace to another range of it (NVM Command Set 3.2.2).
//!
//! All ranges are checked first. Then they are read into one buffer, and written with one call of
//! the device. So ranges may overlap the destination, and a failed read changes nothing. Without
//! memory for the buffer the host is asked to retry, because the command already holds memory for
//! its list.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_nvme::command::io::{BlockRange, CopyCommand, CopyRange};
use flagstone_nvme::wire::Wire;
use flagstone_nvme::{Sqe, Status};
use flagstone_runtime::{Buf, BufMut, buf, spawn_detached};

use super::Namespace;
use super::connection::Connection;
use super::io::{check_writable, status, status_of};
use crate::limits::{COPY_BYTES, COPY_RANGES};

/// Limits of one Copy on a namespace, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyLimits {
    /// MSSRL: one source range.
    pub(super) range_blocks: u16,
    /// MCL: all ranges together.
    pub(super) blocks: u32,
}

impl CopyLimits {
    pub(super) fn of(namespace: &Namespace) -> CopyLimits {
        let blocks = COPY_BYTES >> namespace.block_shift;
        CopyLimits { range_blocks: u16::try_from(blocks).unwrap_or(u16::MAX), blocks }
    }
}

/// Failed Copy: status, and the number of the first source range that was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CopyFailure {
    status: Status,
    range: u32,
}

/// Checked Copy, in bytes.
#[derive(Debug)]
struct CopyPlan {
    sources: Vec<(u64, usize)>,
    destination: u64,
    len: usize,
    fua: bool,
}

impl Connection {
    /// Executes a Copy, which is in flight with `payload` bytes for its list of ranges.
    pub(super) fn copy(
        self: &Rc<Self>,
        namespace: Arc<Namespace>,
        command: Sqe,
        data: Option<Buf>,
        payload: usize,
    ) -> Result<(), Status> {
        let list = data.ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
        let fields = CopyCommand::parse(&command);
        check_writable(&namespace)?;
        let mut plan = match plan(&namespace, fields, &list) {
            Ok(plan) => plan,
            Err(CopyFailure { status, range }) => {
                self.fail_with_result(&command, status, range, payload);
                return Ok(());
            }
        };
        plan.fua |= self.is_write_through();
        self.with_controller(|_, queue| {
            queue.counters.read(plan.len as u64);
            queue.counters.write(plan.len as u64);
        });
        let connection = self.admit();
        spawn_detached(async move {
            match run(&namespace, plan).await {
                Ok(()) => connection.complete(command.cid.get(), Status::SUCCESS, payload),
                Err(CopyFailure { status, range }) => {
                    connection.fail_with_result(&command, status, range, payload);
                }
            }
        });
        Ok(())
    }
}

/// Checks a Copy whose ranges are in `list`.
fn plan(namespace: &Namespace, fields: CopyCommand, list: &[u8]) -> Result<CopyPlan, CopyFailure> {
    let refuse =
        |status: Status, range: usize| CopyFailure { status: status.dnr(), range: range as u32 };
    if fields.format != 0 || fields.wants_protection {
        return Err(refuse(Status::INVALID_FIELD, 0));
    }
    if usize::from(fields.ranges) > COPY_RANGES {
        return Err(refuse(Status::COMMAND_SIZE_LIMIT_EXCEEDED, 0));
    }
    if list.len() < fields.data_bytes() as usize {
        return Err(refuse(Status::DATA_SGL_LENGTH_INVALID, 0));
    }
    let limits = CopyLimits::of(namespace);
    let shift = namespace.block_shift;
    let mut blocks = 0;
    let mut sources = Vec::with_capacity(fields.ranges.into());
    for (number, source) in
        CopyRange::view_list(list)[..usize::from(fields.ranges)].iter().enumerate()
    {
        let range = source.range();
        blocks += range.blocks();
        if range.blocks() > limits.range_blocks.into() || blocks > limits.blocks {
            return Err(refuse(Status::COMMAND_SIZE_LIMIT_EXCEEDED, number));
        }
        range.check_within(namespace.blocks).map_err(|status| refuse(status, number))?;
        sources.push((range.start() << shift, (range.blocks() as usize) << shift));
    }
    let destination =
        BlockRange::new(fields.start, blocks).ok_or(refuse(Status::LBA_OUT_OF_RANGE, 0))?;
    destination.check_within(namespace.blocks).map_err(|status| refuse(status, 0))?;
    let (destination, len) = (fields.start << shift, (blocks as usize) << shift);
    Ok(CopyPlan { sources, destination, len, fua: fields.fua })
}

async fn run(namespace: &Namespace, plan: CopyPlan) -> Result<(), CopyFailure> {
    let mut rest = buf::try_alloc(plan.len)
        .ok_or(CopyFailure { status: Status::COMMAND_INTERRUPTED, range: 0 })?;
    let mut whole: Option<BufMut> = None;
    for (number, (offset, len)) in plan.sources.into_iter().enumerate() {
        let read = namespace.device.read(offset, rest.split_to(len)).await;
        let failure = |error| CopyFailure { status: status_of(error), range: number as u32 };
        let part = read.map_err(failure)?;
        match &mut whole {
            None => whole = Some(part),
            // A device returns the buffer that it was given. A device that breaks this rule must
            // not end the server.
            Some(whole) => whole.unsplit(part).map_err(|_| CopyFailure {
                status: Status::INTERNAL_ERROR,
                range: number as u32,
            })?,
        }
    }
    let data = whole.expect("a Copy has a range").freeze();
    let written = namespace.device.write(plan.destination, data, plan.fua).await;
    match status(written) {
        Status::SUCCESS => Ok(()),
        status => Err(CopyFailure { status, range: 0 }),
    }
}
