package underlay.oraclenosql;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;

import oracle.kv.Consistency;
import oracle.kv.Durability;
import oracle.kv.DurabilityException;
import oracle.kv.FaultException;
import oracle.kv.KVStore;
import oracle.kv.Key;

import underlay.jvm.NotDone;

/** What an operation's requests have in common, and how often they are sent. */
final class Requests {
    static final TimeUnit UNIT = TimeUnit.MILLISECONDS;
    /** While a shard elects a master, nobody is one. */
    private static final long BETWEEN_MS = 20;

    final KVStore store;
    final Consistency consistency;
    final Durability durability;
    private final long timeoutMs;
    private final LongAdder retries;

    /** A request that may take so many milliseconds. */
    interface Request<T> {
        T within(long leftMs) throws Exception;
    }

    Requests(KVStore store, Consistency consistency, Durability durability, long timeoutMs, LongAdder retries) {
        this.store = store;
        this.consistency = consistency;
        this.durability = durability;
        this.timeoutMs = timeoutMs;
        this.retries = retries;
    }

    long deadline() {
        return System.nanoTime() + timeoutMs * 1_000_000;
    }

    /** At least one, since no request may have less. */
    static long leftMs(long deadline) {
        return Math.max(1, (deadline - System.nanoTime()) / 1_000_000);
    }

    /**
     * Sends a request again as long as it had no effect. The client itself does so while it looks for a master; a write that failed for
     * another reason may have been done, and is not sent again, since others may have written since.
     */
    <T> T send(long deadline, Request<T> request) throws Exception {
        while (true) {
            try {
                return request.within(leftMs(deadline));
            } catch (FaultException refused) {
                if (!hadNoEffect(refused)) {
                    throw refused;
                }
                if (System.nanoTime() + BETWEEN_MS * 1_000_000 >= deadline) {
                    throw new NotDone(refused.getMessage(), refused);
                }
            }
            retries.increment();
            Thread.sleep(BETWEEN_MS);
        }
    }

    /** Its causes say nothing: those of a timeout are of earlier attempts, and the last one may have been done. */
    private static boolean hadNoEffect(FaultException refused) {
        return refused instanceof DurabilityException durability && durability.getNoSideEffects();
    }

    /** Parts of keys are text: each byte becomes the letter of its number, which keeps their order. */
    static Key major(byte[] name) {
        return Key.createKey(List.of(new String(name, StandardCharsets.ISO_8859_1)));
    }
}
