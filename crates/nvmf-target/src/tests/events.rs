//! Asynchronous events as seen by a host.

use flagstone_nvme::command::Sqe;
use flagstone_nvme::command::admin::GetLogPage;
use flagstone_nvme::event::{AsyncEvent, EventMask};
use flagstone_nvme::feature::FeatureId;
use flagstone_nvme::log::{AnaState, LogId};
use flagstone_nvme::status::Status;

use super::*;

fn host_with_events(target: &Arc<Target>, subsystem: &Nqn, mask: EventMask) -> TestHost {
    let host = TestHost::connect(target, subsystem);
    host.send(&Sqe::set_features(1, FeatureId::ASYNC_EVENTS, mask.0), &[]).unwrap();
    host
}

fn event(host: &TestHost) -> Option<AsyncEvent> {
    host.controller().events.try_next().map(|cqe| cqe.async_event())
}

fn read_log(host: &TestHost, log: LogId, bytes: u32) -> Vec<u8> {
    let command = GetLogPage::new(log, u32::MAX, 0, bytes).command(1).unwrap();
    host.send(&command, &[]).unwrap().1
}

#[test]
fn namespace_changes_raise_events() {
    let target = target();
    let host = host_with_events(&target, &volume(), EventMask::NAMESPACE_ATTRIBUTE);
    let deaf = TestHost::connect(&target, &volume());
    for cid in 0..3 {
        host.wait_for_event(cid);
        deaf.wait_for_event(cid);
    }
    add_namespace(&target, Some(5)).unwrap();
    assert_eq!(event(&host), Some(AsyncEvent::NAMESPACE_CHANGED));
    target.remove_namespace(&volume(), 1).unwrap();
    assert_eq!(event(&host), None, "masked until the log is read");
    let log = read_log(&host, LogId::CHANGED_NAMESPACES, 4096);
    assert_eq!(&log[..12], [1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(read_log(&host, LogId::CHANGED_NAMESPACES, 8), [0; 8]);
    add_namespace(&target, None).unwrap();
    assert_eq!(event(&host), Some(AsyncEvent::NAMESPACE_CHANGED));
    assert_eq!(event(&deaf), None);
}

/// The host looks again at a namespace that was not ready, and sends the I/O that it has queued.
#[test]
fn device_of_pending_namespace_raises_events() {
    let target = target();
    target.add_pending_namespace(&volume(), 5).unwrap();
    let both = EventMask(EventMask::NAMESPACE_ATTRIBUTE.0 | EventMask::ANA.0);
    let host = host_with_events(&target, &volume(), both);
    for cid in 0..3 {
        host.wait_for_event(cid);
    }
    add_namespace(&target, Some(5)).unwrap();
    assert_eq!(event(&host), Some(AsyncEvent::NAMESPACE_CHANGED));
    assert_eq!(event(&host), Some(AsyncEvent::ANA_CHANGED));
    assert_eq!(read_log(&host, LogId::CHANGED_NAMESPACES, 8)[..4], [5, 0, 0, 0]);
}

#[test]
fn ana_changes_raise_events() {
    let target = target();
    let host = host_with_events(&target, &volume(), EventMask::ANA);
    host.wait_for_event(1);
    target.set_ana_state(&volume(), AnaState::OPTIMIZED).unwrap();
    assert_eq!(event(&host), None, "nothing changed");
    target.set_ana_state(&volume(), AnaState::INACCESSIBLE).unwrap();
    assert_eq!(event(&host), Some(AsyncEvent::ANA_CHANGED));
    host.wait_for_event(1);
    target.set_ana_state(&volume(), AnaState::OPTIMIZED).unwrap();
    assert_eq!(event(&host), None);
    read_log(&host, LogId::ANA, 64);
    target.set_ana_state(&volume(), AnaState::CHANGE).unwrap();
    assert_eq!(event(&host), Some(AsyncEvent::ANA_CHANGED));
}

#[test]
fn discovery_changes_notify_visible_hosts() {
    let target = target();
    let host = host_with_events(&target, &Nqn::discovery(), EventMask::DISCOVERY);
    let other = Nqn::new("nqn.2026-01.io.flagstone:other").unwrap();
    let check = |change: &dyn Fn(), reported: bool| {
        host.wait_for_event(1);
        change();
        assert_eq!(event(&host).is_some(), reported);
        assert!(reported || host.controller().events.abort(1));
        host.controller().events.try_next();
        read_log(&host, LogId::DISCOVERY, 1024);
    };
    let listener = Address::Tcp("192.0.2.1:4420".parse().unwrap());
    check(&|| target.add_listener(&listener).unwrap(), true);
    check(&|| target.add_listener(&listener).unwrap(), false);
    check(&|| add_subsystem(&target, other, None), true);
    check(&|| target.remove_subsystem(&other).unwrap(), true);
    check(&|| add_subsystem(&target, other, Some(vec![Nqn::from_uuid([1; 16])])), false);
    check(&|| target.set_allowed_hosts(&other, Some(vec![super::host()])).unwrap(), true);
}

#[test]
fn event_request_limit_and_reset() {
    let target = target();
    let host = host_with_events(&target, &volume(), EventMask::NAMESPACE_ATTRIBUTE);
    for cid in 0..4 {
        host.wait_for_event(cid);
    }
    let more = host.send(&Sqe::async_event_request(4), &[]);
    assert_eq!(more, Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.dnr()));
    let again = host.send(&Sqe::async_event_request(3), &[]);
    assert_eq!(again, Err(Status::COMMAND_ID_CONFLICT.dnr()));
    host.set_cc(enabled().with_enable(0));
    let disabled = host.send(&Sqe::async_event_request(3), &[]);
    assert_eq!(disabled, Err(Status::COMMAND_SEQUENCE_ERROR.dnr()));
    host.enable();
    add_namespace(&target, None).unwrap();
    assert_eq!(event(&host), None);
    host.wait_for_event(3);
    assert_eq!(event(&host), None);
}

#[test]
fn event_wakes_waiting_connection() {
    let target = target();
    let host = host_with_events(&target, &volume(), EventMask::NAMESPACE_ATTRIBUTE);
    host.wait_for_event(9);
    let controller = host.controller().clone();
    let completion = flagstone_runtime::block_on(async move {
        let waiting = flagstone_runtime::spawn(async move { controller.wait_event().await });
        flagstone_runtime::task::yield_now().await;
        assert!(!waiting.is_finished());
        add_namespace(&target, None).unwrap();
        waiting.await
    });
    assert_eq!(completion.unwrap().unwrap().cid.get(), 9);
}
