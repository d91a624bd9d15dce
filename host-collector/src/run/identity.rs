//! Who the guest is.

use crate::engine::{Identity, Image};

/// A guest that would keep the power to undo its allowlist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--user {0}: root could undo the allowlist; name another user, or use --network default")]
pub struct RootGuest(String);

/// A user and a group of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    /// User id.
    pub(super) uid: u32,
    /// Group id.
    pub(super) gid: u32,
}

/// Decides who the guest is.
///
/// Nobody asked: the caller, so that files in the workspace stay its own; for root the owner of the
/// workspace; failing that, the image's user `sandbox`. An image with an entrypoint of its own
/// decides for itself, unless an allowlist puts ours in front.
pub(super) fn identity(
    asked: Option<&str>,
    caller: Owner,
    workspace: Option<Owner>,
    image: &Image,
    allowlist: bool,
) -> Result<Identity, RootGuest> {
    if !allowlist && !image.is_ours() {
        return Ok(asked.map_or(Identity::Image, |user| Identity::Engine(user.to_owned())));
    }
    let Some(user) = asked else {
        let ordinary = |owner: &Owner| owner.uid != 0;
        let owner = Some(caller)
            .filter(ordinary)
            .or_else(|| workspace.filter(ordinary));
        let user = owner.map_or_else(
            || "sandbox".to_owned(),
            |owner| format!("{}:{}", owner.uid, owner.gid),
        );
        return Ok(Identity::Entrypoint(user));
    };
    let name = user.split_once(':').map_or(user, |(name, _)| name);
    let is_root = name == "root" || name.parse() == Ok(0_u32);
    if allowlist && is_root {
        Err(RootGuest(user.to_owned()))
    } else {
        Ok(Identity::Entrypoint(user.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Owner = Owner { uid: 0, gid: 0 };
    const ME: Owner = Owner {
        uid: 1000,
        gid: 100,
    };

    fn foreign() -> Image {
        Image::default()
    }

    fn ours() -> Image {
        serde_json::from_str(r#"{"Entrypoint":["/usr/local/bin/sandbox-entrypoint"]}"#).unwrap()
    }

    #[test]
    fn under_an_allowlist_the_guest_is_never_root_by_default() {
        for (caller, workspace, user) in [
            (ME, Some(ROOT), "1000:100"),
            (ROOT, Some(ME), "1000:100"),
            (ROOT, Some(ROOT), "sandbox"),
            (ROOT, None, "sandbox"),
        ] {
            let decided = identity(None, caller, workspace, &foreign(), true);
            assert_eq!(
                decided,
                Ok(Identity::Entrypoint(user.into())),
                "{caller:?} {workspace:?}"
            );
        }
    }

    #[test]
    fn a_root_guest_is_refused_in_every_spelling_under_an_allowlist() {
        for user in ["0", "root", "0:1000", "00", "root:users"] {
            assert!(
                identity(Some(user), ME, None, &foreign(), true).is_err(),
                "{user}"
            );
            assert!(
                identity(Some(user), ME, None, &ours(), false).is_ok(),
                "{user}"
            );
        }
        assert_eq!(
            identity(Some("node"), ME, None, &foreign(), true),
            Ok(Identity::Entrypoint("node".into()))
        );
    }

    #[test]
    fn a_foreign_image_without_an_allowlist_is_left_to_the_engine() {
        assert_eq!(
            identity(None, ME, None, &foreign(), false),
            Ok(Identity::Image)
        );
        assert_eq!(
            identity(Some("0"), ME, None, &foreign(), false),
            Ok(Identity::Engine("0".into()))
        );
        assert_eq!(
            identity(None, ME, None, &ours(), false),
            Ok(Identity::Entrypoint("1000:100".into()))
        );
    }
}
