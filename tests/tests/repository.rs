//! Repository checks: the table of dependencies in ARCHITECTURE.md, THIRD-PARTY-LICENSES, links
//! between documents, lengths of comments, and the lints that Cargo cannot inherit. `UPDATE_DOCS=1`
//! writes the table and the licenses instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_tests::tools;
use serde_json::Value;

/// Platform for which dependencies are resolved, because they differ slightly between platforms.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

fn read(file: &str) -> String {
    let path = tools::workspace().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares `file` with `expected`, or writes it if `UPDATE_DOCS` is set.
fn compare_or_update(file: &str, expected: &str, command: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(tools::workspace().join(file), expected).expect("the checkout is writable");
    } else {
        assert!(read(file) == expected, "{file} is out of date; run: {command}");
    }
}

/// Runs `cargo metadata` offline, with additional `arguments`.
fn metadata(arguments: &[&str]) -> Result<Value, String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(tools::workspace())
        .args(["metadata", "--offline", "--locked", "--format-version", "1"])
        .args(arguments)
        .output()
        .expect("cargo runs, as it runs this test");
    if output.status.success() {
        Ok(serde_json::from_slice(&output.stdout).expect("cargo writes JSON"))
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Name of a workspace crate in the documentation.
fn short(name: &str) -> &str {
    if name == "flagstone" { "cli" } else { name.trim_start_matches("flagstone-") }
}

/// Direct dependencies within the workspace, without test and build dependencies.
fn workspace_dependencies(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let inside =
        |dependency: &&Value| dependency["kind"].is_null() && !dependency["path"].is_null();
    let row = |package: &Value| {
        let dependencies = list(package, "dependencies").iter().filter(inside);
        let names = dependencies.map(|dependency| short(text(dependency, "name")).to_owned());
        (short(text(package, "name")).to_owned(), names.collect())
    };
    list(metadata, "packages").iter().map(row).collect()
}

/// Length of the longest chain of dependencies below `name`.
fn height(name: &str, graph: &BTreeMap<String, BTreeSet<String>>) -> usize {
    graph[name].iter().map(|below| height(below, graph) + 1).max().unwrap_or(0)
}

#[test]
fn architecture_lists_workspace_dependencies() {
    const BEGIN: &str = "<!--dependencies-->\n";
    const END: &str = "<!--end-->";
    let graph = workspace_dependencies(&metadata(&["--no-deps"]).expect("it needs no registry"));
    let mut names: Vec<&String> = graph.keys().collect();
    names.sort_by_key(|name| (height(name, &graph), *name));
    let mut list = String::new();
    // Neighbors with equal dependencies share a line.
    for equal in names.chunk_by(|one, other| graph[*one] == graph[*other]) {
        let below: Vec<&str> = graph[equal[0]].iter().map(String::as_str).collect();
        let below = if below.is_empty() { "none".to_owned() } else { below.join(", ") };
        let equal: Vec<&str> = equal.iter().map(|name| name.as_str()).collect();
        let _ = writeln!(list, "- {}: {below}", equal.join(", "));
    }
    let document = read("ARCHITECTURE.md");
    let (before, rest) = document.split_once(BEGIN).expect("the list has its first mark");
    let (_, after) = rest.split_once(END).expect("the list has its last mark");
    compare_or_update(
        "ARCHITECTURE.md",
        &format!("{before}{BEGIN}{list}{END}{after}"),
        "UPDATE_DOCS=1 cargo test -p flagstone-tests --test repository",
    );
}

/// The packages that `start` links, itself included: no proc macros, build scripts or tests.
fn linked_by<'a>(metadata: &'a Value, start: &str) -> Vec<&'a Value> {
    let packages: BTreeMap<&str, &Value> =
        list(metadata, "packages").iter().map(|package| (text(package, "id"), package)).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"], "nodes").iter().map(|node| (text(node, "id"), node)).collect();
    let is_proc_macro = |package: &Value| {
        let mut kinds = list(package, "targets").iter().flat_map(|target| list(target, "kind"));
        kinds.any(|kind| kind == "proc-macro")
    };
    let program = packages.values().find(|package| text(package, "name") == start);
    let mut waiting = vec![text(program.expect("it is a package"), "id")];
    let mut linked = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if is_proc_macro(packages[id]) || !linked.insert(id) {
            continue;
        }
        let normal = list(nodes[id], "deps").iter().filter(|dependency| {
            list(dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null())
        });
        waiting.extend(normal.map(|dependency| text(dependency, "pkg")));
    }
    linked.into_iter().map(|id| packages[id]).collect()
}

