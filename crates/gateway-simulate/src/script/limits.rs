//! A script's limits: more would take all of the host's memory, or years of virtual time.

use super::{Operation, Part, Script, Step};

const MOST_GATEWAYS: usize = 8;
const MOST_CLIENTS: usize = 64;
const MOST_STEPS: usize = 5000;
const MOST_OBJECT_BYTES: u64 = 64 << 20;
const MOST_COUNT: u64 = 200_000;
const MOST_MS: u64 = 24 * 3600 * 1000;
/// A wall clock's jump, in either direction.
const MOST_JUMP_MS: u64 = 10 * 366 * 24 * 3600 * 1000;

fn within(what: &str, number: impl TryInto<u64>, most: u64) -> Result<(), String> {
    match number.try_into() {
        Ok(number) if number <= most => Ok(()),
        _ => Err(format!("{what} is more than {most}")),
    }
}

impl Script {
    /// Reads a script that can be played.
    ///
    /// # Errors
    /// The mistake, and where it is.
    pub fn parse(text: &str) -> Result<Script, String> {
        let script: Script = serde_json::from_str(text)
            .map_err(|error| format!("it is not a script: {error} (`show` prints one)"))?;
        script.check()?;
        Ok(script)
    }

    fn check(&self) -> Result<(), String> {
        let setup = &self.setup;
        if setup.gateways == 0 || setup.clients == 0 {
            return Err("setup.gateways and setup.clients are 1 or more".to_owned());
        }
        within("setup.gateways", setup.gateways, MOST_GATEWAYS as u64)?;
        within("setup.clients", setup.clients, MOST_CLIENTS as u64)?;
        within("the number of steps", self.steps.len(), MOST_STEPS as u64)?;
        for (_, size) in &setup.store.before {
            within("a size in setup.store.before", *size, MOST_OBJECT_BYTES)?;
        }
        for (at, step) in self.steps.iter().enumerate() {
            step.check().map_err(|why| format!("steps[{at}]: {why}"))?;
        }
        Ok(())
    }
}

impl Step {
    fn check(&self) -> Result<(), String> {
        match self {
            Step::Do { operation, .. } => operation.check(),
            Step::Wait { ms } => within("ms", *ms, MOST_MS),
            Step::JumpClock { ms, .. } => within("ms", ms.unsigned_abs(), MOST_JUMP_MS),
            Step::Store(faults) => within("late_ms", faults.late_ms, MOST_MS)
                .and_then(|()| within("stall_ms", faults.stall_ms, MOST_MS)),
            // The numbers of gateways are taken modulo their count, and the configuration checks itself.
            _ => Ok(()),
        }
    }
}

impl Operation {
    fn check(&self) -> Result<(), String> {
        match self {
            Operation::Put { size, .. } | Operation::Others { size: Some(size), .. } => {
                within("size", *size, MOST_OBJECT_BYTES)
            }
            Operation::Upload { parts, .. } => parts.iter().try_for_each(|part| match part {
                Part::Bytes { size } | Part::Copied { size, .. } => within("size", *size, MOST_OBJECT_BYTES),
            }),
            Operation::Many { count }
            | Operation::Begin { count, .. }
            | Operation::Forged { count, .. }
            | Operation::Idle { connections: count, .. } => within("count", *count, MOST_COUNT),
            Operation::Probe { within_ms: ms, .. } => within("ms", *ms, MOST_MS),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::generate;

    #[test]
    fn what_is_drawn_can_be_played() {
        for seed in 0..300 {
            let script = generate(seed, None);
            assert_eq!(Script::parse(&serde_json::to_string(&script).unwrap()), Ok(script));
        }
    }

    #[test]
    fn what_has_no_end_is_refused() {
        let said = |change: fn(&mut Script)| {
            let mut script = generate(1, None);
            change(&mut script);
            Script::parse(&serde_json::to_string(&script).unwrap()).unwrap_err()
        };
        assert!(said(|script| script.setup.gateways = 0).contains("1 or more"));
        assert!(said(|script| script.setup.clients = 1_000_000).contains("setup.clients is more than 64"));
        assert!(
            said(|script| script.steps[0] = Step::Wait { ms: u64::MAX }).contains("steps[0]: ms is more")
        );
        assert!(
            said(|script| script.steps[0] = Step::JumpClock { gateway: 0, ms: i64::MIN }).contains("ms is")
        );
        let put = |script: &mut Script| {
            script.steps[0] =
                Step::Do { client: 0, operation: Operation::Others { key: 0, size: Some(u32::MAX) } };
        };
        assert!(said(put).contains("size is more"));
    }
}
