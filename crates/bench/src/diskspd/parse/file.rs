//! XML profile of diskspd (`-X`), converted to the flags of a command line, so that the same parser
//! judges both.
//!
//! The file is hostile input: its size, depth and number of elements are bounded, it may have no
//! document type, and an element that the conversion does not know is refused by name.

use std::path::Path;

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};

use crate::limits::{PROFILE_BYTES, PROFILE_DEPTH, PROFILE_ELEMENTS};

#[derive(Debug, Default)]
struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    text: String,
    children: Vec<Element>,
}

/// The words of the command line with the profile's flags in place of `-X`. The flags that may
/// accompany it override the profile.
pub(super) fn expanded(words: &[String]) -> Result<Vec<String>, String> {
    let Some(path) = words.iter().find_map(|word| word.strip_prefix("-X")) else {
        return Ok(words.to_vec());
    };
    let others = || words.iter().filter(|word| word[..] != format!("-X{path}"));
    let may_accompany = |word: &&String| {
        ["-W", "-d", "-C", "-R", "-v", "-z"].iter().any(|flag| word.starts_with(flag))
    };
    if let Some(word) = others().find(|word| !may_accompany(word)) {
        return Err(format!("{word}: only -W, -d, -C, -R, -v and -z may accompany -X"));
    }
    let text = crate::os::read_text(Path::new(path), PROFILE_BYTES)
        .map_err(|error| format!("-X{path}: {error}"))?;
    let (mut flags, targets) = flags(&text).map_err(|what| format!("-X{path}: {what}"))?;
    flags.extend(others().cloned());
    flags.extend(targets);
    Ok(flags)
}

fn flags(text: &str) -> Result<(Vec<String>, Vec<String>), String> {
    let root = tree(text)?;
    if root.name != "Profile" {
        return Err(format!("no profile but <{}>", root.name));
    }
    let mut flags = Vec::new();
    let mut targets = Vec::new();
    for element in &root.children {
        match &*element.name {
            "Progress" => {}
            "ResultFormat" => flags.push(format!("-R{}", element.text)),
            "Verbose" => flags.extend(switch(element, "-v")?),
            "TimeSpans" => {
                let [span] = &element.children[..] else {
                    return Err("exactly one <TimeSpan> is supported".to_owned());
                };
                targets = time_span(span, &mut flags)?;
            }
            _ => return Err(unknown(element)),
        }
    }
    Ok((flags, targets))
}

fn time_span(span: &Element, flags: &mut Vec<String>) -> Result<Vec<String>, String> {
    let mut targets = Vec::new();
    for element in &span.children {
        let flag = match &*element.name {
            "CompletionRoutines" => switch(element, "-x")?,
            "MeasureLatency" => switch(element, "-L")?,
            "DisableAffinity" => switch(element, "-n")?,
            "CalculateIopsStdDev" => {
                let ms = child(span, "IoBucketDuration").map_or("", |ms| &ms.text);
                switch(element, &format!("-D{ms}"))?
            }
            "IoBucketDuration" => None,
            "Duration" => value(element, "-d"),
            "Warmup" => value(element, "-W"),
            "Cooldown" => value(element, "-C"),
            "RandSeed" => value(element, "-z"),
            "ThreadCount" => above_zero(element, "-F"),
            "RequestCount" => above_zero(element, "-O"),
            "Affinity" => Some(affinity(element)?),
            "Targets" => {
                let mut all = element.children.iter().map(target);
                let (path, own) = all.next().ok_or("<Targets> is empty")??;
                targets.push(path);
                for other in all {
                    let (path, flags) = other?;
                    if flags != own {
                        return Err(format!(
                            "target {path} differs from {} in its options",
                            targets[0]
                        ));
                    }
                    targets.push(path);
                }
                flags.extend(own);
                None
            }
            _ => return Err(unknown(element)),
        };
        flags.extend(flag);
    }
    Ok(targets)
}

fn affinity(element: &Element) -> Result<String, String> {
    let cpu = |cpu: &Element| {
        let group = attribute(cpu, "Group").unwrap_or("0");
        let processor = attribute(cpu, "Processor").ok_or_else(|| unknown(cpu))?;
        Ok(format!("g{group},{processor}"))
    };
    let cpus = element.children.iter().map(cpu).collect::<Result<Vec<_>, String>>()?;
    Ok(format!("-a{}", cpus.join(",")))
}

