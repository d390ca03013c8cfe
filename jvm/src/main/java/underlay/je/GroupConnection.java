package underlay.je;

import java.io.IOException;
import java.util.ArrayList;
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
    /** The member that the next read goes to, where any will do. */
    private int next;

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
        next = System.identityHashCode(this) & 0xFFFF;
    }

    @Override
    public Driver.Outcome read(byte[] key, int field, Values into) throws Exception {
        return reading(Shard.of(key, shards.size()), member -> member.read(key, field, into));
    }

    @Override
    public int scan(byte[] start, int limit, int field) throws Exception {
        int count = 0;
        // Of the first records of all, each shard has none beyond its own first ones.
        for (int shard = 0; shard < links.length; shard++) {
            count += reading(shard, member -> member.scan(start, limit, field));
        }
        return Math.min(count, limit);
    }

    /** A record within what a shard has answered. */
    private record Found(byte[] key, Values values, int first, int end) {
    }

    @Override
    public int scanRecords(byte[] start, int limit, int field, Values into) throws Exception {
        List<Found> found = new ArrayList<>();
        for (int shard = 0; shard < links.length; shard++) {
            Values values = new Values();
            reading(shard, member -> member.scanRecords(start, limit, field, values));
            int first = 0;
            for (int place = 1; place <= values.size(); place++) {
                if (place == values.size() || values.field(place) == Values.RECORD_KEY) {
                    found.add(new Found(values.copy(first), values, first, place));
                    first = place;
                }
            }
        }
        found.sort((one, other) -> Arrays.compareUnsigned(one.key, other.key));
        int count = Math.min(found.size(), limit);
        for (Found record : found.subList(0, count)) {
            into.addRange(record.values, record.first, record.end);
        }
        return count;
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

    private <T> T writing(byte[] key, Operation<T> operation) throws Exception {
        int number = Shard.of(key, shards.size());
        Shard shard = shards.get(number);
        return tried(number, shard.master(), (member, deadline) -> {
            Link link = link(number, member, deadline);
            try {
                T answer = operation.of(link.connection);
                shard.answeredAsMaster(member);
                return answer;
            } catch (IOException lost) {
                lose(number, member);
                throw new IllegalStateException("the connection to " + shard.members.get(member)
                        + " was lost before it answered a write, which may have been done or not", lost);
            }
        });
    }

    private <T> T reading(int number, Operation<T> operation) throws Exception {
        Shard shard = shards.get(number);
        int first = readsFromMaster ? shard.master() : next++ % shard.members.size();
        return tried(number, first, (member, deadline) -> {
            Link link = link(number, member, deadline);
            try {
                T answer = operation.of(link.connection);
                if (readsFromMaster) {
                    shard.answeredAsMaster(member);
                }
                return answer;
            } catch (IOException lost) {
                lose(number, member);
                throw new NotDone("the connection was lost", lost);
            }
        });
    }

    private interface Attempt<T> {
        T at(int member, long deadline) throws Exception;
    }

    /** Makes attempts at one member after the other, until one is not refused. */
    private <T> T tried(int number, int first, Attempt<T> attempt) throws Exception {
        Shard shard = shards.get(number);
        int count = shard.members.size();
        long deadline = System.nanoTime() + timeoutMs * 1_000_000;
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
        long leftMs = Math.max(1, (deadline - System.nanoTime()) / 1_000_000);
        if (link != null && link.losses != losses) {
            // Nothing has been sent yet: on a connection that is lost without our knowing it, a write would be in doubt.
            link.connection.close();
            link = null;
        }
        if (link == null) {
            try {
                RemoteConnection made = RemoteConnection.open(shard.members.get(member), secret,
                        Map.of(ReplicaDriver.READS_FROM_MASTER, Boolean.toString(readsFromMaster)),
                        (int) Math.min(leftMs, Integer.MAX_VALUE));
                link = new Link(made, losses);
                links[number][member] = link;
            } catch (IOException unreachable) {
                links[number][member] = null;
                throw new NotDone("it can't be reached: " + unreachable.getMessage(), unreachable);
            }
        }
        link.connection.within(leftMs);
        return link;
    }

    private void lose(int number, int member) {
        Link link = links[number][member];
        links[number][member] = null;
        link.connection.close();
        shards.get(number).lost(member, link.losses);
    }
}
