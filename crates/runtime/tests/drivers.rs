//! Real drivers: both have the same behavior.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flagstone_runtime::fs::{File, OpenOptions, PunchMode};
use flagstone_runtime::net::{Address, KeepAlive, Listener, Stream};
use flagstone_runtime::{
    Buf, IoEngine, RecvList, RuntimeConfig, SendList, alive, buf, cores, run, spawn, sync, task,
    time,
};

/// Runs the test on each real driver, with two cores.
fn on_each_driver(test: impl AsyncFn()) {
    for driver in [IoEngine::IoUring, IoEngine::Threads] {
        let config = RuntimeConfig { cores: 2, io_engine: driver, ..RuntimeConfig::default() };
        match run(&config, || test()) {
            Ok(()) => {}
            Err(error) if driver == IoEngine::IoUring => eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

fn any_port() -> Address {
    Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

async fn echo(stream: Stream) {
    loop {
        let (result, buf) = stream.recv(buf::alloc(65536).await).await;
        let Ok(count @ 1..) = result else { return };
        if stream.send_buf(buf.freeze().slice(0..count)).await.is_err() {
            return;
        }
    }
}

#[test]
fn echo_over_tcp_and_unix_then_clean_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    on_each_driver(async || {
        for address in [any_port(), Address::Unix(dir.path().join("echo.sock"))] {
            let listener = Listener::bind(&address).unwrap();
            let bound = listener.address().clone();
            let server = spawn(async move { echo(listener.accept().await.unwrap()).await });
            let stream = Stream::connect(&bound).await.unwrap();
            for round in 0..50_u8 {
                let mut list = SendList::new();
                for part in 0..40_u8 {
                    list.push(Buf::copy_of(&vec![round ^ part; 1000 + usize::from(part)]).unwrap());
                }
                let total = list.bytes();
                let sender = stream.clone();
                let sending = spawn(async move { sender.send_all(list).await.0 });
                let (result, got) = stream.recv_exact(buf::alloc(total).await).await;
                result.unwrap();
                sending.await.unwrap().unwrap();
                assert_eq!((got[0], got[total - 1]), (round, round ^ 39));
            }
            stream.shutdown();
            server.await.unwrap();
        }
    });
}

#[test]
fn vectored_receive_fills_buffers_in_order() {
    on_each_driver(async || {
        let listener = Listener::bind(&any_port()).unwrap();
        let client = Stream::connect(listener.address()).await.unwrap();
        let server = listener.accept().await.unwrap();
        client.send_buf(Buf::copy_of(b"abcdefghij").unwrap()).await.unwrap();
        let mut list = RecvList::new();
        for len in [3, 4, 10] {
            list.push(buf::alloc(len).await);
        }
        let (count, mut list) = server.recv_vectored(list).await;
        assert_eq!(count.unwrap(), 10);
        let bufs: Vec<_> = list.drain().collect();
        assert_eq!(
            (&bufs[0][..], &bufs[1][..], &bufs[2][..3]),
            (&b"abc"[..], &b"defg"[..], &b"hij"[..])
        );
    });
}

#[test]
fn dropped_receive_is_cancelled() {
    on_each_driver(async || {
        let listener = Listener::bind(&any_port()).unwrap();
        let client = Stream::connect(listener.address()).await.unwrap();
        let server = listener.accept().await.unwrap();
        let before = alive();
        let receive = server.recv(buf::alloc(100).await);
        assert!(time::timeout(Duration::from_millis(5), receive).await.is_err());
        time::sleep(Duration::from_millis(20)).await;
        assert_eq!(alive(), before);
        // The connection still works: the cancelled receive took no bytes.
        client.send_buf(Buf::copy_of(b"x").unwrap()).await.unwrap();
        assert_eq!(server.recv(buf::alloc(100).await).await.0.unwrap(), 1);
    });
}

#[test]
fn connect_without_listener_fails() {
    on_each_driver(async || {
        let listener = Listener::bind(&any_port()).unwrap();
        let address = listener.address().clone();
        drop(listener);
        time::sleep(Duration::from_millis(10)).await;
        let error = Stream::connect(&address).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn files_read_back_what_was_written_and_punched() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    on_each_driver(async || {
        let path = dir.path().join("disk");
        let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
        let file = File::open(&path, &options).unwrap();
        assert_eq!(file.info().size_bytes, 1 << 20);
        let again = File::open(&path, &OpenOptions::default());
        assert!(again.is_err(), "an exclusive file opens once");
        for (block, durable) in [(0_u64, false), (1, true), (254, false)] {
            let mut data = buf::alloc(4096).await;
            data.fill(block as u8 + 1);
            file.write_at(data.freeze(), block * 4096, durable).await.unwrap();
        }
        file.sync().await.unwrap();
        file.punch(4096, 4096, PunchMode::Deallocate).await.unwrap();
        for (block, expected) in [(0_u64, 1), (1, 0), (254, 255), (2, 0)] {
            let (count, data) = file.read_at(buf::alloc(4096).await, block * 4096).await;
            assert_eq!(count.unwrap(), 4096);
            assert!(data.iter().all(|byte| *byte == expected), "block {block}");
        }
        let (count, _) = file.read_at(buf::alloc(4096).await, 1 << 20).await;
        assert_eq!(count.unwrap(), 0, "nothing beyond the end");
        drop(file);
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn timers_fire_in_order_and_time_outs_drop() {
    on_each_driver(async || {
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let tasks: Vec<_> = [30_u64, 10, 20]
            .into_iter()
            .map(|ms| {
                let order = order.clone();
                spawn(async move {
                    time::sleep(Duration::from_millis(ms)).await;
                    order.borrow_mut().push(ms);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.borrow(), [10, 20, 30]);
    });
}

#[test]
fn cores_run_work_of_other_cores() {
    on_each_driver(async || {
        let cores = cores();
        let home = cores[0].clone();
        assert_eq!(cores.len(), 2);
        let (sender, receiver) = sync::oneshot();
        let slot = Rc::new(Cell::new(Some(sender)));
        thread_local!(static SLOT: Cell<Option<sync::OneSender<usize>>> = const { Cell::new(None) });
        SLOT.set(slot.take());
        cores[1].spawn(move || async move {
            time::sleep(Duration::from_millis(2)).await;
            let there = flagstone_runtime::core_index();
            home.spawn(move || async move {
                SLOT.take().expect("this is core 0").send(there);
            });
        });
        assert_eq!(receiver.await, Some(1));
    });
}

#[test]
fn aborted_tasks_report_abort() {
    on_each_driver(async || {
        let before = alive();
        let task = spawn(async { time::sleep(Duration::from_secs(3600)).await });
        task::yield_now().await;
        task.abort();
        assert!(task.await.is_err());
        assert_eq!(alive(), before);
    });
}

#[test]
fn semaphore_is_fair_and_returns_permits() {
    on_each_driver(async || {
        let semaphore = sync::Semaphore::new(2);
        let both = semaphore.acquire(2).await;
        let waiting = semaphore.clone();
        let large = spawn(async move { waiting.acquire(2).await });
        task::yield_now().await;
        assert!(semaphore.try_acquire(1).is_none());
        drop(both);
        drop(large.await.unwrap());
        assert_eq!(semaphore.available(), 2);
    });
}

/// Found by the load generator: the wake-up that ends `main` stayed unread. The driver took it for
/// work and never waited, so the write in flight never completed.
#[test]
fn main_may_end_while_a_write_is_in_flight() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    on_each_driver(async || {
        let path = dir.path().join("in-flight");
        let options = OpenOptions { create_bytes: Some(64 << 20), ..OpenOptions::default() };
        let file = Rc::new(File::open(&path, &options).unwrap());
        for part in 0..16_u64 {
            let (file, data) = (file.clone(), buf::alloc(4 << 20).await.freeze());
            flagstone_runtime::spawn_detached(async move {
                let _ = file.write_at(data, part * (4 << 20), true).await;
            });
        }
        let (sender, receiver) = sync::oneshot();
        flagstone_runtime::spawn_detached(async move { sender.send(()) });
        receiver.await.unwrap();
        drop(file);
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn tasks_belong_to_the_flow_of_the_task_that_spawned_them() {
    on_each_driver(async || {
        let work = |first: Option<u64>| async move {
            assert_eq!(task::flow(), 0, "no flow has begun yet");
            let mine = task::begin_flow();
            assert!(first.is_none_or(|first| first != mine));
            task::yield_now().await;
            let child = spawn(async move {
                let inherited = task::flow();
                let own = task::begin_flow();
                task::yield_now().await;
                assert_eq!(task::flow(), own);
                inherited
            });
            assert_eq!(child.await, Ok(mine));
            assert_eq!(task::flow(), mine, "a child's own flow is not its parent's");
            // Work for another core has the same flow.
            let (far, near) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let (flow, done) = (far.clone(), near.clone());
            cores()[1].spawn(move || async move {
                flow.store(task::flow(), Ordering::SeqCst);
                done.store(true, Ordering::SeqCst);
            });
            while !near.load(Ordering::SeqCst) {
                task::yield_now().await;
            }
            assert_eq!(far.load(Ordering::SeqCst), mine);
            mine
        };
        let first = spawn(work(None)).await.unwrap();
        spawn(work(Some(first))).await.unwrap();
        assert_eq!(spawn(async { task::flow() }).await, Ok(0));
    });
}

/// The threads driver kept the resources of cancelled operations until its next sleep was over.
#[test]
fn cancelled_operation_releases_socket_at_once() {
    on_each_driver(async || {
        let listener = Listener::bind(&any_port()).unwrap();
        let client = Stream::connect(listener.address()).await.unwrap();
        let server = listener.accept().await.unwrap();
        let receive = server.recv(buf::alloc(100).await);
        assert!(time::timeout(Duration::from_millis(5), receive).await.is_err());
        drop(server);
        let ended = client.recv(buf::alloc(100).await);
        let (count, _) = time::timeout(Duration::from_secs(10), ended).await.expect("the end");
        assert_eq!(count.unwrap(), 0);
    });
}

#[test]
fn main_may_end_while_sends_wait_for_each_other() {
    on_each_driver(async || {
        let listener = Listener::bind(&any_port()).unwrap();
        let client = Stream::connect(listener.address()).await.unwrap();
        let server = listener.accept().await.unwrap();
        for stream in [client, server] {
            flagstone_runtime::spawn_detached(async move {
                while stream.send_buf(buf::alloc(8 << 20).await.freeze()).await.is_ok() {}
            });
        }
        time::sleep(Duration::from_millis(50)).await;
    });
}

/// An operation whose future is never polled or dropped again, as in a reference cycle, kept the
/// executor waiting forever.
#[test]
fn main_may_end_with_leaked_operation() {
    on_each_driver(async || {
        let listener = Listener::bind(&any_port()).unwrap();
        let client = Stream::connect(listener.address()).await.unwrap();
        let server = listener.accept().await.unwrap();
        let mut receive = Box::pin(server.recv(buf::alloc(100).await));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(receive.as_mut().poll(&mut cx).is_pending());
        // Leaked on purpose, with everything it borrows.
        std::mem::forget(receive);
        std::mem::forget((client, server));
    });
}

async fn tcp_pair() -> (Stream, Stream) {
    let listener = Listener::bind(&any_port()).unwrap();
    let client = Stream::connect(listener.address()).await.unwrap();
    (client, listener.accept().await.unwrap())
}

#[test]
fn shutdown_sending_ends_after_sent_data() {
    on_each_driver(async || {
        let (client, server) = tcp_pair().await;
        client.send_buf(Buf::copy_of(b"last").unwrap()).await.unwrap();
        client.shutdown_sending();
        let error = client.send_buf(Buf::copy_of(b"x").unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        server.recv_exact(buf::alloc(4).await).await.0.unwrap();
        assert_eq!(server.recv(buf::alloc(4).await).await.0.unwrap(), 0);
        server.send_buf(Buf::copy_of(b"answer").unwrap()).await.unwrap();
        client.recv_exact(buf::alloc(6).await).await.0.unwrap();
        drop(server);
        assert_eq!(client.recv(buf::alloc(4).await).await.0.unwrap(), 0);
    });
}

/// A send that waits for a peer that does not receive ends too, and the peer is reset. It never
/// sees the rest of the data, which an ordinary close would leave in the kernel for it.
#[test]
fn abort_drops_unsent_data() {
    on_each_driver(async || {
        let (client, server) = tcp_pair().await;
        let sender = client.clone();
        let sending = spawn(async move {
            let data = buf::alloc(32 << 20).await.freeze();
            sender.send_buf(data).await
        });
        time::sleep(Duration::from_millis(20)).await;
        client.abort();
        assert!(sending.await.unwrap().is_err());
        assert_eq!(client.recv(buf::alloc(4).await).await.0.unwrap(), 0);
        drop(client);
        let error = loop {
            match server.recv(buf::alloc(1 << 20).await).await.0 {
                Ok(count) => assert!(count > 0, "ended as if all had been sent"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn keep_alive_accepts_system_ranges() {
    let dir = tempfile::tempdir().unwrap();
    on_each_driver(async || {
        let (client, _server) = tcp_pair().await;
        let good = KeepAlive { idle_s: 60, interval_s: 10, probes: 6 };
        client.set_keep_alive(good).unwrap();
        client.set_keep_alive(KeepAlive { idle_s: 32_767, interval_s: 1, probes: 127 }).unwrap();
        for bad in [
            KeepAlive { idle_s: 0, ..good },
            KeepAlive { interval_s: 32_768, ..good },
            KeepAlive { probes: 0, ..good },
            KeepAlive { probes: 128, ..good },
        ] {
            let error = client.set_keep_alive(bad).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        }
        let path = Address::Unix(dir.path().join("keep-alive.sock"));
        let listener = Listener::bind(&path).unwrap();
        Stream::connect(&path).await.unwrap().set_keep_alive(good).unwrap();
        drop(listener);
    });
}

#[test]
fn private_socket_has_mode_0600_and_peer_user() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let dir = tempfile::tempdir().unwrap();
    on_each_driver(async || {
        let path = dir.path().join("private.sock");
        let listener = Listener::bind_private(&Address::Unix(path.clone())).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        let client = Stream::connect(&Address::Unix(path)).await.unwrap();
        let accepted = listener.accept().await.unwrap();
        for stream in [&client, &accepted] {
            let user = stream.peer_user().unwrap();
            assert_eq!(user.user_id, meta.uid(), "{user:?}");
            assert_eq!(user.process_id, Some(std::process::id()), "{user:?}");
        }
        let tcp = Listener::bind(&any_port()).unwrap();
        assert_eq!(Stream::connect(tcp.address()).await.unwrap().peer_user(), None);
    });
}

#[test]
fn stale_socket_is_replaced_and_live_one_kept() {
    let dir = tempfile::tempdir().unwrap();
    on_each_driver(async || {
        let path = dir.path().join("once.sock");
        let address = Address::Unix(path.clone());
        let first = Listener::bind(&address).unwrap();
        let in_use = |result: std::io::Result<Listener>| result.unwrap_err().kind();
        assert_eq!(in_use(Listener::bind(&address)), std::io::ErrorKind::AddrInUse);
        // The result does not depend on the number of connections that wait to be accepted.
        let mut waiting = Vec::new();
        for _ in 0..20 {
            waiting.push(Stream::connect(&address).await.unwrap());
        }
        assert_eq!(in_use(Listener::bind_private(&address)), std::io::ErrorKind::AddrInUse);
        // The sockets of a killed server are closed, and their files stay.
        drop(first);
        drop(waiting);
        assert!(path.exists());
        let second = Listener::bind_private(&address).unwrap();
        Stream::connect(&address).await.unwrap();
        drop(second);
        // A file that is not a socket must not be removed.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(in_use(Listener::bind(&address)), std::io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        std::fs::remove_file(&path).unwrap();
    });
}