fn target(target: &Element) -> Result<(String, Vec<String>), String> {
    let mut path = String::new();
    let mut flags = Vec::new();
    for element in &target.children {
        flags.extend(match &*element.name {
            "Path" => {
                path.clone_from(&element.text);
                None
            }
            "BlockSize" => value(element, "-b"),
            "BaseFileOffset" => above_zero(element, "-B"),
            "FileSize" => value(element, "-c"),
            "MaxFileSize" => above_zero(element, "-f"),
            "SequentialScan" => switch(element, "-fs")?,
            "RandomAccess" => switch(element, "-fr")?,
            "TemporaryFile" => switch(element, "-ft")?,
            "UseLargePages" => switch(element, "-l")?,
            "DisableOSCache" => switch(element, "-Su")?,
            "WriteThrough" => switch(element, "-Sw")?,
            "DisableAllCache" => switch(element, "-Sh")?,
            "DisableLocalCache" => switch(element, "-Sr")?,
            "MemoryMappedIo" => switch(element, "-Sm")?,
            "ParallelAsyncIO" => switch(element, "-p")?,
            "InterlockedSequential" => switch(element, "-si")?,
            "FlushType" if element.text == "ViewOfFile" => Some("-Nv".to_owned()),
            "FlushType" => Some("-Nn".to_owned()),
            "WriteBufferContent" => content(element)?,
            "BurstSize" => above_zero(element, "-i"),
            "ThinkTime" => above_zero(element, "-j"),
            "Random" => value(element, "-r"),
            "RandomRatio" => value(element, "-rs"),
            "StrideSize" => value(element, "-s"),
            "ThreadStride" => above_zero(element, "-T"),
            "RequestCount" => value(element, "-o"),
            "ThreadsPerFile" => value(element, "-t"),
            "WriteRatio" => value(element, "-w"),
            "IOPriority" => value(element, "-I"),
            "Throughput" => {
                let unit = if attribute(element, "unit") == Some("IOPS") { "i" } else { "" };
                above_zero(element, "-g").map(|flag| flag + unit)
            }
            "Distribution" => Some(distribution(element)?),
            "Weight" if element.text == "1" => None,
            _ => return Err(unknown(element)),
        });
    }
    Ok((path, flags))
}

fn content(element: &Element) -> Result<Option<String>, String> {
    let pattern = child(element, "Pattern").map_or("", |pattern| &pattern.text);
    match (pattern, child(element, "RandomDataSource")) {
        ("sequential", None) => Ok(None),
        ("zero", None) => Ok(Some("-Z".to_owned())),
        ("random", Some(source)) => {
            let bytes = child(source, "SizeInBytes").ok_or_else(|| unknown(source))?;
            let file = child(source, "FilePath").map(|file| format!(",{}", file.text));
            Ok(Some(format!("-Z{}{}", bytes.text, file.unwrap_or_default())))
        }
        _ => Err(unknown(element)),
    }
}

fn distribution(element: &Element) -> Result<String, String> {
    let [of] = &element.children[..] else { return Err(unknown(element)) };
    let flag = match &*of.name {
        "Percent" => "-rdpct",
        "Absolute" => "-rdabs",
        _ => return Err(unknown(of)),
    };
    let range = |range: &Element| {
        let io = attribute(range, "IO").ok_or_else(|| unknown(range))?;
        Ok(format!("{io}/{}", range.text))
    };
    let ranges = of.children.iter().map(range).collect::<Result<Vec<_>, String>>()?;
    Ok(format!("{flag}{}", ranges.join(":")))
}

fn unknown(element: &Element) -> String {
    format!("<{}>{} is not supported", element.name, element.text)
}

fn child<'a>(element: &'a Element, name: &str) -> Option<&'a Element> {
    element.children.iter().find(|child| child.name == name)
}

fn attribute<'a>(element: &'a Element, name: &str) -> Option<&'a str> {
    let found = element.attributes.iter().find(|(key, _)| key == name);
    found.map(|(_, value)| value.as_str())
}

fn switch(element: &Element, flag: &str) -> Result<Option<String>, String> {
    match &*element.text {
        "true" => Ok(Some(flag.to_owned())),
        "false" => Ok(None),
        _ => Err(unknown(element)),
    }
}

fn value(element: &Element, flag: &str) -> Option<String> {
    Some(format!("{flag}{}", element.text))
}

fn above_zero(element: &Element, flag: &str) -> Option<String> {
    value(element, flag).filter(|_| element.text != "0")
}

