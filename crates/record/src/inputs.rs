//! How far what is known of media carries what was asked of them: the certificate of a cell's inputs, beside that of
//! its timing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which part of the requests lies inside what the sources of their medium cover, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoveredShare {
    /// There is a figure for such requests: reads or writes, at random or in sequence.
    pub kind: f64,
    /// And their size lies among those of such figures.
    pub size: f64,
    /// And so does the number of requests that were under way.
    pub depth: f64,
    /// Requests that had hardly any of the other kind, reads or writes, beside them. Sources measure one kind at a
    /// time.
    pub mix: f64,
    /// Requests of a known kind, size and depth.
    pub all: f64,
}

/// A value that its medium marks as an estimate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EstimateShare {
    /// As the medium's file calls it.
    pub name: String,
    /// The part of the device's time that rests on it, 0 to 1: so much longer all requests take together when it is
    /// half or double, whichever is slower.
    pub share: f64,
}

/// Of one device, from a sample of its requests in virtual time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceInputs {
    /// Requests that were looked at.
    pub requests: u64,
    pub covered: CoveredShare,
    /// The part of the device's time that rests on estimates, 0 to 1.
    pub estimated: f64,
    /// Which ones, those that matter most first.
    pub estimates: Vec<EstimateShare>,
    /// The same requests' time with every estimate at its faster half or double, over their time with the medium's
    /// values.
    pub time_if_fast: f64,
    /// And at its slower one.
    pub time_if_slow: f64,
}

/// Of a cell: its devices, each by the time that it was busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InputCertificate {
    pub verdict: InputVerdict,
    pub covered: CoveredShare,
    pub estimated: f64,
    pub estimates: Vec<EstimateShare>,
    pub time_if_fast: f64,
    pub time_if_slow: f64,
    /// How many times as long operations would take, at the most, if slow motion did not speed up what programs compute
    /// between their requests: on cores as fast as this host's. How fast the study's are, no source of the inputs says.
    /// Absent where it hardly matters, where it is unknown, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_time: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InputVerdict {
    /// The sources carry it.
    Known,
    /// Less than half of it is covered, more than half of the time rests on estimates, or the program's own time
    /// decides as much as the devices'.
    Uncertain,
}

/// Why less is known than it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownInput {
    /// Sources cover too little of the requests.
    Coverage,
    /// Too much of the devices' time rests on estimates.
    Estimates,
    /// How long the program computes on the study's machine is no value of any source, and matters.
    OwnTime,
}

impl InputVerdict {
    /// `known`, `uncertain`
    pub fn name(self) -> &'static str {
        match self {
            InputVerdict::Known => "known",
            InputVerdict::Uncertain => "uncertain",
        }
    }
}

/// Estimates that matter less than this are not named.
const MIN_SHARE: f64 = 0.01;

impl InputCertificate {
    /// The least part of the requests that sources must cover.
    pub const MIN_COVERED: f64 = 0.5;
    /// The most of the devices' time that may rest on estimates.
    pub const MAX_ESTIMATED: f64 = 0.5;
    /// Operations that would take so many times as long, or more, depend on a program's speed, which no source gives.
    pub const LIMIT_OWN_TIME: f64 = 1.25;

    /// Of devices, each with the time that it was busy; none where none is known.
    pub fn from_devices(devices: &[(f64, &DeviceInputs)]) -> Option<InputCertificate> {
        let devices: Vec<_> = devices.iter().filter(|(_, inputs)| inputs.requests > 0).collect();
        // Never 0, even of devices that were never busy: it is divided by.
        let busy: f64 = devices.iter().map(|(busy, _)| busy.max(1e-9)).sum();
        if devices.is_empty() {
            return None;
        }
        let mean = |value_of: &dyn Fn(&DeviceInputs) -> f64| {
            devices.iter().map(|(weight, inputs)| weight.max(1e-9) / busy * value_of(inputs)).sum::<f64>()
        };
        let covered = CoveredShare {
            kind: mean(&|one| one.covered.kind),
            size: mean(&|one| one.covered.size),
            depth: mean(&|one| one.covered.depth),
            mix: mean(&|one| one.covered.mix),
            all: mean(&|one| one.covered.all),
        };
        let mut names: Vec<&str> = Vec::new();
        for estimate in devices.iter().flat_map(|(_, inputs)| &inputs.estimates) {
            if !names.contains(&estimate.name.as_str()) {
                // In the order in which they come, so that equal shares are not shuffled.
                names.push(&estimate.name);
            }
        }
        let share_of = |name: &str| {
            mean(&|one| {
                one.estimates
                    .iter()
                    .find(|own_estimate| own_estimate.name == name)
                    .map_or(0.0, |own_estimate| own_estimate.share)
            })
        };
        let mut estimates: Vec<EstimateShare> = names
            .iter()
            .map(|name| EstimateShare { name: (*name).to_owned(), share: share_of(name) })
            .collect();
        estimates.retain(|estimate| estimate.share >= MIN_SHARE);
        estimates.sort_by(|a, b| b.share.total_cmp(&a.share));
        let certificate = InputCertificate {
            verdict: InputVerdict::Known,
            covered,
            estimated: mean(&|one| one.estimated),
            estimates,
            time_if_fast: mean(&|one| one.time_if_fast),
            time_if_slow: mean(&|one| one.time_if_slow),
            own_time: None,
        };
        Some(certificate.with_own_time(None))
    }

