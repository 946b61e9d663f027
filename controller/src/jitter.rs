//! Chance: back-off that does not come in step, and names that nobody else has.

use std::time::Duration;

fn random() -> u32 {
    let mut bytes = [0; 4];
    // Without the kernel's random numbers all would wait alike, which is no reason to stop.
    if getrandom::fill(&mut bytes).is_err() {
        return 1 << 31;
    }
    u32::from_le_bytes(bytes)
}

pub(crate) fn random_name() -> String {
    format!("{:08x}", random())
}

/// From three quarters of `pause` to five.
pub(crate) fn around(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + 0.5 * f64::from(random()) / f64::from(u32::MAX))
}

/// The pause before the attempt after `failures` of them: `first`, doubled each time, at most `longest`, not exactly.
pub(crate) fn back_off(failures: u32, first: Duration, longest: Duration) -> Duration {
    around(first.saturating_mul(1 << failures.min(20)).min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_have_an_end() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(60));
        for (failures, least, most) in
            [(0, 0.75, 1.25), (3, 6.0, 10.0), (10, 45.0, 75.0), (u32::MAX, 45.0, 75.0)]
        {
            let pause = back_off(failures, first, longest).as_secs_f64();
            assert!((least..=most).contains(&pause), "{failures}: {pause}");
        }
    }
}
