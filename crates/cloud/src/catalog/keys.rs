//! Form of each required key, for the error that the key is missing.

pub(super) fn form(key: &str) -> Option<&'static str> {
    REQUIRED.iter().find(|(name, _)| *name == key).map(|(_, form)| *form)
}

/// Every key without a default, and its form.
pub(super) const REQUIRED: &[(&str, &str)] = &[
    ("format", "1, the version of this format"),
    ("name", "\"a-short-name\""),
    ("title", "\"a name for people\""),
    ("date", "\"2024-07-06\", or what is known of the date"),
    ("about", "\"what the catalog rests on, in a sentence\""),
    ("confidence", "\"A\" (the provider's own), \"B\" (restated) or \"C\" (a single mention)"),
    (
        "units",
        "… as a table [units]: size, size_bytes, throughput, block, block_bytes, blocks_per_throughput",
    ),
    ("size", "\"GB\" or \"GiB\""),
    ("size_bytes", "1000000000 or 1073741824: the bytes of one such unit"),
    (
        "throughput",
        "\"MB/s\" or \"MiB/s\" in [units]; \"shared\", \"independent\" or \"half-duplex\" in [type.NAME.mixing]",
    ),
    ("block", "\"KB\" or \"KiB\""),
    ("block_bytes", "1000 or 1024: the bytes of one such unit"),
    ("blocks_per_throughput", "1000 or 1024: the KB in one MB"),
    ("source", "[\"KEY\"], keys of [source.KEY] tables; at the top, those tables themselves"),
    ("address", "\"https://…\", or the title of a page"),
    ("type", "\"NAME\" of a [type.NAME] table; at the top, those tables themselves"),
    ("family", "… as tables [family.NAME]"),
    ("types", "[\"NAME\"], names of [type.NAME] tables"),
    ("families", "[\"NAME\"], names of [family.NAME] tables, or [\"*\"] for any other"),
    ("rows", "[{ … }], the rows of the table"),
    (
        "disks",
        "\"1\", \"4-8\" or \"16+\": how many disks; in [family.NAME.local_ssd], a list of these",
    ),
    ("block_kb_max", "a number: the largest block that the row is for"),
    ("iops", "a number; \"shared\", \"independent\" or \"half-duplex\" in [type.NAME.mixing]"),
    ("iops_per_io_low", "a number: the IOPS that one I/O in flight surely brings"),
    ("gbit_per_s", "a number, in Gbit/s"),
    ("throughput_per_gbit", "a number: the units of throughput in one Gbit/s"),
    ("throughput_bytes", "a whole number: the bytes of that unit of throughput"),
    ("multiplier_zonal", "a number: the bytes sent for each byte written"),
    ("multiplier_regional", "a number: the bytes sent for each byte written"),
    ("disk_share", "a number from 0 to 1: what disks keep of a full network"),
    ("rounding", "\"floor\", \"nearest\" or \"none\""),
    ("read_iops_per_vcpu", "a number: read IOPS of each free vCPU"),
    ("write_iops_per_vcpu", "a number: write IOPS of each free vCPU"),
    ("region", "\"us-central1\", or what the source calls it"),
    ("usd_per_gb", "a number: USD a month for each GB"),
    ("id", "\"I01\", or another short name"),
    ("where", "\"where it stands, and what is printed there\""),
    ("why", "\"what is wrong with it\""),
    (
        "table",
        "\"overview\", \"volume\", \"vm\", \"simultaneous\", \"egress\", \"hdd\", \"price\" or \"count\"",
    ),
    ("row", "\"the first cell of the row\""),
    ("column", "\"the head of the column\""),
    ("printed", "\"what is printed\""),
    ("measured", "true if it was measured, false if it is what the source expects"),
];