    /// The same with how many times as long operations would take, at the most, if programs computed no faster beside
    /// their devices than they do.
    pub fn with_own_time(mut self, own_time: Option<f64>) -> InputCertificate {
        self.own_time = own_time;
        self.verdict = match self.unknown().is_empty() {
            true => InputVerdict::Known,
            false => InputVerdict::Uncertain,
        };
        self
    }

    /// The part of the devices' time that rests on measured figures, 0 to 1: of requests like those that sources
    /// measured, and on values that are no estimates. No more can be said of the two together than the smaller.
    pub fn measured(&self) -> f64 {
        self.covered.all.min(1.0 - self.estimated).clamp(0.0, 1.0)
    }

    /// The unknown inputs; empty where all are known.
    pub fn unknown(&self) -> Vec<UnknownInput> {
        let all = [
            (UnknownInput::Coverage, self.covered.all < Self::MIN_COVERED),
            (UnknownInput::Estimates, self.estimated > Self::MAX_ESTIMATED),
            (UnknownInput::OwnTime, self.own_time.is_some_and(|times| times >= Self::LIMIT_OWN_TIME)),
        ];
        all.into_iter().filter(|(_, is_so)| *is_so).map(|(input, _)| input).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(all: f64, estimated: f64) -> DeviceInputs {
        let covered = CoveredShare { kind: 1.0, size: 1.0, depth: 1.0, mix: 1.0, all };
        let estimates = vec![EstimateShare { name: "read_latency_us".into(), share: estimated }];
        DeviceInputs {
            requests: 100,
            covered,
            estimated,
            estimates,
            time_if_fast: 0.5,
            time_if_slow: 1.0 + estimated,
        }
    }

    #[test]
    fn devices_count_by_the_time_that_they_were_busy() {
        let (known_device, guessed) = (device(1.0, 0.0), device(0.0, 1.0));
        let certificate = InputCertificate::from_devices(&[(3.0, &known_device), (1.0, &guessed)]).unwrap();
        assert_eq!((certificate.covered.all, certificate.estimated), (0.75, 0.25));
        assert_eq!(certificate.verdict, InputVerdict::Known);
        assert_eq!((certificate.estimates[0].share, certificate.time_if_slow), (0.25, 1.25));
        let certificate = InputCertificate::from_devices(&[(1.0, &known_device), (3.0, &guessed)]).unwrap();
        assert_eq!(certificate.verdict, InputVerdict::Uncertain);
        assert_eq!(InputCertificate::from_devices(&[(1.0, &DeviceInputs::default())]), None);
    }

    #[test]
    fn program_deciding_like_devices_is_an_unknown_input() {
        let certificate = |own_time| {
            InputCertificate::from_devices(&[(1.0, &device(1.0, 0.0))]).unwrap().with_own_time(own_time)
        };
        for (own_time, verdict) in [
            (None, InputVerdict::Known),
            (Some(1.24), InputVerdict::Known),
            (Some(1.25), InputVerdict::Uncertain),
            (Some(4.2), InputVerdict::Uncertain),
        ] {
            assert_eq!(certificate(own_time).verdict, verdict, "{own_time:?}");
        }
        assert_eq!(certificate(Some(1.6)).unknown(), [UnknownInput::OwnTime]);
        let unmeasured =
            InputCertificate::from_devices(&[(1.0, &device(0.0, 1.0))]).unwrap().with_own_time(Some(2.0));
        assert_eq!(
            unmeasured.unknown(),
            [UnknownInput::Coverage, UnknownInput::Estimates, UnknownInput::OwnTime]
        );
        assert!(certificate(None).unknown().is_empty());
    }

    #[test]
    fn measured_share_is_bounded_by_coverage_and_values() {
        let measured = |all, estimated| {
            InputCertificate::from_devices(&[(1.0, &device(all, estimated))]).unwrap().measured()
        };
        assert!((measured(0.9, 0.8) - 0.2).abs() < 1e-9);
        assert!((measured(0.1, 0.2) - 0.1).abs() < 1e-9);
        assert_eq!((measured(1.0, 0.0), measured(0.0, 1.0)), (1.0, 0.0));
    }

    /// As a version before this one wrote it.
    #[test]
    fn certificate_without_own_time_is_parsed() {
        let written = certificate_text();
        assert!(!written.contains("own_time"));
        let read: InputCertificate = serde_json::from_str(&written).unwrap();
        assert_eq!((read.own_time, read.verdict), (None, InputVerdict::Known));
        let complete = read.with_own_time(Some(1.5));
        let again: InputCertificate =
            serde_json::from_str(&serde_json::to_string(&complete).unwrap()).unwrap();
        assert_eq!(again, complete);
    }

    fn certificate_text() -> String {
        serde_json::to_string(&InputCertificate::from_devices(&[(1.0, &device(1.0, 0.0))]).unwrap()).unwrap()
    }
}
