//! How deep in the tree of names the names of a list are, so that no other depth is searched.

use std::iter;

/// A set of numbers of labels; a name has at most 127.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Depths(u128);

impl Depths {
    /// Adds the depth of this name.
    pub(crate) fn insert(&mut self, name: &str) {
        self.0 |= bit(dots(name) + 1);
    }

    /// The domains above this name that are at one of these depths, the nearest first.
    pub(crate) fn above(self, name: &str) -> impl Iterator<Item = &str> {
        let depths = (1..=dots(name)).rev();
        ancestors(name)
            .zip(depths)
            .filter(move |(_, depth)| self.0 & bit(*depth) != 0)
            .map(|(name, _)| name)
    }
}

fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    iter::successors(parent(name), |name| parent(name))
}

fn parent(name: &str) -> Option<&str> {
    name.split_once('.').map(|(_, parent)| parent)
}

fn dots(name: &str) -> u32 {
    name.bytes().map(|byte| u32::from(byte == b'.')).sum()
}

fn bit(depth: u32) -> u128 {
    1_u128.checked_shl(depth).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn above(depths: &[&str], name: &str) -> Vec<String> {
        let mut set = Depths::default();
        for name in depths {
            set.insert(name);
        }
        set.above(name).map(str::to_owned).collect()
    }

    #[test]
    fn only_the_depths_in_the_set_are_visited() {
        for (depths, name, expected) in [
            (vec!["x", "x.x", "x.x.x"], "a.b.c", vec!["b.c", "c"]),
            (vec!["x.x"], "a.b.c.d", vec!["c.d"]),
            (vec!["x.x.x", "x"], "a.b.c.d", vec!["b.c.d", "d"]),
            (vec!["x.x.x"], "a.b.c", vec![]),
            (vec![], "a.b.c", vec![]),
            (vec!["x"], "a", vec![]),
        ] {
            assert_eq!(above(&depths, name), expected, "{depths:?} above {name}");
        }
    }

    #[test]
    fn the_deepest_name_fits() {
        let name = ["a"; 127].join(".");
        assert_eq!(above(&[&name], &format!("b.{name}")), [name]);
    }
}