#[test]
fn data_path_crates_do_not_link_tokio() {
    let Ok(metadata) = metadata(&[]) else { return };
    for name in [
        "runtime",
        "blockdev",
        "transport",
        "nvme",
        "nvmf-target",
        "nvmf-host",
        "nbd",
        "limit",
        "mirror",
        "replication",
        "pool",
        "arbiter",
        "auth",
        "stack",
        "savings",
        "load",
    ] {
        let linked = linked_by(&metadata, &format!("flagstone-{name}"));
        let outside = ["tokio", "hyper", "axum"];
        let found: Vec<_> = linked
            .iter()
            .map(|package| text(package, "name"))
            .filter(|name| outside.contains(name))
            .collect();
        assert!(found.is_empty(), "{name} links {found:?}: only server may");
    }
}

/// Third-party packages that the program contains: no proc macros, build scripts or tests.
fn linked_packages(metadata: &Value) -> Vec<&Value> {
    let mut linked = linked_by(metadata, "flagstone");
    linked.retain(|package| !package["source"].is_null());
    linked.sort_by_key(|package| (text(package, "name"), text(package, "version")));
    linked
}

fn alternatives(license: &str) -> impl Iterator<Item = &str> {
    let any = if license.contains(" AND ") { "" } else { license };
    any.split(" OR ").flat_map(|part| part.split('/')).map(str::trim)
}

/// Files whose text must accompany the program. Where a package offers Apache-2.0, we choose it,
/// and its text is in LICENSE; its NOTICE must still be included.
fn license_files(package: &Value) -> Vec<PathBuf> {
    let license = text(package, "license");
    let apache = alternatives(license).any(|choice| choice == "Apache-2.0");
    let folder = Path::new(text(package, "manifest_path")).parent().expect("a manifest is a file");
    let names: BTreeSet<String> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder can be read").file_name().display().to_string())
        .collect();
    let begins = |name: &str, word: &str| name.to_uppercase().starts_with(word);
    let mut chosen: Vec<&String> = names.iter().filter(|name| begins(name, "NOTICE")).collect();
    if !apache {
        let mit = alternatives(license).any(|choice| choice == "MIT");
        let only_mit: Vec<&String> =
            names.iter().filter(|name| mit && begins(name, "LICENSE-MIT")).collect();
        let all = names.iter().filter(|name| {
            ["LICENSE", "LICEN\u{43}E", "COPYING", "COPYRIGHT"]
                .iter()
                .any(|word| begins(name, word))
        });
        let texts = if only_mit.is_empty() { all.collect() } else { only_mit };
        assert!(!texts.is_empty(), "{} has no license text", text(package, "name"));
        chosen.extend(texts);
    }
    chosen.into_iter().map(|name| folder.join(name)).collect()
}

fn third_party_licenses(packages: &[&Value]) -> String {
    let mut document = String::from(
        "Third-party software in the flagstone program\n\
         \n\
         Written by `make licenses`. Where a crate offers Apache-2.0, it is used under that license,\n\
         whose text is in the file LICENSE. The other texts follow the list.\n\n",
    );
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages {
        let (name, version) = (text(package, "name"), text(package, "version"));
        let _ = writeln!(document, "{name} {version}: {}", text(package, "license"));
        for file in license_files(package) {
            let bytes = fs::read(&file).expect("the license text can be read");
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
            let users = texts.entry(lines.join("\n").trim_matches('\n').to_owned()).or_default();
            users.insert(format!("{name} {version}"));
        }
    }
    let mut texts: Vec<(String, String)> = texts
        .into_iter()
        .map(|(text, users)| (users.into_iter().collect::<Vec<_>>().join(", "), text))
        .collect();
    texts.sort();
    for (users, text) in texts {
        let _ = write!(document, "\n{}\n{users}\n\n{text}\n", "-".repeat(80));
    }
    document
}

