//! Verification of vendor-specific commands sent by nvme-cli: compares the answers with the nodes'
//! own status and their disks, and the documented commands with the commands sent by the test
//! (`tests/guest/replica.sh`, `docs/nvme-vendor-commands.md`).

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::Value;

use crate::mirror::Pair;
use crate::tools;

/// Length of the Replica Identify data, in bytes.
const IDENTIFY_BYTES: usize = 512;

/// Link versions that nodes speak: bytes 0 and 226 of Replica Identify.
const VERSIONS: [u64; 2] = [2, 4];

/// Two nodes, and the checks that a guest requests.
#[derive(Debug)]
pub struct Witness {
    /// The nodes.
    pub pair: Pair,
}

impl Witness {
    /// Witness of two mirroring nodes.
    pub fn of(pair: Pair) -> Witness {
        Witness { pair }
    }

    /// Size of the volume, in bytes.
    ///
    /// # Panics
    ///
    /// If no replica exists.
    pub fn size_bytes(&self) -> u64 {
        self.pair.status(0)["replica"]["size_bytes"].as_u64().expect("a replica has a size")
    }

    /// Performs a step requested by `tests/guest/replica.sh`, or checks an answer that the script
    /// received.
    ///
    /// # Errors
    ///
    /// The difference from the expected state.
    pub fn answer(&mut self, request: &str) -> Result<(), String> {
        let words: Vec<&str> = request.split(' ').collect();
        match words[..] {
            ["mirroring"] => self.mirroring(),
            ["identity", node, data] => self.identity(index(node)?, &unhex(data)?),
            ["state", node, field, value] => self.says(index(node)?, field, value),
            ["bitmap", node, data, bit_bytes, offset] => {
                let (bit_bytes, offset) = (number(bit_bytes)?, number(offset)?);
                self.bitmap(index(node)?, &unhex(data)?, bit_bytes, offset)
            }
            ["checksums", node, offset, len, part_bytes, sums] => {
                let data = self.read(index(node)?, number(offset)?, length(len)?)?;
                let sum = |part: &[u8]| crc64(part).to_le_bytes();
                let expected: Vec<u8> = data.chunks(length(part_bytes)?).flat_map(sum).collect();
                same("checksums", &unhex(sums)?, &expected)
            }
            ["disk", node, offset, data] => {
                let data = unhex(data)?;
                let found = self.read(index(node)?, number(offset)?, data.len())?;
                same("the disk", &found, &data)
            }
            ["crash"] => {
                self.pair.node(1).kill();
                self.pair.node(0).kill();
                self.pair.node(1).restart();
                // It cannot ask whether the other node continued.
                self.says(1, "serving", "false")
            }
            ["room", node, bytes] => {
                let disk = OpenOptions::new().write(true).open(self.pair.disk(index(node)?));
                let grown = disk.and_then(|disk| disk.set_len(number(bytes).unwrap_or_default()));
                grown.map_err(|error| error.to_string())
            }
            ["rejoin"] => {
                self.pair.node(0).restart();
                self.pair.wait_for(1, "mirroring");
                self.pair.assert_equal_legs(1);
                Ok(())
            }
            _ => Err("no such request".into()),
        }
    }

    /// Checks that both are in sync and that no peer was lost since they started.
    fn mirroring(&self) -> Result<(), String> {
        let source = self.pair.source();
        self.pair.wait_for(source, "mirroring");
        let status = self.pair.status(source);
        same("disconnects", &status["peers"][0]["disconnects"], &0.into())
    }

    /// Checks a field in a node's status of its replica.
    fn says(&self, node: usize, field: &str, value: &str) -> Result<(), String> {
        let said = self.pair.status(node)["replica"][field].clone();
        let said = said.as_str().map_or_else(|| said.to_string(), ToOwned::to_owned);
        same(field, &said, &value.to_owned())
    }

    /// Checks that Replica Identify data agrees with the node's status.
    fn identity(&self, node: usize, data: &[u8]) -> Result<(), String> {
        same("length", &data.len(), &IDENTIFY_BYTES)?;
        let status = self.pair.status(node);
        let replica = &status["replica"];
        let little = |at: usize, len: usize| {
            data[at..at + len].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
        };
        same("versions", &[little(0, 2), little(226, 2)], &VERSIONS)?;
        let versions = &status["peers"][0]["link"]["node_versions"];
        same("versions of the API", versions, &Value::from(VERSIONS.to_vec()))?;
        let role = if data[2] == 1 { "source" } else { "target" };
        same("role", &Value::from(role), &replica["role"])?;
        same("inconsistent", &Value::from(data[3] & 4 != 0), &replica["inconsistent"])?;
        same("serving", &Value::from(data[3] & 16 != 0), &replica["serving"])?;
        same("granularity", &little(4, 4).is_power_of_two(), &true)?;
        same("size", &Value::from(little(8, 8)), &replica["size_bytes"])?;
        same("volume", &Value::from(uuid(&data[16..32])), &replica["volume_uuid"])?;
        same("replica", &Value::from(uuid(&data[32..48])), &replica["replica_uuid"])?;
        same("role_epoch", &Value::from(little(48, 8)), &replica["role_epoch"])?;
        let generation = format!("{:016x}", little(56, 8));
        same("generation", &Value::from(generation), &replica["generation"])?;
        same("codecs", &data[224], &3)?;
        same("room for its own size", &(little(232, 8) >= little(8, 8)), &true)?;
        same("discards its data", &(data[225] & 1), &0)?;
        same("has a source", &Value::from(data[225] & 2 != 0), &replica["has_source"])?;
        same("keeps reservations", &(data[225] & 4 != 0), &true)?;
        let unused = [&[data[225] & !7][..], &data[228..232], &data[240..]].concat();
        same("reserved bytes are set", &unused.iter().any(|byte| *byte != 0), &false)
    }

