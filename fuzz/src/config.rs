//! Fuzz target for configuration files.
//!
//! Input: the text of a configuration file.

use std::net::SocketAddr;

use flagstone_config::Config;
use flagstone_config::device_spec::DeviceSpec;
use flagstone_config::limits::MAX_DIAGNOSTICS;
use flagstone_config::listen_spec::ListenSpec;
use flagstone_config::names;

/// Parses the file: it is valid as a whole, or has errors that can be displayed.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Config::parse("flagstone.toml", text) {
        Ok(config) => check(&config),
        Err(mistakes) => {
            assert!((1..=MAX_DIAGNOSTICS).contains(&mistakes.items().len()));
            for mistake in mistakes.items() {
                assert!(!mistake.message.is_empty() && !mistake.help.is_empty());
                let (Some(line), Some(column)) = (mistake.line, mistake.column) else { continue };
                assert!((1..=text.lines().count() + 1).contains(&line) && column >= 1);
            }
            let (plain, colored) = (mistakes.render(false), mistakes.render(true));
            assert!(!plain.contains('\u{1b}') && colored.len() >= plain.len());
        }
    }
}

/// Checks the guarantees of an accepted [`Config`].
fn check(config: &Config) {
    assert!(!config.volumes.is_empty() && !config.server.listen.is_empty());
    for (index, volume) in config.volumes.iter().enumerate() {
        names::check_volume_name(&volume.name).expect("a valid name");
        let of = config.subsystems.iter().filter(|one| one.namespaces.contains(&index));
        assert_eq!(of.count(), 1, "every volume is a namespace of exactly one subsystem");
        let _ = config.volume_uuid(index, b"machine");
        for device in volume.backing.devices() {
            assert_eq!(device.to_string().parse::<DeviceSpec>().as_ref(), Ok(device));
        }
    }
    for subsystem in &config.subsystems {
        names::check_nqn(&subsystem.nqn).expect("a valid name");
        let _ = config.serial_number(subsystem, b"machine");
    }
    let listeners: Vec<_> = config.server.listen.iter().map(|one| &one.spec).collect();
    for (index, one) in listeners.iter().copied().enumerate() {
        assert_eq!(one.to_string().parse::<ListenSpec>().as_ref(), Ok(one));
        assert!(!listeners[index + 1..].iter().any(|other| one.collides_with(other)));
        let _: Option<SocketAddr> = one.socket_addr();
    }
}