/// Third-party crates that the program may link, as in CONTRIBUTING.md: each is code that nobody
/// here reviews.
const LINKED_MAX: usize = 189;

#[test]
fn third_party_crates_are_limited_and_licensed() {
    let rule = format!("The program links at most {LINKED_MAX} third-party crates.");
    assert!(read("CONTRIBUTING.md").contains(&rule), "CONTRIBUTING.md has another limit");
    // `--no-deps` is not enough, because the texts are in the packages themselves.
    match metadata(&["--filter-platform", PLATFORM]) {
        Ok(metadata) => {
            let linked = linked_packages(&metadata);
            assert!(linked.len() <= LINKED_MAX, "{} third-party crates: drop some", linked.len());
            let licenses = third_party_licenses(&linked);
            compare_or_update("THIRD-PARTY-LICENSES", &licenses, "make licenses");
        }
        Err(error) => tools::unable("third_party_crates_are_limited_and_licensed", &error),
    }
}

#[test]
fn fuzz_seeds_of_configurations_are_current() {
    let root = tools::workspace();
    let files = source_files(&root.join("crates/config/tests/broken"), "toml");
    assert!(files.len() > 5, "{files:?}");
    let seeds = files.iter().map(|file| (file.clone(), file.file_stem().expect("it has a name")));
    let example = (root.join("docs/examples/flagstone.toml"), "example".as_ref());
    for (file, name) in seeds.chain([example]) {
        let seed = format!("fuzz/corpus/config/seed-{}", name.display());
        assert!(
            fs::read_to_string(file).expect("it is text") == read(&seed),
            "{seed} is out of date; run: cargo run --manifest-path fuzz/Cargo.toml -p flagstone-fuzz-seeds"
        );
    }
}

/// Lines of a Cargo manifest's sections whose names begin with `prefix`, without comments.
fn sections(manifest: &str, prefix: &str) -> String {
    let mut inside = false;
    let mut found = String::new();
    for line in manifest.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with('[') {
            inside = line.starts_with(prefix);
        }
        if inside {
            let _ = writeln!(found, "{line}");
        }
    }
    found
}

#[test]
fn every_package_inherits_the_lints() {
    let inherited = "[lints]\nworkspace = true\n";
    let metadata = metadata(&["--no-deps"]).expect("it needs no registry");
    for package in list(&metadata, "packages") {
        let manifest = fs::read_to_string(text(package, "manifest_path")).expect("it exists");
        assert_eq!(sections(&manifest, "[lints"), inherited, "{}", text(package, "name"));
    }
    let (ours, fuzz) = (read("Cargo.toml"), read("fuzz/Cargo.toml"));
    assert!(sections(&ours, "[workspace.lints").contains("unsafe_code"));
    assert_eq!(sections(&ours, "[workspace.lints"), sections(&fuzz, "[workspace.lints"));
    assert_eq!(sections(&fuzz, "[lints"), inherited);
    assert_eq!(sections(&read("fuzz/seeds/Cargo.toml"), "[lints"), inherited);
}

#[test]
fn rust_version_is_the_pinned_toolchain() {
    let value = |file: &str, key: &str| {
        let text = read(file);
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.expect("the key is there").trim_matches('"').to_owned()
    };
    let pinned = value("rust-toolchain.toml", "channel = ");
    let declared = value("Cargo.toml", "rust-version = ");
    assert_eq!(pinned.rsplit_once('.').map(|(release, _patch)| release), Some(declared.as_str()));
}

/// Files below `folder` whose names end in `extension`, without build output and hidden folders.
fn source_files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let entry = entry.expect("the folder can be read");
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                found.extend(source_files(&path, extension));
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

