//! The master's metrics of the cluster, as Dropwizard's JSON.

use std::net::SocketAddr;

use serde_json::Value;

use crate::network_namespace::NetworkNamespace;
use crate::system::SystemError;
use crate::web::get_json;

const PATH: &str = "/metrics/json/";

/// Since its start. Clients themselves report what they read and wrote past the worker, a second later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AlluxioMetrics {
    /// The bytes that clients read, cached or fetched for them,
    pub read_bytes: u64,
    /// and what it fetched.
    pub fetched_bytes: u64,
    pub written_bytes: u64,
    pub stored_bytes: u64,
    /// Files that wait to be stored.
    pub waiting_files: u64,
    pub used_bytes: u64,
}

impl AlluxioMetrics {
    pub(super) fn ask(
        system: &'static str,
        namespace: &NetworkNamespace,
        address: SocketAddr,
        during: &'static str,
    ) -> Result<AlluxioMetrics, SystemError> {
        let answer = get_json(namespace, address, PATH).map_err(|error| {
            SystemError::failed(
                system,
                during,
                format!("Alluxio's master does not report its metrics: {error}"),
            )
        })?;
        Ok(AlluxioMetrics::from_json(&answer))
    }

    fn from_json(answer: &Value) -> AlluxioMetrics {
        let number = |name: &str| {
            let gauge = answer["gauges"][name]["value"].as_f64();
            let counter = || answer["counters"][name]["count"].as_f64();
            gauge.or_else(counter).unwrap_or(0.0).max(0.0) as u64
        };
        let sum = |counter_name: &str| -> u64 {
            ["Local", "Domain", "Remote"]
                .iter()
                .map(|way| number(&format!("Cluster.{counter_name}{way}")))
                .sum()
        };
        AlluxioMetrics {
            read_bytes: sum("BytesRead"),
            fetched_bytes: number("Cluster.BytesReadUfsAll"),
            written_bytes: sum("BytesWritten"),
            stored_bytes: number("Cluster.BytesWrittenUfsAll"),
            waiting_files: number("Master.FilesToBePersisted"),
            used_bytes: number("Cluster.CapacityUsed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn gauges_and_counters_are_found_by_name() {
        let answer = json!({
            "gauges": { "Cluster.BytesReadUfsAll": { "value": 7 }, "Master.FilesToBePersisted": { "value": 2 } },
            "counters": { "Cluster.BytesReadLocal": { "count": 5 }, "Cluster.BytesReadRemote": { "count": 6 } }
        });
        let figures = AlluxioMetrics::from_json(&answer);
        assert_eq!((figures.read_bytes, figures.fetched_bytes, figures.waiting_files), (11, 7, 2));
    }

    proptest! {
        #[test]
        fn arbitrary_answer_never_panics(text in any::<String>(), number in any::<f64>()) {
            let _ = AlluxioMetrics::from_json(&Value::String(text));
            let answer = json!({ "gauges": { "Cluster.BytesReadUfsAll": { "value": number } } });
            let _ = AlluxioMetrics::from_json(&answer);
        }
    }
}
