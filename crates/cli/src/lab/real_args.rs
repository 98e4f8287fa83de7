//! What `flagstone lab` takes for real disks and hosts.

use std::path::PathBuf;

use clap::Args;
use flagstone_bench::target::Target;

use crate::bench::args::Driver;

/// Of every experiment on real targets.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// A real target that may be overwritten, exactly as its refusal names it (repeatable)
    #[arg(long, value_name = "TARGET", help_heading = "Real targets")]
    pub destroy_data: Vec<String>,
    /// The configuration file that served volumes come from: kept with the results, which then say
    /// what is behind the volumes
    #[arg(long, value_name = "FILE", help_heading = "Real targets")]
    pub stack: Option<PathBuf>,
}

/// Who drives real targets that are served.
#[derive(Debug, Args)]
pub struct InitiatorArgs {
    /// Who drives nvme-tcp:// targets
    #[arg(
        long,
        value_enum,
        value_name = "WHO",
        default_value = "auto",
        help_heading = "Real targets"
    )]
    pub initiator: Driver,
}

/// Of `lab mirror`.
#[derive(Debug, Args)]
pub struct RealMirrorArgs {
    /// Address of a real node, the source of a mirror: its volumes are measured in place of emulated
    /// ones
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Real targets")]
    pub node_a: Option<String>,
    /// Address of the other real node: the link to it is measured
    #[arg(long, value_name = "HOST[:PORT]", requires = "node_a", help_heading = "Real targets")]
    pub node_b: Option<String>,
    /// The real nodes' mirrored volume, by its name or NQN
    #[arg(long, value_name = "NAME", default_value = "mirrored", help_heading = "Real targets")]
    pub mirrored: String,
    /// Node A's volume that is not mirrored
    #[arg(long, value_name = "NAME", default_value = "plain", help_heading = "Real targets")]
    pub plain: String,
    /// Node B's volume that answers at once, by which the link is measured
    #[arg(long, value_name = "NAME", default_value = "link", help_heading = "Real targets")]
    pub link: String,
    /// Of every experiment.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Who drives them.
    #[command(flatten)]
    pub initiator: InitiatorArgs,
    /// Before they are written to.
    #[command(flatten)]
    pub fill: FillArgs,
}

/// Of `lab failover`.
#[derive(Debug, Args)]
pub struct RealFailoverArgs {
    /// Address of a real node, the source of a mirror, which dies
    #[arg(long, value_name = "HOST[:PORT]", requires = "node_b", help_heading = "Real targets")]
    pub node_a: Option<String>,
    /// Address of the real node that takes over
    #[arg(long, value_name = "HOST[:PORT]", requires = "node_a", help_heading = "Real targets")]
    pub node_b: Option<String>,
    /// The real nodes' mirrored volume, by its name or NQN
    #[arg(long, value_name = "NAME", default_value = "db", help_heading = "Real targets")]
    pub volume: String,
    /// Shell command that kills node A; without it you are asked to do so, and so on
    #[arg(long, value_name = "COMMAND", requires = "node_a", help_heading = "Real targets")]
    pub kill_command: Option<String>,
    /// Shell command that makes node B the source, run again until it succeeds
    #[arg(long, value_name = "COMMAND", requires = "node_a", help_heading = "Real targets")]
    pub failover_command: Option<String>,
    /// Shell command that brings node A back
    #[arg(long, value_name = "COMMAND", requires = "node_a", help_heading = "Real targets")]
    pub return_command: Option<String>,
    /// Shell command that makes node A the source again, run again until it succeeds
    #[arg(long, value_name = "COMMAND", requires = "node_a", help_heading = "Real targets")]
    pub switchover_command: Option<String>,
    /// Shell command that prints flagstone mirror status --json of node B
    #[arg(long, value_name = "COMMAND", requires = "node_a", help_heading = "Real targets")]
    pub status_command: Option<String>,
    /// What the real nodes' machines are, such as n2-standard-8, for the results
    #[arg(long, value_name = "NAME", requires = "node_a", help_heading = "Real targets")]
    pub machine: Option<String>,
    /// Of every experiment.
    #[command(flatten)]
    pub targets: TargetArgs,
}

impl RealFailoverArgs {
    /// The addresses of both nodes, if they are given.
    pub fn both(&self) -> Option<(&str, &str)> {
        self.node_a.as_deref().zip(self.node_b.as_deref())
    }
}

/// Of experiments on disks of a type that the planner knows.
#[derive(Debug, Args)]
pub struct KindArgs {
    /// Type of the real disks in the catalogue, such as pd-ssd
    #[arg(long, value_name = "TYPE", help_heading = "Real targets")]
    pub like: Option<String>,
    /// Type of the machine that has the real disks, such as n1-standard-8
    #[arg(long, value_name = "NAME", help_heading = "Real targets")]
    pub machine: Option<String>,
    /// The catalogue that says what real disks do: a built-in one's name, or a file
    #[arg(
        long = "catalog",
        value_name = "CATALOGUE",
        default_value = "gcp-2019",
        help_heading = "Real targets"
    )]
    pub catalogue: String,
}

/// Of experiments that fill devices.
#[derive(Debug, Args)]
pub struct FillArgs {
    /// Do not fill real devices and volumes that have parts that were never written
    #[arg(long, help_heading = "Real targets")]
    pub no_precondition: bool,
}

/// Of `lab fabric`.
#[derive(Debug, Args)]
pub struct RealFabricArgs {
    /// Real disks in place of emulated ones: on the server its SSDs' devices, up to four; on the
    /// client volumes, nvme-tcp://…, the first of one SSD, the second of two striped, and so on
    #[arg(value_name = "DISK")]
    pub disks: Vec<String>,
    /// On the client: the results of the run on the server, to be shown beside
    #[arg(long, value_name = "DIR", requires = "disks", help_heading = "Real targets")]
    pub local_results: Option<PathBuf>,
    /// What the real machines are, such as n1-highcpu-16, for the results
    #[arg(long, value_name = "NAME", requires = "disks", help_heading = "Real targets")]
    pub machine: Option<String>,
    /// Of every experiment.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Who drives them.
    #[command(flatten)]
    pub initiator: InitiatorArgs,
    /// Before they are written to.
    #[command(flatten)]
    pub fill: FillArgs,
}

/// Of `lab provisioned`.
#[derive(Debug, Args)]
pub struct RealProvisionedArgs {
    /// Real disks in place of emulated ones, devices or volumes: they are read, and nothing is
    /// written
    #[arg(value_name = "DISK")]
    pub disks: Vec<Target>,
    /// What they are; pd-standard on n1-standard-8 if it is not said.
    #[command(flatten)]
    pub kind: KindArgs,
    /// The configuration file that served volumes come from: kept with the results, which then say
    /// what is behind the volumes
    #[arg(long, value_name = "FILE", requires = "disks", help_heading = "Real targets")]
    pub stack: Option<PathBuf>,
    /// Who drives them.
    #[command(flatten)]
    pub initiator: InitiatorArgs,
}

/// Of `lab limits`.
#[derive(Debug, Args)]
pub struct RealLimitsArgs {
    /// A real disk in place of emulated ones, a device or a volume, all of which is written to; with
    /// --like and --machine
    #[arg(value_name = "DISK", requires_all = ["like", "machine"])]
    pub disk: Option<Target>,
    /// What it is.
    #[command(flatten)]
    pub kind: KindArgs,
    /// Of every experiment.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Who drives it.
    #[command(flatten)]
    pub initiator: InitiatorArgs,
    /// Before it is written to.
    #[command(flatten)]
    pub fill: FillArgs,
}
