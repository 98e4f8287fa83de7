//! `flagstone pool`, `flagstone volume` and `flagstone snapshot`: orders to the running server, and
//! the state of its pools. An order that loses data needs confirmation: a dry run tells the loss.

pub(crate) mod args;
mod savings;
mod show;
mod snapshot;
pub(crate) mod stream;
mod verify;
mod volumes;

use std::path::PathBuf;

use flagstone_pool::PoolId;
use flagstone_server::api::pool_document::{OrderDocument, PoolDocument, PoolsDocument};
use flagstone_server::http::encode;
use serde_json::{Map, Value, json};

use crate::backup;
use crate::confirm::is_agreed;
use crate::exit::{Exit, Failure};
use crate::output::print;
use crate::status::server::{ApiClient, read};
use crate::status::{self, run_client};
use args::{
    LossArgs, OrderArgs, PoolArgs, PoolCommand, PoolStatusArgs, SettingArgs, VolumeArgs,
    VolumeCommand,
};

/// An order, ready to be sent.
struct PoolRequest {
    /// `pool`, `volume` or `snapshot`.
    kind: &'static str,
    name: String,
    action: &'static str,
    body: Map<String, Value>,
    /// Ask for confirmation of data loss.
    asks_first: bool,
    args: OrderArgs,
}

pub(crate) use snapshot::run as run_snapshot;

pub(crate) fn run_pool(args: &PoolArgs) -> Result<Exit, Failure> {
    if let PoolCommand::Savings(args) = &args.command {
        return savings::run(args);
    }
    run_client(async || match &args.command {
        PoolCommand::Status(args) => watch(args).await,
        PoolCommand::Check(args) => verify::check(args).await,
        command @ PoolCommand::RemoveDevice(args) if args.wait => {
            send(&pool_order(command)?, false)?;
            let devices = absolute(std::slice::from_ref(&args.device))?;
            verify::wait_for_removal(&args.name, &devices[0], &args.order.api).await
        }
        command @ PoolCommand::ReplaceDevice(args) if args.wait => {
            send(&pool_order(command)?, false)?;
            let new = absolute(std::slice::from_ref(&args.new))?;
            verify::wait_for_rebuild(&args.name, &new[0], &args.order.api).await
        }
        command @ PoolCommand::Scrub(args) if args.wait => {
            send(&pool_order(command)?, false)?;
            verify::wait(&args.name, &args.order.api).await
        }
        command => act(pool_order(command)?),
    })
}

pub(crate) fn run_volume(args: &VolumeArgs) -> Result<Exit, Failure> {
    match &args.command {
        VolumeCommand::List(query) => volumes::list(query),
        VolumeCommand::Show(args) if args.volume.is_none() => {
            Err(Failure::usage("name the volume to show; flagstone volume list shows all"))
        }
        VolumeCommand::Show(args) => status::run(args),
        VolumeCommand::Send(args) => stream::send(args),
        VolumeCommand::Receive(args) => stream::receive(args),
        VolumeCommand::Backup(args) => backup::make(args),
        command => run_client(async || act(volume_order(command)?)),
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The server has another working directory.
fn absolute(paths: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let path = |path: &PathBuf| {
        let path = std::path::absolute(path).map_err(Failure::failed)?;
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| Failure::usage(format!("{} is not UTF-8", path.display())))
    };
    paths.iter().map(path).collect()
}

/// Place of a volume's key: an absolute path, or the name that `key_command` knows.
fn key_place(given: &PathBuf) -> Result<String, Failure> {
    match given.to_str().filter(|text| text.starts_with("kms:")) {
        Some(name) => Ok(name.to_owned()),
        None => Ok(absolute(std::slice::from_ref(given))?.remove(0)),
    }
}

/// A device of a pool: its path, or the identifier of a missing one.
fn former(device: &PathBuf) -> Result<String, Failure> {
    let id = device.to_str().filter(|text| text.parse::<PoolId>().is_ok());
    match id {
        Some(id) => Ok(id.to_owned()),
        None => Ok(absolute(std::slice::from_ref(device))?.remove(0)),
    }
}

/// An order that asks first, and disconnects hosts by `--force`.
fn losing<'a>(
    action: &'static str,
    name: &'a String,
    loss: &'a LossArgs,
) -> (&'static str, &'a String, Value, bool, &'a OrderArgs) {
    (action, name, json!({"force": loss.force.force}), !loss.yes, &loss.order)
}

