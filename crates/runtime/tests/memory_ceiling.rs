//! The ceiling of pooled memory, in a process of its own: the ceiling is the process's.
#![allow(missing_docs)]

use flagstone_runtime::{Config, buf, run, spawn, task};

#[test]
fn memory_has_a_ceiling_and_waiters_get_what_comes_back() {
    let config = Config { memory_bytes: 4 << 20, ..Config::default() };
    run(&config, || async {
        let first = buf::try_alloc(2 << 20).unwrap();
        let second = buf::try_alloc(2 << 20).unwrap();
        assert!(buf::try_alloc(4096).is_none());
        assert!(buf::memory_held() <= 4 << 20);
        let waiting = spawn(async { buf::alloc(1 << 20).await });
        task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert_eq!(waiting.await.unwrap().len(), 1 << 20);
        drop(second);
    })
    .unwrap();
}
