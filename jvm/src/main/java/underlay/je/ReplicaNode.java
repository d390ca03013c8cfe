package underlay.je;

import java.io.File;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

import com.sleepycat.je.Database;
import com.sleepycat.je.DatabaseException;
import com.sleepycat.je.DatabaseNotFoundException;
import com.sleepycat.je.EnvironmentConfig;
import com.sleepycat.je.rep.InsufficientLogException;
import com.sleepycat.je.rep.InsufficientReplicasException;
import com.sleepycat.je.rep.NetworkRestore;
import com.sleepycat.je.rep.NetworkRestoreConfig;
import com.sleepycat.je.rep.NoConsistencyRequiredPolicy;
import com.sleepycat.je.rep.QuorumPolicy;
import com.sleepycat.je.rep.RepInternal;
import com.sleepycat.je.rep.ReplicatedEnvironment;
import com.sleepycat.je.rep.ReplicatedEnvironment.State;
import com.sleepycat.je.rep.ReplicationConfig;
import com.sleepycat.je.rep.RestartRequiredException;
import com.sleepycat.je.rep.StateChangeException;

import underlay.jvm.NotDone;

/**
 * A member of a replication group. JE closes an environment that has to roll back what others never got, or that lacks too much of
 * their log: it is opened again here, with a copy of another's files where that is needed.
 */
final class ReplicaNode {
    private static final long POLL_MS = 20;
    private static final long RETRY_MS = 1_000;

    private final File home;
    private final EnvironmentConfig environmentConfig;
    private final ReplicationConfig replicationConfig;
    private final AtomicLong elected = new AtomicLong();
    private final AtomicLong renewed = new AtomicLong();
    /** {@code null} while there is none. */
    private volatile ReplicatedEnvironment environment;
    private volatile Records.Store store;
    private volatile State state = State.UNKNOWN;
    private volatile boolean closing;

    ReplicaNode(Map<String, String> properties) {
        home = new File(Configuration.required(properties, "home"));
        environmentConfig = Configuration.environment(properties);
        replicationConfig = new ReplicationConfig();
        // Clients that want more read from the master. By default a replica would wait until it has heard of one.
        replicationConfig.setConsistencyPolicy(NoConsistencyRequiredPolicy.NO_CONSISTENCY);
        properties.forEach((name, value) -> {
            if (name.startsWith(Configuration.REPLICATION_PARAMETER)) {
                replicationConfig.setConfigParam(name, value);
            }
        });
    }

    /** Returns when the node is a member of its group and has the database. */
    void open() throws InterruptedException {
        ReplicatedEnvironment opened = joined();
        environment = opened;
        opened.setStateChangeListener(event -> {
            // An environment that has been replaced may still tell of its end.
            if (environment == opened) {
                state = event.getState();
                if (event.getState().isMaster()) {
                    elected.incrementAndGet();
                }
            }
        });
        store = new Records.Store(opened, database(opened));
    }

    /** Opens the environment again whenever JE has closed it. */
    void keepOpen() {
        Thread keeper = new Thread(() -> {
            try {
                while (!closing) {
                    Thread.sleep(POLL_MS);
                    if (environment != null && !environment.isValid() && !closing) {
                        renew();
                    }
                }
            } catch (InterruptedException ending) {
                // The process ends.
            }
        }, "keeper");
        keeper.setDaemon(true);
        keeper.start();
    }

    private synchronized void renew() throws InterruptedException {
        System.err.println("opening the environment again");
        state = State.UNKNOWN;
        while (!closing) {
            closeAll();
            try {
                open();
                renewed.incrementAndGet();
                return;
            } catch (RuntimeException problem) {
                System.err.println("can't open the environment again yet: " + problem);
                Thread.sleep(RETRY_MS);
            }
        }
    }

    private ReplicatedEnvironment joined() {
        while (true) {
            try {
                return new ReplicatedEnvironment(home, replicationConfig, environmentConfig,
                        NoConsistencyRequiredPolicy.NO_CONSISTENCY, QuorumPolicy.SIMPLE_MAJORITY);
            } catch (InsufficientLogException behind) {
                System.err.println("copying the files of another member");
                new NetworkRestore().execute(behind, new NetworkRestoreConfig());
            } catch (RestartRequiredException rolledBack) {
                System.err.println("rolled back: " + rolledBack.getMessage());
            }
        }
    }

    /** The master creates it; the others get it with all other data. */
    private Database database(ReplicatedEnvironment opened) throws InterruptedException {
        while (true) {
            try {
                boolean isMaster = opened.getState().isMaster();
                return opened.openDatabase(null, Configuration.DATABASE, Configuration.database().setAllowCreate(isMaster));
            } catch (DatabaseNotFoundException | StateChangeException | InsufficientReplicasException notYet) {
                Thread.sleep(POLL_MS);
            }
        }
    }

    /** What clients use. */
    Records.Store store() throws NotDone {
        Records.Store present = store;
        if (present == null) {
            throw new NotDone("the node is not open");
        }
        return present;
    }

    /** The same, where only a master will do. */
    Records.Store masters() throws NotDone {
        if (!state.isMaster()) {
            throw new NotDone("the node is not the master");
        }
        return store();
    }

    boolean isMaster() {
        return state.isMaster();
    }

    long elected() {
        return elected.get();
    }

    long renewed() {
        return renewed.get();
    }

    ReplicatedEnvironment environment() throws NotDone {
        ReplicatedEnvironment present = environment;
        if (present == null) {
            throw new NotDone("the node is not open");
        }
        return present;
    }

    /** The number of the last entry of the group's log that this node has. */
    long lastEntry() throws NotDone {
        return RepInternal.getNonNullRepImpl(environment()).getVLSNIndex().getRange().getLast().getSequence();
    }

    /** Makes that node the master, as soon as it has everything. */
    void transferMaster(String name, long limitMs) throws NotDone {
        environment().transferMaster(Set.of(name), (int) Math.min(limitMs, Integer.MAX_VALUE), TimeUnit.MILLISECONDS);
    }

    void close() {
        closing = true;
        synchronized (this) {
            Records.Store closed = store;
            ReplicatedEnvironment ended = environment;
            store = null;
            environment = null;
            if (closed != null) {
                closed.database().close();
            }
            if (ended != null) {
                ended.close();
            }
        }
    }

    private void closeAll() {
        Records.Store closed = store;
        ReplicatedEnvironment ended = environment;
        store = null;
        environment = null;
        try {
            if (closed != null) {
                closed.database().close();
            }
        } catch (DatabaseException | IllegalStateException invalid) {
            // So is the environment.
        }
        try {
            if (ended != null) {
                ended.close();
            }
        } catch (DatabaseException | IllegalStateException invalid) {
            // JE has closed it already.
        }
    }
}
