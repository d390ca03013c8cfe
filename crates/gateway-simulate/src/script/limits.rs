//! A script's limits: more would take all of the host's memory, or years of virtual time.

use super::{ClientOperation, ScriptPart, ScriptStep, SimulationScript};

const MAX_GATEWAYS: usize = 8;
const MAX_CLIENTS: usize = 64;
const MAX_STEPS: usize = 5000;
const MAX_OBJECT_BYTES: u64 = 64 << 20;
const MAX_COUNT: u64 = 200_000;
const MAX_DURATION_MS: u64 = 24 * 3600 * 1000;
/// A wall clock's jump, in either direction.
const MAX_JUMP_MS: u64 = 10 * 366 * 24 * 3600 * 1000;

fn within(field: &str, number: impl TryInto<u64>, most: u64) -> Result<(), String> {
    match number.try_into() {
        Ok(number) if number <= most => Ok(()),
        _ => Err(format!("{field} is more than {most}")),
    }
}

impl SimulationScript {
    /// Reads a script that can be played.
    ///
    /// # Errors
    /// The mistake, and where it is.
    pub fn parse(text: &str) -> Result<SimulationScript, String> {
        let script: SimulationScript = serde_json::from_str(text)
            .map_err(|error| format!("it is not a script: {error} (`show` prints one)"))?;
        script.check()?;
        Ok(script)
    }

    fn check(&self) -> Result<(), String> {
        let setup = &self.setup;
        if setup.gateways == 0 || setup.clients == 0 {
            return Err("setup.gateways and setup.clients are 1 or more".to_owned());
        }
        within("setup.gateways", setup.gateways, MAX_GATEWAYS as u64)?;
        within("setup.clients", setup.clients, MAX_CLIENTS as u64)?;
        within("the number of steps", self.steps.len(), MAX_STEPS as u64)?;
        for (_, size) in &setup.store.before {
            within("a size in setup.store.before", *size, MAX_OBJECT_BYTES)?;
        }
        for (index, step) in self.steps.iter().enumerate() {
            step.check().map_err(|reason| format!("steps[{index}]: {reason}"))?;
        }
        Ok(())
    }
}

impl ScriptStep {
    fn check(&self) -> Result<(), String> {
        match self {
            ScriptStep::Do { operation, .. } => operation.check(),
            ScriptStep::Wait { ms } => within("ms", *ms, MAX_DURATION_MS),
            ScriptStep::JumpClock { ms, .. } => within("ms", ms.unsigned_abs(), MAX_JUMP_MS),
            ScriptStep::Store(faults) => within("late_ms", faults.late_ms, MAX_DURATION_MS)
                .and_then(|()| within("stall_ms", faults.stall_ms, MAX_DURATION_MS)),
            // The numbers of gateways are taken modulo their count, and the configuration checks itself.
            _ => Ok(()),
        }
    }
}

impl ClientOperation {
    fn check(&self) -> Result<(), String> {
        match self {
            ClientOperation::Put { size, .. } | ClientOperation::Others { size: Some(size), .. } => {
                within("size", *size, MAX_OBJECT_BYTES)
            }
            ClientOperation::Upload { parts, .. } => parts.iter().try_for_each(|part| match part {
                ScriptPart::Bytes { size } | ScriptPart::Copied { size, .. } => {
                    within("size", *size, MAX_OBJECT_BYTES)
                }
            }),
            ClientOperation::Many { count }
            | ClientOperation::Begin { count, .. }
            | ClientOperation::Forged { count, .. }
            | ClientOperation::Idle { connections: count, .. } => within("count", *count, MAX_COUNT),
            ClientOperation::Probe { within_ms: ms, .. } => within("ms", *ms, MAX_DURATION_MS),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::generate;

    #[test]
    fn generated_scripts_are_within_limits() {
        for seed in 0..300 {
            let script = generate(seed, None);
            assert_eq!(SimulationScript::parse(&serde_json::to_string(&script).unwrap()), Ok(script));
        }
    }

    #[test]
    fn endless_script_is_refused() {
        let error_of = |change: fn(&mut SimulationScript)| {
            let mut script = generate(1, None);
            change(&mut script);
            SimulationScript::parse(&serde_json::to_string(&script).unwrap()).unwrap_err()
        };
        assert!(error_of(|script| script.setup.gateways = 0).contains("1 or more"));
        assert!(
            error_of(|script| script.setup.clients = 1_000_000).contains("setup.clients is more than 64")
        );
        assert!(
            error_of(|script| script.steps[0] = ScriptStep::Wait { ms: u64::MAX })
                .contains("steps[0]: ms is more")
        );
        assert!(
            error_of(|script| script.steps[0] = ScriptStep::JumpClock { gateway: 0, ms: i64::MIN })
                .contains("ms is")
        );
        let put = |script: &mut SimulationScript| {
            script.steps[0] = ScriptStep::Do {
                client: 0,
                operation: ClientOperation::Others { key: 0, size: Some(u32::MAX) },
            };
        };
        assert!(error_of(put).contains("size is more"));
    }
}
