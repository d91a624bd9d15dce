//! What the origins of one internet have to serve besides their own words.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

/// Files, and a program behind the SSH ports. Without any, an origin says what it was asked, and an
/// SSH port hangs up.
#[derive(Debug, Default)]
pub struct Site {
    /// The directory of files that every host serves.
    pub files: Option<PathBuf>,
    /// The program that speaks SSH on its standard input and output, and its arguments.
    pub ssh: Vec<String>,
}

/// What a site has at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// A file.
    File(Vec<u8>),
    /// Nothing, where there are files beside it.
    Nothing,
    /// The site has no such part.
    Elsewhere,
}

impl Site {
    /// What is at the path of a URL, with `index.html` for directories.
    pub(crate) fn read(&self, path: &str) -> Found {
        let relative = Path::new(path.trim_start_matches('/'));
        let first = relative.components().next();
        let (Some(files), Some(Component::Normal(part))) = (&self.files, first) else {
            return Found::Elsewhere;
        };
        if !files.join(part).exists() {
            return Found::Elsewhere;
        }
        let inside = |part| matches!(part, Component::Normal(_));
        if !relative.components().all(inside) {
            return Found::Nothing;
        }
        let file = files.join(relative);
        fs::read(&file)
            .or_else(|_| fs::read(file.join("index.html")))
            .map_or(Found::Nothing, Found::File)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_serves_its_files_and_nothing_beside_them() {
        let directory = tempfile::tempdir().unwrap();
        let files = directory.path().join("site");
        fs::create_dir_all(files.join("simple")).unwrap();
        fs::write(files.join("simple/index.html"), "list").unwrap();
        fs::write(files.join("one"), "1").unwrap();
        fs::write(directory.path().join("secret"), "2").unwrap();
        let site = Site {
            files: Some(files),
            ssh: Vec::new(),
        };
        let file = |text: &str| Found::File(text.as_bytes().to_vec());
        for (path, found) in [
            ("/one", file("1")),
            ("/simple/", file("list")),
            ("/simple", file("list")),
            ("/simple/two", Found::Nothing),
            ("/", Found::Elsewhere),
            ("/two", Found::Elsewhere),
            ("/../secret", Found::Elsewhere),
            ("/simple/../../secret", Found::Nothing),
        ] {
            assert_eq!(site.read(path), found, "{path}");
        }
    }

    #[test]
    fn a_site_without_files_serves_none() {
        assert_eq!(Site::default().read("/one"), Found::Elsewhere);
    }
}
