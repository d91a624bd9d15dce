//! A guest that does as much as it can of what is refused: how fast, what it costs whom, and whether
//! all of it is in the record.

use std::time::Duration;

use anyhow::{Context, ensure};
use report::ChannelState;

use super::{
    Figures,
    guest::LAST_LOOKS,
    observe::Look,
    stage::{List, Played, Stage},
};

/// What a flood was, and what the processes used for it.
struct Flood {
    name: &'static str,
    done: u64,
    took: Duration,
    before: Look,
    after: Look,
}

/// Questions for names that are not on the list: for one again and again, as a client asks that does
/// not give up, and each for another, as one does that wants to be in the way.
pub fn questions(stage: &Stage, figures: &mut Figures) -> anyhow::Result<()> {
    let list = ["allowed.test".to_owned()];
    let server = server(stage);
    for (name, kinds) in [
        ("questions for one name", 1),
        ("questions for as many names", FLOOD),
    ] {
        let role = ["questions", &FLOOD.to_string(), &server, &kinds.to_string()];
        let played = stage.play(List::Of(&list), &role)?;
        let flood = Flood::of(name, &played)?;
        flood.tell(figures, "≥ 100 000");
        let unreported = (flood.done + LOOKS).abs_diff(played.refused());
        figures.count(format!("{name} without a report"), unreported, "0");
    }
    Ok(())
}

/// Packets that no rule lets out.
pub fn packets(stage: &Stage, figures: &mut Figures) -> anyhow::Result<()> {
    let list = ["allowed.test".to_owned()];
    let to = format!("{}:9", stage.subnet().v4(66));
    let role = ["packets", &PACKETS.to_string(), &to];
    let played = stage.play(List::Of(&list), &role)?;
    let flood = Flood::of("packets", &played)?;
    flood.tell(figures, "200 000");
    let unreported = (flood.done + LOOKS).abs_diff(played.refused());
    figures.count("packets without a report", unreported, "0");
    let reports = played.attendance.reports.as_ref().context("reports")?;
    let unread = reports.account.totals().unsampled;
    figures.count("packets that were counted and not read", unread, "0");
    Ok(())
}

/// Questions for a name on whose port anything may pass: each answer is put into a set first.
pub fn openings(stage: &Stage, figures: &mut Figures) -> anyhow::Result<()> {
    let list = [
        "git.test:22@{net4}".to_owned(),
        "allowed.test@{net4}".to_owned(),
    ];
    let list = list.map(|entry| stage.subnet().fill(&entry));
    let (server, count) = (server(stage), OPENINGS.to_string());
    // What an answer takes, and PID 1's processor time of that, in microseconds.
    let cost = |name| {
        let role = ["openings", &count, &server, name];
        let flood = Flood::of("openings", &stage.play(List::Of(&list), &role)?)?;
        let each = |seconds: f64| seconds * 1e6 / as_float(flood.done);
        anyhow::Ok((each(flood.took.as_secs_f64()), each(flood.init())))
    };
    let (opened, init) = cost("git.test")?;
    let (answered, _) = cost("allowed.test")?;
    figures.add("answer that opens an address, µs", opened, "");
    figures.add("answer that opens none, µs", answered, "");
    figures.add("PID 1's processor time for an opening, µs", init, "≤ 20");
    Ok(())
}

fn server(stage: &Stage) -> String {
    format!("{}:53", stage.subnet().v4(53))
}

impl Flood {
    fn of(name: &'static str, played: &Played) -> anyhow::Result<Self> {
        let [done, nanoseconds] = played.numbers()?[..] else {
            anyhow::bail!("a guest told nothing of what it did: {}", played.said);
        };
        let looks = played.looks();
        let (Some(&before), Some(&after)) = (looks.first(), looks.last()) else {
            anyhow::bail!("the host did not look");
        };
        let state = played.attendance.verdict().state;
        ensure!(
            state == ChannelState::Complete,
            "the record of {name} is not complete: {:?}",
            played.attendance.shortfall()
        );
        Ok(Self {
            name,
            done,
            took: Duration::from_nanos(nanoseconds),
            before,
            after,
        })
    }

    fn init(&self) -> f64 {
        let used = self.after.init.cpu.saturating_sub(self.before.init.cpu);
        used.as_secs_f64()
    }

    fn tell(&self, figures: &mut Figures, target: &'static str) {
        let Self {
            name,
            done,
            took,
            before,
            after,
        } = self;
        let per_second = as_float(*done) / took.as_secs_f64();
        figures.add(format!("refused {name}/s"), per_second, target);
        let per = |used: Duration| used.as_secs_f64() * 100.0 * per_100_000(*done);
        let of = |before: Duration, after: Duration| per(after.saturating_sub(before));
        for (who, used, target) in [
            ("PID 1", of(before.init.cpu, after.init.cpu), "≤ 1"),
            (
                "the collector",
                of(before.collector, after.collector),
                "≤ 1",
            ),
            ("the proxy", of(before.proxy.cpu, after.proxy.cpu), ""),
        ] {
            let figure = format!("{who}, % of a core for 100 000 {name} a second");
            figures.add(figure, used, target);
        }
        let grown = |before: u64, after: u64| after.saturating_sub(before);
        for (who, more) in [
            (
                "PID 1",
                grown(before.init.memory.anonymous, after.init.memory.anonymous),
            ),
            (
                "the proxy",
                grown(before.proxy.memory.anonymous, after.proxy.memory.anonymous),
            ),
        ] {
            figures.count(format!("{who}, KiB more after {done} {name}"), more, "flat");
        }
    }
}

fn per_100_000(done: u64) -> f64 {
    1e5 / as_float(done)
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
fn as_float(number: u64) -> f64 {
    number as f64
}

const FLOOD: u64 = 200_000;
/// At which the host looks: they are refusals too.
const LOOKS: u64 = 1 + LAST_LOOKS;
const PACKETS: u64 = 400_000;
const OPENINGS: u64 = 10_000;
