//! File device: behavior beyond the promises of every device.

mod common;

use std::io::ErrorKind;

use common::on_each_real_driver;
use flagstone_blockdev::{BlockDevice, FileDevice, FileOptions, IoError, ZeroFlags};
use flagstone_runtime::{Buf, buf};

/// The lost range read as zeroes, successfully, and a mirror copied them over good data.
#[test]
fn truncated_file_fails_reads_and_is_not_extended() {
    on_each_real_driver(async |files| {
        for direct in [true, false] {
            let path = files.fresh();
            std::fs::write(&path, vec![7; 64 << 10]).unwrap();
            let options = FileOptions { direct, ..FileOptions::default() };
            let device = FileDevice::open(&path, &options).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(10_000).unwrap();
            let read = async |offset: u64, len: usize| {
                let read = device.read(offset, buf::alloc(len).await).await;
                read.map(|data| data.iter().all(|byte| *byte == 7))
            };
            assert_eq!(read(4096, 16 << 10).await, Err(IoError::ReadFault));
            assert_eq!(read(8192, 4096).await, Err(IoError::ReadFault));
            assert_eq!(read(32 << 10, 4096).await, Err(IoError::ReadFault));
            assert_eq!(read(0, 8192).await, Ok(true), "the rest can still be read");
            // A write beyond the end would make the lost range a hole, which reads as zeroes.
            let write = async |offset: u64, fua: bool| {
                device.write(offset, Buf::copy_of(&[8; 4096]).unwrap(), fua).await
            };
            assert_eq!(write(60 << 10, true).await, Err(IoError::Poisoned));
            assert_eq!(write(0, false).await, Err(IoError::Poisoned));
            let flags = ZeroFlags::default();
            assert_eq!(device.write_zeroes(0, 4096, flags).await, Err(IoError::Poisoned));
            assert!(device.flush().await.is_err() && device.must_reopen());
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 10_000);
        }
    });
}

/// Without a read of the lost range, a flush or the first write after an interval finds the loss.
#[test]
fn flush_of_truncated_file_fails() {
    on_each_real_driver(async |files| {
        let path = files.fresh();
        std::fs::write(&path, vec![7; 64 << 10]).unwrap();
        let device = FileDevice::open(&path, &FileOptions::default()).unwrap();
        device.flush().await.unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(32 << 10).unwrap();
        assert_eq!(device.flush().await, Err(IoError::Poisoned));
        assert!(device.must_reopen());
    });
}

/// Space that was exposed and never needed is taken back: the rest is as good as before.
#[test]
fn exposed_space_may_be_taken_back() {
    on_each_real_driver(async |files| {
        let path = files.fresh();
        std::fs::write(&path, vec![7; 64 << 10]).unwrap();
        let device = FileDevice::open(&path, &FileOptions::default()).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let zero =
            async |offset: u64| device.write_zeroes(offset, 4096, ZeroFlags::default()).await;
        let size_bytes = || device.geometry().size_bytes;
        file.set_len(100_000).unwrap();
        assert_eq!((size_bytes(), zero(64 << 10).await), (64 << 10, Err(IoError::OutOfRange)));
        device.expose(1 << 20);
        assert_eq!((size_bytes(), zero(64 << 10).await), (98_304, Ok(())));
        device.expose(80 << 10);
        assert_eq!((size_bytes(), zero(80 << 10).await), (80 << 10, Err(IoError::OutOfRange)));
        // Taken back while it is exposed.
        file.set_len(64 << 10).unwrap();
        let read = device.read(64 << 10, buf::alloc(4096).await).await;
        assert_eq!(read.map(drop), Err(IoError::ReadFault));
        device.expose(0);
        assert_eq!((size_bytes(), device.flush().await, zero(0).await), (64 << 10, Ok(()), Ok(())));
        assert!(!device.must_reopen());
        // Needed space is not given up.
        file.set_len(100_000).unwrap();
        device.refresh();
        device.expose(0);
        file.set_len(64 << 10).unwrap();
        assert_eq!((size_bytes(), device.flush().await), (98_304, Err(IoError::Poisoned)));
    });
}

#[test]
fn geometry_follows_size_and_options() {
    on_each_real_driver(async |files| {
        let path = files.fresh();
        std::fs::write(&path, vec![0; 98_304]).unwrap();
        let device = FileDevice::open(&path, &FileOptions::default()).unwrap();
        let geometry = device.geometry();
        assert_eq!(geometry.size_bytes, 98_304);
        assert!(geometry.volatile_cache && !geometry.read_only);
        drop(device);
        let options = FileOptions { block_bytes: Some(4096), ..FileOptions::default() };
        let device = FileDevice::open(&path, &options).unwrap();
        assert_eq!((device.geometry().block_bytes, device.geometry().size_bytes), (4096, 98_304));
    });
}

#[test]
fn open_errors_explain_the_cause() {
    on_each_real_driver(async |files| {
        let (missing, small) = (files.fresh(), files.fresh());
        let plain = FileOptions::default();
        let error = FileDevice::open(&missing, &plain).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("disk-1"), "{error}");
        std::fs::write(&small, [0; 100]).unwrap();
        let error = FileDevice::open(&small, &plain).unwrap_err();
        assert!(error.to_string().contains("at least 4 KiB"), "{error}");
        let odd = FileOptions { block_bytes: Some(520), ..plain };
        let error = FileDevice::open(&small, &odd).unwrap_err();
        assert!(error.to_string().contains("use 512 or 4096"), "{error}");
        assert!(FileDevice::open("/dev/null", &plain).is_err(), "no disk");
    });
}

#[test]
fn file_is_locked_against_second_open() {
    on_each_real_driver(async |files| {
        let path = files.fresh();
        let options = FileOptions { create_bytes: Some(1 << 20), ..FileOptions::default() };
        let device = FileDevice::open(&path, &options).unwrap();
        let error = FileDevice::open(&path, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        drop(device);
        drop(FileDevice::open(&path, &options).unwrap());
    });
}
