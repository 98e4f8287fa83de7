//! Tests of the schedule in an event loop: hosts with a constant queue depth, time that jumps from
//! event to event, and sliding windows over all started commands.

use proptest::prelude::*;

use super::*;
use crate::meter::{nanos, ticks};
use crate::rates::{Budget, IoStep, Rate};

const SECOND_NS: u64 = 1_000_000_000;

/// A flow that always has `depth` commands in flight, each sent `pause_ns` after one completed.
#[derive(Clone, Copy, Debug)]
struct Host {
    depth: usize,
    bytes: u32,
    /// Percentage of reads.
    reads: u64,
    pause_ns: u64,
}

impl Host {
    fn reader(depth: usize, bytes: u32) -> Host {
        Host { depth, bytes, reads: 100, pause_ns: 0 }
    }

    fn writer(depth: usize, bytes: u32) -> Host {
        Host { reads: 0, ..Host::reader(depth, bytes) }
    }
}

/// A started command.
#[derive(Clone, Copy, Debug)]
struct Gone {
    at_ns: u64,
    host: usize,
    request: LimitRequest,
}

struct Loop {
    schedule: Schedule,
    hosts: Vec<Host>,
    now_ns: u64,
    /// Future commands, by time; equal times in the order in which they were added.
    coming: BinaryHeap<Reverse<(u64, u64, usize)>>,
    added: u64,
    tickets: std::collections::BTreeMap<u32, (CommandTicket, usize, LimitRequest)>,
    /// A counter alternates reads and writes, without randomness.
    made: Vec<u64>,
    gone: Vec<Gone>,
}

impl Loop {
    fn new(limit: &Limit, hosts: &[Host]) -> Loop {
        limit.check().unwrap();
        let mut this = Loop {
            schedule: Schedule::new(limit),
            hosts: hosts.to_vec(),
            now_ns: 5 * SECOND_NS,
            coming: BinaryHeap::new(),
            added: 0,
            tickets: Default::default(),
            made: vec![0; hosts.len()],
            gone: Vec::new(),
        };
        for (host, of) in hosts.iter().enumerate() {
            (0..of.depth).for_each(|_| this.add(this.now_ns, host));
        }
        this
    }

    fn add(&mut self, at_ns: u64, host: usize) {
        self.added += 1;
        self.coming.push(Reverse((at_ns, self.added, host)));
    }

    fn went(&mut self, host: usize, request: LimitRequest) {
        self.gone.push(Gone { at_ns: self.now_ns, host, request });
        self.add(self.now_ns + self.hosts[host].pause_ns, host);
    }

    fn arrive(&mut self, host: usize) {
        let of = self.hosts[host];
        self.made[host] += 1;
        let reads = |made| made * of.reads / 100;
        let read = reads(self.made[host]) > reads(self.made[host] - 1);
        let class = if read { Class::Read } else { Class::Write };
        let request = LimitRequest { class, bytes: of.bytes };
        match self.schedule.enter(ticks(self.now_ns), host as u64 + 1, request) {
            ArrivalResult::Go => self.went(host, request),
            ArrivalResult::Wait(ticket) => {
                self.tickets.insert(slot_of(ticket), (ticket, host, request));
            }
            ArrivalResult::Full => panic!("these hosts are not that many"),
        }
    }

    fn grant(&mut self) {
        while let Some(ticket) = self.schedule.next(ticks(self.now_ns)) {
            let (_, host, request) = self.tickets.remove(&slot_of(ticket)).unwrap();
            self.schedule.leave(ticket, true);
            self.went(host, request);
        }
    }

    fn run(&mut self, span_ns: u64) {
        let end = self.now_ns + span_ns;
        while self.now_ns < end {
            self.grant();
            if let Some(Reverse((at, _, host))) = self.coming.peek().copied()
                && at <= self.now_ns
            {
                self.coming.pop();
                self.arrive(host);
                continue;
            }
            let arrival = self.coming.peek().map(|Reverse((at, _, _))| *at);
            let due = self.schedule.due().map(nanos);
            self.now_ns = [arrival, due].into_iter().flatten().min().unwrap().max(self.now_ns);
        }
    }

