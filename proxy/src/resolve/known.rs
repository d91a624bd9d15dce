//! The addresses of names that were dialled lately, in the form in which they are dialled.
//!
//! The resolver's own cache keeps whole messages and looks for them in steps that cost as much as
//! the rest of a connection's set-up; a client that opens many connections asks for one name.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use policy::HostName;
use tokio::time::Instant;

/// Addresses by name, for as long as they may be believed.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<HostName, Entry>>);

#[derive(Debug)]
struct Entry {
    addresses: Vec<IpAddr>,
    until: Instant,
}

impl Known {
    /// The addresses of `name`, if they are known and not too old.
    pub(super) fn get(&self, name: &HostName) -> Option<Vec<IpAddr>> {
        let entries = self.entries();
        let entry = entries.get(name)?;
        (Instant::now() < entry.until).then(|| entry.addresses.clone())
    }

    /// Remembers the addresses of `name` for so long. Where there are too many names already, it
    /// does not: the resolver remembers more.
    pub(super) fn insert(&self, name: HostName, addresses: Vec<IpAddr>, lasting: Duration) {
        let now = Instant::now();
        let mut entries = self.entries();
        if entries.len() >= MAX_NAMES {
            entries.retain(|_, entry| now < entry.until);
        }
        if entries.len() < MAX_NAMES {
            let until = now + lasting;
            entries.insert(name, Entry { addresses, until });
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<HostName, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const MAX_NAMES: usize = 1024;

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    fn addresses() -> Vec<IpAddr> {
        vec!["203.0.113.7".parse().unwrap()]
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_known_for_as_long_as_was_said_and_no_longer() {
        let known = Known::default();
        known.insert(name("a.example"), addresses(), Duration::from_secs(5));
        assert_eq!(known.get(&name("b.example")), None);
        advance(Duration::from_millis(4999)).await;
        assert_eq!(known.get(&name("a.example")), Some(addresses()));
        advance(Duration::from_millis(1)).await;
        assert_eq!(known.get(&name("a.example")), None);
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_only_so_many_names_and_old_ones_make_room() {
        let known = Known::default();
        for n in 0..MAX_NAMES + 10 {
            let name = name(&format!("n{n}.example"));
            known.insert(name, addresses(), Duration::from_secs(5));
        }
        assert_eq!(known.entries().len(), MAX_NAMES);
        advance(Duration::from_secs(5)).await;
        known.insert(name("new.example"), addresses(), Duration::from_secs(5));
        assert_eq!(known.entries().len(), 1);
        assert!(known.get(&name("new.example")).is_some());
    }
}
