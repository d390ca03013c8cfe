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
import com.sleepycat.je.EnvironmentFailureException;
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
import com.sleepycat.je.rep.RollbackProhibitedException;
import com.sleepycat.je.rep.StateChangeException;

import underlay.jvm.NotDone;

/**
 * A member of a replication group. JE closes an environment that has to roll back what others never got, or that lacks too much of
 * their log: it is opened again here, with a copy of another member's files where that is needed. After any other failure, or if
 * that fails again and again, the process ends.
 */
final class ReplicaNode {
    private static final long POLL_MS = 20;
    /** How often opening may fail. With the pauses between, that is half a minute at least. */
    private static final int MAX_ATTEMPTS = 8;
    private static final long FIRST_PAUSE_MS = 500;
    private static final long MAX_PAUSE_MS = 8_000;
    /** Of files that JE's copying has replaced. */
    private static final String REPLACED_SUFFIX = ".bup";

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
    /** Not while it is opened again, which has been so since {@code closedAtNs}. */
    private volatile boolean isOpen = true;
    private volatile long closedAtNs;

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
        deleteReplacedFiles();
        ReplicatedEnvironment opened = joined();
        synchronized (this) {
            if (closing) {
                opened.close();
                return;
            }
            environment = opened;
        }
        opened.setStateChangeListener(event -> {
            // An environment that has been replaced may still tell of its end.
            if (environment == opened) {
                state = event.getState();
                if (event.getState().isMaster()) {
                    elected.incrementAndGet();
                }
            }
        });
        Database database = database(opened);
        synchronized (this) {
            if (environment == opened) {
                store = new Records.Store(opened, database);
            }
        }
    }

    /** Opens the environment again where JE has closed it for that. The process ends if it can't be opened any more. */
    void keepOpen() {
        Thread keeper = new Thread(() -> {
            try {
                while (!closing) {
                    Thread.sleep(POLL_MS);
                    ReplicatedEnvironment present = environment;
                    if (present != null && !present.isValid() && !closing) {
                        renew(present);
                    }
                }
            } catch (InterruptedException ending) {
                // The process ends.
            } catch (Throwable problem) {
                endWith(problem);
            }
        }, "keeper");
        keeper.setDaemon(true);
        keeper.start();
    }

    private void endWith(Throwable problem) {
        // Where the process ends in order, closing says what went wrong.
        if (!closing) {
            problem.printStackTrace();
            System.err.println("the member ends, since its environment can't be kept open: " + problem);
            System.exit(1);
        }
    }

    private void renew(ReplicatedEnvironment invalid) throws InterruptedException {
        closedAtNs = System.nanoTime();
        isOpen = false;
        state = State.UNKNOWN;
        EnvironmentFailureException cause = RepInternal.getNonNullRepImpl(invalid).getInvalidatingException();
        System.err.println("JE has closed the environment: " + cause);
        if (!(cause instanceof RestartRequiredException) || cause instanceof RollbackProhibitedException) {
            throw new IllegalStateException("it has failed: " + cause, cause);
        }
        long pauseMs = FIRST_PAUSE_MS;
        for (int attempt = 1; !closing; attempt++) {
            release();
            try {
                open();
                renewed.incrementAndGet();
                isOpen = true;
                return;
            } catch (RuntimeException problem) {
                if (attempt == MAX_ATTEMPTS) {
                    throw problem;
                }
                System.err.println("can't open the environment again yet: " + problem);
                Thread.sleep(pauseMs);
                pauseMs = Math.min(2 * pauseMs, MAX_PAUSE_MS);
            }
        }
    }

    private ReplicatedEnvironment joined() {
        for (int attempt = 1;; attempt++) {
            try {
                return new ReplicatedEnvironment(home, replicationConfig, environmentConfig,
                        NoConsistencyRequiredPolicy.NO_CONSISTENCY, QuorumPolicy.SIMPLE_MAJORITY);
            } catch (RollbackProhibitedException never) {
                throw never;
            } catch (RestartRequiredException notYet) {
                if (attempt == MAX_ATTEMPTS) {
                    throw notYet;
                }
                if (notYet instanceof InsufficientLogException behind) {
                    System.err.println("copying the files of another member");
                    // Those that are replaced would fill the storage.
                    new NetworkRestore().execute(behind, new NetworkRestoreConfig().setRetainLogFiles(false));
                } else {
                    System.err.println("opening the environment once more: " + notYet.getMessage());
                }
            }
        }
    }

    /** Log files that a copy of another member's has replaced, and that JE has only renamed. */
    private void deleteReplacedFiles() {
        File[] replaced = home.listFiles((folder, name) -> name.endsWith(REPLACED_SUFFIX));
        for (File file : replaced == null ? new File[0] : replaced) {
            if (!file.delete()) {
                System.err.println("can't delete " + file);
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

    /** Fails if the environment has been closed for longer than {@code limitMs}. */
    void checkOpen(long limitMs) {
        if (isOpen) {
            return;
        }
        long closedMs = (System.nanoTime() - closedAtNs) / 1_000_000;
        if (closedMs > limitMs) {
            throw new IllegalStateException(replicationConfig.getNodeName() + ": its environment has been closed for "
                    + closedMs / 1000 + " s and can't be opened again; its log says why");
        }
    }

    /** Closes everything that is open, in any state. An environment that is just being opened is left to the end of the
     * process. */
    void close() {
        closing = true;
        Records.Store closed;
        ReplicatedEnvironment ended;
        synchronized (this) {
            closed = store;
            ended = environment;
            store = null;
            environment = null;
        }
        try {
            if (closed != null) {
                closed.database().close();
            }
        } finally {
            if (ended != null) {
                ended.close();
            }
        }
    }

    /** Closes an environment that is not valid any more. */
    private void release() {
        Records.Store closed;
        ReplicatedEnvironment ended;
        synchronized (this) {
            closed = store;
            ended = environment;
            store = null;
            environment = null;
        }
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