    fn of_host(&self, host: usize, amount: impl Fn(&Gone) -> u64) -> u64 {
        self.gone.iter().filter(|gone| gone.host == host).map(amount).sum()
    }
}

fn slot_of(ticket: CommandTicket) -> u32 {
    ticket.index()
}

/// Minimum and maximum over all windows of one second within the run.
fn windows(gone: &[Gone], amount: impl Fn(&Gone) -> u64) -> (u64, u64) {
    // Sums of all earlier commands.
    let mut sums = vec![0];
    gone.iter().for_each(|one| sums.push(sums[sums.len() - 1] + amount(one)));
    let last = gone[gone.len() - 1].at_ns;
    let (mut least, mut most) = (u64::MAX, 0);
    let (mut behind, mut until, mut through) = (0, 0, 0);
    for (index, one) in gone.iter().enumerate() {
        let end = one.at_ns + SECOND_NS;
        if end > last {
            break;
        }
        let beyond = |from: &mut usize, is_in: &dyn Fn(u64) -> bool| {
            while *from < gone.len() && is_in(gone[*from].at_ns) {
                *from += 1;
            }
            *from
        };
        // The window that starts with this command has the maximum, the one just after it the
        // minimum.
        most = most.max(sums[beyond(&mut until, &|at| at < end)] - sums[index]);
        let from = beyond(&mut behind, &|at| at <= one.at_ns);
        least = least.min(sums[beyond(&mut through, &|at| at <= end)] - sums[from]);
    }
    assert!(most > 0, "the run is longer than a second");
    (least, most)
}

/// Every second is within 1 % of the rate, or within one I/O if that is more.
fn assert_exact(gone: &[Gone], rate: u64, one: u64, amount: impl Fn(&Gone) -> u64) {
    let (least, most) = windows(gone, amount);
    let slack = (rate / 100).max(one);
    assert!(most <= rate + slack, "{most} in a second, of {rate}");
    assert!(least >= rate - slack, "only {least} in a second, of {rate}");
}

/// Jain's fairness index: 1 if all are equal.
fn jain(amounts: &[u64]) -> f64 {
    let sum: f64 = amounts.iter().map(|amount| *amount as f64).sum();
    let squares: f64 = amounts.iter().map(|amount| (*amount as f64).powi(2)).sum();
    sum * sum / (amounts.len() as f64 * squares)
}

fn ios(rate: u64) -> Limit {
    Limit { ios: Budget::total(rate), ..Limit::default() }
}

fn bytes(rate: u64) -> Limit {
    Limit { bytes: Budget::total(rate), ..Limit::default() }
}

#[test]
fn iops_limit_is_exact_in_any_second() {
    for rate in [100, 333, 3000, 15_000, 100_000, 1_000_000] {
        for (depth, reads) in [(1, 100), (1, 50), (32, 0), (256, 70)] {
            let host = Host { depth, bytes: 4096, reads, pause_ns: 200 };
            let mut run = Loop::new(&ios(rate), &[host]);
            run.run(if rate > 100_000 { 1_300_000_000 } else { 3 * SECOND_NS });
            assert_exact(&run.gone, rate, 1, |_| 1);
        }
    }
}

#[test]
fn throughput_limit_is_exact_in_any_second() {
    for (rate, sizes) in [
        (1_000_000, vec![512, 4096]),
        (240_000_000, vec![4096, 65536, 1 << 20]),
        (10_000_000_000, vec![65536, 1 << 20, 32 << 20]),
    ] {
        for size in sizes {
            for (depth, reads) in [(1, 100), (16, 30)] {
                let host = Host { depth, bytes: size, reads, pause_ns: 200 };
                let mut run = Loop::new(&bytes(rate), &[host]);
                run.run(2 * SECOND_NS + SECOND_NS / 2);
                assert_exact(&run.gone, rate, size.into(), |gone| gone.request.bytes.into());
            }
        }
    }
}

