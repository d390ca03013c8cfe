package underlay.jvm;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

/**
 * Offers the operations of a driver's connections over TCP to those who know a secret, in the messages of {@link Server}. Anything else
 * that a driver can do is left to the process that started this one.
 */
public final class RemoteService implements Conversation.Host {
    /** The option of a connection that must be the secret. */
    static final String SECRET = "secret";

    private static final long STACK_BYTES = 512 << 10;
    private static final int BACKLOG = 1024;
    private static final long RETRY_MS = 50;
    /** How long operations that are under way may take when the service ends. */
    private static final long PATIENCE_MS = 5_000;

    private final ServerSocketChannel listener;
    private final Driver guarded;
    private final Map<Conversation, Thread> open = new HashMap<>();

    /** Listens at {@code address}. */
    public RemoteService(InetSocketAddress address, String secret, Driver driver) throws IOException {
        guarded = new Guarded(driver, secret.getBytes(StandardCharsets.UTF_8));
        listener = ServerSocketChannel.open();
        listener.setOption(StandardSocketOptions.SO_REUSEADDR, true);
        listener.bind(address, BACKLOG);
        Thread acceptor = new Thread(this::accept, "remote-service");
        acceptor.setDaemon(true);
        acceptor.start();
    }

    private void accept() {
        while (true) {
            try {
                SocketChannel channel = listener.accept();
                channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                Conversation conversation = new Conversation(this, guarded, channel);
                Thread thread = new Thread(null, conversation, "remote-connection", STACK_BYTES);
                thread.setDaemon(true);
                synchronized (this) {
                    open.put(conversation, thread);
                }
                thread.start();
            } catch (ClosedChannelException closed) {
                return;
            } catch (IOException problem) {
                System.err.println("can't accept a connection: " + problem);
                try {
                    Thread.sleep(RETRY_MS);
                } catch (InterruptedException ending) {
                    return;
                }
            }
        }
    }

    @Override
    public synchronized void ended(Conversation conversation) {
        open.remove(conversation);
    }

    /** Only who started the process may end it. */
    @Override
    public void stop(SocketChannel asked, int id) {
        Conversation.close(asked);
    }

    /** Accepts nothing more. Operations that are under way end first, unless they take too long. */
    public void close() throws IOException, InterruptedException {
        listener.close();
        Map<Conversation, Thread> ending;
        synchronized (this) {
            ending = new HashMap<>(open);
        }
        try {
            Conversation.end(ending, PATIENCE_MS);
        } finally {
            // Threads are not interrupted: JE would give up its environment, which is yet to be closed.
            ending.keySet().forEach(conversation -> Conversation.close(conversation.channel()));
        }
    }

    /** The operations of a driver, for connections that give the secret. */
    private record Guarded(Driver driver, byte[] secret) implements Driver {
        @Override
        public void open(Map<String, String> properties) {
            throw new UnsupportedOperationException("it is open");
        }

        @Override
        public Connection connect(Map<String, String> options) throws Exception {
            byte[] given = options.getOrDefault(SECRET, "").getBytes(StandardCharsets.UTF_8);
            if (!MessageDigest.isEqual(given, secret)) {
                throw new IllegalArgumentException("the connection does not know the secret");
            }
            Map<String, String> others = new HashMap<>(options);
            others.remove(SECRET);
            return driver.connect(others);
        }

        @Override
        public Map<String, Double> figures() {
            throw new UnsupportedOperationException("figures are not for remote connections");
        }

        @Override
        public Map<String, Double> gauges() {
            return figures();
        }

        @Override
        public void settle(Duration limit) {
            throw new UnsupportedOperationException("settling is not for remote connections");
        }

        @Override
        public String command(String name, String argument, Duration limit) {
            throw new UnsupportedOperationException("commands are not for remote connections");
        }

        @Override
        public void close() {
            // The driver is closed by who opened it.
        }
    }
}
