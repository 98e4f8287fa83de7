use super::*;

const BLOCK: usize = 4096;

fn write(model: &Shared, fua: bool) -> Vec<u8> {
    let claim = model.claim(0, BLOCK, Some(Change::Write)).unwrap();
    let mut bytes = vec![0; BLOCK];
    claim.fill(&mut bytes);
    claim.acknowledged(fua);
    bytes
}

fn read(model: &Shared, bytes: &[u8]) {
    model.claim(0, BLOCK, None).unwrap().returned(bytes);
}

fn breaks(test: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).is_err()
}

#[test]
fn stale_torn_and_misplaced_data_are_detected() {
    let model = Shared::new(1, 1 << 20);
    let old = write(&model, false);
    let new = write(&model, false);
    read(&model, &new);
    assert!(breaks(|| read(&model, &old)));
    let torn_between_sectors = [&new[..512], &old[512..]].concat();
    assert!(breaks(|| read(&model, &torn_between_sectors)));
    let torn_in_a_sector = [&new[..100], &old[100..]].concat();
    assert!(breaks(|| read(&model, &torn_in_a_sector)));
    let moved = [&new[512..1024], &new[512..]].concat();
    assert!(breaks(|| read(&model, &moved)));
    assert!(breaks(|| read(&model, &vec![0; BLOCK])));
    read(&model, &new);
}

#[test]
fn power_loss_loses_only_unflushed_writes() {
    let model = Shared::new(1, 1 << 20);
    let first = write(&model, false);
    model.flushed(model.begin_flush());
    let flush = model.begin_flush();
    let second = write(&model, false);
    model.flushed(flush);
    model.power_lost();
    let mixed = [&second[..2048], &first[2048..]].concat();
    assert!(breaks(|| read(&model, &vec![0; BLOCK])));
    read(&model, &mixed);
    assert!(breaks(|| read(&model, &second)), "the content that was read stays");
    model.power_lost();
    read(&model, &mixed);
    let third = write(&model, true);
    model.power_lost();
    assert!(breaks(|| read(&model, &mixed)));
    read(&model, &third);
}

#[test]
fn older_flush_does_not_weaken_fua_write() {
    let model = Shared::new(1, 1 << 20);
    let first = write(&model, false);
    let flush = model.begin_flush();
    let second = write(&model, true);
    model.flushed(flush);
    model.power_lost();
    assert!(breaks(|| read(&model, &first)));
    read(&model, &second);
}

#[test]
fn unanswered_writes_may_arrive_late() {
    let model = Shared::new(1, 1 << 20);
    let claim = model.claim(0, BLOCK, Some(Change::Write)).unwrap();
    assert!(model.claim(512, 512, None).is_none(), "one call at a time");
    let mut unanswered = vec![0; BLOCK];
    claim.fill(&mut unanswered);
    drop(claim);
    read(&model, &unanswered);
    assert!(breaks(|| read(&model, &vec![0; BLOCK])), "it was there");
    model.expect_late_changes();
    let claim = model.claim(0, BLOCK, Some(Change::Write)).unwrap();
    let mut late = vec![0; BLOCK];
    claim.fill(&mut late);
    claim.lost_on_the_way();
    read(&model, &unanswered);
    let newest = write(&model, true);
    read(&model, &newest);
    read(&model, &late);
    model.process_ended();
    read(&model, &newest);
    assert!(breaks(|| read(&model, &late)), "too late");
}

#[test]
fn failed_flush_is_not_repaired_by_the_next() {
    let model = Shared::new(1, 1 << 20);
    let first = write(&model, false);
    model.flush_failed();
    model.flushed(model.begin_flush());
    read(&model, &first);
    model.power_lost();
    read(&model, &vec![0; BLOCK]);
}

#[test]
fn flush_begun_on_tainted_data_proves_nothing() {
    let model = Shared::new(1, 1 << 20);
    let first = write(&model, false);
    model.flush_failed();
    let flush = model.begin_flush();
    let second = write(&model, false);
    model.flushed(flush);
    read(&model, &second);
    model.power_lost();
    read(&model, &[&first[..512], &second[512..1024], &[0; 3072]].concat());
}

#[test]
fn answers_in_transit_at_a_power_loss_prove_nothing() {
    let model = Shared::new(1, 1 << 20);
    let claim = model.claim(0, BLOCK, Some(Change::Write)).unwrap();
    let mut bytes = vec![0; BLOCK];
    claim.fill(&mut bytes);
    let flush = model.begin_flush();
    model.power_lost();
    claim.acknowledged(false);
    model.flushed(flush);
    let half = [&bytes[..512], &[0; 3584]].concat();
    read(&model, &half);
    assert!(breaks(|| read(&model, &bytes)));
}

#[test]
fn power_loss_may_restore_unknown_content() {
    let model = Shared::new(1, 1 << 20);
    let old = write(&model, true);
    write(&model, true);
    model.forget();
    let third = write(&model, false);
    model.power_lost();
    read(&model, &[&old[..512], &third[512..]].concat());
    model.forget();
    let fourth = write(&model, false);
    model.flushed(model.begin_flush());
    model.power_lost();
    assert!(breaks(|| read(&model, &old)));
    read(&model, &fourth);
}

#[test]
fn grown_device_has_unknown_content_until_written() {
    let model = Shared::new(1, BLOCK as u64);
    let old = write(&model, true);
    model.grow(2 * BLOCK as u64);
    model.grow(BLOCK as u64);
    assert_eq!(model.bytes(), 2 * BLOCK as u64);
    let place = BLOCK as u64;
    let claim = model.claim(place, BLOCK, Some(Change::Write)).unwrap();
    let mut new = vec![0; BLOCK];
    claim.fill(&mut new);
    claim.acknowledged(true);
    let read_new = |bytes: &[u8]| model.claim(place, BLOCK, None).unwrap().returned(bytes);
    assert!(breaks(|| read_new(&vec![0; BLOCK])));
    read_new(&new);
    read(&model, &old);
}

#[test]
fn discarded_sectors_are_old_or_zero_and_stable() {
    let model = Shared::new(1, 1 << 20);
    let first = write(&model, true);
    model.claim(0, BLOCK, Some(Change::Discard)).unwrap().acknowledged(false);
    let half = [&first[..2048], &[0; 2048]].concat();
    read(&model, &half);
    assert!(breaks(|| read(&model, &first)));
    read(&model, &half);
}

#[test]
fn snapshots_have_versions_of_their_order() {
    let model = Shared::new(1, BLOCK as u64);
    let before = write(&model, false);
    let old = write(&model, false);
    let mut point = model.point();
    let new = write(&model, false);
    model.end_point(&mut point);
    let later = write(&model, false);
    let zeroes = vec![0; BLOCK];
    model.claim(0, BLOCK, Some(Change::Zero)).unwrap().acknowledged(false);
    for content in [&old, &new] {
        model.check_snapshot(&point, content);
    }
    for content in [&before, &later, &zeroes] {
        assert!(breaks(|| model.check_snapshot(&point, content)));
    }
    let mut point = model.point();
    model.end_point(&mut point);
    model.check_snapshot(&point, &zeroes);
    let clone = model.continued(&old);
    read(&clone, &old);
    assert!(breaks(|| read(&clone, &new)));
    model.becomes(&new);
    model.power_lost();
    read(&model, &new);
}