#[test]
fn scarcer_budget_decides() {
    let limit = Limit { bytes: Budget::total(240_000_000), ..ios(15_000) };
    for (size, rate) in [(4096, 15_000), (16384, 240_000_000 / 16384), (262_144, 915)] {
        let mut run = Loop::new(&limit, &[Host::reader(32, size)]);
        run.run(3 * SECOND_NS);
        assert_exact(&run.gone, rate, 1, |_| 1);
    }
}

#[test]
fn separate_budgets_are_independent() {
    let limit = Limit {
        ios: Budget::separate(20_000, 500),
        bytes: Budget::separate(800_000_000, 400_000_000),
        ..Limit::default()
    };
    // One host with both kinds, and one host of each kind.
    for hosts in [
        &[Host { depth: 600, bytes: 4096, reads: 50, pause_ns: 0 }][..],
        &[Host::reader(8, 4096), Host::writer(64, 4096)],
    ] {
        let mut run = Loop::new(&limit, hosts);
        run.run(3 * SECOND_NS);
        let class = |class| -> Vec<Gone> {
            run.gone.iter().filter(|gone| gone.request.class == class).copied().collect()
        };
        assert_exact(&class(Class::Write), 500, 5, |_| 1);
        if hosts.len() == 2 {
            assert_exact(&class(Class::Read), 20_000, 1, |_| 1);
        }
    }
}

#[test]
fn mixed_io_stays_within_shared_budget() {
    // The published line of a disk with 3,000 reads or 15,000 writes a second.
    let limit = Limit { ios: Budget::shared(3000, 15_000), ..Limit::default() };
    for (reads, read_rate, write_rate) in [(100, 3000, 0), (50, 2500, 2500), (0, 0, 15_000)] {
        let host = Host { depth: 64, bytes: 8192, reads, pause_ns: 0 };
        let mut run = Loop::new(&limit, &[host]);
        run.run(3 * SECOND_NS);
        for (class, rate) in [(Class::Read, read_rate), (Class::Write, write_rate)] {
            let gone: Vec<Gone> =
                run.gone.iter().filter(|gone| gone.request.class == class).copied().collect();
            if rate > 0 {
                assert_exact(&gone, rate, 1, |_| 1);
            }
        }
    }
    // A read-only host and a write-only host get half of the budget each.
    let mut run = Loop::new(&limit, &[Host::reader(32, 8192), Host::writer(32, 8192)]);
    run.run(3 * SECOND_NS);
    let (reads, writes) = (run.of_host(0, |_| 1), run.of_host(1, |_| 1));
    assert!(
        (4450..=4550).contains(&reads) && (22_250..=22_750).contains(&writes),
        "{reads} {writes}"
    );
}

#[test]
fn large_ios_count_as_several() {
    let step = IoStep { above_bytes: 8192, millionths: 2_000_000 };
    let write_size = IoSize::steps([step]).unwrap();
    let limit = Limit { write_size, ..ios(15_000) };
    for (host, rate) in [
        (Host::writer(16, 8192), 15_000),
        (Host::writer(16, 16384), 7500),
        (Host::writer(16, 262_144), 7500),
        (Host::reader(16, 262_144), 15_000),
    ] {
        let mut run = Loop::new(&limit, &[host]);
        run.run(2 * SECOND_NS);
        assert_exact(&run.gone, rate, 1, |_| 1);
    }
}

#[test]
fn flows_share_fairly_at_any_depth_and_size() {
    // I/Os, of hosts with depth 1 to 64.
    let depths = [1, 2, 8, 64].map(|depth| Host { pause_ns: 20_000, ..Host::reader(depth, 4096) });
    let mut run = Loop::new(&ios(10_000), &depths);
    run.run(3 * SECOND_NS);
    let had: Vec<u64> = (0..depths.len()).map(|host| run.of_host(host, |_| 1)).collect();
    assert!(jain(&had) > 0.999, "{had:?}");
    assert_exact(&run.gone, 10_000, 1, |_| 1);
    // Bytes, of hosts with small and large I/Os, and of one host that reads and writes.
    let sizes = [4096, 65536, 1 << 20].map(|size| Host::reader(32, size));
    let both = Host { reads: 50, ..sizes[1] };
    let hosts = [sizes[0], sizes[1], sizes[2], both];
    let mut run = Loop::new(&bytes(100_000_000), &hosts);
    run.run(4 * SECOND_NS);
    let had: Vec<u64> =
        (0..hosts.len()).map(|host| run.of_host(host, |gone| gone.request.bytes.into())).collect();
    assert!(jain(&had) > 0.999, "{had:?}");
}

