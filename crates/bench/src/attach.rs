//! Kernel attachment: connects a namespace with the kernel's NVMe/TCP initiator, so that fio
//! measures the path that every program on the machine would use.
//!
//! Invariants: a connection made here is disconnected when its [`Attached`] is dropped, after an
//! interruption too; an existing connection is used and stays. Where attaching is not possible
//! the reason is returned, not an error.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_config::device_spec::{DeviceSpec, NvmeTcpSpec};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::fio::arguments::shell;
use crate::limits::{CONTROLLERS, FIO_SAID_BYTES};
use crate::os::{addresses, read_text};
use crate::process::{self, Interrupt, ProcessOutput};

/// Upper bound of an attribute in sysfs, in bytes.
const ATTRIBUTE_BYTES: u64 = 1 << 16;
/// How long the kernel may take to show the namespace after the connect, in seconds.
const ATTACH_TIMEOUT_S: f64 = 10.0;
/// Namespace of an address that names none.
const NAMESPACE_DEFAULT: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InitiatorChoice {
    /// The kernel where possible, else our own generator.
    #[default]
    Auto,
    /// The kernel; an error where that is not possible.
    Kernel,
    /// Our own generator, `flagstone load`.
    Flagstone,
}

/// The kernel's NVMe/TCP initiator on this machine.
#[derive(Clone, Debug)]
pub struct Initiator {
    nvme: PathBuf,
    modprobe: PathBuf,
    root: PathBuf,
    is_root: bool,
}

impl Default for Initiator {
    fn default() -> Initiator {
        Initiator::of_machine()
    }
}

