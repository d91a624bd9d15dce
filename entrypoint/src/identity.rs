//! Who the guest runs as, and who decides beside PID 1 and as whom.

use crate::{
    accounts::{Accounts, User},
    config::Enforce,
    failure::Failure,
};

/// An identity that is not root's. Only [`Unprivileged::new`] makes one, and only one of these can
/// be given to a process under an allowlist: root would keep `NET_ADMIN` and could flush the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unprivileged(User);

impl Unprivileged {
    /// `user`, unless it is root.
    pub(crate) fn new(user: User) -> Option<Self> {
        (user.uid != 0).then_some(Self(user))
    }

    /// The user.
    pub(crate) const fn user(&self) -> &User {
        &self.0
    }
}

/// The guest's identity and that of whom it is judged by, which differ, so that the rules can tell
/// them apart and neither can touch the other.
#[derive(Debug, Clone)]
pub(crate) struct Identities {
    /// Of the guest.
    pub(crate) guest: Unprivileged,
    /// Of whoever decides.
    pub(crate) by: By,
}

/// Who decides on what leaves.
#[derive(Debug, Clone)]
pub(crate) enum By {
    /// The proxy, by name, as this user.
    Name(Unprivileged),
    /// nftables alone, by the addresses that names resolve to; they are resolved as this user.
    Address(Unprivileged),
}

impl By {
    /// The user that decides, or asks for who does.
    pub(crate) const fn user(&self) -> &User {
        let (Self::Name(identity) | Self::Address(identity)) = self;
        identity.user()
    }
}

impl Identities {
    /// Finds both. `remapped` says that the container's root is not the machine's, and `has_proxy`
    /// that the image has the proxy's program.
    pub(crate) fn resolve(
        run_as: Option<&str>,
        accounts: &Accounts,
        enforce: Enforce,
        has_proxy: bool,
        remapped: bool,
    ) -> Result<Self, Failure> {
        let proxy = proxy_user(accounts);
        let by_name = match enforce {
            Enforce::Name => true,
            Enforce::Auto => has_proxy && proxy.is_ok(),
            Enforce::Address => false,
        };
        let guest = guest(run_as, accounts, remapped)?;
        if !by_name {
            let resolver = resolver_user(proxy.ok(), accounts, &guest)?;
            let by = By::Address(resolver);
            return Ok(Self { guest, by });
        }
        let proxy = proxy?;
        if guest.user().uid == proxy.user().uid {
            return Err(Failure::config(
                RUN_AS,
                "the guest would be the proxy's own user",
                NAME_A_USER,
            ));
        }
        let by = By::Name(proxy);
        Ok(Self { guest, by })
    }
}

fn guest(
    run_as: Option<&str>,
    accounts: &Accounts,
    remapped: bool,
) -> Result<Unprivileged, Failure> {
    let refuse = |problem: &str| Failure::config(RUN_AS, problem, NAME_A_USER);
    let run_as =
        run_as.ok_or_else(|| refuse("not set, so the guest would be root under an allowlist"))?;
    let guest = Unprivileged::new(run_as_user(run_as, accounts)?)
        .ok_or_else(|| refuse("the guest would be root under an allowlist and could undo it"))?;
    if remapped && guest.user().uid == OVERFLOW_UID {
        return Err(refuse(
            "65534 stands for the host's root in a remapped container",
        ));
    }
    Ok(guest)
}

/// Reads `SANDBOX_RUN_AS`: a name, `uid`, or `uid:gid`, with or without an entry.
///
/// A bare number without an entry gets the group of the same number: group 0 owns files in many
/// images, so that it is no neutral default.
pub(crate) fn run_as_user(run_as: &str, accounts: &Accounts) -> Result<User, Failure> {
    let unknown = || {
        let problem = format!("no user `{run_as}` in the image");
        Failure::config(
            RUN_AS,
            problem,
            "name one from its /etc/passwd, or give `uid:gid`",
        )
    };
    if let Some(user) = accounts.by_name(run_as) {
        return Ok(user);
    }
    let (uid, gid) = match run_as.split_once(':') {
        Some((uid, gid)) => (uid, Some(gid.parse::<u32>().map_err(|_| unknown())?)),
        None => (run_as, None),
    };
    let uid = uid.parse::<u32>().map_err(|_| unknown())?;
    if uid == u32::MAX || gid == Some(u32::MAX) {
        return Err(unknown());
    }
    let entry = accounts.by_uid(uid);
    Ok(match (entry, gid) {
        (Some(user), None) => user,
        (Some(user), Some(gid)) => User { gid, ..user },
        (None, gid) => User {
            uid,
            gid: gid.unwrap_or(uid),
            groups: Vec::new(),
            home: None,
        },
    })
}

