package underlay.jvm;

import java.io.IOException;
import java.io.Reader;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/**
 * The process between underlay and a system whose client is written in Java: a driver behind a Unix socket, with a thread per
 * connection.
 *
 * <p>Command line: the socket's path, the driver's class, and a file of properties for it. That file is deleted once it has
 * been read, since it may hold a password.
 */
public final class Server implements Conversation.Host {
    /** A small stack, since there may be hundreds of connections. */
    private static final long STACK_BYTES = 512 << 10;
    private static final int BACKLOG = 1024;
    /** How long to wait for connections when the process should end: their clients may be waiting for a system that doesn't answer. */
    private static final long PATIENCE_MS = 5_000;
    private static final long RETRY_MS = 50;

    private final Driver driver;
    private final ServerSocketChannel listener;
    private final Map<Conversation, Thread> open = new HashMap<>();
    /** The connection that requested the end, which is answered when everything is closed. */
    private SocketChannel stopAsked;
    private int stopId;

    private Server(Driver driver, ServerSocketChannel listener) {
        this.driver = driver;
        this.listener = listener;
    }

    public static void main(String[] words) {
        if (words.length != 3) {
            System.err.println("usage: underlay.jvm.Server SOCKET DRIVER-CLASS PROPERTIES (underlay starts it by itself)");
            System.exit(2);
        }
        Path socket = Path.of(words[0]);
        boolean orderly = false;
        try {
            Map<String, String> properties = properties(Path.of(words[2]));
            MayConnect.holdTo(properties.remove(MayConnect.PROPERTY));
            Driver driver = opened(words[1], properties);
            try (ServerSocketChannel listener = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
                // Listening means being ready, so it comes last.
                listener.bind(UnixDomainSocketAddress.of(socket), BACKLOG);
                Server server = new Server(driver, listener);
                server.accept();
                orderly = server.close();
            }
        } catch (Throwable problem) {
            // The last line is for the user. A stack trace is only useful for unexpected exceptions.
            if (!(problem instanceof Exception) || problem.getMessage() == null) {
                problem.printStackTrace();
            }
            System.err.println(Conversation.describe(problem));
        }
        // Client libraries leave threads behind that would keep the process alive.
        System.exit(orderly ? 0 : 1);
    }

    private static Map<String, String> properties(Path file) throws IOException {
        Properties read = new Properties();
        try (Reader reader = Files.newBufferedReader(file)) {
            read.load(reader);
        }
        Files.delete(file);
        Map<String, String> properties = new HashMap<>();
        read.stringPropertyNames().forEach(name -> properties.put(name, read.getProperty(name)));
        return properties;
    }

    private static Driver opened(String name, Map<String, String> properties) throws Exception {
        Driver driver = Class.forName(name).asSubclass(Driver.class).getDeclaredConstructor().newInstance();
        driver.open(properties);
        return driver;
    }

    /** Accepts connections until the end is requested. */
    private void accept() throws InterruptedException {
        while (true) {
            try {
                SocketChannel channel = listener.accept();
                Conversation conversation = new Conversation(this, driver, channel);
                Thread thread = new Thread(null, conversation, "connection", STACK_BYTES);
                thread.setDaemon(true);
                synchronized (this) {
                    open.put(conversation, thread);
                }
                thread.start();
            } catch (ClosedChannelException asked) {
                return;
            } catch (IOException problem) {
                System.err.println("can't accept a connection: " + problem);
                // Most likely it is out of file descriptors. Existing connections continue meanwhile.
                Thread.sleep(RETRY_MS);
            }
        }
    }

    @Override
    public synchronized void ended(Conversation conversation) {
        open.remove(conversation);
    }

    /** Ends {@link #accept}. If two connections request it, the second just sees its connection end. */
    @Override
    public synchronized void stop(SocketChannel asked, int id) {
        if (stopAsked != null) {
            Conversation.close(asked);
            return;
        }
        stopAsked = asked;
        stopId = id;
        try {
            listener.close();
        } catch (IOException problem) {
            System.err.println("can't stop listening: " + problem);
        }
    }

    /** Closes the connections and the driver, then answers the request to end. */
    private boolean close() throws InterruptedException {
        Map<Conversation, Thread> ending;
        synchronized (this) {
            ending = new HashMap<>(open);
        }
        Conversation.end(ending, PATIENCE_MS);
        if (driver.mayBeInterrupted()) {
            ending.values().forEach(Thread::interrupt);
        }
        Reply answer = new Reply();
        answer.clear();
        try {
            driver.close();
        } catch (Throwable problem) {
            answer.text(Reply.FAILED, Conversation.describe(problem));
        }
        try (SocketChannel asked = stopAsked) {
            answer.send(stopId, asked);
        } catch (IOException gone) {
            // The peer is gone. This process stops all the same.
        }
        return answer.status == Reply.FOUND;
    }
}
