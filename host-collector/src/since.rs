//! A moment in the past, as people name it: `7d`, `2026-01-31`, `2026-01-31T12:00:00Z`.

use std::{fmt, str::FromStr};

use jiff::{Span, Timestamp, ZonedDateTime, civil};
use report::Printable;

/// The earliest launch that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since(pub Timestamp);

/// What is no moment.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no time; write `7d`, `12h`, `30m`, a date, or a time in RFC 3339")]
pub struct NoTime(Printable);

impl Since {
    /// Whether a time of the log is not before it. What cannot be read as a time is.
    #[must_use]
    pub fn admits(self, time: &str) -> bool {
        time.parse::<Timestamp>().is_ok_and(|time| time >= self.0)
    }

    fn read(text: &str, now: &ZonedDateTime) -> Result<Self, NoTime> {
        if let Ok(time) = text.parse::<Timestamp>() {
            return Ok(Self(time));
        }
        let no_time = || NoTime(Printable::new(text));
        if let Ok(date) = text.parse::<civil::Date>() {
            let midnight = date.to_zoned_datetime(now.time_zone().clone());
            return midnight
                .map(|day| Self(day.timestamp()))
                .map_err(|_| no_time());
        }
        let span: Span = text.parse().map_err(|_| no_time())?;
        // `7d` and `7d ago` are both the past; what comes after now would show nothing.
        let past = now.checked_sub(span.abs()).map_err(|_| no_time())?;
        Ok(Self(past.timestamp()))
    }
}

impl FromStr for Since {
    type Err = NoTime;

    fn from_str(text: &str) -> Result<Self, NoTime> {
        Self::read(text, &ZonedDateTime::now())
    }
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    fn read(text: &str) -> Result<String, String> {
        let now: Timestamp = "2026-03-10T12:00:00Z".parse().unwrap();
        let now = now.to_zoned_datetime(TimeZone::UTC);
        Since::read(text, &now)
            .map(|since| since.to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_moment_is_read_as_people_write_it() {
        for (text, expected) in [
            ("7d", "2026-03-03T12:00:00Z"),
            ("12h", "2026-03-10T00:00:00Z"),
            ("30m", "2026-03-10T11:30:00Z"),
            ("1w 2d", "2026-03-01T12:00:00Z"),
            ("2 weeks ago", "2026-02-24T12:00:00Z"),
            ("2026-01-31", "2026-01-31T00:00:00Z"),
            ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00Z"),
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused_with_examples() {
        for text in ["", "7", "soon", "-", "99999999y", "\u{1b}[2J"] {
            let error = read(text).unwrap_err();
            assert!(error.contains("is no time; write `7d`"), "{error}");
            assert!(!error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn the_moment_itself_is_admitted_and_no_time_is_not() {
        let since = Since("2026-01-31T12:00:00Z".parse().unwrap());
        for (time, admitted) in [
            ("2026-01-31T12:00:00.000Z", true),
            ("2026-01-31T11:59:59.999Z", false),
            ("", false),
            ("yesterday", false),
        ] {
            assert_eq!(since.admits(time), admitted, "{time}");
        }
    }
}
