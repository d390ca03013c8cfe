//! Jobs with a cache between them and the store.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use underlay_record::CacheUse;

use super::super::NAME;
use super::super::cache::{CacheTotals, RunningCache, StoreTraffic, url};
use super::super::committer::OutputCommitter;
use super::super::jobs::DriverRequest;
use super::SparkCluster;
use crate::system::{JobProgress, JobRequest, JobWatch, SystemError, SystemResources};
use crate::tun_link::FAR;

/// A job that has ended, and whose output the cache may still have to store.
#[derive(Debug)]
pub(super) struct UndrainedJob {
    pub before: CacheTotals,
    pub at_end: CacheTotals,
    pub ended: Instant,
    /// The same, in seconds since 1970.
    pub ended_s: f64,
    /// The traffic between the cache and the store until then.
    pub traffic: StoreTraffic,
}

impl SparkCluster {
    /// Puts another cache between all further jobs and the store, or none: what settings that start with `cache` say of
    /// it. Earlier data is written again for jobs that read it.
    ///
    /// # Errors
    /// When the settings are wrong, the former cache can't store everything or stop, or the new one does not start.
    pub fn set_cache(
        &mut self,
        values: &BTreeMap<String, String>,
        resources: &SystemResources,
        limit: Duration,
    ) -> Result<(), SystemError> {
        let mut wanted = self.config.clone();
        wanted.set_cache(values).map_err(|mistakes| SystemError::first_mistake(NAME, mistakes))?;
        self.drain("changing the cache", limit, &|_| true)?;
        let stopped = self.cache.take().map_or(Ok(()), RunningCache::stop);
        self.state.get_mut().forget_caches();
        stopped?;
        self.config = wanted;
        self.start_cache(resources, limit)
    }

    /// Lets go of a cache that has ended by itself, with its unstored data.
    pub fn abandon_cache(&mut self) {
        self.cache = None;
        self.state.get_mut().forget_caches();
    }

    /// Starts the cache that the settings ask for, in front of a bucket that is there.
    pub(in super::super) fn start_cache(
        &mut self,
        resources: &SystemResources,
        limit: Duration,
    ) -> Result<(), SystemError> {
        let address = if self.remote.is_some() { FAR } else { Ipv4Addr::LOCALHOST };
        let Some(kind) = self.config.cache else { return Ok(()) };
        // Without these two its settings were refused.
        if let Some((bucket, namespace)) = self.store.bucket(address).zip(self.namespace.as_ref()) {
            let started = self.caches.start(kind, &self.config, bucket, namespace, resources, limit)?;
            self.cache = Some(started);
        }
        Ok(())
    }

    /// The URL of what jobs call `name`.
    pub(super) fn url(&self, name: &str) -> String {
        self.cache.as_ref().map_or_else(|| self.store.url(name), |cache| url(cache.kind(), name))
    }

    /// The committer for what jobs only read later on: the quickest that is safe.
    pub(super) fn committer_of_inputs(&self) -> OutputCommitter {
        match &self.cache {
            // A rename is an entry in a table there.
            Some(_) => OutputCommitter::FileV1,
            None => self.store.committer_of_inputs(),
        }
    }

    /// Waits until the store has all that the cache has acknowledged.
    pub(super) fn drain(
        &self,
        during: &'static str,
        limit: Duration,
        watch: JobWatch<'_>,
    ) -> Result<(), SystemError> {
        let Some(cache) = &self.cache else { return Ok(()) };
        let healthy = || self.is_wanted(during, "storing", watch);
        cache.drain(during, &self.driver, limit, &healthy)
    }

    /// The cache's totals and unstored bytes as a job ends; `None` without one.
    pub(super) fn totals_at_end(
        &self,
        during: &'static str,
        limit: Duration,
        watch: JobWatch<'_>,
    ) -> Result<Option<CacheTotals>, SystemError> {
        let Some(cache) = &self.cache else { return Ok(None) };
        let healthy = || self.is_wanted(during, "storing", watch);
        cache.totals_at_end(during, &self.driver, limit, &healthy).map(Some)
    }

    /// Whether all is well and the watching caller wants to go on.
    pub(super) fn is_wanted(
        &self,
        during: &'static str,
        phase: &str,
        watch: JobWatch<'_>,
    ) -> Result<(), SystemError> {
        self.check(during)?;
        match watch(&JobProgress { phase: phase.to_owned(), done: 1.0 }) {
            true => self.store.health(),
            false => Err(SystemError::failed(NAME, during, "it was stopped")),
        }
    }

    /// Waits until the store has everything, and closes the account of the last job's cache: what the store is asked
    /// for from then on is no part of it.
    pub(super) fn close_account(
        &self,
        during: &'static str,
        limit: Duration,
        watch: JobWatch<'_>,
    ) -> Result<(), SystemError> {
        self.drain(during, limit, watch)?;
        let undrained = self.state.lock().undrained.take();
        let Some((cache, undrained)) = self.cache.as_ref().zip(undrained) else { return Ok(()) };
        // Others may have had this wait before it looked.
        let looked_after = undrained.ended.elapsed();
        std::thread::sleep(cache.told_after());
        let drained = cache.totals(during)?;
        let state = &mut *self.state.lock();
        let late = StoreTraffic::from_requests(&self.requests_so_far(during, state)?);
        let traffic = undrained.traffic.and(late);
        let drain = match undrained.at_end.has_stored_all() {
            true => Duration::ZERO,
            false => traffic
                .stored_after(undrained.ended_s)
                .map_or(looked_after, |stored| stored.min(looked_after)),
        };
        state.used = Some(cache.used([&undrained.before, &undrained.at_end, &drained], traffic, drain));
        Ok(())
    }

    /// The last job's use of the cache, once the store has everything.
    pub(super) fn drained(
        &self,
        job: &JobRequest,
        watch: JobWatch<'_>,
    ) -> Result<Option<CacheUse>, SystemError> {
        let step = DriverRequest::from_job(&self.config, job)?;
        self.close_account(step.during, job.limit, watch)?;
        Ok(self.state.lock().used.take())
    }
}
