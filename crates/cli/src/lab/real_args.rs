//! Options of `flagstone lab` for real disks and hosts.

use std::path::PathBuf;

use clap::Args;
use flagstone_bench::target::BenchTarget;

use crate::bench::args::InitiatorArg;

/// Options of every experiment on real targets.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// A real target that may be overwritten, exactly as the refusal names it (repeatable)
    #[arg(long, value_name = "TARGET", help_heading = "Real targets")]
    pub destroy_data: Vec<String>,
    /// Configuration file of the served volumes, stored with the results to show what backs the
    /// volumes
    #[arg(long, value_name = "FILE", help_heading = "Real targets")]
    pub stack: Option<PathBuf>,
}

/// Initiator of served targets.
#[derive(Debug, Args)]
pub struct InitiatorArgs {
    /// Initiator for nvme-tcp:// targets
    #[arg(
        long,
        value_enum,
        value_name = "WHO",
        default_value = "auto",
        help_heading = "Real targets"
    )]
    pub initiator: InitiatorArg,
}

/// Options of `lab mirror`.
#[derive(Debug, Args)]
pub struct RealMirrorArgs {
    /// Address of a real node, the source of a mirror, whose volumes are measured instead of
    /// emulated ones
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Real targets")]
    pub node_a: Option<String>,
    /// Address of the other real node, to measure the link
    #[arg(long, value_name = "HOST[:PORT]", requires = "node_a", help_heading = "Real targets")]
    pub node_b: Option<String>,
    /// Name or NQN of the mirrored volume on the real nodes
    #[arg(long, value_name = "NAME", default_value = "mirrored", help_heading = "Real targets")]
    pub mirrored: String,
    /// Volume of node A without a mirror
    #[arg(long, value_name = "NAME", default_value = "plain", help_heading = "Real targets")]
    pub plain: String,
    /// Volume of node B that answers immediately, to measure the link
    #[arg(long, value_name = "NAME", default_value = "link", help_heading = "Real targets")]
    pub link: String,
    /// Targets.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Initiator.
    #[command(flatten)]
    pub initiator: InitiatorArgs,
    /// Preconditioning.
    #[command(flatten)]
    pub fill: FillArgs,
}

/// Options of `lab failover`.
#[derive(Debug, Args)]
pub struct RealFailoverArgs {
    /// Address of a real node, the source of a mirror, which dies
    #[arg(long, value_name = "HOST[:PORT]", requires = "node_b", help_heading = "Real targets")]
    pub node_a: Option<String>,
    /// Address of the real node that takes over
    #[arg(long, value_name = "HOST[:PORT]", requires = "node_a", help_heading = "Real targets")]
    pub node_b: Option<String>,
    /// Name or NQN of the mirrored volume on the real nodes
    #[arg(long, value_name = "NAME", default_value = "db", help_heading = "Real targets")]
    pub volume: String,
    /// Shell command that kills node A; without it, and likewise below, the program prompts you to
    /// act
    #[arg(long, value_name = "COMMAND", requires = "node_a", help_heading = "Real targets")]
    pub kill_command: Option<String>,
    /// Shell command that makes node B the source; repeated until it succeeds
    #[arg(long, value_name = "COMMAND", requires = "node_a", help_heading = "Real targets")]
    pub failover_command: Option<String>,
    /// Shell command that brings node A back
    #[arg(long, value_name = "COMMAND", requires = "node_a", help_heading = "Real targets")]
    pub return_command: Option<String>,
    /// Shell command that makes node A the source again; repeated until it succeeds
    #[arg(long, value_name = "COMMAND", requires = "node_a", help_heading = "Real targets")]
    pub switchover_command: Option<String>,
    /// Shell command that prints flagstone mirror status --json of node B
    #[arg(long, value_name = "COMMAND", requires = "node_a", help_heading = "Real targets")]
    pub status_command: Option<String>,
    /// Machine type of the real nodes, such as n2-standard-8, for the results
    #[arg(long, value_name = "NAME", requires = "node_a", help_heading = "Real targets")]
    pub machine: Option<String>,
    /// Targets.
    #[command(flatten)]
    pub targets: TargetArgs,
}

impl RealFailoverArgs {
    /// The addresses of both nodes, if they are given.
    pub fn both(&self) -> Option<(&str, &str)> {
        self.node_a.as_deref().zip(self.node_b.as_deref())
    }
}

/// Options of experiments on catalogue disks.
#[derive(Debug, Args)]
pub struct KindArgs {
    /// Type of the real disks in the catalogue, such as pd-ssd
    #[arg(long, value_name = "TYPE", help_heading = "Real targets")]
    pub like: Option<String>,
    /// Machine type with the real disks, such as n1-standard-8
    #[arg(long, value_name = "NAME", help_heading = "Real targets")]
    pub machine: Option<String>,
    /// Catalogue with the limits of the real disks: a built-in name, or a file
    #[arg(
        long = "catalog",
        value_name = "CATALOGUE",
        default_value = "gcp-2019",
        help_heading = "Real targets"
    )]
    pub catalogue: String,
}

/// Options of experiments that fill devices.
#[derive(Debug, Args)]
pub struct FillArgs {
    /// Do not fill real devices and volumes that have unwritten parts
    #[arg(long, help_heading = "Real targets")]
    pub no_precondition: bool,
}

/// Options of `lab fabric`.
#[derive(Debug, Args)]
pub struct RealFabricArgs {
    /// Real disks instead of emulated ones: on the server, up to four SSD devices; on the client,
    /// volumes nvme-tcp://…, the first on one SSD, the second striped over two, and so on
    #[arg(value_name = "DISK")]
    pub disks: Vec<String>,
    /// On the client: the results of the run on the server, for comparison
    #[arg(long, value_name = "DIR", requires = "disks", help_heading = "Real targets")]
    pub local_results: Option<PathBuf>,
    /// Machine type of the real machines, such as n1-highcpu-16, for the results
    #[arg(long, value_name = "NAME", requires = "disks", help_heading = "Real targets")]
    pub machine: Option<String>,
    /// Targets.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Initiator.
    #[command(flatten)]
    pub initiator: InitiatorArgs,
    /// Preconditioning.
    #[command(flatten)]
    pub fill: FillArgs,
}

/// Options of `lab provisioned`.
#[derive(Debug, Args)]
pub struct RealProvisionedArgs {
    /// Real disks instead of emulated ones, devices or volumes; they are only read
    #[arg(value_name = "DISK")]
    pub disks: Vec<BenchTarget>,
    /// What they are; pd-standard on n1-standard-8 if it is not said.
    #[command(flatten)]
    pub kind: KindArgs,
    /// Configuration file of the served volumes, stored with the results to show what backs the
    /// volumes
    #[arg(long, value_name = "FILE", requires = "disks", help_heading = "Real targets")]
    pub stack: Option<PathBuf>,
    /// Initiator.
    #[command(flatten)]
    pub initiator: InitiatorArgs,
}

/// Options of `lab limits`.
#[derive(Debug, Args)]
pub struct RealLimitsArgs {
    /// A real disk instead of emulated ones, a device or a volume, which is overwritten; needs
    /// --like and --machine
    #[arg(value_name = "DISK", requires_all = ["like", "machine"])]
    pub disk: Option<BenchTarget>,
    /// What it is.
    #[command(flatten)]
    pub kind: KindArgs,
    /// Targets.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Initiator.
    #[command(flatten)]
    pub initiator: InitiatorArgs,
    /// Preconditioning.
    #[command(flatten)]
    pub fill: FillArgs,
}
