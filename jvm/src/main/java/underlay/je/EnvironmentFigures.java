package underlay.je;

import java.util.HashMap;
import java.util.Map;

import com.sleepycat.je.Environment;
import com.sleepycat.je.EnvironmentStats;
import com.sleepycat.je.StatsConfig;

/** What an environment counts, by our names. */
final class EnvironmentFigures {
    /** Only what is counted anyway: the rest would walk through the cache. */
    private static final StatsConfig FAST = new StatsConfig().setFast(true);

    private EnvironmentFigures() {
    }

    static Map<String, Double> all(Environment environment) {
        EnvironmentStats stats = environment.getStats(FAST);
        Map<String, Double> figures = gauges(stats);
        put(figures, "cache_misses", stats.getNCacheMiss());
        put(figures, "record_fetches", stats.getNLNsFetch());
        put(figures, "record_fetch_misses", stats.getNLNsFetchMiss());
        put(figures, "leaf_fetches", stats.getNBINsFetch());
        put(figures, "leaf_fetch_misses", stats.getNBINsFetchMiss());
        put(figures, "inner_node_fetches", stats.getNUpperINsFetch());
        put(figures, "inner_node_fetch_misses", stats.getNUpperINsFetchMiss());
        put(figures, "evicted_nodes", stats.getNNodesEvicted());
        put(figures, "evicted_dirty_nodes", stats.getNDirtyNodesEvicted());
        put(figures, "evicted_records", stats.getNLNsEvicted());
        put(figures, "cleaned_files", stats.getNCleanerRuns());
        put(figures, "deleted_files", stats.getNCleanerDeletions());
        put(figures, "cleaner_entries_read", stats.getNCleanerEntriesRead());
        put(figures, "cleaner_disk_reads", stats.getNCleanerDiskRead());
        put(figures, "cleaner_migrated_records", stats.getNLNsMigrated());
        put(figures, "cleaner_migrated_nodes", stats.getNINsMigrated());
        put(figures, "checkpoints", stats.getNCheckpoints());
        put(figures, "checkpoint_written_nodes", stats.getNFullINFlush());
        put(figures, "checkpoint_written_deltas", stats.getNDeltaINFlush());
        put(figures, "log_fsyncs", stats.getNLogFSyncs());
        put(figures, "commit_fsyncs", stats.getNFSyncs());
        put(figures, "commit_fsync_requests", stats.getNFSyncRequests());
        put(figures, "log_writes", stats.getNSequentialWrites() + stats.getNRandomWrites());
        put(figures, "log_written_bytes", stats.getNSequentialWriteBytes() + stats.getNRandomWriteBytes());
        put(figures, "log_reads", stats.getNSequentialReads() + stats.getNRandomReads());
        put(figures, "log_read_bytes", stats.getNSequentialReadBytes() + stats.getNRandomReadBytes());
        put(figures, "lock_waits", stats.getNWaits());
        // Negative until the cleaner has looked for the first time.
        if (stats.getCurrentMinUtilization() >= 0) {
            put(figures, "current_log_utilization_percent", stats.getCurrentMinUtilization());
        }
        return figures;
    }

    static Map<String, Double> gauges(Environment environment) {
        return gauges(environment.getStats(FAST));
    }

    private static Map<String, Double> gauges(EnvironmentStats stats) {
        Map<String, Double> figures = new HashMap<>();
        put(figures, "current_cache_bytes", stats.getCacheTotalBytes());
        put(figures, "current_log_bytes", stats.getTotalLogSize());
        put(figures, "current_active_log_bytes", stats.getActiveLogSize());
        put(figures, "current_reserved_log_bytes", stats.getReservedLogSize());
        return figures;
    }

    static void put(Map<String, Double> figures, String name, long number) {
        figures.put(name, (double) number);
    }
}
