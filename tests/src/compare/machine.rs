//! The machine that was measured on, without anything that tells whose it is.

use std::{fs, path::Path};

use serde_json::{Value, json};

/// Its processor, how many of them, its memory and its kernel.
#[must_use]
pub fn machine() -> Value {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let virtual_machine = cpus.lines().any(|line| {
        line.strip_prefix("flags")
            .is_some_and(|flags| flags.contains(" hypervisor"))
    });
    json!({
        "processor": value_of(&cpus, "model name"),
        "processors": cpus.lines().filter(|line| line.starts_with("processor")).count(),
        "virtual_machine": virtual_machine,
        "memory": value_of(&memory, "MemTotal"),
        "kernel": release(),
    })
}

/// How many bytes a program takes on disk.
pub fn size(program: &Path) -> anyhow::Result<u64> {
    Ok(fs::metadata(program)?.len())
}

/// The kernel's release, as far as it is not the name of somebody's build.
fn release() -> String {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    release.split('-').next().unwrap_or_default().to_owned()
}

fn value_of(lines: &str, name: &str) -> Option<String> {
    let line = lines.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_kernel_and_processors_and_no_name() {
        let machine = machine();
        assert!(machine["processors"].as_u64() > Some(0), "{machine}");
        assert!(
            !machine["kernel"].as_str().unwrap().contains('-'),
            "{machine}"
        );
        let name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let shown = machine.as_object().unwrap().values();
        assert!(shown.into_iter().all(|value| value.as_str() != Some(&name)));
    }

    #[test]
    fn a_value_is_what_stands_behind_the_colon() {
        assert_eq!(
            value_of("MemTotal:  12 kB\n", "MemTotal").as_deref(),
            Some("12 kB")
        );
        assert_eq!(value_of("", "MemTotal"), None);
    }
}