#[test]
fn light_flow_has_short_waits() {
    // 63 commands in flight of one host, and one every 10 ms of another, which never waits for more
    // than one earlier command.
    let light = Host { pause_ns: 10_000_000, ..Host::reader(1, 4096) };
    let mut run = Loop::new(&ios(1000), &[Host::writer(63, 4096), light]);
    run.run(3 * SECOND_NS);
    // Each of its rounds takes the pause and at most the time of two commands.
    let rounds = run.of_host(1, |_| 1);
    assert!(rounds >= 3_000 / 12, "{rounds}");
}

#[test]
fn late_timers_are_compensated() {
    // Every 200 ms the server and its hosts do not get their CPU for 30 ms.
    let limit = Limit { bytes: Budget::total(1_000_000_000), ..ios(15_000) };
    for depth in [4, 64, 1000] {
        let mut run = Loop::new(&limit, &[Host::reader(depth, 4096)]);
        let start = run.now_ns;
        while run.now_ns < start + 4 * SECOND_NS {
            run.run(170_000_000);
            run.now_ns += 30_000_000;
        }
        let count = run.gone.len() as u64;
        assert!((59_400..=60_600).contains(&count), "depth {depth}: {count} in 4 s");
        // After the make-up, the rate is exact again.
        let calm = run.gone.len() + 600;
        run.run(3 * SECOND_NS);
        assert_exact(&run.gone[calm..], 15_000, 1, |_| 1);
    }
    // At most a tenth of a second is made up for.
    let mut run = Loop::new(&limit, &[Host::reader(1000, 4096)]);
    run.run(SECOND_NS);
    run.now_ns += 20 * SECOND_NS;
    let before = run.gone.len();
    run.run(SECOND_NS);
    let after = run.gone.len() - before;
    assert!(after <= 15_000 * 1106 / 1000, "{after} in the second after");
    // Time without demand is not made up for.
    let pausing = Host { pause_ns: 30_000_000, ..Host::reader(150, 4096) };
    let mut run = Loop::new(&limit, &[pausing]);
    run.run(3 * SECOND_NS);
    let (_, most) = windows(&run.gone, |_| 1);
    assert!(most <= 15_150, "{most}");
}

#[test]
fn burst_credit_drains_and_refills_exactly() {
    let rate = Rate::new(1000).bursting(4000, 2);
    let ios = Budget { total: Some(rate), ..Budget::default() };
    let limit = Limit { ios, ..Limit::default() };
    let mut run = Loop::new(&limit, &[Host::reader(16, 4096)]);
    let start = run.now_ns;
    run.run(6 * SECOND_NS);
    let within = |run: &Loop, from: u64, to: u64| {
        let span = start + from * 1_000_000..start + to * 1_000_000;
        run.gone.iter().filter(|gone| span.contains(&gone.at_ns)).count() as u64
    };
    assert!((8000..=8040).contains(&within(&run, 0, 2000)), "{}", within(&run, 0, 2000));
    assert!((3790..=3830).contains(&within(&run, 2100, 5900)), "{}", within(&run, 2100, 5900));
    assert_exact(&run.gone[8100..], 1000, 1, |_| 1);
    // Three idle seconds earn 3,000: one second at 4,000.
    let idle_until = run.now_ns + 3 * SECOND_NS;
    let coming = std::mem::take(&mut run.coming);
    for _ in 0..coming.len() + run.tickets.len() {
        run.add(idle_until, 0);
    }
    let waiting = std::mem::take(&mut run.tickets);
    waiting.into_values().for_each(|(ticket, ..)| run.schedule.leave(ticket, false));
    assert_eq!(run.schedule.due(), None);
    let before = run.gone.len() as u64;
    run.now_ns = idle_until;
    run.run(2 * SECOND_NS);
    let again = run.gone.len() as u64 - before;
    assert!((4990..=5040).contains(&again), "{again}");
}