fn tree(text: &str) -> Result<Element, String> {
    let mut reader = Reader::from_str(text);
    let mut open = vec![Element::default()];
    let mut elements = 0;
    loop {
        let event = reader.read_event().map_err(|error| error.to_string())?;
        let top = open.last_mut().ok_or("an element ends that did not begin")?;
        match event {
            Event::Start(start) => {
                elements += 1;
                open.push(element(&start)?);
            }
            Event::Empty(start) => {
                elements += 1;
                top.children.push(element(&start)?);
            }
            Event::End(_) => {
                let mut ended = open.pop().ok_or("an element ends that did not begin")?;
                ended.text = ended.text.trim().to_owned();
                let parent = open.last_mut().ok_or("an element ends that did not begin")?;
                parent.children.push(ended);
            }
            Event::Text(part) => top.text += &part.decode().map_err(|error| error.to_string())?,
            Event::GeneralRef(part) => {
                let name = part.decode().map_err(|error| error.to_string())?;
                let known = resolve_predefined_entity(&name);
                top.text += known.ok_or_else(|| format!("&{name}; is not supported"))?;
            }
            Event::Decl(_) | Event::Comment(_) | Event::PI(_) => {}
            Event::CData(_) | Event::DocType(_) => {
                return Err("CDATA and document types are not supported".to_owned());
            }
            Event::Eof => break,
        }
        if elements > PROFILE_ELEMENTS || open.len() > PROFILE_DEPTH {
            return Err(format!(
                "more than {PROFILE_ELEMENTS} elements, or more than {PROFILE_DEPTH} inside each other"
            ));
        }
    }
    match (open.pop(), open.is_empty()) {
        (Some(mut root), true) if root.children.len() == 1 => Ok(root.children.remove(0)),
        _ => Err("no complete XML document".to_owned()),
    }
}

fn element(start: &BytesStart<'_>) -> Result<Element, String> {
    let utf8 = |bytes: &[u8]| {
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|error| error.to_string())
    };
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        attributes.push((utf8(attribute.key.as_ref())?, utf8(&attribute.value)?));
    }
    Ok(Element { name: utf8(start.name().as_ref())?, attributes, ..Element::default() })
}

#[cfg(test)]
mod tests {
    use super::super::{Parsed, parse};
    use crate::diskspd::xml::profile;

    fn parsed(line: &str) -> Result<Parsed, String> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    fn of_file(text: &str, more: &str) -> Result<Parsed, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.xml");
        std::fs::write(&path, text).unwrap();
        parsed(&format!("-X{}{more}", path.display()))
    }

    #[test]
    fn printed_profiles_are_read_back() {
        for line in [
            "-c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L D&data",
            "-s128K -b64K -t2 -T1M -B1M:8M -D500 -n -g100i -I2 -z7 a b",
            "-rs50 -b8K -a0,1 -i4 -j10 -Sm -Nv -l -fr x",
            "-r8K -rdpct90/10:10/20 -F4 -O8 -Z1M -Su -v x",
        ] {
            let of_flags = profile(&parsed(line).unwrap().profile);
            let read = of_file(&of_flags, "").unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(profile(&read.profile), of_flags, "{line}");
        }
        let base = profile(&parsed("-d10 -Rpxml x").unwrap().profile);
        let read = of_file(&base, " -d3 -W0 -Rxml").unwrap().profile;
        assert_eq!((read.duration_s, read.warm_up_s, &*read.targets[0]), (3, 0, "x"));
    }

    #[test]
    fn hostile_profiles_are_refused_by_name() {
        let base = profile(&parsed("-d10 x").unwrap().profile);
        let deep = "<a>".repeat(100);
        let wide = format!("<Profile>{}</Profile>", "<Progress/>".repeat(20_000));
        for (text, more, part) in [
            (&*base, " -t4", "-t4: only -W, -d, -C, -R, -v and -z may accompany -X"),
            ("", "", "no complete XML document"),
            ("<Profile>", "", "no complete XML document"),
            ("</a>", "", ""),
            ("<Other/>", "", "no profile but <Other>"),
            (&*deep, "", "inside each other"),
            (&*wide, "", "more than"),
            ("<!DOCTYPE a [<!ENTITY b 'c'>]><Profile/>", "", "document types"),
            (&*base.replace("Path>x", "Path>&lol;"), "", "&lol; is not supported"),
            (&*base.replace("Weight>1", "Weight>2"), "", "<Weight>2 is not supported"),
            (&*base.replace("Duration", "Dur"), "", "<Dur>10 is not supported"),
            (&*base.replace("<ParallelAsyncIO>false", "<ParallelAsyncIO>true"), "", "-p: "),
            (&*base.replace("<WriteRatio>0", "<WriteRatio>-1"), "", "-w-1: "),
            (&*base.replace("<Path>x", "<Path>"), "", "no path"),
        ] {
            let error = of_file(text, more).expect_err(text);
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(parsed("-X/no/such/file").unwrap_err().contains("-X/no/such/file: "));
    }
}
