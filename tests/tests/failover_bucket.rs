//! Automatic failover with a real S3-compatible server as the arbiter: two nodes, one bucket.

use flagstone_tests::bucket::Bucket;
use flagstone_tests::failover::{
    self, AFTER, PROMISE, armed, denied_to_serve, end, killed_and_replaced, served_again,
    start_load, until_denied, until_failover,
};
use flagstone_tests::mirror::Pair;

fn pair_with(bucket: &Bucket) -> Pair {
    failover::pair(&bucket.arbiter(), None, AFTER)
}

#[test]
fn killed_source_is_replaced_with_bucket() {
    let Some(bucket) = Bucket::start("failover with a bucket") else { return };
    let mut pair = pair_with(&bucket);
    let (mut load, state) = start_load(&pair);
    for round in 0..3 {
        let took = killed_and_replaced(&mut pair, &mut load, &state);
        eprintln!("round {round}: served again after {took:?}");
        // Generous: the machine is shared.
        assert!(took < 3 * (AFTER + PROMISE), "{took:?}");
    }
    end(pair, load);
}

#[test]
fn encrypted_bucket_decides() {
    let Some(bucket) = Bucket::encrypted("failover with an encrypted bucket") else { return };
    let mut pair = pair_with(&bucket);
    let (mut load, state) = start_load(&pair);
    killed_and_replaced(&mut pair, &mut load, &state);
    end(pair, load);
}

/// The nodes need no bucket while they see each other, and none is served without it afterwards.
#[test]
fn bucket_is_needed_only_when_nodes_part() {
    let Some(mut bucket) = Bucket::start("a bucket that is down") else { return };
    let mut pair = pair_with(&bucket);
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    bucket.kill();
    for node in [source, 1 - source] {
        until_denied(&pair, node, "cannot be reached");
    }
    served_again(&mut load, &state);
    pair.kill(source);
    denied_to_serve(&pair, 1 - source, &state);
    // Only a takeover asks without a source.
    bucket.until_asked_in_vain();
    until_denied(&pair, 1 - source, "object store");
    bucket.run();
    served_again(&mut load, &state);
    pair.restart(source);
    assert_eq!(pair.source(), 1 - source);
    end(pair, load);
}

#[test]
fn hung_bucket_delays_takeover_only() {
    let Some(bucket) = Bucket::start("a bucket that hangs") else { return };
    let mut pair = pair_with(&bucket);
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    bucket.stall(true);
    pair.kill(source);
    denied_to_serve(&pair, 1 - source, &state);
    until_denied(&pair, 1 - source, "no answer within");
    bucket.stall(false);
    served_again(&mut load, &state);
    pair.restart(source);
    assert_eq!(pair.source(), 1 - source);
    end(pair, load);
}

/// A bucket that was restored from a backup has a record older than the node has seen: it decides
/// nothing.
#[test]
fn restored_bucket_grants_nothing() {
    let Some(mut bucket) = Bucket::start("a bucket restored from a backup") else { return };
    let mut pair = pair_with(&bucket);
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    bucket.back_up();
    // Two further revisions.
    for change in ["on", "off"] {
        pair.order(source, "maintenance", &[change]);
    }
    armed(&pair);
    bucket.kill();
    pair.kill(source);
    bucket.restore();
    bucket.run();
    until_failover(&pair, 1 - source, "obstacle", "record-unusable");
    let status = pair.status(1 - source);
    assert!(status["failover"]["denial"].to_string().contains("older than"), "{status:#}");
    assert_eq!(status["replica"]["serving"], false, "{status:#}");
    // The source finds it as well, and serves again with its peer, which then writes a new record.
    pair.restart(source);
    served_again(&mut load, &state);
    armed(&pair);
    end(pair, load);
}

/// A wrong key is reported, and the right one is used without a restart.
#[test]
fn wrong_key_is_reported_and_corrected() {
    let Some(bucket) = Bucket::start("a bucket with a wrong key") else { return };
    let mut pair = pair_with(&bucket);
    let (mut load, state) = start_load(&pair);
    let source = armed(&pair);
    bucket.set_secret("no-secret");
    for node in [source, 1 - source] {
        until_denied(&pair, node, "SignatureDoesNotMatch");
    }
    served_again(&mut load, &state);
    bucket.set_secret(bucket.right_secret());
    killed_and_replaced(&mut pair, &mut load, &state);
    end(pair, load);
}