/// A Markdown document without its code blocks.
fn prose(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("documents are text");
    let mut code = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            code = !code;
        } else if !code {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Anchors of a document's headings, as GitHub generates them.
fn anchors(prose: &str) -> BTreeSet<String> {
    let headings = prose.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_between_documents_resolve() {
    let documents: BTreeMap<PathBuf, String> = source_files(tools::workspace(), "md")
        .into_iter()
        .map(|path| (path.canonicalize().expect("it exists"), prose(&path)))
        .collect();
    let mut broken = Vec::new();
    for (path, prose) in &documents {
        let links = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        for (link, _) in links.filter(|(link, _)| !link.contains("://") && !link.contains(' ')) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let folder = path.parent().expect("a file is in a folder");
            let target = if file.is_empty() {
                Some(path.clone())
            } else {
                folder.join(file).canonicalize().ok()
            };
            let right = target.is_some_and(|target| {
                let document = documents.get(&target);
                anchor.is_empty() || document.is_some_and(|text| anchors(text).contains(anchor))
            });
            if !right {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn only_runtime_allows_unsafe_code() {
    let root = tools::workspace();
    let files = source_files(root, "rs");
    assert!(files.len() > 100, "the sources are found");
    let lint = concat!("unsafe", "_code");
    for level in ["allow", "expect", "warn"] {
        for file in &files {
            let source = fs::read_to_string(file).expect("sources are text");
            let allowed = *file == root.join("crates/runtime/src/lib.rs");
            let attribute = format!("{level}({lint}");
            assert!(allowed || !source.contains(&attribute), "{}: {attribute}", file.display());
        }
    }
}

#[test]
fn names_of_tests_have_at_most_55_characters() {
    let (mut tests, attribute) = (0, concat!("#[", "test]"));
    for file in source_files(tools::workspace(), "rs") {
        let source = fs::read_to_string(&file).expect("sources are text");
        for after in source.split(attribute).skip(1) {
            let Some((_, after)) = after.split_once("fn ") else { continue };
            let name = after.split('(').next().unwrap_or_default();
            assert!(name.len() <= 55, "{}: {name}", file.display());
            tests += 1;
        }
    }
    assert!(tests > 1000, "the tests are found: {tests}");
}

/// The sentence stood above 42 items, and said nothing of them.
#[test]
fn doc_comments_do_not_refer_to_their_module() {
    let sentence = concat!("See the ", "module.");
    for file in source_files(tools::workspace(), "rs") {
        let source = fs::read_to_string(&file).expect("sources are text");
        assert!(!source.contains(sentence), "{}: {sentence}", file.display());
    }
}

/// rustfmt wraps code, but neither comments nor strings.
#[test]
fn comments_fit_in_100_columns() {
    for file in source_files(tools::workspace(), "rs") {
        let source = fs::read_to_string(&file).expect("sources are text");
        for (at, line) in source.lines().enumerate() {
            let is_long = line.trim_start().starts_with("//") && line.chars().count() > 100;
            assert!(!is_long, "{}:{}: wrap the comment", file.display(), at + 1);
        }
    }
}

/// Documents for readers, without third-party licenses. The marks of lists, headings and tables are
/// no words.
#[test]
fn documents_have_at_most_45000_words() {
    let root = tools::workspace();
    let mut files = source_files(&root.join("docs"), "md");
    for name in ["README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY"] {
        files.push(root.join(name).with_extension("md"));
    }
    let words = |file: &PathBuf| {
        let text = fs::read_to_string(file).expect("documents are text");
        text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
    };
    let (all, readme) = (files.iter().map(words).sum::<usize>(), words(&root.join("README.md")));
    assert!((10_000..=45_000).contains(&all), "{all} words in all documents: cut some");
    assert!(readme <= 900, "{readme} words in README.md: move some to their pages");
}

/// A key in the repository is a published one, of nvme-cli's and libnvme's documents and tests.
#[test]
fn keys_in_the_repository_are_test_vectors() {
    const PUBLISHED: [&str; 2] = ["ia6zGodOr4SEG0Zzaw39", "VRLbtnN9AQb2WXW3c9+w"];
    let key = "(DHHC-1:0[0-3]|NVMeTLSkey-1:0[0-2]):[A-Za-z0-9+/]{20}";
    let found = Command::new("git")
        .current_dir(tools::workspace())
        .args(["grep", "-n", "-a", "-o", "-h", "-E", key])
        .output()
        .expect("git runs");
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.lines().count() > 5, "the search finds the vectors: {found}");
    for line in found.lines() {
        let secret = line.rsplit(':').next().unwrap_or_default();
        assert!(PUBLISHED.contains(&secret), "a key that was generated: {}...", &line[..16]);
    }
}