impl Initiator {
    pub fn of_machine() -> Initiator {
        Initiator {
            nvme: "nvme".into(),
            modprobe: "modprobe".into(),
            root: "/".into(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// An initiator with other programs and another root of sysfs and /dev, for tests.
    pub fn at(nvme: &Path, modprobe: &Path, root: &Path, is_root: bool) -> Initiator {
        Initiator { nvme: nvme.into(), modprobe: modprobe.into(), root: root.into(), is_root }
    }

    fn fabrics(&self) -> bool {
        self.root.join("dev/nvme-fabrics").exists()
    }

    /// Reason why nothing can be attached here; `None` if it can be tried. Loads the kernel module
    /// if necessary.
    pub fn why_not(&self, interrupt: &Interrupt) -> Result<Option<String>, Error> {
        if !self.is_root {
            return Ok(Some("only root can attach it to the kernel".to_owned()));
        }
        let version = self.run(&self.nvme, &["version".to_owned()], interrupt);
        if let Err(reason) = succeeded(version)? {
            let text = format!("there is no nvme here that works (apt install nvme-cli): {reason}");
            return Ok(Some(text));
        }
        if !self.fabrics() {
            let loaded = self.run(&self.modprobe, &["nvme-tcp".to_owned()], interrupt);
            if let Err(reason) = succeeded(loaded)? {
                return Ok(Some(format!("the kernel's nvme-tcp cannot be loaded: {reason}")));
            }
            if !self.fabrics() {
                return Ok(Some("the kernel has no /dev/nvme-fabrics".to_owned()));
            }
        }
        Ok(None)
    }

    /// Attaches a namespace, or finds it attached. The inner error is the reason why it could not
    /// be attached; nothing is connected then.
    pub fn attach(
        &self,
        uri: &str,
        interrupt: &Interrupt,
    ) -> Result<Result<Attached, String>, Error> {
        let spec = match uri.parse() {
            Ok(DeviceSpec::NvmeTcp(spec)) => spec,
            Ok(_) => return Ok(Err("it is no nvme-tcp:// address".to_owned())),
            Err(error) => return Ok(Err(error.to_string())),
        };
        let Some(ip) = resolve(&spec) else {
            return Ok(Err(format!("{} cannot be resolved", spec.address.host)));
        };
        let namespace = spec.namespace_id.unwrap_or(NAMESPACE_DEFAULT);
        if let Some((controller, device)) = self.find(&spec, ip, namespace) {
            return Ok(Ok(Attached { controller, device, made_by: None }));
        }
        let words = connect_words(&spec, ip);
        let connected = succeeded(self.run(&self.nvme, &words, interrupt));
        let found = match connected {
            Ok(Ok(())) => {
                process::wait_for(ATTACH_TIMEOUT_S, interrupt, || self.find(&spec, ip, namespace))
            }
            Ok(Err(reason)) => {
                let command = shell("nvme", &words);
                return Ok(Err(format!("it could not be connected: {reason} (at: {command})")));
            }
            Err(interrupted) => Err(interrupted),
        };
        if let Ok(Some((controller, device))) = found {
            let made_by = Some(self.nvme.clone());
            return Ok(Ok(Attached { controller, device, made_by }));
        }
        if let Some((controller, _)) = self.controllers(&spec, ip).next() {
            disconnect(&self.nvme, &controller);
        }
        found?;
        Ok(Err(format!("it was connected, and the kernel shows no namespace {namespace} of it")))
    }

    fn run(
        &self,
        program: &Path,
        words: &[String],
        interrupt: &Interrupt,
    ) -> Result<ProcessOutput, Error> {
        process::run(Command::new(program).args(words), ATTRIBUTE_BYTES, interrupt, &mut || {})
    }

    /// Connected controllers of this subsystem and address, with their sysfs directories.
    fn controllers(
        &self,
        spec: &NvmeTcpSpec,
        ip: IpAddr,
    ) -> impl Iterator<Item = (String, PathBuf)> {
        let entries = std::fs::read_dir(self.root.join("sys/class/nvme"));
        let entries = entries.into_iter().flatten().flatten().take(CONTROLLERS);
        entries.filter_map(move |entry| {
            let path = entry.path();
            let attribute = |name: &str| {
                let text = read_text(&path.join(name), ATTRIBUTE_BYTES).unwrap_or_default();
                text.trim().to_owned()
            };
            let is_it = attribute("transport") == "tcp"
                && attribute("subsysnqn") == spec.subsystem_nqn
                && is_at(&attribute("address"), ip, spec.address.port);
            if is_it { Some((entry.file_name().into_string().ok()?, path)) } else { None }
        })
    }

    /// The connected controller that has the namespace, and the block device of the namespace.
    fn find(&self, spec: &NvmeTcpSpec, ip: IpAddr, namespace: u32) -> Option<(String, PathBuf)> {
        let mut all = self.controllers(spec, ip);
        all.find_map(|(name, path)| Some((name, self.namespace_of(&path, namespace)?)))
    }

    fn namespace_of(&self, controller: &Path, namespace: u32) -> Option<PathBuf> {
        for entry in std::fs::read_dir(controller).ok()?.flatten() {
            let Some(name) = entry.file_name().to_str().and_then(block_device) else { continue };
            let number = read_text(&entry.path().join("nsid"), ATTRIBUTE_BYTES).ok();
            let number = number.and_then(|text| text.trim().parse::<u32>().ok());
            let device = self.root.join("dev").join(name);
            if number == Some(namespace) && device.exists() {
                return Some(device);
            }
        }
        None
    }
}

fn connect_words(spec: &NvmeTcpSpec, ip: IpAddr) -> Vec<String> {
    let mut words = vec![
        "connect".to_owned(),
        "--transport=tcp".to_owned(),
        format!("--traddr={ip}"),
        format!("--trsvcid={}", spec.address.port),
        format!("--nqn={}", spec.subsystem_nqn),
    ];
    if let Some(host) = &spec.host_nqn {
        words.push(format!("--hostnqn={host}"));
    }
    if let Some(queues) = spec.queues {
        words.push(format!("--nr-io-queues={queues}"));
    }
    if spec.header_digest {
        words.push("--hdr-digest".to_owned());
    }
    if spec.data_digest {
        words.push("--data-digest".to_owned());
    }
    words
}

/// The `nvme connect` command line for an address; `None` if the address is invalid or cannot be
/// resolved.
pub fn connect_command(uri: &str) -> Option<String> {
    let Ok(DeviceSpec::NvmeTcp(spec)) = uri.parse() else { return None };
    let ip = resolve(&spec)?;
    Some(shell("nvme", &connect_words(&spec, ip)))
}

fn resolve(spec: &NvmeTcpSpec) -> Option<IpAddr> {
    addresses(&spec.address).first().copied()
}

/// Whether a controller's `address` attribute, such as
/// `traddr=10.0.0.1,trsvcid=4420,src_addr=10.0.0.2`, has this address and port.
fn is_at(address: &str, ip: IpAddr, port: u16) -> bool {
    let field = |name: &str| {
        let of = |part: &str| part.trim().strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        address.split(',').find_map(of)
    };
    field("traddr").and_then(|text| text.parse::<IpAddr>().ok()) == Some(ip)
        && field("trsvcid").and_then(|text| text.parse::<u16>().ok()) == Some(port)
}

/// Block device of an entry in a controller's directory: `nvme1n2` is the device itself, and
/// `nvme1c3n2` is one path of the multipath device `nvme1n2`.
fn block_device(name: &str) -> Option<String> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (before, namespace) = name.strip_prefix("nvme")?.rsplit_once('n')?;
    let subsystem = before
        .split_once('c')
        .map_or(before, |(subsystem, path)| if digits(path) { subsystem } else { "" });
    let is_one = digits(subsystem) && digits(namespace);
    is_one.then(|| format!("nvme{subsystem}n{namespace}"))
}

/// The inner error is the reason why the program failed or could not be started.
fn succeeded(ended: Result<ProcessOutput, Error>) -> Result<Result<(), String>, Error> {
    match ended {
        Ok(ended) if ended.status.success() => Ok(Ok(())),
        Ok(ended) => {
            let said =
                ended.message(FIO_SAID_BYTES).split_whitespace().collect::<Vec<_>>().join(" ");
            Ok(Err(if said.is_empty() { ended.status.to_string() } else { said }))
        }
        Err(Error::System { cause, .. }) => Ok(Err(cause.to_string())),
        Err(other) => Err(other),
    }
}

/// A namespace that the kernel has attached; dropping it detaches what was connected here.
#[derive(Debug)]
pub struct Attached {
    controller: String,
    device: PathBuf,
    /// The `nvme` program that connected it and disconnects it on drop; none if it was attached
    /// before.
    made_by: Option<PathBuf>,
}

impl Attached {
    pub fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Some(nvme) = &self.made_by else { return };
        disconnect(nvme, &self.controller);
    }
}

/// A failure is ignored: no caller can act on it.
fn disconnect(nvme: &Path, controller: &str) {
    let mut command = Command::new(nvme);
    command.arg("disconnect").arg(format!("--device={controller}"));
    let _ = process::run(&mut command, ATTRIBUTE_BYTES, &Interrupt::never(), &mut || {});
}
