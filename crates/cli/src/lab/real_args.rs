//! What `flagstone lab` takes for real disks and hosts.

use std::path::PathBuf;

use clap::Args;

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
}
