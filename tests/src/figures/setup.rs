//! How long a guest waits for its first instruction, and how long the host for a denial.

use std::time::Duration;

use anyhow::{Context, ensure};

use super::{
    Figures,
    observe::What,
    quantile,
    stage::{List, Played, Stage},
};

/// From the execution of the entrypoint to the first line of the guest.
pub fn set_up(stage: &Stage, rounds: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let short = ["allowed.test".to_owned()];
    let lists = [
        ("without a list", List::None, rounds, "≤ 3"),
        ("with a list", List::Of(&short), rounds, "≤ 50"),
    ];
    for (name, list, rounds, target) in lists {
        let (first, _) = starts(stage, list, rounds)?;
        figures.add(format!("set-up {name}, ms"), quantile(&first, 0.5), target);
        let worst = format!("set-up {name}, ms, slowest of {rounds}");
        figures.add(worst, quantile(&first, 1.0), "");
    }
    Ok(())
}

/// What the firewall and the rest of the set-up take, between the first message and the last before
/// the guest: with one name, and with very many addresses, each of which is in the ruleset.
pub fn load(stage: &Stage, rounds: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let short = ["allowed.test".to_owned()];
    let addresses: Vec<_> = (0..ADDRESSES).map(address).collect();
    let names: Vec<_> = (0..ADDRESSES)
        .map(|n| format!("host{n}.project{}.example.com", n % 97))
        .collect();
    for (name, list, rounds, target) in [
        ("1 name", &short[..], rounds, "≤ 30"),
        ("100 000 names", &names, FEW, ""),
        ("100 000 addresses", &addresses, FEW, "≤ 1 000"),
    ] {
        let (first, enforced) = starts(stage, List::Of(list), rounds)?;
        let figure = format!("from hello to enforcing, {name}, ms");
        figures.add(figure, quantile(&enforced, 0.5), target);
        if list.len() > 1 {
            figures.add(format!("set-up with {name}, ms"), quantile(&first, 0.5), "");
        }
    }
    Ok(())
}

/// Starts guests one after the other: in milliseconds from execution to the guest, and from the first
/// message to that which says that the rules are in force.
fn starts(stage: &Stage, list: List<'_>, rounds: usize) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let (mut first, mut enforced) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let played = stage.play(list, &["first"])?;
        let nanoseconds = played.numbers()?.first().copied();
        let nanoseconds = nanoseconds.context("when the guest began")?;
        first.push(milliseconds(Duration::from_nanos(nanoseconds)));
        if let List::Of(_) = list {
            enforced.push(milliseconds(between(&played)?));
        }
    }
    Ok((first, enforced))
}

fn between(played: &Played) -> anyhow::Result<Duration> {
    let at = |is: fn(&What) -> bool| {
        let heard = played.heard.iter().find(|heard| is(&heard.what));
        heard.map(|heard| heard.at)
    };
    let hello = at(|what| matches!(what, What::Hello)).context("a hello")?;
    let enforcing = at(|what| matches!(what, What::Enforcing)).context("the rules in force")?;
    Ok(enforcing.saturating_sub(hello))
}

/// From a guest's attempt to the line in the journal, each attempt alone; and what PID 1 holds
/// meanwhile.
pub fn denials(stage: &Stage, figures: &mut Figures) -> anyhow::Result<()> {
    let list = ["allowed.test".to_owned()];
    let played = stage.play(List::Of(&list), &["denials", &DENIALS.to_string()])?;
    let tried = played.numbers()?;
    let heard = played.heard.iter().filter_map(|heard| match &heard.what {
        What::Denied(host) if host.starts_with('d') => Some(heard.at),
        What::Denied(_) | What::Hello | What::Enforcing | What::Looked(_) => None,
    });
    let heard: Vec<_> = heard.collect();
    ensure!(
        heard.len() == tried.len() && tried.len() == DENIALS,
        "{} were tried and {} heard of",
        tried.len(),
        heard.len()
    );
    let took: Vec<_> = tried
        .iter()
        .zip(heard)
        .map(|(tried, heard)| milliseconds(heard.saturating_sub(Duration::from_nanos(*tried))))
        .collect();
    figures.add("denial to journal, ms, p50", quantile(&took, 0.5), "≤ 50");
    figures.add("denial to journal, ms, p99", quantile(&took, 0.99), "≤ 50");
    let look = played.looks();
    let look = look.first().context("a look at PID 1")?;
    let kib = |kib: u64| Duration::from_micros(kib * 1_000_000 / 1024).as_secs_f64();
    figures.add("PID 1, PSS MiB", kib(look.init.memory.share), "≤ 4");
    figures.add("PID 1, RSS MiB", kib(look.init.memory.resident), "≤ 4");
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Every other one, so that no two are neighbours that could be held as one range.
fn address(n: u32) -> String {
    let address = std::net::Ipv4Addr::from(u32::from(BASE) + 2 * n);
    format!("{address}:443")
}

const DENIALS: usize = 300;
const ADDRESSES: u32 = 100_000;
const BASE: std::net::Ipv4Addr = std::net::Ipv4Addr::new(20, 0, 0, 0);
/// How often what takes long is done.
const FEW: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_addresses_are_neighbours_and_all_are_entries() {
        assert_eq!(
            [0, 1, 128].map(address),
            ["20.0.0.0:443", "20.0.0.2:443", "20.0.1.0:443"]
        );
        let policy = policy::Policy::from_entries((0..100).map(address)).unwrap();
        assert_eq!(policy.address_rules().len(), 100);
    }
}
