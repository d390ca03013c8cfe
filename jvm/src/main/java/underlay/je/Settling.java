package underlay.je;

import java.time.Duration;

import com.sleepycat.je.CheckpointConfig;
import com.sleepycat.je.Environment;

/** Brings an environment to the state that measurements start from: cleaned, with a checkpoint at the end of its log. */
final class Settling {
    /** Migrated records make other files a little emptier, so that cleaning could go on for long with hardly any effect. */
    private static final int MAX_ROUNDS = 4;

    private Settling() {
    }

    static void settle(Environment environment, Duration limit) {
        long started = System.nanoTime();
        // A file that was cleaned can only be deleted behind a checkpoint.
        CheckpointConfig forced = new CheckpointConfig().setForce(true).setMinimizeRecoveryTime(true);
        environment.checkpoint(forced);
        for (int round = 0; round < MAX_ROUNDS; round++) {
            boolean any = false;
            while (environment.cleanLogFile()) {
                any = true;
                if (System.nanoTime() - started > limit.toNanos()) {
                    throw new IllegalStateException("the log is not yet cleaned after " + limit.toSeconds()
                            + " s: lower cleaner_min_utilization, or load less");
                }
            }
            if (!any) {
                break;
            }
            environment.checkpoint(forced);
        }
        environment.flushLog(true);
    }
}