fn proxy_user(accounts: &Accounts) -> Result<Unprivileged, Failure> {
    let missing = |cause| {
        Failure::setup(
            "find the proxy's user",
            cause,
            "add `sandbox-proxy` to the image, see images/README.md, or enforce by `address`",
        )
    };
    let user = accounts
        .by_name(PROXY_USER)
        .ok_or_else(|| missing("no user `sandbox-proxy` in the image"))?;
    let bare = User {
        groups: Vec::new(),
        ..user
    };
    Unprivileged::new(bare).ok_or_else(|| missing("`sandbox-proxy` is root in the image"))
}

/// The proxy's user, which nobody else is, or a number that is nobody's in the image: no process has
/// it, and no file is its own.
fn resolver_user(
    proxy: Option<Unprivileged>,
    accounts: &Accounts,
    guest: &Unprivileged,
) -> Result<Unprivileged, Failure> {
    let guest = guest.user();
    if let Some(proxy) = proxy.filter(|proxy| proxy.user().uid != guest.uid) {
        return Ok(proxy);
    }
    let is_guests = |id| guest.uid == id || guest.gid == id || guest.groups.contains(&id);
    let free = (1..OVERFLOW_UID)
        .rev()
        .find(|&id| !is_guests(id) && !accounts.knows(id));
    let user = free.map(|id| User {
        uid: id,
        gid: id,
        groups: Vec::new(),
        home: None,
    });
    user.and_then(Unprivileged::new).ok_or_else(|| {
        Failure::setup(
            "find a user to resolve names as",
            "every number is somebody's in the image",
            "remove users from its /etc/passwd",
        )
    })
}