    /// Checks that a bitmap agrees with the node's status, includes the block at `offset`, and is
    /// not full.
    fn bitmap(&self, node: usize, data: &[u8], bit: u64, offset: u64) -> Result<(), String> {
        let at = usize::try_from(offset / bit).map_err(|error| error.to_string())?;
        let set = data.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        same("the bit of the written block", &set, &true)?;
        let bytes = data.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>() * bit;
        same("less than all", &(bytes < self.size_of(node)), &true)?;
        let status = self.pair.status(node);
        same("out of date", &Value::from(bytes), &status["peers"][0]["out_of_sync_bytes"])
    }

    fn size_of(&self, node: usize) -> u64 {
        self.pair.status(node)["replica"]["size_bytes"].as_u64().unwrap_or_default()
    }

    fn read(&self, node: usize, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let mut found = vec![0; len];
        let disk = fs::File::open(self.pair.disk(node));
        let read = disk.and_then(|disk| disk.read_exact_at(&mut found, offset));
        read.map_err(|error| format!("reading the disk: {error}"))?;
        Ok(found)
    }
}

/// CRC-64/NVME, bit by bit: independent of the tested implementation.
fn crc64(data: &[u8]) -> u64 {
    const REVERSED: u64 = 0x9a6c_9329_ac4b_c9b5;
    let byte = |sum: u64, byte: &u8| {
        (0..8).fold(sum ^ u64::from(*byte), |sum, _| {
            if sum & 1 == 1 { sum >> 1 ^ REVERSED } else { sum >> 1 }
        })
    };
    !data.iter().fold(!0, byte)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let short = |value: &T| format!("{value:?}").chars().take(400).collect::<String>();
    Err(format!("{what}: {} and not {}", short(found), short(expected)))
}

fn index(node: &str) -> Result<usize, String> {
    match node {
        "0" => Ok(0),
        "1" => Ok(1),
        _ => Err(format!("no node {node:?}")),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|error| format!("{text:?}: {error}"))
}

/// Parses a length, which must not be 0.
fn length(text: &str) -> Result<usize, String> {
    let bytes = number(text)?;
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("no length {text}"))
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).map_err(|error| error.to_string())?;
        u8::from_str_radix(pair, 16).map_err(|error| format!("{pair:?}: {error}"))
    };
    text.as_bytes().chunks(2).map(digits).collect()
}

fn uuid(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    parts.join("-")
}

/// Checks that `tests/guest/replica.sh` sends every command of the headings in
/// `docs/nvme-vendor-commands.md`, after the word `example`, and every nvme-cli command that the
/// document prints.
///
/// # Panics
///
/// If they differ.
pub fn assert_examples_are_run() {
    let root = tools::workspace();
    let read = |path: &str| {
        fs::read_to_string(Path::new(&root).join(path))
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let document = read("docs/nvme-vendor-commands.md");
    let printed = printed(&document);
    let run = examples(&read("tests/guest/replica.sh"));
    for line in &printed {
        let is_run = run.iter().any(|example| begins(example, line));
        assert!(is_run, "no scenario runs the documented command: {line}");
    }
    let opcodes: Vec<String> = document
        .lines()
        .filter_map(|line| line.strip_prefix("## ")?.strip_suffix("h)")?.rsplit_once('('))
        .map(|(_, opcode)| format!("-o 0x{} ", opcode.to_lowercase()))
        .collect();
    assert_eq!(opcodes.len(), 23, "the headings of commands: {opcodes:?}");
    for opcode in opcodes {
        assert!(run.iter().any(|line| line.contains(&opcode)), "no scenario runs {opcode}");
    }
}

/// True if a line is this command, with or without arguments.
fn begins(line: &str, command: &str) -> bool {
    line.strip_prefix(command).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// Joins lines that end with a backslash, and collapses spaces.
fn joined(text: &str) -> Vec<String> {
    let whole = text.replace("\\\n", " ");
    whole.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Commands in the shell blocks of a document.
fn printed(document: &str) -> BTreeSet<String> {
    let blocks = document.split("```sh\n").skip(1);
    let block = |text: &str| joined(text.split("```").next().unwrap_or_default());
    blocks.flat_map(block).filter(|line| line.starts_with("nvme ")).collect()
}

/// Commands after `example` in a script.
fn examples(script: &str) -> BTreeSet<String> {
    let after = |line: String| {
        let at = line.find("example nvme ")?;
        Some(line[at + "example ".len()..].to_owned())
    };
    joined(script).into_iter().filter(|line| !line.starts_with('#')).filter_map(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc64_matches_the_specification() {
        // NVM Command Set Specification, test cases of the 64b CRC.
        assert_eq!(crc64(&[0; 4096]), 0x6482_d367_eb22_b64e);
        assert_eq!(crc64(&[0xff; 4096]), 0xc0dd_ba73_02ec_a3ac);
    }

    #[test]
    fn examples_are_found_across_line_breaks() {
        let document = "```sh\nnvme a \\\n    -b\n```\nnvme c\n```sh\n# said\nnvme d\n```\n";
        let found: Vec<String> = printed(document).into_iter().collect();
        assert_eq!(found, ["nvme a -b", "nvme d"]);
        let script = "# example nvme x\n  ends 1 example nvme a -b \\\n  >c\nnvme y\n";
        let run: Vec<String> = examples(script).into_iter().collect();
        assert_eq!(run, ["nvme a -b >c"]);
        assert!(begins(&run[0], &found[0]) && !begins("nvme a -bc", "nvme a -b"));
    }
}