#[test]
fn changed_limit_applies_to_waiters() {
    let mut run = Loop::new(&ios(100), &[Host::reader(64, 4096), Host::writer(64, 4096)]);
    run.run(2 * SECOND_NS);
    let (slow, changed_at) = (run.gone.len(), run.now_ns);
    run.schedule.set(ticks(changed_at), &ios(50_000));
    run.run(2 * SECOND_NS);
    assert_exact(&run.gone[slow..], 50_000, 1, |_| 1);
    assert!(run.gone[slow].at_ns - changed_at < 1_000_000);
    let had = [run.of_host(0, |_| 1), run.of_host(1, |_| 1)];
    assert!(jain(&had) > 0.9999, "{had:?}");
    // A lower rate: the debt is at the new rate, and at most one command.
    let fast = run.gone.len();
    run.schedule.set(ticks(run.now_ns), &ios(200));
    run.run(2 * SECOND_NS);
    assert_exact(&run.gone[fast..], 200, 2, |_| 1);
    // Unlimited: all start.
    run.schedule.set(ticks(run.now_ns), &Limit::default());
    run.grant();
    assert_eq!(run.schedule.waiting.count(), 0);
}

#[test]
fn cancelled_request_returns_its_charge() {
    let mut schedule = Schedule::new(&ios(10));
    let request = LimitRequest { class: Class::Read, bytes: 4096 };
    let start = ticks(SECOND_NS);
    assert_eq!(schedule.enter(start, 1, request), ArrivalResult::Go);
    let wait = |schedule: &mut Schedule, flow| match schedule.enter(start, flow, request) {
        ArrivalResult::Wait(ticket) => ticket,
        other => panic!("{other:?}"),
    };
    let [first, second, third] = [1, 1, 2].map(|flow| wait(&mut schedule, flow));
    schedule.leave(first, false);
    assert_eq!(schedule.waiting.count(), 2);
    let due = schedule.due().unwrap();
    // A command is granted and then dropped: the next one need not wait for it.
    let granted = schedule.next(due).unwrap();
    assert_eq!(granted, third, "the other flow has had less");
    assert_eq!(schedule.next(due), None);
    schedule.leave(third, false);
    assert_eq!(schedule.next(due), Some(second));
    schedule.leave(second, true);
    assert_eq!(schedule.due(), None);
}

#[test]
fn full_queue_rejects_but_keeps_one_per_flow() {
    let mut schedule = Schedule::new(&ios(1));
    let request = LimitRequest { class: Class::Write, bytes: 512 };
    let mut waits = |flow: u64| match schedule.enter(0, flow, request) {
        ArrivalResult::Full => 0,
        ArrivalResult::Go | ArrivalResult::Wait(_) => 1,
    };
    let of_one: u32 = (0..2 * FLOW_WAITING_MAX).map(|_| waits(1)).sum();
    assert_eq!(of_one, FLOW_WAITING_MAX + 1, "and one that went");
    let flows = WAITING_MAX as u64 / u64::from(FLOW_WAITING_MAX) + 3;
    let all: u32 =
        (2..flows).flat_map(|flow| [flow; FLOW_WAITING_MAX as usize]).map(&mut waits).sum();
    assert!((all + of_one) as usize <= WAITING_MAX + flows as usize);
    assert_eq!(waits(1_000_000), 1, "one that has none yet is let in");
    assert_eq!(waits(1_000_000), 0);
}

/// Step of the property test.
#[derive(Clone, Debug)]
enum Step {
    Arrive {
        flow: u64,
        class: usize,
        kib: u32,
    },
    /// Time passes, in microseconds; granted commands start.
    Pass(u32),
    /// A waiting command is dropped, or a granted one does not start.
    Leave(usize),
    Set(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6_u64, 0..3_usize, 1..1024_u32)
            .prop_map(|(flow, class, kib)| Step::Arrive { flow, class, kib }),
        3 => (0..20_000_u32).prop_map(Step::Pass),
        1 => (0..100_usize).prop_map(Step::Leave),
        1 => (0..5_usize).prop_map(Step::Set),
    ]
}

