//! Cloud machine type: the type of the machine, such as `n2-standard-8`, from the cloud's metadata.
//!
//! The firmware identifies the cloud. Only then is the metadata server asked, on its link-local
//! address, for the machine type. The result is `None` rather than a guess. Each step takes at most
//! [`METADATA_TIMEOUT`]. Nothing that identifies the machine, its project or its user is kept.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Timeout of the connect and of each read and write; the server is on the same host.
const METADATA_TIMEOUT: Duration = Duration::from_millis(300);
/// Upper bound of an answer, in bytes.
const ANSWER_BYTES: u64 = 16 << 10;
/// Upper bound of a machine type's length.
const TYPE_CHARACTERS: usize = 64;
/// Metadata server of all three clouds (link-local, RFC 3927).
const ADDRESS: ([u8; 4], u16) = ([169, 254, 169, 254], 80);
/// Chassis asset tag of every machine of Azure.
const AZURE_TAG: &str = "7783-7084-3265-9085-8269-3286-77";

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Firmware<'a> {
    pub vendor: &'a str,
    pub product: &'a str,
    pub tag: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source<'a> {
    Named(&'a str),
    /// The metadata server has it: the path, and the required header.
    Asked {
        path: &'static str,
        header: &'static str,
    },
}

/// The machine type; none on unknown machines, or if the metadata server does not answer.
pub(crate) fn machine_type(firmware: Firmware<'_>) -> Option<String> {
    match source(firmware)? {
        Source::Named(name) => checked(name),
        Source::Asked { path, header } => ask(ADDRESS.into(), path, header),
    }
}

fn source(firmware: Firmware<'_>) -> Option<Source<'_>> {
    let Firmware { vendor, product, tag } = firmware;
    match vendor {
        // https://cloud.google.com/compute/docs/instances/detect-compute-engine
        "Google" => Some(Source::Asked {
            path: "/computeMetadata/v1/instance/machine-type",
            header: "Metadata-Flavor: Google",
        }),
        // On Nitro: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html
        "Amazon EC2" => Some(Source::Named(product)),
        // Hyper-V machines outside of Azure have the same vendor.
        "Microsoft Corporation" if tag == AZURE_TAG => Some(Source::Asked {
            path: "/metadata/instance/compute/vmSize?api-version=2021-02-01&format=text",
            header: "Metadata: true",
        }),
        _ => None,
    }
}

fn ask(address: SocketAddr, path: &str, header: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, METADATA_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(METADATA_TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(METADATA_TIMEOUT)).ok()?;
    // HTTP/1.0: the answer ends with the connection and is not chunked.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n{header}\r\n\r\n", address.ip());
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer).ok()?;
    answered(&String::from_utf8(answer).ok()?)
}

fn answered(text: &str) -> Option<String> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.lines().next()?.split(' ').nth(1)?;
    // Google's answer is projects/NUMBER/machineTypes/TYPE.
    (status == "200").then(|| checked(body.trim().rsplit('/').next()?)).flatten()
}

/// The name, if it has the form of a machine type.
fn checked(name: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = (1..=TYPE_CHARACTERS).contains(&name.len()) && name.chars().all(fits);
    is_name.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_type_source_by_firmware() {
        let of = |vendor, product, tag| source(Firmware { vendor, product, tag });
        assert!(matches!(of("Google", "Google Compute Engine", ""), Some(Source::Asked { .. })));
        assert_eq!(of("Amazon EC2", "m5.large", ""), Some(Source::Named("m5.large")));
        let azure = of("Microsoft Corporation", "Virtual Machine", AZURE_TAG);
        assert!(matches!(azure, Some(Source::Asked { header: "Metadata: true", .. })));
        assert_eq!(of("Microsoft Corporation", "Virtual Machine", "None"), None, "a Hyper-V");
        assert_eq!(of("QEMU", "Standard PC", ""), None);
        let firmware = Firmware { vendor: "Amazon EC2", product: "m5.large", tag: "" };
        assert_eq!(machine_type(firmware).as_deref(), Some("m5.large"));
        assert_eq!(machine_type(Firmware::default()), None);
    }

    #[test]
    fn metadata_answers_are_validated() {
        let google = "HTTP/1.0 200 OK\r\nMetadata-Flavor: Google\r\n\r\n\
                      projects/123456/machineTypes/n2-standard-8";
        assert_eq!(answered(google).as_deref(), Some("n2-standard-8"), "without the project");
        let azure = "HTTP/1.1 200 OK\r\nServer: IMDS\r\n\r\nStandard_D8s_v5\n";
        assert_eq!(answered(azure).as_deref(), Some("Standard_D8s_v5"));
        for wrong in [
            "",
            "HTTP/1.0 200 OK\r\n\r\n",
            "HTTP/1.0 404 Not Found\r\n\r\nn2-standard-8",
            "HTTP/1.0 200 OK\r\n\r\n<html>log in first</html>",
            "\r\n\r\nx",
        ] {
            assert_eq!(answered(wrong), None, "{wrong:?}");
        }
        assert_eq!(answered(&format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(65))), None);
    }
}
