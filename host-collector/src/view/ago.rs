//! Times as a person asks for them: how long ago, and how long it took.

use jiff::{Timestamp, tz::TimeZone};

/// How long before `now`, in the largest unit that fits: `5 min ago`.
pub(super) fn ago(time: &str, now: Timestamp) -> String {
    let Ok(then) = time.parse::<Timestamp>() else {
        return "?".into();
    };
    let seconds = now.as_second().saturating_sub(then.as_second());
    match seconds {
        ..=4 => "just now".into(),
        5..=59 => format!("{seconds} s ago"),
        60..=3599 => format!("{} min ago", seconds / 60),
        3600..=86_399 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// The time in the zone of who reads it.
pub(super) fn local(time: &str, zone: &TimeZone) -> String {
    match time.parse::<Timestamp>() {
        Ok(then) => then
            .to_zoned_datetime(zone.clone())
            .strftime("%Y-%m-%d %H:%M:%S %Z")
            .to_string(),
        Err(_) => "?".into(),
    }
}

/// `850 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`.
pub(super) fn took(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0 => format!("{milliseconds} ms"),
        1..=59 => format!("{seconds}.{} s", milliseconds % 1000 / 100),
        60..=3599 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_unit_that_fits_is_used() {
        let now: Timestamp = "2026-01-10T12:00:00Z".parse().unwrap();
        for (time, expected) in [
            ("2026-01-10T12:00:30Z", "just now"),
            ("2026-01-10T11:59:18Z", "42 s ago"),
            ("2026-01-10T11:55:01Z", "4 min ago"),
            ("2026-01-10T00:00:00+02:00", "14 h ago"),
            ("2026-01-01T12:00:00Z", "9 d ago"),
            ("yesterday", "?"),
        ] {
            assert_eq!(ago(time, now), expected, "{time}");
        }
    }

    #[test]
    fn a_time_is_shown_in_the_reader_s_zone() {
        assert_eq!(
            local("2026-01-10T12:00:00.123Z", &TimeZone::UTC),
            "2026-01-10 12:00:00 UTC"
        );
        assert_eq!(local("", &TimeZone::UTC), "?");
    }

    #[test]
    fn durations_read_as_people_say_them() {
        for (milliseconds, expected) in [
            (0, "0 ms"),
            (850, "850 ms"),
            (3250, "3.2 s"),
            (250_000, "4 min 10 s"),
            (7_500_000, "2 h 5 min"),
        ] {
            assert_eq!(took(milliseconds), expected);
        }
    }
}