fn some_limit(which: usize) -> Limit {
    match which {
        0 => Limit { bytes: Budget::total(20_000_000), ..ios(1000) },
        1 => Limit {
            ios: Budget::shared(500, 2000),
            bytes: Budget::separate(10_000_000, 5_000_000),
            ..Limit::default()
        },
        2 => Limit {
            ios: Budget { total: Some(Rate::new(300)), ..Budget::separate(200, 250) },
            read_size: IoSize::Units { bytes: 65536 },
            ..Limit::default()
        },
        3 => Limit {
            ios: Budget { total: Some(Rate::new(100).bursting(900, 1)), ..Budget::default() },
            ..Limit::default()
        },
        _ => Limit::default(),
    }
}

proptest! {
    /// For any sequence: no command is lost, commands of a flow and class keep their order, no
    /// command waits while its meters are free, and at the end all have started.
    #[test]
    fn waiters_are_served_once_and_in_order(limit in 0..4_usize, steps in prop::collection::vec(step(), 1..200)) {
        let mut schedule = Schedule::new(&some_limit(limit));
        let mut waiting: Vec<(CommandTicket, u64, usize, u64)> = Vec::new();
        let (mut now, mut number) = (ticks(SECOND_NS), 0);
        for step in steps {
            match step {
                Step::Arrive { flow, class, kib } => {
                    let request = LimitRequest { class: CLASSES[class], bytes: kib * 1024 };
                    number += 1;
                    if let ArrivalResult::Wait(ticket) = schedule.enter(now, flow, request) {
                        waiting.push((ticket, flow, class, number));
                    }
                }
                Step::Pass(us) => now += ticks(u64::from(us) * 1000),
                Step::Leave(which) if !waiting.is_empty() => {
                    let (ticket, ..) = waiting.remove(which % waiting.len());
                    schedule.leave(ticket, false);
                }
                Step::Leave(_) => {}
                Step::Set(which) => schedule.set(now, &some_limit(which)),
            }
            while let Some(ticket) = schedule.next(now) {
                let at = waiting.iter().position(|one| one.0 == ticket).expect("it waited");
                let (_, flow, class, number) = waiting.remove(at);
                let overtaken = |one: &&(CommandTicket, u64, usize, u64)| {
                    one.1 == flow && one.2 == class && one.3 < number
                };
                prop_assert!(waiting.iter().find(overtaken).is_none());
                schedule.leave(ticket, true);
            }
            prop_assert_eq!(schedule.waiting.count(), waiting.len());
            prop_assert_eq!(schedule.due().is_none(), waiting.is_empty());
            prop_assert!(schedule.due().is_none_or(|due| due > now));
        }
        while let Some(due) = schedule.due() {
            let granted = schedule.next(due);
            prop_assert!(granted.is_some(), "one is due");
            schedule.leave(granted.unwrap(), true);
            now = due;
        }
        prop_assert_eq!(schedule.waiting.count(), 0);
        prop_assert!(now < ticks(3600 * SECOND_NS), "and soon");
    }

    /// In any interval, the started commands are at most the rate, the tolerance, and one command.
    #[test]
    fn no_interval_exceeds_the_rate(
        rate in 100_u64..100_000,
        depths in prop::collection::vec((1_usize..40, 0_u64..=100, 0_u64..3_000_000), 1..5),
        span_ns in 1_000_000_u64..SECOND_NS,
    ) {
        let hosts: Vec<Host> = depths
            .iter()
            .map(|(depth, reads, pause_ns)| Host {
                depth: *depth, bytes: 4096, reads: *reads, pause_ns: *pause_ns,
            })
            .collect();
        let mut run = Loop::new(&ios(rate), &hosts);
        run.run(SECOND_NS);
        let mut first = 0;
        for (last, gone) in run.gone.iter().enumerate() {
            while run.gone[first].at_ns + span_ns <= gone.at_ns {
                first += 1;
            }
            let most = (span_ns + 5_000_000) * rate / SECOND_NS + 2;
            prop_assert!((last - first + 1) as u64 <= most, "{} of {most}", last - first + 1);
        }
    }
}
