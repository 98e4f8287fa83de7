//! Seeds of text input: configurations, catalogs, fio output, specifications and HTTP requests.

use std::io;

use super::Corpus;

/// `config`: the example, and the broken files of the tests.
pub(crate) fn configurations(corpus: &Corpus) -> io::Result<()> {
    let example = std::fs::read(corpus.project.join("docs/examples/flagstone.toml"))?;
    corpus.put("config", "example", &example)?;
    corpus.put("config", "least", b"[volume.a]\ndevice = \"memory:1GiB\"\n")?;
    for entry in std::fs::read_dir(corpus.project.join("crates/config/tests/broken"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            corpus.put("config", &name, &std::fs::read(&path)?)?;
        }
    }
    Ok(())
}

/// `catalog`: the documentation's, and the 2019 tables up to the input limit.
pub(crate) fn catalogs(corpus: &Corpus) -> io::Result<()> {
    /// Longest input of `fuzz/run`, in bytes.
    const MOST: usize = 16_384;
    let documentation = std::fs::read_to_string(corpus.project.join("docs/catalog.md"))?;
    let example = documentation.split("```toml\n").nth(1).and_then(|text| text.split("```").next());
    corpus.put("catalog", "example", example.unwrap_or_default().as_bytes())?;
    let page = std::fs::read(corpus.project.join("crates/cloud/catalogs/gcp-2019.toml"))?;
    let end = page[..page.len().min(MOST)].windows(2).rposition(|pair| pair == b"\n[");
    corpus.put("catalog", "page-2019", &page[..end.map_or(0, |end| end + 1)])
}

/// `fio`: output of the real fio without spaces, after the byte that selects the catalog.
pub(crate) fn fio_outputs(corpus: &Corpus) -> io::Result<()> {
    for entry in std::fs::read_dir(corpus.project.join("crates/bench/tests/outputs"))? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if stem == "README" {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        corpus.put("fio", &stem, format!("\0{}", lines.join("\n")).as_bytes())?;
    }
    Ok(())
}

/// `spec`: every form of each kind, after its kind byte.
pub(crate) fn specs(corpus: &Corpus) -> io::Result<()> {
    let devices = [
        "/dev/nvme0n1",
        "./memory:1",
        "memory:1GiB",
        "null:1TiB",
        "nvme-tcp://[2001:db8::1]:4420/nqn.2026-01.io.flagstone:db?queues=4&header-digest&data-digest&nsid=1",
        "nvme-tcp://host.example/nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "nbd://127.0.0.1:10809/an%20export",
        "nbd+unix:///db?socket=/run/flagstone.sock",
        "nbds://127.0.0.1/db",
    ];
    let addresses = [
        "nvme-tcp://0.0.0.0:4420",
        "nvme-tcp://[::]:0",
        "nbd://127.0.0.1",
        "nbd+unix:///run/flagstone.sock",
        "nbd+unix:///run/a%20b",
    ];
    let names = [
        "nqn.2014-08.org.nvmexpress.discovery",
        "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "nqn.2026-01.io.flagstone:db",
        "db-1.log_2",
    ];
    let groups: [(&str, &[&str]); 6] = [
        ("device", &devices),
        ("listen", &addresses),
        ("uuid", &["f81d4fae-7dec-11d0-a765-00a0c91e6bf6"]),
        ("size", &["512", "64KiB", "1TiB", "4k", "16EiB", "1.5GiB", "0"]),
        ("duration", &["50us", "1ms", "10s", "2min", "1h", "0", "0.5s"]),
        ("name", &names),
    ];
    for (choice, (name, texts)) in (0_u8..).zip(groups) {
        for (index, text) in texts.iter().enumerate() {
            corpus.put(
                "spec",
                &format!("{name}-{index}"),
                &[&[choice], text.as_bytes()].concat(),
            )?;
        }
    }
    Ok(())
}

/// `http_request`: requests of control API clients, and malformed ones.
pub(crate) fn requests(corpus: &Corpus) -> io::Result<()> {
    let requests: [(&str, &[u8]); 7] = [
        ("get", b"GET /v1/volumes/a%20b?watch=1&x=a+b HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n"),
        ("post", b"POST /v1/volumes/db/mirror/pause?dry_run HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 13\r\nExpect: 100-continue\r\n\r\n{\"force\":true}"),
        ("pipelined", b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\nOPTIONS / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET http://x/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        ("chunked", b"POST /v1/reload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("two-lengths", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12"),
        ("http2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("bare-lines", b"\n\nGET /%2f//\xc3 HTTP/1.1\nHost: x\n\n"),
    ];
    requests.iter().try_for_each(|(name, bytes)| corpus.put("http_request", name, bytes))
}
