//! File device: behavior beyond the promises of every device.
#![allow(missing_docs)]

mod common;

use std::io::ErrorKind;

use common::on_each_real_driver;
use flagstone_blockdev::{BlockDevice, FileDevice, FileOptions};
use flagstone_runtime::{Buf, buf};

#[test]
fn truncated_file_reads_zeroes_beyond_end() {
    on_each_real_driver(async |files| {
        for direct in [true, false] {
            let path = files.fresh();
            std::fs::write(&path, vec![7; 64 << 10]).unwrap();
            let options = FileOptions { direct, ..FileOptions::default() };
            let device = FileDevice::open(&path, &options).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(10_000).unwrap();
            let read = device.read(4096, buf::alloc(16 << 10).await).await.unwrap();
            assert_eq!(read.iter().filter(|byte| **byte == 7).count(), 10_000 - 4096);
            assert!(read[10_000 - 4096..].iter().all(|byte| *byte == 0));
            let read = device.read(32 << 10, buf::alloc(4096).await).await.unwrap();
            assert!(read.iter().all(|byte| *byte == 0));
            let data = Buf::copy_of(&[8; 4096]).unwrap();
            device.write(60 << 10, data, true).await.unwrap();
            let read = device.read(60 << 10, buf::alloc(4096).await).await.unwrap();
            assert!(read.iter().all(|byte| *byte == 8), "a write makes the file whole again");
        }
    });
}

#[test]
fn geometry_follows_size_and_options() {
    on_each_real_driver(async |files| {
        let path = files.fresh();
        std::fs::write(&path, vec![0; 100_000]).unwrap();
        let device = FileDevice::open(&path, &FileOptions::default()).unwrap();
        let geometry = device.geometry();
        // A file system with larger O_DIRECT units rounds down to them.
        let block = u64::from(geometry.block_bytes);
        assert_eq!(geometry.size_bytes, 100_000 / block * block);
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
        assert!(error.to_string().contains("less than one block"), "{error}");
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
        assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
        drop(device);
        drop(FileDevice::open(&path, &options).unwrap());
    });
}
