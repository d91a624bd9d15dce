//! Things that are dear to make, lent to one test at a time.

use std::sync::Mutex;

/// Lends values, and makes another when all are out: there come to be as many as tests run at once.
#[derive(Debug)]
pub struct Pool<T> {
    idle: Mutex<Vec<T>>,
    make: fn() -> anyhow::Result<T>,
}

impl<T> Pool<T> {
    /// An empty pool. Its values go when it is dropped.
    pub const fn new(make: fn() -> anyhow::Result<T>) -> Self {
        Self {
            idle: Mutex::new(Vec::new()),
            make,
        }
    }

    /// Lends a value to `work`. One whose work failed is not lent again: who knows what is left in
    /// it.
    pub fn with<R>(&self, work: impl FnOnce(&T) -> anyhow::Result<R>) -> anyhow::Result<R> {
        let idle = self.idle.lock().ok().and_then(|mut idle| idle.pop());
        let value = match idle {
            Some(value) => value,
            None => (self.make)()?,
        };
        let result = work(&value)?;
        if let Ok(mut idle) = self.idle.lock() {
            idle.push(value);
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use anyhow::bail;

    use super::*;

    static MADE: AtomicU32 = AtomicU32::new(0);

    #[test]
    fn a_value_is_lent_again_unless_its_work_failed() {
        let pool = Pool::new(|| Ok(MADE.fetch_add(1, Ordering::Relaxed)));
        assert_eq!(pool.with(|n| Ok(*n)).unwrap(), 0);
        assert_eq!(pool.with(|n| Ok(*n)).unwrap(), 0);
        assert!(pool.with::<()>(|n| bail!("failed with {n}")).is_err());
        assert_eq!(pool.with(|n| Ok(*n)).unwrap(), 1);
    }
}
