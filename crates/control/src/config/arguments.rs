//! The options of the command line that make or change a configuration.

use super::check::{RawBacking, RawConfig, RawVolume};
use super::diagnostic::{Located, Place, Report, shown};
use super::read::driver;
use super::reader::{count_in_range, size_from_text, time_from_text, word_from_text};
use super::schema;
use crate::api_spec::parse_metrics;
use crate::device_spec::DeviceSpec;
use crate::names;

/// What was written on the command line, not yet judged, so that all mistakes are found together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    /// `--volume NAME=DEVICE`, added to those of the file.
    pub volumes: Vec<String>,
    /// `--listen URL`; any takes the place of all of the file's.
    pub listen: Vec<String>,
    /// `--cores N`
    pub cores: Option<String>,
    /// `--memory SIZE`
    pub memory: Option<String>,
    /// `--driver WORD`
    pub driver: Option<String>,
    /// `--spin DURATION`
    pub spin: Option<String>,
    /// `--api PATH`
    pub api: Option<String>,
    /// `--metrics ADDRESS`
    pub metrics: Option<String>,
}

impl Arguments {
    /// Puts the arguments over what the file says.
    pub(crate) fn apply(&self, raw: &mut RawConfig, report: &Report) {
        let server = &mut raw.server;
        if !self.listen.is_empty() {
            let parsed = |text: &String| convert("--listen", text, report, str::parse);
            server.listen = Some(self.listen.iter().filter_map(parsed).collect());
        }
        let kind = |name| &schema::SERVER.key(name).expect("a key of [server]").kind;
        if let Some(text) = &self.cores {
            let parse = |text: &str| count_in_range(text.parse().unwrap_or(-1), kind("cores"));
            let cores = convert("--cores", text, report, parse);
            server.cores = cores.map(|n| n.value as u32).or(server.cores);
        }
        if let Some(text) = &self.memory {
            let parse = |text: &str| size_from_text(text, kind("memory"));
            if let Some(memory) = convert("--memory", text, report, parse) {
                server.memory = memory;
            }
        }
        if let Some(text) = &self.driver {
            let parse = |text: &str| word_from_text(text, kind("driver"));
            if let Some(word) = convert("--driver", text, report, parse) {
                server.driver = driver(&word.value);
            }
        }
        if let Some(text) = &self.spin {
            let parse = |text: &str| time_from_text(text, kind("spin"));
            server.spin = convert("--spin", text, report, parse).map_or(server.spin, |t| t.value);
        }
        if let Some(text) = &self.api {
            server.api = convert("--api", text, report, str::parse).or(server.api.take());
        }
        if let Some(text) = &self.metrics {
            let metrics = convert("--metrics", text, report, parse_metrics);
            server.metrics = metrics.or(server.metrics.take());
        }
        raw.volumes_mistaken |= !self.volumes.is_empty();
        raw.volumes.extend(self.volumes.iter().filter_map(|text| read_volume(text, report)));
    }
}

/// An option as it was written.
fn place(option: &str, text: &str) -> Place {
    Place::Argument(format!("{option} {text}"))
}

fn convert<T, E: std::fmt::Display>(
    option: &str,
    text: &str,
    report: &Report,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Option<Located<T>> {
    let place = place(option, text);
    match parse(text) {
        Ok(value) => Some(Located { value, place }),
        Err(error) => {
            report.error(&place, format!("bad value for {option}: {}", shown(text)), error);
            None
        }
    }
}

fn read_volume(text: &str, report: &Report) -> Option<RawVolume> {
    let place = place("--volume", text);
    let Some((name, device)) = text.split_once('=') else {
        let help = "write NAME=DEVICE, such as db=/dev/nvme0n1 or scratch=memory:1GiB";
        report.error(&place, format!("no `=` in {}", shown(text)), help);
        return None;
    };
    if let Err(error) = names::check_volume_name(name) {
        report.error(&place, format!("bad volume name: {}", shown(name)), error);
    }
    let device = match device.parse::<DeviceSpec>() {
        Ok(value) => Some(Located { value, place: place.clone() }),
        Err(error) => {
            report.error(&place, format!("bad device: {}", shown(device)), error);
            None
        }
    };
    Some(RawVolume {
        name: Located { value: name.to_owned(), place },
        layers: Vec::new(),
        backing: device.map(|device| RawBacking { chunk: None, devices: vec![device] }),
        block_size: None,
        read_only: false,
        nqn: None,
        uuid: None,
        serial: None,
        allow_hosts: None,
        nbd_export: None,
    })
}
