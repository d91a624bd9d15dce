//! Users and groups, read from /etc/passwd and /etc/group: a static binary has no NSS.

use std::{fs, io, path::PathBuf};

/// The account files as they were at start; the guest cannot write them, being somebody else.
#[derive(Debug, Default, Clone)]
pub(crate) struct Accounts {
    passwd: String,
    group: String,
}

/// A user as passwd(5) has it, or as much of one as a bare number gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    /// User id.
    pub(crate) uid: u32,
    /// Primary group.
    pub(crate) gid: u32,
    /// Supplementary groups of the group database.
    pub(crate) groups: Vec<u32>,
    /// Home directory, for users that have an entry.
    pub(crate) home: Option<PathBuf>,
}

impl Accounts {
    /// Reads both files. An image without them has no names, only numbers.
    pub(crate) fn read() -> io::Result<Self> {
        Ok(Self {
            passwd: read_if_there("/etc/passwd")?,
            group: read_if_there("/etc/group")?,
        })
    }

    /// The user called `name`.
    pub(crate) fn by_name(&self, name: &str) -> Option<User> {
        self.passwd
            .lines()
            .filter_map(Entry::parse)
            .find(|e| e.name == name)
            .map(|e| self.user(&e))
    }

    /// The user with this id.
    pub(crate) fn by_uid(&self, uid: u32) -> Option<User> {
        self.passwd
            .lines()
            .filter_map(Entry::parse)
            .find(|e| e.uid == uid)
            .map(|e| self.user(&e))
    }

    /// Whether a user or a group has this number.
    pub(crate) fn knows(&self, id: u32) -> bool {
        let mut users = self.passwd.lines().filter_map(Entry::parse);
        let mut groups = self.group.lines().filter_map(members);
        users.any(|user| user.uid == id || user.gid == id) || groups.any(|(gid, _)| gid == id)
    }

    fn user(&self, entry: &Entry<'_>) -> User {
        let mut groups: Vec<u32> = self
            .group
            .lines()
            .filter_map(|line| members(line))
            .filter(|(_, members)| members.split(',').any(|m| m.trim() == entry.name))
            .map(|(gid, _)| gid)
            .filter(|&gid| gid != entry.gid)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        let home = Some(PathBuf::from(entry.home)).filter(|home| home.is_absolute());
        User {
            uid: entry.uid,
            gid: entry.gid,
            groups,
            home,
        }
    }
}

/// `name:password:uid:gid:gecos:home:shell`
struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1)?;
        Some(Self {
            name,
            uid,
            gid,
            home,
        })
    }
}

/// `name:password:gid:member,member`
fn members(line: &str) -> Option<(u32, &str)> {
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?))
}

fn read_if_there(path: &str) -> io::Result<String> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
impl Accounts {
    /// Accounts that a test writes down.
    pub(crate) fn of(passwd: &str, group: &str) -> Self {
        Self {
            passwd: passwd.into(),
            group: group.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_known_as_a_user_s_or_as_a_group_s() {
        let accounts = Accounts::of("a:x:7:8::/:\n", "g:x:9:\n");
        for (id, is_known) in [(7, true), (8, true), (9, true), (10, false)] {
            assert_eq!(accounts.knows(id), is_known, "{id}");
        }
    }

    fn accounts() -> Accounts {
        Accounts::of(
            "root:x:0:0:root:/root:/bin/bash\nbroken line\nsandbox:x:1000:100::/home/sandbox:/bin/sh\n",
            "root:x:0:\nusers:x:100:sandbox\ndocker:x:999:other,sandbox\nwheel:x:10:sandboxer\n",
        )
    }

    #[test]
    fn a_user_has_the_groups_that_list_it_and_no_others() {
        let user = accounts().by_name("sandbox").unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (1000, 100, vec![999]));
        assert_eq!(user.home.unwrap(), PathBuf::from("/home/sandbox"));
    }

    #[test]
    fn a_name_is_matched_whole() {
        assert_eq!(accounts().by_name("sand"), None);
        assert_eq!(accounts().by_uid(1000), accounts().by_name("sandbox"));
    }

    #[test]
    fn a_line_that_is_no_entry_hides_no_other() {
        assert!(accounts().by_name("broken line").is_none());
        assert!(accounts().by_name("sandbox").is_some());
    }

    #[test]
    fn the_first_entry_of_a_name_is_the_one_that_counts() {
        let accounts = Accounts::of("a:x:1:1::/one:\na:x:2:2::/two:\n", "");
        assert_eq!(accounts.by_name("a").unwrap().uid, 1);
    }

    #[test]
    fn a_home_that_is_no_absolute_path_is_none() {
        let accounts = Accounts::of("a:x:1:1::relative:\nb:x:2:2:::\n", "");
        assert_eq!(accounts.by_name("a").unwrap().home, None);
        assert_eq!(accounts.by_name("b").unwrap().home, None);
    }

    #[test]
    fn the_primary_group_is_not_repeated_among_the_others() {
        let accounts = Accounts::of("a:x:1:5::/:\n", "five:x:5:a\nsix:x:6:a\nsix-again:x:6:a\n");
        assert_eq!(accounts.by_name("a").unwrap().groups, [6]);
    }

    #[test]
    fn ids_beyond_32_bits_are_no_entry() {
        let accounts = Accounts::of("a:x:4294967296:1::/:\nb:x:-1:1::/:\n", "");
        assert!(accounts.by_name("a").is_none() && accounts.by_name("b").is_none());
    }

    #[test]
    fn an_image_without_the_files_has_no_users() {
        assert!(Accounts::default().by_uid(0).is_none());
    }
}
