//! Command-line options that make or change a configuration.

use super::check::{RawBacking, RawConfig, RawVolume};
use super::diagnostic::{Located, Place, Report, shown};
use super::read::io_engine;
use super::reader::{count_in_range, size_from_text, time_from_text, word_from_text};
use super::schema;
use crate::api_spec::parse_metrics;
use crate::device_spec::DeviceSpec;
use crate::names;

/// Options as text. They are checked together with the file, so that all mistakes are reported at
/// once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    /// `--volume NAME=DEVICE`, added to the file's volumes.
    pub volumes: Vec<String>,
    /// `--listen URL`; replaces all addresses of the file.
    pub listen: Vec<String>,
    /// `--cores N`
    pub cores: Option<String>,
    /// `--buffer-memory SIZE`
    pub buffer_memory: Option<String>,
    /// `--io-engine WORD`
    pub io_engine: Option<String>,
    /// `--busy-poll DURATION`
    pub busy_poll: Option<String>,
    /// `--api PATH`
    pub api: Option<String>,
    /// `--metrics ADDRESS`
    pub metrics: Option<String>,
}

impl Arguments {
    /// Applies the options; they override the file.
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
        if let Some(text) = &self.buffer_memory {
            let parse = |text: &str| size_from_text(text, kind("buffer_memory"));
            if let Some(memory) = convert("--buffer-memory", text, report, parse) {
                server.buffer_memory = memory;
            }
        }
        if let Some(text) = &self.io_engine {
            let parse = |text: &str| word_from_text(text, kind("io_engine"));
            if let Some(word) = convert("--io-engine", text, report, parse) {
                server.io_engine = io_engine(&word.value);
            }
        }
        if let Some(text) = &self.busy_poll {
            let parse = |text: &str| time_from_text(text, kind("busy_poll"));
            server.busy_poll =
                convert("--busy-poll", text, report, parse).map_or(server.busy_poll, |t| t.value);
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

/// Source location of an option.
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