fn log_device(path: Option<&PathBuf>) -> Result<Option<String>, Failure> {
    Ok(absolute(path.map(std::slice::from_ref).unwrap_or_default())?.pop())
}

fn pool_order(command: &PoolCommand) -> Result<PoolRequest, Failure> {
    let (action, name, body, asks_first, args) = match command {
        PoolCommand::Create(args) => {
            let devices = absolute(&args.devices)?;
            let destroyed = absolute(&args.destroy_data)?;
            let log = log_device(args.log_device.as_ref())?;
            // Sent only after the operator agreed.
            let body = json!({"devices": devices, "log_device": log, "destroy_data": destroyed,
                              "redundancy": args.redundancy, "accept_ephemeral": true});
            ("create", &args.name, body, log.is_some() && !args.yes, &args.order)
        }
        PoolCommand::Import(args) => {
            let log = log_device(args.log_device.as_ref())?;
            let body = json!({"devices": absolute(&args.devices)?, "log_device": log,
                              "accept_data_loss": args.yes});
            ("import", &args.name, body, !args.yes, &args.order)
        }
        PoolCommand::Set(args) => {
            let body = json!({"map_cache_bytes": args.map_cache});
            ("set", &args.name, body, false, &args.order)
        }
        PoolCommand::SetLog(args) => {
            let body = json!({"log_device": log_device(args.device.as_ref())?,
                              "destroy_data": absolute(&args.destroy_data)?,
                              "accept_ephemeral": true, "force": args.loss.force.force});
            ("set-log", &args.name, body, !args.loss.yes, &args.loss.order)
        }
        PoolCommand::GiveUpTail(args) => {
            ("give-up-tail", &args.name, json!({}), !args.yes, &args.order)
        }
        PoolCommand::Reopen(args) => losing("reopen", &args.name, &args.loss),
        PoolCommand::Destroy(args) => losing("destroy", &args.name, &args.loss),
        PoolCommand::Grow(args) => {
            let body = json!({"devices": absolute(&args.devices)?,
                              "destroy_data": absolute(&args.destroy_data)?});
            ("grow", &args.name, body, false, &args.order)
        }
        PoolCommand::RemoveDevice(args) => {
            let devices = absolute(std::slice::from_ref(&args.device))?;
            let body = json!({"devices": devices, "cancel": args.cancel});
            ("remove-device", &args.name, body, false, &args.order)
        }
        PoolCommand::ReplaceDevice(args) => {
            let devices =
                [former(&args.old)?, absolute(std::slice::from_ref(&args.new))?.remove(0)];
            let body = json!({"devices": devices, "destroy_data": absolute(&args.destroy_data)?});
            ("replace-device", &args.name, body, false, &args.order)
        }
        PoolCommand::Scrub(args) => {
            let body = json!({"pause": args.pause, "cancel": args.cancel});
            ("scrub", &args.name, body, false, &args.order)
        }
        PoolCommand::Status(_) | PoolCommand::Savings(_) | PoolCommand::Check(_) => {
            unreachable!("they are no orders")
        }
    };
    let (kind, body, args) = ("pool", object(body), args.clone());
    Ok(PoolRequest { kind, name: name.clone(), action, body, asks_first, args })
}

