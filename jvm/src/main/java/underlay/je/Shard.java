package underlay.je;

import java.net.InetSocketAddress;
import java.util.List;
import java.util.concurrent.atomic.AtomicIntegerArray;

/** What all connections know of a replication group. */
final class Shard {
    final List<InetSocketAddress> members;
    /** How often a connection to each member was lost: older ones are as good as lost. */
    private final AtomicIntegerArray losses;
    /** The member that answered as the master last, or the one to try after that did not answer: a guess, which any thread corrects. */
    private volatile int master;

    Shard(List<InetSocketAddress> members) {
        this.members = members;
        losses = new AtomicIntegerArray(members.size());
    }

    /** The shard that has a record. The hash is FNV-1a. */
    static int of(byte[] key, int shards) {
        long hash = 0xcbf29ce484222325L;
        for (byte part : key) {
            hash = (hash ^ (part & 0xFF)) * 0x100000001b3L;
        }
        return (int) Long.remainderUnsigned(hash ^ (hash >>> 32), shards);
    }

    int master() {
        return master;
    }

    void answeredAsMaster(int member) {
        if (master != member) {
            master = member;
        }
    }

    /** The member did not answer in time: others are asked first from now on, so that operations do not all wait for it. */
    void timedOut(int member) {
        if (master == member) {
            master = (member + 1) % members.size();
        }
    }

    int losses(int member) {
        return losses.get(member);
    }

    /** A connection that was made after {@code seen} losses is lost. */
    void lost(int member, int seen) {
        losses.compareAndSet(member, seen, seen + 1);
    }
}