const RUN_AS: &str = "SANDBOX_RUN_AS";
const PROXY_USER: &str = "sandbox-proxy";
const NAME_A_USER: &str = "name an unprivileged user of the image, such as `sandbox`";
const OVERFLOW_UID: u32 = 65534;

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(
        run_as: Option<&str>,
        accounts: &Accounts,
        remapped: bool,
    ) -> Result<Identities, Failure> {
        Identities::resolve(run_as, accounts, Enforce::Name, true, remapped)
    }

    fn accounts() -> Accounts {
        Accounts::of(
            "root:x:0:0::/root:\ntoor:x:0:0::/root:\nsandbox:x:1000:1000::/home/sandbox:\nsandbox-proxy:x:990:990::/:\n",
            "docker:x:5:sandbox,sandbox-proxy\n",
        )
    }

    #[test]
    fn a_guest_that_would_be_root_or_the_proxy_is_refused() {
        for run_as in [
            None,
            Some("root"),
            Some("toor"),
            Some("0"),
            Some("0:1000"),
            Some("sandbox-proxy"),
            Some("990"),
        ] {
            assert!(resolve(run_as, &accounts(), false).is_err(), "{run_as:?}");
        }
    }

    #[test]
    fn what_is_no_user_is_refused() {
        for run_as in [
            "nosuch",
            "",
            "-1",
            "1000:x",
            "1000:",
            "4294967295",
            "4294967296",
            "1 000",
        ] {
            let refused = resolve(Some(run_as), &accounts(), false);
            assert!(matches!(refused, Err(Failure::Config { .. })), "{run_as:?}");
        }
    }

    #[test]
    fn numbers_need_no_entry_and_use_one_where_it_exists() {
        for (run_as, uid, gid, groups) in [
            ("sandbox", 1000, 1000, vec![5]),
            ("1000", 1000, 1000, vec![5]),
            ("1000:7", 1000, 7, vec![5]),
            ("4242", 4242, 4242, vec![]),
            ("4242:8", 4242, 8, vec![]),
        ] {
            let guest = resolve(Some(run_as), &accounts(), false).unwrap().guest;
            let user = guest.user();
            assert_eq!(
                (user.uid, user.gid, &user.groups),
                (uid, gid, &groups),
                "{run_as}"
            );
        }
    }

    #[test]
    fn the_overflow_user_is_refused_only_where_it_stands_for_root() {
        assert!(resolve(Some("65534"), &accounts(), true).is_err());
        assert!(resolve(Some("65534"), &accounts(), false).is_ok());
    }

    #[test]
    fn the_proxy_is_in_no_group_but_its_own() {
        let by = resolve(Some("sandbox"), &accounts(), false).unwrap().by;
        let By::Name(proxy) = by else {
            panic!("{by:?}")
        };
        assert_eq!(proxy.user().groups, Vec::<u32>::new());
    }

    #[test]
    fn an_image_without_the_proxy_user_is_refused() {
        let refused = resolve(Some("1000"), &Accounts::default(), false);
        assert!(matches!(refused, Err(Failure::Setup { .. })));
    }

    fn by(accounts: &Accounts, enforce: Enforce, has_proxy: bool) -> Option<By> {
        Identities::resolve(Some("1000"), accounts, enforce, has_proxy, false)
            .ok()
            .map(|identities| identities.by)
    }

    #[test]
    fn names_decide_where_the_image_has_the_proxy_and_its_user_and_else_addresses() {
        for (accounts, has_proxy, by_name) in [
            (accounts(), true, true),
            (accounts(), false, false),
            (Accounts::default(), true, false),
            (Accounts::default(), false, false),
        ] {
            let found = by(&accounts, Enforce::Auto, has_proxy);
            assert_eq!(matches!(found, Some(By::Name(_))), by_name, "{found:?}");
            assert_eq!(matches!(found, Some(By::Address(_))), !by_name, "{found:?}");
            let asked = by(&accounts, Enforce::Address, has_proxy);
            assert!(matches!(asked, Some(By::Address(_))), "{asked:?}");
        }
        assert!(by(&Accounts::default(), Enforce::Name, true).is_none());
    }

    #[test]
    fn names_are_resolved_as_the_proxy_s_user_or_as_nobody() {
        let uid = |accounts: &Accounts, run_as: &str| {
            let found = Identities::resolve(Some(run_as), accounts, Enforce::Address, false, false);
            match found.unwrap().by {
                By::Address(user) => user.user().clone(),
                By::Name(user) => panic!("{user:?}"),
            }
        };
        assert_eq!(uid(&accounts(), "1000").uid, 990);
        assert_eq!(
            uid(&accounts(), "990").uid,
            65533,
            "the guest has the proxy's"
        );
        let taken = Accounts::of("a:x:65533:1::/:\n", "b:x:65532:\n");
        let nobody = uid(&taken, "65531");
        assert_eq!((nobody.uid, nobody.gid), (65530, 65530));
        assert!(nobody.groups.is_empty());
    }

    #[test]
    fn an_explicit_group_replaces_the_primary_one_of_the_entry() {
        let user = run_as_user("1000:7", &accounts()).unwrap();
        assert_eq!((user.gid, user.home), (7, Some("/home/sandbox".into())));
    }

    #[test]
    fn a_name_that_looks_like_a_number_is_found_by_name_first() {
        let accounts = Accounts::of("4242:x:7:8::/home/odd:\n", "");
        assert_eq!(run_as_user("4242", &accounts).unwrap().uid, 7);
    }

    #[test]
    fn root_is_no_unprivileged_identity_under_any_name() {
        for name in ["root", "toor"] {
            assert!(
                Unprivileged::new(accounts().by_name(name).unwrap()).is_none(),
                "{name}"
            );
        }
    }

    #[test]
    fn without_an_allowlist_root_is_a_user_like_any_other() {
        assert_eq!(run_as_user("root", &accounts()).unwrap().uid, 0);
    }

    #[test]
    fn a_proxy_user_that_is_root_is_refused() {
        let accounts = Accounts::of("sandbox-proxy:x:0:0::/:\n", "");
        let line = resolve(Some("1000"), &accounts, false)
            .unwrap_err()
            .one_line();
        assert!(line.contains("`sandbox-proxy` is root"), "{line}");
    }

    #[test]
    fn a_refusal_names_the_variable_and_the_user() {
        let line = resolve(Some("nosuch"), &accounts(), false)
            .unwrap_err()
            .one_line();
        assert!(
            line.starts_with("SANDBOX_RUN_AS: no user `nosuch`"),
            "{line}"
        );
    }
}
