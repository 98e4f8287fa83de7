//! Options of `flagstone lab` for real disks and hosts.

use std::path::PathBuf;

use clap::Args;
use flagstone_bench::attach::InitiatorChoice;
use flagstone_bench::target::BenchTarget;

use crate::words::{INITIATORS, one_of};

#[derive(Debug, Args)]
#[command(next_help_heading = "Real targets")]
pub(crate) struct TargetArgs {
    /// A real target that may be overwritten, exactly as the refusal names it (repeatable)
    #[arg(long, value_name = "TARGET")]
    pub(crate) destroy_data: Vec<String>,
    /// Configuration file of the served volumes, stored with the results to show what backs the
    /// volumes
    #[arg(long, value_name = "FILE")]
    pub(crate) stack: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Real targets")]
pub(crate) struct MeasuredArgs {
    #[command(flatten)]
    pub(crate) targets: TargetArgs,
    /// Initiator for nvme-tcp:// targets
    #[arg(long, value_name = "WHO", default_value = "auto", value_parser = one_of(INITIATORS))]
    pub(crate) initiator: InitiatorChoice,
    /// Do not fill real devices and volumes that have unwritten parts
    #[arg(long)]
    pub(crate) no_precondition: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Real targets")]
pub(crate) struct RealMirrorArgs {
    /// Address of a real node, the source of a mirror, whose volumes are measured instead of
    /// emulated ones
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) node_a: Option<String>,
    /// Address of the other real node, to measure the link
    #[arg(long, value_name = "HOST[:PORT]", requires = "node_a")]
    pub(crate) node_b: Option<String>,
    /// Name or NQN of the mirrored volume on the real nodes
    #[arg(long, value_name = "NAME", default_value = "mirrored")]
    pub(crate) mirrored: String,
    /// Volume of node A without a mirror
    #[arg(long, value_name = "NAME", default_value = "plain")]
    pub(crate) plain: String,
    /// Volume of node B that answers immediately, to measure the link
    #[arg(long, value_name = "NAME", default_value = "link")]
    pub(crate) link: String,
    #[command(flatten)]
    pub(crate) targets: MeasuredArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Real targets")]
pub(crate) struct RealFailoverArgs {
    /// Address of a real node, the source of a mirror, which dies
    #[arg(long, value_name = "HOST[:PORT]", requires = "node_b")]
    pub(crate) node_a: Option<String>,
    /// Address of the real node that takes over
    #[arg(long, value_name = "HOST[:PORT]", requires = "node_a")]
    pub(crate) node_b: Option<String>,
    /// Name or NQN of the mirrored volume on the real nodes
    #[arg(long, value_name = "NAME", default_value = "db")]
    pub(crate) volume: String,
    /// Shell command that kills node A; without it, and likewise below, the program prompts you to
    /// act
    #[arg(long, value_name = "COMMAND", requires = "node_a")]
    pub(crate) kill_command: Option<String>,
    /// Shell command that makes node B the source; repeated until it succeeds
    #[arg(long, value_name = "COMMAND", requires = "node_a")]
    pub(crate) failover_command: Option<String>,
    /// Shell command that brings node A back
    #[arg(long, value_name = "COMMAND", requires = "node_a")]
    pub(crate) return_command: Option<String>,
    /// Shell command that makes node A the source again; repeated until it succeeds
    #[arg(long, value_name = "COMMAND", requires = "node_a")]
    pub(crate) switchover_command: Option<String>,
    /// Shell command that prints flagstone mirror status --json of node B
    #[arg(long, value_name = "COMMAND", requires = "node_a")]
    pub(crate) status_command: Option<String>,
    /// Machine type of the real nodes, such as n2-standard-8, for the results
    #[arg(long, value_name = "NAME", requires = "node_a")]
    pub(crate) machine: Option<String>,
    #[command(flatten)]
    pub(crate) targets: TargetArgs,
}

impl RealFailoverArgs {
    pub(crate) fn both(&self) -> Option<(&str, &str)> {
        self.node_a.as_deref().zip(self.node_b.as_deref())
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Real targets")]
pub(crate) struct KindArgs {
    /// Type of the real disks in the catalog, such as pd-ssd
    #[arg(long, value_name = "TYPE")]
    pub(crate) profile: Option<String>,
    /// Machine type with the real disks, such as n1-standard-8
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<String>,
    /// Catalog with the limits of the real disks: a built-in name, or a file
    #[arg(long = "catalog", value_name = "CATALOG", default_value = "gcp-2019")]
    pub(crate) catalog: String,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Real targets")]
pub(crate) struct RealFabricArgs {
    /// Real disks instead of emulated ones: on the server, up to four SSD devices; on the client,
    /// volumes nvme-tcp://…, the first on one SSD, the second striped over two, and so on
    #[arg(value_name = "DISK", help_heading = "Arguments")]
    pub(crate) disks: Vec<String>,
    /// On the client: the results of the run on the server, for comparison
    #[arg(long, value_name = "DIR", requires = "disks")]
    pub(crate) local_results: Option<PathBuf>,
    /// Machine type of the real machines, such as n1-highcpu-16, for the results
    #[arg(long, value_name = "NAME", requires = "disks")]
    pub(crate) machine: Option<String>,
    #[command(flatten)]
    pub(crate) targets: MeasuredArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Real targets")]
pub(crate) struct RealProvisionedArgs {
    /// Real disks instead of emulated ones, devices or volumes; they are only read
    #[arg(value_name = "DISK", help_heading = "Arguments")]
    pub(crate) disks: Vec<BenchTarget>,
    #[command(flatten)]
    pub(crate) kind: KindArgs,
    /// Configuration file of the served volumes, stored with the results to show what backs the
    /// volumes
    #[arg(long, value_name = "FILE", requires = "disks")]
    pub(crate) stack: Option<PathBuf>,
    /// Initiator for nvme-tcp:// targets
    #[arg(long, value_name = "WHO", default_value = "auto", value_parser = one_of(INITIATORS))]
    pub(crate) initiator: InitiatorChoice,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Real targets")]
pub(crate) struct RealLimitsArgs {
    /// A real disk instead of emulated ones, a device or a volume, which is overwritten; needs
    /// --profile and --machine
    #[arg(value_name = "DISK", help_heading = "Arguments", requires_all = ["profile", "machine"])]
    pub(crate) disk: Option<BenchTarget>,
    #[command(flatten)]
    pub(crate) kind: KindArgs,
    #[command(flatten)]
    pub(crate) targets: MeasuredArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RealPoolArgs {
    /// A real disk instead of emulated ones, which is overwritten; needs --pooled
    #[arg(value_name = "DISK", help_heading = "Arguments", requires = "pooled")]
    pub(crate) disk: Option<BenchTarget>,
    /// Volume of a pool on such a disk, as nvme-tcp://…, which is overwritten
    #[arg(long, value_name = "VOLUME", requires = "disk")]
    pub(crate) pooled: Option<BenchTarget>,
    /// Machine type of the real machine, such as n2-standard-8, for the results
    #[arg(long, value_name = "NAME", requires = "disk")]
    pub(crate) machine: Option<String>,
    #[command(flatten)]
    pub(crate) targets: MeasuredArgs,
}
