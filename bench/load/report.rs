//! The figures as a table for people and as JSON for programs, with what they have to reach.

use crate::contenders::Who;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// What Weir's figure has to reach (DESIGN section 5).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// At most so many times another's.
    Times(f64, Who),
    AtMost(f64),
}

/// One line: a figure of each contender.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) figures: BTreeMap<&'static str, f64>,
    pub(crate) target: Option<Target>,
}

impl Row {
    fn of(&self, who: Who) -> Option<f64> {
        self.figures.get(who.name()).copied()
    }

    /// Weir's figure in another's.
    fn ratio(&self, who: Who) -> Option<f64> {
        let other = self.of(who).filter(|figure| *figure > 0.0)?;
        Some(self.of(Who::Weir)? / other)
    }

    fn is_met(&self) -> Option<bool> {
        let own = self.of(Who::Weir)?;
        Some(match self.target? {
            Target::Times(times, who) => own <= times * self.of(who)?,
            Target::AtMost(most) => own <= most,
        })
    }

    fn target_text(&self) -> String {
        match self.target {
            None => String::new(),
            Some(Target::Times(times, who)) => format!("≤ {times} × {}", who.name()),
            Some(Target::AtMost(most)) => format!("≤ {most}"),
        }
    }
}

/// All lines.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Adds a line and prints it.
    pub(crate) fn add(&mut self, row: Row) {
        if self.rows.is_empty() {
            self.print_head();
        }
        if self.rows.last().is_none_or(|last| last.scenario != row.scenario) {
            println!("{}", row.scenario);
        }
        let number = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), short);
        let mut line = format!("  {:44}", format!("{}, {}", row.what, row.unit));
        for who in Who::ALL {
            line.push_str(&format!(" {:>8}", number(row.of(who))));
        }
        for who in [Who::Stock, Who::Nginx] {
            line.push_str(&format!(
                " {:>7}",
                row.ratio(who).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
            ));
        }
        let met = match row.is_met() {
            None => "",
            Some(true) => "ok",
            Some(false) => "NOT MET",
        };
        println!("{line}  {:14} {met}", row.target_text());
        self.rows.push(row);
    }

    fn print_head(&self) {
        debug_assert!(self.rows.is_empty(), "the head comes first");
        let mut line = format!("  {:44}", "");
        for who in Who::ALL {
            line.push_str(&format!(" {:>8}", who.name()));
        }
        println!("{line} {:>7} {:>7}  target", "/stock", "/nginx");
    }

    /// Writes the JSON.
    pub(crate) fn write(&self, path: &Path) {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "scenario": row.scenario, "what": row.what, "unit": row.unit, "figures": row.figures,
                    "to_stock": row.ratio(Who::Stock), "to_nginx": row.ratio(Who::Nginx),
                    "target": row.target_text(), "met": row.is_met(),
                })
            })
            .collect();
        let all = json!({ "machine": machine(), "rows": rows });
        std::fs::write(path, format!("{all:#}\n")).expect("a folder below target");
        println!("\n{}", path.display());
    }
}

fn short(figure: f64) -> String {
    match figure.abs() {
        size if size >= 1000.0 => format!("{figure:.0}"),
        size if size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// Commit, machine and versions.
pub(crate) fn machine() -> Value {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok();
        let text = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
    };
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    json!({
        "commit": said("git", &["describe", "--always", "--dirty"]),
        "weir": env!("CARGO_PKG_VERSION"),
        "processor": processor, "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "system": said("uname", &["-sr"]), "rustc": said("rustc", &["--version"]),
        "nginx": said("nginx", &["-v"]), "haproxy": said("haproxy", &["-v"]),
        "load": std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
        "at": humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
    })
}