fn volume_order(command: &VolumeCommand) -> Result<PoolRequest, Failure> {
    let (action, name, body, asks_first, args) = match command {
        VolumeCommand::Create(args) => {
            let settings = settings(&args.settings)?;
            let body = json!({"pool": args.pool, "size_bytes": args.size, "thick": args.thick,
                              "settings": settings});
            ("create", &args.name, body, false, &args.order)
        }
        VolumeCommand::Resize(args) => {
            ("resize", &args.name, json!({"size_bytes": args.size}), false, &args.order)
        }
        VolumeCommand::Set(args) => {
            let mut settings = settings(&args.settings)?;
            if let Some(key) = args.unset.iter().find(|key| settings.contains_key(*key)) {
                return Err(Failure::usage(format!(
                    "{key} is both set and removed: leave out --unset {key}, or the option that sets it"
                )));
            }
            settings.extend(args.unset.iter().map(|key| (key.clone(), Value::Null)));
            let mut body = object(json!({"settings": settings, "force": args.force.force}));
            if args.thick || args.thin {
                body.insert("thick".to_owned(), args.thick.into());
            }
            ("set", &args.name, Value::Object(body), false, &args.order)
        }
        VolumeCommand::Rename(args) => {
            let body = json!({"to": args.to, "pool": args.pool, "force": args.force.force});
            ("rename", &args.name, body, false, &args.order)
        }
        VolumeCommand::Clone(args) => {
            let body = json!({"snapshot": args.snapshot, "settings": settings(&args.settings)?});
            ("clone", &args.name, body, false, &args.order)
        }
        VolumeCommand::Promote(args) => ("promote", &args.name, json!({}), false, &args.order),
        VolumeCommand::Delete(args) => {
            let body = json!({"pool": args.pool, "force": args.loss.force.force});
            ("delete", &args.name, body, !args.loss.yes, &args.loss.order)
        }
        VolumeCommand::List(_)
        | VolumeCommand::Show(_)
        | VolumeCommand::Send(_)
        | VolumeCommand::Receive(_)
        | VolumeCommand::Backup(_) => unreachable!("they are no orders"),
    };
    let (kind, body, args) = ("volume", object(body), args.clone());
    Ok(PoolRequest { kind, name: name.clone(), action, body, asks_first, args })
}

/// A value as the configuration has it: a number, true or false, or a text.
fn value(text: &str) -> Value {
    match (text.parse::<u64>(), text) {
        (Ok(number), _) => number.into(),
        (_, "true") => true.into(),
        (_, "false") => false.into(),
        (_, text) => text.into(),
    }
}

fn settings(args: &SettingArgs) -> Result<Map<String, Value>, Failure> {
    let mut settings = Map::new();
    if !args.limit.is_empty() {
        let keys = args.limit.iter().map(|(key, text)| (key.clone(), value(text)));
        settings.insert("limit".to_owned(), Value::Object(keys.collect()));
    }
    if !args.allow_host.is_empty() {
        settings.insert("allow_hosts".to_owned(), args.allow_host.clone().into());
    }
    if let Some(size) = &args.block_size {
        settings.insert("block_size".to_owned(), value(size));
    }
    if let Some(mode) = &args.compression {
        settings.insert("compression".to_owned(), mode.clone().into());
    }
    if let Some(setting) = &args.dedup {
        settings.insert("dedup".to_owned(), setting.clone().into());
    }
    if let Some(name) = &args.dedup_domain {
        settings.insert("dedup_domain".to_owned(), name.clone().into());
    }
    if args.read_only {
        settings.insert("read_only".to_owned(), true.into());
    }
    settings.extend(args.others.iter().map(|(key, text)| (key.clone(), value(text))));
    if let Some(file) = &args.encryption_key_file {
        settings.insert("encryption_key_file".to_owned(), key_place(file)?.into());
    }
    Ok(settings)
}

fn act(order: PoolRequest) -> Result<Exit, Failure> {
    let mut order = order;
    if order.asks_first && !order.args.dry_run {
        let (_, answer) = send(&order, true)?;
        if let Some(data_loss) = answer.data_loss.as_ref().filter(|_| answer.changed)
            && !is_agreed(&answer.outcome, data_loss)
        {
            return Ok(Exit::Usage);
        }
        // A loss is accepted only if one was shown, and no other.
        if let Some(accepted) = order.body.get_mut("accept_data_loss") {
            *accepted = answer.data_loss.is_some().into();
            order.body.insert("shown_data_loss".to_owned(), answer.data_loss.into());
        }
    }
    let (body, answer) = send(&order, order.args.dry_run)?;
    let text = if order.args.json { body } else { show::order(&answer) };
    Ok(print(&text, Exit::Success))
}

