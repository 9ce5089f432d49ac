//! What is shipped besides the binary: the unit, the packaged config, completions, manual pages, the importer, the
//! examples of edges and containers.

use crate::harness::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn conf(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf").join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(conf(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs a tool of the machine; `None`, said aloud, if it is not there.
fn tool(name: &str, args: &[&str]) -> Option<Output> {
    let output = Command::new(name).args(args).output().ok();
    if output.is_none() {
        println!("LEFT OUT: there is no {name} here");
    }
    output
}

#[test]
fn the_unit_is_one_that_systemd_takes_and_gives_drain_its_time() {
    let unit = read("systemd/weir.service");
    let setting =
        |name: &str| unit.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(setting("TimeoutStopSec="), "330s", "drain_delay 10 s, drain 300 s, and a little");
    assert_eq!(setting("User="), "weir");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("weir.service");
    std::fs::write(&file, unit.replace("/usr/bin/weir", env!("CARGO_BIN_EXE_weir"))).expect("a writable folder");
    let Some(verified) = tool("systemd-analyze", &["verify", "--man=no", file.to_str().expect("UTF-8")]) else {
        return;
    };
    let words = said(&verified);
    assert!(verified.status.success() && !words.contains("weir.service:"), "{words}");
}

#[test]
fn the_packaged_config_is_good_but_for_the_certificate_that_is_not_there_yet() {
    let pki = Pki::new();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("weir.yaml");
    std::fs::write(&file, read("package/weir.yaml")).expect("a writable folder");
    let check = || weir_command(&["check", file.to_str().expect("UTF-8")]);
    assert!(!check().status.success() && said(&check()).contains("tls.crt"), "{}", said(&check()));
    let [_, cert, key] = pki.write(folder.path());
    std::fs::rename(cert, folder.path().join("tls.crt")).expect("its own folder");
    std::fs::rename(key, folder.path().join("tls.key")).expect("its own folder");
    assert!(check().status.success(), "{}", said(&check()));
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let output = weir_command(&["completions", shell]);
        let text = said(&output);
        for word in ["serve", "import", "ledger", "config"] {
            assert!(output.status.success() && text.contains(word), "{shell} does not know {word}");
        }
    }
    let bash = weir_command(&["completions", "bash"]).stdout;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("weir.bash");
    std::fs::write(&file, bash).expect("a writable folder");
    if let Some(checked) = tool("bash", &["-n", file.to_str().expect("UTF-8")]) {
        assert!(checked.status.success(), "{}", said(&checked));
    }
    let page = weir_command(&["man"]);
    assert!(page.status.success() && said(&page).contains(".TH weir 1"), "{}", said(&page));
    let written = weir_command(&["man", "--folder", folder.path().to_str().expect("UTF-8")]);
    assert!(written.status.success(), "{}", said(&written));
    for name in ["weir.1", "weir-serve.1", "weir-test.1", "weir-import-litellm.1", "weir-ledger-verify.1"] {
        assert!(folder.path().join(name).is_file(), "{name}");
    }
}

#[test]
fn import_prints_a_good_file_and_says_what_is_missing_in_it() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/import/many.litellm.yaml");
    let output = weir_command(&["import", "litellm", from.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", said(&output));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("not carried over: ") && errors.contains("bedrock"), "{errors}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("weir.yaml");
    std::fs::write(&file, &output.stdout).expect("a writable folder");
    let mut check = Command::new(env!("CARGO_BIN_EXE_weir"));
    for name in [
        "AZURE_EU_KEY",
        "AZURE_US_KEY",
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GROQ_API_KEY",
        "MISTRAL_API_KEY",
        "PERPLEXITY_API_KEY",
    ] {
        check.env(name, "placeholder");
    }
    let checked = check.arg("check").arg(&file).output().expect("the binary");
    assert!(checked.status.success(), "{}", said(&checked));
    let wrong = weir_command(&["import", "litellm", "/dev/null"]);
    assert!(!wrong.status.success() && said(&wrong).contains("no model_list"), "{}", said(&wrong));
}

#[test]
fn examples_of_edges_and_containers_fit_drain_and_keepalive() {
    let pod = read("kubernetes/weir.yaml");
    for fits in ["terminationGracePeriodSeconds: 330", "drain_delay: 10s, drain: 5m", "/readyz", "/healthz", "preStop"]
    {
        assert!(pod.contains(fits), "{fits}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let inside: Vec<&str> = pod.split("  weir.yaml: |\n").nth(1).expect("a config").split("---").collect();
    let lines: Vec<&str> = inside[0].lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let file = folder.path().join("weir.yaml");
    std::fs::write(&file, lines.join("\n")).expect("a writable folder");
    let mut check = Command::new(env!("CARGO_BIN_EXE_weir"));
    check
        .env("WEIR_ADMIN_TOKEN", "a-token-that-is-long-enough")
        .env("OPENAI_API_KEY", "k")
        .env("PG_URL", "postgres://a:b@c/d");
    let checked = check.arg("check").arg(&file).output().expect("the binary");
    assert!(checked.status.success(), "{}", said(&checked));

    let pki = Pki::new();
    let [_, cert, key] = pki.write(folder.path());
    let folder = folder.path().display();
    let site = read("edge/nginx.conf")
        .replace("/etc/nginx/tls.crt", &cert.display().to_string())
        .replace("/etc/nginx/tls.key", &key.display().to_string());
    std::fs::write(format!("{folder}/site.conf"), site).expect("a writable folder");
    let whole = format!("{folder}/nginx.conf");
    let main =
        format!("events {{}}\npid {folder}/pid;\nerror_log {folder}/log;\nhttp {{ include {folder}/site.conf; }}\n");
    std::fs::write(&whole, main).expect("a writable folder");
    if let Some(tested) = tool("nginx", &["-t", "-c", &whole]) {
        assert!(tested.status.success(), "{}", said(&tested));
    }
}

/// There is no docker in the tests: what the file names has to be there, at least.
#[test]
fn the_dockerfile_names_what_there_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (file, manifest) = (read("docker/Dockerfile"), root.join("Cargo.toml"));
    let manifest = std::fs::read_to_string(manifest).expect("a manifest");
    // Before the sources come, cargo wants a file for each target.
    let placeholders = file.lines().find(|line| line.contains("| tee ")).expect("placeholders");
    let targets: Vec<&str> = manifest.lines().filter_map(|line| line.strip_prefix("path = ")).collect();
    assert!(targets.len() > 3, "{targets:?}");
    for target in targets.iter().map(|target| target.trim_matches('"')).chain(["src/lib.rs"]) {
        assert!(placeholders.contains(target), "{target} is missing in {placeholders}");
        let folder = target.rsplit_once('/').expect("a folder").0;
        assert!(file.lines().any(|line| line.contains("mkdir -p") && line.contains(folder)), "{folder} is not made");
    }
    let sent = std::fs::read_to_string(root.join(".dockerignore")).expect("what is sent");
    let sources = file.lines().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.starts_with("--"));
    for source in sources.flat_map(|line| line.rsplit_once(' ').expect("a target").0.split(' ')) {
        assert!(root.join(source).exists(), "{source}");
        assert!(sent.lines().any(|line| line.strip_prefix('!') == Some(source)), "{source} is not sent to the build");
    }
    // What the binary takes in at its build.
    let own = std::fs::read_to_string(root.join("src/main.rs")).expect("a source");
    let outside = own.split("include_str!(\"../").skip(1).filter_map(|rest| rest.split('"').next());
    for taken in outside {
        assert!(file.contains(&format!("COPY {taken} ")), "{taken}");
    }
}
