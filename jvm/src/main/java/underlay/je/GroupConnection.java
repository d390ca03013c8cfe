package underlay.je;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;

import underlay.jvm.Driver;
import underlay.jvm.NotDone;
import underlay.jvm.RemoteConnection;
import underlay.jvm.Values;

/**
 * A client of all shards. A write goes to the master of its shard, a read to it or to any member. What a member refuses is sent to the
 * next, until one accepts it or the time is up. A write whose connection is lost is not sent again: it may have been done, and others
 * may have written since.
 */
final class GroupConnection implements Driver.Connection {
    /** While a group elects a master, nobody is one. */
    private static final long BETWEEN_ROUNDS_MS = 20;

    private final List<Shard> shards;
    private final String secret;
    private final boolean readsFromMaster;
    private final long timeoutMs;
    private final LongAdder retries;
    private final Link[][] links;
    /** Of each shard the member that the next read goes to, where any will do. */
    private final int[] next;

    /** A connection, and how many had been lost when it was made. */
    private record Link(RemoteConnection connection, int losses) {
    }

    private interface Operation<T> {
        T of(RemoteConnection member) throws Exception;
    }

    GroupConnection(List<Shard> shards, String secret, boolean readsFromMaster, long timeoutMs, LongAdder retries) {
        this.shards = shards;
        this.secret = secret;
        this.readsFromMaster = readsFromMaster;
        this.timeoutMs = timeoutMs;
        this.retries = retries;
        links = new Link[shards.size()][];
        for (int shard = 0; shard < links.length; shard++) {
            links[shard] = new Link[shards.get(shard).members.size()];
        }
        next = new int[shards.size()];
        // Connections begin at different members.
        Arrays.fill(next, System.identityHashCode(this));
    }

    @Override
    public Driver.Outcome read(byte[] key, int field, Values into) throws Exception {
        return reading(Shard.of(key, shards.size()), deadline(), member -> member.read(key, field, into));
    }

    @Override
    public int scan(byte[] start, int limit, int field) throws Exception {
        long deadline = deadline();
        int count = 0;
        // Of the first records of all, each shard has none beyond its own first ones.
        for (int shard = 0; shard < links.length; shard++) {
            count += reading(shard, deadline, member -> member.scan(start, limit, field));
        }
        return Math.min(count, limit);
    }

    @Override
    public int scanRecords(byte[] start, int limit, int field, Values into) throws Exception {
        long deadline = deadline();
        FirstRecords found = new FirstRecords(limit);
        for (int shard = 0; shard < links.length; shard++) {
            Values values = new Values();
            reading(shard, deadline, member -> member.scanRecords(start, limit, field, values));
            found.add(values);
        }
        into.addAll(found.values());
        return found.count();
    }

    @Override
    public Driver.Outcome update(byte[] key, Values values) throws Exception {
        return writing(key, member -> member.update(key, values));
    }

    @Override
    public Driver.Outcome insert(byte[] key, Values values) throws Exception {
        return writing(key, member -> member.insert(key, values));
    }

    @Override
    public Driver.Outcome delete(byte[] key) throws Exception {
        return writing(key, member -> member.delete(key));
    }

    @Override
    public void close() {
        for (Link[] members : links) {
            for (Link link : members) {
                if (link != null) {
                    link.connection.close();
                }
            }
        }
    }

    private long deadline() {
        return System.nanoTime() + timeoutMs * 1_000_000;
    }

    private <T> T writing(byte[] key, Operation<T> operation) throws Exception {
        int number = Shard.of(key, shards.size());
        Shard shard = shards.get(number);
        return tried(number, shard.master(), deadline(), (member, deadline) -> {
            Link link = link(number, member, deadline);
            try {
                T answer = operation.of(link.connection);
                shard.answeredAsMaster(member);
                return answer;
            } catch (IOException lost) {
                lose(number, member, lost);
                throw new IllegalStateException("the connection to " + shard.members.get(member)
                        + " was lost before it answered a write, which may have been done or not", lost);
            }
        });
    }

    private <T> T reading(int number, long until, Operation<T> operation) throws Exception {
        Shard shard = shards.get(number);
        int first = readsFromMaster ? shard.master() : Math.floorMod(next[number]++, shard.members.size());
        return tried(number, first, until, (member, deadline) -> {
            Link link = link(number, member, deadline);
            try {
                T answer = operation.of(link.connection);
                if (readsFromMaster) {
                    shard.answeredAsMaster(member);
                }
                return answer;
            } catch (IOException lost) {
                lose(number, member, lost);
                throw new NotDone("the connection was lost", lost);
            }
        });
    }

    private interface Attempt<T> {
        T at(int member, long deadline) throws Exception;
    }

    /** Makes attempts at one member after the other, until one is not refused. */
    private <T> T tried(int number, int first, long deadline, Attempt<T> attempt) throws Exception {
        Shard shard = shards.get(number);
        int count = shard.members.size();
        int member = first;
        for (int tries = 1;; tries++) {
            try {
                return attempt.at(member, deadline);
            } catch (NotDone refused) {
                if (System.nanoTime() >= deadline) {
                    throw new NotDone("no member of shard " + (number + 1) + " did it within " + timeoutMs + " ms; "
                            + shard.members.get(member) + " said: " + refused.getMessage(), refused.getCause());
                }
            }
            retries.increment();
            member = (member + 1) % count;
            if (tries % count == 0) {
                Thread.sleep(BETWEEN_ROUNDS_MS);
            }
        }
    }

    /** The connection to a member, made if there is none. */
    private Link link(int number, int member, long deadline) throws Exception {
        Shard shard = shards.get(number);
        Link link = links[number][member];
        int losses = shard.losses(member);
        if (link != null && link.losses != losses) {
            // Nothing has been sent yet: on a connection that is lost without our knowing it, a write would be in doubt.
            link.connection.close();
            link = null;
        }
        if (link == null) {
            // A member that hangs still accepts connections, and must leave time for the others.
            long shareMs = Math.max(1, leftMs(deadline) / shard.members.size());
            try {
                RemoteConnection made = RemoteConnection.open(shard.members.get(member), secret,
                        Map.of(ReplicaDriver.READS_FROM_MASTER, Boolean.toString(readsFromMaster)),
                        (int) Math.min(shareMs, Integer.MAX_VALUE));
                link = new Link(made, losses);
                links[number][member] = link;
            } catch (IOException unreachable) {
                links[number][member] = null;
                noteTimeOut(shard, member, unreachable);
                throw new NotDone("it can't be reached: " + unreachable.getMessage(), unreachable);
            }
        }
        link.connection.within(leftMs(deadline));
        return link;
    }

    private static long leftMs(long deadline) {
        return Math.max(1, (deadline - System.nanoTime()) / 1_000_000);
    }

    private void lose(int number, int member, IOException lost) {
        Link link = links[number][member];
        links[number][member] = null;
        link.connection.close();
        shards.get(number).lost(member, link.losses);
        noteTimeOut(shards.get(number), member, lost);
    }

    private static void noteTimeOut(Shard shard, int member, IOException problem) {
        if (problem instanceof InterruptedIOException) {
            shard.timedOut(member);
        }
    }
}