fn send(order: &PoolRequest, dry_run: bool) -> Result<(String, OrderDocument), Failure> {
    let mut body = order.body.clone();
    body.insert("dry_run".to_owned(), dry_run.into());
    let path = format!("/v1/{}s/{}/{}", order.kind, encode(&order.name), order.action);
    let mut server = order.args.api.connect()?;
    let text = server.post_text(&path, &Value::Object(body).to_string())?;
    let answer = read(text.as_bytes())?;
    Ok((text, answer))
}

async fn watch(args: &PoolStatusArgs) -> Result<Exit, Failure> {
    let path = match &args.name {
        Some(name) => format!("/v1/pools/{}", encode(name)),
        None => "/v1/pools".to_owned(),
    };
    let sample = |server: &mut ApiClient| {
        let body = server.get_text(&path)?;
        Ok(match (args.query.json, &args.name) {
            (true, _) => args.query.as_json(body)?,
            (false, Some(_)) => show::pool(&read::<PoolDocument>(body.as_bytes())?),
            (false, None) => show::pools(&read::<PoolsDocument>(body.as_bytes())?.pools),
        })
    };
    args.query.repeat(sample).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn order(line: &str) -> PoolRequest {
        try_order(line).unwrap()
    }

    fn try_order(line: &str) -> Result<PoolRequest, Failure> {
        let cli = crate::args::Cli::try_parse_from(line.split(' ')).unwrap();
        match cli.command {
            crate::args::Command::Volume(args) => volume_order(&args.command),
            crate::args::Command::Pool(args) => pool_order(&args.command),
            _ => panic!("{line} is no order"),
        }
    }

    /// The limit was removed, and the answer said that the volume is changed.
    #[test]
    fn key_is_not_set_and_removed_at_once() {
        for line in [
            "flagstone volume set db --limit iops=5 --unset limit",
            "flagstone volume set db --unset nbd_export --setting nbd_export=x",
        ] {
            let key = if line.contains("--limit") { "limit" } else { "nbd_export" };
            let Err(refused) = try_order(line) else { panic!("{line}") };
            assert!(format!("{refused:?}").contains(&format!("{key} is both set")), "{refused:?}");
        }
    }

    #[test]
    fn options_become_settings_of_the_configuration() {
        let create = order(
            "flagstone volume create db --pool fast --size 2GiB --limit iops=15000 --limit \
             throughput=240MB/s --allow-host nqn.2026-01.io.h:1 --block-size 512 --read-only \
             --compression auto --dedup on --dedup-domain 7 --encryption-key-file /keys/db \
             --setting nbd_export=data",
        );
        let settings = json!({
            "limit": {"iops": 15000, "throughput": "240MB/s"},
            "allow_hosts": ["nqn.2026-01.io.h:1"],
            "block_size": 512,
            "compression": "auto",
            "dedup": "on",
            "dedup_domain": "7",
            "encryption_key_file": "/keys/db",
            "read_only": true,
            "nbd_export": "data",
        });
        assert_eq!((create.kind, create.action), ("volume", "create"));
        let expected = json!({"pool": "fast", "size_bytes": 2_u64 << 30, "thick": false, "settings": settings});
        assert_eq!(Value::Object(create.body), expected);
        let set = order("flagstone volume set db --unset limit --thin");
        let expected = json!({"settings": {"limit": null}, "force": false, "thick": false});
        assert_eq!(Value::Object(set.body), expected);
    }

    #[test]
    fn devices_are_sent_as_absolute_paths() {
        let create = order("flagstone pool create fast /dev/x disk --destroy-data disk");
        let disk = std::env::current_dir().unwrap().join("disk");
        assert_eq!(create.body["devices"], json!(["/dev/x", disk]));
        assert_eq!(create.body["destroy_data"], json!([disk]));
        assert!(order("flagstone pool destroy fast").asks_first);
        assert!(!order("flagstone pool destroy fast --yes").asks_first);
    }
}
