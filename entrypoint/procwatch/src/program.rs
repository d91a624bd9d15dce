#![expect(unsafe_code, reason = "advice on memory has no safe call")]
//! The program of this process, as far as it is mapped (proc(5), `/proc/PID/smaps`; madvise(2)).

use std::{ffi::c_void, fs, io, ops::Range};

use rustix::mm::{Advice, madvise};

/// Where the code of this program is mapped, all of it as in its file.
#[derive(Debug)]
pub struct Program {
    text: Range<usize>,
}

impl Program {
    /// Looks for it.
    ///
    /// # Errors
    /// Where the kernel does not tell what is mapped, or somebody has changed it.
    pub fn find() -> io::Result<Self> {
        let smaps = fs::read_to_string("/proc/self/smaps")?;
        let text = text(&smaps, here().addr()).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { text })
    }

    /// Lets go of the pages that were needed until now: starting takes most of what a program can do,
    /// and staying little of it. What is needed again comes back from the page cache.
    pub fn release(&self) {
        let start = here().with_addr(self.text.start).cast_mut();
        // SAFETY: the range is of whole pages and one mapping, of a file, which nobody may write, and
        // of which no page was changed: whatever is read there again is what was there before.
        // What is kept all the same costs memory, and nothing else.
        let _ = unsafe { madvise(start, self.text.len(), Advice::LinuxDontNeed) };
    }
}

/// An address in it.
fn here() -> *const c_void {
    Program::find as fn() -> io::Result<Program> as *const c_void
}

/// The mapping of code that has this address, if all of it is as in its file.
fn text(smaps: &str, address: usize) -> Option<Range<usize>> {
    let mut lines = smaps.lines();
    let found = lines.find_map(|line| mapping(line).filter(|range| range.contains(&address)))?;
    // Fields have a colon at the end of their name; the next mapping's first line has none.
    let mut fields = lines.take_while(|line| mapping(line).is_none());
    let changed = fields.find_map(|line| line.strip_prefix("Anonymous:"))?;
    (changed.trim() == "0 kB").then_some(found)
}

/// The addresses in the first line of a mapping of a file's code.
fn mapping(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let range = number(start)?..number(end)?;
    (words.next()? == "r-xp" && words.nth(2)? != "0").then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KiB of the code that has this address.
    fn resident(address: usize) -> u64 {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps.lines();
        let is_found = |line: &&str| mapping(line).is_some_and(|range| range.contains(&address));
        lines.find(is_found).unwrap();
        let size = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        size.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn what_is_not_needed_is_gone_and_what_is_comes_back() {
        let here = here().addr();
        let program = Program::find().unwrap();
        let before = resident(here);
        program.release();
        let after = resident(here);
        assert!(after < before, "{after} of {program:?} after {before}");
    }

    const SMAPS: &str = "\
1000-3000 r--p 00000000 fd:01 77 /bin/program
Anonymous:             0 kB
3000-7000 r-xp 00002000 fd:01 77 /bin/program
Rss:                  16 kB
Anonymous:             0 kB
VmFlags: rd ex mr
7000-9000 rw-p 00006000 fd:01 77 /bin/program
Anonymous:             8 kB
";

    #[test]
    fn the_code_is_found_by_an_address_in_it() {
        assert_eq!(text(SMAPS, 0x3000), Some(0x3000..0x7000));
        for elsewhere in [0, 0x1000, 0x7000, 0x8fff] {
            assert_eq!(text(SMAPS, elsewhere), None);
        }
    }

    #[test]
    fn code_that_was_changed_or_is_in_no_file_is_kept() {
        let changed = SMAPS.replacen(
            "16 kB\nAnonymous:             0",
            "16 kB\nAnonymous:             4",
            1,
        );
        let nowhere = SMAPS.replace("fd:01 77", "00:00 0");
        let untold = SMAPS.replacen("16 kB\nAnonymous:             0 kB\n", "16 kB\n", 1);
        for smaps in [changed, nowhere, untold] {
            assert_eq!(text(&smaps, 0x3000), None, "{smaps}");
        }
    }
}
